"""``flex_attention``, whose scores and mask are functions of places, as the operations that it stands for."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator

from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import CodePatch, instead_of
from fx2onnx.torchcompat.versions import found

_FUNCTIONS = "torch.nn.attention.flex_attention"


def _attend(self: object, *args: object) -> object:
    """The functions see all places at once; what they read has its gradient, which the operator gives when compiled only."""
    return sys.modules[type(self).__module__].math_attention(*args)


def _no(*_: object, **__: object) -> bool:
    return False


_PATCHES = (
    *(instead_of(type(operator).__call__, _attend) for operator in found("ops.higher_order.flex_attention")),
    # Torch 2.15 asks which sizes are of data: ours are no symbols of sympy.
    *(instead_of(function, _no) for function in found("fx.experimental.symbolic_shapes.has_free_unbacked_symbols")),
)


@functools.lru_cache(maxsize=1)
def _unwarned(warn: Callable[..., object]) -> CodePatch:
    return instead_of(warn, _no)


def attend_as_written() -> None:
    """In this thread until ``Changes`` end, without the warning that nothing is compiled."""
    warn = getattr(sys.modules.get(_FUNCTIONS), "_warn_once", None)
    for patch in (*_PATCHES, *([_unwarned(warn)] if warn is not None else [])):
        patch.put_in()


@contextlib.contextmanager
def attention_as_written() -> Iterator[None]:
    """A block in which ``attend_as_written`` holds, where there is such attention."""
    with Changes():
        if _FUNCTIONS in sys.modules:
            attend_as_written()
        yield
