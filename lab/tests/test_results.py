"""Frames, figures and goals. These tests need no VM."""

import pytest

from omrlab.agent import decode, encode
from omrlab.guest import hibernation_figures
from omrlab.host import calm_seconds, stolen
from omrlab.paths import CAPTURED
from omrlab.report import reached
from omrlab.results import Metric, quantile
from omrlab.seed_vmstat import SEED_VMSTAT, change, counter


def test_a_frame_decodes_to_its_message() -> None:
    assert decode(encode({"id": 1, "op": "ping"}).strip()) == {"id": 1, "op": "ping"}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"@",
        b"@00000000 {}",
        b'@zzzzzzzz {"id":1}',
        b"[    3.14] virtio_blk virtio0: [vda] 2097152 512-byte logical blocks",
        encode({"id": 1}).strip()[1:],
        encode({"id": 1}).strip()[:-1],
        b"[    3.14] PM: S" + encode({"id": 1}).strip(),
    ],
)
def test_a_line_without_an_intact_frame_decodes_to_none(line: bytes) -> None:
    assert decode(line) is None


def test_figures_are_those_of_the_last_hibernation() -> None:
    console = """\
[   48.4] PM: hibernation: Image created (63825 pages copied, 3734 zero pages)
[   51.2] PM: Image size after compression: 213043 kbytes
[   51.2] PM: hibernation: Wrote 255828 kbytes in 11.01 seconds (23.23 MB/s)
[    5.3] PM: hibernation: Read 255828 kbytes in 23.38 seconds (10.94 MB/s)
[   90.4] PM: hibernation: Image created (16417 pages copied, 10 zero pages)
"""
    figures = hibernation_figures(console)
    assert figures["image_pages"] == 16417
    assert figures["compressed_kib"] == 213043
    assert figures["read_s"] == 23.38
    assert "allocate_s" not in figures


def test_a_metric_is_the_median_with_its_spread() -> None:
    assert Metric([3.0, 1.0, 2.0], "ratio", ">= 2").json() == {
        "value": 2.0, "min": 1.0, "max": 3.0, "values": [3.0, 1.0, 2.0], "unit": "ratio", "goal": ">= 2"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "goal", "met"), [(2, ">= 2", True), (1, ">= 2", False), (100.1, "<= 100", False), (0, "= 0", True)]
)
def test_a_goal_is_met_at_its_bound_and_missed_beyond(value: float, goal: str, met: bool) -> None:
    assert reached({"value": value, "goal": goal}) is met


def test_stolen_cpu_time_is_a_share_of_all_time() -> None:
    before = [100, 0, 50, 800, 50, 0, 0, 10]
    assert stolen(before, [150, 0, 60, 1100, 50, 0, 0, 50]) == 10
    assert stolen(before, before) == 0


def test_quantiles_are_samples() -> None:
    values = [float(value) for value in range(1000, 0, -1)]
    assert (quantile(values, 0.5), quantile(values, 0.999), quantile(values, 1)) == (500, 999, 1000)
    assert quantile([7.0], 0.999) == 7


def test_a_second_without_stolen_cpu_time_is_calm() -> None:
    # Two CPUs: 50 ticks in a quarter of a second. From 2 s to 3 s the hypervisor takes 10 of them.
    looks = []
    ticks = [0] * 8
    for number in range(21):
        looks.append((number / 4, list(ticks)))
        taken = 10 if 8 <= number < 12 else 0
        ticks[0], ticks[7] = ticks[0] + 50 - taken, ticks[7] + taken
    assert calm_seconds(looks) == [0, 1, 3, 4]
    assert calm_seconds(looks[:3]) == []


@pytest.mark.parametrize("captured", ["6.1", "6.12", "7"])
def test_all_counters_of_the_seeds_table_but_one_are_found(captured: str) -> None:
    text = (CAPTURED / captured / "proc" / "vmstat").read_text()
    vmstat = {name: int(value) for name, value in (line.split() for line in text.splitlines())}
    assert len(SEED_VMSTAT) == 55
    # Android's kernel had it.
    assert [name for name in SEED_VMSTAT if counter(name, vmstat) is None] == ["pgpgoutclean"]
    assert counter("pgscan_total", vmstat) == vmstat["pgscan_direct"] + vmstat["pgscan_kswapd"]
    assert counter("workingset_refault", vmstat) == vmstat["workingset_refault_file"]
    assert counter("pgscan_total", {"pgscan_anon": 7}) is None
    assert change(0, 7) is None
    assert change(*SEED_VMSTAT["pswpin"]) == pytest.approx(233, abs=1)
