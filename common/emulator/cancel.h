// How somebody who has lost patience ends a launch. Apart from emulator.h, which every kernel includes.
#pragma once

#include <atomic>

namespace emulator {

// While such a flag is set, launches end where their threads next wait for each other, and throw
// std::system_error(std::errc::operation_canceled). The emulator stays usable. nullptr: there is none.
void cancel_by(const std::atomic<bool>* flag);

}  // namespace emulator
