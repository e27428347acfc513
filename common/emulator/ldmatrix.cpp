#include "common/emulator/ldmatrix.h"

#include "common/emulator/aligned.h"
#include "common/emulator/core.h"
#include "common/emulator/counters.h"
#include "common/emulator/fragments.h"
#include "common/emulator/race.h"

namespace emulator {
namespace {

constexpr int kRowBytes = 16;  // 8 elements of 16 bits

struct Arguments {
  uint32_t* registers;
  const void* row;
  bool transposed;
  uintptr_t pc;
};

// Lane 8 m + r has handed in the address of row r of matrix m.
void execute(void* const* opaque, unsigned lanes) {
  check_aligned(lanes);
  const auto arguments = [&](int lane) { return static_cast<Arguments*>(opaque[lane]); };
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      uint32_t value = 0;
      for (int element = 0; element < 2; ++element) {
        const Position from = ldmatrix_position(lane, element, arguments(lane)->transposed);
        const auto* row = static_cast<const uint16_t*>(arguments(matrix * 8 + from.row)->row);
        // Who reads an element is the lane that receives it, not the one that handed in its row's address:
        // between what another lane has written and this read there must be a __syncwarp or more.
        if (cta->options.race_detector) {
          cta->races->shared_access(cta->fiber(cta->running_warp, lane), uintptr_t(&row[from.col]),
                                    sizeof(uint16_t), /*write=*/false, site_of(arguments(lane)->pc));
        }
        value |= uint32_t(row[from.col]) << (16 * element);
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
  touch_shared(op, row, kRowBytes, kRowBytes, false, pc);
  Arguments arguments{registers, row, transposed, pc};
  collective(op, 0xffffffff, &arguments, execute, at);
}

}  // namespace emulator
