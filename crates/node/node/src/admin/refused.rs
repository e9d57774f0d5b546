//! Refusals of the management API, and changes that end although their client has left.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mote_api::{Problem, paths};

/// An error as an HTTP answer.
pub(crate) struct Refused(pub(crate) Problem);

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::BAD_REQUEST);
        let fault = self.0.code.clone();
        let body = serde_json::to_string(&self.0).unwrap_or_default();
        let headers =
            [("content-type", "application/problem+json".to_owned()), (paths::HEADER_FAULT, fault)];
        (status, headers, body).into_response()
    }
}

/// Runs a change in a task of its own, so that a client that disconnects cannot leave it half done.
pub(super) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Refused> {
    let failed = |_| Problem::new(500, "M0599", "the node could not make the change; see its log");
    Ok(tokio::spawn(work).await.map_err(failed)??)
}

/// A word of a client, as an error shows it.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}
