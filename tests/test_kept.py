"""What lives on between exports, and the memory of many: bounded, flat."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.base.memoized import Bounded
from tests.test_leaks import DYNAMIC, Net, Scale, Scaled, scale


def containers() -> Iterator[tuple[str, Any]]:
    """Every dict, list, set and function with kept results in the package's modules and their classes."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "fx2onnx" or module is None:
            continue
        spaces = [(name, vars(module))]
        spaces += [(f"{name}.{key}", vars(value)) for key, value in vars(module).items() if isinstance(value, type)]
        for path, space in spaces:
            for key, value in list(space.items()):
                if not key.startswith("__") and isinstance(
                    value, dict | list | set | weakref.WeakKeyDictionary | functools._lru_cache_wrapper
                ):
                    yield f"{path}.{key}", value


def entries(container: Any) -> int:
    if isinstance(container, functools._lru_cache_wrapper):
        return int(container.cache_info().currsize)
    nested = container.values() if isinstance(container, dict) else ()
    return len(container) + sum(len(value) for value in nested if isinstance(value, dict | list | set))


def is_bounded(container: Any) -> bool:
    if isinstance(container, functools._lru_cache_wrapper):
        return container.cache_info().maxsize is not None
    values = list(container.values()) if isinstance(container, dict) else []
    return isinstance(container, Bounded | weakref.WeakKeyDictionary) or (
        bool(values) and all(isinstance(value, Bounded) for value in values)
    )


def export_another(index: int) -> None:
    """A class, sizes and a module path of its own."""

    class Another(Scaled):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, f"part_{index}", nn.Linear(8, index + 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return getattr(self, f"part_{index}")(super().forward(x)).reshape(-1, 1, index + 2)

    Another.__name__ = f"Another{index}"
    options: list[dict[str, Any]] = [{}, DYNAMIC, {"custom_translations": {Scale: scale}}, {"capture": "symbolic"}]
    for option in options:
        fx2onnx.export(Another().eval(), (torch.ones(index + 2, 8),), **option)


@pytest.mark.long
def test_what_lives_on_is_bounded() -> None:
    """Whatever grows from one export to the next forgets when it is full, or is keyed weakly by what is dropped."""
    export_another(0)
    before = {name: entries(found) for name, found in containers()}
    assert len(before) > 100
    for index in range(1, 4):
        export_another(index)
    gc.collect()
    grown = {name: found for name, found in containers() if entries(found) > before.get(name, 0)}
    assert grown  # the test sees what is kept
    assert [name for name, found in grown.items() if not is_bounded(found)] == []


@pytest.mark.long
def test_nothing_that_lives_on_holds_a_class() -> None:
    """A class holds what its functions read from around them: here, a weight."""

    def export_local() -> list[weakref.ref[Any]]:
        weight = np.ones(8, np.float32)
        tensor = torch.from_numpy(weight)

        class Local(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * tensor if type(x) is torch.Tensor else x

        fx2onnx.export(Local(), (torch.ones(4, 8),), **DYNAMIC)
        return [weakref.ref(weight), weakref.ref(Local)]

    held = export_local()
    gc.collect()
    assert [found() for found in held] == [None, None]


def test_a_full_store_forgets_and_goes_on() -> None:
    kept: Bounded[int, str] = Bounded(2)
    for key in (1, 2, 2):
        kept[key] = "a"
    assert len(kept) == 2
    kept[3] = "b"
    assert dict(kept) == {3: "b"}


def test_operators_are_known_anew_after_all_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of dropped overloads may be used again: an entry holds the overload that it is for."""
    from fx2onnx.capture.registry import OpTraits, traits_of

    monkeypatch.setattr(OpTraits, "known", Bounded(3))
    overloads = [torch.ops.aten.add.Tensor, torch.ops.aten.relu.default, torch.ops.aten.add_.Tensor] * 3
    overloads += [torch.ops.aten.mul.Tensor, torch.ops.aten.item.default]
    for overload in overloads:
        assert traits_of(overload).func is overload
        assert len(OpTraits.known) <= 3
    result = fx2onnx.export(Net().eval(), (torch.ones(4, 8),), **DYNAMIC)
    assert result.report.nodes_onnx > 3


class Wide(nn.Module):
    """Many weights for few nodes; nothing is computed to make them."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        width = megabytes * 2**20 // 4 // 8 // 1024
        shapes = [(width, 1024), (1024, width)] * 4
        self.weights = nn.ParameterList(torch.empty(shape) for shape in shapes)
        for weight in self.weights:
            weight.data.fill_(1.0)  # every page is there

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = torch.relu(torch.nn.functional.linear(x, weight))
        return x


def resident_after(exports: int, megabytes: int, path: Path | None, **options: Any) -> list[float]:
    """MB of the process after each export, while its result is there."""
    process, found = psutil.Process(), []
    for _ in range(exports):
        result = fx2onnx.export(Wide(megabytes), (torch.ones(2, 1024),), path, **options)
        found.append(process.memory_info().rss / 1e6)
        del result
    return found


@pytest.mark.parametrize("options", [{}, DYNAMIC], ids=["static", "dynamic"])
def test_exports_in_a_loop_pile_nothing_up(options: dict[str, Any]) -> None:
    """Although no collection runs in them: the highest is that of one model."""
    resident = resident_after(12, 24, None, **options)
    assert max(resident[2:]) - min(resident[2:]) < 24


@pytest.mark.slow
@pytest.mark.parametrize("is_written", [False, True], ids=["in memory", "on disk"])
def test_300_dynamic_exports_run_in_flat_memory(is_written: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx" if is_written else None
    resident = resident_after(300, 96, path, **DYNAMIC)[20:]
    lowest_before = itertools.accumulate(resident, min)  # it may fall, as what earlier tests left is given back
    assert max(now - low for now, low in zip(resident, lowest_before, strict=True)) < 16
