// WMMA: values and cost apart.
//
// Values: a load distributes the 256 elements of a 16 x 16 matrix over the lanes, 8 each, in a layout that
// nobody may rely on, so it is scrambled here.
//
// Cost: as nvcc 13 compiles WMMA for fp16. Loading a 16-bit matrix is one ldmatrix.x4, each lane reading a
// row of 16 bytes (.trans if the matrix is not stored the way that the product wants it, at the same cost).
// bf16 is counted alike, although nvcc makes four 4-byte loads of it, and MOVM to transpose. An accumulator
// is read and written as the two C fragments of mma.m16n8k16, with 4 instructions of 8 bytes per lane; by
// columns, with 8 of 4 bytes. A product is two mma.m16n8k16. What steps do not have, matrices of bytes and in
// global memory, is not counted.
#include "common/emulator/wmma.h"

#include "common/emulator/core.h"
#include "common/emulator/counters.h"
#include "common/emulator/fragments.h"

namespace emulator {
namespace {

constexpr int kElementsPerLane = 8;
constexpr int kSize = 16;
// CUDA's rules, in bytes: of the pointer, and of the distance between rows or columns. Of bytes, PTX's rule,
// which is a lane's share of the matrix: NVIDIA's own programs do not keep to the other.
constexpr size_t kMatrixAlignment = 32, kByteMatrixAlignment = 8;
constexpr size_t kStrideAlignment = 16;

// A one-to-one map of (lane, element) to the matrix. A kernel that takes a lane's elements for a row's, or
// A's for an accumulator's, computes nonsense here as well as on a GPU.
class Scramble {
 public:
  explicit Scramble(WmmaOperand operand)
      : key_(unsigned(Random{cta->options.seed * 4 + uint64_t(operand)}.next())) {}

  Position operator()(int lane, int element) const {
    const unsigned index = unsigned(lane * kElementsPerLane + element) ^ key_;
    const unsigned position = index * ((key_ >> 8) | 1) % (kSize * kSize);  // times an odd number: one-to-one
    return {int(position / kSize), int(position % kSize)};
  }

 private:
  unsigned key_;
};

struct MemoryArguments {
  const char* op;
  WmmaOperand operand;
  void* fragment;
  WmmaMatrix matrix;
  uintptr_t pc;
  Space space;

  size_t offset(Position at) const {  // in elements
    const auto [line, place] = matrix.by_rows ? at : Position{at.col, at.row};
    return size_t(line) * matrix.stride + size_t(place);
  }
};

// A lane's share of the memory that a 16 x 16 matrix covers, in the model above.
struct Piece {
  Position at;
  int elements;  // consecutive in memory
};

// An operand in one access: the 16 rows (or columns), in halves of 8 elements. An accumulator in
// several.
Piece piece_of(const MemoryArguments& m, int lane, int access) {
  const bool by_rows = m.matrix.by_rows;
  if (m.operand != WmmaOperand::kAccumulator) {
    const int line = lane % kSize;
    const int half = lane / kSize * 8;
    return {by_rows ? Position{line, half} : Position{half, line}, 8};
  }
  const int n8_tile = by_rows ? access / 2 : access / 4;
  const int element = by_rows ? access % 2 * 2 : access % 4;
  Position at = mma_c_position(lane, element);
  at.col += n8_tile * 8;
  return {at, by_rows ? 2 : 1};
}

int num_accesses(const MemoryArguments& m) {
  if (m.operand != WmmaOperand::kAccumulator) return 1;
  return m.matrix.by_rows ? 4 : 8;
}

template <typename T>
void count(const MemoryArguments& m) {
  Counters& counters = cta->counters;
  if (sizeof(T) == 2) ++counters.ldmatrix;
  if (!cta->options.count) return;
  for (int access = 0; access < num_accesses(m); ++access) {
    Request request{.lanes = 0xffffffff, .address = {}, .bytes = 0, .shared = true};
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const Piece piece = piece_of(m, lane, access);
      request.address[lane] = uintptr_t(static_cast<T*>(m.matrix.data) + m.offset(piece.at));
      request.bytes = size_t(piece.elements) * sizeof(T);
    }
    const int wavefronts = count_shared(request, counters);
    if (sizeof(T) == 2) {
      counters.ldmatrix_wavefronts += uint64_t(wavefronts);
      counters.ldmatrix_wavefronts_ideal += 4;
    }
  }
}

void check_agreement(void* const* opaque) {
  const auto matrix_of = [&](int lane) { return static_cast<const MemoryArguments*>(opaque[lane])->matrix; };
  const WmmaMatrix first = matrix_of(0);
  for (int lane = 1; lane < kWarpSize; ++lane) {
    const WmmaMatrix other = matrix_of(lane);
    if (other.data == first.data && other.stride == first.stride && other.by_rows == first.by_rows) continue;
    const Fiber& fiber = cta->fiber(cta->running_warp, lane);
    fail(Bug::kDivergence, fiber)
        << fiber.op << " at " << fiber.at
        << ": all lanes must pass the pointer, stride and layout of lane 0, and this lane does not";
  }
}

template <typename T, bool STORE>
void execute_memory(void* const* opaque, unsigned lanes) {
  check_aligned(lanes);
  check_agreement(opaque);
  const MemoryArguments& m = *static_cast<const MemoryArguments*>(opaque[0]);
  const Scramble position(m.operand);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    T* const fragment = static_cast<T*>(static_cast<const MemoryArguments*>(opaque[lane])->fragment);
    for (int i = 0; i < kElementsPerLane; ++i) {
      T& in_memory = static_cast<T*>(m.matrix.data)[m.offset(position(lane, i))];
      if constexpr (STORE) {
        in_memory = fragment[i];
      } else {
        fragment[i] = in_memory;
      }
    }
  }
  if (sizeof(T) > 1 && m.space == Space::kShared) count<T>(m);
}

std::string describe_place(const void* address) {
  const uintptr_t offset = uintptr_t(address) - uintptr_t(cta->smem);
  return offset < kMaxSmemBytes ? describe_shared(uintptr_t(address)) : "the address of the matrix";
}

Space check_matrix(const MemoryArguments& m, size_t element_bytes, bool write) {
  const InRuntime in_runtime;
  const Place place{.pc = m.pc};
  // The first element stands for all: where they end is checked with each lane's piece.
  const Space space = check_access(uintptr_t(m.matrix.data), element_bytes, write, place);
  if (space != Space::kShared && space != Space::kGlobal) {
    fail(Bug::kSharedOutOfBounds, *self)
        << m.op << " at " << place << ": the matrix is neither in shared nor in global memory";
  }
  const size_t alignment = element_bytes == 1 ? kByteMatrixAlignment : kMatrixAlignment;
  if (uintptr_t(m.matrix.data) % alignment != 0) {
    fail(Bug::kMisaligned, *self) << m.op << " at " << place << ": " << describe_place(m.matrix.data)
                                  << " is not a multiple of " << alignment << " bytes";
  }
  if (m.matrix.stride * element_bytes % kStrideAlignment != 0) {
    fail(Bug::kMisaligned, *self) << m.op << " at " << place << ": a stride of " << m.matrix.stride
                                  << " elements is not a multiple of " << kStrideAlignment << " bytes";
  }
  return space;
}

template <typename T, bool STORE>
void access_memory(const char* op, WmmaOperand operand, void* fragment, WmmaMatrix matrix, uintptr_t pc,
                   Location at) {
  MemoryArguments m{op, operand, fragment, matrix, pc, Space::kShared};
  m.space = check_matrix(m, sizeof(T), STORE);
  // Which lane reads or writes which piece is unspecified too. Here it is another one than the C fragment's
  // layout would have, so that what a lane has just written itself is not safe from this either.
  const int other_lane = self->lane ^ int(1 + Random{cta->options.seed}.next() % (kWarpSize - 1));
  for (int access = 0; access < num_accesses(m); ++access) {
    const Piece piece = piece_of(m, other_lane, access);
    const size_t bytes = size_t(piece.elements) * sizeof(T);
    const T* const address = static_cast<T*>(matrix.data) + m.offset(piece.at);
    m.space == Space::kShared ? touch_shared(op, address, bytes, bytes, STORE, pc)
                              : touch_global(op, uintptr_t(address), bytes, STORE, pc);
  }
  collective(op, 0xffffffff, &m, execute_memory<T, STORE>, at);
}

struct ProductArguments {
  void* d;
  const void* a;
  const void* b;
  const void* c;
};

template <typename Operand, typename Sum, typename Multiply>
void execute(void* const* opaque, unsigned lanes, Multiply multiply) {
  check_aligned(lanes);
  const Scramble a_position(WmmaOperand::kA), b_position(WmmaOperand::kB),
      c_position(WmmaOperand::kAccumulator);
  Operand a[kSize][kSize], b[kSize][kSize];
  Sum c[kSize][kSize];
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto& arguments = *static_cast<const ProductArguments*>(opaque[lane]);
    for (int i = 0; i < kElementsPerLane; ++i) {
      const Position in_a = a_position(lane, i), in_b = b_position(lane, i), in_c = c_position(lane, i);
      a[in_a.row][in_a.col] = static_cast<const Operand*>(arguments.a)[i];
      b[in_b.row][in_b.col] = static_cast<const Operand*>(arguments.b)[i];
      c[in_c.row][in_c.col] = static_cast<const Sum*>(arguments.c)[i];
    }
  }
  multiply(a, b, c);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto& arguments = *static_cast<const ProductArguments*>(opaque[lane]);
    for (int i = 0; i < kElementsPerLane; ++i) {
      const Position in_c = c_position(lane, i);
      static_cast<Sum*>(arguments.d)[i] = c[in_c.row][in_c.col];
    }
  }
  cta->counters.mma += 2;
}

template <bool BF16>
void execute_product(void* const* opaque, unsigned lanes) {
  execute<uint16_t, float>(opaque, lanes, [](const auto& a_bits, const auto& b_bits, auto& c) {
    float a[kSize][kSize], b[kSize][kSize];
    elements_to_float(a_bits, BF16, a);
    elements_to_float(b_bits, BF16, b);
    multiply_accumulate(a, b, c);
  });
}

// Sums wrap around.
template <typename Byte>
void execute_byte_product(void* const* opaque, unsigned lanes) {
  execute<Byte, uint32_t>(opaque, lanes, [](const auto& a, const auto& b, auto& c) {
    for (int row = 0; row < kSize; ++row)
      for (int col = 0; col < kSize; ++col)
        for (int k = 0; k < kSize; ++k) c[row][col] += uint32_t(int(a[row][k]) * int(b[k][col]));
  });
}

}  // namespace

void wmma_load(WmmaOperand operand, void* fragment, size_t element_bytes, WmmaMatrix matrix, Location at) {
  const auto load = element_bytes == 1   ? access_memory<uint8_t, false>
                    : element_bytes == 2 ? access_memory<uint16_t, false>
                                         : access_memory<uint32_t, false>;
  load("wmma::load_matrix_sync", operand, fragment, matrix, uintptr_t(__builtin_return_address(0)), at);
}

void wmma_store_accumulator(WmmaMatrix matrix, const void* fragment, Location at) {
  access_memory<uint32_t, true>("wmma::store_matrix_sync", WmmaOperand::kAccumulator,
                                const_cast<void*>(fragment), matrix, uintptr_t(__builtin_return_address(0)),
                                at);
}

void wmma_product(void* d, const void* a, const void* b, const void* c, WmmaElement element, Location at) {
  ProductArguments arguments{d, a, b, c};
  const auto product = element == WmmaElement::kFp16         ? execute_product<false>
                       : element == WmmaElement::kBf16       ? execute_product<true>
                       : element == WmmaElement::kSignedByte ? execute_byte_product<int8_t>
                                                             : execute_byte_product<uint8_t>;
  collective("wmma::mma_sync", 0xffffffff, &arguments, product, at);
}

}  // namespace emulator
