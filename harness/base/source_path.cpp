// A file of its own: it says where this tree is, so ccache has none of it for a copy of the tree.
#include <string_view>

#include "harness/base/build_info.h"

namespace flashsteps {

std::string source_path(const std::string& in_objects) {
  constexpr std::string_view kInObjects = FLASHSTEPS_ROOT_IN_OBJECTS "/";
  return in_objects.starts_with(kInObjects) ? FLASHSTEPS_ROOT "/" + in_objects.substr(kInObjects.size())
                                            : in_objects;
}

}  // namespace flashsteps
