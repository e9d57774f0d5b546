//! The place of a message in its stream.

use async_nats::Message;

/// The place of a message, as its reply subject tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) sequence: u64,
    pub(crate) consumed: u64,
    pub(crate) time_unix_ms: u64,
}

impl Place {
    pub(crate) fn of(message: &Message) -> Option<Self> {
        Self::parse(message.reply.as_ref()?.as_str())
    }

    /// Parses `$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.CONSUMED.NANOSECONDS.PENDING`. Newer
    /// servers may put a domain and an account before the stream, and further tokens at the end.
    fn parse(reply: &str) -> Option<Self> {
        let tokens: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let after = if tokens.len() == 7 { 2 } else { 4 };
        let number = |at: usize| tokens.get(after + at)?.parse::<u64>().ok();
        Some(Self {
            sequence: number(1)?,
            consumed: number(2)?,
            time_unix_ms: number(3)? / 1_000_000,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_message_is_read_in_both_forms() {
        let place = Some(Place { sequence: 41, consumed: 7, time_unix_ms: 1_700_000_000_000 });
        assert_eq!(Place::parse("$JS.ACK.S.C.1.41.7.1700000000000000000.3"), place);
        assert_eq!(Place::parse("$JS.ACK._.hash.S.C.1.41.7.1700000000000000000.3.x"), place);
        assert_eq!(Place::parse("$JS.ACK.S"), None);
        assert_eq!(Place::parse("_INBOX.a"), None);
    }
}
