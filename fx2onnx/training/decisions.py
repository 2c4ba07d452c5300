"""``torch.cond`` in training graphs: autograd follows the branch that is taken."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import Any

import torch

from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import put_name


@contextlib.contextmanager
def decided_by_python() -> Iterator[None]:
    """Where gradients are on, ``torch.cond`` of this thread is Python's ``if``, of which both branches are captured, each with
    its gradients. A nested graph has none.
    """
    thread, plain = get_ident(), torch.cond

    def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
        if get_ident() != thread or not torch.is_grad_enabled():
            return plain(pred, true_fn, false_fn, operands)  # type: ignore[arg-type]
        return true_fn(*operands) if pred else false_fn(*operands)

    with Changes():
        put_name(vars(torch), "cond", cond)
        yield
