// A place where steps run: a CUDA device or the emulator. The harness sees both only through this.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/device_error.h"
#include "common/interface.h"
#include "harness/base/json.h"
#include "harness/problem/problem.h"

namespace flashsteps {

// How the emulator runs a step: when asynchronous copies land, in which order threads run, what is watched.
struct EmulatorMode {
  std::string async = "early";  // early | late | random
  bool hostile = false;  // seeded random order of CTAs, warps and lanes, preemption at shared-memory accesses
  bool last_cta_first = false;  // unless hostile
  bool race_detector = false;
  bool count = false;
  uint64_t seed = 1;
  Poison poison = Poison::kNan;  // of shared memory that nobody has written, and of copies on their way
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EmulatorMode, async, hostile, last_cta_first, race_detector, count, seed)

// Times one prepared call.
class Timer {
 public:
  virtual ~Timer() = default;
  // Milliseconds per launch, from CUDA events around a batch of launches that takes a few milliseconds or
  // more. `while_running` is called on the host while the device works on the batch: the time to read its
  // clocks.
  virtual double sample(const std::function<void()>& while_running = {}) = 0;
  // How the batch is launched: {"launches_per_sample": n, "graph": bool}, and "l2": "cold" where that was
  // asked for. Of a ceiling also what it is, for people, and the work of a launch in some unit: FLOP, exp2,
  // wavefronts, bytes.
  virtual json method() const = 0;
};

// What somebody else's call needs to be timed. A call that is short is recorded, so many launches at once,
// and timed by what replays them: the host could not launch them as fast as they run. `record` returns that,
// or nothing where it cannot be done.
struct TimedCall {
  std::function<void()> launch;
  std::function<std::function<void()>(int launches)> record;
};

// What steps are compared with, measured beside them: a bf16 8192^3 matrix product by the vendor's library,
// and one unit of the device at a time (see ceiling_loops.cu): tensor cores through mma.sync and through
// wgmma, FP32 multiply-adds, exp2, shared memory, and global memory that is read or copied. And exp2 while
// wgmma keeps the tensor cores busy.
constexpr const char* kCeilings[] = {"matmul", "mma_sync", "wgmma", "fma", "exp2", "exp2_beside_wgmma",
                                     "shared", "read",     "copy"};
// And with a cold L2, as many bytes of global memory as the problem's K and V have, only read.
constexpr const char* kReadKv = "read_kv";

// What a kernel did so often, in the keys of docs/results-schema.md.
using Counters = std::map<std::string, uint64_t>;

class GpuBackend;
class EmulatorBackend;

// What every place can do. The rest is gpu()'s or emulator()'s.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual BackendKind kind() const = 0;
  // Throws std::runtime_error on the emulator: it has no timing model.
  virtual GpuBackend& gpu() { throw std::runtime_error("the emulator has no timing model"); }
  virtual EmulatorBackend* emulator() { return nullptr; }  // nullptr: this is a GPU

  // Device memory, 256-byte aligned. Throws std::runtime_error naming the size when there is not enough.
  virtual void* allocate(size_t bytes) = 0;
  // For tensors of which only a few rows are touched. The emulator then needs memory for those rows only.
  virtual void* allocate_sparse(size_t bytes) { return allocate(bytes); }
  virtual void release(void* device) = 0;
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;
  // Of device memory, an even number of bytes: another one when something there has changed.
  virtual uint64_t checksum(const void* device, size_t bytes) = 0;
  virtual size_t free_memory() const = 0;

  // Why this device cannot run the step on this call (architecture, shared memory, grid size), with the
  // limit; empty when it can. Includes flashsteps::refusal().
  std::string refusal(const Step& step, const AttentionCall& call);
  // Why this device's architecture is not the step's; empty when it is.
  virtual std::string architecture_refusal(const StepInfo&) const { return ""; }
  // What the step would launch for this call. Launches nothing.
  std::vector<LaunchRecord> describe(const Step& step, const AttentionCall& call);

  // Runs the step once and waits for it. Throws DeviceError.
  virtual void run(const Step& step, const AttentionCall& call) = 0;

  // Who this is, for the provenance record; see docs/results-schema.md, "device".
  virtual json device() const = 0;
};

// A GPU has clocks and caches, and runs several kernels at a time.
class GpuBackend : public Backend {
 public:
  BackendKind kind() const override { return BackendKind::kCuda; }
  GpuBackend& gpu() override { return *this; }

  // Calls of the step at the same time, over and over: each from a thread of its own and on a stream of its
  // own. After every round, check(i) looks at what call i has left.
  virtual void run_together(const Step& step, const std::vector<AttentionCall>& calls,
                            const std::function<void(size_t i)>& check) = 0;

  // Warm-up, batch size, graph capture when a launch is short.
  virtual std::unique_ptr<Timer> make_timer(const Step& step, const AttentionCall& call, bool cold_l2) = 0;
  // The same of a call that is put on stream().
  virtual std::unique_ptr<Timer> make_timer(const TimedCall& call, bool cold_l2) = 0;
  virtual void* stream() = 0;  // CUDA's own: where steps run
  // Milliseconds of a launch of so many, put on any stream of this device.
  virtual double time_launches(void* stream, const std::function<void()>& launch, int launches) = 0;
  // One of kCeilings; nullptr when the device does not have it, as wgmma, or without the vendor's library.
  virtual std::unique_ptr<Timer> make_ceiling(const std::string& name) = 0;
  // kReadKv, of so many bytes; nullptr when there are none, or no memory for them.
  virtual std::unique_ptr<Timer> make_cold_read(size_t bytes) = 0;
  virtual int sm_clock_mhz() = 0;  // now; 0 when unknown
};

// The emulator can be told how to run, and tells what it has seen.
class EmulatorBackend : public Backend {
 public:
  BackendKind kind() const override { return BackendKind::kEmulator; }
  EmulatorBackend* emulator() override { return this; }

  // For the following run() calls.
  virtual void set_mode(const EmulatorMode& mode) = 0;
  // On how many SMs steps shall think that they run, from now on: they share out their work by that. 0: on as
  // few as it has otherwise.
  virtual void set_num_sms(int num_sms) = 0;
  // What each kernel of the last run() counted.
  virtual std::vector<Counters> counters() const = 0;
  // Runs the step once and returns what one of its CTAs does, as docs/pipeline.md describes it.
  virtual json trace(const Step& step, const AttentionCall& call, uint64_t cta) = 0;
};

// nullptr when there is no usable device; `why` then says so in a line ("no NVIDIA driver", "sm_75 is too
// old: ...").
std::unique_ptr<GpuBackend> make_cuda_backend(std::string& why, int device = 0);
std::unique_ptr<EmulatorBackend> make_emulator_backend();

}  // namespace flashsteps
