"""Printing what others have written."""

from __future__ import annotations

import unicodedata


def printable(text: object) -> str:
    """One line. Control characters in a file or in its name would be commands to the terminal, so they are spelled
    out, as are surrogates, which no encoding has."""
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cs") else c for c in str(text)
    )
