"""Every code block of README, CONTRIBUTING and docs/ runs, and what pages link to is there."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

import pytest

from benchmarks.export_page import SHOWN
from fx2onnx.base.errors import CODES
from fx2onnx.torchcompat.pytrees import registered_meanwhile
from tests.docs.blocks import OPTIONS, PAGES, ROOT, RUNNERS, blocks_of, parse_session, run_page

SLOW = {
    "ci": "exports in processes of their own",
    "cli/export_folder": "a folder of a decoder",
    "cli/export_many": "three models in processes of their own",
    "cli/export_training": "trains",
    "cli/sources": "models of torchvision and transformers",
    "generation": "folders of decoders",
    "serving": "folders of decoders",
    "profiling": "exports several times, by torch.onnx.export too",
    "training": "trains",
}
"""Pages whose blocks take more than some seconds."""


def name_of(page: Path) -> str:
    """The folder and the name of a page, such as ``measured/index``."""
    return page.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/")


RUN = [page for page in PAGES if any(block.language in RUNNERS for block in blocks_of(page))]


@pytest.mark.long_cases(
    "cli/export",
    "cli/optimize",
    "cli/profile",
    "cli/run",
    "cli/verify",
    "deployment",
    "errors",
    "migrating",
    "quantization",
    "quickstart",
    "weights",
)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if name_of(page) in SLOW else [], id=name_of(page)) for page in RUN],
)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "from transformers.exporters" in page.read_text():
        import transformers.cache_utils  # noqa: F401 - its exporters make structures of these classes
    with registered_meanwhile():
        assert run_page(page) > 0


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_block_says_what_it_is(page: Path) -> None:
    """One without a language, or with options that mean nothing, would be left out without a word."""
    for block in blocks_of(page):
        if not block.language.startswith("{"):  # a directive of the site
            assert block.language in OPTIONS, block.place
            assert set(block.options) <= OPTIONS[block.language], block.place


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_cannot_run_here_are_parsed(page: Path) -> None:
    """Those of ``text`` blocks name files and folders that a test has not; their options are checked."""
    for block in blocks_of(page):
        if block.language == "text":
            parse_session(block, {}, start="fx2onnx ")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"(?<!`)\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        file, _, heading = target.partition("#")
        other = (page.parent / file).resolve() if file else page
        assert other.exists(), target
        if heading and other.suffix == ".md":
            assert heading in {anchor(line) for line in other.read_text().splitlines() if line.startswith("#")}, target


def anchor(line: str) -> str:
    """As GitHub and Sphinx make it of a heading."""
    words = re.sub(r"[^\w\s-]", "", line.lstrip("#").strip().lower())
    return re.sub(r"\s", "-", words)


def test_an_index_leads_to_each_page() -> None:
    indexes = [ROOT / "docs" / "index.md", *(ROOT / "docs").glob("*/index.md")]
    found = {
        (index.parent / target).resolve()
        for index in indexes
        for target in re.findall(r"^[-|] \[[^\]]*\]\(([\w/]+\.md)\)", index.read_text(), re.MULTILINE)
    }
    assert {page for page in PAGES if page.parent != ROOT} - found - {ROOT / "docs" / "index.md"} == set()


def test_each_measurement_has_its_date_commit_and_command() -> None:
    rows = [
        line for line in (ROOT / "docs" / "measured" / "index.md").read_text().splitlines() if line.startswith("| [")
    ]
    assert len(rows) == len(list((ROOT / "docs" / "measured").glob("*.md"))) - 1
    for row in rows:
        assert re.search(r"\| 20\d\d-\d\d-\d\d \| [0-9a-f]{7,8} \| `(?:make|python -m) [\w .-]+` \| .+ \|$", row), row


def test_the_numbers_of_the_readme_are_those_of_the_measured_page() -> None:
    """Whole numbers: cut off, or, as in the figure, rounded."""
    readme, page = (ROOT / "README.md").read_text(), (ROOT / "docs" / "measured" / "benchmarks.md").read_text()
    rows = {
        cells[0].split()[0]: cells[1:]
        for cells in (re.split(r"\s*\|\s*", line.strip("| ")) for line in page.partition("\n## Graph")[0].splitlines())
        if len(cells) == 10 and cells[0] not in ("model", "---")
    }
    factors = {name: float(cells[5]) for name, cells in rows.items()}
    least, most = int(min(factors.values())), int(max(factors.values()))
    assert f"{least} to {most} times faster ([{len(rows)} models]" in readme
    assert f"the median is {int(median(factors.values()))} times, the least {least} and the most {most}" in readme
    shown = [factors[name.split()[0]] for name in SHOWN]
    assert f"Factors between {int(min(shown))} and {round(max(shown))} for eight models" in readme
    assert len(shown) == 8
    table = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", readme, re.MULTILINE)
    assert len(table) == 3
    for name, size, *others in table:
        assert [int(size), *others] == [round(float(rows[name][0])), *rows[name][1:5]], name


def test_the_file_for_language_models_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text())
    assert len(links) > 8
    assert not [link for link in links if not (ROOT / link).is_file()]


def test_each_code_has_a_failing_and_a_working_example() -> None:
    """A section for each code: a block that ends with the error, and behind that one that does not."""
    found = set()
    for page in (ROOT / "docs" / "errors_export.md", ROOT / "docs" / "errors_files.md"):
        lines = page.read_text().splitlines()
        starts = {line[3:7]: number for number, line in enumerate(lines, 1) if line.startswith("## E")}
        ends = dict(zip(starts, [*list(starts.values())[1:], len(lines) + 1], strict=True))
        for code, start in starts.items():
            blocks = [
                block for block in blocks_of(page) if start < block.line < ends[code] and block.language in RUNNERS
            ]
            how = [block.options.get("raises", "") for block in blocks]
            assert code in how, code
            assert "" in how[how.index(code) :], f"{code} has no working example behind the failing one"
        found |= set(starts)
    assert found == set(CODES)
