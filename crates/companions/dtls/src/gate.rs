//! Decides which datagrams reach the library. Pure.
//!
//! Anyone can forge unencrypted records, and the library stores each record that it cannot use yet
//! in 5 KiB, whatever its length. Therefore the library receives only records that an honest client
//! sends at this point, and only a bounded number of records that it may store.

/// The most records that the library takes from one datagram. It ignores a datagram with more.
const PIECE_RECORDS_MAX: usize = 8;
const RECORD_BYTES: usize = 13;
const MESSAGE_BYTES: usize = 12;

/// Longest message in several parts, in bytes. The longest such message is a chain of certificates.
pub(crate) const MESSAGE_MAX: u32 = 8 << 10;

const CHANGE_CIPHER: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

/// The point that a client has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The handshake is under way. Alerts are not encrypted yet, so they are refused: anyone could
    /// end the handshake with one. No client sends data before it has received the end of the
    /// handshake.
    Handshake,
    /// The session exists, but the client may not know this and may repeat its last messages. The
    /// first of them makes the library repeat its answer. The library would store the others.
    End,
    /// The client has sent something in the session, so only data and alerts can follow.
    Session,
}

/// The last messages of a client in its handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flight {
    /// Its key exchange.
    Psk,
    /// Its certificate, its key exchange, and a signature. If the client is not asked for a
    /// certificate, only the key exchange.
    Certificate,
}

impl Flight {
    /// The number of the client's last unencrypted message. The hello and the hello with the cookie
    /// come before it.
    fn last_number(self) -> u16 {
        match self {
            Self::Psk => 2,
            Self::Certificate => 4,
        }
    }
}

/// What to do with a record.
enum Verdict {
    Passes,
    /// The record passes, and the library may store it.
    Kept,
    /// The record does not reach the library, but the other records of its datagram do.
    Skipped,
    /// The whole datagram does not reach the library.
    Refused,
}

/// Splits the datagram into pieces that the library accepts. Returns `None` if the datagram
/// contains anything that an honest client does not send, or more than `keepable` records that the
/// library may store.
pub(crate) fn pieces<'a>(
    datagram: &'a [u8],
    stage: Stage,
    flight: Flight,
    keepable: &mut usize,
) -> Option<Vec<&'a [u8]>> {
    let mut pieces = Vec::new();
    let mut kept = 0;
    // The next piece: where it begins, its length in bytes, and its number of records.
    let mut next = datagram;
    let mut bytes = 0;
    let mut records = 0;
    let mut rest = datagram;
    while let Some((head, after)) = rest.split_at_checked(RECORD_BYTES) {
        let length = usize::from(u16::from_be_bytes([head[11], head[12]]));
        let (record, after) = after.split_at_checked(length)?;
        let is_skipped = match verdict(head, record, stage, flight) {
            Verdict::Passes => false,
            Verdict::Kept => {
                kept += 1;
                false
            }
            Verdict::Skipped => true,
            Verdict::Refused => return None,
        };
        if !is_skipped {
            bytes += RECORD_BYTES + length;
            records += 1;
        }
        if is_skipped || records == PIECE_RECORDS_MAX {
            pieces.push(&next[..bytes]);
            (next, bytes, records) = (after, 0, 0);
        }
        rest = after;
    }
    if !rest.is_empty() || datagram.is_empty() {
        return None;
    }
    pieces.push(&next[..bytes]);
    pieces.retain(|piece| !piece.is_empty());
    *keepable = keepable.checked_sub(kept)?;
    Some(pieces)
}

fn verdict(head: &[u8], record: &[u8], stage: Stage, flight: Flight) -> Verdict {
    let epoch = [head[3], head[4]];
    let is_plain = epoch == [0, 0];
    let is_encrypted = epoch == [0, 1];
    match (head[0], stage) {
        (HANDSHAKE, Stage::Handshake | Stage::End) if is_plain => match message(record, flight) {
            Some(Parts::Whole) => Verdict::Passes,
            Some(Parts::One) if stage == Stage::Handshake => Verdict::Kept,
            Some(Parts::One) => Verdict::Skipped,
            None => Verdict::Refused,
        },
        (CHANGE_CIPHER, Stage::Handshake) if is_plain => Verdict::Kept,
        (CHANGE_CIPHER, Stage::End) if is_plain => Verdict::Skipped,
        (HANDSHAKE, Stage::Handshake) if is_encrypted => Verdict::Kept,
        (HANDSHAKE, Stage::End) if is_encrypted => Verdict::Skipped,
        // The library decrypts these records at once and does not store them.
        (ALERT | DATA, Stage::End | Stage::Session) if is_encrypted => Verdict::Passes,
        _ => Verdict::Refused,
    }
}

/// Whether a record contains a whole message.
enum Parts {
    Whole,
    /// One part of a message in several parts.
    One,
}

/// Returns whether a record contains a whole message or a part of one. Returns `None` if the client
/// does not send such a message at this point. A certificate may need several parts, and then some
/// clients also divide the messages after it.
fn message(record: &[u8], flight: Flight) -> Option<Parts> {
    let (head, body) = record.split_at_checked(MESSAGE_BYTES)?;
    let number = |at: usize| u32::from_be_bytes([0, head[at], head[at + 1], head[at + 2]]);
    let length = number(1);
    let offset = number(6);
    let part = number(9);
    let is_expected = u16::from_be_bytes([head[4], head[5]]) <= flight.last_number();
    if body.is_empty() || !is_expected || part as usize != body.len() {
        return None;
    }
    let may_have_parts = flight == Flight::Certificate;
    match offset == 0 && part == length {
        true => Some(Parts::Whole),
        false if may_have_parts && length <= MESSAGE_MAX && offset + part <= length => {
            Some(Parts::One)
        }
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, epoch: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![kind, 0xfe, 0xfd, 0, epoch, 0, 0, 0, 0, 0, 1];
        out.extend((body.len() as u16).to_be_bytes());
        out.extend(body);
        out
    }

    fn message(number: u8, length: u8, offset: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![16, 0, 0, length, 0, number, 0, 0, offset, 0, 0, body.len() as u8];
        out.extend(body);
        record(HANDSHAKE, 0, &out)
    }

    #[test]
    fn only_what_an_honest_client_sends_passes() {
        use Stage::{End, Handshake, Session};
        let whole = message(2, 3, 0, b"key");
        let last = [&whole[..], &record(CHANGE_CIPHER, 0, &[1]), &record(HANDSHAKE, 1, &[0; 40])];
        let mut two_in_one = whole.clone();
        two_in_one.extend(&whole[RECORD_BYTES..]);
        two_in_one[12] *= 2;
        for (datagram, passes_at) in [
            (last.concat(), &[Handshake, End][..]),
            (whole.clone(), &[Handshake, End]),
            (record(DATA, 1, &[0; 40]), &[End, Session]),
            (record(99, 1, &[0; 40]), &[]),
            (record(ALERT, 1, &[0; 18]), &[End, Session]),
            (record(HANDSHAKE, 1, &[0; 40]), &[Handshake, End]),
            (message(3, 3, 0, b"key"), &[]),
            (message(2, 4, 0, b"key"), &[]),
            (message(2, 3, 1, b"ey"), &[]),
            (message(2, 0, 0, b""), &[]),
            (two_in_one, &[]),
            (record(HANDSHAKE, 0, &[]), &[]),
            (record(ALERT, 0, &[2, 40]), &[]),
            (record(DATA, 0, b"data"), &[]),
            (record(CHANGE_CIPHER, 1, &[1]), &[]),
            (record(HANDSHAKE, 2, &[0; 40]), &[]),
            (whole[..whole.len() - 1].to_vec(), &[]),
            ([&whole[..], b"x"].concat(), &[]),
            (Vec::new(), &[]),
        ] {
            for stage in [Handshake, End, Session] {
                let passes = pieces(&datagram, stage, Flight::Psk, &mut 32).is_some();
                assert_eq!(passes, passes_at.contains(&stage), "{stage:?} {datagram:?}");
            }
        }
    }

    #[test]
    fn many_records_pass_in_pieces() {
        let one = record(DATA, 1, &[7; 20]);
        let many = one.repeat(19);
        let parts = pieces(&many, Stage::Session, Flight::Psk, &mut 0).unwrap();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len() / one.len()).collect();
        assert_eq!(lengths, [8, 8, 3]);
        assert_eq!(parts.concat(), many);
        assert_eq!(pieces(&one.repeat(16), Stage::Session, Flight::Psk, &mut 0).unwrap().len(), 2);
    }

    #[test]
    fn certificates_may_have_parts() {
        use Stage::{End, Handshake, Session};
        const CERTIFICATE: u8 = 11;
        let of = |kind: u8, number: u8, length: u8, offset: u8, body: &[u8]| {
            let mut record = message(number, length, offset, body);
            record[RECORD_BYTES] = kind;
            record
        };
        for (datagram, passes_at) in [
            (of(CERTIFICATE, 2, 9, 0, b"begin"), &[Handshake, End][..]),
            (of(CERTIFICATE, 2, 9, 5, b"rest"), &[Handshake, End]),
            (of(CERTIFICATE, 2, 5, 0, b"whole"), &[Handshake, End]),
            (of(16, 3, 3, 0, b"key"), &[Handshake, End]),
            (of(15, 4, 3, 0, b"own"), &[Handshake, End]),
            (of(15, 5, 3, 0, b"own"), &[]),
            (of(16, 3, 4, 0, b"key"), &[Handshake, End]),
            (of(CERTIFICATE, 2, 9, 6, b"rest"), &[]),
        ] {
            for stage in [Handshake, End, Session] {
                let passes = pieces(&datagram, stage, Flight::Certificate, &mut 32).is_some();
                assert_eq!(passes, passes_at.contains(&stage), "{stage:?} {datagram:?}");
            }
        }
        // The library stores the parts, so they count. In a session, the library receives no such
        // parts.
        let part = of(CERTIFICATE, 2, 9, 0, b"begin");
        assert_eq!(pieces(&part, Handshake, Flight::Certificate, &mut 0), None);
        assert_eq!(pieces(&part, End, Flight::Certificate, &mut 0), Some(Vec::new()));
        let mut long = of(CERTIFICATE, 2, 9, 0, b"begin");
        long[RECORD_BYTES + 2] = 0x21;
        assert_eq!(pieces(&long, Handshake, Flight::Certificate, &mut 32), None);
    }

    #[test]
    fn what_the_library_keeps_is_bounded() {
        let whole = message(2, 3, 0, b"key");
        let change = record(CHANGE_CIPHER, 0, &[1]);
        let last = record(HANDSHAKE, 1, &[0; 40]);
        let data = record(DATA, 1, &[0; 40]);
        let flight = [&whole[..], &change, &last].concat();
        let mut keepable = 5;
        for passes in [true, true, false] {
            let parts = pieces(&flight, Stage::Handshake, Flight::Psk, &mut keepable);
            assert_eq!(parts, passes.then_some(vec![&flight[..]]));
        }
        assert_eq!(keepable, 1);
        assert_eq!(pieces(&whole, Stage::Handshake, Flight::Psk, &mut 0), Some(vec![&whole[..]]));
        // Once the session exists, only the first message of a repeated flight is useful.
        let then_data = [&flight[..], &data, &change, &data].concat();
        assert_eq!(
            pieces(&then_data, Stage::End, Flight::Psk, &mut 0).unwrap(),
            [&whole[..], &data, &data]
        );
        assert_eq!(pieces(&last, Stage::End, Flight::Psk, &mut 0), Some(Vec::new()));
    }
}
