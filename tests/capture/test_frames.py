"""Who asks: functions that answer for their caller are passed over by their code, whatever file they are of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fx2onnx
from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import CodePatch, answers_for_caller
from fx2onnx.base.errors import UserError
from fx2onnx.capture.captured import Captured, where_of
from fx2onnx.capture.driver import capture
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.capture.shapes import symnode
from fx2onnx.cli.outcome import reports_errors
from fx2onnx.torchcompat import frames
from fx2onnx.torchcompat.frames import asking_frame, is_user, location_at, user_location, user_location_of

BOTH = pytest.mark.parametrize("is_registered", [True, False], ids=["registered", "not registered"])
ELSEWHERE = "/elsewhere/renamed.py"


def registered_if(is_registered: bool, function: Any) -> Any:
    """``function``, with a code object of its own: what is registered stays so."""
    function.__code__ = function.__code__.replace()
    return answers_for_caller(function) if is_registered else function


def compiled(file: str) -> FunctionType:
    """A function that calls what it gets, as if it stood in ``file``; each is of a code object of its own."""
    space: dict[str, Any] = {}
    exec(compile("def ask(look):\n    return look()\n", file, "exec"), space)
    return cast(FunctionType, space["ask"])


def name_of(frame: FrameType | None) -> str:
    return frame.f_code.co_name if frame is not None else ""


@BOTH
@pytest.mark.parametrize("file", [ELSEWHERE, __file__, frames.__file__, symnode.__file__])
def test_the_file_of_a_function_does_not_decide_whether_it_answers(file: str, is_registered: bool) -> None:
    ask = registered_if(is_registered, compiled(file))
    expected = "test_the_file_of_a_function_does_not_decide_whether_it_answers" if is_registered else "ask"
    assert name_of(ask(asking_frame)) == expected


@pytest.mark.parametrize("window", ["hanning", "hamming", "blackman", "bartlett"])
def test_the_line_that_calls_a_library_is_the_users(window: str) -> None:
    """The size is needed in NumPy's code."""
    call = getattr(np, window)
    with pytest.raises(UserError, match="E105") as caught:
        fx2onnx.export(
            lambda x: x * torch.from_numpy(call(x.shape[0])), (torch.ones(5),), dynamic_shapes={"x": {0: "n"}}
        )
    assert caught.value.where is not None
    assert caught.value.where.file == __file__


def test_a_library_is_the_place_where_nobody_else_calls_it() -> None:
    ask = compiled(np.__file__)
    asked = ask(user_location)
    with pytest.raises(TypeError, match="not callable") as caught:
        ask(None)
    inner = caught.tb.tb_next
    places = [asked, user_location_of(caught.value), user_location_of(caught.value.with_traceback(inner))]
    assert [place and place.file for place in places] == [__file__, __file__, np.__file__]


@pytest.mark.parametrize("file", [ELSEWHERE, frames.__file__])
def test_no_function_that_answers_is_the_users(file: str) -> None:
    own, theirs = answers_for_caller(compiled(file)), compiled(file)
    assert own.__code__ == theirs.__code__, "equal code is told apart"
    assert not is_user(own.__code__)
    assert is_user(theirs.__code__) == (file == ELSEWHERE)


def test_functions_inside_answer_too_and_what_is_wrapped_does_not() -> None:
    @answers_for_caller
    def made() -> Callable[..., Any]:
        return lambda look: next(ask(look) for ask in [lambda look: look()])

    def wrapped(look: Callable[[], Any]) -> Any:
        return look()

    @answers_for_caller
    @functools.wraps(wrapped)
    def wrapper(*args: Any) -> Any:
        return wrapped(*args)

    assert name_of(made()(asking_frame)) == "test_functions_inside_answer_too_and_what_is_wrapped_does_not"
    assert name_of(wrapper(asking_frame)) == "wrapped"
    assert wrapper.__wrapped__ is wrapped


def test_methods_and_properties_of_a_class_answer() -> None:
    @answers_for_caller
    class Size:
        @property
        def known(self) -> str:
            return self.asked()

        def asked(self) -> str:
            return name_of(asking_frame())

    assert Size().known == "test_methods_and_properties_of_a_class_answer"


@BOTH
def test_a_patch_asks_who_called_the_patched_function(is_registered: bool) -> None:
    def looked_up() -> str:
        return "nobody"

    def asker() -> str:
        return looked_up()

    def replacement(original: FunctionType) -> Callable[..., Any]:
        return cast(Callable[..., Any], registered_if(is_registered, lambda: name_of(asking_frame())))

    patch = CodePatch(cast(FunctionType, looked_up), replacement, "a test")
    with Changes():
        patch.put_in()
        assert asker() == ("asker" if is_registered else "<lambda>")
    assert asker() == "nobody"


@BOTH
@pytest.mark.parametrize("kind", [TorchFunctionMode, TorchDispatchMode])
def test_a_mode_that_answers_is_passed_over(kind: type, is_registered: bool) -> None:
    def handle(self: object, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None) -> Any:
        names.append(getattr(user_location(), "function", None))
        return func(*args, **(kwargs or {}))

    def user(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    names: list[str | None] = []
    method = "__torch_function__" if kind is TorchFunctionMode else "__torch_dispatch__"
    mode = type("Mode", (kind,), {method: registered_if(is_registered, handle)})()
    x = torch.zeros(2)
    with mode:
        user(x)
    assert set(names) == {"user" if is_registered else "handle"}


def captured(module: torch.nn.Module) -> Captured:
    options = CaptureOptions(strategy="fake", dynamic_shapes={"x": {0: "n"}}, data_branches="error")
    return capture(module, (torch.zeros(6, 3),), None, options)


@BOTH
def test_nodes_and_sizes_name_the_line_of_who_called_a_function_that_answers(is_registered: bool) -> None:
    def is_long(x: torch.Tensor) -> bool:
        return bool(x.shape[0] > 4)

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    is_long, shifted = registered_if(is_registered, is_long), registered_if(is_registered, shifted)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return shifted(x) if is_long(x) else x

    result = captured(Model())
    (node,) = [node for node in result.graph.nodes if node.op == "call_function"]
    where = where_of(node)
    assert where is not None
    assert where.function == ("forward" if is_registered else "shifted")
    (assumed,) = result.assumptions
    assert assumed.where is not None
    assert assumed.where.function == ("forward" if is_registered else "is_long")


def test_equal_code_in_two_files_has_two_places() -> None:
    one, two = compiled("/one/model.py").__code__, compiled("/two/model.py").__code__
    assert one == two
    assert [location_at(code, 2).file for code in (one, two)] == ["/one/model.py", "/two/model.py"]


def test_what_called_a_command_is_no_place_of_the_user() -> None:
    here = user_location()
    assert here is not None
    assert here.file == __file__
    assert reports_errors(user_location)() is None
    inner = reports_errors(lambda: user_location())()
    assert inner is not None
    assert inner.function == "<lambda>"
