#!/usr/bin/env python3
"""Records what a command prints, so that a page can show it (the block `output` of readme_tables.py).

    python3 scripts/records/record_output.py --out figures/results/FILE.txt [--from TEXT] -- COMMAND...

FILE begins with how it came about, a line each (command, commit, date, machine, exit status); behind an empty
line stands the output, stdout and stderr together, as it was, but for two things: the repository's path becomes
flashsteps, and of a line that was rewritten in place the last state is left. With --from, what comes before the
line that begins with TEXT is left out, and an ellipsis stands for it.

Only from a clean, committed tree. A copy without .git needs --commit, which must be true of it.
Exit status: that of the command; 2 when nothing could be recorded.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from records import results
from records.results import ROOT

HEADER = ("command", "commit", "date", "machine", "exit status")
ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class OutputError(Exception):
    """One line for the user."""


def commit_of(root: Path) -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            raise OutputError("no git repository: give --commit, if it is true of this copy")
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if git("status", "--porcelain"):
        raise OutputError("the tree has changes that are not committed")
    return commit


def machine() -> str:
    release = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
        gpus = re.findall(r"^GPU \d+: (.*?) \(", listed.stdout, re.MULTILINE)
    except OSError:
        gpus = []
    cpus = f"{len(os.sched_getaffinity(0))} CPUs"
    return ", ".join([release, platform.machine(), cpus, *(gpus or ["no GPU"])])


def cleaned(output: str, root: Path) -> str:
    text = ESCAPE.sub("", output).replace("\r\n", "\n").replace(str(root), "flashsteps")
    return "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in text.split("\n")).strip("\n") + "\n"


def from_line(output: str, start: str) -> str:
    lines = output.splitlines(keepends=True)
    found = [i for i, line in enumerate(lines) if line.startswith(start)]
    if not found:
        raise OutputError(f"no line of the output begins with '{start}'")
    return "…\n" + "".join(lines[found[0] :])


def parse(text: str, name: str) -> tuple[dict[str, str], str]:
    """Header and output of a recorded file."""
    head, empty, output = text.partition("\n\n")
    header = dict(line.partition(": ")[::2] for line in head.splitlines())
    if not empty or tuple(header) != HEADER:
        raise OutputError(f"{name} was not made by scripts/records/record_output.py")
    return header, output


def load(path: Path, root: Path = ROOT) -> tuple[dict[str, str], str]:
    """As parse(); raises OutputError unless the commit is one of this history."""
    header, output = parse(path.read_text(encoding="utf-8"), path.name)
    if wrong := results.check_ancestor(header["commit"], root):
        raise OutputError(f"{path.name}: {wrong[0]}")
    return header, output


def main(arguments: list[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.txt")
    parser.add_argument("--from", dest="start", metavar="TEXT", help="leave out what comes before this line")
    parser.add_argument("--commit", metavar="HEX", help="of a copy without .git")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (default: this script's)")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    try:
        commit = options.commit or commit_of(root)
        if not re.fullmatch(r"[0-9a-f]{40}", commit):
            raise OutputError("--commit takes all 40 hexadecimal digits")
        lines = []
        # Bytes: as text, \r would become the end of a line.
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(options.command, cwd=root, **pipes) as process:
            for line in process.stdout:
                lines.append(line.decode(errors="replace"))
                print(lines[-1], end="", flush=True)
        values = (
            shlex.join(options.command).replace(str(root), "flashsteps"),
            commit,
            f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}",
            machine(),
            str(process.returncode),
        )
        header = "".join(f"{key}: {value}\n" for key, value in zip(HEADER, values))
        output = cleaned("".join(lines), root)
        output = from_line(output, options.start) if options.start else output
        options.out.write_text(f"{header}\n{output}", encoding="utf-8")
    except (OutputError, OSError) as error:
        print(f"record_output.py: {error}", file=sys.stderr)
        return 2
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
