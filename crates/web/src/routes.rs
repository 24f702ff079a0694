//! What is asked for, and the answers.

use std::sync::Arc;

use hyper::body::{Bytes, Incoming};
use hyper::header::IF_NONE_MATCH;
use hyper::{Method, Request, StatusCode};
use omr_metrics::Format;
use serde_json::json;

use crate::answer::{Answer, error};
use crate::guard::Guard;
use crate::live::Live;
use crate::page;
use crate::question::{Explain, Question, nothing};
use crate::records::Records;

const JSON: &str = "application/json";

/// What answers are made of.
pub struct Sources {
    /// The daemon.
    pub live: Live,
    /// The history and the ledger.
    pub records: Records,
}

/// Answers a request that has come through a socket with this guard.
pub async fn answer(sources: Arc<Sources>, guard: Arc<Guard>, request: Request<Incoming>) -> Answer {
    match guard.refuse(&request) {
        Some(answer) => answer,
        None => route(&sources, &request).await.unwrap_or_else(|Wrong(status, text)| error(status, &text)),
    }
}

/// An error, in words.
struct Wrong(StatusCode, String);

async fn route(sources: &Sources, request: &Request<Incoming>) -> Result<Answer, Wrong> {
    let query = request.uri().query().unwrap_or_default();
    let wrong = |text| Wrong(StatusCode::BAD_REQUEST, text);
    match request.uri().path() {
        "/api/groups" => records(sources, Question::groups(query).map_err(wrong)?).await,
        "/api/charts" => records(sources, Question::charts(query).map_err(wrong)?).await,
        "/api/explain" => match Explain::parse(query).map_err(wrong)? {
            Explain::Past(question) => records(sources, question).await,
            Explain::Now(group) => {
                let lines = sources.live.explain(group).await.map_err(unavailable)?;
                Ok(Answer::new(StatusCode::OK, JSON, json!({ "lines": lines }).to_string()))
            }
        },
        "/api/events" => {
            nothing(query).map_err(wrong)?;
            // A HEAD asks for no events.
            match *request.method() == Method::HEAD {
                true => Ok(Answer::new(StatusCode::OK, "text/event-stream", Bytes::new())),
                false => Ok(Answer::events(sources.live.listen())),
            }
        }
        "/metrics" => {
            nothing(query).map_err(wrong)?;
            from_records(sources, Question::Metrics, Format::OpenMetrics.media_type()).await
        }
        path => {
            let known = request.headers().get(IF_NONE_MATCH).and_then(|known| known.to_str().ok());
            let file = path.strip_prefix('/').and_then(page::file);
            let missing = || Wrong(StatusCode::NOT_FOUND, "there is nothing here; the page is at /".to_owned());
            file.map(|file| file.answer(known)).ok_or_else(missing)
        }
    }
}

async fn records(sources: &Sources, question: Question) -> Result<Answer, Wrong> {
    from_records(sources, question, JSON).await
}

async fn from_records(sources: &Sources, question: Question, kind: &'static str) -> Result<Answer, Wrong> {
    let known = sources.live.status().await;
    let seen = sources.live.seen();
    let answer = sources.records.ask(question, known, seen).await.map_err(unavailable)?;
    Ok(Answer::new(StatusCode::OK, kind, answer))
}

fn unavailable(why: String) -> Wrong {
    Wrong(StatusCode::SERVICE_UNAVAILABLE, why)
}
