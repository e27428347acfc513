#include "common/mbarrier.h"

#include <cstring>

#include "common/emulator/cluster_state.h"
#include "common/emulator/core.h"
#include "common/emulator/mbarrier_table.h"
#include "common/emulator/shared_races.h"
#include "common/emulator/tracer.h"

namespace emulator {
namespace {

constexpr int kMaxCount = (1 << 20) - 1;  // of arrivals, and of bytes: PTX ISA, "mbarrier object"
constexpr size_t kBytes = sizeof(uint64_t);

// What an mbarrier's memory holds, plus its number. The real contents are the hardware's secret, and not to
// be relied on.
uint64_t mark() {
  uint64_t value;
  std::memcpy(&value, "mbarrier", sizeof(value));
  return value;
}

std::string describe_initialised(const Mbarrier& barrier) {
  return "the mbarrier at " + describe_shared(uintptr_t(barrier.address)) + ", initialised at " +
         describe(barrier.initialised) + " with " + std::to_string(barrier.arrivals) +
         (barrier.arrivals == 1 ? " arrival" : " arrivals");
}

std::string describe_announced(const Mbarrier& barrier) {
  return "the last announcement was of " + std::to_string(barrier.last_announced.count) + " bytes, at " +
         describe(barrier.last_announced.at);
}

// "16384 bytes at kernel.cu:50, 4096 bytes at kernel.cu:51"; "nothing" if there are none.
std::string describe_bytes(const std::vector<Mbarrier::Bytes>& list) {
  std::string text;
  for (const Mbarrier::Bytes& bytes : list) {
    text += (text.empty() ? "" : ", ") + std::to_string(bytes.count) + " bytes at " + describe(bytes.at);
  }
  return text.empty() ? "nothing" : text;
}

int64_t sum(const std::vector<Mbarrier::Bytes>& list) {
  int64_t total = 0;
  for (const Mbarrier::Bytes& bytes : list) total += bytes.count;
  return total;
}

}  // namespace

// ---- The table

int MbarrierTable::initialise(uint64_t* address, int arrivals, Location at) {
  for (const Mbarrier& other : table_) {
    if (other.address != address) continue;
    fail(Bug::kBadMbarrier, *self).also(other.initialised)
        << "mbarrier.init at " << at << ": " << describe_initialised(other)
        << " is in use already. Initialise it once per CTA; its phases advance by themselves";
  }
  if (cta->options.race_detector && table_.size() == SharedRaces::kMaxMbarriers) {
    fail(Bug::kBadMbarrier, *self) << "mbarrier.init at " << at << ": the race detector can track "
                                   << SharedRaces::kMaxMbarriers
                                   << " mbarriers per CTA, and this is one more than that";
  }
  Mbarrier& barrier = table_.emplace_back();
  barrier.address = address;
  barrier.initialiser = self;
  barrier.initialised = at;
  barrier.arrivals = barrier.missing = arrivals;
  const int number = int(table_.size()) - 1;
  *address = mark() + uint64_t(number);
  return number;
}

void MbarrierTable::fence_initialised() {
  for (Mbarrier& barrier : table_) {
    if (barrier.initialiser == self) barrier.known_to_copies = true;
  }
}

int MbarrierTable::find(const char* op, const uint64_t* address, Location at) {
  const uint64_t number = *address - mark();
  if (number < table_.size() && table_[number].address == address) return int(number);
  for (const Mbarrier& barrier : table_) {
    if (barrier.address != address) continue;
    fail(Bug::kBadMbarrier, *self).also(barrier.initialised)
        << op << " at " << at << ": " << describe_initialised(barrier)
        << " has been overwritten since. Only mbarrier functions may touch its 8 bytes";
  }
  const bool is_own = &cta_of(*self) == cta;
  fail(Bug::kBadMbarrier, *self) << op << " at " << at << ": there is no initialised mbarrier at "
                                 << ReportWriter::Address{describe_shared(uintptr_t(address))}
                                 << (is_own ? "" : " of " + describe_block(*cta)) << ". "
                                 << ReportWriter::Advice() << "Is the "
                                 << word("mbarrier_init", "mbarrier.init") << " missing, or the "
                                 << (is_own ? "__syncthreads()"
                                            : word("cluster_arrive() and cluster_wait()",
                                                   "barrier.cluster.arrive and barrier.cluster.wait"))
                                 << " after it?";
}

void MbarrierTable::arrive(const char* op, int number, int64_t expected_bytes, Location at, bool relaxed) {
  Mbarrier& barrier = table_[size_t(number)];
  if (barrier.missing == 0) {
    fail(Bug::kBadMbarrier, *self).also(barrier.initialised)
        << op << " at " << at << ": one arrival too many in phase " << barrier.phase << " of "
        << describe_initialised(barrier) << ", which still waits for " << barrier.tx << " bytes. "
        << ReportWriter::Advice() << "Has this thread waited for the phase before, and for the right parity?";
  }
  --barrier.missing;
  announce(number, expected_bytes, at);
  const bool is_own = &cta_of(*self) == cta;
  if (cta->options.race_detector) {
    if (!is_own) cta->races->must_hear_of_arrival(*self, at);
    if (relaxed) {
      cta->races->relaxed_arrival(number, *self);
    } else if (is_own) {
      cta->races->mbarrier_arrival(number, *self);
    } else {
      cta->races->remote_arrival(number, *self);
    }
  }
  if (cta->tracer != nullptr && is_own) cta->tracer->mbarrier_arrival(number, expected_bytes, at);
  complete_if_done(number, *self);
}

void MbarrierTable::announce(int number, int64_t bytes, Location at) {
  if (bytes == 0) return;
  Mbarrier& barrier = table_[size_t(number)];
  barrier.tx += bytes;
  barrier.last_announced = {bytes, at};
  barrier.announced.push_back(barrier.last_announced);
}

void MbarrierTable::complete_bytes(int number, uint64_t phase, int64_t bytes, const Fiber& issuer,
                                   Location issued) {
  Mbarrier& barrier = table_[size_t(number)];
  if (barrier.phase != phase) {
    fail(Bug::kBadExpectTx, issuer).also(barrier.initialised)
        << "the copy of " << bytes << " bytes issued at " << issued << " belongs to phase " << phase << " of "
        << describe_initialised(barrier) << ", but that phase has completed without it; "
        << describe_announced(barrier);
  }
  barrier.tx -= bytes;
  barrier.copied.push_back({bytes, issued});
  complete_if_done(number, issuer);
}

void MbarrierTable::complete_if_done(int number, const Fiber& who) {
  Mbarrier& barrier = table_[size_t(number)];
  if (barrier.missing > 0) return;
  if (barrier.tx < 0) {
    fail(Bug::kBadExpectTx, who)
            .also(barrier.copied.back().at)
            .also(barrier.last_announced.at)
            .also(barrier.initialised)
        << "phase " << barrier.phase << " of " << describe_initialised(barrier)
        << ": all have arrived and announced " << sum(barrier.announced) << " bytes, but copies have brought "
        << sum(barrier.copied) << ". Announced: " << describe_bytes(barrier.announced)
        << ". Copied: " << describe_bytes(barrier.copied);
  }
  if (barrier.tx > 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
  barrier.announced.clear();
  barrier.copied.clear();
  if (cta->options.race_detector) cta->races->mbarrier_completed(number);
  for (int i = 0; i < cta->num_threads; ++i) {
    Fiber& fiber = cta->fibers[size_t(i)];
    fiber.timeouts = 0;
    const bool waits = fiber.state == State::kMbarrier && fiber.mbarrier == number;
    if (waits && barrier.has_completed(fiber.parity)) wake(fiber);
  }
}

bool MbarrierTable::time_out() {
  // Who tries a few times and then does something else is no deadlock; who tries for ever is.
  constexpr int kEnough = 256;
  bool any = false;
  for (int i = 0; i < cta->num_threads; ++i) {
    Fiber& fiber = cta->fibers[size_t(i)];
    if (fiber.state != State::kMbarrier || fiber.timeouts == kEnough) continue;
    ++fiber.timeouts;
    any = true;
    wake(fiber);
  }
  return any;
}

std::string MbarrierTable::describe_wait(const Fiber& fiber) {
  const Mbarrier& barrier = table_[size_t(fiber.mbarrier)];
  std::string text = std::string(fiber.op) + " at " + describe(fiber.at) + " for parity " +
                     std::to_string(fiber.parity) + " of " + describe_initialised(barrier) + "; phase " +
                     std::to_string(barrier.phase) + " is under way and lacks " +
                     std::to_string(barrier.missing) + " of " + std::to_string(barrier.arrivals) +
                     " arrivals";
  if (barrier.tx > 0) text += " and " + std::to_string(barrier.tx) + " bytes";
  if (barrier.tx < 0)
    text += "; copies have brought " + std::to_string(-barrier.tx) + " bytes too many so far";
  if (barrier.last_announced.count > 0) text += "; " + describe_announced(barrier);
  if (barrier.phase == 0 && barrier.missing == barrier.arrivals && barrier.tx == 0 && !barrier.has_let_pass) {
    text += " (nobody has ever arrived: on a new mbarrier only a wait for parity 1 passes)";
  } else if (barrier.missing == 0) {
    text += " (were more bytes announced than the copies bring?)";
  }
  return text;
}

void MbarrierTable::check_exit(const Fiber& last) {
  for (const Mbarrier& barrier : table_) {
    const bool has_load = barrier.last_load.line != 0;
    if (!has_load || barrier.load_phase < barrier.waited_phases) continue;
    fail(Bug::kUnfinishedCopy, last).also(barrier.initialised)
        << "the CTA ends, and nobody has waited for the copy issued at " << barrier.last_load
        << ", which belongs to phase " << barrier.load_phase << " of " << describe_initialised(barrier)
        << ". The copy could write to shared memory that already belongs to another CTA by then";
  }
}

// ---- The functions

namespace {

void check_bytes(const char* op, int number, int bytes, Location at) {
  if (bytes >= 0 && (*cta->mbarriers)[number].tx + bytes <= kMaxCount) return;
  fail(Bug::kBadExpectTx, *self) << op << " at " << at << ": " << bytes
                                 << " bytes; an mbarrier can wait for 0 to " << kMaxCount;
}

void arrive_in_cluster(uint64_t* barrier, int cta_rank, int bytes, bool relaxed, Location at, uintptr_t pc) {
  constexpr const char* kOp = "mbarrier.arrive.shared::cluster";
  const bool to_own = cta_rank == cluster_rank();
  (to_own ? touch_shared : check_shared)(kOp, barrier, kBytes, kBytes, false, pc);
  const InRuntime in_runtime;
  ++cta->counters.mbarrier_arrivals;
  Cta& to = cta_of_cluster(kOp, cta_rank, at);
  const uintptr_t address = same_place_in(to, uintptr_t(barrier));
  const InCta there(to);
  const int number = cta->mbarriers->find(kOp, reinterpret_cast<const uint64_t*>(address), at);
  if (!to_own && cta->options.race_detector) {
    cta->races->remote_read(*self, address, kBytes, site_of(pc));
    if (!relaxed) release_to_cluster();
  }
  check_bytes(kOp, number, bytes, at);
  cta->mbarriers->arrive(kOp, number, bytes, at, relaxed);
}

bool try_wait(uint64_t* barrier, int parity, bool cluster_scope, Location at, uintptr_t pc) {
  constexpr const char* kOp = "mbarrier.try_wait";
  touch_shared(kOp, barrier, kBytes, kBytes, false, pc);
  const InRuntime in_runtime;
  MbarrierTable& table = *cta->mbarriers;
  const int number = table.find(kOp, barrier, at);
  if (parity != 0 && parity != 1) {
    fail(Bug::kBadMbarrier, *self) << kOp << " at " << at << ": parity " << parity
                                   << ", it must be 0 or 1: the number of the phase, modulo 2";
  }
  // The hardware may say no at any time.
  if (cta->options.shuffle && cta->random.one_in(4)) {
    yield();
    return false;
  }
  if (!table[number].has_completed(parity)) {
    self->op = kOp;
    self->at = at;
    self->mbarrier = number;
    self->parity = parity;
    park(State::kMbarrier);
    // It has timed out, or the mbarrier has gone on to the next phase but one before this thread could run.
    if (!table[number].has_completed(parity)) return false;
  }
  ++cta->counters.mbarrier_waits;
  table[number].waited_phases = table[number].phase;
  table[number].has_let_pass = true;
  // A program's wait may say its scope or not, and mostly does not.
  cluster_scope |= cta->launch->program != nullptr && cluster_size() > 1;
  if (cta->options.race_detector) cta->races->mbarrier_waited(number, *self, cluster_scope);
  if (cta->options.race_detector && cluster_scope) acquire_from_cluster();
  if (cta->tracer != nullptr) cta->tracer->mbarrier_passed(number, at);
  return true;
}

}  // namespace

// ---- For inline PTX

void mbarrier_arrive_anywhere(uint64_t* barrier, int bytes, bool relaxed, Location at) {
  const Cta* const its = cta_with(uintptr_t(barrier));
  if (its == nullptr || its == cta) {
    bytes != 0 ? flashsteps::mbarrier_arrive_expect_tx(barrier, bytes, at)
               : flashsteps::mbarrier_arrive(barrier, at);
    return;
  }
  auto* const here = reinterpret_cast<uint64_t*>(cta->smem + (uintptr_t(barrier) - uintptr_t(its->smem)));
  arrive_in_cluster(here, its->rank, bytes, relaxed, at, uintptr_t(__builtin_return_address(0)));
}

void mbarrier_expect_tx(uint64_t* barrier, int bytes, Location at) {
  constexpr const char* kOp = "mbarrier.expect_tx";
  touch_shared(kOp, barrier, kBytes, kBytes, false, uintptr_t(__builtin_return_address(0)));
  const InRuntime in_runtime;
  const int number = cta->mbarriers->find(kOp, barrier, at);
  check_bytes(kOp, number, bytes, at);
  cta->mbarriers->announce(number, bytes, at);
}

void mbarrier_invalidate(uint64_t* barrier, Location at) {
  constexpr const char* kOp = "mbarrier.inval";
  touch_shared(kOp, barrier, kBytes, kBytes, true, uintptr_t(__builtin_return_address(0)));
  const InRuntime in_runtime;
  cta->mbarriers->invalidate(cta->mbarriers->find(kOp, barrier, at));
}

int mbarrier_parity(uint64_t* barrier, Location at) {
  constexpr const char* kOp = "mbarrier.arrive";
  check_shared(kOp, barrier, kBytes, kBytes, false, uintptr_t(__builtin_return_address(0)));
  const InRuntime in_runtime;
  return int((*cta->mbarriers)[cta->mbarriers->find(kOp, barrier, at)].phase % 2);
}

}  // namespace emulator

namespace flashsteps::inline on_emulator {

using namespace emulator;

void mbarrier_init(uint64_t* barrier, int arrivals, Location at) {
  const auto pc = uintptr_t(__builtin_return_address(0));
  touch_shared("mbarrier.init", barrier, kBytes, kBytes, true, pc);
  const InRuntime in_runtime;
  if (arrivals < 1 || arrivals > kMaxCount) {
    fail(Bug::kBadMbarrier, *self) << "mbarrier.init at " << at << ": the number of arrivals is " << arrivals
                                   << ", it must be from 1 to " << kMaxCount;
  }
  const int number = cta->mbarriers->initialise(barrier, arrivals, at);
  if (cta->options.race_detector) cta->races->mbarrier_initialised(number);
}

void fence_mbarrier_init(Location) {
  const InRuntime in_runtime;
  cta->mbarriers->fence_initialised();
}

void mbarrier_arrive(uint64_t* barrier, Location at) {
  constexpr const char* kOp = "mbarrier.arrive";
  const auto pc = uintptr_t(__builtin_return_address(0));
  touch_shared(kOp, barrier, kBytes, kBytes, false, pc);
  const InRuntime in_runtime;
  ++cta->counters.mbarrier_arrivals;
  cta->mbarriers->arrive(kOp, cta->mbarriers->find(kOp, barrier, at), 0, at);
}

void mbarrier_arrive_expect_tx(uint64_t* barrier, int bytes, Location at) {
  constexpr const char* kOp = "mbarrier.arrive.expect_tx";
  const auto pc = uintptr_t(__builtin_return_address(0));
  touch_shared(kOp, barrier, kBytes, kBytes, false, pc);
  const InRuntime in_runtime;
  const int number = cta->mbarriers->find(kOp, barrier, at);
  check_bytes(kOp, number, bytes, at);
  ++cta->counters.mbarrier_arrivals;
  cta->mbarriers->arrive(kOp, number, bytes, at);
}

bool mbarrier_try_wait(uint64_t* barrier, int parity, Location at) {
  return try_wait(barrier, parity, /*cluster_scope=*/false, at, uintptr_t(__builtin_return_address(0)));
}

void mbarrier_wait(uint64_t* barrier, int parity, Location at) {
  while (!try_wait(barrier, parity, /*cluster_scope=*/false, at, uintptr_t(__builtin_return_address(0)))) {
  }
}

void mbarrier_arrive_cluster(uint64_t* barrier, int cta_rank, Location at) {
  arrive_in_cluster(barrier, cta_rank, 0, /*relaxed=*/false, at, uintptr_t(__builtin_return_address(0)));
}

void mbarrier_arrive_cluster_relaxed(uint64_t* barrier, int cta_rank, Location at) {
  arrive_in_cluster(barrier, cta_rank, 0, /*relaxed=*/true, at, uintptr_t(__builtin_return_address(0)));
}

void mbarrier_wait_cluster(uint64_t* barrier, int parity, Location at) {
  while (!try_wait(barrier, parity, /*cluster_scope=*/true, at, uintptr_t(__builtin_return_address(0)))) {
  }
}

}  // namespace flashsteps::inline on_emulator
