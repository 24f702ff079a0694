//! Amounts of memory on the command line: `64M`, `4KiB`, `85%` of MemTotal.

use std::fs;
use std::str::FromStr;

use anyhow::{Context as _, Error, Result, bail};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Bytes(u64),
    PercentOfMemory(u64),
}

impl Amount {
    pub(crate) fn bytes(self) -> Result<u64> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::PercentOfMemory(percent) => Ok(meminfo("MemTotal")? / 100 * percent),
        }
    }
}

impl FromStr for Amount {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number: u64 = digits.parse().with_context(|| format!("{text:?} is no amount of memory"))?;
        let unit = match text[digits.len()..].trim_end_matches("iB") {
            "" | "B" => 1,
            "K" => 1 << 10,
            "M" => 1 << 20,
            "G" => 1 << 30,
            "%" => return Ok(Self::PercentOfMemory(number)),
            unit => bail!("unknown unit {unit:?} in {text:?}"),
        };
        Ok(Self::Bytes(number.checked_mul(unit).context("too large")?))
    }
}

/// One field of /proc/meminfo in bytes.
pub(crate) fn meminfo(field: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().strip_suffix(" kB"))
        .with_context(|| format!("no {field} in /proc/meminfo"))?;
    Ok(kib.parse::<u64>()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_binary_units() {
        assert_eq!("4KiB".parse::<Amount>().unwrap(), Amount::Bytes(4096));
        assert_eq!("64M".parse::<Amount>().unwrap(), Amount::Bytes(64 << 20));
        assert_eq!("85%".parse::<Amount>().unwrap(), Amount::PercentOfMemory(85));
        assert!("M".parse::<Amount>().is_err());
        assert!("1.5M".parse::<Amount>().is_err());
    }
}
