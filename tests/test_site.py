"""The site in a real browser: nothing is cut off at 1280 or 390 pixels, in light or in dark."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).parent.parent
CUT_OFF = """
const edge = document.documentElement.clientWidth, found = [];
if (document.documentElement.scrollWidth > edge) found.push("the page scrolls sideways");
for (const element of document.querySelectorAll(".md-content *")) {
  const box = element.getBoundingClientRect();
  if (!box.width || box.right <= edge + 1) continue;
  let parent = element.parentElement, scrolls = false;
  while (parent && !scrolls) {
    scrolls = ["auto", "scroll"].includes(getComputedStyle(parent).overflowX);
    parent = parent.parentElement;
  }
  if (!scrolls) found.push(element.tagName + " " + element.textContent.trim().slice(0, 40));
}
for (const image of document.images)
  if (image.complete && !image.naturalWidth) found.push("no image " + image.src);
return found.slice(0, 5);
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser():
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()


def test_site_builds_without_warnings(site):
    assert (site / "index.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_nothing_is_cut_off(site, browser, width, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    pages = sorted(site.rglob("index.html"))
    assert len(pages) > 25
    found = {}
    for page in pages:
        browser.get(page.as_uri())
        browser.execute_script("localStorage.clear()")
        if problems := browser.execute_script(CUT_OFF):
            found[str(page.relative_to(site))] = problems
    assert found == {}
    browser.get((site / "index.html").as_uri())
    colours = browser.execute_script("return document.body.dataset.mdColorScheme")
    assert colours == {"light": "default", "dark": "slate"}[scheme]
