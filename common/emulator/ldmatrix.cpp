// ldmatrix and stmatrix.
#include "common/ldmatrix.h"

#include <algorithm>
#include <utility>

#include "common/emulator/core.h"
#include "common/emulator/counters.h"
#include "common/emulator/fragments.h"
#include "common/emulator/shared_races.h"
#include "common/emulator/tile_layouts.h"
#include "common/stmatrix.h"

namespace emulator {
namespace {

constexpr int kRowBytes = 16;  // 8 elements of 16 bits
constexpr int kMatrixRows = 8;

struct Arguments {
  void* row;  // of lanes that hand in none, any
  uint32_t* registers;
  int matrices;  // 1, 2 or 4
  bool transposed;
  uintptr_t pc;
};

// The rows of a matrix are a column of 16-byte chunks. Where a swizzled copy has brought them, all must be
// from the same column of its box: what the kernel adds to the address as swizzle must be what the tensor map
// says.
void check_swizzle(void* const* opaque, int first_lane) {
  const auto chunk_of = [&](int row) {
    return cta->layouts->at(uintptr_t(static_cast<const Arguments*>(opaque[first_lane + row])->row));
  };
  int first_row = 0;
  while (first_row < kMatrixRows && chunk_of(first_row).column < 0) ++first_row;
  for (int row = first_row + 1; row < kMatrixRows; ++row) {
    const TileChunk first = chunk_of(first_row);
    const TileChunk chunk = chunk_of(row);
    if (chunk.column < 0 || (chunk.load == first.load && chunk.column == first.column)) continue;
    const Fiber& who = cta->fiber(cta->running_warp, first_lane + row);
    const bool other_copy = chunk.load != first.load;
    fail(Bug::kSwizzle, who)
        << who.op << " at " << who.at << " reads what was copied at " << place_of(first.site())
        << " with a swizzle of " << first.swizzle_bytes << " bytes: row " << first_row
        << " of the matrix is in column " << first.column << " of the tile's 16-byte chunks, but row " << row
        << " is in column " << chunk.column
        << (other_copy ? " of another copy, issued at " + describe(pc_of(chunk.site())) : "") << ". "
        << ReportWriter::Advice()
        << "Is the swizzle missing from the address, or does it differ from the tensor map's?";
  }
}

// Rows on multiples of 16 bytes are the same or do not overlap.
void check_rows_differ(void* const* opaque, int num_rows) {
  std::pair<const void*, int> rows[kWarpSize];
  for (int lane = 0; lane < num_rows; ++lane)
    rows[lane] = {static_cast<const Arguments*>(opaque[lane])->row, lane};
  std::sort(rows, rows + num_rows);
  for (int i = 1; i < num_rows; ++i) {
    if (rows[i].first != rows[i - 1].first) continue;
    const Fiber& who = cta->fiber(cta->running_warp, rows[i].second);
    if (!is_news(rule_of(Bug::kRace), {.at = who.at})) return;
    remark(rule_of(Bug::kRace), who) << "race on shared memory at "
                                     << ReportWriter::Address{describe_shared(uintptr_t(rows[i].first))}
                                     << ": " << who.op << " at " << who.at
                                     << " writes this row twice, for this lane and for lane "
                                     << rows[i - 1].second;
  }
}

// The lanes whose registers hold elements of a row. They read and write it, and not the lane that hands in
// its address: between what another lane has written and this read there must be a __syncwarp or more, and
// they must all know that the row is free.
struct LanesOfRow {
  unsigned of_row[kMatrixRows] = {};
  constexpr explicit LanesOfRow(bool transposed) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      for (int element = 0; element < 2; ++element) {
        of_row[ldmatrix_position(lane, element, transposed).row] |= 1u << lane;
      }
    }
  }
};
constexpr LanesOfRow kLanes{false}, kLanesTransposed{true};

// Lane 8 m + r has handed in the address of row r of matrix m.
template <bool STORE>
void execute(void* const* opaque, unsigned lanes) {
  check_aligned(lanes);
  const auto arguments = [&](int lane) { return static_cast<const Arguments*>(opaque[lane]); };
  const bool transposed = arguments(0)->transposed;
  const int matrices = arguments(0)->matrices, num_rows = matrices * kMatrixRows;
  if (STORE && cta->options.race_detector) check_rows_differ(opaque, num_rows);
  for (int matrix = 0; matrix < matrices; ++matrix) {
    uint16_t* rows[kMatrixRows];
    if (!STORE && cta->options.race_detector) check_swizzle(opaque, matrix * kMatrixRows);
    for (int row = 0; row < kMatrixRows; ++row) {
      const int lane = matrix * kMatrixRows + row;
      rows[row] = static_cast<uint16_t*>(arguments(lane)->row);
      if (!cta->options.race_detector) continue;
      const Fiber& who = cta->fiber(cta->running_warp, lane);
      const unsigned holders = (transposed ? kLanesTransposed : kLanes).of_row[row];
      const Site site = site_of(arguments(lane)->pc);
      STORE ? cta->races->warp_writes(who, uintptr_t(rows[row]), holders, site)
            : cta->races->warp_reads(who, uintptr_t(rows[row]), holders, site);
    }
    for (int lane = 0; lane < kWarpSize; ++lane) {
      uint32_t& its_register = arguments(lane)->registers[matrix];
      uint32_t loaded = 0;
      for (int element = 0; element < 2; ++element) {
        const Position at = ldmatrix_position(lane, element, transposed);
        uint16_t& in_memory = rows[at.row][at.col];
        if (STORE) {
          in_memory = uint16_t(its_register >> (16 * element));
        } else {
          loaded |= uint32_t(in_memory) << (16 * element);
        }
      }
      if (!STORE) its_register = loaded;
    }
  }

  Counters& counters = cta->counters;
  if (!STORE) ++counters.ldmatrix;
  if (!cta->options.count) return;
  // To the memory it is one access of 16 bytes per lane, one matrix after the other.
  Request request{.lanes = lanes & unsigned((uint64_t(1) << num_rows) - 1),
                  .address = {},
                  .bytes = kRowBytes,
                  .shared = true,
                  .write = STORE};
  for (int lane = 0; lane < num_rows; ++lane) request.address[lane] = uintptr_t(arguments(lane)->row);
  const int wavefronts = count_shared(request, counters);
  if (STORE) return;
  counters.ldmatrix_wavefronts += uint64_t(wavefronts);
  counters.ldmatrix_wavefronts_ideal += uint64_t(matrices);
}

// By the number of matrices, and whether they are transposed.
constexpr const char* kLoads[5][2] = {{},
                                      {"ldmatrix.x1", "ldmatrix.x1.trans"},
                                      {"ldmatrix.x2", "ldmatrix.x2.trans"},
                                      {},
                                      {"ldmatrix.x4", "ldmatrix.x4.trans"}};
constexpr const char* kStores[5][2] = {{},
                                       {"stmatrix.x1", "stmatrix.x1.trans"},
                                       {"stmatrix.x2", "stmatrix.x2.trans"},
                                       {},
                                       {"stmatrix.x4", "stmatrix.x4.trans"}};

// Only so many lanes hand in the address of a row.
bool has_row(int matrices) { return self->lane < matrices * kMatrixRows; }

void load(uint32_t* registers, int matrices, const void* row, bool transposed, Location at, uintptr_t pc) {
  const char* op = kLoads[matrices][transposed];
  if (has_row(matrices)) check_shared(op, row, kRowBytes, kRowBytes, false, pc);
  if (has_row(matrices) && cta->options.race_detector) {
    const InRuntime in_runtime;
    cta->races->warp_read_begins(*self, uintptr_t(row), site_of(pc));
  }
  Arguments arguments{const_cast<void*>(row), registers, matrices, transposed, pc};
  collective(op, 0xffffffff, &arguments, execute<false>, at);
}

void store(void* row, const uint32_t* registers, int matrices, bool transposed, Location at, uintptr_t pc) {
  const char* op = kStores[matrices][transposed];
  if (has_row(matrices)) check_shared(op, row, kRowBytes, kRowBytes, true, pc);
  Arguments arguments{row, const_cast<uint32_t*>(registers), matrices, transposed, pc};
  collective(op, 0xffffffff, &arguments, execute<true>, at);
}

}  // namespace

void ldmatrix(uint32_t* registers, int matrices, const void* row, bool transposed, Location at) {
  load(registers, matrices, row, transposed, at, uintptr_t(__builtin_return_address(0)));
}

void stmatrix(void* row, const uint32_t* registers, int matrices, bool transposed, Location at) {
  store(row, registers, matrices, transposed, at, uintptr_t(__builtin_return_address(0)));
}

}  // namespace emulator

namespace flashsteps::inline on_emulator {

using namespace emulator;

void ldmatrix_x4(uint32_t (&registers)[4], const void* row, Location at) {
  load(registers, 4, row, /*transposed=*/false, at, uintptr_t(__builtin_return_address(0)));
}

void ldmatrix_x4_trans(uint32_t (&registers)[4], const void* row, Location at) {
  load(registers, 4, row, /*transposed=*/true, at, uintptr_t(__builtin_return_address(0)));
}

void stmatrix_x4(void* row, const uint32_t (&registers)[4], Location at) {
  store(row, registers, 4, /*transposed=*/false, at, uintptr_t(__builtin_return_address(0)));
}

void stmatrix_x4_trans(void* row, const uint32_t (&registers)[4], Location at) {
  store(row, registers, 4, /*transposed=*/true, at, uintptr_t(__builtin_return_address(0)));
}

}  // namespace flashsteps::on_emulator
