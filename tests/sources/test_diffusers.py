"""``diffusers:FOLDER``: pipelines exported component by component and run by ``fx2onnx.load``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.files.folder_commit import is_member_name
from fx2onnx.files.pipeline_index import read_index
from fx2onnx.sources import resolve
from fx2onnx.sources.inputs import input_files
from tests.cli.support import invoke

pytest.importorskip("diffusers")
PIPELINES = [
    "stable_diffusion",
    "stable_diffusion_xl",
    "latent_consistency",
    "controlnet",
    "stable_diffusion_3",
    "flux",
    "pixart",
    "sana",
    "hunyuan_dit",
    "kandinsky",
    "kandinsky_prior",
    "audioldm",
    "ltx",
    "lumina2",
    "qwen_image",
]
TOLERANCE = 1e-4


def saved(name: str, folder: Path) -> Any:
    """The pipeline, and ``folder`` with it."""
    from studies.tiny_pipelines import PIPELINES as KNOWN

    pipeline = KNOWN[name]()
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(folder)
    return pipeline


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if place else pytest.mark.long) for place, name in enumerate(PIPELINES)],
)
def test_same_images_as_diffusers_from_the_same_noise(name: str, tmp_path: Path) -> None:
    from studies.tiny_pipelines import call

    pipeline, run = saved(name, tmp_path / "pipeline"), call(name)
    done = fx2onnx.export_folder(f"diffusers:{tmp_path / 'pipeline'}", tmp_path / "out")
    assert not [warning for report in done.reports.values() for warning in report.warnings]
    wanted = np.asarray(run(pipeline))
    for engine in ("onnxruntime", "runner"):
        loaded = fx2onnx.load(tmp_path / "out", engine=engine)
        loaded.pipeline.set_progress_bar_config(disable=True)
        assert np.abs(np.asarray(run(loaded)) - wanted).max() < TOLERANCE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipelines") / "stable_diffusion"
    saved("stable_diffusion", path)
    return path


@pytest.mark.long
@pytest.mark.parametrize("prefix", ["", "diffusers:"])
def test_the_command_finds_out_that_a_folder_is_a_pipeline(folder: Path, tmp_path: Path, prefix: str) -> None:
    arguments = ["export", f"{prefix}{folder}", "-o", str(tmp_path / "out"), "--no-verify"]
    shown = invoke(*arguments)
    assert shown.exit_code == 0, shown.output
    graphs = {path.name for path in (tmp_path / "out").glob("*.onnx")}
    assert graphs == {"text_encoder.onnx", "unet.onnx", "vae_encoder.onnx", "vae_decoder.onnx"}
    shown = invoke("generate", str(tmp_path / "out"), "--prompt-ids", "1")
    assert "E001" in shown.output


@pytest.mark.long
def test_one_graph_of_a_pipeline_is_a_source(folder: Path) -> None:
    source = resolve(f"diffusers:{folder}?component=vae_decoder", batch=3)
    assert list(source.kwargs) == ["z"]
    assert list(source.kwargs["z"].shape) == [3, 4, 16, 24]
    assert source.dynamic_shapes == {"z": {0: "batch", 2: "height", 3: "width"}}
    assert {path.name for path in input_files(f"diffusers:{folder}")} >= {"config.json", "model.safetensors"}
    with pytest.raises(UserError, match="num_frames is 'many'"):
        resolve(f"diffusers:{folder}?component=unet&num_frames=many")
    with pytest.raises(UserError, match="4 graphs, and none is called 'decoder'") as caught:
        resolve(f"diffusers:{folder}?component=decoder")
    assert "text_encoder, unet, vae_encoder, vae_decoder" in " ".join(caught.value.next)


@pytest.mark.long
def test_weights_stay_in_the_files_of_the_pipeline(folder: Path) -> None:
    done = fx2onnx.export_folder(f"diffusers:{folder}", folder, weights="reference")
    assert not [name for name in done.files if name.endswith(".data")]
    assert (folder / "unet" / "diffusion_pytorch_model.safetensors").exists()
    out = fx2onnx.load(folder).call("vae_decoder", z=np.zeros((1, 4, 4, 6), np.float32))
    assert out.sample.shape == (1, 3, 8, 12)
    with pytest.raises(UserError, match="no graph 'vae'"):
        fx2onnx.load(folder).call("vae")


@pytest.mark.long
def test_an_option_that_the_graphs_do_not_take_is_refused(folder: Path, tmp_path: Path) -> None:
    fx2onnx.export_folder(folder.as_posix(), tmp_path / "out")
    loaded = fx2onnx.load(tmp_path / "out")
    loaded.pipeline.set_progress_bar_config(disable=True)
    size = {"height": 16, "width": 16, "num_inference_steps": 1}
    with pytest.raises(UserError, match=r"gives unet the argument cross_attention_kwargs\.other"):
        loaded("a cat", cross_attention_kwargs={"other": 0.5}, **size)
    with pytest.raises(UserError, match="calls a part of unet"):
        loaded.pipeline.unet.conv_in(None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (["diffusers", "StableAudioDiTModel"], "unet is a StableAudioDiTModel, whose inputs are not known"),
        (["diffusers", "NoSuchModel"], "unet is a NoSuchModel of diffusers, which cannot be imported"),
        (["os", "path"], "unet is a path of os, which cannot be imported"),
    ],
)
def test_nothing_is_written_for_a_component_that_is_not_known(
    folder: Path, tmp_path: Path, entry: list[str], message: str
) -> None:
    wrong = tmp_path / "wrong"
    shutil.copytree(folder, wrong)
    index = json.loads((folder / "model_index.json").read_text())
    (wrong / "model_index.json").write_text(json.dumps(index | {"unet": entry}))
    with pytest.raises(UserError, match=message):
        fx2onnx.export_folder(f"diffusers:{wrong}", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (None, "E302", "has no model_index.json"),
        ("[]", "E302", "no JSON object"),
        ('{"unet": ["diffusers", "UNet2DConditionModel"]}', "E601", "names no pipeline"),
        ('{"_class_name": ["pipeline", "Mine"]}', "E601", "names no pipeline"),
        ('{"_class_name": "P", "unet": ["a.b", "C"]}', "E601", "component unet"),
        ('{"_class_name": "P", "../x": ["diffusers", "C"]}', "E601", "component ../x"),
    ],
)
def test_an_index_that_names_no_pipeline_is_refused(tmp_path: Path, text: str | None, code: str, message: str) -> None:
    if text is not None:
        (tmp_path / "model_index.json").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read_index(tmp_path)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("name", "is_member"), [("a", True), ("a/b", True), ("a/b/c", False), ("../a", False), ("/a", False), ("a/", False)]
)
def test_a_manifest_names_files_one_folder_deep(name: str, is_member: bool) -> None:
    assert is_member_name(name) is is_member
