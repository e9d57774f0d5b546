//! How many WebSockets may be open.

use std::net::IpAddr;

use mote_core::FunctionName;
use mote_core::shares::{Exceeded, Share, Shares};

use crate::refusal::Refusal;

/// Open WebSockets. Each occupies a connection of the front, and they stay open for long, so they
/// may use only a part of the connections.
pub(crate) struct WebSockets {
    by_address: Shares<IpAddr>,
    by_function: Shares<FunctionName>,
}

impl WebSockets {
    /// Half of the connections; an address and a function may have half of these.
    pub(crate) fn new(connections_max: usize) -> Self {
        let total = (connections_max / 2).max(1);
        let share = (total / 2).max(1);
        Self { by_address: Shares::new(total, share), by_function: Shares::new(total, share) }
    }

    pub(crate) fn take(
        &self,
        address: IpAddr,
        function: &FunctionName,
    ) -> Result<(Share<IpAddr>, Share<FunctionName>), Refusal> {
        let taken = self
            .by_address
            .take(address, 1)
            .and_then(|of_address| Ok((of_address, self.by_function.take(function.clone(), 1)?)));
        taken.map_err(|why| {
            let text = match why {
                Exceeded::Share => "too many WebSockets of this address or to this function",
                Exceeded::Total => "too many WebSockets",
            };
            let mut refusal = Refusal::new(503, "M1033", text);
            refusal.retry_after_s = Some(5);
            refusal
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_and_a_function_leave_room_for_others() {
        let websockets = WebSockets::new(16);
        let name = |name: &str| FunctionName::new(name).unwrap();
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let mut open = Vec::new();
        for _ in 0..4 {
            open.push(websockets.take(address(1), &name("one")).unwrap());
        }
        // The share of the address, and that of the function.
        for (last, function) in [(1, "two"), (2, "one")] {
            let refusal = websockets.take(address(last), &name(function)).unwrap_err();
            assert_eq!((refusal.status, refusal.code), (503, "M1033"));
        }
        for _ in 0..4 {
            open.push(websockets.take(address(2), &name("two")).unwrap());
        }
        let refusal = websockets.take(address(3), &name("three")).unwrap_err();
        assert_eq!(refusal.detail, "too many WebSockets");
        open.clear();
        assert!(websockets.take(address(1), &name("one")).is_ok());
    }
}
