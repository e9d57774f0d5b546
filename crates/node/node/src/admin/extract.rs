//! The parts of requests other than their bodies. Unlike axum's types with these names, these types
//! refuse with a [`Problem`].

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use mote_api::Problem;
use serde::de::DeserializeOwned;

use super::refused::{Refused, shortened};

/// The query string of a request.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Refused;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Refused> {
        let read = axum::extract::Query::try_from_uri(&head.uri);
        let axum::extract::Query(query) = read.map_err(|rejection| {
            let text = rejection.body_text();
            let text = text.rsplit_once("query string: ").map_or(&*text, |(_, text)| text);
            let problem = Problem::new(400, "M1403", format!("query: {}", shortened(text)));
            match text.split_once(": ") {
                Some((field, _)) => problem.with_field(shortened(field)),
                None => problem,
            }
        })?;
        Ok(Self(query))
    }
}

/// The parameters in the path of a request.
pub(super) struct Path<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Refused;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, Refused> {
        let read = axum::extract::Path::from_request_parts(head, state).await;
        let axum::extract::Path(parameters) = read.map_err(|rejection| {
            let text = rejection.body_text();
            let text = text.strip_prefix("Invalid URL: ").unwrap_or(&text);
            Problem::new(400, "M1403", format!("path: {}", shortened(text)))
        })?;
        Ok(Self(parameters))
    }
}
