"""A torch.library operator end to end: a translation of the user's, and a kernel of the user's for the runner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
import fx2onnx.runner as ort
from fx2onnx import verify
from fx2onnx.aten_map.table.registry import MODULE_TRANSLATIONS
from fx2onnx.base.errors import UserError
from fx2onnx.semantics.registry import unregister
from tests.support import check

DOMAIN = "fx2onnx_tests"
X = torch.linspace(-2, 3, 12).reshape(3, 4)


@pytest.fixture(scope="module")
def soft_clip() -> Iterator[Any]:
    """``soft_clip(x, limit) = limit * tanh(x / limit)``, with a kernel of the same name in the runner."""

    @torch.library.custom_op(f"{DOMAIN}::soft_clip", mutates_args=())
    def implementation(x: torch.Tensor, limit: float) -> torch.Tensor:
        return limit * torch.tanh(x / limit)

    @implementation.register_fake
    def _(x: torch.Tensor, limit: float) -> torch.Tensor:
        return torch.empty_like(x)

    @ort.kernel("SoftClip", domain=DOMAIN)
    def kernel(x: np.ndarray, *, limit: float) -> np.ndarray:
        """limit * tanh(x / limit)."""
        return (limit * np.tanh(x / limit)).astype(x.dtype)

    yield torch.ops.fx2onnx_tests.soft_clip.default
    unregister("SoftClip", DOMAIN)


class Clipped(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.fx2onnx_tests.soft_clip(x + 1, 1.5) * 2


def as_one_node(op: Any, x: Any, limit: float) -> Any:
    """soft_clip(Tensor x, float limit) -> Tensor"""
    return op.custom(DOMAIN, "SoftClip", [x], [(op.dtype(x), op.dims(x))], limit=limit)[0]


def in_standard_nodes(op: Any, x: Any, limit: float) -> Any:
    """soft_clip(Tensor x, float limit) -> Tensor"""
    return op.Mul(op.Tanh(op.Div(x, limit)), limit)


@pytest.mark.parametrize("rows", [3, 5])
def test_a_node_of_the_users_domain_runs_in_the_runner(soft_clip: Any, rows: int, tmp_path: Path) -> None:
    """The batch is dynamic; three runs, since the third follows a plan."""
    result = fx2onnx.export(
        Clipped(), (X,), dynamic_shapes=({0: "batch"},), custom_translations={soft_clip: as_one_node}
    )
    result.save(str(tmp_path / "clipped.onnx"))
    session = ort.InferenceSession(str(tmp_path / "clipped.onnx"))
    given = torch.linspace(-4, 4, rows * 4).reshape(rows, 4)
    for _ in range(3):
        (found,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
        np.testing.assert_allclose(found, Clipped()(given).numpy(), rtol=1e-6, atol=1e-6)


def test_a_node_of_the_users_domain_is_verified_by_the_engine_that_has_a_kernel(soft_clip: Any, tmp_path: Path) -> None:
    """onnxruntime knows nothing of the domain, which a note says; where it is asked for by name, that is a failure."""
    path = tmp_path / "clipped.onnx"
    asked = {"custom_translations": {soft_clip: as_one_node}}
    verdict = fx2onnx.export(Clipped(), (X,), path, verify=True, **asked).report.verdict
    assert verdict["ok"]
    assert [note for note in verdict["notes"] if note.startswith("onnxruntime cannot run") and "SoftClip" in note]
    assert not verify(str(path), Clipped(), (X,), engines=["runner", "onnxruntime"]).ok
    with pytest.raises(UserError, match=r"(?s)E201.*register with fx2onnx\.translates"):
        fx2onnx.locate(str(path), Clipped(), (X,))


class WithWeights(Clipped):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.linear(x))


@pytest.mark.parametrize("module", [Clipped(), WithWeights()])
def test_a_node_without_a_kernel_in_any_engine_is_not_verified(
    soft_clip: Any, module: torch.nn.Module, tmp_path: Path
) -> None:
    """Nothing is compared, so nothing differs: no error blames the translation."""

    def unknown(op: Any, x: Any, limit: float) -> Any:
        return op.custom(DOMAIN, "Unregistered", [x], [(op.dtype(x), op.dims(x))], limit=limit)[0]

    path, asked = tmp_path / "clipped.onnx", {"custom_translations": {soft_clip: unknown}}
    with pytest.raises(fx2onnx.VerificationError, match="E502") as caught:
        fx2onnx.export(module, (X,), path, verify=True, **asked)
    assert f"the runner has no kernel for {DOMAIN}::Unregistered" in caught.value.why
    assert "@fx2onnx.runner.kernel" in caught.value.next[0]
    assert caught.value.first_wrong is None
    for engines in (None, ["runner"]):
        assert verify(str(path), module, (X,), engines=engines).unverified
    with pytest.raises(fx2onnx.VerificationError, match="E502"):
        fx2onnx.locate(fx2onnx.export(module, (X,), **asked), module, (X,))


def test_standard_nodes_run_in_onnxruntime(soft_clip: Any, tmp_path: Path) -> None:
    import onnxruntime

    result = fx2onnx.export(Clipped(), (X,), custom_translations={soft_clip: in_standard_nodes})
    result.save(str(tmp_path / "clipped.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "clipped.onnx"))
    (found,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    np.testing.assert_allclose(found, Clipped()(X).numpy(), rtol=1e-6, atol=1e-6)


def test_translates_registers_for_every_export_after(soft_clip: Any) -> None:
    from fx2onnx.aten_map import TABLE

    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(Clipped(), (X,))
    assert caught.value.code == "E201"
    assert "soft_clip" in str(caught.value)
    assert "closest" not in caught.value.why, "only operators of its own namespace are like it"
    try:
        fx2onnx.translates(soft_clip)(in_standard_nodes)
        result = fx2onnx.export(Clipped(), (X,))
        assert "Tanh" in [node.op_type for node in result.model.graph]
        with pytest.raises(fx2onnx.UserError, match="registered twice"):
            fx2onnx.translates(soft_clip)(as_one_node)
    finally:
        TABLE.entries.pop(soft_clip, None)


def test_an_operator_that_computes_no_shapes_is_named() -> None:
    @torch.library.custom_op(f"{DOMAIN}::without_fake", mutates_args=())
    def without_fake(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    with pytest.raises(fx2onnx.UserError, match="fx2onnx_tests::without_fake cannot run on fake tensors") as caught:
        fx2onnx.export(without_fake, (X,))
    assert caught.value.code == "E107"
    assert "register_fake" in caught.value.next[0]


class LinearClip(torch.nn.Module):
    """A product, clipped; on request its sums beside it."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor, with_sum: bool = True) -> Any:
        clipped = torch.nn.functional.linear(x, self.weight).clamp(max=self.limit) * self.scale
        return {"clipped": clipped, "sum": clipped.sum(0)} if with_sum else clipped


class TwoClips(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = LinearClip(0.5), LinearClip(1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.first(x)
        return self.second(found["clipped"], with_sum=False) + found["sum"]


def linear_clip(op: Any, module: Any, x: Any, *, weights: dict[str, Any]) -> Any:
    product = op.MatMul(x, op.Transpose(weights["weight"], perm=[1, 0]))
    limited = op.Neg(op.Max(op.Neg(product), op.const(-module.limit, op.dtype(x))))
    clipped = op.Mul(limited, weights["scale"])
    return (clipped, op.ReduceSum(clipped, axes=[0], keepdims=0)) if len(op.result) == 2 else clipped


def test_a_functional_form_may_be_defined_after_an_export_that_lacked_it() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.ops.fx2onnx_late.scaled_(y, 3.0)
        return y * 2

    x = torch.ones(2)
    with torch.library._scoped_library("fx2onnx_late", "DEF") as library:
        library.define("scaled_(Tensor(a!) x, float by) -> Tensor(a!)")
        library.impl("scaled_", lambda x, by: x.mul_(by), "CPU")
        library.impl("scaled_", lambda x, by: x, "Meta")
        with pytest.raises(UserError, match="no functional form"):
            fx2onnx.export(program, (x,))
        library.define("scaled(Tensor x, float by) -> Tensor")
        library.impl("scaled", lambda x, by: x * by, "CPU")
        library.impl("scaled", lambda x, by: torch.empty_like(x), "Meta")
        translations = {torch.ops.fx2onnx_late.scaled.default: lambda op, x, by: op.Mul(x, by)}
        result = fx2onnx.export(program, (x,), custom_translations=translations)
    assert [node.op_type for node in result.model_proto.graph.node] == ["Add", "Mul", "Mul"]


def test_a_class_of_modules_is_translated_whole() -> None:
    """Two instances, two kinds of results, a dynamic batch; names of weights, and the modules, stay."""
    module = TwoClips().eval()
    dims = ({0: "batch"},)
    result = check(module, (X,), others=[(X[:2],)], dynamic_shapes=dims, custom_translations={LinearClip: linear_clip})
    assert "Max" in [node.op_type for node in result.model.graph]
    assert {"first.scale", "second.scale"} <= set(result.model.graph.initializers)
    assert "forward" not in vars(module.first)
    assert "Max" not in [node.op_type for node in fx2onnx.export(module, (X,)).model.graph]


def test_a_class_of_modules_is_registered_once_for_all() -> None:
    try:
        fx2onnx.translates(LinearClip)(linear_clip)
        with pytest.raises(fx2onnx.UserError, match="LinearClip is registered twice"):
            fx2onnx.translates(LinearClip)(linear_clip)
        assert "Max" in [node.op_type for node in fx2onnx.export(TwoClips(), (X,)).model.graph]
    finally:
        MODULE_TRANSLATIONS.pop(LinearClip, None)


@pytest.mark.parametrize(
    ("translation", "complaint"),
    [
        (lambda op, module, x, *, weights: op.ArgMax(x, axis=0), "gives int64["),
        (lambda op, module, x, *, weights: "x", "gives a str"),
        (lambda op, module, x, *, weights: weights["bias"], "KeyError: 'bias'"),
        (lambda op, module, x, *, weights: op.TopK(x, op.Shape(x), outputs=2), "outputs=[(dtype, dims), ...]"),
    ],
)
def test_a_mistake_in_a_users_translation_is_the_users(translation: Any, complaint: str) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(TwoClips(), (X,), custom_translations={LinearClip: translation})
    assert caught.value.code == "E001"
    assert complaint in str(caught.value)
    assert "test_custom_ops.py" in str(caught.value)


@pytest.fixture(scope="module")
def neighbours() -> Any:
    @torch.library.custom_op(f"{DOMAIN}::neighbours", mutates_args=())
    def implementation(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x - 1, x + 1

    @implementation.register_fake
    def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(x), torch.empty_like(x)

    return implementation


@pytest.mark.parametrize(
    ("translation", "said"),
    [
        (lambda op, x: None, "gives 0 values, PyTorch 2"),
        (lambda op, x: op.Sub(x, 1.0), "gives 1 value, PyTorch 2"),
        (lambda op, x: (op.Sub(x, 1.0), None), "gives 1 value, PyTorch 2"),
        (lambda op, x: [op.Sub(x, 1.0), op.Add(x, 1.0), x], "gives 3 values, PyTorch 2"),
    ],
)
@pytest.mark.parametrize("is_returned", [True, False])
def test_a_translation_gives_all_outputs(neighbours: Any, translation: Any, said: str, is_returned: bool) -> None:
    def forward(x: torch.Tensor) -> Any:
        found = neighbours(x)
        return found if is_returned else found[1] * 2

    own = {torch.ops.fx2onnx_tests.neighbours.default: translation}
    with pytest.raises(fx2onnx.UserError, match=f"(?s)E001.*neighbours.default {said}.*test_custom_ops.py"):
        fx2onnx.export(forward, (X,), custom_translations=own)


def test_outputs_that_nothing_uses_may_be_left_out(neighbours: Any) -> None:
    own = {
        torch.ops.fx2onnx_tests.neighbours.default: lambda op, x: op.Sub(x, op.cast(op.const(1, "int8"), torch.float32))
    }
    fx2onnx.export(lambda x: neighbours(x)[0], (X,), custom_translations=own, verify=True)


@pytest.mark.parametrize("dtype", [torch.float32, np.float32, "float32"])
def test_a_translation_may_name_dtypes_as_pytorch_does(neighbours: Any, dtype: Any) -> None:
    def translation(op: Any, x: Any) -> Any:
        more = op.Add(op.Cast(x, to=torch.float64), op.const(1, torch.float64))
        return op.Sub(x, op.const([1], dtype)), op.cast(more, dtype)

    own = {torch.ops.fx2onnx_tests.neighbours.default: translation}
    fx2onnx.export(neighbours, (X,), custom_translations=own, verify=True)


def test_a_key_that_is_no_overload_is_told_the_overload(neighbours: Any) -> None:
    for key in (torch.ops.fx2onnx_tests.neighbours, f"{DOMAIN}::neighbours", neighbours):
        with pytest.raises(fx2onnx.UserError, match=r"such as torch.ops.fx2onnx_tests.neighbours.default"):
            fx2onnx.export(neighbours, (X,), custom_translations={key: as_one_node})
    with pytest.raises(fx2onnx.UserError, match=r"such as torch.ops.aten.gelu.default"):
        fx2onnx.export(neighbours, (X,), custom_translations={"no::such": as_one_node})


def test_an_operator_without_tensors_gives_its_number() -> None:
    """As one that asks a library for its version, when forward imports it."""
    library = torch.library.Library("fx2onnx_versions", "DEF")
    library.define("version(int least) -> int")
    library.impl("version", lambda least: least + 2, "CompositeExplicitAutograd")

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 3 if torch.ops.fx2onnx_versions.version(1) == 3 else x

    result = fx2onnx.export(forward, (X,), verify=True)
    assert [node.op_type for node in result.model.graph] == ["Mul"]


@pytest.mark.long_cases("powers-wrong", "difference-right", "difference-wrong")
@pytest.mark.parametrize("is_wrong", [False, True], ids=["right", "wrong"])
@pytest.mark.parametrize("kind", ["powers", "difference"])
def test_rounding_inside_an_operator_is_no_fault(kind: str, is_wrong: bool) -> None:
    """Large inputs make a softmax of what the operator's own rounding leaves; an operator that computes something else is found."""
    name = f"{kind}_{is_wrong}"

    @torch.library.custom_op(f"{DOMAIN}::{name}", mutates_args=())
    def implementation(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        off = a.unsqueeze(-2) - b
        return off.abs().pow(3).sum(-1).pow(1 / 3) if kind == "powers" else off.square().mean(-1).sqrt()

    @implementation.register_fake
    def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.new_empty((*a.shape[:-1], b.shape[-2]))

    def translated(op: Any, a: Any, b: Any) -> Any:
        off = op.Abs(op.Sub(op.Unsqueeze(a, axes=[-2]), b))
        power = 3.0 if kind == "powers" else 2.0
        reduced = op.ReduceSum if kind == "powers" else op.ReduceMean
        found = op.Pow(
            reduced(op.Pow(off, op.const(power, op.dtype(a))), axes=[-1], keepdims=0), op.const(1 / power, op.dtype(a))
        )
        return op.Mul(found, op.const(1.0001, op.dtype(a))) if is_wrong else found

    overload = getattr(torch.ops.fx2onnx_tests, name).default
    translated.__doc__ = f"{name}(Tensor a, Tensor b) -> Tensor"

    class Distances(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.linspace(-1.3, 2.1, 15).reshape(5, 3).sin())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return overload(x, self.places).softmax(-1)  # type: ignore[no-any-return]

    module, given = Distances(), (torch.linspace(-2, 3, 12).reshape(4, 3).cos(),)
    result = fx2onnx.export(module, given, dynamic_shapes=({0: "n"},), custom_translations={overload: translated})
    assert verify(result, module, given).ok != is_wrong


@pytest.mark.long
def test_a_choice_that_float64_would_make_is_located() -> None:
    """tanh of large numbers is 1 in float32 and not in float64: an operator of the user's takes others of equal numbers there."""
    from fx2onnx.aten_map import TABLE

    @torch.library.custom_op(f"{DOMAIN}::best", mutates_args=())
    def best(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = torch.topk(torch.tanh(x).flip(1), 3)
        return values.clone(), x.shape[1] - 1 - places

    @best.register_fake
    def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.new_empty(x.shape[0], 3), x.new_empty((x.shape[0], 3), dtype=torch.int64)

    overload = torch.ops.fx2onnx_tests.best.default
    try:
        fx2onnx.translates(overload)(lambda op, x: op.TopK(op.Tanh(x), op.const([3], torch.int64), outputs=2))
        torch.manual_seed(0)
        args = (torch.randn(2, 9),)
        result = fx2onnx.export(overload, args)
        verdict = verify(result, overload, args)
        with pytest.raises(fx2onnx.VerificationError, match="the first of equal ones"):
            verdict.raise_if_failed()
        found = fx2onnx.locate(result, overload, args, verdict=verdict)
        assert found is not None
        assert found.value == result.report.output_names[1]
    finally:
        TABLE.entries.pop(overload, None)
