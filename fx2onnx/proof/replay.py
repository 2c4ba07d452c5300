"""Replay of a derivation: each rule is a statement of its own here, matched at its place in the file before, one after the other.

At the end the file after has to be what the entries leave: each operator at a place is one that its last rule makes, each other node is
as it was, and what reads another value than before does so by an entry. Nothing comes from the optimizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import onnx

from fx2onnx.irx.model_files import graphs_within
from fx2onnx.proof.nodes import reads_of

_VIEWS = "Reshape Flatten Squeeze Unsqueeze"
_SPLATTED = f"Slice Gather {_VIEWS} Transpose Expand Tile"
_BROADCAST = (
    "Add Sub Mul Div Pow Mod Max Min Sum Mean And Or Xor Where Equal Less LessOrEqual Greater GreaterOrEqual BitShift "
    "BitwiseAnd BitwiseOr BitwiseXor"
)
_NOOP = f"Cast CastLike {_VIEWS} Expand Slice Identity Dropout Transpose Concat Pad Sum Mean Max Min Tile"
_REDUCED = "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd"
_NORM = "Add Sub Mul Div Pow Sqrt Reciprocal ReduceMean Cast"
_GELU = "Add Mul Div Pow Erf Tanh Sqrt Cast"
_SIZES = f"Concat Gather Shape Slice Cast Equal Where ConstantOfShape Mul {_VIEWS}"
_STATEMENTS = f"""
ArrangeWeights      | {_VIEWS} Concat Gather     |                             | # | *
CancelInvolution    | Neg Not BitwiseNot         | Neg Not BitwiseNot          | =
DivideByRoot        | Mul                        | Reciprocal                  | Div
DropNeutralOperand  | Add Sub Mul Div Pow And Or Xor BitwiseOr BitwiseXor |                         | =
DropZeroState       | LSTM GRU RNN               |                             | LSTM GRU RNN | *
DropZeroTerm        | Add Sub                    |                             | =
FixedTarget         | Reshape                    |                             | Reshape | *
FoldBatchNorm       | BatchNormalization         | Conv ConvTranspose Gemm     | Conv ConvTranspose Gemm
FoldConvAffine      | Add Sub Mul                | Conv ConvTranspose          | Conv ConvTranspose
FoldMatMulScale     | Mul                        | >MatMul                     | MatMul Add {_VIEWS} Transpose | *
FoldWeightTranspose | Transpose                  |                             | #
FoldZeroPoint       | Cast                       |                             | # | *
FuseBareLayerNorm   | Div                        | >ReduceMean                 | LayerNormalization | {_NORM}
FuseBiasGelu        | Gelu                       |                             | BiasGelu FastGelu | Add
FuseGelu            | Mul Div                    | >Erf Tanh                   | Gelu | {_GELU}
FuseHeadBias        | MultiHeadAttention         | Add                         | MultiHeadAttention | Add
FuseHeadScale       | MultiHeadAttention         | Mul Div                     | MultiHeadAttention
FuseLayerNorm       | Mul                        | >ReduceMean                 | LayerNormalization | {_NORM}
FuseLayerNormBias   | Add                        | LayerNormalization          | LayerNormalization
FuseMatMulAdd       | Add                        | MatMul Gemm                 | Gemm
FuseMatMulScale     | Mul Div                    | MatMul FusedMatMul          | FusedMatMul
FuseMatMulTranspose | MatMul FusedMatMul         | Transpose                   | FusedMatMul
FusePackedBias      | MultiHeadAttention         | Split                       | MultiHeadAttention | Split Add
FusePad             | Conv MaxPool               | Pad                         | Conv MaxPool
FuseRMSNorm         | Mul                        | >ReduceMean                 | RMSNormalization | {_NORM}
FuseSkipNorm        | LayerNormalization RMSNormalization | >Add           | SkipLayerNormalization SkipSimplifiedLayerNormalization | Add
FuseTransposeGemm   | Gemm MatMul                | Transpose                   | Gemm
GridGather          | GatherND                   |                             | Reshape | *
MergeConcats        | Concat                     | Concat                      | Concat
MergeMatMuls        | MatMul Add                 |                             | Split | MatMul Transpose
MergeReshapes       | {_VIEWS}                   | {_VIEWS}                    | Reshape Unsqueeze =
MergeSlices         | Slice                      | Slice                       | Slice
MergeTransposes     | Transpose                  | Transpose                   | Transpose =
MoveReshapeUp       | {_VIEWS}                   | Transpose                   | Transpose | Transpose {_VIEWS}
PackHeads           | GroupQueryAttention        |                             | GroupQueryAttention | MatMul Add
PickEarly           | Slice Gather               | >MatMul Gemm Conv FusedMatMul Einsum | * | *
PlainCast           | CastLike                   |                             | Cast
RemoveNoop          | {_NOOP} {_REDUCED}         |                             | =
RemoveRequantize    | QuantizeLinear             | DequantizeLinear            | =
SkipExpand          | {_BROADCAST}               | Expand                      | {_BROADCAST} | Expand {_SIZES}
SliceSplat          | {_SPLATTED}                | ConstantOfShape Expand      | ConstantOfShape Expand | *
SplitGathers        | Gather {_VIEWS}            |                             | Split {_VIEWS} | Gather
SplitProduct        | Split                      | MatMul Add                  | MatMul Add Split | MatMul Add Split
SwapReluMaxPool     | MaxPool                    | Relu                        | Relu MaxPool
SwapWhere           | Where                      | Not                         | Where
UnflattenGemm       | Reshape                    | Gemm                        | MatMul Add | Gemm {_SIZES}
"""
"""Each rule: the operators that it ends at; those of which one is an operand (``>``: somewhere before it); what it puts there: ``=`` an
operand, ``#`` a constant, ``*`` any operator; and the operators before it that may go, if they are others than those that it needs."""
PASSES = (
    *("fold_branches", "fold_constants", "fold_weight_formulas", "merge_equal_nodes", "merge_equal_weights"),
    "remove_dead_nodes",
)
RESIZED = ("fix_sizes", "make_dynamic")
CONVERSIONS = ("convert_opset", "quantize", "lower_precision", "fit_to_target")
"""Steps that change the sizes, and steps that change operators or numbers, of the file on purpose."""
_DEEP = 16
"""Nodes between a place and an operator that is somewhere before it."""


@dataclass(frozen=True)
class Statement:
    """A rule as an equation of operators."""

    ends: frozenset[str]
    needs: frozenset[str]
    makes: frozenset[str]
    drops: frozenset[str]
    is_deep: bool
    version: int = 1


@cache
def statements() -> Mapping[str, Statement]:
    """The statement of each rewrite by name."""
    found = {}
    for line in _STATEMENTS.strip().splitlines():
        name, ends, needs, makes, *drops = (part.strip() for part in line.split("|"))
        sets = (frozenset(text.lstrip(">").split()) for text in (ends, needs, makes, *(drops or [needs])))
        found[name] = Statement(next(sets), next(sets), next(sets), next(sets), is_deep=needs.startswith(">"))
    return found


@cache
def versions() -> Mapping[str, int]:
    """The version of each rule that the statements and equations here are of."""
    rewrites = {name: each.version for name, each in statements().items()}
    return rewrites | dict.fromkeys((*PASSES, *RESIZED, *CONVERSIONS), 1)


def _makers(proto: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """The node of each value, of all graphs of a file."""
    found = {}
    for graph in graphs_within(proto.graph):
        assert isinstance(graph, onnx.GraphProto)
        for node in graph.node:
            found.update(dict.fromkeys(filter(None, node.output), node))
    return found


class Replay:
    """One replay. ``steps``: each rule with its places.

    terms: exact terms of the values of the file before and of the file after, by which values that an entry merges are equal.
    """

    def __init__(
        self,
        before: onnx.ModelProto,
        after: onnx.ModelProto,
        steps: Sequence[tuple[str, Sequence[str]]],
        terms: tuple[Mapping[str, int], Mapping[str, int]],
        constants: Collection[int],
    ) -> None:
        self.before, self.after, self.steps = _makers(before), _makers(after), steps
        self.terms, self.constants = terms, constants
        self.now: dict[str, frozenset[str]] = {}
        """The operators that a changed value may have by the entries so far."""
        self.names = {name for name, _ in steps}
        self.kept = set(self.after) | {
            value.name for graph in graphs_within(after.graph) for value in graph.initializer
        }
        nodes = [(value, node) for value, node in self.before.items() if value in terms[0]]
        self.twins = Counter(key for value, node in nodes for key in self._twin_keys(value, node))

    def fault(self) -> str:
        """A sentence about the first entry or node that does not fit; empty where there is none."""
        return next(chain(self._entries(), self._nodes()), "")

    # -- the entries ---------------------------------------------------------------------------------------------
    def _entries(self) -> Iterator[str]:
        is_converted = "convert_opset" in self.names
        made = frozenset[str]()
        for number, (name, places) in enumerate(self.steps, 1):
            statement = statements().get(name)
            if statement is None:
                continue
            for place in places:
                if place not in self.before and place not in self.now:
                    if not (made & (statement.ends | {"*"}) or is_converted):
                        yield f"entry {number}, {name}: there is no value '{place}'"
                        return
                elif not is_converted:
                    wrong = self._misfit(statement, place)
                    if wrong:
                        yield f"entry {number}, {name} at '{place}': {wrong}"
                        return
            for place in places:
                self.now[place] = self._result(statement, place)
            if not statement.makes <= {"=", "#"}:  # new values, of which later entries may be
                made |= statement.makes | statement.needs | statement.drops

    def _ops(self, name: str) -> frozenset[str]:
        known = self.now.get(name)
        if known is None:
            known = frozenset([self.before[name].op_type] if name in self.before else ())
        return known

    def _misfit(self, statement: Statement, place: str) -> str:
        """The reason why an equation's left side is not at a place; empty where it is."""
        ops = self._ops(place)
        if not ops & (statement.ends | {"*"}):
            return f"it is made by {' or '.join(sorted(ops)) or 'a constant'}, not by {' or '.join(sorted(statement.ends))}"
        depth = _DEEP if statement.is_deep else 3 if place in self.now else 1
        if statement.needs and not self._behind(place, depth) & (statement.needs | {"*"}):
            return f"no {' or '.join(sorted(statement.needs))} is before it"
        return ""

    def _behind(self, place: str, depth: int) -> frozenset[str]:
        """The operators up to so many nodes before a value, and those that an entry has put at it."""
        found, seen = set(self.now.get(place, ())), {place}
        front = [place]
        for _ in range(depth):
            node_names = [name for each in front if each in self.before for name in self.before[each].input if name]
            front = [name for name in dict.fromkeys(node_names) if name not in seen]
            seen.update(front)
            for name in list(front):
                found |= self._ops(name)
                if name in self.now and name in self.before:  # its node may be gone
                    front += [each for each in self.before[name].input if each and each not in seen]
                    found |= {op for each in self.before[name].input for op in self._ops(each)}
        return frozenset(found)

    def _result(self, statement: Statement, place: str) -> frozenset[str]:
        found = statement.makes - {"="}
        if "=" in statement.makes:  # two nodes before it at most
            found |= {"*"} if place not in self.before or place in self.now else self._behind(place, 2)
        return found

    # -- the file after ------------------------------------------------------------------------------------------
    def _nodes(self) -> Iterator[str]:
        """The nodes of the file after that no entry explains. Conversions explain all."""
        if self.names & set(CONVERSIONS):
            return
        fresh = self._fresh()
        for value, node in self.after.items():
            if value in self.now:
                if not (self.now[value] & {node.op_type, "*"} or self._is_free(value)):
                    made = " or ".join(sorted(self.now[value] - {"#"})) or "a constant"
                    yield f"'{value}' is made by {node.op_type}, and the entries leave {made}"
            elif value in self.before:
                wrong = self._otherwise(self.before[value], node)
                if wrong and not any(name in self.now for name in node.output):
                    yield f"no entry explains '{value}': {wrong}"
            elif value not in fresh:
                yield f"no entry makes '{value}', of {node.op_type}"
        yield from self._gone()

    def _is_free(self, value: str) -> bool:
        """Return whether all entries at a value take it away, so that a later one may give its name to another value."""
        rules = [statements()[name] for name, places in self.steps if value in places and name in statements()]
        return all(each.makes & {"=", "#"} for each in rules)

    def _gone(self) -> Iterator[str]:
        """The values of the file before that are in it no more, and that no entry at a place behind them drops."""
        readers: dict[str, list[onnx.NodeProto]] = {}
        for node in {id(each): each for each in self.before.values()}.values():
            for name in (*node.input, *reads_of(node)):
                readers.setdefault(name, []).append(node)
        rules: dict[str, list[Statement]] = {}
        for name, places in self.steps:
            for place in places if name in statements() else ():
                rules.setdefault(place, []).append(statements()[name])
        self.dropped: dict[str, list[Statement] | None] = {}
        for value, node in reversed(self.before.items()):
            if value in self.now or value in self.kept or self._is_merged(value, node):
                continue
            found: list[Statement] = []
            is_free = not readers.get(value)
            for reader in readers.get(value, ()):
                mine = self._drops(reader, node.op_type, rules, readers)
                if mine == []:
                    yield f"no entry explains that '{value}' of {node.op_type} is gone"
                    return
                is_free, found = is_free or mine is None, found + (mine or [])
            self.dropped[value] = None if is_free else found

    def _drops(
        self,
        reader: onnx.NodeProto,
        op: str,
        rules: Mapping[str, list[Statement]],
        readers: Mapping[str, list[onnx.NodeProto]],
    ) -> list[Statement] | None:
        """The rules by which a reader does without an operand of an operator; None where it is gone for other reasons."""
        found: list[Statement] = []
        for value in filter(None, reader.output):
            if value in self.now:
                found += rules[value] if any(each.drops & {op, "*"} for each in rules[value]) else []
                if any("=" in each.makes for each in rules[value]):  # its readers have the operand, or it has its name
                    if value in self.after and self.after[value].op_type == op:
                        return None
                    for each in readers.get(value, ()):
                        more = self._drops(each, op, rules, readers)
                        if more is None:
                            return None
                        found += more
            elif value in self.dropped:
                known = self.dropped[value]
                if known is None or any("=" in each.makes for each in known):
                    return None
                found += known if any(each.drops & {op, "*"} for each in known) else []
            elif value not in self.after:
                return None
        return found

    def _is_merged(self, value: str, node: onnx.NodeProto) -> bool:
        """Return whether a pass that is listed takes a value away: as a constant, as equal to another value, or with a branch."""
        term = self.terms[0].get(value)
        if term is None or self.names & {"fold_branches", *RESIZED}:
            return bool(self.names & {*PASSES})
        if term in self.constants and (
            node.op_type == "Constant" or (node.op_type != "Transpose" and "fold_constants" in self.names)
        ):
            return True
        if "merge_equal_nodes" not in self.names:
            return False
        if term in [
            self.terms[0].get(name) for name in node.input
        ]:  # it is equal to its operand, which does not merge them
            return any(self._is_merged(name, self.before[name]) for name in node.input if name in self.before) or (
                self.twins[self._twin_keys(value, node)[1]] > 1
            )
        return self.twins[self._twin_keys(value, node)[0]] > 1

    def _twin_keys(self, value: str, node: onnx.NodeProto) -> tuple[tuple[object, ...], tuple[object, ...]]:
        return (node.op_type, self.terms[0][value]), (node.op_type, *node.input, [*node.output].index(value))

    def _fresh(self) -> set[str]:
        """The new values that lead to a place of an entry, or stand beside one."""
        found = {name for name in self.after if name in self.now}
        for value, node in reversed(self.after.items()):
            if value in found or any(name in found for name in node.output):
                found.update(node.output)
                found.update(name for name in node.input if not self._is_as_before(name))
        return found

    def _is_as_before(self, value: str) -> bool:
        one, other = self.before.get(value), self.after.get(value)
        return one is not None and (other is None or (one.op_type, *one.input) == (other.op_type, *other.input))

    def _otherwise(self, was: onnx.NodeProto, node: onnx.NodeProto) -> str:
        if (was.op_type, was.domain) != (node.op_type, node.domain):
            return f"it was made by {was.op_type}, and is by {node.op_type}"
        if not _is_same_but_graphs(was, node):
            return "it has other attributes"
        names = [[*each.input] for each in (was, node)]
        for each in names:
            while each and not each[-1]:
                each.pop()
        if len(names[0]) != len(names[1]):
            return f"it reads {len(names[1])} values, and read {len(names[0])}"
        for one, other in zip(*names, strict=True):
            if one != other and not self._is_renamed(one, other):
                return f"it reads '{other}', and read '{one}'"
        return ""

    def _is_renamed(self, one: str, other: str) -> bool:
        """Return whether entries explain that what read a value reads another one."""
        if one in self.now or (other in self.now and one not in self.after):
            return True
        mine, its = self.terms[0].get(one), self.terms[1].get(other)
        if mine is not None and mine == its and mine in self.constants:
            is_of_twin = "merge_equal_nodes" in self.names and mine in {self.terms[0].get(name) for name in self.now}
            return is_of_twin or other in self.terms[0] or other.startswith(f"{one}.")
        passes = self.names & {*PASSES}
        if mine is None or its is None:
            return bool(passes)  # of a graph inside of a node
        if other not in self.after:
            is_constant = mine in self.constants or bool(self.names & {*RESIZED})
            return is_constant and bool(self.names & {"fold_constants", "fold_weight_formulas"})
        return mine == its and bool(self.names & {"merge_equal_nodes", "fold_branches"})


def _is_same_but_graphs(one: onnx.NodeProto, other: onnx.NodeProto) -> bool:
    """Return whether two nodes have the same attributes; graphs are compared node by node elsewhere."""
    texts = [
        {
            each.name: each.SerializeToString(deterministic=True)
            for each in node.attribute
            if not each.HasField("g") and not each.graphs
        }
        for node in (one, other)
    ]
    return texts[0] == texts[1]
