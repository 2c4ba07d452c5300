"""Sample inputs by their names, and the small helpers that sources share."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.sources import seeding
from fx2onnx.sources.foreign_errors import reported, summary
from fx2onnx.sources.hf.sample_context import SampleContext, samples_of, set_use_cache
from fx2onnx.sources.hf.samples import INPUT_FACTORIES, PADDED_PATCH_FACTORIES, other_forms
from fx2onnx.sources.hf.sound_processor import sound_forms
from fx2onnx.sources.hf.tasks import TASKS, every_task
from fx2onnx.sources.inputs import input_files
from fx2onnx.sources.light_run import run_lightly
from fx2onnx.sources.source import Options
from fx2onnx.sources.weight_files import cast_inputs, check_dtype


class Config(SimpleNamespace):
    model_type = "any"

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


def context(batch: int = 2, **fields: Any) -> SampleContext:
    return SampleContext(Config(**fields), Options(batch=batch, seq=7))


@pytest.mark.parametrize("name", INPUT_FACTORIES)
def test_named_axes_are_those_that_follow_the_options(name: str) -> None:
    factory = INPUT_FACTORIES[name]
    small, large = (
        factory.make(SampleContext(Config(), Options(batch=batch, seq=seq))) for batch, seq in ((2, 8), (3, 12))
    )
    moved = {axis for axis, (one, other) in enumerate(zip(small.shape, large.shape, strict=True)) if one != other}
    assert set(factory.axes) <= moved
    if factory.axes:
        assert (small.shape[0], large.shape[0]) == (2, 3)


def test_patches_in_rows_agree_on_their_number() -> None:
    samples, shapes = samples_of(PADDED_PATCH_FACTORIES, context(batch=3, patch_size=2))
    rows, columns = samples["spatial_shapes"][0].tolist()
    assert samples["pixel_values"].shape == (3, rows * columns, 3 * 2 * 2)
    assert samples["pixel_attention_mask"].shape == (3, rows * columns)
    assert samples["pixel_position_ids"].shape == (3, rows * columns, 2)
    assert shapes["pixel_values"] == {0: "batch"}
    assert shapes["spatial_shapes"] == {}


def test_fields_are_found_in_parts_of_the_config() -> None:
    found = context(vision_config=Config(patch_size=3, hidden_size=None), text_config=Config(hidden_size=5))
    assert (found.number("patch_size"), found.number("hidden_size"), found.number("none", default=9)) == (3, 5, 9)


def test_codebooks_are_a_row_of_ids_each_or_a_column() -> None:
    asked = context(num_codebooks=3)
    columns, rows = other_forms("input_ids", asked, in_patches=False)
    assert columns.make(asked).shape == (2, 7, 4)
    assert rows.make(asked).shape == (6, 7)
    assert str(rows.axes[0]) == "3*batch"


def test_sound_comes_with_a_mask_of_its_frames_where_one_is_wanted() -> None:
    def encode(input_features: Any, input_features_mask: Any) -> None: ...

    asked = context(num_mel_bins=80)
    forms = [
        samples_of(form, asked)[0]
        for form in sound_forms("input_features", inspect.signature(encode).parameters, asked)
    ]
    assert {form["input_features_mask"].dtype for form in forms} == {torch.int64, torch.bool}
    frames = {
        form["input_features"].shape[1:].numel() // 80: form["input_features_mask"].shape[1] for form in forms[:1]
    }
    assert all(length == mask for length, mask in frames.items())


def test_use_of_the_cache_is_set_in_every_part_that_has_it() -> None:
    config = Config(use_cache=True, text_config=Config(use_cache=True), vision_config=Config())
    set_use_cache(config, False)
    assert (config.use_cache, config.text_config.use_cache) == (False, False)
    assert not hasattr(config.vision_config, "use_cache")


def test_a_light_run_is_on_fake_tensors_where_they_do_and_on_real_ones_where_not() -> None:
    model, given = torch.nn.Linear(3, 4), {"input": torch.ones(2, 3)}
    assert type(run_lightly(model, model, given)).__name__ == "FakeTensor"
    reads = run_lightly(model, lambda input: [float(value) for value in input.sum(1)], given)
    assert reads == [3.0, 3.0]
    with pytest.raises(Exception, match="_local_scalar_dense"):
        run_lightly(model.to("meta"), lambda input: float(input.sum()), given)


def test_errors_of_libraries_become_errors_of_the_user() -> None:
    with pytest.raises(UserError, match="cannot build") as caught, reported("cannot build it", next="another way"):
        raise ValueError("  first\nsecond")
    assert (caught.value.code, caught.value.why, caught.value.next) == ("E601", "ValueError: first", ("another way",))
    own = UserError("E404", "too large")
    with pytest.raises(UserError) as caught, reported("cannot build it"):
        raise own
    assert caught.value is own
    assert summary(None) == ""


def test_weights_that_memory_cannot_hold_are_refused_before_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    free = SimpleNamespace(available=400)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    with pytest.raises(UserError, match="weights") as caught:
        seeding.check_memory("zoo:big", lambda: torch.nn.Linear(10, 9, bias=False), "smaller")  # 360 bytes of 400
    assert caught.value.code == "E404"
    seeding.check_memory("zoo:small", lambda: torch.nn.Linear(10, 7, bias=False), "smaller")

    def fails() -> torch.nn.Module:
        raise ValueError

    seeding.check_memory("zoo:odd", fails, "the real build says why")


def test_input_files_are_those_of_the_checkpoint_of_the_factory_and_of_weights(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "model.onnx"):
        (tmp_path / name).touch()
    assert {path.name for path in input_files(f"hf:{tmp_path}?x=1")} == {"config.json", "model.safetensors"}
    assert input_files("torchvision:resnet18", "random") == []
    assert input_files("torchvision:resnet18", str(tmp_path / "w.pt")) == [tmp_path / "w.pt"]
    (path,) = {os.path.realpath(path) for path in input_files(f"{__name__}:factory")}
    assert Path(path) == Path(__file__).resolve()


def test_dtypes_reach_tensors_in_containers_and_leave_integers() -> None:
    half = check_dtype("float16")
    assert half is torch.float16
    cast = cast_inputs({"a": [torch.zeros(1), torch.zeros(1, dtype=torch.int64)], "b": "word"}, half)
    assert [value.dtype for value in cast["a"]] == [torch.float16, torch.int64]
    assert cast["b"] == "word"
    with pytest.raises(UserError, match="int3"):
        check_dtype("int3")


def test_every_mapping_has_a_word_and_those_that_people_export_for_come_first() -> None:
    auto: Any = SimpleNamespace(MODEL_FOR_MULTIPLE_CHOICE_MAPPING={}, MODEL_FOR_CTC_MAPPING={}, OTHER={})
    words = every_task(auto)
    assert list(words)[: len(TASKS)] == list(TASKS)
    assert words["multiple-choice"] == "MODEL_FOR_MULTIPLE_CHOICE_MAPPING"
    assert len(words) == len(TASKS) + 1
