// Prints the mapping of common/emulator/fragments.h as JSON, for scripts/draw/fragment_layouts.py: the drawings in
// docs/ show what the emulator does. Per layout, per lane, per element (two to a register, or one if it is
// FP32): [row, col].
#include <cstdio>

#include "common/emulator/fragments.h"

namespace {

template <typename PositionOf>
void print(const char* name, int elements, const char* end, PositionOf position_of) {
  std::printf(" \"%s\": [\n", name);
  for (int lane = 0; lane < 32; ++lane) {
    std::printf("  [");
    for (int i = 0; i < elements; ++i) {
      const emulator::Position at = position_of(lane, i);
      std::printf("%s[%d, %d]", i > 0 ? ", " : "", at.row, at.col);
    }
    std::printf("]%s\n", lane < 31 ? "," : "");
  }
  std::printf(" ]%s\n", end);
}

}  // namespace

int main() {
  std::printf("{\n");
  print("ldmatrix", 2, ",", [](int lane, int i) { return emulator::ldmatrix_position(lane, i, false); });
  print("ldmatrix_trans", 2, ",", [](int lane, int i) { return emulator::ldmatrix_position(lane, i, true); });
  print("mma_a", 8, ",", emulator::mma_a_position);
  print("mma_b", 4, ",", emulator::mma_b_position);
  print("mma_c", 4, "", emulator::mma_c_position);
  std::printf("}\n");
}
