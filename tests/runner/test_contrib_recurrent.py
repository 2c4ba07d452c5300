"""onnxruntime's recurrent operators in the runner: the same numbers as in onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from test_contrib import MICROSOFT, check, draw, model_of, results

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError

Array = np.ndarray
I8, U8, F32 = np.int8, np.uint8, np.float32
HIDDEN, WIDTH = 6, 7


def weights(inputs: int, n_directions: int, dtype: Any, by_column: bool, seed: int) -> tuple[Array, Array, Array]:
    """Codes [D, inputs, 4 * H], their scales and zero points."""
    wide = 0.4 * draw(n_directions, inputs, 4 * HIDDEN, seed=seed)
    steps = (np.abs(wide).max(1 if by_column else (1, 2)) / 127).astype(F32)
    middle = 0 if dtype == I8 else 128
    codes = np.rint(wide / steps.reshape(n_directions, 1, -1)) + middle
    return codes.astype(dtype), steps, np.full(steps.shape, middle, dtype)


def operands(direction: str, dtype: Any, by_column: bool, **given: Array) -> dict[str, Array | None]:
    n = 2 if direction == "bidirectional" else 1
    w, w_scale, w_zero = weights(WIDTH, n, dtype, by_column, 1)
    r, r_scale, r_zero = weights(HIDDEN, n, dtype, by_column, 2)
    feeds: dict[str, Array | None] = {"x": draw(5, 3, WIDTH), "w": w, "r": r}
    feeds |= dict.fromkeys(("b", "lengths", "h", "c", "p")) | given
    return feeds | {"ws": w_scale, "wz": w_zero, "rs": r_scale, "rz": r_zero}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("dtype", [I8, U8])
@pytest.mark.parametrize("by_column", [False, True])
def test_quantized_lstm(direction: str, dtype: Any, by_column: bool) -> None:
    n = 2 if direction == "bidirectional" else 1
    state = {name: 0.3 * draw(n, 3, HIDDEN, seed=seed) for seed, name in enumerate("hc")}
    forms: list[tuple[dict[str, Array], dict[str, Any]]] = [
        ({}, {}),
        ({"b": 0.2 * draw(n, 8 * HIDDEN), **state}, {"clip": 0.5}),
        ({"lengths": np.array([5, 2, 4], np.int32)}, {}),
        ({"lengths": np.array([3, 0, 1], np.int32), **state}, {}),
        ({"p": 0.1 * draw(n, 3 * HIDDEN)}, {"input_forget": 1}),
        ({}, {"activations": ["Relu", "Tanh", "Sigmoid"] * n}),
    ]
    for given, attrs in forms:
        feeds = operands(direction, dtype, by_column, **given)
        found = results(
            "DynamicQuantizeLSTM", feeds, "y last_h last_c", direction=direction, hidden_size=HIDDEN, **attrs
        )
        check(found, 2e-6)


@pytest.mark.parametrize(
    ("wrong", "attrs", "message"),
    [
        ({"w": np.zeros((1, 3, 24), U8)}, {}, "W has the shape"),
        ({"ws": np.ones((5,), F32)}, {}, "the scale of W"),
        ({"lengths": np.array([9, 1, 1], np.int32)}, {}, "sequence_lens"),
        ({}, {"activations": ["Sigmoid"]}, "1 activations, not 3"),
    ],
)
def test_what_a_quantized_lstm_refuses(wrong: dict[str, Array], attrs: Any, message: str) -> None:
    feeds = operands("forward", U8, False) | wrong
    model = model_of("DynamicQuantizeLSTM", feeds, "y", MICROSOFT, {"hidden_size": HIDDEN, **attrs})
    with pytest.raises(UserError, match=message):
        ort.InferenceSession(model).run(None, {name: value for name, value in feeds.items() if value is not None})


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("dtype", "by_column"), [(I8, False), (U8, True)])
def test_a_quantized_lstm_of_constant_weights(direction: str, dtype: Any, by_column: bool) -> None:
    """The second and third runs are those of a plan, which has the weights in another order."""
    n, outputs = 2 if direction == "bidirectional" else 1, "y last_h last_c"
    for batch, given in (
        (1, {}),
        (3, {"b": 0.2 * draw(n, 8 * HIDDEN)}),
        (2, {"h": 2 * draw(n, 2, HIDDEN), "c": draw(n, 2, HIDDEN)}),
    ):
        feeds = operands(direction, dtype, by_column, **given) | {"x": draw(5, batch, WIDTH)}
        attrs = {"direction": direction, "hidden_size": HIDDEN}
        model = onnx.load_from_string(model_of("DynamicQuantizeLSTM", feeds, outputs, MICROSOFT, attrs))
        fed = [info for info in model.graph.input if info.name in "xhc"]
        for name in {info.name for info in model.graph.input} - set("xhc"):
            model.graph.initializer.append(numpy_helper.from_array(feeds[name], name))
        del model.graph.input[:]
        model.graph.input.extend(fed)
        given = {info.name: feeds[info.name] for info in fed}
        session, (_, wanted) = ort.InferenceSession(model), results("DynamicQuantizeLSTM", feeds, outputs, **attrs)
        first, *others = (session.run(None, given) for _ in range(3))
        check((first, wanted), 2e-6)
        for other in others:
            np.testing.assert_array_equal(
                np.concatenate([y.ravel() for y in other]), np.concatenate([y.ravel() for y in first])
            )


def test_weights_that_are_fed_anew() -> None:
    """A session keeps what it made of the weights; written over in place, or given by another array, they count."""
    feeds = {name: value for name, value in operands("forward", I8, False).items() if value is not None}
    model = model_of("DynamicQuantizeLSTM", operands("forward", I8, False), "y", MICROSOFT, {"hidden_size": HIDDEN})
    session = ort.InferenceSession(model)
    for name in ("w", "r", "ws", "rs", "rz"):
        for _ in range(3):
            session.run(None, feeds)
        feeds[name][...] = feeds[name] + (1 if feeds[name].dtype == I8 else F32(0.01))
        (again,) = ort.InferenceSession(model).run(None, feeds)
        for _ in range(3):
            np.testing.assert_array_equal(session.run(None, feeds)[0], again)


@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (5, 0), (0, 0)])
def test_a_quantized_lstm_of_nothing(steps: int, batch: int) -> None:
    """No step leaves the states as they are; onnxruntime ends the process where there is no row."""
    states = {name: draw(2, batch, HIDDEN, seed=seed) for seed, name in enumerate("hc")}
    feeds = operands("bidirectional", U8, False, **states) | {"x": draw(steps, batch, WIDTH)}
    model = model_of("DynamicQuantizeLSTM", feeds, "y h1 c1", MICROSOFT, {"hidden_size": HIDDEN, "direction": "bidirectional"})  # fmt: skip
    given = {name: value for name, value in feeds.items() if value is not None}
    found, *last = ort.InferenceSession(model).run(None, given)
    assert found.shape == (steps, 2, batch, HIDDEN)
    np.testing.assert_array_equal(last, list(states.values()))
