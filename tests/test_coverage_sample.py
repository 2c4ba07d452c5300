"""The coverage sweep on a handful of small models, and the page that it writes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from studies import coverage, coverage_report
from studies.coverage_configs import shrink
from studies.coverage_worker import examine

SAMPLE = ["bert", "gpt2", "t5", "llama", "convnext", "whisper"]


@pytest.mark.long_cases(but=["llama"])
@pytest.mark.parametrize("name", SAMPLE)
def test_shrunk_transformers_match(name: str) -> None:
    row = examine("hf", name)
    assert row["passed"] == "match", row["error"]
    assert row["form"] == "small"
    assert row["strategy"] == "fake"
    assert row["parameters"] < 20_000_000


@pytest.mark.long
@pytest.mark.parametrize(("source", "name"), [("torchvision", "mobilenet_v3_small"), ("timm", "efficientvit_m0")])
def test_image_models_match(source: str, name: str) -> None:
    row = examine(source, name)
    assert row["passed"] == "match", row["error"]


@pytest.mark.long
def test_dynamic_sizes() -> None:
    row = examine("hf", "bert", dynamic=True)
    assert row["passed"] == "match", row["error"]


def test_a_model_that_cannot_be_built_is_a_row() -> None:
    row = examine("hf", "no-such-type")
    assert row["passed"] == ""
    assert row["error"]["stage"] == "build"


def test_shrink_keeps_what_hangs_together() -> None:
    config = {
        "num_hidden_layers": 12,
        "layer_types": ["full"] * 11 + ["sliding"],
        "vocab_size": 32000,
        "image_token_id": 31999,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "image_size": 224,
        "patch_size": 16,
        "id2label": {0: "LABEL_0"},
        "vision_config": {"depths": [2, 2, 9, 2], "hidden_size": 768},
    }
    found = shrink(config, ("depth", "vocabulary", "width", "image"))
    assert found["num_hidden_layers"] == 2
    assert found["layer_types"] == ["full", "sliding"]
    assert found["vocab_size"] == 1024
    assert found["image_token_id"] < 10
    assert found["num_key_value_heads"] == found["num_attention_heads"] == 4
    assert found["image_size"] == 64
    assert found["vision_config"] == {"depths": [2, 2, 2, 2], "hidden_size": 64}


def test_shrink_fits_what_is_computed_from_other_fields() -> None:
    config = {
        "num_hidden_layers": 6, "num_kv_shared_layers": 3, "hybrid_override_pattern": "M-M*M-", "activation": "gelu_6",
        "hidden_size": 4096, "expand": 2, "num_heads": 128, "head_dim": 64,
    }  # fmt: skip
    found = shrink(config, ("depth", "width"))
    assert found["num_kv_shared_layers"] == 0
    assert (found["hybrid_override_pattern"], found["activation"]) == ("M-", "gelu_6")
    assert found["num_heads"] * found["head_dim"] == found["expand"] * found["hidden_size"] == 128


def test_shrink_fills_in_what_the_class_leaves_open() -> None:
    config = {
        "num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": None,
        "head_dim": None, "layer_types": None, "sliding_window": None,
    }  # fmt: skip
    found = shrink(config, ("depth", "width"))
    assert found["num_key_value_heads"] == found["num_attention_heads"] == 4
    assert found["head_dim"] * found["num_attention_heads"] == found["hidden_size"] == 64
    assert found["layer_types"] == ["full_attention"] * 2
    assert found["sliding_window"] is None
    assert shrink({**config, "layer_types": ["sliding_attention"]}, ())["sliding_window"] == 8


def test_a_narrow_config_keeps_its_layers() -> None:
    config = {"num_hidden_layers": 6, "hidden_size": 512, "layer_types": ["full"] * 6, "depths": [2, 9]}
    assert shrink(config, ("width",)) == {**config, "hidden_size": 64}


def _row(name: str, passed: str, **fields: Any) -> dict[str, Any]:
    measured = {"strategy": "fake", "capture_s": 0.1, "export_s": 0.2, "nodes": 5}
    return {"source": "hf", "name": name, "dynamic": False, "passed": passed, **measured, **fields}


def _error(stage: str, code: str, what: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"stage": stage, "code": code, "what": what, "where": "a.py:1, in f", "why": "", **fields}}


def test_the_page_groups_failures() -> None:
    rows = [
        _row("good", "match"),
        _row("one", "capture", **_error("export", "E201", "cannot", missing=["aten.a.default", "aten.b.default"])),
        _row("two", "capture", **_error("export", "E201", "cannot", missing=["aten.b.default"])),
        _row("three", "eager", **_error("capture", "E104", "size 3 | data")),
        _row("four", "eager", **_error("capture", "E104", "size 4 | data")),
        _row("five", "", **_error("build", "TypeError", "no")),
    ]
    page = coverage_report.text(rows, {"hf": 9, "timm": 4}, "versions")
    assert "| transformers, every model type, shrunk config | 9 | 6 | 5 | 3 | 1 | 1 | 20.0 % |" in page
    assert "| timm, one architecture a family | 4 | 0 | 0 | 0 | 0 | 0 | not run |" in page
    assert page.index("| `aten.b.default` | 2 | one, two |") < page.index("| `aten.a.default` | 1 | one |")
    assert "| capture | E104 size N \\| data | a.py:1, in f | 2 | three, four |" in page
    assert "| build | TypeError no | a.py:1, in f | 1 | five |" in page


def test_a_stopped_worker_does_not_hide_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    stopped = _row("one", "", **_error("build", "process", "no answer"))
    rows = [_row("one", "export", **_error("match", "E501", "numbers differ")), stopped]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert coverage.read_rows(path)["one"]["passed"] == "export"
    page = coverage_report.text([stopped], {"hf": 1}, "versions")
    assert "Stopped by the limit" in page
    assert "No case" not in page


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def examine_all(tasks: list[tuple[str, str]], dynamic: bool, limit_s: float, jobs: int) -> Any:
        for source, name in tasks:
            asked.append(name)
            yield {"source": source, "name": name, "dynamic": dynamic, "passed": "match", "total_s": 0.0}

    monkeypatch.setattr(coverage, "examine_all", examine_all)
    monkeypatch.setattr(coverage, "all_names", lambda source, full: ["a", "b", "c", "d"])
    path = coverage.rows_path(tmp_path, "hf", False)
    path.write_text(json.dumps({"name": "a", "passed": "match"}) + "\n" + '{"name": "b", "pas', encoding="utf-8")
    options = argparse.Namespace(
        folder=tmp_path, dynamic=False, full=False, models=None, again="no", limit=2, timeout=None, jobs=1
    )
    coverage.sweep("hf", options)
    coverage.sweep("hf", options)
    assert asked == ["b", "c", "d"]


def test_shrink_keeps_what_one_kind_of_layer_has_of_its_own() -> None:
    config = {
        "num_hidden_layers": 4,
        "layer_types": ["full", "full", "sliding", "full"],
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "head_dim": 128,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "per_layer_config": {"02": {"num_attention_heads": 8, "qk_nope_head_dim": 96}},
    }
    found = shrink(config, ("depth", "width"))
    assert found["layer_types"] == ["full", "sliding"]
    assert found["head_dim"] == 16
    assert found["per_layer_config"] == {"1": {"head_dim": 32}}, "heads as wide as their two parts, in that layer alone"


def test_layers_that_share_weights_come_twice() -> None:
    config = {"num_hidden_layers": 6, "layers_block_type": ["linear", "linear", "hybrid"] * 2}
    found = shrink(config, ("depth", "twice"))
    assert found["num_hidden_layers"] == 4
    assert found["layers_block_type"] == ["linear", "hybrid"] * 2
