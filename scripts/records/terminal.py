"""Printing: what others have written, tables, progress."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from typing import Any


def printable(text: object) -> str:
    """One line. Control characters in a file or in its name would be commands to the terminal, so they are spelled
    out, as are surrogates, which no encoding has."""
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cs") else c for c in str(text)
    )


def one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    line = " ".join((lines[0] if lines else type(error).__name__).split())
    return line if len(line) <= 200 else line[:199] + "…"


def table(rows: list[list[str]]) -> str:
    """Columns below each other: the first one's words on the left, all others on the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for first, *cells in rows:
        numbers = "".join(f"  {text:>{width}}" for text, width in zip(cells, widths[1:]))
        lines.append(f"  {first:<{widths[0]}}{numbers}".rstrip())
    return "\n".join(lines) + "\n"


class Progress:
    """A line on stderr, if that is a terminal."""

    WIDTH = 24

    def __init__(self, total: int, stream: Any = None):
        self.total, self.done, self.stream = total, 0, stream or sys.stderr
        self.is_shown = self.stream.isatty()

    def show(self, text: str, units: int = 0) -> None:
        self.done = min(self.done + units, self.total)
        if self.is_shown:
            filled = self.WIDTH * self.done // max(self.total, 1)
            bar = "#" * filled + "." * (self.WIDTH - filled)
            line = f"[{bar}] {100 * self.done // max(self.total, 1):3d} % {text}"
            # A line that wraps cannot be taken back.
            self.stream.write(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}")
            self.stream.flush()

    def clear(self) -> None:
        if self.is_shown:
            self.stream.write("\r\033[K")
            self.stream.flush()
