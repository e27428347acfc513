"""torch_lab.py with PyTorch on the CPU: the reference, the errors, SDPA's backends as far as a CPU has them.
Everything about events, graphs and clocks needs a GPU and is not tested here."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from types import SimpleNamespace

import pytest
from conftest import make_problem

torch = pytest.importorskip("torch", reason="these tests need PyTorch (CPU is enough)")

from measure import compare_peers  # noqa: E402
from measure import peers, torch_lab  # noqa: E402
from measure.nvml import Nvml  # noqa: E402
from measure.peers import Skip  # noqa: E402
from measure.torch_lab import MAX_WAIT_CYCLES, WAIT_CYCLES, LateLaunch, TorchLab, WrongOutput  # noqa: E402
from records import problems, rules  # noqa: E402


class Flashsteps:
    """Exact attention, with what a test wants to be wrong with it."""

    def __init__(self):
        self.break_o = self.break_lse = lambda tensor: tensor
        self.calls = []

    def attention(self, q, k, v, *, causal=False, step=None, return_lse=False):
        self.calls.append((step, causal, return_lse))
        group = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(group, dim=1).double() for t in (k, v))
        scores = q.double() @ k.transpose(2, 3) / math.sqrt(q.shape[3])
        if causal:
            allowed = torch.ones(scores.shape[2:], dtype=torch.bool).tril(scores.shape[3] - scores.shape[2])
            scores = scores.masked_fill(~allowed, -torch.inf)
        o = torch.nan_to_num(scores.softmax(-1), nan=0.0) @ v
        o, lse = self.break_o(o.to(q.dtype)), self.break_lse(scores.logsumexp(-1).float())
        return (o, lse) if return_lse else o


@pytest.fixture
def lab(monkeypatch):
    before = torch.is_grad_enabled()
    yield TorchLab(torch, Flashsteps(), "cpu")
    torch.set_grad_enabled(before)


GATES = {
    dtype: {"nrmse": whole, "row": row, "lse": 1e-4, "lse_relative": 1e-6}
    for dtype, (whole, row) in rules.GATES.items()
}


def problem_of(*shape: int, **more) -> dict:
    keys = ("batch", "num_heads_q", "num_heads_kv", "seqlen_q", "seqlen_kv", "head_dim")
    return make_problem(**{"causal": False, **dict(zip(keys, shape)), **more})


def verdict(found: dict, problem: dict, is_step: bool) -> list[str]:
    return compare_peers.verdict(found, GATES[problem["dtype"]], is_step)


PROBLEMS = [
    problem_of(2, 4, 4, 70, 70, 64),
    problem_of(2, 4, 4, 70, 70, 64, causal=True, dtype="fp16"),
    problem_of(1, 4, 2, 50, 130, 128, causal=True),
    problem_of(2, 4, 1, 90, 33, 64, causal=True),
    problem_of(1, 2, 2, 1, 200, 64, causal=True),
    problem_of(2, 4, 2, 1, 2048, 64),
    problem_of(2, 6, 2, 33, 90, 64),
]


def label(problem: dict) -> str:
    return problems.problem_label(problem).replace(" ", ",")


def judged(lab: TorchLab, name: str, problem: dict) -> dict:
    tensors = lab.inputs(problem)
    is_step = name.startswith("v")
    gate = GATES[problem["dtype"]]
    return lab.judge(lab.prepare(name, tensors), tensors, lab.reference(tensors), gate, is_step)


def complaints(lab: TorchLab, problem: dict) -> str:
    return "\n".join(verdict(judged(lab, "v01", problem), problem, True))


def test_inputs_are_normal_and_from_the_seed(lab):
    one, same, other = (lab.inputs(problem_of(2, 4, 2, 500, 300, 64, seed=seed)) for seed in (1, 1, 2))
    assert one.q.shape == (2, 4, 500, 64) and one.v.shape == (2, 2, 300, 64) and one.q.dtype == torch.bfloat16
    assert torch.equal(one.v, same.v) and not torch.equal(one.v, other.v)
    assert not torch.equal(one.k, one.v)
    for tensor in (one.q, one.k, one.v):
        assert abs(float(tensor.float().mean())) < 0.02 and abs(float(tensor.float().std()) - 1) < 0.02


@pytest.mark.parametrize("chunk", [1 << 25, 3000, 1])
@pytest.mark.parametrize("problem", PROBLEMS, ids=label)
def test_the_reference_is_attention_whatever_its_chunks(lab, monkeypatch, problem, chunk):
    """Row by row in plain Python floats: no batches, no masks."""
    monkeypatch.setattr(torch_lab, "CHUNK", chunk)
    tensors = lab.inputs(problem)
    reference = lab.reference(tensors)
    q, k, v = (tensor.double() for tensor in (tensors.q, tensors.k, tensors.v))
    batch, heads, rows, width = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    for b, h, i in [
        (0, 0, 0),
        (batch - 1, heads - 1, rows - 1),
        (0, heads - 1, rows // 2),
        (0, 1, rows // 3),
    ]:
        seen = max(0, i + 1 + keys - rows) if problem["causal"] else keys
        assert (seen == 0) == (problem["causal"] and i < problems.rows_without_keys(problem))
        if seen == 0:
            assert not reference.o[b, h, i].any() and float(reference.lse[b, h, i]) == -math.inf
            continue
        scores = [float(q[b, h, i] @ k[b, h // group, j]) / math.sqrt(width) for j in range(seen)]
        total = math.fsum(math.exp(score) for score in scores)
        assert float(reference.lse[b, h, i]) == pytest.approx(math.log(total), abs=1e-9)
        weights = torch.tensor([math.exp(score) / total for score in scores], dtype=torch.float64)
        expected = weights @ v[b, h // group, :seen]
        assert torch.allclose(reference.o[b, h, i].double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("chunk", [1 << 25, 70 * 64])
@pytest.mark.parametrize("problem", PROBLEMS, ids=label)
def test_a_right_step_passes(lab, monkeypatch, problem, chunk):
    monkeypatch.setattr(torch_lab, "CHUNK", chunk)
    found = judged(lab, "v01_scalar", problem)
    assert verdict(found, problem, True) == []
    assert 0 < found["nrmse"] < 3e-3 and found["nrmse"] <= found["worst_row_nrmse"] < 5e-3
    assert found["lse_max_abs"] < 1e-5 and 0 < found["max_abs"] < 0.05
    rows = problem["batch"] * problem["num_heads_q"] * problem["seqlen_q"]
    assert found["rows_checked"] == found["rows_total"] == rows
    causal = problem["causal"]
    assert lab.flashsteps.calls == [("v01_scalar", causal, True), ("v01_scalar", causal, False)]


def test_errors_are_what_they_are_called(lab):
    problem = PROBLEMS[0]
    tensors = lab.inputs(problem)
    reference = lab.reference(tensors)
    output = reference.o.clone()
    reference.o[1, 2, 3] = 0
    output[1, 2, 3] = 0
    output[1, 2, 3, 5] = 0.25  # by itself: the row's norm is 0
    output[0, 3, 60] *= 1.5
    found = lab.errors(output, None, reference, GATES[problem["dtype"]])
    norms = reference.o.double().square().sum(-1)
    expected = math.sqrt((0.25**2 + 0.25 * float(norms[0, 3, 60])) / float(norms.sum()))
    assert found["nrmse"] == pytest.approx(expected)
    assert (
        found["worst_row_nrmse"] == pytest.approx(0.5) and found["worst_place"] == "batch 0, head 3, row 60"
    )
    assert found["wrong_rows"] == 2 and found["nonfinite"] == 0
    assert found["max_abs"] == pytest.approx(max(0.25, 0.5 * float(reference.o[0, 3, 60].abs().max())))


def broken(change):
    def apply(tensor):
        tensor = tensor.clone()
        change(tensor)
        return tensor

    return apply


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda o: o[1, 3, 80, 5].fill_(torch.nan), "1 element(s) are NaN"),
        (lambda o: o[1, 3, 80, 5].fill_(torch.inf), "1 element(s) are NaN"),
        (lambda o: o[1, 3, 2, 5].fill_(torch.nan), "1 element(s) are NaN"),
        (lambda o: o[1, 3, 2, 5].fill_(-0.0), "1 row(s) see no key and are not exactly zero"),
        (lambda o: o[0, 1, 80].mul_(1.5), "worst: batch 0, head 1, row 80, error 5.0"),
        (lambda o: o.mul_(1.05), "NRMSE 5."),
    ],
)
def test_a_wrong_step_fails(lab, change, expected):
    lab.flashsteps.break_o = broken(change)
    assert expected in complaints(lab, PROBLEMS[3])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lse: lse[1, 3, 80].add_(1e-3), "1 lse value(s) are wrong, by up to 1.0"),
        (lambda lse: lse[1, 3, 80].fill_(torch.nan), "1 element(s) are NaN"),
        (lambda lse: lse[1, 3, 2].fill_(0), "1 element(s) are NaN or Inf where they must not be"),
    ],
)
def test_a_wrong_lse_fails(lab, change, expected):
    lab.flashsteps.break_lse = broken(change)
    assert expected in complaints(lab, PROBLEMS[3])


def test_nan_everywhere_is_null_in_the_record(lab):
    lab.flashsteps.break_o = lambda o: o.fill_(torch.nan)
    found = judged(lab, "v01", PROBLEMS[0])
    record = compare_peers.validation_record(found, GATES[PROBLEMS[0]["dtype"]])
    assert record["nrmse"] is record["worst_row_nrmse"] is record["max_abs"] is None
    assert record["nonfinite"] == 2 * 4 * 70 * 64 and found["runs_identical"] is True, "NaN twice is the same"


def test_two_runs_that_differ(lab):
    lab.flashsteps.break_o = lambda o: o if len(lab.flashsteps.calls) % 2 else o.add_(1e-2)
    assert "two runs on the same inputs differ" in complaints(lab, PROBLEMS[0])


def test_inputs_that_were_written_to_are_restored(lab):
    tensors = lab.inputs(PROBLEMS[0])
    attention = lab.flashsteps.attention

    def vandal(q, k, v, **more):
        found = attention(q, k, v, **more)
        k[1, 1, 1, 1] = 7
        return found

    lab.flashsteps.attention = vandal
    found = lab.judge(lab.prepare("v01", tensors), tensors, lab.reference(tensors), GATES[PROBLEMS[0]["dtype"]], True)
    assert found["inputs_changed"] and torch.equal(tensors.k, tensors.copies[1])
    assert "wrote to its inputs" in verdict(found, PROBLEMS[0], True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda o: o.float(), "o is torch.float32"),
        (lambda o: o.transpose(1, 2), r"o is torch.bfloat16 \[2, 70, 4, 64\], not"),
    ],
)
def test_an_output_of_another_kind(lab, change, expected):
    lab.flashsteps.break_o = change
    with pytest.raises(WrongOutput, match=expected):
        judged(lab, "v01", PROBLEMS[0])


def test_an_lse_of_another_kind(lab):
    lab.flashsteps.break_lse = lambda lse: lse.double()
    with pytest.raises(WrongOutput, match="lse is not a float32 tensor"):
        judged(lab, "v01", PROBLEMS[0])


# The peers.


@pytest.fixture
def math_fits(lab, monkeypatch):
    monkeypatch.setattr(lab, "free_bytes", lambda: 1 << 40)


@pytest.mark.parametrize("name", ["sdpa_flash", "sdpa_math"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=label)
def test_sdpa_on_the_cpu_is_right(lab, math_fits, problem, name):
    """Grouped heads, and masks aligned bottom-right: with is_causal alone the third problem fails."""
    found = judged(lab, name, problem)
    assert verdict(found, problem, False) == []
    assert found["lse_max_abs"] is None
    hidden = problem["batch"] * problem["num_heads_q"] * problems.rows_without_keys(problem)
    assert found["rows_total"] - found["rows_checked"] == hidden


def test_sdpa_says_how_it_was_called(lab, math_fits):
    notes = {
        (name, label(problem)): lab.prepare(name, lab.inputs(problem)).note
        for name in ("sdpa_flash", "sdpa_math")
        for problem in (PROBLEMS[0], PROBLEMS[2])
    }
    assert list(notes.values()) == ["", "mask: causal_lower_right", "", "mask: a tensor"]


def test_a_backend_without_grouped_heads_gets_repeated_ones(lab, monkeypatch):
    try_sdpa = peers.try_sdpa

    def refuse_gqa(lab, run, name, q, k, v, mask, **more):
        if more.get("enable_gqa"):
            raise Skip("no grouped heads")
        try_sdpa(lab, run, name, q, k, v, mask, **more)

    monkeypatch.setattr(peers, "try_sdpa", refuse_gqa)
    problem = PROBLEMS[6]
    tensors = lab.inputs(problem)
    call = lab.prepare("sdpa_flash", tensors)
    assert call.note == "heads of K and V repeated beforehand: no grouped heads"
    found = lab.judge(call, tensors, lab.reference(tensors), GATES[problem["dtype"]], False)
    assert verdict(found, problem, False) == []


def test_refusals_say_why(lab, monkeypatch):
    with pytest.raises(Skip, match="No viable backend for scaled_dot_product_attention"):
        lab.prepare("sdpa_efficient", lab.inputs(PROBLEMS[0]))
    with pytest.raises(Skip, match="no causal mask aligned bottom-right for cuDNN"):
        lab.prepare("sdpa_cudnn", lab.inputs(PROBLEMS[2]))
    monkeypatch.setattr(lab, "free_bytes", lambda: 1 << 20)
    with pytest.raises(Skip, match=r"the scores need 97\.2 GiB, of which 0\.0 are free"):
        lab.prepare("sdpa_math", peers.Tensors(problem_of(2, 16, 16, 16384, 16384, 64), None, None, None))


def test_a_failure_that_is_no_refusal_goes_on(lab):
    def run():
        raise torch.cuda.OutOfMemoryError("tried to allocate")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        peers.try_sdpa(lab, run, "sdpa_flash", None, None, None, {})
    assert lab.is_out_of_memory(torch.cuda.OutOfMemoryError("")) and not lab.is_out_of_memory(
        RuntimeError("")
    )


@pytest.mark.parametrize("returns_lse", [False, True])
def test_flash_attn_gets_transposed_views(lab, returns_lse):
    class Package:
        @staticmethod
        def flash_attn_func(q, k, v, causal):
            assert q.shape == (1, 50, 4, 128) and q.stride(3) == 1
            o = lab.flashsteps.attention(*(t.transpose(1, 2) for t in (q, k, v)), causal=causal)
            o = o.transpose(1, 2).contiguous()
            return (o, None) if returns_lse else o

    lab.packages["flash_attn"] = Package
    problem = PROBLEMS[2]
    tensors = lab.inputs(problem)
    call = lab.prepare("flash_attn", tensors)
    assert call.note == "transposed views of the same tensors"
    found = lab.judge(call, tensors, lab.reference(tensors), GATES[problem["dtype"]], False)
    assert verdict(found, problem, False) == []


DECODE = problem_of(2, 4, 2, 1, 64, 64)


@pytest.fixture
def take(lab, monkeypatch):
    """Hands out the times of a cold launch, in milliseconds: take(one, other) of the calls that are timed, in the
    order of their first. A list is handed out sample by sample: what a timer takes to warm up comes before."""
    seconds = itertools.count()  # every look at the clock is a second later
    monkeypatch.setattr(lab, "now", lambda: float(next(seconds)))
    monkeypatch.setattr(lab, "sm_clock_mhz", lambda: None)
    monkeypatch.setattr(lab, "elapsed_ms", lambda work, while_running: pytest.fail("timed with a warm L2"))

    def given(*ms: float | list[float]) -> list[int]:
        times = [itertools.repeat(each) if isinstance(each, float) else iter([each[0]] * 2 + each) for each in ms]
        calls: list = []
        order: list[int] = []

        def cold_ms(run, launches, while_running):
            run()
            if run not in calls:
                calls.append(run)
            order.append(calls.index(run))
            return [next(times[order[-1]])] * launches

        monkeypatch.setattr(lab, "cold_ms", cold_ms)
        return order

    return given


def decode_call(lab: TorchLab, name: str, problem: dict = DECODE) -> peers.Call:
    """The call of a package; it is right."""
    tensors = lab.inputs(problem)
    call = lab.prepare(name, tensors, cold_l2=True)
    found = lab.judge(call, tensors, lab.reference(tensors), GATES[problem["dtype"]], False)
    assert verdict(found, problem, False) == []
    return call


@pytest.mark.parametrize("problem", [DECODE, PROBLEMS[4], problem_of(2, 6, 2, 16, 70, 64, causal=True)], ids=label)
def test_few_queries_take_flash_attentions_call_for_a_cache(lab, take, problem):
    class Package:
        @staticmethod
        def get_scheduler_metadata(batch, rows, keys, heads_q, heads_kv, width, lengths, qkv_dtype, causal):
            sizes = {"batch": batch, "seqlen_q": rows, "seqlen_kv": keys, "num_heads_kv": heads_kv}
            assert {**problem, **sizes} == problem
            assert lengths.tolist() == [keys] * batch and qkv_dtype == torch.bfloat16
            return "plan"

        @staticmethod
        def flash_attn_with_kvcache(q, k, v, causal, num_splits, cache_seqlens=None, scheduler_metadata=None):
            assert num_splits == 0 and (cache_seqlens is None) == (scheduler_metadata is None)
            return lab.flashsteps.attention(*(t.transpose(1, 2) for t in (q, k, v)), causal=causal).transpose(1, 2)

    lab.packages["flash_attn_3"], lab.builds["flash_attn_3"] = Package, {"flags": "as setup.py has them"}
    take(2.0, 3.0)
    call = decode_call(lab, "flash_attn_3", problem)
    assert call.note == "flash_attn_with_kvcache, without lengths (fastest of 2)"
    take(3.0, 2.0)
    call = decode_call(lab, "flash_attn_3", problem)
    assert "cache_seqlens and scheduler_metadata (fastest of 2)" in call.note and len(call.run.keywords) == 4

    # A build without what the call needs would run, slowly.
    lab.builds["flash_attn_3"]["flags"] += "; off: APPENDKV BACKWARD SPLIT VARLEN"
    with pytest.raises(Skip, match="built without SPLIT and VARLEN"):
        lab.prepare("flash_attn_3", lab.inputs(problem))


class FlashInfer:
    """Its wrapper as its documentation describes it: gathers the pages that the table names."""

    no_tensor_cores = False

    def __init__(self, workspace, layout, use_tensor_cores):
        assert layout == "HND" and not workspace.any()
        self.name = use_tensor_cores

    def plan(self, ends, table, last, heads_q, heads_kv, width, page_size, q_data_type, kv_data_type):
        if self.name and self.no_tensor_cores:
            raise RuntimeError("no such kernel")
        assert all(t.dtype == torch.int32 for t in (ends, table, last)) and len(table) == ends[-1]
        assert set(last.tolist()) == {page_size}
        self.tables = [table[a:b].long() for a, b in zip(ends[:-1], ends[1:])]

    def run(self, q, cache):
        k, v = (torch.stack([c[table].transpose(0, 1).flatten(1, 2) for table in self.tables]) for c in cache)
        return Flashsteps().attention(q[:, :, None], k, v)[:, :, 0]


def test_flashinfer_finds_the_same_keys_in_pages(lab, take, monkeypatch):
    def xqa(q, cache, workspace, table, lengths, most, bmm1_scale, kv_layout):
        assert kv_layout == "HND" and bmm1_scale == 1 / 8 and set(lengths.tolist()) == {most} == {64}
        decode = FlashInfer(workspace, kv_layout, False)
        decode.tables = table.long()
        return decode.run(q, cache)

    package = Namespace(BatchDecodeWithPagedKVCacheWrapper=FlashInfer, decode=SimpleNamespace())
    lab.packages["flashinfer"] = package
    take(3.0, 2.0, 4.0, 5.0)  # an older one, without XQA
    note = decode_call(lab, "flashinfer").note
    assert note.startswith("pages of 16 keys in order, for CUDA cores (fastest of 4); pages of 16 keys in order, XQA")
    assert note.count("has no attribute 'xqa_batch_decode_with_kv_cache'") == 2
    package.decode.xqa_batch_decode_with_kv_cache = xqa
    take(3.0, 2.0, 4.0, 2.0, 2.0, 1.0)
    assert decode_call(lab, "flashinfer").note == "pages of 64 keys in order, XQA (fastest of 6)"
    monkeypatch.setattr(FlashInfer, "no_tensor_cores", True)
    del package.decode.xqa_batch_decode_with_kv_cache
    take(2.0)
    note = decode_call(lab, "flashinfer", problem_of(2, 4, 2, 1, 48, 64)).note  # no whole page of 64
    assert note.startswith("pages of 16 keys in order, for CUDA cores; ") and "tensor cores: no such kernel; " in note
    for shape, reason in (((1, 2, 2, 2, 64, 64), "one query"), ((2, 2, 2, 1, 65, 64), "whole pages of 16")):
        with pytest.raises(Skip, match=reason):
            lab.prepare("flashinfer", lab.inputs(problem_of(*shape)))


def test_flashinfer_takes_one_sequence_without_pages(lab, take):
    def single(q, k, v, kv_layout, use_tensor_cores):
        assert kv_layout == "HND" and q.shape == (4, 64) and k.shape == v.shape == (2, 65, 64)
        return lab.flashsteps.attention(q[None, :, None], k[None], v[None])[0, :, 0]

    lab.packages["flashinfer"] = Namespace(single_decode_with_kv_cache=single)
    take(3.0, 2.0)
    note = decode_call(lab, "flashinfer", problem_of(1, 4, 2, 1, 65, 64)).note
    assert note == "one sequence without pages, for CUDA cores (fastest of 2)"
    take()
    with pytest.raises(Skip, match="whole pages of 16"):
        decode_call(lab, "flashinfer", problem_of(2, 4, 2, 1, 65, 64))


def way(what: str) -> peers.Call:
    return peers.Call(lambda: what, lambda with_lse: (what, None))


def test_the_fastest_way_is_that_of_the_medians_of_samples_in_turns(lab, take):
    order = take([3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0], [9.0, 2.0, 2.0, 2.0, 2.0, 9.0, 2.0])
    call = peers.fastest(lab, {"often fast": lambda: way("one"), "faster": lambda: way("other")}, cold_l2=True)
    assert call.run() == "other" and call.note == "faster (fastest of 2)"
    assert order == [0, 0, 1, 1, *[0, 1] * 7], "each is warmed up, and then they take turns"


def test_with_a_warm_l2_ways_are_timed_with_one(lab, take, monkeypatch):
    take()
    times = {"one": 3.0, "other": 2.0}

    def elapsed_ms(work, while_running):
        assert work.__self__.name in times
        return times[work.__self__.name] * work.__self__.launches

    monkeypatch.setattr(lab, "elapsed_ms", elapsed_ms)
    call = peers.fastest(lab, {what: functools.partial(way, what) for what in times}, cold_l2=False)
    assert call.run() == call.note.removesuffix(" (fastest of 2)") == "other"


def refuse(why: str):
    raise ValueError(why)


def test_a_way_that_cannot_be_timed_is_left_out_and_said(lab, take):
    asked = itertools.count()

    def late() -> None:
        if next(asked) == 4:  # in a round, when it was warmed up long since
            raise LateLaunch("the host was not ahead")

    take(2.0, 1.0)
    ways = {"one": lambda: way("one"), "late": lambda: peers.Call(late, None), "old": lambda: refuse("too old")}
    call = peers.fastest(lab, ways, cold_l2=True)
    assert call.run() == "one" and call.note == "one; old: too old; late: the host was not ahead"


def test_of_ways_that_are_all_refused_the_reasons_are_said(lab):
    with pytest.raises(Skip, match="one: too old; other: too new"):
        peers.fastest(lab, {"one": lambda: refuse("too old"), "other": lambda: refuse("too new")}, cold_l2=True)


def test_nobody_differentiates(lab):
    assert not torch.is_grad_enabled()


def test_versions(lab):
    class Package:
        __version__ = "2.8.3"

    lab.packages |= {"flash_attn": Package, "flash_attn_3": object()}
    found = lab.versions()
    assert found["torch"] == torch.__version__ and found["flash_attn"] == "2.8.3"
    assert found["flash_attn_3"] == "unknown"
    lab.builds["flash_attn_3"] = {"commit": "0123456789ab" + "f" * 28}
    assert lab.versions()["flash_attn_3"] == "commit 0123456789ab"


# What needs a GPU, with stand-ins for what PyTorch has there: that the calls exist and come in this order.


class Gpu:
    """Stands for torch.cuda, and notes who was called. Names that the real one lacks are refused."""

    def __init__(self, log: list[str]):
        self.log, self.stream = log, "the user's stream"
        self.late = iter([])  # of each launch, whether its first event has passed when it is asked

    def __getattr__(self, name):
        assert hasattr(torch.cuda, name), f"torch.cuda has no {name}"
        return lambda *a, **k: self.log.append(" ".join([name, *map(str, a)]))

    def Event(self, enable_timing):
        assert enable_timing
        name = f"event {len([line for line in self.log if line.startswith('new')])}"
        self.log.append(f"new {name}")
        gpu = self

        class Event:
            def record(self):
                gpu.log.append(f"record {name}")

            def synchronize(self):
                gpu.log.append(f"wait for {name}")

            def query(self):
                gpu.log.append(f"ask {name}")
                return next(gpu.late, False)

            def elapsed_time(self, other):
                return 1.5

        return Event()

    def CUDAGraph(self):
        return type("Graph", (), {"replay": lambda graph: self.log.append("replay")})()

    def current_stream(self):
        return self.stream

    def set_stream(self, stream):
        self.stream = stream

    def graph(self, graph, **more):
        inspect.signature(torch.cuda.graph).bind(graph, **more)
        gpu = self

        class Context:
            def __enter__(self):
                gpu.log.append("begin capture")
                gpu.stream = "torch.cuda.graph's stream"

            def __exit__(self, kind, *rest):  # like the real one, which does not get to restoring the stream
                if kind is not None:
                    raise RuntimeError("operation failed due to a previous error during capture")
                gpu.stream = "the user's stream"

        return Context()


class Namespace:
    def __init__(self, **members):
        self.__dict__ |= members


@pytest.fixture
def log(lab):
    found: list[str] = []
    lab.torch = Namespace(cuda=Gpu(found), version=torch.version)
    return found


def test_time_is_between_two_events(lab, log):
    for _ in range(2):
        assert lab.elapsed_ms(lambda: log.append("work"), lambda: log.append("clock")) == 1.5
    expected = ["record event 0", "work", "record event 1", "clock", "wait for event 1"]
    assert log == ["new event 0", "new event 1", *expected, *expected]


def test_a_cold_launch_comes_behind_a_wait_and_a_flush(lab, log):
    lab.flush = lambda: log.append("flush")
    assert lab.cold_ms(lambda: log.append("work"), 2, lambda: log.append("clock")) == [1.5, 1.5]
    assert log == [*cold_launch(0), *cold_launch(1), "clock", "wait for event 3"]


def cold_launch(at: int, wait: int = WAIT_CYCLES) -> list[str]:
    begin, end = f"event {2 * at}", f"event {2 * at + 1}"
    made = [f"new {begin}", f"new {end}"]
    return [*made, f"_sleep {wait}", "flush", f"record {begin}", "work", f"record {end}", f"ask {begin}"]


def test_a_cold_launch_that_the_gpu_may_have_waited_for_is_made_again(lab, log):
    lab.flush = lambda: log.append("flush")
    lab.torch.cuda.late = iter([False, True, True])
    assert len(lab.cold_ms(lambda: log.append("work"), 2, lambda: None)) == 2
    waits = [1, 1, 2, 4]  # and the last of them is early enough
    expected = [line for at, wait in enumerate(waits) for line in cold_launch(at, wait * WAIT_CYCLES)]
    assert log == [*expected, "wait for event 7"]


class ClockedGpu:
    """torch.cuda with clocks of the host and of the GPU, in microseconds, that only these calls move."""

    def __init__(self):
        self.host = self.gpu = 0.0
        self.launches = 0

    def queue(self, microseconds: float) -> float:
        """Work that starts when all before it is done and the host has queued it. Returns its end."""
        self.gpu = max(self.gpu, self.host) + microseconds
        return self.gpu

    def _sleep(self, cycles: int) -> None:
        self.queue(cycles / 2000)

    def call(self, host: float, kernel: float) -> None:
        self.launches += 1
        self.host += host
        self.queue(kernel)

    def Event(self, enable_timing):
        event = SimpleNamespace(at=math.inf)
        event.record = lambda: setattr(event, "at", self.queue(0))
        event.query = lambda: event.at <= self.host
        event.synchronize = lambda: setattr(self, "host", max(self.host, event.at))
        event.elapsed_time = lambda other: other.at - event.at
        return event


@pytest.mark.parametrize(
    ("host", "made"),
    [
        ([20.0], 50),  # never late
        ([250.0], 51),  # each later than the first wait and the flush; the next wait is enough
        ([30.0] * 9 + [4000.0], 52),  # some are much later; behind long waits the queue grows
    ],
)
def test_no_cold_time_has_the_hosts_in_it(lab, host, made):
    gpu = ClockedGpu()
    lab.torch, lab.flush = Namespace(cuda=gpu), lambda: gpu.queue(60)
    times = itertools.cycle(host)
    found = lab.cold_ms(lambda: gpu.call(next(times), 5.0), 50, lambda: None)
    assert found == pytest.approx([5.0] * 50) and gpu.launches == made


def test_a_call_that_waits_for_the_gpu_has_no_cold_time(lab):
    gpu = ClockedGpu()
    lab.torch, lab.flush = Namespace(cuda=gpu), lambda: gpu.queue(60)

    def run():
        gpu.host = max(gpu.host, gpu.gpu)
        gpu.call(1.0, 5.0)

    with pytest.raises(LateLaunch, match=f"the GPU waited {MAX_WAIT_CYCLES} cycles"):
        lab.cold_ms(run, 50, lambda: None)
    assert gpu.launches == 8


def test_a_capture_leaves_the_stream_as_it_was(lab, log):
    replay = lab.capture(lambda: log.append("work"))
    assert log == ["begin capture", "work"] and lab.torch.cuda.stream == "the user's stream"
    replay()
    assert log[-1] == "replay"

    def fail():
        raise ValueError("not while capturing")

    with pytest.raises(RuntimeError, match="previous error during capture"):
        lab.capture(fail)
    assert lab.torch.cuda.stream == "the user's stream"


def test_release_gives_back_what_nobody_uses(lab, log):
    lab.release()
    assert log == ["empty_cache"]


def test_free_is_also_what_pytorch_keeps(lab):
    cuda = Namespace(
        mem_get_info=lambda: (10, 100), memory_reserved=lambda: 7, memory_allocated=lambda: 3
    )  # fmt: skip
    lab.torch = Namespace(cuda=cuda)
    assert lab.free_bytes() == 14 and lab.memory_in_use() == 3


def test_a_broken_device_is_told_from_a_fine_one(lab, monkeypatch):
    assert lab.broken() == ""

    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with")

    monkeypatch.setattr(lab, "synchronize", fail)
    assert lab.broken() == "CUDA error: an illegal memory access was encountered"


def test_the_device_in_the_record(lab):
    lab.properties = Namespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=150, L2_cache_size=60
    )
    lab.nvml = Nvml("00000000:00:00.0", "libno-such-library.so")
    found = lab.device_record()
    assert (
        found["compute_capability"] == "9.0" and found["driver"] == f"unknown, for CUDA {torch.version.cuda}"
    )
    assert "max_sm_clock_mhz" not in found and "smem_optin_bytes" not in found and found["l2_bytes"] == 60
    lab.properties.shared_memory_per_block_optin = 232448
    assert lab.device_record()["smem_optin_bytes"] == 232448


@pytest.mark.parametrize("name", ["sdpa_flash", "sdpa_efficient"])
def test_a_mask_that_would_be_materialised_is_refused(lab, monkeypatch, name):
    """On a GPU. PyTorch says of these CPU tensors that the kernel cannot take them."""
    tensors = lab.inputs(PROBLEMS[2])
    monkeypatch.setattr(lab, "synchronize", lambda: None)
    monkeypatch.setattr(lab, "device", Namespace(type="cuda"))
    mask = peers.lower_right(lab, name, PROBLEMS[2])
    with pytest.raises(Skip, match="causal_lower_right would materialise the mask"):
        peers.try_sdpa(lab, lambda: None, name, tensors.q, tensors.k, tensors.v, mask, enable_gqa=True)
    peers.try_sdpa(lab, lambda: None, name, tensors.q, tensors.k, tensors.v, {"is_causal": True})
