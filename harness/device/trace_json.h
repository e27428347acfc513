// A trace in the format that chrome://tracing and https://ui.perfetto.dev open; docs/pipeline.md describes
// it.
#pragma once

#include <string>
#include <vector>

#include "common/emulator/trace.h"
#include "common/interface.h"
#include "harness/base/json.h"

namespace flashsteps {

// `call`, in whose tensors copies and accesses are found, gives these their names; the kernel's own source,
// as far as it can be read, gives phases and mbarriers theirs.
json trace_events(const emulator::Trace& trace, const AttentionCall& call, const std::string& title);

// What a source file calls things. `lines` counts from 1; a file that cannot be read has none.
class Source {
 public:
  explicit Source(std::vector<std::string> lines) : lines_(std::move(lines)) {}
  static Source read(const std::string& path);

  // The first sentence of the nearest comment above the line that begins a paragraph, without its full stop:
  // "// S = Q K^T." below an empty line. Empty: there is none.
  std::string phase(unsigned line) const;
  // Does the line come first behind such a comment?
  bool begins_phase(unsigned line) const;
  // What is handed to a function whose name begins like this, without its way there: of
  // "mbarrier_wait(&shared.bar_full[stage], phase);" it is "bar_full[stage]". Empty: there is none.
  std::string first_argument(unsigned line, const std::string& function) const;

 private:
  std::string text(unsigned line) const;  // without white space around it
  bool is_comment(unsigned line) const { return text(line).starts_with("//"); }

  std::vector<std::string> lines_;
};

}  // namespace flashsteps
