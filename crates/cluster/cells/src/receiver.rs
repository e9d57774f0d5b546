//! The cell that runs invocations of other cells: its listener, and the reports of its load.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::BytesMut;
use mote_core::elsewhere::Ran;
use mote_core::shares::Shares;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;

use crate::frames::{self, Frame, Kind, Malformed, REVISIONS_MAX, Refused, VERSION};
use crate::link::{Arriving, End, Link, Side};
use crate::{Shared, now_ns, socket};

/// The most connections that have not yet proved that they come from a cell: in all, and from one
/// address.
const STRANGERS: (usize, usize) = (64, 8);
/// The most connections of cells: in all, and from one address.
const CELLS: (usize, usize) = (128, 64);
/// How long a connection may take to prove that it comes from a cell.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after accepting a connection failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Shortest time between two reports of the load, and between two log lines about strangers.
const REPORT_PAUSE: Duration = Duration::from_millis(100);
const STRANGER_PAUSE: Duration = Duration::from_secs(10);

/// Accepts connections of other cells.
pub(crate) async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    let strangers = Shares::new(STRANGERS.0, STRANGERS.1);
    let cells = Shares::new(CELLS.0, CELLS.1);
    let mut warned: Option<Instant> = None;
    let (failed, mut failures) = tokio::sync::mpsc::channel::<(IpAddr, String)>(16);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some((address, text)) = failures.recv() => {
                if warned.is_none_or(|at| at.elapsed() >= STRANGER_PAUSE) {
                    warned = Some(Instant::now());
                    tracing::warn!(%address, "refused a connection to the port of the cells: {text}");
                }
                *shared.stranger.lock() = Some(format!("{address}: {text}"));
                continue;
            }
        };
        let (tcp, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection of a cell");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let address = from.ip().to_canonical();
        let Ok(stranger) = strangers.take(address, 1) else { continue };
        let shared = shared.clone();
        let cells = cells.clone();
        let failed = failed.clone();
        tokio::spawn(async move {
            let greeted = tokio::time::timeout(HANDSHAKE_TIMEOUT, greet(&shared, tcp)).await;
            let (io, input, name) = match greeted {
                Ok(Ok(greeted)) => greeted,
                Ok(Err(text)) => {
                    let _ = failed.try_send((address, text));
                    return;
                }
                Err(_) => {
                    let text = "it has not proved in time that it is a cell".to_owned();
                    let _ = failed.try_send((address, text));
                    return;
                }
            };
            drop(stranger);
            let Ok(_place) = cells.take(address, 1) else { return };
            serve(&shared, io, input, &name).await;
        });
    }
}

/// Does the TLS handshake and exchanges HELLOs. An error is a text for the log.
async fn greet(
    shared: &Shared,
    tcp: TcpStream,
) -> Result<(TlsStream<TcpStream>, BytesMut, String), String> {
    socket::prepare(&tcp);
    let mut io =
        shared.key.acceptor().accept(tcp).await.map_err(
            |error| match crate::raw_keys::is_other_key(&error) {
                true => "it has another cell_key, or is not a cell".to_owned(),
                false => format!("it is not a cell: {error}"),
            },
        )?;
    let mut hello = Vec::new();
    frames::put_hello(&mut hello, &shared.name.lock().clone());
    io.write_all(&hello).await.map_err(|error| error.to_string())?;
    io.flush().await.map_err(|error| error.to_string())?;
    let mut input = BytesMut::new();
    let frame = loop {
        if let Some(frame) = frames::split(&mut input).map_err(|error| error.to_string())? {
            break frame;
        }
        match io.read_buf(&mut input).await {
            Ok(0) => return Err("it closed the connection".to_owned()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
    };
    match frames::read_hello(&frame) {
        Ok((VERSION, name)) => Ok((io, input, name)),
        Ok((version, _)) => Err(format!(
            "it speaks version {version} of the protocol, and this cell version {VERSION}"
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// Handles a connection until it ends.
async fn serve(shared: &Arc<Shared>, io: TlsStream<TcpStream>, input: BytesMut, name: &str) {
    let link = Arc::new(Link::default());
    {
        let mut inbound = shared.inbound.lock();
        inbound.retain(|link| link.strong_count() > 0);
        inbound.push(Arc::downgrade(&link));
    }
    shared.inbound_count.fetch_add(1, Ordering::Relaxed);
    link.put_load(&load(shared));
    let again = Arc::new(Notify::new());
    let reports = tokio::spawn(correct(shared.clone(), link.clone(), again.clone()));
    let receive = |frame: Frame| {
        let Some(frame) = link.receive(frame)? else { return Ok(()) };
        if frame.kind != Kind::Invoke {
            return Err(Malformed("not a frame of a cell that sends invocations"));
        }
        let invoked = frames::read_invoke(&frame, now_ns())?;
        if !link.accept(frame.stream)? || shared.draining.load(Ordering::Relaxed) {
            link.forget(frame.stream, false);
            refuse(&link, frame.stream, Refused::Busy);
            again.notify_one();
            return Ok(());
        }
        let shared = shared.clone();
        let of_link = link.clone();
        let again = again.clone();
        let task = tokio::spawn(run(shared, of_link, again, frame.stream, invoked));
        link.runs(frame.stream, task.abort_handle());
        Ok(())
    };
    let end = link.drive(io, input, receive).await;
    reports.abort();
    shared.inbound_count.fetch_sub(1, Ordering::Relaxed);
    if end != End::Closed {
        tracing::info!(cell = %name, "the connection of a cell has ended: {end}");
    }
}

fn refuse(link: &Link, stream: u32, why: Refused) {
    link.put(Kind::Refused, true, stream, |out| out.push(why as u8));
}

/// Runs one invocation of another cell.
async fn run(
    shared: Arc<Shared>,
    link: Arc<Link>,
    again: Arc<Notify>,
    id: u32,
    invoked: frames::Invoked,
) {
    let frames::Invoked { key, mut invocation, streams } = invoked;
    if let Some(length) = streams {
        invocation.body = Arriving::body(link.clone(), id, Side::Runner, length, ());
    }
    let ran = shared.here.run(&key, invocation).await;
    link.room().await;
    match ran {
        Ran::NotHere => refuse(&link, id, Refused::NotHere),
        Ran::Busy => {
            refuse(&link, id, Refused::Busy);
            // The other cell has miscounted the room here.
            again.notify_one();
        }
        Ran::Answered(Err(fault)) => {
            shared.counters.spilled_in.fetch_add(1, Ordering::Relaxed);
            link.answer(|out| frames::put_fault(out, id, &fault));
        }
        Ran::Answered(Ok(reply)) => {
            shared.counters.spilled_in.fetch_add(1, Ordering::Relaxed);
            let mut is_whole = true;
            link.answer(|out| is_whole = frames::put_result(out, id, &reply));
            if !is_whole {
                link.pump(id, reply.body).await;
            }
        }
    }
    link.forget(id, false);
}

/// Reports the load to all cells if it has changed. The report goes into the outgoing bytes at
/// once. If answers were sent first, the other cells would free the places of those answers, and a
/// later report that still counts these invocations would take the places away again.
fn refresh(shared: &Shared) {
    let load = load(shared);
    {
        let mut last = shared.load.lock();
        if *last == load {
            return;
        }
        last.clone_from(&load);
    }
    for link in shared.inbound.lock().iter().filter_map(Weak::upgrade) {
        link.put_load(&load);
    }
}

fn load(shared: &Shared) -> Vec<u8> {
    let draining = shared.draining.load(Ordering::Relaxed);
    frames::load(&shared.here.load(REVISIONS_MAX), draining)
}

/// While other cells are connected, makes a new report whenever the load may have changed, at a
/// bounded rate.
pub(crate) async fn report(shared: Arc<Shared>) {
    loop {
        shared.changed.notified().await;
        if shared.inbound_count.load(Ordering::Relaxed) > 0 {
            refresh(&shared);
            tokio::time::sleep(REPORT_PAUSE).await;
        }
    }
}

/// Sends the load again to a cell that has miscounted the room here.
async fn correct(shared: Arc<Shared>, link: Arc<Link>, again: Arc<Notify>) {
    loop {
        again.notified().await;
        tokio::time::sleep(REPORT_PAUSE).await;
        link.put_load(&load(&shared));
    }
}
