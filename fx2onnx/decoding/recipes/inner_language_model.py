"""Models whose own ``generate`` hands over to a language model inside.

``Blip2ForConditionalGeneration.generate`` makes features of its images, puts them among the embedded tokens and calls
``language_model.generate``. What is written as the decoder is then that language model. No model is named: the code of
the class's ``generate`` says which of its children it calls.
"""

from __future__ import annotations

import inspect

from fx2onnx.sources.hf.transformers_types import Model


def language_of(model: Model) -> Model:
    """The module that generates: ``model`` itself, or the one of its children that its own ``generate`` hands over to."""
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
