//! The policies that a replay compares: a JSON file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use omr_policy::threshold::Slo;
use omr_units::Bytes;
use serde::{Deserialize, Serialize};

/// The most policies in a file.
pub const MOST: usize = 1000;
/// The most bytes of a name.
const LONGEST_NAME: usize = 100;
/// The name of the policy that the daemon has without any configuration. It is always compared.
pub const DEFAULT: &str = "default";

/// A policy, as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The name in tables.
    pub name: String,
    /// Keys of `[slo]` in `omr.toml` with their values; the others have their default.
    #[serde(default)]
    pub slo: BTreeMap<String, String>,
}

/// Where the machines have their swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Swap {
    /// zram or zswap.
    #[default]
    Memory,
    /// A disk: fewer promotions are allowed.
    Disk,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    swap: Swap,
    policies: Vec<Policy>,
}

/// Policies without a mistake, the default first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    swap: Swap,
    policies: Vec<(Policy, omr_policy::Objective)>,
}

impl Policies {
    /// Reads the policies in a text. `source`: the file's name, for errors.
    pub fn parse(source: &Path, text: &[u8]) -> Result<Self> {
        let name = source.display();
        let File { swap, mut policies } =
            serde_json::from_slice(text).with_context(|| format!("{name}: not a list of policies"))?;
        if policies.is_empty() || policies.len() > MOST {
            bail!("{name}: {} policies; expected 1 to {MOST}", policies.len());
        }
        let mut names = BTreeSet::new();
        for Policy { name: of, .. } in &policies {
            if of.is_empty() || of.len() > LONGEST_NAME || of.chars().any(char::is_control) {
                bail!("{name}: {of:?}: expected a name of 1 to {LONGEST_NAME} bytes without control characters");
            }
            if !names.insert(of.as_str()) {
                bail!("{name}: two policies are called {of:?}");
            }
        }
        if !names.contains(DEFAULT) {
            policies.insert(0, Policy { name: DEFAULT.into(), slo: BTreeMap::new() });
        }
        let read = |policy: Policy| {
            let objective = objective(source, &policy)?;
            Ok((policy, objective))
        };
        Ok(Policies { swap, policies: policies.into_iter().map(read).collect::<Result<_>>()? })
    }

    /// The objective of each policy, on machines with pages of this size.
    pub fn slos(&self, page: Bytes) -> impl Iterator<Item = Slo> {
        let on_disk = self.swaps_to_disk();
        self.policies.iter().map(move |(_, objective)| objective.slo(on_disk, page))
    }

    /// The policies are for machines with swap on a disk.
    pub fn swaps_to_disk(&self) -> bool {
        self.swap == Swap::Disk
    }

    /// The policies as they are written.
    pub fn written(&self) -> impl Iterator<Item = &Policy> {
        self.policies.iter().map(|(policy, _)| policy)
    }

    /// The number of policies.
    pub fn count(&self) -> usize {
        self.policies.len()
    }

    /// The same text for the same policies, however their file is laid out.
    pub fn canonical(&self) -> Vec<u8> {
        let file = File { swap: self.swap, policies: self.written().cloned().collect() };
        serde_json::to_vec(&file).unwrap_or_default()
    }
}

/// The policy's keys, read and checked as the daemon's configuration is.
fn objective(source: &Path, policy: &Policy) -> Result<omr_policy::Objective> {
    let mut text = "[slo]\n".to_owned();
    for (key, value) in &policy.slo {
        // JSON's strings are strings of TOML, too.
        let (key, value) = (serde_json::to_string(key)?, serde_json::to_string(value)?);
        writeln!(text, "{key} = {value}")?;
    }
    let read = omr_config::read_text(source, &text);
    let loaded = read.map_err(|errors| {
        let of = format!("{}: policy {:?}", source.display(), policy.name);
        anyhow::anyhow!("{of}: {}", errors.texts().collect::<Vec<_>>().join("; "))
    })?;
    Ok(loaded.policy.slo)
}
