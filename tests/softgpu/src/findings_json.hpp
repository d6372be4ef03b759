// JSON text for the reports of findings and counters. Apart, so that neither report has to know of the other.
#pragma once
#include <string>
#include <string_view>

namespace soft {
std::string json_string(std::string_view text);  // quoted and escaped
}  // namespace soft
