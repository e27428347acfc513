// A file of its own: it says where this tree is, so ccache has none of it for a copy of the tree.
#include <string_view>

#include "harness/base/build_info.h"

namespace flashsteps {

std::string source_path(const std::string& in_objects) {
  constexpr std::string_view kInObjects = FLASHSTEPS_ROOT_IN_OBJECTS "/";
  if (in_objects.starts_with(kInObjects)) return FLASHSTEPS_ROOT "/" + in_objects.substr(kInObjects.size());
  if (in_objects.starts_with('/')) return in_objects;
  size_t below = 0;
  while (in_objects.compare(below, 3, "../") == 0) below += 3;  // ccache's, from the build folder
  return FLASHSTEPS_ROOT "/" + in_objects.substr(below);
}

}  // namespace flashsteps
