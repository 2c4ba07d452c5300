"""Modules as ONNX functions: one body for equal calls, the same numbers, the same graph where they are inlined."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import verify
from fx2onnx.exporting.functions import found_in
from fx2onnx.runner import InferenceSession
from tests.cli.support import invoke


class Block(nn.Module):
    """A layer that shares what makes the mask with others, and has a number of its own."""

    def __init__(self, scale: float = 1.0, slope: float = 0.1) -> None:
        super().__init__()
        self.norm, self.first, self.act = nn.LayerNorm(8), nn.Linear(8, 8), nn.LeakyReLU(slope)
        self.scale = scale

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(x.shape[1]).expand(x.shape[0], -1) < lengths[:, None]
        return x + self.act(self.first(self.norm(x))) * mask[..., None].to(x.dtype) * self.scale


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, lengths)
        return self.head(x)


SAMPLE = (torch.randn(2, 5, 8), torch.tensor([3, 5]))
DYNAMIC = {"x": {0: "batch", 1: "length"}, "lengths": {0: "batch"}}


def exported(
    path: Path, module: nn.Module, args: tuple[Any, ...], **keywords: Any
) -> tuple[onnx.ModelProto, dict[str, int]]:
    """Export, check with everything that reads files, compare with the module; the message, and calls by class."""
    result = fx2onnx.export(module, args, path, **keywords)
    onnx.checker.check_model(str(path), full_check=True)
    verdict = verify(str(path), module, args)
    assert verdict.ok, verdict.rows
    return onnx.load(path), {name.rpartition("::")[2]: count for name, count in result.report.functions.items()}


def operators(graph: onnx.GraphProto) -> Counter[str]:
    return Counter(node.op_type for node in graph.node if node.op_type != "Constant")


def test_equal_layers_have_one_body(tmp_path: Path) -> None:
    module = Stack(Block(), Block(), Block()).eval()
    model, calls = exported(tmp_path / "m.onnx", module, SAMPLE, functions=True, dynamic_shapes=DYNAMIC)
    assert calls == {"Block": 3, "Linear": 4, "LayerNorm": 3, "LeakyReLU": 3}
    called = [node for node in model.graph.node if node.domain]
    assert [node.op_type for node in called] == ["Block", "Block", "Block", "Linear"]
    assert [node.name for node in called][:2] == ["blocks.0/Block", "blocks.1/Block"]
    (body,) = [each for each in model.functions if each.name == "Block"]
    assert body.domain == __name__
    assert {"first.bias", "norm.weight"} <= set(body.input)
    assert {each.name for each in model.graph.initializer} >= {"blocks.0.first.bias", "blocks.2.first.bias"}
    assert all(any(each.key == "source" for each in node.metadata_props) for node in body.node if node.op_type == "Add")
    fx2onnx.export(module, SAMPLE, tmp_path / "plain.onnx", dynamic_shapes=DYNAMIC)
    inlined = onnx.inliner.inline_local_functions(model)
    assert operators(inlined.graph) == operators(onnx.load(tmp_path / "plain.onnx").graph)
    feeds = {"x": np.ones((4, 7, 8), np.float32), "lengths": np.array([1, 7, 3, 2])}
    want = module(*map(torch.from_numpy, feeds.values())).detach().numpy()
    for session in (ort.InferenceSession(inlined.SerializeToString()), InferenceSession(tmp_path / "m.onnx")):
        assert np.allclose(session.run(None, feeds)[0], want, atol=1e-5)


@pytest.mark.long
def test_classes_that_are_asked_for(tmp_path: Path) -> None:
    module = Stack(Block(), Block()).eval()
    for asked in ([Block], ["Block"], {Block}):
        model, calls = exported(tmp_path / "m.onnx", module, SAMPLE, functions=asked)
        assert calls == {"Block": 2}
        assert [each.name for each in model.functions] == ["Block"]
    _, calls = exported(tmp_path / "m.onnx", module, SAMPLE, export_modules_as_functions={nn.LayerNorm})
    assert calls == {"LayerNorm": 2}


@pytest.mark.long
def test_what_differs_is_an_attribute_or_another_body(tmp_path: Path) -> None:
    module = Stack(Block(slope=0.1), Block(slope=0.3), Block(slope=0.1, scale=2.0)).eval()
    model, calls = exported(tmp_path / "m.onnx", module, SAMPLE, functions=[nn.LeakyReLU])
    assert calls == {"LeakyReLU": 3}
    (body,) = model.functions
    assert list(body.attribute) == ["alpha"]
    values = [node.attribute[0].f for node in model.graph.node if node.op_type == "LeakyReLU"]
    assert np.allclose(values, [0.1, 0.3, 0.1])
    _, calls = exported(tmp_path / "m.onnx", module, SAMPLE, functions=[Block])
    assert calls == {"Block": 2, "Block_2": 1}


def test_the_sign_of_a_zero_is_an_attribute_too(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.LeakyReLU(0.0), nn.LeakyReLU(-0.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.one(x), self.other(x)])

    module, x = Pair().eval(), torch.tensor([-1.0, 2.0])
    model, _ = exported(tmp_path / "m.onnx", module, (x,), functions=[nn.LeakyReLU])
    (found,) = InferenceSession(model.SerializeToString()).run(None, {model.graph.input[0].name: x.numpy()})
    assert np.signbit(found).tolist() == np.signbit(module(x).numpy()).tolist()


def test_a_module_that_is_called_in_several_places(tmp_path: Path) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.relu(self.layer(x)) + 1) * 2

    _, calls = exported(tmp_path / "m.onnx", Shared().eval(), (torch.randn(3, 4),), functions=[nn.Sequential])
    assert calls == {"Sequential": 2}


@pytest.mark.long
def test_bodies_of_control_flow(tmp_path: Path) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            return torch.cond(x.sum() > 0, lambda y: self.up(y) + 1, lambda y: self.down(y).tanh(), (y,))

    module = nn.Sequential(Branch(), Branch()).eval()
    model, calls = exported(tmp_path / "m.onnx", module, (torch.randn(3, 4),), functions=[Branch])
    assert calls == {"Branch": 2}
    assert [node.op_type for node in model.graph.node] == ["Branch", "Branch"]
    for sign in (1, -1):
        feeds = {"input": np.full((3, 4), sign, np.float32)}
        want = module(torch.from_numpy(feeds["input"])).detach().numpy()
        assert np.allclose(ort.InferenceSession(tmp_path / "m.onnx").run(None, feeds)[0], want, atol=1e-5)


def test_with_half_precision(tmp_path: Path) -> None:
    module = Stack(Block(), Block()).eval()
    _, calls = exported(tmp_path / "m.onnx", module, SAMPLE, functions=[Block], dtype="float16", io="float32")
    assert calls == {"Block": 2}


def test_a_class_that_no_module_has() -> None:
    with pytest.raises(fx2onnx.UserError, match="no module is a Blok") as caught:
        fx2onnx.export(Stack(Block()), SAMPLE, functions=["Blok"])
    assert "did you mean Block" in caught.value.render()
    with pytest.raises(fx2onnx.UserError, match="functions is 'Block'"):
        fx2onnx.export(Stack(Block()), SAMPLE, functions="Block")


@pytest.mark.long
def test_on_the_command_line(tmp_path: Path) -> None:
    command = ["export", "zoo:bert_tiny", "-o", str(tmp_path / "m.onnx"), "--functions", "BertLayer", "-q"]
    done = invoke(*command)
    assert done.exit_code == 0, done.output
    assert [each.name for each in onnx.load(tmp_path / "m.onnx").functions] == ["BertLayer"]


@pytest.mark.long
def test_each_file_of_a_folder_has_functions_of_the_classes_that_its_part_has(tmp_path: Path) -> None:
    layers = "encoder_layers=2&decoder_layers=2&encoder_attention_heads=2&decoder_attention_heads=2"
    source = f"hf:bart?{layers}&d_model=16&encoder_ffn_dim=32&decoder_ffn_dim=32&vocab_size=50"
    task, classes = "text2text-generation-with-past", ["BartEncoderLayer", "BartDecoderLayer"]
    done = fx2onnx.export_folder(source, tmp_path / "out", task=task, functions=classes, verify=True)
    assert all(verdict.ok for verdict in done.verdicts.values())
    called = {name: {key.rpartition("::")[2] for key in report.functions} for name, report in done.reports.items()}
    assert (
        "BartEncoderLayer" in called["encoder_model.onnx"]
    )  # which also computes what the decoder's layers keep of it
    assert called["decoder_model.onnx"] == {"BartDecoderLayer"}
    plain = fx2onnx.export_folder(source, tmp_path / "plain", task=task)
    prompt = np.array([[5, 6, 7, 1]])
    found = [np.asarray(fx2onnx.load(each.path).generate(prompt, max_new_tokens=3)) for each in (plain, done)]
    assert np.array_equal(*found)


def test_classes_of_which_a_part_has_none_are_left_out_of_it() -> None:
    assert found_in(Block(), [Block, "Conv2d", nn.Linear]) == [Block, nn.Linear]
    assert found_in(Block(), True) is True


def test_a_class_that_no_part_of_a_folder_has_is_refused(tmp_path: Path) -> None:
    source = "hf:gpt2?n_layer=1&n_embd=16&n_head=2&vocab_size=20&bos_token_id=1&eos_token_id=2"
    with pytest.raises(fx2onnx.UserError, match="no module is a GPT2Blok") as caught:
        fx2onnx.export_folder(source, tmp_path / "out", functions=["GPT2Blok"])
    assert "GPT2Block" in caught.value.next[0]
    assert not (tmp_path / "out").exists()
