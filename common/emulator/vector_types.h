// CUDA's built-in vector types, with CUDA's alignments.
#pragma once

namespace emulator::cuda {

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1)
      : x(x_size), y(y_size), z(z_size) {}
  constexpr dim3(uint3 size) : x(size.x), y(size.y), z(size.z) {}
};

struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

// The compiler must not take a vector apart and store its parts one by one: on a GPU, `*p = make_float4(...)`
// is one access. An empty instruction that might look at the whole vector keeps it whole.
template <typename Vector>
[[gnu::always_inline]] inline Vector keep_whole(Vector vector) {
  asm("" : "+m"(vector));
  return vector;
}

[[gnu::always_inline]] inline int2 make_int2(int x, int y) { return keep_whole(int2{x, y}); }
[[gnu::always_inline]] inline uint2 make_uint2(unsigned x, unsigned y) { return keep_whole(uint2{x, y}); }
[[gnu::always_inline]] inline float2 make_float2(float x, float y) { return keep_whole(float2{x, y}); }
[[gnu::always_inline]] inline int4 make_int4(int x, int y, int z, int w) {
  return keep_whole(int4{x, y, z, w});
}
[[gnu::always_inline]] inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return keep_whole(uint4{x, y, z, w});
}
[[gnu::always_inline]] inline float4 make_float4(float x, float y, float z, float w) {
  return keep_whole(float4{x, y, z, w});
}

}  // namespace emulator::cuda
