from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Repository, git, make_record

from records import results
from steps import ablations

# A change of conftest.KERNEL.
PAGE = """# Half the rows, "by" the \\\\ way

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
"""
STEP = "v02_smem_tiles"
NAME = "docs/ablations/v02_smem_tiles/half_rows.md"


def run(repository: Repository, capsys, *options: str) -> tuple[int, str, str]:
    status = ablations.main(["--root", str(repository.root), *options])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def changed(repository: Repository) -> Repository:
    repository.write(NAME, PAGE)
    return repository


def refused(repository: Repository, capsys, *options: str) -> str:
    """The one line that says why."""
    status, _, message = run(repository, capsys, *options)
    assert status == 1 and message.count("\n") == 1, message
    return message


def diff(*lines: str) -> str:
    return "\n".join(["# Title", "```diff", *lines, "```", ""])


def test_without_any_there_is_nothing_to_say(repository: Repository, capsys):
    assert run(repository, capsys) == (0, "", "")


def test_list(changed: Repository, capsys):
    expected = 'v02_smem_tiles_half_rows\n  Half the rows, "by" the \\\\ way\n'
    assert run(changed, capsys) == (0, expected, "")
    assert run(changed, capsys, "v02") == (0, expected, "")
    changed.write("docs/ablations/README.md", "what is in this folder")  # is no ablation
    assert run(changed, capsys) == (0, expected, "")


def test_the_kernel_that_is_made(changed: Repository, capsys, tmp_path: Path):
    out = tmp_path / "made"
    assert run(changed, capsys, "--out", str(out))[0] == 0
    assert [path.name for path in out.iterdir()] == ["v02_smem_tiles_half_rows"]
    lines = (out / "v02_smem_tiles_half_rows" / "kernel.cu").read_text(encoding="utf-8").splitlines()
    before = changed.read(f"steps/{STEP}/kernel.cu").splitlines()
    assert lines[0] == f"// Made by scripts/steps/ablations.py from steps/{STEP}/kernel.cu and {NAME}"
    assert lines[1:4] == before[:3]
    assert lines[4:6] == ["constexpr int BLOCK_M = 32;  // half of the rows", "constexpr int MORE = 1;"]
    text = "\n".join(lines)
    # In C++ each of a title's backslashes and quotes is escaped.
    assert '{.title = "v02_smem_tiles, changed: Half the rows, \\"by\\" the \\\\\\\\ way",' in text
    assert "idea of v02" not in text and "x | y" not in text and lines[-1] == before[-1]


def test_several_changes_in_any_order(repository: Repository):
    repository.write(
        NAME,
        diff(
            '-REGISTER_STEP(launch_attention, {.title = "idea of v02_smem_tiles, "',
            '+REGISTER_STEP(launch, {.title = "idea of v02_smem_tiles, "',
        )
        + "```diff\n-// v02_smem_tiles: what it teaches.\n```\n",
    )
    (ablation,) = ablations.of_step(STEP, repository.root)
    text = ablations.source(ablation, repository.root)
    assert "what it teaches" not in text and "REGISTER_STEP(launch, {" in text and "BLOCK_M = 64;" in text


def test_a_kernel_that_changed_is_said(changed: Repository, capsys, tmp_path: Path):
    out = tmp_path / "made"
    assert run(changed, capsys, "--out", str(out))[0] == 0
    kernel = changed.read(f"steps/{STEP}/kernel.cu")
    changed.write(f"steps/{STEP}/kernel.cu", kernel.replace("BLOCK_M = 64", "BLOCK_M = 48"))
    message = refused(changed, capsys, "--out", str(out))
    assert message == (
        f"{NAME}:10: no longer applies: steps/{STEP}/kernel.cu has no line "
        "'constexpr int BLOCK_M = 64;  // rows of Q'\n"
    )
    assert not list(out.iterdir()), "what no longer is an ablation of this kernel is gone"
    changed.write(f"steps/{STEP}/kernel.cu", kernel.replace("\n\n", "\n// new\n\n", 1))
    assert "has these lines, but not one after the other" in refused(changed, capsys)


def test_another_change_of_the_kernel_does_not_matter(changed: Repository, capsys):
    kernel = changed.read(f"steps/{STEP}/kernel.cu")
    changed.write(f"steps/{STEP}/kernel.cu", "// new\n" + kernel.replace("something", "something else"))
    assert run(changed, capsys)[0] == 0


def test_two_places_are_one_too_many(repository: Repository, capsys):
    kernel = repository.read(f"steps/{STEP}/kernel.cu")
    repository.write(f"steps/{STEP}/kernel.cu", "int x;\n" + kernel + "int x;\n")
    repository.write(NAME, diff("-int x;", "+int y;"))
    assert f"{NAME}:3: stands in steps/{STEP}/kernel.cu at lines 1, 10: add" in refused(repository, capsys)
    repository.write(NAME, diff("-int x;", "+int y;", " // v02_smem_tiles: what it teaches."))
    assert run(repository, capsys)[0] == 0


def test_two_changes_of_one_line(repository: Repository, capsys):
    change = diff("-constexpr int BLOCK_M = 64;  // rows of Q", "+constexpr int BLOCK_M = 32;")
    repository.write(NAME, change + change.replace("# Title\n", ""))
    assert f"{NAME}:7: these lines are also in the change of line 3" in refused(repository, capsys)


@pytest.mark.parametrize(
    "text, says",
    [
        ("", ":1: begins with a heading"),
        ("Title\n" + diff("-a")[8:], ":1: begins with a heading"),
        ("# Title\n", ": has no ```diff block"),
        ("# Title\n```cuda\nint x;\n```\n", ": has no ```diff block"),
        ("# Title\n```diff\n-a\n", ":2: the code fence is never closed"),
        (diff("-a", "b"), ":4: a line of a diff begins with '-', '+' or a space"),
        (diff("@@ -1,2 +1,2 @@", "-a"), ":3: a line of a diff begins with"),
        (diff(" a"), ":3: changes nothing"),
        (diff(), ":3: changes nothing"),
        (diff("+a"), ":3: where? Add a line"),
    ],
)
def test_a_page_that_cannot_be_read(repository: Repository, capsys, text: str, says: str):
    repository.write(NAME, text)
    assert refused(repository, capsys).startswith(NAME + says)


def test_names(repository: Repository, capsys):
    repository.write("docs/ablations/v99_gone/x.md", PAGE)
    assert "v99_gone/x.md: there is no step 'v99_gone'" in refused(repository, capsys)
    assert run(repository, capsys, "v02")[0] == 2  # it has none
    assert run(repository, capsys, "v99_gone")[0] == 2
    (repository.root / "docs/ablations/v99_gone/x.md").unlink()
    repository.write("docs/ablations/v01_scalar/One-Stage.md", PAGE)
    assert "the name must be lower-case letters" in refused(repository, capsys)


def test_what_one_page_says_does_not_cost_the_others(changed: Repository, capsys, tmp_path: Path):
    changed.write("docs/ablations/v01_scalar/broken.md", "# Title\n")
    status, out, message = run(changed, capsys, "--out", str(tmp_path / "made"))
    assert status == 1 and "v02_smem_tiles_half_rows" in out and "v01_scalar/broken.md" in message
    assert (tmp_path / "made" / "v02_smem_tiles_half_rows" / "kernel.cu").is_file()


def test_pages_of_another_folder(changed: Repository, capsys, tmp_path: Path):
    changed.write("harness/tests/bugs/README.md", "what is in this folder")
    changed.write(f"harness/tests/bugs/{STEP}/no_barrier.md", PAGE)
    out = tmp_path / "made"
    status, listing, _ = run(changed, capsys, "--pages", "harness/tests/bugs", "--out", str(out))
    assert status == 0 and listing.startswith("v02_smem_tiles_no_barrier\n") and "half_rows" not in listing
    kernel = (out / "v02_smem_tiles_no_barrier" / "kernel.cu").read_text(encoding="utf-8")
    page = f"harness/tests/bugs/{STEP}/no_barrier.md"
    assert kernel.startswith(f"// Made by scripts/steps/ablations.py from steps/{STEP}/kernel.cu and {page}\n")
    status, _, message = run(changed, capsys, "v01", "--pages", "harness/tests/bugs")
    assert status == 2 and "v01_scalar has no page under harness/tests/bugs/" in message
    status, _, message = run(changed, capsys, "--pages", str(tmp_path))
    assert status == 2 and f"--pages: {tmp_path} is not a folder of {changed.root}" in message


def test_the_folder_holds_what_was_asked_for_and_is_left_alone_otherwise(
    changed: Repository, capsys, tmp_path: Path
):
    out = tmp_path / "made"
    changed.write("docs/ablations/v01_scalar/other.md", diff("-// v01_scalar: what it teaches."))
    own = out / "my_step" / "kernel.cu"
    own.parent.mkdir(parents=True)
    own.write_text("// mine\n")
    assert run(changed, capsys, "--out", str(out))[0] == 0
    kernel = out / "v02_smem_tiles_half_rows" / "kernel.cu"
    written = kernel.stat().st_mtime_ns
    assert run(changed, capsys, "v02", "--out", str(out))[0] == 0
    assert sorted(path.name for path in out.iterdir()) == ["my_step", "v02_smem_tiles_half_rows"]
    assert kernel.stat().st_mtime_ns == written, "or it would be compiled again"
    kernel.write_text("// mine\n")
    status, _, message = run(changed, capsys, "--out", str(out))
    assert status == 2 and "was not made here" in message and kernel.read_text() == "// mine\n"


def test_what_somebody_edited_is_kept(changed: Repository, capsys, tmp_path: Path):
    out = tmp_path / "made"
    changed.write("docs/ablations/v01_scalar/other.md", diff("-// v01_scalar: what it teaches."))
    assert run(changed, capsys, "--out", str(out))[0] == 0
    kernel, other = out / "v02_smem_tiles_half_rows" / "kernel.cu", out / "v01_scalar_other" / "kernel.cu"
    edited = kernel.read_text(encoding="utf-8") + "// mine\n"
    kernel.write_text(edited, encoding="utf-8")
    for steps in ([], ["v01"], ["v02"]):  # made anew, or not asked for
        status, _, message = run(changed, capsys, *steps, "--out", str(out))
        assert status == 2 and message == (
            f"ablations.py: {kernel} was edited since it was made: move it away, or name another folder\n"
        )
        assert kernel.read_text(encoding="utf-8") == edited and other.is_file()


def test_what_is_removed_is_said_and_other_files_stay(changed: Repository, capsys, tmp_path: Path):
    out = tmp_path / "made"
    changed.write("docs/ablations/v01_scalar/other.md", diff("-// v01_scalar: what it teaches."))
    assert run(changed, capsys, "--out", str(out))[0] == 0
    (out / "v02_smem_tiles_half_rows" / "notes").write_text("mine\n", encoding="utf-8")
    status, said, _ = run(changed, capsys, "v01", "--out", str(out))
    assert status == 0 and f"removed {out}/v02_smem_tiles_half_rows/kernel.cu, made by an earlier call\n" in said
    assert [path.name for path in (out / "v02_smem_tiles_half_rows").iterdir()] == ["notes"]


def test_no_link_is_written_through(changed: Repository, capsys, tmp_path: Path):
    out, target = tmp_path / "made" / "v02_smem_tiles_half_rows", tmp_path / "target"
    out.mkdir(parents=True)
    (out / "kernel.cu").symlink_to(target)  # in /tmp, somebody else may have put it there
    status, _, message = run(changed, capsys, "--out", str(out.parent))
    assert status == 2 and "was not made here" in message and not target.exists()


def test_a_recorded_run_holds_steps_and_ablations_of_its_commit_only(changed: Repository):
    steps = ("v01_scalar", STEP, "v02_smem_tiles_half_rows")
    uncommitted = make_record(steps=steps, commit=changed.commit)
    assert results.check(uncommitted) == []
    assert results.check_recorded(uncommitted, changed.root) == [
        f"runs: 'v02_smem_tiles_half_rows' is neither a step nor an ablation or bug of commit {changed.commit[:12]}"
    ]
    git(changed.root, "add", "-A")
    git(changed.root, "commit", "-q", "-m", "an ablation")
    committed = make_record(steps=steps, commit=git(changed.root, "rev-parse", "HEAD"))
    assert results.check_recorded(committed, changed.root) == []
    foreign = make_record(steps=(*steps, "my_step"), commit=committed["provenance"]["commit"])
    assert "'my_step' is neither" in results.check_recorded(foreign, changed.root)[0]


def test_a_configuration_is_its_steps(repository: Repository):
    data = make_record(steps=(STEP, f"{STEP}@64x64"), commit=repository.commit)
    assert results.check(data) == [] and results.check_recorded(data, repository.root) == []
