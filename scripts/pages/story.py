#!/usr/bin/env python3
"""Builds docs/story/index.html, the page to play with: one file that needs no network, of what kernels and records say.

python3 scripts/pages/story.py --build build/ci           asks the programs of a build with tests, and writes the page
python3 scripts/pages/story.py                            writes it again with what these programs said the last time
python3 scripts/pages/story.py --check [--build build/ci] changes nothing; names what is stale

The page is story/page.html.j2 with the scripts beside it. Without scripts it shows the pictures that they draw at first:
a browser draws them, so that writing the page takes Chromium. To check it takes none.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import drawings, fragment_layouts, memory_layouts
from draw.drawings import DrawingError
from records import results
from steps.sources import ROOT

PAGE = ROOT / "docs" / "story" / "index.html"
PARTS = Path(__file__).parent / "story"
SECTIONS = ("matrix", "tiles", "softmax", "storage", "fragments", "banks", "swizzle")
RECORDS = ROOT / "figures" / "results"
SEQLEN = 64  # of the attention matrix
MAX_BYTES = 1_000_000
PICTURES_WIDTH = 838  # of the page for which the still pictures are drawn
REMEDY = "build/venv/bin/python scripts/pages/story.py --build build/ci"
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)

Data = dict[str, Any]


# What the page shows.


def from_programs(build: Path) -> Data:
    """What takes a build to find out."""
    return {
        "layouts": drawings.ask(build / "tools/memory_layouts", memory_layouts.parse)[0],
        "fragments": drawings.ask(build / "tools/fragment_layouts", fragment_layouts.parse)[0],
        "attention": attention(build / "flashsteps"),
    }


def attention(program: Path) -> Data:
    """The attention matrix of the structured heads as a step computes it, in thousandths."""
    from draw import attention_data  # takes numpy

    both = [attention_data.structured(is_query, SEQLEN, 64) for is_query in (True, False)]
    q, k = (attention_data.to_bits(x, "fp16") for x in both)
    weights = {}
    for name, causal in (("full", False), ("causal", True)):
        matrices, _ = attention_data.attention_matrix(program, attention_data.STEP, "fp16", causal, q, k)
        weights[name] = (1000 * matrices).round().astype(int).tolist()
    return {"seqlen": SEQLEN, "step": attention_data.STEP, "weights": weights}


def from_files() -> Data:
    """What the repository says."""
    return {"counted": counted()}


def counted() -> list[Data]:
    """Wavefronts per 64 x 64 scores, of each step."""
    [run] = results.select_runs(
        results.load(RECORDS / "emulator_counters.json"), {"S": "256", "D": "64", "causal": "false"}
    )
    problem = run["problem"]
    tiles = problem["batch"] * problem["num_heads_q"] * problem["seqlen_q"] * problem["seqlen_kv"] / 64**2
    return [
        {"step": step["step"], "wavefronts": step["counters"]["shared_wavefronts"] / tiles} for step in run["steps"]
    ]


def kept(page: str) -> Data:
    """What a page carries."""
    found = DATA.search(page)
    if not found:
        raise DrawingError(f"{PAGE.relative_to(ROOT)}: carries no data")
    return json.loads(found[1])


# The page.


def find_browser() -> str | None:
    script = 'ROOT=$1; . "$1/scripts/lib.sh"; find_browser'
    command = ["bash", "-c", script, "bash", str(ROOT)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None


def description() -> str:
    """What the page carries of the files that it is made of."""
    made_of = (Path(__file__), *(PARTS / name for name in ("page.html.j2", "page.css", *files())))
    return f"flashsteps story; sha256: {hashlib.sha256(b''.join(path.read_bytes() for path in made_of)).hexdigest()}"


def files() -> list[str]:
    return ["core.js", *(f"{name}.js" for name in SECTIONS)]


def render(data: Data) -> str:
    """The page as its scripts find it."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PARTS), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        description=description(),
        numbers={name: number for number, name in enumerate(SECTIONS, start=1)},
        css=(PARTS / "page.css").read_text(encoding="utf-8"),
        script="\n".join((PARTS / name).read_text(encoding="utf-8") for name in files()),
        data=json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("</", r"<\/"),
    )


def with_pictures(page: str) -> str:
    """The page as its scripts leave it, for browsers that run none."""
    browser = find_browser()
    if browser is None:
        raise DrawingError("no Chromium, which draws the pictures (apt-get install -y chromium)")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, encoding="utf-8")
        command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"]
        command += [f"--user-data-dir={folder}/profile", f"--window-size={PICTURES_WIDTH},900", file.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    marked = '<html lang="en" class="js">'
    if done.returncode or marked not in done.stdout:
        raise DrawingError(f"{browser} draws nothing: {done.stderr.strip()[-300:]}")
    return done.stdout.replace(marked, '<html lang="en">').strip() + "\n"


def stale(page: str, fresh: Data) -> list[str]:
    """Why the page is not what it would be now."""
    reasons = [] if description() in page else ["was made by other scripts than those of scripts/pages/story"]
    own, fresh = kept(page), json.loads(json.dumps(fresh))
    reasons += [f"its '{name}' is not what the programs or records say" for name in fresh if fresh[name] != own.get(name)]
    if (size := len(page.encode())) > MAX_BYTES:
        reasons.append(f"has {size} bytes, {MAX_BYTES} are allowed")
    return reasons


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, metavar="DIR", help="whose programs are asked")
    parser.add_argument("--check", action="store_true", help="change nothing; say what is not up to date")
    options = parser.parse_args(arguments)
    try:
        old = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
        fresh = from_files() | (from_programs(options.build.resolve()) if options.build else {})
        if options.check:
            reasons = stale(old, fresh)
            for reason in reasons:
                print(f"{PAGE.relative_to(ROOT)}: {reason} ({REMEDY})", file=sys.stderr)
            return 1 if reasons else 0
        page = with_pictures(render((kept(old) if old else {}) | fresh))
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page, encoding="utf-8", newline="\n")
        print(f"{PAGE.relative_to(ROOT)}: {len(page.encode()):,} bytes")
    except (DrawingError, OSError, ValueError, ImportError) as error:
        print(f"story.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
