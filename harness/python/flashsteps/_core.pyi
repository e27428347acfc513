# The compiled part, as module.cpp defines it; a test compares the two.
from typing import Any

def attention(
    framework: Any,
    q: Any,
    k: Any,
    v: Any,
    kv_lengths: Any,
    causal: bool,
    scale: float | None,
    step: str | None,
    bshd: bool,
    return_lse: bool,
    to_gpu: bool,
) -> Any: ...
def attention_with_kvcache(
    framework: Any,
    q: Any,
    k_cache: Any,
    v_cache: Any,
    cache_seqlens: Any,
    page_table: Any,
    causal: bool,
    scale: float | None,
    num_splits: int,
    return_lse: bool,
) -> Any: ...
def merge_attention(
    framework: Any,
    q: Any,
    k: Any,
    v: Any,
    kv_lengths: Any,
    causal: bool,
    scale: float | None,
    step: str | None,
    o: Any,
    earlier_o: Any,
    earlier_lse: Any,
    first_row: int,
) -> None: ...
def plan(
    framework: Any,
    q: Any,
    k: Any,
    v: Any,
    kv_lengths: Any,
    page_table: Any,
    causal: bool,
    scale: float | None,
    step: str | None,
    bshd: bool,
    num_splits: int,
    kvcache: bool,
    gpu: int | None,
) -> tuple[float, int]: ...
def judge(
    framework: Any,
    q: Any,
    k: Any,
    v: Any,
    kv_lengths: Any,
    causal: bool,
    scale: float | None,
    bshd: bool,
    o: Any,
    lse: Any,
) -> tuple[bool, str, str, dict[str, float]]: ...
def xla_handlers() -> dict[str, Any]: ...
def steps() -> list[
    tuple[
        str, str, str, str, str, tuple[str, ...], int, int, bool, tuple[str, ...], bool, str | None, bool
    ]
]: ...
def build_info() -> dict[str, Any]: ...
def missing_gpu() -> str: ...
def take_tuning_warning() -> str: ...
def peak_tflops(dtype: str, device: int) -> float: ...
