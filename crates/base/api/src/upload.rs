//! What a node and `mote-tools` say to each other about an upload without a spec: the node does not
//! read projects itself.

use serde::{Deserialize, Serialize};

use crate::Problem;

/// The program that reads an upload.
pub const PROGRAM: &str = "mote-tools";
/// Its first argument. The folder and the name of the function follow.
pub const VERB: &str = "read-upload";

/// Its answer, as JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadUpload {
    /// The spec of the function, in its stored form.
    Spec(String),
    /// Why the node must refuse the upload.
    Refused(Problem),
}
