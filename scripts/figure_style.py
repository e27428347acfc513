"""The look that all figures share, and what makes them reproducible: colours, fonts, pinned metadata."""
from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 300_000
# Okabe and Ito: told apart by the colour-blind, and on the figure's own background legible on dark pages too.
BAR, CEILING, INK, MUTED, BACKGROUND = "#0072B2", "#D55E00", "#222222", "#6b6b6b", "#fcfcfa"


def digest(script: str, *data: bytes) -> str:
    """Of all that a figure follows from: its data, the script that draws it, this style, library versions."""
    files = (Path(script), Path(__file__), Path(script).with_name("requirements.txt"))
    whole = hashlib.sha256()
    for part in (*data, *(path.resolve().read_bytes() for path in files)):
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()


def pyplot() -> Any:
    """matplotlib.pyplot, set up. Raises ImportError where it is missing."""
    # The font cache: the home folder may not exist, and the user's own configuration must not matter.
    os.environ["MPLCONFIGDIR"] = str(ROOT / "build" / "matplotlib")
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcdefaults()
    plt.rcParams.update(
        {
            "svg.hashsalt": "flashsteps",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica"],
            "figure.facecolor": BACKGROUND,
            "axes.facecolor": BACKGROUND,
            "savefig.facecolor": BACKGROUND,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": MUTED,
            "xtick.color": INK,
            "ytick.color": INK,
            "hatch.color": "#c8c8c4",
            "hatch.linewidth": 0.5,
        }
    )
    return plt


def svg_metadata(**own: str) -> dict[str, str | None]:
    """The date and the library's version would change the bytes without changing the picture."""
    return {"Date": None, "Creator": None, **own}


MISSING = (
    "(build/venv/bin/python has it after scripts/run.sh; or pip install -r scripts/requirements.txt)"
)
