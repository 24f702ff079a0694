"""A fleet that is made once, and the program."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
POLICIES = b"""{"policies": [
    {"name": "careful", "slo": {"kept": "99.5%", "shortest": "30min"}},
    {"name": "eager", "slo": {"promotions": "1%"}}
]}"""
MACHINES = 6


@pytest.fixture(scope="session")
def omr() -> str:
    """The program of this tree, or the one that OMR names."""
    found = os.environ.get("OMR") or str(ROOT / "target/debug/omr")
    if not shutil.which(found):
        pytest.fail(f"{found}: missing; cargo build -p omr")
    return found


@pytest.fixture(scope="session")
def fleet(omr: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some machine-weeks, and two bad shards."""
    place = tmp_path_factory.mktemp("fleet")
    command = [omr, "fleet", "synthesize", "--seed", "5", "--machines", str(MACHINES), "--out", place / "good"]
    subprocess.run(command, check=True, capture_output=True)
    shutil.copytree(place / "good", place / "mixed")
    (place / "mixed/none.parquet").write_text("PAR1")
    whole = (place / "good/week=0/machine=1.parquet").read_bytes()
    (place / "mixed/cut.parquet").write_bytes(whole[: len(whole) // 2])
    (place / "policies.json").write_bytes(POLICIES)
    return place


@pytest.fixture(scope="session")
def total(omr: str, fleet: Path) -> bytes:
    """What `omr whatif --local` makes of the fleet with the bad shards."""
    out = fleet / "local"
    command = [omr, "whatif", "--local", fleet / "mixed", "--policies", fleet / "policies.json", "--out", out]
    assert subprocess.run(command, capture_output=True).returncode == 4
    return (out / "total.json").read_bytes()
