"""Nodes of onnxruntime's own operators with operands and attributes at random: they run, or the error is the user's."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from test_contrib import BEFORE_10, Array

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError
from fx2onnx.semantics.kernels import contrib
from fx2onnx.semantics.schemas import signature_of
from fx2onnx.semantics.types import TENSOR_NAMES

DTYPES = {f"tensor({name})": np.dtype(dtype.numpy()) for dtype, name in TENSOR_NAMES.items()}
OPERATORS = sorted((domain, name) for (domain, _), names in contrib.FAMILIES.items() for name in names.split())


def operands(signature: Any, chance: random.Random) -> dict[str, Array | None]:
    """Arrays of types that the schema allows, of small sizes that seldom fit."""
    count = chance.randint(max(signature.min_inputs, 1), min(signature.max_inputs, signature.min_inputs + 6))
    sizes = [chance.choice([0, 1, 2, 3, 4, 8]) for _ in range(4)]
    types: dict[Any, str] = {}
    feeds: dict[str, Array | None] = {}
    for place in range(count):
        parameter = signature.inputs[min(place, len(signature.inputs) - 1)]
        if parameter.is_optional and chance.random() < 0.3:
            feeds[f"i{place}"] = None
            continue
        allowed = sorted(name for name in parameter.types if name in DTYPES) or ["tensor(float)"]
        dtype = DTYPES[types.setdefault(parameter.variable or place, chance.choice(allowed))]
        shape = tuple(chance.choice(sizes) for _ in range(chance.choice([0, 1, 2, 3, 4])))
        numbers = np.random.default_rng(place).integers(-3, 6, shape) * (1 if chance.random() < 0.9 else 10**9)
        with np.errstate(all="ignore"):
            feeds[f"i{place}"] = (
                np.full(shape, "ab", object) if dtype.kind == "O" else np.asarray(numbers).astype(dtype)
            )
    return feeds


def attributes(signature: Any, chance: random.Random) -> dict[str, Any]:
    kinds: dict[int, Any] = {
        1: [0.0, 1.0, -1.0],
        2: [0, 1, 2, 3, -1, 16, 1 << 40],
        3: ["none", "Relu", "nearest", "bilinear", "x"],
        6: [[1.0, 2.0]],
        7: [[0], [1, 2], [2, 2, 2, 2], [-1, 1]],
        8: [["Relu", "x"]],
    }
    wanted = [name for name in signature.attribute_types if name in signature.required or chance.random() < 0.4]
    return {
        name: chance.choice(kinds[signature.attribute_types[name]])
        for name in wanted
        if signature.attribute_types[name] in kinds
    }


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_node_at_random(seed: int) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("fx2onnx.memory_limit_bytes", str(1 << 28))
    options.log_severity_level = 4
    for domain, op_type in OPERATORS:
        for trial in range(4):
            chance = random.Random(f"{op_type}-{seed}-{trial}")
            signature = signature_of(domain, op_type, 9)
            assert signature is not None
            feeds = operands(signature, chance)
            given = {name: x for name, x in feeds.items() if x is not None}
            results = [f"o{place}" for place in range(max(signature.min_outputs, 1))]
            names = [name if x is not None else "" for name, x in feeds.items()]
            node = helper.make_node(op_type, names, results, domain=domain, **attributes(signature, chance))
            inputs = [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), [None] * x.ndim)
                for name, x in given.items()
            ]
            graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=name) for name in results])
            opsets = {"": 9 if op_type in BEFORE_10 else 20, contrib.MICROSOFT: 1, contrib.NCHWC: 1}
            imports = [helper.make_opsetid(*each) for each in opsets.items()]
            model = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
            with contextlib.suppress(UserError):
                ort.InferenceSession(model, options).run(None, given)
