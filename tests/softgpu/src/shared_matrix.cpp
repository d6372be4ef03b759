// ldmatrix and stmatrix: 8x8 matrices of 16-bit elements between rows in shared memory and a warp's registers.
//
//   row r of matrix i: 16 bytes at the address of lane 8 i + r
//   register i of lane l: elements (l / 4, 2 (l % 4)) and (l / 4, 2 (l % 4) + 1); transposed: (2 (l % 4), l / 4) and
//   (2 (l % 4) + 1, l / 4); the first is the low half
#include <bit>
#include <cstring>

#include "memory_block.hpp"

namespace soft {
namespace {

constexpr uint32_t kRows = 8, kRowBytes = 16;

// The lanes that words 0..3 of row r go to; transposed, a word goes to two lanes, and the first stands for both.
struct RowLanes {
  uint8_t plain[kRows][4], transposed[kRows][4];
  constexpr RowLanes() : plain(), transposed() {
    for (uint32_t row = 0; row < kRows; ++row) {
      for (uint32_t word = 0; word < 4; ++word) {
        plain[row][word] = uint8_t(row * 4 + word);
        transposed[row][word] = uint8_t(word * 8 + row / 2);
      }
    }
  }
};
constexpr RowLanes kRowLanes;

struct Rows {
  uint32_t offset[kLanes];
};

Rows checked_rows(const Request& request, int count, const SpaceLanes& lanes) {
  Rows rows;
  for (int lane = 0; lane < count * int(kRows); ++lane)
    rows.offset[lane] = checked_shared(request, lane, lanes.address[lane], kRowBytes);
  return rows;
}

void count_matrix(const Request& request, int count, const SpaceLanes& lanes, AccessCount& kind) {
  const uint32_t mask = count == 4 ? ~0u : (1u << count * kRows) - 1;
  const AccessCount cost = count_wavefronts(mask, lanes.address, kRowBytes);
  kind += cost;
  request.block.at_site(request.block.site_index(request.site.instruction)) += cost;
}

}  // namespace

void load_matrix(const Request& request, int count, bool transposed, uint32_t* out) {
  BlockMemory& block = request.block;
  uint64_t offsets[kLanes];
  const SpaceLanes lanes = shared_lanes(request, offsets);
  const Rows rows = checked_rows(request, count, lanes);
  const auto& row_lanes = transposed ? kRowLanes.transposed : kRowLanes.plain;
  const Accessor who = block.accessor(request.site, request.warp, 0);
  for (int i = 0; i < count; ++i) {
    uint16_t matrix[kRows][kRows];
    for (uint32_t row = 0; row < kRows; ++row) {
      const uint32_t offset = rows.offset[i * kRows + row];
      if (block.grid->checks) block.shared_shadow.read_row(who, offset, row_lanes[row]);
      std::memcpy(matrix[row], block.shared.data() + offset, kRowBytes);
    }
    uint32_t* to = out + i * kLanes;
    if (!transposed) {
      std::memcpy(to, matrix, sizeof matrix);  // word w of row r is lane 4 r + w's
      continue;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const int column = lane / 4, row = 2 * (lane % 4);
      to[lane] = matrix[row][column] | uint32_t(matrix[row + 1][column]) << 16;
    }
  }
  count_matrix(request, count, lanes, block.counters->shared_load);
}

void store_matrix(const Request& request, int count, bool transposed, const uint32_t* from) {
  BlockMemory& block = request.block;
  uint64_t offsets[kLanes];
  const SpaceLanes lanes = shared_lanes(request, offsets);
  const Rows rows = checked_rows(request, count, lanes);
  const auto& row_lanes = transposed ? kRowLanes.transposed : kRowLanes.plain;
  const Accessor who = block.accessor(request.site, request.warp, 0);
  for (int i = 0; i < count; ++i) {
    uint16_t matrix[kRows][kRows];
    const uint32_t* values = from + i * kLanes;
    if (!transposed) std::memcpy(matrix, values, sizeof matrix);
    for (int lane = 0; lane < kLanes && transposed; ++lane) {
      const int column = lane / 4, row = 2 * (lane % 4);
      matrix[row][column] = uint16_t(values[lane]);
      matrix[row + 1][column] = uint16_t(values[lane] >> 16);
    }
    for (uint32_t row = 0; row < kRows; ++row) {
      const uint32_t offset = rows.offset[i * kRows + row];
      if (block.grid->checks) block.shared_shadow.write_row(who, offset, row_lanes[row]);
      std::memcpy(block.shared.data() + offset, matrix[row], kRowBytes);
    }
  }
  count_matrix(request, count, lanes, block.counters->shared_store);
}

}  // namespace soft
