//! Hints by the bare system call, in as few calls as possible. `omr hint` is compared with this
//! program: it does not cut mappings up, does not check for changes, and frees nothing afterwards.

use std::fs;
use std::io;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The hint about all private anonymous memory
    #[arg(value_enum)]
    advice: Advice,
    /// The process
    pid: i32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Advice {
    Cold,
    Pageout,
}

/// `UIO_MAXIOV`, include/uapi/linux/uio.h.
const MOST: usize = 1024;
/// Upper bound on the bytes of a range. `MOST` ranges of this size are less than 2 GiB, where the
/// kernel cuts a call off.
const LONGEST: usize = 1 << 20;

/// Prints `{"bytes": N, "calls": N, "seconds": S}`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let advice = match args.advice {
        Advice::Cold => libc::MADV_COLD,
        Advice::Pageout => libc::MADV_PAGEOUT,
    };
    let pidfd = pidfd_open(Pid::from_raw(args.pid).context("no pid")?, PidfdFlags::empty())?;
    let began = Instant::now();
    let maps = fs::read_to_string(format!("/proc/{}/maps", args.pid))?;
    let ranges: Vec<(usize, usize)> = maps.lines().filter_map(anonymous).flat_map(pieces).collect();
    let (mut bytes, mut calls) = (0, 0);
    for ranges in ranges.chunks(MOST) {
        bytes += advise(&pidfd, ranges, advice)?;
        calls += 1;
    }
    println!("{}", json!({"bytes": bytes, "calls": calls, "seconds": began.elapsed().as_secs_f64()}));
    Ok(())
}

/// Address and length of the mapping in a line of `maps`. `None`: the mapping is shared or has a
/// file.
fn anonymous(line: &str) -> Option<(usize, usize)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (start, end) = fields.first()?.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    let is_wanted =
        fields[1].ends_with('p') && fields[4] == "0" && !fields.get(5).is_some_and(|name| name.starts_with("[v"));
    is_wanted.then_some((start, end - start))
}

fn pieces((start, length): (usize, usize)) -> impl Iterator<Item = (usize, usize)> {
    (0..length).step_by(LONGEST).map(move |at| (start + at, LONGEST.min(length - at)))
}

fn advise(pidfd: &OwnedFd, ranges: &[(usize, usize)], advice: i32) -> Result<usize> {
    let vectors: Vec<_> =
        ranges.iter().map(|&(start, length)| libc::iovec { iov_base: start as *mut _, iov_len: length }).collect();
    // SAFETY: the kernel reads `vectors.len()` vectors of a live list. Their addresses belong to
    // another process.
    let done = unsafe {
        libc::syscall(libc::SYS_process_madvise, pidfd.as_raw_fd(), vectors.as_ptr(), vectors.len(), advice, 0_u32)
    };
    let done = usize::try_from(done).map_err(|_| io::Error::last_os_error()).context("process_madvise")?;
    let whole = ranges.iter().map(|&(_, length)| length).sum::<usize>();
    ensure!(done == whole, "{done} of {whole} bytes");
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_too_long_is_cut_up() {
        assert_eq!(
            pieces((0x1000, LONGEST + 0x1000)).collect::<Vec<_>>(),
            [(0x1000, LONGEST), (0x1000 + LONGEST, 0x1000)]
        );
    }

    #[test]
    fn only_private_memory_without_a_file() {
        let lines = [
            ("1000-3000 rw-p 00000000 00:00 0                  [heap]", Some((0x1000, 0x2000))),
            ("1000-3000 rw-p 00000000 00:00 0 ", Some((0x1000, 0x2000))),
            ("1000-3000 rw-s 00000000 00:01 7                  /dev/zero (deleted)", None),
            ("1000-3000 r--p 00000000 fe:01 7                  /a", None),
            ("1000-3000 r--p 00000000 00:00 0                  [vvar]", None),
        ];
        for (line, expected) in lines {
            assert_eq!(anonymous(line), expected, "{line}");
        }
    }
}
