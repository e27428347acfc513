// Global memory and access checks.
#include <cxxabi.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <new>

#include "common/emulator/cluster_state.h"
#include "common/emulator/core.h"
#include "common/emulator/headway.h"
#include "common/emulator/shared_layout.h"

namespace emulator {

constinit thread_local Windows windows EMULATOR_FAST_TLS;

namespace {

// ---- The registry

struct Registry {
  std::mutex mutex;
  std::multimap<uintptr_t, size_t> ranges;          // begin -> bytes
  std::map<void*, std::pair<void*, size_t>> owned;  // allocate()d -> its mapping
};

Registry& registry() {
  static Registry& the_registry = *new Registry;  // never destroyed, as in scheduler.cpp
  return the_registry;
}

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t page_bytes() {
  static const size_t bytes = size_t(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

void register_memory(void* memory, size_t bytes) {
  const std::lock_guard lock(registry().mutex);
  registry().ranges.emplace(uintptr_t(memory), bytes);
}

void unregister_memory(void* memory) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().ranges.find(uintptr_t(memory));
  if (found != registry().ranges.end()) registry().ranges.erase(found);
}

namespace {

void* allocate(size_t bytes, bool fill) {
  const size_t page = page_bytes();
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  const size_t usable = round_up(std::max<size_t>(bytes, 1), page);
  const size_t mapped = usable + 2 * page;
  void* mapping = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  char* memory = static_cast<char*>(mapping) + page;
  if (mprotect(memory, usable, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping, mapped);
    throw std::bad_alloc();
  }
  if (fill) {
    std::memset(memory, 0xff, usable);
  } else {
    madvise(memory, usable, MADV_NOHUGEPAGE);  // or a row that is touched would cost 2 MB
  }
  register_memory(memory, bytes);
  const std::lock_guard lock(registry().mutex);
  registry().owned[memory] = {mapping, mapped};
  return memory;
}

}  // namespace

void* allocate(size_t bytes) { return allocate(bytes, true); }
void* allocate_sparse(size_t bytes) { return allocate(bytes, false); }

void release(void* memory) {
  if (memory == nullptr) return;
  unregister_memory(memory);
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().owned.find(memory);
  if (found == registry().owned.end())
    throw std::runtime_error("emulator::release: not from emulator::allocate");
  munmap(found->second.first, found->second.second);
  registry().owned.erase(found);
}

void* map_zeros(size_t bytes, bool at_once) {
  const int pages = at_once ? MAP_POPULATE : MAP_NORESERVE;
  void* zeros = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | pages, -1, 0);
  if (zeros == MAP_FAILED) throw std::bad_alloc();
  if (!at_once) madvise(zeros, bytes, MADV_NOHUGEPAGE);  // or a row that is touched would cost 2 MB
  return zeros;
}

// ---- Access checks

const GlobalRange* find_range(uintptr_t address) {
  const std::vector<GlobalRange>& ranges = cta->launch->memory;
  auto after = std::upper_bound(ranges.begin(), ranges.end(), address,
                                [](uintptr_t a, const GlobalRange& range) { return a < range.begin; });
  return after == ranges.begin() ? nullptr : &*(after - 1);
}

namespace {

struct Extent {
  uintptr_t begin = 0;
  size_t bytes = 0;
  bool holds(uintptr_t address, size_t count) const {
    const uintptr_t offset = address - begin;
    return offset < bytes && count <= bytes - offset;
  }
  bool operator==(const Extent&) const = default;
};

// visit(segment, extent) for each of a module's segments.
template <typename Visit>
void for_each_segment(const dl_phdr_info& module, Visit visit) {
  for (int i = 0; i < module.dlpi_phnum; ++i) {
    const auto& segment = module.dlpi_phdr[i];
    const bool is_tls = segment.p_type == PT_TLS;
    const uintptr_t begin =
        is_tls ? uintptr_t(module.dlpi_tls_data) : uintptr_t(module.dlpi_addr + segment.p_vaddr);
    visit(segment, Extent{begin, size_t(segment.p_memsz)});
  }
}

// The module's segment that holds these bytes, empty if none does.
Extent loaded_at(const dl_phdr_info& module, uintptr_t address, size_t bytes) {
  Extent found;
  for_each_segment(module, [&](const auto& segment, const Extent& extent) {
    if (segment.p_type == PT_LOAD && extent.holds(address, bytes)) found = extent;
  });
  return found;
}

// visit(module) for the one that kernels are part of: the same as this function, as they are linked with it.
template <typename Visit>
void visit_own_module(Visit visit) {
  dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* opaque) {
        if (loaded_at(*module, uintptr_t(&check_alignment), 1).bytes == 0) return 0;
        (*static_cast<Visit*>(opaque))(*module);
        return 1;
      },
      &visit);
}

template <typename Visit>
void for_each_own_segment(Visit visit) {
  visit_own_module([&](const dl_phdr_info& module) { for_each_segment(module, visit); });
}

// Constants of the kernels lie here. Other modules have none, and a library that is loaded beside an
// allocation would hide accesses beyond its end.
bool is_program_data(uintptr_t address, size_t bytes) {
  static constinit thread_local Extent last;  // the loader's tables are slow to search
  if (last.holds(address, bytes)) return true;
  Extent found;
  visit_own_module([&](const dl_phdr_info& module) { found = loaded_at(module, address, bytes); });
  if (found.bytes == 0) return false;
  last = found;
  return true;
}

// The module's variables: those that are declared __device__, and the host's, which cannot be told apart.
std::vector<Extent> find_variables() {
  std::vector<Extent> variables;
  uintptr_t read_only_end = 0;  // of what is writable only while the program is loaded
  for_each_own_segment([&](const auto& segment, const Extent& extent) {
    if (segment.p_type == PT_LOAD && (segment.p_flags & PF_W) != 0) variables.push_back(extent);
    if (segment.p_type == PT_GNU_RELRO) read_only_end = round_up(extent.begin + extent.bytes, page_bytes());
  });
  for (Extent& extent : variables) {
    const uintptr_t end = extent.begin + extent.bytes;
    const bool begins_read_only = extent.begin < read_only_end && read_only_end <= end;
    if (begins_read_only) extent = {read_only_end, end - read_only_end};
  }
  return variables;
}

struct ThreadLocal {
  size_t offset, bytes;  // in its module's thread-local storage
  std::string name;      // mangled
  bool operator<(const ThreadLocal& other) const { return offset < other.offset; }
};

// Of the module, by offset: what its symbol table says. Empty if it has been stripped.
std::vector<ThreadLocal> find_thread_locals() {
  std::vector<ThreadLocal> found;
  std::string path;
  visit_own_module([&](const dl_phdr_info& module) {
    path = module.dlpi_name[0] != '\0' ? module.dlpi_name : "/proc/self/exe";
  });
  std::ifstream file(path, std::ios::binary);
  const auto read_array = [&](auto& array, size_t at) {
    file.seekg(std::streamoff(at));
    file.read(reinterpret_cast<char*>(array.data()), std::streamsize(array.size() * sizeof(array[0])));
  };
  std::vector<ElfW(Ehdr)> header(1);
  read_array(header, 0);
  if (!file || header[0].e_shentsize != sizeof(ElfW(Shdr))) return {};
  std::vector<ElfW(Shdr)> sections(header[0].e_shnum);
  read_array(sections, header[0].e_shoff);
  for (const ElfW(Shdr) & section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    std::vector<ElfW(Sym)> symbols(section.sh_size / sizeof(ElfW(Sym)));
    std::vector<char> names(sections[section.sh_link].sh_size);  // the last one is 0
    read_array(symbols, section.sh_offset);
    read_array(names, sections[section.sh_link].sh_offset);
    for (const ElfW(Sym) & symbol : symbols) {
      if ((symbol.st_info & 0xf) != STT_TLS || symbol.st_shndx == SHN_UNDEF) continue;
      if (file && symbol.st_name < names.size())
        found.push_back({size_t(symbol.st_value), size_t(symbol.st_size), &names[symbol.st_name]});
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string demangled(const std::string& name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  const std::string result = status == 0 ? text : name;
  std::free(text);
  return result;
}

// Static __shared__ variables are thread-local (see cuda.h): they lie in this host thread's block of their
// module's thread-local storage, between variables of the host's. Which bytes are a kernel's is known once
// one has touched them.
class StaticShared {
 public:
  StaticShared() {
    for_each_own_segment([&](const auto& segment, const Extent& extent) {
      if (segment.p_type == PT_TLS && extent.begin != 0) block_ = extent;
    });
    touched_.resize(block_.bytes);
  }
  const Extent& block() const { return block_; }

  void touch(uintptr_t address, size_t bytes) {
    for (uintptr_t i = address - block_.begin; bytes > 0; ++i, --bytes) {
      if (touched_[i] != 0) continue;
      touched_[i] = any_touched_ = 1;
      // Until now it was zero, unless the kernel wrote it in a way that no hook sees: by a call of memset().
      if (memory()[i] == 0) memory()[i] = uint8_t(cta->options.poison);
    }
  }

  // nvcc refuses a kernel that declares more. What counts is what the running CTA has touched something of.
  void check_size(uintptr_t address) {
    if (last_counted_.holds(address, 1)) return;
    static const std::vector<ThreadLocal> variables = find_thread_locals();
    counted_.resize(variables.size());
    const size_t offset = address - block_.begin;
    const auto after = std::upper_bound(variables.begin(), variables.end(), ThreadLocal{offset, 0, ""});
    if (after == variables.begin() || offset - (after - 1)->offset >= (after - 1)->bytes) return;
    const ThreadLocal& variable = *(after - 1);
    last_counted_ = {block_.begin + variable.offset, variable.bytes};
    uint64_t& counted = counted_[size_t(&variable - variables.data())];
    if (counted == num_ctas_) return;
    counted = num_ctas_;
    bytes_in_use_ += variable.bytes;
    if (bytes_in_use_ <= kMaxStaticSharedBytes) return;
    Failure failure = fail(Bug::kLaunch, *self);
    failure << "nvcc refuses this kernel: its __shared__ variables take " << bytes_in_use_ << " bytes, and "
            << kMaxStaticSharedBytes << " are the most. They are ";
    const char* separator = "";
    for (size_t i = 0; i < variables.size(); ++i) {
      if (counted_[i] != num_ctas_) continue;
      failure << separator << demangled(variables[i].name) << " of " << variables[i].bytes;
      separator = ", ";
    }
    failure << ". " << ReportWriter::Advice() << "Use "
            << word("smem of common/launch.h", "extern __shared__ memory")
            << ", of which a launch can have up to " << kMaxSmemBytes << " bytes";
  }

  void poison() {
    ++num_ctas_;
    bytes_in_use_ = 0;
    last_counted_ = {};
    if (any_touched_ == 0) return;
    for (size_t i = 0; i < block_.bytes; ++i) {
      if (touched_[i] != 0) memory()[i] = uint8_t(cta->options.poison);
    }
  }

 private:
  uint8_t* memory() { return reinterpret_cast<uint8_t*>(block_.begin); }

  static constexpr size_t kMaxStaticSharedBytes = 48 << 10;

  Extent block_;
  std::vector<uint8_t> touched_;  // per byte
  uint8_t any_touched_ = 0;
  uint64_t num_ctas_ = 0;          // that this host thread has begun
  size_t bytes_in_use_ = 0;        // of the variables that the running CTA has touched
  std::vector<uint64_t> counted_;  // per variable: in the CTA of which number
  Extent last_counted_;
};

StaticShared& static_shared() {
  static thread_local StaticShared its;
  return its;
}

// The one that holds all of these bytes.
const GlobalRange* find_range_of(uintptr_t address, size_t bytes) {
  const GlobalRange* range = find_range(address);
  const bool holds = range != nullptr && Extent{range->begin, range->bytes}.holds(address, bytes);
  return holds ? range : nullptr;
}

std::string describe_access(size_t bytes, bool write) {
  return std::string(write ? "write" : "read") + " of " + std::to_string(bytes) +
         (bytes == 1 ? " byte" : " bytes");
}

std::string describe_smem_offset(uintptr_t address) {
  const intptr_t offset = intptr_t(address - uintptr_t(cta->smem));
  if (cta->launch->layout != nullptr) return cta->launch->layout->describe(size_t(offset));
  return offset < 0 ? "smem - " + std::to_string(-offset) : "smem + " + std::to_string(offset);
}

// Beyond the shared memory that the launch asked for, in the space that is kept free around it.
bool is_near_smem(uintptr_t address) {
  return address - (uintptr_t(cta->smem) - kSmemGuardBytes) < kMaxSmemBytes + 2 * kSmemGuardBytes;
}

void remember_global(const GlobalRange& range) {
  const Options& options = cta->options;
  if (options.count || options.race_detector) return;  // then the hooks must come here every time
  windows.global[windows.oldest_global] = Window(range.begin, range.bytes);
  windows.oldest_global ^= 1;
}

}  // namespace

std::string describe_foreign_address(uintptr_t address) {
  const std::string description = describe_address(address);
  constexpr uintptr_t kNear = 1 << 20;
  if (address < 0x10000) return description + ", a null pointer";
  const GlobalRange* before = find_range(address);
  const GlobalRange* end = cta->launch->memory.data() + cta->launch->memory.size();
  const GlobalRange* next = before != nullptr ? before + 1 : cta->launch->memory.data();
  const auto allocation = [](const GlobalRange& range) {
    return "allocation of " + std::to_string(range.bytes) + " bytes";
  };
  if (before != nullptr && address < before->begin + before->bytes) {
    return description + ", which runs over the end of an " + allocation(*before);
  }
  const uintptr_t to_next = next != end ? next->begin - address : kNear;
  const uintptr_t distance = before != nullptr ? address - (before->begin + before->bytes) : kNear;
  if (distance < std::min(kNear, to_next)) {
    return description + ", " + std::to_string(distance) + " bytes after the end of an " +
           allocation(*before);
  }
  if (to_next < kNear) {
    return description + ", " + std::to_string(to_next) + " bytes before an " + allocation(*next);
  }
  return description + ", with no allocation near it";
}

std::vector<GlobalRange> global_memory() {
  static const std::vector<Extent> variables = find_variables();
  std::multimap<uintptr_t, size_t> ranges;
  for (const Extent& extent : variables) ranges.emplace(extent.begin, extent.bytes);
  {
    const std::lock_guard lock(registry().mutex);
    ranges.insert(registry().ranges.begin(), registry().ranges.end());
  }
  std::vector<GlobalRange> merged;
  for (const auto& [begin, bytes] : ranges) {
    if (!merged.empty() && begin < merged.back().begin + merged.back().bytes) {
      GlobalRange& last = merged.back();
      last.bytes = std::max(last.bytes, begin + bytes - last.begin);
      last.is_variable = false;  // somebody has registered a part of it
    } else {
      const bool is_variable = std::ranges::count(variables, Extent{begin, bytes}) > 0;
      merged.push_back({begin, bytes, is_variable});
    }
  }
  return merged;
}

uintptr_t static_shared_begin() { return static_shared().block().begin; }
size_t static_shared_bytes() { return static_shared().block().bytes; }
void poison_static_shared() { static_shared().poison(); }

bool is_global(uintptr_t address, size_t bytes) { return find_range_of(address, bytes) != nullptr; }

void check_previous_kernel(uintptr_t address, size_t bytes, bool write, const Place& place) {
  if (!cta->order.previous_runs) return;
  fail(rule_named("race-with-previous-kernel"), *self)
      << "race with the previous kernel on global memory at "
      << ReportWriter::Address{describe_address(address)} << ": " << describe_access(bytes, write) << " at "
      << place << ", and no thread of this CTA has called griddepcontrol_wait() before, so that kernel may "
      << "still run";
}

// Than in dynamic shared memory.
Space check_access_elsewhere(uintptr_t address, size_t bytes, bool write, const Place& place) {
  Cta& c = *cta;
  if (Extent{uintptr_t(self->context.stack), kStackBytes}.holds(address, bytes)) return Space::kPrivate;
  if (StaticShared& shared = static_shared(); shared.block().holds(address, bytes)) {
    if (!write && is_coordinate(address)) return Space::kPrivate;
    if (c.has_neighbours) {
      fail(Bug::kCluster, *self)
          << describe_access(bytes, write) << " at " << place
          << ": the emulator cannot tell the __shared__ variables of CTAs apart that run together. "
          << ReportWriter::Advice()
          << word("Let the kernel lay them out in smem", "Declare them in a function, and not at file scope");
    }
    shared.touch(address, bytes);
    shared.check_size(address);
    return Space::kShared;
  }
  if (const GlobalRange* range = find_range_of(address, bytes); range != nullptr) {
    if (range->is_variable && c.options.variables_are_constant) {
      if (!write) return Space::kGlobal;  // and not remembered: a write may follow
      fail(Bug::kVariable, *self)
          << describe_access(bytes, write) << " at " << place
          << ": a variable of the program. Two calls at a time, on two streams, would share it. What a call "
             "needs for itself is in AttentionCall::workspace and counters";
    }
    check_previous_kernel(address, bytes, write, place);
    note_headway(*range, address, write);
    remember_global(*range);
    return Space::kGlobal;
  }
  if (is_near_smem(address)) {
    const SharedLayout* const layout = c.launch->layout;
    const bool has_variables = layout != nullptr && layout->static_bytes() > 0;
    fail(Bug::kSharedOutOfBounds, *self)
        << "shared memory access out of bounds: " << describe_access(bytes, write) << " at "
        << ReportWriter::Address{describe_smem_offset(address)} << ", but the launch asked for "
        << c.launch->smem_bytes << " bytes"
        << (has_variables ? ", and the " + std::to_string(layout->static_bytes()) +
                                " of __shared__ variables lie in front of them"
                          : std::string())
        << ", at " << place;
  }
  if (c.has_neighbours && c.launch->program != nullptr) {
    if (Cta* const other = cta_with(address); other != nullptr) {
      cta_of_cluster(kind_of_access(write), other->rank, place.at);
      cover_layout(*other);
      if (address - uintptr_t(other->smem) + bytes <= other->smem_bytes) return Space::kCluster;
      fail(Bug::kSharedOutOfBounds, *self)
          << "shared memory access out of bounds: " << describe_access(bytes, write) << " at " << place
          << ", beyond the shared memory of " << describe_block(*other);
    }
  }
  if (!write) {
    if (Extent{uintptr_t(c.launch->arguments), c.launch->argument_bytes}.holds(address, bytes))
      return Space::kPrivate;
    if (is_program_data(address, bytes)) return Space::kPrivate;
  }
  fail(Bug::kGlobalOutOfBounds, *self)
      << "global memory access out of bounds: " << describe_access(bytes, write) << " at "
      << ReportWriter::Address{describe_foreign_address(address)} << ", at " << place;
}

void check_alignment(uintptr_t address, size_t bytes, bool write, const Place& place) {
  if (address % bytes == 0) return;
  fail(Bug::kMisaligned, *self) << "misaligned access: " << describe_access(bytes, write) << " at "
                                << ReportWriter::Address{is_near_smem(address) ? describe_smem_offset(address)
                                                                               : describe_address(address)}
                                << ", which is not a multiple of " << bytes << ", at " << place;
}

}  // namespace emulator
