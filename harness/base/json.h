// JSON, by its short name.
#pragma once

#include <nlohmann/json.hpp>

namespace flashsteps {
using nlohmann::json;
}
