"""Functions that answer a question for their caller: a search for the frame that asked passes their own frames over.

They are known by their code objects, which all functions made by one ``def`` share, not by the file that they stand in.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

ANSWERING: dict[int, CodeType] = {}
"""Code of such functions by id: code objects that read the same are equal, whatever file or class they are of."""


def answers_for_caller(answering: F) -> F:
    """Register a function, or the methods of a class, with the functions inside."""
    functions = vars(answering).values() if isinstance(answering, type) else (answering,)
    for function in functions:
        plain = function.fget if isinstance(function, property) else function
        if isinstance(plain, FunctionType):
            _register(plain.__code__)
    return answering


def _register(code: CodeType) -> None:
    ANSWERING[id(code)] = code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _register(constant)
