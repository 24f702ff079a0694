"""`omr wss` and `omr reclaim --older-than` on real kernels: cold memory is found and reclaimed, and
no other memory.
"""

import signal

from omrlab.guest import KERNEL, MGLRU_SWITCH, MIB, Completed, Disk, Guest, Node, Zram

PARTIAL, UNSUPPORTED = 4, 3
"""omr's exit codes for less than asked, and for a feature that the kernel lacks."""

KDAMONDS = "/sys/kernel/mm/damon/admin/kdamonds"

COLD, HOT = 96 * MIB, 64 * MIB


class Half:
    """Memory of which the first part is used every second and the rest never. The options can add
    page cache.
    """

    def __init__(self, guest: Guest, group: str, *options: str, hot: int = 40) -> None:
        self.guest, self.group = guest, group
        guest.group(group)
        command = ["omr-guest", "fill", f"{(COLD + HOT) // MIB}M", "--hot", str(hot), *options]
        self.process = guest.spawn(command, group=group)
        self.process.line_with("ready", timeout=120)

    def stat(self, name: str) -> int:
        lines = (line.split() for line in self.guest.read(f"/sys/fs/cgroup/{self.group}/memory.stat").splitlines())
        return int(dict(lines)[name])

    def swapped(self) -> int:
        return self.guest.group_value(self.group, "memory.swap.current")

    def cache(self) -> int:
        """Page cache. Not the field "file", which includes swap cache up to some kernel between
        6.12 and 7.3.
        """
        return self.stat("active_file") + self.stat("inactive_file")

    def refaults(self) -> int:
        """Pages that came back."""
        return self.stat("workingset_refault_anon")


def boot(release: str, **options) -> Guest:
    return Guest(release, 512, data_mib=128, **options)


def idle(figures: dict, seconds: float) -> dict:
    return next(idle for idle in figures["idle"] if idle["seconds"] == seconds)


def reclaim(guest: Guest, *options: str, code: int = 0) -> dict:
    ended: Completed = guest.run(["omr", "reclaim", *options, "--json"], timeout=180, check=False)
    assert ended.code == code, f"{ended.code}: {ended.stdout} {ended.stderr}"
    return ended.json()


def test_cold_memory_is_found_and_reclaimed_and_the_rest_stays(release) -> None:
    with boot(release, swap=Disk(512, mb_s=40)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        half = Half(guest, "half", "--file", "/data/file", "--file-amount", "48M")
        # No aging has run yet. Memory of unknown age is not cold.
        summary = reclaim(guest, "half", "max", "--older-than", "30m", code=PARTIAL)
        assert summary["end"] == "not-aged" and summary["freed"] == 0
        assert "omr wss half --window 30m" in summary["groups"][0]["error"]
        assert half.swapped() == 0

        seen = guest.run(["omr", "wss", "half", "--window", "8s", "--per-node", "--json"], timeout=60).json()
        cold = idle(seen, 8)
        assert 0.97 * COLD <= cold["least"] <= cold["most"] <= 1.03 * COLD, seen
        # The control: used memory is not called cold.
        assert seen["memory"] - cold["most"] >= 0.97 * HOT
        assert seen["page_cache"] >= 48 * MIB
        assert [(node["node"], idle(node, 8)) for node in seen["nodes"]] == [(0, cold)]
        assert seen["agings"] == 3 and seen["not_aged"] == 0
        assert seen["came_back"] <= 64 * 4096

        cache, refaults = half.cache(), half.refaults()
        summary = reclaim(guest, "half", "max", "--older-than", "8s")
        assert summary["backend"] == "lru_gen" and summary["end"] == "young", summary
        assert half.swapped() >= 0.97 * COLD
        assert half.swapped() <= 1.03 * COLD
        assert summary["freed"] >= 0.95 * COLD and summary["freed_file"] < MIB
        guest.shell("sleep 2")
        # Each hot page was used since then. A reclaimed page would have come back.
        assert half.refaults() - refaults <= 64
        assert half.cache() >= cache - MIB

        # The control: without an age, hot memory and page cache leave, too, and the hot memory
        # comes back.
        look = guest.spawn(["omr", "wss", "half", "--window", "20s", "--json"])
        guest.shell("sleep 1")
        guest.run(["omr", "reclaim", "half", "88M"], timeout=180, check=False)
        guest.wait_for(lambda: half.refaults() - refaults > 2000, 15, "hot memory that comes back")
        assert look.wait(timeout=120).json()["came_back"] > 2000 * 4096


def test_memory_that_comes_back_after_many_agings_is_counted(release, load) -> None:
    with boot(release, swap=Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        background = load(guest, "bg", "128M")
        reclaim(guest, "bg", "64M")
        for _ in range(5):
            guest.run(["omr", "wss", "bg", "--window", "2s"], timeout=60)
        look = guest.spawn(["omr", "wss", "bg", "--window", "20s", "--json"])
        guest.shell("sleep 1")
        background.process.kill(signal.SIGUSR1)
        assert look.wait(timeout=120).json()["came_back"] >= 60 * MIB
        assert background.swapped() < MIB
        # The control: Linux 6.1 itself counts nothing of it.
        stat = dict(line.split() for line in guest.read("/sys/fs/cgroup/bg/memory.stat").splitlines())
        counted = int(stat["workingset_refault_anon"]) * 4096
        assert counted < MIB if release == "6.1" else counted >= 60 * MIB, stat


def test_omr_refuses_without_mglru_and_with_wait_ages_first_and_spares_protected_memory(release) -> None:
    with boot(release, swap=Zram(512)) as guest:
        has_damon = guest.run(["test", "-e", f"{KDAMONDS}/nr_kdamonds"], check=False).code == 0
        for mask in ("n", "1"):
            guest.write(MGLRU_SWITCH, mask)
            commands = [["wss", "/", "--tracker", "lru-gen"]]
            commands += [] if has_damon else [["wss", "/"], ["reclaim", "/", "max", "--older-than", "2m", "--wait"]]
            for command in commands:
                ended = guest.run(["omr", *command], check=False)
                assert ended.code == UNSUPPORTED
                assert 'write "y" to /sys/kernel/mm/lru_gen/enabled' in ended.stderr
            if not has_damon:
                assert "--tracker smaps" in ended.stderr
                ended = guest.run(["omr", "wss", "/", "--tracker", "damon"], check=False)
                assert ended.code == UNSUPPORTED and "not in this kernel" in ended.stderr
            # No aging has run, so nothing is reclaimed.
            ended = guest.run(["omr", "reclaim", "/", "max", "--older-than", "2m"], check=False)
            assert ended.code == (PARTIAL if has_damon else UNSUPPORTED), ended.stderr
            assert guest.meminfo()["SwapFree"] == guest.meminfo()["SwapTotal"]
        # The control: it was MGLRU that was missing. The age is long, because on a busy host used
        # memory may wait many seconds for a CPU.
        guest.write(MGLRU_SWITCH, "y")
        guest.write(f"{guest.group('top')}/cgroup.subtree_control", "+memory")
        half, low = Half(guest, "top/half"), Half(guest, "low")
        guest.write("/sys/fs/cgroup/low/memory.low", "128M")
        reclaim(guest, "/", "max", "--older-than", "20s", "--wait")
        assert 0.97 * COLD <= half.swapped() <= 1.03 * COLD
        assert guest.group_value("low") >= 127 * MIB
        assert low.swapped() >= 24 * MIB
        # The control: it was memory.low that protected the group.
        reclaim(guest, "low", "max", "--older-than", "20s", "--wait", "--ignore-low")
        assert low.swapped() >= 0.97 * COLD


def test_shared_memory_in_no_page_table_is_reclaimed_by_age_and_files_in_tmpfs_are_not() -> None:
    """Shared buffers of a database look like this: filled by a process that has ended, mapped by
    others that use a part.
    """
    size = 64 * MIB
    region = ["omr-guest", "map", "1M", "--shared", f"{size // MIB}M", "--by-child", "--hot", "25"]
    with boot(KERNEL, swap=Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        guest.shell("mkdir /run/big; mount -t tmpfs -o size=256M tmpfs /run/big")
        for group in ("region", "files", "both"):
            guest.group(group)
        for group in ("files", "both"):
            guest.run(["dd", "if=/dev/urandom", f"of=/run/big/{group}", "bs=1M", "count=64"], group=group, timeout=120)
        for group in ("region", "both"):
            guest.spawn(region, group=group).line_with("ready", timeout=120)
        guest.spawn(["sleep", "600"], group="files")
        ended = {
            group: guest.run(["omr", "reclaim", group, "max", "--older-than", "9s", "--wait"], timeout=180, check=False)
            for group in ("region", "files", "both")
        }
        swapped = {group: guest.group_value(group, "memory.swap.current") for group in ended}
        assert 0.7 * size <= swapped["region"] <= 0.8 * size, (swapped, ended)
        # The controls: the same amount of files in tmpfs, alone and beside a region.
        for group in ("files", "both"):
            assert "or more are files in tmpfs that are not mapped" in ended[group].stdout + ended[group].stderr, ended
            assert swapped[group] == 0, swapped


def test_used_memory_under_madv_random_looks_unused_and_stays() -> None:
    size = 48 * MIB
    with boot(KERNEL, swap=Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        guest.write(f"{guest.group('top')}/cgroup.subtree_control", "+memory")
        advised = {"random": ("--advise", "random"), "sequential": ("--advise", "sequential"), "plain": ()}
        for name, options in advised.items():
            guest.group(f"top/{name}")
            command = ["omr-guest", "fill", f"{size // MIB}M", "--hot", "100", *options]
            guest.spawn(command, group=f"top/{name}").line_with("ready", timeout=120)
        # The ages are long, because on a busy host used memory may wait many seconds for a CPU.
        seen = guest.run(["omr", "wss", "top", "--window", "20s", "--json"], timeout=120).json()
        text = guest.run(["omr", "wss", "top", "--window", "1s"], timeout=60).stdout
        assert "MADV_RANDOM" in text, text
        # The control: unused memory is reclaimed where little of the group is under such advice.
        guest.group("top/cold")
        for command in (
            ["omr-guest", "fill", "48M"],
            ["omr-guest", "fill", "3M", "--hot", "100", "--advise", "random"],
        ):
            guest.spawn(command, group="top/cold").line_with("ready", timeout=120)
        # On a slow machine one group may be aged a second after the others.
        for _ in range(5):
            summary = reclaim(guest, "top", "max", "--older-than", "20s", "--wait", code=PARTIAL)
            if all(group["end"] != "not-aged" for group in summary["groups"]):
                break
        assert summary["end"] == "not-seen", summary
        ends = {group["group"]: group["end"] for group in summary["groups"]}
        errors = {group["group"]: group.get("error", "") for group in summary["groups"]}
        guest.shell("sleep 3")
        for name, options in advised.items():
            cold = idle(of_group(seen, f"top/{name}"), 20)
            stat = guest.read(f"/sys/fs/cgroup/top/{name}/memory.stat").split()
            came_back = int(stat[stat.index("workingset_refault_anon") + 1]) * 4096
            assert came_back <= 0.02 * size and guest.group_value(f"top/{name}", "memory.swap.current") <= 0.02 * size
            if options:
                assert cold["least"] >= 0.9 * size, (name, cold)
                assert ends[f"top/{name}"] == "not-seen" and "MADV_RANDOM" in errors[f"top/{name}"], summary
            else:
                # The control: the same memory without the advice.
                assert cold["most"] <= 0.1 * size and ends[f"top/{name}"] == "young", (name, cold, summary)
        assert guest.group_value("top/cold", "memory.swap.current") >= 0.9 * size, summary
        assert "top/cold" in ends and not errors["top/cold"], summary


def test_without_swap_used_memory_is_not_called_cold() -> None:
    with boot(KERNEL) as guest:
        guest.write(MGLRU_SWITCH, "y")
        half = Half(guest, "half")
        seen = guest.run(["omr", "wss", half.group, "--window", "8s", "--json"], timeout=60).json()
        cold = idle(seen, 8)
        assert 0.97 * COLD <= cold["least"] <= cold["most"] <= 1.03 * COLD, seen
        assert seen["memory"] - cold["most"] >= 0.97 * HOT


def test_omr_reports_unknown_ages_when_mglru_is_switched_off_meanwhile() -> None:
    with boot(KERNEL, swap=Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        Half(guest, "half")
        for after, mask in (("sleep 1", "n"), ("sleep 6", "n"), ("sleep 1", "1")):
            omr = guest.spawn(["omr", "wss", "half", "--window", "8s", "--json"])
            guest.shell(after)
            guest.write(MGLRU_SWITCH, mask)
            ended = omr.wait(timeout=60)
            assert ended.code == UNSUPPORTED and 'write "y" to' in ended.stderr and ended.stdout == "", ended
            guest.write(MGLRU_SWITCH, "y")
        # The control: it was the switch that made the ages unknown.
        assert guest.run(["omr", "wss", "half", "--window", "8s", "--json"], timeout=60).json()["agings"] == 3


def test_a_signal_ends_reclaim_by_age() -> None:
    with boot(KERNEL, swap=Disk(512, mb_s=8)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        half = Half(guest, "half")
        guest.run(["omr", "wss", "half", "--window", "4s"], timeout=60)
        omr = guest.spawn(["omr", "reclaim", "half", "max", "--older-than", "4s", "--json"])
        guest.wait_for(lambda: half.swapped() > 4 * MIB, 60, "swapped memory")
        omr.kill(signal.SIGINT)
        ended = omr.wait()
        assert ended.code == PARTIAL and ended.json()["end"] == "stopped", ended.stderr
        written = guest.vmstat()["pswpout"]
        guest.shell("sleep 1")
        # Pages on their way arrive. No other page is sent.
        assert guest.vmstat()["pswpout"] == written
        assert half.swapped() < 0.8 * COLD


def state(guest: Guest) -> str:
    """The state of the first monitor. The kernel answers EBUSY while another program uses DAMON's
    files.
    """
    return guest.shell(f"until cat {KDAMONDS}/0/state 2> /dev/null; do sleep 0.1; done", timeout=60)


def of_group(seen: dict, group: str) -> dict:
    return next(found for found in seen["groups"] if found["group"] == f"/{group}")


def test_without_mglru_damon_finds_cold_memory_and_only_that_is_reclaimed() -> None:
    with boot(KERNEL, swap=Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "n")
        # The ages are long, because on a busy host used memory may wait many seconds for a CPU.
        guest.write(f"{guest.group('top')}/cgroup.subtree_control", "+memory")
        half, hot = Half(guest, "top/half"), Half(guest, "top/hot", hot=100)
        seen = guest.run(["omr", "wss", "top", "--window", "20s", "--json"], timeout=180).json()
        assert seen["tracker"] == "damon" and seen["processes"] == 2 and seen["processes_left_out"] == 0, seen
        cold = idle(of_group(seen, "top/half"), 20)
        assert 0.95 * COLD <= cold["least"] <= cold["most"] <= 1.05 * COLD, seen
        # The control: a group whose memory is all used has nothing cold.
        assert idle(of_group(seen, "top/hot"), 20)["most"] <= 0.02 * (COLD + HOT), seen
        assert of_group(seen, "top/hot")["memory"] >= COLD + HOT
        assert guest.read(f"{KDAMONDS}/nr_kdamonds") == "0\n"

        # No monitor has run for long enough.
        ended = guest.run(["omr", "reclaim", "top", "max", "--older-than", "20s"], check=False)
        assert ended.code == PARTIAL and "--wait first measures" in ended.stderr
        assert half.swapped() == 0
        before = hot.swapped()
        summary = reclaim(guest, "top", "max", "--older-than", "20s", "--wait")
        assert summary["backend"] == "process_madvise" and summary["end"] == "young", summary
        assert 0.95 * COLD <= half.swapped() <= 1.03 * COLD, summary
        assert hot.swapped() - before <= MIB
        guest.shell("sleep 2")
        assert half.refaults() <= 64
        assert guest.read(f"{KDAMONDS}/nr_kdamonds") == "0\n"


def test_reclaim_by_damons_ages_spares_protected_memory() -> None:
    with boot(KERNEL, swap=Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "n")
        # All of the memory is cold, so no page comes back meanwhile.
        low = Half(guest, "low", hot=0)
        guest.write("/sys/fs/cgroup/low/memory.low", "128M")
        reclaim(guest, "/", "max", "--older-than", "6s", "--wait")
        assert guest.group_value("low") >= 127 * MIB
        assert low.swapped() >= 24 * MIB
        # The control: it was memory.low that protected the group.
        reclaim(guest, "low", "max", "--older-than", "6s", "--wait", "--ignore-low")
        assert low.swapped() >= 0.95 * COLD


def test_monitors_of_other_programs_stay_and_that_of_a_killed_omr_is_removed() -> None:
    with boot(KERNEL, swap=Zram(512)) as guest:
        half = Half(guest, "half")
        look = ["omr", "wss", "half", "--tracker", "damon", "--json"]
        killed = guest.spawn([*look, "--window", "300s"])
        guest.wait_for(lambda: guest.read(f"{KDAMONDS}/nr_kdamonds") == "1\n", 60, "a monitor")
        guest.wait_for(lambda: state(guest) == "on\n", 60, "a running monitor")
        # While one omr measures, another omr cannot.
        ended = guest.run([*look, "--window", "4s"], check=False)
        assert ended.code == UNSUPPORTED and "is in use" in ended.stderr, ended.stderr
        killed.kill(signal.SIGKILL)
        killed.wait()
        assert state(guest) == "on\n", "no program removes it"
        seen = guest.run([*look, "--window", "8s"], timeout=120).json()
        assert idle(seen, 8)["least"] >= 0.95 * COLD, seen
        assert guest.read(f"{KDAMONDS}/nr_kdamonds") == "0\n"
        # A signal also makes omr remove its monitor.
        stopped = guest.spawn([*look, "--window", "300s"])
        guest.wait_for(lambda: guest.read(f"{KDAMONDS}/nr_kdamonds") == "1\n", 60, "a monitor")
        stopped.kill(signal.SIGINT)
        assert stopped.wait().code == PARTIAL
        assert guest.read(f"{KDAMONDS}/nr_kdamonds") == "0\n"

        # A monitor of another program.
        context = f"{KDAMONDS}/0/contexts/0"
        for file, text in (
            (f"{KDAMONDS}/nr_kdamonds", "1"),
            (f"{KDAMONDS}/0/contexts/nr_contexts", "1"),
            (f"{context}/operations", "vaddr"),
            (f"{context}/targets/nr_targets", "1"),
            (f"{context}/targets/0/pid_target", str(half.process.pid)),
            (f"{KDAMONDS}/0/state", "on"),
        ):
            guest.write(file, text)
        for command in (look, ["omr", "reclaim", "half", "max", "--older-than", "4s", "--wait"]):
            if command[1] == "reclaim":
                guest.write(MGLRU_SWITCH, "n")
            ended = guest.run([*command], check=False)
            assert ended.code == UNSUPPORTED and "is in use" in ended.stderr, ended.stderr
        assert state(guest) == "on\n"
        assert guest.read(f"{context}/operations") == "vaddr\n"
        assert guest.read(f"{context}/targets/0/pid_target") == f"{half.process.pid}\n"
        assert half.swapped() == 0


def test_nothing_is_reclaimed_when_another_program_takes_the_monitor_down() -> None:
    with boot(KERNEL, swap=Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "n")
        half = Half(guest, "half")
        for command in (
            ["wss", "half", "--window", "20s"],
            ["reclaim", "half", "max", "--older-than", "20s", "--wait"],
        ):
            omr = guest.spawn(["omr", *command, "--json"])
            guest.wait_for(lambda: guest.read(f"{KDAMONDS}/nr_kdamonds") == "1\n", 60, "a monitor")
            guest.wait_for(lambda: state(guest) == "on\n", 60, "a running monitor")
            guest.write(f"{KDAMONDS}/0/state", "off")
            guest.write(f"{KDAMONDS}/nr_kdamonds", "0")
            ended = omr.wait(timeout=180)
            assert ended.code == PARTIAL and "another program has taken down" in ended.stdout + ended.stderr, ended
        assert ended.json()["end"] == "not-aged" and half.swapped() == 0, ended
        # The control: when the processes end, omr has another message.
        omr = guest.spawn(["omr", "wss", "half", "--window", "10s"])
        guest.wait_for(lambda: guest.read(f"{KDAMONDS}/nr_kdamonds") == "1\n", 60, "a monitor")
        guest.wait_for(lambda: state(guest) == "on\n", 60, "a running monitor")
        half.process.kill(signal.SIGKILL)
        half.process.wait()
        ended = omr.wait(timeout=120)
        assert ended.code == PARTIAL and "half: all monitored processes have ended" in ended.stderr, ended


def test_the_kernels_own_monitor_is_named_and_used_memory_stays_while_it_runs(newest) -> None:
    module = "/sys/module/damon_stat/parameters/enabled"
    with boot(newest, swap=Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "y")
        # The control: the lab switches it off when a guest boots.
        assert guest.read(module) == "N\n"
        assert "damon_stat on" not in guest.run(["omr", "doctor"]).stdout
        guest.write(module, "Y")
        assert "damon_stat on" in guest.run(["omr", "doctor"]).stdout
        half = Half(guest, "half")
        # It makes used huge pages look unused, but keeps reclaim from them.
        for _ in range(2):
            reclaim(guest, "half", "max", "--older-than", "6s", "--wait")
        assert 16 * MIB <= half.swapped() <= 1.03 * COLD
        guest.shell("sleep 3")
        assert half.refaults() <= 64


def test_smaps_measures_ages_on_request_and_never_of_protected_processes(release) -> None:
    with boot(release, swap=Zram(512)) as guest:
        guest.write(MGLRU_SWITCH, "n")
        Half(guest, "half")
        seen = guest.run(["omr", "wss", "half", "--tracker", "smaps", "--window", "6s", "--json"], timeout=60).json()
        cold = idle(seen, 6)
        assert seen["tracker"] == "smaps" and 0.97 * COLD <= cold["least"] <= cold["most"] <= 1.03 * COLD, seen
        # The whole machine includes the first process, which is protected.
        ended = guest.run(["omr", "wss", "/", "--tracker", "smaps", "--window", "6s"], check=False)
        assert ended.code == 1 and "1 (" in ended.stderr and "is protected" in ended.stderr, ended.stderr
        guest.run(["mkdir", "-p", "/etc/omr"])
        guest.write("/etc/omr/omr.toml", '[[group]]\nmatch = "half"\nclass = "foreground"\n', create=True)
        ended = guest.run(["omr", "wss", "half", "--tracker", "smaps", "--window", "6s"], check=False)
        assert ended.code == 1 and "is foreground" in ended.stderr, ended.stderr


def test_each_node_with_memory_has_its_own_working_set() -> None:
    # The second node has a CPU and no memory. The memory of the last one is unused.
    nodes = (Node(320, "0"), Node(0, "1"), Node(320), Node(64))
    with Guest(KERNEL, 704, Zram(512), nodes=nodes) as guest:
        guest.write(MGLRU_SWITCH, "y")
        assert guest.read("/sys/devices/system/node/online").strip() == "0-3"
        assert guest.read("/sys/devices/system/node/has_memory").strip() == "0,2-3"
        guest.write(f"{guest.group('two')}/cgroup.subtree_control", "+memory +cpuset")
        guest.write(f"{guest.group('two/on-0')}/cpuset.mems", "0")
        guest.write(f"{guest.group('two/on-2')}/cpuset.mems", "2")
        # 64 MiB on the first node, all unused; 96 MiB on the third node, half of it unused.
        for name, options in (("on-0", ("64M",)), ("on-2", ("96M", "--hot", "50"))):
            guest.spawn(["omr-guest", "fill", *options], group=f"two/{name}").line_with("ready", timeout=120)
        seen = guest.run(["omr", "wss", "two", "--window", "8s", "--per-node", "--json"], timeout=60).json()
        found = {node["node"]: (node["memory"], idle(node, 8)) for node in seen["nodes"]}
        assert found.keys() <= {0, 2, 3}, seen
        for number, memory, cold in ((0, 64, 64), (2, 96, 48)):
            held, idle_there = found[number]
            assert abs(held - memory * MIB) <= 0.03 * memory * MIB, seen
            assert abs(idle_there["least"] - cold * MIB) <= 0.04 * memory * MIB, seen
            assert idle_there["most"] <= 1.04 * memory * MIB
        assert found.get(3, (0, None))[0] <= MIB
        # The sum of the nodes is the memory of the group.
        assert seen["memory"] == sum(memory for memory, _ in found.values())
        table = guest.run(["omr", "wss", "two", "--window", "2s", "--per-node"], timeout=60).stdout
        rows = [line.split()[0] for line in table[table.index("NODE") :].splitlines()[1:4]]
        assert rows == ["0", "2", "3"], table
