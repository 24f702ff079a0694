//! The files of the configuration, and their text.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::problem::Problem;

/// The limit for the size of a file.
const SIZE_LIMIT: u64 = 1 << 20;

const VENDOR: &str = "usr/lib/omr/omr.toml";
const ADMIN: &str = "etc/omr/omr.toml";
const ADMIN_DROP_INS: &str = "etc/omr/conf.d";
const RUN_DROP_INS: &str = "run/omr-root/conf.d";

/// Returns the files to read, the weakest first. Files may be missing.
///
/// A drop-in in `/run` replaces one of the same name in `/etc`. A link to `/dev/null` in `/run`
/// turns a drop-in off until the next boot.
pub fn find(root: &Path, problems: &mut Vec<Problem>) -> Vec<Arc<Path>> {
    let mut admin = drop_ins(&root.join(ADMIN_DROP_INS), problems);
    let run = drop_ins(&root.join(RUN_DROP_INS), problems);
    admin.retain(|name, _| !run.contains_key(name));
    let main = [VENDOR, ADMIN].map(|file| root.join(file));
    main.into_iter().chain(admin.into_values()).chain(run.into_values()).map(Arc::from).collect()
}

/// Returns the `*.toml` files of a directory by name, without hidden ones.
fn drop_ins(dir: &Path, problems: &mut Vec<Problem>) -> BTreeMap<OsString, PathBuf> {
    let mut files = BTreeMap::new();
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return files,
        Err(err) => {
            problems.push(Problem::of_file(dir, format!("cannot be listed: {}", reason(&err))));
            return files;
        }
    };
    for entry in entries {
        match entry {
            Ok(entry) => {
                let name = entry.file_name();
                let bytes = name.as_encoded_bytes();
                if bytes.ends_with(b".toml") && !bytes.starts_with(b".") {
                    files.insert(name, entry.path());
                }
            }
            Err(err) => {
                problems.push(Problem::of_file(dir, format!("cannot be listed: {}", reason(&err))));
                break;
            }
        }
    }
    files
}

/// Reads a file. `None`: it is a link to `/dev/null`, or missing and not `wanted`.
pub fn read(path: &Path, wanted: bool) -> Result<Option<String>, Problem> {
    let problem = |text: String| Err(Problem::of_file(path, text));
    // A FIFO without a writer must not hang a daemon.
    let file = match File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            return match std::fs::read_link(path) {
                Ok(target) => problem(format!("a link to {}, which does not exist", target.display())),
                Err(_) if wanted => problem(format!("cannot be read: {}", reason(&err))),
                Err(_) => Ok(None),
            };
        }
        Err(err) => return problem(format!("cannot be read: {}", reason(&err))),
    };
    let meta = match file.metadata() {
        Ok(meta) => meta,
        Err(err) => return problem(format!("cannot be read: {}", reason(&err))),
    };
    let kind = meta.file_type();
    // The device 1:3 is /dev/null, under any path.
    if kind.is_char_device() && meta.rdev() == libc::makedev(1, 3) {
        return Ok(None);
    }
    if kind.is_dir() {
        return problem("a directory, but a file is expected".into());
    }
    if !kind.is_file() {
        return problem("not a regular file".into());
    }
    if meta.mode() & 0o002 != 0 {
        return problem("all users may write to it, and so control a root process; run chmod o-w".into());
    }
    let mut bytes = Vec::new();
    if let Err(err) = file.take(SIZE_LIMIT + 1).read_to_end(&mut bytes) {
        return problem(format!("cannot be read: {}", reason(&err)));
    }
    if bytes.len() as u64 > SIZE_LIMIT {
        return problem("larger than 1 MiB, too large for a configuration".into());
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(err) => {
            let at = err.utf8_error().valid_up_to();
            let (before, rest) = err.as_bytes().split_at(at);
            let byte = rest.first().copied().unwrap_or_default();
            let line = 1 + before.iter().filter(|&&c| c == b'\n').count();
            Err(Problem {
                file: path.into(),
                line: u32::try_from(line).ok(),
                text: format!("not UTF-8 text: there is a byte 0x{byte:02x}"),
            })
        }
    }
}

/// Returns the kernel's message, without the number that Rust adds.
fn reason(err: &io::Error) -> String {
    let text = err.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
