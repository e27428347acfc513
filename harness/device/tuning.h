// What `flashsteps tune` has measured: which of a step's configurations was the fastest, on which GPU, for
// which calls. The library and the Python module ask it before a step chooses itself; the program does so
// when it is told (--tuned). docs/measuring.md describes the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/interface.h"

namespace flashsteps {

constexpr const char* kTuningSchema = "flashsteps-tuning/1";
constexpr const char* kTuningVariable = "FLASHSTEPS_TUNING";  // of the environment

// Calls for which one choice is kept. Sizes are rounded up to a power of two.
struct CallKind {
  DType dtype;
  int head_dim;
  bool causal;
  int64_t seqlen_q, seqlen_kv;
  int64_t heads;              // batch * num_heads_q: with seqlen_q they give the number of tiles
  int64_t heads_per_kv_head;  // num_heads_q / num_heads_kv
  int page_size;              // of K and V; 0: they are not in pages
  bool operator==(const CallKind&) const = default;
};
CallKind kind_of(const AttentionCall& call);

class Tuning {
 public:
  Tuning() = default;  // knows nothing
  // Of a file's text. Throws std::runtime_error: why the file must not be used.
  explicit Tuning(const std::string& text);

  // Fills in what was measured to be the fastest. False, and the call stays, when it names a configuration
  // itself, nothing was measured, or the step refuses such a call with that configuration. A name may stand
  // for GPUs with different numbers of SMs. The emulator's is "emulator", with 0.
  bool choose(const Step& step, std::string_view device, int num_sms, AttentionCall& call) const;

 private:
  struct Entry {
    std::string device;
    int num_sms;
    std::string step;
    CallKind kind;
    int configuration;
  };
  std::vector<Entry> entries_;
};

// $FLASHSTEPS_TUNING; without that variable flashsteps/tuning.json in $XDG_CACHE_HOME or ~/.cache. Empty: no
// file is wanted (the variable is empty), or there is no home.
std::string tuning_path();

struct TuningFile {
  std::string text;     // empty when it is ignored
  std::string ignored;  // a line for the user: why it is; empty when it is not
  Tuning tuning;
};
TuningFile read_tuning_file(const std::string& path);

// Of tuning_path(), if there is such a file. Read when it is first asked for, once in a process.
const Tuning& tuning_of_process();
// Why that file is ignored, for whoever asks first; empty afterwards, and when it is not ignored.
std::string take_tuning_warning();

}  // namespace flashsteps
