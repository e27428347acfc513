#include "harness/python/src/emulate.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "harness/emulate/compile.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flashsteps::python {
namespace {

using Words = std::vector<std::string>;
using Tools = std::tuple<std::string, std::string, std::string, std::string>;  // the fields of Toolchain

Toolchain toolchain_of(const Tools& tools) {
  return std::apply([](const auto&... field) { return Toolchain{field...}; }, tools);
}

// The text is bytes, which need not be UTF-8.
nb::tuple translate(const Tools& tools, const std::string& file, const Words& include_folders,
                    const Words& macros, const std::string& folder) {
  Translated translated;
  {
    const nb::gil_scoped_release no_gil;
    const CudaSource source{file, include_folders, macros, /*object=*/"", /*by_name=*/true};
    translated = translate_program(toolchain_of(tools), source, folder);
  }
  return nb::make_tuple(nb::bytes(translated.text.data(), translated.text.size()), translated.kernels);
}

void compile_kernels(const Tools& tools, const nb::bytes& text, const Words& kernels, const Words& instances,
                     const std::string& folder, const std::string& program) {
  const std::string whole = std::string(text.c_str(), text.size()) + kernel_server(kernels, instances);
  const nb::gil_scoped_release no_gil;
  const std::string object = folder + "/translated.o";
  compile_translated(toolchain_of(tools), whole, folder, object);
  link_program(toolchain_of(tools), object, program, /*by_name=*/true);
}

}  // namespace

void define_emulate(nb::module_& m) {
  m.def("translate_program", &translate, "tools"_a, "file"_a, "include_folders"_a, "macros"_a, "folder"_a,
        "A CUDA file as C++, and the names of its kernels: for flashsteps.emulate.");
  m.def("compile_kernels", &compile_kernels, "tools"_a, "text"_a, "kernels"_a, "instances"_a, "folder"_a,
        "program"_a, "Makes a program of that, which serves its kernels.");
}

}  // namespace flashsteps::python
