//! Parses an answer piece by piece without storing it. The code is pure.

use crate::{Failure, Outcome, Phases};

/// The maximum number of bytes in a head, and in the first line of a chunk.
const HEAD_BYTES_MAX: usize = 64 << 10;
const LINE_BYTES_MAX: usize = 1_024;

/// The result of parsing one piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More data must arrive.
    More,
    /// The answer is complete.
    Whole {
        outcome: Outcome,
        /// Whether the connection cannot be used again.
        closes: bool,
    },
    /// The answer is malformed, or more data follows that no request asked for.
    Malformed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Head,
    /// The body, with the number of bytes that are missing.
    Body(u64),
    UntilClose,
    /// The first line of a chunk: the size as far as it was read, and the number of its characters.
    ChunkSize(u64, usize),
    /// The rest of a chunk's first line, after the size.
    ChunkLine(u64, usize),
    Chunk(u64),
    /// The line end after a chunk.
    ChunkEnd,
    /// The fields after the last chunk: the number of bytes in this line, and in all lines.
    Trailer(usize, usize),
}

#[derive(Debug, Clone, Copy, Default)]
struct Head {
    status: u16,
    length: Option<u64>,
    is_chunked: bool,
    closes: bool,
    phases: Option<Phases>,
}

pub(super) struct AnswerReader {
    part: Part,
    /// The parts of a head that has not arrived completely.
    held: Vec<u8>,
    head: Head,
    is_head_request: bool,
    bytes: u64,
    is_untouched: bool,
}

impl Default for AnswerReader {
    fn default() -> Self {
        Self {
            part: Part::Head,
            held: Vec::new(),
            head: Head::default(),
            is_head_request: false,
            bytes: 0,
            is_untouched: true,
        }
    }
}

impl AnswerReader {
    /// Prepares for the next answer. Must be called before each answer, because the answer to HEAD
    /// has no body.
    pub(super) fn begin(&mut self, is_head_request: bool) {
        let mut held = std::mem::take(&mut self.held);
        held.clear();
        *self = Self { held, is_head_request, ..Self::default() };
    }

    /// Whether no part of the answer has arrived yet.
    pub(super) fn is_untouched(&self) -> bool {
        self.is_untouched
    }

    /// Handles the end of the connection. Returns the outcome if this kind of answer ends with the
    /// connection.
    pub(super) fn end(&self) -> Option<Outcome> {
        (self.part == Part::UntilClose).then(|| self.outcome())
    }

    /// Parses the data that was read.
    pub(super) fn push(&mut self, mut piece: &[u8]) -> Progress {
        self.is_untouched = false;
        while self.part == Part::Head {
            match self.take_head(piece) {
                Ok(Some(used)) => piece = &piece[used..],
                Ok(None) => return Progress::More,
                Err(Wrong) => return Progress::Malformed,
            }
        }
        match self.take_body(piece) {
            Ok(Some([])) => Progress::Whole { outcome: self.outcome(), closes: self.head.closes },
            Ok(None) => Progress::More,
            Ok(Some(_)) | Err(Wrong) => Progress::Malformed,
        }
    }

    fn outcome(&self) -> Outcome {
        if self.head.status >= 400 {
            return Outcome::Failed(Failure::Http(self.head.status));
        }
        Outcome::Answered { bytes: self.bytes, phases: self.head.phases }
    }

    /// Parses the head once it is complete. Returns how many bytes of `piece` belong to the head.
    fn take_head(&mut self, piece: &[u8]) -> Result<Option<usize>, Wrong> {
        if self.held.is_empty() {
            // The head nearly always arrives completely, and then need not be copied.
            if let Some(end) = find_end(piece, 0) {
                self.read_head(&piece[..end])?;
                return Ok(Some(end));
            }
        }
        let before = self.held.len();
        self.held.extend_from_slice(piece);
        let Some(end) = find_end(&self.held, before.saturating_sub(3)) else {
            return if self.held.len() > HEAD_BYTES_MAX { Err(Wrong) } else { Ok(None) };
        };
        let held = std::mem::take(&mut self.held);
        self.read_head(&held[..end])?;
        self.held = held;
        self.held.clear();
        Ok(Some(end - before))
    }

    fn read_head(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        let head = parse_head(bytes)?;
        if (100..200).contains(&head.status) {
            // This is an interim answer; the final one will follow. Status 101 is wrong, because
            // the client never asks to switch protocols.
            return if head.status == 101 { Err(Wrong) } else { Ok(()) };
        }
        self.head = head;
        self.part = if self.is_head_request || matches!(head.status, 204 | 304) {
            Part::Body(0)
        } else if head.is_chunked {
            Part::ChunkSize(0, 0)
        } else {
            head.length.map_or(Part::UntilClose, Part::Body)
        };
        Ok(())
    }

    /// Reads data of the body. Once the body is complete, returns the remaining data.
    fn take_body<'p>(&mut self, mut piece: &'p [u8]) -> Result<Option<&'p [u8]>, Wrong> {
        loop {
            match self.part {
                Part::Head => return Ok(None),
                Part::UntilClose => {
                    self.bytes += piece.len() as u64;
                    return Ok(None);
                }
                Part::Body(left) | Part::Chunk(left) => {
                    let count = left.min(piece.len() as u64);
                    self.bytes += count;
                    piece = &piece[count as usize..];
                    let is_body = matches!(self.part, Part::Body(_));
                    self.part = match (left - count, is_body) {
                        (0, true) => return Ok(Some(piece)),
                        (0, false) => Part::ChunkEnd,
                        (left, true) => Part::Body(left),
                        (left, false) => Part::Chunk(left),
                    };
                    if !matches!(self.part, Part::ChunkEnd) {
                        return Ok(None);
                    }
                }
                _ => {
                    let [byte, rest @ ..] = piece else { return Ok(None) };
                    piece = rest;
                    if self.take_chunk_byte(*byte)? {
                        return Ok(Some(piece));
                    }
                }
            }
        }
    }

    /// Parses one byte between chunks. Returns `true` if it was the last byte of the body.
    fn take_chunk_byte(&mut self, byte: u8) -> Result<bool, Wrong> {
        self.part = match (self.part, byte) {
            (Part::ChunkSize(_, 0), b'\r' | b'\n' | b';') => return Err(Wrong),
            (Part::ChunkSize(size, _) | Part::ChunkLine(size, _), b'\n') if size > 0 => {
                Part::Chunk(size)
            }
            (Part::ChunkSize(..) | Part::ChunkLine(..), b'\n') => Part::Trailer(0, 0),
            (Part::ChunkSize(size, count), b'\r' | b';' | b' ') => Part::ChunkLine(size, count),
            (Part::ChunkSize(size, count), digit) if count < 15 => {
                let value = (digit as char).to_digit(16).ok_or(Wrong)?;
                Part::ChunkSize(size << 4 | u64::from(value), count + 1)
            }
            (Part::ChunkLine(size, count), _) if count < LINE_BYTES_MAX => {
                Part::ChunkLine(size, count + 1)
            }
            (Part::ChunkEnd, b'\r') => Part::ChunkEnd,
            (Part::ChunkEnd, b'\n') => Part::ChunkSize(0, 0),
            (Part::Trailer(0, _), b'\n') => return Ok(true),
            (Part::Trailer(_, all), b'\n') => Part::Trailer(0, all + 1),
            (Part::Trailer(line, all), b'\r') => Part::Trailer(line, all),
            (Part::Trailer(line, all), _) if all < HEAD_BYTES_MAX => {
                Part::Trailer(line + 1, all + 1)
            }
            _ => return Err(Wrong),
        };
        Ok(false)
    }
}

/// The error for a malformed answer.
#[derive(Debug, PartialEq, Eq)]
struct Wrong;

/// The position at which the head ends. The search begins at `from`.
fn find_end(bytes: &[u8], from: usize) -> Option<usize> {
    memchr::memchr_iter(b'\n', &bytes[from..])
        .map(|at| from + at + 1)
        .find(|end| bytes[..*end].ends_with(b"\r\n\r\n"))
}

fn parse_head(bytes: &[u8]) -> Result<Head, Wrong> {
    let line = bytes.strip_prefix(b"HTTP/1.").ok_or(Wrong)?;
    let [minor, b' ', a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', ..] = line else {
        return Err(Wrong);
    };
    let digit = |byte: &u8| u16::from(byte - b'0');
    let mut head = Head {
        status: digit(a) * 100 + digit(b) * 10 + digit(c),
        closes: *minor == b'0',
        ..Head::default()
    };
    let mut lines = memchr::memchr_iter(b'\n', bytes);
    let mut start = lines.next().ok_or(Wrong)? + 1;
    if !bytes[..start].ends_with(b"\r\n") {
        return Err(Wrong);
    }
    for end in lines {
        let line = bytes[start..end].strip_suffix(b"\r").ok_or(Wrong)?;
        start = end + 1;
        if line.is_empty() {
            break;
        }
        let colon = memchr::memchr(b':', line).ok_or(Wrong)?;
        let name = &line[..colon];
        let value = line[colon + 1..].trim_ascii();
        field(&mut head, name, value)?;
    }
    Ok(head)
}

fn field(head: &mut Head, name: &[u8], value: &[u8]) -> Result<(), Wrong> {
    // The length is compared first, because most fields have other names.
    match name.len() {
        14 if name.eq_ignore_ascii_case(b"content-length") => {
            let digits = std::str::from_utf8(value).map_err(|_| Wrong)?;
            let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let length = digits.parse().ok().filter(|_| is_number).ok_or(Wrong)?;
            if head.length.is_some_and(|other| other != length) {
                return Err(Wrong);
            }
            head.length = Some(length);
        }
        17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Wrong);
            }
            head.is_chunked = true;
        }
        10 if name.eq_ignore_ascii_case(b"connection") => {
            let has = |word: &[u8]| {
                value.split(|b| *b == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(word))
            };
            head.closes = has(b"close") || head.closes && !has(b"keep-alive");
        }
        13 if name.eq_ignore_ascii_case(b"server-timing") => {
            head.phases = Phases::parse(value).or(head.phases);
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses an answer at once and in pieces of every size. All results must be equal.
    fn read(text: &str) -> Progress {
        let check = |size: usize| {
            let mut reader = AnswerReader::default();
            let mut last = Progress::More;
            for piece in text.as_bytes().chunks(size) {
                if last != Progress::More {
                    // No request asked for the data after the end.
                    return Progress::Malformed;
                }
                last = reader.push(piece);
            }
            last
        };
        let whole = check(text.len());
        for size in 1..text.len() {
            assert_eq!(check(size), whole, "{text:?} in pieces of {size}");
        }
        whole
    }

    fn good(bytes: u64) -> Progress {
        Progress::Whole { outcome: Outcome::Answered { bytes, phases: None }, closes: false }
    }

    #[test]
    fn whole_answers() {
        assert_eq!(read("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nmote"), good(4));
        assert_eq!(read("HTTP/1.1 204 No Content\r\n\r\n"), good(0));
        assert_eq!(
            read("HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"),
            good(1)
        );
        assert_eq!(
            read(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\nmote\r\nA\r\n0123456789\r\n0\r\nx: y\r\n\r\n"
            ),
            good(14)
        );
        let outcome = Outcome::Failed(Failure::Http(429));
        assert_eq!(
            read("HTTP/1.1 429 T\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno"),
            Progress::Whole { outcome, closes: true }
        );
        let phases = Some(Phases([1_000, 0, 2_000, 3_000_000]));
        let outcome = Outcome::Answered { bytes: 0, phases };
        assert_eq!(
            read(
                "HTTP/1.0 200 OK\r\nserver-timing: queue;dur=0.001, init;dur=0, handover;dur=0.002, invoke;dur=3\r\ncontent-length: 0\r\n\r\n"
            ),
            Progress::Whole { outcome, closes: true }
        );
    }

    #[test]
    fn what_is_no_answer() {
        for text in [
            "HTTP/2 200\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 200 OK\nx: y\r\n\r\n",
            "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +4\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nxy",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab",
            "HTTP/1.1 101 Switching\r\n\r\n",
        ] {
            assert_eq!(read(text), Progress::Malformed, "{text:?}");
        }
    }

    #[test]
    fn an_answer_may_end_with_its_connection() {
        let mut reader = AnswerReader::default();
        assert!(reader.is_untouched());
        assert_eq!(reader.push(b"HTTP/1.1 200 OK\r\n\r\nab"), Progress::More);
        assert_eq!(reader.end(), Some(Outcome::Answered { bytes: 2, phases: None }));
        let mut reader = AnswerReader::default();
        assert_eq!(reader.push(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab"), Progress::More);
        assert_eq!(reader.end(), None, "cut off");
        reader.begin(true);
        let head = reader.push(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n");
        assert_eq!(head, good(0), "to HEAD");
    }
}
