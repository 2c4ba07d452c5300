"""Modules that PyTorch's eager quantisation has made: QuantizeLinear and DequantizeLinear, within one step of PyTorch."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.ao.nn.quantized as nnq
import torch.ao.nn.quantized.dynamic as nnqd
from torch import nn
from torch.ao import quantization as ao

import fx2onnx
from fx2onnx import verify
from fx2onnx.base.errors import UserError
from tests import support

warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")
pytestmark = pytest.mark.filterwarnings("ignore")
Q = torch.ops.quantized
Maker = Callable[[], tuple[nn.Module | Callable[..., Any], tuple[torch.Tensor, ...]]]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    engine = torch.backends.quantized.engine
    torch.manual_seed(0)
    yield
    torch.backends.quantized.engine = engine


def converted(module: nn.Module, *sample: torch.Tensor, qconfig: Any = None) -> nn.Module:
    """``module`` between QuantStub and DeQuantStub, calibrated on the sample, in its quantised form."""
    whole = ao.QuantWrapper(module.eval()).eval()
    whole.qconfig = ao.get_default_qconfig("x86") if qconfig is None else qconfig  # type: ignore[assignment]
    prepared = ao.prepare(whole)
    with torch.no_grad():
        prepared(*sample)
    return ao.convert(prepared)  # type: ignore[no-any-return]


def steps_of(output: torch.Tensor) -> float:
    """The least difference of its numbers that is no rounding: the step of a quantised tensor's numbers."""
    gaps = np.diff(np.unique(output.detach().double().numpy()))
    gaps = gaps[gaps > 1e-6 * max(float(output.abs().max()), 1e-6)]
    return float(gaps.min()) if gaps.size else 1.0


def check(
    module: Any, args: tuple[torch.Tensor, ...], allowed: float = 1.01, often: float = 0.2, **more: Any
) -> Counter[str]:
    """Both engines give what PyTorch gives, up to ``allowed`` steps of the output in the share ``often`` of its numbers: PyTorch's
    kernels round averages and exact halves otherwise."""
    result = fx2onnx.export(module, args, **more)
    with torch.no_grad():
        want = support.flat(module(*args))
    step = steps_of(torch.from_numpy(want[0]))
    for engine, found in support.run_engines(result.model_proto, args).items():
        for wanted, got in zip(want, found, strict=True):
            assert got.shape == wanted.shape
            assert got.dtype == wanted.dtype
            assert np.abs(got.astype(np.float64) - wanted).max() <= allowed * step, engine
            assert np.mean(np.abs(got.astype(np.float64) - wanted) > 0.1 * step) <= often, engine
    return Counter(node.op_type for node in result.model.graph)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 17)),
    "conv2d": (lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), padding=(1, 0), dilation=(1, 2), groups=2), (2, 4, 9, 11)),
    "conv2d without a bias": (lambda: nn.Conv2d(3, 5, 3, bias=False), (1, 3, 8, 8)),
    "conv3d": (lambda: nn.Conv3d(3, 4, 2, padding=1), (1, 3, 5, 6, 7)),
    "linear": (lambda: nn.Linear(24, 13), (5, 24)),
    "linear of three axes": (lambda: nn.Linear(24, 13), (2, 5, 24)),
    "batch norm": (lambda: nn.BatchNorm2d(4), (2, 4, 5, 6)),
    "hardswish": (nn.Hardswish, (3, 40)),
    "elu": (lambda: nn.ELU(1.3), (3, 40)),
    "leaky relu": (lambda: nn.LeakyReLU(0.2), (3, 40)),
    "sigmoid": (nn.Sigmoid, (3, 40)),
    "layer norm": (lambda: nn.LayerNorm(20), (3, 20)),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), (2, 4, 6, 7)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 6, 7)),
    "relu6": (nn.ReLU6, (3, 40)),
    "max pool, flatten": (lambda: nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.ReLU()), (2, 3, 6, 8)),
    "average pool": (lambda: nn.Sequential(nn.AvgPool2d(2), nn.AdaptiveAvgPool2d((2, 1))), (2, 3, 8, 8)),
    "pixel shuffle": (lambda: nn.PixelShuffle(2), (1, 8, 4, 4)),
    "upsample": (lambda: nn.Upsample(scale_factor=2), (1, 3, 4, 5)),
    "in place": (lambda: nn.Sequential(nn.Conv1d(4, 4, 1), nn.ReLU6(inplace=True), nn.Hardtanh(-1, 1, inplace=True)), (2, 4, 9)),
    "tanh": (lambda: nn.Tanh(), (3, 40)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    make, sizes = LAYERS[name]
    x = 2 * torch.randn(sizes)
    module = make()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_var, 0.5, 2)  # type: ignore[arg-type]
            nn.init.normal_(part.weight)
    names = check(converted(module, x), (x,))
    assert names["QuantizeLinear"] >= 1
    assert not set(names) & {"Round", "Clip", "Cast", "Sub"} or name in ("relu6", "in place")


TURNED = {"conv_transpose1d": (nn.ConvTranspose1d(4, 6, 3, 2, 1, 1), (2, 4, 9)), "conv_transpose2d": (nn.ConvTranspose2d(4, 6, 3, 2, groups=2), (1, 4, 5, 6))}  # fmt: skip


@pytest.mark.parametrize("name", TURNED)
def test_transposed_convolutions(name: str) -> None:
    torch.backends.quantized.engine = "qnnpack"
    module, sizes = TURNED[name]
    x = torch.randn(sizes)
    assert check(converted(module, x, qconfig=ao.get_default_qconfig("qnnpack")), (x,))["ConvTranspose"] == 1


FUSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = {
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.ReLU()), (2, 4, 9), ["0", "1"]),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()), (2, 4, 9, 7), ["0", "1", "2"]),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(4, 6, 2), nn.ReLU()), (1, 4, 4, 5, 6), ["0", "1"]),
    "linear": (lambda: nn.Sequential(nn.Linear(24, 13), nn.ReLU()), (5, 24), ["0", "1"]),
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()), (2, 4, 5, 6), ["0", "1"]),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_layers(name: str) -> None:
    make, sizes, names = FUSED[name]
    x = torch.randn(sizes)
    found = check(converted(ao.fuse_modules(make().eval(), names), x), (x,))
    assert found["Relu"] == 1


def q(x: torch.Tensor, scale: float = 0.05, zero: int = 60, dtype: torch.dtype = torch.quint8) -> torch.Tensor:
    return torch.quantize_per_tensor(x, scale, zero, dtype)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add": lambda x: Q.add(q(x), q(x.flip(0), 0.03, 90), 0.08, 70),
    "add_relu": lambda x: Q.add_relu(q(x), q(x.flip(0), 0.03, 90), 0.04, 0),
    "mul": lambda x: Q.mul(q(x), q(x.flip(0), 0.03, 90), 0.08, 70),
    "mul_relu": lambda x: Q.mul_relu(q(x), q(x.flip(0), 0.03, 90), 0.04, 0),
    "cat": lambda x: Q.cat([q(x), q(x.flip(0), 0.03, 90)], 1, 0.06, 80),
    "cat_relu": lambda x: Q.cat_relu([q(x), q(x.flip(0), 0.03, 90)], 1, 0.06, 0),
    "aten cat": lambda x: torch.cat([q(x), q(x.flip(0))], 0),
    "add a number": lambda x: Q.add(q(x), 0.7),
    "add a number beyond the range": lambda x: Q.add(q(x), 9.0),
    "take a number beyond the range away": lambda x: Q.add(q(x), -30.0),
    "add a number, relu": lambda x: Q.add_relu(q(x), -0.7),
    "multiply by a number": lambda x: Q.mul(q(x), 1.7),
    "multiply by less than nothing": lambda x: Q.mul(q(x), -1.7),
    "multiply by nothing": lambda x: Q.mul(q(x), 0.0),
    "matmul": lambda x: Q.matmul(q(x), q(x.t()), 0.3, 100),
    "softmax": lambda x: Q.softmax(q(x), 1, 1 / 256, 0),
    "prelu": lambda x: Q.prelu(q(x), q(torch.tensor([0.2]), 0.01, 0), 0.05, 40),
    "celu": lambda x: Q.celu(q(x), 0.04, 30, 1.4),
    "clamp": lambda x: torch.clamp(q(x), -1.0, 1.5),
    "threshold": lambda x: torch.nn.functional.threshold(q(x), 0.52, 0.1),
    "hardsigmoid": lambda x: torch.nn.functional.hardsigmoid(q(x)),
    "signed sigmoid": lambda x: torch.sigmoid(q(x, 0.05, 3, torch.qint8)),
    "signed tanh": lambda x: torch.tanh(q(x, 0.05, 3, torch.qint8)),
    "mean": lambda x: q(x).mean(1),
    "rows": lambda x: q(x)[1:, ::2].permute(1, 0).contiguous().reshape(-1, 3),
    "chunks": lambda x: torch.relu(q(x).chunk(2, 1)[1]),
    "its scale": lambda x: Q.add(q(x), q(x), q(x).q_scale() * 2, q(x).q_zero_point()),
    "float functional": lambda x: nnq.QFunctional().add(q(x), q(x)),
    "largest": lambda x: torch.max_pool1d(q(x).unsqueeze(0), 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function = FUNCTIONS[name]
    check(lambda x: function(x).dequantize(), (torch.randn(4, 18) * 2,))


def test_convolutions_with_a_sum() -> None:
    torch.backends.quantized.engine = "onednn"
    conv = nn.Conv2d(4, 4, 3, padding=1)
    packed = converted(conv, torch.randn(1, 4, 6, 6), qconfig=ao.get_default_qconfig("onednn"))
    held = packed.module._packed_params  # type: ignore[union-attr]

    for operator, zero in ((Q.conv2d_add, 20), (Q.conv2d_add_relu, 0)):

        def forward(x: torch.Tensor, operator: Any = operator, zero: int = zero) -> torch.Tensor:
            return operator(q(x), q(x.flip(0)), held, 0.07, zero).dequantize()  # type: ignore[no-any-return]

        check(forward, (torch.randn(2, 4, 6, 6),))


def test_weights_are_stored_as_integers_and_the_bias_in_the_products_steps() -> None:
    x = torch.randn(2, 4, 9, 9)
    module = converted(nn.Sequential(nn.Conv2d(4, 40, 3), nn.Flatten(), nn.Linear(1960, 30)), x)
    model = fx2onnx.export(module, (x,)).model
    made = {name: value.dtype.name for name, value in model.graph.initializers.items()}  # type: ignore[union-attr]
    assert made["module.0.weight"] == made["module.2.weight"] == "INT8"
    assert set(made.values()) <= {"INT8", "UINT8", "INT32", "FLOAT", "INT64"}
    for node in model.graph:
        if node.op_type in ("Conv", "Gemm"):
            weight, bias = (node.inputs[place].producer() for place in (1, 2))  # type: ignore[union-attr]
            assert weight.op_type == bias.op_type == "DequantizeLinear"  # type: ignore[union-attr]
            assert weight.attributes["axis"].as_int() == 0  # type: ignore[union-attr]
            assert bias.inputs[0].dtype.name == "INT32"  # type: ignore[union-attr]
            assert weight.inputs[1].shape.numpy() == bias.inputs[1].shape.numpy()  # type: ignore[union-attr]


def test_one_layer_called_twice_has_one_weight() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(self.conv(x))  # type: ignore[no-any-return]

    x = torch.randn(1, 8, 5, 5)
    module = converted(Twice(), x)
    check(module, (x,), allowed=3)
    model = fx2onnx.export(module, (x,)).model
    assert sum(value.const_value.size == 576 for value in model.graph.initializers.values() if value.const_value) == 1


def test_dynamic_sizes() -> None:
    x = torch.randn(2, 3, 8, 8)
    module = converted(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()), x)
    proto = fx2onnx.export(module, (x,), dynamic_shapes={"X": {0: "b", 2: "h"}}).model_proto
    other = torch.randn(3, 3, 11, 8)
    want = module(other)
    for found in support.run_engines(proto, (other,)).values():
        assert np.abs(found[0] - want.numpy()).max() <= 1.01 * steps_of(want)


DYNAMIC: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Any]] = {
    "linear": (lambda: nn.Linear(40, 20), (5, 40), nn.Linear),
    "linear, relu": (lambda: nn.Sequential(nn.Linear(40, 20), nn.ReLU()), (2, 5, 40), nn.Linear),
    "lstm": (lambda: nn.LSTM(20, 24, 2, batch_first=True, bidirectional=True), (2, 7, 20), nn.LSTM),
    "gru": (lambda: nn.GRU(20, 24), (7, 2, 20), nn.GRU),
    "lstm cell": (lambda: nn.LSTMCell(20, 24), (5, 20), nn.LSTMCell),
    "gru cell": (lambda: nn.GRUCell(20, 24), (5, 20), nn.GRUCell),
    "rnn cell": (lambda: nn.RNNCell(20, 24), (5, 20), nn.RNNCell),
}


class Holder(nn.Module):
    """A layer that quantize_dynamic exchanges, which it does with parts of a module, not with the module."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


@pytest.mark.long_cases("lstm-dtype2")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.qint8) for name in DYNAMIC),
        # not every processor has cells in half precision
        *((name, torch.float16) for name in DYNAMIC if "cell" not in name),
    ],
)
def test_dynamically_quantised_layers(name: str, dtype: torch.dtype) -> None:
    """An activation on the middle between two codes may become either, all others are PyTorch's."""
    make, sizes, kind = DYNAMIC[name]
    module = ao.quantize_dynamic(Holder(make()).eval(), {kind}, dtype)
    assert not any(type(each) is kind for each in module.modules())
    x = torch.randn(sizes)
    result = fx2onnx.export(module, (x,))
    with torch.no_grad():
        want = support.flat(module(x))
    for engine, found in support.run_engines(result.model_proto, (x,)).items():
        for wanted, got in zip(want, found, strict=True):
            gap, largest = np.abs(got - wanted), np.abs(wanted).max()
            assert gap.max() <= (2e-5 if dtype == torch.float16 else 0.01) * largest, engine
            assert np.quantile(gap, 0.5) <= 2e-6 * largest, engine


@pytest.mark.long_cases(but=["True-GRU"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("has_state", [False, True])
def test_dynamically_quantised_layers_of_any_length(kind: Any, has_state: bool) -> None:
    """Rounded by the range of all time steps together, and of the state at each."""
    ways = 2 * 2

    class Layers(Holder):
        def forward(self, x: torch.Tensor, first: torch.Tensor) -> Any:
            state = (first, first * 0.5) if kind is nn.LSTM else first
            return self.layer(x, state if has_state else None)

    module = ao.quantize_dynamic(Layers(kind(20, 24, 2, bidirectional=True)).eval(), {kind}, torch.qint8)
    args = torch.randn(7, 2, 20), torch.randn(ways, 2, 24)
    shapes = {"x": {0: "time", 1: "batch"}, "first": {1: "batch"}}
    result = fx2onnx.export(module, args, dynamic_shapes=shapes)
    for time, batch in ((7, 2), (1, 1), (12, 5)):
        fed = torch.randn(time, batch, 20), torch.randn(ways, batch, 24)
        want = support.flat(module(*fed))
        names = [each.name for each in result.model_proto.graph.input]
        for engine, found in support.run_engines(result.model_proto, fed[: len(names)]).items():
            for wanted, got in zip(want, found, strict=True):
                assert got.shape == wanted.shape
                assert np.quantile(np.abs(got - wanted), 0.5) <= 2e-6 * np.abs(wanted).max(), engine


def test_ranges_whose_zero_point_lies_between_two_codes() -> None:
    """Of [-1, 1] the zero point is 63.5 and 1 is code 128: what tanh gives to a next layer that is saturated."""
    module = ao.quantize_dynamic(nn.Sequential(nn.Hardtanh(), nn.Linear(16, 12)).eval(), {nn.Linear}, torch.qint8)
    for x in (torch.randn(5, 16) * 4, torch.zeros(2, 16), torch.randn(2, 16) * 1e-4, torch.rand(2, 3, 16) + 0.5):
        (want,) = support.flat(module(x))
        for engine, (found,) in support.run_engines(fx2onnx.export(module, (x,)).model_proto, (x,)).items():
            assert np.abs(found - want).max() <= 2e-6 * np.abs(want).max(), engine


@pytest.mark.long
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.Linear])
def test_verification_of_dynamically_quantised_layers(kind: Any, tmp_path: Path) -> None:
    """What is rounded within an operator is judged: a scale that is off by a thousandth is found."""
    module = ao.quantize_dynamic(Holder(kind(20, 24)).eval(), {kind}, torch.qint8)
    args = (torch.randn(7, 2, 20),)
    result = fx2onnx.export(module, args, tmp_path / "m.onnx", dynamic_shapes={"x": {1: "batch"}}, verify=True)
    proto = result.model_proto
    of_weights = {weight.name for weight in proto.graph.initializer}
    scales = [node.input[1] for node in proto.graph.node if node.op_type == "DequantizeLinear"]
    scale = next(name for name in scales if name in of_weights)
    model = onnx.load(tmp_path / "m.onnx")
    for weight in model.graph.initializer:
        if weight.name == scale:
            off = onnx.numpy_helper.to_array(weight) * np.float32(1.001)
            weight.CopyFrom(onnx.numpy_helper.from_array(off, weight.name))
    onnx.save(model, tmp_path / "off.onnx")
    assert verify(tmp_path / "m.onnx", module, args).ok
    assert not verify(tmp_path / "off.onnx", module, args).ok


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_that_go_on(kind: type[nn.Module]) -> None:
    """The second step multiplies the first one's state."""

    class Twice(Holder):
        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(x * 0.5, self.layer(x))

    module = ao.quantize_dynamic(Twice(kind(20, 24)).eval(), {kind}, torch.qint8)
    assert not any(type(each) is kind for each in module.modules())
    x = torch.randn(5, 20)
    want = support.flat(module(x))
    for engine, found in support.run_engines(fx2onnx.export(module, (x,)).model_proto, (x,)).items():
        for wanted, got in zip(want, found, strict=True):
            gap, largest = np.abs(got - wanted), np.abs(wanted).max()
            assert gap.max() <= 0.01 * largest, engine
            assert np.quantile(gap, 0.5) <= 2e-6 * largest, engine


class Packing(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, *states: torch.Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        found, last = self.layer(packed, (states if len(states) > 1 else states[0]) if states else None)
        return nn.utils.rnn.pad_packed_sequence(found, batch_first=True)[0], last


@pytest.mark.long
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("has_states", [False, True])
def test_quantised_layers_of_packed_sequences(kind: Any, has_states: bool, tmp_path: Path) -> None:
    """Each step rounds the states of the sequences that run, which the lengths say."""
    torch.manual_seed(0)
    layer = kind(20, 24, 2, batch_first=True, bidirectional=True)
    module = ao.quantize_dynamic(Packing(layer).eval(), {kind}, torch.qint8)
    states = (torch.randn(4, 3, 24),) * (2 if kind is nn.LSTM else 1) if has_states else ()
    args = (torch.randn(3, 7, 20), torch.tensor([4, 7, 1]), *states)
    result = fx2onnx.export(module, args, tmp_path / "m.onnx")
    verdict = verify(result, module, args)
    assert verdict.ok, verdict.describe()
    for lengths in ([7, 7, 2], [1, 1, 6]):
        given = (args[0], torch.tensor(lengths), *states)
        wanted = support.flat(module(*given))
        for engine, found in support.run_engines(result.model_proto, given).items():
            for want, got in zip(wanted, found, strict=True):
                assert np.abs(got - want).max() <= 1e-5, engine


def test_codes_that_many_inputs_are_between_are_no_fault(tmp_path: Path) -> None:
    """tanh gives 1 or its neighbour, and the zero point of [-1, 1] is 63.5: each engine has codes of its own, row by row."""
    layers = nn.Linear(20, 24), nn.Tanh(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 5)
    module = ao.quantize_dynamic(nn.Sequential(*layers).eval(), {nn.Linear}, torch.qint8)
    args = (torch.randn(2, 7, 20),)
    fx2onnx.export(module, args, tmp_path / "m.onnx")
    assert verify(tmp_path / "m.onnx", module, args).ok


BAGS = {
    "bag": lambda: nn.EmbeddingBag(50, 24, mode="sum", include_last_offset=True),
    "table": lambda: nn.Embedding(50, 24),
}


@pytest.mark.parametrize("dtype", [torch.quint8, torch.quint4x2])
def test_tables(dtype: torch.dtype) -> None:
    weight = torch.randn(50, 24)
    bag = nnq.EmbeddingBag(50, 24, mode="sum", include_last_offset=True, dtype=dtype)
    table = nnq.Embedding(50, 24, dtype=dtype)
    observer = ao.default_float_qparams_observer if dtype == torch.quint8 else ao.default_float_qparams_observer_4bit
    made = observer()
    made(weight)
    scales, zeros = made.calculate_qparams()
    packed = torch.quantize_per_channel(weight, scales, zeros, 0, dtype)
    bag.set_weight(packed)
    table.set_weight(packed)
    indices, offsets = torch.randint(0, 50, (12,)), torch.tensor([0, 5, 5, 12])
    exact = 1e-4 if dtype == torch.quint8 else 5e-3  # PyTorch packs the scales of 4 bits in half precision
    support.check(lambda i, o: bag(i, o), (indices, offsets), rtol=exact, atol=exact)
    support.check(lambda i: table(i), (indices.reshape(3, 4),), rtol=exact, atol=exact)
    bag.include_last_offset = False
    support.check(lambda i: bag(i), (indices.reshape(3, 4),), rtol=exact, atol=exact)


def test_modules_made_by_hand() -> None:
    conv = nnq.Conv2d(3, 4, 3)
    dynamic = nnqd.Linear(16, 8)
    check(lambda x: conv(q(x)).dequantize(), (torch.randn(1, 3, 6, 6),))
    support.check(lambda x: dynamic(x), (torch.randn(3, 16),))


BUILDERS = [
    "resnet18", "mobilenet_v2", "mobilenet_v3_large", "shufflenet_v2_x0_5", "googlenet", "inception_v3",
    "resnext101_32x8d",
]  # fmt: skip


@pytest.mark.long_cases("resnet18")
@pytest.mark.parametrize("name", [BUILDERS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in BUILDERS[1:])])
def test_torchvisions_quantised_builders(name: str) -> None:

    from torchvision.models import quantization as builders

    if name == "mobilenet_v3_large":
        torch.backends.quantized.engine = "qnnpack"
    more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    module = getattr(builders, name)(weights=None, quantize=True, **more).eval()
    names = check(module, (torch.randn(2, 3, 96, 96),), allowed=3.01, often=1)
    assert not set(names) - {
        "QuantizeLinear", "DequantizeLinear", "Conv", "Relu", "MaxPool", "Add", "GlobalAveragePool", "AveragePool",
        "Reshape", "Gemm", "ReduceMean", "Transpose", "HardSwish", "HardSigmoid", "Mul", "Concat", "Split",
    }  # fmt: skip


def test_operands_that_are_not_quantised_are_refused() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return Q.add(x, x, 0.1, 0)  # type: ignore[no-any-return]

    with pytest.raises(UserError) as caught:
        fx2onnx.export(forward, (torch.randn(3, 4),))
    assert caught.value.code in ("E203", "E101")


@pytest.mark.long
def test_a_verification_allows_single_steps_and_no_wrong_weight(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 16, 16)
    layers = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(576, 10)
    )
    module = converted(layers, x)
    result = fx2onnx.export(module, (x,), tmp_path / "m.onnx", verify=True)
    assert result.report.verdict["ok"]
    model = onnx.load(tmp_path / "m.onnx")
    codes = next(weight for weight in model.graph.initializer if weight.name == "module.2.weight")
    numbers = np.frombuffer(codes.raw_data, np.int8).copy()
    codes.raw_data = (-numbers).tobytes()
    onnx.save(model, tmp_path / "wrong.onnx")
    assert not verify(tmp_path / "wrong.onnx", module, (x,)).ok
