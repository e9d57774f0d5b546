//! The bytes of the fields of frames: whole numbers in little-endian order, and texts and byte
//! strings that follow their length.

use bytes::{Buf as _, Bytes};

/// The bytes do not form a frame of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame that cannot be read")]
pub struct Malformed;

#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.u8(flag.into());
    }

    pub(crate) fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn i64(&mut self, number: i64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn optional(&mut self, number: Option<u64>) {
        self.flag(number.is_some());
        self.u64(number.unwrap_or(0));
    }

    pub(crate) fn length(&mut self, length: usize) {
        self.u32(u32::try_from(length).unwrap_or(u32::MAX));
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(crate) fn list<T>(&mut self, list: &[T], mut one: impl FnMut(&mut Self, &T)) {
        self.length(list.len());
        for item in list {
            one(self, item);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Reader(pub(crate) Bytes);

impl Reader {
    fn needs(&self, bytes: usize) -> Result<(), Malformed> {
        if self.0.len() < bytes { Err(Malformed) } else { Ok(()) }
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.needs(1)?;
        Ok(self.0.get_u8())
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        Ok(self.u8()? != 0)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.needs(4)?;
        Ok(self.0.get_u32_le())
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.needs(8)?;
        Ok(self.0.get_u64_le())
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        self.needs(8)?;
        Ok(self.0.get_i64_le())
    }

    pub(crate) fn optional(&mut self) -> Result<Option<u64>, Malformed> {
        let is_some = self.flag()?;
        let number = self.u64()?;
        Ok(is_some.then_some(number))
    }

    pub(crate) fn bytes(&mut self) -> Result<Bytes, Malformed> {
        let length = self.u32()? as usize;
        self.needs(length)?;
        Ok(self.0.split_to(length))
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.bytes()?.into()).map_err(|_| Malformed)
    }

    pub(crate) fn list<T>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let length = self.u32()? as usize;
        // Every item takes at least one byte, so a larger count cannot be valid.
        self.needs(length)?;
        (0..length).map(|_| one(self)).collect()
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}
