"""Shape errors that surely happen are found when the session is made, in bodies that surely run, too; others are left to the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError

node = helper.make_node


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def model_of(
    nodes: list[Any], inputs: dict[str, list[Any]], weights: dict[str, Any], functions: list[Any] | None = None
) -> onnx.ModelProto:
    """A model that gives the last output of the last node."""
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()]
    constants = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    output = helper.make_empty_tensor_value_info(nodes[-1].output[-1])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    graph = helper.make_graph(nodes, "g", infos, [output], constants)
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


def session_of(
    nodes: list[Any],
    inputs: dict[str, list[Any]],
    weights: dict[str, Any],
    functions: list[Any] | None = None,
    **sizes: int,
) -> Any:
    """A session in which ``sizes`` are free dimensions that the options make known."""
    settings = ort.SessionOptions()
    for name, size in sizes.items():
        settings.add_free_dimension_override_by_name(name, size)
    return ort.InferenceSession(model_of(nodes, inputs, weights, functions), settings)


SHAPE_OF_X = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"])]

NEVER_FIT: dict[str, tuple[list[Any], dict[str, list[Any]], dict[str, Any]]] = {
    "matmul": ([node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 4]}, {"w": f32(5, 2)}),
    "matmul_batch": ([node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 2, "k", 4]}, {"w": f32(3, 4, 2)}),
    "gemm": ([node("Gemm", ["x", "w"], ["y"], transB=1)], {"x": ["n", 4]}, {"w": f32(2, 5)}),
    "add": ([node("Add", ["x", "w"], ["y"])], {"x": ["n", 3]}, {"w": f32(5)}),
    "channels": ([node("Conv", ["x", "w"], ["y"])], {"x": ["n", 3, "h", "h"]}, {"w": f32(8, 4, 3, 3)}),
    "concat": ([node("Concat", ["x", "w"], ["y"], axis=0)], {"x": ["n", 3]}, {"w": f32(2, 4)}),
    "after_others": (
        [
            node("Relu", ["x"], ["a"]),
            node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
            node("Softmax", ["t"], ["p"]),
            node("MatMul", ["p", "w"], ["y"]),
        ],
        {"x": ["n", 4, 6]},
        {"w": f32(6, 2)},
    ),
    "after_a_computed_shape": (
        [
            *SHAPE_OF_X,
            node("Concat", ["n", "rest"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["r"]),
            node("MatMul", ["r", "w"], ["y"]),
        ],
        {"x": ["n", 2, 6]},
        {"zero": np.array([0]), "rest": np.array([12]), "w": f32(6, 2)},
    ),
    "two_unknown": ([node("Add", ["x", "z"], ["y"])], {"x": ["n", 3], "z": ["m", 4]}, {}),
}
MAY_FIT: dict[str, tuple[list[Any], dict[str, list[Any]], dict[str, Any], dict[str, Any]]] = {
    "matmul": ([node("MatMul", ["x", "w"], ["y"])], {"x": ["n", "k"]}, {"w": f32(5, 2)}, {"x": f32(3, 5)}),
    "two_names": ([node("Add", ["x", "z"], ["y"])], {"x": ["n"], "z": ["m"]}, {}, {"x": f32(4), "z": f32(4)}),
    "broadcast": ([node("Add", ["x", "w"], ["y"])], {"x": ["n", "k"]}, {"w": f32(7, 5)}, {"x": f32(7, 1)}),
    "two_different": ([node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 2, "k"]}, {"w": f32(3, 5, 2)}, {"x": f32(3, 2, 5)}),
    "groups": ([node("Conv", ["x", "w"], ["y"], group=2)], {"x": [1, "c", 8, 8]}, {"w": f32(4, 3, 3, 3)}, {"x": f32(1, 6, 8, 8)}),
    "large_enough": ([node("Conv", ["x", "w"], ["y"])], {"x": [1, 1, "n"]}, {"w": f32(1, 1, 500)}, {"x": f32(1, 1, 600)}),
    "computed_shape": (
        [*SHAPE_OF_X, node("Concat", ["n", "rest"], ["t"], axis=0), node("Reshape", ["x", "t"], ["y"])],
        {"x": ["n", 2]},
        {"zero": np.array([0]), "rest": np.array([1, 2])},
        {"x": f32(5, 2)},
    ),
    "divisible": (
        [node("Reshape", ["x", "t"], ["r"]), node("MatMul", ["r", "w"], ["y"])],
        {"x": ["n", 3]},
        {"t": np.array([-1, 4]), "w": f32(4, 2)},
        {"x": f32(8, 3)},
    ),
}  # fmt: skip


def body(nodes: list[Any], inputs: list[str], outputs: list[str], name: str = "body") -> onnx.GraphProto:
    """A body whose values have no declared types."""
    infos = [helper.make_empty_tensor_value_info(each) for each in inputs]
    return helper.make_graph(nodes, name, infos, [helper.make_empty_tensor_value_info(each) for each in outputs])


MISFIT = body([node("MatMul", ["x", "w"], ["z"])], [], ["z"], "misfit")
FIT = body([node("Relu", ["x"], ["z"])], [], ["z"], "fit")


def looped(trips: str, keep_on: str, nodes: list[Any], state: tuple[str, ...] = ("x",)) -> Any:
    graph = body(nodes, ["i", "c", *(f"{name}_in" for name in state)], ["c", *(f"{name}_out" for name in state)])
    return node("Loop", [trips, keep_on, *state], ["y", *(f"{name}_last" for name in state[1:])], body=graph)


def scanned(nodes: list[Any], state: str = "x", rows: str = "rows") -> Any:
    graph = body(nodes, ["state", "row"], ["after", "out"])
    return node("Scan", [state, rows], ["last", "y"], body=graph, num_scan_inputs=1)


WEIGHTS = {
    "w": f32(5, 2), "w44": f32(4, 4), "column": f32(2, 1), "yes": np.array(True), "no": np.array(False),
    "three": np.array(3), "zero_trips": np.array(0), "zero": np.array([0]), "ten": np.array([10]),
    "fifty": np.array([50]), "rows": f32(3, 4),
}  # fmt: skip
STEP_FITS = [node("MatMul", ["x_in", "w44"], ["x_out"])]
STEP_MISFITS = [node("MatMul", ["x_in", "w"], ["x_out"])]
ROWS_ADD = [node("Add", ["state", "row"], ["after"]), node("Identity", ["row"], ["out"])]
ROWS_MISFIT = [node("MatMul", ["row", "w"], ["out"]), node("Identity", ["state"], ["after"])]
LONG = [*SHAPE_OF_X, node("Greater", ["n", "ten"], ["long"])]

NEVER_FIT_IN_BODIES: dict[str, tuple[list[Any], dict[str, list[Any]]]] = {
    "branch_taken": ([node("If", ["yes"], ["y"], then_branch=MISFIT, else_branch=FIT)], {"x": ["n", 4]}),
    "after_a_branch": ([node("If", ["yes"], ["t"], then_branch=FIT, else_branch=MISFIT), node("MatMul", ["t", "w"], ["y"])], {"x": ["n", 4]}),
    "after_either_branch": (
        [
            node("Cast", ["flag"], ["c"], to=TensorProto.BOOL),
            node("If", ["c"], ["t"], then_branch=FIT, else_branch=FIT),
            node("MatMul", ["t", "w"], ["y"]),
        ],
        {"x": ["n", 4], "flag": [1]},
    ),
    "loop_counted": ([looped("three", "", STEP_MISFITS)], {"x": ["n", 4]}),
    "loop_while": ([looped("", "yes", STEP_MISFITS)], {"x": ["n", 4]}),
    "after_a_loop": ([looped("three", "yes", STEP_FITS), node("MatMul", ["y", "w"], ["q"])], {"x": ["n", 4]}),
    "scan": ([scanned(ROWS_MISFIT)], {"x": [4]}),
    "after_a_scan": ([scanned(ROWS_ADD), node("MatMul", ["y", "w"], ["q"])], {"x": [4]}),
    "scan_lengths": (
        [node("Scan", ["x", "rows"], ["y"], num_scan_inputs=2, body=body([node("Add", ["a", "b"], ["s"])], ["a", "b"], ["s"]))],
        {"x": [5, 4]},
    ),
    "body_inside_a_body": (
        [node("If", ["yes"], ["y"], else_branch=FIT, then_branch=body([looped("three", "", STEP_MISFITS)], [], ["y"]))],
        {"x": ["n", 4]},
    ),
    "too_few_inputs": (
        [node("Loop", ["three", "", "x"], ["y"], body=body([node("Identity", ["c"], ["d"])], ["i", "c"], ["c", "d"]))],
        {"x": ["n", 4]},
    ),
}  # fmt: skip

MAY_FIT_IN_BODIES: dict[str, tuple[list[Any], dict[str, list[Any]], dict[str, Any]]] = {
    "branch_not_taken": ([node("If", ["no"], ["y"], then_branch=MISFIT, else_branch=FIT)], {"x": ["n", 4]}, {"x": f32(3, 4)}),
    "branch_by_size": ([*LONG, node("If", ["long"], ["y"], then_branch=MISFIT, else_branch=FIT)], {"x": ["n", 4]}, {"x": f32(3, 4)}),
    "after_a_branch_by_size": (
        [
            *LONG,
            node("If", ["long"], ["t"], then_branch=FIT, else_branch=body([node("Identity", ["w44"], ["z"])], [], ["z"])),
            node("Concat", ["t", "w44"], ["y"], axis=1),
        ],
        {"x": ["n", 5]},
        {"x": f32(4, 5)},
    ),
    "loop_of_no_trips": ([looped("zero_trips", "", STEP_MISFITS)], {"x": ["n", 4]}, {"x": f32(3, 4)}),
    "loop_never_started": ([looped("three", "no", STEP_MISFITS)], {"x": ["n", 4]}, {"x": f32(3, 4)}),
    "loop_by_size": ([*SHAPE_OF_X, looped("n", "", STEP_MISFITS)], {"x": ["n", 4]}, {"x": f32(0, 4)}),
    "growing_state_of_known_size": (
        [
            looped("three", "", [node("Concat", ["x_in", "x_in"], ["x_out"], axis=0)]),
            node("MatMul", ["y8", "y"], ["q"]),
        ],
        {"x": [1, 4], "y8": [2, 8]},
        {"x": f32(1, 4), "y8": f32(2, 8)},
    ),
    "state_whose_rank_grows": (
        [looped("three", "", [node("Unsqueeze", ["x_in", "zero"], ["x_out"])]), node("Transpose", ["y"], ["q"], perm=[3, 0, 1, 2])],
        {"x": [4]},
        {"x": f32(4)},
    ),
    "one_state_grows_and_the_other_follows": (
        [
            looped("three", "", [
                node("Concat", ["x_in", "x_in"], ["x_out"], axis=0),
                node("ReduceSum", ["x_in"], ["s"], keepdims=0),
                node("Add", ["z_in", "s"], ["z_out"]),
            ], ("x", "z")),
            node("Concat", ["y", "z_last"], ["q"], axis=0),
        ],
        {"x": [1], "z": [8]},
        {"x": f32(1), "z": f32(8)},
    ),
    "iteration_decides": (
        [
            looped("three", "", [node("Unsqueeze", ["i", "zero"], ["i1"]), node("Slice", ["x_in", "i1", "fifty", "zero"], ["x_out"])]),
            node("MatMul", ["column", "y"], ["q"]),
        ],
        {"x": [4, 4]},
        {"x": f32(4, 4)},
    ),
    "branches_that_differ": (
        [
            node("Cast", ["flag"], ["c"], to=TensorProto.BOOL),
            node("If", ["c"], ["t"], then_branch=body([node("Identity", ["w44"], ["z"])], [], ["z"]), else_branch=FIT),
            node("MatMul", ["column", "t"], ["y"]),
        ],
        {"x": [1, 4], "flag": [1]},
        {"x": f32(1, 4), "flag": 0 * f32(1)},
    ),
    "scan_of_no_rows": ([scanned(ROWS_MISFIT, rows="r")], {"x": [4], "r": [0, 4]}, {"x": f32(4), "r": f32(0, 4)}),
    "scan_by_size": ([scanned(ROWS_MISFIT, rows="r")], {"x": [4], "r": ["n", 4]}, {"x": f32(4), "r": f32(0, 4)}),
    "cut": ([node("Slice", ["x", "zero", "fifty"], ["t"]), node("Add", ["t", "w44"], ["y"])], {"x": ["n", 4]}, {"x": f32(4, 4)}),
    "two_cuts": (
        [
            node("Slice", ["x", "zero", "fifty"], ["t"]),
            node("Slice", ["z", "zero", "ten"], ["s"]),
            node("Concat", ["t", "s"], ["r"], axis=1),
            node("MatMul", ["w44", "r"], ["y"]),
        ],
        {"x": ["n", 4], "z": ["m", 4]},
        {"x": f32(4, 4), "z": f32(4, 4)},
    ),
}  # fmt: skip
NEVER_FIT |= {name: (*row, WEIGHTS) for name, row in NEVER_FIT_IN_BODIES.items()}
MAY_FIT |= {name: (nodes, inputs, WEIGHTS, feeds) for name, (nodes, inputs, feeds) in MAY_FIT_IN_BODIES.items()}
BEYOND_THE_REFERENCE = {
    "growing_state_of_known_size": 8 * f32(2, 4), "state_whose_rank_grows": f32(4, 1, 1, 1),
    "one_state_grows_and_the_other_follows": np.repeat(np.array([1, 8], np.float32), 8), "iteration_decides": f32(2, 4),
    "scan_of_no_rows": f32(0), "scan_by_size": f32(0),
}  # fmt: skip
"""Results of models that ``onnx.reference`` runs wrongly (states of loops that change their shape) or refuses (no rows)."""


@pytest.mark.parametrize("name", NEVER_FIT)
def test_refused_when_the_session_is_made(name: str) -> None:
    with pytest.raises(UserError) as caught:
        session_of(*NEVER_FIT[name])
    assert caught.value.code == "E303"
    assert ("known before anything ran" in caught.value.why) == (name != "too_few_inputs")
    assert " = " in caught.value.node


@pytest.mark.parametrize("name", MAY_FIT)
def test_left_to_the_run(name: str) -> None:
    *parts, feeds = MAY_FIT[name]
    (found,) = session_of(*parts).run(None, feeds)
    wanted = BEYOND_THE_REFERENCE.get(name)
    if wanted is None:
        (wanted,) = ReferenceEvaluator(model_of(*parts)).run(None, feeds)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_an_override_makes_a_size_known() -> None:
    nodes, inputs, weights, _ = MAY_FIT["matmul"]
    with pytest.raises(UserError, match="inner dims differ"):
        session_of(nodes, inputs, weights, k=4)


def test_the_error_names_the_line_of_source() -> None:
    product = node("MatMul", ["x", "w"], ["y"])
    product.metadata_props.add(key="source", value="model.py:12")
    with pytest.raises(UserError) as caught:
        session_of([product], {"x": ["n", 4]}, {"w": f32(5, 2)})
    assert "model.py:12" in caught.value.node
    gather = node("Gather", ["x", "i"], ["y"])
    gather.metadata_props.add(key="source", value="model.py:14")
    session = session_of([gather], {"x": [3]}, {"i": np.array([7])})
    with pytest.raises(UserError, match=r"model\.py:14"):
        session.run(None, {"x": f32(3)})


def test_a_dtype_that_onnx_does_not_allow_is_refused() -> None:
    """NumPy would drop the imaginary part in silence."""
    info = helper.make_tensor_value_info
    for dims in ([2], None):
        graph = helper.make_graph(
            [node("Erf", ["x"], ["y"])],
            "g",
            [info("x", TensorProto.COMPLEX64, dims)],
            [info("y", TensorProto.FLOAT, None)],
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        with pytest.raises(UserError, match="Erf cannot have values of these types") as caught:
            ort.InferenceSession(proto)
        assert caught.value.code == "E303"


def test_a_function_called_in_a_body() -> None:
    """Functions are expanded where they are called, so what fits depends on the call."""
    imports = [helper.make_opsetid("", 21)]
    function = helper.make_function("f", "Project", ["a", "b"], ["p"], [node("MatMul", ["a", "b"], ["p"])], imports)

    def branch(weight: str) -> onnx.GraphProto:
        return body([node("Project", ["x", weight], ["z"], domain="f")], [], ["z"])

    wrong = node("If", ["yes"], ["y"], then_branch=branch("w"), else_branch=branch("w44"))
    right = node("If", ["yes"], ["y"], then_branch=branch("w44"), else_branch=branch("w"))
    session_of([right], {"x": ["n", 4]}, WEIGHTS, [function]).run(None, {"x": f32(3, 4)})
    with pytest.raises(UserError, match="do not fit"):
        session_of([wrong], {"x": ["n", 4]}, WEIGHTS, [function])


@pytest.mark.long
def test_the_search_for_a_size_that_fits_is_bounded() -> None:
    """A long graph ends in an answer at once: what was not searched is left to the run."""
    chain = [node("Relu", ["x" if not n else f"a{n - 1}"], [f"a{n}"]) for n in range(20_000)]
    session_of(
        [*chain, node("Slice", [f"a{len(chain) - 1}", "zero", "fifty"], ["t"]), node("Add", ["t", "w44"], ["y"])],
        {"x": ["n", 4]},
        WEIGHTS,
    )


@pytest.mark.parametrize("op_type", ["Add", "Div", "Pow", "Less", "Max"])
@pytest.mark.parametrize("shape", [[], [1], [1, 1]])
def test_one_number_beside_no_elements(op_type: str, shape: list[int]) -> None:
    node = helper.make_node(op_type, ["x", "s"], ["y"])
    session = session_of([node], {"x": ["a", "b"]}, {"s": np.ones(shape, np.float32)})
    assert session.run(None, {"x": np.ones((3, 0), np.float32)})[0].shape == (3, 0)
