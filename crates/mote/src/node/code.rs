//! A deploy as another platform's client asks for it: its code becomes a folder, what it says of
//! the function a spec, and both go the way of every deploy.

use std::sync::Arc;

use mote_api::Problem;
use mote_compat::node::Deploy;

use super::Node;

/// Deploys; resolves when the function is ready.
pub(super) async fn deploy(_node: &Arc<Node>, deploy: Deploy) -> Result<(), Problem> {
    let text = format!("{}: this API deploys nothing yet", deploy.name);
    Err(Problem::new(501, "M0305", text))
}
