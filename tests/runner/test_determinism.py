"""The same feeds give the same bits: at any number of threads, in the first run and in later ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from determinism_digests import SHAPES
from onnx import TensorProto, helper

import fx2onnx
import fx2onnx.runner as ort
from fx2onnx.semantics.kernels import threads
from models_zoo import registry

SCRIPT = Path(__file__).parent / "determinism_digests.py"
MODELS = ("resnet18", "mobilenet_v3_large")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Whole models, exported with random weights."""
    folder = tmp_path_factory.mktemp("models")
    paths = []
    for name in MODELS:
        paths.append(str(folder / f"{name}.onnx"))
        fx2onnx.export(registry.build(name).module, (torch.randn(1, 3, 96, 96),), paths[-1])
    return tuple(paths)


@lru_cache(maxsize=4)
def digests(count: str, models: tuple[str, ...]) -> dict[str, list[str]]:
    """The digests in a process whose OpenBLAS starts with ``count`` threads."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": count, "OMP_NUM_THREADS": count}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *models],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
def test_one_result_at_every_thread_count(models: tuple[str, ...]) -> None:
    one, two = digests("1", models), digests("2", models)
    assert len(one) == 2 * len(SHAPES) + len(MODELS)
    assert {name: found for name, found in one.items() if len(found) > 1} == {}
    assert {name: (found, two[name]) for name, found in one.items() if two[name] != found} == {}


def test_blas_threads_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where blocks overlap on two threads: the last to end restores what the first found. A BLAS without a count that
    can be set is stood in for.
    """
    count = [1]
    get, put = threads._controls() or (lambda: count[0], lambda wanted: count.__setitem__(0, wanted))
    monkeypatch.setattr(threads, "_controls", lambda: (get, put))
    before = get()
    put(2)
    try:
        inside, leave = threading.Event(), threading.Event()

        def other() -> None:
            with threads.threads(3):
                inside.set()
                leave.wait(10)

        worker = threading.Thread(target=other)
        worker.start()
        inside.wait(10)
        with threads.threads(0):
            assert get() == 1
            leave.set()
            worker.join()
            assert get() == 1
        assert get() == 2
    finally:
        put(before)


def test_tasks_run_on_several_threads_and_faults_reach_the_caller() -> None:
    seen: set[str] = set()
    meet = threading.Barrier(2, timeout=10)

    def task() -> None:
        meet.wait()
        seen.add(threading.current_thread().name)

    with threads.threads(2):
        threads.spread([task, task])
    assert len(seen) == 2

    def fault() -> None:
        raise ValueError("fault")

    with threads.threads(2), pytest.raises(ValueError, match="fault"):
        threads.spread([fault] * 4)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((700, 512), (512, 300)),
        ((90, 512), (512, 3000)),
        ((1, 6, 300, 200), (1, 1, 200, 300)),
        ((5, 400, 200), (200, 300)),
    ],
)
def test_parts_make_the_whole_product(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(left), rng.standard_normal(right)
    out = np.full(np.matmul(a, b).shape, np.nan)
    with threads.threads(3):
        threads.multiply(a, b, out)
    np.testing.assert_allclose(out, np.matmul(a, b), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("op_type", "shapes"),
    [("ReduceSum", [[50, 777]]), ("LayerNormalization", [[64, 300], [300]]), ("MatMul", [[97, 300], [300, 120]])],
)
def test_how_a_feed_lies_in_memory_makes_no_difference(op_type: str, shapes: list[list[int]]) -> None:
    rng = np.random.default_rng(0)
    x, *rest = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    names = [f"w{place}" for place in range(len(rest))]
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", *names], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for array, name in zip(rest, names, strict=True)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = ort.InferenceSession(proto)
    offset = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    forms = [
        x, np.asfortranarray(x), np.repeat(x, 2, axis=-1)[..., ::2], np.flip(np.flip(x).copy()), x.astype(">f4"),
        offset,
    ]  # fmt: skip
    assert len({session.run(None, {"x": form})[0].tobytes() for form in forms for _ in range(3)}) == 1


@pytest.mark.parametrize("rows", [1, 2, 7, 48, 49])
@pytest.mark.parametrize("is_turned", [False, True])
def test_products_of_few_rows_are_those_of_numpy(rows: int, is_turned: bool) -> None:
    """Also in columns at a time, whose last ones are fewer, and with operands that are not contiguous."""
    rng = np.random.default_rng(rows)
    a, b = rng.standard_normal((rows, 700), np.float32), rng.standard_normal((700, 1003), np.float32)
    right = np.ascontiguousarray(b.T).T if is_turned else b
    out = np.empty((rows, 2006), np.float32)[:, ::2]
    for left, given in ((a, right), (np.repeat(a, 2, 1)[:, ::2], right), (a, np.repeat(b, 2, 1)[:, ::2])):
        threads.multiply(left, given, out)
        np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=2e-4)
