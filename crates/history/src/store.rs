//! Writing the history.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use omr_base::folder::Folder;
use omr_base::storage::{make_dir_for_members, show_to_members};
use omr_units::{Bytes, GroupId};

use super::{Sample, segment};

/// The number of files of a history. The oldest file is dropped before there are more.
const PARTS: u64 = 32;

/// Writes the history. Writes are not synchronous: a crash loses the last samples.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    boot: String,
    size: Bytes,
    open: Option<Open>,
    /// The number of rounds that were lost since the last one that was written.
    lost: u64,
}

/// The file that is being written.
#[derive(Debug)]
struct Open {
    file: File,
    size: u64,
    groups: HashMap<(GroupId, PathBuf), u32>,
}

impl Store {
    /// Makes a store in this directory, for this boot. All files together stay below `size`. The
    /// first samples open a new file; files of an earlier daemon are never written again.
    pub fn new(dir: &Path, boot: &str, size: Bytes) -> Self {
        Store { dir: dir.into(), boot: boot.into(), size, open: None, lost: 0 }
    }

    /// Sets the limit for the size of all files together.
    pub fn resize(&mut self, size: Bytes) {
        self.size = size;
    }

    /// Appends the samples of one moment. Samples that cannot be written are lost; the first loss
    /// is logged.
    pub fn add(&mut self, time: Duration, samples: &[Sample]) {
        match self.try_add(time, samples) {
            Ok(()) if self.lost > 0 => {
                log::warn!("{}: samples of {} times were lost", self.dir.display(), self.lost);
                self.lost = 0;
            }
            Ok(()) => {}
            Err(err) => {
                if self.lost == 0 {
                    log::warn!("{}: {err}; there is no history until this is fixed", self.dir.display());
                }
                self.lost += 1;
            }
        }
    }

    fn try_add(&mut self, time: Duration, samples: &[Sample]) -> io::Result<()> {
        let part = (self.size.0 / PARTS).max(1);
        let mut open = match self.open.take() {
            Some(open) if open.size < part => open,
            _ => self.begin(part)?,
        };
        let mut out = Vec::new();
        let mut new = Vec::new();
        let mut numbered = Vec::with_capacity(samples.len());
        for sample in samples {
            let key = (sample.id, sample.group.to_path_buf());
            let number = match open.groups.get(&key) {
                Some(&number) => number,
                None => {
                    let number = u32::try_from(open.groups.len() + new.len()).unwrap_or(u32::MAX);
                    segment::put_group(&mut out, sample.id, &sample.group);
                    new.push((key, number));
                    number
                }
            };
            numbered.push((number, sample));
        }
        segment::put_round(&mut out, time, &numbered);
        // An incomplete round (disk full) is removed.
        if let Err(err) = open.file.write_all(&out) {
            if open.file.set_len(open.size).is_ok() {
                self.open = Some(open);
            }
            return Err(err);
        }
        open.size += out.len() as u64;
        open.groups.extend(new);
        self.open = Some(open);
        Ok(())
    }

    /// Drops the oldest files to make room for a new one of this size, and makes it.
    fn begin(&self, part: u64) -> io::Result<Open> {
        make_dir_for_members(&self.dir)?;
        let folder = Folder::open(&self.dir)?;
        let files = segment::list(&folder)?;
        let size_of = |file: &OsString| folder.look(file).map_or(0, |(size, _)| size);
        let sizes: Vec<u64> = files.iter().map(size_of).collect();
        let mut all: u64 = sizes.iter().sum();
        for (file, size) in files.iter().zip(sizes) {
            if all.saturating_add(part) <= self.size.0 {
                break;
            }
            folder.remove(file)?;
            all = all.saturating_sub(size);
        }
        let number = files.last().and_then(|last| segment::number(last)).map_or(1, |last| last.saturating_add(1));
        let name = segment::name(number);
        let mut file = folder.create(&name)?;
        let header = segment::header(&self.boot);
        if let Err(err) = show_to_members(&file).and_then(|()| file.write_all(&header)) {
            let _ = folder.remove(&name);
            return Err(err);
        }
        Ok(Open { file, size: header.len() as u64, groups: HashMap::new() })
    }
}

#[cfg(test)]
mod tests;
