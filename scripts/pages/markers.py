"""Generated blocks in Markdown.

    <!-- generated: KIND key=value key="a value with spaces" -->
    ... replaced by what KIND's generator returns ...
    <!-- /generated -->

A marker is a line of its own.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARKER = re.compile(r"^[ \t]*<!--\s*/?\s*generated\b", re.MULTILINE)
BLOCK = re.compile(r"^<!-- generated: (\w+)(.*) -->\n((?s:.*?))^<!-- /generated -->$", re.MULTILINE)


class MarkerError(Exception):
    """One line for the user, with file:line."""


@dataclass(frozen=True)
class Block:
    path: Path
    line: int  # of the opening marker, from 1
    kind: str
    arguments: dict[str, str]
    body: str  # what is between the two lines now
    place: tuple[int, int]  # of the body in the page's text

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


def parse_arguments(text: str, where: str) -> dict[str, str]:
    try:
        words = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:
        raise MarkerError(f"{where}: {error}") from error
    arguments = {key: value for key, _, value in words}
    if len(arguments) < len(words) or not all(map(all, words)):
        raise MarkerError(f"{where}: must be key=value, each key once: {text.strip()}")
    return arguments


def outside(text: str) -> str:
    """The page with its blocks emptied, and as many lines."""
    return BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)


def find_blocks(text: str, path: Path, kinds: Iterable[str]) -> list[Block]:
    """All blocks of a page. MarkerError for one that is malformed, unclosed, nested or of unknown kind."""

    def line_of(at: int) -> int:
        return text.count("\n", 0, at) + 1

    blocks, halves = [], set()
    for found in BLOCK.finditer(text):
        line, (kind, arguments, body) = line_of(found.start()), found.groups()
        if kind not in kinds:
            raise MarkerError(f"{path}:{line}: unknown kind '{kind}', there are {', '.join(sorted(kinds))}")
        arguments = parse_arguments(arguments, f"{path}:{line}")
        blocks.append(Block(path, line, kind, arguments, body, found.span(3)))
        halves |= {found.start(), found.end(3)}
    for marker in MARKER.finditer(text):
        if marker.start() not in halves:
            raise MarkerError(
                f"{path}:{line_of(marker.start())}: is no half of a block, which begins with a line such as "
                "'<!-- generated: KIND key=value -->' and ends with '<!-- /generated -->'"
            )
    return blocks


def fitting(block: Block, body: str) -> str:
    """What was generated, as it may stand between the markers."""
    if MARKER.search(body):
        raise MarkerError(f"{block.where}: the generated text holds a marker")
    return body if not body or body.endswith("\n") else body + "\n"


def replace(text: str, bodies: Iterable[tuple[Block, str]]) -> str:
    """The page with new bodies for its blocks."""
    for block, body in sorted(bodies, key=lambda item: -item[0].line):  # from the end, so that places stay true
        begin, end = block.place
        text = text[:begin] + body + text[end:]
    return text


def short_diff(old: str, new: str, limit: int = 12) -> str:
    """What would change, in at most `limit` lines."""
    compared = difflib.unified_diff(old.splitlines(), new.splitlines(), "written", "generated", n=0, lineterm="")
    lines = list(compared)[2:]
    more = [f"... {len(lines) - limit} more lines"] if len(lines) > limit else []
    return "\n".join(f"    {line[:160]}" for line in lines[:limit] + more)
