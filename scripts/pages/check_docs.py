#!/usr/bin/env python3
"""Checks the Markdown pages: links, and that every command which a page shows is run by a test or marked.

    python3 scripts/pages/check_docs.py             links and anchors of all pages, marks of all commands
    python3 scripts/pages/check_docs.py --commands  list the commands of README.md, docs/ and lessons, their needs

A relative link must lead to a file of the repository, an anchor to one of its headings (or lines). Links to
other sites are not followed.

Commands are the lines of ```bash blocks in README.md, docs/ and the lessons. A block that cannot simply be
run says why, in a comment right above it:

    <!-- needs: gpu -->

What may be needed: gpu; network; root (to install packages); build (configures, compiles or installs:
minutes; the tests run on its result). All other commands are run by
harness/tests/test_documented_commands.py, which fails for one that it does not know.

Lessons give their commands within a line, as `build/flashsteps count v01_scalar`: these are commands, too.
What they need is known by their names.

Exit status: 0 when nothing is wrong, 1 otherwise.
"""
from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator
from urllib.parse import unquote

try:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
except ImportError as error:
    raise SystemExit(f"{error} (build/venv/bin/python has it after scripts/test.sh)") from error

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from records.results import git
from steps.sources import ROOT

MARKDOWN = MarkdownIt("commonmark", {"store_labels": True}).enable("table")
NEEDS = ("gpu", "network", "root", "build")
# Of a command within a line: how it begins, and what some of them need.
INLINE = re.compile(r"(?:python3 )?(?:build|scripts)/\S+ \S|cmake \S")
INLINE_NEEDS = {
    "cmake": ("build",),
    "python3 scripts/measure/profile_ncu.py": ("gpu",),
    "python3 scripts/steps/exercise.py": ("build",),
}
MARK = re.compile(r"<!-- needs: ([a-z ]+) -->\n?")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
HTML_LINK = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=[\"']([^\"']+)[\"']")
HTML_ANCHOR = re.compile(r"<a (?:id|name)=[\"']([^\"']+)[\"']")
REFERENCE = re.compile(r"\[([^\[\]]+)\]\[\]")  # what is left of [name][] where nobody defines the name
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)  # https:, mailto:


@dataclass(frozen=True)
class Command:
    page: str  # relative to the repository
    line: int  # of the page, from 1
    text: str  # without its comment; lines that end with \\ joined
    needs: tuple[str, ...]


class Page:
    """A page's Markdown, as CommonMark reads it."""

    def __init__(self, name: str, text: str):
        self.name, self.lines = name, text.splitlines()
        found: dict[str, dict] = {}
        self.blocks = MARKDOWN.parse(text, found)
        self.defined = found.get("references", {})  # label -> target, of [label]: target

    def inline(self) -> Iterator[tuple[Token, Token]]:
        """Everything within the lines of a block, with its block; and blocks of HTML."""
        for block in self.blocks:
            for token in [block] if block.type == "html_block" else block.children or []:
                yield block, token

    def line_of(self, block: Token, text: str) -> int:
        """Counted from 1: the block's first one with the text."""
        first, end = block.map or (0, len(self.lines))
        return next((at for at in range(first, end) if text in self.lines[at]), first) + 1

    def fences(self) -> list[Token]:
        return [block for block in self.blocks if block.type == "fence"]

    def anchors(self) -> set[str]:
        """As GitHub makes them of headings."""
        found: set[str] = set()
        for opening, heading in zip(self.blocks, self.blocks[1:]):
            if opening.type == "heading_open":
                words = "".join(token.content for token in heading.children or [])
                name = base = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
                repeat = 0
                while name in found:  # the second "Try it" is try-it-1
                    repeat += 1
                    name = f"{base}-{repeat}"
                found.add(name)
        for _, token in self.inline():
            if token.type.startswith("html_"):
                found.update(HTML_ANCHOR.findall(token.content))
        return found

    def links(self) -> list[tuple[int, str]]:
        """Line and target of every link and picture."""
        found = [(target["map"][0] + 1, target["href"]) for target in self.defined.values()]
        for block, token in self.inline():
            if token.type.startswith("html_"):
                targets = HTML_LINK.findall(COMMENT.sub("", token.content))
                found += [(self.line_of(block, target), target) for target in targets]
            elif "label" not in token.meta and (link := token.attrGet("href") or token.attrGet("src")):
                target = unquote(str(link))
                found.append((self.line_of(block, f"({target}"), target))
        return sorted(found)

    def reference_errors(self) -> list[str]:
        """[name][] without a [name]: target, and targets that nobody names."""
        errors, used = [], set()
        for block, token in self.inline():
            used.add(token.meta.get("label"))
            for name in REFERENCE.findall(token.content) if token.type == "text" else []:
                line = self.line_of(block, f"[{name}][]")
                errors.append(f"{self.name}:{line}: '[{name}][]' is defined nowhere on the page")
        for label, target in self.defined.items():
            if label not in used:
                line = target["map"][0] + 1
                errors.append(f"{self.name}:{line}: '[{label.lower()}]' is used nowhere on the page")
        return errors

    def commands(self) -> tuple[list[Command], list[str]]:
        """The commands in blocks, and what is wrong with their marks."""
        commands, errors, marked = [], [], set()
        for before, block in zip([None, *self.blocks], self.blocks):
            if block.type != "fence" or block.info not in ("bash", "sh", "shell", "console"):
                continue
            needs: tuple[str, ...] = ()
            first = block.map[0]
            if before and before.map and before.map[1] == first and (mark := MARK.fullmatch(before.content)):
                marked.add(id(before))
                needs = tuple(mark[1].split())
                wrong = [word for word in needs if word not in NEEDS]
                errors += [f"{self.name}:{first}: needs '{w}', which is none of {', '.join(NEEDS)}" for w in wrong]
            if block.info != "bash":
                what = f"a block of commands is called bash here, not {block.info}"
                errors.append(f"{self.name}:{first + 1}: {what}")
            pending, start = "", 0
            for line, text in enumerate(block.content.splitlines(), start=first + 2):
                # A # begins a comment at the beginning and after a space, as in a shell; quotes are not looked at.
                text = re.sub(r"(^|\s)#.*", "", text).strip()
                start = start if pending else line
                pending += text.removesuffix("\\")
                if not text.endswith("\\"):
                    commands += [Command(self.name, start, pending, needs)] if pending else []
                    pending = ""
        for block, token in self.inline():
            if token.type.startswith("html_") and "<!-- needs:" in token.content and id(token) not in marked:
                what = f"'{token.content.strip()}' does not stand right above a block of commands"
                errors.append(f"{self.name}:{self.line_of(block, '<!-- needs:')}: {what}")
        return commands, errors

    def inline_commands(self) -> list[Command]:
        commands = []
        for block, token in self.inline():
            command = " ".join(token.content.split())  # it may go on in the next line
            if token.type == "code_inline" and INLINE.match(command):
                needs = (each for name, each in INLINE_NEEDS.items() if command.startswith(name + " "))
                line = self.line_of(block, "`" + " ".join(command.split()[:2]))
                commands.append(Command(self.name, line, command, next(needs, ())))
        return commands


def files_of(root: Path) -> set[str]:
    """Tracked files, and new ones that git does not ignore."""
    status, listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if status == 0:
        return {name for name in listed.split("\0") if name and (root / name).exists()}
    # A copy without git: all but what builds leave.
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if path.parts[0] not in ("build", ".git")}


def pages_of(root: Path) -> list[Page]:
    names = sorted(name for name in files_of(root) if name.endswith(".md"))
    return [Page(name, (root / name).read_text(encoding="utf-8")) for name in names]


def link_errors(root: Path) -> list[str]:
    files = files_of(root)
    folders = {"."} | {parent.as_posix() for name in files for parent in Path(name).parents}
    pages = pages_of(root)
    anchors = {page.name: page.anchors() for page in pages}
    errors = []
    for page in pages:
        errors += page.reference_errors()
        for line, target in page.links():
            if ELSEWHERE.match(target):
                continue
            path, _, anchor = unquote(target).partition("#")
            name = os.path.normpath(os.path.join(os.path.dirname(page.name), path)) if path else page.name
            where = f"{page.name}:{line}: link to '{target}'"
            if name not in files and name not in folders:
                errors.append(f"{where}: the repository has no {name}")
            elif anchor and name in anchors and anchor not in anchors[name]:
                errors.append(f"{where}: {name} has no heading '#{anchor}'")
            elif anchor and name in files and name not in anchors:
                last = re.fullmatch(r"L(\d+)(?:-L(\d+))?", anchor)
                lines = len((root / name).read_bytes().splitlines())
                if last is None or not 1 <= int(last[1]) <= int(last[2] or last[1]) <= lines:
                    errors.append(f"{where}: {name} has no such line")
    return errors


def all_commands(root: Path) -> tuple[list[Command], list[str]]:
    """Of README.md, the chapters and the lessons; only lessons have some within a line."""
    commands, errors = [], []
    for page in sorted(pages_of(root), key=lambda page: page.name.startswith("steps/")):
        is_lesson = re.fullmatch(r"steps/[^/]+/README\.md", page.name)
        if is_lesson or page.name == "README.md" or page.name.startswith("docs/"):
            found, wrong = page.commands()
            commands += found + (page.inline_commands() if is_lesson else [])
            errors += wrong
    return commands, errors


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--commands", action="store_true", help="list them")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = parser.parse_args()
    commands, errors = all_commands(options.root)
    if options.commands:
        for command in commands:
            needs = f"  [needs {' '.join(command.needs)}]" if command.needs else ""
            print(f"{command.page}:{command.line}: {command.text}{needs}")
    errors += link_errors(options.root)
    for error in errors:
        print(f"check_docs.py: {error}", file=sys.stderr)
    if not errors and not options.commands:
        print(f"{len(pages_of(options.root))} pages, {len(commands)} commands: nothing wrong")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
