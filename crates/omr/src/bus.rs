//! Calls over D-Bus to systemd, logind and GameMode.
//!
//! The protocol is zbus's, which is asynchronous. One thread of each connection runs zbus; the
//! caller waits for it as for any other call. The contents of signals are not read: a caller that
//! hears of one asks again.
//!
//! Reasons: docs/design/decisions/004-dbus.md.

mod call;
mod private;

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_core::Stream;
use omr_kernel::process::count_own_threads;
use serde::Serialize;
use zbus::message::Type;
use zbus::{DBusError, DynamicType, Message, MessageStream, OwnedVariant, Variant};

use self::call::PATIENCE;
pub use self::call::{Refused, Target};
use self::private::Private;

const SYSTEMD: Target<'static> = Target {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};
/// The manager object of logind.
pub const LOGIND: Target<'static> = Target {
    destination: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
};
/// UPower.
pub const UPOWER: Target<'static> = Target {
    destination: "org.freedesktop.UPower",
    path: "/org/freedesktop/UPower",
    interface: "org.freedesktop.UPower",
};
const BUS: Target<'static> =
    Target { destination: "org.freedesktop.DBus", path: "/org/freedesktop/DBus", interface: "org.freedesktop.DBus" };

/// A scope that systemd is asked for.
#[derive(Debug)]
pub struct Scope<'a> {
    /// The name of the unit, ending in `.scope`.
    pub name: &'a str,
    /// The description that `systemctl status` shows.
    pub description: &'a str,
    /// The process to put into the scope.
    pub pid: u32,
    /// The slice to put the scope into; `None`: systemd's default.
    pub slice: Option<&'a str>,
}

/// The owner of a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The machine.
    System,
    /// The user's session.
    User,
}

impl Whose {
    /// The addresses of the bus: those of the environment, or else its usual place.
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
    bus: zbus::Connection,
    socket: UnixStream,
    /// There is a bus in between; otherwise the socket is systemd's own.
    is_bus: bool,
    /// Has an element when a signal came since the last [`Connection::wait`]; ends with the
    /// connection.
    signals: Receiver<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The thread that runs it reads the end of the stream, and ends.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Connection {
    /// Connects to a bus.
    pub fn to_bus(whose: Whose) -> Result<Self> {
        let mut last = None;
        for address in whose.buses() {
            match UnixStream::connect_addr(&address) {
                Ok(stream) => return Connection::open(stream, true),
                Err(err) => last = Some((address, err)),
            }
        }
        match last {
            Some((address, err)) => Err(err).with_context(|| format!("connect to the bus at {address:?}")),
            None => bail!("no way to the bus: neither DBUS_SESSION_BUS_ADDRESS nor XDG_RUNTIME_DIR is set"),
        }
    }

    fn open(stream: UnixStream, is_bus: bool) -> Result<Self> {
        let socket = stream.try_clone()?;
        let (sender, opened) = sync_channel(1);
        let (heard, signals) = sync_channel(1);
        thread::Builder::new()
            .name("omr-bus".into())
            .spawn(move || zbus::block_on(serve(stream, is_bus, &sender, &heard)))
            .context("start a thread")?;
        match opened.recv_timeout(PATIENCE) {
            Ok(Ok(bus)) => Ok(Connection { bus, socket, is_bus, signals }),
            Ok(Err(err)) => Err(refused_entry(err, is_bus)),
            Err(_) => {
                let _ = socket.shutdown(Shutdown::Both);
                bail!("no answer on D-Bus")
            }
        }
    }

    /// Calls and waits for the answer. The bus starts the service if it does not run.
    fn call(&self, target: &Target<'_>, member: &str, body: &(impl Serialize + DynamicType)) -> Result<Message> {
        self.call_at(target, target.destination, member, body)
    }

    fn call_at(
        &self,
        target: &Target<'_>,
        destination: &str,
        member: &str,
        body: &(impl Serialize + DynamicType),
    ) -> Result<Message> {
        let destination = self.is_bus.then_some(destination);
        let call = self.bus.call_method(destination, target.path, Some(target.interface), member, body);
        zbus::block_on(call).map_err(explain)
    }

    /// Calls a service that the bus must not start for this. `None`: the service does not run.
    pub fn ask(
        &self,
        target: &Target<'_>,
        member: &str,
        body: &(impl Serialize + DynamicType),
    ) -> Result<Option<Message>> {
        // A call to the owner's own address starts nothing.
        let answer = self.call(&BUS, "GetNameOwner", &target.destination).and_then(|owner| {
            let owner: String =
                owner.body().deserialize().context("the bus answers with something else than a name")?;
            self.call_at(target, &owner, member, body)
        });
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(err) if has_gone(&err) => Ok(None),
            Err(err) => Err(err.context(member.to_owned())),
        }
    }

    /// The value of a property of an object. `None`: the service does not run.
    pub fn property(&self, target: &Target<'_>, name: &str) -> Result<Option<OwnedVariant>> {
        let properties = Target { interface: "org.freedesktop.DBus.Properties", ..*target };
        let Some(answer) = self.ask(&properties, "Get", &(target.interface, name))? else { return Ok(None) };
        let value = answer.body().deserialize();
        value.map(Some).with_context(|| format!("{} answers with something else than a property", target.destination))
    }

    /// All properties of an object. `None`: the service does not run.
    pub fn properties(&self, target: &Target<'_>) -> Result<Option<HashMap<String, OwnedVariant>>> {
        let properties = Target { interface: "org.freedesktop.DBus.Properties", ..*target };
        let Some(answer) = self.ask(&properties, "GetAll", &target.interface)? else { return Ok(None) };
        let values = answer.body().deserialize();
        values.map(Some).with_context(|| format!("{} answers with something else than properties", target.destination))
    }

    /// Has the bus send the signals that match a rule, such as
    /// `type='signal',sender='org.freedesktop.login1'`.
    pub fn subscribe(&self, rule: &str) -> Result<()> {
        self.call(&BUS, "AddMatch", &rule).context("ask the bus for signals")?;
        Ok(())
    }

    /// Waits for a signal, any of those that were subscribed to; false: none came within
    /// `patience`. All signals that came since the last call count as one.
    pub fn wait(&self, patience: Duration) -> Result<bool> {
        match self.signals.recv_timeout(patience) {
            Ok(()) => Ok(true),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => bail!("the bus has gone"),
        }
    }
}

/// Runs a connection until it ends.
async fn serve(
    stream: UnixStream,
    is_bus: bool,
    opened: &SyncSender<zbus::Result<zbus::Connection>>,
    heard: &SyncSender<()>,
) {
    let builder = zbus::connection::Builder::unix_stream(stream).method_timeout(PATIENCE);
    let builder = if is_bus { builder } else { builder.p2p() };
    let connection = match builder.build().await {
        Ok(connection) => connection,
        Err(err) => return drop(opened.send(Err(err))),
    };
    // Every message, so that none fills a queue for which the next answer would wait.
    let mut messages = MessageStream::from(&connection);
    if opened.send(Ok(connection)).is_err() {
        return;
    }
    while let Some(Ok(message)) = std::future::poll_fn(|context| Pin::new(&mut messages).poll_next(context)).await {
        if message.message_type() == Type::Signal {
            // Full: one is waiting already.
            let _ = heard.try_send(());
        }
    }
}

/// A value that is yes or no; `None`: it is something else.
pub fn flag(value: &Variant<'_>) -> Option<bool> {
    match value {
        Variant::Bool(value) => Some(*value),
        _ => None,
    }
}

/// A value that is text; `None`: it is something else.
pub fn text<'a>(value: &'a Variant<'_>) -> Option<&'a str> {
    match value {
        Variant::Str(value) => Some(value.as_str()),
        _ => None,
    }
}

fn has_gone(err: &anyhow::Error) -> bool {
    err.downcast_ref::<Refused>().is_some_and(|refused| {
        matches!(
            refused.name.as_str(),
            "org.freedesktop.DBus.Error.ServiceUnknown" | "org.freedesktop.DBus.Error.NameHasNoOwner"
        )
    })
}

/// Why a call failed.
fn explain(err: zbus::Error) -> anyhow::Error {
    match err {
        zbus::Error::MethodError(name, words, _) => Refused { name: name.to_string(), words }.into(),
        zbus::Error::FDO(err) => {
            Refused { name: err.name().to_string(), words: err.description().map(str::to_owned) }.into()
        }
        err @ zbus::Error::InputOutput(_) => anyhow::Error::from(err).context("no answer on D-Bus"),
        err => err.into(),
    }
}

/// Why a connection did not come about.
fn refused_entry(err: zbus::Error, is_bus: bool) -> anyhow::Error {
    match err {
        zbus::Error::Handshake(words) => anyhow::anyhow!("D-Bus refused the connection: {words}"),
        err if is_bus => {
            let uid = rustix::process::geteuid().as_raw();
            explain(err).context(format!("the bus does not let user {uid} in; it may be another user's"))
        }
        err => explain(err),
    }
}

/// A connection to a service manager.
#[derive(Debug)]
pub enum Systemd {
    /// Over a bus, which has services other than systemd, too.
    Bus(Connection),
    /// Over systemd's own socket.
    Private(Private),
}

impl Systemd {
    /// Connects to the service manager of the machine, or of the user: over the bus, and where
    /// there is none over systemd's own socket.
    pub fn connect(user: bool) -> Result<Self> {
        let (buses, private) = match user {
            false => (Whose::System.buses(), Some(PathBuf::from("/run/systemd/private"))),
            true => (Whose::User.buses(), runtime_dir().map(|dir| dir.join("systemd/private"))),
        };
        let private = private.iter().filter_map(|path| address(path));
        let tries = buses.into_iter().map(|address| (address, true)).chain(private.map(|address| (address, false)));
        let mut last = None;
        for (address, is_bus) in tries {
            match UnixStream::connect_addr(&address) {
                Ok(stream) if is_bus => return Ok(Systemd::Bus(Connection::open(stream, true)?)),
                Ok(stream) => return Ok(Systemd::Private(Private::open(stream)?)),
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

    /// Calls the manager, and waits until it has accepted.
    fn call(&mut self, member: &str, body: &(impl Serialize + DynamicType)) -> Result<()> {
        match self {
            Systemd::Bus(bus) => bus.call(&SYSTEMD, member, body).map(drop),
            Systemd::Private(socket) => socket.call(&SYSTEMD, member, body),
        }
    }

    /// The bus, for services other than systemd.
    fn bus(&self) -> Result<&Connection> {
        match self {
            Systemd::Bus(bus) => Ok(bus),
            Systemd::Private(_) => bail!("there is no bus"),
        }
    }

    /// Asks for a scope around a process. Returns when systemd has accepted it; the process is
    /// moved a moment later.
    pub fn start_scope(&mut self, scope: &Scope<'_>) -> Result<()> {
        let mut properties: Vec<(&str, Variant<'_>)> = vec![
            ("Description", scope.description.into()),
            // A scope whose command failed is removed, too.
            ("CollectMode", "inactive-or-failed".into()),
        ];
        if let Some(slice) = scope.slice {
            properties.push(("Slice", slice.into()));
        }
        properties.push(("PIDs", vec![scope.pid].into()));
        // Other units to start with it.
        let others: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
        // "fail": a unit of that name is an error.
        let body = (scope.name, "fail", properties, others);
        self.call("StartTransientUnit", &body).with_context(|| format!("start {}", scope.name))?;
        Ok(())
    }

    /// Has a unit started. Returns when systemd has accepted it.
    pub fn start(&mut self, unit: &str) -> Result<()> {
        // "replace": instead of a job that waits for the unit already.
        self.call("StartUnit", &(unit, "replace")).with_context(|| format!("start {unit}"))?;
        Ok(())
    }

    /// Returns true if there is a bus, and with it services other than systemd.
    pub fn is_bus(&self) -> bool {
        matches!(self, Systemd::Bus(_))
    }

    /// Asks logind to hibernate the machine. Returns when logind has accepted it; the machine
    /// hibernates a moment later.
    pub fn hibernate(&mut self) -> Result<()> {
        // false: no user can enter a password.
        let asked = self.bus().and_then(|bus| bus.call(&LOGIND, "Hibernate", &false));
        asked.context("ask logind to hibernate")?;
        Ok(())
    }

    /// Returns true if a sleep that logind was asked for is not over yet.
    pub fn is_going_to_sleep(&mut self) -> Result<bool> {
        let asked = self.bus().and_then(|bus| bus.property(&LOGIND, "PreparingForSleep"));
        match asked.context("ask logind whether it is over")? {
            Some(value) => flag(&value).context("logind answers with something else than yes or no"),
            None => bail!("ask logind whether it is over: it has gone"),
        }
    }
}

/// Has the machine's systemd start a unit. Returns when systemd has accepted it. The caller may
/// fork afterwards.
pub fn start_unit(unit: &str) -> Result<()> {
    and_end_threads(|| Systemd::connect(false)?.start(unit))
}

/// Does the work and waits until all threads that it has started have ended: a process with more
/// than one must not fork. zbus may have one more for a moment, which nobody can join.
fn and_end_threads<T>(work: impl FnOnce() -> T) -> T {
    let before = count_own_threads();
    let done = work();
    let end = Instant::now() + PATIENCE;
    while count_own_threads() > before && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    done
}

fn address(path: &Path) -> Option<SocketAddr> {
    SocketAddr::from_pathname(path).ok()
}

/// The sockets of an address such as `unix:path=/run/user/1000/bus,guid=...;unix:abstract=...`;
/// other transports are skipped. By hand, as zbus 6.2 does not decode `%20` in a path.
fn addresses(text: &str) -> Vec<SocketAddr> {
    let socket = |entry: &str| -> Option<SocketAddr> {
        entry.strip_prefix("unix:")?.split(',').find_map(|pair| match pair.split_once('=')? {
            ("path", path) => address(Path::new(&unescape(path)?)),
            ("abstract", name) => SocketAddr::from_abstract_name(unescape(name)?).ok(),
            _ => None,
        })
    };
    text.split(';').filter_map(socket).collect()
}

/// Text with its `%2f` and the like replaced; `None`: that is not possible.
fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    const REFUSAL: &str = "org.freedesktop.systemd1.NoSuchUnit";

    /// systemd's own socket: answers the handshake, and the first call (by its number) with bytes;
    /// then it ends.
    fn answering(answer: impl FnOnce(u32) -> Vec<u8> + Send + 'static) -> UnixStream {
        const BEGIN: &[u8] = b"BEGIN\r\n";
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        thread::spawn(move || {
            let mut heard = Vec::new();
            let mut hear_until = |theirs: &mut UnixStream, end: &[u8]| {
                let mut buffer = [0; 1024];
                while !heard.ends_with(end) {
                    match theirs.read(&mut buffer).expect("readable") {
                        0 => return None,
                        read => heard.extend_from_slice(&buffer[..read]),
                    }
                }
                Some(heard.clone())
            };
            let asked = hear_until(&mut theirs, BEGIN).expect("a handshake");
            let agree = if String::from_utf8_lossy(&asked).contains("NEGOTIATE") { "AGREE_UNIX_FD\r\n" } else { "" };
            let guid = "0123456789abcdef0123456789abcdef";
            theirs.write_all(format!("OK {guid}\r\n{agree}").as_bytes()).expect("written");
            let Some(heard) = hear_until(&mut theirs, b"replace\0") else { return };
            let call = heard.windows(BEGIN.len()).position(|window| window == BEGIN).expect("begun") + BEGIN.len();
            let serial = heard[call + 8..call + 12].try_into().expect("four bytes");
            let _ = theirs.write_all(&answer(u32::from_ne_bytes(serial)));
        });
        ours
    }

    fn ask(answer: impl FnOnce(u32) -> Vec<u8> + Send + 'static) -> Result<()> {
        Systemd::Private(Private::open(answering(answer)).expect("connected")).start("x.swap")
    }

    /// The bytes of an error's answer.
    fn error_answer(serial: u32) -> Vec<u8> {
        let number = |number: usize| u32::try_from(number).expect("short").to_ne_bytes();
        let string = |text: &str| [&number(text.len()), text.as_bytes(), b"\0"].concat();
        // The sender is no unique name, as zbus has it, but what systemd says on its own socket.
        let sender = [b"\x07\x01s\0", &string("org.freedesktop.systemd1")[..], b"\0\0\0\0\0\0\0"].concat();
        let kind = [b"\x05\x01u\0", &serial.to_ne_bytes()[..], b"\x08\x01g\0\x01s\0\0"].concat();
        let mut fields = [kind, sender, [b"\x04\x01s\0", &string(REFUSAL)[..]].concat()].concat();
        let body = string("No such unit");
        let order = if cfg!(target_endian = "little") { b'l' } else { b'B' };
        let head = [&[order, 3, 1, 1], &number(body.len())[..], &number(3), &number(fields.len())].concat();
        fields.resize(fields.len().next_multiple_of(8), 0);
        [head, fields, body].concat()
    }

    #[test]
    fn an_error_is_told_in_its_words_and_with_its_name() {
        let err = ask(error_answer).expect_err("refused");
        assert_eq!(format!("{err:#}"), format!("start x.swap: No such unit ({REFUSAL})"));
        assert_eq!(err.downcast_ref::<Refused>().map(|refused| refused.name.as_str()), Some(REFUSAL));
        // One that the library has a name of its own for.
        let call = Message::method_call("/", "Call").build(&()).expect("a call");
        let gone = Message::error(&call.header(), "org.freedesktop.DBus.Error.ServiceUnknown").build(&"who?");
        let gone = explain(gone.expect("an error").into());
        assert_eq!(gone.to_string(), "who? (org.freedesktop.DBus.Error.ServiceUnknown)");
        assert!(has_gone(&gone) && !has_gone(&err));
    }

    #[test]
    fn no_damaged_answer_is_taken_for_success_or_makes_it_panic() {
        let length = error_answer(1).len();
        for at in 0..length {
            for value in [0, 2, 0x7f, 0xff] {
                let result = ask(move |serial| {
                    let mut bytes = error_answer(serial);
                    bytes[at] = value;
                    bytes
                });
                // Byte 1 is the kind of message, and 2 is an answer without an error.
                assert_eq!(result.is_ok(), (at, value) == (1, 2), "{at} {value}: {result:?}");
            }
        }
        let err = ask(|_| Vec::new()).expect_err("no answer");
        assert!(format!("{err:#}").starts_with("start x.swap: no answer on D-Bus: "), "{err:#}");
    }

    #[test]
    fn no_text_of_an_address_makes_it_panic() {
        let texts =
            ["unix:path=/run/user/1000/bus,guid=1;unix:abstract=/tmp/dbus%2fx", "tcp:host=x,port=1;unix:path=/a%20b"];
        omr_testkit::fuzz::feed(&texts, |text| {
            let Ok(text) = std::str::from_utf8(text) else { return };
            assert!(addresses(text).len() <= text.split(';').count());
        });
    }

    /// In a process of its own, as tests run side by side.
    #[test]
    fn a_process_that_has_started_a_unit_may_fork() {
        if std::env::var_os("OMR_TEST_ALONE").is_none() {
            let output = std::process::Command::new(std::env::current_exe().expect("a test"))
                .args(["--exact", "--test-threads=1", "bus::tests::a_process_that_has_started_a_unit_may_fork"])
                .env("OMR_TEST_ALONE", "1")
                .output()
                .expect("it runs");
            assert!(output.status.success(), "{output:?}");
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
            return;
        }
        let before = count_own_threads();
        for _ in 0..100 {
            let started = and_end_threads(|| {
                let connection = Connection::open(answering(error_answer), false).expect("connected");
                assert!(count_own_threads() > before);
                Systemd::Bus(connection).start("x.swap")
            });
            assert!(started.is_err());
            assert_eq!(count_own_threads(), before);
        }
    }

    #[test]
    fn only_a_flag_is_a_flag() {
        assert_eq!(flag(&true.into()), Some(true));
        assert_eq!(flag(&false.into()), Some(false));
        assert_eq!(flag(&1u32.into()), None);
        assert_eq!(flag(&"true".into()), None);
    }

    #[test]
    fn addresses_of_other_transports_are_passed_over() {
        let found = addresses("tcp:host=x,port=1;unix:path=/run/a%20b,guid=1;unix:abstract=x");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].as_pathname(), Some(Path::new("/run/a b")));
        assert_eq!(found[1].as_abstract_name(), Some(b"x".as_slice()));
        assert!(addresses("unix:path=%2").is_empty());
    }
}
