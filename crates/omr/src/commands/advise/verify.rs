//! `omr advise --verify`: tries sizes of a group under a guard.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use omr_actuate::Live;
use omr_base::cancel::{self, Flag};
use omr_base::exit::Exit;
use omr_base::paths;
use omr_base::text::printable;
use omr_config as config;
use omr_engine::reclaim::backend::{self, Backend};
use omr_engine::trial::{Ended, TrialRunner, read, read_fixed};
use omr_engine::{Host, Session};
use omr_kernel::memcg::Group;
use omr_kernel::{Kernel, clock};
use omr_machine::groups::tree::{Tree, no_group};
use omr_machine::inventory::read_groups;
use omr_policy::trial::{self, Bottom, Breach, Guard, Plan, SMALLEST_STEP, Trial, TrialSample, Tried};
use omr_policy::{Class, Config, short};
use omr_units::{Bytes, Limit, Permyriad};
use serde::Serialize;

use super::args::{Args, SHORTEST};
use super::unit::limit_command;

/// Each size before the last is tried for this part of the last one's time.
const LOOKS: u32 = 20;

/// The output.
#[derive(Debug, Serialize)]
struct Summary {
    group: String,
    /// The group's own memory.high, which is restored at the end.
    own_limit: String,
    guard: Guard,
    /// The lowest size that may be tried.
    floor: Bytes,
    /// The requested size; `None`: the smallest is searched for.
    asked: Option<Bytes>,
    /// The smallest size that was within the guard for the whole time.
    held: Option<Bytes>,
    held_for_seconds: f64,
    /// The smallest size that was within the guard for the shorter time of the sizes before the
    /// last.
    good: Option<Bytes>,
    /// The difference between that size and the group's memory before the trial.
    saved: Option<Bytes>,
    /// The reason why no lower size was tried.
    bottom: Option<Bottom>,
    ended: &'static str,
    tried: Vec<Step>,
    seconds: f64,
}

/// The measurements at one size.
#[derive(Debug, Serialize)]
struct Step {
    size: Bytes,
    current: Bytes,
    seconds: f64,
    stall_seconds: f64,
    stall: Option<Permyriad>,
    came_back: Bytes,
    refaults: Option<Permyriad>,
    ended: &'static str,
}

impl Step {
    fn new(tried: &Tried) -> Self {
        Step {
            size: tried.size,
            current: tried.current,
            seconds: tried.time.as_secs_f64(),
            stall_seconds: tried.stall.as_secs_f64(),
            stall: tried.stall_share(),
            came_back: tried.refaults,
            refaults: tried.refault_share(),
            ended: match tried.ended {
                trial::Ended::Good => "good",
                trial::Ended::Held => "held",
                trial::Ended::Broken(Breach::Stall) => "stall",
                trial::Ended::Broken(Breach::Refaults) => "refaults",
                trial::Ended::Broken(Breach::Unknown) => "unknown",
                trial::Ended::Unreached => "unreached",
            },
        }
    }
}

impl Summary {
    /// Sums up a trial of a group that had the limit `own` and the size `before`.
    fn new(group: String, own: Limit, plan: &Plan, before: Bytes, trial: &Trial, ended: Ended, time: Duration) -> Self {
        let held = trial.held();
        Summary {
            group,
            own_limit: own.to_string(),
            guard: plan.guard,
            floor: plan.floor,
            asked: plan.target,
            held,
            held_for_seconds: plan.hold.as_secs_f64(),
            good: trial.good(),
            saved: held.map(|size| before - size),
            bottom: trial.bottom(),
            ended: match ended {
                Ended::Over => "over",
                Ended::Stopped => "stopped",
                Ended::Gone => "gone",
                Ended::Empty => "empty",
                Ended::Theirs(_) => "theirs",
            },
            tried: trial.tried().iter().map(Step::new).collect(),
            seconds: time.as_secs_f64(),
        }
    }
}

/// Runs the command.
pub fn run(root: &Path, args: &Args, target: &Path) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    let path = kernel.group_path(target);
    let group = Group::open(kernel.cgroup()?, path).map_err(|err| match err.is_gone() {
        true => no_group(path),
        false => err.into(),
    })?;
    let name = printable(&path.to_string_lossy());
    let loaded = config::load_or_refuse(root, None)?;
    let (tree, _) = read_groups(&kernel, root, &loaded, false)?;
    let seen = check_group(&kernel, &tree, &group, &name, args)?;
    let mut live = Live;
    let journal = backend::journal(&kernel, &paths::state_dir(root), &mut live)
        .context("memory.high is changed, so its value must be saved first")?;
    let floor = lowest_size(&kernel, &tree, &group, &name, &loaded.policy, args.size, seen.current)?;
    let backend = Backend::probe(&kernel, loaded.backend, &group, &mut live)
        .ok()
        .filter(|backend| *backend != Backend::MemoryHigh)
        .ok_or_else(|| Exit::Unsupported.error("--verify needs memory.reclaim (Linux 5.19)"))?;

    cancel::catch_signals();
    let stop = Flag::default();
    let guard = Guard { stall: args.psi, refaults: args.refaults };
    let watch = (args.r#for / LOOKS).max(SHORTEST);
    let plan = Plan { step: args.step, floor, target: args.size, watch, hold: args.r#for, guard };
    let session = Session {
        host: Host { kernel: &kernel, root },
        actuator: &mut live,
        journal: Some(&journal),
        cancel: &stop,
        progress: &mut |_| {},
    };
    let mut runner = TrialRunner::new(session, &group, &loaded.policy, backend).with_context(|| name.clone())?;
    let own = runner.user_limit();
    if !runner.knows_ages() {
        eprintln!(
            "omr: without ages (MGLRU) the kernel also reclaims memory in use, so a smaller size may pass than is \
             found: omr doctor shows how to get ages"
        );
    }
    let began = clock::read_monotonic();
    let bar = progress_bar(args.json);
    let (trial, ended) = runner.run(plan, &mut |trial| {
        bar.set_message(match trial.size() {
            Some(size) => format!("{name}: {size}"),
            None => format!("{name}: current size"),
        });
        bar.tick();
    })?;
    bar.finish_and_clear();

    let time = clock::read_monotonic().since(began);
    let summary = Summary::new(name, own, &plan, seen.current, &trial, ended, time);
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        outln!("{}", describe(&summary, &trial, &group, seen.current, ended, plan).trim_end());
    }
    Ok(match ended {
        Ended::Over if args.size.is_none() || summary.held.is_some() && summary.held == args.size => Exit::Done,
        _ => Exit::Partial,
    })
}

/// Checks the group before anything is changed, and returns its current state.
fn check_group(kernel: &Kernel, tree: &Tree, group: &Group, name: &str, args: &Args) -> Result<TrialSample> {
    if group.is_root() {
        return Err(Exit::Usage.error("the machine as a whole has no memory.high; name a group"));
    }
    let node = tree.nodes().iter().find(|node| node.id == group.id());
    let node = node.with_context(|| format!("group {name} was created just now; try again"))?;
    if !group.dir().has("memory.high") {
        let text =
            format!("{name} has no memory controller; enable it in cgroup.subtree_control of the group above it");
        return Err(Exit::Unsupported.error(text));
    }
    if let Some(assignment) = tree.assignment(node).filter(|_| !args.ignore_class) {
        if assignment.class != Class::Background {
            let (class, why) = (assignment.class.name(), assignment.explain(group.path()));
            return Err(
                Exit::Failed.error(format!("{name} is {class} ({why}); nothing was tried. --ignore-class allows it."))
            );
        }
        if !node.subtree_reclaimable {
            return Err(Exit::Failed.error(format!(
                "{name} has groups below it that may not be reclaimed; nothing was tried. \
                 --ignore-class allows it."
            )));
        }
    }
    if !group.read_populated(&mut Vec::new())? {
        return Err(Exit::Failed.error(format!("no process is in {name}, so a trial would show nothing")));
    }
    let seen = read(kernel, group)?;
    if seen.stall.is_none() {
        return Err(Exit::Unsupported.error(format!(
            "{name} has no memory.pressure, which shows if its tasks wait for memory: \
             PSI (CONFIG_PSI) is not in this kernel, or off (psi=0, cgroup.pressure)"
        )));
    }
    if seen.refaults.is_none() {
        let text = format!("memory.stat of {name} does not count refaults (workingset_refault_*, Linux 5.9)");
        return Err(Exit::Unsupported.error(text));
    }
    Ok(seen)
}

/// Returns the lowest size that may be tried: memory that cannot leave, is protected, or is kept by
/// a rule.
fn lowest_size(
    kernel: &Kernel,
    tree: &Tree,
    group: &Group,
    name: &str,
    config: &Config,
    size: Option<Bytes>,
    current: Bytes,
) -> Result<Bytes> {
    let node = tree.nodes().iter().find(|node| node.id == group.id());
    let keep = node.and_then(|node| tree.assignment(node)).and_then(|assignment| assignment.keep);
    let protected = match group.read_protection(&mut Vec::new())? {
        Limit::Max => Bytes::MAX,
        Limit::Bytes(bytes) => bytes,
    };
    let (fixed, kept) = (read_fixed(kernel, group, config)?, keep.map_or(Bytes::ZERO, |keep| keep.of(current)));
    let floors = [
        (fixed, "cannot leave memory: there is no page cache to drop and no free swap for it"),
        (protected.min(current.max(size.unwrap_or_default())), "is protected by memory.min or memory.low"),
        (kept, "is kept by a rule of the configuration"),
    ];
    let (floor, why) = floors.into_iter().max_by_key(|(floor, _)| *floor).unwrap_or_default();
    match size {
        Some(size) if size < floor => {
            Err(Exit::Failed.error(format!("{name}: {size} cannot be tried, {floor} of {current} {why}")))
        }
        None if current < floor + SMALLEST_STEP => {
            Err(Exit::Failed.error(format!("{name}: nothing can be tried, {} of {current} {why}", floor.min(current))))
        }
        _ => Ok(floor),
    }
}

/// Returns a line on the terminal that shows the progress.
fn progress_bar(json: bool) -> ProgressBar {
    let shown = std::io::stderr().is_terminal() && !json;
    let bar = ProgressBar::with_draw_target(
        None,
        if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() },
    );
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}   {elapsed}   ^C stops and restores") {
        bar.set_style(style);
    }
    bar
}

fn row(tried: &Tried) -> String {
    let share = |share: Option<Permyriad>| share.map_or_else(|| "-".into(), |share| share.to_string());
    format!(
        "  {:>10}  {:>8}  {:>10}  {:>8}  {:>8}  {}",
        tried.size.to_string(),
        short(tried.time).to_string(),
        tried.current.to_string(),
        share(tried.stall_share()),
        share(tried.refault_share()),
        describe_end(tried.ended),
    )
}

fn describe_end(ended: trial::Ended) -> &'static str {
    match ended {
        trial::Ended::Good => "good",
        trial::Ended::Held => "good to the end",
        trial::Ended::Broken(Breach::Stall) => "its tasks waited for memory",
        trial::Ended::Broken(Breach::Refaults) => "reclaimed memory came back",
        trial::Ended::Broken(Breach::Unknown) => "pressure or refaults could not be read",
        trial::Ended::Unreached => "could not be reached",
    }
}

/// Returns the text: the answer, the measurements, and how to set the limit.
fn describe(summary: &Summary, trial: &Trial, group: &Group, before: Bytes, ended: Ended, plan: Plan) -> String {
    let name = &summary.group;
    let mut text = String::new();
    let answer = match (summary.held, summary.good) {
        (Some(size), _) => {
            let saved = summary.saved.unwrap_or_default();
            let share = saved.share_of(before).unwrap_or_default();
            format!("{size} was enough for {}. It had {before}: {saved} less ({share})", short(plan.hold))
        }
        (None, Some(size)) => format!("{size} was enough for {}, but was not tried for longer", short(plan.watch)),
        (None, None) if summary.bottom == Some(Bottom::Full) => {
            "its tasks wait for memory or refault at its current size: no size was tried".into()
        }
        (None, None) => format!("no size below {before} was enough"),
    };
    let _ = writeln!(text, "{name}: {answer}.");
    match ended {
        Ended::Over => {}
        Ended::Stopped => text += "Stopped by a signal.\n",
        Ended::Gone => text += "The group is gone.\n",
        Ended::Empty => text += "The group has no process any more.\n",
        Ended::Theirs(limit) => {
            let _ = writeln!(text, "Another program set memory.high to {limit} meanwhile; this value stays.");
        }
    }
    let _ = writeln!(text, "\n  {:>10}  {:>8}  {:>10}  {:>8}  {:>8}", "SIZE", "TIME", "MEMORY", "WAITED", "BACK/MIN");
    for tried in trial.tried() {
        let _ = writeln!(text, "{}", row(tried));
    }
    let _ = write!(text, "\nmemory.high is {} as before.", summary.own_limit);
    if let Some(size) = summary.held {
        let _ = write!(text, " To limit it: {}", limit_command(group.path(), size));
    }
    text
}
