"""Builds Linux 6.12 with the patches in patches/, and keeps it in the lab's cache: some 10 minutes on two cores."""

import argparse
from typing import Any

from .. import patched


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--debug", action="store_true", help="with KASAN, lockdep and the like")
    parser.add_argument(
        "--variants", action="store_true", help="only compile what is patched, in further configurations"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.variants:
        patched.check_variants()
        return {}
    kernel = patched.build(patched.DEBUG if arguments.debug else patched.RELEASE)
    print(f"{kernel.release}: {kernel.version}: {kernel.root}")
    return {}
