"""Workers on machines of their own: each in a network namespace, behind a link that is cut.

All listeners are inside these namespaces, which end with the test.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT
from .test_engines import ALL, began, slow


def has_networks() -> bool:
    """Network namespaces need root, iproute2, and a kernel with veth."""
    if os.geteuid() != 0 or not all(shutil.which(program) for program in ("ip", "unshare", "nsenter")):
        return False
    command = ["unshare", "--net", "ip", "link", "add", "to1", "type", "veth", "peer", "name", "to2"]
    return subprocess.run(command, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not has_networks(), reason="network namespaces need root, ip and veth")

MACHINES = r"""
set -eu
ip link set lo up
"$PYTHON" -m distributed.cli.dask_scheduler --port 8786 --no-dashboard &
for n in 1 2; do
    unshare --net sleep infinity &
    machine=$!
    until [ "$(readlink /proc/$machine/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
    ip link add to$n type veth peer name eth0 netns $machine
    ip addr add 10.0.$n.1/24 dev to$n
    ip link set to$n up
    nsenter --net --target $machine sh -ec "ip link set lo up; ip addr add 10.0.$n.2/24 dev eth0; ip link set eth0 up"
    nsenter --net --target $machine "$PYTHON" -m distributed.cli.dask_worker \
        tcp://10.0.$n.1:8786 --nthreads 1 --no-dashboard --no-nanny &
done
"$@" --address tcp://127.0.0.1:8786 &
run=$!
until [ "$(cat "$BEGAN" 2>/dev/null | wc -l)" -ge 2 ]; do sleep 0.05; done
ip link set to1 down
wait $run
"""
"""A scheduler, two machines with a worker each, and a command beside the scheduler. As the first
shards begin, the link to one machine is cut.
"""


def test_workers_on_other_machines_and_a_cut_link(omr: str, fleet: Path, total: bytes, tmp_path: Path) -> None:
    """Everything ends with the shell, which is the first process of its namespace."""
    program, out = slow(omr, tmp_path), tmp_path / "out"
    command = [sys.executable, "-m", "omr_fleet.cli", "run", fleet / "mixed", "--policies", fleet / "policies.json"]
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT / "fleet"),
        "BEGAN": str(tmp_path / "began"),
        "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "5s",
    }
    apart = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", MACHINES, "sh"]
    command = [*apart, *command, "--group", "1", "--omr", program, "--out", out]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    # Two shards are bad.
    assert ran.returncode == 4, ran
    assert (out / "total.json").read_bytes() == total
    # What the cut-off machine had begun ran again elsewhere.
    assert began(tmp_path) > ALL - 2
