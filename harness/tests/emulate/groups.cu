// Cooperative groups: any group as an argument, tiles, a reduction of structs, scans, the lanes that take a
// branch or have the same value, the grid. Prints "ok".
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include <cstdio>

namespace cg = cooperative_groups;

struct Extremes {
  int least, largest;
  double sum;
};

__device__ Extremes join(Extremes a, Extremes b) {
  return {min(a.least, b.least), max(a.largest, b.largest), a.sum + b.sum};
}

// In shared memory, by whichever group.
__device__ int sum_of(const cg::thread_group& group, int* scratch, int value) {
  int rank = group.thread_rank();
  for (int n = group.size() / 2; n > 0; n /= 2) {
    scratch[rank] = value;
    group.sync();
    if (rank < n) value += scratch[rank + n];
    group.sync();
  }
  return value;
}

// A warp asks for room once, and not each of its lanes.
__device__ int append(int* count) {
  cg::coalesced_group together = cg::coalesced_threads();
  int begin = 0;
  if (together.thread_rank() == 0) begin = atomicAdd(count, int(together.size()));
  return together.shfl(begin, 0) + together.thread_rank();
}

__global__ void groups(int* sums, Extremes* extremes, int* scans, int* kept, int* num_kept) {
  __shared__ int scratch[128];
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  int i = cg::this_grid().thread_rank();

  int of_block = sum_of(block, scratch, i);
  if (block.thread_rank() == 0) sums[5 * blockIdx.x] = of_block;
  int of_warp = sum_of(cg::tiled_partition(block, 32), scratch + 32 * warp.meta_group_rank(), i);
  if (warp.thread_rank() == 0) sums[5 * blockIdx.x + 1 + warp.meta_group_rank()] = of_warp;

  Extremes all = cg::reduce(warp, Extremes{i % 50, i % 50, 0.5 * i}, join);
  if (warp.thread_rank() == 7) extremes[i / 32] = all;
  scans[i] = 1000 * cg::inclusive_scan(warp, 1) + cg::exclusive_scan(warp, i % 4);
  // Of the lanes with the same seventh of the warp, those with the same parity.
  cg::coalesced_group alike = cg::binary_partition(cg::labeled_partition(warp, i % 32 / 7), i % 2 == 0);
  scans[i] += 1000000 * cg::reduce(alike, i % 32, cg::greater<int>());
  if (i % 3 == 1) kept[append(num_kept)] = i;
}

// A block that is smaller than its tile.
__global__ void small_block(int* sum) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  int all = cg::reduce(warp, int(threadIdx.x), cg::plus<int>());
  if (threadIdx.x == 0) *sum = all;
}

int main() {
  const int n = 256;
  int *sums, *scans, *kept, *num_kept;
  Extremes* extremes;
  cudaMallocManaged(&sums, 10 * sizeof(int));
  cudaMallocManaged(&extremes, n / 32 * sizeof(Extremes));
  cudaMallocManaged(&scans, n * sizeof(int));
  cudaMallocManaged(&kept, n * sizeof(int));
  cudaMallocManaged(&num_kept, sizeof(int));
  *num_kept = 0;
  groups<<<n / 128, 128>>>(sums, extremes, scans, kept, num_kept);
  bool right = cudaDeviceSynchronize() == cudaSuccess && *num_kept == 85;
  for (int block = 0; block < 2; block++) {
    right = right && sums[5 * block] == 128 * 127 / 2 + 128 * 128 * block;
    for (int warp = 0; warp < 4; warp++)
      right = right && sums[5 * block + 1 + warp] == 32 * 31 / 2 + 32 * (128 * block + 32 * warp);
  }
  for (int warp = 0; warp < n / 32; warp++) {
    Extremes expected{1000, -1, 0};
    for (int i = 32 * warp, before = 0; i < 32 * warp + 32; before += i++ % 4) {
      expected = {i % 50 < expected.least ? i % 50 : expected.least,
                  i % 50 > expected.largest ? i % 50 : expected.largest, expected.sum + 0.5 * i};
      int last = i % 32;
      while (last + 2 < 32 && (last + 2) / 7 == i % 32 / 7) last += 2;
      right = right && scans[i] == 1000000 * last + 1000 * (i % 32 + 1) + before;
    }
    Extremes got = extremes[warp];
    right =
        right && got.least == expected.least && got.largest == expected.largest && got.sum == expected.sum;
  }
  int sum = 0;
  for (int k = 0; k < 85; k++) sum += kept[k];
  small_block<<<1, 8>>>(sums);
  right = cudaDeviceSynchronize() == cudaSuccess && sums[0] == 28 && right;
  printf(right && sum == 85 * (1 + 253) / 2 ? "ok\n" : "wrong\n");
}
