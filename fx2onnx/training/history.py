"""Checks of differentiation: whether the loss depends on what is trained, and where the history of its values ends if not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.torchcompat.dispatch import in_function_transform
from fx2onnx.torchcompat.frames import user_location
from fx2onnx.torchcompat.pytrees import flatten
from fx2onnx.torchcompat.tensor_questions import requires_grad


class End(NamedTuple):
    """A call that takes tensors with a gradient and gives only such without."""

    name: str
    where: SourceLocation | None


class _Watch(TorchFunctionMode):
    """Notes the ends of histories."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[End] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if in_function_transform():  # gradients of which are noted elsewhere
            return result
        made = [leaf.value for leaf in flatten(result)[0] if isinstance(leaf.value, torch.Tensor)]
        given = [leaf.value for leaf in flatten((args, kwargs or {}))[0] if isinstance(leaf.value, torch.Tensor)]
        if made and any(map(requires_grad, given)) and not any(map(requires_grad, made)):
            name = str(resolve_name(func) or getattr(func, "__name__", func)).removesuffix(".__get__")
            if not name.startswith("fx2onnx."):  # what a function of ours with a gradient consists of
                self.ends.append(End(name, user_location()))
        return result


def last_end(function: Callable[[], object]) -> End | None:
    """The last place in the user's code where ``function`` leaves gradients behind."""
    with torch.enable_grad(), _Watch() as watch:
        function()
    known = [end for end in watch.ends if end.where is not None]
    return known[-1] if known else None


def check_loss(loss: object, function: Callable[..., object]) -> None:
    """Raises UserError E108 where the loss is no floating scalar, with the line of the function."""
    if not isinstance(loss, torch.Tensor):
        why = f"it is a {type(loss).__name__}"
    elif loss.numel() != 1 or loss.dim():
        why = f"it has the shape {list(loss.shape)}"
    elif not loss.dtype.is_floating_point:
        why = f"it is of {str(loss.dtype).removeprefix('torch.')}"
    else:
        return
    raise UserError(
        "E108",
        "the loss is no scalar of floating point",
        where=_place_of(function),
        why=why,
        next="reduce it: .mean() or .sum() of the losses",
    )


def _place_of(function: Callable[..., object]) -> SourceLocation | None:
    own = function.forward if isinstance(function, torch.nn.Module) else function
    code = getattr(inspect.unwrap(own), "__code__", None)
    if code is None or code.co_filename.startswith(str(torch.__path__[0])):
        return None
    return SourceLocation(code.co_filename, code.co_firstlineno, code.co_name)


def check_tracked(loss: torch.Tensor, is_anything_trained: bool, again: Callable[[], object]) -> None:
    """Raises UserError E108 where the loss depends on nothing that is trained, with the line that ends its history."""
    if is_anything_trained and loss.requires_grad:
        return
    why = "forward detaches them, runs under no_grad, or does not use them"
    end = last_end(again) if is_anything_trained else None
    raise UserError(
        "E108",
        "the loss does not depend on any parameter that is trained",
        where=None if end is None else end.where,
        why="every parameter is frozen" if not is_anything_trained else f"{end.name} has no gradient" if end else why,
        next="let requires_grad be True for parameters that are to be trained"
        if end is None
        else "compute it by operators that have one",
    )


def check_gradients(
    gradients: Mapping[str, torch.Tensor | None], again: Callable[[], object]
) -> dict[str, torch.Tensor]:
    """The same. Raises UserError E108 that names the parameters that the loss does not depend on, and the last line that ends
    a history.
    """
    missing = [name for name, gradient in gradients.items() if gradient is None]
    if missing:
        end = last_end(again)
        why = f"it does not depend on {'them' if len(missing) > 1 else 'it'}"
        raise UserError(
            "E108",
            f"the loss has no gradient for {_shown(missing)}",
            where=None if end is None else end.where,
            why=why if end is None else f"{why}; {end.name}, which has no gradient, may be in the way",
            next=(f"freeze them: frozen={missing[:5]!r}", "or use them in forward"),
        )
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}


class PathsNoted:
    """The parameters that have a gradient, on each of several paths through forward."""

    def __init__(self) -> None:
        self.reached: frozenset[str] = frozenset()
        self.unreached: frozenset[str] = frozenset()

    def note(self, reached: Set[str], unreached: Set[str]) -> None:
        """One more path."""
        self.reached, self.unreached = self.reached | reached, self.unreached | unreached

    def check(self) -> None:
        """Raises UserError E108 where something has no gradient on any of them."""
        if missing := sorted(self.unreached - self.reached):
            raise UserError(
                "E108",
                f"the loss has no gradient for {_shown(missing)}",
                why="it does not depend on what is trained there, whichever way forward goes",
                next=(f"freeze them: frozen={missing[:5]!r}", "or use them in forward"),
            )

    def warnings(self) -> list[str]:
        """The warnings on parameters that have a gradient for some inputs only."""
        if not self.unreached:
            return []
        names = _shown(sorted(self.unreached))
        return [
            f"{names}: no gradient on some of the ways that forward goes; such a step leaves them and their state as they are, as "
            "in PyTorch, but the number of steps counts it, which it does not there"
        ]


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def check_constants(
    read: Iterable[tuple[torch.Tensor, SourceLocation | None]], module: torch.nn.Module, optimizer: object
) -> None:
    """Raises UserError E108 where a tensor that was read is a parameter that the optimizer trains and the module does not have."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return
    trained = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    trained -= {id(tensor) for tensor in module.parameters()}
    for tensor, where in read:
        if id(tensor) in trained:
            raise UserError(
                "E108",
                "the optimizer trains a parameter that the module does not have",
                where=where,
                why=f"it is of the sizes {list(tensor.shape)}, and a constant of the graph: of the loss, or of another module",
                next=(
                    "make what has it a submodule of the module, and have forward compute it",
                    "or leave it out of the optimizer",
                ),
            )
