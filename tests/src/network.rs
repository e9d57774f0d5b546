//! A second network on this machine: a network namespace that one virtual cable connects to this
//! one. It stands for another machine.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{self as unix, UnixListener};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{self, AddressFamily, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace whose cable ends here. Dropping it removes the namespace and the cable.
pub struct Far {
    name: String,
    cable: String,
    number: Number,
    /// The address of this end.
    pub near: Ipv4Addr,
    /// The address of the other end.
    pub far: Ipv4Addr,
}

/// The number of a network. No two networks of this machine have the same one.
struct Number {
    value: u8,
    /// Its name says which number it is. No two sockets of a machine can have the same one.
    _name: UnixListener,
}

impl Number {
    /// [`Far::more_addresses`] has 64 networks in 100.64.0.0/10.
    const COUNT: u8 = 64;

    fn near(value: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 19, value, 1)
    }

    /// Takes a number that no other network has, also none that a killed test left. `None` if all
    /// are taken.
    fn take() -> Option<Self> {
        let is_left = |value: &u8| UdpSocket::bind((Self::near(*value), 0)).is_ok();
        (0..Self::COUNT).filter(|value| !is_left(value)).find_map(|value| {
            let name = format!("mote-test-network-{value}");
            let address = unix::SocketAddr::from_abstract_name(name).ok()?;
            Some(Self { value, _name: UnixListener::bind_addr(&address).ok()? })
        })
    }
}

/// Connects from this address. The network of the calling thread must have it.
pub fn connect_from(source: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    net::bind(&socket, &SocketAddr::from((source, 0)))?;
    net::connect(&socket, &to)?;
    Ok(socket.into())
}

fn ip(args: &str) -> bool {
    let status = Command::new("ip").args(args.split(' ')).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

impl Far {
    /// The ends of the cable have the addresses 198.19.n.1 here and 198.19.n.2 there, with an n that
    /// no other network of this machine has. Returns `None` if the machine does not permit this;
    /// root is needed.
    pub fn new() -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}x{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let name = format!("mote-far-{id}");
        let cable = format!("mf{id}");
        let number = Number::take()?;
        let far = Self {
            near: Number::near(number.value),
            far: Ipv4Addr::new(198, 19, number.value, 2),
            number,
            name,
            cable,
        };
        let Self { name, cable, near, far: other, .. } = &far;
        let made = ip(&format!("netns add {name}"))
            && ip(&format!("link add {cable} type veth peer name far netns {name}"))
            && ip(&format!("addr add {near}/24 dev {cable}"))
            && ip(&format!("link set {cable} up"))
            && ip(&format!("-n {name} addr add {other}/24 dev far"))
            && ip(&format!("-n {name} link set far up"))
            && ip(&format!("-n {name} link set lo up"));
        made.then_some(far)
    }

    /// The name of the namespace, for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives the other end `count` further addresses in 100.64.0.0/10.
    pub fn more_addresses(&self, count: usize) -> Option<Vec<Ipv4Addr>> {
        let network = Ipv4Addr::new(100, 64 + self.number.value, 0, 0);
        let first = u32::from(network) + 1;
        let addresses = (0..u32::try_from(count).ok()?).map(|at| Ipv4Addr::from(first + at));
        let addresses: Vec<Ipv4Addr> = addresses.collect();
        let lines: String =
            addresses.iter().map(|one| format!("addr add {one}/32 dev far\n")).collect();
        let mut batch = Command::new("ip");
        let mut batch =
            batch.args(["-n", &self.name, "-batch", "-"]).stdin(Stdio::piped()).spawn().ok()?;
        batch.stdin.take()?.write_all(lines.as_bytes()).ok()?;
        let is_made = batch.wait().is_ok_and(|status| status.success());
        let is_made = is_made && ip(&format!("route add {network}/16 via {}", self.far));
        is_made.then_some(addresses)
    }

    /// Unplugs the cable at the other end, or plugs it in again.
    pub fn plug(&self, is_in: bool) -> bool {
        let state = if is_in { "up" } else { "down" };
        ip(&format!("-n {} link set far {state}", self.name))
    }

    /// Runs `work` on a thread in the other network. The thread's sockets, and the programs that it
    /// starts, are in that network too.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                let space = File::open(format!("/run/netns/{}", self.name)).expect("a namespace");
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("root may enter it");
                work()
            });
            there.join().expect("the work ends")
        })
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // The kernel removes a namespace later than it says, and the number is free at once.
        ip(&format!("link del {}", self.cable));
        ip(&format!("netns del {}", self.name));
    }
}
