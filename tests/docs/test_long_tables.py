"""Long tables of measured pages become CSV files beside them."""

import csv
from pathlib import Path

import pytest

from tools.long_tables import LONG_TABLE, write_page


def _table(first: str, rows: int) -> str:
    return f"| {first} | result |\n|---|---:|\n" + "".join(f"| model{n} | a \\| b, {n} |\n" for n in range(rows))


def test_a_long_table_is_a_file_and_a_short_one_stays(tmp_path: Path) -> None:
    (tmp_path / "page_old_rows.csv").write_text("of an earlier page")
    page = tmp_path / "page.md"
    write_page(
        page, f"# Page\n\n{_table('model', 3)}\n## Zoo, every entry\n\n{_table('model', LONG_TABLE)}\nThe end.\n"
    )
    text = page.read_text()
    assert _table("model", 3) in text
    assert text.endswith("The end.\n")
    assert len(text.split()) < 80
    assert f"All {LONG_TABLE} rows, with model, result: [page_zoo_model.csv](page_zoo_model.csv).\n" in text
    with (tmp_path / "page_zoo_model.csv").open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == ["model", "result"]
    assert len(rows) == LONG_TABLE + 1
    assert rows[8] == ["model7", "a | b, 7"]
    assert [file.name for file in tmp_path.glob("*.csv")] == ["page_zoo_model.csv"]


def test_two_tables_do_not_share_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one section and first column"):
        write_page(tmp_path / "page.md", f"## A\n\n{_table('model', LONG_TABLE)}\n\n{_table('model', LONG_TABLE)}")
