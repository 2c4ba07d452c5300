"""Modules with all kinds of Python around their tensors: exported right, or refused with the documented error."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import fx2onnx
from tests.support import agree, check, flat, of_torchs_tests, run_engines

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def module(forward: Callable[..., Any], **attributes: Any) -> nn.Module:
    """An nn.Module with the given forward and attributes."""
    kind = type("Module", (nn.Module,), {"forward": forward})
    made = kind()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def _isinstance(self: Any, x: Any) -> Any:
    return x + 1 if isinstance(x, torch.Tensor) else x * 2


def _type_is(self: Any, x: Any) -> Any:
    return x + 1 if type(x) is torch.Tensor else x * 2


def _is_none(self: Any, x: Any, y: Any = None) -> Any:
    return x + 1 if y is None else x + y


def _len(self: Any, x: Any) -> Any:
    return x * len(x)


def _iterates(self: Any, x: Any) -> Any:
    return sum(row * index for index, row in enumerate(x))


def _unpacks(self: Any, x: Any) -> Any:
    a, b, c = x
    return a + b * c


def _tests_meta(self: Any, x: Any) -> Any:
    if (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.ndim == 2
        and x.shape[1] == 4
        and x.is_floating_point()
    ):
        return x + 1
    return x


def _tries(self: Any, x: Any) -> Any:
    try:
        return x @ x
    except RuntimeError:
        return x @ x.t()


def _is_tensor(self: Any, x: Any) -> Any:
    return x + 1 if torch.is_tensor(x) else x


def _training(self: Any, x: Any) -> Any:
    return x * 100 if self.training else F.dropout(x, 0.5, self.training)


def _index_by_size(self: Any, x: Any) -> Any:
    return self.layers[x.shape[0] % 2](x)


def _called_twice(self: Any, x: Any) -> Any:
    return self.fc(self.fc(x))


def _numpy_constant(self: Any, x: Any) -> Any:
    return x + torch.from_numpy(self.table)


def _constant_list(self: Any, x: Any) -> Any:
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.tensor(self.count)


def _no_grad(self: Any, x: Any) -> Any:
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        y = y + 1
    with torch.inference_mode():
        z = x - 1
    return y * z


def _checkpointed(self: Any, x: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(self.fc, x, use_reentrant=False) + checkpoint(self.fc, x, use_reentrant=True)


def _vmap(self: Any, x: Any) -> Any:
    return torch.vmap(lambda row: row * row.sum())(x)


def _nested_vmap(self: Any, x: Any) -> Any:
    return torch.vmap(torch.vmap(lambda element: element.sin() + 1))(x)


def _vmap_of_grad(self: Any, x: Any) -> Any:
    def loss(weight: Any, row: Any) -> Any:
        return (weight @ row).pow(2).sum()

    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(self.fc.weight, x)


def _functional_call(self: Any, x: Any) -> Any:
    return torch.func.functional_call(self.fc, {"weight": self.fc.weight * 2}, (x,))


def _default_dtype(self: Any, x: Any) -> Any:
    return x.double() + torch.ones(4, dtype=torch.float64)


def _new_attribute(self: Any, x: Any) -> Any:
    self.cache = x * 2
    return self.cache + 1


def _item_of_constant(self: Any, x: Any) -> Any:
    n = int(torch.tensor([2, 3]).max())
    return x[:n] if self.flag.item() else x


def _shape_in_list(self: Any, x: Any) -> Any:
    return torch.zeros([*x.shape, 2]) + x[..., None]


def _getattr_dispatch(self: Any, x: Any) -> Any:
    return getattr(torch, "relu")(x) + getattr(x, "sum")()  # noqa: B009


def _warns(self: Any, x: Any) -> Any:
    import warnings

    warnings.warn("a warning", stacklevel=1)
    return x + 1


def _print(self: Any, x: Any) -> Any:
    print(x.shape, end="")
    return x + 1


def _asserts(self: Any, x: Any) -> Any:
    assert x.shape[1] == 4, "four columns"
    torch._assert(x.dim() == 2, "two axes")
    return x + 1


def _to_device(self: Any, x: Any) -> Any:
    return x.to("cpu").cpu().contiguous().requires_grad_(False).detach() + torch.zeros(4, device=x.device)


def _data_attribute(self: Any, x: Any) -> Any:
    return x.data + self.fc.weight.data[0, 0]


def _deque(self: Any, x: Any) -> Any:
    from collections import deque

    stack = deque([x])
    for _ in range(2):
        stack.append(stack.pop() + 1)
    return stack.pop()


def _doubled(x: Any) -> Any:
    return x * 2


def _record_function(self: Any, x: Any) -> Any:
    with torch.profiler.record_function("part"):
        return x * 2


def _walrus(self: Any, x: Any) -> Any:
    if (y := x * 2).dim() == 2:
        return y
    return x


@functools.wraps(_isinstance)
def _decorated(self: Any, *args: Any, **kwargs: Any) -> Any:
    return _isinstance(self, *args, **kwargs)


def _layers() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2)])


def _linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def _hooked() -> nn.Module:
    made = nn.Sequential(_linear(), nn.ReLU())
    made[0].register_forward_hook(lambda module, args, output: output * 2)
    made.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return made


class Scaled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 3


def _parametrized() -> nn.Module:
    made = _linear()
    parametrize.register_parametrization(made, "weight", Scaled())
    return made


def _old_weight_norm() -> nn.Module:
    return torch.nn.utils.weight_norm(_linear())


def _expanded_parameter() -> nn.Module:
    made = module(lambda self, x: x * self.scale)
    made.scale = nn.Parameter(torch.ones(1).expand(4) * 1)
    made.scale.data = torch.full((1,), 2.0).expand(4)
    return made


def _strided_parameter() -> nn.Module:
    made = module(lambda self, x: F.linear(x, self.weight))
    made.weight = nn.Parameter(torch.arange(32.0).reshape(4, 8)[:, ::2].t())
    return made


def _shared_buffers() -> nn.Module:
    made = module(lambda self, x: x * self.first + self.second)
    base = torch.arange(8.0)
    made.register_buffer("first", base[:4])
    made.register_buffer("second", base[4:])
    return made


class _Int8(nn.Module):
    """A quantised weight, made a number of float32 in forward."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.arange(-128, 127, 32, dtype=torch.int8).reshape(2, 4)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("scale", torch.tensor([0.1, 0.2]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight.to(x.dtype) * self.scale[:, None]).t()


class _Packed(nn.Module):
    """Lengths known when the module is built."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lengths = [1, 3, 2]
        self.lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(6, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, self.lengths, batch_first=True, enforce_sorted=False)
        packed, (h, _) = self.lstm(packed)
        padded, lengths = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True, padding_value=-1.0)
        return padded, h, lengths


def _converted(dtype: torch.dtype) -> nn.Module:
    return nn.Sequential(_linear(), nn.ReLU()).to(dtype)


MODULES: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    "isinstance": (module(_isinstance), (X,)),
    "type is": (module(_type_is), (X,)),
    "is None": (module(_is_none), (X,)),
    "is not None": (module(_is_none), (X, X)),
    "len": (module(_len), (X,)),
    "iterates": (module(_iterates), (X,)),
    "unpacks": (module(_unpacks), (X,)),
    "dtype, device, rank, shape": (module(_tests_meta), (X,)),
    "try/except": (module(_tries), (X,)),
    "is_tensor": (module(_is_tensor), (X,)),
    "self.training": (module(_training), (X,)),
    "list indexed by size": (module(_index_by_size, layers=_layers()), (X,)),
    "module called twice": (module(_called_twice, fc=_linear()), (X,)),
    "numpy constant": (module(_numpy_constant, table=X.numpy()), (X,)),
    "constant list": (module(_constant_list, count=3), (X,)),
    "no_grad, enable_grad, inference_mode": (module(_no_grad), (X,)),
    "checkpoint": (module(_checkpointed, fc=_linear()), (X,)),
    "vmap": (module(_vmap), (X,)),
    "vmap in vmap": (module(_nested_vmap), (X,)),
    "vmap of grad": (module(_vmap_of_grad, fc=_linear()), (X,)),
    "functional_call": (module(_functional_call, fc=_linear()), (X,)),
    "double": (module(_default_dtype), (X,)),
    "new attribute": (module(_new_attribute), (X,)),
    "item of a constant": (module(_item_of_constant, flag=torch.tensor(True)), (X,)),
    "shape in a list": (module(_shape_in_list), (X,)),
    "getattr": (module(_getattr_dispatch), (X,)),
    "warns": (module(_warns), (X,)),
    "prints": (module(_print), (X,)),
    "asserts": (module(_asserts), (X,)),
    "devices": (module(_to_device), (X,)),
    ".data": (module(_data_attribute, fc=_linear()), (X,)),
    "deque": (module(_deque), (X,)),
    "walrus": (module(_walrus), (X,)),
    "record_function": (module(_record_function), (X,)),
    "decorated": (module(_decorated), (X,)),
    "hooks": (_hooked(), (X,)),
    "parametrization": (_parametrized(), (X,)),
    "weight norm": (parametrizations.weight_norm(_linear()), (X,)),
    "old weight norm": (_old_weight_norm(), (X,)),
    "spectral norm": (parametrizations.spectral_norm(_linear()), (X,)),
    "orthogonal": (parametrizations.orthogonal(_linear(), use_trivialization=False), (X,)),
    "expanded parameter": (_expanded_parameter(), (X,)),
    "strided parameter": (_strided_parameter(), (X,)),
    "buffers that share memory": (_shared_buffers(), (X,)),
    "float64": (_converted(torch.float64), (X.double(),)),
    "float16": (_converted(torch.float16), (X.half(),)),
    "int8 parameter": (_Int8(), (X,)),
    "scripted part": (nn.Sequential(_linear(), torch.jit.script(nn.ReLU()), torch.jit.script(nn.Linear(4, 2))), (X,)),
    "jit-traced part": (nn.Sequential(_linear(), torch.jit.trace(nn.Linear(4, 2), X)), (X,)),
    "torch.compile": (torch.compile(_linear()), (X,)),
    "GraphModule": (torch.fx.symbolic_trace(nn.Sequential(_linear(), nn.ReLU())), (X,)),
    "ordered dict": (nn.Sequential(OrderedDict(a=_linear(), b=nn.Identity())), (X,)),
    "data parallel": (nn.DataParallel(_linear()), (X,)),
    "multi-head attention": (nn.MultiheadAttention(4, 2, batch_first=True), (X[None], X[None], X[None])),
    "transformer layer": (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (X[None],)),
    "lstm": (nn.LSTM(4, 3, num_layers=2, bidirectional=True), (X[None],)),
    "gru": (nn.GRU(4, 3, batch_first=True), (X[None],)),
    "packed sequences": (_Packed(), (X[None].repeat(3, 1, 1),)),
    "transformer": (nn.Transformer(4, 2, 1, 1, 8), (X[None], X[None])),
    "embedding bag": (nn.EmbeddingBag(5, 3), (torch.tensor([[0, 1], [2, 4]]),)),
    "batch norm": (nn.Sequential(nn.BatchNorm1d(4), nn.InstanceNorm1d(4)), (X[None].transpose(1, 2).contiguous(),)),
}  # fmt: skip


@pytest.mark.long_cases("torch.compile")
@pytest.mark.parametrize("name", sorted(MODULES))
def test_module(name: str) -> None:
    made, args = MODULES[name]
    loose = {"float16": 2e-2, "orthogonal": 1e-3}
    check(made, args, rtol=loose.get(name, 1e-4), atol=loose.get(name, 1e-5))


@pytest.mark.filterwarnings("ignore::fx2onnx.ExportWarning")
@pytest.mark.parametrize("name", sorted(MODULES))
def test_symbolic_strategy_gives_the_same_program_or_refuses(name: str) -> None:
    made, args = MODULES[name]
    try:
        result = fx2onnx.export(made, args, capture="symbolic")
    except fx2onnx.UserError as refusal:
        assert refusal.code in ("E102", "E104", "E107"), refusal  # noqa: PT017
        return
    own = fx2onnx.export(made, args, capture="fake")
    assert result.report.strategy == "symbolic"
    assert [node.op_type for node in result.model.graph] == [node.op_type for node in own.model.graph]


def test_symbolic_strategy_traces_plain_modules() -> None:
    for name in ("parametrization", "weight norm", "GraphModule", "is None", "is not None", ".data"):
        made, args = MODULES[name]
        assert fx2onnx.export(made, args, capture="symbolic").report.strategy == "symbolic"


@pytest.mark.parametrize("name", ["isinstance", "batch norm", "module called twice"])
def test_export_strategy(name: str) -> None:
    made, args = MODULES[name]
    assert check(made, args, capture="export").report.strategy == "export"


def test_a_parameter_of_two_modules_is_held_once() -> None:
    made = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    made[1].weight = made[0].weight
    assert set(check(made, (X,)).model.graph.initializers) == {"0.weight", "0.bias", "1.bias"}


def test_exported_program_as_input() -> None:
    program = torch.export.export(_linear(), (X,), dynamic_shapes=({0: torch.export.Dim("n")},))
    result = fx2onnx.export(program, (X,), dynamic_shapes=({0: "n"},))
    agree(_linear(), result.model_proto, (X[:2],))


def test_bfloat16_in_the_runner() -> None:
    from fx2onnx import verify

    made = _converted(torch.bfloat16)
    result = fx2onnx.export(made, (X.bfloat16(),))
    verdict = verify(result, made, (X.bfloat16(),), engines=("runner",))
    assert verdict.ok, verdict.describe()


@pytest.mark.long
def test_compiled_submodules_run_as_they_are() -> None:
    check(nn.Sequential(torch.compile(_linear()), nn.ReLU()), (X,))


def test_compiled_functions_run_as_they_are() -> None:
    """Their compiled code would read memory that fake tensors do not have: the process would end."""
    runs: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        runs.append("compiled")
        return lambda *args: (runs.append("ran"), graph(*args))[1]

    compiled = torch.compile(_doubled, backend=backend)
    parts = [
        compiled,
        lambda x: compiled(x) + 1,
        lambda x: torch.compile(_doubled, backend=backend)(x) + torch.compile(backend=backend)(_doubled)(x),
        module(torch.compile(_called_twice, backend=backend), fc=_linear()),
    ]
    parts[-1](X)
    runs.clear()
    for part in parts:
        fx2onnx.export(part, (X,))
    assert not runs
    compiled(X + 1)
    assert runs


@dataclass
class Batch:
    ids: torch.Tensor
    mask: torch.Tensor | None = None
    scale: float = 1.0


Y = X * 2


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda batch: batch["a"] + batch["b"][0], ({"a": X, "b": [Y]},)),
        (lambda batch: batch.ids * batch.scale, (Batch(X, scale=3.0),)),
        (lambda batch: dataclasses.replace(batch, ids=batch.ids + 1).ids + batch.mask, (Batch(X, Y),)),
        (lambda *xs: xs[0] + xs[-1], (X, Y, X)),
        (lambda x, *rest, **named: x + sum(rest), (X, Y, Y)),
        (functools.partial(torch.add, alpha=2), (X, Y)),
        (functools.partial(lambda scale, x: x * scale, 3), (X,)),
        (lambda pair: pair[0] + pair[1][0], ((X, (Y,)),)),
        (lambda x, mode="sum": x.sum() if mode == "sum" else x, (X, "sum")),
        (lambda x, n=None: x if n is None else x[:n], (X, 2)),
    ],
)
def test_arguments(function: Any, args: tuple[Any, ...]) -> None:
    result = fx2onnx.export(function, args)
    tensors = _tensors(args)
    for outputs in run_engines(result.model_proto, tensors).values():
        for got, want in zip(outputs, flat(function(*args)), strict=True):
            assert got.shape == want.shape
            torch.testing.assert_close(torch.from_numpy(got), torch.from_numpy(want))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        return _tensors([getattr(value, field.name) for field in dataclasses.fields(value)])
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for member in members for tensor in _tensors(member)]


def test_outputs_of_every_structure() -> None:
    result = fx2onnx.export(lambda x: Batch(x + 1, None, 2.0), (X,))
    assert result.report.output_names[0] == "ids"


class Holder:
    """No pytree."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@pytest.mark.filterwarnings("ignore::fx2onnx.ExportWarning")
@pytest.mark.parametrize(
    ("function", "names", "parts"),
    [
        (lambda x: {"a": x + 1, "b": "text"}, ["a"], ["['b'] is a str"]),
        (
            lambda x: (x, None, Holder(x), {"k": (x.dtype, 3)}),
            ["output_0", "output_3_k_1"],
            ["[2] is a Holder", "dtype"],
        ),
        (lambda x: (x, x.shape, True), ["output_0", "output_1_0", "output_1_1", "output_2"], []),
        (lambda x: x + 1, ["output"], []),
    ],
)
def test_what_is_no_tensor_among_the_outputs_is_reported(function: Any, names: list[str], parts: list[str]) -> None:
    report = fx2onnx.export(function, (X,)).report
    assert report.output_names == names
    assert len(report.warnings) == len(parts)
    for warning, part in zip(report.warnings, parts, strict=True):
        assert part in warning


@pytest.mark.parametrize("function", [Holder, lambda x: {x}, lambda x: ("text", None), lambda x: (y for y in [x])])
def test_outputs_without_any_tensor_are_refused(function: Any) -> None:
    with pytest.raises(fx2onnx.UserError, match="nothing that a file can hold") as caught:
        fx2onnx.export(function, (X,), capture="fake")
    assert caught.value.code == "E107"


@pytest.mark.parametrize("argument", [Holder(X.numpy()), X.numpy()])
def test_arrays_hidden_in_an_argument_are_reported(argument: Any) -> None:
    def add(x: torch.Tensor, hidden: Any) -> torch.Tensor:
        return x + torch.from_numpy(hidden.tensor if isinstance(hidden, Holder) else hidden)

    with pytest.warns(fx2onnx.ExportWarning, match="the argument hidden"):
        (warning,) = fx2onnx.export(add, (X, argument)).report.warnings
    assert warning.startswith(f"the argument hidden{'.tensor' if isinstance(argument, Holder) else ''} is a ndarray")
    assert not fx2onnx.export(lambda x, mode, size: x[:size], (X, "text", 2)).report.warnings


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: [m], Holder, lambda m: nn.Sequential(m)])
def test_the_weights_of_a_module_among_the_arguments_are_reported(wrap: Any) -> None:
    module = wrap(nn.Linear(X.shape[-1], 2))

    def call(x: torch.Tensor, other: Any) -> torch.Tensor:
        other = other[0] if isinstance(other, list) else getattr(other, "tensor", other)
        return other(x)  # type: ignore[no-any-return]

    with pytest.warns(fx2onnx.ExportWarning, match="the argument other.* is a module: what it holds is constant"):
        result = fx2onnx.export(call, (X, module), verify=True)
    assert result.report.input_names == ["x"]


def _assigns(state: Any, key: str) -> torch.Tensor:
    setattr(state, key, getattr(state, key) * 3)
    return state.h + 2 * state.tensor  # type: ignore[no-any-return]


@pytest.mark.parametrize("key", ["", "h", "tensor"])
def test_a_tensor_that_an_object_holds_twice_is_two_inputs(key: str) -> None:
    state = Holder(X.clone())
    state.h = state.tensor  # type: ignore[attr-defined]
    function = functools.partial(_assigns, key=key) if key else lambda state: state.h + 2 * state.tensor
    result = fx2onnx.export(function, (state,), verify=True)
    assert sorted(result.report.input_names) == ["state.h", "state.tensor"]
    assert len(result.report.output_names) == 1 + bool(key)


def _branches(self: Any, x: Any) -> Any:
    return x if x.mean() > 0 else -x


def _while_data(self: Any, x: Any) -> Any:
    while x.sum() < 10:
        x = x + 1
    return x


def _tolist(self: Any, x: Any) -> Any:
    return x * len(set(x.sum(0).tolist()))


def _equal(self: Any, x: Any) -> Any:
    return x if torch.equal(x, x + 1) else x * 2


@pytest.mark.parametrize(
    ("forward", "code"),
    [
        (_branches, "E104"),
        (_while_data, "E104"),
        (_tolist, "E104"),
        (_equal, "E104"),
    ],
)
def test_refused_with_the_line(forward: Any, code: str) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(module(forward), (X,), capture="fake", data_branches="error")
    assert caught.value.code == code
    assert caught.value.where is not None
    assert caught.value.where.function in (forward.__name__, "<lambda>")
    assert caught.value.next


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_inputs_are_refused(layout: torch.layout) -> None:
    with pytest.raises(fx2onnx.UserError, match="is a sparse tensor") as caught:
        fx2onnx.export(module(lambda self, x: x * 2), (torch.eye(3).to_sparse(layout=layout),))
    assert caught.value.code == "E107"


@torch.jit.script  # type: ignore[untyped-decorator]
def _scripted(x: torch.Tensor, count: int) -> torch.Tensor:
    for i in range(count):
        x = torch.relu(x) + i
    return x


@torch.jit.script  # type: ignore[untyped-decorator]
def _scripted_difference(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return x - other


@torch.jit.script  # type: ignore[untyped-decorator]
def _scripted_branch(x: torch.Tensor) -> torch.Tensor:
    if bool(x.sum() > 0):
        return x + 1
    return x - 1


class Normed(nn.Module):
    """A loop over a size, a buffer, and training that matters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.bn = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn(self.fc(x)) + self.shift
        for _ in range(x.size(0)):
            y = y * 0.5
        return y.relu()


@pytest.mark.parametrize(("args", "kwargs"), [((X, torch.ones(4)), {}), ((X,), {"other": torch.ones(4)})])
def test_a_scripted_function_keeps_its_first_parameter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    result = fx2onnx.export(
        _scripted_difference, args, kwargs=kwargs, dynamic_shapes={"x": {0: "n"}, "other": None}, verify=True
    )
    assert result.report.input_names == ["x", "other"]
    assert fx2onnx.export(torch.jit.script(nn.functional.relu), (X,)).report.input_names == ["input"]


@pytest.mark.parametrize("option", ["bake", "frozen", "held"])
def test_a_text_in_the_place_of_a_list_is_said(option: str) -> None:
    text, batch = "weight", (torch.randn(4, 3),)
    targets, loss = torch.zeros(4, dtype=torch.long), nn.functional.cross_entropy
    make = functools.partial(fx2onnx.export_training, loss=loss, targets=targets)
    with pytest.raises(fx2onnx.UserError) as caught:
        (fx2onnx.export if option == "bake" else make)(nn.Linear(3, 2), batch, "none", **{option: text})
    assert caught.value.code == "E001"
    assert f"{option}=[{text!r}]" in str(caught.value)


def test_scripted_functions_run_as_they_are() -> None:
    check(lambda x: _scripted(x * 2, 3), (X,), others=[(X + 1,)])
    check(lambda x: _scripted(x * 2, 3), (X,), others=[(torch.randn(5, 4),)], dynamic_shapes=({0: "n"},))
    report = check(lambda x: _scripted_branch(x) * 2, (X + 1,), others=[(X - 9,), (X + 9,)]).report
    assert report.strategy == "fake"


@pytest.mark.parametrize("kind", ["script", "trace", "inside"])
def test_script_modules_run_as_they_are(kind: str) -> None:
    plain = Normed().eval()
    scripted = torch.jit.trace(plain, (X,)) if kind == "trace" else torch.jit.script(plain)
    made = nn.Sequential(scripted, nn.ReLU()) if kind == "inside" else scripted
    result = check(made, (X,), others=[(X * 3,)])
    assert result.report.strategy == "fake"
    assert any("shift" in name for name in result.model.graph.initializers)


def test_a_refusal_inside_a_scripted_function_names_the_line_that_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C.ScriptFunction, "__call__", of_torchs_tests("common_utils").prof_func_call)
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(lambda x: _scripted_branch(x), (X,), capture="fake", data_branches="error")
    assert caught.value.code == "E104"
    assert caught.value.where is not None
    assert caught.value.where.file == __file__


def test_two_exports_at_the_same_time() -> None:
    modules = [nn.Sequential(nn.Linear(4, size), nn.ReLU(), nn.Linear(size, 2)) for size in range(3, 9)]
    results: dict[int, fx2onnx.ExportResult] = {}

    def work(index: int) -> None:
        results[index] = fx2onnx.export(modules[index], (X,))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(modules))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, made in enumerate(modules):
        agree(made, results[index].model_proto, (X,))


def test_other_threads_run_modules_meanwhile() -> None:
    made, stop, wrong = nn.Sequential(_linear(), nn.ReLU()), threading.Event(), []
    want = made(X).detach()

    def work() -> None:
        while not stop.is_set():
            if not torch.equal(made(X).detach(), want):
                wrong.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(5):
        fx2onnx.export(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), (X,))
    stop.set()
    thread.join()
    assert not wrong


class _HooksItself(torch.nn.Module):
    """Adds a hook at its first call, as transformers does to collect hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.child = torch.nn.Identity()
        self.is_hooked = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_hooked:
            self.child.register_forward_hook(lambda module, args, output: output * 2)
            self.is_hooked = True
        result: torch.Tensor = self.child(x)
        return result


@pytest.mark.filterwarnings("ignore::fx2onnx.ExportWarning")
def test_hooks_that_forward_adds_are_gone_and_older_ones_can_still_be_removed() -> None:
    module = _HooksItself()
    handle = module.child.register_forward_hook(lambda module, args, output: output + 1)
    nodes = [[node.op_type for node in fx2onnx.export(module, (torch.ones(2),)).model.graph] for _ in range(2)]
    assert nodes == [["Add", "Mul"]] * 2
    assert not module.is_hooked
    assert len(module.child._forward_hooks) == 1
    handle.remove()
    assert len(module.child._forward_hooks) == 0


def test_an_operator_that_torch_splits_by_copies_takes_dynamic_sizes() -> None:
    class Turned(torch.nn.Module):
        def forward(self, angle: torch.Tensor) -> torch.Tensor:
            return torch.view_as_real(torch.polar(torch.ones_like(angle), angle))

    samples = (torch.randn(2, 3),), (torch.randn(4, 3),)
    check(Turned(), samples[0], others=samples[1:], dynamic_shapes={"angle": {0: "batch"}})


class RaisesKeyError(nn.Module):
    """Has no attribute that it does not know, and says so by another error than Python asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            raise KeyError(name) from error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_attributes_are_not_asked_for_by_name() -> None:
    fx2onnx.export(RaisesKeyError(), (torch.randn(2, 3),), None, verify=True)


def test_modules_that_cannot_be_listed_are_one_error() -> None:
    class Unhashable(nn.Linear):
        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(fx2onnx.UserError, match="parameters of Unhashable") as caught:
        fx2onnx.export(Unhashable(3, 3), (torch.randn(2, 3),), None)
    assert caught.value.code == "E107"
