//! The client's calls for a cluster: an agent gives its cell revisions and splits, and the
//! controller asks cells.

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
    /// Stores `tar` as revision `number` of `name`, without traffic. With `warm` an instance of it
    /// must become ready first. A revision that is there already stays; another one under its
    /// number is refused.
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

    /// Sets the whole split of a function with its history. All its revisions are placed. With
    /// `warm` those that did not serve before must become ready first.
    pub async fn set_split(
        &self,
        name: &str,
        traffic: &impl Serialize,
        warm: bool,
    ) -> Result<TrafficResult, ClientError> {
        let path = format!("{}/split?warm={warm}", function_path(name));
        self.send_json(Method::PUT, &path, traffic, self.timeout.max(DEPLOY_TIMEOUT)).await
    }

    /// Tells a cell where the others are; the list replaces the one before.
    pub async fn set_cells(&self, wish: &CellsRequest) -> Result<CellList, ClientError> {
        self.send_json(Method::PUT, paths::CELLS, wish, self.timeout).await
    }

    /// The journals that a node runs.
    pub async fn journals(&self) -> Result<JournalList, ClientError> {
        self.get(paths::JOURNALS).await
    }

    /// Lets a node take a journal over.
    pub async fn take_journal(&self, name: &str) -> Result<JournalList, ClientError> {
        let path = paths::JOURNAL.replace("{name}", name);
        self.send_json(Method::PUT, &path, &(), self.timeout.max(DEPLOY_TIMEOUT)).await
    }

    /// Lets a node give a journal back.
    pub async fn give_journal_back(&self, name: &str) -> Result<JournalList, ClientError> {
        let path = paths::JOURNAL.replace("{name}", name);
        self.send_json(Method::DELETE, &path, &(), self.timeout.max(DEPLOY_TIMEOUT)).await
    }

    /// The body at `path`, if the answer is a success; at most
    /// [`ANSWER_BYTES_MAX`](crate::client::ANSWER_BYTES_MAX).
    pub async fn bytes(&self, path: &str) -> Result<Bytes, ClientError> {
        let request = built(self.request(Method::GET, path)?.body(Full::default()))?;
        let (status, _, body) = self.call(request, self.timeout).await?;
        if status.is_success() { Ok(body) } else { Err(self.refusal(status, &body)) }
    }
}
