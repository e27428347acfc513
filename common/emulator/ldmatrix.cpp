#include "common/emulator/ldmatrix.h"

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
  uint32_t* registers;
  const void* row;
  bool transposed;
  uintptr_t pc;
};

// The rows of a matrix are a column of 16-byte chunks. Where a swizzled copy has brought them, all must be
// from the same column of its box: what the kernel adds to the address as swizzle must be what the tensor map
// says.
void check_swizzle(void* const* opaque, int first_lane) {
  const auto chunk_of = [&](int row) {
    return cta->races->chunk_at(uintptr_t(static_cast<const Arguments*>(opaque[first_lane + row])->row));
  };
  int first_row = 0;
  while (first_row < kMatrixRows && chunk_of(first_row).column < 0) ++first_row;
  for (int row = first_row + 1; row < kMatrixRows; ++row) {
    const RaceDetector::Chunk first = chunk_of(first_row);
    const RaceDetector::Chunk chunk = chunk_of(row);
    if (chunk.column < 0 || (chunk.load == first.load && chunk.column == first.column)) continue;
    const Fiber& who = cta->fiber(cta->running_warp, first_lane + row);
    fail(Bug::kSwizzle, who, [&] {
      std::string text = std::string(who.op) + " at " + describe(who.at) + " reads what was copied at " +
                         describe(pc_of(first.site())) + " with a swizzle of " +
                         std::to_string(first.swizzle_bytes) + " bytes: row " + std::to_string(first_row) +
                         " of the matrix is in column " + std::to_string(first.column) +
                         " of the tile's 16-byte chunks, but row " + std::to_string(row) + " is in column " +
                         std::to_string(chunk.column);
      if (chunk.load != first.load) text += " of another copy, issued at " + describe(pc_of(chunk.site()));
      return text + ". Is the swizzle missing from the address, or does it differ from the tensor map's?";
    });
  }
}

// Who reads an element is the lane that receives it, not the one that hands in its row's address: between
// what another lane has written and this read there must be a __syncwarp or more.
struct Receivers {
  unsigned of_row[kMatrixRows] = {};
  constexpr explicit Receivers(bool transposed) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      for (int element = 0; element < 2; ++element) {
        of_row[ldmatrix_position(lane, element, transposed).row] |= 1u << lane;
      }
    }
  }
};
constexpr Receivers kReceivers{false}, kReceiversTransposed{true};

// Lane 8 m + r has handed in the address of row r of matrix m.
void execute(void* const* opaque, unsigned lanes) {
  check_aligned(lanes);
  const auto arguments = [&](int lane) { return static_cast<Arguments*>(opaque[lane]); };
  const bool transposed = arguments(0)->transposed;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const uint16_t* rows[kMatrixRows];
    for (int row = 0; row < kMatrixRows; ++row) {
      rows[row] = static_cast<const uint16_t*>(arguments(matrix * kMatrixRows + row)->row);
    }
    if (cta->options.race_detector) {
      const Receivers& receivers = transposed ? kReceiversTransposed : kReceivers;
      check_swizzle(opaque, matrix * kMatrixRows);
      for (int row = 0; row < kMatrixRows; ++row) {
        const int lane = matrix * kMatrixRows + row;
        const Fiber& who = cta->fiber(cta->running_warp, lane);
        cta->races->warp_reads(who, uintptr_t(rows[row]), receivers.of_row[row],
                               site_of(arguments(lane)->pc));
      }
    }
    for (int lane = 0; lane < kWarpSize; ++lane) {
      uint32_t value = 0;
      for (int element = 0; element < 2; ++element) {
        const Position from = ldmatrix_position(lane, element, transposed);
        value |= uint32_t(rows[from.row][from.col]) << (16 * element);
      }
      arguments(lane)->registers[matrix] = value;
    }
  }

  Counters& counters = cta->counters;
  ++counters.ldmatrix;
  if (!cta->options.count) return;
  // To the memory it is one read of 16 bytes per lane, one matrix after the other.
  Request request{.lanes = lanes, .address = {}, .bytes = kRowBytes, .shared = true};
  for (int lane = 0; lane < kWarpSize; ++lane) request.address[lane] = uintptr_t(arguments(lane)->row);
  counters.ldmatrix_wavefronts += uint64_t(count_shared(request, counters));
  counters.ldmatrix_wavefronts_ideal += 4;
}

}  // namespace

void ldmatrix_x4(uint32_t* registers, const void* row, bool transposed, Location at) {
  const char* op = transposed ? "ldmatrix.x4.trans" : "ldmatrix.x4";
  const auto pc = uintptr_t(__builtin_return_address(0));
  check_shared(op, row, kRowBytes, kRowBytes, false, pc);
  if (cta->options.race_detector) {
    const InRuntime in_runtime;
    cta->races->warp_read_begins(*self, uintptr_t(row), site_of(pc));
  }
  Arguments arguments{registers, row, transposed, pc};
  collective(op, 0xffffffff, &arguments, execute, at);
}

}  // namespace emulator
