// flashsteps emulate: a CUDA program of somebody's own, compiled for the emulator. It runs as a process of
// its own, once in each mode.
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "harness/base/atomic_file.h"
#include "harness/base/build_info.h"
#include "harness/base/text.h"
#include "harness/emulate/compile.h"
#include "harness/emulate/findings.h"
#include "harness/program/commands.h"

namespace flashsteps {
namespace {

namespace fs = std::filesystem;

// Deleted in the end, with all that is in it.
class Folder {
 public:
  Folder() {
    std::string path = (fs::temp_directory_path() / "flashsteps-emulate-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error(path + ": " + std::strerror(errno));
    path_ = path;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_.string(); }
  std::string operator/(const char* name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

void build(const Options& options, const Folder& folder, const std::string& program) {
  const Toolchain tools{FLASHSTEPS_GCC, FLASHSTEPS_ROOT, FLASHSTEPS_EMULATOR_LIBRARY, /*messages=*/""};
  try {
    const CudaSource source{options.program, options.include_folders, options.macros, /*object=*/""};
    const Translated translated = translate_program(tools, source, folder.path());
    compile_translated(tools, translated.text, folder.path(), folder / "translated.o");
    link_program(tools, folder / "translated.o", program);
  } catch (const CompileError& error) {
    throw UsageError(error.what());
  }
}

// Runs the program, and returns what that says about it.
ExitStatus run_program(const std::string& program, const Options& options, const std::string& mode, int seed,
                       const std::string& findings) {
  std::vector<std::string> command{program};
  command.insert(command.end(), options.arguments.begin(), options.arguments.end());
  const int status = run_process(
      command, {"FLASHSTEPS_EMULATE_MODE=" + mode, "FLASHSTEPS_EMULATE_SEED=" + std::to_string(seed),
                "FLASHSTEPS_EMULATE_FINDINGS=" + findings});
  if (WIFSIGNALED(status)) {
    std::cerr << "flashsteps: the program was ended by signal " << WTERMSIG(status) << ", "
              << strsignal(WTERMSIG(status)) << std::endl;
    return kCrashedOrHung;
  }
  return WEXITSTATUS(status) == 0 ? kAllPassed : kSomethingFailed;
}

}  // namespace

int emulate_program(const Options& options) {
  if (!fs::is_regular_file(options.program)) throw UsageError("emulate: there is no file " + options.program);
  const Folder folder;
  const std::string program = folder / fs::path(options.program).stem().c_str();
  build(options, folder, program);
  Findings findings;
  int worst = kAllPassed;
  for (const std::string& mode : options.modes) {
    const int num_seeds = mode == "random" ? options.seeds : 1;
    for (int seed = 1; seed <= num_seeds; ++seed) {
      if (options.modes.size() > 1 || num_seeds > 1)
        std::cout << "mode " << mode << (mode == "random" ? ", seed " + std::to_string(seed) : "")
                  << std::endl;
      const std::string lines = folder / "findings";
      fs::remove(lines);
      worst = std::max<int>(worst, run_program(program, options, mode, seed, lines));
      json run{{"mode", mode}};
      if (mode == "random") run["seed"] = seed;
      std::ifstream file(lines);
      findings.add({std::istreambuf_iterator<char>(file), {}}, run);
      if (worst == kCrashedOrHung) break;  // Ctrl-C ends all
    }
    if (worst == kCrashedOrHung) break;
  }
  for (const std::string& path : options.reports) replace_file(path, findings.text_for(path));
  return worst;
}

}  // namespace flashsteps
