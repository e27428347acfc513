"""How fast somebody was, beside whom, and how that is written."""
from __future__ import annotations

import math
from typing import Any

# Other people's kernels, by the names that compare_peers.py gives them; what each is, is said there.
PEERS = (
    *("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math"),
    *("flash_attn", "flash_attn_3", "flash_attn_4", "flashinfer"),
)


def best_peer(run: dict[str, Any]) -> tuple[str, float] | None:
    """The fastest of the peers that passed, and its rate."""
    peers = run.get("peers") or []
    timed = [(peer["peer"], peer["timing"]["tflops"]) for peer in peers if peer.get("timing")]
    return max(timed, key=lambda item: item[1], default=None)


def contenders_of(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Steps and peers by name, in the order of the file."""
    found = {step["step"]: step for step in run["steps"]}
    return found | {peer["peer"]: peer for peer in run.get("peers") or []}


def ratio_to(run: dict[str, Any], name: str, beside: str) -> float | None:
    """Of two contenders' rates; `beside` may be "best": the best peer. None where either has no time."""
    mine, other = (
        ((contenders_of(run).get(each) or {}).get("timing") or {}).get("tflops") for each in (name, beside)
    )
    if beside == "best":
        other = (best_peer(run) or ("", None))[1]
    return mine / other if mine and other else None


def ratio_to_best_peer(run: dict[str, Any], name: str) -> float | None:
    return ratio_to(run, name, "best")


def best_step(run: dict[str, Any], names: list[str] | None = None) -> str | None:
    timed = [step for step in run["steps"] if step.get("timing") and (names is None or step["step"] in names)]
    return max(timed, key=lambda step: step["timing"]["tflops"])["step"] if timed else None


def geometric_mean(ratios: list[float]) -> float | None:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def terabytes(entry: dict[str, Any] | None) -> float | None:
    """TB/s of K and V for each TFLOPS, where they are what counts: few queries, timed with a cold L2."""
    timing = (entry or {}).get("timing") or {}
    if timing.get("l2") != "cold" or not timing.get("kv_bytes_per_second") or not timing["tflops"]:
        return None
    return timing["kv_bytes_per_second"] / 1e12 / timing["tflops"]


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
