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
from types import SimpleNamespace

import pytest
from conftest import SCRIPTS, STEPS, Repository, make_peers_record, make_problem, make_record

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


def test_fresh_figures_are_up_to_date(drawn: Repository, capsys):
    assert complaints(drawn, capsys) == []
    assert make(drawn) == 0 and "drawn" not in capsys.readouterr().out  # so nothing is done twice


def test_a_figure_is_small_and_says_where_it_comes_from(drawn: Repository):
    text = drawn.read("figures/ladder.svg")
    assert len(text.encode()) <= 300_000 and "peers.json" in text and drawn.commit[:12] in text
    assert "<dc:date>" not in text and "FlashAttention-2" in text


def test_a_part_of_the_ladder_without_a_recorded_step_has_no_figure(drawn: Repository, capsys, monkeypatch):
    hopper = Figure("hopper.svg", "progression", ("peers.json",), part="Hopper")
    monkeypatch.setattr(make_figures, "FIGURES", (LADDER, COUNTS, hopper))
    assert complaints(drawn, capsys) == []
    data = make_peers_record(commit=drawn.commit)
    data["runs"][0]["steps"][2]["part"] = "Hopper"
    drawn.record("peers.json", data)
    assert complaints(drawn, capsys) == ["figures/ladder.svg: is stale", "figures/hopper.svg: is missing"]
    assert make(drawn) == 0 and ">v03_wmma<" in drawn.read("figures/hopper.svg")


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
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, cwd="/")
    assert {name: drawn.read(f"figures/{name}") for name in first} == first


def test_a_changed_record_makes_its_figures_stale_and_no_other(drawn: Repository, capsys):
    path = drawn.root / "figures/results/counts.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"mma": 16,', '"mma": 17,'), encoding="utf-8")
    assert complaints(drawn, capsys) == ["figures/counts.svg: is stale"]
    assert make(drawn) == 0 and capsys.readouterr().out.startswith("figures/counts.svg: drawn\n2 figure(s)")
    assert complaints(drawn, capsys) == []


@pytest.mark.parametrize("changed", ["charts.py", "panels.py", "drawings.py", "figure_style.py", "requirements.txt"])
def test_a_changed_script_or_style_makes_figures_stale(
    drawn: Repository, capsys, monkeypatch, tmp_path, changed
):
    for path in (charts.__file__, panels.__file__, drawings.__file__, figure_style.__file__, figure_style.REQUIREMENTS):
        shutil.copy(path, tmp_path)
    for module in (charts, panels, drawings, figure_style):
        monkeypatch.setattr(module, "__file__", str(tmp_path / Path(module.__file__).name))
    monkeypatch.setattr(figure_style, "REQUIREMENTS", tmp_path / "requirements.txt")
    assert complaints(drawn, capsys) == []
    with open(tmp_path / changed, "a", encoding="utf-8") as file:
        file.write("# edited\n")
    assert complaints(drawn, capsys) == ["figures/ladder.svg: is stale", "figures/counts.svg: is stale"]


def test_a_changed_row_of_the_table_makes_its_figure_stale(drawn: Repository, capsys, monkeypatch):
    other = Figure(LADDER.name, LADDER.kind, LADDER.records, ("causal=false",))
    monkeypatch.setattr(make_figures, "FIGURES", (other, COUNTS))
    assert complaints(drawn, capsys) == ["figures/ladder.svg: is stale"]


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


def test_some_other_svg(drawn: Repository, capsys):
    drawn.write("figures/ladder.svg", "<svg/>")
    assert complaints(drawn, capsys) == ["figures/ladder.svg: was not made by the script that draws it"]


def test_a_figure_that_is_too_large(drawn: Repository, capsys, monkeypatch):
    monkeypatch.setattr(drawings, "MAX_BYTES", 1000)
    assert "1000 are allowed" in complaints(drawn, capsys)[0]
    assert make(drawn) == 1 and "1000 are allowed" in capsys.readouterr().err


def test_what_cannot_be_drawn_is_one_line_and_stops_no_other(drawn: Repository, capsys):
    (drawn.root / "figures/results/peers.json").unlink()
    drawn.record("counts.json", make_record("emulator", steps=STEPS[:2], commit=drawn.commit))
    assert make(drawn) == 1
    said = capsys.readouterr()
    assert said.out == "figures/counts.svg: drawn\n"
    assert said.err.startswith("figures/ladder.svg: its record ") and said.err.count("\n") == 1
    drawn.write("figures/results/peers.json", "{}")
    assert make(drawn) == 1 and "figures/ladder.svg: " in capsys.readouterr().err


def test_a_selection_that_matches_nothing(drawn: Repository, capsys, monkeypatch):
    monkeypatch.setattr(
        make_figures, "FIGURES", (Figure("x.svg", "lengths", ("peers.json",), ("D=32",)), COUNTS)
    )
    (drawn.root / "figures/ladder.svg").unlink()
    assert make(drawn) == 1 and capsys.readouterr().err == "figures/x.svg: no problem matches D=32\n"


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


@pytest.mark.parametrize("check, action", [([], "--out"), (["--check"], "--check")])
def test_the_drawings_are_left_to_their_scripts(repository: Repository, capsys, monkeypatch, check, action):
    asked = []
    for name, status in (("one", 0), ("two", 1)):
        module = SimpleNamespace(main=lambda arguments, status=status: asked.append(arguments) or status)
        monkeypatch.setitem(sys.modules, f"draw.{name}", module)
    monkeypatch.setattr(make_figures, "FIGURES", ())
    monkeypatch.setattr(make_figures, "DRAWINGS", {"one": "tools/good", "two": "flashsteps"})
    assert make(repository, *check) == 0 and asked == []  # they are of a build
    assert make(repository, *check, "--build", "/b") == 1
    folder = str(repository.root / "docs" / "figures")
    assert asked == [["/b/tools/good", action, folder], ["/b/flashsteps", action, folder]]
    said = capsys.readouterr().err
    assert "docs/figures: two.py failed, see above" in said and "one.py" not in said


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
