//! The meaning of the facts: one row for each ability, and the answer. Reads no files.

use omr_actuate::Outcome;
use omr_engine::aging::{Missing, NO_SWAP};
use omr_kernel::crypto::Origin;
use omr_kernel::damon::Damon;
use omr_kernel::hibernate::Availability;
use omr_kernel::medium::{Disk, Medium};
use omr_kernel::parse_version;
use omr_kernel::power_supply::PowerSource;
use omr_kernel::probe::Support;
use omr_kernel::process::Capability;
use omr_kernel::swap::SwapKind;
use serde::Serialize;

use super::facts::{Facts, Mglru, ProcessRules, Swap};

/// The state of an ability on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Works {
    Yes,
    /// Part of it works.
    Partly,
    No,
    /// Unknown: only the running kernel could tell.
    NotProbed,
}

impl Works {
    pub fn word(self) -> &'static str {
        match self {
            Works::Yes => "yes",
            Works::Partly => "partly",
            Works::No => "no",
            Works::NotProbed => "?",
        }
    }
}

/// One row of the table.
#[derive(Debug, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub works: Works,
    pub found: String,
    /// The use that omr makes of it.
    #[serde(rename = "use")]
    pub role: &'static str,
    /// The kernel version, setting or right that adds the missing part; `None`: nothing is missing.
    pub fix: Option<String>,
}

impl Check {
    fn new(name: &'static str, works: Works, found: impl Into<String>, role: &'static str) -> Self {
        Check { name, works, found: found.into(), role, fix: None }
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// The kernel file by which memory is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Backend {
    #[serde(rename = "memory.reclaim")]
    Reclaim,
    #[serde(rename = "memory.swap.reclaim")]
    SwapReclaim,
    /// Only if the user asks for it.
    #[serde(rename = "memory.high")]
    High,
}

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Backend::Reclaim => "memory.reclaim",
            Backend::SwapReclaim => "memory.swap.reclaim",
            Backend::High => "memory.high",
        }
    }
}

/// Returns the best backend that works here, or one sentence that says why none does.
pub fn backend(facts: &Facts) -> Result<Backend, String> {
    let cgroup = &facts.cgroup;
    if let Some(why) = &cgroup.missing {
        return Err(why.clone());
    }
    if !cgroup.controllers.iter().any(|name| name == "memory") {
        return Err(NO_MEMORY_CONTROLLER.into());
    }
    if cgroup.read_only {
        return Err("the control groups are mounted read-only, as in a container; run omr on the host".into());
    }
    if facts.memory_swap_reclaim.writable > 0 {
        return Ok(Backend::SwapReclaim);
    }
    let asked = facts.memory_reclaim.keys.map(|keys| keys.amount);
    if facts.memory_reclaim.file.writable > 0 && asked.is_none_or(|outcome| outcome == Outcome::Done) {
        return Ok(Backend::Reclaim);
    }
    if facts.memory_high.writable > 0 {
        return Ok(Backend::High);
    }
    if facts.memory_reclaim.file.groups + facts.memory_swap_reclaim.groups + facts.memory_high.groups > 0 {
        return Err("this user may not write to any group; run omr as root, or in a group delegated to the user".into());
    }
    Err(format!("no group has memory.reclaim or memory.high; {}", in_groups(facts, (5, 19))))
}

const NO_MEMORY_CONTROLLER: &str = "there is no memory controller; remove cgroup_disable=memory from the kernel command line, or unmount that of cgroup v1";

/// Returns the answer in one sentence.
pub fn answer(facts: &Facts, live: bool) -> String {
    let machine = if live { "this machine" } else { "the machine of these files" };
    let backend = match backend(facts) {
        Ok(backend) => backend,
        Err(why) => return format!("omr cannot reclaim: {why}"),
    };
    if backend == Backend::High {
        return format!(
            "omr can reclaim on {machine} only with --backend memory.high: {}",
            if facts.memory_reclaim.file.groups > 0 {
                "memory.reclaim exists and may not be written"
            } else {
                "memory.reclaim came with Linux 5.19"
            }
        );
    }
    let how = match facts.swap.first().map(|swap| swap.device.kind) {
        None => ", but only file memory, because there is no swap",
        Some(SwapKind::Zram) => " into zram",
        Some(_) if facts.zswap == Some(true) => " through zswap, paced for disk swap",
        Some(_) => ", paced for disk swap",
    };
    format!("omr can reclaim on {machine}: {}{how}", backend.name())
}

/// Returns all rows, the most important first.
pub fn checks(facts: &Facts) -> Vec<Check> {
    let mut rows = vec![cgroup(facts), reclaim(facts), swap_reclaim(facts), high(facts), psi(facts)];
    rows.extend(swap(facts));
    rows.extend([
        zswap(facts),
        power(facts),
        hibernation(facts),
        page_reporting(facts),
        privileges(facts),
        mglru(facts),
        damon(facts),
        process_madvise(facts),
        ioctl(facts, "PROCMAP_QUERY", facts.procmap_query, (6, 11)),
        ioctl(facts, "PAGEMAP_SCAN", facts.pagemap_scan, (6, 7)),
    ]);
    rows.extend(tiers(facts));
    rows.extend(facts.process_rules.as_ref().map(process_rules));
    rows.extend(facts.age_rules.map(|rules| age_rules(facts, rules)));
    rows.extend(facts.gives_back.map(giving_back));
    rows
}

/// Returns `since Linux 5.19, this is 5.10.0-30`, or the build option if this kernel is new enough.
fn since(facts: &Facts, version: (u32, u32), option: &str) -> String {
    let (major, minor) = version;
    match &facts.kernel {
        Some(release) if parse_version(release).is_some_and(|here| here < version) => {
            format!("since Linux {major}.{minor}, this is {release}")
        }
        Some(_) => format!("needs a kernel built with {option}"),
        None => format!("since Linux {major}.{minor}, built with {option}"),
    }
}

/// As [`since`], for a file of control groups.
fn in_groups(facts: &Facts, version: (u32, u32)) -> String {
    if facts.cgroup.missing.is_some() {
        format!("Linux {}.{} with cgroup v2", version.0, version.1)
    } else if facts.cgroup.groups_with_memory == 0 {
        format!("Linux {}.{}, in a group with the memory controller", version.0, version.1)
    } else {
        since(facts, version, "CONFIG_MEMCG")
    }
}

fn cgroup(facts: &Facts) -> Check {
    let cgroup = &facts.cgroup;
    let role = "the groups that omr reclaims";
    let row = |works, found: String| Check::new("cgroup v2", works, found, role);
    if let Some(why) = &cgroup.missing {
        let (found, fix) = why.split_once("; ").unwrap_or((why, "omr needs cgroup v2"));
        return row(Works::No, found.into()).fix(fix);
    }
    let groups = match cgroup.groups {
        1 => "1 group".into(),
        n => format!("{n} groups"),
    };
    if !cgroup.controllers.iter().any(|name| name == "memory") {
        let (_, fix) = NO_MEMORY_CONTROLLER.split_once("; ").unwrap_or_default();
        return row(Works::No, format!("no memory controller, {groups}")).fix(fix);
    }
    if cgroup.read_only {
        return row(Works::No, format!("mounted read-only, {groups}")).fix("run omr on the host, not in a container");
    }
    match cgroup.groups_with_memory {
        0 => row(Works::Partly, format!("{groups}, none with the memory controller"))
            .fix("write \"+memory\" to cgroup.subtree_control"),
        n if n == cgroup.groups => row(Works::Yes, format!("{groups}, all with the memory controller")),
        n => row(Works::Yes, format!("{groups}, {n} with the memory controller")),
    }
}

fn reclaim(facts: &Facts) -> Check {
    let file = facts.memory_reclaim.file;
    let row = |works, found: &str| Check::new("memory.reclaim", works, found, "reclaims a group, in small writes");
    if file.groups == 0 {
        return row(Works::No, "not there").fix(in_groups(facts, (5, 19)));
    }
    if file.writable == 0 {
        return row(Works::No, "may not be written").fix("run as root, or in a group delegated to the user");
    }
    let Some(keys) = facts.memory_reclaim.keys else {
        return row(Works::Yes, "keys not probed");
    };
    if keys.amount != Outcome::Done {
        return row(Works::No, "refuses to reclaim").fix("another security module or container may forbid it");
    }
    match (keys.swappiness, keys.swappiness_max) {
        (_, true) if keys.writeback_wait => row(Works::Yes, "keys: swappiness, swappiness=max, writeback=wait"),
        (_, true) => row(Works::Yes, "keys: swappiness, swappiness=max"),
        (true, false) => row(Works::Yes, "keys: swappiness").fix("swappiness=max since Linux 6.16; not needed"),
        (false, false) => {
            row(Works::Yes, "no keys").fix("swappiness= since Linux 6.11; without, the kernel picks file or anon")
        }
    }
}

fn swap_reclaim(facts: &Facts) -> Check {
    let file = facts.memory_swap_reclaim;
    let row =
        |works, found: String| Check::new("memory.swap.reclaim", works, found, "reclaims a group, no more than asked");
    match file.groups {
        0 => row(Works::No, "not there".into()).fix("omr's patches for Linux 6.12; not needed"),
        n if file.writable > 0 => row(Works::Yes, format!("in {n} groups")),
        _ => row(Works::No, "may not be written".into()).fix("run as root"),
    }
}

fn high(facts: &Facts) -> Check {
    let file = facts.memory_high;
    let row = |works, found: String| Check::new("memory.high", works, found, "only with --backend memory.high");
    match (file.groups, file.writable) {
        (0, _) => row(Works::No, "not there".into()).fix(format!("{}; not needed", in_groups(facts, (4, 5)))),
        (_, 0) => row(Works::No, "may not be written".into()).fix("run as root; not needed where MGLRU is on"),
        (_, 1) => row(Works::Yes, "in 1 group".into()),
        (_, n) => row(Works::Yes, format!("in {n} groups")),
    }
}

fn psi(facts: &Facts) -> Check {
    let psi = &facts.psi;
    let row = |works, found: String| Check::new("PSI", works, found, "ends a sweep when tasks wait for memory");
    if !psi.present {
        return row(Works::No, "not there".into())
            .fix(format!("{}, and psi=1 on the kernel command line", since(facts, (4, 20), "CONFIG_PSI")));
    }
    match (psi.triggers, psi.shortest_window_ms) {
        (Support::NotProbed, _) => row(Works::NotProbed, "there, shortest window not probed".into()),
        (Support::Works, Some(ms @ ..=500)) => row(Works::Yes, format!("shortest window {ms} ms")),
        (Support::Works, Some(ms)) => {
            row(Works::Partly, format!("shortest window {} s", ms / 1000)).fix("CAP_SYS_RESOURCE allows shorter ones")
        }
        (Support::Denied, _) => row(Works::No, "triggers not allowed".into()).fix("needs CAP_SYS_RESOURCE"),
        _ => row(Works::No, "no triggers".into())
            .fix(format!("{}, and psi=1 on the kernel command line", since(facts, (5, 2), "CONFIG_PSI"))),
    }
}

fn swap(facts: &Facts) -> Vec<Check> {
    if facts.swap.is_empty() {
        let row = Check::new("swap", Works::No, "none", "holds anonymous memory");
        return vec![row.fix("only file memory can be reclaimed; swapon a disk, a file or zram")];
    }
    facts.swap.iter().map(one_swap).collect()
}

fn one_swap(swap: &Swap) -> Check {
    let device = &swap.device;
    let found = format!(
        "{} ({}), {} of {} free{}{}",
        device.path.display(),
        device.kind,
        device.free(),
        device.size,
        if swap.resume { ", resume device" } else { "" },
        media(swap)
    );
    let role = match device.kind {
        SwapKind::Zram => "holds memory, compressed in RAM",
        SwapKind::Partition | SwapKind::File => "holds memory, at the disk's pace",
    };
    if device.free().0 == 0 {
        return Check::new("swap", Works::No, found, role).fix("full: it holds no more");
    }
    Check::new("swap", Works::Yes, found, role)
}

/// Returns the media of the disks, such as `, on NVMe`; empty where the kind says it or nothing is
/// known.
fn media(swap: &Swap) -> String {
    let mut media: Vec<String> = swap.disks.iter().map(|disk| disk.medium.to_string()).collect();
    media.sort();
    media.dedup();
    let is_known = |disk: &Disk| !matches!(disk.medium, Medium::Memory | Medium::Unknown);
    if !swap.disks.iter().any(is_known) {
        return String::new();
    }
    // Passwords and keys that were in memory can be read from it.
    let is_plain = swap.disks.iter().any(|disk| is_known(disk) && !disk.encrypted);
    format!(", on {}{}", media.join(" and "), if is_plain { ", not encrypted" } else { "" })
}

fn power(facts: &Facts) -> Check {
    let row = |works, found: &str| Check::new("power", works, found, "on battery, auto writes to no disk");
    match facts.power {
        PowerSource::Mains => row(Works::Yes, "mains"),
        PowerSource::Battery => row(Works::Partly, "battery"),
        PowerSource::Unknown => row(Works::Partly, "unknown")
            .fix("counts as battery; /sys/class/power_supply has an entry that makes no sense"),
    }
}

fn zswap(facts: &Facts) -> Check {
    let row = |works, found: &str| Check::new("zswap", works, found, "compresses in RAM before the disk");
    match facts.zswap {
        Some(true) => row(Works::Yes, "on"),
        Some(false) => row(Works::No, "off").fix("boot with zswap.enabled=1; not needed"),
        None => row(Works::No, "not in this kernel").fix("needs a kernel built with CONFIG_ZSWAP; not needed"),
    }
}

fn hibernation(facts: &Facts) -> Check {
    let hibernation = &facts.hibernation;
    let row = |works, found: String| Check::new("hibernation", works, found, "keeps swap free for the image");
    match hibernation.availability {
        Availability::NotBuilt => {
            return row(Works::No, "not in this kernel".into()).fix("needs a kernel built with CONFIG_HIBERNATION");
        }
        Availability::Disabled => {
            return match facts.lockdown.filter(|lockdown| lockdown.is_locked()) {
                Some(lockdown) => row(Works::No, format!("forbidden by lockdown ({lockdown})"))
                    .fix("start without Secure Boot and without lockdown="),
                None => row(Works::No, "switched off".into()).fix("by nohibernate, or while a memfd_secret is in use"),
            };
        }
        Availability::Unknown => return row(Works::No, "unknown".into()).fix("/sys/power cannot be read"),
        Availability::Available => {}
    }
    let mut found = match (hibernation.resume, hibernation.resume_offset) {
        (None, _) => "no resume device set".to_owned(),
        (Some(device), Some(offset)) if offset.0 > 0 => format!("resume={device} offset {}", offset.0),
        (Some(device), _) => format!("resume={device}"),
    };
    if let Some(size) = hibernation.image_size {
        found += &format!(", image_size {size}");
    }
    let mut not_resumed = false;
    if let Some(compression) = &facts.image_compression {
        found += &format!(", compressed by {}", compression.compressor);
        match compression.lz4 {
            Some(Origin::BuiltIn) => found += " (lz4 is built in)",
            Some(Origin::Module) => found += " (lz4 is a module)",
            _ => {}
        }
        not_resumed = compression.compressor == "lz4" && compression.lz4 != Some(Origin::BuiltIn);
    }
    if let Some(agent) = &facts.ec2_agent {
        found += ", EC2's agent installed";
        return row(Works::Partly, found).fix(match agent.swapoff_after_resume {
            Some(script) => {
                format!("after resume, /{script} of the agent reads back all its swap; a newer agent does not, see docs/use/sleep.md")
            }
            None => "the agent switches its swap on right before it hibernates, see docs/use/sleep.md".into(),
        });
    }
    if !facts.swap.iter().any(|swap| swap.device.kind.is_disk()) {
        return row(Works::Partly, found).fix("the image needs swap on a disk, and there is none");
    }
    match hibernation.resume {
        None => row(Works::Partly, found).fix("boot with resume=DEVICE, unless systemd picks one"),
        Some(_) if not_resumed => row(Works::Partly, found).fix("to resume, the initramfs needs the module lz4"),
        Some(_) => row(Works::Yes, found),
    }
}

fn page_reporting(facts: &Facts) -> Check {
    let row = |works, found| Check::new("page reporting", works, found, "gives free memory to the host, for migration");
    match facts.page_reporting {
        Some(block) => row(Works::Yes, format!("in blocks of {block}")),
        None => row(Works::No, "off".into()).fix("balloon with free-page-reporting=on; not needed"),
    }
}

/// The capabilities that omr needs.
const NEEDED: [Capability; 4] =
    [Capability::DacOverride, Capability::SysResource, Capability::SysNice, Capability::SysPtrace];

fn privileges(facts: &Facts) -> Check {
    let status = facts.privileges.status;
    let row = |works, found: String| {
        Check::new("privileges", works, found, "to write to groups, watch pressure, lock own memory")
    };
    let who = match status.uid {
        Some(0) => "root".to_owned(),
        Some(uid) => format!("user {uid}"),
        None => "unknown user".to_owned(),
    };
    let lacking: Vec<&str> = NEEDED
        .into_iter()
        .filter(|&capability| !status.capabilities.is_some_and(|set| set.has(capability)))
        .map(Capability::name)
        .collect();
    let inside = facts.privileges.first_user_namespace == Some(false);
    let delegated = match (&facts.cgroup.own_group, facts.cgroup.own_group_writable) {
        (Some(group), true) if status.uid != Some(0) => format!(", own group {group} delegated"),
        _ => String::new(),
    };
    if inside {
        return row(Works::Partly, format!("{who} of a user namespace{delegated}"))
            .fix("outside of user namespaces, process hints work, too");
    }
    match lacking.as_slice() {
        [] => row(Works::Yes, format!("{who}, all capabilities it needs{delegated}")),
        some if some.len() == NEEDED.len() && delegated.is_empty() => {
            row(Works::No, format!("{who}, no capabilities")).fix("run as root, or with Delegate=yes in a systemd unit")
        }
        some if some.len() == NEEDED.len() => {
            row(Works::Partly, format!("{who}{delegated}")).fix("run as root for other groups")
        }
        some => row(Works::Partly, format!("{who}{delegated}")).fix(format!("lacks {}", some.join(", "))),
    }
}

fn mglru(facts: &Facts) -> Check {
    let row = |works, found: String| Check::new("MGLRU", works, found, "omr wss, omr reclaim --older-than");
    let Mglru { enabled, generations, sees_root, min_ttl_ms } = facts.mglru;
    let why = if facts.learns_ages { "without ages, sweeps only probe groups" } else { "for ages only" };
    let on = enabled.filter(|enabled| enabled.is_on()).map(|enabled| {
        let ttl = min_ttl_ms.filter(|ttl| *ttl > 0).map_or_else(String::new, |ttl| format!(", min_ttl_ms {ttl}"));
        format!("on (0x{:04x}{ttl})", enabled.0)
    });
    match (Missing::of(enabled, generations, facts.lockdown, sees_root), on) {
        (None, on) => {
            let found = format!("{}, debugfs mounted", on.unwrap_or_default());
            match facts.damon_modules.as_slice() {
                [] => row(Works::Yes, found),
                modules => row(Works::Partly, format!("{found}, {} on", modules.join(", "))).fix(format!(
                    "{}; used huge pages may look unused now, but are not reclaimed",
                    switch_off(modules)
                )),
            }
        }
        (Some(Missing::NotBuilt), _) => {
            row(Works::No, Missing::NotBuilt.found()).fix(format!("{}; {why}", since(facts, (6, 1), "CONFIG_LRU_GEN")))
        }
        (Some(missing @ Missing::NoWalks(_)), _) => {
            row(Works::Partly, missing.found()).fix(format!("{}; {why}", missing.fix()))
        }
        (Some(missing), Some(on)) => {
            row(Works::Partly, format!("{on}, {}", missing.found())).fix(format!("{}; {why}", missing.fix()))
        }
        (Some(missing), None) => row(Works::No, missing.found()).fix(format!("{}; {why}", missing.fix())),
    }
}

/// The commands that switch off the kernel's own users of DAMON.
fn switch_off(modules: &[&str]) -> String {
    let files = modules.iter().map(|name| format!("/sys/module/{name}/parameters/enabled"));
    format!("echo N | sudo tee {}", files.collect::<Vec<_>>().join(" "))
}

fn damon(facts: &Facts) -> Check {
    let row = |works, found: String| Check::new("DAMON", works, found, "ages of processes' memory, where MGLRU is off");
    match facts.damon {
        Damon::NotBuilt => row(Works::No, "not in this kernel".into())
            .fix(format!("{}; not needed where MGLRU is on", since(facts, (6, 2), "CONFIG_DAMON_SYSFS"))),
        Damon::Denied => row(Works::No, "closed to this user".into()).fix("run as root; not needed where MGLRU is on"),
        Damon::Unknown => row(Works::No, "in an unknown form".into()).fix("not needed where MGLRU is on"),
        Damon::Free => match facts.damon_modules.as_slice() {
            [] => row(Works::Yes, "free".into()),
            modules => row(Works::Partly, format!("used by {}", modules.join(", ")))
                .fix(format!("{}; not needed where MGLRU is on", switch_off(modules))),
        },
        Damon::InUse(n) => row(Works::Partly, format!("in use, {n} monitors"))
            .fix("stop the program that uses it; not needed where MGLRU is on"),
    }
}

fn process_madvise(facts: &Facts) -> Check {
    let hints = &facts.process_madvise;
    let row = |works, found: String| Check::new("process_madvise", works, found, "omr hint, omr reclaim PID, omr warm");
    let known = |wanted| {
        let all = [("cold", hints.cold), ("pageout", hints.pageout), ("willneed", hints.willneed)];
        let names: Vec<&str> = all.into_iter().filter(|(_, answer)| *answer == wanted).map(|(name, _)| name).collect();
        names.join(", ")
    };
    let lacking: Vec<&str> = [Capability::SysNice, Capability::SysPtrace]
        .into_iter()
        .filter(|&capability| !facts.privileges.status.capabilities.is_some_and(|set| set.has(capability)))
        .map(Capability::name)
        .collect();
    match hints.cold {
        Support::NotProbed => row(Works::NotProbed, "not probed".into()),
        Support::Missing => row(Works::No, "not in this kernel".into())
            .fix(format!("{}; not needed", since(facts, (5, 10), "CONFIG_ADVISE_SYSCALLS"))),
        Support::Denied => row(Works::No, "not allowed".into())
            .fix("needs CAP_SYS_NICE and CAP_SYS_PTRACE, and no seccomp filter; not needed"),
        Support::Works if facts.privileges.first_user_namespace == Some(false) => {
            row(Works::No, "not from a user namespace".into()).fix("run on the host as root; not needed")
        }
        Support::Works if !lacking.is_empty() => {
            row(Works::Partly, format!("{}, own memory only", known(Support::Works)))
                .fix(format!("needs {}; not needed", lacking.join(" and ")))
        }
        Support::Works => row(Works::Yes, known(Support::Works)),
    }
}

fn process_rules(found: &ProcessRules) -> Check {
    let rules = if found.rules == 1 { "1 rule".to_owned() } else { format!("{} rules", found.rules) };
    let row = |works, found| Check::new("process rules", works, found, "hints about background processes");
    match found.daemon_lacks.as_deref() {
        None => row(Works::Partly, format!("{rules}, no answer from the daemon"))
            .fix("systemctl start omr; as root, or in the group omr"),
        Some([]) => row(Works::Yes, rules),
        Some(lacking) => row(Works::No, format!("{rules}, the daemon lacks {}", lacking.join(" and ")))
            .fix("ln -s /usr/lib/omr/hints.conf /etc/systemd/system/omr.service.d/, and follow its comments"),
    }
}

/// Returns the row about memory tiers; `None`: the machine has one node.
fn tiers(facts: &Facts) -> Option<Check> {
    let nodes = &facts.nodes;
    if nodes.with_memory.len() < 2 {
        return None;
    }
    let row = |works, found| Check::new("memory tiers", works, found, "where reclaim moves memory before swap");
    let listed = |tier: &Vec<u32>| tier.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let found = match nodes.tiers.as_slice() {
        [] => {
            return Some(
                row(Works::No, format!("{} nodes", nodes.with_memory.len())).fix("since Linux 6.1; not needed"),
            );
        }
        [_] => {
            return Some(
                row(Works::No, format!("{} nodes of the same speed", nodes.with_memory.len())).fix("not needed"),
            );
        }
        [fastest, slower @ ..] => {
            let slower: Vec<String> = slower.iter().map(|tier| format!("then node {}", listed(tier))).collect();
            format!("fast: node {}, {}", listed(fastest), slower.join(", "))
        }
    };
    Some(match nodes.demotion {
        Some(true) => row(Works::Yes, format!("{found}; demotion on")),
        _ => row(Works::Partly, format!("{found}; demotion off"))
            .fix("write 1 to /sys/kernel/mm/numa/demotion_enabled: reclaim then moves memory there and frees less"),
    })
}

/// Returns the row about rules with a time in `older_than`.
fn age_rules(facts: &Facts, rules: usize) -> Check {
    let rules = if rules == 1 { "1 rule".to_owned() } else { format!("{rules} rules") };
    let row = |works, found| Check::new("older_than", works, found, "sweeps that reclaim only cold memory");
    let Mglru { enabled, generations, sees_root, .. } = facts.mglru;
    match Missing::of(enabled, generations, facts.lockdown, sees_root) {
        Some(Missing::Denied) => row(Works::NotProbed, rules).fix("run omr doctor as root"),
        Some(missing) => row(Works::No, format!("{rules}, MGLRU {}: not swept", missing.found())).fix(missing.fix()),
        None if facts.swap.is_empty() => row(Works::No, format!("{rules}, no swap: not swept")).fix(NO_SWAP),
        None => row(Works::Yes, rules),
    }
}

/// Returns the row about what gives memory back.
fn giving_back(is_possible: bool) -> Check {
    let row = |works, found| Check::new("giving back", works, found, "younger memory while everybody is away");
    if is_possible {
        return row(Works::Yes, "when somebody comes back");
    }
    row(Works::No, "omr-give-back.socket is not there").fix("systemctl start omr-give-back.socket; not needed")
}

fn ioctl(facts: &Facts, name: &'static str, answer: Support, version: (u32, u32)) -> Check {
    let row = |works, found: &str| Check::new(name, works, found, "maps of a process, read faster");
    match answer {
        Support::NotProbed => row(Works::NotProbed, "not probed"),
        Support::Works => row(Works::Yes, "answers"),
        Support::Denied => row(Works::No, "not allowed").fix("run as root; not needed where MGLRU is on"),
        Support::Missing => row(Works::No, "not in this kernel")
            .fix(format!("{}; not needed", since(facts, version, "CONFIG_PROC_PAGE_MONITOR"))),
    }
}
