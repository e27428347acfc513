// flashsteps emulate: a CUDA program of somebody's own, compiled for the emulator.
//
// g++ preprocesses the file, translate() makes C++ of what is CUDA alone, g++ compiles that with the
// emulator's hooks and links it with the emulator. The program then runs as a process of its own, once in
// each mode.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "harness/base/build_info.h"
#include "harness/base/text.h"
#include "harness/emulate/translate.h"
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
  std::string operator/(const char* name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

using Words = std::vector<std::string>;

// While it lives, Ctrl-C ends the process that is waited for, and not this one, which has a folder to delete.
class InterruptsIgnored {
 public:
  InterruptsIgnored() : before_(std::signal(SIGINT, SIG_IGN)) {}
  ~InterruptsIgnored() { std::signal(SIGINT, before_); }
  InterruptsIgnored(const InterruptsIgnored&) = delete;
  InterruptsIgnored& operator=(const InterruptsIgnored&) = delete;

 private:
  void (*before_)(int);
};

// Runs a program without a shell, so that paths need no quoting. Returns what waitpid() says of it.
int run_process(const Words& words, const Words& environment = {}) {
  std::cout.flush();
  const InterruptsIgnored ignored;
  const pid_t child = fork();
  if (child == -1) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
    execvp(argv[0], argv.data());
    std::cerr << "flashsteps: " << words[0] << " cannot be run: " << std::strerror(errno) << std::endl;
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) == -1 && errno == EINTR) {
  }
  return status;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw UsageError("emulate: " + path + " cannot be read");
  return text.str();
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  if (!(file << text).flush()) throw std::runtime_error(path + " could not be written");
}

Words split(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

// The compiler has said what is wrong.
void compile(Words command, const Words& more, const char* failure = "the program was not compiled") {
  command.insert(command.end(), more.begin(), more.end());
  if (run_process(command) != 0) throw UsageError(std::string("emulate: ") + failure);
}

// Of files that are neither the system's nor the emulator's.
bool is_own(std::string_view path) {
  return !path.starts_with("/usr/") && !path.starts_with("<") &&
         !path.starts_with(FLASHSTEPS_ROOT "/common/");
}

// As -D would define them, but behind the emulator's own headers, in which N is a name like others.
std::string definitions(const std::vector<std::string>& macros) {
  std::string text;
  for (const std::string& macro : macros) {
    const size_t equals = macro.find('=');
    const std::string value = equals == std::string::npos ? "1" : macro.substr(equals + 1);
    text += "#define " + macro.substr(0, equals) + " " + value + "\n";
  }
  return text;
}

void build(const Options& options, const Folder& folder, const std::string& program) {
  const std::string root = FLASHSTEPS_ROOT, emulator = root + "/common/emulator";
  Words flags = split(FLASHSTEPS_GCC_FLAGS);
  flags.insert(flags.begin(), {FLASHSTEPS_GCC, "-std=gnu++20"});
  // What may have no value often has one, and += of a volatile is deprecated in C++20 only.
  flags.insert(flags.end(), {"-Wno-maybe-uninitialized", "-Wno-volatile"});

  write_file(folder / "macros.h", definitions(options.macros));
  Words preprocess{"-E", "-x", "c++", "-I" + emulator + "/cuda_headers", "-I" + root};
  for (const std::string& include : options.include_folders) preprocess.push_back("-I" + include);
  preprocess.insert(preprocess.end(), {"-include", emulator + "/cuda_program.h", "-include",
                                       folder / "macros.h", "-o", folder / "preprocessed", options.program});
  compile(flags, preprocess);

  std::string translated;
  try {
    translated = translate(read_file(folder / "preprocessed"), is_own);
  } catch (const TranslationError& error) {
    throw UsageError(error.what());
  }
  write_file(folder / "translated.ii", translated);
  compile(flags, {"-fpreprocessed", "-c", folder / "translated.ii", "-o", folder / "translated.o"});
  // Without the flags: -fsanitize=thread would add ThreadSanitizer's own runtime.
  compile({FLASHSTEPS_GCC},
          {folder / "translated.o", "-o", program, FLASHSTEPS_EMULATOR_LIBRARY, "-pthread", "-ldl"},
          "a program is one file, which may #include others: it uses what it does not define");
}

// Runs the program, and returns what that says about it.
ExitStatus run_program(const std::string& program, const Options& options, const std::string& mode,
                       int seed) {
  Words command{program};
  command.insert(command.end(), options.arguments.begin(), options.arguments.end());
  const int status = run_process(
      command, {"FLASHSTEPS_EMULATE_MODE=" + mode, "FLASHSTEPS_EMULATE_SEED=" + std::to_string(seed)});
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
  int worst = kAllPassed;
  for (const std::string& mode : options.modes) {
    const int num_seeds = mode == "random" ? options.seeds : 1;
    for (int seed = 1; seed <= num_seeds; ++seed) {
      if (options.modes.size() > 1 || num_seeds > 1)
        std::cout << "mode " << mode << (mode == "random" ? ", seed " + std::to_string(seed) : "")
                  << std::endl;
      worst = std::max<int>(worst, run_program(program, options, mode, seed));
      if (worst == kCrashedOrHung) return worst;  // Ctrl-C ends all
    }
  }
  return worst;
}

}  // namespace flashsteps
