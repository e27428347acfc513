#include "harness/emulate/ptx.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace flashsteps {
namespace {

// ---- What is known

#define AND "(|.and|.or|.xor)"
#define IN_CTA "<.shared|.shared::cta|.shared::cluster>"
#define RANK "<.1d|.2d|.3d|.4d|.5d>"
#define INTEGERS "(.u16|.s16|.u32|.s32|.u64|.s64)"
#define ALL_INTEGERS "(.u8|.s8|.u16|.s16|.u32|.s32|.u64|.s64)"
#define INTEGERS_FROM_32 "(.u32|.s32|.u64|.s64)"
#define BITS "(.b16|.b32|.b64)"
#define FLOATS "(.f32|.f64|.f16|.bf16|.f16x2|.bf16x2)"
#define HALVES "(.f16|.bf16|.f16x2|.bf16x2)"
#define IN_MEMORY "(.b8|.u8|.s8|.b16|.u16|.s16|.b32|.u32|.s32|.b64|.u64|.s64|.f32|.f64|.b128)"
#define VECTOR "<|.v2|.v4>"
#define SPACE "(|.global|.shared)<|::cta|::cluster>"
#define SCOPE "<|.cta|.cluster|.gpu|.sys>"
#define CACHE "<|.ca|.cg|.cs|.lu|.cv|.wb|.wt>"
#define L1 "<|.L1::evict_normal|.L1::evict_unchanged|.L1::evict_first|.L1::evict_last|.L1::no_allocate>"
#define L2 "<|.L2::evict_first|.L2::evict_last|.L2::evict_normal|.L2::cache_hint>"
#define L2_PREFETCH "<|.L2::64B|.L2::128B|.L2::256B>"
#define ORDER_AND_SPACE "(|.relaxed|.acquire|.release|.acq_rel)" SCOPE SPACE
#define ATOMIC "(atom|red)" ORDER_AND_SPACE "<|.L2::cache_hint>"
#define REDUCE_BULK "cp.reduce.async.bulk.global.shared<::cta>.bulk_group<|.L2::cache_hint>"

// clang-format off
#define N(K, COLUMNS) "|.m64n" COLUMNS K
#define WGMMA(K) "wgmma.mma_async.sync.aligned<.m64n8" K \
  N(K, "16") N(K, "24") N(K, "32") N(K, "40") N(K, "48") N(K, "56") N(K, "64") N(K, "72") N(K, "80") \
  N(K, "88") N(K, "96") N(K, "104") N(K, "112") N(K, "120") N(K, "128") N(K, "136") N(K, "144") N(K, "152") \
  N(K, "160") N(K, "168") N(K, "176") N(K, "184") N(K, "192") N(K, "200") N(K, "208") N(K, "216") \
  N(K, "224") N(K, "232") N(K, "240") N(K, "248") N(K, "256") ">"
// clang-format on

constexpr std::string_view kKnown[] = {
    // Registers, arithmetic and bits
    "mov(.pred|.b16|.u16|.s16|.b32|.u32|.s32|.b64|.u64|.s64|.f32|.f64|.b128)",
    "(add|sub)" INTEGERS,
    "(add|sub|mul)<|.rn><|.ftz>" FLOATS,
    "fma.rn<|.ftz>" FLOATS,
    "(min|max)" INTEGERS,
    "(min|max)<|.ftz>" FLOATS,
    "(min|max)<|.ftz>.NaN(.f32|.f16|.bf16|.f16x2|.bf16x2)",
    "(neg|abs)(.s16|.s32|.s64)",
    "(neg|abs)<|.ftz>" FLOATS,
    "mul(.lo|.hi)" INTEGERS,
    "mad(.lo|.hi)" INTEGERS,
    "(mul|mad).wide(.u16|.s16|.u32|.s32)",
    "(div|rem)" INTEGERS,
    "div(.full|.approx|.rn)<|.ftz>.f32",
    "div.rn.f64",
    "rcp<.approx|.rn><|.ftz>(.f32|.f64)",
    "(sqrt|rsqrt)<.approx|.rn><|.ftz>(.f32|.f64)",
    "(sin|cos|lg2).approx<|.ftz>.f32",
    "ex2.approx(|.ftz).f32",
    "ex2.approx<|.ftz>(.f16|.f16x2|.bf16|.bf16x2)",
    "tanh.approx(.f32|.f16|.f16x2|.bf16|.bf16x2)",
    "(and|or|xor)(.pred|.b16|.b32|.b64)",
    "not(.pred|.b16|.b32|.b64)",
    "shl" BITS,
    "shr(.b16|.b32|.b64|.u16|.s16|.u32|.s32|.u64|.s64)",
    "shf(.l|.r)(.wrap|.clamp).b32",
    "lop3.b32",
    "prmt.b32",
    "(popc|clz|brev)(.b32|.b64)",
    "(bfe|bfind)" INTEGERS_FROM_32,
    "bfi(.b32|.b64)",
    "selp(.b16|.b32|.b64|.u16|.s16|.u32|.s32|.u64|.s64|.f32|.f64)",
    "setp(.eq|.ne|.lt|.le|.gt|.ge)" AND INTEGERS,
    "setp(.eq|.ne)" AND BITS,
    "setp(.lo|.ls|.hi|.hs)" AND "(.u16|.u32|.u64)",
    "setp(.eq|.ne|.lt|.le|.gt|.ge|.equ|.neu|.ltu|.leu|.gtu|.geu|.num|.nan)" AND
    "<|.ftz>(.f32|.f64|.f16|.bf16)",

    // Conversions
    "cvt" ALL_INTEGERS ALL_INTEGERS,
    "cvt.sat" ALL_INTEGERS INTEGERS,
    "cvt.pack.sat(.u8|.s8).s32.b32",
    "cvt<|.rn>(.f16|.bf16|.f32|.f64)" ALL_INTEGERS,
    "cvt(.rni|.rzi|.rmi|.rpi)<|.ftz><|.sat>" ALL_INTEGERS "(.f16|.bf16|.f32|.f64)",
    "cvt(.rni|.rzi|.rmi|.rpi)<|.ftz>(.f32.f32|.f64.f64)",
    "cvt<|.ftz>.sat.f32.f32",
    "cvt<|.ftz>(.f32.f16|.f32.bf16|.f64.f16|.f64.f32)",
    "cvt<.rn><|.ftz>(.f16.f32|.bf16.f32|.f16.f64|.f32.f64|.f16x2.f32|.bf16x2.f32)",
    "cvt<.rn>.relu(.f16.f32|.bf16.f32|.f16x2.f32|.bf16x2.f32)",
    "cvt<.rn.satfinite>(.e4m3x2.f32|.e4m3x2.f16x2|.e5m2x2.f32|.e5m2x2.f16x2)",
    "cvt<.rn>(.f16x2.e4m3x2|.f16x2.e5m2x2)",
    "cvt(.rna|.rn).tf32.f32",
    "cvta.to(.shared|.global|.const|.local)(.u32|.u64)",
    "cvta(.shared|.global)(.u32|.u64)",
    "isspacep(.shared|.global)",

    // Memory
    "ld<|.weak>(|.volatile|.relaxed|.acquire)" SCOPE SPACE CACHE "<|.nc>" L1 L2 L2_PREFETCH VECTOR IN_MEMORY,
    "st<|.weak>(|.volatile|.relaxed|.release)" SCOPE SPACE CACHE L1 L2 VECTOR IN_MEMORY,
    ATOMIC ".add<|.noftz><|.v2|.v4|.v8>(.u32|.s32|.u64|.f32|.f64|.f16|.f16x2|.bf16|.bf16x2)",
    ATOMIC "(.min|.max)" INTEGERS_FROM_32,
    ATOMIC "(.exch|.and|.or|.xor)(.b32|.b64)",
    ATOMIC "(.inc|.dec).u32",
    "atom" ORDER_AND_SPACE ".cas(.b16|.b32|.b64)",
    "prefetch<|.global><.L1|.L2|.L2::evict_last|.L2::evict_normal>",
    "prefetchu.L1",
    "createpolicy<.cvt.L2>.b64",
    "createpolicy<.fractional|.range><|.global><.L2::evict_first|.L2::evict_last|.L2::evict_normal|"
    ".L2::evict_unchanged><|.L2::evict_first|.L2::evict_unchanged>.b64",

    // Lanes, warps and CTAs
    "shfl.sync(.idx|.up|.down|.bfly).b32",
    "vote.sync(.ballot.b32|.any.pred|.all.pred|.uni.pred)",
    "match(.any|.all).sync(.b32|.b64)",
    "redux.sync(.add|.min|.max)(.u32|.s32)",
    "redux.sync(.and|.or|.xor).b32",
    "activemask.b32",
    "elect.sync",
    "movmatrix.sync.aligned.m8n8.trans.b16",
    "bar.warp.sync",
    "(bar|barrier)<|.cta>(.sync|.arrive)<|.aligned>",
    "membar(.cta|.gl|.sys)",
    "fence<|.acq_rel|.sc|.acquire|.release>(.cta|.cluster|.gpu|.sys)",
    "nanosleep.u32",
    "trap",
    "brkpt",
    "griddepcontrol(.wait|.launch_dependents)",

    // Tensor cores of sm_80
    "(ldmatrix|stmatrix).sync.aligned<|.m8n8>(.x1|.x2|.x4)(|.trans).shared<|::cta>.b16",
    "mma.sync.aligned(.m16n8k16|.m16n8k8).row.col(.f32.f16.f16.f32|.f32.bf16.bf16.f32|.f16.f16.f16.f16)",
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32",
    "mma.sync.aligned(.m16n8k8|.m16n8k4).row.col.f32.tf32.tf32.f32",
    "mma.sync.aligned(.m16n8k32|.m16n8k16).row.col.s32(.s8|.u8)(.s8|.u8).s32",

    // Asynchronous copies of sm_80
    "cp.async(.ca|.cg).shared<|::cta>.global" L2 L2_PREFETCH,
    "cp.async(.commit_group|.wait_group|.wait_all)",
    "cp.async.mbarrier.arrive(|.noinc)" IN_CTA ".b64",

    // mbarriers, TMA and clusters of sm_90
    "mbarrier(.init|.inval)" IN_CTA ".b64",
    "mbarrier.expect_tx<|.relaxed><|.cta|.cluster>" IN_CTA ".b64",
    "mbarrier(.arrive|.arrive.expect_tx)<|.release|.relaxed><|.cta|.cluster>" IN_CTA ".b64",
    "mbarrier<.try_wait|.test_wait>(|.parity)<|.acquire|.relaxed><|.cta|.cluster>" IN_CTA ".b64",
    "fence.mbarrier_init<.release.cluster>",
    "fence.proxy.async<|.shared::cta|.shared::cluster>",
    "fence.proxy.async.global",
    "fence.proxy.tensormap::generic<.acquire|.release><.cta|.cluster|.gpu|.sys>",
    "tensormap.replace.tile(.global_address|.global_stride).shared<::cta>.b1024.b64",
    "tensormap.replace.tile.global_dim.shared<::cta>.b1024.b32",
    "cp.async.bulk.tensor" RANK
    ".shared<::cta|::cluster>.global<|.tile>.mbarrier::complete_tx::bytes"
    "(|.multicast::cluster)<|.L2::cache_hint>",
    "cp.async.bulk.tensor" RANK ".global.shared<::cta><|.tile>.bulk_group<|.L2::cache_hint>",
    "cp.async.bulk.shared<::cta|::cluster>.global.mbarrier::complete_tx::bytes(|.multicast::cluster)"
    "<|.L2::cache_hint>",
    "cp.async.bulk.global.shared<::cta>.bulk_group<|.L2::cache_hint>",
    REDUCE_BULK ".add<|.noftz>(.u32|.s32|.u64|.f32|.f64|.f16|.bf16)",
    REDUCE_BULK "(.min|.max)" INTEGERS_FROM_32,
    REDUCE_BULK "(.and|.or|.xor)(.b32|.b64)",
    REDUCE_BULK "(.inc|.dec).u32",
    "cp.reduce.async.bulk.tensor" RANK
    ".global.shared<::cta>(.add|.min|.max|.and|.or|.xor|.inc|.dec)<|.tile>.bulk_group<|.L2::cache_hint>",
    "cp.async.bulk.prefetch<|.tensor><|.1d|.2d|.3d|.4d|.5d>.L2.global<|.tile><|.L2::cache_hint>",
    "prefetch<|.const|.param>.tensormap",
    "cp.async.bulk(.commit_group|.wait_group|.wait_group.read)",
    "mapa.shared::cluster(.u32|.u64)",
    "mapa.u64",
    "barrier.cluster(.arrive|.wait)<|.release|.relaxed|.acquire><|.aligned>",

    // Tensor cores of sm_90a
    "wgmma(.fence|.commit_group|.wait_group).sync.aligned",
    WGMMA("k16") "(.f32.f16.f16|.f16.f16.f16|.f32.bf16.bf16)",
    WGMMA("k8") ".f32.tf32.tf32",
    WGMMA("k32") "(.f32.e4m3.e4m3|.f16.e4m3.e4m3)",
    "setmaxnreg(.inc|.dec).sync.aligned.u32",
};

constexpr std::string_view kSpecialRegisters[] = {
    "tid.x",
    "tid.y",
    "tid.z",
    "ntid.x",
    "ntid.y",
    "ntid.z",
    "ctaid.x",
    "ctaid.y",
    "ctaid.z",
    "nctaid.x",
    "nctaid.y",
    "nctaid.z",
    "laneid",
    "warpid",
    "nwarpid",
    "smid",
    "nsmid",
    "clock",
    "clock64",
    "globaltimer",
    "globaltimer_lo",
    "lanemask_eq",
    "lanemask_lt",
    "lanemask_le",
    "lanemask_gt",
    "lanemask_ge",
    "dynamic_smem_size",
    "cluster_ctarank",
    "cluster_nctarank",
    "cluster_ctaid.x",
    "cluster_ctaid.y",
    "cluster_ctaid.z",
    "cluster_nctaid.x",
    "cluster_nctaid.y",
    "cluster_nctaid.z",
    "clusterid.x",
    "clusterid.y",
    "clusterid.z",
    "nclusterid.x",
    "nclusterid.y",
    "nclusterid.z",
};

// "ld", ".shared", "::cta", ".u32"
using Modifiers = std::vector<std::string_view>;
Modifiers split(std::string_view opcode) {
  Modifiers all;
  while (!opcode.empty()) {
    size_t end = opcode.find_first_not_of(".:");
    end = std::min({opcode.find('.', end), opcode.find("::", end), opcode.size()});
    all.push_back(opcode.substr(0, end));
    opcode.remove_prefix(end);
  }
  return all;
}

// A choice of a pattern, or a modifier, which is a choice of one.
struct Part {
  std::vector<std::string_view> alternatives;
  bool counts;  // is part of the function's name
};
std::vector<Part> parts_of(std::string_view pattern) {
  std::vector<Part> parts;
  while (!pattern.empty()) {
    const bool is_choice = pattern[0] == '(' || pattern[0] == '<';
    const size_t end = is_choice ? pattern.find(pattern[0] == '(' ? ')' : '>') : pattern.find_first_of("(<");
    std::string_view text = pattern.substr(is_choice, end - is_choice);
    if (is_choice) {
      Part part{{}, pattern[0] == '('};
      for (size_t bar; (bar = text.find('|')) != text.npos; text.remove_prefix(bar + 1))
        part.alternatives.push_back(text.substr(0, bar));
      part.alternatives.push_back(text);
      parts.push_back(std::move(part));
    } else {
      for (const std::string_view modifier : split(text)) parts.push_back({{modifier}, true});
    }
    pattern.remove_prefix(end == pattern.npos ? pattern.size() : end + is_choice);
  }
  return parts;
}

// As it can be part of a C++ name.
std::string name_of(std::string_view opcode) {
  std::string name;
  for (const char c : opcode) {
    if (c != ':' || name.back() != '_') name += c == '.' || c == ':' ? '_' : c;
  }
  return name;
}

// .u32, .bf16x2, .e4m3
bool is_type(std::string_view modifier) {
  const size_t digit = modifier.find_first_of("0123456789");
  const std::string_view letters = modifier.substr(0, digit);
  constexpr std::string_view kLetters[] = {".u", ".s", ".b", ".f", ".bf", ".tf", ".e"};
  return digit != modifier.npos && std::ranges::find(kLetters, letters) != std::end(kLetters);
}

// The function of this opcode. ptxas takes modifiers in any order, and people use that; only types follow
// each other as the pattern says.
std::optional<std::string> match(const Modifiers& opcode, std::span<const Part> parts) {
  if (parts.empty()) return opcode.empty() ? std::optional<std::string>("") : std::nullopt;
  for (const std::string_view alternative : parts[0].alternatives) {
    const Modifiers wanted = split(alternative);
    const auto found = std::search(opcode.begin(), opcode.end(), wanted.begin(), wanted.end());
    if (found == opcode.end() && !wanted.empty()) continue;
    if (!wanted.empty() && is_type(wanted[0]) && std::any_of(opcode.begin(), found, is_type)) continue;
    Modifiers rest(opcode.begin(), found);
    rest.insert(rest.end(), found + std::ptrdiff_t(wanted.size()), opcode.end());
    const auto name = match(rest, parts.subspan(1));
    if (name) return (parts[0].counts ? std::string(alternative) : "") + *name;
  }
  return std::nullopt;
}

const std::vector<std::vector<Part>>& patterns() {
  static const std::vector<std::vector<Part>> all = [] {
    std::vector<std::vector<Part>> result;
    for (const std::string_view pattern : kKnown) result.push_back(parts_of(pattern));
    return result;
  }();
  return all;
}

std::optional<std::string> function_of(std::string_view opcode) {
  for (const std::vector<Part>& pattern : patterns()) {
    if (const auto its = match(split(opcode), pattern)) return name_of(*its);
  }
  return std::nullopt;
}

// ---- Words

struct Word {
  std::string text;  // of %%laneid, "%laneid"
  int operand = -1;  // of %3
  size_t at = 0;     // in the text of the statement
};

class Scanner {
 public:
  explicit Scanner(const AsmStatement& statement) : statement_(statement), text_(statement.text) {}

  std::vector<Word> words() {
    while (skip_space(), at_ < text_.size()) words_.push_back(next());
    return std::move(words_);
  }

 private:
  void skip_space() {
    for (;;) {
      while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
      const bool is_line = text_.compare(at_, 2, "//") == 0;
      if (!is_line && text_.compare(at_, 2, "/*") != 0) return;
      const size_t end = text_.find(is_line ? "\n" : "*/", at_ + 2);
      at_ = end == text_.npos ? text_.size() : end + (is_line ? 1 : 2);
    }
  }

  Word next() {
    Word word{.text = "", .at = at_};
    if (text_[at_] == '%' && at_ + 1 < text_.size()) {
      const char c = text_[at_ + 1];
      if (std::isdigit(static_cast<unsigned char>(c)) || c == '[') return operand();
      at_ += c == '%' ? 1 : 0;
      word.text = text_[at_++];
    }
    while (at_ < text_.size() && is_part_of_word(word.text)) {
      word.text += text_[at_++];
      if (text_.compare(at_, 2, "%=") == 0) {  // a number of this statement's own: the scope is enough
        word.text += "_";
        at_ += 2;
      }
    }
    if (word.text.empty()) word.text = text_[at_++];
    return word;
  }

  bool is_part_of_word(const std::string& so_far) const {
    const char c = text_[at_];
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '.') return true;
    if (c == ':') return !so_far.empty() && (text_.compare(at_, 2, "::") == 0 || so_far.back() == ':');
    // 1e-3
    const bool is_decimal = !so_far.empty() && std::isdigit(static_cast<unsigned char>(so_far[0])) &&
                            so_far.find_first_of("xXfFdD") == so_far.npos;
    return (c == '-' || c == '+') && is_decimal && (so_far.back() == 'e' || so_far.back() == 'E');
  }

  Word operand() {
    Word word{.text = "", .at = at_};
    const bool has_name = text_[++at_] == '[';
    const size_t begin = at_ + has_name;
    size_t end = has_name ? text_.find(']', begin) : begin;
    while (!has_name && end < text_.size() && std::isdigit(static_cast<unsigned char>(text_[end]))) ++end;
    const std::string name = text_.substr(begin, end - begin);
    at_ = std::min(end + has_name, text_.size());
    const auto& operands = statement_.operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (has_name ? operands[i].name == name : std::to_string(i) == name) word.operand = int(i);
    }
    word.text = has_name ? "%[" + name + "]" : "%" + name;
    if (word.operand < 0) throw PtxError("PTX: there is no operand " + word.text);
    return word;
  }

  const AsmStatement& statement_;
  const std::string& text_;
  size_t at_ = 0;
  std::vector<Word> words_;
};

// ---- Statements

const std::string kNamespace = "::emulator::ptx::";

class Translator {
 public:
  explicit Translator(const AsmStatement& statement)
      : statement_(statement), words_(Scanner(statement).words()) {}

  std::string translate() {
    if (words_.empty()) return "";
    std::string result = "do { constexpr auto flashsteps_at = ::emulator::Location::current(); ";
    for (size_t i = 0; i < statement_.operands.size(); ++i) {
      const AsmStatement::Operand& operand = statement_.operands[i];
      result += std::string(operand.is_output ? "auto&& " : "const auto ") + variable(int(i)) + " = (" +
                operand.expression + "); ";
    }
    while (at_ < words_.size()) {
      result += block();
      if (is("}")) fail_at(at_);
    }
    return result + "} while (false)";
  }

 private:
  static std::string variable(int operand) { return "flashsteps_" + std::to_string(operand); }

  const std::string& text(size_t i) const {
    static const std::string none;
    return i < words_.size() ? words_[i].text : none;
  }
  bool is(std::string_view word) const { return text(at_) == word; }
  bool take(std::string_view word) {
    if (!is(word)) return false;
    ++at_;
    return true;
  }

  // The instruction that begins there, in one line and without its semicolon.
  std::string instruction_at(size_t i) const {
    const size_t begin = i < words_.size() ? words_[i].at : statement_.text.size();
    std::string line;
    for (const char c : statement_.text.substr(begin, statement_.text.find(';', begin) - begin)) {
      const bool is_space = std::isspace(static_cast<unsigned char>(c));
      if (!is_space || (!line.empty() && line.back() != ' ')) line += is_space ? ' ' : c;
    }
    while (line.ends_with(' ')) line.pop_back();
    return line.substr(0, 60);
  }
  [[noreturn]] void fail_at(size_t i) const {
    throw PtxError("PTX: the emulator does not know `" + instruction_at(i) + "`");
  }

  // From here to its } or to the end. Declarations and labels move to the front, so that no jump crosses one.
  std::string block() {
    std::string labels, registers, body;
    declared_.emplace_back();
    while (at_ < words_.size() && !is("}")) {
      if (take("{")) {
        body += block();
        if (!take("}")) throw PtxError("PTX: a } is missing");
      } else if (take(";")) {
      } else if (is(".reg") || text(at_).starts_with(".reg.")) {
        registers += declaration();
      } else if (is(".pragma")) {
        while (at_ < words_.size() && !take(";")) ++at_;
      } else if (text(at_ + 1) == ":") {
        labels += "__label__ " + label(text(at_)) + "; ";
        body += label(text(at_)) + ":; ";
        at_ += 2;
      } else {
        body += instruction();
      }
    }
    declared_.pop_back();
    return "{ " + labels + registers + body + "} ";
  }

  static std::string label(const std::string& name) { return "flashsteps_label_" + name; }

  // .reg .b32 a, b; or .reg .pred p<4>;
  std::string declaration() {
    const size_t begin = at_++;
    const std::string its_type = text(begin) == ".reg" ? text(at_++) : text(begin).substr(4);  // of .reg.b32
    static const std::map<std::string, std::string, std::less<>> types = {
        {".pred", "bool"}, {".b8", "B8"},   {".u8", "B8"},   {".s8", "B8"},     {".b16", "B16"},
        {".u16", "B16"},   {".s16", "B16"}, {".f16", "B16"}, {".bf16", "B16"},  {".b32", "B32"},
        {".u32", "B32"},   {".s32", "B32"}, {".f32", "B32"}, {".f16x2", "B32"}, {".bf16x2", "B32"},
        {".b64", "B64"},   {".u64", "B64"}, {".s64", "B64"}, {".f64", "B64"},   {".b128", "B128"}};
    const auto type = types.find(its_type);
    if (type == types.end()) fail_at(begin);
    const bool is_predicate = type->second == "bool";
    const std::string cpp_type = is_predicate ? "bool" : kNamespace + type->second;
    std::string result;
    const auto declare = [&](const std::string& name) {
      declared_.back().insert(name);
      // Without a value yet: in every float type a NaN.
      result +=
          cpp_type + " " + register_name(name) + (is_predicate ? " = false; " : " = " + cpp_type + "(-1); ");
    };
    do {
      const std::string name = text(at_++);
      if (take("<")) {
        for (int i = 0, count = std::atoi(text(at_).c_str()); i < count; ++i)
          declare(name + std::to_string(i));
        ++at_;
        if (!take(">")) fail_at(begin);
      } else {
        declare(name);
      }
    } while (take(","));
    if (!take(";")) fail_at(begin);
    return result;
  }

  static std::string register_name(const std::string& name) {
    std::string result = "flashsteps_reg_";
    for (const char c : name) result += c == '%' ? '$' : c;
    return result;
  }

  std::string instruction() {
    const size_t begin = at_;
    std::string guard;
    if (take("@")) {
      const std::string negation = take("!") ? "!" : "";
      guard = "if (" + negation + kNamespace + "is_true(" + operand(begin) + ")) ";
    }
    const size_t opcode_at = at_;
    const std::string& opcode = text(at_++);
    if (opcode == "bra" || opcode == "bra.uni") {
      const std::string jump = guard + "goto " + label(text(at_++)) + "; ";
      if (!take(";")) fail_at(begin);
      return jump;
    }
    const std::optional<std::string> function = function_of(opcode);
    if (!function) {
      if (opcode.starts_with("tcgen05"))
        throw PtxError("PTX: tcgen05 is of Blackwell; the emulator knows the instructions up to sm_90a: `" +
                       instruction_at(opcode_at) + "`");
      fail_at(opcode_at);
    }
    std::string call = kNamespace + *function + "(flashsteps_at";
    while (at_ < words_.size() && !is(";") && !is("}")) {
      call += ", " + operand(begin);
      if (!take(",") && !take("|") && !is(";") && at_ < words_.size()) fail_at(begin);
    }
    take(";");
    return guard + call + "); ";
  }

  std::string operand(size_t instruction) {
    if (take("{")) return vector(instruction);
    if (take("[")) return address(instruction);
    if (take("!")) return "!" + kNamespace + "is_true(" + operand(instruction) + ")";
    if (at_ >= words_.size()) fail_at(instruction);
    if (is_constant()) return constant();
    const Word& word = words_[at_++];
    if (word.operand >= 0) return variable(word.operand);
    if (word.text == "_") return kNamespace + "Sink()";
    for (const std::set<std::string>& names : declared_) {
      if (names.contains(word.text)) return register_name(word.text);
    }
    if (word.text[0] == '%' &&
        std::ranges::find(kSpecialRegisters, word.text.substr(1)) != std::end(kSpecialRegisters))
      return kNamespace + "special_" + name_of(word.text.substr(1)) + "()";
    throw PtxError("PTX: the emulator does not know `" + word.text + "` in `" + instruction_at(instruction) +
                   "`");
  }

  // A number, (, or an operator in front of one of them.
  bool is_constant() const {
    const std::string& word = text(at_);
    if (words_[at_].operand >= 0) return false;
    const bool is_number = std::isdigit(static_cast<unsigned char>(word[word.size() > 1 && word[0] == '.']));
    return is_number || word == "(" || word == "-" || word == "~" || word == "WARP_SZ";
  }
  // An expression of constants, which C++ reads as PTX does.
  std::string constant() {
    constexpr std::string_view kOperators = "+*/<>&|^)";
    std::string result;
    for (int open = 0; at_ < words_.size(); ++at_) {
      open += is("(") - is(")");
      if (open < 0 || (!is_constant() && kOperators.find(text(at_)) == kOperators.npos)) break;
      result += is("WARP_SZ") ? "32" : literal(text(at_));
    }
    return result;
  }

  // 0f3F800000 and 0d... are the bits of a number.
  static std::string literal(const std::string& number) {
    const bool is_hex = number.size() > 2 && number[0] == '0';
    const std::string digits = is_hex ? number.substr(2) : "";
    if (is_hex && (number[1] == 'f' || number[1] == 'F')) return "::std::bit_cast<float>(0x" + digits + "u)";
    if (is_hex && (number[1] == 'd' || number[1] == 'D'))
      return "::std::bit_cast<double>(0x" + digits + "ull)";
    return number;
  }

  // {a, b}, behind its {
  std::string vector(size_t instruction) {
    std::string list;
    do list += (list.empty() ? "" : ", ") + operand(instruction);
    while (take(","));
    if (!take("}")) fail_at(instruction);
    return kNamespace + "vector(" + list + ")";
  }

  // [a], [a + 16], or [a, {c0, c1}], which is two arguments; behind its [
  std::string address(size_t instruction) {
    std::string result = kNamespace + "address(" + operand(instruction);
    while (is("+") || is("-")) {
      const std::string sign = text(at_++) == "-" ? ", -(" : ", (";
      result += sign + operand(instruction) + ")";
    }
    result += ")";
    if (take(",")) result += ", " + operand(instruction);
    if (!take("]")) fail_at(instruction);
    return result;
  }

  const AsmStatement& statement_;
  std::vector<Word> words_;
  size_t at_ = 0;
  std::vector<std::set<std::string>> declared_;  // registers, by block
};

}  // namespace

std::string translate_ptx(const AsmStatement& statement) { return Translator(statement).translate(); }

std::span<const std::string_view> known_ptx() { return kKnown; }

std::vector<std::string> ptx_functions() {
  std::set<std::string> names;
  for (const std::vector<Part>& pattern : patterns()) {
    std::vector<std::string> so_far{""};
    for (const Part& part : pattern) {
      if (!part.counts) continue;
      std::vector<std::string> longer;
      for (const std::string& name : so_far) {
        for (const std::string_view alternative : part.alternatives)
          longer.push_back(name + std::string(alternative));
      }
      so_far = std::move(longer);
    }
    for (const std::string& name : so_far) names.insert(name_of(name));
  }
  for (const std::string_view special : kSpecialRegisters) names.insert("special_" + name_of(special));
  return {names.begin(), names.end()};
}

}  // namespace flashsteps
