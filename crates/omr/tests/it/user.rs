//! A local user who makes groups as they like, on fake roots: nobody else notices.

use std::fs::File;
use std::os::unix::fs::fchown;

use rustix::fs::{XattrFlags, fsetxattr};

use crate::common::fake_kernel::FakeKernel;
use crate::common::running::{Daemon, swept, wait_until};
use crate::common::{GROUPS, add_group, machine, omr, text};

const USERS: &str = "user.slice/user-1000.slice/user@1000.service";

/// As systemd gives a group's directory to a user.
fn give_to_user(dir: &File, uid: u32) {
    if rustix::process::geteuid().is_root() {
        fchown(dir, Some(uid), None).expect("chown");
    }
}

fn set_class(dir: &File, class: &str) {
    fsetxattr(dir, "user.omr.class", class.as_bytes(), XattrFlags::empty()).expect("an attribute");
}

#[test]
fn a_path_that_is_too_long_stops_no_sweep_and_no_command() {
    let root = machine();
    add_group(&root, "app.scope", 64 << 10, 0);
    let kernel = FakeKernel::start(&root);
    let (_, deep) = root.deep_group(USERS);
    give_to_user(&deep, 1000);
    for args in [
        ["prepare", "burst", "1M"].as_slice(),
        &["reclaim", "/", "1M"],
        &["reclaim", "/", "max", "--dry-run"],
        &["warm"],
        &["warm", "--record"],
        &["ps"],
    ] {
        let (code, _, stderr) = text(&omr(&root, args));
        assert_eq!(code, 0, "{args:?}: {stderr}");
    }
    set_class(&deep, "foreground");
    let daemon = Daemon::start(&root, "");
    wait_until("a sweep", || swept(&root, "app.scope").is_some());
    let log = daemon.end();
    assert!(!log.contains("busy") && !log.contains("focus"), "{log}");
    drop(kernel);
}

#[test]
fn a_path_that_is_too_long_is_watched_and_does_not_end_other_watches() {
    let root = machine();
    let kernel = FakeKernel::start(&root);
    let (path, deep) = root.deep_group(USERS);
    give_to_user(&deep, 1000);
    add_group(&root, "app.scope", 64 << 10, 0);
    let app = File::open(root.resolve(format!("{GROUPS}/app.scope"))).expect("a directory");
    give_to_user(&app, 1001);
    let daemon = Daemon::start(&root, "mode = 'observe'");
    let is_foreground = |group: &str| {
        let (_, stdout, _) = text(&omr(&root, &["explain", group]));
        stdout.contains("class: foreground")
    };
    wait_until("a scan", || daemon.status()["groups"].as_array().is_some_and(|groups| groups.len() > 1));
    assert!(!is_foreground("app.scope"));
    set_class(&app, "foreground");
    set_class(&deep, "foreground");
    wait_until("the daemon notices", || is_foreground("app.scope") && is_foreground(&path.to_string_lossy()));
    let log = daemon.end();
    assert!(!log.contains("changes of the focus"), "{log}");
    drop(kernel);
}
