"""Fifty faults of the past, each of which must turn its tests red when it is put back: ``make mutants``.

A mutant is a file, a piece of its text that stands there once, what it becomes, and the tests that must notice. The change is
made in a copy. A test run that stays green, or a text that is no longer there, is a failure. ``make mutate`` does the rest: it
mutates the lines that a change touches.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    file: str
    before: str
    after: str
    tests: str


MUTANTS = [
    # Capture: writes in place, aliases and state.
    Mutant("capture/recording/values.py", "if view.version != memory.version:", "if False:", "tests/capture/test_in_place.py"),
    Mutant("capture/recording/functionalize.py", "if result.dtype != tensor.dtype:", "if False:", "tests/capture/test_in_place.py"),
    Mutant("capture/recording/changed_state.py", "_is_memo(node, kept)", "False", "tests/capture/test_assigned_state.py"),
    Mutant("capture/python/held.py", "_PUT_BACK[entry.kind](entry.holder, entry.content)", "pass", "tests/capture/test_state.py"),
    Mutant("capture/run.py", "held.names().put(given)", "pass", "tests/exporting/test_objects.py"),
    Mutant("base/code_patch.py", "(instead if get_ident() == self._thread else original)", "instead", "tests/capture/test_threads.py"),
    Mutant("base/changes.py", "_close_left_open(error)", "pass", "tests/capture/test_interrupts.py"),
    # Capture: sizes, conditions and branches.
    Mutant("capture/recording/size_checks.py", "{**left, **env.unchecked}", "{}", "tests/capture/test_size_checks.py"),
    Mutant("capture/failures.py", "name not in env.failed_with or", "", "tests/capture/test_bad_sizes.py"),
    Mutant(
        "capture/shapes/symnode.py",
        "return self.env.check(self.value) if",
        "return self.env.guard(self.value) if",
        "tests/capture/test_needs.py",
    ),
    Mutant("capture/at_one.py", "if small | more not in self.tried and", "if False and", "tests/capture/test_at_one.py"),
    Mutant("capture/branches/merge.py", "if not _are_same(*args) or", "if", "tests/capture/test_conditions.py"),
    Mutant(
        "capture/branches/noop_guards.py",
        'return self._is_certain("eq", after, now)',
        "return True",
        "tests/capture/branches/test_noop_guards.py",
    ),
    Mutant("capture/branches/numbering.py", "self._drawn if draws else 0", "0", "tests/capture/test_at_one.py"),
    Mutant("capture/recording/meta_cache.py", "any(env.hint(what) != answer for", "any(False for", "tests/capture/recording/test_meta_cache.py"),
    Mutant("capture/observed.py", "if seen in varied:", "if False:", "tests/exporting/test_observed_calls.py"),
    Mutant("sizes/following.py", "low + more <= 0 <= high + more", "low + more <= 0", "tests/sizes/test_facts.py"),
    Mutant("sizes/solve.py", "first = remainders[gaps.index(max(gaps))]", "first = remainders[0]", "tests/sizes/test_solve.py"),
    # The ATen table and lowering.
    Mutant("aten_map/arithmetic.py", "if dtype in SMALL_INTEGERS:\n        left, right", "if False:\n        left, right", "tests/ops/test_math.py"),
    Mutant("aten_map/pooling.py", "op.Mod(result[1], op.size(plane))", "result[1]", "tests/ops/test_windows.py"),
    Mutant("aten_map/fused_attention.py", "if is_causal and length == keys:", "if is_causal:", "tests/targets/test_fused.py"),
    Mutant("aten_map/table/dtypes.py", "classes[0 if op.rank(operand) else 1]", "classes[0]", "tests/ops/test_float_types.py"),
    Mutant(
        "aten_map/convolution_backward.py",
        "place * dilation[axis], count, stride[axis])",
        "place, count, stride[axis])",
        "tests/training/test_whole.py",
    ),
    Mutant("lower/loop.py", "self._outputs([*inputs, *self.state_inputs])", "self._outputs(inputs)", "tests/capture/test_assigned_state.py"),
    Mutant("capture/quantized/operators.py", "steps = 127 if reduce_range else 255", "steps = 255", "tests/ops/test_eager_quantized.py"),
    # Files and their weights.
    Mutant("irx/data_file.py", "stream.seek(offset)", "pass", "tests/irx/test_data_file.py"),
    Mutant(
        "irx/model_files.py",
        "replace(staged.data, final)\n        replace(staged.graph, target)",
        "replace(staged.graph, target)\n        replace(staged.data, final)",
        "tests/faults",
    ),
    Mutant(
        "files/folder_files.py",
        "real != home\n",
        "False\n",
        "tests/sources/test_strangers.py tests/base/test_folder_files.py",
    ),
    Mutant("cli/made_from.py", "known_digest(path) == digest for path", "known_digest(path) for path", "tests/cli/test_stale_files.py"),
    # Rewrites, low-bit weights, 16 bits and targets.
    Mutant("optimize/redundant_nodes.py", "key = (tensor.dtype, tuple(tensor.shape), tensor.tobytes())", "key = tensor.tobytes()", "tests/optimize"),
    Mutant(
        "optimize/rewrites/linear_layers.py",
        '        if not sole_use(weight):\n            return Why("the weight is',
        '        if False:\n            return Why("the weight is',
        "tests/optimize/test_rewrites.py",
    ),
    Mutant("optimize/fold_constants.py", "or self._is_guess(node)", "or False", "tests/optimize/test_passes.py"),
    Mutant("semantics/opset_changes.py", 'edit.set("axes", axes)', 'edit.set("axes", axes[:1])', "tests/steps/test_opset.py"),
    Mutant(
        "quantize/schemes.py",
        "np.float32(self.offset) if zeros is None else zeros.astype(np.float32)[..., None]",
        "np.float32(self.offset)",
        "tests/quantize/test_export.py",
    ),
    Mutant(
        "exporting/packed.py",
        "codes = op.Gather(codes, op.const(layer.order.numpy()), axis=1)",
        "pass",
        "tests/sources/test_packed_checkpoints.py",
    ),
    Mutant("precision/values.py", "np.sign(array) * self._limit", "array", "tests/precision/test_precision.py"),
    Mutant("targets/faults.py", "fault.mend(node)", "pass", "tests/targets/test_faults.py"),
    Mutant("targets/fit.py", "_read_instead(output, result, cast)", "pass", "tests/targets/test_fit.py"),
    # The runner.
    Mutant("runner/plan.py", "last_use >= step.index for last_use, other in", "False for last_use, other in", "tests/runner/test_planner.py"),
    Mutant("semantics/reading/value_types.py", "if given[first] != type_:", "if False:", "tests/runner/test_invalid_models.py"),
    Mutant("semantics/reading/weights.py", "if (np.diff(indices) <= 0).any():", "if False:", "tests/runner/test_invalid_models.py"),
    Mutant("semantics/kernels/contrib/attention.py", "ahead <= -rules.window", "ahead < -rules.window", "tests/runner/test_contrib.py"),
    # Verification.
    Mutant("judge/constants.py", "ERROR_RATIO = 16.0", "ERROR_RATIO = 1e9", "tests/verify/test_verify_classes.py"),
    Mutant("verify/compare.py", "for lost in vanished(", "for lost in [] and vanished(", "tests/verify/test_verify_classes.py"),
    Mutant(
        "verify/module_state.py",
        "held = keep(tree, arguments)",
        "held = keep(ModuleTree(torch.nn.Module()), arguments)",
        "tests/capture/test_left_as_before.py",
    ),
    Mutant(
        "verify/values.py",
        "if tensor.dtype == torch.bool or _is_mask(tensor):",
        "if tensor.dtype == torch.bool:",
        "tests/verify/test_verify_classes.py",
    ),
    # Generation and training.
    Mutant("decoding/recipes/recipe.py", "outputs[LOGITS][:, -1:]", "outputs[LOGITS][:, :1]", "tests/decoding/test_prompt_graphs.py"),
    Mutant("model_patches/transformers/chunked.py", "scan(within, [before],", "scan(within, [ends],", "tests/model_patches/test_recurrences.py"),
    Mutant(
        "generation/media.py",
        " or (sides % grid.merge_size).any()",
        "",
        "tests/decoding/test_image_sizes.py::test_a_grid_that_contradicts_is_one_clear_error",
    ),
    Mutant("training/optimizers.py", "if dampening:", "if False:", "tests/training/test_optimizers.py"),
]  # fmt: skip


def survives(mutant: Mutant, copy: Path) -> str:
    """The reason why the mutant is a failure, or an empty text where its tests turned red."""
    path = copy / "fx2onnx" / mutant.file
    text = path.read_text()
    if text.count(mutant.before) != 1:
        return f"the text stands there {text.count(mutant.before)} times"
    path.write_text(text.replace(mutant.before, mutant.after))
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider"]
        environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        run = subprocess.run(
            [*command, *mutant.tests.split()], cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        path.write_text(text)
    if run.returncode == 1:
        return ""
    return "its tests stay green" if run.returncode == 0 else f"pytest ended with {run.returncode}: {run.stdout[-300:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of file names")
    only = parser.parse_args().only
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in [
            "fx2onnx",
            "tests",
            "models_zoo",
            "benchmarks",
            "studies",
            "tools",
            "pyproject.toml",
            "docs",
            "README.md",
        ]:
            source = ROOT / name
            shutil.copytree(source, copy / name) if source.is_dir() else shutil.copy(source, copy / name)
        chosen = [m for m in MUTANTS if not only or any(part in m.file for part in only)]
        for mutant in chosen:
            why = survives(mutant, copy)
            failures += bool(why)
            print(f"{'SURVIVES' if why else 'found':9} {mutant.file}: {mutant.before.strip()[:60]!r} {why}", flush=True)
    print(f"{len(chosen) - failures} passed, {failures} failed")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
