"""``torch.cond`` and activation checkpoints in training graphs: autograd follows the branch taken, and all parts run once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import Any

import torch
from torch.utils import checkpoint

from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import put_name
from fx2onnx.torchcompat.versions import AROUND


@contextlib.contextmanager
def run_once() -> Iterator[None]:
    """Checkpoints of this thread are plain calls. Run again in the backward pass, what is checkpointed would draw other random
    numbers; and autograd takes no gradients of chosen tensors through reentrant ones, in which, without an argument that
    requires a gradient, nothing has one.
    """
    thread, kind = get_ident(), checkpoint.CheckpointFunction
    plain, around = kind.apply, getattr(checkpoint, AROUND)

    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        if get_ident() != thread:
            return plain(function, preserve_rng_state, *args)  # type: ignore[no-untyped-call]
        is_tracked = any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
        with torch.set_grad_enabled(is_tracked and torch.is_grad_enabled()):
            return function(*args)

    def around_nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
        if get_ident() != thread:
            yield from around(*args, **kwargs)
        else:
            yield

    with Changes():
        put_name(kind, "apply", staticmethod(apply))
        put_name(vars(checkpoint), AROUND, around_nothing)
        yield


@contextlib.contextmanager
def decided_by_python() -> Iterator[None]:
    """Let ``torch.cond`` of this thread be Python's ``if`` where gradients are on: both branches are captured, each
    with its gradients. A nested graph has none.
    """
    thread, plain = get_ident(), torch.cond

    def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
        if get_ident() != thread or not torch.is_grad_enabled():
            return plain(pred, true_fn, false_fn, operands)  # type: ignore[arg-type]
        return true_fn(*operands) if pred else false_fn(*operands)

    with Changes():
        put_name(vars(torch), "cond", cond)
        yield
