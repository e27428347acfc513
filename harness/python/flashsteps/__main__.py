"""python -m flashsteps check FILE: is a step right on the tensors of a safetensors file?"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import flashsteps


def load(path: str) -> dict[str, Any]:
    import numpy
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys() if name in ("q", "k", "v", "kv_lengths")}
    except (SafetensorError, TypeError, AttributeError) as error:  # a type that safetensors does not find in NumPy
        raise ValueError(f"{path}: {error}") from error
    if missing := [name for name in ("q", "k", "v") if name not in tensors]:
        raise ValueError(f"{path}: has no tensor {missing[0]}")
    if (lengths := tensors.get("kv_lengths")) is not None:
        tensors["kv_lengths"] = numpy.clip(lengths, -1, 2**31 - 1).astype(numpy.int32)
    return tensors


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 when the step is right, 1 when it is not, 2 for wrong use."""
    parser = argparse.ArgumentParser(prog="python -m flashsteps", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="run a step on a file's tensors and judge its output")
    check.add_argument(
        "file",
        metavar="FILE",
        help="a safetensors file with q, k and v (F16, BF16 or F32) and, where batches have fewer keys, kv_lengths",
    )
    check.add_argument("--step", help="in full, as v09_direct_rescale (default: the last that supports the tensors)")
    check.add_argument("--causal", action="store_true", help="causal mask, aligned bottom-right")
    check.add_argument("--scale", type=float, help="of the scores (default: 1 / sqrt(head_dim))")
    layout_help = "order of the file's axes: batch, heads, length, head_dim (the default), or batch, length, heads, …"
    check.add_argument("--layout", choices=("bhsd", "bshd"), default="bhsd", help=layout_help)
    check.add_argument("--device", choices=("cuda",), help="run on the GPU, not on the emulator")
    options = parser.parse_args(arguments)
    named = {name: getattr(options, name) for name in ("step", "causal", "scale", "layout", "device")}
    try:
        found = flashsteps.check(**load(options.file), **named)
    except (ImportError, OSError, ValueError, TypeError, RuntimeError) as error:
        parser.exit(2, f"python -m flashsteps check: {error}\n")
    sys.stdout.write(str(found))
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
