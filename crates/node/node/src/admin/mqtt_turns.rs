//! The turns of requests about the users of the MQTT broker.

use tokio::sync::Semaphore;

/// Requests about users at once: one runs the program, the others wait for their turn.
pub(super) const REQUESTS_MAX: usize = 64;

/// Lets one request at a time run the program, which needs 19 MiB for a password.
pub(crate) struct MqttUserTurns {
    pub(super) places: Semaphore,
    pub(super) turn: tokio::sync::Mutex<()>,
}

impl Default for MqttUserTurns {
    fn default() -> Self {
        Self { places: Semaphore::new(REQUESTS_MAX), turn: tokio::sync::Mutex::default() }
    }
}
