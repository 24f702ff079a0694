"""Hibernation and latency, small: what omr does, in a few minutes on any machine."""

import argparse
from typing import Any

from ..paths import OUT
from . import hibernate, latency

HIBERNATE = "--mem 512 --mb-s 12 --pairs 1 --idle 2"

LATENCY = "--mem 512 --mb-s 12 --window 15 --pairs 1 --arms nothing,seed,background --stops 2 --bursts 5"


DIRECTORY = OUT / "demo"
"""Apart from the benchmarks, whose results take longer to make."""


class DemoFailed(Exception):
    """omr did harm, or no good."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fresh", action="store_true", help="do not use the runs made before")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    hibernation = run_small(hibernate, HIBERNATE, arguments.fresh)
    felt = run_small(latency, LATENCY, arguments.fresh)
    print(table(hibernation, felt))
    for name in (hibernate.NAME, latency.NAME):
        print(f"report: {DIRECTORY / name / 'report.html'}")
    metrics = hibernation["metrics"]
    if metrics["content_errors"]["value"]:
        raise DemoFailed("memory was not the same after resume")
    if min(metrics["hibernate_speedup"]["value"], metrics["resume_speedup"]["value"]) <= 1:
        raise DemoFailed("hibernation was not faster with omr")
    return {}


def run_small(scenario: Any, words: str, fresh: bool) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    scenario.options(parser)
    return scenario.run(
        parser.parse_args([*words.split(), "--out", str(DIRECTORY / scenario.NAME), *(["--fresh"] if fresh else [])])
    )


def table(hibernation: dict[str, Any], felt: dict[str, Any]) -> str:
    figures = hibernation["metrics"] | felt["metrics"]

    def value(name: str) -> float:
        return figures[name]["value"]

    before_hibernate, after_hibernate = hibernate.SEED["hibernate"]
    before_resume, after_resume = hibernate.SEED["resume"]
    rows = [
        ("", "without omr", "with omr", "ratio", "the seed's"),
        *(
            (
                what,
                f"{value(f'{name}_off'):.1f} s",
                f"{value(f'{name}_on'):.1f} s",
                f"{value(f'{name}_off') / value(f'{name}_on'):.1f} x",
                f"{before / after:.1f} x",
            )
            for what, name, before, after in (
                ("hibernate", "hibernate", before_hibernate, after_hibernate),
                ("resume", "resume", before_resume, after_resume),
            )
        ),
        (
            "image",
            f"{value('image_off'):.0f} MiB",
            f"{value('image_on'):.0f} MiB",
            f"{value('image_off') / value('image_on'):.1f} x",
            "",
        ),
        (
            "foreground p99.9",
            f"{value('p999_nothing'):.1f} ms",
            f"{value('p999_background'):.1f} ms",
            f"{value('fg_p999_ratio'):.2f} x",
            f"{value('fg_p999_ratio_seed'):.1f} x",
        ),
        ("sweep stops within", "", f"{value('stop_max_ms'):.0f} ms", "", ""),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        )
        for row in rows
    ]
    note = "The seed's hibernation figures are its published ones; its foreground ratio is its way of reclaiming, measured here."
    return "\n".join(["", *lines, "", note, ""])
