"""``sentence-transformers:FOLDER``: text or images to embeddings, scores or sparse vectors, all modules of the folder in one graph.

The package loads the folder. Code that comes with the folder is never run and nothing is downloaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fx2onnx.base.errors import UserError
from fx2onnx.sources.embedder_folder import PREFIX, class_of
from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.hf.by_reference import quiet_loading
from fx2onnx.sources.hf.config import guarded
from fx2onnx.sources.hf.inputs import sample_inputs
from fx2onnx.sources.hf.sample_context import InputFactory, SampleContext, main_dtype, samples_of
from fx2onnx.sources.hf.samples import INPUT_FACTORIES
from fx2onnx.sources.hf.transformers_types import Shapes
from fx2onnx.sources.seeding import seeded
from fx2onnx.sources.source import AxisName, Options, Source
from fx2onnx.sources.torchvision import check_torchvision
from fx2onnx.sources.weight_files import cast_inputs

_OUTPUT_OF_TASK = {
    "feature-extraction": "last_hidden_state",
    "fill-mask": "logits",
    "sequence-classification": "logits",
}
"""The name of the transformer's output in optimum, and so in the package's own ONNX backend, by task."""

_TEXT = ("input_ids", "attention_mask", "decoder_input_ids")
_TOKEN_TYPES = InputFactory(
    lambda context: torch.randint(0, context.number("type_vocab_size", default=1) or 1, (context.batch, context.seq)),
    INPUT_FACTORIES["input_ids"].axes,
)


def names() -> list[str]:
    """Nothing: the folders of a computer cannot be listed."""
    return []


def build(name: str, options: Options) -> Source:
    """The model in the folder ``name``, which ``model.save_pretrained(FOLDER)`` wrote. Batch and length are dynamic.

    ``?modality=image`` chooses among the inputs that a model of several takes, ``?task=query`` among the routes of a router.
    Outputs are what the transformer returns (``last_hidden_state`` or ``logits``), then ``sentence_embedding``, of a
    CrossEncoder ``scores``: the logits after the activation that the folder states.

    Raises:   UserError E601 (no such folder, a module that is missing or not the package's own), E302 (unreadable).
    """
    check_torchvision()
    folder = Path(name).expanduser()
    keywords = dict(options.keywords)
    modality, task = keywords.pop("modality", None), keywords.pop("task", None)
    if keywords:
        raise UserError("E601", f"{PREFIX}: does not take {next(iter(keywords))}", next="it takes modality and task")
    if options.weights == "random":
        raise UserError("E001", f"--weights random has no meaning for {PREFIX}: sources")
    kind = class_of(folder)
    with guarded(name), seeded(options.seed):
        model, missing = _load(kind, folder)
        graph, kwargs, shapes = _with_samples(model, kind, _modality(model, folder, modality), task, options)
        with reported(f"the model of '{folder}' fails on example inputs"):
            results = tuple(graph(**kwargs))
        _check_missing(graph, kwargs, missing, folder)
    package = importlib.import_module("sentence_transformers")
    return Source(
        folder.resolve().name,
        graph,
        (),
        kwargs,
        shapes,
        output_names=results,
        origin=f"{PREFIX} {package.__version__}, {kind}, weights of {folder.resolve()}",
    )


class _Pipeline(nn.Module):
    """The modules of a model one after the other, tensors in and tensors out; ``stated`` is what else they read."""

    def __init__(self, model: Any, kind: str, stated: Mapping[str, object]) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        self.stated = dict(stated)

    @torch.no_grad()
    def forward(self, **features: Tensor) -> dict[str, Tensor]:
        """The outputs of the transformer, then those of the whole model, by name."""
        state: dict[str, Any] = {**features, **self.stated}
        results: dict[str, Tensor] = {}
        for index, module in enumerate(self.model):
            wanted = getattr(module, "forward_kwargs", ())
            state = module(state, **{name: value for name, value in self.stated.items() if name in wanted})
            word = _OUTPUT_OF_TASK.get(getattr(module, "transformer_task", ""))
            if index == 0 and word is not None and module.module_output_name != "sentence_embedding":
                results[word] = state[module.module_output_name]
        if self.kind == "CrossEncoder":
            return {**results, "scores": self.model.activation_fn(state["scores"])}
        if self.kind == "MultiVectorEncoder":
            return {"token_embeddings": state["token_embeddings"], "token_mask": state["attention_mask"]}
        return {**results, "sentence_embedding": state["sentence_embedding"]}


def _load(kind: str, folder: Path) -> tuple[Any, set[str]]:
    """The model on the CPU, and the weights that its checkpoint lacks. Raises UserError E601."""
    package = importlib.import_module("sentence_transformers")
    if not hasattr(package, kind) or not hasattr(package.SentenceTransformer, "preprocess"):
        raise UserError(
            "E602",
            f"{PREFIX} {package.__version__} is too old for this",
            why=f"{kind} and preprocess are needed, which it has since 5.4 or later",
            next=f"pip install -U {PREFIX}",
        )
    what = f"sentence-transformers cannot load the folder '{folder}'"
    with (
        reported(what, next="save the model anew: model.save_pretrained(FOLDER)"),
        quiet_loading(),
        _noted() as missing,
    ):
        model = getattr(package, kind)(str(folder), device="cpu", local_files_only=True, trust_remote_code=False)
    return model, missing


@contextmanager
def _noted() -> Iterator[set[str]]:
    """Inside, what ``from_pretrained`` of transformers finds missing in a checkpoint is noted."""
    from transformers import PreTrainedModel

    missing: set[str] = set()
    loading = PreTrainedModel.__dict__["from_pretrained"]

    def from_pretrained(cls: type, /, *args: object, **kwargs: object) -> object:
        model, found = loading.__func__(cls, *args, **{**kwargs, "output_loading_info": True})
        missing.update(found["missing_keys"])
        return model

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    try:
        yield missing
    finally:
        PreTrainedModel.from_pretrained = loading


def _modality(model: Any, folder: Path, asked: object) -> str:
    """The modality to export. Raises UserError E601 for one that the model does not take."""
    known = [word for word in getattr(model[0], "modality_config", {}) if isinstance(word, str)] or ["text"]
    if asked is None:
        return "text" if "text" in known else known[0]
    if asked not in known:
        raise UserError("E601", f"'{folder}' takes no {asked!r:.40}", next=f"it takes {', '.join(known)}")
    return str(asked)


def _with_samples(
    model: Any, kind: str, modality: str, task: object, options: Options
) -> tuple[_Pipeline, dict[str, Tensor], Shapes]:
    """The pipeline, the tensors that its preprocessing gives, at the sizes asked for, and their dynamic axes by name."""
    if modality != "text":
        samples, shapes = sample_inputs(model.transformers_model, options)
        kept = [name for name in samples if name not in _TEXT]
        kwargs = {name: cast_inputs(samples[name], main_dtype(model)) for name in kept}
        return _Pipeline(model, kind, {"modality": modality}).eval(), kwargs, {name: shapes[name] for name in kept}
    words = [" ".join(["a"] * count) for count in range(1, options.batch_or() + 1)]
    with reported(
        "the model's own preprocessing fails", next="name the route of a router: ?task=query or ?task=document"
    ):
        features = model.preprocess(words, **({} if task is None else {"task": task}))
    given = {name: value for name, value in features.items() if isinstance(value, Tensor)}
    graph = _Pipeline(model, kind, {name: value for name, value in features.items() if name not in given}).eval()
    if not given.keys() <= {*_TEXT, "token_type_ids"}:
        return graph, given, {name: _axes(name, value) for name, value in given.items()}
    transformer = next(part.model for part in model.modules() if hasattr(part, "transformer_task"))
    context = SampleContext(transformer.config, options, transformer)
    kwargs, shapes = samples_of({name: INPUT_FACTORIES.get(name, _TOKEN_TYPES) for name in given}, context)
    return graph, kwargs, shapes


def _axes(name: str, value: Tensor) -> dict[int, AxisName]:
    """The dynamic axes of an input of layers without a transformer, whose tokens may stand in one row."""
    return {
        0: "tokens" if name == "input_ids" and value.dim() == 1 else "batch",
        **({1: "sequence"} if value.dim() == 2 else {}),
    }


def _check_missing(graph: _Pipeline, kwargs: Mapping[str, Tensor], missing_keys: set[str], folder: Path) -> None:
    """Raise UserError E601 where a result depends on weights that the folder lacks: transformers has drawn them.

    A missing pooler that nothing reads is none: with NaN in it, the results have no more of them than without.
    """
    missing = {name: value for name, value in graph.named_parameters() if name.endswith(tuple(missing_keys))}
    kept = {name: value.detach().clone() for name, value in missing.items()}
    with torch.no_grad():
        for value in missing.values():
            value.fill_(torch.nan)
        is_read = missing and any(bool(result.isnan().any()) for result in graph(**kwargs).values())
        for name, value in missing.items():
            value.copy_(kept[name])
    if is_read:
        raise UserError(
            "E601",
            f"the folder '{folder}' lacks weights that its results depend on",
            why=f"{len(missing)} missing, the first is {min(missing)}",
            next="save the model anew: model.save_pretrained(FOLDER)",
        )
