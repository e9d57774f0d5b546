//! The failure with which a command ends.

use mote_api::ClientError;
use mote_api::error::explain;
use mote_api::exit;
use mote_spec::toml_reader::{Mistake, Mistakes};
use mote_store::PackError;

/// The management socket of a node that root started.
const ROOT_SOCKET: &str = "/run/mote/mote.sock";

/// The error code that a node returns if it cannot use the registry of an image.
const REGISTRY_UNUSABLE: &str = "M1503";

/// An error in the form in which the command line shows it: a code, what failed on which object, and a
/// hint.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) exit: u8,
    /// The lines to print. They are empty if the command ends without a message.
    pub(super) mistakes: Vec<Mistake>,
}

impl Failure {
    /// Makes a failure with one error. The catalogue determines the exit code.
    pub(super) fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self {
            exit: explain(code).map_or(exit::FAILED, |row| row.exit),
            mistakes: vec![Mistake { line: 0, code, text: text.into(), hint: None }],
        }
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        if let Some(mistake) = self.mistakes.last_mut() {
            mistake.hint = Some(hint.into());
        }
        self
    }

    /// Describes in plain words why a file cannot be read or written.
    pub(super) fn of_file(code: &'static str, shown: &str, error: &std::io::Error) -> Self {
        let text = error.to_string();
        let words = text.split(" (os error").next().unwrap_or("");
        Self::new(code, format!("{shown}: {}", words.to_lowercase()))
    }

    /// Describes an error of the client, without consuming the error.
    pub(super) fn of_client(error: &ClientError) -> Self {
        // A newer node may send a code that this program does not know. It is shown under a general
        // code, with the original code in the text.
        let known = explain(error.code());
        let code = known.map_or("M0202", |row| row.code);
        let text = match (error, known) {
            (ClientError::Unreachable { endpoint, reason }, _) if is_denied(reason) => {
                format!("this user may not open {endpoint}, the socket of a node")
            }
            (_, Some(_)) => error.to_string(),
            (_, None) => format!("{} ({})", error, error.code()),
        };
        let failure = Self::new(code, text);
        match error {
            ClientError::Unreachable { endpoint, reason } => {
                failure.with_hint(unreachable_hint(endpoint, reason))
            }
            ClientError::Problem(problem) => match &problem.hint {
                Some(hint) => failure.with_hint(hint.clone()),
                None => failure,
            },
            ClientError::Untrusted { reason, .. } if reason.contains("it has expired") => failure
                .with_hint(
                    "replace the certificate on the node; until then, MOTE_FINGERPRINT or fingerprint \
                     in nodes.toml with its SHA-256 trusts it all the same",
                ),
            ClientError::Untrusted { .. } => failure.with_hint(
                "compare the SHA-256 with the one that the node printed when it started. If they are \
                 equal, set MOTE_FINGERPRINT to it, or fingerprint in nodes.toml; if they differ, \
                 somebody else may answer in its place. MOTE_CA or ca names the file of an authority",
            ),
            ClientError::Address(_) => failure
                .with_hint("write https://HOST:PORT, http://HOST:PORT, or the path of a socket"),
            _ => failure,
        }
    }

    /// Adds the name of the node that the failure concerns.
    pub(super) fn on_node(mut self, node: &str) -> Self {
        for mistake in &mut self.mistakes {
            mistake.text = format!("{node}: {}", mistake.text);
        }
        self
    }

    /// Returns the error in the form of a part of a result.
    pub(super) fn value(&self) -> serde_json::Value {
        match self.mistakes.first() {
            Some(Mistake { code, text, hint, .. }) => {
                serde_json::json!({"code": code, "message": text, "hint": hint})
            }
            None => serde_json::Value::Null,
        }
    }

    /// Ends the command with the code `exit`, without a further message.
    pub(super) fn quiet(exit: u8) -> Self {
        Self { exit, mistakes: Vec::new() }
    }

    /// Returns whether the first mistake has this code.
    pub(super) fn is_of(&self, code: &str) -> bool {
        self.mistakes.first().is_some_and(|mistake| mistake.code == code)
    }

    /// Returns whether the error concerns only one function, so that others may still succeed.
    pub(super) fn is_of_one_function(&self) -> bool {
        let Some(first) = self.mistakes.first() else { return false };
        // If the node cannot reach a registry, only the functions with images from that registry
        // are affected.
        first.code == REGISTRY_UNUSABLE
            || !matches!(self.exit, exit::UNREACHABLE | exit::INTERRUPTED)
    }

    pub(super) fn interrupted() -> Self {
        Self::quiet(exit::INTERRUPTED)
    }
}

impl From<std::io::Error> for Failure {
    /// Reports an error in writing a result. A closed pipe is not reported as an error.
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::quiet(exit::DONE);
        }
        Self::new("M0103", format!("output: {error}"))
    }
}

impl From<Mistakes> for Failure {
    fn from(Mistakes(mistakes): Mistakes) -> Self {
        let exit = mistakes
            .first()
            .and_then(|mistake| explain(mistake.code))
            .map_or(exit::INVALID, |row| row.exit);
        Self { exit, mistakes }
    }
}

impl From<PackError> for Failure {
    fn from(error: PackError) -> Self {
        match &error {
            PackError::Io { path, source } => {
                Self::of_file(error.code(), &path.display().to_string(), source)
            }
            other => Self::new(error.code(), other.to_string()),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::of_client(&error)
    }
}

/// Whether a node could not be reached because this user may not open its socket.
pub(super) fn is_denied(reason: &str) -> bool {
    reason.to_lowercase().contains("permission denied")
}

/// The socket of a node that root may run here and that this user cannot open. `None` if this user is
/// root or has just tried that socket.
pub(super) fn socket_of_root(tried: &str) -> Option<&'static str> {
    let may_exist = || std::fs::exists(ROOT_SOCKET).unwrap_or(true);
    let is_root = rustix::process::geteuid().is_root();
    (!is_root && tried != ROOT_SOCKET && may_exist()).then_some(ROOT_SOCKET)
}

/// Suggests what to do if no node answered. The guides begin with `sudo mote up`, so a node that
/// runs as root may be running, and this user cannot reach it.
fn unreachable_hint(endpoint: &str, reason: &str) -> &'static str {
    if is_denied(reason) {
        "the node belongs to another user: use sudo, or the user that started it"
    } else if socket_of_root(endpoint).is_some() {
        "root may run a node here: use sudo        or start your own: mote up"
    } else {
        "start one: mote up        or use another: --node, MOTE_NODE"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_another_user_is_not_started_again() {
        let error = |reason: &str| ClientError::Unreachable {
            endpoint: ROOT_SOCKET.to_owned(),
            reason: reason.to_owned(),
        };
        let mistake = |reason: &str| Failure::from(error(reason)).mistakes.remove(0);
        let hint = |reason: &str| mistake(reason).hint.unwrap();
        let text = mistake("Permission denied (os error 13)").text;
        assert_eq!(text, "this user may not open /run/mote/mote.sock, the socket of a node");
        assert!(hint("Permission denied (os error 13)").contains("sudo"));
        assert!(hint("no such file").contains("start one: mote up"));
    }
}
