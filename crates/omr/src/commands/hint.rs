//! `omr hint`: tells the kernel what is expected of a process's memory.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use omr_actuate::Advice;
use omr_base::exit::Exit;
use omr_base::when;
use omr_config as config;
use omr_engine::Host;
use omr_engine::hint::{self, Extent, Rules, Selection, Subject};
use omr_kernel::Kernel;
use omr_kernel::maps::Backing;
use omr_kernel::ranges::Ranges;
use omr_machine::processes;
use omr_units::Amount;

use super::hinted::Order;
use super::options::{Output, Safety};

/// Pages out, deactivates or brings back the memory of a process. Nothing is lost: what is used again
/// comes back. Passed over, and counted: what is shared, locked, of huge pages, or of a device.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("advice").required(true))]
#[command(mut_arg("ignore_class", |arg| {
    arg.help("Also take from a process of a foreground or protected group, and what a rule keeps")
}))]
#[command(mut_arg("dry_run", |arg| arg.help("Say what would be done, for each mapping, and do nothing")))]
pub struct Args {
    /// The process
    #[arg(value_name = "PID", value_parser = parse_pid)]
    pid: u32,

    /// It was not used for a while: take it first when memory gets scarce
    #[arg(long, group = "advice")]
    cold: bool,

    /// Page it out now, used or not, and free it
    #[arg(long, group = "advice")]
    pageout: bool,

    /// It will be needed soon: read it back from swap, and from files
    #[arg(long, group = "advice")]
    willneed: bool,

    /// Only these addresses, e.g. 7f1200000000-7f1240000000, as /proc/PID/maps has them; more than once
    #[arg(long, value_name = "A-B", value_parser = parse_range)]
    range: Vec<Range<u64>>,

    /// Only memory that no file backs: heap, stack
    #[arg(long, conflicts_with = "file")]
    anon: bool,

    /// Only files
    #[arg(long)]
    file: bool,

    /// Also all processes that it has started, and those that they have
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
        None => Err("expected the number of a process; omr ps shows those there are".into()),
    }
}

/// `A-B`, in hexadecimal digits.
fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let address = |digits: &str| {
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        let is_hex = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_hexdigit());
        u64::from_str_radix(digits, 16).ok().filter(|_| is_hex)
    };
    let expected =
        "expected two addresses in hexadecimal digits, the second behind the first: 7f1200000000-7f1240000000";
    let (start, end) = text.split_once('-').ok_or(expected)?;
    let told =
        |digits: &str| address(digits).ok_or_else(|| format!("\"{digits}\" is no address below 2^64; {expected}"));
    let (start, end) = (told(start)?, told(end)?);
    match start < end {
        true => Ok(start..end),
        false => Err(format!("it ends before it begins, or wraps around the end of the address space; {expected}")),
    }
}

/// Runs the command.
pub fn run(root: &Path, args: &Args) -> Result<Exit> {
    let kernel = Kernel::open(root)?;
    let page = kernel.page().bytes().0;
    let mut ranges = args.range.clone();
    if let Some(range) = ranges.iter().find(|range| range.start % page != 0 || range.end % page != 0) {
        let text = format!("--range {:x}-{:x}: both have to be multiples of a page, {page:#x}", range.start, range.end);
        return Err(Exit::Usage.error(text));
    }
    ranges.sort_by_key(|range| range.start);
    let selection = Selection {
        advice: match (args.cold, args.pageout) {
            (true, _) => Advice::Cold,
            (_, true) => Advice::PageOut,
            _ => Advice::WillNeed,
        },
        within: (!ranges.is_empty()).then(|| ranges.into_iter().collect::<Ranges>()),
        backing: match (args.anon, args.file) {
            (true, _) => Some(Backing::Anonymous),
            (_, true) => Some(Backing::File),
            _ => None,
        },
    };
    let order = Order {
        selection,
        extent: Extent { amount: Amount::Max, swap_floor: None },
        ignore: args.safety.into(),
        timeout: args.timeout,
        output: args.output,
    };
    let loaded = config::load_or_refuse(root, None)?;
    let pids = if args.tree { hint::descendants(&kernel, args.pid)? } else { vec![hint::open(&kernel, args.pid)?] };
    let (mut subjects, mut left_out) = (Vec::new(), Vec::new());
    // Bringing memory back takes nothing from anybody.
    let rules = match order.selection.advice {
        Advice::WillNeed => None,
        _ => Some(Rules::read(&kernel, root, &loaded)?),
    };
    for (number, process) in pids.into_iter().enumerate() {
        let subject = match &rules {
            None => Subject::any(process),
            Some(rules) => Subject::permitted(&kernel, rules, process, order.ignore),
        };
        match subject {
            Ok(subject) => subjects.push(subject),
            // The one that was named; of others it is told in the end.
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
        assert_eq!(parse_range("1000-3000"), Ok(0x1000..0x3000));
        assert_eq!(parse_range("0x7f1200000000-0x7f1240000000"), Ok(0x7f12_0000_0000..0x7f12_4000_0000));
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
