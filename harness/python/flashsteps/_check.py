"""flashsteps.check: whether a step is right on somebody's own tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _core
from ._call import call, framework_of, with_scales
from ._frameworks import Options


@dataclass(frozen=True)
class Check:
    """What check() found. It is true when the step passed, and its text is what the program prints."""

    passed: bool
    message: str  #: what is wrong and where, with a hint; empty when nothing is
    problem: str  #: what was computed, as the program's tables call it
    step: str | None  #: as it was asked for
    figures: dict[str, float]  #: errors, and the gates that they are judged by

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        step = self.step or "the default step"
        if not self.passed:
            return f"FAIL  {step}  {self.problem}\n" + "".join(f"      {line}\n" for line in self.message.splitlines())
        names = [name for name in ("nrmse", "worst_row_nrmse", "lse_max_abs") if name in self.figures]
        errors = ", ".join(f"{name} {self.figures[name]:.2e}" for name in names)
        return f"PASS  {step}  {self.problem}  {errors}\n"


def check(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    kv_lengths: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    step: str | None = None,
    layout: str = "bhsd",
    device: str | None = None,
    fast: bool = False,
    quantize: bool = False,
    return_lse: bool = True,
) -> Check:
    """Is a step right on these tensors?

    Arguments:
        q, k, v, causal, scale, kv_lengths, q_descale, k_descale, v_descale, step, layout, device, fast, quantize:
            as attention() has them.
        return_lse: is there a log-sum-exp to judge? A step that computes none (describe(step).no_lse) needs False.

    Runs the step twice and judges o and the log-sum-exp as the tests of this repository do: by the same gates, against
    attention on the CPU in higher precision, computed from the same rounded inputs: all rows of small problems, and
    up to 1,024 of large ones. NaN and Inf are looked for everywhere, both runs must give the same bits, and the
    inputs must stay as they were. With `quantize` the reference rounds q, k and v to FP8 as the step does, and
    figures["quantization_nrmse"] says by how much that has changed o. Takes seconds for large tensors, and copies of all of them on the CPU.

    Raises what attention() raises, and ValueError where nothing could be right: NaN or Inf among the inputs that count,
    or values so large that sums overflow.
    """
    options = Options(causal, scale, return_lse, step, layout, device, fast=fast, quantize=quantize).checked()
    framework = framework_of("q", q)
    arrays = with_scales(framework, (q, k, v, kv_lengths, None, q_descale, k_descale, v_descale), options.names())
    before = tuple(None if array is None else framework.to_host(array) for array in arrays)
    found = [call(arrays, options) for _ in range(2)]
    runs = [tuple(map(framework.to_host, run if return_lse else (run,))) for run in found]
    on_host = framework_of("o", runs[0][0])
    passed, message, problem, figures = _core.judge(on_host, before, options, runs[0][0], runs[0][1] if return_lse else None)
    lines = [message] if message else []
    if not all(map(framework.same_bits, *runs)):
        lines.append("two runs on the same inputs differ: a race, or a read of memory that nothing wrote")
    if not all(framework.same_bits(framework.to_host(array), copy) for array, copy in zip((q, k, v), before)):
        lines.append("wrote to its inputs")
    return Check(passed and len(lines) == 0, "\n".join(lines), problem, step, figures)
