"""Casts where onnxruntime has no kernel: the file opens, runs, and gives what eager PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fx2onnx
from fx2onnx import verify
from fx2onnx.base.errors import UserError
from fx2onnx.targets import form
from fx2onnx.targets.form import numbers

HALF = (torch.float16, torch.bfloat16)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.ConvTranspose2d(8, 4, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.leaky_relu(self.norm(self.first(x)))
        y = functional.avg_pool2d(functional.elu(y), 2) + functional.max_pool2d(functional.gelu(y), 2)
        return torch.softmax(self.second(y), 1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0]).transpose(0, 1)


class Branches(nn.Module):
    """A value of the outer graph that the branches read in another dtype."""

    def forward(self, x: Tensor, flag: Tensor) -> Tensor:
        y = torch.erf(x)
        return torch.cond(flag, lambda a: torch.atan(a) + 1, lambda a: torch.erf(a) * 2, (y,))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "convolutions": (Convolutions, (torch.randn(2, 3, 8, 8),)),
    "recurrent": (Recurrent, (torch.randn(2, 4, 6),)),
    "branches": (Branches, (torch.randn(3, 4), torch.tensor(True))),
}


RUNS = [
    (name, dtype, opset)
    for name in MODELS
    for dtype in (torch.float16, torch.bfloat16, torch.float64)
    for opset in (13, 17, 20, 22)
    if (name, dtype, opset) != ("branches", torch.bfloat16, 13)
]
"""Branches give no bfloat16 before opset 16: ``test_branches_of_bfloat16_need_opset_16``."""


def test_branches_of_bfloat16_need_opset_16(tmp_path: Path) -> None:
    args = (torch.randn(3, 4, dtype=torch.bfloat16), torch.tensor(True))
    with pytest.raises(UserError) as caught:
        fx2onnx.export(Branches(), args, tmp_path / "model.onnx", opset_version=13)
    assert caught.value.code == "E202"
    assert "test_fit.py" in str(caught.value)
    assert "opset_version=16" in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore::fx2onnx.ExportWarning")
@pytest.mark.parametrize(("name", "dtype", "opset"), RUNS)
def test_runs_in_onnxruntime_whatever_the_dtype(name: str, dtype: torch.dtype, opset: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, given = MODELS[name]
    module = make().eval().to(dtype)
    args = tuple(each.to(dtype) if each.is_floating_point() else each for each in given)
    path = tmp_path / "model.onnx"
    result = fx2onnx.export(module, args, path, opset_version=opset)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    verdict = verify(result, module, args, engines=["runner", "onnxruntime"])
    assert verdict.ok, verdict
    assert all(count > 0 for count in result.report.casts.values())
    needed = dtype != torch.float16 and bool(without_kernels(module, args, opset, tmp_path))
    fitted = bool(result.report.casts) or (needed and path.read_bytes() != (tmp_path / "plain.onnx").read_bytes())
    assert fitted == needed


def without_kernels(module: nn.Module, args: tuple[Tensor, ...], opset: int, folder: Path) -> str:
    """What onnxruntime says of the file as it is without casts."""
    path = folder / "plain.onnx"
    fx2onnx.export(module, args, path, opset_version=opset, target="onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        session.run(None, {each.name: arg.numpy() for each, arg in zip(session.get_inputs(), args, strict=True)})
    except Exception as cause:  # onnxruntime has classes of its own
        return str(cause)
    return ""


class RoiPool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        import torchvision

        boxes = torch.tensor([[0, 0, 0, 3, 3]], dtype=x.dtype)
        return torchvision.ops.roi_pool(x, boxes, 2)


@pytest.mark.parametrize("target", [None, "onnxruntime"])
def test_float64_without_a_form_is_refused(target: str | None, tmp_path: Path) -> None:
    """With the operator, the line and what helps: not computed in float32, which loses half the digits."""
    pytest.importorskip("torchvision")
    x, path = torch.randn(1, 2, 8, 8), tmp_path / "model.onnx"
    with pytest.raises(UserError) as caught:
        fx2onnx.export(RoiPool(), (x.double(),), path, target=target)
    assert caught.value.code == "E204"
    for text in ("MaxRoiPool(double, double)", "roi_pool.py:", "float()", 'target="onnx"'):
        assert text in str(caught.value)
    assert not path.exists()
    fx2onnx.export(RoiPool(), (x,), path, target=target)
    assert fx2onnx.export(RoiPool(), (x.double(),), target="onnx").report.casts == {}


@pytest.mark.filterwarnings("ignore::fx2onnx.ExportWarning")
def test_a_wrong_number_in_float64_is_still_found(tmp_path: Path) -> None:
    module = Convolutions().double().eval()
    args = (torch.randn(1, 3, 8, 8, dtype=torch.float64),)
    path = tmp_path / "model.onnx"
    fx2onnx.export(module, args, path)
    proto = onnx.load(path)
    slope = next(each for each in proto.graph.initializer if not each.dims and onnx.numpy_helper.to_array(each) == 0.01)
    slope.CopyFrom(onnx.numpy_helper.from_array(np.array(0.01 + 1e-9), slope.name))
    onnx.save(proto, path)
    assert not verify(path, module, args).ok


def test_what_runs_as_it_is_stays(tmp_path: Path) -> None:
    module = Convolutions().eval()
    args = (torch.randn(1, 3, 8, 8),)
    fx2onnx.export(module, args, tmp_path / "default.onnx")
    fx2onnx.export(module, args, tmp_path / "plain.onnx", target="onnx")
    assert (tmp_path / "default.onnx").read_bytes() == (tmp_path / "plain.onnx").read_bytes()


def test_shared_casts_are_made_once() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + 1, x * x

    result = fx2onnx.export(Twice(), (torch.rand(1, 2, 4, dtype=torch.bfloat16),), optimize=False)
    casts = [
        node for node in result.model.graph if node.op_type == "Cast" and node.inputs[0] is result.model.graph.inputs[0]
    ]
    assert len(casts) == 1


def test_a_newer_opset_than_the_default_target_takes_is_left_alone() -> None:
    older = fx2onnx.export(nn.Linear(2, 2), (torch.randn(1, 2),), target="onnxruntime-1.14")
    assert older.report.opset == 18
    with pytest.raises(UserError) as caught:
        fx2onnx.export(nn.Linear(2, 2), (torch.randn(1, 2),), target="onnxruntime-1.14", opset_version=20)
    assert caught.value.code == "E202"


def test_nodes_that_a_target_cannot_run_are_all_named(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")

    class Deform(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            offset = torch.zeros(1, 2, 4, 4)
            return torchvision.ops.deform_conv2d(x, offset, torch.ones(1, 1, 1, 1))

    path = tmp_path / "model.onnx"
    with pytest.raises(UserError) as caught:
        fx2onnx.export(Deform(), (torch.randn(1, 1, 4, 4),), path, target="onnxruntime-1.20", opset_version=19)
    assert caught.value.code == "E204"
    assert "DeformConv" in str(caught.value)
    assert "deform_conv.py:" in str(caught.value)
    assert not path.exists()


@pytest.mark.parametrize("name", ["onnxruntine", "onnxruntime-2.0", "", "onnxruntime-1.x"])
def test_an_unknown_target(name: str) -> None:
    with pytest.raises(UserError) as caught:
        fx2onnx.export(nn.Linear(2, 2), (torch.randn(1, 2),), target=name)
    assert caught.value.code == "E001"


def test_operators_of_a_domain_of_the_users_are_left_to_them() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.erfcx(x) + 1

    def erfcx(op: Any, self: Any) -> Any:
        return op.custom("mine", "Erfcx", [self], [op.result[0]])[0]

    translations = {torch.ops.aten.special_erfcx.default: erfcx}
    result = fx2onnx.export(Scaled(), (torch.rand(3),), target="onnxruntime", custom_translations=translations)
    assert [node.domain for node in result.model.graph] == ["mine", ""]
    assert result.report.warnings == []


@pytest.mark.parametrize(
    ("installed", "release"),
    [
        ("1.31.1", "1.31"),
        ("1.20.0", "1.20"),
        ("1.12.0", "1.16"),
        ("9.0", "newest"),
        (None, "newest"),
        ("none", "newest"),
    ],
)
def test_without_a_release_files_are_for_the_one_that_is_installed(
    installed: str | None, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        assert name == "onnxruntime"
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr("importlib.metadata.version", version)
    form.find.cache_clear()
    try:
        newest = max(form._table("onnxruntime")["releases"], key=numbers)
        assert form.find("onnxruntime").release == (newest if release == "newest" else release)
        assert form.find("onnxruntime-1.19").release == "1.19"
    finally:
        form.find.cache_clear()


@pytest.mark.parametrize("opset", [18, 21, 23, 24])
def test_the_default_target_is_the_onnxruntime_at_hand(opset: int, tmp_path: Path) -> None:
    """1.32 pads bfloat16, releases before do not."""

    class Pads(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return functional.pad(x, (1, 1)), functional.pad(x, (1, 2), mode="reflect")

    fx2onnx.export(Pads(), (torch.randn(2, 3, 8, dtype=torch.bfloat16),), tmp_path / "m.onnx", opset_version=opset)
    onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])


BOUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda x: x.clamp(-1, 1),
    "relu6": functional.relu6,
    "hardtanh": functional.hardtanh,
    "clamp_min": lambda x: x.clamp(min=0.1),
}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_in_half_precision_open(name: str, dtype: torch.dtype) -> None:
    """onnxruntime takes a Clip of bfloat16 apart, into a Less that it has not; without bounds it does not."""

    class Bounds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return BOUNDED[name](x)

    result = fx2onnx.export(Bounds(), (torch.randn(2, 3, dtype=dtype),), verify=True)
    assert "onnxruntime" in result.report.verdict["versions"]
