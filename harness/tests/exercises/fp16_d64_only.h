// For the exercises, in front of their kernel.cu: a step is registered with two of its kernel's instances,
// not with all eight, and compiles in half the time. The kernels are what they are in any step.
#pragma once

#include <stdexcept>

#include "common/step.h"

#undef REGISTER_STEP
#define REGISTER_STEP(launcher, ...)                                                                        \
  namespace STEP_NAMESPACE {                                                                                \
  void run_fp16_d64(const AttentionCall& call, void* opaque_stream) {                                       \
    if (call.dtype != DType::kFp16 || call.head_dim != 64)                                                  \
      throw std::runtime_error("an exercise is built for fp16 and D=64 only");                              \
    const auto params = make_params<__half>(call);                                                          \
    const Stream stream = static_cast<Stream>(opaque_stream);                                               \
    call.causal ? launcher<__half, 64, true>(params, stream) : launcher<__half, 64, false>(params, stream); \
  }                                                                                                         \
  constexpr StepInfo kStepInfo __VA_ARGS__;                                                                 \
  [[maybe_unused]] const bool kRegistered =                                                                 \
      register_step({FLASHSTEPS_STRING(FLASHSTEPS_STEP), kThisBackend, kStepInfo, run_fp16_d64});           \
  }
