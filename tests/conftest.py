"""The core tests, which `make matrix` runs in many environments, and the long cases; random numbers; garbage."""

from __future__ import annotations

import gc
import os
import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import process_state

SHIM = str(Path(__file__).with_name("torchvision_shim"))
sys.path.insert(0, SHIM)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SHIM, os.environ.get("PYTHONPATH")]))
import torchvision_hook  # noqa: E402, F401   torchvision can be imported, here and in the processes that tests start

WITHOUT_TORCH = {
    "tests/runner/test_planner.py",
    "tests/runner/test_static_shapes.py",
    "tests/runner/test_manners.py",
    "tests/runner/test_random.py",
}
"""Those that run where there is no torch."""
CORE = WITHOUT_TORCH | {
    "tests/capture/test_dynamic.py",
    "tests/capture/test_in_place.py",
    "tests/capture/test_state.py",
    "tests/capture/test_split.py",
    "tests/capture/test_data_sizes.py",
    "tests/capture/recording/test_aliasing.py",
    "tests/capture/recording/test_control_flow.py",
    "tests/ops/test_table.py",
    "tests/ops/test_recurrent.py",
    "tests/ops/test_attention.py",
    "tests/test_zoo.py",
    "tests/test_custom_ops.py",
    "tests/runner/test_runner_session.py",
    "tests/verify/test_verify_classes.py",
    "tests/verify/test_verify_judge.py",
    "tests/verify/test_locate.py",
    "tests/training/test_models.py",
    "tests/exporting/test_export.py",
    "tests/sources/test_sources_resolve.py",
}
NOT_CORE = {
    "clip_tiny": "transformers 4 does not run it in float64",
}
"""Parts of names of tests in those files, and why they cannot be had in every environment."""


DRAW = os.environ.get("DRAW", "")
"""Every other text gives all tests other random numbers: `make unit DRAW=2`."""


def draw_by_name(name: str) -> None:
    """Seed all global generators by the name of a test or a file, so that a failure comes again, alone and in any order."""
    seed = zlib.crc32(f"{DRAW}{name}".encode())
    random.seed(seed)
    np.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "manual_seed"):
        torch.manual_seed(seed)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Numbers that a file draws when it is imported are its own, too."""
    if isinstance(collector, pytest.Module):
        draw_by_name(collector.nodeid)


gc.disable()  # until all tests are collected, which leaves little garbage


def is_core(node: str) -> bool:
    """Return whether the test of this name is one of the core."""
    return node.partition("::")[0] in CORE and not any(part in node for part in NOT_CORE)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if is_core(item.nodeid):
            item.add_marker(pytest.mark.core)
    mark_long_cases(items, is_whole=not any("::" in argument for argument in config.args))


def mark_long_cases(items: list[pytest.Item], is_whole: bool) -> None:
    """Mark the cases that the ``long_cases`` of their test name as ``long``; each named case must be there in a whole collection."""
    unmet: dict[tuple[str, str], bool] = {}
    for item in items:
        mark = item.get_closest_marker("long_cases")
        if mark is not None:
            test, _, case = item.nodeid.removesuffix("]").partition("[")
            others = mark.kwargs.get("but", ())
            if case in mark.args or (others and case not in others):
                item.add_marker(pytest.mark.long)
            unmet |= {(test, name): unmet.get((test, name), True) and name != case for name in (*mark.args, *others)}
    gone = [f"{test}[{name}]" for (test, name), is_unmet in unmet.items() if is_unmet]
    if gone and is_whole:
        raise pytest.UsageError(f"pytest.mark.long_cases names cases that are not there: {', '.join(gone)}")


def pytest_collection_finish() -> None:
    """What is there now stays to the end: collecting garbage need not look through it each time, nor as often."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture(autouse=True)
def process_state_is_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaves a changed environment, torch flag, mode or patched function behind for the next ones."""
    draw_by_name(request.node.nodeid)
    before = process_state.snapshot()
    yield
    process_state.put_back_limit(before["recursion limit"])
    changed = process_state.changes(before, process_state.snapshot())
    assert not changed, f"the test left the process changed: {changed}"
