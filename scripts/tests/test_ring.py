"""ring.py rehearsed: processes on the CPU and the emulator in place of GPUs. Needs PyTorch and the Python module."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import SCRIPTS

from records import results

pytest.importorskip("torch", reason="this test needs PyTorch (CPU is enough)")
pytest.importorskip("flashsteps")


def test_a_rehearsal_writes_a_record(tmp_path):
    path = tmp_path / "ring.json"
    words = f"--device cpu --tokens 16 --heads 1,1 --head-dim 64 --rounds 7 --limit 300 --json {path}".split()
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*start, SCRIPTS / "measure" / "ring.py", *words], check=True, timeout=400)
    data = results.load(path)
    assert data["complete"] and data["provenance"]["backend"] == "emulator"
    (problem,) = data["ring"]["problems"]
    names = {entry["name"] for entry in problem["contenders"]} | problem["failed"].keys()
    assert names == {"share", "ring", "all_gather", "local", "torch"}
