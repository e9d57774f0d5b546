//! The static file server of the lab: files of one folder from memory, kept connections, one
//! thread. What functions that fetch something fetch it from.
//!
//! Usage: bench_static FOLDER; listens on a port of 127.0.0.1 that the system chooses and prints it.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const HEAD_BYTES_MAX: usize = 16 << 10;

/// Whole answers by path.
type Files = HashMap<String, Vec<u8>>;

fn load(folder: &Path) -> io::Result<Files> {
    let mut files = Files::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let body = std::fs::read(entry.path())?;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        let name = format!("/{}", entry.file_name().to_string_lossy());
        files.insert(name, [head.into_bytes(), body].concat());
    }
    Ok(files)
}

async fn serve(mut client: TcpStream, files: Arc<Files>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") else {
            let count = client.read(&mut piece).await?;
            if count == 0 || head.len() > HEAD_BYTES_MAX {
                return Ok(());
            }
            head.extend_from_slice(&piece[..count]);
            continue;
        };
        let text = String::from_utf8_lossy(&head[..end]);
        let mut words = text.split([' ', '\r']);
        let is_get = words.next() == Some("GET");
        let path = words.next().unwrap_or_default().split('?').next().unwrap_or_default();
        let closes = text.to_ascii_lowercase().contains("\r\nconnection: close");
        match files.get(path).filter(|_| is_get) {
            Some(answer) => client.write_all(answer).await?,
            None => {
                client.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await?
            }
        }
        if closes {
            return client.shutdown().await;
        }
        head.drain(..end + 4);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let folder = std::env::args().nth(1).ok_or_else(|| io::Error::other("name a folder"))?;
    let files = Arc::new(load(Path::new(&folder))?);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("{}", listener.local_addr()?.port());
    loop {
        let (client, _) = listener.accept().await?;
        let files = files.clone();
        tokio::spawn(async move {
            let _ = serve(client, files).await;
        });
    }
}
