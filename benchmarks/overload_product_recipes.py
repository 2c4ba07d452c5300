"""Shapes that belong together, further recipes: systems of equations, products, writes at places, searches, quantization."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import torch

from benchmarks.overload_recipes import Arguments, batch, count_of, recipe, sizes
from benchmarks.overload_values import matrix, tensor


@recipe(r"lstsq|linalg_solve|tensorsolve|tensorinv|lu_solve|cholesky_solve|triangular_solve|solve_triangular")
def solving(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    lead, n, k = batch(rng), rng.randint(1, 4), rng.randint(1, 3)
    if "tensor" in name:
        n = rng.choice([1, 2, 4, 6])
        split = {1: [1], 2: [2], 4: [2, 2], 6: [2, 3]}[n]
        a = matrix(rng, [n, n], dtype, "definite").reshape([*split, n] if rng.random() < 0.5 else [*split, *split])
        given = {"self": a, "other": tensor(rng, split, dtype, "normal"), "ind": len(split)}
        return given | {"dims": None}
    m = n if "lstsq" not in name else rng.randint(1, 5)
    a = matrix(rng, [*lead, m, n], dtype, "definite" if "lstsq" not in name else "general")
    if "triangular" in name:
        a = matrix(rng, [*lead, n, n], dtype, rng.choice(["lower", "upper"]))
    b = tensor(rng, [*lead, m, k], dtype, "normal")
    if name.startswith("linalg_solve.") and rng.random() < 0.3:
        b = b[..., 0]
    given = {"A": a, "self": a if "linalg" in name else b, "b": b, "B": b, "other": b, "input2": torch.linalg.cholesky(a) if "cholesky" in name else a}  # fmt: skip
    if "lu_solve" in name:
        lu, pivots = torch.linalg.lu_factor(a)
        given |= {"LU": lu, "pivots": pivots, "LU_data": lu, "LU_pivots": pivots}
    if "lstsq" in name:
        given |= {
            "rcond": rng.choice([None, 1e-6, 0.1]),
            "driver": rng.choice([None, "gels", "gelsy", "gelsd", "gelss"]),
        }
    return given


@recipe(r"ldl|lu_unpack|ormqr|orgqr|householder_product")
def packed(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    lead, n, m = batch(rng), rng.randint(1, 4), rng.randint(0, 2)
    if "lu_unpack" in name:
        lu, pivots = torch.linalg.lu_factor(matrix(rng, [*lead, n, n + rng.choice([0, 0, 1])], dtype, "general"))
        return {"LU_data": lu, "LU_pivots": pivots}
    if "ldl" in name:
        a = matrix(rng, [*lead, n, n], dtype, "definite")
        ld, pivots = torch.linalg.ldl_factor(a)
        return {
            "self": a,
            "LD": ld,
            "pivots": pivots,
            "B": tensor(rng, [*lead, n, m + 1], dtype, "normal"),
            "hermitian": False,
        }
    a, tau = torch.geqrf(matrix(rng, [*lead, n + m, n], dtype, "general"))
    return {"self": a, "input": a, "tau": tau, "input2": tau, "input3": tensor(rng, [*lead, n + m, 2], dtype, "normal"), "left": True}  # fmt: skip


@recipe(
    r"linalg_(chol|inv|det|slogdet|eig|matrix_power|cond|ldl|lu)|^(cholesky|inverse|det|logdet|slogdet|matrix_power|_linalg)"
)
def square(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    n = rng.randint(1, 4)
    kind = "definite" if "chol" in name else rng.choice(["general", "definite", "symmetric"])
    a = matrix(rng, [*batch(rng), n, n], dtype, kind)
    if name.startswith("cholesky_inverse"):
        a = torch.linalg.cholesky(a)
    return {"self": a, "A": a, "input": a, "n": rng.randint(-2, 3), "hermitian": False}


@recipe(r"^(scatter|gather|index_|put|take|_index|_unsafe_index|select_scatter|slice_scatter)")
def indexed(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    shape = sizes(rng, rng.choice([1, 2, 3]), 1, 4)
    axis = rng.randrange(len(shape))
    x = tensor(rng, shape, dtype)
    given: Arguments = {"self": x, "dim": rng.choice([axis, axis - len(shape)])}
    if name.startswith(("scatter", "gather", "take_along")):
        inner = [rng.randint(1, size) for size in shape]
        given["index"] = given["indices"] = tensor(rng, inner, torch.int64, high=shape[axis])
        if rng.random() < 0.7:
            given["index"] = torch.rand(inner, generator=torch.Generator().manual_seed(rng.getrandbits(30))).argsort(
                axis
            )
        given["src"] = tensor(rng, inner, dtype)
    elif name.startswith(("put", "take")):
        count = rng.randint(1, 3)
        given["index"] = tensor(rng, [count], torch.int64, high=count_of(shape))
        given["source"] = tensor(rng, [count], dtype)
    elif "select" in name or re.match(r"index_(add|copy|fill|reduce)", name):
        count = rng.randint(1, shape[axis])
        given["index"] = torch.tensor(rng.sample(range(shape[axis]), count))
        given["source"] = tensor(rng, [*shape[:axis], count, *shape[axis + 1 :]], dtype)
        if "select_scatter" in name:
            given |= {
                "index": rng.randrange(shape[axis]),
                "src": tensor(rng, [*shape[:axis], *shape[axis + 1 :]], dtype),
            }
        if "index_fill" in name:
            given["value"] = tensor(rng, [], dtype) if name.endswith("Tensor") else rng.choice([0, 1, 2.5])
    elif "index" in name:
        count, places = rng.randint(1, 2), []
        for size in shape[: rng.randint(1, len(shape))]:
            if rng.random() < 0.2:
                places.append(None)
            elif rng.random() < 0.1:
                places.append(torch.arange(size) % 2 == 0)
            else:
                places.append(tensor(rng, [count], torch.int64, high=size))
        given |= {"indices": places, "values": tensor(rng, [], dtype), "accumulate": rng.random() < 0.5}
    return given


@recipe(r"^(bmm|baddbmm|addbmm|mm|addmm|_addmm|addmv|mv|addr|linear|matmul|dot|vdot|inner|outer|ger|bilinear|chain_matmul|linalg_multi_dot|_int_mm|linalg_matmul|linalg_vecdot|cosine_sim|cdist|_cdist|pdist|_pdist|_euclid)")  # fmt: skip
def products(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    b, n, k, m = sizes(rng, 4, 1, 4)
    packet = name.split(".")[0]
    other = rng.choice([dtype, dtype, dtype, torch.float32, torch.float64])

    def t(shape: list[int], kept: torch.dtype = dtype) -> torch.Tensor:
        return tensor(rng, shape, kept)

    wide = rng.choice([[n, m], [n, m], [m], [1, m], [n, 1], []])
    if packet in ("bmm", "baddbmm", "addbmm"):
        lead = [b] if packet != "addbmm" else []
        return {"self": t([b, n, k]) if packet == "bmm" else t([*lead, n, m]), "mat2": t([b, k, m]), "batch1": t([b, n, k]), "batch2": t([b, k, m])}  # fmt: skip
    if packet in ("mm", "addmm", "_addmm_activation", "_int_mm"):
        return {"self": t([n, k]) if "add" not in packet else t(wide), "mat1": t([n, k]), "mat2": t([k, m])}
    if packet in ("addmv", "mv"):
        return {"self": t([n, k]) if packet == "mv" else t(rng.choice([[n], [1], []])), "mat": t([n, k]), "vec": t([k])}
    if packet in ("addr", "dot", "vdot", "outer", "ger"):
        size = m if packet not in ("dot", "vdot") else n
        return {"self": t([n]) if packet != "addr" else t([n, m]), "tensor": t([size]), "vec1": t([n]), "vec2": t([m])}  # fmt: skip
    if packet == "linear":
        weight = rng.choice([[m, k], [m, k], [k]])
        return {"input": t([*batch(rng), k]), "weight": t(weight), "bias": None if rng.random() < 0.4 else t([m] if len(weight) == 2 else [])}  # fmt: skip
    if packet == "bilinear":
        lead = batch(rng)
        return {"input1": t([*lead, n]), "input2": t([*lead, k]), "weight": t([m, n, k]), "bias": None if rng.random() < 0.4 else t([m])}  # fmt: skip
    if "multi_dot" in packet or "chain" in packet:
        count = [n, k, m, b, 2]
        chain = [t([rows, columns]) for rows, columns in itertools.pairwise(count)][: rng.randint(2, 4)]
        return {"tensors": chain, "matrices": chain}
    if packet == "inner":
        return {"self": tensor(rng, rng.choice([[], [k], [n, k], [b, n, k]]), dtype), "other": tensor(rng, rng.choice([[], [k], [m, k]]), other)}  # fmt: skip
    if "pdist" in packet:
        return {"self": t([n, k]), "p": rng.choice([0.0, 1.0, 2.0, 3.0, float("inf"), 0.5])}
    if "cdist" in packet or "euclid" in packet:
        lead = batch(rng)
        return {"x1": t([*lead, n, k]), "x2": t([*lead, m, k]), "p": rng.choice([0.0, 1.0, 2.0, 3.0, float("inf")])}
    lead = batch(rng)
    left = rng.choice([[k], [n, k], [*lead, n, k]])
    right = rng.choice([[k], [k, m], [*lead, k, m]]) if "matmul" in packet else left
    return {"self": t(left), "x": t(left), "x1": t(left), "other": t(right), "y": t(right), "x2": t(right)}


@recipe(r"prelu")
def prelu(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    shape = sizes(rng, rng.choice([0, 1, 2, 2, 3, 4]), 1, 4)
    c = shape[1] if len(shape) > 1 else 1
    weight = rng.choice([[1], [c], []])
    if name.startswith("_"):
        weight = rng.choice([[1] * len(shape), [c], [1], [], [c, *[1] * (len(shape) - 2)], shape])
    return {"self": tensor(rng, shape, dtype), "weight": tensor(rng, weight, dtype)}


@recipe(r"searchsorted|bucketize")
def searching(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    lead, n = batch(rng), rng.randint(1, 5)
    lead = [] if "bucketize" in name else lead
    edges = tensor(rng, [*lead, n], dtype, rng.choice(["normal", "whole", "ties"]))
    edges = edges.sort(-1).values if rng.random() < 0.9 else edges
    x = tensor(rng, [*lead, rng.randint(1, 4)] if lead or rng.random() < 0.7 else [], dtype)
    scalar_like = name.endswith("Scalar")
    value: Any = rng.choice([0, 1.5, -2]) if scalar_like else x
    return {"sorted_sequence": edges, "boundaries": edges, "self": value, "sorter": None}


@recipe(r"fake_quantize|_fake_quant|quantize_per|dequantize_per|choose_qparams")
def quantizing(rng: random.Random, name: str, dtype: torch.dtype) -> Arguments:
    shape = sizes(rng, rng.choice([1, 2, 3]), 1, 4)
    axis = rng.randrange(len(shape))
    kept = dtype if dtype.is_floating_point else torch.float32
    given: Arguments = {"self": tensor(rng, shape, kept), "input": tensor(rng, shape, kept), "axis": axis, "quant_min": 0, "quant_max": 255}  # fmt: skip
    if "per_channel" in name:
        size = shape[axis]
        return given | {"scale": tensor(rng, [size], torch.float32, "positive"), "scales": tensor(rng, [size], torch.float32, "positive"), "zero_point": torch.zeros(size, dtype=torch.int32), "zero_points": torch.zeros(size, dtype=torch.int64)}  # fmt: skip
    is_tensor = "tensor" in name.split(".")[1] or "learnable" in name or "cachemask" in name
    scale: Any = torch.tensor([0.1]) if is_tensor else rng.choice([0.1, 0.5])
    point: Any = torch.tensor([3], dtype=torch.int32) if is_tensor else rng.choice([0, 3, 10])
    return given | {"scale": scale, "zero_point": point, "dtype": torch.uint8, "fake_quant_enabled": torch.tensor([1])}
