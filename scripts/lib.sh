# shellcheck shell=bash
# Shared by run.sh and test.sh, which source it: set-up that never asks anything.
# Needs ROOT, the repository, to be set.

VENV="$ROOT/build/venv"

# What would make the tools below work on something else: another repository, as in a git hook, another Python's modules,
# or a notebook's way to draw, which is not installed in build/venv.
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_COMMON_DIR GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES \
  GIT_NAMESPACE GIT_PREFIX PYTHONHOME PYTHONPATH MPLBACKEND

have() { command -v "$1" >/dev/null 2>&1; }
heading() { printf '\n==> %s  (after %d s)\n' "$1" "$SECONDS"; }
complain() { printf '%s\n' "$*" >&2; }

# include_works HEADER...: does the compiler find one of them, wherever it was installed?
include_works() {
  local header
  for header in "$@"; do
    g++ -E -x c++ - <<<"#if !__has_include(<$header>)"$'\n#error\n#endif' >/dev/null 2>&1 && return 0
  done
  return 1
}

# python_headers PYTHON: are there the headers to compile a module for it?
python_headers() {
  local look='import os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h"))'
  "$1" -c "$look" >/dev/null 2>&1
}

# The first Python >= 3.10 that can make a virtual environment. A version manager's python3 may come first on
# PATH and be too old, and Debian's own has no ensurepip until python3-venv is there.
find_python() {
  local python
  for python in python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
      command -v "$python"
      return 0
    fi
  done
  return 1
}

# missing_packages run|tests|browser: what to install, one apt package a word. A browser is large, so it is a
# group of its own, which only CI asks for.
missing_packages() {
  local missing=()
  if [ "$1" = browser ]; then
    have chromium || have google-chrome || echo chromium
    return
  fi
  have g++ || missing+=(g++)
  have cmake || missing+=(cmake)
  have ninja || missing+=(ninja-build)
  have git || missing+=(git)
  have objdump || missing+=(binutils)
  have python3 || missing+=(python3)
  [ -x "$VENV/bin/python" ] || find_python >/dev/null || missing+=(python3-venv)
  # Without a compiler nobody can tell, so then they are asked for as well: apt knows what is there.
  include_works nlohmann/json.hpp || missing+=(nlohmann-json3-dev)
  include_works CLI/CLI.hpp || missing+=(libcli11-dev)
  if [ "$1" = tests ]; then
    have ccache || missing+=(ccache)
    include_works catch2/catch.hpp catch2/catch_all.hpp || missing+=(catch2)
    python_headers "$(any_python)" || missing+=(python3-dev)
  fi
  echo "${missing[*]-}"
}

# install_packages run|tests|browser: installs what is missing, or says in a line what that is and returns 1.
install_packages() {
  local missing as_root=()
  missing=$(missing_packages "$1")
  [ -n "$missing" ] || return 0
  local why="no apt-get here"
  if have apt-get; then
    why="no root, and sudo would ask for a password"
    if [ "$(id -u)" = 0 ]; then
      why=
    elif have sudo && sudo -n true >/dev/null 2>&1; then
      why=
      as_root=(sudo -n)
    fi
  fi
  if [ -z "$why" ]; then
    heading "installing $missing"
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq)
    # $missing is a list of words.
    # shellcheck disable=SC2086
    { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends $missing; } </dev/null >&2 \
      || why="apt-get failed"
    missing=$(missing_packages "$1")
    [ -n "$missing" ] || return 0
  fi
  why=${why:-still not found after apt-get}
  complain "missing: $missing ($why). Install with: apt-get install -y $missing"
  return 1
}

# can_build: what no build can do without. Says what is missing in one line.
can_build() {
  local tool version
  for tool in g++ cmake ninja; do
    have "$tool" || { complain "cannot build: $tool is missing"; return 1; }
  done
  version=$(cmake --version | sed -n 's/^cmake version \([0-9]*\.[0-9]*\).*/\1/p')
  if ! printf '3.25\n%s\n' "$version" | sort -C -V; then
    complain "cannot build: cmake $version is too old, 3.25 is needed (Debian 12 and Ubuntu 24.04 have it)"
    return 1
  fi
}

# lock NAME: for the rest of this script, in this checkout: two at once would spoil each other's build. The kernel
# unlocks when the script and all that it has started are gone, however they ended.
lock() {
  local lock_fd
  { mkdir -p "$ROOT/build" && exec {lock_fd}>"$ROOT/build/.$1.lock"; } 2>/dev/null || return 0
  flock -n "$lock_fd" && return
  complain "another $1 is running in $ROOT: waiting until it ends"
  flock "$lock_fd"
}

# ccache fails if it cannot write where it keeps what was compiled, as without a home folder.
give_ccache_a_folder() {
  local folder
  have ccache || return 0
  folder=$(ccache --get-config cache_dir 2>/dev/null) && mkdir -p "$folder" 2>/dev/null && [ -w "$folder" ] && return
  case $ROOT in
    *\$*) export CCACHE_DISABLE=1 ;;  # it would expand this as a variable
    *) export CCACHE_DIR="$ROOT/build/ccache" ;;
  esac
}

# configure ARGUMENTS...: cmake with these; from the start if it refuses what an earlier call left, as after the checkout
# was moved or copied, or when a tool is gone.
configure() {
  cmake "$@" && return
  complain "configuring once more, from scratch"
  cmake --fresh "$@"
}

# make_venv REQUIREMENTS...: build/venv with these packages; says in one line what failed and returns 1. pip asks nobody
# for what is there already.
make_venv() (
  file="" python="" log="$ROOT/build/venv.log" options=()
  for file in "$@"; do options+=(-r "$file"); done
  lock make_venv
  heading "Python packages into build/venv"
  mkdir -p "$ROOT/build"
  # It has no pip either if it is another Python's, as of a newer container.
  if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    if ! python=$(find_python); then
      complain "no Python packages: no Python >= 3.10 with venv. Install with: apt-get install -y python3-venv"
      return 1
    fi
    if ! "$python" -m venv --clear "$VENV" >"$log" 2>&1; then
      complain "no Python packages: $python -m venv build/venv failed: $(tail -n 1 "$log")"
      return 1
    fi
  fi
  if ! "$VENV/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --retries 2 --timeout 20 \
    "${options[@]}" >"$log" 2>&1 </dev/null; then
    complain "no Python packages: $(tail -n 1 "$log")" \
      "(with a network: build/venv/bin/python -m pip install ${options[*]#"$ROOT/"})"
    return 1
  fi
)

# The newest Python that is at hand for scripts that need no package.
any_python() {
  if [ -x "$VENV/bin/python" ]; then echo "$VENV/bin/python"; else find_python || echo python3; fi
}

# The CUDA compiler, from PATH or where the toolkit installs it.
find_nvcc() {
  local installed="${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"
  command -v nvcc 2>/dev/null || { [ -x "$installed" ] && echo "$installed"; }
}

# Is there a GPU that the steps can run on? WSL2 keeps nvidia-smi in a place of its own.
have_gpu() {
  local smi listed capability
  smi=$(command -v nvidia-smi || echo /usr/lib/wsl/lib/nvidia-smi)
  # Not through `grep -q` or `head`: they end early, and pipefail would take a long list for a failure.
  listed=$("$smi" -L 2>/dev/null) || return 1
  [[ $listed == "GPU "* ]] || return 1
  capability=$("$smi" --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) || capability=
  case $capability in
    [1-7].*)
      complain "the GPU has compute capability ${capability%%$'\n'*}, the steps need 8.0: not using it"
      return 1
      ;;
  esac
}
