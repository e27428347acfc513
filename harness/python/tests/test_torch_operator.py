"""flashsteps in what records PyTorch's operations: torch.compile, export, jit.trace, autocast, torch.func; on the CPU."""

from __future__ import annotations

import subprocess
import sys

import flashsteps
import pytest

torch = pytest.importorskip("torch")
import flashsteps.torch  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

STEP = "v09_direct_rescale"


def draw_qkv(dtype=torch.float16):
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(2, n, 20, 64, generator=generator).to(dtype) for n in (2, 1, 1))


def call(q, k, v):
    return flashsteps.attention(q, k, v, causal=True, step=STEP, scale=0.1)


def call_with_lse(q, k, v):
    return flashsteps.attention(q + 1, k, v, causal=True, step=STEP, return_lse=True)


class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return call(2 * q, k, v)


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


@pytest.mark.parametrize("op", ["attention", "attention_with_lse"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_opcheck(op, layout):
    q, k, v = draw_qkv()
    if layout == "bshd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    lengths = torch.tensor([7, 0], dtype=torch.int32)
    op = getattr(torch.ops.flashsteps, op).default
    options = {"causal": True, "scale": 0.3, "step": STEP, "layout": layout}
    torch.library.opcheck(op, (q, k, v), options)
    torch.library.opcheck(op, (q, k, v, lengths), options)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_without_queries(axis):
    """The result is empty: called, recorded, and compiled with a length that is a symbol."""
    q, k, v = draw_qkv()
    empty = [x.narrow(axis, 0, 0) if axis == 0 or x is q else x for x in (q, k, v)]
    for op in (torch.ops.flashsteps.attention.default, torch.ops.flashsteps.attention_with_lse.default):
        torch.library.opcheck(op, empty, {"causal": True, "step": STEP})
    compiled = torch.compile(call_with_lse, fullgraph=True, backend="aot_eager", dynamic=True)
    for arrays in (empty, (q, k, v), empty):
        for found, expected in zip(compiled(*arrays), call_with_lse(*arrays), strict=True):
            assert found.shape == expected.shape and torch.equal(found, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    q, k, v = draw_qkv()
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
def test_export(strict):
    qkv = draw_qkv()
    length = torch.export.Dim("length", min=2, max=4096)
    shapes = {name: {2: length} for name in "qkv"}
    program = torch.export.export(Model(), qkv, dynamic_shapes=shapes, strict=strict)
    assert any(node.target is torch.ops.flashsteps.attention.default for node in program.graph.nodes)
    for arrays in (qkv, [x[:, :, :9] for x in qkv]):
        assert torch.equal(program.module()(*arrays), Model()(*arrays))


@pytest.mark.parametrize("record", [torch.jit.trace, lambda f, qkv: make_fx(f)(*qkv)], ids=["jit", "make_fx"])
def test_other_recorders(record):
    q, k, v = draw_qkv()
    recorded = record(call, (q, k, v))
    assert torch.equal(recorded(q + 1, k, v), call(q + 1, k, v))


def test_dispatch_modes():
    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            seen.append(op)
            return op(*args, **(kwargs or {}))

    seen, qkv = [], draw_qkv()
    with Names():
        o = call(*qkv)
    assert seen == [torch.ops.flashsteps.attention.default] and torch.equal(o, call(*qkv))


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("device", ["cpu", "meta", "fake cuda"])
def test_results_without_numbers(layout, dtype, device):
    """Shape, strides, type and device as a real call's, for arguments that are contiguous, swapped, slices, spread."""
    fake = torch._subclasses.FakeTensorMode()
    for q in (
        torch.empty(2, 6, 6, 64, dtype=dtype),
        torch.empty(2, 6, 6, 64, dtype=dtype).transpose(1, 2),
        torch.empty(2, 6, 3, 6, 64, dtype=dtype)[:, :, 1],
        torch.empty(1, 6, 6, 64, dtype=dtype).expand(2, -1, -1, -1),
    ):
        o, lse = flashsteps.attention(q, q, q, layout=layout, return_lse=True)
        x = fake.from_tensor(q) if device != "meta" else q.to("meta")
        if device == "fake cuda":
            with fake:
                x = torch.empty_strided(q.shape, q.stride(), dtype=dtype, device="cuda")
        results = torch.ops.flashsteps.attention_with_lse(x, x, x, layout=layout)
        alone = torch.ops.flashsteps.attention(x, x, x, layout=layout)
        for real, other in zip((o, lse, o), (*results, alone)):
            assert (real.shape, real.stride(), real.dtype) == (other.shape, other.stride(), other.dtype)
            assert other.device == x.device


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype):
    """All three are converted, whatever they were, as for PyTorch's attention; eager and compiled."""
    q, k, v = draw_qkv(torch.float32)
    assert flashsteps.attention(q, k, v).dtype == torch.float32
    expected = call(*(x.to(dtype) for x in (q, k, v)))
    arrays = (q, k.to(torch.bfloat16).float(), v)
    mixed = (q, arrays[1].to(torch.bfloat16), v)
    with torch.autocast("cpu", dtype):
        sdpa = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        for o in (call(q, k, v), compiled(q, k, v)):
            assert o.dtype == sdpa.dtype == dtype and torch.equal(o, expected)
        assert torch.equal(call(*mixed), call(*arrays))
    with pytest.raises(TypeError, match="^k: is bfloat16, and q is float32"):
        call(*mixed)


def test_no_gradient():
    q, k, v = draw_qkv()
    for i, name in enumerate("qkv"):
        arrays = [q, k, v]
        arrays[i] = arrays[i].clone().requires_grad_()
        message = f"{name}: requires a gradient.*{name}.detach"
        for function in (call, torch.ops.flashsteps.attention, torch.ops.flashsteps.attention_with_lse):
            with pytest.raises(ValueError, match=message):
                function(*arrays)
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        with pytest.raises(RuntimeError, match=message):  # Dynamo's, around ours
            compiled(*arrays)
        with torch.no_grad():
            assert torch.equal(compiled(*arrays), call(q, k, v))


def test_no_derivative():
    q, k, v = draw_qkv()
    with pytest.raises(ValueError, match="k: requires a gradient"):
        torch.func.grad(lambda k: call(q, k, v).float().sum())(k)
    with pytest.raises(ValueError, match="k: has a forward-mode tangent"):
        torch.func.jvp(lambda k: call(q, k, v), (k,), (k,))
    with forward_ad.dual_level():
        with pytest.raises(ValueError, match="v: has a forward-mode tangent"):
            call(q, k, forward_ad.make_dual(v, v))
        o = call(q, k, v)
    assert torch.equal(o, call(q, k, v))


def test_vmap():
    """One call for each: PyTorch's fallback for an operator without a rule of batching."""
    q, k, v = (torch.stack([x, 2 * x]) for x in draw_qkv())
    expected = torch.stack([call(*arrays) for arrays in zip(q, k, v)])
    assert torch.equal(torch.func.vmap(call)(q, k, v), expected)
    assert torch.equal(torch.func.vmap(call, in_dims=(0, None, None))(q, k[1], v[1])[1], expected[1])


def test_what_is_wrong_is_named():
    q, k, v = draw_qkv()
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


def test_subclasses():
    class Mine(torch.Tensor):
        pass

    q, k, v = draw_qkv()
    for arrays in ([x.as_subclass(Mine) for x in (q, k, v)], (q, k.as_subclass(Mine), v)):
        o = call(*arrays)
        assert type(o) is Mine and torch.equal(o.as_subclass(torch.Tensor), call(q, k, v))


@pytest.mark.skipif(not hasattr(torch.nn.attention, "register_flash_attention_impl"), reason="older PyTorch")
def test_flash_attention_of_pytorch():
    """The function that a GPU test activates. Registered, it must return what PyTorch's compilers expect."""
    assert "flashsteps" in torch.nn.attention.list_flash_attention_impls()
    assert torch.nn.attention.current_flash_attention_impl() is None
    own = flashsteps.torch._scaled_dot_product_flash_attention
    for q in (draw_qkv()[0], draw_qkv()[0].transpose(1, 2).contiguous().transpose(1, 2)):
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
    with pytest.raises(ValueError, match="^q: requires a gradient"):
        own(q.requires_grad_(), q, q)
