// A step could not be run to its end.
#pragma once

#include <stdexcept>
#include <string>

namespace flashsteps {

struct DeviceError : std::runtime_error {
  enum class Kind {
    kCrash,  // illegal address, launch failure: the step cannot go on
    kHang,   // the emulator found that no thread can proceed
    kBug,    // the emulator named a bug that hardware might let pass: a race, a divergent warp
  };
  explicit DeviceError(const std::string& what, Kind kind_ = Kind::kCrash, bool device_lost_ = true)
      : std::runtime_error(what), kind(kind_), device_lost(device_lost_) {}
  Kind kind;
  bool device_lost;  // a CUDA context does not survive an error: nothing else can run in this process
};

}  // namespace flashsteps
