"""Programs of ``torch.export`` bring their sample and their dynamic sizes along; dicts at the end of ``args`` are keywords."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import fx2onnx
from fx2onnx.runner import InferenceSession
from tests.support import run_engines

X = torch.randn(3, 2)


class Doubled(nn.Module):
    def forward(self, a: torch.Tensor, *, d: dict[str, torch.Tensor]) -> torch.Tensor:
        return a.repeat_interleave(2, 0) + d["b"]


class Shifted(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a[:, None, 0] * b[1:, 1] + b.sum()


class Flat(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.flatten() * b


def shapes(result: Any) -> list[list[str | int]]:
    return [
        [size if isinstance(size, int) else str(size.value) for size in value.shape]
        for value in result.model.graph.inputs
    ]


def check(result: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
    wanted = module(*args, **(kwargs or {}))
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    feeds = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    for outputs in run_engines(result.model_proto, feeds).values():
        torch.testing.assert_close(torch.from_numpy(outputs[0]), wanted)


def test_the_sample_and_the_sizes_of_a_program_are_those_of_the_file() -> None:
    batch = Dim("batch", min=2, max=9)
    kwargs = {"d": {"b": torch.randn(6, 2)}}
    program = torch.export.export(Doubled(), (X,), kwargs, dynamic_shapes={"a": {0: batch}, "d": {"b": {0: 2 * batch}}})
    result = fx2onnx.export(program, verify=True)
    (name, _), (twice, _) = shapes(result)
    assert twice == f"2*{name}"
    check(result, Doubled(), (X[:2],), {"d": {"b": kwargs["d"]["b"][:4]}})
    session = InferenceSession(result.model_proto)
    feeds = {each.name: torch.randn(rows, 2).numpy() for each, rows in zip(session.get_inputs(), (10, 20), strict=True)}
    with pytest.raises(fx2onnx.Fx2OnnxError, match=f"{name} <= 9"):
        session.run(None, feeds)


class Eigenvalues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eig(self.linear(x))[0]  # the line


@pytest.mark.parametrize("form", ["program", "saved", "strict"])
def test_an_error_in_a_program_is_at_the_line_that_was_captured(form: str, tmp_path: Path) -> None:
    program = torch.export.export(Eigenvalues(), (torch.randn(3, 3),), strict=form == "strict")
    if form == "saved":
        torch.export.save(program, tmp_path / "program.pt2")
        program = torch.export.load(tmp_path / "program.pt2")
    with pytest.raises(
        fx2onnx.UserError, match=r"(?s)E203.*test_exported_programs\.py:\d+, in forward.*> .*# the line"
    ):
        fx2onnx.export(program)


def test_nodes_of_a_program_have_the_lines_that_were_captured() -> None:
    program = torch.export.export(Shifted(), (X, torch.randn(4, 2)))
    texts = [prop.value for node in fx2onnx.export(program).model_proto.graph.node for prop in node.metadata_props]
    assert "eval_with_key" not in str(texts)
    assert f"{Path(__file__).name}" in str(texts)


def test_sizes_that_are_others_and_a_number() -> None:
    size = Dim("n")
    program = torch.export.export(
        Shifted(), (X, torch.randn(4, 2)), dynamic_shapes={"a": {0: size}, "b": {0: size + 1}}
    )
    result = fx2onnx.export(program)
    (name, _), (more, _) = shapes(result)
    assert more == f"{name} + 1"
    check(result, Shifted(), (torch.randn(5, 2), torch.randn(6, 2)))


@pytest.mark.long
def test_products_of_sizes_follow_from_the_graph() -> None:
    free = Dim.AUTO
    program = torch.export.export(Flat(), (X, torch.randn(6)), dynamic_shapes=({0: free, 1: free}, {0: free}))
    result = fx2onnx.export(program)
    check(result, Flat(), (torch.randn(4, 5), torch.randn(20)))


def test_what_a_call_gives_goes_before_what_a_program_has() -> None:
    program = torch.export.export(nn.Linear(2, 3), (X,), dynamic_shapes=({0: Dim("n")},))
    assert shapes(fx2onnx.export(program, input_names=["u"], dynamic_axes={"u": {0: "batch"}})) == [["batch", 2]]
    assert shapes(fx2onnx.export(program, (X,), dynamic_shapes=({},))) == [[3, 2]]
    assert shapes(fx2onnx.export(torch.export.export(nn.Linear(2, 3), (X,)))) == [[3, 2]]


class Optional(nn.Module):
    def forward(self, x: torch.Tensor, y: Any = None, d: Any = None) -> torch.Tensor:
        x = x if d is None else x * d["k"]
        return x if y is None else x + y


@pytest.mark.parametrize(
    ("args", "inputs"),
    [
        ((X, {"y": X}), ["x", "y"]),
        ([X, {"y": X, "d": {"k": X}}], ["x", "y", "d_k"]),
        ((X, {}), ["x"]),
        ((X, X, {"k": X}), ["x", "y", "d_k"]),
        ((X, X, {"d": {"k": X}}), ["x", "y", "d_k"]),
    ],
)
def test_a_dict_that_ends_the_arguments_has_keywords_where_they_fit(args: Any, inputs: list[str]) -> None:
    assert fx2onnx.export(Optional(), args, verify=True).report.input_names == inputs
