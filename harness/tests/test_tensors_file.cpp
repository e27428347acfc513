// A user's own tensors: what makes them a problem, how they come into a workload, how outputs leave it.
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "harness/base/element.h"
#include "harness/base/fnv1a.h"
#include "harness/base/usage_error.h"
#include "harness/problem/safetensors.h"
#include "harness/problem/tensors_file.h"
#include "harness/tests/catch.h"
#include "harness/tests/temporary_folder.h"

using namespace flashsteps;

namespace {

using Shape = std::vector<uint64_t>;

// As a file holds it.
struct Tensor {
  std::string name, dtype;
  Shape shape;
  std::string data;
};

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Value number i is i % 251 plus `first`.
Tensor fp32_tensor(const std::string& name, const Shape& shape, float first) {
  uint64_t count = 1;
  for (const uint64_t extent : shape) count *= extent;
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = first + float(i % 251);
  return {name, "F32", shape, bytes_of(values)};
}

void set_value(Tensor& tensor, uint64_t index, float value) {
  std::memcpy(tensor.data.data() + index * sizeof value, &value, sizeof value);
}

void write_tensors(const std::string& path, const std::vector<Tensor>& tensors) {
  std::vector<SafetensorsTensor> entries;
  std::string data;
  for (const Tensor& tensor : tensors) {
    entries.push_back({tensor.name, tensor.dtype, tensor.shape});
    data += tensor.data;
  }
  write_file(path, safetensors_header(entries, {}) + data);
}

// Batch 2, 4 and 2 heads, 5 and 6 rows; the lengths, if there are any, are 3 and 6.
std::vector<Tensor> example(bool lengths) {
  std::vector<Tensor> tensors{fp32_tensor("q", {2, 4, 5, 64}, 1), fp32_tensor("k", {2, 2, 6, 64}, 2),
                              fp32_tensor("v", {2, 2, 6, 64}, 3)};
  if (lengths) tensors.push_back({"kv_lengths", "I32", {2}, bytes_of<int32_t>({3, 6})});
  return tensors;
}

std::string refusal_of_problem(const std::string& path, Layout layout = Layout::kBhsd) {
  try {
    Problem p = problem_of_file(path, layout);
    examine_tensors({&p, 1}, path);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a file's header says which problem it is") {
  TemporaryFolder folder;
  const std::string path = folder.file("my tensors.safetensors");
  write_tensors(path, example(true));
  Problem p = problem_of_file(path, Layout::kBhsd);
  CHECK(p.label() ==
        "B=2 Hq=4 Hkv=2 Sq=5 Skv=6 D=64 fp32 full kv_lengths=given inputs=file:my tensors.safetensors");
  p = problem_of_file(path, Layout::kBhsd);
  examine_tensors({&p, 1}, path);
  CHECK(p.given_lengths == std::vector<int>{3, 6});
  CHECK(p.draw_kv_lengths() == p.given_lengths);
  Fnv1a hash;
  for (const Tensor& tensor : example(true)) hash.update(tensor.data.data(), tensor.data.size());
  CHECK(p.tensors_file.fnv1a64 == hash.hex());
  CHECK(p.flops() == 4.0 * 64 * 4 * 5 * (3 + 6));

  write_tensors(path, {fp32_tensor("q", {2, 5, 4, 64}, 1), fp32_tensor("k", {2, 6, 2, 64}, 2),
                       fp32_tensor("v", {2, 6, 2, 64}, 3)});
  CHECK(problem_of_file(path, Layout::kBshd).label() ==
        "B=2 Hq=4 Hkv=2 Sq=5 Skv=6 D=64 fp32 full layout=bshd inputs=file:my tensors.safetensors");
}

TEST_CASE("a link is followed, the name is the one that was given") {
  TemporaryFolder folder;
  write_tensors(folder.file("a.safetensors"), example(false));
  REQUIRE(symlink("a.safetensors", folder.file("link").c_str()) == 0);
  const Problem p = problem_of_file(folder.file("link"), Layout::kBhsd);
  CHECK(p.tensors_file.name == "link");
  CHECK(p.tensors_file.path == std::filesystem::canonical(folder.path).string() + "/a.safetensors");
}

TEST_CASE("a problem from a file survives JSON; the results file does not learn this machine's path") {
  TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  write_tensors(path, example(true));
  Problem p = problem_of_file(path, Layout::kBhsd);
  examine_tensors({&p, 1}, path);
  CHECK(to_json(p).dump().find(folder.path) == std::string::npos);
  const Problem q = problem_from_json(nlohmann::json::parse(to_request(p).dump()));
  CHECK(to_request(q) == to_request(p));
  CHECK(q.inputs == Inputs::kFile);
  CHECK(q.tensors_file.path == p.tensors_file.path);
  CHECK(q.given_lengths == p.given_lengths);
}

TEST_CASE("tensors that are no problem are refused with one line that names them") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const auto with = [](bool lengths, int tensor, const std::function<void(Tensor&)>& change) {
    std::vector<Tensor> tensors = example(lengths);
    change(tensors[size_t(tensor)]);
    return tensors;
  };
  const auto shaped = [](const Shape& q, const Shape& k, const Shape& v) {
    return std::vector<Tensor>{fp32_tensor("q", q, 1), fp32_tensor("k", k, 2), fp32_tensor("v", v, 3)};
  };
  const auto value = [&](bool lengths, int tensor, uint64_t index, float x) {
    return with(lengths, tensor, [&](Tensor& t) { set_value(t, index, x); });
  };
  const auto lengths = [&](const char* dtype, const Shape& shape, const std::string& data) {
    return with(true, 3, [&](Tensor& t) { t = {"kv_lengths", dtype, shape, data}; });
  };
  const auto all = [&](float q, float k, float v) {
    std::vector<Tensor> tensors = example(false);
    set_value(tensors[0], 7, q);
    set_value(tensors[1], 7, k);
    set_value(tensors[2], 7, v);
    return tensors;
  };
  const Shape kv{2, 2, 6, 64};
  const struct {
    const char* what;
    std::vector<Tensor> tensors;
    std::string says;
  } cases[] = {
      {"no tensors", {}, "has no tensor 'q': q, k and v are needed"},
      {"no v", {example(false)[0], example(false)[1]}, "has no tensor 'v'"},
      {"another type", with(false, 0, [](Tensor& t) { t.dtype = "I32"; }),
       "q is I32, it must be F16, BF16 or F32"},
      {"a type of the future",
       with(false, 0,
            [](Tensor& t) {
              t = {"q", "F99", {}, ""};
            }),
       "q is F99, it must be F16, BF16 or F32"},
      {"two types",
       with(false, 1,
            [](Tensor& t) {
              t = {"k", "F16", {2, 2, 12, 64}, t.data};
            }),
       "k is F16, q is F32: they must be of one type"},
      {"three dimensions", shaped({2, 20, 64}, kv, kv),
       "q has 3 dimensions, it must have 4: [batch, heads, seqlen, head_dim]"},
      {"twelve dimensions", shaped({1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 5, 64}, kv, kv), "q has 12 dimensions"},
      {"nothing", shaped({2, 4, 0, 64}, kv, kv),
       "q has the shape [2, 4, 0, 64]: each size must be 1 to 2^31 - 1"},
      {"another batch", shaped({3, 4, 5, 64}, kv, kv),
       "k has the shape [2, 2, 6, 64], q has [3, 4, 5, 64]: batch and head_dim"},
      {"another width", shaped({2, 4, 5, 128}, kv, kv),
       "q has [2, 4, 5, 128]: batch and head_dim must be the same"},
      {"another v", shaped({2, 4, 5, 64}, kv, {2, 2, 7, 64}),
       "v has the shape [2, 2, 7, 64], k has [2, 2, 6, 64]"},
      {"heads that do not divide", shaped({2, 3, 5, 64}, kv, kv), "k has 2 heads, q has 3: not a multiple"},
      {"head_dim 96", shaped({1, 1, 1, 96}, {1, 1, 1, 96}, {1, 1, 1, 96}),
       "head_dim is 96, the steps support 64 and"},
      {"lengths of another type", lengths("F32", {2}, bytes_of<float>({3, 6})),
       "kv_lengths is F32, it must be I32"},
      {"too few lengths", lengths("I32", {1}, bytes_of<int32_t>({3})),
       "kv_lengths must have the shape [2], one for each batch"},
      {"lengths in a matrix", lengths("I32", {2, 1}, bytes_of<int32_t>({3, 6})),
       "kv_lengths must have the shape [2], one for each batch"},
      {"a negative length", lengths("I32", {2}, bytes_of<int32_t>({3, -1})),
       "kv_lengths[1] is -1, it must be 0 to 6, k's seqlen"},
      {"a length beyond the keys", lengths("I64", {2}, bytes_of<int64_t>({7, 6})), "kv_lengths[0] is 7"},
      {"a length beyond 32 bits", lengths("I64", {2}, bytes_of<int64_t>({int64_t{1} << 32, 6})),
       "kv_lengths[0] is 4294967296"},
      // Row 5 of head 1 of batch 0, column 3.
      {"NaN in k", value(false, 1, (6 + 5) * 64 + 3, nan),
       "k has 1 value(s) that are NaN or Inf, the first in batch 0, head 1, row 5, column 3"},
      {"Inf in q", value(true, 0, 2 * 64, -inf),
       "q has 1 value(s) that are NaN or Inf, the first in batch 0, head 0, row 2, column 0"},
      {"Inf in v, before its length", value(true, 2, 2 * 64 + 9, inf),
       "v has 1 value(s) that are NaN or Inf in rows below their batch's length, the first in batch 0, head "
       "0, row 2, column 9"},
      {"Inf in v, of the other batch", value(true, 2, (2 * 6 + 5) * 64, inf),
       "the first in batch 1, head 0, row 5, column 0"},
      {"products that overflow", all(1e30f, 1e30f, 1), "values of up to 1e+30 and 1e+30: their dot products"},
      {"sums that overflow", all(1, 1, 3e38f),
       "v holds values of up to 3e+38: sums over its rows may overflow"},
      {"large, but not too large", all(1e17f, 1e17f, 1e37f), ""},
      {"anything beyond a length", value(true, 1, 3 * 64, nan), ""},
      {"anything beyond a length, in v", value(true, 2, (6 + 5) * 64 + 63, inf), ""},
      {"no keys at all", lengths("I64", {2}, bytes_of<int64_t>({0, 0})), ""},
  };
  TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  for (const auto& c : cases) {
    INFO(c.what);
    write_tensors(path, c.tensors);
    const std::string line = refusal_of_problem(path);
    INFO(line);
    CHECK(line.find(c.says) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
    if (c.says.empty()) {
      CHECK(line == "");
    } else {
      CHECK(line.find("--tensors " + path + ": ") == 0);
    }
  }
  // The same place in a file whose axes are swapped.
  std::vector<Tensor> swapped{fp32_tensor("q", {2, 5, 4, 64}, 1),
                              fp32_tensor("k", {2, 6, 2, 64}, 2),
                              fp32_tensor("v", {2, 6, 2, 64}, 3),
                              {"kv_lengths", "I32", {2}, bytes_of<int32_t>({3, 6})}};
  set_value(swapped[1], (2 * 2 + 1) * 64 + 3, nan);  // row 2 of head 1
  write_tensors(path, swapped);
  CHECK(refusal_of_problem(path, Layout::kBshd).find("the first in batch 0, head 1, row 2, column 3") !=
        std::string::npos);
  set_value(swapped[1], (2 * 2 + 1) * 64 + 3, 1);
  set_value(swapped[1], (3 * 2 + 1) * 64 + 3, nan);  // row 3: padding
  write_tensors(path, swapped);
  CHECK(refusal_of_problem(path, Layout::kBshd) == "");
}

TEST_CASE("sizes that no int holds, and shapes too large for any machine") {
  TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  const auto sparse = [&](const Shape& shape) {
    const std::string header =
        safetensors_header({{"q", "F16", shape}, {"k", "F16", shape}, {"v", "F16", shape}}, {});
    write_file(path, header);
    uint64_t bytes = 6;
    for (const uint64_t extent : shape) bytes *= extent;
    REQUIRE(truncate(path.c_str(), off_t(header.size() + bytes)) == 0);
    try {
      problem_of_file(path, Layout::kBhsd);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(sparse({1, 1, uint64_t{1} << 31, 64}).find("each size must be 1 to 2^31 - 1") != std::string::npos);
  CHECK(sparse({1, 1, (1 << 30) + 1, 64}).find("limited to 2^30") != std::string::npos);
  CHECK(sparse({1, 1, 1 << 30, 64}) == "");  // for the memory to refuse
}

TEST_CASE("names that would break a line, or JSON, are refused") {
  TemporaryFolder folder;
  const auto refusal = [&](const char* name) {
    write_tensors(folder.file(name), example(false));
    return refusal_of_problem(folder.file(name));
  };
  CHECK(refusal("two\nlines").find("has control characters in its name") != std::string::npos);
  CHECK(refusal("no utf-8 \xff").find("has a name that is not UTF-8") != std::string::npos);
  CHECK(refusal("\xc3\xbc ber.safetensors") == "");
}

TEST_CASE("a workload holds the file's rows; what lies beyond a length has become NaN") {
  TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  for (const bool swapped : {false, true}) {
    INFO(swapped);
    std::vector<Tensor> tensors = example(true);
    if (swapped) {
      for (Tensor& tensor : tensors) {
        if (tensor.shape.size() == 4) std::swap(tensor.shape[1], tensor.shape[2]);
      }
    }
    write_tensors(path, tensors);
    Problem p = problem_of_file(path, swapped ? Layout::kBshd : Layout::kBhsd);
    examine_tensors({&p, 1}, path);
    const Workload w(p);
    CHECK(w.kv_lengths() == std::vector<int>{3, 6});
    const auto check = [&](const void* row, int heads, int rows, int b, int h, int i, float first,
                           bool padding) {
      const int index = (b * heads * rows + (swapped ? i * heads + h : h * rows + i)) * 64;
      for (int d = 0; d < 64; ++d) {
        const float x = load_element(DType::kFp32, static_cast<const char*>(row) + d * 4);
        CHECK((padding ? std::isnan(x) : x == first + float((index + d) % 251)));
      }
    };
    for (int b = 0; b < 2; ++b) {
      for (int h = 0; h < 4; ++h)
        for (int i = 0; i < 5; ++i) check(w.q_row({b, h, i}), 4, 5, b, h, i, 1, false);
      for (int h = 0; h < 2; ++h) {
        for (int j = 0; j < 6; ++j) {
          check(w.k_row({b, h, j}), 2, 6, b, h, j, 2, b == 0 && j >= 3);
          check(w.v_row({b, h, j}), 2, 6, b, h, j, 3, b == 0 && j >= 3);
        }
      }
    }
  }
}

TEST_CASE("a file that has changed since it was examined is an error") {
  TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  const auto error_after = [&](const std::function<void()>& change) {
    write_tensors(path, example(true));
    Problem p = problem_of_file(path, Layout::kBhsd);
    examine_tensors({&p, 1}, path);
    Workload{p};  // as it is
    change();
    try {
      Workload{p};
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const char* const changed = "the tensors' file a.safetensors has changed since the program began";
  for (const int tensor : {0, 1, 2}) {
    CHECK(error_after([&] {
            std::vector<Tensor> tensors = example(true);
            set_value(tensors[size_t(tensor)], 300, 17);
            write_tensors(path, tensors);
          }) == changed);
  }
  CHECK(error_after([&] {
          std::vector<Tensor> tensors = example(true);
          tensors[3].data = bytes_of<int32_t>({3, 5});
          write_tensors(path, tensors);
        }) == changed);
  CHECK(error_after([&] { write_tensors(path, example(false)); }) == changed);
  CHECK(error_after([&] {
          std::vector<Tensor> tensors = example(true);
          tensors[2].shape = {2, 6, 2, 64};
          write_tensors(path, tensors);
        }) == changed);
  CHECK(error_after([&] {
          std::vector<Tensor> tensors = example(true);
          for (int t = 0; t < 3; ++t) tensors[size_t(t)].dtype = "I32";
          write_tensors(path, tensors);
        }) == changed);
  CHECK(error_after([&] { REQUIRE(truncate(path.c_str(), 5000) == 0); }).find("is cut off") !=
        std::string::npos);
  CHECK(error_after([&] { unlink(path.c_str()); }).find("cannot be read: No such file") != std::string::npos);
}

TEST_CASE("a file that changes between its header and its contents is an error as well") {
  TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  for (const bool lengths_before : {false, true}) {
    write_tensors(path, example(lengths_before));
    Problem p = problem_of_file(path, Layout::kBhsd);
    write_tensors(path, example(!lengths_before));
    try {
      examine_tensors({&p, 1}, path);
      CHECK(false);
    } catch (const UsageError& error) {
      CHECK(error.what() == "--tensors " + path + ": has changed since the program began");
    }
  }
}

TEST_CASE("outputs are written in the order of q's axes, without what surrounds them") {
  TemporaryFolder folder;
  const std::string path = folder.file("out.safetensors");
  for (const auto& [text, layout] : kLayoutNames) {
    INFO(text);
    Problem p;
    p.batch = 2;
    p.num_heads_q = 3;
    p.seqlen_q = 5000;  // more than one piece
    p.seqlen_kv = 9;
    p.dtype = DType::kBf16;
    p.layout = layout;
    Outputs outputs(p);
    const auto number = [](int b, int h, int i) { return uint16_t((b * 3 + h) * 5000 + i); };
    for (int b = 0; b < 2; ++b) {
      for (int h = 0; h < 3; ++h) {
        for (int i = 0; i < p.seqlen_q; ++i) {
          auto* const row = static_cast<unsigned char*>(const_cast<void*>(outputs.o_row({b, h, i})));
          for (int d = 0; d < 64; ++d) {
            const uint16_t value = d == 0 ? number(b, h, i) : uint16_t(d);
            std::memcpy(row + 2 * d, &value, 2);
          }
          const float lse = float(number(b, h, i));
          std::memcpy(outputs.lse.data() + (kGuardElements + number(b, h, i)) * sizeof lse, &lse, sizeof lse);
        }
      }
    }
    write_file(path, std::string(10'000'000, 'x'));  // what was there before goes
    write_outputs(outputs, p, "v99_step", BackendKind::kEmulator, path);
    SafetensorsFile file(path);
    const bool swapped = layout == Layout::kBshd || layout == Layout::kQkv;
    REQUIRE(file.find("o") != nullptr);
    CHECK(file.find("o")->dtype == "BF16");
    CHECK(file.find("o")->shape == (swapped ? Shape{2, 5000, 3, 64} : Shape{2, 3, 5000, 64}));
    CHECK(file.find("lse")->dtype == "F32");
    CHECK(file.find("lse")->shape == Shape{2, 3, 5000});
    std::vector<uint16_t> o(2 * 3 * 5000 * 64);
    std::vector<float> lse(2 * 3 * 5000);
    file.read(*file.find("o"), 0, o.data(), o.size() * 2);
    file.read(*file.find("lse"), 0, lse.data(), lse.size() * 4);
    int wrong = 0;
    for (int row = 0; row < 2 * 3 * 5000; ++row) {
      const int b = row / 15000;
      const int h = swapped ? row % 3 : row / 5000 % 3, i = swapped ? row / 3 % 5000 : row % 5000;
      wrong += o[size_t(row) * 64] != number(b, h, i) || o[size_t(row) * 64 + 63] != 63;
      wrong += lse[size_t(row)] != float(row);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("outputs that cannot be written are an error") {
  Problem p;
  p.seqlen_q = 4;
  CHECK_THROWS_AS(write_outputs(Outputs(p), p, "v99_step", BackendKind::kEmulator, "/dev/full"),
                  std::runtime_error);
  CHECK_THROWS_AS(write_outputs(Outputs(p), p, "v99_step", BackendKind::kEmulator, "/nonexistent/x"),
                  std::runtime_error);
}
