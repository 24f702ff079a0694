//! Times as people write them: durations (`2h`), and moments (RFC 3339, or a time ago).

use std::time::{Duration, UNIX_EPOCH};

use omr_kernel::clock;

/// The last second of the year 9999, the largest date that can be written. A damaged file can hold
/// any number.
const LATEST: u64 = 253_402_300_799;

/// Parses a duration such as `30s` or `1h 30m`.
pub fn parse_length(text: &str) -> Result<Duration, String> {
    parse_length_as(text, "30s, 10m or 2h")
}

/// As [`parse_length`], with another example in the error.
pub fn parse_length_as(text: &str, example: &str) -> Result<Duration, String> {
    use humantime::DurationError::{Empty, InvalidCharacter, NumberExpected};
    humantime::parse_duration(text).map_err(|err| match err {
        // humantime reports only a position, which does not help with a text this short.
        InvalidCharacter(_) | NumberExpected(_) | Empty => format!("expected a time such as {example}"),
        err => format!("{err}; expected a time such as {example}"),
    })
}

/// Parses a moment: `2026-11-21T14:00:00Z`, `2026-11-21T15:00:00+01:00`, or `2h` (two hours ago).
/// Returns the time since 1970.
pub fn parse(text: &str) -> Result<Duration, String> {
    parse_at(text, clock::read_wall())
}

fn parse_at(text: &str, now: Duration) -> Result<Duration, String> {
    if let Ok(ago) = humantime::parse_duration(text) {
        return now.checked_sub(ago).ok_or_else(|| "before 1970".into());
    }
    rfc3339(text).ok_or_else(|| {
        "expected a time such as 2026-11-21T14:00:00Z or 2026-11-21T15:00:00+01:00, or a time ago such as 2h".into()
    })
}

fn rfc3339(text: &str) -> Option<Duration> {
    let since = |text: &str| humantime::parse_rfc3339(text).ok()?.duration_since(UNIX_EPOCH).ok();
    if let Some(time) = since(text) {
        return Some(time);
    }
    let (local, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let (sign, offset) = offset.split_at_checked(1)?;
    let (hours, minutes) = offset.split_once(':')?;
    let number = |text: &str, most| text.parse::<u64>().ok().filter(|&n| text.len() == 2 && n <= most);
    let offset = Duration::from_secs(3600 * number(hours, 23)? + 60 * number(minutes, 59)?);
    let local = since(&format!("{local}Z"))?;
    match sign {
        "+" => local.checked_sub(offset),
        "-" => local.checked_add(offset),
        _ => None,
    }
}

/// Formats a moment as RFC 3339 in UTC, to the second.
pub fn text(time: Duration) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(time.as_secs().min(LATEST));
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_moment_is_rfc_3339_or_a_time_ago() {
        let now = Duration::from_secs(1_795_000_000);
        for (text, seconds) in [
            ("2h", Some(1_794_992_800)),
            ("1m 30s", Some(1_794_999_910)),
            ("1970-01-02T00:00:00Z", Some(86_400)),
            ("1970-01-02T01:30:00+01:30", Some(86_400)),
            ("1970-01-01T22:00:00-02:00", Some(86_400)),
            ("1970-01-01T00:00:00+02:00", None),
            ("1970-01-02T00:00:00", None),
            ("1970-01-02T00:00:00+2:00", None),
            ("1970-01-02T00:00:00+02:60", None),
            ("1970-13-02T00:00:00Z", None),
            ("yesterday", None),
            ("14:00", None),
            ("2000years", None),
            ("5", None),
            ("", None),
        ] {
            assert_eq!(parse_at(text, now).ok(), seconds.map(Duration::from_secs), "{text}");
        }
        assert_eq!(text(Duration::from_secs(86_400)), "1970-01-02T00:00:00Z");
        assert_eq!(text(Duration::MAX), "9999-12-31T23:59:59Z");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,30}|[0-9T:Z+.-]{0,30}") {
            let _ = parse_at(&text, Duration::from_secs(1_795_000_000));
        }
    }
}
