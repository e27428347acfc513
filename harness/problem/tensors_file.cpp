#include "harness/problem/tensors_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "harness/base/element.h"
#include "harness/base/fnv1a.h"
#include "harness/base/heartbeat.h"
#include "harness/base/text.h"
#include "harness/base/usage_error.h"
#include "harness/problem/safetensors.h"

namespace flashsteps {
namespace {

using Shape = std::vector<uint64_t>;

constexpr uint64_t kPieceBytes = 1 << 20;
const std::string kNames[] = {"q", "k", "v"};
constexpr const char* kLengths = "kv_lengths";
constexpr const char* kChanged = "has changed since the program began";

constexpr std::pair<const char*, DType> kTypes[] = {
    {"F16", DType::kFp16}, {"BF16", DType::kBf16}, {"F32", DType::kFp32}};

const char* type_name(DType dtype) {
  return std::ranges::find(kTypes, dtype, [](const auto& known) { return known.second; })->first;
}

std::string to_text(const Shape& shape) {
  std::string text;
  for (const uint64_t extent : shape) text += (text.empty() ? "[" : ", ") + std::to_string(extent);
  return text.empty() ? "[]" : text + "]";
}

bool seqlen_first(Layout layout) { return layout == Layout::kBshd || layout == Layout::kQkv; }

// `p` with the type and the sizes that the header says.
Problem with_header(Problem p, const SafetensorsFile& file) {
  const bool swapped = seqlen_first(p.layout);
  for (const std::string& name : kNames) {
    const SafetensorsTensor* const tensor = file.find(name);
    require(tensor != nullptr, "has no tensor '" + name + "': q, k and v are needed");
    const auto* const type =
        std::ranges::find_if(kTypes, [&](const auto& known) { return tensor->dtype == known.first; });
    require(type != std::end(kTypes), name + " is " + tensor->dtype + ", it must be F16, BF16 or F32");
    if (name == kNames[0]) p.dtype = type->second;
    require(type->second == p.dtype,
            name + " is " + tensor->dtype + ", q is " + type_name(p.dtype) + ": they must be of one type");
    require(tensor->shape.size() == 4,
            name + " has " + std::to_string(tensor->shape.size()) + " dimensions, it must have 4: " +
                (swapped ? "[batch, seqlen, heads, head_dim]" : "[batch, heads, seqlen, head_dim]"));
    for (const uint64_t extent : tensor->shape)
      require(extent >= 1 && extent <= uint64_t(std::numeric_limits<int>::max()),
              name + " has the shape " + to_text(tensor->shape) + ": each size must be 1 to 2^31 - 1");
  }
  const Shape &q = file.find("q")->shape, &k = file.find("k")->shape, &v = file.find("v")->shape;
  require(v == k, "v has the shape " + to_text(v) + ", k has " + to_text(k) + ": they must be the same");
  require(k[0] == q[0] && k[3] == q[3], "k has the shape " + to_text(k) + ", q has " + to_text(q) +
                                            ": batch and head_dim must be the same");
  const int heads = swapped ? 2 : 1, rows = swapped ? 1 : 2;
  p.batch = int(q[0]);
  p.num_heads_q = int(q[heads]);
  p.num_heads_kv = int(k[heads]);
  p.seqlen_q = int(q[rows]);
  p.seqlen_kv = int(k[rows]);
  p.head_dim = int(q[3]);
  require(p.num_heads_q % p.num_heads_kv == 0, "k has " + std::to_string(p.num_heads_kv) + " heads, q has " +
                                                   std::to_string(p.num_heads_q) + ": not a multiple");
  p.kv_lengths = KvLengths::kFull;
  if (const SafetensorsTensor* const lengths = file.find(kLengths)) {
    require(lengths->dtype == "I32" || lengths->dtype == "I64",
            "kv_lengths is " + lengths->dtype + ", it must be I32 or I64");
    require(lengths->shape == Shape{q[0]},
            "kv_lengths must have the shape " + to_text({q[0]}) + ", one for each batch");
    p.kv_lengths = KvLengths::kGiven;
  }
  const std::string error = shape_error(p);
  require(error.empty(), error);
  return p;
}

// The file, if its header still says what the problem is.
SafetensorsFile open_again(const Problem& p) {
  SafetensorsFile file(p.tensors_file.path);
  try {
    if (with_header(p, file).label() == p.label()) return file;
  } catch (const SafetensorsError&) {
  }
  throw SafetensorsError(kChanged);
}

// All of a tensor, which is added to the hash.
void read_tensor(SafetensorsFile& file, const std::string& name, unsigned char* to, Fnv1a& hash) {
  const SafetensorsTensor& tensor = *file.find(name);
  for (uint64_t offset = 0, bytes; offset < tensor.bytes(); offset += bytes) {
    bytes = std::min(kPieceBytes, tensor.bytes() - offset);
    file.read(tensor, offset, to + offset, bytes);
    hash.update(to + offset, bytes);
    heartbeat();
  }
}

std::vector<unsigned char> read_tensor(SafetensorsFile& file, const std::string& name, Fnv1a& hash) {
  std::vector<unsigned char> data(file.find(name)->bytes());
  read_tensor(file, name, data.data(), hash);
  return data;
}

std::vector<int> lengths_of(const Problem& p, const std::vector<unsigned char>& data) {
  std::vector<int> lengths;
  for (int b = 0; b < p.batch; ++b) {
    int64_t length = 0;  // little-endian, so that this does for both types
    const size_t each = data.size() / p.batch;
    std::memcpy(&length, &data[b * each], each);
    if (each == sizeof(int32_t)) length = int32_t(length);
    require(length >= 0 && length <= p.seqlen_kv, "kv_lengths[" + std::to_string(b) + "] is " +
                                                      std::to_string(length) + ", it must be 0 to " +
                                                      std::to_string(p.seqlen_kv) + ", k's seqlen");
    lengths.push_back(int(length));
  }
  return lengths;
}

// The largest value of a tensor, all of whose values must be finite. What lies beyond a length may hold
// anything.
float largest_of(const Problem& p, const std::string& name, const Placement& tensor,
                 const std::vector<unsigned char>& data) {
  const bool limited = name != kNames[0] && p.kv_lengths == KvLengths::kGiven;
  const size_t each = element_bytes(p.dtype);
  int64_t nonfinite = 0;
  std::string first;
  float largest = 0;
  for (const RowId row : tensor.all_rows()) {
    if (limited && row.i >= p.given_lengths[row.b]) continue;
    for (int d = 0; d < p.head_dim; ++d) {
      const float value = load_element(p.dtype, &data[(tensor.at(row) - tensor.offset + d) * each]);
      largest = std::max(largest, std::abs(value));
      if (!std::isfinite(value) && nonfinite++ == 0)
        first = "batch " + std::to_string(row.b) + ", head " + std::to_string(row.h) + ", row " +
                std::to_string(row.i) + ", column " + std::to_string(d);
    }
  }
  require(nonfinite == 0, name + " has " + std::to_string(nonfinite) + " value(s) that are NaN or Inf" +
                              (limited ? " in rows below their batch's length" : "") + ", the first in " +
                              first);
  return largest;
}

// Inputs that are finite but make the sums overflow leave nothing to compare with either.
void check_magnitudes(const Problem& p, float q, float k, float v) {
  constexpr double kLimit = std::numeric_limits<float>::max();
  require(double(q) * k * p.head_dim <= kLimit, "q and k hold values of up to " + format("%.3g", q) +
                                                    " and " + format("%.3g", k) +
                                                    ": their dot products may overflow fp32");
  require(double(v) * p.seqlen_kv <= kLimit,
          "v holds values of up to " + format("%.3g", v) + ": sums over its rows may overflow fp32");
}

// Names go into requests to workers, into results files and onto the terminal.
void check_name(const std::string& name, const std::string& path) {
  require(!has_controls(name), kControlsInName);
  try {
    json(path).dump();
  } catch (const json::type_error&) {
    throw SafetensorsError("has a name that is not UTF-8");
  }
}

}  // namespace

Problem problem_of_file(const std::string& given, Layout layout) {
  try {
    require(!given.empty(), "the name is empty");
    std::error_code error;
    const std::string path = std::filesystem::canonical(given, error);
    require(!error, "cannot be read: " + error.message());
    const std::string name = std::filesystem::path(given).filename();
    check_name(name, path + name);
    Problem p;
    p.layout = layout;
    p.inputs = Inputs::kFile;
    p.tensors_file = {name, path, ""};
    return with_header(p, SafetensorsFile(path));
  } catch (const SafetensorsError& error) {
    throw UsageError("--tensors " + given + ": " + error.what());
  }
}

void examine_tensors(std::span<Problem> problems, const std::string& given) {
  try {
    Problem& p = problems.front();
    SafetensorsFile file = open_again(p);
    Fnv1a hash, unused;
    if (p.kv_lengths == KvLengths::kGiven)
      p.given_lengths = lengths_of(p, read_tensor(file, kLengths, unused));
    const TensorPlan plan = plan_tensors(p);
    const auto largest = [&](const std::string& name, const Placement& tensor) {
      return largest_of(p, name, tensor, read_tensor(file, name, hash));
    };
    const float q = largest("q", plan.q), k = largest("k", plan.k), v = largest("v", plan.v);
    if (p.kv_lengths == KvLengths::kGiven) read_tensor(file, kLengths, hash);
    p.tensors_file.fnv1a64 = hash.hex();
    check_magnitudes(p, q, k, v);
    for (Problem& other : problems.subspan(1)) {
      other.tensors_file = p.tensors_file;
      other.given_lengths = p.given_lengths;
    }
  } catch (const SafetensorsError& error) {
    throw UsageError("--tensors " + given + ": " + error.what());
  }
}

void read_tensors(const Problem& p, const std::array<unsigned char*, 3>& to) {
  try {
    SafetensorsFile file = open_again(p);
    Fnv1a hash;
    for (int t = 0; t < 3; ++t) read_tensor(file, kNames[t], to[t], hash);
    if (p.kv_lengths == KvLengths::kGiven) read_tensor(file, kLengths, hash);
    require(hash.hex() == p.tensors_file.fnv1a64, kChanged);
  } catch (const SafetensorsError& error) {
    throw std::runtime_error("the tensors' file " + p.tensors_file.name + " " + error.what());
  }
}

void write_outputs(const Outputs& outputs, const Problem& p, const std::string& step, BackendKind backend,
                   const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  const auto write = [&](const void* data, size_t size) {
    for (size_t at = 0, bytes; at < size; at += bytes) {
      bytes = std::min<size_t>(kPieceBytes, size - at);
      if (!file.write(static_cast<const char*>(data) + at, std::streamsize(bytes)).flush())
        throw std::runtime_error(std::strerror(errno));
      heartbeat();
    }
  };
  std::map<std::string, std::string> metadata{{"step", step},
                                              {"backend", name(backend)},
                                              {"problem", p.label()},
                                              {"causal", p.causal ? "true" : "false"},
                                              {"layout", name(p.layout)}};
  if (p.inputs == Inputs::kFile) metadata["tensors_fnv1a64"] = p.tensors_file.fnv1a64;
  if (p.given_scale != 0) metadata["softmax_scale"] = json(p.given_scale).dump();
  // Fused layouts have [batch, seqlen, heads, head_dim] outputs.
  const uint64_t batch = p.batch, heads = p.num_heads_q, rows = p.seqlen_q, head_dim = p.head_dim;
  Problem as_saved = p;
  as_saved.layout = seqlen_first(p.layout) ? Layout::kBshd : Layout::kBhsd;
  const Placement to = plan_tensors(as_saved).o;
  const Shape shape =
      seqlen_first(p.layout) ? Shape{batch, rows, heads, head_dim} : Shape{batch, heads, rows, head_dim};
  const std::string header =
      safetensors_header({{"o", type_name(p.dtype), shape}, {"lse", "F32", {batch, heads, rows}}}, metadata);
  write(header.data(), header.size());

  const size_t bytes = element_bytes(p.dtype);
  std::vector<unsigned char> o(p.num_rows() * p.head_dim * bytes);
  for (const RowId row : p.rows())
    std::memcpy(&o[(to.at(row) - to.offset) * bytes], outputs.o_row(row), p.head_dim * bytes);
  write(o.data(), o.size());
  write(outputs.lse.data() + kGuardElements * sizeof(float), size_t(p.num_rows()) * sizeof(float));
}

}  // namespace flashsteps
