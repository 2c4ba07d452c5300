"""Let the callers of a function reach another one: by its code object, so it does not matter under which names they have
it, and no class changes (torch.nn.Module has thousands of subclasses, whose caches would have to be forgotten).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any


class Exchange:
    """``function`` calls ``replacement(original)`` while ``on``; ``original`` computes what it computes otherwise."""

    def __init__(self, function: FunctionType, replacement: Callable[[FunctionType], Callable[..., Any]]) -> None:
        self.function = function
        self.code = function.__code__
        original = FunctionType(
            self.code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        called = functools.wraps(function)(replacement(original))
        name = f"__fx2onnx_{function.__qualname__.replace('.', '_').replace('<', '').replace('>', '')}"
        self._put_in_place(_calling(name, function.__name__, self.code.co_freevars), {name: called})

    @classmethod
    def of_code(cls, function: FunctionType, code: CodeType, **names: Any) -> Exchange:
        """``function`` runs ``code``, which finds ``names`` among the function's globals: no frame more than before."""
        made = cls.__new__(cls)
        made.function = function
        made.code = function.__code__
        made._put_in_place(code, names)
        return made

    def _put_in_place(self, code: CodeType, names: dict[str, Any]) -> None:
        self._calling = code.replace(co_filename=self.code.co_filename, co_firstlineno=self.code.co_firstlineno)
        # The names stay: another thread may have entered the exchanged code when this one ends the exchange.
        self.function.__globals__.update(names)

    def still_fits(self, function: FunctionType) -> bool:
        """Whether this is for ``function`` with the code that it has now."""
        return self.function is function and (function.__code__ is self.code or function.__code__ is self._calling)

    def on(self) -> bool:
        """Exchange the code. Returns whether it was not so already (in a capture around this one)."""
        if self.function.__code__ is self._calling:
            return False
        self.function.__code__ = self._calling
        return True

    def off(self) -> None:
        """The function's own code again."""
        self.function.__code__ = self.code


def _calling(name: str, function: str, cells: tuple[str, ...]) -> CodeType:
    """Code of ``function`` that calls ``name``; it holds as many ``cells`` as the code in whose place it is put."""
    lines = ["def outer():", *(f"    {cell} = None" for cell in cells), f"    def {function}(*args, **kwargs):"]
    lines += [
        f"        return {name}(*args, **kwargs)",
        *(f"        {cell}" for cell in cells),
        f"    return {function}",
    ]
    space: dict[str, Any] = {}
    exec("\n".join(lines), space)
    code: CodeType = space["outer"]().__code__
    return code
