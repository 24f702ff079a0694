//! `omr hint`: tells the kernel how the memory of a process will be used.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use omr_actuate::Advice;
use omr_base::exit::Exit;
use omr_base::when;
use omr_config as config;
use omr_engine::Host;
use omr_engine::hint::{self, Expected, Extent, LayoutId, Rules, Selection, Subject};
use omr_kernel::Kernel;
use omr_kernel::maps::Backing;
use omr_kernel::ranges::Ranges;
use omr_machine::processes;
use omr_units::Amount;

use super::hinted::Order;
use super::options::{Output, Safety};

/// Pages out, deactivates or brings back the memory of a process. No data is lost: memory that is
/// used again comes back. Memory that is shared, locked, in huge pages or of a device is skipped
/// and counted.
#[derive(Debug, clap::Args)]
#[command(long_about)]
#[command(group = clap::ArgGroup::new("advice"))]
#[command(mut_arg("ignore_class", |arg| {
    arg.help("Also hint a process of a foreground or protected group, and memory that a rule keeps")
}))]
#[command(mut_arg("dry_run", |arg| arg.help("Print what would be done for each mapping, and do nothing")))]
pub struct Args {
    /// The process id
    #[arg(value_name = "PID", value_parser = parse_pid)]
    pid: u32,

    /// Deactivate: the kernel reclaims this memory first when memory gets scarce
    #[arg(long, group = "advice")]
    cold: bool,

    /// Page out now, whether used or not
    #[arg(long, group = "advice")]
    pageout: bool,

    /// Read back from swap and files, as the memory will be needed soon
    #[arg(long, group = "advice")]
    willneed: bool,

    /// Only these addresses, as in /proc/PID/maps, e.g. 7f1200000000-7f1240000000; may be repeated
    ///
    /// A range may have a hint of its own, in place of one for all: A-B=cold, A-B=pageout or
    /// A-B=willneed.
    #[arg(long, value_name = "A-B[=HINT]", value_parser = parse_range)]
    range: Vec<Part>,

    /// Do nothing if the layout is not this one, and stop when it changes
    ///
    /// A dry run of the same command prints the layout: what the process has mapped at the
    /// addresses of all --range, or anywhere without a range. The kernel has no such check, so a
    /// change at the moment of a call is noticed after that call, which is about 2 MiB, or 8 MiB
    /// with --cold.
    #[arg(long, value_name = "LAYOUT", conflicts_with_all = ["tree", "dry_run"])]
    layout: Option<LayoutId>,

    /// With --json, name each range with its result, and not only those not hinted as asked
    #[arg(long, requires = "json")]
    all_ranges: bool,

    /// Only anonymous memory: heap, stack
    #[arg(long, conflicts_with = "file")]
    anon: bool,

    /// Only file pages
    #[arg(long)]
    file: bool,

    /// Include all descendants
    #[arg(long)]
    tree: bool,

    /// Stop after this time, e.g. 30s
    #[arg(long, value_parser = when::parse_length, value_name = "TIME")]
    timeout: Option<Duration>,

    #[command(flatten)]
    safety: Safety,

    #[command(flatten)]
    output: Output,
}

fn parse_pid(text: &str) -> Result<u32, String> {
    match processes::pid(Path::new(text)) {
        Some(pid) => pid.map_err(|_| "there is no such process".into()),
        None => Err("expected a process id; omr ps shows the processes".into()),
    }
}

/// A range of addresses, and its own hint.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    range: Range<u64>,
    advice: Option<Advice>,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--range {:x}-{:x}", self.range.start, self.range.end)?;
        self.advice.map_or(Ok(()), |advice| write!(f, "={}", advice.name()))
    }
}

/// All hints, in the order in which they are given. A page-out makes room for a prefetch. Memory is
/// marked cold after it: when the swap cache is freed, cold memory would go first.
const ADVICES: [Advice; 3] = [Advice::PageOut, Advice::Cold, Advice::WillNeed];

/// Parses `A-B` or `A-B=HINT`, the addresses in hexadecimal digits.
fn parse_range(text: &str) -> Result<Part, String> {
    let (text, hint) = text.split_once('=').map_or((text, None), |(text, hint)| (text, Some(hint)));
    let advice = |hint: &str| {
        let found = ADVICES.into_iter().find(|advice| advice.name() == hint);
        found.ok_or_else(|| format!("\"{hint}\" is no hint; expected cold, pageout or willneed"))
    };
    Ok(Part { range: parse_addresses(text)?, advice: hint.map(advice).transpose()? })
}

fn parse_addresses(text: &str) -> Result<Range<u64>, String> {
    let address = |digits: &str| {
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        let is_hex = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_hexdigit());
        u64::from_str_radix(digits, 16).ok().filter(|_| is_hex)
    };
    let expected =
        "expected two addresses in hexadecimal digits, the second larger than the first: 7f1200000000-7f1240000000";
    let (start, end) = text.split_once('-').ok_or(expected)?;
    let told =
        |digits: &str| address(digits).ok_or_else(|| format!("\"{digits}\" is no address below 2^64; {expected}"));
    let (start, end) = (told(start)?, told(end)?);
    match start < end {
        true => Ok(start..end),
        false => Err(format!("it ends before it begins, or wraps around the end of the address space; {expected}")),
    }
}

/// Returns what is hinted how: one selection for each hint. `page`: the size of a page. Fails if the
/// words do not go together.
fn select(args: &Args, page: u64) -> Result<Vec<Selection>, String> {
    let common = match (args.cold, args.pageout, args.willneed) {
        (true, ..) => Some(Advice::Cold),
        (_, true, _) => Some(Advice::PageOut),
        (.., true) => Some(Advice::WillNeed),
        _ => None,
    };
    let mut parts = args.range.clone();
    parts.sort_by_key(|part| part.range.start);
    for part in &parts {
        if part.range.start % page != 0 || part.range.end % page != 0 {
            return Err(format!("{part}: both addresses have to be multiples of a page, {page:#x}"));
        }
        if part.advice.or(common).is_none() {
            return Err(format!(
                "{part} has no hint; give it one, as in A-B=cold, or add --cold, --pageout or --willneed"
            ));
        }
    }
    if let Some(advice) = common.filter(|_| !parts.is_empty() && parts.iter().all(|part| part.advice.is_some())) {
        return Err(format!("--{} is for no range: each --range has a hint of its own", advice.name()));
    }
    if common.is_none() && parts.is_empty() {
        return Err("no hint; give --cold, --pageout or --willneed, or a --range with its own, as in A-B=cold".into());
    }
    for (number, part) in parts.iter().enumerate() {
        let later = parts.iter().skip(number + 1).take_while(|later| later.range.start < part.range.end);
        if let Some(other) = later.into_iter().find(|later| later.advice.or(common) != part.advice.or(common)) {
            return Err(format!("{part} and {other} overlap, and have different hints"));
        }
    }
    let all = |is_meant: &dyn Fn(Advice) -> bool| -> Ranges {
        let meant = parts.iter().filter(|part| part.advice.or(common).is_some_and(is_meant));
        meant.map(|part| part.range.clone()).collect()
    };
    let whole = (!parts.is_empty()).then(|| all(&|_| true));
    let backing = match (args.anon, args.file) {
        (true, _) => Some(Backing::Anonymous),
        (_, true) => Some(Backing::File),
        _ => None,
    };
    let selection = |advice| {
        let within = whole.is_some().then(|| all(&|meant| meant == advice));
        let is_meant = match &within {
            Some(within) => !within.is_empty(),
            None => common == Some(advice),
        };
        is_meant.then(|| Selection {
            advice,
            within,
            backing,
            all_ranges: args.all_ranges,
            expected: Expected { within: whole.clone(), layout: args.layout },
        })
    };
    Ok(ADVICES.into_iter().filter_map(selection).collect())
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    let selections = select(args, kernel.page().bytes().0).map_err(|text| Exit::Usage.error(text))?;
    let order = Order {
        selections,
        extent: Extent { amount: Amount::Max, swap_floor: None },
        ignore: args.safety.into(),
        timeout: args.timeout,
        output: args.output,
    };
    let loaded = config::load_or_refuse(root, None)?;
    let pids = if args.tree { hint::descendants(&kernel, args.pid)? } else { vec![hint::open(&kernel, args.pid)?] };
    let (mut subjects, mut left_out) = (Vec::new(), Vec::new());
    // A prefetch takes memory from no group, so no protection applies.
    let rules = match order.selections.iter().all(|selection| selection.advice == Advice::WillNeed) {
        true => None,
        false => Some(Rules::read(&kernel, root, &loaded)?),
    };
    for (number, process) in pids.into_iter().enumerate() {
        let subject = match &rules {
            None => Subject::any(process),
            Some(rules) => Subject::permitted(&kernel, rules, process, order.ignore),
        };
        match subject {
            Ok(subject) => subjects.push(subject),
            // An error for the named process ends the command. Errors for descendants are printed
            // at the end.
            Err(err) if number == 0 => return Err(err),
            Err(err) => left_out.push(format!("{err:#}")),
        }
    }
    let mut summary = order.carry_out(Host { kernel: &kernel, root }, &loaded, &subjects)?;
    summary.left_out.splice(..0, left_out);
    summary.print(&order)?;
    Ok(summary.exit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_what_is_none() {
        let part = |range, advice| Ok(Part { range, advice });
        assert_eq!(parse_range("1000-3000"), part(0x1000..0x3000, None));
        assert_eq!(parse_range("0x7f1200000000-0x7f1240000000"), part(0x7f12_0000_0000..0x7f12_4000_0000, None));
        assert_eq!(parse_range("1000-3000=pageout"), part(0x1000..0x3000, Some(Advice::PageOut)));
        for text in ["1000-3000=", "1000-3000=collapse", "1000-3000=cold=cold", "1000-3000=COLD"] {
            assert!(parse_range(text).is_err_and(|err| err.contains("is no hint")), "{text}");
        }
        for (text, why) in [
            ("1000", "expected two addresses"),
            ("", "expected two addresses"),
            ("-1000", "\"\" is no address"),
            ("1000-", "\"\" is no address"),
            ("1000-+2000", "no address"),
            ("1000-2000-3000", "no address"),
            ("1000-2g00", "\"2g00\" is no address"),
            ("1000-10000000000000000", "below 2^64"),
            ("3000-1000", "ends before it begins"),
            ("1000-1000", "ends before it begins"),
            ("fffffffffffff000-0", "wraps"),
        ] {
            let err = parse_range(text).expect_err(text);
            assert!(err.contains(why) && err.contains("7f1200000000-7f1240000000"), "{text}: {err}");
        }
    }
}
