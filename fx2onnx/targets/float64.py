"""Float64 operators as subgraphs in float64 of operators that targets have kernels for: what ``fit`` puts in the place of a node
without a float64 kernel, before it would compute in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import cast

import numpy as np
import onnx_ir as ir

from fx2onnx.base.dims import DimLike
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of

DOUBLE = ir.DataType.DOUBLE
INT64_MAX = np.iinfo(np.int64).max
MOST_PLACES = 512
"""A convolution over more kernel positions would be as many Slices."""

ATAN_TOP = (
    -8.750608600031904122785e-1,
    -1.615753718733365076637e1,
    -7.500855792314704667340e1,
    -1.228866684490136173410e2,
    -6.485021904942025371773e1,
)
ATAN_BOTTOM = (
    1.0,
    2.485846490142306297962e1,
    1.650270098316988542046e2,
    4.328810604912902668951e2,
    4.853903996359136964868e2,
    1.945506571482613964425e2,
)
ERF_TOP = (
    9.60497373987051638749e0,
    9.00260197203842689217e1,
    2.23200534594684319226e3,
    7.00332514112805075473e3,
    5.55923013010394962768e4,
)
ERF_BOTTOM = (
    1.0,
    3.35617141647503099647e1,
    5.21357949780152679795e2,
    4.59432382970980127987e3,
    2.26290000613890934246e4,
    4.92673942608635921086e4,
)
ERFC_TOP = (
    2.46196981473530512524e-10,
    5.64189564831068821977e-1,
    7.46321056442269912687e0,
    4.86371970985681366614e1,
    1.96520832956077098242e2,
    5.26445194995477358631e2,
    9.34528527171957607540e2,
    1.02755188689515710272e3,
    5.57535335369399327526e2,
)
ERFC_BOTTOM = (
    1.0,
    1.32281951154744992508e1,
    8.67072140885989742329e1,
    3.54937778887819891062e2,
    9.75708501743205489753e2,
    1.82390916687909736289e3,
    2.24633760818710981792e3,
    1.65666309194161350182e3,
    5.57535340817727675546e2,
)


# -- functions of one number --------------------------------------------------------------------------------------------
def _number(op: Emit, value: float) -> ir.Value:
    return op.const(float(value), DOUBLE)


def _polynomial(op: Emit, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """Horner's rule, the highest power first."""
    total: ir.Value = _number(op, coefficients[0])
    for coefficient in coefficients[1:]:
        total = op.Add(op.Mul(total, x), _number(op, coefficient))
    return total


def _quotient(op: Emit, x: ir.Value, top: Sequence[float], bottom: Sequence[float]) -> ir.Value:
    return op.Div(_polynomial(op, x, top), _polynomial(op, x, bottom))


def _odd(op: Emit, x: ir.Value, of_size: ir.Value) -> ir.Value:
    """``of_size`` with the sign of x. That of -0 shows in 1 / x; onnxruntime's Where would give 0 for it, Mul does not."""
    zero = _number(op, 0)
    negative = op.Or(op.Less(x, zero), op.Less(op.Reciprocal(x), zero))
    return op.Mul(of_size, op.Where(negative, _number(op, -1), _number(op, 1)))


def _log1p(op: Emit, x: ir.Value) -> ir.Value:
    """log(1 + x) with what the rounding of 1 + x lost. Source: Higham, Accuracy and Stability, problem 1.5."""
    near = op.Add(x, _number(op, 1))
    rounded = op.Sub(near, _number(op, 1))
    plain = op.Log(near)
    corrected = op.Add(plain, op.Div(op.Sub(x, rounded), near))
    return op.Where(op.Equal(rounded, x), plain, corrected)


def atan(op: Emit, x: ir.Value) -> ir.Value:
    """atan(x) in three ranges of |x|. Source: Cephes, atan."""
    one, size = _number(op, 1), op.Abs(x)
    far = op.Greater(size, _number(op, math.tan(3 * math.pi / 8)))
    middle = op.Greater(size, _number(op, 0.66))
    turned = op.Div(op.Sub(size, one), op.Add(size, one))
    turned = op.Where(far, op.Neg(op.Div(one, size)), op.Where(middle, turned, size))
    base = op.Where(far, _number(op, math.pi / 2), op.Where(middle, _number(op, math.pi / 4), _number(op, 0)))
    lost = op.Where(far, _number(op, 6.123233995736765886e-17), _number(op, 0))
    lost = op.Where(far, lost, op.Where(middle, _number(op, 3.061616997868382943e-17), _number(op, 0)))
    square = op.Mul(turned, turned)
    bent = op.Mul(turned, op.Mul(square, _quotient(op, square, ATAN_TOP, ATAN_BOTTOM)))
    return _odd(op, x, op.Add(base, op.Add(op.Add(bent, lost), turned)))


def asin(op: Emit, x: ir.Value) -> ir.Value:
    """atan(x / sqrt((1 - x) (1 + x)))."""
    one = _number(op, 1)
    return atan(op, op.Div(x, op.Sqrt(op.Mul(op.Sub(one, x), op.Add(one, x)))))


def acos(op: Emit, x: ir.Value) -> ir.Value:
    """2 atan(sqrt((1 - x) / (1 + x)))."""
    one = _number(op, 1)
    half = atan(op, op.Sqrt(op.Div(op.Sub(one, x), op.Add(one, x))))
    return op.Mul(half, _number(op, 2))


def tan(op: Emit, x: ir.Value) -> ir.Value:
    """sin(r) / cos(r) or -cos(r) / sin(r) of what is left of |x| beside the nearest k pi / 2, up to 2^20; beyond, of |x|.

    Numerics: pi / 2 in three parts of 33 bits, so that no product with k is rounded. Source: fdlibm, e_rem_pio2.c.
    """
    size = op.Abs(x)
    near = op.Less(size, _number(op, 2.0**20))
    count = op.Where(near, op.Round(op.Mul(size, _number(op, 2 / math.pi))), _number(op, 0))
    rest = size
    for part in (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21):
        rest = op.Sub(rest, op.Mul(count, _number(op, part)))
    half = op.Mul(count, _number(op, 0.5))
    sine, cosine = op.Sin(rest), op.Cos(rest)
    found = op.Where(op.Equal(op.Floor(half), half), op.Div(sine, cosine), op.Neg(op.Div(cosine, sine)))
    return _odd(op, x, found)


def cosh(op: Emit, x: ir.Value) -> ir.Value:
    """(e^|x| + e^-|x|) / 2 by e^(|x| / 2), which does not overflow earlier than the result."""
    root = op.Exp(op.Mul(op.Abs(x), _number(op, 0.5)))
    half = _number(op, 0.5)
    return op.Add(op.Mul(op.Mul(root, half), root), op.Div(op.Div(half, root), root))


def sinh(op: Emit, x: ir.Value) -> ir.Value:
    """tanh(x / 2) (cosh(x) + 1), without cancellation near 0."""
    return op.Mul(op.Tanh(op.Mul(x, _number(op, 0.5))), op.Add(cosh(op, x), _number(op, 1)))


def asinh(op: Emit, x: ir.Value) -> ir.Value:
    """log1p(|x| + x^2 / (1 + sqrt(1 + x^2))), far out log(|x|) + log(2). Source: fdlibm, s_asinh.c."""
    one, size = _number(op, 1), op.Abs(x)
    square = op.Mul(size, size)
    near = _log1p(op, op.Add(size, op.Div(square, op.Add(one, op.Sqrt(op.Add(one, square))))))
    far = op.Add(op.Log(size), _number(op, math.log(2)))
    return _odd(op, x, op.Where(op.Greater(size, _number(op, 2.0**28)), far, near))


def acosh(op: Emit, x: ir.Value) -> ir.Value:
    """log1p(t + sqrt(t) sqrt(t + 2)) with t = x - 1, far out log(x) + log(2)."""
    over = op.Sub(x, _number(op, 1))
    near = _log1p(op, op.Add(over, op.Mul(op.Sqrt(over), op.Sqrt(op.Add(over, _number(op, 2))))))
    far = op.Add(op.Log(x), _number(op, math.log(2)))
    return op.Where(op.Greater(x, _number(op, 2.0**28)), far, near)


def atanh(op: Emit, x: ir.Value) -> ir.Value:
    """log1p(2 |x| / (1 - |x|)) / 2 with the sign of x."""
    size = op.Abs(x)
    ratio = op.Div(op.Add(size, size), op.Sub(_number(op, 1), size))
    return _odd(op, x, op.Mul(_log1p(op, ratio), _number(op, 0.5)))


def erf(op: Emit, x: ir.Value) -> ir.Value:
    """A rational function up to 1, beyond 1 - erfc(|x|), from 6 on 1. Source: Cephes, ndtr.c."""
    one, size = _number(op, 1), op.Abs(x)
    small, large = op.Min(size, one), op.Max(op.Min(size, _number(op, 6)), one)
    square = op.Mul(small, small)
    near = op.Mul(small, _quotient(op, square, ERF_TOP, ERF_BOTTOM))
    tail = op.Mul(op.Exp(op.Neg(op.Mul(large, large))), _quotient(op, large, ERFC_TOP, ERFC_BOTTOM))
    return _odd(op, x, op.Where(op.Less(size, one), near, op.Sub(one, tail)))


# -- convolutions -------------------------------------------------------------------------------------------------------
def _ints(node: ir.Node, name: str, usual: list[int]) -> list[int]:
    attribute = node.attributes.get(name)
    return usual if attribute is None else list(attribute.as_ints())


def _static(value: ir.Value | None) -> list[int] | None:
    """The sizes, where all are numbers and none is 0."""
    if value is None or value.shape is None:
        return None
    dims = [dim for dim in dims_of(value) if isinstance(dim, int) and dim > 0]
    return dims if len(dims) == len(value.shape) else None


def _is_plain(node: ir.Node) -> bool:
    """Whether the paddings are given as numbers, not by a rule that depends on the sizes."""
    auto = node.attributes.get("auto_pad")
    return auto is None or auto.as_string() in ("NOTSET", "VALID")


def _padded(op: Emit, x: ir.Value, before: Sequence[int], behind: Sequence[int]) -> ir.Value:
    """Zeros around the axes of the image; negative numbers cut."""
    if not any((*before, *behind)):
        return x
    batch, channels, *sizes = dims_of(x)
    wider = [size + low + high for size, low, high in zip(sizes, before, behind, strict=True)]
    dims = cast("list[DimLike]", wider)
    pads = op.const(np.array([0, 0, *before, 0, 0, *behind]))
    return op.node("Pad", x, pads, outputs=((DOUBLE, (batch, channels, *dims)),))


def _correlated(
    op: Emit, x: ir.Value, weight: ir.Value, groups: int, strides: Sequence[int], dilations: Sequence[int]
) -> ir.Value:
    """Conv of a padded image: the strided Slices at all places of the kernel beside each other, times the weights.

    Shapes:  x [N, C, *in], weight [M, C / G, *kernel] -> [N, M, *out].
    """
    outputs, channels, *kernel = (int(dim) for dim in dims_of(weight) if isinstance(dim, int))
    places, axes = math.prod(kernel), [*range(2, 2 + len(kernel))]
    (batch, _, *image), pixels = op.result[0][1], math.prod(op.result[0][1][2:])
    taken = ((DOUBLE, (batch, groups * channels, *image)),)
    flat = ((DOUBLE, (batch, groups, channels, pixels)),)
    parts = []
    shape: ir.Value | None = None
    wanted: ir.Value | None = None
    for place in product(*map(range, kernel)):
        starts = [index * step for index, step in zip(place, dilations, strict=True)]
        left = [(size - 1 - index) * step for index, size, step in zip(place, kernel, dilations, strict=True)]
        ends = [-number if number else INT64_MAX for number in left]
        part = op.node("Slice", x, starts, ends, axes, list(strides), outputs=taken)
        if shape is None:
            shape = op.Slice(op.Shape(part), starts=[2], ends=[INT64_MAX])
            wanted = op.Concat(op.const(np.array([0, groups, channels])), op.ReduceProd(shape, keepdims=1), axis=0)
        parts.append(op.node("Reshape", part, wanted, outputs=flat))
    assert shape is not None
    columns = op.Concat(*parts, axis=2) if len(parts) > 1 else parts[0]
    matrix = op.Reshape(weight, [groups, outputs // groups, channels, places])
    matrix = op.Reshape(op.Transpose(matrix, perm=[0, 1, 3, 2]), [groups, outputs // groups, places * channels])
    target = op.Concat(op.const(np.array([0, outputs])), shape, axis=0)
    result: ir.Value = op.node("Reshape", op.MatMul(matrix, columns), target, outputs=(op.result[0],))
    return result


def _with_bias(op: Emit, y: ir.Value, node: ir.Node, outputs: int, rank: int) -> ir.Value:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return y if bias is None else op.Add(y, op.Reshape(bias, [outputs] + [1] * rank))


def conv(op: Emit, node: ir.Node) -> ir.Value | None:
    """Conv with paddings in numbers and a kernel of known size."""
    x, weight = node.inputs[0], node.inputs[1]
    sizes = _static(weight)
    if x is None or weight is None or sizes is None or not _is_plain(node) or math.prod(sizes[2:]) > MOST_PLACES:
        return None
    rank = len(sizes) - 2
    pads, ones = _ints(node, "pads", [0] * 2 * rank), [1] * rank
    group = node.attributes.get("group")
    y = _correlated(
        op,
        _padded(op, x, pads[:rank], pads[rank:]),
        weight,
        1 if group is None else group.as_int(),
        _ints(node, "strides", ones),
        _ints(node, "dilations", ones),
    )
    return _with_bias(op, y, node, sizes[0], rank)


# -- the table ----------------------------------------------------------------------------------------------------------
Build = Callable[[Emit, ir.Node], ir.Value | None]


def _of_one(function: Callable[[Emit, ir.Value], ir.Value]) -> Build:
    def build(op: Emit, node: ir.Node) -> ir.Value | None:
        x = node.inputs[0]
        return None if x is None else function(op, x)

    return build


FORMS: dict[str, Build] = {
    "Acos": _of_one(acos),
    "Acosh": _of_one(acosh),
    "Asin": _of_one(asin),
    "Asinh": _of_one(asinh),
    "Atan": _of_one(atan),
    "Atanh": _of_one(atanh),
    "Conv": conv,
    "Cosh": _of_one(cosh),
    "Erf": _of_one(erf),
    "Sinh": _of_one(sinh),
    "Tan": _of_one(tan),
}
"""What stands for an operator in float64; None from it where this node has no form."""
