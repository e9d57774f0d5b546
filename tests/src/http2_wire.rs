//! The frames of an HTTP/2 client (RFC 9113) that reads only the status and the body of answers.

use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpStream};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// This bit means END_STREAM on DATA and HEADERS, and ACK on SETTINGS and PING.
pub(crate) const FLAG_1: u8 = 1;
/// A flag of HEADERS.
pub(crate) const END_HEADERS: u8 = 4;
/// `:status: 200` of the static table (RFC 7541).
pub(crate) const STATUS_200: u8 = 0x88;

pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

pub(crate) struct Wire {
    pub(crate) socket: TcpStream,
    input: Vec<u8>,
}

impl Wire {
    /// Connects and sends the preface. If that fails, the next read returns the error.
    pub(crate) fn open(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).expect("somebody listens");
        socket.set_nodelay(true).expect("nodelay");
        let mut wire = Self { socket, input: Vec::new() };
        let _ = wire.socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let _ = wire.send(SETTINGS, 0, 0, &[]);
        // The large window lets the answers of a long test arrive, so that they never wait for
        // credit.
        let _ = wire.send(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
        wire
    }

    pub(crate) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<()> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.socket.write_all(&frame)
    }

    /// Reads once, for at most the timeout of the socket. Returns 0 at the end of the connection.
    pub(crate) fn read(&mut self) -> Result<usize> {
        let mut piece = [0; 16 << 10];
        let count = self.socket.read(&mut piece)?;
        self.input.extend_from_slice(&piece[..count]);
        Ok(count)
    }

    /// Returns the next complete frame. Frames about the connection are answered here.
    pub(crate) fn frame(&mut self) -> Option<Frame> {
        loop {
            let head = self.input.first_chunk::<9>().copied()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            if self.input.len() < 9 + length {
                return None;
            }
            let payload: Vec<u8> = self.input.drain(..9 + length).skip(9).collect();
            let kind = head[3];
            let flags = head[4];
            match kind {
                SETTINGS | PING if flags & FLAG_1 == 0 => {
                    let answer = if kind == PING { &payload[..] } else { &[] };
                    // If this fails, the next read returns the error.
                    let _ = self.send(kind, FLAG_1, 0, answer);
                }
                _ => {
                    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                    return Some(Frame { kind, flags, stream, payload });
                }
            }
        }
    }
}
