"""The look that all figures share, and what makes them reproducible: colours, fonts, pinned metadata."""
from __future__ import annotations

import io
import os
import re
from typing import Any

from steps.sources import ROOT

# Okabe and Ito: told apart by the colour-blind, and on the figure's own background legible on dark pages too.
BAR, CEILING, INK, MUTED, BACKGROUND = "#0072B2", "#D55E00", "#222222", "#6b6b6b", "#fcfcfa"
GRID, GAP, HATCH = "#dddddd", "#eeeeec", "#c8c8c4"
# A page that is dark turns the whole picture: light becomes dark, and every hue stays what it was.
DARK = "@media (prefers-color-scheme:dark){svg{filter:invert(.95) hue-rotate(180deg)}}"
# A matrix has one colour in all pictures, also where it is being computed, copied or kept. All are light enough for
# text on them. K and V, which are treated alike, share one. Where a copy is on its way, what has arrived is paler.
Q, KV, S, P, O = "#c9c6ec", "#d9a3c1", "#7db8dc", "#f0c664", "#72c7a6"
Q_THERE, KV_THERE, P_PALE = "#ebeaf8", "#f3e3ec", "#f8e2b1"
NEUTRAL, IDLE = "#d4d4cf", "#e9e9e5"
# What is no matrix: registers, heads, tiles. Tints of Okabe and Ito's blue, yellow, green and pink.
TINTS = ("#a8cfe8", "#f5e08f", "#a3d9c5", "#eac4da")
IDEAL = "#e69f00"  # beside BAR: what the best possible would be
BEFORE = "#73899b"  # beside BAR: what came before
# Other people's kernels: colours and dashes, darker than Okabe and Ito's, as text has the colours too.
PEERS = {
    "sdpa_flash": ("FlashAttention-2", "#00755a", (0, (5, 2))),
    "sdpa_cudnn": ("cuDNN", "#a8447e", (0, (2, 1.5))),
    "flash_attn": ("flash_attn", "#00755a", (0, (5, 1, 1, 1))),
    "flash_attn_3": ("FlashAttention-3", "#7a5200", (0, (7, 2))),
    "flashinfer": ("FlashInfer", "#4a4fb5", (0, (1, 1))),
}
# From the first step of a ladder to the last.
FIRST_STEP, LAST_STEP = (0.36, 0.56, 0.70), (0.02, 0.14, 0.30)
PNG_DPI = 110
WIDTH = 8.72  # inches, 837 pixels: what a README is wide, where nothing is scaled down then
TITLE, HEADING, TEXT, NOTE = 12, 9.5, 8.5, 8.3  # sizes of type, in points: 11 pixels at least


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
            "hatch.color": HATCH,
            "hatch.linewidth": 0.5,
        }
    )
    return plt


def step_colours(count: int) -> list[tuple[float, ...]]:
    """One hue, darker from step to step: the order is seen without telling colours apart."""
    shares = [index / max(count - 1, 1) for index in range(count)]
    return [tuple(a + (b - a) * share for a, b in zip(FIRST_STEP, LAST_STEP)) for share in shares]


def svg_text(figure: Any) -> str:
    """The figure, which is closed: an element on a line, and with the rule for dark pages."""
    file = io.StringIO()
    save(figure, file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = re.sub(r"<!--.*?-->", "", file.getvalue())
    text = re.sub(r" *<metadata>.*?</metadata>\n", "", text, flags=re.DOTALL)
    return re.sub(r"\s*\n *(?! |<[a-z])", " ", text).replace("</style>", f"{DARK}</style>", 1) + "\n"


def png_bytes(figure: Any) -> bytes:
    """Of the figure, which is closed."""
    file = io.BytesIO()
    save(figure, file, format="png", metadata={"Software": None}, dpi=PNG_DPI)
    return file.getvalue()


def save(figure: Any, file: Any, **how: Any) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(file, **how)
    plt.close(figure)


MISSING = (
    "(build/venv/bin/python has it after scripts/run.sh; or pip install -r scripts/requirements.txt)"
)
