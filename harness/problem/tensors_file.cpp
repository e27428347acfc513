#include "harness/problem/tensors_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>

#include "harness/base/atomic_file.h"
#include "harness/base/element.h"
#include "harness/base/fnv1a.h"
#include "harness/base/heartbeat.h"
#include "harness/base/text.h"
#include "harness/base/usage_error.h"
#include "harness/problem/safetensors.h"

namespace flashsteps {
namespace {

using Shape = std::vector<uint64_t>;

constexpr size_t kPieceBytes = 1 << 20;  // a multiple of every row's bytes
const char* const kNames[] = {"q", "k", "v"};
const std::vector<std::string> kWanted{"q", "k", "v", "kv_lengths"};

constexpr std::pair<const char*, DType> kTypes[] = {
    {"F16", DType::kFp16}, {"BF16", DType::kBf16}, {"F32", DType::kFp32}};

const char* type_name(DType dtype) {
  for (const auto& [text, candidate] : kTypes) {
    if (candidate == dtype) return text;
  }
  throw std::logic_error("an element type without a name");
}

std::string to_text(const Shape& shape) {
  std::string text;
  for (const uint64_t extent : shape) text += (text.empty() ? "[" : ", ") + std::to_string(extent);
  return text.empty() ? "[]" : text + "]";
}

// In the order of the file's axes. Fused layouts have [batch, seqlen, heads, head_dim] outputs.
bool seqlen_first(Layout layout) { return layout == Layout::kBshd || layout == Layout::kQkv; }

Shape shape_of(const Problem& p, bool is_query) {
  const uint64_t heads = is_query ? p.num_heads_q : p.num_heads_kv;
  const uint64_t rows = is_query ? p.seqlen_q : p.seqlen_kv;
  const bool swapped = seqlen_first(p.layout);
  return {uint64_t(p.batch), swapped ? rows : heads, swapped ? heads : rows, uint64_t(p.head_dim)};
}

struct RowOfTensor {
  int b, h, i;
};

RowOfTensor locate(const Problem& p, bool is_query, uint64_t row) {
  const uint64_t heads = is_query ? p.num_heads_q : p.num_heads_kv;
  const uint64_t rows = is_query ? p.seqlen_q : p.seqlen_kv;
  const int b = int(row / (heads * rows));
  if (seqlen_first(p.layout)) return {b, int(row % heads), int(row / heads % rows)};
  return {b, int(row / rows % heads), int(row % rows)};
}

// Of a tensor as the file names it: "[batch, head, row, column]", or with head and row the other way round.
std::string place(const Problem& p, const RowOfTensor& at, int column) {
  const bool swapped = seqlen_first(p.layout);
  return to_text(
      {uint64_t(at.b), uint64_t(swapped ? at.i : at.h), uint64_t(swapped ? at.h : at.i), uint64_t(column)});
}

void check_lengths_tensor(const SafetensorsTensor& lengths, int batch) {
  if (lengths.dtype != "I32" && lengths.dtype != "I64")
    throw SafetensorsError("kv_lengths is " + lengths.dtype + ", it must be I32 or I64");
  if (lengths.dimensions != 1 || lengths.shape[0] != uint64_t(batch))
    throw SafetensorsError("kv_lengths has the shape " + to_text(lengths.shape) + ", the batch needs [" +
                           std::to_string(batch) + "]");
}

Problem problem_of(const SafetensorsFile& file, Layout layout) {
  const bool swapped = seqlen_first(layout);
  Problem p;
  p.layout = layout;
  p.inputs = Inputs::kFile;
  for (const char* const name : kNames) {
    const std::string text = name;
    const SafetensorsTensor* const tensor = file.find(name);
    if (tensor == nullptr) throw SafetensorsError("has no tensor '" + text + "': q, k and v are needed");
    const auto* const type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                          [&](const auto& known) { return tensor->dtype == known.first; });
    if (type == std::end(kTypes))
      throw SafetensorsError(text + " is " + tensor->dtype + ", it must be F16, BF16 or F32");
    if (name == kNames[0]) p.dtype = type->second;
    if (type->second != p.dtype)
      throw SafetensorsError(text + " is " + tensor->dtype + ", q is " + type_name(p.dtype) +
                             ": they must be of one type");
    if (tensor->dimensions != 4)
      throw SafetensorsError(
          text + " has " + std::to_string(tensor->dimensions) + " dimensions, it must have 4: " +
          (swapped ? "[batch, seqlen, heads, head_dim]" : "[batch, heads, seqlen, head_dim]"));
    for (const uint64_t extent : tensor->shape) {
      if (extent < 1 || extent > uint64_t(std::numeric_limits<int>::max()))
        throw SafetensorsError(text + " has the shape " + to_text(tensor->shape) +
                               ": each size must be 1 to 2^31 - 1");
    }
  }
  const Shape& q = file.find("q")->shape;
  const Shape& k = file.find("k")->shape;
  const Shape& v = file.find("v")->shape;
  p.batch = int(q[0]);
  p.num_heads_q = int(q[swapped ? 2 : 1]);
  p.num_heads_kv = int(k[swapped ? 2 : 1]);
  p.seqlen_q = int(q[swapped ? 1 : 2]);
  p.seqlen_kv = int(k[swapped ? 1 : 2]);
  p.head_dim = int(q[3]);
  if (v != k)
    throw SafetensorsError("v has the shape " + to_text(v) + ", k has " + to_text(k) +
                           ": they must be the same");
  if (k[0] != q[0])
    throw SafetensorsError("k has a batch of " + std::to_string(k[0]) + ", q has " + std::to_string(q[0]));
  if (k[3] != q[3])
    throw SafetensorsError("k has a head_dim of " + std::to_string(k[3]) + ", q has " + std::to_string(q[3]));
  if (p.num_heads_q % p.num_heads_kv != 0)
    throw SafetensorsError("k has " + std::to_string(p.num_heads_kv) + " heads, q has " +
                           std::to_string(p.num_heads_q) + ": not a multiple");
  if (const SafetensorsTensor* const lengths = file.find("kv_lengths")) {
    check_lengths_tensor(*lengths, p.batch);
    p.kv_lengths = KvLengths::kGiven;
  }
  if (const std::string error = shape_error(p); !error.empty()) throw SafetensorsError(error);
  return p;
}

// The file, if its tensors are still of the sizes that the problem has.
SafetensorsFile& check_unchanged(SafetensorsFile& file, const Problem& p) {
  const auto is = [&](const char* name, const Shape& shape) {
    const SafetensorsTensor* const tensor = file.find(name);
    return tensor != nullptr && tensor->shape == shape && tensor->dimensions == shape.size();
  };
  const bool same_types =
      is("q", shape_of(p, true)) && is("k", shape_of(p, false)) && is("v", shape_of(p, false)) &&
      std::all_of(std::begin(kNames), std::end(kNames),
                  [&](const char* name) { return file.find(name)->dtype == type_name(p.dtype); });
  const SafetensorsTensor* const lengths = file.find("kv_lengths");
  if (!same_types || (lengths != nullptr) != (p.kv_lengths == KvLengths::kGiven))
    throw SafetensorsError("has changed since the program began");
  if (lengths != nullptr) check_lengths_tensor(*lengths, p.batch);
  return file;
}

// Hands out all of a tensor, and adds it to the hash.
template <typename Take>
void read_pieces(const SafetensorsFile& file, const SafetensorsTensor& tensor, Fnv1a& hash, Take take) {
  std::vector<unsigned char> piece(std::min<uint64_t>(kPieceBytes, tensor.bytes()));
  for (uint64_t offset = 0; offset < tensor.bytes(); offset += piece.size()) {
    const size_t bytes = size_t(std::min<uint64_t>(piece.size(), tensor.bytes() - offset));
    file.read(tensor, offset, piece.data(), bytes);
    hash.update(piece.data(), bytes);
    take(offset, piece.data(), bytes);
    heartbeat();
  }
}

int64_t length_at(const SafetensorsTensor& tensor, const unsigned char* data, uint64_t index) {
  if (tensor.dtype == "I32") {
    int32_t value;
    std::memcpy(&value, data + index * sizeof value, sizeof value);
    return value;
  }
  int64_t value;
  std::memcpy(&value, data + index * sizeof value, sizeof value);
  return value;
}

std::vector<int> read_lengths(const SafetensorsFile& file, const Problem& p) {
  const SafetensorsTensor& tensor = *file.find("kv_lengths");
  std::vector<unsigned char> data(tensor.bytes());
  file.read(tensor, 0, data.data(), data.size());
  std::vector<int> lengths;
  for (int b = 0; b < p.batch; ++b) {
    const int64_t length = length_at(tensor, data.data(), uint64_t(b));
    if (length < 0 || length > p.seqlen_kv)
      throw SafetensorsError("kv_lengths[" + std::to_string(b) + "] is " + std::to_string(length) +
                             ", it must be 0 to " + std::to_string(p.seqlen_kv) + ", k's seqlen");
    lengths.push_back(int(length));
  }
  return lengths;
}

// Looks at a tensor's values as they come.
struct Judge {
  const Problem& p;
  int tensor;
  int64_t nonfinite = 0;
  std::string first;
  float largest = 0;

  void look(uint64_t offset, const unsigned char* data, size_t bytes) {
    const size_t each = element_bytes(p.dtype), row_bytes = each * p.head_dim;
    const bool is_query = tensor == 0;
    for (size_t at = 0; at < bytes; at += row_bytes) {
      const RowOfTensor row = locate(p, is_query, (offset + at) / row_bytes);
      // What lies beyond a length may hold anything.
      if (!is_query && p.kv_lengths == KvLengths::kGiven && row.i >= p.given_lengths[row.b]) continue;
      for (int d = 0; d < p.head_dim; ++d) {
        const float value = load_element(p.dtype, data + at + d * each);
        if (std::isfinite(value)) {
          largest = std::max(largest, std::abs(value));
        } else if (nonfinite++ == 0) {
          first = place(p, row, d);
        }
      }
    }
  }
};

std::string short_number(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", double(value));
  return text;
}

// Inputs that are finite but make the sums overflow leave nothing to compare with either.
void check_magnitudes(const Problem& p, const Judge& q, const Judge& k, const Judge& v) {
  constexpr double kLimit = std::numeric_limits<float>::max();
  if (double(q.largest) * k.largest * p.head_dim > kLimit)
    throw SafetensorsError("q and k hold values of up to " + short_number(q.largest) + " and " +
                           short_number(k.largest) + ": their dot products may overflow fp32");
  if (double(v.largest) * p.seqlen_kv > kLimit)
    throw SafetensorsError("v holds values of up to " + short_number(v.largest) +
                           ": sums over its rows may overflow fp32");
}

std::string hash_contents(const SafetensorsFile& file, const TakePiece& take) {
  Fnv1a hash;
  for (int t = 0; t < 3; ++t) {
    read_pieces(
        file, *file.find(kNames[t]), hash,
        [&](uint64_t offset, const unsigned char* data, size_t bytes) { take(t, offset, data, bytes); });
  }
  if (const SafetensorsTensor* const lengths = file.find("kv_lengths"))
    read_pieces(file, *lengths, hash, [](uint64_t, const unsigned char*, size_t) {});
  return hash.hex();
}

// Names go into requests to workers, into results files and onto the terminal.
void check_name(const std::string& name, const std::string& path) {
  if (has_controls(name)) throw SafetensorsError(kControlsInName);
  try {
    nlohmann::json(path).dump();
  } catch (const nlohmann::json::type_error&) {
    throw SafetensorsError("has a name that is not UTF-8");
  }
}

}  // namespace

Problem problem_of_file(const std::string& given, Layout layout) {
  try {
    if (given.empty()) throw SafetensorsError("the name is empty");
    char* const resolved = realpath(given.c_str(), nullptr);
    if (resolved == nullptr) throw SafetensorsError(std::string("cannot be read: ") + std::strerror(errno));
    const std::string path = resolved;
    std::free(resolved);
    const std::string name = std::filesystem::path(given).filename();
    check_name(name, path + name);
    Problem p = problem_of(SafetensorsFile(path, kWanted), layout);
    p.tensors_file = {name, path, ""};
    return p;
  } catch (const SafetensorsError& error) {
    throw UsageError("--tensors " + given + ": " + error.what());
  }
}

void examine_tensors(std::span<Problem> problems, const std::string& given) {
  try {
    Problem& p = problems.front();
    SafetensorsFile opened(p.tensors_file.path, kWanted);
    const SafetensorsFile& file = check_unchanged(opened, p);
    if (p.kv_lengths == KvLengths::kGiven) p.given_lengths = read_lengths(file, p);
    Judge judges[3] = {{p, 0, 0, "", 0}, {p, 1, 0, "", 0}, {p, 2, 0, "", 0}};
    p.tensors_file.fnv1a64 = hash_contents(file, [&](int t, uint64_t offset, const unsigned char* data,
                                                     size_t n) { judges[t].look(offset, data, n); });
    for (const Judge& judge : judges) {
      if (judge.nonfinite == 0) continue;
      const bool lengths_matter = judge.tensor > 0 && p.kv_lengths == KvLengths::kGiven;
      throw SafetensorsError(std::string(kNames[judge.tensor]) + " has " + std::to_string(judge.nonfinite) +
                             " value(s) that are NaN or Inf" +
                             (lengths_matter ? " in rows below their batch's length" : "") +
                             ", the first at " + judge.first);
    }
    check_magnitudes(p, judges[0], judges[1], judges[2]);
    for (Problem& other : problems.subspan(1)) {
      other.tensors_file = p.tensors_file;
      other.given_lengths = p.given_lengths;
    }
  } catch (const SafetensorsError& error) {
    throw UsageError("--tensors " + given + ": " + error.what());
  }
}

void read_tensors(const Problem& p, const TakePiece& take) {
  try {
    SafetensorsFile opened(p.tensors_file.path, kWanted);
    if (hash_contents(check_unchanged(opened, p), take) != p.tensors_file.fnv1a64)
      throw SafetensorsError("has changed since the program began");
  } catch (const SafetensorsError& error) {
    throw std::runtime_error("the tensors' file " + p.tensors_file.name + " " + error.what());
  }
}

void write_outputs(const Outputs& outputs, const Problem& p, const std::string& step, BackendKind backend,
                   const std::string& path) {
  const auto check = [](bool succeeded) {
    if (!succeeded) throw std::runtime_error(std::strerror(errno));
  };
  const int fd = open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  check(fd >= 0);
  struct Close {
    int fd;
    ~Close() { close(fd); }
  } closes{fd};
  const auto write = [&](const void* data, size_t bytes) {
    check(write_fully(fd, data, bytes));
    heartbeat();
  };
  const Shape o_shape = shape_of(p, /*is_query=*/true);
  const Shape lse_shape{uint64_t(p.batch), uint64_t(p.num_heads_q), uint64_t(p.seqlen_q)};
  std::map<std::string, std::string> metadata{{"step", step},
                                              {"backend", name(backend)},
                                              {"problem", p.label()},
                                              {"causal", p.causal ? "true" : "false"},
                                              {"layout", name(p.layout)}};
  if (p.inputs == Inputs::kFile) metadata["tensors_fnv1a64"] = p.tensors_file.fnv1a64;
  if (p.given_scale != 0) metadata["softmax_scale"] = nlohmann::json(p.given_scale).dump();
  const std::string header =
      safetensors_header({{"o", type_name(p.dtype), o_shape}, {"lse", "F32", lse_shape}}, metadata);
  write(header.data(), header.size());

  const size_t row_bytes = element_bytes(p.dtype) * p.head_dim;
  std::vector<unsigned char> piece;
  for (int64_t row = 0; row < p.num_rows(); ++row) {
    const RowOfTensor at = locate(p, /*is_query=*/true, uint64_t(row));
    const auto* const o = static_cast<const unsigned char*>(outputs.o_row(at.b, at.h, at.i));
    piece.insert(piece.end(), o, o + row_bytes);
    if (piece.size() < kPieceBytes && row + 1 < p.num_rows()) continue;
    write(piece.data(), piece.size());
    piece.clear();
  }
  write(outputs.lse.data() + kGuardElements * sizeof(float), size_t(p.num_rows()) * sizeof(float));
}

}  // namespace flashsteps
