//! The settings of NATS.

use std::path::PathBuf;

use crate::config::NatsServers;
use crate::{WrongNatsAddress, nats_address};

use super::{Check, NATS_REPLICAS_MAX};

const WANTED: &str = "nats://HOST:PORT, tls://HOST:PORT, several with commas, or off";

impl Check<'_> {
    /// The settings of the NATS servers, if there are any.
    pub(super) fn nats(&mut self) -> Option<NatsServers> {
        let mut file = |key: &str, none: &str| {
            let path = self.given(key).map(PathBuf::from);
            let shown = path.as_ref().map_or(none.to_owned(), |path| path.display().to_string());
            self.settle(key, shown);
            path
        };
        let credentials = file("nats_credentials", "none");
        let authorities = file("nats_ca", "the system's certificates");
        let given = self.given("nats_replicas");
        let replicas = given.as_deref().map_or(Ok(1), str::parse::<u8>);
        let replicas = replicas.ok().filter(|replicas| (1..=NATS_REPLICAS_MAX).contains(replicas));
        if replicas.is_none() {
            let wanted = format!("a whole number from 1 to {NATS_REPLICAS_MAX}");
            self.fault("nats_replicas", &wanted, None);
        }
        let replicas = replicas.unwrap_or(1);
        self.settle("nats_replicas", replicas.to_string());
        let given = self.given("nats").filter(|text| text != "off");
        let Some(given) = given else {
            self.settle("nats", "off".to_owned());
            return None;
        };
        let servers = given.split(',').map(nats_address).collect::<Result<Vec<_>, _>>();
        match servers {
            Ok(servers) => {
                self.settle("nats", servers.join(","));
                Some(NatsServers { servers, credentials, authorities, replicas })
            }
            Err(wrong) => {
                // The text may contain a password, so the message does not repeat it.
                let hint = (wrong == WrongNatsAddress::Credentials).then(|| {
                    self.settle("nats", "an address with credentials".to_owned());
                    "put USER:PASSWORD into a file, and its path into nats_credentials".to_owned()
                });
                self.fault("nats", WANTED, hint);
                None
            }
        }
    }
}
