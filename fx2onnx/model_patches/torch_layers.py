"""torch's batch norm, attention, encoders of transformers, recurrent layers, adaptive softmax, and tensors from files."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn import functional as F

from fx2onnx.model_patches.patching import patches
from fx2onnx.torchcompat.capture_modes import fused_attention
from fx2onnx.torchcompat.dispatch import no_modes


@patches("torch.nn.modules.batchnorm:_BatchNorm.forward", around=True)
def batch_norm(forward: Any, self: Any, input: torch.Tensor) -> torch.Tensor:
    """As torch's, except that with ``momentum=None`` the share of a batch is computed from ``num_batches_tracked`` in
    the graph."""
    is_running = self.momentum is None and self.training and self.track_running_stats
    count = self.num_batches_tracked if is_running else None
    if count is None:
        return forward(self, input)  # type: ignore[no-any-return]
    self._check_input_dim(input)
    count.add_(1)
    mean, var = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
    result = F.batch_norm(input, mean, var, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps)
    share = 1.0 / count
    for running, fresh in ((self.running_mean, mean), (self.running_var, var)):
        running.mul_(1 - share).add_(fresh * share)
    return result


@patches("torch.nn.modules.activation:MultiheadAttention.forward", around=True)
def multi_head_attention(
    forward: Any,
    self: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As torch's, fused where masks are given: queries that see nothing give numbers there, not NaN."""
    with _fused_if(key_padding_mask, attn_mask):
        return forward(self, query, key, value, key_padding_mask, need_weights, attn_mask, *args, **kwargs)  # type: ignore[no-any-return]


@patches("torch.nn.modules.transformer:TransformerEncoderLayer.forward", around=True)
def transformer_encoder_layer(
    forward: Any,
    self: Any,
    src: torch.Tensor,
    src_mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """As torch's, fused where masks are given: those of floating point are taken as bools there."""
    with _fused_if(src_mask, src_key_padding_mask):
        return forward(self, src, src_mask, src_key_padding_mask, *args, **kwargs)  # type: ignore[no-any-return]


def _fused_if(*masks: torch.Tensor | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if all(mask is None for mask in masks) else fused_attention()


@patches("torch.nn.modules.transformer:TransformerEncoder.forward", around=True)
def transformer_encoder(
    forward: Any,
    self: Any,
    src: torch.Tensor,
    mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    is_causal: bool | None = None,
) -> torch.Tensor:
    """As torch's in inference: where the padding of each row lies behind what counts, the layers leave it out, as a nested
    tensor, and zeros stand there at the end.
    """
    if src_key_padding_mask is None or not _leaves_padding_out(self, src, mask):
        return forward(self, src, mask, src_key_padding_mask, is_causal)  # type: ignore[no-any-return]
    is_padding = src_key_padding_mask.logical_not().logical_not()
    counts = (~is_padding).sum(1, keepdim=True)
    is_behind = torch.arange(src.shape[1], device=src.device) >= counts
    if self.mask_check:
        is_aligned = (is_behind != is_padding).sum() == 0
        is_masked, is_behind = is_padding, is_behind & is_aligned
    else:
        is_masked = is_behind
    output = src
    for layer in self.layers:
        output = layer(output, src_key_padding_mask=is_masked, is_causal=bool(is_causal))
    output = output.masked_fill(is_behind.unsqueeze(-1), 0.0)
    return output if self.norm is None else self.norm(output)


def _leaves_padding_out(encoder: Any, src: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Return whether the encoder may take its input as a nested tensor."""
    first = encoder.layers[0]
    with fused_attention():
        is_fused = torch.backends.mha.get_fastpath_enabled()
    return (
        is_fused
        and getattr(encoder, "use_nested_tensor", False)
        and not first.training
        and src.dim() == 3
        and mask is None
        and not torch.is_autocast_enabled()
        and not (torch.is_grad_enabled() and any(each.requires_grad for each in (src, *first.parameters())))
    )


@patches("torch.nn.utils.rnn:pad_packed_sequence")
def pad_packed_sequence(
    sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As torch's, except that the length of the longest sequence, or ``total_length``, may be a symbolic size."""
    sizes = sequence.batch_sizes
    longest = sizes.shape[0]
    if total_length is not None and total_length < longest:
        raise ValueError(
            f"Expected total_length to be at least the length of the longest sequence in input, but got {total_length=}"
        )
    plain = total_length if type(total_length) is int else 0
    padded, lengths = torch._VF._pad_packed_sequence(sequence.data, sizes, batch_first, padding_value, plain)
    if plain == 0 and total_length is not None:
        missing = [0, 0] * (padded.dim() - 1 - batch_first) + [0, total_length - longest]
        padded = torch.nn.functional.pad(padded, missing, value=padding_value)
    if sequence.unsorted_indices is not None:
        padded = padded.index_select(0 if batch_first else 1, sequence.unsorted_indices)
        lengths = lengths[sequence.unsorted_indices.cpu()]
    return padded, lengths


@patches("torch.nn.modules.rnn:RNNBase.get_expected_hidden_size")
def get_expected_hidden_size(self: Any, input: torch.Tensor, batch_sizes: torch.Tensor | None) -> tuple[Any, ...]:
    """As that of ``RNNBase``, except that the batch may be a symbolic size."""
    return _state_size(self, input, batch_sizes, self.proj_size or self.hidden_size)


@patches("torch.nn.modules.rnn:LSTM.get_expected_cell_size")
def get_expected_cell_size(self: Any, input: torch.Tensor, batch_sizes: torch.Tensor | None) -> tuple[Any, ...]:
    """As that of ``LSTM``, except that the batch may be a symbolic size."""
    return _state_size(self, input, batch_sizes, self.hidden_size)


def _state_size(layers: Any, input: torch.Tensor, batch_sizes: torch.Tensor | None, features: int) -> tuple[Any, ...]:
    batch = batch_sizes[0].item() if batch_sizes is not None else input.size(0 if layers.batch_first else 1)
    return layers.num_layers * (2 if layers.bidirectional else 1), batch, features


@patches("torch.serialization:load", around=True)
def load(read: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
    """As torch's: what forward reads from a file are tensors with data, as those that it finds in globals."""
    with no_modes():
        return read(f, *args, **kwargs)


@patches("torch.nn.modules.adaptive:AdaptiveLogSoftmaxWithLoss.forward", around=True)
def adaptive_log_softmax(forward: Any, self: Any, input_: torch.Tensor, target_: torch.Tensor) -> Any:
    """As that of ``AdaptiveLogSoftmaxWithLoss``, except that all classes are computed, and not those of each row alone."""
    if target_.dim() > 1 or input_.dim() != target_.dim() + 1:
        return forward(self, input_, target_)
    if target_.dim() and input_.shape[0] != target_.shape[0]:
        raise RuntimeError("Input and target should have the same size in the batch dimension.")
    rows = input_ if target_.dim() else input_.unsqueeze(0)
    found = self.log_prob(rows).gather(1, target_.reshape(-1, 1)).squeeze(1)
    loss = (-found).mean()
    return forward.__globals__["_ASMoutput"](found if target_.dim() else found.squeeze(0), loss)


_QUANTIZED = "torch.ao.nn.quantized.dynamic.modules.rnn"


@patches(f"{_QUANTIZED}:LSTM.forward_impl", f"{_QUANTIZED}:GRU.forward_impl", around=True)
def quantized_layers_of_packed_sequences(
    forward_impl: Any, self: Any, input: Any, hx: Any, batch_sizes: Any, max_batch_size: Any, sorted_indices: Any
) -> tuple[Any, Any]:
    """As that of the quantized layers, except that PyTorch does not try the operator of whole sequences first, of which
    it would print the arguments.
    """
    if batch_sizes is None:
        return forward_impl(self, input, hx, batch_sizes, max_batch_size, sorted_indices)  # type: ignore[no-any-return]
    is_lstm = self.mode == "LSTM"
    if hx is None:
        rows = self.num_layers * (2 if self.bidirectional else 1)
        zeros = torch.zeros(rows, max_batch_size, self.hidden_size, dtype=input.dtype, device=input.device)
        hx = (zeros, zeros) if is_lstm else zeros
    else:
        hx = self.permute_hidden(hx, sorted_indices)
    self.check_forward_args(input, hx, batch_sizes)
    packed = [each.param for each in self._all_weight_values]
    options = (self.bias, self.num_layers, float(self.dropout), self.training, self.bidirectional)
    aten = torch.ops.aten
    if not is_lstm:
        found, state = aten.quantized_gru.data(input, batch_sizes, hx, packed, *options)
        return found, state
    how = {"dtype": self.dtype, "use_dynamic": True}
    found, *states = aten.quantized_lstm.data(input, batch_sizes, hx, packed, *options, **how)
    return found, tuple(states)
