"""The tasks of a transformers model: the words of ``?task=``, and the auto mapping that each stands for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Protocol

from fx2onnx.sources.hf.transformers_types import Model
from fx2onnx.sources.registry import fail_unknown

# Task word -> transformers' mapping from config class to model class. Without a task the first mapping that knows the
# config decides, so the order is: what people usually export such a model for.
TASKS: dict[str, str] = {
    "seq2seq-lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "speech-seq2seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "masked-lm": "MODEL_FOR_MASKED_LM_MAPPING",
    "causal-lm": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "ctc": "MODEL_FOR_CTC_MAPPING",
    "audio-classification": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING",
    "image-text-to-text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    "zero-shot-image-classification": "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING",
    "image-classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "object-detection": "MODEL_FOR_OBJECT_DETECTION_MAPPING",
    "universal-segmentation": "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING",
    "semantic-segmentation": "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING",
    "depth-estimation": "MODEL_FOR_DEPTH_ESTIMATION_MAPPING",
    "video-classification": "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING",
    "sequence-classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "token-classification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
    "question-answering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING",
    "features": "MODEL_MAPPING",
}

# Words of transformers' pipelines and of other exporters for the same.
SYNONYMS: dict[str, str] = {
    "fill-mask": "masked-lm",
    "text-classification": "sequence-classification",
    "sentiment-analysis": "sequence-classification",
    "zero-shot-classification": "sequence-classification",
    "ner": "token-classification",
    "feature-extraction": "features",
    "image-feature-extraction": "features",
    "image-segmentation": "universal-segmentation",
    "masked-im": "masked-image-modeling",
    "default": "features",
}


class AutoMapping(Protocol):
    """A mapping from config class to model class, or to several of which the first counts; ``_model_mapping`` has their
    names."""

    _model_mapping: Mapping[str, str]

    def __contains__(self, config_class: type) -> bool: ...

    def __getitem__(self, config_class: type) -> type[Model] | Sequence[type[Model]]: ...


_MAPPING = re.compile(r"MODEL_FOR_(\w+)_MAPPING")


def every_task(auto: ModuleType) -> dict[str, str]:
    """Word -> name of the mapping in ``transformers.models.auto.modeling_auto``, for every mapping there is.

    Those of ``TASKS`` come first; the others are called as their mapping is: ``multiple-choice``.
    """
    named = set(TASKS.values())
    others = {
        match[1].lower().replace("_", "-"): name
        for name in vars(auto)
        if (match := _MAPPING.fullmatch(name)) and name not in named
    }
    return TASKS | others


def mapping_of(transformers: ModuleType, task: str, also: Iterable[str] = ()) -> AutoMapping:
    """The mapping from config class to model class for a word, or for a class such as ``AutoModelForMaskedLM``.

    Raises:   UserError E601, which names similar words, those of ``also`` among them.
    """
    if task.startswith("AutoModel") and hasattr(transformers, task):
        mapping: AutoMapping = getattr(transformers, task)._model_mapping
        return mapping
    auto = transformers.models.auto.modeling_auto
    words = every_task(auto)
    name = words.get(SYNONYMS.get(task, task))
    if name is None:
        known = [*also, *words]
        fail_unknown("task", task, [*known, *SYNONYMS], hint=f"tasks: {', '.join(known)}")
    mapping = getattr(auto, name)
    return mapping
