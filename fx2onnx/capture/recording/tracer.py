"""Records the ATen overloads that a module calls while it runs on fake tensors, as a functional graph."""

from __future__ import annotations

import functools
import operator
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from fx2onnx.base import events
from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.rare_roads import RARE_ROADS, RunPlugin, road
from fx2onnx.capture.reasons import with_inputs
from fx2onnx.capture.recording import size_checks
from fx2onnx.capture.recording.decisions import Branching, DecisionTrace, Test
from fx2onnx.capture.recording.eager_refusals import as_eager, check_sizes, is_taken
from fx2onnx.capture.recording.meta_cache import MISSING, MetaCache, check_operands
from fx2onnx.capture.recording.size_checks import note_needs
from fx2onnx.capture.recording.values import Arguments, NeedsDecomposition, Values, dims_of, tensor_info
from fx2onnx.capture.registry import OpTraits, asks_of_strides, load_family, traits_of
from fx2onnx.capture.shapes.shape_env import DATA_DECIDES, KEEP_TENSORS, ShapeEnv
from fx2onnx.sizes.assumptions import Assumed
from fx2onnx.sizes.expr import Dim, DimLike, Scalar
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.caught_errors import is_caught
from fx2onnx.torchcompat.dispatch import PreDispatchMode, SplitMode, any_autocast, in_function_transform
from fx2onnx.torchcompat.fake_tensors import CPU, DataDependentOutputException, DynamicOutputShapeException
from fx2onnx.torchcompat.modules import PATHS
from fx2onnx.torchcompat.operators import OpOverload, decompose
from fx2onnx.torchcompat.pytrees import flatten
from fx2onnx.torchcompat.tensor_questions import ATTRIBUTES, Own

aten = torch.ops.aten


class Tracer:
    """One run: its ``values`` (tensors as nodes), the ``types`` of results, the ``sizes``, and the ``plugins`` of rare roads.

    ``mode`` is the dispatch mode to be active while the module runs; ``pre_dispatch``: composite operators are recorded whole.
    What it makes refers to it weakly, so that it and the weights are freed with the last reference from outside.
    """

    branching = Branching(has_noop_guards=False)
    """The recording of Python's decisions in this run."""
    has_arrays = may_have_arrays = False
    """True if NumPy's arrays in forward are tensors of the run; if they may become such in another one."""
    looped: frozenset[str] = frozenset()
    """Sizes of which loops of many turns are not unrolled: there may be a run with loops of the file."""

    def __init__(
        self,
        sizes: ShapeEnv,
        weight_names: dict[int, tuple[str, str, torch.Tensor]],
        keep: Callable[[OpOverload], bool],
        pre_dispatch: bool = True,
        trace: DecisionTrace | None = None,
    ) -> None:
        self.plugins: dict[str, RunPlugin] = {}
        """The parts of the run that rare roads added, by their names."""
        self.sizes = sizes
        self.values = values = Values(sizes, weight_names, self.plugins, pre_dispatch)
        self.types = MetaCache(
            values.fake_mode, sizes, weakref.WeakMethod(values.fake_of), is_above_autograd=pre_dispatch
        )
        self.pre_dispatch = pre_dispatch
        sizes.tracer = weakref.ref(self)
        values.fake_mode.slices = functools.partial(load_family("overloads.slices").sliced, sizes)
        self.trace = trace
        """The choices and decisions of the run; None if a data-dependent branch is an error."""
        self.has_if_bodies = False
        """True if statements that a test by data guards may be branches of the run."""
        self._spans = events.details()
        handle = weakref.WeakMethod(self.handle if self._spans is None else self._handle_timed)
        self.mode = PreDispatchMode(handle) if pre_dispatch else SplitMode(handle, values.fake_mode.device_if_held)
        self.warnings: list[str] = []
        self.symbolics: dict[type, str] = {}
        """A warning for each ``torch.autograd.Function`` whose ``symbolic`` has no effect."""
        self.numbers_read: list[tuple[torch.fx.Node, SourceLocation | None]] = []
        """Values whose numbers Python took, and the lines."""
        self.unbacked_scalars: dict[torch.fx.Node, Scalar] = {}
        """The symbol of an integer that Python read from a tensor, by its node, and expressions over sizes and such symbols."""
        self.nonzero_rows: dict[tuple[torch.fx.Graph, torch.fx.Node], Dim] = {}
        """The unknown number of nonzero elements of a value, so that two selections by one mask have one size."""
        self.packed_batches: dict[torch.fx.Node, DimLike] = {}
        """The number of packed sequences, by the node of their batch sizes."""
        self.quantized: dict[int, tuple[torch.Tensor, object]] = {}
        """The integers that stand for numbers, by their id, and how they do (``capture/quantized/operands.py``)."""
        self.repeats: dict[int, Any] = {}
        """The elements for which a tensor stands in a list, by the tensor's id (``capture/branches/turns.py``)."""
        self.failure: BaseException | None = None
        """The exception of the last call that failed: the TorchScript interpreter raises something else instead."""
        self.failed: list[tuple[BaseException, int, int]] = []
        """The exceptions of calls, each with the places in the log ``asked`` of sizes between which the call asked."""
        self.watch: Any = None
        """The watch of what else than operators runs, while a call of a module is recorded by itself."""
        self._below_autograd: Any = None if pre_dispatch else self.plugin("below autograd")
        self._keep = keep
        self._keeps: dict[OpTraits, bool] = {}

    def plugin(self, name: str) -> Any:
        """The plugin of a rare road, made when the run first needs it."""
        found = self.plugins.get(name)
        if found is None:
            found = self.plugins[name] = road(name).PLUGIN(self)
        return found

    def notes_of_plugins(self) -> list[Assumed]:
        """The lines of plugins for the report, in the order of their table."""
        return [note for name in RARE_ROADS if name in self.plugins for note in self.plugins[name].notes]

    def end(self) -> None:
        """Let go of the plugins, which hold the tracer, and of the last failure, as the run is over."""
        for plugin in self.plugins.values():
            plugin.end()
        self.plugins.clear()
        self._below_autograd = self.failure = None
        self.failed.clear()

    @answers_for_caller
    def answer(self, name: str, own: Own, asked: Any, *args: Any, **kwargs: Any) -> Any:
        """The answer to the question ``name`` that Python asks of a tensor, a storage or a class without an operator; ``own``: torch's
        answer.
        """
        mode = self.values.fake_mode
        if mode.computes or mode.runs_operator:
            return own(asked, *args, **kwargs)
        if isinstance(asked, torch.Tensor) and (name in ATTRIBUTES or name == "data_ptr"):
            if not mode.holds(asked) and (name != "data_ptr" or not self.values.is_replaced(asked)):
                return own(asked)
            if name == "is_quantized":
                return id(asked) in self.quantized
        return self.plugin("what Python asks").answer(name, own, asked, *args, **kwargs)

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Return whether only constants lead to the tensor's value."""
        return self.values.value_of(self.values.node_of(tensor)) is not None

    def _handle_timed(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start_ns = time.perf_counter_ns()
        try:
            return self.handle(func, args, kwargs)
        finally:
            self._spans.detail(func, start_ns, PATHS.stack[-1] if PATHS.stack else "", self.values.where)  # type: ignore[union-attr]

    def handle(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], is_placed: bool = False) -> Any:
        """Record a call. ``is_placed``: it belongs to the user's line that is known already."""
        watch = self.watch
        if watch is not None:
            watch.pause()
        since = len(self.sizes.asked)
        try:
            return self._handled(func, args, kwargs, is_placed)
        except BaseException as error:
            self.failure = as_eager(self.sizes, func, args, kwargs, error)
            self.failed.append((self.failure, since, len(self.sizes.asked)))
            raise self.failure from error.__cause__
        finally:
            if watch is not None:
                watch.go_on()

    def begin_path(self, graph: torch.fx.Graph, trace: DecisionTrace, watch: Any) -> tuple[Any, bool, Any]:
        """Record a call into a graph of its own, with choices of its own, from here on. Returns the run's."""
        before = self.trace, self.has_if_bodies, self.watch
        self.values.graph = self.values.path_graph = graph
        self.trace, self.has_if_bodies, self.watch = trace, False, watch
        return before

    def _handled(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], is_placed: bool) -> Any:
        if self.pre_dispatch and in_function_transform():
            raise NeedsDecomposition
        traits = traits_of(func)
        self.sizes.during = traits.name
        if traits.is_query:
            fake_args, fake_kwargs = self.values.to_fakes(args, kwargs)
            return func(*fake_args, **fake_kwargs)
        if self._below_autograd is not None:
            self.values.where, self.values.module = self._below_autograd.place()
        elif not is_placed:
            self.values.mark()
        if self.quantized:
            replaced = road("quantised operands").seen(self, func, args, kwargs)
            if replaced is not NotImplemented:
                return replaced
        if self.repeats:
            replaced = self.plugin("loops").seen(func, args, kwargs)
            if replaced is not NotImplemented:
                return replaced
        if self.values.holds_sparse:
            replaced = road("sparse operands").seen(self, func, args, kwargs)
            if replaced is not NotImplemented:
                return replaced
        if kwargs and getattr(kwargs.get("device"), "type", None) == "meta":
            kwargs = kwargs | {"device": CPU}  # functorch takes the device that a tensor without data really has
        if kwargs and kwargs.get("generator") is not None:
            kwargs = kwargs | {
                "generator": None
            }  # a file draws numbers of its own, and some types are told without one only
        if traits.reads_number:
            return load_family("overloads.unbacked_scalars").to_python(self, func, args[0])
        if traits.lifts and not self.values.fake_mode.holds(args[0]):
            return self.values.constant(args[0])
        if traits.writes is not None:
            self._check_on_real_kernel(traits, func, args, kwargs, ())
            if len(args) + len(kwargs) > 1:
                road("shared memory").check_overlap(self, func, args, kwargs)
            return traits.writes(self, func, args, kwargs)
        if any_autocast() and (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            args = road("autocast").cast_arguments(self, func, args, kwargs)
        if traits.raises is not None and is_caught(traits.raises):
            replaced = road("errors that forward catches").raised_by_data(self, func, args, kwargs)
            if replaced is not NotImplemented:
                return replaced
        if traits.records is not None:
            replaced = traits.records(self, func, args, kwargs)
            if replaced is not NotImplemented:
                self._check_on_real_kernel(traits, func, args, kwargs, replaced)
                return replaced
        keep = self._keeps.get(traits)
        if keep is None:
            keep = self._keeps[traits] = self._keep(func)
        if not keep:
            with self.mode:
                result = decompose(func, args, kwargs)
            if result is not NotImplemented:
                self._check_on_real_kernel(traits, func, args, kwargs, result)
                return result
        return self.record(func, args, kwargs)

    def _check_on_real_kernel(
        self, traits: OpTraits, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: object
    ) -> None:
        """The checks of a call that is recorded as others."""
        if not traits.tries_real_kernel:
            return check_operands(self.sizes, func, args, kwargs)

        def check() -> None:
            check_operands(self.sizes, func, args, kwargs)
            check_sizes(self.sizes, func, args, kwargs, result)

        self.types.once(self.types.key(traits, args, kwargs), check)

    def record(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        nodes = self.values.to_nodes(args, kwargs)
        cache = self.types
        traits = traits_of(func)
        key = cache.key(traits, args, kwargs)
        result = cache.again(key, args) if key is not None else MISSING
        if result is not MISSING:
            return self.finish(func, args, nodes, result)
        fake_args, fake_kwargs = self.values.to_fakes(args, kwargs)
        start_ns, before = time.perf_counter_ns(), cache.before(key)
        self.values.fake_mode.runs_operator = True
        self.sizes.asks_of_strides = asks_of_strides(traits, fake_args)
        try:
            run = functools.partial(func, *fake_args, **fake_kwargs)
            if self.sizes.unbacked:
                result = road("sizes of data").run_at_unknown_sizes(self, func, run)
            else:
                result = run()
            if self.sizes.hints:
                taken = functools.partial(is_taken, self.sizes, func, args, kwargs)
                note_needs(self.sizes, run, taken, fake_args[:1], result, before.asked)
                if self.sizes.asks_of_strides and not self.sizes.unbacked:
                    result = self._of_sizes(result, fake_args)
        except DataDependentOutputException as cause:
            operands = [self.values.node_of(arg) for arg in args if isinstance(arg, torch.Tensor)]
            why = f"{cause.func} would need the tensor's numbers"
            error = self.values.refuse(*DATA_DECIDES, why=why, next=KEEP_TENSORS)
            raise with_inputs(error, self.inputs_behind(operands)) from cause
        except DynamicOutputShapeException as cause:
            raise self.values.refuse(
                "E107",
                f"the size of {func}'s result depends on data",
                next="use an operator whose result has a fixed size, such as torch.where or topk",
            ) from cause
        finally:
            self.values.fake_mode.runs_operator = self.sizes.asks_of_strides = False
            if self._spans is not None:
                self._spans.add("fake op", start_ns)
        check_operands(self.sizes, func, args, kwargs)
        if traits.tries_real_kernel:
            check_sizes(self.sizes, func, args, kwargs, result)
        if key is not None:
            cache.remember(key, fake_args, result, before)
        return self.finish(func, args, nodes, result)

    def finish(self, func: OpOverload, args: tuple[object, ...], nodes: Arguments, result: object) -> object:
        if isinstance(result, torch.Tensor):
            for arg in args:
                if result is arg:
                    return result
            info, is_fresh = self._type_of_result(result)
            if self.sizes.facts.signed:
                self.sizes.are_sizes(info.dims)
            node = self.values.call(func, *nodes, info)
            if self.sizes.unchecked:
                node = self._checked(node)
            self.values.bind(result, node, func, args, nodes, info, is_fresh=is_fresh)
            return result
        if isinstance(result, tuple | list):
            infos = tuple(self._type_of_result(item)[0] if isinstance(item, torch.Tensor) else None for item in result)
            node = self.values.call(func, *nodes, infos)
            for index, (item, part_info) in enumerate(zip(result, infos, strict=True)):
                if part_info is not None and id(item) not in self.values.views:
                    part = self._checked(self.values.call(operator.getitem, (node, index), {}, part_info))
                    self.values.bind(item, part, func, args, nodes, part_info, index, infos)
            return result
        if result is None or isinstance(result, torch.dtype | torch.device | torch.layout | str):
            return result
        if not any(isinstance(leaf.value, torch.Tensor) for leaf in flatten(args)[0]):  # such as a version of a library
            return result
        raise self.values.refuse(
            "E104",
            f"{func} gives Python a {type(result).__name__} that depends on tensor data",
            next="keep the decision in tensors: torch.where, or torch.cond for two branches",
        )

    def _checked(self, node: torch.fx.Node) -> torch.fx.Node:
        """``node``, behind the checks of what was taken for true of sizes on the way to it."""
        sizes = self.sizes
        for relation, where in sizes.unchecked.items():
            if relation.symbols() & sizes.unbacked <= self.values.symbols.keys():
                sizes.unchecked = {each: sizes.unchecked[each] for each in sizes.unchecked if each != relation}
                node = size_checks.add(self.values, node, relation, where)
        return node

    def _type_of_result(self, result: torch.Tensor) -> tuple[TensorInfo, bool]:
        """The type of a result, and whether it is known to have memory of its own."""
        spec = self.types.made.pop(id(result), None)
        return (tensor_info(result), False) if spec is None else (spec.info, not spec.is_view)

    def _of_sizes(self, result: object, args: tuple[object, ...]) -> object:
        """``result`` of an operator that keeps the sizes of its operand: one that is 1 at the example's sizes is no 1
        for that."""
        operand = next(arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() > 0)
        dims = dims_of(operand)

        def kept(part: object) -> object:
            if not isinstance(part, torch.Tensor) or part.dim() != len(dims) or dims_of(part) == dims:
                return part
            return self.values.new_fake(dims, part.dtype, part.device)

        return type(result)(map(kept, result)) if isinstance(result, tuple | list) else kept(result)

    def keeps_both(self, is_needed: bool = False) -> bool:
        """Return whether both branches of Python's shape-dependent decisions are to be in the file; where one
        ``is_needed``, if there is room."""
        trace = self.trace
        if trace is None or not trace.by_sizes or not self.values.is_outermost():
            return False
        return not (is_needed and trace.is_full())

    def truth(self, test: Test, error: UserError, is_needed: bool = False) -> bool:
        """The outcome of a data-dependent decision. Raises ``error`` where both branches are not to be kept."""
        if self.trace is None:
            raise error
        answer: bool | None = self.plugin("loops").answer(test) if self.branching.has_loops else None
        if answer is None and self.has_if_bodies:
            answer = self.plugin("if bodies").answer(test)
        if answer is None and self.branching.has_loops:
            answer = self.plugin("loops").decide(test)
        return self.trace.choose(self.values, self.sizes, test, error, is_needed) if answer is None else answer

    @answers_for_caller
    def serving_both(self, relation: Relation) -> bool | None:
        """The answer to the user's question with which the program is right for all sizes, where the other one does nothing."""
        if not self.branching.has_noop_guards or self.sizes.facts.is_settled(relation) is not None:
            return None
        answer: bool | None = self.plugin("no-op guards").answer(relation)
        return answer

    def inputs_behind_sizes(self, names: frozenset[str]) -> list[str]:
        """The inputs that data-dependent sizes depend on."""
        return self.inputs_behind(
            [self.values.symbols[name].node for name in sorted(names) if name in self.values.symbols]
        )

    def inputs_behind(self, nodes: Sequence[torch.fx.Node]) -> list[str]:
        """The inputs that decide the numbers of ``nodes``."""
        pending, seen, names = [*nodes], set(nodes), []
        while pending:
            current = pending.pop()
            if current.op == "placeholder":
                names.append(str(current.target))
            pending += [operand for operand in current.all_input_nodes if operand not in seen]
            seen.update(current.all_input_nodes)
        return names
