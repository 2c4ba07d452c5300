"""transformers leaves an attention mask out where no token is padded, and what its attention does then need not be what
the mask says: a layer that is not marked as causal sees every token. Such a layer gets a mask that holds both cases.

``sdpa_mask`` decides by the numbers of the padding mask, which depend on data, so capture always makes the mask;
``sdpa_attention_forward`` is where it is known what eager PyTorch does without one.

transformers checks whether it is traced before it looks at a mask's numbers. ``is_tracing(x)`` says yes for fake tensors, and what
follows may compute other numbers than in eager PyTorch. So the patch says no, as eager PyTorch does, except for a mask (an integer or
bool tensor) whose numbers depend on data: the eager branch would look at them. Where a function that got a no decides by data all the
same, capture starts again with yes for that function. The report names every function that got a yes.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

from fx2onnx.base.changes import before_change
from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.options import Known, TracedCode
from fx2onnx.capture.shapes.symnode import either_way, unwrap
from fx2onnx.model_patches.patching import arguments_of, patches, signature_of
from fx2onnx.sizes.assumptions import Assumption
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat.frames import asking_frame, location_at


@dataclass(slots=True)
class _Kept:
    """A mask that eager PyTorch leaves out where ``padding`` is all true and the window is not reached."""

    mask: Tensor
    padding: Callable[[], Tensor]
    keys: Any
    window: int | None
    is_causal: bool
    """True if the mask is that of causal attention."""

    def left_out(self) -> Tensor:
        """bool []: whether eager PyTorch leaves the mask out."""
        where = self.padding().all()
        return where if self.window is None else where & (torch.scalar_tensor(self.keys) < self.window)


class _Masks(threading.local):
    kept: dict[int, _Kept] | None = None
    callers: list[str] | None = None
    """Names of the functions that keep a mask because of ``keep_mask``."""
    made: dict[int, Tensor] | None = None
    """The mask that holds both cases, by the id of the one kept."""


_MASKS = _Masks()


def remember() -> None:
    """Masks that are kept for capture's sake are remembered in this thread, until ``Changes`` end."""
    before_change(functools.partial(vars(_MASKS).update, kept=_MASKS.kept, callers=_MASKS.callers, made=_MASKS.made))
    _MASKS.kept, _MASKS.callers, _MASKS.made = {}, [], {}


def keep_mask(function: str) -> None:
    """``function`` takes the branch that does not look whether a mask could be left out."""
    if _MASKS.callers is not None:
        _MASKS.callers.append(function)


_KINDS = {"_ignore_causal_mask_sdpa": True, "_ignore_bidirectional_mask_sdpa": False}


@patches(
    "transformers.masking_utils:sdpa_mask",
    around=True,
    names=("kv_length", "kv_offset", "attention_mask", "local_size"),
)
def sdpa_mask(original: FunctionType, *args: Any, **kwargs: Any) -> Any:
    """``transformers.masking_utils.sdpa_mask``, which calls one of ``_KINDS``."""
    before = len(_MASKS.callers or ())
    mask = original(*args, **kwargs)
    callers = [name for name in (_MASKS.callers or ())[before:] if name in _KINDS]
    if mask is None or not callers or _MASKS.kept is None:
        return mask
    given = _arguments(original, args, kwargs)
    queries = given["q_length"] if "q_length" in given else given["cache_position"].shape[0]
    keys = given["kv_length"]
    # With other lengths (a cache), eager PyTorch leaves a causal mask out for single queries only, which see every key.
    if _KINDS[callers[0]] and unwrap(queries) != unwrap(keys):
        return mask

    def padding() -> Tensor:
        first = given["kv_offset"]
        prepare = original.__globals__["prepare_padding_mask"]
        uncut = {"_slice": False} if "_slice" in signature_of(prepare).parameters else {}
        whole: Tensor = prepare(given["attention_mask"], keys, first, **uncut)
        return whole[:, first : first + keys]

    _MASKS.kept[id(mask)] = _Kept(mask, padding, keys, given["local_size"], _KINDS[callers[0]])
    return mask


@patches(
    "transformers.integrations.sdpa_attention:sdpa_attention_forward",
    around=True,
    names=("is_causal",),
)
def sdpa_attention_forward(
    original: FunctionType,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``transformers.integrations.sdpa_attention.sdpa_attention_forward``: without a mask, causal as the layer says.

    Shapes:  attention_mask bool [batch, 1, queries, keys].
    """
    all_args = (module, query, key, value, attention_mask, *args)
    argument = _arguments(original, all_args, kwargs)["is_causal"]
    # Layers of transformers 4 say no where there is a mask: without one they would say what they are.
    is_said = argument is not None and (
        argument or attention_mask is None or hasattr(sys.modules["transformers.utils.import_utils"], "is_tracing")
    )
    is_causal = bool(argument if is_said else getattr(module, "is_causal", True))
    # A single query is not causal, which is the same where there is a single key, and where a mask says what is seen.
    is_alike = attention_mask is not None or not is_causal or unwrap(query.shape[2]) == unwrap(key.shape[2])
    with either_way(query.shape[2]) if is_alike else contextlib.nullcontext():
        kept = (_MASKS.kept or {}).get(id(attention_mask))
        if kept is None or _MASKS.made is None or kept.mask.dtype != torch.bool:
            return original(*all_args, **kwargs)
        if is_causal == kept.is_causal or unwrap(query.shape[2]) == 1:
            return original(*all_args, **kwargs)
        if id(attention_mask) not in _MASKS.made:
            _MASKS.made[id(attention_mask)] = _with_both(kept, is_causal)
        return original(module, query, key, value, _MASKS.made[id(attention_mask)], *args, **kwargs)


@patches(
    "transformers.masking_utils:create_recurrent_attention_mask",
    around=True,
    names=("inputs_embeds", "attention_mask", "cache"),
    versions=">=5.11",
)
def recurrent_mask(original: FunctionType, *args: Any, **kwargs: Any) -> Any:
    """``transformers.masking_utils.create_recurrent_attention_mask``, which leaves the mask of a single token out: one that
    was generated is none of padding. A graph that takes its prompt token by token gets padding, too, and an indexer keeps
    beside each key whether it is.

    Shapes:  attention_mask [batch, keys], inputs_embeds [batch, tokens, width] -> [batch, tokens] or None.
    """
    given = _arguments(original, args, kwargs)
    mask, cache = given["attention_mask"], given["cache"]
    keeps_masks = any(getattr(layer, "is_indexer_initialized", False) for layer in getattr(cache, "layers", ()))
    if mask is None or mask.dim() != 2 or unwrap(given["inputs_embeds"].shape[1]) != 1 or not keeps_masks:
        return original(*args, **kwargs)
    return mask[:, -1:]


def _with_both(kept: _Kept, is_causal: bool) -> Tensor:
    if not is_causal:
        return kept.mask | kept.left_out()
    rows, columns = (torch.arange(size) for size in kept.mask.shape[-2:])
    return torch.where(kept.left_out(), rows[:, None] >= columns, kept.mask)


def _arguments(function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return arguments_of(function, "transformers", args, kwargs)


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
    remember()


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
        keep_mask(code.co_name)
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
    given = signature_of(original).bind(padding_mask, *args, **kwargs).arguments
    size = given.get("q_length", given.get("query_length"))
    queries, keys, before = unwrap(size), unwrap(given["kv_length"]), unwrap(given.get("q_offset"))
    is_last = isinstance(before, int | Dim) and queries + before == keys
    if _ASKED.answered_yes is not None and isinstance(padding_mask, torch.Tensor) and not _ASKED.known(padding_mask):
        if "is_tracing" not in original.__globals__:
            code = original.__code__
            _ASKED.answered_yes[code] = location_at(code, code.co_firstlineno)
            keep_mask(code.co_name)
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
    what = "the branch for traced code, because the other one reads the values of an input (make it constant with bake= to take that)"
    return [Assumption(what, where) for where in (_ASKED.answered_yes or {}).values()]
