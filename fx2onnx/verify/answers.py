"""The distance of a model's answers on the user's own inputs: ``verify(..., data=, metric=)``."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fx2onnx.base.errors import UserError, first_line
from fx2onnx.judge.arrays import read_npz
from fx2onnx.judge.engines import Array
from fx2onnx.judge.verdict import AnswerShift, Row, Tried, Verdict
from fx2onnx.verify.arrays import to_numpy, to_tensor
from fx2onnx.verify.case import Trial
from fx2onnx.verify.eager import failed_on_arguments
from fx2onnx.verify.rounded_weights import as_input

LABELS = "labels"
"""The array beside the inputs that has the right answers."""
IGNORED = -100
"""A label that does not count, as in PyTorch's losses."""
CALL = 32
"""Samples of one call, where the file takes any number."""


def _classes(array: Array) -> Array:
    if array.dtype.kind != "f":
        return array
    if array.ndim < 2:
        raise UserError("E001", f"top1 is for scores [N, classes, ...], and the output is {list(array.shape)}")
    return np.asarray(array.argmax(1))


def _tokens(array: Array) -> Array:
    return np.asarray(array.argmax(-1)) if array.dtype.kind == "f" else array


def _words(array: Array) -> list[list[Any]]:
    """The words of each row: of text, of ids, or of scores [N, T, words], as CTC has them: repeats once, and 0 is none.

    Raises: UserError E001 for other shapes.
    """
    if array.dtype.kind in "OUS":
        return [str(each).split() for each in array.reshape(-1)]
    if array.ndim != (3 if array.dtype.kind == "f" else 2):
        told = f"wer is for text, token ids [N, T] or scores [N, T, words], and the array is {array.dtype}{list(array.shape)}"
        steps = "give the output an axis of utterances, or compare with a function: --metric package.module:function"
        raise UserError("E001", told, next=steps)
    rows = _tokens(array)
    if array.dtype.kind != "f":
        return [[each for each in row if each != IGNORED] for row in rows.tolist()]
    kept = np.diff(rows, axis=1, prepend=-1) != 0
    return [row[keep & (row != 0)].tolist() for row, keep in zip(rows, kept, strict=True)]


def _rows(array: Array) -> Array:
    return np.zeros(len(_words(array)))


def distance(found: Sequence[Any], wanted: Sequence[Any]) -> int:
    """The least number of words to insert, leave out or replace (Levenshtein)."""
    above = list(range(len(wanted) + 1))
    for row, one in enumerate(found, 1):
        line = [row]
        for column, other in enumerate(wanted, 1):
            line.append(min(above[column] + 1, line[-1] + 1, above[column - 1] + (one != other)))
        above = line
    return above[-1]


class Share:
    """The share of answers that are equal; labels of -100 do not count."""

    def __init__(self, answer: Callable[[Array], Array]) -> None:
        self.answer = answer
        self.equal = self.count = 0

    def add(self, found: Array, wanted: Array) -> None:
        """Count the answers of one call."""
        one, other = self.answer(found), self.answer(wanted)
        counts = other != IGNORED
        self.count += int(counts.sum())
        if one.shape == other.shape:
            self.equal += int(((one == other) & counts).sum())

    @property
    def value(self) -> float:
        return self.equal / self.count if self.count else math.nan


class WordErrors:
    """The word error rate: edits between the words, over the number of words that are wanted."""

    def __init__(self) -> None:
        self.edits = self.count = 0

    def add(self, found: Array, wanted: Array) -> None:
        """Count the words of one call."""
        for one, other in zip(_words(found), _words(wanted), strict=True):
            self.edits += distance(one, other)
            self.count += len(other)

    @property
    def value(self) -> float:
        return self.edits / self.count if self.count else math.nan


class SignalToNoise:
    """The peak signal-to-noise ratio in dB: ``20 log10(range of what is wanted) - 10 log10(mean squared error)``."""

    def __init__(self) -> None:
        self.squares, self.count, self.least, self.largest = 0.0, 0, math.inf, -math.inf

    def add(self, found: Array, wanted: Array) -> None:
        """Add the pixels of one call."""
        one, other = found.astype(np.float64), wanted.astype(np.float64)
        self.squares += float(np.square(one - other).sum()) if one.shape == other.shape else math.inf
        self.count += other.size
        if other.size:
            self.least, self.largest = min(self.least, float(other.min())), max(self.largest, float(other.max()))

    @property
    def value(self) -> float:
        if not self.count:
            return math.nan
        peak = max(self.largest - self.least, 1e-300)
        return math.inf if not self.squares else 20 * math.log10(peak) - 10 * math.log10(self.squares / self.count)


class Mean:
    """The mean over calls of what a function of the user's gives, weighted by their samples."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function, self.sum, self.count = function, 0.0, 0

    def add(self, found: Array, wanted: Array) -> None:
        """Call the function. Raises UserError E001 where it fails or gives no number."""
        try:
            value = self.function(found, wanted)
            if isinstance(value, str | bytes):
                raise TypeError(f"it returned {value!r:.40}, which is text")
            value = float(value)
        except Exception as cause:  # the user's code
            raise UserError(
                "E001",
                "the metric failed",
                why=f"{type(cause).__name__}: {first_line(cause)[:200]}",
                next="a metric takes two arrays, the file's answers and PyTorch's or the labels, and returns a number",
            ) from cause
        weight = len(wanted) if wanted.ndim else 1
        self.sum, self.count = self.sum + value * weight, self.count + weight

    @property
    def value(self) -> float:
        return self.sum / self.count if self.count else math.nan


METRICS: dict[str, Callable[[], Any]] = {
    "top1": lambda: Share(_classes),
    "tokens": lambda: Share(_tokens),
    "wer": WordErrors,
    "psnr": SignalToNoise,
}


@dataclass(frozen=True)
class Task:
    """The user's inputs by name, and the metric of their answers."""

    arrays: Mapping[str, Array]
    name: str
    """Empty where nothing is asked for."""
    make: Callable[[], Any]
    output: str = ""
    """The output that the metric reads; empty: the first."""

    @staticmethod
    def of(data: Any, metric: Any) -> Task:
        """From a path or a mapping, and a name, ``NAME:OUTPUT``, ``package.module:function`` or a function. Raises UserError E001, E302."""
        if data is None and metric is None:
            return Task({}, "", lambda: None)
        if data is None or metric is None:
            missing, other = ("data", "metric") if data is None else ("metric", "data")
            steps = (
                f"metric: {', '.join(METRICS)}, or a function of two arrays" if data is not None else "data='FILE.npz'"
            )
            raise UserError("E001", f"{other}= needs {missing}=", next=steps)
        arrays = read_npz(data) if isinstance(data, str | os.PathLike) else {key: np.asarray(data[key]) for key in data}
        if callable(metric):
            return Task(arrays, getattr(metric, "__name__", "metric"), lambda: Mean(metric))
        name, _, output = str(metric).partition(":")
        if name in METRICS:
            return Task(arrays, name, METRICS[name], output)
        function = _function(name, output)
        return Task(arrays, output, lambda: Mean(function))

    def _check_labels(self, wanted: Array, labels: Array) -> None:
        """Raises UserError E001 for labels of another shape than the answers, or of another kind."""
        answers: dict[str, Callable[[Array], Array]] = {
            "top1": _classes, "tokens": _tokens, "psnr": np.asarray, "wer": _rows
        }  # fmt: skip
        answer = answers.get(self.name)
        if answer is None:
            return
        is_text, is_of_text = (each.dtype.kind in "OUS" for each in (wanted, labels))
        is_half = labels.dtype.kind == "f" and labels.ndim < wanted.ndim and self.name != "psnr"  # classes as floats
        shapes = [] if is_half else [answer(each).shape for each in (wanted, labels)]
        if is_half or is_text != is_of_text or shapes[0] != shapes[1]:
            given = f"labels {labels.dtype}{list(labels.shape)}"
            kind = "text" if is_text else "numbers" if self.name == "psnr" else "integers"
            shape = f" of shape {list(answer(wanted).shape)}" if self.name != "wer" else f", {len(_words(wanted))} rows"
            raise UserError(
                "E001",
                f"{self.name} compares answers {list(answer(wanted).shape)} with {given}",
                next=f"give {kind}{shape}",
            )

    def measure(
        self, verdict: Verdict, case: Trial, unrounded: contextlib.AbstractContextManager[None] | None = None
    ) -> None:
        """Run eager PyTorch and the engines on the inputs, and note how far the answers move. ``unrounded``: a context in which
        the module has its own weights, where it has rounded ones outside.
        """
        if not self.name:
            return
        index = self._index(case.file.outputs)
        engines = dict(case.runs)
        scores = {engine: (self.make(), self.make(), self.make()) for engine in engines}
        own, count = self.make(), 0
        for tensors, labels in self._calls(case):
            feeds = {
                name: np.ascontiguousarray(as_input(to_numpy(tensor), name, case.file))
                for name, tensor in zip(case.names, tensors, strict=True)
                if name is not None
            }
            try:
                with unrounded or contextlib.nullcontext():
                    wanted = case.eager.run(tensors)[index]
                rounded = wanted if unrounded is None else case.eager.run(tensors)[index]
            except Exception as cause:  # forward is the user's code
                raise failed_on_arguments(cause, "the arrays of data") from cause
            count += 1
            if labels is not None:
                self._check_labels(wanted, labels)
                own.add(wanted, labels)
            for engine in list(engines):
                try:
                    found = engines[engine](feeds)[index]
                except Exception as cause:  # each engine has classes of its own
                    problem = f"{type(cause).__name__}: {first_line(cause)[:300]}"
                    verdict.rows.append(Row.failed(engine, "(all)", "data", problem))
                    del engines[engine]
                    continue
                to_eager, to_rounded, to_labels = scores[engine]
                to_eager.add(found, wanted)
                if unrounded is not None:
                    to_rounded.add(found, rounded)
                if labels is not None:
                    to_labels.add(found, labels)
        has_labels = self._labels(case.file.inputs) is not None
        for engine in engines:
            to_eager, to_rounded, to_labels = scores[engine]
            by_labels = (to_labels.value, own.value) if has_labels else (None, None)
            by_rounded = None if unrounded is None else to_rounded.value
            shift = (to_eager.value, to_eager.count, *by_labels, by_rounded)
            verdict.moved.append(AnswerShift(engine, self.name, case.file.outputs[index], *shift))
        verdict.tried.append(Tried("data", {"calls": count}, "data", list(engines)))

    def _index(self, outputs: Sequence[str]) -> int:
        if self.output and self.output not in outputs:
            raise UserError("E001", f"the file has no output {self.output!r}", next=f"outputs: {', '.join(outputs)}")
        return outputs.index(self.output) if self.output else 0

    def _labels(self, inputs: Sequence[str]) -> Array | None:
        return None if LABELS in inputs else self.arrays.get(LABELS)

    def _calls(self, case: Trial) -> Iterator[tuple[list[torch.Tensor], Array | None]]:
        """The arguments of each call, and the labels of its samples."""
        leaves = case.eager.arguments.leaves
        samples = {
            name: to_numpy(leaf.tensor) for name, leaf in zip(case.names, leaves, strict=True) if name is not None
        }
        labels = self._labels(case.file.inputs)
        pieces = {name: _pieces(name, self.arrays[name], samples[name], case.file.axes[name]) for name in samples}
        count = max(map(len, pieces.values()), default=1)
        has_front = any(self.arrays[name].ndim > sample.ndim for name, sample in samples.items())
        end = 0
        for call in range(count):
            chosen = {name: each[call % len(each)] for name, each in pieces.items()}
            rows = max(
                (len(array) for name, array in chosen.items() if array.ndim and len(pieces[name]) == count), default=0
            )
            start, end = end, end + rows
            is_whole = labels is None or not rows or (count == 1 and not has_front)
            wanted = labels if is_whole or labels is None else labels[call] if has_front else labels[start:end]
            yield (
                [
                    leaf.tensor.detach().cpu() if name is None else to_tensor(chosen[name])
                    for name, leaf in zip(case.names, leaves, strict=True)
                ],
                wanted,
            )

    def check(self, case: Trial) -> None:
        """Raises UserError E401 where the arrays do not fit the inputs, E001 for an output that the file does not have."""
        if not self.name:
            return
        self._index(case.file.outputs)
        samples = _samples(case)
        missing = [name for name in samples if name not in self.arrays]
        unknown = [name for name in self.arrays if name not in samples and name != LABELS]
        if missing or unknown:
            what = (
                f"data has no array for the input {missing[0]!r}"
                if missing
                else f"the file has no input {unknown[0]!r}"
            )
            steps = f"name the arrays as the inputs: {', '.join(samples)}; right answers: {LABELS}"
            raise UserError("E401", what, next=steps)
        for name, sample in samples.items():
            array, axes = self.arrays[name], case.file.axes[name]
            front = array.ndim - sample.ndim
            own = enumerate(array.shape[front:])
            is_other = any(axis not in axes and size != sample.shape[axis] for axis, size in own if axis or front)
            if array.dtype != sample.dtype or not 0 <= front <= 1 or not array.size or is_other:
                given, wanted = f"{array.dtype}{list(array.shape)}", f"{sample.dtype}{list(sample.shape)}"
                raise UserError(
                    "E401",
                    f"the array {name!r} of data is {given}, and the input {wanted}",
                    next=f"give {sample.dtype} with its axes, or with one more in front: an entry for each call",
                )
        self._check_counts(samples, case.file.axes)

    def _check_counts(self, samples: Mapping[str, Array], axes: Mapping[str, Mapping[int, str]]) -> None:
        """Raises UserError E401 where one sample is not in all arrays."""
        counts = {name: len(_pieces(name, self.arrays[name], samples[name], axes[name])) for name in samples}
        most = max(counts.values(), default=1)
        sizes: dict[Any, dict[str, int]] = {"calls": {name: count for name, count in counts.items() if count > 1}}
        for name, sample in samples.items():
            front = self.arrays[name].ndim - sample.ndim
            for axis, dim in axes[name].items():
                sizes.setdefault((dim, front), {})[name] = self.arrays[name].shape[axis + front]
        for each in sizes.values():
            if len({*each.values()}) > 1:
                said = ", ".join(f"{name} {len(self.arrays[name])}" for name in each)
                raise UserError(
                    "E401",
                    f"the arrays of data have different numbers of samples: {said}",
                    next="give each sample in all arrays",
                )
        labels, first = self._labels(list(samples)), next((name for name in samples if counts[name] == most), "")
        if labels is not None and most > 1 and labels.shape[:1] != self.arrays[first].shape[:1]:
            what = f"data has {len(self.arrays[first])} samples of {first!r}, and labels {list(labels.shape)}"
            raise UserError("E401", what, next="give labels for each sample, in their order")


def _samples(case: Trial) -> dict[str, Array]:
    """The example arrays of the file's inputs."""
    pairs = zip(case.names, case.eager.arguments.leaves, strict=True)
    return {name: to_numpy(leaf.tensor) for name, leaf in pairs if name is not None}


def _pieces(name: str, array: Array, sample: Array, axes: Mapping[int, str]) -> list[Array]:
    """The part of an array for each call: its rows where it has an axis in front, or as many as the file takes at once."""
    if array.ndim > sample.ndim:
        return list(array)
    if not sample.ndim:
        return [array]
    at_once = min(CALL, len(array)) if 0 in axes else len(sample)
    if not at_once or (len(array) % at_once and 0 not in axes):
        raise UserError(
            "E401",
            f"the file takes {at_once} rows of {name!r} at a time, and data has {len(array)}",
            next=f"give a multiple of {at_once} rows, or export with a dynamic batch: dynamic_shapes={{{name!r}: {{0: 'batch'}}}}",
        )
    return [array[start : start + at_once] for start in range(0, len(array), at_once)]


def _function(place: str, name: str) -> Callable[[Any, Any], Any]:
    """``package.module:function``. Raises UserError E001."""
    known = f"one of {', '.join(METRICS)}, or package.module:function"
    if not name:
        raise UserError("E001", f"unknown metric {place!r}", next=known)
    try:
        found = getattr(importlib.import_module(place), name)
    except Exception as cause:  # the user's module may raise anything
        why = f"{type(cause).__name__}: {first_line(cause)[:200]}"
        raise UserError("E001", f"the metric {place}:{name} cannot be imported", why=why, next=known) from cause
    if not callable(found):
        raise UserError("E001", f"the metric {place}:{name} is no function", next=known)
    function: Callable[[Any, Any], Any] = found
    return function
