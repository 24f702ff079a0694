"""`omr metrics` for the programs that read it: Prometheus, promtool and node_exporter of Debian. A
real daemon in a guest makes the figures.
"""

import json
import re
import signal
from pathlib import Path

import pytest

from omrlab import records
from omrlab.daemon import CLASSES, Daemon
from omrlab.guest import KERNEL, MGLRU_SWITCH, MIB, Disk, Guest
from omrlab.paths import REPOSITORY
from omrlab.prometheus import NodeExporter, Page, Prometheus, promtool

DASHBOARD = REPOSITORY / "packaging/grafana/omr.json"
ALERTS = REPOSITORY / "packaging/prometheus/omr-alerts.yml"

CONFIG = records.OFTEN + CLASSES + 'older_than = "30s"\n'
"""The last rule is that of the background."""

TEXTFILE = "/var/lib/prometheus/node-exporter/omr.prom"

UP = "omr_up{job='omr',instance='a'}"
"""A series that no alert looks at but one."""

FIRING = {
    "OmrPromiseBroken": (
        16,
        {
            "omr_slo_promotion_ratio{job='omr',instance='a',group='g',bound='least'}": (0.003, 0.0019),
            "omr_slo_promotion_ratio{job='omr',instance='a',group='g',bound='most'}": (0.004, 0.004),
            "omr_slo_limit_ratio{job='omr',instance='a'}": (0.002, 0.002),
        },
    ),
    "OmrWriteBudgetNearlyUsed": (
        6,
        {
            "omr_write_budget_used_bytes{job='omr',instance='a'}": (81, 80),
            "omr_write_budget_bytes{job='omr',instance='a'}": (100, 100),
        },
    ),
    "OmrDaemonGone": (6, {UP: (0, 1)}),
    "OmrHistoryUnreadable": (16, {"omr_history_readable{job='omr',instance='a'}": (0, 1)}),
    "OmrHistoryOld": (16, {"omr_history_sample_age_seconds{job='omr',instance='a'}": (3601, 3600)}),
    "OmrTextfileOld": (
        20,
        {f"node_textfile_mtime_seconds{{job='omr',instance='a',file='{TEXTFILE}'}}": (0, 600)},
    ),
}
"""For each alert: the minute at which it fires, and its series with a value that makes it fire and
one, as close as can be, that does not.
"""


def alerts() -> dict[str, str]:
    """The expressions by the names of the alerts."""
    found = re.findall(r'alert: (\w+)\n +expr: (".*")\n', ALERTS.read_text())
    return {name: json.loads(expression) for name, expression in found}


def panels(instance: str, group: str) -> list[tuple[str, str]]:
    """The titles and expressions of the dashboard, with the variables as Grafana replaces them."""
    values = {"$instance": instance, "$group": group, "$__rate_interval": "20s", "$__range": "5m"}
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in values.items():
                expression = expression.replace(name, value)
            assert "$" not in expression
            found.append((panel["title"], expression))
    return found


def test_promtool_takes_the_rules_and_there_are_expressions() -> None:
    checked = promtool("check", "rules", ALERTS)
    assert checked.returncode == 0 and "6 rules found" in checked.stdout, checked
    assert len(alerts()) == len(FIRING) == 6 and len(panels("a", "g")) >= 16
    assert {name for name, _ in documented()} >= {"fleet.md", "metrics.md"}


@pytest.mark.parametrize("name", FIRING)
def test_an_alert_fires_after_its_time_and_not_in_the_control(name: str, tmp_path: Path) -> None:
    minute, series = FIRING[name]
    for fires in (True, False):
        at = [(minute, fires), (minute - 2 if name != "OmrTextfileOld" else 9, False)]
        test = {
            "rule_files": [str(ALERTS)],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": [
                        {"series": line, "values": f"{values[0 if fires else 1]}x30"} for line, values in series.items()
                    ],
                    # Without the labels and texts of the alert, the test would have them twice.
                    "promql_expr_test": [
                        {
                            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                            "eval_time": f"{when}m",
                            "exp_samples": [{"labels": "{}", "value": int(expected)}],
                        }
                        for when, expected in at
                    ],
                }
            ],
        }
        file = tmp_path / f"{name}-{fires}.yml"
        file.write_text(json.dumps(test))
        ran = promtool("test", "rules", file)
        assert ran.returncode == 0, (fires, ran.stdout, ran.stderr)


def documented() -> list[tuple[str, str]]:
    """The expressions in the documents, by the names of their files."""
    pages = [(page.name, page.read_text()) for page in sorted((REPOSITORY / "docs/use").glob("*.md"))]
    return [(name, found) for name, text in pages for found in re.findall(r"```promql\n(.+?)\n```", text, re.DOTALL)]


@pytest.mark.long
def test_every_expression_has_values_of_a_real_daemon_under_load(load, tmp_path: Path) -> None:
    with Guest(KERNEL, 640, Disk(512, 40)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        background = load(guest, "bg", "160M", "--hot", "20")
        load(guest, "fg", "32M")
        # The control: without the daemon, its figures are missing, and nothing is zero.
        alone = guest.run(["omr", "metrics"]).stdout
        assert "\nomr_up 0\n" in alone and "omr_decision" not in alone and "omr_stop" not in alone
        with Daemon(guest, idle="2s", config=CONFIG) as daemon, Page(alone) as page:
            (tmp_path / "textfile").mkdir()
            textfile = tmp_path / "textfile" / "omr.prom"

            def refresh() -> None:
                page.text = guest.run(["omr", "metrics"]).stdout
                guest.run(["omr", "metrics", "--textfile", "/omr.prom"])
                textfile.write_text(guest.read("/omr.prom"))

            def swept() -> bool:
                refresh()
                return background.swapped() > 64 * MIB

            guest.wait_for(swept, 300, "sweeps", every=2)
            # Somebody works, so that a sweep stops, and uses what left, so that it comes back.
            background.process.kill(signal.SIGUSR1)
            spin = guest.spawn(["omr-guest", "spin", "--threads", "1", "--burst", "2s"], group="fg")
            spin.line_with("ready")
            spin.kill(signal.SIGUSR1)
            with (
                NodeExporter(tmp_path / "textfile") as node,
                Prometheus(tmp_path, {"omr": page.address, "node": node.address}) as prometheus,
            ):
                missing = panels(page.address, "bg") + [(name, value(expr)) for name, expr in alerts().items()]
                missing += documented()

                def complete() -> bool:
                    nonlocal missing
                    refresh()
                    missing = [of for of in missing if not prometheus.query(of[1])]
                    return not missing

                try:
                    guest.wait_for(complete, 150, "values", every=3)
                finally:
                    print("without values:", *missing, sep="\n")
                targets = prometheus.query("up")
                assert [of["value"][1] for of in targets] == ["1", "1"], targets
                # The same figures through the file.
                both = prometheus.query('omr_memory_bytes{group="bg"}')
                assert {of["metric"]["job"] for of in both} == {"omr", "node"}
                assert "node_textfile_scrape_error 0" in node.metrics()
                # The control: a metric that nobody writes.
                assert prometheus.query("omr_nothing") == []
            agrees(guest, daemon, page.text)
            checked = promtool("check", "metrics", stdin=textfile.read_text())
            remarks = (checked.stdout + checked.stderr).splitlines()
            assert set(remarks) == {'omr_memory_age_bytes non-histogram metrics should not have "le" label'}, remarks


def value(expression: str) -> str:
    """The expression of an alert without its limit. It has values when the alert does not fire."""
    return re.sub(r" (>|==) \S+$", "", expression)


def agrees(guest: Guest, daemon: Daemon, text: str) -> None:
    """The figures are those of the ledger."""

    def total(name: str) -> float:
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    sweeps = [line for line in daemon.ledger() if line["kind"] == "sweep"]
    taken = sum(line["freed_anon"] + line["freed_file"] for line in sweeps)
    assert taken > 64 * MIB
    assert total("omr_reclaimed_bytes_total") == pytest.approx(taken, rel=0.2)
    stops = [line["stop_ms"] for line in sweeps if "stop_ms" in line]
    assert total("omr_stop_seconds_count") <= len(stops)
    assert {line["method"] for line in sweeps} == {"lru_gen"}
    seconds = total("omr_decision_seconds_total")
    assert seconds > 30 and total("omr_decisions_total") >= 2
