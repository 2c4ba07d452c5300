"""Scales and zero points of a file beside those of a module that PT2E quantized.

Codes that are a step off move what follows as far as a scale that is somewhat off: outputs say little about a scale. So
each that the file rounds with has to be one of the module's, and of those between the same weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
import torch

from fx2onnx.base.events import record
from fx2onnx.base.metadata import PRODUCER
from fx2onnx.judge.verdict import Row, Verdict
from fx2onnx.verify.arrays import to_numpy

Steps = tuple[float, int]
"""A scale in float32, and a zero point."""

_PER_TENSOR = frozenset(["quantize_per_tensor", "dequantize_per_tensor"])
_NAMESPACE = "quantized_decomposed"


def compare_steps(verdict: Verdict, model: onnx.ModelProto, folder: str, root: torch.nn.Module) -> None:
    """A row for each scale that is none of the module's, or of another place. Of files that others wrote a note."""
    with record("compare scales"):
        for name, problem in _differences(model, folder, root):
            if model.producer_name == PRODUCER:
                verdict.rows.append(Row.failed("scales", name, "weights", problem))
            else:
                verdict.note(f"{name}: {problem}")


def _differences(model: onnx.ModelProto, folder: str, root: torch.nn.Module) -> Iterator[tuple[str, str]]:
    modules = {
        f"{path}." if path else "": module
        for path, module in root.named_modules()
        if isinstance(module, torch.fx.GraphModule) and any(_steps_of(fx_node) for fx_node in module.graph.nodes)
    }
    if not modules:
        return
    own = {steps for module in modules.values() for steps in map(_steps_of, module.graph.nodes) if steps}
    among, by_place = _by_place(modules, model)
    for (name, steps), place in zip(_of_file(model, folder), of_file(model.graph, among), strict=True):
        if steps is None:
            continue
        said = f"the scale {steps[0]:.6g} with the zero point {steps[1]}"
        if steps not in own:
            yield name, f"no operator of the module has {said}"
        elif steps not in by_place.get(place, own):
            yield name, f"{said} is of another place: here the module has {_described(by_place[place])}"


def _by_place(
    modules: Mapping[str, torch.fx.GraphModule], model: onnx.ModelProto
) -> tuple[list[str], dict[Place, set[Steps]]]:
    """The weights that tell places, and what the module has at each. Nothing where not all reads are seen."""
    (prefix, module), *others = modules.items()
    calls = [fx_node for fx_node in module.graph.nodes if fx_node.op not in ("get_attr", "placeholder", "output")]
    is_hidden = any(each.type == onnx.AttributeProto.GRAPH for node in model.graph.node for each in node.attribute)
    if others or model.functions or is_hidden or hides_reads(module):
        return [], {}
    among = weights_that_tell(module, prefix, model.graph)
    found: dict[Place, set[Steps]] = {}
    for fx_node, place in zip(calls, of_module(module, prefix, among), strict=True):
        steps = _steps_of(fx_node)
        if steps:
            found.setdefault(place, set()).add(steps)
    return among, found


def _described(steps: Iterable[Steps]) -> str:
    return " and ".join(f"{scale:.6g} with {zero}" for scale, zero in sorted(steps))


def _steps_of(fx_node: torch.fx.Node) -> Steps | None:
    schema = getattr(fx_node.target, "_schema", None)
    if schema is None or schema.name.split("::")[0] != _NAMESPACE or schema.name.split("::")[1] not in _PER_TENSOR:
        return None
    scale, zero = fx_node.args[1:3]
    if not isinstance(scale, (int, float)) or not isinstance(zero, (int, float)):
        return None
    return float(np.float32(scale)), int(zero)


def _of_file(model: onnx.ModelProto, folder: str) -> Iterator[tuple[str, Steps | None]]:
    """The name of the result of each node, and for those that round to quantized values, or back, by constants, the steps."""
    held = {value.name: value for value in model.graph.initializer}

    def number(name: str) -> float | None:
        array = ir.serde.deserialize_tensor(held[name], folder).numpy() if name in held else None
        return float(array) if array is not None and not array.ndim else None

    for node in model.graph.node:
        steps = None
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and not node.domain:
            scale = number(node.input[1])
            zero = number(node.input[2]) if len(node.input) > 2 and node.input[2] else 0.0
            steps = (scale, int(zero)) if scale is not None and zero is not None else None
        yield node.output[0], steps


Place: TypeAlias = tuple[int, int]
"""The weights behind which it is, and those before which; a bit for each, the lowest for the graph's inputs or outputs."""

_CONSTANT = -1
"""A number before any step, for a constant, which is made of weights alone."""
_TURNED = ".T"
_SIZES = frozenset(["Shape", "Size", "aten::sym_size", "aten::sym_numel", "aten::size"])


@dataclass(frozen=True, slots=True)
class Use:
    """A node: the values that it reads and makes, by name."""

    reads: Sequence[str]
    makes: Sequence[str]
    is_of_sizes: bool = False
    """True if its outputs are only sizes of its inputs."""


def places(
    uses: Sequence[Use], weights: Mapping[str, str], outputs: Collection[str], among: Sequence[str]
) -> Iterator[Place]:
    """The place of each node, which come in the order of their reading.

    ``weights``: by value, the weight that it is, or "" for a constant that is none. ``among``: the weights that tell places.
    """
    bits = {name: 2 << place for place, name in enumerate(among)}
    constants = {value: bits.get(name, 0) for value, name in weights.items()}
    behind: dict[str, int] = {}
    own: list[int] = []
    for use in uses:
        data = [value for value in use.reads if value not in constants]
        own.append(_union(constants.get(value, 0) for value in use.reads))
        if not data or use.is_of_sizes:
            constants |= dict.fromkeys(use.makes, 0 if data else own[-1])
        else:
            behind |= dict.fromkeys(use.makes, own[-1] or _union(behind.get(value, 1) for value in data))
    before = dict.fromkeys(outputs, 1)
    for use, read in zip(reversed(uses), reversed(own), strict=True):
        ahead = read or _union(before.get(value, 0) for value in use.makes)
        for value in () if use.is_of_sizes else use.reads:
            before[value] = before.get(value, 0) | ahead
    for use, read in zip(uses, own, strict=True):
        is_constant = all(value in constants for value in use.makes)
        yield (
            (read, _CONSTANT)
            if is_constant
            else (behind[use.makes[0]], _union(before.get(value, 0) for value in use.makes))
        )


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def of_file(graph: onnx.GraphProto, among: Sequence[str]) -> Iterator[Place]:
    known = set(among)
    weights = {
        value.name: next((name for name in (value.name, value.name.removesuffix(_TURNED)) if name in known), "")
        for value in graph.initializer
    }
    uses = [
        Use([name for name in node.input if name], list(node.output), not node.domain and node.op_type in _SIZES)
        for node in graph.node
    ]
    return places(uses, weights, [value.name for value in graph.output], among)


def of_module(module: torch.fx.GraphModule, prefix: str, among: Sequence[str]) -> Iterator[Place]:
    """The places of the graph's calls, in order. What is written in place is read from the call that wrote it last."""
    known = set(among)
    written: dict[str, str] = {}
    weights: dict[str, str] = {}
    uses: list[Use] = []
    outputs: list[str] = []
    for fx_node in module.graph.nodes:
        reads = [_last(each.name, written) for each in fx_node.all_input_nodes]
        if fx_node.op == "get_attr":
            name = prefix + str(fx_node.target)
            weights[fx_node.name] = name if name in known else ""
        elif fx_node.op == "output":
            outputs = reads
        elif fx_node.op != "placeholder":
            schema = getattr(fx_node.target, "_schema", None)
            uses.append(Use(reads, [fx_node.name], schema is not None and schema.name in _SIZES))
            written |= {each.name: fx_node.name for each in written_by(fx_node)}
    return places(uses, weights, outputs, among)


def _last(name: str, written: Mapping[str, str]) -> str:
    while name in written:
        name = written[name]
    return name


def written_by(fx_node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments that a call writes in place."""
    schema = getattr(fx_node.target, "_schema", None)
    return [
        each
        for each, argument in zip(fx_node.args, schema.arguments if schema is not None else (), strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(each, torch.fx.Node)
    ]


def hides_reads(module: torch.fx.GraphModule) -> bool:
    """Return whether what a call writes in place may be read through another tensor: a view of it, or what it is a view of."""
    written = {each for fx_node in module.graph.nodes for each in written_by(fx_node)}
    return any(map(_is_view, written)) or any(_is_view(user) for each in written for user in each.users)


def _is_view(fx_node: torch.fx.Node) -> bool:
    schema = getattr(fx_node.target, "_schema", None)
    aliases = [each.alias_info for each in schema.returns] if schema is not None else []
    return any(each is not None and not each.is_write for each in aliases)


def weights_that_tell(module: torch.fx.GraphModule, prefix: str, graph: onnx.GraphProto) -> list[str]:
    """Weights of the module that the file has, too, under their own names, and that no other is equal to."""
    held = {value.name.removesuffix(_TURNED) for value in graph.initializer} | {
        value.name for value in graph.initializer
    }
    tensors = {
        prefix + name: tensor
        for each in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
        for name, tensor in each
        if tensor.dim() >= 2 and not tensor.is_quantized and tensor.layout == torch.strided
    }
    digests = {name: hash((tensor.shape, tensor.dtype, to_numpy(tensor).tobytes())) for name, tensor in tensors.items()}
    counts = Counter(digests.values())
    return [name for name, digest in digests.items() if counts[digest] == 1 and name in held]
