#include "harness/emulate/translate.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <initializer_list>
#include <set>
#include <utility>
#include <vector>

#include "harness/emulate/ptx.h"

namespace flashsteps {
namespace {

constexpr size_t kNone = size_t(-1);

// A word, a number, a literal, or one character of an operator. (C++ has no <<<, and >> may be one or two.)
struct Token {
  std::string_view text;  // where it stands in the preprocessed text
  std::string_view file;
  int line = 0;
  size_t parent = kNone;  // the innermost bracket that it is in
  size_t match = kNone;   // a bracket's other one
};

bool in(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, text) != words.end();
}

bool is_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || (c & 0x80) != 0;
}

std::string sentence_of(std::string_view file, int line, const std::string& sentence) {
  return std::string(file) + ":" + std::to_string(line) + ": " + sentence;
}

// cudaMalloc, cuInit, CUdevice, tex2D, surf1Dread, __nv_fp4_e2m1
bool is_name_of_cuda(std::string_view word) {
  const auto goes_on = [&](std::string_view with, auto is_next) {
    return word.starts_with(with) && word.size() > with.size() &&
           is_next(static_cast<unsigned char>(word[with.size()]));
  };
  const auto is_upper = [](int c) { return std::isupper(c) != 0; };
  const auto is_dimension = [](int c) { return c >= '1' && c <= '3'; };
  return word.starts_with("__nv_") || goes_on("cuda", is_upper) || goes_on("cu", is_upper) ||
         goes_on("CU", [](int c) { return std::islower(c) != 0; }) || goes_on("tex", is_dimension) ||
         goes_on("surf", is_dimension);
}

// Of whose headers is this? "" of none.
std::string_view library_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (const std::string_view library : {"cublas", "cudnn", "cufft", "curand", "cusparse", "cusolver", "nccl",
                                         "npp", "nvrtc", "nvjpeg", "cutensor"})
    if (name.starts_with(library)) return library;
  for (const std::string_view folder : {"/thrust/", "/cub/", "/torch/"})
    if (path.find(folder) != path.npos) return folder.substr(1, folder.size() - 2);
  // cudaEGL.h; cuda.h and some others are the emulator's.
  const bool is_other_of_cuda = name.starts_with("cuda") && path.find("/common/emulator/") == path.npos;
  return is_other_of_cuda ? name.substr(0, name.rfind('.')) : "";
}

// Finds the tokens of the user's own files. Comments, line markers and pragmas are none.
class Scanner {
 public:
  Scanner(std::string_view text, const std::function<bool(std::string_view)>& is_own)
      : text_(text), is_own_(is_own) {}

  std::vector<Token> tokens() {
    bool line_begins = true;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (std::isspace(static_cast<unsigned char>(c))) {
        line_begins = line_begins || c == '\n';
        skip(1);
      } else if (line_begins && c == '#') {
        directive();
      } else if (starts("//")) {
        skip(length_until("\n", at_));
      } else if (starts("/*")) {
        skip(length_until("*/", at_ + 2) + 2);
      } else {
        const size_t length = token_length();
        const std::string_view text = text_.substr(at_, length);
        if (own_) add(text);
        if (!own_ && is_name_of_cuda(text)) known_.insert(text);
        skip(length);
        line_begins = false;
      }
    }
    return std::move(tokens_);
  }
  // Names of CUDA's that the headers in front of the user's files have.
  std::set<std::string_view> known() { return std::move(known_); }

 private:
  bool starts(std::string_view with) const { return text_.substr(at_).starts_with(with); }

  // From here up to `end`, which is looked for from `from` on.
  size_t length_until(std::string_view end, size_t from) const {
    return std::min(text_.find(end, from), text_.size()) - at_;
  }

  void skip(size_t length) {
    const std::string_view skipped = text_.substr(at_, length);
    line_ += int(std::ranges::count(skipped, '\n'));
    at_ += skipped.size();
  }

  // # 12 "kernel.cu" 3 says what the next line is; a #pragma says nothing.
  void directive() {
    const std::string_view line = text_.substr(at_, length_until("\n", at_));
    const size_t quote = line.find('"'), last_quote = line.rfind('"');
    int number = 0;
    if (line.size() > 2 &&
        std::from_chars(line.data() + 2, line.data() + line.size(), number).ec == std::errc() &&
        quote < last_quote) {
      const std::string_view file = line.substr(quote + 1, last_quote - quote - 1);
      const bool is_included = own_ && file != file_ && !is_own_(file);
      const std::string_view library = is_included ? library_of(file) : "";
      if (!library.empty())
        throw TranslationError(
            sentence_of(file_, line_, "the library " + std::string(library) + " is not emulated"));
      line_ = number - 1;
      if (file != file_) own_ = is_own_(file);
      file_ = file;
    }
    skip(line.size());
  }

  size_t token_length() const {
    const char c = text_[at_];
    if (c == '"' || c == '\'') return quoted_length(c);
    if (is_letter(c)) return word_length();
    return in(text_.substr(at_, 2), {"->", "::", "<=", ">=", "==", "!="}) ? 2 : 1;
  }

  size_t quoted_length(char quote) const {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote && text_[end] != '\n') end += text_[end] == '\\' ? 2 : 1;
    return end + (end < text_.size() && text_[end] == quote) - at_;
  }

  size_t word_length() const {
    const bool is_number = std::isdigit(static_cast<unsigned char>(text_[at_]));
    size_t end = at_;  // 1'000 is a number, and 'a' behind a word a literal
    while (end < text_.size() && (is_letter(text_[end]) || (is_number && text_[end] == '\''))) ++end;
    const bool is_raw = in(text_.substr(at_, end - at_), {"R", "LR", "uR", "UR", "u8R"});
    if (!is_raw || end == text_.size() || text_[end] != '"') return end - at_;
    const size_t open = std::min(text_.find('(', end), text_.size());
    const std::string close = ")" + std::string(text_.substr(end + 1, open - end - 1)) + "\"";
    return length_until(close, open) + close.size();
  }

  void add(std::string_view text) {
    Token token{text, file_, line_};
    if (in(text, {")", "]", "}"}) && !open_.empty()) {
      token.match = open_.back();
      tokens_[token.match].match = tokens_.size();
      open_.pop_back();
    }
    if (!open_.empty()) token.parent = open_.back();
    if (in(text, {"(", "[", "{"})) open_.push_back(tokens_.size());
    tokens_.push_back(token);
  }

  std::string_view text_;
  const std::function<bool(std::string_view)>& is_own_;
  size_t at_ = 0;
  std::string_view file_;
  int line_ = 1;
  bool own_ = false;
  std::vector<Token> tokens_;
  std::set<std::string_view> known_;
  std::vector<size_t> open_;  // brackets
};

// Replaces tokens and nothing between them, so that all newlines and line markers stay.
class Translator {
 public:
  Translator(std::vector<Token> tokens, std::set<std::string_view> known)
      : tokens_(std::move(tokens)), known_(std::move(known)) {
    for (const Token& token : tokens_) becomes_.emplace_back(token.text);
    is_removed_.resize(tokens_.size());
  }

  std::string translate(std::string_view preprocessed) {
    // The first line is a marker of the file that g++ was given.
    const size_t quote = preprocessed.find('"') + 1;
    main_file_ = preprocessed.substr(quote, preprocessed.find('"', quote) - quote);
    for (size_t i = 0; i < tokens_.size(); ++i)
      if (is_name_of_cuda(text(i))) name_of_cuda(i);
    std::string opaque;
    for (const std::string_view type : opaque_types_) opaque += "struct " + std::string(type) + " {}; ";
    if (!opaque.empty()) becomes_[0].insert(0, "namespace emulator::cuda { " + opaque + "} ");
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (is_removed_[i]) continue;
      if (is_launch(i)) launch(i);
      if (text(i) == "__flashsteps_shared__") shared(i);
      if (text(i) == "__flashsteps_cluster_dims__") cluster_dims(i);
      if (in(text(i), {"cudaLaunchKernel", "cudaLaunchCooperativeKernel"})) take_kernel_itself(i);
      if (text(i) == "__noinline__" && !is_in_attribute(i)) becomes_[i] = "__attribute__((noinline))";
      if (in(text(i), {"asm", "__asm", "__asm__"})) inline_ptx(i);
    }
    std::string translated;
    const char* copied = preprocessed.data();
    for (size_t i = 0; i < tokens_.size(); ++i) {
      translated.append(copied, text(i).data()).append(becomes_[i]);
      copied = text(i).data() + text(i).size();
    }
    return translated.append(copied, preprocessed.data() + preprocessed.size());
  }

  std::vector<std::string> kernels() const {
    std::vector<std::string> names;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const bool is_marker = text(i) == "__unused__" && is_in_attribute(i);
      const std::string name = is_marker ? declared_behind(i) : "";
      if (!name.empty() && std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    return names;
  }

 private:
  // ---------------------------------------------------------------- tokens
  // "" and kNone for kNone, and beyond either end.
  std::string_view text(size_t i) const { return i < tokens_.size() ? tokens_[i].text : ""; }
  size_t match(size_t i) const { return i < tokens_.size() ? tokens_[i].match : kNone; }

  bool is_name(size_t i) const {
    const std::string_view word = text(i);
    return !word.empty() && is_letter(word[0]) && !std::isdigit(static_cast<unsigned char>(word[0])) &&
           !in(word, {"return", "else", "do"});
  }
  bool is_shift_left(size_t i) const {
    return text(i) == "<" && text(i + 1) == "<" && text(i).data() + 1 == text(i + 1).data();
  }

  static std::vector<size_t> range(size_t begin, size_t end) {
    std::vector<size_t> tokens;
    while (begin < end) tokens.push_back(begin++);
    return tokens;
  }
  // On one line. Spaces only where there is space, so that it reads as the user wrote it.
  std::string joined(const std::vector<size_t>& tokens) const {
    std::string line;
    const char* end = nullptr;
    for (const size_t i : tokens) {
      if (!line.empty() && end != text(i).data()) line += ' ';
      line += text(i);
      end = text(i).data() + text(i).size();
    }
    return line;
  }

  [[noreturn]] void fail(size_t i, const std::string& sentence) const {
    throw TranslationError(sentence_at(i, sentence));
  }
  std::string sentence_at(size_t i, const std::string& sentence) const {
    return sentence_of(tokens_[i].file, tokens_[i].line, sentence);
  }

  // What neither the emulator's headers nor the user has declared would be a screenful of g++'s errors. A
  // name of the user's own stands behind a type, and members stand behind their object.
  void name_of_cuda(size_t i) {
    const bool is_declared = (is_name(i - 1) || in(text(i - 1), {"*", "&", ">"})) &&
                             in(text(i + 1), {"(", ")", "[", "{", "=", ";", ",", ":", ">"}) &&
                             !in(text(i - 1), {"case", "delete", "goto", "new", "throw"});
    if (is_declared || in(text(i - 1), {".", "->", "::"})) known_.insert(text(i));
    const bool is_in_program = tokens_[i].file == main_file_;
    const bool is_known = known_.contains(text(i)) && !(is_in_program && opaque_types_.contains(text(i)));
    if (is_known || is_removed_[i]) return;
    const std::string sentence = "the emulator has no " + std::string(text(i));
    if (is_in_program) fail(i, sentence);
    unknown_in_library(i, sentence);
  }

  // Libraries of headers have functions that this program never calls: only a call stops, with the sentence.
  // Of a type that they name elsewhere, nothing but its name is known.
  void unknown_in_library(size_t i, const std::string& sentence) {
    size_t body = kNone;  // the outermost that it is in
    for (size_t open = tokens_[i].parent; open != kNone; open = tokens_[open].parent)
      if (text(open) == "{" && match(open) != kNone && is_body_of_function(open)) body = open;
    if (body != kNone) {
      remove(body + 1, match(body));
      becomes_[body] += " ::emulator::program::stop(R\"(" + sentence_at(i, sentence) + ")\"); ";
      return;
    }
    opaque_types_.insert(text(i));
    known_.insert(text(i));
    size_t end = i, equals = kNone;
    for (; end < tokens_.size() && !(text(end) == ";" && tokens_[end].parent == tokens_[i].parent); ++end)
      if (text(end) == "=" && tokens_[end].parent == tokens_[i].parent) equals = std::min(equals, end);
    if (equals != kNone) remove(equals, end);
  }
  void remove(size_t begin, size_t end) {
    for (const size_t i : range(begin, end)) {
      becomes_[i] = "";
      is_removed_[i] = true;
    }
  }
  // In front of it stands a parameter list.
  bool is_body_of_function(size_t brace) const {
    size_t i = brace;
    while (i > 0 && !in(text(i - 1), {";", "{", "}"})) {
      --i;
      if (text(i) == ")" && match(i) != kNone) {
        i = match(i);
        if (is_name(i - 1) && !in(text(i - 1), {"alignas", "__attribute__", "requires"})) return true;
      }
    }
    return false;
  }

  // ---------------------------------------------------------------- __global__
  // The function behind this attribute: "space::function". None for what cannot be named at the end of the
  // file.
  std::string declared_behind(size_t attribute) const {
    size_t i = behind_attribute(tokens_[tokens_[attribute].parent].parent - 1);
    while (i < tokens_.size() && !in(text(i), {";", "{", "}"})) {
      const bool is_specifier = text(i) == "(" && text(i - 1).starts_with("__");  // __cluster_dims__(2)
      if (text(i) == "(" && (!is_specifier || match(i) == kNone)) break;
      i = is_specifier ? match(i) + 1 : std::max(behind_attribute(i), i + 1);
    }
    if (text(i) != "(" || !is_name(i - 1)) return "";
    std::string name(text(i - 1));
    for (size_t open = tokens_[i].parent; open != kNone; open = tokens_[open].parent) {
      if (!is_of_namespace(open)) return "";
      std::string space;  // of `namespace a::b {`; empty where it has no name, and of extern "C"
      for (size_t k = open - 1; is_name(k) || text(k) == "::"; --k) {
        if (text(k) == "namespace") break;
        space.insert(0, text(k));
      }
      if (!space.empty()) name.insert(0, space + "::");
    }
    return name;
  }

  // ---------------------------------------------------------------- kernel<<<grid, block>>>(arguments)
  // Formatters that do not know CUDA write << <. Of operators, operator<< <T> alone has such a sequence.
  bool is_launch(size_t i) const {
    return is_shift_left(i) && text(i + 2) == "<" && text(i - 1) != "operator";
  }

  void launch(size_t open) {
    const size_t kernel = kernel_before(open);
    if (kernel == kNone) fail(open, "there is no kernel in front of <<<");
    std::vector<size_t> ends = ends_of_parts(open + 3, true);
    if (ends.empty()) ends = ends_of_parts(open + 3, false);
    if (ends.empty() || text(ends.back() + 3) != "(")
      fail(open,
           "a launch is kernel<<<grid, block, bytes, stream>>>(arguments), where bytes and stream may be "
           "missing");
    rewrite_launch(kernel, open, ends);
  }

  // The kernel's name moves into a lambda behind the configuration; all the rest stays where it is.
  void rewrite_launch(size_t kernel, size_t open, const std::vector<size_t>& ends) {
    const size_t close = ends.back(), arguments = close + 3;
    const std::string place =
        "{\"" + std::string(tokens_[kernel].file) + "\", " + std::to_string(tokens_[kernel].line) + "}";
    for (const size_t i : range(kernel, open + 3)) becomes_[i] = "";
    for (const size_t i : range(close, arguments)) becomes_[i] = "";
    becomes_[kernel] = "::emulator::program::launch(" + place + ", ";
    // dim3(grid), but dim3{2, 2} of {2, 2}
    const bool grid_has_braces = text(open + 3) == "{", block_has_braces = text(ends[0] + 1) == "{";
    becomes_[open] = grid_has_braces ? "dim3" : "dim3(";
    becomes_[ends[0]] = std::string(grid_has_braces ? "" : ")") + (block_has_braces ? ", dim3" : ", dim3(");
    becomes_[ends[1]].insert(0, block_has_braces ? "" : ")");
    const std::string missing[] = {", 0, nullptr", ", nullptr", ""};
    becomes_[close] += missing[ends.size() - 2] + ", " + lambda_of(kernel, open);
    becomes_[arguments] = text(arguments + 1) == ")" ? "" : ", ";
    pass_null_pointers(arguments);
  }

  // The host evaluates an expression, whose variables no kernel may read. A name may be that of a template or
  // of several functions: only the call tells which.
  std::string lambda_of(size_t kernel, size_t open) const {
    bool is_expression = in(text(open - 1), {")", "]"});
    for (size_t i = kernel; i < open; ++i)
      is_expression |= in(text(i), {".", "->"}) && tokens_[i].parent == tokens_[open].parent;
    const std::string written = joined(range(kernel, open));
    const std::string capture = is_expression ? "flashsteps_kernel = " + written : "=";
    const std::string called = is_expression ? "flashsteps_kernel" : written;
    return "[" + capture + "](auto... flashsteps_args) { " + called + "(flashsteps_args...); }";
  }

  // Where the kernel begins: ns::f<T>, (*pointer), table[i], object.pointer or pick<T>(n).
  size_t kernel_before(size_t end) const {
    for (size_t i = end - 1; i < tokens_.size();) {
      if (text(i) == ")") {  // of a call, or of an expression
        const size_t open = match(i);
        if (!is_name(open - 1) && !in(text(open - 1), {">", "]"})) return open;
        i = open - 1;
      } else if (text(i) == "]") {
        i = match(i) - 1;
      } else if (text(i) == ">") {
        i = template_arguments_before(i) - 1;
      } else if (!is_name(i)) {
        return kNone;
      } else {
        if (text(i - 1) == "template") --i;
        if (!in(text(i - 1), {"::", ".", "->"})) return i;
        const bool is_global = text(i - 1) == "::" && !is_name(i - 2) && text(i - 2) != ">";
        if (is_global) return i - 1;
        i -= 2;
      }
    }
    return kNone;
  }

  // The < of this >.
  size_t template_arguments_before(size_t close) const {
    int depth = 0;
    for (size_t i = close; i < tokens_.size(); --i) {
      if (in(text(i), {")", "]", "}"})) {
        i = match(i);
      } else if (in(text(i), {"(", "[", "{", ";"})) {
        return kNone;
      } else if (text(i) == ">") {
        ++depth;
      } else if (is_shift_left(i - 1)) {
        --i;
      } else if (text(i) == "<" && --depth == 0) {
        return i;
      }
    }
    return kNone;
  }

  // The commas behind the parts of a configuration and the first > of its >>>; none unless there are two to
  // four parts. Does a < behind a name begin template arguments, or is it "less than"? Without knowing the
  // names nobody can tell: the caller tries both.
  std::vector<size_t> ends_of_parts(size_t begin, bool templates) const {
    std::vector<size_t> ends;
    int depth = 0;
    for (size_t i = begin; i < tokens_.size(); ++i) {
      if (in(text(i), {")", "]", "}", ";"})) break;
      if (in(text(i), {"(", "[", "{"})) {
        if (match(i) == kNone) break;
        i = match(i);
      } else if (is_shift_left(i)) {
        ++i;
      } else if (text(i) == "<" && templates && is_name(i - 1)) {
        ++depth;
      } else if (text(i) == ">" && depth > 0) {
        --depth;
      } else if (text(i) == "," && depth == 0) {
        ends.push_back(i);
      } else if (text(i) == ">" && text(i + 1) == ">" && text(i + 2) == ">") {
        ends.push_back(i);
        if (ends.size() < 2 || ends.size() > 4) break;
        return ends;
      }
    }
    return {};
  }

  // NULL is an integer to a template, such as launch().
  void pass_null_pointers(size_t parenthesis) {
    for (size_t i = parenthesis + 1; i < tokens_.size() && i < match(parenthesis); ++i)
      if (text(i) == "__null" && tokens_[i].parent == parenthesis && in(text(i - 1), {"(", ","}) &&
          in(text(i + 1), {")", ","}))
        becomes_[i] = "nullptr";
  }

  // cudaLaunchKernel((void*)kernel, ...): without the cast, its type says what the arguments are.
  void take_kernel_itself(size_t function) {
    const size_t cast = function + 2, is_const = text(cast + 1) == "const" ? 1 : 0;
    const size_t close = cast + 3 + is_const;
    if (text(function + 1) != "(" || text(cast) != "(" || match(cast) != close) return;
    if (text(cast + 1 + is_const) != "void" || text(close - 1) != "*") return;
    for (const size_t i : range(cast, close + 1)) becomes_[i] = "";
  }

  // ---------------------------------------------------------------- __shared__
  struct Declaration {
    std::vector<size_t> all;         // its tokens, but for the semicolon
    std::vector<size_t> plain;       // those of its type and of its variables
    std::vector<size_t> alignments;  // those of each alignas(...)
    bool is_extern = false;
  };

  void shared(size_t marker) {
    const Declaration declaration = declaration_around(marker);
    if (declaration.is_extern) return dynamic_shared(marker, declaration);
    for (const size_t i : declaration.plain)
      if (text(i) == "=" && tokens_[i].parent == tokens_[marker].parent)
        fail(marker,
             "a __shared__ variable has no initialiser, let a thread write it in front of a __syncthreads()");
    is_in_function(marker) ? static_shared(marker, declaration) : shared_at_file_scope(marker, declaration);
  }

  // The declaration's variables become members of a struct, whose types and alignments say how each one is
  // laid out, and references to where they lie:
  //   struct flashsteps_shared_7 { float a[4], b; };
  //   struct flashsteps_shared_7_a { static constexpr const char* name() { return "a"; } };
  //   auto& a = ::emulator::program::shared<flashsteps_shared_7_a, 7, decltype(flashsteps_shared_7::a),
  //   ...>();
  void static_shared(size_t marker, const Declaration& declaration) {
    const std::vector<std::string> names = names_of(declaration);
    if (names.empty())
      fail(marker,
           "the emulator knows no __shared__ pointers to arrays or functions, declare a type for them");
    const std::string type = "flashsteps_shared_" + std::to_string(marker);
    for (const size_t i : declaration.alignments) becomes_[i] = "";
    for (const size_t i : declaration.all)
      if (text(i) == "static") becomes_[i] = "";
    becomes_[marker] = "";
    becomes_[declaration.all[0]].insert(0, "struct " + type + " { " + joined(declaration.alignments) + " ");
    std::string& end = becomes_[declaration.all.back() + 1];  // the semicolon
    end += " };";
    size_t place = marker;  // in the source
    for (const std::string& name : names) {
      const std::string its = type + "_" + name, member = type + "::" + name;
      end += " struct " + its + " { static constexpr const char* name() { return \"" + name + "\"; } };";
      end += " [[maybe_unused]] auto& " + name + " = ::emulator::program::shared<" + its + ", " +
             std::to_string(place++) + ", decltype(" + member + "), __alignof__(((" + type + "*)nullptr)->" +
             name + ")>();";
      capture_in_lambdas(declaration.all.back(), name);
    }
  }

  // In front of [, a comma or the end of the declaration; not what stands in <> or in brackets.
  std::vector<std::string> names_of(const Declaration& declaration) const {
    std::vector<std::string> names;
    const size_t parent = tokens_[declaration.all[0]].parent;
    int depth = 0;
    bool is_in_declarator = false;  // behind its name
    for (const size_t i : declaration.plain) {
      if (tokens_[i].parent != parent) continue;
      depth += text(i) == "<" ? 1 : text(i) == ">" ? -1 : 0;
      if (depth > 0) continue;
      if (text(i) == ",") is_in_declarator = false;
      if (is_in_declarator || !is_name(i)) continue;
      const size_t next = behind_attributes(i + 1);
      if (!in(text(next), {"[", ",", ";"})) continue;
      names.emplace_back(text(i));
      is_in_declarator = true;
    }
    return names;
  }
  size_t behind_attributes(size_t i) const {
    for (size_t end; (end = behind_attribute(i)) != i;) i = end;
    return i;
  }

  // No lambda captures a variable that is static, but a reference it must.
  void capture_in_lambdas(size_t begin, const std::string& name) {
    const size_t block = tokens_[begin].parent;
    const size_t block_end = block == kNone ? tokens_.size() : match(block);
    for (size_t i = begin; i < std::min(block_end, tokens_.size()); ++i) {
      const bool is_lambda = text(i) == "[" && text(i + 1) != "[" && text(i - 1) != "[" &&
                             match(i) != kNone && !is_name(i - 1) && !in(text(i - 1), {")", "]"}) &&
                             text(i + 1) != "&";
      if (!is_lambda) continue;
      const size_t body = body_behind(match(i));
      if (text(body) != "{" || match(body) == kNone) continue;
      bool is_used = false;
      for (size_t j = body; j < match(body); ++j) is_used |= text(j) == name && text(j - 1) != ".";
      if (!is_used) continue;
      const bool is_empty = match(i) == i + 1;
      becomes_[match(i)].insert(0, (is_empty ? "&" : ", &") + name);
    }
  }

  // The next { behind this, but for what stands in parentheses, or the ; in front of it.
  size_t body_behind(size_t i) const {
    while (++i < tokens_.size() && !in(text(i), {"{", ";", ")"}))
      if (text(i) == "(" && match(i) != kNone) i = match(i);
    return i;
  }

  // There it lies with the host's thread-local variables.
  void shared_at_file_scope(size_t marker, const Declaration& declaration) {
    // g++ takes `static` once, and alignas in front of all other specifiers.
    for (const size_t i : declaration.all)
      if (text(i) == "static") becomes_[i] = "";
    for (const size_t i : declaration.alignments) becomes_[i] = "";
    becomes_[marker] = "static constinit thread_local";
    const std::string alignments = joined(declaration.alignments);
    becomes_[declaration.all[0]].insert(0, alignments + (alignments.empty() ? "" : " "));
  }

  // The memory that the launch asks for: a pointer to it, as an array of unknown length would become anyway.
  void dynamic_shared(size_t marker, const Declaration& declaration) {
    const std::vector<size_t>& words = declaration.plain;
    const auto bracket = std::ranges::find(words, "[", [&](size_t i) { return text(i); });
    const bool is_object = is_in_function(marker) && is_one_object(words);
    if (!is_object && (bracket - words.begin() < 2 || words.end() - bracket < 2 || text(bracket[1]) != "]" ||
                       !is_name(bracket[-1]) || (words.end() - bracket > 2 && text(bracket[2]) != "[")))
      fail(marker, "dynamic shared memory is one array of unknown length: extern __shared__ float name[];");
    const auto name_at = is_object ? words.end() - 1 : bracket - 1;
    const std::string type = joined({words.begin(), name_at}), name(text(*name_at));
    const std::string row = is_object ? "" : joined({bracket + 2, words.end()});  // [33] of name[][33]
    const auto pointer_to = [&](const std::string& what) {
      return type + (row.empty() ? "*" + what : " (*" + what + ")" + row);
    };
    std::string pointer = pointer_to(" const " + name);
    // With one element or object, it says how the memory is aligned.
    const std::string array = "flashsteps_dynamic_" + std::to_string(marker);
    std::string first = "struct " + array + " { " + joined(declaration.alignments) + " ";
    for (const size_t i : declaration.all) {
      const bool is_specifier = in(text(i), {"extern", "static", "__flashsteps_shared__"});
      if (is_specifier || std::ranges::count(declaration.alignments, i) > 0) continue;
      first += std::string(text(i)) + (!is_object && i == *bracket ? "1"
                                       : in(text(i), {"[", "::"})  ? ""
                                                                   : " ");
    }
    first += "; };";
    const std::string memory =
        "reinterpret_cast<" + pointer_to("") + ">(::emulator::program::dynamic<" + array + ">())";
    if (is_object) {
      pointer = first + " " + type + "& " + name + " = *" + memory;
    } else if (is_in_function(marker)) {
      pointer = first + " " + pointer + " = " + memory;
    } else {  // there no initialiser would find the running CTA's: it is the same variable by another name
      pointer = "extern constinit thread_local " + pointer +
                " __asm__(\"_ZN8emulator4cuda4smemE\") __attribute__((tls_model(\"initial-exec\"))); " +
                first + " static const ::emulator::program::DynamicAlignment " + array +
                "_alignment(alignof(" + array + "))";
    }
    for (const size_t i : declaration.all) becomes_[i] = "";
    becomes_[declaration.all[0]] = pointer;
  }

  // ---------------------------------------------------------------- __cluster_dims__(x, y, z)
  // Its numbers move into the kernel, where who launches it finds them. A declaration needs none.
  void cluster_dims(size_t marker) {
    const size_t open = marker + 1, close = match(open);
    if (text(open) != "(" || close == kNone) return;
    std::string dims;
    for (const size_t i : range(open + 1, close)) dims += std::string(text(i)) + " ";
    for (const size_t i : range(marker, close + 1)) becomes_[i] = "";
    const size_t body = body_behind(close);
    if (text(body) == "{") becomes_[body] += " ::emulator::program::cluster_dims<" + dims + ">();";
  }

  // extern __shared__ Tiles<64, 32> tiles; is no array.
  bool is_one_object(const std::vector<size_t>& words) const {
    int depth = 0;
    for (const size_t i : words) {
      depth += (text(i) == "<") - (text(i) == ">");
      if (text(i) == "[" || (text(i) == "," && depth == 0)) return false;
    }
    return words.size() >= 2 && is_name(words.back());
  }

  Declaration declaration_around(size_t marker) const {
    Declaration found;
    size_t i = declaration_begin(marker);
    while (i < tokens_.size() && text(i) != ";") {
      const bool is_body = text(i) == "{" && match(i) != kNone;  // of a struct without a name
      const size_t end = is_body ? match(i) + 1 : std::max(behind_attribute(i), i + 1);
      const bool is_plain =
          !is_body && end == i + 1 && !in(text(i), {"extern", "static", "__flashsteps_shared__"});
      found.is_extern = found.is_extern || text(i) == "extern";
      if (is_plain) found.plain.push_back(i);
      for (const bool aligns = text(i) == "alignas"; i < end; ++i) {
        found.all.push_back(i);
        if (aligns) found.alignments.push_back(i);
      }
    }
    return found;
  }

  size_t declaration_begin(size_t i) const {
    while (i > 0 && !in(text(i - 1), {";", "{", "}", ":", "("})) {
      if (in(text(i - 1), {")", "]"})) {  // of an attribute, or of what stands in front of the declaration
        const size_t open = match(i - 1), attribute = text(i - 1) == "]" ? open : open - 1;
        if (behind_attribute(attribute) != i) break;
        i = attribute;
      } else {
        --i;
      }
    }
    return i;
  }

  // `i` itself where no attribute begins.
  size_t behind_attribute(size_t i) const {
    const bool has_name = in(text(i), {"alignas", "__attribute__"});
    if (!has_name && (text(i) != "[" || text(i + 1) != "[")) return i;
    const size_t close = match(has_name ? i + 1 : i);
    return close == kNone ? i : close + 1;
  }

  bool is_in_attribute(size_t i) const {
    return is_inside(i, [&](size_t bracket) { return text(bracket - 1) == "__attribute__"; });
  }
  bool is_in_function(size_t i) const {
    return is_inside(i, [&](size_t bracket) { return !is_of_namespace(bracket); });
  }
  bool is_inside(size_t i, const std::function<bool(size_t)>& such_a_bracket) const {
    for (size_t open = tokens_[i].parent; open != kNone; open = tokens_[open].parent)
      if (such_a_bracket(open)) return true;
    return false;
  }

  // namespace a::b { or extern "C" {
  bool is_of_namespace(size_t brace) const {
    if (text(brace - 1).starts_with('"')) return text(brace - 2) == "extern";
    size_t i = brace - 1;
    while (text(i) != "namespace" && (is_name(i) || text(i) == "::")) --i;
    return text(i) == "namespace";
  }

  // ---------------------------------------------------------------- asm
  // asm volatile("text" : outputs : inputs : clobbers). Without any text or operands it only keeps the
  // compiler from moving accesses, on every machine.
  void inline_ptx(size_t word) {
    size_t open = word + 1;
    while (is_name(open)) ++open;  // volatile
    const size_t close = match(open);
    if (text(open) != "(" || close == kNone) return;
    size_t i = open + 1;
    AsmStatement statement;
    for (; text(i).ends_with('"'); ++i) statement.text += content(text(i));
    for (int section = 0; i < close && section < 3; ++i) {
      if (text(i) == "::") {
        section += 2;
      } else if (text(i) == ":") {
        ++section;
      } else if (text(i) == "(") {  // an operand, which may have ? : and :: of its own
        const bool has_name = text(i - 2) == "]";
        const size_t end = std::min(match(i), close);
        statement.operands.push_back(
            {std::string(has_name ? text(i - 3) : ""), joined(range(i + 1, end)), section == 1});
        i = end;
      }
    }
    if (statement.text.empty() && statement.operands.empty()) return;
    std::string translated;
    try {
      translated = translate_ptx(statement);
    } catch (const PtxError& error) {
      // Libraries of headers have instructions that no kernel of this program executes.
      if (tokens_[word].file == main_file_) fail(word, error.what());
      translated = "::emulator::program::stop(R\"ptx(" + sentence_at(word, error.what()) + ")ptx\")";
    }
    for (const size_t token : range(word, close + 1)) becomes_[token] = "";
    becomes_[word] = translated.empty() ? "__asm__ __volatile__(\"\" : : : \"memory\")" : translated;
  }

  // What a literal says.
  static std::string content(std::string_view literal) {
    const size_t quote = literal.find('"');
    if (quote > 0 && literal[quote - 1] == 'R') {
      const size_t begin = literal.find('(') + 1;
      return std::string(literal.substr(begin, literal.rfind(')') - begin));
    }
    std::string text;
    for (size_t i = quote + 1; i + 1 < literal.size(); ++i) {
      if (literal[i] != '\\') {
        text += literal[i];
      } else if (const char escaped = literal[++i]; escaped != '\n') {
        text += escaped == 'n' ? '\n' : escaped == 't' || escaped == 'r' ? ' ' : escaped;
      }
    }
    return text;
  }

  std::vector<Token> tokens_;
  std::set<std::string_view> known_, opaque_types_;  // names of CUDA's
  std::string_view main_file_;
  std::vector<std::string> becomes_;  // what stands in each one's place
  std::vector<bool> is_removed_;
};

}  // namespace

std::string translate(std::string_view preprocessed,
                      const std::function<bool(std::string_view path)>& is_own) {
  Scanner scanner(preprocessed, is_own);
  std::vector<Token> tokens = scanner.tokens();
  return Translator(std::move(tokens), scanner.known()).translate(preprocessed);
}

std::vector<std::string> find_kernels(std::string_view preprocessed,
                                      const std::function<bool(std::string_view path)>& is_own) {
  return Translator(Scanner(preprocessed, is_own).tokens(), {}).kernels();
}

}  // namespace flashsteps
