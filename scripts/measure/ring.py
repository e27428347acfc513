#!/usr/bin/env python3
"""Times attention over several GPUs: flashsteps.distributed beside each GPU's work without transfers.

    timeout 150 torchrun --nproc-per-node 2 scripts/measure/ring.py --json FILE     (transfers may hang)

A sample is some calls in a row between two CUDA events of each GPU, after a barrier. Contenders take turns, each round
in another random order. Of a contender's samples on all GPUs the slowest counts, except for `share`: there each GPU's
own kernels run without transfers, and the rates of all are added up. What the record says is in
docs/results-schema.md.

Exit status: 0 when everything was measured; 1 when a contender of ours is wrong; 2 for wrong use.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import timeit
from pathlib import Path
from typing import Any, Callable
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import lab as harness
from measure.lab import percentiles
from records import writing
from records.problems import pairs
from records.writing import one_line

SAMPLE_MS = 60  # about how long the calls of a sample take
GATE = 5e-3  # NRMSE against one device's result, both of them rounded to bf16
METHOD = {
    "timer": "CUDA events on each GPU, interleaved, in a random order every round",
    "l2": "warm: no flush between calls",
    "flops": "4 * head_dim * unmasked (query, key) pairs over batch and query heads",
}

Call = Callable[[], Any]


class Rank:
    """This process and its device."""

    def __init__(self, torch: Any, options: argparse.Namespace):
        self.torch, self.dist, self.on_gpu = torch, torch.distributed, options.device == "cuda"
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        number = int(os.environ["LOCAL_RANK"]) if self.on_gpu else 0
        self.device = torch.device(options.device, number)
        if self.on_gpu:
            torch.cuda.set_device(self.device)
        self.lab = harness.Lab(options.lab, "cuda" if self.on_gpu else "emulator", number)
        self.dist.init_process_group("nccl" if self.on_gpu else "gloo")

    def all_of(self, value: float) -> list[float]:
        """The value of each rank."""
        x = self.torch.tensor([value], dtype=self.torch.float64, device=self.device)
        gathered = [self.torch.empty_like(x) for _ in range(self.world)]
        self.dist.all_gather(gathered, x)
        return [each.item() for each in gathered]

    def synchronize(self) -> None:
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def sample_ms(self, call: Call, calls: int) -> float:
        """Of one call, here."""
        with getattr(call, "around", contextlib.nullcontext)():
            self.all_of(0)
            self.synchronize()
            if self.on_gpu:
                # While this runs, the host gets ahead: its time is not what is measured.
                self.torch.cuda._sleep(2_000_000)
                return self.lab.time_ms(self.torch.cuda.current_stream().cuda_stream, call, calls)
            return timeit.timeit(call, number=calls) * 1e3 / calls

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)


class Problem:
    """A sequence of world * tokens tokens: its tensors here, and the calls that are compared."""

    def __init__(self, here: Rank, flashsteps: Any, tokens: int, heads: tuple[int, int], head_dim: int):
        torch, self.here, self.ring = here.torch, here, flashsteps.distributed
        self.attention, self.tokens, self.heads, self.head_dim = flashsteps.attention, tokens, heads, head_dim
        total = here.world * tokens
        generator = torch.Generator(here.device).manual_seed(1)
        self.whole = [
            torch.randn((1, n, total, head_dim), generator=generator, device=here.device).to(torch.bfloat16)
            for n in (heads[0], heads[1], heads[1])
        ]
        self.q, self.k, self.v = (self.ring.shard(x, layout="zigzag") for x in self.whole)
        # Row i of the sequence sees i + 1 keys.
        rows = self.ring.shard(torch.arange(total).view(1, 1, -1, 1), layout="zigzag")
        self.own_flops = self.flops(int((rows + 1).sum()))
        self.block_bytes = 2 * self.k.numel() * self.k.element_size()

    def flops(self, seen: int) -> int:
        return 4 * self.head_dim * self.heads[0] * seen

    def calls(self) -> dict[str, Call]:
        local = [x[:, :, : self.tokens] for x in self.whole]
        found = {
            "share": self.share,
            "ring": lambda: self.around(self.ring.ring_attention),
            "all_gather": lambda: self.around(self.ring.all_gather_attention),
            "transfer": self.transfer,
            "local": lambda: self.attention(*local, causal=True),
        }
        return found | ({"ring, sent": self.sent} if self.here.on_gpu else {})

    def share(self) -> Any:
        """What ring_attention() computes here, without transfers: all blocks are this process's own."""
        with mock.patch.object(self.ring, "_sent_blocks", lambda k, v, rows, group: ((k, v) for _ in rows)):
            return self.sent()

    def transfer(self) -> None:
        """A block to the next process, and one from the process before; nothing is computed."""
        group, rows = self.here.dist.group.WORLD, 2 * [self.k.size(2)]
        places = self.ring._places_of(group, self.here.device, self.block_bytes)
        if places is None:
            coming = self.ring._sent_blocks(self.k, self.v, rows, group)
        else:
            coming = self.ring._copied_blocks(self.k, self.v, rows, group, places)
        for _ in coming:
            pass

    def sent(self) -> Any:
        """The ring as it is between hosts: NCCL sends the blocks."""
        with mock.patch.object(self.ring, "_places_of", lambda *_: None):
            return self.around(self.ring.ring_attention)

    def around(self, call: Callable[..., Any]) -> Any:
        return call(self.q, self.k, self.v, causal=True, layout="zigzag")

    def error(self) -> float:
        """NRMSE of the ring against one device, of the rows here."""
        o = self.around(self.ring.ring_attention).float()
        expected = self.attention(*self.whole, causal=True, step="v25_clean_loop")
        expected = self.ring.shard(expected, layout="zigzag").float()
        return float((o - expected).norm() / expected.norm())


class TorchContext:
    """torch's own context parallelism, as far as this PyTorch has it. Grouped heads are repeated before."""

    def __init__(self, here: Rank, problem: Problem):
        torch = here.torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self.mesh = init_device_mesh(here.device.type, (here.world,), mesh_dim_names=("cp",))
        set_rotate_method("allgather")
        repeat = problem.heads[0] // problem.heads[1]
        self.local = [problem.whole[0].clone()]
        self.local += [x.repeat_interleave(repeat, 1) for x in problem.whole[1:]]
        # On entry the tensors become each process's shards, and stay so.
        with context_parallel(
            self.mesh, buffers=self.local, buffer_seq_dims=[2] * 3, no_restore_buffers={*self.local}
        ):
            pass
        self.torch, self.context = torch, context_parallel
        self.any_rows = torch.zeros(2 * here.world, device=here.device)  # on every entry something is sharded
        self.kernel = lambda: sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION])

    @contextlib.contextmanager
    def around(self) -> Any:
        with self.context(self.mesh, buffers=[self.any_rows], buffer_seq_dims=[0]), self.kernel():
            yield

    def __call__(self) -> Any:
        return self.torch.nn.functional.scaled_dot_product_attention(*self.local, is_causal=True)


def overlap(here: Rank, call: Call) -> dict[str, Any] | None:
    """Of a traced call: how long transfers last, how much of that time a step runs, and when each runs. Transfers
    are the copies from GPU to GPU or, where there are none, NCCL's kernels."""
    torch = here.torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        call()
    here.all_of(0)
    here.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as traced:
        torch.cuda._sleep(8_000_000)  # the host gets ahead
        for _ in range(3):
            call()
        here.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        traced.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    events = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy")]
    carrier = "PtoP" if any("PtoP" in event["name"] for event in events) else "nccl"
    lanes: dict[str, list[list[float]]] = {"transfer": [], "step": [], "other": []}
    for event in events:
        name = event["name"]
        lane = "transfer" if carrier in name else "step" if "attention_kernel" in name else "other"
        if "spin_kernel" not in name:
            lanes[lane].append([event["ts"], event["ts"] + event["dur"]])
    if not lanes["transfer"] or not lanes["step"]:
        return None
    covered = sum(
        max(0.0, min(end, step_end) - max(begin, step_begin))
        for begin, end in lanes["transfer"]
        for step_begin, step_end in lanes["step"]
    )
    total = sum(end - begin for begin, end in lanes["transfer"])
    # The middle call of three, from its first kernel on.
    middle = {lane: sorted(spans)[len(spans) // 3 : len(spans) // 3 * 2] for lane, spans in lanes.items()}
    start = min(begin for spans in middle.values() for begin, _ in spans)
    timeline = {
        lane: [[round(begin - start, 1), round(end - start, 1)] for begin, end in spans]
        for lane, spans in middle.items()
    }
    return {"transfer_ms": total / 3e3, "overlapped": covered / total, "timeline_us": timeline}


def measure(here: Rank, problem: Problem, rounds: int) -> dict[str, Any]:
    error = max(here.all_of(problem.error()))
    if not error <= GATE:
        raise ValueError(f"the ring's NRMSE against one device is {error:.3g}, above {GATE:g}")
    calls, failed = problem.calls(), {}
    try:
        calls["torch"] = TorchContext(here, problem)
    except Exception as why:
        failed["torch"] = one_line(why)
    for name in list(calls):
        why = ""
        try:
            here.sample_ms(calls[name], 1)
        except Exception as found:
            if name != "torch":  # ours
                raise
            why = one_line(found)
        if max(here.all_of(bool(why))):  # all ranks leave it out, or none
            failed[name] = why or "failed on another rank"
            del calls[name]
    samples: dict[str, list[list[float]]] = {name: [] for name in calls}
    counts: dict[str, int] = {}
    for round_ in range(rounds + 1):  # round 0 warms up, and says how many calls make a sample
        # The same order on all ranks, and by chance: what a GPU has just computed sets its clock.
        for name in random.Random(round_).sample(list(calls), len(calls)):
            found = here.all_of(here.sample_ms(calls[name], counts.get(name, 3 if here.on_gpu else 1)))
            if round_ > 0:
                samples[name].append(found)
            else:
                counts[name] = max(1, min(20, int(SAMPLE_MS / max(found)))) if here.on_gpu else 1
    own = here.all_of(problem.own_flops)
    entries: dict[str, dict[str, Any]] = {}
    for name, found in samples.items():
        # Of the shares, the time in which the sum of all GPUs' rates computes everything.
        ms = [max(ranks) for ranks in found]
        if name == "share":
            ms = [sum(own) / sum(flops / t for flops, t in zip(own, ranks)) for ranks in found]
        entries[name] = {"name": name, "calls": counts[name], **percentiles(ms, "ms")}
    transfer = entries.pop("transfer")
    del transfer["name"]
    tokens, total = problem.tokens, here.world * problem.tokens
    for name, entry in entries.items():
        seen = here.world * pairs(tokens, tokens, True) if name == "local" else pairs(total, total, True)
        tflops = problem.flops(seen) / entry["median_ms"] / 1e9
        of_share = "" if name == "local" else f"{entries['share']['median_ms'] / entry['median_ms']:.4f}"
        here.say(f"  {name:16} {entry['median_ms']:9.4f} ms {tflops:8.1f} TFLOPS {of_share}")
    speed = problem.block_bytes / transfer["median_ms"] / 1e6
    here.say(f"  a block of {problem.block_bytes / 1e6:.1f} MB: {speed:.1f} GB/s each way")
    traced = None
    try:
        traced = overlap(here, calls["ring"]) if here.on_gpu else None
    except Exception as why:
        failed["trace"] = one_line(why)
    if traced is not None:
        here.say(f"  {traced['overlapped']:.3f} of {traced['transfer_ms']:.3f} ms of transfers beside a step")
    for name, why in failed.items():
        here.say(f"  {name:16} failed: {why}")
    return {
        "tokens": tokens,
        "num_heads_q": problem.heads[0],
        "num_heads_kv": problem.heads[1],
        "head_dim": problem.head_dim,
        "nrmse": error,
        "transfer": transfer,
        "contenders": list(entries.values()),
        "failed": failed,
        "trace": traced,
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768], help="of each process")
    parser.add_argument("--heads", nargs="+", default=["16,16", "16,4"], help="query and KV heads, e.g. 16,4")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9, help="samples of each contender, at least 7")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    harness.add_option(parser)
    parser.add_argument("--json", type=writing.writable, help="write a record to this file")
    options = parser.parse_args(arguments)
    if "WORLD_SIZE" not in os.environ:
        parser.error("start this with torchrun")
    if options.rounds < 7:
        parser.error("--rounds: at least 7")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    import torch

    torch.set_grad_enabled(False)
    here = Rank(torch, options)
    flashsteps = here.lab.python_module("flashsteps.distributed")
    record = here.lab.record("ring", METHOD | {"rounds": options.rounds})
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if here.on_gpu else None
    record["ring"] = {"processes": here.world, "torch": torch.__version__, "nccl": nccl, "problems": []}
    problems = [(heads, tokens) for heads in options.heads for tokens in options.tokens]
    for heads, tokens in problems:
        heads_q, heads_kv = map(int, heads.split(","))
        problem = Problem(here, flashsteps, tokens, (heads_q, heads_kv), options.head_dim)
        here.say(f"{here.world} x {tokens} tokens, heads {heads_q} and {heads_kv}, D={options.head_dim}")
        record["ring"]["problems"].append(measure(here, problem, options.rounds))
        record["complete"] = len(record["ring"]["problems"]) == len(problems)
        if here.rank == 0:
            writing.save(options.json, record)
    # Not all_of(): a thread of gloo that frees Python's tensors while the interpreter ends would abort.
    torch.distributed.barrier()
    here.synchronize()
    torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
