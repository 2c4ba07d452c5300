"""``--target``: the runtime that the file is for, and the engines that stand for it here."""

from __future__ import annotations


def engines_for(target: str | None) -> list[str] | None:
    """The engines to verify in: None where the file is for none in particular, so that one may lack a kernel; a file for
    onnxruntime has to run in all that are installed.
    """
    if target is None:
        return None
    from fx2onnx.judge.engines import chosen_engines

    return ["runner"] if target == "runner" else chosen_engines(None)
