"""Equations of real numbers: sums and products in any order, affine maps in the weights of products, definitions of norms and activations."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.proof.numbers import Number, added, multiplied
from fx2onnx.proof.products import conv_window
from fx2onnx.proof.shapes import reduced_axes
from fx2onnx.proof.terms import AffineMap, Args, Product, Shape, Terms, array_of


def sum_of(terms: Terms, one: int, other: int, shape: Shape, sign: float = 1.0) -> int:
    """``one + sign * other``: shifts apart, and the rest in any order. A sum whose shifts cancel is a value of its own: what it does to
    small numbers is no rounding of the rest.
    """
    numbers = terms.number(one), terms.number(other)
    negative = Number(np.asarray(sign), 0.0)
    if numbers[1] is not None and numbers[0] is None:
        form = terms.affine(one)
        shift = added(form.shift, multiplied(numbers[1], negative))
        kept = _kept(terms, shift, (one, other, sign), shape)
        return terms.term_of(AffineMap(form.core, form.scale, shift)) if kept is None else kept
    if numbers[0] is not None and numbers[1] is None:
        form = scaled(terms.affine(other), negative)
        shift = added(form.shift, numbers[0])
        kept = _kept(terms, shift, (one, other, sign), shape)
        return terms.term_of(AffineMap(form.core, form.scale, shift)) if kept is None else kept
    forms = terms.affine(one), scaled(terms.affine(other), negative)
    shift = added(forms[0].shift, forms[1].shift)
    kept = _kept(terms, shift, (one, other, sign), shape)
    if kept is not None:
        return kept
    parts: list[int] = []
    for form in forms:
        rest = terms.term_of(AffineMap(form.core, form.scale))
        key = terms.key(rest)
        parts += key[1] if key[0] == "sum" else (rest,)
    core = terms.shaped(terms.of("sum", tuple(sorted(parts))), shape)
    return terms.term_of(AffineMap(core, None, shift))


def _kept(terms: Terms, shift: Number | None, key: tuple[Any, ...], shape: Shape) -> int | None:
    """The sum as a term of its own, where its constants cancel."""
    return terms.shaped(terms.of("kept sum", *key), shape) if shift is not None and shift.cancels else None


def scaled(form: AffineMap, scale: Number) -> AffineMap:
    return AffineMap(form.core, multiplied(form.scale, scale), multiplied(form.shift, scale) if form.shift else None)


def times(terms: Terms, one: int, other: int, shape: Shape) -> int:
    """``one * other``: scales apart, and the rest in any order."""
    for value, constant in ((one, other), (other, one)):
        number = terms.number(constant)
        if number is not None:
            return terms.term_of(scaled(terms.affine(value), number))
    scale: Number | None = None
    parts: list[int] = []
    for value in (one, other):
        form = terms.affine(value)
        if form.shift is None and (form.scale is None or form.scale.count == 1):
            scale, value = multiplied(scale, form.scale), form.core
        else:
            whole = terms.forms.get(form.core)
            by = form.scale if not isinstance(whole, Product) else whole.weight
            largest = 0.0 if by is None else by.largest
            if by is not None and largest:  # the factor of the whole map, whatever scalar it was multiplied by
                scale = multiplied(scale, Number(np.asarray(largest), by.unit))
                value = terms.term_of(scaled(form, Number(np.asarray(1 / largest), by.unit)))
        key = terms.key(value)
        parts += key[1] if key[0] == "times" else (value,)
    core = terms.shaped(terms.of("times", tuple(sorted(parts))), shape)
    return terms.term_of(AffineMap(core, scale))


def function(terms: Terms, op: str, x: int, shape: Shape) -> int:
    """An operator of one input without attributes."""
    return terms.shaped(terms.of("function", op, x), shape)


def mean(terms: Terms, x: int, axes: tuple[int, ...], keeps: bool, shape: Shape) -> int:
    """The mean over axes, whose scalar factors and terms stand apart."""
    form = terms.affine(x)
    if any(each is not None and each.count > 1 for each in (form.scale, form.shift)):
        form = AffineMap(x)
    core = terms.shaped(terms.of("mean", form.core, axes, keeps), shape)
    return terms.term_of(AffineMap(core, form.scale, form.shift))


def exactly(terms: Terms, value: float) -> int:
    """A scalar that has no rounding."""
    return terms.constant(np.asarray(value, np.float64))


def product(terms: Terms, kind: str, key: tuple[Any, ...], x: int, weight: Number, shape: Shape) -> int:
    """A product with constant weights, with what scales and shifts its input by channel in them."""
    view = terms.flat_core(x)
    if kind == "MatMul" and view is not None and weight.ndim == 2:
        width = weight.shape[-1]
        inner = product(terms, kind, key, view, weight, (*terms.dims[view][:-1], width))
        return terms.reshaped(inner, (*terms.dims[x][:-1], width))
    form = terms.affine(x)
    shift: Number | None = None
    if kind == "MatMul" and weight.ndim == 2 and (form.scale or form.shift):
        parts = [each for each in (form.scale, form.shift) if each is not None]
        if all(each.ndim <= 1 for each in parts):
            if form.shift is not None:
                row = np.broadcast_to(form.shift.wide, weight.shape[:1])
                size = np.broadcast_to(form.shift.magnitude, row.shape)
                shift = Number(row @ weight.wide, weight.unit, size @ weight.magnitude)
            if form.scale is not None:
                column = form.scale.value.reshape(-1, 1) if form.scale.ndim else form.scale.value
                weight = weight.times(Number(column, form.scale.unit))
            x = form.core
    elif form.scale is not None and form.scale.count == 1 and form.shift is None:
        weight = weight.times(form.scale.part(lambda array: array.reshape(())))
        x = form.core
    core = terms.product(Product(kind, key, x, weight), shape)
    return terms.term_of(AffineMap(core, None, shift))


def split_product(terms: Terms, x: int, shapes: Sequence[Shape]) -> list[int] | None:
    """Parts of a product's outputs are products with parts of the weights."""
    form = terms.affine(x)
    whole, sizes = terms.forms.get(form.core), [shape[-1] for shape in shapes if shape is not None]
    widths = [size for size in sizes if isinstance(size, int)]
    if not isinstance(whole, Product) or whole.kind != "MatMul" or form.scale is not None:
        return None
    if len(widths) != len(shapes) or sum(widths) != whole.weight.shape[-1]:
        return None
    ends = np.cumsum(widths)
    found = []
    for start, end, shape in zip(ends - widths, ends, shapes, strict=True):
        columns = operator.itemgetter((..., slice(start, end)))
        core = terms.product(replace(whole, weight=whole.weight.part(columns)), shape)
        shift = form.shift
        if shift is not None and shift.ndim:
            shift = shift.part(columns)
        found.append(terms.term_of(AffineMap(core, None, shift)))
    return found


RealRule: TypeAlias = Callable[[Terms, Args, Mapping[str, Any], Shape], int | None]
REAL: dict[str, RealRule] = {}


def _rule(*ops: str) -> Callable[[RealRule], RealRule]:
    def register(rule: RealRule) -> RealRule:
        REAL.update(dict.fromkeys(ops, rule))
        return rule

    return register


def _two(args: Args) -> tuple[int, int] | None:
    return (args[0], args[1]) if len(args) == 2 and args[0] is not None and args[1] is not None else None


@_rule("Add", "Sum")
def _add(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    pair = _two(args)
    return None if pair is None else sum_of(terms, *pair, shape)


@_rule("Sub")
def _sub(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    pair = _two(args)
    return None if pair is None else sum_of(terms, *pair, shape, -1.0)


@_rule("Neg")
def _neg(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    return None if args[0] is None else times(terms, args[0], exactly(terms, -1.0), shape)


@_rule("Mul")
def _mul(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    pair = _two(args)
    return None if pair is None else times(terms, *pair, shape)


@_rule("Div")
def _div(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    """``x / c`` is ``x * (1 / c)``, ``x / y`` is ``x * reciprocal(y)``."""
    pair = _two(args)
    if pair is None:
        return None
    number = terms.number(pair[1])
    if number is None:
        inverse = function(terms, "Reciprocal", pair[1], terms.dims.get(pair[1]))
        return times(terms, pair[0], inverse, shape)
    with np.errstate(divide="ignore"):
        inverse_number = Number(1 / number.wide, number.unit)
    if not np.isfinite(inverse_number.value).all():
        return None
    return terms.term_of(scaled(terms.affine(pair[0]), inverse_number))


def _function(op: str) -> RealRule:
    def rule(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
        return None if args[0] is None else function(terms, op, args[0], shape)

    return rule


REAL.update({op: _function(op) for op in ("Reciprocal", "Sqrt", "Erf", "Tanh", "Sigmoid", "Exp", "Relu")})


@_rule("Pow")
def _pow(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    """``x ** 2`` is ``x * x``, ``x ** 3`` is ``x * x * x``, ``x ** 0.5`` is ``sqrt(x)``."""
    pair = _two(args)
    exponent = None if pair is None else terms.constants.get(pair[1])
    if pair is None or exponent is None or exponent.size != 1 or not terms.fits(exponent, pair[0]):
        return None
    match float(exponent.reshape(())):
        case 2.0:
            return times(terms, pair[0], pair[0], shape)
        case 3.0:
            return times(terms, times(terms, pair[0], pair[0], shape), pair[0], shape)
        case 0.5:
            return function(terms, "Sqrt", pair[0], shape)
    return None


@_rule("Clip", "Max")
def _relu(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    """``max(x, 0)`` is ``relu(x)``."""
    bound = array_of(terms, args, 1)
    if args[0] is None or bound is None or bound.size != 1 or bound.any() or (len(args) > 2 and args[2] is not None):
        return None
    if not terms.fits(bound, args[0]):
        return None
    return function(terms, "Relu", args[0], shape)


@_rule("MatMul")
def _matmul(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    pair = _two(args)
    if pair is None:
        return None
    weight = terms.number(pair[1])
    if weight is not None and weight.ndim == 2:
        return product(terms, "MatMul", (), pair[0], weight, shape)
    scale: Number | None = None
    cores = []
    for value in pair:
        form = terms.affine(value)
        if form.shift is None and form.scale is not None and form.scale.count == 1:
            scale, value = multiplied(scale, form.scale), form.core
        cores.append(value)
    return terms.term_of(AffineMap(terms.shaped(terms.of("matmul", *map(terms.alike, cores)), shape), scale))


@_rule("Gemm")
def _gemm(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    """``alpha * a @ b + beta * c``."""
    a = args[0]
    weight = None if args[1] is None else terms.number(args[1])
    if a is None or weight is None or attributes.get("transA"):
        return None
    weight = weight.part(np.transpose) if attributes.get("transB") else weight
    alpha = Number(np.asarray(float(attributes.get("alpha", 1.0))), 0.0)
    found = product(terms, "MatMul", (), a, weight.times(alpha), shape)
    if len(args) < 3 or args[2] is None:
        return found
    beta = exactly(terms, float(attributes.get("beta", 1.0)))
    return sum_of(terms, found, times(terms, args[2], beta, terms.dims.get(args[2])), shape)


@_rule("Conv")
def _conv(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    x = args[0]
    weight = None if args[1] is None else terms.number(args[1])
    if x is None or weight is None:
        return None
    axes = weight.ndim - 2
    x, key = conv_window(terms, x, axes, attributes)
    found = product(terms, "Conv", key, x, weight, shape)
    bias = None if len(args) < 3 or args[2] is None else terms.number(args[2])
    if len(args) > 2 and args[2] is not None:
        if bias is None:
            return None
        column = bias.part(lambda array: array.reshape(-1, *(1,) * axes))
        form = terms.affine(found)
        return terms.term_of(AffineMap(form.core, form.scale, added(form.shift, column)))
    return found


@_rule("BatchNormalization")
def _batch_norm(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    """``(x - mean) / sqrt(variance + epsilon) * scale + shift``, by channel."""
    x = args[0]
    numbers = [None if arg is None else terms.number(arg) for arg in args[1:5]]
    known = None if x is None else terms.dims.get(x)
    if (
        x is None
        or attributes.get("training_mode")
        or not attributes.get("spatial", 1)
        or known is None
        or any(number is None for number in numbers)
    ):
        return None
    scale, shift, mean, variance = (number for number in numbers if number is not None)
    factor = scale.wide / np.sqrt(variance.wide + float(attributes.get("epsilon", 1e-5)))
    column = (-1, *(1,) * (len(known) - 2))
    size = shift.magnitude + mean.magnitude * np.abs(factor)
    by = Number(factor.reshape(column), scale.unit)
    to = Number((shift.wide - mean.wide * factor).reshape(column), scale.unit, size.reshape(column))
    form = scaled(terms.affine(x), by)
    return terms.term_of(AffineMap(form.core, form.scale, added(form.shift, to)))


@_rule("ReduceMean")
def _reduce_mean(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    axes = reduced_axes(terms, args, attributes)
    if axes is None or args[0] is None:
        return None
    return mean(terms, args[0], axes, bool(attributes.get("keepdims", 1)), shape)


@_rule("GlobalAveragePool")
def _global_average(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    known = None if args[0] is None else terms.dims.get(args[0])
    return None if known is None or args[0] is None else mean(terms, args[0], tuple(range(2, len(known))), True, shape)


@_rule("LayerNormalization")
def _layer_norm(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    """``(x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + epsilon) * scale + shift``."""
    x = args[0]
    known = None if x is None else terms.dims.get(x)
    if x is None or known is None or args[1] is None:
        return None
    first = attributes.get("axis", -1) % len(known)
    axes, reduced = tuple(range(first, len(known))), (*known[:first], *(1,) * (len(known) - first))
    centred = sum_of(terms, x, mean(terms, x, axes, True, reduced), known, -1.0)
    variance = mean(terms, times(terms, centred, centred, known), axes, True, reduced)
    # the epsilon is a float32 in an attribute, as it is in a constant
    shifted = sum_of(terms, variance, terms.constant(np.asarray(attributes.get("epsilon", 1e-5)).reshape(())), reduced)
    inverse = function(terms, "Reciprocal", function(terms, "Sqrt", shifted, reduced), reduced)
    found = times(terms, times(terms, centred, inverse, known), args[1], known)
    return found if len(args) < 3 or args[2] is None else sum_of(terms, found, args[2], known)


@_rule("Gelu")
def _gelu(terms: Terms, args: Args, attributes: Mapping[str, Any], shape: Shape) -> int | None:
    """``0.5 * x * (1 + erf(x / sqrt(2)))``, or with tanh ``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``."""
    x = args[0]
    if x is None:
        return None
    one = exactly(terms, 1.0)
    if attributes.get("approximate", b"none") in (b"none", "none"):
        inner = times(terms, x, terms.constant(np.asarray(1 / math.sqrt(2))), shape)
        inside = function(terms, "Erf", inner, shape)
    else:
        cube = times(terms, times(terms, x, x, shape), x, shape)
        inner = sum_of(terms, x, times(terms, cube, terms.constant(np.asarray(0.044715)), shape), shape)
        inside = function(
            terms, "Tanh", times(terms, inner, terms.constant(np.asarray(math.sqrt(2 / math.pi))), shape), shape
        )
    return times(terms, times(terms, x, sum_of(terms, inside, one, shape), shape), exactly(terms, 0.5), shape)
