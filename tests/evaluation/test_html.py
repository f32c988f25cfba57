"""The page of a report: valid, complete, and nothing loaded from elsewhere."""

from __future__ import annotations

import base64
import json
import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

import wdro_model as wdro

pytest.importorskip("matplotlib")
LABEL = "<script>alert(1)</script> & \"radius\" 'x' $\\alpha$"


class Page(HTMLParser):
    """Tags with their attributes, and the text of each kind of tag."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.texts, self._open = [], {}, []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def report(portfolio, rng):
    test = rng.normal(0.0, 0.3, size=(60, 4))
    methods = {
        LABEL: {"method": "erm"},
        "exact": {},
        "conic": {"method": "smoothed", "solver": wdro.solvers.Conic()},
    }
    return wdro.compare(portfolio[0], methods, test={"held <out>": test})


def test_the_page_is_valid_html(report):
    html5lib = pytest.importorskip("html5lib")
    html5lib.HTMLParser(strict=True).parse(report.to_html())
    html5lib.HTMLParser(strict=True).parseFragment(report._repr_html_())
    html5lib.HTMLParser(strict=True).parseFragment(report.advantage("exact")._repr_html_())


def test_the_page_has_title_language_and_all_rows(report):
    page = Page(report.to_html(title="Portfolios & more"))
    assert page.texts["title"] == ["Portfolios & more"]
    assert page.all("html") == [{"lang": "en"}]
    assert {"charset": "utf-8"} in page.all("meta")
    headings = [text for text in page.texts["th"] if text in {LABEL, "exact", "conic"}]
    assert headings[:5] == [LABEL, LABEL, "exact", "exact", "conic"]
    for row in report.rows():
        if row["mean"] is not None:
            assert f"{row['mean']:.5g}" in page.texts["td"]
    assert any("the smoothed objective has no conic form" in text for text in page.texts["li"])
    explained = page.texts["dt"]
    assert {"promise", "cvar95", "kept?", "mean - promise"} <= set(explained)
    assert len(page.texts["dd"]) == len(explained)


def test_pictures_are_in_the_page_and_described(report):
    (image,) = Page(report.to_html()).all("img")
    kind, data = image["src"].split(",", 1)
    assert kind == "data:image/png;base64"
    png = base64.b64decode(data, validate=True)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    assert (width, height) == (int(image["width"]), int(image["height"]))
    assert min(width, height) > 300
    pixels = decoded(png)
    assert pixels.std() > 0.02
    assert LABEL in image["alt"]
    assert (
        f"exact on training: mean {report['exact'].losses['training'].mean():.5g}" in image["alt"]
    )


def decoded(png):
    import io

    from matplotlib.image import imread

    return imread(io.BytesIO(png))


def test_nothing_is_loaded_from_elsewhere(report):
    source = report.to_html()
    page = Page(source)
    names = {tag for tag, _ in page.tags}
    assert not names & {"link", "iframe", "object", "embed", "base"}
    for _, attributes in page.tags:
        assert not set(attributes) & {"href", "srcset", "onload", "onerror"}
        assert attributes.get("src", "data:").startswith("data:")
    without_data = re.sub(r"base64,[A-Za-z0-9+/=]+", "", source)
    assert "://" not in without_data
    assert "url(" not in without_data
    assert "@import" not in without_data
    for word in ("http", "fetch(", "XMLHttpRequest", "import(", "WebSocket"):
        assert word not in without_data


def test_labels_are_escaped_everywhere(report):
    for source in (report.to_html(), report._repr_html_()):
        assert "<script>alert" not in source
        assert "held <out>" not in source
        assert "held &lt;out&gt;" in source


def test_the_page_is_written_as_it_is_returned(report, tmp_path):
    assert report.to_html(tmp_path / "report.html") is None
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == report.to_html()


def test_without_matplotlib_the_page_says_what_is_missing(report, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    page = Page(report.to_html())
    assert not page.all("img")
    assert any("plots need matplotlib" in text for text in page.texts["p"])


def test_a_single_method_has_no_baseline(portfolio):
    source = wdro.compare(portfolio[0], methods="erm").to_html()
    assert "Against a baseline" not in source
    assert "Without a decision" not in source


# ------------------------------------------------------------------ in a browser
PROBE = """<script>
window.addEventListener("load", () => {
  const images = [...document.images].map(i => [i.naturalWidth, i.complete]);
  const loaded = performance.getEntriesByType("resource").map(r => r.name.split(":")[0]);
  document.body.dataset.probe = JSON.stringify({images: images, loaded: loaded,
    mode: document.compatMode, overflow: document.documentElement.scrollWidth > innerWidth});
});
</script>"""


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")


def test_a_browser_shows_the_pictures(report, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser: one of {', '.join(BROWSERS)} is needed on the PATH")
    file = tmp_path / "report.html"
    file.write_text(report.to_html().replace("</body>", PROBE + "</body>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]
    result = subprocess.run(
        [browser, *flags, f"--user-data-dir={tmp_path}", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    (body,) = Page(result.stdout).all("body")
    probe = json.loads(body["data-probe"])
    assert probe["mode"] == "CSS1Compat"
    assert set(probe["loaded"]) <= {"data"}
    assert not probe["overflow"]
    assert np.shape(probe["images"]) == (1, 2)
    assert all(width > 300 and complete for width, complete in probe["images"])
    assert [td for td in Page(result.stdout).texts["th"] if td == LABEL]
