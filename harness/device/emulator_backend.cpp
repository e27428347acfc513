// The emulator as a place where steps run. What it says of a kernel is worded in common/emulator.
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string_view>
#include <thread>

#include "common/emulator/emulator.h"
#include "common/emulator/trace.h"
#include "harness/base/heartbeat.h"
#include "harness/device/backend.h"
#include "harness/device/trace_json.h"

namespace flashsteps {
namespace {

std::string host_cpu() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

// Of an access out of bounds in K or V whose page is an entry of the page table that no sequence has.
std::string foreign_page(const AttentionCall& call, const std::string& report) {
  const PageTable& table = call.page_table;
  const size_t at = report.find(" at 0x");
  if (table.pages == nullptr || at == std::string::npos) return "";
  const uintptr_t address = std::strtoull(&report[at + 4], nullptr, 16);
  for (const auto& [name, view] : {std::pair("K", call.k), {"V", call.v}}) {
    const double bytes = double(view.batch_stride) * double(element_bytes(call.kv_dtype()));
    const double page = std::floor((double(address) - double(uintptr_t(view.data))) / bytes);
    for (int b = 0; b < call.batch; ++b) {
      const int length = call.kv_lengths != nullptr ? call.kv_lengths[b] : call.seqlen_kv;
      for (int i = (length + table.page_size - 1) / table.page_size; i < table.max_pages; ++i) {
        const int entry = table.pages[int64_t(b) * table.max_pages + i];
        if (double(entry) == page)
          return "\nthat is in page " + std::to_string(entry) + " of " + name + ", entry [" +
                 std::to_string(b) + "][" + std::to_string(i) +
                 "] of the page table, which is behind the last page of sequence " + std::to_string(b) +
                 ": it has " + std::to_string(length) + " keys, in pages of " +
                 std::to_string(table.page_size);
      }
    }
  }
  return "";
}

class Emulator : public EmulatorBackend {
 public:
  void* allocate(size_t bytes) override { return emulator::allocate(bytes); }
  void* allocate_sparse(size_t bytes) override { return emulator::allocate_sparse(bytes); }
  void release(void* device) override { emulator::release(device); }
  void upload(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  uint64_t checksum(const void* device, size_t bytes) override {
    return std::hash<std::string_view>()({static_cast<const char*>(device), bytes});
  }
  size_t free_memory() const override {
    return size_t(sysconf(_SC_AVPHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
  }

  void set_mode(const EmulatorMode& mode) override {
    emulator::options() = {.async = mode.async == "early"  ? emulator::AsyncMode::kEarly
                                    : mode.async == "late" ? emulator::AsyncMode::kLate
                                                           : emulator::AsyncMode::kRandom,
                           .poison = emulator::Poison(uint16_t(mode.poison) >> 8),  // the same, by bytes
                           .shuffle = mode.hostile,
                           .last_cta_first = mode.last_cta_first,
                           .race_detector = mode.race_detector,
                           .count = mode.count,
                           .seed = mode.seed,
                           .progress = heartbeat,
                           .variables_are_constant = true,
                           .num_sms = num_sms_};
  }

  void set_num_sms(int num_sms) override {
    num_sms_ = num_sms != 0 ? num_sms : emulator::Options().num_sms;
    emulator::options().num_sms = num_sms_;
  }

  void run(const Step& step, const AttentionCall& call) override {
    counted_.clear();
    emulator::options().each_launch = &counted_;
    struct Done {
      ~Done() { emulator::options().each_launch = nullptr; }
    } afterwards;
    try {
      step.run(call, nullptr);
    } catch (const emulator::Report& report) {
      throw DeviceError(report.what() + foreign_page(call, report.what()), kind_of(report.bug),
                        /*device_lost=*/false);
    }
  }

  std::vector<Counters> counters() const override {
    static const std::set<std::string> not_recorded{"syncwarps", "votes", "atomics", "switches"};
    std::vector<Counters> kernels;
    for (const emulator::Counters& counters : counted_) {
      Counters& record = kernels.emplace_back();
      for (const auto& [name, value] : emulator::counter_fields()) {
        if (!not_recorded.contains(name)) record[name] = counters.*value;
      }
    }
    return kernels;
  }

  json trace(const Step& step, const AttentionCall& call, uint64_t cta) override {
    set_mode({});
    emulator::Trace trace;
    emulator::options().trace = &trace;
    emulator::options().trace_cta = cta;
    struct Untraced {
      ~Untraced() { emulator::options().trace = nullptr; }
    } afterwards;
    run(step, call);
    const std::string title = std::string(step.name) + ", CTA " + std::to_string(cta) + " (nominal time)";
    namespace units = emulator::trace_units;
    return {{"traceEvents", trace_events(trace, call, title)},
            {"otherData",
             {{"schema", "flashsteps-trace/1"},
              {"time",
               "nominal units, not measured: the emulator has no timing model. What follows from them "
               "is who waits for whom and what overlaps, not how long it takes"},
              {"units",
               {{"mma", units::kMma},
                {"wgmma", units::kWgmma},
                {"shared_wavefront", units::kSharedWavefront},
                {"global_sector", units::kGlobalSector},
                {"global_latency", units::kGlobalLatency},
                {"exponential", units::kExponential},
                {"shuffle", units::kShuffle},
                {"copy_issue", units::kCopyIssue},
                {"copy_latency", units::kCopyLatency},
                {"copy_bytes_per_unit", units::kCopyBytesPerUnit}}},
              {"step", step.name},
              {"cta", cta},
              {"warps", trace.num_warps}}}};
  }

  json device() const override {
    return {{"name", "emulator"},
            {"host_cpu", host_cpu()},
            {"host_threads", std::thread::hardware_concurrency()}};
  }

 private:
  static DeviceError::Kind kind_of(emulator::Bug bug) {
    switch (bug) {
      case emulator::Bug::kDeadlock:
        return DeviceError::Kind::kHang;
      case emulator::Bug::kSharedOutOfBounds:
      case emulator::Bug::kGlobalOutOfBounds:
      case emulator::Bug::kMisaligned:
        return DeviceError::Kind::kCrash;
      default:
        return DeviceError::Kind::kBug;
    }
  }

  std::vector<emulator::Counters> counted_;  // of the last run()
  int num_sms_ = emulator::Options().num_sms;
};

}  // namespace

std::unique_ptr<EmulatorBackend> make_emulator_backend() { return std::make_unique<Emulator>(); }

}  // namespace flashsteps
