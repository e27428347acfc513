// Stands in for gpu.cpp in a build without the CUDA toolkit.
#include <stdexcept>

#include "harness/device/gpu.h"
#include "harness/include/flashsteps.h"

namespace flashsteps {
namespace {

[[noreturn]] void refuse() { throw std::runtime_error(missing_gpu()); }

}  // namespace

std::string missing_gpu() { return "this build of FlashSteps has the CPU emulator only"; }
const Gpu& current_gpu() { refuse(); }
void drop_old_gpu_error() {}
CurrentDevice::CurrentDevice(int) { refuse(); }
CurrentDevice::~CurrentDevice() = default;
void* gpu_allocate(size_t) { refuse(); }
void gpu_release(void*) {}
void gpu_upload(void*, const void*, size_t, void*) { refuse(); }
void gpu_download(void*, const void*, size_t, void*) { refuse(); }
void gpu_fill_zero(void*, size_t, void*) { refuse(); }
unsigned* gpu_counters(void*) { refuse(); }
int max_sm_clock_mhz(int) { refuse(); }
double gpu_peak_tflops(int, DType) { refuse(); }

}  // namespace flashsteps
