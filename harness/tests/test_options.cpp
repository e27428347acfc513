// The command line: what it means, and what it refuses in one line.
#include <stdlib.h>
#include <unistd.h>

#include <set>

#include "harness/base/text.h"
#include "harness/program/options.h"
#include "harness/program/prepare.h"
#include "harness/tests/support.h"

using namespace flashsteps;

namespace {

Options parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "flashsteps");
  return parse_options(int(arguments.size()), arguments.data(), true).value();
}

std::string refusal_of(const std::vector<const char*>& arguments) {
  try {
    parse(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> names_of(const std::vector<StepChoice>& steps) {
  std::vector<std::string> names;
  for (const StepChoice& step : steps) names.push_back(step.name);
  return names;
}

}  // namespace

TEST_CASE("every name of an axis is read as what it names") {
  const auto check = [](const char* option, const auto& names, auto member) {
    for (const auto& [text, value] : names) {
      INFO(text);
      const Options o = parse({"run", "--shape", "2,1,8,64", option, text.c_str()});
      CHECK(o.problems.at(0).*member == value);
    }
  };
  check("--dtype", kDTypeNames, &Problem::dtype);
  check("--layout", kLayoutNames, &Problem::layout);
  check("--kv-lengths", kKvLengthsNames, &Problem::kv_lengths);
  check("--inputs", kInputsNames, &Problem::inputs);
}

TEST_CASE("--page-size puts K and V into pages") {
  const Options o = parse({"check", "--shape", "2,1,8,64", "--page-size", "1", "--page-size", "64"});
  REQUIRE(o.problems.size() == 2);
  CHECK(o.problems[1].page_size == 64);
  CHECK(o.problems[1].label() == "B=2 Hq=1 Hkv=1 Sq=8 Skv=8 D=64 fp16 full page_size=64");
  const auto why = [](std::vector<const char*> words) {
    words.insert(words.begin(), {"check", "--shape", "2,1,8,64", "--page-size"});
    return refusal_of(words);
  };
  CHECK(why({"24"}).find("page_size is 24, it must be a power of two") != std::string::npos);
  CHECK(why({"0"}).find("--page-size") != std::string::npos);
  CHECK(why({"16", "--layout", "qkv"}).find("K and V in pages are not in one with q") != std::string::npos);
}

TEST_CASE("--quantize is said of a problem") {
  const Options o = parse({"check", "--shape", "2,1,8,64", "--dtype", "bf16", "--quantize"});
  REQUIRE(o.problems.size() == 1);
  CHECK(o.problems[0].quantize);
  CHECK(o.problems[0].label() == "B=2 Hq=1 Hkv=1 Sq=8 Skv=8 D=64 bf16 full quantize=yes");
  CHECK(problem_from_json(to_json(o.problems[0])) == o.problems[0]);
}

TEST_CASE("--backward is said of a problem") {
  const Options o = parse({"bench", "--grid", "paper", "--shape", "2,1,8,64", "--backward"});
  REQUIRE(o.problems.size() == 13);
  for (const Problem& p : o.problems) {
    CHECK(p.backward);
    CHECK(problem_from_json(to_json(p)) == p);
  }
  CHECK(o.problems[0].label() == "B=2 Hq=1 Hkv=1 Sq=8 Skv=8 D=64 fp16 full backward=yes");
}

TEST_CASE("--no-lse is said of a problem, whatever is done with it") {
  for (const char* const command : {"run", "check", "bench"}) {
    const Options o = parse({command, "--shape", "2,1,8,64", "--dtype", "e4m3", "--no-lse", "--fast"});
    REQUIRE(o.problems.size() == 1);
    CHECK_FALSE(o.problems[0].lse);
    CHECK(o.problems[0].label() == "B=2 Hq=1 Hkv=1 Sq=8 Skv=8 D=64 e4m3 full lse=none fast=yes");
    CHECK(problem_from_json(to_json(o.problems[0])) == o.problems[0]);
  }
}

TEST_CASE("numbers are decimal, whatever they begin with") {
  CHECK(parse({"run", "--shape", "1,1,8,64", "--seed", "010"}).problems.at(0).seed == 10);
  CHECK(parse({"run", "--shape", "1,1,8,64", "--seed", "18446744073709551615"}).problems.at(0).seed ==
        18446744073709551615u);
  CHECK(parse({"check", "--memory", "0.5", "--timeout", "2.5"}).memory_gib == 0.5);
}

TEST_CASE("axes multiply") {
  const Options o =
      parse({"check", "--shape", "1,2,3,64", "--shape", "1,4,2,5,7,128", "--dtype", "fp16", "--dtype", "bf16",
             "--causal", "--full", "--layout", "bshd", "--inputs", "sharp", "--seed", "9"});
  CHECK(o.problems.size() == 2 * 2 * 2);
  CHECK_FALSE(o.covering);
  CHECK(o.problems[0].layout == Layout::kBshd);
  CHECK(o.problems[0].seed == 9);
  CHECK(o.problems[0].causal == false);
  CHECK(o.problems[1].causal == true);
  CHECK(o.problems.back().seqlen_kv == 7);
}

TEST_CASE("softmax_scale is said where it is not the default, to the digits of a float") {
  const Options o = parse({"run", "--shape", "1,1,8,64", "--shape", "1,1,8,128", "--softmax-scale", "0.125"});
  CHECK((o.problems[0].given_scale == 0 && o.problems[0].softmax_scale() == 0.125f));
  CHECK(o.problems[0].label().find("softmax_scale") == std::string::npos);
  CHECK_FALSE(to_json(o.problems[0]).contains("softmax_scale"));
  CHECK((o.problems[1].given_scale == 0.125 && o.problems[1].softmax_scale() == 0.125f));
  CHECK(o.problems[1].label().find(" softmax_scale=0.125") != std::string::npos);
  const Problem fine = parse({"run", "--shape", "1,1,8,64", "--softmax-scale", "0.123456789012"}).problems[0];
  CHECK(fine.label().find("softmax_scale=0.123456789") != std::string::npos);
  CHECK(problem_from_json(to_json(fine)).softmax_scale() == fine.softmax_scale());
}

TEST_CASE("the same problem twice is one problem") {
  CHECK(parse({"check", "--shape", "1,2,3,64", "--shape", "1,2,2,3,3,64", "--full", "--full"})
            .problems.size() == 1);
}

TEST_CASE("a step may follow a repeatable option") {
  const Options o = parse({"run", "--shape", "1,1,8,64", "v01_scalar", "--dtype", "bf16", "v02_smem_tiles"});
  CHECK(names_of(o.steps) == std::vector<std::string>{"v01_scalar", "v02_smem_tiles"});
  CHECK(o.problems.size() == 1);
}

TEST_CASE("the grid of few queries, with a cold L2") {
  const Options o = parse({"bench", "--grid", "decode", "--cold-l2"});
  CHECK(o.cold_l2);
  CHECK(o.problems.size() == 3 * (4 + 3 + 2 + 1));
  for (const Problem& p : o.problems) {
    CHECK((p.seqlen_q == 1 && p.head_dim == 128 && p.dtype == DType::kBf16));
    CHECK(p.kv_bytes() <= 2.5e9);
  }
  const std::vector<Problem> large = parse({"bench", "--grid", "decode-large"}).problems;
  CHECK(large.size() == 3 * (4 + 4 + 4 + 3));
  for (const Problem& p : large) CHECK(p.kv_bytes() < 35e9);  // twice that fits into an H200
  CHECK_FALSE(parse({"run"}).cold_l2);
  CHECK(refusal_of({"check", "--cold-l2"}).find("--cold-l2") != std::string::npos);
}

TEST_CASE("tune times the steps that have several configurations, and a run uses its file when it is told") {
  const Options tune = parse({"tune", "v14", "--tuning", "/tmp/flashsteps_tuning.json"});
  CHECK(names_of(tune.steps) == std::vector<std::string>{"v14_longest_first", "v14_longest_first@128x64",
                                                         "v14_longest_first@256x32"});
  CHECK(tune.tuning_path == "/tmp/flashsteps_tuning.json");
  CHECK_FALSE(tune.tuned);
  for (const StepChoice& step : parse({"tune", "--tuning", "/tmp/flashsteps_tuning.json"}).steps)
    CHECK(step.info->num_configurations() > 1);
  CHECK_FALSE(parse({"run"}).tuned);
  CHECK(parse({"bench", "--tuned"}).tuned);
  CHECK(parse({"run", "--tuning", "some/file"}).tuned);
  CHECK(parse({"run", "--tuning", "some/file"}).tuning_path == "some/file");
}

TEST_CASE("the paper's grid") {
  const Options o = parse({"bench", "--grid", "paper", "--causal", "--full"});
  CHECK(o.problems.size() == 2 * 6 * 2);
  for (const Problem& p : o.problems) {
    CHECK(p.batch * p.seqlen_q == 16384);
    CHECK(p.num_heads_q * p.head_dim == 2048);
    CHECK(p.dtype == DType::kBf16);
  }
}

TEST_CASE("the grid of the shapes that models call") {
  const std::vector<Problem> problems = parse({"bench", "--grid", "shapes", "--causal", "--full"}).problems;
  CHECK(problems.size() == 2 * 2 * (73 + 15 + 12));
  for (const Problem& p : problems) {
    CHECK(p.dtype == DType::kBf16);
    CHECK(p.kv_bytes() <= 1.1e9);
    CHECK(p.flops() <= 2.3e12);
  }
}

TEST_CASE("check without a shape is the covering sample") {
  CHECK(parse({"check"}).covering);
  CHECK(parse({"check", "v01_scalar", "--mode", "late"}).covering);
  CHECK_FALSE(parse({"run"}).covering);
}

TEST_CASE("a CTA to trace") {
  CHECK(parse({"trace", "v01_scalar"}).cta == -1);
  CHECK(parse({"trace", "v01_scalar", "--cta", "12"}).cta == 12);
}

TEST_CASE("a step may be named by how it begins") {
  // Each runs once, in the order of the ladder.
  CHECK(names_of(parse({"run", "v05", "v02_smem", "v05_padded"}).steps) ==
        std::vector<std::string>{"v02_smem_tiles", "v05_padded_smem"});
  // It is the beginning of other names, too.
  CHECK(names_of(parse({"run", "mutant_none"}).steps) == std::vector<std::string>{"mutant_none"});
  const std::vector<std::string> all = names_of(parse({"run"}).steps);
  CHECK((all.size() > 10 && all.front() == "v01_scalar" && all.back().starts_with("wgmma_only")));
}

TEST_CASE("every bad argument gets one clear line") {
  const struct {
    std::vector<const char*> arguments;
    const char* says;
  } cases[] = {
      {{}, "a command is missing: run, check, "},
      {{"fly"}, "unknown command 'fly' (see --help)"},
      {{"v05"}, "unknown command 'v05'; did you mean run v05? (see --help)"},
      {{"lits"}, "unknown command 'lits'; did you mean list? (see --help)"},
      {{"run", "--nonsense"}, "unexpected argument '--nonsense' (see run --help)"},
      {{"run", "--shpae", "1,1,8,64"},
       "unexpected argument '--shpae'; did you mean --shape? (see run --help)"},
      {{"run", "v99_magic"}, "unknown step 'v99_magic' (flashsteps list --short names all)"},
      {{"run", "v5_padded"}, "unknown step 'v5_padded'; did you mean v05_padded_smem? (flashsteps list"},
      {{"run", "v05_paded"}, "unknown step 'v05_paded'; did you mean v05_padded_smem? ("},
      {{"run", "V05-padded"}, "; did you mean v05_padded_smem? ("},
      {{"run", "padded"}, "; did you mean v05_padded_smem? ("},
      {{"run", "v26"}, "unknown step 'v26' (flashsteps list"},  // not v25 mistyped
      {{"run", "v0"}, "'v0' may be v01_scalar or v02_smem_tiles or v05_padded_smem"},
      {{"run", "--shape", "1,1,1,64x"}, "expected"},
      {{"run", "--shape"}, "--shape"},
      {{"run", "--shape", "1,1,8,64", "--dtype", "1"}, "--dtype: 1 not in {"},  // no enumerator's number
      {{"run", "--shape", "1,1,8,64", "--dtype", "fp8"}, "--dtype: fp8 not in {"},
      {{"run", "--shape", "1,1,8,64", "--seed", "-1"}, "--seed"},
      {{"run", "--backend", "metal"}, "--backend: metal not in {"},
      {{"run", "--grid", "big"}, "--grid: big not in {"},
      {{"run", "--causal"}, "--causal needs a --shape or --grid"},
      {{"trace", "--cta", "-1"}, "--cta: '-1' is not a number from"},
      {{"trace", "--cta", "1x"}, "--cta: '1x' is not a number from"},
      {{"run", "--cta", "1"}, "--cta"},
      {{"run", "--rounds", "3"}, "--rounds: '3' is not a number from 7 to 10000"},
      {{"run", "--timeout", "0"}, "--timeout: '0' is not a number from 1 to 86400"},
      {{"run", "--timeout", "nan"}, "--timeout"},
      {{"check", "--mode", "lazy"}, "--mode: lazy not in {"},
      {{"check", "--seeds", "0"}, "--seeds: '0' is not a number from 1 to 10000"},
      {{"run", "--json", "/nonexistent/folder/x.json"},
       "--json /nonexistent/folder/x.json: cannot be written"},
      {{"run", "--json", "/"}, "not a regular file"},
      {{"run", "--json", ""}, "the name is empty"},
      {{"run", "--grid", ""}, "--grid:  not in {"},
      {{"run", "--shape", "1,1,8,64", "--seed", "99999999999999999999"},
       "--seed: '99999999999999999999' is not a number from"},
      {{"run", "--seed", "1"}, "--seed needs a --shape or --grid"},
      {{"check", "--memory", "0"}, "--memory: '0' is not a number"},
      {{"run", "--shape", "1,1,8,64", "--inputs", "huge", "--softmax-scale", "1e-9"},
       "exceed the range of fp16"},
      {{"run", "--shape", "1,1,8,64", "--softmax-scale", "-1"}, "--softmax-scale: '-1' is not a number from"},
      {{"run", "--shape", "1,1,8,64", "--softmax-scale", "1e39"},
       "--softmax-scale: '1e39' is not a number from"},
      {{"run", "--shape", "1,1,8,64", "--dtype", "fp32", "--inputs", "shifted"}, "are for fp16 and bf16"},
      {{"run", "--shape", "1,1,8,64", "--dtype", "e4m3", "--inputs", "shifted"}, "are not for e4m3"},
      {{"run", "--shape", "1,1,8,64", "--cache", "e4m3", "--dtype", "fp32"}, "where q is fp16 or bf16"},
      {{"run", "--shape", "1,1,8,64", "--cache", "e4m3", "--layout", "qkv"}, "are not in one with q"},
      {{"run", "--shape", "1,1,8,64", "--quantize", "--dtype", "e4m3"},
       "where they are fp16 or bf16, not e4m3"},
      {{"run", "--shape", "1,1,8,64", "--quantize", "--cache", "e4m3"}, "K and V in e4m3 cannot be rounded"},
      {{"run", "--shape", "1,1,8,64", "--quantize", "--inputs", "huge"}, "are not for e4m3"},
      {{"check", "--quantize"}, "--quantize needs a --shape or --grid"},
      {{"run", "--shape", "1,1,8,64", "--backward", "--no-lse"},
       "a backward pass is for fp32, fp16 and bf16, with"},
      {{"run", "--shape", "1,1,8,64", "--backward", "--dtype", "e4m3"}, "a backward pass is for fp32, fp16"},
      {{"run", "--json", "/dev/null"}, "not a regular file"},
      {{"tune", "v01_scalar"}, "tune: v01_scalar has only one configuration"},
      {{"tune", "v14@all"}, "tune: v14_longest_first@128x64 is one configuration; name the step alone"},
      {{"tune", "v14", "--tuned"}, "--tuned"},
      {{"tune", "v14", "--tuning", ""}, "--tuning : the name is empty"},
      {{"tune", "v14", "--tuning", "/nonexistent/t"}, "--tuning /nonexistent/t: cannot be written"},
      {{"check", "--tuned"}, "--tuned"},
      {{"run", "--shape", "1,1,8,64", "--inputs", "given"}, "--inputs: given not in {"},
      {{"run", "--shape", "1,1,8,64", "--kv-lengths", "given"}, "--kv-lengths: given not in {"},
  };
  for (const auto& c : cases) {
    std::string shown;
    for (const char* a : c.arguments) shown += std::string(a) + " ";
    INFO(shown);
    const std::string line = refusal_of(c.arguments);
    INFO(line);
    CHECK(line.find(c.says) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  }
}

TEST_CASE("check runs CTAs in three orders, and run in two") {
  Device emulator{};
  emulator.backend = BackendKind::kEmulator;
  const auto orders = [&](std::vector<const char*> arguments) {
    std::set<std::string> different;
    for (const EmulatorMode& mode : modes(parse(std::move(arguments)), emulator))
      different.insert(mode.hostile ? "random" : mode.last_cta_first ? "descending" : "ascending");
    return different;
  };
  CHECK(orders({"check"}) == std::set<std::string>{"ascending", "descending", "random"});
  CHECK(orders({"run"}) == std::set<std::string>{"ascending", "random"});
}
