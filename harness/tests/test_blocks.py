"""What common/blocks/ has of the steps is what the steps do: a step that takes a block gives the bits of the one that
spells it out.

Some pairs of steps do the same arithmetic in the same order. Runs what a test build has made, like test_program.py."""

from __future__ import annotations

import numpy as np
import pytest
from test_program import FLASHSTEPS, STEPS

from measure import lab  # in scripts/, which test_program adds to the path

LIBRARY = FLASHSTEPS.parent / lab.LIBRARY

# v11 takes accumulator.h, epilogue.h, key_range.h and operands.h; v16 online_softmax.h, too. v16's last tile of keys is
# another than v15's unless the tiles are full. v29 takes split_keys.h; without groups of heads it is v28. v30
# takes packed_heads.h; with one CTA for a tile of rows its merge is v29's. v31 takes one_launch.h; if each warp has
# one tile, it is v30: on the emulator, 3 CTAs have 12 tiles. v38 takes shared_tiles.h; without groups of heads it is
# v37.
PAIRS = [
    ("v10", "v11", "1,100,230", ["--kv-lengths", "random"]),
    ("v15", "v16", "1,200,320", []),
    ("v28", "v29", "2,40,230", ["--kv-lengths", "random"]),
    ("v29", "v30", "1,40,230", ["--kv-lengths", "random"]),
    ("v30", "v31", "2,16,192", []),
    ("v37", "v38", "2,100,1300", ["--kv-lengths", "random"]),
]


def outputs(step: str, case: lab.Case) -> list[np.ndarray]:
    (name,) = (each for each in STEPS if each.startswith(step))
    assert case.check(name)["status"] == "pass"
    return case.outputs(name)


@pytest.mark.parametrize("dtype, head_dim", [("fp16", 64), ("bf16", 128)])
@pytest.mark.parametrize("mask", ["--full", "--causal"])
@pytest.mark.parametrize("spelled_out, of_blocks, lengths, others", PAIRS)
def test_the_same_bits(
    spelled_out: str, of_blocks: str, lengths: str, others: list[str], mask: str, dtype: str, head_dim: int
) -> None:
    words = ["--shape", f"2,2,{lengths},{head_dim}", "--dtype", dtype, mask, *others]
    (problem,) = lab.problems(LIBRARY, *words)
    case = lab.Lab(LIBRARY, "emulator").problem(problem)
    expected, found = outputs(spelled_out, case), outputs(of_blocks, case)
    assert expected[0].size > 4_000 and all(map(np.array_equal, expected, found))
