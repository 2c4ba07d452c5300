"""Names that say what a browser or a terminal would obey are shown, and nothing of them runs."""

from __future__ import annotations

import base64
import copy
import hashlib
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import plain
from fx2onnx.report.console import PlainConsole
from fx2onnx.report.page import page, weight_tree
from fx2onnx.report.profile import Profile
from fx2onnx.report.table import comparison_view, view
from tests.report.browsing import Opened
from tests.report.hostile import NAMES, hostile_profile

SHOWN = [" ".join(plain(name).split()) for name in NAMES]
"""The names as a page shows them, spaces apart."""


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Opened:
    profile, comparison = hostile_profile()
    profile.to_html(tmp_path / "hostile.html", [comparison])
    return Opened(browser, tmp_path / "hostile.html")


def run_by_a_name(opened: Opened) -> bool:
    """Return whether a name ran, or wrote into what all objects share."""
    opened.page.wait_for_timeout(50)
    return bool(opened.page.evaluate("() => { for (const name in {}) return true; return 'pwned' in window; }"))


def missing(opened: Opened, selector: str) -> list[str]:
    text = " ".join(opened.page.locator(selector).all_text_contents())
    text = " ".join(text.split())
    return [name for name in SHOWN if name not in text]


PLACES = {
    "overview": ["#cards", "#phase-tables table"],
    "flames": ["#flame-charts title"],
    "operations": ["#operation-table tbody", "#line-table tbody"],
    "changes": ["#changes article:nth-child(1)", "#changes article:nth-child(2) tbody"],
    "sizes": ["#series"],
    "weights": ["#weight-table tbody"],
    "graph": [],
    "verification": ["#verdict-text", "#verdict-table tbody", "#facts"],
}
CHARTS = {
    "overview": ["phase-seconds", "phase-share", "memory"],
    "operations": ["slowest"],
    "sizes": ["series-0", "series-1"],
    "weights": ["weight-map"],
}


@pytest.mark.long
def test_every_view_shows_hostile_names_as_text(opened: Opened) -> None:
    for tab, places in PLACES.items():
        opened.show(tab)
        for place in places:
            gone = missing(opened, place)
            if place == "#cards":  # a card has room for the beginning of a name
                gone = [name for name in gone if len(name) < 80]
            assert not gone, f"{place} of {tab}"
        assert not run_by_a_name(opened), tab
    assert NAMES[0] in (opened.page.text_content("h1") or "")
    assert opened.complaints == []


@pytest.mark.long
def test_every_tooltip_shows_hostile_names_as_text(opened: Opened) -> None:
    """The pointer goes to the middle of what each chart has drawn; the chart answers with names."""
    for tab, charts in CHARTS.items():
        opened.show(tab)
        for chart in charts:
            opened.page.locator(f"#{chart}").scroll_into_view_if_needed()
            opened.page.wait_for_timeout(350)  # bars grow when they are drawn
            shown = opened.page.evaluate(_HOVER, chart)
            assert any(name[:200] in " ".join(text.split()) for text in shown for name in SHOWN), chart
            assert not run_by_a_name(opened), chart
    assert opened.complaints == []


_HOVER = """(id) => {
  const chart = document.getElementById(id), shown = new Set();
  for (const drawn of chart.querySelectorAll('svg path')) {
    drawn.scrollIntoView({ block: 'center' });
    const { x, y, width, height } = drawn.getBoundingClientRect();
    const at = { clientX: x + width / 2, clientY: y + height / 2, bubbles: true };
    chart.querySelector('svg').parentElement.dispatchEvent(new MouseEvent('mousemove', at));
    chart.querySelectorAll('.tooltip').forEach((tip) => shown.add(tip.textContent));
  }
  return [...shown];
}"""


def test_flames_and_boxes_tell_hostile_names_when_they_are_tapped(opened: Opened) -> None:
    opened.show("flames")
    opened.page.wait_for_timeout(400)
    frames = opened.page.locator("#flame-charts article:first-child g.frame")
    shown = []
    for index in range(1, min(frames.count(), 24)):
        frames.nth(index).dispatch_event("mouseover")
        shown.append(opened.page.text_content("#flame-details") or "")
    assert any(SHOWN[0] in text for text in shown)
    opened.page.click("text=by module")
    opened.page.fill("#flame-search", NAMES[0])
    opened.show("graph")
    for depth in opened.page.locator("#graph-depth option").evaluate_all(
        "(found) => found.map((option) => option.value)"
    ):
        opened.page.select_option("#graph-depth", depth)
        shown = opened.page.evaluate("""() => graphPicture.nodes().map((node) => {
            node.emit('tap');
            return document.getElementById('graph-details').textContent;
        })""")
        text = " ".join(" ".join(shown).split())
        assert not [name for name in SHOWN if name not in text], depth
    assert not run_by_a_name(opened)
    assert opened.complaints == []


def test_the_policy_stops_what_would_get_through(opened: Opened) -> None:
    opened.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"data:,\" onerror=\"window.pwned=1\">')"
    )
    opened.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.pwned=2' }))"
    )
    opened.page.evaluate("setTimeout('window.pwned=3', 0)")
    opened.page.evaluate("fetch('data:,x').catch(() => {})")
    assert not run_by_a_name(opened)
    for kind in ("inline event handler", "inline script", "string as JavaScript", "connect"):
        assert any(kind in complaint for complaint in opened.complaints), (kind, opened.complaints)


class Tags(HTMLParser):
    """What a reader of HTML makes of a page: its tags, and the texts of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in self.inside:
            self.inside[self.tags[-1][0]].append(data)


def test_a_hostile_page_has_the_tags_of_any_page() -> None:
    profile, comparison = hostile_profile()
    text = page(profile, [comparison])
    found, bare = Tags(text), Tags(page(Profile(exports=profile.exports[:1])))
    assert found.tags == bare.tags
    assert not [attrs for _, attrs in found.tags if any(name.startswith("on") or name == "style" for name in attrs)]
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert not re.search("[<>&\u2028\u2029\u202e]", data)
    assert json.loads(data)["weights"][0]["name"] == NAMES[0]
    text.encode()  # no halves of characters


def test_the_policy_knows_each_script_by_its_hash() -> None:
    found = Tags(page(hostile_profile()[0]))
    (policy,) = (attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy).split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    assert "unsafe" not in str(policy)
    hashes = {
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in found.inside["script"]
    }
    scripts = set(rules["script-src"].split())
    assert len(scripts) == 8
    assert scripts < hashes, "all but the data"


def test_what_json_has_not_leaves_the_page_whole() -> None:
    """A verification that found another type has an infinite error."""
    profile, _ = hostile_profile()
    (data,) = re.findall(r'id="data">(.*?)</script>', page(profile))
    rows = json.loads(data, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["verification"]["rows"]
    assert rows[0]["max_abs_error"] is None


def test_names_of_many_parts_make_a_map() -> None:
    names = [".".join("x" * 5000), ".".join("x" * 4999) + ".", "." * 300]
    tree = weight_tree([{"name": name, "bytes": 1} for name in names])
    assert sum(branch["value"] for branch in tree) == 3


@pytest.mark.long
def test_tables_obey_no_name() -> None:
    profile, comparison = hostile_profile()
    stream = io.StringIO()
    console = PlainConsole(file=stream, width=100_000, color_system=None)
    console.print(view(profile))
    console.print(comparison_view(comparison))
    console.print(f"plain {NAMES[12]}")
    text = stream.getvalue()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text)
    for name in (*NAMES[:9], NAMES[10], *NAMES[12:14], "\x1b[31mred \x1b]8;;"):
        assert plain(name) in text, name
    (profile.table() + "\n").encode()


def changed(data: Any, path: tuple[str | int, ...], value: Any) -> Any:
    data = copy.deepcopy(data)
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("source",), {}),
        (("exports", 0, "seconds", 0), "1"),
        (("exports", 0, "seconds", 0), math.nan),
        (("exports", 0, "seconds", 0), 10**400),
        (("exports", 0, "events", "name"), None),
        (("exports", 0, "events", "children", 0, "args"), {"where": 3}),
        (("exports", 0, "memory", 0), [1, 2]),
        (("weights", 0, "name"), 7),
        (("weights", 0, "bytes"), -1),
        (("graph", "edges", 0), [0, 10**6]),
        (("graph", "nodes", 0), ["Add"]),
        (("verification", "rows", 0, "max_abs_error"), "much"),
        (("sweeps", 0, "points", 0, "exporter"), []),
    ],
)
def test_a_profile_of_another_form_is_refused_with_the_place(profile: Profile, path: Any, value: Any) -> None:
    data = json.loads(json.dumps(profile.as_dict()))
    Profile.from_dict(data)
    with pytest.raises(UserError) as caught:
        Profile.from_dict(changed(data, path, value))
    assert caught.value.code == "E302"
    assert str(path[-2] if isinstance(path[-1], int) else path[-1]) in caught.value.why


def test_events_without_an_end_are_refused(profile: Profile, tmp_path: Path) -> None:
    data = json.loads(json.dumps(profile.as_dict()))
    for depth, message in ((150, ""), (250, "more than"), (50_000, "cannot read")):
        event = '{"name": "a", "start": 0, "seconds": 0, "children": [' * depth + "]}" * depth
        text = json.dumps(changed(data, ("exports", 0, "events"), "EVENT")).replace('"EVENT"', event)
        (tmp_path / "deep.json").write_text(text)
        if not message:
            page(Profile.from_json(tmp_path / "deep.json"))
            continue
        with pytest.raises(UserError, match=r"damaged|cannot read") as caught:
            Profile.from_json(tmp_path / "deep.json")
        assert caught.value.code == "E302"
