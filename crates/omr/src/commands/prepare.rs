//! `omr prepare`: reclaim now, for what is to come.

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
use omr_engine::prepare::{Done, Goal, Preparation, Reached, Target, disk_rate, image_size};
use omr_engine::reclaim::backend;
use omr_engine::reclaim::limit_journal::Journal;
use omr_kernel::Kernel;
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
    /// Takes from background groups only. Exit code 0: the target is reached; 4: less than that was to
    /// be had in time; 3: this machine cannot hibernate, and a sentence says why and what to do.
    Hibernate(Hibernate),
    /// Have this much free memory ready before somebody allocates it at once
    ///
    /// Free above the watermarks up to which the kernel reclaims by itself, so that the burst neither
    /// waits for reclaim nor sets it going. Takes from background groups only. Exit code 0: that much is
    /// free; 4: less was to be had in time.
    Burst(burst::Args),
    /// Empty this virtual machine before it is moved to another host
    ///
    /// Reclaims all that may be taken from background groups, compacts what is free into blocks that
    /// free page reporting can hand back to the host, and waits until the host was told of them: such
    /// memory is not sent. Exit code 0: done; 4: less was to be had in time; 3: this machine reports no
    /// free memory to a host.
    Migrate(migrate::Args),
    /// Have the kernel copy what is in use where it would look all over the machine for little more to take
    ///
    /// Raises image_size when that is set so low (0, say) that all that can leave memory does not get it there, and most of
    /// that has left: the search takes the kernel seconds. For the moment right before the image is made:
    /// /usr/lib/systemd/system-sleep/omr runs it before hibernation, and "omr prepare restore" after. Not with
    /// raise_image_size = "off" in the configuration.
    Snapshot,
    /// Put back what was changed for hibernation: image_size, and zram where a preparation was killed with it off
    ///
    /// The next preparation does so, too, and where omr alone was killed with zram off a process of its own has done it at
    /// once. Exit code 0: all is as it was.
    Restore,
}

#[derive(Debug, clap::Args)]
pub struct Hibernate {
    /// How large the image may be before compression: a size, or min for as small as will go
    ///
    /// By default as large as the kernel can copy at once, without reclaiming first: image_size
    /// (2/5 of the memory, unless set) or about half of the memory, whichever is less. Smaller takes
    /// longer here, and makes resume faster: what is swapped out before is not read with the image.
    #[arg(long, value_parser = parse_target, value_name = "SIZE")]
    target: Option<Target>,

    /// Leave zram on, and with it in the image what is swapped to it
    ///
    /// zram is memory, and usually filled before any disk. By default it is switched off for as long as this takes: what
    /// it holds comes back to memory and leaves for the disk like the rest. It stays on, and a note says why, where that
    /// does not fit in memory or on the disk, could not be written in time, or would gain nothing.
    #[arg(long)]
    keep_zram: bool,

    #[command(flatten)]
    common: Common,
}

impl Hibernate {
    /// Nothing is to be done, only said.
    pub fn is_dry_run(&self) -> bool {
        self.common.output.dry_run
    }

    /// For machines.
    pub fn is_json(&self) -> bool {
        self.common.output.json
    }
}

/// What all preparations have.
#[derive(Debug, clap::Args)]
struct Common {
    /// Stop after this time, e.g. 30s, reached or not
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
    match image_size::raise(&Kernel::open(root)?, root, &config::load_or_refuse(root, None)?.policy, &mut Live)? {
        Some(size) => outln!("image_size is {size} until the machine is back: what is in use is copied"),
        None => outln!("image_size stays as it is"),
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

/// What is printed at the end.
#[derive(Debug, Serialize)]
struct Summary {
    prepared: &'static str,
    #[serde(flatten)]
    done: Done,
    /// What the image may hold; `None`: as little as will go.
    target: Option<Bytes>,
    before: Forecast,
    after: Forecast,
    swap: Place,
    /// Where the rate is not measured in this run: that of an earlier one.
    last_disk_rate: Option<Bytes>,
    /// Writing the image, if it does not compress at all.
    write_ms_at_most: Option<u64>,
    /// What zram held that was switched off meanwhile, or would be.
    zram_off: Option<Bytes>,
    notes: Vec<String>,
    dry_run: bool,
}

/// What is printed instead.
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
        match image_size::restore(&kernel, root, &mut Live) {
            Ok(None) => {}
            Ok(Some(size)) => eprintln!("omr: image_size, left raised by an omr that was killed, is {size} again"),
            Err(err) => eprintln!("omr: {err:#}"),
        }
    }
    let goal = match Goal::hibernate(&kernel, root, target) {
        Ok(goal) => goal,
        Err(obstacle) => return refuse(common, "hibernate", obstacle),
    };
    let Some(before) = image::forecast(&kernel) else { return refuse(common, "hibernate", Obstacle::Unknown) };
    let Goal::Image { place, at_most, .. } = &goal else { return refuse(common, "hibernate", Obstacle::Unknown) };

    let mut session = Session::open(&kernel, root, &loaded, common, common.deadline)?;
    let last_disk_rate = disk_rate::load(root, &place.device.path);
    let mut zram = match zram::before(&kernel, place).is_empty() {
        true => None,
        false if args.keep_zram => Some(Err("--keep-zram".to_owned())),
        false => {
            let missing = goal.missing(&kernel)?;
            Some(Plan::new(&kernel, root, &loaded, place, &before, missing, common.deadline)?)
        }
    };
    let mut off = None;
    if let Some(Ok(plan)) = &zram
        && !common.output.dry_run
    {
        // The other half is for the disk.
        match plan.switch_off(&kernel, root, &mut *session.actuator, start_unit, common.deadline.map(|time| time / 2)) {
            Ok(switched) => off = Some(switched),
            Err(why) => zram = Some(Err(why)),
        }
    }
    // What could leave has changed.
    let goal = match off.is_some() {
        true => Goal::hibernate(&kernel, root, target).unwrap_or_else(|_| goal.clone()),
        false => goal.clone(),
    };
    let mut done = session.run(&goal);
    if let Some(off) = off
        && let Err(err) = off.switch_on(&mut *session.actuator)
        && let Ok(done) = &mut done
    {
        done.error.get_or_insert_with(|| format!("{err:#}"));
    }
    let done = done?;
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

fn exit(common: &Common, done: &Done) -> Exit {
    match (done.end, done.why) {
        _ if common.output.dry_run => Exit::Done,
        (Reached::Reached, _) => Exit::Done,
        (Reached::Partly, why) => outcome::exit(why),
    }
}

/// Carries a preparation out.
fn prepare(
    kernel: &Kernel,
    root: &Path,
    loaded: &config::Loaded,
    goal: &Goal,
    common: &Common,
    deadline: Option<Duration>,
) -> Result<Done> {
    Session::open(kernel, root, loaded, common, deadline)?.run(goal)
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
    /// From now on signals and the deadline count.
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

    /// Works towards the goal, with a bar on a terminal.
    fn run(&mut self, goal: &Goal) -> Result<Done> {
        let bar = progress_bar(self.common, goal.missing(self.kernel)?);
        let mut session = engine::Session {
            host: engine::Host { kernel: self.kernel, root: self.root },
            actuator: &mut *self.actuator,
            journal: self.journal.as_ref(),
            cancel: &self.stop,
            progress: &mut |progress| bar.set_position(progress.freed.0),
        };
        let done = Preparation { session: &mut session, config: self.loaded }.run(goal);
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

/// Nobody looks at a bar in a pipe.
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

/// What keeps memory in the image that seems to have left it, and what became of zram.
fn notes(kernel: &Kernel, place: &Place, after: &Forecast, zram: Option<&Result<Plan, String>>) -> Vec<String> {
    let mut notes = Vec::new();
    let devices = zram::before(kernel, place);
    let names: Vec<_> = devices.iter().map(|device| printable(&device.path.to_string_lossy())).collect();
    let (names, disk) = (names.join(", "), place.name());
    match zram {
        None => {}
        Some(Ok(plan)) => notes.push(format!(
            "{names} (zram) is off while this works, so that memory leaves for {disk}, and {} that it held as well",
            plan.held
        )),
        Some(Err(why)) => notes.push(format!(
            "{names} (zram) is filled before {disk}, and what it holds is in the image ({} now); it stays on: {why}",
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
            "{} has {free} free: an image that hardly compresses would take {} and not fit",
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
        _ => "time to write it unknown (nothing was swapped out yet to measure the disk by)".to_owned(),
    };
    if summary.dry_run {
        let leave = &after.could_leave;
        outln!("image now: at most {}, {time}", after.image);
        outln!("  in use       {}; up to {} is copied at once, more is reclaimed first", after.in_use, after.fast);
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
        let missing = done.missing.map_or_else(|| "as much as will go".to_owned(), |missing| missing.to_string());
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

/// What was done, and why not more.
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
