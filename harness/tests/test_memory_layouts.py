"""docs/tiles.md: its tables and its sentences that claim a count, beside what the program says.

scripts/draw/layouts.cpp prints what kernels, common/ and emulator compute with; FLASHSTEPS_BUILD as in test_program.py.
"""

from __future__ import annotations

import math
import re

import pytest
from test_program import BUILD, FLASHSTEPS, ROOT, run

from draw import drawings, memory_layouts  # in scripts/, which test_program adds to the path

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")

LAYOUTS = drawings.ask_layouts(BUILD, "tiles")
SHARED, GLOBAL, SWIZZLE = LAYOUTS["shared"], LAYOUTS["global"], LAYOUTS["swizzle"]
PAGE = (ROOT / "docs" / "tiles.md").read_text(encoding="utf-8")
SENTENCES = PAGE.replace("\n", " ")


def source(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def table(name: str) -> list[list[str]]:
    """The cells of a computed table, without its two lines of heading."""
    mark = rf"<!-- computed by harness/tests/test_memory_layouts.py: {name} -->\n(.*?)\n<!-- /computed -->"
    (text,) = re.findall(mark, PAGE, re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_what_is_drawn_from_offsets_is_what_the_emulator_counts():
    for access in SHARED.values():
        groups = range(32 // memory_layouts.lanes_per_group(access))
        assert sum(memory_layouts.passes(access, group) for group in groups) == access["passes"]
    for access in GLOBAL.values():
        assert len(memory_layouts.sectors(access)) == access["sectors"]


# ---- The tables

ACCESSES = {
    "neighbours": ("neighbours, 2", "neighbours, 4", "neighbours, 8", "neighbours, 16"),
    "the same word": ("one word",),
    "every second word": ("every second word",),
    "a column: rows 128 bytes apart": ("a column",),
    "v02: 16 rows of K at one d": ("v02 K, plain",),
    "v02: the same, each lane on its own walk": ("v02 K, walk",),
    "v04: softmax, 8 columns of 4 rows of S": ("softmax, padded by 0",),
    "v03: two columns of an FP32 accumulator": ("accumulator, padded by 0",),
    "v03: ldmatrix.x4, rows 128 or 256 bytes apart": (
        "ldmatrix, D=64, padded by 0",
        "ldmatrix, D=128, padded by 0",
    ),
}


def test_the_table_of_accesses_is_what_the_emulator_counts():
    expected = []
    for words, names in ACCESSES.items():
        for name in names:
            access = SHARED[name]
            numbers = (
                access["bytes"],
                memory_layouts.lanes_per_group(access),
                access["passes"],
                access["ideal"],
            )
            row = [words, *map(str, numbers)]
            if row not in expected:  # one row for both head dimensions
                expected.append(row)
    assert table("accesses")[2:] == expected


def test_the_table_of_paddings_is_what_the_emulator_counts():
    heading, _, units, passes = table("padding")
    assert heading[1:] == [str(pad) for pad in range(0, 72, 8)]
    for pad, its_units, its_passes in zip(heading[1:], units[1:], passes[1:], strict=True):
        assert int(its_units) == (64 + int(pad)) * 2 // 16
        for head_dim in (64, 128):  # the page says that both have the same line
            access = SHARED[f"ldmatrix, D={head_dim}, padded by {pad}"]
            assert access["passes"] == 4 * int(its_passes)  # four matrices
            assert math.gcd((head_dim + int(pad)) * 2 // 16, 8) == int(its_passes)


def test_the_table_of_at_is_what_the_tile_does():
    steps = [
        [step["from"], step["cols"], step["from"] + step["cols"], step["reached"]] for step in SWIZZLE["at"]
    ]
    assert [[int(cell) for cell in row] for row in table("at")[2:]] == steps
    for start, _, wanted, reached in steps:
        assert reached == (wanted if start == 0 else wanted - 16)  # the halves of 16 columns, exchanged


# ---- What the page says in words


def test_the_sizes_are_those_that_the_steps_ask_for():
    """What the tool says of SharedStorage is what the kernels are launched with, as `list` prints it."""
    listed = run(FLASHSTEPS, "list").stdout
    for storage in LAYOUTS["storage"]:
        sums = [f"{sum(part['bytes'] for part in storage[head_dim]):,}" for head_dim in ("64", "128")]
        assert re.search(rf"^ *{storage['step']} +{sums[0]} +{sums[1]}\b", listed, re.MULTILINE)
        kernel = source(f"steps/{storage['step']}/kernel.cu")
        assert f"<= {memory_layouts.SMALLEST_LIMIT}" in kernel or '.needs_sm = "90a"' in kernel


def test_padding_costs_what_the_page_says():
    storage = {its["step"]: its for its in LAYOUTS["storage"]}
    padding = [
        sum(part["bytes"] - part["contents"] for part in storage["v05_padded_smem"][head_dim])
        for head_dim in ("64", "128")
    ]
    assert padding == [7168, 7168] and "in v05 a CTA needs 7,168 more bytes" in SENTENCES
    # v10: two arrays of a half-row's maxima and sums, nine mbarriers, and then nothing up to a multiple of 1,024.
    (rest,) = [part["bytes"] for part in storage["v10_tma_warpspec"]["64"] if part["name"] == "rest"]
    assert 0.4 < 1 - (2 * 2 * 64 * 4 + 9 * 8) / rest < 0.5 and "Nearly half of v10's grey segment" in SENTENCES


def test_fp32_rows_are_padded_as_the_page_says():
    for name, ideal in (("accumulator", 2), ("softmax", 1)):
        for pad, factor in ((0, 4), (8, 1), (16, 2)):
            access = SHARED[f"{name}, padded by {pad}"]
            assert (access["passes"], access["ideal"]) == (factor * ideal, ideal)


def test_no_swizzle_mode_has_conflicts_and_no_swizzle_has_them():
    for head_dim in (64, 128):
        costs = [SHARED[f"ldmatrix, D={head_dim}, swizzle {mode}"]["passes"] for mode in (128, 64, 32, 0)]
        assert costs == [4, 4, 4, 32]


@pytest.mark.parametrize("mode", [128, 64, 32])
def test_the_swizzle_is_that_of_the_ptx_isa(mode):
    """Written out: bits 4 and up of the address, XORed with as many bits from bit 7 on."""
    chunks = mode // 16
    for row, places in enumerate(SWIZZLE[str(mode)]):
        for chunk, place in enumerate(places):
            index = row * chunks + chunk
            assert place == index ^ index // 8 % chunks
    bits = memory_layouts.address_bits(SWIZZLE[str(mode)])
    assert bits == {bit: [bit + 3] for bit in range(4, 4 + chunks.bit_length() - 1)}


def test_the_sectors_are_those_of_the_page():
    sectors = {name: access["sectors"] for name, access in GLOBAL.items()}
    assert sectors == {"v01 K": 1, "v02": 2, "v02, odd": 3, "v06": 16, "v06, down": 32}
    moved = {name: len(set(GLOBAL[name]["offsets"])) * GLOBAL[name]["bytes"] for name in sectors}
    assert (moved["v01 K"], moved["v02"], moved["v06"], moved["v06, down"]) == (2, 64, 512, 512)


@pytest.mark.parametrize(
    "step, expression",
    [
        ("v02_smem_tiles", "const int d = walk ^ (lane_id * 2 % HEAD_DIM);"),
        ("v02_smem_tiles", "k[j] = float(shared.kv[thread_col + j * THREAD_COLS][d]);"),
        ("v05_padded_smem", "const int softmax_row = threadIdx.x / LANES_PER_ROW;"),
        ("v05_padded_smem", "const int col = softmax_col + j * LANES_PER_ROW;"),
        ("v06_vectorized_loads", "const int d = (i + threadIdx.x) % CHUNKS * CHUNK;"),
        ("v10_tma_warpspec", "const int a_row = lane_id % 16;"),
        ("v10_tma_warpspec", "const int a_col = lane_id / 16 * 8;"),
        ("v10_tma_warpspec", "if (first_key + BLOCK_N > unmasked_end)"),
    ],
)
def test_the_kernels_still_say_what_the_tool_has_copied(step, expression):
    """Which lane goes where stands within the kernels, so the tool has it once more."""
    assert expression in source(f"steps/{step}/kernel.cu")
