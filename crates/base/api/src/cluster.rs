//! The client's calls for a cluster. An agent uses them to give its cell revisions and traffic splits,
//! and the controller uses them to ask cells.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Method;
use serde::Serialize;

use crate::cells::{CellList, CellsRequest};
use crate::client::{Client, ClientError, DEPLOY_TIMEOUT, built, function_path};
use crate::journals::JournalList;
use crate::paths;
use crate::types::{DeployResult, TrafficResult};

impl Client {
    /// Stores `tar` as revision `number` of `name`, without traffic. With `warm`, an instance of
    /// the revision must become ready first. If the cell already has this revision, nothing
    /// changes. If the cell has a different revision with this number, the cell refuses the call.
    pub async fn place(
        &self,
        name: &str,
        number: u64,
        tar: Bytes,
        warm: bool,
    ) -> Result<DeployResult, ClientError> {
        let path = format!("{}/revisions/{number}?warm={warm}", function_path(name));
        let request = self.request(Method::PUT, &path)?.header("content-type", "application/x-tar");
        let request = built(request.body(Full::new(tar)))?;
        let (status, _, body) = self.call(request, self.timeout.max(DEPLOY_TIMEOUT)).await?;
        self.decode(status, &body)
    }

    /// Sets the whole traffic split of a function with its history. All revisions in the split must
    /// already be placed. With `warm`, the revisions that did not receive traffic before must
    /// become ready first.
    pub async fn set_split(
        &self,
        name: &str,
        traffic: &impl Serialize,
        warm: bool,
    ) -> Result<TrafficResult, ClientError> {
        let path = format!("{}/split?warm={warm}", function_path(name));
        self.send_json(Method::PUT, &path, traffic, self.timeout.max(DEPLOY_TIMEOUT)).await
    }

    /// Tells a cell the addresses of the other cells. The list replaces the previous one.
    pub async fn set_cells(&self, wish: &CellsRequest) -> Result<CellList, ClientError> {
        self.send_json(Method::PUT, paths::CELLS, wish, self.timeout).await
    }

    /// Returns the journals that a node runs.
    pub async fn journals(&self) -> Result<JournalList, ClientError> {
        self.get(paths::JOURNALS).await
    }

    /// Asks a node to take over a journal.
    pub async fn take_journal(&self, name: &str) -> Result<JournalList, ClientError> {
        let path = paths::JOURNAL.replace("{name}", name);
        self.send_json(Method::PUT, &path, &(), self.timeout.max(DEPLOY_TIMEOUT)).await
    }

    /// Asks a node to give a journal back.
    pub async fn give_journal_back(&self, name: &str) -> Result<JournalList, ClientError> {
        let path = paths::JOURNAL.replace("{name}", name);
        self.send_json(Method::DELETE, &path, &(), self.timeout.max(DEPLOY_TIMEOUT)).await
    }

    /// Reads the body at `path` if the answer is a success. The body may have at most
    /// [`ANSWER_BYTES_MAX`](crate::client::ANSWER_BYTES_MAX) bytes.
    pub async fn bytes(&self, path: &str) -> Result<Bytes, ClientError> {
        let request = built(self.request(Method::GET, path)?.body(Full::default()))?;
        let (status, _, body) = self.call(request, self.timeout).await?;
        if status.is_success() { Ok(body) } else { Err(self.refusal(status, &body)) }
    }
}
