//! Files that appear as a whole, or not at all.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// Writes a file with `write`. A reader finds the complete old or the complete new file.
pub fn put<T>(path: &Path, write: impl FnOnce(File) -> Result<T>) -> Result<T> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("write {}: there is no folder {}", path.display(), folder.display());
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(name);
    let written = File::create(&temporary).map_err(anyhow::Error::from).and_then(|file| {
        let written = write(file)?;
        fs::rename(&temporary, path)?;
        Ok(written)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.with_context(|| format!("write {}", path.display()))
}
