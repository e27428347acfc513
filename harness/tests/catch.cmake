# flashsteps_add_test(<name> <source>...): a Catch2 test program, registered with CTest under its own name. It leaves
# out the tests tagged [long]: those run kernels for long, on code that the others reach too; and [.], the hidden ones,
# which Catch2 2.13 would take as soon as a test is left out by name.
# flashsteps_add_long_tests(<name>): its tests tagged [long], which run beside the others, and not with sanitizers.
# Works with Catch2 3.x (which has a library with main) and 2.13 (header only: main is compiled once, for all).

if(NOT TARGET Catch2::Catch2WithMain)
  set(main ${PROJECT_BINARY_DIR}/generated/catch_main.cpp)
  file(CONFIGURE OUTPUT ${main} CONTENT "#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n")
  add_library(flashsteps_catch_main STATIC ${main})
  target_compile_features(flashsteps_catch_main PUBLIC cxx_std_20)
  target_link_libraries(flashsteps_catch_main PUBLIC Catch2::Catch2)
endif()

function(flashsteps_add_test name)
  add_executable(${name} ${ARGN})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_compile_options(${name} PRIVATE -Wall -Wextra $<$<CONFIG:Release>:-O1>)  # they compile longer than they run
  if(TARGET Catch2::Catch2WithMain)
    target_link_libraries(${name} PRIVATE Catch2::Catch2WithMain)
  else()
    target_link_libraries(${name} PRIVATE flashsteps_catch_main)
  endif()
  add_test(NAME ${name} COMMAND ${name} ~[long]~[.])
endfunction()

function(flashsteps_add_long_tests name)
  if(NOT FLASHSTEPS_SANITIZE)
    add_test(NAME ${name}_long COMMAND ${name} [long])
  endif()
endfunction()
