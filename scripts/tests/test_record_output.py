from __future__ import annotations

import sys

import pytest
from conftest import Repository, git
from test_readme_tables import refused, run, written

from records import record_output
from records.record_output import OutputError

PRINTS = [sys.executable, "-c", "print('==> building'); print('B=1 table'); print('==> done')"]


def record(repository: Repository, *command: str, options: tuple[str, ...] | None = None) -> int:
    options = ("--commit", repository.commit) if options is None else options
    out = repository.root / "figures" / "results" / "said.txt"
    return record_output.main(["--root", str(repository.root), "--out", str(out), *options, "--", *command])


def recorded(repository: Repository, *command: str) -> tuple[dict[str, str], str]:
    assert record(repository, *command) == 0
    return record_output.load(repository.root / "figures" / "results" / "said.txt", repository.root)


def test_what_is_recorded(repository: Repository, capfd):
    header, output = recorded(repository, "echo", "two words")
    assert header["command"] == "echo 'two words'" and header["commit"] == repository.commit
    assert header["exit status"] == "0" and "CPUs" in header["machine"] and len(header["date"]) == 10
    assert output == "two words\n" == capfd.readouterr().out  # and it is seen while it runs


def test_paths_colours_and_rewritten_lines(repository: Repository):
    code = "import os; print('\\x1b[1mbold\\x1b[0m', os.getcwd()); print('half\\rwhole')"
    header, output = recorded(repository, sys.executable, "-c", code)
    assert output == "bold flashsteps\nwhole\n"


def test_both_streams_in_order(repository: Repository):
    header, output = recorded(repository, "sh", "-c", "echo one; echo two >&2; echo three")
    assert output == "one\ntwo\nthree\n"


def test_a_command_that_fails_is_recorded_as_such(repository: Repository):
    assert record(repository, "sh", "-c", "echo no; exit 3") == 3
    header, output = record_output.load(repository.root / "figures/results/said.txt", repository.root)
    assert header["exit status"] == "3" and output == "no\n"


def test_only_from_a_clean_tree(repository: Repository, capsys):
    assert record(repository, "true", options=()) == 2
    assert "changes that are not committed" in capsys.readouterr().err
    assert not (repository.root / "figures/results/said.txt").exists()
    git(repository.root, "add", "-A")
    git(repository.root, "commit", "-q", "-m", "records")
    assert record(repository, "true", options=()) == 0
    header, _ = record_output.load(repository.root / "figures/results/said.txt", repository.root)
    assert header["commit"] == git(repository.root, "rev-parse", "HEAD")


def test_a_commit_in_short(repository: Repository, capsys):
    assert record(repository, "true", options=("--commit", "abc")) == 2
    assert "40 hexadecimal digits" in capsys.readouterr().err


def test_only_the_end(repository: Repository, capsys):
    options = ("--commit", repository.commit, "--from")
    assert record(repository, *PRINTS, options=(*options, "B=1")) == 0
    _, output = record_output.load(repository.root / "figures/results/said.txt", repository.root)
    assert output == "…\nB=1 table\n==> done\n"
    assert record(repository, *PRINTS, options=(*options, "C=1")) == 2
    assert "no line of the output begins with 'C=1'" in capsys.readouterr().err


def test_a_command_that_does_not_exist(repository: Repository, capsys):
    assert record(repository, "./no-such-command") == 2
    assert "no-such-command" in capsys.readouterr().err


def test_a_file_that_something_else_made():
    with pytest.raises(OutputError, match="x.txt was not made by"):
        record_output.parse("hello\n\nworld\n", "x.txt")


# The block `output`.


def test_the_block(repository: Repository, capsys):
    recorded(repository, *PRINTS)
    text = written(repository, capsys, "output file=said.txt from=B=1")
    assert "\n…\nB=1 table\n==> done\n```\n" in text and "building" not in text.split("…")[1]
    assert f"commit {repository.commit[:12]}" in text and "[said.txt](figures/results/said.txt)." in text
    text = written(repository, capsys, "output file=said.txt")
    assert "==> building\nB=1 table\n==> done\n```" in text and "…" not in text


def test_an_edited_figure_is_found(repository: Repository, capsys):
    recorded(repository, *PRINTS)
    text = written(repository, capsys, "output file=said.txt")
    repository.write("README.md", text.replace("B=1 table", "B=2 table"))
    status, message = run(repository, capsys, "--check")
    assert status == 1 and "README.md:3: output: not what its source says" in message


def test_blocks_in_vain(repository: Repository, capsys):
    recorded(repository, *PRINTS)
    assert "no line of the output begins with 'C='" in refused(repository, capsys, "output file=said.txt from=C=")
    assert "must be the name of a .txt" in refused(repository, capsys, "output file=gpu.json")
    assert "No such file" in refused(repository, capsys, "output file=none.txt")
    assert "does not know colour" in refused(repository, capsys, "output file=said.txt colour=red")
    path = repository.root / "figures" / "results" / "said.txt"
    path.write_text(path.read_text().replace(repository.commit, "0" * 40))
    assert "is not in this repository" in refused(repository, capsys, "output file=said.txt")
