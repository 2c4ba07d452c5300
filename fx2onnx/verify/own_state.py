"""What a module's forward changes, which is as it was before each run: attributes, buffers, parameters that it writes into."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fx2onnx.base.changes import Changes, before_change
from fx2onnx.capture.captured import RETURNS_STATE
from fx2onnx.capture.python.held import Snapshot
from fx2onnx.capture.python.held_names import Names
from fx2onnx.capture.python.inputs import HELD, Arguments, Leaf
from fx2onnx.capture.python.module_state import keep, keep_gradients, keep_host_states, keep_numbers, memory_of
from fx2onnx.judge.verdict import UNSTEADY
from fx2onnx.torchcompat.dispatch import WatchingMode, no_modes
from fx2onnx.torchcompat.modules import ModuleTree
from fx2onnx.torchcompat.operators import OpOverload
from fx2onnx.torchcompat.pytrees import pytree
from fx2onnx.verify.wide import written_arguments

_WRITTEN: weakref.WeakKeyDictionary[torch.nn.Module, frozenset[str]] = weakref.WeakKeyDictionary()
"""Parameters that forward is known to write into."""
_SEEN: weakref.WeakKeyDictionary[torch.nn.Module, dict[bool, frozenset[str]]] = weakref.WeakKeyDictionary()
"""Those that a first run wrote into, in training mode or not."""


@contextlib.contextmanager
def put_back(root: torch.nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Inside, these parameters are as they were after each run, as all buffers are: forward is known to write into them."""
    _WRITTEN[root] = frozenset(names)
    try:
        yield
    finally:
        del _WRITTEN[root]


def _seen(root: torch.nn.Module) -> frozenset[str]:
    return _SEEN.get(root, {}).get(root.training, frozenset())


def _written_by_name(root: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters that forward is known to write into."""
    written = _WRITTEN.get(root, frozenset()) | _seen(root)
    return {name: value for name, value in root.named_parameters() if name in written} if written else {}


def with_state(
    root: torch.nn.Module,
    arguments: Arguments,
    state: Mapping[str, str],
    inputs: Collection[str],
    outputs: Sequence[str],
) -> Arguments:
    """The arguments, and what the module holds of ``state`` (names, and outputs for their next values) beside them."""
    known = {leaf.name for leaf in arguments.leaves}
    ends = sorted((name for name in state if state[name] in outputs), key=lambda name: outputs.index(state[name]))
    if not ends or RETURNS_STATE in vars(root):
        return arguments
    held = Names(Snapshot(ModuleTree(root).named)).tensors()
    missing = [name for name in ends if name not in known and name in held and name in inputs]
    leaves = [Leaf(name, (name,), held[name].detach().clone(), HELD, places=(name,)) for name in missing]
    return replace(arguments, leaves=[*arguments.leaves, *leaves], ends=tuple(ends))


class NothingToCompare(Exception):
    """forward has no numbers in eager PyTorch."""


class Unsteady(Exception):
    """forward gives something else each time it is called, so that nothing can be compared."""

    def __init__(self, root: torch.nn.Module, arguments: Iterable[tuple[str, object]] = ()) -> None:
        lasting = ", ".join(Names(Snapshot(ModuleTree(root).named, arguments)).lasting())
        held = f"it goes on with what cannot be put back: {lasting}" if lasting else OUTSIDE
        super().__init__(f"{UNSTEADY}; {held}")


OUTSIDE = (
    "it depends on what is not the module's, such as a global variable, a clock, or an operator without fixed results"
)


@contextlib.contextmanager
def kept(root: torch.nn.Module, arguments: Iterable[tuple[str, object]] = ()) -> Iterator[tuple[set[int], Names]]:
    """Inside, forward runs once; what the module and the objects among ``arguments`` hold is as it was afterwards, tensors with
    their numbers. Gives where the memory of those lies that it may have written into, and what is held by name.
    """
    with Changes():
        tree = ModuleTree(root)
        keep_host_states()
        known = _written_by_name(root)
        held = keep(tree, arguments)
        keep_gradients(tree)
        own = [*known.values(), *tree.buffers(), *held.tensors.values()]
        with no_modes():  # those of a verification look at what forward does
            keep_numbers(own, [tensor for _, _, tensor in tree.tensors])
        places = {memory_of(tensor) for tensor in own}
        noting = None if root.training in _SEEN.get(root, ()) else Noting(root, known, places)
        if noting is not None:
            before_change(noting.put_back)
        with noting or contextlib.nullcontext():
            yield places, Names(held)
        if noting is not None:
            _SEEN.setdefault(root, {})[root.training] = frozenset(noting.saved)


class Noting(WatchingMode):  # type: ignore[no-untyped-call]
    """Keeps the numbers of each parameter that an operator is about to write into, and where it lies in ``places``."""

    def __init__(self, root: torch.nn.Module, known: Collection[str], places: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parameters = {name: value for name, value in root.named_parameters() if name not in known}
        self.saved: dict[str, torch.Tensor] = {}
        self._names = {memory_of(value): name for name, value in self.parameters.items()}
        self._places = places

    def put_back(self) -> None:
        """The parameters have the numbers that they had."""
        for name, numbers in self.saved.items():
            self.parameters[name].detach().copy_(numbers)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        places = written_arguments(func) if isinstance(func, OpOverload) else ()
        for place, argument in places:
            self._keep(args[place] if place < len(args) else kwargs.get(argument))
        return func(*args, **kwargs)

    def _keep(self, written: Any) -> None:
        for leaf in pytree.tree_leaves(written):
            place = memory_of(leaf) if isinstance(leaf, torch.Tensor) else 0
            name = self._names.get(place) if place else None
            if name is not None and name not in self.saved:
                self.saved[name] = self.parameters[name].detach().clone()
                self._places.add(place)
