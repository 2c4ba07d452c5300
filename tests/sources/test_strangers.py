"""Checkpoints of strangers: nothing is fetched, no code of theirs is imported, no file outside their folder is read."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.sources import resolve
from fx2onnx.sources.hf import config, kind
from fx2onnx.sources.hf import config as hf_config
from fx2onnx.sources.weight_files import map_checkpoint, map_file

BERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "vocab_size": 20,
    "max_position_embeddings": 32,
}
KERNEL = "owner/kernel"
CODE = {"AutoConfig": "owner/repo--code.Config", "AutoModelForCausalLM": "owner/repo--code.Model"}
PARTS = {"model_type": "vision-encoder-decoder", "encoder": {"model_type": "vit"}, "decoder": BERT}
TIMM = {"model_type": "timm_wrapper", "architecture": "resnet10t", "num_classes": 2, "label_names": ["a", "b"]}
DETR = {"model_type": "detr", "use_timm_backbone": False, "backbone_config": None}
# What a config says, the key that is named, and whether transformers 5.23 would reach out where nobody checked.
KEYS: list[tuple[dict[str, Any], str, bool]] = [
    (BERT | {"attn_implementation": KERNEL}, "attn_implementation", True),
    (BERT | {"_attn_implementation": KERNEL}, "_attn_implementation", True),
    (BERT | {"attn_implementation": {"": KERNEL}}, "attn_implementation", True),
    (BERT | {"attn_implementation": "flash_attention_2"}, "attn_implementation", True),
    (BERT | {"_attn_implementation_internal": KERNEL}, "_attn_implementation_internal", False),
    (BERT | {"experts_implementation": "deepgemm"}, "experts_implementation", False),
    (PARTS | {"attn_implementation": {"decoder": KERNEL}}, "attn_implementation", True),
    (PARTS | {"decoder": BERT | {"attn_implementation": KERNEL}}, "decoder.attn_implementation", False),
    (PARTS | {"decoder": {"model_type": "vit", "auto_map": CODE}}, "decoder.auto_map", True),
    (BERT | {"use_kernels": True}, "use_kernels", False),
    (BERT | {"kernels": {"attention": KERNEL}}, "kernels", False),
    (BERT | {"kernel_config": {"a": KERNEL}}, "kernel_config", False),
    (DETR | {"backbone": "owner/name"}, "backbone", True),
    (DETR | {"backbone": "hf-hub:owner/name", "use_timm_backbone": True, "backbone_config": None}, "backbone", True),
    (DETR | {"backbone_config": {"model_type": "timm_backbone", "backbone": "hf-hub:o/n"}}, "backbone_config.backbone", True),
    (TIMM | {"architecture": "hf-hub:owner/name"}, "architecture", True),
    (TIMM | {"architecture": "local-dir:/etc"}, "architecture", True),
    (TIMM | {"model_args": {"checkpoint_path": "weights.pth"}}, "model_args", True),
    (BERT | {"configuration_files": ["config.4.0.0.json"]}, "configuration_files", True),
    (BERT | {"transformers_weights": "../model.safetensors"}, "transformers_weights", False),
]  # fmt: skip


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Everything that is reached for: the network, kernels, code of a checkpoint, files that only the config names."""
    import timm.models._factory
    import timm.models._helpers
    from huggingface_hub import constants
    from transformers import configuration_utils, dynamic_module_utils
    from transformers.integrations import hub_kernels
    from transformers.models.auto import auto_factory

    log: list[str] = []

    def sentinel(what: str) -> Any:
        def called(*args: Any, **_: Any) -> Any:
            log.append(f"{what} {args}")
            raise OSError(f"{what} was reached")

        return called

    for place, name in (
        (dynamic_module_utils, "get_cached_module_file"),
        (auto_factory, "get_class_from_dynamic_module"),
        (configuration_utils, "get_configuration_file"),
        (timm.models._factory, "load_model_config_from_hf"),
        (timm.models._factory, "load_model_config_from_path"),
        (timm.models._factory, "load_checkpoint"),
        (hub_kernels, "get_kernel"),
    ):
        monkeypatch.setattr(place, name, sentinel(name), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the shell may set it: nothing would be reached for
    monkeypatch.setattr("socket.getaddrinfo", sentinel("getaddrinfo"))
    monkeypatch.setattr("socket.socket.connect", sentinel("connect"))
    monkeypatch.setattr("builtins.input", sentinel("input"))
    monkeypatch.setattr("transformers.modeling_utils.is_kernels_available", lambda: True)
    monkeypatch.setattr("transformers.integrations.hub_kernels.is_kernels_available", lambda: True)
    return log


def config_folder(folder: Path, stated: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(stated if isinstance(stated, str) else json.dumps(stated))
    return f"hf:{folder}"


def refusal(spec: str, **options: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        resolve(spec, **options)
    return caught.value


@pytest.mark.long_cases("stated0-attn_implementation-True")
@pytest.mark.parametrize(("stated", "key", "reaches"), KEYS)
def test_keys_that_fetch_or_import_are_refused_by_name(
    stated: dict[str, Any], key: str, reaches: bool, tmp_path: Path, reached: list[str]
) -> None:
    error = refusal(config_folder(tmp_path, stated), weights="random")
    assert error.code == "E601"
    assert f"config.json: {key} is " in error.what
    assert reached == []


@pytest.mark.long_cases("stated4-attn_implementation-True", "stated5-decoder.auto_map-True")
@pytest.mark.parametrize(("stated", "key", "reaches"), [case for case in KEYS if case[2]])
def test_they_would_reach_out_where_nobody_checked(
    stated: dict[str, Any], key: str, reaches: bool, tmp_path: Path, reached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf_config, "check_config", lambda *_: None)
    monkeypatch.setattr(kind, "without_foreign_code", lambda config: config)
    monkeypatch.setattr(kind, "guarded", lambda _: contextlib.nullcontext())
    with contextlib.suppress(UserError):
        resolve(config_folder(tmp_path, stated), weights="random")
    assert reached, key


def test_code_of_a_known_type_is_left_aside(tmp_path: Path, reached: list[str]) -> None:
    """As Phi and Qwen checkpoints have it: transformers has its own code for the type."""
    (tmp_path / "code.py").write_text("raise SystemExit('the code ran')\n")
    code = {"AutoConfig": "code.Config", "AutoModelForMaskedLM": "owner/repo--code.Model"}
    module: Any = resolve(config_folder(tmp_path, BERT | {"auto_map": code}), weights="random").module
    assert type(module).__name__ == "BertForMaskedLM"
    assert not hasattr(module.config, "auto_map")
    assert reached == []


@pytest.mark.parametrize("value", ["eager", "sdpa", None])
def test_implementations_of_transformers_itself_pass(value: str | None, tmp_path: Path) -> None:
    stated = BERT | {"_attn_implementation": value, "kernels": [3, 3], "auto_map": None}
    resolve(config_folder(tmp_path, stated | {"auto_map": {}}), weights="random")


@pytest.mark.parametrize("name", ["Trainer", "pipeline", "logging", "__dict__", "AutoModel", "no_such", 3, ["a"], ""])
def test_an_architecture_is_a_model_or_nothing(name: Any, tmp_path: Path, reached: list[str]) -> None:
    module = resolve(config_folder(tmp_path, BERT | {"architectures": [name]}), weights="random").module
    assert type(module).__name__ == "BertForMaskedLM", "that of the type"
    assert reached == []


@pytest.mark.parametrize(
    "key", ["attn_implementation=owner/kernel", "_attn_implementation=owner/kernel", "kernels=a/b"]
)
def test_options_of_a_spec_are_checked_as_the_file_is(key: str, tmp_path: Path, reached: list[str]) -> None:
    for spec in (config_folder(tmp_path, BERT), "hf:bert"):
        error = refusal(f"{spec}?{key}", weights="random")
        assert (error.code, key.partition("=")[0] in error.what) == ("E601", True)
    assert refusal("hf:detr?backbone=owner/name&use_timm_backbone=false").code == "E601"
    assert reached == []


@pytest.mark.parametrize(
    ("stated", "code"),
    [
        ("[" * 100_000, "E302"),
        ("", "E302"),
        ("[]", "E302"),
        ({"model_type": 3}, "E302"),
        ({"model_type": ["bert"]}, "E302"),
        ({}, "E601"),
        ({"model_type": "no such"}, "E601"),
        (BERT | {"vocab_size": "many"}, "E601"),
        (BERT | {"vocab_size": -1}, "E601"),
        (BERT | {"vocab_size": 1e30}, "E601"),
        (BERT | {"vocab_size": 10**30}, "E601"),
        (BERT | {"num_hidden_layers": 10**9}, "E404"),
        (BERT | {"num_hidden_layers": 1e12}, "E404"),
        (BERT | {"num_labels": 10**9}, "E404"),
        (BERT | {"dtype": "load"}, "E601"),
        (BERT | {"architectures": 3}, "E302"),
        (BERT | {"quantization_config": "os"}, "E601"),
        (BERT | {"quantization_config": [1]}, "E601"),
        (PARTS | {"decoder": [1]}, "E601"),
        (PARTS | {"decoder": {"model_type": 3}}, "E601"),
    ],
)
def test_malformed_configs_are_one_error(stated: Any, code: str, tmp_path: Path) -> None:
    error = refusal(config_folder(tmp_path, stated), weights="random")
    assert error.code == code
    assert str(tmp_path) in error.what


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "adapter_config.json"])
def test_files_that_are_none(kind: str, file: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    spec = config_folder(folder, BERT)
    (folder / file).unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(folder / file)
    elif kind == "folder":
        (folder / file).mkdir()
    else:
        (tmp_path / file).write_text(json.dumps(BERT))
        (folder / file).symlink_to(tmp_path / file)
    error = refusal(spec, weights="random")
    assert error.code == ("E601" if file.startswith("adapter") and kind != "link" else "E302")
    assert file in error.what


@pytest.mark.parametrize(
    ("stated", "key"),
    [
        ({"custom_generate": "owner/repo"}, "custom_generate"),
        ({"compile_config": {"backend": "inductor"}}, "compile_config"),
        ({"cache_implementation": "quantized"}, "cache_implementation"),
    ],
)
def test_keys_of_a_generation_config(stated: dict[str, Any], key: str, tmp_path: Path) -> None:
    spec = config_folder(tmp_path, BERT)
    (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    error = refusal(spec, weights="random")
    assert (error.code, f"generation_config.json: {key}" in error.what) == ("E601", True)


def test_what_the_hub_has_to_do_with_generation_is_refused(tmp_path: Path, reached: list[str]) -> None:
    """Contrastive search is code on the hub since transformers 4.57."""
    from fx2onnx.decoding.reference_generate import reference_model, tokens_of

    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 20, "bos_token_id": 1, "eos_token_id": 1}
    made: Any = resolve("hf:gpt2?task=causal-lm&" + "&".join(f"{key}={size}" for key, size in sizes.items())).module
    made.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"penalty_alpha": 0.6, "top_k": 4}))
    with pytest.raises(UserError, match=r"E601.*generate"):
        tokens_of(reference_model(f"hf:{tmp_path}", "text-generation", 0), {"input_ids": [[3, 4]]}, 2)
    assert reached == []


def test_while_a_model_is_made_the_hub_is_out_of_reach(reached: list[str]) -> None:
    from huggingface_hub import constants
    from transformers.integrations import hub_kernels
    from transformers.utils import hf_api

    before = constants.HF_HUB_OFFLINE, hub_kernels.get_kernel
    outer = config.offline()
    outer.__enter__()
    with config.offline():
        with pytest.raises(Exception, match="offline"):
            hf_api().repo_exists("owner/name")
        outer.__exit__(None, None, None)  # as another thread may
        assert constants.HF_HUB_OFFLINE
        with pytest.raises(UserError, match="owner/kernel"):
            hub_kernels.get_kernel("owner/kernel", version=1)
    assert (constants.HF_HUB_OFFLINE, hub_kernels.get_kernel) == before
    assert reached == []


def test_a_model_of_too_many_modules_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "MOST_MODULES", 100)
    assert refusal("hf:bert?num_hidden_layers=90&hidden_size=16&num_attention_heads=2&vocab_size=20").code == "E404"
    resolve("hf:bert?num_hidden_layers=1&hidden_size=16&num_attention_heads=2&vocab_size=20")


class TestWeights:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A checkpoint of several shards, in a cache as huggingface_hub lays it out."""
        folder = tmp_path / "models--owner--name" / "snapshots" / "0123abc"
        model: Any = resolve("hf:bert?" + "&".join(f"{k}={v}" for k, v in BERT.items() if isinstance(v, int))).module
        model.save_pretrained(folder, max_shard_size="3KB")
        (folder.parents[1] / "blobs").mkdir()
        for number, path in enumerate(sorted(folder.iterdir())):
            blob = folder.parents[1] / "blobs" / f"{number:040x}"
            path.rename(blob)
            path.symlink_to(os.path.relpath(blob, folder))
        assert len(list(folder.glob("*.safetensors"))) > 2
        return folder

    def test_a_cache_of_the_hub_is_read(self, folder: Path) -> None:
        loaded = resolve(f"hf:{folder}").module.state_dict()
        mapped = map_checkpoint(folder).state
        assert all(torch.equal(loaded[key], value) for key, value in mapped.items() if key in loaded)
        assert len(mapped) > 10

    def test_a_shard_that_is_a_link_to_elsewhere(self, folder: Path, tmp_path: Path) -> None:
        first = min(folder.glob("*.safetensors"))
        (tmp_path / "secret").write_bytes(first.read_bytes())
        first.unlink()
        first.symlink_to(tmp_path / "secret")
        for options in ({}, {"weights": "reference"}):
            error = refusal(f"hf:{folder}", **options)
            assert (error.code, first.name in error.what) == ("E302", True)

    @pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
    @pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "a/../../b", 3, None, ["a"], "a\0"])
    def test_a_shard_that_an_index_names_elsewhere(self, index: str, shard: Any, folder: Path) -> None:
        (folder / "model.safetensors.index.json").unlink()
        (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": {"a.weight": shard}}))
        error = refusal(f"hf:{folder}")
        assert error.code == "E302"
        assert index in error.render()
        with pytest.raises(UserError, match="E302"):
            map_checkpoint(folder)

    @pytest.mark.parametrize("weight_map", [[], 3, None, "x"])
    def test_an_index_that_is_none(self, weight_map: Any, folder: Path) -> None:
        (folder / "model.safetensors.index.json").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        assert "weight_map" in refusal(f"hf:{folder}").why

    @pytest.mark.parametrize(
        ("said", "named"),
        [
            ({"quant_method": "quanto"}, "quanto"),
            ({"quant_method": "eetq"}, "eetq"),
            ({"quant_method": "hqq"}, "hqq"),
            ({"quant_method": "fp8", "load_in_4bit": True}, "fp8"),
            ({"load_in_8bit": True}, "None"),
        ],
    )
    def test_quantized_weights(self, said: Any, named: str, folder: Path, reached: list[str]) -> None:
        stated = json.loads((folder / "config.json").read_text())
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(stated | {"quantization_config": said}))
        for options in ({}, {"weights": "reference"}):
            error = refusal(f"hf:{folder}", **options)
            assert (error.code, error.what.partition("says ")[2].strip("'")) == ("E601", named)
        assert "random" in resolve(f"hf:{folder}", weights="random").origin
        assert reached == []

    @pytest.mark.parametrize("method", ["torchao", "bitsandbytes", "gptq", "awq", "compressed-tensors"])
    def test_weights_that_are_not_quantised_as_they_say(self, method: str, folder: Path, reached: list[str]) -> None:
        stated = json.loads((folder / "config.json").read_text())
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(stated | {"quantization_config": {"quant_method": method}}))
        for options in ({}, {"weights": "reference"}):
            error = refusal(f"hf:{folder}", **options)
            assert error.code == "E601"
            assert error.what == f"the quantized weights of {method!r} have an unknown layout"
        assert reached == []


def safetensors(header: Any, data: bytes = b"\0" * 16) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(*places: Any, dtype: Any = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": places}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        b"\xff" * 8,
        struct.pack("<Q", 1 << 40) + b"{}",
        struct.pack("<Q", 50 << 20) + b"{}",
        safetensors(b"{" * 100_000),
        safetensors(b'{"a":' + b"[" * 100_000),
        safetensors([1]),
        safetensors(b"\xff\xfe"),
        safetensors({"a": 3}),
        safetensors({"a": entry(0, 16)}),
        safetensors({"a": entry(0, 8), "b": entry(4, 12)}),
        safetensors({"a": entry(8, 16), "b": entry(12, 20)}),
        safetensors({"a": entry(16, 8)}),
        safetensors({"a": entry(0, 1 << 62)}),
        safetensors({"a": entry(-8, 0)}),
        safetensors({"a": entry("0", "8")}),
        safetensors({"a": entry(0, 8, dtype="F33")}, b"\0" * 8),
        safetensors({"a": entry(0, 8, dtype=3)}, b"\0" * 8),
        safetensors({"a": entry(0, 8, shape=[-2])}, b"\0" * 8),
        safetensors({"a": entry(0, 8, shape=[1 << 62, 4])}, b"\0" * 8),
        safetensors({"a\0b": entry(0, 8)}, b"\0" * 8),
        safetensors({"a\nb": entry(0, 8)}, b"\0" * 8),
    ],
)
def test_malformed_safetensors(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        map_file(path)
    assert (caught.value.code, str(path) in caught.value.what) == ("E302", True)


def test_a_header_of_its_own_size_is_read_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors({"__metadata__": {"format": "pt"}, "a": entry(0, 8)}, b"\0" * 8))
    assert map_file(path).state["a"].tolist() == [0.0, 0.0]
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", 65 << 20))
        stream.truncate(1 << 30)
    with pytest.raises(UserError, match="the header says that it is"):
        map_file(path)
