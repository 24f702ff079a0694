//! Text that others have written, shown to people.

/// Without characters that would do something to a terminal.
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
