"""The report page in a real browser."""

from __future__ import annotations

import json
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not CHROMIUM or not DRIVER, reason="no chromium with chromedriver on this machine"
)


@pytest.fixture(scope="module")
def browser(small_study):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(params=[(1280, "light"), (390, "dark")], ids=["desk", "phone"])
def page(browser, small_study, request):
    width, theme = request.param
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    browser.get((small_study[1] / "index.html").as_uri())
    browser.width, browser.theme = width, theme
    return browser


def curves(page, plot="roc-plot"):
    found = page.find_elements(By.CSS_SELECTOR, f"#{plot} .curve")
    return [(c.get_attribute("d"), c.get_attribute("stroke")) for c in found]


def chip(page, group, text):
    return page.find_element(By.CSS_SELECTOR, f"#{group} input[value='{text}']")


def click(page, element):
    page.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element
    )
    element.click()


def test_no_error_and_no_request_leaves_the_page(page):
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []
    for entry in page.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            assert message["params"]["request"]["url"].split(":")[0] in ("file", "data")


def test_the_page_fits_the_screen(page):
    wide = page.execute_script("return document.documentElement.scrollWidth")
    assert wide <= page.width
    small = page.execute_script(
        "return [...document.querySelectorAll('button, .chip, select, nav a')]"
        ".filter(e => e.getBoundingClientRect().height < 20).length"
    )
    assert small == 0  # nothing too small for a finger


def test_the_verdicts_of_both_columns_and_a_chart_are_seen_first(page):
    top = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
    columns, plot = (page.execute_script(top, name) for name in (".columns", "#roc-plot"))
    assert columns < plot < 0.75 * 900
    counts = page.find_elements(By.CSS_SELECTOR, ".columns div")
    assert [entry.text.splitlines()[0] for entry in counts] == [
        "The paper's method",
        "The recommended method",
    ]
    assert all("does not hold:" in entry.text for entry in counts)


def test_methods_and_lengths_change_the_plots(page):
    before, sizes = curves(page), curves(page, "size-plot")
    assert len(before) == 7  # SIFT, RootSIFT, DIF, kDIF (two settings), kernel LDA, refined
    click(page, chip(page, "methods", "random hyperplanes"))
    assert len(curves(page)) == 8
    assert len(curves(page, "size-plot")) == len(sizes) + 1
    click(page, chip(page, "bits", "64"))
    assert len(curves(page)) == 14
    click(page, chip(page, "methods", "SIFT"))
    assert len(curves(page)) == 13
    size = curves(page, "size-plot")
    click(page, chip(page, "rates", "FPR95"))
    assert curves(page, "size-plot") != size


def test_values_are_read_with_the_keyboard(page):
    plot = page.find_element(By.ID, "roc-plot")
    page.execute_script("arguments[0].focus()", plot)
    plot.send_keys(Keys.ARROW_RIGHT)
    values = page.find_element(By.ID, "roc-values").text
    assert "false positives" in values
    assert "kDIF, 128 bits" in values
    plot.send_keys(Keys.END)
    assert "at 1.0e+2 % false positives" in page.find_element(By.ID, "roc-values").text
    assert page.find_element(By.ID, "roc-values").text.count("100.0 %") == len(curves(page))


def test_gallery_begins_with_a_query_on_which_methods_differ(page):
    found = page.execute_script(
        "return data.gallery.queries.map(q => Object.values(q.matches).map("
        "found => found.filter(one => one.correct).length))"
    )
    spreads = [max(counts) - min(counts) for counts in found]
    buttons = page.find_elements(By.CSS_SELECTOR, "#queries button")
    pressed = [button.get_attribute("aria-pressed") for button in buttons].index("true")
    assert spreads[pressed] == max(spreads)


def test_every_plot_has_a_legend_of_its_methods(page):
    for plot in ("roc", "size"):
        named = page.find_elements(By.CSS_SELECTOR, f"#{plot}-legend li")
        strokes = {curve[1] for curve in curves(page, f"{plot}-plot")}
        lines = page.find_elements(By.CSS_SELECTOR, f"#{plot}-legend line")
        assert {line.get_attribute("stroke") for line in lines} == strokes
        assert all(entry.text.strip() for entry in named)


def test_choosing_a_query_shows_its_matches(page):
    def found():
        return page.find_element(By.ID, "found").get_attribute("innerHTML")

    buttons = page.find_elements(By.CSS_SELECTOR, "#queries button")
    assert len(buttons) == 5
    before = found()
    pressed = [button.get_attribute("aria-pressed") for button in buttons].index("true")
    other = buttons[(pressed + 1) % 5]
    page.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", other
    )
    other.send_keys(Keys.ENTER)  # by keyboard
    assert found() != before
    states = [button.get_attribute("aria-pressed") for button in buttons]
    assert states.index("true") == (pressed + 1) % 5
    assert len(page.find_elements(By.CSS_SELECTOR, "#found .match")) == 5 * 5


def test_images_have_alternative_texts_and_themes_apply(page):
    missing = page.execute_script(
        "return [...document.images].filter(i => !i.hasAttribute('alt')).length"
    )
    assert missing == 0
    back = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (page.theme == "light")
    links = page.find_elements(By.CSS_SELECTOR, "a[download]")
    assert {link.get_attribute("download") for link in links} >= {"alpha.svg", "results.csv"}
