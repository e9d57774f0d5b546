//! The settings that say who can reach what: which callers reach functions, and which hosts
//! functions and the node reach.

use crate::Reach;
use mote_core::destination::ClosedNetworks;
use mote_spec::Access;

use super::Check;

impl Check<'_> {
    /// The access mode of functions whose manifest does not set one.
    pub(super) fn access(&mut self) -> Access {
        let modes = [Access::Local, Access::Public, Access::Key];
        let given = self.given("access");
        let found = match given.as_deref() {
            None => Some(Access::Local),
            Some(text) => modes.into_iter().find(|mode| mode.as_str() == text),
        };
        let Some(access) = found else {
            self.fault("access", "local, public or key", None);
            return Access::Local;
        };
        self.settle("access", access.as_str().to_owned());
        access
    }

    /// The destinations that the node's own requests may reach.
    pub(super) fn outgoing(&mut self) -> Reach {
        let Some(text) = self.given("outgoing") else {
            self.settle("outgoing", "public".to_owned());
            return Reach::default();
        };
        text.parse().unwrap_or_else(|()| {
            self.fault("outgoing", "public, network or machine", None);
            Reach::default()
        })
    }

    /// The networks that `*` in `[allow] net` does not open.
    pub(super) fn closed_networks(&mut self) -> ClosedNetworks {
        let key = "closed_networks";
        let Some(given) = self.given(key) else {
            self.settle(key, "none".to_owned());
            return ClosedNetworks::default();
        };
        ClosedNetworks::parse(&given).unwrap_or_else(|_| {
            self.fault(key, "private, or networks such as 10.0.0.0/8, separated by commas", None);
            ClosedNetworks::default()
        })
    }
}
