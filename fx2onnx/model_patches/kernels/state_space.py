"""Convolutions and recurrences of mamba_ssm, causal_conv1d and fla: scans over blocks of positions, for any length."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx2onnx.model_patches.kernels.attention import refuse
from fx2onnx.model_patches.patching import patches
from fx2onnx.model_patches.transformers.delta_rules import delta_rule
from fx2onnx.model_patches.transformers.prompt_states import chunk_scan, steps
from fx2onnx.model_patches.transformers.recurrences import scanned

_SCANS = "mamba_ssm.ops.selective_scan_interface"
_CONVOLUTIONS = "causal_conv1d.causal_conv1d_interface"
_ACTIVATIONS = (None, "silu", "swish")
_FORGOTTEN = -1e5
"""An exponent of a decay after which nothing is left, in float32, of what was before."""


def _grouped_per_channel(numbers: Tensor, batch: Any, channels: int, length: Any) -> Tensor:
    """B or C of ``selective_scan_fn``: [channels, states], [batch, states, length] or [batch, groups, states, length] ->
    [batch, groups, states, length].
    """
    if numbers.dim() == 2:
        return numbers[None, :, :, None].expand(batch, channels, -1, length)
    return numbers.unsqueeze(1) if numbers.dim() == 3 else numbers


@patches(f"{_SCANS}:selective_scan_fn", stands_in=("mamba_ssm",))
def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """state = exp(A delta) state + B delta u, output = C state + D u, times silu(z).

    Shapes:  u, delta, z [batch, channels, length], A [channels, states], B and C [channels, states], [batch, states, length] or
        [batch, groups, states, length], D and delta_bias [channels] -> [batch, channels, length], and the last state [batch,
        channels, states] where it is asked for.
    """
    if A.is_complex():
        refuse("selective_scan_fn", complex_A=True)
    batch, channels, length = u.shape
    B, C = (_grouped_per_channel(part.float(), batch, channels, length) for part in (B, C))
    groups = max(B.shape[1], C.shape[1])
    parts = [u.float(), delta.float()]
    if delta_bias is not None:
        parts[1] = parts[1] + delta_bias.float()[:, None]
    if groups == 1:
        (inputs, dt), decay, B, C = parts, A.float(), B.squeeze(1), C.squeeze(1)
    else:  # each group is a row of a batch
        B, C = (part.expand(batch, groups, -1, length).flatten(0, 1) for part in (B, C))
        inputs, dt = (torch.unflatten(part, 1, (groups, -1)).flatten(0, 1) for part in parts)
        decay = torch.unflatten(A.float(), 0, (groups, -1)).expand(batch, -1, -1, -1).flatten(0, 1)
    output, state = scanned(inputs, dt, decay, B, C, None, None, None, delta_softplus, True)
    output, state = (part.reshape(batch, channels, part.shape[-1]) for part in (output, state))
    if D is not None:
        output = output + u.float() * D.float()[:, None]
    if z is not None:
        output = output * F.silu(z.float())
    return (output.to(u.dtype), state) if return_last_state else output.to(u.dtype)


@patches(f"{_SCANS}:mamba_inner_fn", stands_in=("mamba_ssm",))
def mamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
) -> Tensor:
    """The inside of a Mamba layer: convolution, projections, scan, gate, projection.

    Shapes:  xz [batch, 2 * channels, length] -> [batch, length, width].
    """
    x, z = xz.chunk(2, dim=1)
    x = causal_conv1d_fn(x, conv1d_weight.squeeze(1), conv1d_bias, activation="silu")
    states, rank = A.shape[-1], delta_proj_weight.shape[1]
    projected = F.linear(x.mT, x_proj_weight)
    delta = F.linear(projected[..., :rank], delta_proj_weight).mT
    found: list[Any] = []
    for given, bias, part in (
        (B, B_proj_bias, projected[..., rank : rank + states]),
        (C, C_proj_bias, projected[..., -states:]),
    ):
        found.append(given if given is not None else (part if bias is None else part + bias).mT)
    output: Tensor = selective_scan_fn(x, delta, A, found[0], found[1], D, z, delta_bias, delta_softplus)
    return F.linear(output.mT, out_proj_weight, out_proj_bias)


@patches("mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined", stands_in=("mamba_ssm.ops.triton",))
def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    return_varlen_states: bool = False,
) -> Any:
    """state = exp(A dt) state + B dt x, output = C state + D x, times silu(z); a sequence of another ``seq_idx`` begins with nothing.

    Shapes:  x and z [batch, length, heads, e], dt [batch, length, heads], A [heads], B and C [batch, length, groups, d], D
        [heads] or [heads, e], seq_idx [batch, length] -> [batch, length, heads, e], and the last state [batch, heads, e, d].
    Raises:  UserError E107 for the states of packed sequences.
    """
    refuse("mamba_chunk_scan_combined", return_varlen_states=return_varlen_states)
    dt = steps(dt.float(), dt_bias, dt_softplus, dt_limit)
    decay = dt * A.float()
    if seq_idx is not None:
        is_new = F.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0))
        decay = decay.masked_fill(is_new[..., None], _FORGOTTEN)
    output, state = chunk_scan(x.float(), dt, decay, B, C, initial_states)
    if D is not None:
        output = output + (D if D.dim() == 2 else D[:, None]).float() * x.float()
    if z is not None:
        output = output * F.silu(z.float())
    return (output.to(x.dtype), state) if return_final_states else output.to(x.dtype)


@patches("mamba_ssm.ops.triton.selective_state_update:selective_state_update", stands_in=("mamba_ssm.ops.triton",))
def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    """One position of ``selective_scan_fn``, or of one with heads; the state is written in place.

    Shapes:  state [batch, (heads,) channels, states], x, dt, z [batch, (heads,) channels], A (without batch) as state, B and C
        [batch, (groups,) states] -> as x. Raises: UserError E107 for rows of a larger state.
    """
    refuse("selective_state_update", state_batch_indices=state_batch_indices)
    has_heads = state.dim() == 4
    whole = state if has_heads else state.unsqueeze(1)
    rows: list[Any] = [part if part is None or has_heads else part.unsqueeze(1) for part in (x, dt, B, C, z)]
    given: list[Any] = [None if part is None else part.float() for part in rows]
    inputs, dt, B, C, z = given
    weights: list[Any] = [part if part is None or has_heads else part.unsqueeze(0) for part in (A, D, dt_bias)]
    A, D, bias = weights
    dt = steps(dt, bias, dt_softplus, (-float("inf"), float("inf")))[..., None]
    B, C = (part.repeat_interleave(whole.shape[1] // part.shape[1], dim=1).unsqueeze(2) for part in (B, C))
    new = whole.float() * torch.exp(dt * A.float()) + dt * B * inputs[..., None]
    state.copy_(new if has_heads else new.squeeze(1))
    output: Tensor = (new * C).sum(dim=-1)
    if D is not None:
        output = output + inputs * D.float()
    if z is not None:
        output = output * F.silu(z)
    return (output if has_heads else output.squeeze(1)).to(x.dtype)


@patches("mamba_ssm.ops.triton.layernorm_gated:rmsnorm_fn", stands_in=("mamba_ssm.ops.triton",))
def rmsnorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    upcast: bool = True,
) -> Tensor:
    """x / sqrt(mean of x ** 2 in a group + eps) * weight + bias, times silu(z) behind it or before it.

    Shapes:  x and z [..., width], weight and bias [width] -> as x.
    """
    numbers = x.float() if upcast else x
    gate = None if z is None else F.silu(z.to(numbers.dtype))
    if gate is not None and not norm_before_gate:
        numbers = numbers * gate
    parts = torch.unflatten(numbers, -1, (-1, group_size or x.shape[-1]))
    output = (parts * torch.rsqrt(parts.square().mean(dim=-1, keepdim=True) + eps)).flatten(-2) * weight
    output = output if bias is None else output + bias
    return (output * gate if gate is not None and norm_before_gate else output).to(x.dtype)


@patches(f"{_CONVOLUTIONS}:causal_conv1d_fn", stands_in=("causal_conv1d",))
def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """A convolution of each channel with its own weights, over a position and those before it of the same ``seq_idx``.

    Shapes:  x [batch, channels, length], weight [channels, taps], seq_idx [batch, length], initial_states [batch, channels, taps -
        1] -> as x, and the last inputs, as initial_states, where they are asked for.
    """
    _check(activation)
    taps = weight.shape[1]
    whole = F.pad(x, (taps - 1, 0)) if initial_states is None else torch.cat([initial_states.to(x.dtype), x], dim=-1)
    if seq_idx is None:
        output = F.conv1d(whole.to(weight.dtype), weight[:, None], bias, groups=weight.shape[0])
    else:
        numbers = F.pad(seq_idx, (taps - 1, 0), value=-1)
        length, output = x.shape[-1], torch.zeros_like(x) if bias is None else bias[:, None].expand_as(x)
        for tap in range(taps):
            is_same = numbers[:, tap : tap + length] == seq_idx
            output = output + whole[..., tap : tap + length] * is_same[:, None] * weight[:, tap, None]
    output = (F.silu(output) if activation else output).to(x.dtype)
    if not return_final_states:
        return output
    last = whole[..., x.shape[-1] :]
    return output, last.clone() if final_states_out is None else final_states_out.copy_(last)


@patches(f"{_CONVOLUTIONS}:causal_conv1d_update", stands_in=("causal_conv1d",))
def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """``causal_conv1d_fn`` of new positions behind the last inputs, which are written in place.

    Shapes:  x [batch, channels] or [batch, channels, length], conv_state [batch, channels, taps - 1 or more] -> as x.
    Raises:  UserError E107 for a state that is a ring, and for rows of a larger one.
    """
    refuse("causal_conv1d_update", cache_seqlens=cache_seqlens, conv_state_indices=conv_state_indices)
    _check(activation)
    new = x.unsqueeze(-1) if x.dim() == 2 else x
    whole = torch.cat([conv_state, new.to(conv_state.dtype)], dim=-1).to(weight.dtype)
    conv_state.copy_(whole[..., new.shape[-1] :])
    seen = whole[..., conv_state.shape[-1] - weight.shape[1] + 1 :]
    output = F.conv1d(seen, weight[:, None], bias, groups=weight.shape[0])
    output = (F.silu(output) if activation else output).to(x.dtype)
    return output.squeeze(-1) if x.dim() == 2 else output


def _check(activation: str | None) -> None:
    if activation not in _ACTIVATIONS:
        refuse("causal_conv1d", **{f"activation={activation!r}": True})


@patches(
    "fla.ops.gated_delta_rule.chunk:chunk_gated_delta_rule",
    "fla.ops.gated_delta_rule.fused_recurrent:fused_recurrent_gated_delta_rule",
    stands_in=("fla.ops.gated_delta_rule", "fla.ops"),
)
def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """state = exp(g) state + k beta (v - k exp(g) state), output = q scale state.

    Shapes:  q and k [batch, length, key heads, d], v [batch, length, heads, e], g and beta [batch, length, heads] -> [batch,
        length, heads, e], and the last state [batch, heads, d, e] or None. Raises: UserError E107 for packed sequences.
    """
    refuse("chunk_gated_delta_rule", cu_seqlens=cu_seqlens)
    given = (q, k, v, g.unsqueeze(-1), beta, 64, initial_state, output_final_state, use_qk_l2norm_in_kernel)
    output, state = delta_rule(*given)
    return output if scale is None else output * (scale * q.shape[-1] ** 0.5), state
