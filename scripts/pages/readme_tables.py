#!/usr/bin/env python3
"""Writes every generated block of the Markdown pages from figures/results/*.json and steps/*/kernel.cu.

    python3 scripts/pages/readme_tables.py           rewrite the blocks
    python3 scripts/pages/readme_tables.py --check   change nothing; fail on drift and on typed figures

How a block is marked is said in markers.py, what may stand in it in blocks.py.
"""
from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pages import blocks, markers
from steps.sources import ROOT

FOLDERS = ("steps", "common", "harness", "scripts", "docs", "figures")
# A number, unless it ends a name such as v02 or H200, and a unit; markup and "+" may stand between them.
TYPED_FIGURE = re.compile(
    r"(?<![\w.,])\d[\d.,_]*(?:e[+-]?\d+)?[+%)\]]?(?:\*\*|`)?[\s\u00a0\u202f-]*(?:\*\*|`)?"
    r"(?:[TGP]|tera|giga|peta)flop",
    re.IGNORECASE,
)


def typed_figures(text: str, where: Path) -> list[str]:
    return [
        f"{where}:{number}: '{found[0]}' is typed by hand; figures come from a record in figures/results/ through a "
        "generated block"
        for number, line in enumerate(text.splitlines(), start=1)
        if (found := TYPED_FIGURE.search(line))
    ]


def check_page(path: Path, root: Path, write: bool, loaded: dict[Path, blocks.Record]) -> list[str]:
    """Brings a page up to date, or says how it is not."""
    text = path.read_text(encoding="utf-8")
    relative = path.relative_to(root)
    try:
        found = markers.find_blocks(text, relative, blocks.KINDS)
    except markers.MarkerError as error:
        return [str(error)]
    errors, bodies = [], []
    for block in found:
        try:
            body = blocks.generate(block, root, loaded)
        except (blocks.TableError, markers.MarkerError) as error:
            errors.append(str(error).replace(f"{root}{os.sep}", ""))
            continue
        if body == block.body:
            continue
        bodies.append((block, body))
        if not write:
            errors.append(
                f"{block.where}: {block.kind}: not what its source says "
                f"(python3 scripts/pages/readme_tables.py brings it up to date)\n"
                + markers.short_diff(block.body, body)
            )
    if not write:
        return errors + typed_figures(markers.outside(text), relative)
    if bodies and not errors:
        path.write_text(markers.replace(text, bodies), encoding="utf-8")
        print(f"{relative}: {len(bodies)} block(s) rewritten")
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
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the repository (default: the one of this script)"
    )
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    loaded: dict[Path, blocks.Record] = {}
    errors = []
    pages = (path for folder in FOLDERS for path in (root / folder).rglob("*.md"))
    for path in [*sorted(root.glob("*.md")), *sorted(pages)]:
        errors += check_page(path, root, not options.check, loaded)
    for line in errors:
        print(line, file=sys.stderr)
    if not errors:
        print("all generated blocks are up to date")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
