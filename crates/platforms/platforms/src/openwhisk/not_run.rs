//! Activations that did not run.

use axum::http::StatusCode;

use super::Refused;

/// The reason why an activation did not run. The activation leaves no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotRun {
    /// The action does not exist, or has no function.
    Missing,
    /// The parameters are larger than the limit.
    TooLarge,
    NoRoom,
    /// The node is stopping.
    Stopping,
    /// The front failed to run the activation.
    Failed,
}

impl From<NotRun> for Refused {
    fn from(reason: NotRun) -> Self {
        let (status, text) = match reason {
            NotRun::Missing => return Self::not_found(),
            NotRun::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "Request larger than allowed: parameters of at most 1 MB.",
            ),
            NotRun::NoRoom => (
                StatusCode::TOO_MANY_REQUESTS,
                "Too many concurrent requests in flight: the node has no room.",
            ),
            NotRun::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "The node stops."),
            NotRun::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "The activation failed to run."),
        };
        Self(status, text.to_owned())
    }
}
