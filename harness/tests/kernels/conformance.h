// What crosses between the conformance kernels and their driver. Plain C++: the kernels' two builds and the
// driver all include it, so it has no function that the linker could merge.
#pragma once

#include <span>

#include "common/interface.h"

namespace flashsteps {

// What the words of an input hold.
enum class Words {
  kBits,          // anything: every NaN, infinity and subnormal
  kFp16,          // two numbers, N(0, 1)
  kBf16,          // two numbers, N(0, 1)
  kFp16Integers,  // two of -4 .. 4: sums of products are exact
  kBf16Integers,
  kE4m3,           // four numbers, N(0, 1)
  kE4m3WithZeros,  // the same, but every other one is 0
  kE4m3Large,      // four numbers, N(0, 1) * 100: many sums of their products are too large for FP16
  kE4m3Integers,   // four of -4 .. 4
  kFloat,          // N(0, 1)
  kFloatIntegers,  // -4 .. 4
  kExponents,      // floats that exp2 takes everywhere: overflow, ordinary numbers, subnormals, zero, NaN
};

struct InputWords {
  Words kind;
  int count;
};

// Functions of the hardware headers, run by one CTA or a few on given words of 32 bits.
struct ConformanceCase {
  const char* name;
  InputWords in[3];  // one behind the other
  int num_out;
  // 0: the two backends' results must be the same bits. Otherwise they are floats, the second half of them
  // the scales of the first half, and may differ by tolerance * scale.
  double tolerance;
  void (*run)(const AttentionCall& call, void* stream);  // reads words at call.q.data, writes at call.o.data
  const char* needs_sm = "80";                           // as in a step's registration
  int not_on = 0;  // the compute capability, 90 for 9.0, of the GPUs that compute it in another way
};

inline namespace on_cuda {
std::span<const ConformanceCase> conformance_cases();
std::span<const ConformanceCase> conformance_cases_sm89();
std::span<const ConformanceCase> conformance_cases_sm90();
std::span<const ConformanceCase> conformance_cases_sm90a();
}  // namespace on_cuda
inline namespace on_emulator {
std::span<const ConformanceCase> conformance_cases();  // the same, in the same order
std::span<const ConformanceCase> conformance_cases_sm89();
std::span<const ConformanceCase> conformance_cases_sm90();
std::span<const ConformanceCase> conformance_cases_sm90a();
}  // namespace on_emulator

}  // namespace flashsteps
