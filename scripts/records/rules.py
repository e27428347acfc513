"""What one value of a record says of another, as docs/results-schema.md has it. The shape must be right."""
from __future__ import annotations

import json
from typing import Any

from records import profiles
from records.problems import flops, problem_label
from records.rates import PEERS, percent_of_limit, percent_of_peak, tflops_at
from records.shape import COUNTERS

TOLERANCE = 0.005  # relative: of `tflops`, the one derived number that a record has
# The loosest gates that a recorded pass may have been judged by: NRMSE, and NRMSE of the worst row. Not asked from
# the program: a program whose gates somebody has loosened must not leave a record that numbers are quoted from.
GATES = {"fp32": (1e-5, 1e-4), "fp16": (1e-3, 2e-3), "bf16": (5e-3, 1e-2)}
# Everybody has the problems of a profile.
NOT_PROFILED = ("lengths", "page_size", "lse", "earlier", "num_sms", "softmax_scale")
TIMES = ("run", "bench", "tune", "peers")  # commands, on a GPU
DEVICE_KEYS_OF = {
    "cuda": ("compute_capability", "sm_count", "driver", "cuda_runtime"),
    "emulator": ("host_threads",),
}


def is_profile(data: Any) -> bool:
    return isinstance(data, dict) and data.get("schema") == profiles.SCHEMA


def check_problem(problem: dict[str, Any]) -> list[str]:
    errors = []
    lengths = problem.get("lengths")
    with_lengths = problem["kv_lengths"] != "full"
    if with_lengths != (lengths is not None):
        errors.append("lengths: missing" if with_lengths else "lengths: belongs to other kv_lengths than full")
    if lengths is not None and len(lengths) != problem["batch"]:
        errors.append(f"lengths: are {len(lengths)}, the batch is {problem['batch']}")
    if lengths is not None and any(length > problem["seqlen_kv"] for length in lengths):
        errors.append(f"lengths: one is above seqlen_kv, which is {problem['seqlen_kv']}")
    if problem["num_heads_q"] % problem["num_heads_kv"] != 0:
        errors.append("num_heads_q: is not a multiple of num_heads_kv")
    return errors


def check_times(times: dict[str, Any], unit: str = "ms") -> list[str]:
    keys = [f"{which}_{unit}" for which in ("p10", "median", "p90")]
    low, median, high = (times[key] for key in keys)
    return [] if low <= median <= high else [f"{' <= '.join(keys)} does not hold"]


def check_validation(step: dict[str, Any], problem: dict[str, Any], backend: str, is_peer: bool) -> list[str]:
    validation = step["validation"]
    errors = []
    rows = problem["batch"] * problem["num_heads_q"] * problem["seqlen_q"]
    if validation["rows_checked"] > rows:
        errors.append(f"rows_checked: are {validation['rows_checked']}, the problem has {rows}")
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
        if not (value <= validation[gate] if value is not None else flops(problem) == 0):
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


def is_cold(data: dict[str, Any]) -> bool:
    """Was L2 flushed before every launch that was timed?"""
    return ((data["provenance"].get("method") or {}).get("l2") or "").startswith("cold")


def check_step(
    step: dict[str, Any], run: dict[str, Any], data: dict[str, Any], is_peer: bool = False
) -> list[str]:
    problem, status = run["problem"], step["status"]
    backend, command = data["provenance"]["backend"], data["command"]
    timing, counters, resources = step.get("timing"), step.get("counters"), step.get("resources")
    ceilings = run.get("ceilings") or {}
    errors = []
    if status != "pass" and not step["message"].strip():
        errors.append(f"message: a step with status {status} must say why")
    if step.get("validation") is not None:
        errors += [f"validation.{line}" for line in check_validation(step, problem, backend, is_peer)]
        if status == "skip":
            errors.append("validation: a skipped step has none")
    elif status == "pass" and command in ("run", "check", "peers"):
        errors.append("validation: missing from a step that passed")

    if step.get("tuned") is not None and step.get("configuration") is None:
        errors.append("tuned: belongs to a configuration")
    if timing is not None:
        errors += [f"timing.{line}" for line in check_times(timing)]
        expected = tflops_at(problem, timing["median_ms"])
        if abs(timing["tflops"] - expected) > TOLERANCE * expected:
            errors.append(f"timing.tflops: is {timing['tflops']:g}, FLOPs over median_ms give {expected:g}")
        if status != "pass":
            errors.append(f"timing: a step with status {status} has none")
        if backend != "cuda":
            errors.append("timing: the emulator has none")
        if command in ("check", "count"):
            errors.append(f"timing: '{command}' has none")
        if data["provenance"].get("method") is None:
            errors.append("timing: provenance.method is missing, so nobody knows how it was measured")
        # Not of the matmul: cuBLAS is a very good kernel, and others can be better.
        for whole, percent in (
            ("the card's peak", percent_of_peak(problem, timing, data["provenance"]["device"])),
            (f"ceilings.{timing.get('limit')}", percent_of_limit(run, timing)),
        ):
            if (percent or 0) > 100:
                errors.append(f"timing: is {percent:g} % of {whole}, above 100")
        if (timing.get("l2") == "cold") != is_cold(data):
            errors.append("timing.l2: is not what provenance.method says of L2")
        if timing.get("limit") is not None and ceilings.get(timing["limit"]) is None:
            errors.append(f"timing.limit: the run has no ceilings.{timing['limit']}")
    elif status == "pass" and backend == "cuda" and command in TIMES and data["complete"]:
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
    errors = [f"metrics.{name}: unknown key" for name in metrics if name not in profiles.METRICS]
    # ncu reads the two numbers of a percentage in different passes, which are alike only in a kernel of some size: one
    # of five instructions, which resets a counter, has had 103.6 %.
    has_passes_alike = (metrics.get("instructions") or 0) >= 100
    for name, counter in profiles.METRICS.items():
        value = metrics.get(name)
        if value is not None and counter.unit == "%" and value > 100 and has_passes_alike:
            errors.append(f"metrics.{name}: is {value:g}, must be a percentage, 0 to 100")
        if value is not None and counter.unit != "%" and not isinstance(value, int):
            errors.append(f"metrics.{name}: is {value:g}, must be a whole number")
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
        errors += [f"{at}: {line}" for line in check_times(entry, "us")]
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
            builds = (provenance.get("peers") or {}).get("builds") or {}
            if peer["peer"] == "flash_attn_3" and peer["status"] == "pass" and "flash_attn_3" not in builds:
                errors.append(f"{at}: provenance.peers.builds does not say how it was built")
    if data.get("host_overhead") is not None:
        errors += [f"host_overhead.{line}" for line in check_host_overhead(data)]
    return errors


def check_instructions(data: dict[str, Any]) -> list[str]:
    """What `flashsteps info --instructions` alone writes, and what else it has not."""
    if (data["command"] == "info") != (data.get("instructions") is not None):
        return ["instructions: belong to the command 'info', which always has them"]
    errors = []
    if data["command"] == "info" and data["runs"]:
        errors.append("runs: 'info' has none")
    if data["command"] == "info" and data["provenance"]["backend"] != "cuda":
        errors.append("provenance.backend: 'info' needs cuda")
    seen: set[object] = set()
    for of_warps in (data.get("instructions") or {"warps": []})["warps"]:
        warps = of_warps["warps"]
        if warps in seen:
            errors.append(f"instructions.warps: {warps} appears twice")
        seen.add(warps)
        for other in of_warps["others"]:
            name = f"{other['instruction']}, {other['banks']} banks"
            if (warps, name) in seen:
                errors.append(f"instructions: {name}: appears twice")
            seen.add((warps, name))
            if other["beside"] != sorted({*other["beside"]}):
                errors.append(f"instructions: {name}: beside does not grow")
    return errors


def check_ring(data: dict[str, Any]) -> list[str]:
    """What scripts/measure/ring.py alone writes, and what else it has not."""
    if (data["command"] == "ring") != (data.get("ring") is not None):
        return ["ring: belongs to the command 'ring', which always has it"]
    errors = []
    if data["command"] == "ring" and data["runs"]:
        errors.append("runs: 'ring' has none")
    if data["command"] == "ring" and data["complete"] and not data["ring"]["problems"]:
        errors.append("ring.problems: a complete record has some")
    for p, problem in enumerate((data.get("ring") or {"problems": []})["problems"]):
        at = f"ring.problems[{p}]"
        names = [entry["name"] for entry in problem["contenders"]]
        if len({*names}) < len(names):
            errors.append(f"{at}: a contender appears twice")
        if not problem["nrmse"] <= GATES["bf16"][0]:
            errors.append(f"{at}.nrmse: is {problem['nrmse']:g}, above {GATES['bf16'][0]:g}")
        if not {"share", "ring"} <= {*names}:
            errors.append(f"{at}: needs the contenders share and ring")
        for entry in (*problem["contenders"], problem["transfer"]):
            errors += [f"{at}.{entry.get('name', 'transfer')}.{line}" for line in check_times(entry)]
    return errors


def check_rules(data: dict[str, Any]) -> list[str]:
    """All of them; empty when none is broken."""
    problems = [run["problem"] for run in data["runs"]]
    if errors := [f"runs[{r}].problem.{line}" for r, each in enumerate(problems) for line in check_problem(each)]:
        return errors  # what follows from a problem needs its keys
    check_entry = check_profiled_step if is_profile(data) else check_step
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
        unlike = [key for key in NOT_PROFILED if is_profile(data) and run["problem"].get(key) is not None]
        errors += [f"{where}.problem.{key}: a profile's has none" for key in unlike]
        label = problem_label(run["problem"])
        if label in labels:
            errors.append(f"{where}.problem: appears twice")
        labels.add(label)
        for name, ceiling in (run.get("ceilings") or {}).items():
            if ceiling and backend != "cuda":
                errors.append(f"{where}.ceilings: belong to cuda")
            errors += [f"{where}.ceilings.{name}: {line}" for line in (check_times(ceiling) if ceiling else [])]
            if ceiling and name == "read_kv" and not is_cold(data):
                errors.append(f"{where}.ceilings.read_kv: belongs to a run with a cold L2")
        names: set[str] = set()
        for s, step in enumerate(run["steps"]):
            at = f"{where}.steps[{s}] ({step['step']})"
            if step["step"] in names:
                errors.append(f"{at}: appears twice in a run")
            names.add(step["step"])
            errors += [f"{at}.{line}" for line in check_entry(step, run, data)]
    return errors if is_profile(data) else errors + check_peers(data) + check_instructions(data) + check_ring(data)
