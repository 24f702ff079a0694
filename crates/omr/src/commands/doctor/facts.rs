//! The facts: read from files, and probed on the running kernel if there is one.

use std::fs;
use std::path::{Path, PathBuf};

use omr_actuate::probe::ReclaimKeys;
use omr_actuate::{Advice, Live};
use omr_base::paths;
use omr_config::{self as config, GroupRule};
use omr_control::client::ask;
use omr_control::protocol::Request;
use omr_engine::prepare::free_page_reporting;
use omr_engine::warm;
use omr_kernel::crypto::{self, Origin};
use omr_kernel::damon::{self, Damon};
use omr_kernel::hibernate::{self, Hibernation};
use omr_kernel::lockdown::Lockdown;
use omr_kernel::lru_gen::{self, Enabled, Generations};
use omr_kernel::medium::{self, Disk};
use omr_kernel::memcg::{self, Found, Group, Visit};
use omr_kernel::numa::Nodes;
use omr_kernel::power_supply::{self, PowerSource};
use omr_kernel::probe::{self, Support};
use omr_kernel::process::{self, Capability, Process, Status};
use omr_kernel::swap::{self, SwapDevice};
use omr_kernel::{Dir, Error, Kernel, mounts, page_reporting};
use omr_policy::{Goal, MinAge};
use omr_units::Bytes;
use serde::Serialize;

/// Everything that omr could use. A field is `None` if it is unknown.
#[derive(Debug, Serialize)]
pub struct Facts {
    /// The kernel's release, such as `6.12.117+deb12-amd64`.
    pub kernel: Option<String>,
    pub cgroup: Cgroup,
    pub memory_reclaim: Reclaim,
    pub memory_swap_reclaim: File,
    pub memory_high: File,
    pub mglru: Mglru,
    pub damon: Damon,
    /// The kernel's own users of DAMON that are on.
    pub damon_modules: Vec<&'static str>,
    pub process_madvise: Hints,
    pub procmap_query: Support,
    pub pagemap_scan: Support,
    pub psi: Psi,
    /// Highest priority first.
    pub swap: Vec<Swap>,
    /// zswap is on; `None`: not in this kernel.
    pub zswap: Option<bool>,
    pub power: PowerSource,
    pub hibernation: Hibernation,
    /// The compression of the image; `None`: the kernel has no choice.
    pub image_compression: Option<ImageCompression>,
    /// EC2's hibernation agent, where it is installed.
    pub ec2_agent: Option<Ec2Agent>,
    /// The smallest block of free memory that is reported to the host; `None`: no reporting.
    pub page_reporting: Option<Bytes>,
    pub nodes: Nodes,
    pub lockdown: Option<Lockdown>,
    pub privileges: Privileges,
    /// The `[[process]]` rules; `None`: there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_rules: Option<ProcessRules>,
    /// The number of `[[group]]` rules with a time in `older_than`; `None`: there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_rules: Option<usize>,
    /// True if the goal or a rule lets the daemon learn ages of groups.
    pub learns_ages: bool,
    /// Somebody can give memory back: the companion, or the daemon itself; `None`: the goal is
    /// another, so that nobody has to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gives_back: Option<bool>,
}

/// The `[[process]]` rules of the configuration.
#[derive(Debug, Serialize)]
pub struct ProcessRules {
    pub rules: usize,
    /// The capabilities that the daemon lacks for them; `None`: it does not run or answer.
    pub daemon_lacks: Option<Vec<&'static str>>,
}

impl ProcessRules {
    fn read(kernel: &Kernel, root: &Path) -> Option<Self> {
        let rules = config::load(root, None).ok().map_or(0, |loaded| loaded.processes.len());
        (rules > 0).then(|| ProcessRules { rules, daemon_lacks: daemon(kernel, root).and_then(|it| lacks(&it)) })
    }
}

fn read_age_rules(root: &Path) -> Option<usize> {
    let loaded = config::load(root, None).ok()?;
    let has_time = |rule: &&GroupRule| matches!(rule.older_than, Some(MinAge::Time(_)));
    Some(loaded.groups.iter().filter(has_time).count()).filter(|rules| *rules > 0)
}

fn learns_ages(root: &Path) -> bool {
    let is_learned = |rule: &GroupRule| rule.older_than == Some(MinAge::Learned);
    config::load(root, None)
        .is_ok_and(|loaded| loaded.policy.goal == Goal::Auto || loaded.groups.iter().any(is_learned))
}

fn gives_back(kernel: &Kernel, root: &Path) -> Option<bool> {
    let has_socket = || paths::give_back_socket(root).symlink_metadata().is_ok();
    // omr.service sees other mounts than this process.
    let may_lock = |daemon: &Process| warm::may_lock(&daemon.dir().path().join("root"));
    let has_rights =
        || daemon(kernel, root).is_some_and(|it| lacks(&it).is_some_and(|it| it.is_empty()) && may_lock(&it));
    let is_auto = config::load(root, None).is_ok_and(|loaded| loaded.policy.goal == Goal::Auto);
    is_auto.then(|| has_socket() || has_rights())
}

/// The daemon's process; `None`: it does not run or answer.
fn daemon(kernel: &Kernel, root: &Path) -> Option<Process> {
    let status = ask(&paths::socket(root), &Request::Status).ok()?;
    Process::open(kernel, u32::try_from(status.get("pid")?.as_u64()?).ok()?).ok()
}

/// The capabilities for hints that the daemon lacks.
fn lacks(daemon: &Process) -> Option<Vec<&'static str>> {
    let has = Status::read(daemon.dir()).ok()?.capabilities?;
    let needed = [Capability::SysPtrace, Capability::SysNice].into_iter();
    Some(needed.filter(|needed| !has.has(*needed)).map(Capability::name).collect())
}

/// EC2's hibernation agent. It switches its swap file on only right before hibernation.
#[derive(Debug, Serialize)]
pub struct Ec2Agent {
    /// The script that switches swap off again after resume, which reads back all its content. Its
    /// authors removed that in August 2026.
    pub swapoff_after_resume: Option<&'static str>,
}

/// The paths of that script in versions of the agent, below the root.
const HOOKS: [&str; 2] = ["usr/lib/systemd/system-sleep/sleep-handler.sh", "etc/acpi/actions/sleep.sh"];

impl Ec2Agent {
    fn read(root: &Path) -> Option<Self> {
        if !root.join("etc/hibinit-config.cfg").exists() {
            return None;
        }
        let has_swapoff = |hook: &str| {
            let hook = root.join(hook);
            // Only a regular file: reading a pipe would block.
            let is_file = fs::metadata(&hook).is_ok_and(|meta| meta.is_file());
            let script = if is_file { fs::read(&hook).unwrap_or_default() } else { Vec::new() };
            runs_swapoff(&String::from_utf8_lossy(&script))
        };
        Some(Ec2Agent { swapoff_after_resume: HOOKS.into_iter().find(|hook| has_swapoff(hook)) })
    }
}

/// Returns true if a script of the agent switches swap off after a good resume. The word alone in a
/// message does not count. A swapoff followed by a sleep is a retry, which the versions that leave
/// swap on have, too.
fn runs_swapoff(script: &str) -> bool {
    let mut lines = script.lines().map(str::trim_start).filter(|line| !line.starts_with('#')).peekable();
    while let Some(line) = lines.next() {
        if line.contains("swapoff ") && !lines.peek().is_some_and(|next| next.starts_with("sleep ")) {
            return true;
        }
    }
    false
}

#[derive(Debug, Default, Serialize)]
pub struct Cgroup {
    /// The reason why there is no cgroup v2 hierarchy; `None`: there is one.
    pub missing: Option<String>,
    pub read_only: bool,
    pub controllers: Vec<String>,
    /// The number of groups, without the root.
    pub groups: usize,
    pub groups_with_memory: usize,
    pub own_group: Option<String>,
    /// `memory.reclaim` of the own group may be written.
    pub own_group_writable: bool,
}

/// A file that groups may have, the root included: how many have it, and how many may be written.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct File {
    pub groups: usize,
    pub writable: usize,
}

#[derive(Debug, Default, Serialize)]
pub struct Reclaim {
    #[serde(flatten)]
    pub file: File,
    /// The keys that the kernel knows; `None`: not probed, or no group's file may be written.
    pub keys: Option<ReclaimKeys>,
}

/// The compression of the hibernation image. omr does not set it: the kernel that resumes must have
/// the algorithm as well.
#[derive(Debug, Serialize)]
pub struct ImageCompression {
    /// `lzo` or `lz4`.
    pub compressor: String,
    /// Where lz4 comes from; `None`: unknown.
    pub lz4: Option<Origin>,
}

impl ImageCompression {
    fn read(kernel: &Kernel) -> Option<Self> {
        let compressor = hibernate::read_compressor(kernel)?;
        Some(ImageCompression { compressor, lz4: crypto::read(kernel, "lz4") })
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Mglru {
    /// The mask in `enabled`; `None`: not in this kernel.
    pub enabled: Option<Enabled>,
    pub generations: Generations,
    /// Groups have the same paths in debugfs as in the mounted hierarchy.
    pub sees_root: bool,
    /// Memory used within this time is not reclaimed; 0: off; `None`: not in this kernel.
    pub min_ttl_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct Hints {
    pub cold: Support,
    pub pageout: Support,
    pub willneed: Support,
}

#[derive(Debug, Serialize)]
pub struct Psi {
    pub present: bool,
    pub triggers: Support,
    /// The shortest window that worked, of those tried.
    pub shortest_window_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct Swap {
    #[serde(flatten)]
    pub device: SwapDevice,
    /// The hibernation image goes to this device.
    pub resume: bool,
    /// The disks below it.
    pub disks: Vec<Disk>,
}

#[derive(Debug, Serialize)]
pub struct Privileges {
    #[serde(flatten)]
    pub status: Status,
    /// The process is in the first user namespace, so capabilities count everywhere.
    pub first_user_namespace: Option<bool>,
}

impl Facts {
    /// Reads the facts. Probes the running kernel only if `live`.
    pub fn read(kernel: &Kernel, root: &Path, live: bool) -> Self {
        let ask = |question: &dyn Fn() -> Support| if live { question() } else { Support::NotProbed };
        let hint = |advice| ask(&|| omr_actuate::probe::process_madvise(advice));
        let hibernation = Hibernation::read(kernel);
        let groups = Groups::read(kernel, live);
        Facts {
            kernel: kernel.proc.read_string("sys/kernel/osrelease").ok().map(|text| text.trim().to_owned()),
            cgroup: groups.cgroup,
            memory_reclaim: Reclaim { file: groups.reclaim, keys: groups.keys },
            memory_swap_reclaim: groups.swap_reclaim,
            memory_high: groups.high,
            mglru: Mglru {
                enabled: lru_gen::read_enabled(kernel).ok().flatten(),
                generations: lru_gen::read_generations(kernel),
                sees_root: lru_gen::sees_root(kernel).unwrap_or(true),
                min_ttl_ms: lru_gen::read_min_ttl(kernel),
            },
            damon: Damon::read(kernel),
            damon_modules: damon::read_modules(kernel),
            process_madvise: Hints {
                cold: hint(Advice::Cold),
                pageout: hint(Advice::PageOut),
                willneed: hint(Advice::WillNeed),
            },
            procmap_query: ask(&|| probe::procmap_query(kernel)),
            pagemap_scan: ask(&|| probe::pagemap_scan(kernel)),
            psi: read_psi(kernel, live),
            swap: read_swap(kernel, &hibernation),
            zswap: swap::read_zswap(kernel),
            power: power_supply::read(kernel),
            hibernation,
            image_compression: ImageCompression::read(kernel),
            ec2_agent: Ec2Agent::read(root),
            page_reporting: page_reporting::read_order(kernel)
                .ok()
                .flatten()
                .map(|order| free_page_reporting::block_size(kernel, order)),
            nodes: Nodes::read(kernel).unwrap_or_default(),
            lockdown: Lockdown::read(kernel),
            privileges: Privileges {
                status: Status::read_own(kernel).unwrap_or_default(),
                first_user_namespace: process::read_is_first_user_namespace(kernel),
            },
            process_rules: ProcessRules::read(kernel, root),
            age_rules: read_age_rules(root),
            learns_ages: learns_ages(root),
            gives_back: gives_back(kernel, root),
        }
    }
}

fn read_psi(kernel: &Kernel, live: bool) -> Psi {
    let present = kernel.proc.has("pressure/memory");
    let (triggers, window) = match live.then(|| probe::psi_window(kernel)) {
        None => (Support::NotProbed, None),
        Some(Ok(Some(window))) => (Support::Works, Some(window)),
        // Linux 5.10 allows no window at all without the capability.
        Some(Ok(None)) => (Support::Denied, None),
        Some(Err(err)) if err.is_denied() => (Support::Denied, None),
        Some(Err(_)) => (Support::Missing, None),
    };
    let shortest_window_ms = window.and_then(|window| u64::try_from(window.as_millis()).ok());
    Psi { present, triggers, shortest_window_ms }
}

fn read_swap(kernel: &Kernel, hibernation: &Hibernation) -> Vec<Swap> {
    let mut devices: Vec<Swap> = swap::read(kernel)
        .unwrap_or_default()
        .into_iter()
        .map(|device| {
            let resume = hibernation.resume.is_some() && device.read_number(kernel) == hibernation.resume;
            let disks = medium::read_disks(kernel, &device);
            Swap { device, resume, disks }
        })
        .collect();
    devices.sort_by_key(|swap| std::cmp::Reverse(swap.device.priority));
    devices
}

/// The facts from a walk over all groups.
#[derive(Default)]
struct Groups {
    cgroup: Cgroup,
    reclaim: File,
    swap_reclaim: File,
    high: File,
    keys: Option<ReclaimKeys>,
    /// A group whose `memory.reclaim` may be written, if neither the own group's nor the root's
    /// may.
    writable: Option<PathBuf>,
}

impl Groups {
    fn read(kernel: &Kernel, live: bool) -> Self {
        let mut groups = Groups::default();
        let root = match probe::hierarchy(kernel) {
            Ok(root) => root,
            Err(err) => {
                groups.cgroup.missing = Some(match err {
                    Error::NoCgroup2 { why, .. } => why.to_owned(),
                    err => err.to_string(),
                });
                return groups;
            }
        };
        groups.cgroup.read_only = mounts::read_is_cgroup_read_only(kernel).unwrap_or(false);
        let controllers = root.read_string("cgroup.controllers").unwrap_or_default();
        groups.cgroup.controllers = controllers.split_whitespace().map(Into::into).collect();
        if let Err(err) = memcg::walk(root, &mut groups) {
            groups.cgroup.missing = Some(err.to_string());
            return groups;
        }
        let own = process::read_own_group(kernel).ok().flatten();
        let own = own.and_then(|path| Group::open(root, &path).ok());
        if let Some(own) = &own {
            groups.cgroup.own_group = Some(own.path().display().to_string());
            groups.cgroup.own_group_writable = groups.may_write(own.dir(), "memory.reclaim");
        }
        if live {
            let other = groups.writable.take().and_then(|path| Dir::open(&path).ok());
            let candidates = [own.as_ref().map(Group::dir), Some(root), other.as_ref()];
            let group = candidates.into_iter().flatten().find(|dir| groups.may_write(dir, "memory.reclaim"));
            groups.keys = group.and_then(|dir| omr_actuate::probe::reclaim_keys(&mut Live, dir).ok());
        }
        groups
    }

    fn may_write(&self, dir: &Dir, file: &str) -> bool {
        !self.cgroup.read_only && dir.may_write(file)
    }

    fn count(&self, dir: &Dir, name: &str, file: &mut File) {
        file.groups += usize::from(dir.has(name));
        file.writable += usize::from(self.may_write(dir, name));
    }
}

impl Visit for Groups {
    fn enter(&mut self, Found { dir, parent, .. }: Found<'_>) -> Option<usize> {
        if parent.is_some() {
            self.cgroup.groups += 1;
            self.cgroup.groups_with_memory += usize::from(dir.has("memory.current"));
        }
        let (mut reclaim, mut swap_reclaim, mut high) = (self.reclaim, self.swap_reclaim, self.high);
        let before = reclaim.writable;
        self.count(dir, "memory.reclaim", &mut reclaim);
        self.count(dir, "memory.swap.reclaim", &mut swap_reclaim);
        self.count(dir, "memory.high", &mut high);
        if reclaim.writable > before && self.writable.is_none() {
            self.writable = Some(dir.path().into());
        }
        (self.reclaim, self.swap_reclaim, self.high) = (reclaim, swap_reclaim, high);
        Some(0)
    }
}
