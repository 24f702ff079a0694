//! Embeds `captured/` into the crate, so that the guest's static program can make the same trees.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let captured = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("captured");
    println!("cargo::rerun-if-changed={}", captured.display());
    let mut files = Vec::new();
    collect(&captured, &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for file in &files {
        let name = file.strip_prefix(&captured).expect("found below it");
        writeln!(table, "    ({:?}, include_bytes!({:?})),", name.display(), file.display()).expect("a String");
    }
    table.push(']');
    fs::write(PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("captured.rs"), table)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() { collect(&path, files)? } else { files.push(path) }
    }
    Ok(())
}
