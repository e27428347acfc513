"""stress.py: what it draws, and that it finds what is wrong. The kernels are PyTorch's on the CPU; streams, graphs
and events need a GPU and are not tested here."""

from __future__ import annotations

import dataclasses
import math
import threading

import pytest
from conftest import BUILD

from measure import stress
from measure.lab import LIBRARY

PAIRS = 1 << 13


def test_problems_cover_the_contract():
    problems = [stress.draw(1, index, 1 << 26) for index in range(3000)]
    assert problems == [stress.draw(1, index, 1 << 26) for index in range(3000)]
    found = {axis: {p.axes()[axis] for p in problems} for axis in problems[0].axes()}
    assert found == {
        "inputs": set(stress.INPUTS),
        "type": {"fp16", "bf16"},
        "mask": {f"D={d} {mask}" for d in (64, 128) for mask in ("causal", "full")},
        "heads": {"one in all", "MHA", "GQA", "MQA"},
        "rows": {"more than keys", "up to keys"},
        "keys": {"up to 128", "up to 2048", "up to 8192", "above 8192"},
        "kv_lengths": {"none", "given", "with 0"},
        "layout": set(stress.LAYOUTS),
        "scale": {"default", "given"},
    }
    for p in problems:
        assert 1 <= p.batch * p.num_heads_q * p.seqlen_q * p.seqlen_kv <= 1 << 26 and p.num_heads_q % p.num_heads_kv == 0
        assert p.kv_lengths is None or all(0 <= length <= p.seqlen_kv for length in p.kv_lengths)
        assert math.sqrt(p.size / (p.softmax_scale or p.head_dim**-0.5)) < 60000  # fp16 holds it
    rows = {p.seqlen_q for p in problems}
    assert {1, 63, 64, 65, 127, 128, 129} <= rows
    # Both configurations of v25 at D = 64, of which a step takes one by the number of keys.
    assert any(p.head_dim == 64 and p.causal and p.seqlen_kv > 8192 for p in problems)
    assert any(p.seqlen_q * 100 < p.seqlen_kv for p in problems)
    assert any(p.seqlen_kv * 100 < p.seqlen_q for p in problems)


class Never:
    def __init__(self):
        self.ended = threading.Event()

    def query(self) -> bool:
        return self.ended.is_set()

    def synchronize(self) -> None:
        self.ended.wait(20)


def test_a_hang_ends_the_process_and_is_named(capsys):
    ended, never = [], Never()

    def end(status: int) -> None:  # in the place of os._exit
        ended.append(status)
        never.ended.set()

    events = iter([stress.Done(), never, never])
    watch = stress.Watch(0.2, lambda: next(events), end)
    watch.start()
    for label in ("one", "two", "three"):
        watch.begin(label)
        watch.queued()
    watch.wait()
    assert ended == [3] and "no progress for 0.2 s in two\n" in capsys.readouterr().out


def test_few_rows_are_no_mean():
    """One row may be at its own gate; of many the gate is the judge's."""
    p = next(p for p in (stress.draw(1, index, PAIRS) for index in range(99)) if p.inputs == "normal")
    sizes = {"batch": 1, "num_heads_q": 1, "kv_lengths": None, "causal": False}
    figures = {"gate_nrmse": 5e-3, "gate_row": 1e-2}
    for rows, gate in ((1, 1e-2), (10**9, 5e-3)):
        of = dataclasses.replace(p, seqlen_q=rows, **sizes)
        assert stress.gate_of_the_whole(of, figures) == pytest.approx(gate)
    assert stress.gate_of_the_whole(dataclasses.replace(p, inputs="huge"), figures) == 1e-2


def test_rows_that_see_a_key_are_counted():
    for p in (stress.draw(1, index, PAIRS) for index in range(200)):
        lengths = p.kv_lengths or [p.seqlen_kv] * p.batch
        seen = sum(
            (min(i + 1 + length - p.seqlen_q, length) if p.causal else length) > 0
            for length in lengths for i in range(p.seqlen_q)
        )  # fmt: skip
        assert p.rows_that_see() == seen * p.num_heads_q


# With PyTorch.


class Attention:
    """Exact, with what a test wants to be wrong with it."""

    def __init__(self, torch, wrong: str = ""):
        self.torch, self.wrong, self.calls = torch, wrong, 0

    def __call__(self, q, k, v, *, causal, scale, kv_lengths, step, layout, return_lse):
        torch, self.calls = self.torch, self.calls + 1
        if self.wrong == "refuses" and layout == "bshd":
            raise ValueError("step: cannot run that")
        given = q
        if layout == "bshd":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        rows, keys = q.shape[2], k.shape[2]
        lengths = torch.full((q.shape[0],), keys) if kv_lengths is None else kv_lengths.long()
        last = lengths[:, None] - (rows - torch.arange(rows) if causal else 0 * torch.arange(rows) + 1)
        if self.wrong == "mask" and causal:
            last -= 1
        seen = (torch.arange(keys) <= last[..., None])[:, None]
        group = q.shape[1] // k.shape[1]
        if self.wrong == "group":
            k, v = (x.repeat(1, group, 1, 1) for x in (k, v))
        else:
            k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        scores = q.double() @ k.double().transpose(2, 3) * (scale or q.shape[3] ** -0.5)
        scores = scores.masked_fill(~seen, -math.inf)
        weights = scores.softmax(-1).masked_fill(~seen, 0)
        v = v.double() if self.wrong == "reads beyond" else v.double().nan_to_num(0)
        o, lse = (weights @ v).to(q.dtype), scores.logsumexp(-1).float()
        if self.wrong == "o":
            o *= 1.03
        elif self.wrong == "last row":
            o[:, :, -1] *= 1.03
        elif self.wrong == "lse":
            lse *= 1 + 1e-4
        elif self.wrong == "never written":
            o[:, :, rows // 2 :] = torch.empty_like(q)[:, :, rows // 2 :].fill_(math.nan)
        elif self.wrong == "minus zero":
            o = torch.where(o == 0, -o, o)
        elif self.wrong == "not repeatable" and self.calls % 2:
            o.view(torch.int16)[-1, -1, -1, -1] ^= 1
        elif self.wrong == "lse not repeatable" and self.calls % 2:
            lse.view(torch.int32)[-1, -1, -1] ^= 1
        elif self.wrong == "writes an input":
            given[0, 0, 0, 0] = 7
        elif self.wrong == "not alone" and self.calls > 20:
            o.view(torch.int16)[-1, -1, -1, -1] ^= 1
        return (o.contiguous() if layout == "bhsd" else o.transpose(1, 2).contiguous()), lse


@pytest.fixture
def make():
    torch = pytest.importorskip("torch", reason="these tests need PyTorch (CPU is enough)")
    before = torch.is_grad_enabled()

    def make(wrong: str, *words: str) -> stress.Stress:
        library = BUILD / LIBRARY
        options = stress.parse(["--problems", "60", "--streams", "2", "--lab", str(library), *words])
        options.pairs = PAIRS
        return stress.Stress(torch, Attention(torch, wrong), "cpu", options)

    yield make
    torch.set_grad_enabled(before)


def test_exact_attention_passes(make, capsys):
    of = make("", "--problems", "300")
    of.problems(["v01_scalar"], ["v02_smem_tiles"])
    assert of.failures == 0, capsys.readouterr().out
    assert sum(of.ran["v01_scalar"].values()) == 300 and "v02_smem_tiles" not in of.ran
    # What rounding o leaves. Of the first gate less than of a kernel's, which rounds P as well.
    assert 0.05 < of.worst["bf16", "nrmse"] < 0.9 and of.worst["fp16", "element"] < 0.9


@pytest.mark.parametrize(
    "wrong, said",
    [
        ("o", "NRMSE "),
        ("last row", "checked rows are wrong"),
        ("lse", "lse wrong"),
        ("mask", "NRMSE "),
        ("group", "NRMSE "),
        ("reads beyond", "element(s) of o are NaN"),
        ("never written", "element(s) of o are NaN"),
        ("minus zero", "of o see no key and are not exactly zero"),
        ("not repeatable", "two runs on the same inputs differ"),
        ("lse not repeatable", "two runs on the same inputs differ"),
        ("writes an input", "wrote to its inputs"),
        ("refuses", "step: cannot run that"),
    ],
)
def test_what_is_wrong_is_found(make, capsys, wrong: str, said: str):
    of = make(wrong)
    of.problems(["v01_scalar"], [])
    lines = capsys.readouterr().out.splitlines()
    assert 0 < of.failures == len(lines) <= stress.MAX_FAILURES
    assert any(said in line for line in lines), lines
    assert all(line.startswith("FAIL v01_scalar --problem 1,") and f" --pairs {PAIRS}: " in line for line in lines)


def test_a_soak_passes_and_finds_what_goes_wrong_in_it_only(make, capsys):
    soak = make("", "--problems", "3", "--soak", "0.005")
    assert "2 streams" in soak.soak(["v01_scalar"]) and soak.failures == 0
    soak = make("not alone", "--problems", "3", "--soak", "0.02")
    soak.soak(["v01_scalar"])
    assert soak.failures > 0
    assert "the soak, stream 0, v01_scalar --problem 1," in capsys.readouterr().out


