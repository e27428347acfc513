"""What is wrong with a record: its shape, which docs/results.schema.json says, and then what one value says of another,
as docs/results-schema.md has it."""
from __future__ import annotations

import functools
import json
import operator
import sys
from pathlib import Path
from typing import Any

from records import profiles
from records.problems import computed_dtype, flops, own_problem, problem_label
from records.rates import DETERMINISTIC, percent_of_limit, percent_of_peak, tflops_at

SHAPE = json.loads((Path(__file__).resolve().parents[2] / "docs" / "results.schema.json").read_text(encoding="utf-8"))
COUNTERS = tuple(SHAPE["$defs"]["counters"]["properties"])
SCHEMA = SHAPE["$defs"]["results"]["properties"]["schema"]["const"]
TOLERANCE = 0.005  # relative: of `tflops`, the one derived number that a record has
# The loosest gates that a recorded pass may have been judged by: NRMSE, and NRMSE of the worst row. Not asked from
# the program: a program whose gates somebody has loosened must not leave a record that numbers are quoted from.
GATES = {"fp32": (1e-5, 1e-4), "fp16": (1e-3, 2e-3), "bf16": (5e-3, 1e-2), "e4m3": (4e-2, 8e-2)}
FAST_GATES = (6e-2, 13e-2)  # of e4m3, where the call allows an approximation


# A peer's NRMSE, of all rows and of the worst, above which it has not computed attention: without a scale, the mask or V
# it is about 1.
OTHER_THAN_ATTENTION = 0.5


def only_misses(entry: dict[str, Any], problem: dict[str, Any]) -> bool:
    """Of a peer that failed: has it computed attention in FP8, with larger errors than the gates allow? It has a time
    then, because nobody's FP8 kernels were made for these gates."""
    found = entry.get("validation") or {}
    if problem["dtype"] != "e4m3" or entry["status"] != "fail" or found.get("nonfinite") != 0:
        return False
    errors = (found.get("nrmse"), found.get("worst_row_nrmse"))
    return all(error is not None and error <= OTHER_THAN_ATTENTION for error in errors)


def differs(peer: dict[str, Any]) -> bool:
    """Does a peer that is called deterministic give other bits in another run?"""
    validation = peer.get("validation") or {}
    return peer.get("peer", "").endswith(DETERMINISTIC) and validation.get("runs_identical") is False


@functools.cache
def validator(part: str) -> Any:
    try:  # here, since not all who import this read a record
        import jsonschema_rs
    except ImportError:
        sys.exit(
            "jsonschema_rs is missing, which checks records (pip install jsonschema-rs, or use build/venv/bin/python)"
        )
    schema = {"$ref": f"#/$defs/{part}", "$defs": SHAPE["$defs"]} if part else SHAPE
    return jsonschema_rs.Draft202012Validator(schema)


def check_shape(data: Any, part: str = "") -> list[str]:
    """What is not as the schema, or one of its $defs, has it: lines that begin with the place."""
    # Half of a character, which JSON takes in a message, is no Unicode.
    text = json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")
    try:
        errors = list(validator(part).iter_errors(json.loads(text)))
    except ValueError as error:  # lists in lists without end
        return [f"the file: {error}"]
    found = []
    for error in errors:
        said = error.message
        schema = functools.reduce(operator.getitem, error.schema_path[:-1], SHAPE)
        if "title" in schema:
            value = json.dumps(getattr(error.kind, "error", error).instance)  # of an object's keys the one
            said = f"is {value if len(value) < 60 else '...'}, must be {schema['title']}"
        place = "".join(f".{key}" if str(key).isidentifier() else f"[{key!r}]" for key in error.instance_path)
        found.append(f"{place.removeprefix('.') or 'the file'}: {said}")
    return list(dict.fromkeys(found))


def is_profile(data: Any) -> bool:
    return isinstance(data, dict) and data.get("schema") == profiles.SCHEMA


def check_twice(what: str, names: list[Any]) -> list[str]:
    return [f"{what}: {name} appears twice" for name in dict.fromkeys(names) if names.count(name) > 1]


def check_validation(validation: dict[str, Any], problem: dict[str, Any], passed: bool) -> list[str]:
    errors = []
    approximate = problem.get("fast") or problem.get("quantize")
    gates = FAST_GATES if approximate else GATES[problem["dtype"]]
    # Without a log-sum-exp each row in e4m3 has a gate of its own, which depends on its scores.
    has_row_gates = problem["dtype"] == "e4m3" and problem.get("lse") == "none" and not approximate
    if problem.get("backward"):
        # What rounding O has made of D counts beside the roundings: much in a row that sees few keys, little in all.
        gates, has_row_gates = (gates[0] * 1.25, gates[1]), True
    for key, loosest in zip(("gate_nrmse", "gate_row"), gates):
        if validation[key] > loosest and not (key == "gate_row" and has_row_gates):
            errors.append(f"{key}: is {validation[key]:g}, looser than {loosest:g} for {computed_dtype(problem)}")
    for key, gate, may_lack in (
        # Only where no row sees a key is there nothing to measure.
        ("nrmse", "gate_nrmse", flops(problem) == 0),
        ("worst_row_nrmse", "gate_row", flops(problem) == 0),
        # Records that are older than these gates lack them.
        ("worst_element", "gate_element", validation.get("gate_element") is None),
        ("bias", "gate_bias", validation.get("gate_bias") is None),
    ):
        value, limit = validation.get(key), validation.get(gate)
        right = may_lack if value is None else limit is not None and value <= limit
        if passed and not right:
            errors.append(f"{key}: is {json.dumps(value)}, a pass needs at most {gate}: {json.dumps(limit)}")
    if problem.get("lse") and validation.get("lse_max_abs") is not None:
        errors.append(f"lse_max_abs: is {validation['lse_max_abs']:g}, must be null: the caller wanted no log-sum-exp")
    return errors


def check_timing(timing: dict[str, Any], run: dict[str, Any], device: dict[str, Any]) -> list[str]:
    errors = []
    expected = tflops_at(run["problem"], timing["median_ms"])
    if abs(timing["tflops"] - expected) > TOLERANCE * expected:
        errors.append(f"tflops: is {timing['tflops']:g}, FLOPs over median_ms give {expected:g}")
    limit = timing.get("limit")
    if limit is not None and (run.get("ceilings") or {}).get(limit) is None:
        errors.append(f"limit: the run has no ceilings.{limit}")
    # Not of the matmul: cuBLAS is a very good kernel, and others can be better.
    shares = {"the card's peak": percent_of_peak(run["problem"], timing, device)}
    shares[f"ceilings.{limit}"] = percent_of_limit(run, timing)
    return errors + [f"is {share:g} % of {whole}, above 100" for whole, share in shares.items() if (share or 0) > 100]


def check_entry(entry: dict[str, Any], run: dict[str, Any], data: dict[str, Any]) -> list[str]:
    """Of a step or a peer."""
    errors = []
    own = own_problem(run["problem"], entry)  # whose gates and whose peak it has
    if (validation := entry.get("validation")) is not None:
        found = check_validation(validation, own, entry["status"] == "pass")
        errors += [f"validation.{line}" for line in found]
    if (timing := entry.get("timing")) is not None:
        if entry["status"] == "fail" and not only_misses(entry, run["problem"]):
            errors.append("timing: is there, and a peer that fails has one only if it computes attention, in e4m3")
        errors += [f"timing.{line}" for line in check_timing(timing, run | {"problem": own}, data["provenance"]["device"])]
    if differs(entry) and entry["status"] == "pass":
        errors.append("validation.runs_identical: is false, and the peer is called deterministic")
    counters = entry.get("counters")
    if counters is not None and counters["shared_wavefronts"] < counters["shared_wavefronts_ideal"]:
        errors.append("counters.shared_wavefronts: is below shared_wavefronts_ideal")
    return errors


def check_profiled_step(step: dict[str, Any], run: dict[str, Any], data: dict[str, Any]) -> list[str]:
    if step["status"] == "skip":
        return []
    kernels = enumerate(step.get("kernels", []))
    return check_profiled(step) + [f"kernels[{k}].{line}" for k, kernel in kernels for line in check_profiled(kernel)]


def check_profiled(counted: dict[str, Any]) -> list[str]:
    """Of a step or of one of its kernels."""
    metrics, opcodes = counted["metrics"], counted["opcodes"]
    errors = [f"metrics.{name}: unknown key" for name in metrics if name not in profiles.METRICS]
    if metrics.get("instructions") != sum(opcodes.values()):
        counted_too = json.dumps(metrics.get("instructions"))
        errors.append(f"metrics.instructions: is {counted_too}, the opcodes add up to {sum(opcodes.values())}")
    for part, whole in (
        ("shared_wavefronts_ideal", "shared_wavefronts"),
        ("ldmatrix_wavefronts", "shared_wavefronts"),
        ("ldmatrix_conflicts", "ldmatrix_wavefronts"),
    ):
        if (metrics.get(part) or 0) > (metrics.get(whole) or 0):
            errors.append(f"metrics.{part}: is above {whole}")
    return errors


def check(data: Any) -> list[str]:
    """Everything that is wrong with a results file or a profile; empty when nothing is."""
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, str) and schema not in (SCHEMA, profiles.SCHEMA):
        return [f"schema: is {schema}, this version reads {SCHEMA} and {profiles.SCHEMA}"]
    if errors := check_shape(data):
        return errors  # the rules need the keys to be there
    errors = check_twice("runs", [problem_label(run["problem"]) for run in data["runs"]])
    for r, run in enumerate(data["runs"]):
        for key, name in (("steps", "step"), ("peers", "peer")):
            entries = run.get(key) or []
            errors += check_twice(f"runs[{r}].{key}", [entry[name] for entry in entries])
            check_one = check_profiled_step if is_profile(data) else check_entry
            for e, entry in enumerate(entries):
                at = f"runs[{r}].{key}[{e}] ({entry[name]})"
                errors += [f"{at}.{line}" for line in check_one(entry, run, data)]
    return errors
