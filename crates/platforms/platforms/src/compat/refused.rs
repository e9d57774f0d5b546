//! The refusal of a request by a platform's API: a status and a text, in the platform's form.

use std::marker::PhantomData;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mote_api::Problem;
use serde::de::DeserializeOwned;

use crate::compat::connection::Crowded;

/// The form in which one platform refuses requests.
pub trait RefusalForm {
    /// The node's statuses for which this platform's clients expect 400.
    const AS_BAD_REQUEST: &'static [u16];

    fn response(status: StatusCode, text: &str) -> Response;
}

/// A refused request. The response has the form `F`.
pub struct Refused<F> {
    pub status: StatusCode,
    /// The text for the caller that says what was wrong.
    pub text: String,
    form: PhantomData<F>,
}

impl<F> Refused<F> {
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), form: PhantomData }
    }

    /// A refusal with status 400.
    pub fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }
}

impl<F: RefusalForm> From<Problem> for Refused<F> {
    fn from(problem: Problem) -> Self {
        Self::new(
            crate::compat::status_of(&problem, F::AS_BAD_REQUEST),
            crate::compat::words(&problem),
        )
    }
}

impl<F> From<Crowded> for Refused<F> {
    fn from(crowded: Crowded) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, crowded.to_string())
    }
}

impl<F: RefusalForm> IntoResponse for Refused<F> {
    fn into_response(self) -> Response {
        let mut response = F::response(self.status, &self.text);
        crate::compat::call::challenge(&mut response);
        response
    }
}

/// Parses the JSON body of a request. Fails with 400 if the body is malformed.
pub fn parse<T: DeserializeOwned, F>(body: &[u8]) -> Result<T, Refused<F>> {
    serde_json::from_slice(body).map_err(|error| Refused::bad(format!("body: {error}")))
}
