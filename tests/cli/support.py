"""What tests of the command line share: a call in this process, and factories in a folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fx2onnx.cli.main import app


def invoke(*arguments: object) -> Result:
    """Run ``fx2onnx`` with these arguments in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@contextmanager
def factories(folder: Path, **texts: str) -> Iterator[Path]:
    """Work in ``folder``, with Python modules of these names and texts in it that can be imported."""
    with pytest.MonkeyPatch.context() as patch:
        for name, text in texts.items():
            (folder / f"{name}.py").write_text(text)
        patch.chdir(folder)
        patch.setattr(sys, "path", [str(folder), *sys.path])
        yield folder
        for name in texts:
            sys.modules.pop(name, None)
