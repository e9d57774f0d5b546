//! Limits the number of open WebSockets.

use std::net::IpAddr;
use std::sync::Arc;

use mote_core::seats::{Seat, Seats};
use mote_core::shares::{Exceeded, Share, Shares};
use mote_spec::FunctionName;
use mote_spec::name::DEFAULT_NAMESPACE;

use crate::refusal::Refusal;

/// The open WebSockets. Each occupies a connection of the front and stays open for a long time, so
/// WebSockets may use only a part of the connections. If that part is used up and an address opens
/// a new WebSocket, the address with the most WebSockets loses its oldest, provided that it has
/// more WebSockets than the new one's address. A clone shares the same counts.
#[derive(Debug, Clone)]
pub(crate) struct WebSockets {
    by_address: Seats<IpAddr>,
    address_max: usize,
    by_function: Shares<FunctionName>,
    /// The WebSockets from one address to one function.
    by_both: Shares<(IpAddr, FunctionName)>,
    by_namespace: Shares<Namespace>,
}

/// The namespace of a function. `None` is the default namespace.
type Namespace = Option<Arc<str>>;

/// An open WebSocket. It counts until this value is dropped.
pub(crate) struct Open {
    address: Seat<IpAddr>,
    _function: Share<FunctionName>,
    _both: Share<(IpAddr, FunctionName)>,
    _namespace: Share<Namespace>,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Open")
    }
}

impl Open {
    /// Resolves when the WebSocket has to end to make room for another one.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.address.ended()
    }
}

impl WebSockets {
    /// WebSockets may use half of the connections. An address and a function may have half of that
    /// part, and the namespaces divide it among themselves.
    pub(crate) fn new(connections_max: usize) -> Self {
        let total = (connections_max / 2).max(1);
        let share = (total / 2).max(1);
        Self {
            // WebSockets that have just been told to end still count for their namespaces, so
            // addresses get a little less than the total.
            by_address: Seats::new(total - total / 16, share),
            address_max: share,
            // The total is limited by the shares of the namespaces.
            by_function: Shares::new(usize::MAX, share),
            by_both: Shares::new(usize::MAX, share),
            by_namespace: Shares::even(total),
        }
    }

    /// Takes a place for a WebSocket. `places` is the number of calls that the function can run at
    /// once. One address may have half of them, so a client with many WebSockets cannot keep other
    /// clients and ordinary calls from the function.
    pub(crate) fn take(
        &self,
        address: IpAddr,
        function: &FunctionName,
        places: u32,
    ) -> Result<Open, Refusal> {
        let both = (address, function.clone());
        let half = (places as usize / 2).max(1);
        if self.by_both.taken_by(&both) >= half {
            return Err(refusal(OF_ONE));
        }
        let of_one = |_: Exceeded| refusal(OF_ONE);
        if self.by_address.taken_by(&address) >= self.address_max {
            return Err(refusal(OF_ONE));
        }
        let address = self.by_address.take(address).map_err(of_one)?;
        let _function = self.by_function.take(function.clone(), 1).map_err(of_one)?;
        let _both = self.by_both.take(both, 1).map_err(of_one)?;
        let namespace = function.namespace();
        let of_namespace = self.by_namespace.take(namespace.map(Into::into), 1);
        let _namespace = of_namespace.map_err(|why| match why {
            Exceeded::Share => {
                let namespace = namespace.unwrap_or(DEFAULT_NAMESPACE);
                refusal(&format!(
                    "too many WebSockets to functions of the namespace {namespace}; close some that \
                     are not needed"
                ))
            }
            Exceeded::Total => refusal("too many WebSockets"),
        })?;
        Ok(Open { address, _function, _both, _namespace })
    }
}

/// The reason for a refusal if one address or one function has used up its share.
const OF_ONE: &str = "too many WebSockets of this address or to this function";

fn refusal(text: &str) -> Refusal {
    let mut refusal = Refusal::new(503, "M1033", text);
    refusal.retry_after_s = Some(5);
    refusal
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
            open.push(websockets.take(address(1), &name("one"), 100).unwrap());
        }
        // First the share of the address is used up, then that of the function.
        for (last, function) in [(1, "two"), (2, "one")] {
            let refusal = websockets.take(address(last), &name(function), 100).unwrap_err();
            assert_eq!((refusal.status, refusal.code), (503, "M1033"));
        }
        for _ in 0..4 {
            open.push(websockets.take(address(2), &name("two"), 100).unwrap());
        }
        let refusal = websockets.take(address(3), &name("three"), 100).unwrap_err();
        assert_eq!(refusal.detail, "too many WebSockets");
        open.clear();
        assert!(websockets.take(address(1), &name("one"), 100).is_ok());
    }

    #[test]
    fn namespaces_divide_the_websockets() {
        let websockets = WebSockets::new(32);
        let mut last = 0;
        // Each WebSocket has a different address, and each namespace has three functions.
        let mut fill = |functions: [&str; 3]| {
            let mut open = Vec::new();
            loop {
                last += 1;
                let name = FunctionName::new(functions[open.len() % 3]).unwrap();
                match websockets.take(IpAddr::from([10, 0, 0, last]), &name, 100) {
                    Ok(one) => open.push(one),
                    Err(refusal) => return (open, refusal.detail),
                }
            }
        };
        let default = ["one", "two", "three"];
        let plant = ["one.plant", "two.plant", "three.plant"];
        let house = ["one.house", "two.house", "three.house"];
        let (alone, detail) = fill(default);
        assert_eq!((alone.len(), &*detail), (16, "too many WebSockets"), "alone, all of them");
        let (late, detail) = fill(plant);
        assert_eq!(late.len(), 4, "half of an equal part");
        assert!(detail.contains("of the namespace plant; close"), "{detail}");
        let (more, detail) = fill(default);
        assert!(more.is_empty() && detail.contains("of the namespace default;"), "{detail}");
        drop((alone, late));
        let counts = [plant, house, default].map(|names| fill(names).0);
        assert_eq!(counts.each_ref().map(Vec::len), [8, 4, 2], "as much as is free");
    }

    #[test]
    fn one_address_leaves_half_of_the_places_of_a_function() {
        let websockets = WebSockets::new(1_000);
        let name = FunctionName::new("one").unwrap();
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let first = [(); 4].map(|()| websockets.take(address(1), &name, 8).unwrap());
        assert_eq!(websockets.take(address(1), &name, 8).unwrap_err().code, "M1033");
        assert!(websockets.take(address(2), &name, 8).is_ok());
        drop(first);
        assert!(websockets.take(address(1), &name, 1).is_ok(), "one place is for one WebSocket");
    }
}
