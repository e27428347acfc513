// CUDA's built-in vector types, with CUDA's alignments.
#pragma once

namespace emulator::cuda {

// The compiler must not take a vector apart and store its parts one by one: on a GPU, `*p = make_float4(...)`
// is one access. An empty instruction that might look at the whole vector keeps it whole.
template <typename Vector>
[[gnu::always_inline]] inline Vector keep_whole(Vector vector) {
  __asm__("" : "+m"(vector));
  return vector;
}

// A vector is aligned to its size, up to 16 bytes; one of three elements to an element.
#define FLASHSTEPS_VECTORS(T, NAME)                                                                     \
  struct NAME##1 {                                                                                      \
    T x;                                                                                                \
  };                                                                                                    \
  struct alignas(2 * sizeof(T)) NAME##2 {                                                               \
    T x, y;                                                                                             \
  };                                                                                                    \
  struct NAME##3 {                                                                                      \
    T x, y, z;                                                                                          \
  };                                                                                                    \
  struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) NAME##4 {                                          \
    T x, y, z, w;                                                                                       \
  };                                                                                                    \
  [[gnu::always_inline]] inline NAME##1 make_##NAME##1(T x) { return {x}; }                             \
  [[gnu::always_inline]] inline NAME##2 make_##NAME##2(T x, T y) { return keep_whole(NAME##2 {x, y}); } \
  [[gnu::always_inline]] inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }             \
  [[gnu::always_inline]] inline NAME##4 make_##NAME##4(T x, T y, T z, T w) {                            \
    return keep_whole(NAME##4 {x, y, z, w});                                                            \
  }

FLASHSTEPS_VECTORS(signed char, char)
FLASHSTEPS_VECTORS(unsigned char, uchar)
FLASHSTEPS_VECTORS(short, short)
FLASHSTEPS_VECTORS(unsigned short, ushort)
FLASHSTEPS_VECTORS(int, int)
FLASHSTEPS_VECTORS(unsigned, uint)
FLASHSTEPS_VECTORS(long long, longlong)
FLASHSTEPS_VECTORS(unsigned long long, ulonglong)
FLASHSTEPS_VECTORS(float, float)
FLASHSTEPS_VECTORS(double, double)
#undef FLASHSTEPS_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1)
      : x(x_size), y(y_size), z(z_size) {}
  constexpr dim3(uint3 size) : x(size.x), y(size.y), z(size.z) {}
};

}  // namespace emulator::cuda
