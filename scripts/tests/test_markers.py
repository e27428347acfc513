from __future__ import annotations

from pathlib import Path

import pytest

from pages import markers

PAGE = Path("page.md")
GOOD = '# Title\n\n<!-- generated: shout text="a b" n=2 -->\nold\n<!-- /generated -->\nend\n'


def find(text: str):
    return markers.find_blocks(text, PAGE, ["shout", "other"])


def test_a_block_is_found():
    (block,) = find(GOOD)
    assert (block.kind, block.arguments, block.body) == ("shout", {"text": "a b", "n": "2"}, "old\n")
    assert block.where == "page.md:3" and block.end == 5


def test_only_the_bodies_are_replaced():
    text = GOOD + "<!-- generated: other -->\n<!-- /generated -->\nlast"
    first, second = find(text)
    new = markers.replace(text, [(first, "one\ntwo\n"), (second, "three\n")])
    assert (
        new == GOOD.replace("old", "one\ntwo") + "<!-- generated: other -->\nthree\n<!-- /generated -->\nlast"
    )
    assert [block.body for block in find(new)] == ["one\ntwo\n", "three\n"]


def test_generated_text_ends_with_a_line_end_and_holds_no_marker():
    (block,) = find(GOOD)
    assert markers.fitting(block, "a b") == "a b\n"
    with pytest.raises(markers.MarkerError, match="page.md:3: the generated text holds a marker"):
        markers.fitting(block, "<!-- /generated -->")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n<!-- generated: shout -->\n", "page.md:2: the block is never closed"),
        (
            "<!-- generated: shout -->\n<!-- generated: other -->\n",
            "page.md:2: a block inside the block of line 1",
        ),
        (
            "<!-- generated: whisper -->\n<!-- /generated -->\n",
            "page.md:1: unknown kind 'whisper', there are other, shout",
        ),
        ("\n<!-- /generated -->\n", "page.md:2: closes a block that was never opened"),
        ("<!--generated: shout -->\n", "page.md:1: malformed marker"),
        ("<!-- generated shout -->\n", "page.md:1: malformed marker"),
        ("  <!-- generated: shout -->\n", "page.md:1: malformed marker"),
        ("<!-- generated: shout -->\n<!-- / generated -->\n", "page.md:2: malformed marker"),
        ("<!-- generated: shout loud -->\n<!-- /generated -->\n", "page.md:1: 'loud' is not key=value"),
        ("<!-- generated: shout n= -->\n<!-- /generated -->\n", "page.md:1: 'n=' is not key=value"),
        ("<!-- generated: shout n=1 n=2 -->\n<!-- /generated -->\n", "page.md:1: 'n' is given twice"),
        ('<!-- generated: shout n="1 -->\n<!-- /generated -->\n', "page.md:1: No closing quotation"),
        ("```\n<!-- generated: shout -->\n", "page.md:1: the code fence is never closed"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text, expected):
    with pytest.raises(markers.MarkerError) as error:
        find(text)
    assert str(error.value).startswith(expected)


def test_markers_inside_a_fence_are_text():
    fenced = "````\n```\n<!-- generated: nonsense -->\n````\n"
    assert [block.line for block in find(fenced + GOOD)] == [7]


def test_a_fence_inside_a_block_does_not_hide_its_end():
    text = "<!-- generated: shout -->\n```diff\n<!-- /generated -->\n" + GOOD
    assert [block.line for block in find(text)] == [1, 6]


def test_typed_lines():
    assert [number for number, _ in markers.outside(GOOD, find(GOOD))] == [1, 2, 6]


def test_the_short_diff_is_short():
    old, new = "\n".join("abcdefgh"), "\n".join("ijklmnop")
    lines = markers.short_diff(old, new, limit=5).splitlines()
    assert len(lines) == 6 and lines[-1].strip() == "... 12 more lines"
    assert "    -x" in markers.short_diff("x", "y") and "    +y" in markers.short_diff("x", "y")
