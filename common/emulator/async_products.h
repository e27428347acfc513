// The wgmmas of a CTA that are under way, and the registers that they use.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "common/emulator/core.h"
#include "common/emulator/register_pool.h"
#include "common/emulator/shared_races.h"

namespace emulator {

// An operand in shared memory, as its descriptor says.
struct SmemOperand {
  uintptr_t start = 0;
  size_t leading = 0, stride = 0;  // bytes from panel to panel, and from 8 rows to the next 8
  int row_bytes = 0;               // of its tile: as many as its swizzle is wide, and 16 without one
  bool rows_along_k = false;       // otherwise along M or N: a row of the tile has one k
  int element_bytes = 0;

  // The elements of 16 bytes that begin at (mn, k).
  uintptr_t chunk(int mn, int k) const;
  int chunk_elements() const { return 16 / element_bytes; }
  int swizzle_bytes() const { return row_bytes == 16 ? 0 : row_bytes; }
};

// What one warp does of a wgmma: 16 rows of its 64.
struct Product {
  int warp = -1;
  int num_acc = 0;  // registers of a lane
  WgmmaKind kind = {};
  std::array<void*, kWarpSize> acc = {};  // a lane's registers, one after the other
  std::vector<void*> scattered = {};      // if they are not: all registers of lane 0, of lane 1, ...
  bool a_in_registers = false;
  bool watches_a = true;  // A's registers are in use until the wait
  std::array<const uint32_t*, kWarpSize> a_registers = {};
  std::array<std::array<uint32_t, 4>, kWarpSize> a_values = {};
  SmemOperand a, b;
  Location at = {};
  Site site = 0;
  unsigned group = 0;            // how many groups its warp had committed before it
  SharedRaces::Time issued = 0;  // only with the race detector
  bool done = false;

  int num_columns() const { return (kind.fp16_sums ? 4 : 2) * num_acc; }
  // A number of a lane's accumulator, of which two of 16 bits share a register.
  template <typename T>
  T& element(int lane, int i) const {
    constexpr int PER_REGISTER = sizeof(uint32_t) / sizeof(T);
    if (scattered.empty()) return static_cast<T*>(acc[size_t(lane)])[i];
    return static_cast<T*>(scattered[size_t(lane * num_acc + i / PER_REGISTER)])[i % PER_REGISTER];
  }
};

// The four warps of a warpgroup execute the same instructions, but need not do so at the same time. Each
// warp's products are carried out in order: when they are issued, when a warp waits for them, or in between.
//
// A wgmma is the warpgroup's, and so is the group that it is in: a wait of one warp returns when all four
// have executed the group's wgmmas, and all of their parts are complete. So the hardware does
// ("warpgroup_wait, after a late warp" in conformance_sm90a.cu), and in PTX's words wgmma.commit_group
// "creates a new wgmma-group per warpgroup".
//
// Registers are variables on a thread's stack. From its first wgmma on, a thread's accesses to its stack are
// looked at: to registers in use they are a bug, others are remembered until the next fence.
class AsyncProducts {
 public:
  void start_cta();

  // These by all lanes of the running warp together.
  void fence(Location at);
  void issue(Product product, uint64_t a, uint64_t b);
  void commit(Location at);
  // The warp goes on when has_waited(); until then its threads are in State::kWgmmas.
  void begin_wait(unsigned pending_groups, Location at);
  bool has_waited(int warp) const { return !warps_[size_t(warp)].waits; }
  std::string describe_wait(const Fiber& fiber) const;

  // By the running thread, which has executed one of the above: a plain access to its stack.
  void register_access(uintptr_t address, size_t bytes, bool write, Site site);

  // A moment at which products may be done, as options.async wants.
  void pass_moment() {
    if (num_on_way_ > 0 && cta->options.async == AsyncMode::kRandom && cta->random.one_in(16)) finish_some();
  }
  void check_exit(const Fiber& who);  // of a thread

 private:
  // An instruction that all warps of a warpgroup must execute.
  struct Instruction {
    const char* op;
    Location at;
    uint64_t operands[3];
    bool is_same(const Instruction& other) const;
  };
  struct Group {
    std::deque<Instruction> executed;  // by the warp that is ahead, and not yet by all
    size_t passed = 0;                 // so many have been taken off in front
    std::array<size_t, kWarpsPerGroup> next = {};
  };
  struct Warp {
    std::vector<Product> products;             // that it has not waited for, the oldest first
    unsigned committed = 0;                    // groups
    std::vector<SharedRaces::Time> issued_by;  // each of them the latest product then
    bool fenced = false;
    bool waits = false;
    unsigned wanted = 0;  // so many groups must be complete
    Location at = {};     // of that wait
  };
  struct InUse {
    uintptr_t begin, end;
    bool accumulator;
    unsigned group;
    Location at;
    bool overlaps(uintptr_t address, size_t bytes) const { return address < end && begin < address + bytes; }
  };
  struct Touch {
    uintptr_t address;
    uint32_t bytes : 31;
    uint32_t write : 1;
    Site site;
    bool is_like(const Touch& other) const {
      return address == other.address && bytes == other.bytes && write == other.write;
    }
  };
  struct Lane {
    std::vector<InUse> in_use;
    std::vector<Touch> touched;           // since the last fence
    std::array<uint32_t, 64> found_at{};  // where in `touched` an address was put last, if it is still there
    size_t room = 4096;
  };

  Lane& lane_of(const Fiber& who) { return lanes_[size_t(who.warp * kWarpSize + who.lane)]; }
  void meet(const Instruction& instruction);
  void end_waits(int group);
  void end_wait(int warp);
  void check_nobody_missing(int group_index) const;
  void use_registers(const Product& product, int lane, const void* begin, size_t bytes, bool accumulator);
  void finish(Product& product);
  void finish_some();

  std::array<Warp, kMaxWarps> warps_;
  std::array<Group, kMaxWarps / kWarpsPerGroup> groups_;
  std::vector<Lane> lanes_;
  size_t num_on_way_ = 0;
};

}  // namespace emulator
