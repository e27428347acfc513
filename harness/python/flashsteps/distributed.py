"""Exact attention over a sequence that the processes of a torch.distributed group share.

Each process has some rows of q, k and v: shard() says which. ring_attention() and all_gather_attention() give
each the result of its own rows. docs/several_gpus.md explains how, and which of the two is better when.
Between GPUs the group's backend is NCCL, between processes on the CPU, where the emulator computes, gloo.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import socket
import time
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store as _default_store

from . import _core, attention
from ._frameworks import Options
from .torch import PLAIN, refuse_gradients

try:
    from torch.distributed import _symmetric_memory
except ImportError:  # an older PyTorch
    _symmetric_memory = None

__all__ = ["RankError", "all_gather_attention", "ring_attention", "shard", "synchronize", "unshard"]

_LAYOUTS = ("contiguous", "zigzag")
_ROWS = 2  # the dimension of rows in [batch, heads, rows, head_dim]


class RankError(RuntimeError):
    """Processes of the group have not done their part in time."""

    def __init__(self, message: str, ranks: tuple[int, ...]):
        super().__init__(message)
        self.ranks = ranks  #: in the group; empty when all have answered


# Which rows a process has.


class Span(NamedTuple):
    """Rows begin to end - 1 of the whole sequence."""

    begin: int
    end: int


def _spans(length: int, layout: str, rank: int, world: int) -> list[Span]:
    """Of a process, in the order in which it has them. Chunk i of n is i * length // n to (i + 1) * length // n:
    lengths differ by at most one row."""
    if layout not in _LAYOUTS:
        raise ValueError(f"layout: is {layout!r}, expected 'contiguous' or 'zigzag'")
    count, chunks = (world, (rank,)) if layout == "contiguous" else (2 * world, (rank, 2 * world - 1 - rank))
    return [Span(i * length // count, (i + 1) * length // count) for i in chunks]


def _num_rows(spans: list[Span]) -> int:
    return sum(span.end - span.begin for span in spans)


def shard(
    x: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    layout: str = "contiguous",
    dim: int = _ROWS,
) -> torch.Tensor:
    """This process's rows of a tensor that every process has, as a copy.

    Arguments:
        layout: "contiguous": the rows are cut into as many chunks as there are processes, and process r has
            chunk r. "zigzag": into twice as many, 2 n, and process r has chunks r and 2 n - 1 - r, one after
            the other. Under a causal mask all processes then have the same work.
        dim: which dimension has the rows.

    A length that cannot be divided gives chunks whose lengths differ by a row: chunk i of n chunks begins at
    row i * length // n.
    """
    spans = _spans(x.size(dim), layout, dist.get_rank(group), dist.get_world_size(group))
    return torch.cat([x.narrow(dim, span.begin, span.end - span.begin) for span in spans], dim)


def unshard(
    x: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    layout: str = "contiguous",
    dim: int = _ROWS,
    *,
    length: int | None = None,
) -> torch.Tensor:
    """The whole tensor, in every process: the reverse of shard().

    Arguments:
        length: of the whole sequence. None: every process has as many rows as this one.
    """
    group = group or dist.group.WORLD
    world = dist.get_world_size(group)
    length = world * x.size(dim) if length is None else length
    of_rank = [_spans(length, layout, rank, world) for rank in range(world)]
    _check_rows("x", x.size(dim), of_rank[dist.get_rank(group)], length, "length")
    most = max(map(_num_rows, of_rank))  # collectives take pieces of one size
    rows = x.movedim(dim, 0)
    padded = rows.new_zeros((most, *rows.shape[1:]))
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in range(world)]
    with _blaming(group, x.device):
        dist.all_gather(gathered, padded, group=group)
    pieces: dict[Span, torch.Tensor] = {}
    for spans, piece in zip(of_rank, gathered):
        pieces |= zip(spans, piece[: _num_rows(spans)].split([end - begin for begin, end in spans]))
    return torch.cat([pieces[span] for span in sorted(pieces)]).movedim(0, dim).contiguous()


def _check_rows(name: str, found: int, spans: list[Span], length: int, argument: str) -> None:
    if found != _num_rows(spans):
        raise ValueError(
            f"{name}: has {found} rows, and of {length} rows this process has {_num_rows(spans)}: see shard(); "
            f"name {argument} where the processes have not all as many"
        )


# What of a block of keys the queries see.


class Part(NamedTuple):
    """Queries first_q to end_q - 1 of a process and the first end_k keys of a block, as they lie there. Every query
    sees every key; if `causal`, that is so for the last query, and each one before sees a key less.
    """

    first_q: int
    end_q: int
    end_k: int
    causal: bool


def _parts(queries: list[Span], keys: list[Span], offset: int) -> list[Part]:
    """What the queries see of the keys, in few parts. Query i sees key j when j <= i + offset.

    Queries and keys lie in the order of the sequence. What a query sees of a block is therefore its first keys: as many
    as the query before it sees, or one more.
    """

    def seen(query: int) -> int:
        return sum(min(max(query + offset + 1 - begin, 0), end - begin) for begin, end in keys)

    parts: list[Part] = []
    edges = {edge - offset for span in keys for edge in span}  # where the number of keys begins or ceases to rise
    at = 0
    for begin, end in queries:
        for first, after in itertools.pairwise(sorted({begin, end} | {x for x in edges if begin < x < end})):
            fewest, most = seen(first), seen(after - 1)
            part = Part(at, at + after - first, most, fewest < most)
            at = part.end_q
            if parts and fewest == parts[-1].end_k + part.causal and part.causal == parts[-1].causal:
                parts[-1] = parts[-1]._replace(end_q=part.end_q, end_k=most)
            elif most > 0:
                parts.append(part)
    return parts


def _divide(
    q: torch.Tensor,
    k: torch.Tensor,
    kv_lengths: torch.Tensor | None,
    group: dist.ProcessGroup,
    layout: str,
    seqlen_q: int | None,
    seqlen_kv: int | None,
) -> tuple[int, int, list[Span], list[list[Span]]]:
    """The lengths of the whole sequence, this process's queries, and the keys of each process."""
    if q.dtype == torch.float8_e4m3fn:
        raise TypeError("q: is float8_e4m3fn, which only flashsteps.attention takes")
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    total_q = world * q.size(_ROWS) if seqlen_q is None else seqlen_q
    total_kv = world * k.size(_ROWS) if seqlen_kv is None else seqlen_kv
    queries = _spans(total_q, layout, rank, world)
    blocks = [_spans(total_kv, layout, each, world) for each in range(world)]
    _check_rows("q", q.size(_ROWS), queries, total_q, "seqlen_q")
    _check_rows("k", k.size(_ROWS), blocks[rank], total_kv, "seqlen_kv")
    if kv_lengths is not None:
        found = f"{kv_lengths.dtype} {list(kv_lengths.shape)}"
        if found != f"torch.int32 [{q.size(0)}]":
            raise ValueError(f"kv_lengths: is {found}, expected torch.int32 [{q.size(0)}]")
        if kv_lengths.device.type == "cpu" and not all(0 <= length <= total_kv for length in kv_lengths.tolist()):
            raise ValueError(f"kv_lengths: is {kv_lengths.tolist()}, expected 0 to {total_kv}")
    return total_q, total_kv, queries, blocks


# The ring.


_Tensors = tuple[torch.Tensor, torch.Tensor]  # k, v


class _Merged:
    """The result of this process's queries over the keys that have come so far."""

    def __init__(self, q: torch.Tensor, options: Options, is_seen: bool):
        self.q, self.options = q, options
        # Queries that see no key are in no part: zeros, unless it is known that there are none.
        self.o = (torch.empty_like if is_seen else torch.zeros_like)(q, memory_format=torch.contiguous_format)
        self.partial = torch.empty(q.shape, dtype=torch.float32, device=q.device)  # o before it is rounded
        self.lse = torch.full(q.shape[:3], -torch.inf, device=q.device)

    def merge(self, block: _Tensors, part: Part, lengths: Any = None, batch: slice = slice(None)) -> None:
        k, v = block
        queries = (batch, slice(None), slice(part.first_q, part.end_q))
        keys = (batch, slice(None), slice(part.end_k))
        arrays = (self.q[queries], k[keys], v[keys], lengths, *[None] * 4)
        options = self.options._replace(causal=part.causal)
        result = (self.o[queries], self.partial[batch], self.lse[batch], part.first_q)
        _core.merge_attention(PLAIN, arrays, options, *result)


# A block is the keys and values of one process. These two give a process its own block, then those of the processes
# before it, each as soon as it is there: while the caller computes on a block, the next is on its way.


def _sent_blocks(
    k: torch.Tensor, v: torch.Tensor, rows: list[int], group: dist.ProcessGroup
) -> Iterator[_Tensors]:
    """rows[i] keys has the block of hop i. Every process sends each block on to the next one. NCCL does this on a
    stream of its own, with a kernel, which occupies SMs."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    for num_rows in rows[1:]:
        arriving = [x.new_empty((*x.shape[:_ROWS], num_rows, x.size(3))) for x in (k, v)]
        transfers = [(dist.isend, x, (rank + 1) % world) for x in (k, v) if x.numel() > 0]
        transfers += [(dist.irecv, x, (rank - 1) % world) for x in arriving if x.numel() > 0]
        operations = [dist.P2POp(do, x, group=group, group_peer=peer) for do, x, peer in transfers]
        with _ahead(k.device), _blaming(group, k.device):
            works = dist.batch_isend_irecv(operations) if operations else []
        yield k, v
        with _blaming(group, k.device):
            for work in works:  # until the block is here, and the one before it has gone
                work.wait()  # on a GPU the current stream waits, otherwise this thread
        k, v = arriving
    yield k, v


def _copied_blocks(
    k: torch.Tensor, v: torch.Tensor, rows: list[int], group: dist.ProcessGroup, places: _Places
) -> Iterator[_Tensors]:
    """As _sent_blocks(), by the GPUs' copy engines, which occupy no SM. No block is sent on: in each hop a process
    copies its own block to the process that computes on it in the next hop."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    own = here = (k, v)
    places.begin(group)
    for hop, num_rows in enumerate(rows[1:], 1):
        places.begin_copies(own, (rank + hop) % world)
        try:
            yield here
        finally:  # also if the caller has failed, as it then has in all processes
            places.end_copies(group)
        here = places.of(rank, k, num_rows)
    yield here
    places.end(group)


class _Places:
    """Two places for a block in the memory of each GPU of a group, to which all its GPUs can write. Hops use them in
    turn, from call to call: before a process copies into a place, a barrier has shown that the block that was
    there two hops ago is no longer read."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, num_bytes: int):
        self.num_bytes, self.turn = num_bytes, 0  # num_bytes of a place
        memory = _symmetric_memory.empty(2 * num_bytes, dtype=torch.uint8, device=device)
        self.memory = _symmetric_memory.rendezvous(memory, group)
        self.flag = torch.zeros(1, device=device)
        self.copies, self.last_stream = torch.cuda.Stream(device), torch.cuda.current_stream(device)

    def of(self, rank: int, like: torch.Tensor, num_rows: int) -> _Tensors:
        """Where process `rank` finds so many rows of k and v."""
        shape = (*like.shape[:_ROWS], num_rows, like.size(3))
        first, size = self.turn * self.num_bytes // like.element_size(), math.prod(shape)
        k, v = (self.memory.get_buffer(rank, shape, like.dtype, at) for at in (first, first + size))
        return k, v

    def begin(self, group: dist.ProcessGroup) -> None:
        """Before the first hop of a call."""
        current = torch.cuda.current_stream(self.flag.device)
        if torch.cuda.is_current_stream_capturing():
            self.barrier(group)  # every replay uses the same places
        elif self.last_stream != current:
            current.wait_stream(self.last_stream)  # a call there may still read the places
            self.last_stream = current

    def end(self, group: dist.ProcessGroup) -> None:
        """After the last."""
        if torch.cuda.is_current_stream_capturing():
            self.barrier(group)  # and what comes after a replay may use them, too

    def begin_copies(self, block: _Tensors, rank: int) -> None:
        """To process `rank`."""
        self.turn ^= 1
        self.copies.wait_stream(torch.cuda.current_stream(self.flag.device))
        with torch.cuda.stream(self.copies):
            for x, place in zip(block, self.of(rank, block[0], block[0].size(_ROWS))):
                place.copy_(x)

    def end_copies(self, group: dist.ProcessGroup) -> None:
        """The current stream waits until the copies of all processes are done, and their computations so far."""
        torch.cuda.current_stream(self.flag.device).wait_stream(self.copies)
        self.barrier(group)

    def barrier(self, group: dist.ProcessGroup) -> None:
        """The current stream waits until that of every process has come here."""
        with _blaming(group, self.flag.device):
            dist.all_reduce(self.flag, group=group)


_places: weakref.WeakKeyDictionary[dist.ProcessGroup, _Places | None] = weakref.WeakKeyDictionary()


def _places_of(group: dist.ProcessGroup, device: torch.device, num_bytes: int) -> _Places | None:
    """For blocks of at most so many bytes. In all processes None where the GPUs cannot write to one another's
    memory: they belong to several hosts, have no access, or this PyTorch has no symmetric memory."""
    if device.type != "cuda" or num_bytes == 0:
        return None
    known = group in _places
    if known and (_places[group] is None or _places[group].num_bytes >= num_bytes):
        return _places[group]
    places = None
    if known or len(set(_from_all(group, device, socket.gethostname()))) == 1:
        with contextlib.suppress(AttributeError, RuntimeError):
            places = _Places(group, device, num_bytes)
    _places[group] = places if all(_from_all(group, device, places is not None)) else None
    return _places[group]


def _from_all(group: dist.ProcessGroup, device: torch.device, value: Any) -> list[Any]:
    """The value of each process."""
    values: list[Any] = [None] * dist.get_world_size(group)
    with _blaming(group, device):
        dist.all_gather_object(values, value, group)
    return values


_streams: dict[torch.device, Any] = {}  # of each GPU


@contextlib.contextmanager
def _ahead(device: torch.device) -> Iterator[None]:
    """What is queued inside begins before what is queued afterwards. A step's CTAs stay on all SMs until it
    ends, so a transfer that begins after it would have to wait for it."""
    if device.type != "cuda":
        yield
        return
    stream = _streams.get(device) or _streams.setdefault(device, torch.cuda.Stream(device, priority=-1))
    current = torch.cuda.current_stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
        torch.zeros((), device=device)  # a kernel that takes some microseconds: the transfer's lead
    current.wait_stream(stream)


def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    group: dist.ProcessGroup | None = None,
    layout: str = "contiguous",
    scale: float | None = None,
    kv_lengths: torch.Tensor | None = None,
    return_lse: bool = False,
    step: str | None = None,
    seqlen_q: int | None = None,
    seqlen_kv: int | None = None,
) -> Any:
    """flashsteps.attention of the whole sequence, for this process's rows of it. Keys and values go round the
    processes, each block while the one before it is computed. Called by all processes of the group.

    On the GPUs of one host, their copy engines carry the blocks. For that the group keeps memory for two blocks on
    each GPU from its first call on, so the first call cannot be part of a CUDA graph. Otherwise NCCL or gloo sends
    the blocks.

    Arguments:
        q, k, v: [batch, heads, rows, head_dim], float16 or bfloat16: this process's rows, as shard() gives them.
        layout: that of shard().
        causal, scale: as in flashsteps.attention. Under a causal mask "zigzag" gives all processes the same work.
        kv_lengths: [batch], int32, the same in all processes: how many keys of the whole sequence each batch
            has. With `causal` the CPU must know them: a tensor on a GPU is waited for, and the batches are
            computed one after the other.
        step: one that can merge its result with an earlier one. None: the last that can. On GPUs all of them
            need sm_90.
        seqlen_q, seqlen_kv: rows of the whole sequence. None: every process has as many as this one.

    Returns:
        o, or with return_lse (o, lse), for the rows of q. Results are merged in FP32 and in the order in which
        a process sees the blocks: its own, then those of the processes before it. The same call gives the same
        bits.

    Raises:
        RankError: a process of the group has ended or does not answer. On the CPU when the group's time limit is
            over; on GPUs, where the call only queues, synchronize() raises it.
        ValueError: an argument is wrong, or no step can merge such a call; the text begins with the argument.
    """
    group = group or dist.group.WORLD
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    total_q, total_kv, queries, blocks = _divide(q, k, kv_lengths, group, layout, seqlen_q, seqlen_kv)
    options = Options(causal, scale, step=step).checked()
    refuse_gradients("ring_attention", (q, k, v))
    host_lengths = kv_lengths.tolist() if kv_lengths is not None and causal else None
    is_seen = total_kv > 0 and (not causal or (host_lengths is None and total_q <= total_kv))
    merged = _Merged(q, options, is_seen)
    rows = [_num_rows(blocks[(rank - hop) % world]) for hop in range(world)]  # of the block of each hop
    k, v = k.contiguous(), v.contiguous()
    row_bytes = 2 * k.size(0) * k.size(1) * k.size(3) * k.element_size()
    places = _places_of(group, k.device, max(map(_num_rows, blocks)) * row_bytes) if world > 1 else None
    coming = _sent_blocks(k, v, rows, group) if places is None else _copied_blocks(k, v, rows, group, places)
    with contextlib.closing(coming):
        for hop, block in enumerate(coming):
            spans = blocks[(rank - hop) % world]
            if host_lengths is not None:
                for b, length in enumerate(host_lengths):
                    seen = [Span(min(begin, length), min(end, length)) for begin, end in spans]
                    for part in _parts(queries, seen, length - total_q):
                        merged.merge(block, part, batch=slice(b, b + 1))
            else:
                local = None if kv_lengths is None else _local_lengths(kv_lengths.to(q.device), spans)
                for part in _parts(queries, spans, total_kv - total_q if causal else total_kv):
                    merged.merge(block, part, local)
    return (merged.o, merged.lse) if return_lse else merged.o


def _local_lengths(lengths: torch.Tensor, spans: list[Span]) -> torch.Tensor:
    """How many keys of a block each batch has. They are its first: a later chunk has keys only where those
    before are full."""
    return sum(((lengths - begin).clamp(0, end - begin) for begin, end in spans), torch.zeros_like(lengths))


# All keys at once.


def all_gather_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    group: dist.ProcessGroup | None = None,
    layout: str = "contiguous",
    scale: float | None = None,
    kv_lengths: torch.Tensor | None = None,
    return_lse: bool = False,
    step: str | None = None,
    seqlen_q: int | None = None,
    seqlen_kv: int | None = None,
) -> Any:
    """ring_attention() in another way: every process first gets all keys and values, then computes. Needs memory
    for the keys and values of the whole sequence, and computes nothing while they come; in return it merges
    nothing, and any step, type and GPU will do. Arguments and results are those of ring_attention(), and
    kv_lengths on a GPU are never waited for.
    """
    refuse_gradients("all_gather_attention", (q, k, v))
    group = group or dist.group.WORLD
    total_q, total_kv, queries, _ = _divide(q, k, kv_lengths, group, layout, seqlen_q, seqlen_kv)
    if not causal:
        queries = [Span(0, q.size(_ROWS))]
    lengths = None if kv_lengths is None else kv_lengths.to(q.device)
    k, v = (unshard(x, group, layout, length=total_kv) for x in (k, v))
    results = []
    for rows, (_, end) in zip(q.split([end - begin for begin, end in queries], _ROWS), queries):
        # The keys that the last of these rows sees: the mask is bottom-right for them, too.
        seen, here = total_kv, lengths
        if causal:
            seen = min(max(end + total_kv - total_q, 0), total_kv)
            here = None if lengths is None else (lengths + (end - total_q)).clamp(min=0)
        if rows.numel() == 0 or seen == 0:
            results.append((torch.zeros_like(rows), torch.full(rows.shape[:3], -torch.inf, device=q.device)))
            continue
        keys = slice(0, seen if lengths is None else total_kv)
        options = {"causal": causal, "scale": scale, "kv_lengths": here, "step": step}
        results.append(attention(rows, k[:, :, keys], v[:, :, keys], return_lse=True, **options))
    o, lse = (torch.cat(pieces, _ROWS) for pieces in zip(*results))
    return (o, lse) if return_lse else o


# Processes that have ended or do not answer.


def _missing(group: dist.ProcessGroup, seconds: float) -> list[int]:
    """The ranks that do not say within this time that they have failed, too. They say it in the store that all
    have met at: the group's transfers may hang."""
    name, world, rank = group.group_name, dist.get_world_size(group), dist.get_rank(group)
    store, keys = _default_store(), [f"flashsteps/failed/{name}/{each}" for each in range(world)]
    missing, deadline = set(range(world)) - {rank}, time.monotonic() + seconds
    with contextlib.suppress(RuntimeError):  # the store has gone with the process that served it
        store.set(keys[rank], "")
        while missing and time.monotonic() < deadline:
            time.sleep(0.02)
            missing -= {each for each in missing if store.check([keys[each]])}
    return sorted(missing)


def _blame(group: dist.ProcessGroup, device: torch.device, seconds: float) -> RankError:
    # Those that have waited for us notice it up to so many seconds later, and finish a block before.
    missing = _missing(group, 2 * seconds)
    if device.type == "cuda":  # or this process waits for its transfers when it ends
        group._get_backend(device).abort()
    if not missing:
        return RankError("a transfer failed, and every process of the group has noticed: none is missing", ())
    ranks = ", ".join(map(str, missing))
    return RankError(
        f"rank {ranks} of the group has ended, or has not answered for {2 * seconds:g} s", tuple(missing)
    )


@contextlib.contextmanager
def _blaming(group: dist.ProcessGroup, device: torch.device) -> Iterator[None]:
    """Whose fault it is that a transfer fails."""
    try:
        yield
    except RuntimeError as error:
        # NCCL's transfers fail at once, or not here: nobody waits for its group's limit.
        limit = group._get_backend(device).options._timeout.total_seconds()
        raise _blame(group, device, 30.0 if device.type == "cuda" else limit) from error


def synchronize(group: dist.ProcessGroup | None = None, timeout: float = 60.0) -> None:
    """Waits until the current stream is done, transfers of the group in it, but not for ever.

    Raises:
        RankError: the work is not done after `timeout` seconds, or failed. The error names the processes of the
            group that have not raised it, too, within twice as long again. The group is of no use then: NCCL's
            part of it has been aborted, so that this process can end.
    """
    group, device = group or dist.group.WORLD, torch.device("cuda", torch.cuda.current_device())
    done, deadline = torch.cuda.Event(), time.monotonic() + timeout
    done.record()
    try:
        while not done.query() and time.monotonic() < deadline:
            time.sleep(0.0002)
        if done.query():
            return
    except RuntimeError as error:
        raise _blame(group, device, timeout) from error
    raise _blame(group, device, timeout)
