//! Pid 1 of a sandbox after all set-up. It does not execute another program in its place.
//!
//! Pid 1 executes the program as pid 2, collects orphans, and ends with the program. The kernel
//! then ends everything else in the namespace. The program is not pid 1 itself, because it would
//! then have to collect orphans, and its own signals could not kill it. At this point, pid 1
//! already has no privileges, runs under the same filter as the program, and is invisible to it
//! (undumpable).

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use mote_core::backend::ServerOrder;

use crate::config::Layer;
use crate::message;
use crate::plan::{Answer, Plan, Program};
use crate::seccomp::{self, BpfProgram};
use crate::seed_init;
use crate::spawn::{Command, Stdio};
use crate::step::{CHANNEL_FD, STATUS_FD, status, tell};
use crate::sys;
use crate::worker;

/// How long a connection to the program's port may take before the engine receives "not yet".
const CONNECT_TIMEOUT_MS: i32 = 1_000;

/// The process id of a copy of a template. Pid 2 has brought it here and ended.
const COPY_PID: i32 = 3;

/// Runs the plan's program to its end. Never returns. This process is under the filter already,
/// unless its program is a seed.
pub(crate) fn run(plan: &Plan, egress: Vec<OwnedFd>, filter: &BpfProgram) -> ! {
    match start(plan, egress, filter) {
        Ok(wait_status) => {
            tell(&Answer::Ended { wait_status }, &[]);
            sys::exit_now(0)
        }
        Err(error) => {
            tell(
                &Answer::NotExecuted {
                    program: plan.program.argv().first().cloned().unwrap_or_default(),
                    errno: error.raw_os_error().unwrap_or(libc::EINVAL),
                },
                &[],
            );
            sys::exit_now(125)
        }
    }
}

fn started(egress: Vec<OwnedFd>) {
    let fds: Vec<_> = egress.iter().map(|fd| fd.as_raw_fd()).collect();
    tell(&Answer::Started, &fds);
    drop(egress);
}

fn start(plan: &Plan, egress: Vec<OwnedFd>, filter: &BpfProgram) -> io::Result<i32> {
    // SAFETY: set-up has placed the channel at this number; here it gets its owner.
    let channel = unsafe { OwnedFd::from_raw_fd(CHANNEL_FD) };
    let children = sys::child_signal_fd()?;
    let close_others = plan.has(Layer::FdClosing);
    let command =
        |argv: &[String], folder: &Path| Command::new(argv, &plan.env, folder, close_others);
    match &plan.program {
        Program::PerInvocation { argv } => {
            // A prewarmed program waits without a command. Its command and its code arrive with
            // LOAD.
            let known = if argv.is_empty() {
                None
            } else {
                let known = command(argv, &plan.work_dir)?;
                known.probe()?;
                Some(known)
            };
            started(egress);
            worker::run(channel, status(), known, &|argv, folder| {
                std::env::set_current_dir(folder)?;
                let command = command(argv, folder)?;
                command.probe()?;
                Ok(command)
            });
            Ok(0)
        }
        Program::Copy { .. } => {
            drop(channel);
            started(egress);
            Ok(wait(COPY_PID, &children, None))
        }
        Program::Seed { argv } => {
            inherit_channel();
            let roots = seed_init::Roots::open()?;
            let filter = plan.has(Layer::Seccomp).then_some(filter);
            let child = command(argv, &plan.work_dir)?.spawn_in_same_root(filter)?;
            drop(channel);
            if let Some(filter) = filter {
                sys::load_filter(&seccomp::for_seed_init(filter))?;
            }
            started(egress);
            Ok(seed_init::wait(child.pid, &children, &roots))
        }
        Program::Shim { argv } | Program::Template { argv } => {
            inherit_channel();
            let child = command(argv, &plan.work_dir)?.spawn(&Stdio::default(), &[])?;
            drop(channel);
            let Some(port) = plan.debug_port else {
                started(egress);
                return Ok(wait(child.pid, &children, None));
            };
            let (outside, inside) = sys::socket_pair(libc::SOCK_SEQPACKET)?;
            started(egress.into_iter().chain([outside]).collect());
            Ok(wait(child.pid, &children, Some((&inside, port, libc::SIGTERM))))
        }
        Program::Server { argv, port, stop_signal } => {
            let child = command(argv, &plan.work_dir)?.spawn(&Stdio::default(), &[])?;
            started(egress);
            Ok(wait(child.pid, &children, Some((&channel, *port, *stop_signal))))
        }
    }
}

/// Lets the program inherit the channel at its number.
fn inherit_channel() {
    // SAFETY: plain integers on our own descriptor.
    unsafe {
        libc::fcntl(CHANNEL_FD, libc::F_SETFD, 0);
    }
}

/// Waits for the program, collects every other child that ends, and answers requests for
/// connections. Ends the process when the daemon has ended. For a server, there are also a channel,
/// a port, and the signal that asks the server to end.
fn wait(main: i32, children: &OwnedFd, server: Option<(&OwnedFd, u16, i32)>) -> i32 {
    let mut entries = [
        sys::poll_entry(children.as_raw_fd(), libc::POLLIN),
        // No events are requested, because the kernel always reports a hang-up.
        sys::poll_entry(STATUS_FD, 0),
        sys::poll_entry(server.map_or(-1, |(channel, ..)| channel.as_raw_fd()), libc::POLLIN),
    ];
    loop {
        if sys::poll(&mut entries, -1).is_err() {
            sys::exit_now(125);
        }
        if entries[0].revents != 0 {
            sys::drain_signals(children.as_fd());
            while let Some((pid, wait_status)) = sys::reap(-1) {
                if pid == main {
                    return wait_status;
                }
            }
        }
        if entries[1].revents != 0 {
            sys::exit_now(0);
        }
        if entries[2].revents != 0
            && let Some((channel, port, stop_signal)) = server
            && !obey(channel.as_fd(), port, (main, stop_signal))
        {
            // The engine has closed its end and will send no more requests.
            entries[2].fd = -1;
        }
    }
}

/// Carries out one order for a server. Returns false if the engine's end is closed.
fn obey(channel: BorrowedFd<'_>, port: u16, (server, stop_signal): (i32, i32)) -> bool {
    // An order is one byte. Several orders may arrive together, so they are read one by one.
    let mut request = [0; 1];
    match sys::read(channel, &mut request) {
        Ok(0) => return false,
        Ok(_) if request[0] == ServerOrder::Terminate as u8 => {
            // SAFETY: plain integers; the server is a child that has not been collected.
            unsafe {
                libc::kill(server, stop_signal);
            }
            return true;
        }
        Ok(_) => {}
        Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
    }
    let sent = match connect(port) {
        Ok(socket) => message::send(channel, &[0], &[socket.as_raw_fd()], 0),
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(libc::EIO) as u32;
            message::send(channel, &errno.to_le_bytes(), &[], 0)
        }
    };
    sent.is_ok()
}

/// Opens a non-blocking connection to `port` on loopback.
fn connect(port: u16) -> io::Result<OwnedFd> {
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let raw = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
        sin_zero: [0; 8],
    };
    // SAFETY: the address struct has the length passed and outlives the call.
    let (socket, connected) = unsafe {
        let socket = libc::socket(
            libc::AF_INET,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            0,
        );
        sys::check(libc::c_long::from(socket))?;
        let socket = OwnedFd::from_raw_fd(socket);
        let connected = libc::connect(
            socket.as_raw_fd(),
            (&raw const raw).cast(),
            size_of::<libc::sockaddr_in>() as libc::socklen_t,
        );
        (socket, sys::check(libc::c_long::from(connected)))
    };
    match connected {
        Ok(_) => return Ok(socket),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    // A loopback connection succeeds at once unless the program's backlog is full.
    let mut entry = [sys::poll_entry(socket.as_raw_fd(), libc::POLLOUT)];
    if sys::poll(&mut entry, CONNECT_TIMEOUT_MS)? == 0 {
        return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
    }
    let mut errno: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: value and length are valid for writing.
    sys::check(libc::c_long::from(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut errno).cast(),
            &raw mut length,
        )
    }))?;
    match errno {
        0 => Ok(socket),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
