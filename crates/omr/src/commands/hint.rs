//! `omr hint`: tells the kernel how the memory of a process will be used.

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

/// Pages out, deactivates or brings back the memory of a process. No data is lost: memory that is
/// used again comes back. Memory that is shared, locked, in huge pages or of a device is skipped
/// and counted.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("advice").required(true))]
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
    #[arg(long, value_name = "A-B", value_parser = parse_range)]
    range: Vec<Range<u64>>,

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

/// Parses `A-B`, in hexadecimal digits.
fn parse_range(text: &str) -> Result<Range<u64>, String> {
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
    // A prefetch takes memory from no group, so no protection applies.
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
