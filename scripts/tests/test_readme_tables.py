"""readme_tables.py. What its blocks make of the records that there are stands on the pages, and `--check`, which
scripts/test.sh runs, says when it changes. Here: what no page has, as steps that failed; what is refused; and that
drift is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import (
    STEPS,
    Repository,
    git,
    make_costs,
    make_peers_record,
    make_problem,
    make_record,
)

from pages import readme_tables
from pages.blocks import TableError

TWO_PROBLEMS = [make_problem(), make_problem(causal=False, seqlen_q=512, seqlen_kv=512)]


def run(repository: Repository, capsys, *options: str) -> tuple[int, str]:
    status = readme_tables.main([*options])
    return status, capsys.readouterr().err


def page(*blocks: str) -> str:
    return "# Page\n\n" + "\n".join(f"<!-- generated: {block} -->\n<!-- /generated -->\n" for block in blocks)


def written(repository: Repository, capsys, *blocks: str, name: str = "README.md") -> str:
    """What the tool makes of these blocks; it must also find nothing to complain about afterwards."""
    repository.write(name, page(*blocks))
    assert run(repository, capsys) == (0, "")
    assert run(repository, capsys, "--check") == (0, "")
    return repository.read(name)


def refused(repository: Repository, capsys, block: str) -> str:
    """The one line that says why a block cannot be made, which must leave the page alone."""
    repository.write("README.md", page(block))
    status, message = run(repository, capsys)
    assert status == 1 and message.count("\n") == 1 and message.startswith("README.md:3: "), message
    assert repository.read("README.md") == page(block)
    assert run(repository, capsys, "--check") == (1, message)
    return message


LADDER = 'ladder file=peers.json shapes="causal=true; causal=false"'
BOUND = (
    'bound file=costs.json loop="HMMA=128 FFMA=60 LDSM.x4=32 others=20" keys=64 rows=32 D=128 '
    "step=v02_smem_tiles ladder=gpu.json"
)
ABLATION = "ablation file=ablations.json step=v02_smem_tiles"


def record_peers(repository: Repository, steps: tuple[str, ...] = STEPS) -> dict:
    data = make_peers_record(problems=TWO_PROBLEMS, steps=steps, commit=repository.commit)
    repository.record("peers.json", data)
    return data


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def test_a_step_that_failed_is_new_or_was_not_recorded_stays_in_the_ladder(repository: Repository, capsys):
    data = record_peers(repository, steps=STEPS[:2])
    for each in data["runs"]:
        each["steps"][1] = {"step": STEPS[1], "status": "skip", "message": "needs a|b\nmore"}
    entries = data["host_overhead"]["entries"]
    data["host_overhead"]["entries"] = [entry for entry in entries if entry["name"] != STEPS[1]]
    repository.record("peers.json", data)
    text = written(repository, capsys, LADDER)
    assert r"| idea of v01_scalar, x \| y | 3.4 | – |" in text
    assert r"| skip: needs a\|b | – | – | skip: needs a\|b | – | – |" in text
    assert "| not recorded | – | – | not recorded | – | – |" in text
    repository.write("steps/v04_new/kernel.cu", 'constexpr StepInfo kStep = {.title = "new"};')
    status, message = run(repository, capsys, "--check")
    assert status == 1 and "+| [v04](steps/v04_new/) | new | not recorded" in message
    repository.write("steps/v04_new/kernel.cu", 'constexpr StepInfo kStep = {.removes = "x"};')
    assert "steps/v04_new/kernel.cu registers no .title" in refused(repository, capsys, LADDER)


def test_a_step_that_has_left_the_ladder_is_shown_only_where_it_is_named(repository: Repository, capsys):
    record_peers(repository)
    (repository.root / "steps/v01_scalar/kernel.cu").unlink()
    for block in (LADDER, "peers file=peers.json", "standing file=peers.json beside=best"):
        text = written(repository, capsys, block)
        assert "v01_scalar" not in text and "v02_smem_tiles" in text
    block = "step file=peers.json step=v02_smem_tiles against=v01_scalar"
    assert "| v01_scalar | v02_smem_tiles | × |" in written(repository, capsys, block)
    said = "its records have no 'v00_none'"
    assert said in refused(repository, capsys, block.replace("v01_scalar", "v00_none"))


def test_a_step_is_compared_with_the_one_that_it_comes_from(repository: Repository, capsys):
    kernel = repository.read("steps/v03_wmma/kernel.cu").replace(".title", '.after = "v01_scalar", .title')
    repository.write("steps/v03_wmma/kernel.cu", kernel)
    record_peers(repository)
    text = written(repository, capsys, LADDER)
    assert "v03 is compared with v01, from which it comes." in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| [v")]
    assert [row[3] for row in rows] == ["–", "4.00", "16.00"]
    # A run that has not measured that step.
    record_peers(repository, steps=STEPS[1:])
    text = written(repository, capsys, LADDER)
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| [v")]
    assert [row[3] for row in rows] == ["–", "–", "4.00"] and "is compared with" not in text


def test_a_peer_that_failed_is_in_no_mean(repository: Repository, capsys):
    data = record_peers(repository)
    skipped = {"status": "skip", "message": "no", "timing": None, "validation": None}
    for peer in data["runs"][1]["peers"]:
        peer |= skipped
    repository.record("peers.json", data)
    rows = rows_of(written(repository, capsys, "peers file=peers.json show=v03_wmma,sdpa_cudnn"))
    assert rows[2].endswith("| 30.5 (sdpa_cudnn) | 1.80 |") and rows[3].endswith("| skip: no | – | – |")
    assert "has no time" in refused(repository, capsys, "standing file=peers.json beside=sdpa_flash")


def write_ablations(repository: Repository, *names: str) -> None:
    heading = "## Ablations\n\n- Run: `build/flashsteps check v02_smem_tiles`\n- Expect: PASS\n"
    texts = (f"### {name}\n\n**With {name} | only**\n\n```diff\n-int {name};\n```\n" for name in names)
    repository.write("steps/v02_smem_tiles/variants.md", "\n".join([heading, *texts]))


def test_ablations_are_those_of_the_record_and_of_the_page(repository: Repository, capsys):
    write_ablations(repository, "less", "more")
    git(repository.root, "add", "-A")
    git(repository.root, "commit", "-q", "-m", "ablations")
    commit = git(repository.root, "rev-parse", "HEAD")
    data = make_record(steps=("v02_smem_tiles", "v02_smem_tiles_less"), problems=TWO_PROBLEMS, commit=commit)
    data["runs"][0]["steps"][1] = {"step": "v02_smem_tiles_less", "status": "skip", "message": "too big"}
    repository.record("ablations.json", data)
    text = written(repository, capsys, ABLATION)
    assert r"[With less \| only](steps/v02_smem_tiles/variants.md#less) | skip: too big | – |" in text
    assert "#more" not in text
    repository.record("ablations.json", make_record(steps=("v02_smem_tiles_less",), commit=commit))
    assert "its records have no 'v02_smem_tiles'" in refused(repository, capsys, ABLATION)
    write_ablations(repository, "renamed")
    said = "has 'v02_smem_tiles_less', which is not in steps/v02_smem_tiles/variants.md: measure again"
    assert said in refused(repository, capsys, ABLATION)


def test_what_a_step_exceeds_is_no_bound(repository: Repository, capsys):
    costs = make_costs(repository.commit)
    repository.record("costs.json", costs)
    # 4 * 128 * 64 * 32 FLOPs in 1377.5 clocks, on 4 schedulers of 10 SMs at 1600 MHz
    assert "1600 MHz: 48.7 TFLOPS at most, 93 % of what the products" in written(repository, capsys, BOUND)
    device = costs["provenance"]["device"]
    repository.record("costs.json", costs | {"provenance": costs["provenance"] | {"device": device | {"name": "?"}}})
    assert "gpu.json is of another GPU than the costs" in refused(repository, capsys, BOUND)
    device["max_sm_clock_mhz"] = 400
    repository.record("costs.json", costs)
    expected = "the bound is 12.2 TFLOPS, but v02_smem_tiles reaches 13.7: it is none"
    assert expected in refused(repository, capsys, BOUND)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("ladder file=none.json", "there is no figures/results/none.json"),
        ("ladder", "file=... is missing"),
        ("ladder file=gpu.json shapes=D=64", "no problem matches D=64"),
        ("ladder file=gpu.json shapes=D=128 D=64", "does not know D"),
        ("step file=gpu.json step=v07_none", "there is no step 'v07_none'"),
        ("counters file=counts.json step=v03_wmma", "show=... is missing"),
        ("counters file=counts.json step=v03_wmma show=nonsense", "its records have no 'nonsense'"),
        ("peers file=peers.json show=v99", "show=v99: there are v01_scalar, "),
        ("host_time file=gpu.json", "its records have no 'host_overhead'"),
        ("code file=steps/v01_scalar/kernel.cu function=none", "there is no function none"),
    ],
)
def test_what_a_block_asks_for_in_vain(repository: Repository, capsys, block, expected):
    record_peers(repository)
    assert expected in refused(repository, capsys, block)


def test_tables_of_fp8_say_who_misses_a_gate_and_what_ran_in_bf16(repository: Repository, capsys):
    data = make_peers_record(problems=[make_problem(dtype="e4m3")], commit=repository.commit)
    peer = data["runs"][0]["peers"][1]
    peer |= {"status": "fail", "message": "o is too short"}
    peer["validation"] |= {"nrmse": 0.24, "worst_row_nrmse": 0.3}
    before = data["runs"][0]["steps"][0]
    before["step"] += ":bf16"
    before["validation"] |= {"nrmse": 2e-3, "gate_nrmse": 5e-3, "worst_row_nrmse": 3e-3, "gate_row": 1e-2}
    repository.record("peers.json", data)
    assert written(repository, capsys, "peers file=peers.json").count(" (misses a gate) |") == 1
    for step in STEPS:
        repository.write(f"steps/{step}/README.md", "# Lesson\n\nThis step is for readers who wait.\n")
    assert " × v01 in bf16](figures/results/peers.json) |" in written(repository, capsys, "side_steps file=peers.json")


def test_a_side_step_may_stand_beside_an_earlier_one_than_the_one_before_it(repository: Repository, capsys):
    repository.record("few.json", make_record(steps=["v01_scalar", "v03_wmma"], commit=repository.commit))
    for step in STEPS:
        repository.write(f"steps/{step}/README.md", "# Lesson\n\nThis step is for readers who wait.\n")
    text = written(repository, capsys, "side_steps file=few.json")
    assert "| wait | [4.00 × v01](figures/results/few.json) |" in text


def test_a_side_step_may_stand_beside_another_one_in_bf16_than_the_one_before_it(repository: Repository, capsys):
    data = make_record(steps=["v01_scalar:bf16", "v03_wmma"], commit=repository.commit)
    data["runs"][0]["problem"]["dtype"] = "e4m3"
    repository.record("cast.json", data)
    for step in STEPS:
        repository.write(f"steps/{step}/README.md", "# Lesson\n\nThis step is for readers who wait.\n")
    text = written(repository, capsys, "side_steps file=cast.json")
    assert "| [v02](steps/v02_smem_tiles/README.md) | wait | not recorded yet |" in text
    assert "| wait | [4.00 × v01 in bf16](figures/results/cast.json) |" in text


def test_an_fp8_cache_stands_beside_the_same_problem_without_one(repository: Repository, capsys):
    problems = [make_problem(), make_problem() | {"cache": "e4m3"}]
    data = make_record(steps=STEPS[:2], problems=problems, commit=repository.commit)
    skip = {"status": "skip", "message": "cannot read K and V in that type"}
    data["runs"][0]["steps"][1] = {"step": STEPS[1], **skip}
    data["runs"][1]["steps"][0] = {"step": STEPS[0], **skip}
    repository.record("cache.json", data)
    block = "cache file=cache.json step=v02_smem_tiles"
    (row,) = rows_of(written(repository, capsys, block))[2:]
    assert " | 80000.0 | 20000.0 | 4.00 | " in row
    for step in STEPS:
        repository.write(f"steps/{step}/README.md", "# Lesson\n\nThis step is for readers who wait.\n")
    assert "| wait | [4.00 × v01](figures/results/cache.json) |" in written(repository, capsys, "side_steps file=cache.json")
    data["runs"].pop(0)
    repository.record("cache.json", data)
    assert "without an FP8 cache" in refused(repository, capsys, block)


def test_a_side_step_says_for_whom_it_is_and_is_timed_beside_the_one_before(repository: Repository, capsys):
    for step in STEPS:
        repository.write(f"steps/{step}/README.md", "# Lesson\n\nThis step is for readers who wait.\n")
    row = "| [v01](../steps/v01_scalar/README.md) | |\n"
    repository.write("docs/README.md", f"# Way\n\n## First evening: v01\n\n| step | read |\n| --- | --- |\n{row}")
    text = written(repository, capsys, "side_steps file=gpu.json", "place step=v01_scalar", "place step=v03_wmma")
    assert "| wait | [4.00 × v01](figures/results/gpu.json) |" in text and "*First evening:* **v01**" in text
    assert "*A side step.*" in text
    repository.write("steps/v03_wmma/README.md", "# Lesson\n")
    assert "does not say 'This step is for readers who ...'" in refused(repository, capsys, "side_steps file=gpu.json")


def test_counters_are_of_one_problem_and_of_steps_that_passed(repository: Repository, capsys):
    data = make_record("emulator", problems=TWO_PROBLEMS, commit=repository.commit)
    data["runs"][0]["steps"][1] |= {"status": "fail", "message": "wrong rows"}
    repository.record("counts.json", data)
    block = "counters file=counts.json step=v02_smem_tiles show=mma"
    assert "2 problems match" in refused(repository, capsys, block)
    assert "no counters of v02_smem_tiles: fail: wrong rows" in refused(repository, capsys, f"{block} causal=true")
    text = written(repository, capsys, "counters file=counts.json step=v01_scalar show=mma causal=false")
    assert "| counter | v01_scalar |\n" in text  # there is none before it


# Drift.


def test_an_edited_number_is_caught(repository: Repository, capsys):
    text = written(repository, capsys, "step file=gpu.json step=v02_smem_tiles")
    repository.write("README.md", text.replace("13.7 [", "18.7 ["))
    status, message = run(repository, capsys, "--check")
    assert status == 1 and "README.md:3: step: not what its source says" in message
    assert "    -| B=4" in message and "18.7" in message and "    +| B=4" in message and "13.7" in message
    assert "18.7" in repository.read("README.md"), "--check changed the page"
    assert run(repository, capsys) == (0, "") and repository.read("README.md") == text


def test_one_broken_block_does_not_let_the_page_be_half_written(repository: Repository, capsys):
    text = page("provenance file=gpu.json", "ladder file=none.json")
    repository.write("README.md", text)
    status, message = run(repository, capsys)
    assert status == 1 and "no figures/results/none.json" in message and repository.read("README.md") == text


TYPED = ["6.1 TFLOPS", "reaches **850** TFLOPS", "850TFLOP/s", "1,234 GFLOPS", "12\u00a0TFLOPS", "40 teraflops"]
SEARCHED = ["README.md", "docs/a/b.md", "steps/v01_scalar/README.md"]
NOT_TYPED = ["the TFLOPS column", 'printf("%.1f TFLOPS", x)', "1e12 / gflops", "3 flops", "v02 TFLOPS", "7: TFLOPS"]


def test_a_typed_figure_is_caught(repository: Repository, capsys):
    for name in (*SEARCHED, "build/x.md"):  # not in the last one
        repository.write(name, "\n".join(["fine", *NOT_TYPED, *(f"// {text}" for text in TYPED)]))
    status, message = run(repository, capsys, "--check")
    lines = range(2 + len(NOT_TYPED), 2 + len(NOT_TYPED) + len(TYPED))
    assert status == 1 and message.count("is typed by hand") == len(TYPED) * len(SEARCHED) == message.count("\n")
    assert all(f"{name}:{line}: '" in message for name in SEARCHED for line in lines)


# Where blocks are.

GOOD = '# Title\n\n<!-- generated: step file="a b" n=2 -->\nold\n<!-- /generated -->\nend\n'


def test_blocks_are_found():
    text = GOOD + "<!-- generated: ladder -->\n```diff\n<!-- /generated -->\nlast"
    first, second = readme_tables.find_blocks(text, Path("page.md"))
    assert (first.kind, first.arguments, first.body) == ("step", {"file": "a b", "n": "2"}, "old\n")
    assert (first.where, text[first.place], second.where) == ("page.md:3", "old\n", "page.md:7")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n<!-- generated: step -->\n", "page.md:2: is no half of a block"),
        (GOOD.replace("old", "<!-- generated: ladder -->"), "page.md:4: is no half of a block"),
        ("\n<!-- /generated -->\n", "page.md:2: is no half of a block"),
        (GOOD.replace("<!-- gen", "<!--gen"), "page.md:3: is no half of a block"),
        (GOOD.replace("<!-- gen", "  <!-- gen"), "page.md:3: is no half of a block"),
        (GOOD.replace("step", "whisper"), "page.md:3: unknown kind 'whisper', there are ladder, "),
        (GOOD.replace("n=2", "loud"), "page.md:3: must be key=value"),
        (GOOD.replace("n=2", "n=1 n=2"), "page.md:3: must have each key once"),
        (GOOD.replace("n=2", 'n="1'), "page.md:3: must be key=value"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text, expected):
    with pytest.raises(TableError) as error:
        readme_tables.find_blocks(text, Path("page.md"))
    assert str(error.value).startswith(expected)
