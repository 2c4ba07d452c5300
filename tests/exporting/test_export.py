"""The call: names, structures, weights, files, and one clear error for each kind of bad input."""

from __future__ import annotations

import logging
import math
import os
import re
import stat
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import fx2onnx
from fx2onnx.irx import io
from fx2onnx.irx.data_file import ALIGNMENT_BYTES
from fx2onnx.runner import InferenceSession
from fx2onnx.runner.trainer import StatefulSession
from tests.support import check

Pair = namedtuple("Pair", ["first", "second"])


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * math.sqrt(x.sum().item())


@torch.library.custom_op("fx2onnx_test::mystery", mutates_args=())
def mystery(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@torch.library.custom_op("fx2onnx_test::enigma", mutates_args=())
def enigma(x: torch.Tensor) -> torch.Tensor:
    return x - 1


mystery.register_fake(torch.empty_like)
enigma.register_fake(torch.empty_like)


class Unsupported(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return mystery(self.inner(x))


def names(result: fx2onnx.ExportResult) -> tuple[list[str], list[str]]:
    return result.report.input_names, result.report.output_names


@pytest.mark.parametrize(
    ("forward", "args", "expected"),
    [
        (lambda x: x + 1, torch.ones(2), (["x"], ["output"])),
        (lambda x, y: (x + 1, y * 2), (torch.ones(2), torch.ones(2)), (["x", "y"], ["output_0", "output_1"])),
        (lambda x: {"logits": x + 1, "loss": x.sum()}, (torch.ones(2),), (["x"], ["logits", "loss"])),
        (lambda x: Pair(x + 1, x * 2), (torch.ones(2),), (["x"], ["first", "second"])),
        (lambda x: {"x": x}, (torch.ones(2),), (["x"], ["x"])),
        (lambda x: [{"a": x + 1}, None, x], (torch.ones(2),), (["x"], ["output_0_a", "output_2"])),
        (lambda past: past[0][1] + past[1][0], ([[torch.ones(2), torch.ones(2)], [torch.ones(2)]],),
         (["past_0_0", "past_0_1", "past_1_0"], ["output"])),
        (lambda x, scale=2.0, *, flag=True: x * scale if flag else x, (torch.ones(2), 3.0), (["x"], ["output"])),
        (lambda *xs: xs[0] + xs[1], (torch.ones(2), torch.ones(2)), (["xs_0", "xs_1"], ["output"])),
    ],
)  # fmt: skip
def test_names(forward: Any, args: Any, expected: tuple[list[str], list[str]]) -> None:
    assert names(fx2onnx.export(forward, args)) == expected


def test_given_names() -> None:
    result = fx2onnx.export(lambda x, y: x + y, (torch.ones(2), torch.ones(2)), input_names=["a"], output_names=["z"])
    assert names(result) == (["a", "y"], ["z"])


def test_names_that_fall_together_are_told_apart():
    """``a[0]`` and a parameter called ``a_0``."""
    result = fx2onnx.export(lambda a, a_0: a[0] - a_0, ([torch.ones(2)], torch.zeros(2)))
    assert result.report.input_names == ["a_0", "a_0_"]


@pytest.mark.parametrize("names", [{"input_names": ["a", "a"]}, {"output_names": ["z", "z"]}, {"input_names": "ab"}])
def test_names_that_are_no_list_of_different_ones_are_an_error(names):
    with pytest.raises(fx2onnx.UserError, match=r"twice|is 'ab', not a list"):
        fx2onnx.export(lambda x, y: (x + y, x - y), (torch.ones(2), torch.ones(2)), **names)


def test_a_failing_operator_is_one_error_and_no_log(caplog):
    """torch logs the stack of a failing fake kernel; the error says it all."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(4, 5))
    with pytest.raises(fx2onnx.UserError, match=r"shapes cannot be multiplied"):
        fx2onnx.export(module, torch.ones(3, 4))
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


def test_args_as_dict_and_kwargs() -> None:
    function = lambda x, y=None: x - y  # noqa: E731
    for call in (
        {"args": {"x": torch.ones(2), "y": torch.zeros(2)}},
        {"args": (torch.ones(2),), "kwargs": {"y": torch.zeros(2)}},
        {"args": (), "kwargs": {"x": torch.ones(2), "y": torch.zeros(2)}},
    ):
        assert names(fx2onnx.export(function, **call)) == (["x", "y"], ["output"])


def test_structure_is_restored() -> None:
    with pytest.warns(fx2onnx.ExportWarning, match="is a str"):
        result = fx2onnx.export(lambda x: {"a": [x, None], "b": (x + 1, "text")}, (torch.ones(2),))
    assert result.restore_outputs([1, 2]) == {"a": [1, None], "b": (2, "text")}


def test_weights_carry_their_state_dict_names_and_tied_ones_are_one() -> None:
    module = Tied()
    result = check(module, (torch.tensor([[1, 2, 3]]),), rtol=1e-4)
    assert list(result.model.graph.initializers) == ["embed.weight"]


def test_an_untied_linear_is_stored_transposed() -> None:
    result = check(torch.nn.Linear(4, 3), (torch.randn(2, 5, 4),))
    assert "Transpose" not in [node.op_type for node in result.model.graph]


def test_nodes_carry_module_path_and_line() -> None:
    result = fx2onnx.export(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), (torch.randn(2, 4),))
    first, second = result.model.graph
    assert first.name == "0/Gemm"
    assert second.name == "1/Relu"

    class Own(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.tanh()

    (node,) = fx2onnx.export(Own(), (torch.ones(2),)).model.graph
    assert node.metadata_props["source"].startswith("tests/exporting/test_export.py:")
    (node,) = fx2onnx.export(Own(), (torch.ones(2),), metadata="none").model.graph
    assert not node.metadata_props


def test_every_value_has_dtype_and_shape() -> None:
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.GELU("tanh"), torch.nn.Flatten(), torch.nn.LazyLinear(2)
    )
    module(torch.randn(1, 3, 8, 8))
    result = fx2onnx.export(module, (torch.randn(1, 3, 8, 8),), opset_version=15, dynamic_shapes=({0: "n"},))
    for node in result.model.graph:
        for value in node.outputs:
            assert value.dtype is not None, value
            assert value.shape is not None, value
            assert None not in value.shape.numpy() if not value.shape.is_dynamic() else True


@pytest.mark.parametrize("opset", range(11, min(onnx.defs.onnx_opset_version(), 26) + 1))
def test_the_file_has_the_opset_asked_for(opset: int) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU(), torch.nn.Softmax(-1))
    result = check(module, (torch.randn(2, 3, 4),), opset_version=opset)
    assert result.model.opset_imports[""] == opset


@pytest.mark.parametrize("opset", [10, 27, 0, "20"])
def test_other_opsets_are_refused_before_capture(opset: Any) -> None:
    module_that_fails = torch.nn.Linear(3, 4)
    with pytest.raises(fx2onnx.UserError, match=f"opset_version={opset!r}") as caught:
        fx2onnx.export(module_that_fails, (torch.ones(2, 5),), opset_version=opset)
    assert caught.value.code == "E001"


def test_small_models_are_one_file(tmp_path: Path) -> None:
    fx2onnx.export(torch.nn.Linear(3, 4), (torch.ones(1, 3),), tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_large_models_have_one_aligned_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "SMALL_MODEL_BYTES", 10_000)
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64, bias=False))
    x = torch.randn(2, 3, 64)
    result = fx2onnx.export(module, (x,), tmp_path / "m.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", next(tmp_path.glob("m.onnx.*.data")).name]
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert re.fullmatch(r"m\.onnx\.[0-9a-f]{16}\.data", sorted(tmp_path.iterdir())[1].name)
    offsets = [int(e.value) for w in proto.graph.initializer for e in w.external_data if e.key == "offset"]
    assert len(offsets) == 2
    assert all(offset % ALIGNMENT_BYTES == 0 for offset in offsets)
    assert result.report.file_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    want = module(x).detach().numpy()
    for session in (InferenceSession(str(tmp_path / "m.onnx")), onnxruntime.InferenceSession(tmp_path / "m.onnx")):
        np.testing.assert_allclose(
            session.run(None, {result.report.input_names[0]: x.numpy()})[0], want, rtol=1e-5, atol=1e-6
        )


def test_same_export_same_bytes(tmp_path: Path) -> None:
    module = Tied()
    for name in ("a.onnx", "b.onnx"):
        fx2onnx.export(module, (torch.tensor([[1, 2]]),), tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_no_absolute_path_leaks(tmp_path: Path) -> None:
    fx2onnx.export(Tied(), (torch.tensor([[1, 2]]),), tmp_path / "m.onnx", metadata="full")
    assert os.getcwd().encode() not in (tmp_path / "m.onnx").read_bytes()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "m.onnx"
    fx2onnx.export(torch.nn.Linear(3, 4), (torch.ones(1, 3),), target)
    before = target.read_bytes()

    def full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(io.os, "replace", full_disk)
    with pytest.raises(fx2onnx.UserError, match="No space left") as caught:
        fx2onnx.export(torch.nn.Linear(3, 4), (torch.ones(1, 3),), target)
    assert caught.value.code == "E301"
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    ("module", "args", "code", "words"),
    [
        (Scaled(), (torch.ones(2),), "E104", ["torch.where", "x * math.sqrt(x.sum().item())"]),
        (Unsupported(), (torch.ones(4),), "E201", ["fx2onnx_test.mystery.default", "mystery(self.inner"]),
        (torch.nn.Linear(3, 4), (torch.ones(1, 3), torch.ones(1)), "E101", ["forward", "too many positional"]),
        (torch.nn.Linear(3, 4), (), "E101", ["missing a required argument: 'input'"]),
        (torch.nn.Linear(3, 4), {"inputs": torch.ones(1, 3)}, "E101", ["inputs"]),
        (torch.nn.Linear(3, 4), (torch.ones(1, 5),), "E101", ["fake tensors", "RuntimeError"]),
        ("model.onnx", (), "E001", ["str", "pass an nn.Module or a function", "fx2onnx.optimize(file)"]),
        (fx2onnx.export(torch.nn.ReLU(), (torch.ones(1),)), (), "E001", ["ExportResult is not a module", "optimize"]),
        (torch.nn.ReLU, (torch.ones(1),), "E001", ["ReLU is a class", "ReLU(...).eval()"]),
        (torch.nn.LazyLinear(3), (torch.ones(2, 2),), "E101", ["the shape of weight", "once, then export"]),
        (torch.nn.Linear(3, 4).state_dict(), (torch.ones(1, 3),), "E001", ["not a module", "load_state_dict"]),
    ],
)
def test_one_clear_error(module: Any, args: Any, code: str, words: list[str], tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    target.write_bytes(b"the previous file")
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(module, args, target)
    error = caught.value
    assert error.code == code
    assert error.exit_code == 2
    assert error.next, "an error says what to do"
    for word in words:
        assert word in str(error)
    assert target.read_bytes() == b"the previous file"
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_missing_folder_and_folder_as_path(tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "m.onnx", tmp_path, ""):
        with pytest.raises(fx2onnx.UserError) as caught:
            fx2onnx.export(torch.nn.ReLU(), (torch.ones(1),), path)
        assert caught.value.code == "E301"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_folder(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(torch.nn.ReLU(), (torch.ones(1),), tmp_path / "m.onnx")
    assert caught.value.code == "E301"


def test_all_missing_overloads_in_one_message() -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(lambda x: enigma(mystery(x)) + mystery(x), (torch.ones(4),))
    assert "mystery" in str(caught.value)
    assert "used 2 times" in caught.value.why
    assert "enigma" in caught.value.why


def test_mutated_buffer_can_be_an_error() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            return x * self.seen

    with pytest.raises(fx2onnx.UserError, match="seen") as caught:
        fx2onnx.export(Counts(), (torch.ones(2),), state="error")
    assert caught.value.code == "E106"
    assert caught.value.where is not None
    assert [step.partition('"')[2].partition('"')[0] for step in caught.value.next] == ["io", "warn"]
    report = check(Counts(), (torch.ones(2),)).report
    assert report.mutations
    assert report.warnings[0].endswith('the file does not, unless state="io"')


class Running(torch.nn.Module):
    """A running mean: state from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("unused", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.5).add_(x.mean(0) * 0.5)
        return x - self.mean


def test_state_as_inputs_and_outputs() -> None:
    module = Running()
    samples = [torch.randn(3, 2, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    result = fx2onnx.export(module, (samples[0],), state="io")
    assert names(result) == (["x", "mean"], ["output", "mean.next"])
    session = InferenceSession(result.model_proto.SerializeToString())
    state = {name: tensor.numpy() for name, tensor in result.initial_state.items()}
    for x in samples:
        output, following = session.run(None, {"x": x.numpy(), **state})
        np.testing.assert_allclose(output, module(x).numpy(), rtol=1e-5, atol=1e-6)
        state = {"mean": following}
    np.testing.assert_allclose(state["mean"], module.mean.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", [InferenceSession, onnxruntime.InferenceSession])
def test_state_is_carried_between_calls(engine: Any) -> None:
    module = Running()
    result = fx2onnx.export(module, (torch.randn(3, 2),), state="io")
    session = StatefulSession(engine(result.model_proto.SerializeToString()), result.initial_state)
    for seed in range(4):
        x = torch.randn(3, 2, generator=torch.Generator().manual_seed(seed))
        (output,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(output, module(x).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(session.state["mean"], module.mean.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(fx2onnx.UserError, match="does not have this state"):
        StatefulSession(session.session, {"other": np.zeros(2)})


def test_changed_input_as_output() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2

    result = fx2onnx.export(forward, (torch.ones(2),), state="io")
    assert names(result) == (["x"], ["output", "x.next"])


def test_baked_input() -> None:
    def forward(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return x[: [0, 1, 2, 3, 4][int(count)]] * 2

    args = (torch.arange(5.0), torch.tensor(3))
    with pytest.raises(fx2onnx.UserError, match="bake") as caught:
        fx2onnx.export(forward, args, capture="fake")
    assert caught.value.code == "E104"
    result = fx2onnx.export(forward, args, bake=["count"])
    assert names(result) == (["x"], ["output"])
    assert result.report.baked == ["count"]
    with pytest.raises(fx2onnx.UserError, match="no input"):
        fx2onnx.export(forward, args, bake=["size"])


def test_training_mode() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    check(module.train(), (torch.randn(2, 3, 6, 6),), training=True, state="drop")
    assert module.training


def test_weights_that_are_inputs_keep_their_names_and_shapes() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    result = fx2onnx.export(module, (torch.ones(1, 3, 8, 8),), export_params=False)
    shapes = {value.name: tuple(value.shape.numpy()) for value in result.model.graph.inputs if value.shape is not None}
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items() if tensor.dim()}
    assert wanted.items() <= shapes.items()


@pytest.mark.long
def test_a_folder_that_is_verified_has_a_verdict_for_each_graph(tmp_path: Path) -> None:
    source = "hf:gpt2?n_layer=1&n_embd=16&n_head=2&vocab_size=20&bos_token_id=1&eos_token_id=2"
    done = fx2onnx.export_folder(source, tmp_path / "out", task="text-generation-with-past", verify=True)
    assert done.verdicts.keys() == done.sources.keys()
    assert all(verdict.ok for verdict in done.verdicts.values())


def test_an_opset_that_the_installed_onnx_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: 22)
    with pytest.raises(fx2onnx.UserError, match="does not know opset 23") as caught:
        fx2onnx.export(torch.nn.ReLU(), (torch.ones(2),), opset_version=23)
    assert caught.value.code == "E602"
    assert "opset_version=22" in caught.value.next[0]
