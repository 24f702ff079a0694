"""Builds Linux 6.12 with the patches in patches/, and keeps it in the lab's cache.

Some 10 minutes on two cores.
"""

from dataclasses import dataclass

from .. import patched
from ..results import MetricJson
from ..scenario import Scenario, option


@dataclass(kw_only=True)
class BuildKernel(Scenario):
    name = "kernel"
    help = "builds Linux 6.12 with the patches in patches/ (10 minutes)"

    debug: bool = option(False, "with KASAN, lockdep and other checks")
    variants: bool = option(False, "only compile the patched files, in further configurations")

    def run(self) -> dict[str, MetricJson]:
        if self.variants:
            patched.check_variants()
        else:
            kernel = patched.build(patched.DEBUG if self.debug else patched.RELEASE)
            print(f"{kernel.release}: {kernel.version}: {kernel.root}")
        return {}
