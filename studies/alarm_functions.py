"""The functions that the programs of ``alarm_programs.py`` compute; the optional arguments are faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Forward = Callable[..., Any]


# Rows chosen by scores


def neighbours(x: Tensor, y: Tensor, k: int = 3) -> Tensor:
    return y[(x @ y.T).topk(k)[1]]


def by_distance(x: Tensor, y: Tensor, k: int = 3) -> Tensor:
    return y.index_select(0, torch.cdist(x, y).topk(k, largest=False)[1].reshape(-1))


def taken_along(x: Tensor, y: Tensor, k: int = 3) -> Tensor:
    return torch.take_along_dim(y, x.topk(k, -1)[1], -1)


def experts(x: Tensor, gate: Tensor, weights: Tensor, k: int = 2) -> Tensor:
    shares, chosen = (x @ gate).topk(k, -1)
    hot = F.one_hot(chosen, gate.shape[1]).to(x.dtype)
    mixed = (hot * shares.softmax(-1)[..., None]).sum(1)
    return torch.einsum("ne,ed,nd->nd", mixed, weights, x)


def best_of_masked(x: Tensor, mask: Tensor, k: int = 2) -> Tensor:
    scores = x.masked_fill(mask == 0, -math.inf)
    return x.gather(-1, scores.topk(k, -1)[1])


def ordered(x: Tensor, y: Tensor, descending: bool = True) -> Tensor:
    return y[x.sum(-1).argsort(descending=descending)]


def best_row(x: Tensor, y: Tensor, best: Forward = torch.argmax) -> Tensor:
    return y[best(x @ y.T, -1)]


def pooled(x: Tensor, k: int = 3) -> Tensor:
    places = x.norm(dim=-1).topk(k, -1)[1]
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1])).mean(1)


def counted(x: Tensor, k: int = 2) -> Tensor:
    return F.one_hot(x.topk(k, -1)[1], x.shape[-1]).sum(-2)


# Sets and special functions


def distinct(x: Tensor) -> Any:
    return torch.unique(x)


def distinct_counted(x: Tensor) -> Any:
    return torch.unique(x, return_inverse=True, return_counts=True)


# Systems of equations


def solved(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.solve(a, b)


def warped(image: Tensor, a: Tensor, scale: float = 1.0) -> Tensor:
    """The image warped by the inverse of an affine map."""
    shift = torch.full((a.shape[0], 2, 1), 0.25)
    grid = F.affine_grid(torch.cat([torch.linalg.inv(a) * scale, shift], -1), list(image.shape), align_corners=False)
    return F.grid_sample(image, grid, align_corners=False)


def least_squares(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.lstsq(a, b).solution


# Rounding that decides


def repeated(x: Tensor, durations: Tensor, scale: float = 1.0) -> Tensor:
    counts = torch.clamp(torch.round(torch.exp(durations) * scale - 1), min=0).long()
    return torch.repeat_interleave(x, counts, dim=0)


def lengthened(x: Tensor, durations: Tensor, scale: float = 1.0) -> Tensor:
    """A mask of frames, as in FastSpeech and VITS."""
    ends = torch.ceil(durations.exp() * scale).cumsum(-1)
    frames = torch.arange(int(ends[-1]))
    path = ((frames[:, None] < ends) & (frames[:, None] >= F.pad(ends, (1, 0))[:-1])).to(x.dtype)
    return path @ x


def spiking(x: Tensor, weight: Tensor, threshold: float = 1.0, decay: float = 0.9) -> Tensor:
    potential = torch.zeros(x.shape[1], weight.shape[0])
    spikes = []
    for current in x:
        potential = decay * potential + F.linear(current, weight)
        fired = (potential >= threshold).to(x.dtype)
        potential = potential - fired * threshold
        spikes.append(fired)
    return torch.stack(spikes)


def heaviside(x: Tensor, weight: Tensor, threshold: float = 0.5) -> Tensor:
    potential = torch.zeros(x.shape[1], weight.shape[0])
    for current in x.unbind(0):
        potential = potential + (F.linear(current, weight) - potential) / 2.0
        fired = torch.heaviside(potential - threshold, torch.ones(()))
        potential = potential * (1 - fired)
    return fired


# Spectra


def filters(count: int, bins: int) -> Tensor:
    centres = torch.linspace(0, bins - 1, count + 2)
    place = torch.arange(bins)[None].float()
    up = (place - centres[:-2, None]) / (centres[1:-1] - centres[:-2])[:, None]
    down = (centres[2:, None] - place) / (centres[2:] - centres[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0)


def spectrum(x: Tensor, n_fft: int, power: float = 2.0) -> Tensor:
    return torch.stft(x, n_fft, n_fft // 2, window=torch.hann_window(n_fft), return_complex=True).abs() ** power


def log_mel(x: Tensor, least: float = 1e-6, scale: float = 1.0) -> Tensor:
    return (filters(8, 33) @ spectrum(x, 64) * scale + least).log()


def clamped_mel(x: Tensor, least: float = 1e-10, scale: float = 1.0) -> Tensor:
    mel = (filters(8, 33) @ spectrum(x, 64)).clamp(min=least).log10() * scale
    return (torch.maximum(mel, mel.max() - 8.0) + 4.0) / 4.0


def cepstrum(x: Tensor, scale: float = 1.0) -> Tensor:
    mel = (filters(8, 33) @ spectrum(x, 64) + 1e-6).log()
    turned = torch.cos(math.pi / 8 * (torch.arange(8.0)[:, None] + 0.5) * torch.arange(6.0))
    return mel.transpose(-1, -2) @ turned * scale


def stretched(x: Tensor, rate: float = 1.3) -> Tensor:
    """A phase vocoder."""
    hop = 16
    frames = torch.stft(x, 64, hop, window=torch.hann_window(64), return_complex=True)
    advance = torch.linspace(0, math.pi * hop, 33)[:, None]
    steps = torch.arange(0, frames.shape[-1], rate)
    padded = F.pad(frames, (0, 2))
    left, right = padded.index_select(-1, steps.long()), padded.index_select(-1, (steps + 1).long())
    turn = right.angle() - left.angle() - advance
    turn = turn - 2 * math.pi * torch.round(turn / (2 * math.pi)) + advance
    phase = torch.cat([frames[..., :1].angle(), turn[..., :-1]], -1).cumsum(-1)
    share = steps % 1.0
    return torch.view_as_real(torch.polar(share * right.abs() + (1 - share) * left.abs(), phase))


def decibels(x: Tensor, reference: float = 1.0) -> Tensor:
    return 10 * torch.log10(torch.clamp(spectrum(x, 64), min=1e-10) / reference)


# Distributions


def beta(x: Tensor, a: Tensor, b: Tensor, shift: float = 0.0) -> Tensor:
    return torch.distributions.Beta(a.exp(), b.exp() + shift, validate_args=False).log_prob(torch.sigmoid(x))


def in_bfloat16(x: Tensor, weight: Tensor, scale: float = 1.0) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(F.relu(F.linear(x, weight)), weight * scale).softmax(-1)
