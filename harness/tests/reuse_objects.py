"""A compiler launcher for tests that build a copy of this tree, so that they compile only what they change:

    -DCMAKE_CXX_COMPILER_LAUNCHER="python3;reuse_objects.py;ROOT;BUILD;COPY"

COPY is ROOT's copy and is built in COPY/build. An object of ROOT's test build BUILD is taken if the same
command made it from the same source. All else is compiled. Headers are not looked at: the copy has ROOT's.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

# With their values. The first two say where the list of headers goes. The third is what a build with CUDA
# adds for sources that a build without CUDA does not have.
IGNORED = ("-MT", "-MF", "-isystem")
IGNORED_ALONE = ("-MD", "-Werror", "-DFLASHSTEPS_HAVE_CUBLAS_H=1")


def options_of(words: list[str], root: str, build: str) -> list[str]:
    """What decides about the object, wherever the tree and its build are."""
    options, before = [], ""
    for word in words:
        if before not in IGNORED and word not in (*IGNORED, *IGNORED_ALONE):
            options.append(word.replace(build, "BUILD").replace(root, "ROOT"))
        before = word
    return options


def same_source(source: Path, root: Path, copy: Path) -> bool:
    """Or of the kernel that a generated file includes. One that holds its path or the commit never is."""
    text = source.read_text(encoding="utf-8")
    if kernel := re.fullmatch(r'#include "(/\S+)"\n', text):
        source = Path(kernel[1])
        text = source.read_text(encoding="utf-8")
    original = root / source.relative_to(copy)
    own = "__FILE__" in text or "build_info.inc" in text
    return not own and original.is_file() and original.read_text(encoding="utf-8") == text


def found(words: list[str], root: Path, build: Path, copy: Path) -> Path | None:
    if "-c" not in words:
        return None
    target, source = words[words.index("-o") + 1], Path(words[words.index("-c") + 1])
    if not (build / target).is_file() or not same_source(source, root, copy):
        return None
    mine = options_of(words, str(copy), str(copy / "build"))
    for entry in json.loads((build / "compile_commands.json").read_text()):
        theirs = shlex.split(entry["command"])
        if target in theirs and words[0] in theirs:
            theirs = theirs[theirs.index(words[0]) :]  # it may have a launcher, too
            return build / target if options_of(theirs, str(root), str(build)) == mine else None
    return None


def main() -> int:
    root, build, copy = (Path(each) for each in sys.argv[1:4])
    words = sys.argv[4:]
    if (made := found(words, root, build, copy)) is None:
        return subprocess.run(words).returncode
    target = words[words.index("-o") + 1]
    shutil.copyfile(made, target)
    if "-MF" in words:
        Path(words[words.index("-MF") + 1]).write_text(f"{target}: {words[words.index('-c') + 1]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
