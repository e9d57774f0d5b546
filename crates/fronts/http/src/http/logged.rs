//! The access log entry of a request while the request is being answered.

use std::net::IpAddr;

use crate::access_log::{AccessLog, Entry};
use mote_core::InvocationId;
use mote_core::invocation::Head;

/// The entry of one request, if there is an access log. The entry is written when this value is
/// dropped, so a request whose client disconnects is logged, too.
#[derive(Default)]
pub(crate) struct Logged(Option<Box<(AccessLog, Entry)>>);

impl Logged {
    /// The entry of a request with this head, see [`Entry::new`].
    pub(super) fn new(
        log: Option<&AccessLog>,
        client: IpAddr,
        protocol: &'static str,
        name: (&str, bool),
        head: &Head,
    ) -> Self {
        let entry = |log: &AccessLog| (log.clone(), Entry::new(client, protocol, name, head));
        Self(log.map(|log| Box::new(entry(log))))
    }

    /// The entry of a request that cannot be read.
    pub(super) fn unreadable(
        log: Option<&AccessLog>,
        client: IpAddr,
        protocol: &'static str,
        arrived: &[u8],
    ) -> Self {
        let entry = |log: &AccessLog| (log.clone(), Entry::unreadable(client, protocol, arrived));
        Self(log.map(|log| Box::new(entry(log))))
    }

    /// See [`Entry::found`].
    pub(super) fn found(&mut self, function: &str, head: &Head) {
        if let Some(one) = &mut self.0 {
            one.1.found(function, head);
        }
    }

    /// Notes that an answer with this status begins.
    pub(super) fn answered(&mut self, status: u16, id: Option<InvocationId>) {
        if let Some(one) = &mut self.0 {
            (one.1.status, one.1.invocation) = (status, id);
        }
    }

    /// Notes that bytes of the answer's body were handed to the connection.
    pub(super) fn sent(&mut self, bytes: usize) {
        if let Some(one) = &mut self.0 {
            one.1.body_bytes += bytes as u64;
        }
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        if let Some(one) = self.0.take() {
            one.0.write(&one.1);
        }
    }
}
