"""One architecture of every family of torchvision and timm is built and called. Slow: several minutes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.sources import names, resolve

pytestmark = pytest.mark.slow

_BIG = ("large", "huge", "giant", "gigantic", "enormous", "xl", "base", "128gf", "7b", "_b_", "_l", "_h")
_SMALL = ("tiny", "nano", "pico", "femto", "atto", "small", "mini", "_s", "_t", "_xs")


def smallest(family: list[str]) -> str:
    """The name that promises the smallest model."""

    def rank(name: str) -> tuple[bool, bool, int, str]:
        return any(word in name for word in _BIG), not any(word in name for word in _SMALL), len(name), name

    return min(family, key=rank)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def failures_of(kind: str, families: dict[str, list[str]]) -> list[str]:
    failures = []
    for family in families.values():
        spec = f"{kind}:{smallest(family)}"
        try:
            source = resolve(spec, batch=1)
            with torch.no_grad():
                outputs = list(tensors_in(source.module(*source.args, **source.kwargs)))
        except (UserError, RuntimeError, TypeError, ValueError) as error:
            failures.append(f"{spec}: {error}")
            continue
        if not outputs or not all(bool(torch.isfinite(output).all()) for output in outputs):
            failures.append(f"{spec}: not finite")
        elif source.dynamic_shapes and not 1e-4 < float(outputs[0].float().std()) < 1e4:
            failures.append(f"{spec}: outputs spread by {float(outputs[0].float().std()):.1e}")
    return failures


def test_torchvision_families() -> None:
    known = names("torchvision")
    from torchvision import models

    families: dict[str, list[str]] = {}
    for name in known:
        families.setdefault(models.get_model_builder(name).__module__, []).append(name)
    assert len(families) > 25
    assert failures_of("torchvision", families) == []


def test_timm_families() -> None:
    known = names("timm")
    from timm.models import model_entrypoint

    families: dict[str, list[str]] = {}
    for name in known:
        families.setdefault(model_entrypoint(name).__module__, []).append(name)
    assert len(families) > 60
    assert failures_of("timm", families) == []
