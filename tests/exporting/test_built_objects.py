"""Arguments of classes whose construction does something: the file and verify take the object that the caller built."""

from __future__ import annotations

import collections
import dataclasses
import functools
import weakref
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils import _pytree as pytree

import fx2onnx
from fx2onnx import locate
from fx2onnx.runner import InferenceSession
from fx2onnx.torchcompat.pytrees import registered_meanwhile


@dataclass
class Late:
    x: torch.Tensor
    n: int = field(init=False, default=2)


@dataclass
class Once:
    x: torch.Tensor
    scale: InitVar[int] = 1

    def __post_init__(self, scale: int) -> None:
        self.n = scale


@dataclass
class Counts:
    x: torch.Tensor
    n: int = 2

    def __post_init__(self) -> None:
        assert self.x.shape[-1] == 3
        self.x, self.n = self.x.float(), self.n * 10


@dataclass
class Lengths:
    x: torch.Tensor
    lengths: list[int]

    def __post_init__(self) -> None:
        self.n, self.lengths = float(len(self.lengths)), self.lengths[:1]


@dataclass(frozen=True, slots=True)
class Frozen:
    x: torch.Tensor
    n: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", self.n + 1)


@dataclass(kw_only=True)
class Masked:
    x: torch.Tensor
    n: int = 2
    mask: torch.Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.double = self.x * 2


class Named(collections.namedtuple("Named", "x n")):
    def __new__(cls, x: torch.Tensor, n: int) -> Any:
        if x.device.type != "cpu":
            raise ValueError("on the CPU, please")
        return super().__new__(cls, x, n + 1)


class Registered:
    """Its function that builds one computes."""

    def __init__(self, x: torch.Tensor, n: int) -> None:
        self.x, self.n = x.float(), n + 1


def _with(value: Any, **attributes: Any) -> Any:
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


BUILT: dict[str, Callable[[torch.Tensor], Any]] = {
    "init=False": lambda x: _with(Late(x), n=9),
    "in a dict": lambda x: {"a": _with(Late(x), n=9)},
    "InitVar": lambda x: Once(x, 5),
    "__post_init__ of numbers": lambda x: Counts(x, 3),
    "__post_init__ of a list": lambda x: Lengths(x, [1, 2, 3]),
    "frozen": lambda x: Frozen(x, 3),
    "tensors without a parameter": lambda x: _with(Masked(x=x), mask=(x > 0).float()),
    "named tuple": lambda x: Named(x, 3),
    "registered": lambda x: Registered(x, 3),
}


class Reads(nn.Module):
    def forward(self, a: Any) -> torch.Tensor:
        a = a["a"] if isinstance(a, dict) else a
        y: torch.Tensor = a.x * a.n
        return y if getattr(a, "mask", None) is None else torch.addcmul(a.double, y, a.mask)


def _tensors(a: Any) -> dict[str, np.ndarray]:
    a, name = (a["a"], "a_") if isinstance(a, dict) else (a, "a_")
    found = {key: getattr(a, key, None) for key in ("x", "mask", "double")}
    return {name + key: value.numpy() for key, value in found.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("kind", BUILT)
def test_what_a_constructor_did_is_done_once(kind: str) -> None:
    with registered_meanwhile():
        if kind == "registered":
            pytree.register_pytree_node(
                Registered,
                lambda one: ([one.x], one.n),
                lambda parts, n: Registered(next(iter(parts)), n),
                serialized_type_name="R",
            )
        module, given, other = Reads(), BUILT[kind](torch.randn(2, 3)), BUILT[kind](torch.randn(5, 3))
        feeds = _tensors(other)
        expected = module(given)
        result = fx2onnx.export(module, (given,), dynamic_axes={name: {0: "n"} for name in feeds})
        assert sorted(result.report.input_names) == sorted(feeds)
        assert not result.report.warnings
        assert fx2onnx.verify(result, module, (given,)).ok
        assert torch.equal(module(given), expected), "the caller's object has changed"
        for engine in (InferenceSession, onnxruntime.InferenceSession):
            got = engine(result.model_proto.SerializeToString()).run(None, feeds)[0]
            np.testing.assert_allclose(got, module(other), rtol=1e-6)


@pytest.mark.parametrize(
    "build", [lambda x: Counts(x, 3), lambda x: _with(Masked(x=x), mask=x + 1), lambda x: Named(x, 3)]
)
def test_results_are_built_without_a_constructor(build: Callable[[torch.Tensor], Any]) -> None:
    x = torch.randn(2, 3)
    result = fx2onnx.export(build, (x,), verify=True)
    assert not result.report.warnings
    got, want = result.restore_outputs(result(x)), build(x)
    assert type(got) is type(want)
    assert got.n == want.n
    for name in ("x", "mask", "double"):
        if hasattr(want, name):
            np.testing.assert_allclose(getattr(got, name), getattr(want, name))


HELD = torch.ones(3)
UNSAID: dict[str, tuple[Any, Callable[[Any], torch.Tensor], str]] = {
    "set": ({HELD}, lambda given: sum(given), "given is a set"),
    "set in a tuple": ((1, frozenset([HELD])), lambda given: sum(given[1]), "given.1 is a frozenset"),
    "bound method": (HELD.clone, lambda given: given(), "given is a method"),
    "partial of a method": (functools.partial(HELD.add, 1), lambda given: given(), "given is a partial"),
    "view of a dict": ({"h": HELD}.values(), lambda given: sum(given), "given is a dict_values"),
    "weak reference": (weakref.ref(HELD), lambda given: given(), "given is a ReferenceType"),
    "set in an object": (_with(Late(HELD), n={HELD + 1}), lambda given: given.x + sum(given.n), "given is a Late"),
}


@pytest.mark.parametrize("kind", UNSAID)
def test_tensors_that_are_no_inputs_are_said(kind: str) -> None:
    given, take, said = UNSAID[kind]

    def forward(x: torch.Tensor, given: Any) -> torch.Tensor:
        return x + take(given)

    result = fx2onnx.export(forward, (HELD, given))
    notes = fx2onnx.verify(result, forward, (HELD, given)).notes
    for lines in (result.report.warnings, notes):
        assert [line.partition(":")[0] for line in lines] == [f"the argument {said}"]


def _quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "b is a nested tensor"),
    "jagged": (lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), "b is a nested tensor"),
    "quantized": (_quantized, "b is a quantized tensor"),
    "quantized in an object": (lambda: Late(_quantized()), r"b\['x'\] is a quantized tensor"),
    "packed": (lambda: [pack_sequence([torch.ones(2, 3)])], r"b\[0\] is a PackedSequence"),
    "generator": (lambda: (each for each in [torch.ones(3)]), "b is a generator"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_arguments_that_no_file_has_are_refused_by_name(kind: str) -> None:
    make, said = REFUSED[kind]
    given = make()
    for call in (fx2onnx.export, functools.partial(fx2onnx.verify, "none.onnx")):
        with pytest.raises(fx2onnx.UserError, match=said) as caught:
            call(lambda a, b: a, (HELD, given))
        assert caught.value.code == "E107"
        assert caught.value.next
    if kind == "generator":
        assert len(list(given)) == 1


def test_nothing_is_compared_without_numbers() -> None:
    module, meta = nn.ReLU(), torch.empty(3, device="meta")
    result = fx2onnx.export(module, (meta,))
    for compare in (fx2onnx.verify, locate):
        with pytest.raises(fx2onnx.UserError, match="input input is on the meta device"):
            compare(result, module, (meta,))


def test_the_caller_s_dataclass_keeps_its_fields() -> None:
    given = Masked(x=HELD)
    before = dict(vars(given))
    fx2onnx.export(Reads(), (given,), verify=True)
    assert all(vars(given)[name] is value for name, value in before.items())
    assert [each.name for each in dataclasses.fields(given)] == ["x", "n", "mask"]


class Held:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


@pytest.mark.parametrize(
    "spec",
    [
        {"b": {1: "m"}, "A": {0: "k"}},
        {"nonsense": {1: "n"}},
        {"inner": {"z": {0: "n"}}},
        {"inner": [{0: "n"}]},
        {"rows": [{0: "n"}, {0: "n"}, {0: "n"}]},
    ],
)
def test_sizes_of_what_an_object_does_not_have(spec: Any) -> None:
    """They were given to its tensors by place."""
    held = Held(a=torch.randn(3, 4), b=torch.randn(5, 6), inner=Held(c=torch.randn(3)), rows=[torch.randn(2)] * 2)

    def forward(held: Held) -> Any:
        return held.a, held.b, held.inner.c, held.rows[0] + held.rows[1]

    with pytest.raises(fx2onnx.UserError, match="there is no held"):
        fx2onnx.export(forward, (held,), dynamic_shapes={"held": spec})
    named = {"a": {0: "k"}, "inner": {"c": {0: "n"}}, "rows": [None, None]}
    result = fx2onnx.export(forward, (held,), dynamic_shapes={"held": named})
    value = next(value for value in result.model_proto.graph.input if value.name == "held.inner.c")
    assert value.type.tensor_type.shape.dim[0].dim_param == "n"
