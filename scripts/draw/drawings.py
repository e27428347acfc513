"""What the scripts that draw the pictures of docs/ share: to write them, to check them, the command line.

A script has `pictures`, name -> a function that draws it from `data`, and `read`, which runs a program and gives
the data and the description that the pictures are to carry, or one for each: it names all that they follow from. A
picture is drawn on a Sheet or, where it has axes, as a figure of matplotlib's, which may be a PNG if it is of pixels.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

from draw import figure_style, legible, sheet
from draw.figure_style import MAX_BYTES
from steps.sources import ROOT

Pictures = dict[str, Callable[[Any], Any]]

PNG_DPI = 110


class DrawingError(Exception):
    """One line for the user."""


def description(kind: str, script: str, *data: bytes) -> str:
    """What a picture of this kind carries: a hash of all that it follows from, data, scripts, library versions."""
    digest = figure_style.digest(script, *data, *(Path(file).read_bytes() for file in (__file__, sheet.__file__)))
    return f"flashsteps {kind}; sha256: {digest}"


def check_quotes(file: str, *lines: str) -> None:
    """That a picture's numbers, which its author typed, are still those of the source: it must have these lines."""
    source = " ".join((ROOT / file).read_text(encoding="utf-8").split())
    for line in lines:
        if " ".join(line.split()) not in source:
            raise DrawingError(f"{file} no longer says '{line}', which a picture shows")


def of(described: str | dict[str, str], name: str) -> str:
    """A picture's own description, where not all of a script's have the same."""
    return described if isinstance(described, str) else described[name]


def too_large(size: int) -> str:
    return f"has {size} bytes, {MAX_BYTES} are allowed" if size > MAX_BYTES else ""


def why_not(path: Path, described: str) -> str:
    """Why the picture is not what its data and scripts give; empty when it is."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return str(error)
    if described[:-64].encode() not in content:
        return "was not made by the script that draws it"
    if described.encode() not in content:
        return "is stale"
    return too_large(len(content))


def ask(tool: Path, parse: Callable[[bytes], Any]) -> tuple[Any, bytes]:
    """What a tool of scripts/draw/tools/ prints: parsed, and as it is."""
    try:
        text = subprocess.run([str(tool)], capture_output=True, check=True).stdout
        return parse(text), text
    except (OSError, subprocess.CalledProcessError, ValueError, LookupError, TypeError) as error:
        raise DrawingError(f"{tool}: prints nothing to draw ({error})") from error


def draw_all(pictures: Pictures, data: Any, described: str | dict[str, str], folder: Path) -> list[str]:
    """Returns what cannot be read of them. A picture of a user's own run is shown all the same."""
    faults = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in pictures.items():
        drawn, path, found = draw(data), folder / name, []
        carried = of(described, name)
        if isinstance(drawn, sheet.Sheet):
            path.write_text(drawn.svg(carried), encoding="utf-8")
            found = drawn.faults()
        elif path.suffix == ".svg":
            size = [inches * 72 for inches in drawn.get_size_inches()]
            with legible.noting_texts() as texts:
                path.write_text(figure_style.svg_text(drawn, Description=carried), encoding="utf-8")
            found = legible.faults(*size, 1, texts)
        else:
            figure_style.write_png(drawn, path, PNG_DPI, carried)
        if reason := too_large(path.stat().st_size):
            raise DrawingError(f"{path}: {reason}")
        faults += [f"{path}: {fault}" for fault in found]
    return faults


def main(
    file: str,
    purpose: str,
    pictures: Pictures,
    read: Callable[[argparse.Namespace], tuple[Any, str | dict[str, str]]],
    arguments: list[str] | None,
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> int:
    script = Path(file).name
    parser = argparse.ArgumentParser(description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, metavar="PROGRAM")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, metavar="FOLDER", help="draw all pictures into it")
    action.add_argument("--check", type=Path, metavar="FOLDER", help="are its pictures up to date?")
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        data, described = read(options)
        if options.check:
            reasons = {options.check / name: why_not(options.check / name, of(described, name)) for name in pictures}
            for path, reason in reasons.items():
                if reason:
                    remedy = f"build/venv/bin/python scripts/draw/{script} PROGRAM --out {options.check}"
                    print(f"{path}: {reason} ({remedy})", file=sys.stderr)
            return 1 if any(reasons.values()) else 0
        for fault in (faults := draw_all(pictures, data, described, options.out)):
            print(fault, file=sys.stderr)
        return 1 if faults else 0
    except (DrawingError, OSError) as error:
        print(f"{script}: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(f"{script}: {error} {figure_style.MISSING}", file=sys.stderr)
        return 1
    return 0
