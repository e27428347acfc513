from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SCRIPTS, STEPS, Repository, edited, make_peers_record, make_problem, make_record

from draw import charts, drawings, figure_style, legible, make_figures, panels
from draw.make_figures import Figure
from steps import sources

pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")

LADDER = Figure("ladder.svg", "progression", ("peers.json",), ("causal=true",))
COUNTS = Figure("counts.svg", "counters", ("counts.json",))


@pytest.fixture(scope="module")
def drawn_once(untouched_repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> Repository:
    repository = untouched_repository.copy(tmp_path_factory.mktemp("drawn") / "a repository")
    problems = [make_problem(), make_problem(causal=False)]
    repository.record("peers.json", make_peers_record(commit=repository.commit, problems=problems))
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(make_figures, "FIGURES", (LADDER, COUNTS))
        assert make(repository) == 0
    assert said.getvalue().endswith("2 figure(s) up to date, 2 drawn\n")
    return repository


@pytest.fixture
def drawn(drawn_once: Repository, tmp_path: Path, monkeypatch) -> Repository:
    """A repository with two figures, which are up to date."""
    monkeypatch.setattr(make_figures, "FIGURES", (LADDER, COUNTS))
    return drawn_once.copy(tmp_path / "a repository")


ROOT = make_figures.ROOT
FILES = {path for folder in ("figures", "docs/figures") for path in (ROOT / folder).glob("*.[sp][vn]g")}


def make(repository: Repository, *options: str) -> int:
    return make_figures.main(["--root", str(repository.root), *options])


def complaints(repository: Repository, capsys) -> list[str]:
    status = make(repository, "--check")
    said = capsys.readouterr()
    assert status == (1 if said.err else 0)
    return [line.removesuffix(f" ({make_figures.REMEDY})") for line in said.err.splitlines()]


def test_every_part_of_the_ladder_has_a_figure():
    assert {sources.part(step) for step in sources.all_steps() if step[0] == "v"} <= {*make_figures.PARTS}


def test_the_same_bytes_every_time(drawn: Repository, tmp_path):
    """Also from another process, with another home and configuration of matplotlib's."""
    first = {figure.name: drawn.read(f"figures/{figure.name}") for figure in (LADDER, COUNTS)}
    for name in first:
        (drawn.root / "figures" / name).unlink()
    home = tmp_path / "home"
    (home / ".config/matplotlib").mkdir(parents=True)
    (home / ".config/matplotlib/matplotlibrc").write_text("font.size: 30\n")
    program = (
        f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); "
        f"from draw import make_figures; from draw.make_figures import Figure; make_figures.FIGURES = ({LADDER}, {COUNTS}); "
        f"sys.exit(make_figures.main(['--root', {str(drawn.root)!r}]))"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}
    environment["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # a notebook's
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, cwd="/")
    assert {name: drawn.read(f"figures/{name}") for name in first} == first


def test_a_changed_record_makes_its_figures_stale_and_no_other(drawn: Repository, capsys):
    path = drawn.root / "figures/results/counts.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"mma": 16,', '"mma": 17,'), encoding="utf-8")
    assert complaints(drawn, capsys) == ["figures/counts.svg: is stale"]
    assert make(drawn) == 0 and capsys.readouterr().out.startswith("figures/counts.svg: drawn\n2 figure(s)")
    assert complaints(drawn, capsys) == []


def test_a_changed_script_or_style_makes_figures_stale(drawn: Repository, capsys, monkeypatch, tmp_path):
    for module in (charts, panels, drawings, figure_style):
        with monkeypatch.context() as patch:
            patch.setattr(module, "__file__", edited(module, tmp_path))
            assert complaints(drawn, capsys) == ["figures/ladder.svg: is stale", "figures/counts.svg: is stale"]
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(figure_style.REQUIREMENTS.read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")
    monkeypatch.setattr(figure_style, "REQUIREMENTS", requirements)
    assert complaints(drawn, capsys) == ["figures/ladder.svg: is stale", "figures/counts.svg: is stale"]


def test_missing_and_left_over(drawn: Repository, capsys):
    (drawn.root / "figures/ladder.svg").rename(drawn.root / "figures/old.svg")
    (drawn.root / "figures/photo.png").write_bytes(b"")
    drawn.write("figures/README.md", "not a figure\n")
    assert complaints(drawn, capsys) == [
        "figures/ladder.svg: is missing",
        "figures/old.svg: left over, make_figures.py draws no such figure (delete it)",
        "figures/photo.png: left over, make_figures.py draws no such figure (delete it)",
    ]
    # Deleting is for whoever knows why it is there.
    assert make(drawn) == 1 and (drawn.root / "figures/old.svg").exists()


def test_what_cannot_be_drawn_is_one_line_and_stops_no_other(drawn: Repository, capsys, monkeypatch):
    (drawn.root / "figures/results/peers.json").unlink()
    drawn.record("counts.json", make_record("emulator", steps=STEPS[:2], commit=drawn.commit))
    assert make(drawn) == 1
    said = capsys.readouterr()
    assert said.out == "figures/counts.svg: drawn\n"
    assert said.err.startswith("figures/ladder.svg: its record ") and said.err.count("\n") == 1
    drawn.write("figures/results/peers.json", "{}")
    monkeypatch.setattr(make_figures, "FIGURES", (LADDER, Figure("x.svg", "counters", ("counts.json",), ("D=32",))))
    assert make(drawn) == 1
    said = capsys.readouterr().err
    assert "figures/ladder.svg: " in said and "figures/x.svg: no problem matches D=32\n" in said


def test_without_matplotlib(drawn: Repository):
    """It can be checked all the same: only to draw needs it."""
    program = [sys.executable, "-S", "-E", str(SCRIPTS / "draw" / "make_figures.py"), "--root", str(drawn.root)]
    done = subprocess.run([*program, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "figures/lengths.svg" in done.stderr  # the real table, in here
    assert "Traceback" not in done.stderr
    shutil.copytree(SCRIPTS.parent / "figures/results", drawn.root / "figures/results", dirs_exist_ok=True)
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "scripts/requirements.txt" in done.stderr


# The figures of this repository.


def test_they_are_up_to_date(capsys):
    assert make_figures.main(["--check"]) == 0, capsys.readouterr().err


def test_pages_show_every_figure_with_a_text_for_those_who_do_not_see_it():
    shown = set()
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("steps/*/README.md")]
    for page in pages:
        for alternative, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            assert len(alternative) > 30 and path in FILES, f"{page}: {target}"
            shown.add(path)
    assert shown == FILES


@pytest.mark.parametrize("path", sorted(path for path in FILES if path.suffix == ".svg"), ids=lambda path: path.name)
def test_pictures_can_be_read_on_light_and_dark_pages(path: Path):
    text = path.read_text(encoding="utf-8")
    assert legible.smallest_letters(text) >= legible.LETTERS
    assert text.count(figure_style.DARK) == 1


# docs/figures/


def test_nothing_is_left_over_in_docs_figures():
    drawn = set()
    for script in make_figures.DRAWINGS:
        drawn |= set(importlib.import_module(f"draw.{script}").PICTURES)
    assert {path.name for path in (SCRIPTS.parent / "docs" / "figures").iterdir()} == drawn


def test_every_script_that_draws_is_known():
    """The pictures of one that nobody runs would go stale."""
    known = {f"{script}.py" for script in make_figures.DRAWINGS}
    found = {path.name for path in (SCRIPTS / "draw").glob("*.py") if "drawings.main(" in path.read_text(encoding="utf-8")}
    assert found == known
