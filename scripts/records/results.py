#!/usr/bin/env python3
"""Loads and checks results files and profiles. The rules are those of docs/results-schema.md.

python3 scripts/records/results.py check FILE...              any such file
python3 scripts/records/results.py check --recorded FILE...   one that numbers may be quoted from
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from records import profiles
from records.problems import full_flops, problem_label
from records.rates import PEERS
from records.terminal import printable
from steps import ablations, sources
from steps.sources import ROOT

SCHEMA = "flashsteps-results/1"
TOLERANCE = 0.005  # relative: the program may round what it writes, but not by more than this
MIN_RECORDED_ROUNDS = 7
# The loosest gates that a recorded pass may have been judged by: NRMSE, and NRMSE of the worst row. Not asked from
# the program: a program whose gates somebody has loosened must not leave a record that numbers are quoted from.
GATES = {"fp32": (1e-5, 1e-4), "fp16": (1e-3, 2e-3), "bf16": (5e-3, 1e-2)}


class ResultsError(Exception):
    """One line for the user."""


@dataclass(frozen=True)
class Maybe:
    """The key may be absent or null."""

    spec: Any


@dataclass(frozen=True)
class ListOf:
    spec: Any


@dataclass(frozen=True)
class MapOf:
    """An object whose keys are not known beforehand."""

    key: str
    spec: Any


def is_integer(value: Any) -> bool:
    # The program counts in 64 bits; what is longer may not even fit a float.
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def is_number(value: Any) -> bool:
    return (is_integer(value) or isinstance(value, float)) and math.isfinite(value) and value >= 0


def is_date(value: Any) -> bool:
    try:
        return bool(datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ")) and len(value) == 20
    except (TypeError, ValueError):
        return False


def is_match(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


TYPES: dict[str, Callable[[Any], bool]] = {
    "a text": lambda value: isinstance(value, str),
    "a text that is not empty": lambda value: isinstance(value, str) and value.strip() != "",
    "true or false": lambda value: isinstance(value, bool),
    "an integer >= 0": lambda value: is_integer(value) and value >= 0,
    "an integer >= 1": lambda value: is_integer(value) and value >= 1,
    "a number >= 0": is_number,
    "a number > 0": lambda value: is_number(value) and value > 0,
    "a UTC time such as 2026-11-21T10:00:00Z": is_date,
    "40 hex digits": is_match("[0-9a-f]{40}"),
    "16 hex digits": is_match("[0-9a-f]{16}"),
    # Of a step in one of its configurations, that one's name behind an @.
    "a step name": is_match(r"[a-z][a-z0-9_]*(@[\w.-]+)?"),
    "a SASS opcode": is_match(r"[A-Z]\w*(\.\w+)*"),
    "a percentage, 0 to 100": lambda value: is_number(value) and value <= 100,
    "three integers >= 1": lambda value: isinstance(value, list)
    and len(value) == 3
    and all(is_integer(item) and item >= 1 for item in value),
}
TEXT, NAME, FLAG = "a text", "a text that is not empty", "true or false"
COUNT, SIZE, NUMBER, POSITIVE = "an integer >= 0", "an integer >= 1", "a number >= 0", "a number > 0"
TRIPLE = "three integers >= 1"

COUNTERS = (
    "global_requests",
    "global_sectors",
    "global_bytes",
    "shared_requests",
    "shared_wavefronts",
    "shared_wavefronts_ideal",
    "mma",
    "ldmatrix",
    "ldmatrix_wavefronts",
    "ldmatrix_wavefronts_ideal",
    "barriers",
    "shuffles",
    "tma_loads",
    "tma_load_bytes",
    "tma_stores",
    "tma_store_bytes",
    "mbarrier_arrivals",
    "mbarrier_waits",
)
# Records that are older than these lack them.
LATER_COUNTERS = tuple(name for name in COUNTERS if name.startswith(("tma_", "mbarrier_")))

RESOURCES = {
    "grid": TRIPLE,
    "block": TRIPLE,
    "smem_bytes": COUNT,
    "registers": Maybe(COUNT),
    "spill_bytes": Maybe(COUNT),
    "ctas_per_sm": Maybe(COUNT),
}
COUNTED = {name: Maybe(COUNT) if name in LATER_COUNTERS else COUNT for name in COUNTERS}

FILE_SPEC = {
    "schema": (SCHEMA,),
    "command": ("run", "check", "bench", "count", "peers"),
    "complete": FLAG,
    "provenance": {
        "date": "a UTC time such as 2026-11-21T10:00:00Z",
        "commit": Maybe("40 hex digits"),
        "dirty": Maybe(FLAG),
        "backend": ("cuda", "emulator"),
        "device": {
            "name": NAME,
            "compute_capability": Maybe(NAME),
            "sm_count": Maybe(SIZE),
            "l2_bytes": Maybe(SIZE),
            "memory_bytes": Maybe(SIZE),
            "smem_optin_bytes": Maybe(SIZE),
            "max_sm_clock_mhz": Maybe(POSITIVE),
            "driver": Maybe(NAME),
            "cuda_runtime": Maybe(NAME),
            "host_cpu": Maybe(TEXT),
            "host_threads": Maybe(SIZE),
        },
        "build": {
            "compiler": NAME,
            "flags": TEXT,
            "type": NAME,
            "nvcc": Maybe(TEXT),
            "architectures": Maybe(TEXT),
        },
        "method": Maybe({"timer": NAME, "rounds": SIZE, "l2": NAME, "flops": NAME}),
        "peers": Maybe(
            {
                "torch": NAME,
                "cudnn": Maybe(NAME),
                "flash_attn": Maybe(NAME),
                "flash_attn_3": Maybe(NAME),
                "method": NAME,
            }
        ),
    },
    "runs": ListOf(
        {
            "problem": {
                "label": NAME,
                "batch": SIZE,
                "num_heads_q": SIZE,
                "num_heads_kv": SIZE,
                "seqlen_q": SIZE,
                "seqlen_kv": SIZE,
                "head_dim": SIZE,
                "dtype": ("fp32", "fp16", "bf16"),
                "causal": FLAG,
                "kv_lengths": ("full", "random", "zeros", "given"),
                "lengths": Maybe(ListOf(COUNT)),
                "layout": ("bhsd", "bshd", "qkv", "gapped", "odd", "far"),
                "inputs": ("normal", "sharp", "shifted", "structured", "offset", "ramps", "huge", "file"),
                "tensors": Maybe({"file": NAME, "fnv1a64": "16 hex digits"}),
                "lse": Maybe(("none",)),
                "softmax_scale": Maybe(POSITIVE),
                "seed": COUNT,
                "flops": NUMBER,
            },
            "ceilings": Maybe(
                {
                    "matmul": Maybe(
                        {
                            "what": NAME,
                            "median_ms": POSITIVE,
                            "p10_ms": POSITIVE,
                            "p90_ms": POSITIVE,
                            "tflops": POSITIVE,
                        }
                    )
                }
            ),
            "steps": ListOf(
                {
                    "step": "a step name",
                    "status": ("pass", "fail", "skip", "crash", "timeout", "error"),
                    "message": TEXT,
                    "validation": Maybe(
                        {
                            "nrmse": Maybe(NUMBER),
                            "worst_row_nrmse": Maybe(NUMBER),
                            "max_abs": Maybe(NUMBER),
                            "lse_max_abs": Maybe(NUMBER),
                            "nonfinite": COUNT,
                            "rows_checked": COUNT,
                            "rows_total": SIZE,
                            "gate_nrmse": POSITIVE,
                            "gate_row": POSITIVE,
                            "worst_element": Maybe(NUMBER),
                            "gate_element": Maybe(POSITIVE),
                            "bias": Maybe(NUMBER),
                            "gate_bias": Maybe(POSITIVE),
                            "runs_identical": Maybe(FLAG),
                            "compared_with_v01": Maybe(FLAG),
                            "modes": Maybe(ListOf(("early", "late", "random"))),
                            "race_detector": Maybe(FLAG),
                        }
                    ),
                    "timing": Maybe(
                        {
                            "median_ms": POSITIVE,
                            "p10_ms": POSITIVE,
                            "p90_ms": POSITIVE,
                            "samples": SIZE,
                            "launches_per_sample": SIZE,
                            "graph": FLAG,
                            "tflops": NUMBER,
                            "tflops_p10": NUMBER,
                            "tflops_p90": NUMBER,
                            "percent_of_peak": Maybe(NUMBER),
                            "percent_of_matmul": Maybe(NUMBER),
                            "sm_clock_mhz": Maybe(POSITIVE),
                        }
                    ),
                    "part": Maybe(tuple(sources.PARTS.values())),
                    "configuration": Maybe(NAME),
                    "resources": Maybe(RESOURCES),
                    "counters": Maybe(COUNTED),
                    "kernels": Maybe(ListOf({"resources": RESOURCES, "counters": Maybe(COUNTED)})),
                    "seconds": Maybe(NUMBER),
                }
            ),
        }
    ),
}
# What `peers` files have besides: the same objects again, for other people's kernels.
STEP_SPEC = FILE_SPEC["runs"].spec["steps"].spec
FILE_SPEC["runs"].spec["peers"] = Maybe(
    ListOf(
        {
            "peer": PEERS,
            "status": ("pass", "fail", "skip", "crash", "error"),
            "message": TEXT,
            "note": Maybe(NAME),
            "validation": STEP_SPEC["validation"],
            "timing": STEP_SPEC["timing"],
        }
    )
)
FILE_SPEC["host_overhead"] = Maybe(
    {
        "problem": FILE_SPEC["runs"].spec["problem"],
        "calls_per_sample": SIZE,
        "entries": ListOf(
            {
                "name": "a step name",
                "median_us": POSITIVE,
                "p10_us": POSITIVE,
                "p90_us": POSITIVE,
                "samples": SIZE,
            }
        ),
    }
)
# Profiles: the GPU's counters, of problems that everybody has, with the default scale and an LSE.
NOT_PROFILED = ("tensors", "lengths", "lse", "softmax_scale")
PROFILED = {
    "metrics": {
        name: Maybe("a percentage, 0 to 100" if counter.unit == "%" else COUNT)
        for name, counter in profiles.METRICS.items()
    },
    "opcodes": MapOf("a SASS opcode", SIZE),
}
PROFILE_SPEC = {
    "schema": (profiles.SCHEMA,),
    "complete": FLAG,
    "provenance": {
        **{key: spec for key, spec in FILE_SPEC["provenance"].items() if key != "method"},
        "backend": ("cuda",),
        "ncu": NAME,
        "method": {key: (text,) for key, text in profiles.METHOD.items()}
        | {"launch": (profiles.METHOD["launch"], profiles.OLDER_LAUNCH)},
    },
    "runs": ListOf(
        {
            "problem": {
                key: spec for key, spec in FILE_SPEC["runs"].spec["problem"].items() if key not in NOT_PROFILED
            },
            "steps": ListOf(
                {
                    "step": "a step name",
                    "status": ("pass", "skip"),
                    "message": TEXT,
                    **{key: Maybe(spec) for key, spec in PROFILED.items()},
                    "kernels": Maybe(ListOf(PROFILED)),
                }
            ),
        }
    ),
}
DEVICE_KEYS_OF = {
    "cuda": ("compute_capability", "sm_count", "driver", "cuda_runtime"),
    "emulator": ("host_threads",),
}


def check_shape(value: Any, spec: Any, where: str, errors: list[str]) -> None:
    """Types, required keys and unknown keys."""
    if isinstance(spec, Maybe):
        if value is not None:
            check_shape(value, spec.spec, where, errors)
    elif isinstance(spec, ListOf):
        if not isinstance(value, list):
            errors.append(f"{where}: must be a list")
            return
        for index, item in enumerate(value):
            check_shape(item, spec.spec, f"{where}[{index}]", errors)
    elif isinstance(spec, MapOf):
        if not isinstance(value, dict):
            errors.append(f"{where}: must be an object")
            return
        for key, item in value.items():
            if not TYPES[spec.key](key):
                errors.append(f"{where}.{key}: the key must be {spec.key}")
            check_shape(item, spec.spec, f"{where}.{key}", errors)
    elif isinstance(spec, dict):
        if not isinstance(value, dict):
            errors.append(f"{where or 'the file'}: must be an object")
            return
        prefix = f"{where}." if where else ""
        for key in value:
            if key not in spec:
                errors.append(f"{prefix}{key}: unknown key")
        for key, inner in spec.items():
            if key in value:
                check_shape(value[key], inner, prefix + key, errors)
            elif not isinstance(inner, Maybe):
                errors.append(f"{prefix}{key}: missing")
    elif isinstance(spec, tuple):
        if value not in spec:
            errors.append(f"{where}: is {json.dumps(value)}, must be one of {', '.join(spec)}")
    elif not TYPES[spec](value):
        errors.append(f"{where}: is {json.dumps(value)}, must be {spec}")


def agrees(value: float, expected: float, absolute: float = 0.0) -> bool:
    return abs(value - expected) <= max(TOLERANCE * abs(expected), absolute)


def check_file_inputs(problem: dict[str, Any]) -> list[str]:
    """What belongs to a user's own tensors, and to no other inputs."""
    errors = []
    from_file, given = problem["inputs"] == "file", problem["kv_lengths"] == "given"
    lengths, layout = problem.get("lengths"), problem["layout"]
    for key, wanted, needs in (("tensors", from_file, "inputs file"), ("lengths", given, "kv_lengths given")):
        if wanted != (problem.get(key) is not None):
            errors.append(f"{key}: missing" if wanted else f"{key}: belongs to {needs}")
    if given and not from_file:
        errors.append("kv_lengths: given needs inputs file")
    if from_file and (problem["kv_lengths"] not in ("full", "given") or layout not in ("bhsd", "bshd")):
        errors.append("inputs: a file has kv_lengths full or given, and layout bhsd or bshd")
    if lengths is not None and len(lengths) != problem["batch"]:
        errors.append(f"lengths: are {len(lengths)}, the batch is {problem['batch']}")
    if lengths is not None and any(length > problem["seqlen_kv"] for length in lengths):
        errors.append(f"lengths: one is above seqlen_kv, which is {problem['seqlen_kv']}")
    return errors


def check_problem(problem: dict[str, Any]) -> list[str]:
    if errors := check_file_inputs(problem):
        return errors  # the rules below need the keys to be there
    if problem["num_heads_q"] % problem["num_heads_kv"] != 0:
        errors.append("num_heads_q: is not a multiple of num_heads_kv")
    if problem["label"] != problem_label(problem):
        errors.append(f"label: is '{problem['label']}', the fields say '{problem_label(problem)}'")
    expected = full_flops(problem)
    if problem["kv_lengths"] in ("full", "given") and not agrees(problem["flops"], expected, 0.5):
        errors.append(f"flops: is {problem['flops']}, the shape and mask say {expected}")
    if problem["kv_lengths"] in ("random", "zeros") and problem["flops"] > expected:
        errors.append(f"flops: is {problem['flops']}, without lengths there are only {expected}")
    return errors


def check_times(timing: dict[str, Any], flops: float) -> list[str]:
    """For a step and for a ceiling: percentiles in order, and rates that follow from the times."""
    errors = []
    if not timing["p10_ms"] <= timing["median_ms"] <= timing["p90_ms"]:
        errors.append("p10_ms <= median_ms <= p90_ms does not hold")
    # The p10 rate is the slow end, so it comes from the p90 time.
    for rate, time in (("tflops", "median_ms"), ("tflops_p10", "p90_ms"), ("tflops_p90", "p10_ms")):
        if rate in timing and not agrees(timing[rate], flops / timing[time] / 1e9):
            errors.append(
                f"{rate}: is {timing[rate]:g}, the problem's flops over {time} give "
                f"{flops / timing[time] / 1e9:g}"
            )
    return errors


def check_validation(step: dict[str, Any], problem: dict[str, Any], backend: str, is_peer: bool) -> list[str]:
    validation = step["validation"]
    errors = []
    rows = problem["batch"] * problem["num_heads_q"] * problem["seqlen_q"]
    if validation["rows_total"] != rows:
        errors.append(f"rows_total: is {validation['rows_total']}, the problem has {rows}")
    if validation["rows_checked"] > validation["rows_total"]:
        errors.append("rows_checked: is more than rows_total")
    for key, loosest in zip(("gate_nrmse", "gate_row"), GATES[problem["dtype"]]):
        if validation[key] > loosest:
            errors.append(f"{key}: is {validation[key]:g}, looser than {loosest:g} for {problem['dtype']}")
    if backend == "cuda":
        errors += [
            f"{key}: belongs to the emulator"
            for key in ("modes", "race_detector")
            if validation.get(key) is not None
        ]
    if step["status"] != "pass":
        return errors
    for key, gate in (("nrmse", "gate_nrmse"), ("worst_row_nrmse", "gate_row")):
        value = validation.get(key)
        # Only where no row sees a key is there nothing to measure. Written so that NaN would fail.
        if not (value <= validation[gate] if value is not None else problem["flops"] == 0):
            errors.append(f"{key}: is {json.dumps(value)}, a pass needs at most {validation[gate]:g}")
    # Records that are older than these gates lack them.
    for key, gate in (("worst_element", "gate_element"), ("bias", "gate_bias")):
        value, limit = validation.get(key), validation.get(gate)
        if (value, limit) != (None, None) and (None in (value, limit) or not value <= limit):
            errors.append(f"{key}: is {json.dumps(value)}, a pass needs at most {gate}: {json.dumps(limit)}")
    if validation["nonfinite"] != 0:
        errors.append("nonfinite: a pass has none")
    if validation["rows_checked"] == 0:
        errors.append("rows_checked: a pass has checked some")
    # Peers may well add in another order each time.
    if validation.get("runs_identical") is not True and not is_peer:
        errors.append("runs_identical: a pass needs true")
    if validation.get("runs_identical") is None and is_peer:
        errors.append("runs_identical: a pass needs true or false")
    return errors


def check_step(
    step: dict[str, Any], run: dict[str, Any], data: dict[str, Any], is_peer: bool = False
) -> list[str]:
    problem, status = run["problem"], step["status"]
    backend, command = data["provenance"]["backend"], data["command"]
    timing, counters, resources = step.get("timing"), step.get("counters"), step.get("resources")
    matmul = (run.get("ceilings") or {}).get("matmul")
    errors = []
    if status != "pass" and not step["message"].strip():
        errors.append(f"message: a step with status {status} must say why")
    if step.get("validation") is not None:
        errors += [f"validation.{line}" for line in check_validation(step, problem, backend, is_peer)]
        if status == "skip":
            errors.append("validation: a skipped step has none")
    elif status == "pass" and command in ("run", "check", "peers"):
        errors.append("validation: missing from a step that passed")

    if timing is not None:
        errors += [f"timing.{line}" for line in check_times(timing, problem["flops"])]
        if status != "pass":
            errors.append(f"timing: a step with status {status} has none")
        if backend != "cuda":
            errors.append("timing: the emulator has none")
        if command in ("check", "count"):
            errors.append(f"timing: '{command}' has none")
        if data["provenance"].get("method") is None:
            errors.append("timing: provenance.method is missing, so nobody knows how it was measured")
        for key in ("percent_of_peak", "percent_of_matmul"):
            if (timing.get(key) or 0) > 100:
                errors.append(f"timing.{key}: is {timing[key]:g}, above 100")
        percent = timing.get("percent_of_matmul")
        if percent is not None:
            if matmul is None:
                errors.append("timing.percent_of_matmul: the run has no ceilings.matmul")
            elif not agrees(percent, 100 * timing["tflops"] / matmul["tflops"], 0.05):
                errors.append(
                    f"timing.percent_of_matmul: is {percent:g}, tflops over the ceiling's give "
                    f"{100 * timing['tflops'] / matmul['tflops']:g}"
                )
    elif status == "pass" and backend == "cuda" and command in ("run", "bench", "peers") and data["complete"]:
        errors.append("timing: missing from a step that passed")

    if counters is not None:
        if backend != "emulator":
            errors.append("counters: belong to the emulator")
        if status == "skip":
            errors.append("counters: a skipped step has none")
        if counters["shared_wavefronts"] < counters["shared_wavefronts_ideal"]:
            errors.append("counters.shared_wavefronts: is below shared_wavefronts_ideal")
    elif status == "pass" and command == "count":
        errors.append("counters: missing from a step that passed")
    if resources is not None and backend == "emulator":
        errors += [
            f"resources.{key}: belongs to cuda"
            for key in ("registers", "spill_bytes", "ctas_per_sm")
            if resources.get(key) is not None
        ]
    if (kernels := step.get("kernels")) is not None:
        if len(kernels) < 2:
            errors.append("kernels: a step with one kernel has none")
        for key in COUNTERS if counters is not None else ():
            parts = [(kernel.get("counters") or {}).get(key) for kernel in kernels]
            if None not in parts and counters.get(key) != sum(parts):
                errors.append(f"kernels: their {key} add up to {sum(parts)}, counters has {counters.get(key)}")
    return errors


def check_profiled_step(step: dict[str, Any], run: dict[str, Any], data: dict[str, Any]) -> list[str]:
    if step["status"] == "skip":
        extra = [key for key in ("metrics", "opcodes", "kernels") if step.get(key) is not None]
        errors = [f"{key}: a skipped step has none" for key in extra]
        return errors + ([] if step["message"].strip() else ["message: a skipped step must say why"])
    if missing := [f"{key}: missing" for key in ("metrics", "opcodes") if step.get(key) is None]:
        return missing
    errors = check_profiled(step)
    if (kernels := step.get("kernels")) is not None:
        errors += [f"kernels[{k}].{line}" for k, kernel in enumerate(kernels) for line in check_profiled(kernel)]
        if len(kernels) < 2:
            errors.append("kernels: a step with one kernel has none")
        elif profiles.sum_of(kernels) != {"metrics": step["metrics"], "opcodes": step["opcodes"]}:
            errors.append("kernels: do not add up to metrics and opcodes")
    return errors


def check_profiled(counted: dict[str, Any]) -> list[str]:
    """Of a step or of one of its kernels."""
    metrics, opcodes = counted["metrics"], counted["opcodes"]
    errors = []
    if metrics.get("instructions") != sum(opcodes.values()):
        errors.append(
            f"metrics.instructions: is {json.dumps(metrics.get('instructions'))}, the opcodes add up to "
            f"{sum(opcodes.values())}"
        )
    for part, whole in (
        ("shared_wavefronts_ideal", "shared_wavefronts"),
        ("ldmatrix_wavefronts", "shared_wavefronts"),
        ("ldmatrix_conflicts", "ldmatrix_wavefronts"),
    ):
        if (metrics.get(part) or 0) > (metrics.get(whole) or 0):
            errors.append(f"metrics.{part}: is above {whole}")
    return errors


def is_peers(data: dict[str, Any]) -> bool:
    """A comparison of steps with other people's kernels, made by scripts/measure/compare_peers.py."""
    return data.get("command") == "peers"


def check_host_overhead(data: dict[str, Any]) -> list[str]:
    host = data["host_overhead"]
    errors = [f"problem.{line}" for line in check_problem(host["problem"])]
    known = {*PEERS, *(step["step"] for run in data["runs"] for step in run["steps"])}
    seen: set[str] = set()
    for e, entry in enumerate(host["entries"]):
        at = f"entries[{e}] ({entry['name']})"
        if entry["name"] in seen:
            errors.append(f"{at}: appears twice")
        seen.add(entry["name"])
        if entry["name"] not in known:
            errors.append(f"{at}: is neither a step of the runs nor a peer")
        if not entry["p10_us"] <= entry["median_us"] <= entry["p90_us"]:
            errors.append(f"{at}: p10_us <= median_us <= p90_us does not hold")
    return errors


def check_peers(data: dict[str, Any]) -> list[str]:
    """What only a `peers` file has, and all of what it must have."""
    runs, provenance = data["runs"], data["provenance"]
    places = {
        "provenance.peers": provenance,
        "host_overhead": data,
        **{f"runs[{r}].peers": run for r, run in enumerate(runs)},
    }
    present = {place for place, parent in places.items() if parent.get(place.split(".")[-1]) is not None}
    if not is_peers(data):
        return [f"{place}: belongs to the command 'peers'" for place in places if place in present]
    needed = set(places) if data["complete"] else set(places) - {"host_overhead"}
    errors = [f"{place}: missing, 'peers' has one" for place in places if place in needed - present]
    if provenance["backend"] != "cuda":
        errors.append("provenance.backend: 'peers' needs cuda")
    if provenance.get("method") is None:
        errors.append("provenance.method: missing, 'peers' has one")
    for r, run in enumerate(runs):
        names: set[str] = set()
        for p, peer in enumerate(run.get("peers") or []):
            at = f"runs[{r}].peers[{p}] ({peer['peer']})"
            if peer["peer"] in names:
                errors.append(f"{at}: appears twice in a run")
            names.add(peer["peer"])
            errors += [f"{at}.{line}" for line in check_step(peer, run, data, is_peer=True)]
    if data.get("host_overhead") is not None:
        errors += [f"host_overhead.{line}" for line in check_host_overhead(data)]
    return errors


def is_profile(data: Any) -> bool:
    return isinstance(data, dict) and data.get("schema") == profiles.SCHEMA


def check(data: Any) -> list[str]:
    """Everything that is wrong with a results file or a profile; empty when nothing is."""
    errors: list[str] = []
    check_shape(data, PROFILE_SPEC if is_profile(data) else FILE_SPEC, "", errors)
    check_entry = check_profiled_step if is_profile(data) else check_step
    if errors:
        return errors  # the rules below need the keys to be there
    backend = data["provenance"]["backend"]
    device = data["provenance"]["device"]
    for key in DEVICE_KEYS_OF[backend]:
        if device.get(key) is None:
            errors.append(f"provenance.device.{key}: missing, {backend} has one")
    if backend == "cuda" and data["provenance"]["build"].get("nvcc") in (None, ""):
        errors.append("provenance.build.nvcc: missing, cuda has one")
    labels: set[str] = set()
    for r, run in enumerate(data["runs"]):
        where = f"runs[{r}]"
        errors += [f"{where}.problem.{line}" for line in check_problem(run["problem"])]
        if run["problem"]["label"] in labels:
            errors.append(f"{where}.problem: appears twice")
        labels.add(run["problem"]["label"])
        matmul = (run.get("ceilings") or {}).get("matmul")
        if matmul is not None:
            if backend != "cuda":
                errors.append(f"{where}.ceilings: belong to cuda")
            if not matmul["p10_ms"] <= matmul["median_ms"] <= matmul["p90_ms"]:
                errors.append(f"{where}.ceilings.matmul: p10_ms <= median_ms <= p90_ms does not hold")
        names: set[str] = set()
        for s, step in enumerate(run["steps"]):
            at = f"{where}.steps[{s}] ({step['step']})"
            if step["step"] in names:
                errors.append(f"{at}: appears twice in a run")
            names.add(step["step"])
            errors += [f"{at}.{line}" for line in check_entry(step, run, data)]
    return errors if is_profile(data) else errors + check_peers(data)


def git(root: Path, *arguments: str) -> tuple[int, str]:
    # GIT_* of a surrounding hook would point at another repository; a checkout owned by somebody else (CI
    # containers) is only read here.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-c", f"safe.directory={root}", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.strip()


def check_ancestor(commit: str, root: Path) -> list[str]:
    status, top = git(root, "rev-parse", "--show-toplevel")
    if status == 127:
        return ["commit: cannot be checked, git is not installed (apt-get install git)"]
    # A release tarball unpacked inside some other repository must not be judged by that one's history.
    if status != 0 or Path(top).resolve() != root.resolve():
        return [f"commit: cannot be checked, {root} is not a git clone (use git clone, not an archive)"]
    if git(root, "rev-parse", "--verify", "--quiet", "HEAD")[0] != 0:
        return ["commit: is not an ancestor of HEAD, the repository has no commit yet"]
    if git(root, "cat-file", "-e", commit + "^{commit}")[0] != 0:
        if git(root, "rev-parse", "--is-shallow-repository")[1] == "true":
            return [f"commit: {commit} cannot be checked in a shallow clone (git fetch --unshallow)"]
        return [f"commit: {commit} is not in this repository"]
    if git(root, "merge-base", "--is-ancestor", commit, "HEAD")[0] != 0:
        return [f"commit: {commit} is not an ancestor of HEAD"]
    return []


def check_steps(data: dict[str, Any], commit: str, root: Path) -> list[str]:
    """A program may hold steps from elsewhere (FLASHSTEPS_EXTRA_STEPS), whose source no commit has."""
    folders = ("steps", "docs/ablations", "harness/tests/bugs")
    _, listing = git(root, "ls-tree", "-r", "--name-only", commit, "--", *folders)
    paths = [Path(line) for line in listing.splitlines()]
    known = {path.parent.name for path in paths if path.match("steps/*/kernel.cu")}
    pages = ("docs/ablations/*/*.md", "harness/tests/bugs/*/*.md")
    known |= {ablations.step_name(path) for path in paths if any(path.match(page) for page in pages)}
    steps = dict.fromkeys(step["step"] for run in data["runs"] for step in run["steps"])
    return [
        f"runs: '{step}' is neither a step nor an ablation or bug of commit {commit[:12]}"
        for step in steps
        if step not in known
    ]


def check_recorded(data: dict[str, Any], root: Path = ROOT) -> list[str]:
    """What a file needs besides check() before a number may be quoted from it."""
    errors = []
    provenance = data["provenance"]
    if data["complete"] is not True:
        errors.append("complete: a recorded run must be complete")
    if provenance.get("dirty") is not False:
        errors.append("provenance.dirty: a recorded run comes from a clean tree, so this must be false")
    if not data["runs"] or not all(run["steps"] for run in data["runs"]):
        errors.append("runs: a recorded run has at least one problem, and steps in each")
    for r, run in enumerate(data["runs"]):
        if run["problem"]["inputs"] == "file":
            errors.append(f"runs[{r}].problem.inputs: nobody else has the file, so nobody can repeat the run")
    method = None if is_profile(data) else provenance.get("method")
    if method is not None and provenance["backend"] == "cuda" and method["rounds"] < MIN_RECORDED_ROUNDS:
        errors.append(
            f"provenance.method.rounds: is {method['rounds']}, a recorded run has at least "
            f"{MIN_RECORDED_ROUNDS}"
        )
    if provenance.get("commit") is None:
        errors.append("provenance.commit: a recorded run needs one")
    else:
        wrong = [f"provenance.{line}" for line in check_ancestor(provenance["commit"], root)]
        errors += wrong or check_steps(data, provenance["commit"], root)
    return errors


def refuse_token(token: str) -> Any:
    raise ValueError(f"{token} is not JSON; a value that is not finite is null")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"the key '{key}' appears twice in one object")
        seen[key] = value
    return seen


def parse(text: str) -> Any:
    return json.loads(text, parse_constant=refuse_token, object_pairs_hook=unique_keys)


def read(path: Path) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also what json and utf-8 raise
        raise ResultsError(f"{path}: {error}") from error


def load(path: Path, schema: str | None = SCHEMA) -> dict[str, Any]:
    """A file of this schema (None: of either) that check() has nothing to say against."""
    data = read(path)
    if schema and is_profile(data) != (schema == profiles.SCHEMA):
        kinds = ("a results file", "a profile")
        wanted, found = kinds if is_profile(data) else reversed(kinds)
        raise ResultsError(f"{path}: is {found}, this needs {wanted}")
    if errors := check(data):
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise ResultsError(f"{path}: {errors[0]}{more}")
    return data


# Filters of problems, as in `D=64 causal=true`: key -> the problem's keys that must all have the value.
FILTERS = {
    "B": ("batch",),
    "H": ("num_heads_q",),
    "Hq": ("num_heads_q",),
    "Hkv": ("num_heads_kv",),
    "S": ("seqlen_q", "seqlen_kv"),
    "Sq": ("seqlen_q",),
    "Skv": ("seqlen_kv",),
    "D": ("head_dim",),
    "dtype": ("dtype",),
    "causal": ("causal",),
    "kv_lengths": ("kv_lengths",),
    "layout": ("layout",),
    "inputs": ("inputs",),
    "lse": ("lse",),
    "softmax_scale": ("softmax_scale",),
    "seed": ("seed",),
}


def select_runs(data: dict[str, Any], filters: dict[str, str]) -> list[dict[str, Any]]:
    """The runs whose problem matches every filter. None at all is an error."""

    def matches(problem: dict[str, Any]) -> bool:
        return all(
            json.dumps(problem.get(key)).strip('"') == value
            for name, value in filters.items()
            for key in FILTERS[name]
        )

    for name in filters:
        if name not in FILTERS:
            raise ResultsError(f"'{name}' is no filter; there are {', '.join(FILTERS)}")
    runs = [run for run in data["runs"] if matches(run["problem"])]
    if not runs:
        wanted = " ".join(f"{name}={value}" for name, value in filters.items())
        raise ResultsError(f"no problem matches {wanted}" if filters else "no problem was run")
    return runs


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Checks results files and profiles against docs/results-schema.md."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser(
        "check", help="check files; exit status 1 when something is wrong with one"
    )
    checking.add_argument("files", nargs="+", type=Path, metavar="FILE")
    checking.add_argument("--recorded", action="store_true", help="also what a recorded run needs")
    checking.add_argument(
        "--root", type=Path, default=ROOT, help="the repository (default: the one of this script)"
    )
    options = parser.parse_args(arguments)

    failed = False
    for path in options.files:
        try:
            data = read(path)
        except ResultsError as error:
            print(printable(error), file=sys.stderr)
            failed = True
            continue
        errors = check(data)
        if not errors and options.recorded:
            errors = check_recorded(data, options.root)
        for line in errors:
            print(printable(f"{path}: {line}"), file=sys.stderr)
        failed |= bool(errors)
        if not errors:
            steps = {step["step"] for run in data["runs"] for step in run["steps"]}
            peers = {peer["peer"] for run in data["runs"] for peer in run.get("peers") or []}
            more = f", {len(peers)} peer(s)" if peers else ""
            print(printable(f"{path}: ok, {len(data['runs'])} problem(s), {len(steps)} step(s){more}"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
