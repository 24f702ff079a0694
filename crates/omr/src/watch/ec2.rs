//! EC2: the interruption notice of spot instances and the rebalance recommendation, by IMDSv2.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use omr_kernel::clock;
use omr_policy::Purpose;
use omr_units::Monotonic;
use serde::Deserialize;

use super::http::{Answer, Request, Server};
use super::notice::Notice;
use super::source::{Source, word};

const TOKEN: &str = "/latest/api/token";
const TTL: &str = "X-aws-ec2-metadata-token-ttl-seconds";
const ACTION: &str = "/latest/meta-data/spot/instance-action";
const REBALANCE: &str = "/latest/meta-data/events/recommendations/rebalance";
const HIBERNATION: &str = "/latest/meta-data/hibernation/configured";

/// As the documentation recommends.
const INTERVAL: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(5);
/// The requested life of a token, in seconds: six hours, the longest that EC2 allows.
const TOKEN_LIFE: u64 = 21_600;
/// A token that has less time left is not used any more.
const TOKEN_MARGIN: Duration = Duration::from_secs(30);
/// The most bytes of a token. Tokens have 56.
const LONGEST_TOKEN: usize = 1024;

/// An item of the instance's metadata. Each is polled by itself: a failure of one never delays the
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// The interruption notice.
    Action,
    /// The rebalance recommendation.
    Rebalance,
}

/// One item, and the token to ask for it.
#[derive(Debug)]
pub struct Ec2 {
    item: Item,
    token: Option<Token>,
    /// True if the instance was launched so that it can hibernate, which never changes; `None`:
    /// unknown yet.
    hibernates: Option<bool>,
}

#[derive(Debug)]
struct Token {
    text: String,
    good_until: Monotonic,
}

/// `{"action": "terminate", "time": "2026-11-21T03:12:03Z"}`
#[derive(Debug, Deserialize)]
struct InstanceAction {
    action: String,
    time: String,
}

/// `{"noticeTime": "2026-11-21T03:12:03Z"}`
#[derive(Debug, Deserialize)]
struct Rebalance {
    #[serde(rename = "noticeTime")]
    notice_time: String,
}

impl Source for Ec2 {
    fn name(&self) -> &'static str {
        match self.item {
            Item::Action => "ec2 instance-action",
            Item::Rebalance => "ec2 rebalance",
        }
    }

    fn interval(&self) -> Duration {
        INTERVAL
    }

    fn poll(&mut self, server: &Server) -> Result<Vec<Notice>> {
        let notice = match self.item {
            Item::Action => match self.get(server, ACTION)?.found(ACTION)? {
                Some(answer) => Some(parse_action(&answer.body).context(ACTION)?),
                None => None,
            },
            Item::Rebalance => match self.get(server, REBALANCE)?.found(REBALANCE)? {
                Some(answer) => Some(parse_rebalance(&answer.body, self.hibernates(server)?).context(REBALANCE)?),
                None => None,
            },
        };
        Ok(notice.into_iter().collect())
    }
}

impl Ec2 {
    /// For this item.
    pub fn new(item: Item) -> Self {
        Ec2 { item, token: None, hibernates: None }
    }

    /// Returns true if the instance can hibernate. Asks until the answer is known.
    fn hibernates(&mut self, server: &Server) -> Result<bool> {
        if let Some(known) = self.hibernates {
            return Ok(known);
        }
        let known = match self.get(server, HIBERNATION)?.found(HIBERNATION)? {
            Some(answer) => answer.text()? == "true",
            None => false,
        };
        Ok(*self.hibernates.insert(known))
    }

    /// Asks with a token. A token that is refused before its time is replaced once: a new metadata
    /// server knows no old tokens.
    fn get(&mut self, server: &Server, path: &str) -> Result<Answer> {
        for _ in 0..2 {
            let token = self.token(server)?;
            let headers = [("X-aws-ec2-metadata-token", token)];
            let answer = server.ask(&Request { method: "GET", path, headers: &headers, patience: PATIENCE })?;
            if answer.status != 401 {
                return Ok(answer);
            }
            self.token = None;
        }
        bail!("{path}: a new token is refused, too (401)")
    }

    fn token(&mut self, server: &Server) -> Result<&str> {
        let now = clock::read_monotonic();
        let good = self.token.take().filter(|token| token.good_until > now);
        let token = match good {
            Some(token) => token,
            None => {
                let life = TOKEN_LIFE.to_string();
                let headers = [(TTL, life.as_str())];
                let answer =
                    server.ask(&Request { method: "PUT", path: TOKEN, headers: &headers, patience: PATIENCE })?;
                parse_token(&answer, now)?
            }
        };
        Ok(&self.token.insert(token).text)
    }
}

fn parse_token(answer: &Answer, now: Monotonic) -> Result<Token> {
    match answer.status {
        200 => {}
        403 => bail!("{TOKEN}: the metadata service of this instance is turned off (403)"),
        status => bail!("{TOKEN}: the answer is {status}, and not 200"),
    }
    let text = answer.text().context(TOKEN)?;
    // The token goes into a header as it is.
    if text.is_empty() || text.len() > LONGEST_TOKEN || !text.bytes().all(|c| c.is_ascii_graphic()) {
        bail!("{TOKEN}: what came is not a token");
    }
    let life = answer.header(TTL).and_then(|life| life.parse().ok()).unwrap_or(TOKEN_LIFE).min(TOKEN_LIFE);
    let good_until = now + Duration::from_secs(life).saturating_sub(TOKEN_MARGIN);
    Ok(Token { text: text.to_owned(), good_until })
}

fn parse_action(body: &[u8]) -> Result<Notice> {
    let InstanceAction { action, time } = serde_json::from_slice(body)?;
    let at = humantime::parse_rfc3339_weak(&time).with_context(|| format!("{:?} is not a time", word(&time)))?;
    let what = format!("spot interruption: {}", word(&action));
    let id = "spot/instance-action".to_owned();
    Ok(match action.as_str() {
        // Hibernation begins at once, without the two minutes of the others.
        "hibernate" => Notice { id, what, purpose: Some(Purpose::Hibernate), at: None },
        // "stop" and "terminate"; an unknown word is an interruption, too.
        _ => Notice { id, what, purpose: Some(Purpose::Preempt), at: Some(at) },
    })
}

/// The early signal: an interruption follows after minutes to hours, or never. It counts only where
/// a hibernation may follow, which has no other warning; for the rest two minutes are enough.
fn parse_rebalance(body: &[u8], hibernates: bool) -> Result<Notice> {
    let Rebalance { notice_time } = serde_json::from_slice(body)?;
    Ok(Notice {
        id: "events/recommendations/rebalance".into(),
        what: format!("rebalance recommendation of {}", word(&notice_time)),
        purpose: hibernates.then_some(Purpose::Hibernate),
        at: None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_action_is_prepared_for() {
        let parse = |text: &str| parse_action(text.as_bytes()).expect("a notice");
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_505_734_920);
        let notice = parse(r#"{"action": "terminate", "time": "2017-09-18T11:42:00Z"}"#);
        assert_eq!((notice.purpose, notice.at), (Some(Purpose::Preempt), Some(at)));
        assert_eq!(notice.what, "spot interruption: terminate");
        let notice = parse(r#"{"action": "hibernate", "time": "2017-09-18T11:42:00Z"}"#);
        assert_eq!((notice.purpose, notice.at), (Some(Purpose::Hibernate), None));
        let notice = parse(r#"{"action":"a\nnew\u001b[31mword","time":"2017-09-18T11:42:00Z","more":[1]}"#);
        assert_eq!(notice.purpose, Some(Purpose::Preempt));
        assert!(!notice.what.contains(char::is_control), "{:?}", notice.what);
    }

    #[test]
    fn an_invalid_notice_is_an_error() {
        for text in ["", "<html>", "[]", r#"{"action":"stop"}"#, r#"{"action":"stop","time":"soon"}"#] {
            assert!(parse_action(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse_rebalance(b"{}", true).is_err());
    }

    #[test]
    fn a_recommendation_counts_where_a_hibernation_may_follow() {
        let body = br#"{"noticeTime": "2020-10-26T22:00:00Z"}"#;
        assert_eq!(parse_rebalance(body, true).expect("a notice").purpose, Some(Purpose::Hibernate));
        assert_eq!(parse_rebalance(body, false).expect("a notice").purpose, None);
    }

    #[test]
    fn a_token_that_could_be_more_than_one_header_is_none() {
        let answer = |body: &str| {
            let mut answer = Answer::default();
            (answer.status, answer.body) = (200, body.into());
            answer
        };
        let now = Monotonic(0);
        assert_eq!(parse_token(&answer("AQAA==\n"), now).expect("a token").text, "AQAA==");
        for body in ["", "a b", "a\r\nX: y", "\u{e4}", &"x".repeat(5000)] {
            assert!(parse_token(&answer(body), now).is_err(), "{body:?}");
        }
    }

    proptest! {
        #[test]
        fn no_body_makes_it_panic(body in "\\{\"(action|noticeTime)\":\"\\PC{0,20}\",\"time\":\"[0-9TZ:.+-]{0,30}\"\\}|\\PC{0,60}") {
            let _ = parse_action(body.as_bytes());
            let _ = parse_rebalance(body.as_bytes(), true);
        }
    }

    #[test]
    fn no_change_of_an_answer_makes_it_panic() {
        let bodies =
            [r#"{"action": "hibernate", "time": "2017-09-18T11:42:00Z"}"#, r#"{"noticeTime": "2020-10-26T22:54:51Z"}"#];
        omr_testkit::fuzz::feed(&bodies, |body| drop((parse_action(body), parse_rebalance(body, true))));
    }
}
