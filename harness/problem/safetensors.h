// The safetensors format, as huggingface/safetensors documents it: 8 bytes with the header's length, the
// header (JSON, padded with spaces), the data. Knows nothing of attention. A file is somebody else's:
// whatever it holds, reading it ends soon, in bounded memory, and with one clear sentence when it is refused.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace flashsteps {

// What is wrong with a file, without its name.
struct SafetensorsError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
inline void require(bool fine, const std::string& else_wrong) {
  if (!fine) throw SafetensorsError(else_wrong);
}

struct SafetensorsTensor {
  std::string name;
  std::string dtype;  // "F16", "BF16", "F32", "I64", ...
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes of the data
  uint64_t bytes() const { return end - begin; }
};

class SafetensorsFile {
 public:
  // Far more than a model's tensors need; the format's own limit is 100 MB. It bounds the memory that a
  // hostile header takes: the tree has up to 40 times its size.
  static constexpr uint64_t kMaxHeaderBytes = 8 << 20;

  // Reads and checks the whole header, no data.
  explicit SafetensorsFile(const std::string& path);

  const SafetensorsTensor* find(const std::string& name) const;  // nullptr: not in the file
  // Part of a tensor's data, from `offset` on.
  void read(const SafetensorsTensor& tensor, uint64_t offset, void* to, uint64_t bytes);

 private:
  void read_at(uint64_t offset, void* to, uint64_t bytes);

  std::ifstream file_;
  uint64_t data_begin_ = 0;
  std::vector<SafetensorsTensor> tensors_;  // in the order of their data
};

// What stands before the data of these tensors, which follow in this order: where each begins and ends is
// worked out here. Its length is a multiple of 8.
std::string safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                               const std::map<std::string, std::string>& metadata);

}  // namespace flashsteps
