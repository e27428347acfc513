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
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pages.markers import FENCE
from steps.sources import ROOT

NEEDS = ("gpu", "network", "root", "build")
# Of a command within a line: how it begins, and what some of them need.
INLINE = re.compile(r"(?:python3 )?(?:build|scripts)/\S+ \S|cmake \S")
INLINE_NEEDS = {"cmake": ("build",), "python3 scripts/measure/profile_ncu.py": ("gpu",)}
MARK = re.compile(r"<!-- needs: ([a-z ]+) -->")
# Text with brackets of its own, as `[x][0]` has; the target ends at a space, where a title would begin.
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^)\s>]+)")
DEFINITION = re.compile(r"^ {0,3}\[([^\]\n]+)\]:[ \t]+<?([^\s>]+)", re.MULTILINE)  # [name]: target
REFERENCE = re.compile(r"\[([^\[\]\n]+)\]\[\]")  # [name][]; [text][name] looks like an array's elements
HTML_LINK = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=[\"']([^\"']+)[\"']")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)  # https:, mailto:


@dataclass(frozen=True)
class Command:
    page: str  # relative to the repository
    line: int  # of the page, from 1
    text: str  # without its comment; lines that end with \\ joined
    needs: tuple[str, ...]


def files_of(root: Path) -> set[str]:
    """Tracked files, and new ones that git does not ignore."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode == 0:
        return {name for name in listed.stdout.split("\0") if name and (root / name).exists()}
    # A copy without git: all but what builds leave.
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if path.parts[0] not in ("build", ".git")}


def pages_of(root: Path) -> list[str]:
    return sorted(name for name in files_of(root) if name.endswith(".md"))


def chapters_of(root: Path) -> list[str]:
    """The pages whose commands are looked at, besides the lessons."""
    return [name for name in pages_of(root) if name == "README.md" or name.startswith("docs/")]


def lessons_of(root: Path) -> list[str]:
    return [name for name in pages_of(root) if re.fullmatch(r"steps/[^/]+/README\.md", name)]


def fences(lines: list[str]) -> list[tuple[int, int, str]]:
    """Of each fenced block: index of its first line, of its last one, and its language."""
    found: list[tuple[int, int, str]] = []
    first, fence, language = -1, "", ""
    for index, line in enumerate(lines):
        match = FENCE.match(line)
        if fence:
            if match and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                found.append((first, index, language))
                fence = ""
        elif match:
            first, fence, language = index, match[1], line.strip().strip("`~").split(" ")[0]
    if fence:
        found.append((first, len(lines) - 1, language))
    return found


def prose(text: str) -> list[str]:
    """The page's lines; those of fenced blocks and comments are empty, code in a line is blanked."""
    text = re.sub(r"<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    lines = text.splitlines()
    for first, last, _ in fences(lines):
        for index in range(first, last + 1):
            lines[index] = ""
    return lines


def slug(heading: str) -> str:
    """As GitHub makes an anchor of a heading."""
    heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)  # a link is its text
    heading = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return heading.replace(" ", "-")


def anchors_of(text: str) -> set[str]:
    found: set[str] = set()
    for line in prose(text):
        if match := re.match(r" {0,3}#{1,6}\s+(.*?)\s*#*$", line):
            name = base = slug(match[1])
            repeat = 0
            while name in found:  # the second "Try it" is try-it-1
                repeat += 1
                name = f"{base}-{repeat}"
            found.add(name)
        found.update(re.findall(r"<a (?:id|name)=[\"']([^\"']+)[\"']", line))
    return found


def links_of(text: str) -> list[tuple[int, str]]:
    """Line and target of every link and picture."""
    joined = "\n".join(prose(text))
    # `code` may look like a link; spaces keep a link's own text a text.
    joined = re.sub(r"`+[^`\n]*`+", lambda found: " " * len(found[0]), joined)
    found = [(match.start(1), match[1]) for match in (*LINK.finditer(joined), *HTML_LINK.finditer(joined))]
    found += [(match.start(2), match[2]) for match in DEFINITION.finditer(joined)]
    return [(joined.count("\n", 0, at) + 1, target) for at, target in sorted(found)]


def reference_errors(text: str, page: str) -> list[str]:
    """[name][] without a [name]: target, and targets that nobody names."""
    joined = "\n".join(prose(text))
    joined = re.sub(r"`+[^`\n]*`+", lambda found: " " * len(found[0]), joined)
    errors = []
    defined = {}
    for match in DEFINITION.finditer(joined):
        defined[match[1].lower()] = joined.count("\n", 0, match.start(1)) + 1
    for match in REFERENCE.finditer(joined):
        if match[1].lower() not in defined:
            line = joined.count("\n", 0, match.start()) + 1
            errors.append(f"{page}:{line}: '{match[0]}' is defined nowhere on the page")
    rest = DEFINITION.sub("", joined).lower()
    for name, line in defined.items():
        if f"[{name}]" not in rest:
            errors.append(f"{page}:{line}: '[{name}]' is used nowhere on the page")
    return errors


def link_errors(root: Path) -> list[str]:
    files = files_of(root)
    folders = {"."} | {parent.as_posix() for name in files for parent in Path(name).parents}
    texts = {name: (root / name).read_text(encoding="utf-8") for name in files if name.endswith(".md")}
    anchors = {name: anchors_of(text) for name, text in texts.items()}
    errors = []
    for page in sorted(texts):
        errors += reference_errors(texts[page], page)
        for line, target in links_of(texts[page]):
            if ELSEWHERE.match(target):
                continue
            path, _, anchor = unquote(target).partition("#")
            name = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if name not in files and name not in folders:
                errors.append(f"{page}:{line}: link to '{target}': the repository has no {name}")
            elif anchor and name in anchors and anchor not in anchors[name]:
                errors.append(f"{page}:{line}: link to '{target}': {name} has no heading '#{anchor}'")
            elif anchor and name in files and name not in anchors:
                last = re.fullmatch(r"L(\d+)(?:-L(\d+))?", anchor)
                lines = len((root / name).read_bytes().splitlines())
                if last is None or not 1 <= int(last[1]) <= int(last[2] or last[1]) <= lines:
                    errors.append(f"{page}:{line}: link to '{target}': {name} has no such line")
    return errors


def without_comment(line: str) -> str:
    """A # begins a comment at the beginning and after a space, as in a shell; quotes are not looked at."""
    return re.sub(r"(^|\s)#.*", "", line).rstrip()


def commands_of(text: str, page: str) -> tuple[list[Command], list[str]]:
    """The commands of a page, and what is wrong with its marks."""
    lines = text.splitlines()
    blocks = fences(lines)
    commands, errors, used = [], [], set()
    for first, last, language in blocks:
        if language not in ("bash", "sh", "shell", "console"):
            continue
        needs: tuple[str, ...] = ()
        if first > 0 and (mark := MARK.fullmatch(lines[first - 1].strip())):
            used.add(first - 1)
            needs = tuple(mark[1].split())
            for word in needs:
                if word not in NEEDS:
                    errors.append(f"{page}:{first}: needs '{word}', which is none of {', '.join(NEEDS)}")
        if language != "bash":
            errors.append(f"{page}:{first + 1}: a block of commands is called bash here, not {language}")
        pending, start = "", 0
        for index in range(first + 1, last):
            line = without_comment(lines[index])
            start = start if pending else index + 1
            if line.endswith("\\"):
                pending += line[:-1].rstrip() + " "
                continue
            whole = (pending + line.strip()) if pending else line.strip()
            pending = ""
            if whole:
                commands.append(Command(page, start, whole, needs))
    for index, line in enumerate(lines):
        if "<!-- needs:" not in line or index in used:
            continue
        if not any(first < index < last for first, last, _ in blocks):
            what = f"'{line.strip()}' does not stand right above a block of commands"
            errors.append(f"{page}:{index + 1}: {what}")
    return commands, errors


def inline_commands_of(text: str, page: str) -> list[Command]:
    joined = "\n".join(prose(text))
    commands = []
    for match in re.finditer(r"`([^`]+)`", joined):
        command = " ".join(match[1].split())  # it may go on in the next line
        if INLINE.match(command):
            needs = next((each for name, each in INLINE_NEEDS.items() if command.startswith(name + " ")), ())
            commands.append(Command(page, joined.count("\n", 0, match.start()) + 1, command, needs))
    return commands


def all_commands(root: Path) -> tuple[list[Command], list[str]]:
    commands, errors = [], []
    lessons = lessons_of(root)
    for page in (*chapters_of(root), *lessons):
        text = (root / page).read_text(encoding="utf-8")
        found, wrong = commands_of(text, page)
        commands += found + (inline_commands_of(text, page) if page in lessons else [])
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
