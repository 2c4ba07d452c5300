"""``locate`` on what a device computed, and onnxruntime's providers as engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import runner
from fx2onnx.base.errors import UserError
from fx2onnx.judge.engines import chosen_engines
from tests.cli.support import invoke

ARGS = (torch.linspace(-1, 1, 16).reshape(2, 8),)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module, dict[str, Any]]:
    """A file, its module, and all values on ``ARGS``."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(1)).eval()
    path = tmp_path_factory.mktemp("dumps") / "model.onnx"
    fx2onnx.export(module, ARGS, path)
    model = onnx.load(path)
    names = [name for node in model.graph.node for name in node.output if name]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    values = runner.InferenceSession(model.SerializeToString()).run(None, {"input": ARGS[0].numpy()})
    return path, module, dict(zip(names, values, strict=True))


def spoilt(values: dict[str, Any], index: int) -> tuple[str, dict[str, Any]]:
    """A dump of a device whose value of that index is wrong, and those behind it follow from it or not: only the first counts."""
    name = list(values)[index]
    return name, {each: array * (1.1 if each == name else 1) for each, array in values.items()}


def test_a_right_dump_has_no_wrong_value(made: tuple[Path, nn.Module, dict[str, Any]]) -> None:
    path, module, values = made
    assert fx2onnx.locate(path, module, ARGS, dump=values) is None
    half = {name: array.astype(np.float16) for name, array in values.items()}
    assert fx2onnx.locate(path, module, ARGS, dump=half) is None


@pytest.mark.parametrize("index", [0, 1, 2, 3])
@pytest.mark.parametrize("engine", ["runner", "onnxruntime"])
def test_the_first_wrong_value_is_named(made: tuple[Path, nn.Module, dict[str, Any]], index: int, engine: str) -> None:
    path, module, values = made
    name, dump = spoilt(values, index)
    found = fx2onnx.locate(path, module, ARGS, dump=dump, engines=[engine])
    assert found is not None
    assert (found.value, found.stage, found.blame, len(found.nodes)) == (name, "engine", "the device", 1)
    assert "differ" in found.engines["dump"]
    assert ("the dump has no input" in found.why) == (index == 0)
    assert found.case is not None
    np.testing.assert_allclose(found.case.outputs[name], values[name], rtol=1e-3, atol=1e-5)


def test_values_between_may_be_missing(made: tuple[Path, nn.Module, dict[str, Any]]) -> None:
    path, module, values = made
    name, dump = spoilt(values, 3)
    found = fx2onnx.locate(path, module, ARGS, dump={each: dump[each] for each in (next(iter(dump)), name)})
    assert found is not None
    assert (found.value, len(found.nodes)) == (name, 3)


def test_folders_have_files_by_nodes_or_values(made: tuple[Path, nn.Module, dict[str, Any]], tmp_path: Path) -> None:
    path, module, values = made
    name, dump = spoilt(values, 1)
    nodes = {node.output[0]: node.name for node in onnx.load(path).graph.node}
    for index, (each, array) in enumerate(dump.items()):
        np.save(tmp_path / f"{(nodes[each] if index % 2 else each).replace('/', '_')}.npy", array)
    found = fx2onnx.locate(path, module, ARGS, dump=tmp_path)
    assert found is not None
    assert found.value == name
    done = invoke("locate", str(path), "zoo:mnist_cnn", "--dump", str(tmp_path / "none"))
    assert done.exit_code == 2


@pytest.mark.parametrize(("dump", "code"), [({"other": np.zeros(2)}, "E401"), ("nothing", "E302"), (__file__, "E302")])
def test_a_dump_of_something_else(made: tuple[Path, nn.Module, dict[str, Any]], dump: Any, code: str) -> None:
    path, module, _ = made
    with pytest.raises(UserError) as raised:
        fx2onnx.locate(path, module, ARGS, dump=dump)
    assert raised.value.code == code


@pytest.mark.long
def test_arrays_of_no_value_are_named(made: tuple[Path, nn.Module, dict[str, Any]], tmp_path: Path) -> None:
    path, module, values = made
    with pytest.warns(
        fx2onnx.ExportWarning, match=r"2 of \d+ arrays of the dump are no value of the file, and not compared: a, b"
    ):
        assert fx2onnx.locate(path, module, ARGS, dump={**values, "a": np.zeros(1), "b": np.ones(2)}) is None
    source = tmp_path / "net.py"
    source.write_text("import torch\ndef make(): return torch.nn.Tanh(), (torch.zeros(2),)\n")
    fx2onnx.export(nn.Tanh(), (torch.zeros(2),), tmp_path / "m.onnx")
    names = [value.name for value in onnx.load(tmp_path / "m.onnx").graph.output]
    np.savez(tmp_path / "dump.npz", **{names[0]: np.zeros(2, np.float32), "other": np.zeros(2)})
    done = invoke("locate", str(tmp_path / "m.onnx"), f"{source}:make", "--dump", str(tmp_path / "dump.npz"))
    assert done.exit_code == 0, done.output
    assert "1 of 2 arrays of the dump are no value of the file" in done.output
    assert "each value follows from those before it" in done.output
    assert "agrees with" not in done.output


def test_a_folder_without_arrays(made: tuple[Path, nn.Module, dict[str, Any]], tmp_path: Path) -> None:
    path, module, _ = made
    with pytest.raises(UserError, match="no array of the dump"):
        fx2onnx.locate(path, module, ARGS, dump=tmp_path)
    (tmp_path / "tanh.npy").write_bytes(b"no array")
    with pytest.raises(UserError, match=r"cannot read .*tanh\.npy"):
        fx2onnx.locate(path, module, ARGS, dump=tmp_path)


@pytest.mark.parametrize("name", ["onnxruntime:cpu", "onnxruntime:CPUExecutionProvider"])
def test_a_provider_is_an_engine(made: tuple[Path, nn.Module, dict[str, Any]], name: str) -> None:
    path, module, _ = made
    verdict = fx2onnx.verify(path, module, ARGS, engines=[name], effort="quick")
    assert verdict.ok
    assert {row.engine for row in verdict.rows} >= {"onnxruntime:CPUExecutionProvider"}
    assert fx2onnx.locate(path, module, ARGS, engines=[name], effort="quick") is None


def test_a_provider_that_is_not_there() -> None:
    for name in ("abacus", ""):
        with pytest.raises(UserError, match=f"no provider '{name}'") as raised:
            chosen_engines([f"onnxruntime:{name}"])
        assert raised.value.code == "E602"
    with pytest.raises(UserError, match="unknown engine"):
        chosen_engines(["runner:cpu"])
