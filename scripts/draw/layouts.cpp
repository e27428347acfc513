// Prints as JSON what kernels, common/ and the emulator compute with, so that the drawings in docs/ cannot
// show anything else:
//
// tiles: how they lie in memory and what it costs to reach them, for memory_layouts.py. From each step's own
// SharedStorage, common/swizzle.h, visible_keys(), and the functions that count wavefronts and sectors.
// fragments: per layout, per lane, per element (two to a register, or one if it is FP32) its [row, col], for
// fragment_layouts.py. The mapping of common/emulator/fragments.h.
// copies: what the emulator's TMA and mbarriers do, for copy_states.py.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "common/emulator/core.h"
#include "common/emulator/counters.h"
#include "common/emulator/emulator.h"
#include "common/emulator/fragments.h"
#include "common/emulator/mbarrier_table.h"
#include "common/launch.h"
#include "common/mbarrier.h"
#include "common/step.h"
#include "common/swizzle.h"
#include "common/tma.h"

// The kernels, for their constants and for what they keep in shared memory. Nothing is registered, so nothing
// of them is instantiated.
#undef REGISTER_STEP
#define REGISTER_STEP(...)
using namespace flashsteps;
#define FLASHSTEPS_STEP v02_smem_tiles
#include "steps/v02_smem_tiles/kernel.cu"
#undef FLASHSTEPS_STEP
#define FLASHSTEPS_STEP v03_wmma
#include "steps/v03_wmma/kernel.cu"
#undef FLASHSTEPS_STEP
#define FLASHSTEPS_STEP v04_warp_softmax
#include "steps/v04_warp_softmax/kernel.cu"
#undef FLASHSTEPS_STEP
#define FLASHSTEPS_STEP v05_padded_smem
#include "steps/v05_padded_smem/kernel.cu"
#undef FLASHSTEPS_STEP
#define FLASHSTEPS_STEP v06_vectorized_loads
#include "steps/v06_vectorized_loads/kernel.cu"
#undef FLASHSTEPS_STEP
#define FLASHSTEPS_STEP v07_ptx_mma
#include "steps/v07_ptx_mma/kernel.cu"
#undef FLASHSTEPS_STEP
#define FLASHSTEPS_STEP v08_register_softmax
#include "steps/v08_register_softmax/kernel.cu"
#undef FLASHSTEPS_STEP
#define FLASHSTEPS_STEP v09_direct_rescale
#include "steps/v09_direct_rescale/kernel.cu"
#undef FLASHSTEPS_STEP
#define FLASHSTEPS_STEP v10_tma_warpspec
#include "steps/v10_tma_warpspec/kernel.cu"
#undef FLASHSTEPS_STEP
#define FLASHSTEPS_STEP v11_cp_async
#include "steps/v11_cp_async/kernel.cu"
#undef FLASHSTEPS_STEP
#define FLASHSTEPS_STEP v12_whole_rows
#include "steps/v12_whole_rows/kernel.cu"
#undef FLASHSTEPS_STEP
#define FLASHSTEPS_STEP v13_lazy_rescale
#include "steps/v13_lazy_rescale/kernel.cu"
#undef FLASHSTEPS_STEP
#define FLASHSTEPS_STEP v14_longest_first
#include "steps/v14_longest_first/kernel.cu"
#undef FLASHSTEPS_STEP
#define FLASHSTEPS_STEP v16_producer_warpgroup
#include "steps/v16_producer_warpgroup/kernel.cu"
#undef FLASHSTEPS_STEP

namespace {

using json = nlohmann::ordered_json;
namespace v02 = v02_smem_tiles_on_emulator;
namespace v05 = v05_padded_smem_on_emulator;
namespace v06 = v06_vectorized_loads_on_emulator;

constexpr int WARP = emulator::kWarpSize;
constexpr int BLOCK_M = v02::BLOCK_M;
constexpr int BLOCK_N = v02::BLOCK_N;
constexpr int D = 64;
constexpr int CHUNK = 8;  // elements of 16 bits, 16 bytes

[[noreturn]] void fail(const char* sentence) {
  std::fprintf(stderr, "layouts: %s\n", sentence);
  std::exit(1);
}

// ---- What a CTA keeps in shared memory

// `contents` are the bytes without padding.
template <typename Storage, int HEAD_DIM>
json parts_of() {
  json parts = json::array();
  size_t rest = sizeof(Storage);
  const auto add = [&]<typename Member>(const char* name, std::type_identity<Member>, size_t cols) {
    size_t contents = sizeof(Member);
    if constexpr (std::rank_v<Member> == 2)
      contents = std::extent_v<Member> * cols * sizeof(std::remove_all_extents_t<Member>);
    parts.push_back({{"name", name}, {"bytes", sizeof(Member)}, {"contents", contents}});
    rest -= sizeof(Member);
  };
#define ADD_PART(member, cols)                     \
  if constexpr (requires(Storage s) { s.member; }) \
    add(#member, std::type_identity<decltype(Storage::member)>(), cols);
  ADD_PART(q, HEAD_DIM)
  ADD_PART(kv, HEAD_DIM)
  ADD_PART(k, HEAD_DIM)
  ADD_PART(v, HEAD_DIM)
  ADD_PART(s, BLOCK_N)
  ADD_PART(p, BLOCK_N)
  ADD_PART(o, HEAD_DIM)
#undef ADD_PART
  parts.push_back({{"name", "rest"}, {"bytes", rest}, {"contents", rest}});
  return parts;
}

template <template <typename, int> class Storage>
json storage(const char* step) {
  return {{"step", step},
          {"64", parts_of<Storage<__half, 64>, 64>()},
          {"128", parts_of<Storage<__half, 128>, 128>()}};
}

template <typename Element, int HEAD_DIM>
using V14Storage = v14_longest_first_on_emulator::SharedStorage<Element, HEAD_DIM, 4, 64>;

json all_storage() {
#define STORAGE(step) storage<step##_on_emulator::SharedStorage>(#step)
  return {STORAGE(v02_smem_tiles),
          STORAGE(v03_wmma),
          STORAGE(v04_warp_softmax),
          STORAGE(v05_padded_smem),
          STORAGE(v06_vectorized_loads),
          STORAGE(v07_ptx_mma),
          STORAGE(v08_register_softmax),
          STORAGE(v09_direct_rescale),
          STORAGE(v10_tma_warpspec),
          STORAGE(v11_cp_async),
          STORAGE(v12_whole_rows),
          STORAGE(v13_lazy_rescale),
          storage<V14Storage>("v14_longest_first"),
          STORAGE(v16_producer_warpgroup)};
#undef STORAGE
}

// ---- Which tiles are computed, and which with a mask

template <bool CAUSAL>
json mask(int seqlen_q, int seqlen_kv, int kv_len) {
  AttentionParams<__half> params = {};
  params.seqlen_q = seqlen_q;
  params.seqlen_kv = seqlen_kv;
  const auto visible_keys = [&](int row) { return params.template visible_keys<CAUSAL>(row, kv_len); };
  json visible = json::array(), tiles = json::array();
  for (int row = 0; row < seqlen_q; ++row) visible.push_back(visible_keys(row));
  for (int first_query = 0; first_query < seqlen_q; first_query += BLOCK_M) {
    // As every kernel from v02 on has it.
    const int last_query = min(first_query + BLOCK_M, seqlen_q) - 1;
    const int num_kv_tiles = ceil_div(visible_keys(last_query), BLOCK_N);
    const int unmasked_end = visible_keys(first_query);
    json masked = json::array();
    for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile)
      masked.push_back(kv_tile * BLOCK_N + BLOCK_N > unmasked_end);
    tiles.push_back(masked);
  }
  return {{"seqlen_q", seqlen_q}, {"seqlen_kv", seqlen_kv}, {"kv_len", kv_len},
          {"causal", CAUSAL},     {"visible", visible},     {"masked", tiles}};
}

// ---- A warp's access to shared or global memory

using OffsetOfLane = std::function<int(int lane)>;

json access(int (*count)(const emulator::Request&, emulator::Counters&), bool shared, int bytes,
            const OffsetOfLane& offset_of) {
  emulator::Request request{.lanes = 0xffffffff, .address = {}, .bytes = size_t(bytes), .shared = shared};
  json offsets = json::array();
  for (int lane = 0; lane < WARP; ++lane) {
    request.address[lane] = uint64_t(offset_of(lane));
    offsets.push_back(offset_of(lane));
  }
  emulator::Counters counters;
  json its = {{"bytes", bytes}, {"offsets", offsets}};
  const int cost = count(request, counters);
  if (shared) {
    its["passes"] = cost;
    its["ideal"] = counters.shared_wavefronts_ideal;
  } else {
    its["sectors"] = cost;
  }
  return its;
}

json shared_access(int bytes, const OffsetOfLane& offset_of) {
  return access(emulator::count_shared, true, bytes, offset_of);
}
json global_access(int bytes, const OffsetOfLane& offset_of) {
  return access(emulator::count_global, false, bytes, offset_of);
}

// The worst of all turns of a loop.
json worst_of(int turns, const std::function<json(int turn)>& access_of) {
  json worst;
  for (int turn = 0; turn < turns; ++turn) {
    const json here = access_of(turn);
    if (worst.is_null() || here["passes"] > worst["passes"]) worst = here;
  }
  return worst;
}

// ldmatrix.x4 of a 16 x 16 block of a tile of 64 rows: the lanes hand in its rows in the order of A's
// registers.
json ldmatrix(int head_dim, const std::function<int(int row, int col)>& offset_of) {
  const int across = head_dim / 16;
  return worst_of(BLOCK_N / 16 * across, [&](int block) {
    const int row = block / across * 16, d = block % across * 16;
    return shared_access(16, [&](int lane) { return offset_of(row + lane % 16, d + lane / 16 * CHUNK); });
  });
}

json ldmatrix_rows(int head_dim, int stride) {
  return ldmatrix(head_dim, [&](int row, int col) { return (row * stride + col) * int(sizeof(__half)); });
}

template <int HEAD_DIM, int SWIZZLE_BYTES>
json ldmatrix_swizzled() {
  return ldmatrix(HEAD_DIM, SwizzledTile<__half, BLOCK_N, HEAD_DIM, SWIZZLE_BYTES>::offset_of);
}

json all_shared() {
  json its;
  for (const int bytes : {2, 4, 8, 16})
    its["neighbours, " + std::to_string(bytes)] =
        shared_access(bytes, [&](int lane) { return lane * bytes; });
  its["one word"] = shared_access(4, [](int) { return 0; });
  its["every second word"] = shared_access(4, [](int lane) { return lane * 8; });
  its["a column"] = shared_access(4, [](int lane) { return lane * 128; });

  // v02 reads K in S = Q K^T: a lane's row, and d with the walk and without.
  const auto v02_k = [](int walk, bool walks) {
    return shared_access(int(sizeof(__half)), [&](int lane) {
      const int d = walks ? walk ^ (lane * 2 % D) : walk;
      return (lane % v02::THREAD_COLS * D + d) * int(sizeof(__half));
    });
  };
  its["v02 K, walk"] = worst_of(D, [&](int walk) { return v02_k(walk, true); });
  its["v02 K, plain"] = worst_of(D, [&](int walk) { return v02_k(walk, false); });

  for (const int head_dim : {64, 128}) {
    for (int pad = 0; pad <= 64; pad += CHUNK)
      its["ldmatrix, D=" + std::to_string(head_dim) + ", padded by " + std::to_string(pad)] =
          ldmatrix_rows(head_dim, head_dim + pad);
  }
  const auto swizzled = [&]<int... BYTES>(std::integer_sequence<int, BYTES...>) {
    ((its["ldmatrix, D=64, swizzle " + std::to_string(BYTES)] = ldmatrix_swizzled<64, BYTES>()), ...);
    ((its["ldmatrix, D=128, swizzle " + std::to_string(BYTES)] = ldmatrix_swizzled<128, BYTES>()), ...);
  };
  swizzled(std::integer_sequence<int, 128, 64, 32, 0>());

  // FP32 arrays: two elements of an accumulator, and v04's and v05's softmax, 8 columns of 4 rows.
  for (const int pad : {0, v05::PAD, 2 * v05::PAD}) {
    const std::string padded = ", padded by " + std::to_string(pad);
    const auto place = [&](int row, int col) { return (row * (BLOCK_N + pad) + col) * int(sizeof(float)); };
    its["accumulator" + padded] = shared_access(2 * int(sizeof(float)), [&](int lane) {
      const emulator::Position at = emulator::mma_c_position(lane, 0);
      return place(at.row, at.col);
    });
    its["softmax" + padded] = shared_access(int(sizeof(float)), [&](int lane) {
      return place(lane / v05::LANES_PER_ROW, lane % v05::LANES_PER_ROW);
    });
  }
  return its;
}

json all_global() {
  constexpr int ROW_BYTES = D * int(sizeof(__half));
  constexpr int CHUNKS = D / v06::CHUNK;
  json its;
  its["v01 K"] = global_access(2, [](int) { return 0; });
  its["v02"] = global_access(2, [](int lane) { return lane / D * ROW_BYTES + lane % D * 2; });
  its["v02, odd"] = global_access(2, [](int lane) { return 2 + lane * 2; });
  its["v06"] = global_access(16, [](int lane) { return lane / CHUNKS * ROW_BYTES + lane % CHUNKS * 16; });
  // v06's "Try it" 2: neighbouring lanes in neighbouring rows.
  its["v06, down"] =
      global_access(16, [](int lane) { return lane % BLOCK_M * ROW_BYTES + lane / BLOCK_M * 16; });
  return its;
}

// ---- The swizzle

// Row by row of 1024 bytes, for each chunk of 16 bytes its place, counted in chunks.
template <int SWIZZLE_BYTES>
json places() {
  using Tile = SwizzledTile<__half, 1024 / SWIZZLE_BYTES, SWIZZLE_BYTES / int(sizeof(__half)), SWIZZLE_BYTES>;
  json rows = json::array();
  for (int row = 0; row < Tile::ROWS; ++row) {
    json chunks = json::array();
    for (int col = 0; col < Tile::COLS; col += CHUNK) chunks.push_back(Tile::offset_of(row, col) / 16);
    rows.push_back(chunks);
  }
  return rows;
}

using WideTile = SwizzledTile<__half, BLOCK_N, 128, 128>;

// Which column of row 0 is reached by at() from a lane's own column on.
int column_reached(WideTile& tile, int from, int cols) {
  const auto* const reached = tile.at(WideTile::offset_of(0, from), 0, cols);
  const int offset = int(reinterpret_cast<const char*>(reached) - reinterpret_cast<const char*>(tile.data));
  for (int col = 0; col < WideTile::COLS; ++col) {
    if (WideTile::offset_of(0, col) == offset) return col;
  }
  fail("at() has left the row");
}

json all_swizzles() {
  static WideTile tile;
  json steps = json::array();  // v10's "Try it" 4: at(offset, …, d + 8), for d = 0 and 16
  for (const int d : {0, 16}) {
    for (const int from : {0, CHUNK}) {
      steps.push_back(
          {{"from", from}, {"cols", d + CHUNK}, {"reached", column_reached(tile, from, d + CHUNK)}});
    }
  }
  return {{"128", places<128>()},
          {"64", places<64>()},
          {"32", places<32>()},
          {"panel_bytes", WideTile::PANEL_BYTES},
          {"second_panel", WideTile::offset_of(0, WideTile::PANEL_COLS)},
          {"at", steps}};
}

// ---- Fragments

json lanes(int elements, emulator::Position (*position_of)(int lane, int element)) {
  json lanes = json::array();
  for (int lane = 0; lane < WARP; ++lane) {
    json its = json::array();
    for (int i = 0; i < elements; ++i) {
      const emulator::Position at = position_of(lane, i);
      its.push_back({at.row, at.col});
    }
    lanes.push_back(its);
  }
  return lanes;
}

template <bool TRANS>
emulator::Position ldmatrix_position(int lane, int element) {
  return emulator::ldmatrix_position(lane, element, TRANS);
}

json all_fragments() {
  return {{"ldmatrix", lanes(2, ldmatrix_position<false>)},
          {"ldmatrix_trans", lanes(2, ldmatrix_position<true>)},
          {"mma_a", lanes(8, emulator::mma_a_position)},
          {"mma_b", lanes(4, emulator::mma_b_position)},
          {"mma_c", lanes(4, emulator::mma_c_position)}};
}

// ---- Copies

// Kernels here have one thread, and no hooks: they are compiled as what they are, the emulator's callers.
// Copies are carried out at once (mode early), so that states between two copies can be looked at.

constexpr int NUM_HEADS = 2, NUM_ROWS = 13, COLS = 128, FIRST_ROW = 8;
using BoxTile = SwizzledTile<uint16_t, 8, COLS, 128>;

void load_box(const TensorMap* map, uint16_t* out) {
  auto* barrier = reinterpret_cast<uint64_t*>(smem + sizeof(BoxTile));
  mbarrier_init(barrier, 1);
  fence_mbarrier_init();
  mbarrier_arrive_expect_tx(barrier, sizeof(BoxTile));
  tma_load_5d(smem, *map, barrier, 0, FIRST_ROW, 0, 0, 0);
  mbarrier_wait(barrier, 0);
  for (size_t i = 0; i < sizeof(BoxTile) / sizeof(uint16_t); ++i)
    out[i] = reinterpret_cast<uint16_t*>(smem)[i];
}

// One load that reaches beyond its tensor: the map that was made for it, and of every 16 bytes of the tile,
// in the order of their addresses, the row and the chunk that lie there; null: zeros.
json box() {
  // Elements count up from 1, so that each tells where it comes from.
  constexpr size_t ELEMENTS = size_t(NUM_HEADS) * NUM_ROWS * COLS;
  auto* tensor = static_cast<uint16_t*>(emulator::allocate(ELEMENTS * sizeof(uint16_t)));
  auto* tile = static_cast<uint16_t*>(emulator::allocate(sizeof(BoxTile)));
  for (size_t i = 0; i < ELEMENTS; ++i) tensor[i] = uint16_t(i + 1);
  const TensorMap map =
      make_tensor_map<BoxTile>(View{tensor, 1, NUM_HEADS, NUM_ROWS, ELEMENTS, NUM_ROWS * COLS, COLS});
  launch(load_box, 1, 1, sizeof(BoxTile) + 8, nullptr, &map, tile);

  json chunks = json::array();
  for (const uint16_t* chunk = tile; chunk < tile + sizeof(BoxTile) / sizeof(uint16_t); chunk += CHUNK) {
    const bool zeros = chunk[0] == 0;
    const int from = chunk[0] / CHUNK;
    for (int i = 0; i < CHUNK; ++i)
      if (chunk[i] != (zeros ? 0 : from * CHUNK + i + 1)) fail("the copy has torn a chunk of 16 bytes");
    chunks.push_back(zeros ? json() : json{from / (COLS / CHUNK), from % (COLS / CHUNK)});
  }
  const uint64_t bytes = emulator::last_counters().tma_load_bytes;
  emulator::release(tensor);
  emulator::release(tile);
  return {{"size", map.shape.size}, {"stride", map.shape.stride},        {"box", map.shape.box},
          {"counted_bytes", bytes}, {"origin", {0, FIRST_ROW, 0, 0, 0}}, {"chunks", chunks}};
}

constexpr int COPY_BYTES = 1024;
using CopiedTile = SwizzledTile<uint16_t, 8, 64, 128>;
static_assert(sizeof(CopiedTile) == COPY_BYTES);

// The life of an mbarrier behind two tiles. Of each state, what led to it, the phase under way, how many
// arrivals and bytes it lacks, and what try_wait answers for parity 0 and 1: the one thread may ask, and go
// on when it is no. Events are c: a copy to a tile in turn; e: an arrival that announces two of them; a: a
// plain arrival.
void live(const TensorMap* map, int arrivals, const char* events, json* states) {
  auto* barrier = reinterpret_cast<uint64_t*>(smem + 2 * COPY_BYTES);
  const auto note = [&](const std::string& event) {
    const bool passes[] = {mbarrier_try_wait(barrier, 0), mbarrier_try_wait(barrier, 1)};
    const emulator::Mbarrier& state = (*emulator::cta->mbarriers)[0];
    states->push_back({{"event", event},
                       {"phase", state.phase},
                       {"arrivals", state.arrivals},
                       {"missing", state.missing},
                       {"bytes", state.tx},
                       {"passes", passes}});
  };
  mbarrier_init(barrier, arrivals);
  fence_mbarrier_init();
  note("mbarrier_init(bar, " + std::to_string(arrivals) + ")");
  for (int copies = 0; *events != 0; ++events) {
    if (*events == 'c') {
      tma_load_5d(smem + copies++ % 2 * COPY_BYTES, *map, barrier, 0, 0, 0, 0, 0);
      note("a copy of " + std::to_string(COPY_BYTES) + " bytes is done");
    } else if (*events == 'e') {
      mbarrier_arrive_expect_tx(barrier, 2 * COPY_BYTES);
      note("mbarrier_arrive_expect_tx(bar, " + std::to_string(2 * COPY_BYTES) + ")");
    } else {
      mbarrier_arrive(barrier);
      note("mbarrier_arrive(bar)");
    }
  }
}

json lives() {
  auto* tensor = static_cast<uint16_t*>(emulator::allocate(COPY_BYTES));
  const TensorMap map = make_tensor_map<CopiedTile>(View{tensor, 1, 1, 8, 0, 0, 64});
  const auto life = [&](int arrivals, const char* events) {
    json states = json::array();
    launch(live, 1, 1, 2 * COPY_BYTES + 8, nullptr, &map, arrivals, events, &states);
    return states;
  };
  const json lives = {{"announced_first", life(1, "eccecc")},
                      {"announced_last", life(1, "cce")},
                      {"four_arrivals", life(4, "aaaa")}};
  emulator::release(tensor);
  return lives;
}

}  // namespace

int main() {
  emulator::options().host_threads = 1;
  const json tiles = {
      {"block_m", BLOCK_M},
      {"block_n", BLOCK_N},
      {"storage", all_storage()},
      {"masks", {mask<true>(300, 300, 300), mask<true>(100, 300, 300), mask<false>(200, 300, 230)}},
      {"shared", all_shared()},
      {"global", all_global()},
      {"swizzle", all_swizzles()}};
  const json copies = {{"box", box()}, {"lives", lives()}};
  const json all = {{"tiles", tiles}, {"fragments", all_fragments()}, {"copies", copies}};
  std::printf("%s\n", all.dump().c_str());
}
