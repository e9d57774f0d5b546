//! Parts of answers that several routes of the management API share: errors, and parts of
//! functions.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mote_api::types::{TrafficShare, Urls};
use mote_api::{ClientError, Problem, paths};
use mote_core::rollout::Split;

use super::Controller;
use crate::resources::Function;

/// An error as an HTTP answer.
pub(super) struct Refused(pub(super) Problem);

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl From<ClientError> for Refused {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Problem(problem) => Self(*problem),
            other => Self(Problem::new(
                502,
                "M0201",
                format!("a cell does not answer the controller: {other}"),
            )),
        }
    }
}

impl From<kube::Error> for Refused {
    fn from(error: kube::Error) -> Self {
        if let kube::Error::Api(status) = &error
            && (status.code == 422 || status.code == 400)
        {
            return Self(Problem::new(422, "M0303", status.message.clone()));
        }
        let problem = Problem::new(
            503,
            "M0201",
            format!("the API server of the cluster did not accept the request: {error}"),
        );
        Self(problem.with_hint("try again; the log of the controller has more"))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::BAD_REQUEST);
        let headers = [
            ("content-type", "application/problem+json".to_owned()),
            (paths::HEADER_FAULT, self.0.code.clone()),
        ];
        (status, headers, serde_json::to_string(&self.0).unwrap_or_default()).into_response()
    }
}

impl Controller {
    /// Tells the user how to look at the pods of cells.
    pub(super) fn see_pods(&self) -> String {
        format!("see: kubectl get pods -n {}", self.options.place.system_namespace)
    }

    /// The answer when no cell is available.
    pub(super) fn no_cells(&self) -> Problem {
        let problem = Problem::new(503, "M0505", "no cell of the cluster is ready");
        problem.with_hint(self.see_pods())
    }
}

/// Returns the resource of a function, or a 404 that suggests similar names.
pub(super) fn known(controller: &Controller, name: &str) -> Result<Arc<Function>, Problem> {
    controller.functions.get(name).ok_or_else(|| {
        let names = controller.functions.names();
        Problem::no_such_function(name, names.iter().map(String::as_str))
    })
}

/// Converts the shares of a split for the API.
pub(super) fn shares(split: &Split) -> Vec<TrafficShare> {
    let share = |share: &mote_core::rollout::Share| TrafficShare {
        revision: share.revision,
        percent: share.percent,
        tag: share.tag.clone(),
    };
    split.shares().iter().map(share).collect()
}

/// The addresses at which a function can be called.
pub(super) fn urls(controller: &Controller, name: &str) -> Urls {
    let base = controller.options.url.as_ref();
    Urls {
        http: base.map(|base| format!("{}/{name}", base.trim_end_matches('/'))),
        ..Urls::default()
    }
}
