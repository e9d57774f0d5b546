//! The state of a trigger as its owner sees it, including why it does not receive messages.

use std::fmt;

use parking_lot::Mutex;

/// Why a trigger does not receive messages at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// There is no connection, or the connection broke.
    Unreachable(String),
    /// The broker refused the client.
    Refused(String),
    /// The broker refused the subscription.
    Subscription(String),
    /// The certificates cannot be used together.
    Tls(String),
    /// A secret is missing.
    Secret(String),
    /// The journal does not accept messages.
    Journal(String),
}

impl Problem {
    /// The problem's code in the catalogue of errors.
    pub fn code(&self) -> &'static str {
        match self {
            Problem::Unreachable(_) => "M1201",
            Problem::Refused(_) => "M1202",
            Problem::Subscription(_) => "M1203",
            Problem::Tls(_) => "M1204",
            Problem::Secret(_) => "M0414",
            Problem::Journal(_) => "M1206",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Unreachable(text) => write!(f, "the broker cannot be reached: {text}"),
            Problem::Refused(text) => write!(f, "the broker refused the connection: {text}"),
            Problem::Subscription(text) => write!(f, "the broker refused the subscription: {text}"),
            Problem::Tls(text) => write!(f, "no TLS connection with the broker: {text}"),
            Problem::Secret(name) => write!(f, "this node does not have the secret {name}"),
            Problem::Journal(text) => write!(f, "messages cannot be stored: {text}"),
        }
    }
}

/// What a trigger is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The first connection is being made.
    Connecting,
    /// The subscription is active, so messages arrive.
    Subscribed,
    /// No messages arrive. The node tries again by itself.
    Failing(Problem),
}

/// The state of a trigger at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub filter: String,
    pub broker: String,
    /// The client id under which the broker knows the trigger.
    pub client_id: String,
    pub state: State,
    /// The counts since the node started.
    pub counts: Counts,
}

/// The number of a trigger's messages since the node started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that arrived, including those that arrived again.
    pub received: u64,
    /// Messages whose function answered or that were stored.
    pub done: u64,
    /// Messages that were given up.
    pub given_up: u64,
    /// Messages that are running or waiting now.
    pub running: u64,
}

/// The state and the counts, shared between the task of a trigger and its readers.
#[derive(Debug)]
pub(crate) struct Shared(Mutex<(State, Counts)>);

impl Default for Shared {
    fn default() -> Self {
        Self(Mutex::new((State::Connecting, Counts::default())))
    }
}

impl Shared {
    pub(crate) fn get(&self) -> (State, Counts) {
        self.0.lock().clone()
    }

    pub(crate) fn set(&self, state: State) {
        self.0.lock().0 = state;
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock().1);
    }
}
