#include "harness/problem/safetensors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "harness/base/json.h"

namespace flashsteps {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

constexpr const char* kMetadataName = "__metadata__";

// 0: a type that this program does not know. Tensors nobody asked for may have one: the format gains types.
uint64_t bits_of(const std::string& dtype) {
  static const std::map<std::string, uint64_t> bits{
      {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8},        {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  const auto found = bits.find(dtype);
  return found == bits.end() ? 0 : found->second;
}

// A name of the file's in a sentence of ours.
constexpr size_t kLongestQuote = 60;
std::string quote(const std::string& text) {
  return "'" + (text.size() > kLongestQuote ? text.substr(0, kLongestQuote) + "..." : text) + "'";
}

[[noreturn]] void throw_not_json(size_t byte) {
  throw SafetensorsError("its header is not JSON in UTF-8: see byte " + std::to_string(byte));
}

// The header as a tree. What it must not become, deep, and what it would not show, a key that comes twice,
// are looked for in the text. (The parser's callbacks see both, and take a time that grows with the square of
// the number of tensors.)
json parse_header(const std::string& text) {
  constexpr int kDeepest = 3;  // a list in a tensor's object in the header
  int depth = 0;
  size_t keys = 0, keys_of_tree = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (in_string) {
      i += c == '\\';  // what it escapes does not end the string
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (depth > kDeepest) throw SafetensorsError("has a header that is nested more deeply than the format's");
    keys += c == ':';
    // The parser would take it for the end, and not look at what follows.
    if (c == '\0') throw_not_json(i + 1);
  }
  try {
    json header = json::parse(text);
    for (const json& entry : header) keys_of_tree += entry.is_object() ? entry.size() : 0;
    require(keys == header.size() + keys_of_tree, "has a name or a key twice in its header");
    return header;
  } catch (const json::parse_error& error) {
    throw_not_json(error.byte);
  } catch (const json::out_of_range&) {
    throw SafetensorsError("its header is not JSON: it holds a number beyond the range of a double");
  }
}

void check_metadata(const json& metadata) {
  const auto is_text = [](const json& value) { return value.is_string(); };
  require(metadata.is_object() && std::ranges::all_of(metadata, is_text),
          std::string("its ") + kMetadataName + " must be an object of texts");
}

// No format of tensors has more dimensions.
constexpr size_t kMostNumbers = 64;
std::vector<uint64_t> whole_numbers(const json& list, const std::string& whose) {
  const auto fits = [](const json& number) { return number.is_number_unsigned(); };
  require(list.is_array() && list.size() <= kMostNumbers && std::ranges::all_of(list, fits),
          whose + " must be a list of whole numbers, from 0 to 2^64 - 1, 64 at most");
  return list.get<std::vector<uint64_t>>();
}

SafetensorsTensor read_tensor(const std::string& name, const json& entry) {
  const std::string it = quote(name);
  require(entry.is_object(), it + " must be an object");
  for (const char* const key : {"dtype", "shape", "data_offsets"})
    require(entry.contains(key), it + " lacks " + key);
  require(entry.size() == 3, it + " has other keys than dtype, shape and data_offsets");
  require(entry["dtype"].is_string(), it + ": its dtype must be a text");
  const std::vector<uint64_t> offsets = whole_numbers(entry["data_offsets"], it + ": its data_offsets");
  require(offsets.size() == 2 && offsets[0] <= offsets[1],
          it + ": its data_offsets must be two, where it begins and where it ends");
  const SafetensorsTensor tensor{name, entry["dtype"], whole_numbers(entry["shape"], it + ": its shape"),
                                 offsets[0], offsets[1]};
  require(tensor.dtype.size() <= kLongestQuote, it + " has an unknown dtype " + quote(tensor.dtype));
  uint64_t bits = bits_of(tensor.dtype);
  if (bits == 0) return tensor;
  for (const uint64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bits, extent, &bits))
      throw SafetensorsError(it + " has a shape that overflows 64 bits");
  }
  require(bits % 8 == 0 && bits / 8 == tensor.bytes(), it + " has " + std::to_string(tensor.bytes()) +
                                                           " bytes, its dtype and shape say " +
                                                           std::to_string((bits + 7) / 8));
  return tensor;
}

// The tensors cover the data, each byte once.
void check_offsets(const std::vector<SafetensorsTensor>& in_order, uint64_t data_bytes) {
  uint64_t covered = 0;
  for (const SafetensorsTensor& tensor : in_order) {
    if (tensor.begin != covered)
      throw SafetensorsError(quote(tensor.name) + " begins at byte " + std::to_string(tensor.begin) +
                             " of the data, the tensors before it end at byte " + std::to_string(covered) +
                             (tensor.begin > covered ? ": a hole" : ": an overlap"));
    covered = tensor.end;
  }
  require(covered <= data_bytes, "is cut off: its tensors have " + std::to_string(covered) + " bytes, " +
                                     std::to_string(data_bytes) + " are there");
  require(covered == data_bytes,
          "goes on after its last tensor, for " + std::to_string(data_bytes - covered) + " bytes");
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  require(!error, "cannot be read: " + error.message());
  // A FIFO would wait here for somebody who writes.
  require(regular, "is not a regular file");
  const uint64_t file_bytes = std::filesystem::file_size(path, error);
  file_.open(path, std::ios::binary);
  require(!error && file_, std::string("cannot be read: ") + std::strerror(errno));
  uint64_t header_bytes = 0;
  require(file_bytes >= sizeof header_bytes,
          "has " + std::to_string(file_bytes) + " bytes: too short for a safetensors file");
  read_at(0, &header_bytes, sizeof header_bytes);
  const uint64_t rest = file_bytes - sizeof header_bytes;
  require(header_bytes <= rest, "begins with the length of a header of " + std::to_string(header_bytes) +
                                    " bytes, but only " + std::to_string(rest) +
                                    " follow: cut off, or not a safetensors file");
  require(header_bytes <= kMaxHeaderBytes, "has a header of " + std::to_string(header_bytes) +
                                               " bytes, the limit is " + std::to_string(kMaxHeaderBytes));
  std::string text(header_bytes, '\0');
  read_at(sizeof header_bytes, text.data(), header_bytes);
  require(text.starts_with('{'), "has a header that does not begin with '{': not a safetensors file");
  const json header = parse_header(text);
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadataName) {
      check_metadata(entry);
    } else {
      tensors_.push_back(read_tensor(name, entry));
    }
  }
  std::ranges::sort(tensors_, {}, [](const auto& t) { return std::tie(t.begin, t.end, t.name); });
  check_offsets(tensors_, rest - header_bytes);
  data_begin_ = sizeof header_bytes + header_bytes;
}

const SafetensorsTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = std::ranges::find(tensors_, name, &SafetensorsTensor::name);
  return found == tensors_.end() ? nullptr : &*found;
}

void SafetensorsFile::read(const SafetensorsTensor& tensor, uint64_t offset, void* to, uint64_t bytes) {
  read_at(data_begin_ + tensor.begin + offset, to, bytes);
}

// Not mapped: a file that is cut off while it is read must be an error, not a SIGBUS.
void SafetensorsFile::read_at(uint64_t offset, void* to, uint64_t bytes) {
  file_.seekg(std::streamoff(offset));
  if (!file_.read(static_cast<char*>(to), std::streamsize(bytes)))
    throw SafetensorsError("became shorter while it was read, or cannot be read to its end");
}

std::string safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header[kMetadataName] = metadata;
  uint64_t end = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    uint64_t bits = bits_of(tensor.dtype);
    for (const uint64_t extent : tensor.shape) bits *= extent;
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {end, end + bits / 8}}};
    end += bits / 8;
  }
  // A path or a device's name may hold any bytes.
  std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace flashsteps
