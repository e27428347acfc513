"""The contenders of compare_peers.py: how other people's kernels are called on the same tensors as steps."""
from __future__ import annotations

import contextlib
import functools
import re
import statistics
import warnings
from dataclasses import dataclass
from typing import Any, Callable, ContextManager

from measure.lab import Timer
from records.rates import is_decode
from records.terminal import one_line

PAGE_SIZES = (16, 64)  # of FlashInfer's cache: the usual ones
WAY_SAMPLES = 7  # of each way to call a peer: as many as a record has at least


class Skip(Exception):
    """A contender cannot run this problem: one line that says why."""


@dataclass
class Call:
    """A contender with its tensors. What the calls return is theirs to keep or to drop."""

    run: Callable[[], Any]  # the timed call
    output: Callable[[], Any]  # the same, and o as [b, h, s, d]
    around: Callable[[], ContextManager] = contextlib.nullcontext  # entered once, outside what is timed
    note: str = ""


@dataclass
class Tensors:
    problem: dict[str, Any]
    q: Any  # [b, h, s, d]; so are k and v
    k: Any
    v: Any


def prepare(lab: Any, name: str, tensors: Tensors, cold_l2: bool) -> Call:
    """A contender on these tensors. Raises Skip, or what it itself raises when it is called. Of several ways to call
    it, the fastest with such an L2."""
    if name.startswith("sdpa_"):
        return sdpa(lab, name, tensors)
    if name == "flashinfer":
        return flashinfer(lab, tensors, cold_l2)
    if name == "flash_attn_3" and is_decode(tensors.problem):
        return flash_attn_3_decode(lab, tensors, cold_l2)
    return flash_attn(lab, name, tensors)


def sdpa(lab: Any, name: str, tensors: Tensors) -> Call:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = {
        "sdpa_flash": SDPBackend.FLASH_ATTENTION,
        "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
        "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
        "sdpa_math": SDPBackend.MATH,
    }[name]
    p, notes = tensors.problem, []
    if name == "sdpa_math":
        # Scores, weights and a copy of one of them, in float32: 16-bit inputs are promoted. And the mask.
        scores = p["batch"] * p["num_heads_q"] * p["seqlen_q"] * p["seqlen_kv"]
        need_memory(lab, 3 * 4 * scores + 5 * p["seqlen_q"] * p["seqlen_kv"], "the scores")
    mask = {"is_causal": p["causal"]}
    if p["causal"] and p["seqlen_q"] != p["seqlen_kv"]:  # is_causal is aligned top-left
        mask = lower_right(lab, name, p)
        notes.append("mask: a tensor" if name == "sdpa_math" else "mask: causal_lower_right")
    around = functools.partial(sdpa_kernel, [backend])
    grouped = p["num_heads_q"] != p["num_heads_kv"]

    def prepared(k: Any, v: Any, **more: Any) -> Call:
        run = functools.partial(
            lab.torch.nn.functional.scaled_dot_product_attention, tensors.q, k, v, **mask, **more
        )
        with around():
            try_sdpa(lab, run, name, tensors.q, k, v, mask, **more)
        return Call(run, run, around, "; ".join(notes))

    if not grouped:
        return prepared(tensors.k, tensors.v)
    try:
        return prepared(tensors.k, tensors.v, enable_gqa=True)
    except Skip:
        group = p["num_heads_q"] // p["num_heads_kv"]
        notes.append("heads of K and V repeated beforehand: no grouped heads")
        return prepared(*(t.repeat_interleave(group, dim=1) for t in (tensors.k, tensors.v)))


def lower_right(lab: Any, name: str, p: dict[str, Any]) -> dict[str, Any]:
    rows, keys = p["seqlen_q"], p["seqlen_kv"]
    if name == "sdpa_cudnn":
        raise Skip("PyTorch has no causal mask aligned bottom-right for cuDNN")
    if name == "sdpa_math":
        # What causal_lower_right would make anew in every call.
        allowed = lab.torch.ones((rows, keys), dtype=lab.torch.bool, device=lab.device)
        return {"attn_mask": allowed.tril(keys - rows)}
    from torch.nn.attention.bias import causal_lower_right

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some rows see no key; they are not compared
        return {"attn_mask": causal_lower_right(rows, keys)}


def try_sdpa(lab: Any, run: Callable[[], Any], name: str, q: Any, k: Any, v: Any, mask: Any, **more: Any):
    """Once, for its refusal. PyTorch says why a backend will not do in warnings only."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            run()
            lab.synchronize()
        except RuntimeError as error:
            if lab.is_out_of_memory(error) or lab.broken():
                raise
            raise Skip(sdpa_refusal(error, [str(each.message) for each in said])) from error
    bias = mask.get("attn_mask")
    if bias is None or name == "sdpa_math" or lab.device.type != "cuda":
        return
    # Where its kernel will not do, causal_lower_right quietly makes the whole mask in every call.
    from torch.backends import cuda

    can_use = cuda.can_use_flash_attention if name == "sdpa_flash" else cuda.can_use_efficient_attention
    if not can_use(cuda.SDPAParams(q, k, v, None, 0.0, False, more.get("enable_gqa", False))):
        raise Skip("causal_lower_right would materialise the mask")


def flash_attn(lab: Any, name: str, tensors: Tensors) -> Call:
    function = lab.packages[name].flash_attn_func
    q, k, v = (t.transpose(1, 2) for t in (tensors.q, tensors.k, tensors.v))
    run = functools.partial(function, q, k, v, causal=tensors.problem["causal"])

    def output() -> Any:
        found = run()
        # Some versions return (o, lse).
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return Call(run, output, note="transposed views of the same tensors")


def flash_attn_3_decode(lab: Any, tensors: Tensors, cold_l2: bool) -> Call:
    """As a model calls it that generates text. With all keys in use their lengths need not be given, and a static
    schedule does; with lengths their schedule is made beforehand, once for all layers."""
    build = lab.builds["flash_attn_3"]["flags"].partition("off:")[2]
    if off := re.findall(r"\b(?:SPLIT|PACKGQA|VARLEN)\b", build):
        raise Skip(f"built without {' and '.join(off)}, which it needs for few queries")
    package, p = lab.packages["flash_attn_3"], tensors.problem
    q, k, v = (t.transpose(1, 2) for t in (tensors.q, tensors.k, tensors.v))
    lengths = lab.torch.full((p["batch"],), p["seqlen_kv"], dtype=lab.torch.int32, device=lab.device)
    sizes = [p[key] for key in ("batch", "seqlen_q", "seqlen_kv", "num_heads_q", "num_heads_kv", "head_dim")]
    run = functools.partial(package.flash_attn_with_kvcache, q, k, v, causal=p["causal"], num_splits=0)

    def call(**more: Any) -> Call:
        way = functools.partial(run, **more)
        return Call(way, lambda: way().transpose(1, 2))

    def with_lengths() -> Call:
        plan = package.get_scheduler_metadata(*sizes, lengths, qkv_dtype=q.dtype, causal=p["causal"])
        return call(cache_seqlens=lengths, scheduler_metadata=plan)

    ways = {"without lengths": call, "cache_seqlens and scheduler_metadata": with_lengths}
    return fastest(lab, {f"flash_attn_with_kvcache, {what}": make for what, make in ways.items()}, cold_l2)


def flashinfer(lab: Any, tensors: Tensors, cold_l2: bool) -> Call:
    """Its decode: K and V themselves, seen as pages in their order, and of one sequence as they are. What it plans,
    it plans outside of the time."""
    p = tensors.problem
    if p["seqlen_q"] != 1:
        raise Skip("only timed with one query a sequence")
    ways: dict[str, Callable[[], Call]] = {}
    for page_size in PAGE_SIZES:
        if p["seqlen_kv"] % page_size == 0:
            ways |= flashinfer_paged(lab, tensors, page_size)
    if p["batch"] == 1:
        q, k, v = tensors.q[0, :, 0], tensors.k[0], tensors.v[0]

        def single(tensor_cores: bool) -> Call:
            more = {"kv_layout": "HND", "use_tensor_cores": tensor_cores}
            run = functools.partial(lab.packages["flashinfer"].single_decode_with_kv_cache, q, k, v, **more)
            return Call(run, lambda: run()[None, :, None])

        ways["one sequence without pages, for tensor cores"] = lambda: single(True)
        ways["one sequence without pages, for CUDA cores"] = lambda: single(False)
    if not ways:
        raise Skip(f"several sequences are only timed with whole pages of {PAGE_SIZES[0]} keys")
    return fastest(lab, ways, cold_l2)


def flashinfer_paged(lab: Any, tensors: Tensors, page_size: int) -> dict[str, Callable[[], Call]]:
    torch, p, package = lab.torch, tensors.problem, lab.packages["flashinfer"]
    batch, heads, keys, width = tensors.k.shape
    per_head = keys // page_size
    # Page i begins i pages into the tensor, its other heads so many keys later: [page, head, key, d].
    pages = ((batch - 1) * heads + 1) * per_head
    shape, strides = (pages, heads, page_size, width), (page_size * width, keys * width, width, 1)
    cache = tuple(t.as_strided(shape, strides) for t in (tensors.k, tensors.v))
    first = torch.arange(batch, dtype=torch.int32, device=lab.device) * (heads * per_head)
    table = first[:, None] + torch.arange(per_head, dtype=torch.int32, device=lab.device)
    ends = torch.arange(batch + 1, dtype=torch.int32) * per_head
    last = torch.full((batch,), page_size, dtype=torch.int32)
    q = tensors.q[:, :, 0]
    workspace = functools.partial(torch.zeros, 1 << 28, dtype=torch.uint8, device=lab.device)

    def call(run: Callable[[], Any]) -> Call:
        return Call(run, lambda: run()[:, :, None])

    def planned(tensor_cores: bool) -> Call:
        wrapper = package.BatchDecodeWithPagedKVCacheWrapper
        decode = wrapper(workspace(), "HND", use_tensor_cores=tensor_cores)
        sizes = (p["num_heads_q"], heads, width, page_size)
        decode.plan(ends, table.flatten(), last, *sizes, q_data_type=q.dtype, kv_data_type=q.dtype)
        return call(functools.partial(decode.run, q, cache))

    def xqa() -> Call:
        lengths = torch.full((batch,), keys, dtype=torch.int32, device=lab.device)
        more = {"bmm1_scale": width**-0.5, "kv_layout": "HND"}
        decode = package.decode.xqa_batch_decode_with_kv_cache
        return call(functools.partial(decode, q, cache, workspace(), table, lengths, keys, **more))

    ways = {"for tensor cores": lambda: planned(True), "for CUDA cores": lambda: planned(False), "XQA": xqa}
    return {f"pages of {page_size} keys in order, {what}": make for what, make in ways.items()}


def fastest(lab: Any, ways: dict[str, Callable[[], Call]], cold_l2: bool) -> Call:
    """Of several ways to call a peer the one that takes the least time: a peer shall be as fast as it can. They are
    timed as a record's contenders are, each warmed up, and then in turns. Its note says which, and why others are
    not among them."""
    calls: dict[str, Call] = {}
    timers: dict[str, Timer] = {}
    refused: dict[str, str] = {}

    def careful(what: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:  # an older version may lack a way, or not compile it
            if lab.is_out_of_memory(error) or lab.broken():
                raise
            timers.pop(what, None)
            refused[what] = one_line(error)
            return None

    def timer_of(what: str, make: Callable[[], Call]) -> Timer:
        calls[what] = make()
        return lab.timer(calls[what], cold_l2)

    for what, make in ways.items():
        if timer := careful(what, functools.partial(timer_of, what, make)):
            timers[what] = timer
    for _ in range(WAY_SAMPLES):
        for what, timer in list(timers.items()):
            careful(what, timer.sample)
    said = [f"{what}: {why}" for what, why in refused.items()]
    if not timers:
        raise Skip("; ".join(said))
    best = min(timers, key=lambda what: statistics.median(timers[what].ms))
    call = calls[best]
    call.note = "; ".join([f"{best} (fastest of {len(timers)})" if len(timers) > 1 else best, *said])
    return call


def need_memory(lab: Any, needed: int, what: str) -> None:
    if needed > lab.free_bytes():
        gib = 1 << 30
        raise Skip(f"{what} need {needed / gib:.1f} GiB, of which {lab.free_bytes() / gib:.1f} are free")


def sdpa_refusal(error: Exception, said: list[str]) -> str:
    """The reason among the warnings; the error itself is 'No available kernel. Aborting execution.'"""
    reasons = []
    for line in said:
        line = line.split(" (Triggered internally")[0].strip()
        # Headings, and the backends that are switched off on purpose.
        if line and not line.endswith("because:") and "runtime disabled" not in line:
            reasons.append(line)
    return one_line(Exception(reasons[0])) if reasons else one_line(error)
