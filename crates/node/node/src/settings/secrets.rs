//! The setting of the keys that encrypt secrets.

use mote_store::seal::KeySource;

use super::Check;

impl Check<'_> {
    /// The keys that encrypt secrets. Empty if the key in the data folder is used.
    pub(super) fn secrets_key(&mut self) -> Vec<KeySource> {
        let Some(given) = self.given("secrets_key") else {
            self.settle("secrets_key", "secrets.key in the data folder".to_owned());
            return Vec::new();
        };
        match given.split(',').map(str::parse).collect() {
            Ok(sources) => {
                self.settle("secrets_key", given);
                sources
            }
            Err(_) => {
                self.fault("secrets_key", "FILE or credential:NAME, several with commas", None);
                Vec::new()
            }
        }
    }
}
