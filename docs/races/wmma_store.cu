// Products of tiles of 16 x 16 with their own transpose by WMMA, a tile per warp. The products go through
// shared memory, since no lane knows which elements of a fragment it has.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

#include <cstdio>
#include <cstdlib>

using namespace nvcuda;
constexpr int NUM_WARPS = 4, SIZE = 16, ELEMENTS = SIZE * SIZE;

__global__ void multiply(const half* in, float* out) {
  __shared__ __align__(32) half tiles[NUM_WARPS][ELEMENTS];
  __shared__ __align__(32) float products[NUM_WARPS][ELEMENTS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = (blockIdx.x * NUM_WARPS + warp) * ELEMENTS;
  for (int i = lane; i < ELEMENTS; i += 32) tiles[warp][i] = in[first + i];
  __syncwarp();
  wmma::fragment<wmma::matrix_a, SIZE, SIZE, SIZE, half, wmma::row_major> frag_a;
  wmma::fragment<wmma::matrix_b, SIZE, SIZE, SIZE, half, wmma::col_major> frag_b;
  wmma::fragment<wmma::accumulator, SIZE, SIZE, SIZE, float> acc;
  wmma::load_matrix_sync(frag_a, tiles[warp], SIZE);
  wmma::load_matrix_sync(frag_b, tiles[warp], SIZE);
  wmma::fill_fragment(acc, 0.0f);
  wmma::mma_sync(acc, frag_a, frag_b, acc);
  wmma::store_matrix_sync(products[warp], acc, SIZE, wmma::mem_row_major);  // the write
#ifdef MENDED
  __syncwarp();  // a lane reads what other lanes have stored
#endif
  for (int i = lane; i < ELEMENTS; i += 32) out[first + i] = products[warp][i];  // the read
}

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? atoi(argv[1]) : 1, elements = blocks * NUM_WARPS * ELEMENTS;
  half* in;
  float* out;
  int wrong = 0;
  cudaMallocManaged(&in, elements * sizeof(half));
  cudaMallocManaged(&out, elements * sizeof(float));
  for (int i = 0; i < elements; i++) in[i] = __float2half(rand() % 9 - 4);
  multiply<<<blocks, NUM_WARPS * 32>>>(in, out);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  for (int i = 0; i < elements; i++) {
    const half *row = in + i / SIZE * SIZE, *col = in + i / ELEMENTS * ELEMENTS + i % SIZE * SIZE;
    float sum = 0;
    for (int k = 0; k < SIZE; k++) sum += __half2float(row[k]) * __half2float(col[k]);
    wrong += out[i] != sum;  // sums of small integers are exact
  }
  printf(ran && wrong == 0 ? "ok\n" : "wrong: %d of %d elements\n", wrong, elements);
}
