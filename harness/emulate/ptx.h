// Inline PTX as C++: each instruction becomes a call of a function of common/emulator/ptx.h.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace flashsteps {

// asm volatile("text" : outputs : inputs : clobbers), without the clobbers.
struct AsmStatement {
  struct Operand {
    std::string name;        // of %[name]; may be empty
    std::string expression;  // C++
    bool is_output;          // also of "+r"
  };
  std::string text;  // of all its literals, without their quotes and escapes
  std::vector<Operand> operands;
};

// what() is a sentence.
struct PtxError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A C++ statement in one line, but for its semicolon. Empty if there is no instruction.
std::string translate_ptx(const AsmStatement& statement);

// The instructions that the emulator knows, as patterns of opcodes: of (a|b) each is an instruction of its
// own, and which of <a|b> it is does not matter to the emulator. An alternative may be empty.
std::span<const std::string_view> known_ptx();
// Of all of them: the functions that common/emulator/ptx.h must have, once each.
std::vector<std::string> ptx_functions();

}  // namespace flashsteps
