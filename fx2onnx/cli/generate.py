"""``fx2onnx generate FOLDER --prompt-ids 1,2,3``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl

import typer

from fx2onnx.base.errors import UserError
from fx2onnx.base.options import CHECKS, INPUTS
from fx2onnx.cli import options
from fx2onnx.cli.outcome import print_json, print_warnings, reports_errors
from fx2onnx.files.folder_commit import MANIFEST
from fx2onnx.generation.settings import GenerateSettings
from fx2onnx.manifest.form import Manifest

if TYPE_CHECKING:
    from fx2onnx.cli.agreement import TokenVerdict
    from fx2onnx.decoding.reference_generate import KeptScores
    from fx2onnx.generation import LoadedModel


_TYPE = re.compile(r"[A-Za-z0-9][\w-]{0,99}")
_KINDS = ("hf", "gguf")
_LITERAL = re.compile(r"[\w\s.,+()\[\]'\"-]*")


def source_within(folder: Path, manifest: Manifest) -> str:
    """The source that the file names, where that leads nowhere but into the folder: ``hf:`` with the folder itself or one
    inside, or with a type of model; ``gguf:`` with a file inside. Options have to be literals.

    Raises:   UserError E302, which says what the file names, why that is not followed and what the user can do.
    """
    kind, _, rest = manifest.source.partition(":")
    name, _, query = rest.partition("?")
    if kind not in _KINDS or not name:
        raise _refused(folder, manifest, f"{kind}: can import code or read files, hf: and gguf: alone are followed")
    for key, value in parse_qsl(query, keep_blank_values=True):
        if not key.isidentifier() or not _LITERAL.fullmatch(value):
            raise _refused(folder, manifest, f"the option {key}={value} is no literal")
    if kind == "hf" and _TYPE.fullmatch(name) and not os.path.lexists(folder / name):
        if os.path.isdir(name):
            raise _refused(folder, manifest, f"there is a folder '{name}' here, which may be meant or not")
        return manifest.source
    place = _place(folder, name)
    if place is None:
        raise _refused(folder, manifest, f"it lies outside the folder '{folder}'")
    if not (os.path.isdir if kind == "hf" else os.path.isfile)(place) or "?" in str(place):
        raise _refused(folder, manifest, f"there is no {'folder' if kind == 'hf' else 'file'} '{place}'")
    return f"{kind}:{place}{rest.removeprefix(name)}"


def trusted_source(folder: Path, manifest: Manifest) -> str:
    """The source as the file names it, a path as seen from the folder."""
    kind, _, rest = manifest.source.partition(":")
    name, mark, query = rest.partition("?")
    if kind in _KINDS and (os.path.isdir if kind == "hf" else os.path.isfile)(folder / name):
        return f"{kind}:{(folder / name).resolve()}{mark}{query}"
    return manifest.source


def _place(folder: Path, name: str) -> Path | None:
    if PurePath(name).is_absolute():
        return None
    home = folder.resolve()
    try:
        place = (home / name).resolve()
    except (OSError, RuntimeError, ValueError):
        return None
    return place if place == home or home in place.parents else None


def _refused(folder: Path, manifest: Manifest, why: str) -> UserError:
    follow = trusted_source(folder, manifest)
    kind, _, rest = follow.partition(":")
    is_there = kind in _KINDS and os.path.exists(rest.partition("?")[0])
    own = follow if is_there else "hf:CHECKPOINT_FOLDER"
    return UserError(
        "E302",
        f"'{folder / MANIFEST}' says that the folder was made from '{manifest.source}', which is not followed",
        why=why,
        next=[f"name what to compare with yourself: --source '{own}'", "or follow what the file says: --trust-source"],
    )


_INTEGER_64 = 2**63


@reports_errors
def generate_command(
    folder: Annotated[
        Path,
        options.argument("FOLDER", "A folder that fx2onnx export-folder wrote."),
    ],
    settings: Annotated[dict[str, Any], options.Group(GenerateSettings)],
    prompt: Annotated[
        list[str] | None, options.flag("--prompt", "A text, repeatable: several make a batch.", INPUTS, metavar="TEXT")
    ] = None,
    chat: Annotated[
        bool, options.flag("--chat", "--prompt is a message to a chat model, by the folder's chat template.", INPUTS)
    ] = False,
    prompt_ids: Annotated[
        list[str] | None,
        options.flag(
            "--prompt-ids", "Token ids of a prompt, repeatable: several prompts make a batch.", INPUTS, metavar="1,2,3"
        ),
    ] = None,
    input: options.Inputs = None,
    max_new_tokens: Annotated[
        int | None, options.flag("--max-new-tokens", "Generate at most N tokens. Default: 20.", min=1)
    ] = None,
    engine: options.OneEngine = None,
    verify: options.Verify = False,
    source: options.SourceFlag = None,
    trust_source: Annotated[
        bool,
        options.flag(
            "--trust-source",
            "--verify: follow the source in fx2onnx.json. It may import code.",
            CHECKS,
        ),
    ] = False,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Generate tokens from an exported folder.

    The likeliest token is taken each time, without --do-sample and --num-beams.
    """
    from fx2onnx.cli.progress import Stages

    settings = {name: value for name, value in settings.items() if value not in (None, (), False)}
    if settings.get("num_return_sequences") == 1:
        del settings["num_return_sequences"]
    length = max_new_tokens if max_new_tokens or "max_length" in settings else 20
    rows = _checked(prompt, chat, prompt_ids, input, settings if verify else {})
    with Stages(quiet=quiet or json_output) as stages:
        model = _loaded(stages, folder, engine)
        inputs = _prompts(model, prompt, chat) if prompt else _inputs(model, rows, input or [])
        spec = _source(model, source, trust_source) if verify else ""
        _check_adapter(spec, settings)
        _check_range(model, rows)
        kept = _kept_scores() if spec else None
        if kept is not None:
            settings["logits_processor"] = [kept]
        tokens = stages.call("generate", lambda: model.generate(**inputs, max_new_tokens=length, **settings))
        compare = partial(_compared, spec, model, inputs, tokens, length or 20, kept)
        verdict = stages.call(f"generate with {spec}", compare) if spec else None
    _write(model, inputs, tokens, verdict, is_text=bool(prompt), json_output=json_output)


def _kept_scores() -> KeptScores:
    from fx2onnx.decoding.reference_generate import KeptScores

    return KeptScores()


def _compared(*args: Any) -> TokenVerdict:
    from fx2onnx.cli.agreement import verdict_of

    return verdict_of(*args)


def _checked(
    prompt: list[str] | None,
    chat: bool,
    prompt_ids: list[str] | None,
    files: list[str] | None,
    unverified: dict[str, Any],
) -> list[list[int]]:
    """The rows of ``--prompt-ids``. Raises UserError E001 for flags that contradict."""
    if not (prompt or prompt_ids or files):
        step = "--prompt TEXT, --prompt-ids 1,2,3, or --input NAME=FILE.npy for an encoder"
        raise UserError("E001", "there is no prompt", next=step)
    if prompt and prompt_ids:
        raise UserError("E001", "--prompt and --prompt-ids are both given", next="leave out one of the two")
    if chat and not prompt:
        raise UserError("E001", "--chat has no message", next="--prompt TEXT")
    others = [name for name in unverified if name != "adapter"]
    if others:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise UserError("E001", f"--verify compares the likeliest tokens, without {flags}", next="leave out --verify")
    return [_ids(text) for text in prompt_ids or []]


def _check_adapter(spec: str, settings: Mapping[str, Any]) -> None:
    """Raises UserError E001 where the tokens of an adapter would be compared with those of its base."""
    if spec and "adapter" in settings and "adapter=" not in spec:
        step = f"--source '{spec}?adapter=ADAPTER', with the folder of {settings['adapter']}"
        raise UserError("E001", "--verify compares with the base model, without --adapter", next=step)


def _loaded(stages: Any, folder: Path, engine: str | None) -> LoadedModel:
    from fx2onnx.generation import LoadedPipeline, load
    from fx2onnx.judge.engines import SESSIONS, chosen_engines

    with stages.stage(f"load {folder}"):
        model: LoadedModel | LoadedPipeline = load(
            folder, chosen_engines(None if engine is None else [engine], SESSIONS)[0]
        )
    if isinstance(model, LoadedPipeline):
        raise UserError(
            "E001",
            f"'{folder}' is a diffusers pipeline and has no tokens",
            next="fx2onnx.load(FOLDER)(prompt) in Python",
        )
    print_warnings(model.warnings)
    return model


def _prompts(model: LoadedModel, prompts: list[str], chat: bool) -> dict[str, Any]:
    """Texts, or chats of one message each, as the folder's tokenizer has them."""
    from fx2onnx.generation.generate import tokenizer_of

    given = [[{"role": "user", "content": text}] for text in prompts] if chat else prompts
    return dict(tokenizer_of(model).encoded(given, on_left=model.encoder is None))


def _write(
    model: LoadedModel,
    inputs: dict[str, Any],
    tokens: Any,
    verdict: TokenVerdict | None,
    *,
    is_text: bool,
    json_output: bool,
) -> None:
    from fx2onnx.generation.generate import tokenizer_of
    from fx2onnx.generation.prompt import prompt_length

    start = 0 if model.delays else prompt_length(model, inputs)
    rows = tokens.reshape(-1, tokens.shape[-1])[:, start:]
    texts = [tokenizer_of(model).text(row) for row in rows] if is_text else None
    _finish([[int(token) for token in row] for row in rows], verdict, texts, json_output)


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
    """The source to compare with: the one that the caller names, else the one that the folder was made from, as far as
    that may be followed.
    """

    if given is None and not model.manifest.source:
        raise UserError(
            "E302", f"'{model.folder}' does not say what it was made from", next="--source hf:CHECKPOINT_FOLDER"
        )
    if given is not None:
        return given
    return (trusted_source if trusts else source_within)(model.folder, model.manifest)


def _finish(new: list[list[int]], verdict: TokenVerdict | None, texts: list[str] | None, json_output: bool) -> None:
    agreement = None if verdict is None else verdict.agreement
    if json_output:
        told = {"agreement": agreement.as_dict()} if agreement is not None else {}
        same, ok = (None, True) if verdict is None else (verdict.is_equal and verdict.ok, verdict.ok)
        print_json({"ok": ok, "tokens": new, "verified": same} | ({"texts": texts} if texts else {}) | told)
        if not ok:
            raise typer.Exit(1)
        return
    for line in texts if texts is not None else [",".join(map(str, row)) for row in new]:
        typer.echo(line)
    if agreement is not None:
        typer.echo(str(agreement), err=True)
    if verdict is None:
        return
    verdict.raise_if_failed()
    if verdict.is_equal:
        rounded = "" if agreement is None else " with weights rounded as in the folder"
        of_logits = "" if verdict.logits is None else ", and so are their logits, except for rounding"
        typer.echo(f"as model.generate{rounded}: {len(new)} x {len(new[0])} tokens are equal{of_logits}", err=True)
