//! The answer to a request that a platform's API refuses: a status and a text, in that platform's form.

use std::marker::PhantomData;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mote_api::Problem;
use serde::de::DeserializeOwned;

use crate::compat::connection::Crowded;

/// The form in which a platform's API refuses requests.
pub trait RefusalForm {
    /// Statuses of the node that this platform's clients know as 400.
    const AS_BAD_REQUEST: &'static [u16];

    fn response(status: StatusCode, text: &str) -> Response;
}

/// A request that was refused. As a response it has the form `F`.
pub struct Refused<F> {
    pub status: StatusCode,
    /// What was wrong, for the caller.
    pub text: String,
    form: PhantomData<F>,
}

impl<F> Refused<F> {
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), form: PhantomData }
    }

    /// 400.
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

/// Reads the JSON body of a request; 400 where it is malformed.
pub fn parse<T: DeserializeOwned, F>(body: &[u8]) -> Result<T, Refused<F>> {
    serde_json::from_slice(body).map_err(|error| Refused::bad(format!("body: {error}")))
}
