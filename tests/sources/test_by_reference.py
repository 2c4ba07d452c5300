"""A checkpoint folder gets its model.onnx; the weights stay in the files that they came in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import fx2onnx
from fx2onnx import verify
from fx2onnx.base.errors import UserError
from fx2onnx.files import safetensors
from fx2onnx.irx import reference
from fx2onnx.irx.reference import ReferencedTensor
from fx2onnx.sources import Source, resolve
from fx2onnx.sources.weight_files import map_checkpoint, map_file


def saved(name: str, folder: Path, **options: Any) -> torch.nn.Module:
    module = resolve(f"zoo:{name}", seed=3).module
    module.save_pretrained(folder, **options)  # type: ignore[operator]
    return module


def exported(folder: Path, **options: Any) -> tuple[fx2onnx.ExportResult, Source]:
    source = resolve(f"hf:{folder}", weights="reference", **options)
    result = fx2onnx.export(
        source.module,
        source.args,
        folder / "model.onnx",
        kwargs=source.kwargs,
        dynamic_shapes=source.dynamic_shapes,
        weight_files=source.weight_files,
    )
    return result, source


def outside(path: Path) -> dict[str, dict[str, str]]:
    """Location, offset and length of every initializer that is not in the model file."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    return {t.name: {item.key: item.value for item in t.external_data} for t in tensors if t.external_data}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "shard"), [("llama_tiny", "10KB"), ("bert_tiny", "1GB"), ("t5_tiny", "20KB"), ("gpt2_tiny", "1GB")]
)
def test_every_weight_stays_in_its_file_and_the_numbers_are_right(name: str, shard: str, tmp_path: Path) -> None:
    original = saved(name, tmp_path, max_shard_size=shard)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    result, source = exported(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*before, "model.onnx"}
    assert all((tmp_path / file).read_bytes() == content for file, content in before.items())
    assert not result.report.warnings
    places = outside(tmp_path / "model.onnx")
    # transformers pads the tied bias by nothing, which copies it.
    own = {key: value for key, value in original.named_parameters() if key != "cls.predictions.bias"}
    held_bytes = sum(int(place["length"]) for place in places.values())
    assert held_bytes == sum(value.nbytes for value in own.values())  # tied weights once
    assert len({place["location"] for place in places.values()}) == sum(f.endswith(".safetensors") for f in before)
    verdict = verify(str(tmp_path / "model.onnx"), original, source.args, source.kwargs)
    assert verdict.ok, verdict.describe()


def test_loading_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved("bert_tiny", tmp_path)
    capfd.readouterr()
    for weights in (None, "reference"):
        resolve(f"hf:{tmp_path}", weights=weights)
    assert capfd.readouterr() == ("", "")


def test_the_bytes_referred_to_are_those_of_the_weight(tmp_path: Path) -> None:
    original = saved("llama_tiny", tmp_path, max_shard_size="10KB").state_dict()
    exported(tmp_path)
    for name, place in outside(tmp_path / "model.onnx").items():
        with (tmp_path / place["location"]).open("rb") as stream:
            stream.seek(int(place["offset"]))
            content = stream.read(int(place["length"]))
        assert content == original[name].numpy().tobytes(), name


@pytest.mark.long
def test_no_weight_is_read_while_the_model_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("gpt2_tiny", tmp_path)
    for method in ("numpy", "tobytes"):
        monkeypatch.setattr(ReferencedTensor, method, lambda self: pytest.fail(f"{self.name} was read"))
    result, _ = exported(tmp_path)
    assert reference.is_referenced(result.model)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    resolve("zoo:llama_tiny").module.to(dtype).save_pretrained(tmp_path)  # type: ignore[operator]
    result, source = exported(tmp_path)
    assert {value.dtype for value in source.module.parameters()} == {dtype}
    assert not result.report.warnings
    assert len(outside(tmp_path / "model.onnx")) == 21
    if dtype is torch.float16:
        verdict = verify(str(tmp_path / "model.onnx"), source.module, source.args, source.kwargs)
        assert verdict.ok, verdict.describe()


def test_another_dtype_than_the_files_is_refused(tmp_path: Path) -> None:
    saved("bert_tiny", tmp_path)
    with pytest.raises(UserError, match="float32") as caught:
        resolve(f"hf:{tmp_path}", weights="reference", dtype="float16")
    assert caught.value.code == "E001"
    assert resolve(f"hf:{tmp_path}", weights="reference", dtype="float32").weight_files


@pytest.mark.long
def test_a_torch_save_file_is_mapped_too(tmp_path: Path) -> None:
    original = saved("bert_tiny", tmp_path)
    torch.save(original.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    _, source = exported(tmp_path)
    places = outside(tmp_path / "model.onnx")
    assert {place["location"] for place in places.values()} == {"pytorch_model.bin"}
    verdict = verify(str(tmp_path / "model.onnx"), original, source.args, source.kwargs)
    assert verdict.ok, verdict.describe()


def test_a_module_of_ones_own_refers_to_its_state_dict(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 4, 3)).eval()
    torch.save({"state_dict": module.state_dict(), "epoch": 3}, tmp_path / "weights.pt")
    checkpoint = map_file(tmp_path / "weights.pt")
    with torch.device("meta"):
        outline = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 4, 3))
    outline.load_state_dict(checkpoint.state, assign=True)
    sample = torch.randn(1, 3, 12, 12)
    fx2onnx.export(outline.eval(), (sample,), tmp_path / "m.onnx", weight_files=checkpoint.files)
    assert len(outside(tmp_path / "m.onnx")) == 8
    session = fx2onnx.runner.InferenceSession(str(tmp_path / "m.onnx"))
    (found,) = session.run(None, {session.get_inputs()[0].name: sample.numpy()})
    np.testing.assert_allclose(found, module(sample).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_derived_weights_are_copied_and_said_so(tmp_path: Path) -> None:
    torch.save({"weight": torch.randn(20_000, 2)}, tmp_path / "w.pt")
    checkpoint = map_file(tmp_path / "w.pt")
    module = torch.nn.Linear(2, 20_000)  # its bias is nobody's
    module.weight = torch.nn.Parameter(checkpoint.state["weight"])
    result = fx2onnx.export(module, (torch.randn(1, 2),), tmp_path / "m.onnx", weight_files=checkpoint.files)
    assert list(outside(tmp_path / "m.onnx")) == ["weight"]
    assert "bias" in result.report.warnings[-1]


def test_many_copied_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "LARGEST_COPY_BYTES", 8)
    torch.save({"weight": torch.randn(4, 6)}, tmp_path / "w.pt")
    with pytest.raises(UserError, match="bias") as caught:
        fx2onnx.export(torch.nn.Linear(6, 4), (torch.randn(2, 6),), weight_files=map_file(tmp_path / "w.pt").files)
    assert caught.value.code == "E301"


class TestConversions:
    """Checkpoints hold one tensor an expert, the module one for all of them."""

    SIZES = "num_hidden_layers=1&hidden_size=32&intermediate_size=48&num_attention_heads=4&num_key_value_heads=2&vocab_size=60"

    def folder(self, place: Path, model: str) -> Path:
        module = resolve(f"hf:{model}{'&' if '?' in model else '?'}{self.SIZES}").module
        module.save_pretrained(place)  # type: ignore[operator]
        return place

    def test_the_module_joins_what_transformers_would_join(self, tmp_path: Path) -> None:
        source = resolve(f"hf:{self.folder(tmp_path, 'mixtral?num_local_experts=4')}", weights="reference")
        found = {tensor.data_ptr() for tensor in (*source.module.parameters(), *source.module.buffers())}
        held = safetensors.places(tmp_path / "model.safetensors")[0].values()
        assert {source.weight_files[0].address + place.offset for place in held} <= found
        ids = torch.arange(10).reshape(2, 5)
        with torch.no_grad():
            got, wanted = (module(ids).logits for module in (source.module, resolve(f"hf:{tmp_path}").module))
        torch.testing.assert_close(got, wanted)

    @pytest.mark.long
    @pytest.mark.parametrize(
        "model",
        [
            "mixtral?num_local_experts=4",
            "qwen3_moe?num_experts=12&moe_intermediate_size=16",
            "olmoe?num_experts=3&num_experts_per_tok=2",
        ],
    )
    def test_the_graph_does_so_too(self, tmp_path: Path, model: str) -> None:
        result, _ = exported(self.folder(tmp_path, model))
        assert not result.report.warnings
        assert len(outside(tmp_path / "model.onnx")) == len(map_checkpoint(tmp_path).state)
        copied = resolve(f"hf:{tmp_path}").module
        inputs = {"input_ids": torch.arange(10).reshape(2, 5), "attention_mask": torch.ones(2, 5, dtype=torch.int64)}
        assert verify(str(tmp_path / "model.onnx"), copied, (), inputs, seeds=()).ok

    def test_others_are_refused_where_they_are_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fx2onnx.sources.hf.by_reference.LARGEST_CONVERTED_BYTES", 100)
        monkeypatch.setattr("fx2onnx.sources.hf.by_reference._JOINING", [])
        with pytest.raises(UserError, match="cannot be referred to") as caught:
            resolve(f"hf:{self.folder(tmp_path, 'mixtral?num_local_experts=4')}", weights="reference")
        assert caught.value.code == "E601"
        assert "experts" in caught.value.why


class TestPlaces:
    def test_a_model_elsewhere_is_refused_with_both_ways_out(self, tmp_path: Path) -> None:
        saved("bert_tiny", tmp_path / "checkpoint")
        (tmp_path / "other").mkdir()
        source = resolve(f"hf:{tmp_path / 'checkpoint'}", weights="reference")
        with pytest.raises(UserError, match="cannot refer") as caught:
            fx2onnx.export(
                source.module,
                f=tmp_path / "other" / "m.onnx",
                kwargs=source.kwargs,
                weight_files=source.weight_files,
            )
        assert caught.value.code == "E301"
        assert "beside the weights" in caught.value.next[0]
        assert not list((tmp_path / "other").iterdir())

    @pytest.mark.long
    def test_a_folder_above_the_weights_is_allowed(self, tmp_path: Path) -> None:
        saved("bert_tiny", tmp_path / "checkpoint")
        source = resolve(f"hf:{tmp_path / 'checkpoint'}", weights="reference")
        path = tmp_path / "m.onnx"
        fx2onnx.export(source.module, f=path, kwargs=source.kwargs, weight_files=source.weight_files)
        assert {place["location"] for place in outside(path).values()} == {"checkpoint/model.safetensors"}
        assert verify(str(path), source.module, (), source.kwargs).ok

    def test_symbolic_links_are_refused(self, tmp_path: Path) -> None:
        saved("bert_tiny", tmp_path)
        (tmp_path / "blobs").mkdir()
        (tmp_path / "model.safetensors").rename(tmp_path / "blobs" / "abc")
        (tmp_path / "model.safetensors").symlink_to(tmp_path / "blobs" / "abc")
        with pytest.raises(UserError, match="symbolic link"):
            exported(tmp_path)
        assert not (tmp_path / "model.onnx").exists()


class TestDamage:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        saved("llama_tiny", tmp_path, max_shard_size="10KB")
        return tmp_path

    def refusal(self, folder: Path) -> UserError:
        with pytest.raises(UserError) as caught:
            exported(folder)
        assert not (folder / "model.onnx").exists()
        with pytest.raises(UserError) as copying:  # the loader that copies says it just as well
            resolve(f"hf:{folder}")
        assert copying.value.code == caught.value.code
        return caught.value

    def test_a_missing_shard_is_named(self, folder: Path) -> None:
        first = min(folder.glob("*.safetensors"))
        first.unlink()
        error = self.refusal(folder)
        assert error.code == "E302"
        assert first.name in error.why

    @pytest.mark.parametrize("keep", [0, 4, 100, -1])
    def test_a_cut_off_shard_is_named(self, folder: Path, keep: int) -> None:
        first = min(folder.glob("*.safetensors"))
        first.write_bytes(first.read_bytes()[:keep])
        error = self.refusal(folder)
        assert error.code == "E302"
        assert first.name in error.what

    def test_a_shard_of_another_checkpoint(self, folder: Path) -> None:
        index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        own, other = index["lm_head.weight"], index["model.layers.1.mlp.up_proj.weight"]
        (folder / own).write_bytes((folder / other).read_bytes())
        assert "lm_head.weight" in self.refusal(folder).why

    def test_a_broken_index(self, folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text('{"weight_map": [')
        assert self.refusal(folder).code == "E302"

    def test_shapes_that_do_not_fit_the_config(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | {"intermediate_size": 80}
        (folder / "config.json").write_text(json.dumps(config))
        error = self.refusal(folder)
        assert error.code == "E601"
        assert "mlp" in error.why
        assert "64" in error.why

    def test_no_weights_at_all(self, tmp_path: Path) -> None:
        config = resolve("zoo:bert_tiny").module.config
        config.save_pretrained(tmp_path)  # type: ignore[operator]
        with pytest.raises(UserError, match="no weights to refer to"):
            resolve(f"hf:{tmp_path}", weights="reference")

    @pytest.mark.parametrize(
        ("content", "said"),
        [({"weight": 3}, "no state dict"), (torch.nn.Linear(2, 2), "more than tensors")],
    )
    def test_torch_save_files_that_hold_something_else(self, content: Any, said: str, tmp_path: Path) -> None:
        torch.save(content, tmp_path / "x.pt")
        with pytest.raises(UserError, match=said) as caught:
            map_file(tmp_path / "x.pt")
        assert caught.value.code == "E302"

    def test_the_pickle_is_not_run(self, tmp_path: Path) -> None:
        class Bomb:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(tmp_path / "ran"),)

        torch.save({"weight": Bomb()}, tmp_path / "x.pt")
        with pytest.raises(UserError):
            map_checkpoint(tmp_path / "x.pt")
        assert not (tmp_path / "ran").exists()
