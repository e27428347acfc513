// Catch2, whichever of its two generations is installed: 2.13 (Debian 12) or 3.x (Ubuntu 24.04). Tests use
// only what both have. 3.x holds inline assembly, which kernels must not (common/emulator/unsupported.h).
#pragma once

#pragma push_macro("asm")
#undef asm
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
#pragma pop_macro("asm")
