"""How a contender's time on the GPU is taken."""
from __future__ import annotations

import math
import statistics
from fractions import Fraction
from typing import Any, Callable

from records.terminal import one_line

# As in harness/device/cuda_timer.cpp, but for longer samples: they are what peers are usually timed with.
SAMPLE_MS = 8.0
MAX_LAUNCHES = 200
GRAPH_BELOW_MS = 0.2
WARM_UP_SECONDS = 0.1


def percentiles(values: list[float], unit: str) -> dict[str, float]:
    # As fractions: of equal floats the last digit of a quantile may differ.
    tenths = statistics.quantiles(map(Fraction, values), n=10, method="inclusive")
    return {f"{name}_{unit}": float(tenths[at]) for name, at in (("median", 4), ("p10", 0), ("p90", 8))}


class Timer:
    """Batches of launches of one contender. Mirrors harness/device/cuda_timer.cpp."""

    def __init__(self, lab: Any, name: str, call: Any, may_capture: bool = True):
        self.lab, self.name, self.call = lab, name, call
        self.launches, self.replay, self.note = 1, None, ""
        self.ms: list[float] = []
        self.clocks: list[int] = []
        start = lab.now()
        self.elapsed_ms()  # the very first launch loads the kernel: not a time to go by
        while True:
            ms = self.elapsed_ms() / self.launches
            self.launches = min(max(math.ceil(SAMPLE_MS / max(ms, 1e-3)), 1), MAX_LAUNCHES)
            if lab.now() - start >= WARM_UP_SECONDS:
                break
        if may_capture and ms < GRAPH_BELOW_MS:
            self.capture()

    def capture(self) -> None:
        try:
            with self.call.around():
                self.replay = self.lab.capture(self.launch)
        except Exception as error:  # if nothing works any more, whoever waits for the device next is told
            self.note = f"not in a CUDA graph ({one_line(error)}): its times include launching"

    def launch(self) -> None:
        run = self.call.run
        for _ in range(self.launches):
            run()  # an output is dropped at once: the next call gets its memory

    def elapsed_ms(self, while_running: Callable[[], None] = lambda: None) -> float:
        if self.replay:
            return self.lab.elapsed_ms(self.replay, while_running)
        with self.call.around():
            return self.lab.elapsed_ms(self.launch, while_running)

    def sample(self, keep: bool = True) -> None:
        clocks: list[int | None] = []
        # One replay goes ahead, so that the device is busy while the host launches the one that counts.
        if self.replay:
            self.replay()
        ms = self.elapsed_ms(lambda: clocks.append(self.lab.sm_clock_mhz())) / self.launches
        if keep:
            self.ms.append(ms)
            self.clocks += [clock for clock in clocks if clock]


def timing_record(timer: Timer, flops: float, peak: float, matmul_tflops: float) -> dict[str, Any]:
    times = percentiles(timer.ms, "ms")
    tflops = flops / (times["median_ms"] * 1e9)
    return {
        **times,
        "samples": len(timer.ms),
        "launches_per_sample": timer.launches,
        "graph": timer.replay is not None,
        "tflops": tflops,
        "tflops_p10": flops / (times["p90_ms"] * 1e9),
        "tflops_p90": flops / (times["p10_ms"] * 1e9),
        "percent_of_peak": 100 * tflops / peak if peak > 0 else None,
        "percent_of_matmul": 100 * tflops / matmul_tflops if matmul_tflops > 0 else None,
        "sm_clock_mhz": int(statistics.median(timer.clocks)) if timer.clocks else None,
    }
