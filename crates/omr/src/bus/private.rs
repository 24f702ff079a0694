//! Calls over systemd's own socket, for where there is no bus: at boot, and for users whose
//! session has none.
//!
//! zbus writes the calls. It cannot read the answers: on its own socket systemd names
//! `org.freedesktop.systemd1` as their sender (`sd_bus_set_sender` in systemd's
//! src/core/dbus.c), and zbus accepts only a unique name such as `:1.7` there. An answer is either
//! done or an error with words, so its head and its first string are all that is read here.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use zbus::{DynamicType, Message};

use super::call::{PATIENCE, Refused, Target};

/// An answer of systemd to a call is some hundred bytes long.
const LONGEST: usize = 1 << 20;

/// Kinds of messages.
const RETURN: u8 = 2;
const ERROR: u8 = 3;

/// Header fields.
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;

/// A connection to systemd's own socket.
#[derive(Debug)]
pub struct Private(UnixStream);

impl Private {
    /// Begins a conversation as the user of this process.
    pub fn open(mut stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let uid = rustix::process::geteuid().as_raw().to_string();
        let hex: String = uid.bytes().map(|digit| format!("{digit:02x}")).collect();
        // All at once, as systemd's own clients do.
        let asked = stream.write_all(format!("\0AUTH EXTERNAL {hex}\r\nBEGIN\r\n").as_bytes());
        let words = asked.and_then(|()| line(&mut stream)).context("no answer on D-Bus")?;
        if !words.starts_with("OK ") {
            bail!("D-Bus refused the connection: {}", words.trim_end());
        }
        Ok(Private(stream))
    }

    /// Calls and waits until systemd has done it.
    pub fn call(&mut self, target: &Target<'_>, member: &str, body: &(impl Serialize + DynamicType)) -> Result<()> {
        let call = Message::method_call(target.path, member).interface(target.interface).build(body)?;
        self.0.write_all(call.data()).context("no answer on D-Bus")?;
        let serial = call.primary_header().serial_num().get();
        loop {
            let answer = Answer::read(&mut self.0).context("no answer on D-Bus")?;
            match answer.kind {
                RETURN if answer.reply_to == Some(serial) => return Ok(()),
                ERROR if answer.reply_to == Some(serial) => {
                    let name = answer.error.unwrap_or_else(|| "an error without a name".into());
                    return Err(Refused { name, words: answer.words }.into());
                }
                // A signal: systemd tells everybody of jobs and units.
                _ => {}
            }
        }
    }
}

/// A line of the handshake.
fn line(stream: &mut UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") && line.len() < 1024 {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// The parts of an answer that are read.
struct Answer {
    kind: u8,
    /// The number of the call that it answers.
    reply_to: Option<u32>,
    /// The name of the error.
    error: Option<String>,
    /// The first string of the body.
    words: Option<String>,
}

impl Answer {
    fn read(stream: &mut impl Read) -> io::Result<Self> {
        let order = if cfg!(target_endian = "little") { b'l' } else { b'B' };
        let mut head = [0u8; 16];
        stream.read_exact(&mut head)?;
        let [byte_order, kind, ..] = head;
        if byte_order != order {
            return Err(io::Error::other("an answer in the other byte order"));
        }
        let mut head = Cursor { bytes: &head, at: 4 };
        let mut length =
            || Some(usize::try_from(head.number()?).unwrap_or(usize::MAX)).filter(|&bytes| bytes <= LONGEST);
        let (body, _serial, fields) = (length(), length(), length());
        let (Some(body), Some(fields)) = (body, fields) else {
            return Err(io::Error::other("an answer that is too long"));
        };
        let mut rest = vec![0; fields.next_multiple_of(8) + body];
        stream.read_exact(&mut rest)?;
        let (header, body) = rest.split_at(fields.next_multiple_of(8));
        let mut answer = Answer { kind, reply_to: None, error: None, words: None };
        let mut cursor = Cursor { bytes: header.get(..fields).unwrap_or_default(), at: 0 };
        while let Some((code, value)) = cursor.field() {
            match (code, value) {
                (REPLY_SERIAL, Value::Number(number)) => answer.reply_to = Some(number),
                (ERROR_NAME, Value::Text(text)) => answer.error = Some(text),
                _ => {}
            }
        }
        if kind == ERROR {
            answer.words = Cursor { bytes: body, at: 0 }.text();
        }
        Ok(answer)
    }
}

/// The value of a header field.
enum Value {
    Number(u32),
    Text(String),
}

/// Reads values in the order in which they come. Each begins at a multiple of its size.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn number(&mut self) -> Option<u32> {
        self.at = self.at.next_multiple_of(4);
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    fn string(&mut self, length: usize) -> Option<String> {
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.take(1)?;
        Some(text)
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        self.string(length)
    }

    fn signature(&mut self) -> Option<String> {
        let length = self.byte()?.into();
        self.string(length)
    }

    /// The next header field. `None`: there is no other, or it is not as the protocol says.
    fn field(&mut self) -> Option<(u8, Value)> {
        self.at = self.at.next_multiple_of(8);
        let code = self.byte()?;
        let value = match self.signature()?.as_str() {
            "u" => Value::Number(self.number()?),
            "s" | "o" => Value::Text(self.text()?),
            "g" => Value::Text(self.signature()?),
            _ => return None,
        };
        Some((code, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_change_of_an_answer_makes_it_panic_or_reads_more_than_there_is() {
        let call = Message::method_call("/", "Call").build(&()).expect("a call");
        let done = Message::method_return(&call.header()).build(&"/org/freedesktop/systemd1/job/1");
        let error = Message::error(&call.header(), "org.freedesktop.systemd1.NoSuchUnit").build(&"No such unit");
        let signal = Message::signal("/", "org.freedesktop.systemd1.Manager", "JobNew").build(&7u32);
        let messages = [done, error, signal].map(|message| message.expect("a message").data().to_vec());
        let read = std::cell::Cell::new(0);
        omr_testkit::fuzz::feed(&messages, |bytes| {
            let mut rest = bytes;
            let Ok(answer) = Answer::read(&mut rest) else { return };
            // Bytes that are no UTF-8 become three each.
            let texts = answer.error.iter().chain(&answer.words).map(String::len).sum::<usize>();
            assert!(texts <= 3 * (bytes.len() - rest.len()), "{texts}");
            read.set(read.get() + 1);
        });
        assert!(read.get() >= messages.len(), "the control");
    }
}
