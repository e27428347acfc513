"""flashsteps on PyTorch's tensors: called, and recorded by torch.compile, export, jit.trace, autocast and torch.func;
on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

import subprocess
import sys

import flashsteps
import numpy as np
import pytest
import reference

torch = pytest.importorskip("torch")
import flashsteps.torch  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn.attention.bias import causal_lower_right  # noqa: E402

STEP = "v09_direct_rescale"


@pytest.fixture(params=["cpu"] if flashsteps.missing_gpu() or not torch.cuda.is_available() else ["cpu", "cuda"])
def device(request):
    torch._dynamo.reset()  # or what was compiled for another test would be used
    return request.param


@pytest.fixture(params=["exchange API", "attributes"])
def reading(request, monkeypatch):
    """Both ways to read a tensor: the fast one, and the one for a PyTorch that lacks it."""
    framework = flashsteps.torch.PyTorch()
    if request.param == "attributes":
        framework.exchange_api = None
    elif framework.exchange_api is None:
        pytest.skip(f"PyTorch {torch.__version__} has no __dlpack_c_exchange_api__")
    monkeypatch.setitem(flashsteps._call._by_type, torch.Tensor, framework)


def draw_qkv(batch=1, heads_q=2, heads_kv=2, seqlen_q=70, seqlen_kv=70, head_dim=64, dtype=torch.float16, device="cpu"):
    generator = torch.Generator().manual_seed(1)
    shapes = [(batch, heads_q, seqlen_q, head_dim)] + 2 * [(batch, heads_kv, seqlen_kv, head_dim)]
    return tuple(torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("causal", [False, True])
def test_against_sdpa(reading, device, dtype, causal):
    """PyTorch's is_causal is aligned top-left, its causal_lower_right as here. A row that sees no key is NaN
    there, so there are none: seqlen_q <= seqlen_kv."""
    q, k, v = draw_qkv(batch=2, heads_q=4, heads_kv=2, seqlen_kv=100, dtype=dtype, device=device)
    mask = causal_lower_right(70, 100) if causal else None
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=mask, enable_gqa=True
    )
    o, lse = flashsteps.attention(q, k, v, causal=causal, return_lse=True)
    assert o.dtype == dtype and o.device == q.device and o.is_contiguous()
    assert lse.dtype == torch.float32 and lse.shape == q.shape[:3] and lse.is_contiguous()
    ours, our_lse = reference.attention(*(x.double().cpu().numpy() for x in (q, k, v)), causal=causal)
    expected = expected.cpu().numpy()
    assert np.allclose(ours, expected, rtol=0, atol=1e-12)
    reference.check(o.double().cpu().numpy(), lse.cpu().numpy(), str(dtype)[6:], expected, our_lse)


def test_layouts_and_slices_of_a_fused_tensor(reading, device):
    q, k, v = draw_qkv(heads_q=3, heads_kv=3, device=device)
    expected = flashsteps.attention(q, k, v)
    fused = torch.stack([x.transpose(1, 2) for x in (q, k, v)], dim=2)  # [b, s, 3, h, d]
    o = flashsteps.attention(*fused.unbind(2), layout="bshd")
    assert o.is_contiguous() and torch.equal(o.transpose(1, 2), expected)
    assert torch.equal(flashsteps.attention(*(x.transpose(1, 2) for x in fused.unbind(2))), expected)
    spread = [x.expand(4, -1, -1, -1) for x in (q, k, v)]  # strides of 0
    several = flashsteps.attention(*spread)
    assert several.is_contiguous()
    assert torch.equal(several, flashsteps.attention(*(x.contiguous() for x in spread)))


def test_kv_lengths(reading, device):
    q, k, v = draw_qkv(batch=2, device=device)
    lengths = torch.tensor([0, 33], dtype=torch.int32, device=device)
    k[1, :, 33:] = v[1, :, 33:] = float("nan")
    o, lse = flashsteps.attention(q, k, v, kv_lengths=lengths, return_lse=True)
    expected = reference.attention(*(x.cpu().numpy() for x in (q, k, v)), kv_lengths=lengths.cpu().numpy())
    reference.check(o.double().cpu().numpy(), lse.cpu().numpy(), "float16", *expected)
    with pytest.raises(TypeError, match="^kv_lengths: is int64, expected int32"):
        flashsteps.attention(q, k, v, kv_lengths=lengths.long())


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


def test_arguments_are_given_back(reading):
    q, k, v = draw_qkv(seqlen_q=5, seqlen_kv=5)
    before = [sys.getrefcount(x) for x in (q, k, v)]
    for _ in range(10):
        flashsteps.attention(q, k, v, return_lse=True)
        with pytest.raises(ValueError):
            flashsteps.attention(q, k, v, step="none")
    assert [sys.getrefcount(x) for x in (q, k, v)] == before


# As operators


def draw_few(dtype=torch.float16, device="cpu"):
    return draw_qkv(2, 2, 1, 20, 20, dtype=dtype, device=device)


def call(q, k, v):
    return flashsteps.attention(q, k, v, causal=True, step=STEP, scale=0.1)


def call_with_lse(q, k, v):
    return flashsteps.attention(q + 1, k, v, causal=True, step=STEP, return_lse=True)


class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return call(2 * q, k, v)


@pytest.mark.parametrize("op", ["attention", "attention_with_lse"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_opcheck(device, op, layout):
    q, k, v = draw_few(device=device)
    if layout == "bshd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    lengths = torch.tensor([7, 0], dtype=torch.int32, device=device)
    op = getattr(torch.ops.flashsteps, op).default
    options = {"causal": True, "scale": 0.3, "step": STEP, "layout": layout}
    torch.library.opcheck(op, (q, k, v), options)
    torch.library.opcheck(op, (q, k, v, lengths), options)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_without_queries(reading, device, axis):
    """The result is empty: called, recorded, and compiled with a length that is a symbol."""
    q, k, v = draw_few(device=device)
    empty = [x.narrow(axis, 0, 0) if axis == 0 or x is q else x for x in (q, k, v)]
    for op in (torch.ops.flashsteps.attention.default, torch.ops.flashsteps.attention_with_lse.default):
        torch.library.opcheck(op, empty, {"causal": True, "step": STEP})
    o, lse = call_with_lse(*empty)
    assert o.shape == empty[0].shape and o.dtype == q.dtype and o.device == q.device and o.is_contiguous()
    assert lse.shape == o.shape[:3] and lse.dtype == torch.float32 and lse.device == q.device
    compiled = torch.compile(call_with_lse, fullgraph=True, backend="aot_eager", dynamic=True)
    for arrays in (empty, (q, k, v), empty):
        for found, expected in zip(compiled(*arrays), call_with_lse(*arrays), strict=True):
            assert found.shape == expected.shape and torch.equal(found, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(device, backend):
    q, k, v = draw_few(device=device)
    compiled = torch.compile(call_with_lse, fullgraph=True, backend=backend)
    for results in zip(compiled(q, k, v), call_with_lse(q, k, v)):
        assert torch.equal(*results)
    longer = [torch.cat([x, x], dim=2) for x in (q, k, v)]  # compiled again with lengths as symbols
    assert torch.equal(compiled(*longer)[0], call_with_lse(*longer)[0])


def test_the_first_call_is_compiled():
    """In a process where flashsteps has seen no tensor before, imported before PyTorch or after."""
    code = """
q, k, v = (torch.randn(1, 2, 20, 64).half() for _ in range(3))
compiled = torch.compile(lambda q, k, v: flashsteps.attention(q, k, v), fullgraph=True, backend="aot_eager")
assert "flashsteps.torch" not in sys.modules
assert torch.equal(compiled(q, k, v), flashsteps.attention(q, k, v))
"""
    for imports in ("import sys, flashsteps, torch", "import sys, torch, flashsteps"):
        done = subprocess.run(
            [sys.executable, "-c", imports + code], capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("strict", [False, True])
def test_export(device, strict):
    qkv = draw_few(device=device)
    length = torch.export.Dim("length", min=2, max=4096)
    shapes = {name: {2: length} for name in "qkv"}
    program = torch.export.export(Model(), qkv, dynamic_shapes=shapes, strict=strict)
    assert any(node.target is torch.ops.flashsteps.attention.default for node in program.graph.nodes)
    for arrays in (qkv, [x[:, :, :9] for x in qkv]):
        assert torch.equal(program.module()(*arrays), Model()(*arrays))


@pytest.mark.parametrize("record", [torch.jit.trace, lambda f, qkv: make_fx(f)(*qkv)], ids=["jit", "make_fx"])
def test_other_recorders(device, record):
    q, k, v = draw_few(device=device)
    recorded = record(call, (q, k, v))
    assert torch.equal(recorded(q + 1, k, v), call(q + 1, k, v))


def test_dispatch_modes(device):
    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            seen.append(op)
            return op(*args, **(kwargs or {}))

    seen, qkv = [], draw_few(device=device)
    with Names():
        o = call(*qkv)
    assert seen == [torch.ops.flashsteps.attention.default] and torch.equal(o, call(*qkv))


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("without", ["cpu", "meta", "fake cuda"])
def test_results_without_numbers(layout, dtype, without):
    """Shape, strides, type and device as a real call's, for arguments that are contiguous, swapped, slices, spread."""
    fake = torch._subclasses.FakeTensorMode()
    for q in (
        torch.empty(2, 6, 6, 64, dtype=dtype),
        torch.empty(2, 6, 6, 64, dtype=dtype).transpose(1, 2),
        torch.empty(2, 6, 3, 6, 64, dtype=dtype)[:, :, 1],
        torch.empty(1, 6, 6, 64, dtype=dtype).expand(2, -1, -1, -1),
    ):
        o, lse = flashsteps.attention(q, q, q, layout=layout, return_lse=True)
        x = fake.from_tensor(q) if without != "meta" else q.to("meta")
        if without == "fake cuda":
            with fake:
                x = torch.empty_strided(q.shape, q.stride(), dtype=dtype, device="cuda")
        results = torch.ops.flashsteps.attention_with_lse(x, x, x, layout=layout)
        alone = torch.ops.flashsteps.attention(x, x, x, layout=layout)
        for real, other in zip((o, lse, o), (*results, alone)):
            assert (real.shape, real.stride(), real.dtype) == (other.shape, other.stride(), other.dtype)
            assert other.device == x.device


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(device, dtype):
    """All three are converted, whatever they were, as for PyTorch's attention; eager and compiled."""
    q, k, v = draw_few(torch.float32, device)
    assert flashsteps.attention(q, k, v).dtype == torch.float32
    expected = call(*(x.to(dtype) for x in (q, k, v)))
    arrays = (q, k.to(torch.bfloat16).float(), v)
    mixed = (q, arrays[1].to(torch.bfloat16), v)
    with torch.autocast(device, dtype):
        sdpa = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        for o in (call(q, k, v), compiled(q, k, v)):
            assert o.dtype == sdpa.dtype == dtype and torch.equal(o, expected)
        assert torch.equal(call(*mixed), call(*arrays))
    if device == "cuda":
        with torch.autocast("cpu", dtype):  # of other tensors
            assert flashsteps.attention(q, k, v).dtype == torch.float32
    with pytest.raises(TypeError, match="^k: is bfloat16, and q is float32"):
        call(*mixed)


# Gradients


def gradients(function, arrays, d_o):
    """Of q, k and v, which are made to require them."""
    leaves = [x.detach().clone().requires_grad_() for x in arrays]
    function(*leaves).backward(d_o)
    return [leaf.grad for leaf in leaves]


def all_equal(some, others):
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients(reading, device, dtype, causal):
    """As the reference has them, and PyTorch's own attention."""
    q, k, v = draw_qkv(batch=2, heads_q=4, heads_kv=2, seqlen_kv=100, dtype=dtype, device=device)
    d_o = torch.randn(q.shape, generator=torch.Generator().manual_seed(4)).to(device, dtype)
    lengths = None if causal else torch.tensor([0, 90], dtype=torch.int32, device=device)
    options = {"causal": causal, "scale": 0.2, "kv_lengths": lengths}
    found = gradients(lambda *arrays: flashsteps.attention(*arrays, **options), (q, k, v), d_o)
    o, lse = flashsteps.attention(q, k, v, return_lse=True, **options)
    assert all_equal(found, flashsteps.attention_backward(d_o, q, k, v, o, lse, **options))
    in_double = [x.double().cpu() for x in (d_o, q, k, v)]
    described = {"causal": causal, "scale": 0.2, "kv_lengths": None if causal else [0, 90]}
    expected = reference.gradients(*in_double, o.double().cpu(), **described)
    reference.check_gradients([x.double().cpu().numpy() for x in found], str(dtype)[6:], expected)
    if causal:
        mask = causal_lower_right(70, 100)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        theirs = gradients(
            lambda *arrays: sdpa(*arrays, attn_mask=mask, scale=0.2, enable_gqa=True), in_double[1:], in_double[0]
        )
        exactly = reference.gradients(*in_double, **described)
        assert all(np.allclose(x, y, rtol=0, atol=1e-12) for x, (y, _) in zip(theirs, exactly, strict=True))


def test_gradients_of_layouts_and_of_a_fused_tensor(reading, device):
    """And of a sum, whose gradient has strides of 0."""
    q, k, v = draw_qkv(heads_q=3, heads_kv=3, device=device)
    expected = gradients(flashsteps.attention, (q, k, v), torch.ones_like(q))
    fused = torch.stack([x.transpose(1, 2) for x in (q, k, v)], dim=2).requires_grad_()  # [b, s, 3, h, d]
    flashsteps.attention(*fused.unbind(2), layout="bshd").sum().backward()
    assert all_equal([x.transpose(1, 2) for x in fused.grad.unbind(2)], expected)


def test_what_requires_a_gradient_gets_one(device):
    q, k, v = draw_few(device=device)
    o, expected = call(q, k, v), gradients(call, (q, k, v), torch.ones_like(q))
    for i in range(3):
        arrays = [q, k, v]
        arrays[i] = arrays[i].clone().requires_grad_()
        found = call(*arrays)
        assert found.requires_grad and torch.equal(found, o)
        found.sum().backward()
        assert torch.equal(arrays[i].grad, expected[i])
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert not call(*arrays).requires_grad


@pytest.mark.parametrize("op", ["attention", "attention_with_lse", "attention_backward"])
def test_opcheck_of_gradients(device, op):
    q, k, v = draw_few(device=device)
    lengths = torch.tensor([7, 0], dtype=torch.int32, device=device)
    options = {"causal": True, "scale": 0.3, "layout": "bshd"}
    arrays = [x.transpose(1, 2) for x in (q, k, v)]
    if op == "attention_backward":
        results = torch.ops.flashsteps.attention_with_lse(*arrays, lengths, **options)
        arrays = [results[0], *arrays, *results]
    else:
        arrays = [x.requires_grad_() for x in arrays]
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    if op == "attention":  # where lse is a result, AOTAutograd asks for its gradient
        utilities += ("test_aot_dispatch_static", "test_aot_dispatch_dynamic")
    torch.library.opcheck(getattr(torch.ops.flashsteps, op).default, (*arrays, lengths), options, test_utils=utilities)


def test_gradients_compiled(device):
    """With queries and keys whose number is a symbol, too; and below autocast, whose conversions are undone."""
    q, k, v = draw_few(device=device)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for arrays in ((q, k, v), [torch.cat([x, x], dim=2) for x in (q, k, v)]):
        d_o = torch.ones_like(arrays[0])
        assert all_equal(gradients(compiled, arrays, d_o), gradients(call, arrays, d_o))
    single = [x.float() for x in (q, k, v)]
    for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        leaves = [x.clone().requires_grad_() for x in single]
        with torch.autocast(device, torch.float16):
            o = function(*leaves)
        o.backward(torch.ones_like(o))
        expected = gradients(call, (q, k, v), torch.ones_like(q))
        assert all_equal([leaf.grad for leaf in leaves], [x.float() for x in expected])


def test_gradients_exported(device):
    q, k, v = draw_few(device=device)
    program = torch.export.export(Model(), (q, k, v)).module()
    assert all_equal(gradients(program, (q, k, v), q), gradients(Model(), (q, k, v), q))


def test_gradients_below_checkpoints_and_functions(device):
    q, k, v = draw_few(device=device)
    expected = gradients(call, (q, k, v), torch.ones_like(q))
    checkpointed = lambda *arrays: torch.utils.checkpoint.checkpoint(call, *arrays, use_reentrant=False)  # noqa: E731
    assert all_equal(gradients(checkpointed, (q, k, v), torch.ones_like(q)), expected)
    found = torch.func.grad(lambda *arrays: call(*arrays).sum(), argnums=(0, 1, 2))(q, k, v)
    assert all_equal(found, expected)


def test_gradients_that_are_refused(device):
    """Of the log-sum-exp, of gradients, and of FP8."""
    q, k, v = (x.requires_grad_() for x in draw_few(torch.float32, device))
    o, lse = flashsteps.attention(q, k, v, return_lse=True)
    with pytest.raises(ValueError, match="^lse: has a gradient, and attention_backward takes none.*lse.detach"):
        (o.sum() + lse.sum()).backward()
    loss = flashsteps.attention(q, k, v).square().sum()
    (dq,) = torch.autograd.grad(loss, q, create_graph=True)
    with pytest.raises(ValueError, match="^attention_backward: is differentiated, and attention has no second"):
        dq.sum().backward()
    o, lse = (x.detach() for x in (o, lse))
    dq, _, _ = flashsteps.attention_backward(o, q, k, v, o, lse)
    with pytest.raises(ValueError, match="^attention_backward: is differentiated"):
        dq.sum().backward()
    halves = [x.detach().half() for x in (q, k, v)]
    for i, name in enumerate("qkv"):
        arrays = list(halves)
        arrays[i] = arrays[i].clone().requires_grad_()
        message = f"{name}: requires a gradient, and attention in FP8 has no backward pass.*{name}.detach"
        quantizing = lambda *arrays: flashsteps.attention(*arrays, quantize=True)  # noqa: E731
        with pytest.raises(ValueError, match=f"^{message}"):
            quantizing(*arrays)
        with pytest.raises(RuntimeError, match=message):  # PyTorch's, around ours
            torch.compile(quantizing, fullgraph=True, backend="aot_eager")(*arrays)


def test_training(training, device):
    """The losses of two steps, and the gradients of the second one, are those of PyTorch's math attention."""
    (ours, model), (theirs, other) = (
        training.run(attend, 2, 2, device) for attend in (training.attend, training.math)
    )
    assert np.allclose(ours, theirs, rtol=1e-5 if device == "cpu" else 1e-3)
    for (name, mine), others in zip(model.named_parameters(), other.parameters(), strict=True):
        gate = 1e-4 if device == "cpu" else 0.05
        assert (mine.grad - others.grad).norm() <= gate * others.grad.norm(), name


def test_no_forward_derivative(device):
    q, k, v = draw_few(device=device)
    with pytest.raises(ValueError, match="k: has a forward-mode tangent"):
        torch.func.jvp(lambda k: call(q, k, v), (k,), (k,))
    with forward_ad.dual_level():
        with pytest.raises(ValueError, match="v: has a forward-mode tangent"):
            call(q, k, forward_ad.make_dual(v, v))
        o = call(q, k, v)
    assert torch.equal(o, call(q, k, v))


def test_vmap(device):
    """One call for each: PyTorch's fallback for an operator without a rule of batching."""
    q, k, v = (torch.stack([x, 2 * x]) for x in draw_few(device=device))
    expected = torch.stack([call(*arrays) for arrays in zip(q, k, v)])
    assert torch.equal(torch.func.vmap(call)(q, k, v), expected)
    assert torch.equal(torch.func.vmap(call, in_dims=(0, None, None))(q, k[1], v[1])[1], expected[1])


def test_what_is_wrong_is_named(device):
    q, k, v = draw_few(device=device)
    op = torch.ops.flashsteps.attention
    for x in (q, q.to("meta")):
        with pytest.raises(ValueError, match="^step: unknown step 'v99'"):
            op(x, x, x, step="v99")
        with pytest.raises(ValueError, match="^layout: is 'sbhd'"):
            op(x, x, x, layout="sbhd")
    with pytest.raises(ValueError, match="^k: has 3 dimensions"):
        op(q.to("meta"), k[0].to("meta"), v.to("meta"))
    with pytest.raises(RuntimeError, match="k: is torch.float32, and q is torch.float16"):
        torch.compile(call, fullgraph=True, backend="aot_eager")(q, k.float(), v)


def test_subclasses(device):
    class Mine(torch.Tensor):
        pass

    q, k, v = draw_few(device=device)
    for arrays in ([x.as_subclass(Mine) for x in (q, k, v)], (q, k.as_subclass(Mine), v)):
        o = call(*arrays)
        assert type(o) is Mine and torch.equal(o.as_subclass(torch.Tensor), call(q, k, v))


@pytest.mark.skipif(not hasattr(torch.nn.attention, "register_flash_attention_impl"), reason="older PyTorch")
def test_flash_attention_of_pytorch():
    """The function that a GPU test activates. Registered, it must return what PyTorch's compilers expect."""
    assert "flashsteps" in torch.nn.attention.list_flash_attention_impls()
    assert torch.nn.attention.current_flash_attention_impl() is None
    own = flashsteps.torch._scaled_dot_product_flash_attention
    for q in (draw_few()[0], draw_few()[0].transpose(1, 2).contiguous().transpose(1, 2)):
        results = own(q, q, q, is_causal=True, scale=0.2)
        expected = torch.ops.aten._scaled_dot_product_flash_attention(*[q.to("meta")] * 3, is_causal=True)
        assert torch.equal(results[0], flashsteps.attention(q, q, q, causal=True, scale=0.2))
        for ours, theirs in zip(results, expected, strict=True):
            if isinstance(theirs, torch.Tensor):
                assert (ours.shape, ours.stride(), ours.dtype) == (
                    theirs.shape,
                    theirs.stride(),
                    theirs.dtype,
                )
            else:
                assert ours == theirs
    with pytest.raises(ValueError, match="dropout is not supported"):
        own(q, q, q, dropout_p=0.1)
    o, lse, _, _, *numbers = own(q, q, q)[:6]
    d_o = torch.randn(q.shape).half()
    for of_q in (q, q.contiguous()):
        found = flashsteps.torch._scaled_dot_product_flash_attention_backward(
            d_o, of_q, q, q, o, lse, None, None, *numbers, 0.0, False, None, None
        )
        expected = flashsteps.attention_backward(d_o, q, q, q, o, lse)
        assert all_equal(found, expected)
        assert [x.stride() for x in found] == [of_q.stride(), q.stride(), q.stride()]
