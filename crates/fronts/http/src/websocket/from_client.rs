//! Turns frames of a client into records for the function.

use crate::websocket::{
    BINARY, CLOSE, CONTINUATION, CONTROL_BYTES_MAX, FIN, NO_CODE, NOT_TEXT, PING, PONG,
    PROTOCOL_ERROR, TEXT, TOO_LONG, extend_record, put_record,
};

/// Why reading frames has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The client sent a close frame with this code.
    Closed(u16),
    /// The client broke the protocol or a limit. The close frame to the client has this code.
    Failed(u16),
}

/// Reads the frames of a client.
#[derive(Debug)]
pub struct FromClient {
    message_bytes_max: u64,
    /// The head of the frame that is arriving.
    head: [u8; 14],
    head_bytes: usize,
    frame: Option<Frame>,
    /// The content of the control frame that is arriving.
    control: Vec<u8>,
    /// The kind of the message that is arriving, and the number of its bytes so far.
    message: Option<(u8, u64)>,
    /// The position of the record that the current read has appended for that message.
    record: Option<usize>,
    text: Utf8,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    opcode: u8,
    is_last: bool,
    mask: [u8; 4],
    left: u64,
    /// The number of content bytes read so far, which determines the position in the mask.
    at: usize,
}

impl FromClient {
    /// A reader that accepts messages up to this length.
    pub fn new(message_bytes_max: u64) -> Self {
        Self {
            message_bytes_max,
            head: [0; 14],
            head_bytes: 0,
            frame: None,
            control: Vec::new(),
            message: None,
            record: None,
            text: Utf8::default(),
        }
    }

    /// Reads bytes from the client and unmasks them in place. Appends records to `records`, and
    /// appends to `replies` the pong frames that answer the client's pings.
    pub fn read(
        &mut self,
        mut bytes: &mut [u8],
        records: &mut Vec<u8>,
        replies: &mut Vec<u8>,
    ) -> Result<(), Ended> {
        self.record = None;
        loop {
            let Some(mut frame) = self.frame else {
                let Some((first, rest)) = bytes.split_first_mut() else { return Ok(()) };
                self.head[self.head_bytes] = *first;
                self.head_bytes += 1;
                bytes = rest;
                self.frame = self.begin()?;
                if self.frame.is_some_and(|frame| frame.left == 0) {
                    self.end(records, replies)?;
                }
                continue;
            };
            if bytes.is_empty() {
                return Ok(());
            }
            let count = usize::try_from(frame.left).unwrap_or(usize::MAX).min(bytes.len());
            let (content, rest) = bytes.split_at_mut(count);
            bytes = rest;
            unmask(content, frame.mask, frame.at);
            frame.at = frame.at.wrapping_add(count);
            frame.left -= count as u64;
            self.frame = Some(frame);
            self.content(frame, content, records)?;
            if frame.left == 0 {
                self.end(records, replies)?;
            }
        }
    }

    /// Returns the frame that is arriving, once its head is complete.
    fn begin(&mut self) -> Result<Option<Frame>, Ended> {
        let wrong = Err(Ended::Failed(PROTOCOL_ERROR));
        let head = &self.head[..self.head_bytes];
        let [first, second, ..] = *head else { return Ok(None) };
        let opcode = first & 0x0f;
        let is_last = first & FIN != 0;
        let is_control = opcode & 0x8 != 0;
        let is_known = matches!(opcode, CONTINUATION | TEXT | BINARY | CLOSE | PING | PONG);
        // Reserved bits belong to extensions, and none is negotiated. A client must mask all of its
        // frames.
        if first & 0x70 != 0 || !is_known || second & 0x80 == 0 {
            return wrong;
        }
        let short = second & 0x7f;
        let length_bytes = match short {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if is_control && (!is_last || length_bytes > 0) {
            return wrong;
        }
        if head.len() < 2 + length_bytes + 4 {
            return Ok(None);
        }
        let (long, mask) = head[2..].split_at(length_bytes);
        let long = long.iter().fold(0, |length, byte| length << 8 | u64::from(*byte));
        let left = if length_bytes == 0 { u64::from(short) } else { long };
        let mask = [mask[0], mask[1], mask[2], mask[3]];
        // A length must be sent in its shortest form (RFC 6455, 5.2).
        let least = match length_bytes {
            0 => 0,
            2 => 126,
            _ => 1 << 16,
        };
        if left >> 63 != 0 || left < least {
            return wrong;
        }
        self.head_bytes = 0;
        if !is_control {
            let before = match (opcode, self.message) {
                (CONTINUATION, Some((_, before))) => before,
                (TEXT | BINARY, None) => 0,
                _ => return wrong,
            };
            let kind = self.message.map_or(opcode, |(kind, _)| kind);
            let length = before.saturating_add(left);
            if length > self.message_bytes_max {
                return Err(Ended::Failed(TOO_LONG));
            }
            self.message = Some((kind, length));
        }
        Ok(Some(Frame { opcode, is_last, mask, left, at: 0 }))
    }

    fn content(
        &mut self,
        frame: Frame,
        content: &[u8],
        records: &mut Vec<u8>,
    ) -> Result<(), Ended> {
        if frame.opcode & 0x8 != 0 {
            self.control.extend_from_slice(content);
            return Ok(());
        }
        let Some((kind, _)) = self.message else { return Ok(()) };
        if kind == TEXT && !self.text.read(content) {
            return Err(Ended::Failed(NOT_TEXT));
        }
        let is_end = frame.left == 0 && frame.is_last;
        if is_end && kind == TEXT && !self.text.is_complete() {
            return Err(Ended::Failed(NOT_TEXT));
        }
        match self.record {
            Some(at) => extend_record(records, at, !is_end, content),
            None => {
                self.record = Some(records.len());
                put_record(records, kind, !is_end, content);
            }
        }
        if is_end {
            (self.message, self.record) = (None, None);
        }
        Ok(())
    }

    /// Called when the frame is complete.
    fn end(&mut self, records: &mut Vec<u8>, replies: &mut Vec<u8>) -> Result<(), Ended> {
        let Some(frame) = self.frame.take() else { return Ok(()) };
        match frame.opcode {
            PING => {
                let content = std::mem::take(&mut self.control);
                debug_assert!(content.len() <= CONTROL_BYTES_MAX);
                replies.extend_from_slice(&[FIN | PONG, content.len() as u8]);
                replies.extend_from_slice(&content);
            }
            PONG => self.control.clear(),
            CLOSE => return Err(self.closed(records)),
            // The last frame of a message may be empty, and still has to end the message.
            _ if frame.at == 0 && frame.is_last => return self.content(frame, &[], records),
            _ => {}
        }
        Ok(())
    }

    fn closed(&mut self, records: &mut Vec<u8>) -> Ended {
        let content = std::mem::take(&mut self.control);
        let code = match *content {
            [] => NO_CODE,
            [_] => return Ended::Failed(PROTOCOL_ERROR),
            [high, low, ..] => u16::from_be_bytes([high, low]),
        };
        let is_sent = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
        if !content.is_empty() && !is_sent {
            return Ended::Failed(PROTOCOL_ERROR);
        }
        if std::str::from_utf8(content.get(2..).unwrap_or_default()).is_err() {
            return Ended::Failed(NOT_TEXT);
        }
        let own = code.to_be_bytes();
        put_record(records, CLOSE, false, if content.is_empty() { &own } else { &content });
        Ended::Closed(code)
    }
}

/// Applies the mask to content that begins at byte `at` of its frame.
fn unmask(content: &mut [u8], mask: [u8; 4], at: usize) {
    let mut mask = mask;
    mask.rotate_left(at % 4);
    let wide = u64::from_ne_bytes([mask, mask].concat().try_into().expect("twice 4 bytes"));
    let mut words = content.chunks_mut(8);
    for word in &mut words {
        match <[u8; 8]>::try_from(&*word) {
            Ok(bytes) => {
                word.copy_from_slice(&(u64::from_ne_bytes(bytes) ^ wide).to_ne_bytes());
            }
            Err(_) => {
                word.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask)
            }
        }
    }
}

/// Checks text that arrives in pieces for valid UTF-8.
#[derive(Debug, Default)]
struct Utf8 {
    /// The first bytes of a character that has not arrived completely.
    kept: [u8; 4],
    kept_bytes: usize,
}

impl Utf8 {
    /// Returns whether the text can still become valid UTF-8.
    fn read(&mut self, mut bytes: &[u8]) -> bool {
        while self.kept_bytes > 0
            && let Some((first, rest)) = bytes.split_first()
        {
            self.kept[self.kept_bytes] = *first;
            self.kept_bytes += 1;
            bytes = rest;
            match std::str::from_utf8(&self.kept[..self.kept_bytes]) {
                Ok(_) => self.kept_bytes = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        match std::str::from_utf8(bytes) {
            Ok(_) => true,
            Err(error) if error.error_len().is_some() => false,
            Err(error) => {
                let rest = &bytes[error.valid_up_to()..];
                self.kept[..rest.len()].copy_from_slice(rest);
                self.kept_bytes = rest.len();
                true
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.kept_bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, content: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut bytes = vec![first];
        match content.len() {
            length @ 0..=125 => bytes.push(0x80 | length as u8),
            length @ 126..=0xffff => {
                bytes.push(0x80 | 126);
                bytes.extend((length as u16).to_be_bytes());
            }
            length => {
                bytes.push(0x80 | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.extend(mask);
        bytes.extend(content.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        bytes
    }

    /// A message's kind and content.
    type Message = (u8, Vec<u8>);

    /// The messages, replies and end that result from these bytes when they arrive in pieces of
    /// this length.
    fn read(bytes: &[u8], piece: usize) -> (Vec<Message>, Vec<u8>, Option<Ended>) {
        let mut reader = FromClient::new(100_000);
        let mut records = Vec::new();
        let mut replies = Vec::new();
        let mut ended = None;
        for piece in bytes.to_vec().chunks_mut(piece) {
            if let Err(end) = reader.read(piece, &mut records, &mut replies) {
                ended = Some(end);
                break;
            }
        }
        let mut messages: Vec<Message> = Vec::new();
        let mut rest = &records[..];
        let mut is_open = false;
        while let [kind, flags, _, _, a, b, c, d, ..] = *rest {
            let length = u32::from_le_bytes([a, b, c, d]) as usize;
            let content = &rest[8..8 + length];
            match messages.last_mut().filter(|_| is_open) {
                Some((_, message)) => message.extend(content),
                None => messages.push((kind, content.to_vec())),
            }
            is_open = flags == 1;
            rest = &rest[8 + length..];
        }
        (messages, replies, ended)
    }

    #[test]
    fn frames_become_messages_however_they_are_cut() {
        let long = vec![0xc3; 70_000];
        let bytes = [
            frame(0x81, "grüße €".as_bytes()),
            frame(0x02, &long),
            frame(0x89, b"ping"),
            frame(0x00, b""),
            frame(0x80, b"end"),
            frame(0x8a, b"pong"),
            frame(0x01, b""),
            frame(0x80, b""),
            frame(0x88, &[&1000_u16.to_be_bytes()[..], b"bye"].concat()),
        ]
        .concat();
        let close = [&1000_u16.to_be_bytes()[..], b"bye"].concat();
        let expected = vec![
            (TEXT, "grüße €".as_bytes().to_vec()),
            (BINARY, [&long[..], b"end"].concat()),
            (TEXT, Vec::new()),
            (CLOSE, close),
        ];
        for piece in [1, 2, 3, 5, 7, 13, 1000, bytes.len()] {
            let (messages, replies, ended) = read(&bytes, piece);
            assert!(messages == expected, "{piece}");
            assert_eq!(replies, b"\x8a\x04ping");
            assert_eq!(ended, Some(Ended::Closed(1000)));
        }
    }

    #[test]
    fn small_frames_of_one_read_become_one_record() {
        let mut bytes = frame(0x02, b"a");
        for _ in 0..1000 {
            bytes.extend(frame(0x00, b"b"));
            bytes.extend(frame(0x89, b""));
        }
        let cut = bytes.len() / 2;
        bytes.extend([frame(0x80, b"c"), frame(0x81, b"d"), frame(0x88, b"")].concat());
        let mut reader = FromClient::new(100_000);
        let mut first = Vec::new();
        let mut second = Vec::new();
        let mut replies = Vec::new();
        let (left, right) = bytes.split_at_mut(cut);
        assert_eq!(reader.read(left, &mut first, &mut replies), Ok(()));
        assert_eq!(reader.read(right, &mut second, &mut replies), Err(Ended::Closed(NO_CODE)));
        let content = [&b"a"[..], &[b'b'; 1000], b"c"].concat();
        let (begin, end) = content.split_at(first.len() - 8);
        let mut expected = Vec::new();
        put_record(&mut expected, BINARY, true, begin);
        assert!(first == expected, "{} bytes", first.len());
        expected.clear();
        put_record(&mut expected, BINARY, false, end);
        put_record(&mut expected, TEXT, false, b"d");
        put_record(&mut expected, CLOSE, false, &NO_CODE.to_be_bytes());
        assert!(second == expected, "{} bytes", second.len());
    }

    #[test]
    fn what_breaks_the_protocol_ends_it() {
        let check = |bytes: &[u8], code| {
            for piece in [1, bytes.len()] {
                assert_eq!(read(bytes, piece).2, Some(Ended::Failed(code)), "{bytes:?}");
            }
        };
        check(b"\x81\x02hi", PROTOCOL_ERROR);
        check(&frame(0xc1, b"hi"), PROTOCOL_ERROR);
        check(&frame(0x83, b"hi"), PROTOCOL_ERROR);
        check(&frame(0x80, b"hi"), PROTOCOL_ERROR);
        check(&frame(0x09, b"hi"), PROTOCOL_ERROR);
        check(&frame(0x89, &[0; 126]), PROTOCOL_ERROR);
        // A length in a longer form than it needs.
        check(b"\x82\xfe\x00\x7d\0\0\0\0", PROTOCOL_ERROR);
        check(b"\x82\xff\0\0\0\0\0\0\xff\xff\0\0\0\0", PROTOCOL_ERROR);
        check(&[frame(0x01, b"a"), frame(0x81, b"b")].concat(), PROTOCOL_ERROR);
        check(&frame(0x88, b"\x03"), PROTOCOL_ERROR);
        for code in [0_u16, 999, 1004, 1005, 1006, 1015, 2000, 5000] {
            check(&frame(0x88, &code.to_be_bytes()), PROTOCOL_ERROR);
        }
        check(&frame(0x81, b"\xff"), NOT_TEXT);
        check(&frame(0x81, b"\xe2\x82"), NOT_TEXT);
        check(&[frame(0x01, b"\xe2\x82"), frame(0x80, b"x")].concat(), NOT_TEXT);
        check(&[frame(0x01, b"\xed\xa0\x80")].concat(), NOT_TEXT);
        check(&frame(0x88, b"\x03\xe8\xff"), NOT_TEXT);
        check(&frame(0x82, &[0; 100_001]), TOO_LONG);
        check(&[frame(0x02, &[0; 60_000]), frame(0x80, &[0; 60_000])].concat(), TOO_LONG);
    }
}
