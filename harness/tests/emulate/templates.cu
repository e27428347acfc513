// A kernel that is a template, with a struct as a parameter; a kernel behind a pointer. Prints "ok".
#include <cuda_runtime.h>

#include <algorithm>
#include <iostream>
#include <vector>

struct Matrix {
  int rows, columns;
  __host__ __device__ int index(int row, int column) const { return row * columns + column; }
};

template <typename T, int TILE>
__global__ void transpose(Matrix shape, const T* in, T* out) {
  __shared__ T tile[TILE][TILE + 1];
  int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  if (row < shape.rows && column < shape.columns)
    tile[threadIdx.y][threadIdx.x] = in[shape.index(row, column)];
  __syncthreads();
  row = blockIdx.x * TILE + threadIdx.y, column = blockIdx.y * TILE + threadIdx.x;
  if (row < shape.columns && column < shape.rows)
    out[row * shape.rows + column] = tile[threadIdx.x][threadIdx.y];
}

__global__ void scale(Matrix shape, const double* in, double* out) {
  for (int i = threadIdx.x; i < shape.rows * shape.columns; i += blockDim.x) out[i] = min(1e9, 3 * in[i]);
}

int main() {
  Matrix shape{20, 50};
  std::vector<double> in(shape.rows * shape.columns), out(in.size());
  for (size_t i = 0; i < in.size(); i++) in[i] = i;
  double *d_in, *d_out;
  cudaMalloc(&d_in, in.size() * sizeof(double));
  cudaMalloc(&d_out, in.size() * sizeof(double));
  cudaMemcpy(d_in, in.data(), in.size() * sizeof(double), cudaMemcpyHostToDevice);

  dim3 block(8, 8);
  dim3 grid((shape.columns + block.x - 1) / block.x, (shape.rows + block.y - 1) / block.y);
  transpose<double, 8><<<grid, block>>>(shape, d_in, d_out);
  void (*kernel)(Matrix, const double*, double*) = scale;
  kernel<<<dim3(1), dim3(64, 1, 1)>>>(shape, d_out, d_in);
  cudaMemcpy(out.data(), d_in, in.size() * sizeof(double), cudaMemcpyDeviceToHost);

  int wrong = 0;
  for (int row = 0; row < shape.rows; row++)
    for (int column = 0; column < shape.columns; column++)
      wrong += out[column * shape.rows + row] != 3 * in[shape.index(row, column)];
  std::cout << (wrong == 0 ? "ok" : "wrong") << std::endl;
}
