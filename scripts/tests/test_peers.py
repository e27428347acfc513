"""compare_peers.py and peers.py where they need no GPU: what is asked, and how other people's kernels are called, with
PyTorch on the CPU and packages that are written down here. On a GPU they are judged and timed:
harness/tests/test_lab.py."""

from __future__ import annotations

import functools
import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import BUILD, make_peers_record, make_problem, make_timing

from measure import compare_peers, peers
from measure import lab as harness
from measure.peers import Call, Skip, Tensors
from records import rates, writing
from records.problems import problem_label


class Times:
    """A contender whose samples are known."""

    def __init__(self, ms: list[float]):
        self.left, self.ms = iter(ms), []

    def sample(self) -> None:
        self.ms.append(next(self.left))


@pytest.fixture
def lab() -> Any:
    """What peers.py wants of a TorchLab. `times` are those of the calls that are timed, in their order."""
    lab = SimpleNamespace(packages={}, times=[], cold=[], synchronize=lambda: None)
    lab.torch = SimpleNamespace(cuda=SimpleNamespace(OutOfMemoryError=MemoryError))
    lab.attempt = functools.partial(peers.TorchLab.attempt, lab)

    def timer(call: Call, cold_l2: bool) -> Times:
        call.run()
        lab.cold.append(cold_l2)
        ms = lab.times.pop(0)
        return Times(ms if isinstance(ms, list) else [ms] * peers.WAY_SAMPLES)

    lab.timer = timer
    return lab


# Of several ways the fastest.


def way(what: str) -> Call:
    return Call(lambda: what, lambda: what)


def refuse(why: str) -> Any:
    raise ValueError(why)


def test_the_fastest_way_is_that_of_the_medians(lab):
    lab.times = [[3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0], [9.0, 2.0, 2.0, 2.0, 2.0, 9.0, 2.0]]
    call = peers.fastest(lab, {"often fast": lambda: way("one"), "faster": lambda: way("other")}, cold_l2=True)
    assert call.run() == "other" and call.note == "faster (fastest of 2)" and lab.cold == [True, True]


def test_a_way_that_cannot_be_timed_is_left_out_and_said(lab):
    lab.times = [2.0, 1.0, [1.0]]  # the last one fails in a round, when it was warmed up long since
    ways = {"one": lambda: way("one"), "old": lambda: refuse("too old"), "other": lambda: way("other")}
    call = peers.fastest(lab, ways | {"late": lambda: way("late")}, cold_l2=False)
    assert call.run() == "other" and call.note == "other (fastest of 2); old: too old; late: StopIteration"


def test_of_ways_that_are_all_refused_the_reasons_are_said(lab):
    with pytest.raises(Skip, match="one: too old; other: too new"):
        peers.fastest(lab, {"one": lambda: refuse("too old"), "other": lambda: refuse("too new")}, cold_l2=True)


def test_ways_that_are_refused_alike_have_one_reason(lab):
    with pytest.raises(Skip, match="^no fp16$"):
        peers.fastest(lab, dict.fromkeys(("one", "other"), lambda: refuse("no fp16")), cold_l2=True)


# What is asked, and what is said.


LAB = ("--lab", str(BUILD / harness.LIBRARY))
SMALL = ("--shape", "4,16,1024,64")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([*SMALL, "--dtype", "fp32"], "--dtype fp32: peers know fp16, bf16 and e4m3 only"),
        (["--shape", "1"], "--shape"),
        ([*SMALL, "--dtype", "bf16", "v27:fp16"], "v27:fp16: a step has another type only beside problems in e4m3"),
        ([*SMALL, "--dtype", "e4m3", "v27:fp32"], "v27:fp32: the type of a step is fp16 or bf16"),
        (["--grid", "big"], "--grid"),
    ],
)
def test_wrong_use_is_one_line(capsys, words, expected):
    assert compare_peers.main([*words, *LAB]) == 2
    said = capsys.readouterr()
    assert expected in said.err and said.err.count("\n") == 1 and said.err.startswith("compare_peers.py: ")
    assert said.out == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rounds", "6"], "at least 7"),
        (["--peers", "fa4"], "choose from 'sdpa_flash'"),
        (["--peers", "cudnn", "--backward"], "--peers: cudnn: with --backward, there are sdpa_flash, sdpa_cudnn, flash_attn_3,"),
        (["--peers", "flash_attn_4_deterministic"], "--peers: flash_attn_4_deterministic: without --backward, there are sdpa_"),
        (["--json", "/nonexistent/file.json"], "/nonexistent/file.json: No such file or directory"),
        (["--json", ""], "is not a regular file"),
    ],
)
def test_options_of_its_own(capsys, words, expected):
    with pytest.raises(SystemExit):
        compare_peers.main([*SMALL, *words, *LAB])
    assert expected in capsys.readouterr().err


def test_the_words_for_problems_are_the_programs():
    words = ["v07", *SMALL, "--shape", "2,2,64,128", "--causal", "--seed", "3", "--dtype", "bf16"]
    options = compare_peers.parse([*words, *LAB])
    found = [problem_label(problem) for problem in compare_peers.problems_of(options)]
    assert found == [
        "B=4 Hq=16 Hkv=16 Sq=1024 Skv=1024 D=64 bf16 causal seed=3",
        "B=2 Hq=2 Hkv=2 Sq=64 Skv=64 D=128 bf16 causal seed=3",
    ]
    options = compare_peers.parse([*SMALL, "--dtype", "e4m3", "--no-lse", "--fast", *LAB])
    (found,) = compare_peers.problems_of(options)
    assert problem_label(found) == "B=4 Hq=16 Hkv=16 Sq=1024 Skv=1024 D=64 e4m3 full lse=none fast=yes"
    options = compare_peers.parse(["--grid", "paper", "--full", "--dtype", "bf16", "--backward", *LAB])
    assert {problem["backward"] for problem in compare_peers.problems_of(options)} == {"yes"}


def test_the_geometric_mean_is_over_problems_where_both_ran(monkeypatch):
    monkeypatch.setattr(writing, "COLUMNS", 300)  # a problem has one line
    problems = [make_problem(), make_problem(causal=False), make_problem(seqlen_q=512)]
    runs = make_peers_record(problems=problems)["runs"]
    for at, (step, peer) in enumerate([(8.0, 2.0), (1.0, 4.0), (3.0, None)]):
        runs[at]["steps"] = runs[at]["steps"][:1]
        runs[at]["steps"][0]["timing"]["tflops"] = step
        for entry in runs[at]["peers"]:
            entry["timing"] = {**entry["timing"], "tflops": peer} if peer else None
            entry["status"] = "pass" if peer else "skip"
    rows = [line.split() for line in compare_peers.format_grid(runs).splitlines()]
    assert rows[-2][-4:] == ["1.00", "1.00", "1.00", "1.00"] and rows[-1][-4:] == ["2", "2", "2", "2"]
    assert rows[3][-4:] == ["skip", "skip", "-", "-"]


def test_an_installed_peer_that_does_not_import(monkeypatch):
    class Torch:
        device = staticmethod(lambda name: None)
        set_grad_enabled = staticmethod(lambda on: None)
        bfloat16 = float16 = float8_e4m3fn = None

    class Package:
        __version__ = "2.8"
        flash_attn_func = None

    lab = peers.TorchLab(Torch, None, SimpleNamespace(on_gpu=False))
    monkeypatch.setitem(sys.modules, "flash_attn", Package)
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", object())  # without the function
    monkeypatch.setitem(sys.modules, "flash_attn.cute", None)
    monkeypatch.setitem(sys.modules, "flashinfer", Package)  # without its class
    frontend = SimpleNamespace(backend_version_string=lambda: "9.28.1", __path__=[])
    monkeypatch.setitem(sys.modules, "cudnn", frontend)
    monkeypatch.setitem(sys.modules, "cudnn.sdpa", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "cudnn.sdpa.fwd", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "cudnn.sdpa.fwd.torch_op", SimpleNamespace(sdpa=None, __version__="1.32.0"))
    assert list(lab.missing_peers()) == ["flash_attn_3", "flash_attn_4", "flashinfer"]
    assert list(lab.packages) == ["flash_attn", "cudnn"]
    Torch.__version__, Torch.backends = "2.11.0", SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91900))
    named = {"cudnn": "9.19.0", "flash_attn": "2.8", "cudnn_frontend": "1.32.0 with cuDNN 9.28.1"}
    assert lab.versions() == {"torch": "2.11.0", **named}
    # Of backward passes, other modules.
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", SimpleNamespace(_flash_attn_bwd=None))
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    lab.packages.clear()
    assert list(lab.missing_peers(backward=True)) == ["flash_attn_3"] and list(lab.packages) == ["flash_attn_4"]
    assert lab.versions() == {"torch": "2.11.0", "cudnn": "9.19.0", "flash_attn_4": "unknown"}


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


def test_a_message_names_no_folder_of_the_machine():
    said = compare_peers.outcome(Skip("at /home/me/fa-3/flash_api.cpp:397, no FP16, 1/2 and a/b stay"))
    assert said["message"] == "at flash_api.cpp:397, no FP16, 1/2 and a/b stay"


# A session, in which everybody is another one.


class Fp8Lab:
    """Times everybody with the same samples; of a step it says on which type it ran."""

    device = {"name": "fake", "peak_tflops": {"e4m3": 2000.0, "bf16": 1000.0}}

    def __init__(self):
        self.timed = []

    def problem(self, problem: dict[str, Any]) -> Any:
        dtype = problem["dtype"]

        def timer(step: str, cold_l2: bool) -> Any:
            self.timed.append(f"{step} in {dtype}")
            return self.ceiling(step)

        case = SimpleNamespace(problem=problem, default=None, close=lambda: self.timed.append(f"{dtype} closed"))
        case.check = lambda step: {"status": "pass", "message": "", "validation": {"nrmse": 0.001, "runs_identical": True}}
        case.step_timer = timer
        return case

    def ceiling(self, *what: Any) -> Any:
        return SimpleNamespace(sample=lambda keep: None, samples=dict, note="")

    def order(self, contenders: int, round_: int) -> list[int]:
        return list(range(contenders))

    def records(self, request: dict[str, Any]) -> dict[str, Any]:
        timing = make_timing(request["problem"], 5.0)
        return {"ceilings": {}, "contenders": dict.fromkeys(request["contenders"], timing)}


def test_in_fp8_who_misses_a_gate_is_timed_and_a_step_may_have_another_type(monkeypatch, capsys):
    judged = {
        "flash_attn_3": {"nrmse": 0.24, "nonfinite": 0},
        "cudnn": {"nrmse": 0.98, "nonfinite": 0},  # is something else than attention
    }
    fail = {"status": "fail", "message": "o is too short"}
    runs_identical = {"runs_identical": True, "worst_row_nrmse": 0.3}
    torch = SimpleNamespace(
        tensors=lambda case: None,
        attempt=lambda work, refusals=(): work(),
        judge=lambda call, case, tensors: {**fail, "validation": judged[call.note] | runs_identical},
        timer=lambda call, cold_l2: Fp8Lab().ceiling(),
        release=lambda: None,
    )
    monkeypatch.setattr(compare_peers, "prepare", lambda lab, name, tensors, cold: Call(None, None, note=name))
    problem = make_problem(dtype="e4m3")
    options = SimpleNamespace(cold_l2=False, rounds=7, json=None)
    steps = ["v40_fp8", "v27_tile_shapes@few_keys:bf16"]
    session = compare_peers.Session(Fp8Lab(), torch, options, [problem], steps, list(judged), {"runs": []})
    session.compare(problem)
    (run,) = session.data["runs"]
    timed = {name: "timing" in entry for name, entry in rates.contenders_of(run).items()}
    assert timed == {**dict.fromkeys(steps, True), "flash_attn_3": True, "cudnn": False}
    assert session.lab.timed[:2] == ["v40_fp8 in e4m3", "v27_tile_shapes@few_keys in bf16"]
    assert session.lab.timed[2:] == ["e4m3 closed", "bf16 closed"] and not session.others
    assert "flash_attn_3: o is too short" in capsys.readouterr().out


def test_a_deterministic_backward_pass_whose_runs_differ_fails(monkeypatch, capsys):
    differs = {"flash_attn_4": True, "flash_attn_4_deterministic": False, "flash_attn_3_deterministic": True}

    def judge(call, case, tensors):
        found = {"nrmse": 1e-3, "worst_row_nrmse": 1e-3, "runs_identical": not differs[call.note]}
        return {"status": "pass", "message": "", "validation": found}

    torch = SimpleNamespace(
        tensors=lambda case: None,
        attempt=lambda work, refusals=(): work(),
        judge=judge,
        timer=lambda call, cold_l2: Fp8Lab().ceiling(),
        release=lambda: None,
    )
    monkeypatch.setattr(compare_peers, "prepare", lambda lab, name, tensors, cold: Call(None, None, note=name))
    problem = make_problem(dtype="bf16", backward="yes", seqlen_q=4100)  # four rows of dq see no key
    options = SimpleNamespace(cold_l2=False, rounds=7, json=None)
    session = compare_peers.Session(Fp8Lab(), torch, options, [problem], ["v50_five_formulas"], list(differs), {"runs": []})
    session.compare(problem)
    (run,) = session.data["runs"]
    timed = {peer["peer"]: "timing" in peer for peer in run["peers"]}
    assert timed == {"flash_attn_4": True, "flash_attn_4_deterministic": True, "flash_attn_3_deterministic": False}
    assert run["peers"][2]["message"] == "is called deterministic, and two runs differ"
    assert run["peers"][0]["note"] == "flash_attn_4; not compared: 4 row(s) of dq a head, which see no key"
    assert "flash_attn_4: two runs differ" in capsys.readouterr().out
    grid = compare_peers.format_grid([run])
    assert [f"x best{each} peer, geometric mean" in grid for each in ("", " non-deterministic", " deterministic")] == [True] * 3


@pytest.mark.parametrize("installed", [{"flash_attn_4"}, {"flash_attn_3", "flash_attn_4"}])
def test_a_backward_pass_that_is_not_installed_is_told(monkeypatch, capsys, installed):
    missing = {name: "No module" for name in peers.BACKWARD_PACKAGES if name not in installed}
    torch = SimpleNamespace(missing_peers=lambda backward: missing if backward else {})
    monkeypatch.setattr(compare_peers, "problems_of", lambda options: [])
    monkeypatch.setattr(compare_peers, "open_torch", lambda library: (SimpleNamespace(steps=["v50_five_formulas"]), torch))
    asked = []
    monkeypatch.setattr(compare_peers.Session, "run", lambda session: asked.append(session.peers) or 0)
    assert compare_peers.main(["v50", "--backward"]) == 0
    told = [line.split()[2] for line in capsys.readouterr().out.splitlines()]
    both = ["flash_attn_3", "flash_attn_3_deterministic"]
    assert told == ([] if "flash_attn_3" in installed else both)
    assert [*asked[0], *told] == sorted([*asked[0], *told], key=lambda name: (name in told, rates.PEERS.index(name)))
    assert {*asked[0], *told} == set(peers.BACKWARD)
    assert compare_peers.main(["v50", "--backward", "--peers", *both]) == (0 if "flash_attn_3" in installed else 2)


def test_peers_and_steps_in_another_type_round_nothing(monkeypatch):
    judged = []

    def judge(call, case, tensors):
        judged.append(case.problem)
        found = {"nrmse": 1e-3, "worst_row_nrmse": 1e-3, "runs_identical": True}
        return {"status": "pass", "message": "", "validation": found}

    torch = SimpleNamespace(
        tensors=lambda case: judged.append(case.problem),
        attempt=lambda work, refusals=(): work(),
        judge=judge,
        timer=lambda call, cold_l2: Fp8Lab().ceiling(),
        release=lambda: None,
    )
    monkeypatch.setattr(compare_peers, "prepare", lambda lab, name, tensors, cold: Call(None, None, note=name))
    problem, steps = make_problem(dtype="bf16", quantize="yes"), ["v43_quantize", "v27_tile_shapes:bf16"]
    options = SimpleNamespace(cold_l2=False, rounds=7, json=None)
    session = compare_peers.Session(Fp8Lab(), torch, options, [problem], steps, ["cudnn"], {"runs": []})
    checked = []
    make = session.lab.problem

    def made(problem):
        case = make(problem)
        check = case.check
        case.check = lambda step: checked.append((step, problem.get("quantize"))) or check(step)
        return case

    session.lab.problem = made
    session.compare(problem)
    assert checked == [("v43_quantize", "yes"), ("v27_tile_shapes", None)]
    assert judged == 2 * [make_problem(dtype="bf16")]
    assert session.data["runs"][0]["problem"] == problem and not session.others


# With PyTorch.


@pytest.fixture
def torch(lab) -> Any:
    torch = pytest.importorskip("torch", reason="these tests need PyTorch (CPU is enough)")
    lab.torch, lab.device = torch, torch.device("cpu")
    return torch


def problem_of(*shape: int, **more: Any) -> dict[str, Any]:
    keys = ("batch", "num_heads_q", "num_heads_kv", "seqlen_q", "seqlen_kv", "head_dim")
    return make_problem(**{"causal": False, "dtype": "bf16", **dict(zip(keys, shape)), **more})


PROBLEMS = [
    problem_of(2, 3, 3, 70, 90, 64),
    problem_of(1, 4, 4, 50, 50, 128, causal=True),
    problem_of(1, 4, 2, 50, 90, 128, causal=True),
    problem_of(1, 4, 1, 90, 50, 64, causal=True),
]
DECODE = problem_of(2, 4, 2, 1, 64, 64)


def tensors_of(torch: Any, p: dict[str, Any]) -> Tensors:
    generator = torch.Generator().manual_seed(1)
    shapes = [(p["num_heads_q"], p["seqlen_q"]), *2 * [(p["num_heads_kv"], p["seqlen_kv"])]]
    drawn = [torch.randn((p["batch"], *shape, p["head_dim"]), generator=generator) for shape in shapes]
    if p["dtype"] != "e4m3":
        return Tensors(p, *(x.to(torch.bfloat16) for x in drawn))
    heads = (p["batch"], p["num_heads_kv"])
    one_scale = p["layout"] == "qkv"
    scales = [torch.rand((1, 1) if one_scale else heads, generator=generator).add(1).div(50) for _ in drawn]
    scales = [scale.expand(heads) for scale in scales]
    codes = [x / of_heads(scale, x) for x, scale in zip(drawn, scales)]
    named = dict(zip(("q_descale", "k_descale", "v_descale"), scales))
    return Tensors(p, *(x.to(torch.float8_e4m3fn) for x in codes), named)


def of_heads(scale: Any, x: Any) -> Any:
    """[b, kv heads] for [b, h, s, d]."""
    return scale.repeat_interleave(x.shape[1] // scale.shape[1], dim=1)[..., None, None]


def values(x: Any, scale: Any) -> Any:
    return x.double() if scale is None else x.double() * of_heads(scale, x)


def exact_mask(torch: Any, rows: int, keys: int, causal: bool) -> Any:
    allowed = torch.ones((rows, keys), dtype=torch.bool)
    return allowed.tril(keys - rows) if causal else allowed


def exact(torch: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1).double() for x in (k, v))
    scores = q.double() @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    scores = scores.masked_fill(~exact_mask(torch, *scores.shape[2:], causal), -torch.inf)
    return torch.nan_to_num(scores.softmax(-1), nan=0.0) @ v


def prepared(lab: Any, name: str, problem: dict[str, Any]) -> Call:
    """The call of a peer; it is right in all rows that see a key."""
    tensors = tensors_of(lab.torch, problem)
    call = peers.prepare(lab, name, tensors, cold_l2=True)
    with call.around():
        found = call.output()
    assert found.dtype == lab.torch.bfloat16
    read = [values(getattr(tensors, x), tensors.scales.get(f"{x}_descale")) for x in "qkv"]
    right = exact(lab.torch, *read, problem["causal"])
    hidden = max(problem["seqlen_q"] - problem["seqlen_kv"], 0) if problem["causal"] else 0
    found, right = found[:, :, hidden:].double(), right[:, :, hidden:]
    gate = 4e-2 if tensors.scales else 5e-3
    assert found.shape == right.shape and float((found - right).norm() / right.norm()) < gate
    return call


@pytest.mark.parametrize("name", ["sdpa_flash", "sdpa_math"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=problem_label)
def test_sdpa_on_the_cpu_is_right(lab, torch, problem, name):
    """Grouped heads, and masks aligned bottom-right: with is_causal alone the third problem fails."""
    note = prepared(lab, name, problem).note
    square = not problem["causal"] or problem["seqlen_q"] == problem["seqlen_kv"]
    mask = "" if square else "mask: a tensor" if name == "sdpa_math" else "mask: causal_lower_right"
    assert note == mask


def test_a_backend_without_grouped_heads_gets_repeated_ones(lab, torch, monkeypatch):
    try_sdpa = peers.try_sdpa

    def refuse_gqa(lab, run, name, q, k, v, mask, **more):
        if more.get("enable_gqa"):
            raise Skip("no grouped heads")
        try_sdpa(lab, run, name, q, k, v, mask, **more)

    monkeypatch.setattr(peers, "try_sdpa", refuse_gqa)
    note = prepared(lab, "sdpa_math", PROBLEMS[3]).note
    assert note == "mask: a tensor; heads of K and V repeated beforehand: no grouped heads"


def test_refusals_say_why(lab, torch):
    with pytest.raises(Skip, match="no causal mask aligned bottom-right for cuDNN"):
        prepared(lab, "sdpa_cudnn", PROBLEMS[2])


@pytest.mark.parametrize("returns_lse", [False, True])
def test_flash_attn_gets_transposed_views(lab, torch, returns_lse):
    def flash_attn_func(q, k, v, causal):
        assert q.shape == (1, 50, 4, 128) and q.stride(3) == 1
        o = exact(torch, *(t.transpose(1, 2) for t in (q, k, v)), causal).to(q.dtype).transpose(1, 2).contiguous()
        return (o, None) if returns_lse else o

    lab.packages["flash_attn"] = SimpleNamespace(flash_attn_func=flash_attn_func)
    assert prepared(lab, "flash_attn", PROBLEMS[2]).note == "transposed views of the same tensors"


GROUPED = problem_of(2, 6, 2, 16, 70, 64, causal=True)


def heads_last(torch: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    return exact(torch, *(t.transpose(1, 2) for t in (q, k, v)), causal).to(q.dtype).transpose(1, 2)


@pytest.mark.parametrize("problem", [DECODE, GROUPED, PROBLEMS[1]], ids=problem_label)
def test_few_queries_take_flash_attentions_splits(lab, torch, problem):
    class Package:
        @staticmethod
        def get_scheduler_metadata(batch, rows, keys, heads_q, heads_kv, width, lengths, qkv_dtype, causal):
            sizes = {"batch": batch, "seqlen_q": rows, "seqlen_kv": keys, "num_heads_kv": heads_kv}
            assert {**problem, **sizes} == problem
            assert lengths.tolist() == [keys] * batch and qkv_dtype == torch.bfloat16
            return "plan"

        @staticmethod
        def flash_attn_with_kvcache(q, k, v, causal, num_splits, cache_seqlens, scheduler_metadata):
            assert num_splits == 0 and scheduler_metadata == "plan"
            return heads_last(torch, q, k, v, causal)

        @staticmethod
        def flash_attn_func(q, k, v, causal, num_splits, pack_gqa):
            assert (pack_gqa is None) == (problem["num_heads_q"] == problem["num_heads_kv"])
            return heads_last(torch, q, k, v, causal), None

    lab.packages["flash_attn_3"] = Package
    ways = 3 if problem is PROBLEMS[1] else 5
    lab.times = [2.0, *[3.0] * (ways - 1)]
    note = prepared(lab, "flash_attn_3", problem).note
    assert note.startswith("flash_attn_func, num_splits=0, pack_gqa=") and note.endswith(f"(fastest of {ways})")
    lab.times = [*[3.0] * (ways - 1), 2.0]
    call = prepared(lab, "flash_attn_3", problem)
    assert f"cache_seqlens and scheduler_metadata (fastest of {ways})" in call.note and len(call.run.keywords) == 4


def test_many_queries_are_not_split(lab, torch, monkeypatch):
    monkeypatch.setattr(peers, "FEW_ROWS", 199)
    package = SimpleNamespace(flash_attn_func=lambda q, k, v, causal, **more: heads_last(torch, q, k, v, causal))
    lab.packages |= {"flash_attn_3": package, "flash_attn_4": package}
    for name, note in (
        ("flash_attn_3", "flash_attn_func, num_splits=1, pack_gqa=False (fastest of 2)"),
        ("flash_attn_4", "pack_gqa=False (fastest of 2)"),
    ):
        lab.times = [3.0, 2.0]
        assert prepared(lab, name, PROBLEMS[2]).note == note


@pytest.mark.parametrize("problem", PROBLEMS, ids=problem_label)
def test_cudnn_through_its_frontend(lab, torch, monkeypatch, problem):
    def sdpa(q, k, v, is_causal, causal_bottom_right):
        assert is_causal == problem["causal"]
        assert causal_bottom_right == (is_causal and q.shape[2] != k.shape[2])
        return exact(torch, q, k, v, is_causal).to(q.dtype)

    def create_mask_plan(seen, q, k, v):
        assert seen.dtype == torch.int32 and seen.shape == (1, 1, q.shape[0] * q.shape[1])
        allowed = exact_mask(torch, q.shape[1], k.shape[1], problem["causal"])
        assert seen[0, 0].tolist() == allowed.sum(1).tolist() * q.shape[0]
        return "plan"

    def flex_attn_func(q, k, v, mask_plan):
        assert mask_plan == "plan"
        return heads_last(torch, q, k, v, problem["causal"])

    lab.packages["cudnn"] = SimpleNamespace(sdpa=sdpa)
    lab.times = [1.0]
    note = prepared(lab, "cudnn", problem).note  # an older one, or without what compiles its kernels
    assert note.startswith("graph; flex_attn_func: ")
    flex = SimpleNamespace(create_mask_plan=create_mask_plan, flex_attn_func=flex_attn_func)
    monkeypatch.setitem(sys.modules, "cudnn", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cudnn.flex_attention", flex)
    lab.times = [2.0, 1.0]
    assert prepared(lab, "cudnn", problem).note == "flex_attn_func (fastest of 2)"


# Backward passes.


def backward_tensors(torch: Any, p: dict[str, Any]) -> Tensors:
    found = tensors_of(torch, p)
    found.d_o = torch.randn(found.q.shape, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    found.o = exact(torch, found.q, found.k, found.v, p["causal"]).to(torch.bfloat16)
    found.lse = scores_of(torch, found.q, found.k, p["causal"]).logsumexp(-1).float()
    return found


def scores_of(torch: Any, q: Any, k: Any, causal: bool) -> Any:
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).double()
    scores = q.double() @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    return scores.masked_fill(~exact_mask(torch, *scores.shape[2:], causal), -torch.inf)


def gradients(torch: Any, d_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: bool) -> tuple[Any, ...]:
    """By the formulas of AttentionCall::backward."""
    assert q.shape == o.shape == d_o.shape and lse.shape == q.shape[:3] and lse.dtype == torch.float32
    group, d_o, q = q.shape[1] // k.shape[1], d_o.double(), q.double()
    dtype, k, v = k.dtype, *(x.repeat_interleave(group, dim=1).double() for x in (k, v))
    seen = torch.where(torch.isinf(lse), 0, lse).double()[..., None]
    weights = (scores_of(torch, q, k, causal) - seen).exp()
    ds = weights * (d_o @ v.transpose(2, 3) - (d_o * o.double()).sum(-1, keepdim=True)) / math.sqrt(q.shape[3])
    dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (ds.transpose(2, 3) @ q, weights.transpose(2, 3) @ d_o))
    return tuple(x.to(dtype) for x in (ds @ k, dk, dv))


class Aten:
    """PyTorch's operators as its schemas have them. cuDNN's have a log-sum-exp with one axis more."""

    def __init__(self, torch: Any, grouped: bool = True):
        self.torch, self.grouped, self.orders = torch, grouped, []

    def kept(self, q: Any, *axes: int) -> tuple[Any, ...]:
        return (None, self.torch.empty((*q.shape[:3], *axes)), "cum_q", "cum_k", "max_q", "max_k", "seed", "offset", None)

    def found(self, d_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: bool) -> tuple[Any, ...]:
        if not self.grouped and q.shape[1] != k.shape[1]:
            raise RuntimeError("no grouped heads")
        self.orders.append("bhsd" if q.stride(1) > q.stride(2) else "bshd")
        return gradients(self.torch, d_o, q, k, v, o, lse, causal)

    def _scaled_dot_product_flash_attention(self, q, k, v, dropout, causal, debug):
        return self.kept(q)

    def _scaled_dot_product_flash_attention_backward(self, d_o, q, k, v, o, lse, *more):
        *kept, dropout, causal, seed, offset = more
        assert kept == ["cum_q", "cum_k", "max_q", "max_k"] and (dropout, seed, offset) == (0.0, "seed", "offset")
        return self.found(d_o, q, k, v, o, lse, causal)

    def _scaled_dot_product_cudnn_attention(self, q, k, v, bias, with_lse, dropout, causal, debug):
        assert bias is None and with_lse
        return self.kept(q, 1)

    def _scaled_dot_product_cudnn_attention_backward(self, d_o, q, k, v, o, lse, seed, offset, bias, *more):
        *kept, dropout, causal = more
        assert kept == ["cum_q", "cum_k", "max_q", "max_k"] and (dropout, seed, offset) == (0.0, "seed", "offset")
        assert bias is None and not (causal and q.shape[2] != k.shape[2])  # would be aligned top-left
        return self.found(d_o, q, k, v, o, lse.squeeze(-1), causal)


def heads_last_gradients(torch: Any, d_o: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, causal: bool) -> list[Any]:
    found = gradients(torch, *(x.transpose(1, 2) for x in (d_o, q, k, v, o)), lse, causal)
    return [x.transpose(1, 2) for x in found]


def give_backward_packages(lab: Any, torch: Any, deterministic: bool) -> None:
    def third(d_o, q, k, v, o, lse, *more, **options):
        *no_lengths, dq, dk, dv, scale, causal = more
        assert no_lengths == [None] * 6 and scale == q.shape[3] ** -0.5 and options == {"deterministic": deterministic}
        for to, found in zip((dq, dk, dv), heads_last_gradients(torch, d_o, q, k, v, o, lse, causal)):
            to.copy_(found)
        return "a softmax_d"

    def fourth(q, k, v, o, d_o, lse, **options):
        assert options.pop("deterministic") == deterministic
        return tuple(heads_last_gradients(torch, d_o, q, k, v, o, lse, **options))

    lab.packages["flash_attn_3"] = SimpleNamespace(_flash_attn_backward=third)
    lab.packages["flash_attn_4"] = SimpleNamespace(_flash_attn_bwd=fourth)


def prepared_backward(lab: Any, name: str, problem: dict[str, Any]) -> Call:
    """The call of a peer, whose gradients are right."""
    torch = lab.real_torch
    tensors = backward_tensors(torch, problem | {"backward": "yes"})
    call = peers.prepare(lab, name, tensors, cold_l2=False)
    given = (getattr(tensors, each) for each in ("d_o", "q", "k", "v", "o", "lse"))
    for found, right in zip(call.output(), gradients(torch, *given, problem["causal"]), strict=True):
        assert found.dtype == torch.bfloat16 and found.shape == right.shape
        assert float((found.double() - right.double()).norm() / right.double().norm()) < 5e-3
    return call


@pytest.fixture
def aten(lab, torch) -> Aten:
    """PyTorch in which these operators are those of a GPU."""
    aten = Aten(torch)
    lab.real_torch = torch
    lab.torch = SimpleNamespace(ops=SimpleNamespace(aten=aten), empty_like=torch.empty_like, cuda=torch.cuda)
    return aten


@pytest.mark.parametrize("name", list(peers.BACKWARD))
@pytest.mark.parametrize("problem", PROBLEMS, ids=problem_label)
def test_gradients_of_peers_are_right(lab, torch, aten, name, problem):
    """Grouped heads, masks aligned bottom-right, and rows that see no key: there the log-sum-exp is -inf."""
    give_backward_packages(lab, torch, name.endswith(rates.DETERMINISTIC))
    ways = 4 if name.startswith("sdpa_") and problem["num_heads_q"] != problem["num_heads_kv"] else 2
    lab.times = [2.0, *[3.0] * (ways - 1)]
    if name == "sdpa_cudnn" and problem["causal"] and problem["seqlen_q"] != problem["seqlen_kv"]:
        with pytest.raises(Skip, match="no causal mask aligned bottom-right for cuDNN"):
            prepared_backward(lab, name, problem)
        return
    assert prepared_backward(lab, name, problem).note == f"[b, h, s, d] (fastest of {ways})"


def test_gradients_are_timed_in_both_orders_of_the_axes(lab, aten):
    lab.times = [3.0, 2.0]
    call = prepared_backward(lab, "sdpa_cudnn", PROBLEMS[0])
    assert call.note == "[b, s, h, d], copied beforehand (fastest of 2)"
    assert aten.orders == ["bhsd", "bshd", "bshd"]  # as they lie, as a copy, and again to be compared
    lab.times = [3.0, 2.0, 1.0]
    call = prepared_backward(lab, "sdpa_flash", problem_of(2, 3, 3, 70, 70, 64, layout="qkv"))
    assert call.note == "[b, s, h, d], copied beforehand (fastest of 3)"


def test_an_operator_without_grouped_heads_gets_repeated_ones_and_sums_up(lab, torch, aten):
    aten.grouped = False
    lab.times = [2.0, 3.0]
    note = prepared_backward(lab, "sdpa_cudnn", problem_of(2, 6, 2, 40, 40, 64, causal=True)).note
    repeated = "heads of K and V repeated beforehand, and their gradients summed up"
    assert note.startswith(f"[b, h, s, d], {repeated} (fastest of 2); [b, h, s, d]: no grouped heads; [b, s, h, d], copied")


def test_gradients_are_judged_together(torch):
    problem = problem_of(1, 4, 2, 50, 90, 64, backward="yes")
    tensors, judged = backward_tensors(torch, problem), []

    def judge(outputs, lse, runs_identical):
        judged.append((outputs, lse, runs_identical))
        return {"status": "pass", "message": "", "validation": {}, "more": 1}

    case = SimpleNamespace(problem=problem, judge=judge)
    pytorch = peers.TorchLab(torch, None, SimpleNamespace(on_gpu=False))
    found = (tensors.q, tensors.k, tensors.v)
    assert pytorch.judge(Call(None, lambda: found), case, tensors) == {"status": "pass", "message": "", "validation": {}}
    other = iter((found, (tensors.q, tensors.k, 2 * tensors.v)))
    pytorch.judge(Call(None, lambda: next(other)), case, tensors)
    addresses = [tensor.data_ptr() for tensor in found]
    assert judged == [(addresses, None, True), (addresses, None, False)]
    wrong = iter((found, (tensors.q, tensors.v[:, :, :3], tensors.v)))
    with pytest.raises(peers.WrongOutput, match=r"the second dk is torch.bfloat16 \[1, 2, 3, 64\], not .* \[1, 2, 90, 64\]"):
        pytorch.judge(Call(None, lambda: next(wrong)), case, tensors)


def test_a_steps_gradients_are_those_of_the_python_module(torch):
    tensors = backward_tensors(torch, problem_of(1, 2, 2, 5, 5, 64, causal=True, backward="yes"))
    module = SimpleNamespace(attention_backward=lambda *arrays, **options: (arrays, options))
    arrays, options = peers.TorchLab(torch, module, SimpleNamespace(on_gpu=False)).step("v50", tensors).run()
    assert options == {"causal": True, "step": "v50"}
    assert [*map(id, arrays)] == [id(getattr(tensors, name)) for name in ("d_o", "q", "k", "v", "o", "lse")]


FP8 = problem_of(2, 4, 2, 16, 70, 64, causal=True, dtype="e4m3")


def test_flash_attention_3_gets_the_scales_of_fp8(lab, torch):
    def attention(q, k, v, causal, q_descale, k_descale, v_descale, **more):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        read = [values(x, scale) for x, scale in ((q, q_descale), (k, k_descale), (v, v_descale))]
        return exact(torch, *read, causal).to(torch.bfloat16).transpose(1, 2)

    package = SimpleNamespace(flash_attn_func=attention, flash_attn_with_kvcache=attention)
    package.get_scheduler_metadata = lambda *sizes, qkv_dtype, causal: qkv_dtype
    lab.packages["flash_attn_3"] = package
    lab.times = [3.0, 3.0, 3.0, 3.0, 2.0]
    call = prepared(lab, "flash_attn_3", FP8)
    assert "cache_seqlens and scheduler_metadata (fastest of 5)" in call.note
    assert call.run.keywords["scheduler_metadata"] == torch.float8_e4m3fn


@pytest.mark.parametrize("name", ["sdpa_flash", "sdpa_cudnn", "flash_attn", "flash_attn_4", "flashinfer"])
def test_other_peers_take_no_fp8(lab, torch, name):
    with pytest.raises(Skip, match="^in FP8 only flash_attn_3 and cudnn are called$"):
        prepared(lab, name, FP8)


class Node(SimpleNamespace):
    """A tensor of a graph of cudnn-frontend."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __getattr__(self, name):
        key = name.removeprefix("set_")
        return lambda value: setattr(self, f"_{key}", value) or self


def frontend(torch: Any) -> Any:
    """cudnn, as far as it is called in FP8: it computes what cuDNN's graph of FP8 attention says."""

    class Graph:
        def __init__(self, io_data_type, intermediate_data_type, compute_data_type, handle):
            assert (io_data_type, intermediate_data_type, handle) == ("FP8_E4M3", "FLOAT", "handle")

        def tensor(self, **more):
            return Node(**more)

        def sdpa_fp8(self, attn_scale, generate_stats, use_causal_mask=False, **inputs):
            assert attn_scale == 64**-0.5
            self.inputs, self.causal, self.stats = inputs, use_causal_mask, generate_stats
            self.made = [Node(), Node() if generate_stats else None, Node(), Node()]
            return self.made

        def check_support(self):
            if not self.stats:
                raise RuntimeError("no engine without statistics")

        def execute(self, memory, workspace, handle):
            assert workspace.numel() == 1 and len(memory) == 13
            found = {name: memory[node] for name, node in self.inputs.items()}
            q, k, v = (found[x].double() * found[f"descale_{x}"] for x in "qkv")
            for node in memory:
                kind = node.data_type if "data_type" in vars(node) else node._data_type
                assert kind == ("FP8_E4M3" if memory[node].dtype == torch.float8_e4m3fn else "FLOAT")
            o = exact(torch, q, k, v, self.causal)
            o_node, _, _, largest = self.made
            assert memory[o_node].stride() == tuple(o_node._stride) and found["scale_s"] * found["descale_s"] == 1
            memory[o_node].copy_(o * found["scale_o"])
            memory[largest].fill_(o.abs().max())

        validate = build_operation_graph = build_plans = lambda self: None
        create_execution_plans = lambda self, modes: None
        get_workspace_size = lambda self: 0

    return SimpleNamespace(
        pygraph=Graph,
        data_type=SimpleNamespace(FP8_E4M3="FP8_E4M3", FLOAT="FLOAT"),
        heur_mode=SimpleNamespace(A="A"),
        create_handle=lambda: "handle",
        set_stream=lambda handle, stream: None,
    )


def test_cudnn_in_fp8_has_one_scale_and_an_output_in_fp8(lab, torch, monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", frontend(torch))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    with pytest.raises(Skip, match="cuDNN has one scale for q, k and v each.*ask with --layout qkv"):
        prepared(lab, "cudnn", FP8)
    lab.times = [1.0]
    call = prepared(lab, "cudnn", problem_of(2, 4, 2, 70, 70, 64, causal=True, dtype="e4m3", layout="qkv"))
    assert call.note.startswith("sdpa_fp8, generate_stats=True; sdpa_fp8, generate_stats=False: no engine without")
    assert call.note.endswith("; o is in e4m3, by a scale that an earlier call has found")
    assert call.run().dtype == torch.float8_e4m3fn and call.run().float().abs().max() == 448


def test_the_views_of_fp8_have_their_scales(lab, torch):
    """Of tensors that lie in this process, as those of the emulator do."""
    q = torch.randn(1, 2, 3, 64).to(torch.float8_e4m3fn)
    scale = torch.tensor([0.25])

    def tensor(x: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> dict[str, Any]:
        return {"data": x.data_ptr(), "shape": shape, "strides": strides}

    views = {name: tensor(q, (1, 2, 3, 64), (-1, 192, 64, 1)) for name in "qkv"}
    views |= {f"{name}_descale": tensor(scale, (1, 2), (0, 0)) for name in "qkv"}
    case = SimpleNamespace(problem=problem_of(1, 2, 2, 3, 3, 64, dtype="e4m3"), tensors=views)
    found = peers.TorchLab(torch, None, SimpleNamespace(on_gpu=False)).tensors(case)
    assert found.k.dtype == q.dtype and found.k.stride() == (384, 192, 64, 1)
    assert torch.equal(found.v.float(), q.float())
    assert list(found.scales) == ["q_descale", "k_descale", "v_descale"]
    assert found.scales["v_descale"].tolist() == [[0.25, 0.25]]


@pytest.fixture
def wrapper(torch) -> Any:
    class FlashInfer:
        """Its wrapper as its documentation describes it: gathers the pages that the table names."""

        no_tensor_cores = False

        def __init__(self, workspace, layout, use_tensor_cores):
            assert layout == "HND" and not workspace.any()
            self.for_tensor_cores = use_tensor_cores

        def plan(self, ends, table, last, heads_q, heads_kv, width, page_size, q_data_type, kv_data_type):
            if self.for_tensor_cores and self.no_tensor_cores:
                raise RuntimeError("no such kernel")
            assert all(t.dtype == torch.int32 for t in (ends, table, last)) and len(table) == ends[-1]
            assert set(last.tolist()) == {page_size}
            self.tables = [table[a:b].long() for a, b in zip(ends[:-1], ends[1:])]

        def run(self, q, cache):
            k, v = (torch.stack([c[table].transpose(0, 1).flatten(1, 2) for table in self.tables]) for c in cache)
            return exact(torch, q[:, :, None], k, v, False).to(q.dtype)[:, :, 0]

    return FlashInfer


def test_flashinfer_finds_the_same_keys_in_pages(lab, wrapper):
    def xqa(q, cache, workspace, table, lengths, most, bmm1_scale, kv_layout):
        assert kv_layout == "HND" and bmm1_scale == 1 / 8 and set(lengths.tolist()) == {most} == {64}
        decode = wrapper(workspace, kv_layout, False)
        decode.tables = table.long()
        return decode.run(q, cache)

    package = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=wrapper, decode=SimpleNamespace())
    lab.packages["flashinfer"] = package
    lab.times = [3.0, 2.0, 4.0, 5.0]  # an older one, without XQA
    note = prepared(lab, "flashinfer", DECODE).note
    assert note.startswith("pages of 16 keys in order, for CUDA cores (fastest of 4); pages of 16 keys in order, XQA")
    assert note.count("has no attribute 'xqa_batch_decode_with_kv_cache'") == 2
    package.decode.xqa_batch_decode_with_kv_cache = xqa
    lab.times = [3.0, 2.0, 4.0, 2.0, 2.0, 1.0]
    assert prepared(lab, "flashinfer", DECODE).note == "pages of 64 keys in order, XQA (fastest of 6)"
    wrapper.no_tensor_cores = True
    del package.decode.xqa_batch_decode_with_kv_cache
    lab.times = [2.0]
    note = prepared(lab, "flashinfer", problem_of(2, 4, 2, 1, 48, 64)).note  # no whole page of 64
    assert note.startswith("pages of 16 keys in order, for CUDA cores; ") and "tensor cores: no such kernel; " in note
    with pytest.raises(Skip, match="whole pages of 16"):
        prepared(lab, "flashinfer", problem_of(2, 2, 2, 1, 65, 64))


@pytest.mark.parametrize(("few", "backend"), [(1 << 15, "fa2"), (0, "fa3")])
def test_flashinfer_takes_several_queries(lab, torch, monkeypatch, few, backend):
    class Prefill:
        def __init__(self, workspace, layout, backend):
            assert layout == "HND" and not workspace.any()
            self.backend = backend

        def plan(self, starts, ends, table, last, heads_q, heads_kv, width, page_size, causal, **types):
            assert starts.tolist() == [0, 20, 40] and set(last.tolist()) == {page_size}
            self.tables = [table[a:b].long() for a, b in zip(ends[:-1], ends[1:])]
            self.causal = causal

        def run(self, q, cache):
            assert self.backend == backend and q.shape == (40, 4, 64)
            k, v = (torch.stack([c[table].transpose(0, 1).flatten(1, 2) for table in self.tables]) for c in cache)
            q = q.unflatten(0, (2, 20)).transpose(1, 2)
            return exact(torch, q, k, v, self.causal).to(q.dtype).transpose(1, 2).flatten(0, 1)

    monkeypatch.setattr(peers, "FEW_ROWS", few)
    lab.packages["flashinfer"] = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Prefill)
    lab.times = [3.0, 2.0]
    note = prepared(lab, "flashinfer", problem_of(2, 4, 2, 20, 64, 64, causal=True)).note
    assert note == f"pages of 64 keys in order, {backend} (fastest of 2)"


def test_flashinfer_takes_several_queries_of_one_sequence_without_pages(lab, torch):
    def single(q, k, v, kv_layout, causal, backend):
        assert kv_layout == "HND" and backend == "fa2" and q.shape == (20, 4, 64) and k.shape == (2, 65, 64)
        o = exact(torch, q.transpose(0, 1)[None], k[None], v[None], causal)
        return o.to(q.dtype)[0].transpose(0, 1)

    lab.packages["flashinfer"] = SimpleNamespace(single_prefill_with_kv_cache=single)
    lab.times = [1.0]
    problem = problem_of(1, 4, 2, 20, 65, 64, causal=True)
    assert prepared(lab, "flashinfer", problem).note == "one sequence without pages, fa2"


def test_flashinfer_takes_one_sequence_without_pages(lab, torch):
    def single(q, k, v, kv_layout, use_tensor_cores):
        assert kv_layout == "HND" and q.shape == (4, 64) and k.shape == v.shape == (2, 65, 64)
        return exact(torch, q[None, :, None], k[None], v[None], False).to(q.dtype)[0, :, 0]

    lab.packages["flashinfer"] = SimpleNamespace(single_decode_with_kv_cache=single)
    lab.times = [3.0, 2.0]
    note = prepared(lab, "flashinfer", problem_of(1, 4, 2, 1, 65, 64)).note
    assert note == "one sequence without pages, for CUDA cores (fastest of 2)"
