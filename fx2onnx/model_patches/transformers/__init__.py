"""Patches of transformers, a file each concern. Importing this package registers them all."""

from fx2onnx.model_patches.transformers import (  # noqa: F401
    attention_masks,
    compressors,
    delta_rules,
    experts,
    packed_images,
    positions,
    prompt_states,
    recurrences,
)
