"""``--quantize`` and the options beside it on the command line: files, folders, several models, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

import fx2onnx
from fx2onnx.quantize.options import FORMATS, KINDS
from tests.cli.support import factories, invoke
from tests.decoding.test_fused_decoders import PROMPT, checkpoint

MODULE = """
from tests.quantize.modules import Net, SAMPLE
def net(): return Net(), SAMPLE
"""
EVERY_KIND = [(kind, form) for kind in KINDS for form in FORMATS if (kind, form) != ("float8", "matmulnbits")]


@pytest.fixture(autouse=True)
def factory(tmp_path: Path) -> Iterator[Path]:
    with factories(tmp_path, quantized_net=MODULE):
        yield tmp_path


def exported(*arguments: object) -> dict[str, Any]:
    """What the report says of the weights, after an export that was verified."""
    done = invoke("export", "quantized_net:net", "-o", "m.onnx", "--report", "r.json", *arguments)
    assert done.exit_code == 0, done.output
    report = json.loads(Path("r.json").read_text())
    assert report["ok"]
    return report["report"]["quantized"]  # type: ignore[no-any-return]


def operators(path: str | Path = "m.onnx") -> set[str]:
    return {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}


@pytest.mark.long_cases(
    "int8-auto", "nf4-auto", *(f"{kind}-{form}" for kind in ("int2", "ternary") for form in FORMATS)
)
@pytest.mark.parametrize(("kind", "form"), EVERY_KIND)
def test_every_kind_in_every_format(kind: str, form: str) -> None:
    quantized = exported("--quantize", kind, "--format", form, "--block", 32)
    assert quantized["kind"] == kind
    names = {layer["form"] for layer in quantized["layers"].values()}
    is_product = form == "matmulnbits" or (form == "auto" and kind in ("int4", "uint4", "int2", "ternary"))
    assert ("MatMulNBits" in names) == is_product
    assert ("MatMulNBits" in operators()) == (is_product and kind != "nf4")
    assert ("MatMulBnb4" in operators()) == (is_product and kind == "nf4")
    assert all(layer["block"] <= 32 for layer in quantized["layers"].values())


@pytest.mark.long
def test_block_exclude_worst_embeddings() -> None:
    quantized = exported(
        "--quantize", "int4", "--block", 16, "--exclude", "up*", "--exclude", "odd*", "--keep-worst", 1
    )
    assert quantized["kept"]["up.weight"] == quantized["kept"]["odd.weight"] == "excluded"
    assert sum("would change" in why for why in quantized["kept"].values()) == 1
    assert {layer["block"] for layer in quantized["layers"].values()} == {16}
    assert "table.weight" in exported("--quantize", "int8", "--embeddings")["layers"]
    assert "error" not in exported("--quantize", "int8", "--no-accuracy")["layers"]["up.weight"]


def test_what_it_does_to_layers_is_said() -> None:
    done = invoke("export", "quantized_net:net", "-o", "m.onnx", "--quantize", "int4")
    said = " ".join(done.output.split())
    assert "layers that change most: " in said
    assert "outputs beside the model's without quantization" in said


TARGETS = [("onnxruntime-1.20", True), ("onnx", False), ("openvino", False)]


@pytest.mark.long_cases(but=["openvino-False"])
@pytest.mark.parametrize(("target", "has_product"), TARGETS)
def test_targets(target: str, has_product: bool) -> None:
    kind = "int8" if target == "openvino" else "int4"
    exported("--quantize", kind, "--target", target)
    assert ("MatMulNBits" in operators()) == has_product
    linted = invoke("lint", "m.onnx", "--target", target)
    assert linted.exit_code == 0, linted.output


BAD: list[tuple[tuple[object, ...], str, str]] = [
    (("--quantize", "int3"), "E001", "int8, int4, uint4, int2, ternary, nf4, float8"),
    (("--quantize", "int4", "--format", "gguf"), "E001", "gguf"),
    (("--quantize", "int4", "--block", 5), "E001", "block 5"),
    (("--quantize", "int4", "--format", "matmulnbits", "--block", 0), "E001", "no block of 0"),
    (("--quantize", "float8", "--format", "matmulnbits"), "E001", "no float8"),
    (("--quantize", "int4", "--format", "matmulnbits", "--target", "onnx"), "E204", "MatMulNBits"),
    (("--quantize", "int4", "--opset", 17), "E202", "opset 21"),
    (("--quantize", "int4", "--target", "wonnx"), "E204", "DequantizeLinear"),
    (("--quantize", "int4", "--exclude", "*"), "E001", "excluded"),
    (("--quantize", "int4", "--keep-worst", 1, "--no-accuracy"), "E001", "keep_worst"),
    (("--quantize", "int4", "--weights", "none"), "E001", "export_params"),
    (("--quantize", "int4", "--training"), "E001", "--quantize is no option of fx2onnx export-training"),
    (("--block", 32), "E001", "--quantize"),
    (("--exclude", "up*"), "E001", "--quantize"),
    (("--keep-worst", 1), "E001", "--quantize"),
    (("--embeddings",), "E001", "--quantize"),
    (("--format", "qdq"), "E001", "--quantize"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), BAD, ids=lambda item: " ".join(map(str, item)) if isinstance(item, tuple) else None)  # fmt: skip
def test_what_cannot_be_is_one_error_and_leaves_nothing(arguments: tuple[object, ...], code: str, text: str) -> None:
    before = set(Path().iterdir())
    done = invoke("export", "quantized_net:net", "-o", "m.onnx", *arguments)
    assert done.exit_code == 2, done.output
    assert f"[{code}]" in done.output
    assert text in done.output
    assert {path for path in Path().iterdir() if path.name != "__pycache__"} <= before


FOLDERS: list[tuple[tuple[object, ...], set[str]]] = [
    (("--quantize", "int4"), {"MatMulNBits"}),
    (("--quantize", "int8", "--embeddings", "--cache", "static"), {"DequantizeLinear", "TensorScatter"}),
    (("--quantize", "uint4", "--fused", "--keep-worst", 1), {"MatMulNBits", "GroupQueryAttention"}),
    (("--quantize", "int4", "--embeddings", "--target", "onnxruntime-genai"), {"MatMulNBits", "GroupQueryAttention"}),
]


@pytest.mark.long
@pytest.mark.parametrize(("arguments", "names"), FOLDERS, ids=[" ".join(map(str, given)) for given, _ in FOLDERS])
def test_folders_that_generate(tmp_path: Path, arguments: tuple[object, ...], names: set[str]) -> None:
    checkpoint("llama", tmp_path / "in")
    task = ("--task", "text-generation-with-past", "--report", "r.json")
    done = invoke("export", f"hf:{tmp_path / 'in'}", *task, "-o", "out", *arguments)
    assert done.exit_code == 0, done.output
    report = json.loads(Path("r.json").read_text())
    assert report["ok"]
    layers = report["reports"]["model.onnx"]["quantized"]["layers"]
    assert sum(len(name.split("+")) for name in layers) >= (20 if "--keep-worst" in arguments else 21)
    assert not [why for why in report["reports"]["model.onnx"]["quantized"]["kept"].values() if "computed" in why]
    assert names <= operators("out/model.onnx")
    found = [
        fx2onnx.load("out", engine=engine).generate(torch.tensor(PROMPT), max_new_tokens=8).tolist()
        for engine in ("onnxruntime", "runner")
    ]
    assert found[0] == found[1]


@pytest.mark.long
def test_a_folder_that_cannot_be_leaves_nothing(tmp_path: Path) -> None:
    checkpoint("llama", tmp_path / "in")
    task = ("--task", "text-generation-with-past", "--quantize", "int4")
    for more in (("--weights", "reference"), ("--exclude", "*")):
        done = invoke("export", f"hf:{tmp_path / 'in'}", "-o", "out", *task, *more)
        assert done.exit_code == 2, done.output
        assert "[E001]" in done.output
        assert not Path("out").exists()


@pytest.mark.long
def test_a_file_of_another_origin() -> None:
    exported("--no-verify", "--quantize", "int8", "--no-accuracy", "--exclude", "[!u]*")
    done = invoke("export", "quantized_net:net", "-o", "plain.onnx", "--no-verify")
    assert done.exit_code == 0, done.output
    done = invoke("optimize", "plain.onnx", "small.onnx", "--quantize", "int4", "--exclude", "up*", "--embeddings")
    assert done.exit_code == 0, done.output
    assert Path("small.onnx").stat().st_size < Path("plain.onnx").stat().st_size / 3
    assert "MatMulNBits" in operators("small.onnx")
    done = invoke(
        "optimize", "plain.onnx", "other.onnx", "--quantize", "int4", "--format", "matmulnbits", "--target", "onnx"
    )
    assert done.exit_code == 2
    assert "[E204]" in done.output
    assert not Path("other.onnx").exists()
