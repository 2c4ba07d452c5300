"""``file:PATH``: programs of torch.export and TorchScript as sources; what is damaged or something else is one error."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import fx2onnx
from fx2onnx.cli.feeds import dynamic_shapes_of
from fx2onnx.cli.job import Job, run
from fx2onnx.cli.progress import Stages
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.sources import resolve
from fx2onnx.sources.inputs import input_files
from tests.support import agree


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("shift", torch.randn(2))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.linear(x) + self.shift
        return y if mask is None else y * mask


NET, X = Net().eval(), torch.randn(3, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("saved")
    shapes = {"x": {0: Dim("batch", max=64)}}
    torch.export.save(torch.export.export(NET, (X,), dynamic_shapes=shapes), root / "dynamic.pt2")
    torch.export.save(torch.export.export(NET, (X,), {"mask": torch.randn(3, 2)}), root / "fixed.pt2")
    torch.jit.script(NET).save(root / "scripted.pt")
    torch.jit.trace(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), (X,)).save(root / "traced.ts")
    torch.save(NET.state_dict(), root / "state.pt")
    torch.save({"a": [1]}, root / "other.pth")
    return root


def export(source: str, output: Path, *dynamic: str) -> Any:
    options = ExportOptions(verify=False)
    return run(Job(source, str(output), options, dynamic or ("default",)), Stages(quiet=True)).summary["report"]


@pytest.mark.parametrize("prefix", ["", "file:"])
def test_a_program_brings_its_inputs_and_sizes_along(folder: Path, prefix: str, tmp_path: Path) -> None:
    report = export(f"{prefix}{folder / 'dynamic.pt2'}", tmp_path / "m.onnx")
    (bound,) = report["assumptions"]
    assert bound.endswith("<= 64")
    import onnx

    agree(NET, onnx.load(tmp_path / "m.onnx"), (torch.randn(11, 4),))
    assert export(str(folder / "dynamic.pt2"), tmp_path / "none.onnx", "none")["assumptions"] == []


@pytest.mark.parametrize(
    ("name", "query", "inputs"),
    [
        ("fixed.pt2", "", ["x", "mask"]),
        ("scripted.pt", "?x=3,4", ["x"]),
        ("scripted.pt", "?mask=[3,2]&x=float32[3,4]", ["x", "mask"]),
        ("traced.ts", "?input=3,4", ["input"]),
    ],
)
def test_inputs_are_named_by_forward(folder: Path, name: str, query: str, inputs: list[str], tmp_path: Path) -> None:
    assert export(f"{folder / name}{query}", tmp_path / "m.onnx")["input_names"] == inputs
    source = resolve(f"{folder / name}{query}")
    source.module(*source.args, **source.kwargs)
    assert dynamic_shapes_of(source, "none") is None


def test_shapes_of_other_dtypes(folder: Path) -> None:
    class Mixed(nn.Module):
        def forward(self, ids: torch.Tensor, on: torch.Tensor, one: torch.Tensor, times: int) -> torch.Tensor:
            return torch.where(on, ids, 0).sum() * one * times

    path = folder / "mixed.jit"
    torch.jit.script(Mixed()).save(path)
    source = resolve(f"{path}?ids=int64[2,3]&on=bool[2,3]&one=float64()&times=3")
    kinds = {key: (value.dtype, list(value.shape)) for key, value in source.kwargs.items() if key != "times"}
    assert kinds == {"ids": (torch.int64, [2, 3]), "on": (torch.bool, [2, 3]), "one": (torch.float64, [])}
    assert source.kwargs["times"] == 3


def damaged(folder: Path, tmp_path: Path, how: str) -> Path:
    path = tmp_path / ("bad.ts" if "script" in how else "bad.pt2")
    whole = (folder / ("traced.ts" if "script" in how else "dynamic.pt2")).read_bytes()
    with zipfile.ZipFile(folder / "dynamic.pt2") as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    root = next(iter(members)).split("/")[0]
    changed = {
        "json": {f"{root}/models/model.json": b'{"graph": '},
        "no graph": {f"{root}/models/model.json": b"{}"},
        "weights": {f"{root}/data/weights/weight_0": b"\0"},
        "inputs": {f"{root}/data/sample_inputs/model.pt": pickle.dumps(os.getcwd)},
        "object": {f"{root}/data/constants/custom_obj_0": pickle.dumps(os.getcwd)},
        "neither": dict.fromkeys(members),
    }
    if how in changed:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {**members, **changed[how]}.items():
                archive.writestr(name if content is not None else "readme", content or b"")
    else:
        path.write_bytes({"cut": whole[:900], "no zip": b"hello" * 99, "empty": b"", "cut script": whole[:-300]}[how])
    return path


@pytest.mark.parametrize(
    "how", ["cut", "no zip", "empty", "json", "no graph", "weights", "inputs", "object", "neither", "cut script"]
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_is_damaged_is_one_error_and_nothing_is_written(
    folder: Path, how: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = damaged(folder, tmp_path, how)
    before = {key: os.environ.get(key) for key in ("TORCH_FORCE_WEIGHTS_ONLY_LOAD",)}
    with pytest.raises(fx2onnx.UserError) as caught:
        export(str(path), tmp_path / "m.onnx")
    assert caught.value.code == "E302"
    assert path.name in caught.value.what
    assert os.listdir(tmp_path) == [path.name]
    assert capfd.readouterr() == ("", "")
    assert before == {key: os.environ.get(key) for key in before}


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("missing.pt2", "E302", "there is no file"),
        ("state.pt", "E302", "what torch.save wrote"),
        ("other.pth", "E302", "what torch.save wrote"),
        ("traced.ts", "E601", "does not say the shape of input"),
        ("scripted.pt?x=3,4&y=2", "E001", "has no input y"),
        ("scripted.pt?x=float[3,4]x", "E001", "cannot read the shape of x"),
        ("scripted.pt?x=3,-4", "E001", "cannot read the shape of x"),
        ("dynamic.pt2?x=3,4", "E001", "takes no x"),
    ],
)
def test_other_files_and_shapes(folder: Path, name: str, code: str, said: str) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        resolve(f"{folder}/{name}")
    assert caught.value.code == code
    assert said in str(caught.value)


def test_the_file_is_an_input_of_the_command(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    shutil.copy(folder / "fixed.pt2", path)
    for spec in (str(path), f"file:{path}", f"{path}?x=1"):
        assert input_files(spec) == [path]
