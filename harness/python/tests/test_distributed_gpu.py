"""flashsteps.distributed on two GPUs and NCCL. What the masks and layouts are: test_distributed_cpu.py."""

from __future__ import annotations

import os
import signal
import time

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from flashsteps import distributed  # noqa: E402
from flashsteps.distributed import all_gather_attention, ring_attention, synchronize  # noqa: E402
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
