"""What the pictures of docs/figures/ share: where their data come from, and what their files hold.

A module of pictures has PICTURES, name -> a function that draws it from data, and read(build), which gives these data:
what programs of a build print or do. A picture is drawn on a Sheet or, where it has axes, as a figure of matplotlib's,
which may be a PNG if it is of pixels.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Iterator
from unittest import mock

from draw import figure_style, sheet
from steps.sources import ROOT

MAX_BYTES = 300_000


class DrawingError(Exception):
    """One line for the user."""


def check_quotes(file: str, *lines: str) -> None:
    """That a picture's numbers, which its author typed, are still those of the source: it must have these lines."""
    source = " ".join((ROOT / file).read_text(encoding="utf-8").split())
    for line in lines:
        if " ".join(line.split()) not in source:
            raise DrawingError(f"{file} no longer says '{line}', which a picture shows")


def ask_layouts(build: Path, what: str) -> Any:
    """What layouts.cpp prints of tiles, fragments or copies."""
    try:
        return json.loads(subprocess.run([build / "layouts"], capture_output=True, check=True).stdout)[what]
    except (OSError, subprocess.CalledProcessError) as error:
        raise DrawingError(f"{build}/layouts: prints nothing to draw ({error})") from error


def ask_flashsteps(program: Path, command: str, step: str, *problem: str) -> Any:
    """What a command of flashsteps writes to its file, of a step and a problem: a shape, and further options."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "said.json"
        words = [str(program), command, step, "--shape", *problem, "--json", str(path)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return json.loads(path.read_text(encoding="utf-8"))
            reason = " ".join((done.stderr or done.stdout).split())
        except (OSError, ValueError) as error:
            reason = str(error)
    raise DrawingError(f"{program}: {command} says nothing of {step} ({reason})")


@contextlib.contextmanager
def noting_texts() -> Iterator[sheet.Texts]:
    """All texts that matplotlib draws to a file meanwhile (labels of ticks beyond an axis are not)."""
    from matplotlib.text import Text

    found: sheet.Texts = {}  # the last time that a text is drawn counts
    original = Text.draw

    def draw_and_note(self: Any, renderer: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            found[id(self)] = (self.get_text(), Text.get_window_extent(self, renderer), self.get_size())
        original(self, renderer)

    with mock.patch.object(Text, "draw", draw_and_note):
        yield found


def content(name: str, drawn: Any) -> tuple[bytes, list[str]]:
    """Of the picture's file; and what cannot be read of the picture."""
    if isinstance(drawn, sheet.Sheet):
        made, faults = drawn.svg().encode(), drawn.faults()
    else:
        is_svg = name.endswith(".svg")
        size, point = drawn.get_size_inches() * 72, 1 if is_svg else figure_style.PNG_DPI / 72
        with noting_texts() as texts:
            made = figure_style.svg_text(drawn).encode() if is_svg else figure_style.png_bytes(drawn)
        faults = sheet.faults_of(*(size * point), point, texts)
    if len(made) > MAX_BYTES:
        faults.append(f"has {len(made)} bytes, {MAX_BYTES} are allowed")
    return made, [f"{name}: {fault}" for fault in faults]
