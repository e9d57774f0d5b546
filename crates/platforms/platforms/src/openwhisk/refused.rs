//! Turns refusals of OpenWhisk's API into answers in the platform's form.

use crate::compat::connection::Crowded;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mote_api::Problem;
use serde_json::json;

/// A refusal in the platform's form.
#[derive(Debug)]
pub(super) struct Refused(pub(super) StatusCode, pub(super) String);

impl Refused {
    pub(super) fn bad(text: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, text.into())
    }

    pub(super) fn conflict(text: impl Into<String>) -> Self {
        Self(StatusCode::CONFLICT, text.into())
    }

    pub(super) fn not_found() -> Self {
        Self(StatusCode::NOT_FOUND, "The requested resource does not exist.".to_owned())
    }

    pub(super) fn method() -> Self {
        let text = "HTTP method not allowed.";
        Self(StatusCode::METHOD_NOT_ALLOWED, text.to_owned())
    }
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(crate::compat::status_of(&problem, &[422]), crate::compat::words(&problem))
    }
}

impl From<Crowded> for Refused {
    fn from(crowded: Crowded) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, crowded.to_string())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.1, "code": "0" });
        (self.0, axum::Json(body)).into_response()
    }
}
