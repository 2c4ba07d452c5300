"""The interface of a recipe: a form in which generating models are exported, with the files that it makes of a
model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Generic, Protocol, TypeVar, cast

import torch

from fx2onnx.manifest.names import LOGITS
from fx2onnx.sources.hf.sample_context import SampleContext
from fx2onnx.sources.hf.transformers_types import Model
from fx2onnx.sources.source import Options, Source


def language_of(model: Model) -> Model:
    """The module that generates: ``model`` itself, or the one of its children that the code of its own ``generate`` calls.

    ``Blip2ForConditionalGeneration.generate`` puts features of its images among the embedded tokens and calls
    ``language_model.generate``: what is written as the decoder is then that language model.
    """
    from transformers import GenerationMixin

    own = getattr(type(model), "generate", None)
    if own is None or own is GenerationMixin.generate:
        return model
    code = inspect.unwrap(own).__code__
    if "__class__" in code.co_freevars:  # it goes on with super().generate
        return model
    called = [
        child for name, child in model.named_children() if name in code.co_names and isinstance(child, GenerationMixin)
    ]
    return called[0] if len(called) == 1 else model


def give_last_logits(module: torch.nn.Module) -> None:
    """Let ``module``, which takes any number of tokens, give logits [batch, 1, vocabulary]; encoders give none."""
    if _last not in module._forward_hooks.values():
        module.register_forward_hook(_last)


def _last(module: torch.nn.Module, inputs: Any, outputs: Any) -> Any:
    """``PickEarly`` then leaves of the head, and of the last layer, what the last position needs."""
    return outputs | {LOGITS: outputs[LOGITS][:, -1:]} if LOGITS in outputs else outputs


MANY_BLOCKS = 1031
"""A sample for models whose blocks are long: one block is as good as none to Python, which decides by it."""
Facts = TypeVar("Facts")


@dataclass(frozen=True)
class FolderPart:
    """One file of the folder. Of its ``forms`` the first that can be exported whole is taken; ``narrow`` is what the
    last of them takes a call, if that is less. Where the first takes many tokens at once in a way that is slow for one
    (``has_steps``), it becomes a graph for prompts beside the second; where it cannot be exported whole, ``prompt`` does, if
    that can.
    """

    file: str
    forms: Sequence[Callable[[], Source]]
    narrow: str = "one token"
    note: str = ""
    prompt: Callable[[], Source] | None = None
    has_steps: bool = False


class ModelPart(torch.nn.Module, Generic[Facts]):
    """A part of ``model`` with plain tensors in and out; ``facts`` is what its recipe knows of the model."""

    def __init__(self, model: Model, facts: Facts) -> None:
        super().__init__()
        self.model = model
        self.facts = facts


@dataclass(frozen=True)
class FolderRequest:
    """The model to export, and what was asked for."""

    source: Source
    cache: str = "dynamic"
    in_place: bool = True
    """True if opset 24's operator writes a cache of fixed size."""
    logits: str = "all"
    """``last``: of the last position alone, where a graph takes many tokens."""
    prompts: Mapping[str, object] | None = None
    """Arrays of tokens that the scales of a rounded cache are calibrated on."""
    drafter: str | None = None
    """``mtp``: with the model's own head that drafts tokens; or the folder of an EAGLE-3 drafter."""
    images: bool = True
    """False for a model of text, made of one that takes images with its prompt."""
    options: Options = field(default_factory=Options)
    """Sizes of the samples."""

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def model(self) -> Model:
        return cast(Model, self.source.module)

    @cached_property
    def language(self) -> Model:
        """The module that generates."""
        return language_of(self.model)

    def context(self, seq: int | None = None) -> SampleContext:
        """The context that example inputs for the model are made from."""
        return SampleContext(self.model.config, replace(self.options, seq=seq or self.options.seq), self.model)

    def part(self, file: str, *forms: Source | Callable[[], Source], narrow: str = "one token") -> FolderPart:
        """A file with the weights and the origin of the source."""
        return FolderPart(file, [partial(self._finished, form) for form in forms], narrow)

    def decoder_part(self, file: str, make: Callable[..., Source]) -> FolderPart:
        """A decoder that ``make`` makes; where that cannot be exported or steps are cheaper, one that takes one token a call,
        the last with a long past, so that tokens pooled in blocks make several blocks, and another graph for the prompt.
        """
        first = make()  # here, so that a model without cache says so early
        part = self.part(file, first, partial(make, one_token=True), partial(make, one_token=True, past=MANY_BLOCKS))
        prompt = partial(self._finished, partial(make, whole_prompt=True))
        return replace(part, prompt=prompt, has_steps=getattr(first.module, "is_recurrent", False))

    def _finished(self, form: Source | Callable[[], Source]) -> Source:
        made, whole = form if isinstance(form, Source) else form(), self.source
        if self.logits == "last" and not getattr(made.module, "takes_one_token", False):
            give_last_logits(made.module)
        return replace(made, weight_files=whole.weight_files, has_weights=whole.has_weights, origin=whole.origin)


@dataclass(frozen=True)
class TextOnly:
    """The reason why a recipe makes no files of a model that fits it; a later recipe then exports the model as one of
    text."""

    why: str


class Recipe(Protocol):
    """The interface that the module of a recipe has."""

    def fits(self, request: FolderRequest) -> bool:
        """Return whether the model has this form, by its structure and never by its name."""

    def parts(self, request: FolderRequest) -> list[FolderPart] | TextOnly:
        """The files. Raises UserError E601 where the model keeps nothing between calls."""
