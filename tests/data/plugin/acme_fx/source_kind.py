from fx2onnx.sources import SourceKind

KIND = SourceKind("acme", "the layers of Acme", "acme_fx.source", options=frozenset({"batch"}), example="acme:clipped")
