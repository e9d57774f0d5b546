//! What the holder of a token may do.

use std::fmt;
use std::str::FromStr;

use super::audit::reads_calls;

/// A role. Each role includes everything that the roles before it may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Reads functions, logs, metrics and the state of the node, but no data of functions.
    Viewer,
    /// Also deploys, removes, scales and invokes functions, and manages their secrets and data.
    Deployer,
    /// Also manages keys and tokens, the broker's users, and the node's place in a cluster.
    Operator,
}

/// Paths below which only an operator may make changes.
const OF_OPERATORS: [&str; 7] =
    ["keys", "tokens", "audit", "mqtt", "cells", "journals", "namespaces"];
/// Paths below which data of functions can be read.
const DATA: [&str; 2] = ["kv", "files"];

impl Role {
    /// All roles, from the least to the most powerful one.
    pub const ALL: [Role; 3] = [Role::Viewer, Role::Deployer, Role::Operator];

    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Deployer => "deployer",
            Role::Operator => "operator",
        }
    }

    /// The least powerful role that may send a request to the management API. Unknown paths need a
    /// role, too, so that a new route is not open before it is listed here.
    pub fn for_management(reads_only: bool, path: &str) -> Role {
        let topic = path.strip_prefix("/v1/").and_then(|rest| rest.split('/').next());
        let topic = topic.unwrap_or_default();
        match reads_only {
            true if topic == "audit" => Role::Operator,
            true if DATA.contains(&topic) || reads_calls(path) => Role::Deployer,
            true => Role::Viewer,
            // Everybody may end their own session, and begin another one with the same rights.
            false if topic == "session" => Role::Viewer,
            false if OF_OPERATORS.contains(&topic) => Role::Operator,
            false => Role::Deployer,
        }
    }

    /// The least powerful role that may send a request to the API of another platform.
    pub fn for_platform(reads_only: bool) -> Role {
        if reads_only { Role::Viewer } else { Role::Deployer }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Role::ALL.into_iter().find(|role| role.as_str() == text).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_needs() {
        for (reads_only, path, role) in [
            (true, "/v1/functions", Role::Viewer),
            (true, "/v1/functions/hello/logs", Role::Viewer),
            (true, "/v1/functions/hello/recording", Role::Deployer),
            (true, "/v1/keys", Role::Viewer),
            (true, "/metrics", Role::Viewer),
            (true, "/v1/kv", Role::Deployer),
            (true, "/v1/files", Role::Deployer),
            (true, "/v1/files/hello/content", Role::Deployer),
            (true, "/v1/kv/hello/entry", Role::Deployer),
            (true, "/v1/audit", Role::Operator),
            (false, "/v1/functions/hello", Role::Deployer),
            (false, "/v1/functions/keys", Role::Deployer),
            (false, "/v1/secrets/password", Role::Deployer),
            (false, "/v1/kv/hello", Role::Deployer),
            (false, "/v1/keys/web/rotate", Role::Operator),
            (false, "/v1/tokens", Role::Operator),
            (false, "/v1/namespaces/plant", Role::Operator),
            (false, "/v1/mqtt/users/lamp", Role::Operator),
            (false, "/v1/cells", Role::Operator),
            (false, "/v1/journals/a", Role::Operator),
            (false, "/v1/session", Role::Viewer),
            (false, "/v1/session/code", Role::Viewer),
            (false, "/v1/sessions", Role::Deployer),
            (false, "/v2/new", Role::Deployer),
        ] {
            assert_eq!(Role::for_management(reads_only, path), role, "{path}");
        }
        assert!(Role::Viewer < Role::Deployer && Role::Deployer < Role::Operator);
    }

    #[test]
    fn words() {
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        assert_eq!("Operator".parse::<Role>(), Err(()));
    }
}
