//! The settings of the journals in NATS.

use super::Check;

impl Check<'_> {
    /// The name under which NATS keeps accepted invocations.
    pub(super) fn journal_name(&mut self, has_nats: bool) -> Option<String> {
        let key = "journal_name";
        let Some(name) = self.given(key) else {
            self.settle(key, "none".to_owned());
            return None;
        };
        if !crate::is_journal_name(&name) {
            self.fault(key, "1 to 64 letters, digits, - and _", None);
        } else if !has_nats {
            let hint = "name a server of NATS with --nats, or with nats = \"nats://HOST:4222\"";
            self.fault(key, "needs nats", Some(hint.to_owned()));
        }
        Some(name)
    }

    /// The journal in NATS that keeps the runs of schedules.
    pub(super) fn schedule_journal(&mut self, own: Option<&str>) -> Option<String> {
        let key = "schedule_journal";
        let Some(name) = self.given(key) else {
            self.settle(key, "none".to_owned());
            return None;
        };
        if !crate::is_journal_name(&name) {
            self.fault(key, "1 to 64 letters, digits, - and _", None);
        } else if own.is_none_or(|own| own == name) {
            let hint = "give the node's own journal another name: --journal-name NAME";
            self.fault(key, "needs journal_name, with another name", Some(hint.to_owned()));
        }
        Some(name)
    }
}
