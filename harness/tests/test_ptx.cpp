// What `flashsteps emulate` makes of inline PTX.
#include <algorithm>
#include <string>
#include <vector>

#include "harness/emulate/ptx.h"
#include "harness/tests/support.h"

using flashsteps::AsmStatement;
using flashsteps::translate_ptx;

namespace {

// With two outputs, x and y, and two inputs, a and b.
std::string translated(const std::string& text) {
  const AsmStatement statement{text,
                               {{"", "x", true}, {"", "y", true}, {"", "a", false}, {"named", "b", false}}};
  std::string result = translate_ptx(statement);
  const std::string begin =
      "do { constexpr auto flashsteps_at = ::emulator::Location::current(); auto&& flashsteps_0 = (x); "
      "auto&& flashsteps_1 = (y); const auto flashsteps_2 = (a); const auto flashsteps_3 = (b); { ";
  const std::string end = "} } while (false)";
  REQUIRE(result.starts_with(begin));
  REQUIRE(result.ends_with(end));
  result = result.substr(begin.size(), result.size() - begin.size() - end.size());
  for (const std::string prefix : {"::emulator::ptx::", "flashsteps_"}) {
    for (size_t i; (i = result.find(prefix)) != result.npos;) result.erase(i, prefix.size());
  }
  return result;
}

std::string refusal_of(const std::string& text) {
  try {
    translated(text);
  } catch (const flashsteps::PtxError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("ptx: operands") {
  CHECK(translated("add.s32 %0, %2, -4;") == "add_s32(at, 0, 2, -4); ");
  CHECK(translated("add.s32 %1,%[named],0x1F") == "add_s32(at, 1, 3, 0x1F); ");
  CHECK(translated("mov.f32 %0, 0f3F800000;") == "mov_f32(at, 0, ::std::bit_cast<float>(0x3F800000u)); ");
  CHECK(translated("mov.f32 %0, 0d3FF0000000000000;") ==
        "mov_f32(at, 0, ::std::bit_cast<double>(0x3FF0000000000000ull)); ");
  CHECK(translated("mov.u32 %0, (1 << 3) + 4*-2;") == "mov_u32(at, 0, (1<<3)+4*-2); ");
  CHECK(translated("mov.f32 %0, .5;") == "mov_f32(at, 0, .5); ");
  CHECK(translated("and.b32 %0, %2, ~WARP_SZ;") == "and_b32(at, 0, 2, ~32); ");
  CHECK(translated("mul.f32 %0, %2, 1.5e-3;") == "mul_f32(at, 0, 2, 1.5e-3); ");
  CHECK(translated("mov.u32 %0, %%tid.x;") == "mov_u32(at, 0, special_tid_x()); ");
  CHECK(translated("mov.u32 %0, %smid;") == "mov_u32(at, 0, special_smid()); ");
  CHECK(translated("mov.b64 %0, {%2, %3};") == "mov_b64(at, 0, vector(2, 3)); ");
  CHECK(translated("ld.global.f32 %0, [%2];") == "ld_global_f32(at, 0, address(2)); ");
  CHECK(translated("ld.shared.v2.f32 {%0,%1}, [%2+16];") ==
        "ld_shared_f32(at, vector(0, 1), address(2, (16))); ");
  CHECK(translated("ld.shared.f32 %0, [%2 + 16 + -4];") == "ld_shared_f32(at, 0, address(2, (16+-4))); ");
  CHECK(translated("ld.shared.f32 %0, [%2-4*(3+1)];") == "ld_shared_f32(at, 0, address(2, -(4*(3+1)))); ");
  CHECK(translated("elect.sync _|%0, 0xffffffff;") == "elect_sync(at, Sink(), 0, 0xffffffff); ");
}

TEST_CASE("ptx: statements") {
  CHECK(translated("bar.sync 0; membar.gl;") == "bar_sync(at, 0); membar_gl(at); ");
  CHECK(translated(" // one\n bar.sync 0 /* two; */ ;\n\n") == "bar_sync(at, 0); ");
  CHECK(translated(".reg .b32 r; { .reg .b32 r; mov.b32 r, 1; } .pragma \"nounroll\"; mov.b32 %0, r;") ==
        "B32 reg_r = B32(-1); { B32 reg_r = B32(-1); mov_b32(at, reg_r, 1); } mov_b32(at, 0, reg_r); ");
  CHECK(translated("ldmatrix.sync.aligned.m8n8.x2.shared.b16{%0, %1},[%2];") ==
        "ldmatrix_sync_aligned_x2_shared_b16(at, vector(0, 1), address(2)); ");
}

TEST_CASE("ptx: registers and predicates") {
  CHECK(translated("{.reg.pred p; mov.pred p, 1;}") == "{ bool reg_p = false; mov_pred(at, reg_p, 1); } ");
  CHECK(translated(".reg .b32 a, %%b; .reg .u64 c<2>; mov.u32 a, %%b; mov.u64 c1, c0;") ==
        "B32 reg_a = B32(-1); B32 reg_$b = B32(-1); B64 reg_c0 = B64(-1); B64 reg_c1 = B64(-1); "
        "mov_u32(at, reg_a, reg_$b); mov_u64(at, reg_c1, reg_c0); ");
  CHECK(translated(".reg .pred p; setp.ne.b32 p, %2, 0; @p trap; @!p bar.sync 0;") ==
        "bool reg_p = false; setp_ne_b32(at, reg_p, 2, 0); if (is_true(reg_p)) trap(at); "
        "if (!is_true(reg_p)) bar_sync(at, 0); ");
}

TEST_CASE("ptx: jumps cross no declaration") {
  CHECK(translated("bra DONE; .reg .pred p; AGAIN_%=: @p bra AGAIN_%=; bra.uni DONE; DONE:") ==
        "__label__ label_AGAIN__; __label__ label_DONE; bool reg_p = false; goto label_DONE; label_AGAIN__:; "
        "if (is_true(reg_p)) goto label_AGAIN__; goto label_DONE; label_DONE:; ");
}

TEST_CASE("ptx: modifiers that make no difference are in no name") {
  for (const char* hints : {".ca", ".cg", ".nc", ".nc.L1::no_allocate.L2::128B", ".L1::evict_last"})
    CHECK(translated("ld.global" + std::string(hints) + ".u32 %0, [%2];") ==
          "ld_global_u32(at, 0, address(2)); ");
  CHECK(translated("ld.relaxed.gpu.global.L1::no_allocate.b128 %0, [%2];") ==
        "ld_relaxed_global_b128(at, 0, address(2)); ");
}

TEST_CASE("ptx: modifiers in any order, and types in theirs") {
  for (const char* order : {".m8n8.x4.shared::cta", ".x4.m8n8.shared::cta", ".x4.shared.m8n8"})
    CHECK(translated("ldmatrix.sync.aligned" + std::string(order) + ".b16 %0, [%2];") ==
          "ldmatrix_sync_aligned_x4_shared_b16(at, 0, address(2)); ");
  for (const char* order : {".release.gpu.global.add", ".add.release.gpu.global", ".global.gpu.add.release"})
    CHECK(translated("atom" + std::string(order) + ".s32 %0, [%2], %3;") ==
          "atom_release_global_add_s32(at, 0, address(2), 3); ");
  CHECK(translated("ld.global.acquire.gpu.b32 %0, [%2];") == "ld_acquire_global_b32(at, 0, address(2)); ");
  CHECK(translated("st.shared.u32.v2 [%2], {%0, %1};") == "st_shared_u32(at, address(2), vector(0, 1)); ");
  CHECK(translated("vote.ballot.sync.b32 %0, 1, -1;") == "vote_sync_ballot_b32(at, 0, 1, -1); ");
  CHECK(translated("cvt.f32.rn.s32 %0, %2;") == "cvt_f32_s32(at, 0, 2); ");
  CHECK(refusal_of("cvt.rzi.f32.s32 %0, %2;") != "");
  CHECK(refusal_of("ld.relaxed.acquire.u32 %0, [%2];") != "");
}

TEST_CASE("ptx: copies and products of sm_90") {
  CHECK(translated("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                   "[%2], [%3, {%0, 7}], [%1+8];") ==
        "cp_async_bulk_tensor_shared_global_mbarrier_complete_tx_bytes(at, address(2), address(3), "
        "vector(0, 7), address(1, (8))); ");
  CHECK(translated("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%2], 64;") ==
        "mbarrier_arrive_expect_tx_b64(at, Sink(), address(2), 64); ");
  for (const char* shape : {"m64n8k16", "m64n88k16", "m64n256k16"})
    CHECK(translated("wgmma.mma_async.sync.aligned." + std::string(shape) +
                     ".f32.bf16.bf16 {%0, %1}, %2, %3, 1, 1, -1, 0, 0;") ==
          "wgmma_mma_async_sync_aligned_f32_bf16_bf16(at, vector(0, 1), 2, 3, 1, 1, -1, 0, 0); ");
  CHECK(refusal_of("wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16 {%0, %1}, %2, %3, 1, 1, 1, 0, 0;") !=
        "");
}

TEST_CASE("ptx: what is not known") {
  const std::string not_known = "PTX: the emulator does not know ";
  CHECK(refusal_of("add.s32 %0, %2, 1; vadd.u32  %0,\n%2; bar.sync 0;") == not_known + "`vadd.u32 %0, %2`");
  CHECK(refusal_of("@p add.f99 %0;") == not_known + "`p` in `@p add.f99 %0`");
  CHECK(refusal_of("add.f99 " + std::string(100, 'x')) ==
        not_known + "`add.f99 " + std::string(52, 'x') + "`");
  CHECK(refusal_of("mov.u32 %0, nothing;") == not_known + "`nothing` in `mov.u32 %0, nothing`");
  CHECK(refusal_of(".reg .v4 .f32 x;") == not_known + "`.reg .v4 .f32 x`");
  CHECK(refusal_of("tcgen05.fence::after_thread_sync;") ==
        "PTX: tcgen05 is of Blackwell; the emulator knows the instructions up to sm_90a: "
        "`tcgen05.fence::after_thread_sync`");
  CHECK(refusal_of("mov.u32 %0, %7;") == "PTX: there is no operand %7");
  CHECK(refusal_of("{ bar.sync 0;") == "PTX: a } is missing");
  CHECK(refusal_of("bar.sync 0; }") != "");
}

TEST_CASE("ptx: no text, no statement") {
  CHECK(translate_ptx({"", {}}) == "");
  CHECK(translate_ptx({" // nothing\n", {{"", "x", true}}}) == "");
}
