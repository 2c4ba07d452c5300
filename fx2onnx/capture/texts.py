"""Texts that forward makes of dynamic sizes: ``f"{x.shape[0]}"`` shows a symbol during capture, and digits in eager PyTorch.

As a key of a cache or in a message that makes no difference. Where the text is compared, measured or looked up, it decides what
forward computes. A further run, whose texts show the example's digits, tells the two apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fx2onnx.base.stack_frames import drop_frames
from fx2onnx.capture.attempt import Attempt, Outcome, Recorded
from fx2onnx.capture.branches.numbering import equivalent_at


def note_if_they_decide(done: Recorded, run: Callable[[Attempt], Outcome]) -> None:
    """Add a warning to ``done`` where forward computes something else once its texts of sizes are as in eager PyTorch."""
    attempt = done.attempt.without_baselines()
    sizes = replace(attempt.sizes, has_texts_of_sample=True)
    other = run(replace(attempt, sizes=sizes, change="texts of sizes are the sample's"))
    if isinstance(other, Recorded):
        if equivalent_at(done.captured, other.captured, {}):
            return
    else:
        drop_frames(other.error)
    lines = ", ".join(str(line) for line in done.shape_env.texts if line is not None) or "forward"
    done.captured.warnings.append(
        f"the text of a dynamic size, or of a number from data, decides what forward computes ({lines}): the file holds what it"
        " does for a text that is no number; compare the number itself, or leave the size out of dynamic_shapes"
    )
