#include "harness/problem/shapes.h"

#include <charconv>

#include "harness/base/text.h"

namespace flashsteps {

Problem parse_shape(const std::string& text) {
  const std::string usage = "--shape '" + text + "': ";
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error == std::errc::result_out_of_range) throw UsageError(usage + "a number does not fit in 32 bits");
    if (error != std::errc{} || (next != end && *next != ','))
      throw UsageError(usage + "expected " + kShapeForms);
    numbers.push_back(number);
    if (next == end) break;
    at = next + 1;
  }
  const size_t n = numbers.size();
  if (n < 4 || n > 6) throw UsageError(usage + "expected " + kShapeForms);
  Problem problem;
  problem.batch = numbers[0];
  problem.num_heads_q = numbers[1];
  problem.num_heads_kv = n >= 5 ? numbers[2] : numbers[1];
  problem.seqlen_q = n == 4 ? numbers[2] : numbers[3];
  problem.seqlen_kv = n == 6 ? numbers[4] : problem.seqlen_q;
  problem.head_dim = numbers.back();
  if (const std::string error = shape_error(problem); !error.empty()) throw UsageError(usage + error);
  return problem;
}

std::vector<Problem> paper_grid() {
  std::vector<Problem> problems;
  for (const int head_dim : {64, 128}) {
    for (int seqlen = 512; seqlen <= 16384; seqlen *= 2) {
      Problem p;
      p.batch = 16384 / seqlen;
      p.num_heads_q = p.num_heads_kv = 2048 / head_dim;
      p.seqlen_q = p.seqlen_kv = seqlen;
      p.head_dim = head_dim;
      p.dtype = DType::kBf16;
      problems.push_back(p);
    }
  }
  return problems;
}

std::vector<Problem> decode_grid(int64_t most_keys) {
  std::vector<Problem> problems;
  for (const auto& [num_heads_q, num_heads_kv] : {std::pair(32, 8), std::pair(64, 8), std::pair(16, 16)}) {
    for (const int batch : {1, 8, 32, 128}) {
      for (const int seqlen_kv : {1024, 4096, 32768, 131072}) {
        if (int64_t{batch} * seqlen_kv > most_keys) continue;
        Problem p;
        p.batch = batch;
        p.num_heads_q = num_heads_q;
        p.num_heads_kv = num_heads_kv;
        p.seqlen_kv = seqlen_kv;
        p.head_dim = 128;
        p.dtype = DType::kBf16;
        problems.push_back(p);
      }
    }
  }
  return problems;
}

std::vector<Problem> shapes_grid() {
  // Of a head, in all sequences: a call takes milliseconds.
  constexpr int64_t kMostKeys = 1 << 18, kMostPairs = int64_t{1} << 27;
  std::vector<Problem> problems;
  for (const int head_dim : {64, 128}) {
    const auto add = [&](int batch, int num_heads_q, int num_heads_kv, int seqlen_q, int seqlen_kv) {
      Problem p;
      p.batch = batch;
      p.num_heads_q = num_heads_q;
      p.num_heads_kv = num_heads_kv;
      p.seqlen_q = seqlen_q;
      p.seqlen_kv = seqlen_kv;
      p.head_dim = head_dim;
      p.dtype = DType::kBf16;
      problems.push_back(p);
    };
    for (const int batch : {1, 4, 16}) {
      for (const int seqlen_kv : {1024, 4096, 16384, 65536}) {
        for (const int seqlen_q : {1, 4, 16, 64, 256, 1024, 2048}) {
          const int64_t keys = int64_t{batch} * seqlen_kv;
          if (keys <= kMostKeys && keys * seqlen_q <= kMostPairs) add(batch, 32, 8, seqlen_q, seqlen_kv);
        }
      }
    }
    for (const int seqlen : {16, 64, 130, 256, 512}) {
      add(1, 32, 8, seqlen, seqlen);
      add(8, 32, 8, seqlen, seqlen);
      add(32, 16, 16, seqlen, seqlen);
    }
    for (const int num_heads : {1, 2, 4, 8}) {
      for (const int seqlen : {1024, 4096, 8192}) add(1, num_heads, num_heads, seqlen, seqlen);
    }
  }
  return problems;
}

std::vector<Problem> default_problems(BackendKind backend) {
  Problem p = parse_shape(backend == BackendKind::kEmulator ? "1,4,256,64" : "4,32,4096,64");
  p.causal = true;
  if (backend == BackendKind::kEmulator) return {p};
  Problem wide = parse_shape("4,16,4096,128");
  wide.dtype = DType::kBf16;
  return {p, wide};
}

}  // namespace flashsteps
