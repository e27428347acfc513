"""What `flashsteps tune` has kept, as the module takes it. On the emulator and, where there is one, on a GPU; in
processes of their own, since a process reads the file once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import flashsteps
import pytest

STEP = "v14_longest_first"  # whose configurations round differently: they take 64 or 32 keys at a time
CONFIGURATIONS = flashsteps.describe(STEP).configurations
CALL = """
import flashsteps, numpy as np
q, k, v = np.random.default_rng(1).standard_normal((3, 1, 2, 150, 64)).astype(np.float16)
o, lse = flashsteps.attention(q, k, v, step={step!r}, return_lse=True, device={device!r})
print(lse.tobytes().hex(), end="")
"""


def device_of(device: str | None) -> dict[str, object]:
    if device is None:
        return {"device": "emulator", "num_sms": 0}
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if flashsteps.missing_gpu() is not None or not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    gpu = torch.cuda.get_device_properties(0)
    return {"device": gpu.name, "num_sms": gpu.multi_processor_count}


def tuning(configuration: str, device: str | None, **changes: object) -> str:
    """A file with one entry, for the call above."""
    sizes = {"seqlen_q": 256, "seqlen_kv": 256, "heads": 2, "heads_per_kv_head": 1, "page_size": 0}
    entry = {**device_of(device), "step": STEP, "dtype": "fp16", "head_dim": 64, "causal": False, **sizes,
             "configurations": CONFIGURATIONS, "configuration": configuration}
    build = flashsteps.build_info()
    file = {"schema": "flashsteps-tuning/1", "commit": build["commit"], "dirty": build["dirty"], "entries": [entry]}
    return json.dumps({**file, **changes})


def call(path: Path | str, device: str | None, **environment: str) -> tuple[bytes, str]:
    """The log-sum-exp of the call, and what the process says on standard error."""
    command = [sys.executable, "-c", CALL.format(step=STEP, device=device)]
    named = {} if path is None else {"FLASHSTEPS_TUNING": str(path)}
    kept = {name: value for name, value in os.environ.items() if name != "FLASHSTEPS_TUNING"}
    done = subprocess.run(command, env={**kept, **named, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return bytes.fromhex(done.stdout), done.stderr


@pytest.mark.parametrize("device", [None, "cuda"])
def test_a_call_gets_what_was_kept(tmp_path: Path, device: str | None) -> None:
    path = tmp_path / "tuning.json"
    found = {}
    for configuration in CONFIGURATIONS:
        path.write_text(tuning(configuration, device))
        found[configuration], said = call(path, device)
        assert said == ""
    assert len({*found.values()}) == len(CONFIGURATIONS)
    own, said = call("", device)
    assert said == "" and own in found.values()

    # In the user's cache, without the variable.
    other = next(name for name, lse in found.items() if lse != own)
    (tmp_path / "flashsteps").mkdir()
    (tmp_path / "flashsteps" / "tuning.json").write_text(tuning(other, device))
    assert call(None, device, XDG_CACHE_HOME=str(tmp_path)) == (found[other], "")
    assert call("", device, XDG_CACHE_HOME=str(tmp_path)) == (own, "")


def test_a_file_that_is_no_good_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    own, _ = call("", None)
    for text, why in [
        ("{", "it is not JSON"),
        (tuning(CONFIGURATIONS[1], None, schema="somebody-elses/1"), "its schema is not flashsteps-tuning/1"),
        (tuning(CONFIGURATIONS[1], None, commit="0" * 40), "it is of commit 000000000000"),
    ]:
        path.write_text(text)
        lse, said = call(path, None)
        assert lse == own and said.count("RuntimeWarning") == 1
        assert f"RuntimeWarning: the tuning file {path} is ignored: {why}" in said
    lse, said = call(tmp_path / "none", None)
    assert lse == own and f"RuntimeWarning: there is no tuning file {tmp_path / 'none'}" in said
    assert call(None, None, XDG_CACHE_HOME=str(tmp_path)) == (own, "")  # nobody has tuned anything
