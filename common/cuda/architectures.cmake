# Which GPU architectures a kernel is compiled for. An architecture is a number as in sm_90, with `a` for sm_90a (code
# that runs on compute capability 9.0 alone) or with `-ptx` for PTX, which newer GPUs run too.

# What FLASHSTEPS_CUDA_ARCHITECTURES asks for.
function(flashsteps_requested_architectures result requested)
  if(requested STREQUAL "native")
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE capabilities RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(failed)
      message(FATAL_ERROR "FLASHSTEPS_CUDA_ARCHITECTURES=native, but nvidia-smi finds no GPU here")
    endif()
    string(REPLACE "\n" ";" capabilities "${capabilities}")
    list(REMOVE_DUPLICATES capabilities)
    string(REPLACE "." "" requested "${capabilities}")
    string(REPLACE "90" "90a" requested "${requested}")  # wgmma and setmaxnreg exist in sm_90a only
  elseif(requested STREQUAL "")
    set(requested 80 86 89 90a 120 80-ptx)
  endif()
  set(${result} "${requested}" PARENT_SCOPE)
endfunction()

# The GPUs that a kernel runs on: the `needs_sm = "..."` of its source, as in a step's registration (Architecture in
# common/interface.h says what it means). 80 where nothing is said; two different ones in one source are an error.
function(flashsteps_needs_sm result source)
  file(STRINGS ${source} lines REGEX "needs_sm *= *\"")
  string(REGEX MATCHALL "needs_sm *= *\"[^\"]*\"" found "${lines}")
  list(TRANSFORM found REPLACE "needs_sm *= *\"([^\"]*)\"" "\\1")
  list(REMOVE_DUPLICATES found)
  list(LENGTH found count)
  if(count GREATER 1)
    message(FATAL_ERROR "${source}: needs_sm has several values: ${found}")
  endif()
  if(count EQUAL 0)
    set(found 80)
  elseif(NOT found MATCHES "^[0-9]+a?$")
    message(FATAL_ERROR "${source}: needs_sm is \"${found}\", it must be like \"80\" or \"90a\"")
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# Those of the architectures ARGN that can run code which needs sm_<needs_sm>. If an older architecture is requested as
# PTX, the code is compiled to PTX for sm_<needs_sm>. Code that needs exactly 90a never becomes PTX, and a request for 90
# gives it 90a.
function(flashsteps_architectures_from result needs_sm)
  set(selected "")
  string(REGEX REPLACE "a$" "" exact_number ${needs_sm})
  foreach(architecture ${ARGN})
    string(REGEX MATCH "^[0-9]+" number ${architecture})
    if(needs_sm MATCHES "a$")
      if(architecture MATCHES "^${exact_number}a?$")
        list(APPEND selected ${needs_sm})
      endif()
    elseif(number GREATER_EQUAL needs_sm)
      list(APPEND selected ${architecture})
    elseif(architecture MATCHES "-ptx$")
      list(APPEND selected ${needs_sm}-ptx)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES selected)
  set(${result} "${selected}" PARENT_SCOPE)
endfunction()

# nvcc's options for them.
function(flashsteps_gencode result)
  set(options "")
  foreach(architecture ${ARGN})
    if(architecture MATCHES "^([0-9]+)-ptx$" AND CMAKE_MATCH_1 GREATER_EQUAL 80)
      list(APPEND options "SHELL:-gencode arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1}")
    elseif(architecture MATCHES "^([0-9]+)a?$" AND CMAKE_MATCH_1 GREATER_EQUAL 80)
      list(APPEND options "SHELL:-gencode arch=compute_${architecture},code=sm_${architecture}")
    else()
      message(FATAL_ERROR "architecture '${architecture}': FlashSteps needs sm_80 (Ampere) or newer")
    endif()
  endforeach()
  set(${result} "${options}" PARENT_SCOPE)
endfunction()
