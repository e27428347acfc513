"""--tensors and --save: a user's own q, k and v through the program, and what it makes of files that are none.

The files are those of the `safetensors` package, the truth is attention in numpy, float64. FLASHSTEPS_BUILD as in
test_program.py."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import stat
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from test_program import (
    BUILD,
    FIXTURES,
    FLASHSTEPS,
    PATIENCE,
    check_file,
    problem_label,
    results,
    run,
    wait_until,
    workers_of,
)

EMULATOR = ["--backend", "emulator"]
GATES = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 5e-3}
TYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}


class Bf16(np.ndarray):
    """The bits, which numpy has no type for."""


def to_type(values: np.ndarray, dtype: str) -> np.ndarray:
    single = np.ascontiguousarray(values, np.float32)
    if dtype != "bf16":
        return single.astype(np.float32 if dtype == "fp32" else np.float16)
    bits = single.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(Bf16)


def to_double(values: np.ndarray) -> np.ndarray:
    if isinstance(values, Bf16):
        values = (values.view(np.ndarray).astype(np.uint32) << 16).view(np.float32)
    return np.asarray(values).astype(np.float64)


def write_tensors(path: Path, tensors: dict[str, np.ndarray], **metadata: str) -> Path:
    specs = {
        name: safetensors.TensorSpec(
            dtype="bfloat16" if isinstance(tensor, Bf16) else tensor.dtype.name,
            shape=tensor.shape,
            data_ptr=tensor.ctypes.data,
            data_len=tensor.nbytes,
        )
        for name, tensor in tensors.items()
    }
    safetensors.serialize_file(specs, str(path), metadata=metadata or None)
    return path


def read_tensors(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    kinds = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
    tensors = {}
    for name, tensor in safetensors.deserialize(path.read_bytes()):
        values = np.frombuffer(tensor["data"], kinds[tensor["dtype"]]).reshape(tensor["shape"])
        tensors[name] = (tensor["dtype"], values.view(Bf16) if tensor["dtype"] == "BF16" else values)
    return tensors


def make_tensors(
    dtype: str = "fp16",
    heads: tuple[int, int] = (2, 2),
    rows: tuple[int, int] = (40, 70),
    head_dim: int = 64,
    lengths: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """[batch, heads, seqlen, head_dim]; what lies beyond a length is NaN."""
    rng = np.random.default_rng(7)
    batch = 1 if lengths is None else len(lengths)
    q = rng.standard_normal((batch, heads[0], rows[0], head_dim))
    k, v = rng.standard_normal((2, batch, heads[1], rows[1], head_dim))
    for b, length in enumerate([] if lengths is None else lengths):
        k[b, :, length:] = v[b, :, length:] = np.nan
    tensors = {name: to_type(values, dtype) for name, values in (("q", q), ("k", k), ("v", v))}
    return tensors if lengths is None else tensors | {"kv_lengths": lengths}


def attention(tensors: dict[str, np.ndarray], causal: bool) -> tuple[np.ndarray, np.ndarray]:
    q, k, v = (to_double(tensors[name]) for name in "qkv")
    o, lse = np.zeros_like(q), np.full(q.shape[:3], -np.inf)
    lengths = tensors.get("kv_lengths", [k.shape[2]] * len(q))
    for b, h, i in np.ndindex(*q.shape[:3]):
        seen = int(lengths[b])
        if causal:  # aligned bottom-right
            seen = min(max(i + 1 + seen - q.shape[2], 0), seen)
        if seen == 0:
            continue
        kv_head = h // (q.shape[1] // k.shape[1])
        scores = k[b, kv_head, :seen] @ q[b, h, i] / np.sqrt(q.shape[3])
        weights = np.exp(scores - scores.max())
        o[b, h, i] = weights @ v[b, kv_head, :seen] / weights.sum()
        lse[b, h, i] = scores.max() + np.log(weights.sum())
    return o, lse


def fnv1a64(data: bytes) -> str:
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return f"{state:016x}"


def swap_axes(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: np.ascontiguousarray(tensor.swapaxes(1, 2)).view(type(tensor)) if tensor.ndim == 4 else tensor
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("step", ["v02_smem_tiles", "v09_direct_rescale", "v10_tma_warpspec"])
@pytest.mark.parametrize(
    ("options", "causal", "bshd"),
    [
        ({}, False, False),
        ({"dtype": "bf16", "heads": (4, 2), "head_dim": 128}, True, False),
        ({"dtype": "fp16", "heads": (3, 1), "rows": (70, 40)}, True, True),
        ({"dtype": "fp32", "lengths": np.array([70, 0, 33], np.int64)}, False, False),
        ({"dtype": "bf16", "heads": (2, 1), "lengths": np.array([1, 65], np.int32)}, False, True),
        ({"rows": (90, 70), "lengths": np.array([0, 70, 20], np.int32)}, True, False),
    ],
)
def test_what_is_saved_is_attention(
    tmp_path: Path, step: str, options: dict[str, Any], causal: bool, bshd: bool
) -> None:
    dtype = options.get("dtype", "fp16")
    if dtype == "fp32" and step != "v02_smem_tiles":
        step = "v01_scalar"  # the others have no fp32
    tensors = make_tensors(**options)
    path = write_tensors(tmp_path / "in.safetensors", swap_axes(tensors) if bshd else tensors)
    out, log = tmp_path / "out.safetensors", tmp_path / "r.json"
    mask = "--causal" if causal else "--full"
    layout = ["--layout", "bshd"] if bshd else []
    # The race detector is not what is tested here.
    done = run(
        FLASHSTEPS, "check", step, *EMULATOR, "--tensors", str(path), mask, *layout, "--mode", "early",
        "--no-race-detector", "--save", str(out), "--json", str(log),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"saved: {out}" in done.stdout
    saved = read_tensors(out)
    assert sorted(saved) == ["lse", "o"]
    assert saved["o"][0] == TYPES[dtype] and saved["lse"][0] == "F32"
    o, lse = to_double(saved["o"][1]), saved["lse"][1]
    if bshd:
        o = o.swapaxes(1, 2)
    expected_o, expected_lse = attention(tensors, causal)
    assert o.shape == expected_o.shape and lse.shape == expected_lse.shape
    assert np.linalg.norm(o - expected_o) <= GATES[dtype] * np.linalg.norm(expected_o)
    empty = np.isneginf(expected_lse)
    assert np.array_equal(np.isneginf(lse), empty)
    assert np.all(o[empty] == 0)
    assert np.abs(lse[~empty] - expected_lse[~empty]).max() < 1e-4
    with safetensors.safe_open(out, framework="np") as file:
        said = file.metadata()
    assert said["step"] == step and said["causal"] == json.dumps(causal)

    check_file(log)
    problem = json.loads(log.read_text())["runs"][0]["problem"]
    names = [name for name in ("q", "k", "v", "kv_lengths") if name in tensors]
    written = swap_axes(tensors) if bshd else tensors
    digest = fnv1a64(b"".join(written[name].tobytes() for name in names))
    assert problem["inputs"] == "file"
    assert problem["tensors"] == {"file": "in.safetensors", "fnv1a64": digest}
    assert problem.get("lengths") == (tensors["kv_lengths"].tolist() if "kv_lengths" in tensors else None)
    assert said["tensors_fnv1a64"] == digest and said["problem"] == problem_label(problem)


def test_the_results_can_be_checked_but_not_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tensors(tmp_path / "in.safetensors", make_tensors())
    log = tmp_path / "r.json"
    done = run(FLASHSTEPS, "run", "v01_scalar", *EMULATOR, "--tensors", str(path), "--json", str(log))
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(tmp_path) not in log.read_text(), "a path of this machine's"
    assert results.main(["check", str(log)]) == 0
    assert results.main(["check", "--recorded", str(log)]) == 1
    assert "nobody else has the file" in capsys.readouterr().err


def test_every_command_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    write_tensors(folder / "my tensors", make_tensors() | {"other": np.zeros((3, 0), np.int8)}, made="by a test")
    link = folder / "link to them"
    link.symlink_to("my tensors")
    commands = [
        [FLASHSTEPS, "run", "v02_smem_tiles"],
        [FLASHSTEPS, "run", "v02_smem_tiles"],
        [FLASHSTEPS, "check", "v02_smem_tiles", "v02_smem_tiles", "--in-process"],
        [BUILD / "steps" / "v02_smem_tiles", "run"],
    ]
    outputs = []
    for program, *arguments in commands:
        out = folder / f"{len(outputs)}.safetensors"
        done = subprocess.run(
            [program, *arguments, *EMULATOR, "--tensors", link.name, "--save", out.name],
            capture_output=True, text=True, cwd=folder, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "inputs=file:link to them" in done.stdout
        outputs.append(out.read_bytes())
    assert len(set(outputs)) == 1


def test_a_generated_problem_is_saved_in_the_order_of_its_axes(tmp_path: Path) -> None:
    # The same inputs in every layout; the step stores the same bits, so gaps and guard bands must be gone.
    saved = {}
    for layout in ("bhsd", "odd", "qkv"):
        out = tmp_path / layout
        shape = ["--shape", "2,4,2,30,50,64", "--kv-lengths", "zeros", "--layout", layout]
        assert run(FLASHSTEPS, "run", "v01_scalar", *EMULATOR, *shape, "--save", str(out)).returncode == 0
        saved[layout] = {name: tensor for name, (_, tensor) in read_tensors(out).items()}
    assert saved["bhsd"]["o"].shape == (2, 4, 30, 64)
    assert np.isneginf(saved["bhsd"]["lse"][0]).all() and np.isfinite(saved["bhsd"]["lse"][1]).all()
    assert np.array_equal(saved["odd"]["o"], saved["bhsd"]["o"])
    assert np.array_equal(saved["qkv"]["o"], saved["bhsd"]["o"].swapaxes(1, 2))
    for layout in ("odd", "qkv"):
        assert np.array_equal(saved[layout]["lse"], saved["bhsd"]["lse"])


def test_other_commands_and_both_masks(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "in.safetensors", make_tensors())
    log = tmp_path / "r.json"
    arguments = [*EMULATOR, "--tensors", str(path), "--json", str(log)]
    assert run(FLASHSTEPS, "count", "v01_scalar", *arguments, "--causal", "--full").returncode == 0
    check_file(log)
    labels = [problem_label(entry["problem"]) for entry in json.loads(log.read_text())["runs"]]
    sizes, inputs = "B=1 Hq=2 Hkv=2 Sq=40 Skv=70 D=64 fp16", "inputs=file:in.safetensors"
    assert labels == [f"{sizes} full {inputs}", f"{sizes} causal {inputs}"]
    assert run(FLASHSTEPS, "trace", "v01_scalar", *arguments).returncode == 0
    assert json.loads(log.read_text())["otherData"]["problem"]["inputs"] == "file"
    assert str(tmp_path) not in log.read_text()


def test_fp32_is_for_the_steps_that_have_it(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "in.safetensors", make_tensors("fp32"))
    arguments = ["--tensors", str(path), "--mode", "early", "--no-race-detector"]
    done = run(FLASHSTEPS, "check", *EMULATOR, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  v01_scalar" in done.stdout and "SKIP  v03_wmma" in done.stdout
    named = run(FLASHSTEPS, "check", "v03_wmma", *EMULATOR, *arguments)
    assert named.returncode == 2 and "not fp32" in named.stderr


def whole_file() -> bytes:
    return safetensors.numpy.save(make_tensors())


def header_of(data: bytes) -> bytes:
    return data[8 : 8 + struct.unpack("<Q", data[:8])[0]]


def with_header(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data[8 + len(header_of(data)) :]


def refused(path: Path, folder: Path) -> str:
    before = sorted(folder.iterdir())
    outputs = ["--json", str(folder / "r.json"), "--save", str(folder / "out.safetensors")]
    done = run(FLASHSTEPS, "run", "v01_scalar", *EMULATOR, "--tensors", str(path), *outputs)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1
    assert sorted(folder.iterdir()) == before, "something was written"
    assert done.stderr.startswith("flashsteps: --tensors "), done.stderr
    return done.stderr


def test_files_that_are_none(tmp_path: Path) -> None:
    path, good = tmp_path / "bad.safetensors", whole_file()
    header = header_of(good)
    for content, says in (
        (b"", "has 0 bytes: too short"),
        (good[:-1], "is cut off"),
        (good + b"\0", "goes on after its last tensor"),
        (good[:50], "cut off, or not a safetensors file"),
        (b"PK\x03\x04" + bytes(1000), "not a safetensors file"),
        (with_header(header.replace(b'"F16"', b'"F32"', 1), good), "its dtype and shape say"),
        (with_header(header.replace(b'"q"', b'"k"', 1), good), "has a name or a key twice"),
        (with_header(header.replace(b'"v"', b'"w"', 1), good), "has no tensor 'v'"),
        (with_header(b'{"q":' + b"[" * 8_000_000, good), "nested more deeply"),
        (with_header(b'{"__metadata__":{"a":"' + b"x" * 8_000_000, good), "not JSON"),
        (with_header(b'{"__metadata__":{"a":"' + b"x" * 30_000_000, good), "has a header of 30000022 bytes, the limit is"),
        (struct.pack("<Q", 1 << 63) + good[8:], "not a safetensors file"),
        (with_header(header.replace(b'"q"', b'"\\n\xc3"', 1), good), "not JSON in UTF-8"),
    ):
        path.write_bytes(content)
        assert says in refused(path, tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("folder", "fifo", "/dev/zero"):
        assert "is not a regular file" in refused(tmp_path / name, tmp_path)
    assert "No such file" in refused(tmp_path / "absent", tmp_path)


def test_tensors_that_no_step_can_be_judged_by(tmp_path: Path) -> None:
    path = tmp_path / "in.safetensors"
    lengths = np.array([10, 70], np.int32)
    bad = make_tensors(lengths=lengths)
    bad["v"][1, 0, 69, 3] = np.inf
    wide = {name: np.zeros((1, 2, 8, 96), np.float16) for name in "qkv"}
    flat = {name: np.zeros((2, 8, 64), np.float16) for name in "qkv"}
    for tensors, says in (
        (bad, "v has 1 value(s) that are NaN or Inf in rows below their batch's length, the first in batch 1, head 0, row 69, column 3"),
        (make_tensors() | {"kv_lengths": np.array([71])}, "kv_lengths[0] is 71, it must be 0 to 70"),
        (make_tensors() | {"kv_lengths": lengths}, "kv_lengths must have the shape [1], one for each batch"),
        (make_tensors(heads=(8, 3)), "k has 3 heads, q has 8: not a multiple"),
        (wide, "head_dim is 96"),
        (flat, "q has 3 dimensions"),
    ):
        write_tensors(path, tensors)
        assert f"--tensors {path}: {says}" in refused(path, tmp_path)


def test_a_file_too_large_for_this_machine_is_not_read(tmp_path: Path) -> None:
    # Three tensors of a tebibyte each: reading them would take an hour. The file system stores no zeros.
    shape, size = [16, 64, 1 << 22, 128], 1 << 40
    entries = {
        name: {"dtype": "F16", "shape": shape, "data_offsets": [i * size, (i + 1) * size]}
        for i, name in enumerate("qkv")
    }
    header = json.dumps(entries).encode()
    path = tmp_path / "in.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + 3 * size)
    assert "of host memory, of which" in refused(path, tmp_path)


def test_what_the_package_refuses_is_refused(tmp_path: Path) -> None:
    """Random changes of a header: no crash, and no file is taken that the format's own package refuses."""
    rng = random.Random(3)
    good = whole_file()
    header = header_of(good)
    path = tmp_path / "in.safetensors"
    taken = 0
    for _ in range(150):
        changed = bytearray(header)
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(len(changed))
            kind = rng.randrange(3)
            if kind == 0:
                changed[at] = rng.choice(b'0123456789{}[]",:-. qkvF\xff')
            elif kind == 1:
                del changed[at]
            else:
                changed[at:at] = changed[rng.randrange(len(changed)) :][: rng.randrange(1, 20)]
        content = with_header(bytes(changed), good)
        path.write_bytes(content)
        # Of a file that is taken, this one says what else is missing, without running anything.
        done = run(FLASHSTEPS, "trace", "v01_scalar", *EMULATOR, "--tensors", str(path))
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        if "needs --json" in done.stderr:
            taken += 1
            safetensors.deserialize(content)  # or raises
    assert 0 < taken < 100, "nothing to tell apart"


def fixture_arguments(step: str, folder: Path) -> list[str]:
    out = folder / "out.safetensors"
    return ["run", step, *EMULATOR, "--tensors", str(folder / "in.safetensors"), "--save", str(out)]


@pytest.mark.parametrize(
    ("step", "status"), [("fixture_wrong", 1), ("fixture_crash", 3), ("fixture_abort", 3), ("fixture_hang", 3)]
)
def test_a_step_that_does_not_pass_saves_nothing(tmp_path: Path, step: str, status: int) -> None:
    write_tensors(tmp_path / "in.safetensors", make_tensors(heads=(1, 1)))  # one CTA: a hang keeps one core busy
    out = tmp_path / "out.safetensors"
    for before in (None, b"of an earlier run"):
        if before:
            out.write_bytes(before)
        done = run(FIXTURES, *fixture_arguments(step, tmp_path), "--timeout", "1")
        assert done.returncode == status, done.stdout + done.stderr
        assert f"not saved: {step} did not pass" in done.stdout
        assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "in.safetensors", *([out] if before else [])])
        if before:
            assert out.read_bytes() == before


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    try:
        os.close(os.open(tmp_path, os.O_WRONLY | os.O_TMPFILE))
    except OSError:
        pytest.skip("this file system has no files without a name")
    write_tensors(tmp_path / "in.safetensors", make_tensors())
    process = subprocess.Popen(
        [str(FIXTURES), *fixture_arguments("fixture_hang", tmp_path), "--timeout", "600"], stdout=subprocess.DEVNULL
    )
    # The nameless file is open: the worker that hangs is about to start, or has.
    wait_until(lambda: any(str(tmp_path) in link for link in open_files(process.pid)))
    process.send_signal(how)
    assert process.wait() == -how
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


def open_files(pid: int) -> list[str]:
    links = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(fd))
        except FileNotFoundError:
            pass  # closed meanwhile
    return links


def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    write_tensors(tmp_path / "in.safetensors", make_tensors())
    limit = (5000, 5000)  # bytes that a file may have; `o` has twice as many

    def run_limited(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(program), *arguments], capture_output=True, text=True, timeout=PATIENCE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        )  # fmt: skip

    out = tmp_path / "out.safetensors"
    for program in (FLASHSTEPS, BUILD / "steps" / "v01_scalar"):
        arguments = fixture_arguments("v01_scalar", tmp_path)
        if program != FLASHSTEPS:
            arguments.remove("v01_scalar")
        done = run_limited(program, *arguments)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "PASS  v01_scalar" in done.stdout
        assert done.stderr == f"flashsteps: cannot write {out}: File too large\n"
    log = tmp_path / "r.json"
    shapes = [text for rows in range(1, 40) for text in ("--shape", f"1,1,{rows},64")]
    done = run_limited(FLASHSTEPS, "run", "v01_scalar", *EMULATOR, *shapes, "--json", str(log))
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr == f"flashsteps: cannot write {log}: File too large\n"
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


@pytest.mark.parametrize("option", ["--save", "--json"])
def test_a_name_with_control_characters_is_refused(tmp_path: Path, option: str) -> None:
    shape = ["--shape", "1,1,8,64"]
    (tmp_path / "link").symlink_to("two\nlines")
    (tmp_path / "two\nlines").write_text("before")
    for name in ("a\nsaved: b", "link"):
        done = run(FLASHSTEPS, "run", "v01_scalar", *EMULATOR, *shape, option, str(tmp_path / name))
        assert done.returncode == 2 and done.stdout == ""
        shown = str(tmp_path / name).replace("\n", "?")
        assert done.stderr == f"flashsteps: {option} {shown}: has control characters in its name\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "two\nlines"]


def test_what_is_private_stays_so_and_memory_is_a_place_to_save(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        out, log = Path(folder) / "out.safetensors", tmp_path / "r.json"
        out.touch(0o600)
        log.touch(0o640)
        outputs = ["--save", str(out), "--json", str(log)]
        done = run(FLASHSTEPS, "run", "v01_scalar", *EMULATOR, "--shape", "1,1,8,64", *outputs)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(read_tensors(out)) == ["lse", "o"]
        assert stat.S_IMODE(out.stat().st_mode) == 0o600 and stat.S_IMODE(log.stat().st_mode) == 0o640


NOTE_ON_GATES = "the gates were set for inputs like N(0, 1)"


@pytest.mark.parametrize("step", ["v01_scalar", "v02_smem_tiles"])
def test_values_that_the_type_cannot_hold_well_fail_without_a_hint_at_a_bug(tmp_path: Path, step: str) -> None:
    tensors = make_tensors()
    tensors["v"] = (tensors["v"].astype(np.float32) * 1e-5).astype(np.float16)
    exact = attention(tensors, causal=False)[0]
    error = np.linalg.norm(exact.astype(np.float16) - exact)
    assert error > GATES["fp16"] * np.linalg.norm(exact), "rounded once, the exact result passes"
    write_tensors(tmp_path / "in.safetensors", tensors)
    done = run(FLASHSTEPS, *fixture_arguments(step, tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "is above the gate" in done.stdout and "hint" not in done.stdout
    assert done.stdout.count(NOTE_ON_GATES) == 1 and "lose digits in fp16 itself" in done.stdout
    assert f"not saved: {step} did not pass" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


def cpu_seconds(pid: str) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("change", ["values", "cut off", "gone"])
def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path, change: str) -> None:
    path, log = write_tensors(tmp_path / "in.safetensors", make_tensors()), tmp_path / "r.json"
    # While the first step hangs; the second one's worker reads the file again.
    process = subprocess.Popen(
        [str(FIXTURES), "run", "fixture_hang", "fixture_wrong", *EMULATOR, "--tensors", str(path), "--json", str(log)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_until(log.exists)  # written before the first worker is started that runs a step
    wait_until(lambda: workers_of(process))
    (worker,) = workers_of(process)
    wait_until(lambda: cpu_seconds(worker) > 0.3)  # it hangs, so it has read the file
    if change == "values":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    elif change == "cut off":
        os.truncate(path, 1000)
    else:
        path.unlink()
    os.kill(int(worker), signal.SIGKILL)
    said = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 3, said
    says = {"values": "has changed since", "cut off": "is cut off", "gone": "No such file"}[change]
    assert "the tensors' file in.safetensors" in said and says in said
    check_file(log)
    statuses = [step["status"] for step in json.loads(log.read_text())["runs"][0]["steps"]]
    assert statuses == ["crash", "error"]
