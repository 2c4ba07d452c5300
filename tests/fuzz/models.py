"""Malformed ONNX files given to each command that reads one: node cases and exported modules, their bytes or structure changed."""

from __future__ import annotations

import functools
import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from fx2onnx.base.errors import VerificationError
from tests.runner.kernel_cases import CASES
from tests.runner.test_hostile import endless_loop, huge_product, mutated, outcome, seeds, shuffled

node_cases: list[bytes] = []
"""The node cases of the onnx wheel, where ``make_node_cases`` made them."""


def make_node_cases() -> None:
    """Some 20 s."""
    from onnx.backend.test.loader import load_model_tests

    models = (case.model for case in load_model_tests(kind="node"))
    node_cases[:] = [model.SerializeToString() for model in models if model is not None]


def _valid(rng: random.Random) -> bytes:
    if node_cases and rng.random() < 0.6:
        return rng.choice(node_cases)
    return rng.choice([*seeds(), rng.choice(CASES).model()[0].SerializeToString()])


def _ending(rng: random.Random) -> bytes:
    """A valid model that ends soon where nobody limits its loops and sizes, as in a command that runs it."""
    long = [make().SerializeToString() for make in (endless_loop, huge_product)]
    while (data := _valid(rng)) in long:
        pass
    return data


def _changed(data: bytes, rng: random.Random) -> bytes:
    changed = mutated(data, rng) if rng.random() < 0.4 else shuffled(data, rng)
    if rng.random() < 0.3:
        try:
            return shuffled(changed, rng)
        except (DecodeError, ValueError, TypeError, UnicodeDecodeError):  # the first edit left no model
            return changed
    return changed


def _written(rng: random.Random, folder: Path, data: bytes | None = None) -> Path:
    """A changed file; temporary files of what reads it lie beside it."""
    tempfile.tempdir = str(folder)
    path = folder / "m.onnx"
    path.write_bytes(_changed(_valid(rng) if data is None else data, rng))
    return path


def run(rng: random.Random, folder: Path) -> None:
    outcome(_changed(_valid(rng), rng))


def run_elsewhere(rng: random.Random, folder: Path) -> None:
    from fx2onnx.cli.run import _session

    _session(_written(rng, folder), "onnxruntime", "")


def lint(rng: random.Random, folder: Path) -> None:
    from fx2onnx import lint

    target = rng.choice(["onnxruntime", "openvino", "tensorrt"])
    lint(_written(rng, folder), target)


def show(rng: random.Random, folder: Path) -> None:
    from fx2onnx import inspect

    inspect(_written(rng, folder), html=folder / "page.html")


def diff(rng: random.Random, folder: Path) -> None:
    from fx2onnx.diff import compare

    data = _valid(rng)
    other = folder / "other.onnx"
    other.write_bytes(data)
    compare.diff(*rng.sample([str(_written(rng, folder, data)), str(other)], 2))


def optimize(rng: random.Random, folder: Path, **options: Any) -> None:
    from fx2onnx.steps.pipeline import optimize_model

    path, opset = _written(rng, folder, _ending(rng)), rng.choice([None, None, 11, 18, 22])
    try:
        optimize_model(path, folder / "out.onnx", opset=opset, level=rng.randrange(4), **options)
    except VerificationError as error:
        assert error.render()  # noqa: PT017


def quantize(rng: random.Random, folder: Path) -> None:
    optimize(rng, folder, **rng.choice([{"quantize": "int8"}, {"quantize": "int4"}, {"dtype": "float16"}]))


def testcase(rng: random.Random, folder: Path) -> None:
    from fx2onnx import testcase

    testcase(_written(rng, folder, _ending(rng)), folder / "case")


@functools.cache
def _exported() -> list[tuple[Any, Any, bytes]]:
    """Modules, their arguments, and their files."""
    import torch

    from fx2onnx import export

    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(x > 0, x.reshape(-1).cumsum(0)[:2].sum(), x.mean(dim=1, keepdim=True)).softmax(-1)

    modules = [torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.GELU()), Branches()]
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    return [
        (module.eval(), (x,), export(module, (x,), dynamic_shapes=({0: "n"},)).model_proto.SerializeToString())
        for module in modules
    ]


def verify(rng: random.Random, folder: Path) -> None:
    from fx2onnx import verify

    module, args, data = rng.choice(_exported())
    with warnings.catch_warnings(action="ignore"):
        verify(_written(rng, folder, data), module, args)


def debug(rng: random.Random, folder: Path) -> None:
    from fx2onnx.verify.locating.locate import locate

    module, args, data = rng.choice(_exported())
    with warnings.catch_warnings(action="ignore"):
        locate(_written(rng, folder, data), module, args)
