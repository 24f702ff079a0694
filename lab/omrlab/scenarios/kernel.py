"""Builds Linux with the patches in patches/, and keeps it in the lab's cache.

Some 10 minutes on two cores.
"""

from dataclasses import dataclass

from .. import patched
from ..results import MetricJson
from ..scenario import Scenario, option


@dataclass(kw_only=True)
class BuildKernel(Scenario):
    name = "kernel"
    help = "builds Linux with the patches in patches/ (10 minutes)"

    release: str = option(patched.OLD.version, f"the release of Linux: {', '.join(patched.SERIES)}")
    base: bool = option(False, "without the patches, as a control")
    debug: bool = option(False, "with KASAN, lockdep and other checks")
    variants: bool = option(False, "only compile the patched files, in further configurations")

    def run(self) -> dict[str, MetricJson]:
        series = patched.series_of(self.release)
        if self.variants:
            patched.check_variants(series)
        else:
            release = series.base if self.base else series.debug if self.debug else series.release
            kernel = patched.build(release)
            print(f"{kernel.release}: {kernel.version}: {kernel.root}")
        return {}
