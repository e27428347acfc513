// A problem as results files have it, and as workers are told of it. (Apart, because the Python module is
// built without a JSON library.)
#pragma once

#include "harness/base/json.h"
#include "harness/problem/problem.h"

namespace flashsteps {

json to_json(const Problem& problem);
Problem problem_from_json(const json& json);

}  // namespace flashsteps
