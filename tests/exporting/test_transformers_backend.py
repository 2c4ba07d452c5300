"""fx2onnx as a backend of transformers' exporters: exported, saved, opened and run by transformers, with the model's results."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.sources.seeding import seeded
from fx2onnx.torchcompat.pytrees import pytree, registered_meanwhile

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
exporters = pytest.importorskip("transformers.exporters", reason="this transformers has no exporters")
pytest.importorskip("transformers.exporters.metadata", reason="this transformers has no register_backend")

from fx2onnx.exporting import transformers_backend  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
TEXT = SIZES | {"num_key_value_heads": 2}
SPEECHLESS = {"vocab_size": 99, "d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 1, "num_heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "Bert": SIZES,
    "LlamaForCausalLM": TEXT,
    "MixtralForCausalLM": TEXT | {"num_local_experts": 4},
    "T5ForConditionalGeneration": SPEECHLESS,
}


@pytest.fixture(autouse=True)
def structures() -> Iterator[None]:
    """transformers, too, registers caches as structures when it opens and runs a file."""
    with registered_meanwhile():
        yield


def test_classes_of_modules_that_are_imported_stay_structures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers registers its outputs where a module makes their classes, which no second import does."""
    monkeypatch.syspath_prepend(tmp_path)
    register = (
        "pytree.register_pytree_node({0}, lambda box: ([], None), lambda inside, _: None, serialized_type_name='{0}')"
    )
    made = ["from torch.utils import _pytree as pytree", "class Box: pass", register.format("Box")]
    (tmp_path / "boxes_of_a_test.py").write_text("\n".join(made))
    try:
        with registered_meanwhile():
            boxes = importlib.import_module("boxes_of_a_test")
            exec(register.format("Path"), {"pytree": pytree, "Path": Path})
        assert boxes.Box in pytree.SUPPORTED_NODES
        assert Path not in pytree.SUPPORTED_NODES
    finally:
        pytree._deregister_pytree_node(boxes.Box)
        del sys.modules["boxes_of_a_test"]


def made(name: str) -> Any:
    kind = getattr(transformers, name if "For" in name else f"{name}Model")
    with seeded(0):
        return kind(kind.config_class(**MODELS[name])).eval()


def inputs(name: str, rows: int, length: int) -> dict[str, torch.Tensor]:
    with seeded(rows):
        ids = torch.randint(0, 99, (rows, length))
        more = {"decoder_input_ids": torch.randint(0, 99, (rows, 3))} if name.startswith("T5") else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}


def check(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    pairs = [exporters.utils.get_leaf_tensors(each).values() for each in (found, wanted)]
    for one, other in zip(*pairs, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.long_cases(but=("Bert-None",))
@pytest.mark.parametrize(("name", "fusions"), [*((name, None) for name in MODELS), ("MixtralForCausalLM", "cpu")])
def test_one_graph(name: str, fusions: str | None, tmp_path: Path) -> None:
    model, given = made(name), inputs(name, 2, 5)
    config = exporters.AutoExportConfig.from_dict({"export_format": "fx2onnx", "dynamic": True, "ort_fusions": fusions})
    before = set(pytree.SUPPORTED_NODES)
    exported = exporters.AutoHfExporter.from_config(config).export(model, dict(given), config)
    assert set(pytree.SUPPORTED_NODES) == before  # else the inputs of other exports are called otherwise
    exported.save_pretrained(tmp_path)
    opened = exporters.ExportedModel.from_pretrained(tmp_path)
    assert {node.op_type for node in opened.program.graph.all_nodes()} >= ({"MoE"} if fusions else set())
    with torch.no_grad():
        for sample in (given, inputs(name, 3, 7)):
            check(opened(**sample), model(**sample))


@pytest.mark.long
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_prompt_and_step(is_dynamic: bool, tmp_path: Path) -> None:
    name = "LlamaForCausalLM"
    model, given = made(name), inputs(name, 2, 5)
    config = transformers_backend.Fx2OnnxConfig(dynamic=is_dynamic)
    exported = transformers_backend.Fx2OnnxExporter().export_for_generation(model, dict(given), config)
    exported.save_pretrained(tmp_path)
    runners = exporters.ExportedModel.from_pretrained(tmp_path).runners
    parts = exporters.utils.decompose_for_generation(model, dict(given))
    assert runners.keys() == parts.keys() == {"prefill", "decode"}
    for part, (module, sample) in parts.items():
        flags = {flag: sample.pop(flag) for flag in ("use_cache", "return_dict") if flag in sample}
        with torch.no_grad():
            check(runners[part](**copy.deepcopy(dict(sample))), module(**copy.deepcopy(dict(sample)), **flags))


@pytest.mark.parametrize(
    ("more", "message"),
    [({"ort_fusions": "cuda"}, "ort_fusions='cuda'"), ({"quantizer": SimpleNamespace(quantizes_fx_graph=True)}, "Simple")],
)  # fmt: skip
def test_what_it_does_not_do(more: dict[str, Any], message: str) -> None:
    config = transformers_backend.Fx2OnnxConfig(**more)
    with pytest.raises(UserError, match=message):
        transformers_backend.Fx2OnnxExporter().export(made("Bert"), inputs("Bert", 1, 4), config)
