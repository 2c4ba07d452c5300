"""Checkpoints that are quantized: the layouts of GPTQ, AWQ, compressed-tensors, bitsandbytes, torchao and FP8, read without the packages that wrote them.

Sources: AutoGPTQ's qlinear (words along the reduced axis, zero points less one), AutoAWQ's gemm layout (words along the outputs, in
the order 0 2 4 6 1 3 5 7), compressed-tensors' pack-quantized, int-quantized and float-quantized, DeepSeek's blocks of 128 by 128.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.sources.hf.packed_linear import CodeLayout, PackedLinear, nibbles, words_of_bytes

State = Mapping[str, torch.Tensor]
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word of AWQ of the code of each of eight outputs."""

MARLIN_ORDER = tuple(
    16 * (2 * (thread % 4) + row) + thread // 4 + 8 * block + 256 * tile
    for thread in range(32)
    for tile in range(4)
    for block, row in ((0, 0), (0, 8), (1, 0), (1, 8), (0, 1), (0, 9), (1, 1), (1, 9))
)
"""The index, among the codes of four tiles of 16 x 16 (columns of the weight first), of the code at each place of the
128 words of a row of tiles."""


def unknown(where: str, why: str) -> UserError:
    """The error for a layout that is not known."""
    return UserError(
        "E601",
        f"the quantized weights of '{where}' have an unknown layout",
        why=why,
        next=[
            "save the checkpoint without quantization: model.dequantize()",
            "--weights random leaves the weights out",
        ],
    )


def gptq(prefix: str, state: State, said: Mapping[str, Any]) -> PackedLinear:
    """qweight [K / n, N] words along K; qzeros [groups, N / n]; scales [groups, N]; g_idx [K]."""
    bits = int(said.get("bits", 4))
    if bits not in (4, 8):
        raise unknown(prefix, f"codes of {bits} bits")
    words, scales = state[f"{prefix}.qweight"], state[f"{prefix}.scales"]
    count = 32 // bits
    columns, rows = words.shape[0] * count, words.shape[1]
    groups, apart = len(scales), nibbles if bits == 4 else words_of_bytes
    _check(prefix, scales.shape == (groups, rows) and columns % groups == 0, "scales do not fit the codes")
    order = None
    index = state.get(f"{prefix}.g_idx")
    if index is not None and not torch.equal(index.long(), torch.arange(columns) // (columns // groups)):
        order = torch.argsort(index.long(), stable=True)
        counts = torch.bincount(index.long(), minlength=groups)
        _check(prefix, bool((counts == columns // groups).all()), "groups of different sizes")
    zeros = apart(state[f"{prefix}.qzeros"]).reshape(groups, rows).t().contiguous()
    form = said.get("checkpoint_format", "gptq")
    _check(prefix, form in ("gptq", "gptq_v2"), f"checkpoint_format {form!r:.30}")
    if form == "gptq":
        zeros = zeros + 1
    _check(prefix, int(zeros.max()) < 1 << bits, "a zero point beyond the codes")

    def rows_of(packed: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        codes = apart(packed[:, start:stop].t().contiguous()).reshape(stop - start, columns)
        return codes if order is None else codes[:, order]

    as_rows = words.t() if order is None else None
    scale = scales.t()
    layout = CodeLayout((columns // count, rows, count), (1, 0, 2))
    return PackedLinear(
        words, rows_of, bits, scale, zeros, columns=columns, as_rows=as_rows, order=order, layout=layout
    )


def marlin(prefix: str, state: State, said: Mapping[str, Any]) -> PackedLinear:
    """B [K / 16, 2 N] words of codes in the order of Marlin's threads, 8 more than the number; s [groups, N] in another order.

    Source: IST-DASLab's marlin and AutoGPTQ's qlinear_marlin (_get_perms, pack).
    """
    words, scales = state[f"{prefix}.B"], state[f"{prefix}.s"]
    columns, rows, groups = len(words) * 16, words.shape[1] // 2, len(scales)
    fits = int(said.get("bits", 4)) == 4 and words.dtype == torch.int32 and rows % 64 == 0
    _check(prefix, fits, f"words of {words.dtype} for codes of {said.get('bits', 4)} bits")
    _check(prefix, scales.shape == (groups, rows) and columns % groups == 0, "scales do not fit the codes")
    _check(prefix, not said.get("desc_act") or groups == 1, "columns in the order of their activations")
    places = torch.argsort(torch.tensor(MARLIN_ORDER))
    of_scales = [i + 8 * j for i in range(8) for j in range(8)]
    if groups == 1:
        of_scales = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    ordered = scales.reshape(-1, len(of_scales))[:, torch.argsort(torch.tensor(of_scales))].reshape(groups, rows)

    def rows_of(packed: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        first, last = start // 64, -(-stop // 64)
        part = packed.reshape(len(packed), -1, 128)[:, first:last]
        tiles = nibbles(part).reshape(len(packed), last - first, 1024)[..., places]
        found = tiles.reshape(len(packed), last - first, 4, 16, 16).permute(1, 2, 4, 0, 3).reshape(-1, columns)
        return found[start - 64 * first : stop - 64 * first]

    zero = torch.full((rows, groups), 8, dtype=torch.uint8)
    layout = CodeLayout((columns // 16, rows // 64, 8, 4, 4, 2, 2, 2), (1, 4, 6, 2, 0, 7, 3, 5))
    return PackedLinear(words, rows_of, 4, ordered.t().contiguous(), zero, columns=columns, layout=layout)


def awq(prefix: str, state: State, said: Mapping[str, Any]) -> PackedLinear:
    """qweight [K, N / 8] words along N; qzeros [groups, N / 8]; scales [groups, N]."""
    if int(said.get("bits", 4)) != 4 or said.get("version", "gemm") != "gemm":
        raise unknown(prefix, f"AWQ of {said.get('bits')} bits, version {said.get('version')!r:.20}")
    words, scales = state[f"{prefix}.qweight"], state[f"{prefix}.scales"]
    columns, rows, groups = len(words), words.shape[1] * 8, len(scales)
    _check(prefix, scales.shape == (groups, rows) and columns % groups == 0, "scales do not fit the codes")
    places = torch.tensor(AWQ_ORDER)
    zeros = nibbles(state[f"{prefix}.qzeros"])[..., places].reshape(groups, rows).t().contiguous()

    def rows_of(packed: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        first, last = start // 8, -(-stop // 8)
        codes = nibbles(packed[:, first:last].t().contiguous())[..., places]  # [words, K, 8]
        found = codes.permute(0, 2, 1).reshape(-1, columns)
        return found[start - 8 * first : stop - 8 * first]

    layout = CodeLayout((columns, rows // 8, 2, 4), (1, 3, 2, 0))
    return PackedLinear(words, rows_of, 4, scales.t(), zeros, columns=columns, layout=layout)


def compressed(prefix: str, state: State, said: Mapping[str, Any]) -> PackedLinear:
    """weight_packed [N, K / 8] words along K, 8 more than the code; or weight [N, K] int8 or float8; weight_scale [N, groups]."""
    del said
    scale = state[f"{prefix}.weight_scale"]
    words = state.get(f"{prefix}.weight_packed")
    if f"{prefix}.weight_g_idx" in state:
        raise unknown(prefix, "columns in the order of their activations (weight_g_idx)")
    if words is None:
        return _plain(prefix, state[f"{prefix}.weight"], scale, state.get(f"{prefix}.weight_zero_point"))
    rows, columns = (int(size) for size in state[f"{prefix}.weight_shape"])
    _check(prefix, words.shape == (rows, columns / 8), "codes of other than 4 bits")
    zero = torch.full((rows, scale.shape[1]), 8, dtype=torch.uint8)
    stored = state.get(f"{prefix}.weight_zero_point")
    if stored is not None:
        zero = nibbles(stored).permute(0, 2, 1).reshape(-1, scale.shape[1])[:rows].contiguous()

    def rows_of(packed: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        return nibbles(packed[start:stop]).reshape(stop - start, columns)

    return PackedLinear(words, rows_of, 4, scale, zero, columns=columns, as_rows=words)


def fp8(prefix: str, state: State, said: Mapping[str, Any]) -> PackedLinear:
    """weight [N, K] float8; weight_scale_inv [N / 128, K / 128], a number for each tile, or one for all."""
    weight, scale = state[f"{prefix}.weight"], state[f"{prefix}.weight_scale_inv"].float()
    tile = said.get("weight_block_size") or (128, 128)
    if scale.dim() == 2:
        tall, wide = (int(size) for size in tile)
        fits = scale.shape == (-(-len(weight) // tall), -(-weight.shape[1] // wide))
        _check(prefix, fits, "scales do not fit the tiles")
        _check(prefix, scale.shape[1] == 1 or weight.shape[1] % wide == 0, "a tile beyond the columns")
        scale = scale.repeat_interleave(tall, 0)[: len(weight)].contiguous()
    return _plain(prefix, weight, scale, None)


def bitsandbytes(prefix: str, state: State, said: Mapping[str, Any]) -> PackedLinear:
    """weight [N, K] int8, SCB [N], the largest number of each row; or weight [N * K / 2, 1], two codes of 4 bits a byte, the first
    in the high half, weight.quant_map [16], and weight.absmax [N * K / block], itself in codes of 8 bits where it is nested.
    """
    del said
    largest = state.get(f"{prefix}.SCB")
    if largest is not None:
        return _plain(prefix, state[f"{prefix}.weight"], (largest.float() / 127).reshape(-1, 1), None)
    name = f"{prefix}.weight"
    stated = next((key for key in state if key.startswith(f"{name}.quant_state.bitsandbytes__")), "")
    _check(prefix, bool(stated), "no quant_state")
    of = json.loads(bytes(state[stated].to(torch.uint8).tolist()))
    (rows, columns), block = (int(size) for size in of["shape"]), int(of["blocksize"])
    absmax = state[f"{name}.absmax"]
    if absmax.dtype == torch.uint8:
        outer = state[f"{name}.nested_absmax"].float().repeat_interleave(int(of["nested_blocksize"]))[: absmax.numel()]
        steps = state[f"{name}.nested_quant_map"].float()[absmax.long().reshape(-1)]
        absmax = steps * outer + float(of["nested_offset"])
    packed = state[name].reshape(-1)
    _check(prefix, packed.dtype == torch.uint8 and packed.numel() * 2 == rows * columns, "codes of other than 4 bits")
    _check(prefix, columns % block == 0, f"blocks of {block} that run on over rows of {columns}")

    def rows_of(pairs: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        part = pairs[start * columns // 2 : stop * columns // 2]
        return torch.stack([part >> 4, part & 15], -1).reshape(stop - start, columns)

    scale = absmax.float().reshape(rows, columns // block)
    table = state[f"{name}.quant_map"].float()
    layout = CodeLayout((rows, columns // 2, 2), (0, 1, 2), is_reversed=True)
    return PackedLinear(packed, rows_of, 4, scale, None, columns=columns, as_rows=packed, table=table, layout=layout)


def torchao(prefix: str, state: State, said: Mapping[str, Any]) -> PackedLinear:
    """_weight_qdata [N, K] of int8 or float8, _weight_scale [N, groups], [N, 1] or one, _weight_zero_point; or (Int4Tensor) [N, K / 2]
    with signed codes of 4 bits, the first in the low half, scales and floats that are added, [groups, N] each.
    """
    del said
    codes, scale = state[f"{prefix}._weight_qdata"], state[f"{prefix}._weight_scale"]
    zero = state.get(f"{prefix}._weight_zero_point")
    _check(prefix, f"{prefix}._weight_act_pre_scale" not in state, "activations are scaled (act_pre_scale)")
    if zero is not None and zero.is_floating_point():
        return _torchao_int4(prefix, codes, scale, zero)
    _check(prefix, codes.dtype != torch.uint8, "codes of 4 bits with zero points of integers")
    _check(prefix, scale.numel() == 1 or len(scale) == len(codes), "scales of tiles")
    return _plain(prefix, codes, scale, zero)


def _torchao_int4(prefix: str, pairs: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> PackedLinear:
    _check(
        prefix,
        pairs.dim() == 2 and pairs.dtype in (torch.int8, torch.uint8),
        f"codes of {pairs.dtype}, {pairs.dim()}-D",
    )
    rows, columns = len(pairs), 2 * pairs.shape[1]
    fits = scale.shape == offset.shape == (len(scale), rows) and columns % len(scale) == 0
    _check(prefix, fits, "scales do not fit the codes")

    def rows_of(packed: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        part = packed[start:stop].view(torch.uint8)
        return torch.stack([part & 15, part >> 4], -1).reshape(stop - start, columns) ^ 8  # 8 more than the signed code

    zero = torch.full((rows, len(scale)), 8, dtype=torch.uint8)
    layout = CodeLayout((rows, columns), (0, 1), is_signed=True)
    return PackedLinear(pairs, rows_of, 4, scale.t(), zero, columns=columns, offset=offset, layout=layout)


def _plain(prefix: str, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None) -> PackedLinear:
    """A byte a code, in rows."""
    _check(
        prefix, weight.dtype in (torch.int8, torch.float8_e4m3fn) and weight.dim() == 2, f"weights of {weight.dtype}"
    )
    rows, columns = weight.shape
    if scale.numel() == 1:
        scale = scale.reshape(1, 1).expand(rows, 1).contiguous()
    scale = scale.reshape(rows, -1)
    _check(prefix, columns % scale.shape[1] == 0, "scales do not fit the codes")
    if zero is not None:
        _check(prefix, not zero.any(), "codes of 8 bits with zero points")
    is_float = weight.dtype == torch.float8_e4m3fn
    raw = weight.view(torch.uint8)  # so that a cast of the module leaves them

    def rows_of(packed: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        return packed[start:stop].view(torch.float8_e4m3fn if is_float else torch.int8)

    return PackedLinear(raw, rows_of, 8, scale, None, columns=columns, as_rows=raw)


def _check(prefix: str, holds: bool, why: str) -> None:
    if not holds:
        raise unknown(prefix, why)


_BNB = re.compile(r"(.*)\.(?:SCB|weight\.quant_state\.bitsandbytes__\w+)")
_BNB_PART = re.compile(r"\.weight\.(?:absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.\w+)$")

Reader = Callable[[str, State, Mapping[str, Any]], PackedLinear]
FORMATS: dict[str, tuple[Reader, str, tuple[str, ...]]] = {
    "gptq": (gptq, ".qweight", (".qweight", ".qzeros", ".scales", ".g_idx")),
    "marlin": (marlin, ".B", (".B", ".s", ".workspace")),
    "awq": (awq, ".qweight", (".qweight", ".qzeros", ".scales")),
    "compressed-tensors": (
        compressed,
        ".weight_scale",
        (".weight_scale", ".weight_packed", ".weight_shape", ".weight_zero_point", ".weight_g_idx", ".weight"),
    ),
    "bitsandbytes": (bitsandbytes, "", (".SCB", ".weight_format", ".weight")),
    "torchao": (torchao, "._weight_qdata", ("._weight_qdata", "._weight_scale", "._weight_zero_point")),
    "fp8": (fp8, ".weight_scale_inv", (".weight_scale_inv", ".weight")),
}
"""The reader of a layer, the ending of the names that say which layers are quantized, and all endings of such, by
``quant_method``."""


def read(state: State, said: Mapping[str, Any]) -> tuple[dict[str, PackedLinear], dict[str, torch.Tensor]]:
    """The quantized layers by name, and the tensors of all others. Raises UserError E601 for an unknown layout."""
    method = str(said.get("quant_method"))
    if said.get("is_marlin_format") or said.get("checkpoint_format") == "marlin":
        method = "marlin"
    reader, sign, endings = FORMATS[method]
    if sign:
        prefixes = [name.removesuffix(sign) for name in state if name.endswith(sign)]
    else:
        found = (_BNB.fullmatch(name) for name in state)
        prefixes = [match[1] for match in found if match]
    if not prefixes:
        raise unknown(method, f"no tensor of the checkpoint ends in {sign or 'SCB or quant_state'}")
    layers: dict[str, PackedLinear] = {}
    for prefix in prefixes:
        try:
            layers[prefix] = reader(prefix, state, said)
        except UserError:
            raise
        except (KeyError, ValueError, TypeError, RuntimeError, IndexError) as error:
            raise unknown(prefix, f"{type(error).__name__}: {str(error)[:120]}") from error
    taken = {prefix + ending for prefix in prefixes for ending in endings}
    taken |= {name for name in state if _BNB_PART.search(name)} if not sign else set()
    unused = (".input_scale", ".output_scale", ".activation_scale")
    return layers, {name: value for name, value in state.items() if name not in taken and not name.endswith(unused)}
