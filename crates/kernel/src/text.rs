//! The two forms most kernel files have: "key value" lines, and one number.

/// An unsigned decimal number with nothing but white space around it.
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

/// Calls `found` with key and number of each `key number...` line; other lines are passed over,
/// because a future kernel may print them.
pub(crate) fn for_each_key(text: &[u8], mut found: impl FnMut(&[u8], u64)) {
    for line in text.split(|&c| c == b'\n') {
        let Some(space) = line.iter().position(|&c| c == b' ') else { continue };
        let (key, rest) = line.split_at(space);
        let rest = rest.trim_ascii_start();
        let end = rest.iter().position(|c| !c.is_ascii_digit()).unwrap_or(rest.len());
        if let Some(value) = parse_u64(&rest[..end]) {
            found(key, value);
        }
    }
}
