// From the accesses of single lanes to the warp instructions that a GPU would have issued.
//
// The model. A GPU executes an instruction for all lanes of a warp that are at it together, and brings lanes
// that diverged back together as soon as their paths meet. Lanes run one after the other here, each logging
// (pc, address), and where the warp synchronises their logs are merged:
//   - Lanes whose next access has the same pc take it together, as one request.
//   - If the pcs differ, the lowest goes first: the others skipped it, or have left the loop that it is in.
//   - Except when lanes that are ahead will come back to the lowest pc, and the lanes that are there will
//     never go where the others are. Then the others are at the end of a loop's body, in an `if` that these
//     lanes skipped, and go first.
// This is what structured code does, except for loops within a loop whose trip counts differ from lane to
// lane: their requests can be counted apart where a GPU would join them.
//
// A request to shared memory is served in wavefronts. Lanes are served 128 bytes' worth at a time (all 32
// with 4 bytes or less each, 16 with 8, 8 with 16), and each such group takes as many wavefronts as its worst
// bank of 32 has different 4-byte words to deliver. Ideal is one per group. A request to global memory moves
// the 32-byte sectors that its lanes touch. TMA's boxes are no requests: they are counted for themselves, in
// bytes. All this follows from the program alone; there is no time and no cache in it.
#include "common/emulator/counters.h"

#include <algorithm>
#include <array>

#include "common/emulator/tracer.h"

namespace emulator {
namespace {

constexpr CounterField kFields[] = {
    {"global_requests", &Counters::global_requests},
    {"global_sectors", &Counters::global_sectors},
    {"global_bytes", &Counters::global_bytes},
    {"shared_requests", &Counters::shared_requests},
    {"shared_wavefronts", &Counters::shared_wavefronts},
    {"shared_wavefronts_ideal", &Counters::shared_wavefronts_ideal},
    {"mma", &Counters::mma},
    {"ldmatrix", &Counters::ldmatrix},
    {"ldmatrix_wavefronts", &Counters::ldmatrix_wavefronts},
    {"ldmatrix_wavefronts_ideal", &Counters::ldmatrix_wavefronts_ideal},
    {"wgmma", &Counters::wgmma},
    {"wgmma_flops", &Counters::wgmma_flops},
    {"wgmma_shared_bytes", &Counters::wgmma_shared_bytes},
    {"barriers", &Counters::barriers},
    {"syncwarps", &Counters::syncwarps},
    {"shuffles", &Counters::shuffles},
    {"votes", &Counters::votes},
    {"atomics", &Counters::atomics},
    {"tma_loads", &Counters::tma_loads},
    {"tma_load_bytes", &Counters::tma_load_bytes},
    {"tma_stores", &Counters::tma_stores},
    {"tma_store_bytes", &Counters::tma_store_bytes},
    {"mbarrier_arrivals", &Counters::mbarrier_arrivals},
    {"mbarrier_waits", &Counters::mbarrier_waits},
    {"switches", &Counters::switches},
};
static_assert(sizeof(kFields) / sizeof(kFields[0]) == sizeof(Counters) / sizeof(uint64_t));

}  // namespace

std::span<const CounterField> counter_fields() { return kFields; }

Counters& Counters::operator+=(const Counters& other) {
  for (const CounterField& field : kFields) this->*field.value += other.*field.value;
  return *this;
}

namespace {

// Sorts the first `count` numbers and drops duplicates; returns how many are left.
int make_unique(uint64_t* numbers, int count) {
  std::sort(numbers, numbers + count);
  return int(std::unique(numbers, numbers + count) - numbers);
}

int wavefronts_of_group(const Request& request, int first_lane, int num_lanes) {
  std::array<uint64_t, 4 * kWarpSize> words;
  int num_words = 0;
  for (int lane = first_lane; lane < first_lane + num_lanes; ++lane) {
    if (((request.lanes >> lane) & 1) == 0) continue;
    const uint64_t last = (request.address[lane] + request.bytes - 1) / 4;
    for (uint64_t word = request.address[lane] / 4; word <= last; ++word) words[size_t(num_words++)] = word;
  }
  num_words = make_unique(words.data(), num_words);
  std::array<int, 32> load = {};
  int worst = 0;
  for (int i = 0; i < num_words; ++i) worst = std::max(worst, ++load[words[size_t(i)] % 32]);
  return worst;
}

}  // namespace

int count_shared(const Request& request, Counters& counters) {
  const int bytes_per_lane = request.bytes <= 4 ? 4 : request.bytes <= 8 ? 8 : 16;
  const int lanes_per_group = 128 / bytes_per_lane;
  int total = 0;
  counters.shared_requests += 1;
  for (int lane = 0; lane < kWarpSize; lane += lanes_per_group) {
    const int wavefronts = wavefronts_of_group(request, lane, lanes_per_group);
    total += wavefronts;
    counters.shared_wavefronts_ideal += wavefronts > 0 ? 1 : 0;
  }
  counters.shared_wavefronts += uint64_t(total);
  return total;
}

int count_global(const Request& request, Counters& counters) {
  std::array<uint64_t, 2 * kWarpSize> sectors;
  int num_sectors = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if (((request.lanes >> lane) & 1) == 0) continue;
    const uint64_t first = request.address[lane] / 32;
    const uint64_t last = (request.address[lane] + request.bytes - 1) / 32;
    sectors[size_t(num_sectors++)] = first;
    if (last != first) sectors[size_t(num_sectors++)] = last;
    counters.global_bytes += request.bytes;
  }
  num_sectors = make_unique(sectors.data(), num_sectors);
  counters.global_requests += 1;
  counters.global_sectors += uint64_t(num_sectors);
  return num_sectors;
}

// Which sites a lane will visit later. Only needed, and only built, when lanes diverge.
class AccessLog::Future {
 public:
  explicit Future(const Lane* lanes) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const auto& accesses = lanes[lane].accesses;
      for (size_t i = lanes[lane].next; i < accesses.size(); ++i) sites_.push_back(accesses[i].site);
    }
    std::sort(sites_.begin(), sites_.end());
    sites_.erase(std::unique(sites_.begin(), sites_.end()), sites_.end());
    last_visit_.assign(sites_.size() * kWarpSize, -1);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const auto& accesses = lanes[lane].accesses;
      for (size_t i = lanes[lane].next; i < accesses.size(); ++i) last_visit(lane, accesses[i].site) = int(i);
    }
  }

  enum class Answer { kNo, kYes, kUnknown };

  // Will any of these lanes visit the site? Of lanes that are still running, the log is only the beginning;
  // what is not in a long piece of it is taken not to come.
  Answer visit(const Lane* lanes, unsigned which, unsigned running, Site site) {
    Answer answer = Answer::kNo;
    for (const int lane : Bits{which}) {
      if (last_visit(lane, site) >= int(lanes[lane].next)) return Answer::kYes;
      const size_t known = lanes[lane].accesses.size() - lanes[lane].next;
      if (((running >> lane) & 1) != 0 && known < kCapacity / 2) answer = Answer::kUnknown;
    }
    return answer;
  }

 private:
  int& last_visit(int lane, Site site) {
    const auto found = std::lower_bound(sites_.begin(), sites_.end(), site);
    return last_visit_[size_t(found - sites_.begin()) * kWarpSize + size_t(lane)];
  }

  std::vector<Site> sites_;
  std::vector<int> last_visit_;
};

void AccessLog::start_cta(int num_threads) {
  lanes_.resize(size_t((num_threads + kWarpSize - 1) / kWarpSize * kWarpSize));
  for (Lane& lane : lanes_) {
    lane.accesses.clear();
    lane.next = 0;
  }
}

// Which of the lanes with pending accesses execute the next instruction; none if that depends on accesses
// that are not logged yet.
unsigned AccessLog::choose_lanes(const Lane* lanes, unsigned pending, unsigned running, Future& future) {
  // The lanes at the lowest site that is above another one.
  const auto lanes_above = [&](Site low) {
    unsigned lowest_lanes = 0;
    Site lowest = 0;
    for (const int lane : Bits{pending}) {
      const Site site = lanes[lane].head().site;
      if (site <= low || (lowest_lanes != 0 && site > lowest)) continue;
      lowest_lanes = (site == lowest ? lowest_lanes : 0) | 1u << lane;
      lowest = site;
    }
    return lowest_lanes;
  };
  const auto site_of_lanes = [&](unsigned some) { return lanes[__builtin_ctz(some)].head().site; };

  unsigned chosen = lanes_above(0);
  for (unsigned ahead = lanes_above(site_of_lanes(chosen)); ahead != 0;
       ahead = lanes_above(site_of_lanes(ahead))) {
    const Future::Answer they_return = future.visit(lanes, ahead, running, site_of_lanes(chosen));
    if (they_return == Future::Answer::kUnknown) return 0;
    if (they_return == Future::Answer::kNo) continue;
    const Future::Answer we_follow = future.visit(lanes, chosen, running, site_of_lanes(ahead));
    if (we_follow == Future::Answer::kUnknown) return 0;
    if (we_follow == Future::Answer::kNo) chosen = ahead;
  }
  return chosen;
}

void AccessLog::count_warp(int warp) {
  Lane* const lanes = &lanes_[size_t(warp * kWarpSize)];
  // Lanes that will log more before the others do: unless their next access is known, nothing can be counted.
  const unsigned running = cta->warps[size_t(warp)].log_full;
  std::unique_ptr<Future> future;
  while (true) {
    unsigned pending = 0;
    bool diverged = false;
    for (int lane = 0; lane < kWarpSize; ++lane) {
      if (lanes[lane].empty()) continue;
      diverged =
          diverged || (pending != 0 && lanes[lane].head().site != lanes[__builtin_ctz(pending)].head().site);
      pending |= 1u << lane;
    }
    if (pending == 0 || (running & ~pending) != 0) break;
    unsigned chosen = pending;
    if (diverged) {
      if (future == nullptr) future = std::make_unique<Future>(lanes);
      chosen = choose_lanes(lanes, pending, running, *future);
      if (chosen == 0) break;
    }

    Request request;
    const Access& first = lanes[__builtin_ctz(chosen)].head();
    request.bytes = first.bytes;
    request.shared = first.shared;
    request.write = first.write;
    request.async = first.async;
    for (const int lane : Bits{chosen}) {
      const Access& access = lanes[lane].head();
      // A pointer that is shared in some lanes and global in others takes two requests.
      if (access.shared != request.shared || access.bytes != request.bytes) continue;
      request.address[lane] = access.address;
      request.lanes |= 1u << lane;
      ++lanes[lane].next;
    }
    const int cost =
        request.shared ? count_shared(request, cta->counters) : count_global(request, cta->counters);
    if (cta->tracer != nullptr) cta->tracer->access(warp, request, cost);
  }

  for (int lane = 0; lane < kWarpSize; ++lane) {
    auto& accesses = lanes[lane].accesses;
    accesses.erase(accesses.begin(), accesses.begin() + std::ptrdiff_t(lanes[lane].next));
    lanes[lane].next = 0;
  }
}

}  // namespace emulator
