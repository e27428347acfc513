#!/usr/bin/env python3
"""Times steps beside other people's attention kernels, interleaved, on the same tensors, in one process.

    python3 scripts/measure/compare_peers.py v10                   the program's two GPU problems; prints tables
    python3 scripts/measure/compare_peers.py --grid paper --causal --full --json FILE
                                                           every step and peer, recorded

It needs an NVIDIA GPU, PyTorch, and the Python module flashsteps; docs/results-schema.md describes the record.
What the words for problems mean, the gates and the orders of rounds are asked of the program, --program.
The peers are those of PyTorch's scaled_dot_product_attention, called by backend: sdpa_flash (FlashAttention-2),
sdpa_cudnn, sdpa_efficient and sdpa_math; and the packages flash_attn, flash_attn_3 (flash_attn_interface),
flash_attn_4 (flash_attn.cute) and flashinfer, where they are installed. How FlashAttention-3 is built, and how it and
FlashInfer are called for one query: docs/measuring.md.

Every output is compared, as a whole, with float64 attention. What is wrong is not timed. A peer that cannot
run a problem is a SKIP with its reason; so is a step.

Exit status: 0 when every step that ran passed; 1 when one failed, nothing could run, or something is missing;
2 for wrong use, or a step named explicitly cannot run here; 3 when the GPU could not be used any more.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import re
import sys
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import program
from measure.peer_tables import format_grid, format_host_overhead, format_run
from measure.peers import Skip
from measure.program import Unavailable
from measure.timer import GRAPH_BELOW_MS, SAMPLE_MS, Timer, percentiles, timing_record
from measure.torch_lab import WAIT_CYCLES, TorchLab, WrongOutput
from records import files, results
from records.problems import problem_label, rows_without_keys
from records.rates import PEERS, contenders_of, percent_of_ceiling
from records.terminal import Progress, one_line, printable
from steps import sources

# Small enough that the GPU is always done before the host has launched again.
HOST_PROBLEM = ("--shape=1,2,64,64", "--dtype=fp16")
# Where all problems have one query: the shortest of the grid decode, with all that such a call does on the host.
HOST_DECODE_PROBLEM = ("--shape=1,32,8,1,1024,128", "--dtype=bf16")
HOST_CALLS = 200
HOST_ROUNDS = 50  # each takes milliseconds only, and the host's clocks come and go

# How a call is refused. All else is a bug, or a launch that failed.
STEP_REFUSALS = (ValueError,)
PEER_REFUSALS = (ValueError, TypeError, RuntimeError, AssertionError)

MATMUL = "matmul"  # the ceiling, among the contenders
# Of the matrix product's rate, where below_its_best() looks: on an H200 FlashAttention-3 is well above, and well
# below when it was built without all flags of its setup.py, which shows nowhere else (docs/measuring.md).
FA3_PERCENT_OF_MATMUL = 70
METHOD = {
    "timer": "CUDA events, interleaved, in an order that changes from round to round",
    "l2": "warm: no flush between launches",
    "flops": "4 * head_dim * unmasked (query, key) pairs over batch and query heads",
}
COLD = {
    "timer": f"{METHOD['timer']}; before a launch the GPU waits {WAIT_CYCLES} cycles and flushes L2; a launch that "
    "it may have reached before the host had made it is thrown away, and made again behind twice the wait",
    "l2": "cold: flushed before every launch, outside of its time",
}
PEERS_METHOD = (
    "one process; the same tensors for all: N(0, 1) from torch.Generator, rounded to the type; whole outputs "
    f"against float64 attention; batches of about {SAMPLE_MS:g} ms, as a CUDA graph where one launch takes "
    f"less than {GRAPH_BELOW_MS:g} ms (with a cold L2 each launch alone, and their median); the orders of the "
    "rounds are a Williams design, in which nobody keeps a neighbour; outputs are allocated in every call; of several "
    "ways to call a peer for few queries the fastest by such samples, which its note names"
)


class UsageError(Exception):
    """One line for the user: what was asked for cannot be."""


class DeviceLost(Exception):
    """After this nothing more can be launched."""


# What was asked for.


def words_for_problems(options: argparse.Namespace) -> list[str]:
    """The same options in the program's own words."""
    words = [f"--{name}" for name in ("causal", "full") if getattr(options, name)]
    words += [f"--{name}={value}" for name in ("grid", "seed") if (value := getattr(options, name)) is not None]
    return words + [f"--{name}={value}" for name in ("shape", "dtype") for value in getattr(options, name) or []]


def bytes_needed(problem: dict[str, Any]) -> int:
    """Inputs and copies, the reference, two outputs, and what is float64 at a time (torch_lab.CHUNK)."""
    p = problem
    queries = p["batch"] * p["num_heads_q"] * p["seqlen_q"] * p["head_dim"]
    keys = 2 * p["batch"] * p["num_heads_kv"] * p["seqlen_kv"] * p["head_dim"]
    return 4 * (queries + keys) + 4 * queries + 2 * 2 * queries + (3 << 29)


def find_step(name: str, known: list[str]) -> str:
    """As sources.match_step(), of the module's steps."""
    step = sources.match_step(name, known)
    if step is None:
        raise UsageError(f"unknown step '{name}'; the module flashsteps has {', '.join(known)}")
    return step


def chosen_peers(wanted: list[str] | None, missing: dict[str, str]) -> list[str]:
    """Those that were asked for, or all that can be used."""
    for name in wanted or []:
        if name not in PEERS:
            raise UsageError(f"--peers: unknown peer '{name}'; there are {', '.join(PEERS)}")
        if name in missing:
            raise UsageError(f"--peers: {name} cannot be used: {missing[name]}")
    return [name for name in PEERS if name not in missing and (not wanted or name in wanted)]


# Judging.


def verdict(found: dict[str, Any], gate: dict[str, float], is_step: bool) -> list[str]:
    """What is wrong with an output; empty when nothing is. Written so that NaN fails."""
    lines = []
    if found["nonfinite"]:
        lines.append(f"{found['nonfinite']} element(s) are NaN or Inf where they must not be")
    if found["not_zero"]:
        lines.append(f"{found['not_zero']} row(s) see no key and are not exactly zero")
    if not found["nrmse"] <= gate["nrmse"]:
        lines.append(f"NRMSE {found['nrmse']:.2e} is above the gate of {gate['nrmse']:.0e}")
    if found["wrong_rows"] or not found["worst_row_nrmse"] <= gate["row"]:
        lines.append(
            f"{found['wrong_rows']} row(s) are wrong; worst: {found['worst_place']}, error "
            f"{found['worst_row_nrmse']:.2e} (gate {gate['row']:.0e})"
        )
    if found["wrong_lse"]:
        lines.append(f"{found['wrong_lse']} lse value(s) are wrong, by up to {found['lse_max_abs']:.2e}")
    if is_step and not found["runs_identical"]:
        lines.append("two runs on the same inputs differ: a race, or a read of memory that nothing wrote")
    if found["inputs_changed"]:
        lines.append("wrote to its inputs")
    return lines


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
    p, percent = run["problem"], percent_of_ceiling(run, entry["timing"], MATMUL)
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


def validation_record(found: dict[str, Any], gate: dict[str, float]) -> dict[str, Any]:
    measured = {key: found[key] for key in ("nrmse", "worst_row_nrmse", "max_abs", "lse_max_abs")}
    record = {key: value if math.isfinite(value or 0) else None for key, value in measured.items()}
    record |= {key: found[key] for key in ("nonfinite", "rows_checked", "runs_identical")}
    return record | {"gate_nrmse": gate["nrmse"], "gate_row": gate["row"]}


# The session.


@dataclass
class Session:
    lab: Any
    flashsteps: Path  # the program
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
        self.gates = program.ask(self.flashsteps)["gates"]
        # A unit of progress is a contender that was checked, or made ready, or one round of all of them.
        per_problem = 2 * len(self.names) + self.rounds
        self.progress = Progress(per_problem * len(self.problems) + len(self.names) + HOST_ROUNDS)

    def save(self) -> None:
        if self.path is not None:
            files.replace(self.path, files.record_text(self.data))

    def in_order(self, names: list[str], round_: int) -> list[str]:
        """Another order in every round: whoever comes behind a matrix product starts on a GPU at lower clocks."""
        return [names[at] for at in program.order_of_round(self.flashsteps, len(names), round_)]

    def run(self) -> int:
        build = self.lab.build_info()
        peaks = {dtype: peak for dtype in ("fp16", "bf16") if (peak := self.lab.peak_tflops(dtype)) > 0}
        self.data = {
            "schema": results.SCHEMA,
            "command": "peers",
            "complete": False,
            "provenance": {
                "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "commit": build["commit"],
                "dirty": build["dirty"],
                "backend": "cuda",
                "device": self.lab.device_record() | ({"peak_tflops": peaks} if peaks else {}),
                "build": build["build"],
                "method": {**METHOD, "rounds": self.rounds, **(COLD if self.cold_l2 else {})},
                "peers": {**self.lab.versions(), "builds": self.lab.builds, "method": PEERS_METHOD},
            },
            "runs": [],
        }
        data, device = self.data, self.data["provenance"]["device"]
        versions = ", ".join(f"{name} {text}" for name, text in self.lab.versions().items() if text)
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
            self.lab.synchronize()
            return result
        except (Skip, WrongOutput, DeviceLost):
            raise
        except Exception as error:
            if broken := self.lab.broken():
                raise DeviceLost(broken) from error
            if self.lab.is_out_of_memory(error):
                raise Skip("there is not enough free memory on the device") from error
            if isinstance(error, refusals):
                raise Skip(one_line(error)) from error
            raise

    def compare(self, problem: dict[str, Any]) -> None:
        run: dict[str, Any] = {"problem": problem, "steps": [], "peers": []}
        self.data["runs"].append(run)
        try:
            calls = self.check(problem, run)
            self.time(problem, run, calls)
        finally:
            self.progress.clear()
        del calls
        self.lab.release()
        self.save()
        said = "".join(f"  {line}\n" for line in self.warnings)
        print(format_run(run, self.data["provenance"]["device"]) + said, flush=True)
        self.warnings.clear()

    def check(self, problem: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
        """Fills the run's entries. Returns the calls of those that pass."""
        label, gate = problem_label(problem), self.gates[problem["dtype"]]
        self.progress.show(f"{label}: reference")
        tensors = self.lab.inputs(problem)
        reference = self.lab.reference(tensors)
        calls = {}
        for name in self.names:
            self.progress.show(f"{label}: checking {name}", units=1)
            is_step = name in self.steps
            entry: dict[str, Any] = {"step" if is_step else "peer": name, "status": "pass", "message": ""}
            run["steps" if is_step else "peers"].append(entry)
            call = found = None
            refusals = STEP_REFUSALS if is_step else PEER_REFUSALS
            try:
                call = self.attempt(lambda: self.lab.prepare(name, tensors, self.cold_l2), refusals)
                found = self.attempt(lambda: self.lab.judge(call, tensors, reference, gate, is_step), refusals)
            except Exception as error:
                entry |= outcome(error)
                if isinstance(error, DeviceLost):
                    raise
            if found is not None:
                entry["validation"] = validation_record(found, gate)
                if lines := verdict(found, gate, is_step):
                    entry |= {"status": "fail", "message": "\n".join(lines)}
                if not is_step:
                    add_note(entry, without_folders(call.note))
                    if hidden := rows_without_keys(problem):
                        add_note(entry, f"not compared: {hidden} row(s) a head, which see no key")
            if entry["status"] == "pass":
                calls[name] = call
        return calls

    def time(self, problem: dict[str, Any], run: dict[str, Any], calls: dict[str, Any]) -> None:
        label, entries = problem_label(problem), contenders_of(run)
        timers: dict[str, Timer] = {}

        def careful(name: str, work: Callable[[], Any]) -> Any:
            """The result; None of a contender that drops out of the race, in which the others go on."""
            try:
                return self.attempt(work)
            except Exception as error:
                timers.pop(name, None)
                said = outcome(error)
                if name == MATMUL:
                    self.warnings.append(f"no measured ceiling: {said['message']}")
                else:
                    entries[name] |= {**said, "message": f"while being timed: {said['message']}"}
                    if said["status"] == "skip":
                        del entries[name]["validation"]
                if isinstance(error, DeviceLost):
                    raise
                return None

        product = careful(MATMUL, self.lab.matmul) if calls else None
        for name, call in {**calls, MATMUL: product and product[0]}.items():
            if call is not None:
                self.progress.show(f"{label}: warming up {name}", units=1)
                own = name != MATMUL
                timer = careful(name, lambda: Timer(self.lab, name, call, own, own and self.cold_l2))
                timers |= {name: timer} if timer else {}
        # Round 0 does not count: capturing returned the memory that the others' outputs were in.
        in_use = 0
        for round_ in range(self.rounds + 1):
            self.progress.show(f"{label}: round {round_} of {self.rounds}", units=min(round_, 1))
            for name in self.in_order(list(timers), round_):
                careful(name, lambda: timers[name].sample(keep=round_ > 0))
            if round_ == 0:
                in_use = self.lab.memory_in_use()
        if (grown := self.lab.memory_in_use() - in_use) > 0:
            self.warnings.append(f"{grown} bytes more are in use than before the rounds: who keeps outputs?")

        if (ceiling := timers.pop(MATMUL, None)) is not None:
            _, what, flops = product
            run["ceilings"] = {MATMUL: {"what": what, **percentiles(ceiling.ms, "ms"), "work": flops, "unit": "FLOP"}}
        peak = self.lab.peak_tflops(problem["dtype"])
        for name, timer in timers.items():
            entry, timing = entries[name], timing_record(timer, problem)
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
            elif timer.note:
                self.warnings.append(f"{name}: {timer.note}")

    def host_overhead(self) -> dict[str, Any]:
        """How long a call keeps the host, where the GPU has little to do."""
        decode = {problem["seqlen_q"] for problem in self.problems} == {1}
        (problem,) = program.ask(self.flashsteps, *(HOST_DECODE_PROBLEM if decode else HOST_PROBLEM))["problems"]
        run: dict[str, Any] = {"problem": problem, "steps": [], "peers": []}
        self.progress.show("host overhead")
        calls = self.check(problem, run)
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
        self.lab.release()
        return {
            "problem": problem,
            "calls_per_sample": HOST_CALLS,
            "entries": [
                {"name": name, **percentiles(values, "us"), "samples": len(values)}
                for name, values in samples.items()
            ],
        }

    def host_sample(self, call: Any) -> float:
        """Microseconds a call, without waiting for the GPU inside; before and after, attempt() does."""
        run, now = call.run, self.lab.now
        collects = gc.isenabled()
        gc.disable()  # or one contender pays for the garbage of all
        try:
            with call.around():
                start = now()
                for _ in range(HOST_CALLS):
                    run()
                end = now()
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
    program_help = "the program flashsteps (default: build/flashsteps of this checkout)"
    parser.add_argument("--program", type=Path, default=program.DEFAULT, help=program_help)
    options = parser.parse_intermixed_args(arguments)
    if not re.fullmatch(r"\d{1,5}", options.rounds) or not 7 <= int(options.rounds) <= 10000:
        raise UsageError(f"--rounds is {options.rounds}, it must be 7 to 10000")
    options.rounds = int(options.rounds)
    return options


def open_lab() -> TorchLab:
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
    return TorchLab(torch, flashsteps)


def compare_all(options: argparse.Namespace, make_lab: Callable[[], Any]) -> int:
    chosen_peers(options.peers, {})  # a name that nobody has is wrong use on any machine
    problems = program.ask(options.program, *words_for_problems(options))["problems"]
    if any(problem["dtype"] == "fp32" for problem in problems):
        raise UsageError("--dtype fp32: peers know fp16 and bf16 only")
    path = None if options.json is None else files.writable(options.json)
    lab = make_lab()
    known = lab.steps()
    named = {find_step(name, known) for name in options.steps}
    steps = [step for step in known if step in named or not named]
    missing = lab.missing_peers()
    peers = chosen_peers(options.peers, missing)
    for problem in problems:
        needed, free = (size / (1 << 30) for size in (bytes_needed(problem), lab.free_bytes()))
        if needed > free:
            needs = f"{problem_label(problem)} needs {needed:.1f} GiB on the device"
            raise UsageError(f"--shape: {needs}, which has {free:.1f} GiB free")
    for name, reason in missing.items() if not options.peers else ():
        print(f"left out: {name} cannot be used ({reason})")
    return Session(lab, options.program, problems, steps, peers, options.rounds, path, named, options.cold_l2).run()


def complain(line: str) -> None:
    print(f"compare_peers.py: {printable(line)}", file=sys.stderr)


def main(arguments: list[str] | None = None, make_lab: Callable[[], Any] = open_lab) -> int:
    try:
        return compare_all(parse(arguments), make_lab)
    except (UsageError, sources.StepError, program.Refused, files.NotWritable) as error:
        complain(str(error))
        return 2
    except Unavailable as error:
        complain(str(error))
        return 1
    except OSError as error:  # a full disk, or a pipe whose reader has gone
        complain(f"the output could not be written: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again at its end
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
