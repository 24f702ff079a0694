//! Calls over D-Bus, to systemd, logind and GameMode: as much of the protocol as a method call with a plain reply
//! takes. Of signals only that there was one is known: whoever waits for it asks anew.
//!
//! Why not a library: docs/design/decisions/004-dbus.md. The format is the D-Bus specification's; numbers
//! travel in the byte order of this machine.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};

/// systemd answers in milliseconds, unless the machine is in trouble.
const PATIENCE: Duration = Duration::from_secs(10);
/// No answer to what is asked here is longer.
const LONGEST_ANSWER: usize = 1 << 20;

const SYSTEMD: Target<'static> = Target {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};
/// logind.
pub const LOGIND: Target<'static> = Target {
    destination: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
};
const BUS: Target<'static> =
    Target { destination: "org.freedesktop.DBus", path: "/org/freedesktop/DBus", interface: "org.freedesktop.DBus" };

/// Whom a call is for.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The name on the bus.
    pub destination: &'a str,
    /// The object there.
    pub path: &'a str,
    /// What it offers.
    pub interface: &'a str,
}

/// What a scope is to be.
#[derive(Debug)]
pub struct Scope<'a> {
    /// Its unit's name, ending in `.scope`.
    pub name: &'a str,
    /// What `systemctl status` says about it.
    pub description: &'a str,
    /// The process to put into it.
    pub pid: u32,
    /// The slice it is in; `None`: systemd's default.
    pub slice: Option<&'a str>,
}

/// Whose bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The machine's.
    System,
    /// That of the user's session.
    User,
}

impl Whose {
    /// Where the bus is to be found: by the environment, or else in its usual place.
    fn buses(self) -> Vec<SocketAddr> {
        let (variable, usual) = match self {
            Whose::System => ("DBUS_SYSTEM_BUS_ADDRESS", Some(PathBuf::from("/run/dbus/system_bus_socket"))),
            Whose::User => ("DBUS_SESSION_BUS_ADDRESS", runtime_dir().map(|dir| dir.join("bus"))),
        };
        match std::env::var(variable) {
            Ok(text) => addresses(&text),
            Err(_) => usual.iter().filter_map(|path| address(path)).collect(),
        }
    }
}

fn runtime_dir() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    serial: u32,
    /// There is a bus in between; otherwise the socket is systemd's own.
    bus: bool,
    /// A signal came while an answer was waited for.
    heard: bool,
}

/// How a call ended.
#[derive(Debug)]
pub enum Reply {
    /// With this answer.
    Answer(Answer),
    /// Nobody has that name on the bus.
    Nobody,
}

impl Connection {
    /// To a bus.
    pub fn to_bus(whose: Whose) -> Result<Self> {
        let mut last = None;
        for address in whose.buses() {
            match UnixStream::connect_addr(&address) {
                Ok(stream) => return Connection::greet(stream, true),
                Err(err) => last = Some((address, err)),
            }
        }
        match last {
            Some((address, err)) => Err(err).with_context(|| format!("connect to the bus at {address:?}")),
            None => bail!("no way to the bus: neither DBUS_SESSION_BUS_ADDRESS nor XDG_RUNTIME_DIR is set"),
        }
    }

    /// Says who we are; the socket's other end checks it with the kernel.
    fn greet(stream: UnixStream, bus: bool) -> Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut connection = Connection { stream, serial: 0, bus, heard: false };
        let uid = rustix::process::geteuid().as_raw().to_string();
        let hex: String = uid.bytes().map(|digit| format!("{digit:02x}")).collect();
        connection.stream.write_all(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes())?;
        let mut line = Vec::new();
        // Byte by byte: what comes after the line is already the other protocol's.
        while !line.ends_with(b"\r\n") && line.len() < 512 {
            let mut byte = [0];
            connection.stream.read_exact(&mut byte).context("no answer on D-Bus")?;
            line.push(byte[0]);
        }
        if !line.starts_with(b"OK ") {
            bail!("D-Bus refused the connection: {}", String::from_utf8_lossy(&line).trim_end());
        }
        connection.stream.write_all(b"BEGIN\r\n")?;
        if bus {
            connection
                .call(&BUS, "Hello", "", &[])
                .with_context(|| format!("the bus does not let user {uid} in; it may be another user's"))?;
        }
        Ok(connection)
    }

    /// Calls and waits for the answer.
    fn call(&mut self, target: &Target<'_>, member: &str, signature: &str, body: &[u8]) -> Result<Answer> {
        let answer = self.request(target, 0, member, signature, body)?;
        match answer.kind {
            RETURN => Ok(answer),
            _ => bail!("{}", answer.error_text()),
        }
    }

    /// As [`Connection::call`], of a service that nobody is to start for it.
    pub fn ask(&mut self, target: &Target<'_>, member: &str, signature: &str, body: &Message) -> Result<Reply> {
        let answer = self.request(target, NO_AUTO_START, member, signature, &body.0)?;
        match (answer.kind, answer.error.as_deref()) {
            (RETURN, _) => Ok(Reply::Answer(answer)),
            (_, Some("org.freedesktop.DBus.Error.ServiceUnknown" | "org.freedesktop.DBus.Error.NameHasNoOwner")) => {
                Ok(Reply::Nobody)
            }
            _ => bail!("{member}: {}", answer.error_text()),
        }
    }

    /// A property of an object.
    pub fn property(&mut self, target: &Target<'_>, name: &str) -> Result<Reply> {
        let properties = Target { interface: "org.freedesktop.DBus.Properties", ..*target };
        let mut body = Message::default();
        body.string(target.interface);
        body.string(name);
        self.ask(&properties, "Get", "ss", &body)
    }

    /// Has the bus send signals that this rule fits, such as `type='signal',sender='org.freedesktop.login1'`.
    pub fn subscribe(&mut self, rule: &str) -> Result<()> {
        let mut body = Message::default();
        body.string(rule);
        self.call(&BUS, "AddMatch", "s", &body.0).context("ask the bus for signals")?;
        Ok(())
    }

    /// Waits for a signal, any of those that were subscribed to; false: there was none for so long. Of a flood of
    /// them all that are there already count as one.
    pub fn wait(&mut self, patience: Duration) -> Result<bool> {
        let mut left = if self.heard { Duration::ZERO } else { patience };
        loop {
            let left_for =
                rustix::event::Timespec::try_from(left).unwrap_or(rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 });
            match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&left_for)) {
                Ok(0) => return Ok(std::mem::take(&mut self.heard)),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(err) => return Err(err).context("wait for the bus"),
            }
            let message = Answer::read(&mut self.stream).context("the bus has gone")?;
            if message.kind == SIGNAL {
                self.heard = true;
                left = Duration::ZERO;
            }
        }
    }

    fn request(
        &mut self,
        target: &Target<'_>,
        flags: u8,
        member: &str,
        signature: &str,
        body: &[u8],
    ) -> Result<Answer> {
        self.serial += 1;
        let serial = self.serial;
        let message = request(target, self.bus, flags, member, signature, body, serial)?;
        self.stream.write_all(&message).context("write to D-Bus")?;
        loop {
            let answer = Answer::read(&mut self.stream).context("no answer on D-Bus")?;
            if answer.reply_to == Some(serial) && matches!(answer.kind, RETURN | ERROR) {
                return Ok(answer);
            }
            self.heard |= answer.kind == SIGNAL;
        }
    }
}

/// A connection to a service manager.
#[derive(Debug)]
pub struct Systemd(Connection);

impl Systemd {
    /// Connects to the machine's service manager, or to the user's: over the bus, and where there is
    /// none over systemd's own socket.
    pub fn connect(user: bool) -> Result<Self> {
        let (buses, private) = match user {
            false => (Whose::System.buses(), Some(PathBuf::from("/run/systemd/private"))),
            true => (Whose::User.buses(), runtime_dir().map(|dir| dir.join("systemd/private"))),
        };
        let private = private.iter().filter_map(|path| address(path));
        let tries = buses.into_iter().map(|address| (address, true)).chain(private.map(|address| (address, false)));
        let mut last = None;
        for (address, bus) in tries {
            match UnixStream::connect_addr(&address) {
                Ok(stream) => return Ok(Systemd(Connection::greet(stream, bus)?)),
                Err(err) => {
                    last.get_or_insert((address, err));
                }
            }
        }
        let whose = if user { "your service manager (systemd --user)" } else { "systemd" };
        match last {
            Some((address, err)) => Err(err).with_context(|| format!("connect to {whose} at {address:?}")),
            None => bail!("no way to {whose}: neither DBUS_SESSION_BUS_ADDRESS nor XDG_RUNTIME_DIR is set"),
        }
    }

    /// Asks for a scope around a process. Done when systemd has accepted it: the process is moved a
    /// moment later.
    pub fn start_scope(&mut self, scope: &Scope<'_>) -> Result<()> {
        let mut body = Message::default();
        body.string(scope.name);
        // If there is one of that name: an error.
        body.string("fail");
        body.array(8, |properties| {
            properties.text_property("Description", scope.description);
            // A scope whose command failed is gone all the same.
            properties.text_property("CollectMode", "inactive-or-failed");
            if let Some(slice) = scope.slice {
                properties.text_property("Slice", slice);
            }
            properties.structure("PIDs", "au");
            properties.array(4, |pids| pids.number(scope.pid));
        });
        // Units to start along with it: none.
        body.array(8, |_| {});
        self.0
            .call(&SYSTEMD, "StartTransientUnit", "ssa(sv)a(sa(sv))", &body.0)
            .with_context(|| format!("start {}", scope.name))?;
        Ok(())
    }

    /// Has a unit started; done when systemd has accepted it.
    pub fn start(&mut self, unit: &str) -> Result<()> {
        let mut body = Message::default();
        body.string(unit);
        // With what is queued for it already, in place of that.
        body.string("replace");
        self.0.call(&SYSTEMD, "StartUnit", "ss", &body.0).with_context(|| format!("start {unit}"))?;
        Ok(())
    }

    /// Whether there is a bus, and with it others than systemd.
    pub fn is_bus(&self) -> bool {
        self.0.bus
    }

    /// Asks logind to hibernate the machine. Done when logind has accepted it: it happens a moment later.
    pub fn hibernate(&mut self) -> Result<()> {
        let mut body = Message::default();
        // Nobody is there to be asked for a password.
        body.number(0);
        self.0.call(&LOGIND, "Hibernate", "b", &body.0).context("ask logind to hibernate")?;
        Ok(())
    }

    /// Whether a sleep that logind was asked for is not over yet.
    pub fn is_going_to_sleep(&mut self) -> Result<bool> {
        match self.0.property(&LOGIND, "PreparingForSleep").context("ask logind whether it is over")? {
            Reply::Answer(answer) => answer.flag().context("logind answers with something else than yes or no"),
            Reply::Nobody => bail!("ask logind whether it is over: it has gone"),
        }
    }
}

fn address(path: &Path) -> Option<SocketAddr> {
    SocketAddr::from_pathname(path).ok()
}

/// `unix:path=/run/user/1000/bus,guid=...;unix:abstract=...`; other transports are passed over.
fn addresses(text: &str) -> Vec<SocketAddr> {
    let values = |entry: &str| -> Option<SocketAddr> {
        entry.strip_prefix("unix:")?.split(',').find_map(|pair| match pair.split_once('=')? {
            ("path", path) => address(Path::new(&unescape(path)?)),
            ("abstract", name) => SocketAddr::from_abstract_name(unescape(name)?).ok(),
            _ => None,
        })
    };
    text.split(';').filter_map(values).collect()
}

/// `%2f` and the like.
fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;
const SIGNAL: u8 = 4;
/// A flag of a call: who is not there is not started.
const NO_AUTO_START: u8 = 2;
#[cfg(target_endian = "little")]
const ORDER: u8 = b'l';
#[cfg(target_endian = "big")]
const ORDER: u8 = b'B';

/// Header fields, by number.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

fn request(
    target: &Target<'_>,
    bus: bool,
    flags: u8,
    member: &str,
    signature: &str,
    body: &[u8],
    serial: u32,
) -> Result<Vec<u8>> {
    let mut message = Message(vec![ORDER, CALL, flags, 1]);
    message.number(u32::try_from(body.len())?);
    message.number(serial);
    message.array(8, |fields| {
        fields.field(PATH, "o", target.path);
        fields.field(INTERFACE, "s", target.interface);
        fields.field(MEMBER, "s", member);
        if bus {
            fields.field(DESTINATION, "s", target.destination);
        }
        if !signature.is_empty() {
            fields.align(8);
            fields.0.push(SIGNATURE);
            fields.signature("g");
            fields.signature(signature);
        }
    });
    message.align(8);
    message.0.extend_from_slice(body);
    Ok(message.0)
}

/// Values as they travel. Each begins at a multiple of its size.
#[derive(Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, value: u32) {
        self.align(4);
        self.0.extend_from_slice(&value.to_ne_bytes());
    }

    fn string(&mut self, text: &str) {
        self.number(u32::try_from(text.len()).unwrap_or(0));
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, text: &str) {
        self.0.push(u8::try_from(text.len()).unwrap_or(0));
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
    }

    /// Its length in bytes counts from its first element on, without what aligns that.
    fn array(&mut self, alignment: usize, elements: impl FnOnce(&mut Message)) {
        self.number(0);
        let length_at = self.0.len() - 4;
        self.align(alignment);
        let begin = self.0.len();
        elements(self);
        let length = u32::try_from(self.0.len() - begin).unwrap_or(0);
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_ne_bytes());
    }

    fn field(&mut self, code: u8, kind: &str, value: &str) {
        self.align(8);
        self.0.push(code);
        self.signature(kind);
        self.string(value);
    }

    /// The beginning of a property: its name and what kind of value follows.
    fn structure(&mut self, name: &str, kind: &str) {
        self.align(8);
        self.string(name);
        self.signature(kind);
    }

    fn text_property(&mut self, name: &str, value: &str) {
        self.structure(name, "s");
        self.string(value);
    }
}

/// What came back.
#[derive(Debug, Default)]
pub struct Answer {
    kind: u8,
    reply_to: Option<u32>,
    error: Option<String>,
    /// The body's signature.
    signature: Option<String>,
    body: Vec<u8>,
}

impl Answer {
    fn read(stream: &mut impl Read) -> io::Result<Self> {
        let mut head = [0u8; 16];
        stream.read_exact(&mut head)?;
        if head[0] != ORDER {
            return Err(io::Error::other("an answer in the other byte order"));
        }
        let mut reader = Reader { bytes: &head, at: 4 };
        let sizes = [reader.number(), reader.number(), reader.number()];
        let [Some(body), Some(_), Some(fields)] = sizes.map(|size| size.and_then(|size| usize::try_from(size).ok()))
        else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if body > LONGEST_ANSWER || fields > LONGEST_ANSWER {
            return Err(io::Error::other("an answer of unlikely length"));
        }
        let mut rest = vec![0; fields.next_multiple_of(8) + body];
        stream.read_exact(&mut rest)?;
        let mut answer = Answer { kind: head[1], ..Answer::default() };
        answer.body = rest.split_off(fields.next_multiple_of(8));
        rest.truncate(fields);
        answer.fields(&rest).ok_or(io::ErrorKind::InvalidData)?;
        Ok(answer)
    }

    /// Reads the header's fields; a kind of value that no field has ends it.
    fn fields(&mut self, bytes: &[u8]) -> Option<()> {
        let mut reader = Reader { bytes, at: 0 };
        while reader.at < bytes.len() {
            reader.align(8);
            let code = reader.byte()?;
            match (code, reader.signature()?.as_str()) {
                (REPLY_SERIAL, "u") => self.reply_to = Some(reader.number()?),
                (ERROR_NAME, "s") => self.error = Some(reader.string()?),
                (SIGNATURE, "g") => self.signature = Some(reader.signature()?),
                (_, "s" | "o") => drop(reader.string()?),
                (_, "g") => drop(reader.signature()?),
                (_, "u") => drop(reader.number()?),
                _ => return None,
            }
        }
        Some(())
    }

    /// The elements of an array of structures with this signature, as `read` takes them apart; `None`: it is
    /// something else, or one of them is.
    pub fn list<T>(&self, signature: &str, read: impl Fn(&mut Reader<'_>) -> Option<T>) -> Option<Vec<T>> {
        if self.signature.as_deref() != Some(signature) {
            return None;
        }
        let mut reader = Reader { bytes: &self.body, at: 0 };
        let length = usize::try_from(reader.number()?).ok()?;
        reader.align(8);
        let end = reader.at.checked_add(length)?;
        let mut all = Vec::new();
        while reader.at < end {
            reader.align(8);
            all.push(read(&mut reader)?);
        }
        Some(all)
    }

    /// The value of a property that is yes or no.
    pub fn flag(&self) -> Option<bool> {
        let mut reader = Reader { bytes: &self.body, at: 0 };
        if self.signature.as_deref() != Some("v") || reader.signature()? != "b" {
            return None;
        }
        reader.number().map(|value| value != 0)
    }

    /// The words of an error, or at least its name.
    fn error_text(&self) -> String {
        let name = self.error.as_deref().unwrap_or("an error without a name");
        let words = self.signature.as_deref().filter(|signature| signature.starts_with('s'));
        match words.and_then(|_| Reader { bytes: &self.body, at: 0 }.string()) {
            Some(words) => format!("{words} ({name})"),
            None => name.to_owned(),
        }
    }
}

/// Takes values apart; `None` when there is less than promised.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, length: usize) -> Option<&[u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    /// A number of 32 bits.
    pub fn number(&mut self) -> Option<u32> {
        self.align(4);
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    fn text(&mut self, length: usize) -> Option<String> {
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.byte()?;
        Some(text)
    }

    /// Text, or the path of an object.
    pub fn string(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        self.text(length)
    }

    fn signature(&mut self) -> Option<String> {
        let length = self.byte()?;
        self.text(length.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An error's answer to call 7, as dbus-daemon sends it.
    fn error_answer() -> Vec<u8> {
        let mut body = Message::default();
        body.string("No such unit");
        let mut message = Message(vec![ORDER, 3, 1, 1]);
        message.number(u32::try_from(body.0.len()).expect("short"));
        message.number(3);
        message.array(8, |fields| {
            fields.field(ERROR_NAME, "s", "org.freedesktop.systemd1.NoSuchUnit");
            fields.align(8);
            fields.0.push(REPLY_SERIAL);
            fields.signature("u");
            fields.number(7);
            fields.field(DESTINATION, "s", ":1.5");
            fields.align(8);
            fields.0.push(SIGNATURE);
            fields.signature("g");
            fields.signature("s");
            fields.field(7, "s", ":1.1");
        });
        message.align(8);
        message.0.extend_from_slice(&body.0);
        message.0
    }

    #[test]
    fn an_error_is_told_in_its_words_and_with_its_name() {
        let answer = Answer::read(&mut error_answer().as_slice()).expect("an answer");
        assert_eq!(answer.reply_to, Some(7));
        assert_eq!(answer.error_text(), "No such unit (org.freedesktop.systemd1.NoSuchUnit)");
    }

    #[test]
    fn a_call_is_laid_out_as_the_specification_says() {
        // Written out by hand after the specification, section "Message Format".
        let message = request(&BUS, true, 0, "Hello", "", &[], 1).expect("a message");
        let mut expected = vec![ORDER, 1, 0, 1];
        expected.extend_from_slice(&0u32.to_ne_bytes());
        expected.extend_from_slice(&1u32.to_ne_bytes());
        expected.extend_from_slice(&109u32.to_ne_bytes());
        expected.extend_from_slice(b"\x01\x01o\0");
        expected.extend_from_slice(&21u32.to_ne_bytes());
        expected.extend_from_slice(b"/org/freedesktop/DBus\0\0\0");
        expected.extend_from_slice(b"\x02\x01s\0");
        expected.extend_from_slice(&20u32.to_ne_bytes());
        expected.extend_from_slice(b"org.freedesktop.DBus\0\0\0\0");
        expected.extend_from_slice(b"\x03\x01s\0");
        expected.extend_from_slice(&5u32.to_ne_bytes());
        expected.extend_from_slice(b"Hello\0\0\0");
        expected.extend_from_slice(b"\x06\x01s\0");
        expected.extend_from_slice(&20u32.to_ne_bytes());
        expected.extend_from_slice(b"org.freedesktop.DBus\0\0\0\0");
        assert_eq!(message, expected);
    }

    #[test]
    fn only_a_flag_is_a_flag() {
        let answer = |signature: &str, kind: &str, value: u32| {
            let mut body = Message::default();
            body.signature(kind);
            body.number(value);
            Answer { signature: Some(signature.into()), body: body.0, ..Answer::default() }
        };
        assert_eq!(answer("v", "b", 1).flag(), Some(true));
        assert_eq!(answer("v", "b", 0).flag(), Some(false));
        assert_eq!(answer("v", "u", 1).flag(), None);
        assert_eq!(answer("s", "b", 1).flag(), None);
        assert_eq!(Answer { signature: Some("v".into()), ..Answer::default() }.flag(), None);
    }

    #[test]
    fn addresses_of_other_transports_are_passed_over() {
        let found = addresses("tcp:host=x,port=1;unix:path=/run/a%20b,guid=1;unix:abstract=x");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].as_pathname(), Some(Path::new("/run/a b")));
        assert_eq!(found[1].as_abstract_name(), Some(b"x".as_slice()));
        assert!(addresses("unix:path=%2").is_empty());
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Answer::read(&mut bytes.as_slice());
        }

        #[test]
        fn no_damaged_answer_makes_it_panic(at in 0usize..150, value: u8) {
            let mut bytes = error_answer();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            if let Ok(answer) = Answer::read(&mut bytes.as_slice()) {
                let _ = answer.error_text();
            }
        }

        #[test]
        fn no_list_makes_it_panic_or_is_longer_than_its_bytes(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let length = body.len();
            let answer = Answer { signature: Some("a(io)".into()), body, ..Answer::default() };
            let found = answer.list("a(io)", |game| Some((game.number()?, game.string()?)));
            prop_assert!(found.is_none_or(|found| found.len() * 9 <= length));
            prop_assert_eq!(answer.list("a(susso)", |_| Some(())), None, "another list");
        }
    }
}
