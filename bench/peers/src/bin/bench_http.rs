//! A closed-loop HTTP load with exact counts: n clients, each with its own kept connection and one
//! GET under way at a time. Prints one JSON line.
//!
//! Answers are checked: anything but a 200 with a content-length, and any byte beyond it, is a
//! failure. A client whose connection breaks connects again; connecting counts into the latency of
//! the operation that needed it, as a user would feel it.
//!
//! Usage: bench_http PORT PATH CLIENTS (--operations PER_CLIENT | --seconds SECONDS)

use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

/// An operation without its answer after this long has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of an answer's head at most.
const HEAD_BYTES_MAX: usize = 16 << 10;

struct Plan {
    port: u16,
    request: Vec<u8>,
    clients: usize,
    operations: u64,
    until: Instant,
}

#[derive(Default)]
struct Tally {
    times: Vec<Duration>,
    failed: u64,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(plan) = read_plan(&args) else {
        eprintln!("usage: bench_http PORT PATH CLIENTS (--operations PER_CLIENT | --seconds S)");
        return ExitCode::from(2);
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("bench_http: {error}");
            return ExitCode::FAILURE;
        }
    };
    let clients = plan.clients;
    let started = Instant::now();
    let tally = runtime.block_on(LocalSet::new().run_until(run(Rc::new(plan))));
    print(tally, clients, started.elapsed());
    ExitCode::SUCCESS
}

fn read_plan(args: &[String]) -> Option<Plan> {
    let [port, path, clients, limit, amount] = args else { return None };
    let far = Instant::now() + Duration::from_secs(3_600);
    let (operations, until) = match limit.as_str() {
        "--operations" => (amount.parse().ok()?, far),
        "--seconds" => (u64::MAX, Instant::now() + Duration::from_secs_f64(amount.parse().ok()?)),
        _ => return None,
    };
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes();
    Some(Plan {
        port: port.parse().ok()?,
        request,
        clients: clients.parse().ok()?,
        operations,
        until,
    })
}

async fn run(plan: Rc<Plan>) -> Tally {
    let tasks: Vec<_> =
        (0..plan.clients).map(|_| tokio::task::spawn_local(client(plan.clone()))).collect();
    let mut all = Tally::default();
    for task in tasks {
        let one = task.await.unwrap_or_else(|_| Tally { failed: 1, ..Tally::default() });
        all.times.extend(one.times);
        all.failed += one.failed;
    }
    all
}

async fn client(plan: Rc<Plan>) -> Tally {
    let mut tally = Tally::default();
    let mut kept = None;
    let mut held = Vec::with_capacity(1_024);
    let mut done = 0;
    while done < plan.operations && Instant::now() < plan.until {
        done += 1;
        let started = Instant::now();
        let work = operation(&plan, &mut kept, &mut held);
        if let Ok(Some(())) = tokio::time::timeout(PATIENCE, work).await {
            tally.times.push(started.elapsed());
        } else {
            tally.failed += 1;
            kept = None;
        }
    }
    tally
}

/// One request and its whole answer; `None` when anything was not as it must be.
async fn operation(plan: &Plan, kept: &mut Option<TcpStream>, held: &mut Vec<u8>) -> Option<()> {
    if kept.is_none() {
        let stream = TcpStream::connect(("127.0.0.1", plan.port)).await.ok()?;
        stream.set_nodelay(true).ok()?;
        *kept = Some(stream);
    }
    let stream = kept.as_mut()?;
    stream.write_all(&plan.request).await.ok()?;
    held.clear();
    let head_bytes = loop {
        if stream.read_buf(held).await.ok()? == 0 || held.len() > HEAD_BYTES_MAX {
            return None;
        }
        if let Some(at) = held.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let (body_bytes, closes) = parse_head(&held[..head_bytes])?;
    while held.len() < head_bytes + body_bytes {
        if stream.read_buf(held).await.ok()? == 0 {
            return None;
        }
    }
    if closes {
        *kept = None;
    }
    (held.len() == head_bytes + body_bytes).then_some(())
}

/// Length of the body, and whether the connection ends with it.
fn parse_head(head: &[u8]) -> Option<(usize, bool)> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n");
    if !lines.next()?.starts_with("HTTP/1.1 200 ") {
        return None;
    }
    let mut length = None;
    let mut closes = false;
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.parse().ok()?);
        } else if name.eq_ignore_ascii_case("connection") {
            closes = value.eq_ignore_ascii_case("close");
        }
    }
    Some((length?, closes))
}

fn print(mut tally: Tally, clients: usize, elapsed: Duration) {
    let times = &mut tally.times;
    times.sort_unstable();
    let at = |share: f64| {
        let index = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    let slow = times.iter().filter(|time| **time > Duration::from_secs(1)).count();
    println!(
        "{{\"clients\":{clients},\"requests\":{},\"failed\":{},\"over_1s\":{slow},\
         \"per_second\":{:.1},\"p50_ms\":{:.3},\"p99_ms\":{:.3},\"max_ms\":{:.3}}}",
        times.len(),
        tally.failed,
        times.len() as f64 / elapsed.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(1.0),
    );
}

#[cfg(test)]
mod tests {
    use super::parse_head;

    #[test]
    fn only_a_whole_200_counts() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nconnection: close\r\n\r\n";
        assert_eq!(parse_head(head), Some((4, true)));
        assert_eq!(parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"), Some((4, false)));
        for wrong in [
            "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
        ] {
            assert_eq!(parse_head(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
