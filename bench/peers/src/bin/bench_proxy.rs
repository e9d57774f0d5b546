//! The plain variant: a reverse proxy that copies bytes between a client and its own connection to
//! the server behind, one thread. What most platforms put in front of a function does more.
//!
//! Usage: bench_proxy PORT UPSTREAM_PORT

use tokio::net::{TcpListener, TcpStream};

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1).filter_map(|text| text.parse::<u16>().ok());
    let port = args.next().unwrap_or(7001);
    let upstream = args.next().unwrap_or(7000);
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (mut client, _) = listener.accept().await?;
        tokio::spawn(async move {
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", upstream)).await else { return };
            let _ = client.set_nodelay(true);
            let _ = server.set_nodelay(true);
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}
