"""Parts that few captures need, ``rare.right_at_one(...)``: the file of each is imported when it is first asked for.

Never asked for while the module runs: what user code does is watched then, and imports are seen.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fx2onnx.capture.at_one import right_at_one as right_at_one
    from fx2onnx.capture.at_sample import try_at_sample as try_at_sample
    from fx2onnx.capture.attempt import Attempt, Failed, Outcome
    from fx2onnx.capture.fallback import export_may_help as export_may_help
    from fx2onnx.capture.fallback import mistake_behind as mistake_behind
    from fx2onnx.capture.observed import fullest as fullest
    from fx2onnx.capture.observed import observed as observed
    from fx2onnx.capture.observed import refuse_broken as refuse_broken
    from fx2onnx.capture.observed import set_observed_axes as set_observed_axes
    from fx2onnx.capture.specializing import decided_one_way as decided_one_way
    from fx2onnx.capture.specializing import solved_for_one as solved_for_one
    from fx2onnx.capture.specializing import specializing as specializing
    from fx2onnx.capture.strategies.exported import exported as exported
    from fx2onnx.capture.strategies.symbolic import as_traced as as_traced
    from fx2onnx.capture.strategies.symbolic import check_same_program as check_same_program
    from fx2onnx.capture.strategies.symbolic import traced as traced

    def after_failure(
        failed: Failed, start: Attempt
    ) -> Attempt | Outcome: ...  # its file imports one that imports this
else:

    def __getattr__(name: str) -> Any:
        if name not in RARE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"fx2onnx.capture.{RARE[name]}"), name)


RARE = {
    "after_failure": "remedies",
    "as_traced": "strategies.symbolic",
    "check_same_program": "strategies.symbolic",
    "export_may_help": "fallback",
    "decided_one_way": "specializing",
    "exported": "strategies.exported",
    "fullest": "observed",
    "mistake_behind": "fallback",
    "observed": "observed",
    "refuse_broken": "observed",
    "right_at_one": "at_one",
    "set_observed_axes": "observed",
    "solved_for_one": "specializing",
    "specializing": "specializing",
    "traced": "strategies.symbolic",
    "try_at_sample": "at_sample",
}
"""The file of each name."""
