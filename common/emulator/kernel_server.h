// A CUDA program whose functions another process calls by their names, with arrays and numbers of its own:
// flashsteps.emulate() of the Python module. Included in the place of cuda_program.h. compile.cpp writes what
// adds the functions and serves them, in the place of main().
#pragma once

#include <bit>
#include <type_traits>

#include "common/emulator/cuda_program.h"

// Says nothing to g++, but find_kernels() finds it in the preprocessed text.
#undef __global__
#define __global__ __attribute__((__unused__))

namespace emulator::program {

// A parameter, or what it points to. Constants, which are compiled sooner than code that makes them.
struct Parameter {
  const char* function;  // whose name has the parameter's type in it: "... [with T = const float*]"
  const char* dtype;     // the beginning of NumPy's name, or "bytes" of another class, "void", or "" of what
                         // cannot be passed
  int bits;              // the rest of NumPy's name; 0: there is none
  unsigned bytes;
  bool is_pointer, is_const;
};

// What a call brings for a parameter: bytes of the parameter's own size.
using Argument = const unsigned char*;

// nullptr: the host calls the function. Else it is a kernel.
struct Configuration {
  cuda::dim3 grid, block;
  size_t smem_bytes;
};

template <typename T>
consteval Parameter describe_parameter() {
  using Element = std::remove_cv_t<std::remove_pointer_t<T>>;
  Parameter its{
      __PRETTY_FUNCTION__, "", 0, 1, std::is_pointer_v<T>, std::is_const_v<std::remove_pointer_t<T>>};
  if constexpr (requires { sizeof(Element); } && !std::is_void_v<Element>) its.bytes = sizeof(Element);
  if constexpr (std::is_enum_v<Element>) {
    its.dtype = describe_parameter<std::underlying_type_t<Element>>().dtype;
  } else if constexpr (std::is_void_v<Element>) {
    its.dtype = "void";
  } else if constexpr (std::is_same_v<Element, bool>) {
    its.dtype = "bool";
  } else if constexpr (std::is_integral_v<Element>) {
    its.dtype = std::is_signed_v<Element> ? "int" : "uint";
  } else if constexpr (std::is_floating_point_v<Element> || std::is_same_v<Element, cuda::__half>) {
    its.dtype = "float";
  } else if constexpr (std::is_same_v<Element, cuda::__nv_bfloat16>) {
    its.dtype = "bfloat";
  } else if constexpr (std::is_same_v<Element, cuda::__nv_fp8_e4m3>) {
    its.dtype = "float8_e4m3fn";
  } else if constexpr (std::is_class_v<Element> && requires { sizeof(Element); }) {
    if (std::is_trivially_copyable_v<Element> && !std::is_same_v<Element, cuda::CUtensorMap>)
      its.dtype = "bytes";
  }
  constexpr bool has_bits = std::is_arithmetic_v<Element> || std::is_enum_v<Element> ||
                            std::is_same_v<Element, cuda::__half> ||
                            std::is_same_v<Element, cuda::__nv_bfloat16>;
  if (has_bits && !std::is_same_v<Element, bool>) its.bits = int(8 * its.bytes);
  return its;
}

template <typename... P>
inline constexpr Parameter kParameters[] = {describe_parameter<P>()..., {}};

template <typename T>
T value_of(Argument argument) {
  struct {
    unsigned char bytes[sizeof(T)];
  } value;
  std::memcpy(&value, argument, sizeof(T));
  return std::bit_cast<T>(value);
}

using AnyFunction = void (*)();

template <typename... P>
void call(AnyFunction function, const Configuration* launched, const Argument* arguments) {
  const auto typed = reinterpret_cast<void (*)(P...)>(function);
  if constexpr ((std::is_trivially_copyable_v<P> && ...)) {  // others are refused by their description
    [&]<size_t... I>(std::index_sequence<I...>) {
      if (launched == nullptr) {
        typed(value_of<P>(arguments[I])...);
      } else {
        launch({"", 0}, launched->grid, launched->block, launched->smem_bytes, nullptr, typed,
               value_of<P>(arguments[I])...);
      }
    }
    (std::index_sequence_for<P...>());
  }
}

struct Function {
  const char* name;
  const Parameter* parameters;
  size_t num_parameters;
  AnyFunction function;
  void (*call)(AnyFunction, const Configuration*, const Argument*);
};
void add(const Function& function);
template <typename... P>
void add(const char* name, void (*function)(P...)) {
  add({name, kParameters<P...>, sizeof...(P), reinterpret_cast<AnyFunction>(function), call<P...>});
}
// One that is a template, or of which there are several: its name alone says too little.
void add_unclear(const char* name);

// Answers what comes from a socket, whose number is the last argument, until the other end is closed.
[[noreturn]] void serve(int argc, char** argv);

}  // namespace emulator::program
