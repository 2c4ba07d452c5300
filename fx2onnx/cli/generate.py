"""``fx2onnx generate FOLDER --prompt-ids 1,2,3``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fx2onnx.base.errors import UserError, VerificationError
from fx2onnx.base.options import CHECKS, INPUTS
from fx2onnx.cli import options
from fx2onnx.cli.outcome import print_json, reports_errors

if TYPE_CHECKING:
    from fx2onnx.generation import LoadedModel

_INTEGER_64 = 2**63


@reports_errors
def generate_command(
    folder: Annotated[
        Path,
        options.argument("FOLDER", "A folder that fx2onnx export-folder wrote."),
    ],
    prompt_ids: Annotated[
        list[str] | None,
        options.flag(
            "--prompt-ids", "Token ids of a prompt, repeatable: several prompts make a batch.", INPUTS, metavar="1,2,3"
        ),
    ] = None,
    input: options.Inputs = None,
    max_new_tokens: Annotated[int, options.flag("--max-new-tokens", "Generate at most N tokens.", min=1)] = 20,
    engine: options.OneEngine = None,
    verify: options.Verify = False,
    source: options.SourceFlag = None,
    trust_source: Annotated[
        bool,
        options.flag(
            "--trust-source",
            "--verify: compare with what the folder's fx2onnx.json names, also outside the folder. It may import code.",
            CHECKS,
        ),
    ] = False,
    json_output: options.Json = False,
) -> None:
    """Generate tokens from an exported folder.

    The token with the largest logit is taken each time. --verify compares with model.generate of transformers.
    """
    from fx2onnx.cli.progress import Stages
    from fx2onnx.generation import load
    from fx2onnx.generation.greedy import prompt_length
    from fx2onnx.judge.engines import SESSIONS, chosen_engines

    rows = [_ids(text) for text in prompt_ids or []]
    if not rows and not input:
        raise UserError(
            "E001", "there is no prompt", next="--prompt-ids 1,2,3, or --input NAME=FILE.npy for an encoder"
        )
    with Stages(quiet=json_output) as stages:
        with stages.stage(f"load {folder}"):
            model = load(folder, chosen_engines(None if engine is None else [engine], SESSIONS)[0])
        spec = _source(model, source, trust_source) if verify else ""
        inputs = _inputs(model, rows, input or [])
        _check_range(model, rows)
        tokens = stages.call("generate", lambda: model.generate(**inputs, max_new_tokens=max_new_tokens))
        expected = None
        if spec:
            expected = stages.call(f"generate with {spec}", lambda: _expected(spec, model, inputs, max_new_tokens))
    start = 0 if model.delays else prompt_length(model, inputs)
    if model.delays:  # a row for each codebook, of which given tokens are cut off at both ends
        tokens = tokens.reshape(-1, tokens.shape[-1])
        expected = None if expected is None else expected.reshape(-1, expected.shape[-1])
    _finish(tokens, start, expected, json_output)


def _ids(text: str) -> list[int]:
    try:
        ids = [int(word) for word in text.split(",")]
    except ValueError:
        ids = []
    if not ids or any(not 0 <= token < _INTEGER_64 for token in ids):
        raise UserError(
            "E001", f"cannot read --prompt-ids '{text}'", next="write numbers from 0 on: --prompt-ids 1,2,3"
        )
    return ids


def _check_range(model: LoadedModel, rows: Sequence[Sequence[int]]) -> None:
    text = model.config.get("text_config") or {}
    size = model.config.get("vocab_size") or text.get("vocab_size")
    largest = max((token for row in rows for token in row), default=0)
    if isinstance(size, int) and largest >= size + bool(model.delays):  # codebooks start with a token beyond theirs
        raise UserError("E001", f"--prompt-ids has the token {largest}", why=f"the vocabulary has {size}")


def _inputs(model: LoadedModel, rows: Sequence[Sequence[int]], files: Sequence[str]) -> dict[str, Any]:
    import numpy as np

    from fx2onnx.cli.feeds import parse_pairs

    result: dict[str, Any] = {}
    if rows:
        length = max(map(len, rows))
        pads = [[0] * (length - len(row)) for row in rows]
        on_left = model.encoder is None
        ones = [[1] * len(row) for row in rows]
        result["input_ids"] = np.array(
            [(p + list(r)) if on_left else (list(r) + p) for p, r in zip(pads, rows, strict=True)]
        )
        result["attention_mask"] = np.array([(p + r) if on_left else (r + p) for p, r in zip(pads, ones, strict=True)])
        result["attention_mask"] = result["attention_mask"][:: max(len(model.delays), 1)]
    for name, file in parse_pairs(files, "--input").items():
        try:
            result[name] = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as cause:
            raise UserError("E302", f"cannot read '{file}'", why=str(cause)) from cause
    return result


def _source(model: LoadedModel, given: str | None, trusts: bool) -> str:
    """What to compare with: what the caller names, else what the folder was made from, as far as that may be followed."""
    from fx2onnx.manifest.source import source_within, trusted_source

    if given is None and not model.manifest.source:
        raise UserError(
            "E302", f"'{model.folder}' does not say what it was made from", next="--source hf:CHECKPOINT_FOLDER"
        )
    if given is not None:
        return given
    return (trusted_source if trusts else source_within)(model.folder, model.manifest)


def _expected(spec: str, model: LoadedModel, inputs: Mapping[str, Any], new: int) -> Any:
    from fx2onnx.decoding.reference_generate import expected_tokens

    return expected_tokens(spec, model.manifest.task, model.manifest.seed, inputs, new)


def _finish(tokens: Any, start: int, expected: Any, json_output: bool) -> None:
    new = [[int(token) for token in row] for row in tokens[:, start:]]
    same = None
    if expected is not None:
        same = expected.shape == tokens.shape and bool((expected == tokens).all())
    if json_output:
        print_json({"ok": same is not False, "tokens": new, "verified": same})
    else:
        for row in new:
            typer.echo(",".join(map(str, row)))
    if same is None:
        return
    if not same:
        if json_output:
            raise typer.Exit(1)
        raise _difference(tokens, expected, start)
    if not json_output:
        typer.echo(f"as model.generate: {len(new)} x {len(new[0])} tokens are equal", err=True)


def _difference(tokens: Any, expected: Any, start: int) -> VerificationError:
    width = min(tokens.shape[1], expected.shape[1])
    differs = (tokens[:, :width] != expected[:, :width]).any(axis=0)
    at = int(differs.argmax()) if differs.any() else width
    row = int((tokens[:, at] != expected[:, at]).argmax()) if at < width else 0
    got, want = ((int(a[row, at]) if at < a.shape[1] else "the end") for a in (tokens, expected))
    return VerificationError(
        "E501",
        f"token {at - start + 1} of row {row} differs from model.generate",
        why=f"got {got}, expected {want}",
        next="two tokens may score nearly the same; compare logits: fx2onnx verify",
    )
