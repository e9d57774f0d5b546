//! Decides which addresses a name may lead to.
//!
//! A name is foreign data: its owner can make it lead to the node itself or to the link that the
//! node is on (cloud metadata). So the address is checked, even if an IPv6 address carries an IPv4
//! one inside, because such an address may be delivered to that one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether `address` leads to this machine or no further than its link: loopback, unspecified,
/// "this network", link-local, multicast, broadcast, also in every form of [`embedded`].
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

/// Whether `address` is link-local, also in every form of [`embedded`].
pub fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => {
            (v6.segments()[0] & 0xffc0) == 0xfe80
                || embedded(v6).into_iter().flatten().any(|v4| v4.is_link_local())
        }
    }
}

/// IPv4 addresses that an IPv6 address stands for or carries: mapped, compatible and translated ones
/// (RFC 4291, 2.5.5; RFC 2765), NAT64 (RFC 6052, RFC 8215), 6to4 (RFC 3056), Teredo (RFC 4380: its
/// server and its client) and ISATAP (RFC 5214).
pub fn embedded(v6: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let octets = v6.octets();
    let at = |bytes: [usize; 4]| Some(Ipv4Addr::from(bytes.map(|byte| octets[byte])));
    let last = at([12, 13, 14, 15]);
    match v6.segments() {
        // The unspecified address and loopback do not carry IPv4 addresses.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => [None, None],
        [0, 0, 0, 0, 0, 0 | 0xffff, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] => [last, None],
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => [last, None],
        // The local prefix may be used with any length. These two are usual, and if one of them is
        // used, the other's place is zero.
        [0x64, 0xff9b, 1, ..] => match (last, at([6, 7, 9, 10])) {
            (last, Some(Ipv4Addr::UNSPECIFIED)) => [last, None],
            (Some(Ipv4Addr::UNSPECIFIED), first) => [first, None],
            both => both.into(),
        },
        [0x2002, ..] => [at([2, 3, 4, 5]), None],
        [0x2001, 0, ..] => {
            let client = last.map(|v4| Ipv4Addr::from_bits(!v4.to_bits()));
            [at([4, 5, 6, 7]), client]
        }
        [.., 0 | 0x200, 0x5efe, _, _] => [last, None],
        _ => [None, None],
    }
}

/// Networks: addresses whose first bits are the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(Vec<(IpAddr, u8)>);

/// Networks that functions reach only if their manifest names the host, not by `*`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClosedNetworks(Networks);

/// The networks that [`ClosedNetworks`] calls `private`: private use (RFC 1918, RFC 4193), shared
/// address space (RFC 6598) and benchmarks (RFC 2544).
const PRIVATE: [(IpAddr, u8); 6] = [
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(172, 16, 0, 0)), 12),
    (IpAddr::V4(Ipv4Addr::new(192, 168, 0, 0)), 16),
    (IpAddr::V4(Ipv4Addr::new(100, 64, 0, 0)), 10),
    (IpAddr::V4(Ipv4Addr::new(198, 18, 0, 0)), 15),
    (IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)), 7),
];

impl Networks {
    /// Reads a list that is separated by commas: `private`, networks such as `10.0.0.0/8`, and
    /// addresses. Returns the entry that is none of these.
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
    /// Reads a list as [`Networks::parse`] does.
    pub fn parse(text: &str) -> Result<Self, &str> {
        Networks::parse(text).map(Self)
    }

    /// Whether `address` is in one of the networks, also in every form of [`embedded`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_networks_contain_their_addresses_and_no_others() {
        let closed = ClosedNetworks::parse("private, 203.0.113.7,2001:db8:1::/48").unwrap();
        for address in [
            "10.96.0.1",
            "172.31.255.255",
            "192.168.1.5",
            "100.64.0.1",
            "198.19.0.1",
            "fd00::1",
            "203.0.113.7",
            "2001:db8:1:2::3",
            "::ffff:10.96.0.1",
            "64:ff9b::a60:1",
        ] {
            assert!(closed.contains(address.parse().unwrap()), "{address}");
        }
        for address in
            ["172.32.0.1", "9.255.255.255", "203.0.113.8", "198.20.0.1", "2001:db8:2::", "1.1.1.1"]
        {
            assert!(!closed.contains(address.parse().unwrap()), "{address}");
        }
        assert!(!ClosedNetworks::default().contains("10.0.0.1".parse().unwrap()));
        assert!(ClosedNetworks::parse("0.0.0.0/0").unwrap().contains("1.1.1.1".parse().unwrap()));
        for wrong in ["10.0.0.0/33", "::/129", "10.0.0/8", "public", "1.1.1.1/-1"] {
            assert_eq!(ClosedNetworks::parse(wrong), Err(wrong));
        }
    }

    #[test]
    fn local_addresses_are_found_in_every_form() {
        for address in [
            "127.0.0.1",
            "127.200.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:0.0.0.0",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::127.0.0.1",
            "64:ff9b:1:7f00:0:100::",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "2001:0:7f00:1::",
            "2001:0:102:304:0:0:80ff:fffe",
            "2001:db8::5efe:127.0.0.1",
            "2001:db8::200:5efe:169.254.0.1",
        ] {
            assert!(is_local(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn other_addresses_are_not_local() {
        for address in [
            "192.168.1.5",
            "10.0.0.1",
            "1.2.3.4",
            "::ffff:192.168.1.5",
            "64:ff9b::1.2.3.4",
            "64:ff9b:1::1.2.3.4",
            "64:ff9b:1:102:3:400::",
            "2002:102:304::1",
            "2001:db8::1",
            "2001:4860:4860::8888",
            "fd00::1",
        ] {
            assert!(!is_local(address.parse().unwrap()), "{address}");
        }
    }
}
