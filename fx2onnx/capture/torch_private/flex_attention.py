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


_PATCHES = tuple(
    CodePatch(type(operator).__call__, lambda original: _attend)
    for operator in found("ops.higher_order.flex_attention")
)


def attend_as_written() -> None:
    """In this thread until ``Changes`` end."""
    functions = sys.modules.get("torch.nn.attention.flex_attention")
    if functions is not None and "_warn_once" in vars(functions):  # that nothing is compiled
        put_name(functions, "_warn_once", lambda *_, **__: None)
    for patch in _PATCHES:
        patch.put_in()


@contextlib.contextmanager
def attention_as_written() -> Iterator[None]:
    with Changes():
        attend_as_written()
        yield
