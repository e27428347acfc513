// A file that is replaced as a whole, or not at all: whatever ends the program before.
#pragma once

#include <string>

namespace flashsteps {

// Throws std::runtime_error when it cannot; then what was there stays.
void replace_file(const std::string& path, const std::string& text);

// Throws UsageError, which begins with the option, when no file can be written at `path`; leaves nothing
// behind. Returns where it will be written: links are followed.
std::string check_writable(const std::string& option, const std::string& path);

}  // namespace flashsteps
