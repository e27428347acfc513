#!/usr/bin/env python3
"""Fits the costs of the rule for the default, harness/library/default_step.cpp, to records, and prints them.

    build/venv/bin/python scripts/measure/fit_default.py RECORD...

The records are comparisons with peers that time the kernels of the rule, each in its configurations, as those of the
grid `shapes` do; several cards count alike. It needs the lab (build/libflashsteps_lab.so, built beside the program),
which says what each kernel does in a call, and NumPy. A random search, whose seed is fixed, changes the costs that the
rule has now, and keeps what brings the estimated default nearer to the fastest kernel.

Exit status: 0, or 2 for wrong use or something that is missing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

try:
    import numpy as np
except ImportError:
    print("fit_default.py: NumPy is missing: build/venv/bin/python has it", file=sys.stderr)
    sys.exit(2)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure.lab import LabError, add_option, estimates
from records import results
from records.results import ResultsError

SURENESS = 0.012  # relative: estimates that differ by less are taken for about equal
WEIGHT_OF_TIMES = 0.04  # of the error of the estimated times, beside the time that a wrong choice loses
NEAR = 0.3  # kernels that are slower than the fastest by more need no good estimate
STEP, SHARE = 0.06, 0.12  # relative change of a cost, and how many costs an attempt changes


class Rule:
    """The rule at one head_dim: arrays [problem, kernel] or [problem, kernel, cost]."""

    def __init__(self, problems: list[tuple[list[dict[str, Any]], dict[str, float]]]):
        names = {e["step"]: e["costs"] for known, _ in problems for e in known}
        self.names = list(names)
        self.costs = np.array([names[name] for name in self.names])
        shape = (len(problems), len(self.names))
        self.work, self.us = np.zeros((*shape, self.costs.shape[1])), np.full(shape, np.nan)
        for at, (known, us) in enumerate(problems):
            for estimate in known:
                kernel = self.names.index(estimate["step"])
                self.work[at, kernel] = estimate["work"]
                self.us[at, kernel] = us[estimate["step"]]
        # Of all that were timed, also of those that are no candidates.
        self.lost = np.log(self.us / np.array([[min(us.values())] for _, us in problems]))

    def estimated(self, costs: np.ndarray) -> np.ndarray:
        """Logarithms of microseconds, NaN where a kernel is no candidate."""
        launch, keys, tiles, sharing, reading = np.moveaxis(self.work * costs, -1, 0)
        times = launch + np.maximum(keys, reading) + tiles + sharing
        return np.log(np.where(np.isnan(self.us), np.nan, times))

    def loss(self, costs: np.ndarray) -> float:
        estimated = self.estimated(costs)
        chance = np.exp(-(estimated - np.nanmin(estimated, axis=1, keepdims=True)) / SURENESS)
        chance /= np.nansum(chance, axis=1, keepdims=True)
        errors = np.abs(estimated - np.log(self.us))[self.lost < NEAR]
        return np.nanmean(np.nansum(chance * self.lost, axis=1)) + WEIGHT_OF_TIMES * errors.mean()

    def score(self, costs: np.ndarray) -> str:
        chosen = np.nanargmin(self.estimated(costs), axis=1)
        lost = self.lost[np.arange(len(chosen)), chosen]
        below = int((lost > -np.log(0.97)).sum())
        return f"{np.exp(-lost.mean()):.4f} x the fastest, {below} of {len(lost)} problems below 0.97"

    def fitted(self, attempts: int) -> np.ndarray:
        random = np.random.default_rng(1)
        costs, least = self.costs, self.loss(self.costs)
        for _ in range(attempts):
            change = random.normal(0, STEP, costs.shape) * (random.random(costs.shape) < SHARE)
            other = costs * np.exp(change)
            if (found := self.loss(other)) < least:
                costs, least = other, found
        return costs


def problems_of(path: Path, lab: Path) -> dict[int, list[tuple[list[dict[str, Any]], dict[str, float]]]]:
    """By head_dim: what the rule knows of each problem, and the microseconds of each kernel."""
    record = results.load(path, None)
    device = record["provenance"]["device"]
    if not device.get("memory_bytes_per_us"):
        raise LabError(f"{path}: does not say how fast the card's memory is")
    found: dict[int, list[Any]] = {}
    for run in record["runs"]:
        us = {e["step"]: e["timing"]["median_ms"] * 1e3 for e in run["steps"] if e.get("timing")}
        known = estimates(lab, run["problem"], device)
        if known := [estimate for estimate in known if estimate["step"] in us]:
            found.setdefault(run["problem"]["head_dim"], []).append((known, us))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    parser.add_argument("--attempts", type=int, default=100_000, help="of the search")
    add_option(parser)
    options = parser.parse_args(arguments)
    try:
        problems: dict[int, list[Any]] = {}
        for path in options.records:
            for head_dim, more in problems_of(path, options.lab).items():
                problems.setdefault(head_dim, []).extend(more)
    except (LabError, ResultsError) as error:
        print(f"fit_default.py: {error}", file=sys.stderr)
        return 2
    for head_dim, of_head_dim in sorted(problems.items()):
        rule = Rule(of_head_dim)
        costs = rule.fitted(options.attempts)
        print(f"head_dim {head_dim}\n  now:    {rule.score(rule.costs)}\n  fitted: {rule.score(costs)}")
        for name, of_kernel in zip(rule.names, costs):
            print(f"  {name:<28}{{{', '.join(f'{cost:.2f}' for cost in of_kernel)}}}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
