"""The memory map in a real browser: drawn, moved by keyboard and mouse, legible without scripts."""

from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from kvsim.report.page import build_report
from kvsim.tables import MEMORY_LOOKS, MEMORY_MAP
from tests import chromium

pytestmark = pytest.mark.browser

S = 1_000_000_000
SLOTS, LOOKS = 1000, 10
PATIENCE_MS = 60_000
HELD, INSIDE, HOLES = 0, 2, 4
GREEN, ORANGE, PURPLE = "0,158,115", "230,159,0", "204,121,167"


def tables():
    """A request fills its reservation of 800 slots; behind it is a hole of 200."""
    looks, rows = [], []
    for place in range(LOOKS):
        time_ns, held = place * S + S // 2, 80 * place + 40
        looks.append([time_ns, held, 0, 800 - held, 0, 200, 0, 0, 1, 200])
        rows.append([time_ns, 0, held, HELD, 12])
        rows.append([time_ns, held, 800 - held, INSIDE, 12])
        rows.append([time_ns, 800, 200, HOLES, -1])
    return [
        dict(zip([column.name for column in columns], np.array(values).T, strict=True))
        for columns, values in ((MEMORY_LOOKS, looks), (MEMORY_MAP, rows))
    ]


@pytest.fixture(scope="module")
def path(synthetic, tmp_path_factory):
    run = synthetic.run()
    looks, rows = tables()
    variants = [replace(each, memory_looks=looks, memory_map=rows) for each in run.variants]
    path = tmp_path_factory.mktemp("map") / "report.html"
    path.write_text(build_report(replace(run, variants=variants)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium.executable(), args=chromium.ARGUMENTS
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def page(browser, path):
    page = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True).new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-charts=drawn]", timeout=PATIENCE_MS)
    page.locator("#memory-map").scroll_into_view_if_needed()
    page.wait_for_selector("#memory-map-1-pool[data-drawn]", timeout=PATIENCE_MS)
    yield page
    assert complaints == []


def share_of(page: Page, canvas: str, color: str) -> float:
    """Return the share of the pixels of a canvas that have a color, hatching aside."""
    return page.evaluate(
        """([id, color]) => {
            const canvas = document.getElementById(id);
            const context = canvas.getContext("2d");
            const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
            let count = 0;
            for (let i = 0; i < data.length; i += 4) {
                count += `${data[i]},${data[i + 1]},${data[i + 2]}` === color;
            }
            return count / (data.length / 4);
        }""",
        [canvas, color],
    )


def choose(page: Page, key: str) -> None:
    page.locator("#memory-map-instant").focus()
    page.keyboard.press(key)


def test_the_picture_shows_how_a_reservation_is_filled(page):
    for place in (0, 1):
        assert share_of(page, f"memory-map-{place}", GREEN) == pytest.approx(0.4, abs=0.03)
        assert 0.2 < share_of(page, f"memory-map-{place}", ORANGE) < 0.4  # the rest is hatching
        assert 0.08 < share_of(page, f"memory-map-{place}", PURPLE) < 0.2


def test_the_slider_is_moved_by_keys_and_says_where_it_is(page):
    slider, words = page.locator("#memory-map-instant"), page.locator("#memory-map-1-words")
    assert page.get_by_role("slider", name="Instant").count() == 1
    choose(page, "Home")
    expect(slider).to_have_attribute("aria-valuetext", "at 0.5 s")
    expect(words).to_contain_text("4 % of the slots hold tokens")
    few = share_of(page, "memory-map-0-pool", GREEN)
    choose(page, "ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", "at 1.5 s")
    choose(page, "End")
    expect(slider).to_have_attribute("aria-valuetext", "at 9.5 s")
    expect(words).to_contain_text("76 % of the slots hold tokens")
    assert few < 0.05 < 0.5 < share_of(page, "memory-map-0-pool", GREEN)


def test_a_click_into_the_picture_chooses_the_instant(page):
    choose(page, "End")
    box = page.locator("#memory-map-1").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.35, box["y"] + 10)
    expect(page.locator("#memory-map-instant")).to_have_js_property("value", "3")
    expect(page.locator(".memory-map .when").first).to_have_text("3.5 s")


def test_pointing_tells_whose_slots_they_are(page):
    pointed = page.locator(".memory-map .pointed")
    box = page.locator("#memory-map-0").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + box["height"] * 0.9)
    expect(pointed).to_have_text("At 9.5 s, slots 0 to 759: holding tokens, request 12")
    page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + 4)
    expect(pointed).to_have_text("At 9.5 s, slots 800 to 999: in holes too small to use")
    choose(page, "End")
    pool = page.locator("#memory-map-0-pool")
    pool.hover(position={"x": 3, "y": 3})
    expect(pointed).to_have_text("At 9.5 s, slots 0 to 759: holding tokens, request 12")


def test_it_fits_a_phone(browser, path):
    page = browser.new_context(viewport={"width": 390, "height": 800}).new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("#memory-map-1-pool[data-drawn]", timeout=PATIENCE_MS)
    figure = page.locator("#chart-memory-map")
    assert figure.evaluate("(figure) => figure.scrollWidth <= 390 - 2 * 16")
    assert share_of(page, "memory-map-0", GREEN) == pytest.approx(0.4, abs=0.04)


def test_without_scripts_the_numbers_are_there(browser, path):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(path.as_uri())
    expect(page.locator("#memory-map-0")).to_be_hidden()
    page.locator("#memory-map summary").click()
    expect(page.locator("#memory-map table")).to_be_visible()
