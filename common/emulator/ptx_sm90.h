// The PTX instructions that came with sm_90 and sm_90a: mbarriers, TMA, wgmma. Part of ptx.h.
#pragma once

#include "common/cluster.h"
#include "common/emulator/ptx.h"
#include "common/mbarrier.h"
#include "common/setmaxnreg.h"
#include "common/tma.h"
#include "common/wgmma.h"

namespace emulator::ptx {

#define FLASHSTEPS_PTX [[gnu::always_inline]] inline

// ---- mbarriers

FLASHSTEPS_PTX uint64_t* mbarrier_at(Address address, Location at) {
  return in_shared<uint64_t>(address, at);
}

template <typename Count>
FLASHSTEPS_PTX void mbarrier_init_b64(Location at, Address barrier, const Count& arrivals) {
  flashsteps::mbarrier_init(mbarrier_at(barrier, at), get<int>(arrivals), at);
}
FLASHSTEPS_PTX void mbarrier_inval_b64(Location at, Address barrier) {
  mbarrier_invalidate(mbarrier_at(barrier, at), at);
}
FLASHSTEPS_PTX void fence_mbarrier_init(Location at) { flashsteps::fence_mbarrier_init(at); }
template <typename Bytes>
FLASHSTEPS_PTX void mbarrier_expect_tx_b64(Location at, Address barrier, const Bytes& bytes) {
  mbarrier_expect_tx(mbarrier_at(barrier, at), get<int>(bytes), at);
}

// The state of an mbarrier, which a wait without .parity takes, is here the parity of the phase.
template <typename State>
FLASHSTEPS_PTX void put_state(State& state, uint64_t* barrier, Location at) {
  if constexpr (!std::is_same_v<State, Sink>) put(state, B64(mbarrier_parity(barrier, at)));
}
// So many arrivals, or one.
template <typename State, typename... Count>
FLASHSTEPS_PTX void mbarrier_arrive_b64(Location at, State&& state, Address address, const Count&... count) {
  uint64_t* const barrier = mbarrier_at(address, at);
  put_state(state, barrier, at);
  int arrivals = 1;
  ((arrivals = get<int>(count)), ...);
  for (int i = 0; i < arrivals; ++i) mbarrier_arrive_anywhere(barrier, 0, /*relaxed=*/false, at);
}
template <typename... Count>
FLASHSTEPS_PTX void mbarrier_arrive_b64(Location at, Address barrier, const Count&... count) {
  mbarrier_arrive_b64(at, Sink(), barrier, count...);
}
template <typename State, typename Bytes>
FLASHSTEPS_PTX void mbarrier_arrive_expect_tx_b64(Location at, State&& state, Address address,
                                                  const Bytes& bytes) {
  uint64_t* const barrier = mbarrier_at(address, at);
  put_state(state, barrier, at);
  mbarrier_arrive_anywhere(barrier, get<int>(bytes), /*relaxed=*/false, at);
}
template <typename Bytes>
FLASHSTEPS_PTX void mbarrier_arrive_expect_tx_b64(Location at, Address barrier, const Bytes& bytes) {
  mbarrier_arrive_expect_tx_b64(at, Sink(), barrier, bytes);
}

// try_wait and test_wait. A hint says how long the thread may be suspended.
template <typename P, typename Parity, typename... Hint>
FLASHSTEPS_PTX void mbarrier_parity_b64(Location at, P&& completed, Address barrier, const Parity& parity,
                                        const Hint&...) {
  put(completed, flashsteps::mbarrier_try_wait(mbarrier_at(barrier, at), get<int>(parity), at));
}
template <typename P, typename State, typename... Hint>
FLASHSTEPS_PTX void mbarrier_b64(Location at, P&& completed, Address barrier, const State& state,
                                 const Hint&...) {
  put(completed, flashsteps::mbarrier_try_wait(mbarrier_at(barrier, at), get<int>(state), at));
}

// Arrives when this thread's copies are complete, for which the emulator waits here. Without .noinc the
// mbarrier expects one arrival more, so that in the end nothing has been counted.
FLASHSTEPS_PTX void cp_async_mbarrier_arrive_b64(Location at, Address) { cp_async_wait_all(at); }
FLASHSTEPS_PTX void cp_async_mbarrier_arrive_noinc_b64(Location at, Address barrier) {
  cp_async_wait_all(at);
  flashsteps::mbarrier_arrive(mbarrier_at(barrier, at), at);
}

// ---- TMA

FLASHSTEPS_PTX void fence_proxy_async(Location at) { flashsteps::fence_proxy_async(at); }
FLASHSTEPS_PTX void fence_proxy_async_global(Location) {}
// A tensor map in shared memory, of which the kernel's own copies differ in what they replace.
template <typename X>
FLASHSTEPS_PTX void tensormap_replace_tile_global_address_shared_b1024_b64(Location at, Address map,
                                                                           const X& address) {
  in_shared<flashsteps::TensorMapShape>(map, at)->base =
      reinterpret_cast<const void*>(get<uint64_t>(address));
}
template <typename D, typename X>
FLASHSTEPS_PTX void tensormap_replace_tile_global_dim_shared_b1024_b32(Location at, Address map,
                                                                       const D& dimension, const X& size) {
  in_shared<flashsteps::TensorMapShape>(map, at)->size[get<int>(dimension)] = get<uint32_t>(size);
}
// The contiguous dimension has none.
template <typename D, typename X>
FLASHSTEPS_PTX void tensormap_replace_tile_global_stride_shared_b1024_b64(Location at, Address map,
                                                                          const D& dimension,
                                                                          const X& bytes) {
  in_shared<flashsteps::TensorMapShape>(map, at)->stride[get<int>(dimension) + 1] = get<uint64_t>(bytes);
}
// Of a tensor map that a kernel has changed. .acquire says where it is.
template <typename... Operands>
FLASHSTEPS_PTX void fence_proxy_tensormap_generic(Location, const Operands&...) {
  thread_fence();
}

// {c0, c1, ...} as five coordinates
template <typename Vector>
FLASHSTEPS_PTX void get_coordinates(int (&to)[5], const Vector& from) {
  int given[size_t(kElements<Vector>)];
  get_all(given, from);
  for (int i = 0; i < 5; ++i) to[i] = i < kElements<Vector> ? given[i] : 0;
}
FLASHSTEPS_PTX const void* global_pointer(Address address) {
  return reinterpret_cast<const void*>(address.value);
}
template <typename Vector, typename Mask, typename... Policy>
FLASHSTEPS_PTX void cp_async_bulk_tensor_shared_global_mbarrier_complete_tx_bytes_multicast_cluster(
    Location at, Address shared, Address map, const Vector& coordinates, Address barrier,
    const Mask& cta_mask, const Policy&...) {
  int c[5];
  get_coordinates(c, coordinates);
  tma_load(in_shared<void>(shared, at), global_pointer(map), mbarrier_at(barrier, at),
           get<uint16_t>(cta_mask), c, at);
}
template <typename Vector, typename... Policy>
FLASHSTEPS_PTX void cp_async_bulk_tensor_shared_global_mbarrier_complete_tx_bytes(
    Location at, Address shared, Address map, const Vector& coordinates, Address barrier, const Policy&...) {
  int c[5];
  get_coordinates(c, coordinates);
  tma_load(in_shared<void>(shared, at), global_pointer(map), mbarrier_at(barrier, at), 0, c, at);
}
template <typename Vector, typename... Policy>
FLASHSTEPS_PTX void cp_async_bulk_tensor_global_shared_bulk_group(Location at, Address map,
                                                                  const Vector& coordinates, Address shared,
                                                                  const Policy&...) {
  int c[5];
  get_coordinates(c, coordinates);
  tma_store(global_pointer(map), in_shared<const void>(shared, at), c, at);
}
template <typename Bytes, typename... Policy>
FLASHSTEPS_PTX void cp_async_bulk_shared_global_mbarrier_complete_tx_bytes(Location at, Address shared,
                                                                           Address global, const Bytes& bytes,
                                                                           Address barrier,
                                                                           const Policy&...) {
  bulk_load(in_shared<void>(shared, at), global_pointer(global), get<uint32_t>(bytes),
            mbarrier_at(barrier, at), 0, at);
}
template <typename Bytes, typename Mask, typename... Policy>
FLASHSTEPS_PTX void cp_async_bulk_shared_global_mbarrier_complete_tx_bytes_multicast_cluster(
    Location at, Address shared, Address global, const Bytes& bytes, Address barrier, const Mask& cta_mask,
    const Policy&...) {
  bulk_load(in_shared<void>(shared, at), global_pointer(global), get<uint32_t>(bytes),
            mbarrier_at(barrier, at), get<uint16_t>(cta_mask), at);
}
template <typename Bytes, typename... Policy>
FLASHSTEPS_PTX void cp_async_bulk_global_shared_bulk_group(Location at, Address global, Address shared,
                                                           const Bytes& bytes, const Policy&...) {
  bulk_store(reinterpret_cast<void*>(global.value), in_shared<const void>(shared, at), get<uint32_t>(bytes),
             at);
}
#define FLASHSTEPS_PTX_REDUCE_BULK(NAME, T, OPERATION)                                                    \
  template <typename Bytes, typename... Policy>                                                           \
  FLASHSTEPS_PTX void cp_reduce_async_bulk_global_shared_bulk_group_##NAME(                               \
      Location at, Address global, Address shared, const Bytes& bytes, const Policy&...) {                \
    bulk_reduce<T>(Atomic::OPERATION, reinterpret_cast<T*>(global.value), in_shared<const T>(shared, at), \
                   get<uint32_t>(bytes), at);                                                             \
  }
#define FLASHSTEPS_PTX_X(TYPE, T) FLASHSTEPS_PTX_REDUCE_BULK(add_##TYPE, T, kAdd)
FLASHSTEPS_PTX_WIDE_FLOATS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_HALVES(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_X(u32, uint32_t)
FLASHSTEPS_PTX_X(s32, int32_t)
FLASHSTEPS_PTX_X(u64, U64)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_X(TYPE, T)                 \
  FLASHSTEPS_PTX_REDUCE_BULK(min_##TYPE, T, kMin) \
  FLASHSTEPS_PTX_REDUCE_BULK(max_##TYPE, T, kMax)
FLASHSTEPS_PTX_INTEGERS_FROM_32(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_X(TYPE, T)                 \
  FLASHSTEPS_PTX_REDUCE_BULK(and_##TYPE, T, kAnd) \
  FLASHSTEPS_PTX_REDUCE_BULK(or_##TYPE, T, kOr)   \
  FLASHSTEPS_PTX_REDUCE_BULK(xor_##TYPE, T, kXor)
FLASHSTEPS_PTX_X(b32, B32)
FLASHSTEPS_PTX_X(b64, B64)
#undef FLASHSTEPS_PTX_X
FLASHSTEPS_PTX_REDUCE_BULK(inc_u32, uint32_t, kIncrement)
FLASHSTEPS_PTX_REDUCE_BULK(dec_u32, uint32_t, kDecrement)
#define FLASHSTEPS_PTX_REDUCE_TENSOR(NAME, OPERATION)                                             \
  template <typename Vector, typename... Policy>                                                  \
  FLASHSTEPS_PTX void cp_reduce_async_bulk_tensor_global_shared_##NAME##_bulk_group(              \
      Location at, Address map, const Vector& coordinates, Address shared, const Policy&...) {    \
    int c[5];                                                                                     \
    get_coordinates(c, coordinates);                                                              \
    tma_reduce(Atomic::OPERATION, global_pointer(map), in_shared<const void>(shared, at), c, at); \
  }
FLASHSTEPS_PTX_REDUCE_TENSOR(add, kAdd)
FLASHSTEPS_PTX_REDUCE_TENSOR(min, kMin)
FLASHSTEPS_PTX_REDUCE_TENSOR(max, kMax)
FLASHSTEPS_PTX_REDUCE_TENSOR(and, kAnd)
FLASHSTEPS_PTX_REDUCE_TENSOR(or, kOr)
FLASHSTEPS_PTX_REDUCE_TENSOR(xor, kXor)
FLASHSTEPS_PTX_REDUCE_TENSOR(inc, kIncrement)
FLASHSTEPS_PTX_REDUCE_TENSOR(dec, kDecrement)
template <typename... Operands>
FLASHSTEPS_PTX void cp_async_bulk_prefetch_L2_global(Location, const Operands&...) {}
FLASHSTEPS_PTX void prefetch_tensormap(Location, Address) {}

FLASHSTEPS_PTX void cp_async_bulk_commit_group(Location at) { flashsteps::tma_store_commit(at); }
template <typename Pending>
FLASHSTEPS_PTX void cp_async_bulk_wait_group(Location at, const Pending& pending) {
  bulk_wait(get<int>(pending), at);
}
template <typename Pending>
FLASHSTEPS_PTX void cp_async_bulk_wait_group_read(Location at, const Pending& pending) {
  tma_store_wait_read(get<int>(pending), at);
}

// ---- Clusters

#define FLASHSTEPS_PTX_X(TYPE)                                                              \
  template <typename D, typename A, typename Rank>                                          \
  FLASHSTEPS_PTX void mapa_##TYPE(Location at, D&& d, const A& address, const Rank& rank) { \
    put(d, shared_address_in_cluster(get<uint64_t>(address), get<int>(rank), at));          \
  }
FLASHSTEPS_PTX_X(shared_cluster_u32)
FLASHSTEPS_PTX_X(shared_cluster_u64)
#undef FLASHSTEPS_PTX_X
template <typename D, typename A, typename Rank>
FLASHSTEPS_PTX void mapa_u64(Location at, D&& d, const A& address, const Rank& rank) {
  const auto* const pointer = reinterpret_cast<const void*>(get<uint64_t>(address));
  put(d, B64(uintptr_t(in_cluster(pointer, get<int>(rank), at))));
}
FLASHSTEPS_PTX void barrier_cluster_arrive(Location at) { flashsteps::cluster_arrive(at); }
FLASHSTEPS_PTX void barrier_cluster_wait(Location at) { flashsteps::cluster_wait(at); }

// ---- wgmma

FLASHSTEPS_PTX void wgmma_fence_sync_aligned(Location at) { flashsteps::warpgroup_arrive(at); }
FLASHSTEPS_PTX void wgmma_commit_group_sync_aligned(Location at) { flashsteps::warpgroup_commit_batch(at); }
template <typename Pending>
FLASHSTEPS_PTX void wgmma_wait_group_sync_aligned(Location at, const Pending& pending) {
  wgmma_wait(get<int>(pending), at);
}

// The accumulator's registers are the program's variables.
template <typename... D>
FLASHSTEPS_PTX void multiply_asynchronously(const std::tuple<D...>& d, const uint32_t* a_registers,
                                            uint64_t a, uint64_t b, WgmmaKind kind, Location at) {
  static_assert(((sizeof(std::remove_reference_t<D>) == 4) && ...), "PTX: wgmma's accumulators have 32 bits");
  static_assert(sizeof...(D) % 2 == 0 && sizeof...(D) <= 128, "PTX: wgmma has at most 128 accumulators");
  [&]<size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
    void* const registers[] = {const_cast<void*>(static_cast<const volatile void*>(&std::get<I>(d)))...};
    wgmma(registers, int(sizeof...(D)), a_registers, a, b, kind, at);
  }
  (std::index_sequence_for<D...>());
}
// d, descriptor of A or its registers, descriptor of B, scale_d, 1 or -1 for A and for B, and for 16 bits
// which of those in shared memory are transposed. How many columns B has, the number of accumulators says.
#define FLASHSTEPS_PTX_WGMMA(NAME, TYPE, FP16_SUMS)                                         \
  template <typename D, typename A, typename B, typename P, typename SA, typename SB,       \
            typename... Transposed>                                                         \
  FLASHSTEPS_PTX void wgmma_mma_async_sync_aligned_##NAME(                                  \
      Location at, const D& d, const A& a, const B& b, const P& scale_d, const SA& scale_a, \
      const SB& scale_b, const Transposed&... transposed) {                                 \
    const int flags[] = {get<int>(transposed)..., 0, 0};                                    \
    const bool negated = (get<int>(scale_a) < 0) != (get<int>(scale_b) < 0);                \
    WgmmaKind kind{OperandType::TYPE, false, false, is_true(scale_d), FP16_SUMS, negated};  \
    if constexpr (kElements<A> == 4) {                                                      \
      uint32_t registers[4];                                                                \
      get_all(registers, a);                                                                \
      kind.b_mn = flags[0] != 0;                                                            \
      multiply_asynchronously(d, registers, 0, get<uint64_t>(b), kind, at);                 \
    } else {                                                                                \
      kind.a_mn = flags[0] != 0;                                                            \
      kind.b_mn = flags[1] != 0;                                                            \
      multiply_asynchronously(d, nullptr, get<uint64_t>(a), get<uint64_t>(b), kind, at);    \
    }                                                                                       \
  }
FLASHSTEPS_PTX_WGMMA(f32_f16_f16, kFp16, false)
FLASHSTEPS_PTX_WGMMA(f16_f16_f16, kFp16, true)
FLASHSTEPS_PTX_WGMMA(f32_bf16_bf16, kBf16, false)
FLASHSTEPS_PTX_WGMMA(f32_tf32_tf32, kTf32, false)
FLASHSTEPS_PTX_WGMMA(f32_e4m3_e4m3, kE4m3, false)
FLASHSTEPS_PTX_WGMMA(f16_e4m3_e4m3, kE4m3, true)

// ---- setmaxnreg: how many registers a thread has at launch nobody says, so as if there were one CTA per SM

FLASHSTEPS_PTX int registers_of_a_thread() { return flashsteps::registers_at_launch(int(num_threads()), 1); }
template <typename Count>
FLASHSTEPS_PTX void setmaxnreg_inc_sync_aligned_u32(Location at, const Count& registers) {
  set_max_registers(true, get<int>(registers), registers_of_a_thread(), at);
}
template <typename Count>
FLASHSTEPS_PTX void setmaxnreg_dec_sync_aligned_u32(Location at, const Count& registers) {
  set_max_registers(false, get<int>(registers), registers_of_a_thread(), at);
}

#undef FLASHSTEPS_PTX

}  // namespace emulator::ptx
