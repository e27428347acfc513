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
qkv = np.random.default_rng(1).standard_normal((3, 1, 2, 150, 64)).astype(np.float16)
o, lse = flashsteps.attention(*qkv, step={step!r}, return_lse=True, device={device!r})
print(lse.tobytes().hex(), end="")
"""


def device_of(on_gpu: bool) -> dict[str, object]:
    if not on_gpu:
        return {"device": "emulator", "num_sms": 0}
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if flashsteps.missing_gpu() is not None or not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    gpu = torch.cuda.get_device_properties(0)
    return {"device": gpu.name, "num_sms": gpu.multi_processor_count}


def tuning(configuration: str, on_gpu: bool, **changes: object) -> str:
    """A file with one entry, for the call above."""
    sizes = {"seqlen_q": 256, "seqlen_kv": 256, "heads": 2, "heads_per_kv_head": 1, "page_size": 0}
    entry = {**device_of(on_gpu), "step": STEP, "dtype": "fp16", "head_dim": 64, "causal": False, **sizes,
             "configurations": CONFIGURATIONS, "configuration": configuration}
    build = flashsteps.build_info()
    file = {"schema": "flashsteps-tuning/1", "commit": build["commit"], "dirty": build["dirty"], "entries": [entry]}
    return json.dumps({**file, **changes})


def call(path: Path | str | None, on_gpu: bool, **environment: str) -> tuple[bytes, str]:
    """The log-sum-exp of the call, and the warnings of the process that concern the file."""
    command = [sys.executable, "-c", CALL.format(step=STEP, device="cuda" if on_gpu else None)]
    named = {} if path is None else {"FLASHSTEPS_TUNING": str(path)}
    kept = {name: value for name, value in os.environ.items() if name != "FLASHSTEPS_TUNING"}
    done = subprocess.run(command, env={**kept, **named, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "tuning file" in line]
    return bytes.fromhex(done.stdout), "\n".join(said)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_call_gets_what_was_kept(tmp_path: Path, on_gpu: bool) -> None:
    path = tmp_path / "tuning.json"
    found = {}
    for configuration in CONFIGURATIONS:
        path.write_text(tuning(configuration, on_gpu))
        found[configuration], said = call(path, on_gpu)
        assert said == ""
    assert len({*found.values()}) == len(CONFIGURATIONS)
    own, said = call("", on_gpu)
    assert said == "" and own in found.values()

    # In the user's cache, without the variable.
    other = next(name for name, lse in found.items() if lse != own)
    (tmp_path / "flashsteps").mkdir()
    (tmp_path / "flashsteps" / "tuning.json").write_text(tuning(other, on_gpu))
    assert call(None, on_gpu, XDG_CACHE_HOME=str(tmp_path)) == (found[other], "")
    assert call("", on_gpu, XDG_CACHE_HOME=str(tmp_path)) == (own, "")


def test_a_file_that_is_no_good_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    own, _ = call("", False)
    for text, why in [
        ("{", "it is not JSON"),
        (tuning(CONFIGURATIONS[1], False, schema="somebody-elses/1"), "its schema is not flashsteps-tuning/1"),
        (tuning(CONFIGURATIONS[1], False, commit="0" * 40), "it is of commit 000000000000"),
    ]:
        path.write_text(text)
        lse, said = call(path, False)
        assert lse == own and said.count("\n") == 0
        assert f"RuntimeWarning: the tuning file {path} is ignored: {why}" in said
    lse, said = call(tmp_path / "none", False)
    assert lse == own and f"RuntimeWarning: there is no tuning file {tmp_path / 'none'}" in said
    assert call(None, False, XDG_CACHE_HOME=str(tmp_path)) == (own, "")  # nobody has tuned anything
