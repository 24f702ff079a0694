"""The program that scenario footprint measures reports its own memory correctly."""

import signal
import struct

import pytest

from omrlab.guest import MIB, Guest, Zram


@pytest.mark.parametrize("taken", [0, 24])
def test_the_program_counts_its_memory_in_swap_and_waits_for_it_after_the_phase_change(taken: int) -> None:
    with Guest(mem_mib=512, swap=Zram(256)) as guest:
        guest.group("load")
        sizes = ("--hot", "8M", "--cold", "32M", "--wakes", "8M")
        load = guest.spawn(["omr-guest", "footprint", "--raw", "/tmp/samples", *sizes], group="load")
        load.line_with("ready", timeout=120)
        if taken:
            # Exit code 4: the amount may be a little less.
            assert guest.run(["omr", "reclaim", "load", f"{taken}M"], check=False, timeout=120).code in (0, 4)
        swapped = guest.group_value("load", "memory.swap.current")
        load.kill(signal.SIGUSR1)
        change = load.line_with("changed_ns")
        # Memory that the program has used since then has come back.
        assert abs(change["cold_out"] + change["hot_out"] - swapped) <= 2 * MIB
        assert (change["cold_out"] > taken * MIB // 2) == bool(taken)
        guest.shell("sleep 3")
        load.kill()
        ended = load.wait()
        samples = list(struct.iter_unpack("<QIII", guest.read_bytes("/tmp/samples")))
    last = ended.stdout.splitlines()[-1]
    assert f'"samples":{len(samples)}' in last and '"errors":0' in last
    after = [faults for due, _, _, faults in samples if due > change["changed_ns"]]
    assert after and bool(sum(after)) == bool(taken)
