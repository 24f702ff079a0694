"""`omr run` on real kernels: without systemd in the mini guest, with it in Debian's."""

import signal

import pytest

from omrlab.binaries import build
from omrlab.daemon import Daemon
from omrlab.guest import Guest

FAILED = 125
"""omr's exit code when omr could not start the command."""

CGROUP = "/sys/fs/cgroup"


@pytest.fixture
def guest(release):
    with Guest(release, 256) as guest:
        yield guest


def groups(guest: Guest) -> list[str]:
    """The groups that omr run made."""
    return guest.shell(f"find {CGROUP} -type d -name 'omr-run-*'").split()


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -TERM $$", 128 + 15), ("kill -KILL $$", 128 + 9)],
)
def test_omr_run_ends_with_the_commands_exit_code_and_removes_the_group(guest, script, code) -> None:
    ended = guest.run(["omr", "run", "--class", "background", "--", "sh", "-c", script], check=False)
    assert (ended.code, ended.stderr) == (code, "")
    assert groups(guest) == []


def test_the_command_runs_in_a_group_of_its_class(guest) -> None:
    with Daemon(guest):
        script = "cat /proc/self/cgroup; group=$(cut -d: -f3 /proc/self/cgroup); sleep 7; omr explain $group"
        output = guest.run(["omr", "run", "--class", "protected", "--", "sh", "-c", script]).stdout
    assert output.startswith("0::/omr-run-"), output
    assert "protected: extended attribute user.omr.class" in output


def test_arguments_and_standard_streams_are_passed_on(guest) -> None:
    command = "echo 'a b' | omr run -- sh -c 'cat; printf \"%s|\" \"$@\"; echo oops >&2' sh --class 'x  y' -- -z"
    ended = guest.run(["sh", "-c", command])
    assert (ended.stdout, ended.stderr) == ("a b\n--class|x  y|--|-z|", "oops\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_reaches_the_command(guest, number) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got; exit 9' {name}; echo ready; while :; do sleep 0.1; done"
    omr = guest.spawn(["omr", "run", "--", "sh", "-c", script])
    guest.wait_for(lambda: "ready" in omr.stdout(), 10, "the command")
    omr.kill(number)
    ended = omr.wait()
    assert (ended.code, ended.stdout) == (9, "ready\ngot\n")
    assert groups(guest) == []


def test_the_group_is_removed_after_the_last_process_in_it_ends(guest) -> None:
    ended = guest.run(["omr", "run", "--", "sh", "-c", "sleep 5 > /dev/null 2>&1 & exit 4"], check=False)
    assert ended.code == 4
    assert len(groups(guest)) == 1
    guest.wait_for(lambda: not groups(guest), 20, "removal of the group")


def test_the_next_omr_run_removes_the_group_of_a_killed_one(guest) -> None:
    omr = guest.spawn(["omr", "run", "--", "sh", "-c", "echo ready; exec sleep 3"])
    guest.wait_for(lambda: "ready" in omr.stdout(), 10, "the command")
    omr.kill(signal.SIGKILL)
    omr.wait()
    assert len(groups(guest)) == 1
    guest.shell("sleep 4")
    guest.run(["omr", "run", "--", "true"])
    assert groups(guest) == []


def test_the_command_can_run_below_another_group(guest) -> None:
    guest.group("jobs")
    guest.write(f"{CGROUP}/jobs/cgroup.subtree_control", "+memory")
    ended = guest.run(["omr", "run", "--below", "/sys/fs/cgroup/jobs", "--", "cat", "/proc/self/cgroup"])
    assert ended.stdout.startswith("0::/jobs/omr-run-")
    assert ended.stderr == ""
    assert groups(guest) == []


def test_a_missing_memory_controller_is_reported(guest) -> None:
    guest.group("jobs")
    ended = guest.run(["omr", "run", "--below", "jobs", "--", "true"])
    assert "no memory controller" in ended.stderr


def test_a_command_that_cannot_run_has_the_exit_code_of_a_shell(guest) -> None:
    for command, code in (("/no/such", 127), ("/etc", 126)):
        ended = guest.run(["omr", "run", "--", command], check=False)
        assert ended.code == code
        assert ended.stderr.startswith(f"omr: {command}: ")
    assert groups(guest) == []


def test_a_group_that_cannot_be_made_is_reported_with_the_reason(guest) -> None:
    guest.shell(f"mount -o remount,ro {CGROUP}")
    ended = guest.run(["omr", "run", "--", "echo", "ran"], check=False)
    assert (ended.code, ended.stdout) == (FAILED, "")
    assert "cannot make a group for the command" in ended.stderr
    assert "Read-only file system" in ended.stderr


def test_a_user_without_delegation_is_told_what_to_do(guest) -> None:
    guest.write("/etc/passwd", "root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n", create=True)
    guest.write("/etc/group", "root:x:0:\nuser:x:1000:\n", create=True)
    ended = guest.run(["su", "user", "-c", "omr run -- echo ran"], check=False)
    assert (ended.code, ended.stdout) == (FAILED, "")
    assert "Permission denied" in ended.stderr
    assert "delegated" in ended.stderr


def test_a_user_can_run_a_command_in_a_delegated_group(guest) -> None:
    guest.write("/etc/passwd", "root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n", create=True)
    guest.write("/etc/group", "root:x:0:\nuser:x:1000:\n", create=True)
    guest.group("mine")
    guest.group("mine/shell")
    guest.shell(f"cd {CGROUP}/mine && echo +memory > cgroup.subtree_control && chown -R user .")
    script = "su user -c 'omr run --class foreground -- cat /proc/self/cgroup'"
    ended = guest.run(["sh", "-c", f"echo 0 > {CGROUP}/mine/shell/cgroup.procs && {script}"])
    assert ended.stdout.startswith("0::/mine/omr-run-"), ended
    assert ended.stderr == ""
    assert groups(guest) == []


# With systemd


@pytest.fixture(scope="module")
def debian():
    pytest.importorskip("omrlab.debian")
    from omrlab.debian import LAB, DebianGuest

    with DebianGuest(files={"omr": build("omr")}) as guest:
        guest.settle()
        guest.shell(f"install {LAB}/omr /usr/local/bin/omr")
        guest.shell("useradd --create-home --uid 1000 user && loginctl enable-linger user", timeout=120)
        guest.wait_for(lambda: guest.active("user@1000.service") == "active", 120, "the user's service manager")
        yield guest


AS_USER = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "env", "XDG_RUNTIME_DIR=/run/user/1000"]


def test_systemd_makes_and_removes_a_scope(debian) -> None:
    ended = debian.run(
        ["omr", "run", "--class", "background", "--", "sh", "-c", "cat /proc/self/cgroup; exit 5"], check=False
    )
    assert (ended.code, ended.stderr) == (5, "")
    assert ended.stdout.startswith("0::/background.slice/omr-run-"), ended.stdout
    debian.wait_for(lambda: not groups(debian), 20, "removal of the scope")
    assert "omr-run" not in debian.run(["systemctl", "list-units", "--all", "--plain", "--no-legend"]).stdout


def test_the_scope_has_the_command_as_its_description_and_the_class_as_an_attribute(debian) -> None:
    omr = debian.spawn(["omr", "run", "--class", "foreground", "--", "sleep", "60"])
    (group,) = debian.wait_for(lambda: groups(debian), 20, "the scope")
    unit = group.rpartition("/")[2]
    debian.wait_for(lambda: debian.active(unit) == "active", 20, "the scope's start")
    assert debian.property(unit, "Description") == "omr run: sleep 60"
    assert "user.omr.class" in xattrs(debian, group)
    omr.kill(signal.SIGTERM)
    assert omr.wait().code == 128 + 15
    debian.wait_for(lambda: not groups(debian), 20, "removal of the scope")


def xattrs(guest: Guest, path: str) -> str:
    """Names and values, by Perl's own system call: the guest has no getfattr."""
    script = (
        'my ($path, $name, $v) = (shift, "user.omr.class", "\\0" x 64); my $n = syscall(191, $path, $name, $v, 64);'
    )
    script += 'print "$name=", substr($v, 0, $n) if $n > 0'
    return guest.run(["perl", "-e", script, path]).stdout


def test_a_users_command_is_in_the_users_own_slice(debian) -> None:
    ended = debian.run([*AS_USER, "omr", "run", "--", "sh", "-c", "cat /proc/self/cgroup; exit 6"], check=False)
    assert (ended.code, ended.stderr) == (6, "")
    assert ended.stdout.startswith("0::/user.slice/user-1000.slice/user@1000.service/background.slice/omr-run-"), (
        ended.stdout
    )
    debian.wait_for(lambda: not groups(debian), 20, "removal of the scope")


def test_a_user_may_run_a_protected_command(debian) -> None:
    omr = debian.spawn([*AS_USER, "omr", "run", "--class", "protected", "--", "sleep", "60"])
    (group,) = debian.wait_for(lambda: groups(debian), 20, "the scope")
    debian.wait_for(lambda: xattrs(debian, group) == "user.omr.class=protected", 20, "the class")
    omr.kill(signal.SIGTERM)
    omr.wait()


def test_a_user_without_a_service_manager_is_told_so(debian) -> None:
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "-u", "XDG_RUNTIME_DIR"]
    ended = debian.run([*as_nobody, "omr", "run", "--", "echo", "ran"], check=False)
    assert (ended.code, ended.stdout) == (FAILED, "")
    assert "your service manager" in ended.stderr
