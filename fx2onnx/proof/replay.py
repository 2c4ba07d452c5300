"""Replay of a derivation: each rule is a statement of its own here, matched at its place in the file before, one after the other.

At the end the file after has to be what the entries leave: each operator at a place is one that its last rule makes, each other node is
as it was, what reads another value than before does so by an entry, and each value that is gone was taken away by one entry alone.
Nothing comes from the optimizer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import NamedTuple

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
_SIZES = f"Concat Gather Shape Slice Cast Equal Where ConstantOfShape Mul ReduceProd {_VIEWS}"
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
MergeReshapes       | {_VIEWS}                   | {_VIEWS}                    | Reshape Unsqueeze = | {_VIEWS} {_SIZES}
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


class ListedEdit(NamedTuple):
    """One edit in a list: the rule, the values that it made anew, and those that it took away."""

    rule: str
    made: Sequence[str]
    gone: Sequence[str] = ()


class Replay:
    """One replay. ``steps``: the entries in order.

    terms: exact terms of the values of the file before and of the file after, by which values that an entry merges are equal.
    """

    def __init__(
        self,
        before: onnx.ModelProto,
        after: onnx.ModelProto,
        steps: Sequence[ListedEdit],
        terms: tuple[Mapping[str, int], Mapping[str, int]],
        constants: Collection[int],
    ) -> None:
        self.before, self.after, self.steps = _makers(before), _makers(after), steps
        self.terms, self.constants = terms, constants
        self.now: dict[str, frozenset[str]] = {}
        """The operators that a changed value may have by the entries so far."""
        self.taken: dict[str, int] = {}
        """The number of the entry that took each value away."""
        self.names = {each.rule for each in steps}
        self.outputs = {value.name for graph in graphs_within(before.graph) for value in graph.output}
        self.equal = Counter(terms[0][value] for value in self.before if value in terms[0])
        """The number of values of each term in the file before."""
        self.readers = defaultdict[str, list[onnx.NodeProto]](list)
        for node in {id(each): each for each in self.before.values()}.values():
            for name in (*node.input, *reads_of(node)):
                self.readers[name].append(node)

    def fault(self) -> str:
        """A sentence about the first entry or node that does not fit; empty where there is none."""
        return next(chain(self._entries(), self._nodes()), "")

    # -- the entries ---------------------------------------------------------------------------------------------
    def _entries(self) -> Iterator[str]:
        is_converted = "convert_opset" in self.names
        made = frozenset[str]()
        for number, entry in enumerate(self.steps, 1):
            name, places, _ = entry
            statement = statements().get(name)
            if statement is not None:
                for place in places:
                    if place in self.before or place in self.now:
                        wrong = "" if is_converted else self._misfit(statement, place)
                    else:
                        is_known = is_converted or made & (statement.ends | {"*"})
                        wrong = "" if is_known else "there is no such value"
                    if wrong:
                        yield f"entry {number}, {name} at '{place}': {wrong}"
            wrong = self._taken_wrongly(number, entry, statement)
            if wrong and not is_converted:
                yield f"entry {number}, {name}: {wrong}"
            if statement is not None:
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
            elif value in self.before and value not in self.taken:  # else its name is that of a new value
                wrong = self._otherwise(self.before[value], node)
                if wrong and not any(name in self.now for name in node.output):
                    yield f"no entry explains '{value}': {wrong}"
            elif value not in fresh:
                yield f"no entry makes '{value}', of {node.op_type}"
        yield from self._gone()

    def _is_free(self, value: str) -> bool:
        """Return whether all entries at a value take it away, so that a later one may give its name to another value."""
        rules = [statements()[name] for name, places, _ in self.steps if value in places and name in statements()]
        return all(each.makes & {"=", "#"} for each in rules)

    def _gone(self) -> Iterator[str]:
        """The values that are no more and that no entry took away, and those that one took away and that are as they were."""
        for value in dict.fromkeys((*self.before, *self.now)):
            is_stored = value in self.before and self.before[value].op_type == "Constant"  # as a weight
            if value not in self.taken and value not in self.after and not is_stored:
                yield f"no entry takes '{value}' away, and it is gone"
            was, now = self.before.get(value), self.after.get(value)
            if value in self.taken and was is not None and now is not None and not self._otherwise(was, now):
                yield f"entry {self.taken[value]} takes '{value}' away, and it is there"

    def _taken_wrongly(self, number: int, entry: ListedEdit, statement: Statement | None) -> str:
        """Note the values that an entry takes away; the reason why its rule does not take one, else nothing."""
        for value in entry.made:
            self.taken.pop(value, None)
        for value in entry.gone:
            if value in self.taken:
                return f"entry {self.taken[value]} has taken '{value}' away already"
            self.taken[value] = number
        for value in entry.gone:
            ops = self._ops(value)
            if statement is None:
                is_right = self._is_merged(entry.rule, value)
            elif value in entry.made or ("=" in statement.makes and self.outputs & {*entry.made}):
                is_right = bool(statement.makes & {"=", "#", "*"})  # an operand that is an output has its name
            else:
                its = statement.ends | statement.needs | statement.drops
                is_right = bool(ops & its or "*" in its | ops) or self.terms[0].get(value) in self.constants
            if ops and not is_right:
                return f"it does not take '{value}' of {' or '.join(sorted(ops))} away"
        for value in entry.made if statement is not None and statement.makes <= {"=", "#"} else ():
            is_alone = value in self.before and len(self.before[value].output) == 1
            if is_alone and value not in entry.gone and value not in self.outputs:
                return f"it leaves no node at '{value}', and does not take it away"
        return ""

    def _is_merged(self, name: str, value: str) -> bool:
        """Return whether a pass takes a value away: as a constant, as equal to another value, or with what read it."""
        term = self.terms[0].get(value)
        if term is None or term in self.constants or name == "fold_branches" or self.names & {*RESIZED}:
            return True
        if name == "merge_equal_nodes" and self.equal[term] > 1:
            return True
        return all(any(each in self.taken or each in self.now for each in node.output) for node in self.readers[value])

    def _fresh(self) -> set[str]:
        """The new values that lead to a place of an entry, or stand beside one."""
        found = {name for name in self.after if name in self.now}
        for value, node in self.after.items():  # what stands where an entry put an operand in the place of a value
            was = self.before[value].input if value in self.before else ()
            found.update(other for one, other in zip(was, node.input, strict=False) if one != other and one in self.now)
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
