"""The focus, as GNOME's compositor writes it to the groups of applications. The application with
the focus loses no memory.
"""

from test_process import LONG_ENOUGH, Application, Hinting

from omrlab.guest import KERNEL, Guest, Zram

RULES = """
[[process]]
group = "apps/**"
class = "background"
"""

FOCUS = "user.xdg.inactive-since"


def set_focus(guest: Guest, application: Application, value: str) -> None:
    guest.run(["omr-guest", "attribute", f"/sys/fs/cgroup/{application.group}", FOCUS, value])


def since_now(guest: Guest) -> str:
    """The value of the attribute for an application that loses the focus now."""
    return str(guest.monotonic_ns() // 1000)


def is_foreground(guest: Guest, application: Application, why: str) -> bool:
    """Asks the daemon for the class. omr ps would read the attributes itself."""
    explained = guest.run(["omr", "explain", application.pid]).stdout
    return "foreground: " in explained and why in explained


def test_the_application_with_the_focus_keeps_its_memory() -> None:
    with Guest(KERNEL, 512, Zram(512)) as guest:
        used, left = Application(guest, "apps/used", "48M"), Application(guest, "apps/left", "48M")
        # The applications of a session belong to its user, as under systemd.
        guest.shell("chown 1000 /sys/fs/cgroup/apps/*")
        set_focus(guest, used, "-1")
        set_focus(guest, left, since_now(guest))
        with Hinting(guest, RULES) as daemon:
            # The control: the same rule matches both applications.
            daemon.wait_for_hint(left)
            guest.shell(f"sleep {LONG_ENOUGH}")
            assert left.swapped() > 0.95 * left.bytes
            assert used.swapped() == 0 and not daemon.hints(used, "cold")
            explained = guest.run(["omr", "explain", used.pid]).stdout
            assert "it has the focus" in explained, explained
            assert "without the focus for" in guest.run(["omr", "explain", left.pid]).stdout

            # The user switches to the other application. The daemon reads all attributes every 30
            # s, but notices this change at once.
            set_focus(guest, used, since_now(guest))
            set_focus(guest, left, "-1")
            guest.wait_for(lambda: is_foreground(guest, left, "it has the focus"), 10, "the focus")
            left.verify()
            daemon.wait_for_hint(used)
            assert used.swapped() > 0.95 * used.bytes
            guest.shell(f"sleep {LONG_ENOUGH}")
            assert left.swapped() < 0.1 * left.bytes and len(daemon.hints(left)) == 1

            # An unreadable attribute is no permission to reclaim.
            set_focus(guest, used, "yesterday")
            guest.wait_for(lambda: is_foreground(guest, used, "it may have the focus"), 10, "the attribute")
        for application in (used, left):
            application.verify()
