// A trace as a file: what events are called, and on which track they are.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "harness/device/trace_json.h"
#include "harness/tests/support.h"

using namespace flashsteps;
using emulator::Trace;
using emulator::TraceEvent;
using nlohmann::json;
using Kind = TraceEvent::Kind;

namespace {

// Line 1 is empty.
const std::vector<std::string> kSource = {
    "",
    "// How it works. In two",
    "// sentences.",
    "__global__ void kernel() {",
    "  first();",
    "",
    "  // S = Q K^T.",
    "  mbarrier_wait(&shared.bar_full[next(stage, 1)], phase);  // waits",
    "  // Not a paragraph's first line.",
    "  second();",
    "",
    "  // No full stop",
    "",
    "  mbarrier_arrive(bars->empty + stage);",
    "  mbarrier_arrive(&bar_q);",
    "}",
};

}  // namespace

TEST_CASE("a phase is the first sentence of the comment that begins a paragraph") {
  const Source source(kSource);
  CHECK(source.phase(1) == "");
  CHECK(source.phase(3) == "How it works");
  CHECK(source.phase(5) == "How it works");
  CHECK(source.phase(8) == "S = Q K^T");
  CHECK(source.phase(10) == "S = Q K^T");
  CHECK(source.phase(14) == "No full stop");
  CHECK(source.phase(1000) == "No full stop");
  CHECK(Source({}).phase(5) == "");
  CHECK(Source::read("/nowhere/kernel.cu").phase(5) == "");

  CHECK(source.begins_phase(4));
  CHECK(source.begins_phase(8));
  CHECK_FALSE(source.begins_phase(5));
  CHECK_FALSE(source.begins_phase(10));  // behind a comment, but not a paragraph's first
  CHECK_FALSE(source.begins_phase(14));
}

TEST_CASE("an mbarrier is called what the source hands to the function") {
  const Source source(kSource);
  CHECK(source.first_argument(8, "mbarrier_") == "bar_full[next(stage, 1)]");
  CHECK(source.first_argument(14, "mbarrier_") == "empty + stage");
  CHECK(source.first_argument(15, "mbarrier_") == "bar_q");
  CHECK(source.first_argument(10, "mbarrier_") == "");
  CHECK(source.first_argument(99, "mbarrier_") == "");
}

TEST_CASE("events get names, tracks and arguments") {
  const std::string path =
      std::filesystem::temp_directory_path() / ("flashsteps_trace_" + std::to_string(getpid()) + ".cu");
  std::ofstream out(path);
  for (const std::string& line : kSource) out << line << "\n";
  out.close();

  std::vector<uint16_t> memory(4 * 64 * 64);
  const auto view = [&](int index) { return TensorView{&memory[size_t(index * 64 * 64)], 4096, 4096, 64}; };
  const AttentionCall call{.dtype = DType::kFp16,
                           .batch = 1,
                           .num_heads_q = 1,
                           .num_heads_kv = 1,
                           .seqlen_q = 64,
                           .seqlen_kv = 64,
                           .head_dim = 64,
                           .causal = false,
                           .softmax_scale = 1,
                           .q = view(0),
                           .k = view(1),
                           .v = view(2),
                           .o = view(3),
                           .lse = nullptr,
                           .kv_lengths = nullptr};
  const auto event = [&](Kind kind, int warp, uint64_t begin, uint64_t end, unsigned line) {
    TraceEvent e{.kind = kind, .warp = warp, .begin = begin, .end = end};
    e.file = path.c_str();
    e.line = line;
    return e;
  };
  const auto at_mbarrier = [](TraceEvent e, uint64_t offset, uint64_t phase) {
    e.mbarrier = int(offset);
    e.mbarrier_offset = offset;
    e.phase = phase;
    return e;
  };
  Trace trace{.num_warps = 2, .events = {}};
  trace.events.push_back(at_mbarrier(event(Kind::kWait, 0, 0, 5, 8), 16, 3));
  trace.events.push_back(at_mbarrier(event(Kind::kWait, 1, 5, 5, 8), 8, 0));
  trace.events.back().initial = true;
  trace.events.push_back(at_mbarrier(event(Kind::kArrival, 1, 5, 5, 15), 24, 2));
  TraceEvent copy = at_mbarrier(event(Kind::kCopy, 1, 6, 9, 5), 16, 3);
  copy.global = call.k.data;
  copy.shared_offset = 1024;
  copy.origin[1] = 48;
  for (unsigned& extent : copy.box) extent = 16;
  trace.events.push_back(copy);
  copy.store = true;
  copy.global = call.o.data;
  trace.events.push_back(copy);
  TraceEvent lane_copies = event(Kind::kCopy, 0, 9, 12, 10);
  lane_copies.global = call.v.data;
  lane_copies.shared_offset = 2048;
  lane_copies.group = 5;
  trace.events.push_back(lane_copies);
  trace.events.push_back(event(Kind::kProducts, 0, 9, 12, 10));
  TraceEvent accesses = event(Kind::kMemory, 0, 12, 15, 8);
  accesses.after = true;
  accesses.global = &memory[2 * 64 * 64 + 77];
  trace.events.push_back(accesses);
  accesses.kind = Kind::kWork;
  trace.events.push_back(accesses);
  accesses.line = 10;
  trace.events.push_back(accesses);
  trace.events.push_back(event(Kind::kWgmma, 1, 15, 20, 10));
  trace.events.back().wgmma = 4;

  const json events = trace_events(trace, call, "title");
  std::filesystem::remove(path);
  std::vector<std::string> names, tracks;
  std::vector<int> on;
  for (const json& e : events) {
    if (e["ph"] == "M") {
      tracks.push_back(e["args"]["name"]);
    } else {
      names.push_back(e["name"]);
      on.push_back(e["tid"]);
    }
  }
  CHECK(tracks == std::vector<std::string>{"title", "warp 0", "warp 1", "wgmma of warp 1",
                                           "copies of K to smem + 1024", "copies of O from smem + 1024",
                                           "copies of V to smem + 2048"});
  CHECK(names == std::vector<std::string>{"wait: bar_full[1]", "pass: bar_full[0]", "arrive: bar_q",
                                          "K tile 3", "O tile 3", "V group 5", "S = Q K^T",
                                          "global memory: V", "work", "S = Q K^T", "S = Q K^T"});
  CHECK(on == std::vector<int>{0, 1, 1, 100, 101, 102, 0, 0, 0, 0, 51});
  CHECK(events.back()["args"]["wgmma"] == 4);

  const json& wait = events[7];  // behind the names of the tracks
  CHECK(wait["ph"] == "X");
  CHECK(wait["dur"] == 5);
  CHECK(wait["args"]["phase"] == 3);
  CHECK(wait["args"]["parity"] == 1);
  CHECK(wait["args"]["at"] == path + ":8");
  CHECK(events[10]["args"]["box"][0] == 16);  // K tile 3
  const json& group = events[12];
  CHECK(group["args"]["group"] == 5);
  CHECK_FALSE(group["args"].contains("box"));
  const json& pass = events[8];
  CHECK(pass["ph"] == "i");
  CHECK_FALSE(pass.contains("dur"));
  CHECK(pass["args"]["phase"] == -1);
  CHECK(pass["args"]["parity"] == 1);
  CHECK(events[events.size() - 2]["args"]["before"] == path + ":10");
  CHECK_FALSE(events[events.size() - 2]["args"].contains("at"));
}
