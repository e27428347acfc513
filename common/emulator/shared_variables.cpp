#include "common/emulator/shared_variables.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "common/emulator/cluster_state.h"
#include "common/emulator/core.h"
#include "common/emulator/shared_layout.h"
#include "common/emulator/shared_races.h"

namespace emulator {
namespace {

constexpr size_t kMaxStaticBytes = 48 << 10;

// Of the namespace's own arrays, whose kernels nobody knows.
size_t dynamic_alignment = 16;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// ---- What refers to what, in the module that kernels are part of. The linker keeps the relocations in it
// (--emit-relocs), and every function has a section of its own, so that each reference is one.

class References {
 public:
  References() {
    std::string path;
    std::pair<References*, std::string*> found{this, &path};
    dl_iterate_phdr(
        [](dl_phdr_info* module, size_t, void* opaque) {
          auto& [its, its_path] = *static_cast<std::pair<References*, std::string*>*>(opaque);
          if (!holds(*module, uintptr_t(&shared_variable))) return 0;
          its->base_ = module->dlpi_addr;
          *its_path = module->dlpi_name[0] != '\0' ? module->dlpi_name : "/proc/self/exe";
          return 1;
        },
        &found);
    std::ifstream file(path, std::ios::binary);
    file_.assign(std::istreambuf_iterator<char>(file), {});
    read();
    file_ = {};
  }

  // visit(address, size) for each symbol that these refer to, directly or not.
  template <typename Visit>
  void for_each_reached(const std::vector<uintptr_t>& roots, Visit visit) const {
    std::vector<bool> seen(symbols_.size());
    std::vector<size_t> open;
    const auto reach = [&](uintptr_t address) {
      const size_t symbol = symbol_at(address);
      if (symbol == symbols_.size() || seen[symbol]) return;
      seen[symbol] = true;
      open.push_back(symbol);
    };
    for (const uintptr_t root : roots) reach(root - base_);
    while (!open.empty()) {
      const Symbol symbol = symbols_[open.back()];
      open.pop_back();
      visit(base_ + symbol.begin, symbol.end - symbol.begin);
      auto edge = std::lower_bound(edges_.begin(), edges_.end(), Edge{symbol.begin, 0});
      for (; edge != edges_.end() && edge->from < symbol.end; ++edge) reach(edge->to);
    }
  }

 private:
  struct Symbol {
    uintptr_t begin, end;
    bool operator<(const Symbol& other) const { return begin < other.begin; }
  };
  struct Edge {
    uintptr_t from, to;
    bool operator<(const Edge& other) const { return from < other.from; }
  };

  static bool holds(const dl_phdr_info& module, uintptr_t address) {
    for (int i = 0; i < module.dlpi_phnum; ++i) {
      const auto& segment = module.dlpi_phdr[i];
      if (segment.p_type == PT_LOAD && address - (module.dlpi_addr + segment.p_vaddr) < segment.p_memsz)
        return true;
    }
    return false;
  }

  // Fewer where the file ends.
  template <typename T>
  std::vector<T> array(size_t at, size_t count) const {
    if (at > file_.size()) return {};
    std::vector<T> result(std::min(count, (file_.size() - at) / sizeof(T)));
    if (!result.empty()) std::memcpy(result.data(), file_.data() + at, result.size() * sizeof(T));
    return result;
  }

  void read() {
    const auto header = array<ElfW(Ehdr)>(0, 1);
    if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0) return;
    const auto sections = array<ElfW(Shdr)>(header[0].e_shoff, header[0].e_shnum);
    for (const ElfW(Shdr) & table : sections) {
      if (table.sh_type != SHT_SYMTAB) continue;
      const auto symbols = array<ElfW(Sym)>(table.sh_offset, table.sh_size / sizeof(ElfW(Sym)));
      for (const ElfW(Sym) & symbol : symbols) {
        const int type = symbol.st_info & 0xf;
        if ((type == STT_FUNC || type == STT_OBJECT) && symbol.st_size > 0)
          symbols_.push_back({symbol.st_value, symbol.st_value + symbol.st_size});
      }
      for (const ElfW(Shdr) & section : sections) {
        const bool is_kept = section.sh_type == SHT_RELA && section.sh_info < sections.size() &&
                             section.sh_link < sections.size() && &sections[section.sh_link] == &table &&
                             (sections[section.sh_info].sh_flags & SHF_ALLOC) != 0;
        if (is_kept) read_edges(section, symbols);
      }
    }
    std::sort(symbols_.begin(), symbols_.end());
    const auto same = [](const Symbol& a, const Symbol& b) { return a.begin == b.begin; };
    symbols_.erase(std::unique(symbols_.begin(), symbols_.end(), same), symbols_.end());
    std::sort(edges_.begin(), edges_.end());
  }

  void read_edges(const ElfW(Shdr) & section, const std::vector<ElfW(Sym)>& symbols) {
    for (const ElfW(Rela) & one :
         array<ElfW(Rela)>(section.sh_offset, section.sh_size / sizeof(ElfW(Rela)))) {
      const size_t symbol = ELF64_R_SYM(one.r_info);
      if (symbol == 0 || symbol >= symbols.size()) continue;
#ifdef __x86_64__
      // Relative to the instruction's end, which is mostly the end of these four bytes.
      const size_t beyond = ELF64_R_TYPE(one.r_info) == R_X86_64_64 ? 0 : 4;
#else
      const size_t beyond = 0;
#endif
      edges_.push_back({one.r_offset, symbols[symbol].st_value + uintptr_t(one.r_addend) + beyond});
    }
  }

  size_t symbol_at(uintptr_t address) const {
    const auto after = std::upper_bound(symbols_.begin(), symbols_.end(), Symbol{address, 0});
    const bool found = after != symbols_.begin() && address < (after - 1)->end;
    return found ? size_t(after - 1 - symbols_.begin()) : symbols_.size();
  }

  std::vector<char> file_;
  uintptr_t base_ = 0;
  std::vector<Symbol> symbols_;  // none if the file has been stripped
  std::vector<Edge> edges_;
};

template <typename T>
T* known_by_magic(uintptr_t address, size_t bytes) {
  const bool is_one = bytes == sizeof(T) && address % alignof(T) == 0 &&
                      std::memcmp(reinterpret_cast<void*>(address), &T::kMagic, sizeof(T::kMagic)) == 0;
  return is_one ? reinterpret_cast<T*>(address) : nullptr;
}

}  // namespace

KernelNeeds needs_of(const std::vector<uintptr_t>& roots) {
  static const References references;
  KernelNeeds found;
  references.for_each_reached(roots, [&](uintptr_t address, size_t bytes) {
    if (auto* const variable = known_by_magic<SharedVariable>(address, bytes); variable != nullptr)
      found.variables.push_back(variable);
    if (auto* const cluster = known_by_magic<ClusterDims>(address, bytes); cluster != nullptr)
      found.cluster = cluster;
  });
  std::sort(found.variables.begin(), found.variables.end(), [](const auto* a, const auto* b) {
    return std::pair(a->number, uintptr_t(a)) < std::pair(b->number, uintptr_t(b));
  });
  return found;
}

// ---- The layout

namespace {

uint64_t next_launch() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

}  // namespace

SharedLayout::SharedLayout(const std::vector<SharedVariable*>& variables, size_t dynamic_bytes)
    : launch_(next_launch()), dynamic_bytes_(dynamic_bytes) {
  size_t alignment = dynamic_alignment;
  for (SharedVariable* const variable : variables) {
    if (variable->bytes > 0) {
      add(*variable);
    } else {
      alignment = std::max(alignment, variable->alignment);
    }
  }
  dynamic_begin_ = round_up(bytes_, alignment);
  bytes_ = dynamic_begin_ + dynamic_bytes;
  if (const std::string why = too_much(); !why.empty()) throw Report(Bug::kLaunch, "cannot launch: " + why);
}

bool SharedLayout::has_room(size_t more) const {
  return static_bytes_ + more <= kMaxStaticBytes && bytes_ + more <= kMaxSmemBytes;
}

std::string SharedLayout::too_much() const {
  if (has_room()) return "";
  std::string text;
  for (const auto& [offset, variable] : places_) {
    text += std::string(text.empty() ? "" : ", ") + variable->name + " of " + std::to_string(variable->bytes);
  }
  if (static_bytes_ > kMaxStaticBytes)
    return "nvcc refuses this kernel: its __shared__ variables take " + std::to_string(static_bytes_) +
           " bytes, and " + std::to_string(kMaxStaticBytes) + " are the most. They are " + text;
  return "the kernel's __shared__ variables (" + text + ") and " + std::to_string(dynamic_bytes_) +
         " bytes of dynamic shared memory are more than the " + std::to_string(kMaxSmemBytes) +
         " that a CTA can have";
}

void SharedLayout::add(SharedVariable& variable) {
  const size_t offset = round_up(bytes_, variable.alignment);
  static_bytes_ += offset + variable.bytes - bytes_;
  bytes_ = offset + variable.bytes;
  places_.emplace_back(offset, &variable);
  variable.place = launch_ << kOffsetBits | offset;
}

bool SharedLayout::add_late(SharedVariable& variable) {
  const std::lock_guard lock(mutex_);
  if (has(variable)) return true;
  if (!has_room(round_up(bytes_, variable.alignment) + variable.bytes - bytes_)) return false;
  add(variable);
  return true;
}

std::string SharedLayout::describe(size_t offset) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, variable] : places_) {
    if (offset - begin >= variable->bytes) continue;
    const std::string rest = offset == begin ? "" : " + " + std::to_string(offset - begin) + " bytes";
    return "`" + std::string(variable->name) + "`" + rest;
  }
  const ptrdiff_t beyond = ptrdiff_t(offset - dynamic_begin_);
  return (beyond < 0 ? "smem - " : "smem + ") + std::to_string(std::abs(beyond));
}

void cover_layout(Cta& which) {
  const size_t bytes = which.launch->layout->bytes();
  if (bytes <= which.smem_bytes) return;
  const InCta there(which);
  std::memset(which.smem + which.smem_bytes, int(which.options.poison), bytes - which.smem_bytes);
  which.smem_bytes = bytes;
  which.races->cover_shared();
}

void* shared_variable(SharedVariable& variable) {
  SharedLayout& layout = *cta->launch->layout;
  const bool is_there =
      layout.has(variable) && layout.offset_of(variable) + variable.bytes <= cta->smem_bytes;
  if (!is_there) [[unlikely]] {
    const InRuntime in_runtime;  // what it allocates is not the kernel's
    if (!layout.add_late(variable)) {
      fail(Bug::kLaunch, *self) << "there is no room in shared memory for " << variable.name << " of "
                                << variable.bytes << " bytes";
    }
    cover_layout(*cta);
  }
  return cta->smem + layout.offset_of(variable);
}

void* dynamic_shared(SharedVariable&) { return cta->smem + cta->launch->layout->dynamic_begin(); }

program::DynamicAlignment::DynamicAlignment(size_t bytes) {
  dynamic_alignment = std::max(dynamic_alignment, bytes);
}

}  // namespace emulator
