"""`omr hint` and `omr reclaim PID` on real kernels: the memory that leaves, the memory that stays,
and refusals.
"""

import itertools
import json
import signal

from omrlab.daemon import CLASSES, CONFIG
from omrlab.guest import MIB, Completed, Disk, Guest, Zram

FAILED, USAGE, UNSUPPORTED, PARTIAL = 1, 2, 3, 4
"""omr's exit codes."""

DISK = Disk(512, mb_s=40)


class Mapped:
    """A program with memory of many kinds."""

    def __init__(self, guest: Guest, group: str, amount: str, *options: str) -> None:
        self.guest, self.group, self.verified = guest, group, 0
        guest.group(group)
        self.process = guest.spawn(["omr-guest", "map", amount, *options], group=group)
        ready = self.process.line_with("ready", timeout=180)
        self.bytes, self.start, self.mappings = ready["bytes"], ready["start"], ready["mappings"]
        self.device: int = ready["device"]

    @property
    def pid(self) -> int:
        return self.process.pid

    def current(self) -> int:
        return self.guest.group_value(self.group)

    def swapped(self) -> int:
        return self.guest.group_value(self.group, "memory.swap.current")

    def cached(self) -> int:
        """Bytes that are both in swap and in memory."""
        stat = dict(line.split() for line in self.guest.read(f"/sys/fs/cgroup/{self.group}/memory.stat").splitlines())
        return int(stat["swapcached"])

    def errors(self) -> int:
        """The number of words that changed."""
        self.verified += 1
        self.process.kill(signal.SIGUSR1)
        return self.process.line_with("verified", self.verified, timeout=180)["errors"]


def omr(guest: Guest, *words: object, code: int = 0) -> Completed:
    ended = guest.run(["omr", *map(str, words)], timeout=180, check=False)
    assert ended.code == code, f"{ended.code}: {ended.stdout} {ended.stderr}"
    return ended


def test_paged_out_memory_is_freed_and_comes_back_unchanged(release) -> None:
    with Guest(release, 512, DISK) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        bare, background, other = (
            Mapped(guest, "bare", "64M"),
            Mapped(guest, "bg", "64M"),
            Mapped(guest, "other", "16M"),
        )

        # The control: the bare system call leaves all pages in memory as swap cache, even when the
        # disk has them.
        before = bare.current()
        guest.run(["omr-guest", "advise", "pageout", str(bare.pid)], timeout=60)
        guest.wait_for(lambda: guest.meminfo()["Writeback"] < MIB, 60, "end of writeback")
        assert bare.swapped() > 0.95 * bare.bytes
        assert before - bare.current() < 0.1 * bare.bytes
        assert bare.cached() > 0.9 * bare.bytes

        dry = omr(guest, "hint", background.pid, "--pageout", "--dry-run", "--json").json()
        assert background.swapped() == 0, "a dry run does nothing"
        assert dry["hinted"] >= background.bytes
        mapping = max(dry["processes"][0]["mappings"], key=lambda line: line["resident"])
        assert mapping["kind"] == "anonymous" and mapping["skip"] is None and mapping["hint"] >= background.bytes
        omr(guest, "hint", background.pid, "--cold")
        omr(guest, "hint", background.pid, "--willneed")
        journal = ["test", "-d", "/var/lib/omr/limits"]
        assert guest.run(journal, check=False).code != 0, "what changes no limit needs no journal of them"

        before = background.current()
        summary = omr(guest, "hint", background.pid, "--pageout", "--anon", "--json").json()
        assert summary["end"] == "complete" and guest.run(journal, check=False).code == 0
        assert background.swapped() > 0.95 * background.bytes
        fell = before - background.current()
        assert fell > 0.9 * background.bytes
        assert abs(summary["freed"] - fell) < 4 * MIB
        assert summary["resident_before"] >= background.bytes and summary["resident_after"] < 0.05 * background.bytes
        assert summary["swapped_out"] > 0.95 * background.bytes
        assert other.swapped() == 0, "somebody else's memory"

        # The pages are back before they are used: in the swap cache, with their contents.
        summary = omr(guest, "hint", background.pid, "--willneed", "--anon", "--json").json()
        assert summary["hinted"] > 0.95 * background.bytes
        assert background.cached() > 0.9 * background.bytes
        assert background.errors() == other.errors() == 0


def test_memory_that_was_marked_cold_is_the_first_to_go_when_memory_gets_scarce(release) -> None:
    def swapped(hinted: bool) -> tuple[int, int]:
        """Bytes in swap of two processes of one group after memory got scarce. The second has used
        its memory last, and may be hinted.
        """
        with Guest(release, 512, Disk(512)) as guest:
            guest.write(CONFIG, CLASSES, create=True)
            first, second = Mapped(guest, "bg", "96M"), Mapped(guest, "bg", "96M")
            if hinted:
                omr(guest, "hint", second.pid, "--cold")
            assert second.swapped() == 0, "a hint takes nothing by itself"
            # Locked memory cannot leave, so that of the two does.
            needed = guest.meminfo()["MemAvailable"] + 64 * MIB
            Mapped(guest, "fg", "1M", "--locked", str(needed))

            def in_swap(mapped: Mapped) -> int:
                return int(guest.shell(f"awk '/^VmSwap/ {{print $2}}' /proc/{mapped.pid}/status")) * 1024

            both = in_swap(first), in_swap(second)
            assert sum(both) > 8 * MIB and first.errors() == second.errors() == 0
            return both

    unhinted, cold = swapped(hinted=True)
    print(f"cold: {unhinted} {cold}")
    assert cold > 4 * unhinted, (unhinted, cold)
    # The control: without the hint the memory that was used last stays.
    older, newer = swapped(hinted=False)
    print(f"control: {older} {newer}")
    assert newer < older, (older, newer)


def test_a_process_loses_the_amount_that_was_asked_for(release) -> None:
    with Guest(release, 512, DISK) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        background = Mapped(guest, "bg", "96M", "--shared", "16M", "--locked", "8M")
        before = background.current()
        summary = omr(guest, "reclaim", background.pid, "32M", "--json").json()
        assert summary["asked"] == 32 * MIB and summary["end"] == "complete"
        assert 31 * MIB <= summary["resident_before"] - summary["resident_after"] <= 33 * MIB
        assert 0.95 * 32 * MIB <= background.swapped() <= 35 * MIB, "what memory.reclaim sends out behind it is bounded"
        # On a busy host some pages may not be at the end of the kernel's lists. `left_cached`
        # counts them.
        assert before - background.current() + summary["processes"][0]["left_cached"] >= 0.9 * 32 * MIB
        assert guest.read("/sys/fs/cgroup/bg/memory.swap.max").strip() == "max", "it is given back"

        # The rest of the process, except shared and locked pages.
        rest = omr(guest, "reclaim", background.pid, "max", "--json").json()
        assert rest["skipped"]["shared"] >= 16 * MIB
        assert rest["skipped"]["locked"] == 8 * MIB
        assert background.swapped() >= 0.95 * 96 * MIB
        assert background.errors() == 0

        # Ctrl-C between two calls.
        guest.throttle_swap(4)
        slow = Mapped(guest, "slow", "48M")
        omr_process = guest.spawn(["omr", "hint", str(slow.pid), "--pageout", "--json"])
        guest.wait_for(lambda: slow.swapped() > 4 * MIB, 30, "something in swap", every=0.05)
        omr_process.kill(signal.SIGINT)
        ended = omr_process.wait()
        assert ended.code == PARTIAL and ended.json()["end"] == "stopped", ended.stderr
        assert ended.json()["hinted"] < 0.75 * slow.bytes
        guest.throttle_swap(None)
        assert slow.errors() == 0

        # memory.low protects a part of the group, or all of it. The class protects all of it. No
        # protection applies to bringing memory back.
        guest.write("/sys/fs/cgroup/bg/memory.low", "max")
        assert "memory.low = max" in omr(guest, "hint", background.pid, "--pageout", code=FAILED).stderr
        guest.write("/sys/fs/cgroup/bg/memory.low", str(background.current() - 16 * MIB))
        part = omr(guest, "hint", background.pid, "--pageout", "--json", code=PARTIAL).json()
        assert part["end"] == "floor" and part["resident_before"] - part["resident_after"] <= 17 * MIB
        foreground = Mapped(guest, "fg", "8M")
        for words in (
            ["hint", foreground.pid, "--cold"],
            ["hint", foreground.pid, "--pageout"],
            ["reclaim", foreground.pid, "max"],
        ):
            assert "is foreground (matched" in omr(guest, *words, code=FAILED).stderr
        assert foreground.swapped() == 0
        omr(guest, "hint", foreground.pid, "--willneed")
        omr(guest, "hint", foreground.pid, "--pageout", "--ignore-class")
        assert foreground.swapped() > 0.9 * foreground.bytes, "the control: it was the class"


def test_a_process_of_the_most_mappings_and_one_that_changes_its_mappings_are_hinted(release) -> None:
    with Guest(release, 640, DISK) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        # 65,530 is vm.max_map_count.
        cut = Mapped(guest, "bg", "260M", "--mappings", "66560")
        assert int(guest.shell(f"wc -l < /proc/{cut.pid}/maps")) > 65_000
        summary = omr(guest, "hint", cut.pid, "--cold", "--anon", "--json").json()
        assert (
            summary["end"] == "complete" and summary["hinted"] >= cut.bytes and not summary["processes"][0]["changed"]
        )
        summary = omr(guest, "reclaim", cut.pid, "8M", "--json").json()
        assert summary["end"] == "complete" and cut.swapped() >= 7 * MIB
        assert 7 * MIB <= summary["resident_before"] - summary["resident_after"] <= 9 * MIB
        assert cut.errors() == 0
        cut.process.kill(signal.SIGKILL)
        cut.process.wait()

        churn = Mapped(guest, "churn", "16M", "--churn")

        def has_changed() -> bool:
            summary = omr(guest, "hint", churn.pid, "--cold", "--json").json()
            assert summary["hinted"] >= churn.bytes
            [process] = summary["processes"]
            ranges = [told for told in process["ranges"] if told["why"] == "changed"]
            assert process["changed"] == bool(ranges) and process["retried"] == sum(
                told["retried"] > 0 for told in ranges
            )
            return process["changed"]

        guest.wait_for(has_changed, 60, "change of mappings that was noticed")
        omr(guest, "hint", churn.pid, "--pageout", "--json")
        assert churn.swapped() > 0.9 * churn.bytes
        assert churn.errors() == 0

        # A process that ends during the hint.
        guest.throttle_swap(4)
        ends = Mapped(guest, "ends", "48M")
        process = guest.spawn(["omr", "hint", str(ends.pid), "--pageout", "--json"])
        guest.wait_for(lambda: ends.swapped() > 4 * MIB, 30, "something in swap", every=0.05)
        ends.process.kill(signal.SIGKILL)
        ended = process.wait(timeout=90)
        assert ended.code == PARTIAL and ended.json()["end"] == "gone", f"{ended.stdout} {ended.stderr}"


def test_each_range_gets_its_hint_and_a_changed_layout_cancels_all_of_them(release) -> None:
    with Guest(release, 512, DISK) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        background = Mapped(guest, "bg", "48M")
        third = 16 * MIB
        edges = [background.start + number * third for number in range(4)]
        first, second, _ = (f"{begin:x}-{end:x}" for begin, end in itertools.pairwise(edges))
        ranges = ["--range", f"{first}=pageout", "--range", f"{second}=cold"]

        def resident(edge: int) -> int:
            """Bytes in memory of the third that begins at this edge."""
            rest = omr(guest, "hint", background.pid, "--cold", "--range", f"{edge:x}-{edge + third:x}", "--json")
            return rest.json()["resident_before"]

        dry = omr(guest, "hint", background.pid, *ranges, "--dry-run", "--json").json()
        [layout] = {report["layout"] for report in dry["processes"]}

        # Memory at other addresses is mapped and unmapped: the layout of the ranges is the same.
        hinted = omr(guest, "hint", background.pid, *ranges, "--layout", layout, "--all-ranges", "--json").json()
        assert hinted["end"] == "complete" and hinted["advice"] == "pageout+cold", hinted
        told = {report["advice"]: report for report in hinted["processes"]}
        assert told["pageout"]["hinted"] == third and third - 4 * MIB < told["cold"]["hinted"] <= third
        for report in told.values():
            done = sum(named["hinted"] for named in report["ranges"] if named["why"] == "done")
            assert done == report["hinted"], report
        # Freeing the swap cache may take a little of the other memory of the group.
        paged_out, cold, rest = map(resident, edges[:3])
        assert paged_out == 0 and min(cold, rest) > third - 4 * MIB, (paged_out, cold, rest)
        assert 0.95 * third <= background.swapped() < third + 4 * MIB

        # Another process has another layout, as has one that was started again: nothing is done.
        other = Mapped(guest, "other", "48M")
        shifted = [word.replace(first, f"{other.start:x}-{other.start + third:x}") for word in ranges[:2]]
        refused = omr(guest, "hint", other.pid, *shifted, "--layout", layout, "--json", code=PARTIAL).json()
        [report] = refused["processes"]
        assert report["cancelled"] and report["calls"] == 0 and refused["hinted"] == 0 and other.swapped() == 0
        shown = omr(guest, "hint", other.pid, *shifted, "--layout", layout, code=PARTIAL).stdout
        assert "Cancelled: the layout is another than in the dry run." in shown
        # The control: without the layout, or with its own, it is hinted.
        own = omr(guest, "hint", other.pid, *shifted, "--dry-run", "--json").json()["processes"][0]["layout"]
        assert omr(guest, "hint", other.pid, *shifted, "--layout", own, "--json").json()["hinted"] == third
        assert other.swapped() >= 0.95 * third

        # A process that maps and unmaps all the time: its whole layout does not stay for long.
        churn = Mapped(guest, "churn", "64M", "--churn")

        def is_cancelled() -> bool:
            dry = omr(guest, "hint", churn.pid, "--cold", "--dry-run", "--json").json()
            words = ["omr", "hint", churn.pid, "--cold", "--layout", dry["processes"][0]["layout"], "--json"]
            return guest.run([*map(str, words)], check=False).json()["processes"][0]["cancelled"]

        guest.wait_for(is_cancelled, 60, "change of the layout that cancels a hint")
        assert background.errors() == other.errors() == churn.errors() == 0


def test_another_process_that_gets_the_pid_is_not_hinted(release) -> None:
    with Guest(release, 512, Disk(512, mb_s=4)) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        ends = Mapped(guest, "bg", "64M")
        process = guest.spawn(["omr", "hint", str(ends.pid), "--pageout", "--anon", "--json"])
        guest.wait_for(lambda: ends.swapped() > 4 * MIB, 30, "something in swap", every=0.05)
        ends.process.kill(signal.SIGKILL)
        ends.process.wait()
        guest.spawn_as(ends.pid, ["omr-guest", "map", "24M"], "bg")
        ended = process.wait(timeout=120)
        assert ended.code == PARTIAL and ended.json()["end"] == "gone", f"{ended.stdout} {ended.stderr}"

        def swapped() -> int:
            return int(guest.shell(f"awk '/^VmSwap/ {{print $2}}' /proc/{ends.pid}/status"))

        assert swapped() == 0
        # The control: that process has the pid now, and a hint reaches it.
        guest.throttle_swap(None)
        guest.wait_for(lambda: "S (sleeping)" in guest.read(f"/proc/{ends.pid}/status"), 60, "rest")
        omr(guest, "hint", ends.pid, "--pageout", "--anon")
        assert swapped() > 20 * 1024


def test_memory_that_no_hint_moves_is_skipped_and_counted(release) -> None:
    with Guest(release, 512, Zram(256)) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        guest.write("/proc/sys/vm/nr_hugepages", "4")
        background = Mapped(guest, "bg", "48M", "--huge-pages", "8M", "--locked", "4M", "--shared", "2M", "--device")
        # Memory that is present. For the device: memory that is mapped.
        passed_over = {"huge_pages": 8 * MIB, "locked": 4 * MIB, "shared": 2 * MIB, "device_mapped": MIB // 16}

        dry = omr(guest, "hint", background.pid, "--pageout", "--dry-run", "--json").json()
        assert dry["skipped"] | passed_over == dry["skipped"]
        mapping = next(
            line for line in dry["processes"][0]["mappings"] if line["range"].startswith(f"{background.device:x}-")
        )
        # The page table's file has no data about memory of devices.
        assert mapping["skip"] == "device" and mapping["resident"] == mapping["hint"] == 0
        shown = omr(guest, "hint", background.pid, "--pageout", "--dry-run").stdout
        assert (
            "skipped: huge pages" in shown and "skipped: mapped from a device" in shown and "4.00 MiB locked" in shown
        )
        for hint in ("--cold", "--pageout", "--willneed"):
            alone = omr(guest, "hint", background.pid, hint, "--range", mapping["range"], "--json").json()
            assert alone["end"] == "complete" and (hint == "--willneed" or alone["hinted"] == 0)
            assert alone["skipped"]["device_mapped"] == (0 if hint == "--willneed" else MIB // 16)

        before = background.current()
        summary = omr(guest, "hint", background.pid, "--pageout", "--json").json()
        assert summary["end"] == "complete" and summary["skipped"] | passed_over == summary["skipped"], summary
        told = {(told["why"], told["range"]): told["bytes"] for told in summary["processes"][0]["ranges"]}
        assert told["device", mapping["range"]] == MIB // 16, told
        for why, key in (
            ("huge_pages", "huge_pages"),
            ("locked", "locked"),
            ("shared", "shared"),
            ("device", "device_mapped"),
        ):
            assert sum(size for (named, _), size in told.items() if named == why) == summary["skipped"][key], told
        # All other pages have left, and to zram at once. No page is left in the swap cache, so omr
        # need not ask memory.reclaim.
        assert background.swapped() > 0.95 * background.bytes and before - background.current() > 0.9 * background.bytes
        assert summary["freed"] > 0.9 * background.bytes and summary["processes"][0]["freed_behind"] == 0
        assert background.errors() == 0


def test_a_refused_hint_names_its_reason(release) -> None:
    with Guest(release, 384) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        background = Mapped(guest, "bg", "16M")
        pid = background.pid

        # Without swap memory can be marked cold, but cannot be paged out.
        assert omr(guest, "hint", pid, "--cold", "--json").json()["hinted"] >= background.bytes
        refused = omr(guest, "hint", pid, "--pageout", "--anon", code=UNSUPPORTED)
        assert "no swap" in refused.stderr and "without swap" in refused.stdout
        some = omr(guest, "hint", pid, "--pageout", "--json", code=PARTIAL).json()
        assert some["hinted"] > 0 and some["skipped"]["no_swap"] >= background.bytes, "files need no swap"
        nowhere = omr(guest, "hint", pid, "--cold", "--range", "fffffffffff00000-fffffffffffff000", code=PARTIAL)
        assert (
            " 0 B marked as cold" in nowhere.stdout
            and "not mapped: fffffffffff00000-fffffffffffff000" in nowhere.stdout
        )
        itself = guest.run(["sh", "-c", "exec omr hint $$ --cold"], check=False)
        assert itself.code == FAILED and "is omr itself" in itself.stderr

        kthread = guest.shell("pgrep kswapd0 || ps | awk '/kswapd0/ {print $1; exit}'").split()[0]
        zombie = guest.spawn(["sh", "-c", "sleep 0.01 & echo '{\"child\":'$!'}'; exec sleep 1000"])
        child = zombie.line_with("child")["child"]
        guest.wait_for(lambda: ") Z " in guest.read(f"/proc/{child}/stat"), 30, "zombie")
        for words, says in [
            ((kthread, "--cold"), "kernel thread"),
            ((child, "--cold"), "zombie"),
            ((1, "--cold"), "first process"),
            ((4_000_000, "--cold"), "no process 4000000"),
        ]:
            assert says in omr(guest, "hint", *words, code=FAILED).stderr
        omr(guest, "hint", 1, "--cold", "--ignore-class")

        # Rights. For an own process only CAP_SYS_NICE is missing; for another's process omr names
        # CAP_SYS_PTRACE first.
        nobody = ["omr-guest", "in", "bg", "--uid", "65534", "--"]
        own = guest.spawn([*nobody, "sleep", "1000"])
        guest.wait_for(lambda: "65534" in guest.read(f"/proc/{own.pid}/status"), 30, "process of nobody")
        for target, says in [(own.pid, "needs CAP_SYS_NICE, so"), (pid, "needs CAP_SYS_PTRACE, so")]:
            ended = guest.run([*nobody, "omr", "hint", str(target), "--cold"], check=False)
            assert ended.code == FAILED and says in ended.stderr, ended.stderr
        omr(guest, "hint", own.pid, "--cold")
        ended = guest.run(["unshare", "-r", "omr", "hint", str(pid), "--cold"], check=False)
        assert ended.code == FAILED and "first user namespace" in ended.stderr, ended.stderr
        # /proc shows a pid namespace other than that of this omr, and no process there has this
        # number.
        ended = guest.run(["unshare", "-p", "-f", "omr", "hint", str(pid), "--cold"], check=False)
        assert ended.code == PARTIAL and "another pid namespace" in ended.stderr, ended.stderr
        # Yama restricts attaching only.
        guest.write("/proc/sys/kernel/yama/ptrace_scope", "3")
        omr(guest, "hint", pid, "--cold")

        # Processes in namespaces of their own are like any other, under their pid in this
        # namespace.
        inner = guest.spawn(["unshare", "-U", "-p", "-f", "omr-guest", "map", "4M"], group="bg")
        inner.line_with("ready")
        tree = omr(guest, "hint", inner.pid, "--cold", "--tree", "--json").json()
        assert len(tree["processes"]) == 2 and tree["hinted"] >= 4 * MIB
        assert background.errors() == 0


def test_reclaim_in_a_group_without_swap_names_the_limit(release) -> None:
    with Guest(release, 384, DISK) as guest:
        guest.write(CONFIG, CLASSES, create=True)
        background = Mapped(guest, "bg", "16M")
        guest.write("/sys/fs/cgroup/bg/memory.swap.max", "0")
        refused = omr(guest, "reclaim", background.pid, "8M", "--json", code=PARTIAL)
        summary = json.loads(refused.stdout)
        assert summary["skipped"]["no_swap"] >= background.bytes and background.swapped() == 0
        assert "memory.swap.max of bg is reached (0 B)" in summary["processes"][0]["notes"][0]
        guest.write("/sys/fs/cgroup/bg/memory.swap.max", "max")
        omr(guest, "reclaim", background.pid, "8M")
        assert background.swapped() >= 7 * MIB, "the control: it was the limit"
