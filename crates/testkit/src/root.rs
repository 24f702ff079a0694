//! [`FakeRoot`]: a temporary directory that looks like `/` to omr.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::captured::Release;

const CGROUP: &str = "sys/fs/cgroup";

/// Groups below each parent in [`FakeRoot::scaled_tree`]. Real trees are wide and shallow: a slice
/// with its services.
const FAN_OUT: usize = 50;

/// A temporary directory with `proc/`, `sys/` and `sys/fs/cgroup/`. Dropping it removes the
/// directory.
///
/// The methods panic when the disk fails, because the test cannot go on then.
#[derive(Debug)]
pub struct FakeRoot {
    dir: TempDir,
}

impl Default for FakeRoot {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeRoot {
    /// An empty root: the three directories, without files.
    pub fn new() -> Self {
        let root = Self { dir: tempfile::Builder::new().prefix("omr-root-").tempdir().expect("a temporary directory") };
        fs::create_dir_all(root.dir.path().join("proc")).expect("proc");
        fs::create_dir_all(root.dir.path().join(CGROUP)).expect("sys/fs/cgroup");
        root
    }

    /// A root with all machine-wide files of `release`, including those of the root cgroup, and
    /// without groups.
    pub fn captured(release: Release) -> Self {
        let root = Self::new();
        root.fill(release);
        root
    }

    fn fill(&self, release: Release) {
        fs::create_dir_all(self.dir.path().join("proc")).expect("proc");
        fs::create_dir_all(self.dir.path().join(CGROUP)).expect("sys/fs/cgroup");
        for top in ["proc", "sys"] {
            for (path, bytes) in release.files(top) {
                self.write(Path::new(top).join(path), bytes);
            }
        }
    }

    /// A root as from [`Self::captured`], in memory where the machine has a directory for that: for
    /// tests that write much.
    pub fn in_memory(release: Release) -> Self {
        let place = Path::new("/dev/shm");
        let place = if place.is_dir() { place.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("omr-root-").tempdir_in(place).expect("a temporary directory");
        let root = Self { dir };
        root.fill(release);
        root
    }

    /// A root as from [`Self::captured`] (6.12) with `groups` busy groups, including parents. Each
    /// parent has up to `FAN_OUT` groups with itself.
    pub fn scaled_tree(groups: usize) -> Self {
        let mut root = Self::captured(Release::V6_12);
        for path in scaled_paths(groups) {
            root = root.busy_group(path);
        }
        root
    }

    /// Adds the generations of `groups` groups on each of `nodes` nodes, as 6.12 prints them.
    #[must_use]
    pub fn scaled_generations(self, groups: usize, nodes: usize) -> Self {
        let mut text = String::new();
        let paths = scaled_paths(groups).map(|path| format!("/{}", path.display()));
        for (id, path) in (1..).zip(std::iter::once("/".to_owned()).chain(paths)) {
            let _ = writeln!(text, "memcg {id:5} {path}");
            for node in 0..nodes {
                let _ = writeln!(text, " node {node:5}");
                for generation in 0..4 {
                    // Ages and sizes have as many digits as for groups of some hundred MiB.
                    let (age, pages) = ((4 - generation) * 300_000, 7 * id * (generation + 1));
                    let _ = writeln!(text, " {generation:10} {age:10} {pages:10}  {:10} ", pages / 3);
                }
            }
        }
        self.sys("kernel/debug/lru_gen", text)
    }

    /// Adds `proc/NAME`.
    #[must_use]
    pub fn proc(self, name: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Self {
        self.file(Path::new("proc").join(name), contents)
    }

    /// Adds `sys/NAME`.
    #[must_use]
    pub fn sys(self, name: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Self {
        self.file(Path::new("sys").join(name), contents)
    }

    /// Adds a file anywhere below the root, e.g. `etc/omr/omr.toml`.
    #[must_use]
    pub fn file(self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Self {
        self.write(path, contents);
        self
    }

    /// Adds a cgroup with these files. An empty path is the root cgroup. The name may hold any
    /// bytes that are valid in the name of a cgroup.
    #[must_use]
    pub fn group<C: AsRef<[u8]>>(self, path: impl AsRef<Path>, files: &[(&str, C)]) -> Self {
        let group = Path::new(CGROUP).join(path);
        fs::create_dir_all(self.resolve(&group)).expect("the group's directory");
        for (name, contents) in files {
            self.write(group.join(name), contents);
        }
        self
    }

    /// Adds a cgroup with every file of a captured busy group (6.12). A later [`Self::group`]
    /// replaces single files.
    #[must_use]
    pub fn busy_group(self, path: impl AsRef<Path>) -> Self {
        self.busy_group_of(Release::V6_12, path)
    }

    /// As [`Self::busy_group`], with the files of `release`.
    #[must_use]
    pub fn busy_group_of(self, release: Release, path: impl AsRef<Path>) -> Self {
        let group = Path::new(CGROUP).join(path);
        fs::create_dir_all(self.resolve(&group)).expect("the group's directory");
        for (name, bytes) in release.files("group") {
            self.write(group.join(name), bytes);
        }
        self
    }

    /// Adds busy groups below the group `top`, one in the other, until the path is longer than the
    /// kernel takes at once. Returns the path of the last one below the cgroup mount, and its open
    /// directory.
    pub fn deep_group(&self, top: &str) -> (PathBuf, File) {
        let name = "d".repeat(250);
        let mut path = PathBuf::from(top);
        let top = self.resolve(Path::new(CGROUP).join(top));
        fs::create_dir_all(&top).expect("the top group's directory");
        let mut dir = File::open(top).expect("a directory");
        while path.as_os_str().len() <= 4096 {
            path.push(&name);
            let here = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(&name);
            fs::create_dir(&here).expect("a group's directory");
            for (name, bytes) in Release::V6_12.files("group") {
                fs::write(here.join(name), bytes).expect("a group's file");
            }
            dir = File::open(here).expect("a directory");
        }
        (path, dir)
    }

    /// The directory that omr gets as its root.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The real path of the file `path` of the fake root. A leading `/` of `path` is ignored.
    pub fn resolve(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.dir.path().join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Replaces a file's text, as a kernel's counter changes between two samples. Makes the file if
    /// needed.
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) {
        let path = self.resolve(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("the file's directory");
        fs::write(&path, contents).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// The text of a file, for example omr's last write to `sys/fs/cgroup/a/memory.reclaim`.
    pub fn read(&self, path: impl AsRef<Path>) -> String {
        let path = self.resolve(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Removes a file or a whole directory: a kernel without the feature, or a group that was
    /// removed.
    pub fn remove(&self, path: impl AsRef<Path>) {
        let path = self.resolve(path);
        let result = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        result.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Keeps the tree on the disk, and returns its path.
    pub fn keep(self) -> PathBuf {
        self.dir.keep()
    }
}

/// `groups` paths: `load-0.slice`, `load-0.slice/job-1.service`, ..., with a new parent after every
/// `FAN_OUT` paths.
fn scaled_paths(groups: usize) -> impl Iterator<Item = PathBuf> {
    (0..groups).map(|number| {
        let parent = PathBuf::from(format!("load-{}.slice", number / FAN_OUT));
        match number % FAN_OUT {
            0 => parent,
            child => parent.join(format!("job-{child}.service")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_a_directory_with_its_files_and_its_parents() {
        let root = FakeRoot::new().group("a b/c", &[("memory.current", "1\n")]);
        assert_eq!(root.read("sys/fs/cgroup/a b/c/memory.current"), "1\n");
        assert_eq!(root.read("/sys/fs/cgroup/a b/c/memory.current"), "1\n");
    }

    #[test]
    fn a_group_name_need_not_be_utf_8() {
        use std::os::unix::ffi::OsStrExt as _;
        let name = std::ffi::OsStr::from_bytes(b"a\xff\nb");
        let root = FakeRoot::new().group(name, &[("memory.current", "1\n")]);
        assert_eq!(fs::read_dir(root.resolve("sys/fs/cgroup")).unwrap().next().unwrap().unwrap().file_name(), name);
    }

    #[test]
    fn later_files_replace_captured_ones() {
        let root = FakeRoot::captured(Release::V6_12).busy_group("a").group("a", &[("memory.current", "7\n")]);
        assert_eq!(root.read("sys/fs/cgroup/a/memory.current"), "7\n");
        assert!(root.read("sys/fs/cgroup/a/memory.stat").starts_with("anon "));
    }

    #[test]
    fn a_scaled_tree_has_exactly_the_groups_asked_for() {
        let root = FakeRoot::scaled_tree(120);
        let groups = |dir: &Path| -> Vec<PathBuf> {
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
        };
        let slices = groups(&root.resolve("sys/fs/cgroup"));
        assert_eq!(slices.len(), 3);
        assert_eq!(slices.len() + slices.iter().map(|slice| groups(slice).len()).sum::<usize>(), 120);
    }

    #[test]
    fn removing_takes_a_file_or_a_whole_group() {
        let root = FakeRoot::captured(Release::V6_12).busy_group("a/b");
        root.remove("proc/swaps");
        root.remove("sys/fs/cgroup/a");
        assert!(!root.resolve("proc/swaps").exists() && !root.resolve("sys/fs/cgroup/a").exists());
    }
}
