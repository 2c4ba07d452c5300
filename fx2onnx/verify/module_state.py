"""The module's own state: weights of a file beside those of the module, and what a forward pass changes."""

from __future__ import annotations

import contextlib
import random
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from fx2onnx.base.changes import Changes, before_change
from fx2onnx.base.code_patch import put_name
from fx2onnx.base.events import record
from fx2onnx.base.metadata import PRODUCER
from fx2onnx.capture.captured import RETURNS_STATE
from fx2onnx.capture.python.held_names import Names
from fx2onnx.capture.python.inputs import HELD, Arguments, Leaf
from fx2onnx.capture.python.module_state import (
    host_states,
    keep,
    keep_host_states,
    keep_numbers,
    memory_of,
    snapshot_of,
)
from fx2onnx.capture.python.outside import MET
from fx2onnx.capture.rare_roads import road
from fx2onnx.judge.engines import Array
from fx2onnx.judge.verdict import UNSTEADY, Row, Verdict
from fx2onnx.quantize.places import IN_FLOAT32, IN_INT8
from fx2onnx.torchcompat.dispatch import no_modes
from fx2onnx.torchcompat.eager_modes import WatchingMode
from fx2onnx.torchcompat.modules import ModuleTree
from fx2onnx.torchcompat.operators import OpOverload
from fx2onnx.torchcompat.pytrees import pytree
from fx2onnx.torchcompat.thread_state import keep_modes
from fx2onnx.verify.arrays import to_numpy
from fx2onnx.verify.wide import written_arguments

_CODES = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"}
)


def in_float32(model: onnx.ModelProto, note: Callable[[str], object]) -> bytes | None:
    """The file with products that round nothing to 8 bits, on which ``note`` gets a sentence; None where the file asks
    for none that do."""
    if not _rounding(model):
        return None
    exact = onnx.ModelProto()
    exact.CopyFrom(model)
    for attribute in _rounding(exact):
        attribute.i = IN_FLOAT32
    note(f"{len(_rounding(model))} products may round what they multiply to 8 bits in onnxruntime; here they do not")
    found: bytes = exact.SerializeToString()
    return found


def has_codes(model: onnx.ModelProto) -> bool:
    """Return whether the model computes with codes: those of weights alone become floats first."""
    return not _CODES.isdisjoint(operators_of(model))


def operators_of(model: onnx.ModelProto) -> set[str]:
    """The operators of the model and of its functions, bodies left out."""
    return {node.op_type for holder in (model.graph, *model.functions) for node in holder.node}


def with_own_zero_points(model: onnx.ModelProto) -> bytes | None:
    """The file with zero points of int8 that no two nodes share, as onnxruntime needs where it turns int8 into uint8; None
    where none do.
    """
    held = {value.name: value for value in model.graph.initializer if value.data_type == onnx.TensorProto.INT8}
    readers = Counter(name for node in model.graph.node for name in node.input if name in held)
    if all(count < 2 for count in readers.values()):
        return None
    own = onnx.ModelProto()
    own.CopyFrom(model)
    met: Counter[str] = Counter()
    for node in own.graph.node:
        for place, name in enumerate(node.input):
            if readers[name] < 2:
                continue
            met[name] += 1
            if met[name] > 1:
                copied = own.graph.initializer.add()
                copied.CopyFrom(held[name])
                copied.name = node.input[place] = f"{name}.of.{node.output[0]}.{place}"
    found: bytes = own.SerializeToString()
    return found


def _rounding(model: onnx.ModelProto) -> list[onnx.AttributeProto]:
    return [
        attribute
        for holder in (model.graph, *model.functions)
        for node in holder.node
        for attribute in (node.attribute if node.op_type == "MatMulNBits" else ())
        if attribute.name == "accuracy_level" and attribute.i == IN_INT8
    ]


_TURNED = ".T"
_BLOCK = 1 << 18
_COLUMNS = 128
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of so many bytes."""


def compare_weights(verdict: Verdict, model: onnx.ModelProto, folder: str, root: torch.nn.Module) -> None:
    """A row for each weight that is not the module's. Of files that others wrote a note: their optimizers keep names."""
    with record("compare weights"):
        for problem, name in _differences(model, folder, root):
            if model.producer_name == PRODUCER:
                verdict.rows.append(Row.failed("weights", name, "weights", problem))
            else:
                verdict.note(f"the weight {name}: {problem}")


def _differences(model: onnx.ModelProto, folder: str, root: torch.nn.Module) -> Iterator[tuple[str, str]]:
    tensors = {
        **dict(root.named_parameters(remove_duplicate=False)),
        **dict(root.named_buffers(remove_duplicate=False)),
    }
    for value in model.graph.initializer:
        name = value.name
        own = tensors.get(name, tensors.get(name.removesuffix(_TURNED)))
        if own is None or own.is_quantized or own.layout != torch.strided:
            continue
        is_turned = name not in tensors
        if is_turned and own.dim() != 2:
            continue
        problem = _difference(ir.serde.deserialize_tensor(value, folder).numpy(), own, is_turned)
        if problem:
            yield problem, name


def _difference(found: Array, own: torch.Tensor, is_turned: bool) -> str:
    array = to_numpy(own.t() if is_turned else own)
    if found.shape != array.shape:
        return f"shape {list(found.shape)}, the module's is {list(array.shape)}"
    if found.dtype != array.dtype:
        return ""  # the file is of another precision: its outputs say whether that is right
    if is_turned and _is_equal_turned(found, own):
        return ""
    off = sum(int(np.count_nonzero(left != right)) for left, right in _parts(found, array))
    return f"{off} of {found.size} numbers are not the module's" if off else ""


def _is_equal_turned(found: Array, own: torch.Tensor) -> bool:
    """Return whether all bits are the same, piece by piece: what a piece takes stays in the cache, along its other axis, too."""
    bits = _BITS.get(own.element_size())
    if bits is None or own.is_complex() or own.device.type != "cpu" or not found.flags.c_contiguous:
        return False
    with warnings.catch_warnings(action="ignore"):  # the file's bytes may not be written, and are not
        stored = torch.from_numpy(found.view(f"i{own.element_size()}"))
    turned = own.detach().view(bits).t()
    return all(
        torch.equal(turned[start : start + _COLUMNS], stored[start : start + _COLUMNS])
        for start in range(0, len(stored), _COLUMNS)
    )


def _parts(one: Array, other: Array) -> Iterator[tuple[Array, Array]]:
    """Both piece by piece, as bits: NaN is NaN."""
    bits = f"u{one.dtype.itemsize}" if one.dtype.kind in "fV" and one.dtype.itemsize in (1, 2, 4, 8) else one.dtype
    left, right = (np.ascontiguousarray(array).reshape(-1).view(bits) for array in (one, other))
    for start in range(0, left.size, _BLOCK):
        yield left[start : start + _BLOCK], right[start : start + _BLOCK]


_WRITTEN: weakref.WeakKeyDictionary[torch.nn.Module, frozenset[str]] = weakref.WeakKeyDictionary()
"""Parameters that forward is known to write into."""
_SEEN: weakref.WeakKeyDictionary[torch.nn.Module, dict[bool, frozenset[str]]] = weakref.WeakKeyDictionary()
"""The parameters that a first run wrote into, in training mode or not."""
_DRAWING: weakref.WeakKeyDictionary[torch.nn.Module, list[tuple[dict[str, object], str]]] = weakref.WeakKeyDictionary()
"""Modules that have drawn random numbers of Python or NumPy, or whose code reads a clock, with these clocks."""


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


def _trained(root: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters by name, and the gradients that they have."""
    for name, value in root.named_parameters():
        yield name, value
        if value.is_leaf and value.grad is not None:
            yield f"{name}.grad", value.grad


def draws_of_python(root: torch.nn.Module) -> bool:
    """Return whether a run has drawn random numbers of Python or NumPy, with whose state all runs begin, or may have read a clock."""
    return root in _DRAWING


@contextlib.contextmanager
def other_draws(root: torch.nn.Module) -> Iterator[None]:
    """Inside, Python and NumPy draw other random numbers, and clocks show another time."""
    with Changes(), road("random draws").clocks_shifted(_DRAWING[root]):
        keep_host_states()
        random.seed(random.getrandbits(64))
        np.random.seed(random.getrandbits(32))
        yield


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
    held = Names(snapshot_of(ModuleTree(root))).tensors()
    missing = [name for name in ends if name not in known and name in held and name in inputs]
    leaves = [Leaf(name, (name,), held[name].detach().clone(), HELD, place=name) for name in missing]
    return replace(arguments, leaves=[*arguments.leaves, *leaves], ends=tuple(ends))


class NothingToCompare(Exception):
    """forward has no numbers in eager PyTorch, or no engine runs the file."""


class Unsteady(Exception):
    """forward gives something else each time it is called, so that nothing can be compared."""

    def __init__(self, root: torch.nn.Module, arguments: Iterable[tuple[str, object]] = ()) -> None:
        lasting = ", ".join(Names(snapshot_of(ModuleTree(root), arguments)).lasting())
        held = f"it goes on with what cannot be put back: {lasting}" if lasting else OUTSIDE
        super().__init__(f"{UNSTEADY}; {held}")


OUTSIDE = (
    "it depends on what is not the module's, such as random numbers of Python or NumPy, a global variable, a clock, or an "
    "operator without fixed results"
)


@contextlib.contextmanager
def kept(root: torch.nn.Module, arguments: Iterable[tuple[str, object]] = ()) -> Iterator[tuple[set[int], Names]]:
    """Inside, forward runs once; what the module and the objects among ``arguments`` hold is as it was afterwards, tensors with
    their numbers. Gives where the memory of those lies that it may have written into, and what is held by name.
    """
    with Changes():
        tree = ModuleTree(root)
        keep_host_states()
        before = host_states()
        put_name(MET, "clocks", [])
        keep_modes()
        written = _WRITTEN.get(root, frozenset()) | _seen(root)
        known = {name: value for name, value in _trained(root) if name in written} if written else {}
        held = keep(tree, arguments)
        own = [*known.values(), *tree.buffers(), *held.tensors.values()]
        with no_modes():  # those of a verification look at what forward does
            keep_numbers(own, [tensor for _, _, tensor in tree.tensors])
        places = {memory_of(tensor) for tensor in own}
        noting = None if root.training in _SEEN.get(root, ()) else Noting(root, known, places)
        if noting is not None:
            before_change(noting.put_back)
        with noting or contextlib.nullcontext():
            yield places, Names(held)
        if host_states() != before or MET.clocks:
            _DRAWING[root] = MET.clocks or []
        if noting is not None:
            _SEEN.setdefault(root, {})[root.training] = frozenset(noting.saved)


class Noting(WatchingMode):  # type: ignore[no-untyped-call]
    """Keeps the numbers of each parameter and gradient that an operator is about to write into, and where it lies in ``places``."""

    def __init__(self, root: torch.nn.Module, known: Collection[str], places: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parameters = {name: value for name, value in _trained(root) if name not in known}
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
