"""The table from which attention() chooses a step."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from records import fastest_steps, results


def record(capability: str, *runs: tuple[int, bool, dict[str, float | None]]) -> dict[str, Any]:
    return {
        "provenance": {"device": {"compute_capability": capability}},
        "runs": [
            {
                "problem": {"head_dim": head_dim, "causal": causal},
                "steps": [
                    {"step": name, **({"timing": {"tflops": tflops}} if tflops is not None else {})}
                    for name, tflops in steps.items()
                ],
            }
            for head_dim, causal, steps in runs
        ],
    }


def test_the_geometric_mean_decides_over_all_records() -> None:
    # v02 wins two of three problems, but v01 wins by more where it wins.
    records = [
        record("9.0", (64, True, {"v01_a": 10.0, "v02_b": 11.0}), (64, True, {"v01_a": 10.0, "v02_b": 11.0})),
        record("9.0", (64, True, {"v01_a": 30.0, "v02_b": 10.0}), (128, False, {"v01_a": 1.0, "v02_b": 2.0})),
    ]
    ordered = fastest_steps.orders(fastest_steps.step_times(records))
    assert ordered == {(90, 64, True): ["v01_a", "v02_b"], (90, 128, False): ["v02_b", "v01_a"]}


def test_each_architecture_has_its_own_order() -> None:
    records = [record("9.0", (64, True, {"v01_a": 1.0, "v02_b": 2.0})),
               record("12.0", (64, True, {"v01_a": 2.0, "v02_b": 1.0}))]
    ordered = fastest_steps.orders(fastest_steps.step_times(records))
    assert ordered == {(90, 64, True): ["v02_b", "v01_a"], (120, 64, True): ["v01_a", "v02_b"]}


def test_a_step_that_is_missing_on_one_problem_is_not_compared() -> None:
    records = [record("9.0", (64, True, {"v01_a": 1.0, "v02_b": 2.0}), (64, True, {"v01_a": 1.0, "v02_b": None}))]
    with pytest.raises(results.ResultsError, match="v02_b: not timed on all problems"):
        fastest_steps.orders(fastest_steps.step_times(records))


def test_the_rows_are_cpp_of_bearable_width() -> None:
    names = [f"v{n:02d}_{'x' * 20}" for n in range(1, 9)]
    text = fastest_steps.render({(90, 64, True): names})
    rows = [line for line in text.splitlines() if not line.startswith("//")]
    assert "".join(row.strip() if i else row for i, row in enumerate(rows)).replace(",\"", ", \"") == (
        "{90, 64, true, {" + ", ".join(f'"{name}"' for name in names) + "}},"
    )
    assert len(rows) > 1 and max(map(len, rows)) <= fastest_steps.WIDTH


def test_check_notices_a_change(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    changed = fastest_steps.ROOT / "harness" / "src" / "fastest_steps.inc"
    monkeypatch.setattr(sys, "argv", ["fastest_steps.py", "--check"])
    assert fastest_steps.main() == 0, "run scripts/records/fastest_steps.py"
    copy = tmp_path / "copy.inc"
    copy.write_text(changed.read_text().replace("v10_", "v09_", 1))
    monkeypatch.setattr(fastest_steps, "OUTPUT", copy)
    monkeypatch.setattr(fastest_steps, "ROOT", tmp_path)
    monkeypatch.setattr(results, "load", lambda path, load=results.load: load(changed.parents[2] / path.relative_to(tmp_path)))
    assert fastest_steps.main() == 1
    assert "copy.inc is not what the recorded runs say" in capsys.readouterr().err
