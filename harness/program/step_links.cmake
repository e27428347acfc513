# cmake -DPROGRAM=... -DFOLDER=... -DSTEPS=... -P: the program once more under the name of each step (see main.cpp).
# Hard links, as some tools resolve symbolic ones and would start the program under its own name.
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
foreach(step ${STEPS})
  file(CREATE_LINK ${PROGRAM} ${FOLDER}/${step} COPY_ON_ERROR)
endforeach()
