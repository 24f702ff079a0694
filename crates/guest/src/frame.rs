//! The form of a message on the serial port: one line, `@CRC32 JSON`.
//!
//! Anything else on the port (noise after a resume, a frame cut in two) has no valid checksum and
//! is dropped. The empty line before a frame ends the noise before it. Bytes travel as the Unicode
//! characters of the same numbers (latin-1), so that any file fits in JSON.

use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn encode(json: &str) -> String {
    format!("\n@{:08x} {json}\n", crc32(json.as_bytes()))
}

/// The JSON of a line. `None`: the line is no intact frame.
pub(crate) fn decode(line: &str) -> Option<&str> {
    let (crc, json) = line.strip_prefix('@')?.split_once(' ')?;
    (u32::from_str_radix(crc, 16).ok()? == crc32(json.as_bytes())).then_some(json)
}

/// CRC-32 as in zlib.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

/// For serde: bytes as a latin-1 string.
pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&bytes.iter().map(|&byte| char::from(byte)).collect::<String>())
}

/// For serde: the reverse of [`serialize`].
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    String::deserialize(deserializer)?
        .chars()
        .map(|c| u8::try_from(c).map_err(|_| serde::de::Error::custom("a character above 255 is no byte")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_damaged_frame_is_dropped() {
        let frame = encode(r#"{"id":1}"#);
        let line = frame.trim();
        assert_eq!(decode(line), Some(r#"{"id":1}"#));
        assert_eq!(decode(&line.replace(":1", ":2")), None);
        assert_eq!(decode(&line[1..]), None);
        assert_eq!(decode("[    3.141592] virtio_blk virtio0: 2/0/0 default/read/poll queues"), None);
    }
}
