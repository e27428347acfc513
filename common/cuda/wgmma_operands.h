// The operand lists of wgmma.h's inline PTX, which must name every register: 4 more for every 8 columns, or
// for 16 if they have two sums each. C is the constraint, "f" or "r".
#pragma once

#define FLASHSTEPS_ACC(C, i) "+" C(acc[i]), "+" C(acc[i + 1]), "+" C(acc[i + 2]), "+" C(acc[i + 3])
#define FLASHSTEPS_ACC_8(C) FLASHSTEPS_ACC(C, 0)
#define FLASHSTEPS_ACC_16(C) FLASHSTEPS_ACC_8(C), FLASHSTEPS_ACC(C, 4)
#define FLASHSTEPS_ACC_24(C) FLASHSTEPS_ACC_16(C), FLASHSTEPS_ACC(C, 8)
#define FLASHSTEPS_ACC_32(C) FLASHSTEPS_ACC_24(C), FLASHSTEPS_ACC(C, 12)
#define FLASHSTEPS_ACC_40(C) FLASHSTEPS_ACC_32(C), FLASHSTEPS_ACC(C, 16)
#define FLASHSTEPS_ACC_48(C) FLASHSTEPS_ACC_40(C), FLASHSTEPS_ACC(C, 20)
#define FLASHSTEPS_ACC_56(C) FLASHSTEPS_ACC_48(C), FLASHSTEPS_ACC(C, 24)
#define FLASHSTEPS_ACC_64(C) FLASHSTEPS_ACC_56(C), FLASHSTEPS_ACC(C, 28)
#define FLASHSTEPS_ACC_72(C) FLASHSTEPS_ACC_64(C), FLASHSTEPS_ACC(C, 32)
#define FLASHSTEPS_ACC_80(C) FLASHSTEPS_ACC_72(C), FLASHSTEPS_ACC(C, 36)
#define FLASHSTEPS_ACC_88(C) FLASHSTEPS_ACC_80(C), FLASHSTEPS_ACC(C, 40)
#define FLASHSTEPS_ACC_96(C) FLASHSTEPS_ACC_88(C), FLASHSTEPS_ACC(C, 44)
#define FLASHSTEPS_ACC_104(C) FLASHSTEPS_ACC_96(C), FLASHSTEPS_ACC(C, 48)
#define FLASHSTEPS_ACC_112(C) FLASHSTEPS_ACC_104(C), FLASHSTEPS_ACC(C, 52)
#define FLASHSTEPS_ACC_120(C) FLASHSTEPS_ACC_112(C), FLASHSTEPS_ACC(C, 56)
#define FLASHSTEPS_ACC_128(C) FLASHSTEPS_ACC_120(C), FLASHSTEPS_ACC(C, 60)
#define FLASHSTEPS_ACC_136(C) FLASHSTEPS_ACC_128(C), FLASHSTEPS_ACC(C, 64)
#define FLASHSTEPS_ACC_144(C) FLASHSTEPS_ACC_136(C), FLASHSTEPS_ACC(C, 68)
#define FLASHSTEPS_ACC_152(C) FLASHSTEPS_ACC_144(C), FLASHSTEPS_ACC(C, 72)
#define FLASHSTEPS_ACC_160(C) FLASHSTEPS_ACC_152(C), FLASHSTEPS_ACC(C, 76)
#define FLASHSTEPS_ACC_168(C) FLASHSTEPS_ACC_160(C), FLASHSTEPS_ACC(C, 80)
#define FLASHSTEPS_ACC_176(C) FLASHSTEPS_ACC_168(C), FLASHSTEPS_ACC(C, 84)
#define FLASHSTEPS_ACC_184(C) FLASHSTEPS_ACC_176(C), FLASHSTEPS_ACC(C, 88)
#define FLASHSTEPS_ACC_192(C) FLASHSTEPS_ACC_184(C), FLASHSTEPS_ACC(C, 92)
#define FLASHSTEPS_ACC_200(C) FLASHSTEPS_ACC_192(C), FLASHSTEPS_ACC(C, 96)
#define FLASHSTEPS_ACC_208(C) FLASHSTEPS_ACC_200(C), FLASHSTEPS_ACC(C, 100)
#define FLASHSTEPS_ACC_216(C) FLASHSTEPS_ACC_208(C), FLASHSTEPS_ACC(C, 104)
#define FLASHSTEPS_ACC_224(C) FLASHSTEPS_ACC_216(C), FLASHSTEPS_ACC(C, 108)
#define FLASHSTEPS_ACC_232(C) FLASHSTEPS_ACC_224(C), FLASHSTEPS_ACC(C, 112)
#define FLASHSTEPS_ACC_240(C) FLASHSTEPS_ACC_232(C), FLASHSTEPS_ACC(C, 116)
#define FLASHSTEPS_ACC_248(C) FLASHSTEPS_ACC_240(C), FLASHSTEPS_ACC(C, 120)
#define FLASHSTEPS_ACC_256(C) FLASHSTEPS_ACC_248(C), FLASHSTEPS_ACC(C, 124)

#define FLASHSTEPS_REG_8 "%0, %1, %2, %3"
#define FLASHSTEPS_REG_16 FLASHSTEPS_REG_8 ", %4, %5, %6, %7"
#define FLASHSTEPS_REG_24 FLASHSTEPS_REG_16 ", %8, %9, %10, %11"
#define FLASHSTEPS_REG_32 FLASHSTEPS_REG_24 ", %12, %13, %14, %15"
#define FLASHSTEPS_REG_40 FLASHSTEPS_REG_32 ", %16, %17, %18, %19"
#define FLASHSTEPS_REG_48 FLASHSTEPS_REG_40 ", %20, %21, %22, %23"
#define FLASHSTEPS_REG_56 FLASHSTEPS_REG_48 ", %24, %25, %26, %27"
#define FLASHSTEPS_REG_64 FLASHSTEPS_REG_56 ", %28, %29, %30, %31"
#define FLASHSTEPS_REG_72 FLASHSTEPS_REG_64 ", %32, %33, %34, %35"
#define FLASHSTEPS_REG_80 FLASHSTEPS_REG_72 ", %36, %37, %38, %39"
#define FLASHSTEPS_REG_88 FLASHSTEPS_REG_80 ", %40, %41, %42, %43"
#define FLASHSTEPS_REG_96 FLASHSTEPS_REG_88 ", %44, %45, %46, %47"
#define FLASHSTEPS_REG_104 FLASHSTEPS_REG_96 ", %48, %49, %50, %51"
#define FLASHSTEPS_REG_112 FLASHSTEPS_REG_104 ", %52, %53, %54, %55"
#define FLASHSTEPS_REG_120 FLASHSTEPS_REG_112 ", %56, %57, %58, %59"
#define FLASHSTEPS_REG_128 FLASHSTEPS_REG_120 ", %60, %61, %62, %63"
#define FLASHSTEPS_REG_136 FLASHSTEPS_REG_128 ", %64, %65, %66, %67"
#define FLASHSTEPS_REG_144 FLASHSTEPS_REG_136 ", %68, %69, %70, %71"
#define FLASHSTEPS_REG_152 FLASHSTEPS_REG_144 ", %72, %73, %74, %75"
#define FLASHSTEPS_REG_160 FLASHSTEPS_REG_152 ", %76, %77, %78, %79"
#define FLASHSTEPS_REG_168 FLASHSTEPS_REG_160 ", %80, %81, %82, %83"
#define FLASHSTEPS_REG_176 FLASHSTEPS_REG_168 ", %84, %85, %86, %87"
#define FLASHSTEPS_REG_184 FLASHSTEPS_REG_176 ", %88, %89, %90, %91"
#define FLASHSTEPS_REG_192 FLASHSTEPS_REG_184 ", %92, %93, %94, %95"
#define FLASHSTEPS_REG_200 FLASHSTEPS_REG_192 ", %96, %97, %98, %99"
#define FLASHSTEPS_REG_208 FLASHSTEPS_REG_200 ", %100, %101, %102, %103"
#define FLASHSTEPS_REG_216 FLASHSTEPS_REG_208 ", %104, %105, %106, %107"
#define FLASHSTEPS_REG_224 FLASHSTEPS_REG_216 ", %108, %109, %110, %111"
#define FLASHSTEPS_REG_232 FLASHSTEPS_REG_224 ", %112, %113, %114, %115"
#define FLASHSTEPS_REG_240 FLASHSTEPS_REG_232 ", %116, %117, %118, %119"
#define FLASHSTEPS_REG_248 FLASHSTEPS_REG_240 ", %120, %121, %122, %123"
#define FLASHSTEPS_REG_256 FLASHSTEPS_REG_248 ", %124, %125, %126, %127"

// The operands after acc are a, b, scale_d and the flags. Their numbers follow those of acc's registers. With
// K = 32 an instruction has no flags.
#define FLASHSTEPS_WGMMA_SS_K16(TYPE, N, A, B, D, TA, TB)                                                \
  if constexpr (NUM_ACC == N / 2)                                                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #D                                                 \
                 ", 0;\n"                                                                                \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" FLASHSTEPS_REG_##N \
                 "}, %" #A ", %" #B ", p, 1, 1, %" #TA ", %" #TB ";\n}"                                  \
                 : FLASHSTEPS_ACC_##N("f")                                                               \
                 : "l"(a.bits), "l"(b.bits), "r"(int(scale_d)), "n"(TRANS_A), "n"(TRANS_B));
#define FLASHSTEPS_WGMMA_RS_K16(TYPE, N, A0, A1, A2, A3, B, D, TB)                                       \
  if constexpr (NUM_ACC == N / 2)                                                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #D                                                 \
                 ", 0;\n"                                                                                \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" FLASHSTEPS_REG_##N \
                 "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, %" #TB ";\n}"           \
                 : FLASHSTEPS_ACC_##N("f")                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(int(scale_d)),           \
                   "n"(TRANS_B));

#define FLASHSTEPS_WGMMA_SS_K32(TYPE, N, A, B, D, TA, TB)                                                \
  if constexpr (NUM_ACC == N / 2)                                                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #D                                                 \
                 ", 0;\n"                                                                                \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPE "." TYPE " {" FLASHSTEPS_REG_##N \
                 "}, %" #A ", %" #B ", p, 1, 1;\n}"                                                      \
                 : FLASHSTEPS_ACC_##N("f")                                                               \
                 : "l"(a.bits), "l"(b.bits), "r"(int(scale_d)));
#define FLASHSTEPS_WGMMA_RS_K32(TYPE, N, A0, A1, A2, A3, B, D, TB)                                       \
  if constexpr (NUM_ACC == N / 2)                                                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #D                                                 \
                 ", 0;\n"                                                                                \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPE "." TYPE " {" FLASHSTEPS_REG_##N \
                 "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1;\n}"                     \
                 : FLASHSTEPS_ACC_##N("f")                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(int(scale_d)));

#define FLASHSTEPS_WGMMA_SS(INSTRUCTION, TYPE)    \
  INSTRUCTION(TYPE, 8, 4, 5, 6, 7, 8)             \
  INSTRUCTION(TYPE, 16, 8, 9, 10, 11, 12)         \
  INSTRUCTION(TYPE, 24, 12, 13, 14, 15, 16)       \
  INSTRUCTION(TYPE, 32, 16, 17, 18, 19, 20)       \
  INSTRUCTION(TYPE, 40, 20, 21, 22, 23, 24)       \
  INSTRUCTION(TYPE, 48, 24, 25, 26, 27, 28)       \
  INSTRUCTION(TYPE, 56, 28, 29, 30, 31, 32)       \
  INSTRUCTION(TYPE, 64, 32, 33, 34, 35, 36)       \
  INSTRUCTION(TYPE, 72, 36, 37, 38, 39, 40)       \
  INSTRUCTION(TYPE, 80, 40, 41, 42, 43, 44)       \
  INSTRUCTION(TYPE, 88, 44, 45, 46, 47, 48)       \
  INSTRUCTION(TYPE, 96, 48, 49, 50, 51, 52)       \
  INSTRUCTION(TYPE, 104, 52, 53, 54, 55, 56)      \
  INSTRUCTION(TYPE, 112, 56, 57, 58, 59, 60)      \
  INSTRUCTION(TYPE, 120, 60, 61, 62, 63, 64)      \
  INSTRUCTION(TYPE, 128, 64, 65, 66, 67, 68)      \
  INSTRUCTION(TYPE, 136, 68, 69, 70, 71, 72)      \
  INSTRUCTION(TYPE, 144, 72, 73, 74, 75, 76)      \
  INSTRUCTION(TYPE, 152, 76, 77, 78, 79, 80)      \
  INSTRUCTION(TYPE, 160, 80, 81, 82, 83, 84)      \
  INSTRUCTION(TYPE, 168, 84, 85, 86, 87, 88)      \
  INSTRUCTION(TYPE, 176, 88, 89, 90, 91, 92)      \
  INSTRUCTION(TYPE, 184, 92, 93, 94, 95, 96)      \
  INSTRUCTION(TYPE, 192, 96, 97, 98, 99, 100)     \
  INSTRUCTION(TYPE, 200, 100, 101, 102, 103, 104) \
  INSTRUCTION(TYPE, 208, 104, 105, 106, 107, 108) \
  INSTRUCTION(TYPE, 216, 108, 109, 110, 111, 112) \
  INSTRUCTION(TYPE, 224, 112, 113, 114, 115, 116) \
  INSTRUCTION(TYPE, 232, 116, 117, 118, 119, 120) \
  INSTRUCTION(TYPE, 240, 120, 121, 122, 123, 124) \
  INSTRUCTION(TYPE, 248, 124, 125, 126, 127, 128) \
  INSTRUCTION(TYPE, 256, 128, 129, 130, 131, 132)

#define FLASHSTEPS_WGMMA_RS(INSTRUCTION, TYPE)              \
  INSTRUCTION(TYPE, 8, 4, 5, 6, 7, 8, 9, 10)                \
  INSTRUCTION(TYPE, 16, 8, 9, 10, 11, 12, 13, 14)           \
  INSTRUCTION(TYPE, 24, 12, 13, 14, 15, 16, 17, 18)         \
  INSTRUCTION(TYPE, 32, 16, 17, 18, 19, 20, 21, 22)         \
  INSTRUCTION(TYPE, 40, 20, 21, 22, 23, 24, 25, 26)         \
  INSTRUCTION(TYPE, 48, 24, 25, 26, 27, 28, 29, 30)         \
  INSTRUCTION(TYPE, 56, 28, 29, 30, 31, 32, 33, 34)         \
  INSTRUCTION(TYPE, 64, 32, 33, 34, 35, 36, 37, 38)         \
  INSTRUCTION(TYPE, 72, 36, 37, 38, 39, 40, 41, 42)         \
  INSTRUCTION(TYPE, 80, 40, 41, 42, 43, 44, 45, 46)         \
  INSTRUCTION(TYPE, 88, 44, 45, 46, 47, 48, 49, 50)         \
  INSTRUCTION(TYPE, 96, 48, 49, 50, 51, 52, 53, 54)         \
  INSTRUCTION(TYPE, 104, 52, 53, 54, 55, 56, 57, 58)        \
  INSTRUCTION(TYPE, 112, 56, 57, 58, 59, 60, 61, 62)        \
  INSTRUCTION(TYPE, 120, 60, 61, 62, 63, 64, 65, 66)        \
  INSTRUCTION(TYPE, 128, 64, 65, 66, 67, 68, 69, 70)        \
  INSTRUCTION(TYPE, 136, 68, 69, 70, 71, 72, 73, 74)        \
  INSTRUCTION(TYPE, 144, 72, 73, 74, 75, 76, 77, 78)        \
  INSTRUCTION(TYPE, 152, 76, 77, 78, 79, 80, 81, 82)        \
  INSTRUCTION(TYPE, 160, 80, 81, 82, 83, 84, 85, 86)        \
  INSTRUCTION(TYPE, 168, 84, 85, 86, 87, 88, 89, 90)        \
  INSTRUCTION(TYPE, 176, 88, 89, 90, 91, 92, 93, 94)        \
  INSTRUCTION(TYPE, 184, 92, 93, 94, 95, 96, 97, 98)        \
  INSTRUCTION(TYPE, 192, 96, 97, 98, 99, 100, 101, 102)     \
  INSTRUCTION(TYPE, 200, 100, 101, 102, 103, 104, 105, 106) \
  INSTRUCTION(TYPE, 208, 104, 105, 106, 107, 108, 109, 110) \
  INSTRUCTION(TYPE, 216, 108, 109, 110, 111, 112, 113, 114) \
  INSTRUCTION(TYPE, 224, 112, 113, 114, 115, 116, 117, 118) \
  INSTRUCTION(TYPE, 232, 116, 117, 118, 119, 120, 121, 122) \
  INSTRUCTION(TYPE, 240, 120, 121, 122, 123, 124, 125, 126) \
  INSTRUCTION(TYPE, 248, 124, 125, 126, 127, 128, 129, 130) \
  INSTRUCTION(TYPE, 256, 128, 129, 130, 131, 132, 133, 134)

#define FLASHSTEPS_WGMMA_FP16_SUMS(N, REGISTERS, A, B, D)                                                \
  if constexpr (NUM_ACC == N / 4)                                                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #D                                                 \
                 ", 0;\n"                                                                                \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f16.e4m3.e4m3 {" FLASHSTEPS_REG_##REGISTERS \
                 "}, %" #A ", %" #B ", p, 1, 1;\n}"                                                      \
                 : FLASHSTEPS_ACC_##REGISTERS("r")                                                       \
                 : "l"(a.bits), "l"(b.bits), "r"(int(scale_d)));
#define FLASHSTEPS_WGMMA_SS_FP16_SUMS              \
  FLASHSTEPS_WGMMA_FP16_SUMS(16, 8, 4, 5, 6)       \
  FLASHSTEPS_WGMMA_FP16_SUMS(32, 16, 8, 9, 10)     \
  FLASHSTEPS_WGMMA_FP16_SUMS(48, 24, 12, 13, 14)   \
  FLASHSTEPS_WGMMA_FP16_SUMS(64, 32, 16, 17, 18)   \
  FLASHSTEPS_WGMMA_FP16_SUMS(80, 40, 20, 21, 22)   \
  FLASHSTEPS_WGMMA_FP16_SUMS(96, 48, 24, 25, 26)   \
  FLASHSTEPS_WGMMA_FP16_SUMS(112, 56, 28, 29, 30)  \
  FLASHSTEPS_WGMMA_FP16_SUMS(128, 64, 32, 33, 34)  \
  FLASHSTEPS_WGMMA_FP16_SUMS(144, 72, 36, 37, 38)  \
  FLASHSTEPS_WGMMA_FP16_SUMS(160, 80, 40, 41, 42)  \
  FLASHSTEPS_WGMMA_FP16_SUMS(176, 88, 44, 45, 46)  \
  FLASHSTEPS_WGMMA_FP16_SUMS(192, 96, 48, 49, 50)  \
  FLASHSTEPS_WGMMA_FP16_SUMS(208, 104, 52, 53, 54) \
  FLASHSTEPS_WGMMA_FP16_SUMS(224, 112, 56, 57, 58) \
  FLASHSTEPS_WGMMA_FP16_SUMS(240, 120, 60, 61, 62) \
  FLASHSTEPS_WGMMA_FP16_SUMS(256, 128, 64, 65, 66)
