"""Shapes that belong together: recipes for calls whose tensors have to fit, by the name of the operator.

A recipe returns the arguments that it decides; the others are drawn from the schema (``benchmarks/overload_arguments.py``).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.overload_values import tensor

Arguments = dict[str, Any]
Recipe = Callable[[random.Random, str, torch.dtype], Arguments]
RECIPES: list[tuple[re.Pattern[str], Recipe]] = []


def recipe(pattern: str) -> Callable[[Recipe], Recipe]:
    def register(function: Recipe) -> Recipe:
        RECIPES.append((re.compile(pattern), function))
        return function

    return register


def recipe_of(name: str) -> Recipe | None:
    """The recipe for an operator ``packet.overload``; the first that fits."""
    return next((function for pattern, function in RECIPES if pattern.search(name)), None)


def spatial(name: str, rng: random.Random) -> int:
    found = re.search(r"([123])d", name)
    return int(found[1]) if found else rng.choice([1, 2, 3])


def sizes(rng: random.Random, count: int, low: int = 1, high: int = 5) -> list[int]:
    return [rng.randint(low, high) for _ in range(count)]


def batch(rng: random.Random, most: int = 2) -> list[int]:
    """Leading dims."""
    return sizes(rng, rng.choice([0, 0, 1, most]), 1, 3)


@recipe(r"^_?conv|^thnn_conv|^slow_conv|^mkldnn_conv|^cudnn_conv|^miopen_conv")
def convolution(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    if name.startswith("conv_tbc"):
        t, b, c, k, o = sizes(rng, 5, 1, 4)
        return {"self": tensor(rng, [t + k, b, c], dtype), "weight": tensor(rng, [k, c, o], dtype), "bias": tensor(rng, [o], dtype), "pad": rng.randint(0, 2)}  # fmt: skip
    rank = spatial(name, rng)
    groups, inner, outer = rng.choice([1, 1, 2]), *sizes(rng, 2, 1, 2)
    kernel = sizes(rng, rank, 1, 3)
    space = [size + rng.randint(0, 4) for size in kernel]
    transposed = "transpose" in name or ("conv" in name and not re.search(r"\dd", name) and rng.random() < 0.4)
    lead = [] if rng.random() < 0.2 else [rng.randint(1, 2)]
    weight = [groups * inner, outer, *kernel] if transposed else [groups * outer, inner, *kernel]
    x = tensor(rng, [*lead, groups * inner, *space], dtype, "normal")
    found = {
        "weight": tensor(rng, weight, dtype, "normal"),
        "bias": None if rng.random() < 0.3 else tensor(rng, [groups * outer], dtype, "normal"),
        "groups": groups,
        "transposed": transposed,
        "kernel_size": kernel,
        "bias_sizes": None,
        "stride": one_or_each(rng, rank, 1, 2),
        "dilation": one_or_each(rng, rank, 1, 2),
        "padding": rng.choice(["same", "valid"]) if name.endswith(".padding") else one_or_each(rng, rank, 0, 2),
        "output_padding": one_or_each(rng, rank, 0, 1),
    }
    return found | {"input": x, "self": x}


def one_or_each(rng: random.Random, rank: int, low: int, high: int) -> list[int]:
    return [rng.randint(low, high)] if rng.random() < 0.2 else sizes(rng, rank, low, high)


@recipe(r"unpool")
def unpooling(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    rank = spatial(name, rng)
    lead, space = sizes(rng, rng.choice([1, 2]), 1, 2), sizes(rng, rank, 1, 3)
    large = [size * 2 + rng.randint(0, 1) for size in space]
    high = 1
    for size in large:
        high *= size
    places = torch.stack([torch.randperm(high, generator=torch.Generator().manual_seed(rng.getrandbits(30)))[: max(1, count_of(space))] for _ in range(count_of(lead))])  # fmt: skip
    given = {
        "self": tensor(rng, [*lead, *space], dtype),
        "indices": places.reshape([*lead, *space]),
        "output_size": large,
    }
    return given | {"stride": [2] * rank, "padding": [0] * rank}


def count_of(dims: Sequence[int]) -> int:
    found = 1
    for dim in dims:
        found *= dim
    return found


@recipe(r"pool")
def pooling(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    rank = spatial(name, rng)
    lead = sizes(rng, rng.choice([1, 2, 2]), 1, 2)
    space, kernel = sizes(rng, rank, 2, 7), one_or_each(rng, rank, 1, 3)
    x = tensor(rng, [*lead, *space], dtype)
    given: Arguments = {"self": x, "input": x, "kernel_size": kernel}
    if "adaptive" in name or "fractional" in name:
        given["output_size"] = sizes(rng, rank, 1, 4)
        given["random_samples"] = tensor(rng, [*([1, *lead] if len(lead) == 1 else lead), rank], dtype, "unit")
        return given
    given["stride"] = rng.choice([[], one_or_each(rng, rank, 1, 3)])
    given["padding"] = [rng.randint(0, size // 2) for size in kernel]
    given["dilation"] = one_or_each(rng, rank, 1, 2)
    return given


@recipe(r"batch_norm|instance_norm")
def batch_norm(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    c = rng.randint(1, 4)
    shape = [rng.randint(1, 3), c, *sizes(rng, rng.choice([0, 0, 1, 2, 3]), 1, 4)]
    if rng.random() < 0.1:
        shape = shape[:1] if rng.random() < 0.3 else [c]
        c = shape[0]
    own = torch.float32 if dtype in (torch.float16, torch.bfloat16) and rng.random() < 0.3 else dtype
    made = {key: tensor(rng, [c], own, "positive") for key in ("weight", "bias", "running_mean", "running_var", "save_mean", "save_invstd", "save_var", "mean", "invstd")}  # fmt: skip
    for key in ("weight", "bias"):
        if rng.random() < 0.25:
            made[key] = None  # type: ignore[assignment]
    if rng.random() < 0.2:
        made |= {"running_mean": None, "running_var": None}  # type: ignore[dict-item]
    x = tensor(rng, shape, dtype)
    grads = {key: tensor(rng, shape, dtype) for key in ("grad_out", "grad_output")}
    return {**made, **grads, "input": x, "self": x, "train": rng.random() < 0.5, "training": rng.random() < 0.5}


@recipe(r"layer_norm|rms_norm")
def layer_norm(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    shape = sizes(rng, rng.choice([1, 2, 3, 4]), 1, 4)
    kept = shape[rng.randrange(len(shape)) :]
    x = tensor(rng, shape, dtype)
    weight, bias = (None if rng.random() < 0.3 else tensor(rng, kept, dtype) for _ in range(2))
    return {"input": x, "normalized_shape": kept, "weight": weight, "bias": bias}


@recipe(r"group_norm")
def group_norm(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    groups, each, n = sizes(rng, 3, 1, 3)
    space = sizes(rng, rng.choice([0, 1, 2, 3]), 1, 4)
    x = tensor(rng, [n, groups * each, *space], dtype)
    weight, bias = (None if rng.random() < 0.3 else tensor(rng, [groups * each], dtype) for _ in range(2))
    return {"input": x, "weight": weight, "bias": bias, "num_groups": groups, "group": groups, "N": n, "C": groups * each, "HxW": count_of(space)}  # fmt: skip


@recipe(r"weight_norm|norm_except_dim")
def weight_norm(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    shape = sizes(rng, rng.choice([1, 2, 3, 4]), 1, 4)
    dim = rng.choice([0, len(shape) - 1, -1])
    gain = [1] * len(shape)
    if dim != -1:
        gain[dim] = shape[dim]
    if rng.random() < 0.3:
        gain = rng.choice([[], [1], shape, gain[-1:], [shape[-1]]])
    v = tensor(rng, shape, dtype)
    return {"v": v, "g": tensor(rng, gain, dtype), "dim": rng.choice([dim, dim, 0, 1]), "pow": rng.choice([2, 1, 3])}


@recipe(r"(^|_)(lstm|gru|rnn_tanh|rnn_relu)(_cell)?\.(default|input|data)|rnn_(tanh|relu)")
def recurrent(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    gates = 4 if "lstm" in name else 3 if "gru" in name else 1
    n, i, h, t = sizes(rng, 4, 1, 3)
    if "cell" in name:
        lead = [] if rng.random() < 0.2 else [n]
        state = tensor(rng, [*lead, h], dtype, "normal")
        weights = {"w_ih": [gates * h, i], "w_hh": [gates * h, h], "b_ih": [gates * h], "b_hh": [gates * h]}
        given = {key: tensor(rng, shape, dtype, "normal") for key, shape in weights.items()}
        return {**given, "input": tensor(rng, [*lead, i], dtype, "normal"), "hx": [state, state + 1] if "lstm" in name else state}  # fmt: skip
    layers, ways = rng.choice([1, 1, 2]), rng.choice([1, 2])
    biases, first = rng.random() < 0.7, rng.random() < 0.5
    params = []
    for layer in range(layers):
        for _ in range(ways):
            shapes = [
                [gates * h, i if layer == 0 else ways * h],
                [gates * h, h],
                *([[gates * h]] * (2 if biases else 0)),
            ]
            params += [tensor(rng, shape, dtype, "normal") for shape in shapes]
    state = tensor(rng, [layers * ways, n, h], dtype, "normal")
    given = {"hx": [state, state + 1] if "lstm" in name else state, "params": params, "has_biases": biases}
    if name.endswith(".data"):
        lengths = sorted(sizes(rng, t, 1, n), reverse=True)
        lengths[0] = n
        given |= {"data": tensor(rng, [sum(lengths), i], dtype), "batch_sizes": torch.tensor(lengths)}
    given |= {"input": tensor(rng, [n, t, i] if first else [t, n, i], dtype, "normal"), "batch_first": first}
    return given | {"num_layers": layers, "bidirectional": ways == 2, "dropout": 0.0, "train": rng.random() < 0.3}


@recipe(r"attention")
def attention(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    lead = batch(rng) if name == "scaled_dot_product_attention.default" else sizes(rng, 2, 1, 2)
    q, k, e, v = sizes(rng, 4, 1, 4)
    if name.startswith("_"):
        v = e
    mask = rng.choice([None, torch.bool, dtype])
    given: Arguments = {
        "query": tensor(rng, [*lead, q, e], dtype, "normal"),
        "key": tensor(rng, [*lead, k, e], dtype, "normal"),
        "value": tensor(rng, [*lead, k, v], dtype, "normal"),
        "attn_mask": None if mask is None else tensor(rng, rng.choice([[q, k], [*lead, q, k], [k], [1, k]]), mask),
        "attn_bias": None,
    }
    return given | {
        "scale": rng.choice([None, 0.5]),
        "dropout_p": 0.0,
        "is_causal": mask is None and rng.random() < 0.4,
    }


@recipe(r"embedding_bag")
def embedding_bag(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    rows, width, count = rng.randint(2, 5), rng.randint(1, 3), rng.randint(1, 6)
    mode, last = rng.choice([0, 1, 2]), rng.random() < 0.3
    offsets = [0, *sorted(rng.randint(0, count) for _ in range(rng.randint(0, 2))), *([count] if last else [])]
    kept = rng.choice([torch.int64, torch.int64, torch.int32])
    each = tensor(rng, [count], dtype) if mode == 0 and rng.random() < 0.5 else None
    given = {"weight": tensor(rng, [rows, width], dtype), "indices": tensor(rng, [count], kept, high=rows)}
    given |= {"offsets": torch.tensor(offsets, dtype=kept), "mode": mode, "per_sample_weights": each}
    return given | {"include_last_offset": last, "padding_idx": rng.choice([-1, 0, rows - 1]), "sparse": False}


@recipe(r"^embedding\.|^embedding_renorm")
def embedding(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    rows = rng.randint(1, 5)
    weight = tensor(rng, [rows, rng.randint(1, 3)], dtype)
    return {"weight": weight, "self": weight, "indices": tensor(rng, sizes(rng, rng.choice([0, 1, 2]), 1, 3), torch.int64, high=rows), "sparse": False}  # fmt: skip


@recipe(r"ctc_loss")
def ctc_loss(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    t, n, c, s = rng.randint(3, 6), rng.randint(1, 3), rng.randint(2, 4), rng.randint(1, 2)
    probabilities = tensor(rng, [t, n, c], torch.float32 if dtype.itemsize < 4 else dtype, "normal").log_softmax(-1)
    lengths, wanted = [rng.randint(2, t) for _ in range(n)], [rng.randint(1, s) for _ in range(n)]
    is_list = name.endswith("IntList") or name == "_ctc_loss.default"
    given = {"log_probs": probabilities, "targets": tensor(rng, [n, s], torch.int64, high=c - 1) + 1, "blank": 0}
    return given | {"input_lengths": lengths if is_list else torch.tensor(lengths), "target_lengths": wanted if is_list else torch.tensor(wanted)}  # fmt: skip


@recipe(r"nll_loss|cross_entropy_loss|multi_margin_loss|multilabel_margin_loss")
def class_loss(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    c, n = rng.randint(1, 5), rng.randint(1, 4)
    lead = [] if rng.random() < 0.3 else [n]
    space = sizes(rng, 2 if "2d" in name else rng.choice([0, 0, 1, 2]), 1, 3) if lead or "2d" in name else []
    lead = [n] if "2d" in name else lead
    if "margin" in name:
        space = []
    x = tensor(rng, [*lead, c, *space], dtype)
    target = tensor(rng, [*lead, *space], torch.int64, high=c)
    if "multilabel" in name:
        target = torch.stack([torch.randperm(c, generator=torch.Generator().manual_seed(rng.getrandbits(30))) for _ in range(count_of(lead))]).reshape(*lead, c)  # fmt: skip
        target = torch.where(torch.arange(c) >= rng.randint(0, c), -1, target)
        if rng.random() < 0.2:
            x, target = (value.reshape(-1)[0] if value.numel() == 1 else value for value in (x, target))
    if "multi_margin" in name and rng.random() < 0.2:
        x, target = rng.choice([(x, target), (x.reshape(-1)[:1], target.reshape(-1)[:1]), (x.reshape(-1)[0], target.reshape(-1)[:1])])  # fmt: skip
    if "cross_entropy" in name and rng.random() < 0.3:
        target = tensor(rng, x.shape, dtype, "unit")
    weight = None if rng.random() < 0.5 else tensor(rng, [c], dtype, "positive")
    return {"self": x, "input": x, "target": target, "weight": weight, "ignore_index": rng.choice([-100, 0, 1]), "p": rng.choice([1, 2])}  # fmt: skip


@recipe(r"grid_sampl")
def grid_sampler(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    rank = 3 if "3d" in name else 2 if "2d" in name else rng.choice([2, 3])
    n, c = sizes(rng, 2, 1, 2)
    grid = tensor(rng, [n, *sizes(rng, rank, 1, 3), rank], dtype, rng.choice(["normal", "unit"]))
    given: Arguments = {"input": tensor(rng, [n, c, *sizes(rng, rank, 1, 4)], dtype, "normal"), "grid": grid}
    return given | {
        "interpolation_mode": rng.choice([0, 1, 2] if rank == 2 else [0, 1]),
        "padding_mode": rng.randint(0, 2),
    }


@recipe(r"upsample")
def upsample(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    rank = {"linear1d": 1, "nearest1d": 1, "exact1d": 1, "trilinear3d": 3}.get(name.split(".")[0], spatial(name, rng))
    space = sizes(rng, rank, 1, 5)
    x = tensor(rng, [*sizes(rng, 2, 1, 2), *space], dtype, "normal")
    wanted = sizes(rng, rank, 1, 8)
    scales = [rng.choice([0.5, 1.0, 1.3, 2.0, 2.5]) for _ in range(rank)]
    by_size = rng.random() < 0.5
    given: Arguments = {"self": x, "input": x, "output_size": wanted if by_size or not name.endswith("vec") else None}
    given["scale_factors"] = None if by_size else scales
    kept = scales if rng.random() < 0.5 else [size / before for size, before in zip(wanted, space, strict=True)]
    for key, scale in zip(("scales_d", "scales_h", "scales_w")[3 - rank :], kept, strict=True):
        given[key] = rng.choice([None, scale])
    return given | {"scales": rng.choice([None, kept[0]])}


@recipe(r"im2col|col2im")
def columns(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    kernel, stride, padding = sizes(rng, 2, 1, 2), sizes(rng, 2, 1, 2), sizes(rng, 2, 0, 1)
    space = [size + rng.randint(0, 3) for size in kernel]
    lead = [] if rng.random() < 0.3 else [rng.randint(1, 2)]
    c = rng.randint(1, 2)
    given: Arguments = {
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": [1, 1],
        "output_size": space,
    }
    if "im2col" in name:
        return given | {"self": tensor(rng, [*lead, c, *space], dtype)}
    blocks = [(s + 2 * p - k) // t + 1 for s, p, k, t in zip(space, padding, kernel, stride, strict=True)]
    return given | {"self": tensor(rng, [*lead, c * count_of(kernel), count_of(blocks)], dtype)}
