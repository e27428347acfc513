#include "common/emulator/wgmma.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <string>

#include "common/emulator/async_products.h"
#include "common/emulator/core.h"
#include "common/emulator/fragments.h"
#include "common/emulator/shared_races.h"
#include "common/emulator/tile_layouts.h"
#include "common/emulator/tracer.h"

namespace emulator {

// ---- Operands in shared memory

namespace {

constexpr int kDepthBytes = 32;   // of a product: k
constexpr int kRowsOfAWarp = 16;  // of A and acc
constexpr int kColumns = 8;       // of acc that are computed together

int first_row(int warp) { return warp % kWarpsPerGroup * kRowsOfAWarp; }

// visit(mn, k, address) for each chunk of these rows of A, or columns of B.
template <typename Visit>
void for_each_chunk(const SmemOperand& operand, int first, int count, Visit visit) {
  const int chunk = operand.chunk_elements(), depth = kDepthBytes / operand.element_bytes;
  const int mn_step = operand.rows_along_k ? 1 : chunk, k_step = operand.rows_along_k ? chunk : 1;
  for (int mn = first; mn < first + count; mn += mn_step) {
    for (int k = 0; k < depth; k += k_step) visit(mn, k, operand.chunk(mn, k));
  }
}

// What is read of an operand: by one warp a part of A's rows, but all of B's columns.
struct Part {
  const char* name;
  int first, count;
};

Failure refuse(Bug bug, Part part, Location at) {
  return Failure(bug, cta->fiber(cta->running_warp, 0), "wgmma", at,
                 std::string(", the descriptor of ") + part.name + ": ");
}

SmemOperand decode(uint64_t bits, bool mn_major, int element_bytes, Part part, Location at) {
  const auto field = [&](int first) { return size_t(bits >> first & 0x3fff) * 16; };
  if ((bits >> 46 & 0xffff) != 0) {
    refuse(Bug::kDescriptor, part, at)
        << "it has bits that make_smem_descriptor leaves 0. The emulator knows tiles that begin where their "
           "swizzle's pattern does";
  }
  const int mode = int(bits >> 62);
  const bool is_swizzled = mode != 0;
  const int row_bytes = is_swizzled ? 256 >> mode : int(kChunkBytes);
  const size_t pattern = 8 * size_t(row_bytes), start = field(0);
  // In shared_address()'s window, of which the first 18 bits are in a descriptor.
  const auto first = uintptr_t(own_shared_pointer(start));
  const SmemOperand operand{first, field(16), field(32), row_bytes, !mn_major, element_bytes};
  const bool is_in_smem = first - uintptr_t(cta->smem) < kMaxSmemBytes;
  if (is_swizzled && cta->launch->program == nullptr && start % pattern >= size_t(row_bytes)) {
    refuse(Bug::kDescriptor, part, at)
        << "it begins at " << describe_shared(first) << ", in row " << start % pattern / row_bytes
        << " of the swizzle's pattern, which starts over every " << pattern
        << " bytes. It must begin in row 0";
  }
  const int row_elements = row_bytes / element_bytes;
  const bool has_panels = mn_major && part.first + part.count > row_elements;
  for (const bool leading : {false, true}) {
    const size_t offset = leading ? operand.leading : operand.stride;
    if (!is_swizzled || (leading && !has_panels) || offset % pattern == 0) continue;
    refuse(Bug::kDescriptor, part, at)
        << (leading ? "the leading" : "the stride") << " byte offset " << offset
        << " is not a multiple of the swizzle's pattern, " << pattern << " bytes";
  }
  // In elements of a row.
  const int begins = int(start % row_bytes) / element_bytes;
  const int reads = mn_major ? part.first + part.count : kDepthBytes / element_bytes;
  if (begins != 0 && begins + reads > row_elements) {
    refuse(Bug::kDescriptor, part, at)
        << "it begins at column " << begins << " of a row of " << row_elements << ", and reads " << reads;
  }
  for_each_chunk(operand, part.first, part.count, [&](int mn, int k, uintptr_t address) {
    const uintptr_t offset = address - uintptr_t(cta->smem);
    if (is_in_smem ? offset + kChunkBytes <= cta->smem_bytes
                   : is_shared(reinterpret_cast<const void*>(address + kChunkBytes - 1)))
      return;
    refuse(Bug::kSharedOutOfBounds, part, at)
        << "element (" << mn << ", k = " << k << ") is at smem + " << offset << ", but the launch asked for "
        << cta->smem_bytes << " bytes";
  });
  return operand;
}

// Where a swizzled copy has brought the chunks, they must be those of a rectangle of its box. The rows or the
// panels may be of several boxes.
void check_layout(const SmemOperand& operand, Part part, Location at) {
  const int chunk_elements = operand.chunk_elements();
  TileChunk first;
  int row_0 = 0, column_0 = 0;  // in the box of `first`, of the operand's first chunk
  for_each_chunk(operand, part.first, part.count, [&](int mn, int k, uintptr_t address) {
    const TileChunk chunk = cta->layouts->at(address);
    if (chunk.column < 0) return;
    const int row = operand.rows_along_k ? mn - part.first : k;
    const int column = (operand.rows_along_k ? k : mn - part.first) / chunk_elements;
    const bool row_fits = chunk.row == row_0 + row, column_fits = chunk.column == column_0 + column;
    const bool other_box = chunk.load != first.load;
    const bool swizzle_fits = chunk.swizzle_bytes == operand.swizzle_bytes();
    if (swizzle_fits &&
        (first.column < 0 || (other_box ? row_fits || column_fits : row_fits && column_fits))) {
      if (other_box) {
        first = chunk;
        row_0 = chunk.row - row;
        column_0 = chunk.column - column;
      }
      return;
    }
    if (!swizzle_fits) {
      refuse(Bug::kSwizzle, part, at)
          << "its swizzle is " << operand.swizzle_bytes() << " bytes, but it reads what was copied at "
          << place_of(chunk.site()) << " with a swizzle of " << chunk.swizzle_bytes << " bytes";
    }
    refuse(Bug::kSwizzle, part, at) << "element (" << mn << ", k = " << k << ") should be in row "
                                    << row_0 + row << ", column " << (column_0 + column) * chunk_elements
                                    << " of the tile, but it reads what was copied at "
                                    << place_of(chunk.site()) << " with a swizzle of " << chunk.swizzle_bytes
                                    << " bytes there from row " << chunk.row << ", column "
                                    << chunk.column * chunk_elements << ". " << ReportWriter::Advice()
                                    << "Are its leading or stride byte offset wrong, is its major the "
                                       "wrong one, or was it advanced too "
                                       "far?";
  });
}

}  // namespace

uintptr_t SmemOperand::chunk(int mn, int k) const {
  const unsigned row = unsigned(rows_along_k ? mn : k);
  const unsigned byte = unsigned((rows_along_k ? k : mn) * element_bytes);  // of the row
  if (swizzle_bytes() == 0) {
    // Core matrices of 8 rows of 16 bytes. Leading is from one to the next along K, stride along M or N, in
    // both majors: so say CUTLASS's comments on its descriptors.
    const size_t along_row = rows_along_k ? leading : stride, down = rows_along_k ? stride : leading;
    return start + byte / kChunkBytes * along_row + row / 8 * down + row % 8 * kChunkBytes;
  }
  // Of a tile with rows along K the operand is one panel. A shift, since this is asked for each 16 bytes.
  const unsigned panel = rows_along_k ? 0 : byte >> std::countr_zero(unsigned(row_bytes));
  const size_t offset =
      panel * leading + (byte - panel * unsigned(row_bytes)) + row / 8 * stride + row % 8 * size_t(row_bytes);
  return swizzled(start + offset, row_bytes);
}

// ---- Products under way

void AsyncProducts::start_cta() {
  warps_.fill({});
  groups_.fill({});
  lanes_.assign(cta->fibers.size(), {});
  num_on_way_ = 0;
}

bool AsyncProducts::Instruction::is_same(const Instruction& other) const {
  return same_place(at, other.at) && std::strcmp(op, other.op) == 0 &&
         std::equal(std::begin(operands), std::end(operands), other.operands);
}

// The running warp executes its next one.
void AsyncProducts::meet(const Instruction& instruction) {
  const int warp = cta->running_warp, index = warp % kWarpsPerGroup;
  const auto refuse_warp = [&] {
    return Failure(Bug::kDivergence, cta->fiber(warp, 0), instruction.op, instruction.at);
  };
  if (warp - index + kWarpsPerGroup > cta->num_warps) {
    refuse_warp() << "needs a warpgroup, four warps of which the first is a multiple of 4, and the CTA has "
                  << cta->num_warps << " warps in all";
  }
  Group& group = groups_[size_t(warp / kWarpsPerGroup)];
  const size_t place = group.next[size_t(index)]++ - group.passed;
  if (place == group.executed.size()) {
    group.executed.push_back(instruction);
  } else if (!instruction.is_same(group.executed[place])) {
    const Instruction& theirs = group.executed[place];
    refuse_warp()
        << "the four warps of a warpgroup must execute the same instructions, but another warp executed "
        << (same_place(theirs.at, instruction.at)
                ? "this one with other operands"
                : std::string(theirs.op) + " at " + describe(theirs.at) + " in its place");
  }
  const size_t slowest = *std::min_element(group.next.begin(), group.next.end());
  for (; group.passed < slowest; ++group.passed) group.executed.pop_front();
}

// Who has exited executes nothing any more.
void AsyncProducts::check_nobody_missing(int group_index) const {
  const Group& group = groups_[size_t(group_index)];
  for (int i = 0; i < kWarpsPerGroup; ++i) {
    const int warp = group_index * kWarpsPerGroup + i;
    const size_t place = group.next[size_t(i)] - group.passed;
    if (place == group.executed.size() || cta->warps[size_t(warp)].live() != 0) continue;
    const Instruction& missed = group.executed[place];
    fail(Bug::kDivergence, cta->fiber(warp, 0))
        << "the warp exits and never executes the " << missed.op << " at " << missed.at
        << ", which another warp of its warpgroup, warps " << warp - i << " to " << warp - i + 3
        << ", has executed";
  }
}

void AsyncProducts::fence(Location at) {
  meet({"wgmma.fence", at, {}});
  const int warp = cta->running_warp;
  warps_[size_t(warp)].fenced = true;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    Fiber& fiber = cta->fiber(warp, lane);
    fiber.registers_watched = true;
    lane_of(fiber).touched.clear();
  }
}

// Checks that the lane's registers may be used now, and notes that they are.
void AsyncProducts::use_registers(const Product& product, int lane, const void* registers, size_t bytes,
                                  bool accumulator) {
  const Fiber& who = cta->fiber(cta->running_warp, lane);
  Lane& its = lane_of(who);
  const uintptr_t begin = uintptr_t(registers);
  const char* const which = accumulator ? ": the registers of its accumulator" : ": the registers of A";
  for (const Touch& touch : its.touched) {
    if (touch.address >= begin + bytes || begin >= touch.address + touch.bytes) continue;
    if (!is_news(rule_of(Bug::kRegisterFence), {.at = product.at}, place_of(touch.site))) continue;
    remark(rule_of(Bug::kRegisterFence), who)
        << "wgmma at " << product.at << which << (touch.write ? " were written at " : " were read at ")
        << place_of(touch.site) << ", and between that and this wgmma a "
        << word("warpgroup_arrive()", "wgmma.fence") << " is missing";
  }
  bool known = false;
  for (InUse& use : its.in_use) {
    if (!use.overlaps(begin, bytes)) continue;
    const bool same =
        use.accumulator == accumulator && (!accumulator || (use.begin == begin && use.end == begin + bytes));
    if (!same) {
      fail(Bug::kRegisterInUse, who) << "wgmma at " << product.at << which << " are also the "
                                     << (use.accumulator ? "accumulator" : "registers of A")
                                     << " of the wgmma at " << use.at
                                     << ", which is under way with another shape or another use: a "
                                     << word("warpgroup_wait", "wgmma.wait_group")
                                     << " is missing between the two";
    }
    // Of A's registers only what one group uses is put together: they are free when that group is complete.
    if (!accumulator && (begin < use.begin || begin + bytes > use.end || use.group != product.group))
      continue;
    use.group = product.group;
    use.at = product.at;
    known = true;
  }
  if (known) return;
  InUse* const last = its.in_use.empty() ? nullptr : &its.in_use.back();
  if (!accumulator && last != nullptr && !last->accumulator && last->group == product.group &&
      last->end == begin) {
    last->end += bytes;
  } else {
    its.in_use.push_back({begin, begin + bytes, accumulator, product.group, product.at});
  }
}

void AsyncProducts::register_access(uintptr_t address, size_t bytes, bool write, Site site) {
  Lane& its = lane_of(*self);
  for (const InUse& use : its.in_use) {
    if (!use.overlaps(address, bytes)) continue;
    const bool committed = use.group < warps_[size_t(self->warp)].committed;
    fail(Bug::kRegisterInUse, *self) << "the " << kind_of_access(write) << " at " << place_of(site)
                                     << " touches the "
                                     << (use.accumulator ? "accumulator" : "registers of A")
                                     << " of the wgmma at " << use.at << ", which is under way: "
                                     << (committed ? word("warpgroup_wait", "wgmma.wait_group")
                                                   : word("warpgroup_commit_batch", "wgmma.commit_group"))
                                     << (committed
                                             ? " is missing before this access, or leaves its group pending"
                                             : " is missing after it, without which no wait includes it");
  }
  // It is the same registers again and again, and the first touch of each is enough.
  const Touch touch{address, uint32_t(bytes), write, site};
  uint32_t& found_at = its.found_at[address / sizeof(float) % its.found_at.size()];
  if (found_at < its.touched.size() && its.touched[found_at].is_like(touch)) return;
  if (its.touched.size() == its.room) {
    const auto key = [](const Touch& t) { return std::pair(t.address, t.bytes); };
    std::sort(its.touched.begin(), its.touched.end(),
              [&](const Touch& a, const Touch& b) { return key(a) < key(b); });
    its.touched.erase(std::unique(its.touched.begin(), its.touched.end(),
                                  [&](const Touch& a, const Touch& b) { return key(a) == key(b); }),
                      its.touched.end());
    its.room = std::max(its.room, 2 * its.touched.size());
  }
  found_at = uint32_t(its.touched.size());
  its.touched.push_back(touch);
}

void AsyncProducts::issue(Product product, uint64_t a, uint64_t b) {
  const int warp = cta->running_warp;
  Warp& its = warps_[size_t(warp)];
  const WgmmaKind kind = product.kind;
  const bool a_in_smem = !product.a_in_registers;
  meet({a_in_smem ? "wgmma (SS)" : "wgmma (RS)",
        product.at,
        {a, b,
         uint64_t(product.num_acc) << 7 |
             unsigned(int(kind.type) << 5 | kind.negated << 4 | kind.fp16_sums << 3 | kind.a_mn << 2 |
                      kind.b_mn << 1 | kind.scale_d)}});
  product.warp = warp;
  product.group = its.committed;
  if (!its.fenced) {
    fail(Bug::kRegisterFence, cta->fiber(warp, 0))
        << "wgmma at " << product.at << ": no " << word("warpgroup_arrive()", "wgmma.fence")
        << " lies before this first wgmma of the warp";
  }
  const Part part_a{"A", first_row(warp), kRowsOfAWarp}, part_b{"B", 0, product.num_columns()};
  if (a_in_smem) product.a = decode(a, kind.a_mn, kind.element_bytes(), part_a, product.at);
  product.b = decode(b, kind.b_mn, kind.element_bytes(), part_b, product.at);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if (product.scattered.empty()) {
      use_registers(product, lane, product.acc[size_t(lane)], size_t(product.num_acc) * sizeof(float), true);
    } else {
      for (int i = 0; i < product.num_acc; ++i)
        use_registers(product, lane, &product.element<float>(lane, i), sizeof(float), true);
    }
    if (!a_in_smem) {
      if (product.watches_a)
        use_registers(product, lane, product.a_registers[size_t(lane)], sizeof(product.a_values[0]), false);
      std::memcpy(&product.a_values[size_t(lane)], product.a_registers[size_t(lane)],
                  sizeof(product.a_values[0]));
    }
  }
  if (cta->options.race_detector) {
    product.issued = cta->races->product_issued(warp);
    const auto read = [&](const SmemOperand& operand, Part part) {
      check_layout(operand, part, product.at);
      for_each_chunk(operand, part.first, part.count, [&](int, int, uintptr_t address) {
        cta->races->product_reads(warp, product.issued, address, product.site);
      });
    };
    if (a_in_smem) read(product.a, part_a);
    read(product.b, part_b);
  }
  Counters& counters = cta->counters;
  ++counters.wgmma;
  counters.wgmma_flops += uint64_t(2 * kRowsOfAWarp * kind.depth()) * unsigned(product.num_columns());
  if (a_in_smem) counters.wgmma_shared_bytes += kRowsOfAWarp * kDepthBytes;
  // The tensor cores of the four warps share what is read of B.
  if (warp % kWarpsPerGroup == 0)
    counters.wgmma_shared_bytes += uint64_t(kDepthBytes) * unsigned(product.num_columns());
  if (cta->tracer != nullptr) {
    cta->tracer->product_issued(warp, product.num_columns(), product.group, product.at);
  }
  ++num_on_way_;
  its.products.push_back(std::move(product));
  if (cta->options.async == AsyncMode::kEarly) finish(its.products.back());
}

namespace {

template <int ROWS, int COLS>
struct HalfOperand {
  float value[ROWS][COLS];
  HalfOperand(const uint16_t (&bits)[ROWS][COLS], bool bf16) { elements_to_float(bits, bf16, value); }
};
template <int ROWS, int COLS>
struct Tf32Operand {
  float value[ROWS][COLS];
  Tf32Operand(const uint32_t (&bits)[ROWS][COLS]) {
    for (int row = 0; row < ROWS; ++row)
      for (int col = 0; col < COLS; ++col) value[row][col] = tf32_bits_to_float(bits[row][col]);
  }
};
template <int COLS>
void multiply_accumulate(const HalfOperand<16, 16>& a, const HalfOperand<16, COLS>& b, float (&c)[16][COLS],
                         bool /*fp16_sums*/) {
  emulator::multiply_accumulate(a.value, b.value, c);
}
template <int COLS>
void multiply_accumulate(const Tf32Operand<16, 8>& a, const Tf32Operand<8, COLS>& b, float (&c)[16][COLS],
                         bool /*fp16_sums*/) {
  emulator::multiply_accumulate(a.value, b.value, c);
}

// acc (+)= A B. Code has an element's size; to_operand takes operands as they lie in memory.
template <typename Code, typename ToOperand>
void finish_product(const Product& product, ToOperand to_operand) {
  constexpr int K = kDepthBytes / sizeof(Code), CHUNK = int(kChunkBytes / sizeof(Code));
  Code a_bits[kRowsOfAWarp][K];
  if (product.a_in_registers) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      for (int i = 0; i < 8; i += 2) {
        const Position at = mma_a_position(lane, i);  // of 2 bytes; the register has 2 more
        std::memcpy(reinterpret_cast<char*>(a_bits[at.row]) + 2 * at.col,
                    &product.a_values[size_t(lane)][size_t(i / 2)], sizeof(uint32_t));
      }
    }
  } else {
    const int first = first_row(product.warp);
    for_each_chunk(product.a, first, kRowsOfAWarp, [&](int m, int k, uintptr_t address) {
      const auto* chunk = reinterpret_cast<const Code*>(address);
      if (!product.kind.a_mn) {
        std::copy_n(chunk, CHUNK, &a_bits[m - first][k]);
      } else {
        for (int i = 0; i < CHUNK; ++i) a_bits[m - first + i][k] = chunk[i];
      }
    });
  }
  constexpr auto kSign = Code(1u << (8 * sizeof(Code) - 1));
  if (product.kind.negated) {
    for (auto& row : a_bits) {
      for (Code& element : row) element ^= kSign;
    }
  }
  const auto a = to_operand(a_bits);
  for (int col = 0; col < product.num_columns(); col += kColumns) {
    Code b_bits[K][kColumns];
    float c[kRowsOfAWarp][kColumns] = {};
    for_each_chunk(product.b, col, kColumns, [&](int n, int k, uintptr_t address) {
      const auto* chunk = reinterpret_cast<const Code*>(address);
      if (product.kind.b_mn) {
        std::copy_n(chunk, kColumns, b_bits[k]);
      } else {
        for (int i = 0; i < CHUNK; ++i) b_bits[k + i][n - col] = chunk[i];
      }
    });
    const auto for_each_element = [&](auto visit) {
      for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int i = 0; i < 4; ++i) {
          const Position at = mma_c_position(lane, i);
          visit(c[at.row][at.col], lane, col / 2 + i);
        }
      }
    };
    const bool fp16 = product.kind.fp16_sums;
    if (product.kind.scale_d) {
      for_each_element([&](float& element, int lane, int i) {
        element =
            fp16 ? half_bits_to_float(product.element<uint16_t>(lane, i)) : product.element<float>(lane, i);
      });
    }
    multiply_accumulate(a, to_operand(b_bits), c, fp16);
    for_each_element([&](float element, int lane, int i) {
      if (fp16)
        product.element<uint16_t>(lane, i) = float_to_half_bits(element);
      else
        product.element<float>(lane, i) = element;
    });
  }
}

}  // namespace

void AsyncProducts::finish(Product& product) {
  if (product.done) return;
  product.done = true;
  --num_on_way_;
  if (product.kind.type == OperandType::kE4m3)
    return finish_product<uint8_t>(product, [](const auto& codes) { return E4m3Operand(codes); });
  if (product.kind.type == OperandType::kTf32)
    return finish_product<uint32_t>(product, [](const auto& bits) { return Tf32Operand(bits); });
  const bool bf16 = product.kind.type == OperandType::kBf16;
  finish_product<uint16_t>(product, [&](const auto& bits) { return HalfOperand(bits, bf16); });
}

void AsyncProducts::finish_some() {
  Warp& warp = warps_[size_t(cta->random.next() % unsigned(cta->num_warps))];
  for (Product& product : warp.products) {
    if (!product.done) return finish(product);  // the oldest
  }
}

void AsyncProducts::commit(Location at) {
  meet({"wgmma.commit_group", at, {}});
  const int warp = cta->running_warp;
  Warp& its = warps_[size_t(warp)];
  ++its.committed;
  its.issued_by.push_back(cta->races->latest_product(warp));
  end_waits(warp / kWarpsPerGroup);
}

void AsyncProducts::begin_wait(unsigned pending_groups, Location at) {
  meet({"wgmma.wait_group", at, {}});
  const int warp = cta->running_warp;
  Warp& its = warps_[size_t(warp)];
  its.waits = true;
  its.wanted = its.committed > pending_groups ? its.committed - pending_groups : 0;
  its.at = at;
  end_waits(warp / kWarpsPerGroup);
  if (its.waits) check_nobody_missing(warp / kWarpsPerGroup);
}

// Of those warps of a warpgroup whose groups all four have committed.
void AsyncProducts::end_waits(int group) {
  const int first = group * kWarpsPerGroup, end = first + kWarpsPerGroup;
  unsigned committed = UINT_MAX;  // by all
  for (int warp = first; warp < end; ++warp) committed = std::min(committed, warps_[size_t(warp)].committed);
  for (int warp = first; warp < end; ++warp) {
    if (warps_[size_t(warp)].waits && warps_[size_t(warp)].wanted <= committed) end_wait(warp);
  }
}

void AsyncProducts::end_wait(int warp) {
  Warp& its = warps_[size_t(warp)];
  its.waits = false;
  if (cta->tracer != nullptr) cta->tracer->products_waited(warp, its.wanted, its.at);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    Fiber& fiber = cta->fiber(warp, lane);
    if (fiber.state == State::kWgmmas) wake(fiber);
  }
  if (its.products.empty() || its.products.front().group >= its.wanted) return;
  const int first = warp / kWarpsPerGroup * kWarpsPerGroup;
  for (int other = first; other < first + kWarpsPerGroup; ++other) {
    for (Product& product : warps_[size_t(other)].products) {
      if (product.group < its.wanted) finish(product);
    }
    if (cta->options.race_detector)
      cta->races->product_waited(warp, other, warps_[size_t(other)].issued_by[its.wanted - 1]);
  }
  std::erase_if(its.products, [&](const Product& product) { return product.group < its.wanted; });
  for (int lane = 0; lane < kWarpSize; ++lane) {
    std::erase_if(lane_of(cta->fiber(warp, lane)).in_use,
                  [&](const InUse& use) { return use.group < its.wanted; });
  }
}

std::string AsyncProducts::describe_wait(const Fiber& fiber) const {
  const int first = fiber.warp / kWarpsPerGroup * kWarpsPerGroup;
  const unsigned wanted = warps_[size_t(fiber.warp)].wanted;
  unsigned missing = 0;
  for (int i = 0; i < kWarpsPerGroup; ++i)
    missing |= unsigned(warps_[size_t(first + i)].committed < wanted) << i;
  return std::string(fiber.op) + " at " + describe(fiber.at) + " for the same wgmmas of " +
         describe_warps(first, missing);
}

void AsyncProducts::check_exit(const Fiber& who) {
  const Warp& its = warps_[size_t(who.warp)];
  if (its.products.empty()) {
    const int group = who.warp / kWarpsPerGroup;
    if (!groups_[size_t(group)].executed.empty()) check_nobody_missing(group);
    return;
  }
  fail(Bug::kUnfinishedCopy, who) << "the thread exits while the wgmma at " << its.products.front().at
                                  << " is under way: no " << word("warpgroup_wait", "wgmma.wait_group")
                                  << " has included it";
}

// ---- The functions

namespace {

struct Arguments {
  void* acc;
  void* const* registers;  // of acc, if they need not lie one after the other
  int num_acc;
  const uint32_t* a_registers;  // null: A is in shared memory
  uint64_t a, b;
  WgmmaKind kind;
  uintptr_t pc;
};

void execute_wgmma(void* const* opaque, unsigned lanes) {
  check_aligned(lanes);
  const auto arguments = [&](int lane) -> const Arguments& {
    return *static_cast<const Arguments*>(opaque[lane]);
  };
  const Arguments& first = arguments(0);
  Product product;
  product.num_acc = first.num_acc;
  product.kind = first.kind;
  product.a_in_registers = first.a_registers != nullptr;
  product.watches_a = first.registers == nullptr;
  product.at = cta->fiber(cta->running_warp, 0).at;
  product.site = site_of(first.pc);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const Arguments& its = arguments(lane);
    if (its.a != first.a || its.b != first.b || its.kind.scale_d != first.kind.scale_d) {
      fail(Bug::kDescriptor, cta->fiber(cta->running_warp, lane))
          << "wgmma at " << product.at << ": this lane has another "
          << (its.a != first.a   ? "descriptor of A"
              : its.b != first.b ? "descriptor of B"
                                 : "scale_d")
          << " than lane 0. They must be the same in the whole warpgroup";
    }
    product.acc[size_t(lane)] = its.acc;
    if (its.registers != nullptr)
      product.scattered.insert(product.scattered.end(), its.registers, its.registers + its.num_acc);
    product.a_registers[size_t(lane)] = its.a_registers;
  }
  cta->products->issue(std::move(product), first.a, first.b);
}

}  // namespace

void wgmma(void* acc, int num_acc, const uint32_t* a_registers, uint64_t a, uint64_t b, WgmmaKind kind,
           Location at) {
  Arguments arguments{acc, nullptr, num_acc, a_registers, a, b, kind, uintptr_t(__builtin_return_address(0))};
  collective("wgmma", 0xffffffff, &arguments, execute_wgmma, at);
}

void wgmma(void* const* acc, int num_acc, const uint32_t* a_registers, uint64_t a, uint64_t b, WgmmaKind kind,
           Location at) {
  Arguments arguments{nullptr, acc, num_acc, a_registers, a, b, kind, uintptr_t(__builtin_return_address(0))};
  collective("wgmma", 0xffffffff, &arguments, execute_wgmma, at);
}

void wgmma_wait(int pending, Location at) {
  const Execute execute = [](void* const* groups, unsigned lanes) {
    check_aligned(lanes);
    cta->products->begin_wait(unsigned(*static_cast<const int*>(groups[0])),
                              cta->fiber(cta->running_warp, 0).at);
  };
  collective("wgmma.wait_group", 0xffffffff, &pending, execute, at);
  const InRuntime in_runtime;
  while (!cta->products->has_waited(self->warp)) park(State::kWgmmas);
}

uint32_t shared_window_address(const void* tile, bool in_cluster, Location at) {
  const InRuntime in_runtime;
  const uintptr_t offset = uintptr_t(tile) - uintptr_t(cta->smem);
  if (offset >= cta->smem_bytes) {
    fail(Bug::kSharedOutOfBounds, *self)
        << "make_smem_descriptor at " << at << ": the tile is not in the launch's dynamic shared memory";
  }
  if (cta->has_neighbours && !in_cluster) {
    fail(Bug::kDescriptor, *self)
        << "make_smem_descriptor at " << at
        << ": in a cluster the address of a shared tile holds the CTA's rank from bit 24 up, and without a "
           "mask the rank gets into the descriptor's leading byte offset. Use make_smem_descriptor<true>";
  }
  return uint32_t(offset) | uint32_t(cta->rank) << 24;
}

}  // namespace emulator

namespace flashsteps::inline on_emulator {

using namespace emulator;

void warpgroup_arrive(Location at) {
  const Execute execute = [](void* const*, unsigned lanes) {
    check_aligned(lanes);
    cta->products->fence(cta->fiber(cta->running_warp, 0).at);
  };
  collective("wgmma.fence", 0xffffffff, nullptr, execute, at);
}

void warpgroup_commit_batch(Location at) {
  const Execute execute = [](void* const*, unsigned lanes) {
    check_aligned(lanes);
    cta->products->commit(cta->fiber(cta->running_warp, 0).at);
  };
  collective("wgmma.commit_group", 0xffffffff, nullptr, execute, at);
}

}  // namespace flashsteps::inline on_emulator
