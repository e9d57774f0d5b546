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

#[cfg(test)]
mod tests {
    use super::*;

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
