"""``flex_attention``, whose scores and mask are functions of places, as the operations that it stands for."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import CodePatch, put_name
from fx2onnx.capture.torch_private.finding import found


def _attend(self: object, *args: object) -> object:
    """The functions see all places at once; what they read has its gradient, which the operator gives when compiled only."""
    return sys.modules[type(self).__module__].math_attention(*args)


def _say_nothing(*_: object, **__: object) -> None:
    pass


_PATCHES = tuple(
    CodePatch(type(operator).__call__, lambda original: _attend)
    for operator in found("ops.higher_order.flex_attention")
)


def attend_as_written() -> None:
    """In this thread until ``Changes`` end."""
    functions = sys.modules.get("torch.nn.attention.flex_attention")
    # That nothing is compiled, and (torch 2.15) which sizes are of data: ours are no symbols of sympy.
    for name in ("_warn_once", "has_free_unbacked_symbols"):
        if functions is not None and name in vars(functions):
            put_name(functions, name, _say_nothing)
    for patch in _PATCHES:
        patch.put_in()


@contextlib.contextmanager
def attention_as_written() -> Iterator[None]:
    with Changes():
        attend_as_written()
        yield
