// Inline PTX of many kinds, each with what it must give. Prints "ok".
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

__device__ unsigned num_wrong;
__device__ void check(bool right, int number) {
  if (right) return;
  if (atomicAdd(&num_wrong, 1u) == 0) printf("check %d, lane %d\n", number, threadIdx.x);
}

// The instructions of PTX make `expected` of the operands. T and "=r" are the type of the result.
#define GIVES(NUMBER, EXPECTED, T, CONSTRAINT, PTX, ...)             \
  do {                                                               \
    T result;                                                        \
    asm volatile(PTX : CONSTRAINT(result) : __VA_ARGS__ : "memory"); \
    check(result == static_cast<T>(EXPECTED), NUMBER);               \
  } while (0)
#define GIVES_U32(NUMBER, EXPECTED, PTX, ...) GIVES(NUMBER, EXPECTED, uint32_t, "=r", PTX, __VA_ARGS__)
#define GIVES_U64(NUMBER, EXPECTED, PTX, ...) GIVES(NUMBER, EXPECTED, uint64_t, "=l", PTX, __VA_ARGS__)
#define GIVES_U16(NUMBER, EXPECTED, PTX, ...) GIVES(NUMBER, EXPECTED, uint16_t, "=h", PTX, __VA_ARGS__)
// By their bits, since a NaN is not equal to itself.
#define GIVES_F32(NUMBER, EXPECTED, PTX, ...)                  \
  do {                                                         \
    float result;                                              \
    asm volatile(PTX : "=f"(result) : __VA_ARGS__ : "memory"); \
    check(__float_as_uint(result) == (EXPECTED), NUMBER);      \
  } while (0)

// `zero` is 0, which the compiler does not know.
__device__ void integers(unsigned zero) {
  const unsigned ones = ~zero, high = zero + 0x80000000;
  const int minimum = int(high);
  GIVES_U32(100, 0, "shl.b32 %0, %1, %2;", "r"(ones), "r"(zero + 32));
  GIVES_U32(101, ones, "shr.s32 %0, %1, %2;", "r"(high), "r"(zero + 40));
  GIVES_U64(102, 0, "shr.u64 %0, %1, %2;", "l"(~uint64_t(zero)), "r"(zero + 64));
  GIVES_U16(103, 0xfffe, "shr.s16 %0, %1, %2;", "h"(uint16_t(zero + 0x8000)), "r"(zero + 14));
  // Of 0x1122334455667788
  GIVES_U32(104, 0x22334455, "shf.l.wrap.b32 %0, %1, %2, %3;", "r"(zero + 0x55667788), "r"(0x11223344),
            "r"(zero + 40));
  GIVES_U32(105, 0x55667788, "shf.l.clamp.b32 %0, %1, %2, %3;", "r"(zero + 0x55667788), "r"(0x11223344),
            "r"(zero + 40));
  GIVES_U32(106, 0x44556677, "shf.r.wrap.b32 %0, %1, %2, %3;", "r"(zero + 0x55667788), "r"(0x11223344),
            "r"(zero + 40));
  GIVES_U32(107, 0x11223344, "shf.r.clamp.b32 %0, %1, %2, %3;", "r"(zero + 0x55667788), "r"(0x11223344),
            "r"(zero + 40));
  GIVES_U32(108, 0xf, "bfe.u32 %0, %1, %2, 8;", "r"(ones), "r"(zero + 28));
  GIVES_U32(109, ones, "bfe.s32 %0, %1, %2, 4;", "r"(high), "r"(zero + 40));
  GIVES_U32(110, 0, "bfe.s32 %0, %1, 4, %2;", "r"(ones), "r"(zero));
  GIVES_U32(111, 0xffffff80, "bfe.s32 %0, %1, %2, 32;", "r"(high), "r"(zero + 24));
  GIVES_U64(112, 0xffffffffffffff80, "bfe.s64 %0, %1, 56, %2;", "l"(uint64_t(high) << 32), "r"(zero + 20));
  GIVES_U32(113, 0x50000000, "bfi.b32 %0, %1, 0, %2, 8;", "r"(zero + 0x15), "r"(zero + 28));
  GIVES_U32(114, 0x15, "bfi.b32 %0, %1, %2, 0, 40;", "r"(zero + 0x15), "r"(ones));
  GIVES_U32(115, ones, "bfi.b32 %0, %1, %2, 32, 8;", "r"(zero + 0x15), "r"(ones));
  GIVES_U32(116, 0x808080ff, "prmt.b32 %0, %1, 0, %2;", "r"(zero + 0x80), "r"(zero + 0x0008));
  GIVES_U32(117, 0xfffffffe + 5, "mad.hi.u32 %0, %1, %1, 5;", "r"(ones));
  GIVES_U32(118, ones, "mul.hi.s32 %0, %1, 2;", "r"(high));
  GIVES_U32(119, 7 - 6, "mad.wide.s16 %0, %1, 3, %2;", "h"(short(zero - 2)), "r"(zero + 7));
  GIVES_U64(120, 0xfffffffe00000001 + 2, "mad.wide.u32 %0, %1, %1, %2;", "r"(ones), "l"(uint64_t(zero + 2)));
  GIVES_U16(121, 0x8000, "add.s16 %0, %1, 1;", "h"(uint16_t(zero + 0x7fff)));
  GIVES_U32(122, high, "abs.s32 %0, %1;", "r"(high));
  GIVES_U32(123, -3, "div.s32 %0, %1, 2;", "r"(int(zero - 7)));
  GIVES_U32(124, -1, "rem.s32 %0, %1, 2;", "r"(int(zero - 7)));
  GIVES_U32(125, minimum, "min.s32 %0, %1, %2;", "r"(high), "r"(zero));
  GIVES_U32(126, high, "max.u32 %0, %1, %2;", "r"(high), "r"(zero));
  GIVES_U32(127, 1, "clz.b64 %0, %1;", "l"(uint64_t(1) << (zero + 62)));
  GIVES_U32(128, 32, "popc.b64 %0, %1;", "l"(uint64_t(ones) << 16));
  GIVES_U32(138, 31, "bfind.u32 %0, %1;", "r"(high + 5));
  GIVES_U32(139, 2, "bfind.s32 %0, %1;", "r"(~5u + zero));
  GIVES_U32(145, ~0u, "bfind.u64 %0, %1;", "l"(uint64_t(zero)));
  // Constants, and a register that is declared as closely as some people do
  GIVES_U32(129, 8 + 4 * -2 + ~3, "add.u32 %0, %1, (1 << 3) + 4*-2 + ~3;", "r"(zero));
  GIVES_U32(130, 0xa5, "{.reg.b32 x; xor.b32 x, %1, 0xf0U; and.b32 %0, x, 0b11110101; or.b32 %0, %0, 05;}",
            "r"(zero + 0x55));
  GIVES_U32(131, 3,
            "{.reg .pred p, q; setp.ne.u32 p, %1, 0; setp.eq.or.u32 p|q, %1, 7, !p; selp.u32 %0, 1, 0, p; @q "
            "add.u32 %0, %0, 2; }",
            "r"(zero));
  // Smaller than the register
  GIVES_U32(132, 0xffffff80, "cvt.s8.u32 %0, %1;", "r"(zero + 0x180));
  GIVES_U32(133, 0x80, "cvt.u8.u32 %0, %1;", "r"(zero + 0x180));
  GIVES_U32(134, 127, "cvt.sat.s8.s32 %0, %1;", "r"(zero + 300));
  GIVES_U32(135, 0, "cvt.sat.u8.s32 %0, %1;", "r"(zero - 5));
  GIVES_U32(136, 0x7fffffff, "cvt.sat.s32.u64 %0, %1;", "l"(~uint64_t(zero)));
  GIVES_U32(137, 0x12347f80, "cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;", "r"(zero + 300), "r"(zero - 300),
            "r"(0x1234));
}

struct Sizes {
  static constexpr int kTwo = 2;
};
#define TYPE ".u32"
#define SEMICOLON ";\n\t"

// The same in the many ways in which people write it.
template <int N>
__device__ void texts(unsigned lane) {
  uint32_t a, b, values[2];
  float x = 0;
  asm(R"(
    {  // a raw string; with a semicolon
      .reg .b32 t; /* and
      two lines; */ .reg .pred %%p<2>;
      setp.lt.u32 %%p1, %1, %2;
      @%%p1 bra $BELOW;
      add)" TYPE R"( t, %1, 100;  bra.uni $DONE;
$BELOW: add.u32 t, %1, 200;
$DONE:  mov.b32 %0, t;
    })"
      : "=r"(a)
      : "r"(lane < 16 ? lane : 20u), "n"(N));
  check(a == (lane < 4 ? lane + 200 : lane < 16 ? lane + 100 : 120), 140);
  asm("add" TYPE " %0, %2, %3" SEMICOLON "//\ta tab; %%9\n mul.lo" TYPE " %1, %0, %4" SEMICOLON
      : "=&r"(values[0]), "=r"(reinterpret_cast<uint32_t&>(x))
      : "r"(lane), "n"(Sizes::kTwo), "r"(lane ? Sizes::kTwo : 3));
  check(values[0] == lane + 2 && __float_as_uint(x) == (lane == 0 ? 6 : 2 * lane + 4), 141);
  // Registers of an inner block hide those of the outer one.
  asm("{ .reg .b32 r<2>; mov.b32 r0, 1; mov.b32 r1, 0;\n"
      "L: { .reg .b32 r0; mov.b32 r0, 10; add.u32 r1, r1, r0; bra M; M: add.u32 r1, r1, 1; }\n"
      ".reg .pred p; setp.lt.u32 p, r1, 30; @p bra L; add.u32 %0, r1, r0; }"
      : "=r"(b));
  check(b == 34, 142);
  // Inputs keep their values, whatever is written first.
  asm("add.u32 %0, %1, 1; add.u32 %0, %0, %1;" : "=&r"(b) : "r"(b));
  check(b == 69, 143);
  if (lane == 5)
    asm volatile("mov.u32 %0, 1;" : "=r"(a));
  else
    asm volatile("mov.u32 %0, 2;" : "=r"(a));
  check(a == (lane == 5 ? 1 : 2), 144);
}

__device__ void nans_and_rounding(unsigned zero) {
  const float nan = __uint_as_float(zero + 0x7fc00000), minus_nan = __uint_as_float(zero + 0xffc00000);
  const float negative_zero = __uint_as_float(zero + 0x80000000), one = 1.0f + zero;
  const double double_nan = __longlong_as_double((long long)(uint64_t(zero + 0x7ff80000) << 32));
  constexpr unsigned kNan = 0x7fffffff, kOne = 0x3f800000;
  GIVES_F32(200, kOne, "min.f32 %0, %1, %2;", "f"(nan), "f"(one));
  GIVES_F32(201, kOne, "max.f32 %0, %1, %2;", "f"(one), "f"(minus_nan));
  GIVES_F32(202, kNan, "max.f32 %0, %1, %2;", "f"(minus_nan), "f"(nan));
  GIVES_F32(203, kNan, "min.NaN.f32 %0, %1, %2;", "f"(one), "f"(minus_nan));
  GIVES_F32(204, 0x80000000, "min.f32 %0, %1, %2;", "f"(zero * one), "f"(negative_zero));
  GIVES_F32(205, 0, "max.f32 %0, %1, %2;", "f"(negative_zero), "f"(zero * one));
  GIVES_U32(206, 0x3c007fff, "min.NaN.f16x2 %0, %1, %2;", "r"(zero + 0x40007e00), "r"(zero + 0x3c003c00));
  GIVES_U32(207, 0x40003c00, "max.f16x2 %0, %1, %2;", "r"(zero + 0x40007e00), "r"(zero + 0x3c003c00));
  GIVES_F32(208, 0, "abs.f32 %0, %1;", "f"(negative_zero));
  GIVES_F32(209, 0xbf800000, "neg.f32 %0, %1;", "f"(one));
  // One bit for each comparison that holds: lt, ltu, ge, geu, eq, equ, ne, neu, num, nan
  const auto comparisons = [](float a, float b) {
    unsigned bits;
    asm volatile(
        "{ .reg .pred p; mov.u32 %0, 0;\n"
        "setp.lt.f32 p, %1, %2;  @p or.b32 %0, %0, 1;\n"
        "setp.ltu.f32 p, %1, %2; @p or.b32 %0, %0, 2;\n"
        "setp.ge.f32 p, %1, %2;  @p or.b32 %0, %0, 4;\n"
        "setp.geu.f32 p, %1, %2; @p or.b32 %0, %0, 8;\n"
        "setp.eq.f32 p, %1, %2;  @p or.b32 %0, %0, 16;\n"
        "setp.equ.f32 p, %1, %2; @p or.b32 %0, %0, 32;\n"
        "setp.ne.f32 p, %1, %2;  @p or.b32 %0, %0, 64;\n"
        "setp.neu.f32 p, %1, %2; @p or.b32 %0, %0, 128;\n"
        "setp.num.f32 p, %1, %2; @p or.b32 %0, %0, 256;\n"
        "setp.nan.f32 p, %1, %2; @p or.b32 %0, %0, 512; }"
        : "=&r"(bits)
        : "f"(a), "f"(b));
    return bits;
  };
  check(comparisons(nan, one) == 0x2aa && comparisons(one, one) == 0x13c &&
            comparisons(negative_zero, one) == 0x1c3,
        210);
  GIVES_U32(211, 0, "cvt.rzi.s32.f32 %0, %1;", "f"(nan));
  GIVES_U32(212, 0x80000000, "cvt.rzi.s32.f64 %0, %1;", "d"(double_nan));
  GIVES_U64(213, 0x8000000000000000, "cvt.rzi.s64.f32 %0, %1;", "f"(nan));
  GIVES_U64(214, 0x8000000000000000, "cvt.rni.u64.f64 %0, %1;", "d"(double_nan));
  GIVES_U32(215, 2, "cvt.rni.s32.f32 %0, %1;", "f"(2.5f * one));
  GIVES_U32(216, -2, "cvt.rmi.s32.f32 %0, %1;", "f"(-1.5f * one));
  GIVES_U32(217, 0, "cvt.rzi.u32.f32 %0, %1;", "f"(-1.5f * one));
  GIVES_U32(218, 0xffffffff, "cvt.rpi.u32.f32 %0, %1;", "f"(1e10f * one));
  GIVES_U32(219, 0xffffff80, "cvt.rni.sat.s8.f32 %0, %1;", "f"(-200.5f * one));
  GIVES_U32(220, 255, "cvt.rzi.u8.f32 %0, %1;", "f"(300.5f * one));
  GIVES_F32(221, 0xc0000000, "cvt.rn.f32.s8 %0, %1;", "r"(zero + 0x1fe));
  GIVES_F32(222, 0, "cvt.sat.f32.f32 %0, %1;", "f"(nan));
  GIVES_F32(223, kOne, "cvt.sat.f32.f32 %0, %1;", "f"(one * 3));
  GIVES_F32(224, 0x40000000, "cvt.rni.f32.f32 %0, %1;", "f"(one * 2.5f));
  // 1 + 2^-11 and 1 + 3 2^-11 lie halfway between two numbers of TF32. Its register's lower bits are
  // undefined.
  GIVES_U32(225, 0x3f802000, "cvt.rna.tf32.f32 %0, %1; and.b32 %0, %0, 0xffffe000;",
            "f"(__uint_as_float(zero + 0x3f801000)));
  GIVES_U32(226, 0x3f800000, "cvt.rn.tf32.f32 %0, %1; and.b32 %0, %0, 0xffffe000;",
            "f"(__uint_as_float(zero + 0x3f801000)));
  // The first number goes into the upper byte.
  GIVES_U16(227, 0x3840, "cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;", "f"(one), "f"(one * 2));
  GIVES_U16(228, 0xfe7f, "cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;", "f"(one * -1000), "f"(nan));
  GIVES_U32(229, 0x3c004000, "cvt.rn.f16x2.e4m3x2 %0, %1;", "h"(uint16_t(zero + 0x3840)));
  GIVES_U32(237, 0x00003f80, "cvt.rn.relu.bf16x2.f32 %0, %1, %2;", "f"(one * -2), "f"(one));
  GIVES_U16(233, 0x3c3d, "cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;", "f"(one * 1.125f), "f"(one * 1.1251f));
  GIVES_U16(234, 0xfb01, "cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;", "f"(one * -1e6f), "f"(one * 0x1.8p-17f));
  GIVES_U16(235, 0x007f, "cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;", "f"(zero * one), "f"(nan));
  GIVES_U32(236, 0x3c00c000, "cvt.rn.f16x2.e5m2x2 %0, %1;", "h"(uint16_t(zero + 0x3cc0)));
  GIVES_F32(230, 0x3fc00000, "mov.f32 %0, 0d3FF8000000000000;", "r"(zero));
  GIVES_U16(231, 0x6400, "cvt.rn.f16.u16 %0, %1;", "h"(uint16_t(zero + 1024)));
  GIVES_U32(232, 0xbc004000, "fma.rn.f16x2 %0, %1, %2, %3;", "r"(zero + 0x3c003c00), "r"(0x40003c00),
            "r"(0xc2003c00));
  // Approximations
  const auto near = [](float a, float b) { return fabsf(a - b) <= 1e-3f * fabsf(b); };
  float x;
  asm volatile("tanh.approx.f32 %0, %1;" : "=f"(x) : "f"(one));
  check(near(x, 0.76159f), 240);
  asm volatile("lg2.approx.f32 %0, %1;" : "=f"(x) : "f"(one * 10));
  check(near(x, 3.32193f), 241);
  asm volatile("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(one * 2));
  check(near(x, 0.70711f), 242);
  asm volatile("sin.approx.f32 %0, %1;" : "=f"(x) : "f"(one));
  check(near(x, 0.84147f), 243);
  asm volatile("div.full.f32 %0, %1, %2;" : "=f"(x) : "f"(one), "f"(one * 3));
  check(near(x, 0.33333f), 244);
}

__device__ void registers_and_bits(unsigned lane) {
  uint32_t a, b, c;
  asm("mov.u32 %0, %%laneid;" : "=r"(a));
  asm("{ .reg .b32 %%x, y<2>;\n\t add.u32 %%x, %1, 1; // comment\n mul.lo.u32 y1, %%x, 3; mov.b32 %0, y1; }"
      : "=r"(b)
      : "r"(a));
  check(a == lane && b == 3 * (lane + 1), 1);
  asm("{ .reg .pred p; setp.ge.s32 p, %1, 16; selp.u32 %0, 7, 8, p; @p add.u32 %0, %0, 100; @!p add.u32 %0, "
      "%0, 200; }"
      : "=r"(a)
      : "r"(lane));
  check(a == (lane >= 16 ? 107 : 208), 2);
  asm("{ .reg .pred p, q, r; setp.lt.u32 r, %1, 9; setp.ge.and.u32 p|q, %1, 4, r; selp.u32 %0, 1, 2, p; @q "
      "add.u32 %0, %0, 10; }"
      : "=r"(c)
      : "r"(lane));
  check(c == (lane < 4 ? 12 : lane < 9 ? 1 : 2), 6);
  uint64_t wide;
  uint16_t low, high;
  asm("mov.b64 %0, {%1, %2};" : "=l"(wide) : "r"(lane), "r"(9));
  asm("mov.b64 {%0, %1}, %2;" : "=r"(a), "=r"(b) : "l"(wide));
  asm("mov.b32 {%0, %1}, %2;" : "=h"(low), "=h"(high) : "r"(0x12345678));
  check(wide == (9ull << 32 | lane) && a == lane && b == 9 && low == 0x5678 && high == 0x1234, 3);
  asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(a) : "r"(0x11112222), "r"(0x33334444));
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(b) : "r"(0xff00ff00), "r"(0xf0f0f0f0), "r"(lane));
  asm("shf.l.wrap.b32 %0, %1, %2, 8;" : "=r"(c) : "r"(0x80000000), "r"(0x00000001));
  check(a == 0x44442222 && b == ((0xff00ff00 & 0xf0f0f0f0) ^ lane) && c == 0x00000180, 4);
  int32_t field;
  asm("bfe.s32 %0, %1, 4, 8;" : "=r"(field) : "r"(0xf80));
  asm("bfi.b32 %0, %1, %2, 8, 4;" : "=r"(a) : "r"(0x5), "r"(0xffffffff));
  asm("shr.u32 %0, %1, 40;" : "=r"(b) : "r"(0xffffffff));
  check(field == -8 && a == 0xfffff5ff && b == 0, 5);
}

__device__ void numbers(unsigned lane) {
  float x;
  uint32_t bits;
  uint16_t half_bits;
  asm("fma.rn.f32 %0, %1, 0f40000000, 1.5;" : "=f"(x) : "f"(float(lane)));
  check(x == 2 * lane + 1.5f, 10);
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(3.0f));
  check(x == 8, 11);
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(2.0f), "f"(1.0f));
  check(bits == 0x40003f80, 12);
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(2.0f), "f"(1.0f));
  check(bits == 0x40003c00, 13);
  asm("add.rn.f16x2 %0, %0, %1;" : "+r"(bits) : "r"(0x3c003c00));
  check(bits == 0x42004000, 14);
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half_bits) : "f"(1.0f));
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half_bits));
  check(half_bits == 0x3c00 && x == 1, 15);
  asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(bits) : "f"(-2.75f));
  check(int(bits) == -2, 16);
  asm("{ .reg .f32 a; rcp.approx.ftz.f32 a, %1; sqrt.rn.f32 %0, a; }" : "=f"(x) : "f"(0.25f));
  check(x == 2, 17);
  asm("max.f32 %0, %1, %2;" : "=f"(x) : "f"(1.0f), "f"(-1.0f));
  check(x == 1, 18);
}

__device__ void memory(unsigned lane, float* global, const uint4* source) {
  __shared__ __align__(16) float tile[32 * 4];
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(&tile[4 * lane]));
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(1.0f), "f"(2.0f), "f"(3.0f),
               "f"(lane * 1.0f));
  __syncwarp();
  uint32_t neighbour;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }"
      : "=r"(neighbour)
      : "l"(&tile[4 * (lane ^ 1)]));
  float x, y, z;
  asm volatile("ld.shared.f32 %0, [%1+12];" : "=f"(x) : "r"(neighbour) : "memory");
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(y), "=f"(z) : "r"(neighbour) : "memory");
  check(x == (lane ^ 1) && y == 1 && z == 2, 20);
  asm volatile("st.global.cs.f32 [%0], %1;" ::"l"(global + lane), "f"(x) : "memory");
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(global + lane), "f"(1.0f) : "memory");
  asm volatile("ld.global.L1::no_allocate.L2::128B.f32 %0, [%1];" : "=f"(y) : "l"(global + lane) : "memory");
  check(y == (lane ^ 1) + 1, 21);
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source + lane));
  check(v.x == 4 * lane && v.w == 4 * lane + 3, 22);
  __syncwarp();
  // Copies of 4 bytes, of which the last are zeros.
  const int bytes = lane < 16 ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n cp.async.wait_all;" ::"r"(address),
               "l"(source + lane), "r"(bytes)
               : "memory");
  __syncwarp();
  check(__float_as_uint(tile[4 * (lane ^ 1)]) == (lane < 16 ? 4 * (lane ^ 1) : 0), 23);
  asm volatile("prefetch.global.L2 [%0];" ::"l"(source));
  // Where the predicate holds, nothing is copied, and zeros are written.
  __syncwarp();
  asm volatile(
      "{ .reg .pred p; setp.ge.u32 p, %2, 8; cp.async.ca.shared.global [%0], [%1], 4, p; cp.async.wait_all; "
      "}" ::"r"(address),
      "l"(source + lane), "r"(lane)
      : "memory");
  check(__float_as_uint(tile[4 * lane]) == (lane < 8 ? 4 * lane : 0), 24);
}

__device__ void atomics_and_small_types(unsigned lane, float* global) {
  __shared__ __align__(16) unsigned cells[32][4];
  unsigned* const own = cells[lane];
  own[0] = lane, own[1] = 0x80fe, own[2] = 5, own[3] = 9;
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(own));
  GIVES_U32(300, lane, "atom.shared.inc.u32 %0, [%1], 7;", "r"(address));
  GIVES_U32(301, lane >= 7 ? 0 : lane + 1, "atom.shared::cta.dec.u32 %0, [%1], 20;", "r"(address));
  GIVES_U32(302, lane >= 7 ? 20 : lane, "ld.volatile.shared.u32 %0, [%1];", "r"(address));
  GIVES_U32(303, 5, "atom.acquire.cta.shared.cas.b32 %0, [%1+4*2], 5, 6;", "r"(address));
  GIVES_U32(304, 6, "atom.cas.shared.b32 %0, [%1 + 8], 5, 7;", "r"(address));
  GIVES_U64(305, 9ull << 32 | 6, "atom.exch.relaxed.cta.b64 %0, [%1], 0;", "l"(own + 2));
  GIVES_U16(306, 0x80fe, "atom.cas.b16 %0, [%1], %2, 0x1234;", "l"(own + 1), "h"(uint16_t(0x80fe)));
  GIVES_U16(307, 0x1234, "atom.cas.b16 %0, [%1], 0x1234, %2;", "l"(own + 1), "h"(uint16_t(0x80fe)));
  GIVES_U32(308, -2, "ld.shared.s8 %0, [%1+4];", "r"(address));
  GIVES_U32(309, 0xffff80fe, "ld.s16 %0, [%1];", "l"(own + 1));
  GIVES_U32(310, 0x123480fe, "st.shared.b16 [%1+6], %2; ld.shared.u32 %0, [%1+4];", "r"(address),
            "h"(uint16_t(0x1234)));
  GIVES_U32(311, 0x1234ab00, "st.v2.u8 [%1], {%2, 0xab}; ld.u32 %0, [%1];", "l"(own + 1), "r"(0x700));
  // Two numbers with one instruction, and a hint
  __syncwarp();
  asm volatile(
      "{ .reg .pred p; .reg .b64 q; setp.eq.u32 p, %1, 0; createpolicy.fractional.L2::evict_last.b64 q, 1.0;"
      " @p red.global.add.L2::cache_hint.v2.f32 [%0], {%2, %3}, q; }" ::"l"(global + lane),
      "r"(lane % 2), "f"(1.0f), "f"(2.0f)
      : "memory");
  __syncwarp();
  GIVES_F32(312, __float_as_uint((lane ^ 1) + 2 + lane % 2), "ld.global.f32 %0, [%1];", "l"(global + lane));
}

__device__ void lanes(unsigned lane) {
  uint32_t a, b, in_segment;
  asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 0x1f, 0xffffffff;" : "=r"(a) : "r"(lane));
  asm volatile("{ .reg .pred p; shfl.sync.up.b32 %0|p, %2, 4, 0x1800, 0xffffffff; selp.u32 %1, 1, 0, p; }"
               : "=r"(b), "=r"(in_segment)
               : "r"(lane));
  check(a == (lane ^ 1) && b == (lane % 8 < 4 ? lane : lane - 4) && in_segment == (lane % 8 >= 4), 30);
  asm volatile("{ .reg .pred p; setp.lt.u32 p, %1, 3; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
               : "=r"(a)
               : "r"(lane));
  asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(b) : "r"(lane));
  check(a == 7 && b == 496, 31);
  const unsigned segment = lane / 8 * 8, by_4 = lane / 4;
  GIVES_U32(400, lane < 11 ? lane + 1 : lane, "shfl.sync.down.b32 %0, %1, 1, 11, 0xffffffff;", "r"(lane));
  GIVES_U32(401, lane >= 5 ? lane - 2 : lane, "shfl.sync.up.b32 %0, %1, 2, 3, 0xffffffff;", "r"(lane));
  GIVES_U32(402, segment + 6, "shfl.sync.idx.b32 %0, %1, 22, 0x181f, 0xffffffff;", "r"(lane));
  GIVES_U32(403, lane, "shfl.sync.idx.b32 %0, %1, 22, 0x1803, 0xffffffff;", "r"(lane));
  GIVES_U32(404, lane % 8 < 4 ? lane : lane - 4, "shfl.sync.bfly.b32 %0, %1, 4, 0x1803, 0xffffffff;",
            "r"(lane));
  GIVES_U32(405, 0xfu << lane / 4 * 4, "match.any.sync.b32 %0, %1, 0xffffffff;", "r"(by_4));
  GIVES_U32(406, 0, "match.all.sync.b32 %0, %1, 0xffffffff;", "r"(by_4));
  GIVES_U32(407, ~0u, "{ .reg .pred p; match.all.sync.b64 %0|p, %1, 0xffffffff; @!p mov.b32 %0, 1; }",
            "l"(uint64_t(7)));
  GIVES_U32(
      408, 3,
      "{ .reg .pred p, q; setp.lt.u32 p, %1, 31; vote.sync.all.pred q, p, 0xffffffff; selp.u32 %0, 4, 0, q;"
      "vote.sync.any.pred q, !p, 0xffffffff; @q add.u32 %0, %0, 1;"
      "vote.sync.uni.pred q, p, 0xffffffff; @!q add.u32 %0, %0, 2; }",
      "r"(lane));
  GIVES_U32(409, -16, "redux.sync.min.s32 %0, %1, 0xffffffff;", "r"(int(lane) - 16));
  GIVES_U32(410, 31, "redux.sync.or.b32 %0, %1, 0xffffffff;", "r"(lane));
  // A loop with labels
  asm("{\n"
      ".reg .pred done;\n"
      "mov.u32 %0, 0;\n"
      "AGAIN:\n"
      "setp.ge.u32 done, %0, %1;\n"
      "@done bra DONE;\n"
      "add.u32 %0, %0, 5;\n"
      "bra.uni AGAIN;\n"
      "DONE:\n"
      "}"
      : "=&r"(a)
      : "r"(lane));
  check(a == (lane + 4) / 5 * 5, 32);
  asm volatile("bar.sync 1, 32; membar.gl; fence.acq_rel.gpu;" ::: "memory");
}

// D = A I, with A from shared memory by ldmatrix, and the transposed D back to it.
__device__ void matrices(unsigned lane) {
  __shared__ __align__(16) half a[16][8];
  for (int i = lane; i < 128; i += 32) a[i / 8][i % 8] = __float2half(i);
  __syncwarp();
  const uint32_t row = static_cast<uint32_t>(__cvta_generic_to_shared(a[lane % 16]));
  uint32_t r[2];
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row)
               : "memory");
  // Of the identity, a lane has B[c][r] and B[c + 1][r], with r = lane / 4 and c = 2 (lane % 4).
  const uint32_t one = lane / 4 == lane % 4 * 2 ? 0x00003c00 : lane / 4 == lane % 4 * 2 + 1 ? 0x3c000000 : 0;
  float d[4], zero = 0;
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(r[0]), "r"(r[1]), "r"(one), "f"(zero));
  const unsigned i = lane / 4 * 8 + lane % 4 * 2;
  check(d[0] == i && d[1] == i + 1 && d[2] == i + 64 && d[3] == i + 65, 40);
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(r[0]));
  const half2 pair = *reinterpret_cast<half2*>(&transposed);
  const unsigned j = lane % 4 * 2 * 8 + lane / 4;
  check(__low2float(pair) == j && __high2float(pair) == j + 8, 44);
  uint32_t sums[2] = {0, 0};
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
               : "+r"(sums[0]), "+r"(sums[1])
               : "r"(r[0]), "r"(r[1]), "r"(one));
  check(sums[0] == r[0] && sums[1] == r[1], 41);

  // Bytes: a row of A is of ones, and B[k][n] = n - 4.
  const int n = int(lane / 4) - 4;
  const uint32_t bytes = 0x01010101u * uint32_t(n & 0xff);
  int sum[4] = {1, 1, 1, 1};
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %5}, {%0, "
      "%1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(0x01010101), "r"(bytes));
  const int column = int(lane % 4) * 2 - 4;
  check(sum[0] == 32 * column + 1 && sum[1] == 32 * (column + 1) + 1 && sum[3] == sum[1], 42);
  // TF32: A[m][k] = m, B[k][n] = n.
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %4, %5}, {%6, %6}, {%7, "
      "%7, %7, %7};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(__float_as_uint(lane / 4)), "r"(__float_as_uint(lane / 4 + 8)), "r"(__float_as_uint(lane / 4)),
        "f"(zero));
  const float row_0 = lane / 4, column_0 = lane % 4 * 2;
  check(d[0] == 8 * row_0 * column_0 && d[3] == 8 * (row_0 + 8) * (column_0 + 1), 43);
}

__global__ void check_all(float* global, const uint4* source) {
  const unsigned lane = threadIdx.x;
  const unsigned zero = source[0].x;
  registers_and_bits(lane);
  integers(zero);
  texts<4>(lane);
  numbers(lane);
  nans_and_rounding(zero);
  memory(lane, global, source);
  atomics_and_small_types(lane, global);
  lanes(lane);
  matrices(lane);
}

int main() {
  float* global;
  uint4* source;
  cudaMallocManaged(&global, 32 * sizeof(float));
  cudaMallocManaged(&source, 32 * sizeof(uint4));
  for (unsigned i = 0; i < 32; i++) source[i] = make_uint4(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3);
  check_all<<<1, 32>>>(global, source);
  unsigned wrong = 1;
  cudaMemcpyFromSymbol(&wrong, num_wrong, sizeof(wrong));
  printf(cudaGetLastError() == cudaSuccess && wrong == 0 ? "ok\n" : "wrong\n");
}
