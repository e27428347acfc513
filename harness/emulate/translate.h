// CUDA C++ as C++: what g++ cannot parse becomes what common/emulator/cuda_program.h declares. Everything
// else is C++ for that header already.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace flashsteps {

// What translate() cannot translate: what() is "FILE:LINE: sentence".
struct TranslationError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Preprocessed CUDA C++ (g++ -E, with line markers) as C++ that compiles after
// common/emulator/cuda_program.h. Only text of the user's own files is changed: is_own says which those are,
// by the path as the marker has it (with \\ and \" for \ and "). Lines stay where they are. Text that is not
// C++ either way is left to the compiler.
std::string translate(std::string_view preprocessed,
                      const std::function<bool(std::string_view path)>& is_own);

// The qualified names of the kernels that the user's own files declare, templates among them. Each once, in
// the order of the text. They are found by what common/emulator/kernel_server.h makes of __global__.
std::vector<std::string> find_kernels(std::string_view preprocessed,
                                      const std::function<bool(std::string_view path)>& is_own);

}  // namespace flashsteps
