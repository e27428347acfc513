// Static __shared__ variables of programs that `flashsteps emulate` runs. They lie where a GPU puts them: at
// the beginning of the CTA's shared memory, in the order of the source, with dynamic shared memory behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace emulator {

// One for each declaration in each instance of the function that it is in. Who launches a kernel finds it by
// the relocations of the kernel's code, and knows it by `magic`.
struct SharedVariable {
  static constexpr uint64_t kMagic = 0x5f646572616873ull;
  uint64_t magic = kMagic;
  size_t bytes;  // 0: the beginning of dynamic shared memory
  size_t alignment;
  int number;  // in the order of the source
  const char* name;
  std::atomic<uint64_t> place = 0;  // the number of the launch, and the offset in it
};

// The running CTA's.
void* shared_variable(SharedVariable& variable);
void* dynamic_shared(SharedVariable& variable);

// A kernel that is declared with __cluster_dims__ refers to it.
struct ClusterDims {
  static constexpr uint64_t kMagic = 0x5f72657473756c63ull;
  uint64_t magic = kMagic;
  unsigned x, y, z;
};

namespace program {

// For what translate() makes of `__shared__ T name;`: DECLARATION is a type for it alone, which has the name.
template <typename DECLARATION, int NUMBER, typename T, size_t ALIGNMENT>
[[gnu::always_inline]] inline T& shared() {
  static constinit SharedVariable its{
      .bytes = sizeof(T), .alignment = ALIGNMENT, .number = NUMBER, .name = DECLARATION::name()};
  return *static_cast<T*>(shared_variable(its));
}
// And of `extern __shared__ T name[];`, of which DECLARATION has one element.
template <typename DECLARATION>
[[gnu::always_inline]] inline void* dynamic() {
  static constinit SharedVariable its{
      .bytes = 0, .alignment = alignof(DECLARATION), .number = 0, .name = nullptr};
  return dynamic_shared(its);
}
// At file scope.
struct DynamicAlignment {
  explicit DynamicAlignment(size_t bytes);
};

// Stands at the beginning of a kernel.
template <unsigned X, unsigned Y = 1, unsigned Z = 1>
[[gnu::always_inline]] inline void cluster_dims() {
  static constinit ClusterDims its{.x = X, .y = Y, .z = Z};
  asm volatile("" : : "r"(&its));
}

}  // namespace program
}  // namespace emulator
