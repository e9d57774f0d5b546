//! The limit: an HTTP server that reads until the empty line and writes the same answer, one
//! thread, no parsing. Nothing that speaks HTTP over this runtime is faster.
//!
//! Usage: bench_echo PORT

use std::io::ErrorKind;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\nmote";

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(7000);
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(serve(stream));
    }
}

async fn serve(mut stream: TcpStream) {
    let mut held = Vec::with_capacity(4_096);
    loop {
        if tokio::io::AsyncReadExt::read_buf(&mut stream, &mut held).await.unwrap_or(0) == 0 {
            return;
        }
        while let Some(at) = held.windows(4).position(|window| window == b"\r\n\r\n") {
            held.drain(..at + 4);
            match stream.try_write(ANSWER) {
                Ok(written) if written == ANSWER.len() => {}
                Ok(written) => {
                    if stream.write_all(&ANSWER[written..]).await.is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if stream.write_all(ANSWER).await.is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }
}
