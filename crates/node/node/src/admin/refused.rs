//! Errors of the management API as HTTP answers, and changes that run to their end even if their
//! client disconnects.

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

/// Runs a change in a separate task, so that a client that disconnects cannot leave it half done.
pub(super) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Refused> {
    let failed = |_| Problem::new(500, "M0599", "the node could not make the change; see its log");
    Ok(tokio::spawn(work).await.map_err(failed)??)
}

/// Shortens and escapes a text from a client, so that an error message can show it.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}
