# A Python module is built for this machine, unless architectures are named: a build for all of them takes too long to
# surprise somebody with. Included before CUDA is looked for.
if(FLASHSTEPS_CUDA STREQUAL "AUTO" AND FLASHSTEPS_CUDA_ARCHITECTURES STREQUAL "")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE found RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed AND found MATCHES "^[0-9]" AND NOT found MATCHES "(^|\n)[1-7][.]")
    set(FLASHSTEPS_CUDA_ARCHITECTURES native)
  else()
    set(FLASHSTEPS_CUDA OFF)
    message(STATUS "No GPU of compute capability 8.0 or newer here: the module gets the CPU emulator only. For "
                   "another machine's: pip install . -C cmake.define.FLASHSTEPS_CUDA_ARCHITECTURES=90a")
  endif()
endif()
