//! A closed-loop CoAP load: n clients, each with its own socket and port, each with one confirmable
//! GET under way at a time, retransmitted as RFC 7252 has it. Prints one JSON line.
//!
//! Usage: bench_coap PORT PATH CLIENTS [SECONDS] [--operations PER_CLIENT]
//!
//! With `--operations` every client makes that many requests however long it takes; otherwise all
//! begin new ones for SECONDS (5). One thread and one epoll: per operation two system calls of its
//! own, a send and a receive, so that what is measured is the server.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// First pause before a retransmission, doubled each time, and how often (RFC 7252, 4.8).
const ACK_TIMEOUT: Duration = Duration::from_secs(2);
const RETRANSMIT_MAX: u32 = 4;
/// How often clients are searched for one whose pause is over.
const LOOK_EVERY: Duration = Duration::from_millis(50);

fn main() -> std::io::Result<()> {
    let load = Load::from_arguments();
    // Each client holds a file descriptor, and the usual limit is 1,024.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit })?;
    let cpu = cpu_time();
    let (totals, elapsed) = run(&load)?;
    totals.print(elapsed, cpu_time() - cpu);
    Ok(())
}

struct Load {
    port: u16,
    /// A request up to its options; message id and token are set for each.
    datagram: Vec<u8>,
    clients: usize,
    seconds: u64,
    operations: Option<u64>,
}

impl Load {
    fn from_arguments() -> Self {
        let mut places = Vec::new();
        let mut operations = None;
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            if argument == "--operations" {
                operations = arguments.next().and_then(|text| text.parse().ok());
            } else {
                places.push(argument);
            }
        }
        let number = |at: usize, default: u64| {
            places.get(at).and_then(|text| text.parse().ok()).unwrap_or(default)
        };
        Self {
            port: number(0, 5683) as u16,
            datagram: request(places.get(1).map_or("hello", String::as_str)),
            clients: number(2, 64) as usize,
            seconds: number(3, 5),
            operations,
        }
    }
}

/// A GET with a token of two bytes, which will repeat the message id.
fn request(path: &str) -> Vec<u8> {
    let mut datagram = vec![0x42, 0x01, 0, 0, 0, 0];
    let mut delta: u8 = 11;
    for segment in path.split('/') {
        if segment.len() < 13 {
            datagram.push(delta << 4 | segment.len() as u8);
        } else {
            datagram.push(delta << 4 | 13);
            datagram.push((segment.len() - 13) as u8);
        }
        delta = 0;
        datagram.extend_from_slice(segment.as_bytes());
    }
    datagram
}

#[derive(Default)]
struct Totals {
    /// Of each operation that was answered with 2.xx, in nanoseconds.
    times: Vec<u64>,
    failed: u64,
    retransmissions: u64,
}

impl Totals {
    fn print(mut self, elapsed: Duration, cpu: Duration) {
        self.times.sort_unstable();
        let answered = self.times.len();
        let at = |share: f64| {
            let index = ((answered as f64 * share) as usize).min(answered.saturating_sub(1));
            self.times.get(index).map_or(0.0, |time| *time as f64 / 1e6)
        };
        let slow = answered - self.times.partition_point(|time| *time <= 1_000_000_000);
        println!(
            "{{\"requests\":{answered},\"answered\":{answered},\"failed\":{},\"over_1s\":{slow},\
             \"retransmissions\":{},\"seconds\":{:.3},\"per_second\":{:.1},\"p50_ms\":{:.3},\
             \"p99_ms\":{:.3},\"max_ms\":{:.3},\"cpu_us_per_request\":{:.2}}}",
            self.failed,
            self.retransmissions,
            elapsed.as_secs_f64(),
            answered as f64 / elapsed.as_secs_f64(),
            at(0.5),
            at(0.99),
            at(1.0),
            cpu.as_secs_f64() * 1e6 / answered.max(1) as f64,
        );
    }
}

/// One client: a socket and at most one operation under way.
struct Client {
    socket: UdpSocket,
    mid: u16,
    left: u64,
    /// When the operation began; `None` once all are done.
    started: Option<Instant>,
    /// When it is sent again, and the pause after that.
    due: Instant,
    pause: Duration,
    retransmissions: u32,
}

fn run(load: &Load) -> std::io::Result<(Totals, Duration)> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let begin = Instant::now();
    let mut clients = Vec::with_capacity(load.clients);
    for number in 0..load.clients {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(("127.0.0.1", load.port))?;
        socket.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(number as u64);
        epoll::add(&epoll, &socket, data, epoll::EventFlags::IN)?;
        clients.push(Client {
            socket,
            mid: number as u16,
            left: load.operations.unwrap_or(u64::MAX),
            started: None,
            due: begin,
            pause: ACK_TIMEOUT,
            retransmissions: 0,
        });
    }
    let started = Instant::now();
    let until = match load.operations {
        Some(_) => None,
        None => Some(started + Duration::from_secs(load.seconds)),
    };
    let mut totals = Totals::default();
    let mut datagram = load.datagram.clone();
    let mut active = 0;
    for client in &mut clients {
        active += usize::from(client.begin(&mut datagram, until));
    }
    let mut events = Vec::with_capacity(256);
    let pause = Timespec::try_from(LOOK_EVERY).expect("a short time");
    let mut looked = Instant::now();
    while active > 0 {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&pause)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let client = &mut clients[event.data.u64() as usize];
            if client.receive(&mut totals) && !client.begin(&mut datagram, until) {
                active -= 1;
            }
        }
        let now = Instant::now();
        if now.duration_since(looked) < LOOK_EVERY {
            continue;
        }
        looked = now;
        for client in clients.iter_mut().filter(|client| client.is_due(now)) {
            if client.repeat(&mut datagram, &mut totals, now) && !client.begin(&mut datagram, until)
            {
                active -= 1;
            }
        }
    }
    Ok((totals, started.elapsed()))
}

impl Client {
    /// Begins the next operation; `false` when there is none.
    fn begin(&mut self, datagram: &mut [u8], until: Option<Instant>) -> bool {
        let now = Instant::now();
        if self.left == 0 || until.is_some_and(|until| now >= until) {
            return false;
        }
        self.left -= 1;
        self.mid = self.mid.wrapping_add(1);
        self.started = Some(now);
        self.pause = ACK_TIMEOUT;
        self.due = now + self.pause;
        self.retransmissions = 0;
        self.send(datagram);
        true
    }

    fn send(&self, datagram: &mut [u8]) {
        let mid = self.mid.to_be_bytes();
        datagram[2..4].copy_from_slice(&mid);
        datagram[4..6].copy_from_slice(&mid);
        // A datagram that is not taken is a lost one: it is sent again in time.
        let _ = self.socket.send(datagram);
    }

    /// Reads one datagram; `true` when the operation is over.
    fn receive(&mut self, totals: &mut Totals) -> bool {
        let Some(started) = self.started else {
            let _ = self.socket.recv(&mut [0; 64]);
            return false;
        };
        let mut answer = [0; 1_500];
        match self.socket.recv(&mut answer) {
            Ok(length) => {
                let mid = self.mid.to_be_bytes();
                // 4.xx and 5.xx are answers too, but not what was asked for; an empty
                // acknowledgement or an earlier answer is not one at all.
                if length < 6 || answer[4..6] != mid || answer[1] == 0 {
                    return false;
                }
                if answer[1] >> 5 == 2 {
                    totals.times.push(started.elapsed().as_nanos() as u64);
                } else {
                    totals.failed += 1;
                }
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => totals.failed += 1,
            Err(_) => return false,
        }
        self.started = None;
        true
    }

    fn is_due(&self, now: Instant) -> bool {
        self.started.is_some() && now >= self.due
    }

    /// Sends the request again; `true` when that was done often enough.
    fn repeat(&mut self, datagram: &mut [u8], totals: &mut Totals, now: Instant) -> bool {
        if self.retransmissions == RETRANSMIT_MAX {
            totals.failed += 1;
            self.started = None;
            return true;
        }
        self.retransmissions += 1;
        totals.retransmissions += 1;
        self.pause *= 2;
        self.due = now + self.pause;
        self.send(datagram);
        false
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
