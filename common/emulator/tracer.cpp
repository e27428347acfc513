#include "common/emulator/tracer.h"

#include <math.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "common/emulator/mbarrier_table.h"
#include "common/emulator/tile_layouts.h"

namespace emulator {

using namespace trace_units;

std::string place_of(const TraceEvent& event) { return describe(Location{event.file, event.line}); }

// ---- exp2f and expf of kernels, by which a softmax's arithmetic can be seen

float exp2_in_kernel(float x, Location at) {
  if (cta != nullptr && cta->tracer != nullptr) cta->tracer->exponential(at);
  return exp2f(x);
}

float exp_in_kernel(float x, Location at) {
  if (cta != nullptr && cta->tracer != nullptr) cta->tracer->exponential(at);
  return expf(x);
}

void Tracer::exponential(Location at) {
  now() += kExponential;
  warps_[size_t(self->warp)].exponential_at[size_t(self->lane)] = at;
}

// ---- The beginning and the end

Tracer::Tracer(Trace& trace)
    : trace_(trace), warps_(size_t(cta->num_warps)), queues_(size_t(cta->num_warps * kWarpSize)) {}

void Tracer::finish() {
  trace_.num_warps = cta->num_warps;
  trace_.smem_bytes = cta->smem_bytes;
  for (const Warp& warp : warps_) {
    trace_.events.insert(trace_.events.end(), warp.events.begin(), warp.events.end());
    trace_.events.insert(trace_.events.end(), warp.products.begin(), warp.products.end());
  }
  const auto by_begin = [](const TraceEvent& a, const TraceEvent& b) { return a.begin < b.begin; };
  const auto by_begin_and_place = [](const TraceEvent& a, const TraceEvent& b) {
    return std::tuple(a.begin, a.store, a.shared_offset) < std::tuple(b.begin, b.store, b.shared_offset);
  };
  copies_.insert(copies_.end(), lane_copies_.begin(), lane_copies_.end());
  std::sort(copies_.begin(), copies_.end(), by_begin_and_place);
  trace_.events.insert(trace_.events.end(), copies_.begin(), copies_.end());
  std::stable_sort(trace_.events.begin(), trace_.events.end(), by_begin);
}

// ---- Events

TraceEvent Tracer::make_event(Kind kind, int warp, Time begin, Time end, Location at) {
  TraceEvent event{.kind = kind, .warp = warp, .begin = begin, .end = end};
  event.file = at.file;
  event.line = at.line;
  return event;
}

TraceEvent Tracer::make_mbarrier_event(Kind kind, int number, uint64_t phase, Location at) const {
  TraceEvent event = make_event(kind, self->warp, 0, 0, at);
  event.mbarrier = number;
  event.mbarrier_offset = uintptr_t((*cta->mbarriers)[number].address) - uintptr_t(cta->smem);
  event.phase = phase;
  return event;
}

// Appends to the warp's track. A stretch that goes on where another one of its kind has ended is part of it.
// What takes time does not overlap: where lanes do different things at once, what began first is shown.
void Tracer::append(Warp& warp, TraceEvent event, bool exponentials) {
  if (!warp.events.empty() && event.end > event.begin) {
    TraceEvent& last = warp.events.back();
    event.begin = std::max(event.begin, last.end);
    if (event.begin >= event.end) return;
    const bool is_stretch =
        event.kind == Kind::kProducts || event.kind == Kind::kMemory || event.kind == Kind::kWork;
    if (is_stretch && last.kind == event.kind && last.end == event.begin) {
      last.end = event.end;
      last.mma += event.mma;
      last.ldmatrix += event.ldmatrix;
      if (event.kind == Kind::kWork && (exponentials || !warp.ends_in_exponentials)) {
        last.file = event.file;
        last.line = event.line;
        last.after = event.after;
        warp.ends_in_exponentials = exponentials;
      }
      return;
    }
  }
  warp.events.push_back(event);
  warp.ends_in_exponentials = exponentials;
}

// What several lanes do alike is one event, from when the last of them begins: the first such of each lane,
// the second of each, and so on.
void Tracer::add_partial(Warp& warp, const TraceEvent& event, unsigned lanes) {
  const auto is_same = [&](const TraceEvent& other) {
    return other.kind == event.kind && other.line == event.line && std::strcmp(other.file, event.file) == 0 &&
           other.mbarrier == event.mbarrier && other.phase == event.phase &&
           other.shared_offset == event.shared_offset && other.bytes == event.bytes;
  };
  int place = 0;
  for (const int lane : Bits{lanes}) place = std::max(place, warp.num_partial[size_t(lane)]++);
  for (Partial& partial : warp.partial) {
    if ((partial.lanes & lanes) != 0 || !is_same(partial.event)) continue;
    partial.lanes |= lanes;
    partial.place = std::max(partial.place, place);
    partial.event.begin = std::max(partial.event.begin, event.begin);
    partial.event.end = std::max(partial.event.end, event.end);
    return;
  }
  warp.partial.push_back({event, lanes, place});
}

// ---- Where lanes meet

// The time at which these lanes come together. If they are the whole warp, all that it did since it met last
// is known now.
Tracer::Time Tracer::meet(Warp& warp, int index, unsigned lanes, bool whole, Location at) {
  Time time = 0;
  for (const int lane : Bits{lanes}) time = std::max(time, warp.now[size_t(lane)]);
  if (!whole) return time;

  const auto by_time = [](const Partial& a, const Partial& b) {
    const auto key = [](const Partial& p) {
      const TraceEvent& e = p.event;
      return std::tuple(e.begin, p.place, e.end, e.kind, e.line, e.mbarrier, e.phase, e.shared_offset);
    };
    return key(a) < key(b);
  };
  std::sort(warp.partial.begin(), warp.partial.end(), by_time);
  const auto located = [](Location location) { return location.line != 0; };
  const auto exponential = std::find_if(warp.exponential_at.begin(), warp.exponential_at.end(), located);
  // Between the events of single lanes only exponentials cost time.
  const auto work_until = [&](Time end) {
    if (end <= warp.met || exponential == warp.exponential_at.end()) return;
    append(warp, make_event(Kind::kWork, index, warp.met, end, *exponential), /*exponentials=*/true);
  };
  for (const Partial& partial : warp.partial) {
    work_until(partial.event.begin);
    append(warp, partial.event);
    warp.met = std::max(warp.met, partial.event.end);
  }
  work_until(time);
  if (warp.access_cost > 0) {
    const Kind kind = warp.first_global != 0 ? Kind::kMemory : Kind::kWork;
    TraceEvent accesses = make_event(kind, index, time, time + warp.access_cost, at);
    accesses.after = true;
    accesses.global = reinterpret_cast<const void*>(warp.first_global);
    append(warp, accesses);
    time += warp.access_cost;
  }
  warp.met = time;
  warp.partial.clear();
  warp.num_partial = {};
  warp.exponential_at = {};
  warp.access_cost = 0;
  warp.loads = false;
  warp.first_global = 0;
  return time;
}

void Tracer::set_time(Warp& warp, unsigned lanes, Time time) {
  for (const int lane : Bits{lanes}) warp.now[size_t(lane)] = time;
}

void Tracer::access(int warp, const Request& request, int cost) {
  Warp& its = warps_[size_t(warp)];
  its.access_cost += Time(cost) * (request.shared ? kSharedWavefront : kGlobalSector);
  if (request.shared) return;
  const bool is_load = !request.write && !request.async;
  if (is_load && !its.loads) its.access_cost += kGlobalLatency;
  its.loads = its.loads || is_load;
  if (its.first_global == 0) its.first_global = request.address[__builtin_ctz(request.lanes)];
}

void Tracer::collective_ends(int warp, unsigned lanes, Location at) {
  const Counters& after = cta->counters;
  const uint64_t mma = after.mma - before_.mma;
  const uint64_t ldmatrix = after.ldmatrix - before_.ldmatrix;
  const Time cost = mma * kMma + (after.shared_wavefronts - before_.shared_wavefronts) * kSharedWavefront +
                    (after.shuffles - before_.shuffles + after.votes - before_.votes) * kShuffle;
  Warp& its = warps_[size_t(warp)];
  const bool whole = lanes == cta->warps[size_t(warp)].live();
  const Time begin = meet(its, warp, lanes, whole, at);
  set_time(its, lanes, begin + cost);
  if (cost == 0) return;
  const Kind kind = mma + ldmatrix > 0 ? Kind::kProducts : Kind::kWork;
  TraceEvent event = make_event(kind, warp, begin, begin + cost, at);
  event.mma = mma;
  event.ldmatrix = ldmatrix;
  if (whole) {
    append(its, event);
    its.met = event.end;
  } else {
    add_partial(its, event, lanes);
  }
}

void Tracer::product_issued(int warp, int columns, unsigned group, Location at) {
  Warp& its = warps_[size_t(warp)];
  const Time now = meet(its, warp, 0xffffffff, /*whole=*/true, at);
  const Time busy_until = its.products.empty() ? 0 : its.products.back().end;
  TraceEvent event = make_event(Kind::kWgmma, warp, std::max(now, busy_until), 0, at);
  event.end = event.begin + Time(columns / 8 * kWgmma);
  event.wgmma = 1;
  its.groups_done.resize(group + 1, busy_until);
  its.groups_done[group] = event.end;
  if (!its.products.empty() && busy_until == event.begin) {
    TraceEvent& last = its.products.back();
    if (same_place({last.file, last.line}, at)) {
      last.end = event.end;
      ++last.wgmma;
      return;
    }
  }
  its.products.push_back(event);
}

void Tracer::products_waited(int warp, unsigned groups, Location at) {
  Warp& its = warps_[size_t(warp)];
  const Time now = meet(its, warp, 0xffffffff, /*whole=*/true, at);
  const size_t known = std::min<size_t>(groups, its.groups_done.size());
  TraceEvent event = make_event(Kind::kWait, warp, now, now, at);
  if (known > 0) event.end = std::max(now, its.groups_done[known - 1]);
  event.op = "warpgroup_wait";
  append(its, event);
  its.met = event.end;
  set_time(its, 0xffffffff, event.end);
}

void Tracer::warp_exited(int warp) {
  unsigned lanes = 0;
  for (int lane = 0; lane < kWarpSize && warp * kWarpSize + lane < cta->num_threads; ++lane)
    lanes |= 1u << lane;
  meet(warps_[size_t(warp)], warp, lanes, /*whole=*/true, {});
}

// ---- Barriers

void Tracer::barrier_arrival(int barrier) {
  barriers_[size_t(barrier)].latest = std::max(barriers_[size_t(barrier)].latest, now());
}

void Tracer::barrier_reached(int barrier, int warp, unsigned waiting, const char* op, Location at) {
  Barrier& its = barriers_[size_t(barrier)];
  const bool whole = waiting == cta->warps[size_t(warp)].live();
  const Time time = meet(warps_[size_t(warp)], warp, waiting, whole, at);
  TraceEvent event = make_event(Kind::kWait, warp, time, time, at);
  event.op = op;
  event.barrier = barrier;
  its.waiting.push_back({waiting, event});
  its.latest = std::max(its.latest, time);
}

void Tracer::barrier_completed(int barrier, bool everyone) {
  Barrier& its = barriers_[size_t(barrier)];
  if (everyone) {  // those that have exited count as arrived
    for (const Warp& warp : warps_) {
      its.latest = std::max(its.latest, *std::max_element(warp.now.begin(), warp.now.end()));
    }
  }
  for (Barrier::Waiting& waiting : its.waiting) {
    Warp& warp = warps_[size_t(waiting.event.warp)];
    waiting.event.end = its.latest;
    append(warp, waiting.event);
    warp.met = its.latest;
    set_time(warp, waiting.lanes, its.latest);
  }
  its = {};
}

// ---- Mbarriers and copies

// When that phase of the mbarrier completes, as far as it is known.
Tracer::Time& Tracer::completes(int number, uint64_t phase) {
  if (completes_.size() <= size_t(number)) completes_.resize(size_t(number) + 1);
  std::vector<Time>& phases = completes_[size_t(number)];
  if (phases.size() <= phase) phases.resize(phase + 1);
  return phases[phase];
}

void Tracer::lane_event(TraceEvent event, Time end) {
  event.begin = now();
  event.end = now() = end;
  add_partial(warps_[size_t(self->warp)], event, 1u << self->lane);
}

void Tracer::mbarrier_arrival(int number, int64_t announced_bytes, Location at) {
  const uint64_t phase = (*cta->mbarriers)[number].phase;
  completes(number, phase) = std::max(completes(number, phase), now());
  TraceEvent event = make_mbarrier_event(Kind::kArrival, number, phase, at);
  event.bytes = announced_bytes;
  lane_event(event, now());
}

void Tracer::mbarrier_passed(int number, Location at) {
  const uint64_t completed = (*cta->mbarriers)[number].phase;
  TraceEvent event = make_mbarrier_event(Kind::kWait, number, completed == 0 ? 0 : completed - 1, at);
  event.initial = completed == 0;
  lane_event(event, event.initial ? now() : std::max(now(), completes(number, event.phase)));
}

void Tracer::copy_issued(const Copy& copy) {
  TraceEvent event = copy.is_load() ? make_mbarrier_event(Kind::kIssue, copy.mbarrier, copy.phase, copy.at)
                                    : make_event(Kind::kIssue, self->warp, 0, 0, copy.at);
  event.store = !copy.is_load();
  event.bytes = int64_t(copy.bytes);
  event.global = copy.map.base;
  event.shared_offset = copy.shared - uintptr_t(cta->smem);
  std::copy(std::begin(copy.origin.at), std::end(copy.origin.at), event.origin);
  std::copy(std::begin(copy.map.box), std::end(copy.map.box), event.box);
  lane_event(event, now() + kCopyIssue);

  Queue& its = queue();
  Time& busy_until = event.store ? its.stores_busy_until : its.loads_busy_until;
  busy_until = std::max(busy_until, now()) + (copy.bytes + kCopyBytesPerUnit - 1) / kCopyBytesPerUnit;
  event.kind = Kind::kCopy;
  event.begin = now();
  event.end = busy_until + kCopyLatency;
  copies_.push_back(event);
  if (event.store) {
    its.stores.push_back({copy.group, busy_until});
  } else {
    completes(copy.mbarrier, copy.phase) = std::max(completes(copy.mbarrier, copy.phase), event.end);
  }
}

// One event for what all lanes do alike, whoever comes first.
void Tracer::lane_copy_issued(const LaneCopy& copy, Location at) {
  const Time lands = now() + kCopyLatency;
  std::vector<Time>& groups_land = queue().groups_land;
  groups_land.resize(copy.group + 1);
  groups_land[copy.group] = lands;

  TraceEvent event = make_event(Kind::kCopy, self->warp, now(), lands, at);
  event.group = copy.group;
  event.shared_offset = uintptr_t(copy.shared) - uintptr_t(cta->smem);
  event.global = copy.global;
  const auto is_same = [&](const TraceEvent& other) {
    return other.group == event.group && same_place({other.file, other.line}, at);
  };
  const auto found = std::find_if(lane_copies_.rbegin(), lane_copies_.rend(), is_same);
  TraceEvent& all = found != lane_copies_.rend() ? *found : lane_copies_.emplace_back(event);
  all.warp = std::min(all.warp, event.warp);
  all.begin = std::min(all.begin, event.begin);
  all.end = std::max(all.end, event.end);
  all.shared_offset = std::min(all.shared_offset, event.shared_offset);
  if (all.global == nullptr || (event.global != nullptr && event.global < all.global))
    all.global = event.global;
  all.bytes += kChunkBytes;
}

void Tracer::lane_copies_waited(unsigned groups, Location at) {
  TraceEvent event = make_event(Kind::kWait, self->warp, 0, 0, at);
  event.op = "cp_async_wait";
  const std::vector<Time>& groups_land = queue().groups_land;
  Time until = now();
  for (size_t i = 0; i < std::min<size_t>(groups, groups_land.size()); ++i)
    until = std::max(until, groups_land[i]);
  lane_event(event, until);
}

void Tracer::stores_waited(unsigned groups, Location at) {
  TraceEvent event = make_event(Kind::kWait, self->warp, 0, 0, at);
  event.op = "tma_store_wait_read";
  Time until = now();
  for (const Store& store : queue().stores) {
    if (store.group < groups) until = std::max(until, store.read);
  }
  lane_event(event, until);
}

}  // namespace emulator
