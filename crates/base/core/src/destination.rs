//! Decides which addresses a name may lead to.
//!
//! A name is foreign data: the owner of a name can make it resolve to the node itself, or to a host
//! on the node's link (cloud metadata). So the node checks the address to which a name resolves. If
//! an IPv6 address carries an IPv4 address inside, the IPv4 address is checked too, because packets
//! may be delivered there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use mote_spec::addresses::{embedded, is_link_local};

/// Whether `address` leads to this machine, or no further than its link: loopback, unspecified,
/// "this network", link-local, multicast and broadcast addresses, also in every form of
/// [`embedded`].
pub fn is_local(address: IpAddr) -> bool {
    let is_near = |v4: Ipv4Addr| {
        v4.is_loopback() || v4.octets()[0] == 0 || v4.is_multicast() || v4.is_broadcast()
    };
    is_link_local(address)
        || match address {
            IpAddr::V4(v4) => is_near(v4),
            IpAddr::V6(v6) => {
                v6.is_loopback()
                    || v6.is_unspecified()
                    || v6.is_multicast()
                    || embedded(v6).into_iter().flatten().any(is_near)
            }
        }
}

/// A set of networks. The addresses of one network share their first bits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(Vec<(IpAddr, u8)>);

/// Networks that functions may reach only if their manifest names the host itself; `*` does not
/// open them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClosedNetworks(Networks);

/// The networks that the word `private` stands for in [`ClosedNetworks`]: private use (RFC 1918,
/// RFC 4193), shared address space (RFC 6598) and benchmarks (RFC 2544).
const PRIVATE: [(IpAddr, u8); 6] = [
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(172, 16, 0, 0)), 12),
    (IpAddr::V4(Ipv4Addr::new(192, 168, 0, 0)), 16),
    (IpAddr::V4(Ipv4Addr::new(100, 64, 0, 0)), 10),
    (IpAddr::V4(Ipv4Addr::new(198, 18, 0, 0)), 15),
    (IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)), 7),
];

impl Networks {
    /// Parses a comma-separated list of networks such as `10.0.0.0/8`, single addresses, and the
    /// word `private`. An error contains the first entry that is none of these.
    pub fn parse(text: &str) -> Result<Self, &str> {
        let mut networks = Vec::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            if entry == "private" {
                networks.extend(PRIVATE);
                continue;
            }
            let (address, bits) = match entry.split_once('/') {
                Some((address, bits)) => (address, Some(bits)),
                None => (entry, None),
            };
            let address: IpAddr = address.parse().map_err(|_| entry)?;
            let bits_max = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Ok(bits_max), str::parse).map_err(|_| entry)?;
            if bits > bits_max {
                return Err(entry);
            }
            networks.push((address, bits));
        }
        Ok(Self(networks))
    }

    /// Whether `address` is in one of the networks.
    pub fn has(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| covers(*network, address))
    }
}

impl ClosedNetworks {
    /// Parses a list as [`Networks::parse`] does.
    pub fn parse(text: &str) -> Result<Self, &str> {
        Networks::parse(text).map(Self)
    }

    /// Whether `address`, or an address that it carries in any form of [`embedded`], is in one of
    /// the networks.
    pub fn contains(&self, address: IpAddr) -> bool {
        let is_in = |address| self.0.has(address);
        let carried = match address {
            IpAddr::V4(_) => [None, None],
            IpAddr::V6(v6) => embedded(v6),
        };
        is_in(address) || carried.into_iter().flatten().any(|v4| is_in(IpAddr::V4(v4)))
    }
}

fn covers((network, bits): (IpAddr, u8), address: IpAddr) -> bool {
    let differ = match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            u128::from(network.to_bits() ^ address.to_bits()) << 96
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => network.to_bits() ^ address.to_bits(),
        _ => return false,
    };
    differ.leading_zeros() >= u32::from(bits)
}
