"""What scripts/draw/attention_maps.py and error_analysis.py draw, from the steps themselves, on the emulator.

docs/errors.md says these things of the pictures. FLASHSTEPS_BUILD as in test_program.py."""

from __future__ import annotations

import numpy as np
import pytest
from test_program import BUILD

from draw import attention_data, error_analysis  # in scripts/, which test_program adds to the path
from draw.drawings import DrawingError
from records.rules import GATES

KEYS = 130  # three tiles, the last one ragged; three blocks of one-hot columns, the last one not full


# Where at least half of every row's weight is, without a mask, by what the pattern's name says: query, key.
SEEN = {
    "local": lambda query, key: abs(query - key) < 8,
    "strided": lambda query, key: (query - key) % 16 == 0,
    "anchor": lambda query, key: (key % 64 == 0) & (query >= 0),
    "block": lambda query, key: query // 32 == key // 32,
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("step", ["v02_smem_tiles", "v10_tma_warpspec"])
def test_the_matrix_of_a_step_is_the_softmax(step: str, causal: bool) -> None:
    q, k, _ = (x[0] for x in attention_data.inputs(BUILD, "structured", "fp16", 1, 4, KEYS))
    found, sums = attention_data.attention_matrix(BUILD, step, "fp16", causal, q, k)
    right = attention_data.probabilities(*(attention_data.to_double(x, "fp16") for x in (q, k)), causal)
    error = attention_data.norm(found - right, (1, 2)) / attention_data.norm(right, (1, 2))
    rows = attention_data.norm(found - right, -1) / attention_data.norm(right, -1)
    assert error.max() < GATES["fp16"][0] and rows.max() < GATES["fp16"][1]
    assert (sums == 1).all() and abs(found.sum(-1) - 1).max() < 2e-3
    if causal:
        assert (found[:, np.triu(np.ones((KEYS, KEYS), bool), 1)] == 0).all()
        assert (found[:, 0, 0] == 1).all()
    else:
        query, key = np.arange(KEYS)[:, None], np.arange(KEYS)[None, :]
        for pattern, p in zip(attention_data.PATTERNS, found):
            assert (p * SEEN[pattern](query, key)).sum(-1).min() > 0.5
    # Blocks of columns in another order are another matrix.
    width = attention_data.one_hot_values(KEYS, 64).shape[2] - 1
    swapped = np.concatenate([found[..., width : 2 * width], found[..., :width], found[..., 2 * width :]], -1)
    wrong = attention_data.norm(swapped - right, (1, 2)) / attention_data.norm(right, (1, 2))
    assert wrong.min() > 100 * GATES["fp16"][0]


def normal(dtype: str) -> list[np.ndarray]:
    return attention_data.inputs(BUILD, "normal", dtype, 1, 2, KEYS)


def test_rounding_to_bf16_and_back() -> None:
    values = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-7, 0.0, 3e38], np.float32)
    bits = attention_data.to_bits(values, "bf16")
    assert bits.tolist() == [0x3F80, 0x3F80, 0x3F82, 0xBF81, 0, 0x7F62]
    assert attention_data.to_double(bits, "bf16")[:4].tolist() == [1, 1, 1 + 2.0**-6, -1 - 2.0**-7]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_two_roundings_are_nearly_all_of_the_error(dtype: str) -> None:
    given = normal(dtype)
    q, k, v = (attention_data.to_double(x, dtype) for x in given)
    reference = attention_data.probabilities(q, k, False) @ v
    models = {
        "v02_smem_tiles": attention_data.rounded(reference, dtype),
        "v10_tma_warpspec": attention_data.rounded(error_analysis.tile_by_tile(q, k, v, dtype), dtype),
    }
    for step, model in models.items():
        o = attention_data.to_double(attention_data.run_step(BUILD, step, dtype, False, *given), dtype)
        measured, modelled = (attention_data.nrmse(x, reference) for x in (o, model))
        assert abs(measured - modelled) < 0.02 * modelled
        # Not only as large as the model's: nearly everywhere the very same.
        assert (o == model).mean() > 0.95


def test_the_first_causal_row_is_exact_and_v09_gives_what_v10_gives() -> None:
    given = normal("bf16")
    outputs = [
        attention_data.run_step(BUILD, step, "bf16", True, *given)
        for step in ("v09_direct_rescale", "v10_tma_warpspec")
    ]
    assert np.array_equal(*outputs)
    assert np.array_equal(outputs[0][:, :, 0], given[2][:, :, 0])


def test_a_step_that_cannot_run_is_not_drawn() -> None:
    with pytest.raises(DrawingError, match="v10_tma_warpspec gives no output .SKIP: .*fp32") as error:
        attention_data.run_step(BUILD, "v10_tma_warpspec", "fp32", True, *normal("fp32"))
    assert "\n" not in str(error.value) and len(str(error.value)) < 300
