#include "common/emulator/elect.h"

#include "common/emulator/aligned.h"
#include "common/emulator/core.h"

namespace emulator {

bool elect_one(Location at) {
  bool elected = false;
  // Which lane it is, is the hardware's business: a kernel that counts on lane 0 is found out by a random
  // one.
  const Execute execute = [](void* const* args, unsigned lanes) {
    check_aligned(lanes);
    const int lane = cta->options.shuffle ? int(cta->random.next() % kWarpSize) : 0;
    *static_cast<bool*>(args[lane]) = true;
  };
  collective("elect.sync", 0xffffffff, &elected, execute, at);
  return elected;
}

}  // namespace emulator
