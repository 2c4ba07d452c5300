"""The next step of an error is what mends it, and every error has the address of its page."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.base.errors import CODES, UserError
from fx2onnx.base.metadata import DOCS
from fx2onnx.generation.settings import GenerateSettings, settings_of
from fx2onnx.targets.form import find

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Until(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> dict[str, torch.Tensor]:
        found = {}
        for turn in range(int(n)):
            x = found[f"turn {turn}"] = torch.cat([x, x])
        return found


class Sum(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


class Table(nn.Module):
    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


def of_dict(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return batch["a"] + batch["b"]


def by_keyword(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    return x * scale


def counts_in_numpy(x: torch.Tensor) -> torch.Tensor:
    found = np.zeros(10, dtype=np.float32)
    for k in x.abs().long().flatten().tolist():
        found[k] += 1
    return torch.from_numpy(found)


def marks_in_numpy(x: torch.Tensor) -> torch.Tensor:
    found = np.zeros((12, 9), dtype=np.float32)
    for row, k in enumerate(x.abs().long().flatten()):
        found[row, k] = 1
    return torch.from_numpy(found)


def numbers_up_to_a_two(x: torch.Tensor) -> torch.Tensor:
    found = []
    for k in x[0].long().tolist():
        if k == 2:
            break
        found.append(k)
    return torch.tensor(found)


def rows_up_to_a_limit(x: torch.Tensor) -> torch.Tensor:
    found, i, total = [], 0, 0.0
    while total < 9.0:
        found.append(x[i])
        total += x[i].abs().sum().item()
        i += 1
    return torch.stack(found)


def repeats_a_list(x: torch.Tensor) -> torch.Tensor:
    n = x[0].argmax().item()
    return x[:n] * torch.tensor([1.0] * n)[:, None]


def spends(x: torch.Tensor) -> torch.Tensor:
    spent, i = 0.0, 0
    while spent < 2.0:
        spent += float(x[0, i])
        i += 1
    return x + i


def with_operators(op: Any, self: Any, other: Any, alpha: Any) -> Any:
    return self + other


def with_sizes_that_do_not_fit(op: Any, self: Any, other: Any, alpha: Any) -> Any:
    return op.Add(op.Transpose(self, perm=[1, 0]), other)


def prepared(is_qat: bool = False) -> nn.Module:
    quantization = torch.ao.quantization
    module = quantization.QuantWrapper(nn.Linear(4, 4)).train(is_qat)
    module.qconfig = (quantization.get_default_qat_qconfig if is_qat else quantization.get_default_qconfig)("fbgemm")
    return (quantization.prepare_qat if is_qat else quantization.prepare)(module).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("module", "args", "options", "step"),
    [
        (Until, (X, torch.tensor(3)), {}, "torch.while_loop"),
        (Sum, (X, X), {"dynamic_shapes": {"a": {0: "batch"}}}, "name batch in dynamic_shapes for axis 0 of b"),
        (prepared, (X,), {}, "torch.ao.quantization.convert"),
        (lambda: nn.Linear, (X,), {}, "Linear(...)"),
        (lambda: Sum, (X, X), {}, "Sum(...)"),
        (lambda: nn.Linear(4, 2), (X.numpy(),), {}, "for the NumPy array input"),
        (lambda: nn.Linear(4, 2), "m.onnx", {}, "export(module, args, path)"),
        (Sum, (X, X.numpy()), {}, "for the NumPy array b"),
        (Sum, (X.numpy(), X.numpy()), {}, "for the NumPy array a"),
        (Sum, ([1, 2], X.numpy()), {}, "for the NumPy array b"),
        (Sum, (X,), {"kwargs": {"b": [X.numpy()]}}, "for the NumPy array b_0"),
        (lambda: nn.Linear(4, 2), (X,), {"opset_version": "17"}, "opset_version=17"),
        (Until, (X, torch.tensor(3)), {}, "collect with append in a list"),
        (Until, (X, torch.tensor(3)), {}, "go through the tensor and not through its tolist()"),
        (lambda: counts_in_numpy, (X,), {}, "torch.zeros(k) in the place of np.zeros(k)"),
        (lambda: marks_in_numpy, (X,), {}, "torch.zeros(k) in the place of np.zeros(k)"),
        (lambda: numbers_up_to_a_two, (X,), {}, "torch.tensor(numbers, dtype=torch.int64)"),
        (lambda: rows_up_to_a_limit, (X,), {}, "while i < len(x) and"),
        (lambda: nn.Linear(4, 2), ([[1.0, 2.0, 3.0, 4.0]],), {}, "torch.tensor(numbers)"),
        (lambda: repeats_a_list, (X,), {}, "torch.full((n,), 1.0)"),
        (lambda: spends, (X.abs(),), {}, "while i < len(x) and"),
        (lambda: lambda x: x[0, sorted(range(4), key=lambda i: float(x[0, i].exp()))], (X,), {}, "x.argsort()"),
        (lambda: lambda x: (x, f"{x.sum().item():.2f}"), (X,), {}, "leave out the text"),
        (lambda: lambda x: (x, str(x.sum().item())), (X,), {}, "leave out the text"),
        (lambda: lambda x: torch.nested.nested_tensor(list(x)).to_padded_tensor(0.0), (X,), {}, "pad to one size"),
        (
            lambda: lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged).to_padded_tensor(0.0),
            (X,),
            {},
            "pad to one size",
        ),
        (
            lambda: nn.Linear(4, 2),
            (X,),
            {"quantize": "int8", "act_order": True},
            "fx2onnx.Quantize('int8', act_order=...)",
        ),
        (lambda: nn.Linear(4, 2), (X,), {"dtype": "float16", "keep": "fc*"}, "fx2onnx.Precision('float16', keep=...)"),
        (lambda: nn.Linear(4, 2), (X,), {"bake": "input"}, "bake=['input'] for that input"),
        (Sum, (X, X), {"custom_translations": {torch.ops.aten.add.Tensor: with_operators}}, "op.Add(a, b)"),
        (lambda: nn.Linear(4, 2), (X,), {"target": "onnxrt"}, "did you mean 'onnxruntime'"),
        (lambda: nn.Linear(4, 2), (X,), {"opset_version": 17.0}, "opset_version=17"),
        (nn.Identity, (X.numpy(),), {}, "for the NumPy array input"),
        (nn.Identity, ({"a": X.numpy()},), {}, "for the NumPy array input_a"),
        (lambda: nn.Linear(4, 2), (3.0,), {}, "torch.tensor(number)"),
        (lambda: nn.Linear(4, 2).half(), (X,), {}, "pass input.to(torch.float16), or export module.to(torch.float32)"),
        (lambda: nn.LayerNorm(4).double(), (X,), {}, "pass input.to(torch.float64)"),
        (lambda: nn.Linear(4, 2), (X.long(),), {}, "pass input.to(torch.float32)"),
        (lambda: of_dict, {"a": X, "b": X}, {}, "args=(batch,), a tuple with one element"),
        (lambda: nn.Linear(4, 2), (), {"kwargs": {"inp": X}}, "forward calls it input"),
        (lambda: by_keyword, (X, 2.0), {}, "kwargs={'scale': ...}"),
        (lambda: lambda: nn.Linear(4, 2), (X,), {}, "export(make(), args, path)"),
        (lambda: lambda x: nn.Linear(4, 2), (X,), {}, "export(make(), args, path)"),
        (lambda: "torchvision:resnet18", (X,), {}, "fx2onnx.sources.resolve(source)"),
        (lambda: Path("net.pt"), (X,), {}, "import or load it"),
        (lambda: nn.Linear(4, 2), (X,), {"dynamic_shapes": {"input": {"batch": 0}}}, "{0: 'batch'}"),
        (lambda: nn.Linear(4, 2), (X,), {"dynamic_axes": {"input": {"0": "batch"}}}, "{0: 'batch'}"),
        (lambda: Table(nn.Parameter(X[:, :1])), (X,), {"dynamic_shapes": {"x": {0: "n"}}}, "table[:x.shape[0]]"),
        (lambda: Table(nn.Buffer(X[:1])), (X,), {"dynamic_shapes": {"x": {1: "n"}}}, "table[:, :x.shape[1]]"),
        (lambda: nn.Linear(4, 2), (X,), {"verify": "no"}, "verify=False"),
        (lambda: nn.Linear(4, 2), (X,), {"verify": torch.ones(2)}, "verify=False"),
        (lambda: nn.Linear(4, 2), (X,), {"optimize": np.zeros(3)}, "optimize=False"),
        (lambda: nn.Linear(4, 2), (X,), {"custom_translations": np.ones(2)}, "custom_translations={key: value}"),
        (lambda: nn.Linear(4, 2), (X,), {"input_names": (name for name in "ab")}, 'input_names=["first", "second"]'),
        (lambda: nn.Linear(4, 2), (X,), {"optimize": 3}, "optimize=True"),
        (lambda: nn.Linear(4, 2), (X,), {"external_data": "weights.bin"}, "external_data=True"),
        (lambda: nn.Linear(4, 2), (X,), {"bake": True}, "bake=['NAME']"),
        (lambda: nn.Linear(4, 2), (X,), {"custom_translations": [with_operators]}, "custom_translations={key: value}"),
        (lambda: nn.Linear(4, 2), (X,), {"input_names": [1]}, 'input_names=["first", "second"]'),
        (lambda: nn.Linear(4, 2), (X,), {"input_names": 5}, 'input_names=["first", "second"]'),
        (lambda: nn.Linear(4, 2), (X,), {"output_names": [None]}, 'output_names=["first", "second"]'),
    ],
)
def test_an_export_error_leads_to_the_fix(module: Any, args: Any, options: dict[str, Any], step: str) -> None:
    with pytest.raises(UserError) as caught:
        fx2onnx.export(module(), args, **options)
    assert step in caught.value.next[0] or step in "\n".join(caught.value.next)


def test_a_translation_whose_operands_do_not_fit_is_one_error() -> None:
    with pytest.raises(UserError, match="Add has operands that do not fit") as caught:
        fx2onnx.export(Sum(), (X, X), custom_translations={torch.ops.aten.add.Tensor: with_sizes_that_do_not_fit})
    assert "E900" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "step"),
    [
        ({"frozen": "trunk."}, "frozen=['trunk.']"),
        ({"target": X}, "did you mean targets?"),
        ({"dynamic_shapes": {"input": {0: "b"}, "label": {0: "b"}}}, "targets={'label': ...}"),
    ],
)
def test_an_error_of_a_training_export_leads_to_the_fix(options: dict[str, Any], step: str, tmp_path: Path) -> None:
    module, labels = nn.Linear(4, 3), torch.tensor([0, 1, 2])
    with pytest.raises(UserError) as caught:
        fx2onnx.export_training(
            module, (X,), tmp_path / "out", loss=nn.functional.cross_entropy, targets=labels, **options
        )
    assert any(step in each for each in caught.value.next)


CODE = """
def counted(x, n):
    for _ in range(int(n)):
        x = x * 2 if x.sum() > 0 else x
    return x
def summed(x, n):
    found = {}
    for row in range(x.shape[0]):
        found[row] = x[row]
    return found[0]
"""


@pytest.mark.parametrize("name", ["counted", "summed"])
@pytest.mark.parametrize("file", ["<stdin>", "<string>"])
def test_code_without_a_source_is_to_be_saved_in_a_file(name: str, file: str) -> None:
    """In a file, the first of them exports."""
    space: dict[str, Any] = {}
    exec(compile(CODE, file, "exec"), space)
    with pytest.raises(UserError) as caught:
        fx2onnx.export(space[name], (X, torch.tensor(2)), dynamic_shapes={"x": {0: "rows"}, "n": None})
    assert caught.value.next[0].startswith("save the code in a file")
    assert " | " not in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_a_module_that_still_observes_is_a_warning_with_the_fix() -> None:
    module = prepared(is_qat=True)
    module(X)
    warnings = fx2onnx.export(module, (X,), optimize=False).report.warnings
    assert "torch.ao.quantization.convert" in warnings[0]
    assert not fx2onnx.export(torch.ao.quantization.convert(module), (X,), optimize=False).report.warnings


def test_a_size_that_a_weight_fixes_names_the_weight() -> None:
    with pytest.raises(UserError, match=r"weights of that size: weight \[2, 4\]"):
        fx2onnx.export(nn.Linear(4, 2), (X,), dynamic_shapes={"input": {1: "feat"}})


def test_a_file_that_is_not_there_says_what_goes_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fx2onnx.export(nn.Linear(300, 20), (torch.ones(1, 300),), "m.onnx", external_data=True)
    next(tmp_path.glob("m.onnx.*.data")).unlink()
    for name, step in (("m.onnx", "keep the two files in one folder"), ("net:make", "the ONNX file comes first"),
                       ("m.onn", "did you mean m.onnx?")):  # fmt: skip
        with pytest.raises(UserError, match="E302") as caught:
            verified(name)
        assert step in caught.value.next[0]


def test_a_name_that_was_given_stays() -> None:
    """``[0]`` gives an axis no name of its own."""
    for named, listed in (("a", "b"), ("b", "a")):
        axes = {named: {0: "rows"}, listed: [0]}
        result = fx2onnx.export(Sum(), (X, X), dynamic_axes=axes)
        assert [str(value.shape[0]) for value in (*result.model.graph.inputs, *result.model.graph.outputs)] == [
            "rows"
        ] * 3


@pytest.mark.parametrize(
    ("name", "meant"), [("ort", "onnxruntime"), ("opnvino", "openvino"), ("onnxruntime-gena", "onnxruntime-genai")]
)  # fmt: skip
def test_a_misspelt_target_is_guessed(name: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"did you mean '{meant}'"):
        find(name)


DAMAGES = {
    "empty": (lambda whole: b"", "copy, download or export"),
    "cut": (lambda whole: whole[: len(whole) // 2], "copy, download or export"),
    "lfs": (lambda whole: b"version https://git-lfs.github.com/spec/v1\noid x", "git lfs pull"),
    "page": (lambda whole: b"<!DOCTYPE html><html>not found</html>", "download the file again"),
    "archive": (lambda whole: b"PK\x03\x04" + whole, "load it into its module"),
}


def verified(path: str) -> fx2onnx.Verdict:
    return fx2onnx.verify(path, nn.Linear(4, 2), (X,))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_says_what_to_do(damage: str, tmp_path: Path) -> None:
    file, (damaged, step) = tmp_path / "m.onnx", DAMAGES[damage]
    fx2onnx.export(nn.Linear(4, 2), (X,), file)
    file.write_bytes(damaged(file.read_bytes()))
    for call in (fx2onnx.inspect, fx2onnx.lint, fx2onnx.optimize, fx2onnx.runner.InferenceSession, verified):
        with pytest.raises(UserError) as caught:
            call(str(file))
        assert caught.value.code == "E303"
        assert caught.value.next[0].startswith(step)


def test_a_file_with_other_weights_asks_for_its_module(tmp_path: Path) -> None:
    result = fx2onnx.export(nn.Linear(4, 2), (X,), tmp_path / "m.onnx")
    with pytest.raises(fx2onnx.VerificationError) as caught:
        fx2onnx.verify(result, nn.Linear(4, 2), (X,), effort="quick").raise_if_failed()
    assert "the same weights" in caught.value.next[0]


@pytest.mark.parametrize(("given", "step"), [({"num_beam_groups": 2}, "num_beams"), ({"guidance_scale": 2.0}, "top_p"),
    ({"suppress_token": [1]}, "mean suppress_tokens?"), ({"constraints": [1]}, "prefix_allowed_tokens_fn"),
    ({"max_new_token": 3}, "mean max_new_tokens?"),
    ({"max_tokens": 3}, "mean max_new_tokens?"), ({"output_scores": True}, "on_token"),
    ({"temprature": 0.5}, "mean temperature?"), ({"do_samples": True}, "mean do_sample?")])  # fmt: skip
def test_settings_of_generate_lead_on(given: dict[str, Any], step: str) -> None:
    with pytest.raises(UserError, match="E401") as caught:
        settings_of(["input_ids"], given)
    assert step in caught.value.next[0]


def test_settings_that_change_nothing_are_taken() -> None:
    given = {"use_cache": True, "guidance_scale": 1.0, "num_beam_groups": None, "output_scores": False, "pixels": 1}
    assert settings_of(["input_ids"], given) == GenerateSettings()
    assert given == {"pixels": 1}
    assert settings_of(["temperature"], {"temperature": 2}) == GenerateSettings()


def test_an_array_of_texts_is_no_prompt() -> None:
    from fx2onnx.generation.prompt import array_of

    with pytest.raises(UserError, match="AutoTokenizer"):
        array_of("input_ids", np.array(["hello"]))
    assert array_of("input_ids", [1, 2]).dtype == np.int64


@pytest.mark.parametrize("name", ["org/net", "net-base-uncased"])
def test_a_model_of_the_local_cache_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / f"models--{name.replace('/', '--')}" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    with pytest.raises(UserError, match="save the model once"):
        fx2onnx.sources.resolve(f"hf:{name}")
    (snapshot / "config.json").write_text("{}")
    with pytest.raises(UserError, match=f"hf:{snapshot}"):
        fx2onnx.sources.resolve(f"hf:{name}")


@pytest.mark.long
def test_folders_name_the_task_and_the_source(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="text2text-generation-with-past"):
        fx2onnx.export_folder("hf:t5", tmp_path / "out")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"hf:BASE\?adapter="):
        fx2onnx.export_folder(f"hf:{tmp_path / 'adapter'}", tmp_path / "out")
    with pytest.raises(UserError, match=r"fx2onnx export 'hf:bert\?task=fill-mask'"):
        fx2onnx.export_folder("hf:bert", tmp_path / "out", task="fill-mask")
    with pytest.raises(UserError, match=f"write hf:{tmp_path}"):
        fx2onnx.export_folder(str(tmp_path), tmp_path / "out")


def test_every_error_has_the_address_of_its_page() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Documentation"] == DOCS
    for code in CODES:
        error = UserError(code, "what")
        assert error.page == f"{DOCS}errors.html#{code.lower()}"
        assert str(error).endswith(error.page)
        assert error.as_dict()["docs"] == error.page


@pytest.mark.parametrize("path", ["a_file/m.onnx", "a_file/inside/m.onnx"])
def test_no_folder_is_made_where_a_file_is(path: str, tmp_path: Path) -> None:
    (tmp_path / "a_file").touch()
    with pytest.raises(UserError, match="a_file' is not a folder") as caught:
        fx2onnx.export(nn.Identity(), (X,), tmp_path / path)
    assert "mkdir" not in "".join(caught.value.next)


@pytest.mark.parametrize(
    ("task", "step"),
    [
        ("causal-lm", "--task text-generation-with-past"),
        ("causal-lm-with-past", "--task text-generation-with-past"),
        ("seq2seq-lm", "--task text2text-generation-with-past"),
        ("text-classification", "fx2onnx export 'hf:FOLDER?task=text-classification'"),
    ],
)
def test_a_task_of_another_tool_leads_to_the_task_here(task: str, step: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown generation task") as caught:
        fx2onnx.export_folder("hf:FOLDER", tmp_path / "out", task=task)
    assert step in "\n".join(caught.value.next)
    assert not list(tmp_path.iterdir())
