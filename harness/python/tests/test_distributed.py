"""flashsteps.distributed: between processes on the CPU, where gloo carries the keys and the emulator computes; and
between two GPUs, where there are."""

from __future__ import annotations

import itertools
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import flashsteps
import numpy as np
import pytest
import reference

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from flashsteps import distributed  # noqa: E402
from flashsteps.distributed import all_gather_attention, ring_attention, shard, synchronize, unshard  # noqa: E402

MERGES = "v25_clean_loop"  # what the ring takes, and what it is compared with


class Case(NamedTuple):
    causal: bool
    layout: str
    lengths: tuple[int, ...] | None = None
    seqlen_q: int = 48
    seqlen_kv: int = 48
    heads_kv: int = 1
    head_dim: int = 64
    dtype: torch.dtype = torch.bfloat16

    @property
    def batch(self):
        return len(self.lengths or (0,))

    def tensors(self):
        generator = torch.Generator().manual_seed(1)
        shapes = [(self.batch, 2, self.seqlen_q, self.head_dim)]
        shapes += 2 * [(self.batch, self.heads_kv, self.seqlen_kv, self.head_dim)]
        return [torch.randn(shape, generator=generator).to(self.dtype) for shape in shapes]

    def options(self):
        lengths = None if self.lengths is None else torch.tensor(self.lengths, dtype=torch.int32)
        return {"causal": self.causal, "kv_lengths": lengths, "return_lse": True}


LAYOUTS = ("contiguous", "zigzag")
CASES = [
    case
    for layout in LAYOUTS
    for case in (
        Case(False, layout),
        Case(True, layout, heads_kv=2, dtype=torch.float16),
        Case(False, layout, lengths=(37, 0), seqlen_kv=61, dtype=torch.float16),
        Case(True, layout, lengths=(53, 20), seqlen_q=43, seqlen_kv=61),
        Case(True, layout, seqlen_q=37, seqlen_kv=73, head_dim=128),  # a prefix, ragged
        Case(True, layout, seqlen_q=50, seqlen_kv=21, dtype=torch.float16),  # queries that see no key
        Case(False, layout, seqlen_q=3, seqlen_kv=2),  # processes without rows
    )
]


# In the processes.


def join(rank, world, folder, backend="gloo", seconds=600.0):
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=seconds))


def compute(attention, case, device="cpu"):
    q, k, v = (x.to(device) for x in case.tensors())
    local = [shard(x, layout=case.layout) for x in (q, k, v)]
    lengths = {"seqlen_q": case.seqlen_q, "seqlen_kv": case.seqlen_kv}
    o, lse = attention(*local, layout=case.layout, **case.options(), **lengths)
    assert o.shape == local[0].shape and o.dtype == q.dtype and lse.shape == o.shape[:3]
    return [unshard(x, layout=case.layout, length=case.seqlen_q).cpu() for x in (o, lse)]


def empty_results():
    for batch, seqlen_q, heads in ((0, 8, 1), (1, 0, 1), (1, 8, 0)):
        q, k = (torch.zeros(batch, n, rows, 64, dtype=torch.float16) for n, rows in ((heads, seqlen_q), (1, 8)))
        for attention in (ring_attention, all_gather_attention):
            for layout in LAYOUTS:
                o, lse = attention(q, k, k, layout=layout, causal=True, return_lse=True)
                assert o.shape == q.shape and o.dtype == q.dtype and lse.shape == q.shape[:3]


def refusals(rank, world):
    q = torch.zeros(1, 1, 8, 64, dtype=torch.float16)
    with pytest.raises(TypeError, match="^q: is float8_e4m3fn, which only flashsteps.attention takes"):
        ring_attention(*[q.to(torch.float8_e4m3fn)] * 3)
    with pytest.raises(ValueError, match="^layout: is 'round'"):
        ring_attention(q, q, q, layout="round")
    with pytest.raises(ValueError, match="^q: has 8 rows, and of 9 rows this process has .*seqlen_q"):
        ring_attention(q, q, q, seqlen_q=9)
    with pytest.raises(ValueError, match="^k: has 8 rows"):
        ring_attention(q, q, q, seqlen_kv=1)
    with pytest.raises(ValueError, match=r"^kv_lengths: is \[99\], expected 0 to"):
        ring_attention(q, q, q, kv_lengths=torch.tensor([99], dtype=torch.int32))
    with pytest.raises(ValueError, match="^kv_lengths: is torch.int64"):
        ring_attention(q, q, q, kv_lengths=torch.tensor([9]))
    with pytest.raises(ValueError, match="^q: requires a gradient"):
        ring_attention(q.clone().requires_grad_(), q, q)


class FilePlaces:
    """As distributed._Places, in files that all processes map: for processes on the CPU."""

    turn = 0  # goes on from call to call

    def __init__(self, folder, world, num_bytes, copies_late):
        self.num_bytes, self.copies_late, self.copies = num_bytes, copies_late, []
        self.files = [
            [torch.from_file(f"{folder}/{rank}_{turn}", True, num_bytes, dtype=torch.uint8) for turn in range(2)]
            for rank in range(world)
        ]

    def of(self, rank, like, num_rows):
        shape = (2, *like.shape[:2], num_rows, like.size(3))
        size = like.element_size() * int(np.prod(shape))
        return tuple(self.files[rank][FilePlaces.turn][:size].view(like.dtype).view(shape))

    def begin(self, group):
        pass

    end = begin

    def begin_copies(self, block, rank):
        FilePlaces.turn ^= 1
        self.copies = list(zip(self.of(rank, block[0], block[0].size(2)), block))
        if not self.copies_late:
            self.copy()

    def copy(self):
        for place, x in self.copies:
            place.copy_(x)
        self.copies = []

    def end_copies(self, group):
        self.copy()
        dist.barrier(group)


def compute_with_copies(case, folder, late):
    """The ring as it is between GPUs, where each process writes to the memory of the others."""

    def places_of(group, device, num_bytes):
        return FilePlaces(folder, dist.get_world_size(), num_bytes, late) if num_bytes > 0 else None

    with mock.patch.object(distributed, "_places_of", places_of):
        return compute(ring_attention, case)


def places_or_none(rank):
    """Where one process cannot open the memory of the others, all of them send."""
    device = SimpleNamespace(type="cuda")

    def open_places(group, device, num_bytes):
        if rank == broken:
            raise RuntimeError("no access")
        return SimpleNamespace(num_bytes=num_bytes)

    with mock.patch.object(distributed, "_Places", open_places):
        for broken, hosts in ((None, "one"), (1, "one"), (None, f"host {rank}")):
            distributed._places.clear()
            with mock.patch.object(distributed.socket, "gethostname", lambda: hosts):
                found = [distributed._places_of(dist.group.WORLD, device, num_bytes) for num_bytes in (64, 32, 128)]
            if broken is None and hosts == "one":
                assert [places.num_bytes for places in found] == [64, 64, 128]
            else:
                assert found == [None] * 3
    distributed._places.clear()


def work(rank, world, folder):
    join(rank, world, folder)
    places_or_none(rank)
    results = []
    for number, case in enumerate(CASES):
        ring = compute(ring_attention, case)
        # Some processes copy as early as they may, the others as late; in the next case the other way round.
        again = compute_with_copies(case, folder, late=(rank + number) % 2 == 1)
        results.append((ring, again, compute(all_gather_attention, case)))
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")
    refusals(rank, world)
    empty_results()
    dist.barrier()
    dist.destroy_process_group()


def work_with_a_failure(rank, world, folder, failure, backend="gloo"):
    on_gpu = backend == "nccl"
    join(rank, world, folder, backend, 600.0 if on_gpu else 3.0)  # the group's time limit
    q = torch.zeros(1, 1, 64, 64, dtype=torch.float16, device="cuda" if on_gpu else "cpu")
    ring_attention(q, q, q)
    dist.barrier()
    if on_gpu:
        torch.cuda.synchronize()
    if rank == 1:
        if failure == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)
    start = time.monotonic()
    with pytest.raises(distributed.RankError, match="^rank 1 of the group has ended, or") as raised:
        for _ in range(2):
            ring_attention(q, q, q)
        if on_gpu:
            synchronize(timeout=4.0)
    assert raised.value.ranks == (1,)
    assert time.monotonic() - start < 60
    # And nothing that is left of NCCL keeps this process from ending.


# Here.


def nrmse(o, expected):
    return np.linalg.norm(o.double().numpy() - expected) / np.linalg.norm(expected)


def check(case, found, device="cpu"):
    """Against float64, and beside one device."""
    q, k, v = case.tensors()
    options = {name: x.to(device) if torch.is_tensor(x) else x for name, x in case.options().items()}
    one, _ = flashsteps.attention(q.to(device), k.to(device), v.to(device), step=MERGES, **options)
    lengths = None if case.lengths is None else np.array(case.lengths)
    arrays = [x.double().numpy() for x in (q, k, v)]
    expected, expected_lse = reference.attention(*arrays, causal=case.causal, kv_lengths=lengths)
    for o, lse in found:
        dtype = str(case.dtype).removeprefix("torch.")
        reference.check(o.double().numpy(), lse.numpy(), dtype, expected, expected_lse)
        assert nrmse(o, expected) <= 1.1 * nrmse(one.cpu(), expected), case


@pytest.mark.parametrize("world", [2, 3, 4])
def test_against_one_device(world, tmp_path):
    mp.spawn(work, args=(world, str(tmp_path)), nprocs=world)
    for case, (ring, again, gathered) in zip(CASES, torch.load(tmp_path / "results.pt")):
        check(case, (ring, gathered))
        assert all(map(torch.equal, ring, again)), case


two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.parametrize("failure", ["killed", "asleep"])
@pytest.mark.parametrize(("world", "backend"), [(3, "gloo"), pytest.param(2, "nccl", marks=two_gpus)])
def test_a_process_that_fails_is_named(world, backend, failure, tmp_path):
    arguments = (world, str(tmp_path), failure, backend)
    context = mp.spawn(work_with_a_failure, args=arguments, nprocs=world, join=False)
    try:
        for process in context.processes[:1] + context.processes[2:]:
            process.join(90)
            assert process.exitcode == 0
    finally:
        for process in context.processes:
            process.kill()
            process.join()


def visible(total_q, total_kv, offset):
    return np.arange(total_kv)[None, :] <= np.arange(total_q)[:, None] + offset


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_are_what_the_mask_says(layout):
    """Every pair of a query and a key that the mask lets through is in one part, no other is in any."""
    for world, total_q, total_kv in itertools.product((1, 2, 3), (1, 5, 12, 17), (1, 6, 12, 20)):
        for offset in (total_kv, total_kv - total_q, 0, -3):
            mask = visible(total_q, total_kv, offset)
            for rank, source in itertools.product(range(world), repeat=2):
                queries = distributed._spans(total_q, layout, rank, world)
                keys = distributed._spans(total_kv, layout, source, world)
                rows, cols = (np.concatenate([np.arange(*span) for span in x]) for x in (queries, keys))
                counts = np.zeros((len(rows), len(cols)), int)
                for part in distributed._parts(queries, keys, offset):
                    num_q, num_k = part.end_q - part.first_q, part.end_k
                    assert num_q > 0 and num_k > 0
                    block = visible(num_q, num_k, num_k - num_q) if part.causal else np.ones((num_q, num_k), bool)
                    counts[part.first_q : part.end_q, :num_k] += block
                assert (counts == mask[np.ix_(rows, cols)]).all()


def test_zigzag_takes_one_part_a_block():
    spans = [distributed._spans(64, "zigzag", rank, 4) for rank in range(4)]
    part = distributed.Part
    assert distributed._parts(spans[1], spans[1], 0) == [part(0, 16, 16, True)]
    assert distributed._parts(spans[1], spans[0], 0) == [part(0, 16, 8, False)]
    assert distributed._parts(spans[1], spans[2], 0) == [part(8, 16, 16, False)]


def test_the_table_of_work_on_the_page():
    """docs/several_gpus.md: pairs that each of four processes computes in each hop, in chunks by chunks."""
    page = (Path(__file__).parents[3] / "docs" / "several_gpus.md").read_text(encoding="utf-8")
    rows, chunk = 8 * 1000, 1000
    for rank in range(4):
        cells = [str(rank)]
        for layout in LAYOUTS:
            spans = [distributed._spans(rows, layout, each, 4) for each in range(4)]
            work = []
            for hop in range(4):
                parts = distributed._parts(spans[rank], spans[(rank - hop) % 4], 0)
                areas = [(p.end_q - p.first_q) * p.end_k * (0.5 if p.causal else 1) for p in parts]
                work.append(round(sum(areas) / chunk**2))
            cells += [", ".join(str(each or "–") for each in work), str(sum(work))]
        assert f"| {' | '.join(cells)} |" in page


# On two GPUs

GPU_CASES = [
    case
    for layout in LAYOUTS
    for case in (
        Case(False, layout, seqlen_q=1024, seqlen_kv=1024),
        Case(True, layout, seqlen_q=2000, seqlen_kv=2000, heads_kv=2, head_dim=128),
        Case(True, layout, seqlen_q=700, seqlen_kv=1501, dtype=torch.float16),
        Case(False, layout, lengths=(777, 0), seqlen_kv=1000),
        Case(True, layout, lengths=(777, 300), seqlen_q=600, seqlen_kv=1000, head_dim=128),
    )
]


def work_on_gpus(rank, folder):
    join(rank, 2, folder, "nccl")
    results = []
    for case in GPU_CASES:
        rings = [compute(ring_attention, case, "cuda") for _ in range(3)]
        assert any(places is not None for places in distributed._places.values())
        with mock.patch.object(distributed, "_places_of", lambda *_: None):  # as between hosts: NCCL sends
            rings.append(compute(ring_attention, case, "cuda"))
        results.append((rings, compute(all_gather_attention, case, "cuda")))
        synchronize()
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")
    dist.barrier()
    dist.destroy_process_group()


@two_gpus
def test_against_one_gpu(tmp_path):
    mp.spawn(work_on_gpus, args=(str(tmp_path),), nprocs=2)
    for case, (rings, gathered) in zip(GPU_CASES, torch.load(tmp_path / "results.pt")):
        check(case, (rings[0], gathered), "cuda")
        assert all(torch.equal(x, y) for again in rings[1:] for x, y in zip(rings[0], again)), case


def work_on_streams_and_in_graphs(rank, folder):
    join(rank, 2, folder, "nccl")
    case = Case(True, "zigzag", seqlen_q=4096, seqlen_kv=4096, heads_kv=2, head_dim=128)
    q, k, v = (shard(x.cuda(), layout=case.layout) for x in case.tensors())

    def call(q=q, k=k, v=v):
        return ring_attention(q, k, v, causal=True, layout=case.layout)

    expected = call()
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    results = []
    for turn in range(6):  # calls on two streams follow one another, though nothing makes the streams wait
        with torch.cuda.stream(other if turn % 2 else torch.cuda.current_stream()):
            results.append(call(k=k if turn % 3 else -k))
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for turn, result in enumerate(results) if turn % 3)
    assert torch.equal(results[0], results[3]) and not torch.equal(results[0], expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = call()
    for turn in range(12):  # replays and other calls, each with other keys
        k.neg_()
        graph.replay()
        between = [call() for _ in range(turn % 3)]
        graph.replay()
        assert all(torch.equal(replayed, result) for result in [*between, call()])
    synchronize()
    del graph  # NCCL's communicator waits for graphs that use it
    dist.barrier()
    dist.destroy_process_group()
    assert not distributed._places  # the memory has gone with the group


@two_gpus
def test_on_streams_and_in_graphs(tmp_path):
    mp.spawn(work_on_streams_and_in_graphs, args=(str(tmp_path),), nprocs=2)
