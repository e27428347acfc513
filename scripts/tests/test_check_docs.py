from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SCRIPTS, Repository, git

from pages import check_docs

ROOT = SCRIPTS.parent


def links(repository: Repository) -> list[str]:
    return check_docs.link_errors(repository.root)


def test_the_pages_of_this_repository_are_sound():
    assert check_docs.link_errors(ROOT) == []
    commands, errors = check_docs.all_commands(ROOT)
    assert errors == [] and len(commands) > 30


def test_links_that_resolve(repository: Repository):
    repository.write("docs/a.md", "# One two\n\n# `code` and *more*, again!\n\n# One two\n")
    repository.write("docs/pic.svg", "<svg/>")
    repository.write(
        "README.md",
        "[a](docs/a.md) [b](docs/a.md#one-two) [c](docs/a.md#one-two-1)\n"
        "[d](docs/a.md#code-and-more-again) [folder](docs/) ![picture](docs/pic.svg) [here](#top)\n"
        "[web](https://example.invalid/x) [two\nlines](docs/a.md) [m](mailto:a@example.invalid)\n"
        '<img src="docs/pic.svg"> [source](steps/v01_scalar/kernel.cu#L2)\n# Top\n'
        "[ref][] [text][ref]\n\n[ref]: docs/a.md#one-two\n",
    )
    assert links(repository) == []


@pytest.mark.parametrize(
    "text, said",
    [
        ("[a](docs/missing.md)", "README.md:1: link to 'docs/missing.md': the repository has no docs/miss"),
        ("x\n\n[a](docs/a.md#three)", "README.md:3: link to 'docs/a.md#three': docs/a.md has no heading"),
        ("[a](#nowhere)", "README.md has no heading '#nowhere'"),
        ("[a](../outside.md)", "the repository has no ../outside.md"),
        ("[a](ignored.md)", "the repository has no ignored.md"),
        ("[a](steps/v01_scalar/kernel.cu#L9999)", "has no such line"),
        ("![a](docs/no.svg)", "the repository has no docs/no.svg"),
        ('<img alt="x" src="docs/no.svg">', "the repository has no docs/no.svg"),
        ("[ref][]\n\n[ref]: docs/missing.md", "README.md:3: link to 'docs/missing.md'"),
        ("[ref][]", "README.md:1: '[ref][]' is defined nowhere on the page"),
        ("[ref]: docs/a.md", "README.md:1: '[ref]' is used nowhere on the page"),
        ("[two\nlines](docs/missing.md)", "README.md:2: link to 'docs/missing.md'"),
    ],
)
def test_links_that_do_not(repository: Repository, text: str, said: str):
    repository.write(".gitignore", "ignored.md\n")
    repository.write("ignored.md", "# There, but not in the repository\n")
    repository.write("docs/a.md", "# One\n\n```bash\n# three\n```\n")
    repository.write("README.md", text + "\n")
    (error,) = links(repository)
    assert said in error


def test_code_and_comments_hold_no_links(repository: Repository):
    repository.write(
        "README.md",
        "`[a](missing.md)` <!-- [b](missing.md)\n[c](missing.md) -->\n\n```\n[d](missing.md)\n```\n"
        "\n    [e](missing.md) # indented\n\n\\[f](missing.md) ``[g](missing.md) ` ``\n",
    )
    assert links(repository) == []


def test_without_git_all_files_count(tmp_path: Path):
    (tmp_path / "README.md").write_text("[a](a.md) [b](build/b.md)\n")
    (tmp_path / "a.md").write_text("# A\n")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "b.md").write_text("# B\n")
    (error,) = check_docs.link_errors(tmp_path)
    assert "build/b.md" in error


PAGE = """# Page

```bash
one --option   # what it does
two \\
  --more

# only a comment
```

<!-- needs: gpu network -->
```bash
three
```

````markdown
<!-- needs: nothing -->
```bash
four
```
````

```python
five
```
"""


def test_commands_and_their_marks():
    commands, errors = check_docs.Page("README.md", PAGE).commands()
    assert errors == []
    assert [(c.line, c.text, c.needs) for c in commands] == [
        (4, "one --option", ()),
        (5, "two --more", ()),
        (13, "three", ("gpu", "network")),
    ]


@pytest.mark.parametrize(
    "text, said",
    [
        ("<!-- needs: luck -->\n```bash\nx\n```\n", "README.md:1: needs 'luck', which is none of gpu, "),
        ("<!-- needs: gpu -->\n\n```bash\nx\n```\n", "README.md:1: '<!-- needs: gpu -->' does not stand"),
        ("<!-- needs: gpu -->\n```python\nx\n```\n", "does not stand right above a block of commands"),
        ("```sh\nx\n```\n", "README.md:1: a block of commands is called bash here, not sh"),
    ],
)
def test_marks_that_are_wrong(text: str, said: str):
    _, errors = check_docs.Page("README.md", text).commands()
    assert len(errors) == 1 and said in errors[0]


def test_which_pages_are_searched_for_commands(repository: Repository):
    searched = ["README.md", "docs/a.md", "docs/deeper/b.md", "steps/v01_scalar/README.md"]
    for name in (*searched, "harness/README.md", "steps/v01_scalar/more.md"):
        repository.write(name, f"```bash\n{name}\n```\nor `build/flashsteps {name}`\n")
    commands, _ = check_docs.all_commands(repository.root)
    inline = "build/flashsteps steps/v01_scalar/README.md"
    assert [command.text for command in commands] == [*searched, inline]


def test_commands_within_a_line():
    text = """`build/flashsteps count v01
--shape 1,2,3,64` and `cmake --build build`, in `build/report/` or `steps/v01`, `--causal`

`python3 scripts/measure/profile_ncu.py v01`
`scripts/steps/step_diff.py v01 v02` <!-- `build/not this` -->

```
`build/nor this`
```
"""
    commands = check_docs.Page("steps/v01/README.md", text).inline_commands()
    assert [(c.line, c.text, c.needs) for c in commands] == [
        (1, "build/flashsteps count v01 --shape 1,2,3,64", ()),
        (2, "cmake --build build", ("build",)),
        (4, "python3 scripts/measure/profile_ncu.py v01", ("gpu",)),
        (5, "scripts/steps/step_diff.py v01 v02", ()),
    ]


def test_the_program(repository: Repository):
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        script = str(SCRIPTS / "pages" / "check_docs.py")
        command = [sys.executable, script, "--root", str(repository.root), *options]
        return subprocess.run(command, capture_output=True, text=True)

    repository.write("README.md", PAGE)
    git(repository.root, "add", "-A")
    done = run()
    assert (done.returncode, done.stdout) == (0, "1 pages, 3 commands: nothing wrong\n")
    assert "README.md:13: three  [needs gpu network]" in run("--commands").stdout
    repository.write("README.md", "[a](missing.md)\n")
    done = run()
    assert done.returncode == 1 and "check_docs.py: README.md:1: link to 'missing.md'" in done.stderr
