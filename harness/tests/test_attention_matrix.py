"""What scripts/draw/attention_maps.py and error_analysis.py draw, from the steps themselves, on the emulator.

docs/errors.md says these things of the pictures. FLASHSTEPS_BUILD as in test_program.py."""

from __future__ import annotations

import numpy as np
import pytest
from test_program import FLASHSTEPS

from draw import attention_data, error_analysis  # in scripts/, which test_program adds to the path
from draw.drawings import DrawingError
from records.rules import GATES

KEYS = 130  # three tiles, the last one ragged; three blocks of one-hot columns, the last one not full


def structured(dtype: str) -> list[np.ndarray]:
    return [attention_data.to_bits(attention_data.structured(which, KEYS, 64), dtype) for which in (True, False)]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("inputs", ["structured", "normal"])
def test_the_inputs_are_the_harness_s(inputs: str, dtype: str) -> None:
    fields = {"dtype": dtype, "causal": True, "inputs": inputs, "kv_lengths": "full", "layout": "bhsd", "seed": 1}
    shape = {"batch": 1, "num_heads_q": 4, "num_heads_kv": 4, "seqlen_q": KEYS, "seqlen_kv": KEYS, "head_dim": 64}
    wanted, _ = attention_data.lab_of(FLASHSTEPS, "emulator").problem(fields | shape).outputs("v07_ptx_mma")
    q, k, v = (attention_data.normal(1, stream, (1, 4, KEYS, 64)) for stream in (1, 2, 3))
    if inputs == "structured":
        q, k = (attention_data.structured(which, KEYS, 64)[None] for which in (True, False))
    bits = [attention_data.to_bits(x, dtype) for x in (q, k, v)]
    found = attention_data.run_step(FLASHSTEPS, "v07_ptx_mma", dtype, True, *bits)
    # Another C library may round a sine otherwise. With other inputs next to nothing would be the same.
    assert (found == wanted).mean(axis=(0, 2, 3)).min() > 0.99


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("step", ["v02_smem_tiles", "v10_tma_warpspec"])
def test_the_matrix_of_a_step_is_the_softmax(step: str, causal: bool) -> None:
    q, k = structured("fp16")
    found, sums = attention_data.attention_matrix(FLASHSTEPS, step, "fp16", causal, q, k)
    right = attention_data.probabilities(*(attention_data.to_double(x, "fp16") for x in (q, k)), causal)
    error = attention_data.norm(found - right, (1, 2)) / attention_data.norm(right, (1, 2))
    rows = attention_data.norm(found - right, -1) / attention_data.norm(right, -1)
    assert error.max() < GATES["fp16"][0] and rows.max() < GATES["fp16"][1]
    assert (sums == 1).all() and abs(found.sum(-1) - 1).max() < 2e-3
    if causal:
        assert (found[:, np.triu(np.ones((KEYS, KEYS), bool), 1)] == 0).all()
        assert (found[:, 0, 0] == 1).all()
    # Blocks of columns in another order are another matrix.
    width = attention_data.one_hot_values(KEYS, 64).shape[2] - 1
    swapped = np.concatenate([found[..., width : 2 * width], found[..., :width], found[..., 2 * width :]], -1)
    wrong = attention_data.norm(swapped - right, (1, 2)) / attention_data.norm(right, (1, 2))
    assert wrong.min() > 100 * GATES["fp16"][0]


def normal(dtype: str) -> list[np.ndarray]:
    return [attention_data.to_bits(attention_data.normal(1, stream, (1, 2, KEYS, 64)), dtype) for stream in (1, 2, 3)]


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
        o = attention_data.to_double(attention_data.run_step(FLASHSTEPS, step, dtype, False, *given), dtype)
        measured, modelled = (attention_data.nrmse(x, reference) for x in (o, model))
        assert abs(measured - modelled) < 0.02 * modelled
        # Not only as large as the model's: nearly everywhere the very same.
        assert (o == model).mean() > 0.95


def test_the_first_causal_row_is_exact_and_v09_gives_what_v10_gives() -> None:
    given = normal("bf16")
    outputs = [
        attention_data.run_step(FLASHSTEPS, step, "bf16", True, *given)
        for step in ("v09_direct_rescale", "v10_tma_warpspec")
    ]
    assert np.array_equal(*outputs)
    assert np.array_equal(outputs[0][:, :, 0], given[2][:, :, 0])


def test_a_step_that_cannot_run_is_not_drawn() -> None:
    with pytest.raises(DrawingError, match="v10_tma_warpspec gives no output .SKIP: .*fp32") as error:
        attention_data.run_step(FLASHSTEPS, "v10_tma_warpspec", "fp32", True, *normal("fp32"))
    assert "\n" not in str(error.value) and len(str(error.value)) < 300
