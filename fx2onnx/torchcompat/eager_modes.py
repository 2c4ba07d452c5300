"""Modes that watch operators while eager PyTorch runs them, those in the bodies of control flow too."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fx2onnx.torchcompat.dispatch import Named, Operands, Types
from fx2onnx.torchcompat.operators import OpOverload

_ops: Any = torch._ops


class WatchingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that ``torch.cond``, ``while_loop``, ``scan`` and the like pass as other operators do."""

    supports_higher_order_operators = True

    def __enter__(self) -> Self:
        has_rule = hasattr(TorchDispatchMode, "supports_higher_order_operators")
        if not has_rule:  # each of them asks for a rule of its own (torch 2.8)
            for func in _ops._higher_order_ops.values():
                if type(self) not in func.python_key_table:
                    func.py_impl(type(self))(partial(_passed, func))
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]


def _passed(func: object, mode: TorchDispatchMode, *args: object, **kwargs: object) -> object:
    return mode.__torch_dispatch__(func, (), args, kwargs)  # type: ignore[no-untyped-call]


class EagerMode(WatchingMode):  # type: ignore[no-untyped-call]
    """A mode around a run of eager PyTorch: every operator goes to ``seen``, those inside the bodies of ``torch.cond``,
    ``while_loop``, ``scan`` and the like too, which do not pass there themselves.
    """

    turns = 0
    """The number of runs of bodies so far."""
    most_turns: int | None = None
    """The largest number of runs of bodies: RuntimeError beyond."""
    end_seconds: float | None = None
    """Time at which operators are no longer run: TimeoutError beyond."""

    def __torch_dispatch__(self, func: OpOverload, types: Types, args: Operands = (), kwargs: Named = None) -> object:
        if self.end_seconds is not None and time.monotonic() > self.end_seconds:
            raise TimeoutError("forward still runs")
        if not isinstance(func, _ops.HigherOrderOperator):
            return self.seen(func, args, kwargs or {})
        kernel = func.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
        return kernel(*map(self._body, args), **{name: self._body(value) for name, value in (kwargs or {}).items()})

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operator's result. This mode is off while it runs."""
        raise NotImplementedError

    def _body(self, value: object) -> object:
        if not callable(value):
            return value

        def run(*args: object, **kwargs: object) -> object:
            self.turns += 1
            if self.most_turns is not None and self.turns > self.most_turns:
                raise RuntimeError(f"a loop goes on after {self.most_turns} turns")
            with self:
                return value(*args, **kwargs)

        return run
