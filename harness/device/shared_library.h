// Libraries that are used when they are there: opened at run time, never linked.
#pragma once

#include <dlfcn.h>

#include <string>

namespace flashsteps {

// nullptr when there is none. Libraries stay open until the process ends: NVIDIA's register exit handlers,
// which must not be unmapped.
inline void* open_library(const std::string& file) { return dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL); }

template <typename Function>
bool find_symbol(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
}

}  // namespace flashsteps
