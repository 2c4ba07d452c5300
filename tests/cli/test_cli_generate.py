"""``fx2onnx export-folder-with-past`` and ``fx2onnx generate`` from end to end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fx2onnx
from fx2onnx import ExportedFolder
from tests.cli.support import invoke


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=60, eos_token_id=2)).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_the_source_gets_its_options_and_the_reason_comes_back(tmp_path: Path) -> None:
    source = "hf:t5?d_model=32&d_ff=32&num_layers=1&num_heads=2&vocab_size=60"
    task = ("--task", "text2text-generation-with-past", "--kv", "int8")
    done = invoke("export-folder", source, *task, "--batch", 2, "--stand-ins", "missing", "-o", tmp_path / "out")
    assert "[E601]" in done.stderr
    assert "leave out --kv int8" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def exported(checkpoint: Path) -> Path:
    folder = checkpoint.parent / "onnx"
    done = invoke("export-folder", f"hf:{checkpoint}", "--task", "text-generation-with-past", "-o", folder, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["ok"]
    assert report["reports"]["model.onnx"]["input_names"][:4] == [
        "input_ids",
        "attention_mask",
        "position_ids",
        "past_key_values.0.key",
    ]
    return folder


@pytest.mark.long
@pytest.mark.parametrize("engine", ["onnxruntime", "runner"])
def test_python_compares_tokens_with_their_source(
    checkpoint: Path, exported: Path, tmp_path: Path, engine: str
) -> None:
    import torch
    from transformers import AutoConfig, LlamaForCausalLM

    torch.manual_seed(1)
    LlamaForCausalLM(AutoConfig.from_pretrained(checkpoint)).save_pretrained(tmp_path / "other")
    ids = torch.tensor([[5, 6, 7], [9, 3, 4]])
    verdict = fx2onnx.verify_generation(exported, f"hf:{checkpoint}", engine=engine, max_new_tokens=5, input_ids=ids)
    assert verdict.ok
    assert verdict.is_equal
    assert verdict.tokens.shape == (2, 8)
    assert "ok True, tokens 2 x 5" in repr(verdict)
    wrong = fx2onnx.verify_generation(fx2onnx.load(exported, engine), f"hf:{tmp_path / 'other'}", input_ids=ids)
    assert not wrong.ok
    with pytest.raises(fx2onnx.VerificationError, match=r"E501.* of row . differs from model.generate"):
        wrong.raise_if_failed()
    result = ExportedFolder(exported)
    assert fx2onnx.verify_generation(result, f"hf:{checkpoint}", engine=engine, max_new_tokens=1, input_ids=ids).ok
    with pytest.raises(fx2onnx.UserError, match=r"E001.*an integer of at least 1, not 2\.5"):
        fx2onnx.verify_generation(exported, f"hf:{checkpoint}", engine=engine, max_new_tokens=2.5, input_ids=ids)  # type: ignore[arg-type]
    with pytest.raises(fx2onnx.UserError, match=r"E001.*not the name of a checkpoint"):
        fx2onnx.verify_generation(exported, torch.nn.Linear(1, 1), input_ids=ids)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize(
    ("weight", "options"),
    [
        ("layers.1.mlp.up_proj.weight", {}),
        ("lm_head.weight", {"quantize": "int8"}),
        ("layers.0.self_attn.v_proj.weight", {"fused": True, "target": "onnxruntime"}),
    ],
)
def test_a_wrong_weight_that_changes_no_token_is_found(
    checkpoint: Path, tmp_path: Path, weight: str, options: dict[str, Any]
) -> None:
    """One weight of the source is off by a thousandth: every token is the same."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint, tmp_path / "other")
    file = tmp_path / "other" / "model.safetensors"
    state = load_file(file)
    next(value for name, value in state.items() if name.endswith(weight)).mul_(1.001)
    save_file(state, file, metadata={"format": "pt"})
    fx2onnx.export_folder(f"hf:{checkpoint}", tmp_path / "out", verify=False, **options)
    ids = np.array([[5, 6, 7], [9, 3, 4]])
    right = fx2onnx.verify_generation(tmp_path / "out", f"hf:{checkpoint}", max_new_tokens=3, input_ids=ids)
    assert right.ok
    assert right.logits is not None
    wrong = fx2onnx.verify_generation(tmp_path / "out", f"hf:{tmp_path / 'other'}", max_new_tokens=3, input_ids=ids)
    assert wrong.is_equal
    assert not wrong.ok
    with pytest.raises(fx2onnx.VerificationError, match=r"E501.*logits by which they are chosen are not"):
        wrong.raise_if_failed()
    arguments = ("--prompt-ids", "5,6,7", "--max-new-tokens", 3, "--verify", "--source", f"hf:{tmp_path / 'other'}")
    done = invoke("generate", tmp_path / "out", *arguments, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["verified"] is False


@pytest.mark.long
@pytest.mark.parametrize("rule", [{"guidance_scale": 1.01}, {"guidance_scale": 4.0}])
def test_a_rule_that_is_not_followed_is_named_where_it_changes_scores(
    rule: dict[str, Any], checkpoint: Path, tmp_path: Path
) -> None:
    """Without the rule, the folder is right."""
    shutil.copytree(checkpoint, tmp_path / "in")
    stated = tmp_path / "in" / "generation_config.json"
    stated.write_text(json.dumps({**json.loads(stated.read_text()), **rule}))
    fx2onnx.export_folder(f"hf:{tmp_path / 'in'}", tmp_path / "out")
    ids = np.array([[5, 6, 7]])
    with pytest.warns(fx2onnx.ExportWarning, match=f"does not follow {next(iter(rule))}"):
        wrong = fx2onnx.verify_generation(tmp_path / "out", f"hf:{tmp_path / 'in'}", max_new_tokens=3, input_ids=ids)
    with pytest.raises(fx2onnx.VerificationError, match="E501") as caught:
        wrong.raise_if_failed()
    assert f"set {next(iter(rule))} to null in generation_config.json" in caught.value.next[0]
    with pytest.warns(fx2onnx.ExportWarning):
        right = fx2onnx.verify_generation(tmp_path / "out", f"hf:{checkpoint}", max_new_tokens=3, input_ids=ids)
    assert right.ok


@pytest.mark.long
def test_the_folder_has_what_a_runtime_needs(exported: Path) -> None:
    names = {path.name for path in exported.iterdir()}
    assert names == {"model.onnx", "config.json", "generation_config.json", "tokenizer.json", "fx2onnx.json"}
    assert not [path for path in exported.parent.iterdir() if path.name.startswith(".fx2onnx")]


@pytest.mark.long
@pytest.mark.parametrize("engine", ["runner", "onnxruntime"])
def test_generate_agrees_with_transformers(checkpoint: Path, exported: Path, engine: str) -> None:
    arguments = ("--prompt-ids", "5,6,7,8", "--prompt-ids", "9", "--max-new-tokens", 6, "--engine", engine)
    done = invoke("generate", exported, *arguments, "--verify", "--source", f"hf:{checkpoint}", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["verified"] is True
    assert [len(row) for row in told["tokens"]] == [6, 6]


@pytest.mark.long
@pytest.mark.parametrize(("cache", "release", "opset"), [("dynamic", 16, 19), ("static", 20, 21), ("static", 25, 24)])
def test_a_folder_for_an_older_runtime(checkpoint: Path, tmp_path: Path, cache: str, release: int, opset: int) -> None:
    import onnx

    arguments = ("--task", "text-generation-with-past", "--cache", cache, "--target", f"onnxruntime-1.{release}")
    report = tmp_path / "report.json"
    done = invoke("export", f"hf:{checkpoint}", *arguments, "-o", tmp_path / "out", "--report", report, "--no-verify")
    assert done.exit_code == 0, done.output
    model = onnx.load(tmp_path / "out" / "model.onnx")
    assert {each.version for each in model.opset_import if not each.domain} == {opset}
    assert json.loads(report.read_text())["files"]


@pytest.mark.long
def test_a_folder_that_is_a_model_package(tmp_path: Path) -> None:
    """onnxruntime 1.32 opens it; each graph is a component that finds its weights."""
    import onnxruntime

    sizes = "d_model=32&d_kv=8&d_ff=64&num_layers=1&num_heads=4&vocab_size=60"
    task = ("--task", "text2text-generation-with-past")
    done = invoke("export-folder", f"hf:t5?{sizes}", *task, "--package", "-o", tmp_path / "out", "--no-verify")
    assert done.exit_code == 0, done.output
    components = json.loads((tmp_path / "out" / "manifest.json").read_text())["components"]
    files = [
        variant["executor_info"]["ort"]["model_file"]
        for each in components.values()
        for variant in each["variants"].values()
    ]
    assert sorted(files) == sorted(path.name for path in (tmp_path / "out").glob("*.onnx"))
    if not hasattr(onnxruntime, "ModelPackageContext"):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no model packages")
    package = onnxruntime.ModelPackageContext(str(tmp_path / "out"))
    options = onnxruntime.ModelPackageOptions(onnxruntime.SessionOptions())
    assert sorted(package.get_component_names()) == ["decoder_model", "encoder_model"]
    for name in components:
        assert package.select_component(name, options).create_session(None).get_inputs()


@pytest.mark.long
@pytest.mark.parametrize(("asked", "name"), [((), "model"), (("--quantize", "int4"), "model_q4"), (("--dtype", "float16"), "model_fp16")])  # fmt: skip
def test_a_folder_for_transformers_js(checkpoint: Path, tmp_path: Path, asked: tuple[str, ...], name: str) -> None:
    """One file holds the weights; the folder gives the tokens of the plain one."""
    found = []
    for layout in ("transformers.js", "plain"):
        folder = tmp_path / layout
        done = invoke("export-folder", f"hf:{checkpoint}", *asked, "--layout", layout, "-o", folder, "--no-verify")
        assert done.exit_code == 0, done.output
        told = invoke("generate", folder, "--prompt-ids", "5,6,7,8", "--max-new-tokens", 6, "--json")
        assert told.exit_code == 0, told.output
        found.append(json.loads(told.stdout)["tokens"])
    assert found[0] == found[1]
    folder = tmp_path / "transformers.js"
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*.onnx*")] == [f"onnx/{name}.onnx"]
    assert not list(folder.rglob("*.data"))
    dtype = json.loads((folder / "config.json").read_text())["transformers.js_config"]["dtype"]
    assert f"model_{dtype}".removesuffix("_fp32") == name


@pytest.mark.long
@pytest.mark.parametrize("asked", [(), ("--fused",), ("--dtype", "float16", "--logits", "last")])
def test_a_folder_with_inference_metadata(checkpoint: Path, tmp_path: Path, asked: tuple[str, ...]) -> None:
    """The workflow names every input and output of the graph, and no value before it is there; onnx-genai gives the folder's tokens."""
    import onnx
    from tokenizers import Tokenizer, models, pre_tokenizers

    source, folder = shutil.copytree(checkpoint, tmp_path / "source"), tmp_path / "out"
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(60)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(source / "tokenizer.json"))
    done = invoke("export-folder", f"hf:{source}", *asked, "--layout", "onnx-genai", "-o", folder, "--no-verify")
    assert done.exit_code == 0, done.output
    metadata = json.loads((folder / "inference_metadata.json").read_text())
    assert metadata["package"]["tokenizer"]["special_tokens"]["eos_token_id"] == [2]
    flow, graph = metadata["pipeline"]["workflow"], onnx.load(folder / "model.onnx").graph
    ports, (loop,) = flow["components"]["model"]["ports"], flow["steps"]
    for side, values in (("inputs", graph.input), ("outputs", graph.output)):
        types = {v.name: onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type).name for v in values}
        assert {name: port["dtype"] for name, port in ports[side].items()} == types
        assert set(loop["steps"][0][side]) == set(types)
    there = {*flow["inputs"], *flow["state"]}
    for step in loop["steps"]:
        assert {*step.get("inputs", {}).values(), step.get("value", "one")} <= there
        there |= {*step.get("outputs", {}).values()}
    assert {each["next"] for each in loop["carried"]} <= there
    onnx_genai = pytest.importorskip("onnx_genai")
    for prompt in ([5, 6, 7], list(range(10, 50))):
        ids = ",".join(map(str, prompt))
        told = invoke("generate", folder, "--prompt-ids", ids, "--max-new-tokens", 6, "--json")
        engine = onnx_genai.Engine.from_dir(str(folder))
        found = engine.generate(" ".join(f"w{token}" for token in prompt), max_tokens=6, temperature=0.0)
        assert list(found.token_ids) == json.loads(told.stdout)["tokens"][0]


@pytest.mark.long
def test_other_weights_are_told_apart(exported: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoConfig, LlamaForCausalLM

    torch.manual_seed(1)
    LlamaForCausalLM(AutoConfig.from_pretrained(exported)).save_pretrained(tmp_path / "other")
    done = invoke("generate", exported, "--prompt-ids", "5,6,7", "--verify", "--source", f"hf:{tmp_path / 'other'}")
    assert done.exit_code == 1
    assert "[E501] token" in done.stderr
    assert "export the folder again" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "rounded", [("--quantize", "int4"), ("--quantize", "int8", "--format", "qdq"), ("--kv", "int8")]
)
def test_a_folder_that_rounds_is_measured_against_its_source(
    checkpoint: Path, tmp_path: Path, rounded: tuple[str, ...]
) -> None:
    source, folder = f"hf:{checkpoint}", tmp_path / "low"
    made = invoke("export-folder", source, "--task", "text-generation-with-past", "-o", folder, "--no-verify", *rounded)
    assert ("layers that change most" in made.output) == ("--quantize" in rounded)
    asked = (
        "generate",
        folder,
        "--prompt-ids",
        "5,6,7,8",
        "--prompt-ids",
        "9",
        "--verify",
        "--source",
        source,
        "--json",
    )
    done = invoke(*asked, "--max-new-tokens", 6)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["verified"] is (True if "--quantize" in rounded else None)
    assert told["agreement"]["count"] == 12
    assert 0 < told["agreement"]["share"] <= 1
    assert "generate FOLDER --prompt TEXT --verify" in invoke("verify", folder, source).stderr
    assert "generate FOLDER --prompt TEXT --verify" in invoke("verify", folder / "model.onnx", source).stderr


@pytest.mark.long
@pytest.mark.parametrize("rounded", [("--kv", "int8"), ("--dtype", "float16")])
def test_a_folder_that_rounds_other_weights_is_told_apart(
    checkpoint: Path, tmp_path: Path, rounded: tuple[str, ...]
) -> None:
    import torch
    from transformers import AutoConfig, LlamaForCausalLM

    torch.manual_seed(1)
    LlamaForCausalLM(AutoConfig.from_pretrained(checkpoint)).save_pretrained(tmp_path / "other")
    invoke("export-folder", f"hf:{checkpoint}", "-o", tmp_path / "low", "--no-verify", *rounded)
    asked = ("generate", tmp_path / "low", "--prompt-ids", "5,6,7,8", "--verify", "--source")
    right, wrong = (invoke(*asked, f"hf:{source}") for source in (checkpoint, tmp_path / "other"))
    assert right.exit_code == 0, right.output
    assert wrong.exit_code == 1
    assert "[E501] a token differs from model.generate by more than rounding explains" in wrong.stderr


@pytest.mark.long
@pytest.mark.parametrize("rule", [{"min_new_tokens": 2}, {"forced_eos_token_id": 2}, {"begin_suppress_tokens": [7]}])
def test_rules_of_the_first_tokens_leave_no_agreement(checkpoint: Path, tmp_path: Path, rule: dict[str, Any]) -> None:
    """Tokens one by one are each the first, after which no row may end: an end of the source counted as another token."""
    shutil.copytree(checkpoint, tmp_path / "in")
    (tmp_path / "in" / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(2, 50)), **rule}))
    fx2onnx.export_folder(f"hf:{tmp_path / 'in'}", tmp_path / "out", verify=False, kv="int8")
    ids = np.array([[5, 6, 7], [9, 3, 4]])
    verdict = fx2onnx.verify_generation(tmp_path / "out", f"hf:{tmp_path / 'in'}", input_ids=ids)
    assert verdict.ok
    assert verdict.agreement is None


@pytest.mark.long
def test_an_encoder_decoder_that_rounds_shared_tables_is_checked(tmp_path: Path) -> None:
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 60}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))
    for weight in model.parameters():
        weight.data *= 2 if weight.dim() > 1 else 1
    model.save_pretrained(tmp_path / "in")
    task = ("--task", "text2text-generation-with-past", "--no-verify", "--quantize", "int4", "--embeddings")
    invoke("export-folder", f"hf:{tmp_path / 'in'}", "-o", tmp_path / "out", *task)
    asked = ("generate", tmp_path / "out", "--prompt-ids", "5,6,7,1", "--verify", "--source", f"hf:{tmp_path / 'in'}")
    told = json.loads(invoke(*asked, "--json", "--max-new-tokens", 6).stdout)
    assert told["verified"] is True
    assert told["agreement"]["count"] > 0


@pytest.mark.long_cases("arguments2-E601")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("export-folder", "hf:{tiny}", "--task", "text2text-generation-with-past", "-o", "{out}"), "E601"),
        (("export-folder", "hf:{tiny}/missing", "--task", "text-generation-with-past", "-o", "{out}"), "E601"),
        (
            ("export-folder", "hf:bert?num_hidden_layers=1", "--task", "text-generation-with-past", "-o", "{out}"),
            "E601",
        ),
        (("export-folder", "torchvision:resnet18", "--task", "text-generation", "-o", "{out}"), "E001"),
        (("export-folder", "hf:{tiny}", "--task", "text-generaton", "-o", "{out}"), "E601"),
        (("export-folder", "hf:{tiny}", "--task", "text-generation-with-past", "-o", "{out}/a/b"), "E301"),
        (("export-folder", "{tiny}", "-o", "{out}"), "E001"),
        (("export-folder", "hf:{tiny}", "-o", "{out}", "--cache", "paged", "--kv", "int8"), "E001"),
        (("export-folder", "hf:{tiny}", "-o", "{out}", "--cache", "static", "--target", "onnxruntime-genai"), "E001"),
        (("export-folder", "hf:{tiny}", "-o", "{out}", "--layout", "transformers.js", "--package"), "E001"),
        (("export-folder", "hf:{tiny}", "-o", "{out}", "--layout", "onnx-genai", "--task", "text-generation"), "E601"),
        (("export-folder", "hf:{tiny}", "-o", "{out}", "--adapters", "one"), "E001"),
        (("generate", "{onnx}", "--prompt-ids", "1", "--adapter", "one"), "E401"),
        (("export-folder", "hf:{tiny}", "--task", "text-generation", "-o", "{out}", "--dynamic", "none"), "E001"),
        (("export-folder", "hf:{tiny}", "--task", "text-generation", "-o", "{out}", "--capture", "fake"), "E001"),
        (("export-folder", "hf:{tiny}", "--task", "text-generation", "-o", "{out}", "--target", "tensorflow"), "E001"),
        (
            ("export-folder", "hf:{tiny}", "--task", "text-generation", "-o", "{out}", "--report", "{out}/r.json"),
            "E301",
        ),
        (("export", "hf:{tiny}", "--cache", "static", "-o", "{out}"), "E001"),
        (("generate", "{out}", "--prompt-ids", "1"), "E302"),
        (("generate", "{tiny}", "--prompt-ids", "1"), "E302"),
        (("generate", "{onnx}", "--prompt-ids", "1,x"), "E001"),
        (("generate", "{onnx}", "--prompt-ids", "60"), "E001"),
        (("generate", "{onnx}"), "E001"),
    ],
)
def test_mistakes_are_one_error_and_leave_nothing(
    arguments: tuple[str, ...], code: str, checkpoint: Path, exported: Path, tmp_path: Path
) -> None:
    places = {"tiny": checkpoint, "onnx": exported, "out": tmp_path / "out"}
    done = invoke(*(argument.format(**places) for argument in arguments))
    assert done.exit_code == 2, done.output
    assert done.stderr.count("[E") == 1
    assert f"[{code}]" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_onnx_files_is_called_with_arrays_and_tensors(exported: Path) -> None:
    import torch

    import fx2onnx

    model = fx2onnx.load(exported, engine="runner")
    ids = np.array([[5, 6, 7, 8]])
    whole = model(input_ids=ids)
    first = model(input_ids=ids[:, :3])
    second = model(input_ids=ids[:, 3:], past_key_values=first.past_key_values)
    assert isinstance(whole["logits"], np.ndarray)
    np.testing.assert_allclose(second.logits[:, 0], whole.logits[:, 3], rtol=1e-4, atol=1e-5)
    tensors = model(input_ids=torch.from_numpy(ids))
    assert torch.equal(tensors[0], torch.from_numpy(whole.logits))
    with pytest.raises(fx2onnx.UserError, match="E401"):
        model(input_idz=ids)


@pytest.mark.long
def test_by_reference_the_folder_is_the_checkpoints(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "tiny")
    before = {path.name for path in (tmp_path / "tiny").iterdir()}
    asked = (
        "export-folder", f"hf:{tmp_path / 'tiny'}", "--task", "text-generation-with-past", "--weights", "reference",
    )  # fmt: skip
    elsewhere = invoke(*asked, "-o", tmp_path / "other", "--no-verify")
    assert (elsewhere.exit_code, "cannot refer to" in elsewhere.stderr) == (2, True), elsewhere.output
    assert {path.name for path in tmp_path.iterdir()} == {"tiny"}
    done = invoke(*asked, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["ok"]
    assert {path.name for path in (tmp_path / "tiny").iterdir()} == {*before, "model.onnx", "fx2onnx.json"}
    assert (tmp_path / "tiny" / "model.onnx").stat().st_size < (tmp_path / "tiny" / "model.safetensors").stat().st_size
    ran = invoke("generate", tmp_path / "tiny", "--prompt-ids", "5,6,7", "--max-new-tokens", 4, "--verify")
    assert ran.exit_code == 0, ran.output


@pytest.mark.long
@pytest.mark.parametrize("engine", ["runner", "onnxruntime"])
def test_without_a_cache_every_step_takes_all_tokens(
    checkpoint: Path, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fx2onnx.generation.engine import Graph

    lengths: list[int] = []
    run = Graph.run
    monkeypatch.setattr(
        Graph, "run", lambda graph, feeds: (lengths.append(feeds["input_ids"].shape[1]), run(graph, feeds))[1]
    )
    folder = tmp_path / "whole"
    done = invoke("export-folder", f"hf:{checkpoint}", "--task", "text-generation", "-o", folder, "--no-verify")
    assert done.exit_code == 0, done.output
    asked = ("generate", folder, "--prompt-ids", "5,6,7", "--max-new-tokens", 5, "--engine", engine, "--verify")
    ran = invoke(*asked, "--trust-source")
    assert ran.exit_code == 0, ran.output
    assert lengths == list(range(3, 3 + len(lengths)))
    assert len(lengths) > 1
    padded = invoke("generate", folder, "--prompt-ids", "5,6,7", "--prompt-ids", "9", "--max-new-tokens", 5)
    assert (padded.exit_code, "[E401] padded prompts" in padded.stderr) == (2, True), padded.output


@pytest.mark.long
def test_a_model_that_gives_no_next_token_is_refused(tmp_path: Path) -> None:
    source = "hf:t5?num_layers=1&d_model=16&d_kv=4&num_heads=2&d_ff=16&vocab_size=40"
    done = invoke("export-folder", source, "--task", "text2text-generation", "-o", tmp_path / "t5", "--no-verify")
    assert done.exit_code == 0, done.output
    refused = invoke("generate", tmp_path / "t5", "--prompt-ids", "5,6,7")
    assert refused.exit_code == 2
    assert "text2text-generation-with-past" in refused.stderr


PROMPT = ("--prompt-ids", "5,6,7", "--max-new-tokens", 2, "--engine", "runner")


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return shutil.copytree(exported, tmp_path / "from-a-stranger")


@pytest.mark.long
def test_a_checkpoint_beside_the_folder_is_read_where_the_user_says_so(exported: Path, checkpoint: Path) -> None:
    refused = invoke("generate", exported, *PROMPT, "--verify", "--json")
    assert refused.exit_code == 2
    error = json.loads(refused.stdout)
    assert "hf:../tiny" in error["what"]
    assert f"--source 'hf:{checkpoint}'" in error["next"][0]
    assert "--trust-source" in error["next"][1]
    for asked in (("--trust-source",), ("--source", f"hf:{checkpoint}")):
        assert invoke("generate", exported, *PROMPT, "--verify", *asked).exit_code == 0


@pytest.mark.long
def test_a_folder_of_random_weights_is_verified_by_type_and_seed(tmp_path: Path) -> None:
    source = "hf:gpt2?n_layer=1&n_embd=16&n_head=2&vocab_size=40&bos_token_id=1&eos_token_id=1"
    task = ("--task", "text-generation-with-past")
    done = invoke("export", source, *task, "-o", tmp_path / "out", "--no-verify", "--seed", 3)
    assert done.exit_code == 0, done.output
    ran = invoke("generate", tmp_path / "out", *PROMPT, "--verify")
    assert ran.exit_code == 0, ran.output
    (tmp_path / "out" / "gpt2").mkdir()  # now the file names that folder
    assert "no config.json" in invoke("generate", tmp_path / "out", *PROMPT, "--verify").stderr


def name_source(folder: Path, source: str) -> None:
    stated = json.loads((folder / "fx2onnx.json").read_text())
    (folder / "fx2onnx.json").write_text(json.dumps(stated | {"source": source}))


@pytest.mark.parametrize(
    "source",
    [
        "os:system?command=touch%20ran",
        "strange:make",
        "hf:..",
        "hf:/etc",
        "hf:~",
        "hf:link",
        "hf:here",
        "hf:gpt2?_attn_implementation=owner/kernel",
        "timm:hf-hub:owner/model",
        "torchvision:resnet18?weights=DEFAULT",
        "zoo:gpt2_tiny",
        "hf:",
        "hf",
    ],
)
def test_what_a_folder_names_is_not_followed(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "link").symlink_to(folder.parent)
    (folder.parent / "here").mkdir()
    (folder.parent / "strange.py").write_text("raise SystemExit('ran')\n")
    name_source(folder, source)
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr("fx2onnx.decoding.reference_generate.resolve", lambda *_, **__: pytest.fail("it was followed"))
    done = invoke("generate", folder, *PROMPT, "--verify")
    assert done.exit_code == 2, done.output
    assert "[E302]" in done.stderr
    assert source in done.stderr
    assert "--trust-source" in done.stderr
    assert not (folder.parent / "ran").exists()


def test_without_verify_no_source_is_needed(folder: Path) -> None:
    name_source(folder, "os:system")
    assert invoke("generate", folder, *PROMPT).exit_code == 0


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("config.json", '{"text_config": [1]}', "text_config"),
        ("config.json", '{"decoder": {"pad_token_id": "x"}}', "decoder.pad_token_id"),
        ("generation_config.json", '{"eos_token_id": {}}', "eos_token_id"),
        ("generation_config.json", '{"max_new_tokens": "many"}', "max_new_tokens"),
        ("generation_config.json", '{"repetition_penalty": -1}', "repetition_penalty"),
        ("generation_config.json", '{"suppress_tokens": 1e30}', "suppress_tokens"),
        ("generation_config.json", '{"forced_eos_token_id": 60}', "forces the token 60"),
        ("generation_config.json", "[" * 100_000, "nested"),
    ],
)
def test_malformed_configs_of_a_folder(file: str, text: str, named: str, folder: Path) -> None:
    (folder / file).write_text(text)
    done = invoke("generate", folder, *PROMPT)
    assert done.exit_code == 2, done.output
    assert "[E302]" in done.stderr
    assert file in done.stderr
    assert named in done.stderr


def test_tokens_beyond_the_vocabulary_are_suppressed_as_transformers_does(folder: Path) -> None:
    """-1 in Whisper's lists stands for no token."""
    plain = invoke("generate", folder, *PROMPT).stdout
    (folder / "generation_config.json").write_text('{"eos_token_id": 2, "suppress_tokens": [-1, 1000]}')
    assert invoke("generate", folder, *PROMPT).stdout == plain
