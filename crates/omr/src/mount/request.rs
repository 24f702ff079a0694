//! Parses writes to `memory.swap.reclaim`.

use std::time::Duration;

use omr_units::Bytes;
use rustix::io::Errno;

/// A request to reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The amount, at most; `Bytes::MAX`: as much as possible.
    pub amount: Bytes,
    /// The minimum age of memory to reclaim; `None`: any age.
    pub older_than: Option<Duration>,
}

/// Parses a write as the patched kernel does: a number for `memparse()` (decimal, or with 0x or 0
/// in front; k m g t p e behind), or `max`; then `older_than=SECONDS`, where 0 means no minimum
/// age. White space around it is ignored. Everything else is `EINVAL`.
pub fn parse(data: &[u8]) -> Result<Request, Errno> {
    let text = std::str::from_utf8(data).map_err(|_| Errno::INVAL)?;
    let mut words = text.split_ascii_whitespace();
    let amount = amount(words.next().ok_or(Errno::INVAL)?)?;
    let mut seconds = 0;
    for key in words {
        let value = key.strip_prefix("older_than=").ok_or(Errno::INVAL)?;
        seconds = value.parse::<u32>().map_err(|_| Errno::INVAL)?;
    }
    let older_than = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
    Ok(Request { amount, older_than })
}

fn amount(text: &str) -> Result<Bytes, Errno> {
    if text == "max" {
        return Ok(Bytes::MAX);
    }
    let shift = match text.as_bytes().last().map(u8::to_ascii_lowercase) {
        Some(b'k') => 10,
        Some(b'm') => 20,
        Some(b'g') => 30,
        Some(b't') => 40,
        Some(b'p') => 50,
        // In 0x1e, the "e" is a digit, not a suffix.
        Some(b'e') if !is_hex(text) => 60,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (&digits[1..], 8),
        None => (digits, 10),
    };
    // from_str_radix would accept a sign.
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(Errno::INVAL);
    }
    let number = u64::from_str_radix(digits, radix).map_err(|_| Errno::INVAL)?;
    // A larger amount than all memory means all memory.
    Ok(Bytes(number.saturating_mul(1 << shift)))
}

fn is_hex(text: &str) -> bool {
    text.starts_with("0x") || text.starts_with("0X")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_memparse_does() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4095\n", 4095),
            ("0", 0),
            (" 64K ", 64 << 10),
            ("1m", 1 << 20),
            ("2G\n", 2 << 30),
            ("1t", 1 << 40),
            ("1P", 1 << 50),
            ("1e", 1 << 60),
            ("0x1000", 4096),
            ("0x1e", 30),
            ("0x1k", 1024),
            ("010", 8),
            ("99e", u64::MAX),
        ] {
            let request = Request { amount: Bytes(bytes), older_than: None };
            assert_eq!(parse(text.as_bytes()), Ok(request), "{text:?}");
        }
        assert_eq!(parse(b"max\n"), Ok(Request { amount: Bytes::MAX, older_than: None }));
    }

    #[test]
    fn an_age_is_in_seconds_and_none_is_none() {
        let older_than = |text: &str| parse(text.as_bytes()).map(|request| request.older_than);
        assert_eq!(older_than("1M older_than=60\n"), Ok(Some(Duration::from_secs(60))));
        assert_eq!(older_than("max  older_than=0"), Ok(None));
        assert_eq!(older_than("max older_than=9 older_than=7"), Ok(Some(Duration::from_secs(7))));
    }

    #[test]
    fn everything_else_is_invalid() {
        for text in [
            "",
            "\n",
            " ",
            "all",
            "-1",
            "+1",
            "1.5M",
            "1MiB",
            "5%",
            "max max",
            "1 2",
            "0x",
            "k",
            "09",
            "1M swappiness=60",
            "1M older_than=",
            "1M older_than=-1",
            "1M older_than=x",
            "older_than=1",
        ] {
            assert_eq!(parse(text.as_bytes()), Err(Errno::INVAL), "{text:?}");
        }
        assert_eq!(parse(b"\xff"), Err(Errno::INVAL));
        assert_eq!(parse("١".as_bytes()), Err(Errno::INVAL));
    }

    #[test]
    fn no_write_makes_it_panic() {
        let writes = ["64M older_than=60\n", "0x1e", "07", "max", "18446744073709551615e", "1k older_than=4294967295"];
        omr_testkit::fuzz::feed(&writes, |data| {
            // The whole amount, or an error: never a part of the text.
            let Ok(request) = parse(data) else { return };
            assert!(std::str::from_utf8(data).is_ok() && request.older_than != Some(Duration::ZERO));
        });
    }
}
