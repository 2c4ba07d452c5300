"""Every backend case that ships in the onnx wheel, strict in dtype, shape and the case's own tolerance."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import fx2onnx.runner as ort

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import onnx.backend.test.loader as loader
    from onnx.backend.test.case.test_case import TestCase

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")

RANDOM = {
    "test_bernoulli": "draws anew at each run: no seed",
    "test_bernoulli_double": "draws anew at each run: no seed",
    "test_bernoulli_expanded": "draws anew at each run: no seed",
    "test_bernoulli_double_expanded": "draws anew at each run: no seed",
    "test_bernoulli_seed": "ONNX does not say which generator a seed starts; onnx's own draw is not reproducible",
    "test_bernoulli_seed_expanded": "ONNX does not say which generator a seed starts",
}
"""Cases whose values cannot be compared: dtype, shape and range are."""


@lru_cache(maxsize=1)
def cases() -> dict[str, TestCase]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {f"{kind}/{case.name}": case for kind in KINDS for case in loader.load_model_tests(kind=kind)}


def read(path: str, type_proto: onnx.TypeProto) -> Any:
    """A value out of a ``.pb`` file."""
    with open(path, "rb") as file:
        data = file.read()
    form = type_proto.WhichOneof("value")
    if form == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if form == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def data_sets(case: TestCase, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    if case.model is not None:
        for inputs, outputs in case.data_sets:
            yield [plain(item) for item in inputs], [plain(item) for item in outputs]
        return
    for folder in sorted(glob.glob(os.path.join(case.model_dir, "test_data_set_*"))):
        yield tuple(
            [read(f"{folder}/{side}_{i}.pb", infos[i].type) for i in range(len(glob.glob(f"{folder}/{side}_*.pb")))]
            for side, infos in (("input", model.graph.input), ("output", model.graph.output))
        )


def plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def check(given: Any, wanted: Any, rtol: float, atol: float) -> None:
    if wanted is None:
        assert given is None
    elif isinstance(wanted, list):
        assert isinstance(given, list)
        assert len(given) == len(wanted)
        for one, other in zip(given, wanted, strict=True):
            check(one, other, rtol, atol)
    else:
        wanted = np.asarray(wanted)
        assert isinstance(given, np.ndarray)
        assert given.shape == wanted.shape
        if wanted.dtype.kind in "OUST":
            assert given.astype(str).tolist() == wanted.astype(str).tolist()
            return
        assert given.dtype == wanted.dtype
        if wanted.dtype.kind not in "fiubc":
            given, wanted = given.astype(np.float32), wanted.astype(np.float32)
        np.testing.assert_allclose(given, wanted, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("name", list(cases()))
def test_case(name: str) -> None:
    case = cases()[name]
    path = None if case.model is not None else os.path.join(case.model_dir, "model.onnx")
    model = case.model if path is None else onnx.load(path)
    session = ort.InferenceSession(model if path is None else path)
    names = [info.name for info in model.graph.input]
    for inputs, outputs in data_sets(case, model):
        feeds = dict(zip(names, inputs, strict=False))
        for _ in range(3):  # step by step, then recorded, then by plan
            results = session.run(None, feeds)
            if case.name in RANDOM:
                assert [(r.dtype, r.shape) for r in results] == [(w.dtype, w.shape) for w in outputs]
                assert all(np.isin(r, (0, 1)).all() for r in results)
                continue
            for given, wanted in zip(results, outputs, strict=False):
                check(given, wanted, case.rtol, case.atol)


def test_table_of_random_cases_is_exact() -> None:
    assert set(RANDOM) <= {case.name for case in cases().values()}


LIGHT = sorted(glob.glob(os.path.join(os.path.dirname(loader.__file__), "..", "data", "light", "*.onnx")))


@pytest.mark.long_cases(but=["light_inception_v1.onnx", "light_shufflenet.onnx", "light_squeezenet.onnx"])
@pytest.mark.parametrize("path", LIGHT, ids=[os.path.basename(path) for path in LIGHT])
def test_light_model(path: str) -> None:
    """Whole CNNs with synthetic weights."""
    from onnx.backend.test.runner import Runner

    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    case = next(c for c in loader.load_model_tests(kind="real") if os.path.basename(path) == os.path.basename(c.url))
    feeds = {
        info.name: Runner.generate_dummy_data(info, seed=0, name=case.model_name, random=False)
        for info in model.graph.input
        if info.name not in constants
    }
    results = ort.InferenceSession(path).run(None, feeds)
    for index, given in enumerate(results):
        wanted = read(path[: -len(".onnx")] + f"_output_{index}.pb", model.graph.output[index].type)
        if model.graph.node[-1].op_type == "Softmax":
            check_logits(model, feeds, given, wanted, case.rtol)
        else:
            check(given, wanted, case.rtol, case.atol)


def check_logits(model: onnx.ModelProto, feeds: dict[str, Any], given: Any, wanted: Any, rtol: float) -> None:
    """Scores of the synthetic weights reach 1e10, where one unit in the last place is 1024: their softmax is what rounding
    makes of it. So the scores themselves are compared, by what they differ from the largest, and the softmax of ours.
    """
    model.graph.output.append(onnx.helper.make_tensor_value_info(model.graph.node[-1].input[0], 1, None))
    result, logits = (value.ravel().astype(np.float64) for value in ort.InferenceSession(model).run(None, feeds))
    log_wanted = np.log(np.maximum(wanted.ravel().astype(np.float64), np.finfo(np.float32).tiny))
    behind, behind_wanted = (values - values.max() for values in (logits, log_wanted))
    known = behind_wanted > -80  # of those below, float32 has no probability
    np.testing.assert_allclose(behind[known], behind_wanted[known], rtol=rtol, atol=1e-6 * np.abs(logits).max())
    shares = np.exp(behind) / np.exp(behind).sum()
    np.testing.assert_allclose(result, shares, rtol=rtol, atol=1e-7)
    np.testing.assert_array_equal(given.ravel(), result)
