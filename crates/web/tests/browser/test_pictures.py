"""The page is compared with pictures: `golden/LOOK-PART.png`. `OMR_GOLDEN=write tools/test web`
writes them anew: look at each that has changed.

The page is a report of a history that is always the same, so nothing in it depends on the time. The
pictures have text: where a label stands is a part of a chart. `conftest.py` sees to it that the
browser has one font, and draws it in the same way on every machine.
"""

import base64
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Machine
from playwright.sync_api import Page, expect

GOLDEN = Path(__file__).parent / "golden"
MOST_BYTES = 600_000
END = 1_795_000_000
"""2026-11-18. The week ends then."""
CHARTS = ("unused", "promise", "taken", "timeline", "waited", "place", "cost", "sleep")
PARTS = {"header": "header", "groups": "#groups", "head": "#head", **{name: f"#chart-{name}" for name in CHARTS}}
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
LOOKS = {
    "light": {"color_scheme": "light", "viewport": WIDE},
    "dark": {"color_scheme": "dark", "viewport": WIDE},
    "phone": {"color_scheme": "light", "viewport": PHONE},
}

MOST_DIFFERENT = 0.001
"""The share of pixels that may differ: builds of Chromium may draw a glyph a little differently."""
# A pixel differs if no pixel of the other picture, at its place or beside it, has about its colour.
# Returns the share of pixels that differ; another size is a difference of all of them.
COMPARE = """async pictures => {
  const [one, other] = await Promise.all(pictures.map(async picture => {
    const image = new Image();
    image.src = `data:image/png;base64,${picture}`;
    await image.decode();
    const { width, height } = image, pen = new OffscreenCanvas(width, height).getContext("2d");
    pen.drawImage(image, 0, 0);
    return { width, height, data: pen.getImageData(0, 0, width, height).data };
  }));
  const { width, height } = one, most = 40;
  if (width !== other.width || height !== other.height) return 1;
  const has = (from, into, x, y) => {
    const at = 4 * (y * width + x);
    for (let row = Math.max(y - 1, 0); row <= Math.min(y + 1, height - 1); row += 1) {
      for (let column = Math.max(x - 1, 0); column <= Math.min(x + 1, width - 1); column += 1) {
        const to = 4 * (row * width + column);
        if ([0, 1, 2].every(part => Math.abs(from[at + part] - into[to + part]) <= most)) return true;
      }
    }
    return false;
  };
  let different = 0;
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      if (!has(one.data, other.data, x, y) || !has(other.data, one.data, x, y)) different += 1;
    }
  }
  return different / (width * height);
}"""


@pytest.fixture(scope="session")
def report(tmp_path_factory) -> str:
    """The text of a report, without what depends on this machine."""
    machine = Machine("8", f"end={END}")
    file = tmp_path_factory.mktemp("report") / "report.html"
    machine.omr("web", "--export", file, "--at", "2026-11-18T11:06:40Z", "--window", "7d")
    machine.remove()
    text = file.read_text()
    for name, value in {"made": END, "host": "example", "version": "0"}.items():
        text, count = re.subn(
            rf'(id="omr-data">.*?"{name}":)("[^"]*"|\d+)', rf"\g<1>{json.dumps(value)}", text, count=1
        )
        assert count == 1, name
    return text


@pytest.fixture
def pictures(open_page, tmp_path: Path) -> Callable[[str, str], dict[str, bytes]]:
    """Takes a picture of each part of a report."""

    def pictures(report: str, look: str) -> dict[str, bytes]:
        file = tmp_path / "report.html"
        file.write_text(report)
        page = open_page(file.as_uri(), device_scale_factor=1, reduced_motion="reduce", **LOOKS[look])
        expect(page.locator("#chart-sleep .answer")).not_to_be_empty()
        return {name: page.locator(part).screenshot() for name, part in PARTS.items()}

    return pictures


@pytest.fixture
def different(open_page) -> Callable[[dict[str, bytes], str], dict[str, float]]:
    """Compares pictures of parts with the stored ones; returns those that are not the same."""
    blank: Page = open_page("about:blank")

    def different(taken: dict[str, bytes], look: str) -> dict[str, float]:
        shares = {}
        for name, picture in taken.items():
            stored = GOLDEN / f"{look}-{name}.png"
            both = [base64.b64encode(of).decode() for of in (stored.read_bytes(), picture)]
            shares[name] = blank.evaluate(COMPARE, both)
        return {name: share for name, share in shares.items() if share > MOST_DIFFERENT}

    return different


@pytest.mark.parametrize("look", LOOKS)
def test_each_part_looks_as_before(report: str, pictures, different, look: str, tmp_path: Path) -> None:
    taken = pictures(report, look)
    writes = os.environ.get("OMR_GOLDEN") == "write"
    for name, picture in taken.items():
        ((GOLDEN if writes else tmp_path) / f"{look}-{name}.png").write_bytes(picture)
    assert different(taken, look) == {}, f"the pictures of now are in {tmp_path}"


def test_the_pictures_are_small_and_each_is_of_a_part() -> None:
    stored = {file.name: file.stat().st_size for file in GOLDEN.iterdir()}
    assert set(stored) == {f"{look}-{name}.png" for look in LOOKS for name in PARTS}
    assert sum(stored.values()) <= MOST_BYTES


def changed(report: str, old: str, new: str) -> str:
    assert report.count(old) == 1, f"{old!r} is there {report.count(old)} times"
    return report.replace(old, new)


def without_series(report: str, chart: str, name: str) -> str:
    """Removes a series from the chart of the machine."""
    begin, rest = report.split('id="omr-data">')
    data, end = rest.split("</script>", 1)
    tree = json.loads(data)
    of = tree["charts"][""][chart]
    before = len(of["series"])
    of["series"] = [series for series in of["series"] if series["name"] != name]
    assert len(of["series"]) == before - 1, f"{chart} has no {name}"
    return f'{begin}id="omr-data">{json.dumps(tree).replace("<", chr(92) + "u003c")}</script>{end}'


@pytest.mark.parametrize("look", LOOKS)
def test_a_change_of_a_chart_is_noticed(report: str, pictures, different, look: str) -> None:
    """The control of the comparison, with the charts in which each change must be noticed."""
    disk = "--disk: light-dark(#5c478a, #6f59a3)"
    stack = "top: Math.max(most, limit ?? 0) * 1.04"
    changes = {
        "a colour": (changed(report, disk, "--disk: light-dark(#8a4747, #a35959)"), {"place"}),
        "no series": (without_series(report, "place", "swap on disk"), {"place"}),
        "a longer axis": (changed(report, stack, f"{stack} * 1.05"), {"place", "taken"}),
        "a shifted axis": (changed(report, "const SIDE = 76", "const SIDE = 80"), set(CHARTS)),
    }
    for name, (text, expected) in changes.items():
        found = different(pictures(text, look), look)
        assert expected <= set(found), f"{name}: {found}"
        # A legend with another number of lines changes the height of the charts beside it.
        assert name == "no series" or found.keys() <= expected | {"cost"}, f"{name}: {found}"
