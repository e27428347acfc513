"""What scripts write: a record, whole or not at all, and lines and tables on a terminal."""
from __future__ import annotations

import argparse
import json
import os
import tempfile
import unicodedata
from pathlib import Path
from typing import Any


def writable(name: str) -> Path:
    """The file of an option, which can be written: else a long measurement would be lost at its end. Leaves nothing
    behind. A link stays a link: what it points to is replaced."""
    path = Path(name).resolve()
    try:
        if path.exists() and not path.is_file():
            raise argparse.ArgumentTypeError(f"{printable(path)}: is not a regular file")
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{printable(path)}: {error.strerror}") from error


# What is spread out, with a line for each of its values. harness/program/results.cpp has the same for its own keys.
FRAMES = {
    *("provenance", "runs", "ceilings", "steps", "instructions", "warps", "others"),
    *("peers", "host_overhead", "entries", "ring", "problems", "contenders"),
}


OF_RUNS = {"steps", "peers", "ceilings"}
MANY_RUNS = 100


def record_text(record: dict[str, Any]) -> str:
    """An entry has one line, be it a step of a run, a peer, a ceiling, a problem or one of the device's facts; if there
    are many runs, each of them has one."""
    frames = FRAMES - OF_RUNS if len(record.get("runs", ())) > MANY_RUNS else FRAMES

    def lines(value: Any, indent: str, is_frame: bool) -> str:
        if not is_frame:
            return json.dumps(value, separators=(",", ":"), allow_nan=False)
        found = []
        for key, item in value.items() if isinstance(value, dict) else ((None, item) for item in value):
            has_frames = isinstance(item, dict) and not frames.isdisjoint(item)
            spread = isinstance(item, (dict, list)) and bool(item) and (key in frames or has_frames)
            name = "" if key is None else f"{json.dumps(key)}: "
            found.append(f"\n {indent}{name}{lines(item, indent + ' ', spread)}")
        first, last = "{}" if isinstance(value, dict) else "[]"
        return f"{first}{','.join(found)}\n{indent}{last}"

    return lines(record, "", True) + "\n"


def rounded(value: Any) -> Any:
    """To six digits, which are more than any measurement has."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def save(path: Path | None, record: dict[str, Any]) -> None:
    if path is None:
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(record_text(record))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def printable(text: object) -> str:
    """One line. Control characters in a file or in its name would be commands to the terminal, so they are spelled
    out, as are surrogates, which no encoding has."""
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cs") else c for c in str(text)
    )


def one_line(error: object) -> str:
    """Of an error, or of a text, the first line."""
    lines = str(error).strip().splitlines()
    line = " ".join((lines[0] if lines else type(error).__name__).split())
    return line if len(line) <= 200 else line[:199] + "…"


COLUMNS = 100  # of text: no table for a terminal is wider


def table(rows: list[list[str]]) -> str:
    """The first column's words on the left, all others on the right. What would be too wide goes on below, behind the
    same first column."""
    first, *others = (list(column) for column in zip(*rows))
    names = [f"  {word:<{max(map(len, first))}}" for word in first]
    blocks = [list(names)]
    for column in others:
        cells = [f"  {word:>{max(map(len, column))}}" for word in column]
        if len(blocks[-1][0]) + len(cells[0]) > COLUMNS and blocks[-1] != names:
            blocks.append(list(names))
        blocks[-1] = [line + cell for line, cell in zip(blocks[-1], cells)]
    return "\n".join("".join(f"{line.rstrip()}\n" for line in block) for block in blocks)
