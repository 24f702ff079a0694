//! `omr prepare`: reclaims before hibernation, a burst of allocations or a migration.

mod burst;
mod migrate;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use omr_actuate::{Actuator, DryRun, Live};
use omr_base::cancel::{self, Flag};
use omr_base::exit::Exit;
use omr_base::text::printable;
use omr_base::when;
use omr_config as config;
use omr_engine as engine;
use omr_engine::prepare::image::{self, Obstacle, Place};
use omr_engine::prepare::zram::{self, Plan};
use omr_engine::prepare::{Done, Goal, Preparation, Reached, Target, disk_rate, hibernated, image_size};
use omr_engine::reclaim::backend;
use omr_engine::reclaim::limit_journal::Journal;
use omr_kernel::Kernel;
use omr_kernel::hibernate::Hibernation;
use omr_policy::forecast::Forecast;
use omr_policy::{End, short};
use omr_units::{Bytes, millis};
use serde::Serialize;

use crate::bus::start_unit;
use crate::commands::options::Output;
use crate::commands::outcome;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make the image small and quick to write, and leave swap free for it
    ///
    /// Reclaims from background groups only. Exit code 0: the target was reached; 4: it was not
    /// reached in time; 3: this machine cannot hibernate, and a message says why and what to do.
    Hibernate(Hibernate),
    /// Have this much memory free before a program allocates it at once
    ///
    /// Counts memory that is free above the kernel's watermarks, so that the burst neither waits
    /// for reclaim nor starts it. Reclaims from background groups only. Exit code 0: this much is
    /// free; 4: it was not reached in time.
    Burst(burst::Args),
    /// Empty this virtual machine before it is moved to another host
    ///
    /// Reclaims all memory of background groups that may be reclaimed, compacts free memory into
    /// blocks that free page reporting can return to the host, and waits until they are reported.
    /// Reported memory is not sent. Exit code 0: done; 4: not everything was done in time; 3: this
    /// machine reports no free memory to a host.
    Migrate(migrate::Args),
    /// Raise image_size if the kernel would otherwise search for seconds for little more to reclaim
    ///
    /// Run this right before the image is made. image_size is raised if it is so low (e.g. 0) that
    /// reclaim cannot reach it, and most of the memory that can leave has left. The kernel then
    /// copies the memory in use and does not search. /usr/lib/systemd/system-sleep/omr runs this
    /// before hibernation, and "omr prepare restore" afterwards. It does nothing with
    /// raise_image_size = "off" in the configuration.
    Snapshot,
    /// Restore image_size, and zram that a killed preparation left off
    ///
    /// The next preparation restores them, too. If omr was killed while zram was off, a helper
    /// process has switched zram on again at once. Exit code 0: everything is restored.
    Restore,
}

#[derive(Debug, clap::Args)]
pub struct Hibernate {
    /// The largest size of the image before compression, or min for the smallest possible
    ///
    /// The default is the size that the kernel can copy without reclaiming first: image_size (2/5
    /// of memory, unless set) or about half of memory, whichever is less. A smaller image takes
    /// longer to prepare and makes resume faster, as memory that is swapped out is not in the
    /// image.
    #[arg(long, value_parser = parse_target, value_name = "SIZE")]
    target: Option<Target>,

    /// Leave zram on; the image then contains its content
    ///
    /// zram keeps its content in memory, and the kernel usually fills it before any disk. By
    /// default zram is switched off during the preparation: its content comes back to memory and is
    /// swapped out to the disk. zram stays on, and a note says why, if its content does not fit in
    /// memory or on the disk, could not be written in time, or would gain nothing.
    #[arg(long)]
    keep_zram: bool,

    #[command(flatten)]
    common: Common,
}

impl Hibernate {
    /// Returns true for a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.common.output.dry_run
    }

    /// Returns true if the output is JSON.
    pub fn is_json(&self) -> bool {
        self.common.output.json
    }
}

/// The options of all preparations.
#[derive(Debug, clap::Args)]
struct Common {
    /// Stop after this time, e.g. 30s, even if the target is not reached
    #[arg(long, value_parser = when::parse_length, value_name = "TIME")]
    deadline: Option<Duration>,

    #[command(flatten)]
    output: Output,
}

fn parse_target(text: &str) -> Result<Target, String> {
    match text {
        "min" => Ok(Target::Smallest),
        _ => match text.parse() {
            Ok(Bytes::ZERO) => Ok(Target::Smallest),
            Ok(size) => Ok(Target::AtMost(size)),
            Err(_) => Err("expected a size such as \"200M\", or min".into()),
        },
    }
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    match &args.what {
        What::Hibernate(args) => hibernate(root, args),
        What::Burst(args) => burst::run(root, args),
        What::Migrate(args) => migrate::run(root, args),
        What::Snapshot => snapshot(root),
        What::Restore => restore(root),
    }
}

/// `omr prepare snapshot`.
fn snapshot(root: &Path) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    if let Err(err) = hibernated::record(&kernel, root) {
        eprintln!("omr: {err:#}");
    }
    match image_size::raise(&kernel, root, &config::load_or_refuse(root, None)?.policy, &mut Live)? {
        Some(size) => outln!("image_size is {size} until resume: the kernel copies the memory in use"),
        None => match (Hibernation::read(&kernel).image_size, image::forecast(&kernel)) {
            (Some(size), Some(now)) => outln!(
                "image_size stays {size}: {} are in use, of which {} could leave",
                now.in_use,
                now.could_leave.total()
            ),
            _ => outln!("image_size stays as it is"),
        },
    }
    Ok(Exit::Done)
}

/// `omr prepare restore`.
fn restore(root: &Path) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    let image_size = image_size::restore(&kernel, root, &mut Live);
    if let Some(names) = zram::restore(&kernel, root, start_unit, &mut Live)? {
        outln!("{names} (zram) is on again");
    }
    if let Some(size) = image_size? {
        outln!("image_size is {size} again");
    }
    Ok(Exit::Done)
}

/// The summary that is printed at the end.
#[derive(Debug, Serialize)]
struct Summary {
    prepared: &'static str,
    #[serde(flatten)]
    done: Done,
    /// The largest size of the image; `None`: the smallest possible.
    target: Option<Bytes>,
    before: Forecast,
    after: Forecast,
    swap: Place,
    /// The write rate of the disk in an earlier run, used if this run measures none.
    last_disk_rate: Option<Bytes>,
    /// The time to write the image if it does not compress at all; `None`: the rate is unknown.
    write_ms_at_most: Option<u64>,
    /// The content of zram that was switched off during the run, or would be; `None`: it stays on.
    zram_off: Option<Bytes>,
    notes: Vec<String>,
    dry_run: bool,
}

/// The output if this machine cannot prepare.
#[derive(Debug, Serialize)]
struct Refused {
    prepared: &'static str,
    end: &'static str,
    why: String,
}

/// `omr prepare hibernate`.
pub fn hibernate(root: &Path, args: &Hibernate) -> Result<Exit> {
    let common = &args.common;
    let kernel = Kernel::open(root)?;
    kernel.cgroup()?;
    let loaded = config::load_or_refuse(root, None)?;
    let target = args.target.unwrap_or(Target::Fast);
    if !common.output.dry_run {
        // The target depends on it.
        restore_image_size(&kernel, root);
    }
    let goal = match Goal::hibernate(&kernel, root, target) {
        Ok(goal) => goal,
        Err(obstacle) => return refuse(common, "hibernate", obstacle),
    };
    let Some(before) = image::forecast(&kernel) else { return refuse(common, "hibernate", Obstacle::Unknown) };
    let Goal::Image { place, at_most, .. } = &goal else { return refuse(common, "hibernate", Obstacle::Unknown) };

    let mut session = Session::open(&kernel, root, &loaded, common, common.deadline)?;
    let last_disk_rate = disk_rate::load(root, &place.device.path);
    let mut zram = session.plan_zram(&goal, place, &before, args.keep_zram)?;
    let done = session.run_without_zram(&goal, target, &mut zram)?;
    let mut after = image::forecast(&kernel).unwrap_or(before);
    if let Some(Ok(plan)) = &zram
        && common.output.dry_run
    {
        after = after.without_zram(plan.leaves);
    }
    if let Some(rate) = done.disk_rate.filter(|_| !common.output.dry_run) {
        disk_rate::keep(&kernel, root, rate);
    }
    let rate = done.disk_rate.or(last_disk_rate);
    let time = rate.and_then(|rate| after.most_written().time_at(rate));
    let summary = Summary {
        prepared: "hibernate",
        target: *at_most,
        before,
        after,
        swap: place.again(&kernel).unwrap_or_else(|| place.clone()),
        last_disk_rate,
        write_ms_at_most: time.map(millis),
        zram_off: zram.as_ref().and_then(|zram| zram.as_ref().ok()).map(|plan| plan.held),
        notes: notes(&kernel, place, &after, zram.as_ref()),
        dry_run: common.output.dry_run,
        done,
    };
    print(common, &summary)?;
    Ok(exit(common, &summary.done))
}

/// Restores an image_size that an earlier omr left raised.
fn restore_image_size(kernel: &Kernel, root: &Path) {
    match image_size::restore(kernel, root, &mut Live) {
        Ok(None) => {}
        Ok(Some(size)) => eprintln!("omr: image_size, left raised by an omr that was killed, is {size} again"),
        Err(err) => eprintln!("omr: {err:#}"),
    }
}

fn exit(common: &Common, done: &Done) -> Exit {
    match (done.end, done.why) {
        _ if common.output.dry_run => Exit::Done,
        (Reached::Reached, _) => Exit::Done,
        (Reached::Partly, why) => outcome::exit(why),
    }
}

/// Runs a preparation.
fn prepare(
    kernel: &Kernel,
    root: &Path,
    loaded: &config::Loaded,
    goal: &Goal,
    common: &Common,
    deadline: Option<Duration>,
) -> Result<Done> {
    Session::open(kernel, root, loaded, common, deadline)?.run(goal, false)
}

/// A preparation that can be stopped by a signal and ends at the deadline.
struct Session<'a> {
    kernel: &'a Kernel,
    root: &'a Path,
    loaded: &'a config::Loaded,
    common: &'a Common,
    actuator: Box<dyn Actuator>,
    journal: Option<Journal>,
    stop: Flag,
}

impl<'a> Session<'a> {
    /// Opens a preparation: signals and the deadline apply from here on.
    fn open(
        kernel: &'a Kernel,
        root: &'a Path,
        loaded: &'a config::Loaded,
        common: &'a Common,
        deadline: Option<Duration>,
    ) -> Result<Self> {
        let mut actuator: Box<dyn Actuator> = if common.output.dry_run { Box::new(DryRun) } else { Box::new(Live) };
        let journal = match common.output.dry_run {
            true => None,
            false => backend::open_journal(kernel, root, loaded.backend, &mut *actuator)?,
        };
        cancel::catch_signals();
        if !common.output.dry_run {
            match zram::restore(kernel, root, start_unit, &mut *actuator) {
                Ok(None) => {}
                Ok(Some(names)) => eprintln!("omr: {names} (zram), left off by an omr that was killed, is on again"),
                Err(err) => eprintln!("omr: {err:#}"),
            }
        }
        Ok(Session { kernel, root, loaded, common, actuator, journal, stop: Flag::with_timeout(deadline) })
    }

    /// Plans to switch zram off during the run. Returns `None` without zram, and the reason if it
    /// stays on.
    fn plan_zram(
        &self,
        goal: &Goal,
        place: &Place,
        before: &Forecast,
        keep: bool,
    ) -> Result<Option<Result<Plan, String>>> {
        if zram::before(self.kernel, place).is_empty() {
            return Ok(None);
        }
        if keep {
            return Ok(Some(Err("--keep-zram".to_owned())));
        }
        let missing = goal.missing(self.kernel)?;
        Plan::new(self.kernel, self.root, self.loaded, place, before, missing, self.common.deadline).map(Some)
    }

    /// Works towards the goal with zram off as planned. If zram cannot be switched off, the plan is
    /// replaced by the reason.
    fn run_without_zram(
        &mut self,
        goal: &Goal,
        target: Target,
        zram: &mut Option<Result<Plan, String>>,
    ) -> Result<Done> {
        let Some(Ok(plan)) = zram else { return self.run(goal, false) };
        if self.common.output.dry_run {
            return self.run(goal, false);
        }
        // The other half is for the disk.
        let time = self.common.deadline.map(|time| time / 2);
        let off = match plan.switch_off(self.kernel, self.root, &mut *self.actuator, start_unit, time) {
            Ok(off) => off,
            Err(why) => {
                *zram = Some(Err(why));
                return self.run(goal, false);
            }
        };
        // What could leave has changed.
        let goal = Goal::hibernate(self.kernel, self.root, target).unwrap_or_else(|_| goal.clone());
        let mut done = self.run(&goal, true);
        if let Err(err) = off.switch_on(&mut *self.actuator)
            && let Ok(done) = &mut done
        {
            done.error.get_or_insert_with(|| format!("{err:#}"));
        }
        done
    }

    /// Works towards the goal, with a bar on a terminal. `after_zram`: zram was just switched off.
    fn run(&mut self, goal: &Goal, after_zram: bool) -> Result<Done> {
        let bar = progress_bar(self.common, goal.missing(self.kernel)?);
        let mut session = engine::Session {
            host: engine::Host { kernel: self.kernel, root: self.root },
            actuator: &mut *self.actuator,
            journal: self.journal.as_ref(),
            cancel: &self.stop,
            progress: &mut |progress| bar.set_position(progress.freed.0),
        };
        let done = Preparation { session: &mut session, config: self.loaded, after_zram }.run(goal);
        bar.finish_and_clear();
        done
    }
}

fn refuse(common: &Common, prepared: &'static str, why: impl ToString) -> Result<Exit> {
    let why = why.to_string();
    if common.output.json {
        let refused = Refused { prepared, end: "refused", why: why.clone() };
        outln!("{}", serde_json::to_string_pretty(&refused)?);
    }
    Err(Exit::Unsupported.error(why))
}

/// Returns a progress bar, which is hidden in a pipe.
fn bar_target(common: &Common) -> ProgressDrawTarget {
    if common.output.shows_progress() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

fn progress_bar(common: &Common, missing: Option<Bytes>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(missing.map(|bytes| bytes.0), bar_target(common));
    let template = match missing {
        None => "{binary_bytes} freed   {binary_bytes_per_sec}   ^C stops",
        Some(_) => "{bar:28}  {binary_bytes} of {binary_total_bytes}   {binary_bytes_per_sec}   {eta} left   ^C stops",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("█░"));
    }
    bar
}

/// Returns notes: memory that zram or zswap keeps in the image, and the reason if zram stays on.
fn notes(kernel: &Kernel, place: &Place, after: &Forecast, zram: Option<&Result<Plan, String>>) -> Vec<String> {
    let mut notes = Vec::new();
    let devices = zram::before(kernel, place);
    let names: Vec<_> = devices.iter().map(|device| printable(&device.path.to_string_lossy())).collect();
    let (names, disk) = (names.join(", "), place.name());
    match zram {
        None => {}
        Some(Ok(plan)) => notes.push(format!(
            "{names} (zram) is off during the preparation, so that memory goes to {disk}, also the {} that was in zram",
            plan.held
        )),
        Some(Err(why)) => notes.push(format!(
            "{names} (zram) is filled before {disk}, and its content ({} now) is in the image; it stays on: {why}",
            after.zram
        )),
    }
    if after.zswap >= Bytes::mib(1) {
        notes.push(format!(
            "zswap holds {} in memory, which is in the image; with zswap.enabled=0 it would be on {}",
            after.zswap,
            place.name()
        ));
    }
    let free = place.again(kernel).map_or(Bytes::ZERO, |place| place.device.free());
    if after.most_written() > free {
        notes.push(format!(
            "{} has {free} free: an image that hardly compresses would need {} and not fit",
            place.name(),
            after.most_written()
        ));
    }
    notes
}

fn print(common: &Common, summary: &Summary) -> Result<()> {
    if common.output.json {
        outln!("{}", serde_json::to_string_pretty(summary)?);
        return Ok(());
    }
    let (done, after) = (&summary.done, &summary.after);
    let time = match (summary.write_ms_at_most, done.disk_rate.or(summary.last_disk_rate)) {
        (Some(ms), Some(rate)) => {
            let measured = if done.disk_rate.is_some() { "" } else { " as last measured" };
            format!("at most {} to write at {rate}/s{measured}", short(Duration::from_millis(ms)))
        }
        _ => "time to write it unknown (no swap-out has measured the disk yet)".to_owned(),
    };
    if summary.dry_run {
        let leave = &after.could_leave;
        outln!("image now: at most {}, {time}", after.image);
        outln!("  in use       {}; up to {} is copied, the kernel reclaims the rest first", after.in_use, after.fast);
        outln!("  must stay    {} (zram {}, zswap {})", after.must_stay, after.zram, after.zswap);
        let zram = if leave.zram > Bytes::ZERO { format!(", zram {}", leave.zram) } else { String::new() };
        outln!(
            "  could leave  {}: anonymous {}, swap cache {}, file {} clean and {} dirty, slab {}{zram}",
            leave.total(),
            leave.anon,
            leave.swap_cache,
            leave.clean_file,
            leave.dirty_file,
            leave.slab
        );
        outln!("  goes to      {}, {} free", summary.swap.name(), summary.swap.device.free());
        let missing = done.missing.map_or_else(|| "as much as possible".to_owned(), |missing| missing.to_string());
        outln!(
            "would ask background groups for {} ({missing} should leave); nothing was done (--dry-run)",
            done.planned
        );
    } else {
        let ready = match done.end {
            Reached::Reached => "ready to hibernate",
            Reached::Partly => "partly ready to hibernate",
        };
        outln!("{ready}: image of at most {} (before: {} in use), {time}", after.image, summary.before.in_use);
        print_done(done, "should leave")?;
    }
    for note in &summary.notes {
        outln!("note: {note}");
    }
    Ok(())
}

/// Prints the reclaimed memory, and why it is not more.
fn print_done(done: &Done, should: &str) -> Result<()> {
    let mut line = format!(
        "{} freed (anon {}, file {}), {} written to swap, {}.",
        done.freed,
        done.freed_anon,
        done.freed_file,
        done.swapped_out,
        short(Duration::from_secs_f64(done.seconds)),
    );
    if done.end == Reached::Partly {
        if let Some(missing) = done.missing {
            line += &format!(" {missing} more {should}.");
        }
        line += &match done.why {
            End::Stopped => " Stopped by a signal.".to_owned(),
            end => format!(" Ended: {}.", end.words()),
        };
    }
    outln!("{line}");
    if let Some(error) = &done.error {
        eprintln!("omr: {error}");
    }
    Ok(())
}
