"""``fx2onnx.export(..., quantize=...)``: in both engines equal to the module with the same numbers, as small as they should be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import Quantize, verify
from fx2onnx.base.errors import UserError, VerificationError
from fx2onnx.quantize.model import plan_for
from fx2onnx.targets.form import find
from tests.quantize.modules import DYNAMIC, SAMPLE, Net

CASES = [
    *(("int8", {}), ("int8", {"embeddings": True}), ("int8", {"format": "matmulnbits"}), ("int8", {"block": 32})),
    *(("int4", {"embeddings": True}), ("int4", {"format": "qdq", "embeddings": True}), ("int4", {"block": 0})),
    *(("uint4", {"embeddings": True}), ("uint4", {"format": "qdq", "embeddings": True}), ("uint4", {"block": 0})),
    *(("nf4", {"embeddings": True, "block": 32}), ("nf4", {"format": "matmulnbits", "embeddings": True, "block": 32})),
    *(("float8", {}), ("float8", {"block": 32, "embeddings": True})),
    *(("int2", {}), ("int2", {"format": "qdq"}), ("ternary", {"embeddings": True}), ("ternary", {"block": 16})),
]
ERRORS = {"int2": 0.8, "ternary": 0.8}
"""Bounds of relative errors, by kind."""


def exported(path: Path, quantize: Quantize, **more: Any) -> Any:
    return fx2onnx.export(Net(), SAMPLE, path, quantize=quantize, dynamic_shapes=DYNAMIC, verify=True, **more)


@pytest.mark.long_cases(but=["int8-{'format': 'matmulnbits'}", "uint4-{'block': 0}"])
@pytest.mark.parametrize(("kind", "options"), CASES, ids=lambda item: str(item))
def test_both_engines_give_what_the_module_gives_on_the_same_numbers(tmp_path: Path, kind: str, options: Any) -> None:
    result = exported(tmp_path / "net.onnx", Quantize(kind, **options))
    layers = result.report.quantized["layers"]
    asked = {"up.weight", "down.weight", "odd.weight", "conv.weight"} - ({"odd.weight"} if kind == "nf4" else set())
    assert set(layers) == asked | ({"table.weight"} if options.get("embeddings") else set())
    assert set(result.report.verdict["versions"]) >= {"runner", "onnxruntime"}
    most = ERRORS.get(kind, 0.2)
    assert all(0 < layer["error"] < most for layer in layers.values())
    assert all(0 < error < most + 0.1 for error in result.report.quantized["outputs"].values())
    left = {init.name for init in onnx.load(tmp_path / "net.onnx").graph.initializer if np.prod(init.dims) >= 1024}
    assert not {name for name in left if name.removesuffix(".T").removesuffix(".folded") in layers}


@pytest.mark.long
def test_the_kind_alone_is_enough(tmp_path: Path) -> None:
    for kind in ("int8", "nf4"):
        ours = exported(tmp_path / "a.onnx", Quantize(kind)).model_proto
        assert fx2onnx.export(Net(), SAMPLE, quantize=kind, dynamic_shapes=DYNAMIC).model_proto == ours
    fx2onnx.export(Net(), SAMPLE, tmp_path / "in.onnx", dynamic_shapes=DYNAMIC)
    fx2onnx.optimize_model(tmp_path / "in.onnx", tmp_path / "out.onnx", quantize="int8")
    assert (tmp_path / "out.onnx").stat().st_size < (tmp_path / "in.onnx").stat().st_size


@pytest.mark.parametrize("form", ["qdq", "matmulnbits"])
def test_rows_that_are_no_whole_blocks_get_smaller_ones(tmp_path: Path, form: str) -> None:
    net = nn.Sequential(nn.Linear(72, 128), nn.ReLU(), nn.Linear(128, 40), nn.ReLU(), nn.Linear(40, 32)).eval()
    quantize = Quantize("nf4", format=form)
    result = fx2onnx.export(net, torch.randn(3, 72), tmp_path / "m.onnx", quantize=quantize, verify=True)
    blocks = {name: layer["block"] for name, layer in result.report.quantized["layers"].items()}
    assert blocks == {"0.weight": 36, "2.weight": 64, "4.weight": 40}


@pytest.mark.long
def test_wrong_codes_are_found(tmp_path: Path) -> None:
    exported(tmp_path / "net.onnx", Quantize("int8"))
    model = onnx.load(tmp_path / "net.onnx")
    codes = next(init for init in model.graph.initializer if init.name == "up.weight.codes")
    numbers = np.frombuffer(codes.raw_data, np.int8).copy()
    numbers[:64] += 3
    codes.raw_data = numbers.tobytes()
    onnx.save(model, tmp_path / "other.onnx")
    assert verify(tmp_path / "net.onnx", Net(), SAMPLE).ok
    assert not verify(tmp_path / "other.onnx", Net(), SAMPLE).ok


@pytest.mark.long
class Steps(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.layers = kind(40, 48, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}], ids=["one", "both ways"])
@pytest.mark.parametrize("layers", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(tmp_path: Path, layers: type[nn.RNNBase], options: Any) -> None:
    module = Steps(layers, **options).eval()
    path = tmp_path / "out.onnx"
    asked = Quantize("int8", block=16, accuracy=False)
    result = fx2onnx.export(module, (torch.rand(2, 5, 40),), path, quantize=asked, verify=True)
    assert result.report.quantized is not None
    assert result.report.quantized["kept"] == {}
    stated = json.loads(onnx.load(path).metadata_props[0].value)
    weights = [name for name, weight in module.named_parameters() if weight.ndim == 2]
    assert sorted(stated) == sorted(weights)
    file = onnx.load(path)
    codes = next(tensor for tensor in file.graph.initializer if tensor.name.endswith(".codes"))
    wrong = onnx.numpy_helper.to_array(codes).copy()
    wrong.flat[: wrong.size // 4] = 0
    codes.CopyFrom(onnx.numpy_helper.from_array(wrong, codes.name))
    onnx.save(file, path)
    assert not verify(str(path), module, (torch.rand(2, 5, 40),)).ok


def test_activations_of_8_bits(tmp_path: Path) -> None:
    result = exported(tmp_path / "net.onnx", Quantize("int4", activations="int8"))
    assert result.report.verdict["ok"]
    assert any("may round what they multiply to 8 bits" in note for note in result.report.verdict["notes"])
    model = onnx.load(tmp_path / "net.onnx")
    levels = [
        attribute for node in model.graph.node for attribute in node.attribute if attribute.name == "accuracy_level"
    ]
    assert [attribute.i for attribute in levels] == [4] * len(levels)
    assert levels
    codes = next(init for init in model.graph.initializer if init.name == "up.weight.codes")
    codes.raw_data = bytes(byte ^ 3 for byte in codes.raw_data[:64]) + codes.raw_data[64:]
    onnx.save(model, tmp_path / "other.onnx")
    found = verify(tmp_path / "other.onnx", Net(), SAMPLE)
    assert {row.engine for row in found.rows if not row.ok} == {"runner", "onnxruntime"}


@pytest.mark.parametrize(
    ("target", "activations", "level"),
    [
        ("onnxruntime", "auto", 1),
        ("onnxruntime-genai", "auto", 4),
        ("onnxruntime-genai", "float32", 1),
        ("onnxruntime", "int8", 4),
    ],
)
def test_which_targets_round_activations(target: str, activations: str, level: int) -> None:
    model = fx2onnx.export(nn.Linear(64, 64), (torch.randn(2, 64),)).model
    plan = plan_for(model, Quantize("int4", activations=activations), find(target))
    assert [place.accuracy for place in plan.places] == [level]


def test_activations_of_8_bits_need_the_product(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--activations int8") as caught:
        fx2onnx.export(
            Net(), SAMPLE, tmp_path / "m.onnx", target="wonnx", quantize=Quantize("int4", activations="int8")
        )
    assert caught.value.code == "E204"
    assert not list(tmp_path.iterdir())


def test_the_module_keeps_its_weights(tmp_path: Path) -> None:
    net = Net()
    before = {name: (value, value.data_ptr(), value.clone()) for name, value in net.state_dict().items()}
    fx2onnx.export(net, SAMPLE, tmp_path / "net.onnx", quantize=Quantize("int4"), verify=True)
    for name, value in net.state_dict().items():
        assert value.data_ptr() == before[name][1]
        assert torch.equal(value, before[name][2])


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(4))
        self.table = nn.Embedding(300, 512)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.table(ids)
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        return hidden


SIZES = [
    *(("int8", {}, 1, 4 / 512), ("int4", {}, 0.5, 4 / 32), ("int4", {"format": "qdq", "block": 64}, 0.5, 4 / 64)),
    ("int2", {}, 0.25, 4 / 32),
    *(("uint4", {}, 0.5, 4.5 / 32), ("nf4", {}, 0.5, 4 / 64), ("nf4", {"format": "matmulnbits"}, 0.5, 4 / 64)),
    *(("float8", {}, 1, 4 / 512), ("int8", {"block": 32}, 1, 4 / 32)),
]


@pytest.mark.parametrize(("kind", "options", "code_bytes", "scale_bytes"), SIZES)
def test_files_are_as_large_as_theory_says(
    tmp_path: Path, kind: str, options: Any, code_bytes: float, scale_bytes: float
) -> None:
    ids = torch.randint(0, 300, (1, 8))
    quantize = Quantize(kind, embeddings=True, accuracy=False, **options)
    fx2onnx.export(Wide(), ids, tmp_path / "wide.onnx", quantize=quantize, external_data=True)
    product, table = 4 * 512 * 512 * (code_bytes + scale_bytes), 300 * 512 * (max(code_bytes, 0.5) + scale_bytes)
    taken = sum(os.path.getsize(tmp_path / name) for name in os.listdir(tmp_path))
    assert 0 <= taken / (product + table) - 1 < 0.02


@pytest.mark.parametrize("target", ["onnxruntime", "onnxruntime-1.23"])
def test_ternary_weights_stay_what_they_are(tmp_path: Path, target: str) -> None:
    layer, draw = nn.Linear(64, 48, bias=False), np.random.default_rng(0)
    layer.weight.data = torch.from_numpy(draw.integers(-1, 2, (48, 64)) * draw.random((48, 1), np.float32)).float()
    result = fx2onnx.export(layer, torch.randn(3, 64), tmp_path / "t.onnx", quantize="ternary", target=target)
    assert [entry["error"] for entry in result.report.quantized["layers"].values()] == [0]
    bits = [node.attributes["bits"].as_int() for node in result.model.graph if node.op_type == "MatMulNBits"]
    assert bits == ([2] if target == "onnxruntime" else [])


@pytest.mark.long
def test_half_precision(tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        net, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).eval().to(dtype), torch.randn(3, 64)
        for kind in ("int8", "int4"):
            result = fx2onnx.export(net, x.to(dtype), tmp_path / "h.onnx", quantize=Quantize(kind), verify=True)
            assert len(result.report.quantized["layers"]) == 2


def test_experts_and_turned_products(tmp_path: Path) -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stack = nn.Parameter(torch.randn(4, 48, 32))
            self.plain = nn.Parameter(torch.randn(32, 80))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.bmm(x, self.stack) @ self.plain

    for kind in ("int4", "int8"):
        quantize = Quantize(kind, block=16)
        result = fx2onnx.export(Experts(), torch.randn(4, 5, 48), tmp_path / "e.onnx", quantize=quantize, verify=True)
        assert set(result.report.quantized["layers"]) == {"stack", "plain"}


class Scanned(nn.Module):
    """A scan with a product of one weight a turn, on the rows that chose it: none in some turns."""

    def __init__(self, is_turned: bool) -> None:
        super().__init__()
        self.stack = nn.Parameter(torch.randn(4, 64, 96) if is_turned else torch.randn(4, 96, 64))
        self.is_turned = is_turned
        self.last = nn.Linear(96, 32)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        def turn(total: torch.Tensor, each: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            number, weight = each
            rows = (index == number).nonzero().reshape(-1)
            made = x[rows] @ weight if self.is_turned else nn.functional.linear(x[rows], weight)
            return total.index_add(0, rows, made), total.sum()

        first = x.new_zeros(len(x), 96)
        total, _ = torch._higher_order_ops.scan(turn, first, (torch.arange(4), self.stack))
        return self.last(total)  # type: ignore[no-any-return]


FORMS = {"int8": "DequantizeLinear", "float8": "DequantizeLinear", "int4": "MatMulNBits", "nf4": ""}


@pytest.mark.long_cases(but=("int8-True",))
@pytest.mark.parametrize("is_turned", [True, False])
@pytest.mark.parametrize("kind", FORMS)
def test_weights_of_a_scan(kind: str, is_turned: bool, tmp_path: Path) -> None:
    args, sizes = (torch.randn(5, 64), torch.tensor([3, 0, 0, 3, 1])), ({0: "n"}, {0: "n"})
    net, path = Scanned(is_turned).eval(), tmp_path / "s.onnx"
    result = fx2onnx.export(
        net, args, path, quantize=kind, dynamic_shapes=sizes, opset_version=21, target="onnxruntime", verify=True
    )
    quantized = result.report.quantized
    assert quantized["layers"].get("stack", {}).get("form", "") == FORMS[kind]
    assert set(quantized["layers"]) == {"last.weight"} | ({"stack"} if FORMS[kind] else set())
    assert FORMS[kind] or "Scan" in quantized["kept"]["stack"]


def test_excluded_and_worst_layers_stay(tmp_path: Path) -> None:
    result = exported(tmp_path / "net.onnx", Quantize("int4", exclude=("up*",), keep_worst=1))
    quantized = result.report.quantized
    errors = {name: layer["error"] for name, layer in quantized["layers"].items()}
    kept = quantized["kept"]
    assert kept["up.weight"] == "excluded"
    assert kept["table.weight"] == "rows are picked from it (embeddings)"
    (worst,) = [why for why in kept.values() if "would change" in why]
    assert len(errors) == 2
    assert float(worst.split()[-1].rstrip("%")) / 100 >= max(errors.values()) - 1e-4
    assert any("layers that change most" in note for note in result.report.notes)


def test_another_target_gets_no_product_of_onnxruntime(tmp_path: Path) -> None:
    for target, has_product in (("onnxruntime-1.31", True), ("onnx", False)):
        result = fx2onnx.export(Net(), SAMPLE, tmp_path / "t.onnx", quantize=Quantize("int4"), target=target)
        assert any(node.domain == "com.microsoft" for node in result.model.graph) == has_product


def test_an_outline_has_the_same_nodes() -> None:
    with torch.device("meta"):
        outline = Net()
    made = [fx2onnx.export(net, SAMPLE, quantize=Quantize("int4")).model for net in (Net(), outline)]
    texts = [[(node.op_type, [value and value.name for value in node.inputs]) for node in each.graph] for each in made]
    assert texts[0] == texts[1]


def test_what_the_file_says_of_its_codes(tmp_path: Path) -> None:
    result = exported(tmp_path / "net.onnx", Quantize("int4"))
    stated = json.loads(result.model.metadata_props["fx2onnx.quantized"])
    assert stated["up.weight"] == ["int4", 1, 32]
    assert ir.load(tmp_path / "net.onnx").ir_version >= 10


BAD = [
    (lambda: Quantize("int3"), "int3"),
    (lambda: Quantize("int8", block=3), "block 3"),
    (lambda: Quantize("int8", block=True), "block True"),  # type: ignore[arg-type]
    (lambda: Quantize("int4", format="gguf"), "gguf"),
    (lambda: Quantize("float8", format="matmulnbits"), "no float8"),
    (lambda: Quantize("int4", format="matmulnbits", block=48), "no block of 48"),
    (lambda: Quantize("int8", keep_worst=-1), "keep_worst"),
    (lambda: Quantize("int4", activations="int4"), "activations 'int4' is not known"),
    (lambda: Quantize("int8", activations="int8"), "next  int4 or uint4 weights, or int8 with --format"),
    (lambda: Quantize("nf4", activations="int8"), "activations in 8 bits"),
    (lambda: Quantize("int4", format="qdq", activations="int8"), "activations in 8 bits"),
]


@pytest.mark.parametrize(("made", "text"), BAD)
def test_options_that_cannot_be(made: Any, text: str) -> None:
    with pytest.raises(UserError, match=text) as caught:
        made()
    assert caught.value.code == "E001"


@pytest.mark.parametrize(
    ("module", "keywords", "code"),
    [
        (nn.Linear(64, 64), {"quantize": "int3"}, "E001"),
        (nn.Linear(64, 64), {"quantize": 8}, "E001"),
        (nn.Linear(64, 64), {"quantize": Quantize("int4", format="qdq"), "opset_version": 17}, "E202"),
        (nn.Linear(64, 64), {"quantize": Quantize("int8"), "export_params": False}, "E001"),
        (nn.ReLU(), {"quantize": Quantize("int8")}, "E001"),
        (nn.Linear(64, 64), {"quantize": Quantize("int8", keep_worst=1, accuracy=False)}, "E001"),
        (nn.Linear(64, 64), {"quantize": Quantize("int8", keep_worst=1)}, "E001"),
        (nn.Linear(64, 64), {"dynamic_shapes": ({0: "n"},), "dynamic_axes": {"input": {0: "n"}}}, "E001"),
    ],
)
def test_exports_that_cannot_be_leave_nothing(tmp_path: Path, module: nn.Module, keywords: Any, code: str) -> None:
    with pytest.raises(UserError) as caught:
        fx2onnx.export(module, torch.randn(2, 64), tmp_path / "m.onnx", **keywords)
    assert caught.value.code == code
    assert not os.listdir(tmp_path)


def test_weights_that_are_not_finite_leave_nothing(tmp_path: Path) -> None:
    net = nn.Linear(64, 64)
    net.weight.data[3, 4] = float("inf")
    with pytest.raises((UserError, VerificationError), match="not finite"):
        fx2onnx.export(net, torch.randn(2, 64), tmp_path / "m.onnx", quantize=Quantize("int8", accuracy=False))
    assert not os.listdir(tmp_path)
