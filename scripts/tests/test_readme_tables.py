from __future__ import annotations

import re

import pytest
from conftest import STEPS, Repository, git, give_limit, make_costs, make_peers_record, make_problem, make_record, make_ring

from pages import readme_tables
from records import rates
from records.problems import problem_label

TWO_PROBLEMS = [make_problem(), make_problem(causal=False, seqlen_q=512, seqlen_kv=512)]


def run(repository: Repository, capsys, *options: str) -> tuple[int, str]:
    status = readme_tables.main(["--root", str(repository.root), *options])
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


def record_ladder(repository: Repository, steps: tuple[str, ...] = STEPS, **more) -> dict:
    data = make_peers_record(problems=TWO_PROBLEMS, steps=steps, commit=repository.commit, **more)
    repository.record("peers.json", data)
    return data


def test_ladder(repository: Repository, capsys):
    record_ladder(repository)
    text = written(repository, capsys, LADDER)
    assert "B=4 H=16 D=128 bf16. TFLOPS, medians; FA2: PyTorch's FlashAttention-2, in the same run." in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == "| step | idea | S=4096 causal | × previous | × FA2 | S=512 full | × previous | × FA2 |"
    assert lines[2] == "| **memory** |  |  |  |  |  |  |  |"
    # 80 ms, and FlashAttention-2 takes 10.
    first = r"| [v01_scalar](steps/v01_scalar/) | idea of v01_scalar, x \| y | 3.4 | – | 0.12 | 0.11 | – | 0.12 |"
    assert lines[3] == first and "| 13.7 | 4.00 | 0.50 | 0.43 | 4.00 | 0.50 |" in lines[4]
    assert lines[6].startswith("| *FlashAttention-2* | `sdpa_flash`, for comparison | 27.5 | – | 1.00 |")
    assert lines[7].startswith("| *cuDNN* | `sdpa_cudnn`, for comparison | 30.5 | – | 1.11 |") and len(lines) == 8
    # Without FlashAttention-2 there is nothing to be compared with, and no column for it.
    record_ladder(repository, peers=("sdpa_cudnn",))
    text = written(repository, capsys, LADDER)
    assert "FA2" not in text and "| step | idea | S=4096 causal | × previous | S=512 full | × previous |" in text
    assert "| *cuDNN* | `sdpa_cudnn`, for comparison | 27.5 | – |" in text


def test_a_step_that_failed_or_was_not_recorded_stays_in_the_ladder(repository: Repository, capsys):
    data = record_ladder(repository, steps=STEPS[:2])
    for run in data["runs"]:
        run["steps"][1] = {"step": STEPS[1], "status": "skip", "message": "needs a|b\nmore"}
    entries = data["host_overhead"]["entries"]
    data["host_overhead"]["entries"] = [entry for entry in entries if entry["name"] != STEPS[1]]
    repository.record("peers.json", data)
    text = written(repository, capsys, LADDER)
    assert r"| skip: needs a\|b | – | – | skip: needs a\|b | – | – |" in text
    assert "| not recorded | – | – | not recorded | – | – |" in text


def test_each_part_of_the_ladder_has_a_heading(repository: Repository, capsys):
    kernel = repository.read("steps/v03_wmma/kernel.cu").replace("{.title", "{.part = Part::kMmaSync, .title")
    repository.write("steps/v03_wmma/kernel.cu", kernel)
    record_ladder(repository)
    lines = [line for line in written(repository, capsys, LADDER).splitlines() if line.startswith("|")]
    names = [re.search(r"v\d+|\*\w+", line)[0] for line in lines[2:]]
    assert names == ["*memory", "v01", "v02", "*mma", "v03", "*FlashAttention", "*cuDNN"]


def test_a_ladder_of_one_part(repository: Repository, capsys):
    kernel = repository.read("steps/v03_wmma/kernel.cu").replace("{.title", "{.part = Part::kMmaSync, .title")
    repository.write("steps/v03_wmma/kernel.cu", kernel)
    record_ladder(repository)
    lines = [line for line in written(repository, capsys, LADDER + " parts=memory").splitlines() if line[:2] == "| "]
    names = [re.search(r"v\d+|\*\w+", line)[0] for line in lines[2:]]
    assert names == ["v01", "v02", "*FlashAttention", "*cuDNN"]


def test_a_step_is_compared_with_the_one_that_it_comes_from(repository: Repository, capsys):
    kernel = repository.read("steps/v03_wmma/kernel.cu").replace("{.title", '{.after = "v01_scalar", .title')
    repository.write("steps/v03_wmma/kernel.cu", kernel)
    record_ladder(repository)
    text = written(repository, capsys, LADDER)
    assert "v03 is compared with v01, not with the row above, because it comes from that step." in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| [v")]
    assert [row[3] for row in rows] == ["–", "4.00", "16.00"]
    # A run that has not measured that step.
    record_ladder(repository, steps=STEPS[1:])
    text = written(repository, capsys, LADDER)
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| [v")]
    assert [row[3] for row in rows] == ["–", "–", "4.00"] and "comes from" not in text


def test_a_ladder_of_two_runs(repository: Repository, capsys):
    record_ladder(repository, steps=STEPS[:2])
    later = make_peers_record(problems=TWO_PROBLEMS, steps=STEPS[1:], commit=repository.commit)
    make_faster(later["runs"][0]["steps"][1]["timing"])
    repository.record("later.json", later)
    text = written(repository, capsys, LADDER.replace("peers.json", "peers.json,later.json"))
    assert "The rates from v03 on were measured in another run (later.json). That run timed v02 again." in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| [v")]
    assert [row[2:4] for row in rows] == [["3.4", "–"], ["13.7", "4.00"], ["55.0", "16.00"]]


def test_small_ratios_keep_a_third_decimal():
    assert [rates.ratio(x, 1.0) for x in (0.0123, 0.0994, 0.0996, 1.0)] == [
        "0.012", "0.099", "0.10", "1.00",
    ]  # fmt: skip
    assert rates.ratio(1.0, 0.0) == "–"


def test_a_new_step_shows_up(repository: Repository, capsys):
    record_ladder(repository)
    written(repository, capsys, LADDER)
    repository.write("steps/v04_new/kernel.cu", 'REGISTER_STEP(launch_attention, {.title = "new"})')
    status, message = run(repository, capsys, "--check")
    assert status == 1 and "+| [v04_new](steps/v04_new/) | new | not recorded" in message


def test_small_rates_keep_two_digits():
    assert [rates.rate(x) for x in (0.0421, 0.996, 6.149, 99.94, 99.96, 661.7)] == [
        "0.04",
        "1.0",
        "6.1",
        "99.9",
        "100",
        "662",
    ]


def test_step(repository: Repository, capsys):
    repository.record("gpu.json", make_record(problems=TWO_PROBLEMS, commit=repository.commit))
    lesson = "steps/v02_smem_tiles/README.md"
    text = written(repository, capsys, "step file=gpu.json step=v02_smem_tiles", name=lesson)
    assert "| problem | v01_scalar | v02_smem_tiles | × | % of peak |" in text
    assert (
        "| S=4096 causal | 3.4 [3.3–3.5] | 13.7 [13.3–14.0] | 4.00 | 1.4 |" in text
        and "| S=512 full |" in text
    )


def test_a_step_has_its_share_of_its_limit_when_the_run_has_that(repository: Repository, capsys):
    repository.record("gpu.json", give_limit(make_record(commit=repository.commit)))
    text = written(repository, capsys, "step file=gpu.json step=v02_smem_tiles")
    assert "| × | % of peak | % of mma_sync |" in text and "| 4.00 | 1.4 | 13.7 |" in text


def test_a_ring_is_compared_with_its_work_without_transfers(repository: Repository, capsys):
    repository.record("ring.json", make_ring(repository.commit))
    text = written(repository, capsys, "ring file=ring.json")
    assert "2 GPUs, PyTorch 2.11.0, NCCL 2.28.9. H=16 D=128 bf16 causal, zigzag." in text
    assert "| tokens per GPU | KV heads | TFLOPS without transfers | ring | GB/s | overlapped |" in text
    assert "| 8,192 | 4 | 550 | 0.800 | 34 | 90 % |" in text
    assert "show=torch: there are ring" in refused(repository, capsys, "ring file=ring.json show=torch")
    assert "gpu.json is of one GPU" in refused(repository, capsys, "ring file=gpu.json")
    text = written(repository, capsys, "ring_trace file=ring.json problem=1")
    assert f"8,192 tokens per GPU, 4 KV heads: 2000 µs of one GPU.\n\n    step     |{90 * '█'}|\n" in text
    assert "no trace of a problem 2" in refused(repository, capsys, "ring_trace file=ring.json problem=2")


BOUND = (
    'bound file=costs.json loop="HMMA=128 FFMA=60 LDSM.x4=32 others=20" keys=64 rows=32 D=128 '
    "step=v02_smem_tiles ladder=gpu.json"
)
COSTS = "instructions file=costs.json warps=2"


def test_costs_of_instructions_are_what_the_first_and_the_last_of_them_add(repository: Repository, capsys):
    repository.record("costs.json", make_costs(repository.commit))
    text = written(repository, capsys, COSTS)
    assert "2 warps a scheduler. Without other instructions a round takes 80.0 (spread)" in text
    assert "Measured on Synthetic GPU: [costs.json]" in text
    # Of the fewest each has a group of its own, in one place, or all have one.
    clocks = "120.0, 128.0, 144.0 | 5.0 | 1.0 | 94.0, 102.0, 118.0 | 1.5 | 1.0"
    assert f"| FFMA | 2 | 8, 16, 32 | {clocks} |" in text
    assert "| LOP3 | 2 | 8, 16, 32 | 92.0, 108.0, 140.0 | 1.5 | 2.0 |" in text
    assert "| MUFU.EX2 | 1 | 2, 4, 6 | 83.0, 86.0, 89.0 | 1.5 | 1.5 | 85.0, 88.0, 91.0 | 1.5 | 1.5 |" in text
    text = written(repository, capsys, COSTS.replace("=2", "=1"))
    assert "1 warp a scheduler" in text and "| 240.0, 256.0, 288.0 | 10.0 | 2.0 |" in text
    assert "warps=3: there are 1, 2" in refused(repository, capsys, COSTS.replace("=2", "=3"))


def test_the_bound_of_a_loop_is_the_sum_of_the_least_that_its_instructions_add(repository: Repository, capsys):
    repository.record("costs.json", make_costs(repository.commit))
    text = written(repository, capsys, BOUND)
    # FFMA: 118 - 82 clocks of 32 together; LOP3: 92 - 80 of 8 spread; LDSM.x4 is even faster with than without.
    assert "| HMMA | 128 | 10.00 | 1280 |" in text and "| FFMA | 60 | 1.12 | 68 |" in text
    assert "| others | 20 | 1.50 (as LOP3) | 30 |" in text and "| LDSM.x4 | 32 | 0.00 | 0 |" in text
    assert "| **sum** | 240 |  | **1378** |" in text
    # 4 * 128 * 64 * 32 FLOPs in 1377.5 clocks, on 4 schedulers of 10 SMs at 1600 MHz
    assert "1600 MHz: 48.7 TFLOPS at most, 93 % of what the products alone allow." in text
    assert "v02_smem_tiles reaches 13.7, 28 % of the bound." in text
    text = written(repository, capsys, BOUND.replace("D=128", "D=64"))
    assert "24.4 TFLOPS at most" in text and "gpu.json has no rate of v02_smem_tiles." in text
    assert "has no HMMA" in refused(repository, capsys, BOUND.replace("HMMA", "FMUL"))
    assert "there is no step 'v07_none'" in refused(repository, capsys, BOUND.replace("v02_smem_tiles", "v07_none"))


def test_what_a_step_exceeds_is_no_bound(repository: Repository, capsys):
    costs = make_costs(repository.commit)
    device = costs["provenance"]["device"]
    repository.record("costs.json", costs | {"provenance": costs["provenance"] | {"device": device | {"name": "?"}}})
    assert "gpu.json is of another GPU than the costs" in refused(repository, capsys, BOUND)
    device["max_sm_clock_mhz"] = 400
    repository.record("costs.json", costs)
    expected = "the bound is 12.2 TFLOPS, but v02_smem_tiles reaches 13.7: it is none"
    assert expected in refused(repository, capsys, BOUND)


def test_costs_are_of_a_record_that_has_some(repository: Repository, capsys):
    assert "has no costs of instructions" in refused(repository, capsys, COSTS.replace("costs.json", "gpu.json"))
    assert "does not exist" in refused(repository, capsys, BOUND)


def test_a_step_against_another_than_the_one_before(repository: Repository, capsys):
    steps = ("v01_scalar", "v02_smem_tiles", "v03_wmma")
    repository.record("gpu.json", make_record(steps=steps, commit=repository.commit))
    lesson, block = "steps/v03_wmma/README.md", "step file=gpu.json step=v03_wmma"
    assert "| problem | v02_smem_tiles | v03_wmma |" in written(repository, capsys, block, name=lesson)
    text = written(repository, capsys, f"{block} against=v01_scalar", name=lesson)
    assert "| problem | v01_scalar | v03_wmma |" in text
    assert "there is no step 'v07_none'" in refused(repository, capsys, f"{block} against=v07_none")


ABLATIONS = "## Ablations\n\n- Run: `build/flashsteps check v02_smem_tiles`\n- Expect: PASS\n"


def write_ablations(repository: Repository, *names: str) -> None:
    texts = (f"### {name}\n\n**With {name} | only**\n\n```diff\n-int {name};\n```\n" for name in names)
    repository.write("steps/v02_smem_tiles/variants.md", "\n".join([ABLATIONS, *texts]))


def add_ablations(repository: Repository, *variants: str) -> None:
    write_ablations(repository, *variants)
    git(repository.root, "add", "-A")
    git(repository.root, "commit", "-q", "-m", "ablations")
    names = [f"v02_smem_tiles_{variant}" for variant in variants]
    commit = git(repository.root, "rev-parse", "HEAD")
    repository.record("ablations.json", make_record(steps=("v02_smem_tiles", *names), commit=commit))


def test_ablation(repository: Repository, capsys):
    add_ablations(repository, "less", "more")
    block, lesson = "ablation file=ablations.json step=v02_smem_tiles", "steps/v02_smem_tiles/README.md"
    text = written(repository, capsys, block, name=lesson)
    assert "D=128 bf16 causal. TFLOPS: median [p10–p90]. × is a row's rate divided by the unchanged" in text
    assert [line for line in text.splitlines() if line.startswith("|")] == [
        "| kernel | TFLOPS | × | registers | spilled bytes | CTAs per SM |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| v02_smem_tiles, unchanged | 3.4 [3.3–3.5] | 1.00 | 64 | 0 | 4 |",
        r"| [With less \| only](variants.md#less) | 13.7 [13.3–14.0] | 4.00 | 65 | 0 | 4 |",
        r"| [With more \| only](variants.md#more) | 55.0 [53.4–56.1] | 16.00 | 66 | 0 | 4 |",
    ]


def test_ablation_beside_another_step(repository: Repository, capsys):
    add_ablations(repository, "less")
    names, commit = ("v01_scalar", "v02_smem_tiles_less"), git(repository.root, "rev-parse", "HEAD")
    repository.record("ablations.json", make_record(steps=names, commit=commit))
    text = written(repository, capsys, "ablation file=ablations step=v02_smem_tiles against=v01_scalar")
    assert "× is a row's rate divided by the rate of v01_scalar." in text and "| v01_scalar, unchanged |" in text
    assert "#less) | 13.7 [13.3–14.0] | 4.00 |" in text and "v02_smem_tiles, unchanged" not in text


def test_ablation_of_several_problems(repository: Repository, capsys):
    add_ablations(repository, "less")
    data = make_record(steps=("v02_smem_tiles", "v02_smem_tiles_less"), problems=TWO_PROBLEMS)
    data["provenance"]["commit"] = git(repository.root, "rev-parse", "HEAD")
    data["runs"][1]["steps"][1]["resources"]["registers"] = 100
    data["runs"][0]["steps"][1] = {"step": "v02_smem_tiles_less", "status": "skip", "message": "too big"}
    repository.record("ablations.json", data)
    text = written(repository, capsys, "ablation file=ablations step=v02_smem_tiles")
    assert "| kernel | S=4096 causal | × | S=512 full | × | registers | spilled bytes | CTAs per SM |" in text
    assert "| skip: too big | – |" in text and "| – / 100 | – / 0 | – / 4 |\n" in text
    text = written(repository, capsys, "ablation file=ablations step=v02_smem_tiles S=512")
    assert "| 4.00 | 100 | 0 | 4 |" in text and "too big" not in text


def test_ablations_that_are_not_there(repository: Repository, capsys):
    block = "ablation file=ablations.json step=v02_smem_tiles"
    add_ablations(repository, "less")
    assert "'show' is no filter" in refused(repository, capsys, f"{block} show=less")
    assert "there is no step 'v09'" in refused(repository, capsys, block.replace("v02_smem_tiles", "v09"))
    assert "gpu.json has no ablation of v03_wmma" in refused(repository, capsys, "ablation file=gpu.json step=v03_wmma")
    commit = git(repository.root, "rev-parse", "HEAD")
    repository.record("alone.json", make_record(steps=("v02_smem_tiles_less",), commit=commit))
    alone = block.replace("ablations.json", "alone.json")
    assert "alone.json has no step 'v02_smem_tiles'" in refused(repository, capsys, alone)
    # Not in this record: left out.
    message = refused(repository, capsys, "ablation file=gpu.json step=v02_smem_tiles")
    assert "gpu.json has no ablation of v02_smem_tiles" in message
    write_ablations(repository, "less", "more")
    text = written(repository, capsys, block)
    assert "#less)" in text and "#more)" not in text
    # The step's other configurations stand in the same table.
    steps = ("v02_smem_tiles", "v02_smem_tiles@64x64")
    repository.record("ablations.json", make_record(steps=steps, commit=commit))
    text = written(repository, capsys, block)
    assert "| v02_smem_tiles, unchanged | " in text and "| `64x64` | " in text and "#less)" not in text
    add_ablations(repository, "less")
    write_ablations(repository, "renamed")
    message = refused(repository, capsys, block)
    assert "has 'v02_smem_tiles_less', which is not in steps/v02_smem_tiles/variants.md: measure again" in message


def test_the_first_step_has_none_before_it(repository: Repository, capsys):
    text = written(repository, capsys, "step file=gpu.json step=v01_scalar")
    assert "| problem | v01_scalar | % of peak |" in text
    text = written(repository, capsys, "counters file=counts.json step=v01_scalar")
    assert "| counter | v01_scalar |\n" in text and "| global sectors | 64,000 |\n" in text


def test_counters(repository: Repository, capsys):
    text = written(repository, capsys, "counters file=counts.json step=v03_wmma")
    assert "| counter | v02_smem_tiles | v03_wmma | × |" in text
    assert "| global sectors | 8,000 | 1,000 | 0.12 |" in text
    assert "| shared wavefronts | 3,000 | 6,000 | 2.00 |" in text
    assert "| shared wavefronts / ideal | 3.00 | 3.00 |  |" in text
    pair = "counters file=counts.json step=v03_wmma"
    text = written(repository, capsys, f"{pair} show=mma,shuffles")
    assert "| mma | 16 | 32 | 2.00 |" in text and "| shuffles |" in text and "global sectors" not in text
    assert "show=nonsense" in refused(repository, capsys, f"{pair} show=nonsense")


def record_peers(repository: Repository, **more) -> dict:
    """v03_wmma takes 5 ms a call, sdpa_flash 10 ms, sdpa_cudnn 9 ms."""
    data = make_peers_record(commit=repository.commit, **more)
    repository.record("peers.json", data)
    return data


def make_faster(timing: dict) -> None:
    """Four times."""
    timing["tflops"] *= 4
    for key in ("median_ms", "p10_ms", "p90_ms"):
        timing[key] /= 4


def test_peers(repository: Repository, capsys):
    record_peers(repository)
    text = written(repository, capsys, "peers file=peers.json")
    assert "TFLOPS: median [p10–p90].\n" in text and "too." not in text
    assert [line for line in text.splitlines() if line.startswith("|")] == [
        "| problem | v01_scalar | v02_smem_tiles | v03_wmma | sdpa_flash | sdpa_cudnn | best peer "
        "| best step / best peer |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| B=4 H=16 S=4096 D=128 bf16 causal | 3.4 [3.3–3.5] | 13.7 [13.3–14.0] | 55.0 [53.4–56.1] "
        "| 27.5 [26.7–28.1] | 30.5 [29.7–31.2] | 30.5 (sdpa_cudnn) | 1.80 |",
    ]
    text = written(repository, capsys, "peers file=peers.json show=sdpa_flash,v02_smem_tiles")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == "| problem | v02_smem_tiles | sdpa_flash | best peer | v02_smem_tiles / best peer |"
    assert lines[2].endswith("| 27.5 [26.7–28.1] | 30.5 (sdpa_cudnn) | 0.45 |")
    assert "The best peer is that of all that were measured, sdpa_cudnn too." in text
    text = written(repository, capsys, "peers file=peers.json show=sdpa_flash")
    assert "| problem | sdpa_flash | best peer |\n" in text


def test_peers_of_several_problems(repository: Repository, capsys):
    data = record_peers(repository, problems=[*TWO_PROBLEMS, make_problem(seqlen_q=64, seqlen_kv=64)])
    for peer in data["runs"][2]["peers"]:
        peer |= {"status": "skip", "message": "needs a|b\nmore", "timing": None, "validation": None}
    make_faster(data["runs"][1]["steps"][2]["timing"])
    repository.record("peers.json", data)
    text = written(repository, capsys, "peers file=peers.json show=v03_wmma,sdpa_cudnn")
    assert "B=4 H=16 D=128 bf16. TFLOPS" in text
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert rows[0].startswith("| S=4096 causal | ") and rows[0].endswith("(sdpa_cudnn) | 1.80 |")
    assert rows[1].startswith("| S=512 full | ") and rows[1].endswith("| 7.20 |")
    assert rows[2].endswith(r"| skip: needs a\|b | – | – |")
    assert rows[3] == "| geometric mean of 2 |  |  |  | 3.60 |"
    text = written(repository, capsys, "peers file=peers.json causal=false")
    assert "S=512 D=128 bf16 full |" in text and "geometric mean" not in text


def test_standing(repository: Repository, capsys):
    data = record_peers(repository, problems=TWO_PROBLEMS)
    text = written(repository, capsys, "standing file=peers.json beside=sdpa_flash show=v03_wmma,sdpa_cudnn")
    table = ["| × sdpa_flash | D=128 causal | D=128 full | all 2 | smallest |", "| --- | ---: | ---: | ---: | ---: |"]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows == [*table, "| v03_wmma | 2.000 | 2.000 | 2.000 | 2.000 |", "| sdpa_cudnn | 1.111 | 1.111 | 1.111 | 1.111 |"]
    make_faster(data["runs"][1]["steps"][2]["timing"])
    repository.record("peers.json", data)
    text = written(repository, capsys, "standing file=peers.json beside=best show=v03_wmma")
    assert "| v03_wmma | 1.800 | 7.200 | 3.600 | 1.800 |" in text
    text = written(repository, capsys, "standing file=peers.json beside=best show=v03_wmma by=Skv")
    assert "| × best peer | Skv=4096 | Skv=512 | all 2 | smallest |" in text
    assert "| v03_wmma | 1.800 | 7.200 | 3.600 | 1.800 |" in text
    assert "by=x: there are B, H" in refused(repository, capsys, "standing file=peers.json beside=best by=x")
    assert "by=S: is seqlen_q and" in refused(repository, capsys, "standing file=peers.json beside=best by=S")
    data["runs"][1]["peers"][0] |= {"status": "skip", "message": "no", "timing": None, "validation": None}
    repository.record("peers.json", data)
    assert "has no time" in refused(repository, capsys, "standing file=peers.json beside=sdpa_flash")
    assert "beside=... is missing" in refused(repository, capsys, "standing file=peers.json")


def test_inputs(repository: Repository, capsys):
    kinds = ("normal", "rising", "falling")
    data = make_record(problems=[make_problem(inputs=kind) for kind in kinds], steps=STEPS, commit=repository.commit)
    make_faster(data["runs"][2]["steps"][1]["timing"])
    repository.record("kinds.json", data)
    text = written(repository, capsys, "inputs file=kinds.json show=v01_scalar,v02_smem_tiles")
    assert "B=4 H=16 S=4096 D=128 bf16 causal. Rates over those with normal inputs.\n" in text
    assert [line for line in text.splitlines() if line.startswith("|")] == [
        "| step | inputs=rising | inputs=falling |",
        "| --- | ---: | ---: |",
        "| v01_scalar | 1.00 | 1.00 |",
        "| v02_smem_tiles | 1.00 | 4.00 |",
    ]
    for wanted in ("inputs=rising", "inputs=normal"):
        assert "has no problem with normal inputs and with others" in refused(
            repository, capsys, f"inputs file=kinds.json {wanted}"
        )


def test_pages(repository: Repository, capsys):
    """Times with pages and without, of two records; a later step may have been measured in a step's place."""
    data = make_record(problems=[make_problem()], steps=STEPS, commit=repository.commit)
    repository.record("none.json", data)
    problems = [make_problem(page_size=size) for size in (1, 16)]
    data = make_record(problems=problems, steps=STEPS, commit=repository.commit)
    make_faster(data["runs"][1]["steps"][1]["timing"])
    repository.record("pages.json", data)
    block = "pages file=pages.json without=none.json step=v01_scalar measured=v02_smem_tiles"
    text = written(repository, capsys, block)
    assert "B=4 H=16 S=4096 D=128 bf16 causal" in text and "v02_smem_tiles, µs: median [p10–p90], and" in text
    assert [line for line in text.splitlines() if line.startswith("|")] == [
        "| problem | no pages | pages of 1 | pages of 16 |",
        "| --- | ---: | ---: | ---: |",
        "| B=4 H=16 S=4096 D=128 bf16 causal | 20000.00 [19600.00–20600.00] | 20000.00 [19600.00–20600.00], 1.00 × "
        "| 5000.00 [4900.00–5150.00], 4.00 × |",
    ]
    assert "has not all of B=4" in refused(repository, capsys, f"{block.replace('none', 'pages')} page_size=1")
    assert "has problems without pages" in refused(repository, capsys, block.replace("file=pages", "file=none"))
    data["runs"][0]["steps"][1] = {"step": STEPS[1], "status": "timeout", "message": "after 60 s"}
    repository.record("pages.json", data)
    assert "| timeout: after 60 s |" in written(repository, capsys, block)


def test_peers_in_vain(repository: Repository, capsys):
    record_peers(repository)
    block = "peers file=peers.json"
    assert "gpu.json is no comparison with peers" in refused(repository, capsys, "peers file=gpu.json")
    assert "counts.json is no comparison" in refused(repository, capsys, "peers file=counts.json")
    message = refused(repository, capsys, f"{block} show=flash_attn")
    assert "show=flash_attn: there are v01_scalar, " in message
    assert "no problem matches D=64" in refused(repository, capsys, f"{block} D=64")
    (repository.root / "steps/v03_wmma/kernel.cu").unlink()
    assert "has 'v03_wmma', which is not under steps/" in refused(repository, capsys, block)
    written(repository, capsys, f"{block} show=v01_scalar,sdpa_flash")


def test_host_time(repository: Repository, capsys):
    data = record_peers(repository)
    text = written(repository, capsys, "host_time file=peers.json show=sdpa_flash,v02_smem_tiles")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == "| one call | median µs | p10 | p90 |" and len(rows) == 4
    (entry,) = [each for each in data["host_overhead"]["entries"] if each["name"] == "sdpa_flash"]
    numbers = " | ".join(f"{entry[key]:.1f}" for key in ("median_us", "p10_us", "p90_us"))
    assert rows[2] == f"| sdpa_flash | {numbers} |" and rows[3].startswith("| v02_smem_tiles | ")
    assert f"{problem_label(data['host_overhead']['problem'])}, on the host" in text
    assert "gpu.json has no times of the host" in refused(repository, capsys, "host_time file=gpu.json")
    assert "show=v99: there are " in refused(repository, capsys, "host_time file=peers.json show=v99")
    assert "does not know D" in refused(repository, capsys, "host_time file=peers.json D=64")


@pytest.mark.parametrize("block", ["step step=v02_smem_tiles", "ablation step=v02_smem_tiles"])
def test_a_comparison_with_peers_is_no_run(repository: Repository, capsys, block):
    record_peers(repository)
    add_ablations(repository, "less")
    message = refused(repository, capsys, f"{block} file=peers.json")
    assert "peers.json is a comparison with peers: for the blocks 'ladder' and 'peers'" in message


def test_provenance_of_a_comparison(repository: Repository, capsys):
    record_peers(repository)
    text = written(repository, capsys, "provenance file=peers.json")
    assert "CUDA 13.0 (nvcc 13.0.88), PyTorch 2.11.0+cu130, cuDNN 9.19.0, SM clock 1500 MHz" in text
    assert "flash-attn" not in text


def test_provenance(repository: Repository, capsys):
    text = written(repository, capsys, "provenance file=gpu.json", name="docs/deep/page.md")
    assert (
        f"Measured on: Synthetic GPU, driver 1.2.3, CUDA 13.0 (nvcc 13.0.88), SM clock 1500 MHz while timing "
        f"(maximum 1600), commit {repository.commit[:12]}, 2000-01-01. "
        f"Record: [gpu.json](../../figures/results/gpu.json)."
    ) in text
    text = written(repository, capsys, "provenance file=counts.json")
    assert "emulator on Synthetic CPU, counts, not times" in text and "(figures/results/counts.json)" in text


def test_an_edited_number_is_caught(repository: Repository, capsys):
    text = written(repository, capsys, "step file=gpu.json step=v02_smem_tiles")
    repository.write("README.md", text.replace("13.7 [", "18.7 ["))
    status, message = run(repository, capsys, "--check")
    assert status == 1 and "README.md:3: step: not what its source says" in message
    assert "    -| B=4" in message and "18.7" in message and "    +| B=4" in message and "13.7" in message
    assert "18.7" in repository.read("README.md"), "--check changed the page"
    assert run(repository, capsys) == (0, "") and repository.read("README.md") == text


def test_a_changed_record_is_caught(repository: Repository, capsys):
    written(repository, capsys, "provenance file=gpu.json")
    data = make_record(commit=repository.commit)
    data["provenance"]["date"] = "2001-01-01T00:00:00Z"
    repository.record("gpu.json", data)
    status, message = run(repository, capsys, "--check")
    assert status == 1 and "2001-01-01" in message


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("ladder file=none.json", "figures/results/none.json does not exist"),
        ("ladder", "file=... is missing"),
        ("ladder file=../results/gpu.json", "must be the name of a file"),
        ("ladder file=gpu.json", "shapes=... is missing"),
        ("ladder file=gpu.json shapes=D=128 parts=decode", "parts=decode: the ladder has the parts memory"),
        ("ladder file=gpu.json shapes=D=64", "no problem matches D=64"),
        ("ladder file=gpu.json shapes=D=128 D=64", "does not know D"),
        ("ladder file=gpu.json shapes=colour=red", "'colour' is no filter"),
        ("ladder file=counts.json shapes=D=128", "needs 'cuda'"),
        ("step file=gpu.json step=v07_none", "there is no step 'v07_none'"),
        ("step file=gpu.json", "step=... is missing"),
        ("step file=counts.json step=v02_smem_tiles", "needs 'cuda'"),
        ("counters file=gpu.json step=v02_smem_tiles", "needs 'emulator'"),
        ("counters file=counts.json", "step=... is missing"),
        ("provenance file=gpu.json D=64", "does not know D"),
    ],
)
def test_what_a_block_asks_for_in_vain(repository: Repository, capsys, block, expected):
    assert expected in refused(repository, capsys, block)


def test_a_step_missing_from_the_record(repository: Repository, capsys):
    repository.record("gpu.json", make_record(steps=STEPS[:2], commit=repository.commit))
    repository.record("counts.json", make_record("emulator", steps=STEPS[:2], commit=repository.commit))
    assert "gpu.json has no step 'v03_wmma'" in refused(
        repository, capsys, "step file=gpu.json step=v03_wmma"
    )
    assert "has no step 'v03_wmma'" in refused(repository, capsys, "counters file=counts.json step=v03_wmma")


def test_a_step_gone_from_the_ladder(repository: Repository, capsys):
    (repository.root / "steps/v03_wmma/kernel.cu").unlink()
    block = "ladder file=gpu.json shapes=D=128"
    assert "has 'v03_wmma', which is not under steps/" in refused(repository, capsys, block)


def test_counters_of_a_step_that_failed(repository: Repository, capsys):
    data = make_record("emulator", commit=repository.commit)
    data["runs"][0]["steps"][1] |= {"status": "fail", "message": "wrong rows"}
    repository.record("counts.json", data)
    assert "no counters of v02_smem_tiles: fail: wrong rows" in refused(
        repository, capsys, "counters file=counts.json step=v02_smem_tiles"
    )


def test_counters_are_of_one_problem(repository: Repository, capsys):
    repository.record("counts.json", make_record("emulator", problems=TWO_PROBLEMS, commit=repository.commit))
    block = "counters file=counts.json step=v02_smem_tiles"
    assert "2 problems match" in refused(repository, capsys, block)
    written(repository, capsys, f"{block} causal=true")


def test_a_step_without_a_title(repository: Repository, capsys):
    repository.write(
        "steps/v02_smem_tiles/kernel.cu", 'auto s = {.title = "no"};\nREGISTER_STEP(f, {.removes = "x"})'
    )
    assert "steps/v02_smem_tiles/kernel.cu registers no .title" in refused(
        repository, capsys, "ladder file=gpu.json shapes=D=128"
    )


def test_a_malformed_page_is_told(repository: Repository, capsys):
    repository.write("docs/page.md", "<!-- generated: pie -->\n<!-- /generated -->\n")
    status, message = run(repository, capsys, "--check")
    assert status == 1 and message.startswith("docs/page.md:1: unknown kind 'pie'")


def test_one_broken_block_does_not_let_the_page_be_half_written(repository: Repository, capsys):
    text = page("provenance file=gpu.json", "ladder file=none.json")
    repository.write("README.md", text)
    status, message = run(repository, capsys)
    assert status == 1 and "none.json does not exist" in message and repository.read("README.md") == text


TYPED = [
    "6.1 TFLOPS",
    "reaches **850** TFLOPS",
    "850TFLOP/s",
    "1,234 GFLOPS",
    "2 PFLOPS",
    "700-tflops",
    "600+ TFLOPS",
    "12\u00a0TFLOPS",
    "40 teraflops",
    "`661` TFLOPS",
    "600–661 TFLOPS",
    "[1.5e3] TFLOPS",
    "(661) TFLOPS",
]


@pytest.mark.parametrize("text", TYPED)
@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/a/b.md",
        "steps/v01_scalar/README.md",
        "common/warp.h",
        "harness/src/x.cpp",
        "harness/tests/x.cpp",
        "scripts/tool.py",
        "scripts/tool.sh",
        "steps/v01_scalar/kernel.cu",
    ],
)
def test_a_typed_figure_is_caught(repository: Repository, capsys, name, text):
    repository.write(name, f"fine\n// {text}\n")
    status, message = run(repository, capsys, "--check")
    assert status == 1 and message.startswith(f"{name}:2: '") and "is typed by hand" in message


@pytest.mark.parametrize(
    "text",
    [
        "TFLOPS",
        "the TFLOPS column",
        'printf("%.1f TFLOPS", x)',
        "1e12 / gflops",
        "3 flops",
        "v02 TFLOPS",
        "TFLOPS of an H200 TFLOPS",
        "7: TFLOPS",
    ],
)
def test_what_is_no_figure_is_left_alone(repository: Repository, capsys, text):
    repository.write("README.md", text)
    assert run(repository, capsys, "--check") == (0, "")


@pytest.mark.parametrize("name", ["scripts/tests/x.py", "build/x.md"])
def test_examples_are_exempt(repository: Repository, capsys, name):
    repository.write(name, "6.1 TFLOPS\n")
    assert run(repository, capsys, "--check") == (0, "")


def test_a_figure_in_a_generated_block_is_not_typed(repository: Repository, capsys):
    kernel = repository.read("steps/v02_smem_tiles/kernel.cu")
    repository.write("steps/v02_smem_tiles/kernel.cu", kernel.replace("idea of", "5 TFLOPS by"))
    repository.write("README.md", page("ladder file=gpu.json shapes=D=128"))
    run(repository, capsys)
    assert "5 TFLOPS by v02_smem_tiles" in repository.read("README.md")
    status, message = run(repository, capsys, "--check")
    assert status == 1 and message.count("is typed by hand") == 1 and "kernel.cu" in message


def test_line_ends_of_a_page_stay(repository: Repository, capsys):
    path = repository.root / "README.md"
    path.write_bytes(page("provenance file=gpu.json").replace("\n", "\r\n").encode())
    assert run(repository, capsys) == (0, "") and run(repository, capsys, "--check") == (0, "")
    assert path.read_bytes().startswith(b"# Page\r\n\r\n<!--")
