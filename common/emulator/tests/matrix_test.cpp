// ldmatrix, mma.sync, WMMA and the small functions around them: what they compute and what they count. The
// layouts are written out here from the text of the PTX ISA; nothing of the emulator's own mapping is used.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "common/emulator/tests/support.h"
#include "common/exp2.h"
#include "common/ldmatrix.h"
#include "common/mma.h"
#include "common/pack.h"
#include "common/vector_copy.h"
#include "common/wmma.h"

using namespace flashsteps;

namespace {

// Repeatable values without any distribution to speak of.
struct Values {
  uint64_t state;
  unsigned next() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return unsigned(state >> 33);
  }
  float real() { return float(int(next() % 4001) - 2000) / 500.0f; }  // -4 .. 4
  float integer() { return float(int(next() % 9) - 4); }              // exact in every type and sum
};

template <typename Element>
uint16_t bits_of(float value) {
  return Element(value).bits;
}
template <typename Element>
float value_of(uint16_t bits) {
  Element element;
  element.bits = bits;
  return float(element);
}

// A matrix on the host: values as the element type can hold them.
template <typename Element>
std::vector<float> random_matrix(int elements, uint64_t seed, bool integers) {
  Values values{seed};
  std::vector<float> matrix(static_cast<size_t>(elements));
  for (float& x : matrix) x = float(Element(integers ? values.integer() : values.real()));
  return matrix;
}

// |got - sum of a_i b_i - c| against what FP32 sums in any order may be off by.
bool close(float got, double expected, double sum_of_magnitudes, bool exact) {
  return std::abs(double(got) - expected) <= (exact ? 0.0 : 1e-6 * sum_of_magnitudes);
}

// ---- ldmatrix

__global__ void ldmatrix_kernel(const uint16_t* in, int count, const int* row_of_lane, bool transposed,
                                uint32_t* out) {
  uint16_t* tile = shared_array<uint16_t>();
  for (int i = threadIdx.x; i < count; i += 32) tile[i] = in[i];
  __syncwarp();
  uint32_t registers[4];
  if (transposed) {
    ldmatrix_x4_trans(registers, &tile[row_of_lane[threadIdx.x]]);
  } else {
    ldmatrix_x4(registers, &tile[row_of_lane[threadIdx.x]]);
  }
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = registers[i];
}

// PTX ISA, "ldmatrix": who holds what of an 8 x 8 matrix. Every thread holds two neighbours of a row.
constexpr int kHolder[8][4] = {{0, 1, 2, 3},     {4, 5, 6, 7},     {8, 9, 10, 11},   {12, 13, 14, 15},
                               {16, 17, 18, 19}, {20, 21, 22, 23}, {24, 25, 26, 27}, {28, 29, 30, 31}};

TEST_CASE("ldmatrix moves the documented elements", "[matrix]") {
  fresh_options();
  for (const int stride : {8, 24, 64, 72}) {
    // 32 rows in any order: what ties a row to its matrix is the lane that hands it in, and nothing else.
    std::array<int, 32> rows;
    std::iota(rows.begin(), rows.end(), 0);
    Values values{uint64_t(stride)};
    for (int i = 31; i > 0; --i) std::swap(rows[size_t(i)], rows[values.next() % unsigned(i + 1)]);
    Buffer<uint16_t> in(size_t(32 * stride));
    Buffer<int> row_of_lane(32);
    Buffer<uint32_t> out(128);
    for (int i = 0; i < 32 * stride; ++i) in[size_t(i)] = uint16_t(i);
    for (int lane = 0; lane < 32; ++lane) row_of_lane[size_t(lane)] = rows[size_t(lane)] * stride;
    for (const bool transposed : {false, true}) {
      CAPTURE(stride, transposed);
      launch(ldmatrix_kernel, 1, 32, size_t(64 * stride), nullptr, in.get(), 32 * stride, row_of_lane.get(),
             transposed, out.get());
      int wrong = 0;
      for (int matrix = 0; matrix < 4; ++matrix) {
        for (int row = 0; row < 8; ++row) {
          for (int col = 0; col < 8; ++col) {
            // Threads 0-7 hand in the rows of the first matrix, 8-15 those of the second, and so on.
            const int element = rows[size_t(8 * matrix + row)] * stride + col;
            const int holder = transposed ? kHolder[col][row / 2] : kHolder[row][col / 2];
            const int half = transposed ? row % 2 : col % 2;
            wrong += int(out[size_t(4 * holder + matrix)] >> (16 * half) & 0xffff) != element;
          }
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("ldmatrix of one row by all lanes, and of a static __shared__ array's", "[matrix]") {
  fresh_options();
  Buffer<uint16_t> in(8);
  Buffer<int> row_of_lane(32);
  Buffer<uint32_t> out(128);
  for (size_t i = 0; i < 8; ++i) in[i] = uint16_t(100 + i);
  for (size_t lane = 0; lane < 32; ++lane) row_of_lane[lane] = 0;
  launch(ldmatrix_kernel, 1, 32, 16, nullptr, in.get(), 8, row_of_lane.get(), false, out.get());
  for (unsigned lane = 0; lane < 32; ++lane) {
    CHECK(out[4 * lane + 3] == (100 + 2 * (lane % 4)) + ((101 + 2 * (lane % 4)) << 16));
  }
  launch(ldmatrix_kernel, 1, 32, 16, nullptr, in.get(), 8, row_of_lane.get(), true, out.get());
  for (unsigned lane = 0; lane < 32; ++lane) CHECK(out[4 * lane] == (100 + lane / 4) * 0x10001);

  const auto static_array_kernel = +[](uint32_t* result) {
    __shared__ __align__(16) uint16_t tile[32 * 8];
    for (int i = 0; i < 8; ++i) tile[8 * threadIdx.x + i] = uint16_t(8 * threadIdx.x + i);
    __syncwarp();
    uint32_t registers[4];
    ldmatrix_x4(registers, &tile[8 * threadIdx.x]);
    result[threadIdx.x] = registers[2];
  };
  launch(static_array_kernel, 1, 32, 0, nullptr, out.get());
  for (unsigned lane = 0; lane < 32; ++lane) {
    CHECK(out[lane] == (128 + 2 * lane) + ((129 + 2 * lane) << 16));
  }
}

// ---- mma.sync

template <typename Element>
__global__ void mma_kernel(const uint32_t* a, const uint32_t* b, float* acc) {
  uint32_t frag_a[4], frag_b[2];
  float frag_c[4];
  for (int i = 0; i < 4; ++i) frag_a[i] = a[4 * threadIdx.x + i];
  for (int i = 0; i < 2; ++i) frag_b[i] = b[2 * threadIdx.x + i];
  for (int i = 0; i < 4; ++i) frag_c[i] = acc[4 * threadIdx.x + i];
  mma_m16n8k16<Element>(frag_c, frag_a, frag_b);
  for (int i = 0; i < 4; ++i) acc[4 * threadIdx.x + i] = frag_c[i];
}

template <typename Element>
void check_mma(uint64_t seed, bool integers) {
  const std::vector<float> a = random_matrix<Element>(16 * 16, seed, integers);
  const std::vector<float> b = random_matrix<Element>(16 * 8, seed + 1000, integers);
  const std::vector<float> c = random_matrix<float>(16 * 8, seed + 2000, integers);
  Buffer<uint32_t> frag_a(128), frag_b(64);
  Buffer<float> acc(128);
  // PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type":
  //   groupID = %laneid >> 2, threadID_in_group = %laneid % 4
  const auto row_of_c = [](int group, int i) { return i < 2 ? group : group + 8; };
  const auto col_of_c = [](int thread, int i) { return thread * 2 + (i & 1); };
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane >> 2, thread = lane % 4;
    uint16_t a_elements[8], b_elements[4];
    for (int i = 0; i < 8; ++i) {
      const int row = (0 <= i && i < 2) || (4 <= i && i < 6) ? group : group + 8;
      const int col = i < 4 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8;
      a_elements[i] = bits_of<Element>(a[size_t(16 * row + col)]);
    }
    for (int i = 0; i < 4; ++i) {
      const int row = i < 2 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8;
      const int col = group;
      b_elements[i] = bits_of<Element>(b[size_t(8 * row + col)]);
    }
    std::memcpy(&frag_a[size_t(4 * lane)], a_elements, 16);
    std::memcpy(&frag_b[size_t(2 * lane)], b_elements, 8);
    for (int i = 0; i < 4; ++i)
      acc[size_t(4 * lane + i)] = c[size_t(8 * row_of_c(group, i) + col_of_c(thread, i))];
  }

  launch(mma_kernel<Element>, 1, 32, 0, nullptr, frag_a.get(), frag_b.get(), acc.get());
  CHECK(emulator::last_counters().mma == 1);

  int wrong = 0;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = row_of_c(lane >> 2, i), col = col_of_c(lane % 4, i);
      double expected = c[size_t(8 * row + col)], magnitude = std::abs(expected);
      for (int k = 0; k < 16; ++k) {
        const double product = double(a[size_t(16 * row + k)]) * b[size_t(8 * k + col)];
        expected += product;
        magnitude += std::abs(product);
      }
      wrong += !close(acc[size_t(4 * lane + i)], expected, magnitude, integers);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("mma.m16n8k16 adds A B to the accumulator", "[matrix]") {
  fresh_options();
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    check_mma<__half>(seed, false);
    check_mma<__nv_bfloat16>(seed, false);
    check_mma<__half>(seed, true);
    check_mma<__nv_bfloat16>(seed, true);
  }
}

__global__ void mma_e4m3_kernel(const uint32_t* a, const uint32_t* b, float* acc) {
  uint32_t frag_a[4], frag_b[2];
  float frag_c[4];
  for (int i = 0; i < 4; ++i) frag_a[i] = a[4 * threadIdx.x + i];
  for (int i = 0; i < 2; ++i) frag_b[i] = b[2 * threadIdx.x + i];
  for (int i = 0; i < 4; ++i) frag_c[i] = acc[4 * threadIdx.x + i];
  mma_m16n8k32_e4m3(frag_c, frag_a, frag_b);
  for (int i = 0; i < 4; ++i) acc[4 * threadIdx.x + i] = frag_c[i];
}

// Integers, of which sums are exact. Of c only element (5, 3) is not 0, and it is `largest`.
void check_mma_e4m3(uint64_t seed, float largest) {
  const std::vector<float> a = random_matrix<float>(16 * 32, seed, true);
  const std::vector<float> b = random_matrix<float>(32 * 8, seed + 1000, true);
  Buffer<uint32_t> frag_a(128), frag_b(64);
  Buffer<float> acc(128);
  // PTX ISA, "Matrix Fragments for mma.m16n8k32":
  //   groupID = %laneid >> 2, threadID_in_group = %laneid % 4
  const auto row_of_c = [](int group, int i) { return i < 2 ? group : group + 8; };
  const auto col_of_c = [](int thread, int i) { return thread * 2 + (i & 1); };
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane >> 2, thread = lane % 4;
    uint8_t a_elements[16], b_elements[8];
    for (int i = 0; i < 16; ++i) {
      const int row = (0 <= i && i < 4) || (8 <= i && i < 12) ? group : group + 8;
      const int col = i < 8 ? thread * 4 + (i & 3) : thread * 4 + (i & 3) + 16;
      a_elements[i] = emulator::float_to_e4m3_bits(a[size_t(32 * row + col)]);
    }
    for (int i = 0; i < 8; ++i) {
      const int row = i < 4 ? thread * 4 + (i & 3) : thread * 4 + (i & 3) + 16;
      b_elements[i] = emulator::float_to_e4m3_bits(b[size_t(8 * row + group)]);
    }
    std::memcpy(&frag_a[size_t(4 * lane)], a_elements, 16);
    std::memcpy(&frag_b[size_t(2 * lane)], b_elements, 8);
    for (int i = 0; i < 4; ++i)
      acc[size_t(4 * lane + i)] = row_of_c(group, i) == 5 && col_of_c(thread, i) == 3 ? largest : 0.0f;
  }

  launch(mma_e4m3_kernel, 1, 32, 0, nullptr, frag_a.get(), frag_b.get(), acc.get());
  CHECK(emulator::last_counters().mma == 2);

  int wrong = 0;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = row_of_c(lane >> 2, i), col = col_of_c(lane % 4, i);
      // In units of 2^-13 of the largest, each product cut off.
      const float unit = row == 5 && col == 3 && largest > 0x1p13f ? largest * 0x1p-13f : 1.0f;
      double expected = row == 5 && col == 3 ? largest : 0.0;
      for (int k = 0; k < 32; ++k)
        expected += std::trunc(double(a[size_t(32 * row + k)]) * b[size_t(8 * k + col)] / unit) * unit;
      wrong += acc[size_t(4 * lane + i)] != expected;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("mma.m16n8k32 adds A B of FP8 to the accumulator, in 14 bits", "[matrix]") {
  fresh_options();
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    check_mma_e4m3(seed, 0.0f);
    check_mma_e4m3(seed, 1024.0f);
    check_mma_e4m3(seed, 0x1p15f);  // products are in units of 4 now
  }
}

// ---- From shared memory through ldmatrix to the product, as attention does it

struct ProductTile {
  uint16_t q[16][72];  // [query][d], d = 64
  uint16_t k[16][72];  // [key][d]
  uint16_t p[16][24];  // [query][key]
  uint16_t v[16][72];  // [key][d]
};

// S = Q K^T (16 x 16) and O = P V (16 x 64) by one warp.
template <typename Element, bool K_TRANSPOSED = false>
__global__ void products_kernel(const ProductTile* in, float* s, float* o) {
  ProductTile& tile = *reinterpret_cast<ProductTile*>(smem);
  const auto* from = reinterpret_cast<const uint16_t*>(in);
  for (int i = threadIdx.x; i < int(sizeof(ProductTile) / 2); i += 32) shared_array<uint16_t>()[i] = from[i];
  __syncwarp();

  const int lane = threadIdx.x;
  float acc_s[2][4] = {};
  for (int d = 0; d < 64; d += 16) {
    uint32_t frag_q[4], frag_k[4];
    ldmatrix_x4(frag_q, &tile.q[lane % 16][d + lane / 16 * 8]);
    const uint16_t* k_row = &tile.k[lane / 16 * 8 + lane % 8][d + lane / 8 % 2 * 8];
    if (K_TRANSPOSED) {
      ldmatrix_x4_trans(frag_k, k_row);
    } else {
      ldmatrix_x4(frag_k, k_row);
    }
    mma_m16n8k16<Element>(acc_s[0], frag_q, {frag_k[0], frag_k[1]});
    mma_m16n8k16<Element>(acc_s[1], frag_q, {frag_k[2], frag_k[3]});
  }
  float acc_o[8][4] = {};
  uint32_t frag_p[4];
  ldmatrix_x4(frag_p, &tile.p[lane % 16][lane / 16 * 8]);
  for (int n = 0; n < 8; n += 2) {
    uint32_t frag_v[4];
    ldmatrix_x4_trans(frag_v, &tile.v[lane % 16][8 * n + lane / 16 * 8]);
    mma_m16n8k16<Element>(acc_o[n], frag_p, {frag_v[0], frag_v[1]});
    mma_m16n8k16<Element>(acc_o[n + 1], frag_p, {frag_v[2], frag_v[3]});
  }
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
    for (int n = 0; n < 2; ++n) s[16 * row + 8 * n + col] = acc_s[n][i];
    for (int n = 0; n < 8; ++n) o[64 * row + 8 * n + col] = acc_o[n][i];
  }
}

template <typename Element, bool K_TRANSPOSED = false>
void check_products(uint64_t seed, bool integers) {
  Values values{seed};
  Buffer<ProductTile> in(1);
  ProductTile& tile = in[0];
  const auto fill = [&](auto& matrix) {
    for (auto& row : matrix) {
      for (uint16_t& x : row) x = bits_of<Element>(integers ? values.integer() : values.real());
    }
  };
  fill(tile.q);
  fill(tile.k);
  fill(tile.p);
  fill(tile.v);
  Buffer<float> s(16 * 16), o(16 * 64);
  launch(products_kernel<Element, K_TRANSPOSED>, 1, 32, sizeof(ProductTile), nullptr, in.get(), s.get(),
         o.get());

  int wrong = 0;
  const auto check = [&](float got, int count, auto a, auto b) {
    double expected = 0, magnitude = 0;
    for (int k = 0; k < count; ++k) {
      const double product = double(value_of<Element>(a(k))) * value_of<Element>(b(k));
      expected += product;
      magnitude += std::abs(product);
    }
    wrong += !close(got, expected, magnitude, integers);
  };
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      check(
          s[size_t(16 * i + j)], 64, [&](int d) { return tile.q[i][d]; },
          [&](int d) { return K_TRANSPOSED ? tile.k[j / 8 * 8 + d % 8][d / 8 * 8 + j % 8] : tile.k[j][d]; });
    }
    for (int d = 0; d < 64; ++d) {
      check(
          o[size_t(64 * i + d)], 16, [&](int j) { return tile.p[i][j]; },
          [&](int j) { return tile.v[j][d]; });
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("K without .trans and V with it give Q K^T and P V", "[matrix]") {
  fresh_options();
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    check_products<__half>(seed, false);
    check_products<__nv_bfloat16>(seed, false);
    check_products<__half>(seed, true);
    check_products<__nv_bfloat16>(seed, true);
  }
  CHECK(emulator::last_counters().ldmatrix == 13);
  CHECK(emulator::last_counters().mma == 16);
}

// The mistake of a published kernel; harness/tests/kernels/mutants.cu has it in scalar code.
TEST_CASE("K with .trans is K with every 8 x 8 block transposed", "[matrix]") {
  fresh_options();
  check_products<__half, true>(1, true);
  check_products<__nv_bfloat16, true>(2, false);
}

// ---- WMMA

// out = a b + c. The 16-bit matrices lie one behind the other in shared memory; c and the result after them.
template <typename Element, typename LayoutA, typename LayoutB>
__global__ void wmma_kernel(const Element* a, const Element* b, const float* c, float* out, int stride,
                            int c_stride, wmma::layout_t load, wmma::layout_t store) {
  Element* tile_a = reinterpret_cast<Element*>(smem);
  Element* tile_b = tile_a + 16 * stride;
  float* tile_c = reinterpret_cast<float*>(tile_b + 16 * stride);
  for (int i = threadIdx.x; i < 16 * stride; i += 32) {
    tile_a[i] = a[i];
    tile_b[i] = b[i];
  }
  for (int i = threadIdx.x; i < 16 * c_stride; i += 32) tile_c[i] = c[i];
  __syncwarp();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, Element, LayoutA> frag_a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, Element, LayoutB> frag_b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
  wmma::load_matrix_sync(frag_a, tile_a, unsigned(stride));
  wmma::load_matrix_sync(frag_b, tile_b, unsigned(stride));
  wmma::load_matrix_sync(acc, tile_c, unsigned(c_stride), load);
  wmma::mma_sync(acc, frag_a, frag_b, acc);
  __syncwarp();
  wmma::store_matrix_sync(tile_c, acc, unsigned(c_stride), store);
  __syncwarp();
  for (int i = threadIdx.x; i < 16 * c_stride; i += 32) out[i] = tile_c[i];
}

template <typename Element, typename LayoutA, typename LayoutB>
void check_wmma(int stride, int c_stride, bool integers) {
  const auto size = size_t(16 * stride), c_size = size_t(16 * c_stride);
  Buffer<Element> a(size), b(size);
  Buffer<float> c(c_size), out(c_size);
  Values values{uint64_t(stride)};
  const auto draw = [&] { return integers ? values.integer() : values.real(); };
  for (size_t i = 0; i < size; ++i) {
    a[i] = Element(draw());
    b[i] = Element(draw());
  }
  for (size_t i = 0; i < c_size; ++i) c[i] = draw();
  const auto at = [](bool by_rows, int row, int col, int step) {
    return size_t(by_rows ? row * step + col : col * step + row);
  };
  constexpr bool a_rows = std::is_same_v<LayoutA, wmma::row_major>;
  constexpr bool b_rows = std::is_same_v<LayoutB, wmma::row_major>;
  for (const bool load_rows : {true, false}) {
    for (const bool store_rows : {true, false}) {
      CAPTURE(stride, c_stride, a_rows, b_rows, load_rows, store_rows);
      launch(wmma_kernel<Element, LayoutA, LayoutB>, 1, 32, 4 * size + 4 * c_size, nullptr, a.get(), b.get(),
             c.get(), out.get(), stride, c_stride, load_rows ? wmma::mem_row_major : wmma::mem_col_major,
             store_rows ? wmma::mem_row_major : wmma::mem_col_major);
      std::vector<float> expected(c.get(), c.get() + c_size);  // gaps between rows keep what they held
      int wrong = 0;
      for (int row = 0; row < 16; ++row) {
        for (int col = 0; col < 16; ++col) {
          double sum = c[at(load_rows, row, col, c_stride)], magnitude = std::abs(sum);
          for (int k = 0; k < 16; ++k) {
            const double product =
                double(float(a[at(a_rows, row, k, stride)])) * float(b[at(b_rows, k, col, stride)]);
            sum += product;
            magnitude += std::abs(product);
          }
          const size_t place = at(store_rows, row, col, c_stride);
          wrong += !close(out[place], sum, magnitude, integers);
          expected[place] = out[place];
        }
      }
      for (size_t i = 0; i < c_size; ++i) wrong += out[i] != expected[i];
      CHECK(wrong == 0);
    }
  }
  CHECK(emulator::last_counters().mma == 2);
  CHECK(emulator::last_counters().ldmatrix == 2);
}

template <typename Element>
void check_wmma_layouts(int stride, int c_stride, bool integers) {
  check_wmma<Element, wmma::row_major, wmma::row_major>(stride, c_stride, integers);
  check_wmma<Element, wmma::row_major, wmma::col_major>(stride, c_stride, integers);
  check_wmma<Element, wmma::col_major, wmma::row_major>(stride, c_stride, integers);
  check_wmma<Element, wmma::col_major, wmma::col_major>(stride, c_stride, integers);
}

TEST_CASE("WMMA multiplies and adds, whatever the layouts and strides", "[matrix]") {
  for (const uint64_t seed : {1, 2, 77}) {
    fresh_options().seed = seed;
    check_wmma_layouts<__half>(16, 16, false);
    check_wmma_layouts<__half>(72, 20, true);
    check_wmma_layouts<__nv_bfloat16>(24, 72, false);
    check_wmma_layouts<__nv_bfloat16>(64, 64, true);
  }
}

// What every lane holds, by way of a store: element i of lane l is 8 l + i.
__global__ void accumulator_layout_kernel(float* out) {
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
  for (int i = 0; i < acc.num_elements; ++i) acc.x[i] = float(8 * threadIdx.x + i);
  wmma::store_matrix_sync(shared_array<float>(), acc, 16, wmma::mem_row_major);
  __syncwarp();
  for (int i = 0; i < 8; ++i) out[32 * i + threadIdx.x] = shared_array<float>()[32 * i + threadIdx.x];
}

// The same by way of a load of 0 .. 255, which 16-bit elements hold exactly.
template <typename Use>
__global__ void operand_layout_kernel(float* out) {
  __half* tile = shared_array<__half>();
  for (int i = 0; i < 8; ++i) tile[8 * threadIdx.x + i] = __half(float(8 * threadIdx.x + i));
  __syncwarp();
  wmma::fragment<Use, 16, 16, 16, __half, wmma::row_major> fragment;
  wmma::load_matrix_sync(fragment, tile, 16);
  for (int i = 0; i < 8; ++i) out[int(float(fragment.x[i]))] = float(8 * threadIdx.x + i);
}

std::vector<float> layout_of(void (*kernel)(float*), uint64_t seed) {
  fresh_options().seed = seed;
  Buffer<float> out(256);
  launch(kernel, 1, 32, 1024, nullptr, out.get());
  return std::vector<float>(out.get(), out.get() + 256);
}

TEST_CASE("who holds what of a WMMA fragment is unspecified, on purpose", "[matrix]") {
  void (*const kernels[])(float*) = {accumulator_layout_kernel, operand_layout_kernel<wmma::matrix_a>,
                                     operand_layout_kernel<wmma::matrix_b>};
  std::vector<std::vector<float>> layouts;
  for (const auto kernel : kernels) {
    for (const uint64_t seed : {1, 2}) {
      const std::vector<float> layout = layout_of(kernel, seed);
      CHECK(layout == layout_of(kernel, seed));  // two loads agree with each other
      std::vector<float> sorted = layout;
      std::sort(sorted.begin(), sorted.end());
      for (size_t i = 0; i < 256; ++i) CHECK(sorted[i] == float(i));  // everybody holds 8, nobody two times
      // No lane has a row to itself: all its 8 elements in one would be something to build on.
      int in_one_row = 0;
      for (int row = 0; row < 16; ++row) {
        std::array<int, 32> held = {};
        for (int col = 0; col < 16; ++col) ++held[size_t(layout[size_t(16 * row + col)]) / 8];
        for (const int count : held) in_one_row += count == 8;
      }
      CHECK(in_one_row == 0);
      layouts.push_back(layout);
    }
  }
  // No two are alike: neither two seeds, nor A, B and the accumulator of one seed.
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (size_t j = 0; j < i; ++j) CHECK(layouts[i] != layouts[j]);
  }
}

// ---- pack2, 16-byte copies, exp2

template <typename Element>
__global__ void pack_kernel(const float* in, uint32_t* out, int count) {
  for (int i = 0; i < count; ++i) out[i] = pack2<Element>(in[2 * i], in[2 * i + 1]);
}

TEST_CASE("pack2 rounds to nearest even and puts the first value into the lower half", "[matrix]") {
  fresh_options();
  const float kInf = INFINITY;
  const std::vector<float> in = {
      1.0f, -2.0f, 1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 70000, -kInf,          0x1p-24f, 0x1p-26f,
      0.0f, -0.0f, 1.0f + 0x1p-8f,  1.0f + 3 * 0x1p-8f,  3e38f, 3.4028235e+38f, -1e-40f,  0x1p-126f};
  Buffer<float> values(in.size());
  std::copy(in.begin(), in.end(), values.get());
  Buffer<uint32_t> out(in.size() / 2);
  launch(pack_kernel<__half>, 1, 1, 0, nullptr, values.get(), out.get(), int(in.size() / 2));
  CHECK(out[0] == 0xc0003c00);
  CHECK(out[1] == 0x3c023c00);  // ties: down to even, up to even
  CHECK(out[2] == 0xfc007c00);  // beyond the largest: infinity
  CHECK(out[3] == 0x00000001);  // the smallest subnormal, and what rounds to zero
  CHECK(out[4] == 0x80000000);
  launch(pack_kernel<__nv_bfloat16>, 1, 1, 0, nullptr, values.get(), out.get(), int(in.size() / 2));
  CHECK(out[0] == 0xc0003f80);
  CHECK(out[4] == 0x80000000);
  CHECK(out[5] == 0x3f823f80);
  CHECK(out[6] == 0x7f807f62);  // 3e38 is 0x7f61b1e6
  CHECK(out[7] == 0x00808001);  // bf16 keeps FP32's subnormals
}

__global__ void pack4_kernel(uint32_t* out) { *out = pack4_e4m3(1.0f, -2.0f, 1.0625f, 1e9f); }

TEST_CASE("pack4_e4m3 rounds to nearest even and puts the first value into the lowest byte", "[matrix]") {
  fresh_options();
  Buffer<uint32_t> out(1);
  launch(pack4_kernel, 1, 1, 0, nullptr, out.get());
  CHECK(out[0] == 0x7e38c038);
}

__global__ void copy_kernel(const uint16_t* in, uint16_t* out, int groups) {
  for (int i = threadIdx.x; i < groups; i += 32) store_16_bytes(smem + 16 * i, load_16_bytes(in + 8 * i));
  __syncwarp();
  for (int i = threadIdx.x; i < groups; i += 32)
    store_16_bytes(out + 8 * (groups - 1 - i), load_16_bytes(smem + 16 * i));
}

TEST_CASE("16 bytes are moved as they are, in one access", "[matrix]") {
  fresh_options().count = true;
  Buffer<uint16_t> in(8 * 64), out(8 * 64);
  for (size_t i = 0; i < 8 * 64; ++i) in[i] = uint16_t(40503 * i);
  launch(copy_kernel, 1, 32, 1024, nullptr, in.get(), out.get(), 64);
  int wrong = 0;
  for (size_t i = 0; i < 8 * 64; ++i) wrong += out[8 * (63 - i / 8) + i % 8] != in[i];
  CHECK(wrong == 0);
#ifndef __clang__  // clang 14 copies 16-byte structs by a call to memcpy, which is not seen
  const emulator::Counters counted = emulator::last_counters();
  CHECK(counted.global_requests == 4);
  CHECK(counted.global_bytes == 2 * 1024);
  CHECK(counted.global_sectors == 64);
  CHECK(counted.shared_requests == 4);
  CHECK(counted.shared_wavefronts == 16);
  CHECK(counted.shared_wavefronts_ideal == 16);
#endif
}

__global__ void exp2_kernel(const float* in, float* out, int count) {
  for (int i = 0; i < count; ++i) out[i] = exp2_approx(in[i]);
}

TEST_CASE("exp2_approx has no subnormals", "[matrix]") {
  fresh_options();
  std::vector<float> in = {0.0f,    -0.0f,   -INFINITY, INFINITY, 1e-42f,
                           -126.0f, -126.5f, -149.0f,   127.0f,   128.0f};
  for (int i = 0; i < 200; ++i) in.push_back(-25.0f + 0.217f * float(i));
  in.push_back(NAN);
  Buffer<float> values(in.size()), out(in.size());
  std::copy(in.begin(), in.end(), values.get());
  launch(exp2_kernel, 1, 1, 0, nullptr, values.get(), out.get(), int(in.size()));
  const float expected[] = {1, 1, 0, INFINITY, 1, 0x1p-126f, 0, 0, 0x1p127f, INFINITY};
  for (size_t i = 0; i < 10; ++i) CHECK(out[i] == expected[i]);
  for (size_t i = 10; i < 210; ++i)
    CHECK(std::abs(out[i] / std::exp2(double(in[i])) - 1) <= 0x1p-22);  // as the PTX ISA promises
  CHECK(std::isnan(out[210]));
}

// ---- Counters: what the compiler makes of a kernel's own accesses is counted too, so these numbers hold for
// gcc.
#ifndef __clang__

// A warp loads four 8 x 8 matrices: lane l hands in row l, rows `stride_bytes` apart.
__global__ void ldmatrix_stride_kernel(int stride_bytes, bool transposed) {
  uint32_t registers[4];
  if (transposed) {
    ldmatrix_x4_trans(registers, smem + stride_bytes * int(threadIdx.x % 32));
  } else {
    ldmatrix_x4(registers, smem + stride_bytes * int(threadIdx.x % 32));
  }
}

TEST_CASE("ldmatrix takes as many wavefronts as its rows collide", "[matrix][counters]") {
  struct Case {
    int stride_bytes;
    uint64_t wavefronts;
  };
  // Eight rows of 16 bytes at a time, for each of four matrices. 128 bytes are once around the banks.
  for (const Case c :
       {Case{16, 4}, {32, 8}, {64, 16}, {128, 32}, {256, 32}, {144, 4}, {272, 4}, {160, 8}, {0, 4}}) {
    for (const bool transposed : {false, true}) {
      CAPTURE(c.stride_bytes, transposed);
      fresh_options().count = true;
      launch(ldmatrix_stride_kernel, 1, 32, 16384, nullptr, c.stride_bytes, transposed);
      const emulator::Counters counted = emulator::last_counters();
      CHECK(counted.ldmatrix == 1);
      CHECK(counted.ldmatrix_wavefronts == c.wavefronts);
      CHECK(counted.ldmatrix_wavefronts_ideal == 4);
      CHECK(counted.shared_requests == 1);
      CHECK(counted.shared_wavefronts == c.wavefronts);
      CHECK(counted.shared_wavefronts_ideal == 4);
      CHECK(counted.mma == 0);
    }
  }
  // Every warp for itself; and instructions are counted even when memory is not.
  fresh_options();
  launch(ldmatrix_stride_kernel, 3, 128, 16384, nullptr, 144, false);
  CHECK(emulator::last_counters().ldmatrix == 12);
  CHECK(emulator::last_counters().ldmatrix_wavefronts == 0);
  CHECK(emulator::last_counters().shared_requests == 0);
}

__global__ void wmma_store_kernel(int stride, wmma::layout_t layout) {
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
  wmma::fill_fragment(acc, 1.0f);
  wmma::store_matrix_sync(shared_array<float>(), acc, unsigned(stride), layout);
}

__global__ void wmma_load_kernel(int stride, wmma::layout_t layout) {
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
  wmma::load_matrix_sync(acc, shared_array<float>(), unsigned(stride), layout);
}

__global__ void wmma_load_16bit_kernel(int stride, wmma::layout_t layout) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> by_rows;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::col_major> by_cols;
  if (layout == wmma::mem_row_major) {
    wmma::load_matrix_sync(by_rows, shared_array<__half>(), unsigned(stride));
  } else {
    wmma::load_matrix_sync(by_cols, shared_array<__half>(), unsigned(stride));
  }
}

emulator::Counters count_wmma(void (*kernel)(int, wmma::layout_t), int stride, wmma::layout_t layout) {
  fresh_options().count = true;
  launch(kernel, 1, 32, 16384, nullptr, stride, layout);
  return emulator::last_counters();
}

TEST_CASE("a WMMA accumulator is moved as the C fragments of two mma.m16n8k16", "[matrix][counters]") {
  for (const auto kernel : {wmma_store_kernel, wmma_load_kernel}) {
    // By rows: 4 accesses of 8 bytes, half a warp (4 rows of 32 bytes) at a time. Rows of 64 floats all lie
    // in the same banks; 8 more floats move each row on by as many banks as it needs.
    emulator::Counters counted = count_wmma(kernel, 64, wmma::mem_row_major);
    CHECK(counted.shared_requests == 4);
    CHECK(counted.shared_wavefronts == 32);
    CHECK(counted.shared_wavefronts_ideal == 8);
    CHECK(counted.ldmatrix == 0);
    CHECK(counted.ldmatrix_wavefronts == 0);
    CHECK(count_wmma(kernel, 72, wmma::mem_row_major).shared_wavefronts == 8);
    CHECK(count_wmma(kernel, 16, wmma::mem_row_major).shared_wavefronts == 16);
    // By columns: 8 accesses of 4 bytes. A lane's neighbours, 4 apart, lie one float further; the lanes of a
    // quad lie two columns apart.
    counted = count_wmma(kernel, 64, wmma::mem_col_major);
    CHECK(counted.shared_requests == 8);
    CHECK(counted.shared_wavefronts == 32);
    CHECK(counted.shared_wavefronts_ideal == 8);
    CHECK(count_wmma(kernel, 68, wmma::mem_col_major).shared_wavefronts == 8);
  }
}

TEST_CASE("a WMMA load of a 16-bit matrix counts as an ldmatrix.x4", "[matrix][counters]") {
  for (const auto layout : {wmma::mem_row_major, wmma::mem_col_major}) {
    emulator::Counters counted = count_wmma(wmma_load_16bit_kernel, 64, layout);
    CHECK(counted.ldmatrix == 1);
    CHECK(counted.ldmatrix_wavefronts == 32);
    CHECK(counted.ldmatrix_wavefronts_ideal == 4);
    CHECK(counted.shared_requests == 1);
    CHECK(counted.shared_wavefronts == 32);
    CHECK(count_wmma(wmma_load_16bit_kernel, 72, layout).ldmatrix_wavefronts == 4);
  }
}

TEST_CASE("matrix instructions count the same in any order of lanes", "[matrix][counters]") {
  emulator::Counters first;
  Buffer<ProductTile> in(1);
  Buffer<float> s(16 * 16), o(16 * 64);
  std::memset(in.get(), 0, sizeof(ProductTile));
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    emulator::Options& options = fresh_options();
    options.count = true;
    options.shuffle = seed > 1;
    options.seed = seed;
    launch(products_kernel<__half>, 1, 32, sizeof(ProductTile), nullptr, in.get(), s.get(), o.get());
    emulator::Counters counted = emulator::last_counters();
    counted.switches = 0;
    if (seed == 1) first = counted;
    CHECK(counted == first);
  }
  CHECK(first.ldmatrix_wavefronts == 13 * 4);
  CHECK(first.ldmatrix_wavefronts_ideal == 13 * 4);
}

#endif  // __clang__

}  // namespace
