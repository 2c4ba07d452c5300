"""Several observed calls of a module: which sizes and inputs differ among them, and whether a captured graph is for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.captured import Captured
from fx2onnx.capture.python.inputs import ARGUMENT, Arguments, Call, bind, fits, normalise_args
from fx2onnx.capture.shapes.dynamic import Requested, fresh_size
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat import shape_specs
from fx2onnx.torchcompat.pytrees import Key

Tensors = dict[tuple[Key, ...], torch.Tensor]


@dataclass(frozen=True)
class Observed:
    """One more call: what the user calls it, and its arguments."""

    name: str
    arguments: Arguments

    def tensors(self) -> Tensors:
        """The call's tensors by the keys that lead to them, as the names of inputs are the first call's."""
        return {leaf.keys: leaf.tensor for leaf in self.arguments.leaves}


def observed(module: torch.nn.Module, samples: Sequence[object], dynamic_shapes: object) -> list[Observed]:
    """The calls of ``samples`` and of ``torch.export.AdditionalInputs``. Raises UserError E101 where one does not fit forward."""
    further = shape_specs.calls(dynamic_shapes) or []
    calls = [(f"samples[{index}]", call_of(module, sample)) for index, sample in enumerate(samples)]
    calls += [(f"call {index} of AdditionalInputs", call) for index, call in enumerate(further)]
    found = []
    for name, (args, kwargs) in calls:
        try:
            found.append(Observed(name, bind(module.forward, args, kwargs, None)))
        except UserError as error:
            raise UserError(error.code, f"{name}: {error.what}", why=error.why, next=error.next) from error
    return found


def call_of(module: torch.nn.Module, sample: object) -> Call:
    """A call as ``args`` is written: a tensor, a tuple, a dict of keywords; or a tuple and a dict, the two that a call has."""
    if isinstance(sample, tuple | list) and len(sample) == 2 and isinstance(sample[1], dict):
        args, kwargs = sample
        if isinstance(args, tuple | list) and all(isinstance(key, str) for key in kwargs):
            normal = normalise_args(module, (*args, kwargs) if kwargs else args, None)
            if fits(module.forward, args, kwargs) and (not normal[1] or normal[1].keys() == kwargs.keys()):
                return normalise_args(module, tuple(args), kwargs)
    return normalise_args(module, sample, None)


def fullest(module: torch.nn.Module, samples: Sequence[object]) -> Call:
    """The call of ``samples`` that has most tensors, the first of these."""
    calls = [call_of(module, sample) for sample in samples]
    counts = [len(each.arguments.leaves) for each in observed(module, samples, None)]
    return calls[counts.index(max(counts))]


def set_observed_axes(arguments: Arguments, calls: Sequence[Observed], asked: Requested) -> None:
    """A size that differs between the calls is dynamic, unless it is already; inputs that some leave out are noted.

    Raises:   UserError E105 where the calls differ in what a file has for all of them: dtypes, ranks, numbers, further tensors.
    """
    own: Tensors = {leaf.keys: leaf.tensor for leaf in arguments.leaves}
    for call in calls:
        _refuse_others(arguments, own, call)
    shapes = [own, *(call.tensors() for call in calls)]
    places = [(leaf, axis) for leaf in arguments.leaves for axis in range(leaf.tensor.dim())]
    sizes = [[each[leaf.keys].shape[axis] if leaf.keys in each else None for each in shapes] for leaf, axis in places]
    varied = [each for each in sizes if len({*each} - {None}) > 1]
    for (leaf, axis), seen in zip(places, sizes, strict=True):
        if axis in leaf.axes:
            continue
        if seen in varied:
            leaf.axes[axis] = fresh_size(leaf, axis, set())
        elif None in seen and any(_agree(seen, other) for other in varied):
            leaf.axes[axis] = fresh_size(leaf, axis, asked.optional)
    for leaf in arguments.leaves:
        without = [call.name for call in calls if leaf.keys not in call.tensors()]
        if without:
            arguments.notes.append(
                f"{', '.join(without)}: {leaf.path} is left out there, and is an input that every run of the file has to be given; "
                "export such a call to a file of its own"
            )


def _agree(seen: Sequence[int | None], other: Sequence[int | None]) -> bool:
    """True if a size that some calls lack differs among those that have it."""
    return all(size is None or size == its for size, its in zip(seen, other, strict=True))


def _refuse_others(arguments: Arguments, own: Tensors, call: Observed) -> None:
    tensors = call.tensors()
    further = [leaf for leaf in call.arguments.leaves if leaf.keys not in own]
    if further:
        left_out = [leaf.path for leaf in arguments.leaves if leaf.keys not in tensors]
        next_steps = [
            f"give the arguments of {call.name} as args: {further[0].path} is then an input that each run of the file is given",
            f"or export two files: one with the example arguments, one with those of {call.name}",
        ]
        if left_out:
            next_steps[0] = "give a call that has every tensor, as args or among the samples: its inputs are the file's"
        raise UserError(
            "E105",
            f"{call.name} has the tensor {further[0].path}, which the example arguments leave out",
            why=f"{call.name} leaves out {', '.join(left_out)}; no call has all of them" if left_out else "",
            next=next_steps,
        )
    for leaf in arguments.leaves:
        other = tensors.get(leaf.keys, leaf.tensor)
        if other.dtype != leaf.tensor.dtype or other.dim() != leaf.tensor.dim():
            what = "dtypes" if other.dtype != leaf.tensor.dtype else "ranks"
            raise UserError(
                "E105",
                f"the calls differ in {what} of {leaf.path}",
                why=f"{_described(other)} in {call.name}, {_described(leaf.tensor)} in the example arguments",
                next="give calls that one file can take: it has one dtype and one rank for each input",
            )
    _refuse_values(arguments, call)


def _refuse_values(arguments: Arguments, call: Observed) -> None:
    """Numbers, texts and the like are constants of the file. One that a call leaves out has its default, which may be equal."""
    others = dict(call.arguments.objects())
    for leaf in arguments.leaves:
        instead = others.get(ARGUMENT + "_".join(map(str, leaf.keys)))
        if instead is not None:
            raise UserError(
                "E105",
                f"{leaf.path} is {instead!r:.60} in {call.name}, a tensor in the example arguments",
                next="give a tensor there, or leave that call out",
            )
    for name, value in arguments.objects():
        other = others.get(name)
        if not isinstance(value, int | float | str) or other is None or (type(other) is type(value) and other == value):
            continue
        raise UserError(
            "E105",
            f"{name[1:]} is {other!r:.60} in {call.name}, {value!r:.60} in the example arguments",
            why="what is no tensor is a constant of the file",
            next="pass a tensor that the module computes with, or export a file for each value",
        )


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def refuse_broken(captured: Captured, arguments: Arguments, calls: Sequence[Observed]) -> None:
    """Raises UserError E105 where the graph is not for the sizes of one of the calls."""
    keys = {leaf.name: leaf.keys for leaf in arguments.leaves}
    for call in calls:
        shapes = {name: tuple(call.tensors()[key].shape) for name, key in keys.items() if key in call.tensors()}
        sizes = _sizes(captured, shapes)
        for broken in captured.broken_at(sizes):
            raise UserError(
                "E105",
                f"the file would not be for {call.name}: {broken.expression}",
                where=broken.where,
                why=", ".join(f"{name} is {sizes[name]} there" for name in sorted(broken.relation.symbols())),
                next="leave that call out, or export it to a file of its own",
            )
        for each in captured.inputs:
            for axis, size in enumerate(shapes.get(each.name, ())):
                _refuse_size(each.path, axis, each.info.dims[axis], size, sizes, call)


def _sizes(captured: Captured, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    names = {each.node: each.name for each in captured.inputs}
    found = {}
    for name, symbol in captured.symbols.items():
        shape = shapes.get(names.get(symbol.node, ""))
        if shape is not None and symbol.axis is not None:
            found[name] = shape[symbol.axis]
    return found


def _refuse_size(path: str, axis: int, dim: object, size: int, sizes: Mapping[str, int], call: Observed) -> None:
    if isinstance(dim, Dim) and not dim.symbols() <= sizes.keys():
        return
    wanted = dim.evaluate(sizes) if isinstance(dim, Dim) else dim
    if wanted != size:
        raise UserError(
            "E105",
            f"the file would not be for {call.name}: axis {axis} of {path} is {size} there",
            why=f"the module needs it to be {dim}" + (f", which is {wanted}" if isinstance(dim, Dim) else ""),
            next="leave that call out, or export it to a file of its own",
        )
