//! The node's messages to the broker's standard input: one line of JSON, and then changes.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::net::SocketAddr;

use mote_tls::handover::read_message;
use serde::Deserialize;

/// The settings in the first line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The address at which devices connect without TLS.
    pub(crate) listen: SocketAddr,
    /// The address at which devices connect with TLS. If it is set, certificates follow.
    pub(crate) tls: Option<SocketAddr>,
    /// Which clients may connect without a user name.
    pub(crate) anonymous: Anonymous,
    /// The password of the node's own user.
    pub(crate) password: String,
    /// The user id to which the broker changes if it was started as root.
    pub(crate) uid: u32,
    pub(crate) namespaces: BTreeSet<String>,
}

/// The changes after the first line. Each begins with a letter, and has the form of
/// [`read_message`].
pub(crate) enum Change {
    /// `c`: certificates (`mote_tls::handover`).
    Certificates(Vec<u8>),
    /// `n`: the names of the namespaces, as a list in JSON.
    Namespaces(BTreeSet<String>),
    /// `d`: the name of a namespace that is being deleted.
    Deleted(String),
}

/// Reads a change, and blocks until there is one. Fails if the input ends.
pub(crate) fn read_change(input: &mut impl Read) -> io::Result<Change> {
    let mut kind = [0];
    input.read_exact(&mut kind)?;
    let message = read_message(input)?;
    match &kind {
        b"c" => Ok(Change::Certificates(message)),
        b"n" => serde_json::from_slice(&message).map(Change::Namespaces).map_err(io::Error::other),
        b"d" => String::from_utf8(message).map(Change::Deleted).map_err(io::Error::other),
        _ => Err(io::Error::other("the node sent something unknown")),
    }
}

/// Which clients may connect without a user name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Anonymous {
    /// No clients.
    Off,
    /// Only clients of this machine.
    Loopback,
    /// All clients.
    All,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_apart_by_their_letter() {
        let mut input = &b"n\0\0\0\x09[\"plant\"]d\0\0\0\x03hutc\0\0\0\x02xyq\0\0\0\0"[..];
        let Ok(Change::Namespaces(names)) = read_change(&mut input) else { panic!("namespaces") };
        assert_eq!(names, BTreeSet::from(["plant".to_owned()]));
        let Ok(Change::Deleted(name)) = read_change(&mut input) else { panic!("a deleted one") };
        assert_eq!(name, "hut");
        let Ok(Change::Certificates(bytes)) = read_change(&mut input) else {
            panic!("certificates")
        };
        assert_eq!(bytes, b"xy");
        assert!(read_change(&mut input).is_err(), "no such letter");
        let ended = read_change(&mut input).err().map(|error| error.kind());
        assert_eq!(ended, Some(io::ErrorKind::UnexpectedEof));
    }
}
