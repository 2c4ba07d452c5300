"""Models that draw random numbers, and models that choose among nearly equal ones, in the verifier."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import verify

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


class Masked(nn.Module):
    """Keeps the half of the columns that noise picks."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.rand(x.shape).argsort(1)
        noisy = x + torch.randn_like(x) * 0.1 + torch.rand(()) * self.factor
        return noisy.gather(1, order[:, :4]), x * 2 * self.factor


class SizeFromNoise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[torch.rand(3) > 0.5]


class Integers(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, torch.randint(8, (20,))], torch.randint_like(x, -3, 5) + torch.randint(2, 9, (8,))


@pytest.mark.parametrize("module", [Masked(), SizeFromNoise(), Integers()])
def test_what_is_drawn_is_fed(module: nn.Module) -> None:
    verdict = verify(fx2onnx.export(module, (X,)), module, (X,))
    assert verdict.ok, verdict.describe()
    assert not [note for note in verdict.notes if "random" in note]


@pytest.mark.long
def test_wrong_numbers_are_found_under_noise() -> None:
    result = fx2onnx.export(Masked(), (X,))
    verdict = verify(result, Masked(1.01), (X,))
    assert {row.output for row in verdict.rows if not row.ok} == {"output_0", "output_1"}


class Shuffled(nn.Module):
    """A permutation is no single random node of the file."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, torch.randperm(8)] * self.factor, x * self.factor


@pytest.mark.long
def test_noise_that_cannot_be_fed_leaves_types() -> None:
    result = fx2onnx.export(Shuffled(), (X,))
    verdict = verify(result, Shuffled(), (X,))
    assert verdict.ok, verdict.describe()
    assert any("random" in note for note in verdict.notes)
    other = verify(result, Shuffled(1.01), (X,))
    assert {row.output for row in other.rows if not row.ok} == {"output_1"}


class BestRows(nn.Module):
    """The rows of the best scores, which are a millionth apart; ``units`` is how far the scores are rounded away."""

    def __init__(self, units: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.rows = nn.Parameter(torch.randn(64, 32, generator=generator))
        self.scores = nn.Parameter(1 + torch.randperm(64, generator=generator) * 1e-6)
        self.off = 1 + torch.randn(64, generator=generator) * units * 1.2e-7

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.scores * self.off * x.abs().sum()
        return self.rows[scores.topk(8).indices]


@pytest.mark.parametrize(("units", "is_rounding"), [(6.0, True), (3000.0, False)])
def test_choices_that_rounding_decides(units: float, is_rounding: bool) -> None:
    result = fx2onnx.export(BestRows(), (X,))
    verdict = verify(result, BestRows(units), (X,), seeds=())
    assert verdict.ok == is_rounding, verdict.describe()
    assert any("differ by up to" in note for note in verdict.notes) == is_rounding


class Ranks(BestRows):
    """The order of scores that are some 25 units in the last place apart."""

    def __init__(self, units: float = 0.0) -> None:
        super().__init__(units)
        self.scores = nn.Parameter((self.scores.detach() - 1) * 3 + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scores * self.off * x.abs().sum()).argsort()


@pytest.mark.parametrize(("units", "is_rounding"), [(9.0, True), (3000.0, False)])
def test_places_that_rounding_decides(units: float, is_rounding: bool) -> None:
    verdict = verify(fx2onnx.export(Ranks(), (X,)), Ranks(units), (X,), seeds=())
    assert verdict.ok == is_rounding, verdict.describe()
    assert any("numbers differ" in note for note in verdict.notes) == is_rounding


class Order(nn.Module):
    def __init__(self, descending: bool = False) -> None:
        super().__init__()
        self.descending = descending

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.argsort(descending=self.descending)


@pytest.mark.long
def test_wrong_places_are_found_where_rounding_decides_nothing() -> None:
    assert not verify(fx2onnx.export(Order(), (X,)), Order(True), (X,)).ok


def test_a_wrong_factor_is_found_where_nothing_is_chosen() -> None:
    module, wrong = nn.Linear(8, 4), nn.Linear(8, 4)
    wrong.load_state_dict({name: value * (1 + 1e-5) for name, value in module.state_dict().items()})
    assert not verify(fx2onnx.export(module, (X,)), wrong, (X,)).ok


class Plain(nn.Module):
    """Draws nothing."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x + 1


class Beside(nn.Module):
    """Draws, but not for its first output; in ``Plain``'s form."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x[:, torch.randperm(8)]


NOISE = {
    "normal": "noise = RandomNormal <shape: ints = [3, 8]> ()",
    "hardly any": "noise = RandomNormal <shape: ints = [3, 8], scale: float = 1e-30> ()",
    "like": "noise = RandomUniformLike (x)",
    "bernoulli": "half = Constant <value_float: float = 0.5> () halves = Expand (half, sizes) noise = Bernoulli (halves)",
    "dropout": "half = Constant <value_float: float = 0.5> () yes = Constant <value: tensor = bool {1}> ()" " noise = Dropout (x, half, yes)",
    "in a branch": "yes = Constant <value: tensor = bool {1}> () noise = If (yes) <"
    " then_branch = a () => (float[3, 8] n) { n = RandomUniformLike (x) },"
    " else_branch = b () => (float[3, 8] m) { m = Identity (x) }>",
    "in a function": "noise = own.outer (x)",
}  # fmt: skip


def noisy(kind: str, y: str, z: str, folder: Path) -> str:
    """The path of a file of ``Plain``'s form that draws ``noise``; ``nothing`` is 0 times it."""
    text = f"""<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
g (float[3, 8] x) => (float[3, 8] y, float[3, 8] z) {{
  zero = Constant <value_float: float = 0.0> ()
  one = Constant <value_float: float = 1.0> ()
  two = Constant <value_float: float = 2.0> ()
  large = Constant <value_float: float = 777.0> ()
  sizes = Shape (x)
  {NOISE[kind]}
  nothing = Mul (noise, zero)
  doubled = Mul (x, two)
  larger = Mul (x, large)
  more = Add (x, one)
  y = Add ({y}, nothing)
  z = Add ({z}, nothing)
}}
<opset_import: ["" : 18], domain: "own"> inner (a) => (b) {{ b = RandomNormalLike (a) }}
<opset_import: ["" : 18, "own" : 1], domain: "own"> outer (a) => (b) {{ b = own.inner (a) }}
"""
    path = folder / "noisy.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return str(path)


@pytest.mark.long
@pytest.mark.parametrize("kind", NOISE)
def test_noise_of_the_file_alone_hides_nothing(kind: str, tmp_path: Path) -> None:
    """Eager PyTorch draws nothing, so every number counts."""
    verdict = verify(noisy(kind, "doubled", "more", tmp_path), Plain(), (X,))
    assert verdict.ok, verdict.describe()
    assert not verdict.notes
    wrong = verify(noisy(kind, "larger", "more", tmp_path), Plain(), (X,))
    assert {(row.engine, row.output) for row in wrong.rows if not row.ok} == {("runner", "y"), ("onnxruntime", "y")}
    drawn = verify(noisy(kind, "doubled", "noise", tmp_path), Plain(), (X,))
    assert {row.output for row in drawn.rows if not row.ok} == {"z"}


@pytest.mark.long_cases(but=["bernoulli"])
@pytest.mark.parametrize("kind", NOISE)
def test_draws_of_one_output_hide_no_other(kind: str, tmp_path: Path) -> None:
    """Eager PyTorch draws, and not for the first output."""
    verdict = verify(noisy(kind, "doubled", "more", tmp_path), Beside(), (X,))
    assert verdict.ok, verdict.describe()
    assert any("random" in note for note in verdict.notes)
    wrong = verify(noisy(kind, "larger", "more", tmp_path), Beside(), (X,))
    assert {row.output for row in wrong.rows if not row.ok} == {"y"}


@pytest.mark.long_cases("RandomNormal <shape: ints = [3, 8], scale: float = 0.0> ()")
@pytest.mark.parametrize(
    "kind", ["RandomNormal <shape: ints = [3, 8], scale: float = 0.0> ()", "RandomUniformLike <low: float = 2.0> (x)"]
)
def test_noise_without_spread_ends_no_process(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does in onnxruntime, whose C++ library asserts; the runner judges alone."""
    monkeypatch.setitem(NOISE, "flat", f"noise = {kind}")
    verdict = verify(noisy("flat", "larger", "more", tmp_path), Plain(), (X,))
    assert {row.engine for row in verdict.rows if not row.ok} == {"runner"}
    assert any("onnxruntime is left out" in note for note in verdict.notes)


class Frozen(nn.Module):
    """What an exporter that runs the module once would make of ``Drawing``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.linspace(0, 1, 24).reshape(3, 8)


class Drawing(nn.Module):
    def __init__(self, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.generator = generator

    def __deepcopy__(self, memo: object) -> Drawing:
        return Drawing(self.generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3, 8, generator=self.generator)


@pytest.mark.long_cases(but=["module2"])
@pytest.mark.parametrize("module", [Drawing(), Drawing(torch.Generator()), nn.Dropout(0.5), nn.RReLU()])
def test_a_file_with_frozen_numbers_is_wrong(module: nn.Module) -> None:
    """Other draws of the judge would make any error look like its own."""
    verdict = verify(fx2onnx.export(Frozen(), (X,)), module, (X,), training=True)
    assert not verdict.ok


class Seeding(nn.Module):
    """Draws the same in every call."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        return x[:, torch.randperm(8)], x * 2


class Sizes(nn.Module):
    """A random size, of a form that no single random node of a file has."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, torch.randperm(8) > torch.randperm(8)], torch.randperm(8)


class Dropped(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return nn.functional.dropout(x, self.p, self.training), x * 3


@pytest.mark.parametrize(
    ("module", "is_random"),
    [(Seeding(), True), (Sizes(), True), (Dropped(0.5), True), (Dropped(0.0), False), (nn.RReLU(), True)],
)
def test_what_eager_pytorch_draws_is_random(module: nn.Module, is_random: bool) -> None:
    verdict = verify(fx2onnx.export(module.train(), (X,), training=True), module, (X,), training=True)
    assert verdict.ok, verdict.describe()
    assert any("random" in note for note in verdict.notes) == is_random


@pytest.mark.long
def test_a_training_module_is_compared_where_its_draws_do_not_reach() -> None:
    class Wrong(Dropped):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return nn.functional.dropout(x, self.p, self.training), x * 3.01

    result = fx2onnx.export(Wrong(0.5).train(), (X,), training=True)
    verdict = verify(result, Dropped(0.5), (X,), training=True)
    assert {row.output for row in verdict.rows if not row.ok} == {"output_1"}


def test_nothing_runs_more_often_where_nothing_is_random() -> None:
    calls = []

    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(x.dtype)
            return x * 2

    result = fx2onnx.export(Counting(), (X,))
    calls.clear()
    assert verify(result, Counting(), (X,), seeds=()).ok
    assert calls == [torch.float32]
