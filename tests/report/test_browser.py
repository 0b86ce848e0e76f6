"""Opens reports in a real browser, from disk: nothing may fail, nothing may leave the machine."""

import base64
import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from kvsim.report.inputs import ReportInput
from kvsim.report.page import build_report
from tests import chromium
from tests.report.test_advice_page import ROWS

pytestmark = pytest.mark.browser

BAD = "window.pwned=1"
HOSTILE = f"</script><img src=http://127.0.0.1:9/x onerror='{BAD}'><script>{BAD}</script>"
LONG = "🚀\u202eمرحبا\n" + "x" * 300
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
    """A page that has drawn its charts, and what it complained of and asked for until then.

    `script` runs in the page before its own.
    """

    def __init__(self, browser: Browser, path: Path, script: str = "", **options) -> None:
        context = browser.new_context(reduced_motion="reduce", **options)
        self.page: Page = context.new_page()
        self.page.add_init_script(script)
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


@pytest.fixture(scope="module")
def decoder(browser) -> Page:
    """A page that decodes screenshots."""
    return browser.new_page()


def colors_of(decoder: Page, png: bytes) -> Counter:
    """Count the colors of every fifth pixel of a screenshot; the browser itself decodes it."""
    pixels = decoder.evaluate(
        """async (png) => {
            const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
            const image = await createImageBitmap(new Blob([bytes]));
            const canvas = new OffscreenCanvas(image.width, image.height);
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            const { data } = context.getImageData(0, 0, image.width, image.height);
            const counts = {};
            for (let i = 0; i < data.length; i += 20) {
                const color = (data[i] << 16) | (data[i + 1] << 8) | data[i + 2];
                counts[color] = (counts[color] || 0) + 1;
            }
            return counts;
        }""",
        base64.b64encode(png).decode(),
    )
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


def test_no_chart_is_blank(decoder, opened):
    for plot in opened.page.locator(".plot").all():
        colors = colors_of(decoder, plot.screenshot())
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


def test_the_kv_chart_shows_the_colors_of_its_legend(decoder, opened):
    colors = colors_of(decoder, opened.page.locator("#chart-kv-slots").screenshot())
    assert colors[0x009E73] > 90  # holding tokens
    assert colors[0xE69F00] > 90  # wasted inside reservations


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
    before = page.locator("details[open]").count()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    drawn = "[...document.querySelectorAll('.plot .main-svg')]"
    assert settles(page, f"{drawn}.every((svg) => svg.clientWidth <= 680)")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == before
    assert len(page.pdf(prefer_css_page_size=True)) > 50_000


def test_what_is_wide_fits_the_paper_and_names_of_changes_their_chart(browser, synthetic, tmp_path):
    names = ("base", "watermark", "contiguous", "least_requests")
    run = dataclasses.replace(synthetic.run(names=names), advice=ROWS)
    paper = {"width": 688, "height": 1000}  # A4 within its margins
    page = Opened(browser, written(tmp_path, run), viewport=paper).page
    left = "document.getElementById('advice-ratios').getBoundingClientRect().left"
    labels = "[...document.querySelectorAll('#advice-ratios .ytick text')]"
    assert page.evaluate(f"{labels}.length") == 3
    assert page.evaluate(f"{labels}.every((e) => e.getBoundingClientRect().left >= {left})")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert settles(page, "document.documentElement.scrollWidth === 688")


def test_paper_is_white_and_without_what_needs_a_screen(opened):
    opened.page.emulate_media(media="print", color_scheme="dark")
    style = "getComputedStyle(document.body)"
    assert opened.page.evaluate(f"{style}.backgroundColor") == "rgb(255, 255, 255)"
    assert opened.page.evaluate(f"{style}.color") == "rgb(26, 29, 33)"
    assert not opened.page.locator("nav").is_visible()
    assert opened.page.locator(".modebar").first.is_hidden()
    assert opened.page.locator(".drawing").first.evaluate(
        "e => getComputedStyle(e).breakInside"
    ) == ("avoid")
    opened.page.emulate_media(media="screen", color_scheme="light")


def test_the_time_to_the_last_chart_is_told(opened, record_property):
    drawn_ms = int(opened.page.locator("html").get_attribute("data-drawn-ms"))
    record_property("milliseconds from navigation to the last chart", drawn_ms)
    assert 0 < drawn_ms < PATIENCE_MS


def test_the_keyboard_skips_to_the_answer(opened):
    page = opened.page
    skip = page.locator(".skip")
    assert page.locator("a, button, summary, input, [tabindex]").first.get_attribute("class") == (
        "skip"
    )
    skip.focus()
    assert settles(page, "document.querySelector('.skip').getBoundingClientRect().top >= 0")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"  # where the focus is can be seen


def test_the_navigation_leads_to_sections_and_marks_them(opened):
    page = opened.page
    page.set_viewport_size({"width": 1280, "height": 900})
    for section in ("latency", "kv", "verdict"):
        link = page.locator(f"nav a[href='#{section}']")
        link.click()
        current = "document.querySelector('nav a[aria-current]')?.getAttribute('href')"
        assert settles(page, f"{current} === '#{section}'")
        top = f"document.getElementById('{section}').getBoundingClientRect().top"
        assert settles(page, f"{top} >= 0 && {top} < 220")
        assert page.locator("nav a[aria-current]").count() == 1


def test_numbers_of_a_chart_open_by_mouse_and_by_keyboard(opened):
    details = opened.page.locator("#queue details")
    summary = details.locator("summary")
    for toggle in (summary.click, lambda: (summary.focus(), opened.page.keyboard.press("Enter"))):
        before = details.locator("table").is_visible()
        toggle()
        assert details.locator("table").is_visible() is not before


def test_a_chart_zooms_and_comes_back(opened):
    page = opened.page
    plot = page.locator("#chart-queue-batch")
    plot.scroll_into_view_if_needed()
    span = "document.getElementById('chart-queue-batch')._fullLayout.xaxis.range"
    before = page.evaluate(span)
    box = plot.locator(".draglayer rect").first.bounding_box()
    across, down = box["x"] + box["width"] / 4, box["y"] + box["height"] / 2
    page.mouse.move(across, down)
    page.mouse.down()
    page.mouse.move(across + box["width"] / 2, down, steps=4)
    page.mouse.up()
    assert settles(page, f"{span}[0] > {before[0]} && {span}[1] < {before[1]}")
    plot.hover()
    plot.locator(".modebar-btn").last.click()
    assert settles(page, f"{span}[0] === {before[0]} && {span}[1] === {before[1]}")


def test_headings_follow_one_another(opened):
    levels = opened.page.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4')].map((heading) => +heading.tagName[1])"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_readable_without_script(browser, report):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(report.as_uri())
    assert page.get_by_text("Meets its SLO").first.is_visible()
    assert page.locator("#variants table").first.is_visible()
    page.locator("#kv details summary").click()
    assert page.locator("#kv details table").is_visible()


PRINTED_AT_ONCE = """addEventListener("DOMContentLoaded", () => {
    dispatchEvent(new Event("beforeprint"));
    window.inPrint = document.querySelectorAll(".plot .svg-container").length;
    dispatchEvent(new Event("afterprint"));
});"""


def test_hostile_names_execute_nothing_and_printing_waits_for_no_chart(
    browser, synthetic, tmp_path
):
    run = synthetic.run(names=("base", HOSTILE, LONG))
    run = dataclasses.replace(run, scenario=HOSTILE, question=HOSTILE + LONG, command=HOSTILE)
    path = written(tmp_path, run)
    opened = Opened(browser, path, PRINTED_AT_ONCE, viewport={"width": 390, "height": 800})
    assert opened.page.evaluate("window.inPrint") == opened.page.locator(".plot").count() >= 6
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]
    assert opened.page.evaluate("window.pwned") is None
    assert opened.page.locator("h1").inner_text() == HOSTILE
    assert settles(opened.page, "document.documentElement.scrollWidth === 390")
    wraps = (
        "[...document.querySelectorAll('h1, h2, h3')].map(h => getComputedStyle(h).overflowWrap)"
    )
    assert set(opened.page.evaluate(wraps)) == {"anywhere"}
    heads = opened.page.locator("#variants thead .name")
    assert heads.last.get_attribute("title") == LONG
    assert heads.last.bounding_box()["height"] < 150  # six lines, the rest is in the hover


@pytest.mark.parametrize("kind", ["empty", "rejected"])
def test_runs_without_steps_open_too(browser, synthetic, tmp_path, kind):
    opened = Opened(browser, written(tmp_path, getattr(synthetic, kind)()))
    assert opened.complaints == []
    assert opened.page.locator(".plot").count() == 0
