//! sway: the window with the focus, by sway's socket (sway-ipc(7)). i3 has the same protocol, but
//! names no process.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use omr_kernel::Kernel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use super::tell::{Tell, in_foreground};

const MAGIC: &[u8; 6] = b"i3-ipc";
const SUBSCRIBE: u32 = 2;
const GET_TREE: u32 = 4;
/// The bit of messages that sway sends by itself.
const EVENT: u32 = 1 << 31;
/// The most bytes of a message. A tree of thousands of windows is shorter.
const LONGEST: u32 = 16 << 20;
/// The longest time for an answer. sway answers in milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn follow(kernel: &Kernel, tell: Tell<'_>) -> Result<()> {
    let path = std::env::var_os("SWAYSOCK").context("SWAYSOCK is not set: run omr follow in a session of sway")?;
    let stream = UnixStream::connect(&path).with_context(|| format!("connect to {}", path.display()))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut sway = Sway { stream, heard: false };
    let answer = sway.ask(SUBSCRIBE, br#"["window","workspace","shutdown"]"#)?;
    if answer.get("success") != Some(&Value::Bool(true)) {
        bail!("sway sends no events");
    }
    while tell(in_foreground(kernel, focused(&sway.ask(GET_TREE, b"")?)).into()) {
        sway.wait()?;
    }
    Ok(())
}

/// The process of the window with the focus; `None` on an empty workspace.
fn focused(node: &Value) -> Option<u32> {
    if node.get("focused") == Some(&Value::Bool(true)) {
        return u32::try_from(node.get("pid")?.as_u64()?).ok();
    }
    let children = ["nodes", "floating_nodes"].into_iter().filter_map(|kind| node.get(kind)?.as_array());
    children.flatten().find_map(focused)
}

struct Sway {
    stream: UnixStream,
    /// An event came before an answer.
    heard: bool,
}

impl Sway {
    fn ask(&mut self, kind: u32, payload: &[u8]) -> Result<Value> {
        let mut message = MAGIC.to_vec();
        message.extend_from_slice(&u32::try_from(payload.len())?.to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(payload);
        self.stream.write_all(&message).context("ask sway")?;
        loop {
            let (answered, payload) = self.read()?;
            if answered == kind {
                return serde_json::from_slice(&payload).context("the answer of sway");
            }
            self.heard |= is_news(answered, &payload);
        }
    }

    /// Waits for an event that may have moved the focus.
    fn wait(&mut self) -> Result<()> {
        while !self.heard {
            match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], None::<&Timespec>) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(err) => return Err(err).context("wait for sway"),
            }
            let (kind, payload) = self.read()?;
            self.heard = is_news(kind, &payload);
        }
        self.heard = false;
        Ok(())
    }

    fn read(&mut self) -> Result<(u32, Vec<u8>)> {
        let mut head = [0; 14];
        self.stream.read_exact(&mut head).context("sway has gone")?;
        let [magic @ .., l0, l1, l2, l3, k0, k1, k2, k3] = head;
        let (length, kind) = (u32::from_ne_bytes([l0, l1, l2, l3]), u32::from_ne_bytes([k0, k1, k2, k3]));
        if magic != *MAGIC || length > LONGEST {
            bail!("sway answers with something else than its protocol");
        }
        // Memory for what comes, and not for what was announced.
        let mut payload = Vec::new();
        let read = (&self.stream).take(length.into()).read_to_end(&mut payload).context("sway has gone")?;
        if read < usize::try_from(length)? {
            bail!("sway has gone in the middle of an answer");
        }
        Ok((kind, payload))
    }
}

/// Returns true if a message is an event that may have moved the focus. Titles, marks and calls for
/// attention change often and move no focus.
fn is_news(kind: u32, payload: &[u8]) -> bool {
    let change = serde_json::from_slice::<Value>(payload).ok();
    let change = change.as_ref().and_then(|event| event.get("change")?.as_str());
    kind & EVENT != 0 && !matches!(change, Some("title" | "mark" | "urgent"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_with_the_focus_is_found_wherever_it_is() {
        let tree = |text: &str| focused(&serde_json::from_str(text).expect("JSON"));
        let tiled = r#"{"focused":false,"nodes":[{"nodes":[{"pid":7,"focused":false},{"pid":8,"focused":true}]}]}"#;
        assert_eq!(tree(tiled), Some(8));
        assert_eq!(tree(r#"{"nodes":[],"floating_nodes":[{"pid":9,"focused":true}]}"#), Some(9));
        // An empty workspace has the focus itself; i3 names no process; an id that is none.
        assert_eq!(tree(r#"{"nodes":[{"type":"workspace","focused":true,"nodes":[]}]}"#), None);
        assert_eq!(tree(r#"{"nodes":[{"window":4194311,"focused":true}]}"#), None);
        assert_eq!(tree(r#"{"nodes":[{"pid":-1,"focused":true}]}"#), None);
        assert_eq!(tree(r#"[1,"x",null]"#), None);
    }

    #[test]
    fn titles_are_no_news() {
        assert!(is_news(EVENT | 3, br#"{"change":"focus"}"#));
        assert!(!is_news(EVENT | 3, br#"{"change":"title"}"#));
        assert!(!is_news(GET_TREE, br#"{"change":"focus"}"#), "an answer, though a late one");
        assert!(is_news(EVENT | 3, b"\xff"), "an unreadable message counts as news");
    }

    #[test]
    fn a_length_that_does_not_come_takes_no_memory() {
        let (stream, mut theirs) = UnixStream::pair().expect("a pair");
        let head = [MAGIC.as_slice(), &LONGEST.to_ne_bytes(), &GET_TREE.to_ne_bytes(), b"{}"].concat();
        theirs.write_all(&head).expect("written");
        drop(theirs);
        let held = omr_testkit::memory::most_held(|| {
            let err = (Sway { stream, heard: false }).read().expect_err("cut off");
            assert_eq!(err.to_string(), "sway has gone in the middle of an answer");
        });
        assert!(held < 1 << 16, "{held} bytes");
    }

    #[test]
    fn no_answer_makes_it_panic_or_is_read_into_more_memory_than_came() {
        let message = |kind: u32, payload: &str| {
            let length = u32::try_from(payload.len()).expect("short").to_ne_bytes();
            [MAGIC.as_slice(), &length, &kind.to_ne_bytes(), payload.as_bytes()].concat()
        };
        let tree = r#"{"focused":false,"nodes":[{"nodes":[{"pid":7,"focused":false},{"pid":8,"focused":true}]}]}"#;
        let event = message(EVENT | 3, r#"{"change":"focus","container":{"pid":8}}"#);
        let answers = [message(GET_TREE, tree), [event.clone(), message(GET_TREE, tree)].concat(), event];
        let found = std::cell::Cell::new(0);
        omr_testkit::fuzz::feed(&answers, |bytes| {
            let (stream, mut theirs) = UnixStream::pair().expect("a pair");
            theirs.write_all(bytes).expect("written");
            // It hears the question, and then the end.
            theirs.shutdown(std::net::Shutdown::Write).expect("ended");
            let Ok(tree) = (Sway { stream, heard: false }).ask(GET_TREE, b"") else { return };
            found.set(found.get() + usize::from(focused(&tree).is_some()));
        });
        assert!(found.get() >= 2, "the control");
    }
}
