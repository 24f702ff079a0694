//! Azure: Scheduled Events. They are never acknowledged: an acknowledged event begins sooner.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use omr_policy::Purpose;
use serde::Deserialize;

use super::http::{Answer, Request, Server};
use super::notice::Notice;
use super::source::{Source, word};

const EVENTS: &str = "/metadata/scheduledevents?api-version=2020-07-01";
const NAME: &str = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";

/// As the documentation recommends, since a spot VM has 30 seconds.
const INTERVAL: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);
/// The first request turns the service on, and is answered after up to two minutes.
const FIRST_PATIENCE: Duration = Duration::from_secs(130);

/// The scheduled events of this machine.
#[derive(Debug, Default)]
pub struct Azure {
    /// The name of the machine in events; `None`: not asked for yet.
    name: Option<String>,
    /// The list was answered once, so the service is on.
    answered: bool,
}

/// The list of events. Its `DocumentIncarnation` is not read: comparing the events tells a change
/// as well.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    events: Vec<Event>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Event {
    event_id: String,
    /// `Freeze`, `Reboot`, `Redeploy`, `Preempt`, `Terminate`.
    event_type: String,
    /// Names of the machines that the event is about: machines of a scale set see each other's
    /// events.
    #[serde(default)]
    resources: Vec<String>,
    /// `Scheduled`, `Started`.
    #[serde(default)]
    event_status: String,
    /// `Mon, 19 Sep 2016 18:29:47 GMT`; empty when it has started.
    #[serde(default)]
    not_before: String,
}

impl Source for Azure {
    fn name(&self) -> &'static str {
        "azure"
    }

    fn interval(&self) -> Duration {
        INTERVAL
    }

    fn poll(&mut self, server: &Server) -> Result<Vec<Notice>> {
        if self.name.is_none() {
            let answer = get(server, NAME, PATIENCE)?;
            let Some(answer) = answer.found(NAME)? else { bail!("{NAME}: not there (404)") };
            self.name = Some(answer.text().context(NAME)?.to_owned());
        }
        let patience = if self.answered { PATIENCE } else { FIRST_PATIENCE };
        let answer = get(server, EVENTS, patience)?;
        let Some(answer) = answer.found(EVENTS)? else { bail!("{EVENTS}: not there (404)") };
        self.answered = true;
        parse(&answer.body, self.name.as_deref().unwrap_or_default()).context(EVENTS)
    }
}

fn get(server: &Server, path: &str, patience: Duration) -> Result<Answer> {
    server.ask(&Request { method: "GET", path, headers: &[("Metadata", "true")], patience })
}

/// The events that are about the machine of that name.
fn parse(body: &[u8], name: &str) -> Result<Vec<Notice>> {
    let document: Document = serde_json::from_slice(body)?;
    let mine = |event: &Event| event.resources.is_empty() || event.resources.iter().any(|resource| resource == name);
    Ok(document.events.into_iter().filter(mine).map(notice).collect())
}

fn notice(event: Event) -> Notice {
    let kind = word(&event.event_type);
    // Empty, or not readable: as if it were now. One odd event must not hide the others.
    let at = httpdate::parse_http_date(&event.not_before).ok();
    let purpose = match event.event_type.as_str() {
        // The machine stands still already, or is being ended.
        _ if event.event_status == "Started" => None,
        // The machine will be paused and moved to another host with all its memory.
        "Freeze" => Some(Purpose::Migrate),
        // "Preempt", "Terminate", "Reboot", "Redeploy", and a word that is new: its memory is gone.
        _ => Some(Purpose::Preempt),
    };
    let what = match purpose {
        Some(_) => format!("scheduled event: {kind}"),
        None => format!("scheduled event: {kind}, which has started"),
    };
    Notice { id: event.event_id, what, purpose, at }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proptest::prelude::*;

    use super::*;

    const PREEMPT: &str = r#"{"DocumentIncarnation": 2, "Events": [{
        "EventId": "A1", "EventType": "Preempt", "ResourceType": "VirtualMachine", "Resources": ["vm_1", "vm_2"],
        "EventStatus": "Scheduled", "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT", "Description": "", "EventSource": "Platform"}]}"#;

    #[test]
    fn an_event_of_this_machine_is_prepared_for() {
        let notices = parse(PREEMPT.as_bytes(), "vm_2").expect("events");
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_474_309_787);
        assert_eq!(notices.len(), 1);
        assert_eq!((notices[0].purpose, notices[0].at), (Some(Purpose::Preempt), Some(at)));
        assert_eq!(notices[0].id, "A1");
        assert_eq!(parse(PREEMPT.as_bytes(), "vm_3").expect("events"), [], "one of another machine is not");
        assert_eq!(parse(br#"{"DocumentIncarnation":1,"Events":[]}"#, "vm_1").expect("events"), []);
    }

    #[test]
    fn a_pause_is_prepared_for_as_a_migration() {
        let notices = parse(PREEMPT.replace("Preempt", "Freeze").as_bytes(), "vm_1").expect("events");
        assert_eq!(notices[0].purpose, Some(Purpose::Migrate));
    }

    #[test]
    fn a_started_event_is_only_logged() {
        let started = PREEMPT.replace("\"Scheduled\"", "\"Started\"");
        assert_eq!(parse(started.as_bytes(), "vm_1").expect("events")[0].purpose, None);
    }

    #[test]
    fn an_event_without_a_readable_time_is_now() {
        for time in ["", "Tomorrow"] {
            let text = PREEMPT.replace("Mon, 19 Sep 2016 18:29:47 GMT", time);
            let notices = parse(text.as_bytes(), "vm_1").expect("events");
            assert_eq!((notices[0].purpose, notices[0].at), (Some(Purpose::Preempt), None), "{time:?}");
        }
    }

    #[test]
    fn an_answer_without_a_list_of_events_is_an_error() {
        for text in ["", "[]", "{}", "<html>", r#"{"Events":[{}]}"#] {
            assert!(parse(text.as_bytes(), "vm_1").is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_body_makes_it_panic(from in 0usize..400, length in 0usize..9, with in "\\PC{0,9}") {
            let text: String = PREEMPT.chars().take(from).chain(with.chars()).chain(PREEMPT.chars().skip(from + length)).collect();
            let _ = parse(text.as_bytes(), "vm_1");
        }
    }

    #[test]
    fn no_change_of_an_answer_makes_it_panic() {
        omr_testkit::fuzz::feed(&[PREEMPT], |body| drop(parse(body, "vm_1")));
    }
}
