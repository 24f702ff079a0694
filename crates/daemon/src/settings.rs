//! The settings: command line and configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use omr_actuate::{Actuator, DryRun, Live};
use omr_base::exit::Exit;
use omr_config::{BackendChoice, GroupRule, Loaded, Place, ProcessRule, Profile, load_or_refuse};
use omr_kernel::Kernel;
use omr_policy::{Config, Mode};

use crate::host::Host;

/// The command line.
#[derive(Clone, Debug, Default)]
pub struct Args {
    /// Log to standard error instead of the journal.
    pub foreground: bool,
    /// Read this file instead of the configuration of the system.
    pub config: Option<PathBuf>,
    /// A profile whose values replace those of the configuration.
    pub profile: Option<Profile>,
    /// With a profile: the only group that is touched, whatever rules there are.
    pub target: Option<PathBuf>,
}

/// Reads the configuration, with the profile that was asked for.
pub fn load(root: &Path, args: &Args, kernel: &Kernel) -> Result<Loaded> {
    let mut loaded = load_or_refuse(root, args.config.as_deref())?;
    if let Some(profile) = args.profile {
        let target = args.target.as_deref().map(|target| kernel.group_path(target));
        profile.apply(target, &mut loaded).map_err(|err| Exit::Usage.error(err))?;
    }
    Ok(loaded)
}

/// The settings in force.
pub struct Settings {
    args: Args,
    /// The configuration as it was loaded last.
    pub loaded: Arc<Loaded>,
    /// The configuration of the policy. Its mode changes with a restart only.
    pub config: Config,
    /// The kernel's file to reclaim by; changes with a restart only.
    pub backend: BackendChoice,
    /// A checksum of all settings and rules.
    pub hash: u32,
}

impl Settings {
    /// The settings that were loaded at the start.
    pub fn new(args: Args, loaded: Loaded) -> Self {
        let config = loaded.policy.clone();
        Settings { args, hash: hash(&config, &loaded), config, backend: loaded.backend, loaded: Arc::new(loaded) }
    }

    /// Reads the configuration again. A file that is wrong changes nothing.
    pub fn reload(&mut self, host: &Host) -> Result<()> {
        let loaded = load(&host.root, &self.args, &host.kernel)?;
        let mode = self.config.mode;
        if loaded.backend != self.backend || loaded.policy.mode != mode {
            log::warn!("mode and backend change with a restart only: systemctl restart omr");
        }
        self.config = Config { mode, ..loaded.policy.clone() };
        self.hash = hash(&self.config, &loaded);
        self.loaded = Arc::new(loaded);
        Ok(())
    }

    /// Returns the way of writes to the kernel: none in modes "observe" and "record".
    pub fn actuator(&self) -> Box<dyn Actuator> {
        actuator(self.config.mode)
    }

    /// The actuator that ages groups. In mode "record" it is the only one that writes.
    pub fn aging_actuator(&self) -> Box<dyn Actuator> {
        actuator(if self.config.mode == Mode::Record { Mode::Act } else { self.config.mode })
    }
}

/// The checksum tells nothing of the files and lines that the settings and rules are from.
fn hash(config: &Config, loaded: &Loaded) -> u32 {
    let nowhere = Place { file: Path::new("").into(), line: 0 };
    let mut text = format!("{config:?} {:?}", loaded.backend);
    for rule in &loaded.groups {
        text += &format!("{:?}", GroupRule { place: nowhere.clone(), ..rule.clone() });
    }
    for rule in &loaded.processes {
        text += &format!("{:?}", ProcessRule { place: nowhere.clone(), ..rule.clone() });
    }
    crc32fast::hash(text.as_bytes())
}

/// The one place of the daemon that makes actuators.
pub fn actuator(mode: Mode) -> Box<dyn Actuator> {
    match mode {
        #[cfg(test)]
        Mode::Act if omr_kernel::clock::is_simulated() => Box::new(crate::simulation::ModelActuator),
        Mode::Act => Box::new(Live),
        Mode::Observe | Mode::Record => Box::new(DryRun),
    }
}
