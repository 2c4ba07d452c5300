"""Tensors: where their elements lie, their sizes, sparse ones."""

from __future__ import annotations

from onnx import TensorProto, helper

from invalid_models.case import (
    AT_RUN,
    FIRST,
    IF,
    ONE,
    UNUSED,
    WEIGHT,
    Case,
    attribute,
    external,
    filled,
    sparse,
    weight,
)

TENSORS = {
    "payload_missing": Case(WEIGHT, "initializer 'w' has no elements; its shape is [2]", edit=filled(float_data=None)),
    "payload_missing_and_unused": Case(
        UNUSED,
        "initializer 'w' has no elements; its shape is [2]",
        edit=filled(float_data=None),
        because="onnx.proto: exactly one of the fields is used; onnxruntime does not look at what nobody reads",
    ),
    "payload_in_the_wrong_field": Case(
        WEIGHT,
        "initializer 'w' is FLOAT and has its elements in int64_data, not in float_d",
        edit=filled(float_data=None, int64_data=[1, 2]),
    ),
    "payload_in_the_wrong_field_unused": Case(
        UNUSED,
        "initializer 'w' is FLOAT and has its elements in int64_data, not in float_d",
        edit=filled(float_data=None, int64_data=[1, 2]),
        because="onnx.proto: exactly one of the fields is used; onnxruntime does not look at what nobody reads",
    ),
    "payload_of_doubles_in_float_data": Case(
        "g (double[2] x) => (double[2] y) <double[2] w = {1, 2}> { y = Add(x, w) }",
        "initializer 'w' is DOUBLE and has its elements in float_data, not in double",
        edit=filled(double_data=None, float_data=[1.0, 2.0]),
    ),
    "payload_of_int32_in_int64_data": Case(
        "g (int32[2] x) => (int32[2] y) <int32[2] w = {1, 2}> { y = Add(x, w) }",
        "initializer 'w' is INT32 and has its elements in int64_data, not in int32_d",
        edit=filled(int32_data=None, int64_data=[1, 2]),
    ),
    "payload_of_int64_in_int32_data": Case(
        "g (int64[2] x) => (int64[2] y) <int64[2] w = {1, 2}> { y = Add(x, w) }",
        "initializer 'w' is INT64 and has its elements in int32_data, not in int64_d",
        edit=filled(int64_data=None, int32_data=[1, 2]),
    ),
    "payload_of_float16_in_float_data": Case(
        "g (float16[2] x) => (float16[2] y) <float16[2] w = {1, 2}> { y = Add(x, w) }",
        "initializer 'w' is FLOAT16 and has its elements in float_data, not in int32",
        edit=filled(int32_data=None, float_data=[1.0, 2.0]),
    ),
    "payload_of_strings_in_raw_data": Case(
        'g (string[2] x) => (string[2] w) <string[2] w = {"a", "b"}> { y = Identity(x) }',
        "initializer 'w' is STRING and has its elements in raw_data, not in string_d",
        edit=filled(string_data=None, raw_data=b"ab"),
    ),
    "payload_of_floats_in_string_data": Case(
        WEIGHT,
        "initializer 'w' is FLOAT and has its elements in string_data, not in float_",
        edit=filled(float_data=None, string_data=[b"a", b"b"]),
    ),
    "payload_twice": Case(
        WEIGHT,
        "initializer 'w' has its elements twice, in float_data and in raw_data",
        edit=filled(raw_data=bytes(8)),
        because="onnx.proto: exactly one of the fields is used",
    ),
    "payload_twice_unused": Case(
        UNUSED,
        "initializer 'w' has its elements twice, in float_data and in raw_data",
        edit=filled(raw_data=bytes(8)),
        because="onnx.proto: exactly one of the fields is used",
    ),
    "payload_in_two_typed_fields": Case(
        WEIGHT,
        "initializer 'w' has its elements twice, in int32_data and in float_data",
        edit=filled(int32_data=[1, 2]),
        because="onnx.proto: exactly one of the fields is used",
    ),
    "payload_inside_and_external": Case(
        WEIGHT,
        "initializer 'w' lies in an external file and has elements in float_data, to",
        edit=filled(data_location=TensorProto.EXTERNAL),
    ),
    "payload_with_an_empty_raw_data": Case(
        WEIGHT, "initializer 'w' has its elements twice, in float_data and in raw_data", edit=filled(raw_data=b"")
    ),
    "payload_inside_with_external_entries": Case(WEIGHT, edit=lambda model: weight(model).external_data.add(key="location", value="w.bin")),
    "payload_too_short": Case(WEIGHT, "initializer 'w' does not hold what its shape and dtype say", edit=filled(float_data=[1.0])),
    "payload_too_long": Case(WEIGHT, "initializer 'w' does not hold what its shape and dtype say", edit=filled(float_data=[1.0, 2.0, 3.0])),
    "payload_too_short_unused": Case(UNUSED, edit=filled(float_data=[1.0])),
    "raw_payload_too_short": Case(
        WEIGHT,
        "initializer 'w' does not hold what its shape and dtype say",
        edit=filled(float_data=None, raw_data=bytes(7)),
    ),
    "raw_payload_too_long": Case(
        WEIGHT,
        "initializer 'w' does not hold what its shape and dtype say",
        edit=filled(float_data=None, raw_data=bytes(9)),
    ),
    "raw_payload_too_long_unused": Case(UNUSED, edit=filled(float_data=None, raw_data=bytes(9))),
    "payload_in_a_segment": Case(WEIGHT, edit=lambda model: (setattr(weight(model).segment, "begin", 0), setattr(weight(model).segment, "end", 2))),
    "payload_of_strings_missing": Case(
        'g (string[2] x) => (string[2] w) <string[2] w = {"a", "b"}> { y = Identity(x) }',
        "initializer 'w' has no elements; its shape is [2]",
        edit=filled(string_data=None),
    ),
    "payload_of_strings_that_are_not_utf_8": Case(
        'g (string[2] x) => (string[2] w) <string[2] w = {"a", "b"}> { y = Identity(x) }',
        edit=filled(string_data=[b"\xff", b"b"]),
        onnxruntime=AT_RUN,
        because="onnxruntime computes with such strings, and cannot give them to Python",
    ),
    "payload_of_no_elements": Case("g (float[2] x) => (float[2] y) <float[0] w = {}> { y = Concat <axis = 0> (x, w) }"),
    "payload_of_bools_that_are_2": Case(
        "g (bool[2] x) => (bool[2] y) <bool[2] w = {1, 1}> { y = And(x, w) }", edit=filled(int32_data=[2, 1])
    ),
    "payload_of_int8_out_of_range": Case(
        "g (int8[2] x) => (int8[2] y) <int8[2] w = {1, 1}> { y = Add(x, w) }", edit=filled(int32_data=[300, 1])
    ),
    "dims_negative": Case(WEIGHT, "initializer 'w' has the invalid shape [-2]", edit=filled(dims=[-2])),
    "dims_negative_unused": Case(
        UNUSED,
        "initializer 'w' has the invalid shape [-2]",
        edit=filled(dims=[-2]),
        because="a size is not negative; onnxruntime does not look at what nobody reads",
    ),
    "dims_of_another_rank": Case(WEIGHT, edit=filled(dims=[2, 1, 1])),
    "dims_missing": Case(WEIGHT, "initializer 'w' does not hold what its shape and dtype say", edit=filled(dims=None)),
    "type_missing": Case(WEIGHT, "initializer 'w' has no element type", edit=filled(data_type=None)),
    "type_missing_unused": Case(UNUSED, "initializer 'w' has no element type", edit=filled(data_type=None)),
    "type_that_there_is_not": Case(WEIGHT, "99 is no element type that ONNX knows", edit=filled(data_type=99)),
    "type_that_there_is_not_unused": Case(UNUSED, "99 is no element type that ONNX knows", edit=filled(data_type=99)),
    "external_without_a_location": Case(WEIGHT, "initializer 'w' lies in an external file, and no location says in which", edit=external(offset="0")),
    "external_without_entries": Case(WEIGHT, "initializer 'w' lies in an external file, and no location says in which", edit=external()),
    "external_without_entries_unused": Case(UNUSED, edit=external()),
    "external_outside": Case(
        WEIGHT,
        "initializer 'w' is in the external file '../w.bin', but the model was not g",
        edit=external(location="../w.bin"),
    ),
    "external_outside_unused": Case(UNUSED, edit=external(location="../w.bin")),
    "external_absolute": Case(
        WEIGHT,
        "initializer 'w' is in the external file '/etc/passwd', but the model was no",
        edit=external(location="/etc/passwd"),
    ),
    "external_missing": Case(WEIGHT, "initializer 'w' is in the external file 'w.bin', but the model was not give", edit=external(location="w.bin")),
    "external_missing_unused": Case(UNUSED, edit=external(location="w.bin")),
    "external_offset_that_is_no_number": Case(
        WEIGHT, "initializer 'w' has external data at no number of bytes", edit=external(location="w.bin", offset="x")
    ),
    "external_strings": Case(
        'g (string[2] x) => (string[2] w) <string[2] w = {"a", "b"}> { y = Identity(x) }',
        "initializer 'w' is a string tensor in an external file, which ONNX does not",
        edit=lambda model: (filled(string_data=None)(model), external(location="w.bin")(model)),
    ),
    "constant_with_a_payload_in_the_wrong_field": Case(
        "g (float[2] x) => (float[2] y) { w = Constant <value = float[2] {1, 2}> () y = Add(x, w) }",
        "attribute 'value' of Constant -> 'w' is FLOAT and has its elements in int64",
        edit=lambda model: (attribute(model).t.ClearField("float_data"), attribute(model).t.int64_data.extend([1, 2])),
    ),
    "constant_with_two_payloads": Case(
        "g (float[2] x) => (float[2] y) { w = Constant <value = float[2] {1, 2}> () y = Add(x, w) }",
        "attribute 'value' of Constant -> 'w' has its elements twice, in float_data",
        edit=lambda model: setattr(attribute(model).t, "raw_data", bytes(8)),
        because="onnx.proto: exactly one of the fields is used",
    ),
    "sparse": Case(WEIGHT, edit=sparse(ONE, FIRST, [2])),
    "sparse_without_a_name": Case(WEIGHT, "an initializer of graph 'g' has no name", edit=sparse(helper.make_tensor("", 1, [1], [1.0]), FIRST, [2])),
    "sparse_index_out_of_range": Case(
        WEIGHT,
        "the sparse tensor 'w' has indices out of range",
        edit=sparse(ONE, helper.make_tensor("i", 7, [1], [2]), [2]),
    ),
    "sparse_index_out_of_range_unused": Case(
        UNUSED,
        "the sparse tensor 'w' has indices out of range",
        edit=sparse(ONE, helper.make_tensor("i", 7, [1], [2]), [2]),
    ),
    "sparse_index_negative": Case(
        WEIGHT,
        "the sparse tensor 'w' has indices out of range",
        edit=sparse(ONE, helper.make_tensor("i", 7, [1], [-1]), [2]),
    ),
    "sparse_indices_out_of_order": Case(
        WEIGHT,
        "the sparse tensor 'w' has indices that do not ascend: ONNX has each once, i",
        edit=sparse(helper.make_tensor("w", 1, [2], [1.0, 2.0]), helper.make_tensor("i", 7, [2], [1, 0]), [2]),
        because="onnx.proto: the indices must appear in ascending order without duplication",
    ),
    "sparse_index_twice": Case(
        WEIGHT,
        "the sparse tensor 'w' has indices that do not ascend: ONNX has each once, i",
        edit=sparse(helper.make_tensor("w", 1, [2], [1.0, 2.0]), helper.make_tensor("i", 7, [2], [1, 1]), [2]),
        because="onnx.proto: the indices must appear in ascending order without duplication",
    ),
    "sparse_index_of_another_type": Case(WEIGHT, edit=sparse(ONE, helper.make_tensor("i", 6, [1], [0]), [2])),
    "sparse_indices_of_another_rank": Case(
        WEIGHT,
        "the sparse tensor 'w' has indices out of range",
        edit=sparse(ONE, helper.make_tensor("i", 7, [1, 2], [0, 0]), [2]),
    ),
    "sparse_with_fewer_values": Case(
        WEIGHT,
        "the sparse tensor 'w' has indices out of range",
        edit=sparse(ONE, helper.make_tensor("i", 7, [2], [0, 1]), [2]),
    ),
    "sparse_values_of_rank_2": Case(
        WEIGHT,
        "the sparse tensor 'w' has values of shape [1, 1]; they must have one axis",
        edit=sparse(helper.make_tensor("w", 1, [1, 1], [1.0]), FIRST, [2]),
    ),
    "sparse_of_a_negative_size": Case(WEIGHT, "the sparse tensor 'w' has the invalid shape [-2]", edit=sparse(ONE, FIRST, [-2])),
    "sparse_and_dense_of_one_name": Case(
        WEIGHT,
        "the initializer 'w' occurs twice",
        edit=lambda model: model.graph.sparse_initializer.add(values=ONE, indices=FIRST, dims=[2]),
        because="onnx.proto: the name must be unique across both initializer and sparse_initializer",
    ),
    "sparse_input": Case(
        "g (sparse_tensor(float[2]) x) => (float[2] y) { y = Neg(x) }", "input 0 (X) is sparse_tensor(float)"
    ),
    "old_file_with_initializers_as_inputs": Case(
        '<ir_version: 3, opset_import: ["": 7]> g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, '
        "2}> { y = Add(x, w) }"
    ),
    "old_file_with_initializers_that_are_no_inputs": Case(
        '<ir_version: 3, opset_import: ["": 7]> g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }'
    ),
    "weight_in_a_branch_without_payload": Case(
        IF.replace("=> (float[2] u) {", "=> (float[2] u) <float[2] w = {1, 2}> {").replace(
            "u = Neg(x)", "u = Add(x, w)"
        ),
        "initializer 'w' has no elements; its shape is [2]",
        edit=lambda model: attribute(model).g.initializer[0].ClearField("float_data"),
    ),
}  # fmt: skip
