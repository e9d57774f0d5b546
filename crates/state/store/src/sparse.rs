//! Sparse files in tar archives: where their pieces of content belong.
//!
//! GNU tar has written four formats. The old one stores a map in the header and in blocks after it,
//! 0.1 stores it in a PAX record, and 1.0 at the beginning of the content. Format 0.0, which GNU
//! tar wrote for two years, is refused.

use crate::tar_fields::{BLOCK, number};

/// The most pieces of one file.
const PIECES_MAX: usize = 65_536;

/// A file that has holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sparse {
    /// The size of the file with its holes.
    pub size: u64,
    /// Offset and length of each piece of content, in order.
    pub pieces: Vec<(u64, u64)>,
}

impl Sparse {
    /// Checks that the pieces are in order, lie inside the file, and need exactly the content.
    pub(crate) fn check(&self, content: u64) -> Result<(), &'static str> {
        let mut end = 0;
        let mut sum: u64 = 0;
        for (at, length) in &self.pieces {
            let after = at.checked_add(*length).ok_or("a piece ends nowhere")?;
            if *at < end || after > self.size {
                return Err("its pieces overlap or lie outside");
            }
            end = after;
            sum += length;
        }
        if sum != content {
            return Err("its pieces do not fit its content");
        }
        Ok(())
    }

    fn push(&mut self, at: u64, length: u64) -> Result<(), &'static str> {
        if self.pieces.len() == PIECES_MAX {
            return Err("more than 65,536 pieces");
        }
        self.pieces.push((at, length));
        Ok(())
    }
}

/// The map of the old format.
pub(crate) struct Gnu {
    sparse: Sparse,
    is_continued: bool,
}

impl Gnu {
    pub(crate) fn new(header: &[u8; BLOCK]) -> Result<Self, &'static str> {
        let size = number(&header[483..495]).ok_or("its size is not a number")?;
        let mut map =
            Self { sparse: Sparse { size, pieces: Vec::new() }, is_continued: header[482] != 0 };
        map.read(&header[386..482])?;
        Ok(map)
    }

    /// Whether a block with further pieces follows.
    pub(crate) fn is_continued(&self) -> bool {
        self.is_continued
    }

    pub(crate) fn add(&mut self, block: &[u8; BLOCK]) -> Result<(), &'static str> {
        self.is_continued = block[504] != 0;
        let before = self.sparse.pieces.len();
        self.read(&block[..504])?;
        if self.is_continued && self.sparse.pieces.len() == before {
            return Err("an empty block of its map");
        }
        Ok(())
    }

    fn read(&mut self, fields: &[u8]) -> Result<(), &'static str> {
        for piece in fields.chunks_exact(24) {
            if piece[0] == 0 {
                break;
            }
            let at = number(&piece[..12]).ok_or("an offset is not a number")?;
            let length = number(&piece[12..]).ok_or("a length is not a number")?;
            self.sparse.push(at, length)?;
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<Sparse, &'static str> {
        Ok(self.sparse)
    }
}

/// The information about a sparse file in the PAX records of one entry.
#[derive(Default)]
pub(crate) struct Records {
    major: Option<u64>,
    size: Option<u64>,
    map: Option<Vec<u8>>,
    pub(crate) name: Option<Vec<u8>>,
}

impl Records {
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match key {
            b"major" => self.major = Some(decimal(value)?),
            b"size" | b"realsize" => self.size = Some(decimal(value)?),
            b"map" => self.map = Some(value.to_vec()),
            b"name" => self.name = Some(value.to_vec()),
            b"minor" | b"numblocks" => {}
            _ => return Err("a format that is not supported"),
        }
        Ok(())
    }

    /// Whether the map is at the beginning of the content.
    pub(crate) fn is_in_content(&self) -> bool {
        self.major == Some(1)
    }

    /// The map that a record contains; `None` if the file is not sparse.
    pub(crate) fn map(&self) -> Result<Option<Sparse>, &'static str> {
        let Some(map) = &self.map else {
            let is_plain = self.major.is_none() && self.size.is_none() && self.name.is_none();
            return if is_plain { Ok(None) } else { Err("a format that is not supported") };
        };
        let mut sparse = Sparse { size: self.size.ok_or("it has no size")?, pieces: Vec::new() };
        let mut numbers = map.split(|byte| *byte == b',');
        while let Some(at) = numbers.next() {
            let length = numbers.next().ok_or("its map has an odd number of fields")?;
            sparse.push(decimal(at)?, decimal(length)?)?;
        }
        Ok(Some(sparse))
    }
}

/// The map of format 1.0: lines with decimal numbers. The first says how many pieces follow.
#[derive(Default)]
pub(crate) struct Text {
    line: Vec<u8>,
    count: Option<u64>,
    numbers: Vec<u64>,
}

impl Text {
    pub(crate) fn is_complete(&self) -> bool {
        self.count.is_some_and(|count| self.numbers.len() as u64 == 2 * count)
    }

    pub(crate) fn add(&mut self, block: &[u8; BLOCK]) -> Result<(), &'static str> {
        for byte in block {
            if self.is_complete() {
                return Ok(()); // the rest of the block is padding
            }
            if *byte != b'\n' {
                if self.line.len() == 20 {
                    return Err("a number of its map is too long");
                }
                self.line.push(*byte);
                continue;
            }
            let number = decimal(&self.line)?;
            self.line.clear();
            match self.count {
                None if number > PIECES_MAX as u64 => return Err("more than 65,536 pieces"),
                None => self.count = Some(number),
                Some(_) => self.numbers.push(number),
            }
        }
        Ok(())
    }

    pub(crate) fn finish(self, records: &Records) -> Result<Sparse, &'static str> {
        let size = records.size.ok_or("it has no size")?;
        let pieces = self.numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        Ok(Sparse { size, pieces })
    }
}

fn decimal(text: &[u8]) -> Result<u64, &'static str> {
    std::str::from_utf8(text)
        .ok()
        .filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .ok_or("a number is malformed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_must_fit() {
        let sparse = |size, pieces: &[(u64, u64)]| Sparse { size, pieces: pieces.to_vec() };
        assert_eq!(sparse(100, &[(0, 10), (50, 50)]).check(60), Ok(()));
        assert_eq!(sparse(0, &[]).check(0), Ok(()));
        for (wrong, content) in [
            (sparse(100, &[(0, 10), (5, 10)]), 20),
            (sparse(100, &[(50, 10), (0, 10)]), 20),
            (sparse(100, &[(95, 10)]), 10),
            (sparse(100, &[(u64::MAX, 10)]), 10),
            (sparse(100, &[(0, 10)]), 11),
        ] {
            assert!(wrong.check(content).is_err(), "{wrong:?}");
        }
    }
}
