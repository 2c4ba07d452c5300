"""Tensors that forward keeps in global tables, classes, closures and objects that the module does not hold: nothing of a capture stays there."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.torchcompat.frames import LIBRARIES
from tests.support import check

X, OTHER = torch.rand(3, 4), torch.rand(5, 4)
TABLE: dict[Any, Any] = {}
LIST: list[Any] = []
QUEUE: deque[Any] = deque(maxlen=2)
ORDERED: OrderedDict[str, Any] = OrderedDict()
LAST: torch.Tensor | None = None


class Shared:
    table: ClassVar[dict[Any, Any]] = {}
    last: torch.Tensor | None = None


class Slots:
    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None


SHARED, SLOTS = Shared(), Slots()
OTHER_MODULE = nn.Linear(4, 4)


def in_a_table(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] not in TABLE:
        TABLE[x.shape[1]] = torch.arange(x.shape[1])
    return x + TABLE[x.shape[1]]


def in_a_tuple_of_a_table(x: torch.Tensor) -> torch.Tensor:
    if "tables" not in TABLE:
        TABLE["tables"] = (torch.ones(4).cos(), [torch.ones(4).sin()])
    cosine, (sine,) = TABLE["tables"]
    return x * cosine + sine


def by_text(x: torch.Tensor) -> torch.Tensor:
    key = f"{x.shape[0]}x{x.shape[1]}"
    if key not in ORDERED:
        ORDERED[key] = torch.arange(x.shape[0])
    return x + ORDERED[key][:, None]


def in_a_list(x: torch.Tensor) -> torch.Tensor:
    if not LIST:
        LIST.append(torch.ones(4))
    return x + LIST[0]


def in_a_queue(x: torch.Tensor) -> torch.Tensor:
    QUEUE.append(x * 2)
    return QUEUE[-1] + 1


def in_a_class(x: torch.Tensor) -> torch.Tensor:
    if Shared.last is None:
        Shared.last = torch.ones(4)
    return x + Shared.last


def in_an_object(x: torch.Tensor) -> torch.Tensor:
    SHARED.last = x.sum(0)
    return x + SHARED.last


def in_a_table_of_a_class(x: torch.Tensor) -> torch.Tensor:
    Shared.table.setdefault("ones", torch.ones(4))
    return x + Shared.table["ones"]


def in_slots(x: torch.Tensor) -> torch.Tensor:
    SLOTS.last = x.sum(0)
    return x + SLOTS.last


def in_a_global(x: torch.Tensor) -> torch.Tensor:
    global LAST
    LAST = torch.ones(4) if LAST is None else LAST
    return x + LAST


def in_another_module(x: torch.Tensor) -> torch.Tensor:
    OTHER_MODULE.last = x * 2
    return x + OTHER_MODULE.last


def _closure() -> Callable[[torch.Tensor], torch.Tensor]:
    kept: torch.Tensor | None = None

    def in_a_closure(x: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        if kept is None:
            kept = torch.ones(4)
        return x + kept

    return in_a_closure


FUNCTIONS = [
    *(in_a_table, in_a_tuple_of_a_table, by_text, in_a_list, in_a_queue, in_a_class, in_an_object, in_a_table_of_a_class),
    *(in_slots, in_a_global, in_another_module, _closure()),
]  # fmt: skip


class Calls(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    global LAST
    LAST = Shared.last = SLOTS.last = None
    vars(SHARED).clear()
    vars(OTHER_MODULE).pop("last", None)
    for each in (TABLE, LIST, QUEUE, ORDERED, Shared.table):
        each.clear()


@pytest.mark.parametrize("function", [in_a_table, in_a_tuple_of_a_table, in_a_global], ids=lambda each: each.__name__)
def test_nothing_of_a_capture_is_found_again(function: Any) -> None:
    fx2onnx.export(Calls(function), (X,))
    assert LAST is None
    assert not TABLE


@pytest.mark.long
@pytest.mark.parametrize("axes", [None, {"x": {0: "rows"}}])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_eager_pytorch_finds_what_was_there(function: Any, axes: Any) -> None:
    for module in (function, Calls(function), function):
        check(module, (X,), others=[(OTHER,)] if axes else [], dynamic_shapes=axes)
    assert not TABLE.keys() - {4, "tables"}


@pytest.mark.parametrize("function", [in_a_class, in_a_global, in_an_object, in_another_module])
def test_a_name_has_its_tensor_again_and_a_warning_says_so(function: Any) -> None:
    global LAST
    LAST = Shared.last = mine = torch.zeros(4)
    module = Calls(function)
    module(X)
    before = LAST, Shared.last, vars(SHARED).get("last"), vars(OTHER_MODULE).get("last")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fx2onnx.export(module, (X,))
    assert LAST is mine
    assert Shared.last is mine
    assert (vars(SHARED).get("last"), vars(OTHER_MODULE).get("last")) == before[2:]
    kept = [str(each.message) for each in said if ".last " in str(each.message)]
    assert bool(kept) == (function in (in_an_object, in_another_module)), before


@pytest.mark.parametrize("own", [None, functools.partial(torch.add, other=1)])
def test_a_name_that_forward_adds_to_its_class_is_gone(own: Any) -> None:
    class Adds(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            setattr(Adds, "added", x * 2)  # noqa: B010
            return vars(Adds)["added"] + 1

    first = Adds()
    if own is not None:
        first.forward = own  # type: ignore[method-assign]
    with warnings.catch_warnings(action="ignore"):
        fx2onnx.export(nn.Sequential(first, Adds()), (X,))
    assert not hasattr(Adds, "added")


def test_nothing_is_kept_of_a_module_that_fails() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        TABLE["made"] = x * 2
        LIST.append((x + 1, "made"))
        return x @ x

    with pytest.raises(UserError, match="E101"):
        fx2onnx.export(fails, (X,))
    assert not TABLE
    assert not LIST


@pytest.mark.parametrize("key", [lambda n: n, lambda n: (n, "rows"), str])
@pytest.mark.parametrize("has_mistake", [False, True])
def test_a_table_by_a_dynamic_size_is_empty_again(key: Any, has_mistake: bool) -> None:
    def by_size(x: torch.Tensor) -> torch.Tensor:
        TABLE["mine"] = 1
        if key(x.shape[0]) not in TABLE:
            TABLE[key(x.shape[0])] = torch.arange(x.shape[0])
        y = x + TABLE[key(x.shape[0])][:, None]
        return y @ y if has_mistake else y

    with contextlib.suppress(UserError), warnings.catch_warnings(action="ignore"):  # a size as a key may be E105
        fx2onnx.export(by_size, (X,), dynamic_shapes={"x": {0: "rows"}})
    assert TABLE.keys() <= {"mine"}


def test_a_run_that_is_repeated_finds_nothing_of_the_one_before() -> None:
    """A table that the module's first run has filled is empty again when a decision by data makes another."""

    def decides(x: torch.Tensor) -> torch.Tensor:
        if "ones" not in TABLE:
            TABLE["ones"] = torch.ones(4)
        return x + TABLE["ones"] if x.sum() > 3 else x - TABLE["ones"]

    check(decides, (X,), others=[(X - 5,)])


@dataclass
class Returned:
    values: torch.Tensor
    states: tuple[torch.Tensor, ...] | None = None


def test_what_forward_returns_in_a_dataclass_is_not_kept() -> None:
    class Returns(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"out": Returned(x + 1, (x, x * 2)), "list": [Returned(x)]}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = fx2onnx.export(Returns(), (X,), dynamic_shapes={"x": {0: "n", 1: "m"}}, verify=True)
    assert result.report.warnings == []


class Kept:
    """As a cache of keys and values that forward makes and returns beside its result."""

    def __init__(self) -> None:
        self.layers: list[dict[str, torch.Tensor]] = []


def test_an_object_that_forward_makes_and_returns_is_nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone with the run, without a search of all objects, and None in results."""

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, Kept, str]:
        kept = Kept()
        kept.layers.append({"keys": x * 2})
        return x + 1, kept, "said"

    monkeypatch.setattr("fx2onnx.capture.python.kept_outside._taken_out", lambda *given: pytest.fail("searched"))
    result = fx2onnx.export(forward, (torch.ones(3),))
    assert result.report.warnings == [
        "not in the file: forward's result [1] is a Kept",
        "not in the file: forward's result [2] is a str",
    ]
    assert result.restore_outputs([7]) == (7, None, "said")


@functools.cache
def of_any_number(size: int) -> torch.Tensor:
    return torch.arange(size)


@functools.lru_cache
def of_some(size: int) -> torch.Tensor:
    return torch.arange(size)


@functools.lru_cache(maxsize=4)
def of_a_pair(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(size), torch.ones(size).cos()


@pytest.mark.parametrize("has_mistake", [False, True])
@pytest.mark.parametrize("cached", [of_any_number, of_some, of_a_pair])
def test_functions_with_a_cache_give_tensors_with_data_afterwards(cached: Any, has_mistake: bool) -> None:
    """One of so many entries kept them after each export, any after one that failed: eager PyTorch computed on what is no data."""
    cached.cache_clear()
    reached = [cached]

    def forward(x: torch.Tensor) -> torch.Tensor:
        found = reached[0](4)
        y = x + (found[-1] if isinstance(found, tuple) else found)
        return y @ y if has_mistake else y

    with contextlib.suppress(UserError):
        fx2onnx.export(forward, (X,))
    want, found = cached.__wrapped__(4), cached(4)
    torch.testing.assert_close(found, want)
    assert all(type(each) is torch.Tensor for each in (found if isinstance(found, tuple) else [found]))


_LIBRARY = "import functools, torch\n@functools.lru_cache\ndef table(n): return torch.arange(n)\ndef plain(n): return torch.arange(n)"


@pytest.mark.parametrize(
    ("name", "later"),
    [
        ("table", ""),
        ("table", _LIBRARY),
        ("plain", "plain = functools.lru_cache(plain)"),
        ("table", "table = functools.cache(table.__wrapped__)"),
        ("added", "del plain\n@functools.cache\ndef added(n): return torch.arange(n)"),
    ],
    ids=["as imported", "reloaded", "wrapped", "wrapped anew", "added"],
)
def test_a_cache_of_a_library_gives_tensors_with_data_after_exports_that_fail(
    monkeypatch: pytest.MonkeyPatch, name: str, later: str
) -> None:
    library = types.ModuleType("library_with_a_cache")
    library.__file__ = f"{LIBRARIES[0]}/{library.__name__}.py"
    exec(_LIBRARY, vars(library))
    monkeypatch.setitem(sys.modules, library.__name__, library)

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x + getattr(library, name, library.table)(4)
        return y @ y

    for text in ("", later):
        exec(text, vars(library))
        with pytest.raises(UserError):
            fx2onnx.export(forward, (X,))
    assert type(getattr(library, name)(4)) is torch.Tensor
