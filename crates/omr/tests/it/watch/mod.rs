//! `omr watch` against metadata servers that speak as the documented ones do, and worse.

mod answers;
mod azure;
mod ec2;
mod gcp;
mod metadata;
mod running;

use std::time::Duration;

use omr_testkit::FakeRoot;
use serde_json::Value;

use self::ec2::{ACTION, imds, instance_action};
use self::metadata::{Metadata, Reply};
use self::running::Running;
use crate::common::running::wait_until;
use crate::common::{omr, text};

fn root(cloud: &str) -> FakeRoot {
    let root = FakeRoot::new();
    root.write("proc/meminfo", "");
    root.write("sys/kernel/x", "");
    root.write("etc/omr/omr.toml", format!("[cloud]\n{cloud}\n"));
    root
}

/// Looks once; exit code, the requests that the daemon would get, and what was said.
fn once(root: &FakeRoot) -> (i32, Vec<Value>, String) {
    let (code, out, err) = text(&omr(root, &["watch", "--once", "--dry-run", "--json"]));
    assert!(!err.contains("panicked"), "{err}");
    (code, out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect(), err)
}

#[test]
fn a_machine_of_nobody_is_not_watched() {
    let (code, _, log) = once(&root("provider = 'auto'"));
    assert_eq!(code, 3);
    assert!(log.contains("this is no machine of EC2, Google Compute Engine or Azure"), "{log}");
}

#[test]
fn the_firmware_says_whom_to_ask() {
    let server = Metadata::start(|head, _| imds(head, |_| None));
    let root = server.root("auto");
    root.write("sys/class/dmi/id/sys_vendor", "Amazon EC2\n");
    assert_eq!(once(&root).0, 0);
    assert_eq!(server.asked().len(), 4);
}

#[test]
fn a_wrong_endpoint_is_said_so() {
    let (code, _, log) = once(&root("endpoint = 'https://metadata.google.internal'"));
    assert_eq!(code, 2);
    assert!(
        log.contains(
            "omr.toml:2: cloud.endpoint = 'https://metadata.google.internal': an address in numbers is needed"
        ),
        "{log}"
    );
}

#[test]
fn without_a_daemon_there_is_nobody_to_tell() {
    let server = Metadata::start(|head, _| imds(head, |path| (path == ACTION).then(|| instance_action("stop", 60))?));
    let (code, _, log) = text(&omr(&server.root("ec2"), &["watch", "--once"]));
    assert_eq!(code, 1);
    assert!(log.contains("the daemon is not running"), "{log}");
}

#[test]
fn it_ends_when_told_to_whatever_it_waits_for() {
    let server = Metadata::start(|_, _| Reply::Silence);
    for provider in ["ec2", "gcp", "azure"] {
        let mut watch = Running::start(server.root(provider));
        let before = server.asked().len();
        wait_until("it waits", || server.asked().len() > before);
        assert!(watch.end() < Duration::from_secs(4), "{provider}");
    }
}
