// What `flashsteps source` prints. The build has scripts/steps/one_file.py make its definition.
#pragma once

#include <vector>

namespace flashsteps {

struct StepSource {
  const char* step;
  const char* file;  // without the lines above it, which say how to compile it
  const char* main;  // below it, if asked for
};

std::vector<StepSource> step_sources();  // empty in a program that was built without Python

}  // namespace flashsteps
