#include "common/cluster.h"

#include <cstring>

#include "common/emulator/cluster_state.h"
#include "common/emulator/core.h"
#include "common/emulator/counters.h"
#include "common/emulator/global_races.h"
#include "common/emulator/shared_races.h"

namespace emulator {

// Then the CTAs that run together are the whole grid, and no cluster.
bool is_cooperative_launch() { return cta->launch->program != nullptr && cta->launch->program->cooperative; }

Cta& cta_of(const Fiber& fiber) {
  for (Cta* other : cta->cluster->ctas) {
    if (&fiber >= other->fibers.data() && &fiber < other->fibers.data() + other->fibers.size()) return *other;
  }
  return *cta;
}

Cta& cta_of_cluster(const char* op, int rank, Location at) {
  if (rank < 0 || rank >= cluster_size()) {
    fail(Bug::kCluster, *self) << op << " at " << at << ": there is no CTA " << rank
                               << ", the cluster's size is " << cluster_size();
  }
  Cta& other = is_cooperative_launch() ? *cta : *cta->cluster->ctas[size_t(rank)];
  if (other.num_live == 0) {
    fail(Bug::kCluster, *self)
        << op << " at " << at << ": " << describe_block(other)
        << " of the cluster has exited, and its shared memory with it. It must not exit before it knows that "
           "this has been done: is a cluster_arrive() and cluster_wait() missing at the kernel's end?";
  }
  return other;
}

uintptr_t same_place_in(const Cta& other, uintptr_t address) {
  return uintptr_t(other.smem) + (address - uintptr_t(cta->smem));
}

// Anywhere in the cluster. Null: nowhere.
Cta* cta_with(uintptr_t shared) {
  if (is_cooperative_launch()) return shared - uintptr_t(cta->smem) < kMaxSmemBytes ? cta : nullptr;
  for (Cta* const other : cta->cluster->ctas) {
    if (shared - uintptr_t(other->smem) < kMaxSmemBytes) return other;
  }
  return nullptr;
}

void release_to_cluster() {
  const InCta home(cta_of(*self));
  cta->launch->global_races->fence();
  cta->launch->global_races->publish();
}

void acquire_from_cluster() { cta->launch->global_races->acquire(); }

// ---- The barrier

void ClusterBarrier::start(int num_threads) {
  threads_.assign(size_t(num_threads), Thread{});
  rounds_ = 0;
  missing_ = num_threads;
}

ClusterBarrier::Thread& ClusterBarrier::own() {
  return threads_[size_t(cta->rank * cta->num_threads + self->warp * kWarpSize + self->lane)];
}

void ClusterBarrier::arrive(Location at) {
  Thread& thread = own();
  if (thread.arrivals != thread.waits) {
    fail(Bug::kBadBarrier, *self) << "cluster_arrive at " << at
                                  << ": this thread has not waited since it arrived at " << thread.arrived
                                  << ". A cluster_wait() must lie between the two";
  }
  ++thread.arrivals;
  thread.arrived = at;
  --missing_;
  if (cta->options.race_detector) {
    if (!is_cooperative_launch()) cta->races->cluster_arrival(*self);
    release_to_cluster();
  }
  complete_if_done();
}

void ClusterBarrier::wait(Location at) {
  Thread& thread = own();
  if (thread.arrivals == thread.waits) {
    fail(Bug::kBadBarrier, *self)
        << "cluster_wait at " << at
        << ": this thread has not arrived. A cluster_arrive() belongs in front of each";
  }
  if (thread.arrivals > rounds_) {
    self->op = is_cooperative_launch() ? "this_grid().sync()" : "cluster_wait";
    self->at = at;
    park(State::kCluster);
  }
  ++thread.waits;
  if (cta->options.race_detector) {
    if (!is_cooperative_launch()) cta->races->cluster_waited(*self);
    acquire_from_cluster();
  }
}

void ClusterBarrier::exit() {
  if (own().arrivals > rounds_) return;
  --missing_;
  complete_if_done();
}

void ClusterBarrier::complete_if_done() {
  if (missing_ > 0) return;
  ++rounds_;
  const std::vector<Cta*>& ctas = cta->cluster->ctas;
  if (cta->options.race_detector && !is_cooperative_launch()) ctas[0]->races->cluster_completed();
  for (Cta* other : ctas) {
    const InCta there(*other);
    missing_ += cta->num_live;
    for (int i = 0; i < cta->num_threads; ++i) {
      if (const Fiber& fiber = cta->fibers[size_t(i)]; fiber.state == State::kCluster) wake(fiber);
    }
  }
}

std::string ClusterBarrier::describe_wait(const Fiber& fiber) const {
  return std::string(fiber.op) + " at " + describe(fiber.at) + ", where " + std::to_string(missing_) +
         (is_cooperative_launch() ? " threads of the grid" : " threads of the cluster") + " have not arrived";
}

// ---- The functions

void store_cluster(void* to, const void* value, size_t bytes, int cta_rank, Location at, uintptr_t pc) {
  constexpr const char* kOp = "store_cluster";
  check_shared(kOp, to, bytes, bytes, true, pc);
  const InRuntime in_runtime;
  Cta& other = cta_of_cluster(kOp, cta_rank, at);
  const uintptr_t address = same_place_in(other, uintptr_t(to));
  std::memcpy(reinterpret_cast<void*>(address), value, bytes);
  if (cta->options.race_detector) {
    const bool to_own = &other == cta;
    const InCta there(other);
    to_own ? cta->races->shared_access(*self, address, bytes, true, site_of(pc))
           : cta->races->remote_access(kOp, *self, address, bytes, true, site_of(pc));
  }
  log_access({address, site_of(pc), uint8_t(bytes), /*shared=*/true, /*write=*/true});
}

// ---- For programs

int cluster_rank() { return is_cooperative_launch() ? 0 : cta->rank; }
int cluster_size() { return is_cooperative_launch() ? 1 : int(cta->cluster->ctas.size()); }
cuda::uint3 cluster_dim() {
  const cuda::dim3& size = cta->launch->program->cluster;
  return {size.x, size.y, size.z};
}

namespace {

const Cta& owner_of(const void* shared, Location at) {
  const Cta* const its = cta_with(uintptr_t(shared));
  if (its == nullptr) {
    fail(Bug::kSharedOutOfBounds, *self)
        << "the address at " << at << " is not in the cluster's shared memory";
  }
  return *its;
}

}  // namespace

void* in_cluster(const void* shared, int cta_rank, Location at) {
  const InRuntime in_runtime;
  const Cta &from = owner_of(shared, at), &to = cta_of_cluster("map_shared_rank", cta_rank, at);
  return to.smem + (uintptr_t(shared) - uintptr_t(from.smem));
}

int rank_of_shared(const void* shared, Location at) {
  const InRuntime in_runtime;
  const int rank = owner_of(shared, at).rank;
  return is_cooperative_launch() ? 0 : rank;
}

// Whatever the threads of a CTA have done, one of them may tell the others of the grid.
void grid_sync(Location at) {
  if (!is_cooperative_launch()) {
    const InRuntime in_runtime;
    fail(Bug::kBadBarrier, *self) << "this_grid().sync() at " << at
                                  << ": the launch is not cooperative. cudaLaunchCooperativeKernel() is";
  }
  syncthreads(at);
  {
    const InRuntime in_runtime;
    cta->cluster->barrier.arrive(at);
    cta->cluster->barrier.wait(at);
  }
  syncthreads(at);
}

}  // namespace emulator

namespace flashsteps::inline on_emulator {

using namespace emulator;

int cluster_ctarank() { return cluster_rank(); }

void cluster_arrive(Location at) {
  const InRuntime in_runtime;
  cta->cluster->barrier.arrive(at);
}

void cluster_wait(Location at) {
  const InRuntime in_runtime;
  cta->cluster->barrier.wait(at);
}

}  // namespace flashsteps::inline on_emulator
