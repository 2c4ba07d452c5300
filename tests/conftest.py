"""Which tests are the core, which `make matrix` runs in many environments, which are slow, and how garbage is collected meanwhile."""

from __future__ import annotations

import gc

import pytest

WITHOUT_TORCH = {
    "tests/runner/test_planner.py",
    "tests/runner/test_static_bodies.py",
    "tests/runner/test_static_shapes.py",
    "tests/runner/test_manners.py",
    "tests/runner/test_random.py",
}
"""Those that run where there is no torch."""
CORE = WITHOUT_TORCH | {
    "tests/capture/test_dynamic.py",
    "tests/capture/test_in_place.py",
    "tests/capture/test_state.py",
    "tests/capture/test_split.py",
    "tests/capture/test_data_sizes.py",
    "tests/capture/recording/test_aliasing.py",
    "tests/capture/recording/test_control_flow.py",
    "tests/ops/test_table.py",
    "tests/ops/test_recurrent.py",
    "tests/ops/test_attention.py",
    "tests/test_zoo.py",
    "tests/test_custom_ops.py",
    "tests/runner/test_runner_session.py",
    "tests/verify/test_verify_classes.py",
    "tests/verify/test_verify_judge.py",
    "tests/verify/test_locate.py",
    "tests/training/test_models.py",
    "tests/exporting/test_export.py",
    "tests/sources/test_sources_resolve.py",
}
NOT_CORE = {
    "clip_tiny": "transformers 4 does not run it in float64",
}
"""Parts of names of tests in those files, and why they cannot be had in every environment."""


_DECODERS, _PROMPTS = "tests/decoding/test_decoders.py::", "tests/decoding/test_prompt_graphs.py::"
SLOW = (
    *(f"{_DECODERS}test_decoders_generate_what_transformers_does[{name}]" for name in ("mamba2", "xlstm")),
    *(
        f"{_DECODERS}test_encoder_decoders_generate_what_transformers_does[{name}]"
        for name in ("bart", "encoder-decoder", "pegasus_x", "prophetnet")
    ),
    *(f"{_PROMPTS}test_a_prompt_takes_one_call[{name}]" for name in ("jamba", "recurrent_gemma")),
    f"{_PROMPTS}test_logits_of_the_last_position[jamba]",
    *(
        f"tests/decoding/test_model_types.py::test_tokens_are_those_of_transformers[{name}]"
        for name in ("udop", "unlimited_ocr")
    ),
    "tests/decoding/test_deepstack.py::test_what_comes_beside_embedded_tokens_reaches_the_layers[gemma4-per_layer_inputs]",
    "tests/decoding/test_image_prompts.py::test_images_that_enter_the_language_model_itself[_kosmos-_patches-files2]",
    "tests/model_patches/test_packed_images.py::test_an_encoder_takes_images_of_other_sizes[GLM-4V-eager]",
    "tests/lower/test_repeated_layers.py::test_the_file_is_the_same[t5_small-False-light]",
    *(
        f"tests/ops/test_backward.py::test_gradients_are_those_of_autograd[grid bicubic {case}]"
        for case in ("reflection, aligned", "border", "zeros, aligned")
    ),
    "tests/test_leaks.py::test_an_exported_folder_leaves_no_model_and_no_mapped_file[reference]",
    *(f"tests/optimize/test_fuzz.py::test_random_graphs_keep_their_numbers[{level}]" for level in (1, 3)),
    *(f"tests/cli/test_cli_basics.py::test_help_is_quick_and_imports_nothing_heavy[arguments{n}]" for n in (2, 3, 4)),
)
"""Cases of seconds whose quicker neighbours ask the same of another model or option: ``make test-all`` runs them."""


def is_core(node: str) -> bool:
    """Whether the test of this name is one of the core."""
    return node.partition("::")[0] in CORE and not any(part in node for part in NOT_CORE)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    found = {item.nodeid: item for item in items}
    for item in items:
        if is_core(item.nodeid):
            item.add_marker(pytest.mark.core)
    for node in SLOW:
        if node in found:
            found[node].add_marker(pytest.mark.slow)
    files = {node.partition("::")[0] for node in found}
    gone = [node for node in SLOW if node not in found and node.partition("::")[0] in files]
    if gone and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"SLOW names what is no test: {', '.join(gone)}")


def pytest_collection_finish() -> None:
    """What is there now stays to the end: collecting garbage need not look through it each time, nor as often."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
