"""Kernels of GPU packages: the mathematics of each against loops over single numbers, and exported for every size."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch

from fx2onnx.model_patches import stand_ins
from tests.model_patches.support import patched
from tests.support import check, flat

Tensor = torch.Tensor
FLASH = "flash_attn.flash_attn_interface"
SCAN = "mamba_ssm.ops.selective_scan_interface"
TRITON = "mamba_ssm.ops.triton"
CONV = "causal_conv1d.causal_conv1d_interface"
DELTA = "fla.ops.gated_delta_rule"


class Kernel(NamedTuple):
    """A call of a kernel and a reference of it."""

    target: str
    call: Callable[..., Any]
    """``call(kernel, *inputs)``."""
    reference: Callable[..., Any]
    inputs: Callable[[int], tuple[Tensor, ...]]
    """The inputs at a size, which is dynamic on ``axes``."""
    axes: tuple[Any, ...] = ()
    """By input, the axes that are dynamic."""


def _attended(
    q: Tensor, k: Tensor, v: Tensor, sees: Callable[..., Any], bias: Any = None, scale: Any = None, cap: float = 0
) -> Any:
    """Query by query; sees(i, j): i counts as if the last query stood beside the last key."""
    out, (rows, columns) = torch.zeros(*q.shape[:3], v.shape[-1]), (q.shape[1], k.shape[1])
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            of = h * k.shape[2] // q.shape[2]
            for i in range(rows):
                place = i + columns - rows
                seen = [j for j in range(columns) if sees(place, j)]
                if seen:
                    scores = k[b, seen, of] @ q[b, i, h] * (scale or q.shape[-1] ** -0.5)
                    scores = torch.tanh(scores / cap) * cap if cap else scores
                    scores = scores if bias is None else scores + torch.tensor([bias(b, h, place, j) for j in seen])
                    out[b, i, h] = torch.softmax(scores, 0) @ v[b, seen, of]
    return out


def _random(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def _any(i: int, j: int) -> bool:
    return True


def _causal(i: int, j: int) -> bool:
    return j <= i


def _qkv(n: int) -> tuple[Tensor, ...]:
    return _random(2, n, 4, 8), _random(2, 5, 2, 8), _random(2, 5, 2, 8) * 2


_SLOPES = torch.tensor([0.5, 0.25, 0.125, 1.0])
_KEYS = ((0, 1), (0,), (0,))
_ENDS = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
_KEY_ENDS = torch.tensor([0, 2, 6, 10], dtype=torch.int32)


def _packed(
    q: Tensor, k: Tensor, v: Tensor, ends: Any, key_ends: Any, sees: Callable[..., Any], bias: Any = None
) -> Any:
    """Sequence by sequence."""
    parts = []
    for at, (one, other) in enumerate(zip(pairwise(ends), pairwise(key_ends), strict=True)):
        of = slice(*other)
        found = None if bias is None else lambda b, *more, at=at: bias(at, *more)
        parts.append(_attended(q[None, slice(*one)], k[None, of], v[None, of], sees, found)[0])
    return torch.cat(parts)


def _tokens(n: int) -> tuple[Tensor, ...]:
    return _random(9, 2, 4), _random(10, 2, 4), _random(10, 2, 4), torch.tensor([0, n % 3, n % 3 + 2, 9]), _KEY_ENDS


def _with_cache(kernel: Any, q: Tensor, key: Tensor, value: Tensor, new: Tensor) -> Any:
    key, value = key.clone(), value.clone()
    lengths = torch.tensor([1, 3], dtype=torch.int32)
    return kernel(q, key, value, new, new * 2, cache_seqlens=lengths, causal=True), key, value


def _with_cache_reference(q: Tensor, key: Tensor, value: Tensor, new: Tensor) -> Any:
    key, value, out = key.clone(), value.clone(), []
    for b, length in enumerate((1, 3)):
        end = length + new.shape[1]
        key[b, length:end], value[b, length:end] = new[b], new[b] * 2
        out.append(_attended(q[b : b + 1], key[b : b + 1, :end], value[b : b + 1, :end], _causal))
    return torch.cat(out), key, value


def _rotary(x: Tensor, angles: Tensor, interleaved: bool, offset: int) -> Tensor:
    out, half = x.clone(), angles.shape[1]
    for i in range(x.shape[1]):
        for pair in range(half):
            one, other = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
            cos, sin = angles[i + offset, pair].cos(), angles[i + offset, pair].sin()
            out[:, i, :, one] = x[:, i, :, one] * cos - x[:, i, :, other] * sin
            out[:, i, :, other] = x[:, i, :, one] * sin + x[:, i, :, other] * cos
    return out


def _scanned(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor) -> Any:
    B, C = (part if part.dim() == 4 else part[:, None] for part in (B, C))
    B, C = (part.repeat_interleave(u.shape[1] // part.shape[1], dim=1) for part in (B, C))
    delta, state, out = torch.nn.functional.softplus(delta + 0.5), torch.zeros(*u.shape[:2], A.shape[1]), []
    for t in range(u.shape[2]):
        step = delta[..., t, None]
        state = torch.exp(A * step) * state + B[..., t] * step * u[..., t, None]
        out.append((state * C[..., t]).sum(-1) + D * u[..., t])
    return torch.stack(out, -1) * torch.nn.functional.silu(z), state


def _scan_inputs(n: int, *groups: int) -> tuple[Tensor, ...]:
    u, read = _random(2, 4, n), (_random(2, *groups, 3, n), _random(2, *groups, 3, n) * 2)
    return u, u.flip(1), -_random(4, 3).abs(), *read, _random(4), u.roll(1, 1)


def _scan_call(kernel: Any, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor) -> Any:
    return kernel(u, delta, A, B, C, D, z, torch.full((4,), 0.5), True, return_last_state=True)


def _duality(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, number: Tensor) -> Any:
    B, C = (part.repeat_interleave(x.shape[2] // part.shape[2], dim=2) for part in (B, C))
    state, out, dt = (
        torch.ones(*x.shape[:1], *x.shape[2:], B.shape[-1]),
        [],
        torch.nn.functional.softplus(dt).clamp(max=0.9),
    )
    for t in range(x.shape[1]):
        state = state * ((number[:, t] == number[:, t - 1]) if t else torch.ones(2))[:, None, None, None]
        state = (
            state * torch.exp(A * dt[:, t])[..., None, None]
            + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        )
        out.append((state * C[:, t, :, None]).sum(-1) + D[:, None] * x[:, t])
    return torch.stack(out, 1) * torch.nn.functional.silu(x), state


def _duality_inputs(n: int) -> tuple[Tensor, ...]:
    parts = (
        _random(2, n, 4, 3),
        _random(2, n, 4),
        -_random(4).abs(),
        _random(2, n, 2, 5),
        _random(2, n, 2, 5) * 2,
        _random(4),
    )
    return *parts, (torch.arange(2 * n).reshape(2, n) % n) * 3 // (n + 1)


def _duality_call(
    kernel: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, number: Tensor
) -> Any:
    more = {"dt_softplus": True, "dt_limit": (0.0, 0.9), "return_final_states": True}
    return kernel(x, dt, A, B, C, 8, D, x, initial_states=torch.ones(2, 4, 3, 5), seq_idx=number, **more)


def _update(kernel: Any, state: Tensor, x: Tensor, A: Tensor, read: Tensor) -> Any:
    state = state.clone()
    return kernel(state, x, x * 2, A, read, read + 1, x[0], x, x[0], dt_softplus=True), state


def _updated(state: Tensor, x: Tensor, A: Tensor, read: Tensor) -> Any:
    wide = read if read.dim() == 2 else read.repeat_interleave(x.shape[1] // read.shape[1], dim=1)
    wide = wide.unsqueeze(-2)
    dt = torch.log1p(torch.exp(x * 2 + x[0]))[..., None]
    state = state * torch.exp(dt * A) + dt * wide * x[..., None]
    return ((state * (wide + 1)).sum(-1) + x * x[0]) * x * torch.sigmoid(x), state


def _convolved(x: Tensor, weight: Tensor, before: Tensor, number: Any = None) -> Tensor:
    whole, out, taps = torch.cat([before, x], -1), torch.zeros_like(x), weight.shape[1]
    for t in range(x.shape[-1]):
        for tap in range(taps):
            at = t - taps + 1 + tap
            same = (
                True
                if number is None
                else (number[:, at] == number[:, t] if at >= 0 else torch.zeros(x.shape[0]).bool())
            )
            out[..., t] += whole[..., at + before.shape[-1]] * weight[:, tap] * torch.as_tensor(same).reshape(-1, 1)
    return out


def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def _conv_update(kernel: Any, x: Tensor, weight: Tensor, state: Tensor) -> Any:
    state = state.clone()
    return kernel(x, state, weight, weight[:, 0], "silu"), state


def _conv_updated(x: Tensor, weight: Tensor, state: Tensor) -> Any:
    new = x[..., None] if x.dim() == 2 else x
    out = _silu(_convolved(new, weight, state) + weight[:, :1])
    return out.reshape(x.shape), torch.cat([state, new], -1)[..., -state.shape[-1] :]


def _inner(xz: Tensor, taps: Tensor, project: Tensor, steps: Tensor, last: Tensor) -> Tensor:
    x, z = xz.chunk(2, 1)
    x = _silu(_convolved(x, taps[:, 0], torch.zeros(*x.shape[:2], 2)))
    every = torch.einsum("bdl,rd->brl", x, project)
    delta = torch.einsum("brl,dr->bdl", every[:, :2], steps)
    out, _ = _scanned(x, delta, -torch.ones(4, 3), every[:, 2:5], every[:, 5:], torch.zeros(4), z)
    return torch.einsum("bdl,wd->blw", out, last)


def _delta(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Any:
    state, out = torch.ones(2, 2, q.shape[-1], v.shape[-1]), []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        new = (v[:, t] - torch.einsum("bhd,bhde->bhe", k[:, t], state)) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * new[:, :, None]
        out.append(torch.einsum("bhd,bhde->bhe", q[:, t], state) * 0.7)
    return torch.stack(out, 1), state


def _delta_inputs(n: int) -> tuple[Tensor, ...]:
    q, v = torch.nn.functional.normalize(_random(2, n, 2, 4), dim=-1), _random(2, n, 2, 3)
    return q, q.flip(1), v, -v[..., 0].abs(), v[..., 1].sigmoid()


def _delta_call(kernel: Any, *inputs: Tensor) -> Any:
    return kernel(*inputs, scale=0.7, initial_state=torch.ones(2, 2, 4, 3), output_final_state=True)


def _by_group(reduce: Callable[[Tensor], Any], none: float, size: int | None = None) -> Callable[..., Any]:
    """Group by group along axis 0."""

    def reduced(src: Tensor, index: Tensor) -> Tensor:
        groups = int(index.max()) + 1 if size is None else size
        empty = torch.full_like(src[0], none)
        return torch.stack([reduce(src[index == one]) if (index == one).any() else empty for one in range(groups)])

    return reduced


def _within_group(compute: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def computed(src: Tensor, index: Tensor) -> Tensor:
        return torch.stack([compute(src[index == index[i]])[(index[:i] == index[i]).sum()] for i in range(len(src))])

    return computed


def _graph(n: int) -> tuple[Tensor, ...]:
    return _random(n, 3), torch.arange(n) * 3 % 5 + 1


def _extreme(best: str) -> Callable[..., Any]:
    def found(src: Tensor, index: Tensor) -> Any:
        values = _by_group(lambda rows: getattr(rows, best)(0).values, 0)(src, index)
        places = torch.full(values.shape, len(src))
        for i in reversed(range(len(src))):
            places[index[i]] = torch.where(src[i] == values[index[i]], i, places[index[i]])
        return values, places

    return found


def _segments(n: int) -> tuple[Tensor, ...]:
    return _random(n, 3), torch.tensor([1, 3, 3, n - 1])


def _points(n: int) -> tuple[Tensor, ...]:
    return _random(n, 3), _random(4, 3) + 0.5, torch.arange(n) * 2 // n, torch.tensor([0, 0, 1, 1])


def _near(
    x: Tensor, y: Tensor, of: Tensor, other: Tensor, k: int = 3, r: float = math.inf, is_sorted: bool = True
) -> Tensor:
    pairs = []
    for i in range(len(y)):
        near = [(float((y[i] - x[j]).norm()), j) for j in range(len(x)) if of[j] == other[i]]
        near = [(d, j) for d, j in (sorted(near) if is_sorted else near) if d < r][:k]
        pairs += [(i, j) for _, j in near]
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T


def _edges(pairs: Tensor) -> Tensor:
    return torch.stack([pairs[1], pairs[0]])[:, pairs[0] != pairs[1]]


def _alone(x: Tensor) -> tuple[Tensor, ...]:
    return x, x, torch.zeros(len(x)), torch.zeros(len(x))


def _mask(name: str, *args: Any) -> Callable[..., Any]:
    """A call of xformers' attention with one of its masks."""

    def call(kernel: Any, q: Tensor, k: Tensor, v: Tensor) -> Any:
        made = getattr(sys.modules["xformers.ops"], name)
        return kernel(q, k, v, attn_bias=made(*args), scale=0.3)

    return call


def _same(n: int) -> tuple[Tensor, ...]:
    return _random(2, n, 2, 4), _random(2, 6, 2, 4), _random(2, 6, 2, 4) * 2


def _blocks(kernel: Any, one: Tensor, other: Tensor) -> Any:
    masks = sys.modules["xformers.ops.fmha.attn_bias"]
    mask, whole = masks.BlockDiagonalMask.from_tensor_list([one, other])
    return mask.split(kernel(whole, whole, whole, attn_bias=mask.make_causal()))


_TOP = lambda q, k, v: _attended(q, k, v, lambda i, j: j <= i - k.shape[1] + q.shape[1], scale=0.3)  # noqa: E731
_FLASH_CALL = {"causal": True, "window_size": (2, -1), "softcap": 1.5, "softmax_scale": 0.3}
_POSITIONS = ((2,), (2,), (), (2,), (2,), (), (2,))
_GROUPED = ((2,), (2,), (), (3,), (3,), (), (2,))
_ROWS = ((0,), (0,))

KERNELS = [
    Kernel(f"{FLASH}:flash_attn_func", lambda f, *x: f(*x), lambda *x: _attended(*x, _any), _qkv, _KEYS),
    Kernel(
        f"{FLASH}:flash_attn_func",
        lambda f, *x: f(*x, **_FLASH_CALL),
        lambda *x: _attended(*x, lambda i, j: i - 2 <= j <= i, None, 0.3, 1.5),
        _qkv,
        _KEYS,
    ),
    Kernel(
        f"{FLASH}:flash_attn_func",
        lambda f, *x: f(*x, window_size=(1, 2), alibi_slopes=_SLOPES, return_attn_probs=True)[0],
        lambda *x: _attended(*x, lambda i, j: i - 1 <= j <= i + 2, lambda b, h, i, j: -_SLOPES[h] * abs(i - j)),
        _qkv,
        _KEYS,
    ),
    Kernel(
        f"{FLASH}:flash_attn_qkvpacked_func",
        lambda f, x: f(x, causal=True),
        lambda x: _attended(*x.unbind(2), _causal),
        lambda n: (_random(2, n, 3, 2, 4),),
        ((0, 1),),
    ),
    Kernel(
        f"{FLASH}:flash_attn_kvpacked_func",
        lambda f, q, kv: f(q, kv, 0.0, 0.3, True),
        lambda q, kv: _attended(q, *kv.unbind(2), _causal, scale=0.3),
        lambda n: (_random(2, n, 4, 4), _random(2, 5, 2, 2, 4)),
        ((0, 1), (0,)),
    ),
    Kernel(
        f"{FLASH}:flash_attn_varlen_func",
        lambda f, q, k, v, a, b: f(q, k, v, a, b, 9, 10, causal=True, alibi_slopes=_SLOPES[:2]),
        lambda q, k, v, a, b: _packed(q, k, v, a, b, _causal, lambda at, h, i, j: -_SLOPES[h] * abs(i - j)),
        _tokens,
    ),
    Kernel(
        f"{FLASH}:flash_attn_varlen_func",
        lambda f, q, k, v, a, b: f(
            q, k, v, a, b, 9, 10, window_size=(1, 0), alibi_slopes=_SLOPES[:3, None] * _SLOPES[:2]
        ),
        lambda q, k, v, a, b: _packed(
            q, k, v, a, b, lambda i, j: i - 1 <= j <= i, lambda at, h, i, j: -_SLOPES[at] * _SLOPES[h] * abs(i - j)
        ),
        _tokens,
    ),
    Kernel(
        f"{FLASH}:flash_attn_varlen_qkvpacked_func",
        lambda f, x: f(x, _ENDS, 9, causal=True),
        lambda x: _packed(*x.unbind(1), _ENDS, _ENDS, _causal),
        lambda n: (_random(9, 3, 2, 4) * n,),
    ),
    Kernel(
        f"{FLASH}:flash_attn_varlen_kvpacked_func",
        lambda f, q, kv: f(q, kv, _ENDS, _KEY_ENDS, 9, 10),
        lambda q, kv: _packed(q, *kv.unbind(1), _ENDS, _KEY_ENDS, _any),
        lambda n: (_random(9, 2, 4) * n, _random(10, 2, 2, 4)),
    ),
    Kernel(
        f"{FLASH}:flash_attn_with_kvcache",
        _with_cache,
        _with_cache_reference,
        lambda n: (_random(2, 2, 4, 4), _random(2, n + 6, 2, 4), _random(2, n + 6, 2, 4) * 2, _random(2, 2, 2, 4)),
        ((), (1,), (1,), ()),
    ),
    *(
        Kernel(
            "flash_attn.layers.rotary:apply_rotary_emb",
            lambda f, x, angles, pairs=pairs: f(x, angles.cos(), angles.sin(), pairs, seqlen_offsets=2),
            lambda x, angles, pairs=pairs: _rotary(x, angles, pairs, 2),
            lambda n: (_random(2, n, 2, 6), _random(50, 2)),
            ((1,), ()),
        )
        for pairs in (False, True)
    ),
    Kernel("xformers.ops.fmha:memory_efficient_attention", _mask("LowerTriangularMask"), _TOP, _same, _KEYS),
    Kernel(
        "xformers.ops.fmha:memory_efficient_attention",
        _mask("LowerTriangularFromBottomRightMask"),
        lambda *x: _attended(*x, _causal, scale=0.3),
        _same,
        _KEYS,
    ),
    Kernel(
        "xformers.ops.fmha:memory_efficient_attention",
        _mask("LocalAttentionFromBottomRightMask", 1, 2),
        lambda *x: _attended(*x, lambda i, j: i - 1 <= j <= i + 2, scale=0.3),
        _same,
        _KEYS,
    ),
    Kernel(
        "xformers.ops.fmha:memory_efficient_attention",
        lambda f, q, k, bias: f(q, k, k, attn_bias=bias),
        lambda q, k, bias: _attended(
            q[:, :, None],
            k[:, :, None],
            k[:, :, None],
            _any,
            lambda b, h, i, j: bias[b, i - k.shape[1] + q.shape[1], j],
        )[:, :, 0],
        lambda n: (_random(2, n, 4), _random(2, 5, 4), _random(2, n, 5)),
        ((1,), (), (1,)),
    ),
    Kernel(
        "xformers.ops.fmha:memory_efficient_attention",
        _blocks,
        lambda one, other: [_attended(x, x, x, _causal) for x in (one, other)],
        lambda n: (_random(2, 3, 2, 4) * n, _random(1, 4, 2, 4)),
    ),
    *(
        Kernel(
            f"{SCAN}:selective_scan_fn", _scan_call, _scanned, lambda n, groups=groups: _scan_inputs(n, *groups), axes
        )
        for groups, axes in (((), _POSITIONS), ((2,), _GROUPED))
    ),
    Kernel(
        f"{SCAN}:mamba_inner_fn",
        lambda f, xz, *x: f(
            xz, x[0], None, *x[1:4], None, -torch.ones(4, 3), None, None, torch.zeros(4), torch.full((4,), 0.5)
        ),
        _inner,
        lambda n: (_random(2, 8, n), _random(4, 1, 3), _random(8, 4), _random(4, 2), _random(5, 4)),
        ((2,), (), (), (), ()),
    ),
    Kernel(f"{TRITON}.ssd_combined:mamba_chunk_scan_combined", _duality_call, _duality, _duality_inputs, ((1,), (1,), (), (1,), (1,), (), (1,))),
    Kernel(
        f"{TRITON}.selective_state_update:selective_state_update",
        _update,
        _updated,
        lambda n: (_random(n, 4, 3), _random(n, 4), -_random(4, 3).abs(), _random(n, 3)),
        ((0,), (0,), (), (0,)),
    ),
    Kernel(
        f"{TRITON}.selective_state_update:selective_state_update",
        _update,
        _updated,
        lambda n: (_random(n, 4, 2, 3), _random(n, 4, 2), -_random(4, 2, 3).abs(), _random(n, 2, 3)),
        ((0,), (0,), (), (0,)),
    ),
    *(
        Kernel(
            f"{TRITON}.layernorm_gated:rmsnorm_fn",
            lambda f, x, z, w, first=first: f(x, w, None, z, group_size=3, norm_before_gate=not first),
            lambda x, z, w, first=first: (
                (lambda y: torch.cat([p / (p.square().mean(-1, True) + 1e-6).sqrt() for p in y.split(3, -1)], -1) * w)(
                    x * _silu(z) if first else x
                )
                * (1 if first else _silu(z))
            ),
            lambda n: (_random(n, 6), _random(n, 6) * 2, _random(6)),
            ((0,), (0,), ()),
        )
        for first in (False, True)
    ),
    Kernel(
        f"{CONV}:causal_conv1d_fn",
        lambda f, x, w, before: f(x, w, w[:, 0], initial_states=before, return_final_states=True, activation="silu"),
        lambda x, w, before: (_silu(_convolved(x, w, before) + w[:, :1]), torch.cat([before, x], -1)[..., -2:]),
        lambda n: (_random(2, 4, n), _random(4, 3), _random(2, 4, 2)),
        ((2,), (), ()),
    ),
    Kernel(
        f"{CONV}:causal_conv1d_fn",
        lambda f, x, w, number: f(x, w, seq_idx=number),
        lambda x, w, number: _convolved(x, w, torch.zeros(2, 4, 2), number),
        lambda n: (_random(2, 4, n), _random(4, 3), (torch.arange(2 * n).reshape(2, n) * 2 // n).to(torch.int32)),
        ((2,), (), (1,)),
    ),
    *(
        Kernel(
            f"{CONV}:causal_conv1d_update",
            _conv_update,
            _conv_updated,
            lambda n, more=more: (_random(n, 4, *more), _random(4, 3), _random(n, 4, 5)),
            ((0,), (), (0,)),
        )
        for more in ((), (2,))
    ),
    *(
        Kernel(f"{DELTA}.{name}", _delta_call, _delta, _delta_inputs, ((1,),) * 5)
        for name in ("chunk:chunk_gated_delta_rule", "fused_recurrent:fused_recurrent_gated_delta_rule")
    ),
    *(
        Kernel(f"torch_scatter.scatter:{name}", lambda f, x, i: f(x, i, 0), _by_group(reduce, none), _graph, _ROWS)
        for name, reduce, none in (
            ("scatter_sum", lambda rows: rows.sum(0), 0),
            ("scatter_add", lambda rows: rows.sum(0), 0),
            ("scatter_mul", lambda rows: rows.prod(0), 1),
            ("scatter_mean", lambda rows: rows.mean(0), 0),
            ("scatter", lambda rows: rows.sum(0), 0),
        )
    ),
    *(Kernel(f"torch_scatter.scatter:scatter_{best}", lambda f, x, i: f(x, i, 0), _extreme(best), _graph, _ROWS) for best in ("min", "max")),
    Kernel(
        "torch_scatter.scatter:scatter",
        lambda f, x, i: f(x, i, dim=0, dim_size=9, reduce="max"),
        _by_group(lambda rows: rows.amax(0), 0, 9),
        _graph,
        _ROWS,
    ),
    Kernel(
        "torch_scatter.scatter:scatter_sum",
        lambda f, x, i: f(x.T, i, out=torch.ones(3, 6)),
        lambda x, i: _by_group(lambda rows: rows.sum(0), 0, 6)(x, i).T + 1,
        _graph,
        _ROWS,
    ),
    *(
        Kernel(
            f"torch_scatter.composite.softmax:{name}", lambda f, x, i: f(x, i, 0), _within_group(compute), _graph, _ROWS
        )
        for name, compute in (
            ("scatter_softmax", lambda rows: rows.softmax(0)),
            ("scatter_log_softmax", lambda rows: rows.log_softmax(0)),
        )
    ),
    *(
        Kernel(
            "torch_scatter.composite.std:scatter_std",
            lambda f, x, i, unbiased=unbiased: f(x, i, 0, unbiased=unbiased),
            _by_group(lambda rows, unbiased=unbiased: rows.std(0, unbiased and len(rows) > 1), 0),
            _graph,
            _ROWS,
        )
        for unbiased in (True, False)
    ),
    Kernel(
        "torch_scatter.segment_csr:segment_csr",
        lambda f, x, ends: (f(x, ends), f(x, ends, reduce="min")),
        lambda x, ends: [
            torch.stack([reduce(x[a:b]) if b > a else torch.zeros(3) for a, b in pairwise(ends)])
            for reduce in (lambda rows: rows.sum(0), lambda rows: rows.amin(0))
        ],
        _segments,
        ((0,), ()),
    ),
    Kernel(
        "torch_scatter.segment_csr:gather_csr",
        lambda f, x, ends: f(x[:3], ends),
        lambda x, ends: torch.cat([x[i : i + 1].expand(int(ends[i + 1] - ends[i]), -1) for i in range(3)]),
        _segments,
        ((0,), ()),
    ),
    Kernel(
        "torch_scatter.segment_coo:segment_coo",
        lambda f, x, i: f(x, i.sort().values),
        lambda x, i: _by_group(lambda rows: rows.sum(0), 0)(x, i.sort().values),
        _graph,
        _ROWS,
    ),
    Kernel("torch_scatter.segment_coo:gather_coo", lambda f, x, i: f(x, i // 2), lambda x, i: torch.stack([x[j // 2] for j in i]), _graph, _ROWS),
    Kernel(
        "torch_sparse.spmm:spmm",
        lambda f, x, i, dense: f(torch.stack([i, i - 1]), x[:, 0], 7, 5, dense),
        lambda x, i, dense: torch.zeros(7, 5).index_put((i, i - 1), x[:, 0], accumulate=True) @ dense,
        lambda n: (*_graph(n), _random(5, 2)),
        (*_ROWS, ()),
    ),
    Kernel("torch_cluster.knn:knn", lambda f, x, y, of, other: f(x, y, 3, of, other), _near, _points, ((0,), (), (0,), ())),
    Kernel(
        "torch_cluster.radius:radius",
        lambda f, x, y, of, other: f(x, y, 2.0, of, other, max_num_neighbors=2),
        lambda *x: _near(*x, 2, 2.0, False),
        _points,
        ((0,), (), (0,), ()),
    ),
    Kernel("torch_cluster.knn:knn_graph", lambda f, x: f(x, 2), lambda x: _edges(_near(*_alone(x))), lambda n: (_random(n, 3),), ((0,),)),
    Kernel(
        "torch_cluster.radius:radius_graph",
        lambda f, x: f(x, 1.5),
        lambda x: _edges(_near(*_alone(x), 33, 1.5, False)),
        lambda n: (_random(n, 3),),
        ((0,),),
    ),
]  # fmt: skip


def _of(kernel: Kernel) -> Any:
    module, _, name = kernel.target.partition(":")
    return getattr(importlib.import_module(module), name)


def _marked(*marks: Any) -> list[Any]:
    return [
        pytest.param(one, marks=[pytest.mark.compares(one.target), *marks], id=f"{at}-{one.target.partition(':')[2]}")
        for at, one in enumerate(KERNELS)
    ]


@pytest.mark.parametrize("kernel", _marked())
def test_computes_what_the_kernel_computes(kernel: Kernel) -> None:
    with stand_ins():
        function = _of(kernel)
        for size in (7, 4, 40):
            inputs = kernel.inputs(size)
            with patched():
                found = flat(kernel.call(function, *inputs))
            for got, wanted in zip(found, flat(kernel.reference(*inputs)), strict=True):
                torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=2e-4, atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("kernel", _marked())
def test_exports_every_size(kernel: Kernel) -> None:
    sample, *others = (kernel.inputs(size) for size in (7, 4, 19))
    shapes = tuple({axis: "batch" if axis == 0 else "n" for axis in axes} for axes in kernel.axes) or None
    with stand_ins():
        function = _of(kernel)
        names = ", ".join("abcdefg"[: len(sample)])
        forward = eval(f"lambda {names}: call(function, {names})", {"call": kernel.call, "function": function})
        check(forward, sample, others=others, dynamic_shapes=shapes)
