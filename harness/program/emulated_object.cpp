// A tool of the CMake function flashsteps_add_emulated_executable(): an object for the emulator from a CUDA
// file.
//   emulated_object GCC FILE OBJECT [-IFOLDER...] [-DMACRO...]
// One of the folders has common/ in it. OBJECT.d gets a rule of make with the files that are included.
#include <filesystem>
#include <iostream>
#include <string_view>

#include "harness/emulate/compile.h"

namespace {

void compile(int argc, char** argv) {
  namespace fs = std::filesystem;
  using namespace flashsteps;
  Toolchain tools{.gcc = argv[1], .root = "", .library = "", .messages = ""};
  const std::string object = argv[3], folder = object + ".files";
  CudaSource source{argv[2], {}, {}, object};
  for (int i = 4; i < argc; ++i) {
    const std::string_view option = argv[i], value = option.substr(2);
    if (option.starts_with("-D")) {
      source.macros.emplace_back(value);
    } else if (fs::exists(fs::path(value) / "common/emulator/cuda_program.h")) {
      tools.root = fs::canonical(value).string();
    } else {
      source.include_folders.emplace_back(value);
    }
  }
  fs::create_directories(folder);
  compile_translated(tools, translate_program(tools, source, folder).text, folder, object);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    compile(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "flashsteps: " << error.what() << std::endl;
    return 1;
  }
}
