// PTX instructions as functions, which `flashsteps emulate` calls in the place of inline PTX. The name is the
// opcode with underscores for its dots, without the modifiers that make no difference here: the table in
// harness/emulate/ptx.cpp says which those are. Part of cuda_program.h.
//
// Arguments: where the instruction stands, and its operands in the order of PTX. A register has bits and no
// type, so an operand may be of any C++ type. Inlined always, so that a report names the kernel's line.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "common/cp_async.h"
#include "common/cuda.h"
#include "common/elect.h"
#include "common/exp2.h"
#include "common/griddepcontrol.h"
#include "common/mma.h"
#include "common/named_barrier.h"

namespace emulator::cuda {

inline size_t __cvta_generic_to_shared(const void* pointer) { return shared_address(pointer); }
inline size_t __cvta_generic_to_global(const void* pointer) { return size_t(pointer); }
inline void* __cvta_shared_to_generic(size_t address, Location at = Location::current()) {
  return shared_pointer(address, at);
}
inline void* __cvta_global_to_generic(size_t address) { return (void*)address; }
inline unsigned __isShared(const void* pointer) { return is_shared(pointer); }

}  // namespace emulator::cuda

namespace emulator::ptx {

#define FLASHSTEPS_PTX [[gnu::always_inline]] inline

// ---- Registers

using B8 = uint8_t;
using B16 = uint16_t;
using B32 = uint32_t;
using B64 = unsigned long long;
using B128 = unsigned __int128;
using U64 = unsigned long long;  // as CUDA's functions have them
using S64 = long long;

template <size_t BYTES>
using Bits = std::conditional_t<
    BYTES == 1, B8,
    std::conditional_t<BYTES == 2, B16,
                       std::conditional_t<BYTES == 4, B32, std::conditional_t<BYTES == 8, B64, B128>>>>;
template <typename T>
using Unsigned = Bits<sizeof(T)>;

// Not by std::is_integral, which leaves out __int128 in some dialects.
template <typename T>
constexpr bool kIsInteger = std::is_integral_v<T> || std::is_same_v<T, B128>;

// The bits of a register or a literal as a T. Of integers of another size the value, as in C++.
template <typename T, typename From>
FLASHSTEPS_PTX T get(const From& from) {
  if constexpr (std::is_pointer_v<From>) {
    return get<T>(uintptr_t(from));
  } else if constexpr (std::is_enum_v<From>) {
    return get<T>(std::underlying_type_t<From>(from));
  } else if constexpr (sizeof(T) == sizeof(From) && !std::is_same_v<T, bool>) {
    return std::bit_cast<T>(from);
  } else if constexpr (std::is_floating_point_v<From> || (kIsInteger<From> && kIsInteger<T>)) {
    return static_cast<T>(from);
  } else if constexpr (kIsInteger<From>) {
    return std::bit_cast<T>(static_cast<Unsigned<T>>(from));
  } else {
    return static_cast<T>(std::bit_cast<Unsigned<From>>(from));
  }
}

struct Sink {};  // _

template <typename T, typename To>
FLASHSTEPS_PTX void put(To& to, T value) {
  using Plain = std::remove_cvref_t<To>;
  if constexpr (std::is_same_v<Plain, Sink>) {
    return;
  } else if constexpr (std::is_pointer_v<Plain>) {
    to = reinterpret_cast<Plain>(uintptr_t(value));
  } else if constexpr (sizeof(Plain) == sizeof(T) && !std::is_same_v<Plain, bool>) {
    to = std::bit_cast<Plain>(value);
  } else if constexpr (kIsInteger<T>) {
    to = static_cast<Plain>(value);
  } else {
    to = static_cast<Plain>(std::bit_cast<Unsigned<T>>(value));
  }
}

template <typename T>
FLASHSTEPS_PTX bool is_true(const T& predicate) {
  return get<bool>(predicate);
}

// {a, b}
template <typename... T>
FLASHSTEPS_PTX std::tuple<T&&...> vector(T&&... elements) {
  return {static_cast<T&&>(elements)...};
}
template <typename T>
constexpr int kElements = 1;
template <typename... T>
constexpr int kElements<std::tuple<T...>> = sizeof...(T);
template <typename T>
constexpr bool kIsVector = false;
template <typename... T>
constexpr bool kIsVector<std::tuple<T...>> = true;

template <typename T, int COUNT, typename Vector>
FLASHSTEPS_PTX void get_all(T (&to)[COUNT], const Vector& from) {
  static_assert(kElements<Vector> == COUNT, "PTX: this instruction has another number of registers in { }");
  if constexpr (!kIsVector<Vector>) {
    to[0] = get<T>(from);
  } else {
    [&]<size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
      ((to[I] = get<T>(std::get<I>(from))), ...);
    }
    (std::make_index_sequence<COUNT>());
  }
}
template <typename T, int COUNT, typename Vector>
FLASHSTEPS_PTX void put_all(Vector&& to, const T (&from)[COUNT]) {
  static_assert(kElements<std::remove_cvref_t<Vector>> == COUNT,
                "PTX: this instruction has another number of registers in { }");
  if constexpr (!kIsVector<std::remove_cvref_t<Vector>>) {
    put<T>(to, from[0]);
  } else {
    [&]<size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
      (put<T>(std::get<I>(to), from[I]), ...);
    }
    (std::make_index_sequence<COUNT>());
  }
}

// ---- Addresses: [a], [a + 16]

struct Address {
  uint64_t value;
};
template <typename Base, typename... Offsets>
FLASHSTEPS_PTX Address address(const Base& base, const Offsets&... offsets) {
  uint64_t value;
  if constexpr (kIsInteger<Base>) {
    value = get<Unsigned<Base>>(base);
  } else {
    value = get<uint64_t>(base);
  }
  ((value += get<uint64_t>(offsets)), ...);
  return {value};
}

enum class Space { kGeneric, kGlobal, kShared };
template <typename T, Space SPACE>
FLASHSTEPS_PTX T* pointer_to(Address address, Location at) {
  if constexpr (SPACE == Space::kShared) return static_cast<T*>(shared_pointer(address.value, at));
  return reinterpret_cast<T*>(address.value);
}
template <typename T>
FLASHSTEPS_PTX T* in_shared(Address address, Location at) {
  return pointer_to<T, Space::kShared>(address, at);
}

// ---- Types: X(name in PTX, type in C++)

#define FLASHSTEPS_PTX_INTEGERS(X) X(u16, uint16_t) X(s16, int16_t) FLASHSTEPS_PTX_INTEGERS_FROM_32(X)
#define FLASHSTEPS_PTX_INTEGERS_FROM_32(X) X(u32, uint32_t) X(s32, int32_t) X(u64, U64) X(s64, S64)
#define FLASHSTEPS_PTX_UNSIGNED(X) X(u16, uint16_t) X(u32, uint32_t) X(u64, U64)
#define FLASHSTEPS_PTX_BYTES(X) X(u8, uint8_t) X(s8, int8_t)
#define FLASHSTEPS_PTX_BITS(X) X(b16, B16) X(b32, B32) X(b64, B64)
#define FLASHSTEPS_PTX_WIDE_FLOATS(X) X(f32, float) X(f64, double)
#define FLASHSTEPS_PTX_HALVES(X) X(f16, __half) X(bf16, __nv_bfloat16)
#define FLASHSTEPS_PTX_PAIRS(X) X(f16x2, __half2) X(bf16x2, __nv_bfloat162)
#define FLASHSTEPS_PTX_FLOATS(X) \
  FLASHSTEPS_PTX_WIDE_FLOATS(X) FLASHSTEPS_PTX_HALVES(X) FLASHSTEPS_PTX_PAIRS(X)

// NAME(at, d, x, ...): d = RESULT, of a, b and c as T.
#define FLASHSTEPS_PTX_1(NAME, T, RESULT)             \
  template <typename D, typename X>                   \
  FLASHSTEPS_PTX void NAME(Location at, D&& d, X x) { \
    [[maybe_unused]] const Location here = at;        \
    const T a = get<T>(x);                            \
    put(d, RESULT);                                   \
  }
#define FLASHSTEPS_PTX_2(NAME, T, RESULT)               \
  template <typename D, typename X, typename Y>         \
  FLASHSTEPS_PTX void NAME(Location, D&& d, X x, Y y) { \
    const T a = get<T>(x), b = get<T>(y);               \
    put(d, RESULT);                                     \
  }
#define FLASHSTEPS_PTX_3(NAME, T, RESULT)                    \
  template <typename D, typename X, typename Y, typename Z>  \
  FLASHSTEPS_PTX void NAME(Location, D&& d, X x, Y y, Z z) { \
    const T a = get<T>(x), b = get<T>(y), c = get<T>(z);     \
    put(d, RESULT);                                          \
  }

// ---- Arithmetic

// Integers wrap around.
template <typename T>
FLASHSTEPS_PTX T sum(T a, T b) {
  if constexpr (kIsInteger<T>)
    return T(Unsigned<T>(a) + Unsigned<T>(b));
  else
    return a + b;
}
template <typename T>
FLASHSTEPS_PTX T difference(T a, T b) {
  if constexpr (kIsInteger<T>)
    return T(Unsigned<T>(a) - Unsigned<T>(b));
  else
    return a - b;
}
template <typename T>
FLASHSTEPS_PTX T negative(T a) {
  if constexpr (kIsInteger<T>)
    return T(0 - Unsigned<T>(a));
  else
    return -a;
}
template <typename T>
FLASHSTEPS_PTX T product(T a, T b) {
  if constexpr (kIsInteger<T>)
    return T((unsigned long long)(a) * (unsigned long long)(b));
  else
    return a * b;
}
template <typename T>
FLASHSTEPS_PTX T high_product(T a, T b) {
  using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  return T(Wide(a) * Wide(b) >> (8 * sizeof(T)));
}
template <typename T>
FLASHSTEPS_PTX auto wide_product(T a, T b) {
  using Wide = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                                  std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>>;
  return Wide(Wide(a) * Wide(b));
}
FLASHSTEPS_PTX float fused(float a, float b, float c) { return std::fma(a, b, c); }
FLASHSTEPS_PTX double fused(double a, double b, double c) { return std::fma(a, b, c); }
template <typename T>
FLASHSTEPS_PTX T fused(T a, T b, T c) {
  if constexpr (sizeof(T) == 2)
    return __hfma(a, b, c);
  else
    return __hfma2(a, b, c);
}
// -0 is less than +0. A NaN loses against a number, and wins in instructions with .NaN.
template <typename T>
FLASHSTEPS_PTX bool is_less(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a < b || (a == b && std::signbit(a) > std::signbit(b));
  return a < b;
}
template <bool NAN_WINS, typename T>
FLASHSTEPS_PTX T winner(T a, T b, bool a_wins) {
  if constexpr (std::is_floating_point_v<T>) {
    constexpr T kNan = std::bit_cast<T>(Unsigned<T>(~Unsigned<T>(0) >> 1));
    const int nans = int(a != a) + int(b != b);
    if (nans == 2 || (NAN_WINS && nans != 0)) return kNan;
    if (nans == 1) return a != a ? b : a;
  }
  return a_wins ? a : b;
}
template <bool NAN_WINS = false, typename T>
FLASHSTEPS_PTX T least(T a, T b) {
  if constexpr (std::is_arithmetic_v<T>)
    return winner<NAN_WINS>(a, b, is_less(a, b));
  else if constexpr (sizeof(T) == 2)
    return NAN_WINS ? __hmin_nan(a, b) : __hmin(a, b);
  else
    return NAN_WINS ? __hmin2_nan(a, b) : __hmin2(a, b);
}
template <bool NAN_WINS = false, typename T>
FLASHSTEPS_PTX T largest(T a, T b) {
  if constexpr (std::is_arithmetic_v<T>)
    return winner<NAN_WINS>(a, b, is_less(b, a));
  else if constexpr (sizeof(T) == 2)
    return NAN_WINS ? __hmax_nan(a, b) : __hmax(a, b);
  else
    return NAN_WINS ? __hmax2_nan(a, b) : __hmax2(a, b);
}
template <typename T>
FLASHSTEPS_PTX T magnitude(T a) {
  if constexpr (kIsInteger<T>)
    return a < 0 ? negative(a) : a;
  else if constexpr (std::is_floating_point_v<T>)
    return std::fabs(a);
  else if constexpr (sizeof(T) == 2)
    return __habs(a);
  else
    return __habs2(a);
}

#define FLASHSTEPS_PTX_X(TYPE, T)                   \
  FLASHSTEPS_PTX_2(add_##TYPE, T, sum(a, b))        \
  FLASHSTEPS_PTX_2(sub_##TYPE, T, difference(a, b)) \
  FLASHSTEPS_PTX_2(min_##TYPE, T, least(a, b))      \
  FLASHSTEPS_PTX_2(max_##TYPE, T, largest(a, b))
FLASHSTEPS_PTX_INTEGERS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_FLOATS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_X(TYPE, T)                          \
  FLASHSTEPS_PTX_2(min_NaN_##TYPE, T, (least<true>(a, b))) \
  FLASHSTEPS_PTX_2(max_NaN_##TYPE, T, (largest<true>(a, b)))
FLASHSTEPS_PTX_X(f32, float)
FLASHSTEPS_PTX_HALVES(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_PAIRS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_X(TYPE, T)                    \
  FLASHSTEPS_PTX_2(mul_##TYPE, T, product(a, b))     \
  FLASHSTEPS_PTX_3(fma_rn_##TYPE, T, fused(a, b, c)) \
  FLASHSTEPS_PTX_1(neg_##TYPE, T, negative(a))       \
  FLASHSTEPS_PTX_1(abs_##TYPE, T, magnitude(a))
FLASHSTEPS_PTX_FLOATS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_X(TYPE, T)                                \
  FLASHSTEPS_PTX_2(mul_lo_##TYPE, T, product(a, b))              \
  FLASHSTEPS_PTX_2(mul_hi_##TYPE, T, high_product(a, b))         \
  FLASHSTEPS_PTX_3(mad_lo_##TYPE, T, sum(product(a, b), c))      \
  FLASHSTEPS_PTX_3(mad_hi_##TYPE, T, sum(high_product(a, b), c)) \
  FLASHSTEPS_PTX_2(div_##TYPE, T, T(a / b))                      \
  FLASHSTEPS_PTX_2(rem_##TYPE, T, T(a % b))
FLASHSTEPS_PTX_INTEGERS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_X(TYPE, T)                                       \
  FLASHSTEPS_PTX_2(mul_wide_##TYPE, T, wide_product(a, b))              \
  template <typename D, typename X, typename Y, typename Z>             \
  FLASHSTEPS_PTX void mad_wide_##TYPE(Location, D&& d, X x, Y y, Z z) { \
    const auto ab = wide_product(get<T>(x), get<T>(y));                 \
    put(d, sum(ab, get<decltype(wide_product(T(), T()))>(z)));          \
  }
FLASHSTEPS_PTX_X(u16, uint16_t)
FLASHSTEPS_PTX_X(s16, int16_t)
FLASHSTEPS_PTX_X(u32, uint32_t)
FLASHSTEPS_PTX_X(s32, int32_t)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_X(TYPE, T)              \
  FLASHSTEPS_PTX_1(neg_##TYPE, T, negative(a)) \
  FLASHSTEPS_PTX_1(abs_##TYPE, T, magnitude(a))
FLASHSTEPS_PTX_X(s16, int16_t)
FLASHSTEPS_PTX_X(s32, int32_t)
FLASHSTEPS_PTX_X(s64, S64)
#undef FLASHSTEPS_PTX_X

// Approximations: the C library's are more exact than the hardware's.
FLASHSTEPS_PTX_2(div_full_f32, float, a / b)
FLASHSTEPS_PTX_2(div_approx_f32, float, a / b)
FLASHSTEPS_PTX_2(div_rn_f32, float, a / b)
FLASHSTEPS_PTX_2(div_rn_f64, double, a / b)
FLASHSTEPS_PTX_1(rcp_f32, float, 1 / a)
FLASHSTEPS_PTX_1(rcp_f64, double, 1 / a)
FLASHSTEPS_PTX_1(sqrt_f32, float, std::sqrt(a))
FLASHSTEPS_PTX_1(sqrt_f64, double, std::sqrt(a))
FLASHSTEPS_PTX_1(rsqrt_f32, float, 1 / std::sqrt(a))
FLASHSTEPS_PTX_1(rsqrt_f64, double, 1 / std::sqrt(a))
FLASHSTEPS_PTX_1(sin_approx_f32, float, std::sin(a))
FLASHSTEPS_PTX_1(cos_approx_f32, float, std::cos(a))
FLASHSTEPS_PTX_1(lg2_approx_f32, float, std::log2(a))
FLASHSTEPS_PTX_1(ex2_approx_f32, float, exp2_in_kernel(a, here))
FLASHSTEPS_PTX_1(ex2_approx_ftz_f32, float, flashsteps::exp2_approx(a, here))
FLASHSTEPS_PTX_1(ex2_approx_f16, __half, hexp2(a))
FLASHSTEPS_PTX_1(ex2_approx_f16x2, __half2, flashsteps::exp2_approx(a, here))
FLASHSTEPS_PTX_1(ex2_approx_bf16, __nv_bfloat16, hexp2(a))
FLASHSTEPS_PTX_1(ex2_approx_bf16x2, __nv_bfloat162, h2exp2(a))
FLASHSTEPS_PTX_1(tanh_approx_f32, float, std::tanh(a))
FLASHSTEPS_PTX_1(tanh_approx_f16, __half, htanh(a))
FLASHSTEPS_PTX_1(tanh_approx_f16x2, __half2, (__half2{htanh(a.x), htanh(a.y)}))
FLASHSTEPS_PTX_1(tanh_approx_bf16, __nv_bfloat16, htanh(a))
FLASHSTEPS_PTX_1(tanh_approx_bf16x2, __nv_bfloat162, (__nv_bfloat162{htanh(a.x), htanh(a.y)}))

// ---- Bits

#define FLASHSTEPS_PTX_X(TYPE, T)               \
  FLASHSTEPS_PTX_2(and_##TYPE, T, T((a) & (b))) \
  FLASHSTEPS_PTX_2(or_##TYPE, T, T(a | b))      \
  FLASHSTEPS_PTX_2(xor_##TYPE, T, T(a ^ b))
FLASHSTEPS_PTX_BITS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_X(pred, bool)
#undef FLASHSTEPS_PTX_X
FLASHSTEPS_PTX_1(not_pred, bool, !a)
FLASHSTEPS_PTX_1(not_b16, B16, B16(~a))
FLASHSTEPS_PTX_1(not_b32, B32, ~a)
FLASHSTEPS_PTX_1(not_b64, B64, ~a)

// By more than there are bits, nothing is left but the sign.
template <typename T>
FLASHSTEPS_PTX T shifted_left(T a, uint32_t count) {
  return count < 8 * sizeof(T) ? T(a << count) : T(0);
}
template <typename T>
FLASHSTEPS_PTX T shifted_right(T a, uint32_t count) {
  return T(a >> (count < 8 * sizeof(T) ? count : 8 * sizeof(T) - 1)) >> (count >= 8 * sizeof(T) ? 1 : 0);
}
#define FLASHSTEPS_PTX_X(TYPE, T)                                 \
  template <typename D, typename X, typename Y>                   \
  FLASHSTEPS_PTX void shl_##TYPE(Location, D&& d, X x, Y count) { \
    put(d, shifted_left(get<T>(x), get<uint32_t>(count)));        \
  }
FLASHSTEPS_PTX_BITS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_X(TYPE, T)                                 \
  template <typename D, typename X, typename Y>                   \
  FLASHSTEPS_PTX void shr_##TYPE(Location, D&& d, X x, Y count) { \
    put(d, shifted_right(get<T>(x), get<uint32_t>(count)));       \
  }
FLASHSTEPS_PTX_BITS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_INTEGERS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X

// Of b:a, the upper (l) or lower (r) half when it is shifted; by c modulo 32, or by at most 32.
FLASHSTEPS_PTX_3(shf_l_wrap_b32, uint32_t, uint32_t((uint64_t(b) << 32 | a) << (c & 31) >> 32))
FLASHSTEPS_PTX_3(shf_r_wrap_b32, uint32_t, uint32_t((uint64_t(b) << 32 | a) >> (c & 31)))
FLASHSTEPS_PTX_3(shf_l_clamp_b32, uint32_t, uint32_t((uint64_t(b) << 32 | a) << least(c, 32u) >> 32))
FLASHSTEPS_PTX_3(shf_r_clamp_b32, uint32_t, uint32_t((uint64_t(b) << 32 | a) >> least(c, 32u)))

// Bit 4 a + 2 b + c of the table is what becomes of three bits.
template <typename D, typename X, typename Y, typename Z, typename Table>
FLASHSTEPS_PTX void lop3_b32(Location, D&& d, X x, Y y, Z z, Table table) {
  const uint32_t a = get<uint32_t>(x), b = get<uint32_t>(y), c = get<uint32_t>(z);
  uint32_t result = 0;
  for (int i = 0; i < 8; ++i) {
    if ((get<uint32_t>(table) >> i & 1) != 0)
      result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  put(d, result);
}

// Each hex digit of the selector picks one of the 8 bytes b:a, or, from 8 on, its sign in all bits.
template <typename D, typename X, typename Y, typename Z>
FLASHSTEPS_PTX void prmt_b32(Location, D&& d, X x, Y y, Z selector) {
  const uint64_t bytes = uint64_t(get<uint32_t>(y)) << 32 | get<uint32_t>(x);
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t digit = get<uint32_t>(selector) >> 4 * i & 15;
    const uint8_t byte = uint8_t(bytes >> 8 * (digit & 7));
    result |= uint32_t(digit < 8 ? byte : byte >= 0x80 ? 0xff : 0) << 8 * i;
  }
  put(d, result);
}

template <typename T>
FLASHSTEPS_PTX T reversed(T bits) {
  T result = 0;
  for (size_t i = 0; i < 8 * sizeof(T); ++i) result |= T(bits >> i & 1) << (8 * sizeof(T) - 1 - i);
  return result;
}
#define FLASHSTEPS_PTX_X(TYPE, T)                                                                \
  FLASHSTEPS_PTX_1(popc_##TYPE, T, uint32_t(std::popcount(a)))                                   \
  FLASHSTEPS_PTX_1(clz_##TYPE, T, uint32_t(std::countl_zero(a)))                                 \
  FLASHSTEPS_PTX_1(brev_##TYPE, T, reversed(a))                                                  \
  /* b, with `length` bits of a from `position` on */                                            \
  template <typename D, typename X, typename Y, typename P, typename L>                          \
  FLASHSTEPS_PTX void bfi_##TYPE(Location, D&& d, X x, Y y, P position, L length) {              \
    const uint32_t first = get<uint32_t>(position) & 0xff, count = get<uint32_t>(length) & 0xff; \
    const T ones = T(~shifted_left(T(~T(0)), count));                                            \
    const T mask = shifted_left(ones, first);                                                    \
    put(d, T((shifted_left(get<T>(x), first) & mask) | (get<T>(y) & ~mask)));                    \
  }
FLASHSTEPS_PTX_X(b32, B32)
FLASHSTEPS_PTX_X(b64, B64)
#undef FLASHSTEPS_PTX_X
// The number of the highest bit that is set, or of negative numbers that is not; -1 if there is none.
#define FLASHSTEPS_PTX_X(TYPE, T) \
  FLASHSTEPS_PTX_1(bfind_##TYPE, T, uint32_t(std::bit_width(Unsigned<T>(a < 0 ? T(~a) : a))) - 1)
FLASHSTEPS_PTX_INTEGERS_FROM_32(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X
// `length` bits of a from `position` on; of signed types the last one is the sign.
#define FLASHSTEPS_PTX_X(TYPE, T)                                                                         \
  template <typename D, typename X, typename P, typename L>                                               \
  FLASHSTEPS_PTX void bfe_##TYPE(Location, D&& d, X x, P position, L length) {                            \
    const uint32_t first = get<uint32_t>(position) & 0xff, count = get<uint32_t>(length) & 0xff;          \
    constexpr uint32_t kBits = 8 * sizeof(T);                                                             \
    const T rest = shifted_right(get<T>(x), first);                                                       \
    put(d, count == 0 ? T(0) : count >= kBits ? rest : T(T(rest << (kBits - count)) >> (kBits - count))); \
  }
FLASHSTEPS_PTX_INTEGERS_FROM_32(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X

// ---- Choices

#define FLASHSTEPS_PTX_X(TYPE, T)                                   \
  template <typename D, typename X, typename Y, typename P>         \
  FLASHSTEPS_PTX void selp_##TYPE(Location, D&& d, X x, Y y, P p) { \
    put(d, is_true(p) ? get<T>(x) : get<T>(y));                     \
  }
FLASHSTEPS_PTX_BITS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_INTEGERS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_WIDE_FLOATS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X

// setp p, a, b and setp p|q, a, b, where q is the opposite; setp.lt.and p, a, b, c also takes a predicate.
#define FLASHSTEPS_PTX_COMPARE(NAME, TYPE, T, CONDITION)                \
  template <typename P, typename X, typename Y>                         \
  FLASHSTEPS_PTX void NAME##_##TYPE(Location, P&& p, X x, Y y) {        \
    const T a = get<T>(x), b = get<T>(y);                               \
    put(p, bool(CONDITION));                                            \
  }                                                                     \
  template <typename P, typename Q, typename X, typename Y>             \
  FLASHSTEPS_PTX void NAME##_##TYPE(Location, P&& p, Q&& q, X x, Y y) { \
    const T a = get<T>(x), b = get<T>(y);                               \
    put(p, bool(CONDITION));                                            \
    put(q, !bool(CONDITION));                                           \
  }                                                                     \
  FLASHSTEPS_PTX_COMPARE_AND(NAME##_and_##TYPE, T, CONDITION, &)        \
  FLASHSTEPS_PTX_COMPARE_AND(NAME##_or_##TYPE, T, CONDITION, |)         \
  FLASHSTEPS_PTX_COMPARE_AND(NAME##_xor_##TYPE, T, CONDITION, ^)
#define FLASHSTEPS_PTX_COMPARE_AND(NAME, T, CONDITION, OPERATION)       \
  template <typename P, typename X, typename Y, typename C>             \
  FLASHSTEPS_PTX void NAME(Location, P&& p, X x, Y y, C c) {            \
    const T a = get<T>(x), b = get<T>(y);                               \
    put(p, bool(bool(CONDITION) OPERATION is_true(c)));                 \
  }                                                                     \
  template <typename P, typename Q, typename X, typename Y, typename C> \
  FLASHSTEPS_PTX void NAME(Location, P&& p, Q&& q, X x, Y y, C c) {     \
    const T a = get<T>(x), b = get<T>(y);                               \
    put(p, bool(bool(CONDITION) OPERATION is_true(c)));                 \
    put(q, bool(!bool(CONDITION) OPERATION is_true(c)));                \
  }
#define FLASHSTEPS_PTX_X(TYPE, T)                  \
  FLASHSTEPS_PTX_COMPARE(setp_eq, TYPE, T, a == b) \
  FLASHSTEPS_PTX_COMPARE(setp_ne, TYPE, T, !(a == b))
FLASHSTEPS_PTX_BITS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_INTEGERS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_X(TYPE, T)                  \
  FLASHSTEPS_PTX_COMPARE(setp_lt, TYPE, T, a < b)  \
  FLASHSTEPS_PTX_COMPARE(setp_le, TYPE, T, a <= b) \
  FLASHSTEPS_PTX_COMPARE(setp_gt, TYPE, T, a > b)  \
  FLASHSTEPS_PTX_COMPARE(setp_ge, TYPE, T, a >= b)
FLASHSTEPS_PTX_INTEGERS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_X(TYPE, T)                  \
  FLASHSTEPS_PTX_COMPARE(setp_lo, TYPE, T, a < b)  \
  FLASHSTEPS_PTX_COMPARE(setp_ls, TYPE, T, a <= b) \
  FLASHSTEPS_PTX_COMPARE(setp_hi, TYPE, T, a > b)  \
  FLASHSTEPS_PTX_COMPARE(setp_hs, TYPE, T, a >= b)
FLASHSTEPS_PTX_UNSIGNED(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X
// A comparison with a NaN is false, and true if its name ends in u.
#define FLASHSTEPS_PTX_X(TYPE, T)                                                              \
  FLASHSTEPS_PTX_COMPARE(setp_eq, TYPE, T, double(a) == double(b))                             \
  FLASHSTEPS_PTX_COMPARE(setp_ne, TYPE, T, double(a) < double(b) || double(a) > double(b))     \
  FLASHSTEPS_PTX_COMPARE(setp_lt, TYPE, T, double(a) < double(b))                              \
  FLASHSTEPS_PTX_COMPARE(setp_le, TYPE, T, double(a) <= double(b))                             \
  FLASHSTEPS_PTX_COMPARE(setp_gt, TYPE, T, double(a) > double(b))                              \
  FLASHSTEPS_PTX_COMPARE(setp_ge, TYPE, T, double(a) >= double(b))                             \
  FLASHSTEPS_PTX_COMPARE(setp_equ, TYPE, T, !(double(a) < double(b) || double(a) > double(b))) \
  FLASHSTEPS_PTX_COMPARE(setp_neu, TYPE, T, !(double(a) == double(b)))                         \
  FLASHSTEPS_PTX_COMPARE(setp_ltu, TYPE, T, !(double(a) >= double(b)))                         \
  FLASHSTEPS_PTX_COMPARE(setp_leu, TYPE, T, !(double(a) > double(b)))                          \
  FLASHSTEPS_PTX_COMPARE(setp_gtu, TYPE, T, !(double(a) <= double(b)))                         \
  FLASHSTEPS_PTX_COMPARE(setp_geu, TYPE, T, !(double(a) < double(b)))                          \
  FLASHSTEPS_PTX_COMPARE(setp_num, TYPE, T, double(a) == double(a) && double(b) == double(b))  \
  FLASHSTEPS_PTX_COMPARE(setp_nan, TYPE, T, double(a) != double(a) || double(b) != double(b))
FLASHSTEPS_PTX_WIDE_FLOATS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_HALVES(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X

// ---- mov: a register, or one as the elements of a vector, the first one in the lowest bits

template <typename T, typename... From>
FLASHSTEPS_PTX T packed(const std::tuple<From...>& vector) {
  using Element = Bits<sizeof(T) / sizeof...(From)>;
  Element elements[sizeof...(From)];
  get_all(elements, vector);
  return std::bit_cast<T>(elements);
}
template <typename T, typename D, typename X>
FLASHSTEPS_PTX void move(D&& d, const X& x) {
  using To = std::remove_cvref_t<D>;
  if constexpr (kIsVector<X>) {
    put(d, packed<T>(x));
  } else if constexpr (kIsVector<To>) {
    using Element = Bits<sizeof(T) / size_t(kElements<To>)>;
    struct Elements {
      Element of[size_t(kElements<To>)];
    };
    const Elements elements = std::bit_cast<Elements>(get<T>(x));
    put_all(d, elements.of);
  } else {
    put(d, get<T>(x));
  }
}
#define FLASHSTEPS_PTX_X(TYPE, T)                               \
  template <typename D, typename X>                             \
  FLASHSTEPS_PTX void mov_##TYPE(Location, D&& d, const X& x) { \
    move<T>(d, x);                                              \
  }
FLASHSTEPS_PTX_X(pred, bool)
FLASHSTEPS_PTX_X(b128, B128)
FLASHSTEPS_PTX_BITS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_INTEGERS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_WIDE_FLOATS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X

// Special registers
FLASHSTEPS_PTX uint32_t thread_index() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
FLASHSTEPS_PTX uint32_t num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
#define FLASHSTEPS_PTX_SPECIAL(NAME, T, VALUE) \
  FLASHSTEPS_PTX T special_##NAME() { return T(VALUE); }
#define FLASHSTEPS_PTX_X(NAME, VARIABLE)                 \
  FLASHSTEPS_PTX_SPECIAL(NAME##_x, uint32_t, VARIABLE.x) \
  FLASHSTEPS_PTX_SPECIAL(NAME##_y, uint32_t, VARIABLE.y) \
  FLASHSTEPS_PTX_SPECIAL(NAME##_z, uint32_t, VARIABLE.z)
FLASHSTEPS_PTX_X(tid, threadIdx)
FLASHSTEPS_PTX_X(ntid, blockDim)
FLASHSTEPS_PTX_X(ctaid, blockIdx)
FLASHSTEPS_PTX_X(nctaid, gridDim)
#undef FLASHSTEPS_PTX_X
FLASHSTEPS_PTX_SPECIAL(laneid, uint32_t, thread_index() % 32)
FLASHSTEPS_PTX_SPECIAL(warpid, uint32_t, thread_index() / 32)
FLASHSTEPS_PTX_SPECIAL(nwarpid, uint32_t, 64)
FLASHSTEPS_PTX_SPECIAL(nsmid, uint32_t, 132)
FLASHSTEPS_PTX_SPECIAL(smid, uint32_t, blockIdx.x % special_nsmid())
FLASHSTEPS_PTX_SPECIAL(clock, uint32_t, ticks())
FLASHSTEPS_PTX_SPECIAL(clock64, uint64_t, ticks())
FLASHSTEPS_PTX_SPECIAL(globaltimer, uint64_t, ticks())
FLASHSTEPS_PTX_SPECIAL(globaltimer_lo, uint32_t, ticks())
FLASHSTEPS_PTX_SPECIAL(lanemask_eq, uint32_t, 1u << special_laneid())
FLASHSTEPS_PTX_SPECIAL(lanemask_lt, uint32_t, special_lanemask_eq() - 1)
FLASHSTEPS_PTX_SPECIAL(lanemask_le, uint32_t, special_lanemask_lt() | special_lanemask_eq())
FLASHSTEPS_PTX_SPECIAL(lanemask_ge, uint32_t, ~special_lanemask_lt())
FLASHSTEPS_PTX_SPECIAL(lanemask_gt, uint32_t, ~special_lanemask_le())
FLASHSTEPS_PTX_SPECIAL(dynamic_smem_size, uint32_t, dynamic_shared_bytes())
FLASHSTEPS_PTX_SPECIAL(cluster_ctarank, uint32_t, cluster_rank())
FLASHSTEPS_PTX_SPECIAL(cluster_nctarank, uint32_t, cluster_size())
#define FLASHSTEPS_PTX_X(DIMENSION)                                                                         \
  FLASHSTEPS_PTX_SPECIAL(cluster_ctaid_##DIMENSION, uint32_t, blockIdx.DIMENSION % cluster_dim().DIMENSION) \
  FLASHSTEPS_PTX_SPECIAL(cluster_nctaid_##DIMENSION, uint32_t, cluster_dim().DIMENSION)                     \
  FLASHSTEPS_PTX_SPECIAL(clusterid_##DIMENSION, uint32_t, blockIdx.DIMENSION / cluster_dim().DIMENSION)     \
  FLASHSTEPS_PTX_SPECIAL(nclusterid_##DIMENSION, uint32_t, gridDim.DIMENSION / cluster_dim().DIMENSION)
FLASHSTEPS_PTX_X(x)
FLASHSTEPS_PTX_X(y)
FLASHSTEPS_PTX_X(z)
#undef FLASHSTEPS_PTX_X

// ---- Conversions

#define FLASHSTEPS_PTX_ALL_INTEGERS(X) FLASHSTEPS_PTX_BYTES(X) FLASHSTEPS_PTX_INTEGERS(X)
#define FLASHSTEPS_PTX_CONVERT(TO, TO_T, FROM, FROM_T) FLASHSTEPS_PTX_1(cvt_##TO##_##FROM, FROM_T, TO_T(a))
// To FROM from all integers.
#define FLASHSTEPS_PTX_X(TO, T)                          \
  FLASHSTEPS_PTX_CONVERT(TO, T, u8, uint8_t)             \
  FLASHSTEPS_PTX_CONVERT(TO, T, s8, int8_t)              \
  FLASHSTEPS_PTX_CONVERT(TO, T, u16, uint16_t)           \
  FLASHSTEPS_PTX_CONVERT(TO, T, s16, int16_t)            \
  FLASHSTEPS_PTX_CONVERT(TO, T, u32, uint32_t)           \
  FLASHSTEPS_PTX_CONVERT(TO, T, s32, int32_t)            \
  FLASHSTEPS_PTX_CONVERT(TO, T, u64, unsigned long long) \
  FLASHSTEPS_PTX_CONVERT(TO, T, s64, long long)
FLASHSTEPS_PTX_ALL_INTEGERS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_HALVES(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_WIDE_FLOATS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X

// What does not fit becomes the nearest that does. A NaN becomes 0; from f64, and in 64 bits, the upper bit.
template <typename T, typename From>
FLASHSTEPS_PTX T to_integer(double value) {
  constexpr bool kNanIsZero = sizeof(T) < 8 && !std::is_same_v<From, double>;
  if (value != value) return kNanIsZero ? T(0) : T(Unsigned<T>(1) << (8 * sizeof(T) - 1));
  constexpr T kMin = std::numeric_limits<T>::min(), kMax = std::numeric_limits<T>::max();
  return value <= double(kMin) ? kMin : value >= double(kMax) ? kMax : T(value);
}
#define FLASHSTEPS_PTX_ROUND(TO, T, FROM, FROM_T)                                                     \
  FLASHSTEPS_PTX_1(cvt_rni_##TO##_##FROM, FROM_T, (to_integer<T, FROM_T>(std::nearbyint(double(a))))) \
  FLASHSTEPS_PTX_1(cvt_rzi_##TO##_##FROM, FROM_T, (to_integer<T, FROM_T>(std::trunc(double(a)))))     \
  FLASHSTEPS_PTX_1(cvt_rmi_##TO##_##FROM, FROM_T, (to_integer<T, FROM_T>(std::floor(double(a)))))     \
  FLASHSTEPS_PTX_1(cvt_rpi_##TO##_##FROM, FROM_T, (to_integer<T, FROM_T>(std::ceil(double(a)))))
#define FLASHSTEPS_PTX_X(TO, T)                    \
  FLASHSTEPS_PTX_ROUND(TO, T, f16, __half)         \
  FLASHSTEPS_PTX_ROUND(TO, T, bf16, __nv_bfloat16) \
  FLASHSTEPS_PTX_ROUND(TO, T, f32, float)          \
  FLASHSTEPS_PTX_ROUND(TO, T, f64, double)
FLASHSTEPS_PTX_ALL_INTEGERS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_X(TYPE, T)                                 \
  FLASHSTEPS_PTX_1(cvt_rni_##TYPE##_##TYPE, T, std::nearbyint(a)) \
  FLASHSTEPS_PTX_1(cvt_rzi_##TYPE##_##TYPE, T, std::trunc(a))     \
  FLASHSTEPS_PTX_1(cvt_rmi_##TYPE##_##TYPE, T, std::floor(a))     \
  FLASHSTEPS_PTX_1(cvt_rpi_##TYPE##_##TYPE, T, std::ceil(a))
FLASHSTEPS_PTX_WIDE_FLOATS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X

FLASHSTEPS_PTX_1(cvt_f32_f16, __half, float(a))
FLASHSTEPS_PTX_1(cvt_f32_bf16, __nv_bfloat16, float(a))
FLASHSTEPS_PTX_1(cvt_f64_f16, __half, double(a))
FLASHSTEPS_PTX_1(cvt_f64_f32, float, double(a))
FLASHSTEPS_PTX_1(cvt_f16_f32, float, __half(a))
FLASHSTEPS_PTX_1(cvt_bf16_f32, float, __nv_bfloat16(a))
FLASHSTEPS_PTX_1(cvt_f16_f64, double, __half(a))
FLASHSTEPS_PTX_1(cvt_f32_f64, double, float(a))
// Of two, the first one goes into the upper half.
FLASHSTEPS_PTX_2(cvt_f16x2_f32, float, (__half2{b, a}))
FLASHSTEPS_PTX_2(cvt_bf16x2_f32, float, (__nv_bfloat162{b, a}))
// -0 becomes 0, too.
FLASHSTEPS_PTX float not_negative(float a) { return a <= 0 ? 0 : a; }
FLASHSTEPS_PTX_1(cvt_relu_f16_f32, float, __half(not_negative(a)))
FLASHSTEPS_PTX_1(cvt_relu_bf16_f32, float, __nv_bfloat16(not_negative(a)))
FLASHSTEPS_PTX_2(cvt_relu_f16x2_f32, float, (__half2{not_negative(b), not_negative(a)}))
FLASHSTEPS_PTX_2(cvt_relu_bf16x2_f32, float, (__nv_bfloat162{not_negative(b), not_negative(a)}))
FLASHSTEPS_PTX_2(cvt_e4m3x2_f32, float, B16(float_to_e4m3_bits(b) | float_to_e4m3_bits(a) << 8))
FLASHSTEPS_PTX_1(cvt_e4m3x2_f16x2, __half2, B16(float_to_e4m3_bits(a.x) | float_to_e4m3_bits(a.y) << 8))
FLASHSTEPS_PTX_1(cvt_f16x2_e4m3x2, B16,
                 (__half2{e4m3_bits_to_float(uint8_t(a)), e4m3_bits_to_float(uint8_t(a >> 8))}))
FLASHSTEPS_PTX_2(cvt_e5m2x2_f32, float, B16(float_to_e5m2_bits(b) | float_to_e5m2_bits(a) << 8))
FLASHSTEPS_PTX_1(cvt_e5m2x2_f16x2, __half2, B16(float_to_e5m2_bits(a.x) | float_to_e5m2_bits(a.y) << 8))
FLASHSTEPS_PTX_1(cvt_f16x2_e5m2x2, B16, uint32_t(a & 0xff) << 8 | uint32_t(a & 0xff00) << 16)
// TF32 has the upper 19 bits of a float.
FLASHSTEPS_PTX uint32_t to_tf32(uint32_t bits, bool to_even) {
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fffffff;
  return (bits + (to_even ? 0xfff + (bits >> 13 & 1) : 0x1000)) & 0xffffe000;
}
FLASHSTEPS_PTX_1(cvt_rna_tf32_f32, uint32_t, to_tf32(a, false))
FLASHSTEPS_PTX_1(cvt_rn_tf32_f32, uint32_t, to_tf32(a, true))

// With .sat what does not fit becomes the nearest that does; of floats, that is from 0 to 1, and a NaN 0.
template <typename T, typename From>
FLASHSTEPS_PTX T saturated(From a) {
  constexpr T kMin = std::numeric_limits<T>::min(), kMax = std::numeric_limits<T>::max();
  return std::cmp_less(a, kMin) ? kMin : std::cmp_greater(a, kMax) ? kMax : T(a);
}
#define FLASHSTEPS_PTX_SATURATE(TO, TO_T, FROM, FROM_T) \
  FLASHSTEPS_PTX_1(cvt_sat_##TO##_##FROM, FROM_T, saturated<TO_T>(a))
#define FLASHSTEPS_PTX_X(TO, T)                 \
  FLASHSTEPS_PTX_SATURATE(TO, T, u16, uint16_t) \
  FLASHSTEPS_PTX_SATURATE(TO, T, s16, int16_t)  \
  FLASHSTEPS_PTX_SATURATE(TO, T, u32, uint32_t) \
  FLASHSTEPS_PTX_SATURATE(TO, T, s32, int32_t)  \
  FLASHSTEPS_PTX_SATURATE(TO, T, u64, U64)      \
  FLASHSTEPS_PTX_SATURATE(TO, T, s64, S64)
FLASHSTEPS_PTX_ALL_INTEGERS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X
FLASHSTEPS_PTX_1(cvt_sat_f32_f32, float, cuda::__saturatef(a))
// a and b as the lower 16 bits, a above b, and the lower half of c above them.
#define FLASHSTEPS_PTX_X(TYPE, T)                                                    \
  FLASHSTEPS_PTX_3(cvt_pack_sat_##TYPE##_s32_b32, int32_t,                           \
                   uint32_t(c) << 16 | uint32_t(Unsigned<T>(saturated<T>(a))) << 8 | \
                       uint32_t(Unsigned<T>(saturated<T>(b))))
FLASHSTEPS_PTX_BYTES(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X

// A generic address is the host's. Global memory has no others.
#define FLASHSTEPS_PTX_X(TYPE, T)                                                                  \
  FLASHSTEPS_PTX_1(cvta_to_shared_##TYPE, uint64_t, T(shared_address(reinterpret_cast<void*>(a)))) \
  FLASHSTEPS_PTX_1(cvta_to_global_##TYPE, T, a)                                                    \
  FLASHSTEPS_PTX_1(cvta_to_const_##TYPE, T, a)                                                     \
  FLASHSTEPS_PTX_1(cvta_to_local_##TYPE, T, a)                                                     \
  FLASHSTEPS_PTX_1(cvta_shared_##TYPE, T, uint64_t(shared_pointer(a, here)))                       \
  FLASHSTEPS_PTX_1(cvta_global_##TYPE, T, a)
FLASHSTEPS_PTX_X(u32, uint32_t)
FLASHSTEPS_PTX_X(u64, U64)
#undef FLASHSTEPS_PTX_X
FLASHSTEPS_PTX_1(isspacep_shared, uint64_t, is_shared(reinterpret_cast<void*>(a)))
FLASHSTEPS_PTX_1(isspacep_global, uint64_t, !is_shared(reinterpret_cast<void*>(a)))

// ---- Loads and stores. A vector is one access.

enum class Order { kPlain, kVolatile, kAcquire, kRelease };

template <typename T, int COUNT>
struct InMemory {
  typedef T Type __attribute__((vector_size(sizeof(T) * COUNT)));
};
template <typename T>
struct InMemory<T, 1> {
  using Type = T;
};

template <typename T, Space SPACE, Order ORDER, typename D>
FLASHSTEPS_PTX void load(D&& d, Address from, Location at) {
  constexpr int COUNT = kElements<std::remove_cvref_t<D>>;
  using Whole = typename InMemory<T, COUNT>::Type;
  const Whole* const pointer = pointer_to<const Whole, SPACE>(from, at);
  Whole whole;
  if constexpr (ORDER == Order::kPlain) {
    whole = *pointer;
  } else {
    whole = *static_cast<const volatile Whole*>(pointer);
  }
  if constexpr (ORDER == Order::kAcquire) thread_fence();
  if constexpr (COUNT == 1) {
    put<T>(d, whole);
  } else {
    [&]<size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
      (put<T>(std::get<I>(d), whole[I]), ...);
    }
    (std::make_index_sequence<COUNT>());
  }
}
template <typename T, Space SPACE, Order ORDER, typename X>
FLASHSTEPS_PTX void store(Address to, const X& x, Location at) {
  constexpr int COUNT = kElements<X>;
  using Whole = typename InMemory<T, COUNT>::Type;
  Whole* const pointer = pointer_to<Whole, SPACE>(to, at);
  Whole whole;
  if constexpr (COUNT == 1) {
    whole = get<T>(x);
  } else {
    [&]<size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
      ((whole[I] = get<T>(std::get<I>(x))), ...);
    }
    (std::make_index_sequence<COUNT>());
  }
  if constexpr (ORDER == Order::kRelease) thread_fence();
  if constexpr (ORDER == Order::kPlain) {
    *pointer = whole;
  } else {
    *static_cast<volatile Whole*>(pointer) = whole;
  }
}

#define FLASHSTEPS_PTX_LOAD(NAME, T, SPACE, ORDER)                                    \
  template <typename D, typename... Policy>                                           \
  FLASHSTEPS_PTX void ld_##NAME(Location at, D&& d, Address from, const Policy&...) { \
    load<T, Space::SPACE, Order::ORDER>(d, from, at);                                 \
  }
#define FLASHSTEPS_PTX_STORE(NAME, T, SPACE, ORDER)                                      \
  template <typename X, typename... Policy>                                              \
  FLASHSTEPS_PTX void st_##NAME(Location at, Address to, const X& x, const Policy&...) { \
    store<T, Space::SPACE, Order::ORDER>(to, x, at);                                     \
  }
#define FLASHSTEPS_PTX_ACCESS(ACCESS, PREFIX, TYPE, T, ORDER)           \
  FLASHSTEPS_PTX_##ACCESS(PREFIX##TYPE, T, kGeneric, ORDER)             \
      FLASHSTEPS_PTX_##ACCESS(PREFIX##global_##TYPE, T, kGlobal, ORDER) \
          FLASHSTEPS_PTX_##ACCESS(PREFIX##shared_##TYPE, T, kShared, ORDER)
#define FLASHSTEPS_PTX_X(TYPE, T)                             \
  FLASHSTEPS_PTX_ACCESS(LOAD, , TYPE, T, kPlain)              \
  FLASHSTEPS_PTX_ACCESS(LOAD, volatile_, TYPE, T, kVolatile)  \
  FLASHSTEPS_PTX_ACCESS(LOAD, relaxed_, TYPE, T, kVolatile)   \
  FLASHSTEPS_PTX_ACCESS(LOAD, acquire_, TYPE, T, kAcquire)    \
  FLASHSTEPS_PTX_ACCESS(STORE, , TYPE, T, kPlain)             \
  FLASHSTEPS_PTX_ACCESS(STORE, volatile_, TYPE, T, kVolatile) \
  FLASHSTEPS_PTX_ACCESS(STORE, relaxed_, TYPE, T, kVolatile)  \
  FLASHSTEPS_PTX_ACCESS(STORE, release_, TYPE, T, kRelease)
FLASHSTEPS_PTX_X(b8, B8)
FLASHSTEPS_PTX_X(b128, B128)
FLASHSTEPS_PTX_BYTES(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_BITS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_INTEGERS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_WIDE_FLOATS(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X

// ---- Atomic operations: atom d, [a], b and red [a], b; cas has two operands. Each element of a vector is
// updated on its own.

enum class Ordering { kRelaxed, kAcquire, kRelease, kAcquireAndRelease };

template <typename T, Atomic OPERATION, Space SPACE, Ordering ORDERING, int COUNT>
FLASHSTEPS_PTX void atomically(Address address, T (&elements)[COUNT], Location at) {
  if constexpr (ORDERING == Ordering::kRelease || ORDERING == Ordering::kAcquireAndRelease) thread_fence();
  T* const pointer = pointer_to<T, SPACE>(address, at);
  for (int i = 0; i < COUNT; ++i) elements[i] = atomic<T>(OPERATION, pointer + i, elements[i], at);
  if constexpr (ORDERING == Ordering::kAcquire || ORDERING == Ordering::kAcquireAndRelease) thread_fence();
}
#define FLASHSTEPS_PTX_ATOMIC_NAMED(NAME, T, OPERATION, SPACE, ORDERING)                               \
  template <typename D, typename X, typename... Policy>                                                \
  FLASHSTEPS_PTX void atom_##NAME(Location at, D&& d, Address address, const X& x, const Policy&...) { \
    T elements[size_t(kElements<X>)];                                                                  \
    get_all(elements, x);                                                                              \
    atomically<T, Atomic::OPERATION, Space::SPACE, Ordering::ORDERING>(address, elements, at);         \
    if constexpr (!std::is_same_v<std::remove_cvref_t<D>, Sink>) put_all(d, elements);                 \
  }                                                                                                    \
  template <typename X, typename... Policy>                                                            \
  FLASHSTEPS_PTX void red_##NAME(Location at, Address address, const X& x, const Policy&...) {         \
    atom_##NAME(at, Sink(), address, x);                                                               \
  }
#define FLASHSTEPS_PTX_COMPARE_AND_SWAP(NAME, T, SPACE, ORDERING)                                           \
  template <typename D, typename X, typename Y>                                                             \
  FLASHSTEPS_PTX void atom_##NAME(Location at, D&& d, Address address, const X& x, const Y& y) {            \
    if constexpr (Ordering::ORDERING != Ordering::kRelaxed) thread_fence();                                 \
    put(d, atomic_compare_and_swap<T>(pointer_to<T, Space::SPACE>(address, at), get<T>(x), get<T>(y), at)); \
    if constexpr (Ordering::ORDERING != Ordering::kRelaxed) thread_fence();                                 \
  }
// In every state space, with every order.
#define FLASHSTEPS_PTX_SPACES(MACRO, ORDER, ORDERING, REST, ...) \
  MACRO(ORDER##REST, __VA_ARGS__, kGeneric, ORDERING)            \
  MACRO(ORDER##global_##REST, __VA_ARGS__, kGlobal, ORDERING)    \
  MACRO(ORDER##shared_##REST, __VA_ARGS__, kShared, ORDERING)
#define FLASHSTEPS_PTX_ORDERS(MACRO, REST, ...)                       \
  FLASHSTEPS_PTX_SPACES(MACRO, , kRelaxed, REST, __VA_ARGS__)         \
  FLASHSTEPS_PTX_SPACES(MACRO, relaxed_, kRelaxed, REST, __VA_ARGS__) \
  FLASHSTEPS_PTX_SPACES(MACRO, acquire_, kAcquire, REST, __VA_ARGS__) \
  FLASHSTEPS_PTX_SPACES(MACRO, release_, kRelease, REST, __VA_ARGS__) \
  FLASHSTEPS_PTX_SPACES(MACRO, acq_rel_, kAcquireAndRelease, REST, __VA_ARGS__)
#define FLASHSTEPS_PTX_ATOMIC(NAME, T, OPERATION) \
  FLASHSTEPS_PTX_ORDERS(FLASHSTEPS_PTX_ATOMIC_NAMED, NAME, T, OPERATION)
#define FLASHSTEPS_PTX_X(TYPE, T) FLASHSTEPS_PTX_ATOMIC(add_##TYPE, T, kAdd)
FLASHSTEPS_PTX_FLOATS(FLASHSTEPS_PTX_X)
FLASHSTEPS_PTX_X(u32, uint32_t)
FLASHSTEPS_PTX_X(s32, int32_t)
FLASHSTEPS_PTX_X(u64, U64)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_X(TYPE, T)            \
  FLASHSTEPS_PTX_ATOMIC(min_##TYPE, T, kMin) \
  FLASHSTEPS_PTX_ATOMIC(max_##TYPE, T, kMax)
FLASHSTEPS_PTX_INTEGERS_FROM_32(FLASHSTEPS_PTX_X)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_X(TYPE, T)                  \
  FLASHSTEPS_PTX_ATOMIC(exch_##TYPE, T, kExchange) \
  FLASHSTEPS_PTX_ATOMIC(and_##TYPE, T, kAnd)       \
  FLASHSTEPS_PTX_ATOMIC(or_##TYPE, T, kOr)         \
  FLASHSTEPS_PTX_ATOMIC(xor_##TYPE, T, kXor)       \
  FLASHSTEPS_PTX_ORDERS(FLASHSTEPS_PTX_COMPARE_AND_SWAP, cas_##TYPE, T)
FLASHSTEPS_PTX_X(b32, B32)
FLASHSTEPS_PTX_X(b64, B64)
#undef FLASHSTEPS_PTX_X
FLASHSTEPS_PTX_ORDERS(FLASHSTEPS_PTX_COMPARE_AND_SWAP, cas_b16, B16)
FLASHSTEPS_PTX_ATOMIC(inc_u32, uint32_t, kIncrement)
FLASHSTEPS_PTX_ATOMIC(dec_u32, uint32_t, kDecrement)

// ---- Hints, which the emulator has no cache to give to

FLASHSTEPS_PTX void prefetch(Location, Address) {}
FLASHSTEPS_PTX void prefetchu_L1(Location, Address) {}
template <typename D, typename... Operands>
FLASHSTEPS_PTX void createpolicy_b64(Location, D&& policy, const Operands&...) {
  put(policy, B64(0));
}

// ---- Lanes of a warp

// d|p: is the lane that is read in the segment?
template <typename D, typename P, typename X, typename B, typename C, typename M>
FLASHSTEPS_PTX void shuffle_b32(ShuffleMode mode, Location at, D&& d, P&& p, const X& x, const B& operand,
                                const C& clamp, const M& mask) {
  const FromLane from = shuffle_within(mode, get<uint32_t>(mask), get<uint32_t>(x), get<uint32_t>(operand),
                                       get<uint32_t>(clamp), at);
  put(d, uint32_t(from.value));
  put(p, from.inside);
}
template <typename D, typename X, typename B, typename C, typename M>
FLASHSTEPS_PTX void shuffle_b32(ShuffleMode mode, Location at, D&& d, const X& x, const B& operand,
                                const C& clamp, const M& mask) {
  shuffle_b32(mode, at, d, Sink(), x, operand, clamp, mask);
}
#define FLASHSTEPS_PTX_SHUFFLE(NAME, MODE)                                          \
  template <typename... Operands>                                                   \
  FLASHSTEPS_PTX void shfl_sync_##NAME##_b32(Location at, Operands&&... operands) { \
    shuffle_b32(ShuffleMode::MODE, at, operands...);                                \
  }
FLASHSTEPS_PTX_SHUFFLE(idx, kIndex)
FLASHSTEPS_PTX_SHUFFLE(up, kUp)
FLASHSTEPS_PTX_SHUFFLE(down, kDown)
FLASHSTEPS_PTX_SHUFFLE(bfly, kXor)

#define FLASHSTEPS_PTX_VOTE(NAME, RESULT)                                               \
  template <typename D, typename P, typename M>                                         \
  FLASHSTEPS_PTX void vote_sync_##NAME(Location at, D&& d, const P& p, const M& mask) { \
    const Gathered votes = gather("vote.sync", get<uint32_t>(mask), is_true(p), at);    \
    put(d, RESULT);                                                                     \
  }
FLASHSTEPS_PTX_VOTE(ballot_b32, votes.lanes_with(true))
FLASHSTEPS_PTX_VOTE(any_pred, votes.lanes_with(true) != 0)
FLASHSTEPS_PTX_VOTE(all_pred, votes.lanes_with(false) == 0)
FLASHSTEPS_PTX_VOTE(uni_pred, votes.lanes_with(true) == 0 || votes.lanes_with(false) == 0)

#define FLASHSTEPS_PTX_X(TYPE, T)                                                            \
  template <typename D, typename X, typename M>                                              \
  FLASHSTEPS_PTX void match_any_sync_##TYPE(Location at, D&& d, const X& x, const M& mask) { \
    put(d, __match_any_sync(get<uint32_t>(mask), get<T>(x), at));                            \
  }
FLASHSTEPS_PTX_X(b32, B32)
FLASHSTEPS_PTX_X(b64, B64)
#undef FLASHSTEPS_PTX_X
// d|p: all lanes if they have the same, otherwise none.
#define FLASHSTEPS_PTX_X(TYPE, T)                                                                   \
  template <typename D, typename P, typename X, typename M>                                         \
  FLASHSTEPS_PTX void match_all_sync_##TYPE(Location at, D&& d, P&& p, const X& x, const M& mask) { \
    int all_equal;                                                                                  \
    put(d, __match_all_sync(get<uint32_t>(mask), get<T>(x), &all_equal, at));                       \
    put(p, all_equal != 0);                                                                         \
  }                                                                                                 \
  template <typename D, typename X, typename M>                                                     \
  FLASHSTEPS_PTX void match_all_sync_##TYPE(Location at, D&& d, const X& x, const M& mask) {        \
    match_all_sync_##TYPE(at, d, Sink(), x, mask);                                                  \
  }
FLASHSTEPS_PTX_X(b32, B32)
FLASHSTEPS_PTX_X(b64, B64)
#undef FLASHSTEPS_PTX_X
#define FLASHSTEPS_PTX_REDUCE(NAME, TYPE, T)                                                      \
  template <typename D, typename X, typename M>                                                   \
  FLASHSTEPS_PTX void redux_sync_##NAME##_##TYPE(Location at, D&& d, const X& x, const M& mask) { \
    put(d, __reduce_##NAME##_sync(get<uint32_t>(mask), get<T>(x), at));                           \
  }
#define FLASHSTEPS_PTX_X(TYPE, T)     \
  FLASHSTEPS_PTX_REDUCE(add, TYPE, T) \
  FLASHSTEPS_PTX_REDUCE(min, TYPE, T) \
  FLASHSTEPS_PTX_REDUCE(max, TYPE, T)
FLASHSTEPS_PTX_X(u32, uint32_t)
FLASHSTEPS_PTX_X(s32, int32_t)
#undef FLASHSTEPS_PTX_X
FLASHSTEPS_PTX_REDUCE(and, b32, uint32_t)
FLASHSTEPS_PTX_REDUCE(or, b32, uint32_t)
FLASHSTEPS_PTX_REDUCE(xor, b32, uint32_t)

template <typename D>
FLASHSTEPS_PTX void activemask_b32(Location at, D&& d) {
  put(d, active_mask(at));
}
// d|p: which lane it is, and whether it is this one.
template <typename D, typename P, typename M>
FLASHSTEPS_PTX void elect_sync(Location at, D&& d, P&& p, const M& mask) {
  const auto lanes = get<uint32_t>(mask);
  const bool elected =
      lanes == ~0u ? flashsteps::elect_one(at)
                   : special_laneid() == uint32_t(std::countr_zero(gather("elect.sync", lanes, 0, at).lanes));
  if constexpr (!std::is_same_v<std::remove_cvref_t<D>, Sink>)
    put(d, uint32_t(std::countr_zero(gather("elect.sync", lanes, elected, at).lanes_with(true))));
  put(p, elected);
}
// Of an 8 x 8 matrix of 16-bit elements, two in each lane, the transposed one.
template <typename D, typename X>
FLASHSTEPS_PTX void movmatrix_sync_aligned_m8n8_trans_b16(Location at, D&& d, const X& x) {
  const Gathered all = gather("movmatrix", ~0u, get<uint32_t>(x), at);
  const uint32_t row = special_laneid() / 4, column = special_laneid() % 4 * 2;
  const auto element = [&](uint32_t i, uint32_t j) {
    return uint32_t(uint16_t(all.values[4 * i + j / 2] >> 16 * (j % 2)));
  };
  put(d, element(column, row) | element(column + 1, row) << 16);
}
template <typename M>
FLASHSTEPS_PTX void bar_warp_sync(Location at, const M& mask) {
  syncwarp(get<uint32_t>(mask), at);
}

// ---- Threads of a CTA

// Of all threads, barrier 0 is that of __syncthreads().
FLASHSTEPS_PTX void named_barrier(int id, uint32_t count, Location at) {
  if (id == 0 && count == (num_threads() + 31) / 32 * 32) return syncthreads(at);
  flashsteps::bar_sync(id, int(count), at);
}
#define FLASHSTEPS_PTX_BARRIER(NAME)                                                 \
  template <typename Id>                                                             \
  FLASHSTEPS_PTX void NAME##_sync(Location at, const Id& id) {                       \
    named_barrier(get<int>(id), (num_threads() + 31) / 32 * 32, at);                 \
  }                                                                                  \
  template <typename Id, typename Count>                                             \
  FLASHSTEPS_PTX void NAME##_sync(Location at, const Id& id, const Count& count) {   \
    named_barrier(get<int>(id), get<uint32_t>(count), at);                           \
  }                                                                                  \
  template <typename Id, typename Count>                                             \
  FLASHSTEPS_PTX void NAME##_arrive(Location at, const Id& id, const Count& count) { \
    flashsteps::bar_arrive(get<int>(id), get<int>(count), at);                       \
  }
FLASHSTEPS_PTX_BARRIER(bar)
FLASHSTEPS_PTX_BARRIER(barrier)

// The threads of a CTA see each other's writes at once.
FLASHSTEPS_PTX void membar_cta(Location) {}
FLASHSTEPS_PTX void membar_gl(Location) { thread_fence(); }
FLASHSTEPS_PTX void membar_sys(Location) { thread_fence(); }
FLASHSTEPS_PTX void fence_cta(Location) {}
FLASHSTEPS_PTX void fence_cluster(Location) {}
FLASHSTEPS_PTX void fence_gpu(Location) { thread_fence(); }
FLASHSTEPS_PTX void fence_sys(Location) { thread_fence(); }

template <typename T>
FLASHSTEPS_PTX void nanosleep_u32(Location, const T&) {
  nap();
}
FLASHSTEPS_PTX void trap(Location at) { emulator::trap(at); }
FLASHSTEPS_PTX void brkpt(Location at) { emulator::trap(at); }  // no debugger is there
FLASHSTEPS_PTX void griddepcontrol_wait(Location) { flashsteps::griddepcontrol_wait(); }
FLASHSTEPS_PTX void griddepcontrol_launch_dependents(Location) {}

// ---- Tensor cores of sm_80

#define FLASHSTEPS_PTX_MATRICES(COUNT, NAME, TRANSPOSED)                                                   \
  template <typename D>                                                                                    \
  FLASHSTEPS_PTX void ldmatrix_sync_aligned_x##COUNT##NAME##_shared_b16(Location at, D&& d, Address row) { \
    uint32_t registers[COUNT];                                                                             \
    ldmatrix(registers, COUNT, in_shared<const void>(row, at), TRANSPOSED, at);                            \
    put_all(d, registers);                                                                                 \
  }                                                                                                        \
  template <typename X>                                                                                    \
  FLASHSTEPS_PTX void stmatrix_sync_aligned_x##COUNT##NAME##_shared_b16(Location at, Address row,          \
                                                                        const X& x) {                      \
    uint32_t registers[COUNT];                                                                             \
    get_all(registers, x);                                                                                 \
    stmatrix(in_shared<void>(row, at), registers, COUNT, TRANSPOSED, at);                                  \
  }
#define FLASHSTEPS_PTX_X(COUNT)           \
  FLASHSTEPS_PTX_MATRICES(COUNT, , false) \
  FLASHSTEPS_PTX_MATRICES(COUNT, _trans, true)
FLASHSTEPS_PTX_X(1)
FLASHSTEPS_PTX_X(2)
FLASHSTEPS_PTX_X(4)
#undef FLASHSTEPS_PTX_X

// d = a b + c. A product of 8 along k is one of 16 whose second half is zero.
template <int NUM_A, int NUM_B, typename A, typename B>
FLASHSTEPS_PTX void get_operands(uint32_t (&a)[4], uint32_t (&b)[2], const A& from_a, const B& from_b) {
  uint32_t some_a[NUM_A], some_b[NUM_B];
  get_all(some_a, from_a);
  get_all(some_b, from_b);
  for (int i = 0; i < 4; ++i) a[i] = i < NUM_A ? some_a[i] : 0;
  for (int i = 0; i < 2; ++i) b[i] = i < NUM_B ? some_b[i] : 0;
}
#define FLASHSTEPS_PTX_MMA(NAME, T, NUM_A, NUM_B, MULTIPLY)                                         \
  template <typename D, typename A, typename B, typename C>                                         \
  FLASHSTEPS_PTX void mma_sync_aligned_##NAME(Location at, D&& d, const A& from_a, const B& from_b, \
                                              const C& c) {                                         \
    uint32_t a[4], b[2];                                                                            \
    T acc[4];                                                                                       \
    get_operands<NUM_A, NUM_B>(a, b, from_a, from_b);                                               \
    get_all(acc, c);                                                                                \
    MULTIPLY;                                                                                       \
    put_all(d, acc);                                                                                \
  }
#define FLASHSTEPS_PTX_MMA_FP16(NAME, NUM_A, NUM_B)                                                 \
  template <typename D, typename A, typename B, typename C>                                         \
  FLASHSTEPS_PTX void mma_sync_aligned_##NAME(Location at, D&& d, const A& from_a, const B& from_b, \
                                              const C& c) {                                         \
    uint32_t a[4], b[2];                                                                            \
    __half2 halves[2];                                                                              \
    get_operands<NUM_A, NUM_B>(a, b, from_a, from_b);                                               \
    get_all(halves, c);                                                                             \
    float acc[4] = {halves[0].x, halves[0].y, halves[1].x, halves[1].y};                            \
    mma_m16n8k16(acc, a, b, /*bf16=*/false, at);                                                    \
    const __half2 sums[2] = {{acc[0], acc[1]}, {acc[2], acc[3]}};                                   \
    put_all(d, sums);                                                                               \
  }
FLASHSTEPS_PTX_MMA(m16n8k16_row_col_f32_f16_f16_f32, float, 4, 2, mma_m16n8k16(acc, a, b, false, at))
FLASHSTEPS_PTX_MMA(m16n8k16_row_col_f32_bf16_bf16_f32, float, 4, 2, mma_m16n8k16(acc, a, b, true, at))
FLASHSTEPS_PTX_MMA(m16n8k8_row_col_f32_f16_f16_f32, float, 2, 1, mma_m16n8k16(acc, a, b, false, at))
FLASHSTEPS_PTX_MMA(m16n8k8_row_col_f32_bf16_bf16_f32, float, 2, 1, mma_m16n8k16(acc, a, b, true, at))
FLASHSTEPS_PTX_MMA(m16n8k32_row_col_f32_e4m3_e4m3_f32, float, 4, 2, mma_m16n8k32_e4m3(acc, a, b, at))
FLASHSTEPS_PTX_MMA_FP16(m16n8k16_row_col_f16_f16_f16_f16, 4, 2)
FLASHSTEPS_PTX_MMA_FP16(m16n8k8_row_col_f16_f16_f16_f16, 2, 1)

FLASHSTEPS_PTX_MMA(m16n8k8_row_col_f32_tf32_tf32_f32, float, 4, 2, mma_m16n8k8_tf32(acc, a, b, at))
FLASHSTEPS_PTX_MMA(m16n8k4_row_col_f32_tf32_tf32_f32, float, 2, 1, mma_m16n8k8_tf32(acc, a, b, at))
#define FLASHSTEPS_PTX_X(A, B, A_IS_SIGNED, B_IS_SIGNED)                             \
  FLASHSTEPS_PTX_MMA(m16n8k32_row_col_s32_##A##_##B##_s32, int32_t, 4, 2,            \
                     mma_m16n8k32_integers(acc, a, b, A_IS_SIGNED, B_IS_SIGNED, at)) \
  FLASHSTEPS_PTX_MMA(m16n8k16_row_col_s32_##A##_##B##_s32, int32_t, 2, 1,            \
                     mma_m16n8k32_integers(acc, a, b, A_IS_SIGNED, B_IS_SIGNED, at))
FLASHSTEPS_PTX_X(s8, s8, true, true)
FLASHSTEPS_PTX_X(s8, u8, true, false)
FLASHSTEPS_PTX_X(u8, s8, false, true)
FLASHSTEPS_PTX_X(u8, u8, false, false)
#undef FLASHSTEPS_PTX_X

// ---- Asynchronous copies of sm_80

template <typename Bytes>
FLASHSTEPS_PTX void cp_async_ca_shared_global(Location at, Address shared, Address global,
                                              const Bytes& bytes) {
  cp_async(in_shared<void>(shared, at), reinterpret_cast<const void*>(global.value), get<int>(bytes),
           get<int>(bytes), at);
}
// How many bytes are read; or a predicate, whether none is; or, of 64 bits, a policy.
template <typename Bytes, typename FromGlobal, typename... Policy>
FLASHSTEPS_PTX void cp_async_ca_shared_global(Location at, Address shared, Address global, const Bytes& bytes,
                                              const FromGlobal& from_global, const Policy&...) {
  int copied = get<int>(bytes);
  if constexpr (std::is_same_v<FromGlobal, bool>) {
    if (from_global) copied = 0;
  } else if constexpr (sizeof(FromGlobal) != 8) {
    copied = get<int>(from_global);
  }
  cp_async(in_shared<void>(shared, at), reinterpret_cast<const void*>(global.value), get<int>(bytes), copied,
           at);
}
template <typename... Operands>
FLASHSTEPS_PTX void cp_async_cg_shared_global(Location at, const Operands&... operands) {
  cp_async_ca_shared_global(at, operands...);
}
FLASHSTEPS_PTX void cp_async_commit_group(Location at) { flashsteps::cp_async_commit(at); }
template <typename Pending>
FLASHSTEPS_PTX void cp_async_wait_group(Location at, const Pending& pending) {
  cp_async_wait(get<int>(pending), at);
}
// Also for what is not committed.
FLASHSTEPS_PTX void cp_async_wait_all(Location at) {
  flashsteps::cp_async_commit(at);
  cp_async_wait(0, at);
}

#undef FLASHSTEPS_PTX

}  // namespace emulator::ptx

#include "common/emulator/ptx_sm90.h"
