//! Reads chunked bodies strictly (RFC 9112, 7.1). Pure.

use bytes::{Buf, Bytes, BytesMut};

use crate::refusal::Refusal;

/// The most bytes of a chunk extension.
const EXTENSION_BYTES_MAX: usize = 256;
/// The most bytes of the trailer section.
const TRAILER_BYTES_MAX: usize = 8 << 10;
/// Pieces smaller than this are copied together, so that a body in chunks of one byte costs little.
const SMALL_BYTES: usize = 1 << 10;
/// The most chunks that are copied into one piece. A task that reads a body yields after a number
/// of pieces, so one piece must not take long.
const GATHERED_CHUNKS_MAX: usize = 64;
/// The most hexadecimal digits of a chunk size.
const SIZE_DIGITS_MAX: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    Data(u64),
    DataEnd,
    Trailer(usize),
    Done,
}

/// Decodes one chunked body. The caller fills the buffer.
#[derive(Debug, Clone)]
pub struct Chunked {
    state: State,
    /// The number of the chunk being read, counted from 1. Used in error texts.
    chunk: u64,
}

/// The result of one step of the decoder.
#[derive(Debug, PartialEq, Eq)]
pub enum ChunkEvent {
    NeedMore,
    /// A piece of the body.
    Data(Bytes),
    /// The body has ended. The next request follows in the buffer.
    End,
}

impl Default for Chunked {
    fn default() -> Self {
        Self { state: State::Size, chunk: 1 }
    }
}

impl Chunked {
    /// Takes the next piece off `input`. Small pieces that have arrived together become one piece.
    pub fn step(&mut self, input: &mut BytesMut) -> Result<ChunkEvent, Refusal> {
        let mut gathered = BytesMut::new();
        let mut chunks = 0;
        loop {
            chunks += 1;
            let event = self.piece(input, &mut gathered)?;
            match event {
                Some(event) if gathered.is_empty() => return Ok(event),
                // The decoder does not change its state here, so the next step returns this event
                // again.
                Some(ChunkEvent::NeedMore | ChunkEvent::End) => {
                    return Ok(ChunkEvent::Data(gathered.freeze()));
                }
                Some(ChunkEvent::Data(_)) => unreachable!("it is left in the input"),
                None if chunks >= GATHERED_CHUNKS_MAX => {
                    return Ok(ChunkEvent::Data(gathered.freeze()));
                }
                None => {}
            }
        }
    }

    /// Reads one piece. A small piece is copied to `gathered`, and the result is `None`. A large
    /// piece stays in the input until `gathered` is empty.
    fn piece(
        &mut self,
        input: &mut BytesMut,
        gathered: &mut BytesMut,
    ) -> Result<Option<ChunkEvent>, Refusal> {
        loop {
            match self.state {
                State::Size => {
                    let Some(end) = line(input, SIZE_DIGITS_MAX + EXTENSION_BYTES_MAX + 2)
                        .map_err(|()| self.malformed())?
                    else {
                        return Ok(Some(ChunkEvent::NeedMore));
                    };
                    let size = self.size(&input[..end])?;
                    input.advance(end + 2);
                    self.state = if size == 0 { State::Trailer(0) } else { State::Data(size) };
                }
                State::Data(left) => {
                    if input.is_empty() {
                        return Ok(Some(ChunkEvent::NeedMore));
                    }
                    let take = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
                    if take >= SMALL_BYTES && !gathered.is_empty() {
                        return Ok(Some(ChunkEvent::NeedMore));
                    }
                    let left = left - take as u64;
                    self.state = if left == 0 { State::DataEnd } else { State::Data(left) };
                    if take >= SMALL_BYTES {
                        return Ok(Some(ChunkEvent::Data(input.split_to(take).freeze())));
                    }
                    gathered.extend_from_slice(&input[..take]);
                    input.advance(take);
                    return Ok(None);
                }
                State::DataEnd => {
                    if input.len() < 2 {
                        if input.first().is_some_and(|byte| *byte != b'\r') {
                            return Err(self.malformed());
                        }
                        return Ok(Some(ChunkEvent::NeedMore));
                    }
                    if &input[..2] != b"\r\n" {
                        return Err(self.malformed());
                    }
                    input.advance(2);
                    self.chunk += 1;
                    self.state = State::Size;
                }
                State::Trailer(seen) => {
                    let left = TRAILER_BYTES_MAX.saturating_sub(seen);
                    let Some(end) = line(input, left).map_err(|()| self.malformed())? else {
                        return Ok(Some(ChunkEvent::NeedMore));
                    };
                    let line = input.split_to(end + 2);
                    let line = &line[..end];
                    if line.is_empty() {
                        self.state = State::Done;
                        return Ok(Some(ChunkEvent::End));
                    }
                    // Trailer fields are checked for their form and then dropped. No function needs
                    // trailer fields, and as headers they could contradict values that were already
                    // checked.
                    let colon = line.iter().position(|byte| *byte == b':').unwrap_or(0);
                    if colon == 0 || !line[..colon].iter().all(|b| super::head::is_token(*b)) {
                        return Err(Refusal::new(400, "M1010", "trailer is not a valid field"));
                    }
                    self.state = State::Trailer(seen + line.len() + 2);
                }
                State::Done => return Ok(Some(ChunkEvent::End)),
            }
        }
    }

    /// Whether the body ends within these bytes. The bytes are not changed.
    pub fn ends_in(&self, input: &BytesMut) -> bool {
        let mut decoder = self.clone();
        let mut ahead = input.clone();
        loop {
            match decoder.step(&mut ahead) {
                Ok(ChunkEvent::Data(_)) => {}
                Ok(ChunkEvent::End) => return true,
                Ok(ChunkEvent::NeedMore) | Err(_) => return false,
            }
        }
    }

    fn size(&self, line: &[u8]) -> Result<u64, Refusal> {
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let plain = || Refusal::new(400, "M1009", "chunk size is not plain hexadecimal");
        if digits == 0 || digits > SIZE_DIGITS_MAX {
            return Err(plain());
        }
        match &line[digits..] {
            [] => {}
            [b';', extension @ ..] => {
                let legal = |b: &u8| (0x20..0x7f).contains(b) || *b == b'\t' || *b >= 0x80;
                if extension.len() > EXTENSION_BYTES_MAX || !extension.iter().all(legal) {
                    return Err(self.malformed());
                }
            }
            _ => return Err(plain()),
        }
        let text = std::str::from_utf8(&line[..digits]).map_err(|_| plain())?;
        u64::from_str_radix(text, 16).ok().filter(|size| *size <= 1 << 63).ok_or_else(plain)
    }

    fn malformed(&self) -> Refusal {
        Refusal::new(400, "M1010", format!("chunk {} is malformed", self.chunk))
    }
}

/// The length of the first line of the input without its CR LF. `None` if the line is not complete.
/// Fails if the line is longer than `max` or ends in a bare LF.
fn line(input: &[u8], max: usize) -> Result<Option<usize>, ()> {
    match memchr::memchr(b'\n', input) {
        None if input.len() > max => Err(()),
        None => Ok(None),
        Some(at) => {
            if at > max || at == 0 || input[at - 1] != b'\r' {
                return Err(());
            }
            let end = at - 1;
            if memchr::memchr(b'\r', &input[..end]).is_some() { Err(()) } else { Ok(Some(end)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
        let mut input = BytesMut::from(bytes);
        let mut decoder = Chunked::default();
        let mut body = Vec::new();
        loop {
            match decoder.step(&mut input).map_err(|refusal| refusal.detail)? {
                ChunkEvent::Data(data) => body.extend_from_slice(&data),
                ChunkEvent::End => return Ok((body, input.to_vec())),
                ChunkEvent::NeedMore => return Err("needs more".into()),
            }
        }
    }

    #[test]
    fn bodies() {
        let ok = |body: &str, rest: &str| Ok((body.into(), rest.into()));
        let err = |text: &str| Err(text.to_owned());
        for (input, expected) in [
            ("0\r\n\r\n", ok("", "")),
            ("3\r\nabc\r\n0\r\n\r\nGET", ok("abc", "GET")),
            ("A;x=y\r\n0123456789\r\n00\r\n\r\n", ok("0123456789", "")),
            ("1\r\na\r\n0\r\nX-T: 1\r\n\r\n", ok("a", "")),
            ("3 \r\nabc\r\n0\r\n\r\n", err("chunk size is not plain hexadecimal")),
            ("+3\r\nabc\r\n0\r\n\r\n", err("chunk size is not plain hexadecimal")),
            ("0x3\r\nabc\r\n", err("chunk size is not plain hexadecimal")),
            ("00000000000000003\r\nabc\r\n", err("chunk size is not plain hexadecimal")),
            ("ffffffffffffffff\r\n", err("chunk size is not plain hexadecimal")),
            ("\r\n", err("chunk size is not plain hexadecimal")),
            ("3\nabc\r\n", err("chunk 1 is malformed")),
            ("3;a\nb\r\nabc\r\n", err("chunk 1 is malformed")),
            ("3\r\nabcX\r\n", err("chunk 1 is malformed")),
            ("3\r\nabc\n0\r\n\r\n", err("chunk 1 is malformed")),
            ("0\r\nbad trailer\r\n\r\n", err("trailer is not a valid field")),
            ("3\r\nab", err("needs more")),
        ] {
            assert_eq!(decode(input.as_bytes()), expected, "{input:?}");
        }
        let long = format!("1;{}\r\na\r\n0\r\n\r\n", "e".repeat(300));
        assert_eq!(decode(long.as_bytes()), err("chunk 1 is malformed"));
    }

    #[test]
    fn small_chunks_that_arrive_together_are_one_piece() {
        let body: String = (0..150).map(|_| "1\r\nx\r\n").collect();
        let mut input = BytesMut::from(body.as_str());
        input.extend_from_slice(format!("{:x}\r\n", 3_000).as_bytes());
        input.extend_from_slice(&[b'y'; 3_000]);
        input.extend_from_slice(b"\r\n2\r\nzz\r\n0\r\n\r\n");
        let mut decoder = Chunked::default();
        let mut lengths = Vec::new();
        while let ChunkEvent::Data(data) = decoder.step(&mut input).unwrap() {
            lengths.push(data.len());
        }
        assert_eq!(lengths, [64, 64, 22, 3_000, 2]);
        assert!(decoder.step(&mut input).unwrap() == ChunkEvent::End && input.is_empty());
    }

    #[test]
    fn trailers_are_bounded() {
        // The first line leaves one byte of the section free, fills it, or exceeds it by one byte.
        for line in [TRAILER_BYTES_MAX - 3, TRAILER_BYTES_MAX - 2, TRAILER_BYTES_MAX - 1] {
            let input = format!("0\r\nX:{}\r\nY: 1\r\n\r\n", "v".repeat(line - 2));
            assert_eq!(decode(input.as_bytes()), Err("chunk 1 is malformed".into()), "{line}");
        }
    }

    #[test]
    fn any_split_gives_the_same_body() {
        let whole = b"3\r\nabc\r\nb;q=1\r\nhello world\r\n0\r\nA: b\r\n\r\n";
        for cut in 0..whole.len() {
            let mut decoder = Chunked::default();
            let mut input = BytesMut::from(&whole[..cut]);
            let mut body = Vec::new();
            let mut fed = false;
            loop {
                match decoder.step(&mut input).unwrap() {
                    ChunkEvent::Data(data) => body.extend_from_slice(&data),
                    ChunkEvent::End => break,
                    ChunkEvent::NeedMore => {
                        assert!(!fed, "cut at {cut}");
                        fed = true;
                        input.extend_from_slice(&whole[cut..]);
                    }
                }
            }
            assert_eq!(body, b"abchello world", "cut at {cut}");
        }
    }
}
