//! Turns records of the function into frames for the client.

use crate::websocket::{
    BINARY, CLOSE, CONTINUATION, CONTROL_BYTES_MAX, FIN, MORE, RECORD_HEAD_BYTES, TEXT,
};

/// Writes frames for a client.
#[derive(Debug, Default)]
pub struct ToClient {
    /// The head of the record that is arriving.
    head: [u8; RECORD_HEAD_BYTES],
    head_bytes: usize,
    /// The number of content bytes of the record that have not arrived.
    left: u32,
    /// Whether an earlier frame has begun the message.
    is_open: bool,
    has_closed: bool,
}

impl ToClient {
    /// Reads bytes from the function and appends frames to `out`. Bytes after a close record are
    /// dropped. An error means that the worker broke its protocol.
    pub fn write(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            if self.left > 0 {
                let count = (self.left as usize).min(bytes.len());
                out.extend_from_slice(&bytes[..count]);
                self.left -= count as u32;
                bytes = &bytes[count..];
                continue;
            }
            if self.has_closed {
                return Ok(());
            }
            self.head[self.head_bytes] = bytes[0];
            self.head_bytes += 1;
            bytes = &bytes[1..];
            if self.head_bytes == RECORD_HEAD_BYTES {
                self.head_bytes = 0;
                self.begin(out)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, out: &mut Vec<u8>) -> Result<(), &'static str> {
        let [kind, flags, _, _, length @ ..] = self.head;
        let length = u32::from_le_bytes(length);
        let (opcode, more) = match kind {
            CLOSE if length as usize <= CONTROL_BYTES_MAX && length != 1 => (CLOSE, false),
            TEXT | BINARY if self.is_open => (CONTINUATION, flags & MORE != 0),
            TEXT | BINARY => (kind, flags & MORE != 0),
            _ => return Err("a record of a WebSocket that is not known"),
        };
        if opcode == CLOSE {
            self.has_closed = true;
        } else {
            self.is_open = more;
        }
        out.push(opcode | if more { 0 } else { FIN });
        match length {
            0..=125 => out.push(length as u8),
            126..=0xffff => {
                out.push(126);
                out.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                out.push(127);
                out.extend_from_slice(&u64::from(length).to_be_bytes());
            }
        }
        self.left = length;
        Ok(())
    }

    /// Whether a control frame may be written now.
    pub fn is_between_frames(&self) -> bool {
        self.left == 0
    }

    /// Whether the function has sent a close frame.
    pub fn has_closed(&self) -> bool {
        self.has_closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::websocket::put_record;

    #[test]
    fn records_become_frames_however_they_are_cut() {
        let mut records = Vec::new();
        put_record(&mut records, TEXT, false, b"hi");
        put_record(&mut records, BINARY, true, &[7; 300]);
        put_record(&mut records, BINARY, false, b"");
        put_record(&mut records, BINARY, false, &[8; 70_000]);
        put_record(&mut records, CLOSE, false, b"\x03\xe8bye");
        put_record(&mut records, TEXT, false, b"too late");
        let mut expected = b"\x81\x02hi\x02\x7e\x01\x2c".to_vec();
        expected.extend([7; 300]);
        expected.extend(b"\x80\x00\x82\x7f\0\0\0\0\0\x01\x11\x70");
        expected.extend([8; 70_000]);
        expected.extend(b"\x88\x05\x03\xe8bye");
        for piece in [1, 3, 8, 1000, records.len()] {
            let mut writer = ToClient::default();
            let mut out = Vec::new();
            for piece in records.chunks(piece) {
                writer.write(piece, &mut out).unwrap();
            }
            assert!(out == expected, "{piece}");
            assert!(writer.has_closed() && writer.is_between_frames());
        }
        let mut wrong = Vec::new();
        put_record(&mut wrong, 9, false, b"");
        assert!(ToClient::default().write(&wrong, &mut Vec::new()).is_err());
        let mut long = Vec::new();
        put_record(&mut long, CLOSE, false, &[0; 126]);
        assert!(ToClient::default().write(&long, &mut Vec::new()).is_err());
    }
}
