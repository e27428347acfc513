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

constexpr int2 make_int2(int x, int y) { return {x, y}; }
constexpr uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
constexpr float2 make_float2(float x, float y) { return {x, y}; }
constexpr int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

}  // namespace emulator::cuda
