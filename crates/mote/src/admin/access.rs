//! Who may use the management API: on the Unix socket root and the user that runs the node, known
//! by the kernel; over TCP whoever holds the token.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mote_api::Problem;
use mote_compat::node::Admission;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::Refused;
use crate::node::Node;

/// Wrong tokens from one address within [`GUESS_WINDOW`] before it is told to wait.
const GUESSES_MAX: u32 = 30;
const GUESS_WINDOW: Duration = Duration::from_secs(60);
/// Addresses remembered at most.
const ADDRESSES_MAX: usize = 4_096;

/// Where a connection comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Caller {
    /// A local process of this user; `None` when the kernel did not say.
    Local(Option<u32>),
    /// An address on the network.
    Remote(IpAddr),
}

/// The token of the TCP address: only its hash is kept, so comparing takes no longer for a near
/// miss.
pub(crate) struct Token {
    hash: [u8; 32],
    guesses: Mutex<HashMap<IpAddr, (u32, Instant)>>,
}

impl Token {
    /// Reads the token file, or makes one with 256 random bits that only its owner can read.
    pub(crate) fn load_or_create(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text.trim().to_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let mut bytes = [0; 32];
                std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
                let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                let mut file = std::fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(path)?;
                std::io::Write::write_all(&mut file, format!("{text}\n").as_bytes())?;
                text
            }
            Err(error) => return Err(error),
        };
        if text.len() < 32 {
            return Err(std::io::Error::other("the token must have at least 32 characters"));
        }
        Ok(Self { hash: Sha256::digest(&text).into(), guesses: Mutex::default() })
    }

    fn is(&self, text: &str) -> bool {
        <[u8; 32]>::from(Sha256::digest(text)) == self.hash
    }

    /// Whether `given`, sent from `address`, is the token; counts wrong ones.
    pub(crate) fn admits(&self, address: IpAddr, given: Option<&str>) -> Admission {
        if given.is_some_and(|given| given.len() <= 1_024 && self.is(given.trim())) {
            Admission::Admitted
        } else if self.may_guess(address, true) {
            Admission::Refused
        } else {
            Admission::TooManyTries
        }
    }

    /// Counts a wrong token; `false` when this address must wait.
    fn may_guess(&self, address: IpAddr, wrong: bool) -> bool {
        let now = Instant::now();
        let mut guesses = self.guesses.lock();
        if guesses.len() >= ADDRESSES_MAX {
            guesses.retain(|_, (_, since)| now.duration_since(*since) < GUESS_WINDOW);
        }
        let (count, since) = guesses.entry(address).or_insert((0, now));
        if now.duration_since(*since) >= GUESS_WINDOW {
            (*count, *since) = (0, now);
        }
        *count += u32::from(wrong);
        *count <= GUESSES_MAX
    }
}

/// Lets a request through or answers it.
pub(crate) async fn check(
    State(node): State<Arc<Node>>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    request: Request,
    next: Next,
) -> Response {
    match allowed(&node, caller, &request) {
        Ok(()) => next.run(request).await,
        Err((problem, header)) => {
            let mut response = Refused(problem).into_response();
            if let Some((name, value)) = header {
                response.headers_mut().insert(name, axum::http::HeaderValue::from_static(value));
            }
            response
        }
    }
}

type Denied = (Problem, Option<(&'static str, &'static str)>);

fn allowed(node: &Node, caller: Caller, request: &Request) -> Result<(), Denied> {
    let address = match caller {
        Caller::Local(Some(uid)) if uid == 0 || uid == node.uid => return Ok(()),
        Caller::Local(_) => {
            let text = "only root and the user that runs the node may use this socket";
            return Err((Problem::new(403, "M1402", text), None));
        }
        Caller::Remote(address) => address,
    };
    let query = request.uri().query().unwrap_or_default();
    if query.split('&').any(|pair| pair.starts_with("token=") || pair.starts_with("access_token="))
    {
        let text = "a token in the address ends up in logs: send it in Authorization";
        return Err((Problem::new(400, "M1403", text), None));
    }
    let Some(token) = &node.token else {
        return Err((Problem::new(403, "M1402", "this address takes no requests"), None));
    };
    let mut headers = request.headers().get_all("authorization").iter();
    let given = match (headers.next(), headers.next()) {
        (Some(header), None) => header.to_str().ok().and_then(|text| text.strip_prefix("Bearer ")),
        _ => None,
    };
    match token.admits(address, given) {
        Admission::Admitted => return Ok(()),
        Admission::TooManyTries => {
            let problem = Problem::new(429, "M1401", "too many wrong tokens from this address");
            return Err((problem, Some(("retry-after", "60"))));
        }
        Admission::Refused => {}
    }
    let text = match given {
        Some(_) => "this is not the node's token",
        None => "the request carries no token: send Authorization: Bearer TOKEN",
    };
    let problem = Problem::new(401, "M1401", text)
        .with_hint("the token is in the file admin.token of the node's data folder");
    Err((problem, Some(("www-authenticate", "Bearer"))))
}
