"""How a contender's time on the GPU is taken."""
from __future__ import annotations

import math
import statistics
from fractions import Fraction
from typing import Any, Callable

from records.rates import tflops_at
from records.terminal import one_line

# As in harness/device/cuda_timer.cpp, but for longer samples: they are what peers are usually timed with.
SAMPLE_MS = 8.0
MAX_LAUNCHES = 200
MAX_COLD_LAUNCHES = 50
GRAPH_BELOW_MS = 0.2
WARM_UP_SECONDS = 0.1


def percentiles(values: list[float], unit: str) -> dict[str, float]:
    # As fractions: of equal floats the last digit of a quantile may differ.
    tenths = statistics.quantiles(map(Fraction, values), n=10, method="inclusive")
    return {f"{name}_{unit}": float(tenths[at]) for name, at in (("median", 4), ("p10", 0), ("p90", 8))}


class Timer:
    """Batches of launches of one contender. Mirrors harness/device/cuda_timer.cpp. With a cold L2 each launch of a batch
    is timed alone, behind a flush, and none is captured."""

    def __init__(self, lab: Any, name: str, call: Any, may_capture: bool = True, cold_l2: bool = False):
        self.lab, self.name, self.call, self.cold_l2 = lab, name, call, cold_l2
        self.launches, self.replay, self.note = 1, None, ""
        self.ms: list[float] = []
        self.clocks: list[int] = []
        start = lab.now()
        self.launch_ms()  # the very first launch loads the kernel: not a time to go by
        most = MAX_COLD_LAUNCHES if cold_l2 else MAX_LAUNCHES
        while True:
            ms = self.launch_ms()
            self.launches = min(max(math.ceil(SAMPLE_MS / max(ms, 1e-3)), 1), most)
            if lab.now() - start >= WARM_UP_SECONDS:
                break
        if may_capture and not cold_l2 and ms < GRAPH_BELOW_MS:
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

    def launch_ms(self, while_running: Callable[[], None] = lambda: None) -> float:
        if self.replay:
            return self.lab.elapsed_ms(self.replay, while_running) / self.launches
        with self.call.around():
            if self.cold_l2:
                return statistics.median(self.lab.cold_ms(self.call.run, self.launches, while_running))
            return self.lab.elapsed_ms(self.launch, while_running) / self.launches

    def sample(self, keep: bool = True) -> None:
        clocks: list[int | None] = []
        # One replay goes ahead, so that the device is busy while the host launches the one that counts.
        if self.replay:
            self.replay()
        ms = self.launch_ms(lambda: clocks.append(self.lab.sm_clock_mhz()))
        if keep:
            self.ms.append(ms)
            self.clocks += [clock for clock in clocks if clock]


def timing_record(timer: Timer, problem: dict[str, Any]) -> dict[str, Any]:
    times = percentiles(timer.ms, "ms")
    return {
        **times,
        **({"l2": "cold"} if timer.cold_l2 else {}),
        "samples": len(timer.ms),
        "launches_per_sample": timer.launches,
        "graph": timer.replay is not None,
        "tflops": tflops_at(problem, times["median_ms"]),
        "sm_clock_mhz": int(statistics.median(timer.clocks)) if timer.clocks else None,
    }
