"""Generated blocks in Markdown.

    <!-- generated: KIND key=value key="a value with spaces" -->
    ... replaced by what KIND's generator returns ...
    <!-- /generated -->

A marker is a line of its own. Inside a code fence it is text, so a page may show the syntax.
"""

from __future__ import annotations

import difflib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable

MARKER = re.compile(r"<!--\s*/?\s*generated\b")
OPENING = re.compile(r"<!-- generated: ([a-z_]+)((?:\s+\S.*?)?) -->")
CLOSING = "<!-- /generated -->"
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class MarkerError(Exception):
    """One line for the user, with file:line."""


@dataclass(frozen=True)
class Block:
    path: Path
    line: int  # of the opening marker, from 1
    end: int  # of the closing marker, from 1
    kind: str
    arguments: dict[str, str]
    body: str  # what is between the two lines now

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


def parse_arguments(text: str, where: str) -> dict[str, str]:
    arguments: dict[str, str] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise MarkerError(f"{where}: {error}") from error
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise MarkerError(f"{where}: '{word}' is not key=value")
        if key in arguments:
            raise MarkerError(f"{where}: '{key}' is given twice")
        arguments[key] = value
    return arguments


def find_blocks(text: str, path: Path, kinds: Iterable[str]) -> list[Block]:
    """All blocks of a page. MarkerError for one that is malformed, unclosed, nested or of unknown kind."""
    lines = text.splitlines()
    known = sorted(kinds)
    blocks: list[Block] = []
    opened = 0  # line of the block that is open, 0: none
    fence, fence_line = "", 0
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        # A block's own fences are the generator's business: only markers matter there.
        if not opened and (found := FENCE.match(line)):
            if not fence:
                fence, fence_line = found[1], number
            elif line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        if fence or not MARKER.match(line.strip()):
            continue
        if line == CLOSING:
            if not opened:
                raise MarkerError(f"{where}: closes a block that was never opened")
            body = "".join(each + "\n" for each in lines[opened : number - 1])
            kind, rest = OPENING.fullmatch(lines[opened - 1]).groups()  # type: ignore[union-attr]
            arguments = parse_arguments(rest, f"{path}:{opened}")
            blocks.append(Block(path, opened, number, kind, arguments, body))
            opened = 0
            continue
        marker = OPENING.fullmatch(line)
        if marker is None:
            raise MarkerError(
                f"{where}: malformed marker, expected a line such as "
                f"'<!-- generated: KIND key=value -->' or '{CLOSING}'"
            )
        if opened:
            raise MarkerError(f"{where}: a block inside the block of line {opened}")
        if marker[1] not in known:
            raise MarkerError(f"{where}: unknown kind '{marker[1]}', there are {', '.join(known)}")
        opened = number
    if fence:  # everything after it was read as text, blocks included
        raise MarkerError(f"{path}:{fence_line}: the code fence is never closed")
    if opened:
        raise MarkerError(f"{path}:{opened}: the block is never closed, expected '{CLOSING}'")
    return blocks


def fitting(block: Block, body: str) -> str:
    """What was generated, as it may stand between the markers."""
    if any(MARKER.match(line.strip()) for line in body.splitlines()):
        raise MarkerError(f"{block.where}: the generated text holds a marker")
    return body if not body or body.endswith("\n") else body + "\n"


def replace(text: str, bodies: Iterable[tuple[Block, str]]) -> str:
    """The page with new bodies for its blocks."""
    lines = text.splitlines(keepends=True)
    # From the end, so that numbers stay true.
    for block, body in sorted(bodies, key=lambda item: -item[0].line):
        lines[block.line : block.end - 1] = [body]
    return "".join(lines)


def outside(text: str, blocks: Iterable[Block]) -> list[tuple[int, str]]:
    """The numbered lines that people typed: those in no generated block."""
    generated = {number for block in blocks for number in range(block.line, block.end + 1)}
    return [
        (number, line) for number, line in enumerate(text.splitlines(), start=1) if number not in generated
    ]


def short_diff(old: str, new: str, limit: int = 12) -> str:
    """What would change, in at most `limit` lines."""
    lines = list(
        difflib.unified_diff(old.splitlines(), new.splitlines(), "written", "generated", n=0, lineterm="")
    )[2:]
    more = [f"... {len(lines) - limit} more lines"] if len(lines) > limit else []
    return "\n".join(f"    {line[:160]}" for line in lines[:limit] + more)
