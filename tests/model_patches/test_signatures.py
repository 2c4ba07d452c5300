"""The functions that a patch serves for, and what their calls become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fx2onnx.model_patches.patching import Unfit, arguments_of, fit_of

# What a patch is written for, and what a library's function may look like.


def known(x: Any, factor: float = 2.0) -> Any: ...
def more(x: Any, factor: float = 2.0, bias: float = 0.0) -> Any: ...
def more_between(x: Any, bias: float = 0.0, factor: float = 2.0, *rest: Any, **others: Any) -> Any: ...
def more_first(bias: Any, x: Any, factor: float = 2.0) -> Any: ...
def less(x: Any) -> Any: ...
def renamed(y: Any, factor: float = 2.0) -> Any: ...
def other_default(x: Any, factor: float = 3.0) -> Any: ...
def by_keyword(x: Any, *, factor: float = 2.0) -> Any: ...
def around(original: Any, x: Any, *args: Any, **kwargs: Any) -> Any: ...
def around_all(original: Any, x: Any, factor: float = 2.0) -> Any: ...
def with_others(x: Any, factor: float = 2.0, **kwargs: Any) -> Any: ...
def old_cache(x: Any, past_key_values: Any = None, **kwargs: Any) -> Any: ...
def new_cache(x: Any, cache: Any = None, **kwargs: Any) -> Any: ...
def both_caches(x: Any, cache: Any = None, past_key_values: Any = None) -> Any: ...
def around_all_cache(original: Any, x: Any, cache: Any = None) -> Any: ...
def around_cache(original: Any, x: Any, cache: Any = None, **kwargs: Any) -> Any: ...


@pytest.mark.parametrize(
    ("compute", "function", "args", "kwargs", "expected"),
    [
        (known, known, (1, 3.0), {}, ((1, 3.0), {})),
        (known, more, (1, 3.0), {}, ((), {"x": 1, "factor": 3.0})),
        (known, more, (1, 3.0, 0.0), {}, ((), {"x": 1, "factor": 3.0})),
        (known, more, (1,), {"bias": 0.0}, ((), {"x": 1})),
        (known, more_between, (1, 0.0, 3.0), {}, ((), {"x": 1, "factor": 3.0})),
        (known, less, (1,), {}, ((), {"x": 1})),
        (with_others, more, (1,), {"bias": 0.0}, ((), {"x": 1})),
        (with_others, with_others, (1,), {"any": 5}, ((1,), {"any": 5})),
        (around, more, (1, 3.0), {"bias": 2.0}, ((1, 3.0), {"bias": 2.0})),
        (around_all, more, (1, 3.0), {}, ((), {"x": 1, "factor": 3.0})),
        (new_cache, old_cache, (1,), {"past_key_values": 4, "z": 5}, ((1,), {"cache": 4, "z": 5})),
        (new_cache, old_cache, (1, 4), {}, ((1, 4), {})),
        (around_cache, old_cache, (1,), {"past_key_values": 4}, ((1,), {"cache": 4})),
        (around, old_cache, (1,), {"past_key_values": 4}, ((1,), {"past_key_values": 4})),
        (new_cache, both_caches, (1,), {"cache": 4}, ((), {"x": 1, "cache": 4})),
    ],
)
def test_calls_that_say_what_the_patch_knows(
    compute: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], expected: Any
) -> None:
    fit = fit_of(compute, function, "transformers", around=compute.__name__.startswith("around"))
    assert fit.call(args, kwargs) == expected


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "said"),
    [
        (more, (1, 3.0, 2.0), {}, "bias"),
        (more, (1,), {"bias": False}, "bias"),  # which equals 0.0, and may mean something else
        (more_between, (1, 2.0), {}, "bias"),
        (more_between, (1,), {"any": 5}, "any"),
        (more_between, (1, 0.0, 2.0, 7), {}, "4 arguments by position"),
    ],
)
def test_calls_that_say_more(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(Unfit, match=f"it is called with {said}$"):
        fit_of(known, function, "made").call(args, kwargs)


@pytest.mark.parametrize(
    ("compute", "names", "function", "change"),
    [
        (known, (), None, "this version of the library has no such function"),
        (known, (), dict, "it is a type, no plain function"),
        (known, (), more_first, "it takes (bias, x, factor=2.0)"),
        (known, (), renamed, "it takes (y, factor=2.0)"),
        (known, (), other_default, "it takes (x, factor=3.0)"),
        (known, (), by_keyword, "it takes (x, *, factor=2.0)"),
        (around, (), renamed, "it takes (y, factor=2.0)"),
        (around, ("bias",), known, "it takes no bias"),
        (around_all, (), less, "it takes (x)"),
        (around_all, (), more_between, "it takes (x, bias=0.0, factor=2.0, *rest, **others)"),
        (around, ("cache",), known, "it takes no cache"),
    ],
)
def test_functions_that_are_others(
    compute: Callable[..., Any], names: tuple[str, ...], function: Any, change: str
) -> None:
    with pytest.raises(Unfit) as caught:
        fit_of(compute, function, "made", around=compute.__name__.startswith("around"), names=names)
    assert str(caught.value) == change


def test_a_name_is_new_in_the_library_that_renamed_it() -> None:
    fit_of(around, old_cache, "transformers", around=True, names=("cache",))
    with pytest.raises(Unfit):
        fit_of(new_cache, old_cache, "made").call((1,), {"past_key_values": 4})


def test_a_function_with_both_names_has_two_parameters() -> None:
    with pytest.raises(Unfit, match="it is called with past_key_values"):
        fit_of(around_all_cache, both_caches, "transformers", around=True).call((1,), {"past_key_values": 4})


def test_arguments_under_the_names_of_patches() -> None:
    assert arguments_of(old_cache, "transformers", (1,), {"z": 5}) == {"x": 1, "cache": None, "kwargs": {"z": 5}}
    assert arguments_of(old_cache, "made", (1, 2), {})["past_key_values"] == 2
