#!/usr/bin/env python3
"""Loads and checks results files and profiles: docs/results-schema.md. Needs the package jsonschema-rs.

python3 scripts/records/results.py check FILE...              any such file
python3 scripts/records/results.py check --recorded FILE...   one that numbers may be quoted from
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from records.problems import AXES
from records.rules import SCHEMA, check, check_shape, is_profile
from records.writing import printable
from steps.sources import ROOT, bare


class ResultsError(Exception):
    """One line for the user."""


def git(*arguments: str) -> tuple[int, str]:
    # GIT_* of a surrounding hook would point at another repository; a checkout owned by somebody else (CI
    # containers) is only read here.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.strip()


def check_ancestor(commit: str) -> list[str]:
    status, top = git("rev-parse", "--show-toplevel")
    # A release tarball unpacked inside some other repository must not be judged by that one's history.
    if status != 0 or Path(top).resolve() != ROOT.resolve():
        return [f"commit: cannot be checked, {ROOT} is no git clone, or git is missing"]
    if git("merge-base", "--is-ancestor", commit, "HEAD")[0] != 0:
        return [f"commit: {commit} is not an ancestor of HEAD, or this clone is shallow (git fetch --unshallow)"]
    return []


def check_steps(data: dict[str, Any], commit: str) -> list[str]:
    """A program may hold steps from elsewhere (FLASHSTEPS_EXTRA_STEPS), whose source no commit has."""
    pages = ("docs/ablations", "harness/tests/bugs")  # where commits before steps/*/variants.md had variants
    _, listing = git("ls-tree", "-r", "--name-only", commit, "--", "steps", *pages)
    paths = [Path(line) for line in listing.splitlines()]
    known = {path.parent.name for path in paths if path.match("steps/*/kernel.cu")}
    known |= {f"{path.parent.name}_{path.stem}" for path in paths if path.parts[0] != "steps"}
    _, headings = git("grep", "^### ", commit, "--", "steps/*/variants.md")
    known |= {"_".join(found) for found in re.findall(r":steps/(\w+)/variants\.md:### (\w+)$", headings, re.MULTILINE)}
    steps = dict.fromkeys(bare(step["step"]) for run in data["runs"] for step in run["steps"])
    return [
        f"runs: '{step}' is neither a step nor a variant of commit {commit[:12]}"
        for step in steps
        if step not in known
    ]


def check_recorded(data: dict[str, Any]) -> list[str]:
    """What a file needs besides check() before a number may be quoted from it."""
    errors = check_shape(data, "recorded")
    if (commit := data["provenance"].get("commit")) is not None:
        wrong = [f"provenance.{line}" for line in check_ancestor(commit)]
        errors += wrong or check_steps(data, commit)
    return errors


def refuse_token(token: str) -> Any:
    raise ValueError(f"{token} is not JSON; a value that is not finite is null")


def read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_token)
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also what json and utf-8 raise
        raise ResultsError(f"{path}: {error}") from error


def load(path: Path, schema: str | None = SCHEMA) -> dict[str, Any]:
    """A file of this schema (None: of either) that check() has nothing to say against."""
    data = read(path)
    if errors := check(data):
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise ResultsError(f"{path}: {errors[0]}{more}")
    if schema and data["schema"] != schema:
        kinds = ("a results file", "a profile")
        wanted, found = kinds if is_profile(data) else reversed(kinds)
        raise ResultsError(f"{path}: is {found}, this needs {wanted}")
    return data


# Filters of problems, as in `D=64 causal=true`: key -> the problem's keys that must all have the value.
FILTERS = {
    "B": ("batch",),
    "H": ("num_heads_q",),
    "Hq": ("num_heads_q",),
    "Hkv": ("num_heads_kv",),
    "S": ("seqlen_q", "seqlen_kv"),
    "Sq": ("seqlen_q",),
    "Skv": ("seqlen_kv",),
    "D": ("head_dim",),
    **{key: (key,) for key in ("dtype", "causal", *(key for key, _ in AXES))},
}


def select_runs(data: dict[str, Any], filters: dict[str, str]) -> list[dict[str, Any]]:
    """The runs whose problem matches every filter. None at all is an error."""

    def matches(problem: dict[str, Any]) -> bool:
        return all(
            json.dumps(problem.get(key)).strip('"') == value
            for name, value in filters.items()
            for key in FILTERS[name]
        )

    for name in filters:
        if name not in FILTERS:
            raise ResultsError(f"'{name}' is no filter; there are {', '.join(FILTERS)}")
    runs = [run for run in data["runs"] if matches(run["problem"])]
    if not runs:
        wanted = " ".join(f"{name}={value}" for name, value in filters.items())
        raise ResultsError(f"no problem matches {wanted}" if filters else "no problem was run")
    return runs


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Checks results files and profiles against docs/results-schema.md.")
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="check files; exit status 1 when something is wrong with one")
    checking.add_argument("files", nargs="+", type=Path, metavar="FILE")
    checking.add_argument("--recorded", action="store_true", help="also what a recorded run needs")
    options = parser.parse_args(arguments)

    failed = False
    for path in options.files:
        try:
            data = read(path)
        except ResultsError as error:
            print(printable(error), file=sys.stderr)
            failed = True
            continue
        errors = check(data)
        if not errors and options.recorded:
            errors = check_recorded(data)
        for line in errors:
            print(printable(f"{path}: {line}"), file=sys.stderr)
        failed |= bool(errors)
        if not errors:
            print(printable(f"{path}: ok, {len(data['runs'])} problem(s)"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
