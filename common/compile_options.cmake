# flashsteps_set_up(TARGET [UNSANITIZED]): how everything but the emulated kernels is compiled.

if(CMAKE_CXX_COMPILER_LAUNCHER)
  # No object may name this tree's folder, so that ccache can use it for other copies of the tree. A debugger that is
  # started in the tree still finds the sources.
  set(root_in_objects /proc/self/cwd)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}=${root_in_objects}>)
else()
  set(root_in_objects ${PROJECT_SOURCE_DIR})
endif()

# Applied per target and never globally: the emulated kernels have hooks of their own. UNSANITIZED: code that only
# calls what the sanitizers are to check is compiled as in a build without them, so that ccache already has it.
function(flashsteps_set_up target)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow>
                         # gcc 12 sees overlapping copies in std::string where there are none (its bug 105651).
                         $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
  if(FLASHSTEPS_SANITIZE AND NOT "UNSANITIZED" IN_LIST ARGN)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Og -UNDEBUG
                           -fsanitize=${FLASHSTEPS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  elseif(FLASHSTEPS_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  if(FLASHSTEPS_SANITIZE)
    target_link_options(${target} PUBLIC -fsanitize=${FLASHSTEPS_SANITIZE})
  endif()
endfunction()
