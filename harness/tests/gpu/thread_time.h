// What a call costs the host, whoever else runs there: the time that the calling thread has computed.
#pragma once

#include <time.h>

inline double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}
