#!/usr/bin/env python3
"""Times steps beside other people's attention kernels, interleaved, on the same tensors, in one process.

    python3 scripts/measure/compare_peers.py v10                   the program's two GPU problems; prints tables
    python3 scripts/measure/compare_peers.py --grid paper --causal --full --json FILE
                                                           every step and peer, recorded
    python3 scripts/measure/compare_peers.py v50 --backward --shape 4,16,4096,128     the gradients

It needs an NVIDIA GPU, PyTorch, the lab (build/libflashsteps_lab.so, built beside the program) and, for how long a
call keeps the host, the Python module flashsteps; docs/results-schema.md describes the record.
The peers are those of PyTorch's scaled_dot_product_attention, called by backend: sdpa_flash (FlashAttention-2),
sdpa_cudnn, sdpa_efficient and sdpa_math; and the packages flash_attn, flash_attn_3 (fa3_fwd_interface),
flash_attn_4 (flash_attn.cute), cudnn (cudnn-frontend) and flashinfer, where they are installed. With --backward they
are sdpa_flash, sdpa_cudnn, flash_attn_3 (flash_attn_interface) and flash_attn_4, and the last two once more as they
add in a fixed order, flash_attn_4_deterministic. Where they come from, and how each is called: docs/measuring.md.

Problems, inputs, gates, the timer and the order of rounds are the program's own (harness/lab/): a step is judged and
timed as `flashsteps bench` does it, and a peer beside it by the same gates, with the same timer. What is wrong is not
timed; only in FP8 (--dtype e4m3) a peer that misses a gate is, and stays a FAIL. A peer that cannot run a problem is a
SKIP with its reason; so is a step.

Beside a problem in e4m3, v27:bf16 is v27 in bf16 on the same shape, in the same rounds.

Exit status: 0 when every step that ran passed; 1 when one failed, or nothing could run; 2 for wrong use, something that
is missing, or a step named explicitly that cannot run here; 3 when the GPU could not be used any more.
"""

from __future__ import annotations

import argparse
import functools
import re
import statistics
import sys
import timeit
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import lab as harness
from measure.lab import DeviceLost, Lab, LabError, Timer, Unavailable, percentiles
from measure.peers import BACKWARD, Call, Skip, TorchLab, WrongOutput, prepare
from records import results, writing
from records.problems import (
    computed_dtype,
    flops,
    in_another_type,
    kv_bytes,
    own_problem,
    problem_label,
    rows_without_keys,
)
from records.rates import (
    BEST,
    DETERMINISTIC,
    PEERS,
    best_peer,
    best_step,
    ceiling_rate,
    contenders_of,
    is_decode,
    percent_of_peak,
    ratio_to,
    tflops_spread,
)
from records.rules import differs, only_misses
from records.writing import one_line, printable, table
from steps.sources import StepError, bare, match_step

# Small enough that the GPU is always done before the host has launched again.
HOST_PROBLEM = ("--shape=1,2,64,64",)
# Where all problems have one query: the shortest of the grid decode, with all that such a call does on the host.
HOST_DECODE_PROBLEM = ("--shape=1,32,8,1,1024,128",)
# Where all problems are in FP8, whose steps may take nothing else: in the layout in which cuDNN takes it, too.
HOST_FP8 = ("--dtype=e4m3", "--layout=qkv")
HOST_CALLS = 200
HOST_ROUNDS = 50  # each takes milliseconds only, and the host's clocks come and go

# How a peer's call is refused. All else is a bug, or a launch that failed.
PEER_REFUSALS = (ValueError, TypeError, RuntimeError, AssertionError)

CEILINGS = ("matmul",)  # among the contenders
COLD_CEILINGS = ("matmul", "read_kv")
METHOD = {
    "timer": "CUDA events, interleaved, in an order that changes from round to round",
    "l2": "warm: no flush between launches",
    "flops": "4 * head_dim * unmasked (query, key) pairs over batch and query heads; of a backward pass 10 * head_dim * "
    "these",
}
COLD = {
    "l2": "cold: flushed before every launch, outside of its time; a launch that the GPU may have waited for is thrown "
    "away, and made again behind twice the flushes",
}
PEERS_METHOD = (
    "one process; the inputs, gates and timer of the program for all; of peers no log-sum-exp is judged, and no row "
    "that sees no key; short calls as a CUDA graph (with a cold L2 each launch alone, and their median); the orders of "
    "the rounds are a Williams design, in which nobody keeps a neighbour; peers allocate their outputs in every call; of "
    "several ways to call a peer the fastest by such samples, which its note names; in e4m3 a peer that misses a gate is "
    "timed all the same; steps in another type have its gates, and inputs that were never in e4m3; backward passes begin "
    "with the o and lse of the program, and a peer's inputs lie in the order of axes in which it is fastest"
)


LAYOUTS = ("bhsd", "bshd", "qkv")
Problem = dict[str, Any]  # as records have it


# What is said of a contender.


def without_folders(message: str) -> str:
    """Where somebody built a peer is nobody's business: of a file's path its name is left."""
    return re.sub(r"(?<![\w.:/])(?:/[\w.+-]+)+/(?=[\w.+-])", "", message)


def outcome(error: Exception) -> dict[str, str]:
    """What is said of a contender that cannot go on."""
    for kind, status in ((Skip, "skip"), (WrongOutput, "fail"), (DeviceLost, "crash")):
        if isinstance(error, kind):
            return {"status": status, "message": without_folders(str(error))}
    return {"status": "error", "message": without_folders(f"{type(error).__name__}: {one_line(error)}")}


def add_note(entry: dict[str, Any], text: str) -> None:
    if text:
        entry["note"] = "; ".join(part for part in (entry.get("note"), text) if part)


# The tables that are printed.


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def rates_of(problem: Problem, timing: dict[str, Any]) -> tuple[str, str]:
    """The median, and p10 to p90: in TFLOPS; with few queries in TB/s, of K and V."""
    rates = tflops_spread(problem, timing)
    if is_decode(problem):
        median, low, high = (f"{rate * kv_bytes(problem) / flops(problem):.2f}" for rate in rates)
    else:
        median, low, high = (f"{rate:.1f}" for rate in rates)
    return median, f"{low}-{high}"


def unit_of(run: dict[str, Any]) -> str:
    timings = [entry.get("timing") or {} for entry in contenders_of(run).values()]
    cold = ", cold L2" if any(timing.get("l2") for timing in timings) else ""
    return ("TB/s of K, V" if is_decode(run["problem"]) else "TFLOPS") + cold


def format_run(run: dict[str, Any], device: dict[str, Any]) -> str:
    rows = [["contender", "result", unit_of(run), "p10-p90", "% peak", "x best peer", "NRMSE", "worst row"]]
    notes = []
    for name, entry in contenders_of(run).items():
        timing, validation = entry.get("timing"), entry.get("validation") or {}
        rows.append(
            [
                name,
                entry["status"].upper(),
                *(rates_of(run["problem"], timing) if timing else ("-", "-")),
                number(percent_of_peak(run["problem"], timing, device) if timing else None, ".1f"),
                number(ratio_to(run, name), ".2f"),
                number(validation.get("nrmse"), ".1e"),
                number(validation.get("worst_row_nrmse"), ".1e"),
            ]
        )
        said = [entry["message"].replace("\n", "\n      "), entry.get("note") or ""]
        if validation and not validation["runs_identical"] and "peer" in entry:
            said.append("two runs differ")
        notes += [f"    {name}: {text}\n" for text in said if text]
    text = f"{problem_label(run['problem'])}\n{table(rows)}{''.join(notes)}"
    if matmul := (run.get("ceilings") or {}).get("matmul"):
        text += f"  measured ceiling: {matmul['what']} {ceiling_rate(matmul):.1f} TFLOPS\n"
    return text


def format_grid(runs: list[dict[str, Any]]) -> str:
    """One row a problem; at the end the geometric mean of each contender's ratios to the best peer."""
    names = list(dict.fromkeys(name for run in runs for name in contenders_of(run)))
    units = dict.fromkeys(unit_of(run) for run in runs)
    rows = [[" or ".join(units), *names, "best peer", "best step / best peer"]]
    for run in runs:
        entries = contenders_of(run)
        cells = []
        for name in names:
            entry = entries.get(name) or {}
            timing = entry.get("timing")
            missed = " (misses a gate)" if entry.get("status") == "fail" else ""
            cells.append(rates_of(run["problem"], timing)[0] + missed if timing else entry.get("status", "-"))
        best, step = best_peer(run), best_step(run)
        ratio = ratio_to(run, step) if step else None
        rows.append([problem_label(run["problem"]), *cells, best[0] if best else "-", number(ratio, ".2f")])
    for beside in BEST if any(name.endswith(DETERMINISTIC) for name in names) else ("best",):
        means = [[ratio_to(run, name, beside) for run in runs] for name in names]
        means.append([ratio_to(run, step, beside) for run in runs if (step := best_step(run))])
        known = [[ratio for ratio in column if ratio is not None] for column in means]
        mean = [statistics.geometric_mean(each) if each else None for each in known]
        rows.append([f"x {beside} peer, geometric mean", *(number(each, ".2f") for each in mean)])
        rows.append(["... over problems", *(str(len(each)) for each in known)])
        for row in rows[-2:]:
            row.insert(-1, "")  # nobody's mean: the column of the best peer's name
    return table(rows)


def format_host_overhead(host: dict[str, Any]) -> str:
    rows = [["host overhead of a call", "us", "p10-p90"]]
    for entry in host["entries"]:
        span = f"{entry['p10_us']:.2f}-{entry['p90_us']:.2f}"
        rows.append([entry["name"], f"{entry['median_us']:.2f}", span])
    return f"{problem_label(host['problem'])}, {host['calls_per_sample']} calls a sample\n{table(rows)}"


# The session.


class HostTimer:
    """How long a call keeps the host, without waiting for the GPU inside; before and after, attempt() does."""

    def __init__(self, call: Call):
        self.call, self.us = call, []

    def sample(self, keep: bool) -> None:
        with self.call.around():
            seconds = timeit.timeit(self.call.run, number=HOST_CALLS)  # nobody pays for the garbage of others meanwhile
        if keep:
            self.us.append(seconds * 1e6 / HOST_CALLS)


@dataclass
class Session:
    lab: Lab
    torch: TorchLab
    options: argparse.Namespace
    problems: list[Problem]
    steps: list[str]
    peers: list[str]
    data: dict[str, Any] = field(default_factory=dict)  # the record
    others: dict[str, harness.Case] = field(default_factory=dict)  # the problem in other types, of steps like v27:bf16

    def save(self) -> None:
        writing.save(self.options.json, writing.rounded(self.data))

    def run(self) -> int:
        cold = COLD if self.options.cold_l2 else {}
        versions = self.torch.versions()
        self.data = self.lab.record("peers", {**METHOD, "rounds": self.options.rounds, **cold})
        self.data["provenance"]["peers"] = {**versions, "method": PEERS_METHOD}
        told = ", ".join(f"{name} {text}" for name, text in versions.items() if text)
        print(f"device: {self.lab.device['name']}, driver {self.lab.device['driver']}; {told}\n", flush=True)
        self.save()
        try:
            for problem in self.problems:
                self.compare(problem)
            print(format_grid(self.data["runs"]), flush=True)
            self.data["host_overhead"] = self.host_overhead()
            print(format_host_overhead(self.data["host_overhead"]), flush=True)
        except DeviceLost as error:
            self.save()
            print("".join(format_run(run, self.lab.device) for run in self.data["runs"][-1:]), flush=True)
            complain(f"the GPU cannot be used any more: {error}")
            return 3
        self.data["complete"] = True
        self.save()
        return self.summary()

    def summary(self) -> int:
        # The rules of the file are also those of the run: whatever they forbid is a bug in here.
        if errors := results.check(self.data):
            for line in errors:
                complain(f"the record is unsound: {line}")
            return 1
        if self.options.json:
            print(f"results: {self.options.json}", flush=True)
        entries = [step for run in self.data["runs"] for step in run["steps"]]
        statuses = {step["status"] for step in entries}
        if statuses & {"fail", "error"} or "pass" not in statuses:
            return 1
        ran = {step["step"] for step in entries if step["status"] != "skip"}
        if self.options.steps and (refused := [name for name in self.steps if name not in ran]):
            complain(f"{', '.join(refused)} cannot run any of the problems here")
            return 2
        return 0

    def careful(self, work: Callable[[], Any], failed: Callable[[dict[str, str]], Any]) -> Any:
        """The result of an attempt; where it fails, what is to be said is handed on, and the others go on."""
        try:
            return self.torch.attempt(work)
        except Exception as error:
            failed(outcome(error))
            if isinstance(error, DeviceLost):
                raise
            return None

    def in_turns(self, timers: dict[str, Any], rounds: int, failed: Callable[[str, dict[str, str]], Any]) -> None:
        """Samples of all, in another order in every round: whoever comes behind a matrix product starts on a GPU at
        lower clocks. Round 0 does not count: capturing returned the memory that the others' outputs were in."""
        for round_ in range(rounds + 1):
            names = list(timers)
            for name in [names[at] for at in self.lab.order(len(names), round_)]:
                sample = functools.partial(timers[name].sample, keep=round_ > 0)
                self.careful(sample, functools.partial(failed, name))

    def compare(self, problem: Problem) -> None:
        run: dict[str, Any] = {"problem": problem, "steps": [], "peers": []}
        self.data["runs"].append(run)
        print(f"comparing {problem_label(problem)}", file=sys.stderr, flush=True)
        case = self.lab.problem(problem)
        run["default"] = case.default
        calls = self.check(case, run, self.steps)
        warnings = self.time(case, run, calls)
        for each in (case, *self.others.values()):
            each.close()
        self.others.clear()
        del calls
        self.torch.release()
        self.save()
        print(format_run(run, self.lab.device) + "".join(f"  {line}\n" for line in warnings), flush=True)

    def in_its_type(self, step: str, case: harness.Case) -> tuple[harness.Case, str]:
        """The problem as the step takes it, and the name of the step: v27_tile_shapes:bf16 takes another problem."""
        name, _, dtype = step.partition(":")
        if dtype and dtype not in self.others:
            self.others[dtype] = self.lab.problem(in_another_type(case.problem, dtype))
        return self.others.get(dtype, case), name

    def check(self, case: harness.Case, run: dict[str, Any], steps: list[str]) -> dict[str, Call]:
        """Fills the run's entries. Returns the calls of the peers that are timed."""
        for step in steps:
            entry: dict[str, Any] = {"step": step}
            run["steps"].append(entry)

            def checked() -> dict[str, Any]:
                own, name = self.in_its_type(step, case)
                return own.check(name)

            entry |= self.careful(checked, entry.update) or {}
        if case.problem.get("quantize"):  # peers round nothing
            case, _ = self.in_its_type(f":{case.problem['dtype']}", case)
        tensors = self.torch.tensors(case)
        calls = {}
        for name in self.peers:
            entry = {"peer": name}
            run["peers"].append(entry)

            def judged() -> dict[str, Any]:
                prepared = functools.partial(prepare, self.torch, name, tensors, self.options.cold_l2)
                calls[name] = self.torch.attempt(prepared, PEER_REFUSALS)
                add_note(entry, without_folders(calls[name].note))
                return self.torch.attempt(lambda: self.torch.judge(calls[name], case, tensors), PEER_REFUSALS)

            entry |= self.careful(judged, entry.update) or {}
            if (hidden := rows_without_keys(case.problem)) and "validation" in entry:
                of_dq = " of dq" if case.problem.get("backward") else ""
                add_note(entry, f"not compared: {hidden} row(s){of_dq} a head, which see no key")
            if entry["status"] == "pass" and differs(entry):
                entry |= {"status": "fail", "message": "is called deterministic, and two runs differ"}
            if entry["status"] != "pass" and not only_misses(entry, case.problem):
                calls.pop(name, None)
        return calls

    def time(self, case: harness.Case, run: dict[str, Any], calls: dict[str, Call]) -> list[str]:
        """Fills in the timings. Returns what else is to be said."""
        problem, entries, cold_l2 = case.problem, contenders_of(run), self.options.cold_l2
        warnings: list[str] = []
        makers: dict[str, Callable[[], Timer | None]] = {}
        for step in self.steps:
            if entries[step]["status"] == "pass":
                own, name = self.in_its_type(step, case)
                makers[step] = functools.partial(own.step_timer, name, cold_l2)
        makers |= {name: functools.partial(self.torch.timer, call, cold_l2) for name, call in calls.items()}
        ceilings = (COLD_CEILINGS if cold_l2 else CEILINGS) if makers else ()
        makers |= {name: functools.partial(self.lab.ceiling, name, kv_bytes(problem)) for name in ceilings}
        timers: dict[str, Timer] = {}

        def failed(name: str, said: dict[str, str]) -> None:
            timers.pop(name, None)
            if name in ceilings:
                warnings.append(f"no measured ceiling {name}: {said['message']}")
                return
            entries[name] |= {**said, "message": f"while being timed: {said['message']}"}
            if said["status"] == "skip":
                del entries[name]["validation"]

        for name, make in makers.items():
            if timer := self.careful(make, functools.partial(failed, name)):
                timers[name] = timer
        self.in_turns(timers, self.options.rounds, failed)

        of_ceilings = {name: timers.pop(name).samples() for name in ceilings if name in timers}
        of_contenders = {name: timer.samples() for name, timer in timers.items()}
        records = self.lab.records({"problem": problem, "ceilings": of_ceilings, "contenders": of_contenders})
        if records["ceilings"]:
            run["ceilings"] = records["ceilings"]
        for name, timer in timers.items():
            entry, timing = entries[name], records["contenders"][name]
            # Nothing is faster than the hardware: such a figure means that the kernel, the clock or the FLOP
            # count is wrong.
            if (percent_of_peak(own_problem(problem, entry), timing, self.lab.device) or 0) > 100:
                said = f"{timing['tflops']:.1f} TFLOPS is above the card's peak: a bug in the kernel or in the measurement"
                entry |= {"status": "fail", "message": said}
                continue
            entry["timing"] = timing
            if "peer" in entry:
                add_note(entry, timer.note)
        return warnings

    def host_overhead(self) -> dict[str, Any]:
        """How long a call keeps the host, where the GPU has little to do."""
        decode = {problem["seqlen_q"] for problem in self.problems} == {1} and not self.options.backward
        fp8 = {problem["dtype"] for problem in self.problems} == {"e4m3"}
        words = [*(HOST_DECODE_PROBLEM if decode else HOST_PROBLEM), *(HOST_FP8 if fp8 else ("--dtype=bf16",))]
        words += flags(self.options, "no_lse", "fast", "quantize", "backward")
        (problem,) = harness.problems(self.options.lab, *words)
        run: dict[str, Any] = {"problem": problem, "steps": [], "peers": []}
        case = self.lab.problem(problem)
        # The module's steps choose their configurations themselves.
        steps = list(dict.fromkeys(bare(name) for name in self.steps if ":" not in name))
        calls = self.check(case, run, steps)
        for entry in run["steps"]:
            if entry["status"] == "pass":
                calls[entry["step"]] = self.torch.step(entry["step"], self.torch.tensors(case))
        timers = {name: HostTimer(call) for name, call in calls.items()}

        def failed(name: str, said: dict[str, str]) -> None:
            timers.pop(name, None)
            print(f"  {name} has no host overhead: {said['status']}: {one_line(said['message'])}", flush=True)

        for name, entry in contenders_of(run).items():
            if name not in timers:
                failed(name, entry)
        self.in_turns(timers, HOST_ROUNDS, failed)
        entries = [
            {"name": name, **percentiles(timer.us, "us"), "samples": len(timer.us)} for name, timer in timers.items()
        ]
        return {"problem": problem, "calls_per_sample": HOST_CALLS, "entries": entries}


# The command line.


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps_help = "a step, or the beginning of its name, as v10; v20@128x64 is v20 in that configuration, and v27:bf16, "
    steps_help += "beside problems in e4m3 or with --quantize, v27 in bf16 (default: all)"
    parser.add_argument("steps", nargs="*", metavar="STEP", help=steps_help)
    parser.add_argument("--shape", action="append", help="as flashsteps takes it, e.g. 4,32,4096,64 (repeatable)")
    parser.add_argument("--grid", action="append", help="as flashsteps takes it: paper, decode, decode-large or shapes")
    parser.add_argument("--dtype", action="append", help="element type: fp16, bf16 or e4m3 (repeatable)")
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="of q, k, v and o in memory (repeatable)")
    parser.add_argument("--inputs", action="append", help="as flashsteps takes it, e.g. mean (repeatable)")
    parser.add_argument("--causal", action="store_true", help="causal mask (with --full: both)")
    parser.add_argument("--full", action="store_true", help="no mask (the default)")
    no_lse_help = "steps compute no log-sum-exp; peers are called as always, and asked for none"
    parser.add_argument("--no-lse", action="store_true", help=no_lse_help)
    parser.add_argument("--fast", action="store_true", help="e4m3: steps may approximate; q and k are at most 14")
    quantize_help = "fp16 and bf16: steps round q, k and v to e4m3, and peers round nothing"
    parser.add_argument("--quantize", action="store_true", help=quantize_help)
    backward_help = "fp16 and bf16: the gradients of q, k and v; o and lse are inputs"
    parser.add_argument("--backward", action="store_true", help=backward_help)
    peers_help = f"some of {', '.join(PEERS)} (default: all that are installed)"
    parser.add_argument("--peers", action="extend", nargs="+", choices=PEERS, metavar="NAME", help=peers_help)
    parser.add_argument("--rounds", type=int, default=7, help="how many samples of each contender to take, at least 7")
    parser.add_argument("--cold-l2", action="store_true", help="flush L2 before every launch, outside of its time")
    parser.add_argument("--seed", action="append", help="seed of the inputs")
    parser.add_argument("--json", type=writing.writable, metavar="FILE", help="write a record to this file")
    harness.add_option(parser)
    options = parser.parse_intermixed_args(arguments)
    if options.rounds < 7:
        parser.error("--rounds: at least 7")
    known = peers_of(options)
    if wrong := [name for name in options.peers or () if name not in known]:
        with_it = "with" if options.backward else "without"
        parser.error(f"--peers: {', '.join(wrong)}: {with_it} --backward, there are {', '.join(known)}")
    return options


def peers_of(options: argparse.Namespace) -> list[str]:
    """Those that can be called at all."""
    return [name for name in PEERS if (name in BACKWARD if options.backward else not name.endswith(DETERMINISTIC))]


def flags(options: argparse.Namespace, *names: str) -> list[str]:
    """The program's words for those of these options that were given."""
    return [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]


def problems_of(options: argparse.Namespace) -> list[Problem]:
    """What the program makes of the same options."""
    words = flags(options, "causal", "full", "no_lse", "fast", "quantize", "backward")
    for name in ("grid", "seed", "shape", "dtype", "layout", "inputs"):
        words += [f"--{name}={value}" for value in getattr(options, name) or []]
    problems = harness.problems(options.lab, *words)
    for problem in problems:
        if problem["dtype"] not in ("fp16", "bf16", "e4m3"):
            raise LabError(f"--dtype {problem['dtype']}: peers know fp16, bf16 and e4m3 only")
    for step in options.steps:
        if ":" in step and step.partition(":")[2] not in ("fp16", "bf16"):
            raise LabError(f"{step}: the type of a step is fp16 or bf16")
        # With few queries the rate is that of reading K and V, which have other sizes in another type.
        if ":" in step and any(computed_dtype(problem) != "e4m3" or is_decode(problem) for problem in problems):
            raise LabError(f"{step}: a step has another type only beside problems in e4m3, of many queries")
    return problems


def open_torch(library: Path) -> tuple[Lab, TorchLab]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries is missing
        raise Unavailable(f"PyTorch is missing: {one_line(error)} (pip install torch)") from error
    if not torch.cuda.is_available():
        what = "is built without CUDA" if torch.version.cuda is None else "sees none: is the driver loaded?"
        raise Unavailable(f"there is no NVIDIA GPU to compare on: PyTorch {torch.__version__} {what}")
    lab = Lab(library, device=torch.cuda.current_device())
    return lab, TorchLab(torch, lab.python_module(), lab)


def compare_all(options: argparse.Namespace) -> int:
    problems = problems_of(options)
    lab, torch = open_torch(options.lab)
    chosen = [f"{match_step(bare(name), lab.steps)}{name[len(bare(name)):]}" for name in options.steps]
    steps = list(dict.fromkeys(chosen)) or lab.steps
    packages = torch.missing_peers(options.backward)
    of = {name: name.removesuffix(DETERMINISTIC) for name in peers_of(options)}
    missing = {name: packages[of[name]] for name in of if of[name] in packages}
    for name, reason in missing.items():
        if name in (options.peers or ()):
            raise LabError(f"--peers: {name} cannot be used: {reason}")
        if not options.peers:
            print(f"left out: {name} cannot be used ({reason})")
    wanted = options.peers or PEERS
    peers = [name for name in peers_of(options) if name in wanted and name not in missing]
    return Session(lab, torch, options, problems, steps, peers).run()


def complain(line: str) -> None:
    print(f"compare_peers.py: {printable(line)}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    try:
        return compare_all(parse(arguments))
    except (StepError, LabError) as error:
        complain(str(error))
    except OSError as error:  # a full disk, or a pipe whose reader has gone
        complain(f"the output could not be written: {error.strerror}")
    except KeyboardInterrupt:
        return 130
    return 2


if __name__ == "__main__":
    sys.exit(main())
