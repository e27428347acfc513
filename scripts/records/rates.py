"""How fast somebody was, beside whom, and how that is written. Records hold times; rates are computed here."""
from __future__ import annotations

from typing import Any

from records.problems import computed_dtype, flops, kv_bytes

Problem = dict[str, Any]
Run = dict[str, Any]

# Other people's kernels, by the names that compare_peers.py gives them; what each is, is said there.
PEERS = (
    *("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math"),
    *("flash_attn", "flash_attn_3", "flash_attn_4", "cudnn", "flashinfer"),
    *("flash_attn_3_deterministic", "flash_attn_4_deterministic"),  # backward passes that add in a fixed order
)
DETERMINISTIC = "_deterministic"
# Beside whom a rate may be set, besides a contender: the fastest of these peers.
BEST = {
    "best": lambda name: True,
    "best non-deterministic": lambda name: not name.endswith(DETERMINISTIC),
    "best deterministic": lambda name: name.endswith(DETERMINISTIC),
}


def tflops_at(problem: Problem, ms: float) -> float:
    """TFLOPS of a call that takes so many milliseconds."""
    return flops(problem) / (ms * 1e9)


def tflops_spread(problem: Problem, timing: dict[str, Any]) -> tuple[float, float, float]:
    """TFLOPS: of the median time, at the slow end (of p90_ms), at the fast end (of p10_ms)."""
    median, low, high = (tflops_at(problem, timing[key]) for key in ("median_ms", "p90_ms", "p10_ms"))
    return median, low, high


def ceiling_rate(ceiling: dict[str, Any]) -> float:
    """How many million millions of its unit a ceiling did in a second: TFLOPS, or exp2, wavefronts, TB."""
    return ceiling["work"] / (ceiling["median_ms"] * 1e9)


def percent_of_peak(problem: Problem, timing: dict[str, Any], device: dict[str, Any]) -> float | None:
    """% of the card's dense peak for the problem's type, at its maximum clock. None: no table has this card."""
    peak = (device.get("peak_tflops") or {}).get(computed_dtype(problem))
    return 100 * tflops_at(problem, timing["median_ms"]) / peak if peak else None


def percent_of_limit(run: Run, timing: dict[str, Any]) -> float | None:
    """% of the measured ceiling that bounds the step: of its products, or of reading K and V. None: not measured."""
    return percent_of_ceiling(run, timing, timing.get("limit"))


def percent_of_ceiling(run: Run, timing: dict[str, Any], name: str | None) -> float | None:
    """% of the rate of a ceiling of the run; None where it has none of this name."""
    ceiling = (run.get("ceilings") or {}).get(name)
    if ceiling is None:
        return None
    work = flops(run["problem"]) if ceiling["unit"] == "FLOP" else kv_bytes(run["problem"])
    return 100 * (work / (timing["median_ms"] * 1e9)) / ceiling_rate(ceiling)


def ring_problem(ring: dict[str, Any], problem: dict[str, Any], whole: bool) -> Problem:
    """Of a record of several GPUs: the sequence of all processes, or that of one."""
    tokens = problem["tokens"] * (ring["processes"] if whole else 1)
    return problem | {"batch": 1, "seqlen_q": tokens, "seqlen_kv": tokens, "dtype": "bf16", "causal": True}


def best_peer(run: dict[str, Any], among: str = "best") -> tuple[str, float] | None:
    """The fastest of the peers, or of some of them, and its rate. In FP8 one that missed a gate counts as well."""
    peers = [peer for peer in run.get("peers") or [] if BEST[among](peer["peer"])]
    timed = [(peer["peer"], peer["timing"]["tflops"]) for peer in peers if peer.get("timing")]
    return max(timed, key=lambda item: item[1], default=None)


def contenders_of(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Steps and peers by name, in the order of the file."""
    found = {step["step"]: step for step in run["steps"]}
    return found | {peer["peer"]: peer for peer in run.get("peers") or []}


def ratio_to(run: dict[str, Any], name: str, beside: str = "best") -> float | None:
    """Of two contenders' rates; one of BEST is the best peer of these. None where either has no time."""
    mine, other = (
        ((contenders_of(run).get(each) or {}).get("timing") or {}).get("tflops") for each in (name, beside)
    )
    if beside in BEST:
        other = (best_peer(run, beside) or ("", None))[1]
    return mine / other if mine and other else None


def best_step(run: dict[str, Any], names: list[str] | None = None) -> str | None:
    own = [step for step in run["steps"] if ":" not in step["step"]]  # not v27:bf16 beside a problem in e4m3
    timed = [step for step in own if step.get("timing") and (names is None or step["step"] in names)]
    return max(timed, key=lambda step: step["timing"]["tflops"])["step"] if timed else None


def is_decode(problem: Problem) -> bool:
    """Are there so few queries that memory decides? As is_decode() of harness/run/timing.cpp has it."""
    return not problem.get("backward") and problem["seqlen_q"] <= 16


def terabytes(problem: Problem, entry: dict[str, Any] | None) -> float | None:
    """TB/s of K and V for each TFLOPS, where they are what counts: few queries, timed with a cold L2."""
    timing = (entry or {}).get("timing") or {}
    if timing.get("l2") != "cold" or not is_decode(problem) or not flops(problem):
        return None
    return kv_bytes(problem) / flops(problem)


def rate(tflops: float) -> str:
    if tflops < 0.995:
        return f"{tflops:.2f}"  # one decimal would leave nothing of a small GPU's first step
    return f"{tflops:.1f}" if tflops < 99.95 else f"{tflops:.0f}"


def ratio(after: float, before: float) -> str:
    if not before:
        return "–"
    found = after / before
    # A first step beside the best kernels: two decimals would leave one digit.
    return f"{found:.3f}" if 0 < found < 0.0995 else f"{found:.2f}"


def speedup_cell(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    times = [(step or {}).get("timing") for step in (before, after)]
    return ratio(times[0]["median_ms"], times[1]["median_ms"]) if all(times) else "–"
