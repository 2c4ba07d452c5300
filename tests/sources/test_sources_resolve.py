"""From a spec to a module with sample inputs: what each kind gives, and what it refuses."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.sources import Source, names, resolve

TINY = [
    "zoo:mnist_cnn",
    "zoo:mnist_cnn_same",
    "zoo:vit_tiny",
    "zoo:bert_tiny",
    "zoo:gpt2_tiny",
    "zoo:t5_tiny",
    "zoo:llama_tiny",
]
SMALL = [
    "torchvision:squeezenet1_1?num_classes=7",
    "timm:resnet10t?num_classes=7",
    "hf:bert?num_hidden_layers=1&hidden_size=32&num_attention_heads=2&vocab_size=50",
    "hf:t5?num_layers=1&num_decoder_layers=1&d_model=32&vocab_size=50",
    "hf:vit?num_hidden_layers=1&hidden_size=32&num_attention_heads=2&image_size=32",
]


def outputs_of(source: Source) -> list[torch.Tensor]:
    with torch.no_grad():
        result = source.module(*source.args, **source.kwargs)
    if isinstance(result, torch.Tensor):
        return [result]
    return list(result.values() if isinstance(result, dict) else result)


@pytest.mark.long_cases(
    "timm:resnet10t?num_classes=7", "hf:vit?num_hidden_layers=1&hidden_size=32&num_attention_heads=2&image_size=32"
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("spec", TINY + SMALL)
def test_a_source_can_be_called_and_names_its_dims(spec: str) -> None:
    source = resolve(spec)
    assert not source.module.training
    outputs = outputs_of(source)
    assert outputs
    assert all(bool(torch.isfinite(value).all()) and 1e-3 < float(value.std()) < 1e3 for value in outputs)
    assert source.dynamic_shapes
    bound = inspect.signature(source.module.forward).bind(*source.args, **source.kwargs).arguments
    for name, axes in source.dynamic_shapes.items():
        assert all(axis < bound[name].ndim for axis in axes)
    assert not source.output_names or len(source.output_names) == len(outputs)


@pytest.mark.long_cases("timm:resnet10t?num_classes=7")
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("spec", ["zoo:mnist_cnn_same", *SMALL[:3]])
def test_the_seed_decides_the_weights_and_the_callers_random_state_is_kept(spec: str) -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first, again, other = (resolve(spec, seed=seed).module.state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.long_cases("timm:resnet10t?num_classes=7")
@pytest.mark.parametrize("spec", ["zoo:mnist_cnn", *SMALL[:3]])
def test_no_parameter_or_statistic_is_left_constant(spec: str) -> None:
    for name, value in resolve(spec).module.state_dict().items():
        if value.is_floating_point() and value.numel() > 1:
            assert float(value.min()) < float(value.max()), name


@pytest.mark.parametrize("name", names("zoo"))
def test_zoo_models_take_the_options_they_state(name: str) -> None:
    from models_zoo import registry

    entry = registry.entry(name)
    assert "batch" in entry.options
    assert entry.summary


def test_weights_of_a_trained_model_are_random_where_asked() -> None:
    pytest.importorskip("sklearn")
    first, again = (resolve("zoo:mnist_trained", weights="random") for _ in range(2))
    assert "random weights" in first.origin
    assert torch.equal(first.module.norm1.running_mean, torch.zeros(16)), "no batch was seen"  # type: ignore[union-attr]
    assert all(map(torch.equal, first.module.state_dict().values(), again.module.state_dict().values()))


@pytest.mark.long
def test_sizes_of_the_sample_inputs_follow_the_options() -> None:
    assert resolve("zoo:mnist_cnn", batch=3).args[0].shape == (3, 1, 28, 28)
    bert = resolve("zoo:bert_tiny", batch=1, seq=9)
    assert {key: tuple(value.shape) for key, value in bert.kwargs.items()} == {
        "input_ids": (1, 9),
        "attention_mask": (1, 9),
    }
    assert resolve("torchvision:squeezenet1_1", image_size=64).args[0].shape == (2, 3, 64, 64)
    assert resolve(SMALL[1], image_size=96, batch=1).args[0].shape == (1, 3, 96, 96)
    assert resolve(SMALL[4], image_size=32).kwargs["pixel_values"].shape == (2, 3, 32, 32)


@pytest.mark.long
@pytest.mark.parametrize(("option", "size"), [(None, 224), (32, 32)])
def test_a_vision_transformer_gets_images_of_its_own_size(
    option: int | None, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As with vit_h_14 (too large for a test), whose best published weights are of 518 pixels.
    monkeypatch.setattr(
        "fx2onnx.sources.torchvision._sizes", lambda models, name, task, options: (options.image_size or 518, 16)
    )
    assert resolve("torchvision:vit_b_32", image_size=option, batch=1).args[0].shape == (1, 3, size, size)


@pytest.mark.long_cases("fasterrcnn_mobilenet_v3_large_320_fpn?min_size=128&max_size=128")
@pytest.mark.parametrize(
    "name",
    [
        "fasterrcnn_mobilenet_v3_large_320_fpn?min_size=128&max_size=128",
        pytest.param("ssdlite320_mobilenet_v3_large", marks=pytest.mark.slow),
    ],
)
def test_a_detector_with_random_weights_detects_something(name: str) -> None:
    source = resolve(f"torchvision:{name}", image_size=128)
    with torch.no_grad():
        (found,) = source.module(*source.args)
    assert len(found["scores"]) > 5
    assert float(found["scores"].max()) > 0.2
    assert len(found["scores"].unique()) > 0.9 * len(found["scores"])


def test_encoder_and_decoder_lengths_differ() -> None:
    source = resolve(SMALL[3], seq=8)
    assert source.kwargs["input_ids"].shape[1] != source.kwargs["decoder_input_ids"].shape[1]
    assert source.dynamic_shapes is not None
    assert source.dynamic_shapes["decoder_input_ids"] == {0: "batch", 1: "decoder_sequence"}


def test_the_cache_is_off_so_that_outputs_are_tensors() -> None:
    result = resolve("hf:gpt2?n_layer=1&n_embd=32&n_head=2&vocab_size=50&bos_token_id=0&eos_token_id=0")
    with torch.no_grad():
        assert list(result.module(**result.kwargs)) == ["logits"]


def test_the_architecture_that_a_task_names_is_built() -> None:
    spec = "hf:bert?num_hidden_layers=1&hidden_size=32&num_attention_heads=2&vocab_size=50&task="
    assert type(resolve(spec + "token-classification").module).__name__ == "BertForTokenClassification"
    assert type(resolve(spec + "features").module).__name__ == "BertModel"


class TestCheckpointFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        resolve("zoo:bert_tiny", seed=4).module.save_pretrained(tmp_path / "tiny")  # type: ignore[operator]
        return tmp_path / "tiny"

    def test_weights_and_architecture_come_from_the_folder(self, folder: Path) -> None:
        source = resolve(f"hf:{folder}")
        expected = resolve("zoo:bert_tiny", seed=4).module.state_dict()
        assert source.name == "tiny"
        assert type(source.module).__name__ == "BertForMaskedLM"
        assert all(torch.equal(value, expected[key]) for key, value in source.module.state_dict().items())

    def test_missing_weights_are_not_made_up(self, folder: Path) -> None:
        error = refusal(f"hf:{folder}?task=token-classification")
        assert error.code == "E601"
        assert "classifier" in error.why

    def test_a_corrupt_weight_file_is_reported(self, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"\x07" * 100)
        error = refusal(f"hf:{folder}")
        assert error.code == "E302"
        assert "model.safetensors" in error.what
        assert error.__cause__ is not None

    def test_code_in_a_checkpoint_is_not_run(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "of_its_own", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "code.py").write_text("raise SystemExit('the code ran')\n")
        assert "does not run" in refusal(f"hf:{folder}").what

    def test_a_folder_whose_weights_are_missing_gets_no_random_ones_unasked(self, folder: Path) -> None:
        for path in folder.glob("*.safetensors"):
            path.unlink()
        assert refusal(f"hf:{folder}").code == "E302"
        assert "random weights" in resolve(f"hf:{folder}", weights="random").origin

    def test_a_broken_config_and_a_folder_without_one_are_reported(self, folder: Path) -> None:
        (folder / "config.json").write_text("{")
        error = refusal(f"hf:{folder}")
        assert (error.code, "config.json" in error.what) == ("E302", True)
        (folder / "config.json").unlink()
        assert "config.json" in refusal(f"hf:{folder}").what


def refusal(spec: str, **options: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        resolve(spec, **options)
    return caught.value


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("fill-mask", "BertForMaskedLM"),
        ("AutoModelForMaskedLM", "BertForMaskedLM"),
        ("text-classification", "BertForSequenceClassification"),
        ("next-sentence-prediction", "BertForNextSentencePrediction"),
        ("pretraining", "BertForPreTraining"),
        ("multiple-choice", "BertForMultipleChoice"),
    ],
)
def test_a_task_is_a_word_of_pipelines_or_any_auto_class(task: str, name: str) -> None:
    source = resolve(f"hf:bert?task={task}&num_hidden_layers=1&hidden_size=24&num_attention_heads=2&vocab_size=50")
    assert type(source.module).__name__ == name
    choices = (3,) if task == "multiple-choice" else ()
    assert {tuple(value.shape) for value in source.kwargs.values()} == {(2, *choices, 16)}
    assert source.module(**source.kwargs)[0].shape[0] == 2


@pytest.mark.parametrize(
    ("spec", "code", "named"),
    [
        ("resnet50", "E601", "torchvision:NAME"),
        ("zoo:", "E601", "fx2onnx list zoo"),
        ("torchvison:resnet50", "E601", "torchvision"),
        ("torchvision:resnet51", "E601", "resnet50"),
        ("torchvision:resnet50?no_such_thing=1", "E601", "no_such_thing"),
        ("timm:resnet5o", "E601", "resnet50"),
        ("hf:bret", "E601", "bert"),
        ("hf:./no/such/folder", "E601", "save_pretrained"),
        ("hf:bert?num_layer=2", "E601", "num_hidden_layers"),
        ("hf:gemma4_assistant", "E601", "must be 0"),  # its defaults contradict each other
        ("hf:llama?hidden_size=30&num_attention_heads=4", "E601", "not a multiple"),
        ("hf:bert?task=translate", "E601", "masked-lm"),
        ("hf:bert?task=AutoModelForNothing", "E601", "masked-lm"),
        ("hf:bert?task=image-to-image", "E601", "multiple-choice"),
        ("zoo:resnet5", "E601", "resnet50"),
        ("zoo:mnist_cnn?width=3", "E001", "batch"),
        ("zoo:mnist_cnn?width", "E601", "key=value"),
        ("no_such_package.models:make", "E601", "torchvision"),
        ("os.path:joi", "E601", "join"),
        ("os.path:sep", "E601", "a factory returns"),
    ],
)
def test_refusals_say_what_was_meant(spec: str, code: str, named: str) -> None:
    error = refusal(spec)
    assert error.code == code
    assert named in error.render()


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("zoo:mnist_cnn", {"batch": 0}),
        ("zoo:mnist_cnn", {"seq": 4}),
        ("torchvision:resnet18", {"seq": 4}),
        ("torchvision:inception_v3", {"image_size": 32}),
    ],
)
def test_sizes_that_mean_nothing_are_refused(spec: str, options: dict[str, int]) -> None:
    assert refusal(spec, **options).code == "E001"


@pytest.mark.parametrize(
    ("kind", "package"), [("torchvision", "torchvision"), ("timm", "timm"), ("hf", "transformers")]
)
def test_a_missing_package_is_named_with_the_pip_command(
    kind: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    error = refusal(f"{kind}:anything")
    assert error.code == "E602"
    assert error.next[0] == f"pip install {package}"


def test_weights_that_memory_cannot_hold_are_refused_before_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 10**6

    monkeypatch.setattr("psutil.virtual_memory", Memory)
    error = refusal("hf:bert?num_hidden_layers=1")
    assert error.code == "E404"
    assert "num_hidden_layers" in error.next[0]


def test_fields_that_depend_on_others_follow_them() -> None:
    spec = "hf:llama?num_hidden_layers=1&vocab_size=50&hidden_size=64&intermediate_size=64&num_attention_heads=4"
    assert outputs_of(resolve(spec))[0].shape == (2, 16, 50)


def test_statistics_are_those_of_the_activations() -> None:
    from fx2onnx.sources.seeding import settle

    convolution = torch.nn.Conv2d(3, 4, 3)
    module = torch.nn.Sequential(convolution, torch.nn.BatchNorm2d(4)).eval()
    sample = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 100 + 50
    settle(module, 0, sample)
    with torch.no_grad():
        normal = module(sample)
    assert not any(layer.training for layer in module.modules())
    assert float(normal.std()) < 2.0
    assert module[1].momentum == 0.1
    with pytest.raises(UserError, match="cannot be called"):
        settle(module, 0, torch.randn(1, 5, 16, 16))


_FACTORIES = """
import torch
from fx2onnx.sources import Source

def bare(): return torch.nn.Linear(3, 2)
def pair(width=3): return torch.nn.Dropout(), (torch.ones(1, width),)
def triple(): return torch.nn.Bilinear(3, 3, 2), (torch.ones(1, 3),), {"input2": torch.ones(1, 3)}
def mapping(): return torch.nn.Linear(3, 2), {"input": torch.ones(1, 3)}
def sized(*, batch=1, seq=2): return torch.nn.Identity(), torch.ones(batch, seq)
def source(): return Source("mine", torch.nn.Identity(), (torch.rand(2),), {}, {"input": {0: "n"}})
def number(): return 3
def raising():
    return torch.nn.Linear(3, "two")
class Nested:
    make = staticmethod(pair)
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    (tmp_path / "my_factories.py").write_text(_FACTORIES)
    (tmp_path / "needs_other.py").write_text("import no_such_dependency.part\n")
    (tmp_path / "stops.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("my_factories", "needs_other", "stops"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return lambda name: f"my_factories:{name}"


class TestFactory:
    def test_returns_that_are_understood(self, factories: Callable[[str], str]) -> None:
        pair = resolve(factories("pair?width=5"))
        assert (pair.name, pair.args[0].shape, pair.module.training) == ("pair", (1, 5), False)
        assert list(resolve(factories("triple")).kwargs) == ["input2"]
        assert list(resolve(factories("mapping")).kwargs) == ["input"]
        assert resolve(factories("sized"), batch=4, seq=5).args[0].shape == (4, 5)
        assert resolve(factories("Nested.make")).args[0].shape == (1, 3)
        assert resolve(factories("source")).dynamic_shapes == {"input": {0: "n"}}
        assert torch.equal(resolve(factories("source")).args[0], resolve(factories("source")).args[0])

    def test_an_exception_keeps_its_cause_and_place(self, factories: Callable[[str], str]) -> None:
        error = refusal(factories("raising"))
        assert error.code == "E601"
        assert isinstance(error.__cause__, TypeError)
        assert error.where is not None
        assert (error.where.function, Path(error.where.file).name) == ("raising", "my_factories.py")

    @pytest.mark.parametrize(
        ("name", "code", "named"),
        [
            ("bare", "E601", "missing a required argument: 'input'"),
            ("number", "E601", "int"),
            ("pair?depth=2", "E001", "width"),
            ("par", "E601", "pair"),
        ],
    )
    def test_refusals(self, factories: Callable[[str], str], name: str, code: str, named: str) -> None:
        error = refusal(factories(name))
        assert error.code == code
        assert named in error.render()

    def test_a_size_that_the_factory_does_not_take(self, factories: Callable[[str], str]) -> None:
        assert refusal(factories("pair"), seq=3).code == "E001"

    @pytest.mark.usefixtures("factories")
    def test_failing_imports(self) -> None:
        missing = refusal("needs_other:make")
        assert (missing.code, missing.next) == ("E602", ("pip install no_such_dependency",))
        raised = refusal("stops:make")
        assert isinstance(raised.__cause__, ZeroDivisionError)


def test_names_are_listed_and_an_unknown_kind_is_refused() -> None:
    assert {"resnet50", "bert_base_mlm", "t5_small"} <= set(names("zoo"))
    assert "resnet50" in names("torchvision")
    assert "bert" in names("hf")
    with pytest.raises(UserError) as caught:
        names("torchvison")
    assert caught.value.code == "E601"


def test_a_zoo_name_cannot_be_taken_twice() -> None:
    from models_zoo import registry

    names("zoo")
    with pytest.raises(ValueError, match=r"vision\.py.*test_sources_resolve\.py"):

        @registry.zoo_model("resnet50")
        def another(*, seed: int = 0) -> Source:
            raise NotImplementedError
