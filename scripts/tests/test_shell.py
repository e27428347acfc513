"""The two commands, with stand-ins for the build tools: nothing is compiled, installed or downloaded here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import SCRIPTS, git, make_record

SHELL_SCRIPTS = [SCRIPTS / "run.sh", SCRIPTS / "test.sh", SCRIPTS / "lib.sh", SCRIPTS.parent / ".ci" / "run"]
TOOLS = "bash dirname basename readlink flock sed sort head tail cat cksum grep mkdir rm touch chmod cp nproc env".split()
TOOLS += ["git", "xargs"]

# Stands in for cmake: `--build build` leaves a program that notes its arguments and behaves as FAKE_* says.
FAKE_CMAKE = """#!/bin/bash
[ "$1" = --version ] && { echo "cmake version ${FAKE_CMAKE_VERSION:-3.25.1}"; exit 0; }
echo "cmake $*" >>"$CALLS"
echo "$PWD" >>"$CALLS.where"
[ "$1 $2" = "${FAKE_BROKEN:-none}" ] && exit 7
[ "$1 $2" = "--build build" ] || exit 0
mkdir -p build
cat >build/flashsteps <<'END'
#!/bin/bash
printf 'flashsteps' >>"$CALLS"; printf ' [%s]' "$@" >>"$CALLS"; echo >>"$CALLS"
[ -n "${FAKE_NO_JSON:-}" ] || while [ $# -gt 0 ]; do
  case $1 in --json) cp "$RECORD" "$2" ;; --json=*) cp "$RECORD" "${1#*=}" ;; esac
  shift
done
exit "${FAKE_STATUS:-0}"
END
chmod +x build/flashsteps
"""


class Sandbox:
    """A copy of scripts/ in a folder with a space in its name, and a PATH that has only what is named."""

    def __init__(self, folder: Path):
        folder.mkdir(exist_ok=True)
        self.root, self.bin, self.calls = folder / "my checkout", folder / "bin", folder / "calls"
        # With what Python has compiled of them, so that it does not do so in every test.
        shutil.copytree(SCRIPTS, self.root / "scripts", ignore=shutil.ignore_patterns("tests"))
        (self.root / "scripts" / "tests").mkdir()
        (self.root / "docs").mkdir()
        shutil.copy(SCRIPTS.parent / "docs" / "results.schema.json", self.root / "docs")
        self.bin.mkdir()
        for tool in TOOLS:
            if found := shutil.which(tool):
                (self.bin / tool).symlink_to(found)
        for tool in ("g++", "ninja", "objdump", "ctest", "ccache"):
            self.tool(tool, f'#!/bin/bash\necho "{tool} $*" >>"$CALLS.{tool}"\n')
        self.tool("cmake", FAKE_CMAKE)
        self.tool("id", "#!/bin/bash\necho 1000\n")
        self.tool("python3", f'#!/bin/bash\nexec "{sys.executable}" "$@"\n')
        self.record = folder / "record.json"
        self.record.write_text(json.dumps(make_record("emulator")), encoding="utf-8")
        self.environment = {
            "PATH": str(self.bin),
            "CALLS": str(self.calls),
            "RECORD": str(self.record),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUDA_HOME": "/nonexistent",
        }

    def tool(self, name: str, text: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def make_venv(self) -> None:
        """A build/venv that is up to date: its Python is the one that runs these tests. Most of the time would go
        into charts and pytest, so it draws only with WITH_CHARTS; and without WITH_PYTEST, all tests pass."""
        venv = self.root / "build" / "venv"
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").write_text(
            '#!/bin/bash\n[[ "$*" = "-m pip install "* || "$*" = *build_sdist* ]] && { echo "python $*" >>"$CALLS"; exit; }\n'
            '[[ $1 == */report.py && -z "${WITH_CHARTS:-}" ]] && { touch "$4/index.html"; exit; }\n'
            '[[ "$1 $2" == -[cm]*" "*pytest && -z "${WITH_PYTEST:-}" ]] && { echo "python $*" >>"$CALLS"; exit; }\n'
            f'exec "{sys.executable}" "$@"\n',
            encoding="utf-8",
        )
        (venv / "bin" / "python").chmod(0o755)
        for name in ("requirements.txt", "requirements-test.txt", "requirements-jax.txt"):
            stamp = self.library(f"venv_stamp scripts/{name}").stdout
            (venv / f"{name}.installed").write_text(stamp, encoding="utf-8")

    def hide_python_headers(self) -> None:
        python = self.root / "build" / "venv" / "bin" / "python"
        text = python.read_text(encoding="utf-8")
        python.write_text(text.replace("\n", '\n[[ $2 == *Python.h* ]] && exit 1\n', 1), encoding="utf-8")

    def run(
        self, *command: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd or self.root,
            env=self.environment | environment,
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=1800,
        )

    def library(self, commands: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs commands after sourcing lib.sh."""
        script = f"set -euo pipefail; ROOT=$PWD; . scripts/lib.sh; {commands}"
        return self.run(str(self.bin / "bash"), "-c", script, **environment)

    def main_job(self, *arguments: str, cwd: Path | None = None, **environment: str):
        return self.run(
            str(self.bin / "bash"), str(self.root / "scripts/run.sh"), *arguments, cwd=cwd, **environment
        )

    def called(self) -> str:
        return self.calls.read_text(encoding="utf-8") if self.calls.exists() else ""


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


@pytest.fixture
def ready(sandbox: Sandbox) -> Sandbox:
    sandbox.make_venv()
    return sandbox


def add_gpu(sandbox: Sandbox, capability: str = "9.0") -> None:
    sandbox.tool(
        "nvidia-smi", "#!/bin/bash\n" f'[ "$1" = -L ] && echo "GPU 0: Synthetic GPU" || echo {capability}\n'
    )


def test_many_gpus_are_one(ready: Sandbox):
    ready.tool("nvidia-smi", '#!/bin/bash\nfor i in {0..20000}; do echo "GPU $i: Synthetic GPU"; done\n')
    assert ready.library("have_gpu").returncode == 0
    ready.tool("nvidia-smi", '#!/bin/bash\necho "No devices were found"\n')
    assert ready.library("have_gpu").returncode == 1


@pytest.mark.parametrize("path", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_syntax(path: Path):
    subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.parametrize("path", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_strict_mode(path: Path):
    assert path.name == "lib.sh" or "\nset -euo pipefail\n" in path.read_text(encoding="utf-8")


# lib.sh


def test_nothing_missing_nothing_said(ready: Sandbox):
    done = ready.library("install_packages run && can_build")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("has_apt", [False, True])
def test_what_is_missing_is_one_line_with_its_remedy(ready: Sandbox, has_apt):
    (ready.bin / "ninja").unlink()
    (ready.bin / "ccache").unlink()
    ready.tool("g++", "#!/bin/bash\nexit 1\n")  # finds no header
    ready.hide_python_headers()
    if has_apt:
        ready.tool("apt-get", '#!/bin/bash\necho "apt-get $*" >>"$CALLS"\n')
    done = ready.library("install_packages tests")
    why = "no root, and sudo would ask for a password" if has_apt else "no apt-get here"
    packages = "ninja-build nlohmann-json3-dev libcli11-dev ccache catch2 python3-dev"
    assert done.returncode == 1 and ready.called() == ""
    assert done.stderr == f"missing: {packages} ({why}). Install with: apt-get install -y {packages}\n"


def test_a_password_is_never_asked_for(ready: Sandbox):
    (ready.bin / "ninja").unlink()
    ready.tool("apt-get", '#!/bin/bash\necho "apt-get $*" >>"$CALLS"\n')
    ready.tool("sudo", '#!/bin/bash\necho "sudo $*" >>"$CALLS"\n[ "$1" = -n ] && exit 1\nread -r password\n')
    done = ready.library("install_packages run")
    assert done.returncode == 1 and "sudo would ask" in done.stderr and ready.called() == "sudo -n true\n"


@pytest.mark.parametrize("user", ["root", "sudo"])
def test_what_is_missing_is_installed(ready: Sandbox, user):
    (ready.bin / "ninja").unlink()
    ready.tool(
        "apt-get",
        '#!/bin/bash\necho "apt-get $DEBIAN_FRONTEND $*" >>"$CALLS"\n'
        f'[ "${{@: -1}}" = update ] || {{ printf "#!/bin/bash\\n" >"{ready.bin}/ninja"; '
        f'"{shutil.which("chmod")}" +x "{ready.bin}/ninja"; }}\n',
    )
    if user == "root":
        ready.tool("id", "#!/bin/bash\necho 0\n")
    else:
        ready.tool(
            "sudo", '#!/bin/bash\n[ "$1 $2" = "-n true" ] && exit 0\n[ "$1" = -n ] && shift && exec "$@"\n'
        )
    done = ready.library("install_packages run")
    assert done.returncode == 0, done.stderr
    update, install = ready.called().splitlines()
    assert update == "apt-get noninteractive -o DPkg::Lock::Timeout=300 -qq update"
    assert install.endswith("install -y --no-install-recommends ninja-build")


def test_apt_that_fails_is_one_more_line(ready: Sandbox):
    (ready.bin / "ninja").unlink()
    ready.tool("id", "#!/bin/bash\necho 0\n")
    ready.tool("apt-get", "#!/bin/bash\nexit 100\n")
    done = ready.library("install_packages run")
    assert done.returncode == 1
    assert (
        "missing: ninja-build (apt-get failed). Install with: apt-get install -y ninja-build" in done.stderr
    )


CHROMIUM = '#!/bin/bash\n[ "$1" = --version ] && echo "Chromium 140.0.1 built on Debian"\n'


@pytest.mark.parametrize(
    ("name", "program", "found"),
    [
        ("chromium", CHROMIUM, True),
        ("chromium-browser", CHROMIUM, True),
        ("google-chrome", '#!/bin/bash\necho "Google Chrome 140.0.1"\n', True),
        ("firefox", '#!/bin/bash\necho "Mozilla Firefox 140.0"\n', False),
        # Ubuntu's package, without the snap that it asks for and with it.
        ("chromium-browser", "#!/bin/bash\necho it requires the chromium snap >&2\nexit 1\n", False),
        ("chromium", '#!/bin/bash\necho "Chromium 140.0.1 snap"\n', False),
    ],
)
def test_a_browser_is_found(ready: Sandbox, name, program, found):
    ready.tool(name, program)
    done = ready.library("find_browser")
    assert (done.returncode == 0, done.stdout) == (found, f"{ready.bin}/{name}\n" if found else "")


def test_a_browser_is_a_group_of_its_own(ready: Sandbox):
    assert ready.library("missing_packages run; missing_packages tests").stdout.split() == []
    done = ready.library("install_packages browser")
    expected = "missing: chromium (no apt-get here). Install with: apt-get install -y chromium\n"
    assert done.returncode == 1 and done.stderr == expected
    ready.tool("chromium", CHROMIUM)
    assert ready.library("install_packages browser").returncode == 0


@pytest.mark.parametrize(
    ("version", "ok"), [("3.9.6", False), ("3.24.9", False), ("3.25.0", True), ("3.30.1", True)]
)
def test_cmake_version(ready: Sandbox, version, ok):
    done = ready.library("can_build", FAKE_CMAKE_VERSION=version)
    assert (done.returncode == 0) == ok
    assert ok or "is too old, 3.25 is needed" in done.stderr


def test_an_old_python_is_passed_over(sandbox: Sandbox):
    sandbox.tool("python3", "#!/bin/bash\nexit 1\n")
    sandbox.tool("python3.12", f'#!/bin/bash\nexec "{sys.executable}" "$@"\n')
    found = sandbox.library("find_python").stdout.strip()
    assert found in ("/usr/bin/python3", str(sandbox.bin / "python3.12"))


def test_a_venv_is_left_alone_until_its_requirements_change(ready: Sandbox):
    both = "make_venv scripts/requirements.txt scripts/requirements-test.txt"
    python = ready.root / "build/venv/bin/python"
    version = " ".join(map(str, sys.version_info[:2]))
    python.write_text(
        f'#!/bin/bash\n[ "$1" = -c ] && echo "${{FAKE_VERSION:-{version}}}" || echo "python $*" >>"$CALLS"\n',
        encoding="utf-8",
    )
    assert ready.library(both).returncode == 0 and "pip" not in ready.called()
    requirements = ready.root / "scripts/requirements.txt"
    requirements.write_text(requirements.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert ready.library(both).returncode == 0 and ready.called().count("-m pip install") == 1
    assert ready.library(both).returncode == 0 and ready.called().count("-m pip install") == 1
    # It was filled for the Python of another container.
    assert ready.library(both, FAKE_VERSION="3 99").returncode == 0 and ready.called().count("-m pip install") == 2


def make_wheel(folder: Path) -> None:
    folder.mkdir()
    files = {
        "made_up/__init__.py": "",
        "made_up-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n",
        "made_up-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files["made_up-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(folder / "made_up-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


def test_packages_go_into_the_venv_whatever_the_environment_says(sandbox: Sandbox, tmp_path):
    make_wheel(tmp_path / "wheels")
    del sandbox.environment["PYTHONDONTWRITEBYTECODE"]  # pip is large, and runs several times
    (sandbox.root / "scripts/requirements.txt").write_text("made-up==1.0; python_version >= '3.10'\n", encoding="utf-8")
    elsewhere, configuration = str(tmp_path / "elsewhere"), tmp_path / "pip.conf"
    with zipfile.ZipFile(next((tmp_path / "wheels").iterdir())) as wheel:
        wheel.extractall(tmp_path / "modules")
    configuration.write_text(f"[install]\ntarget = {elsewhere}\n", encoding="utf-8")
    venv, fill = sandbox.root / "build/venv", "make_venv scripts/requirements.txt"
    wheels = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    for environment in (
        {"PIP_TARGET": elsewhere, "PYTHONHOME": elsewhere},
        {"PIP_PREFIX": elsewhere, "PYTHONPATH": str(tmp_path / "modules")},  # which has the package
        {"PIP_ROOT": elsewhere, "PIP_USER": "1"},
        {"PIP_CONFIG_FILE": str(configuration), "PIP_DRY_RUN": "1"},
    ):
        done = sandbox.library(fill, **wheels, **environment)
        assert done.returncode == 0 and done.stderr == "", (environment, done.stderr)
        clean = sandbox.run(str(venv / "bin/python"), "-c", "import made_up; print(made_up.__file__)")
        assert clean.stdout.startswith(str(venv)), (environment, clean.stderr)
        for path in [venv / "requirements.txt.installed", *venv.glob("lib/*/site-packages/made_up*")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    # What nobody has foreseen is no success.
    configuration.write_text("[install]\ndry-run = true\n", encoding="utf-8")
    done = sandbox.library(fill, **wheels, PIP_CONFIG_FILE=str(configuration))
    assert done.returncode == 1 and not (venv / "requirements.txt.installed").exists()
    expected = "no Python packages: pip has run, but build/venv cannot import them: "
    assert done.stderr.startswith(expected) and done.stderr.count("\n") == 1


def test_no_network_is_one_line(ready: Sandbox):
    (ready.root / "build/venv/requirements.txt.installed").unlink()
    python = ready.root / "build/venv/bin/python"
    python.write_text(
        '#!/bin/bash\n[ "$3" = install ] || exit 0\necho "no route" >&2\nexit 1\n', encoding="utf-8"
    )
    done = ready.library("make_venv scripts/requirements.txt")
    assert done.returncode == 1
    assert done.stderr == (
        "no Python packages: no route (with a network: build/venv/bin/python -m pip install "
        "-r scripts/requirements.txt)\n"
    )


@pytest.mark.parametrize(("home", "own"), [("/dev/null", True), ("home", False)])
def test_ccache_has_a_folder_that_it_can_write_to(ready: Sandbox, home, own):
    ready.tool("ccache", '#!/bin/bash\n[ "$*" = "--get-config cache_dir" ] && echo "$HOME/.cache/ccache"\n')
    ready.tool("cmake", FAKE_CMAKE.replace('echo "$PWD"', 'echo "${CCACHE_DIR:-of the user}"'))
    for script in ("run.sh", "test.sh"):
        ready.run(str(ready.bin / "bash"), f"scripts/{script}", HOME=home)
    where = Path(f"{ready.calls}.where").read_text(encoding="utf-8").splitlines()
    assert set(where) == {f"{ready.root}/build/ccache" if own else "of the user"}


def test_a_dollar_in_the_path(tmp_path):
    """ccache would look for a variable of that name."""
    sandbox = Sandbox(tmp_path / "a,b $c")
    sandbox.make_venv()
    (sandbox.root / "steps/v01_scalar").mkdir(parents=True)
    (sandbox.root / "steps/v01_scalar/kernel.cu").write_text("int x;\n", encoding="utf-8")
    sandbox.tool("cmake", FAKE_CMAKE.replace('echo "$PWD"', 'echo "${CCACHE_DIR:-}${CCACHE_BASEDIR:-}"'))
    assert sandbox.main_job(HOME="/dev/null").returncode == 0
    all_tests(sandbox, "v01", HOME="/dev/null")
    assert "cmake --preset ci -DCMAKE_CXX_COMPILER_LAUNCHER= " in sandbox.called()
    assert set(Path(f"{sandbox.calls}.where").read_text(encoding="utf-8").splitlines()) == {""}


@pytest.mark.parametrize("character", [";", "#", '"', "[", "]", "*", "?", "<", "|", "${"])
def test_a_path_that_cmake_cannot_take_is_a_sentence(tmp_path, character):
    source = tmp_path / f"a{character}b"
    source.mkdir()
    shutil.copy(SCRIPTS.parent / "CMakeLists.txt", source)
    done = subprocess.run(["cmake", "-B", "build"], cwd=source, capture_output=True, text=True)
    said = " ".join(done.stderr.split())
    assert f"CMake cannot build in a folder whose path has '{character}' in it: move or rename {source}" in said
    assert done.returncode == 1 and said.count("CMake Error") == 1


def test_another_repository_of_the_environment_is_ignored(ready: Sandbox):
    ready.tool("cmake", FAKE_CMAKE.replace('echo "$PWD"', 'env | grep "^GIT_"'))
    assert ready.main_job(GIT_DIR="/other/.git", GIT_WORK_TREE="/other", GIT_INDEX_FILE="/other/index").returncode == 0
    assert Path(f"{ready.calls}.where").read_text(encoding="utf-8") == ""


def test_a_checkout_has_the_line_ends_of_unix(tmp_path):
    """Also on Windows, where git may be set up to change them."""
    source, clone = tmp_path / "source", tmp_path / "clone"
    git(tmp_path, "init", "-q", str(source))
    if (attributes := SCRIPTS.parent / ".gitattributes").exists():
        shutil.copy(attributes, source)
    for name in ("run.sh", "CMakeLists.txt", "test.py", "page.md", "kernel.cu", "record.json"):
        (source / name).write_text("one\ntwo\n", encoding="utf-8")
    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "files")
    git(tmp_path, "-c", "core.autocrlf=true", "clone", "-q", str(source), str(clone))
    assert [path.name for path in clone.iterdir() if path.is_file() and b"\r" in path.read_bytes()] == []


# run.sh


@pytest.mark.parametrize("shell", [["sh"], ["bash", "--posix"]], ids=" ".join)
def test_started_with_another_shell(ready: Sandbox, shell):
    command = [shutil.which(shell[0]), *shell[1:]]
    done = ready.run(*command, "scripts/run.sh", "v01 x")
    assert done.returncode == 0, done.stderr
    assert "flashsteps [run] [--json] [" in ready.called() and "] [v01 x]\n" in ready.called()
    done = ready.run(*command, "scripts/test.sh", "--fast")
    assert done.returncode == 2 and done.stderr == "usage: bash scripts/test.sh [--all] [STEP...]\n"


def stale_cache(sandbox: Sandbox, **entries: str) -> None:
    """What cmake leaves behind in build/, with these entries in place of those that fit."""
    build = sandbox.root / "build"
    fitting = {
        "CMAKE_HOME_DIRECTORY:INTERNAL": str(sandbox.root),
        "CMAKE_CACHEFILE_DIR:INTERNAL": str(build),
        "CMAKE_GENERATOR:INTERNAL": "Ninja",
        "CMAKE_CXX_COMPILER:FILEPATH": str(sandbox.bin / "g++"),
        "CMAKE_CUDA_COMPILER:FILEPATH": "NOTFOUND",
        "CMAKE_MAKE_PROGRAM:FILEPATH": "ninja",
    }
    unknown = entries.keys() - {key.split(":")[0] for key in fitting}
    assert not unknown
    lines = [f"{key}={entries.get(key.split(':')[0], value)}\n" for key, value in fitting.items()]
    (build / "CMakeCache.txt").write_text("# A comment\n\n" + "".join(lines), encoding="utf-8")


def test_a_build_that_fits_is_taken_up(ready: Sandbox, tmp_path):
    stale_cache(ready)
    assert ready.main_job().returncode == 0 and "--fresh" not in ready.called()
    (tmp_path / "link").symlink_to(ready.root)
    stale_cache(ready, CMAKE_HOME_DIRECTORY=str(tmp_path / "link"))  # the same folder
    assert ready.main_job().returncode == 0 and "--fresh" not in ready.called()


@pytest.mark.parametrize(
    "entry",
    [
        {"CMAKE_HOME_DIRECTORY": "/where/it/was/before"},
        {"CMAKE_CACHEFILE_DIR": "/where/it/was/before/build"},
        {"CMAKE_GENERATOR": "Unix Makefiles"},
        {"CMAKE_CXX_COMPILER": "/usr/bin/g++-that-is-gone"},
        {"CMAKE_MAKE_PROGRAM": "/usr/bin/ninja-that-is-gone"},
    ],
    ids=lambda entry: next(iter(entry)),
)
def test_a_stale_build_is_made_anew(ready: Sandbox, entry):
    stale_cache(ready, **entry)
    done = ready.main_job()
    assert done.returncode == 0 and ready.called().startswith("cmake --fresh --preset emulator\ncmake --build build ")
    assert "build was made elsewhere or by other tools: it is built from scratch\n" in done.stderr


@pytest.mark.parametrize("what", ["folder", "script"])
def test_through_a_symbolic_link_it_is_the_same_build(ready: Sandbox, tmp_path, what):
    link = tmp_path / "link"
    link.symlink_to(ready.root if what == "folder" else ready.root / "scripts/run.sh")
    script = link / "scripts/run.sh" if what == "folder" else link
    done = ready.run(str(ready.bin / "bash"), str(script), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    where = Path(f"{ready.calls}.where").read_text(encoding="utf-8").split("\n")
    assert set(filter(None, where)) == {str(ready.root)}


def test_the_second_of_two_waits(ready: Sandbox):
    first = subprocess.Popen(
        ["bash", "-c", "set -eu; ROOT=$PWD; . scripts/lib.sh; lock run.sh; echo locked; read -r line"],
        cwd=ready.root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert first.stdout.readline() == "locked\n"
    second = subprocess.Popen(
        [str(ready.bin / "bash"), str(ready.root / "scripts/run.sh")],
        env=ready.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert second.stderr.readline() == f"another run.sh is running in {ready.root}: waiting until it ends\n"
    assert ready.called() == ""
    first.kill()  # it cannot unlock
    first.communicate()
    said = second.communicate()[1]
    assert second.returncode == 0, said
    assert "flashsteps [run]" in ready.called()
    done = ready.main_job()
    assert done.returncode == 0 and "another" not in done.stderr


def test_without_flock_it_goes_on(ready: Sandbox):
    (ready.bin / "flock").unlink()
    assert ready.main_job().returncode == 0


def test_without_a_gpu_the_emulator_runs(ready: Sandbox):
    done = ready.main_job(WITH_CHARTS="1")
    assert done.returncode == 0, done.stderr
    configure, build, program = ready.called().splitlines()
    assert configure == "cmake --preset emulator" and build.startswith("cmake --build build -j ")
    report = ready.root / "build/report"
    assert program == f"flashsteps [run] [--json] [{report}/results.json]"
    assert done.stdout.endswith(f"results: {report}/results.json\nreport:  {report}/index.html\n")
    assert "emulator counts" in (report / "progression_1.svg").read_text(encoding="utf-8")
    assert "FlashSteps on the CPU emulator" in (report / "index.html").read_text(encoding="utf-8")
    assert "==> building (emulator)  (after" in done.stdout


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "inline", "no such"])
def test_a_notebooks_way_to_draw_does_not_matter(ready: Sandbox, backend):
    done = ready.main_job(WITH_CHARTS="1", MPLBACKEND=backend)
    assert done.returncode == 0 and "report:  " in done.stdout, done.stderr
    command = [sys.executable, "-c", "from draw import figure_style; print(figure_style.pyplot().get_backend())"]
    done = ready.run(*command, cwd=ready.root / "scripts", MPLBACKEND=backend)
    assert done.stdout == "svg\n", done.stderr


def test_a_gpu_is_used(ready: Sandbox):
    add_gpu(ready)
    ready.tool("nvcc", "#!/bin/bash\n")
    assert ready.main_job().returncode == 0
    assert ready.called().startswith("cmake --preset release -DFLASHSTEPS_CUDA_ARCHITECTURES=native\n")


def test_the_emulator_can_be_asked_for(ready: Sandbox):
    add_gpu(ready)
    ready.tool("nvcc", "#!/bin/bash\n")
    for arguments in (["--backend", "emulator"], ["--backend=emulator"]):
        assert ready.main_job(*arguments).returncode == 0
        assert "release" not in ready.called()


def test_an_old_gpu_is_not_used(ready: Sandbox):
    add_gpu(ready, "7.5")
    ready.tool("nvcc", "#!/bin/bash\n")
    done = ready.main_job()
    assert "compute capability 7.5, the steps need 8.0" in done.stderr
    assert ready.called().startswith("cmake --preset emulator\n")


def test_a_gpu_without_a_toolkit(ready: Sandbox):
    add_gpu(ready)
    done = ready.main_job()
    assert done.returncode == 0 and "a GPU but no nvcc: using the emulator" in done.stderr


@pytest.mark.parametrize("status", [0, 1, 2, 3])
def test_the_exit_status_is_the_programs(ready: Sandbox, status):
    done = ready.main_job(FAKE_STATUS=str(status))
    assert done.returncode == status and f"flashsteps exit status {status}" in done.stdout
    assert (ready.root / "build/report/index.html").exists()


def test_any_folder_no_home(ready: Sandbox, tmp_path):
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    assert ready.main_job(cwd=elsewhere).returncode == 0
    assert (ready.root / "build/report/results.json").exists() and not list(elsewhere.iterdir())


def test_arguments_are_passed_through(ready: Sandbox, tmp_path):
    done = ready.main_job("v01 x", "--json", "my results.json", "--causal", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ready.called().splitlines()[-1] == "flashsteps [run] [v01 x] [--json] [my results.json] [--causal]"
    assert "results: my results.json" in done.stdout and (tmp_path / "my results.json").exists()
    assert (ready.root / "build/report/index.html").exists()


def test_the_last_step_that_passed_is_drawn_by_what_was_built(ready: Sandbox):
    kernel = ready.root / "steps/v02_smem_tiles/kernel.cu"
    kernel.parent.mkdir(parents=True)
    kernel.write_text('REGISTER_STEP(launch, {.title = "one"})\n', encoding="utf-8")
    done = ready.main_job(WITH_CHARTS="1")
    assert done.returncode == 0
    # The stand-in for cmake builds no lab.
    assert f"v02_smem_tiles gives no output ({ready.root}/build/libflashsteps_lab.so: " in done.stderr


def test_a_user_file_of_an_earlier_run_is_not_taken_for_this_one(ready: Sandbox, tmp_path):
    old = tmp_path / "old.json"
    shutil.copy(ready.record, old)
    os.utime(old, (1e9, 1e9))
    done = ready.main_job(f"--json={old}", FAKE_STATUS="2", FAKE_NO_JSON="1")
    assert done.returncode == 2 and "results:" not in done.stdout and "report:" not in done.stdout


def test_results_of_an_earlier_run_are_not_shown(ready: Sandbox):
    assert ready.main_job().returncode == 0
    kept = ready.root / "build/report/mine.json"
    kept.touch()
    done = ready.main_job(FAKE_STATUS="2", FAKE_NO_JSON="1")
    assert done.returncode == 2 and "results:" not in done.stdout
    assert list((ready.root / "build/report").glob("[!.]*")) == [kept]


def without_network(sandbox: Sandbox) -> None:
    """build/venv cannot be filled, and no Python has packages."""
    (sandbox.root / "build/venv/requirements.txt.installed").unlink()
    bare = f'exec "{sys.executable}" -S -E "$@"\n'
    python = sandbox.root / "build/venv/bin/python"
    python.write_text(f'#!/bin/bash\n[ "$2" = pip ] && {{ [ "$3" != install ]; exit; }}\n{bare}', encoding="utf-8")
    sandbox.tool("python3", f"#!/bin/bash\n{bare}")


def test_without_python_packages_the_kernels_still_run(ready: Sandbox):
    without_network(ready)
    done = ready.main_job()
    assert done.returncode == 0 and "results: " in done.stdout and "report:  " not in done.stdout
    assert "without them there is no report; the results are complete\n" in done.stderr and "Traceback" not in done.stderr


def test_without_a_network_any_matplotlib_draws(ready: Sandbox):
    without_network(ready)
    ready.tool("python3", f'#!/bin/bash\nexec "{sys.executable}" "$@"\n')
    done = ready.main_job()
    assert done.returncode == 0, done.stderr
    assert f"drawing with the Python packages of {ready.bin}/python3\n" in done.stderr
    assert "<img" in (ready.root / "build/report/index.html").read_text(encoding="utf-8")


def test_a_report_that_cannot_be_written_does_not_change_the_status(ready: Sandbox):
    ready.record.write_text("{}", encoding="utf-8")
    done = ready.main_job(WITH_CHARTS="1")
    assert done.returncode == 0 and "results: " in done.stdout and "report:  " not in done.stdout
    assert "report.py: " in done.stderr and "there is no report; the results are complete\n" in done.stderr


def test_a_folder_for_reports_that_cannot_be_written(ready: Sandbox):
    (ready.root / "build").mkdir(exist_ok=True)
    (ready.root / "build" / "report").write_text("in the way\n", encoding="utf-8")
    done = ready.main_job(FAKE_STATUS="1")
    assert done.returncode == 1 and ready.called().endswith("flashsteps [run]\n")
    assert "build/report cannot be written: no results file and no report\n" in done.stderr
    assert "results:" not in done.stdout and "report:" not in done.stdout


def test_a_build_that_fails(ready: Sandbox):
    done = ready.main_job(FAKE_BROKEN="--build build")
    assert (
        done.returncode == 1
        and "the build failed" in done.stderr
        and "flashsteps [run]" not in ready.called()
    )


def test_no_compiler(ready: Sandbox):
    (ready.bin / "g++").unlink()
    done = ready.main_job()
    assert done.returncode == 1 and "cannot build: g++ is missing" in done.stderr and ready.called() == ""


def test_help_builds_nothing(ready: Sandbox):
    done = ready.main_job("--help")
    assert (
        done.returncode == 0 and done.stdout.startswith("usage: bash scripts/run.sh") and ready.called() == ""
    )


# test.sh


@pytest.fixture
def tested(ready: Sandbox) -> Sandbox:
    for folder in ("scripts/tests", "harness/tests", "harness/python/tests"):
        (ready.root / folder).mkdir(parents=True, exist_ok=True)
        (ready.root / folder / "test_one.py").write_text("def test_one():\n    pass\n", encoding="utf-8")
    (ready.root / "steps/v01_scalar").mkdir(parents=True)
    (ready.root / "steps/v01_scalar/kernel.cu").write_text("int x;\n", encoding="utf-8")
    program = ready.root / "build/ci/flashsteps"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/bash\necho "ci/flashsteps $*" >>"{ready.calls}"\n', encoding="utf-8")
    program.chmod(0o755)
    return ready


def all_tests(sandbox: Sandbox, *steps: str, **environment: str) -> tuple[int, str, dict[str, str]]:
    done = sandbox.run(
        str(sandbox.bin / "bash"), str(sandbox.root / "scripts/test.sh"), *steps, cwd=Path("/"), **environment
    )
    summary = (
        done.stdout[done.stdout.index("==> summary") :].splitlines()[1:-1]
        if "==> summary" in done.stdout
        else []
    )
    return (
        done.returncode,
        done.stdout + done.stderr,
        {line[:24].strip(): line[25:].strip() for line in summary},
    )


def test_all_sections_and_the_last_line(tested: Sandbox):
    status, text, summary = all_tests(tested, WITH_PYTEST="1")
    assert status == 0, text
    assert "\n8 passed, 0 failed\n" in text and summary["CUDA compile checks"].startswith("skipped: no nvcc (")
    assert [name for name, result in summary.items() if result.startswith("pass")] == [
        "build, warnings fatal",
        "program tests",
        "steps on the emulator",
        "command line tests",
        "Python module",
        "address, UB sanitizer",
        "script tests",
        "generated text",
    ]
    assert "python -c from scikit_build_core.build import build_sdist; " in tested.called()
    assert "--no-build-isolation --no-deps --force-reinstall -C build-dir=" in tested.called()
    assert "ci/flashsteps check --backend emulator v01_scalar\n" in tested.called()
    for name in ("recorded runs", "charts"):
        assert summary[name] == "skipped: figures/results/ is empty"
    assert summary["GPU tests"].startswith("skipped: no GPU with a CUDA toolkit (")
    assert summary["aarch64 build"].startswith("skipped: no aarch64-linux-gnu-g++")
    assert summary["pages in a browser"] == "skipped: no Chromium (apt-get install -y chromium)"
    ctest = Path(f"{tested.calls}.ctest").read_text(encoding="utf-8")
    assert "--test-dir build/ci -LE gpu -j 2 --no-tests=error --output-on-failure" in ctest
    assert "--test-dir build/asan -L emulator" in ctest


def test_a_failure_does_not_stop_the_rest(tested: Sandbox):
    status, text, summary = all_tests(tested, FAKE_BROKEN="--preset ci")
    assert status == 1 and summary["build, warnings fatal"].startswith("FAIL")
    assert summary["generated text"].startswith("pass") and " passed, 1 failed\n" in text
    # Inside a section nothing goes on after a failure.
    assert "cmake --preset ci" in tested.called() and "cmake --build build/ci -j" not in tested.called()


def test_no_steps_are_no_pass(tested: Sandbox):
    (tested.root / "steps/v01_scalar/kernel.cu").unlink()
    status, text, summary = all_tests(tested)
    assert status == 1 and summary["steps on the emulator"].startswith("FAIL")
    assert "there are no steps under steps/" in text


def test_a_failing_test_fails(tested: Sandbox):
    (tested.root / "scripts/tests/test_one.py").write_text(
        "def test_one():\n    assert 0\n", encoding="utf-8"
    )
    tested.tool("ctest", "#!/bin/bash\nexit 8\n")
    status, text, summary = all_tests(tested, WITH_PYTEST="1")
    assert status == 1 and " passed, 3 failed\n" in text
    assert [name for name, result in summary.items() if result.startswith("FAIL")] == [
        "program tests",
        "address, UB sanitizer",
        "script tests",
    ]


def test_a_typed_figure_or_a_bad_record_fails(tested: Sandbox):
    (tested.root / "README.md").write_text("5 TFLOPS\n", encoding="utf-8")
    (tested.root / "figures/results").mkdir(parents=True)
    (tested.root / "figures/results/x.json").write_text("{}", encoding="utf-8")
    (tested.root / "figures/old.svg").write_text("<svg/>", encoding="utf-8")
    status, text, summary = all_tests(tested)
    assert "figures/old.svg: left over" in text and "figures/lengths.svg: " in text
    assert status == 1 and [name for name, result in summary.items() if result.startswith("FAIL")] == [
        "generated text",
        "recorded runs",
        "charts",
    ]


def test_without_pytest_there_is_no_success(tested: Sandbox):
    for path in (tested.root / "build/venv").glob("*.installed"):
        path.unlink()
    (tested.root / "build/venv/bin/python").write_text(
        "#!/bin/bash\n"
        '[ "$3" = install ] || [ "$2" = "import pytest" ] && exit 1\n'
        f'exec "{sys.executable}" "$@"\n',
        encoding="utf-8",
    )
    status, text, summary = all_tests(tested)
    assert status == 1 and summary["script tests"].startswith("FAIL") and "build/venv has no pytest" in text


def test_the_other_architecture_is_built_where_its_compiler_is(tested: Sandbox):
    tested.tool("aarch64-linux-gnu-g++", "#!/bin/bash\n")
    _, _, summary = all_tests(tested)
    assert summary["aarch64 build"].startswith("pass")
    assert "cmake --preset emulator -B build/aarch64 " in tested.called()
    assert f"cmake --build build/aarch64 -j {os.cpu_count()} --target copy_states v01_scalar_on_emulator\n" in tested.called()


def test_all_has_nvcc_compile_the_ablations(tested: Sandbox):
    for arguments, ablations in (([], ""), (["--all"], "ALL")):
        assert all_tests(tested, *arguments)[0] == 0
        assert f"-DFLASHSTEPS_ABLATIONS={ablations} -DFLASHSTEPS_TESTED_STEPS=\n" in tested.called()


def add_steps(sandbox: Sandbox, *steps: str) -> None:
    for step in steps:
        kernel = sandbox.root / "steps" / step / "kernel.cu"
        kernel.parent.mkdir(parents=True)
        kernel.write_text('int x;\nREGISTER_STEP(launch, {.title = "one"})\n', encoding="utf-8")
    for name in ("test_lessons.py", "test_check_docs.py"):
        (sandbox.root / "scripts/tests" / name).write_text("def test_one():\n    pass\n", encoding="utf-8")
    text = f"import pytest\n@pytest.mark.parametrize('step', {steps})\ndef test_step(step):\n    print('tested', step)\n"
    (sandbox.root / "harness/tests/test_steps.py").write_text(text, encoding="utf-8")


def test_one_step_and_what_it_touches(tested: Sandbox):
    add_steps(tested, "v02_tiles", "v03_wmma", "my_idea")
    tested.tool("nvcc", "#!/bin/bash\n")
    status, text, summary = all_tests(tested, "v02", "my_idea", WITH_PYTEST="1")
    assert status == 0, text
    assert [name for name, result in summary.items() if result.startswith("pass")] == [
        "build, warnings fatal",
        "steps on the emulator",
        "command line tests",
        "lessons",
        "generated text",
        "CUDA compile checks",
    ]
    calls = tested.called()
    assert "-DFLASHSTEPS_ABLATIONS= -DFLASHSTEPS_TESTED_STEPS=v02_tiles;my_idea\n" in calls
    assert "--target flashsteps flashsteps_lab flashsteps_variants\n" in calls
    assert "--target compile_checks_v02_tiles compile_checks_my_idea\n" in calls
    checked = [line.split()[-1] for line in calls.splitlines() if " check " in line]
    assert sorted(checked) == ["my_idea", "v02_tiles"]
    assert text.count("\n2 passed") == 2  # of harness/tests those of the two steps; and the lessons' own
    assert "only what v02_tiles, my_idea touches was tested. Everything: bash scripts/test.sh\n" in text


@pytest.mark.parametrize("argument", ["v9", "v0", "--fast"])
def test_what_is_no_step_is_wrong_use(tested: Sandbox, argument):
    add_steps(tested, "v02_tiles")
    status, text, summary = all_tests(tested, argument)
    assert status == 2 and tested.called() == "" and text.count("\n") == 1
    assert ("usage: " if argument == "--fast" else f"'{argument}' is not the name of one step") in text


def test_without_ccache_it_is_compiled(tested: Sandbox):
    (tested.bin / "ccache").unlink()
    status, text, _ = all_tests(tested)
    assert status == 0, text
    assert "cmake --preset ci -DCMAKE_CXX_COMPILER_LAUNCHER= " in tested.called()
    assert "missing: ccache (" in text and "continuing without" in text


def test_with_a_gpu_and_a_browser_their_tests_run(tested: Sandbox):
    add_gpu(tested)
    tested.tool("nvcc", "#!/bin/bash\n")
    tested.tool("chromium", CHROMIUM)
    _, _, summary = all_tests(tested)
    assert "pages in a browser" not in summary
    assert summary["GPU tests"].startswith("pass") and summary["CUDA compile checks"].startswith("pass")
    assert "cmake --preset ci -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DFLASHSTEPS_CUDA_ARCHITECTURES=native" in tested.called()
    assert "-L gpu" in Path(f"{tested.calls}.ctest").read_text(encoding="utf-8")


@pytest.mark.parametrize("user", ["root", "somebody"])
def test_ci_installs_a_browser_and_runs_the_tests_from_the_root(sandbox: Sandbox, user):
    (sandbox.root / ".ci").mkdir()
    shutil.copy(SCRIPTS.parent / ".ci" / "run", sandbox.root / ".ci")
    (sandbox.root / "scripts/test.sh").write_text('echo "tests in $PWD"\n', encoding="utf-8")
    sandbox.tool("apt-get", '#!/bin/bash\necho "apt-get ${@: -1}" >>"$CALLS"\n')
    if user == "root":
        sandbox.tool("id", "#!/bin/bash\necho 0\n")
    done = sandbox.run(str(sandbox.root / ".ci/run"), cwd=Path("/"))
    assert done.returncode == 0 and done.stdout.endswith(f"tests in {sandbox.root}\n"), done.stderr
    assert sandbox.called() == ("apt-get update\napt-get chromium\n" if user == "root" else "")
    assert "missing: chromium (" in done.stderr and "continuing without a browser" in done.stderr


def test_the_dev_container_has_all_packages():
    lib = (SCRIPTS / "lib.sh").read_text(encoding="utf-8")
    dockerfile = (SCRIPTS.parent / ".devcontainer" / "Dockerfile").read_text(encoding="utf-8")
    installed = re.search(r"install -y --no-install-recommends([^&]*)&&", dockerfile)
    named = re.findall(r"missing\+=\(([\w+-]+)\)", lib)
    assert installed and set(re.findall(r"[\w+-]+", installed[1])) == {*named, "ca-certificates"}
