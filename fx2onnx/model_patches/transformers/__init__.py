"""Patches of transformers, a file each concern. Importing this package registers them all."""

from fx2onnx.model_patches.transformers import (  # noqa: F401
    attention_masks,
    chunks,
    compressors,
    delta_rules,
    experts,
    fused_experts,
    indexers,
    packed_images,
    positions,
    prompt_states,
    prompts,
    recurrences,
    tracing,
)
