#!/usr/bin/env python3
"""Random problems of the whole contract, judged by the harness, twice, bit by bit; then a soak on concurrent streams.

    python3 scripts/measure/stress.py [STEP...] [--problems 10000] [--soak MINUTES] [--out FILE.txt]

Needs PyTorch, the Python module flashsteps, and the lab (build/libflashsteps_lab.so, built beside the program). Runs on
the GPU, or without one on the emulator, where a few small problems are plenty.

Exit status: 0 when all is right, 1 when not, 2 for wrong use, 3 when a call hung.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import faulthandler
import math
import os
import random
import struct
import sys
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import compare_peers
from measure import lab as harness
from measure.lab import LabError, Unavailable
from records.terminal import one_line
from steps.sources import StepError

LAYOUTS = ("bhsd", "bshd", "qkv", "gaps")
# What the scores of all queries are moved by, key by key; the range of sizes is in units of the score.
INPUTS = {
    "normal": (0, 0),
    "sharp": (0, 0),  # Q x 3
    "growing": (2, 1000),  # from key to key, from 0 to that
    "falling": (2, 1000),
    "equal": (0, 0),  # all keys of a head are one
    "offset": (100, 1000),  # all by the same, up or down
    "shifted": (10, 200),  # up and down, by tiles of 64 keys
    "outliers": (10, 1000),  # up to five keys
    "sink": (5, 500),  # the first key
    "huge": (2.0**12, 2.0**24),  # as shifted, and nothing else in the scores: exact in FP32
}
MAX_FAILURES = 20
UNDER_WAY = 8  # calls of each stream that the GPU may be behind
SOAK_PROBLEMS = 48
GRAPHS = 4  # for each stream


@dataclass(frozen=True)
class Problem:
    dtype: str
    head_dim: int
    batch: int
    num_heads_q: int
    num_heads_kv: int
    seqlen_q: int
    seqlen_kv: int
    causal: bool
    kv_lengths: tuple[int, ...] | None
    layout: str
    api: str  # the order of axes in the call
    softmax_scale: float | None
    inputs: str
    size: float

    def rows_that_see(self) -> int:
        """Rows of o that see a key."""
        seen = 0
        for length in self.kv_lengths or self.batch * (self.seqlen_kv,):
            seen += min(self.seqlen_q, length) if self.causal else self.seqlen_q * (length > 0)
        return seen * self.num_heads_q

    def axes(self) -> dict[str, str]:
        """What the summary counts."""
        keys = next((f"up to {most}" for most in (128, 2048, 8192) if self.seqlen_kv <= most), "above 8192")
        lengths = "none" if self.kv_lengths is None else "with 0" if 0 in self.kv_lengths else "given"
        heads = "MHA" if self.num_heads_q == self.num_heads_kv else "MQA" if self.num_heads_kv == 1 else "GQA"
        return {
            "inputs": self.inputs,
            "type": self.dtype,
            "mask": f"D={self.head_dim} {'causal' if self.causal else 'full'}",
            "heads": "one in all" if self.batch * self.num_heads_q == 1 else heads,
            "rows": "more than keys" if self.seqlen_q > self.seqlen_kv else "up to keys",
            "keys": keys,
            "kv_lengths": lengths,
            "layout": self.layout,
            "scale": "default" if self.softmax_scale is None else "given",
        }


def draw_length(rng: random.Random, most: int) -> int:
    kind = rng.random()
    if kind < 0.4:
        return round(most ** rng.random())
    if kind < 0.6:
        return rng.randint(1, min(130, most))
    tile = rng.choice((64, 128))
    return max(1, tile * rng.randint(1, max(1, most // tile)) + rng.choice((-1, 0, 1)))


def draw(seed: int, index: int, max_pairs: int) -> Problem:
    """The same for the same arguments. `max_pairs` bounds the (query, key) pairs of all heads."""
    rng = random.Random(f"{seed},{index}")
    most = 4096 if max_pairs > 1 << 20 else 300  # on the emulator
    rows, keys = draw_length(rng, most), draw_length(rng, most)
    relation = rng.random()
    if relation < 0.3:
        rows = keys
    elif relation < 0.4:
        rows = rng.randint(1, 16)
    elif relation < 0.5 and most == 4096:
        rows, keys = min(rows, 512), rng.randint(8000, 12288)
    batch, heads_kv, group = (rng.choice(counts) for counts in ((1, 1, 2, 3, 5), (1, 1, 2, 3, 8), (1, 1, 2, 4, 8)))
    too_much = lambda: batch * heads_kv * (group * rows + keys) > 1 << 18  # memory
    while too_much() or batch * heads_kv * group * rows * keys > max_pairs:
        if batch > 1:
            batch = 1
        elif heads_kv > 2:
            heads_kv = 2
        elif group > 2:
            group = 2
        else:
            rows = max(1, rows // 2)
            keys = keys if rows > 1 else keys // 2
    lengths = None
    if rng.random() < 0.4:
        choose = (lambda: keys, lambda: 0, lambda: rng.randint(0, keys), lambda: rng.randint(0, keys))
        lengths = tuple(rng.choice(choose)() for _ in range(batch))
    scale = None
    if rng.random() < 0.3:
        (scale,) = struct.unpack("f", struct.pack("f", 0.02 * 100 ** rng.random()))  # as FP32 holds it
    inputs = rng.choice(list(INPUTS))
    low, high = INPUTS[inputs]
    return Problem(
        dtype=rng.choice(("fp16", "bf16")),
        head_dim=rng.choice((64, 128)),
        batch=batch,
        num_heads_q=heads_kv * group,
        num_heads_kv=heads_kv,
        seqlen_q=rows,
        seqlen_kv=keys,
        causal=rng.random() < 0.5,
        kv_lengths=lengths,
        layout=rng.choice(LAYOUTS),
        api=rng.choice(("bhsd", "bshd")),
        softmax_scale=scale,
        inputs=inputs,
        size=low and low * (high / low) ** rng.random(),
    )


class Done:
    """An event of calls that have ended when they return, as on the emulator."""

    query = synchronize = lambda self: True


class Watch(threading.Thread):
    """Ends the process when the oldest call under way makes no progress, and says which one it is."""

    def __init__(self, seconds: float, make_event: Callable[[], Any], end: Callable[[int], Any] = os._exit):
        super().__init__(daemon=True)
        self.seconds, self.make_event, self.end = seconds, make_event, end
        self.calls: deque[list[Any]] = deque()
        self.alive, self.stopped = time.monotonic(), threading.Event()

    def begin(self, label: str) -> None:
        self.calls.append([label, None])
        self.alive = time.monotonic()

    def queued(self, under_way: int = 0) -> None:
        """All of the last call is queued. Waits until no more than so many have not ended: a full queue would stop
        the host where it holds the GIL, and the watch with it."""
        self.calls[-1][1] = self.make_event()
        self.wait(under_way)

    def wait(self, under_way: int = 0) -> None:
        while len(self.calls) > under_way:
            self.calls[0][1].synchronize()
            self.calls.popleft()
            self.alive = time.monotonic()

    def run(self) -> None:
        while not self.stopped.wait(min(1.0, self.seconds / 4)):
            # Should another thread hang with the GIL, this one never comes here again, and Python ends all.
            faulthandler.dump_traceback_later(3 * self.seconds, exit=True, file=sys.__stderr__)
            if time.monotonic() - self.alive < self.seconds or not (calls := list(self.calls)):
                continue
            label = next((label for label, event in calls if event is None or not event.query()), calls[-1][0])
            print(f"HUNG: no progress for {self.seconds:g} s in {label}", flush=True)
            self.end(3)
            break
        faulthandler.cancel_dump_traceback_later()


@dataclass
class Tensors:
    q: Any  # [b, h, s, d], in the problem's layout; so are k and v
    k: Any
    v: Any
    lengths: Any  # of the keys of each batch, int32, or None
    memory: list[Any]  # what they lie in
    copies: list[Any]  # of that, to see that nobody writes to it


@dataclass(frozen=True)
class Job:
    """Of a soak."""

    label: str
    call: Callable[[], tuple[Any, Any]]  # queues it on the current stream
    expected: tuple[Any, Any]  # what it gave alone


class Stress:
    def __init__(self, torch: Any, attention: Callable[..., Any], device: str, options: argparse.Namespace):
        self.torch, self.attention, self.options = torch, attention, options
        torch.set_grad_enabled(False)
        self.device, self.on_gpu = torch.device(device), device == "cuda"
        self.lab = harness.Lab(options.lab, "cuda" if self.on_gpu else "emulator")
        self.dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
        self.watch = Watch(options.hang, self.event)
        self.counts: dict[str, Counter[str]] = {}
        self.ran: dict[str, Counter[str]] = {}  # by step
        self.worst: dict[tuple[str, str], float] = {}
        self.failures = 0

    def event(self) -> Any:
        if not self.on_gpu:
            return Done()
        event = self.torch.cuda.Event(blocking=True)
        event.record()
        return event

    def synchronize(self) -> None:
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def poison(self, t: Tensors, value: float) -> None:
        """This where an output is likely to be: PyTorch hands freed blocks out again as they are."""
        blocks = [self.torch.full_like(t.q, value, memory_format=self.torch.contiguous_format) for _ in range(2)]
        blocks.append(self.torch.full(t.q.shape[:3], value, dtype=self.torch.float32, device=self.device))
        del blocks

    # One problem.

    def tensors(self, p: Problem, index: int) -> Tensors:
        torch, seed = self.torch, self.options.seed
        rng = random.Random(f"{seed},{index} tensors")
        generator = torch.Generator(self.device).manual_seed(seed << 32 | index)

        def normal(heads: int, rows: int) -> Any:
            shape = (p.batch, heads, rows, p.head_dim)
            return torch.randn(shape, generator=generator, device=self.device)

        q, k, v = normal(p.num_heads_q, p.seqlen_q), *(normal(p.num_heads_kv, p.seqlen_kv) for _ in range(2))
        key = torch.arange(p.seqlen_kv, device=self.device)
        if p.inputs == "sharp":
            q *= 3
        elif p.inputs == "equal":
            k[:] = k[:, :, :1].clone()
        elif p.inputs == "huge":
            q.zero_()
        if p.size:
            # The last coordinate, in which every query is alike, moves the scores: up to it sums in FP32 are small,
            # so that the large score is rounded once, and not by every addition.
            tile = (key // 64 % 2 * 2 - 1).double()
            some_keys = [rng.randrange(p.seqlen_kv) for _ in range(rng.randint(1, 5))]
            moves = {
                "growing": lambda: key / max(p.seqlen_kv - 1, 1),
                "falling": lambda: 1 - key / max(p.seqlen_kv - 1, 1),
                "offset": lambda: torch.full_like(tile, rng.choice((-1, 1))),
                "shifted": lambda: tile * rng.choice((-1, 1)),
                "huge": lambda: tile * rng.choice((-1, 1)),
                "outliers": lambda: sum((key == j).double() for j in some_keys),
                "sink": lambda: (key == 0).double(),
            }
            coordinate = math.sqrt(p.size / (p.softmax_scale or p.head_dim**-0.5))
            q[..., -1] = coordinate
            k[..., -1] = coordinate * moves[p.inputs]()
        values, lengths = [x.to(self.dtypes[p.dtype]) for x in (q, k, v)], None
        if p.kv_lengths is not None:
            lengths = torch.tensor(p.kv_lengths, dtype=torch.int32, device=self.device)
            for x in values[1:]:
                x.masked_fill_((key >= lengths[:, None])[:, None, :, None], math.nan)
        views, buffers = self.place(p, values, rng)
        return Tensors(*views, lengths, buffers, [buffer.clone() for buffer in buffers])

    def place(self, p: Problem, values: list[Any], rng: random.Random) -> tuple[list[Any], list[Any]]:
        """Views [b, h, s, d], in the problem's layout, of memory that holds NaN elsewhere."""
        views, buffers, first_head = [], [], 0
        by_rows = p.layout in ("bshd", "qkv") or (p.layout == "gaps" and rng.random() < 0.5)
        for x in values:
            batch, heads, rows, d = x.shape
            gaps = [8 * rng.randrange(6) if p.layout == "gaps" else 0 for _ in range(4)]  # 16 bytes
            if p.layout == "qkv":  # one tensor for all three
                heads, rows = p.num_heads_q + 2 * p.num_heads_kv, max(p.seqlen_q, p.seqlen_kv)
            inner = d + gaps[0]
            outer = (heads if by_rows else rows) * inner + gaps[1]
            head, row = (inner, outer) if by_rows else (outer, inner)
            of_batch = (rows if by_rows else heads) * outer + gaps[2]
            if p.layout != "qkv" or not buffers:
                nan = self.torch.full((gaps[3] + batch * of_batch,), math.nan, dtype=x.dtype, device=self.device)
                buffers.append(nan)
            offset = gaps[3] + (first_head * d if p.layout == "qkv" else 0)
            views.append(buffers[-1].as_strided(x.shape, (of_batch, head, row, 1), offset))
            views[-1].copy_(x)
            first_head += x.shape[1]
        return views, buffers

    def call(self, p: Problem, t: Tensors, step: str) -> tuple[Any, Any]:
        """o as [b, h, s, d], and lse."""
        q, k, v = (x if p.api == "bhsd" else x.transpose(1, 2) for x in (t.q, t.k, t.v))
        options = {"causal": p.causal, "scale": p.softmax_scale, "kv_lengths": t.lengths, "layout": p.api}
        o, lse = self.attention(q, k, v, step=step, return_lse=True, **options)
        return o if p.api == "bhsd" else o.transpose(1, 2), lse

    def again(self, index: int, step: str) -> str:
        """What reproduces a problem."""
        return f"{step} --problem {self.options.seed},{index} --pairs {self.options.pairs}"

    def fail(self, what: str, why: str) -> None:
        self.failures += 1
        print(f"FAIL {what}: {why}", flush=True)

    def case(self, p: Problem, t: Tensors) -> harness.Case:
        bits = [x.contiguous().view(self.torch.int16).cpu().numpy() for x in (t.q, t.k, t.v)]
        fields: dict[str, Any] = {"dtype": p.dtype, "causal": p.causal}
        if p.softmax_scale is not None:
            fields["softmax_scale"] = p.softmax_scale
        return self.lab.given(fields, *bits, None if t.lengths is None else t.lengths.cpu().numpy())

    def judge(self, p: Problem, t: Tensors, case: harness.Case, step: str) -> list[str]:
        """What is wrong with a step, run twice."""
        self.poison(t, math.nan)
        o, lse = self.call(p, t, step)
        self.poison(t, 60000.0)
        again = self.call(p, t, step)
        if o.shape != t.q.shape or o.dtype != t.q.dtype or lse.shape != o.shape[:3] or lse.dtype != self.torch.float32:
            return [f"o is {o.dtype} {list(o.shape)}, and lse {lse.dtype} {list(lse.shape)}"]
        wrong = []
        if self.differ((o, lse), again):
            wrong.append("two runs on the same inputs differ: a race, or a read of memory that nothing wrote")
        if self.differ(t.memory, t.copies):
            wrong.append("wrote to its inputs")
            for tensor, copy in zip(t.memory, t.copies):
                tensor.copy_(copy)  # or all that come after would pay for it
        o, lse = o.contiguous(), lse.contiguous()
        self.synchronize()
        found = case.judge(o.data_ptr(), lse.data_ptr(), not wrong)
        figures, whole = found["validation"], gate_of_the_whole(p, found["validation"])
        if found["status"] != "pass" and not (found["only_nrmse"] and figures["nrmse"] <= whole):
            wrong += found["message"].splitlines()
        self.ran.setdefault(step, Counter())[p.dtype] += 1
        shares = {
            "nrmse": (figures["nrmse"], whole),
            "worst row": (figures["worst_row_nrmse"], figures["gate_row"]),
            "element": (figures["worst_element"], figures["gate_element"]),
        }
        for name, (error, gate) in shares.items():
            share = math.nan if error is None else error / gate
            self.worst[p.dtype, name] = max(self.worst.get((p.dtype, name), 0.0), share)
        return wrong

    def check(self, index: int, p: Problem, steps: list[str]) -> Tensors:
        self.watch.begin(f"the inputs of {self.again(index, 'STEP')}")
        t = self.tensors(p, index)
        case = self.case(p, t)
        self.watch.queued()
        for step in steps:
            label = self.again(index, step)
            self.watch.begin(label)
            try:
                wrong = self.judge(p, t, case, step)
            except ValueError as error:  # the whole contract is promised: a refusal is a failure
                wrong = [one_line(error)]
            self.watch.queued()
            if wrong:
                self.fail(label, f"{', '.join(wrong)}; {p}")
            if self.failures >= MAX_FAILURES:
                break
        case.close()
        return t

    # All of them.

    def problems(self, named: list[str], others: list[str]) -> None:
        o = self.options
        for index in range(o.problems):
            p = draw(o.seed, index, o.pairs)
            for axis, value in p.axes().items():
                self.counts.setdefault(axis, Counter())[value] += 1
            self.check(index, p, named + (others if index < o.others else []))
            if (index + 1) % 1000 == 0:
                print(f"{index + 1} problems, {self.failures} failures", flush=True)
            if self.failures >= MAX_FAILURES:
                break

    def differ(self, some: Any, others: Any) -> Any:
        """As bits, NaN being equal to itself. It is only queued."""
        bits = {2: self.torch.int16, 4: self.torch.int32}
        return sum((a.view(bits[a.itemsize]) != b.view(bits[b.itemsize])).any() for a, b in zip(some, others)) > 0

    def job(self, index: int, p: Problem, t: Tensors, step: str) -> Job:
        def call() -> tuple[Any, Any]:
            self.poison(t, math.nan)
            return self.call(p, t, step)

        return Job(self.again(index, step), call, call())

    def graph_of(self, job: Job, stream: Any) -> Job:
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            outputs = job.call()

        def replay() -> tuple[Any, Any]:
            for output in outputs:
                output.fill_(math.nan)
            graph.replay()
            return outputs

        return Job(f"a graph of {job.label}", replay, job.expected)

    def soak(self, steps: list[str]) -> str:
        """Every stream calls back to back, and compares with what the call gave alone."""
        torch, o, rng = self.torch, self.options, random.Random(self.options.seed)
        jobs: list[Job] = []
        for index in range(min(SOAK_PROBLEMS, o.problems or SOAK_PROBLEMS)):
            p, failures = draw(o.seed, index, o.pairs), self.failures
            t = self.check(index, p, steps)
            jobs += [self.job(index, p, t, step) for step in steps if self.failures == failures]
        if not jobs:
            return "soak: not begun"
        streams = [torch.cuda.Stream() if self.on_gpu else None for _ in range(o.streams)]
        on = torch.cuda.stream if self.on_gpu else lambda stream: contextlib.nullcontext()
        graphs = GRAPHS if self.on_gpu else 0
        jobs_of = [jobs + [self.graph_of(rng.choice(jobs), stream) for _ in range(graphs)] for stream in streams]
        wrong = torch.zeros((len(streams), len(jobs) + graphs), dtype=torch.int64, device=self.device)
        self.synchronize()  # what was filled on another stream
        calls, replays, started, told = 0, 0, time.monotonic(), time.monotonic()
        while (now := time.monotonic()) < started + o.soak * 60 and self.failures < MAX_FAILURES:
            for _ in range(64 if self.on_gpu else 1):
                for s, stream in enumerate(streams):
                    number = rng.randrange(len(jobs))
                    if graphs and rng.random() < 0.25:
                        number, replays = len(jobs) + rng.randrange(graphs), replays + 1
                    job = jobs_of[s][number]
                    self.watch.begin(f"the soak, {job.label}")
                    with on(stream):
                        wrong[s, number].add_(self.differ(job.call(), job.expected))
                        self.watch.queued(UNDER_WAY * len(streams))
                    calls += 1
            self.watch.wait()
            for s, number in wrong.nonzero().tolist():
                what = f"the soak, stream {s}, {jobs_of[s][number].label}"
                self.fail(what, f"differs from what it gave alone in {int(wrong[s, number])} call(s)")
            wrong.zero_()
            self.synchronize()
            if now - told > 30:
                told = now
                print(f"soak: {now - started:.0f} s, {calls} calls, {self.failures} failures", flush=True)
        seconds = time.monotonic() - started
        return f"soak: {seconds:.0f} s, {len(streams)} streams, {calls} calls, {replays} of them replays of graphs"

    def summary(self) -> list[str]:
        lines = ["step                   fp16   bf16  problems, each run twice"]
        lines += [f"{step:20} {ran['fp16']:6} {ran['bf16']:6}" for step, ran in sorted(self.ran.items())]
        lines += ["", "the largest error, of its gate:"]
        lines += [f"  {dtype} {name:10} {share:4.0%}" for (dtype, name), share in sorted(self.worst.items())]
        lines += ["", "problems by"]
        for axis, counts in self.counts.items():
            lines.append(f"  {axis}: " + ", ".join(f"{value} {n}" for value, n in sorted(counts.items())))
        return [*lines, ""]


def gate_of_the_whole(p: Problem, figures: dict[str, Any]) -> float:
    """The judge's, but for few rows, which are no mean: one of them may be at the row's gate. And huge scores leave the
    same rounding of P to all rows, so that the whole is held to the row's gate."""
    gate, row_gate = figures["gate_nrmse"], figures["gate_row"]
    if p.inputs == "huge":
        return row_gate
    return math.sqrt(gate**2 + (row_gate**2 - gate**2) / max(p.rows_that_see(), 1))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps_help = "a step, or the beginning of its name, as v27 (default: the last two)"
    parser.add_argument("steps", nargs="*", metavar="STEP", help=steps_help)
    parser.add_argument("--problems", type=int, default=10000, help="how many each of these steps computes")
    parser.add_argument("--others", type=int, default=0, metavar="N", help="the other steps compute the first N")
    parser.add_argument("--problem", metavar="SEED,INDEX", help="compute only this problem")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, help="the most (query, key) pairs that a problem may have")
    parser.add_argument("--soak", type=float, default=0, metavar="MINUTES", help="then call steps on several streams")
    parser.add_argument("--streams", type=int, default=8, help="how many streams the soak uses")
    parser.add_argument("--hang", type=float, default=60, metavar="SECONDS", help="no progress for so long is a hang")
    lab_help = "the library of the harness (default: build/libflashsteps_lab.so of this checkout)"
    parser.add_argument("--lab", type=Path, default=harness.DEFAULT, help=lab_help)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the summary here as well")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        import flashsteps
        import torch
    except (ImportError, OSError) as error:
        print(f"stress.py: {one_line(error)} (docs/measuring.md)", file=sys.stderr)
        return 2
    on_gpu = torch.cuda.is_available() and flashsteps.missing_gpu() is None
    options.pairs = options.pairs or (1 << 26 if on_gpu else 1 << 15)
    build = flashsteps.build_info()
    if options.out and (build["commit"] is None or build["dirty"] is not False):
        print("stress.py: --out: the module is not known to be built from a clean tree", file=sys.stderr)
        return 2
    known = [flashsteps.describe(step) for step in flashsteps.steps()]
    if on_gpu:
        major, minor = torch.cuda.get_device_capability()
        sm = 10 * major + minor
        known = [s for s in known if s.has_cuda and (s.needs_sm == sm if s.needs_sm_exactly else s.needs_sm <= sm)]
    names = [step.name for step in known]
    try:
        named = [compare_peers.find_step(name, names) for name in options.steps] or names[-2:]
    except (StepError, compare_peers.UsageError) as error:
        print(f"stress.py: {error}", file=sys.stderr)
        return 2
    others = [name for name in names if name not in named]
    try:
        stress = Stress(torch, flashsteps.attention, "cuda" if on_gpu else "cpu", options)
    except (LabError, Unavailable) as error:
        print(f"stress.py: {error}", file=sys.stderr)
        return 2
    stress.watch.start()
    lines = [
        f"stress.py on {torch.cuda.get_device_name() if on_gpu else 'the emulator'}, PyTorch {torch.__version__}, "
        f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}",
        f"commit    {build['commit']}{'' if build['dirty'] is False else ', changed'}",
        f"problems  seed {options.seed}, at most {options.pairs} (query, key) pairs each",
        "",
    ]
    print("\n".join(lines), flush=True)
    started = time.monotonic()
    try:
        if options.problem:
            options.seed, index = map(int, options.problem.split(","))
            stress.check(index, draw(options.seed, index, options.pairs), named)
        else:
            stress.problems(named, others)
        lines += [*stress.summary(), f"problems: {time.monotonic() - started:.0f} s"]
        if options.soak > 0 and stress.failures < MAX_FAILURES:
            lines.append(stress.soak(named))
    except RuntimeError as error:  # the device is lost; which call it was shows only when each is waited for
        under_way = [label for label, event in stress.watch.calls if on_gpu or event is None]
        stress.fail(" or ".join(under_way), f"{one_line(error)} (CUDA_LAUNCH_BLOCKING=1 says which call)")
    stress.watch.stopped.set()
    lines.append(f"{stress.failures} failures")
    print("\n".join(lines[4:]), flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if stress.failures else 0


if __name__ == "__main__":
    sys.exit(main())
