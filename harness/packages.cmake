# The libraries of the program and its tests: as installed, and where they are not, from their repositories.
include_guard(GLOBAL)
include(FetchContent)

# flashsteps_package(<name> <apt's name> <repository> <commit>)
macro(flashsteps_package name apt_name repository commit)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    message(STATUS "${name} is not installed (apt-get install ${apt_name}): fetching ${repository}")
    FetchContent_Declare(${name} GIT_REPOSITORY ${repository} GIT_TAG ${commit})
    FetchContent_MakeAvailable(${name})
  endif()
endmacro()

if(FLASHSTEPS_PROGRAM)
  flashsteps_package(nlohmann_json nlohmann-json3-dev
    https://github.com/nlohmann/json 9cca280a4d0ccf0c08f47a99aa71d1b0e52f8d03)  # 3.11.3
  flashsteps_package(CLI11 libcli11-dev
    https://github.com/CLIUtils/CLI11 6c7b07a878ad834957b98d0f9ce1dbe0cb204fc9)  # 2.4.2
else()
  find_package(nlohmann_json QUIET)
endif()
if(FLASHSTEPS_TESTS)
  flashsteps_package(Catch2 catch2
    https://github.com/catchorg/Catch2 fa43b77429ba76c462b1898d6cd2f2d7a9416b14)  # 3.7.1
endif()
