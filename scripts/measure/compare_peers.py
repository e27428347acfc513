#!/usr/bin/env python3
"""Times steps beside other people's attention kernels, interleaved, on the same tensors, in one process.

    python3 scripts/measure/compare_peers.py v10                   the program's two GPU problems; prints tables
    python3 scripts/measure/compare_peers.py --grid paper --causal --full --json FILE
                                                           every step and peer, recorded

It needs an NVIDIA GPU, PyTorch, the lab (build/libflashsteps_lab.so, built beside the program) and, for how long a
call keeps the host, the Python module flashsteps; docs/results-schema.md describes the record.
The peers are those of PyTorch's scaled_dot_product_attention, called by backend: sdpa_flash (FlashAttention-2),
sdpa_cudnn, sdpa_efficient and sdpa_math; and the packages flash_attn, flash_attn_3 (flash_attn_interface),
flash_attn_4 (flash_attn.cute) and flashinfer, where they are installed. How FlashAttention-3 is built, and how it and
FlashInfer are called for one query: docs/measuring.md.

Problems, inputs, gates, the timer and the order of rounds are the program's own (harness/lab/): a step is judged and
timed as `flashsteps bench` does it, and a peer beside it by the same gates, with the same timer. What is wrong is not
timed. A peer that cannot run a problem is a SKIP with its reason; so is a step.

Exit status: 0 when every step that ran passed; 1 when one failed, nothing could run, or something is missing;
2 for wrong use, or a step named explicitly cannot run here; 3 when the GPU could not be used any more.
"""

from __future__ import annotations

import argparse
import gc
import functools
import os
import re
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import lab as harness
from measure.lab import DeviceLost, Lab, LabError, Timer, Unavailable, percentiles
from measure.peer_tables import format_grid, format_host_overhead, format_run
from measure.peers import Call, Skip
from measure.torch_lab import TorchLab, WrongOutput
from records import files, results
from records.problems import kv_bytes, problem_label, rows_without_keys
from records.rates import PEERS, contenders_of, percent_of_ceiling
from records.terminal import Progress, one_line, printable
from steps import sources

# Small enough that the GPU is always done before the host has launched again.
HOST_PROBLEM = ("--shape=1,2,64,64", "--dtype=fp16")
# Where all problems have one query: the shortest of the grid decode, with all that such a call does on the host.
HOST_DECODE_PROBLEM = ("--shape=1,32,8,1,1024,128", "--dtype=bf16")
HOST_CALLS = 200
HOST_ROUNDS = 50  # each takes milliseconds only, and the host's clocks come and go

# How a peer's call is refused. All else is a bug, or a launch that failed.
PEER_REFUSALS = (ValueError, TypeError, RuntimeError, AssertionError)

CEILINGS = ("matmul",)  # among the contenders
COLD_CEILINGS = ("matmul", "read_kv")
# Of the matrix product's rate, where below_its_best() looks: on an H200 FlashAttention-3 is well above, and well
# below when it was built without all flags of its setup.py, which shows nowhere else (docs/measuring.md).
FA3_PERCENT_OF_MATMUL = 70
METHOD = {
    "timer": "CUDA events, interleaved, in an order that changes from round to round",
    "l2": "warm: no flush between launches",
    "flops": "4 * head_dim * unmasked (query, key) pairs over batch and query heads",
}
COLD = {
    "l2": "cold: flushed before every launch, outside of its time; a launch that the GPU may have waited for is thrown "
    "away, and made again behind twice the flushes",
}
PEERS_METHOD = (
    "one process; the inputs, gates and timer of the program for all; of peers no log-sum-exp is judged, and no row "
    "that sees no key; short calls as a CUDA graph (with a cold L2 each launch alone, and their median); the orders of the "
    "rounds are a Williams design, in which nobody keeps a neighbour; peers allocate their outputs in every call; of "
    "several ways to call a peer for few queries the fastest by such samples, which its note names"
)


class UsageError(Exception):
    """One line for the user: what was asked for cannot be."""


# What was asked for.


def words_for_problems(options: argparse.Namespace) -> list[str]:
    """The same options in the program's own words."""
    words = [f"--{name}" for name in ("causal", "full") if getattr(options, name)]
    words += [f"--{name}={value}" for name in ("grid", "seed") if (value := getattr(options, name)) is not None]
    return words + [f"--{name}={value}" for name in ("shape", "dtype") for value in getattr(options, name) or []]


def bytes_needed(problem: dict[str, Any]) -> int:
    """Inputs, and the outputs of a step and of a peer twice."""
    p = problem
    queries = p["batch"] * p["num_heads_q"] * p["seqlen_q"] * p["head_dim"]
    keys = 2 * p["batch"] * p["num_heads_kv"] * p["seqlen_kv"] * p["head_dim"]
    return 2 * (queries + keys) + 3 * 2 * queries


def find_step(name: str, known: list[str]) -> str:
    """As sources.match_step(), of the steps that this GPU has."""
    step = sources.match_step(name, known)
    if step is None:
        raise UsageError(f"unknown step '{name}'; there are {', '.join(known)}")
    return step


def chosen_peers(wanted: list[str] | None, missing: dict[str, str]) -> list[str]:
    """Those that were asked for, or all that can be used."""
    for name in wanted or []:
        if name not in PEERS:
            raise UsageError(f"--peers: unknown peer '{name}'; there are {', '.join(PEERS)}")
        if name in missing:
            raise UsageError(f"--peers: {name} cannot be used: {missing[name]}")
    return [name for name in PEERS if name not in missing and (not wanted or name in wanted)]


def without_folders(message: str) -> str:
    """Where somebody built a peer is nobody's business: of a file's path its name is left."""
    return re.sub(r"(?<![\w.:/])(?:/[\w.+-]+)+/(?=[\w.+-])", "", message)


def outcome(error: Exception) -> dict[str, str]:
    """What is said of a contender that cannot go on."""
    for kind, status in ((Skip, "skip"), (WrongOutput, "fail"), (DeviceLost, "crash")):
        if isinstance(error, kind):
            return {"status": status, "message": without_folders(str(error))}
    return {"status": "error", "message": without_folders(f"{type(error).__name__}: {one_line(error)}")}


def below_its_best(entry: dict[str, Any], run: dict[str, Any], device: dict[str, Any]) -> str:
    """Why the time of a peer says nothing about it; empty as a rule."""
    p, percent = run["problem"], percent_of_ceiling(run, entry["timing"], "matmul")
    telling = p["head_dim"] == 128 and not p["causal"] and min(p["seqlen_q"], p["seqlen_kv"]) >= 2048
    telling = telling and p["batch"] * p["num_heads_q"] * p["seqlen_q"] >= 1 << 17  # several tiles an SM
    if entry.get("peer") != "flash_attn_3" or device["compute_capability"] != "9.0" or not telling:
        return ""
    if percent is None or percent >= FA3_PERCENT_OF_MATMUL:
        return ""
    return f"{percent:.0f} % of the matrix product's rate: was it built with all flags? See docs/measuring.md"


def add_note(entry: dict[str, Any], text: str) -> None:
    if text:
        entry["note"] = "; ".join(part for part in (entry.get("note"), text) if part)


# The session.


@dataclass
class Session:
    lab: Lab
    torch: TorchLab
    library: Path  # the lab's
    problems: list[dict[str, Any]]
    steps: list[str]
    peers: list[str]
    rounds: int
    path: Path | None = None  # of the record
    named: set[str] = field(default_factory=set)  # steps that must run somewhere
    cold_l2: bool = False  # flushed before every launch
    data: dict[str, Any] = field(default_factory=dict)  # the record
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = [*self.steps, *self.peers]
        # A unit of progress is a contender that was checked, or made ready, or one round of all of them.
        per_problem = 2 * len(self.names) + self.rounds
        self.progress = Progress(per_problem * len(self.problems) + len(self.names) + HOST_ROUNDS)

    def save(self) -> None:
        if self.path is not None:
            files.replace(self.path, files.record_text(self.data))

    def in_order(self, names: list[str], round_: int) -> list[str]:
        """Another order in every round: whoever comes behind a matrix product starts on a GPU at lower clocks."""
        return [names[at] for at in self.lab.order(len(names), round_)]

    def run(self) -> int:
        self.data = {
            "schema": results.SCHEMA,
            "command": "peers",
            "complete": False,
            "provenance": {
                "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                **self.lab.provenance,
                "backend": "cuda",
                "device": self.lab.device,
                "method": {**METHOD, "rounds": self.rounds, **(COLD if self.cold_l2 else {})},
                "peers": {**self.torch.versions(), "builds": self.torch.builds, "method": PEERS_METHOD},
            },
            "runs": [],
        }
        data, device = self.data, self.data["provenance"]["device"]
        versions = ", ".join(f"{name} {text}" for name, text in self.torch.versions().items() if text)
        print(f"device: {device['name']}, driver {device['driver']}; {versions}\n", flush=True)
        self.save()
        try:
            for problem in self.problems:
                self.compare(problem)
            print(format_grid(data["runs"]), flush=True)
            data["host_overhead"] = self.host_overhead()
            print(format_host_overhead(data["host_overhead"]), flush=True)
        except DeviceLost as error:
            self.progress.clear()
            self.save()
            print("".join(format_run(run, device) for run in data["runs"][-1:]), flush=True)
            complain(f"the GPU cannot be used any more: {error}")
            return 3
        data["complete"] = True
        self.save()
        return self.summary()

    def summary(self) -> int:
        data = self.data
        # The rules of the file are also those of the run: whatever they forbid is a bug in here.
        if errors := results.check(data):
            for line in errors:
                complain(f"the record is unsound: {line}")
            return 1
        if self.path is not None:
            print(f"results: {self.path}", flush=True)
        entries = [step for run in data["runs"] for step in run["steps"]]
        statuses = {step["status"] for step in entries}
        if statuses & {"fail", "error"} or "pass" not in statuses:
            return 1
        ran = {step["step"] for step in entries if step["status"] != "skip"}
        if refused := sorted(self.named - ran):
            complain(f"{', '.join(refused)} cannot run any of the problems here")
            return 2
        return 0

    def attempt(self, work: Callable[[], Any], refusals: tuple[type[Exception], ...] = ()) -> Any:
        """The result; Skip where it was refused, by one of these exceptions or for want of memory; DeviceLost where
        nothing works any more."""
        try:
            result = work()
            self.torch.synchronize()
            return result
        except (Skip, WrongOutput, DeviceLost):
            raise
        except Exception as error:
            if broken := self.torch.broken():
                raise DeviceLost(broken) from error
            if self.torch.is_out_of_memory(error):
                raise Skip("there is not enough free memory on the device") from error
            if isinstance(error, refusals):
                raise Skip(one_line(error)) from error
            raise

    def compare(self, problem: dict[str, Any]) -> None:
        run: dict[str, Any] = {"problem": problem, "steps": [], "peers": []}
        self.data["runs"].append(run)
        self.progress.show(f"{problem_label(problem)}: inputs")
        case = self.lab.problem(problem)
        try:
            calls = self.check(case, run)
            self.time(case, run, calls)
        finally:
            self.progress.clear()
            case.close()
        del calls
        self.torch.release()
        self.save()
        said = "".join(f"  {line}\n" for line in self.warnings)
        print(format_run(run, self.data["provenance"]["device"]) + said, flush=True)
        self.warnings.clear()

    def check(self, case: harness.Case, run: dict[str, Any]) -> dict[str, Call]:
        """Fills the run's entries. Returns the calls of the peers that pass."""
        label = problem_label(case.problem)
        for step in self.steps:
            self.progress.show(f"{label}: checking {step}", units=1)
            entry: dict[str, Any] = {"step": step}
            run["steps"].append(entry)
            try:
                entry |= self.attempt(lambda: case.check(step))
            except Exception as error:
                entry |= outcome(error)
                if isinstance(error, DeviceLost):
                    raise
        tensors = self.torch.tensors(case)
        calls = {}
        for name in self.peers:
            self.progress.show(f"{label}: checking {name}", units=1)
            entry = {"peer": name}
            run["peers"].append(entry)
            try:
                call = self.attempt(lambda: self.torch.prepare(name, tensors, self.cold_l2), PEER_REFUSALS)
                entry |= self.attempt(lambda: self.torch.judge(call, case, tensors), PEER_REFUSALS)
            except Exception as error:
                entry |= outcome(error)
                if isinstance(error, DeviceLost):
                    raise
                continue
            add_note(entry, without_folders(call.note))
            if hidden := rows_without_keys(case.problem):
                add_note(entry, f"not compared: {hidden} row(s) a head, which see no key")
            if entry["status"] == "pass":
                calls[name] = call
        return calls

    def time(self, case: harness.Case, run: dict[str, Any], calls: dict[str, Call]) -> None:
        problem, entries = case.problem, contenders_of(run)
        label = problem_label(problem)
        makers: dict[str, Callable[[], Timer | None]] = {
            name: functools.partial(case.step_timer, name, self.cold_l2)
            for name in self.steps
            if entries[name]["status"] == "pass"
        }
        makers |= {name: functools.partial(self.torch.timer, call, self.cold_l2) for name, call in calls.items()}
        ceilings = (COLD_CEILINGS if self.cold_l2 else CEILINGS) if makers else ()
        for name in ceilings:
            makers[name] = functools.partial(self.lab.ceiling, name, kv_bytes(problem))
        timers: dict[str, Timer] = {}

        def careful(name: str, work: Callable[[], Any]) -> Any:
            """The result; None of a contender that drops out of the race, in which the others go on."""
            try:
                return self.attempt(work)
            except Exception as error:
                timers.pop(name, None)
                said = outcome(error)
                if name in ceilings:
                    self.warnings.append(f"no measured ceiling {name}: {said['message']}")
                else:
                    entries[name] |= {**said, "message": f"while being timed: {said['message']}"}
                    if said["status"] == "skip":
                        del entries[name]["validation"]
                if isinstance(error, DeviceLost):
                    raise
                return None

        for name, make in makers.items():
            self.progress.show(f"{label}: warming up {name}", units=1)
            if timer := careful(name, make):
                timers[name] = timer
        # Round 0 does not count: capturing returned the memory that the others' outputs were in.
        for round_ in range(self.rounds + 1):
            self.progress.show(f"{label}: round {round_} of {self.rounds}", units=min(round_, 1))
            for name in self.in_order(list(timers), round_):
                careful(name, functools.partial(timers[name].sample, keep=round_ > 0))

        peak = self.lab.device.get("peak_tflops", {}).get(problem["dtype"], 0)
        of_ceilings = {name: timers.pop(name).samples() for name in ceilings if name in timers}
        records = self.lab.records(
            {
                "problem": problem,
                "ceilings": of_ceilings,
                "contenders": {name: timer.samples() for name, timer in timers.items()},
            }
        )
        if records["ceilings"]:
            run["ceilings"] = records["ceilings"]
        for name, timer in timers.items():
            entry, timing = entries[name], records["contenders"][name]
            # Nothing is faster than the hardware: such a figure means that the kernel, the clock or the FLOP
            # count is wrong.
            if peak > 0 and timing["tflops"] > peak:
                entry["status"] = "fail"
                entry["message"] = (
                    f"{timing['tflops']:.1f} TFLOPS is above the card's peak of {peak:.1f}: a bug in the "
                    "kernel or in the measurement, not recorded"
                )
                continue
            entry["timing"] = timing
            if doubt := below_its_best(entry, run, self.data["provenance"]["device"]):
                entry |= {"status": "skip", "message": doubt}
                del entry["timing"], entry["validation"]
            elif "peer" in entry:
                add_note(entry, timer.note)

    def host_overhead(self) -> dict[str, Any]:
        """How long a call keeps the host, where the GPU has little to do."""
        decode = {problem["seqlen_q"] for problem in self.problems} == {1}
        (problem,) = harness.problems(self.library, *(HOST_DECODE_PROBLEM if decode else HOST_PROBLEM))
        run: dict[str, Any] = {"problem": problem, "steps": [], "peers": []}
        self.progress.show("host overhead")
        case = self.lab.problem(problem)
        calls = self.check(case, run)
        for entry in run["steps"]:
            if entry["status"] == "pass":
                calls[entry["step"]] = self.torch.step(entry["step"], self.torch.tensors(case))
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for round_ in range(HOST_ROUNDS + 1):  # round 0 does not count, it warms up
            self.progress.show(f"host overhead: round {round_} of {HOST_ROUNDS}", units=min(round_, 1))
            for name in self.in_order(list(samples), round_):
                try:
                    microseconds = self.attempt(lambda: self.host_sample(calls[name]))
                except DeviceLost:
                    raise
                except Exception as error:
                    self.progress.clear()
                    print(f"  {name} has no host overhead: {one_line(error)}", flush=True)
                    del samples[name]
                    continue
                if round_ > 0:
                    samples[name].append(microseconds)
        self.progress.clear()
        for name, entry in contenders_of(run).items():
            if entry["status"] != "pass":
                reason = entry["message"].split("\n")[0]
                print(f"  {name} has no host overhead: {entry['status']}: {reason}", flush=True)
        calls.clear()
        case.close()
        self.torch.release()
        return {
            "problem": problem,
            "calls_per_sample": HOST_CALLS,
            "entries": [
                {"name": name, **percentiles(values, "us"), "samples": len(values)}
                for name, values in samples.items()
            ],
        }

    def host_sample(self, call: Call) -> float:
        """Microseconds a call, without waiting for the GPU inside; before and after, attempt() does."""
        collects = gc.isenabled()
        gc.disable()  # or one contender pays for the garbage of all
        try:
            with call.around():
                start = time.perf_counter()
                for _ in range(HOST_CALLS):
                    call.run()
                end = time.perf_counter()
        finally:
            if collects:
                gc.enable()
        return (end - start) * 1e6 / HOST_CALLS


# The command line.


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps_help = "a step, or the beginning of its name, as v10 (default: all)"
    parser.add_argument("steps", nargs="*", metavar="STEP", help=steps_help)
    parser.add_argument("--shape", action="append", help="as flashsteps takes it, e.g. 4,32,4096,64 (repeatable)")
    parser.add_argument("--grid", help="as flashsteps takes it: paper, decode or decode-large")
    parser.add_argument("--dtype", action="append", help="element type: fp16 or bf16 (repeatable)")
    parser.add_argument("--causal", action="store_true", help="causal mask (with --full: both)")
    parser.add_argument("--full", action="store_true", help="no mask (the default)")
    peers_help = f"some of {', '.join(PEERS)} (default: all that are installed)"
    parser.add_argument("--peers", action="extend", nargs="+", metavar="NAME", help=peers_help)
    parser.add_argument("--rounds", default="7", help="how many samples of each contender to take, at least 7")
    parser.add_argument("--cold-l2", action="store_true", help="flush L2 before every launch, outside of its time")
    parser.add_argument("--seed", help="seed of the inputs")
    parser.add_argument("--json", metavar="FILE", help="write a record to this file")
    lab_help = "the library of the harness (default: build/libflashsteps_lab.so of this checkout)"
    parser.add_argument("--lab", type=Path, default=harness.DEFAULT, help=lab_help)
    options = parser.parse_intermixed_args(arguments)
    if not re.fullmatch(r"\d{1,5}", options.rounds) or not 7 <= int(options.rounds) <= 10000:
        raise UsageError(f"--rounds is {options.rounds}, it must be 7 to 10000")
    options.rounds = int(options.rounds)
    return options


def open_torch(library: Path) -> tuple[Lab, TorchLab]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries is missing
        raise Unavailable(f"PyTorch is missing: {one_line(error)} (pip install torch)") from error
    if not torch.cuda.is_available():
        what = "is built without CUDA" if torch.version.cuda is None else "sees none: is the driver loaded?"
        raise Unavailable(f"there is no NVIDIA GPU to compare on: PyTorch {torch.__version__} {what}")
    os.environ["FLASHSTEPS_TUNING"] = ""  # a record is of what the steps choose themselves
    try:
        import flashsteps
    except (ImportError, OSError) as error:
        raise Unavailable(
            f"the Python module flashsteps is missing: {one_line(error)} (pip install . in the repository)"
        ) from error
    lab = Lab(library, device=torch.cuda.current_device())
    if flashsteps.build_info()["commit"] != lab.provenance["commit"]:
        raise Unavailable("the Python module flashsteps and the lab are of different commits: build both anew")
    return lab, TorchLab(torch, flashsteps, lab)


def compare_all(options: argparse.Namespace) -> int:
    chosen_peers(options.peers, {})  # a name that nobody has is wrong use on any machine
    problems = harness.problems(options.lab, *words_for_problems(options))
    if any(problem["dtype"] == "fp32" for problem in problems):
        raise UsageError("--dtype fp32: peers know fp16 and bf16 only")
    path = None if options.json is None else files.writable(options.json)
    lab, torch = open_torch(options.lab)
    named = {find_step(name, lab.steps) for name in options.steps}
    steps = [step for step in lab.steps if step in named or not named]
    missing = torch.missing_peers()
    peers = chosen_peers(options.peers, missing)
    for problem in problems:
        needed, free = (size / (1 << 30) for size in (bytes_needed(problem), lab.free_bytes()))
        if needed > free:
            needs = f"{problem_label(problem)} needs {needed:.1f} GiB on the device"
            raise UsageError(f"--shape: {needs}, which has {free:.1f} GiB free")
    for name, reason in missing.items() if not options.peers else ():
        print(f"left out: {name} cannot be used ({reason})")
    asked_for = (options.rounds, path, named, options.cold_l2)
    return Session(lab, torch, options.lab, problems, steps, peers, *asked_for).run()


def complain(line: str) -> None:
    print(f"compare_peers.py: {printable(line)}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    try:
        return compare_all(parse(arguments))
    except Unavailable as error:
        complain(str(error))
        return 1
    except (UsageError, sources.StepError, LabError, files.NotWritable) as error:
        complain(str(error))
        return 2
    except OSError as error:  # a full disk, or a pipe whose reader has gone
        complain(f"the output could not be written: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again at its end
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
