#!/usr/bin/env bash
# All tests that can run here, or those of some steps. Sections go on after a failure, so that one run shows everything.
#   bash scripts/test.sh [--all] [STEP...]
# A STEP may be the beginning of a name, as v05. Its kernel is built and checked, its variants and commands are run, its
# lesson and its compile checks are looked at. With --all, nvcc compiles the ablations, too, and for the newest GPUs.
# The last line is `N passed, M failed`, counted in sections; the exit status is 0 only when M is 0.
# For those who start it with sh.
[ -n "${BASH_VERSION:-}" ] || exec bash -- "$0" "$@"
set +o posix
set -euo pipefail
# By its real path, however it was called: a build through a symbolic link would be one of other files.
ROOT=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
# shellcheck source=scripts/lib.sh
. "$ROOT/scripts/lib.sh"
cd "$ROOT"

passed=0 failed=0 summary=()

# section NAME COMMAND...: runs it, in a subshell with `set -e`, and notes how it went.
section() {
  local name=$1 start=$SECONDS status=0 result
  shift
  heading "$name"
  # Not `if (...)`, not `(...) || ...`: both would switch `set -e` off inside.
  set +e
  (set -e; "$@")
  status=$?
  set -e
  if [ "$status" = 0 ]; then
    result=pass passed=$((passed + 1))
  else
    result=FAIL failed=$((failed + 1))
  fi
  summary+=("$(printf '%-24s %-8s %5d s' "$name" "$result" $((SECONDS - start)))")
}

not_here() { summary+=("$(printf '%-24s skipped: %s' "$1" "$2")"); }

# finish [REMARK]: says how it went, what took longest first, and ends.
finish() {
  heading "summary"
  printf '%s\n' "${summary[@]}" | sort -srnk 1.34
  [ $# = 0 ] || echo "$*"
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
  exit
}

compile_checks() {
  if [ -n "$nvcc" ]; then
    section "CUDA compile checks" cmake --build build/ci -j "$(nproc)" --target "$@"
  else
    not_here "CUDA compile checks" "no nvcc (the CUDA Toolkit: developer.nvidia.com/cuda-downloads)"
  fi
}

# As users install it: from an sdist, with the tools to build it from build/venv, so that nothing is downloaded.
python_module() {
  rm -rf build/dist && mkdir -p build/dist
  with_venv -c 'from scikit_build_core.build import build_sdist; build_sdist("build/dist")'
  # pip unpacks it in TMPDIR and builds it in a folder as deep as build/ci, with its options: ccache has most of it.
  TMPDIR=$ROOT/build/dist CCACHE_BASEDIR=$ROOT/build/dist with_venv -m pip install --quiet --disable-pip-version-check \
    --no-build-isolation --no-deps --force-reinstall build/dist/flashsteps-*.tar.gz \
    -C "build-dir=build/{wheel_tag}" -C cmake.define.FLASHSTEPS_WERROR=ON -C "cmake.define.${launcher[0]#-D}"
  # Of one GPU and its memory not several at a time.
  run_pytest -rs -n "$([ "$gpu" = yes ] && echo 0 || nproc)" --dist worksteal harness/python/tests
}

with_venv() {
  if ! "$VENV/bin/python" -c 'import pytest' 2>/dev/null; then
    complain "cannot run: build/venv has no pytest, the reason is at the top"
    return 1
  fi
  "$VENV/bin/python" "$@"
}

run_pytest() { with_venv -m pytest -q -p no:cacheprovider --durations=10 "$@"; }

build_ci() {
  local targets=()
  configure --preset ci "${launcher[@]}" "${gpu_options[@]}" "-DFLASHSTEPS_ABLATIONS=$ablations" \
    "-DFLASHSTEPS_TESTED_STEPS=$(IFS=';' && echo "${named[*]}")"
  [ "${#named[@]}" = 0 ] || targets=(--target flashsteps flashsteps_lab flashsteps_variants)
  cmake --build build/ci -j "$(nproc)" "${targets[@]}"
}

build_asan() {
  configure --preset asan "${launcher[@]}"
  cmake --build build/asan -j "$(nproc)" --target emulator_tests harness_tests
}

asan_tests() {
  build_asan
  ctest --test-dir build/asan -L emulator -j 2 --no-tests=error --output-on-failure
}

# Several at a time: between its launches a check keeps one core busy.
steps_on_emulator() {
  [ "${#steps[@]}" -gt 0 ] || { complain "there are no steps under steps/"; return 1; }
  local checked=("${steps[@]}") variant
  for variant in build/ci/library/*/; do  # steps that the build makes of variants
    [ "${#named[@]}" -gt 0 ] || checked+=("$(basename "$variant")")
  done
  printf '%s\n' "${checked[@]}" | xargs -P "$(nproc)" -I STEP build/ci/flashsteps check --backend emulator STEP
}

# Nothing is run: it shows that the emulator's fibers and hooks compile and link for the other architecture, and that
# a kernel does. The tool has all that runs a step.
aarch64_build() {
  configure --preset emulator -B build/aarch64 "${launcher[@]}" -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DFLASHSTEPS_TESTS=ON
  cmake --build build/aarch64 -j "$(nproc)" --target layouts "${steps[-1]}_on_emulator"
}

shopt -s nullglob
named=() ablations=
for argument in "$@"; do
  case $argument in
    --all) ablations=ALL; continue ;;
    -*) echo "usage: bash scripts/test.sh [--all] [STEP...]" >&2; exit 2 ;;
  esac
  found=(steps/"$argument"*/kernel.cu)
  [ ! -f "steps/$argument/kernel.cu" ] || found=("steps/$argument/kernel.cu")
  [ "${#found[@]}" = 1 ] || { complain "test.sh: '$argument' is not the name of one step under steps/"; exit 2; }
  found=${found[0]%/kernel.cu}
  named+=("${found#steps/}")
done

lock test.sh
install_packages tests || complain "continuing without"
make_venv scripts/requirements.txt scripts/requirements-test.txt || complain "the Python tests will fail"

python=$(any_python)
gpu_options=()
nvcc=$(find_nvcc) || nvcc=
gpu=no
if [ -n "$nvcc" ] && have_gpu; then
  gpu=yes gpu_options=(-DFLASHSTEPS_CUDA_ARCHITECTURES=native)
fi

# What one build has compiled, another takes over, also one of a copy of this tree.
launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=)
# In a folder with a '$' ccache would look for a variable of that name.
if have ccache && [[ $ROOT != *\$* ]]; then
  give_ccache_a_folder
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1 CMAKE_CUDA_COMPILER_LAUNCHER=ccache
fi

steps=(steps/*/kernel.cu)
steps=("${steps[@]%/kernel.cu}")
steps=("${steps[@]#steps/}")
[ "${#named[@]}" = 0 ] || steps=("${named[@]}")
[ -z "$ablations" ] || [ "${#named[@]}" = 0 ] || ablations=$(IFS=';' && echo "${named[*]}")

section "build, warnings fatal" build_ci
[ "${#named[@]}" -gt 0 ] \
  || section "program tests" ctest --test-dir build/ci -LE gpu -j 2 --no-tests=error --output-on-failure
# Every step, on the problems of the covering sample, in three modes of the emulator, with the race detector.
section "steps on the emulator" steps_on_emulator
if [ "${#named[@]}" -gt 0 ]; then
  # All that has the name of a step in its own.
  words=${named[*]}
  section "command line tests" run_pytest -n "$(nproc)" harness/tests -k "${words// / or }"
  section "lessons" run_pytest scripts/tests/test_lessons.py
  section "links" "$VENV/bin/rumdl" check --no-cache .
  section "generated text" "$python" scripts/pages/readme_tables.py --check
  compile_checks "${steps[@]/#/compile_checks_}"
  finish "only what ${words// /, } touches was tested. Everything: bash scripts/test.sh"
fi
# Tests that share what one of them builds are a group.
section "command line tests" run_pytest -n "$(nproc)" --dist loadgroup harness/tests
make_venv scripts/requirements-jax.txt || complain "without JAX its tests are skipped"
section "Python module" python_module
for framework in torch jax; do
  "$python" -c "import $framework" 2>/dev/null || not_here "Python module, $framework" \
    "build/venv has no $framework (build/venv/bin/python -m pip install $framework)"
done
section "address, UB sanitizer" asan_tests
# Each starts with a half of them, so that few fixtures of a module are made twice, and then helps the other.
section "script tests" run_pytest -n "$(nproc)" --dist worksteal scripts/tests --ignore scripts/tests/test_site.py
make_venv scripts/requirements-site.txt || complain "without Sphinx the site is not tested"
if "$python" -c 'import sphinx, myst_parser, furo' 2>/dev/null; then
  section "site" run_pytest scripts/tests/test_site.py  # all of it shares one build of the site
else
  not_here "site" "build/venv has no Sphinx (build/venv/bin/python -m pip install -r scripts/requirements-site.txt)"
fi
have chromium || have google-chrome || not_here "pages in a browser" "no Chromium (apt-get install -y chromium)"
section "links" "$VENV/bin/rumdl" check --no-cache .
section "workflows" "$VENV/bin/actionlint" .github/workflows/*.yml
section "generated text" "$python" scripts/pages/readme_tables.py --check

records=(figures/results/*.json)
if [ "${#records[@]}" -gt 0 ]; then
  section "recorded runs" "$python" scripts/records/results.py check --recorded "${records[@]}"
else
  not_here "recorded runs" "figures/results/ is empty"
fi
# What drawings must show is what the emulator does, so it takes the programs that were built; and matplotlib.
section "figures" with_venv scripts/draw/make_figures.py --check --build build/ci
section "story page" with_venv scripts/pages/story.py --check --build build/ci

if have aarch64-linux-gnu-g++; then
  section "aarch64 build" aarch64_build
else
  not_here "aarch64 build" "no aarch64-linux-gnu-g++ (apt-get install -y g++-aarch64-linux-gnu)"
fi
compile_checks "compile_checks${ablations:+_all}"
if [ "$gpu" = yes ]; then
  section "GPU tests" ctest --test-dir build/ci -L gpu --no-tests=error --output-on-failure
else
  not_here "GPU tests" "no GPU with a CUDA toolkit (run this on a machine that has one)"
fi
finish
