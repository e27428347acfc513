"""The commands that README.md, docs/ and the lessons show, and what a page says of each.

They are the lines of ```bash blocks; in lessons also code within a line, as `build/flashsteps count v01_scalar`. What
comes of a command stands behind it: FAIL or CRASH, if it is not success, and in double quotes what it must print. In a
block that is a comment of the shell; elsewhere it is one of HTML, below the last command that is run:

    build/ci/tests/flashsteps_mutants check mutant_no_max   # FAIL: "element(s) of o are NaN"
    <!-- prints: "x ideal" " 3.84 " -->

A block that cannot simply be run says why, in a comment right above it:

    <!-- needs: gpu -->

What may be needed: gpu; network; root (to install packages); build (configures, compiles or installs: minutes; the
tests run on its result); time (minutes; another section of scripts/test.sh does the same). What a command within a line
needs is known by its name. All others are run by test_documented_commands.py.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field

from markdown_it import MarkdownIt
from markdown_it.token import Token
from test_program import ROOT

NEEDS = {"gpu", "network", "root", "build", "time"}
# Of a command within a line: how it begins, and what some of them need.
INLINE = re.compile(r"(?:python3 )?(?:build|scripts)/\S+ \S|cmake \S")
INLINE_NEEDS = {
    "cmake": {"build"},
    "python3 scripts/measure/profile_ncu.py": {"gpu"},
    "python3 scripts/steps/exercise.py": {"build"},
}
STATUS = {"FAIL": 1, "CRASH": 3}


@dataclass
class Command:
    page: str  # relative to the repository
    line: int  # of the page, from 1
    text: str  # without its comment; lines that end with \ joined
    needs: set[str] = field(default_factory=set)
    status: int = 0
    prints: list[str] = field(default_factory=list)

    def must(self, comment: str) -> None:
        """Takes what a comment says of it."""
        self.status = next((STATUS[word] for word in re.findall(r"\w+", comment) if word in STATUS), self.status)
        self.prints += re.findall(r'"([^"]+)"', comment)

    def check(self, done: subprocess.CompletedProcess[str]) -> None:
        """Has it ended as the page says, and printed these words? 64 is none of 640 or 1.64."""
        output = without_separators(done.stdout + done.stderr)
        assert done.returncode == self.status, f"{self.page}:{self.line}: status {done.returncode}\n{output}"
        for words in self.prints:
            pattern = rf"(?<![\w.]){re.escape(without_separators(words))}(?![\w.]*\w)"
            assert re.search(pattern, output), f"{self.page}:{self.line}: '{words}' is not in\n{output}"


def without_separators(text: str) -> str:
    """1052704 for 1,052,704: a page may have either in a mark that nobody sees."""
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)


def blocks_of(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def of_block(page: str, block: Token, needs: set[str]) -> list[Command]:
    found: list[Command] = []
    continues = False
    for line, text in enumerate(block.content.splitlines(), start=block.map[0] + 2):
        # A # begins a comment at the beginning and after a space, as in a shell; quotes are not looked at.
        text, *comment = re.split(r"(?:^|\s)#", text, maxsplit=1)
        text = text.strip()
        if text and not continues:
            found.append(Command(page, line, "", needs))
        if text:
            found[-1].text += text.removesuffix("\\")
            found[-1].must("".join(comment))
            continues = text.endswith("\\")
    return found


def of_page(page: str, text: str) -> list[Command]:
    found: list[Command] = []
    needs: set[str] = set()
    for block in blocks_of(text):
        if block.type == "fence" and block.info in ("bash", "sh", "shell", "console"):
            if block.info != "bash":
                raise ValueError(f"{page}:{block.map[0] + 1}: a block of commands is called bash, not {block.info}")
            found += of_block(page, block, needs)
        needs = set()
        for token in [block] if block.type == "html_block" else block.children or []:
            command = " ".join(token.content.split())  # it may go on in the next line
            if mark := re.fullmatch(r"<!-- needs: (.*) -->", command):
                needs = set(mark[1].split())
                if not needs <= NEEDS:
                    raise ValueError(f"{page}:{block.map[0] + 1}: what is needed is one of {', '.join(sorted(NEEDS))}")
            elif command.startswith("<!-- prints: "):
                next(each for each in reversed(found) if not each.needs).must(command)
            elif token.type == "code_inline" and INLINE.match(command) and page.startswith("steps/"):
                named = (each for name, each in INLINE_NEEDS.items() if command.startswith(name + " "))
                found.append(Command(page, block.map[0] + 1, command, next(named, set())))
    return found


def all_commands() -> list[Command]:
    """Of README.md, the chapters and the lessons."""
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("steps/*/README.md"))]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in pages}
    return [command for name, text in texts.items() for command in of_page(name, text)]
