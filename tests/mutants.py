"""Small sabotages, each of which must turn its tests red: ``make mutants``.

Every line is a file, a piece of its text that stands there once, what it becomes, and the tests that must notice. The change
is made in a copy; a test run that stays green, or a text that is no longer there, is a failure.
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


CAPTURE, DYNAMIC = "tests/capture/test_in_place.py", "tests/capture/test_dynamic.py"
LEAKS = "tests/test_leaks.py"
KEYWORDS = "tests/exporting/test_torch_keywords.py"
CONTROL_FLOW = "tests/verify/test_control_flow.py"
AT_ONE, STEPS = "tests/capture/test_at_one.py", "tests/capture/test_decoding_steps.py"
CLASSES = "tests/verify/test_verify_classes.py"
CHOICES = "tests/verify/test_locate_choices.py"
FRAMES = "tests/capture/test_frames.py"
MODES = "tests/capture/test_modes.py"
RECORDING = "tests/capture/recording"
QUESTIONS, AGREEMENT = "tests/capture/test_questions.py", "tests/irx/test_agreement.py"
META_CACHE = f"{RECORDING}/test_meta_cache.py"
REGISTRY = "tests/capture/overloads/test_registry.py"
EXPORTED = "tests/ops/test_exported.py"
BACKWARD = "tests/ops/test_backward.py"
OPTIMIZERS, FOLDERS = "tests/training/test_optimizers.py", "tests/training/test_folders.py"
RARE, RESORT = "tests/ops/test_rare.py", "tests/lower/test_resort.py"
STRANGERS = "tests/sources/test_strangers.py tests/base/test_folder_files.py"
STATE, INTERRUPTS, THREADS = (f"tests/capture/test_{name}.py" for name in ("state", "interrupts", "threads"))
RECIPES = "tests/decoding/test_recipes.py"
POSITIONS, SIZES = "tests/decoding/test_grid_positions.py", "tests/decoding/test_image_sizes.py"
WRONG_SIZES = f"{SIZES}::test_a_grid_that_contradicts_is_one_clear_error"
KEPT_SIZE = f"{SIZES}::test_an_encoder_whose_python_needs_the_grid_keeps_that_of_the_sample"
PATCHES = "tests/model_patches/test_patching.py"
CONTRIB = "tests/runner/test_contrib.py"
INVALID = "tests/runner/test_invalid_models.py"
MEMORY = "tests/verify/test_verify_memory.py"
FOREIGN = "tests/verify/test_locate_foreign.py"
FILES = "tests/file_optimizer"
LOCATE, DEBUG = "tests/verify/test_locate.py", "tests/cli/test_debug.py"
CLUSTER = "tests/cli/test_cluster.py"
PLUGINS = "tests/test_plugins.py"
QUANTIZE = "tests/quantize"
QUANTIZED = f"{QUANTIZE}/test_export.py"
MUTANTS = [
    # a cluster
    Mutant("cli/cluster.py", 'row["ok"] and row["digest"] != digest', "False and digest", CLUSTER),
    Mutant("cli/cluster.py", "    if match is None:\n", "    if False:\n", CLUSTER),
    # what other packages add
    Mutant("base/plugins.py", "        except UserError as error:\n", "        except OSError as error:\n", PLUGINS),
    Mutant("base/plugins.py", "        problems.append", "        problems.clear", PLUGINS),
    Mutant("runner/registry.py", "    if found is None and plugins", "    if False and plugins", PLUGINS),
    Mutant("sources/registry.py", "    if not isinstance(kind, SourceKind) or", "    if", PLUGINS),
    Mutant("targets/find.py", "    if problem:\n", "    if False:\n", PLUGINS),
    # quantize
    Mutant("quantize/schemes.py", "            steps += zeros[..., None]", "            pass", QUANTIZED),
    Mutant("quantize/weights.py", "        count += count * even % 2\n", "", f"{QUANTIZE}/test_schemes.py"),
    Mutant("quantize/forms.py", "return is_row and (self._is_conv or self.writer.opset < BLOCKS_FROM)", "return is_row", QUANTIZED),
    Mutant("quantize/accuracy.py", "x = values.get(operand.name or \"\")", "x = None", QUANTIZED),
    Mutant("quantize/measured.py", "key=lambda name: -errors[name])[:count]", "key=lambda name: errors[name])[:count]", QUANTIZED),
    Mutant("verify/quantized.py", "            own.data = before", "            pass", QUANTIZED),
    Mutant("file_optimizer/quantized.py", "            value.const_value = _numbers_of(place)", "            pass", f"{QUANTIZE}/test_files.py"),
    Mutant("runner/kernels/blocked.py", "    return np.stack([packed & 15, packed >> 4]", "    return np.stack([packed >> 4, packed & 15]",
           "tests/runner/test_blocked_products.py"),
    Mutant("irx/io.py", "        raise cause from None", "        raise", QUANTIZED),
    # capture
    Mutant("capture/recording/aliasing.py", "    if view.version != memory.version:", "    if False:", CAPTURE),
    Mutant("capture/recording/aliasing.py", "        node = _carry_back(graph, step, before, info, node)", "        pass", CAPTURE),
    Mutant("capture/recording/aliasing.py", "    memory.version += 1", "    pass", CAPTURE),
    Mutant("capture/python/inputs.py", "        while name in taken:", "        while False:", "tests/exporting/test_export.py"),
    Mutant("capture/recording/functionalize.py", "    if result.dtype != tensor.dtype:", "    if False:", CAPTURE),
    Mutant("capture/python/module_state.py", "        _fill_dict(state.module.__dict__, state.attributes)\n", "", STATE),
    Mutant("capture/python/module_state.py", "                container[:] = content", "                continue", STATE),
    Mutant("base/changes.py", "_put_back_after(lambda: _put_back_after(run))", "_put_back_after(run)", INTERRUPTS),
    Mutant("base/changes.py", "        _close_left_open(error)\n", "        pass\n", INTERRUPTS),
    Mutant("base/code_patch.py", "(instead if get_ident() == self._thread else original)", "instead", THREADS),
    Mutant("base/memoized.py", "        if _THREAD.kept is None:\n            return", "        if False:\n            return", THREADS),
    Mutant("capture/python/process_state.py", "        if value is not _UNREADABLE and _value(flag) != value:\n            flag.set",
           "        if False:\n            flag.set", "tests/capture/test_process_state.py"),
    Mutant("capture/python/process_state.py", "                    seen.before.setdefault(flag, old)", "                    pass", THREADS),
    Mutant("model_patches/patching.py", "            applied.warnings.append(_warning(patch, change))", "            pass", PATCHES),
    Mutant("model_patches/patching.py", "    return taken == known", "    return True", PATCHES),
    Mutant("model_patches/patching.py", "            if target in PATCHES:", "            if False:", PATCHES),
    Mutant("base/relations.py", '        return Relation(NEGATED[self.op], self.args) if self.op in NEGATED else Relation("not", (self,))',
           "        return Relation(NEGATED.get(self.op, self.op), self.args)", "tests/base/test_assumptions.py"),
    Mutant("base/dims.py", "        return Dim, (self.terms, self.constant)", "        return object.__reduce_ex__(self, 2)",
           "tests/base/test_assumptions.py"),
    Mutant("capture/diagnosis.py", "any(isinstance(arg, Relation) for arg in relation.args)", "False", "tests/capture/test_diagnosis.py"),
    # table
    Mutant("aten_map/pooling.py", "op.Mod(result[1], op.size(plane))", "result[1]", "tests/ops/test_windows.py"),
    Mutant("aten_map/pooling.py", "        attrs[\"ceil_mode\"] = 1\n    with_places", "        pass\n    with_places",
           "tests/ops/test_windows.py"),
    Mutant("aten_map/pooling.py", "[min(stride[axis] - 1, kernel[axis] - 1 - padding[axis]) for", "[stride[axis] - 1 for",
           EXPORTED),
    Mutant("capture/overloads/data_dependent.py", "more = min(stride[axis] - 1, dilation[axis] * (kernel[axis] - 1) - padding[axis])", "more = stride[axis] - 1",
           EXPORTED),
    Mutant("capture/python/frames.py", "    return frame.f_lasti in _refusals(frame.f_code)", "    return False", EXPORTED),
    Mutant("capture/python/frames.py", "is_ours = id(code) in ANSWERING or ", "is_ours = ", FRAMES),
    Mutant("base/answering.py", "        if isinstance(constant, CodeType):\n", "        if False:\n", FRAMES),
    Mutant("aten_map/reduced_writes.py", "        old = op.GatherElements(states[0], places, axis=axis)",
           "        old = op.GatherElements(value, places, axis=axis)", EXPORTED),
    Mutant("aten_map/interpolation.py", "step if exact else op.Where(plain, own, step)", "step", EXPORTED),
    Mutant("aten_map/adaptive_pooling.py", "longest = whole(size // count + 2)", "longest = whole(size // count)", EXPORTED),
    Mutant("aten_map/complex_functions.py", "height = op.Where(is_left, large, small)", "height = small",
           "tests/ops/test_complex.py"),
    Mutant("aten_map/complex_functions.py", "    return conjugate(op, turned) if overload in CONJUGATED else turned",
           "    return turned", "tests/ops/test_complex.py"),
    Mutant("capture/python/module_calls.py", "put_name(vars(module), \"forward\"", "vars(module).__setitem__(\"forward\"",
           "tests/test_custom_ops.py"),
    Mutant("capture/recording/forward_lines.py", "        for number in range(self._noted, made):", "        for number in ():",
           "tests/training/test_lines.py"),
    Mutant("exporting/training_names.py", "error.module_path = own_path(error.module_path)", "pass",
           "tests/training/test_lines.py"),
    Mutant("training/recurrent_forms.py", "_rest(op, op.Mul(curved, curved))", "_rest(op, curved)",
           "tests/training/test_recurrent.py"),
    Mutant("training/recurrent.py", "if p and train and layer < layers - 1:", "if False:", "tests/training/test_recurrent.py"),
    Mutant("training/program.py", "self.parameters if kind is Kind.UPDATE else self.parameters | self.held",
           "self.parameters", "tests/training/test_held.py"),
    Mutant("verify/training.py", "sample = sample_after(reference, sample, STEPS_BEFORE)", "pass",
           "tests/training/test_verify.py"),
    Mutant("aten_map/embedding_backward.py", "kept = op.Mul(grad, unsqueeze(op, op.Sign(sizes), 1))", "kept = grad",
           "tests/ops/test_backward.py"),
    Mutant("aten_map/table/dtypes.py", "classes[0 if op.rank(operand) else 1]", "classes[0]", "tests/ops/test_promotion.py"),
    Mutant("aten_map/table/dtypes.py", "        elif _category(combined) > _category(result):", "        elif False:",
           "tests/ops/test_promotion.py"),
    Mutant("aten_map/bits.py", "edge = op.And(inward, ", "edge = op.And(op.Not(inward), ", RARE),
    Mutant("aten_map/bits.py", "least = math.log2(information.smallest_normal) -", "least = 1 - ", RARE),
    Mutant("aten_map/batch_norm.py", "if len(op.result) == count else []", "if False else []", "tests/ops/test_nn.py"),
    Mutant("aten_map/class_losses.py", "zero_like(op, logs) if reduction == NONE else total", "total", "tests/ops/test_nn.py"),
    Mutant("aten_map/segments.py", "op.Not(op.Less(places, before))", "op.Greater(places, before)", RARE),
    Mutant("aten_map/fractional_pooling.py", "op.const(np.arange(count) == count - 1)", "op.const(np.arange(count) < 0)", RARE),
    Mutant("aten_map/linalg/eigen.py", "theta = op.Div(op.Sub(aqq, app),", "theta = op.Div(op.Sub(app, aqq),", RARE),
    Mutant("aten_map/linalg/reflections.py", "op.Where(op.Less(columns, index), states[0], reflected)", "reflected", RARE),
    Mutant("aten_map/special.py", "op.Equal(op.Mod(s, 2.0, fmod=1), 0.0), gap, op.Neg(gap)",
           "op.Equal(op.Mod(s, 2.0, fmod=1), 0.0), gap, gap", "tests/ops/test_math.py"),
    Mutant("aten_map/reductions.py", "finite = through(op, \"Min\" if sign > 0 else \"Max\", self, most)", "finite = self", RARE),
    Mutant("aten_map/table/registry.py", "if name in names and name not in arguments.values():", "if name in names:", "tests/ops/test_table.py"),
    Mutant("irx/accessors.py", "        READ_SET.add(value)\n        return value.producer()", "        return value.producer()", "tests/lower/test_repeated_layers.py"),
    Mutant("aten_map/strided.py", "        _check_inside(op, self, whole(start + count - 1))\n", "", "tests/ops/test_views.py"),
    Mutant("aten_map/namespaces/torchao.py", "scales += [blocks, 1]", "scales += [1, inside]", "tests/ops/test_torchao.py"),
    Mutant("capture/recording/meta_cache.py", "any(env.hint(what) != answer for", "any(False for", META_CACHE),
    Mutant("capture/recording/meta_cache.py", "is_view_of_first = sharing[0] is args[0]", "is_view_of_first = True", META_CACHE),
    Mutant("capture/recording/meta_rules.py", "(dilation * (kernel - 1) + 1)", "(dilation * kernel)", f"{RECORDING}/test_meta_rules.py"),
    Mutant("capture/recording/tensor_tracker.py", "        if self.graph is self.root:\n            self.sources", "        if True:\n            self.sources",
           f"{RECORDING}/test_tensor_tracker.py"),
    Mutant("capture/overloads/unbacked_scalars.py", "left * one + right * two", "one + two",
           "tests/capture/overloads/test_unbacked_scalars.py"),
    Mutant("capture/overloads/strided.py", "        storage_offset = fake.storage_offset()", "        storage_offset = 0", CAPTURE),
    Mutant("lower/control_flow.py", "from fx2onnx.irx.emit import Emit\n",
           "from fx2onnx.irx.emit import Emit\nfrom fx2onnx.lower import loop\n", "tests/test_layers.py"),
    Mutant("lower/torchlib.py", "dtype_of(result) != dtype or", "False or", RESORT),
    Mutant("lower/preflight.py", "    if len(distinct) == 1:\n        return first", "    if True:\n        return first", RESORT),
    Mutant("capture/torch_private/dispatch.py", "Dispatcher(), torch._C._DisableTorchDispatch():\n        yield", "Dispatcher():\n        yield", MODES),
    Mutant("capture/torch_private/fake_tensors.py", "                return self.device_of(first)\n",
           "                return torch.device('meta')\n", MODES),
    Mutant("capture/torch_private/fake_tensors.py", "return self.made(first, self.device_of(first))", "return first", MODES),
    Mutant("capture/torch_private/fake_tensors.py", "                _become(tensor, kind, attributes)", "                pass", QUESTIONS),
    Mutant("capture/torch_private/fake_tensors.py", "        tensor.__class__ = torch.Tensor\n", "", QUESTIONS),
    Mutant("capture/recording/questions.py", "        if value is None:\n            raise", "        if False:\n            raise", QUESTIONS),
    Mutant("capture/recording/gradients.py", "torch.set_grad_enabled(current not in self._recorder.without_grad)",
           "torch.no_grad()", QUESTIONS),
    Mutant("capture/diagnosis.py", "    if failed.reason is Reason.GRADIENTS:", "    if False:", "tests/capture/test_gradients.py"),
    Mutant("irx/shapes/agreement.py", "        return gap.evaluate(sizes) != 0", "        return False", AGREEMENT),
    Mutant("irx/shapes/agreement.py", "    if len(one) != len(other) or any(", "    if False and any(", AGREEMENT),
    Mutant("irx/shapes/linear.py", "    check_equal(call, (depth,), (depth_of_other,)", "    check_equal(call, (depth,), (depth,)", AGREEMENT),
    Mutant("lower/loop.py", "len(known) != len(dims) or is_unlike:", "len(known) != len(dims):", "tests/lower/test_types_agree.py"),
    Mutant("optimize/driver.py", "            elif rewrite.moves_rounding and", "            elif False and", "tests/optimize/test_rewrites.py"),
    Mutant("base/size_sets.py", "product * bound", "product", "tests/base/test_size_sets.py"),
    Mutant("base/size_sets.py", "self.is_defined = self.is_defined & (args[1] != 0)", "pass", "tests/base/test_size_sets.py"),
    Mutant("base/size_conditions.py", "sizes[self.name] in self.sizes", "True", "tests/base/test_size_conditions.py"),
    Mutant("base/size_conditions.py", "        if not condition.holds(sizes):", "        if False:", "tests/capture/test_conditions.py"),
    Mutant("capture/shapes/size_facts.py", "None if both is None else True if", "True if both is None or", "tests/capture/test_conditions.py"),
    Mutant("capture/shapes/conditions.py", "found[name].append(remainder)", "pass", "tests/capture/shapes/test_conditions.py"),
    Mutant("capture/shapes/conditions.py", "first = remainders[gaps.index(max(gaps))]", "first = remainders[0]", "tests/capture/shapes/test_conditions.py"),
    Mutant("base/dims.py", "return reduced if op == \"floordiv\" else times * reduced + left", "return reduced if op == \"floordiv\" else times * reduced", "tests/base/test_dims.py"),
    Mutant("base/packages.py", "if sys.modules.get(name) is None and importlib.util.find_spec(name) is None:", "if False:", "tests/cli/test_without_torch.py"),
    Mutant("capture/shapes/size_facts.py", "self.narrow(name, sizes)", "pass", "tests/capture/test_conditions.py"),
    Mutant("capture/shapes/shape_env.py", "self.suppose(relation if holds else relation.negated())", "pass", "tests/capture/test_conditions.py"),
    Mutant("capture/shapes/conditions.py", "hints[name] % modulus for name", "0 for name", "tests/capture/shapes/test_conditions.py"),
    Mutant("capture/recording/meta_cache.py", "self._shared[facts, key]", "self._shared[frozenset(), key]", "tests/capture/test_conditions.py"),
    Mutant("capture/at_one.py", " and [*sides[0].terms.values()] == [1]", "", STEPS),
    Mutant("capture/shapes/shape_env.py", 'needed = Relation("or", (past, needed))', "pass", STEPS),
    Mutant("capture/shapes/size_facts.py", "gap.symbols() < names:", "False:", STEPS),
    Mutant("capture/shapes/shape_env.py", "and asked_by_user() and not self._is_either_way(relation):", "and asked_by_user():", "tests/model_patches/test_single_tokens.py"),
    Mutant("capture/shapes/shape_env.py", "not recorder.keeps_both() or self._is_either_way(relation)", "not recorder.keeps_both()", "tests/model_patches/test_single_tokens.py"),
    Mutant("capture/shapes/size_facts.py", "low + more <= 0 <= high + more", "low + more <= 0", "tests/capture/shapes/test_size_facts.py"),
    Mutant("capture/shapes/size_facts.py", "return sizes_where(relation, sets, self.hints, beside) or sizes_where", "return sizes_where", "tests/capture/shapes/test_size_facts.py"),
    Mutant("capture/shapes/size_windows.py", "(input.shape[axis] - size) // step + 1", "input.shape[axis] // step", "tests/capture/shapes/test_size_windows.py"),
    Mutant("model_patches/transformers/delta_rules.py", "(so_far[..., -1:, :] - so_far).exp()", "so_far.exp()", "tests/model_patches/test_delta_rules.py"),
    Mutant("model_patches/transformers/attention_masks.py", "either_way(query.shape[2]) if is_alike", "either_way() if is_alike", "tests/model_patches/test_single_tokens.py"),
    Mutant("exporting/build.py", "        if not decides_by_sizes(captured.graph):", "        if True:", "tests/capture/test_untranslated_branches.py"),
    Mutant("capture/at_one.py", "        if self.done.attempt.untranslated is not None:", "        if False:", "tests/capture/test_untranslated_branches.py"),
    Mutant("capture/diagnosis.py", "    if reason is None:", "    if True:", "tests/capture/test_untranslated_branches.py"),
    Mutant("capture/at_one.py", "            drop_frames(other.error)\n", "            pass\n", LEAKS),
    Mutant("capture/at_one.py", "{} if every in self.tried else {every: guard}", "{}", AT_ONE),
    Mutant("capture/at_one.py", "                if names | more not in self.tried:\n", "                if False:\n", AT_ONE),
    Mutant("capture/at_one.py", "equal <= general.guards.keys() and all(", "all(", AT_ONE),
    Mutant("capture/at_one.py", "        return self.run(replace(attempt, first_unknown=self.done.shape_env.next_unknown))", "        return outcome", AT_ONE),
    Mutant("capture/recording/same_programs.py", "aten.pad.default: _pads_nothing,", "", AT_ONE),
    Mutant("capture/recording/same_programs.py", "    aten.slice.Tensor: _is_whole_slice,\n", "", AT_ONE),
    Mutant("capture/recording/same_programs.py", "self._drawn if draws else 0", "0", AT_ONE),
    Mutant("capture/recording/joining.py", "if left == right or (self._at and", "if left == right or (False and", AT_ONE),
    Mutant("capture/shapes/shape_env.py", "            left = relation.at(self.decides_at)\n", "            left: Relation | bool = relation\n", AT_ONE),
    Mutant("capture/strategies/fake.py", "    if sizes == list(tensor.shape):", "    if all(type(size) is int for size in sizes):", AT_ONE),
    Mutant("capture/recording/branches.py", "if self._runs_left < depth - given + 1:", "if False:", "tests/capture/test_conditions.py"),
    Mutant("capture/recording/choices.py", "choice = Choice(bool(env.hint(test)))", "choice = Choice(True)", "tests/capture/test_conditions.py"),
    Mutant("capture/diagnosis.py", "        return Failed(done.attempt, one_way)", "        pass", "tests/capture/test_conditions.py"),
    Mutant("capture/shapes/certain.py", "most * found[1]", "most", "tests/capture/shapes/test_certain.py"),
    Mutant("capture/overloads/unbacked_scalars.py", '    if node.meta["val"].dtype not in _INTEGERS + _FLOATS:', "    if False:", "tests/capture/test_conditions.py"),
    Mutant("capture/shapes/size_indices.py", "for axis, place in reversed(places):", "for axis, place in places:", "tests/capture/test_conditions.py"),
    Mutant("capture/python/file_names.py", "range(-((start - stop) // step))", "range((stop - start) // step)", "tests/capture/test_conditions.py"),
    Mutant("verify/sizes.py", "borders = itertools.islice(_borders", "borders = itertools.islice([] and _borders", "tests/verify/test_verify_parts.py"),
    Mutant("capture/shapes/equalities.py", "return 0 if before in self.zeros else before", "return before", "tests/capture/shapes/test_equalities.py"),
    Mutant("base/size_sets.py", "self.scale = math.lcm(self.scale, period * divisor)", "pass", "tests/base/test_size_sets.py"),
    Mutant("capture/overloads/unbacked_scalars.py", "left * one + right * two", "left * one + two", "tests/capture/test_conditions.py"),
    Mutant("capture/recording/joining.py", "    if args[0] != args[1] or", "    if", "tests/capture/test_conditions.py"),
    Mutant("optimize/rounding.py", "if node.op_type in ELEMENTWISE or node.op_type in MOVES:", "if False:", "tests/optimize/test_rewrites.py"),
    Mutant("optimize/fold_constants.py", "or self._is_guess(node)", "or False", "tests/optimize/test_passes.py"),
    Mutant("exporting/build.py", "functions=EAGER_FUNCTIONS", "functions=None", "tests/exporting/test_eager_functions.py"),
    Mutant("capture/overloads/registry.py", "            if name in known and not _is_of", "            if False and not _is_of", REGISTRY),
    Mutant("capture/overloads/registry.py", "argument.default_value if argument.has_default_value() else None", "None", REGISTRY),
    Mutant("capture/recording/op_traits.py", "(handler(Kind.WRITE, func) or functionalize.mutate)", "functionalize.mutate",
           REGISTRY),
    # lowering and files
    Mutant("irx/data_file.py", "    stream.seek(offset)", "    pass", "tests/irx/test_data_file.py"),
    Mutant("irx/data_file.py", "// ALIGNMENT_BYTES) * ALIGNMENT_BYTES", "// 1)", "tests/irx/test_data_file.py"),
    Mutant("irx/data_file.py", "            self._failed = True", "            pass", "tests/irx/test_data_file.py"),
    Mutant("irx/data_file.py", "if length < BESIDE_BYTES or", "if True or", "tests/irx/test_data_file.py"),
    Mutant("irx/data_file.py", "            buffer[end:start] = 0", "            pass", "tests/irx/test_data_file.py"),
    Mutant("irx/pieces.py", "    if len(made) != piece.length:", "    if False:", "tests/irx/test_data_file.py"),
    Mutant("base/source.py", "return _installed(self.file) or", "return", "tests/base/test_errors.py"),
    Mutant("lower/weights.py", "    _copy(tensor.t().contiguous().t(), memory)", "    _copy(tensor.flip(0), memory)",
           "tests/irx/test_data_file.py"),
    Mutant("irx/model_files.py", "        replace(staged.data, final)\n        replace(staged.graph, target)",
           "        replace(staged.graph, target)\n        replace(staged.data, final)", "tests/faults"),
    Mutant("irx/io.py", 'if getattr(value.const_value, "lacks_data", False):', "if False:",
           "tests/capture/test_no_compute.py tests/exporting/test_export.py"),
    # optimiser
    # files of other tools
    Mutant("file_optimizer/pipeline.py", "            if comparison is not None and comparison.ok is False:\n                self._blame", "            if False:\n                self._blame",
           f"{FILES}/test_guilt.py"),
    Mutant("file_optimizer/stages.py", "good, bad = (good, middle) if is_wrong(Limit(middle)) else (middle, bad)",
           "good, bad = middle, bad", f"{FILES}/test_guilt.py"),
    Mutant("file_optimizer/opset_up.py", "    if axis >= rank - 1:\n        return", "    return", f"{FILES}/test_opset.py::test_forms"),
    Mutant("file_optimizer/opset_down.py", "        edit.set(\"axes\", axes)", "        edit.set(\"axes\", axes[:1])",
           f"{FILES}/test_opset.py"),
    Mutant("file_optimizer/dynamic.py", "            stride, extent, dim = stride * times, sizes[name], Dim.symbol(name)",
           "            pass", f"{FILES}/test_sizes.py"),
    Mutant("file_optimizer/sizes.py", "        if fault.node not in old:", "        if False:", f"{FILES}/test_sizes.py"),
    Mutant("irx/inference.py", "            if node.domain in STANDARD and not value.is_graph_output():", "            if False:",
           f"{FILES}/test_files.py"),
    Mutant("optimize/merge_weights.py", "same = first.setdefault(_digest(value.const_value), value)",
           "same = first.setdefault(b\"\", value)", f"{FILES}/test_files.py"),
    Mutant("optimize/fold_branches.py", "\"then_branch\" if bool(", "\"else_branch\" if bool(", f"{FILES}/test_files.py"),
    Mutant("optimize/rewrites/drop_zero_state.py", "return fill is None or not np.asarray(fill.numpy()).any()", "return True",
           f"{FILES}/test_files.py"),
    Mutant("optimize/rewrites/fold_conv_affine.py", "        if int(np.prod(given)) != 1 and given not in wanted:", "        if False:",
           f"{FILES}/test_files.py"),
    Mutant("optimize/merge_equal.py", "key = (tensor.dtype, tuple(tensor.shape), tensor.tobytes())", "key = tensor.tobytes()",
           "tests/optimize"),
    Mutant("optimize/merge_equal.py", "for node in list(graph):\n        key = _key(node)",
           "for node in list(graph):\n        key = node.op_type", "tests/optimize"),
    Mutant("optimize/rewrites/fold_batch_norm.py", "variance.astype(np.float64) + epsilon", "variance.astype(np.float64)",
           "tests/optimize/test_rewrites.py"),
    Mutant("optimize/rewrites/fold_batch_norm.py", "        if not sole_use(weight):", "        if False:",
           "tests/optimize/test_rewrites.py"),
    Mutant("optimize/weights.py", "        rows, factor = array.reshape(self.view)", "        rows, factor = array", "tests/irx/test_data_file.py"),
    # runner
    Mutant("runner/plan.py", "self.last_use.get(index) != step.index:", "False:", "tests/runner/test_planner.py"),
    Mutant("runner/plan.py", "last_use >= step.index for last_use, other in", "False for last_use, other in",
           "tests/runner/test_planner.py"),
    Mutant("runner/static_shapes.py", "and not self.fits_somehow(step, operands)", "", "tests/runner/test_static_bodies.py"),
    Mutant("runner/static_bodies.py", "is_counted and starts,", "True,", "tests/runner/test_static_bodies.py"),
    Mutant("runner/imports.py", "    if version < 1:", "    if False:", INVALID),
    Mutant("runner/imports.py", "    if version > onnx.IR_VERSION:", "    if False:", INVALID),
    Mutant("runner/imports.py", "if newest is not None and version > newest:", "if False:", INVALID),
    Mutant("runner/imports.py", "        if domain not in imported:", "        if False:", INVALID),
    Mutant("runner/imports.py", "            if attribute.type == GRAPH:", "            if False:", INVALID),
    Mutant("runner/imports.py", "        TopologicalSorter(calls).prepare()", "        pass", INVALID),
    Mutant("runner/imports.py", "        if domain:\n            result[key]", "        if True:\n            result[key]", INVALID),
    Mutant("runner/build.py", "        if version is None:\n            raise", "        if False:\n            raise", INVALID),
    Mutant("runner/build.py", "if signature.is_deprecated and (", "if False and (", INVALID),
    Mutant("runner/build.py", "        if len(set(names)) < len(names):", "        if False:", INVALID),
    Mutant("runner/build.py", "            if name not in self.slot_of:\n", "            if False:\n", INVALID),
    Mutant("runner/build.py", "        if not same_type(slot.type_name, given):", "        if False:", INVALID),
    Mutant("runner/build.py", "self.find(name) if own is None or name in own else None", "self.find(name)", INVALID),
    Mutant("runner/build.py", "        if signature is not None and -1 in inputs:", "        if False:", INVALID),
    Mutant("runner/attributes.py", "            if of_caller is None:", "            if False:", INVALID),
    Mutant("runner/attributes.py", "    elif values - {_FIELDS.get(attribute.type)}:", "    elif False:", INVALID),
    Mutant("runner/attributes.py", "    elif attribute.type in _MESSAGES and not values:", "    elif False:", INVALID),
    Mutant("runner/schemas.py", "    if value not in allowed:", "    if False:", INVALID),
    Mutant("runner/schemas.py", "    if place < signature.min_outputs:", "    if False:", INVALID),
    Mutant("runner/value_types.py", "        if type_ not in parameter.types:", "        if False:", INVALID),
    Mutant("runner/value_types.py", "        if given[first] != type_:", "        if False:", INVALID),
    Mutant("runner/value_types.py", "            if first and first not in signature.outputs[0].types:", "            if False:", INVALID),
    Mutant("runner/value_types.py", "    if zero_point and asked and zero_point != asked:", "    if False:", INVALID),
    Mutant("runner/value_types.py", "    if held and given[1] and held != given[1]:", "    if False:", INVALID),
    Mutant("runner/body_types.py", "            if len(graph.input) != len(given):", "            if False:", INVALID),
    Mutant("runner/body_types.py", "            if n_found != n_outputs:", "            if False:", INVALID),
    Mutant("runner/body_types.py", "        if is_outside(name):", "        if False:", INVALID),
    Mutant("runner/body_types.py", "        if not same_type(first, second):", "        if False:", INVALID),
    Mutant("runner/body_types.py", "        if not same_type(old, new):", "        if False:", INVALID),
    Mutant("runner/declarations.py", "    elif slot.type_name != is_declared:", "    elif False:", INVALID),
    Mutant("runner/declarations.py", "    if not is_same:", "    if False:", INVALID),
    Mutant("runner/typing_protos.py", "    if code == ir.DataType.UNDEFINED:", "    if False:", INVALID),
    Mutant("runner/weights.py", "    if len(filled) > 1:", "    if False:", INVALID),
    Mutant("runner/weights.py", "        if 0 not in shape:", "        if False:", INVALID),
    Mutant("runner/weights.py", "    if (np.diff(indices) <= 0).any():", "    if False:", INVALID),
    Mutant("runner/weights.py", "    if values.ndim != 1:", "    if False:", INVALID),
    Mutant("runner/weights.py", "        if filled:\n", "        if False:\n", INVALID),
    Mutant("runner/weights.py", "    if not entries.get(\"location\"):", "    if False:", INVALID),
    Mutant("runner/kernels/shape.py", "        if len(parts) != n_outputs:", "        if False:", INVALID),
    Mutant("runner/kernels/norm.py", "        if n_outputs > 1:", "        if False:", "tests/runner/test_hostile_values.py"),
    Mutant("runner/kernels/contrib.py", "y *= inverse\n    y *= _row(gamma, x, \"gamma\")\n    if beta", "y *= _row(gamma, x, \"gamma\")\n    if beta", CONTRIB),
    Mutant("runner/kernels/contrib_attention.py", "ahead <= -rules.window", "ahead < -rules.window", CONTRIB),
    Mutant("runner/kernels/contrib_attention.py", "np.maximum(lengths - new, 0)", "lengths - new", CONTRIB),
    Mutant("irx/shapes/contrib.py", "apart[2] + past[2]", "apart[2]", "tests/irx/test_contrib_shapes.py"),
    # files of strangers
    Mutant("base/folder_files.py", "    if real != home and home not in real.parents and", "    if False and", STRANGERS),
    Mutant("base/folder_files.py", "real.parent == home.parent.parent / \"blobs\"", "\"blobs\" in real.parts",
           "tests/base/test_folder_files.py"),
    Mutant("manifest/source.py", "    if place is None:", "    if False:", "tests/generation/test_manifest.py"),
    Mutant("manifest/source.py", "    if kind != \"hf\" or not name:", "    if not name:", "tests/cli/test_cli_generate.py"),
    Mutant("sources/hf/config.py", "                pending.append((depth + 1,", "                _ = ((depth + 1,", STRANGERS),
    Mutant("sources/hf/guard.py", "constants.HF_HUB_OFFLINE, hub_kernels.get_kernel = True, _no_kernel",
           "constants.HF_HUB_OFFLINE = True", STRANGERS),
    Mutant("exporting/folder.py", "not isinstance(limit, Dim)", "True", "tests/decoding/test_folders.py"),
    Mutant("exporting/folder.py", "if 0 not in (state.shape or ()):", "if True:", "tests/decoding/test_folders.py"),
    Mutant("decoding/parts.py", "            if not isinstance(parts, TextOnly):\n                return [replace(part, note=note) for part in parts] if note else parts",
           "            if not isinstance(parts, TextOnly):\n                return parts", RECIPES),
    Mutant("decoding/recipes/recipe.py", "partial(make, one_token=True), partial(make", "partial(make), partial(make", RECIPES),
    Mutant("sources/foreign_errors.py", "    except UserError:\n        raise\n", "", "tests/sources/test_samples.py"),
    # verification
    Mutant("base/events.py", "        elif path is None:", "        elif False:", "tests/report/test_events.py"),
    Mutant("base/events.py", "            while held and _start_ns(ended[-1][held - 1]) >= start_ns:", "            while False:",
           "tests/report/test_events.py"),
    Mutant("lower/loop.py", "            self._log.extend((node, start_ns,", "            self._log.extend((node, 0,",
           "tests/report"),
    Mutant("verify/judge.py", "ERROR_RATIO = 16.0", "ERROR_RATIO = 1e9", CLASSES),
    Mutant("verify/judge.py", "_GAP = 32.0", "_GAP = 1e60", CLASSES),
    Mutant("verify/judge.py", "_SMALL = 1 / 16", "_SMALL = 0.0", CLASSES),
    Mutant("verify/judge.py", "_root_mean_square(gap) <= SPREAD_RATIO", "0.0 <= SPREAD_RATIO", "tests/verify/test_verify_parts.py"),
    Mutant("verify/judge.py", "count <= MOVEMENT_RATIO * most + 1 and unexplained", "unexplained", CLASSES),
    Mutant("verify/judge.py", "and unexplained <= UNEXPLAINED * count", "", CLASSES),
    Mutant("verify/judge.py", "    if float(own.max(initial=0.0)) > MOST_BY_FLOAT64", "    if False and float(own.max(initial=0.0)) > MOST_BY_FLOAT64", CLASSES),
    Mutant("verify/judge.py", 'frozenset(["onnxruntime"])', "frozenset()", CLASSES),
    Mutant("verify/rounding.py", "if name in _CHOICES and", "if False and", CLASSES),
    Mutant("verify/locating/side_by_side.py", "and not self.aten.is_other_choice(name, got)", "", CHOICES),
    Mutant("verify/locating/aten_values.py", "if node.target in UNWRITTEN:", "if False:", CHOICES),
    Mutant("verify/locating/choices.py", "return not is_twice and bool(", "return bool(", CHOICES),
    Mutant("verify/locating/locate.py", "self._reordered(side) or ", "", CHOICES),
    Mutant("verify/rounding.py", "if name in _NEAR_HALF:", "if False:", CLASSES),
    Mutant("verify/judge.py", "STAGES = ((1, 0.0), ", "STAGES = (", "tests/verify/test_verify_judge.py"),
    Mutant("verify/samples.py", "for found in empty_sizes(sizes, conditions):", "for found in []:", CLASSES),
    Mutant("verify/compare.py", "if sample.is_empty:  # it says so", "if False:  # it says so", CLASSES),
    Mutant("verify/judge.py", "worst.off = found.off", "worst.off = 0", "tests/verify/test_verify_parts.py"),
    Mutant("verify/weights.py", "torch.equal(turned[start : start + _COLUMNS]", "start or torch.equal(turned[start : start + _COLUMNS]", "tests/verify/test_verify_parts.py"),
    Mutant("verify/locating/blame.py", "or any(side.file.may_draw(index) for index in nodes)", "", CHOICES),
    Mutant("verify/samples.py", "if size and text not in sizes and", "if False and", "tests/verify/test_verify_parts.py"),
    Mutant(
        "base/dim_text.py",
        "integer == value and -MOST < integer",
        "integer == value and 0 <= integer",
        "tests/base/test_size_conditions.py",
    ),
    Mutant("verify/eager.py", "data_ptr() in kept else", "data_ptr() in () else", CLASSES),
    Mutant("verify/compare.py", "if not needed and (", "if (", CLASSES),
    Mutant("verify/compare.py", "    case.refuses_sizes |= bool(sample.sizes) and not sample.is_empty\n", "", CLASSES),
    Mutant("verify/eager.py", "except NotImplementedError as cause:", "except ZeroDivisionError as cause:", CLASSES),
    Mutant("verify/weights.py", "        if problem:\n", "        if False:\n", CLASSES),
    Mutant("verify/interface.py", "if stated is not None and stated != size:", "if False:", CLASSES),
    Mutant("verify/compare.py", "for lost in vanished(", "for lost in [] and vanished(", CLASSES),
    Mutant("verify/values.py", "if tensor.dtype == torch.bool or _is_mask(tensor):", "if tensor.dtype == torch.bool:", CLASSES),
    Mutant("verify/noise.py", "*_: (table.shape[0], places),\n    aten.index_select", "*_: (0, None),\n    aten.index_select", CLASSES),
    Mutant("verify/sizes.py", "yield {**small, name: 1}", "yield small", "tests/verify/test_verify_parts.py"),
    Mutant("lower/loop.py", "            properties[baked.METADATA_KEY] = constants", "            pass", CLASSES),
    # what stands in a file's or a model's names
    Mutant("verify/engines.py", "            raise UserError(\"E602\",", "            UserError(\"E602\",", "tests/verify/test_verify_engines.py"),
    Mutant("verify/compare.py", "        verdict.note_disagreements()\n", "", "tests/verify/test_verify_engines.py"),
    Mutant("verify/verdict.py", "            if right:\n", "            if True:\n", "tests/verify/test_verify_engines.py"),
    Mutant("verify/engines.py", "        if name not in ENGINES:", "        if False:", "tests/verify/test_verify_engines.py"),
    Mutant("diff/matching.py", "    (_content_of_weights, Takes.AS_MANY, False),\n", "", "tests/diff"),
    Mutant("diff/matching.py", "    _take_in_order(left, pairs)\n    return", "    return", "tests/diff"),
    Mutant("diff/matching.py", "        if then_neighbours:", "        if False:", "tests/diff"),
    Mutant("diff/nodes.py", "        theirs.reverse()", "        pass", "tests/diff"),
    Mutant("diff/signature.py", "if value is not None and not (name in usual and usual[name] == value)", "if value is not None", "tests/diff"),
    Mutant("diff/nodes.py", "    return token is not None and token == other.tokens.get(same)", "    return True", "tests/diff"),
    Mutant("diff/nodes.py", "            _compare_nested(one, other, node, pairs[node], found)", "            pass", "tests/diff"),
    Mutant("diff/weights.py", "    for pair, node in used.items():", "    for pair, node in {}.items():", "tests/diff"),
    Mutant("diff/compare.py", "        compare_parts(one, other, first, second, found.nodes)\n", "", "tests/diff"),
    Mutant("cli/diff.py", "    if not found.equal:", "    if False:", "tests/cli/test_cli_diff.py"),
    Mutant("cli/diff_numbers.py", "    found = sizes_near(wanted, conditions, unlike={})", "    found = wanted", "tests/cli/test_cli_diff.py"),
    Mutant("cli/show_parts.py", "    return f\"uniform: {tensor.name}\" if is_uniform else digest_of(data)", "    return digest_of(data)",
           "tests/cli/test_cli_show_parts.py"),
    Mutant("cli/show_parts.py", " and weight.dtype not in _NO_PARAMETERS", "", "tests/cli/test_cli_show_parts.py"),
    Mutant("cli/show_parts.py", "    return by_name or (weight.modules[0]", "    return (weight.modules[0]", "tests/cli/test_cli_show_parts.py"),
    Mutant("cli/verify.py", "    check_apart([html], [model, *input_files(source)])", "    pass", "tests/cli/test_cli_show_parts.py"),
    Mutant("report/document.py", 'for letter in "<>&"', 'for letter in "&"', "tests/report/test_page_hostile.py"),
    Mutant("report/console.py", "segment if segment.control else segment._replace(text=plain(segment.text))", "segment",
           "tests/report/test_page_hostile.py"),
    Mutant("base/dim_text.py", "        if degree > MOST_DEGREE:", "        if False:", "tests/base/test_dim_text.py"),
    Mutant("verify/samples.py", "others[name] for name", "sizes[name] for name", "tests/verify/test_verify_parts.py"),
    Mutant("irx/arithmetic.py", 'size = op.node("Sub", size, op.const(dim.constant, INT64))', "pass", "tests/irx/test_emit_parts.py"),
    Mutant("lower/layers.py", "islice(_NUMBER.finditer(path), DEEPEST)", "_NUMBER.finditer(path)",
           "tests/lower/test_lower_parts.py"),
    Mutant("verify/samples.py", "<= set(sizes) and size_of(dim, sizes) == size", "<= set(sizes)", "tests/base/test_dim_text.py"),
    Mutant("verify/noise.py", "    if not asked:\n        return asked\n", "    return asked\n", "tests/verify/test_verify_random.py"),
    Mutant("verify/compare.py", "    expected, draws = found\n", "    expected, draws = found[0], found[1] if case.random else []\n",
           "tests/verify/test_verify_random.py"),
    Mutant("capture/recording/recorder.py", "        shape_env.recorder = weakref.ref(self)", "        shape_env.recorder = lambda: self",
           LEAKS),
    Mutant("base/tracebacks.py", "                    frame.clear()", "                    pass", LEAKS),
    Mutant("base/bounded.py", "            self.clear()", "            pass", "tests/test_kept.py"),
    Mutant("irx/values.py", "        value.const_value = None", "        pass", LEAKS),
    Mutant("capture/python/module_calls.py", '    put_name(_THREAD, "calls", calls)', "    _THREAD.calls = calls", LEAKS),
    Mutant("irx/io.py", "    if total_bytes > PROTOBUF_BYTES:", "    if False:", "tests/irx/test_data_file.py"),
    Mutant("capture/torch_private/module_paths.py", "        stack.append(self.names.get(id(module)) or (stack[-1] if stack else \"\"))",
           "        stack.append(\"\")", "tests/capture tests/lower/test_repeated_layers.py"),
    Mutant("base/recursion.py", "            sys.setrecursionlimit(limit + FRAMES)", "            pass", "tests/test_growth.py"),
    Mutant("base/recursion.py", '            if sys.getrecursionlimit() == _LIMITS["raised"]:', "            if True:",
           "tests/test_growth.py"),
    Mutant("base/dims.py", "    key = (op, args, tuple(map(_is_real, args)))", "    key = (op, args)", "tests/test_growth.py"),
    Mutant("irx/edit.py", "    if len(node.inputs) <= FEW_INPUTS:", "    if True:", "tests/test_growth.py"),
    Mutant("irx/edit.py", "            before._remove_usage(node, index)", "            pass", "tests/test_growth.py"),
    Mutant("lower/preflight.py", "MAX_DEPTH = 30", "MAX_DEPTH = 40", "tests/test_growth.py"),
    Mutant("runner/arena.py", "        looks += seen", "        pass", "tests/test_growth.py"),
    # what stands on the disk at each step
    Mutant("base/renaming.py", "            if _is_same(source, target):", "            if False:", "tests/base/test_other_systems.py"),
    Mutant("capture/python/devices.py", "if len(homes) != 1 or not places or homes & places", "if homes", "tests/capture/test_devices.py"),
    Mutant("lower/weights.py", "if tensor.is_contiguous() and not is_here:", "if False:", "tests/capture/test_devices.py"),
    Mutant("base/folder_commit.py", "    return pending if pending.is_file() else folder / name", "    return folder / name",
           "tests/faults"),
    Mutant("base/folder_commit.py", "named = {**_read(target, (_OBSOLETE,)), **earlier}", "named = earlier", "tests/faults"),
    Mutant("base/staging.py", "        return lock.is_open and lock.take()", "        return True", "tests/exporting/test_targets.py"),
    Mutant("base/targets.py", "        if is_same_file(given, text):", "        if given == text:",
           "tests/exporting/test_targets.py tests/cli/test_cli_outputs.py"),
    Mutant("irx/model_files.py", "if is_new and os.path.exists(staged.graph):", "if False:", "tests/faults"),
    Mutant("decoding/grid_positions.py", " - advanced[ended[:, :1]]", "", POSITIONS),
    Mutant("decoding/grid_positions.py", ">= (starts + sizes)", "> (starts + sizes)", POSITIONS),
    Mutant("decoding/grid_positions.py", "sides.amax(-1)", "sides[:, 0]", POSITIONS),
    Mutant("decoding/grid_positions.py", "        if places is None or not torch.equal(places, own[:, 0]):", "        if places is None:", POSITIONS),
    Mutant("decoding/recipes/multimodal.py", "rope_index_of(model) is not None and grid_layout(model, form.kwargs) is None", "False", f"{SIZES}::test_sizes_are_the_samples_where_positions_follow_from_no_grid"),
    Mutant("decoding/recipes/multimodal.py", "len(form.kwargs[PIXELS]) == patches == features", "patches == features", f"{SIZES}::test_sizes_are_free_where_a_grid_counts_patches_and_features"),
    Mutant("decoding/recipes/multimodal.py", " == patches == features * merge**2", " == patches", f"{SIZES}::test_sizes_are_free_where_a_grid_counts_patches_and_features"),
    Mutant("generation/grids.py", "(size[:-2] != 1).any() or ", "", WRONG_SIZES),
    Mutant("generation/grids.py", "(sides < 1).any() or ", "", WRONG_SIZES),
    Mutant("generation/grids.py", " or (sides % grid.merge_size).any()", "", WRONG_SIZES),
    Mutant("generation/grids.py", "len(value) != counts.sum()", "False", WRONG_SIZES),
    Mutant("generation/grids.py", " or not len(sizes)", "", WRONG_SIZES),
    Mutant("generation/grids.py", "        check_feeds(graph, feeds)", "        pass", WRONG_SIZES),
    Mutant("generation/grids.py", "    if runs != list(counts):", "    if False:", WRONG_SIZES),
    Mutant("generation/media.py", "np.tile(model.manifest.baked[grid.input], (len(calls), 1))", "np.array(model.manifest.baked[grid.input])", KEPT_SIZE),
    Mutant("exporting/contract.py", "medium.grid is None or medium.grid.input in taken", "True",
           f"{SIZES}::test_a_grid_that_no_graph_takes_says_no_sizes"),
    Mutant("model_patches/transformers/frames.py", "(frames - 1).clamp(max=1) * size", "size", "tests/model_patches/test_frames.py"),
    Mutant("model_patches/transformers/frames.py", ".clamp(min=1)", "", "tests/model_patches/test_frames.py"),
    Mutant("decoding/reference_generate.py", " if is_taken and kinds.any() else {}", " if False else {}",
           f"{SIZES}::test_what_generation_is_compared_with_knows_where_images_are"),
    Mutant("manifest/form.py", "medium.grid.input not in _taken_by(", "False and _taken_by(", "tests/generation/test_manifest.py"),
    Mutant("generation/engine.py", "np.full(shape, state.initial, ", "np.zeros(shape, ", "tests/generation/test_obeys.py"),
    Mutant("generation/engine.py", "            if found != expected:", "            if not found:", "tests/generation/test_obeys.py"),
    Mutant("base/typed_json.py", "        if key not in hints:", "        if False:", "tests/generation/test_manifest.py"),
    Mutant("manifest/form.py", "            if state.name not in made:", "            if False:", "tests/generation/test_manifest.py"),
    Mutant("manifest/form.py", "    if found == entry:", "    if found:", "tests/faults"),
    Mutant("cli/many.py", ' and row["digest"] == digest_of_model(job.output)', "", "tests/cli/test_cli_outputs.py"),
    Mutant("cli/verdict.py", "        if is_reported:", "        if False:", "tests/cli/test_cli_export.py"),
    Mutant("base/errors.py", 'for name in ("where", "module_path", "node", ', 'for name in ("where", ', "tests/base/test_errors.py"),
    Mutant("runner/kernels/rnn.py", "next(values, default)", "default", "tests/runner/test_kernel_cases.py"),
    # locating
    Mutant("verify/locating/locate.py", "if side.is_deviating(each.name)), None)", "if True), None)", CHOICES),
    Mutant("verify/compare.py", "        verdict.unverified = too_large(proto)", "        verdict.unverified = ''", MEMORY),
    Mutant("verify/compare.py", "            if not is_exhausted(cause):\n                raise\n", "            raise\n", MEMORY),
    Mutant("verify/compare.py", "        if is_exhausted(cause):\n            verdict.ran_out(f\"{sample", "        if False:\n            verdict.ran_out(f\"{sample", MEMORY),
    Mutant("verify/verdict.py", "        self.unverified = self.unverified or text", "        pass", MEMORY),
    Mutant("verify/interface.py", "            yield weights_beside(os.fspath(path), folder)", "            yield os.fspath(path)", MEMORY),
    Mutant("verify/engines.py", "GraphOptimizationLevel.ORT_ENABLE_EXTENDED", "GraphOptimizationLevel.ORT_ENABLE_ALL", MEMORY),
    Mutant("runner/prepared.py", "        if held is None or any(", "        if True or any(", MEMORY),
    Mutant("runner/prepared.py", "if held is None or any(one is not other", "if held is None or any(False", "tests/runner/test_runner_session.py"),
    Mutant("verify/locating/locate.py", "        if suspect is None:\n", "        if True:\n", FOREIGN),
    Mutant("verify/locating/locate.py", "        verdict = verdict or blame.Blame(", "        verdict = blame.Blame(", FOREIGN),
    Mutant("verify/locating/sketches.py", "nearest = int(distances.argmin())", "nearest = 0", FOREIGN),
    Mutant("verify/locating/locate.py", "difference(as_array(want), as_array(got), partial", "difference(as_array(got), as_array(want), partial", LOCATE),
    Mutant("verify/locating/locate.py", "        text = problem()\n", "        text = 'wrong'\n", LOCATE),
    Mutant("verify/locating/locate.py", "*(state if self.settings.lifts_state else ())", "", LOCATE),
    Mutant("verify/locating/blame.py", "    if not wrong or not right or any(", "    if True or any(", LOCATE),
    Mutant("verify/locating/blame.py", "    if is_wrong.of(plain):", "    if False:", LOCATE),
    Mutant("verify/locating/blame.py", "    if is_wrong.of(program.exported):", "    if False:", LOCATE),
    Mutant("verify/locating/blame.py", "        if isinstance(stage, pipelines.Pass):", "        if False:", LOCATE),
    Mutant("verify/locating/capture_fault.py", "value not in seen:", "True:", LOCATE),
    Mutant("verify/locating/side_by_side.py", "                if len(names) > 1:", "                if False:", LOCATE),
    Mutant("verify/locating/onnx_file.py", "                    node.output[place] = COMPUTED.format(name)", "                    pass", LOCATE),
    Mutant("verify/locating/store.py", "if self.held_bytes + array.nbytes <= self.budget_bytes or", "if False and", "tests/verify/test_verify_parts.py"),
    Mutant("base/errors.py", "        except Exception:  # a search that fails", "        except KeyError:  # a search that fails", LOCATE),
    Mutant("verify/testcase.py", "    if not is_stripped:", "    if True:", DEBUG),
    Mutant("verify/testcase.py", "drawn.astype(tensor.numpy().dtype)", "array.astype(tensor.numpy().dtype)", DEBUG),
    Mutant("verify/testcase.py", "    if target.exists() and (not target.is_dir() or any(target.iterdir())):", "    if False:", DEBUG),
    # options
    Mutant("exporting/options.py", "rung=capture, training=_is_training(training), ", "rung=capture, ", "tests/test_public_api.py"),
    Mutant("capture/diagnosis.py", "replace(start, strategy=\"export\", ", "replace(attempt, strategy=\"export\", ", "tests/capture/test_diagnosis.py"),
    Mutant("capture/diagnosis.py", "is_better and zero_one.", "is_better or zero_one.", "tests/capture/test_diagnosis.py"),
    Mutant("capture/diagnosis.py", "    if name in attempt.optional:\n        return None", "    return None", "tests/capture/test_diagnosis.py"),
    Mutant("capture/attempt.py", "axis: size.substitute({name: done.value})", "axis: size", "tests/capture/test_dynamic.py"),
    Mutant("exporting/build.py", "are_inputs = not options.export_params or", "are_inputs =", "tests/exporting/test_export.py"),
    Mutant("exporting/build.py", "own = {weight.name for", "own = {f'{weight.name}.' for", KEYWORDS),
    Mutant("exporting/options.py", "value not in nothing and", "False and", KEYWORDS),
    # targets
    Mutant("targets/fit.py", "            if old == D.DOUBLE:\n", "            if False:\n", "tests/targets/test_fit.py"),
    Mutant("targets/fit.py", "    if found is not None:\n        return found", "    if False:\n        return found", "tests/targets/test_fit.py"),
    Mutant("targets/fit.py", "    _read_instead(output, result, cast)\n", "    pass\n", "tests/targets/test_fit.py"),
    Mutant("targets/form.py", "if not self.release or numbers(since)", "if True or numbers(since)", "tests/targets/test_lint.py"),
    Mutant("targets/match.py", "if any(body.takes(opset, types) for body in bodies):", "if False:", "tests/targets/test_match.py"),
    Mutant("targets/match.py", "for narrow, wide in found.casts.items())", "for narrow, wide in ())", "tests/targets/test_match.py"),
    Mutant("targets/faults.py", "            fault.mend(node)\n", "            pass\n", "tests/targets/test_faults.py"),
    Mutant("targets/fit.py", "and not may_narrow", "and False", "tests/file_optimizer/test_target.py"),
    Mutant("verify/judge.py", "least_epsilon)\n        numbers", "0.0)\n        numbers", "tests/targets/test_fit.py"),
    Mutant("exporting/target.py", "if fitted.left and options.target is not None:", "if False:", "tests/targets/test_fit.py"),
    Mutant("capture/torch_private/dispatch.py", "            with self:\n                return value", "            if True:\n                return value", CONTROL_FLOW),
    Mutant("exporting/folder.py", "            check(stage)\n", "            pass\n", "tests/exporting/test_export.py"),
    # training
    Mutant("capture/torch_private/capture_modes.py", " else (_NO_BACKWARD,)", " else ()", "tests/capture/test_gradients.py"),
    Mutant("capture/torch_private/capture_modes.py", "is_named = (classes < 0).cumsum(-1) == 0", "is_named = classes >= 0", BACKWARD),
    Mutant("capture/strategies/fake.py", "        keep_gradients(tree)", "        pass", "tests/capture/test_state.py"),
    Mutant("capture/diagnosis.py", "failed.reason is Reason.GRADIENTS and attempt.gradients:", "False:", BACKWARD),
    Mutant("capture/overloads/factors.py", "A.mT if is_turned else A", "A", BACKWARD),
    Mutant("aten_map/matmul.py", "and _is_transposed(op, lhs)", "and False", BACKWARD),
    Mutant("aten_map/convolution_backward.py", "else step - 1", "else 0", BACKWARD),
    Mutant("aten_map/pooling_backward.py", "        if not count_include_pad:\n", "        if count_include_pad:\n", BACKWARD),
    Mutant("aten_map/resampling_backward.py", "0.5 if align_corners and not antialias else 0.0", "0.0", BACKWARD),
    Mutant("aten_map/distances_backward.py", "op.Where(op.Equal(length, zero), op.const(1, dtype), length)", "length", BACKWARD),
    Mutant("aten_map/grid_sampling_backward.py", "op.Where(is_odd, op.Neg(sign), sign)", "sign", BACKWARD),
    Mutant("aten_map/grid_sampling_backward.py", "slope = is_inside if slope is None", "slope = None if slope is None", BACKWARD),
    Mutant("aten_map/grid_sampling_backward.py", "slope if step < 1 else op.Neg(slope)", "slope", BACKWARD),
    Mutant("aten_map/convolution_backward.py", "phases[phase] = _phase(op, image, phase, stride)", "phases[phase] = image", BACKWARD),
    Mutant("training/history.py", "return known[-1] if known else None", "return None", "tests/training/test_errors.py"),
    Mutant("capture/python/inputs.py", "        _refuse_sparse(name, item.value)", "        pass", "tests/capture/test_modules.py"),
    Mutant("training/optimizers.py", "            if dampening:", "            if False:", OPTIMIZERS),
    Mutant("training/optimizers.py", 'parameter * as_factor(1 - rate * decay, parameter)', "parameter", OPTIMIZERS),
    Mutant("training/optimizers.py", "torch.maximum(state[\"max_exp_avg_sq\"], square)", "square", OPTIMIZERS),
    Mutant("training/optimizers.py", "size.clamp(min=1.0)", "size", OPTIMIZERS),
    Mutant("training/groups.py", "self.is_known and self.rule.is_by_element and", "self.is_known and", OPTIMIZERS),
    Mutant("aten_map/batch_norm.py", "op.const(momentum * factor, dtype)", "op.const(momentum, dtype)", "tests/training/test_verify.py"),
    Mutant("aten_map/batch_norm_backward.py", "op.const(-1 / max(count, 1), inner)", "op.const(-1 / (count + 1), inner)",
           "tests/ops/test_backward.py"),
    Mutant("training/groups.py", 'kept.get("step", bool(kept))', 'kept.get("step", 0)', OPTIMIZERS),
    Mutant("training/program.py", "step + is_finite.to(step.dtype)", "step + 1", OPTIMIZERS),
    Mutant("training/program.py", "gradient / tensors[LOSS_SCALE]", "gradient", OPTIMIZERS),
    Mutant("training/program.py", "part.training = mode and not (is_off and is_dropout)", "part.training = mode", FOLDERS),
    Mutant("training/randomness.py", "        self.calls += 1", "        pass", FOLDERS),
    Mutant("training/dropout_off.py", "    return grad_output", "    return op.Mul(grad_output, grad_output)", FOLDERS),
    Mutant("exporting/training_files.py", "tensor.nbytes != places[name].length", "True", FOLDERS),
    Mutant("exporting/training.py", "    _drop_unused(result, plan)", "    pass", FOLDERS),
    Mutant("runner/trainer.py", "        check_state(path, found, self.state)", "        pass", FOLDERS),
    Mutant("runner/trainer.py", "self.state.get(name, array)", "array", FOLDERS),
    Mutant("aten_map/ctc_backward.py", "at_start(op, path, path.last),", "at_start(op, path, op.const(np.int64(0))),", "tests/training/test_ctc.py"),
    Mutant("aten_map/ctc_backward.py", "_before(op, op.Where(path.may_skip, beta, low), 2, low)", "_before(op, beta, 2, low)", "tests/training/test_ctc.py"),
    Mutant("aten_map/layer_norm_backward.py", "op.Sub(op.Sub(steep, level), along)", "op.Sub(steep, along)", BACKWARD),
    Mutant("training/packed.py", "lengths - 1 - times, times)", "times, times)", "tests/training/test_recurrent.py"),
    Mutant("training/recurrent_forms.py", "op.Add(cell, grad_cell), *saved)", "cell, *saved)", "tests/training/test_recurrent.py"),
    Mutant("capture/recording/repeats.py", "tuple(map(nodes.index, nodes))", "()", "tests/capture/test_repeats.py"),
    Mutant("capture/recording/repeats.py", "is_alone = before == self._facts() and", "is_alone =", "tests/capture/test_repeats.py"),
    # the operators of Emit
    Mutant("irx/emit_ops.pyi", "def Add(self, A: Operand, B: Operand, *,", "def Add(self, A: Operand, *,", "tests/irx/test_emit_stub.py"),
    Mutant("irx/emit.py", "            if not op_type[:1].isupper():", "            if False:", "tests/irx/test_emit_stub.py"),
]  # fmt: skip


def survives(mutant: Mutant, copy: Path) -> str:
    """Why the mutant is a failure, or an empty text where its tests turned red."""
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
        for name in ("fx2onnx", "tests", "models_zoo", "benchmarks", "pyproject.toml", "docs", "README.md"):
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
