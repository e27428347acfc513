// The command line: what it means, and what it refuses in one line.
#include <unistd.h>

#include "harness/src/options.h"
#include "harness/tests/catch.h"

using namespace flashsteps;

namespace {

ParseResult parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "flashsteps");
  return parse_options(int(arguments.size()), arguments.data(), true);
}

std::string refusal_of(const std::vector<const char*>& arguments) {
  try {
    parse(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("axes multiply") {
  const Options o =
      parse({"check", "--shape", "1,2,3,64", "--shape", "1,4,2,5,7,128", "--dtype", "fp16", "--dtype", "bf16",
             "--causal", "--full", "--layout", "bshd", "--inputs", "sharp", "--seed", "9"})
          .options;
  CHECK(o.problems.size() == 2 * 2 * 2);
  CHECK_FALSE(o.covering);
  CHECK(o.problems[0].layout == Layout::kBshd);
  CHECK(o.problems[0].seed == 9);
  CHECK(o.problems[0].causal == false);
  CHECK(o.problems[1].causal == true);
  CHECK(o.problems.back().seqlen_kv == 7);
}

TEST_CASE("the same problem twice is one problem") {
  CHECK(parse({"check", "--shape", "1,2,3,64", "--shape", "1,2,2,3,3,64", "--full", "--full"})
            .options.problems.size() == 1);
}

TEST_CASE("a step may follow a repeatable option") {
  const Options o =
      parse({"run", "--shape", "1,1,8,64", "v01_scalar", "--dtype", "bf16", "v02_smem_tiles"}).options;
  CHECK(o.steps == std::vector<std::string>{"v01_scalar", "v02_smem_tiles"});
  CHECK(o.problems.size() == 1);
}

TEST_CASE("the paper's grid") {
  const Options o = parse({"bench", "--grid", "paper", "--causal", "--full"}).options;
  CHECK(o.problems.size() == 2 * 6 * 2);
  for (const Problem& p : o.problems) {
    CHECK(p.batch * p.seqlen_q == 16384);
    CHECK(p.num_heads_q * p.head_dim == 2048);
    CHECK(p.dtype == DType::kBf16);
  }
}

TEST_CASE("check without a shape is the covering sample") {
  CHECK(parse({"check"}).options.covering);
  CHECK(parse({"check", "v01_scalar", "--mode", "late"}).options.covering);
  CHECK_FALSE(parse({"run"}).options.covering);
}

TEST_CASE("a CTA to trace") {
  CHECK(parse({"trace", "v01_scalar"}).options.cta == -1);
  CHECK(parse({"trace", "v01_scalar", "--cta", "12"}).options.cta == 12);
}

TEST_CASE("every bad argument gets one clear line") {
  const struct {
    std::vector<const char*> arguments;
    const char* says;
  } cases[] = {
      {{}, "subcommand"},
      {{"fly"}, "unknown command 'fly'"},
      {{"run", "--nonsense"}, "--nonsense"},
      {{"run", "v99_magic"}, "unknown step 'v99_magic'"},
      {{"run", "--shape", "0,1,1,64"}, "batch is 0"},
      {{"run", "--shape", "1,1,-5,64"}, "seqlen_q is -5"},
      {{"run", "--shape", "1,1,64,80"}, "head_dim is 80"},
      {{"run", "--shape", "1,3,2,64,64"}, "not a multiple"},
      {{"run", "--shape", "99999,99999,999999,128"}, "overflows"},
      {{"run", "--shape", "1,1,1,64x"}, "expected"},
      {{"run", "--shape", "1,1,99999999999999999999,64"}, "32 bits"},
      {{"run", "--shape"}, "--shape"},
      {{"run", "--shape", "1,1,8,64", "--dtype", "fp8"}, "--dtype: unknown value 'fp8'"},
      {{"run", "--shape", "1,1,8,64", "--layout", "sbhd"}, "--layout: unknown value"},
      {{"run", "--shape", "1,1,8,64", "--inputs", "zeros"}, "--inputs: unknown value"},
      {{"run", "--shape", "1,1,8,64", "--kv-lengths", "some"}, "--kv-lengths: unknown value"},
      {{"run", "--shape", "1,1,8,64", "--seed", "-1"}, "--seed"},
      {{"run", "--shape", "1,1,8,64", "--seed", "many"}, "--seed"},
      {{"run", "--backend", "metal"}, "--backend: unknown value 'metal'"},
      {{"run", "--grid", "big"}, "--grid: unknown value 'big'"},
      {{"run", "--causal"}, "need a --shape"},
      {{"trace", "--cta", "-1"}, "--cta is '-1'"},
      {{"trace", "--cta", "1x"}, "--cta is '1x'"},
      {{"trace", "--cta", "99999999999999999999"}, "--cta is"},
      {{"run", "--cta", "1"}, "--cta"},
      {{"run", "--rounds", "3"}, "--rounds is 3"},
      {{"run", "--rounds", "1e9"}, "--rounds"},
      {{"run", "--timeout", "0"}, "--timeout must be"},
      {{"run", "--timeout", "nan"}, "--timeout"},
      {{"run", "--timeout", "soon"}, "--timeout"},
      {{"check", "--mode", "lazy"}, "--mode: unknown value 'lazy'"},
      {{"check", "--seeds", "0"}, "--seeds is 0"},
      {{"run", "--json", "/nonexistent/folder/x.json"},
       "--json /nonexistent/folder/x.json: cannot be written"},
      {{"run", "--json", "/"}, "not a regular file"},
      {{"run", "--json", ""}, "the name is empty"},
      {{"run", "--json", "/dev/stdout"}, "not a regular file"},
      {{"run", "--grid", ""}, "--grid: unknown value ''"},
      {{"run", "--shape", "1,1,8,64", "--seed", "99999999999999999999"}, "--seed is '99999999999999999999'"},
      {{"run", "--seed", "1"}, "need a --shape"},
      {{"run", "--shape", "1,1,8,64", "--dtype", "fp32", "--inputs", "shifted"}, "are for fp16 and bf16"},
      {{"run", "--json", "/dev/null"}, "not a regular file"},
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
