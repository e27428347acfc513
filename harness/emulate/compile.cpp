#include "harness/emulate/compile.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "harness/emulate/translate.h"

namespace flashsteps {
namespace {

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

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw CompileError(path + " cannot be read");
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

Words flags() {
  Words words = split(FLASHSTEPS_GCC_FLAGS);
  // What may have no value often has one, and += of a volatile is deprecated in C++20 only. Of two launches
  // that look the same, g++ would fold the second into the first, without its lines.
  words.insert(words.end(), {"-std=gnu++20", "-Wno-maybe-uninitialized", "-Wno-volatile", "-fno-ipa-icf"});
  return words;
}

// Returns whether it succeeded.
bool run_gcc(const std::string& gcc, const std::string& messages, Words words, const Words& more) {
  words.insert(words.begin(), gcc);
  words.insert(words.end(), more.begin(), more.end());
  const int status = run_process(words, {}, messages);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    throw CompileError(gcc + " cannot be run: the emulator compiles programs with g++ 12 or newer");
  return status == 0;
}

// What a static_assert of the emulator's says, with the innermost line of the program's that led to it. g++
// says both in a screenful of instantiations. "": there is none.
std::string sentence_of_emulator(const std::string& messages, const std::string& emulator) {
  const std::string failed = "error: static assertion failed: ", from = ":   required from ";
  std::istringstream lines(messages);
  std::string place;
  for (std::string line; std::getline(lines, line);) {
    const bool is_of_emulator = line.starts_with(emulator);
    const size_t sentence = line.find(failed), end_of_place = line.find(from);
    if (is_of_emulator && sentence != line.npos) return place + ": " + line.substr(sentence + failed.size());
    if (line.find(": In ") != line.npos) place.clear();
    if (place.empty() && !is_of_emulator && end_of_place != line.npos)
      place = line.substr(0, line.rfind(':', end_of_place - 1));  // without the column
  }
  return "";
}

void compile(const Toolchain& tools, const std::string& folder, const Words& more) {
  const std::string messages = tools.messages.empty() ? folder + "/messages" : tools.messages;
  const bool is_done = run_gcc(tools.gcc, messages, flags(), more);
  const std::string text = read_file(messages);
  const std::string sentence = sentence_of_emulator(text, tools.root + "/common/");
  if (!is_done && !sentence.empty()) throw CompileError(sentence);
  if (tools.messages.empty()) std::cerr << text << std::flush;
  if (!is_done)
    throw CompileError("the program was not compiled" + (tools.messages.empty() ? "" : ":\n" + text));
}

// Of all that the linker says, the first name that nothing defines, with the line that uses it.
std::string sentence_of_linker(const std::string& messages) {
  const std::string sentence = "a program is one file, which may #include others: it does not define ";
  const std::string before_name = ": undefined reference to `";
  const size_t end_of_place = messages.find(before_name);
  if (end_of_place == messages.npos) return "the program was not linked:\n" + messages;
  const size_t name = end_of_place + before_name.size();
  const size_t line = messages.rfind('\n', end_of_place) + 1;
  std::string place = messages.substr(line, end_of_place - line);
  if (const size_t linker = place.find("ld: "); linker != place.npos) place.erase(0, linker + 4);
  if (const size_t section = place.find(":(."); section != place.npos) place.erase(section);
  return (place.starts_with("(") ? "" : place + ": ") + sentence +
         messages.substr(name, messages.find("'\n", name) - name);
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

}  // namespace

Translated translate_program(const Toolchain& tools, const CudaSource& source, const std::string& folder) {
  const std::string emulator = tools.root + "/common/emulator";
  write_file(folder + "/macros.h", definitions(source.macros));
  Words preprocess{"-E", "-x", "c++", "-I" + emulator + "/cuda_headers", "-I" + tools.root};
  for (const std::string& include : source.include_folders) preprocess.push_back("-I" + include);
  if (!source.object.empty())
    preprocess.insert(preprocess.end(), {"-MD", "-MF", source.object + ".d", "-MT", source.object});
  preprocess.insert(preprocess.end(),
                    {"-include", emulator + (source.by_name ? "/kernel_server.h" : "/cuda_program.h"),
                     "-include", folder + "/macros.h", "-o", folder + "/preprocessed", source.path});
  compile(tools, folder, preprocess);

  // Of files that are neither the system's nor the emulator's.
  const auto is_own = [of_emulator = tools.root + "/common/"](std::string_view path) {
    return !path.starts_with("/usr/") && !path.starts_with("<") && !path.starts_with(of_emulator);
  };
  const std::string preprocessed = read_file(folder + "/preprocessed");
  try {
    return {translate(preprocessed, is_own),
            source.by_name ? find_kernels(preprocessed, is_own) : std::vector<std::string>()};
  } catch (const TranslationError& error) {
    throw CompileError(error.what());
  }
}

void compile_translated(const Toolchain& tools, const std::string& text, const std::string& folder,
                        const std::string& object) {
  write_file(folder + "/translated.ii", text);
  // With a section for each function, the linker's relocations tell which __shared__ variables a kernel has.
  compile(tools, folder,
          {"-fpreprocessed", "-ffunction-sections", "-c", folder + "/translated.ii", "-o", object});
}

void link_program(const Toolchain& tools, const std::string& object, const std::string& program,
                  bool by_name) {
  // Without the flags: -fsanitize=thread would add ThreadSanitizer's own runtime.
  Words options = split(FLASHSTEPS_LINK_OPTIONS);
  if (by_name) options.push_back("-Wl,--wrap=main");
  const std::string messages = object + ".messages";
  if (!run_gcc(tools.gcc, messages, {object, "-o", program, tools.library, "-pthread", "-ldl"}, options))
    throw CompileError(sentence_of_linker(read_file(messages)));
}

std::string kernel_server(const std::vector<std::string>& kernels,
                          const std::vector<std::string>& instances) {
  // The linker puts it in the place of main(), which may be there or not.
  std::string text = "\n# 1 \"<kernels>\"\nextern \"C\" void __wrap_main(int argc, char** argv) {\n";
  const std::string server = "::emulator::program::";
  // A generic lambda: there the name of a template is no error.
  for (const std::string& kernel : kernels) {
    const std::string add = server + "add(name, ::" + kernel + ")";
    text += "[](auto name) { if constexpr (requires { " + add + "; }) " + add + "; else " + server +
            "add_unclear(name); }(\"" + kernel + "\");\n";
  }
  for (const std::string& instance : instances)
    text += "# 1 \"" + instance + "\"\n" + server + "add(\"" + instance + "\", " + instance + ");\n";
  return text + server + "serve(argc, argv);\n}\n";
}

int run_process(const std::vector<std::string>& words, const std::vector<std::string>& environment,
                const std::string& messages) {
  std::cout.flush();
  const InterruptsIgnored ignored;
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == -1) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);
    if (!messages.empty()) dup2(open(messages.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), 2);
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

}  // namespace flashsteps
