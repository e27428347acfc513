// Prints what the emulator's TMA and mbarriers do as JSON, for scripts/draw/copy_states.py: the drawings in docs/
// show what these functions do, not what somebody remembers of them. Three things:
//
// box: one load that reaches beyond its tensor. The map that was made for it, and of every 16 bytes of the
// tile, in the order of their addresses, the row and the chunk that lie there; null: zeros.
// lives: mbarriers from state to state. Of each state, what led to it, the phase under way, how many arrivals
// and bytes it lacks, and what try_wait answers for parity 0 and 1.
// answers: the same two answers when 0, 1, 2, ... phases have completed.
//
// Copies are carried out at once (mode early), so that states between two copies can be looked at.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/emulator/core.h"
#include "common/emulator/emulator.h"
#include "common/emulator/mbarrier_table.h"
#include "common/launch.h"
#include "common/mbarrier.h"
#include "common/swizzle.h"
#include "common/tma.h"

using namespace flashsteps;

namespace {

// Kernels here have one thread, and no hooks: they are compiled as what they are, the emulator's callers.

// ---- A box

constexpr int NUM_HEADS = 2, NUM_ROWS = 13, COLS = 128, FIRST_ROW = 8;
using Tile = SwizzledTile<uint16_t, 8, COLS, 128>;
constexpr int CHUNK = 16 / sizeof(Tile::Element);  // elements of one
constexpr int CHUNKS_PER_ROW = COLS / CHUNK;

void load_box(const TensorMap* map, uint16_t* out) {
  auto* barrier = reinterpret_cast<uint64_t*>(smem + sizeof(Tile));
  mbarrier_init(barrier, 1);
  fence_mbarrier_init();
  mbarrier_arrive_expect_tx(barrier, sizeof(Tile));
  tma_load_5d(smem, *map, barrier, 0, FIRST_ROW, 0, 0, 0);
  mbarrier_wait(barrier, 0);
  for (size_t i = 0; i < sizeof(Tile) / sizeof(uint16_t); ++i) out[i] = reinterpret_cast<uint16_t*>(smem)[i];
}

template <typename Numbers>
void print_list(const char* name, const Numbers& numbers) {
  std::printf("  \"%s\": [", name);
  const char* comma = "";
  for (const auto number : numbers) {
    std::printf("%s%llu", comma, static_cast<unsigned long long>(number));
    comma = ", ";
  }
  std::printf("],\n");
}

void print_box() {
  // Elements count up from 1, so that each tells where it comes from.
  constexpr size_t ELEMENTS = size_t(NUM_HEADS) * NUM_ROWS * COLS;
  auto* tensor = static_cast<uint16_t*>(emulator::allocate(ELEMENTS * sizeof(uint16_t)));
  auto* tile = static_cast<uint16_t*>(emulator::allocate(sizeof(Tile)));
  for (size_t i = 0; i < ELEMENTS; ++i) tensor[i] = uint16_t(i + 1);
  const TensorMap map =
      make_tensor_map<Tile>(View{tensor, 1, NUM_HEADS, NUM_ROWS, ELEMENTS, NUM_ROWS * COLS, COLS});
  launch(load_box, 1, 1, sizeof(Tile) + 8, nullptr, &map, tile);

  std::printf(" \"box\": {\n");
  print_list("size", map.shape.size);
  print_list("stride", map.shape.stride);
  print_list("box", map.shape.box);
  std::printf("  \"origin\": [0, %d, 0, 0, 0],\n", FIRST_ROW);
  std::printf("  \"counted_bytes\": %llu,\n",
              static_cast<unsigned long long>(emulator::last_counters().tma_load_bytes));
  std::printf("  \"chunks\": [\n");
  constexpr int CHUNKS = sizeof(Tile) / 16;
  for (int chunk = 0; chunk < CHUNKS; ++chunk) {
    const uint16_t* elements = tile + chunk * CHUNK;
    const bool zeros = elements[0] == 0;
    const int from = elements[0] / CHUNK;
    for (int i = 0; i < CHUNK; ++i) {
      if (elements[i] == (zeros ? 0 : from * CHUNK + i + 1)) continue;
      std::fprintf(stderr, "copy_states: the copy has torn a chunk of 16 bytes\n");
      std::exit(1);
    }
    if (zeros) {
      std::printf("   null");
    } else {
      std::printf("   [%d, %d]", from / CHUNKS_PER_ROW, from % CHUNKS_PER_ROW);
    }
    std::printf("%s\n", chunk < CHUNKS - 1 ? "," : "");
  }
  std::printf("  ]\n },\n");
  emulator::release(tensor);
  emulator::release(tile);
}

// ---- The lives of mbarriers

struct State {
  std::string event;
  emulator::Mbarrier barrier;
  bool passes[2];
};
std::vector<State> states;  // of one life

constexpr int COPY_BYTES = 1024;
using CopiedTile = SwizzledTile<uint16_t, 8, 64, 128>;
static_assert(sizeof(CopiedTile) == COPY_BYTES);

// An mbarrier behind two tiles, in a kernel of one thread.
struct Life {
  const TensorMap* map;
  uint64_t* barrier = reinterpret_cast<uint64_t*>(smem + 2 * COPY_BYTES);

  // The one thread may ask, and go on when the answer is no.
  void note(std::string event) {
    const bool passes[2] = {mbarrier_try_wait(barrier, 0), mbarrier_try_wait(barrier, 1)};
    states.push_back({std::move(event), (*emulator::cta->mbarriers)[0], {passes[0], passes[1]}});
  }
  void init(int arrivals) {
    mbarrier_init(barrier, arrivals);
    fence_mbarrier_init();
    note("mbarrier_init(bar, " + std::to_string(arrivals) + ")");
  }
  void arrive() {
    mbarrier_arrive(barrier);
    note("mbarrier_arrive(bar)");
  }
  void announce() {
    mbarrier_arrive_expect_tx(barrier, 2 * COPY_BYTES);
    note("mbarrier_arrive_expect_tx(bar, " + std::to_string(2 * COPY_BYTES) + ")");
  }
  void copy(int number) {
    tma_load_5d(smem + number * COPY_BYTES, *map, barrier, 0, 0, 0, 0, 0);
    note("a copy of " + std::to_string(COPY_BYTES) + " bytes is done");
  }
};

void announced_first(const TensorMap* map) {
  Life life{map};
  life.init(1);
  for (int phase = 0; phase < 2; ++phase) {
    life.announce();
    life.copy(0);
    life.copy(1);
  }
}

void announced_last(const TensorMap* map) {
  Life life{map};
  life.init(1);
  life.copy(0);
  life.copy(1);
  life.announce();
}

void four_arrivals(const TensorMap* map) {
  Life life{map};
  life.init(4);
  for (int warp = 0; warp < 4; ++warp) life.arrive();
}

void many_phases(const TensorMap* map) {
  Life life{map};
  life.init(1);
  for (int phase = 0; phase < 5; ++phase) life.arrive();
}

void live(void (*kernel)(const TensorMap*), const TensorMap* map) {
  states.clear();
  launch(kernel, 1, 1, 2 * COPY_BYTES + 8, nullptr, map);
}

std::string answers(const State& state) {
  const auto word = [](bool passes) { return passes ? "true" : "false"; };
  return std::string("[") + word(state.passes[0]) + ", " + word(state.passes[1]) + "]";
}

void print_life(const char* name, const char* end) {
  std::printf("  \"%s\": [\n", name);
  for (const State& state : states) {
    std::printf(
        "   {\"event\": \"%s\", \"phase\": %d, \"arrivals\": %d, \"missing\": %d, \"bytes\": %d, "
        "\"passes\": %s}%s\n",
        state.event.c_str(), int(state.barrier.phase), state.barrier.arrivals, state.barrier.missing,
        int(state.barrier.tx), answers(state).c_str(), &state == &states.back() ? "" : ",");
  }
  std::printf("  ]%s\n", end);
}

}  // namespace

int main() {
  emulator::options().host_threads = 1;
  std::printf("{\n");
  print_box();

  auto* tensor = static_cast<uint16_t*>(emulator::allocate(COPY_BYTES));
  const TensorMap map = make_tensor_map<CopiedTile>(View{tensor, 1, 1, 8, 0, 0, 64});
  std::printf(" \"lives\": {\n");
  live(announced_first, &map);
  print_life("announced_first", ",");
  live(announced_last, &map);
  print_life("announced_last", ",");
  live(four_arrivals, &map);
  print_life("four_arrivals", "");
  std::printf(" },\n \"answers\": [");
  live(many_phases, &map);
  for (const State& state : states)
    std::printf("%s%s", answers(state).c_str(), &state == &states.back() ? "" : ", ");
  std::printf("]\n}\n");
  emulator::release(tensor);
}
