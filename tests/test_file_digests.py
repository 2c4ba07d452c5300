"""``tools.file_digests``: what tells two states of the code apart."""

from studies.coverage_worker import Row
from tools.file_digests import differences


def _export(sha256: str, nodes: str, relus: int, *assumptions: str) -> Row:
    report = {"opset": 20, "assumptions": list(assumptions)}
    return {
        "sha256": sha256,
        "parts": {"nodes": nodes, "weights": "w"},
        "operators": {"Relu": relus},
        "report": report,
        "cpu_s": 1.0,
    }


def _rows(**static: Row) -> dict[str, Row]:
    return {name: {"static": export, "dynamic": _export("d", "d", 1)} for name, export in static.items()}


def test_equal_lines_have_no_difference():
    rows = _rows(a=_export("f", "n", 1, "n <= 512"))
    assert list(differences(rows, rows)) == [
        "{'exports are equal': 2, 'models only in old': 0, 'models only in new': 0}, 2 s and 2 s of CPU"
    ]


def test_each_difference_names_its_exports_and_is_said_once():
    old = _rows(a=_export("f", "n", 1, "n <= 512"), b=_export("g", "n", 1, "n <= 512"), c=_export("h", "n", 1))
    error = {"code": "E201", "what": "no entry"}
    new = _rows(a=_export("F", "N", 2), b=_export("g", "n", 1, "m == 3"), c={"error": error, "cpu_s": 1.0})
    assert list(differences(old, new))[:-1] == [
        "a static, b static: assumptions: no more n <= 512",
        "a static: the file's nodes",
        "a static: Relu 1 -> 2",
        "b static: assumptions: new m == 3",
        f"c static: error None -> {error}",
    ]
