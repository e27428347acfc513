#!/usr/bin/env python3
"""Random problems, each checked as `flashsteps check` does it; then a soak on concurrent streams.

    python3 scripts/measure/stress.py [STEP...] [--problems N] [--minutes M] [--soak MINUTES]

Needs the lab (build/libflashsteps_lab.so, built beside the program); the soak needs PyTorch and the Python module
flashsteps as well. Runs on the GPU, or without one on the emulator, where a few small problems are plenty.

Exit status: 0 when all is right, 1 when not, 2 for wrong use or something that is missing, 3 when a call hung.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import faulthandler
import functools
import math
import multiprocessing
import os
import random
import shlex
import sys
import threading
import time
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure.lab import Case, Lab, LabError, Unavailable, add_option
from records.problems import program_words
from records.rules import SHAPE
from records.writing import one_line
from steps.sources import StepError, match_step

# Without odd, which few steps take, and far, which reserves 16 GiB.
LAYOUTS = ("bhsd", "bshd", "qkv", "gapped")
INPUTS = SHAPE["$defs"]["problem"]["properties"]["inputs"]["enum"]
NOT_OF_FP8 = {"shifted", "offset", "huge", "rising", "falling", "leaps"}  # harness/problem/problem.cpp says why
NOT_OF_FP8_CACHE = {"leaps"}
OF_SCALES = {"zero_keys", "spike"}  # for steps that find scales
GATES = {"nrmse": "gate_nrmse", "worst_row_nrmse": "gate_row", "worst_element": "gate_element", "bias": "gate_bias"}
ORDERS = ({}, {"async": "late", "last_cta_first": True})  # the emulator's, of the two runs
MAX_FAILURES = 20
STREAMS = 8
UNDER_WAY = 8  # calls of each stream that the GPU may be behind
SOAK_PROBLEMS = 48
GRAPHS = 4  # for each stream

Problem = dict[str, Any]  # as records have it
Outputs = tuple[Any, ...]  # o, and lse if the problem wants it; or dq, dk and dv
Ran = dict[str, Counter[str]]  # how many problems of each type, by step
Worst = dict[tuple[str, str], float]  # the largest error of a type, of its gate, by the gate's name


def draw_length(rng: random.Random, most: int) -> int:
    kind = rng.random()
    if kind < 0.4:
        return round(most ** rng.random())
    if kind < 0.6:
        return rng.randint(1, min(130, most))
    tile = rng.choice((64, 128))
    return max(1, tile * rng.randint(1, max(1, most // tile)) + rng.choice((-1, 0, 1)))


def draw(
    seed: int,
    index: int,
    max_pairs: int,
    fp8: bool = False,
    fast: bool = False,
    cache: str = "q",
    quantize: bool = False,
    no_lse: bool = False,
    backward: bool = False,
) -> Problem:
    """The same for the same arguments. `max_pairs` bounds the (query, key) pairs of all heads."""
    rng = random.Random(f"{seed},{index}")
    barred = NOT_OF_FP8 if fp8 or quantize else NOT_OF_FP8_CACHE if cache != "q" else set()
    if not quantize:
        barred = barred | OF_SCALES
    most = 4096 if max_pairs > 1 << 20 else 300  # on the emulator
    while True:
        rows, keys = draw_length(rng, most), draw_length(rng, most)
        relation = rng.random()
        if relation < 0.3:
            rows = keys
        elif relation < 0.4:
            rows = rng.randint(1, 16)
        elif relation < 0.6 and most == 4096:
            rows, keys = min(rows, 512), rng.randint(8000, 12288)
        batch, heads_kv = rng.choice((1, 1, 2, 3, 5)), rng.choice((1, 1, 2, 3, 8))
        group = rng.choice((1, 1, 2, 3, 4, 5, 7, 8))
        fits_memory = batch * heads_kv * (group * rows + keys) <= 1 << 18
        if fits_memory and batch * heads_kv * group * rows * keys <= max_pairs:
            break
    problem = {
        "batch": batch,
        "num_heads_q": heads_kv * group,
        "num_heads_kv": heads_kv,
        "seqlen_q": rows,
        "seqlen_kv": keys,
        "head_dim": rng.choice((64, 128)),
        "dtype": "e4m3" if fp8 else rng.choice(("fp16", "bf16")),
        "causal": rng.random() < 0.5,
        "kv_lengths": rng.choice(("full", "full", "full", "random", "zeros", "skewed")),
        "layout": rng.choice([each for each in LAYOUTS if cache == "q" or each != "qkv"]),
        "inputs": rng.choice([each for each in INPUTS if each not in barred]),
        "seed": rng.randrange(1, 1 << 31),
    }
    if rng.random() < 0.3:
        largest = 0.5 if problem["inputs"] in OF_SCALES else 2  # scores in e4m3 end at 5,500
        problem["softmax_scale"] = float(f"{0.02 * (largest / 0.02) ** rng.random():.9g}")
    if (rng.random() < 0.2 or no_lse) and not backward:
        problem["lse"] = "none"
    if fast:
        problem["fast"] = "yes"
    if cache != "q":
        problem["cache"] = cache
    if quantize:
        problem["quantize"] = "yes"
    if backward:
        problem["backward"] = "yes"
        if problem["inputs"] == "huge":
            problem["dtype"] = "bf16"  # dk, a sum over queries, may exceed FP16
    return problem


class Watch(threading.Thread):
    """Ends the process when nothing has made progress for so long, and says what was under way."""

    def __init__(self, seconds: float, end: Callable[[int], Any] = os._exit):
        super().__init__(daemon=True)
        self.seconds, self.end = seconds, end
        self.progress(lambda: "the start")

    def progress(self, what: Callable[[], str]) -> None:
        """All until now has ended; `what` tells, when it is asked, what has not."""
        self.what, self.since = what, time.monotonic()

    def run(self) -> None:
        while time.monotonic() - self.since < self.seconds:
            # Should another thread hang with the GIL, this one never comes here again, and Python ends all.
            faulthandler.dump_traceback_later(3 * self.seconds, exit=True, file=sys.__stderr__)
            time.sleep(min(1.0, self.seconds / 4))
        faulthandler.cancel_dump_traceback_later()
        print(f"HUNG: no progress for {self.seconds:g} s in {self.what()}", flush=True)
        self.end(3)


class Stress:
    def __init__(self, lab: Lab, backend: str, watch: Watch):
        self.lab, self.backend, self.watch = lab, backend, watch
        self.ran: Ran = {}
        self.worst: Worst = {}
        self.varying: set[str] = set()  # steps whose runs may differ
        self.failures = 0

    def add(self, ran: Ran, worst: Worst, failures: int) -> None:
        """What another one has found."""
        for step, of_type in ran.items():
            self.ran.setdefault(step, Counter()).update(of_type)
        for of, share in worst.items():
            self.worst[of] = max(self.worst.get(of, 0.0), share)
        self.failures += failures

    def again(self, problem: Problem, step: str) -> str:
        """What reproduces a problem."""
        return shlex.join(["build/flashsteps", "check", step, "--backend", self.backend, *program_words(problem)])

    def fail(self, what: str, why: str) -> None:
        self.failures += 1
        print(f"FAIL {what}: {why}", flush=True)

    def lose_device(self, error: Exception) -> None:
        self.fail(self.watch.what(), f"{one_line(error)} (CUDA_LAUNCH_BLOCKING=1 says which call)")

    def check(self, problem: Problem, steps: list[str]) -> Case:
        self.watch.progress(lambda: f"the inputs of {self.again(problem, 'STEP')}")
        case = self.lab.problem(problem)
        for step in steps:
            self.watch.progress(lambda: self.again(problem, step))
            found = case.check(step, ORDERS)
            if found["status"] != "pass":  # the whole contract is promised: a refusal is a failure, too
                self.fail(self.again(problem, step), found["message"])
            if "varies" in found:
                self.varying.add(step)
            if self.failures >= MAX_FAILURES:
                break
            figures = found.get("validation", {})
            shares = {
                (problem["dtype"], error): figures[error] / figures[gate]
                for error, gate in GATES.items()
                if figures.get(error) is not None
            }
            self.add({step: Counter([problem["dtype"]])}, shares, 0)
        return case

    def problems(self, drawn: list[Problem], steps: list[str], minutes: float = math.inf) -> None:
        end = time.monotonic() + 60 * minutes
        for index, problem in enumerate(drawn):
            self.check(problem, steps).close()
            if (index + 1) % 100 == 0:
                print(f"{index + 1} problems, {self.failures} failures", file=sys.stderr)
            if self.failures >= MAX_FAILURES or time.monotonic() > end:
                break

    def summary(self) -> str:
        dtypes = sorted({dtype for ran in self.ran.values() for dtype in ran}, reverse=True)
        lines = [f"{'step':22}{''.join(f'{dtype:>7}' for dtype in dtypes)}  problems, each run twice"]
        lines += [f"{step:22}{''.join(f'{ran[each]:7}' for each in dtypes)}" for step, ran in sorted(self.ran.items())]
        lines += ["", "the largest error, of its gate:"]
        lines += [f"  {dtype} {name:15} {share:4.0%}" for (dtype, name), share in sorted(self.worst.items())]
        return "\n".join([*lines, ""])


class Done:
    """An event of calls that have ended when they return, as on the emulator."""

    query = synchronize = lambda self: True


@dataclass(frozen=True)
class Job:
    """Of a soak."""

    label: str
    call: Callable[[], Outputs]  # queues it on the current stream
    expected: Outputs  # what it gave alone


class Soak:
    """Every stream calls back to back, as users of the Python module do, and compares with what a call gave alone."""

    def __init__(self, stress: Stress, flashsteps: Any):
        import torch

        from measure.peers import TorchLab

        self.torch, self.stress, self.flashsteps = torch, stress, flashsteps
        self.pytorch = TorchLab(torch, flashsteps, stress.lab)
        self.on_gpu = self.pytorch.device.type == "cuda"
        self.cases: list[Case] = []  # whose tensors are in use until the end
        self.queues: list[deque[tuple[str, Any]]] = []  # of each stream

    def event(self) -> Any:
        """Of what is queued on the current stream."""
        if not self.on_gpu:
            return Done()
        event = self.torch.cuda.Event(blocking=True)
        event.record()
        return event

    def jobs(self, case: Case, steps: list[str]) -> list[Job]:
        torch, p, t = self.torch, case.problem, self.pytorch.tensors(case)
        lengths = p.get("lengths")
        if lengths is not None:
            lengths = torch.tensor(lengths, dtype=torch.int32, device=self.pytorch.device)
        options = {"causal": p["causal"], "scale": p.get("softmax_scale")}
        if not p.get("backward"):
            options |= {"return_lse": p.get("lse") != "none"} | t.scales
        options |= {each: True for each in ("fast", "quantize") if p.get(each) == "yes"}
        of_o = torch.bfloat16 if p["dtype"] == "e4m3" else None
        has_cache = p.get("cache", "q") != "q"  # a call to it takes the library's step, whatever `steps` says

        def job(step: str) -> Job:
            def call() -> Outputs:
                if p.get("backward"):
                    self.pytorch.poison((t.q, t.k, t.v), math.nan)
                    given = (t.d_o, t.q, t.k, t.v, t.o, t.lse)
                    return self.flashsteps.attention_backward(*given, step=step, kv_lengths=lengths, **options)
                self.pytorch.poison((t.q,), math.nan, of_o)
                if has_cache:
                    q, *caches = (each.transpose(1, 2) for each in (t.q, t.k, t.v))
                    outputs = self.flashsteps.attention_with_kvcache(q, *caches, cache_seqlens=lengths, **options)
                else:
                    outputs = self.flashsteps.attention(t.q, t.k, t.v, step=step, kv_lengths=lengths, **options)
                return outputs if isinstance(outputs, tuple) else (outputs,)

            return Job(self.stress.again(p, step), call, call())

        return [job(step) for step in steps]

    def graph_of(self, job: Job, stream: Any) -> Job:
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            outputs = job.call()

        def replay() -> Outputs:
            for output in outputs:
                output.fill_(math.nan)
            graph.replay()
            return outputs

        return Job(f"a graph of {job.label}", replay, job.expected)

    def differ(self, some: Outputs, others: Outputs) -> Any:
        """As bits, NaN being equal to itself. It is only queued."""
        bits = {2: self.torch.int16, 4: self.torch.int32}
        return sum((a.view(bits[a.itemsize]) != b.view(bits[b.itemsize])).any() for a, b in zip(some, others)) > 0

    def wait(self, queue: deque[tuple[str, Any]], most: int) -> None:
        """Until no more than so many calls of a stream have not ended: a full queue would stop the host where it holds
        the GIL, and the watch with it."""
        while len(queue) > most:
            queue[0][1].synchronize()
            queue.popleft()
            self.stress.watch.progress(self.under_way)

    def under_way(self) -> str:
        labels = [next((label for label, event in queue if not event.query()), "") for queue in self.queues]
        return f"the soak, {' or '.join(label for label in labels if label)}"

    def run(self, drawn: list[Problem], steps: list[str], minutes: float) -> str:
        torch, stress, rng = self.torch, self.stress, random.Random(len(drawn))
        jobs: list[Job] = []
        for problem in drawn:
            failures = stress.failures
            case = stress.check(problem, steps)
            if stress.failures == failures:
                jobs += self.jobs(case, [step for step in steps if step not in stress.varying])
                self.cases.append(case)
        if not jobs:
            return "soak: not begun"
        streams = [torch.cuda.Stream() if self.on_gpu else None for _ in range(STREAMS)]
        on = torch.cuda.stream if self.on_gpu else lambda stream: contextlib.nullcontext()
        graphs = GRAPHS if self.on_gpu else 0
        jobs_of = [jobs + [self.graph_of(rng.choice(jobs), stream) for _ in range(graphs)] for stream in streams]
        self.queues = [deque() for _ in streams]
        wrong = torch.zeros((len(streams), len(jobs) + graphs), dtype=torch.int64, device=self.pytorch.device)
        self.pytorch.synchronize()  # what was filled on another stream
        calls, replays, started, told = 0, 0, time.monotonic(), time.monotonic()
        while (now := time.monotonic()) < started + minutes * 60 and stress.failures < MAX_FAILURES:
            for s in list(range(len(streams))) * (64 if self.on_gpu else 1):
                number = rng.randrange(len(jobs))
                if graphs and rng.random() < 0.25:
                    number, replays = len(jobs) + rng.randrange(graphs), replays + 1
                job = jobs_of[s][number]
                with on(streams[s]):
                    wrong[s, number].add_(self.differ(job.call(), job.expected))
                    self.queues[s].append((job.label, self.event()))
                self.wait(self.queues[s], UNDER_WAY)
                calls += 1
            for queue in self.queues:
                self.wait(queue, 0)
            for s, number in wrong.nonzero().tolist():
                what = f"the soak, stream {s}, {jobs_of[s][number].label}"
                stress.fail(what, f"differs from what it gave alone in {int(wrong[s, number])} call(s)")
            wrong.zero_()
            self.pytorch.synchronize()
            if now - told > 30:
                told = now
                print(f"soak: {now - started:.0f} s, {calls} calls, {stress.failures} failures", file=sys.stderr)
        seconds = time.monotonic() - started
        return f"soak: {seconds:.0f} s, {len(streams)} streams, {calls} calls, {replays} of them replays of graphs"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps_help = "a step, or the beginning of its name, as v27 (default: all)"
    parser.add_argument("steps", nargs="*", metavar="STEP", help=steps_help)
    parser.add_argument("--problems", type=int, default=1000, help="how many each of these steps computes")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no other of these problems afterwards")
    parser.add_argument("--fp8", action="store_true", help="problems in e4m3, for the steps that take it")
    parser.add_argument("--fast", action="store_true", help="with --fp8: the problems allow an approximation")
    cache_help = "type of k and v; e4m3: for the steps that take such a cache"
    parser.add_argument("--cache", choices=("q", "e4m3"), default="q", help=cache_help)
    quantize_help = "the problems are rounded to e4m3 by the step"
    parser.add_argument("--quantize", action="store_true", help=quantize_help)
    parser.add_argument("--no-lse", action="store_true", help="no problem wants a log-sum-exp")
    backward_help = "gradients, for the steps that compute these; those that may vary are in no soak"
    parser.add_argument("--backward", action="store_true", help=backward_help)
    parser.add_argument("--seed", type=int, default=1)
    processes_help = "so many side by side, each with all these problems, but drawn with SEED, SEED + 1 and so on"
    parser.add_argument("--processes", type=int, default=1, metavar="N", help=processes_help)
    parser.add_argument("--pairs", type=int, help="the most (query, key) pairs that a problem may have")
    parser.add_argument("--soak", type=float, default=0, metavar="MINUTES", help="then call steps on several streams")
    parser.add_argument("--hang", type=float, default=60, metavar="SECONDS", help="no progress for so long is a hang")
    add_option(parser)
    options = parser.parse_args(arguments)
    if options.fp8 and options.cache != "q":
        parser.error("--fp8: K and V are in e4m3 then, as Q is")
    if options.fast and not options.fp8:
        parser.error("--fast: only problems in e4m3 allow an approximation: --fp8")
    if options.quantize and (options.fp8 or options.cache != "q"):
        parser.error("--quantize: q, k and v are in fp16 or bf16 then")
    if options.backward and (options.fp8 or options.cache != "q" or options.quantize or options.no_lse):
        parser.error("--backward: problems in fp16 and bf16, with a log-sum-exp")
    return options


def open_lab(library: Path) -> tuple[Lab, str]:
    """And its backend."""
    try:
        return Lab(library, "cuda"), "cuda"
    except Unavailable:
        raise
    except LabError as no_gpu:
        print(f"{no_gpu}: on the emulator", file=sys.stderr)
        return Lab(library, "emulator"), "emulator"


def kind_of(options: argparse.Namespace) -> tuple[bool, bool, str, bool, bool, bool]:
    return options.fp8, options.fast, options.cache, options.quantize, options.no_lse, options.backward


@dataclass(frozen=True)
class Prepared:
    """For the random problems of one process."""

    stress: Stress
    steps: list[str]
    max_pairs: int

    def draw(self, options: argparse.Namespace, seed: int, count: int) -> list[Problem]:
        return [draw(seed, index, self.max_pairs, *kind_of(options)) for index in range(count)]


def prepare(options: argparse.Namespace) -> Prepared:
    lab, backend = open_lab(options.lab)
    max_pairs = options.pairs or (1 << 26 if backend == "cuda" else 1 << 15)
    smallest = lab.problem(draw(options.seed, 0, 1 << 12, *kind_of(options)))
    steps = [step for step in lab.steps if smallest.check(step)["status"] != "skip"]  # that this GPU can run
    named = [match_step(name, steps) for name in options.steps] or steps
    return Prepared(Stress(lab, backend, Watch(options.hang)), named, max_pairs)


def run_problems(options: argparse.Namespace, prepared: Prepared, seed: int) -> None:
    stress = prepared.stress
    stress.watch.start()
    try:
        stress.problems(prepared.draw(options, seed, options.problems), prepared.steps, options.minutes)
    except (LabError, RuntimeError) as error:
        stress.lose_device(error)


def in_a_process(options: argparse.Namespace, seed: int) -> tuple[Ran, Worst, int]:
    """The problems of one seed."""
    prepared = prepare(options)
    run_problems(options, prepared, seed)
    return prepared.stress.ran, prepared.stress.worst, prepared.stress.failures


def stress_all(options: argparse.Namespace) -> int:
    prepared = prepare(options)
    stress, lab = prepared.stress, prepared.stress.lab
    soak = Soak(stress, lab.python_module()) if options.soak > 0 else None
    seeds = range(options.seed, options.seed + options.processes)
    print(f"stress.py on {lab.device['name']}, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}")
    print(f"commit    {lab.provenance['commit']}{'' if lab.provenance['dirty'] is False else ', changed'}")
    said = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    print(f"problems  {said}, at most {prepared.max_pairs} (query, key) pairs each\n", flush=True)
    started = time.monotonic()
    if options.processes == 1:
        run_problems(options, prepared, options.seed)
    else:
        with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
            for found in pool.map(functools.partial(in_a_process, options), seeds):
                stress.add(*found)
        stress.watch.progress(lambda: "the start of the soak")
        stress.watch.start()  # until now each process has watched itself
    print(f"{stress.summary()}\nproblems: {time.monotonic() - started:.0f} s", flush=True)
    if soak and stress.failures < MAX_FAILURES:
        try:
            print(soak.run(prepared.draw(options, options.seed, SOAK_PROBLEMS), prepared.steps, options.soak))
        except (LabError, RuntimeError) as error:
            stress.lose_device(error)
    print(f"{stress.failures} failures")
    return 1 if stress.failures else 0


def main(arguments: list[str] | None = None) -> int:
    try:
        return stress_all(parse(arguments))
    except BrokenProcessPool:  # it has said why
        return 3
    except (LabError, StepError, ImportError) as error:
        print(f"stress.py: {one_line(error)}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
