"""Reasons why a run of a module failed, if another run may do better. A reason is set where the error is raised."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from fx2onnx.base.errors import UserError


class Reason(Enum):
    """The kinds of failures that a remedy may be for."""

    ERROR = "an error"
    COMPOSITE = "composite operators cannot be seen whole: the module transforms functions or takes gradients"
    WRITTEN = "a tensor is written in place that a statement, which was run without asking, may give as it is"
    NO_BRANCH = "statements that a test by data guards, which were recorded as a branch, do more than change tensors"
    GRADIENTS = "the module takes gradients, which are off"
    PLAIN_NUMBER = "Python turns a data-dependent size into a plain number"
    ARRAY = "Python makes a NumPy array of a tensor whose numbers depend on data"
    TURNS = "Python loops as often as data says"
    PATHS = "there are too many paths through decisions by data"
    PATHS_OF_TURN = "a turn of a loop of the file has many paths"
    FIRST_TURN = "the first turn of a loop of the file has to be run by itself"
    INDEX = "brackets fail, in which torch wants plain numbers in the place of sizes"
    CALLS_ITSELF = "a function calls itself as often as a size says"
    REAL_NUMBER = "Python turns a data-dependent real number into a plain one"


NUMBERS = (Reason.PLAIN_NUMBER, Reason.ARRAY, Reason.TURNS, Reason.REAL_NUMBER)


def is_about_number(error: BaseException) -> bool:
    """True if Python needed a plain number where only the data gives one."""
    return isinstance(error, UserError) and error.code != "E101" and error.reason in NUMBERS


def because(reason: Reason, error: UserError) -> UserError:
    """``error``, with its reason."""
    error.reason = reason
    return error


def with_inputs(error: UserError, names: Iterable[str]) -> UserError:
    """``error``, with the advice to fix the values of those inputs, if there are any, on which the numbers depend."""
    error.inputs = tuple(sorted(names))
    if error.inputs:
        error.add_next([baking_step(error.inputs)])
    return error


def baking_step(names: Iterable[str]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"bake=[{quoted}] to make the values of the example inputs constants of the file"
