use std::path::Path;

use omr_kernel::mounts::{self, Mount};
use omr_testkit::{FakeRoot, Release};
use proptest::prelude::*;

use crate::open;

#[test]
fn real_kernels() {
    for release in Release::ALL {
        let root = FakeRoot::captured(release);
        let mounts = mounts::read(&open(&root)).expect("readable");
        let cgroup = mounts::find(&mounts, Path::new("/sys/fs/cgroup"), b"cgroup2").expect("mounted");
        assert!(!cgroup.read_only);
    }
}

#[test]
fn lines() {
    for (line, path, read_only) in [
        ("cgroup2 /sys/fs/cgroup cgroup2 ro,nosuid 0 0", "/sys/fs/cgroup", true),
        // "ro" within another option does not count.
        ("/dev/sda1 / ext4 rw,errors=remount-ro,rodir,context=ro_t 0 0", "/", false),
        ("none /mnt/a\\040b\\134c\\011 tmpfs rw 0 0", "/mnt/a b\\c\t", false),
        ("a\\040b /mnt tmpfs rw,ro", "/mnt", true),
    ] {
        let mount = Mount::parse(line.as_bytes()).expect(line);
        assert_eq!((mount.path.to_str(), mount.read_only), (Some(path), read_only), "{line}");
    }
    for line in ["", "a", "a /b", "a /b c", "a  c rw", " /b c"] {
        assert_eq!(Mount::parse(line.as_bytes()), None, "{line}");
    }
}

#[test]
fn the_last_mount_covers_the_others() {
    let mounts = mounts::parse(b"a /x cgroup2 rw 0 0\nb /x cgroup2 ro 0 0\nc /x tmpfs rw 0 0\n");
    assert_eq!(mounts::find(&mounts, Path::new("/x"), b"cgroup2").map(|m| m.read_only), Some(true));
    assert_eq!(mounts::find(&mounts, Path::new("/y"), b"cgroup2"), None);
}

proptest! {
    #[test]
    fn parsing_never_panics(text: Vec<u8>, near in "[a-z/\\\\0-9]{0,9} /[a-z\\\\0-9]{0,9} [a-z]{0,3} [a-z,]{0,9}") {
        let _ = mounts::parse(&text);
        let _ = mounts::parse(near.as_bytes());
    }
}
