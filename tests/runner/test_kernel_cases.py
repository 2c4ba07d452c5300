"""Old opsets: what NumPy says of each node; and every operator of every opset has a kernel or a function body."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kernel_cases import CASES, NodeCase, gradient, sequences

import fx2onnx.runner as ort
from fx2onnx.semantics.kernels import contrib
from fx2onnx.semantics.reading import build  # noqa: F401  (fills the registry)
from fx2onnx.semantics.registry import find_kernel
from fx2onnx.semantics.schemas import NEWEST_OPSET, STANDARD_DOMAINS, signature_of


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op_type}-{case.opset}")
def test_old_nodes(case: NodeCase) -> None:
    model, feeds = case.model()
    results = ort.InferenceSession(model).run(None, feeds)
    assert len(results) == case.n_outputs
    if case.wanted is None:
        return
    wanted: Any = case.wanted(*case.inputs)
    for given, right in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert (given.dtype, given.shape) == (right.dtype, right.shape)
        np.testing.assert_allclose(given, right, rtol=1e-5, atol=1e-6)


def test_sequences() -> None:
    model, feeds = sequences()
    y, z = ort.InferenceSession(model).run(None, feeds)
    np.testing.assert_array_equal(y, np.concatenate([feeds["a"], feeds["c"]]))
    np.testing.assert_array_equal(z, feeds["b"])


def test_gradient() -> None:
    model, feeds = gradient()
    gx, gw, gb, gz = ort.InferenceSession(model).run(None, feeds)
    ones = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(gx, ones @ feeds["w"].T, rtol=1e-5)
    np.testing.assert_allclose(gw, feeds["x"].T @ ones, rtol=1e-5)
    np.testing.assert_array_equal(gb, [2, 2, 2, 2])
    np.testing.assert_array_equal(gz, np.zeros(5))


LEFT_OUT: dict[tuple[str, str, int], str] = {}
"""Operators of a version that nothing runs, each with the reason."""

ALL_VERSIONS = sorted(
    {
        (schema.domain, schema.name, schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.deprecated and schema.domain in STANDARD_DOMAINS
    }
)


def runs(domain: str, op_type: str, version: int) -> bool:
    """By a kernel, by ONNX's function body, or (Gradient) by rewriting the program."""
    signature = signature_of(domain, op_type, version)
    assert signature is not None
    return find_kernel(domain, op_type, version) is not None or signature.has_function or op_type == "Gradient"


def test_every_version_of_every_operator_runs() -> None:
    assert NEWEST_OPSET >= 28
    assert len(ALL_VERSIONS) > 500
    missing = {entry for entry in ALL_VERSIONS if not runs(*entry)}
    assert missing == set(LEFT_OUT)


OF_ONNXRUNTIME = {
    (domain, op_type) for (domain, _), names in contrib.FAMILIES.items() if not domain for op_type in names.split()
}
"""onnxruntime's own operators in ONNX's domain."""


def test_no_kernel_is_for_an_operator_that_onnx_does_not_have() -> None:
    """A kernel's version must be one of the schema's: a typing error would leave it unused."""
    from fx2onnx.semantics.registry import all_kernels

    known = set(ALL_VERSIONS) | {
        (schema.domain, schema.name, schema.since_version) for schema in onnx.defs.get_all_schemas_with_history()
    }
    wrong = [
        (kernel.domain, kernel.op_type, kernel.since)
        for kernel in all_kernels()
        if kernel.domain in STANDARD_DOMAINS
        and (kernel.domain, kernel.op_type) not in OF_ONNXRUNTIME
        and not any(k[:2] == (kernel.domain, kernel.op_type) for k in known)
    ]
    assert wrong == []


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.3])
@pytest.mark.parametrize("pooled", [(1, 1), (3, 2), (7, 7)])
def test_regions_end_where_onnxruntime_ends_them(pooled: tuple[int, int], scale: float) -> None:
    """Edges at halves are rounded away from zero, and cells divide a region in float32."""
    draw = np.random.default_rng(0)
    corners = np.round(draw.uniform(-8, 40, (40, 4)) * 2) / 2
    regions = np.concatenate([draw.integers(0, 2, (40, 1)), corners], axis=1).astype(np.float32)
    case = NodeCase(
        "MaxRoiPool",
        1,
        (draw.standard_normal((2, 3, 17, 13)).astype(np.float32), regions),
        None,
        {"pooled_shape": list(pooled), "spatial_scale": scale},
    )
    model, feeds = case.model()
    data = model.SerializeToString()
    given, want = (engine.InferenceSession(data).run(None, feeds)[0] for engine in (ort, onnxruntime))
    np.testing.assert_array_equal(given, want)
