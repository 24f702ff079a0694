//! A typical application of a user: a process tree with heaps and a mapped file, and a cost of
//! starting.
//!
//! The application prints `{"ready": BYTES, "errors": N, "seconds": S}` when it has started. For each
//! line that it reads, it uses its working set once and then prints `{"used": BYTES, "errors": N,
//! "seconds": S}`, with the time that this took. It ends at the end of its input. Its helpers are
//! applications as well, with the same protocol.

use std::fs::File;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::time::ClockId;
use serde_json::{Value, json};

use crate::amount::Amount;
use crate::clock;
use crate::pattern::{PAGE, Pattern, mix};

/// Rounds of mixing between two readings of the clock.
const ROUNDS: u64 = 100_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Heap of the whole tree, e.g. 120M
    heap: Amount,
    /// Processes besides the first; each has an equal share of the heap
    #[arg(long, default_value_t = 1)]
    helpers: u64,
    /// A file that is mapped, and read at each use of the application
    #[arg(long)]
    file: Option<PathBuf>,
    /// CPU time that the start costs
    #[arg(long, value_parser = clock::parse_span, default_value = "0ms")]
    start: Duration,
    /// Share of the heap that each use touches
    #[arg(long, default_value_t = 60, value_name = "PERCENT")]
    working_set: usize,
    /// Share of each page of the heap that is zero
    #[arg(long, default_value_t = 50, value_name = "PERCENT")]
    compressible: u8,
    /// Seed of the contents
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let began = Instant::now();
    while Duration::from_nanos(clock::nanos(ClockId::ProcessCPUTime)) < args.start {
        // The compiler must not remove this work.
        black_box((0..ROUNDS).fold(args.seed, |value, _| mix(value)));
    }
    let file = args.file.as_deref().map(Mapped::open).transpose()?;
    let share = args.heap.bytes()? / (args.helpers + 1);
    let mut helpers =
        (1..=args.helpers).map(|number| Helper::start(args, share, number)).collect::<Result<Vec<_>>>()?;
    let pattern = Pattern::new(args.seed, args.compressible);
    let words = pattern.fill(usize::try_from(share / 8)?);
    let used = words.len() / 100 * args.working_set.min(100) / PAGE * PAGE;
    let use_once = |words: &[u64]| {
        file.as_ref().map(Mapped::read);
        // The last word of a page is never zero.
        (PAGE - 1..used).step_by(PAGE).filter(|&index| black_box(words[index]) != pattern.word(index)).count()
    };
    let mut errors = use_once(&words);
    for helper in &mut helpers {
        errors += helper.answer("ready")?;
    }
    println!("{}", json!({"ready": args.heap.bytes()?, "errors": errors, "seconds": began.elapsed().as_secs_f64()}));

    for line in std::io::stdin().lock().lines() {
        line?;
        let began = Instant::now();
        helpers.iter_mut().try_for_each(Helper::ask)?;
        let mut errors = use_once(&words);
        for helper in &mut helpers {
            errors += helper.answer("used")?;
        }
        let (used, seconds) = ((args.helpers + 1) * used as u64 * 8, began.elapsed().as_secs_f64());
        println!("{}", json!({"used": used, "errors": errors, "seconds": seconds}));
    }
    Ok(())
}

/// A further process of the application. The application ends when it has lost a helper.
struct Helper {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Helper {
    fn start(args: &Args, heap: u64, number: u64) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["app", &heap.to_string(), "--helpers", "0", "--seed", &(args.seed + number).to_string()]);
        command.args([
            "--working-set",
            &args.working_set.to_string(),
            "--compressible",
            &args.compressible.to_string(),
        ]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("a helper")?;
        let output = process.stdout.take().context("a helper's output")?;
        Ok(Helper { process, output: BufReader::new(output) })
    }

    fn ask(&mut self) -> Result<()> {
        ask(self.process.stdin.as_mut().context("a helper's input")?)
    }

    /// Number of wrong words that the helper has read.
    fn answer(&mut self, key: &str) -> Result<usize> {
        let line = answer(&mut self.output, key)?.context("a helper ended")?;
        Ok(line["errors"].as_u64().and_then(|errors| errors.try_into().ok()).unwrap_or(usize::MAX))
    }
}

/// Asks an application to use its working set.
pub(crate) fn ask(input: &mut impl std::io::Write) -> Result<()> {
    Ok(input.write_all(b"\n")?)
}

/// Reads the next line that an application prints. `None`: the application has ended.
pub(crate) fn answer(output: &mut impl BufRead, key: &str) -> Result<Option<Value>> {
    let mut line = String::new();
    if output.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let value: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
    match value.get(key) {
        Some(_) => Ok(Some(value)),
        None => bail!("{line:?} where {key:?} was expected"),
    }
}

/// A file that is mapped read-only.
struct Mapped {
    address: *const u8,
    bytes: usize,
}

impl Mapped {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let bytes = usize::try_from(file.metadata()?.len())?;
        // SAFETY: a new mapping at a free address; it stays until the process ends.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).with_context(|| path.display().to_string());
        }
        Ok(Mapped { address: address.cast(), bytes })
    }

    /// Reads one byte of each page.
    fn read(&self) {
        for offset in (0..self.bytes).step_by(PAGE * 8) {
            // SAFETY: the address is inside of the mapping, and the file is never made shorter.
            black_box(unsafe { self.address.add(offset).read_volatile() });
        }
    }
}

/// Makes a file of this size, in bytes.
pub(crate) fn make_file(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let mut file = File::create(path).with_context(|| path.display().to_string())?;
    let words = Pattern::new(seed, 0).fill(usize::try_from(bytes / 8)?);
    let contents: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.write_all(&contents)?;
    Ok(file.sync_all()?)
}
