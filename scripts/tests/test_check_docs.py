from __future__ import annotations

import pytest
from conftest import ROOT, Repository

from pages import check_docs


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


WRONG = [
    ("[a](docs/missing.md)", "link to 'docs/missing.md': the repository has no docs/missing.md"),
    ("[a](docs/a.md#three)", "link to 'docs/a.md#three': docs/a.md has no heading"),
    ("[a](#nowhere)", "README.md has no heading '#nowhere'"),
    ("[a](../outside.md)", "the repository has no ../outside.md"),
    ("[a](ignored.md)", "the repository has no ignored.md"),
    ("[a](steps/v01_scalar/kernel.cu#L9999)", "has no such line"),
    ("![a](docs/no.svg)", "the repository has no docs/no.svg"),
    ('<img alt="x" src="docs/no.svg">', "the repository has no docs/no.svg"),
    ("[ref][]", "'[ref][]' is defined nowhere on the page"),
    ("[unused]: docs/a.md", "'[unused]' is used nowhere on the page"),
    ("[two lines](docs/gone.md)", "link to 'docs/gone.md'"),
]


def test_links_that_do_not(repository: Repository):
    repository.write(".gitignore", "ignored.md\n")
    repository.write("ignored.md", "# There, but not in the repository\n")
    repository.write("docs/a.md", "# One\n\n```bash\n# three\n```\n")
    repository.write("README.md", "\n\n".join(text for text, _ in WRONG))
    errors = links(repository)
    assert len(errors) == len(WRONG)
    for at, (_, said) in enumerate(WRONG):
        assert any(error.startswith(f"README.md:{2 * at + 1}: ") and said in error for error in errors), said


def test_code_and_comments_hold_no_links(repository: Repository):
    repository.write(
        "README.md",
        "`[a](missing.md)` <!-- [b](missing.md)\n[c](missing.md) -->\n\n```\n[d](missing.md)\n```\n"
        "\n    [e](missing.md) # indented\n\n\\[f](missing.md) ``[g](missing.md) ` ``\n",
    )
    assert links(repository) == []


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


