//! What a handler may return.

use std::fmt::Display;

/// A part of a streamed body, or why the body ends early.
pub(crate) type Part = Result<Vec<u8>, String>;

pub(crate) enum Body {
    Whole(Vec<u8>),
    Stream(Box<dyn Iterator<Item = Part> + Send>),
}

/// An answer: status 200 unless [`Answer::status`] sets another one.
pub struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Body,
}

impl Answer {
    /// Bytes without a content type.
    pub fn bytes(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, headers: Vec::new(), body: Body::Whole(body.into()) }
    }

    /// Text in UTF-8.
    pub fn text(text: impl Into<String>) -> Self {
        Self::bytes(text.into().into_bytes()).header("content-type", "text/plain; charset=utf-8")
    }

    /// A JSON value.
    pub fn json(value: &serde_json::Value) -> Self {
        Self::bytes(value.to_string().into_bytes()).header("content-type", "application/json")
    }

    /// No body, status 204.
    pub fn none() -> Self {
        Self::bytes(Vec::new()).status(204)
    }

    /// A body in parts, which are sent as they arrive. An error ends the answer early.
    pub fn stream<P, E>(parts: P) -> Self
    where
        P: IntoIterator<Item = Result<Vec<u8>, E>>,
        P::IntoIter: Send + 'static,
        E: Display,
    {
        let parts = parts.into_iter().map(|part| part.map_err(|error| error.to_string()));
        let body = Body::Stream(Box::new(parts));
        Self { status: 200, headers: Vec::new(), body }
    }

    /// Sets the status, 200 to 599.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Adds a header field.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// A value that can become an answer: text, bytes, JSON, nothing, an [`Answer`], or a `Result` with
/// one of these.
pub trait IntoAnswer {
    /// The answer, or the text of the failure, which callers do not see.
    fn into_answer(self) -> Result<Answer, String>;
}

impl IntoAnswer for Answer {
    fn into_answer(self) -> Result<Answer, String> {
        Ok(self)
    }
}

impl IntoAnswer for String {
    fn into_answer(self) -> Result<Answer, String> {
        Ok(Answer::text(self))
    }
}

impl IntoAnswer for &str {
    fn into_answer(self) -> Result<Answer, String> {
        Ok(Answer::text(self))
    }
}

impl IntoAnswer for Vec<u8> {
    fn into_answer(self) -> Result<Answer, String> {
        Ok(Answer::bytes(self).header("content-type", "application/octet-stream"))
    }
}

impl IntoAnswer for serde_json::Value {
    fn into_answer(self) -> Result<Answer, String> {
        Ok(Answer::json(&self))
    }
}

impl IntoAnswer for () {
    fn into_answer(self) -> Result<Answer, String> {
        Ok(Answer::none())
    }
}

impl<A: IntoAnswer, E: Display> IntoAnswer for Result<A, E> {
    fn into_answer(self) -> Result<Answer, String> {
        self.map_err(|error| error.to_string())?.into_answer()
    }
}
