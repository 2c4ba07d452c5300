"""The ``else`` of a statement that is a branch of the file: it runs as a function of its own, and tells what its variables have behind it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import FrameType, FunctionType
from typing import Any

import torch

NAME = "_the_other_side"
"""The name of that function."""


def run_other_side(statements: Sequence[ast.stmt], frame: FrameType) -> Mapping[str, object]:
    """The variables to which the statements give values, as they run with the variables of the frame."""
    names = tuple(sorted({node.id for one in statements for node in ast.walk(one) if isinstance(node, ast.Name)}))
    held = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
    function = FunctionType(_code_of(tuple(statements), tuple(held), frame.f_code.co_filename), frame.f_globals)
    return function(**held)  # type: ignore[no-any-return]


def adds_in_place(statements: Sequence[ast.stmt], frame: FrameType) -> bool:
    """Return whether statements such as ``out += [h]`` change an object that is no tensor."""
    targets = [
        one.target.id for one in statements if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name)
    ]
    values = [frame.f_locals.get(name) for name in targets]
    return not all(isinstance(value, torch.Tensor) or is_number(value) for value in values)


def appended(statements: Sequence[ast.stmt]) -> list[str]:
    """The lists to which statements append, ``out.append(h)``."""
    return sorted(name for name, _ in filter(None, map(_appending, statements)))


def added_to(name: str) -> str:
    """The variable that has what the other side appends to a list."""
    return f"_added_to_{name}"


def is_flat(statements: Sequence[ast.stmt]) -> bool:
    """Return whether statements do nothing but give variables of the function values, and append one element to a list."""
    names = appended(statements)
    return bool(statements) and len(names) == len({*names}) and all(map(_gives_variables, statements))


def _appending(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [ast.expr() as value], [])):
            return name, value
    return None


def _as_assignment(statement: ast.stmt) -> ast.stmt:
    """``out.append(h)`` as an assignment; any other statement itself."""
    found = _appending(statement)
    if found is None:
        return statement
    made = ast.Assign([ast.Name(added_to(found[0]), ast.Store())], found[1])
    return ast.copy_location(made, statement)


def _gives_variables(statement: ast.stmt) -> bool:
    if _appending(statement) is not None:
        return True
    if not isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign) or statement.value is None:
        return isinstance(statement, ast.Pass)
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    parts = [part for one in targets for part in (one.elts if isinstance(one, ast.Tuple | ast.List) else [one])]
    return all(isinstance(part, ast.Name) for part in parts)


@lru_cache(maxsize=256)
def _code_of(statements: tuple[ast.stmt, ...], parameters: tuple[str, ...], file: str) -> Any:
    statements = tuple(map(_as_assignment, statements))
    named = [node for one in statements for node in ast.walk(one) if isinstance(node, ast.Name)]
    given = sorted({node.id for node in named if isinstance(node.ctx, ast.Store)})
    pairs = ast.Dict([ast.Constant(name) for name in given], [ast.Name(name, ast.Load()) for name in given])
    arguments = ast.arguments([], [ast.arg(name) for name in parameters], None, [], [], None, [])
    function = ast.FunctionDef(NAME, arguments, [*statements, ast.Return(pairs)], [])
    ast.copy_location(function, statements[0])
    module = compile(ast.fix_missing_locations(ast.Module([function], [])), file, "exec")
    return next(one for one in module.co_consts if hasattr(one, "co_code"))


def is_number(value: object) -> bool:
    """Return whether a value is a number of Python's that a tensor of one number can stand for."""
    return type(value) in (int, float, torch.SymInt)


def as_tensor(value: Any, like: object) -> torch.Tensor | None:
    """A number as a tensor, of the type of another value if that is a tensor of one number; None for anything else."""
    if isinstance(value, torch.Tensor):
        return value
    if not is_number(value):
        return None
    dtype = torch.float64 if type(value) is float else torch.int64
    if isinstance(like, torch.Tensor):
        if like.dim() or like.is_floating_point() is not (type(value) is float):
            return None
        dtype = like.dtype
    return torch.ops.aten.scalar_tensor.default(value, dtype=dtype)  # type: ignore[no-any-return]
