"""compare_peers.py where it needs no GPU: what is asked of it, who takes part, and what it says. Timing and judging are
the lab's (harness/tests/test_lab.py, which also runs a whole comparison where there is a GPU); how peers are called:
test_peers.py."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
from conftest import make_peers_record, make_problem

from measure import compare_peers, peers, torch_lab
from measure import lab as harness
from records import problems, rates
from records.terminal import Progress

SMALL = ("--shape", "4,16,1024,64")


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The words that the lab is asked about problems with."""
    words: list[tuple[str, ...]] = []

    def problems(library: Any, *said: str) -> list[dict[str, Any]]:
        words.append(said)
        if "--shape=1" in said:
            raise harness.LabError("--shape 1: expected B,H,S,D")
        return [make_problem(dtype="fp32" if "--dtype=fp32" in said else "fp16")]

    monkeypatch.setattr(harness, "problems", problems)
    return words


def test_the_geometric_mean_is_over_problems_where_both_ran():
    problems = [make_problem(), make_problem(causal=False), make_problem(seqlen_q=512)]
    runs = make_peers_record(problems=problems)["runs"]
    for at, (step, peer) in enumerate([(8.0, 2.0), (1.0, 4.0), (3.0, None)]):
        runs[at]["steps"] = runs[at]["steps"][:1]
        runs[at]["steps"][0]["timing"]["tflops"] = step
        for entry in runs[at]["peers"]:
            entry["timing"] = {**entry["timing"], "tflops": peer} if peer else None
            entry["status"] = "pass" if peer else "skip"
    assert rates.geometric_mean([4.0, 0.25]) == pytest.approx(1)
    assert rates.geometric_mean([2.0, 8.0]) == pytest.approx(4)
    assert rates.geometric_mean([]) is None
    rows = [line.split() for line in compare_peers.format_grid(runs).splitlines()]
    assert rows[-2][-4:] == ["1.00", "1.00", "1.00", "1.00"] and rows[-1][-4:] == ["2", "2", "2", "2"]
    assert rows[3][-4:] == ["skip", "skip", "-", "-"]


def test_a_flash_attention_3_below_its_best_is_no_peer():
    def doubt(percent: float | None, name: str = "flash_attn_3", capability: str = "9.0", **changes: Any) -> str:
        heads = {"num_heads_q": 16, "num_heads_kv": 16}
        sizes = {"batch": 8, "seqlen_q": 2048, "seqlen_kv": 2048, "head_dim": 128}
        problem = make_problem(**{**heads, **sizes, "causal": False, **changes})
        ceilings = {"matmul": {"median_ms": 1.0, "work": 1e12, "unit": "FLOP"}} if percent else {}  # 1000 TFLOPS
        median_ms = problems.flops(problem) / (10 * (percent or 1) * 1e9)
        entry = {"peer": name, "timing": {"median_ms": median_ms}}
        run = {"problem": problem, "ceilings": ceilings}
        return compare_peers.below_its_best(entry, run, {"compute_capability": capability})

    assert doubt(64).startswith("64 % of the matrix product's rate: was it built with all flags?")
    assert doubt(70) == doubt(None) == doubt(64, "sdpa_flash") == doubt(64, capability="8.0") == ""
    # Elsewhere its share says nothing: few tiles, a mask, short rows.
    assert doubt(64, batch=1) == doubt(64, causal=True) == doubt(64, batch=32, seqlen_q=512) == ""
    assert doubt(64, head_dim=64) == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([*SMALL, "--rounds", "6"], "--rounds is 6, it must be 7 to 10000"),
        ([*SMALL, "--rounds", "many"], "--rounds is many"),
        ([*SMALL, "--dtype", "fp32"], "--dtype fp32: peers know fp16 and bf16 only"),
        ([*SMALL, "--nonsense"], "--nonsense"),
        ([*SMALL, "--peers", "fa4"], "--peers: unknown peer 'fa4'; there are sdpa_flash"),
        (["--shape", "1"], "--shape 1: expected B,H,S,D"),
        ([*SMALL, "--json", "/nonexistent/file.json"], "No such file or directory"),
        ([*SMALL, "--json", ""], "--json: the name is empty"),
    ],
)
def test_wrong_use_is_one_line(capsys, words, expected):
    assert compare_peers.main(list(words)) == 2
    said = capsys.readouterr()
    assert expected in said.err and said.err.count("\n") == 1 and said.err.startswith("compare_peers.py: ")
    assert said.out == ""


def test_the_words_for_problems_are_the_programs(asked):
    words = ["--shape=-1,2,9,64", "--grid", "big", "--seed", "3", "--causal", "--dtype", "bf16", "--shape", "1"]
    assert compare_peers.main(words) == 2
    assert asked == [("--causal", "--grid=big", "--seed=3", "--shape=-1,2,9,64", "--shape=1", "--dtype=bf16")]


def test_steps_and_peers_by_name():
    known = ["v01_scalar", "v02_smem_tiles"]
    assert compare_peers.find_step("v02", known) == "v02_smem_tiles"
    with pytest.raises(compare_peers.UsageError, match="unknown step 'v99'; there are v01_scalar, v02_smem_tiles"):
        compare_peers.find_step("v99", known)
    missing = {name: "not built" for name in rates.PEERS if not name.startswith("sdpa_")}
    assert compare_peers.chosen_peers(None, missing) == [name for name in rates.PEERS if name.startswith("sdpa_")]
    assert compare_peers.chosen_peers(["sdpa_math", "sdpa_flash"], missing) == ["sdpa_flash", "sdpa_math"]
    with pytest.raises(compare_peers.UsageError, match="flash_attn_3 cannot be used: not built"):
        compare_peers.chosen_peers(["flash_attn_3"], missing)


# What is missing.


def test_no_torch_no_gpu_no_module(monkeypatch, capsys):
    def said() -> str:
        assert compare_peers.main(list(SMALL)) == 1
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and line.startswith("compare_peers.py: ")
        return line

    class Torch:
        __version__ = "2.0"

        class version:
            cuda = None

        class cuda:
            is_available = staticmethod(lambda: False)

    monkeypatch.setitem(sys.modules, "torch", None)
    assert "PyTorch is missing: " in said()
    monkeypatch.setitem(sys.modules, "torch", Torch)
    assert "there is no NVIDIA GPU to compare on: PyTorch 2.0 is built without CUDA" in said()
    Torch.version.cuda = "13.0"
    assert "PyTorch 2.0 sees none: is the driver loaded?" in said()
    Torch.cuda.is_available = staticmethod(lambda: True)
    monkeypatch.setitem(sys.modules, "flashsteps", None)
    assert "the Python module flashsteps is missing: " in said()


def test_an_installed_peer_that_does_not_import(monkeypatch, tmp_path):
    class Torch:
        device = staticmethod(lambda name: None)
        cuda = type("Cuda", (), {"set_stream": lambda stream: None, "ExternalStream": lambda number: None})
        set_grad_enabled = staticmethod(lambda on: None)
        bfloat16 = float16 = None

    class Package:
        __version__ = "2.8"
        flash_attn_func = None

    lab = torch_lab.TorchLab(Torch, None, type("Lab", (), {"stream": 0}))
    monkeypatch.setitem(sys.modules, "flash_attn", Package)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", object())  # without the function
    monkeypatch.setitem(sys.modules, "flash_attn.cute", None)
    monkeypatch.setitem(sys.modules, "flashinfer", Package)  # without its class
    assert list(lab.missing_peers()) == ["flash_attn_3", "flash_attn_4", "flashinfer"]
    assert list(lab.packages) == ["flash_attn"] and lab.builds == {}

    # FlashAttention-3 is taken when it says how it was built.
    Package.__file__ = str(tmp_path / "flash_attn_interface.py")
    monkeypatch.setitem(sys.modules, "flash_attn_interface", Package)
    path = tmp_path / "flash_attn_3" / "BUILD.json"
    path.parent.mkdir()
    good = {"commit": "0" * 40, "compiler": "nvcc 13.0.88", "flags": "--use_fast_math"}
    bad = [{**good, "commit": "main"}, {**good, "flags": " "}, {**good, "more": "x"}, {"commit": "0" * 40}]
    for text in ("", "{}", "[]", *map(json.dumps, bad)):
        path.write_text(text, encoding="utf-8")
        assert "flash_attn_3" in lab.missing_peers() and lab.builds == {} and "flash_attn_3" not in lab.packages
    path.unlink()
    assert f"{path} is missing" in lab.missing_peers()["flash_attn_3"]
    path.write_text(json.dumps(good), encoding="utf-8")
    Package.BatchDecodeWithPagedKVCacheWrapper = None
    assert list(lab.missing_peers()) == ["flash_attn_4"] and lab.builds == {"flash_attn_3": good}


def test_cudnns_version():
    assert [torch_lab.cudnn_version(n) for n in (91900, 90100, 8907, None)] == [
        "9.19.0",
        "9.1.0",
        "8.9.7",
        None,
    ]


def test_the_reason_of_a_refusal_is_in_the_warnings():
    said = [
        "Memory efficient kernel not used because: (Triggered internally at a.cpp:1.)",
        "Memory Efficient attention has been runtime disabled. (Triggered internally at a.cpp:2.)",
        "Flash attention kernel not used because: (Triggered internally at a.cpp:3.)",
        "Flash attention does not support fp8. (Triggered internally at a.cpp:4.)",
    ]
    error = RuntimeError("No available kernel. Aborting execution.\nat x")
    assert peers.sdpa_refusal(error, said) == "Flash attention does not support fp8."
    assert peers.sdpa_refusal(error, said[:3]) == "No available kernel. Aborting execution."


# Progress.


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_for_terminals():
    stream, file = Terminal(), io.StringIO()
    for each in (stream, file):
        progress = Progress(8, each)
        progress.show("two", units=2)
        progress.show("many", units=100)
        progress.clear()
    assert file.getvalue() == ""
    shown = stream.getvalue().split("\r\033[K")
    assert shown[1] == "[######..................]  25 % two"
    assert shown[2] == f"[{'#' * 24}] 100 % many" and shown[3] == ""


def test_progress_does_not_wrap(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    stream = Terminal()
    Progress(2, stream).show("x" * 100)
    assert len(stream.getvalue().removeprefix("\r\033[K")) == 49


def test_a_message_names_no_folder_of_the_machine():
    said = compare_peers.outcome(compare_peers.Skip("at /home/me/fa-3/flash_api.cpp:397, no FP16, 1/2 and a/b stay"))
    assert said["message"] == "at flash_api.cpp:397, no FP16, 1/2 and a/b stay"
