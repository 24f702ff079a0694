//! The configuration: from files in layers to plain values, each with the place it came from.
//!
//! Without any file omr runs with the defaults that are built in. Every mistake in every file is
//! found and reported, with file and line, before anything is used.

mod glob;
mod layers;
mod parse;
mod process;
mod profile;
mod schema;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_policy::Class;
use omr_units::Amount;

pub use self::glob::{Glob, parts};
pub use self::process::ProcessRule;
pub use self::profile::Profile;
pub use self::schema::{KEYS, TABLES, class, time_text};

/// By which file of the kernel groups are reclaimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// `memory.swap.reclaim` where it may be written, else `memory.reclaim`; never `memory.high`.
    #[default]
    Auto,
    /// `memory.reclaim` (Linux 5.19).
    Reclaim,
    /// `memory.swap.reclaim` (a patch).
    SwapReclaim,
    /// A `memory.high` that is lowered for moments: for kernels that have neither.
    High,
}

impl BackendChoice {
    const ALL: [BackendChoice; 4] =
        [BackendChoice::Auto, BackendChoice::Reclaim, BackendChoice::SwapReclaim, BackendChoice::High];

    /// The word for it: the kernel's file, or `auto`.
    pub fn name(self) -> &'static str {
        match self {
            BackendChoice::Auto => "auto",
            BackendChoice::Reclaim => "memory.reclaim",
            BackendChoice::SwapReclaim => "memory.swap.reclaim",
            BackendChoice::High => "memory.high",
        }
    }

    /// The choice of that name.
    pub fn from_name(name: &str) -> Option<BackendChoice> {
        BackendChoice::ALL.into_iter().find(|choice| choice.name() == name)
    }
}

/// Whose interruption notices `omr watch` follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// The one that the firmware names.
    #[default]
    Auto,
    /// Amazon.
    Ec2,
    /// Google Compute Engine.
    Gcp,
    /// Microsoft.
    Azure,
}

impl Provider {
    const ALL: [Provider; 4] = [Provider::Auto, Provider::Ec2, Provider::Gcp, Provider::Azure];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Auto => "auto",
            Provider::Ec2 => "ec2",
            Provider::Gcp => "gcp",
            Provider::Azure => "azure",
        }
    }

    /// The provider of that name.
    pub fn from_name(name: &str) -> Option<Provider> {
        Provider::ALL.into_iter().find(|provider| provider.name() == name)
    }
}

/// What `omr watch` needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cloud {
    /// Whose notices.
    pub provider: Provider,
    /// Where its metadata server is.
    pub endpoint: SocketAddr,
}

impl Default for Cloud {
    fn default() -> Self {
        // All three use this one.
        Cloud { provider: Provider::Auto, endpoint: SocketAddr::from(([169, 254, 169, 254], 80)) }
    }
}

/// Where something is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: Arc<Path>,
    /// The line in it, from 1.
    pub line: u32,
}

/// `/etc/omr/omr.toml:14`
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", printable(&self.file.to_string_lossy()), self.line)
    }
}

/// Which groups a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// By path below the mount.
    Match(Glob),
    /// By name of the systemd unit: the last part of the path.
    Unit(Glob),
}

impl Selector {
    /// Its pattern.
    pub fn glob(&self) -> &Glob {
        match self {
            Selector::Match(glob) | Selector::Unit(glob) => glob,
        }
    }

    /// Whether it is about the group at `path`, given as its [`parts`].
    pub fn matches(&self, path: &[std::borrow::Cow<'_, str>]) -> bool {
        match self {
            Selector::Match(glob) => glob.matches(path),
            Selector::Unit(glob) => path.len().checked_sub(1).is_some_and(|last| glob.matches(&path[last..])),
        }
    }
}

/// One `[[group]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRule {
    /// Which groups.
    pub selector: Selector,
    /// What omr may do to them.
    pub class: Option<Class>,
    /// What they always keep.
    pub keep: Option<Amount>,
    /// Sweeps take only what was surely not used for so long; zero: whatever its age.
    pub older_than: Option<Duration>,
    /// Where `match` or `unit` is written.
    pub place: Place,
}

impl GroupRule {
    /// Whether sweeps are to take only what is old.
    pub fn asks_for_age(&self) -> bool {
        self.older_than.is_some_and(|age| !age.is_zero())
    }
}

/// `"app.slice/**" in /etc/omr/omr.toml:14`
impl fmt::Display for GroupRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.selector {
            Selector::Match(glob) => write!(f, "\"{}\" in {}", printable(glob.as_str()), self.place),
            Selector::Unit(glob) => write!(f, "unit \"{}\" in {}", printable(glob.as_str()), self.place),
        }
    }
}

/// What has one value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    policy: omr_policy::Config,
    backend: BackendChoice,
    cloud: Cloud,
}

/// The effective configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// What the policy decides by.
    pub policy: omr_policy::Config,
    /// How groups are reclaimed.
    pub backend: BackendChoice,
    /// What `omr watch` follows.
    pub cloud: Cloud,
    /// The rules for groups, in the order of the files.
    pub groups: Vec<GroupRule>,
    /// The rules for processes, in the order of the files.
    pub processes: Vec<ProcessRule>,
    /// The files that were read.
    pub files: Vec<PathBuf>,
    /// For each of [`KEYS`] where its value is written, if anywhere.
    origins: Vec<Option<Place>>,
    /// Files that anybody may write to.
    loose: Vec<Arc<Path>>,
}

impl Loaded {
    /// What is built in.
    #[cfg(any(test, feature = "testing"))]
    pub fn built_in() -> Loaded {
        Draft::default().finish(Vec::new(), Vec::new())
    }

    /// Where the value of a key (`"idle.for"`) is written; `None` when it is built in.
    pub fn origin(&self, key: &str) -> Option<&Place> {
        self.origins.get(schema::index(key)?)?.as_ref()
    }

    /// The value of one of [`KEYS`] as one writes it.
    pub fn text(&self, key: &schema::Key) -> String {
        key.text(&Settings { policy: self.policy.clone(), backend: self.backend, cloud: self.cloud.clone() })
    }

    /// Files that anybody may write to.
    pub fn loose(&self) -> &[Arc<Path>] {
        &self.loose
    }
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    file: Arc<Path>,
    line: Option<u32>,
    text: String,
}

impl Problem {
    /// A mistake in a file, of no one line.
    pub fn of_file(file: &Path, text: impl Into<String>) -> Problem {
        Problem { file: file.into(), line: None, text: text.into() }
    }

    /// A mistake in the line at `place`.
    pub fn at(place: &Place, text: impl Into<String>) -> Problem {
        Problem { file: place.file.clone(), line: Some(place.line), text: text.into() }
    }
}

/// `/etc/omr/conf.d/desktop.toml:14: group.clas: unknown key; did you mean "class"?`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.file.to_string_lossy()))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// All mistakes of all files, in the order of the files and their lines. At least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(Vec<Problem>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if n == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// Loads the configuration of the system whose root directory is `root`, or of one `file` alone.
pub fn load(root: &Path, file: Option<&Path>) -> Result<Loaded, Errors> {
    let mut problems = Vec::new();
    let sources = match file {
        Some(file) => vec![Arc::from(file)],
        None => layers::find(root, &mut problems),
    };
    let mut draft = Draft::default();
    let (mut files, mut loose) = (Vec::new(), Vec::new());
    for source in &sources {
        match layers::read(source, file.is_some()) {
            Ok(Some(text)) => {
                parse::parse(source, &text.text, &mut draft, &mut problems);
                files.push(source.to_path_buf());
                if text.loose {
                    loose.push(source.clone());
                }
            }
            Ok(None) => {}
            Err(problem) => problems.push(problem),
        }
    }
    let order = |file: &Path| sources.iter().position(|source| **source == *file);
    draft.settle(&order, &mut problems);
    if problems.is_empty() {
        return Ok(draft.finish(files, loose));
    }
    // A directory that cannot be listed is no source and comes first.
    problems.sort_by_key(|problem| (order(&problem.file), problem.line));
    Err(Errors(problems))
}

/// As [`load`], for a command: mistakes end it with exit code 2.
pub fn load_or_refuse(root: &Path, file: Option<&Path>) -> anyhow::Result<Loaded> {
    load(root, file).map_err(|errors| Exit::Usage.error(errors.to_string()))
}

/// What the files have said so far.
struct Draft {
    settings: Settings,
    origins: Vec<Option<Place>>,
    groups: Vec<GroupRule>,
    processes: Vec<ProcessRule>,
}

impl Default for Draft {
    fn default() -> Self {
        Draft {
            settings: Settings::default(),
            origins: vec![None; KEYS.len()],
            groups: Vec::new(),
            processes: Vec::new(),
        }
    }
}

impl Draft {
    /// Checks what several keys say together. A value that is built in gives way to one that is
    /// written: who writes `idle.for = "3s"` need not know that `idle.again` is 5 s.
    fn settle(&mut self, order: &dyn Fn(&Path) -> Option<usize>, problems: &mut Vec<Problem>) {
        let policy = &mut self.settings.policy;
        if self.origins[at("idle.again")].is_none() {
            policy.idle.again = policy.idle.again.min(policy.idle.hold);
        }
        if self.origins[at("guard.backoff_max")].is_none() {
            policy.guard.backoff_max = policy.guard.backoff_max.max(policy.guard.backoff);
        } else if self.origins[at("guard.backoff")].is_none() {
            policy.guard.backoff = policy.guard.backoff.min(policy.guard.backoff_max);
        }
        if self.origins[at("hints.pageout_after")].is_none() {
            policy.hints.pageout_after = policy.hints.pageout_after.max(policy.hints.cold_after);
        } else if self.origins[at("hints.cold_after")].is_none() {
            policy.hints.cold_after = policy.hints.cold_after.min(policy.hints.pageout_after);
        }
        let policy = self.settings.policy.clone();
        for (short, long, contradiction) in [
            ("idle.again", "idle.for", policy.idle.again > policy.idle.hold),
            ("stop.stall", "stop.window", policy.stop.stall > policy.stop.window),
            ("guard.backoff", "guard.backoff_max", policy.guard.backoff > policy.guard.backoff_max),
            ("hints.cold_after", "hints.pageout_after", policy.hints.cold_after > policy.hints.pageout_after),
        ] {
            if contradiction {
                let wrong = [(short, "must not be longer than"), (long, "must not be shorter than")];
                problems.extend(self.contradiction(order, wrong, ""));
            }
        }
        if policy.stop.sample * 2 + policy.sweep.write_time > Duration::from_millis(100) {
            let wrong = [("stop.sample", "two of these and one"), ("sweep.write_time", "one of these and two")];
            problems.extend(self.contradiction(order, wrong, ", must fit into the 100ms in which a sweep stops"));
        }
    }

    /// Two keys do not go together. Reported at the one that is written last, with its words in
    /// front of the other and `end` behind.
    fn contradiction(
        &self,
        order: &dyn Fn(&Path) -> Option<usize>,
        mut wrong: [(&str, &str); 2],
        end: &str,
    ) -> Option<Problem> {
        let place = |key| self.origins[at(key)].as_ref();
        wrong.sort_by_key(|(key, _)| place(key).map(|place| (order(&place.file), place.line)));
        let [(other, _), (key, words)] = wrong;
        let text = |key| KEYS[at(key)].text(&self.settings);
        let elsewhere = place(other).map_or_else(|| "built in".to_owned(), Place::to_string);
        let (value, other_value) = (text(key), text(other));
        let text = format!("{key} = \"{value}\": {words} {other}, which is \"{other_value}\" ({elsewhere}){end}");
        Some(Problem::at(place(key)?, text))
    }

    fn finish(self, files: Vec<PathBuf>, loose: Vec<Arc<Path>>) -> Loaded {
        let Draft { settings: Settings { policy, backend, cloud }, origins, mut groups, mut processes } = self;
        groups.shrink_to_fit();
        processes.shrink_to_fit();
        Loaded { policy, backend, cloud, groups, processes, files, origins, loose }
    }
}

/// The place in [`KEYS`] of a key that is there.
fn at(key: &str) -> usize {
    schema::index(key).unwrap_or_else(|| unreachable!("{key} is in the schema"))
}

/// The rules that a text has; the tests' short way.
#[cfg(any(test, feature = "testing"))]
pub fn rules(text: &str) -> Vec<GroupRule> {
    draft(text).groups
}

/// As [`rules`], those for processes.
#[cfg(any(test, feature = "testing"))]
pub fn process_rules(text: &str) -> Vec<ProcessRule> {
    draft(text).processes
}

#[cfg(any(test, feature = "testing"))]
fn draft(text: &str) -> Draft {
    let mut draft = Draft::default();
    let mut problems = Vec::new();
    parse::parse(&Arc::from(Path::new("/etc/omr/omr.toml")), text, &mut draft, &mut problems);
    assert_eq!(problems, []);
    draft
}
