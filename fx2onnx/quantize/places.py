"""The weights of a graph that can be quantized, and the way in which their readers take them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from fx2onnx.optimize.rewrite import attribute, static_dims
from fx2onnx.optimize.weights import ArrangedTensor, ScaledTensor, is_literal, lacks_data
from fx2onnx.quantize.options import LEAST_BLOCK, Quantize
from fx2onnx.quantize.schemes import SCHEMES, Array
from fx2onnx.quantize.weights import RowWeight, parts_of, unfolded
from fx2onnx.targets.form import Target
from fx2onnx.targets.match import has_kernel, word_of

D = ir.DataType
DOMAIN = "com.microsoft"
LEAST_NUMBERS = 1024
"""The number of elements below which the scale and the further node of a weight are more than what is saved."""
IN_FLOAT32, IN_INT8 = 1, 4
"""``accuracy_level`` of MatMulNBits. Left to itself (0), onnxruntime may round what is multiplied to 8 bits as well."""
EXPERT_WEIGHTS = (2, 4)
"""Inputs of MoE."""
RECURRENT = ("LSTM", "GRU", "RNN")
TURNS = {"turns turned": frozenset({"matmul", "gemm turned"}), "turns": frozenset({"turned", "gemm"})}
"""The way of a Scan, by those in which its body takes the weight of a turn."""
FLOATS = frozenset({D.FLOAT, D.FLOAT16, D.BFLOAT16})


@dataclass(frozen=True, eq=False)
class WeightPlace:
    """A weight and the nodes that read it, all in one way or as a table."""

    value: ir.Value
    weight: RowWeight
    readers: tuple[tuple[str, ir.Node], ...]
    """The way in which each reader takes the weight: ``matmul``, ``gemm``, ``turned`` (a Transpose before a product),
    ``conv``, ``gather``, ``recurrent`` (LSTM, GRU, RNN), ``experts`` (MoE), ``turns`` (a Scan with a product of one weight a turn)."""
    is_product: bool
    """True if onnxruntime's own product takes it."""
    accuracy: int = IN_FLOAT32
    """``accuracy_level`` of that product."""

    @property
    def name(self) -> str:
        return self.weight.name


COMPUTED = "it is computed from other weights"
MAKE_PLAIN = "make it a weight of the module: torch.nn.utils.parametrize.remove_parametrizations, or prune.remove"


@dataclass(frozen=True)
class QuantizationPlan:
    """The weights to quantize, and why others are not."""

    places: list[WeightPlace]
    kept: dict[str, str]


def planned(
    model: ir.Model, options: Quantize, target: Target, known: Collection[str] | None = None
) -> QuantizationPlan:
    """The weights that ``options`` ask for; of others, by name, why they stay. ``known``: names of weights that may change."""
    places: list[WeightPlace] = []
    kept: dict[str, str] = {}
    repeated = _graphs_that_repeat(model.graph)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or is_literal(tensor) or tensor.dtype not in FLOATS:
            continue
        found = _place(value, options, target, repeated, known)
        if isinstance(found, WeightPlace):
            places.append(found)
        elif found:
            kept[unfolded(tensor)[0].name or value.name or ""] = found
    return QuantizationPlan([_paired(place, places) for place in places], kept)


def _paired(place: WeightPlace, places: Collection[WeightPlace]) -> WeightPlace:
    """The place; of experts no product where the other weight of a node is none: QMoE takes both as codes."""
    nodes = [node for way, node in place.readers if way == "experts"]
    if not place.is_product or not nodes:
        return place
    others = {
        id(node): other for other in places if other is not place and other.is_product for _, node in other.readers
    }
    return place if all(id(node) in others for node in nodes) else replace(place, is_product=False)


def _graphs_that_repeat(graph: ir.Graph, inside: bool = False) -> set[ir.Graph]:
    """Bodies of Loop and Scan, and branches inside: what is made of codes there is made in every turn."""
    found = {graph} if inside else set()
    for node in graph:
        for each in node.attributes.values():
            if each.type == ir.AttributeType.GRAPH:
                found |= _graphs_that_repeat(each.as_graph(), inside or node.op_type != "If")
    return found


def _place(
    value: ir.Value, options: Quantize, target: Target, repeated: Collection[ir.Graph], known: Collection[str] | None
) -> WeightPlace | str:
    """The place, or why it is none; empty where nobody would expect it to be one (biases, norms)."""
    assert value.const_value is not None
    tensor = value.const_value
    sizes = static_dims(value)
    if sizes is None or len(sizes) < 2 or tensor.size < LEAST_NUMBERS:
        return ""
    source, perm, scaled = unfolded(tensor)
    parts = parts_of(source)
    if any(options.is_excluded(part.name or "") for part in parts):
        return "excluded"
    if value.is_graph_output() or value.is_graph_input():
        return "it is an input or output"
    graphs = {node.graph for node, _ in value.uses()}
    if len(graphs) > 1 or graphs & set(repeated):
        return "it is read in a loop, or in several branches"
    readers = [(_way(node, index, sizes), node) for node, index in value.uses()]
    ways = {way for way, _ in readers}
    if "" in ways:
        first = next(node for way, node in readers if not way)
        is_bias = first.op_type in ("Add", "Mul", "Sub", "Div", *RECURRENT)
        return "" if is_bias else f"{first.op_type} reads it"
    if "gather" in ways and not options.embeddings:
        return "rows are picked from it (embeddings)"
    if known is not None and any(part.name not in known for part in parts):
        return COMPUTED
    row = _rows(sizes, ways)
    if row is None:
        return "its readers take it in different ways"
    if isinstance(source, ArrangedTensor) and (perm is not None or row.turn is not None or row.sizes[-1] != sizes[-1]):
        return COMPUTED
    if row.sizes[-1] < LEAST_BLOCK:
        return f"its rows have {row.sizes[-1]} numbers"
    if row.sizes[-1] >= LEAST_SAMPLES and not lacks_data(source) and _is_transform(source, perm, row):
        return "its rows are waves: a fixed transform, such as that of a spectrum"
    if scaled is not None and not (ways == {"conv"} and scaled.view == sizes):
        return "a folded normalization scales its columns"
    is_product = _is_product(options, target, ways, sizes, tensor.dtype)
    if ways & TURNS.keys() and not is_product and SCHEMES[options.kind].bits < 8:
        return "onnxruntime's Scan takes no weights of 4 bits apart"
    asked = options.columns_of_block
    if options.kind == "float8" and "gather" in ways:
        asked = 0  # rows are picked as another dtype, which DequantizeLinear has no blocks of
    block = asked if is_product and asked else min(asked or row.sizes[-1], row.sizes[-1])
    if options.kind == "nf4" and row.sizes[-1] % block:
        is_product, block = False, _whole_block(row.sizes[-1], block)
    if not block:
        return f"its rows of {row.sizes[-1]} numbers are no whole blocks of {LEAST_BLOCK} to {asked}"
    weight = RowWeight(
        source,
        _composed(perm, row.turn, len(sizes)),
        row.sizes,
        SCHEMES[options.kind],
        block,
        None if scaled is None else _factor(scaled),
        () if scaled is None else scaled.sources[1:],
    )
    return WeightPlace(value, weight, tuple(readers), is_product, _accuracy(options, target))


def _accuracy(options: Quantize, target: Target) -> int:
    rounds = options.activations == "int8" or (options.activations == "auto" and target.runtime == "onnxruntime-genai")
    return IN_INT8 if rounds else IN_FLOAT32


def _whole_block(columns: int, most: int) -> int:
    """The largest block that rows are whole multiples of; 0 for none."""
    return next((block for block in range(most, LEAST_BLOCK - 1, -1) if columns % block == 0), 0)


def _is_product(
    options: Quantize, target: Target, ways: set[str], sizes: tuple[int, ...], dtype: ir.DataType | None
) -> bool:
    """Return whether the weight is for onnxruntime's own product, which the target has."""
    block = options.columns_of_block
    if ways == {"experts"}:
        return _is_experts(options, target, block, sizes, dtype)
    if ways & TURNS.keys():
        sizes = sizes[1:] if options.kind != "nf4" else ()  # MatMulBnb4 takes constants alone
    if options.format == "qdq" or len(sizes) != 2 or "conv" in ways or ways == {"gather"}:
        return False
    if block < LEAST_BLOCK or block & (block - 1) or ("gather" in ways and sizes[1] % (2 * block)):
        return False  # a table is taken apart in whole blocks, its zero points in whole bytes
    if SCHEMES[options.kind].product_bits and ("gather" in ways or not _has_two_bits(target)):
        return False
    if options.format == "auto" and options.kind in ("int8", "nf4", "float8"):
        return False
    op_type, word = ("MatMulBnb4" if options.kind == "nf4" else "MatMulNBits"), word_of(dtype)
    return target.rows is not None and has_kernel(target.name, DOMAIN, op_type, 1, ((word, "uint8", word), (word,)))


def _has_two_bits(target: Target) -> bool:
    """Return whether the target's product takes codes of 2 bits, as onnxruntime 1.31 does; older releases were not tried."""
    return tuple(int(part) for part in target.release.split(".") if part.isdigit()) >= (1, 31)


def _is_experts(
    options: Quantize, target: Target, block: int, sizes: tuple[int, ...], dtype: ir.DataType | None
) -> bool:
    """Return whether the weights of experts are for QMoE: of 8 bits in rows (blocks would round what is multiplied to 8 bits, too)."""
    is_whole = not block or (block >= LEAST_BLOCK and not block & (block - 1) and sizes[-1] % block == 0)
    is_kind = options.kind in ("int4", "uint4") or (options.kind == "int8" and not block)
    if options.format == "qdq" or not is_whole or not is_kind or sizes[-1] % 2 or sizes[-2] % 2:
        return False
    word = word_of(dtype)
    inputs = (word, word, "uint8", word, word, "uint8", word, word)
    return target.rows is not None and has_kernel(target.name, DOMAIN, "QMoE", 1, (inputs, (word,)))


def has_product(target: Target) -> bool:
    """Return whether the target has the products that ``--format matmulnbits`` is of, for some dtype."""
    return target.rows is not None and bool(target.kernels(DOMAIN, "MatMulNBits"))


def _way(node: ir.Node, index: int, sizes: tuple[int, ...]) -> str:
    """The way in which the node takes its input ``index`` of these sizes; empty where it cannot take a quantized
    one."""
    if (node.domain, node.op_type) == (DOMAIN, "MoE") and index in EXPERT_WEIGHTS:
        return "experts"
    op_type = node.op_type if not node.domain else ""
    if op_type == "MatMul" and index == 1 and len(sizes) in (2, 3):
        return "matmul"
    if op_type == "Gemm" and index == 1 and attribute(node, "alpha", 1.0) == 1.0:
        return "gemm" if attribute(node, "transB", 0) else "gemm turned"
    if op_type == "Transpose" and len(sizes) == 2 and attribute(node, "perm", [1, 0]) == [1, 0]:
        read = [(reader.op_type, place) for reader, place in node.outputs[0].uses()]
        return "turned" if read and all(each == ("MatMul", 1) for each in read) else ""
    if op_type == "Conv" and index == 1:
        return "conv"
    if op_type in RECURRENT and index in (1, 2):
        return "recurrent"
    if op_type == "Gather" and index == 0 and attribute(node, "axis", 0) == 0 and len(sizes) == 2:
        rows = node.inputs[1]
        return "gather" if rows is not None and rows.shape is not None else ""
    if op_type == "Scan" and len(sizes) == 3:
        within = {way for way, _ in readers_in_turns(node, index)}
        return next((way for way, known in TURNS.items() if within and within <= known), "")
    return ""


def readers_in_turns(node: ir.Node, index: int) -> list[tuple[str, ir.Node]]:
    """The nodes in the body of a Scan that read what a turn has of its input ``index``, and how; none where it is a state."""
    body, count = node.attributes["body"].as_graph(), node.attributes["num_scan_inputs"].as_int()
    inner = body.inputs[index]
    has_order = any(name in node.attributes for name in ("scan_input_axes", "scan_input_directions"))
    sizes = static_dims(inner)
    if index < len(node.inputs) - count or has_order or inner.is_graph_output() or sizes is None:
        return []
    return [(_way(each, place, sizes) if each.graph is body else "", each) for each, place in inner.uses()]


@dataclass(frozen=True)
class _Rows:
    sizes: tuple[int, ...]
    turn: tuple[int, ...] | None


def _rows(sizes: tuple[int, ...], ways: set[str]) -> _Rows | None:
    """The sizes with the reduced axis last, and the order of axes that makes them so."""
    if ways == {"conv"}:
        return _Rows((sizes[0], math.prod(sizes[1:])), None)
    if ways == {"recurrent"}:
        return _Rows((math.prod(sizes[:-1]), sizes[-1]), None)
    if ways <= {"matmul", "gemm turned"}:
        turn = (1, 0) if len(sizes) == 2 else (0, 2, 1)
        return _Rows(tuple(sizes[axis] for axis in turn), turn)
    if ways == {"turns turned"}:
        return _Rows((sizes[0], sizes[2], sizes[1]), (0, 2, 1))
    plain = ways <= {"gemm", "turned", "gather"} or ways in ({"experts"}, {"turns"})
    return _Rows(sizes, None) if plain else None


LEAST_SAMPLES, ROWS_LOOKED_AT, BINS_OF_WAVE = 32, 16, 6
"""The least length of rows for telling waves, the number of rows that are looked at, and the number of frequencies
among which a windowed wave is spread."""


def _is_transform(source: ir.TensorProtocol, perm: tuple[int, ...] | None, row: _Rows) -> bool:
    """Return whether rows all over the weight are windowed waves of different frequencies. What is learnt has many frequencies in a row."""
    array = source.numpy()
    array = array if perm is None else array.transpose(perm)
    array = array if row.turn is None else array.transpose(row.turn)
    indices = np.linspace(0, math.prod(array.shape[:-1]) - 1, ROWS_LOOKED_AT).astype(int)
    if row.sizes[-1] == array.shape[-1]:
        chosen = array[np.unravel_index(indices, array.shape[:-1])]
    else:
        chosen = array.reshape(row.sizes)[np.linspace(0, row.sizes[0] - 1, ROWS_LOOKED_AT).astype(int)]
    rows = np.asarray(chosen, np.float32)
    largest = np.abs(rows).max(axis=-1)
    rows = rows[largest > 1e-6 * largest.max()]  # sines of frequency 0 are nothing but rounding
    if len(rows) < ROWS_LOOKED_AT // 2:
        return False
    power = np.abs(np.fft.rfft(rows)) ** 2
    share = np.sort(power, axis=-1)[:, -BINS_OF_WAVE:].sum(axis=-1) / power.sum(axis=-1)
    peaks = np.unique(power.argmax(axis=-1))
    return bool((share >= 0.9).all() and len(peaks) >= 0.4 * len(rows))


def _composed(first: tuple[int, ...] | None, then: tuple[int, ...] | None, rank: int) -> tuple[int, ...] | None:
    """One order of axes for two after each other; None where it changes nothing."""
    axes = tuple(range(rank))
    order = axes if first is None else first
    order = order if then is None else tuple(order[axis] for axis in then)
    return None if order == axes else order


def _factor(scaled: ScaledTensor) -> Callable[[], Array]:
    return lambda: scaled.factor(*(source.numpy() for source in scaled.sources[1:]))
