"""Opens reports in a real browser, from disk: nothing may fail, nothing may leave the machine."""

import base64
import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from kvsim.report.inputs import ReportInput
from kvsim.report.page import build_report
from tests import chromium

pytestmark = pytest.mark.browser

BAD = "window.pwned=1"
HOSTILE = f"</script><img src=http://127.0.0.1:9/x onerror='{BAD}'><script>{BAD}</script>"
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium.executable(), args=chromium.ARGUMENTS
        )
        yield started
        started.close()


class Opened:
    """A page that has drawn its charts, and what it complained of and asked for until then."""

    def __init__(self, browser: Browser, path: Path, **options) -> None:
        self.page: Page = browser.new_context(**options).new_page()
        self.log: list[str] = []
        requests: list[str] = []
        self.page.on("console", lambda message: self.log.append(message.text))
        self.page.on("pageerror", lambda error: self.log.append(str(error)))
        self.page.on("request", lambda request: requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-charts=drawn]", timeout=PATIENCE_MS)
        self.complaints, self.requests = list(self.log), list(requests)


def settles(page: Page, condition: str) -> bool:
    """Wait until a condition holds, without the page's own eval, which its policy forbids."""
    for _ in range(200):
        if page.evaluate(condition):
            return True
        page.wait_for_timeout(50)
    return False


def written(folder: Path, run: ReportInput) -> Path:
    path = folder / "report.html"
    path.write_text(build_report(run), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def report(synthetic, tmp_path_factory) -> Path:
    run = synthetic.run(synthetic.Traffic(steps=20_000, preempted=40))
    return written(tmp_path_factory.mktemp("report"), run)


@pytest.fixture(scope="module")
def opened(browser, report) -> Opened:
    return Opened(browser, report, viewport={"width": 1280, "height": 900}, offline=True)


def colors_of(browser: Browser, png: bytes) -> Counter:
    """Count the colors of every third pixel of a screenshot; the browser itself decodes it."""
    page = browser.new_page()
    pixels = page.evaluate(
        """async (png) => {
            const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
            const image = await createImageBitmap(new Blob([bytes]));
            const canvas = new OffscreenCanvas(image.width, image.height);
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            const { data } = context.getImageData(0, 0, image.width, image.height);
            const counts = {};
            for (let i = 0; i < data.length; i += 12) {
                const color = (data[i] << 16) | (data[i + 1] << 8) | data[i + 2];
                counts[color] = (counts[color] || 0) + 1;
            }
            return counts;
        }""",
        base64.b64encode(png).decode(),
    )
    page.close()
    return Counter({int(color): count for color, count in pixels.items()})


def test_opens_without_a_complaint(opened):
    assert opened.complaints == []


def test_requests_nothing_but_itself(opened, report):
    assert opened.requests == [report.as_uri()]


def test_the_policy_stops_what_a_page_could_still_try(opened):
    result = opened.page.evaluate(
        "fetch('http://127.0.0.1:9/').then(() => 'allowed', () => 'blocked')"
    )
    assert result == "blocked"
    assert any("violates" in text and "default-src 'none'" in text for text in opened.log)


def test_every_chart_is_drawn(opened):
    plots = opened.page.locator(".plot")
    assert plots.count() >= 7
    for plot in plots.all():
        assert plot.get_attribute("data-drawn") == "true"
        shapes = plot.locator(".scatterlayer path, .barlayer path")
        assert shapes.count() >= 2


def test_no_chart_is_blank(browser, opened):
    for plot in opened.page.locator(".plot").all():
        colors = colors_of(browser, plot.screenshot())
        assert len(colors) > 20
        background, count = colors.most_common(1)[0]
        assert count < 0.995 * colors.total(), f"nearly all of it is #{background:06x}"


def test_a_chart_can_be_saved_as_an_image(opened):
    plot = opened.page.locator("#chart-queue-batch")
    plot.hover()
    with opened.page.expect_download() as download:
        plot.locator(".modebar-btn").first.click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")


def test_hover_tells_value_and_variant(opened):
    plot = opened.page.locator("#chart-queue-batch")
    plot.scroll_into_view_if_needed()
    box = plot.locator(".draglayer rect").first.bounding_box()
    label = plot.locator(".hoverlayer .hovertext").first
    for tenths in range(10, 50, 5):  # down the panel until the pointer is near a line
        down = box["height"] * tenths / 50
        opened.page.mouse.move(box["x"] + box["width"] / 4, box["y"] + down, steps=3)
        opened.page.wait_for_timeout(200)
        if label.count():
            break
    assert re.fullmatch(r"(base|contiguous)\d+ running", label.text_content())


def test_the_kv_chart_shows_the_colors_of_its_legend(browser, opened):
    colors = colors_of(browser, opened.page.locator("#chart-kv-slots").screenshot())
    assert colors[0x009E73] > 150  # holding tokens
    assert colors[0xE69F00] > 150  # wasted inside reservations


@pytest.mark.parametrize("width", [390, 1440])
def test_no_sideways_scrolling(opened, width):
    opened.page.set_viewport_size({"width": width, "height": 800})
    assert settles(opened.page, f"document.documentElement.scrollWidth === {width}")


@pytest.mark.parametrize(
    ("scheme", "paper", "ink"),
    [
        ("dark", "rgb(20, 23, 27)", "rgb(232, 234, 237)"),
        ("light", "rgb(255, 255, 255)", "rgb(26, 29, 33)"),
    ],
)
def test_charts_follow_the_color_scheme(opened, scheme, paper, ink):
    opened.page.emulate_media(color_scheme=scheme)
    for selector, prop in (("body", "color"), (".xtick text", "fill"), (".infolayer text", "fill")):
        style = f"getComputedStyle(document.querySelector('{selector}')).{prop}"
        assert opened.page.evaluate(style) == ink
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == paper


def test_printing_opens_the_tables_and_fits_the_paper(opened):
    page = opened.page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    drawn = "[...document.querySelectorAll('.plot .main-svg')]"
    assert settles(page, f"{drawn}.every((svg) => svg.clientWidth <= 680)")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    assert len(page.pdf(prefer_css_page_size=True)) > 50_000


def test_readable_without_script(browser, report):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(report.as_uri())
    assert page.get_by_text("Meets its SLO").first.is_visible()
    assert page.locator("#variants table").first.is_visible()
    page.locator("#kv details summary").click()
    assert page.locator("#kv details table").is_visible()


def test_hostile_names_execute_nothing(browser, synthetic, tmp_path):
    run = synthetic.run(names=("base", HOSTILE, "🚀\u202eمرحبا" + "x" * 300))
    run = dataclasses.replace(run, scenario=HOSTILE, question=HOSTILE, command=HOSTILE)
    path = written(tmp_path, run)
    opened = Opened(browser, path, viewport={"width": 390, "height": 800})
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]
    assert opened.page.evaluate("window.pwned") is None
    assert opened.page.locator("h1").inner_text() == HOSTILE
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("kind", ["empty", "rejected"])
def test_runs_without_steps_open_too(browser, synthetic, tmp_path, kind):
    opened = Opened(browser, written(tmp_path, getattr(synthetic, kind)()))
    assert opened.complaints == []
    assert opened.page.locator(".plot").count() == 0
