"""flashsteps.check and check_backward: whether a step is right on somebody's own tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import _core
from ._call import call, call_backward, framework_of, with_scales
from ._frameworks import Arrays, Framework, Options


@dataclass(frozen=True)
class Check:
    """What check() or check_backward() found. It is true when the step passed, and its text is what the program prints."""

    passed: bool
    message: str  #: what is wrong and where, with a hint; empty when nothing is
    problem: str  #: what was computed, as the program's tables call it
    step: str | None  #: as it was asked for; the name of a function
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
    figures["quantization_nrmse"] says by how much that has changed o. Takes seconds for large tensors, and copies of
    all of them on the CPU.

    Raises what attention() raises, and ValueError where nothing could be right: NaN or Inf among the inputs that count,
    or values so large that sums overflow.
    """
    options = Options(causal, scale, return_lse, step, layout, device, fast=fast, quantize=quantize).checked()
    framework = framework_of("q", q)
    arrays = with_scales(framework, (q, k, v, kv_lengths, None, q_descale, k_descale, v_descale), options.names())
    before = tuple(None if array is None else framework.to_host(array) for array in arrays)

    def run() -> Arrays:
        found = call(arrays, options)
        return found if return_lse else (found,)

    return _judged(framework, arrays, before, options, [run() for _ in range(2)], step)


def check_backward(
    d_o: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    kv_lengths: Any = None,
    step: str | Callable[[Any, Any, Any, Any, Any, Any], Arrays] | None = None,
    layout: str = "bhsd",
    device: str | None = None,
) -> Check:
    """Are the gradients of a step right on these tensors, or those of a function of your own?

    Arguments:
        d_o, q, k, v, o, lse, causal, scale, kv_lengths, layout, device: as attention_backward() has them.
        step: as there, or a function: step(d_o, q, k, v, o, lse) returns dq, dk and dv, of the shapes and types of
            q, k and v. It knows itself of causal, scale and kv_lengths, which the reference has from here.

    Runs it twice and judges dq, dk and dv as check() judges o. The reference has the same o and lse: if these are
    wrong, so are gradients that are right here. A function, and a step whose runs may differ (describe(step).varies),
    need not give the same bits twice: each result is judged.

    Raises what attention_backward() raises; ValueError where check() does, and where a function returns anything else.
    """
    from . import describe

    own = step if callable(step) else None
    named = None if own is not None else step
    options = Options(causal, scale, False, named, layout, device, backward=True).checked()
    framework = framework_of("q", q)
    arrays = (q, k, v, kv_lengths, None, None, None, None, d_o, o, lse)
    before = tuple(None if array is None else framework.to_host(array) for array in arrays)

    def run() -> Arrays:
        if own is None:
            return call_backward(arrays, options)
        found = tuple(own(d_o, q, k, v, o, lse))
        if len(found) != 3:
            raise ValueError(f"step: has returned {len(found)} arrays, expected dq, dk and dv")
        for name, gradient, like in zip(("dq", "dk", "dv"), found, (q, k, v)):
            if framework_of(name, gradient) is not framework:
                raise TypeError(f"{name}: is no array of {framework.name}, as q is")
            if gradient.shape != like.shape or gradient.dtype != like.dtype:
                is_, expected = (f"{x.dtype} {tuple(x.shape)}" for x in (gradient, like))
                raise ValueError(f"{name}: is {is_}, expected {expected}")
        return found

    may_vary = own is not None or (named is not None and describe(named).varies is not None)
    name = named if own is None else getattr(own, "__name__", type(own).__name__)
    return _judged(framework, arrays, before, options, [run() for _ in range(2)], name, may_vary)


def _judged(
    framework: Framework,
    arrays: Arrays,
    before: Arrays,
    options: Options,
    found: list[Arrays],
    step: str | None,
    may_vary: bool = False,
) -> Check:
    """`before`: copies of the arrays. `found`: what two runs returned. If they `may_vary`, each must be right."""
    runs = [tuple(map(framework.to_host, run)) for run in found]
    on_host = framework_of("o", runs[0][0])
    verdicts = [_core.judge(on_host, before, options, run) for run in (runs if may_vary else runs[:1])]
    passed, message, problem, figures = next((verdict for verdict in verdicts if not verdict[0]), verdicts[0])
    lines = [message] if message else []
    if not may_vary and not all(map(framework.same_bits, *runs)):
        lines.append("two runs on the same inputs differ: a race, or a read of memory that nothing wrote")
    inputs = [(array, copy) for array, copy in zip(arrays, before) if array is not None]
    if not all(framework.same_bits(framework.to_host(array), copy) for array, copy in inputs):
        lines.append("wrote to its inputs")
    return Check(passed and len(lines) == 0, "\n".join(lines), problem, step, figures)
