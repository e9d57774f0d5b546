//! Carries the bytes between the cell and the worker until one of them ends.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use mote_core::wire::{self, FrameKind};
use mote_pods::records::{DATA_BYTES_MAX, Ended, RecordKind, put, split};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf, pipe};
use tokio::sync::watch;

use crate::arrival::Connection;
use crate::settings::Settings;
use crate::worker::Worker;

/// How long a worker may take to end after the cell has let it go.
const END: Duration = Duration::from_secs(10);
/// How long the last bytes of a worker may take; a process that it has left behind may keep its
/// socket open.
const LAST_BYTES: Duration = Duration::from_millis(200);

/// Serves until the worker has ended or the cell is gone. Then nothing of the worker is left.
pub(crate) async fn run(
    connection: Connection,
    worker: Worker,
    settings: &Settings,
) -> Result<(), Box<dyn std::error::Error>> {
    let Connection { stream, input } = connection;
    let (from_cell, mut to_cell) = tokio::io::split(stream);
    let kill = worker.killer();
    let Worker { socket, output, greeting, ended, .. } = worker;
    send(&mut to_cell, RecordKind::Worker, &greeting).await?;
    let (from_worker, to_worker) = socket.into_split();
    let served = {
        let mut sending = std::pin::pin!(relay(from_worker, output, &mut to_cell, ended));
        tokio::select! {
            sent = &mut sending => sent.map(Some),
            received = receive(from_cell, input, to_worker, settings) => match received {
                Ok(()) => tokio::time::timeout(END, &mut sending).await.ok().transpose(),
                Err(error) => Err(error),
            }
        }
    };
    kill();
    if let Some(exit) = served? {
        send(&mut to_cell, RecordKind::Exit, &serde_json::to_vec(&exit)?).await?;
        to_cell.shutdown().await?;
    }
    Ok(())
}

async fn send(
    to: &mut (impl AsyncWrite + Unpin),
    kind: RecordKind,
    payload: &[u8],
) -> io::Result<()> {
    let mut record = Vec::with_capacity(payload.len() + 8);
    put(&mut record, kind, payload);
    to.write_all(&record).await?;
    to.flush().await
}

/// From the cell to the worker, until the cell sends nothing more.
async fn receive(
    mut from: impl AsyncRead + Unpin,
    mut input: BytesMut,
    mut to: OwnedWriteHalf,
    settings: &Settings,
) -> io::Result<()> {
    let mut moved = settings.is_moved().then(BytesMut::new);
    loop {
        while let Some((kind, bytes)) = split(&mut input).map_err(io::Error::other)? {
            if kind != RecordKind::Worker {
                return Err(io::Error::other(format!("unexpected record {kind:?}")));
            }
            match &mut moved {
                None => to.write_all(&bytes).await?,
                Some(held) => {
                    held.extend_from_slice(&bytes);
                    if let Some(load) = with_own_folders(held, settings)? {
                        to.write_all(&load).await?;
                        to.write_all(held).await?;
                        moved = None;
                    }
                }
            }
        }
        match from.read_buf(&mut input).await {
            Ok(0) => return to.shutdown().await,
            Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The LOAD frame with the folders as they are below another root than `/`, once it is there.
fn with_own_folders(held: &mut BytesMut, settings: &Settings) -> io::Result<Option<Vec<u8>>> {
    let Some((header, payload)) = wire::split_frame(held).map_err(io::Error::other)? else {
        return Ok(None);
    };
    if header.kind != FrameKind::Load {
        return Err(io::Error::other(format!("{:?} instead of LOAD", header.kind)));
    }
    let mut load: serde_json::Value = serde_json::from_slice(&payload)?;
    for key in ["code_dir", "packages_dir"] {
        if let Some(folder) = load[key].as_str() {
            load[key] = settings.at(folder).to_string_lossy().into_owned().into();
        }
    }
    let mut frame = Vec::new();
    wire::put_frame(&mut frame, FrameKind::Load, 0, header.stream, &serde_json::to_vec(&load)?);
    Ok(Some(frame))
}

/// From the worker to the cell, until the worker has ended.
async fn relay(
    mut from: OwnedReadHalf,
    mut output: pipe::Receiver,
    to: &mut (impl AsyncWrite + Unpin),
    mut ended: watch::Receiver<Option<Ended>>,
) -> io::Result<Ended> {
    let (mut words, mut printed) = (vec![0; DATA_BYTES_MAX], vec![0; DATA_BYTES_MAX]);
    let (mut speaks, mut prints) = (true, true);
    loop {
        tokio::select! {
            count = from.read(&mut words), if speaks => match count? {
                0 => speaks = false,
                count => send(to, RecordKind::Worker, &words[..count]).await?,
            },
            count = output.read(&mut printed), if prints => match count? {
                0 => prints = false,
                count => send(to, RecordKind::Output, &printed[..count]).await?,
            },
            changed = ended.wait_for(Option::is_some) => {
                let exit = changed.map_err(io::Error::other)?.unwrap_or_default();
                while let Ok(count @ 1..) = output.try_read(&mut printed) {
                    send(to, RecordKind::Output, &printed[..count]).await?;
                }
                let rest = tokio::time::timeout(LAST_BYTES, async {
                    while let Ok(count @ 1..) = from.read(&mut words).await {
                        send(to, RecordKind::Worker, &words[..count]).await?;
                    }
                    io::Result::Ok(())
                });
                rest.await.unwrap_or(Ok(()))?;
                return Ok(exit);
            }
        }
    }
}
