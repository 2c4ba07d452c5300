"""Quantised checkpoints, written here by the public definition of their layouts: exported in their own integers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.exporting import packed
from fx2onnx.quantize.schemes import FP4, NF4
from fx2onnx.sources import resolve
from fx2onnx.sources.hf.packed_linear import PackedLinear

GROUP = 32
Written = tuple[dict[str, torch.Tensor], torch.Tensor]
"""The tensors of a layer, and the numbers that they stand for."""


def words(codes: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Eight codes along the last axis in one word of 32 bits; ``order[i]`` is the code at place i."""
    found = torch.zeros(*codes.shape[:-1], codes.shape[-1] // 8, dtype=torch.int64)
    for place, source in enumerate(order):
        found |= codes[..., source::8].long() << (4 * place)
    return torch.where(found >= 2**31, found - 2**32, found).int()


def asymmetric(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    codes = torch.randint(0, 16, (rows, columns))
    scale = (torch.rand(rows, columns // GROUP) * 0.02 + 0.005).half()
    zero = torch.randint(1, 16, (rows, columns // GROUP))
    spread = [each.repeat_interleave(GROUP, 1) for each in (scale.float(), zero)]
    return codes, scale, zero, (codes - spread[1]) * spread[0]


def gptq(rows: int, columns: int) -> Written:
    codes, scale, zero, numbers = asymmetric(rows, columns)
    return {
        "qweight": words(codes).t().contiguous(),
        "qzeros": words((zero - 1).t().contiguous()),
        "scales": scale.t().contiguous(),
        "g_idx": (torch.arange(columns) // GROUP).int(),
    }, numbers


def gptq_act_order(rows: int, columns: int) -> Written:
    tensors, numbers = gptq(rows, columns)
    order = torch.randperm(columns)
    tensors["g_idx"] = tensors["g_idx"][order]
    codes = torch.stack([(tensors["qweight"] >> (4 * place)) & 15 for place in range(8)], 1).reshape(columns, rows)
    tensors["qweight"] = words(codes[order].t()).t().contiguous()
    return tensors, numbers[:, order]


def marlin(rows: int, columns: int) -> Written:
    """As AutoGPTQ packs it (qlinear_marlin): tiles of 16 x 16, codes and scales in the order of the kernel's threads."""
    group = GROUP if rows != 128 else columns  # a whole row as one group has scales in an order of their own
    order: list[int] = []
    for i in range(32):
        perm = [
            16 * row + i // 4 + 8 * block
            for block in (0, 1)
            for row in (2 * (i % 4), 2 * (i % 4) + 1, 2 * (i % 4 + 4), 2 * (i % 4 + 4) + 1)
        ]
        order += [place + 256 * j for j in range(4) for place in perm]
    ordered = torch.tensor(order).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(-1)
    codes = torch.randint(0, 16, (columns, rows))
    scale = (torch.rand(columns // group, rows) * 0.02 + 0.005).half()
    tiles = codes.reshape(columns // 16, 16, rows // 16, 16).permute(0, 2, 1, 3).reshape(columns // 16, rows * 16)
    by_thread = tiles.reshape(-1, 1024)[:, ordered].reshape(tiles.shape)
    of_scales = [i + 8 * j for i in range(8) for j in range(8)]
    if group == columns:
        of_scales = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    stored = scale.reshape(-1, len(of_scales))[:, of_scales].reshape(scale.shape)
    numbers = (codes - 8) * scale.float().repeat_interleave(group, 0)
    return {"B": words(by_thread), "s": stored, "workspace": torch.zeros(16, dtype=torch.int32)}, numbers.t()


def awq(rows: int, columns: int) -> Written:
    codes, scale, zero, numbers = asymmetric(rows, columns)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        "qweight": words(codes.t().contiguous(), order),
        "qzeros": words(zero.t().contiguous(), order),
        "scales": scale.t().contiguous(),
    }, numbers


def pack_quantized(rows: int, columns: int) -> Written:
    codes, scale, _, _ = asymmetric(rows, columns)
    numbers = (codes - 8) * scale.float().repeat_interleave(GROUP, 1)
    shape = torch.tensor([rows, columns])
    return {"weight_packed": words(codes), "weight_scale": scale, "weight_shape": shape}, numbers


def int_quantized(rows: int, columns: int) -> Written:
    codes = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    scale = (torch.rand(rows, 1) * 0.002 + 0.0005).half()
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale.float()


def float_quantized(rows: int, columns: int) -> Written:
    codes = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scale = (torch.rand(rows, 1) * 0.1 + 0.05).half()
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale.float()


def tiles(rows: int, columns: int) -> Written:
    codes = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-rows // 48), columns // 32) * 0.1 + 0.05
    spread = scale.repeat_interleave(48, 0)[:rows].repeat_interleave(32, 1)
    return {"weight": codes, "weight_scale_inv": scale}, codes.float() * spread


def bnb_int8(rows: int, columns: int) -> Written:
    codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
    largest = torch.rand(rows) * 0.2 + 0.05
    return {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}, codes * largest[
        :, None
    ] / 127


def bnb_4bit(kind: str, nested: bool) -> Callable[[int, int], Written]:
    """As bitsandbytes' Params4bit writes itself: blocks of 32, the first code in the high half of a byte."""
    table = torch.from_numpy(NF4 if kind == "nf4" else FP4)

    def write(rows: int, columns: int) -> Written:
        codes = torch.randint(0, 16, (rows, columns))
        flat = codes.reshape(-1, 2)
        said = {"quant_type": kind, "blocksize": GROUP, "dtype": "float16", "shape": [rows, columns]}
        absmax = torch.rand(rows * columns // GROUP) * 0.2 + 0.05
        tensors = {"weight": (flat[:, :1] << 4 | flat[:, 1:]).to(torch.uint8), "weight.quant_map": table.clone()}
        if nested:
            own = torch.randint(0, 256, absmax.shape, dtype=torch.uint8)
            outer = torch.rand(-(-len(own) // 256)) * 0.1 + 0.05
            steps = torch.linspace(-1, 1, 256)
            said |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.2}
            absmax = steps[own.long()] * outer.repeat_interleave(256)[: len(own)] + 0.2
            tensors |= {"weight.absmax": own, "weight.nested_absmax": outer, "weight.nested_quant_map": steps}
        else:
            tensors["weight.absmax"] = absmax
        text = torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)
        tensors[f"weight.quant_state.bitsandbytes__{kind}"] = text
        return tensors, table[codes] * absmax.reshape(rows, -1).repeat_interleave(GROUP, 1)

    return write


def torchao_int8(rows: int, columns: int) -> Written:
    codes = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    scale = torch.rand(rows, columns // GROUP) * 0.002 + 0.0005
    zero = torch.zeros(rows, columns // GROUP, dtype=torch.int8)
    tensors = {"_weight_qdata": codes, "_weight_scale": scale, "_weight_zero_point": zero}
    return tensors, codes * scale.repeat_interleave(GROUP, 1)


def torchao_int4(rows: int, columns: int) -> Written:
    """As FBGEMM's int4_row_quantize_zp and pack_int4, which torchao's Int4Tensor calls: numbers are code * scale + zero."""
    codes = torch.randint(-8, 8, (rows, columns), dtype=torch.int8)
    scale = (torch.rand(rows, columns // GROUP) * 0.01 + 0.005).half()
    zero = (torch.randn(rows, columns // GROUP) * 0.02).half()
    pairs = (codes[:, ::2] & 15) | (codes[:, 1::2] << 4)
    tensors = {
        "_weight_qdata": pairs,
        "_weight_scale": scale.t().contiguous(),
        "_weight_zero_point": zero.t().contiguous(),
    }
    spread = [each.float().repeat_interleave(GROUP, 1) for each in (scale, zero)]
    return tensors, codes * spread[0] + spread[1]


def torchao_float8(rows: int, columns: int) -> Written:
    codes = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scale = torch.rand(rows, 1) * 0.1 + 0.05
    return {"_weight_qdata": codes, "_weight_scale": scale}, codes.float() * scale


LAYOUTS: dict[str, tuple[Callable[[int, int], Written], dict[str, Any]]] = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP}),
    "gptq act-order": (gptq_act_order, {"quant_method": "gptq", "bits": 4, "desc_act": True}),
    "marlin": (marlin, {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "version": "gemm"}),
    "pack-quantized": (pack_quantized, {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    "int-quantized": (int_quantized, {"quant_method": "compressed-tensors", "format": "int-quantized"}),
    "float-quantized": (float_quantized, {"quant_method": "compressed-tensors", "format": "float-quantized"}),
    "bitsandbytes int8": (bnb_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "bitsandbytes nf4": (bnb_4bit("nf4", False), {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "bitsandbytes nested fp4": (bnb_4bit("fp4", True), {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "torchao int8": (torchao_int8, {"quant_method": "torchao", "quant_type": {}}),
    "torchao int4": (torchao_int4, {"quant_method": "torchao", "quant_type": {}}),
    "torchao float8": (torchao_float8, {"quant_method": "torchao", "quant_type": {}}),
    "fp8": (tiles, {"quant_method": "fp8", "weight_block_size": [48, 32]}),
}
"""By name: what writes a layer, and what the config says."""


def checkpoint(folder: Path, layout: str) -> nn.Module:
    """Write a small Llama whose linear layers but the head are quantised. Gives the model on the numbers of the codes."""
    import transformers

    inner, heads = (128, 4) if layout == "marlin" else (96, 2)  # Marlin has tiles of 64 outputs
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=inner, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=heads,
        vocab_size=100, max_position_embeddings=64, dtype="float16",
    )  # fmt: skip
    return quantized(folder, layout, config, torch.float16)


def quantized(folder: Path, layout: str, config: Any, dtype: torch.dtype) -> nn.Module:
    """The same of any config."""
    import transformers

    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    model.save_pretrained(folder)
    write, said = LAYOUTS[layout]
    state = load_file(folder / "model.safetensors")
    for name, part in list(model.named_modules()):
        if isinstance(part, nn.Linear) and name != "lm_head":
            tensors, numbers = write(*part.weight.shape)
            del state[f"{name}.weight"]
            state |= {f"{name}.{key}": value.contiguous() for key, value in tensors.items()}
            part.weight.data = numbers.to(dtype)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | {"quantization_config": said}))
    return model  # type: ignore[no-any-return]


@pytest.mark.long_cases(but=("FalconMamba-gptq act-order",))
@pytest.mark.parametrize("layout", ["gptq act-order", "awq", "bitsandbytes nf4"])
@pytest.mark.parametrize("kind", ["Mamba", "FalconMamba"])
def test_a_module_may_read_the_weight_of_a_packed_layer(tmp_path: Path, kind: str, layout: str) -> None:
    """``dt_proj.weight @ x``, whose columns may be in another order in the file."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=100, hidden_size=64, state_size=16, num_hidden_layers=1, time_step_rank=32
    )
    plain: Any = quantized(tmp_path, layout, config, torch.float32)
    module = fx2onnx.load(fx2onnx.export_folder(f"hf:{tmp_path}", tmp_path / "out").path)
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(module(input_ids=ids).logits, plain(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_is_exported_in_its_own_integers(tmp_path: Path, layout: str) -> None:
    plain = checkpoint(tmp_path, layout)
    source = resolve(f"hf:{tmp_path}")
    assert sum(isinstance(part, PackedLinear) for part in source.module.modules()) == 14
    with torch.no_grad():
        want, got = (module(**source.kwargs).logits for module in (plain, source.module))
    torch.testing.assert_close(got, want, rtol=1e-2, atol=2e-3)
    out = tmp_path / "out.onnx"
    result = fx2onnx.export(
        source.module, (), out, kwargs=source.kwargs, dynamic_shapes=source.dynamic_shapes, verify=True
    )
    assert {"runner", "onnxruntime"} <= set(result.report.verdict["versions"])
    weights = onnx.load(out).graph.initializer
    large = {w.name: w.data_type for w in weights if np.prod(w.dims) > 1024 and "proj" in w.name}
    assert large
    assert not set(large.values()) & {1, 10, 16}
    if layout in ("gptq", "awq", "pack-quantized", "torchao int4"):
        names = {(node.domain, node.op_type) for node in result.model.graph}
        assert ("com.microsoft", "MatMulNBits") in names


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "target"), [*((name, "onnxruntime") for name in LAYOUTS), ("bitsandbytes nf4", "onnx"), ("gptq", "onnx")]
)
def test_codes_stay_in_the_checkpoints_file(tmp_path: Path, layout: str, target: str) -> None:
    checkpoint(tmp_path, layout)
    source = resolve(f"hf:{tmp_path}", weights="reference")
    out, files = tmp_path / "out.onnx", source.weight_files
    fx2onnx.export(source.module, (), out, kwargs=source.kwargs, weight_files=files, verify=True, target=target)
    model = onnx.load(out, load_external_data=False)
    outside = {w.name for w in model.graph.initializer if w.external_data}
    assert sum(name.endswith(".codes") for name in outside) == 14
    if layout in ("gptq", "awq", "torchao int4"):
        assert sum(".scale" in name for name in outside) == 14


@pytest.mark.long
def test_a_folder_by_reference_generates_what_a_copy_does(tmp_path: Path) -> None:
    """The copy is exported second: of the checkpoint's folder it takes nothing that the first export wrote."""
    checkpoint(tmp_path / "in", "gptq")
    source = f"hf:{tmp_path / 'in'}"
    there = fx2onnx.export_folder(source, tmp_path / "in", weights="reference")
    copied = fx2onnx.export_folder(source, tmp_path / "out")
    prompt = np.array([[5, 6, 7, 8]])
    found = [np.asarray(fx2onnx.load(each.path).generate(prompt, max_new_tokens=4)) for each in (there, copied)]
    assert np.array_equal(*found)


@pytest.mark.long_cases("pack-quantized")
@pytest.mark.parametrize("layout", ["gptq", "awq", "pack-quantized"])
def test_pages_of_codes_are_given_back_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    given: set[tuple[int, int]] = set()
    monkeypatch.setattr(packed, "give_back", lambda address, length: given.add((address, length)))
    checkpoint(tmp_path, layout)
    source = resolve(f"hf:{tmp_path}")
    fx2onnx.export(source.module, (), tmp_path / "out.onnx", kwargs=source.kwargs)
    layers = [part for part in source.module.modules() if isinstance(part, PackedLinear)]
    assert given == {(layer.packed.data_ptr(), layer.packed.nbytes) for layer in layers}


@pytest.mark.long
def test_a_capture_computes_no_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture of some hundred layers would cost more than all else if it computed codes."""
    checkpoint(tmp_path, "gptq")
    source = resolve(f"hf:{tmp_path}")
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: pytest.fail("the layer was computed"))
    fx2onnx.export(source.module, (), tmp_path / "out.onnx", kwargs=source.kwargs)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["gptq", "bitsandbytes nf4"])
@pytest.mark.parametrize("target", ["onnx", "onnxruntime"])
def test_other_targets_and_dtypes(tmp_path: Path, target: str, layout: str) -> None:
    checkpoint(tmp_path, layout)
    source = resolve(f"hf:{tmp_path}", dtype="bfloat16" if target == "onnxruntime" else "float32")
    result = fx2onnx.export(source.module, (), tmp_path / "o.onnx", kwargs=source.kwargs, target=target, verify=True)
    assert any(node.domain == "com.microsoft" for node in result.model.graph) == (target == "onnxruntime")


BROKEN: list[tuple[str, Callable[[dict[str, torch.Tensor], dict[str, Any]], object]]] = [
    ("codes of 3 bits", lambda _, said: said.update(bits=3)),
    ("no tensor", lambda state, _: [state.pop(name) for name in list(state) if name.endswith("qweight")]),
    ("checkpoint_format 'bitblas'", lambda _, said: said.update(checkpoint_format="bitblas")),
    ("no tensor", lambda _, said: said.update(checkpoint_format="marlin")),
    ("KeyError", lambda state, _: [state.pop(name) for name in list(state) if name.endswith("scales")]),
    ("groups of different sizes", lambda state, _: [state.update({n: v[:1]}) for n, v in state.items() if n.endswith("scales")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "spoil"), BROKEN, ids=range(len(BROKEN)))
def test_an_unknown_layout_is_one_clear_error(
    tmp_path: Path, text: str, spoil: Callable[[dict[str, torch.Tensor], dict[str, Any]], object]
) -> None:
    checkpoint(tmp_path, "gptq")
    state = {name: value.clone() for name, value in load_file(tmp_path / "model.safetensors").items()}
    stated = json.loads((tmp_path / "config.json").read_text())
    spoil(state, stated["quantization_config"])
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(UserError, match="an unknown layout") as caught:
        resolve(f"hf:{tmp_path}")
    assert caught.value.code == "E601"
    assert text in caught.value.why
