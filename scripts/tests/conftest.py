"""Synthetic results files, scratch repositories, and a headless Chromium for tests of pages. No number in here was
measured: all of them follow from the formulas below, and none is ever written outside a temporary folder."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest

# A test has a core to itself, and numpy's threads would wait for each other without rest.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# Of a hook that runs the tests: the scratch repositories would be its repository.
for variable in [name for name in os.environ if name.startswith("GIT_")]:
    del os.environ[variable]

SCRIPTS = Path(__file__).resolve().parent.parent
ROOT = SCRIPTS.parent
BUILD = Path(os.environ.get("FLASHSTEPS_BUILD", ROOT / "build" / "ci"))
sys.path.insert(0, str(SCRIPTS))

from pages import blocks, readme_tables  # noqa: E402  (needs the line above)
from records import rates, results, rules  # noqa: E402
from steps import one_file, sources, variants  # noqa: E402

MATMUL_TFLOPS = 250.0
STEPS = ("v01_scalar", "v02_smem_tiles", "v03_wmma")


def make_problem(**changes: Any) -> dict[str, Any]:
    problem = {
        "batch": 4,
        "num_heads_q": 16,
        "num_heads_kv": 16,
        "seqlen_q": 4096,
        "seqlen_kv": 4096,
        "head_dim": 128,
        "dtype": "bf16",
        "causal": True,
        "kv_lengths": "full",
        "layout": "bhsd",
        "inputs": "normal",
        "seed": 1,
    }
    problem.update(changes)
    if problem["kv_lengths"] != "full":
        problem.setdefault("lengths", [problem["seqlen_kv"] // 2] * problem["batch"])
    return problem


def make_timing(problem: dict[str, Any], median_ms: float) -> dict[str, Any]:
    return {
        "median_ms": median_ms,
        "p10_ms": median_ms * 0.98,
        "p90_ms": median_ms * 1.03,
        "samples": 7,
        "launches_per_sample": 1,
        "graph": False,
        "tflops": rates.tflops_at(problem, median_ms),
        "sm_clock_mhz": 1500,
    }


def make_ceiling(tflops: float, what: str = "synthetic matmul") -> dict[str, Any]:
    return {"what": what, "median_ms": 2.0, "p10_ms": 1.9, "p90_ms": 2.1, "work": tflops * 2e9, "unit": "FLOP"}


def give_limit(data: dict[str, Any]) -> dict[str, Any]:
    """The record, as if mma.sync's ceiling had been measured: 40 % of the matmul's."""
    for run in data["runs"]:
        run["ceilings"]["mma_sync"] = make_ceiling(0.4 * MATMUL_TFLOPS, "products only")
        for step in run["steps"]:
            step["timing"]["limit"] = "mma_sync"
    return data


def make_step(name: str, index: int, problem: dict[str, Any], backend: str) -> dict[str, Any]:
    gates = rules.GATES[problem["dtype"]]
    rows = problem["batch"] * problem["num_heads_q"] * problem["seqlen_q"]
    step = {
        "step": name,
        "status": "pass",
        "message": "",
        "validation": {
            "nrmse": gates[0] / 4,
            "worst_row_nrmse": gates[1] / 4,
            "max_abs": 0.001,
            "lse_max_abs": 1e-6,
            "nonfinite": 0,
            "rows_checked": min(rows, 1024),
            "gate_nrmse": gates[0],
            "gate_row": gates[1],
            "runs_identical": True,
            "compared_with_v01": True,
        },
        "resources": {"grid": [64, 16, 4], "block": [128, 1, 1], "smem_bytes": 1024},
        "seconds": 0.5,
    }
    if problem["dtype"] != "fp32":
        step["validation"] |= {"worst_element": 1.5, "gate_element": 3.0, "bias": 1e-5, "gate_bias": 1e-4}
    if backend == "cuda":
        step["timing"] = make_timing(problem, 80.0 / 4**index)
        step["resources"] |= {"registers": 64 + index, "spill_bytes": 0, "ctas_per_sm": 4}
    else:
        step["validation"] |= {"modes": ["early", "late", "random"], "race_detector": True}
        step["counters"] = {
            "global_requests": 1000,
            "global_sectors": 64000 // 8**index,
            "global_bytes": 2048000,
            "shared_requests": 100 * index,
            "shared_wavefronts": 3000 * index,
            "shared_wavefronts_ideal": 1000 * index,
            "mma": 16 * index,
            "ldmatrix": 32 * index,
            "ldmatrix_wavefronts": 1024 * index,
            "ldmatrix_wavefronts_ideal": 128 * index,
            "barriers": 12 * index,
            "shuffles": 5,
            "tma_loads": 2 * index,
            "tma_load_bytes": 16384 * index,
            "tma_stores": 0,
            "tma_store_bytes": 0,
            "mbarrier_arrivals": 6 * index,
            "mbarrier_waits": 258 * index,
        }
    return step


def make_record(
    backend: str = "cuda",
    steps: tuple[str, ...] = STEPS,
    problems: list[dict[str, Any]] | None = None,
    commit: str = "0" * 40,
) -> dict[str, Any]:
    """A results file that the checker accepts."""
    problems = problems if problems is not None else [make_problem()]
    device = {
        "name": "Synthetic GPU",
        "compute_capability": "9.0",
        "sm_count": 10,
        "max_sm_clock_mhz": 1600,
        "driver": "1.2.3",
        "cuda_runtime": "13.0",
        "peak_tflops": {"fp32": 1000.0, "fp16": 1000.0, "bf16": 1000.0},
    }
    if backend == "emulator":
        device = {"name": "emulator", "host_cpu": "Synthetic CPU", "host_threads": 2}
    runs = []
    for problem in problems:
        run = {
            "problem": problem,
            "steps": [make_step(name, i, problem, backend) for i, name in enumerate(steps)],
        }
        if backend == "cuda":
            run["ceilings"] = {"matmul": make_ceiling(MATMUL_TFLOPS)}
        runs.append(run)
    provenance = {
        "date": "2000-01-01T00:00:00Z",
        "commit": commit,
        "dirty": False,
        "backend": backend,
        "device": device,
        "build": {
            "compiler": "GNU 12.2.0",
            "nvcc": "13.0.88" if backend == "cuda" else None,
            "flags": "",
            "type": "Release",
        },
    }
    if backend == "cuda":
        provenance["method"] = {"timer": "synthetic", "rounds": 7, "l2": "synthetic", "flops": "synthetic"}
    return {
        "schema": results.SCHEMA,
        "command": "run",
        "complete": True,
        "provenance": provenance,
        "runs": runs,
    }


def make_peers_record(peers: tuple[str, ...] = ("sdpa_flash", "sdpa_cudnn"), **more: Any) -> dict[str, Any]:
    """As compare_peers.py writes it. The first peer takes 10 ms a call, each other a tenth less."""
    data = make_record("cuda", **more)
    data["command"] = "peers"
    data["provenance"]["peers"] = {"torch": "2.11.0+cu130", "cudnn": "9.19.0", "method": "synthetic"}
    for run in data["runs"]:
        run["peers"] = []
        for index, name in enumerate(peers):
            peer = make_step(name, 0, run["problem"], "cuda")
            peer = {"peer": name, **{key: peer[key] for key in ("status", "message", "validation")}}
            for key in ("compared_with_v01", "worst_element", "gate_element", "bias", "gate_bias"):
                del peer["validation"][key]
            peer["validation"]["lse_max_abs"] = None
            peer["timing"] = make_timing(run["problem"], 10.0 * 0.9**index)
            run["peers"].append(peer)
        for step in run["steps"]:
            del step["resources"], step["seconds"]
    names = [step["step"] for step in data["runs"][0]["steps"]] if data["runs"] else []
    entries = [
        {"name": name, "median_us": 5.0, "p10_us": 4.5, "p90_us": 6.0, "samples": 7}
        for name in [*names, *peers]
    ]
    tiny = make_problem(batch=1, num_heads_q=2, num_heads_kv=2, seqlen_q=64, seqlen_kv=64)
    data["host_overhead"] = {"problem": tiny, "calls_per_sample": 200, "entries": entries}
    return data


def make_ring(commit: str = "0" * 40) -> dict[str, Any]:
    """As ring.py writes it: without transfers 2 ms, in a ring a quarter longer, of which torch is not capable."""
    data = make_record(commit=commit, problems=[])

    def times(ms: float) -> dict[str, Any]:
        return {"calls": 6, "median_ms": ms, "p10_ms": 0.9 * ms, "p90_ms": 1.1 * ms}

    problem = {
        "tokens": 8192,
        "num_heads_q": 16,
        "num_heads_kv": 4,
        "head_dim": 128,
        "nrmse": 2e-3,
        "transfer": times(0.5),
        "contenders": [{"name": name, **times(ms)} for name, ms in (("share", 2.0), ("ring", 2.5), ("local", 1.0))],
        "failed": {"torch": "is not capable"},
        "trace": {"transfer_ms": 0.5, "overlapped": 0.9, "timeline_us": {"step": [[0.0, 2000.0]]}},
    }
    ring = {"processes": 2, "torch": "2.11.0", "nccl": "2.28.9", "problems": [problem]}
    return data | {"command": "ring", "ring": ring}


def make_costs(commit: str = "0" * 40) -> dict[str, Any]:
    """As `flashsteps info --instructions --json` wrote it. A product takes ten clocks. Beside it an FFMA takes one,
    of one bank three; each group of them takes four more, and a branch two. One warp alone takes twice as long."""
    data = make_record(commit=commit, problems=[])
    del data["provenance"]["method"]

    def other(name: str, banks: int, one: float, group: float, beside: list[int]) -> dict[str, Any]:
        spread = [80 + one * count + group * min(count, 8) for count in beside]
        together = [82 + one * count + group for count in beside]
        return {"instruction": name, "banks": banks, "beside": beside, "spread": spread, "together": together}

    others = [
        other("FFMA", 2, 1.0, 4.0, [8, 16, 32]),
        other("FFMA", 1, 3.0, 4.0, [8, 16, 32]),
        other("LOP3", 2, 2.0, -0.5, [8, 16, 32]),
        other("MUFU.EX2", 1, 1.5, 0.0, [2, 4, 6]),
        other("LDSM.x4", 1, 0.0, -0.25, [2, 4, 8]),
    ]
    two = {"warps": 2, "spread": 80.0, "together": 82.0, "others": others}
    one = {"warps": 1, "spread": 160.0, "together": 164.0}
    one["others"] = [
        each | {place: [2 * clocks for clocks in each[place]] for place in ("spread", "together")} for each in others
    ]
    return data | {"command": "info", "instructions": {"products_of_round": 8, "warps": [one, two]}}


def edited(module: Any, folder: Path) -> str:
    """Where a copy of the module lies that is not what the module is."""
    copy = folder / Path(module.__file__).name
    copy.write_bytes(Path(module.__file__).read_bytes() + b"\n# edited\n")
    return str(copy)


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


KERNEL = """// {name}: what it teaches.
#include "common/step.h"

constexpr int BLOCK_M = {block};  // rows of Q

constexpr StepInfo kStep = {{
    .title = "idea of {name}, "
             "x | y",
    .removes = "something",
}};
REGISTER_STEP(launch_attention, kStep);
"""


class Repository:
    """A scratch repository with three steps and two records."""

    def __init__(self, root: Path):
        self.root = root
        git_root = str(root)
        subprocess.run(["git", "init", "-q", "-b", "main", "--template=", git_root], check=True)
        for index, name in enumerate(STEPS):
            self.write(f"steps/{name}/kernel.cu", KERNEL.format(name=name, block=32 * (index + 1)))
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", "steps")
        self.commit = git(root, "rev-parse", "HEAD")
        self.record("gpu.json", make_record(commit=self.commit))
        self.record("counts.json", make_record("emulator", commit=self.commit))

    def copy(self, root: Path) -> Repository:
        shutil.copytree(self.root, root)
        copied = copy.copy(self)
        copied.root = root
        return copied

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def record(self, name: str, data: dict[str, Any]) -> Path:
        return self.write(f"figures/results/{name}", json.dumps(data, indent=1) + "\n")

    def read(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def untouched_repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("untouched"))


@pytest.fixture
def repository(untouched_repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Scripts take it for the one that they are in."""
    copied = untouched_repository.copy(tmp_path / "a repository")
    for module in (results, sources, variants, one_file, blocks, readme_tables):
        monkeypatch.setattr(module, "ROOT", copied.root)
    return copied


@pytest.fixture
def cuda_record() -> dict[str, Any]:
    return copy.deepcopy(make_record())


# A page in a browser, and what went wrong with it.

# Elements whose text must stand out against what is behind it, and how much: WCAG 2's ratio for text.
CONTRAST = 4.5
# Run in a page, it says what is on it.
MEASURE = """(() => {
  const rgb = text => text.match(/[0-9.]+/g).map(Number);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (rgb(colour)[3] !== 0) return rgb(colour);
    }
    return [255, 255, 255];
  };
  const luminance = colour => colour.slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
  const contrast = element => {
    const two = [rgb(getComputedStyle(element).color), behind(element)].map(luminance);
    return (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05);
  };
  const words = [...document.querySelectorAll("body *")].filter(
    element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
  return {
    images: [...document.images].map(image => {
      const box = image.getBoundingClientRect();
      return {alt: image.alt, natural: image.complete ? image.naturalWidth : 0, width: box.width,
              height: box.height, visible: image.checkVisibility()};
    }),
    text: document.body.innerText,
    width: document.documentElement.clientWidth,
    needed: document.documentElement.scrollWidth,
    paper: luminance(behind(document.body)),
    faint: words.filter(element => contrast(element) < CONTRAST).map(element => element.outerHTML),
  };
})()""".replace("CONTRAST", str(CONTRAST))

Place = tuple[float, float]


class Browser:
    """With one page, and the hands on it. With scripts off, Playwright's own still run. A page is a file that asks for
    nothing, or the address of one on a server, from where it may take more."""

    def __init__(self, chromium: Any, scripts: bool = True, server: str = "data:"):
        self.may_ask = ("data:", server)
        self.page = chromium.new_page(java_script_enabled=scripts)
        self.wire = self.page.context.new_cdp_session(self.page)  # for what Playwright has no word for
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        self.page.on("console", lambda message: self.faults.append(f"console: {message.text}"))
        self.page.on("request", self.note_request)
        self.page.on("requestfailed", lambda request: self.faults.append(f"failed: {request.url[:80]}"))
        self.evaluate = self.page.evaluate

    def note_request(self, request: Any) -> None:
        if request.url != self.opened and not request.url.startswith(self.may_ask):
            self.faults.append(f"request: {request.url}")

    def open(self, page: Path | str, width: int, scheme: str) -> list[str]:
        """What went wrong by the time that the page had loaded, in the browser's words."""
        self.opened = page.as_uri() if isinstance(page, Path) else page
        self.faults.clear()
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=scheme)
        self.page.goto(self.opened)
        self.evaluate("document.fonts.ready.then(() => 0)")
        return self.faults[:]

    def pointer(self, *places: Place, touch: bool = False) -> None:
        """To the first place, pressed there, over the others, released at the last one."""
        if touch:
            kinds = ["touchStart", *["touchMove"] * (len(places) - 1), "touchEnd"]
            for kind, place in zip(kinds, (*places, None)):
                points = [dict(zip("xy", place))] if place else []
                self.wire.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
                self.evaluate("new Promise(requestAnimationFrame).then(() => 0)")  # which moves wait for
            return
        self.page.mouse.move(*places[0])
        self.page.mouse.down()
        for place in places[1:]:
            self.page.mouse.move(*place)
        self.page.mouse.up()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from pages.story import find_browser  # takes matplotlib, which few tests need

    program = find_browser()
    if program is None:
        pytest.skip("no Chromium (apt-get install -y chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, in a container.
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def browser(chromium: Any) -> Browser:
    return Browser(chromium)
