"""What follows from a problem, and no record holds: its label, its FLOPs, its bytes."""
from __future__ import annotations

from typing import Any

SHAPE = ("batch", "num_heads_q", "num_heads_kv", "seqlen_q", "seqlen_kv", "head_dim")
# What is not said of a problem while it has its default, in the order of labels.
AXES = (
    ("kv_lengths", "full"),
    ("layout", "bhsd"),
    ("inputs", "normal"),
    ("page_size", None),
    ("lse", None),
    ("earlier", None),
    ("fast", None),
    ("cache", None),
    ("quantize", None),
    ("backward", None),
    ("num_sms", None),
    ("softmax_scale", None),
    ("seed", 1),
)


# Of axes without a value.
FLAGS = {"lse": "--no-lse", "earlier": "--earlier", "fast": "--fast", "quantize": "--quantize", "backward": "--backward"}


def axis_text(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def axes_of(problem: dict[str, Any]) -> dict[str, str]:
    """Those that have not their default."""
    values = {key: problem.get(key, default) for key, default in AXES if problem.get(key, default) != default}
    return {key: axis_text(value) for key, value in values.items()}


def problem_label(problem: dict[str, Any]) -> str:
    """What Problem::label() of the program says: axes that have their default are left out."""
    sizes = zip(("B", "Hq", "Hkv", "Sq", "Skv", "D"), SHAPE)
    words = [f"{name}={problem[key]}" for name, key in sizes]
    words += [problem["dtype"], "causal" if problem["causal"] else "full"]
    return " ".join([*words, *(f"{key}={value}" for key, value in axes_of(problem).items())])


def program_words(problem: dict[str, Any]) -> list[str]:
    """The program's own words for one problem."""
    words = ["--shape", ",".join(str(problem[key]) for key in SHAPE), "--dtype", problem["dtype"]]
    for key, value in axes_of(problem).items():
        flag = FLAGS.get(key)
        words += [flag] if flag else [f"--{key.replace('_', '-')}", value]
    return [*words, "--causal" if problem["causal"] else "--full"]


def computed_dtype(problem: dict[str, Any]) -> str:
    """Of q, k and v as they are multiplied, unless K and V alone have another type."""
    return "e4m3" if problem.get("quantize") else problem["dtype"]


def in_another_type(problem: dict[str, Any], dtype: str) -> dict[str, Any]:
    """What v27_tile_shapes:bf16 computes beside a problem in e4m3, or beside one that is rounded to it."""
    return {key: value for key, value in problem.items() if key != "quantize"} | {"dtype": dtype}


def own_problem(problem: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """Of a step or a peer of a run. Peers round nothing."""
    dtype = entry.get("step", "").partition(":")[2]
    if "peer" in entry and problem.get("quantize"):
        dtype = problem["dtype"]
    return in_another_type(problem, dtype) if dtype else problem


def pairs(rows: int, keys: int, causal: bool) -> int:
    """Unmasked (query, key) pairs of one head. Exact."""
    if not causal:
        return rows * keys
    # Row i sees i + 1 + keys - rows keys: 1 + 2 + ... + keys, the last `rows` terms of it.
    hidden = max(keys - rows, 0)
    return (keys * (keys + 1) - hidden * (hidden + 1)) // 2


def lengths_of(problem: dict[str, Any]) -> list[int]:
    """Keys of each sequence of the batch: all, unless their lengths are listed."""
    return problem.get("lengths") or [problem["seqlen_kv"]] * problem["batch"]


def flops(problem: dict[str, Any]) -> int:
    """FLOPs of one call: 4 * head_dim * unmasked (query, key) pairs, and 2.5 times as many of a backward pass."""
    seen = sum(pairs(problem["seqlen_q"], keys, problem["causal"]) for keys in lengths_of(problem))
    return (10 if problem.get("backward") else 4) * problem["head_dim"] * problem["num_heads_q"] * seen


def kv_bytes(problem: dict[str, Any]) -> int:
    """Bytes of all keys and values below their lengths, each once."""
    element_bytes = {"fp32": 4, "fp16": 2, "bf16": 2, "e4m3": 1}[problem.get("cache") or problem["dtype"]]
    return 2 * sum(lengths_of(problem)) * problem["num_heads_kv"] * problem["head_dim"] * element_bytes


def rows_without_keys(problem: dict[str, Any]) -> int:
    """The first rows of every head see no key when the mask is causal and there are more rows than keys."""
    return max(problem["seqlen_q"] - problem["seqlen_kv"], 0) if problem["causal"] else 0


def problem_words(problem: dict[str, Any]) -> dict[str, str]:
    """The problem's label in parts, with equal lengths and equal head counts told once."""
    words = {"B": f"B={problem['batch']}"}
    for name, first, second in (("H", "num_heads_q", "num_heads_kv"), ("S", "seqlen_q", "seqlen_kv")):
        words[name] = (
            f"{name}={problem[first]}"
            if problem[first] == problem[second]
            else f"{name}q={problem[first]} {name}kv={problem[second]}"
        )
    words |= {
        "D": f"D={problem['head_dim']}",
        "dtype": problem["dtype"],
        "mask": "causal" if problem["causal"] else "full",
    }
    given = axes_of(problem)
    return words | {key: f"{key}={given[key]}" if key in given else "" for key, _ in AXES}


def problem_labels(runs: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """What all problems have in common, and what tells each from the others."""
    words = [problem_words(run["problem"]) for run in runs]
    shared = [key for key in words[0] if all(each[key] == words[0][key] for each in words)]
    common = " ".join(words[0][key] for key in shared if words[0][key])
    return common, [
        " ".join(text or f"{key}: default" for key, text in each.items() if key not in shared)
        for each in words
    ]
