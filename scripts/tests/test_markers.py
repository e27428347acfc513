from __future__ import annotations

from pathlib import Path

import pytest

from pages import markers

PAGE = Path("page.md")
GOOD = '# Title\n\n<!-- generated: shout text="a b" n=2 -->\nold\n<!-- /generated -->\nend\n'


def find(text: str):
    return markers.find_blocks(text, PAGE, ["shout", "other"])


def test_blocks_are_found_and_only_their_bodies_replaced():
    # In a fence a marker is text; within a block a fence does not hide its end.
    fenced = "````\n```\n<!-- generated: nonsense -->\n````\n"
    text = fenced + GOOD + "<!-- generated: other -->\n```diff\n<!-- /generated -->\nlast"
    first, second = find(text)
    assert (first.kind, first.arguments, first.body) == ("shout", {"text": "a b", "n": "2"}, "old\n")
    assert (first.where, first.end, second.line) == ("page.md:7", 9, 11)
    assert [number for number, _ in markers.outside(text, [first, second])] == [1, 2, 3, 4, 5, 6, 10, 14]
    new = markers.replace(text, [(first, markers.fitting(first, "one\ntwo")), (second, "three\n")])
    assert new == text.replace("old", "one\ntwo").replace("```diff", "three")
    with pytest.raises(markers.MarkerError, match="page.md:7: the generated text holds a marker"):
        markers.fitting(first, "<!-- /generated -->")


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
        ("  <!-- generated: shout -->\n", "page.md:1: malformed marker"),
        ("<!-- generated: shout loud -->\n<!-- /generated -->\n", "page.md:1: 'loud' is not key=value"),
        ("<!-- generated: shout n=1 n=2 -->\n<!-- /generated -->\n", "page.md:1: 'n' is given twice"),
        ('<!-- generated: shout n="1 -->\n<!-- /generated -->\n', "page.md:1: No closing quotation"),
        ("```\n<!-- generated: shout -->\n", "page.md:1: the code fence is never closed"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text, expected):
    with pytest.raises(markers.MarkerError) as error:
        find(text)
    assert str(error.value).startswith(expected)


def test_the_short_diff_is_short():
    old, new = "\n".join("abcdefgh"), "\n".join("ijklmnop")
    lines = markers.short_diff(old, new, limit=5).splitlines()
    assert len(lines) == 6 and lines[-1].strip() == "... 12 more lines"
    assert "    -x" in markers.short_diff("x", "y") and "    +y" in markers.short_diff("x", "y")
