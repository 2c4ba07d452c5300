"""Models of one operator, or of a few, in shapes that people's files have, for ``benchmarks.runner_sweep``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fx2onnx.semantics.kernels.threads import multiply

OPSET = 20
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Given:
    """An operand: fed at each run, or a constant of the model."""

    array: np.ndarray
    is_const: bool = False


@dataclass(frozen=True)
class Case:
    """A model with its feeds."""

    label: str
    kind: str
    """``operator``, ``small`` (nodes of a few elements), ``model`` or ``zoo`` (a whole published model)."""
    model: bytes | str
    """A file's content, or its path."""
    feeds: dict[str, np.ndarray]
    nodes: int = 1
    least: Callable[[], None] | None = None
    """The fewest NumPy calls that the model needs, which no plan can do without."""


def values(dtype: str, dims: Sequence[int], low: float = -1.0, high: float = 1.0) -> np.ndarray:
    """Seeded values: of the whole range for integers of 8 bits, small for other integers."""
    rng = np.random.default_rng(sum(dims))
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.random(dims) < 0.5
    if kind.kind in "iu":
        least, most = (np.iinfo(kind).min, np.iinfo(kind).max) if kind.itemsize == 1 else (int(low), int(high))
        return rng.integers(least, most + 1, dims).astype(kind)
    return rng.uniform(low, high, dims).astype(kind)


def f(*dims: int, low: float = -1.0, high: float = 1.0) -> Given:
    return Given(values("float32", dims, low, high))


def w(*dims: int) -> Given:
    return Given(values("float32", dims) * np.float32(0.2), True)


def fed(dtype: str, *dims: int, low: float = 0, high: float = 100) -> Given:
    return Given(values(dtype, dims, low, high))


def const(dtype: str, *dims: int, low: float = 0, high: float = 100) -> Given:
    return Given(values(dtype, dims, low, high), True)


def c(value: Any, dtype: str = "float32") -> Given:
    return Given(np.asarray(value, dtype), True)


def proto(array: np.ndarray, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def model_of(nodes: Sequence[onnx.NodeProto], operands: dict[str, Given], outputs: Sequence[str], opset: int) -> bytes:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.array.dtype), one.array.shape)
        for name, one in operands.items()
        if not one.is_const
    ]
    made = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    weights = [proto(one.array, name) for name, one in operands.items() if one.is_const]
    graph = helper.make_graph(list(nodes), "g", inputs, made, weights)
    imports = [helper.make_opsetid(name, since) for name, since in (("", opset), (MICROSOFT, 1), ("ai.onnx.ml", 3))]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return bytes(model.SerializeToString())


def one(
    label: str, op: str, *given: Given | None, n: int = 1, domain: str = "", opset: int = OPSET, **attrs: Any
) -> Case:
    """A case of one node."""
    names = [f"x{place}" if item is not None else "" for place, item in enumerate(given)]
    outputs = [f"y{place}" for place in range(n)]
    node = helper.make_node(op, names, outputs, domain=domain, **attrs)
    operands = {name: item for name, item in zip(names, given, strict=True) if item is not None}
    feeds = {name: item.array for name, item in operands.items() if not item.is_const}
    dims = " ".join("x".join(map(str, item.array.shape)) or "()" for item in given[:2] if item is not None)
    return Case(f"{label or op} {dims}", "operator", model_of([node], operands, outputs, opset), feeds)


class Builder:
    """Collects the nodes of a model of several."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.operands: dict[str, Given] = {}

    def give(self, item: Given) -> str:
        name = f"x{len(self.operands)}"
        self.operands[name] = item
        return name

    def add(self, op: str, *inputs: str | Given, n: int = 1, domain: str = "", **attrs: Any) -> Any:
        names = [item if isinstance(item, str) else self.give(item) for item in inputs]
        outputs = [f"v{len(self.nodes)}_{place}" for place in range(n)]
        self.nodes.append(helper.make_node(op, names, outputs, domain=domain, **attrs))
        return outputs[0] if n == 1 else outputs

    def case(
        self, label: str, outputs: Sequence[str], kind: str = "model", least: Callable[[], None] | None = None
    ) -> Case:
        feeds = {name: item.array for name, item in self.operands.items() if not item.is_const}
        model = model_of(self.nodes, self.operands, outputs, OPSET)
        return Case(label, kind, model, feeds, len(self.nodes), least)


def small_graphs() -> Iterator[Case]:
    for size in (1, 64):
        b = Builder()
        x = b.give(f(1, size))
        for _ in range(10):
            x = b.add("Mul", b.add("Add", x, w(1, size)), w(1, size))
            x = b.add("Tanh", b.add("Relu", x))
        yield b.case(f"40 element-wise nodes of {size}", [x], "small")
    b = Builder()
    x = b.give(f(1, 16, 96))
    for _ in range(6):  # openWakeWord's classifier
        x = b.add("Reshape", x, c([1, -1], "int64"))
        x = b.add("Gemm", x, w(32, 32) if b.nodes[1:] else w(1536, 32), w(32))
        x = b.add("Relu", b.add("LayerNormalization", x, w(32), w(32)))
    yield b.case("wake word classifier", [b.add("Sigmoid", x)], "small")


def least_of_recurrence(steps: int, hidden: int) -> Callable[[], None]:
    """Eight calls for each step of an LSTM: the product, its sum with the input, tanh of all gates, and what makes the states of them."""
    h, r, gates = (
        values("float32", (1, hidden)),
        values("float32", (hidden, 4 * hidden)),
        values("float32", (4 * hidden,)),
    )
    line, state = gates.reshape(1, -1), h.copy()

    def run() -> None:
        for _ in range(steps):
            h.dot(r, line)
            np.add(line, line, line)
            np.tanh(line, line)
            np.multiply(gates[:hidden], h, state)
            np.multiply(gates[hidden : 2 * hidden], h, state)
            np.add(state, state, state)
            np.tanh(state, state)
            np.multiply(h, state, state)

    return run


def least_of_products(times: int, *shapes: tuple[int, int, int]) -> Callable[[], None]:
    """The products of float32 alone, [rows, inner] @ [inner, columns], as the runner cuts them."""
    operands = [
        (values("float32", (m, k)), values("float32", (k, n)), np.empty((m, n), np.float32)) for m, k, n in shapes
    ]

    def run() -> None:
        for a, b, y in operands * times:
            multiply(a, b, y)

    return run


def model_graphs() -> Iterator[Case]:
    """Like the files that packages ship: a voice detector, tracking in music, spelling in int8."""
    b = Builder()
    x = b.add("Pad", b.give(f(1, 576)), c([0, 0, 0, 64], "int64"), mode="reflect")
    x = b.add("Unsqueeze", x, c([1], "int64"))
    spectrum = b.add("Conv", x, w(258, 1, 256), strides=[128])
    parts = [
        b.add("Slice", spectrum, c([start], "int64"), c([start + 129], "int64"), c([1], "int64")) for start in (0, 129)
    ]
    power = b.add("Add", *(b.add("Pow", part, c(2.0)) for part in parts))
    x = b.add("Sqrt", power)
    for ins, outs, stride in ((129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)):
        x = b.add("Relu", b.add("Conv", x, w(outs, ins, 3), w(outs), pads=[1, 1], strides=[stride]))
    x = b.add("Transpose", x, perm=[2, 0, 1])
    state = b.give(f(2, 1, 128))
    h0, c0 = (b.add("Slice", state, c([k], "int64"), c([k + 1], "int64"), c([0], "int64")) for k in (0, 1))
    lstm = b.add("LSTM", x, w(1, 512, 128), w(1, 512, 128), w(1, 1024), "", h0, c0, n=3, hidden_size=128)
    x = b.add("Relu", b.add("Transpose", b.add("Squeeze", lstm[0], c([1], "int64")), perm=[1, 2, 0]))
    x = b.add("Sigmoid", b.add("Conv", x, w(1, 128, 1), w(1)))
    out = b.add("ReduceMean", x, c([2], "int64"))
    yield b.case("voice detector, 32 ms", [out, b.add("Concat", lstm[1], lstm[2], axis=0)])

    b = Builder()
    x = b.give(f(100, 1, 120))
    for ins in (120, 50, 50):
        y = b.add("LSTM", x, w(2, 100, ins), w(2, 100, 25), w(2, 200), hidden_size=25, direction="bidirectional")
        x = b.add("Reshape", b.add("Transpose", y, perm=[0, 2, 1, 3]), c([0, 0, -1], "int64"))
    out = b.add("Sigmoid", b.add("MatMul", x, w(50, 1)))
    yield b.case("beat tracker, 100 frames", [out], least=least_of_recurrence(300, 50))  # both directions in one call

    b = Builder()
    x = b.give(f(1, 20, 256))
    for _ in range(3):
        for ins, outs in ((256, 1024), (1024, 256)):
            codes, scale, zero = b.add("DynamicQuantizeLinear", x, n=3)
            product = b.add("MatMulInteger", codes, const("int8", ins, outs), zero, c(0, "int8"))
            factor = b.add("Mul", scale, c(0.01))
            y = b.add("Add", b.add("Mul", b.add("Cast", product, to=TensorProto.FLOAT), factor), w(outs))
            x = b.add("Relu", y) if outs == 1024 else b.add("LayerNormalization", y, w(256), w(256))
    yield b.case("speller in int8, 20 characters", [x], least=least_of_products(3, (20, 256, 1024), (20, 1024, 256)))


ZOO: dict[str, dict[str, int]] = {
    "bert_base_mlm": {"seq": 128}, "gpt2": {"seq": 128}, "t5_small": {"seq": 128}, "vit_b_16": {}, "resnet50": {},
    "mobilenet_v3_large": {},
}  # fmt: skip
"""Published models at batch 1, with the lengths of their texts; their weights are random."""


def zoo_models(folder: Path, names: Sequence[str]) -> Iterator[Case]:
    """Each named model, exported into ``folder`` if it is not there."""
    for name in names:
        from fx2onnx import export
        from models_zoo.registry import build

        source = build(name, batch=1, **ZOO[name])
        path = folder / f"{name}.onnx"
        if not path.exists():
            export(source.module, source.args, path, kwargs=source.kwargs, dynamic_shapes=source.dynamic_shapes)
        given = [value.numpy() for value in (*source.args, *source.kwargs.values())]
        inputs = onnx.load(path, load_external_data=False).graph.input
        feeds = {info.name: array for info, array in zip(inputs, given, strict=True)}
        yield Case(f"{name} {' '.join(f'{k} {v}' for k, v in ZOO[name].items())}".strip(), "zoo", str(path), feeds)
