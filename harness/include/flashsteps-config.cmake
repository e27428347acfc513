# flashsteps::flashsteps is the library that flashsteps.h declares. The emulator for CUDA programs of one's own is
# flashsteps_add_emulated_executable().
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/flashsteps-targets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/flashsteps-emulate.cmake)
