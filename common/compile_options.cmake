# flashsteps_set_up(TARGET [UNSANITIZED]): how everything but the emulated kernels is compiled.

if(CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache keeps serves other copies of this tree, so no object may name this one. A debugger that is started in
  # the tree finds its files all the same.
  set(root_in_objects /proc/self/cwd)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}=${root_in_objects}>)
else()
  set(root_in_objects ${PROJECT_SOURCE_DIR})
endif()

# Applied per target and never globally: the emulated kernels have hooks of their own. UNSANITIZED: what only calls the
# code that sanitizers are to look at is compiled as without them, so that ccache has it.
function(flashsteps_set_up target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
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
