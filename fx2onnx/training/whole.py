"""Linear layers, attention and batch norms in training graphs: each one operator forward, and its gradient in few.

Below autograd PyTorch splits the first two into some ten and twenty views and products each. Through ``torch.cond`` and activation
checkpoints autograd follows the branch taken.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import checkpoint

from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import THREAD, answers_for_caller, put_name
from fx2onnx.torchcompat.dispatch import in_function_transform, takes_tangents
from fx2onnx.torchcompat.versions import AROUND

_LIBRARY: Any = torch.library.Library("fx2onnx", "FRAGMENT")  # type: ignore[no-untyped-call]
SCHEMAS = {
    "linear": "(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    "linear_backward": "(Tensor grad, Tensor x, Tensor weight, bool[3] mask) -> (Tensor, Tensor, Tensor)",
    "attention": "(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale) -> (Tensor, Tensor)",
    "attention_backward": (
        "(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor weights, float scale) -> (Tensor, Tensor, Tensor)"
    ),
}
"""Translated by ``forms.py``. ``weights`` [*, queries, keys] are what values are weighted with; ``mask`` says which of
the gradients of x, weight and bias are wanted.
"""


def _attention_types(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object) -> Any:
    rows = query.shape[:-1]
    return query.new_empty([*rows, value.shape[-1]]), query.new_empty([*rows, key.shape[-2]])


def _linear_types(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mask: list[bool]) -> Any:
    sizes = (x.shape, weight.shape, weight.shape[:1])
    return tuple(grad.new_empty(each) if wanted else None for each, wanted in zip(sizes, mask, strict=True))


_FAKES: dict[str, Callable[..., Any]] = {
    "linear": lambda x, weight, bias: x.new_empty([*x.shape[:-1], weight.shape[0]]),
    "linear_backward": _linear_types,
    "attention": _attention_types,
    "attention_backward": lambda grad, query, key, value, weights, scale: (
        query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)
    ),
}  # fmt: skip
for _name, _schema in SCHEMAS.items():
    _LIBRARY.define(_name + _schema)
    torch.library.register_fake(f"fx2onnx::{_name}", _FAKES[_name], lib=_LIBRARY)
_OPS: Any = torch.ops.fx2onnx
Gradients = tuple[torch.Tensor | None, ...]


def _is_differentiated() -> bool:
    """Return whether the gradient that is computed has gradients itself, or is one of a function transform: of PyTorch's operators."""
    return torch.is_grad_enabled() or in_function_transform()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _OPS.linear(x, weight, bias)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        if not _is_differentiated():
            return _OPS.linear_backward(grad, x, weight, list(ctx.needs_input_grad))  # type: ignore[no-any-return]
        of_x, of_weight, of_bias = ctx.needs_input_grad
        over = (grad.flatten(0, -2).t() @ x.flatten(0, -2)) if of_weight else None
        return grad @ weight if of_x else None, over, grad.sum(list(range(grad.dim() - 1))) if of_bias else None


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
    ) -> torch.Tensor:
        result, weights = _OPS.attention(query, key, value, mask, scale)
        ctx.save_for_backward(query, key, value, weights)
        ctx.mask, ctx.scale = mask, scale
        return result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        *operands, weights = ctx.saved_tensors
        if not _is_differentiated():
            return *_OPS.attention_backward(grads[0], *operands, weights, ctx.scale), None, None
        with torch.enable_grad():
            query, key, value = (each.view_as(each) for each in operands)  # one may be computed from another
            scores = query @ key.transpose(-2, -1) * ctx.scale
            mask = ctx.mask
            if mask is not None:
                scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, -math.inf)
            result = torch.ops.aten._safe_softmax(scores, -1) @ value
        wanted = [each for each in (query, key, value) if each.requires_grad]
        found = iter(torch.autograd.grad(result, wanted, grads[0], create_graph=True))
        return *(next(found) if each.requires_grad else None for each in (query, key, value)), None, None


def _may_be_whole(*tensors: torch.Tensor | None) -> bool:
    """Return whether the gradient of these operands is the usual one."""
    given = [tensor for tensor in tensors if tensor is not None]
    first = given[0]
    return (
        THREAD.captures
        and torch.is_grad_enabled()
        and first.is_floating_point()
        and all(tensor.dtype == first.dtype and tensor.layout == torch.strided for tensor in given)
        and any(tensor.requires_grad for tensor in given)
        and not torch.is_autocast_enabled("cpu")
        and not in_function_transform()
        and not takes_tangents()
    )


def _linear(plain: Callable[..., Any]) -> Callable[..., Any]:
    @answers_for_caller
    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        fits = input.dim() > 1 and weight.dim() == 2 and (bias is None or bias.shape == weight.shape[:1])
        if fits and 0 != input.shape[-1] == weight.shape[1] and _may_be_whole(input, weight, bias):
            return _Linear.apply(input, weight, bias)  # type: ignore[no-untyped-call, no-any-return]
        return plain(input, weight, bias)  # type: ignore[no-any-return]

    return linear


def _attention(plain: Callable[..., Any]) -> Callable[..., Any]:
    @answers_for_caller
    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        asked = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
        is_alike = (
            query.dim() == key.dim() == value.dim() > 2 and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
        )
        fits = is_alike and query.shape[-1] == key.shape[-1] and key.shape[-2] == value.shape[-2]
        fits = fits and not dropout_p and is_causal is False and not enable_gqa and isinstance(scale, float | None)
        if attn_mask is not None:
            has_dtype = attn_mask.dtype in (torch.bool, query.dtype)
            fits = fits and has_dtype and not attn_mask.requires_grad and attn_mask.dim() <= query.dim()
        if not fits or not isinstance(query.shape[-1], int) or not _may_be_whole(query, key, value):
            return plain(query, key, value, **asked, enable_gqa=enable_gqa)  # type: ignore[no-any-return]
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        return _Attention.apply(query, key, value, attn_mask, factor)  # type: ignore[no-untyped-call, no-any-return]

    return scaled_dot_product_attention


def _batch_norm(plain: Callable[..., Any]) -> Callable[..., Any]:
    @answers_for_caller
    def batch_norm(
        input: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        """``torch.batch_norm`` comes to this operator by three others, of which Python sees each."""
        count = math.prod(input.shape[2:]) * input.shape[0]
        fits = training and eps > 0 and running_mean is not None and running_var is not None
        if fits and isinstance(count, int) and count > 1 and _may_be_whole(input, weight, bias):
            operands = (input, weight, bias, running_mean, running_var)
            return torch.ops.aten._native_batch_norm_legit.default(*operands, True, momentum, eps)[0]  # type: ignore[no-any-return]
        return plain(input, running_mean, running_var, weight, bias, training, momentum, eps)  # type: ignore[no-any-return]

    return batch_norm


_AROUND = {"linear": _linear, "scaled_dot_product_attention": _attention, "batch_norm": _batch_norm}


@contextlib.contextmanager
def kept_whole() -> Iterator[None]:
    """While a module is captured, linear layers, attention and batch norms are such operators."""
    with Changes():
        for name, around in _AROUND.items():
            put_name(vars(F), name, around(getattr(F, name)))
        yield


@contextlib.contextmanager
def run_once() -> Iterator[None]:
    """Checkpoints of this thread are plain calls. Run again in the backward pass, what is checkpointed would draw other random
    numbers; and autograd takes no gradients of chosen tensors through reentrant ones, in which, without an argument that
    requires a gradient, nothing has one.
    """
    thread, kind = get_ident(), checkpoint.CheckpointFunction
    plain, around = kind.apply, getattr(checkpoint, AROUND)

    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        if get_ident() != thread:
            return plain(function, preserve_rng_state, *args)  # type: ignore[no-untyped-call]
        is_tracked = any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
        with torch.set_grad_enabled(is_tracked and torch.is_grad_enabled()):
            return function(*args)

    def around_nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
        if get_ident() != thread:
            yield from around(*args, **kwargs)
        else:
            yield

    with Changes():
        put_name(kind, "apply", staticmethod(apply))
        put_name(vars(checkpoint), AROUND, around_nothing)
        yield


@contextlib.contextmanager
def decided_by_python() -> Iterator[None]:
    """Let ``torch.cond`` of this thread be Python's ``if`` where gradients are on: both branches are captured, each
    with its gradients. A nested graph has none.
    """
    thread, plain = get_ident(), torch.cond

    def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
        if get_ident() != thread or not torch.is_grad_enabled():
            return plain(pred, true_fn, false_fn, operands)  # type: ignore[arg-type]
        return true_fn(*operands) if pred else false_fn(*operands)

    with Changes():
        put_name(vars(torch), "cond", cond)
        yield
