"""Calls on known types are not run again, in this export or a later one; whatever else they depend on is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F

import fx2onnx
from fx2onnx.capture.driver import capture
from fx2onnx.capture.recording import meta_cache, size_checks
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.registry import traits_of
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import DimNode, unwrap
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import where_true
from fx2onnx.torchcompat.dispatch import PRE_DISPATCH
from fx2onnx.torchcompat.fake_tensors import storage_key
from tests.capture.recorded import N, info
from tests.support import check

aten = torch.ops.aten


class Layers(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu().transpose(0, 1).contiguous().transpose(0, 1)
        return x


def _fake_operators(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the operators that run on fake tensors from now on."""
    seen: list[str] = []
    remember = Tracer.record

    def recorded(self: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
        before = self.types.remember
        self.types.remember = lambda *given: (seen.append(str(func)), before(*given))
        try:
            return remember(self, func, args, kwargs)
        finally:
            self.types.remember = before

    monkeypatch.setattr(Tracer, "record", recorded)
    return seen


def test_a_second_export_of_the_same_sizes_runs_no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_cache, "_SHARED", {})  # what other tests have left
    seen = _fake_operators(monkeypatch)
    fx2onnx.export(Layers(7), (torch.ones(5, 7),), None)
    first = list(seen)
    seen.clear()
    check(Layers(7).eval(), (torch.randn(5, 7),))
    assert not seen
    assert 0 < len(first) < 15


@pytest.mark.parametrize(
    "weight",
    [
        torch.randn(5, 7),
        torch.randn(7, 5).T,
        torch.randn(8, 7)[3:, ::2],
        torch.randn(()).double(),
        torch.empty(5, 7, device="meta"),
        torch.nn.Parameter(torch.randn(2, 3, 4).permute(2, 0, 1)),
        torch.randn(4, 3).t().as_subclass(type("Own", (torch.Tensor,), {})),
    ],
    ids=["plain", "transposed", "sliced", "number", "meta", "permuted", "of a subclass"],
)
def test_a_weight_counts_as_its_fake(weight: torch.Tensor) -> None:
    tracer = Tracer(ShapeEnv(), {id(weight): ("weight", "parameter", weight)}, lambda overload: True)
    with torch.no_grad():
        of_weight = tracer.types.key("any", (weight,), {})
        assert of_weight == tracer.types.key("any", (tracer.values.fake_of(weight),), {})


class Lookup:
    """A cache, and a call that ran once in it."""

    def __init__(self, hints: dict[str, int] | None = None) -> None:
        self.tracer = Tracer(ShapeEnv(hints or {}), {}, lambda overload: True)
        self.cache = self.tracer.types

    def run(self, func: Any, *args: Any) -> Any:
        with torch.no_grad(), self.tracer.values.fake_mode:
            key = self.cache.key(traits_of(func), args, {})
            assert key is not None
            before = self.cache.before(key)._replace(asked=0)
            result = func(*args)
            self.cache.remember(key, args, result, before)
        return result

    def again(self, func: Any, *args: Any) -> Any:
        with torch.no_grad():
            key = self.cache.key(traits_of(func), args, {})
            assert key is not None
            return self.cache.again(key, args)

    def new(self, *dims: Any) -> torch.Tensor:
        return self.tracer.values.new_fake(dims, torch.float32)


def test_a_cached_result_is_a_new_tensor_of_the_same_type() -> None:
    lookup = Lookup()
    x, y = lookup.new(3, 4), lookup.new(3, 4)
    first, second = lookup.run(aten.sum.dim_IntList, x, [1], True), lookup.again(aten.sum.dim_IntList, y, [1], True)
    assert second is not first
    assert lookup.cache.type_of(second) == lookup.cache.type_of(first)
    assert storage_key(second) not in (storage_key(y), storage_key(first))
    spec = lookup.cache.made.pop(id(second))
    assert (spec.info, spec.is_view) == (info(3, 1), False)


@pytest.mark.parametrize(
    ("func", "args"),
    [(aten.transpose.int, (0, 1)), (aten.slice.Tensor, (1, 1, 3, 1)), (aten.detach.default, ())],
    ids=str,
)
def test_a_cached_view_shares_its_arguments_memory(func: Any, args: tuple[Any, ...]) -> None:
    lookup = Lookup()
    x, y = lookup.new(3, 4), lookup.new(3, 4)
    first, second = lookup.run(func, x, *args), lookup.again(func, y, *args)
    assert storage_key(second) == storage_key(y)
    assert (second.stride(), second.storage_offset()) == (first.stride(), first.storage_offset())
    assert lookup.cache.made[id(second)].is_view


def test_a_result_that_is_an_argument_is_that_argument() -> None:
    lookup = Lookup()
    x, y = lookup.new(3, 4), lookup.new(3, 4)
    assert lookup.run(aten.contiguous.default, x) is x
    assert lookup.again(aten.contiguous.default, y) is y


def test_several_results_come_in_their_container() -> None:
    lookup = Lookup()
    x, y = lookup.new(3, 4), lookup.new(3, 4)
    first, second = lookup.run(aten.sort.default, x), lookup.again(aten.sort.default, y)
    assert type(second) is type(first)
    assert [each.dtype for each in second] == [torch.float32, torch.int64]
    parts = lookup.run(aten.split.Tensor, x, 2)
    assert len(lookup.again(aten.split.Tensor, y, 2)) == len(parts)


def test_views_of_other_arguments_run_again() -> None:
    lookup = Lookup()
    pair = [lookup.new(3, 1), lookup.new(4)]
    lookup.run(aten.broadcast_tensors.default, pair)
    assert lookup.again(aten.broadcast_tensors.default, pair) is meta_cache.MISSING


def test_other_arguments_are_not_known() -> None:
    lookup = Lookup()
    x = lookup.new(3, 4)
    lookup.run(aten.transpose.int, x, 0, 1)
    assert lookup.again(aten.transpose.int, x, 1, 0) is meta_cache.MISSING
    assert lookup.again(aten.transpose.int, lookup.new(4, 4), 0, 1) is meta_cache.MISSING
    assert lookup.again(aten.cumsum.default, x, True) is meta_cache.MISSING


def test_what_autograd_tracks_is_not_cached() -> None:
    lookup = Lookup()
    tracked, other = lookup.new(3).requires_grad_(), lookup.new(3)
    relu = traits_of(aten.relu.default)
    assert lookup.cache.key(relu, (tracked,), {}) is None
    assert lookup.cache.key(relu, (other,), {}) is not None
    with torch.no_grad():
        assert lookup.cache.key(relu, (tracked,), {}) is not None


def test_true_and_1_are_other_arguments() -> None:
    lookup = Lookup()
    with torch.no_grad():
        keys = {lookup.cache.key(traits_of(aten.add.Scalar), (lookup.new(3), one), {}) for one in (1, 1.0, True)}
    assert len(keys) == 3


def test_a_later_run_decides_again_by_its_sizes() -> None:
    meta_cache._SHARED.clear()
    first = Lookup({"n": 5})
    x = first.new(N, 4)
    assert first.tracer.sizes.guard(Relation("gt", (N, 3)))
    first.run(aten.cumsum.default, x, 0)
    for size, is_known in ((7, True), (2, False)):
        later = Lookup({"n": size})
        result = later.again(aten.cumsum.default, later.new(N, 4), 0)
        assert (result is not meta_cache.MISSING) == is_known
        assert (Relation("gt", (N, 3)), True) in later.tracer.sizes.guards or not is_known


def test_a_specialized_size_is_not_shared() -> None:
    meta_cache._SHARED.clear()
    first = Lookup({"n": 5})
    first.tracer.sizes.specialize(N)
    first.run(aten.cumsum.default, first.new(N, 4), 0)
    later = Lookup({"n": 5})
    assert later.again(aten.cumsum.default, later.new(N, 4), 0) is meta_cache.MISSING


def test_what_is_written_for_a_condition_is_not_shared_with_runs_without_it() -> None:
    meta_cache._SHARED.clear()
    even = where_true(Relation("eq", (N % 2, 0)))
    assert even is not None
    runs = [Lookup({"n": 6}) for _ in range(3)]
    for run in runs[:2]:
        run.tracer.sizes.narrow("n", even)
    runs[0].run(aten.cumsum.default, runs[0].new(N, 4), 0)
    found = [run.again(aten.cumsum.default, run.new(N, 4), 0) is meta_cache.MISSING for run in runs[1:]]
    assert found == [False, True]


def test_what_a_condition_settles_is_kept_with_each_call_that_asks_it() -> None:
    env = ShapeEnv({"n": 16})
    many = where_true(Relation("ge", (N, 8)))
    assert many is not None
    env.narrow("n", many)
    for _ in range(2):
        env.asked.clear()
        assert DimNode(env, N, int).ge(DimNode(env, 4, int)).value is True
        assert env.asked == [("guard", Relation("ge", (N, 4)), True)]


def test_other_sizes_strides_and_dtypes_are_other_calls() -> None:
    module = Layers(7).eval()
    for x in (torch.randn(5, 7), torch.randn(7, 5).T, torch.randn(1, 7), torch.randn(5, 14)[:, ::2]):
        check(module, (x,))
    check(module.double(), (torch.randn(5, 7).double(),))


def test_an_operator_of_the_users_is_asked_anew_in_every_export() -> None:
    def shape_of(x: torch.Tensor) -> tuple[int, ...]:
        return (x.shape[0] * factor, *x.shape[1:])

    def export() -> tuple[int, ...]:
        with torch.library._scoped_library("replayed", "FRAGMENT") as library:
            library.define("stretch(Tensor x) -> Tensor")
            library.impl("stretch", lambda x: x.new_empty(shape_of(x)), "Meta")
            stretch = torch.ops.replayed.stretch.default
            translations = {stretch: lambda op, x: op.Concat(*[x] * factor, axis=0)}
            found = fx2onnx.export(lambda x: stretch(x), (torch.ones(2, 3),), None, custom_translations=translations)
            return tuple(found.model.graph.outputs[0].shape)

    factor = 2
    assert export() == (4, 3)
    factor = 3
    assert export() == (6, 3)


def test_operators_are_as_torch_has_them_after_an_export() -> None:
    fx2onnx.export(Layers(7), (torch.ones(5, 7),), None)
    assert PRE_DISPATCH not in torch.ops.aten.linear.default._dispatch_cache
    with pytest.raises(fx2onnx.Fx2OnnxError):
        fx2onnx.export(lambda x: torch.nn.functional.linear(x, torch.ones(3, 4)), (torch.ones(5, 7),), None)
    assert PRE_DISPATCH not in torch.ops.aten.linear.default._dispatch_cache


def test_gradients_inside_forward_find_what_they_go_through() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            return torch.autograd.grad((y * y * y).sum(), y)[0]

    for x in (torch.randn(3, 4), torch.randn(3, 4)):
        assert check(step, (x,)).report.strategy == "fake"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_to_another_dtype_is_another_call(dtype: torch.dtype) -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype):
            return x @ x

    result = fx2onnx.export(product, (torch.ones(3, 3),), None)
    assert result.model.graph.outputs[0].dtype == {torch.bfloat16: ir.DataType.BFLOAT16}.get(dtype, ir.DataType.FLOAT16)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "diagonal": lambda x: torch.diagonal(x),
    "slice": lambda x: torch.ops.aten.slice(x, 0, 0, x.shape[1]),
    "triangle": lambda x: torch.tril(x) @ x.t(),
    "pool": lambda x: torch.nn.functional.max_pool1d(x[None], 2, ceil_mode=True),
    "view": lambda x: x.reshape(x.shape[1], x.shape[0]).contiguous().view(-1, x.shape[1]),
    "sum with its transpose": lambda x: (x[: x.shape[1], :1] + x[:1]).sum(1),
    "interpolate": lambda x: torch.nn.functional.interpolate(x[None], scale_factor=1.5),
    "repeat": lambda x: x.repeat(2, 1).unflatten(0, (2, -1)).squeeze(1),
    "middle": lambda x: x[3:-3].exp().repeat(x[3:-3].shape[0], 1).exp().exp(),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
}


@pytest.mark.long_cases(but=["slice"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_other_sizes_taught_changes_nothing(name: str) -> None:
    samples = [torch.randn(sizes) for sizes in ((3, 5), (5, 3), (4, 4), (1, 6), (6, 1), (2, 2))]

    def exported(x: torch.Tensor) -> object:
        try:
            found = fx2onnx.export(FUNCTIONS[name], (x,), None, dynamic_shapes="auto")
        except fx2onnx.Fx2OnnxError as error:
            return str(error)
        return found.model_proto, found.report.assumptions

    alone = []
    for sample in samples:
        meta_cache._SHARED.clear()
        alone.append(exported(sample))
    for order in (samples, samples[::-1]):
        meta_cache._SHARED.clear()
        for sample in order:
            exported(sample)
        assert [exported(sample) for sample in samples] == alone


def test_a_further_tensor_of_symbolic_sizes_is_made_without_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = Lookup({"n": 6})
    cache = lookup.cache
    first = lookup.new(N, 3, N // 2)
    kind = cache.type_of(first)
    before = cache.fresh(kind)
    asked: list[str] = []
    with monkeypatch.context() as patched:
        for name in ("add", "sub", "mul", "eq", "ge", "guard_bool", "expect_true"):
            patched.setattr(DimNode, name, lambda *_, name=name: asked.append(name))
        after = cache.fresh(kind)
    assert not asked
    assert len({storage_key(each) for each in (first, before, after)}) == 3
    assert [*map(unwrap, after.shape)] == [N, 3, N // 2]
    assert [*map(unwrap, after.stride())] == [*map(unwrap, first.stride())] == [(N // 2) * 3, N // 2, 1]
    assert unwrap(after.untyped_storage().nbytes()) == N * (N // 2) * 12
    assert after.dtype is first.dtype
    assert cache.fresh(kind._replace(dtype=torch.int64)).dtype is torch.int64


def of_data(x: torch.Tensor, marks: torch.Tensor) -> torch.Tensor:
    """Two paths, whose operators take sizes that only the data tells."""
    rows = x[marks > 0]
    if x.shape[0] > 4:
        rows = rows * 2
    return F.scaled_dot_product_attention(rows.cumsum(0), rows, rows, is_causal=True).softmax(-1).cumprod(1)


def test_operators_on_sizes_from_data_run_once_for_all_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_cache, "_SHARED", {})
    seen = _fake_operators(monkeypatch)
    inputs = [(torch.randn(count, 3), torch.arange(count) % 2) for count in (6, 3, 9)]
    shapes = {"x": {0: "n"}, "marks": {0: "n"}}
    check(of_data, inputs[0], others=inputs[1:], dynamic_shapes=shapes)
    assert len(seen) == len(set(seen)), "for the second path, too"
    seen.clear()
    check(of_data, inputs[0], others=inputs[1:], dynamic_shapes=shapes)
    assert not seen


def checks_of(first: Callable[..., Any]) -> list[str]:
    """What a file checks whose module pools ``first``, and then a crop."""

    def forward(x: torch.Tensor, count: torch.Tensor) -> Any:
        rows = x[:, :, : count.item()]
        return first(rows), F.max_pool1d(rows.exp(), 3), F.max_pool1d(rows.sin(), 3, 2)

    captured = capture(forward, (torch.randn(1, 2, 9), torch.tensor(5)))
    checked = [str(size_checks.checked_by(node)) for node in captured.graph.nodes if node.target is size_checks.CHECKED]
    return sorted(set(checked))


def test_what_an_operator_needs_is_checked_whoever_needed_it_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that another run cached without the check, since the size was checked there before, is none."""
    monkeypatch.setattr(meta_cache, "_SHARED", {})
    before = checks_of(lambda rows: F.max_pool1d(rows.cos(), 3, 2))
    monkeypatch.setattr(meta_cache, "_SHARED", {})
    checks_of(lambda rows: (F.max_pool1d(rows.cos(), 3, 2), F.max_pool1d(rows.tan(), 3)))
    assert checks_of(lambda rows: rows) == before


def test_a_call_is_tried_on_its_real_kernel_until_it_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In later exports, too, unless sizes are others; a call that is refused is refused again."""
    tried: list[object] = []

    def check(env: object, func: object, *_: object) -> None:
        tried.append(func)
        if len(tried) == 1:
            raise RuntimeError("the kernel refuses it")

    monkeypatch.setattr(meta_cache, "check_sizes", check)
    pool, counts = torch.nn.MaxPool2d(2), []
    with pytest.raises(fx2onnx.UserError, match="the kernel refuses it"):
        fx2onnx.export(pool, (torch.ones(1, 3, 7, 13),), None)
    for sizes in ((1, 3, 7, 13), (1, 3, 7, 13), (1, 3, 7, 15)):
        for dynamic in (None, ({0: "n"},)):
            fx2onnx.export(pool, (torch.ones(sizes),), None, dynamic_shapes=dynamic)
            counts.append(len(tried))
    assert counts == [2, 3, 3, 3, 4, 5]
