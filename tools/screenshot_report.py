"""Take the README's picture of the committed example report, in headless Chromium."""

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "reports" / "example" / "report.html"
PICTURE = ROOT / "docs" / "images" / "report.png"
WIDTH_PX, HEIGHT_PX = 1280, 1100


def main() -> None:
    """Write the picture: the top of the page, light theme."""
    executable = next(
        path for name in ("chromium", "google-chrome") if (path := shutil.which(name))
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": WIDTH_PX, "height": HEIGHT_PX}, color_scheme="light"
        )
        page.goto(REPORT.as_uri())
        page.wait_for_selector("html[data-charts=drawn]")
        page.screenshot(path=PICTURE)
        browser.close()
    print(f"{PICTURE.name}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
