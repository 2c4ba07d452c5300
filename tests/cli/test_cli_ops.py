"""``fx2onnx ops``: what the table holds, and what it lacks."""

from __future__ import annotations

import functools
import json

import pytest

from fx2onnx.aten_map import TABLE
from fx2onnx.cli import listing as ops
from tests.cli.support import invoke
from tools import overload_rows


def listed(*arguments: str) -> dict[str, dict[str, object]]:
    done = invoke("ops", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return {row["overload"]: row for row in json.loads(done.stdout)}


@pytest.mark.long
def test_the_list_is_that_of_the_table() -> None:
    assert ops.known_overloads() == overload_rows.collected(), "make families writes it"


@pytest.mark.parametrize(
    ("asked", "end"), [("linalg_eig", " more have no ONNX form: --missing"), ("gelu", "overloads")]
)
def test_matches_without_a_form_are_counted(asked: str, end: str) -> None:
    missing, shown = listed(asked, "--missing"), invoke("ops", asked).output.rstrip()
    assert shown.endswith(f"; {len(missing)}{end}" if missing else end)


def test_every_entry_is_listed_with_its_opsets() -> None:
    found = listed()
    entries = {str(each) for each in [*TABLE.entries, *TABLE.complex_entries] if overload_rows.is_listed(each)}
    assert entries <= set(found) | set(listed("--missing")), "make families"
    assert found["aten.gelu.default"]["source"] == "entry"
    assert found["aten.relu.default"]["since"] == [11], "entries of every opset start where the exporter does"
    assert found["aten.add.Tensor"]["complex"] is True
    assert found["aten.relu.default"]["complex"] is False
    assert {row["source"] for row in found.values()} <= {"entry", "decomposition", "torchlib"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("overload", "since"),
    [
        ("aten.grid_sampler_2d.default", [16]),
        ("aten.grid_sampler_3d.default", [20]),
        ("aten.grid_sampler.default", [16, 20]),
        ("aten.index_reduce.default", [11]),
        ("aten.gelu.default", [11]),
    ],
)
def test_opset_lists_what_it_can_express(overload: str, since: list[int]) -> None:
    """As an export at that opset finds: some calls from the first number on, all of them from the second."""
    assert listed(overload)[overload]["since"] == since
    assert listed(overload)[overload]["measured"] is True
    for opset in (since[0] - 1, since[0]):
        if opset >= 11:
            here, missing = (
                listed(overload, "--opset", str(opset)),
                listed(overload, "--opset", str(opset), "--missing"),
            )
            assert (overload in here, overload in missing) == (opset >= since[0], opset < since[0])


def test_listed_opsets_are_those_at_which_an_export_succeeds() -> None:
    import torch

    import fx2onnx

    name, grid = "aten.grid_sampler_2d.default", torch.zeros(1, 2, 2, 2)
    sampled = functools.partial(
        torch.ops.aten.grid_sampler_2d, interpolation_mode=0, padding_mode=0, align_corners=False
    )

    def export(opset: int) -> None:
        fx2onnx.export(lambda x, grid: sampled(x, grid), (torch.ones(1, 1, 3, 3), grid), opset_version=opset)

    export(16)
    assert name in listed(name, "--opset", "16")
    with pytest.raises(fx2onnx.UserError, match="needs opset 16"):
        export(15)
    assert name not in listed(name, "--opset", "15")


def test_missing_overloads_have_neither_entry_nor_decomposition() -> None:
    found = listed("--missing")
    assert {row["source"] for row in found.values()} == {"missing", "refused"}
    assert not set(found) & set(listed())
    assert not [
        name
        for name, row in found.items()
        if "backward" in name or (name.startswith("aten._") and row["source"] == "missing")
    ]


def test_overloads_that_are_refused_by_name_count_as_missing() -> None:
    assert listed("aten.linalg_eig.default", "--missing")["aten.linalg_eig.default"]["source"] == "refused"
    assert listed("aten.linalg_eig.default") == {}


@pytest.mark.parametrize(("source", "since", "missing"), [
    ("entry", [11], False), ("entry", [17, 20], False), ("entry", [18], True), ("decomposition", [], False),
    ("missing", [], True), ("refused", [11], True), ("torchlib", [18], True),
])  # fmt: skip
def test_is_missing_at_opset_17(source: str, since: list[int], missing: bool) -> None:
    row = ops.ListedRow(overload="aten.x.default", source=source, since=since, measured=True, complex=False, form="")
    assert ops.is_missing(row, 17) is missing


def test_forms_are_read_from_docstrings() -> None:
    assert (
        overload_rows.form_of("f() -> Tensor\n\n    ONNX:  Conv,\n        then Add.\n    Refuses: x")
        == "Conv, then Add."
    )
    assert overload_rows.form_of("f() -> Tensor") == overload_rows.form_of(None) == ""
    assert sum(bool(row["form"]) for row in listed().values()) > 500


@pytest.mark.parametrize("pattern", ["aten.conv?d.default", "ATEN.CONV2"])
def test_patterns(pattern: str) -> None:
    found = listed(pattern)
    assert "aten.conv2d.default" in found
    assert all("conv" in name for name in found)


def test_table_is_one_line_an_overload() -> None:
    unknown = invoke("ops", "mylib::gated_pool")
    assert "PyTorch's operators only" in unknown.stderr
    done = invoke("ops", "aten.gelu.default")
    heading, row = done.stdout.splitlines()
    assert heading.split() == ["overload", "opset", "source"]
    assert row.split()[0] == "aten.gelu.default"


@pytest.mark.parametrize(
    ("arguments", "code"), [(["aten.conv2d.defualt"], "E601"), (["--opset", "9"], "E001"), (["--opset", "99"], "E001")]
)
def test_mistakes(arguments: list[str], code: str) -> None:
    done = invoke("ops", *arguments, "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["code"] == code
