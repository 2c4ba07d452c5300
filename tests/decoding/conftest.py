"""Every manifest that these tests write is read again, and fits the committed schema where ``jsonschema`` is installed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import pytest

from fx2onnx.base.typed_json import built
from fx2onnx.exporting import folder
from fx2onnx.files.folder_commit import VERSION
from fx2onnx.manifest.form import Manifest
from tools import manifest_schema


@pytest.fixture(autouse=True, scope="session")
def manifests_fit_their_form() -> Iterator[None]:
    commit = folder.commit_folder

    def checked(stage: Any, target: Any, facts: Any, **options: Any) -> None:
        stated = json.loads(json.dumps({"version": VERSION, **facts}))
        assert json.loads(json.dumps(built(Manifest, stated).facts())) == json.loads(json.dumps(facts))
        if importlib.util.find_spec("jsonschema"):
            import jsonschema

            jsonschema.validate(stated, json.loads(manifest_schema.FILE.read_text()))
        commit(stage, target, facts, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "commit_folder", checked)
        yield
