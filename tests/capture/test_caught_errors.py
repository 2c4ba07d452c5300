"""An ``except`` of forward's: what eager PyTorch raises at other sizes is a condition, what it raises for some numbers a decision by
data, and what only a capture raises an error.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx import verify
from fx2onnx.runner import InferenceSession
from tests.support import assert_positive, check

X = torch.tensor([1.0, 2, -3, 4, 5, 6, -7, 8, 9])
TABLE = torch.arange(8.0)


def _caught(operator: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        try:
            y = operator(x)
        except Exception:  # as modules do that are to run anywhere
            return x * 2
        return y + 3

    return forward


def _suppressed(operator: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError, IndexError):
            return operator(x) + 3
        return x * 2

    return forward


OPERATORS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int, int]] = {
    "view": (lambda x: x.view(-1, 4).sum(0), 9, 8),
    "a table": (lambda x: x + TABLE, 7, 8),
    "windows": (lambda x: x.unfold(0, 4, 1).sum(1), 3, 8),
    "an index": (lambda x: x[5], 4, 8),
    "narrow": (lambda x: x.narrow(0, 0, 6), 4, 8),
    "split": (lambda x: x.split([2, x.shape[0] - 5, 3])[1], 4, 8),
    "pooling": (lambda x: torch.nn.functional.max_pool1d(x[None, None], 5)[0, 0], 4, 8),
}
"""Operators, a size at which they raise, and one at which they do not."""


@pytest.mark.parametrize("way", [_caught, _suppressed])
@pytest.mark.parametrize("name", OPERATORS)
def test_what_other_sizes_do_not_raise_is_a_condition(name: str, way: Callable[[Any], Any]) -> None:
    operator, raises_at, other = OPERATORS[name]
    forward = way(operator)
    result = check(forward, (torch.randn(raises_at),), dynamic_shapes=({0: "n"},))
    assert any("forward catches an error" in line for line in result.report.warnings)
    session = InferenceSession(result.model_proto.SerializeToString())
    with pytest.raises(fx2onnx.UserError, match="E401"):
        session.run(None, {"x": np.zeros(other, np.float32)})
    assert verify(result, forward, (torch.randn(raises_at),)).ok


def test_an_error_at_every_size_is_no_condition() -> None:
    result = check(_caught(lambda x: x.half() @ x), (X,), others=[(X[:4],)], dynamic_shapes=({0: "n"},))
    assert not result.report.assumptions
    assert not result.report.warnings


def _decides(x: torch.Tensor) -> torch.Tensor:
    return x * 5 if x.sum() > 0 else x


def test_a_decision_by_data_is_in_the_file_although_forward_catches_every_error() -> None:
    check(_caught(_decides), (X,), others=[(-X,)])
    check(_caught(lambda x: x * float(x.sum())), (X,), others=[(-X,)])
    check(_caught(lambda x: torch.from_numpy(np.sin(x).numpy() + np.asarray(x) + x.numpy())), (X,), others=[(-X,)])


NUMBERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "of NumPy": lambda x: np.unwrap(x, axis=0),
    "of arrays": lambda x: x.numpy().tobytes(),
    "memory": lambda x: x.untyped_storage()[0],
    "printed": lambda x: f"{x[0]:.2f}",
    "pickled": lambda x: pickle.dumps(x),
    "saved": lambda x: torch.save(x, io.BytesIO()),
    "an index": lambda x: [1, 2, 3][x[0].long() % 3],
    "sorted": lambda x: sorted(x),
    "complex": lambda x: complex(x[0]),
    "sparse": lambda x: x.to_sparse()._values(),
    "apply": lambda x: x.clone().apply_(lambda number: number + 1),
    "map": lambda x: x.clone().map_(x, lambda one, other: one + other),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_what_only_a_capture_raises_is_an_error(name: str) -> None:
    def operator(x: torch.Tensor) -> torch.Tensor:
        NUMBERS[name](x)
        return x

    _caught(operator)(X)
    with pytest.raises(fx2onnx.UserError, match=r"E10[14]|E203"):
        fx2onnx.export(_caught(operator), (X,))


@pytest.mark.parametrize("size", [0, 9])
def test_only_a_tensor_of_one_element_is_true_or_false(size: int) -> None:
    with pytest.raises(fx2onnx.UserError, match=r"E101(?s:.*)Boolean value of Tensor with"):
        fx2onnx.export(lambda x: x if x > 0 else -x, (X[:size],))
    check(_caught(lambda x: x if x > 0 else -x), (X[:size],))


MATRIX = torch.tensor([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]])
PLACES = torch.tensor([1, 3, 0, 2, 4])
BEYOND = torch.tensor([1, 7, 0, 2, 4])
FIVE = torch.arange(5.0)
RAISE_BY_DATA: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = {
    "cholesky": (torch.linalg.cholesky, (MATRIX,), (-MATRIX,)),
    "indices": (lambda x, i: x[i], (FIVE, PLACES), (FIVE, BEYOND)),
    "quotients": (lambda x, y: x // y, (PLACES, PLACES + 1), (PLACES, PLACES)),
    "upper": (lambda x: torch.cholesky(x, upper=True), (MATRIX,), (-MATRIX,)),
    "cholesky_inverse": (torch.cholesky_inverse, (MATRIX.tril(),), (MATRIX * 0,)),
    "inv": (torch.inverse, (MATRIX,), (MATRIX * 0,)),
    "solve": (torch.linalg.solve, (MATRIX, MATRIX + 1), (MATRIX * 0, MATRIX)),
    "lu_factor": (lambda x: torch.linalg.lu_factor(x)[0], (MATRIX,), (MATRIX * 0,)),
    "matrix_power": (lambda x: torch.linalg.matrix_power(x, -2), (MATRIX,), (MATRIX * 0,)),
    "pinv": (torch.linalg.pinv, (MATRIX,), (MATRIX * torch.nan,)),
    "embedding": (lambda i: torch.nn.functional.embedding(i, FIVE[:, None])[:, 0].long(), (PLACES,), (BEYOND,)),
    "gather": (lambda x, i: x.gather(0, i), (FIVE, PLACES), (FIVE, -PLACES)),
    "take": (lambda x, i: x.take(i), (FIVE, -PLACES), (FIVE, BEYOND)),
    "index_select": (lambda x, i: x.index_select(0, i), (FIVE, PLACES), (FIVE, BEYOND)),
    "index_put": (lambda x, i: x.clone().index_put_((i,), x * 3), (FIVE, PLACES), (FIVE, BEYOND)),
    "scatter": (lambda x, i: x.clone().scatter_(0, i, x * 3), (FIVE, PLACES), (FIVE, BEYOND)),
    "index_add": (lambda x, i: x.index_add(0, i, x), (FIVE, PLACES), (FIVE, BEYOND)),
    "index_fill": (lambda x, i: x.index_fill(0, i, 3.0), (FIVE, PLACES[:2]), (FIVE, BEYOND[:2])),
    "one_hot": (lambda i: torch.nn.functional.one_hot(i, 5)[0], (PLACES,), (BEYOND,)),
    "remainder": (lambda x, y: x % y, (PLACES, PLACES + 1), (PLACES, PLACES)),
    "truncated": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (PLACES, PLACES + 1), (PLACES, PLACES)),
}
"""Operators, operands that they take, and operands for which they raise."""


@pytest.mark.long_cases(but=["cholesky", "indices", "quotients"])
@pytest.mark.parametrize("name", RAISE_BY_DATA)
def test_both_branches_of_what_numbers_raise_are_in_the_file(name: str) -> None:
    operator, taken, raises = RAISE_BY_DATA[name]

    def forward(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        try:
            y = operator(x, *others)
        except (IndexError, RuntimeError):
            return x * 2
        return y + 3

    result = check(forward, taken, others=[raises])
    assert not result.report.warnings


def _jitter(x: torch.Tensor) -> torch.Tensor:
    for scale in (0.0, 1.0, 100.0):
        try:
            return torch.linalg.cholesky(x + torch.eye(3) * scale)
        except torch.linalg.LinAlgError:
            continue
    return x * 2


def _raises_another(x: torch.Tensor) -> torch.Tensor:
    try:
        try:
            return torch.linalg.inv(x)
        except RuntimeError as error:
            raise ValueError("no inverse") from error
    except ValueError:
        return x * 2


def _with_else(x: torch.Tensor) -> torch.Tensor:
    try:
        y = torch.linalg.cholesky(x)
    except Exception:  # as modules do that are to run anywhere
        y = x
    else:
        y = y * 5
    finally:
        x = x + 1
    return x + y


@pytest.mark.long_cases(but=["_raises_another"])
@pytest.mark.parametrize("forward", [_suppressed(torch.linalg.cholesky), _jitter, _raises_another, _with_else])
def test_every_way_to_catch_what_numbers_raise(forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert not check(forward, (MATRIX,), others=[(-MATRIX,), (MATRIX * 0,)]).report.warnings


def _asserts(x: torch.Tensor) -> torch.Tensor:
    try:
        assert_positive(x)
    except AssertionError:
        return x * 2
    return x + 1


def _refused_by_torch(x: torch.Tensor) -> torch.Tensor:
    try:
        return torch.nn.functional.gaussian_nll_loss(x * 0, x * 0, x, reduction="none")
    except ValueError:
        return x * 2


@pytest.mark.parametrize("forward", [_asserts, _refused_by_torch])
def test_both_branches_of_what_python_asks_in_a_try(forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.tensor([1.0, 2, 3, 4])
    assert not check(forward, (x,), others=[(x - 3,)]).report.warnings


def test_a_number_of_elements_that_raises_is_a_condition_with_a_warning() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        try:
            return x[x > 0].view(2, 2)
        except RuntimeError:
            return x[:4].view(2, 2)

    result = check(forward, (torch.tensor([1.0, 2, 3, 4]),))
    (warning,) = result.report.warnings
    assert "forward catches an error where 4 == u0 does not hold" in warning


OF_SIZES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "max of the rest": lambda x: x[1:].max(),
    "amax along an axis": lambda x: x[1:].amax(0),
    "a pool": lambda x: torch.nn.functional.avg_pool1d(x, 3),
    "a convolution": lambda x: torch.nn.functional.conv1d(x.T[None], torch.ones(1, x.shape[1], 3)),
    "a narrow": lambda x: x.narrow(0, 1, 2),
}


@pytest.mark.parametrize("name", OF_SIZES)
def test_an_operator_that_small_sizes_end_is_a_condition_with_a_warning(name: str) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        try:
            return OF_SIZES[name](x)
        except (RuntimeError, IndexError):
            return x.sum()

    shapes = ({0: "rows", 1: "columns"},) if name == "a pool" else ({0: "rows"},)
    for function, warned in ((forward, True), (OF_SIZES[name], False)):
        result = check(function, (torch.ones(4, 6),), others=[(torch.randn(5, 6),)], dynamic_shapes=shapes)
        assert any("forward catches an error where" in each for each in result.report.warnings) is warned


def test_what_nobody_catches_is_no_decision() -> None:
    def other_class(x: torch.Tensor) -> torch.Tensor:
        try:
            return torch.linalg.cholesky(x)
        except KeyError:
            return x

    def raises_again(x: torch.Tensor) -> torch.Tensor:
        try:
            return torch.linalg.cholesky(x)
        except RuntimeError as error:
            raise ValueError("not positive definite") from error

    for forward in (other_class, raises_again):
        report = check(forward, (MATRIX,)).report
        assert not report.assumptions
        assert not report.warnings


def test_what_cannot_be_checked_is_a_warning() -> None:
    def forward(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        try:
            return torch.nn.functional.nll_loss(x, target)
        except IndexError:
            return x.sum()

    def of_other_sizes(x: torch.Tensor) -> torch.Tensor:
        try:
            return torch.linalg.svdvals(x)
        except RuntimeError:
            return x

    def cholesky(x: torch.Tensor) -> torch.Tensor:
        return _caught(torch.linalg.cholesky)(x)

    def element(x: torch.Tensor) -> torch.Tensor:
        try:
            return x[int(x[0])]
        except IndexError:
            return x.sum()

    scores = torch.log_softmax(MATRIX, 1)
    for result in (
        check(element, (X[:4],)),
        check(forward, (scores, torch.tensor([0, 2, 1]))),
        check(of_other_sizes, (MATRIX,)),
        check(cholesky, (MATRIX,), data_branches="error"),
    ):
        (warning,) = result.report.warnings
        assert "the file has only the branch without the error   (" in warning


def _asserts(x: torch.Tensor) -> torch.Tensor:
    assert_positive(x)
    return x.log()


@pytest.mark.long
@pytest.mark.parametrize("name", ["cholesky", "embedding", "assert"])
def test_torch_export_has_one_branch_with_a_warning(name: str) -> None:
    operator, taken, _ = RAISE_BY_DATA.get(name, (_asserts, (MATRIX.abs() + 1,), ()))

    def forward(x: torch.Tensor) -> torch.Tensor:
        try:
            return operator(x)
        except (IndexError, RuntimeError, AssertionError):
            return x * 2

    result = fx2onnx.export(forward, taken, capture="export")
    assert ["the file has only the branch without the error" in line for line in result.report.warnings] == [True]
