#include "harness/problem/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

namespace flashsteps {
namespace {

using nlohmann::json;

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
std::string quote(const std::string& text) {
  constexpr size_t kLongest = 60;
  return "'" + (text.size() > kLongest ? text.substr(0, kLongest) + "..." : text) + "'";
}

// Takes the header's JSON piece by piece, so that one that is hostile is refused at its first wrong piece and
// never becomes a tree in memory.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const std::vector<std::string>& wanted) : wanted_(wanted.begin(), wanted.end()) {}

  std::map<std::string, SafetensorsTensor> tensors;  // those wanted

  // After the last piece: the tensors cover the data, each byte once.
  void check_offsets(uint64_t data_bytes) {
    std::sort(extents_.begin(), extents_.end(), [](const Extent& a, const Extent& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    uint64_t covered = 0;
    for (const Extent& extent : extents_) {
      if (extent.begin != covered)
        throw SafetensorsError(quote(extent.name) + " begins at byte " + std::to_string(extent.begin) +
                               " of the data, the tensors before it end at byte " + std::to_string(covered) +
                               (extent.begin > covered ? ": a hole" : ": an overlap"));
      covered = extent.end;
    }
    if (covered > data_bytes)
      throw SafetensorsError("is cut off: its tensors have " + std::to_string(covered) + " bytes, " +
                             std::to_string(data_bytes) + " are there");
    if (covered < data_bytes)
      throw SafetensorsError("goes on after its last tensor, for " + std::to_string(data_bytes - covered) +
                             " bytes");
    std::sort(extents_.begin(), extents_.end(),
              [](const Extent& a, const Extent& b) { return a.name < b.name; });
    for (size_t i = 1; i < extents_.size(); ++i) {
      if (extents_[i - 1].name == extents_[i].name) throw_twice(extents_[i].name);
    }
  }

  bool start_object(size_t) override {
    if (place_ == Place::kBefore) return enter(Place::kTensors);
    const bool of_tensor = place_ == Place::kTensor && field_.empty();
    if (!of_tensor && (place_ != Place::kMetadata || in_metadata_)) unexpected("an object");
    in_metadata_ = !of_tensor;
    if (of_tensor) field_ = kInside;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensors) return enter(Place::kAfter);
    if (place_ == Place::kMetadata) {
      std::sort(metadata_keys_.begin(), metadata_keys_.end());
      const auto twice = std::adjacent_find(metadata_keys_.begin(), metadata_keys_.end());
      if (twice != metadata_keys_.end()) throw_twice(*twice);
      metadata_keys_ = {};
    } else {
      finish_tensor();
    }
    return enter(Place::kTensors);
  }

  bool key(string_t& text) override {
    if (place_ == Place::kMetadata) {
      metadata_keys_.push_back(std::move(text));
    } else if (place_ == Place::kTensor) {
      start_field(text);
    } else if (text == kMetadataName) {
      if (seen_metadata_) throw_twice(text);
      seen_metadata_ = true;
      enter(Place::kMetadata);
    } else {
      name_ = std::move(text);
      enter(Place::kTensor);
    }
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata && in_metadata_) return true;
    if (place_ != Place::kTensor || field_ != "dtype") unexpected("a text");
    if (text.size() > 32) throw SafetensorsError(quote(name_) + " has an unknown dtype " + quote(text));
    tensor_.dtype = text;
    return true;
  }

  bool start_array(size_t) override {
    const bool list = place_ == Place::kTensor && (field_ == "shape" || field_ == "data_offsets");
    if (!list || in_array_) unexpected("a list");
    return in_array_ = true;
  }

  bool end_array() override {
    in_array_ = false;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) unexpected("a number");
    if (field_ == "shape") {
      if (tensor_.shape.size() < SafetensorsFile::kMaxDimensions) tensor_.shape.push_back(value);
      ++tensor_.dimensions;
      too_large_ |= __builtin_mul_overflow(elements_, value, &elements_);
    } else {
      if (num_offsets_ == 0) tensor_.begin = value;
      if (num_offsets_ == 1) tensor_.end = value;
      ++num_offsets_;
    }
    return true;
  }

  bool number_integer(number_integer_t value) override { not_a_size(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override {
    not_a_size(text);
  }  // beyond 64 bits, too
  bool null() override { unexpected("null"); }
  bool boolean(bool value) override { unexpected(value ? "true" : "false"); }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    throw SafetensorsError("its header is not JSON in UTF-8: see byte " + std::to_string(position));
  }

 private:
  enum class Place { kBefore, kTensors, kMetadata, kTensor, kAfter };
  static constexpr const char* kFields[] = {"dtype", "shape", "data_offsets"};
  static constexpr const char* kInside = "{";  // in a tensor's object, before its first key

  struct Extent {
    std::string name;
    uint64_t begin, end;
  };

  bool enter(Place place) {
    place_ = place;
    in_metadata_ = false;
    if (place == Place::kTensor) {
      tensor_ = {};
      field_.clear();
      fields_.clear();
      too_large_ = false;
      elements_ = 1;
      num_offsets_ = 0;
    }
    return true;
  }

  void start_field(const std::string& text) {
    if (std::find(std::begin(kFields), std::end(kFields), text) == std::end(kFields))
      throw SafetensorsError(quote(name_) + " has an unknown key " + quote(text));
    if (!fields_.insert(text).second)
      throw SafetensorsError(quote(name_) + " has the key " + quote(text) + " twice");
    field_ = text;
  }

  void finish_tensor() {
    for (const char* const field : kFields) {
      if (fields_.count(field) == 0) throw SafetensorsError(quote(name_) + " lacks " + field);
    }
    if (num_offsets_ != 2)
      throw SafetensorsError(quote(name_) + " has " + std::to_string(num_offsets_) + " data_offsets, not 2");
    if (tensor_.end < tensor_.begin)
      throw SafetensorsError(quote(name_) + " ends at byte " + std::to_string(tensor_.end) +
                             " of the data, before it begins at byte " + std::to_string(tensor_.begin));
    uint64_t bits = 0;
    if (const uint64_t bits_each = bits_of(tensor_.dtype); bits_each > 0) {
      too_large_ |= __builtin_mul_overflow(elements_, bits_each, &bits);
      if (too_large_) throw SafetensorsError(quote(name_) + " has a shape that overflows 64 bits");
      if (bits % 8 != 0 || bits / 8 != tensor_.bytes())
        throw SafetensorsError(quote(name_) + " has " + std::to_string(tensor_.bytes()) +
                               " bytes, its dtype and shape say " + std::to_string((bits + 7) / 8));
    } else if (wanted_.count(name_) > 0) {
      throw SafetensorsError(quote(name_) + " has an unknown dtype " + quote(tensor_.dtype));
    }
    if (wanted_.count(name_) > 0) tensors[name_] = tensor_;
    extents_.push_back({std::move(name_), tensor_.begin, tensor_.end});
  }

  [[noreturn]] void unexpected(const std::string& what) const {
    if (place_ == Place::kBefore) throw SafetensorsError("its header is " + what + ", it must be an object");
    if (place_ == Place::kMetadata)
      throw SafetensorsError(std::string(kMetadataName) + " holds " + what +
                             ", it must be an object of texts");
    if (field_.empty()) throw SafetensorsError(quote(name_) + " is " + what + ", it must be an object");
    throw SafetensorsError(quote(name_) + ": its " + field_ + " holds " + what + ", it must be " +
                           (field_ == "dtype" ? "a text" : "a list of whole numbers"));
  }

  [[noreturn]] void not_a_size(const std::string& number) const {
    if (!in_array_) unexpected("a number");
    throw SafetensorsError(quote(name_) + ": its " + field_ + " holds " + quote(number) +
                           ", no whole number of 64 bits from 0 on");
  }

  [[noreturn]] static void throw_twice(const std::string& name) {
    throw SafetensorsError("has " + quote(name) + " twice");
  }

  const std::set<std::string> wanted_;
  Place place_ = Place::kBefore;
  bool in_metadata_ = false, seen_metadata_ = false, in_array_ = false;
  std::vector<std::string> metadata_keys_;
  std::vector<Extent> extents_;  // of all tensors

  // The tensor at hand.
  std::string name_, field_;
  SafetensorsTensor tensor_;
  std::set<std::string> fields_;  // those seen
  bool too_large_ = false;
  uint64_t elements_ = 1, num_offsets_ = 0;
};

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path, const std::vector<std::string>& wanted) {
  struct stat status {};
  // Without O_NONBLOCK, a FIFO would wait here for somebody who writes.
  fd_ = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct CloseUnlessDone {  // no destructor runs for an object whose constructor throws
    int* fd;
    ~CloseUnlessDone() {
      if (fd != nullptr && *fd >= 0) close(*fd);
    }
  } guard{&fd_};
  if (fd_ < 0 || fstat(fd_, &status) != 0)
    throw SafetensorsError(std::string("cannot be read: ") + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw SafetensorsError("is not a regular file");
  const auto file_bytes = uint64_t(status.st_size);
  uint64_t header_bytes = 0;
  if (file_bytes < sizeof header_bytes)
    throw SafetensorsError("has " + std::to_string(file_bytes) + " bytes: too short for a safetensors file");
  read_at(0, &header_bytes, sizeof header_bytes);
  const uint64_t rest = file_bytes - sizeof header_bytes;
  if (header_bytes > rest)
    throw SafetensorsError("begins with the length of a header of " + std::to_string(header_bytes) +
                           " bytes, but only " + std::to_string(rest) +
                           " follow: cut off, or not a safetensors file");
  if (header_bytes > kMaxHeaderBytes)
    throw SafetensorsError("has a header of " + std::to_string(header_bytes) +
                           " bytes, the format's limit is " + std::to_string(kMaxHeaderBytes));
  char first = 0;
  if (header_bytes > 0) read_at(sizeof header_bytes, &first, 1);
  if (first != '{')
    throw SafetensorsError("has a header that does not begin with '{': not a safetensors file");
  std::string header(header_bytes, '\0');
  read_at(sizeof header_bytes, header.data(), header_bytes);
  // The parser would take it for the end, and not look at what follows.
  if (const size_t zero = header.find('\0'); zero != std::string::npos)
    throw SafetensorsError("its header is not JSON in UTF-8: see byte " + std::to_string(zero + 1));
  HeaderReader reader(wanted);
  json::sax_parse(header, &reader);
  reader.check_offsets(rest - header_bytes);
  data_begin_ = sizeof header_bytes + header_bytes;
  tensors_ = std::move(reader.tensors);
  guard.fd = nullptr;
}

SafetensorsFile::~SafetensorsFile() { close(fd_); }

const SafetensorsTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void SafetensorsFile::read(const SafetensorsTensor& tensor, uint64_t offset, void* to, uint64_t bytes) const {
  read_at(data_begin_ + tensor.begin + offset, to, bytes);
}

// Not mapped: a file that is cut off while it is read must be an error, not a SIGBUS.
void SafetensorsFile::read_at(uint64_t offset, void* to, uint64_t bytes) const {
  for (uint64_t done = 0; done < bytes;) {
    const size_t at_once = std::min<uint64_t>(bytes - done, 1 << 30);
    const ssize_t n = pread(fd_, static_cast<char*>(to) + done, at_once, off_t(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw SafetensorsError(std::string("cannot be read: ") + std::strerror(errno));
    if (n == 0) throw SafetensorsError("became shorter while it was read");
    done += uint64_t(n);
  }
}

std::string safetensors_header(const std::vector<SafetensorsEntry>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header[kMetadataName] = metadata;
  uint64_t end = 0;
  for (const SafetensorsEntry& tensor : tensors) {
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
