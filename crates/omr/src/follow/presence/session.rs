//! A session as logind describes it, and the time since its last input.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result};
use omr_policy::presence::Place;
use omr_units::Monotonic;
use zbus::{OwnedVariant, Variant};

use crate::bus::{flag, text};

/// The properties of an object on the bus.
pub type Properties = HashMap<String, OwnedVariant>;

/// A moment by two clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The clock that never jumps.
    pub monotonic: Monotonic,
    /// The time since 1970. The kernel notes input to terminals by this clock.
    pub wall: Duration,
}

/// The last input to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// Unknown.
    Unknown,
    /// A desktop told logind that there has been none since this moment.
    Since(Monotonic),
    /// The last input to a terminal, as time since 1970.
    Terminal(Duration),
}

/// A session in which a person may be at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Where the person is.
    pub place: Place,
    /// Its unit, which is the name of its group.
    pub scope: String,
    input: Input,
    is_locked: bool,
    /// The person has gone, and left processes. They may be a terminal that is used all the same
    /// (mosh).
    is_closing: bool,
    is_text: bool,
    began: Monotonic,
}

impl Session {
    /// Reads the properties of a session. `None`: no person is at work in it: it belongs to a
    /// service, a login screen or cron, or another session is in front of it. A property that is
    /// missing or of another kind is an error.
    pub fn read(properties: &Properties) -> Result<Option<Session>> {
        let get =
            |name: &str| properties.get(name).with_context(|| format!("logind does not tell {name} of a session"));
        let is = |name: &str| flag(get(name)?).with_context(|| other(name));
        let word = |name: &str| text(get(name)?).with_context(|| other(name));
        let micros = |name: &str| match **get(name)? {
            Variant::U64(micros) => Ok(micros),
            _ => Err(anyhow::anyhow!(other(name))),
        };
        let moment = |name: &str| micros(name).map(|micros| Monotonic(micros.saturating_mul(1000)));
        let is_closing = word("State")? == "closing";
        // "user", "user-early", "user-light" and more: not "greeter", "background", "manager".
        if !word("Class")?.starts_with("user") || !(is("Active")? || is_closing) {
            return Ok(None);
        }
        let is_text = word("Type")? == "tty";
        let is_desktop = matches!(word("Type")?, "x11" | "wayland" | "mir");
        let input = match (is_text, is("IdleHint")?) {
            // The hint itself is of no use: it says what logind.conf calls idle.
            (true, _) => match micros("IdleSinceHint")? {
                0 => Input::Unknown,
                micros => Input::Terminal(Duration::from_micros(micros)),
            },
            (false, true) if is_desktop => match moment("IdleSinceHintMonotonic")? {
                Monotonic(0) => Input::Unknown,
                since => Input::Since(since),
            },
            (false, _) => Input::Unknown,
        };
        Ok(Some(Session {
            place: if is("Remote")? { Place::Remote } else { Place::Local },
            scope: word("Scope")?.to_owned(),
            input,
            is_locked: is("LockedHint")?,
            is_closing,
            is_text,
            began: moment("TimestampMonotonic")?,
        }))
    }

    /// Returns true if logind does not know the last input and terminals may. Of a session over ssh
    /// it never does: sshd makes the terminal after the session.
    pub fn needs_terminals(&self) -> bool {
        self.is_text && self.input == Input::Unknown
    }

    /// Takes in the last input to the session's terminals, as time since 1970; `None`: it has none.
    pub fn set_terminals(&mut self, last: Result<Option<Duration>>) {
        match last {
            Ok(Some(last)) => self.input = Input::Terminal(last),
            Ok(None) => {}
            // Somebody may use it, whoever left it.
            Err(_) => self.is_closing = false,
        }
    }

    /// Returns true if it is a text session at a screen of the machine.
    pub fn is_on_console(&self) -> bool {
        self.is_text && !self.is_closing && self.place == Place::Local
    }

    /// A compositor that was started from a text session reads the keyboard itself, and its
    /// terminal sees nothing of it.
    pub fn hide_input(&mut self) {
        self.input = Input::Unknown;
    }
}

fn other(name: &str) -> String {
    format!("logind answers with something else for {name}")
}

/// What is remembered of sessions from look to look.
#[derive(Debug, Default)]
pub struct Inputs(HashMap<String, Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    /// The last input to a terminal, how long ago that was, and when this was noted.
    terminal: Option<(Duration, Duration, Monotonic)>,
    /// When the session was first seen locked, if it is locked.
    locked: Option<Monotonic>,
}

impl Inputs {
    /// Forgets sessions that have ended.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|path, _| is_there(path));
    }

    /// The time since the last input to a session; `Some(None)`: unknown. `None`: nobody is in the
    /// session.
    pub fn idle(&mut self, path: &str, session: &Session, now: Moment) -> Option<Option<Duration>> {
        let remembered = self.0.entry(path.to_owned()).or_default();
        let idle = match session.input {
            Input::Unknown if session.is_closing => return None,
            Input::Unknown => None,
            Input::Since(since) => Some(now.monotonic.since(since)),
            Input::Terminal(last) => Some(remembered.terminal(last, session.began, now)),
        };
        remembered.locked = session.is_locked.then(|| remembered.locked.unwrap_or(now.monotonic));
        // Nobody can work in a locked session.
        Some(match remembered.locked {
            Some(locked) => idle.max(Some(now.monotonic.since(locked))),
            None => idle,
        })
    }
}

impl Remembered {
    /// The time since the last input to a terminal. The wall clock may jump, and that is no time in
    /// which nobody typed: it counts only for the first look, and never back beyond the beginning
    /// of the session.
    fn terminal(&mut self, last: Duration, began: Monotonic, now: Moment) -> Duration {
        let by_wall = now.wall.saturating_sub(last);
        let idle = match self.terminal {
            Some((known, idle, at)) if known == last => idle.saturating_add(now.monotonic.since(at)),
            Some((.., at)) => by_wall.min(now.monotonic.since(at)),
            None => by_wall.min(now.monotonic.since(began)),
        };
        self.terminal = Some((last, idle, now.monotonic));
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    fn moment(seconds: u64) -> Moment {
        Moment { monotonic: at(seconds), wall: wall(seconds) }
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic(0) + Duration::from_secs(seconds)
    }

    /// The machine was started at this time.
    fn wall(seconds: u64) -> Duration {
        Duration::from_secs(1_700_000_000 + seconds)
    }

    /// A desktop's session that began 100 s after boot.
    fn properties(changes: &[(&str, Variant<'static>)]) -> Properties {
        let mut properties: Vec<(&str, Variant<'static>)> = vec![
            ("Class", "user".into()),
            ("State", "active".into()),
            ("Type", "wayland".into()),
            ("Scope", "session-2.scope".into()),
            ("Active", true.into()),
            ("Remote", false.into()),
            ("IdleHint", false.into()),
            ("LockedHint", false.into()),
            ("IdleSinceHint", 0u64.into()),
            ("IdleSinceHintMonotonic", 0u64.into()),
            ("TimestampMonotonic", 100_000_000u64.into()),
        ];
        properties.extend(changes.iter().map(|(name, value)| (*name, value.try_clone().expect("no descriptor"))));
        let owned = |value: Variant<'static>| OwnedVariant::try_from(value).expect("no descriptor");
        properties.into_iter().map(|(name, value)| (name.to_owned(), owned(value))).collect()
    }

    fn session(changes: &[(&str, Variant<'static>)]) -> Option<Session> {
        Session::read(&properties(changes)).expect("a session")
    }

    fn idle_desktop(since: u64) -> Session {
        let since = ("IdleSinceHintMonotonic", (since * 1_000_000).into());
        session(&[("IdleHint", true.into()), since]).expect("active")
    }

    /// A text session that was used at this time after boot.
    fn text_session(used: u64) -> Session {
        let micros = u64::try_from(wall(used).as_micros()).expect("small");
        session(&[("Type", "tty".into()), ("IdleSinceHint", micros.into())]).expect("active")
    }

    fn idle(session: &Session, now: Moment) -> Option<Option<u64>> {
        Inputs::default().idle("a", session, now).map(|idle| idle.map(|idle| idle.as_secs()))
    }

    #[test]
    fn only_active_sessions_of_people_count() {
        for class in ["user", "user-early", "user-light"] {
            assert!(session(&[("Class", class.into())]).is_some(), "{class}");
        }
        for class in ["greeter", "lock-screen", "background", "manager", "none", ""] {
            assert_eq!(session(&[("Class", class.into())]), None, "{class}");
        }
        assert_eq!(session(&[("Active", false.into()), ("State", "online".into())]), None);
    }

    #[test]
    fn a_property_that_is_missing_or_of_another_kind_is_an_error() {
        let whole = properties(&[("Type", "tty".into())]);
        for name in whole.keys().filter(|name| *name != "IdleSinceHintMonotonic") {
            let mut damaged = properties(&[("Type", "tty".into())]);
            damaged.remove(name);
            let err = Session::read(&damaged).expect_err(name);
            assert_eq!(err.to_string(), format!("logind does not tell {name} of a session"));
            damaged.insert(name.clone(), OwnedVariant::try_from(Variant::from(7u32)).expect("plain"));
            let err = Session::read(&damaged).expect_err(name);
            assert_eq!(err.to_string(), format!("logind answers with something else for {name}"));
        }
    }

    #[test]
    fn a_desktop_says_itself_since_when_there_was_no_input() {
        assert_eq!(idle(&idle_desktop(200), moment(500)), Some(Some(300)));
        assert_eq!(idle(&idle_desktop(600), moment(500)), Some(Some(0)), "a time to come");
        assert_eq!(idle(&idle_desktop(0), moment(500)), Some(None));
        // Without the hint there is input now and then; since when is not known.
        let used = session(&[("IdleSinceHintMonotonic", 200_000_000u64.into())]).expect("active");
        assert_eq!(idle(&used, moment(500)), Some(None));
        // Sessions of other kinds may not know of the hint.
        for kind in ["web", "unspecified", "x12"] {
            let other = [("Type", kind.into()), ("IdleHint", true.into()), ("IdleSinceHintMonotonic", 1u64.into())];
            assert_eq!(idle(&session(&other).expect("active"), moment(500)), Some(None), "{kind}");
        }
    }

    #[test]
    fn a_locked_session_is_without_input_from_then_on() {
        let locked = session(&[("LockedHint", true.into())]).expect("active");
        let open = session(&[]).expect("active");
        let mut inputs = Inputs::default();
        let mut idle =
            |session: &Session, now| inputs.idle("a", session, moment(now)).flatten().map(|idle| idle.as_secs());
        assert_eq!(idle(&open, 500), None);
        assert_eq!(idle(&locked, 510), Some(0));
        assert_eq!(idle(&locked, 900), Some(390));
        assert_eq!(idle(&open, 901), None);
        assert_eq!(idle(&locked, 902), Some(0));
        // The desktop knows of an earlier time.
        let both = Session { is_locked: true, ..idle_desktop(200) };
        assert_eq!(idle(&both, 910), Some(710));
    }

    #[test]
    fn a_clock_that_is_set_is_no_time_without_input() {
        let mut inputs = Inputs::default();
        let mut idle = |used, monotonic, wall_seconds| {
            let now = Moment { monotonic: at(monotonic), wall: wall(wall_seconds) };
            inputs.idle("a", &text_session(used), now).flatten().map(|idle| idle.as_secs())
        };
        assert_eq!(idle(490, 500, 500), Some(10));
        // Set forward, set back, and right again.
        assert_eq!(idle(490, 510, 510 + HOUR), Some(20));
        assert_eq!(idle(490, 520, 0), Some(30));
        assert_eq!(idle(490, 530, 530), Some(40));
        // Input while the clock is an hour ahead; then it is set back.
        assert_eq!(idle(535 + HOUR, 540, 540 + HOUR), Some(5));
        assert_eq!(idle(535 + HOUR, 550, 550), Some(15));
        // Input by a clock that was set back, read by one that is right again: since the last look.
        assert_eq!(idle(0, 560, 560), Some(10));
        assert_eq!(idle(2 * HOUR, 570, 570), Some(0), "a time to come");
    }

    #[test]
    fn before_it_began_a_session_was_not_without_input() {
        // The clock was set forward by years since the terminal was made.
        let now = Moment { monotonic: at(150), wall: wall(1_000_000) };
        assert_eq!(idle(&text_session(0), now), Some(Some(50)));
        assert_eq!(idle(&text_session(140), moment(150)), Some(Some(10)), "the control");
    }

    #[test]
    fn terminals_are_asked_where_logind_does_not_know() {
        let ssh = || session(&[("Type", "tty".into()), ("Remote", true.into())]).expect("active");
        assert!(ssh().needs_terminals() && !text_session(490).needs_terminals() && !idle_desktop(0).needs_terminals());
        let mut known = ssh();
        known.set_terminals(Ok(Some(wall(490))));
        assert_eq!(idle(&known, moment(500)), Some(Some(10)));
        let (mut without, mut failed) = (ssh(), ssh());
        without.set_terminals(Ok(None));
        failed.set_terminals(Err(anyhow::anyhow!("denied")));
        assert_eq!((idle(&without, moment(500)), idle(&failed, moment(500))), (Some(None), Some(None)));
    }

    #[test]
    fn a_session_that_its_person_left_counts_by_its_terminals_only() {
        let left = || {
            let changes = [("State", "closing".into()), ("Type", "tty".into()), ("Remote", true.into())];
            session(&changes).expect("there may be terminals")
        };
        let (mut mosh, mut failed) = (left(), left());
        mosh.set_terminals(Ok(Some(wall(490))));
        assert_eq!(idle(&mosh, moment(500)), Some(Some(10)));
        assert_eq!(idle(&left(), moment(500)), None, "a job in the background");
        failed.set_terminals(Err(anyhow::anyhow!("denied")));
        assert_eq!(idle(&failed, moment(500)), Some(None));
        // The control: its person is there.
        assert_eq!(idle(&Session { is_closing: false, ..left() }, moment(500)), Some(None));
    }

    #[test]
    fn what_is_typed_into_a_compositor_is_not_seen() {
        let mut console = text_session(490);
        assert!(console.is_on_console());
        console.hide_input();
        assert_eq!(idle(&console, moment(500)), Some(None));
        let ssh = session(&[("Type", "tty".into()), ("Remote", true.into())]).expect("active");
        assert!(!ssh.is_on_console() && !idle_desktop(1).is_on_console());
    }

    /// Answers of logind, UPower and the bus, as zbus reads them from a socket.
    #[test]
    fn no_change_of_an_answer_makes_it_panic() {
        use zbus::wire::serialized::{Context, Data};
        use zbus::wire::{Endian, ObjectPath};
        use zbus::{Message, OwnedObjectPath};

        let call = Message::method_call("/", "Call").build(&()).expect("a call");
        let to = || Message::method_return(&call.header());
        let path = ObjectPath::try_from("/org/freedesktop/login1/session/_32").expect("a path");
        let session = HashMap::from([
            ("Class", Variant::from("user")),
            ("State", "active".into()),
            ("Type", "tty".into()),
            ("Scope", "session-2.scope".into()),
            ("Active", true.into()),
            ("Remote", false.into()),
            ("IdleHint", false.into()),
            ("LockedHint", false.into()),
            ("IdleSinceHint", 1_795_000_000_000_000u64.into()),
            ("IdleSinceHintMonotonic", 0u64.into()),
            ("TimestampMonotonic", 100_000_000u64.into()),
        ]);
        let messages = [
            to().build(&session),
            to().build(&vec![("2", 1000u32, "user", "seat0", path)]),
            to().build(&Variant::from(true)),
            to().build(&"HybridSleep"),
            Message::error(&call.header(), "org.freedesktop.DBus.Error.ServiceUnknown").build(&"who?"),
        ];
        let inputs: Vec<Vec<u8>> = messages.map(|message| message.expect("a message").data().to_vec()).into();
        let read = std::cell::Cell::new(0);
        omr_testkit::fuzz::feed(&inputs, |bytes| {
            let context = Context::new(Endian::native(), 0);
            // SAFETY: the check of the bytes is what is tested; a socket's bytes are read in the same way.
            let message = unsafe { Message::from_bytes(Data::new(bytes.to_vec(), context)) };
            let Ok(message) = message else { return };
            let body = message.body();
            let sessions = body.deserialize::<Vec<(String, u32, String, String, OwnedObjectPath)>>();
            let value = body.deserialize::<OwnedVariant>();
            let words = body.deserialize::<String>();
            if let Ok(value) = &value {
                let _ = (flag(value), text(value));
            }
            let properties = body.deserialize::<HashMap<String, OwnedVariant>>();
            if let Some(session) = properties.as_ref().ok().and_then(|of| Session::read(of).ok()?) {
                let _ = (idle(&session, moment(500)), session.needs_terminals(), session.is_on_console());
            }
            let known = [sessions.is_ok(), value.is_ok(), words.is_ok(), properties.is_ok()];
            read.set(read.get() + known.iter().filter(|known| **known).count());
        });
        assert!(read.get() >= 5, "the control: {}", read.get());
    }
}
