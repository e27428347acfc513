"""What scripts/steps/variants.py reads, refuses and writes. That the variants of the tree apply and do what they say is
tested in harness/tests/test_variants.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Repository, git, make_record

from records import results
from steps import variants

STEP = "v02_smem_tiles"
PAGE = f"steps/{STEP}/variants.md"
NAME = f"{STEP}_half_rows"
# A change of conftest.KERNEL.
TEXT = r"""# Variants

## Ablations

- Run: `build/flashsteps check v02_smem_tiles --causal --full --shape 1,2,100,64 --shape 1,2,100,128`
- Expect: PASS

### half_rows

**Half the rows, "by" the \ way**

Why one would expect what.

```bash
echo not a diff
```

```diff
 #include "common/step.h"

-constexpr int BLOCK_M = 64;  // rows of Q
+constexpr int BLOCK_M = 32;  // half of the rows
+constexpr int MORE = 1;
```

## Bugs

- Run: `build/flashsteps check v02_smem_tiles --shape 1,2,100,64`
- Run: `build/flashsteps check v02_smem_tiles --shape 1,2,100,128`

### two_changes

**Two changes, in any order**

```diff
-REGISTER_STEP(launch_attention, kStep);
+REGISTER_STEP(launch, kStep);
```

```diff
-// v02_smem_tiles: what it teaches.
```

- Expect: FAIL, `race on` `is not`
- At: `tile[row]`
- Expect: HANG
- Not shown: why

### two_runs

**Nothing**

- Run: `build/steps/v02_smem_tiles count`
- Expect: PASS
- Holds: `mma == v01.mma`
- Run: `build/steps/v02_smem_tiles count --causal`
- Expect: SKIP, `cannot`
"""


def run(repository: Repository, capsys, *options: str) -> tuple[int, str, str]:
    status = variants.main([*options])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def changed(repository: Repository) -> Repository:
    repository.write(PAGE, TEXT)
    return repository


def test_what_a_page_says(changed: Repository):
    half, changes, runs = variants.of_step(STEP)
    assert (half.kind, half.title) == ("ablation", r'Half the rows, "by" the \ way')
    assert half.task == "Why one would expect what."
    assert [each.verdict for case in half.cases for each in case.outcomes] == ["PASS"]
    (case,) = changes.cases
    assert [command[-3:] for command in case.commands] == [",64", "128"] and changes.not_shown == ["why"]
    assert [(each.verdict, each.words, each.places) for each in case.outcomes] == [
        ("FAIL", ["race on", "is not"], ["tile[row]"]),
        ("HANG", [], []),
    ]
    assert [(len(each.commands), each.claims) for each in runs.cases] == [(1, ["mma == v01.mma"]), (1, [])]
    assert not runs.changes and variants.of_step(STEP, "ablation") == [half]


def test_list(changed: Repository, capsys):
    status, listing, said = run(changed, capsys)
    assert (status, said) == (0, "") and listing.startswith(f'{NAME}\n  Half the rows, "by" the \\ way\n')
    assert listing == run(changed, capsys, "v02")[1] and NAME not in run(changed, capsys, "--kind", "bug")[1]
    assert run(changed, capsys, "v01") == (0, "", "") and run(changed, capsys, "v99")[0] == 2


def test_the_kernels_that_are_made(changed: Repository, capsys, tmp_path: Path):
    out = tmp_path / "made"
    assert run(changed, capsys, "--out", str(out))[0] == 0
    assert sorted(path.name for path in out.iterdir()) == [NAME, f"{STEP}_two_changes"]
    lines = (out / NAME / "kernel.cu").read_text(encoding="utf-8").splitlines()
    before = changed.read(f"steps/{STEP}/kernel.cu").splitlines()
    assert lines[0] == f"// Made by scripts/steps/variants.py from {PAGE}#half_rows"
    assert lines[1:4] == before[:3]
    assert lines[4:6] == ["constexpr int BLOCK_M = 32;  // half of the rows", "constexpr int MORE = 1;"]
    text = "\n".join(lines)
    # In C++ each of a title's backslashes and quotes is escaped.
    assert r'.title = "v02_smem_tiles, changed: Half the rows, \"by\" the \\ way",' in text
    assert "idea of v02" not in text and "x | y" not in text and lines[-1] == before[-1]
    both = (out / f"{STEP}_two_changes" / "kernel.cu").read_text(encoding="utf-8")
    assert "what it teaches" not in both and "REGISTER_STEP(launch, kStep);" in both and "BLOCK_M = 64;" in both
    # The tests compile what they run, without another number of lines.
    assert run(changed, capsys, "--tested", "--out", str(out))[0] == 0
    first, *rest = (out / NAME / "kernel.cu").read_text(encoding="utf-8").splitlines()
    assert rest == lines[1:] and first.count("CAUSAL&&HEAD_DIM==") == 4


def test_a_variant_on_another_one(changed: Repository, capsys, tmp_path: Path):
    text = TEXT.replace(
        "### two_changes",
        "### on_half\n\n**More**\n\n```diff\n-constexpr int MORE = 1;\n+constexpr int MORE = 2;\n```\n\n"
        "- On: `half_rows`\n- Expect: PASS\n\n### two_changes",
    )
    changed.write(PAGE, text)
    assert run(changed, capsys, "--out", str(tmp_path))[0] == 0
    kernel = (tmp_path / f"{STEP}_on_half" / "kernel.cu").read_text(encoding="utf-8")
    assert "MORE = 2;" in kernel and "BLOCK_M = 32;" in kernel
    changed.write(PAGE, text.replace("MORE = 1;\n```\n\n##", "MORE = 0;\n```\n\n##"))
    assert f"{PAGE}#half_rows has no line 'constexpr int MORE = 1;'" in run(changed, capsys)[2]
    changed.write(PAGE, text.replace("- Expect: FAIL", "- On: `on_half`\n- Expect: FAIL"))
    assert "'on_half' is itself on another variant" in run(changed, capsys)[2]


def test_a_kernel_that_changed_is_said_and_costs_no_other(changed: Repository, capsys, tmp_path: Path):
    out = tmp_path / "made"
    assert run(changed, capsys, "--out", str(out))[0] == 0
    kernel = changed.read(f"steps/{STEP}/kernel.cu")
    changed.write(f"steps/{STEP}/kernel.cu", "// new\n" + kernel.replace("BLOCK_M = 64", "BLOCK_M = 48"))
    status, _, said = run(changed, capsys, "--out", str(out))
    assert status == 1 and said == (
        f"{PAGE}:19: no longer applies: steps/{STEP}/kernel.cu has no line "
        "'constexpr int BLOCK_M = 64;  // rows of Q'\n"
    )
    assert [path.name for path in out.iterdir()] == [f"{STEP}_two_changes"]
    changed.write(f"steps/{STEP}/kernel.cu", kernel.replace("\n\n", "\n// new\n\n", 1))
    assert "has these lines, but not one after the other" in run(changed, capsys)[2]


def diff(*lines: str) -> str:
    return "\n".join(["**Title**", "```diff", *lines, "```", "- Run: `flashsteps check v02`", "- Expect: PASS", ""])


@pytest.mark.parametrize(
    "text, says",
    [
        ("## Tricks\n", ":1: 'Tricks' is none of Try it, Bugs,"),
        ("## Bugs\n### One-Stage\n", ":2: the name must be lower-case"),
        ("## Bugs\n### a\n" + diff("-int x;") + "### a\n" + diff("-int x;"), ":2: there are two 'a'"),
        ("## Bugs\n### a\n" + diff("-int x;").replace("**", ""), ":2: begins with what is changed"),
        ("## Bugs\n### a\n**A**\n", ":2: expects nothing"),
        ("## Bugs\n### a\n**A**\n- Expect: FAIL\n", ":2: a command without an outcome"),
        ("## Bugs\n### a\n**A**\n- Expect: LOSS\n", ":4: what is '- Expect: LOSS'?"),
        ("## Bugs\n### a\n```diff\n-a\n", ":3: the code fence is never closed"),
        ("## Bugs\n### a\n" + diff("-a", "b"), ":6: a line of a diff begins with '-', '+' or a space"),
        ("## Bugs\n### a\n" + diff(" a"), ":5: changes nothing"),
        ("## Bugs\n### a\n" + diff("+a"), ":5: where? Add a line"),
    ],
)
def test_a_page_that_cannot_be_read(repository: Repository, capsys, text: str, says: str):
    repository.write(PAGE, text)
    status, _, said = run(repository, capsys)
    assert status == 2 and said.startswith(f"variants.py: {PAGE}{says}") and said.count("\n") == 1


@pytest.mark.parametrize(
    "text, says",
    [
        (diff("-int x;", "+int y;"), f"{PAGE}:5: stands in steps/{STEP}/kernel.cu at lines 1, 13: add"),
        (diff("-int x;", " // v02_smem_tiles: what it teaches."), ""),
        (
            diff("-int x;", " // v02_smem_tiles: what it teaches.").replace(
                "- Run", "```diff\n-// v02_smem_tiles: what it teaches.\n```\n- Run"
            ),
            f"{PAGE}:9: these lines are also in the change at {PAGE}:5",
        ),
    ],
)
def test_where_a_change_belongs(repository: Repository, capsys, text: str, says: str):
    kernel = repository.read(f"steps/{STEP}/kernel.cu")
    repository.write(f"steps/{STEP}/kernel.cu", "int x;\n" + kernel + "int x;\n")
    repository.write(PAGE, "## Bugs\n### a\n" + text)
    status, _, said = run(repository, capsys)
    assert status == bool(says) and said.startswith(says) and said.count("\n") == bool(says)


def test_the_folder_holds_what_was_asked_for(changed: Repository, capsys, tmp_path: Path):
    out = tmp_path / "made"
    assert run(changed, capsys, "--out", str(out))[0] == 0
    kernel = out / NAME / "kernel.cu"
    written = kernel.stat().st_mtime_ns
    assert run(changed, capsys, "--kind", "ablation", "--out", str(out))[0] == 0
    assert [path.name for path in out.iterdir()] == [NAME]
    assert kernel.stat().st_mtime_ns == written, "or it would be compiled again"
    kernel.write_text("// mine\n", encoding="utf-8")
    status, _, said = run(changed, capsys, "v01", "--out", str(out))
    assert status == 2 and said == f"variants.py: {kernel} was not made here: name another folder\n"
    assert kernel.read_text(encoding="utf-8") == "// mine\n"


@pytest.mark.parametrize("page", [PAGE, f"docs/ablations/{STEP}/half_rows.md"])  # as now, and as it was
def test_a_recorded_run_holds_steps_and_variants_of_its_commit_only(repository: Repository, page: str):
    repository.write(page, TEXT)
    steps = ("v01_scalar", STEP, f"{STEP}@64x64", NAME)
    uncommitted = make_record(steps=steps, commit=repository.commit)
    assert results.check(uncommitted) == []
    assert results.check_recorded(uncommitted) == [
        f"runs: '{NAME}' is neither a step nor a variant of commit {repository.commit[:12]}"
    ]
    git(repository.root, "add", "-A")
    git(repository.root, "commit", "-q", "-m", "an ablation")
    committed = make_record(steps=steps, commit=git(repository.root, "rev-parse", "HEAD"))
    assert results.check_recorded(committed) == []
    foreign = make_record(steps=(*steps, "my_step"), commit=committed["provenance"]["commit"])
    assert "'my_step' is neither" in results.check_recorded(foreign)[0]
