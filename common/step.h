// How a step registers. A step's kernel.cu defines, inside `namespace STEP_NAMESPACE { ... }`,
//   template <typename Element, int HEAD_DIM, bool CAUSAL>
//   void launch_attention(const AttentionParams<Element>& params, Stream stream);
// (with `fp8_cache`, of AttentionParams<Element, __nv_fp8_e4m3>; with `backward`, of
// BackwardParams<Element>), and
//   constexpr StepInfo kStep = {.title = ..., .removes = ...};
//   REGISTER_STEP(launch_attention, kStep);
// The step has the name of its folder.
#pragma once

#include "common/attention.h"
#include "common/launch.h"

// The build passes -DFLASHSTEPS_STEP=<folder>, and as FLASHSTEPS_NEEDS_SM what it has compiled this source
// for. The namespace encodes step and backend, so that ncu shows v02_smem_tiles::attention_kernel and the
// emulator's build of the same kernel has a name of its own.
#define FLASHSTEPS_CONCAT_(a, b) a##b
#define FLASHSTEPS_CONCAT(a, b) FLASHSTEPS_CONCAT_(a, b)
#define FLASHSTEPS_STRING_(a) #a
#define FLASHSTEPS_STRING(a) FLASHSTEPS_STRING_(a)
#ifdef __CUDACC__
#define STEP_NAMESPACE FLASHSTEPS_STEP
#else
#define STEP_NAMESPACE FLASHSTEPS_CONCAT(FLASHSTEPS_STEP, _on_emulator)
#endif

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

#ifdef __CUDACC__
constexpr BackendKind kThisBackend = BackendKind::kCuda;
#else
constexpr BackendKind kThisBackend = BackendKind::kEmulator;
#endif

// From the run-time call to the kernel's template arguments. Launcher is the struct that REGISTER_STEP makes;
// INFO is the step's registration.
template <typename Launcher, const StepInfo& INFO, typename Element>
void dispatch_element(const AttentionCall& call, Stream stream) {
  using Cache = std::conditional_t<INFO.fp8_cache, __nv_fp8_e4m3, Element>;
  const auto params = [&] {
    if constexpr (INFO.backward)
      return make_backward_params<Element>(call);
    else
      return make_params<Element, Cache>(call);
  }();
  if (call.head_dim == 64) {
    call.causal ? Launcher::template run<Element, 64, true>(params, stream)
                : Launcher::template run<Element, 64, false>(params, stream);
  } else {
    call.causal ? Launcher::template run<Element, 128, true>(params, stream)
                : Launcher::template run<Element, 128, false>(params, stream);
  }
}

// Kernels are compiled for the types in INFO.dtypes alone.
template <typename Launcher, const StepInfo& INFO>
void dispatch_call(const AttentionCall& given, Stream stream) {
  AttentionCall call = with_kernel_strides(given);
  call.configuration = configuration_of(INFO, call);
  if constexpr (INFO.dtypes.has(DType::kFp16))
    if (call.dtype == DType::kFp16) return dispatch_element<Launcher, INFO, __half>(call, stream);
  if constexpr (INFO.dtypes.has(DType::kBf16))
    if (call.dtype == DType::kBf16) return dispatch_element<Launcher, INFO, __nv_bfloat16>(call, stream);
  if constexpr (INFO.dtypes.has(DType::kE4m3))
    if (call.dtype == DType::kE4m3) return dispatch_element<Launcher, INFO, __nv_fp8_e4m3>(call, stream);
  if constexpr (INFO.dtypes.has(DType::kFp32))
    if (call.dtype == DType::kFp32) return dispatch_element<Launcher, INFO, float>(call, stream);
}

template <typename Launcher, const StepInfo& INFO>
void dispatch(const AttentionCall& call, void* opaque_stream) {
  const Stream stream = static_cast<Stream>(opaque_stream);
  if (call.batch <= kMaxGridYZ && call.num_heads_q <= kMaxGridYZ)
    return dispatch_call<Launcher, INFO>(call, stream);
  for (const AttentionCall& part : split_for_grid(call)) dispatch_call<Launcher, INFO>(part, stream);
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps

namespace STEP_NAMESPACE {
using namespace flashsteps;
}

// A test that runs only some of a step's instances defines this as a condition on the three arguments, so
// that the others are not compiled.
#ifndef FLASHSTEPS_COMPILED
#define FLASHSTEPS_COMPILED(Element, HEAD_DIM, CAUSAL) true
#endif

#define REGISTER_STEP(launcher, info)                                             \
  struct Launcher {                                                               \
    template <typename Element, int HEAD_DIM, bool CAUSAL>                        \
    static void run(const auto& params, Stream stream) {                          \
      if constexpr (FLASHSTEPS_COMPILED(Element, HEAD_DIM, CAUSAL))               \
        launcher<Element, HEAD_DIM, CAUSAL>(params, stream);                      \
      else if (launch_recorder() == nullptr)                                      \
        throw std::runtime_error("this build of the step has no such instance");  \
    }                                                                             \
  };                                                                              \
  static_assert(Architecture(info.needs_sm) == Architecture(FLASHSTEPS_NEEDS_SM), \
                "the build has found another needs_sm in this source");           \
  [[maybe_unused]] const bool kRegistered =                                       \
      register_step({FLASHSTEPS_STRING(FLASHSTEPS_STEP), kThisBackend, info, dispatch<Launcher, info>})
