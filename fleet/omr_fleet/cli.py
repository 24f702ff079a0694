"""The command `omr-fleet`."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import __doc__ as about
from . import files, rollout, run, shards, space, traces, tune
from .engines import ENGINES
from .replay import ReplayError
from .shards import Wrong

DONE, FAILED, USAGE, LEFT, PARTIAL = 0, 1, 2, 3, 4
"""Exit codes, as omr's; LEFT: the machines have left the prediction."""
NAMED = 10
"""Bad shards that are named in the terminal."""


def main() -> int:
    args = parser().parse_args()
    try:
        return int(args.run(args))
    except Wrong as err:
        print(f"omr-fleet: {err}", file=sys.stderr)
        return USAGE
    except (OSError, ReplayError) as err:
        print(f"omr-fleet: {err}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("omr-fleet: stopped; the same command goes on", file=sys.stderr)
        return FAILED


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="omr-fleet", description=about, formatter_class=formatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("run", help="replay a fleet through policies", formatter_class=formatter)
    command.set_defaults(run=run_fleet)
    add_engine(command)
    command.add_argument("fleet", metavar="FLEET", help="the directory of the shards, *.parquet: a path or URL")
    command.add_argument("--policies", required=True, metavar="FILE.json", help="as for omr whatif")
    command.add_argument("--out", required=True, metavar="DIR", help="the directory of the results: a path or URL")
    command.add_argument("--json", action="store_true", help="print all figures as JSON")

    command = commands.add_parser("tune", help="look for a policy that holds more memory", formatter_class=formatter)
    command.set_defaults(run=tune_fleet)
    add_engine(command)
    command.add_argument("fleet", metavar="FLEET", help="the shards to tune on")
    command.add_argument("--held-out", required=True, metavar="FLEET", help="shards that tuning does not see")
    command.add_argument("--out", required=True, metavar="DIR", help="the directory of tuned.toml and report.html")
    command.add_argument("--results", metavar="DIR", help="where workers put results (default: DIR/results)")
    command.add_argument(
        "--promotions",
        type=percent(10),
        default=0.2,
        metavar="PERCENT",
        help="98%% of the windows may have this much of the memory in use come back in a minute (default: 0.2)",
    )
    command.add_argument(
        "--written",
        type=positive,
        default=float("inf"),
        metavar="GIB",
        help="a machine may write so much to swap in a day (default: any)",
    )
    command.add_argument("--swap", choices=("memory", "disk"), default="memory", help="where swap is (default: memory)")
    command.add_argument("--rounds", type=whole, default=8, metavar="N", help="passes over the shards (default: 8)")
    command.add_argument("--batch", type=whole, default=8, metavar="N", help="policies in a pass (default: 8)")
    command.add_argument("--seed", type=seed, default=0, metavar="N", help="another seed, another search (default: 0)")

    about_traces = "make quantiles of traces, for omr fleet synthesize --traces"
    command = commands.add_parser("traces", help=about_traces, formatter_class=formatter)
    command.set_defaults(run=make_traces)
    command.add_argument(
        "--jobs",
        required=True,
        metavar="FORMAT:FILE",
        help=f"a trace of jobs: a path or URL; FORMAT: {', '.join(traces.JOBS)}",
    )
    command.add_argument(
        "--days",
        required=True,
        action="append",
        metavar="FORMAT:FILE",
        help=f"a trace of machines' use; of several, the mean is taken; FORMAT: {', '.join(traces.DAYS)}",
    )
    command.add_argument(
        "--batch",
        type=percent(50),
        default=5.0,
        metavar="PERCENT",
        help="the part of a machine's memory that such jobs have (default: 5)",
    )
    command.add_argument("--source", action="append", default=[], metavar="TEXT", help="where a trace is from")
    command.add_argument("--out", required=True, metavar="FILE.json", help="the file to write")

    command = commands.add_parser("check", help="compare machines with a prediction", formatter_class=formatter)
    command.set_defaults(run=check)
    command.add_argument("--prediction", required=True, metavar="FILE", help="prediction.json of omr-fleet tune")
    command.add_argument(
        "--total", required=True, metavar="FILE", help="total.json of what machines with that policy have recorded"
    )
    return parser


def formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=30, width=100)


def add_engine(command: argparse.ArgumentParser) -> None:
    command.add_argument("--omr", default="omr", metavar="FILE", help="the program omr, on every worker")
    command.add_argument("--engine", choices=ENGINES, default="dask", help="what runs the tasks (default: dask)")
    command.add_argument("--address", metavar="URL", help="its scheduler or master (default: this machine alone)")
    command.add_argument(
        "--group",
        type=whole,
        default=shards.PER_GROUP,
        metavar="N",
        help=f"shards of a task (default: {shards.PER_GROUP})",
    )


def whole(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 1 to 10000")
    return int(text)


def seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 32:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 0 to {(1 << 32) - 1}")
    return int(text)


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return value


def percent(most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = positive(text.removesuffix("%"))
        if value > most:
            raise argparse.ArgumentTypeError(f"{text!r}: expected at most {most:g} (percent)")
        return value

    return read


def replayed(args: argparse.Namespace, fleet: str, policies: bytes, out: str) -> dict[str, Any]:
    return run.fleet(fleet, policies, out, args.omr, args.engine, args.address, args.group)


def run_fleet(args: argparse.Namespace) -> int:
    policies = Path(args.policies).read_bytes()
    told = replayed(args, args.fleet, policies, args.out)
    if args.json:
        print(json.dumps(told))
    else:
        print(f"{told['shards']} shards; {args.out}/total.json has all figures")
        for policy in told["policies"]:
            figures = tune.Figures.of(told, policy)
            print(
                f"{policy['policy']['name']}: {100 * figures.held:.1f} % held, p98 {figures.p98:.2f} % a minute, "
                f"bound {figures.upper:.2f} %, {figures.written_gib_per_day:.1f} GiB written a day"
            )
    name_bad({bad["shard"]: bad["why"] for bad in told["bad"]})
    return PARTIAL if told["bad"] else DONE


def name_bad(bad: dict[str, str]) -> None:
    """Names bad shards, and why they are bad. total.json has all of them."""
    for shard, why in list(bad.items())[:NAMED]:
        print(f"omr-fleet: bad shard: {shard}: {why}", file=sys.stderr)


def tune_fleet(args: argparse.Namespace) -> int:
    if both := sorted(shards.urls(args.fleet) & shards.urls(args.held_out)):
        raise Wrong(f"--held-out {args.held_out}: {both[0]} is among the shards to tune on; expected others")
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    results = args.results or str(out / "results")
    limits = tune.Limits(args.promotions, args.written)
    bad: dict[str, str] = {}

    def evaluate(fleet: str, named: dict[str, dict[str, str]]) -> dict[str, tune.Figures]:
        told = replayed(args, fleet, tune.policies_file(named, args.swap), results)
        bad.update({shard["shard"]: shard["why"] for shard in told["bad"]})
        return {policy["policy"]["name"]: tune.Figures.of(told, policy) for policy in told["policies"]}

    tuned = tune.tune(lambda named: evaluate(args.fleet, named), limits, args.seed, args.rounds, args.batch)
    name_bad(bad)
    if tuned.best is None:
        print("omr-fleet: no policy that was tried keeps the limits; nothing is written", file=sys.stderr)
        return FAILED
    one_step = tune.neighbours(tuned.best)
    beside = evaluate(args.fleet, {name: space.slo(point) for name, point in one_step})
    held_out = evaluate(args.held_out, {"tuned": space.slo(tuned.best)})
    outcome = rollout.Outcome(limits, tuned, held_out["tuned"], held_out["default"], beside)
    rollout.write(outcome, out)
    from .report import write_report

    write_report(outcome, out / "report.html")
    print(outcome.sentence())
    print(f"{out}/report.html" + (f", {out}/tuned.toml, {out}/prediction.json" if outcome.is_better() else ""))
    return DONE if outcome.is_better() else FAILED


def make_traces(args: argparse.Namespace) -> int:
    found = traces.traces(args.jobs, args.days, args.batch, args.source)
    files.write(Path(args.out), traces.text(found))
    print(f"{args.out}: for omr fleet synthesize --traces")
    return DONE


def check(args: argparse.Namespace) -> int:
    try:
        prediction, total = (json.loads(Path(path).read_bytes()) for path in (args.prediction, args.total))
        left = rollout.departures(prediction, total)
    except (KeyError, TypeError, ValueError) as err:
        raise Wrong(f"{args.prediction}, {args.total}: expected prediction.json and total.json: {err!r}") from err
    for departure in left:
        print(departure)
    if left:
        print("back to the defaults: remove tuned.toml and restart omr")
        return LEFT
    print("the machines do as predicted")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
