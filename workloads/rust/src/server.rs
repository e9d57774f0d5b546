//! The least HTTP server a measurement needs: GET, kept connections, a thread for each.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::{parameters, text};
use crate::{Params, respond};

const LINE_BYTES_MAX: u64 = 16 << 10;

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
        let kind = if body.is_string() { "text/plain" } else { "application/json" };
        let text = text(&body);
        let head = format!(
            "HTTP/1.1 {status} -\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
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
    parameters(target.split_once('?').map(|(_, query)| query).unwrap_or_default())
}
