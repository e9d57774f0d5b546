//! Starts an HTTP front on loopback, and provides a raw client for it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use mote_http::http::{Config, Stopper, serve};

use super::Fake;

pub struct Server {
    pub address: SocketAddr,
    pub fake: Fake,
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub fn start(config: Config) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), config)
    }

    /// Starts a server on this address, which may be an IPv6 one.
    pub fn start_at(address: SocketAddr, config: Config) -> Self {
        let fake = Fake::default();
        let stopper = Stopper::default();
        let (sender, receiver) = std::sync::mpsc::channel();
        let invoker = fake.clone();
        let end = stopper.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let socket = match address {
                    SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4().unwrap(),
                    SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6().unwrap(),
                };
                // The receive buffer is small, so that the kernel holds little of a body that is
                // not read.
                socket.set_recv_buffer_size(64 << 10).unwrap();
                socket.set_send_buffer_size(64 << 10).unwrap();
                socket.bind(address).unwrap();
                let listener = socket.listen(4_096).unwrap();
                sender.send(listener.local_addr().unwrap()).unwrap();
                serve(listener, invoker, config, end).await.unwrap();
            });
        });
        Self { address: receiver.recv().unwrap(), fake, stopper, thread: Some(thread) }
    }

    pub fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client { stream, read: Vec::new() }
    }

    /// Tells the front to stop.
    pub fn begin_stop(&self) {
        self.stopper.stop();
    }

    /// Stops the front. All its connections must end.
    pub fn stop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The `detail` of a problem document, or an empty string for other bodies.
    pub fn detail(&self) -> String {
        serde_json::from_slice::<serde_json::Value>(&self.body)
            .ok()
            .and_then(|problem| Some(problem.get("detail")?.as_str()?.to_owned()))
            .unwrap_or_default()
    }

    pub fn closes(&self) -> bool {
        self.header("connection") == Some("close")
    }
}

pub struct Client {
    pub stream: TcpStream,
    read: Vec<u8>,
}

impl Client {
    /// Sends bytes. If the server has already closed the connection, the next read shows that.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let _ = self.stream.write_all(bytes.as_ref());
        self
    }

    /// Sends the bytes in two parts, with a pause so that the server can read the first part alone.
    pub fn send_split(&mut self, bytes: &[u8], cut: usize) {
        self.send(&bytes[..cut]);
        self.stream.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        self.fill();
        self.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        self.send(&bytes[cut..]);
    }

    /// Reads more bytes. Returns `false` at the end of the connection or when the time is over.
    fn fill(&mut self) -> bool {
        let mut buffer = [0; 64 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) | Err(_) => false,
            Ok(length) => {
                self.read.extend_from_slice(&buffer[..length]);
                true
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.read.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8(self.read[..at].to_vec()).unwrap();
                self.read.drain(..at + 2);
                return Some(line);
            }
            if !self.fill() {
                return None;
            }
        }
    }

    fn exactly(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.read.len() < length {
            if !self.fill() {
                return None;
            }
        }
        let rest = self.read.split_off(length);
        Some(std::mem::replace(&mut self.read, rest))
    }

    /// Reads the next answer. Returns `None` if the connection ended before the answer was
    /// complete.
    pub fn answer(&mut self, to_head: bool) -> Option<Answer> {
        let mut answer = self.head()?;
        if answer.status == 100 {
            return Some(answer);
        }
        answer.body = if to_head || matches!(answer.status, 204 | 304) {
            Vec::new()
        } else if let Some(length) = answer.header("content-length") {
            self.exactly(length.parse().unwrap())?
        } else if answer.header("transfer-encoding") == Some("chunked") {
            self.chunked()?
        } else {
            while self.fill() {}
            std::mem::take(&mut self.read)
        };
        Some(answer)
    }

    pub fn head(&mut self) -> Option<Answer> {
        let status_line = self.line()?;
        assert!(status_line.starts_with("HTTP/1.1 "), "status line {status_line:?}");
        let status = status_line[9..12].parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").unwrap();
            headers.push((name.to_owned(), value.to_owned()));
        }
        Some(Answer { status, headers, body: Vec::new() })
    }

    fn chunked(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let size = usize::from_str_radix(&self.line()?, 16).unwrap();
            body.extend(self.exactly(size)?);
            assert_eq!(self.exactly(2)?, b"\r\n");
            if size == 0 {
                return Some(body);
            }
        }
    }

    /// Whether nothing more arrives because the server has closed the connection.
    pub fn is_over(&mut self) -> bool {
        if !self.read.is_empty() {
            return false;
        }
        let mut byte = [0; 1];
        match self.stream.read(&mut byte) {
            Ok(read) => read == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    /// Sends a request and reads its answer.
    pub fn call(&mut self, request: &str) -> Answer {
        self.send(request).answer(request.starts_with("HEAD")).expect("an answer")
    }
}
