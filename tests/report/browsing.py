"""A headless Chromium, where the machine has one, and a page in it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Skips the test where there is none, unless ``make browser-test`` asks for it."""
    from playwright import sync_api as playwright

    installed = next(filter(None, map(shutil.which, BROWSERS)), None)
    with playwright.sync_playwright() as started:
        if installed is None and not Path(started.chromium.executable_path).exists():
            assert "BROWSER_REQUIRED" not in os.environ, "make browser-test found and installed no Chromium"
            pytest.skip("no Chromium on this machine, and pip cannot bring one: make browser-test does")
        opened = started.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


class Opened:
    """A page on the disk with everything that it complained about or asked the network for."""

    def __init__(self, browser: Any, file: Path, size: dict[str, int] = DESK, scheme: str = "light") -> None:
        self.complaints: list[str] = []
        self.page = browser.new_page(viewport=size, color_scheme=scheme)
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", lambda request: self._request(request.url, file))
        self.page.goto(file.as_uri())

    def _request(self, url: str, file: Path) -> None:
        if not url.startswith((file.as_uri(), "data:")):
            self.complaints.append(f"asks for {url}")

    def is_at_top(self) -> bool:
        """Return whether the title and the first card are in sight, as the page was opened."""
        places = (self.page.locator(place).first.bounding_box() for place in ("h1", "#cards div"))
        height = self.page.viewport_size["height"]
        return self.page.evaluate("scrollY") == 0 and all(0 <= place["y"] < height for place in places)

    def too_wide(self) -> list[str]:
        """The page and its tables, as far as they would have to be scrolled sideways."""
        found: list[str] = self.page.evaluate("""[...document.querySelectorAll('html, .scroll')].filter((e) =>
            e.checkVisibility() && e.scrollWidth > e.clientWidth).map((e) => `${e.id || e.className}: ${e.scrollWidth}`)""")
        return found

    def texts(self, places: str) -> list[str]:
        return [text.strip() for text in self.page.locator(places).all_text_contents()]

    def show(self, tab: str) -> None:
        self.page.click(f"#tab-{tab}")
        assert self.page.is_visible(f"#{tab}")

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())
