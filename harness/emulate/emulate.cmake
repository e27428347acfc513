# flashsteps_add_emulated_executable(TARGET SOURCE...): an executable of CUDA files (.cu) for the CPU emulator, and of
# other sources. Its launches run as with `flashsteps emulate`, and a finding makes its exit status 1, so that a test
# fails. Of the target's properties, CUDA files get the include directories and the compile definitions, also those of
# what it is linked to. FLASHSTEPS_EMULATE_MODE in a test's environment is early, late or random, and
# FLASHSTEPS_EMULATE_SEED a number.
function(flashsteps_add_emulated_executable target)
  flashsteps_emulated_link_options(link_options)
  set(gcc g++)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(gcc ${CMAKE_CXX_COMPILER})
  endif()
  set(folders $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
  set(macros $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
  set(sources "")
  foreach(source ${ARGN})
    if(source MATCHES "[.]cu$")
      cmake_path(ABSOLUTE_PATH source)
      cmake_path(GET source FILENAME name)
      set(object ${CMAKE_CURRENT_BINARY_DIR}/${target}.${name}.o)
      add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM COMMAND_EXPAND_LISTS
        COMMENT "Building ${name} for the emulator"
        COMMAND flashsteps::emulated_object ${gcc} ${source} ${object}
          "$<$<BOOL:${folders}>:-I$<JOIN:${folders},;-I>>" "$<$<BOOL:${macros}>:-D$<JOIN:${macros},;-D>>")
      list(APPEND sources ${object})
    else()
      list(APPEND sources ${source})
    endif()
  endforeach()
  add_executable(${target} ${sources})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${target} PRIVATE flashsteps::emulator)
  target_link_options(${target} PRIVATE ${link_options})
endfunction()

# How such a program is linked: with its relocations, which tell what __shared__ variables a kernel has, and with the
# emulator's functions in the place of these, where a kernel calls them (device_heap.cpp).
function(flashsteps_emulated_link_options result)
  set(wrapped malloc free _Znwm _Znam _ZdlPv _ZdaPv _ZdlPvm _ZdaPvm __assert_fail)
  list(TRANSFORM wrapped PREPEND -Wl,--wrap=)
  set(${result} -Wl,--emit-relocs ${wrapped} PARENT_SCOPE)
endfunction()
