//! Checks that the state in NATS does what every implementation must do, and also what several nodes
//! need.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../state/store/tests/contract/mod.rs"]
mod contract;
#[path = "nats_server/mod.rs"]
mod server;

use contract::Place;
use mote_core::state::State;
use mote_journal::nats::{Nats, NatsState};
use server::Server;

struct OnServer {
    server: Server,
    nats: Nats,
    state: NatsState,
}

impl Place for OnServer {
    fn state(&self) -> &dyn State {
        &self.state
    }

    async fn reopen(&mut self) {
        self.nats.stop().await;
        self.nats = self.server.client();
        self.state = NatsState::new(self.nats.clone());
    }
}

async fn open() -> Option<OnServer> {
    let server = Server::start("")?;
    let nats = server.client();
    let state = NatsState::new(nats.clone());
    Some(OnServer { server, nats, state })
}

contract!(open);
