#include "common/emulator/tma.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <stdexcept>

#include "common/bulk_copy.h"
#include "common/emulator/cluster_state.h"
#include "common/emulator/copy_engine.h"
#include "common/emulator/core.h"
#include "common/emulator/global_races.h"
#include "common/emulator/half.h"
#include "common/emulator/headway.h"
#include "common/emulator/mbarrier_table.h"
#include "common/emulator/shared_races.h"
#include "common/emulator/tile_layouts.h"
#include "common/emulator/tracer.h"

namespace emulator {

using flashsteps::TensorMapShape;

// ---- Boxes

namespace {

constexpr size_t kMaxRowBytes = 256 * 8;

size_t box_row_bytes(const TensorMapShape& map) { return size_t(map.box[0]) * size_t(map.element_bytes); }

size_t box_bytes(const TensorMapShape& map) {
  size_t bytes = size_t(map.element_bytes);
  for (const uint32_t extent : map.box) bytes *= extent;
  return bytes;
}

// One row of a box: dimension 0 at fixed coordinates of the others.
struct BoxRow {
  uintptr_t shared = 0;  // unswizzled
  int panel = 0;         // dimension 2 counts the panels
  int index = 0;         // in its panel, of the rows that the other dimensions count
  int64_t at[TensorMapShape::RANK] = {};
  uintptr_t global = 0;  // of its first byte inside the tensor
  size_t skipped = 0;    // bytes in front of the tensor
  size_t inside = 0;     // bytes in the tensor; 0: the row lies beyond it
};

template <typename Visit>
void for_each_row(const Copy& copy, Visit visit) {
  const TensorMapShape& map = copy.map;
  const size_t row_bytes = box_row_bytes(map);
  const size_t num_rows = copy.bytes / row_bytes;
  const int64_t first = copy.origin.at[0];
  const int64_t from = std::max<int64_t>(first, 0);
  const int64_t to = std::min<int64_t>(first + map.box[0], int64_t(map.size[0]));
  for (size_t i = 0; i < num_rows; ++i) {
    const size_t panel = i / map.box[1] % map.box[2];
    const size_t index = i % map.box[1] + i / (map.box[1] * map.box[2]) * map.box[1];
    BoxRow row{
        .shared = copy.shared + i * row_bytes, .panel = int(panel), .index = int(index), .at = {first}};
    bool inside = to > from;
    int64_t offset = from * map.element_bytes;
    size_t rest = i;
    for (int d = 1; d < TensorMapShape::RANK; ++d) {
      row.at[d] = copy.origin.at[d] + int64_t(rest % map.box[d]);
      rest /= map.box[d];
      inside = inside && row.at[d] >= 0 && row.at[d] < int64_t(map.size[d]);
      offset += row.at[d] * int64_t(map.stride[d]);
    }
    if (inside) {
      row.global = uintptr_t(map.base) + uintptr_t(offset);
      row.skipped = size_t((from - first) * map.element_bytes);
      row.inside = size_t((to - from) * map.element_bytes);
    }
    visit(row);
  }
}

// Copies between a row of the box and its place in shared memory, chunk by chunk.
template <typename CopyChunk>
void for_each_chunk(const Copy& copy, const BoxRow& row, CopyChunk copy_chunk) {
  for (size_t offset = 0; offset < box_row_bytes(copy.map); offset += kChunkBytes) {
    copy_chunk(reinterpret_cast<void*>(swizzled(row.shared + offset, copy.map.swizzle_bytes)), offset);
  }
}

void move_box(const Copy& copy) {
  for_each_row(copy, [&](const BoxRow& row) {
    unsigned char data[kMaxRowBytes] = {};  // what lies beyond the tensor reads as zero
    auto* global = reinterpret_cast<unsigned char*>(row.global);
    if (copy.is_load()) {
      if (row.inside > 0) std::memcpy(data + row.skipped, global, row.inside);
      for_each_chunk(copy, row,
                     [&](void* to, size_t offset) { std::memcpy(to, data + offset, kChunkBytes); });
    } else if (row.inside > 0) {
      for_each_chunk(copy, row,
                     [&](void* from, size_t offset) { std::memcpy(data + offset, from, kChunkBytes); });
      if (copy.reduce != nullptr) {
        copy.reduce(copy.operation, global, data + row.skipped, row.inside);
      } else {
        std::memcpy(global, data + row.skipped, row.inside);
      }
    }
  });
}

}  // namespace

// ---- The engine

void CopyEngine::issue(const Copy& copy) {
  copies_.push_back(copy);
  if (cta->options.async == AsyncMode::kEarly) finish(copies_.size() - 1);
}

void CopyEngine::finish(size_t index) {
  Copy& copy = copies_[index];
  if (!copy.done) move_box(copy);
  copy.done = true;
  if (!copy.is_load()) return;
  const Copy load = copy;
  copies_.erase(copies_.begin() + std::ptrdiff_t(index));
  if (cta->options.race_detector) cta->races->load_landed(load.mbarrier, load.issued);
  cta->mbarriers->complete_bytes(load.mbarrier, load.phase, int64_t(load.bytes), *load.issuer, load.at);
}

// Each one sooner or later, in any order.
void CopyEngine::finish_some() {
  if (cta->random.one_in(16)) finish(size_t(cta->random.next() % copies_.size()));
}

bool CopyEngine::finish_a_load() {
  std::vector<size_t>& loads = candidates_;
  loads.clear();
  for (size_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i].is_load()) loads.push_back(i);
  }
  if (loads.empty()) return false;
  const bool random = cta->options.async == AsyncMode::kRandom;
  finish(loads[random ? size_t(cta->random.next() % loads.size()) : 0]);
  return true;
}

void CopyEngine::wait_for_stores(const Fiber& who, unsigned groups) {
  for (size_t i = 0; i < copies_.size();) {
    const Copy& copy = copies_[i];
    if (copy.is_load() || copy.issuer != &who || copy.group >= groups) {
      ++i;
      continue;
    }
    finish(i);
    if (cta->options.race_detector) cta->races->store_waited(who, copy.shared, copy.bytes, copy.site);
    copies_.erase(copies_.begin() + std::ptrdiff_t(i));
  }
}

uint32_t CopyEngine::epoch_of_group() {
  const auto is_its = [](const Writing& one) { return one.issuer == self && one.group == self->store_group; };
  const auto last = std::find_if(writing_.rbegin(), writing_.rend(), is_its);
  if (last != writing_.rend()) return last->epoch;
  writing_.push_back({self, self->store_group, cta->launch->global_races->start_group()});
  return writing_.back().epoch;
}

void CopyEngine::wait_for_writes(const Fiber& who, unsigned groups) {
  wait_for_stores(who, groups);
  std::erase_if(writing_, [&](const Writing& one) {
    const bool complete = one.issuer == &who && one.group < groups;
    if (complete) cta->launch->global_races->group_complete(one.epoch);
    return complete;
  });
}

void CopyEngine::check_exit(const Fiber& who) {
  for (const Copy& copy : copies_) {
    if (copy.is_load() || copy.issuer != &who) continue;
    const bool committed = copy.group < who.store_group;
    if (!is_news(rule_of(Bug::kUnfinishedCopy), {.at = copy.at})) continue;
    remark(rule_of(Bug::kUnfinishedCopy), who)
        << "the thread exits, and the bulk store that it issued at " << copy.at
        << " may not have read its shared memory yet: " << (committed ? "its " : "")
        << (committed ? word("tma_store_wait_read", "cp.async.bulk.wait_group")
                      : word("tma_store_commit", "cp.async.bulk.commit_group"))
        << (committed ? " is missing, or leaves it pending"
                      : " is missing after it, without which no wait includes it");
  }
  wait_for_stores(who, UINT_MAX);  // of what has been reported
}

// ---- The functions

namespace {

// A swizzle pattern is 8 rows high. TMA takes any multiple of 128, but then the tile's rows and the pattern's
// are different ones, which no step means. (wgmma reads such a tile, too: the bits of addresses are
// swizzled.)
uintptr_t box_alignment(const TensorMapShape& map) {
  return map.swizzle_bytes == 0 || cta->launch->program != nullptr ? 128 : uintptr_t(map.swizzle_bytes) * 8;
}

// What TMA itself checks, or takes for granted, before it begins.
void check_box(const char* op, const Copy& copy, uintptr_t alignment) {
  const uintptr_t address = copy.shared;
  const auto refuse = [&](Bug bug) { return Failure(bug, *self, op, copy.at); };
  if (check_access(address, copy.bytes, copy.is_load(), {.at = copy.at}) != Space::kShared) {
    refuse(Bug::kSharedOutOfBounds) << "the box's address is not in shared memory";
  }
  if (address % alignment != 0) {
    refuse(Bug::kMisaligned) << "the box's address " << ReportWriter::Address{describe_shared(address)}
                             << " is not a multiple of " << alignment << " bytes"
                             << (alignment > 128 ? ", where the swizzle's pattern starts over" : "");
  }
  GlobalRaces* const races = cta->launch->global_races;
  const uint32_t group = races != nullptr && !copy.is_load() ? cta->copies->epoch_of_group() : 0;
  for_each_row(copy, [&](const BoxRow& row) {
    if (row.inside == 0) return;
    if (!is_global(row.global, row.inside)) {
      Failure failure = refuse(Bug::kGlobalOutOfBounds);
      failure << "the row of " << row.inside << " bytes at (";
      for (const int64_t& coordinate : row.at) failure << (&coordinate == row.at ? "" : ", ") << coordinate;
      failure << ") lies inside the tensor map's sizes, but at "
              << ReportWriter::Address{describe_foreign_address(row.global)} << ". " << ReportWriter::Advice()
              << "Are the map's sizes or strides wrong?";
    }
    check_previous_kernel(row.global, row.inside, !copy.is_load(), {.at = copy.at});
    note_headway(*find_range(row.global), row.global, !copy.is_load());
    if (races == nullptr) return;
    if (copy.is_load())
      races->access(row.global, row.inside, /*write=*/false, copy.site);
    else
      races->group_access(group, row.global, row.inside, copy.reduce != nullptr, copy.site);
  });
}

// For ldmatrix and wgmma, which must read a swizzled tile as it is swizzled.
void remember_columns(const Copy& load) {
  const int chunks_per_row = int(box_row_bytes(load.map) / kChunkBytes);
  const auto swizzle_bytes = int16_t(load.map.swizzle_bytes);
  const uint64_t write = cta->races->last_write(load.shared);  // the same in the whole box
  for_each_row(load, [&](const BoxRow& row) {
    for_each_chunk(load, row, [&](void* chunk, size_t offset) {
      const int column = row.panel * chunks_per_row + int(offset / kChunkBytes);
      cta->layouts->remember(uintptr_t(chunk), {int16_t(row.index), int16_t(column), swizzle_bytes, write});
    });
  });
}

// The number, in the current CTA.
int find_mbarrier(const char* op, const uint64_t* barrier, Location at) {
  const int number = cta->mbarriers->find(op, barrier, at);
  const Mbarrier& its = (*cta->mbarriers)[number];
  constexpr const Rule& kRule = rule_named("mbarrier-init-fence");
  // Programs often do without, as long as their clusters have one CTA.
  const bool is_advice = cta->options.reports != nullptr && cluster_size() == 1;
  if (!its.known_to_copies && is_news(kRule, {.at = at}, {.at = its.initialised})) {
    Remark(kRule, *self, is_advice) << op << " at " << at << ": the mbarrier initialised at "
                                    << its.initialised << (is_advice ? " may not be" : " is not")
                                    << " known to the copy engine. " << ReportWriter::Advice()
                                    << "The thread that initialised it " << (is_advice ? "should" : "must")
                                    << " execute "
                                    << word("fence_mbarrier_init()",
                                            "fence.mbarrier_init.release.cluster or fence.proxy.async")
                                    << " after that";
  }
  return number;
}

// Into the current CTA, by the running thread, which may be another one's.
void start_load(Copy copy, int mbarrier) {
  Mbarrier& its = (*cta->mbarriers)[mbarrier];
  copy.mbarrier = mbarrier;
  copy.phase = its.phase;
  its.last_load = copy.at;
  its.load_phase = its.phase;
  if (cta->options.race_detector) {
    copy.issued = cta->races->load_issued(mbarrier, *self, copy.shared, copy.bytes, copy.site);
    if (copy.map.swizzle_bytes != 0) remember_columns(copy);
  }
  // Until the copy is done.
  std::memset(reinterpret_cast<void*>(copy.shared), int(cta->options.poison), copy.bytes);
  if (cta->tracer != nullptr && &cta_of(*self) == cta) cta->tracer->copy_issued(copy);
  cta->copies->issue(copy);
}

// Into all CTAs of the mask.
void load(const char* op, const char* its_barrier, void* shared, const TensorMapShape& map, uint64_t* barrier,
          unsigned cta_mask, BoxOrigin origin, uintptr_t alignment, Location at, uintptr_t pc) {
  const bool to_own = ((cta_mask >> cluster_rank()) & 1) != 0;
  (to_own ? touch_shared : check_shared)(its_barrier, barrier, sizeof(*barrier), sizeof(*barrier), false, pc);
  const InRuntime in_runtime;
  if (cta_mask == 0) {
    fail(Bug::kCluster, *self) << op << " at " << at << ": its mask names no CTA";
  }
  Copy copy{.map = map,
            .origin = origin,
            .shared = uintptr_t(shared),
            .bytes = box_bytes(map),
            .issuer = self,
            .at = at,
            .site = site_of(pc),
            .mbarrier = 0};  // a load; its number is start_load's to say
  check_box(op, copy, alignment);
  ++cta->counters.tma_loads;
  cta->counters.tma_load_bytes += copy.bytes;
  for (const int rank : Bits{cta_mask}) {
    Cta& to = cta_of_cluster(op, rank, at);
    const uintptr_t barrier_there = same_place_in(to, uintptr_t(barrier));
    copy.shared = same_place_in(to, uintptr_t(shared));
    const InCta there(to);
    const int number = find_mbarrier(op, reinterpret_cast<const uint64_t*>(barrier_there), at);
    if (cta->options.race_detector && &cta_of(*self) != cta) {
      cta->races->remote_read(*self, barrier_there, sizeof(*barrier), copy.site);
    }
    start_load(copy, number);
  }
}

void start_store(const char* op, const Copy& copy, uintptr_t alignment) {
  check_box(op, copy, alignment);
  ++cta->counters.tma_stores;
  cta->counters.tma_store_bytes += copy.bytes;
  if (cta->options.race_detector) cta->races->store_issued(*self, copy.shared, copy.bytes, copy.site);
  if (cta->tracer != nullptr) cta->tracer->copy_issued(copy);
  cta->copies->issue(copy);
}

Copy store_of(const TensorMapShape& map, const void* shared, BoxOrigin origin, Location at, uintptr_t pc) {
  return {.map = map,
          .origin = origin,
          .shared = uintptr_t(shared),
          .bytes = box_bytes(map),
          .issuer = self,
          .at = at,
          .site = site_of(pc),
          .group = self->store_group};
}

void store(const char* op, const TensorMapShape& map, const void* shared, BoxOrigin origin,
           uintptr_t alignment, Location at, uintptr_t pc) {
  const InRuntime in_runtime;
  start_store(op, store_of(map, shared, origin, at, pc), alignment);
}

// ---- For inline PTX

TypedTensorMap typed_map_at(const char* op, const void* map, Location at) {
  const InRuntime in_runtime;
  TypedTensorMap typed;
  check_access(uintptr_t(map), sizeof(typed), false, {.at = at});
  std::memcpy(&typed, map, sizeof(typed));
  try {
    flashsteps::check_tensor_map(typed.shape);
  } catch (const std::runtime_error&) {
    fail(rule_named("invalid-operand"), *self)
        << op << " at " << at << ": there is no tensor map at "
        << ReportWriter::Address{describe_address(uintptr_t(map))} << ". " << ReportWriter::Advice()
        << "cuTensorMapEncodeTiled() makes one";
  }
  return typed;
}
TensorMapShape map_at(const char* op, const void* map, Location at) {
  return typed_map_at(op, map, at).shape;
}

BoxOrigin origin_of(const int* coordinates) {
  BoxOrigin origin;
  std::copy_n(coordinates, TensorMapShape::RANK, origin.at);
  return origin;
}

// What lies in the running CTA where the destination does in its own, and the CTAs that get it.
struct Destination {
  void* shared;
  uint64_t* barrier;
  unsigned cta_mask;
};
Destination destination(void* shared, uint64_t* barrier, unsigned cta_mask, Location at) {
  const Cta* const its = cta_with(uintptr_t(shared));
  if (cta_mask != 0 || its == nullptr || its == cta) {
    return {shared, barrier, cta_mask != 0 ? cta_mask : 1u << cluster_rank()};
  }
  if (cta_with(uintptr_t(barrier)) != its) {
    const InRuntime in_runtime;
    fail(Bug::kCluster, *self) << "cp.async.bulk at " << at
                               << ": the mbarrier is not in the shared memory of the CTA that gets the copy";
  }
  const auto here = [&](void* there) { return cta->smem + (uintptr_t(there) - uintptr_t(its->smem)); };
  return {here(shared), reinterpret_cast<uint64_t*>(here(barrier)), 1u << its->rank};
}

// Null if there is none.
decltype(Copy::reduce) reduction_of(cuda::CUtensorMapDataType type, Atomic operation) {
  const bool adds = operation == Atomic::kAdd;
  switch (type) {
    case cuda::CU_TENSOR_MAP_DATA_TYPE_UINT32:
      return update_elements<unsigned>;
    case cuda::CU_TENSOR_MAP_DATA_TYPE_INT32:
      return update_elements<int>;
    case cuda::CU_TENSOR_MAP_DATA_TYPE_UINT64:
      return update_elements<unsigned long long>;
    case cuda::CU_TENSOR_MAP_DATA_TYPE_INT64:
      return update_elements<long long>;
    case cuda::CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
      return adds ? update_elements<cuda::__half> : nullptr;
    case cuda::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return adds ? update_elements<cuda::__nv_bfloat16> : nullptr;
    case cuda::CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return adds ? update_elements<float> : nullptr;
    case cuda::CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return adds ? update_elements<double> : nullptr;
    default:
      return nullptr;
  }
}

// A copy without a tensor map, as one of rows of 16 bytes.
TensorMapShape contiguous(const char* op, const void* global, const void* shared, size_t bytes, bool write,
                          Location at) {
  const InRuntime in_runtime;
  check_alignment(uintptr_t(global), 16, write, {.at = at});
  check_alignment(uintptr_t(shared), 16, !write, {.at = at});
  if (bytes == 0 || bytes % 16 != 0) {
    fail(Bug::kMisaligned, *self) << op << " at " << at << ": " << bytes
                                  << " bytes, it must be a multiple of 16";
  }
  if (check_access(uintptr_t(global), bytes, write, {.at = at}) != Space::kGlobal) {
    fail(Bug::kGlobalOutOfBounds, *self) << op << " at " << at << ": the address is not in global memory";
  }
  const uint64_t rows = bytes / 16;
  return {.base = global,
          .element_bytes = 1,
          .size = {16, rows, 1, 1, 1},
          .stride = {1, 16, bytes, bytes, bytes},
          .box = {16, uint32_t(rows), 1, 1, 1},
          .swizzle_bytes = 0};
}

void load_bytes(void* shared, const void* global, size_t bytes, uint64_t* barrier, unsigned cta_mask,
                Location at, uintptr_t pc) {
  constexpr const char* kOp = "cp.async.bulk";
  const TensorMapShape shape = contiguous(kOp, global, shared, bytes, /*write=*/false, at);
  const Destination to = destination(shared, barrier, cta_mask, at);
  load(kOp, "the mbarrier of cp.async.bulk", to.shared, shape, to.barrier, to.cta_mask, {}, 16, at, pc);
}

void store_bytes(void* global, const void* shared, size_t bytes, Location at, uintptr_t pc) {
  constexpr const char* kOp = "cp.async.bulk";
  const TensorMapShape shape = contiguous(kOp, global, shared, bytes, /*write=*/true, at);
  store(kOp, shape, shared, {}, 16, at, pc);
}

template <typename T>
void reduce_bytes(Atomic operation, T* global, const T* shared, size_t bytes, Location at, uintptr_t pc) {
  constexpr const char* kOp = "cp.reduce.async.bulk";
  const TensorMapShape shape = contiguous(kOp, global, shared, bytes, /*write=*/true, at);
  const InRuntime in_runtime;
  Copy copy = store_of(shape, shared, {}, at, pc);
  copy.operation = operation;
  copy.reduce = update_elements<T>;
  start_store(kOp, copy, 16);
}

}  // namespace

void tma_load(void* shared, const void* map, uint64_t* barrier, unsigned cta_mask, const int* coordinates,
              Location at) {
  constexpr const char* kOp = "cp.async.bulk.tensor";
  const TensorMapShape shape = map_at(kOp, map, at);
  const Destination to = destination(shared, barrier, cta_mask, at);
  load(kOp, "the mbarrier of cp.async.bulk.tensor", to.shared, shape, to.barrier, to.cta_mask,
       origin_of(coordinates), box_alignment(shape), at, uintptr_t(__builtin_return_address(0)));
  const bool to_own = ((to.cta_mask >> cluster_rank()) & 1) != 0;
  if (cta->options.race_detector && to_own && is_global(uintptr_t(map), kTensorMapBytes)) {
    const InRuntime in_runtime;
    cta->races->load_reads_map(cta->mbarriers->find(kOp, to.barrier, at), uintptr_t(map),
                               site_of(uintptr_t(__builtin_return_address(0))));
  }
}

void tma_store(const void* map, const void* shared, const int* coordinates, Location at) {
  constexpr const char* kOp = "cp.async.bulk.tensor";
  const TensorMapShape shape = map_at(kOp, map, at);
  store(kOp, shape, shared, origin_of(coordinates), box_alignment(shape), at,
        uintptr_t(__builtin_return_address(0)));
}

void bulk_load(void* shared, const void* global, size_t bytes, uint64_t* barrier, unsigned cta_mask,
               Location at) {
  load_bytes(shared, global, bytes, barrier, cta_mask, at, uintptr_t(__builtin_return_address(0)));
}

void bulk_store(void* global, const void* shared, size_t bytes, Location at) {
  store_bytes(global, shared, bytes, at, uintptr_t(__builtin_return_address(0)));
}

template <typename T>
void bulk_reduce(Atomic operation, T* global, const T* shared, size_t bytes, Location at) {
  reduce_bytes(operation, global, shared, bytes, at, uintptr_t(__builtin_return_address(0)));
}

void tma_reduce(Atomic operation, const void* map, const void* shared, const int* coordinates, Location at) {
  constexpr const char* kOp = "cp.reduce.async.bulk.tensor";
  const TypedTensorMap typed = typed_map_at(kOp, map, at);
  const InRuntime in_runtime;
  Copy copy =
      store_of(typed.shape, shared, origin_of(coordinates), at, uintptr_t(__builtin_return_address(0)));
  copy.operation = operation;
  copy.reduce = reduction_of(typed.type, operation);
  if (copy.reduce == nullptr) {
    fail(Bug::kLaunch, *self) << kOp << " at " << at
                              << ": of floating-point numbers, the emulator only has sums, and none of TF32";
  }
  start_store(kOp, copy, box_alignment(typed.shape));
}
#define FLASHSTEPS_BULK_REDUCE(T) template void bulk_reduce<T>(Atomic, T*, const T*, size_t, Location);
FLASHSTEPS_BULK_REDUCE(int)
FLASHSTEPS_BULK_REDUCE(unsigned)
FLASHSTEPS_BULK_REDUCE(long long)
FLASHSTEPS_BULK_REDUCE(unsigned long long)
FLASHSTEPS_BULK_REDUCE(float)
FLASHSTEPS_BULK_REDUCE(double)
FLASHSTEPS_BULK_REDUCE(cuda::__half)
FLASHSTEPS_BULK_REDUCE(cuda::__nv_bfloat16)

namespace {

void wait_for_groups(void (CopyEngine::*wait)(const Fiber&, unsigned), int pending, Location at) {
  const InRuntime in_runtime;
  const unsigned committed = self->store_group;
  const unsigned groups = committed > unsigned(pending) ? committed - unsigned(pending) : 0;
  (*cta->copies.*wait)(*self, groups);
  if (cta->tracer != nullptr) cta->tracer->stores_waited(groups, at);
}

}  // namespace

void tma_store_wait_read(int pending, Location at) {
  wait_for_groups(&CopyEngine::wait_for_stores, pending, at);
}
void bulk_wait(int pending, Location at) { wait_for_groups(&CopyEngine::wait_for_writes, pending, at); }

}  // namespace emulator

namespace flashsteps::inline on_emulator {

using namespace emulator;

void tma_load_5d(void* shared, const TensorMap& map, uint64_t* barrier, int c0, int c1, int c2, int c3,
                 int c4, Location at) {
  load("tma_load", "tma_load's mbarrier", shared, map.shape, barrier, 1u << cta->rank, {{c0, c1, c2, c3, c4}},
       box_alignment(map.shape), at, uintptr_t(__builtin_return_address(0)));
}

void tma_load_5d_multicast(void* shared, const TensorMap& map, uint64_t* barrier, uint16_t cta_mask, int c0,
                           int c1, int c2, int c3, int c4, Location at) {
  load("tma_load_multicast", "tma_load_multicast's mbarrier", shared, map.shape, barrier, cta_mask,
       {{c0, c1, c2, c3, c4}}, box_alignment(map.shape), at, uintptr_t(__builtin_return_address(0)));
}

void tma_store_5d(const TensorMap& map, const void* shared, int c0, int c1, int c2, int c3, int c4,
                  Location at) {
  store("tma_store", map.shape, shared, {{c0, c1, c2, c3, c4}}, box_alignment(map.shape), at,
        uintptr_t(__builtin_return_address(0)));
}

void bulk_load(void* shared, const void* global, int bytes, uint64_t* barrier, Location at) {
  load_bytes(shared, global, size_t(bytes), barrier, /*cta_mask=*/0, at,
             uintptr_t(__builtin_return_address(0)));
}

void bulk_store(void* global, const void* shared, int bytes, Location at) {
  store_bytes(global, shared, size_t(bytes), at, uintptr_t(__builtin_return_address(0)));
}

void bulk_add(float* global, const float* shared, int bytes, Location at) {
  reduce_bytes(Atomic::kAdd, global, shared, size_t(bytes), at, uintptr_t(__builtin_return_address(0)));
}

void tma_store_commit(Location) { ++self->store_group; }

void fence_proxy_async(Location) {
  const InRuntime in_runtime;
  cta->mbarriers->fence_initialised();
  if (cta->options.race_detector) cta->races->proxy_fence(*self);
}

}  // namespace flashsteps::inline on_emulator
