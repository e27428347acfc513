"""Printing: what others have written, and tables."""

from __future__ import annotations

import unicodedata


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


def table(rows: list[list[str]]) -> str:
    """Columns below each other: the first one's words on the left, all others on the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for first, *cells in rows:
        numbers = "".join(f"  {text:>{width}}" for text, width in zip(cells, widths[1:]))
        lines.append(f"  {first:<{widths[0]}}{numbers}".rstrip())
    return "\n".join(lines) + "\n"
