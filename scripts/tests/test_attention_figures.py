"""attention_data.py, attention_maps.py and error_analysis.py, with outputs that numpy computes."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import SCRIPTS, edited

np = pytest.importorskip("numpy", reason="build/venv has it")
pytest.importorskip("matplotlib", reason="build/venv has it").use("svg")

from draw import attention_data, attention_maps, drawings, error_analysis, figure_style, online_softmax
from records.rules import GATES

def take_small_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not about them."""
    monkeypatch.setattr(attention_maps, "SEQLEN", 64)
    monkeypatch.setattr(error_analysis, "SEQLEN", 32)
    monkeypatch.setattr(error_analysis, "BATCH", 1)


@pytest.fixture(params=[attention_maps, error_analysis], ids=["maps", "errors"])
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    take_small_problems(monkeypatch)
    return request.param


def compute_here(monkeypatch: pytest.MonkeyPatch, change: Any = lambda bits: bits) -> None:
    """No step at all: pictures of what `change` makes of the right output's bits."""

    def run_step(program, step, dtype, causal, q, k, v, backend="emulator"):
        q, k, v = (attention_data.to_double(x, dtype) for x in (q, k, v))
        return change(attention_data.to_bits(attention_data.probabilities(q, k, causal) @ v, dtype))

    monkeypatch.setattr(attention_data, "run_step", run_step)
    gates = {dtype: {"nrmse": whole, "row": row} for dtype, (whole, row) in GATES.items()}
    monkeypatch.setattr(attention_data, "gates_of", lambda program, backend: gates)


def draw(script: Any, folder: Path) -> None:
    assert script.main(["no program", "--out", str(folder)]) == 0


def pictures_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def drawn_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of both scripts, in a folder for each."""
    folder = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as patch:
        take_small_problems(patch)
        compute_here(patch)
        for script in (attention_maps, error_analysis):
            draw(script, folder / script.__name__)
    return folder


@pytest.fixture
def drawn(script: Any, drawn_once: Path, tmp_path: Path) -> Path:
    """A folder with all pictures of the script, which are up to date."""
    return shutil.copytree(drawn_once / script.__name__, tmp_path / "out")


def check(script: Any, program: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    status = script.main([str(program), "--check", str(folder)])
    said = capsys.readouterr()
    assert status == (1 if said.err else 0)
    return said.err


# Inputs and types.


def test_random_numbers_are_the_harness_s():
    """From harness/base/random.h, compiled: seed 1, stream 4, indices 0 and 2^32 + 5; seed 7, stream 1, index 3."""
    found = attention_data.normal_pairs(1, 4, np.array([0, (1 << 32) + 5]))
    assert found.dtype == np.float32
    compiled = [[-2.10224009, 1.37514055], [-0.608177423, 0.204346448]]
    assert np.array_equal(found, np.array(compiled, np.float32))
    other = attention_data.normal_pairs(7, 1, np.array([3]))
    assert np.array_equal(other, np.array([[1.35453737, 0.177915201]], np.float32))


def test_normal_inputs_are_normal():
    values = attention_data.normal(1, attention_data.STREAM_V, (2, 3, 100, 64))
    assert values.shape == (2, 3, 100, 64) and abs(values.mean()) < 0.03 and abs(values.std() - 1) < 0.03


@pytest.mark.parametrize("pattern", attention_data.PATTERNS)
def test_what_the_heads_look_at(pattern: str):
    """Where at least half of every row's weight is, by what the pattern's name says."""
    q, k = (attention_data.structured_head(pattern, which, 256, 64).astype(float) for which in (True, False))
    p = attention_data.probabilities(q, k, causal=False)
    query, key = np.arange(256)[:, None], np.arange(256)[None, :]
    where = {
        "local": abs(query - key) < 8,
        "strided": (query - key) % 16 == 0,
        "anchor": (key % 64 == 0) & (query >= 0),
        "block": query // 32 == key // 32,
    }[pattern]
    assert (p * where).sum(-1).min() > 0.5
    for causal in (False, True):
        assert np.allclose(attention_data.probabilities(q, k, causal).sum(-1), 1)


def test_rounding_to_bf16_and_back():
    values = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-7, 0.0, 3e38], np.float32)
    bits = attention_data.to_bits(values, "bf16")
    assert bits.tolist() == [0x3F80, 0x3F80, 0x3F82, 0xBF81, 0, 0x7F62]
    assert attention_data.to_double(bits, "bf16")[:4].tolist() == [1, 1, 1 + 2.0**-6, -1 - 2.0**-7]
    for dtype in ("fp16", "fp32"):
        assert attention_data.rounded(np.array([0.1]), dtype)[0] == pytest.approx(0.1, 1e-3)


# The matrix.


@pytest.mark.parametrize("keys", [1, 63, 64, 126, 130])
def test_every_key_has_a_column_of_its_own(keys: int):
    values = attention_data.one_hot_values(keys, 64)
    assert values.shape == (-(-keys // 63), keys, 64)
    assert (values[..., :63].sum((0, 2)) == 1).all() and (values[..., 63] == 1).all()
    p = np.random.default_rng(1).random((2, 5, keys))
    o = np.einsum("hqk,bkd->bhqd", p, values)
    found, sums = attention_data.assemble(o, keys)
    assert np.array_equal(found, p) and np.allclose(sums, p.sum(-1))


def matrix(causal: bool) -> tuple[Any, Any, Any]:
    q, k = (
        attention_data.to_bits(attention_data.structured(which, 130, 64), "fp16") for which in (True, False)
    )
    found, sums = attention_data.attention_matrix(Path(), "v10", "fp16", causal, q, k)
    exact = [attention_data.to_double(x, "fp16") for x in (q, k)]
    return found, sums, attention_data.probabilities(*exact, causal)


@pytest.mark.parametrize("causal", [False, True])
def test_the_matrix_is_the_softmax(monkeypatch, causal: bool):
    compute_here(monkeypatch)
    found, sums, right = matrix(causal)
    assert attention_data.norm(found - right) < GATES["fp16"][0] * attention_data.norm(right)
    assert (sums == 1).all() and abs(found.sum(-1) - 1).max() < 1e-3
    assert not causal or (found[:, np.triu(np.ones((130, 130), bool), 1)] == 0).all()


@pytest.mark.parametrize(
    "change", [lambda o: o[[1, 0, 2]], lambda o: o[:, [1, 0, 2, 3]], lambda o: np.roll(o, 1, -1)]
)
def test_a_wrong_assembly_is_seen(monkeypatch, change: Any):
    compute_here(monkeypatch, change)
    found, _, right = matrix(False)
    assert attention_data.norm(found - right) > 100 * GATES["fp16"][0] * attention_data.norm(right)


# The model of the roundings.


def test_without_rounding_tiles_change_nothing():
    q, k, v = np.random.default_rng(1).standard_normal((3, 1, 2, 150, 64))
    exact = attention_data.probabilities(q, k, False) @ v
    assert attention_data.nrmse(error_analysis.tile_by_tile(q, k, v, "fp32"), exact) < 1e-6
    coarse = [attention_data.nrmse(error_analysis.tile_by_tile(q, k, v, t), exact) for t in ("fp16", "bf16")]
    assert 1e-4 < coarse[0] < 3e-4 < coarse[1] < 3e-3


# The pictures.


def test_every_picture_is_of_its_kind(script: Any, drawn: Path):
    pictures = pictures_in(drawn)
    assert set(pictures) == set(script.PICTURES)
    for name, content in pictures.items():
        assert len(content) <= drawings.MAX_BYTES and b"sha256: " in content
        assert content.startswith(b"\x89PNG" if name.endswith(".png") else b"<?xml")
        assert not any(word in content for word in (b"<dc:date>", b"tIME", b"Software"))


def test_the_same_bytes_every_time(drawn_once: Path, tmp_path: Path):
    """Also from another process, with another home and configuration of matplotlib's."""
    home = tmp_path / "home"
    (home / ".config/matplotlib").mkdir(parents=True)
    (home / ".config/matplotlib/matplotlibrc").write_text("font.size: 30\n")
    code = f"""
import pathlib, pytest, test_attention_figures as own
from draw import attention_maps, error_analysis
own.take_small_problems(pytest.MonkeyPatch())
own.compute_here(pytest.MonkeyPatch())
for script in (error_analysis, attention_maps):
    own.draw(script, pathlib.Path({str(tmp_path)!r}) / script.__name__)"""
    command = [sys.executable, "-c", code]
    paths = os.pathsep.join((str(SCRIPTS), str(SCRIPTS / "tests")))
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": paths, "TZ": "Asia/Tokyo"}
    subprocess.run(command, check=True, env=environment, cwd="/")
    for script in (attention_maps, error_analysis):
        assert pictures_in(tmp_path / script.__name__) == pictures_in(drawn_once / script.__name__)


def test_what_is_stale(script: Any, tmp_path: Path, drawn: Path, capsys, monkeypatch):
    def flip(bits):
        bits.flat[7] ^= 1
        return bits

    program = tmp_path / "none"
    compute_here(monkeypatch)
    assert check(script, program, drawn, capsys) == ""
    compute_here(monkeypatch, flip)
    assert check(script, program, drawn, capsys).count("is stale") == len(script.PICTURES)
    compute_here(monkeypatch)
    assert script.main([str(program), "--check", str(drawn), "--step", "v03_wmma"]) == 1
    with monkeypatch.context() as patch:
        patch.setattr(script, "__file__", edited(script, tmp_path))
        assert "is stale" in check(script, program, drawn, capsys)
    with monkeypatch.context() as patch:
        patch.setattr(attention_data, "source", lambda: b"edited")
        assert "is stale" in check(script, program, drawn, capsys)


def test_a_missing_lab_is_one_line(script: Any, tmp_path: Path, capsys):
    assert script.main([str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"{Path(script.__file__).name}: ") and message.count("\n") == 1
    assert "build it" in message and not (tmp_path / "out").exists()


def test_nothing_reaches_beyond_a_picture(script: Any, monkeypatch):
    """At the sizes that are drawn for docs/, where the numbers in the texts have as many digits."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    compute_here(monkeypatch)
    options = argparse.Namespace(program=Path(), step=attention_data.STEP, backend="emulator", check=None)
    if script is attention_maps:
        script.SEQLEN = 256  # the fixture puts it back
    data, _ = script.read(options)
    plt = figure_style.pyplot()
    for name, draw_one in script.PICTURES.items():
        figure = draw_one(data)
        FigureCanvasAgg(figure)
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, (name, box)
        words = [text for text in figure.findobj(plt.Text) if text.get_text() and text.get_visible()]
        assert all(text.get_fontsize() >= 8.3 for text in words), name
        plt.close(figure)


def test_an_element_is_a_pixel(tmp_path: Path, monkeypatch):
    """What is hidden by the mask has one colour, and that is where it is hidden."""
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    compute_here(monkeypatch)
    assert {"attention_causal.png", "attention_full.png"} == set(attention_maps.PICTURES)
    name = "attention_causal.png"
    monkeypatch.setattr(attention_maps, "PICTURES", {name: attention_maps.PICTURES[name]})
    draw(attention_maps, tmp_path)
    picture = imread(tmp_path / name)[..., :3]
    size, left, top = attention_maps.SEQLEN, attention_maps.LEFT, attention_maps.TOP
    for column in range(3):
        x = left + column * (size + attention_maps.GAP)
        panel = picture[top : top + size, x : x + size]
        grey = (abs(panel - to_rgb(attention_maps.HIDDEN)) < 1e-3).all(-1)
        assert np.array_equal(grey, np.triu(np.ones((size, size), bool), 1))


def test_the_online_softmax_is_that_of_the_outputs(monkeypatch, tmp_path: Path, capsys):
    out = tmp_path / "out"
    compute_here(monkeypatch)
    assert online_softmax.main(["program", "--out", str(out)]) == 0
    text = (out / "online_softmax.svg").read_text(encoding="utf-8")
    weights = [2.0 ** (score - 5) for score in online_softmax.SCORES]
    o = sum(w * v for w, v in zip(weights, online_softmax.VALUES)) / sum(weights)
    assert text.count(">× 1/4<") == 2 and f">{sum(weights):.4g}<" in text and f">{o:.3g}<" in text
    assert online_softmax.main(["program", "--check", str(out)]) == 0

    def double(bits):
        o = attention_data.to_double(bits, "fp32")
        o[..., 7, 1] *= 2
        return attention_data.to_bits(o, "fp32")

    compute_here(monkeypatch, double)
    assert online_softmax.main(["program", "--check", str(out)]) == 1
    assert "after key 7 the keys have other weights" in capsys.readouterr().err
