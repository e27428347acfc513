"""flashsteps for Hugging Face transformers: after `import flashsteps.transformers`, attn_implementation="fsteps".

Queries and keys are aligned at their ends, causal or not, and padding is at one end of each row. All else is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function
from transformers.utils import is_tracing

import flashsteps

_UNKNOWN = {
    "sliding_window": "sliding windows",
    "softcap": "a cap on scores (softcap)",
    "s_aux": "attention sinks",
    "position_bias": "a bias on scores",
}


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    device: Any = "cpu",
    **_: Any,
) -> torch.Tensor | None:
    """What _attention() gets as its mask: None, or int32 [1 or 2, batch, 1, 1].

    The first row holds how many keys a sequence has, the second how many of padding stand before them. Four
    dimensions, because generate() hands a mask that has fewer to this function once more.
    """
    if local_size is not None or kv_offset != 0:
        raise ValueError("flashsteps: sliding windows and chunks are not supported")
    causal = mask_function is causal_mask_function
    if not causal and mask_function is not bidirectional_mask_function:
        raise ValueError("flashsteps: arbitrary masks and packed sequences are not supported")
    end = q_offset + q_length if causal else kv_length  # a static cache is longer, and its q_offset a tensor
    exact = isinstance(end, int) and end == kv_length
    if attention_mask is None:
        return None if exact else torch.zeros(1, batch_size, 1, 1, dtype=torch.int32, device=device) + end
    seen = attention_mask[:, :kv_length]
    starts, counts = seen.int().argmax(1), seen.sum(1)
    traced = is_tracing(seen)  # then no value can be looked at
    if not traced:
        if exact and seen.all():
            return None
        distance = torch.arange(seen.shape[1], device=seen.device) - starts[:, None]
        if not torch.equal((distance >= 0) & (distance < counts[:, None]), seen):
            raise ValueError("flashsteps: an attention_mask with holes is not supported, only padding")
    # Padding after a sequence needs no length where the mask is causal: only padding sees it.
    lengths = end - starts if causal else counts
    rows = [lengths] if not traced and not starts.any() else [lengths, starts]
    return torch.stack(rows).int()[..., None, None]


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    for name, what in _UNKNOWN.items():
        if options.get(name) is not None:
            raise ValueError(f"flashsteps: {what}: not supported")
    if dropout != 0:
        raise ValueError("flashsteps: dropout is not supported: call model.eval()")
    if query.dtype == torch.float8_e4m3fn:
        raise ValueError("flashsteps: FP8 is not supported: a model has no scales for it")
    from_mask = attention_mask is None or attention_mask.dtype == torch.int32
    if not from_mask or getattr(attention_mask, "shape", (1, 1))[-2:] != (1, 1):
        raise ValueError("flashsteps: arbitrary masks are not supported, only causal ones and padding")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    lengths = None
    if attention_mask is not None:
        lengths, *starts = attention_mask.flatten(1)
        if starts:
            key, value = (_without_padding(x, starts[0]) for x in (key, value))
    o = flashsteps.attention(
        query, key, value, causal=causal, scale=scaling, kv_lengths=lengths, layout="bshd"
    )
    return o, None


def _without_padding(array: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Every sequence moved to the front, as kv_lengths wants it: both ends stay aligned. What follows is not read."""
    batch, rows = (torch.arange(n, device=array.device) for n in array.shape[:2])
    return array[batch[:, None], (rows + starts[:, None]).clamp(max=array.shape[1] - 1)]


# transformers would look for the package flash-attn for any name that has "flash" in it.
AttentionInterface.register("fsteps", _attention)
AttentionMaskInterface.register("fsteps", _mask)
