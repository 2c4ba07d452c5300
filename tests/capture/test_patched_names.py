"""The table of names that are others while a module runs inside a capture holds all of them, with a reason for each."""

from __future__ import annotations

import gc
import subprocess
import sys
import types
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.base import code_patch

COUNTERS = {"torch._subclasses.meta_utils: DESCRIBER_NEXT_ID", f"{__name__}: DURING", f"{__name__}: TABLE"}
"""What torch itself and this file set."""
IMPORTED = (
    "torch.nn.attention.flex_attention",
    "torch._dynamo",
    "torch._inductor",
    "opt_einsum",
    "torch.ao.nn.quantized.dynamic",
)
"""What has patched names and is imported only where a module needs it."""
OWN = ("fx2onnx", "tests", "_pytest", "pytest", "_hypothesis", "hypothesis")

Key = tuple[int, str]
"""The id of a namespace or a function, and a name in it, or ``__code__``."""


def key_of(holder: Any, name: str) -> Key:
    if isinstance(holder, types.ModuleType):
        holder = vars(holder)
    elif isinstance(holder, type):
        (holder,) = [each for each in gc.get_referents(holder.__dict__) if isinstance(each, dict)]
    return id(holder), name


def snapshot() -> dict[Key, tuple[object, str]]:
    """What modules and classes hold under each name, and the code of each of their functions; with words for it."""
    seen: dict[Key, tuple[object, str]] = {}
    known: set[int] = set()
    pending: list[tuple[str, Any]] = [
        (name, module) for name, module in sys.modules.items() if name.split(".")[0] not in OWN
    ]
    pending.append((__name__, sys.modules[__name__]))
    while pending:
        place, holder = pending.pop()
        if id(holder) in known or not isinstance(holder, types.ModuleType | type):
            continue
        known.add(id(holder))
        for name, value in [*vars(holder).items()]:
            seen[key_of(holder, name)] = value, f"{place}: {name}"
            function = getattr(value, "__func__", value) if isinstance(value, classmethod | staticmethod) else value
            if type(function) is types.FunctionType:
                code = f"{function.__module__}.{function.__qualname__}: code"
                seen[id(function), "__code__"] = function.__code__, code
                ALIVE.append(function)
            elif isinstance(value, type):
                kind = vars(value).get("original", value)  # a stand-in's class is still reached
                if str(kind.__module__).split(".")[0] not in OWN:
                    pending.append((f"{kind.__module__}.{kind.__qualname__}", kind))
    return seen


ALIVE: list[object] = []
"""Functions whose ids are keys."""


def differences(before: dict[Key, tuple[object, str]], after: dict[Key, tuple[object, str]]) -> dict[Key, str]:
    nothing = (None, "")
    found = {
        key: (before.get(key) or after[key])[1]
        for key in before.keys() | after.keys()
        if before.get(key, nothing)[0] is not after.get(key, nothing)[0]
        if key[1] != "__code__" or (key in before and key in after)
    }
    return {key: words for key, words in found.items() if words not in COUNTERS}


DURING: Any = None
TABLE: Any = None


class Watching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global DURING, TABLE
        DURING, TABLE = snapshot(), code_patch.patched()
        return self.inner(x)


def check() -> None:
    """In a process of its own: other tests import libraries and leave threads, and what is patched depends on both."""
    module, x = Watching(), torch.ones(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):  # the first imports what the second has
            before = snapshot()
            fx2onnx.export(module, (x,), dynamic_axes={"x": {0: "n"}})
        during, after = differences(before, DURING), differences(before, snapshot())
    assert after == {}, f"not as before: {sorted(after.values())}"
    assert code_patch.patched() == []
    table = {key_of(each.holder, each.name): each for each in TABLE}
    missing = {words for key, words in during.items() if key not in table}
    assert missing == set(), f"patched, and not in the table: {sorted(missing)}"
    unsaid = [f"{each.holder}: {each.name}" for each in table.values() if not each.why]
    assert unsaid == [], f"rows without a reason: {unsaid}"
    idle = [f"{each.holder}: {each.name}" for key, each in table.items() if key in before and key not in during]
    assert idle == [], f"in the table, and not patched: {idle}"
    assert len(table) > 150


@pytest.mark.long
def test_the_table_is_what_differs_while_a_module_runs_and_all_is_as_before_afterwards() -> None:
    imports = "".join(f"import {name}\n" for name in IMPORTED)
    code = f"{imports}import runpy\nrunpy.run_path({__file__!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    check()
