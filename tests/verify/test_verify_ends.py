"""What stands at the ends of what a module takes, of which its sample has nothing: a file that is wrong there is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import verify
from fx2onnx.verify.float_values import FLOAT_ENDS, NEEDS_RANGE, SPOILING
from fx2onnx.verify.marks import Marking, Marks
from fx2onnx.verify.samples import other_sizes
from fx2onnx.verify.values import ENDS, InputValues
from tests.verify.given import Forward, Given

GENERATOR = torch.Generator().manual_seed(7)
X = torch.randn(3, 9, generator=GENERATOR)
WHOLE = torch.randint(1, 30, (3, 7), generator=GENERATOR)
MASK = torch.ones(3, 9, dtype=torch.int64)
STEP = torch.tensor([10])
COMPLEX = torch.complex(X, torch.zeros_like(X))
BORDERS = torch.tensor([0.1, 0.25, 0.3, 0.7])
TABLE = torch.randn(40, 4, generator=GENERATOR)
SHORT, IDS, YEARS, STEPS = X[0, :4] / 4, torch.tensor([1, 2, 3]), torch.tensor([1990, 2010]), torch.tensor([12, 9])
EDGES, FARTHER = torch.tensor([5.0, 7.0]), torch.tensor([5.0, 7.5])
ROW = torch.ones(1, 3)


PAIRS: dict[str, tuple[tuple[torch.Tensor, ...], Forward, Forward]] = {
    "middles are rounded to even": ((X,), torch.round, lambda x: torch.floor(x + 0.5)),
    "what is cut off far away": ((X,), lambda x: (x * 2).clamp(min=-1000), lambda x: x * 2),
    "what is cut off in depth": ((X,), lambda x: (x * 0.01).clamp(-6, 6), lambda x: x * 0.01),
    "exponentials that overflow": ((X,), nn.functional.softplus, lambda x: torch.log1p(torch.exp(x))),
    "a condition that no sample meets": ((X,), lambda x: torch.where(x.mean() > 50, x * 2, x), lambda x: x + 0),
    "an integer behind a threshold": ((STEP, X), lambda t, x: torch.where(t > 500, x * 2, x), lambda t, x: x + 0 * t),
    "numbers equal to a border": ((X,), lambda x: torch.bucketize(x, BORDERS), lambda x: torch.bucketize(x, BORDERS, right=True)),
    "quotients of integers below zero": ((WHOLE,), lambda x: x // 4, lambda x: torch.div(x, 4, rounding_mode="trunc")),
    "integers below zero": ((WHOLE,), torch.abs, lambda x: x + 0),
    "ids beyond a table": ((WHOLE,), lambda x: TABLE[x % 40], lambda x: TABLE[x.clamp(0, 39)]),
    "an id that no sample has": ((WHOLE,), lambda x: TABLE[x] * (x != 0).unsqueeze(-1), lambda x: TABLE[x]),
    "what is no number": ((X,), lambda x: torch.nan_to_num(x, 0.0, 9.0, -9.0), lambda x: x + 0),
    "infinities": ((X,), lambda x: torch.where(torch.isinf(x), torch.zeros_like(x), x), lambda x: x + 0),
    "rows of which everything is masked": (
        (X, MASK),
        lambda x, m: x.masked_fill(m == 0, -1e9).softmax(-1),
        lambda x, m: x.masked_fill(m == 0, -torch.inf).softmax(-1),
    ),
    "masks of which everything is masked": ((X, MASK), lambda x, m: x * m.float(), lambda x, m: torch.where(m.sum() > 0, x * m.float(), x)),
    "zeros below zero": ((X,), lambda x: torch.copysign(torch.ones(()), x), lambda x: torch.where(x < 0, -torch.ones(()), torch.ones(()))),
    "a threshold a little larger": ((X,), lambda x: torch.where(x > 3.0, x * 2, x), lambda x: torch.where(x > 3.01, x * 2, x)),
    "a threshold a little smaller": ((SHORT,), lambda x: torch.where(x > 3.0, x * 2, x), lambda x: torch.where(x > 2.995, x * 2, x)),
    "a threshold much larger": ((SHORT,), lambda x: torch.where(x > 3.0, x * 2, x), lambda x: torch.where(x > 3.5, x * 2, x)),
    "an equal id": ((IDS,), lambda x: x % 5 + (x == 7), lambda x: x % 5 + (x == 70)),
    "a year before": ((YEARS,), lambda x: torch.where(x >= 2000, 1, 2) * (x > 0), lambda x: torch.where(x >= 1999, 1, 2) * (x > 0)),
    "a year long before": ((YEARS, SHORT[:2]), lambda x, y: torch.where(x >= 2000, y, -y), lambda x, y: torch.where(x >= 1995, y, -y)),
    "the least divisor": ((SHORT[:2], STEPS), lambda x, n: x / n.clamp(min=1), lambda x, n: x / torch.where(n > 3, n, 1)),
    "an integer below zero": ((IDS,), lambda x: torch.where(x == -100, 0, x % 5), lambda x: torch.where(x == -101, 0, x % 5)),
    "a border of two": ((SHORT,), lambda x: torch.bucketize(x, EDGES), lambda x: torch.bucketize(x, FARTHER)),
    "an id of a table": ((WHOLE,), lambda x: TABLE[x] * (x != 31).unsqueeze(-1), lambda x: TABLE[x] * (x != 33).unsqueeze(-1)),
    "a class among few": ((IDS,), lambda x: torch.isin(x, torch.tensor([40, 90])) + x % 5, lambda x: torch.isin(x, torch.tensor([40, 91])) + x % 5),
    "one number": ((torch.tensor(0.5),), lambda x: torch.where(x < -8, x * 2, x), lambda x: torch.where(x < -9, x * 2, x)),
    "a threshold of a line": ((SHORT,), lambda x: torch.where(2 - x * 4 < -38, 1 - x, x), lambda x: torch.where(2 - x * 4 < -38.5, 1 - x, x)),
    "an id that is shifted": ((IDS,), lambda x: x % 5 + (x - 30 == 7), lambda x: x % 5 + (x - 30 == 9)),
    "an integer as a float": ((IDS,), lambda x: x % 5 + (x / 8 > 2.5), lambda x: x % 5 + (x / 8 > 2.75)),
    "imaginary parts": ((COMPLEX,), lambda x: x.imag * 2, lambda x: x.imag * 3),
}  # fmt: skip


@pytest.mark.long_cases(
    "middles are rounded to even", "what is cut off far away", "what is cut off in depth", "exponentials that overflow",
    "a threshold a little larger", "a threshold a little smaller", "a year before", "a year long before", "the least divisor",
    "a border of two", "an id of a table", "a class among few", "one number", "an id that is shifted", "an integer as a float",
)  # fmt: skip
@pytest.mark.parametrize("what", PAIRS)
def test_what_no_sample_has(what: str) -> None:
    args, right, wrong = PAIRS[what]
    verdict = verify(fx2onnx.export(Given(right), args), Given(right), args)
    assert verdict.ok, verdict.describe()
    assert torch.allclose(right(*args), wrong(*args))
    assert not verify(fx2onnx.export(Given(wrong), args), Given(right), args).ok


class Positions(nn.Module):
    def __init__(self, known: int) -> None:
        super().__init__()
        table = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
        table[known:] = 0
        self.table = [table]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table[0][: x.shape[1]]


@pytest.mark.parametrize("axes", [{0: "rows", 3: "width"}, {1: "channels"}, {}])
def test_inputs_of_fewer_axes_than_the_file_has(axes: dict[int, str]) -> None:
    result = fx2onnx.export(Given(lambda x: x * 2), (torch.randn(2, 3, 4, 5),), dynamic_shapes={"args": (axes,)})
    verdict = verify(result, Given(lambda x: x * 2), (torch.randn(3),), effort="quick")
    assert not verdict.ok
    assert "has 1 axes; the model needs 4" in verdict.describe()


def test_the_end_of_a_table_of_which_the_begin_is_taken() -> None:
    x, axes = torch.randn(1, 6, 4, generator=GENERATOR), ({1: "sequence"},)
    assert verify(fx2onnx.export(Positions(600), (x,), dynamic_shapes=axes), Positions(600), (x,)).ok
    assert not verify(fx2onnx.export(Positions(599), (x,), dynamic_shapes=axes), Positions(600), (x,)).ok


def test_marks_of_a_module() -> None:
    marking, aten = Marking(), torch.ops.aten
    for func, args in [
        (aten.ge.Scalar, (X, 0.3)),
        (aten.ne.Scalar, (WHOLE, 7)),
        (aten.clamp_.default, (X, None, 40)),
        (aten.ne.Tensor, (X, X)),
        (aten.gt.Scalar, (X, float("inf"))),
        (aten.clamp_min.default, (X, torch.finfo(torch.float32).min)),
        (aten.gt.Tensor, (X, BORDERS)),
        (aten.relu.default, (X,)),
    ]:
        marking.see(func, args)
    found = marking.found()
    assert (found.numbers, found.whole) == ((0.3, 7.0, 40.0), (7,))
    assert {str(number) for number in found.special} == {"nan", "inf", "-inf"}


def test_sizes_behind_a_window() -> None:
    assert {"n": 513} in other_sizes({"n": 16}, [], marks=(3, 512, 100_000))
    assert other_sizes({"n": 16}, [], marks=(3,)) == other_sizes({"n": 16}, [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ends_stay_within_a_dtype(dtype: torch.dtype) -> None:
    like, marks = torch.randn(4, 6).to(dtype), Marks((0.0, 0.5, 500.0))
    values = InputValues.of(like, None, marks)
    assert values.ends(like) == {"marks", *FLOAT_ENDS}
    for kind in set(ENDS) - SPOILING - (NEEDS_RANGE if dtype in (torch.float16, torch.bfloat16) else set()):
        drawn = values.draw(like, kind, torch.Generator().manual_seed(0))
        assert drawn.dtype == dtype
        assert bool(torch.isfinite(drawn).all())
    assert values.of(like, None, Marks(whole=(1 << 40,))).ends(like) == set(FLOAT_ENDS)
    turned = InputValues.of(COMPLEX[:1, :1].conj(), None).draw(COMPLEX.conj(), "seed", torch.Generator().manual_seed(0))
    assert turned.shape == COMPLEX.shape
    small = torch.full((3,), 9, dtype=torch.uint8)
    assert InputValues.of(small, None, Marks(whole=(4, 255, 300))).marks.whole == (4, 255)
    assert InputValues.of(WHOLE, (0, 39), Marks(whole=(0, 39, 40))).marks.whole == (0, 39)
    ones = torch.ones(2, 3, dtype=torch.int64)
    assert InputValues.of(ones, None).ends(ones) == {"masked", "hidden"}
    assert InputValues.of(ones.to(dtype), None).ends(ones.to(dtype)) == {"masked", "hidden", "between"}


class Edges(nn.Module):
    """What stands at the begin of each edge, summed at its end."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        edges = edges.clamp(max=self.most)
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])


@pytest.mark.long
def test_ids_of_as_many_rows_as_there_are() -> None:
    """The module is right at every size; the file takes nodes behind the sample's for its last."""
    args = (torch.randn(6, 4, generator=GENERATOR), torch.tensor([[0, 1, 2, 3, 5, 5, 2], [1, 2, 4, 5, 0, 3, 1]]))
    axes = ({0: "nodes"}, {1: "edges"})
    right = Edges(1 << 40)
    verdict = verify(fx2onnx.export(right, args, dynamic_shapes=axes), right, args)
    assert verdict.ok, verdict.describe()
    assert (verdict.ranges["edges"].largest or 0) > 5
    assert not verify(fx2onnx.export(Edges(5), args, dynamic_shapes=axes), right, args).ok


@pytest.mark.parametrize("forward", [lambda x: torch.cat([x[:-1], ROW]), lambda x: torch.cat([ROW, x[1:]])])
def test_what_a_file_declares_of_no_rows_is_a_note(forward: Forward) -> None:
    """With eager PyTorch's numbers: the size that it declares holds from one row on."""
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    result = fx2onnx.export(forward, (x,), dynamic_shapes=({0: "n"},))
    verdict = verify(result, forward, (x,))
    assert verdict.ok, verdict.describe()
    assert any(
        "sizes n 0: of output the file declares the size n on axis 0, and gives 1" in note for note in verdict.notes
    )
    wrong = verify(result, lambda x: torch.cat([forward(x), ROW[: 1 - min(len(x), 1)]]), (x,))
    assert {row.inputs for row in wrong.rows if not row.ok} == {"sizes n 0"}


@pytest.mark.parametrize("rows", [3, 40])
def test_distances_of_infinite_numbers_decide_nothing(rows: int) -> None:
    """Distances of infinite numbers: for more than 25 rows PyTorch's are NaN there, for fewer ones infinite."""

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.cdist(x, y) ** 2 > 1, -1.0, torch.cdist(x, y))

    args = (torch.randn(4, 3, generator=GENERATOR), torch.randn(rows, 3, generator=GENERATOR))
    result = fx2onnx.export(forward, args)
    verdict = verify(result, forward, args)
    assert verdict.ok, verdict.describe()
    assert not verify(result, lambda x, y: forward(x, y) * 1.001, args).ok
