// Who runs next: lanes of a warp, warps of a CTA, CTAs on host threads. And what a launch may ask for.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <climits>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "common/emulator/async_products.h"
#include "common/emulator/cluster_state.h"
#include "common/emulator/copy_engine.h"
#include "common/emulator/core.h"
#include "common/emulator/counters.h"
#include "common/emulator/cta_order.h"
#include "common/emulator/global_races.h"
#include "common/emulator/headway.h"
#include "common/emulator/lane_copies.h"
#include "common/emulator/mbarrier_table.h"
#include "common/emulator/register_pool.h"
#include "common/emulator/shared_layout.h"
#include "common/emulator/shared_races.h"
#include "common/emulator/tile_layouts.h"
#include "common/emulator/tracer.h"

namespace emulator {

// The built-in variables of cuda.h and launch.h, which declare them const.
namespace cuda {
constinit thread_local uint3 threadIdx EMULATOR_FAST_TLS = {};
constinit thread_local uint3 blockIdx EMULATOR_FAST_TLS = {};
constinit thread_local uint3 blockDim EMULATOR_FAST_TLS = {};
constinit thread_local uint3 gridDim EMULATOR_FAST_TLS = {};
constinit thread_local unsigned char* smem EMULATOR_FAST_TLS = nullptr;
}  // namespace cuda

constinit thread_local Cta* cta EMULATOR_FAST_TLS = nullptr;
constinit thread_local Fiber* self EMULATOR_FAST_TLS = nullptr;
constinit thread_local bool has_doubtful_write EMULATOR_FAST_TLS = false;

Options& options() {
  static Options the_options;
  return the_options;
}

// ---- Fibers

namespace {

std::atomic<const std::atomic<bool>*> cancel_flag = nullptr;

// By the running thread.
void abandon_if_cancelled() {
  if (is_cancelled()) [[unlikely]]
    abandon_cta();
}

void enter(Fiber& fiber) {
  self = &fiber;
  cuda::threadIdx = fiber.thread_idx;
  cta->running_warp = fiber.warp;
  // In plain mode, too, something of what it reads is looked at: see headway.h.
  if (++cta->counters.switches % 4096 == 0) windows.global[0] = windows.global[1] = Window();
}

void switch_to(Fiber& next) {
  Fiber& me = *self;
  enter(next);
  switch_context(me.context, next.context);
}

// It goes on only when somebody wakes it, or never.
void stop(Fiber& fiber, State state) {
  fiber.state = state;
  Warp& warp = cta->warps[size_t(fiber.warp)];
  warp.ready &= ~(1u << fiber.lane);
  if (warp.ready == 0) cta->ready_warps &= ~(1u << fiber.warp);
}

// The lowest set bit, or a random one.
int pick_bit(unsigned bits) {
  if (!cta->options.shuffle) return __builtin_ctz(bits);
  const unsigned shift = unsigned(cta->random.next()) & 31;
  const unsigned rotated = (bits >> shift) | (bits << ((32 - shift) & 31));
  return (__builtin_ctz(rotated) + int(shift)) & 31;
}

// In plain mode the hooks may let accesses to shared and global memory pass. Otherwise each one is looked at.
void set_windows() {
  const Options& options = cta->options;
  const bool plain = !options.shuffle && !options.race_detector && !options.count;
  windows = {};
  if (plain) windows.shared = Window(uintptr_t(cta->smem), cta->smem_bytes);
}

// From now on its fibers run. Only ever while the emulator's own code runs.
void make_current(Cta& c) {
  cta = &c;
  cuda::blockIdx = c.block_idx;
  cuda::smem = c.smem + (c.launch->layout != nullptr ? c.launch->layout->dynamic_begin() : 0);
  set_windows();
}

// Lanes that wait for room in their logs. Whoever's log ran empty can go on.
void resume_full_logs() {
  for (int w = 0; w < cta->num_warps; ++w) {
    Warp& warp = cta->warps[size_t(w)];
    if (warp.log_full == 0) continue;
    cta->log->count_warp(w);
    for (const int lane : Bits{warp.log_full}) {
      Fiber& fiber = cta->fiber(w, lane);
      if (cta->log->full(fiber)) continue;
      warp.log_full &= ~(1u << fiber.lane);
      wake(fiber);
    }
  }
}

// Now and then, and when the current CTA cannot: to another one of its cluster in which somebody can run.
[[gnu::noinline]] void change_cta() {
  const std::vector<Cta*>& ctas = cta->cluster->ctas;
  const bool shuffle = cta->options.shuffle;
  if (cta->ready_warps != 0 && !(shuffle && cta->random.one_in(16))) return;
  const size_t first = shuffle ? size_t(cta->random.next()) : size_t(cta->rank + 1);
  for (size_t i = 0; i < ctas.size(); ++i) {
    make_current(*ctas[(first + i) % ctas.size()]);
    if (cta->ready_warps == 0) resume_full_logs();
    if (cta->ready_warps != 0) return;
  }
}

// Nobody can run: late copies are done now, and waits that need not succeed are given up.
[[gnu::noinline]] void let_somebody_run() {
  for (Cta* const one : cta->cluster->ctas) {
    make_current(*one);
    while (cta->ready_warps == 0 && cta->copies->finish_a_load()) {
    }
    if (cta->ready_warps != 0) return;
  }
  for (Cta* const one : cta->cluster->ctas) {
    make_current(*one);
    if (cta->mbarriers->time_out()) return;
  }
}

// Stays with the running warp as long as it can: that is fast, and easy to follow. Makes its CTA the current
// one. Null: nobody can run.
Fiber* pick() {
  pass_turn();
  cta->copies->pass_moment();
  cta->lane_copies->pass_moment();
  cta->products->pass_moment();
  if (cta->ready_warps == 0) resume_full_logs();
  if (cta->has_neighbours) [[unlikely]]
    change_cta();
  if (cta->ready_warps == 0) [[unlikely]] {
    let_somebody_run();
    if (cta->ready_warps == 0) return nullptr;
  }
  int warp = cta->running_warp;
  const bool leave = cta->options.shuffle && cta->random.one_in(16);
  if (leave || cta->warps[size_t(warp)].ready == 0) warp = pick_bit(cta->ready_warps);
  return &cta->fiber(warp, pick_bit(cta->warps[size_t(warp)].ready));
}

// The next ready fiber in a fixed round: everybody gets a turn, whatever the others do.
Fiber* next_in_turn() {
  const std::vector<Cta*>& ctas = cta->cluster->ctas;
  const int start = cta->rank * cta->num_threads + self->warp * kWarpSize + self->lane;
  const int count = int(ctas.size()) * cta->num_threads;
  for (int step = 1; step <= count; ++step) {
    const int next = (start + step) % count;
    Cta& its = *ctas[size_t(next / cta->num_threads)];
    Fiber& fiber = its.fibers[size_t(next % cta->num_threads)];
    if (fiber.state != State::kReady) continue;
    if (&its != cta) make_current(its);
    return &fiber;
  }
  return self;
}

}  // namespace

void cancel_by(const std::atomic<bool>* flag) { cancel_flag = flag; }

bool is_cancelled() {
  const std::atomic<bool>* const flag = cancel_flag.load(std::memory_order_relaxed);
  return flag != nullptr && flag->load(std::memory_order_relaxed);
}

bool is_coordinate(uintptr_t address) {
  for (const cuda::uint3* variable : {&cuda::threadIdx, &cuda::blockIdx, &cuda::blockDim, &cuda::gridDim}) {
    if (address - uintptr_t(variable) < sizeof(*variable)) return true;
  }
  return address - uintptr_t(&cuda::smem) < sizeof(cuda::smem);
}

std::string describe_block(const Cta& which) {
  const cuda::uint3& block = which.block_idx;
  return "block (" + std::to_string(block.x) + ", " + std::to_string(block.y) + ", " +
         std::to_string(block.z) + ")";
}

std::string describe_thread(const Fiber& fiber) {
  return describe_block(cta_of(fiber)) + " warp " + std::to_string(fiber.warp) + " lane " +
         std::to_string(fiber.lane);
}

void abandon_cta() {
  self->context.finished = true;
  switch_context(self->context, cta->cluster->host);
  __builtin_unreachable();
}

void park(State state) {
  abandon_if_cancelled();
  cta->cluster->goes_on();
  self->in_vain = 0;
  stop(*self, state);
  Warp& warp = cta->warps[size_t(self->warp)];
  if (warp.ready == 0) answer_active_mask(warp);
  Fiber* next = pick();
  if (next == nullptr) report_deadlock();
  if (next != self) switch_to(*next);
}

void yield() {
  abandon_if_cancelled();
  Fiber* next = cta->options.shuffle ? pick() : next_in_turn();
  if (next != self) switch_to(*next);
}

void poll() {
  // What it spins for may come from a thread that waits for a copy, and copies may be late until nobody can
  // run; or from a lane of its own warp in __activemask.
  if (++self->polls % 1024 == 0) {
    cta->copies->finish_a_load();
    answer_active_mask(cta->warps[size_t(self->warp)]);
    // Or from a CTA that was given up, and the launch's report is that one's.
    if (cta->launch->failed_place < cta->cluster->place) abandon_cta();
  }
  if (self->polls % 16 == 0) yield();
}

// ---- CTAs

namespace {

void fiber_main() {
  fiber_started();
  Fiber& me = *self;
  windows.stack = Window(uintptr_t(me.context.stack), kStackBytes);
  // From its own stack it reads them without a call of the emulator that goes deep: the poison below remains.
  const size_t bytes = cta->launch->argument_bytes;
  constexpr size_t kAlignment = 64;
  void* const arguments = __builtin_alloca_with_align(bytes, kAlignment * CHAR_BIT);
  cta->launch->body(std::memcpy(arguments, cta->launch->arguments, bytes));
  windows.stack = kEverything;
  if (has_doubtful_write) settle_doubtful_write();
  abandon_if_cancelled();
  cta->cluster->goes_on();
  stop(me, State::kExited);
  cta->warps[size_t(me.warp)].exited |= 1u << me.lane;
  --cta->num_live;
  cta->copies->check_exit(me);
  cta->products->check_exit(me);
  leave_rendezvous(me);
  cta->cluster->barrier.exit();
  if (cta->num_live == 0) {
    while (cta->copies->finish_a_load()) {
    }
    cta->mbarriers->check_exit(me);
    cta->registers->check_exit(me);
    if (cta->options.race_detector) cta->races->check_exit(me);
    if (cta->cluster->all_exited()) abandon_cta();
  }
  Fiber* next = pick();
  if (next == nullptr) report_deadlock();
  me.context.finished = true;
  switch_to(*next);
  __builtin_unreachable();
}

void prepare_thread(int index) {
  const cuda::dim3& block = cta->launch->block;
  const unsigned i = unsigned(index);
  Fiber& fiber = cta->fibers[size_t(index)];
  fiber = {};
  fiber.thread_idx = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
  fiber.warp = index / kWarpSize;
  fiber.lane = index % kWarpSize;
  fiber.barrier_id = -1;
  prepare_fiber(fiber.context, cta->stacks[index], index, int(cta->options.poison), fiber_main);
  wake(fiber);
}

// In one cluster after the other, and in that by rank: x counts fastest in both.
cuda::uint3 block_index(const Launch& launch, uint64_t index) {
  const auto at = [](uint64_t i, unsigned x, unsigned y) {
    return cuda::uint3{unsigned(i % x), unsigned(i / x % y), unsigned(i / x / y)};
  };
  const cuda::dim3& grid = launch.grid;
  if (launch.program == nullptr) return at(index, grid.x, grid.y);
  const cuda::dim3& size = launch.program->cluster;
  const uint64_t count = uint64_t(size.x) * size.y * size.z;
  const cuda::uint3 cluster = at(index / count, grid.x / size.x, grid.y / size.y);
  const cuda::uint3 in_it = at(index % count, size.x, size.y);
  return {cluster.x * size.x + in_it.x, cluster.y * size.y + in_it.y, cluster.z * size.z + in_it.z};
}

void start_cta(Cta& c, uint64_t index) {
  c.block_idx = block_index(*c.launch, index);
  c.smem_bytes = c.launch->layout != nullptr ? c.launch->layout->bytes() : c.launch->smem_bytes;
  make_current(c);
  c.index = index;
  c.num_live = c.num_threads;
  c.running_warp = 0;
  c.ready_warps = 0;
  c.has_turn = false;
  c.meetings = 0;
  c.random.state = Random{c.options.seed}.next() ^ Random { ~index }.next();
  c.warps.assign(size_t(c.num_warps), Warp{});
  for (int i = c.num_threads; i < c.num_warps * kWarpSize; ++i) {
    c.warps[size_t(i / kWarpSize)].exited |= 1u << (i % kWarpSize);
  }
  reset_rendezvous();
  for (int i = 0; i < c.num_threads; ++i) prepare_thread(i);
  std::memset(c.smem, int(c.options.poison), c.smem_bytes);
  poison_static_shared();
  c.recent_reads.forget();
  if (c.options.count) c.log->start_cta(c.num_threads);
  if (c.options.race_detector) {
    c.races->start_cta();
    c.launch->global_races->start_cta();
  }
  c.mbarriers->start_cta();
  c.copies->start_cta();
  c.lane_copies->start_cta();
  c.registers->start_cta();
  c.products->start_cta();
  c.reads->start(c.launch->memory.size());
  c.reads->headway = 0;
  Trace* const trace = c.options.trace;
  if (trace != nullptr && index == c.options.trace_cta &&
      std::pair(trace->smem_bytes, trace->num_warps) < std::pair(c.smem_bytes, c.num_warps)) {
    *trace = {};
    c.tracer = std::make_unique<Tracer>(*trace);
  }
}

// `first`: the index of its first CTA.
void run_cluster(Cluster& cluster, uint64_t first) {
  cluster.report.reset();
  cluster.barrier.start(int(cluster.ctas.size()) * cluster.ctas[0]->num_threads);
  for (Cta* c : cluster.ctas) start_cta(*c, first + uint64_t(c->rank));
  has_doubtful_write = false;  // of a CTA that was given up
  make_current(*cluster.ctas[0]);
  Fiber* fiber = pick();
  enter(*fiber);
  switch_context(cluster.host, fiber->context);
  self = nullptr;
  for (Cta* c : cluster.ctas) {
    cta = c;
    if (c->tracer != nullptr && cluster.report == nullptr) c->tracer->finish();
    c->tracer.reset();
  }
}

// ---- Launches

// IEEE 754's, whatever the caller's is, e.g. on XLA's threads, which take subnormal numbers for zero. Threads
// that are started meanwhile have it, too.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&before_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t before_;
};

// Never destroyed: a thread that outlives main() may still run a kernel.
std::mutex& launch_mutex = *new std::mutex;  // one launch at a time
Counters counters_of_last_launch;

// Cta objects keep stacks and shared memory; they are used again by later launches.
std::vector<std::unique_ptr<Cta>>& ctas = *new std::vector<std::unique_ptr<Cta>>;

Cta& prepare_cta(size_t host_thread, const Launch& launch) {
  while (ctas.size() <= host_thread) ctas.push_back(std::make_unique<Cta>());
  Cta& c = *ctas[host_thread];
  c.launch = &launch;
  c.options = options();
  if (c.options.trace != nullptr) c.options.count = true;  // what is counted is what costs time
  c.num_threads = launch.num_threads();
  c.num_warps = (c.num_threads + kWarpSize - 1) / kWarpSize;
  c.stacks.reserve(c.num_threads);
  c.fibers.resize(size_t(c.num_warps * kWarpSize));
  if (c.options.race_detector) {
    c.races->start_launch();
    c.layouts->start_launch();
  }
  return c;
}

Cluster prepare_cluster(size_t host_thread, const Launch& launch) {
  Cluster cluster;
  const size_t size = size_t(launch.cluster_size);
  for (size_t rank = 0; rank < size; ++rank) {
    cluster.ctas.push_back(&prepare_cta(host_thread * size + rank, launch));
    cluster.ctas.back()->rank = int(rank);
    cluster.ctas.back()->has_neighbours = size > 1;
  }
  return cluster;
}

// Every stack is two mappings, of which Linux allows a process 65530 by default.
constexpr uint64_t kMostCooperativeThreads = 24576;

// Clusters that may be under way at a time.
size_t most_at_once(const Launch& launch) {
  const int mappable = std::max(16384 / (launch.num_threads() * launch.cluster_size), 1);
  return size_t(std::min<uint64_t>(uint64_t(mappable), launch.num_clusters()));
}

size_t choose_host_threads(const Launch& launch) {
  const int wanted =
      options().host_threads > 0 ? options().host_threads : int(std::thread::hardware_concurrency());
  return std::min(size_t(std::max(wanted, 1)), most_at_once(launch));
}

// Of clusters that take turns: at first, as many as there are SMs, and when these wait for others. CTAs of
// steps wait for a few others; a program may have a small grid meet as a whole.
constexpr size_t kFirstSlots = 4;
size_t most_slots(const Launch& launch) { return launch.program != nullptr ? 64 : 16; }

}  // namespace

// Those of a launch, each with a cluster under way.
class HostThreads {
 public:
  HostThreads(const Launch& launch, const StartOrder& order) : launch_(launch), order_(order) {}
  ~HostThreads() { join(); }

  // Throws Report, unless Options::reports receives them.
  void run(size_t count);
  // By a kernel's thread: one more, unless there are so many. Are there so many now?
  bool grow(size_t count);
  bool all_stand_still(uint64_t num_suspicions, uint64_t place);
  uint64_t num_not_started() const;

 private:
  void add(size_t most);  // one more, unless there are so many
  void work(Cluster& cluster);
  void given_up(Cluster& cluster);
  void stop();
  void join();
  void hand_over_reports();

  const Launch& launch_;
  const StartOrder& order_;
  std::atomic<uint64_t> next_place_ = 0;
  std::atomic<size_t> num_threads_ = 0;
  std::mutex mutex_;              // protects the rest
  std::deque<Cluster> clusters_;  // one for each thread, the caller's first
  std::vector<std::jthread> threads_;
  std::unique_ptr<Report> report_;
  Counters counters_;
};

void HostThreads::run(size_t count) {
  clusters_.push_back(prepare_cluster(0, launch_));
  num_threads_ = 1;
  try {
    while (num_threads_ < count) add(count);
  } catch (...) {
    stop();
    throw;
  }
  work(clusters_[0]);
  join();
  if (is_cancelled()) throw std::system_error(std::make_error_code(std::errc::operation_canceled));
  counters_of_last_launch = counters_;
  if (options().each_launch != nullptr) options().each_launch->push_back(counters_);
  if (options().reports != nullptr) return hand_over_reports();
  if (report_ != nullptr) throw *report_;
}

void HostThreads::hand_over_reports() {
  std::vector<NotedReport> noted;
  for (Cluster& cluster : clusters_) std::ranges::move(cluster.noted, std::back_inserter(noted));
  hand_over(std::move(noted), *options().reports);
}

bool HostThreads::grow(size_t count) {
  try {
    add(std::min(count, most_at_once(launch_)));
  } catch (const std::exception&) {
    // No memory, or no thread. It goes on with those that there are.
  }
  return num_threads_ >= count;
}

uint64_t HostThreads::num_not_started() const {
  return launch_.num_clusters() - std::min<uint64_t>(next_place_, launch_.num_clusters());
}

bool HostThreads::all_stand_still(uint64_t num_suspicions, uint64_t place) {
  const bool may_grow = num_threads_ < std::min(most_slots(launch_), most_at_once(launch_));
  if (num_not_started() > 0 && may_grow) return false;
  const std::lock_guard lock(mutex_);
  const bool all = std::ranges::all_of(clusters_, [&](const Cluster& cluster) {
    const uint64_t standing = *cluster.standing;
    return standing == kHasEnded || (standing == num_suspicions && cluster.place >= place);
  });
  // If they wait for one that was given up, the launch's report is that one's.
  return all && launch_.failed_place == UINT64_MAX;
}

void HostThreads::add(size_t most) {
  const std::lock_guard lock(mutex_);
  if (num_threads_ >= most) return;
  Cluster& cluster = clusters_.emplace_back(prepare_cluster(num_threads_, launch_));
  threads_.emplace_back([this, &cluster] { work(cluster); });
  ++num_threads_;
}

void HostThreads::work(Cluster& cluster) {
  const SignalStack signal_stack;
  cuda::blockDim = {launch_.block.x, launch_.block.y, launch_.block.z};
  cuda::gridDim = {launch_.grid.x, launch_.grid.y, launch_.grid.z};
  for (Cta* c : cluster.ctas) {
    c->cluster = &cluster;
    c->counters = {};
  }
  while (!is_cancelled() && (cluster.place = next_place_++) < launch_.num_clusters()) {
    run_cluster(cluster, order_.cluster_at(cluster.place) * cluster.ctas.size());
    if (const auto report_progress = cluster.ctas[0]->options.progress) report_progress();
    if (cluster.report != nullptr) given_up(cluster);
    if (launch_.turns != nullptr) launch_.turns->exit(cluster.place);
  }
  *cluster.standing = kHasEnded;
  windows = {};
  cta = nullptr;
  const std::lock_guard lock(mutex_);
  for (const Cta* c : cluster.ctas) counters_ += c->counters;
}

// No new clusters, unless all reports are wanted; those that run already are finished. They include all that
// come before this one, so that the first faulty one is reported, whatever the number of host threads.
void HostThreads::given_up(Cluster& cluster) {
  if (options().reports == nullptr) stop();
  const std::lock_guard lock(mutex_);
  if (cluster.place > launch_.failed_place) return;
  launch_.failed_place = cluster.place;
  report_ = std::move(cluster.report);
}

void HostThreads::stop() {
  const uint64_t num_started = next_place_.exchange(launch_.num_clusters());
  if (launch_.turns != nullptr) launch_.turns->stop(num_started);
}

void HostThreads::join() {
  for (;;) {
    std::jthread last;  // joined when it goes out of scope
    const std::lock_guard lock(mutex_);
    if (threads_.empty()) return;
    last = std::move(threads_.back());
    threads_.pop_back();
  }
}

bool all_stand_still(uint64_t num_suspicions) {
  return cta->launch->host_threads->all_stand_still(num_suspicions, cta->cluster->place);
}

uint64_t num_not_started() { return cta->launch->host_threads->num_not_started(); }

void take_turn() {
  pass_turn();
  // Many of them may mean that it spins: for a CTA that was given up, or for one that has not started.
  const Launch& launch = *cta->launch;
  const bool often = ++cta->meetings % 16384 == 0;
  if (often && launch.failed_place != UINT64_MAX) abandon_cta();
  if (launch.turns != nullptr) {
    launch.turns->take(cta->cluster->place);
    cta->has_turn = true;
  } else if (often) {
    launch.host_threads->grow(most_slots(launch));
  }
}

void pass_turn() {
  if (!cta->has_turn) return;
  cta->has_turn = false;
  Turns& turns = *cta->launch->turns;
  const size_t more = turns.num_slots() + 1, most = most_slots(*cta->launch);
  if (turns.all_wait() && more <= most && cta->launch->host_threads->grow(more)) turns.add_slot();
  turns.pass();
}

constexpr size_t kWindowBytes = 1 << 18;
constexpr size_t kMappedBytes = SharedLayout::kReservedBytes + kMaxSmemBytes + 2 * kSmemGuardBytes;

Cta::Cta()
    : log(std::make_unique<AccessLog>()),
      races(std::make_unique<SharedRaces>()),
      layouts(std::make_unique<TileLayouts>()),
      mbarriers(std::make_unique<MbarrierTable>()),
      copies(std::make_unique<CopyEngine>()),
      lane_copies(std::make_unique<LaneCopies>()),
      registers(std::make_unique<RegisterPool>()),
      products(std::make_unique<AsyncProducts>()),
      reads(std::make_unique<ReadExtents>()) {
  // Of a pointer to shared memory, the lower bits are its address, as on a GPU: ThunderKittens puts them into
  // the descriptors of wgmma.
  const size_t mapped = kWindowBytes + kMappedBytes;
  void* const mapping = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  const uintptr_t begin = uintptr_t(mapping), end = begin + mapped;
  const uintptr_t window = (begin + kSmemGuardBytes + kWindowBytes - 1) / kWindowBytes * kWindowBytes;
  const uintptr_t used = window - kSmemGuardBytes;
  if (used > begin) munmap(mapping, used - begin);
  if (end > used + kMappedBytes)
    munmap(reinterpret_cast<void*>(used + kMappedBytes), end - used - kMappedBytes);
  smem = reinterpret_cast<unsigned char*>(window) + SharedLayout::kReservedBytes;
  if (mprotect(reinterpret_cast<void*>(window), SharedLayout::kReservedBytes + kMaxSmemBytes,
               PROT_READ | PROT_WRITE) != 0)
    throw std::bad_alloc();
}

Cta::~Cta() { munmap(smem - SharedLayout::kReservedBytes - kSmemGuardBytes, kMappedBytes); }

Counters last_counters() {
  const std::lock_guard lock(launch_mutex);
  return counters_of_last_launch;
}

void check_launch(cuda::dim3 grid, cuda::dim3 block, size_t smem_bytes, int cluster_size) {
  if (self != nullptr) {
    fail(Bug::kLaunch, *self) << "a kernel cannot launch a kernel";
  }
  const auto refuse = [](const std::string& why) { throw Report(Bug::kLaunch, "cannot launch: " + why); };
  const auto size = [](cuda::dim3 d) {
    return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
  };
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) refuse("grid " + size(grid) + " is empty");
  if (grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
    refuse("grid " + size(grid) + " is beyond (2147483647, 65535, 65535)");
  }
  if (block.x == 0 || block.y == 0 || block.z == 0) refuse("block " + size(block) + " is empty");
  if (block.x > 1024 || block.y > 1024 || block.z > 64 ||
      block.x * block.y * block.z > unsigned(kMaxThreads)) {
    refuse("block " + size(block) + " is beyond (1024, 1024, 64) or has more than 1024 threads");
  }
  if (smem_bytes > kMaxSmemBytes) {
    refuse(std::to_string(smem_bytes) + " bytes of shared memory are more than the " +
           std::to_string(kMaxSmemBytes) + " that a CTA can have");
  }
  if (cluster_size != 1 && cluster_size != 2 && cluster_size != 4 && cluster_size != 8) {
    refuse("a cluster of " + std::to_string(cluster_size) + " CTAs; it has 1, 2, 4 or 8");
  }
  if (grid.x % unsigned(cluster_size) != 0) {
    refuse("grid.x is " + std::to_string(grid.x) + ", not a multiple of the cluster's " +
           std::to_string(cluster_size) + " CTAs");
  }
}

namespace {

// Of a program's kernel: what it says itself, and what the launch says.
ProgramLaunch with_needs(const KernelNeeds& needs, const ProgramLaunch& asked, cuda::dim3 grid,
                         cuda::dim3 block) {
  const auto refuse = [](const std::string& why) { throw Report(Bug::kLaunch, "cannot launch: " + why); };
  ProgramLaunch launch = asked;
  if (needs.cluster != nullptr) launch.cluster = {needs.cluster->x, needs.cluster->y, needs.cluster->z};
  const cuda::dim3 cluster = launch.cluster;
  const unsigned size = cluster.x * cluster.y * cluster.z;
  if (size == 0 || size > unsigned(kMaxClusterSize))
    refuse("a cluster of " + std::to_string(size) + " CTAs; it has 1 to " + std::to_string(kMaxClusterSize));
  if (grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0)
    refuse("the grid is not a multiple of the cluster (" + std::to_string(cluster.x) + ", " +
           std::to_string(cluster.y) + ", " + std::to_string(cluster.z) + ")");
  if (!launch.cooperative) return launch;
  if (size > 1) refuse("the emulator runs no clusters in a cooperative launch");
  const uint64_t threads = uint64_t(grid.x) * grid.y * grid.z * block.x * block.y * block.z;
  if (threads > kMostCooperativeThreads)
    refuse("the emulator runs " + std::to_string(kMostCooperativeThreads) +
           " threads at a time, and this cooperative launch has " + std::to_string(threads));
  return launch;
}

// Where functions that the kernel may call begin: it itself, and those that its arguments point to.
std::vector<uintptr_t> roots_of(void (*body)(void*), const void* arguments, size_t bytes) {
  std::vector<uintptr_t> roots(bytes / sizeof(uintptr_t));
  std::memcpy(roots.data(), arguments, roots.size() * sizeof(uintptr_t));
  roots.push_back(reinterpret_cast<uintptr_t>(body));
  return roots;
}

}  // namespace

void run(cuda::dim3 grid, cuda::dim3 block, size_t smem_bytes, void (*body)(void*), void* arguments,
         size_t argument_bytes, int cluster_size, bool overlaps, const ProgramLaunch* program) {
  const std::lock_guard lock(launch_mutex);
  const DefaultArithmetic arithmetic;
  const FaultHandler fault_handler;
  std::optional<SharedLayout> layout;
  ProgramLaunch program_launch;
  if (program != nullptr) {
    const KernelNeeds needs = needs_of(roots_of(body, arguments, argument_bytes));
    program_launch = with_needs(needs, *program, grid, block);
    program = &program_launch;
    layout.emplace(needs.variables, smem_bytes);
    const cuda::dim3& together = program->cooperative ? grid : program->cluster;
    cluster_size = int(together.x * together.y * together.z);
  }
  Launch launch{grid,           block,        smem_bytes, body,    arguments,
                argument_bytes, cluster_size, overlaps,   program, global_memory()};
  if (layout) launch.layout = &*layout;
  std::optional<GlobalRaces> global_races;
  if (options().race_detector) launch.global_races = &global_races.emplace(launch);
  const StartOrder order(options(), launch.num_clusters());
  size_t num_host_threads = choose_host_threads(launch);
  std::optional<Turns> turns;
  if (options().shuffle) {
    const size_t num_slots = std::min(kFirstSlots, most_at_once(launch));
    num_host_threads = std::max(num_host_threads, num_slots);
    launch.turns = &turns.emplace(options().seed, launch.num_clusters(), num_slots);
  }
  WrittenPlaces written(launch.memory);
  launch.written = &written;
  HostThreads host_threads(launch, order);
  launch.host_threads = &host_threads;
  host_threads.run(num_host_threads);
}

}  // namespace emulator
