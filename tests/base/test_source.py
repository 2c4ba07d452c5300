"""Lines of source files are those of the file as it is now."""

from __future__ import annotations

from pathlib import Path

from fx2onnx.base.source import SourceLocation, line_of


def test_a_file_that_was_edited(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("a = 1\n")
    assert line_of(str(path), 1) == "a = 1\n"
    path.write_text("# more\na = 2\n")
    assert [line_of(str(path), line) for line in (0, 1, 2, 3)] == ["", "# more\n", "a = 2\n", ""]
    assert SourceLocation(str(path), 2, "f").excerpt()[1:] == ["        1 | # more", "  >     2 | a = 2"]
    assert line_of(str(tmp_path / "none.py"), 1) == ""
