#include "harness/device/trace_json.h"

#include <algorithm>
#include <fstream>
#include <map>

#include "harness/base/build_info.h"
#include "harness/base/call_tensors.h"

namespace flashsteps {
namespace {

using emulator::TraceEvent;
using Kind = TraceEvent::Kind;

constexpr int kProcess = 0;
constexpr int kFirstWgmmaTrack = 50;  // below: warps
constexpr int kFirstCopyTrack = 100;

}  // namespace

// ---- The kernel's source

Source Source::read(const std::string& path) {
  std::ifstream in(source_path(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return Source(std::move(lines));
}

std::string Source::text(unsigned line) const {
  if (line < 1 || line > lines_.size()) return "";
  const std::string& whole = lines_[line - 1];
  const size_t begin = whole.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : whole.substr(begin, whole.find_last_not_of(" \t\r") + 1 - begin);
}

std::string Source::phase(unsigned line) const {
  for (unsigned first = std::min<size_t>(line, lines_.size() + 1); first-- > 1;) {
    if (!is_comment(first) || !text(first - 1).empty()) continue;
    std::string comment;
    for (unsigned l = first; is_comment(l); ++l) {
      const size_t begin = text(l).find_first_not_of("/ ");
      if (begin != std::string::npos) comment += (comment.empty() ? "" : " ") + text(l).substr(begin);
    }
    return comment.substr(0, (comment + " ").find(". "));  // all of it where there is no full stop
  }
  return "";
}

bool Source::begins_phase(unsigned line) const {
  unsigned first = line;
  while (first > 1 && is_comment(first - 1)) --first;
  return first < line && text(first - 1).empty();
}

std::string Source::first_argument(unsigned line, const std::string& function) const {
  const std::string code = text(line);
  const size_t call = code.find(function);
  const size_t open = call == std::string::npos ? call : code.find('(', call);
  if (open == std::string::npos) return "";
  int depth = 0;
  size_t begin = open + 1;
  for (size_t i = begin; i < code.size(); ++i) {
    if (depth == 0 && (code[i] == ',' || code[i] == ')')) return code.substr(begin, i - begin);
    if (code[i] == '(' || code[i] == '[') ++depth;
    if (code[i] == ')' || code[i] == ']') --depth;
    const bool is_step = code[i] == '.' || code[i] == '&' || code.compare(i, 2, "->") == 0;
    if (depth == 0 && is_step) begin = i + (code[i] == '-' ? 2 : 1);
  }
  return "";
}

namespace {

// ---- Names

class Names {
 public:
  Names(const emulator::Trace& trace, const AttentionCall& call) : call_(call) {
    for (const TraceEvent& event : trace.events) {
      if (!sources_.contains(event.file)) sources_.emplace(event.file, Source::read(event.file));
      if (event.mbarrier < 0) continue;
      std::string& name = names_[event.mbarrier_offset];
      if (name.empty()) name = source(event).first_argument(event.line, "mbarrier_");
    }
    // The elements of an array share a name in the source, and are told apart by where they lie.
    const auto array = [](const std::string& name) { return name.substr(0, name.find('[')); };
    std::map<std::string, int> count, index;
    for (const auto& [offset, name] : names_) ++count[array(name)];
    for (auto& [offset, name] : names_) {
      const std::string its_array = array(name);
      if (name.empty()) {
        name = "mbarrier at smem + " + std::to_string(offset);
      } else if (name != its_array || count[its_array] > 1) {
        name = its_array + "[" + std::to_string(index[its_array]++) + "]";
      }
    }
  }

  // Of what came before a phase's first line, nothing says where it stands: perhaps at the end of a loop.
  std::string phase(const TraceEvent& event) const {
    const Source& its = source(event);
    return event.after && its.begins_phase(event.line) ? "" : its.phase(event.line);
  }
  std::string mbarrier(const TraceEvent& event) const { return names_.at(event.mbarrier_offset); }

  // Of the tensor that lies there: "K"; empty if none does.
  std::string tensor(const void* address) const {
    // Slices of a fused tensor interleave: the one that begins last, but not behind the address, is meant.
    const char* found = "";
    uintptr_t begins = 0;
    for (const auto& [name, data, bytes] : memory_of(call_)) {
      const auto begin = uintptr_t(data);
      if (begin < begins || uintptr_t(address) - begin >= bytes) continue;
      found = name;
      begins = begin;
    }
    return found;
  }

  // "K tile 3": rows are dimension 1 of the maps that common/swizzle.h makes. "K group 3": of cp.async.
  std::string copy(const TraceEvent& event) const {
    const std::string name = tensor(event.global);
    const bool is_box = event.box[1] != 0;
    return (name.empty() ? "copy" : name) +
           (is_box ? " tile " + std::to_string(event.origin[1] / int(event.box[1]))
                   : " group " + std::to_string(event.group));
  }

 private:
  const Source& source(const TraceEvent& event) const { return sources_.at(event.file); }

  const AttentionCall& call_;
  std::map<std::string, Source> sources_;
  std::map<uint64_t, std::string> names_;  // of the mbarrier at an offset
};

// ---- Events

constexpr const char* kCategories[] = {"products", "memory", "work", "wait",
                                       "arrival",  "issue",  "copy", "wgmma"};
const char* category(Kind kind) { return kCategories[int(kind)]; }  // in the order of Kind

std::string name_of(const TraceEvent& event, const Names& names) {
  switch (event.kind) {
    case Kind::kProducts:
    case Kind::kWgmma:
    case Kind::kWork: {
      const std::string phase = names.phase(event);
      return phase.empty() ? category(event.kind) : phase;
    }
    case Kind::kMemory: {
      const std::string tensor = names.tensor(event.global);
      return "global memory" + (tensor.empty() ? "" : ": " + tensor);
    }
    case Kind::kWait: {
      const char* verb = event.end > event.begin ? "wait: " : "pass: ";
      if (event.mbarrier >= 0) return verb + names.mbarrier(event);
      if (event.barrier > 0) return std::string(verb) + event.op + " " + std::to_string(event.barrier);
      return std::string(verb) + event.op;
    }
    case Kind::kArrival:
      return "arrive: " + names.mbarrier(event);
    case Kind::kIssue:
      return "issue " + names.copy(event);
    case Kind::kCopy:
      return names.copy(event);
  }
  return "";
}

json arguments_of(const TraceEvent& event, const Names& names) {
  json args = json::object();
  if (event.line != 0) args[event.after ? "before" : "at"] = emulator::place_of(event);
  if (event.kind == Kind::kProducts) {
    args["mma"] = event.mma;
    args["ldmatrix"] = event.ldmatrix;
  }
  if (event.kind == Kind::kWgmma) args["wgmma"] = event.wgmma;
  if (event.mbarrier >= 0) {
    args["mbarrier"] = names.mbarrier(event);
    // The phase before the first has completed by definition: its parity is 1.
    args["phase"] = event.initial ? json(-1) : json(event.phase);
    args["parity"] = event.initial ? 1 : event.phase % 2;
  }
  if (event.bytes > 0) args["bytes"] = event.bytes;
  if (event.kind == Kind::kCopy || event.kind == Kind::kIssue) {
    args["tensor"] = names.tensor(event.global);
    args["smem"] = event.shared_offset;
    if (event.box[1] == 0) {
      args["group"] = event.group;
    } else {
      args["origin"] = event.origin;
      args["box"] = event.box;
    }
  }
  return args;
}

}  // namespace

json trace_events(const emulator::Trace& trace, const AttentionCall& call, const std::string& title) {
  const Names names(trace, call);
  json events = json::array();
  events.push_back({{"ph", "M"}, {"pid", kProcess}, {"name", "process_name"}, {"args", {{"name", title}}}});
  std::map<int, std::string> tracks;
  for (int warp = 0; warp < trace.num_warps; ++warp) tracks[warp] = "warp " + std::to_string(warp);
  for (const TraceEvent& event : trace.events) {
    if (event.kind == Kind::kWgmma)
      tracks[kFirstWgmmaTrack + event.warp] = "wgmma of warp " + std::to_string(event.warp);
  }
  // Copies from or to the same place follow each other: a track each. Others overlap.
  std::map<std::pair<uint64_t, bool>, const TraceEvent*> places;  // and the first copy
  for (const TraceEvent& event : trace.events) {
    if (event.kind == Kind::kCopy) places.emplace(std::pair(event.shared_offset, event.store), &event);
  }
  std::map<std::pair<uint64_t, bool>, int> copy_tracks;
  for (const auto& [place, copy] : places) {
    const int track = copy_tracks[place] = kFirstCopyTrack + int(copy_tracks.size());
    tracks[track] = "copies of " + names.tensor(copy->global) + (copy->store ? " from" : " to") + " smem + " +
                    std::to_string(copy->shared_offset);
  }
  for (const auto& [track, name] : tracks)
    events.push_back({{"ph", "M"},
                      {"pid", kProcess},
                      {"tid", track},
                      {"name", "thread_name"},
                      {"args", {{"name", name}}}});

  for (const TraceEvent& event : trace.events) {
    const bool is_copy = event.kind == Kind::kCopy;
    const int track = is_copy                      ? copy_tracks.at({event.shared_offset, event.store})
                      : event.kind == Kind::kWgmma ? kFirstWgmmaTrack + event.warp
                                                   : event.warp;
    json out = {{"name", name_of(event, names)},
                {"cat", category(event.kind)},
                {"pid", kProcess},
                {"tid", track},
                {"ts", event.begin},
                {"args", arguments_of(event, names)}};
    if (event.end > event.begin) {
      out["ph"] = "X";
      out["dur"] = event.end - event.begin;
    } else {
      out["ph"] = "i";
      out["s"] = "t";  // on its own track
    }
    events.push_back(out);
  }
  return events;
}

}  // namespace flashsteps
