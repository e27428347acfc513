"""flashsteps on PyTorch's tensors on the CPU, against scaled_dot_product_attention."""

from __future__ import annotations

import flashsteps
import numpy as np
import pytest
import reference

torch = pytest.importorskip("torch")
from flashsteps import _frameworks  # noqa: E402
from torch.nn.attention.bias import causal_lower_right  # noqa: E402


@pytest.fixture(params=["exchange API", "attributes"])
def reading(request, monkeypatch):
    """Both ways to read a tensor: the fast one, and the one for a PyTorch that lacks it."""
    framework = _frameworks.PyTorch()
    if request.param == "attributes":
        framework.exchange_api = None
    elif framework.exchange_api is None:
        pytest.skip(f"PyTorch {torch.__version__} has no __dlpack_c_exchange_api__")
    monkeypatch.setitem(_frameworks._by_type, torch.Tensor, framework)


def draw_qkv(batch=1, heads_q=2, heads_kv=2, seqlen_q=70, seqlen_kv=70, head_dim=64, dtype=torch.float16):
    generator = torch.Generator().manual_seed(1)
    shapes = [(batch, heads_q, seqlen_q, head_dim)] + 2 * [(batch, heads_kv, seqlen_kv, head_dim)]
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("causal", [False, True])
def test_against_sdpa(reading, dtype, causal):
    """PyTorch's is_causal is aligned top-left, its causal_lower_right as here. A row that sees no key is NaN
    there, so there are none: seqlen_q <= seqlen_kv."""
    q, k, v = draw_qkv(batch=2, heads_q=4, heads_kv=2, seqlen_kv=100, dtype=dtype)
    mask = causal_lower_right(70, 100) if causal else None
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=mask, enable_gqa=True
    )
    o, lse = flashsteps.attention(q, k, v, causal=causal, return_lse=True)
    assert o.dtype == dtype and o.device == q.device and o.is_contiguous()
    assert lse.dtype == torch.float32 and lse.shape == q.shape[:3] and lse.is_contiguous()
    ours, our_lse = reference.attention(*(x.double().numpy() for x in (q, k, v)), causal=causal)
    assert np.allclose(ours, expected.numpy(), rtol=0, atol=1e-12)
    reference.check(o.double().numpy(), lse.numpy(), str(dtype)[6:], expected.numpy(), our_lse)


def test_layouts_and_slices_of_a_fused_tensor(reading):
    q, k, v = draw_qkv(heads_q=3, heads_kv=3)
    expected = flashsteps.attention(q, k, v)
    fused = torch.stack([x.transpose(1, 2) for x in (q, k, v)], dim=2)  # [b, s, 3, h, d]
    o = flashsteps.attention(*fused.unbind(2), layout="bshd")
    assert o.is_contiguous() and torch.equal(o.transpose(1, 2), expected)
    assert torch.equal(flashsteps.attention(*(x.transpose(1, 2) for x in fused.unbind(2))), expected)
    spread = [x.expand(4, -1, -1, -1) for x in (q, k, v)]  # strides of 0
    several = flashsteps.attention(*spread)
    assert several.is_contiguous()
    assert torch.equal(several, flashsteps.attention(*(x.contiguous() for x in spread)))


def test_strides_of_axes_of_extent_1_may_be_anything(reading):
    """PyTorch calls such tensors contiguous, and neither contiguous() nor clone() changes their strides."""
    q = torch.randn(1, 8, 64).half().unsqueeze(-1).mT  # one query
    assert q.stride() == (512, 64, 1, 1) and q.is_contiguous() and q.contiguous().stride() == q.stride()
    k, v = torch.randn(2, 1, 8, 90, 64).half()
    for arrays in ((q, k, v), (q, q, q), (q.clone(), k, v)):
        plain = [x.clone(memory_format=torch.contiguous_format).reshape(-1).view(x.shape) for x in arrays]
        for step in (*flashsteps.steps(), None):
            assert torch.equal(flashsteps.attention(*arrays, step=step), flashsteps.attention(*plain, step=step))


@pytest.mark.parametrize("axis", ["batch", "heads_q", "seqlen_q"])
def test_without_queries_the_result_is_empty(reading, axis):
    q, k, v = draw_qkv(**{axis: 0})
    o, lse = flashsteps.attention(q, k, v, return_lse=True)
    assert o.shape == q.shape and o.dtype == q.dtype and o.is_contiguous()
    assert lse.shape == q.shape[:3] and lse.dtype == torch.float32


def test_kv_lengths(reading):
    q, k, v = draw_qkv(batch=2)
    lengths = torch.tensor([0, 33], dtype=torch.int32)
    k[1, :, 33:] = v[1, :, 33:] = float("nan")
    o, lse = flashsteps.attention(q, k, v, kv_lengths=lengths, return_lse=True)
    expected = reference.attention(q.numpy(), k.numpy(), v.numpy(), kv_lengths=lengths.numpy())
    reference.check(o.double().numpy(), lse.numpy(), "float16", *expected)
    with pytest.raises(TypeError, match="^kv_lengths: is int64, expected int32"):
        flashsteps.attention(q, k, v, kv_lengths=lengths.long())


def test_no_backward_pass(reading):
    q, k, v = draw_qkv()
    expected = flashsteps.attention(q, k, v)
    for i, name in enumerate("qkv"):
        arrays = [q, k, v]
        arrays[i] = arrays[i].clone().requires_grad_()
        with pytest.raises(ValueError, match=f"^{name}: requires a gradient.*{name}.detach"):
            flashsteps.attention(*arrays)
        with torch.no_grad():
            assert torch.equal(flashsteps.attention(*arrays), expected)
    with torch.inference_mode():
        assert torch.equal(flashsteps.attention(q, k, v), expected)


def test_parameters_are_tensors():
    q, k, v = draw_qkv()
    with torch.no_grad():
        o = flashsteps.attention(torch.nn.Parameter(q), k, v)
    assert type(o) is torch.Tensor and torch.equal(o, flashsteps.attention(q, k, v))


@pytest.mark.parametrize("change", [torch.Tensor.to_sparse, lambda x: x.to("meta")], ids=["sparse", "meta"])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_tensors_without_memory(reading, name, change):
    arrays = dict(zip("qkv", draw_qkv()))
    arrays[name] = change(arrays[name])
    with pytest.raises(ValueError, match=f"^{name}: ") as raised:
        flashsteps.attention(**arrays)
    assert "\n" not in str(raised.value)


def test_mixed_frameworks():
    q, k, v = draw_qkv()
    with pytest.raises(TypeError, match="^v: is an array of NumPy, and q is one of PyTorch"):
        flashsteps.attention(q, k, v.numpy())
    with pytest.raises(TypeError, match="^kv_lengths: is an array of NumPy, and q is one of PyTorch"):
        flashsteps.attention(q, k, v, kv_lengths=np.array([3], np.int32))
    with pytest.raises(TypeError, match="^q: is a generator"):
        flashsteps.attention((x for x in q), k, v)


def test_results_are_fresh(reading):
    q, k, v = draw_qkv()
    o, lse = flashsteps.attention(q, k, v, return_lse=True)
    kept = o.clone(), lse.clone()
    flashsteps.attention(2 * q, k, v, return_lse=True)
    assert torch.equal(o, kept[0]) and torch.equal(lse, kept[1])
    o.add_(1)  # theirs: may be written


def test_arguments_are_given_back(reading):
    import sys

    q, k, v = draw_qkv(seqlen_q=5, seqlen_kv=5)
    before = [sys.getrefcount(x) for x in (q, k, v)]
    for _ in range(10):
        flashsteps.attention(q, k, v, return_lse=True)
        with pytest.raises(ValueError):
            flashsteps.attention(q, k, v, step="none")
    assert [sys.getrefcount(x) for x in (q, k, v)] == before
