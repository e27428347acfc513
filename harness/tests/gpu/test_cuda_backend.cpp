// Launching, refusing, memory and timing on a real device, and the mutants.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <thread>

#include "common/cuda/launch.h"
#include "harness/device/backend.h"
#include "harness/device/ceilings.h"
#include "harness/device/cuda_timer.h"
#include "harness/run/timing.h"
#include "harness/tests/gpu/launch_kernels.h"
#include "harness/tests/mutant_cases.h"

using namespace flashsteps;

namespace {

GpuBackend& device() {
  static std::string why;
  static const std::unique_ptr<GpuBackend> backend = make_cuda_backend(why);
  INFO(why);
  REQUIRE(backend != nullptr);
  return *backend;
}

int smem_limit() { return device().device().at("smem_optin_bytes"); }

// 0 where the table lacks the card.
double peak_of(DType dtype) {
  return device().device().value("peak_tflops", nlohmann::json::object()).value(name(dtype), 0.0);
}

// Its tensor peak is then not that of mma.sync, whose rate there nobody has measured yet.
bool has_tcgen05() {
  const std::string capability = device().device().at("compute_capability");
  return capability.starts_with("10.");
}

AttentionCall call_with(int batch, int heads, int seqlen_q, int seqlen_kv, float* lse = nullptr) {
  AttentionCall call{};
  call.softmax_scale = 1.0f;
  call.dtype = DType::kFp16;
  call.head_dim = 64;
  call.batch = batch;
  call.num_heads_q = heads;
  call.seqlen_q = seqlen_q;
  call.seqlen_kv = seqlen_kv;
  call.lse = lse;
  return call;
}

AttentionCall spin_call(int kiloclocks) { return call_with(1, 1, kiloclocks, 1); }

// What it says when it throws; empty when it does not.
std::string sentence(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

float sum_of_shared_memory(int bytes) {
  float sum = -1;
  float* const lse = static_cast<float*>(device().allocate(sizeof(float)));
  device().run(kSharedMemory, call_with(1, 1, 1, bytes, lse));
  device().download(&sum, lse, sizeof(float));
  device().release(lse);
  return sum;
}

}  // namespace

TEST_CASE("prepare_launch reports the kernel's resources and the launch's shape") {
  device();
  const LaunchRecord record = prepare_launch(spin_kernel(), dim3(5, 6, 7), dim3(128, 2), 1000);
  CHECK(record.grid[0] == 5);
  CHECK(record.grid[1] == 6);
  CHECK(record.grid[2] == 7);
  CHECK(record.block[0] == 128);
  CHECK(record.block[1] == 2);
  CHECK(record.block[2] == 1);
  CHECK(record.smem_bytes == 1000);
  CHECK(record.registers > 0);
  CHECK(record.spill_bytes == 0);
  CHECK(record.ctas_per_sm >= 4);
  // All of an SM's shared memory: one CTA. Block size and shared memory are part of what is remembered.
  CHECK(prepare_launch(spin_kernel(), dim3(1), dim3(128, 2), size_t(smem_limit())).ctas_per_sm == 1);
  CHECK(prepare_launch(spin_kernel(), dim3(1), dim3(128, 2), 1000).ctas_per_sm == record.ctas_per_sm);
}

TEST_CASE("a grid that cannot be divided into its clusters is refused") {
  CHECK(sentence([] { check_cluster(4, dim3(8, 3)); }) == "");
  CHECK(sentence([] { check_cluster(3, dim3(6)); }) == "a cluster has 1, 2, 4 or 8 CTAs, not 3");
  CHECK(sentence([] { check_cluster(2, dim3(3)); }) == "grid.x is 3, not a multiple of the cluster's 2 CTAs");
}

TEST_CASE("prepare_launch costs next to nothing once it knows the kernel") {
  device();
  prepare_launch(spin_kernel(), dim3(1), dim3(32), 0);
  constexpr int kCalls = 100000;
  const double start = thread_seconds();
  for (int i = 0; i < kCalls; ++i) prepare_launch(spin_kernel(), dim3(unsigned(i + 1)), dim3(32), 0);
  const double ns = (thread_seconds() - start) / kCalls * 1e9;
  INFO(ns << " ns per call");
  CHECK(ns < 1000);
}

TEST_CASE("prepare_launch may be called from several threads") {
  device();
  std::vector<std::thread> threads;
  std::vector<int> wrong(8, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([t, &wrong] {
      for (size_t i = 0; i < 1000; ++i) {
        const size_t bytes = 16 * (i + t);
        const LaunchRecord record = prepare_launch(spin_kernel(), dim3(1), dim3(64), bytes);
        wrong[t] += record.smem_bytes != bytes || record.ctas_per_sm < 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) CHECK(count == 0);
}

TEST_CASE("a launch may use all of the shared memory, also after a smaller one of the same kernel") {
  for (const int bytes : {smem_limit(), 60000, 1000, smem_limit()})
    CHECK(sum_of_shared_memory(bytes) == float(bytes));
}

TEST_CASE("what cannot be launched is refused with the limit") {
  const std::string name = device().device().at("name");
  const int limit = smem_limit();
  const auto prepare = [](const void* kernel, dim3 grid, dim3 block, size_t smem_bytes) {
    return sentence([=] { prepare_launch(kernel, grid, block, smem_bytes); });
  };
  CHECK(prepare(spin_kernel(), dim3(1, 70000), dim3(32), 0) == "grid.y is 70000, the limit is 65535");
  CHECK(prepare(spin_kernel(), dim3(1, 1, 65536), dim3(32), 0) == "grid.z is 65536, the limit is 65535");
  CHECK(prepare(spin_kernel(), dim3(0), dim3(32), 0) == "grid.x is 0: the launch would be empty");
  CHECK(prepare(spin_kernel(), dim3(1), dim3(2048), 0) == "block.x is 2048, the limit is 1024");
  CHECK(prepare(spin_kernel(), dim3(1), dim3(32), size_t(limit) + 1024) ==
        "needs " + std::to_string(limit / 1024 + 1) + " KiB of shared memory per CTA, " + name + " allows " +
            std::to_string(limit / 1024) + " KiB");
  CHECK(contains(prepare(spin_kernel(), dim3(1), dim3(32), size_t(limit) + 1),
                 std::to_string(limit + 1) + " bytes"));
  CHECK(contains(prepare(spin_kernel(), dim3(1), dim3(1024, 2), 0), "has 2048 threads per CTA"));
  const std::string narrow = prepare(narrow_kernel(), dim3(1), dim3(128), 0);
  INFO(narrow);
  CHECK(contains(narrow, "has 128 threads per CTA"));
  CHECK(contains(narrow, "allow 64"));
}

TEST_CASE("refusal() says what launching would, and leaves the device usable") {
  CHECK(device().refusal(kGrid, call_with(1, 8, 1, 1)) == "");
  CHECK(device().refusal(kGrid, call_with(70000, 8, 1, 1)) == "grid.z is 70000, the limit is 65535");
  CHECK(contains(device().refusal(kSharedMemory, call_with(1, 1, 1, smem_limit() + 1)),
                 "of shared memory per CTA"));
  AttentionCall fp32 = call_with(1, 1, 1, 1);
  fp32.dtype = DType::kFp32;
  CHECK(device().refusal(kGrid, fp32) == "supports fp16 and bf16, not fp32");
  Step of_the_future = kGrid;
  of_the_future.info.needs_sm = "999";
  // Its grid is refused as well: the architecture comes first.
  CHECK(contains(device().refusal(of_the_future, call_with(70000, 8, 1, 1)), "needs sm_999 or newer, "));
  CHECK(sentence([] { device().run(kGrid, call_with(1, 8, 1, 1)); }) == "");
}

TEST_CASE("too much memory is refused with size and what is free, and leaves the device usable") {
  const std::string refused = sentence([] { device().allocate(size_t(1) << 50); });
  INFO(refused);
  CHECK(contains(refused, "1048576.00 GiB"));
  CHECK(contains(refused, "are free"));
  CHECK(sentence([] { device().run(kGrid, call_with(1, 8, 1, 1)); }) == "");
}

TEST_CASE("what was uploaded comes back") {
  std::vector<uint32_t> sent(size_t(10) << 20), received(sent.size());
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = uint32_t(i) * 2654435761u;
  const size_t bytes = sent.size() * sizeof(uint32_t);
  void* const memory = device().allocate(bytes);
  CHECK(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
  device().upload(memory, sent.data(), bytes);
  device().download(received.data(), memory, bytes);
  device().release(memory);
  CHECK(sent == received);
}

TEST_CASE("a timer's sample follows the kernel's length") {
  const auto tiny = device().make_timer(kSpin, spin_call(20), /*cold_l2=*/false);
  CHECK(tiny->method().at("graph") == true);
  CHECK(tiny->method().at("launches_per_sample") > 50);
  const auto one = device().make_timer(kSpin, spin_call(2000), /*cold_l2=*/false);
  const auto two = device().make_timer(kSpin, spin_call(4000), /*cold_l2=*/false);
  CHECK(one->method().at("graph") == false);
  CHECK(two->method().at("launches_per_sample") >= 1);
  for (int round = 0; round < 3; ++round) {
    const double tiny_ms = tiny->sample(), one_ms = one->sample(), two_ms = two->sample();
    INFO(tiny_ms << " ms, " << one_ms << " ms, " << two_ms << " ms");
    CHECK(tiny_ms > 0);
    CHECK(one_ms > 20 * tiny_ms);
    CHECK(two_ms > 1.7 * one_ms);
    CHECK(two_ms < 2.3 * one_ms);
  }
}

TEST_CASE("with a cold L2 the flush is outside of the time, and nothing is left in L2") {
  const auto spin = device().make_timer(kSpin, spin_call(20), /*cold_l2=*/true);
  CHECK(spin->method().at("l2") == "cold");
  CHECK(spin->method().at("graph") == false);
  CHECK(spin->sample() < 0.03);  // the flush alone takes longer than 20,000 clocks
  // A load from L2 returns sooner than one from memory. 8 MB are in L2, if nobody has flushed it.
  constexpr int kLoads = 2048, kDistance = 1024;
  std::vector<float> next(kLoads * kDistance);
  for (int i = 0; i < kLoads; ++i) next[i * kDistance] = float((i + 1) * kDistance);
  float* const chain = static_cast<float*>(device().allocate(next.size() * sizeof(float)));
  device().upload(chain, next.data(), next.size() * sizeof(float));
  const AttentionCall call = call_with(1, 1, 1, kLoads, chain);
  const double warm_ms = device().make_timer(kFollow, call, /*cold_l2=*/false)->sample();
  const double cold_ms = device().make_timer(kFollow, call, /*cold_l2=*/true)->sample();
  device().release(chain);
  INFO(warm_ms << " ms, cold " << cold_ms << " ms");
  CHECK(cold_ms > 1.3 * warm_ms);
  const size_t bytes = 64 << 20;
  const auto read = device().make_cold_read(bytes);
  REQUIRE(read != nullptr);
  CHECK(read->method().at("work") == double(bytes));
  const CeilingLaunch way = make_read_loops(bytes, nullptr).back();
  const auto one_way = make_cuda_timer(nullptr, {way.run, {}}, make_l2_flush(nullptr));
  CHECK(read->sample() < 1.1 * one_way->sample());  // the quickest way
  CHECK(device().make_cold_read(0) == nullptr);
}

TEST_CASE("a launch that takes longer than a sample is timed alone") {
  const auto timer = device().make_timer(kSpin, spin_call(50000), /*cold_l2=*/false);
  CHECK(timer->method().at("launches_per_sample") == 1);
  CHECK(timer->sample() > 5);
}

TEST_CASE("what a launch without a graph keeps the host is outside of the time") {
  const AttentionCall call = spin_call(3000);  // more than 1.5 ms
  const auto best_of = [&](std::chrono::microseconds host) {
    const auto timer = make_cuda_timer(nullptr, {[&call, host] {
                                                   std::this_thread::sleep_for(host);
                                                   kSpin.run(call, nullptr);
                                                 },
                                                 {}});
    CHECK(timer->method().at("graph") == false);
    double least = timer->sample();
    for (int i = 0; i < 10; ++i) least = std::min(least, timer->sample());
    return least;
  };
  const double quick_ms = best_of(std::chrono::microseconds(0)),
               slow_ms = best_of(std::chrono::microseconds(500));
  INFO(quick_ms << " ms, with a slow host " << slow_ms << " ms");
  CHECK(slow_ms < 1.05 * quick_ms);
}

TEST_CASE("every ceiling lies between half of what its unit can do at the maximum clock, and that") {
  const nlohmann::json facts = device().device();
  const double clocks = 1e6 * facts.at("max_sm_clock_mhz").get<double>() * facts.at("sm_count").get<double>();
  const auto attribute = [](cudaDeviceAttr which) {
    int value = 0;
    cudaDeviceGetAttribute(&value, which, 0);
    return double(value);
  };
  // Two transfers in a clock of the memory. 0 where the card does not say.
  const double bandwidth =
      2e3 * attribute(cudaDevAttrMemoryClockRate) * attribute(cudaDevAttrGlobalMemoryBusWidth) / 8;
  const double tensor = 1e12 * peak_of(DType::kBf16);
  // Where there is wgmma, mma.sync has no more than about two thirds of the tensor cores' rate.
  const double mma_sync = facts.at("compute_capability") == "9.0" ? tensor * 2 / 3 : tensor;
  const std::map<std::string, double> peaks{
      {"matmul", tensor},
      {"mma_sync", mma_sync},
      {"wgmma", tensor},
      {"fma", 1e12 * peak_of(DType::kFp32)},
      {"exp2", 16 * clocks},  // a clock, of an SM: CUDA Programming Guide, "Throughput of Native
                              // Arithmetic..."
      {"exp2_beside_wgmma", 16 * clocks},
      {"shared", clocks},  // 32 banks of 4 bytes
      {"read", bandwidth},
      {"copy", bandwidth}};
  CHECK(peaks.size() == std::size(kCeilings));
  for (const std::string name : kCeilings) {
    const auto ceiling = device().make_ceiling(name);
    if (ceiling == nullptr) {
      WARN("not measured here: " << name);
      if (name.ends_with("wgmma")) CHECK(facts.at("compute_capability") != "9.0");
      CHECK((name.ends_with("wgmma") || name == "matmul"));
      continue;
    }
    const nlohmann::json method = ceiling->method();
    CHECK(method.at("graph") == false);
    const double work = method.at("work"), rate = work / (ceiling->sample() * 1e-3), peak = peaks.at(name);
    INFO(name << ": " << rate << " " << method.at("unit") << " a second, peak " << peak);
    CHECK(rate > 1e9);
    if (peak > 0) {
      CHECK(rate < 1.02 * peak);
      if (name != "mma_sync" || !has_tcgen05()) CHECK(rate > 0.5 * peak);
    }
  }
}

TEST_CASE("a bench without steps measures the ceilings") {
  Runner runner("cuda", /*in_process=*/true, 60);
  const Ceilings ceilings = ceilings_of(time_ceilings(runner, 2));
  for (const char* const name : {"mma_sync", "fma", "exp2", "shared", "read", "copy"}) {
    INFO(name);
    REQUIRE(ceilings.contains(name));
    CHECK(ceilings.at(name).per_second() > 1e9);
  }
}

TEST_CASE("the device describes itself") {
  const nlohmann::json facts = device().device();
  for (const char* key : {"name", "compute_capability", "driver", "cuda_runtime"})
    CHECK(facts.at(key).is_string());
  for (const char* key : {"sm_count", "l2_bytes", "memory_bytes", "smem_optin_bytes", "max_sm_clock_mhz"}) {
    INFO(key);
    CHECK(facts.at(key) > 0);
  }
  CHECK(device().free_memory() > 0);
  CHECK(device().sm_clock_mhz() <= facts.at("max_sm_clock_mhz").get<int>());
}

// ---- The broken kernels again, on a device

TEST_CASE("the device's mutants are rejected") {
  check_mutants(device());
  check_e4m3_mutants(device());
  check_backward_mutants(device());
  check_mutants_on_the_sample(device());
  check_workspaces(device());
}

TEST_CASE("the one key among 65,536 that has the answer is found in FP8 as often as in bf16") {
  check_needles(device(), 1 << 16);
}

TEST_CASE("a step whose calls share memory is rejected when two of them run at a time") {
  Problem problem = mutant_problem({}, DType::kBf16, Inputs::kNormal), other = problem;
  ++other.seed;
  Workload workload(problem), other_workload(other);
  DeviceTensors tensors(device(), workload), other_tensors(device(), other_workload);
  for (const char* const name : {"split", "split_shared_by_calls"}) {
    const Step& step = *find_step(name, BackendKind::kCuda);
    tensors.prepare_for(step, AttentionCall::kChosenByStep);
    other_tensors.prepare_for(step, AttentionCall::kChosenByStep);
    const std::string found = disturbance(device(), step, tensors, other_tensors);
    INFO(found);
    CHECK((found.find("while another call of the step runs") == 0) == (std::string(name) != "split"));
  }
}
