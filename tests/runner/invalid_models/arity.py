"""Numbers of inputs and outputs."""

from __future__ import annotations

from invalid_models.case import ABORTS, AT_LOAD, AT_RUN, IF, LOOP, Case

ARITY = {
    "outputs_more_than_the_operator_has": Case(
        "g (float[2] x) => (float[2] y) { y, z = Neg(x) }",
        refused="Neg has 1..1 outputs, not 2",
        onnxruntime=AT_LOAD,
    ),
    "outputs_fewer_than_the_operator_has": Case(
        "g (float[2] x, int64[1] k) => (float[1] y) { y = TopK(x, k) }",
        refused="TopK has 2..2 outputs, not 1",
        onnxruntime=AT_LOAD,
    ),
    "outputs_none": Case(
        "g (float[2] x) => (float[2] y) { y = Neg(x) t = Abs(x) }",
        edit=lambda model: model.graph.node[1].ClearField("output"),
        refused="Abs has 1..1 outputs, not 0",
        onnxruntime=AT_LOAD,
    ),
    "inputs_more_than_the_operator_has": Case(
        "g (float[2] x) => (float[2] y) { y = Neg(x, x) }",
        refused="Neg takes 1..1 inputs and has 2",
        onnxruntime=AT_LOAD,
    ),
    "inputs_fewer_than_the_operator_has": Case(
        "g (float[2] x) => (float[2] y) { y = Add(x) }",
        refused="Add takes 2..2 inputs and has 1",
        onnxruntime=AT_LOAD,
    ),
    "inputs_fewer_than_the_operator_has_unread": Case(
        "g (float[2] x) => (float[2] y) { y = Neg(x) t = Add(x) }",
        refused="Add takes 2..2 inputs and has 1",
        onnxruntime=AT_LOAD,
    ),
    "outputs_fewer_than_split_makes": Case(
        "g (float[4] x) => (float[2] y) { y = Split <num_outputs = 2> (x) }",
        refused="num_outputs is 2, the node has 1 outputs",
        because="Split: num_outputs is the number of outputs; onnxruntime returns the whole",
        elsewhere=(AT_RUN,),
    ),
    "outputs_more_than_split_makes": Case(
        "g (float[4] x) => (float[2] y, float[2] z) { y, z, w = Split <num_outputs = 2> (x) }",
        refused="num_outputs is 2, the node has 3 outputs",
        onnxruntime=ABORTS,
        because="not tried: onnxruntime ends the process",
    ),
    "outputs_fewer_than_split_sizes": Case(
        "g (float[4] x) => (float[2] y) <int64[2] s = {2, 2}> { y = Split(x, s) }",
        refused="2 parts are asked for, the node has 1 outputs",
        onnxruntime=AT_LOAD,
    ),
    "outputs_more_than_split_sizes": Case(
        "g (float[4] x) => (float[2] y, float[2] z) <int64[2] s = {2, 2}> { y, z, w = Split(x, s) }",
        refused="2 parts are asked for, the node has 3 outputs",
        onnxruntime=AT_LOAD,
    ),
    "outputs_more_than_branches_make": Case(
        IF.replace("{ y = If", "{ y, z = If"),
        refused="the then_branch has 1 outputs, the node needs 2",
        onnxruntime=AT_LOAD,
    ),
    "outputs_fewer_than_branches_make": Case(
        IF.replace("(float[2] u)", "(float[2] u, float[2] x)").replace("(float[2] v)", "(float[2] v, float[2] x)"),
        refused="nothing in graph 'a' makes its output 'x'",
        onnxruntime=AT_LOAD,
    ),
    "outputs_different_of_branches": Case(
        IF.replace("{ u = Neg(x) }", "{ u = Neg(x) w = Abs(x) }").replace("(float[2] u)", "(float[2] u, float[2] w)"),
        refused="the then_branch has 2 outputs, the node needs 1",
        onnxruntime=AT_LOAD,
    ),
    "inputs_of_a_branch": Case(
        IF.replace("a ()", "a (float[2] q)"),
        refused="the then_branch takes 1 inputs and is given 0",
        onnxruntime=AT_LOAD,
    ),
    "branch_missing": Case(
        IF,
        edit=lambda model: model.graph.node[0].attribute.__delitem__(1),
        refused="If needs the attribute 'else_branch'",
        onnxruntime=AT_LOAD,
    ),
    "loop_body_of_fewer_inputs": Case(
        LOOP.replace(", float[2] s)", ")").replace("Neg(s)", "Neg(x)"),
        refused="the body takes 2 inputs and is given 3",
        onnxruntime=AT_LOAD,
    ),
    "loop_body_of_more_inputs": Case(
        LOOP.replace("float[2] s)", "float[2] s, float[2] r)"),
        refused="the body takes 4 inputs and is given 3",
        onnxruntime=AT_LOAD,
    ),
    "loop_body_of_fewer_outputs": Case(
        LOOP.replace(", float[2] v)", ")"),
        refused="the body has 1 outputs, the node needs 2",
        onnxruntime=AT_LOAD,
    ),
    "loop_body_without_outputs": Case(
        LOOP.replace("(bool d, float[2] v)", "()"),
        refused="the body has 0 outputs, the node needs 2",
        onnxruntime=AT_LOAD,
    ),
    "outputs_more_than_the_loop_makes": Case(
        LOOP.replace("{ y = Loop", "{ y, z = Loop"),
        refused="the body has 2 outputs, the node needs 3",
        onnxruntime=AT_LOAD,
    ),
    "outputs_fewer_than_the_loop_makes": Case(
        LOOP.replace("(bool d, float[2] v)", "(bool d, float[2] v, float[2] s)"),
        refused="the body has 3 outputs, the node needs 2",
        onnxruntime=AT_LOAD,
    ),
    "scan_of_more_inputs_than_there_are": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 2, body = b (float[2] s) => "
        "(float[2] v) { v = Neg(s) }> (x) }",
        refused="num_scan_inputs is 2 for 1 inputs",
        onnxruntime=AT_LOAD,
    ),
    "scan_body_of_more_inputs": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] r) "
        "=> (float[2] v) { v = Neg(s) }> (x) }",
        refused="the body takes 2 inputs and is given 1",
        onnxruntime=AT_LOAD,
    ),
    "scan_body_of_fewer_outputs": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 1, body = b (float[2] s) => () { v = "
        "Neg(s) }> (x) }",
        refused="the body has 0 outputs, the node needs 1",
        onnxruntime=AT_RUN,
    ),
    "scan_of_no_inputs": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 0, body = b (float[3,2] s) => "
        "(float[3,2] v) { v = Neg(s) }> (x) }",
        refused="num_scan_inputs is 0 for 1 inputs",
        onnxruntime=AT_LOAD,
    ),
    "scan_axes_of_another_number": Case(
        "g (float[3,2] x) => (float[3,2] y) { y = Scan <num_scan_inputs = 1, scan_input_axes = [0, 0], body = "
        "b (float[2] s) => (float[2] v) { v = Neg(s) }> (x) }",
        refused="zip() argument 2 is shorter than argument 1",
        onnxruntime=AT_LOAD,
    ),
    "sequence_map_body_of_fewer_inputs": Case(
        "g (seq(float[2]) x) => (seq(float[2]) y) { y = SequenceMap <body = b () => (float[2] v) { v = "
        "Constant <value_floats = [1.0, 2.0]> () }> (x) }",
        refused="the body takes 0 inputs and is given 1",
        onnxruntime=AT_LOAD,
    ),
}
