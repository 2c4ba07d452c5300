"""transformers checks whether it is traced before it looks at a mask's numbers: no, as in eager PyTorch, where possible.

``is_tracing(x)`` says yes for fake tensors, and what follows may compute other numbers than in eager PyTorch. So the
patch says no, as eager PyTorch does, except for a mask (an integer or bool tensor) whose numbers depend on data: the
eager branch would look at them. Where a function that got a no decides by data all the same, capture starts again with
yes for that function. The report names every function that got a yes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import traceback
from types import CodeType, FunctionType
from typing import Any

import torch

from fx2onnx.base.changes import before_change
from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.patches import Known, TracedCode
from fx2onnx.capture.shapes.symnode import either_way, unwrap
from fx2onnx.model_patches.patching import patches
from fx2onnx.model_patches.transformers import attention_masks
from fx2onnx.sizes.assumptions import Assumption
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat.frames import asking_frame, location_at


class _Asked(threading.local):
    traced: TracedCode = frozenset()
    known: Known = staticmethod(lambda tensor: True)
    answered_no: set[CodeType] | None = None
    answered_yes: dict[CodeType, SourceLocation] | None = None


_ASKED = _Asked()


def answer(traced: TracedCode, known: Known) -> None:
    """Until ``Changes`` end, ``is_tracing`` is true for masks that are not ``known``, and for the functions ``traced``, in
    this thread.
    """
    before_change(functools.partial(vars(_ASKED).update, traced=_ASKED.traced, known=_ASKED.known))
    _ASKED.traced, _ASKED.known, _ASKED.answered_no, _ASKED.answered_yes = traced, known, set(), {}
    attention_masks.remember()


@patches("transformers.utils.import_utils:is_tracing", versions=">=5")
@answers_for_caller
def is_tracing(tensor: Any = None) -> bool:
    """Eager PyTorch's answer where no number of an unknown mask is looked at."""
    asking = asking_frame()
    if asking is None or tensor is None or _ASKED.answered_no is None or _ASKED.answered_yes is None:
        return False
    code = asking.f_code
    is_mask = isinstance(tensor, torch.Tensor) and not tensor.is_floating_point()
    if code in _ASKED.traced or (is_mask and not _ASKED.known(tensor)):
        _ASKED.answered_yes[code] = location_at(code, asking.f_lineno)
        attention_masks.keep_mask(code.co_name)
        return True
    _ASKED.answered_no.add(code)
    return False


@patches(
    "transformers.masking_utils:_ignore_causal_mask_sdpa",
    around=True,
    names=("kv_length",),
)
def ignore_causal_mask(original: FunctionType, padding_mask: Any, *args: Any, **kwargs: Any) -> Any:
    """``transformers.masking_utils._ignore_causal_mask_sdpa``: no for a mask of unknown numbers, whatever the lengths.

    It would compare the mask's length with the keys' first, to cut a mask that its result does not depend on. The mask of a
    single query that stands last hides nothing either. transformers 4 asks nobody whether it is traced, so the answer for it
    is given here.
    """
    given = inspect.signature(original).bind(padding_mask, *args, **kwargs).arguments
    size = given.get("q_length", given.get("query_length"))
    queries, keys, before = unwrap(size), unwrap(given["kv_length"]), unwrap(given.get("q_offset"))
    is_last = isinstance(before, int | Dim) and queries + before == keys
    if _ASKED.answered_yes is not None and isinstance(padding_mask, torch.Tensor) and not _ASKED.known(padding_mask):
        if "is_tracing" not in original.__globals__:
            code = original.__code__
            _ASKED.answered_yes[code] = location_at(code, code.co_firstlineno)
            attention_masks.keep_mask(code.co_name)
            return False
        given = {**given, "kv_length": padding_mask.shape[-1]}
    with either_way(size) if is_last else contextlib.nullcontext():
        return original(**given)


def decided_by_data(error: BaseException) -> CodeType | None:
    """The innermost function that ``is_tracing`` answered no, and that went on to what raised ``error``."""
    answered_no = _ASKED.answered_no or ()
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code in answered_no]
    return codes[-1] if codes else None


def branches_for_tracing() -> list[Assumption]:
    """A note for each function that took the branch for traced code in the last run."""
    what = "the branch for traced code, as the other looks at the numbers of an input (bake it to take that)"
    return [Assumption(what, where) for where in (_ASKED.answered_yes or {}).values()]
