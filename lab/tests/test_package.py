"""The installed package in a Debian guest, from installation to purge; the service in its sandbox;
`make install`.
"""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DPKG_TIMEOUT, NEWER, booted, install, with_packages

from omrlab.agent import AgentError
from omrlab.architecture import AMD64
from omrlab.binaries import cargo
from omrlab.debian import LAB, DebianGuest
from omrlab.guest import MGLRU_SWITCH, MIB
from omrlab.paths import REPOSITORY

PACKAGING = REPOSITORY / "packaging"

QUICK = """
goal = "free"
[idle]
for = "2s"
again = "1s"
window = "2s"

[sweep]
after_boot = "0s"
"""

USER_CONFIG = "/etc/omr/conf.d/mine.toml"

# dpkg, the journal, man's index and the like write these files for any package.
OTHERS = re.compile(
    r"/(var/lib/dpkg/|var/log/|var/cache/|var/lib/systemd/|var/tmp/|tmp/|etc/(group|gshadow|passwd|shadow)-$|etc/\.pwd\.lock$)"
)


@pytest.fixture(scope="module")
def guest(installed: Path) -> Iterator[DebianGuest]:
    """A guest with the package. Each test leaves the service running."""
    with booted(root=installed) as guest:
        guest.shell(
            "useradd --create-home member && usermod --append --groups omr member && useradd --create-home other"
        )
        yield guest


def configure(guest: DebianGuest, text: str) -> None:
    """Restarts the service with this configuration."""
    guest.shell("mkdir -p /etc/omr/conf.d")
    guest.write(USER_CONFIG, text, create=True)
    guest.shell("systemctl reset-failed omr; systemctl restart omr")


def sweeps(guest: DebianGuest, group: str) -> list[dict]:
    lines = guest.read("/var/lib/omr/ledger.jsonl").splitlines()
    entries = [json.loads(line) for line in lines]
    return [entry for entry in entries if entry["kind"] == "sweep" and entry["group"].strip("/") == group.strip("/")]


# The service


def test_the_service_runs_and_starts_at_every_boot(guest: DebianGuest) -> None:
    assert guest.active("omr") == "active"
    assert guest.run(["systemctl", "is-enabled", "omr"]).stdout.strip() == "enabled"
    journal = guest.journal("omr")
    assert re.search(r"omr \d+\.\d+\.\d+ started", journal)
    assert "reclaims by memory.reclaim" in journal
    # The process is omr-daemon, and the journal has one name for both programs.
    process = guest.property("omr", "MainPID")
    assert guest.shell(f"readlink /proc/{process}/exe").strip() == "/usr/libexec/omr/omr-daemon"
    assert guest.property("omr", "SyslogIdentifier") == "omr"
    identified = ["journalctl", "--boot", "--quiet", "--identifier=omr", "--output=cat", "--no-pager"]
    assert " started" in guest.run(identified).stdout
    # The log has no message of a sandbox that is too narrow.
    assert "mlockall" not in journal and "no pressure trigger" not in journal and "only root can ask" not in journal


def test_by_default_the_goal_is_auto_and_a_service_tells_who_is_there(guest: DebianGuest) -> None:
    for unit, state in (("omr-presence", "enabled"), ("omr-follow", "disabled"), ("omr-watch", "disabled")):
        assert guest.run(["systemctl", "is-enabled", unit], check=False).stdout.strip() == state

    def goal() -> dict:
        goal: dict = guest.run(["omr", "status", "--json"]).json()["goal"]
        return goal

    assert goal()["goal"] == "auto"
    # Nobody has logged in since boot, and the service says so.
    guest.wait_for(lambda: goal()["presence"]["is"] == "nobody", 60, "word of omr-presence")
    assert not guest.journal("omr-presence").count("error")
    guest.run(["systemctl", "stop", "omr-presence"])
    guest.wait_for(lambda: goal()["presence"]["is"] == "unknown", 60, "end of its word")
    guest.run(["systemctl", "start", "omr-presence"], timeout=60)


def test_the_timer_of_metrics_is_not_enabled_and_its_service_writes_the_file(guest: DebianGuest) -> None:
    directory = "/var/lib/prometheus/node-exporter"
    assert guest.run(["systemctl", "is-enabled", "omr-metrics.timer"], check=False).stdout.strip() == "disabled"
    assert guest.active("omr-metrics.timer") == "inactive"
    # The control: without node_exporter's directory it does nothing.
    guest.run(["systemctl", "start", "omr-metrics.service"], timeout=60)
    assert guest.run(["ls", directory], check=False).code != 0
    # As the package prometheus-node-exporter does.
    guest.shell(f"useradd --system prometheus; install -d -o prometheus -g prometheus {directory}")
    guest.run(["systemctl", "start", "omr-metrics.service"], timeout=60)
    text = guest.read(f"{directory}/omr.prom")
    assert "\nomr_up 1\n" in text and "\nomr_history_readable 1\n" in text, text
    assert guest.shell(f"stat -c '%a %U' {directory}/omr.prom").strip() == "644 prometheus"
    assert guest.shell(f"ls {directory}").split() == ["omr.prom"]
    guest.shell("rm -r /var/lib/prometheus; userdel prometheus")
    for file in ("grafana/omr.json", "prometheus/omr-alerts.yml"):
        assert guest.read(f"/usr/share/omr/{file}") == (PACKAGING / file).read_text()


def test_the_socket_serves_members_and_nothing_runs_until_somebody_comes(guest: DebianGuest) -> None:
    assert guest.run(["systemctl", "is-enabled", "omr-web.socket"]).stdout.strip() == "enabled"
    assert guest.active("omr-web.socket") == "active"
    assert guest.active("omr-web.service") == "inactive"
    assert guest.shell("stat -c '%a %U %G' /run/omr-web/web.sock").strip() == "660 root omr"
    # Perl is on every Debian.
    script = (
        '$s = IO::Socket::UNIX->new("/run/omr-web/web.sock") or die $!;'
        ' print $s "GET /api/groups HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n"; $s->flush; print while <$s>;'
    )

    def ask(user: str) -> str:
        perl = ["runuser", "-u", user, "--", "perl", "-MIO::Socket::UNIX", "-e", script]
        return guest.run(perl, check=False).stdout

    answer = ask("member")
    assert " 200 OK" in answer and '"missing":null' in answer, answer
    assert " 200 OK" not in ask("other")
    assert guest.active("omr-web.service") == "active"
    # It reaches no network, and it is no root.
    process = guest.property("omr-web", "MainPID")
    assert guest.shell(f"stat -c %U /proc/{process}").strip() == "omr-web"
    assert guest.shell(f"readlink /proc/{process}/ns/net") != guest.shell("readlink /proc/1/ns/net")
    # The history goes on while the daemon restarts, and the socket stays.
    guest.run(["systemctl", "restart", "omr"], timeout=60)
    assert guest.active("omr-web.socket") == "active" and " 200 OK" in ask("member")
    guest.run(["systemctl", "stop", "omr-web.service"])


def test_the_sandbox_has_the_intended_limits(guest: DebianGuest) -> None:
    status = dict(
        line.split(":\t", 1)
        for line in guest.read(f"/proc/{guest.property('omr', 'MainPID')}/status").splitlines()
        if ":\t" in line
    )
    # It is a user, and no child of its can become another.
    own = guest.shell("id -u omr").strip()
    assert own != "0" and status["Uid"].split() == [own] * 4
    CAP_DAC_OVERRIDE, CAP_SYS_RESOURCE = 1, 24
    only = f"{1 << CAP_DAC_OVERRIDE | 1 << CAP_SYS_RESOURCE:016x}"
    assert [status[name] for name in ("CapEff", "CapPrm", "CapBnd")] == [only] * 3
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert int(status["VmLck"].split()[0]) > 0
    # The service needs few MiB, and all of them are counted.
    assert int(status["VmRSS"].split()[0]) < 8 << 10
    for unit, most in (
        ("omr.service", 1.2),
        ("omr-warm.service", 1.7),
        ("omr-prepare-hibernate.service", 2.3),
        ("omr-give-back@1.service", 1.4),
        ("omr-compact@1.service", 1.0),
        ("omr-web.service", 0.6),
    ):
        overall = guest.shell(f"systemd-analyze security --no-pager {unit}").splitlines()[-1]
        print(unit, overall)
        assert float(re.search(r": ([\d.]+) ", overall)[1]) <= most, overall


def test_the_daemon_measures_ages_in_its_sandbox_and_a_member_reads_them(guest: DebianGuest) -> None:
    guest.write(MGLRU_SWITCH, "y")
    configure(guest, QUICK + '\n[history]\nevery = "10s"\nbudget = "10%"\n')
    asked = ["runuser", "-u", "member", "--", "omr", "history", "--groups", "/", "--json"]
    sample = guest.wait_for(lambda: guest.run(asked).stdout.splitlines(), 60, "sample")[-1]
    assert json.loads(sample)["memory"] > 0, guest.journal("omr")


def as_daemon(guest: DebianGuest, *, inside: bool = True) -> list[str]:
    """Runs a command of a shell with the daemon's user and rights, in its sandbox or outside."""
    rights = "+dac_override,+sys_resource"
    enter = ["nsenter", "--mount", "--target", guest.property("omr", "MainPID")] if inside else []
    become = ["--reuid=omr", "--regid=omr", "--clear-groups", f"--inh-caps={rights}", f"--ambient-caps={rights}"]
    return [*enter, "setpriv", *become, "sh", "-c"]


@pytest.mark.parametrize(
    "path", ["/var/lib/omr-root/zram.json", "/run/omr-root/conf.d/mine.toml", "/etc/omr/mine", "/usr/lib/omr/mine"]
)
def test_the_daemon_cannot_write_what_root_relies_on(guest: DebianGuest, path: str) -> None:
    directory = Path(path).parent
    guest.shell(f"mkdir -p {directory}")
    write = f"echo > {path}"
    refused = guest.run([*as_daemon(guest), write], check=False)
    assert refused.code != 0 and "Read-only file system" in refused.stderr, refused
    # The controls: its own directory, and the same rights outside of the sandbox.
    guest.run([*as_daemon(guest), "echo > /var/lib/omr/mine && echo > /run/omr/mine"])
    guest.run([*as_daemon(guest, inside=False), write])
    guest.shell(f"rm {path} /var/lib/omr/mine /run/omr/mine")
    owners = guest.shell(f"stat -c %U {directory} /var/lib/omr /run/omr /run/omr/omr.sock").split()
    assert owners == ["root", "omr", "omr", "omr"]
    assert guest.shell("find /var/lib/omr -not -user omr") == ""


def test_root_follows_no_link_in_the_daemons_directory(guest: DebianGuest) -> None:
    """The journal of limits, from which each command of root removes what is out of date."""
    as_omr = ["setpriv", "--reuid=omr", "--regid=omr", "--clear-groups", "sh", "-ec"]
    names = ("1.json", "2.json.4194304.tmp")
    other_boot = {"boot": "another", "pid": 1, "start": 1, "path": {"Unix": [97]}, "id": 1, "file": "memory.high"}
    note = json.dumps({**other_boot, "value": "Max"})
    limits, victim = "/var/lib/omr/limits", "/root/victim"

    def restored() -> set[str]:
        """What is left in the directory after root has read the journal."""
        for name in names:
            guest.write(f"{victim}/{name}", note, create=True)
        guest.run(["/usr/libexec/omr/omr-daemon", "--restore-limits"], check=False)
        return set(guest.shell(f"ls {victim}").split())

    guest.shell(f"mkdir {victim}")
    guest.run([*as_omr, f"mv {limits} /var/lib/omr/aside; ln -s {victim} {limits}"])
    assert restored() == set(names)
    # The control: a directory in its place is emptied.
    guest.shell(f"rm {limits}; mv {victim} {limits}; ln -s {limits} {victim}")
    assert restored() == set()
    guest.shell(f"rm -r {victim} {limits}; mv /var/lib/omr/aside {limits}")

    # A link instead of a file: nothing of the other file is read.
    guest.shell("mkdir /root/private")
    line = {"kind": "refaults", "time": 1, "sweep": 1, "group": "/planted.service", "bytes": 4096, "after": 300}
    guest.write("/root/private/lines", json.dumps(line) + "\n", create=True)
    oldest = "/var/lib/omr/ledger.jsonl.3"
    guest.run([*as_omr, f"ln -s /root/private/lines {oldest}"])
    asked = guest.run(["omr", "history"], check=False)
    assert asked.code != 0 and "planted" not in asked.stdout and oldest in asked.stderr, asked
    guest.shell(f"rm {oldest}; cp /root/private/lines {oldest}")
    assert "/planted.service" in guest.run(["omr", "history"]).stdout, "the control"
    guest.shell(f"rm -r {oldest} /root/private")


def test_the_daemon_has_memory_compacted_by_a_service_of_roots_and_writes_no_setting(guest: DebianGuest) -> None:
    """Before a migration to another host."""
    ask = "use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new('/run/omr-root/compact.sock') or die $!; print <$s>"

    for setting in ("compact_memory", "drop_caches"):
        refused = guest.run([*as_daemon(guest), f"echo 1 > /proc/sys/vm/{setting}"], check=False)
        assert refused.code != 0, setting
    asked = guest.run(["setpriv", "--reuid=omr", "--regid=omr", "--clear-groups", "perl", "-e", ask])
    assert asked.stdout == "done\n", guest.journal("omr-compact@*")
    refused = guest.run(["runuser", "-u", "member", "--", "perl", "-e", ask], check=False)
    assert refused.code != 0 and "Permission denied" in refused.stderr


@pytest.mark.parametrize("user, allowed", [("root", True), ("member", True), ("other", False)])
def test_members_may_ask_the_daemon_and_only_root_may_pause_it(guest: DebianGuest, user: str, allowed: bool) -> None:
    as_user = ["runuser", "-u", user, "--", "omr"]
    for command in ("status", "history"):
        asked = guest.run([*as_user, command], check=False)
        assert asked.code == (0 if allowed else 1), asked
        if not allowed:
            assert "permission denied; only root and members of the group omr may" in asked.stderr
    paused = guest.run([*as_user, "pause", "--for", "1s"], check=False)
    assert paused.code == (0 if user == "root" else 1)
    if user == "member":
        assert "only root may do that" in paused.stderr


def test_doctor_finds_a_backend(guest: DebianGuest) -> None:
    found = guest.run(["omr", "doctor"])
    assert "omr can reclaim on this machine" in found.stdout


def test_a_wrong_configuration_changes_nothing_and_is_reported(guest: DebianGuest) -> None:
    configure(guest, QUICK)
    process = guest.property("omr", "MainPID")
    guest.write("/etc/omr/conf.d/wrong.toml", "[idle]\nfor = 30\n", create=True)
    # The reload fails, and its message has the reason.
    assert guest.run(["systemctl", "reload", "omr"], check=False).code == 1
    mistake = '/etc/omr/conf.d/wrong.toml:2: idle.for = 30: a duration needs a unit, e.g. "30s"'
    guest.wait_for(lambda: mistake in guest.journal("omr"), 20, "mistake in the journal")
    # A daemon that gets the signal nevertheless keeps its configuration.
    guest.shell("systemctl kill --kill-who=main --signal=HUP omr")
    guest.wait_for(lambda: "the configuration stays as it was" in guest.journal("omr"), 20, "message in the journal")
    assert (guest.active("omr"), guest.property("omr", "MainPID")) == ("active", process)
    guest.shell("rm /etc/omr/conf.d/wrong.toml; systemctl reload omr")
    guest.wait_for(lambda: "configuration read again" in guest.journal("omr"), 20, "message in the journal")
    assert guest.property("omr", "MainPID") == process
    # A start with the wrong configuration fails at once, and is not tried again.
    guest.write("/etc/omr/conf.d/wrong.toml", "[idle]\nfor = 30\n", create=True)
    assert guest.run(["systemctl", "restart", "omr"], check=False).code == 1
    guest.shell("sleep 7")
    assert guest.active("omr") == "failed"
    assert (guest.property("omr", "ExecMainStatus"), guest.property("omr", "NRestarts")) == ("2", "0")
    guest.shell("rm /etc/omr/conf.d/wrong.toml; systemctl restart omr")


def test_systemd_restarts_a_daemon_that_hangs(guest: DebianGuest) -> None:
    guest.shell("mkdir -p /run/systemd/system/omr.service.d")
    guest.write("/run/systemd/system/omr.service.d/watchdog.conf", "[Service]\nWatchdogSec=5s\n", create=True)
    guest.shell("systemctl daemon-reload; systemctl reset-failed omr; systemctl restart omr")
    process = guest.property("omr", "MainPID")
    guest.shell("sleep 12")
    assert guest.property("omr", "MainPID") == process
    guest.shell("systemctl kill --kill-who=main --signal=STOP omr")
    guest.wait_for(lambda: guest.property("omr", "NRestarts") == "1" and guest.active("omr") == "active", 60, "restart")
    assert guest.property("omr", "MainPID") != process
    assert "Watchdog timeout" in guest.journal("omr")
    assert guest.run(["omr", "status"]).code == 0
    guest.shell("rm -r /run/systemd/system/omr.service.d; systemctl daemon-reload; systemctl restart omr")


# Other tests check when a machine is idle. An emulated machine on a busy host always has some load.
# Here such load would only delay the sweeps of two groups by minutes, so these settings ignore it.
UNDISTURBED = QUICK.replace(
    "[sweep]", 'free = "5%"\nforeground = "1000%"\npressure_cpu = "100%"\n\n[stop]\ncpu = "10000%"\n\n[sweep]'
)

HOARD = "/system.slice/hoard.service"
# A user's group within a service that systemd has delegated: its files belong to the user.
OWNED = """
cd /sys/fs/cgroup/system.slice/owned.service && mkdir app && echo 0 > app/cgroup.procs &&
echo +memory > cgroup.subtree_control && exec omr-guest fill 64M
"""


def test_the_service_reclaims_idle_memory_and_in_observe_mode_none(guest: DebianGuest) -> None:
    def resident(group: str) -> int:
        # The file comes with the controller, a moment after the group.
        return int(guest.shell(f"cat /sys/fs/cgroup{group}/memory.current || echo 0"))

    def swapped(group: str) -> int:
        return guest.group_value(group.strip("/"), "memory.swap.current")

    # The control: the same decisions, written to the ledger only. It runs before there is any
    # memory, because a daemon that acts may be faster than the next step of this test.
    configure(guest, 'mode = "observe"\n' + UNDISTURBED)
    path = f"--setenv=PATH={LAB}:/usr/bin:/bin"
    guest.run(["systemd-run", "--quiet", "--unit=hoard", path, "omr-guest", "fill", "128M"])
    guest.run(
        ["systemd-run", "--quiet", "--unit=owned", path, "--uid=other", "--property=Delegate=yes", "sh", "-c", OWNED]
    )
    owned = "/system.slice/owned.service/app"
    guest.wait_for(lambda: resident(HOARD) > 128 * MIB, 60, "memory in the service")
    guest.wait_for(lambda: resident(owned) > 64 * MIB, 60, f"memory in the user's group: {guest.journal('owned')}")
    assert guest.shell(f"stat -c '%U %a' /sys/fs/cgroup{owned}/memory.reclaim").split() == ["other", "200"]

    observed = guest.wait_for(lambda: sweeps(guest, HOARD), 120, "ledger entry", every=3)
    assert all(entry["observed"] for entry in observed)
    assert swapped(HOARD) == swapped(owned) == 0

    configure(guest, UNDISTURBED)
    guest.wait_for(lambda: swapped(HOARD) > 96 * MIB, 180, "smaller service", every=3)
    guest.wait_for(lambda: swapped(owned) > 48 * MIB, 180, "smaller group of the user", every=3)
    done = guest.wait_for(
        lambda: [entry for entry in sweeps(guest, HOARD) if "observed" not in entry], 60, "ledger entry", every=2
    )
    assert done[0]["freed_anon"] > 0 and "error" not in done[0]
    # The journal has one line for each sweep.
    assert re.search(r"system.slice/hoard.service: .* freed", guest.journal("omr"))
    guest.shell("systemctl stop hoard owned")


def test_manual_pages_and_completions_are_installed(guest: DebianGuest) -> None:
    pages = guest.shell("dpkg -L omr | grep '/man/.*gz$'").split()
    assert len(pages) >= 13
    for page in pages:
        name, section = Path(page).name.removesuffix(".gz").rsplit(".", 1)
        shown = guest.run(["man", "--warnings", section, name])
        assert name in shown.stdout and "SEE ALSO" in shown.stdout
        assert shown.stderr == ""
    assert "memory" in guest.run(["man", "--whatis", "omr"]).stdout
    complete = ". /usr/share/bash-completion/completions/omr; COMP_WORDS=(omr sta) COMP_CWORD=1; "
    complete += '_omr omr sta omr; echo "${COMPREPLY[@]}"'
    assert guest.run(["bash", "-c", complete]).stdout.strip() == "status"
    for path in ("zsh/vendor-completions/_omr", "fish/vendor_completions.d/omr.fish"):
        assert "reclaim" in guest.read(f"/usr/share/{path}")


# Background applications, and users at the machine


HINTS = """
[sweep]
after_boot = "0s"

[hints]
cold_after = "2s"
pageout_after = "4s"
available = "100%"

[[process]]
group = "app"
class = "background"
"""

LONG_ENOUGH = 8
"""Seconds in which a process that a rule fits is paged out for sure."""


def test_process_rules_need_rights_that_doctor_names_and_a_drop_in_grants(guest: DebianGuest) -> None:
    configure(guest, '[idle]\nfor = "1d"\n' + HINTS)
    guest.group("app")
    # A user's process.
    fill = guest.spawn(["setpriv", "--reuid=member", "--clear-groups", "omr-guest", "fill", "48M"], group="app")
    size = fill.line_with("ready", timeout=120)["bytes"]

    def row(name: str) -> dict:
        checks = guest.run(["omr", "doctor", "--json"]).json()["checks"]
        return next(check for check in checks if check["name"] == name)

    found = row("process rules")["found"]
    assert found == "1 rule, the daemon lacks CAP_SYS_PTRACE and CAP_SYS_NICE", found
    assert "/usr/lib/omr/hints.conf" in row("process rules")["fix"]
    guest.shell(f"sleep {LONG_ENOUGH}")
    assert guest.group_value("app", "memory.swap.current") == 0
    directory = "/etc/systemd/system/omr.service.d"
    guest.shell(f"mkdir -p {directory}; ln -s /usr/lib/omr/hints.conf {directory}/")
    guest.shell("systemctl daemon-reload; systemctl restart omr")
    assert row("process rules")["works"] == "yes", row("process rules")
    guest.wait_for(lambda: guest.group_value("app", "memory.swap.current") > 0.95 * size, 60, "hint", every=1)
    # The rights are not enough to give back: the lock for it is root's, and read-only here.
    missing = "giving memory back needs omr-give-back.socket"
    assert missing not in guest.run(["omr", "explain"]).stdout and row("giving back")["works"] == "yes"
    guest.shell("systemctl stop omr-give-back.socket")
    assert missing in guest.run(["omr", "explain"]).stdout and row("giving back")["works"] == "no"
    guest.shell("systemctl start omr-give-back.socket")
    guest.shell(f"rm -r {directory}; systemctl daemon-reload")
    configure(guest, QUICK)
    fill.kill()


def test_a_user_with_a_session_is_at_the_machine(guest: DebianGuest) -> None:
    uid = guest.shell("id -u member").strip()
    session = [
        "systemd-run",
        "--quiet",
        "--unit=seated",
        "--property=User=member",
        "--property=PAMName=login",
        "sleep",
        "600",
    ]
    guest.run(["systemctl", "start", "omr-follow"], timeout=90)

    def why() -> str:
        return guest.run(["omr", "explain", f"user.slice/user-{uid}.slice"], check=False).stdout

    guest.run(session)
    guest.wait_for(lambda: "its user is at the machine (omr follow)" in why(), 60, "session", every=1)
    # Its statements end with omr follow.
    guest.shell("systemctl kill --signal=KILL omr-follow")
    guest.wait_for(lambda: "no rule matched" in why(), 30, "end of omr follow")
    # systemd starts omr follow again, until the session ends.
    guest.wait_for(lambda: "its user is at the machine" in why(), 60, "the next omr follow", every=1)
    guest.shell("loginctl terminate-user member")
    guest.wait_for(lambda: "at the machine" not in why(), 60, "end of the session", every=1)
    guest.shell("systemctl stop omr-follow")
    overall = guest.shell("systemd-analyze security --no-pager omr-follow.service").splitlines()[-1]
    assert float(re.search(r": ([\d.]+) ", overall)[1]) <= 0.6, overall


def test_a_member_makes_statements_about_own_processes_only(guest: DebianGuest) -> None:
    sleeps = guest.spawn(["setpriv", "--reuid=member", "--clear-groups", "sleep", "600"])
    ask = (
        "use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new('/run/omr/omr.sock') or die $!;"
        "print $s qq($ARGV[0]\\n); $s->flush; print scalar <$s>"
    )

    def held(pid: int) -> dict:
        # The process is the child of the agent, or setpriv has become the process.
        start = int(guest.read(f"/proc/{pid}/stat").rsplit(") ", 1)[1].split()[19])
        of = {"process": {"pid": pid, "start": start}}
        request = {"do": "hold", "statements": [{"word": "foreground", "of": of}]}
        return guest.run(["runuser", "-u", "member", "--", "perl", "-e", ask, json.dumps(request)]).json()

    assert held(sleeps.pid) == {"ok": 0}
    assert held(1) == {"ok": 1}, "one of them is not its own"
    sleeps.kill()


# The package


def files(guest: DebianGuest) -> set[str]:
    others = ("/run/lab*", "/run/agent*", "/run/systemd/*", "/run/udev/*")
    listed = guest.shell("find / /run -xdev " + " ".join(f"-not -path '{path}'" for path in others))
    return {path for path in listed.splitlines() if not OTHERS.match(path)}


@pytest.mark.long(first=True)
def test_the_package_is_installed_upgraded_and_purged_without_a_trace(packages: list[Path]) -> None:
    with booted(**with_packages(packages)) as guest:
        before = files(guest)
    with booted(**with_packages(packages), prepare=install) as guest:
        configure(guest, QUICK)
        line = {"kind": "refaults", "time": 1, "sweep": 1, "group": "/kept.service", "bytes": 4096, "after": 300}
        guest.shell(f"echo '{json.dumps(line)}' >> /var/lib/omr/ledger.jsonl")
        guest.shell("mkdir -p /run/omr-root/conf.d && touch /run/omr-root/conf.d/boot.toml")

        # The files as they were when the daemon was root. It has ended while a limit was lowered.
        guest.shell("systemctl stop omr && rm -r /var/lib/omr-root && chown -R root:omr /var/lib/omr /run/omr")
        guest.shell("mv /run/omr-root/conf.d /run/omr/ && systemctl start --no-block omr-give-back.socket")
        learned = '{"time":1700000000}'
        guest.write("/var/lib/omr/hibernated.json", learned, create=True)
        guest.group("lowered")
        guest.write("/sys/fs/cgroup/lowered/memory.high", "64M")
        number = int(guest.shell("stat -c %i /sys/fs/cgroup/lowered"))
        boot = guest.read("/proc/sys/kernel/random/boot_id").strip()
        holder = {"boot": boot, "pid": 4194303, "start": 1, "path": {"Unix": list(b"lowered")}}
        note = json.dumps({**holder, "id": number, "file": "memory.high", "value": "Max"})
        guest.write(f"/var/lib/omr/limits/{number}.json", note, create=True)

        process = guest.property("omr", "MainPID")
        guest.run(["dpkg", "-i", f"{LAB}/newer.deb"], timeout=DPKG_TIMEOUT)
        assert guest.shell("dpkg-query -W -f '${Version}' omr") == NEWER
        guest.wait_for(lambda: guest.active("omr") == "active", 30, "restarted service")
        assert guest.property("omr", "MainPID") != process
        assert "/kept.service" in guest.run(["omr", "history"]).stdout
        assert guest.read(USER_CONFIG) == QUICK
        assert guest.shell("ls /run/omr-root/conf.d").split() == ["boot.toml"]
        assert guest.read("/var/lib/omr-root/hibernated.json") == learned
        assert guest.read("/sys/fs/cgroup/lowered/memory.high").strip() == "max"
        assert guest.shell("find /var/lib/omr /run/omr -not -user omr; ls /var/lib/omr/limits") == ""
        assert guest.shell("find /var/lib/omr-root -user omr") == ""

        # After removal, the administrator's files and omr's own records stay.
        guest.run(["dpkg", "-r", "omr"], timeout=DPKG_TIMEOUT)
        assert guest.active("omr") == "inactive"
        left = files(guest) - before
        assert {USER_CONFIG, "/etc/omr/omr.toml", "/var/lib/omr/ledger.jsonl"} <= left
        assert not [path for path in left if path.startswith("/usr/")]
        # The package can be installed again.
        guest.run(["dpkg", "-i", f"{LAB}/newer.deb"], timeout=DPKG_TIMEOUT)
        assert guest.active("omr") == "active"
        assert "/kept.service" in guest.run(["omr", "history"]).stdout

        guest.run(["dpkg", "-P", "omr"], timeout=DPKG_TIMEOUT)
        # Debian 12's systemd has this empty directory under its other name, below /lib. So dpkg
        # takes it for omr's alone.
        assert sorted((files(guest) ^ before) - {"/usr/lib/systemd/system-sleep"}) == []
        assert guest.run(["systemctl", "status", "omr"], check=False).code == 4
        # The system group stays, as is usual in Debian.
        assert "omr:" in guest.read("/etc/group")
        assert guest.shell("find / -xdev -user omr -o -xdev -path '*omr-root*'") == ""


def crates(program: str) -> set[tuple[str, str]]:
    """The names and versions of the crates that cargo has built for the processor of the guest. It
    builds macros and build scripts elsewhere.
    """
    found = set()
    for line in cargo(program, "--message-format", "json").splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and f"/{AMD64.target}/" in message["filenames"][0]:
            # "...#serde@1.0.229", or ".../crates/omr#0.1.0" if the directory has the name.
            directory, _, package = message["package_id"].partition("#")
            name, _, version = package.rpartition("@")
            found.add((name or Path(directory).name, version))
    return found


def test_the_bill_of_materials_names_the_crates_in_the_programs(packages: list[Path], tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", packages[0], tmp_path], check=True)
    bill = json.loads((tmp_path / "usr/share/doc/omr/omr.cdx.json").read_text())
    named = [component for component in bill["components"] if component.get("purl", "").startswith("pkg:cargo/")]
    assert {(crate["name"], crate["version"]) for crate in named} == crates("omr") | crates("omr-daemon")
    # Each program has crates that the other lacks, and the tests have more.
    assert crates("omr") - crates("omr-daemon") and crates("omr-daemon") - crates("omr")
    tree = subprocess.run(
        ["cargo", "tree", "--locked", "--package", "omr", "--prefix", "none", "--format", "{p}"],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    for only_in_tests in ("clap_mangen", "omr-testkit", "proptest"):
        assert f"\n{only_in_tests} v" in tree
        assert only_in_tests not in {crate["name"] for crate in named}

    # The checksums are those of the archives that cargo has downloaded.
    archives = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "registry/cache"
    for crate in named:
        licences = [licence["expression"] for licence in crate["licenses"]]
        assert all(licences), crate
        if crate["name"] == "omr" or crate["name"].startswith("omr-"):
            assert "hashes" not in crate
            continue
        (archive,) = archives.glob(f"*/{crate['name']}-{crate['version']}.crate")
        assert crate["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(archive.read_bytes()).hexdigest()}]
    others = {component["name"] for component in bill["components"]} - {crate["name"] for crate in named}
    assert "std" in others and any(name.startswith("libc6") for name in others)


def test_the_programs_name_no_directory_of_the_machine_that_built_them(packages: list[Path], tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", packages[0], tmp_path], check=True)
    for program in ("bin/omr", "libexec/omr/omr-daemon"):
        data = (tmp_path / "usr" / program).read_bytes()
        assert b"/cargo/registry/src/" in data, "the control: messages of panics have the names of files"
        for directory in (REPOSITORY, Path.home() / ".cargo", Path.home() / ".rustup"):
            assert bytes(directory) not in data


# make install


def make_install(verb: str, **environment: str) -> None:
    subprocess.run([PACKAGING / "install.sh", verb], check=True, env=os.environ | environment)


def listing(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("prefix", ["/usr", "/usr/local"])
def test_make_uninstall_removes_everything_but_configuration(packages: list[Path], tmp_path: Path, prefix: str) -> None:
    make_install("install", DESTDIR=str(tmp_path), PREFIX=prefix)
    installed = listing(tmp_path)
    bare = prefix.strip("/")
    assert {
        f"{bare}/bin/omr",
        f"{bare}/libexec/omr/omr-daemon",
        f"{bare}/share/man/man1/omr.1",
        f"{bare}/share/man/man5/omr.toml.5",
        "etc/omr/omr.toml",
    } <= installed
    unit = (tmp_path / bare / "lib/systemd/system/omr.service").read_text()
    assert f"ExecStart={prefix}/libexec/omr/omr-daemon\n" in unit
    assert f"ExecReload={prefix}/bin/omr config check\n" in unit
    (tmp_path / "etc/omr/omr.toml").write_text("# mine\n")
    make_install("install", DESTDIR=str(tmp_path), PREFIX=prefix)
    make_install("uninstall", DESTDIR=str(tmp_path), PREFIX=prefix)
    assert listing(tmp_path) == {"etc/omr/omr.toml"}
    assert (tmp_path / "etc/omr/omr.toml").read_text() == "# mine\n"


def test_an_installation_below_usr_local_runs(packages: list[Path], tmp_path: Path) -> None:
    make_install("install", DESTDIR=str(tmp_path / "root"), PREFIX="/usr/local")
    subprocess.run(
        ["tar", "-C", tmp_path / "root", "--owner=0", "--group=0", "-cf", tmp_path / "omr.tar", "."], check=True
    )
    with DebianGuest(files={"omr.tar": tmp_path / "omr.tar"}) as guest:
        guest.settle()
        guest.shell(f"tar -C / --no-overwrite-dir -xf {LAB}/omr.tar && systemd-sysusers && systemd-tmpfiles --create")
        guest.shell("systemctl daemon-reload && systemctl start omr")
        assert guest.active("omr") == "active"
        assert guest.run(["omr", "status"]).code == 0
        with pytest.raises(AgentError):
            guest.read("/usr/lib/omr/omr.toml")
