// Inline PTX for sm_90 and sm_90a of many kinds, each with what it must give. Prints "ok".
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

__device__ unsigned num_wrong;
__device__ void check(bool right, int number) {
  if (right) return;
  if (atomicAdd(&num_wrong, 1u) == 0) printf("check %d, thread %d\n", number, threadIdx.x);
}

__device__ uint32_t smem_u32(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// 128 threads. The mbarrier takes arrivals with a count, and waits with a state.
__device__ void mbarriers(const float* in) {
  __shared__ alignas(8) uint64_t bar;
  __shared__ alignas(16) float tile[128];
  const uint32_t address = smem_u32(&bar);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(129));
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 512;" ::"r"(address) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];" ::"r"(
            smem_u32(tile)),
        "l"(in), "r"(address)
        : "memory");
  }
  uint64_t state;
  uint32_t done = 0;
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1], %2;"
               : "=l"(state)
               : "r"(address), "r"(threadIdx.x == 0 ? 2 : 1)
               : "memory");
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(address), "l"(state)
                 : "memory");
  check(tile[127 - threadIdx.x] == 127 - threadIdx.x, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(address) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(128));
  }
  __syncthreads();
  // Copies by all threads, which arrive when they are complete.
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_u32(&tile[threadIdx.x])),
               "l"(in + 127 - threadIdx.x));
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address) : "memory");
  for (done = 0; !done;)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0, 1000; selp.b32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(address)
        : "memory");
  check(tile[127 - threadIdx.x] == threadIdx.x, 2);
}

__device__ void warps_and_clusters() {
  uint32_t leader = 99, elected = 0, rank, remote;
  asm volatile(
      "{\n"
      ".reg .b32 %%rx;\n"
      ".reg .pred %%px;\n"
      "elect.sync %%rx|%%px, %2;\n"
      "@%%px mov.s32 %1, 1;\n"
      "mov.s32 %0, %%rx;\n"
      "}"
      : "+r"(leader), "+r"(elected)
      : "r"(0xffffffff));
  check(elected == (threadIdx.x % 32 == leader), 10);
  if (threadIdx.x % 32 < 16) {  // one of 16
    asm volatile("{ .reg .pred p; elect.sync %0|p, 0xffff; selp.u32 %1, 1, 0, p; }"
                 : "=r"(leader), "=r"(elected));
    check(elected == (threadIdx.x % 32 == leader) && leader < 16, 12);
  }
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(64), "r"(0));
  check(rank == 0 && remote == 64, 11);
  asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
  asm volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;" ::: "memory");
}

// D = A B, where A is 64 x 16 of ones in registers and B[k][n] = n, 16 x 8, rows of 64 bytes along k.
__device__ void products() {
  extern __shared__ __align__(1024) unsigned char smem[];
  half* b = reinterpret_cast<half*>(smem);
  for (int i = threadIdx.x; i < 8 * 32; i += 128)
    b[i] = __float2half(i / 32);  // swizzled or not, it is the same
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const uint64_t desc =
      (smem_u32(b) & 0x3ffff) >> 4 | uint64_t(1) << 16 | uint64_t(512 >> 4) << 32 | uint64_t(2) << 62;
  float d0 = 1, d1 = 1, d2 = 1, d3 = 1;  // four variables, wherever they are
  uint32_t sums[2] = {0, 0};
  const uint32_t ones = 0x3c003c00;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %4, %4, %4}, %5, p, 1, 1, "
      "0;\n"
      "}"
      : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
      : "r"(ones), "l"(desc), "r"(1));
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%0, %1}, {%2, %2, %2, %2}, %3, 0, 1, 1, 0;"
               : "+r"(sums[0]), "+r"(sums[1])
               : "r"(ones), "l"(desc));
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
  // Of TF32, B is 8 x 8 and has rows of 32 bytes.
  __syncthreads();
  if (threadIdx.x < 64) reinterpret_cast<float*>(smem)[threadIdx.x] = threadIdx.x / 8;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const uint64_t desc_32 =
      (smem_u32(b) & 0x3ffff) >> 4 | uint64_t(1) << 16 | uint64_t(256 >> 4) << 32 | uint64_t(3) << 62;
  float e0 = 0, e1 = 0, e2 = 0, e3 = 0;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, %5, 0, 1, 1;"
      : "+f"(e0), "+f"(e1), "+f"(e2), "+f"(e3)
      : "r"(__float_as_uint(2)), "l"(desc_32));
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
  const int n = threadIdx.x % 4 * 2;
  check(e0 == 16 * n && e1 == 16 * (n + 1) && e2 == e0 && e3 == e1, 22);
  check(d0 == 16 * n + 1 && d1 == 16 * (n + 1) + 1 && d2 == d0 && d3 == d1, 20);
  const __half2 pair = *reinterpret_cast<const __half2*>(&sums[1]);
  check(__low2float(pair) == 16 * n && __high2float(pair) == 16 * (n + 1), 21);
}

// B[k][n] = n + 2 k is 16 x 16 without a swizzle: core matrices of 8 rows of 16 bytes. From one to the next
// it is 256 bytes along K and 640 along N, whichever of the two the rows run along.
// `ones` comes from afar: ptxas 13.0 negates a constant as if it were one integer, and not two halves.
template <bool ROWS_ALONG_N>
__device__ __forceinline__ void products_without_swizzle(uint32_t ones) {
  extern __shared__ __align__(1024) unsigned char smem[];
  constexpr int kAlongK = 256, kAlongN = 640;
  const uint64_t desc =
      (smem_u32(smem) & 0x3ffff) >> 4 | uint64_t(kAlongK >> 4) << 16 | uint64_t(kAlongN >> 4) << 32;
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += 128) {
    const int k = i / 16, n = i % 16;
    const int in_core = ROWS_ALONG_N ? k % 8 * 16 + n % 8 * 2 : n % 8 * 16 + k % 8 * 2;
    *reinterpret_cast<half*>(smem + k / 8 * kAlongK + n / 8 * kAlongN + in_core) = __float2half(n + 2 * k);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float d[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(  // D - A B
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %8, %8, "
      "%8}, "
      "%9, 1, -1, 1, %10;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(ones), "l"(desc), "n"(ROWS_ALONG_N ? 1 : 0));
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
  const int n = threadIdx.x % 4 * 2;
  const auto expected = [](int column) { return float(1 - (16 * column + 2 * 120)); };
  check(d[0] == expected(n) && d[1] == expected(n + 1) && d[3] == d[1], 30 + ROWS_ALONG_N);
  check(d[4] == expected(n + 8) && d[5] == expected(n + 9) && d[6] == d[4], 32 + ROWS_ALONG_N);
}

// Two CTAs add the numbers 0 to 127 twice, and 128 ones of 16 bits, to the same places.
__device__ void reductions(float* sums, const CUtensorMap* map_of_sums, half* counts) {
  __shared__ alignas(128) float numbers[128];
  __shared__ alignas(16) half halves[128];
  numbers[threadIdx.x] = threadIdx.x;
  halves[threadIdx.x] = __float2half(1);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 512;" ::"l"(sums),
                 "r"(smem_u32(numbers))
                 : "memory");
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%0], [%1], 256;" ::"l"(counts),
        "r"(smem_u32(halves))
        : "memory");
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %2}], [%1];" ::"l"(
            map_of_sums),
        "r"(smem_u32(numbers)), "r"(0)
        : "memory");
    asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// The first CTA writes through a copy of the map, which says that they are two rows of 16 in another place.
__device__ void changed_tensor_map(const CUtensorMap* map_of_sums, CUtensorMap* changed, float* elsewhere) {
  __shared__ alignas(128) CUtensorMap map;
  __shared__ alignas(128) float numbers[128];
  numbers[threadIdx.x] = threadIdx.x;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  map = *map_of_sums;
  asm volatile(
      "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;\n"
      "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, 2;\n"
      "tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, 128;" ::"l"(
          uint64_t(smem_u32(&map))),
      "l"(elsewhere)
      : "memory");
  *changed = map;
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(changed) : "memory");
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %2}], [%1];" ::"l"(changed),
               "r"(smem_u32(numbers)), "r"(0)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group 0;" ::: "memory");
}

__global__ void __launch_bounds__(128, 1)
    check_all(const float* in, float* sums, half* counts, const __grid_constant__ CUtensorMap map_of_sums,
              CUtensorMap* changed, float* elsewhere, uint32_t ones) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(128));
  mbarriers(in);
  warps_and_clusters();
  products();
  products_without_swizzle<false>(ones);
  products_without_swizzle<true>(ones);
  reductions(sums, &map_of_sums, counts);
  changed_tensor_map(&map_of_sums, changed, elsewhere);
}

// 8 rows of 16 numbers, and the whole of it is one box.
CUtensorMap make_map(float* numbers) {
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
  CUtensorMap map;
  const cuuint64_t size[] = {16, 8}, stride[] = {16 * sizeof(float)};
  const cuuint32_t box[] = {16, 8}, step[] = {1, 1};
  reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, numbers, size, stride, box, step,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

int main() {
  float *in, *sums, *elsewhere;
  CUtensorMap* changed;
  half* counts;
  cudaMallocManaged(&in, 128 * sizeof(float));
  cudaMallocManaged(&sums, 128 * sizeof(float));
  cudaMallocManaged(&elsewhere, 128 * sizeof(float));
  cudaMallocManaged(&changed, sizeof(CUtensorMap));
  cudaMallocManaged(&counts, 128 * sizeof(half));
  for (int i = 0; i < 128; i++) in[i] = i, sums[i] = 1000, counts[i] = __float2half(0), elsewhere[i] = -1;
  check_all<<<2, 128, 2048>>>(in, sums, counts, make_map(sums), changed, elsewhere, 0x3c003c00);
  unsigned wrong = 1;
  cudaMemcpyFromSymbol(&wrong, num_wrong, sizeof(wrong));
  for (int i = 0; i < 128; i++) wrong += sums[i] != 1000 + 4 * i || __half2float(counts[i]) != 2;
  for (int i = 0; i < 128; i++)
    wrong += elsewhere[i] != (i / 32 < 2 && i % 32 < 16 ? i / 32 * 16 + i % 32 : -1);
  printf(cudaGetLastError() == cudaSuccess && wrong == 0 ? "ok\n" : "wrong\n");
}
