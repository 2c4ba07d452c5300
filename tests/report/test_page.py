"""The profile page in a real headless browser: every tab, zoom, search, both colour schemes, phone width."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from fx2onnx.report.page import page, weight_tree
from fx2onnx.report.profile import Profile
from fx2onnx.report.profile_data import Export
from fx2onnx.report.table import compare
from tests.report.browsing import DESK, PHONE, Opened

TABS = ("overview", "flames", "operations", "changes", "sizes", "weights", "graph", "verification")


@pytest.fixture
def file(profile: Profile, tmp_path: Path) -> Path:
    earlier = copy.deepcopy(profile)
    earlier.ours.seconds = [seconds / 2 for seconds in profile.ours.seconds]
    profile.to_html(tmp_path / "profile.html", [compare(earlier, profile, "main.json")])
    return tmp_path / "profile.html"


@pytest.mark.long
def test_every_tab_draws_without_complaint(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    assert [tab.get_attribute("id") for tab in opened.page.query_selector_all("[role=tab]")] == [
        f"tab-{t}" for t in TABS
    ]
    drawn = {
        "overview": "#phase-seconds svg path, #memory svg path",
        "flames": "#flame-charts .d3-flame-graph rect",
        "operations": "#slowest svg path",
        "changes": "#changes table",
        "sizes": "#series-0 svg path, #series-1 svg path, #series-2 svg path",
        "weights": "#weight-map svg path",
        "graph": "#graph-picture canvas",
        "verification": "#verdict-table tr",
    }
    for tab in TABS:
        opened.show(tab)
        opened.page.wait_for_selector(drawn[tab], state="attached")
        visible = [name for name in TABS if opened.page.is_visible(f"#{name}")]
        assert visible == [tab]
    assert opened.page.text_content("h1") == "tests:<net> & co", "names are text, never markup"
    assert "failed" in (opened.page.text_content("#cards") or "")
    assert "agrees" in (opened.page.text_content("#cards") or "")
    assert opened.complaints == []


@pytest.mark.long_cases("phone-light", "phone-dark")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_it_fits_and_can_be_read(browser: Any, file: Path, size: dict[str, int], scheme: str) -> None:
    opened = Opened(browser, file, size, scheme)
    assert opened.is_at_top()
    for tab in TABS:
        opened.show(tab)
        assert size is PHONE or opened.too_wide() == []
        too_wide = opened.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert too_wide <= 0, f"{tab} is {too_wide} pixels too wide"
    paper, ink = (
        opened.page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color")
    )
    assert contrast(paper, ink) >= 7, "WCAG AAA for text"
    assert (luminance(paper) < 0.2) == (scheme == "dark")
    assert opened.page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 14
    assert opened.complaints == []


def test_flames_zoom_search_and_group(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    opened.show("flames")
    rects = "#flame-charts article:first-child g.frame"
    opened.page.wait_for_selector(rects)
    assert opened.count("#flame-charts article") == 2, "one for each exporter that was measured"
    # Bars grow when they are drawn, all at once: the last one drawn says that they are done.
    opened.page.wait_for_function(
        """(frames) => {
            const bars = [...document.querySelectorAll(frames)].map((g) => [g.querySelector('rect'), g]);
            return bars.every(([rect, g]) => Math.abs(rect.getAttribute('width') - g.getAttribute('width')) < 0.01);
        }""",
        arg=rects,
    )
    capture = opened.page.locator(rects, has_text="capture").first
    whole = opened.page.locator(rects).first.locator("rect").bounding_box()["width"]

    def wait_for_width(least: float, most: float) -> None:
        """Zooming is animated, and bars are made anew."""
        opened.page.wait_for_function(
            """([frames, least, most]) => {
                const found = [...document.querySelectorAll(frames)].find((g) => g.textContent.startsWith('capture:'));
                const width = found ? found.querySelector('rect').getBoundingClientRect().width : 0;
                return least <= width && width <= most;
            }""",
            arg=[rects, least, most],
        )

    before = capture.locator("rect").bounding_box()["width"]
    assert before < 0.95 * whole
    capture.click()
    wait_for_width(whole - 2, whole + 2)
    opened.page.click("#flame-reset")
    wait_for_width(before - 2, before + 2)
    opened.page.fill("#flame-search", "capture")
    assert re.search(r"fx2onnx [\d.]+ (ms|µs|s) \([\d.]+%\)", opened.page.text_content("#flame-found") or "")
    marked = opened.page.evaluate(
        "[...document.querySelectorAll('#flame-charts rect')].filter(r => r.getAttribute('fill') === '#ff4fd8').length"
    )
    assert marked >= 2
    opened.page.fill("#flame-search", "(no such[")
    assert "0%" in (opened.page.text_content("#flame-found") or "")
    opened.page.fill("#flame-search", "")
    opened.page.click("text=by module")
    opened.page.wait_for_selector("#flame-charts title:has-text('encoder')", state="attached")
    assert opened.complaints == []


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_flames_are_as_wide_as_their_place(browser: Any, file: Path, size: dict[str, int]) -> None:
    """The first one too: a place is wider while it is the only one."""
    opened = Opened(browser, file, size)
    opened.show("flames")
    widths = opened.page.evaluate(
        "[...document.querySelectorAll('.flame')].map((box) => [box.clientWidth, box.querySelector('svg').clientWidth])"
    )
    assert len(widths) == 2
    for place, drawn in widths:
        assert place - 2 <= drawn <= place


def test_changes_are_shown_by_phase_and_operation(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    assert "against main.json+100%" in (opened.page.text_content("#cards") or "")
    opened.show("changes")
    assert "(+100%)" in (opened.page.text_content("#changes h2") or "")
    names = opened.page.locator("#changes article:first-child td:first-child").all_text_contents()
    assert {"capture", "lower", "optimize", "save"} <= set(names)
    assert "aten.linear.default" in opened.page.locator("#changes article:last-child td").all_text_contents()
    assert opened.complaints == []


def test_every_measured_size_is_named_below_its_point(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    opened.show("sizes")
    said = set(opened.page.locator("#series-0 svg text").all_text_contents())
    assert {"32", "64", "512", "x, axis 0", "fx2onnx", "torch"} <= said
    assert not {"100", "200", "128", "256"} & said, "no size that was not measured"
    assert "torch at 1024: too large" in (opened.page.text_content("#series") or "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_what_is_behind_it(browser: Any, file: Path, scheme: str) -> None:
    opened = Opened(browser, file, DESK, scheme)
    for tab in TABS:
        opened.show(tab)
        pairs = opened.page.evaluate(_TEXT_ON_PAPER)
        assert len(pairs) > 20
        dull = {(text, ink, paper) for text, ink, paper in pairs if contrast(ink, paper) < 4.5}
        assert not dull, "WCAG AA"


_TEXT_ON_PAPER = """() => [...document.querySelectorAll('body *')].filter((e) => !e.closest('svg') && e.checkVisibility() &&
  [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())).map((e) => {
    let behind = e;
    while (behind && getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
    return [e.textContent.slice(0, 40), getComputedStyle(e).color, getComputedStyle(behind).backgroundColor];
  })"""


def test_tables_keep_their_times_in_sight_on_a_phone(browser: Any, file: Path) -> None:
    opened = Opened(browser, file, PHONE)
    columns = {
        "overview": ("#phase-tables table", "share"),
        "operations": ("#operation-table table", "time"),
        "changes": ("#changes table", "change"),
        "verification": ("#verdict-table table", "of allowed"),
    }
    for tab, (table, heading) in columns.items():
        opened.show(tab)
        for box in opened.page.query_selector_all(f"{table} th:text-is('{heading}')"):
            place = box.bounding_box()
            assert place["x"] + place["width"] <= PHONE["width"], f"{heading} of {tab} is out of sight"


def test_rows_are_filtered_and_sorted(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    opened.show("operations")
    cells = "#operation-table tbody tr td:nth-child({})"
    opened.page.fill("#row-search", "aten.relu")
    names = opened.page.locator(cells.format(1)).all_text_contents()
    assert set(names) == {"aten.relu.default"}
    opened.page.fill("#row-search", "")
    opened.page.click("#operation-table th:has-text('calls')")
    counts = [int(text) for text in opened.page.locator(cells.format(4)).all_text_contents()]
    assert len(counts) > 5
    assert counts == sorted(counts, reverse=True)
    opened.page.click("#operation-table th:has-text('calls')")
    assert [int(text) for text in opened.page.locator(cells.format(4)).all_text_contents()] == sorted(counts)
    assert opened.complaints == []


def test_the_graph_opens_to_single_nodes(browser: Any, file: Path, profile: Profile) -> None:
    opened = Opened(browser, file)
    opened.show("graph")
    opened.page.select_option("#graph-depth", "Infinity")
    assert opened.page.evaluate("graphPicture.nodes().length") == len(profile.graph["nodes"])
    assert opened.page.evaluate("graphPicture.edges().length") == len(profile.graph["edges"])
    opened.page.evaluate("void graphPicture.nodes()[0].emit('tap')")
    assert (opened.page.text_content("#graph-details") or "").startswith(profile.graph["nodes"][0][0])
    assert opened.complaints == []


def test_the_keyboard_moves_between_tabs(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    opened.page.focus("#tab-overview")
    opened.page.keyboard.press("ArrowLeft")
    assert opened.page.is_visible("#verification")
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.is_visible("#overview")


def test_a_change_of_width_and_scheme_redraws(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    opened.show("flames")
    opened.page.set_viewport_size(PHONE)
    opened.page.wait_for_function(
        "() => document.querySelector('#flame-charts svg').getBoundingClientRect().width < 360"
    )
    opened.show("overview")
    opened.page.emulate_media(color_scheme="dark")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert opened.complaints == []


def test_a_view_is_named_in_the_address(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    assert "#" not in opened.page.url
    opened.show("weights")
    assert opened.page.url.endswith("#view=weights")
    opened.page.reload()
    assert opened.page.is_visible("#weights")
    assert opened.is_at_top()
    assert opened.complaints == []


def test_one_exporter_has_one_chart_of_time(browser: Any, profile: Profile, tmp_path: Path) -> None:
    """Readings of memory make a curve where there are some; phases that nobody sees have no entry in the legend."""
    assert profile.ours.events is not None
    profile.exports = profile.exports[:1]
    first, *_ = profile.ours.events.children
    first.name, first.seconds = "too short", profile.ours.events.seconds / 1000
    for count, is_drawn in ((2, False), (20, True)):
        profile.exports[0].memory = [(at / count, 1000 * at, 1000 * at) for at in range(count)]
        profile.to_html(tmp_path / "one.html")
        opened = Opened(browser, tmp_path / "one.html")
        assert opened.page.is_visible("#phase-seconds svg")
        assert not opened.page.is_visible("#phase-share")
        assert opened.page.is_visible("#memory") == is_drawn
        legend = opened.texts("#phase-seconds svg text")
        assert "capture" in legend
        assert "too short" not in legend
        opened.show("flames")
        assert opened.count(".scale") == 0
        assert opened.complaints == []


def test_flames_show_their_times_at_one_scale(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    opened.show("flames")
    shares = opened.page.evaluate(
        "[...document.querySelectorAll('.scale')].map((bar) => bar.clientWidth / bar.parentElement.clientWidth)"
    )
    assert shares[0] / shares[1] == pytest.approx(1 / 3, abs=0.02)


def test_times_of_a_column_have_one_unit(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    for tab, columns in {
        "overview": ["#phase-tables article:nth-child(1) td:nth-child(2)"],
        "operations": ["#operation-table td:nth-child(3)", "#line-table td:nth-child(2)"],
        "changes": ["#changes article:first-child td:nth-child(2)"],
    }.items():
        opened.show(tab)
        for column in columns:
            times = [text for text in opened.texts(column) if text != "0"]
            assert times
            assert len({text.split()[-1] for text in times}) == 1, column


def test_labels_of_weights_fit_or_are_hidden(browser: Any, file: Path) -> None:
    opened = Opened(browser, file, PHONE)
    opened.show("weights")
    seen = opened.page.evaluate("""[...document.querySelectorAll('#weight-map text')].filter((text) =>
        getComputedStyle(text).visibility === 'visible').map((text) => text.textContent)""")
    assert len(seen) > 2
    assert not [text for text in seen if len(text.split("...")[0]) < 4 and not re.fullmatch(r"[\d.]+ k?B|\d", text)]


def test_views_without_data_have_no_tab(browser: Any, tmp_path: Path) -> None:
    bare = Profile(source="bare", exports=[Export("fx2onnx", [0.1])])
    bare.to_html(tmp_path / "bare.html")
    opened = Opened(browser, tmp_path / "bare.html")
    tabs = [tab.get_attribute("id") for tab in opened.page.query_selector_all("[role=tab]")]
    assert tabs == ["tab-overview", "tab-operations", "tab-verification"]
    assert opened.complaints == []


def test_the_page_is_one_file_that_loads_nothing(profile: Profile) -> None:
    text = page(profile)
    assert len(text.encode()) < 2_500_000
    assert "{{" not in text.split("<script")[0]
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="(?!data:)', text)
    assert text.count("</script>") == 9, "no name or message closes a script"


def test_weights_are_grouped_by_the_parts_of_their_names() -> None:
    sizes = {"a.b.weight": 5, "a.b.bias": 1, "a.c.weight": 2, "single.deep.weight": 3, "a": 7}
    tree = weight_tree([{"name": name, "bytes": size} for name, size in sizes.items()])
    assert tree == [
        {
            "name": "a",
            "value": 8,
            "children": [
                {"name": "b", "value": 6, "children": [{"name": "weight", "value": 5}, {"name": "bias", "value": 1}]},
                {"name": "c.weight", "value": 2},
            ],
        },
        {"name": "single.deep.weight", "value": 3},
        {"name": "a", "value": 7},
    ]


def luminance(colour: str) -> float:
    """WCAG 2 relative luminance of ``rgb(r, g, b)``."""
    channels = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
