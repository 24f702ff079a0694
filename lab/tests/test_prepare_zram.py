"""Hibernation with zram that is filled before the disk. Memory leaves for the disk, and afterwards
zram is on as before.
"""

import json
import signal
import time

from sleeping import fill, verify

from omrlab.daemon import CLASSES, CONFIG
from omrlab.guest import KERNEL, MIB, Disk, Guest, Process

FAILED, PARTIAL = 1, 4
IMAGE_SIZE = "/sys/power/image_size"
IMAGE_SIZE_NOTE = "/var/lib/omr-root/image_size.json"

ZRAM, DISK = "/dev/zram0", "/dev/vda"
PRIORITY = 100
NOTE = "/var/lib/omr-root/zram.json"

PREPARE = ["omr", "prepare", "hibernate", "--target", "min", "--json"]


def guest_with(mb_s: float = 60) -> Guest:
    return Guest(KERNEL, 512, Disk(1024, mb_s=mb_s), append="omr.zram=320M")


def zram_first(guest: Guest) -> None:
    """Gives zram a higher priority than the disk.

    The guest's init has switched zram on after the disk, and busybox's swapon knows no priorities.
    So omr restores zram from a note with the priority.
    """
    boot = guest.read("/proc/sys/kernel/random/boot_id").strip()
    guest.shell(f"swapoff {ZRAM} || true; mkdir -p /var/lib/omr-root")
    note = {"boot": boot, "pid": 0, "devices": [{"path": ZRAM, "priority": PRIORITY}]}
    guest.write(NOTE, json.dumps(note), create=True)
    guest.run(["omr", "prepare", "restore"])
    assert_as_before(guest)


def swaps(guest: Guest) -> dict[str, tuple[int, int]]:
    """The bytes in use and the priority of each swap device."""
    lines = [line.split() for line in guest.read("/proc/swaps").splitlines()[1:]]
    return {line[0]: (int(line[3]) * 1024, int(line[4])) for line in lines}


def held(guest: Guest) -> int:
    """Bytes before compression, by zram's own count, without the header of the swap space."""
    return int(guest.read("/sys/block/zram0/mm_stat").split()[0])


def pool(guest: Guest) -> int:
    return int(guest.read("/sys/block/zram0/mm_stat").split()[2])


def assert_as_before(guest: Guest) -> None:
    assert swaps(guest)[ZRAM][1] == PRIORITY
    assert guest.shell(f"ls {NOTE} 2> /dev/null || true") == ""


def fill_zram(guest: Guest, group: str, amount: str) -> None:
    guest.run(["omr-guest", "by-hand", group, amount], timeout=120)


def test_reclaimed_memory_and_the_contents_of_zram_leave_for_the_disk(load) -> None:
    with guest_with() as guest:
        zram_first(guest)
        background = load(guest, "bg", "160M", "--compressible", "70")
        fill_zram(guest, "bg", "96M")
        assert held(guest) > 80 * MIB and swaps(guest)[DISK][0] == 0
        # The control: zram takes all the memory, and its pool is in the image.
        kept = guest.run([*PREPARE, "--keep-zram"], timeout=240).json()
        assert kept["zram_off"] is None and "--keep-zram" in "".join(kept["notes"]), kept
        assert held(guest) > 128 * MIB and swaps(guest)[DISK][0] == 0
        was = pool(guest)
        # The forecast says that the contents of zram can leave. A dry run changes nothing.
        planned = guest.run([*PREPARE, "--dry-run"]).json()
        assert planned["zram_off"] > 128 * MIB and planned["after"]["could_leave"]["zram"] > 0.8 * was, planned
        assert held(guest) > 128 * MIB and swaps(guest)[DISK][0] == 0

        done = guest.run(PREPARE, timeout=240).json()
        assert done["end"] == "reached" and done["zram_off"] > 128 * MIB, done
        assert_as_before(guest)
        assert swaps(guest)[DISK][0] > 128 * MIB
        assert held(guest) < 2 * MIB and pool(guest) < 4 * MIB
        assert done["after"]["image"] < kept["after"]["image"] - 0.7 * was, (was, kept, done)
        # zram fills and empties again as usual.
        other = load(guest, "other", "32M", "--compressible", "70")
        fill_zram(guest, "other", "24M")
        assert held(guest) > 16 * MIB
        other.process.kill(signal.SIGKILL)
        guest.wait_for(lambda: held(guest) < 4 * MIB, 60, "empty zram")
        guest.hibernate_and_resume()
        assert_as_before(guest)
        assert background.errors() == 0


def test_zram_stays_on_where_switching_it_off_gains_nothing(load) -> None:
    with guest_with() as guest:
        guest.write(CONFIG, CLASSES, create=True)
        zram_first(guest)

        def kept() -> str:
            """The notes of a preparation that left zram on."""
            done = guest.run(PREPARE, timeout=240, check=False).json()
            assert done["zram_off"] is None, done
            assert_as_before(guest)
            return "".join(done["notes"])

        foreground = load(guest, "fg", "96M", "--compressible", "70")
        fill_zram(guest, "fg", "80M")
        assert "not reclaimed" in kept()
        foreground.process.kill(signal.SIGKILL)
        guest.wait_for(lambda: held(guest) < 4 * MIB, 60, "empty zram")

        background = load(guest, "bg", "160M", "--compressible", "70")
        fill_zram(guest, "bg", "140M")
        guest.write("/sys/fs/cgroup/bg/memory.high", f"{96 * MIB}")
        assert "bg has more in swap" in kept()
        guest.write("/sys/fs/cgroup/bg/memory.high", "max")

        hog = load(guest, "fg", "50%")
        was = held(guest)
        assert "must fit in memory" in kept()
        assert held(guest) >= was
        # The control: with enough memory for its contents, zram is switched off.
        hog.process.kill(signal.SIGKILL)
        guest.wait_for(lambda: guest.group_value("fg") < MIB, 60, "end of the hog")
        done = guest.run(PREPARE, timeout=240).json()
        assert done["zram_off"] > 120 * MIB, done
        assert_as_before(guest)
        assert held(guest) < 2 * MIB
        assert background.errors() == 0


def begin(guest: Guest) -> Process:
    """A preparation that has switched zram off; the disk is slow."""
    omr = guest.spawn(PREPARE)
    guest.wait_for(lambda: ZRAM not in swaps(guest), 60, "zram off", every=0.05)
    return omr


def test_zram_is_on_again_after_every_end_of_a_preparation(load) -> None:
    with guest_with(mb_s=6) as guest:
        zram_first(guest)
        background = load(guest, "bg", "160M")
        fill_zram(guest, "bg", "96M")

        omr = begin(guest)
        omr.kill(signal.SIGINT)
        ended = omr.wait()
        assert ended.code == PARTIAL and ended.json()["zram_off"] > 80 * MIB, ended
        assert_as_before(guest)

        # omr is killed, and its helper process switches zram on.
        fill_zram(guest, "bg", "64M")
        begin(guest).kill(signal.SIGKILL)
        guest.wait_for(lambda: ZRAM in swaps(guest), 60, "zram on")
        guest.wait_for(lambda: guest.shell(f"ls {NOTE} 2> /dev/null || true") == "", 60, "end of the note")
        assert_as_before(guest)

        # The control: the helper process is killed, too. zram stays off until omr is started again.
        fill_zram(guest, "bg", "32M")
        begin(guest)
        guest.shell("kill -9 $(pidof omr)")
        guest.shell("sleep 3")
        assert ZRAM not in swaps(guest)
        assert ZRAM in guest.run(["omr", "prepare", "restore"]).stdout
        assert_as_before(guest)
        assert guest.run(["omr", "prepare", "restore"]).stdout == ""
        assert background.errors() == 0


def objects(text: str) -> list[dict]:
    """The JSON objects of a text, one after another."""
    found = []
    while text := text.lstrip():
        one, end = json.JSONDecoder().raw_decode(text)
        found.append(one)
        text = text[end:]
    return found


def test_a_machine_whose_image_the_kernel_refuses_has_everything_back() -> None:
    with guest_with() as guest:
        guest.write(CONFIG, CLASSES, create=True)
        zram_first(guest)
        guest.write(IMAGE_SIZE, "0")
        guest.group("fg")
        # More than half of the memory is locked, and the kernel has no room for a copy of it.
        locked = guest.spawn(["omr-guest", "map", "4M", "--locked", "280M"], group="fg")
        locked.line_with("ready", timeout=180)
        # No rule names this group, so it is reclaimed and warmed.
        background = fill(guest, "72M", "load")
        fill_zram(guest, "load", "24M")
        before = guest.group_value("load")

        def refused(*options: str) -> list[dict]:
            ended = guest.run(["omr", "hibernate", "--json", *options], timeout=400, check=False)
            assert ended.code == FAILED and "no room in memory for the copy" in ended.stderr, ended
            assert "Image allocation" in guest.shell("dmesg | tail -40"), "it was the kernel that refused"
            assert guest.read(IMAGE_SIZE) == "0\n" and guest.shell(f"ls {IMAGE_SIZE_NOTE} 2> /dev/null || true") == ""
            assert_as_before(guest)
            return objects(ended.stdout)

        [_, prepared, warmed] = refused()
        # It was off during the preparation.
        assert (prepared["zram_off"] or 0) > 16 * MIB, prepared
        assert guest.group_value("load") > 0.9 * before, warmed
        # The control: without warming the memory is in swap, so the preparation has taken it.
        refused("--no-warm")
        assert guest.group_value("load") < 0.4 * before
        verify(guest, background)

        # The control of the refusal: with room for the copy the machine hibernates.
        locked.kill(signal.SIGKILL)
        guest.wait_for(lambda: guest.group_value("fg") < MIB, 60, "end of the locked memory")
        guest.hibernate_and_resume(argv=("omr", "hibernate"))
        assert_as_before(guest)
        assert guest.read(IMAGE_SIZE) == "0\n"
        verify(guest, background)


def test_switching_zram_off_can_be_interrupted(load) -> None:
    """The kernel checks for signals between two processes."""
    with guest_with() as guest:
        zram_first(guest)
        guest.group("bg")
        loads = [load(guest, "bg", "6M", "--seed", str(seed)) for seed in range(20)]

        def fill() -> int:
            fill_zram(guest, "bg", "200M")
            assert held(guest) > 96 * MIB
            return held(guest)

        fill()
        began = time.monotonic()
        guest.shell(f"swapoff {ZRAM}")
        took = time.monotonic() - began
        zram_first(guest)
        said = []
        for share in (2, 4, 8, 16):
            fill()
            done = guest.run([*PREPARE, "--deadline", f"{took * 1000 / share:.0f}ms"], check=False).json()
            assert_as_before(guest)
            said.append((done["zram_off"], done["notes"]))
            if "half of the time" in "".join(done["notes"]):
                break
        assert done["zram_off"] is None and "half of the time" in "".join(done["notes"]), said

        # Ctrl-C interrupts it, too, as soon as swapoff has begun.
        was = fill()
        used = swaps(guest)[ZRAM][0] // 1024
        script = f"""
            {" ".join(PREPARE)} > /tmp/out &
            while [ "$(awk '$1 == "{ZRAM}" {{ print $4 }}' /proc/swaps)" = {used} ]; do :; done
            kill -INT $!
            wait $!
            echo $?
        """
        assert guest.shell(script, timeout=120).split() == [str(PARTIAL)]
        print(was, held(guest), guest.read("/tmp/out"))
        assert_as_before(guest)
        assert sum(load.errors() for load in loads) == 0
