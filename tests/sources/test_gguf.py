"""GGUF files, written here by the ``gguf`` package: exported in their own codes, equal to its numbers and to PyTorch's tokens."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.sources import resolve
from fx2onnx.sources.hf.gguf_layers import LAYOUTS, BlockEmbedding, BlockLinear, BlockRows
from tests.cli.support import invoke
from tests.sources.gguf_files import write

TEN = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "phi3")
PROMPT = np.array([[5, 6, 7, 100]])


def drawn(layout: str, rows: int, blocks: int, seed: int) -> tuple[Any, Any]:
    """Random bytes as blocks, and the numbers that the ``gguf`` package reads in them."""
    size = LAYOUTS[layout].size_bytes
    raw = np.random.default_rng(seed).integers(0, 256, (rows, blocks * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        return raw, gguf.dequantize(raw, gguf.GGMLQuantizationType[layout])


def same_bits(found: Any, wanted: Any) -> bool:
    return bool(((found.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(found) & np.isnan(wanted))).all())


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(rows=st.integers(1, 5), blocks=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_numbers_are_those_of_the_gguf_package_bit_for_bit(layout: str, rows: int, blocks: int, seed: int) -> None:
    raw, wanted = drawn(layout, rows, blocks, seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(rows))
    with np.errstate(all="ignore"):
        assert same_bits(BlockRows(LAYOUTS[layout], torch.from_numpy(raw)).numbers(0, rows), wanted)
        found = BlockRows(LAYOUTS[layout], torch.from_numpy(raw), order).numbers(0, rows)
    assert same_bits(found, wanted[order.numpy()])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_halves_of_codes_are_the_codes(layout: str) -> None:
    form = LAYOUTS[layout]
    if form.bits == 4:
        return
    raw, _ = drawn(layout, 64, 2, 0)
    codes = form.codes(raw.reshape(-1, form.size_bytes))
    high, low = (half.astype(int) for half in form.halves(codes))
    assert max(high.max(), low.max()) < 16
    assert (form.step * (high - form.zeros[0]) + low - form.zeros[1] == codes.astype(int) - form.zero).all()


class OneLayer(torch.nn.Module):
    """A product with a weight in blocks, or a look-up."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        return found


def in_onnxruntime(path: Path, x: torch.Tensor) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_has_the_numbers_bit_for_bit(tmp_path: Path, layout: str, target: str) -> None:
    """The product with the unit matrix, and all rows of the table."""
    raw, _ = drawn(layout, 24, 1 if LAYOUTS[layout].elements == 256 else 8, 1)
    form = LAYOUTS[layout]
    for place in {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)}.get(layout, (0, 2)):
        if layout == "MXFP4":
            raw[:, :: form.size_bytes] = 120
        elif place == 0 or layout in ("Q4_1", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0"):
            raw.reshape(-1, form.size_bytes)[:, place + 1] &= 0x3F  # steps that are small and positive
    wanted = gguf.dequantize(raw, gguf.GGMLQuantizationType[layout])
    rows = BlockRows(form, torch.from_numpy(raw))
    unit, ids = torch.eye(rows.columns), torch.arange(24).reshape(2, 12)
    for layer, x, shape in (
        (BlockLinear(rows, None), unit, "linear"),
        (BlockEmbedding(rows, torch.float32), ids, "table"),
    ):
        path = tmp_path / f"{shape}.onnx"
        fx2onnx.export(OneLayer(layer), (x,), path, target=target)
        found = in_onnxruntime(path, x)
        found = found.T if shape == "linear" else found.reshape(24, -1)
        assert np.array_equal(found, wanted), shape


def source_of(path: Path) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        source = resolve(f"gguf:{path}")
    return source, [str(each.message) for each in caught if str(path) in str(each.message)]


@pytest.mark.long
@pytest.mark.parametrize("layout", TEN)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tokens_are_those_of_the_numbers_in_pytorch(tmp_path: Path, architecture: str, layout: str) -> None:
    path = tmp_path / "model.gguf"
    plain = write(path, architecture, layout)
    folder = fx2onnx.export_folder(f"gguf:{path}", tmp_path / "out")
    wanted = plain.generate(torch.from_numpy(PROMPT), max_new_tokens=8, do_sample=False).numpy()
    assert np.array_equal(fx2onnx.load(folder.path).generate(PROMPT, max_new_tokens=8), wanted)
    weights = onnx.load(tmp_path / "out" / "model.onnx").graph.initializer
    assert not [w.name for w in weights if np.prod(w.dims) > 40_000 and w.data_type in (1, 10, 16)]


@pytest.mark.long
@pytest.mark.parametrize("layout", ["Q4_0", "Q6_K", "F16", "BF16", "IQ4_NL", "MXFP4"])
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gpt2", "qwen2moe", "falcon", "mamba"])
def test_logits_are_those_of_the_file_in_transformers(tmp_path: Path, architecture: str, layout: str) -> None:
    """transformers' own loader turns everything into float32."""
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    plain = write(tmp_path / "model.gguf", architecture, layout)
    source, notes = source_of(tmp_path / "model.gguf")
    assert all("floating-point" in note for note in notes), notes
    dtype = next(source.module.parameters()).dtype
    legacy: Any = transformers.AutoModelForCausalLM.from_config(source.module.config, dtype=torch.float32).eval()
    tensors = load_gguf_checkpoint(str(tmp_path / "model.gguf"), return_tensors=True, model_to_load=legacy)["tensors"]
    legacy.load_state_dict(tensors, strict=False)
    legacy.to(dtype)
    with torch.no_grad():
        found, own, theirs = (each(**source.kwargs).logits for each in (source.module, plain.to(dtype), legacy))
    if dtype != torch.float32:  # a cast of a whole model rounds frequencies, too, which from_pretrained does not
        wanted, theirs = plain.state_dict(), legacy.state_dict()
        for name, value in source.module.state_dict().items():
            assert torch.equal(value, wanted[name]), name
            assert torch.equal(value, theirs[name]), name
    else:
        atol = 1e-5 if architecture == "mamba" else 1e-6  # the logarithm of a number, and back
        torch.testing.assert_close(found, own, rtol=1e-5, atol=atol)
        torch.testing.assert_close(found, theirs, rtol=1e-5, atol=atol)
    fx2onnx.export(
        source.module, (), tmp_path / "o.onnx", kwargs=source.kwargs, dynamic_shapes=source.dynamic_shapes, verify=True
    )


@pytest.mark.long
def test_an_embedding_and_the_head_share_their_codes(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", "qwen2", "Q4_1")
    source, _ = source_of(tmp_path / "model.gguf")
    fx2onnx.export(source.module, (), tmp_path / "o.onnx", kwargs=source.kwargs)
    names = [w.name for w in onnx.load(tmp_path / "o.onnx").graph.initializer if "embed_tokens" in w.name]
    assert sum("codes" in name for name in names) == 1
    assert not [w for w in onnx.load(tmp_path / "o.onnx").graph.initializer if "lm_head" in w.name]


@pytest.mark.long
def test_weights_that_are_numbers_stay_in_the_file(tmp_path: Path) -> None:
    plain = write(tmp_path / "model.gguf", "qwen2", "F16").half()
    done = fx2onnx.export_folder(f"hf:{tmp_path}", tmp_path, weights="reference")
    outside = [
        w for w in onnx.load(done.path / "model.onnx", load_external_data=False).graph.initializer if w.external_data
    ]
    assert len(outside) >= 15
    assert {entry.value for w in outside for entry in w.external_data if entry.key == "location"} == {"model.gguf"}
    wanted = plain.generate(torch.from_numpy(PROMPT), max_new_tokens=4, do_sample=False).numpy()
    assert np.array_equal(fx2onnx.load(done.path).generate(PROMPT, max_new_tokens=4), wanted)
    assert (tmp_path / "model.gguf").exists()


@pytest.mark.long
def test_a_folder_has_the_tokenizer_and_the_source_of_the_file(tmp_path: Path) -> None:
    import transformers

    write(tmp_path / "model.gguf", "llama", "Q4_K")
    done = invoke("export-folder", f"gguf:{tmp_path / 'model.gguf'}", "-o", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.decode(tokenizer("hello you")["input_ids"]) == "hello you"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text == "user: hi\nassistant:"
    asked = ["generate", str(tmp_path / "out"), "--prompt-ids", "5,6,7", "--verify", "--trust-source"]
    assert invoke(*asked).exit_code == 0
    assert "model.gguf" in (tmp_path / "out" / "fx2onnx.json").read_text()


@pytest.mark.long
def test_parts_of_a_model_are_read_together(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    write(whole, "llama", "Q4_0")
    reader = gguf.GGUFReader(whole)
    write(tmp_path / "model-00001-of-00002.gguf", "llama", "Q4_0")
    second = gguf.GGUFWriter(tmp_path / "model-00002-of-00002.gguf", "llama")
    for tensor in reader.tensors:
        second.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    second.write_header_to_file()
    second.write_kv_data_to_file()
    second.write_tensors_to_file()
    second.close()
    whole.unlink()
    assert len(resolve(f"hf:{tmp_path}").weight_files) == 0
    (tmp_path / "model-00002-of-00002.gguf").unlink()
    with pytest.raises(UserError, match=r"E302.*no file .*00002-of-00002"):
        resolve(f"hf:{tmp_path}")


@pytest.mark.long
def test_factors_of_rotary_frequencies_are_applied(tmp_path: Path) -> None:
    """llama.cpp writes Llama 3.1's scaled frequencies as a tensor, which transformers leaves out."""
    model_file = tmp_path / "model.gguf"
    write(model_file, "llama", "Q4_0")
    plain = resolve(f"gguf:{model_file}").module.model.rotary_emb.inv_freq.clone()
    reader, factors = gguf.GGUFReader(model_file), np.linspace(1, 8, len(plain), dtype=np.float32)
    writer = gguf.GGUFWriter(tmp_path / "scaled.gguf", "llama")
    for name, each in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            value = each.contents()
            kind = each.types[0]
            writer.add_key_value(name, value, kind, each.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source, notes = source_of(tmp_path / "scaled.gguf")
    torch.testing.assert_close(source.module.model.rotary_emb.inv_freq, plain / torch.from_numpy(factors))
    assert not notes


def test_scaled_positions_and_what_is_left_out_are_said(tmp_path: Path) -> None:
    more: dict[str, Any] = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    write(tmp_path / "model.gguf", "llama", "F32", tokens=False, llama__logit_scale=0.5, **more)
    source, notes = source_of(tmp_path / "model.gguf")
    assert source.module.config.rope_parameters["factor"] == 4.0
    assert len(notes) == 1
    assert "llama.logit_scale" in notes[0]


def patched(start: int, content: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:start] + content + data[start + len(content) :]


def with_type(data: bytes, kind: int) -> bytes:
    """The file with another layout for the first tensor."""
    at = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    return data[:at] + struct.pack("<I", kind) + data[at + 4 :]


def beyond(data: bytes) -> bytes:
    at = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16 + 4
    return data[:at] + struct.pack("<Q", 1 << 40) + data[at + 8 :]


def text_of(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


BROKEN: dict[str, tuple[str, str, Callable[[bytes], bytes]]] = {
    "magic": ("E302", "magic", patched(0, b"GGML")),
    "version": ("E302", "v9", patched(4, struct.pack("<I", 9))),
    "empty": ("E302", "cannot read the GGUF file", lambda data: b""),
    "cut header": ("E302", "cannot read the GGUF file", lambda data: data[:300]),
    "cut tensors": ("E302", "cannot read the GGUF file", lambda data: data[:-40_000]),
    "counts": ("E302", "cannot read the GGUF file", patched(8, struct.pack("<QQ", 1 << 62, 1 << 62))),
    "beyond the end": ("E302", "cannot read the GGUF file", beyond),
    "unknown layout": ("E601", "unknown layout type 77", lambda data: with_type(data, 77)),
    "architecture": ("E601", "unknown architecture 'llamb'", lambda data: data.replace(b"llama", b"llamb")),
    "known to transformers alone": (
        "E601",
        "unknown architecture 'deci!'",
        lambda data: data.replace(b"llama", b"deci!"),
    ),
    "other metadata": (
        "E302",
        "its metadata lacks something",
        lambda data: data.replace(text_of("llama"), text_of("lfm2")).replace(text_of("small"), text_of("small!")),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_damaged_or_unknown_file_is_one_clear_error(tmp_path: Path, case: str) -> None:
    code, text, spoil = BROKEN[case]
    path = tmp_path / "model.gguf"
    write(path, "llama", "Q4_0", tokens=False)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(UserError) as caught:
        fx2onnx.export_folder(f"gguf:{path}", tmp_path / "out")
    assert caught.value.code == code
    assert text in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_any_cut_is_an_error_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, "llama", "Q4_0", tokens=False)
    content = path.read_bytes()
    from fx2onnx.sources.hf.gguf_file import opened

    for length in [*range(0, 400, 37), *range(400, len(content), len(content) // 4)]:
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match="E302"):
            opened(path)


def test_wrong_names_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"E302.*no file"):
        resolve(f"gguf:{tmp_path / 'none.gguf'}")
    with pytest.raises(UserError, match=r"E302.*no GGUF file"):
        resolve(f"gguf:{tmp_path}")
    for name in ("a", "b"):
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match=r"E601.*2 GGUF files"):
        resolve(f"hf:{tmp_path}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(UserError, match=r"E602.*gguf"):
        resolve(f"gguf:{tmp_path / 'a.gguf'}")
