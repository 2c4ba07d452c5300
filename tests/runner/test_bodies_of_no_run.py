"""Loop and Scan whose bodies run zero times: what they stack has no rows, and its other dims as the body names them."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
import torch

import fx2onnx
from fx2onnx.runner import InferenceSession

HEAD = '<ir_version: 9, opset_import: ["" : 20]>'
SCAN = """g (float[A,T,B] x, float[A,B] s) => (float[P,Q,R,S,U] y) {
    f, y = Scan <body = step (float[A,B] state, float[A,B] row) => (float[A,B] next, float[A,B,2,C] out) {
        next = Add(state, row)  two = Constant <value_ints: ints = [2]> ()  wide = Unsqueeze(next, two)
        out = Concat <axis: int = 2> (wide, wide)
    }, num_scan_inputs: int = 1, scan_input_axes: ints = [1], scan_output_axes: ints = [AXIS]> (s, x)
}"""
LOOP = """g (float[A,B] s, float[C] outer, int64 n) => (float[A,B] f, float[P,A,B] y, float[P,C] z) {
    yes = Constant <value: tensor = bool {1}> ()
    f, y, z = Loop <body = step (int64 i, bool go, float[A,B] state) => (bool on, float[A,B] next, float[A,B] kept, float[C] of) {
        on = Identity(go)  next = Add(state, state)  kept = Neg(next)  of = Neg(outer)
    }> (n, yes, s)
}"""


@pytest.mark.parametrize(("axis", "shape"), [(0, (0, 3, 4, 2, 0)), (2, (3, 4, 0, 2, 0)), (-1, (3, 4, 2, 0, 0))])
def test_a_scan_over_nothing(axis: int, shape: tuple[int, ...]) -> None:
    model = onnx.parser.parse_model(f"{HEAD}\n{SCAN.replace('AXIS', str(axis))}")
    feeds = {"x": np.zeros((3, 0, 4), np.float32), "s": np.zeros((3, 4), np.float32)}
    assert InferenceSession(model.SerializeToString()).run(["y"], feeds)[0].shape == shape


@pytest.mark.parametrize("times", [0, 2])
def test_a_loop_of_no_turn_knows_what_it_captures(times: int) -> None:
    session = InferenceSession(onnx.parser.parse_model(f"{HEAD}\n{LOOP}").SerializeToString())
    state = np.ones((3, 4), np.float32)
    final, kept, of = session.run(None, {"s": state, "outer": np.zeros(5, np.float32), "n": np.array(times)})
    assert np.array_equal(final, state * 2**times)
    assert (kept.shape, of.shape) == ((times, 3, 4), (times, 5))


class Running(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x.logcumsumexp(1), *x.cummax(-2)


def test_an_export_at_no_length() -> None:
    model = fx2onnx.export(Running(), (torch.randn(2, 5, 3),), dynamic_shapes=({0: "batch", 1: "length"},))
    session = InferenceSession(model.model_proto.SerializeToString())
    for size in (0, 1, 4):
        x = torch.randn(2, size, 3)
        for got, want in zip(session.run(None, {"x": x.numpy()}), Running()(x), strict=True):
            assert got.shape == tuple(want.shape)
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5)
