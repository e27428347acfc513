// What the CUDA vocabulary calls: the emulator's side of a running kernel. Kernels do not include this
// themselves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/emulator/vector_types.h"

namespace emulator {

// Where an operation stands in the kernel's source. As a default argument, current() names the caller's line.
// (std::source_location does the same; clang 14 cannot use it with libstdc++.)
struct Location {
  const char* file = "";
  unsigned line = 0;
  static constexpr Location current(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};

// Throws Report (kLaunch) when CUDA would refuse such a launch.
void check_launch(cuda::dim3 grid, cuda::dim3 block, size_t smem_bytes, int cluster_size);

// Runs body(arguments) once per thread of the grid and returns when all are done. Threads may read the
// arguments. cluster_size: CTAs in a cluster, in x. overlaps: CTAs may touch no global memory until one of
// their threads has called wait_for_previous_kernel().
// `program`: see below.
struct ProgramLaunch;
void run(cuda::dim3 grid, cuda::dim3 block, size_t smem_bytes, void (*body)(void*), void* arguments,
         size_t argument_bytes, int cluster_size, bool overlaps, const ProgramLaunch* program = nullptr);
// A kernel of a program of somebody's own, whose __shared__ variables lie as SharedLayout says.
struct ProgramLaunch {
  cuda::dim3 cluster{1, 1, 1};  // CTAs in each direction
  bool cooperative = false;     // all CTAs are under way together, and may wait for each other
};
void wait_for_previous_kernel();

// A warp-wide operation. Every lane hands in its own arguments and waits; once all lanes of the mask that
// have not exited are there, the last one runs execute() for all of them. args[i] is meaningful for the lanes
// in `lanes`. Lanes must agree on op and mask.
using Execute = void (*)(void* const* args, unsigned lanes);
void collective(const char* op, unsigned mask, void* args, Execute execute, Location at);

void syncwarp(unsigned mask, Location at);  // also orders the memory accesses of the lanes
void syncthreads(Location at);              // barrier 0, all threads; those that exited count as arrived

// A __syncthreads that counts. All threads must come with the same op.
struct Tally {
  int yes;     // threads whose predicate holds
  int voters;  // threads that came
};
Tally syncthreads_tally(const char* op, bool predicate, Location at);

enum class Atomic { kAdd, kSub, kExchange, kMin, kMax, kIncrement, kDecrement, kAnd, kOr, kXor };

enum class ShuffleMode { kIndex, kXor, kDown, kUp };
// Of the lanes of a segment, as many as a power of two. Poison if the lane that is read takes no part: CUDA
// leaves the value undefined.
uint64_t shuffle(ShuffleMode mode, unsigned mask, uint64_t value, unsigned operand, int width, Location at);

// Of A and B. A product's K is 32 bytes: 8, 16 or 32 of them.
enum class OperandType { kFp16, kBf16, kE4m3, kTf32 };

// What wgmma does besides A B.
struct WgmmaKind {
  OperandType type;
  bool a_mn, b_mn;  // along M or N, and not along K, the rows of its tile run
  bool scale_d;
  bool fp16_sums = false;  // two in a register
  bool negated = false;    // subtracts A B

  int element_bytes() const { return type == OperandType::kE4m3 ? 1 : type == OperandType::kTf32 ? 4 : 2; }
  int depth() const { return 32 / element_bytes(); }
};

// What the lanes that take part have brought, handed to each of them: the rest of votes, __match and __reduce
// is plain C++. Counted as a vote.
struct Gathered {
  unsigned lanes;
  uint64_t values[32];
  unsigned lanes_with(uint64_t value) const;
};
Gathered gather(const char* op, unsigned mask, uint64_t value, Location at);

// Lanes that have come to the same __activemask() when no lane of the warp can run any further without them.
// CUDA promises less: the lane itself.
unsigned active_mask(Location at);

// What the functions of the hardware headers with template parameters call: common/mma.h, cp_async.h, tma.h,
// bulk_copy.h and cluster.h say what they do.
void mma_m16n8k16(float* acc, const uint32_t* a, const uint32_t* b, bool bf16, Location at);
void mma_m16n8k32_e4m3(float* acc, const uint32_t* a, const uint32_t* b, Location at);
void cp_async_wait(int pending, Location at);
void tma_store_wait_read(int pending, Location at);
void bulk_wait(int pending, Location at);
void store_cluster(void* to, const void* value, size_t bytes, int cta_rank, Location at, uintptr_t pc);
// setmaxnreg, by all lanes of a warp. An increase waits until the CTA's pool has enough registers.
void set_max_registers(bool increase, int registers, int at_launch, Location at);

// The same for inline PTX (ptx.h). So many matrices, and as many registers; of `bytes` in shared memory (4, 8
// or 16), so many are copied, and the rest is zero.
void ldmatrix(uint32_t* registers, int matrices, const void* row, bool transposed, Location at);
void stmatrix(void* row, const uint32_t* registers, int matrices, bool transposed, Location at);
void mma_m16n8k8_tf32(float* acc, const uint32_t* a, const uint32_t* b, Location at);
void mma_m16n8k32_integers(int32_t* acc, const uint32_t* a, const uint32_t* b, bool a_is_signed,
                           bool b_is_signed, Location at);
void cp_async(void* shared, const void* global, int bytes, int from_global, Location at);

// As shfl.sync: in `clamp` the number that all lanes of a segment share from bit 8 on, and from bit 0 on how
// far in its segment a lane may read. One that would read elsewhere reads itself.
struct FromLane {
  uint64_t value;
  bool inside;
};
FromLane shuffle_within(ShuffleMode mode, unsigned mask, uint64_t value, unsigned operand, unsigned clamp,
                        Location at);

// And for ptx_sm90.h. A tensor map is what cuTensorMapEncodeTiled() has made; there are five coordinates.
// Without a mask, into the CTA to which the pointers point.
void tma_load(void* shared, const void* map, uint64_t* barrier, unsigned cta_mask, const int* coordinates,
              Location at);
void tma_store(const void* map, const void* shared, const int* coordinates, Location at);
void bulk_load(void* shared, const void* global, size_t bytes, uint64_t* barrier, unsigned cta_mask,
               Location at);
void bulk_store(void* global, const void* shared, size_t bytes, Location at);
template <typename T>  // as atomic()
void bulk_reduce(Atomic operation, T* global, const T* shared, size_t bytes, Location at);
void tma_reduce(Atomic operation, const void* map, const void* shared, const int* coordinates, Location at);
void mbarrier_expect_tx(uint64_t* barrier, int bytes, Location at);
void mbarrier_invalidate(uint64_t* barrier, Location at);
int mbarrier_parity(uint64_t* barrier, Location at);  // of the phase under way
uint32_t shared_address_in_cluster(uint64_t address, int cta_rank, Location at);
// Arrivals at an mbarrier of whichever CTA of the cluster, which expect so many bytes more.
void mbarrier_arrive_anywhere(uint64_t* barrier, int bytes, bool relaxed, Location at);
// The accumulator's registers are variables that may lie anywhere.
void wgmma(void* const* acc, int num_acc, const uint32_t* a_registers, uint64_t a, uint64_t b, WgmmaKind kind,
           Location at);

// What is in shared memory has an address of 32 bits in its window, too, as on a GPU: behind 1 KiB that CUDA
// has for itself, and in a cluster with the CTA's rank in the upper eight bits. __shared__ variables at file
// scope, which lie elsewhere on the host, are at the end of 256 KiB.
uint32_t shared_address(const void* pointer);
void* shared_pointer(uint64_t address, Location at);
void* own_shared_pointer(uint64_t address);  // in the running CTA, of an address without its rank
bool is_shared(const void* pointer);
size_t dynamic_shared_bytes();

// Of a program's clusters: the CTA's rank, how many CTAs there are, and how they lie.
int cluster_rank();
int cluster_size();
cuda::uint3 cluster_dim();
// What the CTA of this rank has at this address; and whose it is.
void* in_cluster(const void* shared, int cta_rank, Location at);
int rank_of_shared(const void* shared, Location at);
// Of all threads of a cooperative launch.
void grid_sync(Location at);
bool is_cooperative_launch();

void thread_fence();  // orders memory between CTAs on different host threads
void nap();           // lets other threads run
int64_t ticks();      // counts its own calls in this CTA: later is more, and nothing else is promised
[[noreturn]] void trap(Location at);

// The C library's exp2f and expf, seen by a trace.
float exp2_in_kernel(float x, Location at);
float exp_in_kernel(float x, Location at);

// On shared or global memory. Return the old value. T is one of those that atomics.cpp lists.
template <typename T>
T atomic(Atomic operation, T* address, T operand, Location at);
template <typename T>
T atomic_compare_and_swap(T* address, T expected, T desired, Location at);

}  // namespace emulator

namespace flashsteps::inline on_emulator {
using emulator::Location;
}
