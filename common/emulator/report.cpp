// Words for what went wrong: who, and where in the source; and who waits for whom when no thread can proceed.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <span>
#include <sstream>

#include "common/emulator/async_products.h"
#include "common/emulator/cluster_state.h"
#include "common/emulator/core.h"
#include "common/emulator/headway.h"
#include "common/emulator/mbarrier_table.h"
#include "common/emulator/register_pool.h"
#include "common/emulator/shared_layout.h"

extern char** environ;

namespace emulator {
namespace {

std::string short_path(const std::string& path) {
  static const std::string root = EMULATOR_ROOT "/";  // the repository's, as objects name it
  static const std::string here = std::filesystem::current_path().string() + "/";
  std::string normal = std::filesystem::path(path).lexically_normal().string();
  for (const std::string& folder : {here, root}) {
    if (normal.starts_with(folder)) return normal.substr(folder.size());
  }
  while (normal.starts_with("../"))
    normal.erase(0, 3);  // from the build folder: ccache has such paths compiled
  return normal;
}

struct Module {
  std::string path;
  uintptr_t load_address;  // what was added to the addresses in the file
};

bool find_module(uintptr_t pc, Module& module) {
  Dl_info info;
  void* found = nullptr;
  if (dladdr1(reinterpret_cast<void*>(pc), &info, &found, RTLD_DL_LINKMAP) == 0 || found == nullptr)
    return false;
  const auto& loaded = *static_cast<link_map*>(found);
  // The program itself has no name here, and dladdr knows it only as argv[0].
  std::error_code error;
  const bool is_program = loaded.l_name[0] == '\0';
  module.path = is_program ? std::filesystem::read_symlink("/proc/self/exe", error).string() : loaded.l_name;
  module.load_address = loaded.l_addr;
  return true;
}

// What a program prints, run without a shell (paths need no quoting); empty when it cannot be run.
std::string output_of(const char* program, std::vector<std::string> arguments) {
  std::vector<char*> argv{const_cast<char*>(program)};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int error = posix_spawnp(&child, program, &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; error == 0 && (n = read(ends[0], buffer, sizeof(buffer))) > 0;)
    text.append(buffer, size_t(n));
  close(ends[0]);
  if (error == 0) waitpid(child, nullptr, 0);
  return text;
}

// addr2line -i prints a function and a file:line per inlined call, innermost first. A load inside __half's
// conversion is the kernel's doing: the first place outside the emulator's own headers is what the reader
// wants.
std::string first_place_outside(const std::string& frames) {
  std::istringstream lines(frames);
  std::string function, place, innermost;
  while (std::getline(lines, function) && std::getline(lines, place)) {
    const size_t colon = place.find(':');
    if (colon == std::string::npos || colon == 0 || place[0] == '?') continue;
    place = place.substr(0, place.find(" (discriminator"));
    place = short_path(place.substr(0, colon)) + place.substr(colon);
    if (innermost.empty()) innermost = place;
    // In a program of somebody's own these headers have their whole path.
    const auto is_in = [&](const char* folder) { return ("/" + place).find(folder) != std::string::npos; };
    if (!is_in("/common/emulator/") || is_in("/common/emulator/tests/")) return place;
  }
  return innermost;
}

std::string look_up(uintptr_t pc) {
  Module module;
  if (!find_module(pc, module)) return "pc " + describe_address(pc);
  const std::string offset = describe_address(pc - module.load_address);
  const std::string frames = output_of("addr2line", {"-C", "-f", "-i", "-e", module.path, offset});
  const std::string place = first_place_outside(frames);
  return place.empty() ? module.path + "+" + offset : place;
}

}  // namespace

bool same_place(Location a, Location b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string describe(Location at) { return short_path(at.file) + ":" + std::to_string(at.line); }

std::string describe(uintptr_t return_address) {
  static std::mutex mutex;
  static std::map<uintptr_t, std::string> known;
  const uintptr_t call =
      return_address - 1;  // the hook's caller continues on what may be the next line already
  const std::lock_guard lock(mutex);
  std::string& place = known[call];
  if (place.empty()) place = look_up(call);
  return place;
}

std::string describe(Place place) { return place.pc != 0 ? describe(place.pc) : describe(place.at); }

std::string describe_address(uintptr_t address) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%zx", size_t(address));
  return text;
}

std::string describe_lanes(unsigned lanes) {
  if (lanes == 0xffffffff) return "all lanes";
  std::string text = (lanes & (lanes - 1)) == 0 ? "lane" : "lanes";
  const char* separator = " ";
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if (((lanes >> lane) & 1) == 0) continue;
    int last = lane;
    while (last + 1 < kWarpSize && ((lanes >> (last + 1)) & 1) != 0) ++last;
    text += separator + std::to_string(lane);
    if (last > lane) text += "-" + std::to_string(last);
    separator = ", ";
    lane = last;
  }
  return text;
}

std::string describe_warps(int first, unsigned which) {
  std::string text = (which & (which - 1)) == 0 ? "warp" : "warps";
  const char* separator = " ";
  for (const int warp : Bits{which}) {
    text += separator + std::to_string(first + warp);
    separator = ", ";
  }
  return text;
}

std::string describe_shared(uintptr_t address) {
  const uintptr_t offset = address - uintptr_t(cta->smem);
  if (cta->launch->layout != nullptr && offset < kMaxSmemBytes) return cta->launch->layout->describe(offset);
  return offset < kMaxSmemBytes ? "smem + " + std::to_string(offset) : "a __shared__ variable";
}

// ---- Reports

Report::Report(Bug which, const std::string& message) : Report(rule_of(which), message) {}

bool Report::is_like(const Report& other) const {
  const auto pair = [](std::vector<std::string> of) {
    of.resize(2);
    std::ranges::sort(of);
    return of;
  };
  return rule == other.rule && pair(places) == pair(other.places);
}

namespace {

std::vector<unsigned> coordinates(const cuda::uint3& of) { return {of.x, of.y, of.z}; }

void note(const Report& report, uint64_t place, std::vector<NotedReport>& in) {
  const auto is_this = [&](const NotedReport& other) { return report.is_like(other.report); };
  if (in.size() <= kMostReports && std::ranges::none_of(in, is_this)) in.push_back({place, report});
}

void record_report(Report report) {
  Cluster& cluster = *cta->cluster;
  if (cta->options.reports != nullptr) note(report, cluster.place, cluster.noted);
  if (!report.goes_on) cluster.report = std::make_unique<Report>(std::move(report));
}

}  // namespace

bool is_news(const Rule& rule, const Place& first, const Place& second) {
  if (cta->options.reports == nullptr) return true;
  const auto key = [](const Place& place) {
    return place.pc != 0 ? place.pc : uintptr_t(place.at.file) ^ uintptr_t(place.at.line) << 48;
  };
  const auto [low, high] = std::minmax({key(first), key(second)});
  return cta->cluster->known.insert({uintptr_t(&rule), low, high}).second;
}

void hand_over(std::vector<NotedReport> noted, std::vector<Report>& to) {
  std::ranges::stable_sort(noted, {}, &NotedReport::place);
  std::vector<NotedReport> first;
  for (const NotedReport& one : noted) note(one.report, one.place, first);
  for (NotedReport& one : first) to.push_back(std::move(one.report));
}

ReportWriter::ReportWriter(const Rule& rule, const Fiber& who) : report_(rule, "") {
  windows.stack = kEverything;
  const Cta& its = cta_of(who);
  text_ = describe_thread(who) + ": ";
  report_.block = coordinates(its.block_idx);
  report_.thread = coordinates(who.thread_idx);
  report_.warp = who.warp;
  report_.lane = who.lane;
}

ReportWriter& ReportWriter::operator<<(const std::string& text) {
  text_ += text;
  return *this;
}

ReportWriter& ReportWriter::operator<<(const Place& place) {
  report_.places.push_back(describe(place));
  return *this << report_.places.back();
}

ReportWriter& ReportWriter::operator<<(const Address& address) {
  report_.address = address.text;
  return *this << address.text;
}

ReportWriter& ReportWriter::operator<<(Advice) {
  advice_begins_ = text_.size();
  return *this;
}

ReportWriter& ReportWriter::also(Location at) {
  others_.push_back(describe(at));
  return *this;
}

Report ReportWriter::finish() {
  Report report(*report_.rule, text_);
  report.places = std::move(report_.places);
  report.places.insert(report.places.end(), others_.begin(), others_.end());
  report.block = std::move(report_.block);
  report.thread = std::move(report_.thread);
  report.warp = report_.warp;
  report.lane = report_.lane;
  report.address = std::move(report_.address);
  report.advice = advice_begins_ < text_.size() ? text_.substr(advice_begins_) : report.rule->mend;
  std::string().swap(text_);  // no destructor frees them when the CTA is given up
  std::vector<std::string>().swap(others_);
  return report;
}

Failure::~Failure() {
  record_report(finish());
  abandon_cta();
}

Remark::~Remark() {
  const bool goes_on = cta->options.reports != nullptr;
  {
    Report report = finish();
    report.is_advice = is_advice_;
    report.goes_on = goes_on;
    record_report(std::move(report));
  }
  if (!goes_on) abandon_cta();
}

// ---- Deadlocks

namespace {

// "__syncthreads at kernel.cu:30, where 32 of 64 threads have arrived". Waits for an mbarrier: mbarrier.cpp.
std::string describe_wait(const Fiber& fiber) {
  if (fiber.state == State::kReady) {  // and reads in vain
    const bool is_global_memory = is_global(fiber.polled, 1);
    return "a loop at " + describe(fiber.polled_at) + ", which always reads " +
           std::to_string(fiber.polled_value) + " at " +
           (is_global_memory ? describe_address(fiber.polled) + " in global memory"
                             : describe_shared(fiber.polled));
  }
  std::string text = std::string(fiber.op) + " at " + describe(fiber.at);
  if (fiber.state == State::kBarrier) {
    const Barrier& barrier = cta->barriers[fiber.barrier_id];
    const int needed = barrier.count == kEveryone ? cta->num_live : barrier.count;
    if (fiber.barrier_id != 0) text += " on barrier " + std::to_string(fiber.barrier_id);
    text += ", where " + std::to_string(barrier.arrived) + " of " + std::to_string(needed) +
            " threads have arrived";
  } else if (fiber.state == State::kMbarrier) {
    return cta->mbarriers->describe_wait(fiber);
  } else if (fiber.state == State::kWgmmas) {
    return cta->products->describe_wait(fiber);
  } else if (fiber.state == State::kRegisters) {
    return cta->registers->describe_wait(fiber);
  } else if (fiber.state == State::kCluster) {
    return cta->cluster->barrier.describe_wait(fiber);
  } else {
    const Warp& warp = cta->warps[size_t(fiber.warp)];
    unsigned missing = fiber.mask & warp.live();
    for (const int lane : Bits{missing & warp.waiting}) {
      if (in_same_collective(fiber, cta->fiber(fiber.warp, lane))) missing &= ~(1u << lane);
    }
    text += ", for " + describe_lanes(missing);
  }
  return text;
}

// Who of the CTA waits where and for what, grouped.
std::string describe_waits() {
  std::map<std::string, std::map<int, unsigned>> groups;
  std::map<int, unsigned> exited;
  for (int i = 0; i < cta->num_threads; ++i) {
    const Fiber& fiber = cta->fibers[size_t(i)];
    auto& lanes = fiber.state == State::kExited ? exited : groups[describe_wait(fiber)];
    lanes[fiber.warp] |= 1u << fiber.lane;
  }
  const auto describe_threads = [](const std::map<int, unsigned>& warps) {
    std::string text;
    for (const auto& [warp, lanes] : warps) {
      text += (text.empty() ? "warp " : ", warp ") + std::to_string(warp);
      if (lanes != 0xffffffff) text += " " + describe_lanes(lanes);
    }
    return text;
  };
  std::string text;
  for (const auto& [wait, warps] : groups)
    text += " Waiting in " + wait + ": " + describe_threads(warps) + ".";
  if (!exited.empty()) text += " Exited: " + describe_threads(exited) + ".";
  return text;
}

// Of the running thread's cluster.
Report describe_deadlock() {
  const std::vector<Cta*>& ctas = cta->cluster->ctas;
  std::string text = describe_block(*ctas[0]);
  if (ctas.size() > 1) text += " to " + describe_block(*ctas.back()) + ", a cluster";
  text += ": deadlock, no thread can proceed.";
  std::vector<std::string> places;
  bool spins = false;
  for (Cta* const one : ctas) {
    const InCta there(*one);
    if (ctas.size() > 1) text += " In " + describe_block(*one) + ":";
    text += describe_waits();
    for (const Fiber& fiber : std::span(one->fibers).first(size_t(one->num_threads))) {
      if (fiber.state == State::kExited) continue;
      const bool in_loop = fiber.state == State::kReady;
      spins = spins || in_loop;
      const std::string place = in_loop ? describe(fiber.polled_at) : describe(fiber.at);
      if (std::ranges::count(places, place) == 0) places.push_back(place);
    }
  }
  if (const uint64_t others = num_not_started(); spins && others > 0) {
    text += " All that run beside it wait, too, and " + std::to_string(others * ctas.size()) +
            " CTAs have not started: the emulator runs no more at a time.";
  }
  Report report(rule_of(Bug::kDeadlock), text);
  report.places = std::move(places);
  report.block = coordinates(ctas[0]->block_idx);
  report.advice = report.rule->mend;
  return report;
}

}  // namespace

void report_deadlock() {
  record_report(describe_deadlock());
  abandon_cta();
}

}  // namespace emulator
