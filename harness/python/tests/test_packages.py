"""What is in the wheel that is installed, and in an sdist of this tree."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from flashsteps import _core

ROOT = Path(__file__).resolve().parents[3]


def output(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each file of it has, by its path behind flashsteps-VERSION/."""
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("sdist")
    make = f"from scikit_build_core.build import build_sdist; build_sdist({str(folder)!r})"
    output(sys.executable, "-c", make)
    (archive,) = folder.iterdir()
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        assert len({member.name for member in members}) == len(members)
        assert all(member.isfile() for member in members)
        return {member.name.split("/", 1)[1]: tar.extractfile(member).read().decode() for member in members}


def test_the_wheel_has_the_package_and_the_emulator_and_nothing_else() -> None:
    files = {str(file) for file in importlib.metadata.files("flashsteps")}
    beside = re.compile(r"__pycache__|\.dist-info/|^flashsteps\.libs/libcudart-")  # auditwheel brings the last
    files = {file for file in files if not beside.search(file)}
    sources = {file.name for file in (ROOT / "harness/python/flashsteps").iterdir() if file.is_file()}
    assert {"__init__.py", "_core.pyi", "py.typed"} < sources
    # What flashsteps.emulate() compiles programs with.
    emulator = {file for file in files if file.startswith("flashsteps/emulator/")}
    assert files - emulator == {f"flashsteps/{name}" for name in sources | {Path(_core.__file__).name}}
    headers = {f"flashsteps/emulator/common/{name}.h" for name in ("cuda", "emulator/kernel_server", "cluster")}
    headers |= {f"flashsteps/emulator/common/emulator/cuda_headers/{name}" for name in ("mma.h", "cuda_fp16.h")}
    assert headers | {"flashsteps/emulator/libflashsteps_emulator.a"} <= emulator
    assert not [file for file in emulator if re.search(r"[.](cpp|cmake|sh|txt)$|/tests/|/common/cuda/", file)]
    # A tag that promises the stable ABI, and a module that has it.
    tags = importlib.metadata.distribution("flashsteps").read_text("WHEEL")
    assert ("-abi3-" in tags) == _core.__file__.endswith(".abi3.so")


def test_the_metadata() -> None:
    about = importlib.metadata.metadata("flashsteps")
    assert about["License-Expression"] == "MIT"
    licenses = [str(file) for file in importlib.metadata.files("flashsteps") if file.name == "LICENSE"]
    assert len(licenses) == 1 and ".dist-info/" in licenses[0]
    # Pages that show it have no other file of the repository.
    targets = re.findall(r"\]\(([^)]*)\)", re.sub(r"`[^`]*`", "", about.get_payload()))
    assert all(target.startswith("https://") for target in targets), targets


def test_the_module_needs_no_driver_and_shows_its_entry_point() -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", _core.__file__))
    allowed = r"(libstdc\+\+|libgcc_s|libm|libc|ld-linux.*|libcudart(-\w+)?)\.so[.\d]*"
    assert [name for name in needed if not re.fullmatch(allowed, name)] == []
    symbols = output("nm", "-D", "--defined-only", _core.__file__).splitlines()
    assert [symbol.split()[-1] for symbol in symbols] == ["PyInit__core"]


def test_the_sdist_has_what_is_built_and_nothing_else(sdist: dict[str, str]) -> None:
    assert {path.split("/", 1)[0] for path in sdist} == {
        "CMakeLists.txt", "LICENSE", "PKG-INFO", "common", "harness", "pyproject.toml", "scripts", "steps"
    }  # fmt: skip
    assert {path for path in sdist if path.startswith("steps/")} == {"steps/CMakeLists.txt"} | {
        file.relative_to(ROOT).as_posix() for name in ("kernel.cu", "variants.md") for file in ROOT.glob(f"steps/*/{name}")
    }
    unwanted = re.compile(r"(^|/)(\.|__pycache__|tests/|tools/|build/)|\.(md|svg|png|json|pyc|so)$")
    found = {path for path in sdist if unwanted.search(path) and not path.startswith("harness/python/tests/")}
    assert {path for path in found if not path.endswith("/variants.md")} == {"harness/python/README.md"}
    for path, text in sdist.items():
        if path not in ("PKG-INFO", "harness/base/sdist_info.inc"):
            assert text == (ROOT / path).read_text(), path


def test_the_sdist_knows_its_commit(sdist: dict[str, str]) -> None:
    info = sdist["harness/base/sdist_info.inc"]
    if not (ROOT / ".git").exists():
        pytest.skip("no .git here")
    assert f'"{output("git", "rev-parse", "HEAD").strip()}"' in info
    dirty = "true" if output("git", "status", "--porcelain") else "false"
    assert f"FLASHSTEPS_DIRTY {dirty}\n" in info
