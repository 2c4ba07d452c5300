"""The parts of a verification: other samples, movements by rounding, verdicts, engines."""

from __future__ import annotations

import inspect

import ml_dtypes
import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx import verify
from fx2onnx.base.errors import VerificationError
from fx2onnx.capture.python.inputs import bind
from fx2onnx.judge.engines import ENGINES, chosen_engines
from fx2onnx.judge.movements import Movements
from fx2onnx.judge.tolerance import Scale, by_difference
from fx2onnx.judge.verdict import Row, Verdict
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import where_true
from fx2onnx.sizes.stated import SizeCondition
from fx2onnx.verify.arrays import to_numpy
from fx2onnx.verify.eager import Eager
from fx2onnx.verify.locating.aten_values import ValueStore
from fx2onnx.verify.module_state import _difference
from fx2onnx.verify.rounding import Moved
from fx2onnx.verify.samples import Maker, TriedSample, borders, cheapest_first, other_sizes, planned
from fx2onnx.verify.values import KINDS, InputValues

N, M = Dim.symbol("n"), Dim.symbol("m")
IDS = torch.tensor([[3, 1, 2]])
X = torch.linspace(1, 4, 6).reshape(2, 3)


def forward(x: torch.Tensor, ids: torch.Tensor) -> None: ...


def made(axes: list[dict[int, str] | None], seeds: tuple[int, ...] = (1,)) -> dict[str, list[torch.Tensor]]:
    arguments = bind(forward, (X, IDS), {}, None)
    assert list(inspect.signature(forward).parameters) == [leaf.name for leaf in arguments.leaves]
    maker = Maker.of([leaf.tensor for leaf in arguments.leaves], axes, [None, None])
    return {sample.name: maker.make(sample) for sample in planned(maker.sizes, maker.conditions, seeds)}


def test_samples_of_fixed_sizes() -> None:
    found = made([{}, {}], (1, 2))
    assert list(found) == ["seed 1", "seed 2", "ties", "small", "large", "zeros"]
    x, ids = found["seed 1"]
    assert ids.min() >= 1
    assert ids.max() <= 3
    assert x.shape == X.shape
    assert not torch.equal(x, X)
    assert not torch.equal(x, found["seed 2"][0])
    assert not found["zeros"][0].any()
    assert made([{}, {}], ()) == {}


def test_a_size_grows_by_one_wherever_it_is_named() -> None:
    x, ids = made([{0: "n", 1: "2*n - 1"}, {1: "n + 1"}], ())["sizes n 3"]
    assert (tuple(x.shape), tuple(ids.shape)) == ((3, 5), (1, 4))
    assert torch.equal(ids, torch.tensor([[3, 1, 2, 3]]))


def test_rounding_that_moves_one_number_far_explains_no_others() -> None:
    """An engine that is off by as much as the largest movement, but everywhere, is not one more draw."""
    want = np.ones((4, 250), np.float32)
    movements = Movements(want)
    noise = np.random.default_rng(0)
    for place in range(4):
        moved = want + noise.normal(0, 1e-5, want.shape).astype(np.float32)
        moved[:, place] += 0.01
        movements.add(moved)
    alike = want + noise.normal(0, 1e-5, want.shape).astype(np.float32)
    alike[:, 7] -= 0.01
    assert movements.judge(alike).ok
    assert not movements.judge(want + np.float32(0.01)).ok


def test_rounding_that_moves_one_row_at_a_time_explains_no_file_that_moves_all() -> None:
    want, unit = np.ones((40, 4), np.float32), np.float32(np.finfo(np.float32).eps)
    movements = Movements(want)
    for row in range(len(want)):
        moved = want.copy()
        moved[row] += 200 * unit
        movements.add(moved)
    alike = want.copy()
    alike[:2] += 50 * unit
    assert movements.judge(alike).ok
    assert not movements.judge(want + 50 * unit).ok


def test_arrays_that_do_not_fit_lie_in_files() -> None:
    store = ValueStore(64)
    arrays = {"a": np.arange(8.0), "b": np.arange(5), "c": np.zeros((0, 3)), "d": np.array(2.5, np.float32)}
    for name, array in arrays.items():
        store[name] = array
    assert (store.held_bytes, store.spilled_bytes) == (64, 44)
    for name, array in arrays.items():
        assert store.nbytes(name) == array.nbytes
        np.testing.assert_array_equal(store[name], array)


def test_every_axis_exists_at_the_sizes_that_are_tried() -> None:
    for x, ids in made([{0: "past", 1: "past + 1"}, {1: "3*past - 3"}]).values():
        assert x.shape[1] == x.shape[0] + 1
        assert ids.shape[1] == 3 * x.shape[0] - 3
        assert ids.shape[1] >= 1


def test_what_values_may_be() -> None:
    """Ids over the whole range with both ends, masks with padding on both sides, floats at other scales, ties, zeros."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 5, (4, 16))
    assert InputValues.of(ids, (0, 99)).draw(ids, "seed", generator).unique().tolist()[0::1000] == [0]
    assert int(InputValues.of(ids, (0, 99)).draw(ids, "seed", generator).max()) == 99
    assert int(InputValues.of(ids, None).draw(ids, "seed", generator).max()) <= 4
    ones = torch.ones(4, 16, dtype=torch.int64)
    padded = InputValues.of(ones, None).draw(ones, "seed", generator)
    assert padded[:, 0].tolist() == [1, padded[1, 0], 1, padded[3, 0]]
    assert not padded[:, -1].all()
    assert not padded[:, 0].all() or not padded[1::2].all()
    assert bool((padded.sum(1) >= 8).all())
    floats = torch.randn(64, 8)
    values = InputValues.of(floats, None)
    by_kind = {kind: values.draw(floats, kind, generator) for kind in KINDS}
    assert float(by_kind["large"].std()) > 8 * float(by_kind["seed"].std()) > 1000 * float(by_kind["small"].std())
    assert len(by_kind["ties"].unique()) < 16 < len(by_kind["seed"].unique())
    assert torch.equal(by_kind["sample"], floats)
    assert InputValues.of(torch.zeros(2, 3), None).role == "floats"
    assert InputValues.of(torch.ones(2, 3), None).role == "mask"
    assert InputValues.of(torch.tensor([True]), None).role == "mask"


def test_numbers_that_stand_repeatedly_stay_where_all_else_fails() -> None:
    """Such as the places of an image in a text."""
    text = torch.tensor([[1, 9, 9, 9, 2, 3, 4, 5]])
    mild = InputValues.of(text, (0, 99)).milder(text, "seed", torch.Generator().manual_seed(0))
    assert mild[0, 1:4].tolist() == [9, 9, 9]
    assert sorted(mild[0].tolist()) == sorted(text[0].tolist())
    assert not torch.equal(mild, text)


def test_sizes_small_large_alone_and_unequal() -> None:
    tried = other_sizes({"height": 8, "width": 8}, [])
    assert tried[0] == {"height": 9, "width": 10}
    for name in ("height", "width"):
        of_this = [sizes[name] for sizes in tried]
        assert 1 in of_this
        assert 17 in of_this
        assert max(of_this) > 100
    assert all(sizes["height"] != sizes["width"] for sizes in tried)


@pytest.mark.parametrize(
    ("relation", "sample", "expected"),
    [
        (Relation("eq", (N % 8, 0)), 32, [8, 16]),
        (Relation("ge", (N, 6)), 9, [6, 7]),
        (Relation("and", (Relation("ge", (N, 8)), Relation("le", (N, 11)))), 9, [8, 11, 9]),
        (Relation("and", (Relation("ge", (N, 8)), Relation("le", (N, 5000)))), 9, [8, 9]),
        (Relation("ne", (N, 7)), 9, [2, 3, 6, 8]),
        (Relation("eq", (N % 5, 3)), 13, [3, 8]),
        (Relation("le", (N, 1)), 1, []),
    ],
    ids=str,
)
def test_borders_of_sets_of_sizes(relation: Relation, sample: int, expected: list[int]) -> None:
    sizes = where_true(relation)
    assert sizes is not None
    assert borders(sizes, sample) == expected


def of(relation: Relation, name: str = "") -> SizeCondition:
    sizes = where_true(relation) if name else None
    if sizes is not None:
        return SizeCondition(str(relation), "", name, sizes)
    return SizeCondition(str(relation), "", any_of=((relation.op, *relation.args),))


@pytest.mark.long
def test_all_sizes_that_are_tried_keep_all_conditions() -> None:
    eights, fours = of(Relation("eq", (N % 8, 0)), "n"), of(Relation("eq", (M % 4, 0)), "m")
    wider = of(Relation("gt", (M, 2 * N)))
    for conditions in ([eights], [eights, fours], [eights, fours, wider], [wider], []):
        tried = other_sizes({"n": 16, "m": 40, "batch": 3}, conditions)
        assert all(condition.holds(sizes) for condition in conditions for sizes in tried)
        assert len({tuple(sorted(sizes.items())) for sizes in tried}) == len(tried)
        assert {"n": 16, "m": 40, "batch": 3} not in tried
        assert tried[0]["batch"] == 4
    assert {"n": 8, "m": 8, "batch": 3} in other_sizes({"n": 16, "m": 40, "batch": 3}, [eights, fours])
    (_, tight, *_) = other_sizes({"n": 16, "m": 40}, [wider])
    assert tight["m"] == 2 * tight["n"] + 1
    assert [sizes["n"] for sizes in other_sizes({"n": 16}, [])] == [17, 2, 1, 33, 260]


@pytest.mark.long
def test_a_file_that_is_wrong_at_a_border_alone_is_found() -> None:
    """The module is right at every size; the file is of one that is not at the least size that conditions allow."""

    class Blocks(torch.nn.Module):
        def __init__(self, wrong: float) -> None:
            super().__init__()
            self.wrong = wrong

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            blocks = x.view(x.shape[0] // 8, 8)
            return blocks + (torch.ones_like(blocks[:, 0]).sum() <= 1).float() * self.wrong

    result = fx2onnx.export(Blocks(1.0), (torch.randn(32),), dynamic_shapes=({0: "n"},))
    verdict = verify(result, Blocks(0.0), (torch.randn(32),))
    assert {row.inputs for row in verdict.rows if not row.ok} <= {"sizes n 8", "sizes n 8, large", "sizes n 8, ties"}
    assert not verdict.ok
    assert verify(result, Blocks(1.0), (torch.randn(32),)).ok


def test_an_argument_that_is_no_input_keeps_its_values() -> None:
    found = made([{0: "n"}, None])
    assert all(tensors[1] is IDS or torch.equal(tensors[1], IDS) for tensors in found.values())


def test_movements_stay_within_the_units_and_leave_the_module_alone() -> None:
    module = torch.nn.Linear(3, 3)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    eager = Eager(module, bind(module.forward, (X,), {}, None))
    want = eager.run([X])[0]
    scale = np.abs(want) + np.sqrt(np.square(want).mean(-1, keepdims=True))
    for seed in range(4):
        moved = eager.moved([X], [], Moved(seed, 2.0))[0]
        assert not np.array_equal(moved, want)
        assert (np.abs(moved - want) <= 3 * np.finfo(np.float32).eps * scale).all()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def row(error: float, *, ok: bool = True, problem: str = "", engine: str = "runner") -> Row:
    return Row(engine, "y", error, 1.0, ok, "sample", problem, scale=2.0)


def test_a_verdict_needs_a_comparison() -> None:
    verdict = Verdict()
    verdict.note("no engine")
    verdict.note("no engine")
    assert (verdict.ok, verdict.notes) == (False, ["no engine"])
    assert verdict.describe() == "nothing was compared\nno engine"
    assert verdict.worst() is None


def test_one_failing_row_fails_the_verdict() -> None:
    verdict = Verdict([row(0.5), row(3.0, ok=False), row(0.0, ok=False, problem="dtype", engine="onnxruntime")])
    assert not verdict.ok
    assert verdict.describe() == "runner: y (sample): error 3, allowed 1\nonnxruntime: y (sample): dtype"
    worst, of_runner = verdict.worst(), verdict.worst("runner")
    assert worst is not None
    assert of_runner is not None
    assert (worst.problem, of_runner.max_abs_error, of_runner.relative_error) == ("dtype", 3.0, 1.5)
    with pytest.raises(VerificationError, match="E501"):
        verdict.raise_if_failed()
    Verdict([row(0.5)]).raise_if_failed()
    for inputs in (["sizes n 2, ties"], ["zeros", "far", "signed"]):  # tanh of far ones is 1
        with pytest.raises(VerificationError, match="take the first of equal ones"):
            Verdict([row(0.5), *(Row("runner", "y", 3.0, 1.0, False, each) for each in inputs)]).raise_if_failed()


def test_tensors_as_numpy_has_them() -> None:
    half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True)
    assert to_numpy(half).dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(to_numpy(half).astype(np.float32), [1.5, -2.0])
    turned = torch.tensor([1 + 2j]).conj()
    np.testing.assert_array_equal(to_numpy(turned), [[1, -2]])


def test_the_runner_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(chosen_engines(None)) <= set(ENGINES)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert chosen_engines(None) == ["runner"]


def test_where_little_can_be_tried_small_unequal_sizes_come_first_and_nothing_last() -> None:
    tried = [TriedSample("seed 1", values="seed"), TriedSample("sizes n 0", {"n": 0, "m": 4}), TriedSample("sizes n 1", {"n": 1, "m": 3}),
             TriedSample("sizes n 2, m 2", {"n": 2, "m": 2}), TriedSample("sizes n 2, m 3, ties", {"n": 2, "m": 3}, "ties", 7)]  # fmt: skip
    ordered = cheapest_first(list(zip(tried, [1.0, 0.0, 0.1, 0.2, 0.3], strict=True)), seeds=(1,))
    assert [sample.name for sample, _ in ordered] == [
        "sizes n 2, m 3, seed", "sizes n 1", "sizes n 2, m 2", "seed 1", "sizes n 0"
    ]  # fmt: skip
    assert ordered[0][0].values == "seed"
    assert cheapest_first([(tried[0], 1.0)], seeds=(1,)) == [(tried[0], 1.0)]


@pytest.mark.parametrize("units", [20.0, 80.0])
def test_large_outputs_are_judged_piece_by_piece_each_channel_by_its_scale(units: float) -> None:
    want = np.random.default_rng(0).standard_normal((3, 130, 900)).astype(np.float32)
    want[..., 5] *= 1e-4
    got = want.copy()
    small = np.abs(want[..., 5]).max()
    got[2, 129, 5] += units * small * np.finfo(np.float32).eps
    found = by_difference(got, want, Scale.of(want))
    assert found.ok == (units < 32)
    assert found.off == (units > 32)
    assert found.error == pytest.approx(units * small * np.finfo(np.float32).eps, rel=0.1)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (299, 0), (150, 199)])
def test_a_transposed_weight_is_compared_to_its_last_number(row: int, column: int) -> None:
    own = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    own[3, 4] = float("nan")
    stored = own.t().contiguous().numpy().copy()
    assert _difference(stored, own, True) == ""
    stored[row, column] += 1
    assert _difference(stored, own, True) == "1 of 60000 numbers are not the module's"


class Switched(torch.nn.Module):
    def forward(self, x: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
        return torch.where(is_kept, x, -x)


class Unswitched(torch.nn.Module):
    def forward(self, x: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
        return x + 0 * is_kept


@pytest.mark.long_cases("True-(4, 1)")
@pytest.mark.parametrize("shape", [(), (1,), (4, 1)], ids=str)
@pytest.mark.parametrize("value", [True, False])
def test_switches_are_turned(shape: tuple[int, ...], value: bool) -> None:
    args = (torch.randn(4, 3), torch.full(shape, value))
    assert verify(fx2onnx.export(Switched(), args), Switched(), args).ok
    if value:
        assert not verify(fx2onnx.export(Unswitched(), args), Switched(), args).ok


@pytest.mark.parametrize("units", [0.0, 1.0])
@pytest.mark.parametrize("is_own", [True, False])
def test_few_codes_are_a_step_off(is_own: bool, units: float) -> None:
    """The next code of one number in 32, and the one before of as many; without units none, and none beyond those that
    there are."""
    from torch.ao.quantization.fx import _decomposed  # noqa: F401   makes the operators

    x = torch.linspace(-3, 3, 64_000)

    def codes() -> torch.Tensor:
        if is_own:
            return torch.quantize_per_tensor(x, 0.02, 3, torch.qint8).int_repr()
        return torch.ops.quantized_decomposed.quantize_per_tensor.default(x, 0.02, 3, -128, 127, torch.int8)

    exact = codes().long()
    with Moved(0, units):
        steps = codes().long() - exact
    shares = [float((steps == step).float().mean()) for step in (-1, 0, 1)]
    assert sum(shares) == pytest.approx(1)
    assert [shares[0], shares[2]] == pytest.approx([1 / 32, 1 / 32] if units else [0, 0], rel=0.25)
    assert int((exact + steps).min()) >= int(exact.min())
    assert int((exact + steps).max()) <= int(exact.max())
