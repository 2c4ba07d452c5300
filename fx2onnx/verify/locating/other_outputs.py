"""A file that has other outputs than forward, or the same in another order."""

from __future__ import annotations

from collections.abc import Sequence

from fx2onnx.judge.engines import Array
from fx2onnx.verify.locating.difference import Difference, difference
from fx2onnx.verify.locating.first_wrong import FirstWrong
from fx2onnx.verify.locating.onnx_file import OnnxFile


def missing(file: OnnxFile, count: int) -> FirstWrong:
    """Forward has ``count`` outputs, and the file another number of them."""
    problem = f"the file has {len(file.outputs)} outputs, eager PyTorch {count}"
    return _reported(problem, file.outputs, (), "no node was looked at")


def reordered(file: OnnxFile, results: Sequence[Array], wants: Sequence[Array]) -> FirstWrong | None:
    """Every one of forward's outputs is in the file, in another order; None where that is not so."""
    order: list[int] = []
    for got in results:
        places = (place for place in range(len(wants)) if place not in order)
        found = next((place for place in places if not difference(got, wants[place]).is_wrong), None)
        if found is None:
            return None
        order.append(found)
    moved = [name for place, name in enumerate(file.outputs) if order[place] != place]
    text = ", ".join(str(place + 1) for place in order)
    nodes = [file.nodes[file.producer[name]] for name in moved if name in file.producer]
    problem = f"the file has forward's outputs 1 to {len(order)} in the order {text}"
    return _reported(
        problem, moved, [node.name or node.output[0] for node in nodes], "the outputs themselves are right"
    )


def _reported(problem: str, outputs: Sequence[str], nodes: Sequence[str], why: str) -> FirstWrong:
    found = Difference(float("inf"), 0.0, 0, 0, problem=problem)
    return FirstWrong("translation", tuple(nodes), ", ".join(outputs), None, "", (), found, "", why)
