"""``sentence-transformers:FOLDER`` and folders that are named alone: the graphs give the package's own results."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from typer.testing import Result

from fx2onnx.base.errors import UserError
from fx2onnx.sources import resolve
from tests.cli.support import invoke

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "a", "dog", "ran"]
_TEXTS = ["the cat sat on a mat", "a dog", "ran"]
_SIZES = {
    "vocab_size": len(_WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}


def package() -> Any:
    return pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")


def part(name: str) -> Any:
    return importlib.import_module(f"sentence_transformers.{name}")


def transformer(folder: Path, kind: str, task: str = "feature-extraction", **config: Any) -> Any:
    """The package's module of a random model of transformers, with a tokenizer of thirteen words."""
    import transformers

    torch.manual_seed(0)
    config_class = getattr(transformers, kind.removesuffix("Model").partition("For")[0] + "Config")
    getattr(transformers, kind)(config_class(**{**_SIZES, **config})).save_pretrained(folder)
    tokenizer(folder).save_pretrained(folder)
    return part("base.modules").Transformer(str(folder), transformer_task=task)


def tokenizer(folder: Path) -> Any:
    from transformers import BertTokenizerFast

    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(_WORDS))
    return BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=32)


def export(*arguments: object) -> Result:
    return invoke("export", *arguments)


def results(file: Path, features: dict[str, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    feeds = {value.name: features[value.name].numpy() for value in session.get_inputs()}
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, feeds), strict=True))


@pytest.mark.long
@pytest.mark.parametrize(
    "pooling",
    ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ("mean", "max")],
    ids=str,
)
def test_the_embedding_of_a_folder_is_that_of_encode(pooling: str | Sequence[str], tmp_path: Path) -> None:
    package()
    modules = part("sentence_transformer.modules")
    width = 16 * (1 if isinstance(pooling, str) else len(pooling))
    layers = [transformer(tmp_path / "bert", "BertModel"), modules.Pooling(16, pooling), modules.Dense(width, 6)]
    model = package().SentenceTransformer(modules=[*layers, modules.Normalize()])
    model.save(str(tmp_path / "folder"))
    done = export(tmp_path / "folder", "-o", tmp_path / "out", "-q")
    assert done.exit_code == 0, done.output
    for texts in (_TEXTS, _TEXTS[1:2]):
        found = results(tmp_path / "out" / "onnx" / "model.onnx", model.preprocess(texts))
        np.testing.assert_allclose(found["sentence_embedding"], model.encode(texts), atol=1e-5)
        assert found["last_hidden_state"].shape[-1] == 16
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"modules.json", "config.json", "tokenizer.json", "2_Dense/model.safetensors", "onnx/model.onnx"} <= names
    assert "model.safetensors" not in names


@pytest.mark.long
@pytest.mark.parametrize("labels", [1, 3])
def test_a_cross_encoder_has_logits_and_the_scores_of_predict(labels: int, tmp_path: Path) -> None:
    package()
    transformer(tmp_path / "bert", "BertForSequenceClassification", "sequence-classification", num_labels=labels)
    model = package().CrossEncoder(str(tmp_path / "bert"), activation_fn=torch.nn.Tanh())
    model.save(str(tmp_path / "folder"))
    assert export(tmp_path / "folder", "-o", tmp_path / "a.onnx", "-q").exit_code == 0
    pairs = [("the cat", "a dog ran"), ("mat", "sat")]
    found = results(tmp_path / "a.onnx", model.preprocess(pairs))
    assert list(found) == ["logits", "scores"]
    np.testing.assert_allclose(
        found["scores"].squeeze(-1) if labels == 1 else found["scores"], model.predict(pairs), atol=1e-5
    )
    np.testing.assert_allclose(np.tanh(found["logits"]), found["scores"], atol=1e-6)


@pytest.mark.long
def test_a_sparse_encoder_and_the_routes_of_one(tmp_path: Path) -> None:
    package()
    modules = part("sparse_encoder.modules")
    bert = transformer(tmp_path / "bert", "BertForMaskedLM", "fill-mask")
    static = modules.SparseStaticEmbedding(tokenizer=tokenizer(tmp_path / "words"))
    router = part("base.modules").Router.for_query_document([static], [bert, modules.SpladePooling("max")])
    model = package().SparseEncoder(modules=[router])
    model.save(str(tmp_path / "folder"))
    for task, encode in (("query", model.encode_query), ("document", model.encode_document)):
        assert (
            export(
                f"sentence-transformers:{tmp_path / 'folder'}?task={task}", "-o", tmp_path / "a.onnx", "-q"
            ).exit_code
            == 0
        )
        found = results(tmp_path / "a.onnx", model.preprocess(_TEXTS, task=task))
        np.testing.assert_allclose(found["sentence_embedding"], encode(_TEXTS).to_dense(), atol=1e-5)


@pytest.mark.long
def test_static_embeddings_take_tokens_in_one_row(tmp_path: Path) -> None:
    package()
    modules = part("sentence_transformer.modules")
    torch.manual_seed(0)
    words = tokenizer(tmp_path / "words").backend_tokenizer
    model = package().SentenceTransformer(
        modules=[modules.StaticEmbedding(words, embedding_dim=8), modules.Normalize()]
    )
    model.save(str(tmp_path / "folder"))
    assert export(tmp_path / "folder", "-o", tmp_path / "a.onnx", "-q").exit_code == 0
    found = results(tmp_path / "a.onnx", model.preprocess(_TEXTS))
    np.testing.assert_allclose(found["sentence_embedding"], model.encode(_TEXTS), atol=1e-5)


@pytest.mark.long
def test_a_model_of_text_and_images_becomes_two_files(tmp_path: Path) -> None:
    package()
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor

    torch.manual_seed(0)
    text = {**_SIZES, "eos_token_id": 3}
    vision = {**_SIZES, "image_size": 32, "patch_size": 8}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).save_pretrained(tmp_path / "clip")
    images = CLIPImageProcessor(size=32, crop_size=32)
    CLIPProcessor(images, tokenizer(tmp_path / "words")).save_pretrained(tmp_path / "clip")
    model = package().SentenceTransformer(str(tmp_path / "clip"))
    model.save(str(tmp_path / "folder"))
    assert export(tmp_path / "folder", "-o", tmp_path / "out", "-q").exit_code == 0
    found = results(tmp_path / "out" / "onnx" / "model.onnx", model.preprocess(_TEXTS))
    np.testing.assert_allclose(found["sentence_embedding"], model.encode(_TEXTS), atol=1e-5)
    pixels = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = results(tmp_path / "out" / "onnx" / "model_image.onnx", {"pixel_values": pixels})
    expected = model({"pixel_values": pixels, "modality": "image"})["sentence_embedding"]
    np.testing.assert_allclose(found["sentence_embedding"], expected.detach(), atol=1e-5)


@pytest.mark.long
def test_weights_that_a_result_depends_on_have_to_be_there(tmp_path: Path) -> None:
    package()
    from safetensors.torch import load_file, save_file

    modules = part("sentence_transformer.modules")
    model = package().SentenceTransformer(modules=[transformer(tmp_path / "bert", "BertModel"), modules.Pooling(16)])
    model.save(str(tmp_path / "folder"))
    weights = load_file(tmp_path / "folder" / "model.safetensors")
    for part_of_name, is_needed in (("pooler", False), ("word_embeddings", True)):
        rest = {name: value for name, value in weights.items() if part_of_name not in name}
        assert len(rest) < len(weights)
        save_file(rest, tmp_path / "folder" / "model.safetensors", metadata={"format": "pt"})
        if not is_needed:
            assert resolve(f"sentence-transformers:{tmp_path / 'folder'}").output_names[-1] == "sentence_embedding"
            continue
        with pytest.raises(UserError, match="lacks weights that its results depend on"):
            resolve(f"sentence-transformers:{tmp_path / 'folder'}")


def folder_of(place: Path, **changes: Any) -> Path:
    """A folder as the package writes it, without weights."""
    modules = [
        ("", "base.modules.transformer.Transformer"),
        ("1_Pooling", "sentence_transformer.modules.pooling.Pooling"),
    ]
    listed = [{"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.{word}"} for path, word in modules]
    files = {"modules.json": listed, "config.json": {}, "1_Pooling/config.json": {}, **changes}
    for name, value in files.items():
        if value is not None:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return place


_FOREIGN = [{"idx": 0, "name": "0", "path": "", "type": "custom_code.Pooling"}]
_OUTSIDE = [{"idx": 0, "name": "0", "path": "../x", "type": "sentence_transformers.models.Pooling"}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"modules.json": _FOREIGN}, "E601.*own.*custom_code", id="own module"),
        pytest.param({"config.json": {"auto_map": {"AutoModel": "x.Y"}}}, "E601.*own.*auto_map", id="own model"),
        pytest.param({"1_Pooling/config.json": {"activation_function": "os.system"}}, "E601.*os.system", id="function"),
        pytest.param({"modules.json": "[{"}, "E302.*modules.json", id="no json"),
        pytest.param({"modules.json": []}, "E302.*no list of modules", id="no modules"),
        pytest.param({"modules.json": _OUTSIDE}, "E302.*leads out", id="outside"),
        pytest.param({"1_Pooling/config.json": None}, "E302.*lacks the module Pooling", id="missing module"),
        pytest.param({"config_sentence_transformers.json": {"model_type": "Other"}}, "E601.*Other", id="unknown class"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_before_anything_is_written(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    package()
    folder = folder_of(tmp_path / "folder", **changes)
    done = export(folder, "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert not (tmp_path / "out").exists()
    assert re.search(words, done.output.replace("\n", " ")), done.output


def test_a_folder_alone_is_taken_for_what_its_files_say(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match=r"no kind that fx2onnx knows[\s\S]*modules\.json[\s\S]*GGUF"):
        resolve(str(tmp_path / "nothing"))
    from transformers import BertConfig, BertModel

    BertModel(BertConfig(**_SIZES)).save_pretrained(tmp_path / "bert")
    assert resolve(str(tmp_path / "bert")).origin.startswith("transformers ")


def test_files_of_another_origin_are_not_replaced(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "folder")
    folder_of(tmp_path / "out", **{"config.json": {"other": 1}})
    done = export(folder, "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert "E301" in done.output
    assert not (tmp_path / "out" / "onnx").exists()
