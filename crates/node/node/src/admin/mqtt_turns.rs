//! Limits and orders the requests about users of the MQTT broker.

use tokio::sync::Semaphore;

/// The maximum number of requests about users at once. One of them runs the program; the others
/// wait for their turn.
pub(super) const REQUESTS_MAX: usize = 64;

/// Lets only one request at a time run the program, because the program needs 19 MiB to hash a
/// password.
pub(crate) struct MqttUserTurns {
    pub(super) places: Semaphore,
    pub(super) turn: tokio::sync::Mutex<()>,
}

impl Default for MqttUserTurns {
    fn default() -> Self {
        Self { places: Semaphore::new(REQUESTS_MAX), turn: tokio::sync::Mutex::default() }
    }
}
