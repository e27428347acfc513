#!/usr/bin/env python3
"""Loads and checks results files and profiles: their shape, which results.schema.json describes, and the rules of
docs/results-schema.md.

python3 scripts/records/results.py check FILE...              any such file
python3 scripts/records/results.py check --recorded FILE...   one that numbers may be quoted from
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

try:
    import jsonschema
except ImportError:  # run.sh needs no packages
    jsonschema = None  # type: ignore[assignment]

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from records import profiles
from records.problems import full_flops, problem_label
from records.rates import PEERS
from records.terminal import printable
from steps import ablations
from steps.sources import ROOT

SCHEMA = "flashsteps-results/1"
TOLERANCE = 0.005  # relative: the program may round what it writes, but not by more than this
MIN_RECORDED_ROUNDS = 7
# The loosest gates that a recorded pass may have been judged by: NRMSE, and NRMSE of the worst row. Not asked from
# the program: a program whose gates somebody has loosened must not leave a record that numbers are quoted from.
GATES = {"fp32": (1e-5, 1e-4), "fp16": (1e-3, 2e-3), "bf16": (5e-3, 1e-2)}


NEEDS_JSONSCHEMA = "jsonschema says where (pip install jsonschema, or build/venv/bin/python after scripts/test.sh)"


class ResultsError(Exception):
    """One line for the user."""


SCHEMA_FILE = Path(__file__).with_name("results.schema.json")
SHAPE = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
COUNTERS = tuple(SHAPE["$defs"]["counters"]["properties"])
# Records that are older than these lack them.
LATER_COUNTERS = tuple(name for name in COUNTERS if name not in SHAPE["$defs"]["counters"]["required"])
NOT_PROFILED = ("tensors", "lengths", "lse", "softmax_scale")  # everybody has the problems of a profile
DEVICE_KEYS_OF = {
    "cuda": ("compute_capability", "sm_count", "driver", "cuda_runtime"),
    "emulator": ("host_threads",),
}


def is_date(value: object) -> bool:
    try:
        return bool(datetime.strptime(str(value), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return False


@functools.cache
def validator() -> Any:
    formats = jsonschema.FormatChecker(formats=())
    formats.checks("date-time")(is_date)
    return jsonschema.Draft202012Validator(SHAPE, format_checker=formats)


def in_words(error: Any) -> list[str]:
    """What the validator found, as lines that begin with the place."""
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)[1:]
    prefix = f"{place}." if place else ""
    rule, wanted, value = error.validator, error.validator_value, error.instance
    if rule == "required":
        return [f"{prefix}{key}: missing" for key in wanted if key not in value]
    if rule == "additionalProperties":
        return [f"{prefix}{key}: unknown key" for key in value if key not in error.schema["properties"]]
    if rule == "type" and ("object" in wanted or "array" in wanted):
        return [f"{place or 'the file'}: must be {'an object' if 'object' in wanted else 'a list'}"]
    if rule in ("enum", "const"):
        values = ", ".join(each for each in ([wanted] if rule == "const" else wanted) if each is not None)
        return [f"{place}: is {json.dumps(value)}, must be one of {values}"]
    return [f"{place}: is {json.dumps(value)}, must be {error.schema['title']}"]


def check_shape(data: Any) -> list[str]:
    """Types, required keys and unknown keys, as results.schema.json has them; nothing where jsonschema is missing."""
    if jsonschema is None:
        return []
    return list(dict.fromkeys(line for error in validator().iter_errors(data) for line in in_words(error)))


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
    errors = [f"metrics.{name}: unknown key" for name in metrics if name not in profiles.METRICS]
    for name, counter in profiles.METRICS.items():
        value = metrics.get(name)
        if value is not None and counter.unit == "%" and value > 100:
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
    if errors := check_shape(data):
        return errors  # the rules need the keys to be there
    try:
        return check_rules(data)
    except (AttributeError, KeyError, TypeError):
        if jsonschema is not None:
            raise
        return [f"has another shape than {SCHEMA_FILE.name} says; {NEEDS_JSONSCHEMA}"]


def check_rules(data: dict[str, Any]) -> list[str]:
    """What no schema can say, as docs/results-schema.md has it."""
    errors: list[str] = []
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
        errors += [f"{where}.problem.{line}" for line in check_problem(run["problem"])]
        unlike = [key for key in NOT_PROFILED if is_profile(data) and run["problem"].get(key) is not None]
        errors += [f"{where}.problem.{key}: a profile's has none" for key in unlike]
        if run["problem"]["label"] in labels:
            errors.append(f"{where}.problem: appears twice")
        labels.add(run["problem"]["label"])
        for name, ceiling in (run.get("ceilings") or {}).items():
            if ceiling and backend != "cuda":
                errors.append(f"{where}.ceilings: belong to cuda")
            if ceiling and not ceiling["p10_ms"] <= ceiling["median_ms"] <= ceiling["p90_ms"]:
                errors.append(f"{where}.ceilings.{name}: p10_ms <= median_ms <= p90_ms does not hold")
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
    if jsonschema is None:
        print(f"results.py: the shape of files cannot be checked; {NEEDS_JSONSCHEMA}", file=sys.stderr)
        failed = True
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
