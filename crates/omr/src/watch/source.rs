//! A source of notices, which each provider implements.

use std::time::Duration;

use anyhow::Result;
use omr_base::text::printable;

use super::http::Server;
use super::notice::Notice;

/// The most characters of a word from the network that are shown.
const SHOWN: usize = 60;

/// A part of a metadata server that announces events.
pub trait Source: Send {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// The time between two polls.
    fn interval(&self) -> Duration;

    /// The notices that are announced now. Returns at once the first time; later it may wait for a
    /// change.
    fn poll(&mut self, server: &Server) -> Result<Vec<Notice>>;
}

/// Text from the network, fit for a log.
pub fn word(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN).collect();
    printable(&shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_the_network_cannot_control_a_terminal() {
        assert!(!word("\u{1b}[31m\n").contains(char::is_control));
        assert_eq!(word(&"x".repeat(1000)).len(), SHOWN);
    }
}
