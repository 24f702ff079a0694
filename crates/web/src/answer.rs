//! Answers, with the headers that all of them have.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc::Receiver;

/// Headers of every answer: nothing from elsewhere, and nobody else's page around it.
const HEADERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// An answer.
#[derive(Debug)]
pub struct Answer(Response<Content>);

/// The body of an answer.
#[derive(Debug)]
pub enum Content {
    /// All of it; `None`: it was sent.
    Whole(Option<Bytes>),
    /// Events, until either end closes.
    Events(Receiver<Bytes>),
}

impl Answer {
    /// An answer that is not kept by browsers.
    pub fn new(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Self {
        Answer::of(status, kind, Content::Whole(Some(body.into())))
    }

    /// A stream of events.
    pub fn events(events: Receiver<Bytes>) -> Self {
        Answer::of(StatusCode::OK, "text/event-stream", Content::Events(events))
    }

    fn of(status: StatusCode, kind: &'static str, content: Content) -> Self {
        let mut response = Response::new(content);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        for (name, value) in HEADERS {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        Answer(response)
    }

    /// Sets a header.
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.0.headers_mut().insert(HeaderName::from_static(name), value);
        }
        self
    }

    /// The connection ends with this answer.
    pub fn and_close(mut self) -> Self {
        self.0.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        self
    }

    /// The answer for hyper.
    pub fn into_response(self) -> Response<Content> {
        self.0
    }
}

/// An error in words.
pub fn error(status: StatusCode, text: &str) -> Answer {
    Answer::new(status, "text/plain; charset=utf-8", format!("{text}\n"))
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Events(events) => events.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Content::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Content::Events(_) => SizeHint::default(),
        }
    }
}
