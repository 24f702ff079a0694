//! Sets and removes extended attributes of cgroups. The guest has no other tool for this.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The group's directory
    path: PathBuf,
    /// Name of the attribute, e.g. user.xdg.inactive-since
    name: String,
    /// New value; without it the attribute is removed
    #[arg(allow_hyphen_values = true)]
    value: Option<String>,
}

pub(crate) fn set(args: &Args) -> Result<()> {
    let result = match &args.value {
        Some(value) => {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&args.path, args.name.as_str(), value.as_bytes(), flags)
        }
        None => rustix::fs::removexattr(&args.path, args.name.as_str()),
    };
    result.with_context(|| format!("{} of {}", args.name, args.path.display()))
}
