#!/usr/bin/env python3
"""Builds docs/story/index.html, the page to play with: one file of what kernels and records say.

python3 scripts/pages/story.py --build build/ci           asks the programs of a build with tests, and writes the page
python3 scripts/pages/story.py                            writes it again with what these programs said the last time
python3 scripts/pages/story.py --check [--build build/ci] changes nothing; names what is stale

The page is story/page.html.j2 with the scripts beside it. Where scripts are off it shows the pictures that these draw
at first. Chromium draws them into the page when it is written; checking the page takes none.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from draw import drawings
from draw.drawings import DrawingError
from draw.pipeline_picture import FIRST_COPY_TRACK, Event, Trace, read_trace
from records import results
from records.problems import SHAPE, problem_label
from records.rates import contenders_of, is_decode, rate, terabytes, tflops_spread
from records.results import ResultsError
from steps import sources, variants
from steps.sources import ROOT, StepError

PAGE = ROOT / "docs" / "story" / "index.html"
PARTS = Path(__file__).parent / "story"
SECTIONS = ("matrix", "tiles", "softmax", "storage", "fragments", "banks", "pipeline", "overlap", "split", "shares")
SECTIONS += ("ladder", "bugs")
# What is drawn alike is in one file.
SCRIPTS = ("core", "matrix", "tiles", "softmax", "storage", "fragments", "banks", "pipeline", "split", "ladder", "bugs")
RECORDS = ROOT / "figures" / "results"
# What the page calls a problem, the record that has it, and what is asked of that.
MEASURED = {
    "many queries, D = 128": ("h200_staircase.json", {"S": "4096", "D": "128", "causal": "false"}),
    "many queries, D = 64, causal": ("h200_staircase.json", {"S": "4096", "D": "64", "causal": "true"}),
    "decode, one sequence of 32,768 keys": ("h200_decode.json", {"B": "1", "Hkv": "8", "Sq": "1", "Skv": "32768"}),
    "decode, 32 sequences of 4,096 keys": ("h200_decode.json", {"B": "32", "Sq": "1", "Skv": "4096"}),
}
PEERS = {"sdpa_flash": "FlashAttention-2", "sdpa_cudnn": "cuDNN", "flash_attn_3": "FlashAttention-3"}
# Traced: one CTA, with four tiles of keys; and one of a call with one query, with four tiles for each warp.
TRACED = {"v09_direct_rescale": "1,1,1,64,256,64", "v10_tma_warpspec": "1,1,1,64,256,64"}
TRACED |= {"v16_producer_warpgroup": "1,1,1,128,256,64", "v27_tile_shapes": "1,1,1,256,256,64"}
TRACED |= {"v36_stream_k": "1,4,1,1,2048,64"}
COUNTED = {"S": "256", "D": "64", "causal": "false"}
IN_TURNS = "v21_wgmma", "1,1,1,128,512,64"  # products and exponentials one after another
# From all parts of the ladder, and so that each says something new.
BUGS = (
    *("v02_smem_tiles/try2_no_barrier", "v10_tma_warpspec/arrivals_too_few", "v10_tma_warpspec/no_fence_before_refill"),
    *("v11_cp_async/no_wait", "v21_wgmma/no_wait", "v22_overlap/p_overwritten", "v27_tile_shapes/k_not_awaited"),
    *("v28_split_keys/try3_lanes_not_waited_for", "v30_one_launch/try1_no_fence"),
    "v36_stream_k/try3_next_tile_too_early",
)
AROUND = 16  # lines that are shown around a line that a report names
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
        "layouts": drawings.ask_layouts(build, "tiles"),
        "fragments": drawings.ask_layouts(build, "fragments"),
        "attention": attention(build),
        "counted": counted(build / "flashsteps"),
        "traces": [traced(build / "flashsteps", *each) for each in TRACED.items()],
        "overlap": nominal_costs(read_trace(build / "flashsteps", *IN_TURNS)),
        "bugs": bugs(build / "tests/flashsteps_variants"),
    }


def attention(build: Path) -> Data:
    """The attention matrix of the structured heads as a step computes it, in thousandths."""
    from draw import attention_data  # takes numpy

    heads = len(attention_data.PATTERNS)
    q, k, _ = (x[0] for x in attention_data.inputs(build, "structured", "fp16", 1, heads, SEQLEN))
    weights = {}
    for name, causal in (("full", False), ("causal", True)):
        matrices, _ = attention_data.attention_matrix(build, attention_data.STEP, "fp16", causal, q, k)
        weights[name] = (1000 * matrices).round().astype(int).tolist()
    return {"seqlen": SEQLEN, "step": attention_data.STEP, "weights": weights}


FIRST_WGMMA_TRACK = 50  # likewise


def counted(program: Path) -> list[Data]:
    """Of every step: wavefronts per 64 x 64 scores, products that read shared memory themselves, bytes of shared
    memory. The program is asked what the record does not have."""
    [run] = results.select_runs(results.load(RECORDS / "emulator_counters.json"), COUNTED)
    shape = ",".join(str(run["problem"][key]) for key in SHAPE)
    known = {step["step"]: step for step in run["steps"]}
    tiles = run["problem"]["batch"] * run["problem"]["num_heads_q"] * (run["problem"]["seqlen_q"] / 64) ** 2
    told = []
    for name in sources.all_steps():
        if not (step := known.get(name)):
            [[step]] = [its["steps"] for its in drawings.ask_flashsteps(program, "count", name, shape)["runs"]]
        wavefronts = step["counters"]["shared_wavefronts"] / tiles
        bytes_kept = step["resources"]["smem_bytes"]
        told.append(
            {"step": name, "wavefronts": wavefronts, "wgmma": step["counters"].get("wgmma", 0), "bytes": bytes_kept}
        )
    return told


def traced(program: Path, step: str, shape: str) -> Data:
    """Who does what when, and in which line of the source. The four warps of a warpgroup do the same at the same time,
    and the first of them stands for all."""
    trace = read_trace(program, step, shape)
    [producer] = {e.track for e in trace.events if e.kind == "issue" and " K " in e.name} or [None]
    names = names_of_mbarriers(trace, producer)
    tracks = {}
    for track in trace.tracks:
        own = trace.of(track, "products", "copy", "memory")
        if trace.of(FIRST_WGMMA_TRACK + track, "wgmma") and track < FIRST_WGMMA_TRACK:
            if track % 4 == 0:
                tracks[track] = f"warps {track}–{track + 3}"
                tracks[FIRST_WGMMA_TRACK + track] = f"their wgmma {track}–{track + 3}"
        elif track == producer:
            tracks[track] = "producer"
        elif track < FIRST_WGMMA_TRACK and own:
            tracks[track] = f"warp {track}"
        elif own and own[0].name[0] in "KV":
            # A group of cp.async has a tile of K and one of V, from the same source line.
            tensor = "KV" if "group" in own[0].name else own[0].name[0]
            places = sum(name.startswith(f"{tensor}, ") for name in tracks.values())
            tracks[track] = f"{tensor}, place {places}"
    events = [
        {
            "track": tracks.get(e.track, ""),
            "kind": e.kind,
            "name": product_of(e) or name_of(e, names),
            "begin": e.begin,
            "end": e.end,
            "mbarrier": names.get(e.mbarrier, e.mbarrier),
            "phase": e.phase,
            "line": line_at(e.at),
        }
        for e in trace.events
        if e.track in tracks and e.end > e.begin or e.kind == "arrival"
    ]

    def place(track: int) -> tuple[bool, bool, int, int]:
        return track < FIRST_COPY_TRACK, track != producer, track % FIRST_WGMMA_TRACK, track

    places = sorted(tracks, key=place)
    queries = int(shape.split(",")[3])
    return {"step": step, "queries": queries, "tracks": [tracks[track] for track in places], "events": events}


def name_of(event: Event, mbarriers: dict[str, str]) -> str:
    name = event.name.replace(event.mbarrier, mbarriers.get(event.mbarrier, event.mbarrier))
    return re.sub(r"^V group (\d+)$", r"KV tile \1", name) if event.kind == "copy" else name


def nominal_costs(trace: Trace) -> Data:
    """Of a product and of the exponentials between two products, in the middle of a trace; and when S begins."""
    scores, product = (e for e in trace.of(FIRST_WGMMA_TRACK, "wgmma")[4:6])
    begins = [e.begin for e in trace.of(FIRST_WGMMA_TRACK, "wgmma") if product_of(e)[0] == "S"]
    return {"product": scores.end - scores.begin, "work": product.begin - scores.end, "s_begins": begins}


def product_of(event: Event) -> str:
    """Which product it is, where the comment above it does not say so: its accumulator or its operand does."""
    if event.kind != "wgmma" and event.name != "products":
        return ""
    line = line_at(event.at)
    if re.search(r"\b(acc_s|frag_k)\b", line):
        return "S = Q K^T"
    return "O += P V" if re.search(r"\b(acc_o|frag_v)\b", line) else ""


def names_of_mbarriers(trace: Trace, producer: int | None) -> dict[str, str]:
    """Of those whose names do not say what they are for: the producer waits until a place is empty, and then asks for a
    tile, which fills it."""
    names: dict[str, str] = {}
    waited = ""
    for e in trace.of(producer, "wait", "issue") if producer is not None else ():
        if e.kind == "wait":
            waited = e.mbarrier
        elif e.mbarrier not in names and not re.match(r"bar_[a-z]_", e.mbarrier):
            tensor = e.name.split()[1]
            place = sum(name.startswith(f"{tensor} full") for name in names.values())
            names |= {e.mbarrier: f"{tensor} full[{place}]", waited: f"{tensor} empty[{place}]"}
    return names


def line_at(at: str) -> str:
    """The source line that stands at FILE:LINE. Not its number: that changes with every line above it."""
    file, _, number = at.partition(":")
    text = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(number) - 1] if number else ""
    return text.strip()


def bugs(program: Path) -> list[Data]:
    """Steps with one bug each, and what the emulator says of them."""
    told = []
    for page in BUGS:
        bug = variants.find(*page.split("/"))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "results.json"
            command = [str(program), "check", bug.step_name, *problem_of(bug), "--json", str(file)]
            subprocess.run([*command, "--backend", "emulator"], capture_output=True, check=False)
            if not file.is_file():
                raise DrawingError(f"{program}: checks no {bug.step_name}")
            ((entry,),) = [run["steps"] for run in json.loads(file.read_text(encoding="utf-8"))["runs"]]
        report = re.sub(r"\S*/(kernel\.cu:\d+)", r"\1", entry["message"])
        report = re.sub(r" at 0x[0-9a-f]+", "", report)  # which is another one in each run
        told.append(
            {
                "step": bug.step,
                "title": bug.title,
                "diff": [line for change in bug.changes for line in change.diff],
                "report": report,
                "files": [around(file, report, bug) for file in sorted({each[0] for each in named_in(report)})],
            }
        )
    return told


def problem_of(bug: variants.Variant) -> list[str]:
    """The first problem that the bug's page runs."""
    words = bug.cases[0].commands[0].split()
    shape = words.index("--shape")
    return words[shape : shape + 2]


def named_in(report: str) -> set[tuple[str, int]]:
    return {(file, int(number)) for file, number in re.findall(r"([\w/]+\.(?:cu|h)):(\d+)", report)}


def around(file: str, report: str, bug: variants.Variant) -> Data:
    """The lines that the report names of a file, among their neighbours; between two that are close, all lines."""
    text = variants.source(bug) if file == "kernel.cu" else (ROOT / file).read_text(encoding="utf-8")
    lines = text.splitlines()
    named = sorted(number for its, number in named_in(report) if its == file)
    shown: set[int] = set()
    for number, following in zip(named, [*named[1:], len(lines) + 10**6]):
        before = AROUND // 4 + number % (AROUND // 2)  # so that the place among them gives nothing away
        end = following if following - number <= 2 * AROUND else number + AROUND - before
        shown |= set(range(max(1, number - before), min(end, len(lines)) + 1))
    return {
        "file": file,
        "lines": [{"number": n, "text": lines[n - 1].rstrip(), "named": n in named} for n in sorted(shown)],
    }


def essence(data: Data) -> Data:
    """Without what another compiler may change: times of traces, with them who waits, and who of many comes first into
    a report."""
    own = copy.deepcopy(data)
    own.get("overlap", {}).clear()
    for trace in own.get("traces", []):
        doing = [e for e in trace["events"] if e["kind"] in ("products", "wgmma", "arrival", "issue", "copy")]
        trace["events"] = sorted([e["track"], e["kind"], e["name"], e["phase"], e["line"]] for e in doing)
    for bug in own.get("bugs", []):
        bug["report"] = re.sub(r"(?<!\.cu:)(?<!\.h:)\b\d+", "#", bug["report"])
    return own


def from_files() -> Data:
    """What the repository says."""
    return {"ladder": ladder(), "split": split(), "shares": shares()}


def ladder() -> Data:
    """How fast every step was that is on the ladder today, and peers in the same run."""
    problems = []
    for name, (file, filters) in MEASURED.items():
        record = results.load(RECORDS / file)
        [run] = results.select_runs(record, filters)
        contenders = contenders_of(run)
        # TFLOPS, or where memory is what counts, TB/s of K and V.
        unit = {each: terabytes(run["problem"], entry) or 1 for each, entry in contenders.items()}
        found = {
            each: [value * unit[each] for value in tflops_spread(run["problem"], entry["timing"])]
            for each, entry in contenders.items()
        }
        steps = [
            {"step": step, "part": sources.part(step), "rate": found[step][0], "text": [rate(v) for v in found[step]]}
            for step in sources.all_steps()
            if step in found
        ]
        problems.append(
            {
                "name": name,
                "unit": "TB/s" if is_decode(run["problem"]) else "TFLOPS",
                "record": file,
                "device": record["provenance"]["device"]["name"],
                "label": problem_label(run["problem"]),
                "steps": steps,
                "peers": [{"peer": PEERS[each], "rate": found[each][0]} for each in found if each in PEERS],
            }
        )
    about = {step: [sources.title(step), sources.after(step)] for step in sources.all_steps()}
    return {"problems": problems, "about": about}


def microseconds(entry: Data) -> float:
    return 1000 * entry["timing"]["median_ms"]


def split() -> Data:
    """What each number of CTAs for a head of K and V takes, for one sequence."""
    record = results.load(RECORDS / "h200_splits_v32.json")
    problems = []
    for run in results.select_runs(record, {"B": "1"}):
        heads = run["problem"]["num_heads_kv"]
        # v32's own choice is there a second time.
        taken = {step["resources"]["grid"][0]: microseconds(step) for step in reversed(run["steps"])}
        times = [{"splits": splits, "us": taken[splits]} for splits in sorted(taken)]
        read = 1000 * run["ceilings"]["read_kv"]["median_ms"]
        problems.append({"keys": run["problem"]["seqlen_kv"], "read": read, "times": times})
    return {"heads": heads, "sms": record["provenance"]["device"]["sm_count"], "problems": problems}


def shares() -> Data:
    """Sequences of which one is much longer than the others. The page itself computes as v36's kernel does."""
    drawings.check_quotes(
        "steps/v36_stream_k/kernel.cu",
        "return cta * (num_units / num_ctas) + cta * (num_units % num_ctas) / num_ctas;",
        "return params.kv_lengths != nullptr ? 1 : 0;",
        "return kv_len > UNIT ? ceil_div(kv_len, UNIT) : 1;",
    )
    record = results.load(RECORDS / "h200_stream_k_lengths.json")
    [run] = results.select_runs(record, {"B": "32", "kv_lengths": "skewed"})
    *others, most = sorted(run["problem"]["lengths"])
    before, after = ({"step": step["step"], "us": microseconds(step)} for step in run["steps"])
    lengths = {"count": len(others) + 1, "most": most, "others": others[-1]}
    return {"lengths": lengths, "before": before, "after": after, "factor": before["us"] / after["us"]}


def kept(page: str) -> Data:
    """What a page carries."""
    found = DATA.search(page)
    if not found:
        raise DrawingError(f"{PAGE.relative_to(ROOT)}: carries no data")
    return json.loads(found[1])


# The page.


def find_browser() -> str | None:
    """Not a snap, as Ubuntu has it, which does not see the files of a test."""
    found = (shutil.which(name) for name in ("chromium", "google-chrome"))
    return next((path for path in found if path and not path.startswith("/snap/")), None)


def description() -> str:
    """What the page carries of the files that it is made of."""
    made_of = (Path(__file__), *(PARTS / name for name in ("page.html.j2", *(f"{name}.js" for name in SCRIPTS))))
    return f"flashsteps story; sha256: {hashlib.sha256(b''.join(path.read_bytes() for path in made_of)).hexdigest()}"


def render(data: Data) -> str:
    """The page as its scripts find it."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PARTS), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        description=description(),
        numbers={name: number for number, name in enumerate(SECTIONS, start=1)},
        script="\n".join((PARTS / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS),
        data=data,
        json=json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("</", r"<\/"),
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
    own, fresh = essence(kept(page)), essence(json.loads(json.dumps(fresh)))
    differing = [name for name in fresh if fresh[name] != own.get(name)]
    reasons += [f"its '{name}' is not what programs, records or lessons say" for name in differing]
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
    except (DrawingError, ResultsError, StepError, OSError, ValueError, ImportError) as error:
        print(f"story.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
