//! Addresses whose meaning depends on a link, and IPv6 addresses that contain IPv4 addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether `address` is link-local, or is an IPv6 address that contains a link-local IPv4 address
/// in one of the forms of [`embedded`].
pub fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => {
            (v6.segments()[0] & 0xffc0) == 0xfe80
                || embedded(v6).into_iter().flatten().any(|v4| v4.is_link_local())
        }
    }
}

/// The IPv4 addresses that an IPv6 address represents or contains. The forms are: mapped,
/// compatible and translated addresses (RFC 4291, 2.5.5; RFC 2765), NAT64 (RFC 6052, RFC 8215),
/// 6to4 (RFC 3056), Teredo (RFC 4380), which contains the addresses of its server and its client,
/// and ISATAP (RFC 5214).
pub fn embedded(v6: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let octets = v6.octets();
    let at = |bytes: [usize; 4]| Some(Ipv4Addr::from(bytes.map(|byte| octets[byte])));
    let last = at([12, 13, 14, 15]);
    match v6.segments() {
        // The unspecified address and the loopback address do not contain IPv4 addresses.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => [None, None],
        [0, 0, 0, 0, 0, 0 | 0xffff, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] => [last, None],
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => [last, None],
        // The local prefix may be used with any length. The two usual lengths are handled here. If
        // one of them is used, the place of the other one is zero.
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
