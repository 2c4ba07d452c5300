"""A page in the headless browser of the ``browser`` fixture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}


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

    def show(self, tab: str) -> None:
        self.page.click(f"#tab-{tab}")
        assert self.page.is_visible(f"#{tab}")

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())
