"""What a file says of itself: versions, opsets, its graph."""

from __future__ import annotations

import onnx

from invalid_models.case import AT_LOAD, AT_RUN, NEG, RUNS, Case, versions

FILES = {
    "ir_version_missing": Case(
        NEG,
        edit=lambda model: model.ClearField("ir_version"),
        refused="the model does not say its IR version",
        onnxruntime=AT_LOAD,
    ),
    "ir_version_0": Case(
        NEG,
        edit=lambda model: setattr(model, "ir_version", 0),
        refused="the model does not say its IR version",
        because="onnx.proto: this field must be present; 0 is what it is when it is not",
    ),
    "ir_version_negative": Case(
        NEG,
        edit=lambda model: setattr(model, "ir_version", -3),
        refused="the model does not say its IR version",
        because="there is no such version",
    ),
    "ir_version_from_the_future": Case(
        NEG,
        edit=lambda model: setattr(model, "ir_version", 99),
        refused="the model has IR version 99; the installed onnx knows up to 14",
        onnxruntime=AT_LOAD,
    ),
    "ir_version_newest": Case(
        NEG,
        edit=lambda model: setattr(model, "ir_version", onnx.IR_VERSION),
        onnxruntime=AT_LOAD,
        because="onnxruntime 1.31 knows IR versions up to 13",
        elsewhere=(RUNS,),
    ),
    "ir_version_12": Case(
        NEG,
        edit=lambda model: setattr(model, "ir_version", 12),
    ),
    "ir_version_2": Case(
        NEG,
        edit=lambda model: setattr(model, "ir_version", 2),
    ),
    "ir_version_1": Case(
        NEG,
        edit=lambda model: setattr(model, "ir_version", 1),
    ),
    "ir_version_2_without_opset": Case(
        NEG,
        edit=lambda model: (setattr(model, "ir_version", 2), model.ClearField("opset_import")),
        refused="the model has no opset_import",
        onnxruntime=AT_LOAD,
    ),
    "opset_import_missing": Case(
        NEG,
        edit=versions(),
        refused="the model has no opset_import",
        onnxruntime=AT_LOAD,
    ),
    "opset_0": Case(
        NEG,
        edit=versions(("", 0)),
        refused="an opset version is out of range",
        onnxruntime=AT_LOAD,
    ),
    "opset_negative": Case(
        NEG,
        edit=versions(("", -1)),
        refused="an opset version is out of range",
        onnxruntime=AT_LOAD,
    ),
    "opset_without_a_version": Case(
        NEG,
        edit=lambda model: model.opset_import[0].ClearField("version"),
        refused="an opset version is out of range",
        onnxruntime=AT_LOAD,
    ),
    "opset_from_the_future": Case(
        NEG,
        edit=versions(("", 99)),
        refused="the model needs opset 99; the installed onnx knows up to 28",
        onnxruntime=AT_LOAD,
    ),
    "opset_of_ml_from_the_future": Case(
        NEG,
        edit=versions(("", 21), ("ai.onnx.ml", 99)),
        refused="the model needs opset 99 of ai.onnx.ml; the installed onnx knows up to 5",
        onnxruntime=AT_LOAD,
    ),
    "opset_of_ml_from_the_future_used": Case(
        "g (float[2] x) => (float[2] y) { y = ai.onnx.ml.Binarizer(x) }",
        edit=versions(("", 21), ("ai.onnx.ml", 99)),
        refused="the model needs opset 99 of ai.onnx.ml; the installed onnx knows up to 5",
        onnxruntime=AT_LOAD,
    ),
    "opset_training_from_the_future": Case(
        NEG,
        edit=versions(("", 21), ("ai.onnx.preview.training", 99)),
        refused="the model needs opset 99 of ai.onnx.preview.training; the installed onnx kn",
        onnxruntime=AT_LOAD,
    ),
    "opset_of_an_unknown_domain": Case(
        NEG,
        edit=versions(("", 21), ("org.unknown", 99)),
    ),
    "opset_of_an_unknown_domain_0": Case(
        NEG,
        edit=versions(("", 21), ("org.unknown", 0)),
        refused="an opset version is out of range",
        because="onnx.proto: the version must be present; 0 is what it is when it is not",
    ),
    "opset_imported_twice": Case(
        NEG,
        edit=versions(("", 21), ("ai.onnx", 7)),
        refused="two versions of the opset 'ai.onnx' are imported: 21 and 7",
        because="one domain of two versions has no meaning; onnxruntime takes the last",
    ),
    "opset_imported_twice_alike": Case(
        NEG,
        edit=versions(("", 21), ("ai.onnx", 21)),
    ),
    "standard_domain_not_imported": Case(
        NEG,
        edit=versions(("ai.onnx.ml", 3)),
        refused="the model imports no opset of domain 'ai.onnx'",
        because="onnx.proto: an entry of opset_import says which operators there are",
    ),
    "ml_domain_not_imported": Case(
        "g (float[2] x) => (float[2] y) { y = ai.onnx.ml.Binarizer(x) }",
        refused="the model imports no opset of domain 'ai.onnx.ml'",
        because="onnx.proto: an entry of opset_import says which operators there are",
    ),
    "training_domain_not_imported": Case(
        "g (float r, int64 t, float[2] x, float[2] d, float[2] h) => (float[2] y, float[2] z) { y, z = "
        "ai.onnx.preview.training.Adagrad(r, t, x, d, h) }",
        refused="the model imports no opset of domain 'ai.onnx.preview.training'",
        onnxruntime=AT_LOAD,
    ),
    "unknown_domain_not_imported": Case(
        "g (float[2] x) => (float[2] y) { y = zz.Neg(x) }",
        refused="the model imports no opset of domain 'zz'",
        onnxruntime=AT_LOAD,
    ),
    "unknown_domain_imported": Case(
        '<ir_version: 10, opset_import: ["": 21, "zz": 1]> g (float[2] x) => (float[2] y) { y = zz.Neg(x) }',
        refused="the runner has no kernel for zz::Neg, opset 1",
        onnxruntime=AT_LOAD,
    ),
    "unknown_operator": Case(
        "g (float[2] x) => (float[2] y) { y = Neggg(x) }",
        refused="the runner has no kernel for Neggg, opset 21",
        onnxruntime=AT_LOAD,
    ),
    "operator_of_a_later_opset": Case(
        "g (float[2] x) => (float[2] y) { y = RMSNormalization(x, x) }",
        refused="the runner has no kernel for RMSNormalization, opset 21",
        onnxruntime=AT_LOAD,
    ),
    "operator_of_an_earlier_opset": Case(
        '<ir_version: 10, opset_import: ["": 10]> g (float[1,1,2,2] x, float[4] s) => (float[1,1,2,2] y) { y = '
        "Upsample(x, s) }",
        refused="Upsample may not be used from opset 10 on",
        onnxruntime=AT_LOAD,
    ),
    "deprecated_operator": Case(
        "g (float[1,1,2,2] x, float[4] s) => (float[1,1,2,2] y) { y = Upsample(x, s) }",
        refused="Upsample may not be used from opset 10 on",
        onnxruntime=AT_LOAD,
    ),
    "operator_without_a_name": Case(
        NEG,
        edit=lambda model: model.graph.node[0].ClearField("op_type"),
        refused="a node does not say its operator",
        onnxruntime=AT_LOAD,
    ),
    "graph_missing": Case(
        NEG,
        edit=lambda model: model.ClearField("graph"),
        refused="the model has no graph",
        onnxruntime=AT_LOAD,
    ),
    "graph_without_a_name": Case(
        NEG,
        edit=lambda model: model.graph.ClearField("name"),
    ),
    "graph_without_nodes": Case(
        "g (float[2] x) => (float[2] x) { }",
    ),
    "graph_without_outputs": Case(
        "g (float[2] x) => () { y = Neg(x) }",
        onnxruntime=AT_RUN,
        because="onnxruntime loads it and cannot be asked for nothing",
    ),
    "metadata_key_twice": Case(
        NEG,
        edit=lambda model: [model.metadata_props.add(key="a", value=v) for v in "bc"],
    ),
    "producer_missing": Case(
        NEG,
        edit=lambda model: model.ClearField("producer_name"),
    ),
    "alias_of_the_standard_domain": Case(
        "g (float[2] x) => (float[2] y) { y = ai.onnx.Neg(x) }",
    ),
    "alias_imported": Case(
        NEG,
        edit=versions(("ai.onnx", 21)),
    ),
}
