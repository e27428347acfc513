// A CUDA program of somebody's own, compiled for the emulator: g++ preprocesses it, translate() makes C++ of
// what is CUDA alone, g++ compiles that with the emulator's hooks and links it with the emulator.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace flashsteps {

// What is asked for cannot be compiled: a sentence, or what g++ said.
struct CompileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Where what it takes is found.
struct Toolchain {
  std::string gcc;
  std::string root;      // the folder that has common/
  std::string library;   // libflashsteps_emulator.a
  std::string messages;  // the file that g++'s messages go to, and errors then say; "": they go to stderr
};

struct CudaSource {
  std::string path;
  std::vector<std::string> include_folders, macros;  // NAME or NAME=VALUE
  std::string object;    // OBJECT.d gets a rule of make with the files that it includes; "": none is written
  bool by_name = false;  // its functions are to be called by their names, and not its main()
};

struct Translated {
  std::string text;                  // C++, preprocessed
  std::vector<std::string> kernels;  // their names, where they are to be called by them
};

// These three keep files in `folder`, which is there already.
Translated translate_program(const Toolchain& tools, const CudaSource& source, const std::string& folder);
void compile_translated(const Toolchain& tools, const std::string& text, const std::string& folder,
                        const std::string& object);
void link_program(const Toolchain& tools, const std::string& object, const std::string& program,
                  bool by_name = false);

// What stands behind a translated program whose functions are called by name, and serves these calls. Of
// `kernels`, those whose name is clear; `instances` as C++ writes them, such as "kernel<64, true>".
std::string kernel_server(const std::vector<std::string>& kernels, const std::vector<std::string>& instances);

// Runs a program without a shell, so that paths need no quoting. Returns what waitpid() says of it.
// `messages` as above.
int run_process(const std::vector<std::string>& words, const std::vector<std::string>& environment = {},
                const std::string& messages = "");

}  // namespace flashsteps
