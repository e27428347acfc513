#include "harness/base/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

namespace flashsteps {

void Progress::show(const std::string& text) {
  if (!isatty(STDERR_FILENO)) return;
  // Of a line that wraps, only the last part would be rewritten. The last column stays free: some terminals
  // wrap as soon as it is filled.
  winsize window{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
  size_t length = std::min<size_t>(text.size(), (known ? window.ws_col : 80) - 1);
  if (length < text.size()) {
    while (length > 0 && (text[length] & 0xc0) == 0x80) --length;  // not within a character of UTF-8
  }
  std::cerr << "\r\033[K" << text.substr(0, length) << std::flush;
  shown_ = true;
}

void Progress::clear() {
  if (shown_) std::cerr << "\r\033[K" << std::flush;
  shown_ = false;
}

}  // namespace flashsteps
