#include "common/cp_async.h"

#include <algorithm>
#include <cstring>

#include "common/emulator/core.h"
#include "common/emulator/counters.h"
#include "common/emulator/lane_copies.h"
#include "common/emulator/shared_races.h"
#include "common/emulator/tracer.h"

namespace emulator {

// ---- The copies under way

// Nothing is asked of a thread that exits before its copies are done: PTX does not, and what the copies bring
// nobody can read without a report.
void LaneCopies::start_cta() {
  queues_.resize(std::max(queues_.size(), cta->fibers.size()));
  for (Queue& queue : queues_) {
    for (size_t i = queue.first; i < queue.copies.size(); ++i) {
      if (cta->options.race_detector)
        cta->races->forget(uintptr_t(queue.copies[i].shared), queue.copies[i].bytes);
    }
    queue.copies.clear();
    queue.first = queue.waited = 0;
    queue.committed = 0;
  }
  num_on_way_ = 0;
}

void LaneCopies::issue(LaneCopy copy, Location at) {
  Queue& queue = queue_of(*self);
  copy.group = queue.committed;
  if (cta->tracer != nullptr) cta->tracer->lane_copy_issued(copy, at);
  ++num_on_way_;
  if (cta->options.async == AsyncMode::kEarly) {
    finish(copy);
    if (!cta->options.race_detector) return;  // nobody will ask for it
  } else {
    std::memset(copy.shared, int(cta->options.poison), copy.bytes);  // until the copy is done
  }
  queue.copies.push_back(copy);
}

void LaneCopies::finish(LaneCopy& copy) {
  if (copy.done) return;
  copy.done = true;
  --num_on_way_;
  std::memset(copy.shared, 0, copy.bytes);
  std::memcpy(copy.shared, copy.global, copy.from_global);
}

// Of one thread about half, in any order.
void LaneCopies::finish_some() {
  Queue& queue = queues_[size_t(cta->random.next() % unsigned(cta->num_threads))];
  for (size_t i = queue.first; i < queue.copies.size(); ++i) {
    if (cta->random.one_in(2)) finish(queue.copies[i]);
  }
}

void LaneCopies::wait(unsigned pending_groups, Location at) {
  Queue& queue = queue_of(*self);
  const unsigned groups = queue.committed > pending_groups ? queue.committed - pending_groups : 0;
  if (cta->tracer != nullptr) cta->tracer->lane_copies_waited(groups, at);
  size_t& first = queue.first;
  for (; first < queue.copies.size() && queue.copies[first].group < groups; ++first) {
    LaneCopy& copy = queue.copies[first];
    finish(copy);
    if (cta->options.race_detector)
      cta->races->lane_copy_waited(*self, uintptr_t(copy.shared), copy.bytes, copy.site);
  }
  // What is left moves to the front only when it is less than what has been taken off.
  if (first * 2 >= queue.copies.size()) {
    queue.copies.erase(queue.copies.begin(), queue.copies.begin() + std::ptrdiff_t(first));
    first = 0;
  }
  queue.waited = queue.copies.size();
}

std::string LaneCopies::describe_missing(const Fiber& issuer, uintptr_t shared, const Fiber& who) const {
  const std::string wait = word("cp_async_wait", "cp.async.wait_group");
  const Queue& queue = queues_[size_t(issuer.warp * kWarpSize + issuer.lane)];
  size_t i = queue.first;
  while (i < queue.copies.size() && shared - uintptr_t(queue.copies[i].shared) >= queue.copies[i].bytes) ++i;
  if (i < queue.waited) {
    return queue.copies[i].group < queue.committed
               ? "that lane's last " + wait + " leaves it pending"
               : "no " + wait + " includes it: " + word("cp_async_commit", "cp.async.commit_group") +
                     " is missing after it";
  }
  return &issuer == &who ? "this lane has not waited for it: is a " + wait + " missing before this access?"
                         : "that lane has not waited for it yet: is its " + wait +
                               " missing, or a barrier between that wait and this access?";
}

// ---- The functions

namespace {

void copy(void* shared, const void* global, uint8_t bytes, uint8_t from_global, Location at, uintptr_t pc) {
  constexpr const char* kOp = "cp.async";
  const auto target = uintptr_t(shared), source = uintptr_t(global);
  const bool known_good = windows.shared.holds(target) && target % bytes == 0;
  if (!known_good) check_shared(kOp, shared, bytes, bytes, true, pc);
  if (source % bytes != 0) {
    const InRuntime in_runtime;
    check_alignment(source, bytes, false, {.pc = pc});
  }
  if (from_global > 0) touch_global(kOp, source, from_global, /*write=*/false, pc);
  const InRuntime in_runtime;
  const Site site = site_of(pc);
  // The reads and the writes of a warp are one request each, the writes also of lanes that read nothing: they
  // are merged by place, so the two have places of their own.
  log_access({target, site + 1, bytes, /*shared=*/true, /*write=*/true, /*async=*/true});
  if (cta->options.race_detector) cta->races->lane_copy_issued(*self, target, bytes, site);
  cta->lane_copies->issue(
      {.shared = shared, .global = global, .bytes = bytes, .from_global = from_global, .site = site}, at);
}

}  // namespace

void cp_async(void* shared, const void* global, int bytes, int from_global, Location at) {
  if ((bytes != 4 && bytes != 8 && bytes != 16) || from_global < 0 || from_global > bytes) {
    const InRuntime in_runtime;
    fail(rule_named("invalid-operand"), *self)
        << "cp.async at " << at << ": copies " << from_global << " bytes to " << bytes
        << ". It fills 4, 8 or 16 bytes, and copies at most as many";
  }
  copy(shared, global, uint8_t(bytes), uint8_t(from_global), at, uintptr_t(__builtin_return_address(0)));
}

void cp_async_wait(int pending, Location at) {
  const InRuntime in_runtime;
  cta->lane_copies->wait(unsigned(pending), at);
}

}  // namespace emulator

namespace flashsteps::inline on_emulator {

using namespace emulator;

void cp_async_16(void* shared, const void* global, Location at) {
  copy(shared, global, 16, 16, at, uintptr_t(__builtin_return_address(0)));
}

void cp_async_16_zfill(void* shared, const void* global, bool valid, Location at) {
  copy(shared, global, 16, valid ? 16 : 0, at, uintptr_t(__builtin_return_address(0)));
}

void cp_async_commit(Location) {
  const InRuntime in_runtime;
  cta->lane_copies->commit();
}

}  // namespace flashsteps::inline on_emulator
