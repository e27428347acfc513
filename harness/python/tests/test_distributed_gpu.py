"""flashsteps.distributed on two GPUs and NCCL. What the masks and layouts are: test_distributed_cpu.py."""

from __future__ import annotations

import os
import signal
import time
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from flashsteps import distributed  # noqa: E402
from flashsteps.distributed import all_gather_attention, ring_attention, shard, synchronize  # noqa: E402
from test_distributed_cpu import LAYOUTS, Case, check, compute, join  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="these tests need two GPUs")

CASES = [
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


def start(rank, folder):
    torch.cuda.set_device(rank)
    join(rank, 2, folder, "nccl")


def work(rank, folder):
    start(rank, folder)
    results = []
    for case in CASES:
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


def test_against_one_gpu(tmp_path):
    mp.spawn(work, args=(str(tmp_path),), nprocs=2)
    for case, (rings, gathered) in zip(CASES, torch.load(tmp_path / "results.pt")):
        check(case, (rings[0], gathered), "cuda")
        assert all(torch.equal(x, y) for again in rings[1:] for x, y in zip(rings[0], again)), case


def work_on_streams_and_in_graphs(rank, folder):
    start(rank, folder)
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


def test_on_streams_and_in_graphs(tmp_path):
    mp.spawn(work_on_streams_and_in_graphs, args=(str(tmp_path),), nprocs=2)


def work_with_a_failure(rank, folder, failure):
    start(rank, folder)
    q = torch.zeros(1, 2, 256, 64, dtype=torch.float16, device="cuda")
    ring_attention(q, q, q)
    synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    if rank == 1:
        if failure == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)
    with pytest.raises(distributed.RankError, match="^rank 1 of the group has ended, or"):
        ring_attention(q, q, q)
        synchronize(timeout=4.0)
    # And nothing that is left of NCCL keeps this process from ending.


@pytest.mark.parametrize("failure", ["killed", "asleep"])
def test_a_process_that_fails_is_named(failure, tmp_path):
    context = mp.spawn(work_with_a_failure, args=(str(tmp_path), failure), nprocs=2, join=False)
    try:
        context.processes[0].join(60)
        assert context.processes[0].exitcode == 0
    finally:
        for process in context.processes:
            process.kill()
            process.join()
