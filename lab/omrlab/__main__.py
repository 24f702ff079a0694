"""The lab's command line: lab/run SCENARIO [options]."""

import argparse
import importlib
import pkgutil
import signal
import sys

from . import scenarios
from .guest import GuestError
from .kernels import KernelMissing
from .scenario import Scenario
from .scenarios.demo import DemoFailed


def find_scenarios() -> dict[str, type[Scenario]]:
    """The one scenario of each module in scenarios/, by its name."""
    found: dict[str, type[Scenario]] = {}
    for info in pkgutil.iter_modules(scenarios.__path__):
        module = importlib.import_module(f"{scenarios.__name__}.{info.name}")
        classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Scenario)]
        (scenario,) = (value for value in classes if value.__module__ == module.__name__)
        found[scenario.name] = scenario
    return found


def main() -> int:
    description = "Runs omr's scenarios on real kernels in QEMU. Times are under emulation, on two quiet cores."
    parser = argparse.ArgumentParser(prog="lab/run", description=description)
    subparsers = parser.add_subparsers(dest="scenario", metavar="SCENARIO")
    found = find_scenarios()
    for name, scenario in found.items():
        scenario.add_options(subparsers.add_parser(name, help=scenario.help, description=scenario.about()))
    arguments = parser.parse_args()
    if arguments.scenario is None:
        parser.print_help()
        return 0
    # A terminated lab leaves no guest and no disk behind, as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        metrics = found[arguments.scenario].from_arguments(arguments).run()
    except (DemoFailed, GuestError, KernelMissing) as error:
        print(f"lab: {arguments.scenario}: {error}", file=sys.stderr)
        return 1
    for name, metric in metrics.items():
        spread = f"[{metric['min']} .. {metric['max']}]"
        print(f"{name:28} {metric['value']:>10} {metric['unit']:6} {spread} {metric.get('goal', '')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
