#!/usr/bin/env python3
"""A step as one file: its kernel, and of common/ what that uses. `flashsteps source STEP` prints it.

python3 scripts/steps/one_file.py OUT.cpp KERNEL...   writes these kernels' files as C++ strings, for the program

A source is read as a list of declarations, each with the comment above it. One is kept when a kept one has its name in
its code, beginning with all of the kernel. Names that mean several things keep all of them; that costs a few lines.
"""
from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from steps.sources import ROOT

# What headers of common/ declare and a file of its own defines, for CUDA.
DEFINITIONS = (
    "common/interface.cpp",
    "common/cuda/launch.cpp",
    "common/cuda/tensor_map.cpp",
    "common/emulator/tensor_map.cpp",  # what both backends refuse
)
MAIN = "harness/program/source_main.cu"

INCLUDE = re.compile(r'#include (?:<.+>|"(.+)")')
NAMESPACE = re.compile(r"(?:inline )?namespace(?: \w+)? \{")
NOT_CODE = re.compile(r'//.*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'')
WORD = re.compile(r"[A-Za-z_]\w*(?=( *##)?)")
# Before a declared name, and none themselves.
ATTRIBUTE = re.compile(r"\[\[.*?\]\]|\b(?:__align__|__launch_bounds__|alignas)\((?:[^()]|\([^()]*\))*\)")


@dataclass
class Line:
    number: int
    text: str

    @property
    def code(self) -> str:
        return NOT_CODE.sub("", self.text).strip()


@dataclass
class Piece:
    """A declaration and its comment; or a line that opens or closes a namespace; or a comment alone."""

    path: str
    lines: list[Line]
    after_blank: bool
    kind: str = "declaration"  # or "open", "close", "comment"
    names: list[str] = field(default_factory=list)  # that it declares; none: it stays if a neighbour does
    is_private: bool = False  # in an unnamed namespace: its names mean nothing elsewhere
    words: set[str] = field(default_factory=set)  # that it uses; "FLASHSTEPS_ACC_##" for all that begin so


@dataclass
class Source:
    path: str
    includes: list[str] = field(default_factory=list)  # of this repository
    system: list[str] = field(default_factory=list)  # the lines that include others
    lines: list[Line] = field(default_factory=list)  # all but those two
    pieces: list[Piece] = field(default_factory=list)


def for_cuda(text: str) -> list[Line]:
    """What nvcc sees, where a source has a part for each backend."""
    lines = []
    conditions: list[bool | None] = []  # None: is not about the backend, so it stays
    for number, line in enumerate(text.splitlines(), start=1):
        directive = line.split()[0] if line.startswith("#") else ""
        if directive in ("#if", "#ifdef", "#ifndef"):
            conditions.append(directive == "#ifdef" if line.split()[1:] == ["__CUDACC__"] else None)
        is_ours = directive in ("#ifdef", "#ifndef", "#else", "#endif") and conditions[-1:] not in ([], [None])
        if is_ours and directive == "#else":
            conditions[-1] = not conditions[-1]
        if not is_ours and False not in conditions and line != "#pragma once":
            lines.append(Line(number, line))
        if directive == "#endif" and conditions:
            conditions.pop()
    return lines


def declared(code: str) -> list[str]:
    """The names that a declaration declares; none where nobody can call it by name."""
    if macros := re.findall(r"#define (\w+)", code):
        return macros
    code = ATTRIBUTE.sub("", code)
    while (template := re.match(r"\s*template\s*<", code)) is not None:
        depth, end = 1, template.end()
        while depth > 0 and end < len(code):
            depth += {"<": 1, ">": -1}.get(code[end], 0)
            end += 1
        code = code[end:]
    if found := re.match(r"\s*(?:using|namespace)\s+(\w+)\s*=", code):
        return [found[1]]
    if found := re.match(r"\s*(?:struct|union|enum class|enum|class)\s+(\w+)", code):
        return [found[1]]
    if re.match(r"\s*(?:static_assert|using)\b", code) or "operator" in re.split(r"[({;]", code)[0]:
        return []
    head = re.split(r"[(={;\[]", code)[0].rstrip()
    while head.endswith(">"):  # of a specialization
        head = head[: head.rfind("<")].rstrip()
    found = re.search(r"(\w+)$", head)
    return [found[1]] if found else []


def read(path: str) -> Source:
    """`path` is relative to the repository, or absolute: a step may lie elsewhere."""
    return parse(path, (ROOT / path).read_text(encoding="utf-8", errors="surrogateescape"), ROOT)


@cache  # the steps share headers
def parse(path: str, text: str, root: Path) -> Source:
    source = Source(path)
    comment: list[Line] = []
    blank = False  # above what comes next
    statement: list[Line] = []
    depth = conditions = 0
    namespaces: list[str] = []

    def end(lines: list[Line], kind: str = "declaration") -> None:
        nonlocal comment, blank, statement
        piece = Piece(path, comment + lines, blank, kind)
        code = "\n".join(line.code for line in lines)
        if kind == "declaration":
            piece.names = declared(code)
            piece.is_private = "namespace {" in namespaces
        elif kind == "open":
            namespaces.append(code)
        elif kind == "close":
            del namespaces[-1:]
        piece.words = {word[0] + ("##" if word[1] else "") for word in WORD.finditer(code)}
        source.pieces.append(piece)
        comment, blank, statement = [], False, []

    for line in for_cuda(text):
        code = line.code
        if not statement and (include := INCLUDE.match(line.text)):
            candidates = (str(Path(path).parent / include[1]), include[1]) if include[1] else ()
            if ours := [each for each in candidates if (root / each).is_file()]:
                source.includes.append(ours[0])
            else:
                source.system.append(line.text)
            continue
        source.lines.append(line)
        if not statement:
            if line.text == "":
                if comment:
                    end([], "comment")
                blank = True
                continue
            if line.text.startswith("//"):
                comment.append(line)
                continue
            if NAMESPACE.fullmatch(code):
                end([line], "open")
                continue
            if code == "}":
                end([line], "close")
                continue
        statement.append(line)
        if code.startswith("#"):
            conditions += code.startswith("#if") - code.startswith("#endif")
        depth += sum(code.count(opening) for opening in "({[") - sum(code.count(closing) for closing in ")}]")
        is_macro = statement[0].text.startswith("#")
        complete = not line.text.endswith("\\") if is_macro else depth == 0 and code.endswith((";", "}"))
        if complete and conditions == 0:
            end(statement)
            depth = 0
    if statement or comment:
        end(statement, "declaration" if statement else "comment")
    return source


def with_headers(path: str) -> list[Source]:
    """The source and what it includes, in the order in which the compiler sees them."""
    seen: dict[str, Source] = {}

    def visit(name: str) -> None:
        if name in seen:
            return
        source = read(name)
        seen[name] = source  # in a circle it is there already
        for header in source.includes:
            visit(header)
        seen[name] = seen.pop(name)  # behind its headers

    visit(path)
    return list(seen.values())


def used(sources: Iterable[Source], kept_whole: str) -> set[int]:
    """The pieces, by id(), that the source at `kept_whole` uses, its own among them."""
    declaring: dict[str, list[Piece]] = {}
    pieces = [piece for source in sources for piece in source.pieces if piece.kind != "comment"]
    for piece in pieces:
        for name in piece.names:
            declaring.setdefault(name, []).append(piece)
    kept: set[int] = set()
    todo = [piece for piece in pieces if piece.path == kept_whole]
    while todo:
        while todo:
            piece = todo.pop()
            if id(piece) in kept:
                continue
            kept.add(id(piece))
            for word in piece.words:
                found = declaring.get(word, [])
                if word.endswith("##"):
                    found = [each for name, all in declaring.items() if name.startswith(word[:-2]) for each in all]
                todo += [each for each in found if each.path == piece.path or not each.is_private]
        # Where something of a file is kept, its namespaces are, and what has no name, such as a static_assert or an
        # operator, if it speaks of nothing that is left out.
        paths = {each.path for each in pieces if id(each) in kept and each.kind == "declaration"}
        gone = {name for name, found in declaring.items() if not any(id(each) in kept for each in found)}
        todo = [
            each
            for each in pieces
            if id(each) not in kept
            and each.path in paths
            and (each.kind == "open" or (each.kind == "declaration" and not each.names and not each.words & gone))
        ]
    return kept


def text_of(source: Source, kept: set[int]) -> list[str]:
    """Its kept pieces, in their namespaces, below the comment at its top; no lines where none is."""
    if not any(id(piece) in kept and piece.kind == "declaration" for piece in source.pieces):
        return []
    lines: list[str] = []
    empty: list[list[str]] = []  # namespaces that are open and have nothing in them yet
    for piece in source.pieces:
        texts = ([""] if piece.after_blank else []) + [line.text for line in piece.lines]
        if piece.kind == "open":
            empty.append(texts)
        elif piece.kind == "close" and empty:
            empty.pop()
        elif piece.kind == "close" or id(piece) in kept or (piece.kind == "comment" and piece is source.pieces[0]):
            lines += [line for opening in empty for line in opening] + texts
            empty = []
    return lines


def one_file(kernel: str) -> tuple[str, str]:
    """The step's file, below the lines that the program writes; and a main function for it."""
    sources = {source.path: source for source in with_headers(kernel)}
    for path in (*DEFINITIONS, MAIN):
        for source in with_headers(path):
            sources.setdefault(source.path, source)
    for_step = used(sources.values(), kernel)
    for_main = used(sources.values(), MAIN) - for_step
    system: list[str] = []

    def together(kept: set[int]) -> str:
        texts, includes = [], []
        for source in sources.values():
            lines = [line.text for line in source.lines] if source.path == kernel else text_of(source, kept)
            if source.path == kernel and kept is not for_step:
                continue
            if lines:
                texts += ["", f"// ---- {shown(source.path)}", *lines]
                includes += [each for each in source.system if each not in [*system, *includes]]
        system.extend(includes)
        return "\n".join([*sorted(includes), *texts, ""])

    return together(for_step), together(for_main)


def shown(path: str) -> str:
    """A path, without what is this machine's own."""
    parts = Path(path).parts
    return "/".join(parts[-2:]) if Path(path).is_absolute() else path


def literal(text: str) -> str:
    """A C++ string, a line of the text on each line."""
    return "\n".join(json.dumps(line, ensure_ascii=False) for line in text.splitlines(keepends=True))


def main(arguments: list[str]) -> int:
    out, *kernels = map(Path, arguments)
    entries = []
    for kernel in kernels:
        path = str(kernel.relative_to(ROOT)) if kernel.is_relative_to(ROOT) else str(kernel)
        step, of_main = one_file(path)
        entries.append(f'{{"{kernel.parent.name}",\n{literal(step)},\n{literal(of_main)}}},\n')
    out.write_text(
        "// Made by scripts/steps/one_file.py.\n"
        '#include "harness/program/commands.h"\n\n'
        "namespace flashsteps {\n\n"
        "std::vector<StepSource> step_sources() {\n"
        f"  return {{\n{''.join(entries)}  }};\n"
        "}\n\n"
        "}  // namespace flashsteps\n",
        encoding="utf-8",
        errors="surrogateescape",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
