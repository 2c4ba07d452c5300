"""Random numbers in a comparison: what eager PyTorch draws is fed to the file in the place of its random nodes.

An engine draws other numbers than PyTorch, so outputs that depend on them could be compared by type alone. Where each
random node of the file stands for one draw of the module (``rand`` and ``randn`` in any form), the draws become inputs
of a copy of the file, and every output is compared by value. ``randint`` is a uniform draw, scaled and cut.

Whether an output is random, eager PyTorch says, not the file: one whose numbers stay when every draw of the module
changes is compared in full, whatever the file draws for it.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import torch

from fx2onnx.irx.schema import RANDOM
from fx2onnx.judge.engines import Array
from fx2onnx.torchcompat.eager_modes import EagerMode
from fx2onnx.verify.arrays import to_numpy
from fx2onnx.verify.file_bounds import Turned, whole_numbers
from fx2onnx.verify.float_values import NO_WHOLE_NUMBER, SAYS_NOTHING
from fx2onnx.verify.marks import Marking
from fx2onnx.verify.rounded_weights import is_product
from fx2onnx.verify.unordered import chooses_without_order
from fx2onnx.verify.work import work_of

_KINDS = {"rand": "Uniform", "rand_like": "Uniform", "randn": "Normal", "randn_like": "Normal"}
"""The random node that an ATen operator becomes as it is."""
_INPUT = "fx2onnx.draw.{}"

MOST_PICKS = 200
"""Calls that are looked at for tables."""

MOST_PARTS = 4
"""Rows of an input, such as the begins and the ends of edges, that may pick rows each by itself."""

aten = torch.ops.aten
_CTC = (aten._ctc_loss.default, aten._ctc_loss.Tensor)
_PICKS: dict[Any, Callable[..., tuple[int, Any]]] = {
    aten.embedding.default: lambda table, places, *_: (table.shape[0], places),
    aten.index_select.default: lambda table, axis, places, *_: (table.shape[axis], places),
    aten.index.Tensor: lambda table, places, *_: (table.shape[0], places[0] if len(places) == 1 else None),
    **dict.fromkeys(_CTC, lambda scores, places, *_: (scores.shape[-1], places)),
    **dict.fromkeys(
        (
            aten.gather.default,
            aten.index_add.default,
            aten.index_copy.default,
            aten.scatter.src,
            aten.scatter_add.default,
        ),
        lambda table, axis, places, *_: (table.shape[axis] if table.dim() else 1, places),
    ),
}
"""For an operator that takes rows of a table, a function that gives the number of rows and the taken ones."""

_BAGS = (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)

_BOUNDARIES = {
    aten.bucketize.Tensor: 1,
    aten.bucketize.Scalar: 1,
    aten.searchsorted.Tensor: 0,
    aten.searchsorted.Scalar: 0,
}
"""The place of the argument that has to be sorted."""

REDRAWS = 4
"""Times that a module's draws are changed before an output counts as one that they do not reach."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One call of a random operator and what it gave."""

    name: str
    value: torch.Tensor
    fed: torch.Tensor
    """The numbers that the random node of the file would have to give."""


class Outgrown(BaseException):
    """A run was ended, since the numbers of its inputs decide on sizes or counts of loops that make it a long one. No Exception,
    so that ``forward`` does not catch it.
    """


class Recording(EagerMode):
    """Keeps the results of random operators, which integers pick rows of which tables, and at which numbers operators do
    something else.
    """

    def __init__(self, inputs: Sequence[torch.Tensor] = (), most_work: float = math.inf) -> None:
        """``most_work``: Outgrown is raised beyond."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._most_work = most_work
        self._whole = whole_numbers(inputs)
        self._is_first = bool(inputs)
        self.rising: set[torch.Size] = set()
        """Shapes of boundaries, which rise along the last axis."""
        self.draws: list[Draw] = []
        self.picks: list[tuple[torch.Tensor, int, int]] = []
        """Integers, and the least and the largest that pick a row."""
        self.has_codes = False
        """True if the run had products of codes."""
        self.has_placeholders = False
        """True if ``torch.onnx.ops.symbolic`` was called, which gives zeros."""
        self.says_nothing: frozenset[str] = frozenset()
        """Kinds of floats that show nothing here (float_values.py)."""
        self.has_no_order = False
        """True if an operator has chosen among NaN or infinities."""
        self.marking = Marking()
        self.marking.start(inputs)
        self.turned = Turned()
        self.work = 0.0
        """The cost of the run (work.py)."""

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in _BAGS:
            _check_bags(*args[:3])
        elif func in _CTC:
            _check_classes(args[0].shape[-1], args[1].cpu(), torch.as_tensor(args[3]).cpu())
        elif func in _BOUNDARIES:
            self._note_boundaries(args[_BOUNDARIES[func]], (kwargs or {}).get("sorter"))
        self.marking.see(func, args)
        self.has_codes |= func.namespace == "quantized" and is_product(func)
        self.has_placeholders |= func.namespace == "onnx_symbolic"
        self.says_nothing |= SAYS_NOTHING.get(func._opname, frozenset())
        result = func(*args, **kwargs)
        self.work += work_of(func, args, result)
        if self.work > self._most_work:
            raise Outgrown("its numbers make eager PyTorch take far longer than its sizes do")
        self.has_no_order = self.has_no_order or chooses_without_order(func, args, result)
        self.turned.see(func, args, result, self._whole)
        self.marking.follow(func, args, kwargs, result)
        self.says_nothing |= NO_WHOLE_NUMBER if self.turned.whole_again else frozenset()
        if _is_random(func) and isinstance(result, torch.Tensor):
            self.draws.append(_draw(func, args, kwargs or {}, result.clone()))
        elif func in _PICKS and len(self.picks) < MOST_PICKS:
            table, places = _PICKS[func](*args)
            if isinstance(places, torch.Tensor) and places.numel() < 1 << 20 and not places.is_floating_point():
                least = -table if func is aten.index.Tensor else 0
                self.picks.append((places.to("cpu", copy=True), least, table - 1))
        return result

    def _note_boundaries(self, boundaries: torch.Tensor, sorter: torch.Tensor | None) -> None:
        """Raises: ValueError for those that do not rise, of which PyTorch says nothing, beside those of the example inputs."""
        if sorter is None:
            self.rising.add(boundaries.shape)
        if not self._is_first and not _rises(boundaries if sorter is None else boundaries.gather(-1, sorter)):
            raise ValueError("boundaries are not sorted")

    def sorted_among(self, tensors: Sequence[torch.Tensor]) -> frozenset[int]:
        """The places of inputs that are boundaries, or numbers of which they are made."""
        return frozenset(at for at, each in enumerate(tensors) if each.shape in self.rising and _rises(each))

    def rows(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """The least and the largest integer that may stand in an input; None where neither it nor a row of it picks rows."""
        flat = tensor.reshape(-1)
        if not flat.numel() or flat.is_floating_point() or flat.is_complex() or flat.dtype == torch.bool:
            return None
        parts = [flat]
        if tensor.dim() > 1 and tensor.shape[0] <= MOST_PARTS and flat.numel() > tensor.shape[0]:
            parts += [part.reshape(-1) for part in tensor]
        found = [
            (least, most)
            for places, least, most in self.picks
            if places.dtype != torch.bool
            and any(torch.equal(places.reshape(-1).to(flat.dtype), part) for part in parts)
        ]
        return (max(least for least, _ in found), min(most for _, most in found)) if found else None


def _rises(tensor: torch.Tensor) -> bool:
    return not tensor.dim() or bool((tensor[..., 1:] >= tensor[..., :-1]).all())


def _check_classes(count: int, targets: torch.Tensor, lengths: torch.Tensor) -> None:
    """Raises: IndexError for classes that PyTorch does not look at: it would read beyond its memory."""
    if targets.dim() == 2:
        targets = targets[torch.arange(targets.shape[1]) < lengths.reshape(-1, 1)]
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < count:
        raise IndexError(f"a target is no class of 0 to {count - 1}")


def _check_bags(table: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor) -> None:
    """Raises: IndexError for what PyTorch does not look at: it would read beyond its memory, and the process may end."""
    starts = offsets.reshape(-1).tolist()
    bounds = [*starts, places.numel()]
    if bounds != sorted(bounds) or bounds[0] != 0:
        raise IndexError(f"offsets of bags do not rise from 0 to {places.numel()}")
    if places.numel() and not 0 <= int(places.min()) <= int(places.max()) < table.shape[0]:
        raise IndexError(f"bags name rows that a table of {table.shape[0]} does not have")


class Replaying(EagerMode):
    """Random operators give again what was drawn, in the dtype that is asked for now."""

    def __init__(self, draws: Sequence[Draw]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = list(draws)

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if _is_random(func) and isinstance(result, torch.Tensor) and self._left:
            drawn = self._left.pop(0).value
            if drawn.shape == result.shape:
                result.copy_(drawn)
        return result


class Redrawing(EagerMode):
    """Random operators give other numbers than they would, also where forward seeds the generator itself: those of a
    later call.
    """

    def __init__(self, later: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._later = later

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        for _ in range(self._later if _is_random(func) else 0):
            func(*args, **kwargs)
        return func(*args, **kwargs)


def drawn_outputs(
    run: Callable[[int], list[Array]], expected: Sequence[Array], asked: frozenset[int]
) -> frozenset[int]:
    """The outputs among those ``asked`` for that depend on the module's random numbers: all of them, where forward
    fails on others.
    """
    moved: set[int] = set()
    if not asked:
        return asked
    for later in range(1, REDRAWS + 1):
        try:
            again = run(later)
        except Exception:  # forward is the user's code
            return asked
        moved |= {index for index in asked if index >= len(again) or not _same(again[index], expected[index])}
        if moved == asked:
            break
    return frozenset(moved)


def _same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and bool(np.all((one == other) | ((one != one) & (other != other))))


def _draw(func: Any, args: Any, kwargs: Any, result: torch.Tensor) -> Draw:
    name = str(func._schema.name).rpartition("::")[2]
    if name not in ("randint", "randint_like"):
        return Draw(name, result, result)
    given = dict(zip([argument.name for argument in func._schema.arguments], args, strict=False)) | kwargs
    low, high = given.get("low", 0), given["high"]
    if not isinstance(low, int) or not isinstance(high, int):
        return Draw(name, result, result)
    # The file has floor(uniform * (high - low)) + low: the middle of what gives this number.
    return Draw("rand", result, (result.double() - low + 0.5) / (high - low))


@functools.cache
def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


@dataclass(slots=True)
class RandomNodes:
    """The random nodes of a file, and the outputs that depend on them."""

    path: str
    nodes: list[Any] = field(default_factory=list)
    tainted: frozenset[str] = frozenset()

    @staticmethod
    def of(path: str, model: onnx.ModelProto) -> RandomNodes | None:
        """None where the file draws nothing. ``model`` is the file at ``path``, without data beside it."""
        functions = _drawing_functions(model)
        nodes: list[Any] = []
        drawn: set[str] = set()
        for node in model.graph.node:
            is_random = _draws(node, functions)
            if is_random:
                nodes.append(node)
            if is_random or _reads(node) & drawn:
                drawn.update(node.output)
        tainted = frozenset(output.name for output in model.graph.output if output.name in drawn)
        return RandomNodes(path, nodes, tainted) if nodes else None

    def inputs_for(self, draws: Sequence[Draw]) -> dict[str, Array] | None:
        """The draws as inputs of ``with_inputs``; None where they are not one for each random node."""
        if len(draws) != len(self.nodes):
            return None
        feeds: dict[str, Array] = {}
        for index, (node, draw) in enumerate(zip(self.nodes, draws, strict=True)):
            kind = _KINDS.get(draw.name)
            if kind is None or node.op_type not in (f"Random{kind}", f"Random{kind}Like") or not _is_plain(node):
                return None
            value = to_numpy(draw.fed)
            shape = next((list(a.ints) for a in node.attribute if a.name == "shape"), list(value.shape))
            if value.size != np.prod(shape):
                return None
            feeds[_INPUT.format(index)] = value.reshape(shape).astype(_dtype(node, value.dtype))
        return feeds

    def with_inputs(self, feeds: dict[str, Array], folder: str) -> str:
        """The path of a copy of the file, in ``folder``, that takes ``feeds`` in the place of its random nodes."""
        model = onnx.load(self.path)
        renamed = {node.output[0]: _INPUT.format(index) for index, node in enumerate(self.nodes)}
        kept = [node for node in model.graph.node if node.output[0] not in renamed]
        for name, value in feeds.items():
            element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            model.graph.input.append(onnx.helper.make_tensor_value_info(name, element, [None] * value.ndim))
        copies = [onnx.helper.make_node("Identity", [new], [old]) for old, new in renamed.items()]
        del model.graph.node[:]
        model.graph.node.extend([*copies, *kept])
        path = os.path.join(folder, "drawn.onnx")
        is_large = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > 1 << 30
        onnx.save(model, path, save_as_external_data=is_large, location="drawn.data")
        return path


def _draws(node: Any, functions: set[tuple[str, str]]) -> bool:
    """Return whether the node may draw. ``Dropout`` with a training mode may, whatever the mode turns out to be."""
    if node.op_type in RANDOM or (node.op_type == "Dropout" and len(node.input) > 2):
        return True
    inside = (inner for graph in _bodies(node) for inner in graph.node)
    return (node.domain, node.op_type) in functions or any(_draws(inner, functions) for inner in inside)


def _drawing_functions(model: Any) -> set[tuple[str, str]]:
    """The model's functions that draw, in themselves or in those that they call."""
    result: set[tuple[str, str]] = set()
    count = -1
    while count < len(result):
        count = len(result)
        result |= {(f.domain, f.name) for f in model.functions if any(_draws(node, result) for node in f.node)}
    return result


def _reads(node: Any) -> set[str]:
    names = set(node.input)
    for graph in _bodies(node):
        for inner in graph.node:
            names |= _reads(inner)
        names.update(output.name for output in graph.output)
    return names


def _bodies(node: Any) -> list[Any]:
    return [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]


def _is_plain(node: Any) -> bool:
    """Return whether the node's numbers are those of ``rand`` or ``randn``: from 0 to 1, or of mean 0 and deviation 1."""
    plain = {"low": 0.0, "high": 1.0, "mean": 0.0, "scale": 1.0}
    return all(attribute.f == plain.get(attribute.name, attribute.f) for attribute in node.attribute)


def _dtype(node: Any, default: Any) -> Any:
    found = next((attribute.i for attribute in node.attribute if attribute.name == "dtype"), None)
    return default if found is None else onnx.helper.tensor_dtype_to_np_dtype(found)
