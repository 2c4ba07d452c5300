"""In-place writes and views as values, checked against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fx2onnx
from tests.support import check, run_engines

Program = Callable[[torch.Tensor], object]


def _write_column(x: torch.Tensor) -> object:
    y = x * 1
    y[:, 0] = 1
    return y


def _write_through_view(x: torch.Tensor) -> object:
    y = x * 1
    y.view(-1).add_(1)
    return y


def _slice_of_slice(x: torch.Tensor) -> object:
    y = x * 1
    y[1:][:, 1:3][0].mul_(5)
    return y


def _two_views(x: torch.Tensor) -> object:
    y = x * 1
    top, bottom = y[0], y[1:]
    top.add_(1)
    bottom.sub_(2)
    return y, top, bottom, y.sum()


def _transposed_write(x: torch.Tensor) -> object:
    y = x * 1
    y.t()[0] = 7
    y.transpose(0, 1).relu_()
    return y


def _chunks(x: torch.Tensor) -> object:
    y = x * 1
    left, right = y.chunk(2, dim=1)
    left.mul_(2)
    right.copy_(left)
    return y, left


def _unbind(x: torch.Tensor) -> object:
    y = x * 1
    for index, row in enumerate(y.unbind(0)):
        row.add_(index)
    return y


def _split_sizes(x: torch.Tensor) -> object:
    y = x * 1
    a, b = y.split([1, 3], dim=1)
    b.zero_()
    a.fill_(3)
    return y


def _unsafe_split(x: torch.Tensor) -> object:
    """As a GRU cell below autograd: the parts are written, the whole is not read any more."""
    a, b = torch.unsafe_split(x * 1, 2, 1)
    return a.sigmoid_() * b.tanh_(), torch.unsafe_split_with_sizes(x * 1, [1, 3], 1)[1].mul_(2)


def _expand_source(x: torch.Tensor) -> object:
    y = x.sum(0, keepdim=True)
    z = y.expand(3, 4)
    y.add_(1)
    return z + 0, y


def _diagonal(x: torch.Tensor) -> object:
    y = x * 1
    y[:3, :3].diagonal().fill_(9)
    return y


def _masked(x: torch.Tensor) -> object:
    y = x * 1
    y.masked_fill_(y > 0, -1)
    y[y < -0.5] = 0
    return y


def _index_put(x: torch.Tensor) -> object:
    y = x * 1
    y[torch.tensor([0, 2]), torch.tensor([1, 1])] = torch.tensor([5.0, 6.0])
    y.index_put_((torch.tensor([0, 0]),), torch.ones(4), accumulate=True)
    return y


def _scatter(x: torch.Tensor) -> object:
    y = x * 1
    y.scatter_(1, torch.tensor([[0], [1], [2]]), 4.0)
    return y


def _out_argument(x: torch.Tensor) -> object:
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    torch.mul(y, 2, out=y)
    return y


def _write_into_input(x: torch.Tensor) -> object:
    x.add_(1)
    return x * 2


def _view_made_before(x: torch.Tensor) -> object:
    y = x * 1
    view = y.view(4, 3)
    y.mul_(2)
    return view + 1


def _in_place_views(x: torch.Tensor) -> object:
    y = x * 1
    y.unsqueeze_(0)
    y.transpose_(1, 2)
    y[0, 0] = 1
    return y


def _same_dtype_kept(x: torch.Tensor) -> object:
    y = torch.zeros(3, 4, dtype=torch.float16)
    y += x
    return y


def _contiguous_is_the_same(x: torch.Tensor) -> object:
    y = x * 1
    z = y.contiguous()
    z.add_(1)
    w = y.t().contiguous()
    w.add_(100)
    return y, w


def _flatten_and_reshape(x: torch.Tensor) -> object:
    y = x * 1
    y.flatten().reshape(2, 6)[1] = 0
    return y


def _as_strided(x: torch.Tensor) -> object:
    y = x * 1
    y.as_strided((2, 2), (4, 1), 1).zero_()
    return y, y.as_strided((3,), (4,))


def _as_strided_of_views(x: torch.Tensor) -> object:
    y = x * 1
    seen = y[1:].as_strided((2, 2), (1, 2), 1), y.t().as_strided((2, 2), (1, 2)), y[1:, 1:].as_strided((2,), (1,))
    y.t().as_strided((2, 2), (4, 1)).add_(100)
    return y, seen


def _copy_other_dtype(x: torch.Tensor) -> object:
    y = torch.zeros(3, 4, dtype=torch.int64)
    y.copy_(x * 3)
    y[0].copy_(torch.tensor(7.9))
    return y


def _bool_mask_write(x: torch.Tensor) -> object:
    y = x * 1
    y[y > 0] *= 2
    y[x.sum(1) > 0] = -1
    return y


def _scatter_add(x: torch.Tensor) -> object:
    y = x * 1
    y.scatter_add_(0, torch.tensor([[0, 0, 2, 1]]), torch.ones(1, 4))
    y.index_add_(1, torch.tensor([0, 0]), torch.ones(3, 2))
    return y


def _augmented(x: torch.Tensor) -> object:
    y = x * 1
    y[0] += 3
    y[:, 1:] *= y[:, :-1].clone()
    return y


def _data_assigned(x: torch.Tensor) -> object:
    y = x * 1
    flat = y.view(-1)
    y.data = (x * 2)[:2]
    y[0] = 1
    flat[0] = 5
    return y, flat


def _data_assigned_and_written(x: torch.Tensor) -> object:
    y, z = x * 1, x * 3
    y.data = z
    y.data[0] = 0
    shown = y.data
    shown.data.mul_(2)
    w = x * 1
    w.data = z.t() * 1
    w.data = w.data + 1
    w.data[1] = 5
    return y, z, w, shown, w.t()


def _expanded_by_nothing(x: torch.Tensor) -> object:
    y = (x * 1).unsqueeze(0).expand(1, 3, 4)
    y[0, 1] = 3
    y.add_(1)
    return y


def _one_number_into_expanded(x: torch.Tensor) -> object:
    y = x[:1] * 1
    z = y.expand(3, 4)
    z.fill_(4)
    return y, z


def _parts_of_complex(x: torch.Tensor) -> object:
    y = torch.complex(x, x * 2)
    y.real.mul_(3)
    y.imag[0] = 7
    x = x * 1
    x.real.add_(1)
    return torch.view_as_real(y), x


def _fill_diagonal(x: torch.Tensor) -> object:
    y = x * 1
    y.fill_diagonal_(7)
    y.normal_(2, 0)[0].fill_(y[1, 0])
    return y


def _lists(x: torch.Tensor) -> object:
    y, z = x * 1, x + 1
    torch._foreach_add_([y, z[0]], 2.0)
    torch._foreach_mul_([y, z[0]], [z[1:2], x[2]])
    return y, z


PROGRAMS: dict[str, Program] = {
    name.removeprefix("_"): function
    for name, function in list(globals().items())
    if name.startswith("_") and callable(function) and getattr(function, "__module__", "") == __name__
}


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_program(name: str) -> None:
    torch.manual_seed(0)
    check(PROGRAMS[name], (torch.randn(3, 4),), rtol=1e-3 if "dtype" in name else 1e-5)


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("resize_", lambda x: x.clone().resize_(2, 2)),
        ("set_", lambda x: x.clone().set_(torch.zeros(2))),
        ("expand", lambda x: x[:1].clone().expand(3, 4)[1].fill_(5)),
        ("expand", lambda x: x[:1].clone().expand(3, 4).add_(1)),
        ("as_strided", lambda x: x.clone().as_strided((3, 3), (1, 1)).add_(1)),
        ("as_strided", lambda x: x.clone().as_strided((2, 2), (0, 1)).mul_(2)),
        ("unfold", lambda x: x.clone().unfold(1, 3, 1).mul_(2)),
        (".data", lambda x: setattr(x, "data", x * 2)),
    ],
)
def test_refused(name: str, program: Program) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(program, (torch.randn(3, 4),), capture="fake")
    assert caught.value.code == "E103"
    assert name in caught.value.what
    assert caught.value.where is not None


class _Masked(torch.nn.Conv1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data = self.weight.data * torch.tensor([1.0, 1.0, 0.0])
        return super().forward(x)


class _Rounded(torch.nn.Conv1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen, kept = self.weight.detach(), self.weight.data
        self.weight.data = kept.sign()
        rounded = super().forward(x)
        self.weight.data = self.weight.data * 2
        doubled, read = super().forward(x), self.weight.data
        self.weight.data = kept
        sums = [part.sum().expand_as(x[:, :1, 2:]) for part in (seen, read)]
        return torch.cat([rounded, doubled, super().forward(x), *sums], dim=1)


@pytest.mark.parametrize(("kind", "changes"), [(_Masked, True), (_Rounded, False)])
def test_data_of_a_parameter_stays_the_modules_own(kind: type[torch.nn.Conv1d], changes: bool) -> None:
    module = kind(2, 3, 3)
    before, numbers = module.weight.data_ptr(), module.weight.detach().clone()
    samples = [(torch.randn(3, 2, 8),), (torch.randn(1, 2, 5),)]
    result = check(module, samples[0], others=samples[1:], dynamic_shapes=[{0: "b", 2: "n"}])
    assert any("changes the parameter weight" in each for each in result.report.warnings) is changes
    assert module.weight.data_ptr() == before
    assert torch.equal(module.weight, numbers)
    module.weight.data = torch.zeros(3, 2, 3)
    assert not module.weight.any()


def _scale(module: Any, by: torch.Tensor) -> torch.Tensor:
    module.scale.data = by
    return module.scale


OF_REPLACED: dict[str, Callable[[torch.nn.Module, torch.Tensor], Any]] = {
    "tolist": lambda module, x: _scale(module, module.scale * 5).tolist()[1],
    "numpy": lambda module, x: float(_scale(module, module.scale * 5).numpy()[1]),
    "of another": lambda module, x: _scale(module, module.other.data).tolist()[1],
    "parameter": lambda module, x: torch.nn.Parameter(_scale(module, x[0])),
    "data_ptr": lambda module, x: module.scale.data_ptr() == _scale(module, module.scale * 5).data_ptr(),
    "data_ptr of the new": lambda module, x: (new := x[0] * 2).data_ptr() == _scale(module, new).data_ptr(),
    "data_ptr of its own": lambda module, x: (
        module.scale.data_ptr() == (kept := module.scale.data, _scale(module, x[0]), _scale(module, kept))[2].data_ptr()
    ),
    "data_ptr of a row": lambda module, x: _scale(module, module.table.data[1]).data_ptr() - module.table.data_ptr(),
    "data of before": lambda module, x: (module.scale.data, _scale(module, x[0]))[0],
    "data put back": lambda module, x: _scale(module, (module.scale.data, _scale(module, x[0]))[0]),
    "of another itself, put back": lambda module, x: (
        kept := module.scale.data,
        read := _scale(module, module.other) * x + module.other.data,
        _scale(module, kept) + read,
    )[2],
    "apply_": lambda module, x: module.scale.apply_(lambda number: number * 3),
    "map_ of what was written": lambda module, x: module.scale.mul_(2).map_(
        module.other.data, lambda one, two: one - two
    ),
}


@pytest.mark.parametrize("name", OF_REPLACED)
def test_python_asks_a_buffer_that_forward_replaced(name: str) -> None:
    class Asks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor([1.0, 2, 3]))
            self.register_buffer("table", torch.zeros(2, 3))
            self.other = torch.nn.Parameter(torch.tensor([4.0, 7, 9]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * OF_REPLACED[name](self, x) + self.scale

    module = Asks()
    check(module, (torch.randn(2, 3),), others=[(torch.randn(5, 3),)], dynamic_shapes=[{0: "b"}])
    assert module.scale.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "made",
    [
        lambda weight: (weight * 2).T,
        lambda weight: torch.stack([weight, weight])[1],
        lambda weight: torch.stack([weight, weight])[0],
    ],
    ids=["strides", "offset", "storage"],
)
def test_data_of_another_layout_is_told(made: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Replaces(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.data = made(self.weight)
            self.bias.data = x.sum(0)
            return x @ self.weight + self.bias

    result = check(Replaces(3, 3), (torch.randn(4, 3),), others=[(torch.randn(6, 3),)], dynamic_shapes=[{0: "b"}])
    assert [each.partition(" to ")[0] for each in result.report.warnings if "layout" in each] == [
        "forward sets the .data of weight"
    ]


@pytest.mark.parametrize("value", [torch.zeros(3, 2), torch.zeros(2, 4, dtype=torch.float64)], ids=["shape", "dtype"])
def test_data_of_another_type_is_refused(value: torch.Tensor) -> None:
    class Replaces(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weight.data = value * x.sum().to(value.dtype)
            return x @ self.weight.to(x.dtype).flatten()[:4]

    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(Replaces(4, 2), (torch.randn(3, 4),))
    assert caught.value.code == "E103"
    assert "copy_" not in str(caught.value)


def test_a_module_that_is_moved_to_where_it_is() -> None:
    """``module.to(dtype)`` sets the data of each parameter to what it is."""

    class Moves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.linear = self.linear.to(torch.float32)
            self.linear.weight.data = self.linear.weight.data
            return self.linear(x)

    module = Moves()
    weight = module.linear.weight
    check(module, (torch.randn(4, 3),))
    assert module.linear.weight is weight
    assert type(weight) is torch.nn.Parameter


def test_a_dtype_that_eager_refuses_to_write_is_refused() -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(lambda x: torch.arange(4).add_(1.5) + x, (torch.randn(3, 4),), capture="fake")
    assert caught.value.code == "E101"


@pytest.mark.parametrize(
    ("x", "offset"),
    [(torch.randn(20)[10:], 0), (torch.randn(4, 5)[:, ::2], None)],
    ids=["the middle of a storage", "every other element of a storage"],
)
def test_as_strided_of_a_storage_that_is_not_the_inputs_value_is_refused(x: torch.Tensor, offset: int | None) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(lambda x: x.as_strided((2, 2), (1, 2), offset), (x,))
    assert caught.value.code == "E203"
    assert caught.value.where is not None
    check(lambda x: x.contiguous().clone().as_strided((2, 2), (1, 2), offset), (x,))


VIEWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t[1:],
    lambda t: t[0] if t.dim() > 1 else t,
    lambda t: t[..., ::2],
    lambda t: t.reshape(-1),
    lambda t: t.transpose(0, -1),
    lambda t: t.unsqueeze(0),
    lambda t: t.squeeze(),
    lambda t: t.unbind(0)[-1] if t.dim() > 1 else t,
    lambda t: t.chunk(2, 0)[0],
    lambda t: t.narrow(0, 0, 1),
    lambda t: t.permute(*reversed(range(t.dim()))),
    lambda t: t.flatten(),
    lambda t: t.diagonal() if t.dim() == 2 else t,
    lambda t: t.movedim(0, -1),
    lambda t: t.detach(),
    lambda t: t.view_as(t),
    lambda t: t[-2:],
    lambda t: t[..., None].squeeze(-1),
    lambda t: t.tensor_split(2, -1)[1],
    lambda t: t.select(-1, -1) if t.dim() > 1 else t,
    lambda t: t.unflatten(0, (1, -1)),
    lambda t: t.T if t.dim() == 2 else t,
    lambda t: t.expand(2, *t.shape),
    lambda t: t.as_strided((2,), (1,)) if t.is_contiguous() and t.numel() > 1 else t,
    lambda t: t.contiguous(),
    lambda t: t.to(torch.float64),
    lambda t: t.to(torch.float32),
    lambda t: t.clone(),
]
WRITES: list[Callable[[torch.Tensor], object]] = [
    lambda t: t.add_(1.5),
    lambda t: t.mul_(-2),
    lambda t: t.zero_(),
    lambda t: t.fill_(3),
    lambda t: t.relu_(),
    lambda t: t.clamp_(min=-1, max=1),
    lambda t: t.copy_(t * 2 + 1),
    lambda t: t.masked_fill_(t > 0, 0.25),
    lambda t: t.sub_(t.sum()),
    lambda t: torch.mul(t, 2, out=t),
    lambda t: torch.add(t.clone(), t.clone(), out=t),
    lambda t: t.__setitem__(0, t.sum()),
    lambda t: t.__setitem__(t > 0.5, 0.5),
    lambda t: t.copy_(torch.arange(t.numel()).reshape(t.shape)),
    lambda t: t.index_fill_(0, torch.tensor([0]), 2),
    lambda t: t.index_put_((torch.tensor([0, 0]),), t[:1].detach().clone(), accumulate=True),
    lambda t: t.clamp_(-2, 2).neg_().add_(t),
    lambda t: t.cumsum_(0),
]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.integers(0, len(VIEWS) - 1), max_size=3),
        st.integers(0, len(WRITES) - 1),
    ),
    min_size=1,
    max_size=5,
)


def _run(steps: list[tuple[int, list[int], int]], x: torch.Tensor) -> list[torch.Tensor]:
    """Each step takes one of the tensors so far, views it a few times, writes, and keeps the view."""
    tensors = [x * 1, x.t() + 1]
    for which, views, write in steps:
        tensor = tensors[which % len(tensors)]
        for view in views:
            if tensor.dim():
                tensor = VIEWS[view](tensor)
        if tensor.dim():
            WRITES[write](tensor)
        tensors.append(tensor)
    return [tensor * 1 for tensor in tensors]


@pytest.mark.long_cases("30")
@pytest.mark.parametrize("examples", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_random_programs(examples: int) -> None:
    chosen = settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    chosen(given(STEPS, st.booleans())(right_or_refused))()


def right_or_refused(steps: list[tuple[int, list[int], int]], is_dynamic: bool) -> None:
    """What eager PyTorch runs is exported right or refused with E103; what it refuses may be."""
    torch.manual_seed(1)
    size = 5 if is_dynamic else 4
    samples = [(torch.randn(4, 4),), (torch.randn(size, size),)]
    try:
        for (sample,) in samples:
            _run(steps, sample)
    except (RuntimeError, IndexError):
        return
    shapes = {"dynamic_shapes": ({0: "n", 1: "n"},)} if is_dynamic else {}
    try:
        check(lambda x: _run(steps, x), samples[0], others=samples[1:], rtol=1e-4, atol=1e-4, **shapes)
    except fx2onnx.UserError as refusal:
        assert refusal.code in ("E103", "E105", "E203"), refusal  # noqa: PT017


def _rows_from_those_above(x: torch.Tensor) -> object:
    x[1:] = x[:-1]
    return x


def _all_less_the_first_row(x: torch.Tensor) -> object:
    y = x.clone()
    return y.sub_(y[:1])


def _transposed_onto_itself(x: torch.Tensor) -> object:
    y = x[:, :3].contiguous()
    return y.add_(y.t())


def _out_a_row_above(x: torch.Tensor) -> object:
    y = x.clone()
    torch.add(y[1:], 1, out=y[:-1])
    return y


def _flat_shifted(x: torch.Tensor) -> object:
    y = x.clone()
    y.view(-1)[1:].mul_(y.view(-1)[:-1])
    return y


def _a_row_to_its_neighbour(x: torch.Tensor) -> object:
    y = x.clone()
    y[torch.tensor([0])] = y[1:2]
    return y


def _itself_by_index(x: torch.Tensor) -> object:
    y = x.clone()
    return y.index_add_(0, torch.tensor([2, 0, 1]), y)


def _itself_scattered(x: torch.Tensor) -> object:
    y = x.clone()
    return y.scatter_add_(1, torch.tensor([[3, 2, 1, 0]] * 3), y.view(3, -1))


@pytest.mark.parametrize("axes", [None, ({0: "n"},)], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "program",
    [
        _rows_from_those_above,
        _all_less_the_first_row,
        _transposed_onto_itself,
        _out_a_row_above,
        _flat_shifted,
        _a_row_to_its_neighbour,
        _itself_by_index,
        _itself_scattered,
    ],
)
def test_reading_a_part_of_what_is_written_is_refused_as_in_eager(program: Program, axes: Any) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    with pytest.raises(RuntimeError, match="single memory location"):
        program(x.clone())
    with pytest.raises(fx2onnx.UserError, match=r"E101.*reads a part of the elements that it writes"):
        fx2onnx.export(program, (x,), dynamic_shapes=axes)


def _columns_shifted(x: torch.Tensor) -> object:
    y = x.clone()
    y[:, 1:] = y[:, :-1]
    return y


def _by_the_first_column(x: torch.Tensor) -> object:
    y = x.clone()
    y /= y[:, :1]
    return y


def _column_from_all(x: torch.Tensor) -> object:
    y = x.clone()
    y[:, 1:].add_(y[:, :3])
    return y


@pytest.mark.parametrize("axes", [None, ({0: "n"},)], ids=["static", "dynamic"])
@pytest.mark.parametrize("program", [_columns_shifted, _by_the_first_column, _column_from_all])
def test_reading_a_part_of_what_is_written_is_a_warning_where_eager_takes_it(program: Program, axes: Any) -> None:
    """The file reads before it writes; what eager PyTorch gives depends on its kernel."""
    x = torch.arange(1.0, 13).reshape(3, 4)
    with pytest.warns(fx2onnx.ExportWarning, match=r"reads a part .* not defined.*test_in_place.py") as caught:
        result = fx2onnx.export(program, (x,), dynamic_shapes=axes)
    assert len(caught) == 1
    read = {
        _columns_shifted: torch.cat([x[:, :1], x[:, :-1]], 1),
        _by_the_first_column: x / x[:, :1],
        _column_from_all: torch.cat([x[:, :1], x[:, 1:] + x[:, :3]], 1),
    }[program]
    for (got,) in run_engines(result.model_proto, [x]).values():
        np.testing.assert_allclose(got, read.numpy(), rtol=1e-6)


def _other_elements(x: torch.Tensor) -> object:
    y = x.clone()
    y[:, 0:2] = y[:, 2:4]
    y[:, ::2] += y[:, 1::2]
    y[0] = y[1]
    y += y
    y[1:].copy_(y[1:])
    y[[0, 1]] = y[[1, 2]]
    y.t().mul_(y.t())
    y.view(-1)[:4].sub_(y[1])
    y[1:] = y[2, 3]
    y.masked_fill_(y > 1, y[0, 0]).index_fill_(0, torch.tensor([1]), y[0, 1])
    return y


@pytest.mark.parametrize("axes", [None, ({0: "n"},)], ids=["static", "dynamic"])
def test_reading_other_or_the_same_elements_is_no_warning(axes: Any) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    result = check(_other_elements, (x,), others=[(torch.randn(5 if axes else 3, 4),)], dynamic_shapes=axes)
    assert not result.report.warnings


@pytest.mark.parametrize("axes", [None, ({0: "n"},)], ids=["static", "dynamic"])
def test_reading_a_part_of_as_many_rows_as_data_tells_is_a_warning(axes: Any) -> None:
    """Of the two rows of the example eager PyTorch takes it, and refuses it of more."""

    def program(x: torch.Tensor) -> object:
        y = x[x[:, 0] > 0]
        y[1:] = y[:-1]
        return y

    x = torch.tensor([[1.0, 2], [-1, 3], [4, 5]])
    result = check(program, (x,), others=[(x.flip(0),)], dynamic_shapes=axes)
    assert [text.split()[:4] for text in result.report.warnings] == [["aten.copy_.default", "reads", "a", "part"]]
