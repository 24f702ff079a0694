//! Text from other programs, made safe to print.

/// Escapes control characters, which a terminal would obey.
pub fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if c.is_control() {
            out.extend(c.escape_debug())
        } else {
            out.push(c)
        }
        out
    })
}
