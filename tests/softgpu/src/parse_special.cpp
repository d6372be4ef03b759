// The names and types of special registers: PTX manual 10.
#include "parse.hpp"

namespace soft {
namespace {
struct SpecialName {
  const char* name;
  Special special;
  Type type;
};
constexpr SpecialName kSpecials[] = {
    {"%tid.x", Special::TidX, Type::U32},
    {"%tid.y", Special::TidY, Type::U32},
    {"%tid.z", Special::TidZ, Type::U32},
    {"%ntid.x", Special::NtidX, Type::U32},
    {"%ntid.y", Special::NtidY, Type::U32},
    {"%ntid.z", Special::NtidZ, Type::U32},
    {"%ctaid.x", Special::CtaidX, Type::U32},
    {"%ctaid.y", Special::CtaidY, Type::U32},
    {"%ctaid.z", Special::CtaidZ, Type::U32},
    {"%nctaid.x", Special::NctaidX, Type::U32},
    {"%nctaid.y", Special::NctaidY, Type::U32},
    {"%nctaid.z", Special::NctaidZ, Type::U32},
    {"%laneid", Special::Laneid, Type::U32},
    {"%warpid", Special::Warpid, Type::U32},
    {"%nwarpid", Special::Nwarpid, Type::U32},
    {"%smid", Special::Smid, Type::U32},
    {"%nsmid", Special::Nsmid, Type::U32},
    {"%gridid", Special::Gridid, Type::U64},
    {"%lanemask_eq", Special::LanemaskEq, Type::U32},
    {"%lanemask_le", Special::LanemaskLe, Type::U32},
    {"%lanemask_lt", Special::LanemaskLt, Type::U32},
    {"%lanemask_ge", Special::LanemaskGe, Type::U32},
    {"%lanemask_gt", Special::LanemaskGt, Type::U32},
    {"%dynamic_smem_size", Special::DynamicSmemSize, Type::U32},
    {"%total_smem_size", Special::TotalSmemSize, Type::U32},
    {"%clock", Special::Clock, Type::U32},
    {"%clock_hi", Special::ClockHi, Type::U32},
    {"%clock64", Special::Clock64, Type::U64},
    {"%globaltimer", Special::Globaltimer, Type::U64},
    {"%globaltimer_lo", Special::GlobaltimerLo, Type::U32},
    {"%globaltimer_hi", Special::GlobaltimerHi, Type::U32},
};
}  // namespace

Special special_named(std::string_view name) {
  for (const auto& each : kSpecials) {
    if (name == each.name) return each.special;
  }
  return Special::Count;
}

Type type_of(Special special) {
  for (const auto& each : kSpecials) {
    if (each.special == special) return each.type;
  }
  return Type::None;
}
}  // namespace soft
