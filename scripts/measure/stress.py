#!/usr/bin/env python3
"""Random problems of the whole contract against float64, twice, bit by bit; then a soak on concurrent streams.

    python3 scripts/measure/stress.py [STEP...] [--problems 10000] [--soak MINUTES] [--out FILE.txt]

Needs PyTorch and the Python module flashsteps. Runs on the GPU, or without one on the emulator, where a few small
problems are plenty. Exit status: 0 when all is right, 1 when not, 2 for wrong use, 3 when a call hung.
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
from types import SimpleNamespace
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import compare_peers
from records.rules import GATES
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
UNDER_WAY = 8  # calls that the GPU may be behind
SOAK_PROBLEMS = 48
GRAPHS = 4  # for each stream


@dataclass(frozen=True)
class Problem:
    dtype: str
    head_dim: int
    batch: int
    heads_q: int
    heads_kv: int
    seqlen_q: int
    seqlen_kv: int
    causal: bool
    kv_lengths: tuple[int, ...] | None
    layout: str
    api: str  # the order of axes in the call
    scale: float | None
    inputs: str
    size: float

    def axes(self) -> dict[str, str]:
        """What the summary counts."""
        keys = next((f"up to {most}" for most in (128, 2048, 8192) if self.seqlen_kv <= most), "above 8192")
        lengths = "none" if self.kv_lengths is None else "with 0" if 0 in self.kv_lengths else "given"
        heads = "MHA" if self.heads_q == self.heads_kv else "MQA" if self.heads_kv == 1 else "GQA"
        return {
            "inputs": self.inputs,
            "type": self.dtype,
            "mask": f"D={self.head_dim} {'causal' if self.causal else 'full'}",
            "heads": "one in all" if self.batch * self.heads_q == 1 else heads,
            "rows": "more than keys" if self.seqlen_q > self.seqlen_kv else "up to keys",
            "keys": keys,
            "kv_lengths": lengths,
            "layout": self.layout,
            "scale": "default" if self.scale is None else "given",
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
        heads_q=heads_kv * group,
        heads_kv=heads_kv,
        seqlen_q=rows,
        seqlen_kv=keys,
        causal=rng.random() < 0.5,
        kv_lengths=lengths,
        layout=rng.choice(LAYOUTS),
        api=rng.choice(("bhsd", "bshd")),
        scale=scale,
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

    def queued(self, under_way: int = UNDER_WAY) -> None:
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


class Stress:
    def __init__(self, torch: Any, attention: Callable[..., Any], device: str, options: argparse.Namespace):
        self.torch, self.attention, self.device, self.options = torch, attention, torch.device(device), options
        self.on_gpu = self.device.type == "cuda"
        torch.set_grad_enabled(False)
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

    def array(self, values: Any, dtype: Any = None) -> Any:
        """On the device. torch.tensor(device=...) would wait for it, with the GIL."""
        return self.torch.tensor(values, dtype=dtype).to(self.device, non_blocking=True)

    # One problem.

    def tensors(self, p: Problem, seed: int, index: int) -> SimpleNamespace:
        torch, rng = self.torch, random.Random(f"{seed},{index} tensors")
        generator = torch.Generator(self.device).manual_seed(seed << 32 | index)

        def normal(heads: int, rows: int) -> Any:
            shape = (p.batch, heads, rows, p.head_dim)
            return torch.randn(shape, generator=generator, device=self.device)

        q, k, v = normal(p.heads_q, p.seqlen_q), *(normal(p.heads_kv, p.seqlen_kv) for _ in range(2))
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
            coordinate = math.sqrt(p.size / (p.scale or p.head_dim**-0.5))
            q[..., -1] = coordinate
            k[..., -1] = coordinate * moves[p.inputs]()
        lengths = None
        if p.kv_lengths is not None:
            lengths = self.array(p.kv_lengths, torch.int32)
        keys = torch.full((p.batch,), p.seqlen_kv, device=self.device) if lengths is None else lengths.long()
        beyond = (key >= keys[:, None])[:, None, :, None]
        values = [x.to(self.dtypes[p.dtype]) for x in (q, k, v)]
        for x in values[1:]:
            x.masked_fill_(beyond, math.nan)
        views, buffers = self.place(p, values, rng)
        return SimpleNamespace(
            q=views[0],  # views [b, h, s, d], whatever the memory's order
            k=views[1],
            v=views[2],
            lengths=lengths,
            keys=keys,  # how many each batch has
            buffers=buffers,
            copies=[buffer.clone() for buffer in buffers],
        )

    def place(self, p: Problem, values: list[Any], rng: random.Random) -> tuple[list[Any], list[Any]]:
        """In the problem's layout, in memory that holds NaN elsewhere."""
        views, buffers, first_head = [], [], 0
        by_rows = p.layout in ("bshd", "qkv") or (p.layout == "gaps" and rng.random() < 0.5)
        for x in values:
            batch, heads, rows, d = x.shape
            gaps = [8 * rng.randrange(6) if p.layout == "gaps" else 0 for _ in range(4)]  # 16 bytes
            if p.layout == "qkv":  # one tensor for all three
                heads, rows = p.heads_q + 2 * p.heads_kv, max(p.seqlen_q, p.seqlen_kv)
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

    def call(self, p: Problem, t: SimpleNamespace, step: str, poison: float) -> tuple[Any, Any]:
        """o as [b, h, s, d], and lse."""
        # PyTorch hands freed blocks out again as they are: outputs lie where this was.
        blocks = [self.torch.full_like(t.q, poison, memory_format=self.torch.contiguous_format)]
        blocks.append(self.torch.full(t.q.shape[:3], poison, device=self.device))
        del blocks
        q, k, v = (x if p.api == "bhsd" else x.transpose(1, 2) for x in (t.q, t.k, t.v))
        options = {"causal": p.causal, "scale": p.scale, "kv_lengths": t.lengths, "layout": p.api}
        o, lse = self.attention(q, k, v, step=step, return_lse=True, **options)
        return o if p.api == "bhsd" else o.transpose(1, 2), lse

    def reference(self, p: Problem, t: SimpleNamespace, rng: random.Random) -> SimpleNamespace:
        """Exact softmax in float64, of some rows of up to three heads."""
        torch = self.torch
        heads = {(rng.randrange(p.batch), rng.randrange(p.heads_q)) for _ in range(2)}
        heads.add((p.batch - 1, p.heads_q - 1))
        edges = [64 * rng.randint(1, 64) for _ in range(4)] + [64, 128]
        diagonal = p.seqlen_q - min(p.kv_lengths or (p.seqlen_kv,))  # the first row that sees a key
        wanted = {0, p.seqlen_q - 1, diagonal - 1, diagonal, *edges, *(edge - 1 for edge in edges)}
        wanted |= {rng.randrange(p.seqlen_q) for _ in range(12)}
        rows = sorted(row for row in wanted if 0 <= row < p.seqlen_q)
        b, h, i = (self.array(values) for values in (*zip(*sorted(heads)), rows))
        key = torch.arange(p.seqlen_kv, device=self.device)
        within = key < t.keys[b][:, None]  # [pairs, keys]
        k, v = (x[b, h // (p.heads_q // p.heads_kv)].double().masked_fill(~within[..., None], 0) for x in (t.k, t.v))
        at = (b[:, None], h[:, None], i[None, :])
        scores = t.q[at].double() @ k.transpose(1, 2) * (p.scale or p.head_dim**-0.5)
        seen = within[:, None, :]
        if p.causal:
            seen = seen & (key <= (i + t.keys[b][:, None] - p.seqlen_q)[..., None])
        scores.masked_fill_(~seen, -math.inf)
        lse = torch.logsumexp(scores, -1)
        weights = (scores - lse.masked_fill(lse == -math.inf, 0)[..., None]).exp()
        row = torch.arange(p.seqlen_q, device=self.device)
        visible = t.keys[:, None] - (p.seqlen_q - 1 - row if p.causal else row * 0)
        hidden = (visible <= 0)[:, None]  # [b, 1, s]: rows that see no key
        return SimpleNamespace(at=at, o=weights @ v, lse=lse, hidden=hidden)

    def differ(self, some: Any, others: Any) -> Any:
        """Bit by bit: NaN is not equal to itself."""
        bits = {2: self.torch.int16, 4: self.torch.int32}
        return sum((a.view(bits[a.itemsize]) != b.view(bits[b.itemsize])).any() for a, b in zip(some, others)) > 0

    def errors(self, t: SimpleNamespace, r: SimpleNamespace, o: Any, lse: Any) -> dict[str, Any]:
        """Numbers that verdict() judges. A NaN stays one."""
        torch = self.torch
        error, norm = (o[r.at].double() - r.o).square().sum(-1), r.o.square().sum(-1)
        seen = r.lse > -math.inf
        row = torch.where(seen, torch.where(norm > 0, error / norm, error), 0)
        total = torch.where(seen, norm, 0).sum()
        found = lse[r.at].double()
        off = (found - r.lse).abs() / (1e-4 + 1e-6 * r.lse.abs())
        return {
            "rows": seen.sum(),
            "nrmse": (torch.where(seen, error, 0).sum() / total.masked_fill(total == 0, 1)).sqrt(),
            "worst row": row.max().sqrt(),
            "lse": torch.where(seen, off, torch.where(found == -math.inf, 0.0, math.inf)).max(),
            "not finite": (~o.isfinite()).any() | ~torch.where(r.hidden, lse == -math.inf, lse.isfinite()).all(),
            "not zero": ((o.view(torch.int16) != 0).any(-1) & r.hidden).any(),
            "inputs": self.differ(t.buffers, t.copies),
        }

    def again(self, index: int, step: str) -> str:
        """What reproduces a problem."""
        return f"{step} --problem {self.options.seed},{index} --pairs {self.options.pairs}"

    def fail(self, what: str, why: str) -> None:
        self.failures += 1
        print(f"FAIL {what}: {why}", flush=True)

    def check(self, index: int, p: Problem, steps: list[str]) -> tuple[list[Any], dict[str, Any], SimpleNamespace]:
        """Queues two calls of each step. Returns [label, step, problem, errors], outputs by step, the inputs."""
        results, outputs = [], {}
        self.watch.begin(f"the reference of {self.again(index, 'STEP')}")
        t = self.tensors(p, self.options.seed, index)
        reference = self.reference(p, t, random.Random(f"{self.options.seed},{index} rows"))
        self.watch.queued()
        for step in steps:
            label = self.again(index, step)
            self.watch.begin(label)
            try:
                first = outputs[step] = self.call(p, t, step, math.nan)
                second = self.call(p, t, step, 60000.0)
            except ValueError as error:  # the whole contract is promised: a refusal is a failure
                self.fail(label, one_line(error))
                self.watch.queued()
                continue
            found = self.errors(t, reference, *first) | {"two runs": self.differ(first, second)}
            stacked = self.torch.stack([value.double() for value in found.values()])
            results.append((label, step, p, list(found), stacked))
            self.watch.queued()
        return results, outputs, t

    def judge(self, results: list[Any]) -> None:
        self.watch.wait()
        if not results:
            return
        for (label, step, p, names, _), values in zip(results, self.torch.stack([r[-1] for r in results]).tolist()):
            if self.failures >= MAX_FAILURES:
                break
            found = dict(zip(names, values))
            self.ran.setdefault(step, Counter())[p.dtype] += 1
            for name, gate in limits(p, found["rows"]).items():
                self.worst[p.dtype, name] = max(self.worst.get((p.dtype, name), 0.0), found[name] / gate)
            if wrong := verdict(found, p):
                self.fail(label, f"{', '.join(wrong)}; {p}")
        results.clear()

    # All of them.

    def problems(self, named: list[str], others: list[str]) -> None:
        o, results = self.options, []
        for index in range(o.problems):
            p = draw(o.seed, index, o.pairs)
            for axis, value in p.axes().items():
                self.counts.setdefault(axis, Counter())[value] += 1
            results += self.check(index, p, named + (others if index < o.others else []))[0]
            if len(results) >= 64:
                self.judge(results)
            if (index + 1) % 1000 == 0:
                print(f"{index + 1} problems, {self.failures} failures", flush=True)
            if self.failures >= MAX_FAILURES:
                break
        self.judge(results)

    def soak(self, steps: list[str]) -> str:
        """Every stream calls back to back, and compares with what the call gave alone."""
        torch, o, rng = self.torch, self.options, random.Random(self.options.seed)
        jobs: list[SimpleNamespace] = []  # calls, and what each gives alone
        for index in range(min(SOAK_PROBLEMS, o.problems or SOAK_PROBLEMS)):
            p = draw(o.seed, index, o.pairs)
            results, outputs, t = self.check(index, p, steps)
            self.judge(results)
            for step, expected in outputs.items():
                label = self.again(index, step)
                jobs.append(SimpleNamespace(label=label, problem=p, tensors=t, step=step, expected=expected))
        if not jobs:
            return "soak: not begun"
        streams = [torch.cuda.Stream() if self.on_gpu else None for _ in range(o.streams)]
        on = torch.cuda.stream if self.on_gpu else lambda stream: contextlib.nullcontext()
        graphs: list[list[tuple[int, Any, tuple[Any, Any]]]] = [[] for _ in streams]
        for stream, of_stream in zip(streams, graphs):
            for _ in range(GRAPHS if self.on_gpu else 0):
                number = rng.randrange(len(jobs))
                job, graph = jobs[number], torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    outputs = self.call(job.problem, job.tensors, job.step, math.nan)
                of_stream.append((number, graph, outputs))
        wrong = torch.zeros((len(streams), 2, len(jobs)), dtype=torch.int64, device=self.device)
        self.synchronize()  # what was filled on another stream
        calls, replays, started, told = 0, 0, time.monotonic(), time.monotonic()
        while (now := time.monotonic()) < started + o.soak * 60 and self.failures < MAX_FAILURES:
            for _ in range(64 if self.on_gpu else 1):
                for s, stream in enumerate(streams):
                    replay = bool(graphs[s]) and rng.random() < 0.25
                    number, graph, found = rng.choice(graphs[s]) if replay else (rng.randrange(len(jobs)), None, None)
                    job = jobs[number]
                    self.watch.begin(f"the soak, {'a graph of ' if replay else ''}{job.label}")
                    with on(stream):
                        if replay:
                            for output in found:
                                output.fill_(math.nan)
                            graph.replay()
                        else:
                            found = self.call(job.problem, job.tensors, job.step, math.nan)
                        wrong[s, int(replay), number].add_(self.differ(found, job.expected))
                        self.watch.queued(UNDER_WAY * len(streams))
                    calls, replays = calls + 1, replays + replay
            self.watch.wait()
            for s, replay, number in wrong.nonzero().tolist():
                what = f"the soak, stream {s}, {'a graph of ' if replay else ''}{jobs[number].label}"
                self.fail(what, f"differs from what it gave alone in {int(wrong[s, replay, number])} call(s)")
                wrong[s, replay, number] = 0
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


def limits(p: Problem, rows: float) -> dict[str, float]:
    """The project's gates, but for the whole of few rows, which are no mean: one of them may be at the row's gate.
    And huge scores leave the same rounding of P to all rows, so that the whole is held to the row's gate."""
    gate, row_gate = GATES[p.dtype]
    whole = row_gate if p.inputs == "huge" else math.sqrt(gate**2 + (row_gate**2 - gate**2) / max(rows, 1))
    return {"nrmse": whole, "worst row": row_gate, "lse": 1.0}


def verdict(found: dict[str, float], p: Problem) -> list[str]:
    """What is wrong. Each comparison is written so that a NaN fails it."""
    gates = {"rows": math.inf, **limits(p, found["rows"])}
    return [f"{name} {value:.3g}" for name, value in found.items() if not value <= gates.get(name, 0.0)]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="v26 is enough (default: the last two)")
    parser.add_argument("--problems", type=int, default=10000, help="for each of these steps")
    parser.add_argument("--others", type=int, default=0, metavar="N", help="the first N also for all other steps")
    parser.add_argument("--problem", metavar="SEED,INDEX", help="this one only")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, help="(query, key) pairs of a problem, at most")
    parser.add_argument("--soak", type=float, default=0, metavar="MINUTES", help="afterwards")
    parser.add_argument("--streams", type=int, default=8, help="of the soak")
    parser.add_argument("--hang", type=float, default=60, metavar="SECONDS", help="without progress: a hang")
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
    stress = Stress(torch, flashsteps.attention, "cuda" if on_gpu else "cpu", options)
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
            stress.judge(stress.check(index, draw(options.seed, index, options.pairs), named)[0])
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
