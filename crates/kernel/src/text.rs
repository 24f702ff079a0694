//! The text forms that many kernel files share: `key value` lines, one decimal number, a
//! hexadecimal mask, an escaped name.

/// Parses an unsigned decimal number. Only white space may surround it; anything else is `None`.
pub(crate) fn parse_u64(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0u64, |n, c| {
        let digit = c.wrapping_sub(b'0');
        if digit > 9 { None } else { n.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

/// Calls `found` with the key and the rest of each `key number...` line. The caller reads the
/// number with [`leading_u64`]: most lines are not wanted, and their numbers need not be parsed.
/// Other lines are skipped, because a future kernel may print them.
pub(crate) fn for_each_key<'a>(mut text: &'a [u8], mut found: impl FnMut(&'a [u8], &'a [u8])) {
    while !text.is_empty() {
        // One pass: the search for the end of the line begins at its space.
        let Some(space) = memchr::memchr2(b' ', b'\n', text) else { break };
        let (key, rest) = text.split_at(space);
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let (rest, next) = rest.split_at(end);
        if !rest.is_empty() {
            found(key, rest);
        }
        text = next.get(1..).unwrap_or_default();
    }
}

/// The text before and after the first such byte. `None`: there is none.
pub(crate) fn split_once(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let mut parts = text.splitn(2, |&c| c == separator);
    Some((parts.next()?, parts.next()?))
}

/// The decimal number at the start of a line, after white space. A unit may follow the number.
pub(crate) fn leading_u64(rest: &[u8]) -> Option<u64> {
    let rest = rest.trim_ascii_start();
    let end = rest.iter().position(|c| !c.is_ascii_digit()).unwrap_or(rest.len());
    parse_u64(rest.get(..end)?)
}

/// Parses hexadecimal digits; anything else is `None` (`from_str_radix` alone would accept a sign).
pub(crate) fn parse_mask(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok().filter(|t| t.bytes().all(|c| c.is_ascii_hexdigit()))?;
    u64::from_str_radix(text, 16).ok()
}

/// Undoes `mangle_path()` of fs/seq_file.c: `\` and three octal digits stand for one byte. A
/// backslash before anything else stays as it is.
pub(crate) fn unescape(name: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, tail)) = rest.split_first() {
        match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if first == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    bytes
}
