"""What versions of torch other than the pinned one ask of a symbolic size, or lack."""

from __future__ import annotations

import pytest
import torch

from fx2onnx.aten_map.table.registry import RENAMED, Table, _checked_arguments
from fx2onnx.base.changes import Changes
from fx2onnx.base.errors import UserError
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import DimNode, sym_int
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat.capture_modes import _xor
from fx2onnx.torchcompat.versions import find, found


def node(value: Dim | int, hints: dict[str, int]) -> DimNode:
    return DimNode(ShapeEnv(hints), value, int)


def test_a_size_that_is_given_to_an_operator_is_not_negative() -> None:
    assert node(Dim.symbol("n"), {"n": 4}).expect_size("", 0)
    assert not node(-1, {}).expect_size("", 0)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("right", [True, False])
def test_one_of_two(left: bool, right: bool) -> None:
    env = ShapeEnv({})
    assert DimNode(env, left, bool).xor(DimNode(env, right, bool)).bool_() == (left != right)


def test_only_booleans_say_that_they_are_constant() -> None:
    assert DimNode(ShapeEnv({}), True, bool).is_constant()
    assert not node(3, {}).is_constant()


def test_bits_of_a_size() -> None:
    size = sym_int(ShapeEnv({"n": 6}), Dim.symbol("n"))
    assert int(_xor(size, 3)) == 6 ^ 3


def test_names_are_looked_for() -> None:
    assert find("nn.Linear") is torch.nn.Linear
    assert find("nn.NoSuchLayer.of_any_kind") is None
    assert list(found("nn.Linear", "no_such_thing", "nn.ReLU")) == [torch.nn.Linear, torch.nn.ReLU]


def test_an_argument_may_have_another_name_in_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def mv(op: object, self: object, vector: object) -> None: ...

    overload = torch.ops.aten.mv.default
    with pytest.raises(UserError, match="not in the schema: vector"):
        _checked_arguments(overload, mv)
    monkeypatch.setitem(RENAMED, "vec", "vector")
    with pytest.raises(UserError, match="not in the schema: vector"):  # a user's function has to have the right ones
        Table().add(overload, 0, mv)
    mv.__module__ = "fx2onnx.aten_map.matmul"
    assert _checked_arguments(overload, mv) == ("self", "vec")


def test_operators_that_are_added_to_sizes_go_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from fx2onnx.torchcompat import capture_modes

    class Lacking:
        """As torch.SymInt is in 2.10."""

    monkeypatch.setattr(torch, "SymInt", Lacking)
    with Changes():
        capture_modes._add_operators()
        assert torch.SymInt.__xor__ is _xor
    assert not hasattr(Lacking, "__xor__")
