"""Conditions on sizes that only the data tells: assumed where eager PyTorch raises, tried at the sample, checked by the file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.capture.driver import capture
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.capture.recording import size_checks
from tests.capture.data_size_programs import OfOne
from tests.support import Engines, check

X = torch.linspace(-2, 3, 42).reshape(2, 7, 3)
LENGTHS = torch.tensor([4, 3])
ONE = {"x": {1: "n"}, "lengths": None}
TWO = {"x": {0: "b", 1: "n"}, "lengths": {0: "b"}}
NONE = {"x": None, "lengths": None}
AXES = {"none": NONE, "one": ONE, "two": TWO}


def crop(x: Tensor, lengths: Tensor) -> Tensor:
    h, w = lengths.max().item(), lengths.min().item() - 2
    return x[:, : h * w].view(x.shape[0], h, w, -1)


RIGHT: dict[str, Callable[..., Any]] = {
    "narrow": lambda x, lengths: x.narrow(1, 0, int(lengths.max())).mean(1),
    "narrow by item": lambda x, lengths: x.narrow(1, 0, lengths.max().item()) * 2,
    "narrow from": lambda x, lengths: x.narrow(1, lengths.min().item(), 2).sum(1),
    "narrow the end": lambda x, lengths: x.narrow(1, int(lengths.max()) - 1, 1),
    "narrow a selection": lambda x, lengths: x[:, torch.arange(lengths.max().item())].narrow(1, 0, 2),
    "narrow both": lambda x, lengths: x.narrow(1, int(lengths.min()) - 1, int(lengths.min())),
    "narrow a copy": lambda x, lengths: torch.narrow_copy(x, 1, 0, lengths.max().item()),
    "narrow and write": lambda x, lengths: written(x.clone(), lengths),
    "count": lambda x, lengths: x.narrow(1, 0, (lengths > 0).nonzero().shape[0]),
    "crop": crop,
    "broadcast to a number": lambda x, lengths: x[:, : lengths.max().item()] + torch.ones(4, 3),
}


def written(x: Tensor, lengths: Tensor) -> Tensor:
    x.narrow(1, 0, lengths.max().item()).fill_(1.0)
    return x


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("name", RIGHT)
def test_what_takes_a_number_from_data_is_right(name: str, axes: str) -> None:
    others = [(X, torch.tensor([3, 4]))]
    others += [(X[:, :6], torch.tensor([3, 4])), (X[:, :5], torch.tensor([4, 3]))] if axes != "none" else []
    others += [(X[:1].repeat(3, 1, 1), torch.tensor([4, 3, 3]))] if axes == "two" else []
    check(RIGHT[name], (X, LENGTHS), others=others, dynamic_shapes=AXES[axes])


FAILS: dict[str, tuple[Callable[..., Any], Tensor, Tensor, str]] = {
    "narrow past the end": (RIGHT["narrow"], X[:, :3], LENGTHS, "u0 <= n"),
    "narrow by less than nothing": (RIGHT["narrow by item"], X, torch.tensor([-1, -2]), "u0 >= 0"),
    "narrow from past the end": (RIGHT["narrow from"], X[:, :4], LENGTHS, "u0 + 2 <= n"),
    "write past the end": (RIGHT["narrow and write"], X[:, :3], LENGTHS, "u0 <= n"),
    "a check of the user's": (lambda x, lengths: checked(x, lengths), X[:, :3], LENGTHS, "u0 <= n"),
    "an assertion": (lambda x, lengths: asserted(x, lengths), X[:, :3], LENGTHS, "u0 <= n"),
    "a sum that does not fit": (lambda x, lengths: x[:, torch.arange(lengths.max().item())] + x[:, 1:], X, torch.tensor([1, 1]), "=="),
    "a size below nothing": (lambda x, lengths: x + torch.arange(lengths.max().item()).sum(), X, torch.tensor([-2, -2]), "u0 >= 0"),
    "a view": (lambda x, lengths: x.reshape(-1)[: 2 * lengths.max().item()].view(2, -1, 4), X, torch.tensor([3, 3]), "=="),
}  # fmt: skip


def checked(x: Tensor, lengths: Tensor) -> Tensor:
    count = lengths.max().item()
    torch._check(count <= x.shape[1])
    return x[:, :count]


def asserted(x: Tensor, lengths: Tensor) -> Tensor:
    count = lengths.max().item()
    assert count <= x.shape[1]
    return x[:, :count]


@pytest.mark.parametrize("name", FAILS)
def test_a_file_fails_where_eager_pytorch_raises(name: str) -> None:
    program, x, lengths, condition = FAILS[name]
    sample = (X[:, :5], LENGTHS) if name == "a sum that does not fit" else (X, LENGTHS)
    result = fx2onnx.export(program, sample, dynamic_shapes=ONE)
    engines = Engines(result.model_proto)
    for session in engines.sessions.values():
        with pytest.raises(Exception, match=r".") as failed:
            session.run(None, {name: given.numpy() for name, given in zip(engines.names, (x, lengths), strict=True)})
        if "cannot reshape" in str(failed.value):
            continue  # the operator itself came first
        assert f"{condition} has to be true" in str(failed.value) or condition == "=="
        assert "test_size_checks.py:" in str(failed.value)


def test_a_check_stands_before_what_follows() -> None:
    module = OfOne(lambda x, n: x.narrow(1, 0, n).exp().sum(1), lambda x, data: int(data.max()))
    captured = capture(module, (X, LENGTHS), options=CaptureOptions(dynamic_shapes={"x": {1: "n"}, "data": None}))
    checks = [node for node in captured.graph.nodes if node.target is size_checks.CHECKED]
    followed = {user.target for node in checks for user in node.users} - {size_checks.CHECKED}
    assert followed == {torch.ops.aten.exp.default}


@pytest.mark.parametrize("optimize", [True, False])
def test_checks_are_left_out_where_nobody_wants_them(optimize: bool) -> None:
    result = fx2onnx.export(RIGHT["narrow"], (X, LENGTHS), dynamic_shapes=ONE, checks=False, optimize=optimize)
    assert not [node.name for node in result.model.graph if "has to be true" in (node.name or "")]
    Engines(result.model_proto).run((X[:, :3], LENGTHS))


def test_a_file_without_sizes_from_data_has_no_check() -> None:
    result = fx2onnx.export(lambda x: x.narrow(1, 0, x.shape[1] - 1) + 1, (X,), dynamic_shapes={"x": {1: "n"}})
    assert not [
        node.name for node in result.model.graph if "Gather" in node.op_type or "has to be" in (node.name or "")
    ]


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("reads_all", [True, False])
def test_checks_survive_onnxruntime_and_outputs_that_nobody_reads(level: str, reads_all: bool) -> None:
    import onnxruntime

    result = fx2onnx.export(lambda x, lengths: (x * 2, checked(x, lengths)), (X, LENGTHS), dynamic_shapes=ONE)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(result.model_proto.SerializeToString(), options)
    names = [value.name for value in session.get_outputs()]
    feeds = {"x": X[:, :3].numpy(), "lengths": LENGTHS.numpy()}
    with pytest.raises(Exception, match="u0 <= n has to be true"):
        session.run(None if reads_all else names[1:], feeds)


DTYPES = [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_scalar", [True, False])
def test_a_check_gives_any_tensor_on(dtype: torch.dtype, is_scalar: bool) -> None:
    def forward(x: Tensor, lengths: Tensor) -> Tensor:
        count = lengths.max().item()
        torch._check(count <= x.shape[0])
        found = x.to(dtype)
        found = found.reshape(-1)[0] if is_scalar else found
        return torch.view_as_real(found) if dtype.is_complex else found

    x = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    result = fx2onnx.export(forward, (x, torch.tensor([1, 2])), dynamic_shapes={"x": {0: "n"}, "lengths": None})
    for outputs in Engines(result.model_proto).run((x, torch.tensor([1, 2]))).values():
        np.testing.assert_array_equal(outputs[0], forward(x, torch.tensor([1, 2])).numpy())
    assert any("has to be true" in (node.name or "") for node in result.model.graph)


@pytest.mark.parametrize("lengths", [torch.tensor([9, 3]), torch.tensor([9]), torch.tensor(9)])
def test_a_sample_that_breaks_a_condition_is_an_error(lengths: Tensor) -> None:
    def forward(x: Tensor, lengths: Tensor) -> Tensor:
        return x.narrow(1, 0, lengths.max().item() if lengths.numel() > 1 else lengths.item())

    with pytest.raises(UserError, match="u0 <= n") as refused:
        fx2onnx.export(forward, (X, lengths), dynamic_shapes=ONE)
    assert refused.value.code == "E101"
    assert "u0 is 9" in refused.value.why
    assert refused.value.where is not None


def test_a_condition_that_much_leads_to_is_not_tried() -> None:
    big = torch.zeros(1100, 1000)
    result = fx2onnx.export(
        lambda x, y: y.narrow(0, 0, (x > 1).nonzero().shape[0]), (big, X), dynamic_shapes={"x": None, "y": {0: "b"}}
    )
    assert any("not tried on the example inputs" in str(line) for line in result.report.assumptions)


@pytest.mark.parametrize("name", ["u0", "u1", "u7"])
def test_a_size_of_the_users_is_none_of_data_whatever_its_name(name: str) -> None:
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, int]:
        count = x.nonzero().shape[0]
        return y[:count], y.shape[0] - count

    x, y = torch.tensor([1.0, 0.0, 2.0, 0.0, 3.0]), torch.arange(6.0)
    others = [(x[:2], y), (x, y[:2]), (x[:0], y[:1])]
    check(forward, (x, y), others=others, dynamic_shapes={"x": {0: "k"}, "y": {0: name}})


def test_pixels_of_sizes_from_data_need_a_multiple() -> None:
    def forward(x: Tensor, sizes: Tensor) -> Tensor:
        return F.pixel_unshuffle(x[:, :, : sizes[0].item(), : sizes[1].item()], 2)

    image = torch.linspace(-1, 2, 192).reshape(1, 3, 8, 8)
    result = check(forward, (image, torch.tensor([4, 6])), others=[(image, torch.tensor([8, 2]))])
    assert any("% 2) == 0" in str(line) for line in result.report.assumptions)


def of_data(x: Tensor) -> Tensor:
    return x.view(-1, 4).sum(1).sum() if x.sum() > 0 else x.sum() * 2


def of_data_and_sizes(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x.view(-1, 4).sum(1).sum() if x.shape[0] > 8 else x.view(-1, 2).sum()
    return x.sum() * 3


def joined_again(x: Tensor) -> Tensor:
    return (x.view(-1, 2) * 2 if x.sum() > 0 else x[: 2 * (x.shape[0] // 2)].view(-1, 2)).sum(0) + 1


def cond_by_data(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.reshape(-1, 4).sum(1).sum(), lambda x: x.sum() * 2, (x,))


def cond_by_sizes(x: Tensor) -> Any:
    return torch.cond(x.shape[0] > 8, lambda x: x.reshape(-1, 4).sum(1).sum(), lambda x: x.sum() * 2, (x,))


def sizes_only(x: Tensor) -> Tensor:
    """A question that small sizes alone are asked, as a codec's padding has it."""
    size = x.shape[-1]
    half = math.ceil((size - 2) / 2 + 1)
    extra = 5 * math.ceil((half - 5) / 5 + 1) - half
    if size <= 3:
        x = F.pad(x, (0, 4 - size))
        return x.sum() if half <= max(5, extra) else x.sum() * 2
    return x.view(-1, 2).sum()


ONE_SIDE: dict[str, tuple[Callable[..., Any], list[int], list[int]]] = {
    "a decision by data": (of_data, [4, 8, -3, -4, -5], [3, 5]),
    "a decision by sizes in one by data": (of_data_and_sizes, [6, 8, 12, -3, -9], [3, 10]),
    "a decision by data and what follows": (joined_again, [2, 6, -4, -7], [3, 5]),
    "torch.cond by data": (cond_by_data, [4, 8, -8], [5]),
    "torch.cond by sizes": (cond_by_sizes, [3, 5, 8, 12, -7, -12], [9, 11]),
    "a decision by sizes": (sizes_only, [1, 2, 3, 4, 8], [5]),
}
"""A program, numbers of elements at which it is right (all below 0 where the number is), and others at which eager PyTorch raises."""


@pytest.mark.parametrize("name", ONE_SIDE)
def test_a_condition_of_one_side_is_for_that_side_alone(name: str) -> None:
    program, right, wrong = ONE_SIDE[name]
    elements = [torch.linspace(1, 2, abs(count)) * (1 if count > 0 else -1) for count in right]
    sample = torch.linspace(1, 2, 16)
    result = check(program, (sample,), others=[(each,) for each in elements], dynamic_shapes={"x": {0: "n"}})
    engines = Engines(result.model_proto)
    for count in wrong:
        for session in engines.sessions.values():
            with pytest.raises(Exception, match=r"n|Reshape"):
                session.run(None, {"x": torch.linspace(1, 2, count).numpy()})


Rows = Callable[[Tensor, Tensor], Any]
"""What is done with two tensors, each of as many rows as data tells."""
PAIRS: dict[str, Rows] = {
    "added": lambda a, b: a + b,
    "chosen": lambda a, b: torch.where(a > b, a, b),
    "expanded": lambda a, b: a.expand(b.shape[0], 4),
    "expanded as": lambda a, b: a.expand_as(b),
    "broadcast_to": lambda a, b: torch.broadcast_to(a, b.shape),
    "copied": lambda a, b: torch.zeros_like(a).copy_(b),
    "assigned": lambda a, b: assigned(torch.zeros(8, 4), slice(0, a.shape[0]), b),
    "assigned by places": lambda a, b: assigned(torch.zeros(8, 4), torch.arange(a.shape[0]), b),
    "assigned by a mask": lambda a, b: assigned(torch.zeros(8, 4), torch.arange(8) < a.shape[0], b),
    "selected by a mask": lambda a, b: a[b[:, 0] > 0],
    "assigned in a mask": lambda a, b: assigned(a.clone(), b[:, 0] > 0, 0.5),
    "joined": lambda a, b: torch.cat([a, b], 1),
    "stacked": lambda a, b: torch.stack([a, b]),
    "multiplied": lambda a, b: a.mT @ b,
    "einsum": lambda a, b: torch.einsum("nc,nc->n", a, b),
    "attention": lambda a, b: F.scaled_dot_product_attention(b[None], a[None], b[None]),
    "distances": lambda a, b: F.pairwise_distance(a, b),
    "reshaped products": lambda a, b: (a[:, None] * b).reshape(-1, 4).view(b.shape[0], a.shape[0], 4),
    "unflattened": lambda a, b: (a[:, None] * b).flatten(0, 1).unflatten(0, (a.shape[0], b.shape[0])),
    "isin": torch.isin,
    "padded": lambda a, b: F.pad(a, (0, 0, 0, b.shape[0] - a.shape[0])) + b,
    "reflected": lambda a, b: F.pad(torch.cat([a, a]).mT, (b.shape[0], 0), mode="reflect"),
    "padded with turns": lambda a, b: F.pad(a.mT, (b.shape[0], 0), mode="circular")[:, :1],
    "largest of windows": lambda a, b: F.max_pool1d(a.mT[None], b.shape[0], 1),
    "means of windows": lambda a, b: F.avg_pool1d(a.mT[None], b.shape[0]),
    "windows": lambda a, b: a.unfold(0, b.shape[0], 1),
}
NARROW = frozenset({
    "added", "chosen", "copied", "assigned by a mask", "assigned by places", "einsum", "distances", "padded",
    "assigned",
})  # fmt: skip
"""Those that one row would be broadcast in, which a file of two such sizes fails in."""


def assigned(target: Tensor, place: Any, value: Any) -> Tensor:
    target[place] = value
    return target


@pytest.mark.parametrize("name", PAIRS)
def test_of_two_sizes_from_data_a_file_is_right_or_fails(name: str) -> None:
    def forward(x: Tensor, marks: Tensor, count: Tensor) -> Any:
        return PAIRS[name](x[marks > 0], x[1 : 1 + count.item()])

    x, counts = torch.linspace(-2, 3, 32).reshape(8, 4).sin(), (0, 1, 2, 5)
    example = (x, (torch.arange(8) < 5).float(), torch.tensor(5))
    engines = Engines(fx2onnx.export(forward, example).model_proto)
    for rows, count in itertools.product(counts, counts):
        inputs = (x, (torch.arange(8) < rows).float(), torch.tensor(count))
        try:
            want = forward(*inputs).numpy()
        except (RuntimeError, IndexError, ValueError):
            want = None
        feeds = {key: each.numpy() for key, each in zip(("x", "marks", "count"), inputs, strict=True)}
        for session in engines.sessions.values():
            try:
                (got,) = session.run(None, feeds)
            except Exception:  # whatever an engine raises
                is_of_few = 0 in (rows, count) or (name in NARROW and 1 in (rows, count))
                assert want is None or is_of_few, (rows, count)
                continue
            assert want is not None, (rows, count, got.shape)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{rows}, {count}")
