// The safetensors format: files of others, malformed and hostile ones among them, and our own.
#include <sys/stat.h>
#include <unistd.h>

#include "harness/base/fnv1a.h"
#include "harness/problem/safetensors.h"
#include "harness/tests/catch.h"
#include "harness/tests/temporary_folder.h"

using namespace flashsteps;

namespace {

using Shape = std::vector<uint64_t>;

std::string with_length(const std::string& header, uint64_t length) {
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
}

std::string with_length(const std::string& header) { return with_length(header, header.size()); }

std::string refusal_of_file(const std::string& path) {
  try {
    SafetensorsFile{path};
  } catch (const SafetensorsError& error) {
    return error.what();
  }
  return "";
}

std::string header_of_q(const std::string& fields) { return "{\"q\":{" + fields + "}}"; }

}  // namespace

TEST_CASE("FNV-1a of its authors' examples") {
  const std::pair<std::string, const char*> cases[] = {
      {"", "cbf29ce484222325"}, {"a", "af63dc4c8601ec8c"}, {"foobar", "85944171f73967e8"}};
  for (const auto& [text, digest] : cases) {
    Fnv1a at_once, in_pieces;
    at_once.update(text.data(), text.size());
    CHECK(at_once.hex() == digest);
    for (const char byte : text) in_pieces.update(&byte, 1);
    CHECK(in_pieces.hex() == digest);
  }
}

TEST_CASE("what is written is read, in whole and in part") {
  TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  const std::string header =
      safetensors_header({{"o", "F16", {2, 3}}, {"q", "F32", {2}}}, {{"step", "v\xff"}});
  CHECK(header.size() % 8 == 0);
  write_file(path, header + "abcdefghijkl" + "12345678");
  SafetensorsFile file(path);
  REQUIRE(file.find("q") != nullptr);
  CHECK(file.find("q")->dtype == "F32");
  CHECK(file.find("q")->shape == Shape{2});
  CHECK(file.find("o")->shape == Shape{2, 3});
  CHECK(file.find("o")->bytes() == 12);
  CHECK(file.find("absent") == nullptr);
  char part[5] = {};
  file.read(*file.find("q"), 3, part, 4);
  CHECK(std::string(part) == "4567");
}

TEST_CASE("a file of the format's own package is read") {
  // safetensors 0.8.0: z is empty, q is bf16, in the order that the package chose.
  TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  write_file(path, with_length("{\"__metadata__\":{\"a\":\"b\"},\"z\":{\"dtype\":\"F32\",\"shape\":[0],"
                               "\"data_offsets\":[0,0]},\"q\":{\"dtype\":\"BF16\",\"shape\":[2,3],"
                               "\"data_offsets\":[0,12]}}") +
                       "abcdefghijkl");
  SafetensorsFile file(path);
  CHECK(file.find("q")->dtype == "BF16");
  CHECK(file.find("z")->bytes() == 0);
}

TEST_CASE("what the format allows is read") {
  const std::string q = "\"q\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}";
  const std::pair<const char*, std::string> cases[] = {
      {"padding", "{" + q + "}   "},
      {"white space", "{ " + q + " }\n"},
      {"empty metadata", "{\"__metadata__\":{}," + q + "}"},
      {"a scalar", header_of_q("\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]")},
      {"keys in another order", header_of_q("\"data_offsets\":[0,4],\"shape\":[4],\"dtype\":\"U8\"")},
      {"one of AMD's types of 8 bits",
       header_of_q("\"dtype\":\"F8_E4M3FNUZ\",\"shape\":[4],\"data_offsets\":[0,4]")},
      {"the other one", header_of_q("\"dtype\":\"F8_E5M2FNUZ\",\"shape\":[2,2],\"data_offsets\":[0,4]")},
      {"types of half a byte", header_of_q("\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[0,4]")},
      {"tensors that the data has in another order",
       "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]},"
       "\"q\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}"},
      {"a type of the future, that nobody asks for",
       "{\"a\":{\"dtype\":\"F128\",\"shape\":[1],\"data_offsets\":[0,3]},"
       "\"q\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}"},
      {"metadata with quotes, brackets and colons in it",
       "{\"__metadata__\":{\"a\\\\\":\"\\\":[[[[{\\\\\"}," + q + "}"},
      {"a name with escapes", "{\"\\u0071\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"},
  };
  TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  for (const auto& [what, header] : cases) {
    INFO(what);
    write_file(path, with_length(header) + "1234");
    CHECK(refusal_of_file(path) == "");
    CHECK(SafetensorsFile(path).find("q") != nullptr);
  }
}

TEST_CASE("every malformed file is refused with one line that says what is wrong") {
  const std::string good = "\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]";
  const auto q = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return with_length(
               header_of_q("\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets)) +
           "1234";
  };
  const auto two = [](const std::string& first, const std::string& second) {
    return with_length("{\"q\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" + first +
                       "},\"r\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" + second + "}}") +
           "1234";
  };
  const std::string deep(1 << 20, '[');
  const struct {
    const char* what;
    std::string bytes, says;
  } cases[] = {
      {"an empty file", "", "has 0 bytes: too short"},
      {"seven bytes", "1234567", "has 7 bytes: too short"},
      {"a length only", with_length(""), "does not begin with '{'"},
      {"a length beyond the file", with_length("{}", 3), "header of 3 bytes, but only 2 follow"},
      {"a length that overflows", with_length("{}", ~uint64_t{0}), "18446744073709551615 bytes, but only 2"},
      {"another format", "\x93NUMPY\x01 and so on, for a while", "cut off, or not a safetensors file"},
      {"a list", with_length("[]"), "does not begin with '{'"},
      {"white space first", with_length(" {}"), "does not begin with '{'"},
      {"no JSON", with_length("{nonsense}"), "not JSON in UTF-8: see byte 3"},
      {"JSON that is cut off", with_length("{\"q\":{\"dtype\":\"U8"), "not JSON in UTF-8"},
      {"JSON twice", with_length("{}{}"), "not JSON in UTF-8: see byte 3"},
      {"zeros after it", with_length(std::string("{}\0\0", 4)), "not JSON in UTF-8: see byte 3"},
      {"a comment", with_length("{/**/}"), "not JSON"},
      {"no UTF-8", with_length("{\"\xff\":1}"), "not JSON in UTF-8: see byte 3"},
      {"half a surrogate", with_length("{\"\\ud800\":1}"), "not JSON in UTF-8"},
      {"nested lists", with_length("{\"q\":" + deep), "nested more deeply"},
      {"nested lists in a shape", with_length("{\"q\":{\"shape\":" + deep), "nested more deeply"},
      {"nested objects", with_length("{\"q\":{\"shape\":{\"x\":{"), "nested more deeply"},
      {"an object as a shape", q("\"U8\"", "{}", "[0,4]"), "its shape must be a list"},
      {"a tensor that is a number", with_length("{\"q\":5}"), "'q' must be an object"},
      {"a tensor that is null", with_length("{\"q\":null}"), "'q' must be an object"},
      {"a tensor that is a text", with_length("{\"q\":\"x\"}"), "'q' must be an object"},
      {"a tensor without keys", with_length("{\"q\":{}}"), "'q' lacks dtype"},
      {"no shape", with_length(header_of_q("\"dtype\":\"U8\",\"data_offsets\":[0,0]")), "'q' lacks shape"},
      {"no offsets", with_length(header_of_q("\"dtype\":\"U8\",\"shape\":[0]")), "'q' lacks data_offsets"},
      {"a key of its own", with_length(header_of_q(good + ",\"x\":1")),
       "'q' has other keys than dtype, shape and data_offsets"},
      {"a dtype twice", with_length(header_of_q(good + ",\"dtype\":\"U8\"")),
       "has a name or a key twice in its header"},
      {"a dtype that is a number", q("5", "[4]", "[0,4]"), "its dtype must be a text"},
      {"a long dtype", q("\"" + std::string(1 << 20, 'F') + "\"", "[4]", "[0,4]"), "unknown dtype 'FFF"},
      {"a shape that is a number", q("\"U8\"", "4", "[0,4]"), "its shape must be a list of whole numbers"},
      {"a text in a shape", q("\"U8\"", "[\"4\"]", "[0,4]"), "its shape must be a list of whole numbers"},
      {"true in a shape", q("\"U8\"", "[true]", "[0,4]"), "its shape must be a list of whole numbers"},
      {"a negative size", q("\"U8\"", "[-4]", "[0,4]"), "its shape must be a list of whole numbers"},
      {"a fraction", q("\"U8\"", "[4.0]", "[0,4]"), "its shape must be a list of whole numbers"},
      {"a number beyond 64 bits", q("\"U8\"", "[4]", "[0,18446744073709551616]"),
       "its data_offsets must be a list of whole numbers, from 0 to 2^64 - 1"},
      {"a number beyond a double", q("\"U8\"", "[4]", "[0,1e999]"), "not JSON"},
      {"a number of a million digits", q("\"U8\"", "[1" + std::string(1 << 20, '0') + "]", "[0,4]"), "JSON"},
      {"sizes whose product overflows", q("\"U8\"", "[4294967296,4294967296,4]", "[0,4]"),
       "overflows 64 bits"},
      {"a size whose bits overflow", q("\"F32\"", "[4611686018427387904]", "[0,4]"), "overflows 64 bits"},
      {"one offset", q("\"U8\"", "[4]", "[4]"), "its data_offsets must be two"},
      {"three offsets", q("\"U8\"", "[4]", "[0,4,4]"), "its data_offsets must be two"},
      {"offsets the wrong way round", q("\"U8\"", "[4]", "[4,0]"),
       "its data_offsets must be two, where it begins and where it ends"},
      {"a size that is not the dtype's", q("\"F32\"", "[4]", "[0,4]"),
       "has 4 bytes, its dtype and shape say 16"},
      {"half a byte",
       with_length(header_of_q("\"dtype\":\"F4\",\"shape\":[7],\"data_offsets\":[0,3]")) + "123",
       "has 3 bytes, its dtype and shape say 4"},
      {"data that is cut off", q("\"U8\"", "[5]", "[0,5]"),
       "is cut off: its tensors have 5 bytes, 4 are there"},
      {"data beyond all files", q("\"U8\"", "[2305843009213693951]", "[0,2305843009213693951]"),
       "is cut off"},
      {"more data than tensors", q("\"U8\"", "[3]", "[0,3]"), "goes on after its last tensor, for 1 bytes"},
      {"data without tensors", with_length("{}") + "1", "goes on after its last tensor, for 1 bytes"},
      {"a hole at the beginning", q("\"U8\"", "[3]", "[1,4]"),
       "'q' begins at byte 1 of the data, the tensors "
       "before it end at byte 0: a hole"},
      {"a hole", two("[0,2]", "[3,5]"),
       "'r' begins at byte 3 of the data, the tensors before it end at byte 2"},
      {"an overlap", two("[0,2]", "[1,3]"),
       "'r' begins at byte 1 of the data, the tensors before it end at "
       "byte 2: an overlap"},
      {"a tensor twice",
       with_length("{\"q\":{" + good +
                   "},\"q\":{\"dtype\":\"U8\",\"shape\":[0],"
                   "\"data_offsets\":[4,4]}}") +
           "1234",
       "has a name or a key twice in its header"},
      {"a shape of a million dimensions",
       q(
           "\"U8\"",
           "[0" +
               [] {
                 std::string more;
                 for (int i = 0; i < 1 << 20; ++i) more += ",0";
                 return more;
               }() +
               "]",
           "[0,4]"),
       "its shape must be a list of whole numbers, from 0 to 2^64 - 1, 64 at most"},
      {"metadata that is a list", with_length("{\"__metadata__\":[]}"),
       "its __metadata__ must be an object of texts"},
      {"metadata that is a text", with_length("{\"__metadata__\":\"x\"}"),
       "its __metadata__ must be an object of texts"},
      {"metadata that holds a number", with_length("{\"__metadata__\":{\"a\":1}}"),
       "its __metadata__ must be an object of texts"},
      {"metadata that holds an object", with_length("{\"__metadata__\":{\"a\":{}}}"),
       "its __metadata__ must be an object of texts"},
      {"metadata with a key twice", with_length("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}"),
       "has a name or a key twice in its header"},
      {"metadata twice", with_length("{\"__metadata__\":{},\"__metadata__\":{}}"),
       "has a name or a key twice in its header"},
  };
  TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  for (const auto& c : cases) {
    INFO(c.what);
    write_file(path, c.bytes);
    const std::string line = refusal_of_file(path);
    INFO(line);
    CHECK(line.find(c.says) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
    CHECK(line.size() < 250);
  }
}

TEST_CASE("what is no file of data is refused at once") {
  TemporaryFolder folder;
  const std::string fifo = folder.file("fifo");
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(refusal_of_file(fifo) == "is not a regular file");
  CHECK(refusal_of_file(folder.path) == "is not a regular file");
  CHECK(refusal_of_file("/dev/zero") == "is not a regular file");
  CHECK(refusal_of_file(folder.file("absent")) == "cannot be read: No such file or directory");
}

TEST_CASE("of a huge file only the header is read, and that only up to a limit") {
  TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  // A terabyte that nobody wrote: the file system stores no zeros.
  const uint64_t terabyte = uint64_t{1} << 40;
  const std::string header = safetensors_header({{"q", "U8", {terabyte}}}, {});
  write_file(path, header);
  REQUIRE(truncate(path.c_str(), off_t(header.size() + terabyte)) == 0);
  CHECK(SafetensorsFile(path).find("q")->bytes() == terabyte);
  write_file(path, with_length("{", SafetensorsFile::kMaxHeaderBytes + 1));
  REQUIRE(truncate(path.c_str(), off_t(terabyte)) == 0);
  CHECK(refusal_of_file(path) == "has a header of 8388609 bytes, the limit is 8388608");
  write_file(path, with_length("{", SafetensorsFile::kMaxHeaderBytes));
  REQUIRE(truncate(path.c_str(), off_t(terabyte)) == 0);
  CHECK(refusal_of_file(path) == "its header is not JSON in UTF-8: see byte 2");
}

TEST_CASE("a file that is cut off while it is read is an error") {
  TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  write_file(path, safetensors_header({{"q", "U8", {4}}}, {}) + "1234");
  SafetensorsFile file(path);
  REQUIRE(truncate(path.c_str(), 16) == 0);
  char data[4];
  CHECK_THROWS_AS(file.read(*file.find("q"), 0, data, 4), SafetensorsError);
}
