//! The least HTTP server a measurement needs: GET, kept connections, a thread for each.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use crate::{Params, respond};

const LINE_BYTES_MAX: u64 = 16 << 10;

/// Nanoseconds of a clock that only goes forward, comparable within this process.
pub(crate) fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// A name for this process. It contains the address of a static variable, because processes in
/// different sandboxes may have the same process id.
pub(crate) fn worker() -> String {
    static HERE: u8 = 0;
    format!("{}-{:x}", std::process::id(), &raw const HERE as usize)
}

/// So many calls at once.
struct Turns {
    free: Mutex<u16>,
    changed: Condvar,
}

impl Turns {
    fn with<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.changed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        drop(free);
        let result = work();
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_one();
        result
    }
}

/// Serves until the process ends; prints the port.
pub(crate) fn serve(name: &str, port: u16, threads: u16) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("{}", listener.local_addr()?.port());
    let turns = Arc::new(Turns { free: Mutex::new(threads), changed: Condvar::new() });
    for client in listener.incoming() {
        let client = client?;
        let turns = turns.clone();
        let name = name.to_owned();
        std::thread::spawn(move || {
            let _ = talk(client, &name, &turns);
        });
    }
    Ok(())
}

fn talk(client: TcpStream, name: &str, turns: &Turns) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut output = client.try_clone()?;
    let mut input = BufReader::new(client);
    while let Some(line) = read_line(&mut input)? {
        let mut closes = false;
        while let Some(field) = read_line(&mut input)?.filter(|field| !field.is_empty()) {
            closes |= field.eq_ignore_ascii_case("connection: close");
        }
        let target = line.split(' ').nth(1).unwrap_or_default();
        let (status, body) = turns.with(|| respond(name, &query(target)));
        let text = body.to_string();
        let head = format!(
            "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            text.len()
        );
        output.write_all(&[head.as_bytes(), text.as_bytes()].concat())?;
        if closes {
            break;
        }
    }
    Ok(())
}

fn read_line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    io::Read::take(&mut *input, LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()))
}

/// Parameters of a target.
fn query(target: &str) -> Params {
    let pairs = target.split_once('?').map(|(_, query)| query).unwrap_or_default().split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (first, after.get(..2).and_then(hex)) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (byte, _) => {
                bytes.push(if *byte == b'+' { b' ' } else { *byte });
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let found = query("/x?number=10&link=http%3A%2F%2Fa+b&odd=%zz");
        assert_eq!(found["number"], "10");
        assert_eq!(found["link"], "http://a b");
        assert_eq!(found["odd"], "%zz");
    }
}
