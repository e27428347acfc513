"""flashsteps on a GPU: on PyTorch's tensors, and on CuPy's where it is installed. test_torch.py has what is no
different on the CPU, and test_jax_gpu.py what is JAX's.

pytest harness/python/tests/test_gpu.py -rs -s     # -s shows the host's time of a call
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import flashsteps
import numpy as np
import pytest
import reference

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import flashsteps.torch  # noqa: E402

if flashsteps.missing_gpu() is not None:
    pytest.skip(flashsteps.missing_gpu(), allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("this PyTorch finds no GPU", allow_module_level=True)
from test_kvcache_cpu import Cache  # noqa: E402

CAPABILITY = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
STEPS = [
    name
    for name, step in ((name, flashsteps.describe(name)) for name in flashsteps.steps())
    if step.needs_sm <= CAPABILITY and "fp16" in step.dtypes and not step.fp8_cache and not step.quantizes
    and not step.backward
]
BACKWARD_STEPS = [
    name
    for name, step in ((name, flashsteps.describe(name)) for name in flashsteps.steps())
    if step.needs_sm <= CAPABILITY and step.backward
]
TMA_STEPS = [name for name in STEPS if flashsteps.describe(name).needs_sm >= 90]
LONG = 200_000_000  # cycles: about 0.1 s


@pytest.fixture(autouse=True)
def quiet_device():
    """What a test left queued must not make another one pass."""
    yield
    torch.cuda.synchronize()


def draw_qkv(
    batch=2,
    heads_q=4,
    heads_kv=2,
    seqlen_q=200,
    seqlen_kv=200,
    head_dim=64,
    dtype=torch.float16,
    seed=1,
    device="cuda",
):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads_q, seqlen_q, head_dim)] + 2 * [(batch, heads_kv, seqlen_kv, head_dim)]
    return tuple(torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)


def to_double(tensor):
    return tensor.double().cpu().numpy()


def check(q, k, v, o, lse, causal=False, kv_lengths=None, scale=None):
    """[batch, heads, seqlen, head_dim] of tensors against the reference."""
    lengths = None if kv_lengths is None else kv_lengths.cpu().numpy()
    expected = reference.attention(*map(to_double, (q, k, v)), causal, scale, lengths)
    assert o.dtype == q.dtype and o.device == q.device == lse.device
    reference.check(to_double(o), lse.cpu().numpy(), str(q.dtype).removeprefix("torch."), *expected)


# Results


@pytest.mark.parametrize("step", [*STEPS, None])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_step(step, dtype, causal, head_dim):
    q, k, v = draw_qkv(batch=3, seqlen_q=150, seqlen_kv=230, head_dim=head_dim, dtype=dtype)
    lengths = torch.tensor([230, 0, 77], dtype=torch.int32, device="cuda")
    for b, length in enumerate(lengths.tolist()):
        k[b, :, length:] = v[b, :, length:] = float("nan")
    o, lse = flashsteps.attention(
        q, k, v, causal=causal, kv_lengths=lengths, scale=0.1, step=step, return_lse=True
    )
    assert o.is_contiguous() and lse.is_contiguous()
    check(q, k, v, o, lse, causal, lengths, 0.1)


@pytest.mark.parametrize("step", ["v01_scalar", "v02_smem_tiles", None])
def test_fp32(step):
    q, k, v = draw_qkv(dtype=torch.float32)
    check(q, k, v, *flashsteps.attention(q, k, v, causal=True, step=step, return_lse=True), causal=True)


@pytest.mark.parametrize("step", STEPS)
def test_layouts_and_strides(step):
    """The same numbers, laid out in other ways, give the same bits."""
    q, k, v = draw_qkv(heads_kv=4)
    expected, expected_lse = flashsteps.attention(q, k, v, causal=True, step=step, return_lse=True)
    check(q, k, v, expected, expected_lse, causal=True)

    def same(o, lse=None):
        assert o.is_contiguous() and torch.equal(o, expected)
        assert lse is None or torch.equal(lse, expected_lse)

    fused = torch.stack([x.transpose(1, 2) for x in (q, k, v)], dim=2)  # [b, s, 3, h, d]
    options = {"causal": True, "step": step}
    o, lse = flashsteps.attention(*fused.unbind(2), layout="bshd", return_lse=True, **options)
    assert o.is_contiguous()
    same(o.transpose(1, 2).contiguous(), lse)
    same(flashsteps.attention(*(x.transpose(1, 2) for x in fused.unbind(2)), **options))
    gaps = torch.full((2, 4, 400, 72), float("nan"), dtype=q.dtype, device="cuda")
    gaps[:, :, ::2, :64] = q
    same(flashsteps.attention(gaps[:, :, ::2, :64], k, v, **options))
    # As many as before: some steps share the keys among more CTAs where there are fewer heads, and round otherwise.
    twice = flashsteps.attention(*(x[:1].expand(2, -1, -1, -1) for x in (q, k, v)), **options)
    assert torch.equal(twice, expected[:1].expand(2, -1, -1, -1))


@pytest.mark.parametrize("step", [*STEPS, None])
def test_strides_of_axes_of_extent_1_may_be_anything(step):
    """PyTorch calls such tensors contiguous. Called, and captured."""
    one_query = torch.randn(1, 8, 64, device="cuda").half().unsqueeze(-1).mT
    assert one_query.stride() == (512, 64, 1, 1) and one_query.is_contiguous()
    k, v = torch.randn(2, 1, 8, 90, 64, device="cuda").half()
    for q, k, v in ((one_query, k, v), (one_query, one_query, one_query), (k, one_query, one_query)):
        options = {"step": step, "return_lse": True}
        plain = [x.reshape(-1).view(x.shape) for x in (q, k, v)]
        expected = flashsteps.attention(*plain, **options)
        check(q, k, v, *expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = flashsteps.attention(q, k, v, **options)
        graph.replay()
        for found in (captured, flashsteps.attention(q, k, v, **options)):
            assert all(map(torch.equal, found, expected))


def test_rows_of_odd_length_take_a_step_that_can():
    q, k, v = draw_qkv()
    odd = torch.empty(q.numel() + 1, dtype=q.dtype, device="cuda")[1:].view(q.shape)
    odd.copy_(q)
    check(q, k, v, *flashsteps.attention(odd, k, v, return_lse=True))


@pytest.mark.parametrize("step", TMA_STEPS)
def test_a_description_of_other_memory_is_never_taken(step):
    """Steps with TMA describe each tensor to the GPU. Equal shapes elsewhere, other shapes at one place."""
    many = [draw_qkv(seed=seed) for seed in range(4)]
    for _ in range(3):
        for q, k, v in many:
            check(q, k, v, *flashsteps.attention(q, k, v, step=step, return_lse=True))
    memory = [torch.randn(64 * 1024, device="cuda").to(torch.float16) for _ in range(3)]
    for shape in [(1, 2, 512, 64), (2, 1, 512, 64), (1, 2, 256, 128), (1, 4, 256, 64), (1, 2, 500, 64)]:
        q, k, v = (x[: np.prod(shape)].view(shape) for x in memory)
        check(q, k, v, *flashsteps.attention(q, k, v, step=step, return_lse=True))
        q, k, v = (x[: np.prod(shape)].view(shape[0], shape[2], shape[1], shape[3]) for x in memory)
        o, lse = flashsteps.attention(q, k, v, step=step, layout="bshd", return_lse=True)
        check(*(x.transpose(1, 2) for x in (q, k, v, o)), lse)


@pytest.mark.parametrize("step", ["v02_smem_tiles", None])
def test_arrays_of_the_cpu_by_copy(step):
    q, k, v = draw_qkv(batch=2, device="cpu")
    lengths = torch.tensor([9, 180], dtype=torch.int32)
    on_gpu = flashsteps.attention(*(x.cuda() for x in (q, k, v)), kv_lengths=lengths.cuda(), step=step)
    options = {"step": step, "device": "cuda"}
    o, lse = flashsteps.attention(q, k, v, kv_lengths=lengths, return_lse=True, **options)
    assert o.device.type == lse.device.type == "cpu" and torch.equal(o, on_gpu.cpu())
    check(q, k, v, o, lse, kv_lengths=lengths)
    from_numpy = flashsteps.attention(*(x.numpy() for x in (q, k, v)), kv_lengths=lengths.numpy(), **options)
    assert np.array_equal(from_numpy, o.numpy())
    bf16 = flashsteps.attention(*(x.bfloat16() for x in (q, k, v)), device="cuda")
    assert bf16.dtype == torch.bfloat16 and (bf16.double() - to_double_attention(q, k, v)).norm() < 1
    strided = flashsteps.attention(
        *(x.transpose(1, 2).contiguous() for x in (q, k, v)), layout="bshd", device="cuda"
    )
    assert torch.equal(strided.transpose(1, 2), flashsteps.attention(q, k, v, device="cuda"))
    on_gpu = flashsteps.attention(*(x.cuda() for x in (q, k, v)), device="cuda")  # where they are already
    assert on_gpu.device.type == "cuda" and torch.equal(on_gpu.cpu(), flashsteps.attention(q, k, v, device="cuda"))


def to_double_attention(q, k, v):
    return torch.from_numpy(reference.attention(*map(to_double, (q, k, v)))[0])


# Streams


@pytest.mark.parametrize("step", STEPS)
def test_on_the_current_stream_and_without_waiting(step):
    """q holds NaN until a copy that is queued behind a long kernel. A call on any other stream, or before
    that copy, reads NaN; a call that waits returns when the long kernel is done."""
    fresh, k, v = draw_qkv()
    expected = flashsteps.attention(fresh, k, v, step=step)  # also loads the kernel
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        q = torch.full_like(fresh, float("nan"))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)
            slept = torch.cuda.Event()
            slept.record()
            q.copy_(fresh)
            o, lse = flashsteps.attention(q, k, v, step=step, return_lse=True)
            assert not slept.query(), "the call waited for the GPU"
            doubled = o * 2  # as users go on: on the same stream
        stream.synchronize()
        assert torch.equal(o, expected) and torch.equal(doubled, expected * 2)
        check(fresh, k, v, o, lse)


def test_a_stream_of_another_thread():
    q, k, v = draw_qkv()
    expected = flashsteps.attention(q, k, v)
    torch.cuda.synchronize()
    results = {}

    def call(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            outputs = [flashsteps.attention(q, k, v) for _ in range(50)]
            results[number] = all(torch.equal(o, expected) for o in outputs)
        stream.synchronize()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(4), True)


@pytest.mark.parametrize("step", [*STEPS, None])
def test_cuda_graph(step):
    q, k, v = draw_qkv()
    lengths = torch.tensor([200, 100], dtype=torch.int32, device="cuda")
    options = {"causal": True, "kv_lengths": lengths, "step": step, "return_lse": True}
    flashsteps.attention(q, k, v, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = flashsteps.attention(q, k, v, **options)
        without_lse = flashsteps.attention(q, k, v, causal=True, kv_lengths=lengths, step=step)
    for seed in (2, 3):
        for array, numbers in zip((q, k, v), draw_qkv(seed=seed)):
            array.copy_(numbers)
        lengths.copy_(torch.tensor([50 * seed, 7], dtype=torch.int32))
        o.fill_(float("nan"))
        graph.replay()
        assert torch.equal(o, without_lse)
        check(q, k, v, o, lse, causal=True, kv_lengths=lengths)


def draw_cache(lengths, page_size, seed=1):
    """k and v in one piece, and in pages; and the table."""
    cache = Cache(lengths, page_size, head_dim=128, most=8 * page_size, seed=seed)
    arrays = (cache.k, cache.v, cache.k_pages, cache.v_pages, cache.table)
    k, v, k_pages, v_pages, table = (torch.from_numpy(x).cuda() for x in arrays)
    return (k, v), (k_pages, v_pages), table


@pytest.mark.parametrize("page_size", [1, 16, 64, 128, 256])
def test_kvcache(page_size):
    lengths = [0, 1, 5 * page_size + page_size // 2, 8 * page_size]
    whole, pages, table = draw_cache(lengths, page_size)
    seqlens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    q = torch.randn((4, 2, 8, 128), device="cuda").half()
    o, lse = flashsteps.attention_with_kvcache(
        q, *pages, cache_seqlens=seqlens, page_table=table, return_lse=True
    )
    bhsd = [x.transpose(1, 2) for x in (q, *whole, o)]
    check(*bhsd[:3], bhsd[3], lse, causal=True, kv_lengths=seqlens)
    whole_cache = {"kv_lengths": seqlens, "layout": "bshd", "causal": True, "step": "v36_stream_k"}
    in_one_piece = flashsteps.attention(q, *whole, **whole_cache)
    assert torch.equal(in_one_piece, o)


def test_kvcache_in_a_cuda_graph():
    """The lengths and the table change between replays, as they do from token to token."""
    seqlens = torch.tensor([40, 3], dtype=torch.int32, device="cuda")
    _, pages, table = draw_cache([40, 3], 16)
    q = torch.randn((2, 1, 8, 128), device="cuda").half()
    arrays = {"cache_seqlens": seqlens, "page_table": table, "return_lse": True}
    flashsteps.attention_with_kvcache(q, *pages, **arrays)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = flashsteps.attention_with_kvcache(q, *pages, **arrays)
    for seed, lengths in ((2, [100, 0]), (3, [17, 128])):
        whole, other, other_table = draw_cache(lengths, 16, seed=seed)
        for array, numbers in zip((*pages, table), (*other, other_table)):
            array.copy_(numbers)
        seqlens.copy_(torch.tensor(lengths, dtype=torch.int32))
        o.fill_(float("nan"))
        graph.replay()
        bhsd = [x.transpose(1, 2) for x in (q, *whole, o)]
        check(*bhsd[:3], bhsd[3], lse, causal=True, kv_lengths=seqlens)


@pytest.mark.parametrize("step", STEPS)
def test_graphs_side_by_side(step):
    """Two graphs of one stream and calls on that stream share nothing that a kernel writes."""
    inputs = [draw_qkv(seqlen_q=700, seqlen_kv=700, seed=seed) for seed in range(2)]
    expected = [flashsteps.attention(*qkv, causal=True, step=step) for qkv in inputs]
    captured, others = torch.cuda.Stream(), [torch.cuda.Stream() for _ in inputs]
    graphs, results = [], []
    torch.cuda.synchronize()
    for qkv in inputs:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=captured):
            results.append(flashsteps.attention(*qkv, causal=True, step=step))
    for _ in range(20):
        for result in results:
            result.fill_(float("nan"))
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, others):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(LONG // 100)
                graph.replay()
        with torch.cuda.stream(captured):
            torch.cuda._sleep(LONG // 100)
            eager = flashsteps.attention(*inputs[0], causal=True, step=step)
        torch.cuda.synchronize()
        assert torch.equal(eager, expected[0])
        assert all(torch.equal(result, o) for result, o in zip(results, expected))


def test_cuda_graph_of_the_first_call():
    """Whatever is set up at a step's first call is set up while a graph is captured. And PyTorch is imported
    first, so that its copy of the CUDA runtime is ours; in this process it comes second."""
    code = f"""
import torch, flashsteps
q, k, v = (torch.randn(1, 4, 200, 64, device="cuda").half() for _ in range(3))
expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
torch.cuda.synchronize()
for step in {STEPS!r}:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = flashsteps.attention(q, k, v, step=step)
    graph.replay()
    assert (o.double() - expected).norm() <= 1e-3 * expected.norm(), step
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1800)
    assert done.stdout == "done\n", done.stderr


# Gradients


def draw_gradient_call(dtype=torch.float16, **shape):
    """d_o, q, k, v, o and lse of a causal call."""
    q, k, v = draw_qkv(dtype=dtype, **shape)
    o, lse = flashsteps.attention(q, k, v, causal=True, return_lse=True)
    return draw_qkv(dtype=dtype, **shape, seed=2)[0], q, k, v, o, lse


def near(found, expected):
    """Gradients in half precision of two steps, or of two runs of a step that varies."""
    return all((x - y).double().norm() <= 0.01 * y.double().norm() for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("step", [*BACKWARD_STEPS, None])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients(step, dtype, head_dim, causal):
    """Under GQA, of queries that see no key, and of keys that no query sees; twice."""
    q, k, v = draw_qkv(batch=3, seqlen_q=200, seqlen_kv=333, head_dim=head_dim, dtype=dtype)
    lengths = torch.tensor([333, 0, 70], dtype=torch.int32, device="cuda")
    k[2, :, 70:] = v[2, :, 70:] = float("nan")
    options = {"causal": causal, "kv_lengths": lengths}
    o, lse = flashsteps.attention(q, k, v, return_lse=True, **options)
    d_o = draw_qkv(batch=3, seqlen_q=200, head_dim=head_dim, dtype=dtype, seed=2)[0]
    found, again = (flashsteps.attention_backward(d_o, q, k, v, o, lse, step=step, **options) for _ in range(2))
    expected = reference.gradients(*map(to_double, (d_o, q, k, v, o)), causal, None, lengths.cpu().numpy())
    reference.check_gradients(list(map(to_double, found)), str(dtype).removeprefix("torch."), expected)
    if step is not None and flashsteps.describe(step).varies is None:
        assert all(map(torch.equal, found, again))


@pytest.mark.parametrize("step", [*BACKWARD_STEPS, None])
def test_gradients_of_other_layouts_and_of_host_memory(step):
    arrays = draw_gradient_call()
    expected = flashsteps.attention_backward(*arrays, causal=True, step=step)
    swapped = [x.transpose(1, 2) for x in arrays[:5]]
    for tensors in (swapped, [x.contiguous() for x in swapped]):
        found = flashsteps.attention_backward(*tensors, arrays[5], causal=True, step=step, layout="bshd")
        assert all(x.is_contiguous() for x in found) and near([x.transpose(1, 2) for x in found], expected)
    on_host = [x.cpu() for x in arrays]
    found = flashsteps.attention_backward(*on_host, causal=True, step=step, device="cuda")
    assert all(x.device.type == "cpu" for x in found) and near([x.cuda() for x in found], expected)


@pytest.mark.parametrize("step", [*BACKWARD_STEPS, None])
def test_gradients_on_the_current_stream_without_waiting_and_captured(step):
    d_o, *others = draw_gradient_call()
    expected = flashsteps.attention_backward(d_o, *others, causal=True, step=step)
    late = torch.full_like(d_o, float("nan"))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(LONG)
        slept = torch.cuda.Event()
        slept.record()
        late.copy_(d_o)
        found = flashsteps.attention_backward(late, *others, causal=True, step=step)
        assert not slept.query(), "the call waited for the GPU"
    torch.cuda.synchronize()
    assert near(found, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = flashsteps.attention_backward(late, *others, causal=True, step=step)
    for factor in (2, 1):
        late.copy_(factor * d_o)
        graph.replay()
        assert near([x / factor for x in found], expected)


def test_gradients_without_queries():
    q, k, v = draw_qkv()
    for arrays in ((q[:, :0], k, v), (q[:, :, :0], k, v)):
        o, lse = flashsteps.attention(*arrays, return_lse=True)
        _, dk, dv = flashsteps.attention_backward(o, *arrays, o, lse)
        assert dk.shape == dv.shape == k.shape and not dk.any() and not dv.any()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_gradients_compiled(mode):
    """By Inductor. reduce-overhead captures CUDA graphs, of the backward pass, too."""
    torch._dynamo.reset()

    def loss(q, k, v):
        return flashsteps.attention(q * 2, k, v, causal=True).float().square().sum()

    compiled = torch.compile(loss, fullgraph=True, mode=mode)
    for seed in range(1, 6):
        gradients = []
        for function in (loss, compiled):
            leaves = [x.requires_grad_() for x in draw_qkv(seed=seed)]
            function(*leaves).backward()
            gradients.append([leaf.grad.clone() for leaf in leaves])
        assert near(*gradients)


def test_training(training):
    """The losses of harness/examples/train.py are about those of PyTorch's math attention, and become small."""
    ours, theirs = (training.run(attend, 100, 64, "cuda")[0] for attend in (training.attend, training.math))
    assert np.allclose(ours[:10], theirs[:10], rtol=0.02)
    assert ours[0] > 3 and ours[-1] < 0.1 and theirs[-1] < 0.1


# As PyTorch's operator


def attend(q, k, v):
    return flashsteps.attention(q + 1, k, v, causal=True, return_lse=True)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(mode):
    """By Inductor. reduce-overhead captures CUDA graphs: from the third call on they are replayed."""
    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, mode=mode)
    for seed in range(1, 6):
        q, k, v = draw_qkv(seed=seed)
        o, lse = compiled(q, k, v)
        check(q + 1, k, v, o, lse, causal=True)
    q, k, v = draw_qkv(seqlen_q=333, seqlen_kv=333)
    check(q + 1, k, v, *compiled(q, k, v), causal=True)


def test_compiled_with_swapped_layouts():
    """Inductor must hand over rows that are contiguous, whatever it makes of the transposes."""
    torch._dynamo.reset()

    def swapped(q, k, v):
        q, k, v = ((x.transpose(1, 2) * 1).transpose(1, 2) for x in (q, k, v))
        return flashsteps.attention(q.relu(), k, v, return_lse=True)

    q, k, v = draw_qkv()
    check(q.relu(), k, v, *torch.compile(swapped, fullgraph=True)(q, k, v))


@pytest.mark.skipif(not hasattr(torch.nn.attention, "register_flash_attention_impl"), reason="older PyTorch")
def test_below_scaled_dot_product_attention():
    """Only while it is active; eager and compiled; PyTorch's own gives other bits."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    backend = torch.nn.attention.SDPBackend.FLASH_ATTENTION
    q, k, v = draw_qkv(heads_kv=4, head_dim=128)
    expected = flashsteps.attention(q, k, v, causal=True)
    theirs = sdpa(q, k, v, is_causal=True)
    torch._dynamo.reset()
    torch.nn.attention.activate_flash_attention_impl("flashsteps")
    try:
        with torch.nn.attention.sdpa_kernel(backend):
            for function in (sdpa, torch.compile(sdpa, fullgraph=True)):
                assert torch.equal(function(q, k, v, is_causal=True), expected)
            swapped = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
            o = sdpa(*swapped, is_causal=True)
            assert o.stride() == swapped[0].stride() and torch.equal(o, expected)
            with pytest.raises(ValueError, match="dropout is not supported"):
                sdpa(q, k, v, dropout_p=0.5)
            o, lse = flashsteps.attention(q, k, v, causal=True, return_lse=True)
            d_o = torch.randn_like(q)
            gradients = flashsteps.attention_backward(d_o, q, k, v, o, lse, causal=True)
            for function in (sdpa, torch.compile(sdpa, fullgraph=True)):
                leaves = [x.clone().requires_grad_() for x in (q, k, v)]
                function(*leaves, is_causal=True).backward(d_o)
                for leaf, gradient in zip(leaves, gradients, strict=True):
                    assert leaf.grad.stride() == leaf.stride()
                    assert near([leaf.grad], [gradient])
    finally:
        torch.nn.attention.restore_flash_attention_impl()
    assert torch.equal(sdpa(q, k, v, is_causal=True), theirs)


# Cost


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("step", [*STEPS, None])
def test_a_thousand_calls_keep_no_memory(step):
    q, k, v = draw_qkv()
    gc.collect()
    gc.freeze()  # collections need not go through half a million objects of PyTorch's compiler, in each test

    def state():
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]

    def calls(number):
        for _ in range(number):
            flashsteps.attention(q, k, v, step=step)
            flashsteps.attention(q, k, v, step=step, return_lse=True)

    try:
        calls(100)
        before, host_before = state(), resident_bytes()
        calls(1000)
        after, host_after = state(), resident_bytes()
    finally:
        gc.unfreeze()
    assert after == before
    assert host_after - host_before < 4 << 20


def host_times(*calls):
    """Microseconds that this thread computes in each call: in the fastest of batches, small enough to queue.

    The batches take turns, since the host's clocks come and go. Who else runs there is not what is tested:
    scripts/measure/compare_peers.py records the time that passes.
    """
    samples = [[] for _ in calls]
    for batch in range(31):
        for call, times in zip(calls, samples):
            torch.cuda.synchronize()
            start = time.thread_time()
            for _ in range(100):
                call()
            if batch > 0:  # the first one warms up
                times.append((time.thread_time() - start) * 1e4)
    return [min(times) for times in samples]


@pytest.mark.parametrize(
    ("step", "seqlen_q"),
    [(step, 64) for step in ("v09_direct_rescale", "v10_tma_warpspec", None) if step in (*STEPS, None)]
    + [(None, 1)],  # by a step for decoding
)
@pytest.mark.parametrize("return_lse", [False, True])
def test_host_time(step, seqlen_q, return_lse):
    """A call keeps the host no longer than PyTorch's own: hosts differ too much for a limit in microseconds."""
    q, k, v = draw_qkv(batch=1, heads_q=1, heads_kv=1, seqlen_q=seqlen_q, seqlen_kv=64)
    with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        took, limit, empty = host_times(
            lambda: flashsteps.attention(q, k, v, step=step, return_lse=return_lse),
            lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
            lambda: q.new_empty((1, 1, seqlen_q), dtype=torch.float32),
        )
    if return_lse:  # one tensor more is asked of PyTorch's allocator, at its price
        limit += empty
    print(f"\nhost time of a call: {took:.2f} us, allowed {limit:.2f} ({step=}, {seqlen_q=}, {return_lse=})")
    assert took < limit


# What is refused


def test_arguments_on_several_devices():
    q, k, v = draw_qkv()
    allocated = torch.cuda.memory_allocated()
    for name in "kv":
        arrays = {"q": q, "k": k, "v": v}
        arrays[name] = arrays[name].cpu()
        with pytest.raises(ValueError, match=f"^{name}: is on the CPU, and q is on cuda:0"):
            flashsteps.attention(**arrays)
    with pytest.raises(ValueError, match="^k: is on cuda:0, and q is on the CPU"):
        flashsteps.attention(q.cpu(), k, v)
    with pytest.raises(ValueError, match="^kv_lengths: is on the CPU, and q is on cuda:0"):
        flashsteps.attention(q, k, v, kv_lengths=torch.ones(2, dtype=torch.int32))
    with pytest.raises(ValueError, match="^page_table: is on the CPU, and q is on cuda:0"):
        table = torch.zeros((2, 1), dtype=torch.int32)
        flashsteps.attention_with_kvcache(q, k, v, cache_seqlens=None, page_table=table)
    assert torch.cuda.memory_allocated() == allocated


# Two GPUs

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@two_gpus
@pytest.mark.parametrize("step", STEPS)
def test_the_other_gpu(step):
    """Tensors of cuda:1 while cuda:0 is the current device: on cuda:1, on its current stream."""
    torch.cuda.set_device(0)  # JAX leaves another one, once it has been imported
    fresh, k, v = draw_qkv(device="cuda:1")
    o, lse = flashsteps.attention(fresh, k, v, step=step, return_lse=True)
    check(fresh, k, v, o, lse)
    assert torch.cuda.current_device() == 0
    first = flashsteps.attention(*(x.to("cuda:0") for x in (fresh, k, v)), step=step)
    assert torch.equal(first.cpu(), o.cpu())

    q = torch.full_like(fresh, float("nan"))
    stream = torch.cuda.Stream("cuda:1")
    torch.cuda.synchronize("cuda:1")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        q.copy_(fresh)
        with torch.cuda.device(0):  # the current stream of cuda:1 stays
            late = flashsteps.attention(q, k, v, step=step)
            assert torch.cuda.current_device() == 0
    stream.synchronize()
    assert torch.equal(late, o)
    with pytest.raises(ValueError, match="^v: is on cuda:1, and q is on cuda:0"):
        flashsteps.attention(q.to("cuda:0"), k.to("cuda:0"), v)


@two_gpus
def test_a_call_touches_its_gpu_alone():
    """Not the one that is current in a thread which has not used any."""
    code = """
import ctypes, threading, torch, flashsteps
def has_context(device):
    flags, active = ctypes.c_uint(), ctypes.c_int()
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0
    return bool(active.value)
q = torch.randn(1, 2, 100, 64, dtype=torch.float16, device="cuda:1")
before = has_context(0)
results = [flashsteps.attention(q, q, q)]
thread = threading.Thread(target=lambda: results.append(flashsteps.attention(q, q, q)))
thread.start()
thread.join()
torch.cuda.synchronize("cuda:1")
print(before, has_context(0), has_context(1), torch.equal(*results))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if done.stdout.startswith("True"):
        pytest.skip("PyTorch itself has made a context on cuda:0")
    assert done.stdout == "False False True True\n"


# Other frameworks


def test_cupy():
    cupy = pytest.importorskip("cupy")
    q, k, v = draw_qkv()
    lengths = torch.tensor([33, 200], dtype=torch.int32, device="cuda")
    expected, expected_lse = flashsteps.attention(q, k, v, causal=True, kv_lengths=lengths, return_lse=True)
    torch.cuda.synchronize()
    fresh, k, v, lengths = (cupy.asarray(x.cpu().numpy()) for x in (q, k, v, lengths))
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        q = cupy.asarray(np.full(fresh.shape, np.nan, np.float16))
        cupy.cuda.Device().synchronize()
        with stream:
            same = torch.cuda.ExternalStream(stream.ptr) if stream.ptr else torch.cuda.default_stream()
            with torch.cuda.stream(same):
                torch.cuda._sleep(LONG)
                slept = torch.cuda.Event()
                slept.record()
            q.data.copy_from_device_async(fresh.data, fresh.nbytes, stream)
            o, lse = flashsteps.attention(q, k, v, causal=True, kv_lengths=lengths, return_lse=True)
            assert not slept.query(), "the call waited for the GPU"
        stream.synchronize()
        assert isinstance(o, cupy.ndarray) and o.dtype == np.float16 and lse.dtype == np.float32
        assert np.array_equal(o.get(), expected.cpu().numpy())
        assert np.array_equal(lse.get(), expected_lse.cpu().numpy())
    with pytest.raises(TypeError, match="^k: is float64, expected"):
        flashsteps.attention(q, cupy.asarray(k.get().astype(np.float64)), v)
    swapped = flashsteps.attention(*(x.transpose(0, 2, 1, 3) for x in (fresh, k, v)), layout="bshd")
    assert np.array_equal(swapped.get().transpose(0, 2, 1, 3), flashsteps.attention(fresh, k, v).get())
