"""attention() takes the last step of the ladder that can run a call. By the recorded runs that is the fastest."""

from __future__ import annotations

import math
import re
from collections import defaultdict

import pytest
from conftest import SCRIPTS

from records import results
from records.problems import problem_label
from steps import sources

ROOT = SCRIPTS.parent
RECORDS = ("h200_ladder.json", "h100_ladder_hopper.json", "h200_paper_grid.json")


def registered(step: str, pattern: str) -> bool:
    """Does the step's registration have a line like this?"""
    return re.search(pattern, "\n".join(sources.kernel_lines(step))) is not None


# Of calls, by what can run them.
CLASSES = {
    "any step": lambda step: True,
    "a GPU without TMA": lambda step: not registered(step, r"\.needs_sm ="),
    "rows that are not aligned": lambda step: not registered(step, r"\.alignment_bytes ="),
    "fp32": lambda step: registered(step, r"\.dtypes = .*DType::kFp32"),
}


def timings() -> dict[tuple[int, bool], dict[str, dict[str, dict]]]:
    """By head dimension and mask, by step and by problem."""
    found: dict = defaultdict(lambda: defaultdict(dict))
    for name in RECORDS:
        for run in results.load(ROOT / "figures" / "results" / name)["runs"]:
            problem = run["problem"]
            of_kind = found[problem["head_dim"], problem["causal"]]
            for step in run["steps"]:
                if not sources.has_left(step["step"]):
                    of_kind[step["step"]][problem_label(problem)] = step["timing"]
    return found


def product(timings: dict[str, dict], common: set[str], which: str) -> float:
    return math.prod(timings[label][which] for label in common)


@pytest.mark.parametrize("which", CLASSES)
def test_the_last_step_that_can_run_a_call_is_the_fastest(which: str):
    """Or as fast: without a mask v14 does what v13 does, so which median is larger is chance. None may lie wholly above,
    its slow samples above the last step's fast ones."""
    for kind, steps in timings().items():
        # Of those for many queries, as the records' problems have; steps for decoding come behind them.
        prefill = (step for step in steps if not registered(step, r"Purpose::kDecode"))
        *others, last = sorted(step for step in prefill if CLASSES[which](step))
        assert others
        for other in others:
            # A record may be older than the last steps: what both have run is compared.
            common = set(steps[other]) & set(steps[last])
            assert common
            # The longest times of one against the shortest of the other.
            assert product(steps[other], common, "p90_ms") > product(steps[last], common, "p10_ms"), (kind, other)
