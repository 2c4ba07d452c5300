"""ONNX operator schemas, looked up once per operator and opset, and facts about operators. Source: ``onnx.defs``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import onnx
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.schemas import onnx_schema, types_of

DTYPE_SINCE = {
    ir.DataType.BFLOAT16: 13,
    **dict.fromkeys(
        (kind for kind in ir.DataType if kind.name.startswith("FLOAT8E") and kind.name != "FLOAT8E8M0"), 19
    ),
}
"""dtypes that came with a later opset than 11, and with which."""


@dataclass(frozen=True, slots=True)
class OpSchema:
    """The facts on one operator version that emitting needs."""

    op_type: str
    domain: str
    since_version: int
    input_names: tuple[str, ...]
    is_variadic: bool
    min_inputs: int
    max_outputs: int
    attribute_types: dict[str, ir.AttributeType]
    input_dtypes: tuple[frozenset[ir.DataType] | None, ...]
    """The dtypes that each input may have; None where it need not be a tensor."""
    alike: tuple[tuple[int, int], ...]
    """Inputs that have the dtype of an earlier one; the last of a variadic operator stands for all that follow."""

    def dtypes_of(self, index: int) -> frozenset[ir.DataType] | None:
        return self.input_dtypes[min(index, len(self.input_dtypes) - 1)]


@lru_cache(maxsize=4096)
def schema_of(op_type: str, opset: int, domain: str = "") -> OpSchema:
    """The schema of ``op_type`` in ``opset``.

    Raises: UserError E202 where the operator does not exist in that opset, E001 where it exists in none.
    """
    found = onnx_schema(op_type, opset, domain)
    if found is None:
        first = first_opset(op_type, domain)
        if first is None:
            raise _misspelt(f"ONNX has no operator {op_type}", op_type, _names(domain), "")
        raise UserError(
            "E202",
            f"{op_type} does not exist in opset {opset}",
            why=f"ONNX has {op_type} from opset {first} on",
            next=f"export with opset_version={first} or newer",
        )
    inputs = found.inputs
    variadic = bool(inputs) and inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return OpSchema(
        op_type=op_type,
        domain=domain,
        since_version=found.since_version,
        input_names=tuple(parameter.name for parameter in inputs),
        is_variadic=variadic,
        min_inputs=found.min_input,
        max_outputs=found.max_output,
        attribute_types={name: ir.AttributeType(int(attribute.type)) for name, attribute in found.attributes.items()},
        input_dtypes=tuple(_dtypes(types_of(parameter, found)) for parameter in inputs),
        alike=_alike([parameter.type_str for parameter in inputs], variadic and inputs[-1].is_homogeneous),
    )


def without_keyword(schema: OpSchema, name: str, opset: int) -> UserError:
    """The error for a keyword that is neither an attribute nor an input of the operator in that opset: E202 where a later one
    has it, otherwise E001.
    """
    newest = onnx.defs.onnx_opset_version()
    opsets = range(opset + 1, newest + 1 if not schema.domain else opset + 1)
    later = (each for each in opsets if name in _keywords(schema_of(schema.op_type, each, schema.domain)))
    since = next(later, None)
    if since is not None:
        return UserError(
            "E202",
            f"{schema.op_type} has no {name} in opset {opset}",
            why=f"opset {opset} defines {schema.op_type}-{schema.since_version}",
            next=f"export with opset_version={since} or newer",
        )
    known = _keywords(schema)
    why = f"{schema.op_type}-{schema.since_version} has {', '.join(known)}"
    return _misspelt(f"{schema.op_type} has no attribute or input {name!r}", name, known, why)


def _misspelt(what: str, name: str, known: Iterable[str], why: str) -> UserError:
    close = difflib.get_close_matches(name, known, n=1)
    return UserError("E001", what, why=why, next=f"did you mean {close[0]!r}?" if close else "check the name")


def _keywords(schema: OpSchema) -> list[str]:
    return [*schema.input_names, *schema.attribute_types]


def _dtypes(types: frozenset[str]) -> frozenset[ir.DataType] | None:
    """The dtypes of tensors of these types, as ``onnx.defs`` writes them."""
    if not all(name.startswith("tensor(") for name in types):
        return None
    return frozenset(dtype for dtype in ir.DataType if f"tensor({dtype.name.lower()})" in types)


def _alike(names: list[str], repeats_last: bool) -> tuple[tuple[int, int], ...]:
    """Pairs of inputs whose types have one name, an earlier one and each that follows it."""
    first = {name: index for index, name in reversed([*enumerate(names)])}
    pairs = [(first[name], index) for index, name in enumerate(names) if first[name] != index]
    if repeats_last:
        pairs.append((first[names[-1]], len(names)))
    return tuple(pairs)


def require_opset(opset: int) -> None:
    """Raises UserError E602 where the installed onnx is too old to know ``opset``."""
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise UserError(
            "E602",
            f"onnx {onnx.__version__} does not know opset {opset}",
            why=f"it knows opsets up to {newest}",
            next=(f"export with opset_version={newest} or older", "pip install --upgrade onnx"),
        )


@lru_cache(maxsize=4096)
def admits(op_type: str, opset: int, index: int, dtype: ir.DataType, domain: str = "") -> bool:
    """Return whether input ``index`` of the operator may have ``dtype`` in that opset."""
    schema = onnx_schema(op_type, opset, domain)
    return f"tensor({dtype.name.lower()})" in types_of(schema.inputs[min(index, len(schema.inputs) - 1)], schema)


def first_opset(op_type: str, domain: str = "") -> int | None:
    """The lowest opset that has the operator, or None."""
    return _names(domain).get(op_type)


@lru_cache(maxsize=8)
def _names(domain: str) -> dict[str, int]:
    """The operators of a domain, and the lowest opset that has each."""
    found: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == domain and not schema.deprecated:
            found[schema.name] = min(schema.since_version, found.get(schema.name, schema.since_version))
    return found


def has_op(op_type: str, opset: int) -> bool:
    """Return whether the opset has the operator."""
    first = first_opset(op_type)
    return first is not None and first <= opset


RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Two calls give two draws: never shared, never folded, never reordered. ``Dropout`` draws in training mode."""


COMMUTATIVE = frozenset(
    {"Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor"}
)
"""``op(a, b) == op(b, a)``, bit for bit."""


UNARY_ELEMENTWISE = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Celu", "Cos"),
        *("Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu"),
        *("Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin"),
        *("Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"),
    }
)
"""One tensor in, one of the same dims out, each element by itself."""


BROADCASTING = frozenset(
    {
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater"),
        *("GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum"),
        *("Where", "Xor"),
    }
)
"""Elementwise over operands that are broadcast as NumPy does."""


ELEMENTWISE = UNARY_ELEMENTWISE | BROADCASTING


VIEW = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""The same elements in the same order under other dims."""


MOVES = VIEW | frozenset(
    {
        *("Compress", "Concat", "DepthToSpace", "Expand", "Gather", "GatherElements", "GatherND", "Pad"),
        *("ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Tile", "Transpose"),
        *("Trilu", "Clip", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin", "MaxRoiPool"),
    }
)
"""Every element of the result is one of an operand, or a bound."""


ROUNDS = frozenset(
    {
        *(
            "ArgMax",
            "ArgMin",
            "Ceil",
            "DynamicQuantizeLinear",
            "Equal",
            "Floor",
            "Greater",
            "GreaterOrEqual",
            "Hardmax",
        ),
        *("Less", "LessOrEqual", "Mod", "NonMaxSuppression", "NonZero", "QuantizeLinear", "Round", "Sign", "TopK"),
        *("ThresholdedRelu", "Shrink", "Unique"),
    }
)
"""Their results jump where an operand's last bit changes. ``Cast`` to integers does, too."""


GRAPH_BEARING = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators of the standard domain with graphs among their attributes."""


def is_random(domain: str, op_type: str) -> bool:
    """Return whether two calls on equal inputs may differ. Unknown domains are taken to be random."""
    return domain not in ("", "ai.onnx", "ai.onnx.ml") or op_type in RANDOM
