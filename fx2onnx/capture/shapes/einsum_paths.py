"""Plans of opt_einsum, which torch asks for products of three tensors and more where it is installed. They are made for the sizes of
the sample: whatever the order of a contraction is, the result is right at every size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

from fx2onnx.base.answering import answers_for_caller
from fx2onnx.capture.shapes.size_math import Number

Function: TypeAlias = Callable[..., Number]
_MODULES = ("opt_einsum", "opt_einsum.contract")


def wrapped() -> Iterator[tuple[object, str, Callable[[Function], Function]]]:
    """Where ``contract_path`` is called from, if the library is there."""
    for name in _MODULES:
        module = sys.modules.get(name)
        if hasattr(module, "contract_path"):
            yield module, "contract_path", _planned


@answers_for_caller
def _planned(original: Function) -> Function:
    def contract_path(subscripts: Number, *operands: Number, **kwargs: Number) -> Number:
        if not isinstance(subscripts, str):  # operands and lists of indices in turn
            return original(subscripts, *operands, **kwargs)
        are_shapes = kwargs.pop("shapes", False)
        shapes = [tuple(map(_at_sample, each if are_shapes else each.shape)) for each in operands]
        first, plan = original(subscripts, *shapes, shapes=True, **kwargs)
        is_plan_alone = are_shapes or not kwargs.get("einsum_call")
        return (first if is_plan_alone else list(operands)), plan

    return contract_path


def _at_sample(size: Number) -> int:
    node = getattr(size, "node", None)
    return int(size) if node is None else int(node.env.hint(node.value))
