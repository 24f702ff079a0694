//! Text of other programs, cut for the terminal.

use std::time::Duration;

use omr_base::text::printable;
use omr_base::when;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// The most characters of a text that are looked at: names may be thousands of characters long.
const LONGEST: usize = 512;

/// Escapes control characters, and cuts the text to this width in cells. A text that was cut ends
/// with `mark`.
pub fn fit(text: &str, width: usize, mark: char) -> String {
    let text: String = text.chars().take(LONGEST).filter(|c| !is_invisible(*c)).collect();
    let text = printable(&text);
    if text.width() <= width {
        return text;
    }
    let room = width.saturating_sub(mark.width().unwrap_or(1));
    let mut cut = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > room {
            break;
        }
        cut.push(c);
    }
    if width > 0 {
        cut.push(mark);
    }
    cut
}

/// Characters that turn the direction of text, or have no width: they would make a name look like
/// another one.
fn is_invisible(c: char) -> bool {
    !c.is_control() && c.width() == Some(0) || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Cuts or fills a text to exactly this width.
pub fn left(text: &str, width: usize, mark: char) -> String {
    let text = fit(text, width, mark);
    let fill = width.saturating_sub(text.width());
    text + &" ".repeat(fill)
}

/// The same, with the text at the right.
pub fn right(text: &str, width: usize, mark: char) -> String {
    let text = fit(text, width, mark);
    " ".repeat(width.saturating_sub(text.width())) + &text
}

/// The time of a day, in UTC: `17:05`.
pub fn clock(time: u64) -> String {
    when::text(Duration::from_secs(time)).chars().skip(11).take(5).collect()
}

/// A time for an axis of this many seconds: the time of the day, with the day where it is long.
pub fn axis(time: u64, seconds: u64) -> String {
    let text = when::text(Duration::from_secs(time));
    let from = if seconds >= 86_400 { 5 } else { 11 };
    text.chars().skip(from).take(16 - from).map(|c| if c == 'T' { ' ' } else { c }).collect()
}

/// A length such as `2 h` or `7 d`.
pub fn length(seconds: u64) -> String {
    match seconds {
        seconds if seconds >= 172_800 => format!("{} d", seconds / 86_400),
        seconds if seconds >= 7200 => format!("{} h", seconds / 3600),
        seconds if seconds >= 120 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_as_wide_as_it_may_be_and_has_nothing_that_a_terminal_would_obey() {
        for (text, width, expected) in [
            ("app.slice", 9, "app.slice"),
            ("app.slice", 8, "app.sli~"),
            ("a\u{1b}[2Jb", 20, "a\\u{1b}[2Jb"),
            ("日本語の名前", 7, "日本語~"),
            ("日本語の名前", 6, "日本~"),
            ("abc", 0, ""),
            ("a\u{202e}cba\u{200b}", 9, "acba"),
            ("", 3, ""),
        ] {
            assert_eq!(fit(text, width, '~'), expected, "{text:?}");
            assert_eq!(left(text, width, '~').width(), width, "{text:?}");
            assert_eq!(right(text, width, '~').width(), width, "{text:?}");
        }
        let long = "x".repeat(4000) + "\u{1b}";
        assert_eq!(left(&long, 30, '~').width(), 30);
    }

    #[test]
    fn times_have_the_day_where_the_axis_is_long() {
        assert_eq!(
            (axis(86_400 * 3 + 3600, 7200), axis(86_400 * 3 + 3600, 86_400)),
            ("01:00".into(), "01-04 01:00".into())
        );
        assert_eq!([length(90), length(7200), length(604_800)], ["90 s", "2 h", "7 d"]);
    }
}
