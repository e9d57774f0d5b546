//! The floor of a handover: two processes, one Unix socket, one byte there and one back, with a
//! pause before each. What this machine needs to wake another process and be woken, with no
//! program in between. Prints one JSON line.
//!
//! Usage: bench_pair PAUSE_MS CALLS

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const ECHO: &str = "echo";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.as_slice() {
        [role] if role == ECHO => echo(),
        [pause_ms, calls] => match (pause_ms.parse(), calls.parse()) {
            (Ok(pause_ms), Ok(calls)) => measure(Duration::from_millis(pause_ms), calls),
            _ => return ExitCode::from(2),
        },
        _ => return ExitCode::from(2),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench_pair: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The other process: its stdin is the socket. Ends when the first one does.
fn echo() -> std::io::Result<()> {
    use std::os::fd::AsFd;
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut byte = [0];
    while socket.read(&mut byte)? > 0 {
        socket.write_all(&byte)?;
    }
    Ok(())
}

fn measure(pause: Duration, calls: usize) -> std::io::Result<()> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut other = Command::new(std::env::current_exe()?)
        .arg(ECHO)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()?;
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls.max(1) {
        std::thread::sleep(pause);
        let started = Instant::now();
        ours.write_all(&[1])?;
        ours.read_exact(&mut [0])?;
        times.push(started.elapsed());
    }
    drop(ours);
    other.wait()?;
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 100].as_secs_f64() * 1e3;
    println!("{{\"p50_ms\":{:.4},\"p99_ms\":{:.4}}}", at(50), at(99));
    Ok(())
}
