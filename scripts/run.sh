#!/usr/bin/env bash
# The main job: builds the program, runs every step, and writes a report with charts of the run.
#   bash scripts/run.sh [ARGUMENTS OF flashsteps run...]
# A GPU with a CUDA toolkit is used when there is one, otherwise the emulator on the CPU. What is missing is
# installed. Without named steps or a problem, the steps for few queries run once more, on such a problem. Exit
# status: that of flashsteps, of two runs the larger one. 0 all passed, 1 a step failed or nothing could run, 2 wrong use,
# 3 a step crashed or hung.
# For those who start it with sh.
[ -n "${BASH_VERSION:-}" ] || exec bash -- "$0" "$@"
set +o posix
set -euo pipefail
# By its real path, however it was called: a build through a symbolic link would be one of other files.
ROOT=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
# shellcheck source=scripts/lib.sh
. "$ROOT/scripts/lib.sh"
REPORT="$ROOT/build/report"

json="$REPORT/results.json" user_json=no backend=auto own_problem=no previous=
for argument in "$@"; do
  case $argument in
    --backend | --backend=* | auto | cuda | emulator) ;;
    *) own_problem=yes ;;
  esac
  case $argument in
    -h | --help)
      echo "usage: bash scripts/run.sh [ARGUMENT...]"
      echo "It passes its arguments to flashsteps run, e.g. --backend emulator or a step's name."
      echo "build/flashsteps run --help lists all of them."
      exit 0
      ;;
    --json=*) json=${argument#*=} user_json=yes ;;
    --backend=*) backend=${argument#*=} ;;
  esac
  case $previous in
    --json) json=$argument user_json=yes ;;
    --backend) backend=$argument ;;
  esac
  previous=$argument
done

install_packages run || complain "continuing without"
can_build || exit 1
lock run.sh

preset=emulator options=()
if [ "$backend" != emulator ] && have_gpu; then
  if find_nvcc >/dev/null; then
    preset=release options=(-DFLASHSTEPS_CUDA_ARCHITECTURES=native)
  else
    complain "there is a GPU but no nvcc: using the emulator. To use the GPU, install the CUDA Toolkit and run again"
  fi
fi

heading "building ($preset)"
give_ccache_a_folder  # a compiler may be ccache by another name
if ! (cd "$ROOT" && configure --preset "$preset" "${options[@]}" && cmake --build build -j "$(nproc)"); then
  complain "the build failed: see the errors above"
  [ "$preset" = emulator ] || complain "to run without the GPU: bash scripts/run.sh --backend emulator"
  exit 1
fi

heading "running"
arguments=()
# Or a run that fails early would show the results of the one before it.
mkdir -p "$REPORT"
rm -f "$REPORT"/{results,decode}.json "$REPORT"/index.html "$REPORT"/*.svg "$REPORT"/*.png
touch "$REPORT/.started"
[ "$user_json" = yes ] || arguments=(--json "$json")
status=0
"$ROOT/build/flashsteps" run "${arguments[@]}" "$@" || status=$?

# The steps for few queries and many keys show what they are for on such a problem only.
decode=() results=("$json")
if [ "$own_problem" = no ] && [ "$status" != 2 ]; then
  for kernel in $(cd "$ROOT/steps" && grep -l 'Part::kDecode' -- */kernel.cu); do decode+=("${kernel%/kernel.cu}"); done
fi
if [ "${#decode[@]}" -gt 0 ]; then
  heading "running decode steps on a decode problem"
  shape=1,8,2,1,1024,64 decode_status=0
  [ "$preset" = emulator ] || shape=8,32,8,1,8192,128
  "$ROOT/build/flashsteps" run "${decode[@]}" --shape "$shape" --json "$REPORT/decode.json" "$@" || decode_status=$?
  [ "$decode_status" -le "$status" ] || status=$decode_status
  [ ! -f "$REPORT/decode.json" ] || results+=("$REPORT/decode.json")
fi

page="" written=no
if [ -f "$json" ] && [ ! "$REPORT/.started" -nt "$json" ]; then
  written=yes
  heading "drawing"
  python=$VENV/bin/python
  # (The pinned versions of packages matter for the figures of this repository only.)
  make_venv "$ROOT/scripts/requirements.txt" || python=python3
  if "$python" "$ROOT/scripts/pages/report.py" "${results[@]}" --out "$REPORT" --program "$ROOT/build/flashsteps"; then
    page="$REPORT/index.html"
  else
    complain "there is no report; the results are complete"
  fi
fi

heading "done, flashsteps exit status $status"
if [ "$written" = yes ]; then
  echo "table:   above"
  printf 'results: %s\n' "${results[@]}"
  [ -z "$page" ] || echo "report:  $page"
fi
exit "$status"
