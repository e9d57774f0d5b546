//! Tests addresses that lead to the node itself, and networks that are closed.

use mote_core::destination::*;

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
