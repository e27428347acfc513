"""What is wrong with a record: its shape, which docs/results.schema.json says, and then what one value says of another,
as docs/results-schema.md has it."""
from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

from records import profiles
from records.problems import flops, problem_label
from records.rates import PEERS, percent_of_limit, percent_of_peak, tflops_at

SHAPE = json.loads((Path(__file__).resolve().parents[2] / "docs" / "results.schema.json").read_text(encoding="utf-8"))
COUNTERS = tuple(SHAPE["$defs"]["counters"]["properties"])
SCHEMA = SHAPE["$defs"]["results"]["properties"]["schema"]["const"]
TOLERANCE = 0.005  # relative: of `tflops`, the one derived number that a record has
# The loosest gates that a recorded pass may have been judged by: NRMSE, and NRMSE of the worst row. Not asked from
# the program: a program whose gates somebody has loosened must not leave a record that numbers are quoted from.
GATES = {"fp32": (1e-5, 1e-4), "fp16": (1e-3, 2e-3), "bf16": (5e-3, 1e-2)}


@functools.cache
def validator(part: str) -> Any:
    try:  # here, since not all who import this read a record
        import jsonschema
    except ImportError:
        sys.exit("jsonschema is missing, which checks records (pip install jsonschema, or use build/venv/bin/python)")
    return jsonschema.Draft202012Validator(in_place(SHAPE["$defs"][part] if part else SHAPE))


def in_place(schema: Any) -> Any:
    """With what each $ref names in its place: to look that up anew for every value takes most of the time."""
    if isinstance(schema, list):
        return [in_place(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: in_place(each) for key, each in schema.items() if key not in ("$ref", "$defs")}
    if "$ref" in schema:
        named = in_place(SHAPE["$defs"][schema["$ref"].removeprefix("#/$defs/")])
        found["allOf"] = [*found.get("allOf", []), named]
    return found


def check_shape(data: Any, part: str = "") -> list[str]:
    """What is not as the schema, or one of its $defs, has it: lines that begin with the place."""
    found = []
    for error in validator(part).iter_errors(data):
        said = error.message
        if "title" in error.schema:
            value = json.dumps(error.instance)
            said = f"is {value if len(value) < 60 else '...'}, must be {error.schema['title']}"
        found.append(f"{error.json_path.removeprefix('$').removeprefix('.') or 'the file'}: {said}")
    return list(dict.fromkeys(found))


def is_profile(data: Any) -> bool:
    return isinstance(data, dict) and data.get("schema") == profiles.SCHEMA


def is_peers(data: dict[str, Any]) -> bool:
    """A comparison of steps with other people's kernels, made by scripts/measure/compare_peers.py."""
    return data.get("command") == "peers"


def check_twice(what: str, names: list[Any]) -> list[str]:
    return [f"{what}: {name} appears twice" for name in dict.fromkeys(names) if names.count(name) > 1]


def check_problem(problem: dict[str, Any]) -> list[str]:
    errors = []
    lengths = problem.get("lengths") or problem["batch"] * [0]
    if len(lengths) != problem["batch"]:
        errors.append(f"lengths: are {len(lengths)}, the batch is {problem['batch']}")
    if max(lengths) > problem["seqlen_kv"]:
        errors.append(f"lengths: one is above seqlen_kv, which is {problem['seqlen_kv']}")
    if problem["num_heads_q"] % problem["num_heads_kv"] != 0:
        errors.append("num_heads_q: is not a multiple of num_heads_kv")
    return errors


def check_times(times: dict[str, Any], unit: str = "ms") -> list[str]:
    keys = [f"{which}_{unit}" for which in ("p10", "median", "p90")]
    low, median, high = (times[key] for key in keys)
    return [] if low <= median <= high else [f"{' <= '.join(keys)} does not hold"]


def check_validation(validation: dict[str, Any], problem: dict[str, Any], passed: bool) -> list[str]:
    errors = []
    rows = problem["batch"] * problem["num_heads_q"] * problem["seqlen_q"]
    if validation["rows_checked"] > rows:
        errors.append(f"rows_checked: are {validation['rows_checked']}, the problem has {rows}")
    for key, loosest in zip(("gate_nrmse", "gate_row"), GATES[problem["dtype"]]):
        if validation[key] > loosest:
            errors.append(f"{key}: is {validation[key]:g}, looser than {loosest:g} for {problem['dtype']}")
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
    return errors


def check_timing(timing: dict[str, Any], run: dict[str, Any], device: dict[str, Any]) -> list[str]:
    errors = check_times(timing)
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


def check_counters(step: dict[str, Any]) -> list[str]:
    counters, kernels = step["counters"], step.get("kernels") or []
    errors = []
    if counters["shared_wavefronts"] < counters["shared_wavefronts_ideal"]:
        errors.append("shared_wavefronts: is below shared_wavefronts_ideal")
    for key in COUNTERS if kernels else ():
        parts = [(kernel.get("counters") or {}).get(key) for kernel in kernels]
        if None not in parts and counters.get(key) != sum(parts):
            errors.append(f"{key}: is {counters.get(key)}, the kernels' add up to {sum(parts)}")
    return errors


def check_entry(entry: dict[str, Any], run: dict[str, Any], data: dict[str, Any]) -> list[str]:
    """Of a step or a peer."""
    errors = []
    if (validation := entry.get("validation")) is not None:
        found = check_validation(validation, run["problem"], entry["status"] == "pass")
        errors += [f"validation.{line}" for line in found]
    if (timing := entry.get("timing")) is not None:
        errors += [f"timing.{line}" for line in check_timing(timing, run, data["provenance"]["device"])]
    if entry.get("counters") is not None:
        errors += [f"counters.{line}" for line in check_counters(entry)]
    return errors


def check_profiled_step(step: dict[str, Any], run: dict[str, Any], data: dict[str, Any]) -> list[str]:
    if step["status"] == "skip":
        return []
    errors = check_profiled(step)
    if kernels := step.get("kernels"):
        errors += [f"kernels[{k}].{line}" for k, kernel in enumerate(kernels) for line in check_profiled(kernel)]
        if profiles.sum_of(kernels) != {"metrics": step["metrics"], "opcodes": step["opcodes"]}:
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


def check_host_overhead(data: dict[str, Any]) -> list[str]:
    host = data.get("host_overhead")
    if host is None:
        return []
    errors = [f"problem.{line}" for line in check_problem(host["problem"])]
    known = {*PEERS, *(step["step"] for run in data["runs"] for step in run["steps"])}
    errors += check_twice("entries", [entry["name"] for entry in host["entries"]])
    for entry in host["entries"]:
        if entry["name"] not in known:
            errors.append(f"entries: {entry['name']} is neither a step of the runs nor a peer")
        errors += [f"entries: {entry['name']}: {line}" for line in check_times(entry, "us")]
    return [f"host_overhead.{line}" for line in errors]


def check_instructions(data: dict[str, Any]) -> list[str]:
    numbers = (data.get("instructions") or {"warps": []})["warps"]
    errors = check_twice("instructions.warps", [each["warps"] for each in numbers])
    for of_warps in numbers:
        names = [f"{other['instruction']}, {other['banks']} banks" for other in of_warps["others"]]
        errors += check_twice("instructions", names)
        for name, other in zip(names, of_warps["others"]):
            if other["beside"] != sorted({*other["beside"]}):
                errors.append(f"instructions: {name}: beside does not grow")
    return errors


def check_ring(data: dict[str, Any]) -> list[str]:
    errors = []
    for p, problem in enumerate((data.get("ring") or {"problems": []})["problems"]):
        at = f"ring.problems[{p}]"
        errors += check_twice(f"{at}.contenders", [entry["name"] for entry in problem["contenders"]])
        for entry in (*problem["contenders"], problem["transfer"]):
            errors += [f"{at}.{entry.get('name', 'transfer')}.{line}" for line in check_times(entry)]
    return errors


def check(data: Any) -> list[str]:
    """Everything that is wrong with a results file or a profile; empty when nothing is."""
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, str) and schema not in (SCHEMA, profiles.SCHEMA):
        return [f"schema: is {schema}, this version reads {SCHEMA} and {profiles.SCHEMA}"]
    if errors := check_shape(data):
        return errors  # the rules need the keys to be there
    problems = [run["problem"] for run in data["runs"]]
    if errors := [f"runs[{r}].problem.{line}" for r, each in enumerate(problems) for line in check_problem(each)]:
        return errors  # what follows from a problem needs it to be sound
    errors = check_twice("runs", [problem_label(problem) for problem in problems])
    for r, run in enumerate(data["runs"]):
        where = f"runs[{r}]"
        for name, ceiling in (run.get("ceilings") or {}).items():
            errors += [f"{where}.ceilings.{name}: {line}" for line in (check_times(ceiling) if ceiling else [])]
        for key, name in (("steps", "step"), ("peers", "peer")):
            entries = run.get(key) or []
            errors += check_twice(f"{where}.{key}", [entry[name] for entry in entries])
            check_one = check_profiled_step if is_profile(data) else check_entry
            for e, entry in enumerate(entries):
                at = f"{where}.{key}[{e}] ({entry[name]})"
                errors += [f"{at}.{line}" for line in check_one(entry, run, data)]
    return errors + check_host_overhead(data) + check_instructions(data) + check_ring(data)
