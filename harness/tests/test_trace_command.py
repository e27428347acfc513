"""`flashsteps trace`: what the file holds, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_program import BUILD, FIXTURES, FLASHSTEPS, ROOT, STEPS, run, sources

ONE_CTA = ["--shape", "1,1,1,64,230,64"]
FEW_KEYS = ["--shape", "1,1,1,16,60,64"]  # one CTA of a step that splits keys
ONE_CTA_OF_KEYS = ["--shape", "1,1,1,64,60,64"]  # of a backward pass
# Barriers of other kernels, which the trace does not show. Of first ones: of two CTAs that have 8 warps, or four that
# have 2. v43's first two have a tile of Q, and two each of K and V. All wait once, and V's once more. Of the last one
# from v52 to v59: of a CTA that has 8 warps.
ELSEWHERE = {
    **{step: 8 for step in STEPS if "v52" <= step < "v60"},
    "v40_fp8": 2 * 8,
    "v41_bytes_of_p": 2 * 8,
    "v43_quantize": (5 + 5 + 2) * 8,
    "v44_fp8_mma_sync": 4 * 2,
    "v46_some_exponentials": 2 * 8,
}
PRODUCTS, COPIES = 50, 100  # the first tracks of wgmma's products and of copies


def trace(out: Path, *arguments: str) -> dict[str, Any]:
    done = run(FLASHSTEPS, "trace", *arguments, "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"trace: {out}" in done.stdout and "not measured" in done.stdout
    return json.loads(out.read_text())


def events(data: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in data["traceEvents"] if event.get("cat") == category]


@pytest.mark.parametrize("step", STEPS)
def test_every_step_has_a_trace_that_agrees_with_its_counters(tmp_path: Path, step: str) -> None:
    kernel = (ROOT / "steps" / step / "kernel.cu").read_text(encoding="utf-8")
    splits = "Purpose::kDecode" in kernel or "even_shares.h" in kernel
    problem = FEW_KEYS if splits else ONE_CTA_OF_KEYS if sources.part(step) == "backward" else ONE_CTA
    data = trace(tmp_path / "t.json", step, *problem)
    counted = tmp_path / "c.json"
    assert run(FLASHSTEPS, "count", step, *problem, "--json", str(counted)).returncode == 0
    counters = json.loads(counted.read_text())["runs"][0]["steps"][0]["counters"]
    products = events(data, "products")
    assert sum(e["args"]["mma"] for e in products) == counters["mma"]
    assert sum(e["args"]["ldmatrix"] for e in products) == counters["ldmatrix"]
    # Those of cp.async, which come in groups, are counted as requests of lanes.
    copied = sum(e["args"]["bytes"] for e in events(data, "copy") if "group" not in e["args"])
    assert copied == counters["tma_load_bytes"] + counters["tma_store_bytes"]
    for_others = ("store", "cp_async_wait", "warpgroup_wait")  # copies and products
    others = [e["name"] for e in events(data, "wait") if "mbarrier" not in e["args"]]
    at_barriers = [name for name in others if not any(word in name for word in for_others)]
    # Who only arrives does not wait, and shows only if it comes last. Steps that do so take turns, each a bar.sync and a
    # bar.arrive, at barriers 1 to 7.
    waits = [name for name in at_barriers if "bar.arrive" not in name]
    takes_turns = len(waits) < len(at_barriers)
    arrivals = [name for name in waits if "bar.sync" in name and takes_turns and int(name.split()[-1]) < 8]
    assert len(waits) + len(arrivals) + ELSEWHERE.get(step, 0) == counters["barriers"]

    assert data["otherData"]["step"] == step and "not measured" in data["otherData"]["time"]
    names = {e["tid"]: e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"}
    assert len([t for t in names if t < PRODUCTS]) == data["otherData"]["warps"]
    busy_until = dict.fromkeys(names, 0)
    for event in data["traceEvents"]:
        if event["ph"] == "M":
            continue
        assert event["ph"] in "Xi" and isinstance(event["ts"], int)
        if event["ph"] == "X":  # viewers cannot show events that overlap on a track
            assert event["ts"] >= busy_until[event["tid"]]
            busy_until[event["tid"]] = event["ts"] + event["dur"]
        place = event["args"].get("at") or event["args"].get("before")
        assert place is None or (ROOT / place.split(":")[0]).is_file()


def test_v10_names_its_phases_tiles_and_mbarriers(tmp_path: Path) -> None:
    data = trace(tmp_path / "t.json", "v10_tma_warpspec", *ONE_CTA)
    assert [e["name"] for e in events(data, "copy")] == (
        ["Q tile 0", "K tile 0", "V tile 0", "K tile 1", "V tile 1", "K tile 2", "V tile 2", "K tile 3", "V tile 3"]
        + ["O tile 0"]
    )
    assert [e["name"] for e in events(data, "products") if e["tid"] == 0] == ["S = Q K^T", "O = O * row_scale + P V"] * 4
    for event in events(data, "copy"):
        if event["args"]["tensor"] not in "KV":
            continue
        tensor, _, tile = event["name"].split()
        assert event["args"]["mbarrier"] == f"bar_{tensor.lower()}_full[{int(tile) % 2}]"
        assert event["args"]["phase"] == int(tile) // 2
        # Nobody has read it before it was there.
        passed = [
            e["ts"] + e.get("dur", 0)
            for e in events(data, "wait")
            if e["args"].get("mbarrier") == event["args"]["mbarrier"] and e["args"]["phase"] == event["args"]["phase"]
        ]
        assert len(passed) == 4 and min(passed) >= event["ts"] + event["dur"]


def test_the_time_line_is_the_trace_in_text() -> None:
    """As docs/pipeline.md shows it, but for the bars, which may depend on the compiler."""
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    command, shown = re.search(r"^build/flashsteps (trace [^\n]*)\n```\n\n```text\n(.*?)```$", page, re.M | re.S).groups()
    said = run(FLASHSTEPS, *command.split()).stdout
    bar = re.compile(r"^  (warps?|[KVQO] (?:to|from) [0-9]+|nominal) (.*)\n", re.MULTILINE)
    assert bar.sub("", said) == bar.sub("", shown)
    # Every second tile of K or V comes to the same place, and the producer asks for each.
    rows = [row.replace(" ", "") for row in re.findall(r"^  [KV] to [0-9]+ +(.*)", said, re.MULTILINE)]
    assert [re.sub(r"(.)\1+", r"\1", row) for row in rows] == ["024", "135", "024", "135"]
    (producer,) = re.findall(r"^  warp 4 +(.*)", said, re.M)
    assert producer.count("c") >= 6 and "#" not in producer


def test_the_last_cta_unless_another_one_is_asked_for(tmp_path: Path) -> None:
    problem = ["v10_tma_warpspec", "--shape", "1,2,150,64", "--causal"]
    last, first = trace(tmp_path / "a.json", *problem), trace(tmp_path / "b.json", *problem, "--cta", "0")
    assert (last["otherData"]["cta"], first["otherData"]["cta"]) == (5, 0)
    assert "Q tile 2" in {e["name"] for e in events(last, "copy")}
    assert {e["name"] for e in events(first, "copy")} == {"Q tile 0", "K tile 0", "V tile 0", "O tile 0"}


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        trace(tmp_path / name, "v10_tma_warpspec", *ONE_CTA)
    trace(tmp_path / "c.json", "v10_tma_warpspec", *ONE_CTA, "--in-process")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "c.json").read_bytes()


def test_a_step_is_a_program_that_traces_too(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    assert run(BUILD / "steps" / "v01_scalar", "trace", *ONE_CTA, "--json", str(out)).returncode == 0
    assert json.loads(out.read_text())["otherData"]["step"] == "v01_scalar"


@pytest.mark.parametrize("step,says", [("fixture_crash", "fixtures.cu:"), ("fixture_hang", "HANG")])
def test_a_step_that_fails_leaves_the_file_alone(tmp_path: Path, step: str, says: str) -> None:
    out = tmp_path / "t.json"
    out.write_text("precious")
    done = run(FIXTURES, "trace", step, *ONE_CTA, "--timeout", "1", "--json", str(out))
    assert done.returncode == 3 and says in done.stdout
    assert out.read_text() == "precious" and list(tmp_path.iterdir()) == [out]


BAD_USE = [
    (["--json", "FILE"], "shows one step"),
    (["v01_scalar", "v10_tma_warpspec", "--json", "FILE"], "shows one step"),
    (["v10_tma_warpspec", "--shape", "1,1,8,64", "--causal", "--full", "--json", "FILE"], "shows one problem"),
    (["v10_tma_warpspec", "--backend", "cuda", "--json", "FILE"], "only the emulator"),
    (["v10_tma_warpspec", "--shape", "1,2,150,64", "--cta", "6", "--json", "FILE"], "has 6 CTAs"),
    (["v10_tma_warpspec", "--cta", "last", "--json", "FILE"], "--cta: 'last' is not a number from 0"),
    (["v10_tma_warpspec", "--shape", "1,1,8,64", "--dtype", "fp32", "--json", "FILE"], "not fp32"),
    (["v10_tma_warpspec", "--json", "/nowhere/t.json"], "cannot be written"),
]


@pytest.mark.parametrize("arguments,says", BAD_USE)
def test_wrong_use_is_one_line_and_exit_2_and_writes_nothing(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = run(FLASHSTEPS, "trace", *(str(tmp_path / "t.json") if a == "FILE" else a for a in arguments))
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr and done.stderr.count("\n") == 1 and done.stderr.startswith("flashsteps: ")
    assert list(tmp_path.iterdir()) == []
