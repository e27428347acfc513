#include "common/emulator/stmatrix.h"

#include <algorithm>
#include <utility>

#include "common/emulator/aligned.h"
#include "common/emulator/core.h"
#include "common/emulator/counters.h"
#include "common/emulator/fragments.h"
#include "common/emulator/race.h"

namespace emulator {
namespace {

constexpr int kRowBytes = 16;  // 8 elements of 16 bits
constexpr int kMatrixRows = 8;

struct Arguments {
  void* row;
  const uint32_t* registers;
  bool transposed;
  uintptr_t pc;
};

// Who writes an element is the lane that holds it, and not the one that hands in its row's address: so many
// lanes must know that the row is free.
struct Writers {
  unsigned of_row[kMatrixRows] = {};
  constexpr explicit Writers(bool transposed) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      for (int element = 0; element < 2; ++element) {
        of_row[ldmatrix_position(lane, element, transposed).row] |= 1u << lane;
      }
    }
  }
};
constexpr Writers kWriters{false}, kWritersTransposed{true};

// Rows on multiples of 16 bytes are the same or do not overlap.
void check_rows_differ(void* const* opaque) {
  std::pair<const void*, int> rows[kWarpSize];
  for (int lane = 0; lane < kWarpSize; ++lane)
    rows[lane] = {static_cast<const Arguments*>(opaque[lane])->row, lane};
  std::sort(std::begin(rows), std::end(rows));
  for (int i = 1; i < kWarpSize; ++i) {
    if (rows[i].first != rows[i - 1].first) continue;
    const Fiber& who = cta->fiber(cta->running_warp, rows[i].second);
    fail(Bug::kRace, who, [&] {
      return "race on shared memory at " + describe_shared(uintptr_t(rows[i].first)) + ": " + who.op +
             " at " + describe(who.at) + " writes this row twice, for this lane and for lane " +
             std::to_string(rows[i - 1].second);
    });
  }
}

// Lane 8 m + r has handed in the address of row r of matrix m.
void execute(void* const* opaque, unsigned lanes) {
  check_aligned(lanes);
  const auto arguments = [&](int lane) { return static_cast<const Arguments*>(opaque[lane]); };
  const bool transposed = arguments(0)->transposed;
  if (cta->options.race_detector) check_rows_differ(opaque);
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t* rows[kMatrixRows];
    for (int row = 0; row < kMatrixRows; ++row) {
      const int lane = matrix * kMatrixRows + row;
      rows[row] = static_cast<uint16_t*>(arguments(lane)->row);
      if (!cta->options.race_detector) continue;
      const Writers& writers = transposed ? kWritersTransposed : kWriters;
      cta->races->warp_writes(cta->fiber(cta->running_warp, lane), uintptr_t(rows[row]), writers.of_row[row],
                              site_of(arguments(lane)->pc));
    }
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const uint32_t value = arguments(lane)->registers[matrix];
      for (int element = 0; element < 2; ++element) {
        const Position to = ldmatrix_position(lane, element, transposed);
        rows[to.row][to.col] = uint16_t(value >> (16 * element));
      }
    }
  }
  if (!cta->options.count) return;
  // To the memory it is one write of 16 bytes per lane, one matrix after the other.
  Request request{.lanes = lanes, .address = {}, .bytes = kRowBytes, .shared = true, .write = true};
  for (int lane = 0; lane < kWarpSize; ++lane) request.address[lane] = uintptr_t(arguments(lane)->row);
  count_shared(request, cta->counters);
}

}  // namespace

void stmatrix_x4(void* row, const uint32_t* registers, bool transposed, Location at) {
  const char* op = transposed ? "stmatrix.x4.trans" : "stmatrix.x4";
  const auto pc = uintptr_t(__builtin_return_address(0));
  check_shared(op, row, kRowBytes, kRowBytes, true, pc);
  Arguments arguments{row, registers, transposed, pc};
  collective(op, 0xffffffff, &arguments, execute, at);
}

}  // namespace emulator
