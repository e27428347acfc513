#!/usr/bin/env python3
"""Writes every generated block of the Markdown pages from figures/results/*.json and steps/*/kernel.cu.

    python3 scripts/pages/readme_tables.py           rewrite the blocks
    python3 scripts/pages/readme_tables.py --check   change nothing; fail on drift and on typed figures

A block is

    <!-- generated: KIND key=value key="a value with spaces" -->
    ... replaced by what its kind makes, as blocks.py says ...
    <!-- /generated -->

with markers that are lines of their own.
"""
from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pages import blocks
from steps.sources import ROOT

FOLDERS = ("steps", "common", "harness", "scripts", "docs", "figures")
MARKER = re.compile(r"^[ \t]*<!--\s*/?\s*generated\b", re.MULTILINE)
BLOCK = re.compile(r"^<!-- generated: (\w+)(.*) -->\n((?s:.*?))^<!-- /generated -->$", re.MULTILINE)
# A number, unless it ends a name such as v02 or H200, and a unit; markup and "+" may stand between them.
TYPED_FIGURE = re.compile(
    r"(?<![\w.,])\d[\d.,_]*(?:e[+-]?\d+)?[+%)\]]?(?:\*\*|`)?[\s\u00a0\u202f-]*(?:\*\*|`)?"
    r"(?:[TGP]|tera|giga|peta)flop",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Block:
    where: str  # file and line of the opening marker
    kind: str
    arguments: dict[str, str]
    body: str  # what is between the two markers now
    place: slice  # of the body in the page's text


def find_blocks(text: str, path: Path) -> list[Block]:
    """All blocks of a page. TableError for one that is malformed, unclosed, nested or of unknown kind."""

    def where(at: int) -> str:
        line = text.count("\n", 0, at) + 1
        return f"{path}:{line}"

    found, halves = [], set()
    for block in BLOCK.finditer(text):
        kind, words, body = block.groups()
        if kind not in blocks.KINDS:
            known = ", ".join(blocks.KINDS)
            raise blocks.TableError(f"{where(block.start())}: unknown kind '{kind}', there are {known}")
        try:
            pairs = [word.split("=", 1) for word in shlex.split(words)]
            arguments = dict(pairs)
        except ValueError as error:
            raise blocks.TableError(f"{where(block.start())}: must be key=value: {words.strip()}") from error
        if len(arguments) < len(pairs):
            raise blocks.TableError(f"{where(block.start())}: must have each key once: {words.strip()}")
        found.append(Block(where(block.start()), kind, arguments, body, slice(*block.span(3))))
        halves |= {block.start(), block.end(3)}
    for marker in MARKER.finditer(text):
        if marker.start() not in halves:
            raise blocks.TableError(
                f"{where(marker.start())}: is no half of a block, which begins with a line such as "
                "'<!-- generated: KIND key=value -->' and ends with '<!-- /generated -->'"
            )
    return found


def short_diff(old: str, new: str, limit: int = 12) -> str:
    """What would change, in at most `limit` lines."""
    compared = difflib.unified_diff(old.splitlines(), new.splitlines(), "written", "generated", n=0, lineterm="")
    lines = list(compared)[2:]
    more = [f"... {len(lines) - limit} more lines"] if len(lines) > limit else []
    return "\n".join(f"    {line[:160]}" for line in lines[:limit] + more)


def typed_figures(text: str, where: Path) -> list[str]:
    """Outside of blocks."""
    text = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    return [
        f"{where}:{number}: '{found[0]}' is typed by hand; figures come from a record in figures/results/ through a "
        "generated block"
        for number, line in enumerate(text.splitlines(), start=1)
        if (found := TYPED_FIGURE.search(line))
    ]


def check_page(path: Path, write: bool, loaded: dict[Path, blocks.Record]) -> list[str]:
    """Brings a page up to date, or says how it is not."""
    text = path.read_text(encoding="utf-8")
    relative = path.relative_to(ROOT)
    try:
        found = find_blocks(text, relative)
    except blocks.TableError as error:
        return [str(error)]
    errors, stale = [], []
    for block in found:
        try:
            body = blocks.generate(block.kind, blocks.Request(path, block.arguments, loaded))
        except blocks.TableError as error:
            errors.append(f"{block.where}: {block.kind}: {error}".replace(f"{ROOT}{os.sep}", ""))
            continue
        if body != block.body:
            stale.append((block, body))
    if not write:
        errors += [
            f"{block.where}: {block.kind}: not what its source says "
            f"(python3 scripts/pages/readme_tables.py brings it up to date)\n{short_diff(block.body, body)}"
            for block, body in stale
        ]
        return errors + typed_figures(text, relative)
    if stale and not errors:
        for block, body in reversed(stale):  # from the end, so that places stay true
            text = text[: block.place.start] + body + text[block.place.stop :]
        path.write_text(text, encoding="utf-8")
        print(f"{relative}: {len(stale)} block(s) rewritten")
    return errors


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Rewrites, or checks, the generated blocks of all Markdown pages."
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit status 1 on drift or a typed figure",
    )
    options = parser.parse_args(arguments)
    loaded: dict[Path, blocks.Record] = {}
    errors = []
    pages = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))
    for path in [*sorted(ROOT.glob("*.md")), *sorted(pages)]:
        errors += check_page(path, not options.check, loaded)
    for line in errors:
        print(line, file=sys.stderr)
    if not errors:
        print("all generated blocks are up to date")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
