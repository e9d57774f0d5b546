//! Decides who may use the management API. On the Unix socket these are root and the user that runs
//! the node, whom the kernel identifies; over TCP it is any client that sends the token.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mote_api::Problem;
use mote_compat::node::Admission;

use super::Refused;
use crate::Node;

/// Where a connection comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Caller {
    /// A local process of this user; `None` when the kernel did not name the user.
    Local(Option<u32>),
    /// An address on the network, and whether the connection is encrypted.
    Remote(IpAddr, bool),
}

/// Lets a request through, or answers it with a refusal.
pub(crate) async fn check(
    State(node): State<Arc<Node>>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    request: Request,
    next: Next,
) -> Response {
    match allowed(&node, caller, &request) {
        Ok(()) => next.run(request).await,
        Err((problem, header)) => {
            let mut response = Refused(problem).into_response();
            if let Some((name, value)) = header {
                response.headers_mut().insert(name, axum::http::HeaderValue::from_static(value));
            }
            response
        }
    }
}

type Denied = (Problem, Option<(&'static str, &'static str)>);

fn allowed(node: &Node, caller: Caller, request: &Request) -> Result<(), Denied> {
    let address = match caller {
        Caller::Local(Some(uid)) if uid == 0 || uid == node.uid => return Ok(()),
        Caller::Local(_) => {
            let text = "only root and the user that runs the node may use this socket";
            return Err((Problem::new(403, "M1402", text), None));
        }
        // The token would be readable on the way, and so would what is deployed.
        Caller::Remote(address, false) if !address.is_loopback() && !node.config.admin_plain => {
            let text = "the management API answers other machines over TLS only";
            let problem = Problem::new(403, "M1406", text).with_hint(
                "use https:// instead of http://; for a network that others cannot read, start the \
                 node with --admin http://ADDRESS:PORT",
            );
            return Err((problem, None));
        }
        Caller::Remote(address, _) => address,
    };
    let query = request.uri().query().unwrap_or_default();
    if query.split('&').any(|pair| pair.starts_with("token=") || pair.starts_with("access_token="))
    {
        let text = "a token in a URL is written to logs: send it in Authorization";
        return Err((Problem::new(400, "M1403", text), None));
    }
    let Some(token) = &node.token else {
        return Err((Problem::new(403, "M1402", "this address accepts no requests"), None));
    };
    let mut headers = request.headers().get_all("authorization").iter();
    let given = match (headers.next(), headers.next()) {
        (Some(header), None) => header.to_str().ok().and_then(|text| text.strip_prefix("Bearer ")),
        _ => None,
    };
    match token.admits(address, given) {
        Admission::Admitted => return Ok(()),
        Admission::TooManyTries => {
            let problem = Problem::new(429, "M1401", "too many wrong tokens from this address");
            return Err((problem, Some(("retry-after", "60"))));
        }
        Admission::Refused => {}
    }
    let text = match given {
        Some(_) => "the token is not valid for this node",
        None => "the request contains no token: send Authorization: Bearer TOKEN",
    };
    let problem = Problem::new(401, "M1401", text)
        .with_hint("the token is in the file admin.token of the node's data folder; put it into MOTE_TOKEN, or \
             name its file as token_file in nodes.toml");
    Err((problem, Some(("www-authenticate", "Bearer"))))
}
