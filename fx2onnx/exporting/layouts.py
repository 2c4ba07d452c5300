"""Layouts of exported folders for other runtimes: ``genai_config.json`` of onnxruntime-genai, model packages, transformers.js.

Sources: what onnxruntime 1.32's own ``ModelPackage`` writes and accepts, schema version 1.0; transformers.js 4.3, ``models/session.js``,
``models/session_config.js``, ``utils/dtypes.js`` and ``configs.js``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import VERSION
from fx2onnx.files.folder_files import read_object
from fx2onnx.manifest.form import Manifest
from fx2onnx.manifest.names import IDS, LOGITS, MASK, MODEL_FILE, PAST, POSITIONS, PRESENT
from fx2onnx.sources.hf.config import CONFIG

if TYPE_CHECKING:
    from fx2onnx.exporting.options import ExportOptions
    from fx2onnx.exporting.result import ExportResult


CONFIG_FILE = "genai_config.json"
TASK = "text-generation-with-past"
TYPES = frozenset([
    "chatglm", "ernie4_5", "gemma", "gemma2", "gemma3_text", "gptoss", "granite", "internlm2", "llama", "mistral",
    "nemotron", "olmo", "phi", "phi3", "phi3small", "phimoe", "qwen2", "qwen3", "smollm3",
])  # fmt: skip
"""Types of models that onnxruntime-genai 0.18 knows by name; any other decoder is ``decoder``."""
_MARKS = ("bot_token_id", "eot_token_id", "bor_token_id", "eor_token_id")
"""Begin and end of a call of tools and of reasoning, which the engine reads where a config has them."""
_OWN_TYPES = {"gpt_oss": "gptoss"}


def check_task(task: str) -> None:
    """Raise UserError E001 where the task makes no decoder with a cache."""
    if task != TASK:
        raise UserError(
            "E001", f"--task {task} makes no folder for onnxruntime-genai", next=f"--task {TASK}, or another target"
        )


def write_config(model: Any, results: Mapping[str, ExportResult], stage: Path) -> None:
    """Raises: UserError E601 where the folder is none that onnxruntime-genai can run."""
    if set(results) != {MODEL_FILE}:
        raise UserError(
            "E601",
            f"{type(model).__name__} is no decoder alone",
            why=f"its folder has {', '.join(sorted(results))}",
            next="leave out --target onnxruntime-genai: fx2onnx.load and fx2onnx generate run it",
        )
    text = json.dumps(config_of(model, results[MODEL_FILE]), indent=4)
    (stage / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")


def config_of(model: Any, result: ExportResult) -> dict[str, Any]:
    """The facts, from the graph where it has them."""
    graph = result.owned.model.graph
    inputs = {value.name or "": value for value in graph.inputs}
    states = sorted({name.removeprefix(PAST) for name in inputs if name.startswith(PAST)})
    other = sorted(state for state in states if not state.endswith((".key", ".value")))
    if other or not states:
        raise UserError(
            "E601",
            f"the cache of {type(model).__name__} is none that onnxruntime-genai has",
            why=f"it holds {', '.join(other[:3]) or 'nothing'}, not keys and values of tokens alone",
            next="leave out --target onnxruntime-genai: fx2onnx.load and fx2onnx generate run it",
        )
    text = model.config.get_text_config(decoder=True)
    generation = getattr(model, "generation_config", None)
    length = int(getattr(text, "max_position_embeddings", 0) or 2048)
    key = inputs[f"{PAST}{states[0]}"].shape
    assert key is not None
    heads, width = int(key[1]), int(key[3])  # type: ignore[arg-type]
    tokens = special_tokens(model, text)
    if "pad_token_id" not in tokens:
        end = tokens["eos_token_id"]
        tokens["pad_token_id"] = end[0] if isinstance(end, list) else end
    marks = {name: getattr(model.config, name, None) for name in _MARKS}
    tokens |= {name: int(value) for name, value in marks.items() if value is not None}
    kind = str(getattr(text, "model_type", ""))
    kind = _OWN_TYPES.get(kind, kind)
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": MODEL_FILE,
        "head_size": width,
        "hidden_size": int(text.hidden_size),
        "inputs": {name: name for name in (IDS, MASK, POSITIONS) if name in inputs}
        | {"past_key_names": f"{PAST}%d.key", "past_value_names": f"{PAST}%d.value"},
        "outputs": {
            LOGITS: LOGITS,
            "present_key_names": f"{PRESENT}%d.key",
            "present_value_names": f"{PRESENT}%d.value",
        },
        "num_attention_heads": int(getattr(text, "num_attention_heads", heads)),
        "num_hidden_layers": len(states) // 2,
        "num_key_value_heads": heads,
    }
    return {
        "model": {
            **tokens,
            "context_length": length,
            "decoder": decoder,
            "type": kind if kind in TYPES else "decoder",
            "vocab_size": int(text.vocab_size),
        },
        "search": _search(generation, length, shares=any(node.op_type == "GroupQueryAttention" for node in graph)),
    }


def special_tokens(model: Any, config: Any) -> dict[str, Any]:
    """The special tokens by name. Raises: UserError E601 where none ends a text."""
    holders = (getattr(model, "generation_config", None), config)
    found: dict[str, Any] = {}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = next(
            (getattr(holder, name, None) for holder in holders if getattr(holder, name, None) is not None), None
        )
        if value is not None:
            found[name] = list(value) if isinstance(value, list | tuple) else int(value)
    if "eos_token_id" not in found:
        raise UserError(
            "E601",
            f"{type(model).__name__} has no eos_token_id",
            why="the engine of this folder needs one",
            next="set eos_token_id in config.json or generation_config.json",
        )
    return found


def _search(generation: Any, length: int, *, shares: bool) -> dict[str, Any]:
    """The settings of ``generate`` by the model's generation config; ``shares``: past and present in one buffer."""

    def asked(name: str, usual: Any) -> Any:
        value = getattr(generation, name, None)
        return usual if value is None else value

    return {
        "diversity_penalty": 0.0,
        "do_sample": bool(asked("do_sample", False)),
        "early_stopping": True,
        "length_penalty": float(asked("length_penalty", 1.0)),
        "max_length": length,
        "min_length": 0,
        "no_repeat_ngram_size": int(asked("no_repeat_ngram_size", 0)),
        "num_beams": int(asked("num_beams", 1)),
        "num_return_sequences": 1,
        "past_present_share_buffer": shares,
        "repetition_penalty": float(asked("repetition_penalty", 1.0)),
        "temperature": float(asked("temperature", 1.0)),
        "top_k": int(asked("top_k", 50)),
        "top_p": float(asked("top_p", 1.0)),
    }


PACKAGE_FILE = "manifest.json"


def write_package(files: Iterable[str], name: str, stage: Path) -> None:
    """A component for each graph, by the name of its file, with one variant for processors."""
    components = {
        file.removesuffix(".onnx"): {
            "variants": {
                "cpu": {
                    "variant_directory": ".",
                    "ep": "CPUExecutionProvider",
                    "executor_info": {"ort": {"model_file": file}},
                }
            }
        }
        for file in files
    }
    package = {
        "schema_version": "1.0",
        "layout": "portable",
        "package_name": name,
        "description": f"written by fx2onnx {VERSION}",
        "components": components,
    }
    (stage / PACKAGE_FILE).write_text(json.dumps(package, indent=2) + "\n", encoding="utf-8")


TRANSFORMERS_JS = "transformers.js"
JS_FOLDER = "onnx"
_KINDS = {"int8": "int8", "int4": "q4", "uint4": "q4", "nf4": "bnb4", "int2": "q2", "ternary": "q2"}
"""The dtypes of transformers.js by kinds of ``Quantize``."""
_SIXTEEN = {"": "fp16", "q4": "q4f16", "q2": "q2f16"}


def js_dtype_of(options: ExportOptions) -> str:
    """The ``dtype`` under which transformers.js opens the graph. Raises: UserError E601 for one that it has no name for."""
    kind = "" if options.quantize is None else _KINDS.get(options.quantize.kind, options.quantize.kind)
    bits = "" if options.precision is None else options.precision.dtype
    known = not kind or kind in _KINDS.values()
    if not bits and known:
        return kind or "fp32"
    if bits != "float16" or kind not in _SIXTEEN:
        what = " and ".join(filter(None, [kind, bits]))
        raise UserError(
            "E601",
            f"{TRANSFORMERS_JS} has no name for graphs of {what}",
            next="int8, int4, nf4 or float16, or float16 with int4",
        )
    return _SIXTEEN[kind]


def js_file_of(dtype: str) -> str:
    return f"{JS_FOLDER}/model{'' if dtype == 'fp32' else f'_{dtype}'}.onnx"


def check_layout(layout: str, results: Mapping[str, ExportResult]) -> None:
    """Raises: UserError E601 for graphs or states that the engines of the layout have none of."""
    inputs = results[MODEL_FILE].owned.model.graph.inputs if MODEL_FILE in results else ()
    states = [(value.name or "").removeprefix(PAST) for value in inputs if (value.name or "").startswith(PAST)]
    other = [state for state in states if not state.endswith((".key", ".value"))]
    has_cache = layout == TRANSFORMERS_JS or bool(states)
    if set(results) == {MODEL_FILE} and not other and has_cache:
        return
    found = f"this cache holds {', '.join(other[:3])}" if other else f"this one has {', '.join(sorted(results))}"
    found = found if has_cache or other else "this one keeps nothing between calls"
    raise UserError(
        "E601",
        f"the model has no layout of {layout}",
        why=f"{found}: only one graph with keys and values alone has it",
        next=f"leave out --layout {layout}",
    )


def laid_out_for_js(stage: Path, dtype: str, manifest: Manifest) -> Manifest:
    """Give the graph, which holds its weights, its name in ``stage`` and in the manifest; write ``transformers.js_config`` into the config."""
    (stage / JS_FOLDER).mkdir()
    (stage / MODEL_FILE).rename(stage / js_file_of(dtype))
    config = read_object(stage / CONFIG)
    config["transformers.js_config"] = {"dtype": dtype}
    (stage / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return replace(
        manifest,
        graphs=tuple(replace(form, file=js_file_of(dtype)) for form in manifest.graphs),
        precision={js_file_of(dtype): facts for facts in manifest.precision.values()},
    )
