"""Statements about files: their form, what they hold, and that every changed byte shows."""

from __future__ import annotations

import importlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import jsonschema
import numpy as np
import onnx
import pytest
import torch
from google.protobuf import json_format
from hypothesis import strategies as st
from torch import nn

import fx2onnx
from fx2onnx import runner
from fx2onnx.base.errors import Fx2OnnxError, UserError, VerificationError
from fx2onnx.base.metadata import DATA_DIGESTS
from fx2onnx.proof.attest import read_statement, statement_path
from tests.cli.support import invoke

_DIGESTS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "pattern": "^[0-9a-f]+$"}}
STATEMENT = {
    "type": "object",
    "required": ["_type", "subject", "predicateType"],
    "additionalProperties": False,
    "properties": {
        "_type": {"const": "https://in-toto.io/Statement/v1"},
        "subject": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["digest"],
                "additionalProperties": False,
                "properties": {
                    **{
                        name: {"type": "string"} for name in ("name", "uri", "content", "downloadLocation", "mediaType")
                    },
                    "digest": _DIGESTS,
                    "annotations": {"type": "object"},
                },
            },
        },
        "predicateType": {"type": "string", "format": "uri", "pattern": "^https://"},
        "predicate": {"type": "object"},
    },
}
"""The Statement v1 of github.com/in-toto/attestation, spec/v1/statement.md, with its ResourceDescriptor."""


@pytest.fixture(scope="module")
def attested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with external data, and the statement beside it."""
    path = tmp_path_factory.mktemp("attested") / "model.onnx"
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    fx2onnx.export(module, (torch.randn(2, 8),), path, external_data=True, attest=True, verify=True, effort="quick")
    return path


@pytest.fixture
def copied(attested: Path, tmp_path: Path) -> Path:
    shutil.copytree(attested.parent, tmp_path / "copy")
    return tmp_path / "copy" / attested.name


def data_of(path: Path) -> Path:
    return next(path.parent.glob("*.data"))


def test_a_statement_has_the_form_of_in_toto(attested: Path) -> None:
    statement = json.loads(statement_path(attested).read_text())
    jsonschema.validate(statement, STATEMENT)
    assert [each["name"] for each in statement["subject"]] == ["model.onnx", data_of(attested).name]
    predicate = statement["predicate"]
    assert predicate["command"] == {
        "name": "fx2onnx.export",
        "options": {"external_data": True, "attest": True, "verify": True, "effort": "quick"},
    }
    assert predicate["verdict"]["ok"]
    assert predicate["tried"][0]["engines"] == ["runner", "onnxruntime"]
    assert predicate["versions"]["torch"] == torch.__version__
    assert len(predicate["source"]["state"]["sha256"]) == 64
    assert fx2onnx.attest(attested, check=True) == statement


def test_a_statement_is_one_to_the_package_of_in_toto(attested: Path) -> None:
    messages = pytest.importorskip(
        "in_toto_attestation.v1.statement_pb2", reason="in-toto-attestation is no dependency"
    )
    package = importlib.import_module("in_toto_attestation.v1.statement")
    text = statement_path(attested).read_text()
    found = json_format.Parse(text, messages.Statement())
    package.Statement.copy_from_pb(found).validate()
    assert json_format.MessageToDict(found) == json.loads(text)
    for field in ("_type", "subject", "predicateType", "predicate"):
        spoilt = json_format.ParseDict({k: v for k, v in json.loads(text).items() if k != field}, messages.Statement())
        with pytest.raises(ValueError, match=r"tatement type|required"):
            package.Statement.copy_from_pb(spoilt).validate()


def test_the_graph_has_the_digest_of_its_data(attested: Path) -> None:
    session = runner.InferenceSession(str(attested))
    found = json.loads(session.get_modelmeta().custom_metadata_map[DATA_DIGESTS])
    statement = json.loads(statement_path(attested).read_text())
    assert found == {data_of(attested).name: statement["subject"][1]["digest"]["sha256"]}


@hypothesis.settings(
    deadline=None, max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
    which=st.sampled_from(["graph", "data", "statement"]),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_a_flipped_bit_is_found(attested: Path, which: str, place: float, bit: int) -> None:
    file = {"graph": attested, "data": data_of(attested), "statement": statement_path(attested)}[which]
    content = file.read_bytes()
    changed = bytearray(content)
    changed[int(place * len(content))] ^= 1 << bit
    try:
        file.write_bytes(changed)
        with pytest.raises(Fx2OnnxError) as raised:
            fx2onnx.attest(attested, check=True)
    finally:
        file.write_bytes(content)
    assert raised.value.code in ("E302", "E304")


def test_every_byte_of_a_statement_counts(attested: Path, tmp_path: Path) -> None:
    content, file = statement_path(attested).read_bytes(), tmp_path / "statement"
    for place in range(0, len(content), 41):
        for changed in (content[:place] + content[place + 1 :], content[:place] + b" " + content[place:]):
            file.write_bytes(changed)
            with pytest.raises(Fx2OnnxError, match=r"E30[24]"):
                read_statement(file)


def test_all_that_differs_is_named(copied: Path) -> None:
    for path in (copied, data_of(copied)):
        path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(VerificationError) as raised:
        fx2onnx.attest(copied, check=True)
    assert "model.onnx has another digest" in raised.value.why
    assert ".data has another digest" in raised.value.why


def with_digests_checked() -> runner.SessionOptions:
    options = runner.SessionOptions()
    options.add_session_config_entry("fx2onnx.check_digests", "1")
    return options


def test_swapped_data_is_an_error_at_load(copied: Path) -> None:
    runner.InferenceSession(str(copied), with_digests_checked())
    data = data_of(copied)
    data.write_bytes(bytes(len(data.read_bytes())))
    runner.InferenceSession(str(copied))
    with pytest.raises(UserError, match="does not have the digest") as raised:
        runner.InferenceSession(str(copied), with_digests_checked())
    assert raised.value.code == "E304"


def test_data_of_any_graph_can_be_bound(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    fx2onnx.export(nn.Linear(8, 64), (torch.randn(2, 8),), path, external_data=True)
    with pytest.raises(UserError, match="no digest of its data"):
        runner.InferenceSession(str(path), with_digests_checked())
    assert DATA_DIGESTS not in fx2onnx.inspect(path)["metadata"]
    fx2onnx.attest(path, bind=True)
    runner.InferenceSession(str(path), with_digests_checked())
    fx2onnx.attest(path, check=True)


def test_weights_inside_need_no_binding(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    fx2onnx.export(nn.Linear(8, 16), (torch.randn(2, 8),), path, attest=True)
    assert [each["name"] for each in fx2onnx.attest(path, check=True)["subject"]] == ["model.onnx"]
    runner.InferenceSession(str(path), with_digests_checked())


def test_the_command_writes_and_checks(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    done = invoke(
        "export",
        "zoo:mnist_cnn",
        "-o",
        path,
        "--attest",
        "--metadata",
        "author=me",
        "--metadata",
        "none",
        "-q",
        "--seed",
        3,
    )
    assert done.exit_code == 0, done.output
    statement = json.loads(statement_path(path).read_text())
    source = statement["predicate"]["source"]
    assert source["spec"] == "zoo:mnist_cnn"
    assert source["options"]["seed"] == 3
    assert invoke("attest", path, "--check").exit_code == 0
    assert invoke("attest", path, "--check", "--source", "zoo:mnist_cnn").exit_code == 0
    other = invoke("attest", path, "--check", "--source", "zoo:mnist_cnn", "--seed", 4)
    assert other.exit_code == 1
    assert "the weights of the source have another digest" in other.output
    model = onnx.load(path)
    assert {entry.key: entry.value for entry in model.metadata_props}["author"] == "me"
    assert not model.graph.node[0].metadata_props


def test_a_source_gives_the_verdict(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    assert invoke("export", "zoo:mnist_cnn", "-o", path, "--no-verify", "-q").exit_code == 0
    done = invoke("attest", path, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["predicate"]["verdict"] is None
    done = invoke("attest", path, "--source", "zoo:mnist_cnn", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["predicate"]["verdict"]["ok"]
    wrong = invoke("attest", path, "--source", "zoo:mnist_cnn", "--seed", 1, "-o", tmp_path / "wrong.json")
    assert wrong.exit_code == 1
    assert not (tmp_path / "wrong.json").exists()


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("nothing.onnx",), "E302"),
        (("{file}", "--check"), "E302"),
        (("{file}", "--check", "--bind"), "E001"),
        (("{file}", "--seed", "3"), "E001"),
        (("{file}", "-o", "{file}"), "E301"),
    ],
)
def test_a_wrong_call_is_one_error(tmp_path: Path, args: tuple[str, ...], code: str) -> None:
    path = tmp_path / "model.onnx"
    fx2onnx.export(nn.Linear(2, 2), (torch.randn(2, 2),), path)
    done = invoke("attest", *(arg.format(file=path) for arg in args))
    assert done.exit_code == 2
    assert f"[{code}]" in done.output


def test_a_statement_of_another_kind_is_said(attested: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"_type": "https://in-toto.io/Statement/v0.1", "predicateType": "https://slsa.dev"}))
    with pytest.raises(UserError, match="of another kind"):
        fx2onnx.attest(attested, out=other, check=True)


@pytest.mark.parametrize("f", [None, io.BytesIO()], ids=["none", "bytes"])
def test_a_statement_needs_a_path(f: Any) -> None:
    with pytest.raises(UserError, match="needs a path"):
        fx2onnx.export(nn.Linear(2, 2), (torch.randn(2, 2),), f, attest=True)


def test_a_training_graph_is_attested(tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    training = fx2onnx.Training(loss=nn.MSELoss(), targets=torch.randn(2, 2))
    fx2onnx.export(nn.Linear(2, 2), (torch.randn(2, 2),), path, training=training, attest=True)
    assert fx2onnx.attest(path, check=True)["predicate"]["command"]["name"] == "fx2onnx.export"


@pytest.mark.parametrize(
    ("make", "has_digest"),
    [
        (lambda: nn.Linear(2, 2).half(), True),
        (lambda: nn.Linear(2, 2).to(torch.complex64), True),
        (lambda: nn.Linear(2, 2, device="meta"), False),
        (lambda: torch.relu, True),
    ],
    ids=["half", "complex", "meta", "function"],
)
def test_weights_have_a_digest_where_they_have_numbers(make: Callable[[], Any], has_digest: bool) -> None:
    from fx2onnx.exporting.attested import digest_of_state

    assert (digest_of_state(make()) is not None) == has_digest


class TestOwnMetadata:
    def test_entries_are_in_the_file_and_stay(self, tmp_path: Path) -> None:
        path, smaller = tmp_path / "model.onnx", tmp_path / "smaller.onnx"
        own = {"author": "Ünal", "labels": ["cat", "dog"], "scale": 0.5, "note": "batch = 3"}
        result = fx2onnx.export(
            nn.Linear(2, 2), (torch.randn(3, 2),), None, metadata=own, dynamic_shapes={"input": {0: "batch"}}
        )
        result.rename_axes({"batch": "rows"})
        result.save(path)
        expected = {"author": "Ünal", "labels": '["cat", "dog"]', "scale": "0.5", "note": "batch = 3"}
        assert expected.items() <= fx2onnx.inspect(path)["metadata"].items()
        fx2onnx.optimize(path, smaller, verify=False, metadata=["none", {"author": "you"}])
        expected["author"] = "you"
        assert expected.items() <= fx2onnx.inspect(smaller)["metadata"].items()

    def test_both_notes_and_entries(self, tmp_path: Path) -> None:
        result = fx2onnx.export(nn.Linear(2, 2), (torch.randn(3, 2),), metadata=["full", {"author": "me"}])
        assert result.model.metadata_props["author"] == "me"
        assert "aten" in next(iter(result.model.graph)).metadata_props

    @pytest.mark.parametrize(
        "metadata",
        [
            {"fx2onnx.state": "{}"},
            {"pkg.torch": "x"},
            {"": "x"},
            {3: "x"},
            {"x": np.zeros(3)},
            {"x": float("nan")},
            {"x": "\ud800"},
            "dark",
        ],
        ids=str,
    )
    def test_what_cannot_be_kept_is_refused(self, metadata: Any) -> None:
        with pytest.raises(UserError) as raised:
            fx2onnx.export(nn.Linear(2, 2), (torch.randn(3, 2),), metadata=metadata)
        assert raised.value.code == "E001"

    @pytest.mark.parametrize("command", ["export zoo:mnist_cnn -o {}", "optimize {} {}.out"])
    def test_an_entry_without_a_value(self, tmp_path: Path, command: str) -> None:
        path = tmp_path / "m.onnx"
        if command.startswith("optimize"):
            fx2onnx.export(nn.Linear(2, 2), (torch.randn(3, 2),), path)
        done = invoke(*command.format(path, path).split(), "--metadata", "author")
        assert done.exit_code == 2
        assert "no KEY=VALUE" in done.output
        assert "--metadata author=VALUE" in done.output

    def test_a_key_given_twice(self, tmp_path: Path) -> None:
        done = invoke("export", "zoo:mnist_cnn", "-o", tmp_path / "m.onnx", "--metadata", "a=1", "--metadata", "a=2")
        assert done.exit_code == 2
        assert "a key twice" in done.output
