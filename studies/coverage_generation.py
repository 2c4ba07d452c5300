"""Coverage of generation: every generating transformers type is exported with its cache, and compared with
``model.generate``.

``python -m studies.coverage_generation [--models a,b] [--limit N] [--again no|failing|all]`` goes on where an
earlier call stopped and writes docs/measured/generation_coverage.md.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from studies.coverage import read_rows
from studies.coverage_configs import RECIPES, optional_parts, shrink
from studies.coverage_models import LARGEST_PARAMETERS
from studies.coverage_prompts import GRIDS, generates_alone, mixes_images, row_of, text_prompts, with_images
from studies.coverage_sound import with_sound
from studies.coverage_worker import Row, Worker, _described, _quiet, answer

PAGE = Path(__file__).parent.parent / "docs" / "measured" / "generation_coverage.md"
TASKS = {
    "text-generation": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "text2text-generation": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "automatic-speech-recognition": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "image-text-to-text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
}
NO_CACHE = "keeps no cache"
KEEPS_NO_CACHE = "keeps no cache between steps: forward, called with use_cache=True, returns none"
STAGES = ("build", "eager", "export", "second shape", "tokens")
NEW_TOKENS = 8
LIMIT_S = 180.0


def all_cases() -> list[tuple[str, str]]:
    """(task, model type), in an order that makes the first so many a fair sample."""
    from fx2onnx.sources.hf import kind

    auto = kind._transformers().models.auto
    cases = [
        (task, name)
        for task, mapping in TASKS.items()
        for name in getattr(auto.modeling_auto, mapping + "_NAMES")
        if name in auto.configuration_auto.CONFIG_MAPPING_NAMES
    ]
    return sorted(cases, key=lambda case: zlib.crc32(case[1].encode()))


def examine(task: str, name: str) -> Row:
    """The row of one model. Raises nothing that the model or fx2onnx raises."""
    row: Row = {"name": f"{task}/{name}", "passed": ""}
    try:
        with _quiet(), tempfile.TemporaryDirectory(prefix="fx2onnx-coverage-") as folder:
            built = _built(row, task, name)
            if built is not None:
                _exported(row, *built, Path(folder) / "out")
    except Exception as error:  # whatever a model raises is its row's result
        row["error"] = _described(error, STAGES[STAGES.index(row["passed"]) + 1 if row["passed"] else 0])
    return row


def _built(row: Row, task: str, name: str) -> tuple[Any, dict[str, Any], Any] | None:
    """The first shrunk form that transformers itself can generate with: module, inputs, tokens."""
    import torch

    from fx2onnx.decoding.reference_generate import generate_eagerly, generate_rows

    failure: Any = None
    unfit: Exception | None = None
    for recipe in RECIPES:
        stage = "build"
        try:
            model = _model(task, name, recipe)
            row["passed"], stage = "build", "eager"
            inputs = text_prompts(model)
            seen = task == "image-text-to-text" and not generates_alone(model)
            expected, by_row = (None, False) if seen else generate_rows(model, inputs, NEW_TOKENS)
        except Exception as error:  # another form of the model may still build
            failure = _described(error, stage) if failure is None or stage == "eager" else failure
            continue
        row |= {"passed": "eager", "form": recipe, "class": type(model).__name__} | ({"by_row": True} if by_row else {})
        if task != "image-text-to-text" or getattr(model.config, "is_encoder_decoder", False):
            return _heard(row, model, inputs, expected)
        try:
            torch.manual_seed(0)
            inputs = with_images(model)
            if mixes_images(model, inputs):
                row["by_row"] = True
                rows = [generate_eagerly(model, row_of(inputs, place), NEW_TOKENS) for place in range(3)]
                return model, inputs, torch.cat(rows)
            return model, inputs, generate_eagerly(model, inputs, NEW_TOKENS)
        except Exception as error:  # another form may take the image
            unfit = unfit or error
    if unfit is not None:  # a sample image that no form takes counts as ours to mend
        row["passed"] = "eager"
        raise unfit
    row["error"] = failure
    return None


def _heard(row: Row, model: Any, inputs: dict[str, Any], expected: Any) -> tuple[Any, dict[str, Any], Any]:
    """The prompts with a recording each, where ``model.generate`` takes it; else those of text alone."""
    from fx2onnx.decoding.reference_generate import generate_eagerly

    try:
        heard = with_sound(model, inputs)
        if heard is None:
            return model, inputs, expected
        tokens = generate_eagerly(model, heard, NEW_TOKENS)
    except Exception as error:  # whatever a model raises; text alone is compared
        row["unheard"] = f"{type(error).__name__}: {str(error)[:200]}"
        return model, inputs, expected
    row["heard"] = True
    return model, heard, tokens


def _model(task: str, name: str, recipe: str) -> Any:
    import torch

    from fx2onnx.decoding.cache.module_state import CACHE_ARGUMENTS
    from fx2onnx.decoding.recipes.delay_pattern import delays_of
    from fx2onnx.decoding.recipes.recipe import language_of
    from fx2onnx.sources.hf import kind
    from fx2onnx.sources.seeding import move_constants, seeded

    transformers = kind._transformers()
    auto = transformers.models.auto
    config_class = auto.configuration_auto.CONFIG_MAPPING[name]
    config = config_class(**optional_parts(config_class, ("vision_config",) if task == "image-text-to-text" else ()))
    if RECIPES[recipe]:
        config = config_class(**shrink(config.to_dict(), RECIPES[recipe]))
    if hasattr(config, "is_decoder") and task == "text-generation":
        config.is_decoder = True
    found = getattr(auto.modeling_auto, TASKS[task])[type(config)]
    model_class = found[0] if isinstance(found, (tuple, list)) else found
    known = inspect.signature(model_class.forward).parameters
    if "shared_kv_states" in known and not known.keys() & {*CACHE_ARGUMENTS}:
        raise TypeError("assists another model: forward takes its shared_kv_states and keeps no cache")
    config = kind.config_for(model_class, config)
    with torch.device("meta"):
        parameters = sum(value.numel() for value in model_class(config).parameters())
    if parameters > LARGEST_PARAMETERS:
        raise MemoryError(f"{parameters / 1e6:.0f} million parameters even when shrunk")
    with seeded(0):
        model = model_class(config).eval()
        move_constants(model)
    if not isinstance(language_of(model), transformers.GenerationMixin):
        raise TypeError(
            f"{model_class.__name__} does not generate token by token: it has no generate of transformers' own"
        )
    for gate in (value for value in model.parameters() if value.numel() == 1 and not value.any()):
        gate.data.fill_(0.5)  # closed in a new model, so that no image would be seen
    said = language_of(model).generation_config
    for word in (
        "eos_token_id",
        "forced_eos_token_id",
        "forced_bos_token_id",
        "suppress_tokens",
        "begin_suppress_tokens",
    ):
        setattr(said, word, None)
    if delays_of(model) and not model.config.is_encoder_decoder:  # whose padding is a token that is never generated
        said.decoder_start_token_id = said.pad_token_id
    else:
        said.pad_token_id = 0
    if said.decoder_start_token_id is None and said.bos_token_id is None:
        said.decoder_start_token_id = 3
    return model


def _exported(row: Row, model: Any, inputs: dict[str, Any], expected: Any, folder: Path) -> None:
    import torch

    from fx2onnx import verify
    from fx2onnx.decoding.parts import Assembly, cached_parts
    from fx2onnx.decoding.reference_generate import generate_eagerly
    from fx2onnx.exporting.folder import export_assembly
    from fx2onnx.generation import load
    from fx2onnx.manifest.names import IMAGE_FILE
    from fx2onnx.sources.source import Source

    start = time.perf_counter()
    parts = cached_parts(Source("model", model), images=row["name"].startswith("image-text"))
    assembly = Assembly(model, parts, None, "")
    done = export_assembly(assembly, folder)
    row |= {"passed": "export", "export_s": round(time.perf_counter() - start, 2), "notes": done.notes}
    encoder = done.sources.get(IMAGE_FILE)
    if encoder is not None and any(name in encoder.bake for name in GRIDS):
        row["one_size"] = True
        inputs = with_images(model, of_sizes=False)
        expected = generate_eagerly(model, inputs, NEW_TOKENS)
    row["nodes"] = sum(report.nodes_onnx for report in done.reports.values())
    bad = []
    for name, source in done.sources.items():
        verdict = verify(
            str(folder / name), source.module, source.args, source.kwargs, engines=("onnxruntime",), seeds=()
        )
        bad += [f"{name}: {line.output}: {line.problem or line.max_abs_error}" for line in verdict.rows if not line.ok]
    row["shapes"] = "; ".join(bad[:3])
    if not bad:
        row["passed"] = "second shape"
    for engine in ("onnxruntime", "runner"):
        loaded = load(folder, engine)
        known = {"input_ids", "attention_mask", *(name for graph in loaded.graphs.values() for name in graph.inputs)}
        own = {name: value for name, value in inputs.items() if name in known}
        tokens = loaded.generate(**own, max_new_tokens=NEW_TOKENS)
        row[engine] = "equal" if torch.equal(tokens, expected) else f"{tokens.tolist()} not {expected.tolist()}"
    wrong = [engine for engine in ("onnxruntime", "runner") if row[engine] != "equal"]
    if wrong:
        row["error"] = {
            "stage": "tokens",
            "code": "E501",
            "what": f"tokens differ in {', '.join(wrong)}",
            "where": "",
            "why": row[wrong[0]][:200],
        }
    elif bad:
        row["error"] = {
            "stage": "second shape",
            "code": "E501",
            "what": "numbers differ",
            "where": "",
            "why": row["shapes"],
        }
    else:
        row["passed"] = "tokens"


def _serve(pipe: Any) -> None:
    answer(pipe, lambda task, name, _: examine(task, name))


class GenerationWorker(Worker):
    """A worker that examines generation."""

    serve = staticmethod(_serve)


def _is_no_case(row: Row) -> bool:
    """True if transformers itself cannot generate with the type, or keeps nothing from step to step."""
    return row["passed"] in ("", "build") or NO_CACHE in row.get("error", {}).get("what", "")


def write_page(rows: dict[str, Row], cases: Sequence[tuple[str, str]]) -> None:
    packages = ("torch", "transformers", "onnxruntime")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    lines = [
        "# Coverage of generation",
        "",
        f"Generated by `python -m studies.coverage_generation` ({versions}). Every transformers type that generates text, "
        "with a shrunk config and random weights: exported with its cache as inputs and outputs and dynamic batch, sequence "
        f"and past (with images: encoder, embedding and language model, an image in each prompt); compared with eager PyTorch at a second shape; {NEW_TOKENS} greedy tokens of three prompts of different "
        "lengths (padded on the left) compared with `model.generate` in onnxruntime and in the runner. Types that "
        "transformers itself cannot build or generate with in this form, or that keep no cache, are no case.",
        "",
        "| task | types | tried | eager ok | keep a cache | exported | second shape | tokens equal | of those with cache |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for task in TASKS:
        names = [f"{task}/{name}" for kind, name in cases if kind == task]
        tried = [rows[name] for name in names if name in rows]
        eager = [row for row in tried if row["passed"] not in ("", "build")]
        cached = [row for row in eager if NO_CACHE not in row.get("error", {}).get("what", "")]
        exported = [row for row in cached if row["passed"] != "eager"]
        shapes = [row for row in exported if not row.get("shapes")]
        equal = [row for row in exported if row.get("onnxruntime") == row.get("runner") == "equal"]
        share = f"{100 * len(equal) / len(cached):.1f} %" if cached else ""
        counts = [len(group) for group in (names, tried, eager, cached, exported, shapes, equal)]
        lines.append(f"| {task} | {' | '.join(map(str, counts))} | {share} |")
    failed = []
    for name, row in sorted(rows.items()):
        error = row.get("error")
        if error and not _is_no_case(row):
            what = f"{error['code']} {error['what']}; {error['why']}"[:220].replace("|", "/").replace("\n", " ")
            failed.append(f"| {name} | {error['stage']} | {what} | {error['where']} |")
    if failed:
        lines += ["", "## What does not work", "", "| type | stage | error | at |", "|---|---|---|---|", *failed]
    single = sorted(name for name, row in rows.items() if any("one token" in note for note in row.get("notes", ())))
    if single:
        lines += [
            "",
            "## One token a call",
            "",
            "Their Python is right at one length of a prompt; their graph takes one token, and ",
        ]
        lines[-1] += f"`generate` calls it once a token: {', '.join(single)}."
    both = sorted(
        name for name, row in rows.items() if any("takes the prompt" in note for note in row.get("notes", ()))
    )
    if both:
        lines += ["", "## A graph for the prompt", "", "These take the prompt in one call of a graph of its own, and "]
        lines[-1] += f"each later token in one of another: {', '.join(both)}."
    one_size = sorted(name for name, row in rows.items() if row.get("one_size"))
    if one_size:
        lines += ["", "## Images of one size", ""]
        lines += [
            f"Their grid of images is fixed to the example's. Images of other models with a grid have three sizes: {', '.join(one_size)}."
        ]
    by_row = sorted(name for name, row in rows.items() if row.get("by_row"))
    if by_row:
        lines += [
            "",
            "## Row by row",
            "",
            "The model's own features of an image depend on the other images of the call, or its own step of one token adds "
            "the rows of a batch to one another, so these are compared with `model.generate` of each prompt alone: "
            f"{', '.join(by_row)}.",
        ]
    none: dict[str, list[str]] = {}
    for name, row in sorted(rows.items()):
        if "error" in row and _is_no_case(row):
            what = row["error"]["what"]
            none.setdefault(KEEPS_NO_CACHE if NO_CACHE in what else what[:100], []).append(name)
    lines += ["", "## No case", "", "| error of transformers | types | |", "|---|---:|---|"]
    lines += [
        f"| {text.replace('|', '/')} | {len(names)} | {', '.join(names)} |"
        for text, names in sorted(none.items(), key=lambda item: -len(item[1]))[:40]
    ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {PAGE}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, help="examine at most so many types")
    parser.add_argument("--again", choices=("no", "failing", "all"), default="no", help="what to measure anew")
    parser.add_argument("--models", help="only these types, measured anew")
    parser.add_argument("--file", type=Path, default=Path("/tmp/coverage_generation.jsonl"))
    parser.add_argument("--page-only", action="store_true", help="write the page from what was measured")
    options = parser.parse_args(arguments)
    cases = all_cases()
    rows = read_rows(options.file)
    keep = {
        n
        for n, row in rows.items()
        if options.again == "no" or (options.again == "failing" and row["passed"] == "tokens")
    }
    wanted = options.models.split(",") if options.models else None
    to_do = [c for c in cases if (c[1] in wanted if wanted else f"{c[0]}/{c[1]}" not in keep)][: options.limit]
    if not options.page_only:
        worker = GenerationWorker(LIMIT_S)
        with options.file.open("a", encoding="utf-8") as file:
            for task, name in to_do:
                start = time.perf_counter()
                row = worker.examine(task, name, False) | {"name": f"{task}/{name}"}
                row["total_s"] = round(time.perf_counter() - start, 1)
                file.write(json.dumps(row) + "\n")
                file.flush()
                error = row.get("error")
                problem = f"   {error['stage']} {error['code']} {error['what'][:150]}" if error else ""
                print(f"{row['name']:<50} {row['passed'] or '-':<12} {row['total_s']:>6.1f} s{problem}", flush=True)
        worker.close()
    write_page(read_rows(options.file), cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
