"""The page of `omr web` in a real browser, against the real server and daemon."""

import hashlib
import json
import math
import re
import time
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from conftest import PROFILE, ROOT, Machine, wait_until
from playwright.sync_api import Page, expect

PAGE = ROOT / "crates/web/page"
CHARTS = ("unused", "promise", "taken", "timeline", "waited", "place", "cost", "sleep")

# Returns the number of colours in a plot's canvas, inside of the axes.
COLOURS = """canvas => {
  const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const pixels = pen.getImageData(80, 8, canvas.width - 90, canvas.height - 40).data;
  const seen = new Set();
  for (let at = 0; at < pixels.length; at += 4) seen.add(pixels.slice(at, at + 4).join());
  return seen.size;
}"""


def wait_for_charts(page: Page) -> None:
    """Waits until all eight charts have something of the present group."""
    expect(page.locator("figure")).to_have_count(8)
    expect(page.locator("#chart-sleep .answer")).not_to_be_empty()


def width_of(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth")


def row(page: Page, name: str):
    return page.locator("#tree .row").filter(has_text=name)


def test_the_page_is_small_and_uplot_is_as_published() -> None:
    files = {file.name: file.read_bytes() for file in PAGE.iterdir()}
    assert sum(map(len, files.values())) <= 150_000
    published = {
        "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    }
    for name, digest in published.items():
        assert hashlib.sha256(files[name]).hexdigest() == digest, f"{name} is not that of uPlot 1.6.32"


def test_eight_charts_are_drawn(machine: Machine, open_page) -> None:
    page = open_page(f"{machine.url}#window=604800")
    wait_for_charts(page)
    for name in CHARTS:
        figure = page.locator(f"#chart-{name}")
        expect(figure.locator("h3")).to_contain_text("?")
        for canvas in figure.locator("canvas").all():
            assert canvas.evaluate(COLOURS) > 1, f"{name} has a blank plot"
    control = page.locator("#chart-unused canvas")
    control.evaluate("canvas => canvas.getContext('2d').clearRect(0, 0, canvas.width, canvas.height)")
    assert control.evaluate(COLOURS) == 1, "the control: an empty canvas has one colour"


def test_errors_in_the_console_are_noticed(machine: Machine, open_page) -> None:
    # The control of what open_page demands of each page.
    page = open_page(machine.url)
    wait_for_charts(page)
    assert not page.errors
    page.evaluate("console.error('planted')")
    page.evaluate("new Image().src = 'https://example.org/'")
    wait_until("both errors", lambda: len(page.errors) >= 2)
    assert "planted" in page.errors[0] and "Content Security Policy" in page.errors[1]
    page.errors.clear()


def test_the_status_changes_by_itself(machine: Machine, open_page) -> None:
    page = open_page(machine.url)
    expect(page.locator("#link")).to_have_text("live")
    before = page.locator("#doing").text_content()
    wait_until("another status", lambda: page.locator("#doing").text_content() != before)
    # The control: without events nothing is live.
    silent = open_page("about:blank")
    silent.route("**/api/events", lambda route: route.fulfill(status=204))
    silent.goto(machine.url)
    wait_for_charts(silent)
    expect(silent.locator("#link")).to_have_text("no server")
    assert silent.locator("#doing").text_content() == ""


def test_memory_in_the_tree_changes_by_itself(own_machine: Machine, open_page) -> None:
    page = open_page(own_machine.url)
    group = row(page, "app-4.scope")
    expect(group).to_contain_text("156 MiB")
    file = own_machine.dir / "sys/fs/cgroup/user.slice/app-4.scope/memory.current"
    file.write_text(f"{300 << 20}\n")
    expect(group).to_contain_text("300 MiB")


def test_a_daemon_that_ends_is_reported_until_it_is_back(own_machine: Machine, open_page) -> None:
    page = open_page(own_machine.url)
    expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#alarms")).to_be_empty()
    own_machine.stop("daemon")
    expect(page.locator("#link")).to_have_text("no daemon")
    expect(page.locator("#alarms")).to_contain_text("the history is shown all the same")
    expect(page.locator("#doing")).to_contain_text(re.compile(r"^\d+ s ago: "))
    expect(page.locator("body")).to_have_class("old")
    assert page.locator("#chart-unused canvas").evaluate(COLOURS) > 1, "the history is still there"
    own_machine.start_daemon()
    expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#alarms")).to_be_empty()
    expect(page.locator("body")).not_to_have_class("old")


def test_a_server_that_ends_is_reported_until_it_is_back(own_machine: Machine, open_page) -> None:
    page = open_page(own_machine.url)
    expect(page.locator("#link")).to_have_text("live")
    wait_for_charts(page)
    own_machine.stop("server")
    expect(page.locator("#link")).to_have_text("no server")
    expect(page.locator("#alarms")).to_contain_text("The server of this page does not answer.")
    expect(page.locator("#alarms")).to_contain_text("The data is of ")
    assert page.locator("#chart-unused canvas").evaluate(COLOURS) > 1, "the old data is still there"
    own_machine.start_server()
    expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#alarms")).to_be_empty()
    # The browser itself reports connections that fail.
    assert all("net::ERR" in error for error in page.errors), page.errors
    page.errors.clear()


def test_a_refusal_of_the_server_is_shown(own_machine: Machine, open_page) -> None:
    page = open_page(own_machine.url)
    expect(page.locator("#link")).to_have_text("live")
    own_machine.stop("server")
    own_machine.token.write_text("another token that the page does not have\n".replace(" ", "-"))
    own_machine.start_server()
    expect(page.locator("#alarms")).to_contain_text("token")
    assert all("net::ERR" in error or "401" in error for error in page.errors), page.errors
    page.errors.clear()


def test_time_travel_is_in_the_address(machine: Machine, open_page) -> None:
    page = open_page(f"{machine.url}#group=user.slice&window=7200")
    wait_for_charts(page)
    expect(page.locator("#forth")).to_be_disabled()
    with page.expect_response(re.compile("api/charts.*at=")) as response:
        page.locator("#back").click()
    shown = response.value.json()["charts"]["window"]
    at = int(parse_qs(urlsplit(page.url).fragment)["at"][0])
    assert shown["to"] - 1 == at and 3500 <= time.time() - at <= 3700, "half of the window"
    expect(page.locator("#doing")).to_contain_text("the past")
    expect(page.locator("#about")).not_to_contain_text("sweep")
    # The same address shows the same.
    with_link = open_page("about:blank")
    with with_link.expect_response(re.compile("api/charts")) as response:
        with_link.goto(page.url)
    assert response.value.json()["charts"]["window"] == shown
    expect(with_link.locator("#group")).to_have_text("/user.slice")
    # By the date, and back by the browser's history and by the button.
    date = at // 60 * 60 - 86400
    page.locator("#at").fill(datetime.fromtimestamp(date, UTC).strftime("%Y-%m-%dT%H:%M"))
    page.locator("#at").blur()
    expect(page).to_have_url(re.compile(f"at={date}$"))
    page.go_back()
    expect(page).to_have_url(re.compile(f"at={at}$"))
    page.locator("#now").click()
    expect(page).not_to_have_url(re.compile("at="))
    expect(page.locator("#doing")).not_to_contain_text("the past")


def test_each_length_is_asked_for(machine: Machine, open_page) -> None:
    page = open_page(machine.url)
    wait_for_charts(page)
    for name, seconds in (("30 min", 1800), ("24 h", 86400), ("7 d", 604800)):
        with page.expect_response(re.compile(f"api/charts.*span={seconds}(&|$)")) as response:
            page.get_by_role("radio", name=name, exact=True).check(force=True)
        window = response.value.json()["charts"]["window"]
        assert window["to"] - window["from"] == seconds


def names(page: Page) -> list[str]:
    return [name.lstrip("▾▸") for name in page.locator("#tree .name").all_text_contents()]


def test_the_tree_is_filtered_folded_and_sorted(machine: Machine, open_page) -> None:
    page = open_page(machine.url)
    expect(row(page, "app-8.scope")).to_be_visible()
    everything = len(names(page))
    page.locator("#filter").fill("app-8")
    assert names(page) == ["/", "user.slice", "app-8.scope"]
    page.locator("#filter").fill("no such group")
    expect(page.locator("#count")).to_have_text("no group has this in its path")
    page.locator("#filter").press("Escape")
    assert len(names(page)) == everything
    row(page, "user.slice").first.locator(".fold").click()
    assert not any(name.startswith("app-") for name in names(page)) and "user.slice" in names(page)
    row(page, "user.slice").first.locator(".fold").click()
    assert len(names(page)) == everything
    page.locator("#sort").select_option("name")
    apps = [name for name in names(page) if name.startswith("app-")]
    assert apps == sorted(apps)
    page.locator("#sort").select_option("memory")
    assert [name for name in names(page) if name.startswith("app-")] != apps, "the control: another order"


def test_the_tree_is_moved_through_by_keys(machine: Machine, open_page) -> None:
    page = open_page(machine.url)
    expect(row(page, "app-8.scope")).to_be_visible()
    page.locator("#filter").fill("user.slice")
    page.locator("#filter").press("ArrowDown")
    focused = page.locator("#tree .row:focus")
    expect(focused).to_have_attribute("title", "/")
    page.keyboard.press("ArrowDown")
    expect(focused).to_have_attribute("title", "/user.slice")
    page.keyboard.press("Enter")
    expect(page.locator("#group")).to_have_text("/user.slice")
    expect(focused).to_have_attribute("aria-selected", "true")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    expect(focused).to_have_attribute("title", "/user.slice")


def column_with(charts: dict, wanted) -> int:
    return next(at for at, cell in enumerate(charts["timeline"]["lanes"][1]) if wanted(cell))


def test_the_timeline_explains_moments(machine: Machine, open_page) -> None:
    page = open_page("about:blank")
    with page.expect_response(re.compile("api/charts")) as response:
        page.goto(f"{machine.url}#window=604800&at={int(time.time()) - 90_000}")
    charts = response.value.json()["charts"]
    window = charts["window"]
    plot, why = page.locator("#chart-timeline .plot"), page.locator("#chart-timeline .why")
    acted = column_with(charts, lambda cell: cell and cell["events"])
    plot.focus()
    page.keyboard.press("Home")
    for _ in range(acted):
        page.keyboard.press("ArrowRight")
    with page.expect_request(re.compile("api/explain")) as request:
        page.keyboard.press("Enter")
    query = parse_qs(urlsplit(request.value.url).query)
    each = (window["to"] - window["from"]) / window["columns"]
    assert int(query["from"][0]) <= window["from"] + acted * each < int(query["to"][0])
    expect(why).to_contain_text("freed")
    expect(why).to_contain_text("began: idle for 61 s")
    # The control: a time in which nothing is recorded has no event.
    unknown = column_with(charts, lambda cell: cell is None) + 3
    box = page.locator("#chart-timeline .u-over").bounding_box()
    x = box["x"] + box["width"] * (unknown + 0.5) / window["columns"]
    page.mouse.click(x, box["y"] + box["height"] / 2)
    expect(why).to_contain_text("no event is recorded")
    why.get_by_role("button", name="Close").click()
    expect(why).to_be_hidden()
    expect(plot).to_be_focused()


def test_now_is_explained_by_the_daemon(machine: Machine, open_page) -> None:
    page = open_page(machine.url)
    wait_for_charts(page)
    page.get_by_role("button", name="Explain now").click()
    expect(page.locator(".why")).to_contain_text("guards: ")
    guards = next(line for line in machine.omr("explain").splitlines() if line.startswith("guards: "))
    expect(page.locator(".why")).to_contain_text(guards[:40])


def test_arrow_keys_move_a_cursor_that_a_live_region_reads(machine: Machine, open_page) -> None:
    page = open_page("about:blank")
    with page.expect_response(re.compile("api/charts")) as response:
        page.goto(f"{machine.url}#window=86400")
    charts = response.value.json()["charts"]
    wait_for_charts(page)
    live, last = page.locator("#live"), charts["window"]["columns"] - 1
    expect(live).to_have_attribute("aria-live", "polite")
    expect(live).to_be_empty()
    page.locator("#chart-place .plot").focus()
    page.keyboard.press("Home")
    free = next(series for series in charts["place"]["series"] if series["name"] == "free")["values"]
    expect(live).to_contain_text(f"free {size(free[0]['least'])}")
    expect(live).to_contain_text(re.compile(r"^\d\d-\d\d \d\d:\d\d UTC: "))
    first = live.text_content()
    page.keyboard.press("Shift+ArrowRight")
    expect(live).not_to_have_text(first)
    position = "document.querySelector('#chart-place .line').getBoundingClientRect().x"
    before = page.evaluate(position)
    page.keyboard.press("ArrowRight")
    assert page.evaluate(position) > before
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(position) <= page.locator("#chart-place .u-over").bounding_box()["x"] + 2000
    expect(page.locator("#chart-unused .line")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#chart-unused .line")).to_be_hidden()
    assert last > 50


def size(value: int) -> str:
    """Bytes as the command line writes them, written here once more."""
    units, rounded = ["B", "KiB", "MiB", "GiB", "TiB"], Decimal(value)
    while rounded >= Decimal("999.5"):
        units.pop(0)
        rounded = (Decimal(value) / 1024 ** (5 - len(units))).quantize(Decimal("0.01"), ROUND_HALF_UP)
    if units[0] == "B":
        return f"{value} B"
    digits = "1" if rounded >= Decimal("99.95") else "0.1" if rounded >= 10 else "0.01"
    return f"{rounded.quantize(Decimal(digits), ROUND_HALF_UP)} {units[0]}"


def cells(chart: dict) -> list[list[str]]:
    """The rows that a table of bytes should have, for a window of more than a day."""
    rows, window = [], chart["window"]
    for column in range(chart["window"]["columns"]):
        values = [series["values"][column] for series in chart["series"]]
        if any(values):
            texts = [[size(value["least"]), size(value["most"])] if value else ["?", "?"] for value in values]
            begin = window["from"] + math.ceil((window["to"] - window["from"]) * column / window["columns"])
            time_of = datetime.fromtimestamp(begin, UTC).strftime("%m-%d %H:%M")
            rows.append([time_of, *(least if least == most else f"{least} to {most}" for least, most in texts)])
    return rows


def table(page: Page, name: str) -> list[list[str]]:
    details = page.locator(f"#chart-{name} details")
    if details.get_attribute("open") is None:
        details.locator("summary").click()
    details.locator("table").first.wait_for()
    rows = (
        "table => [...table.tBodies[0].rows].map(row => [...row.querySelectorAll('th, td')].map(of => of.textContent))"
    )
    return details.locator("table").first.evaluate(rows)


def test_tables_have_the_numbers_of_the_server(machine: Machine, open_page) -> None:
    page = open_page("about:blank")
    with page.expect_response(re.compile("api/charts")) as response:
        page.goto(f"{machine.url}#group=system.slice/service-3.service&window=604800&at={int(time.time()) - 3600}")
    charts = response.value.json()["charts"]
    wait_for_charts(page)
    for name in ("unused", "taken", "place"):
        shown, wanted = table(page, name), cells(charts[name])
        width = 1 + len(charts[name]["series"])
        assert [line[:width] for line in shown] == wanted and len(wanted) > 100, name
        assert f"chart-{name}-numbers" == page.locator(f"#chart-{name} .plot").get_attribute("aria-details")
    # The control: another number is another table.
    charts["place"]["series"][0]["values"][-1] = {"least": 1, "most": 1}
    assert table(page, "place") != cells(charts["place"])


# The colours of a column of the heatmap, as text; `part` is a share of the width.
COLUMN = """(canvas, part) => {
  const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const over = canvas.parentElement.querySelector(".u-over").getBoundingClientRect();
  const box = canvas.getBoundingClientRect(), seen = new Set(), size = devicePixelRatio;
  const x = Math.round((over.x - box.x + over.width * part) * size), y = (over.y - box.y) * size;
  const pixels = pen.getImageData(x, y, 8, over.height * size).data;
  for (let at = 0; at < pixels.length; at += 4) seen.add(pixels.slice(at, at + 3).join());
  return [...seen];
}"""


HATCH = """(() => {
  document.getElementById("empty").style.color = "var(--hatch)";
  return getComputedStyle(document.getElementById("empty")).color.match(/\\d+/g).join();
})()"""


def test_unknown_is_hatched_and_is_not_zero(machine: Machine, open_page) -> None:
    page = open_page("about:blank")
    with page.expect_response(re.compile("api/charts")) as response:
        page.goto(f"{machine.url}#window=604800&at={int(time.time()) - 3600}")
    charts = response.value.json()["charts"]
    wait_for_charts(page)
    values = charts["unused"]["series"][0]["values"]
    gap = [at for at, value in enumerate(values) if value is None]
    assert len(gap) >= 5, "nobody took samples in a part of the third day"
    middle = (gap[len(gap) // 2] + 0.5) / len(values)
    known = (next(at for at, value in enumerate(values) if value) + 20.5) / len(values)
    hatch, zero = page.evaluate(HATCH), "0,34,78"
    for name in ("unused", "place", "taken", "timeline"):
        canvas = page.locator(f"#chart-{name} canvas").first
        unknown, other = canvas.evaluate(COLUMN, middle), canvas.evaluate(COLUMN, known)
        assert hatch in unknown and zero not in unknown, name
        assert hatch not in other, f"the control: {name} is known there"
    assert len(table(page, "unused")) == len(values) - len(gap)
    page.locator("#chart-unused .plot").focus()
    page.keyboard.press("Home")
    for _ in range(gap[3]):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#live")).to_contain_text("UTC: unknown")


def test_names_of_groups_stay_text(machine: Machine, open_page) -> None:
    page = open_page("about:blank")
    page.add_init_script("window.alerts = 0; window.alert = () => { window.alerts += 1; };")
    page.goto(machine.url)
    wait_for_charts(page)
    markup = row(page, "<img src=x onerror=alert(1)>")
    expect(markup).to_be_visible()
    expect(row(page, "\\u{7}\\u{1b}[31mred\\u{9}tab")).to_be_visible()
    expect(row(page, "turnedeciov")).to_be_visible()
    for node in (markup, row(page, "<b>bold"), row(page, "nnnnnnnn").last):
        node.scroll_into_view_if_needed()
        node.click()
        expect(node).to_have_attribute("aria-selected", "true")
        wait_for_charts(page)
        expect(page.locator("#head h2")).to_contain_text(re.compile("^/[<n]"))
        assert width_of(page) <= 1280
    assert "/" + "/".join(["n" * 249] * 16) == "/" + parse_qs(urlsplit(page.url).fragment)["group"][0], "all 4,000"
    assert len(page.locator("#head h2").text_content()) <= 513
    assert page.locator("#body img, #body b b, #body script").count() == 0 and page.evaluate("alerts") == 0
    # The control: as markup the name would do harm.
    page.evaluate("document.getElementById('empty').innerHTML = '<img src=\"data:,\" onerror=alert(1)>'")
    # The answer with the charts may take the element away by now.
    wait_until("the refusal of its script", lambda: page.errors)
    assert "inline event handler" in page.errors[0], page.errors
    page.errors.clear()


@pytest.mark.parametrize("hash", ["", "#group=" + quote("/".join(["n" * 249] * 16)), "#window=604800"])
def test_a_phone_needs_no_scrolling_to_the_side(machine: Machine, open_page, hash: str) -> None:
    page = open_page(f"{machine.url}{hash}", viewport={"width": 360, "height": 740})
    wait_for_charts(page)
    for name in CHARTS:
        page.locator(f"#chart-{name} summary").click()
    assert width_of(page) == 360
    page.locator("#group").evaluate("node => { node.style.width = '400px'; }")
    assert width_of(page) > 360, "the control"


SERIOUS = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.filter(one => ["serious", "critical"].includes(one.impact))
    .map(one => `${one.id}: ${one.nodes.map(node => node.html).slice(0, 3).join(" ")}`);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(machine: Machine, open_page, scheme: str) -> None:
    page = open_page(f"{machine.url}#window=86400", color_scheme=scheme, bypass_csp=True)
    wait_for_charts(page)
    for name in ("unused", "timeline", "cost"):
        page.locator(f"#chart-{name} summary").click()
    page.get_by_role("button", name="Explain now").click()
    expect(page.locator(".why")).to_contain_text("guards: ")
    page.evaluate(Path(AXE_FILE_PATH).read_text())
    assert page.evaluate(SERIOUS) == []
    page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    assert any("button-name" in line for line in page.evaluate(SERIOUS)), "the control"


def test_colours_follow_the_system_and_the_switch(machine: Machine, open_page) -> None:
    page = open_page(machine.url, color_scheme="dark")
    wait_for_charts(page)
    back = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    plot = page.locator("#chart-place canvas")
    colours = plot.evaluate("canvas => canvas.toDataURL()")
    page.locator("#theme").select_option("light")
    light = page.evaluate(back)
    assert light != dark
    wait_until("the plot has other colours", lambda: plot.evaluate("canvas => canvas.toDataURL()") != colours)
    page.reload()
    assert page.evaluate(back) == light, "the choice is kept"
    page.locator("#theme").select_option("")
    assert page.evaluate(back) == dark


def test_nothing_moves_where_the_system_says_so(machine: Machine, open_page) -> None:
    for setting, moving in (("reduce", "none"), ("no-preference", "pulse")):
        page = open_page(machine.url, reduced_motion=setting)
        expect(page.locator("#dot")).to_have_class("live")
        assert page.locator("#dot").evaluate("dot => getComputedStyle(dot).animationName") == moving


def test_an_empty_history_says_what_will_be_there(new_machine, open_page) -> None:
    page = open_page(new_machine(daemon=False).url)
    expect(page.locator("#empty")).to_contain_text("first sample")
    expect(page.locator("#link")).to_have_text("no daemon")
    expect(page.locator("#chart-unused .none")).to_have_text("nothing is known of this time")
    expect(page.locator("#figures")).to_contain_text("?")
    assert "0 B" not in page.locator("#figures").text_content()
    # The control: with a history there is no such text.
    page = open_page(new_machine("6", daemon=False).url)
    wait_for_charts(page)
    expect(page.locator("#empty")).to_be_empty()


def test_a_snapshot_needs_no_server(machine: Machine, open_page, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    machine.omr("web", "--export", file, "--window", "3d")
    page = open_page(file.as_uri())
    wait_for_charts(page)
    expect(page.locator("#link")).to_have_text("snapshot")
    expect(page.locator("#doing")).to_contain_text(re.compile(r"made at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC by omr"))
    expect(page.locator("#travel")).to_be_hidden()
    for name in CHARTS:
        assert page.locator(f"#chart-{name} canvas").first.evaluate(COLOURS) > 1, name
    page.locator("#filter").fill("app-")
    page.locator("#tree .row:not(.absent)").last.click()
    expect(page.locator("#group")).to_contain_text("/user.slice/app-")
    data = json.loads(page.locator("#omr-data").text_content())
    group = page.locator("#group").text_content().removeprefix("/")
    assert table(page, "place") == cells(data["charts"][group]["place"])
    # A group without charts in it cannot be chosen.
    absent = page.locator("#tree .row.absent").first
    absent.click(force=True)
    assert page.locator("#group").text_content() == f"/{group}"


def test_a_week_of_200_groups(new_machine, open_page, capsys) -> None:
    page = open_page(f"{new_machine('200').url}#window=604800")
    expect(page.locator("#tree .row").nth(199)).to_be_attached()
    expect(page.locator("#chart-sleep canvas")).to_be_visible()
    # The time from the first request to charts that take keys.
    took = page.evaluate("performance.getEntriesByName('omr-charts')[0].startTime")
    page.locator("#chart-unused .plot").focus()
    page.keyboard.press("End")
    expect(page.locator("#live")).to_contain_text("UTC: ")
    with capsys.disabled():
        print(f" [interactive after {took:.0f} ms; programs: {PROFILE}]", end=" ")
