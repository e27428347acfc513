"""What the scripts that draw the pictures of docs/ share: to write them, to check them, the command line.

A script has `pictures`, name -> a function that draws it from `data`, and `read`, which runs a program and gives
the data and the description that the pictures are to carry: it names all that they follow from. Pictures are SVG,
or PNG where a picture is of pixels, as their names say.
"""
from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

from draw import figure_style, legible
from draw.figure_style import INK, MAX_BYTES, MUTED, TEXT, TITLE, WIDTH

Pictures = dict[str, Callable[[Any, Any], Any]]

PNG_DPI = 110
# Tints of Okabe and Ito's blue, yellow, green and pink, light enough for text on them.
TINTS = ("#a8cfe8", "#f5e08f", "#a3d9c5", "#eac4da")
LINE, MARK = "#8c8c88", figure_style.CEILING


class DrawingError(Exception):
    """One line for the user."""


class Sheet:
    """A picture as wide as a page, in units of its own: it is `width` of them wide. y goes downwards."""

    def __init__(self, plt: Any, width: float, height: float):
        self.unit = WIDTH / width  # inches
        self.figure = plt.figure(figsize=(WIDTH, height * self.unit))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(height, 0)
        self.axes.axis("off")
        self.rectangle = plt.Rectangle

    def title(self, text: str) -> None:
        self.left(0.14 / self.unit, 0.12 / self.unit, text, TITLE, weight="bold")

    def text(self, x: float, y: float, text: str, size: float = TEXT, **how: Any) -> None:
        how = {"ha": "center", "va": "center", "color": INK, "linespacing": 1.35, **how}
        self.axes.text(x, y, text, fontsize=size, **how)

    def left(self, x: float, y: float, text: str, size: float = TEXT, **how: Any) -> None:
        self.text(x, y, text, size, **{"ha": "left", "va": "top", **how})

    def box(self, x: float, y: float, width: float, height: float, **how: Any) -> None:
        how = {"facecolor": "none", "edgecolor": LINE, "linewidth": 0.5, **how}
        self.axes.add_patch(self.rectangle((x, y), width, height, **how))

    def arrow(self, start: tuple[float, float], end: tuple[float, float], **how: Any) -> None:
        how = {"arrowstyle": "-|>", "color": MUTED, "linewidth": 1.2, **how}
        self.axes.annotate("", end, start, arrowprops=how)


def description(kind: str, script: str, *data: bytes) -> str:
    """What a picture of this kind carries: a hash of all that it follows from, data, scripts, library versions."""
    digest = figure_style.digest(script, *data, Path(__file__).read_bytes())
    return f"flashsteps {kind}; sha256: {digest}"


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
    """What a tool of common/emulator/tools/ prints: parsed, and as it is."""
    try:
        text = subprocess.run([str(tool)], capture_output=True, check=True).stdout
        return parse(text), text
    except (OSError, subprocess.CalledProcessError, ValueError, LookupError, TypeError) as error:
        raise DrawingError(f"{tool}: prints nothing to draw ({error})") from error


def draw_all(pictures: Pictures, data: Any, described: str, folder: Path) -> list[str]:
    """Returns what cannot be read of them. A picture of a user's own run is shown all the same."""
    plt = figure_style.pyplot()
    faults = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in pictures.items():
        figure = draw(plt, data)
        path = folder / name
        if path.suffix == ".svg":
            metadata = figure_style.svg_metadata(Description=described)
        else:
            metadata = {"Software": None, "Description": described}
        with legible.noting_texts() as texts:
            figure.savefig(path, metadata=metadata, dpi=PNG_DPI)
        plt.close(figure)
        if reason := too_large(path.stat().st_size):
            raise DrawingError(f"{path}: {reason}")
        if path.suffix == ".svg":
            faults += [f"{path}: {fault}" for fault in legible.faults(figure, texts)]
    return faults


def main(
    file: str,
    purpose: str,
    pictures: Pictures,
    read: Callable[[argparse.Namespace], tuple[Any, str]],
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
            reasons = {path: why_not(path, described) for path in (options.check / name for name in pictures)}
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
