"""The lab's command line: lab/run SCENARIO [options]."""

import argparse
import importlib
import signal
import sys

from .guest import GuestError
from .kernels import KernelMissing
from .scenarios.demo import DemoFailed

VERBS = {
    "hibernate": "hibernation and resume time, omr on and off",
    "hibernate-seed": "the seed's table: a swap file, image_size default and 0, a mixed load",
    "burst": "a program allocates much at once: stalls and time, omr on and off, and on an empty machine",
    "migrate": "live migration over a slow link: time and bytes, omr on and off",
    "latency": "what a latency-sensitive task feels of a sweep, and how soon a sweep stops",
    "cold-age": "how much memory was not used for two minutes, estimated by omr and true",
    "footprint": "memory that is not used and then is: omr, oomd's Senpai and damo side by side",
    "advise": "a job at full size and at the size omr advise found: how much slower, how much saved",
    "swap-reclaim": "memory.swap.reclaim, patched and mounted, and memory.reclaim: what is sent to swap, how soon a signal ends it",
    "hint": "what omr hint takes beside the bare system calls",
    "app-switch": "a user switches between more applications than memory holds: kills, cold starts, time",
    "self": "what the daemon costs by number of groups, and how fast it reclaims",
    "demo": "both, at a size that ends within 6 minutes",
    "kernel": "builds Linux 6.12 with the patches in patches/",
    "capture": "captures /proc, /sys and cgroup files of real kernels for the tests",
}

MODULES = {
    "self": "self_cost",
    "hibernate-seed": "hibernate_seed",
    "app-switch": "app_switch",
    "cold-age": "cold_age",
    "swap-reclaim": "swap_reclaim",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab/run", description="Runs omr's scenarios on real kernels in QEMU")
    verbs = parser.add_subparsers(dest="verb", required=True)
    modules = {verb: importlib.import_module(f".scenarios.{MODULES.get(verb, verb)}", __package__) for verb in VERBS}
    for verb, description in VERBS.items():
        modules[verb].options(verbs.add_parser(verb, help=description, description=modules[verb].__doc__))
    arguments = parser.parse_args()
    # A terminated lab leaves no guest and no disk behind, as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        result = modules[arguments.verb].run(arguments)
    except (DemoFailed, GuestError, KernelMissing) as error:
        print(f"lab: {arguments.verb}: {error}", file=sys.stderr)
        return 1
    for name, metric in result.get("metrics", {}).items():
        print(
            f"{name:28} {metric['value']:>10} {metric['unit']:6} [{metric['min']} .. {metric['max']}] {metric.get('goal', '')}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
