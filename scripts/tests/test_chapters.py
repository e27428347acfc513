"""What the chapters compute, computed again, and the names that they use."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pytest
from conftest import SCRIPTS

from records import profiles, rules

ROOT = SCRIPTS.parent
np = pytest.importorskip("numpy", reason="build/venv has it")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def code_of(name: str) -> str:
    (block,) = re.findall(r"^```python\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)
    return block


def attention_of_the_page():
    names: dict = {}
    exec(compile(code_of("attention.md"), "docs/attention.md", "exec"), names)
    return names["attention"]


def softmax_attention(q, k, v, scale, causal, kv_len):
    """The formula itself, in float64: the whole matrix, no tiles."""
    s = (q @ k.T) * scale
    rows, keys = np.arange(len(q))[:, None], np.arange(len(k))[None, :]
    hidden = keys >= kv_len
    if causal:
        hidden = hidden | (keys > rows + kv_len - len(q))
    p = np.where(hidden, 0.0, np.exp(np.where(hidden, -np.inf, s - s.max())))
    sums = p.sum(axis=1)
    with np.errstate(divide="ignore"):
        lse = np.log(sums) + s.max()
    return p @ np.where(np.isnan(v), 0.0, v) / np.where(sums > 0, sums, 1.0)[:, None], lse


PROBLEMS = [
    (100, 100, 100, False),
    (100, 100, 100, True),
    (64, 64, 64, True),
    (1, 200, 200, True),  # decoding: one query, the last position
    (100, 60, 60, True),  # rows 0 to 39 see no key
    (70, 130, 65, True),
    (70, 130, 65, False),
    (5, 10, 0, False),  # nobody sees anything
]


@pytest.mark.parametrize("seqlen_q, seqlen_kv, kv_len, causal", PROBLEMS)
@pytest.mark.parametrize("block_n", [1, 16, 64])
def test_the_numpy_kernel_is_attention(seqlen_q, seqlen_kv, kv_len, causal, block_n):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((n, 16)) for n in (seqlen_q, seqlen_kv, seqlen_kv))
    expected_o, expected_lse = softmax_attention(q, k, v, 0.25, causal, kv_len)
    k[kv_len:] = v[kv_len:] = np.nan  # must not matter
    o, lse = attention_of_the_page()(q, k, v, 0.25, causal, kv_len, block_n)
    np.testing.assert_allclose(o, expected_o, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-12)
    if causal and seqlen_q > kv_len:
        assert (o[: seqlen_q - kv_len] == 0).all() and (lse[: seqlen_q - kv_len] == -np.inf).all()


def test_the_numpy_kernel_survives_scores_that_exp_does_not():
    q = np.full((1, 1), 1000.0)
    o, lse = attention_of_the_page()(q, np.array([[1.0], [2.0]]), np.array([[5.0], [7.0]]), 1.0, block_n=1)
    assert o.tolist() == [[7.0]] and lse[0] == pytest.approx(2000.0)


# ---- The worked example of the merge rule.


def part(scores: list[float], values: list[float], maximum: float | None = None) -> SimpleNamespace:
    m = max(scores) if maximum is None else maximum
    weights = [2.0 ** (score - m) for score in scores]
    l, o = sum(weights), sum(weight * value for weight, value in zip(weights, values))
    return SimpleNamespace(scores=scores, values=values, m=m, l=l, o=o)


def merge(a: SimpleNamespace, b: SimpleNamespace) -> SimpleNamespace:
    m = max(a.m, b.m)
    l, o = (getattr(a, x) * 2.0 ** (a.m - m) + getattr(b, x) * 2.0 ** (b.m - m) for x in ("l", "o"))
    return SimpleNamespace(scores=a.scores + b.scores, values=a.values + b.values, m=m, l=l, o=o)


def merge_table() -> list[str]:
    a, b = part([1, 3], [8, 4]), part([2, 5], [2, 1])
    both = merge(a, b)
    # The rule gives what all keys at once give.
    at_once = part(both.scores, both.values)
    assert (both.m, both.l, both.o) == (at_once.m, at_once.l, at_once.o)
    # Finished results, by their LSE.
    weights = [math.exp(math.log(x.l * 2**x.m) - math.log(both.l * 2**both.m)) for x in (a, b)]
    assert sum(w * x.o / x.l for w, x in zip(weights, (a, b))) == pytest.approx(both.o / both.l)

    def number(x: float) -> str:
        return f"{x:.4f}".rstrip("0").rstrip(".")

    def row(name, cell, last=True):
        cells = [cell(x) for x in (a, b, both)]
        return f"| {name} | {cells[0]} | {cells[1]} | {cells[2] if last else ''} |"

    return [
        "| | part a | part b | merged |",
        "| --- | ---: | ---: | ---: |",
        row("scores", lambda x: ", ".join(map(number, x.scores))),
        row("values", lambda x: ", ".join(map(number, x.values))),
        row("m", lambda x: number(x.m)),
        row("l", lambda x: number(x.l)),
        row("o", lambda x: number(x.o)),
        row("factor exp2(m − merged m)", lambda x: number(2.0 ** (x.m - both.m)), last=False),
        row("O = o / l", lambda x: number(x.o / x.l)),
        row("LSE = ln(l · 2^m)", lambda x: number(math.log(x.l * 2**x.m))),
    ]


def test_the_merge_example_is_computed():
    mark = r"<!-- computed by scripts/tests/test_chapters.py: merge -->\n(.*?)\n<!-- /computed -->"
    (table,) = re.findall(mark, page("attention.md"), re.DOTALL)
    assert table.splitlines() == merge_table()
    assert "= 88," in page("attention.md") and "= 46;" in page("attention.md")
    assert 2 * 8 + 8 * 4 + 4 * 2 + 32 * 1 == 88 and 2 + 8 + 4 + 32 == 46


def test_the_table_of_scales_is_computed():
    pytest.importorskip("ml_dtypes", reason="build/venv has it")
    names: dict = {}
    exec(compile(code_of("quantizers.md"), "docs/quantizers.md", "exec"), names)
    assert "\n".join(names["table"]()) in page("quantizers.md")


def test_the_skipped_tiles_are_counted():
    text = page("attention.md").replace("\n", " ")
    for seqlen, digits in (4096, 3), (512, 2):
        tiles = sum(-(-(row + 64) // 64) for row in range(0, seqlen, 64))
        ratio = tiles * 64 * 64 / (seqlen * (seqlen + 1) / 2)
        assert f"{tiles:,} of {(seqlen // 64) ** 2:,} tiles, with {ratio:.{digits}f} times" in text


# ---- Names that other pages use.


def test_the_glossary_has_our_names_right():
    sources = [*ROOT.glob("steps/*/kernel.cu"), *ROOT.glob("common/*.h")]
    known = set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in sources)))
    tables = page("glossary.md").partition("## The problem and its tiles")[2]
    names = []
    for cell in re.findall(r"^\| (.*?) \|", tables, re.MULTILINE):
        names += [word for code in re.findall(r"`([^`]+)`", cell) for word in re.findall(r"[A-Za-z_]\w*", code)]
    assert len(names) > 40
    assert [name for name in names if name not in known and name != "n"] == []


def test_the_counters_that_measuring_names_exist():
    table = page("measuring.md").partition("| look at | it says |")[2].partition("\n\n")[0]
    names = re.findall(r"`(\w+)`", table)
    assert len(names) >= 10 and [name for name in names if name not in profiles.BY_NAME] == []


def test_the_gates_are_those_that_are_applied():
    gates = [f"{dtype} {all_:.0e} and {row:.0e}" for dtype, (all_, row) in rules.GATES.items()]
    assert ", ".join(gates).replace("e-0", "e-") in page("measuring.md").replace("\n", " ")
