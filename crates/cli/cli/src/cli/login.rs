//! `mote login` and `mote logout`. The token of a node is kept in a file that only this user can read,
//! and `nodes.toml` gives the node a name.

use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::fleet::edit::{self, Entry};
use crate::fleet::files::replace;
use crate::fleet::names::{Named, Names, is_name};
use mote_api::client::{ClientError, Endpoint};
use mote_node::settings::Given;
use mote_tls::fingerprint_in;
use rustix::fs::{FlockOperation, flock};

use super::args::{Global, Login, Logout};
use super::failure::Failure;
use super::input;
use super::nodes::{client_of, nodes_file, read_text, variable};
use super::output::{Output, harmless};

/// `mote login`: sends a request to the node with the token, and keeps the token and the name only if
/// the node accepts it.
pub(super) async fn login(args: &Login, global: &Global, output: &Output) -> Result<(), Failure> {
    let endpoint = Endpoint::parse(&args.address, None).map_err(ClientError::from)?;
    let Endpoint::Tcp { authority, .. } = &endpoint else {
        let text = format!("{}: a socket needs no token", harmless(&args.address));
        return Err(Failure::new("M0101", text).with_hint("write https://HOST:PORT"));
    };
    if endpoint.is_readable() {
        output.warn("without https:// everyone on the way can read the token");
    }
    let name = match &args.name {
        Some(name) => name.clone(),
        None => name_of(authority),
    };
    // Other commands would read a name that begins with `-` as a flag.
    if !is_name(&name) || name.starts_with('-') {
        let text = format!("{} cannot be the name of a node", harmless(&name));
        return Err(Failure::new("M0101", text).with_hint("use letters, digits, `-` and `_`"));
    }
    NodesFile::open()?.check_name(&name, &args.address)?;
    // The values of the variables are kept as well, so that later commands do not need the variables.
    let is_told = args.fingerprint.is_some() || args.ca.is_some();
    let told = |name| variable(name).filter(|_| !is_told);
    let fingerprint = args.fingerprint.clone().or_else(|| told("MOTE_FINGERPRINT"));
    let ca = match &fingerprint {
        Some(_) => None,
        None => args.ca.clone().or_else(|| told("MOTE_CA").map(PathBuf::from)),
    };
    let ca = ca.as_deref().map(absolute).transpose()?;
    let token = token(args, &name).await?;
    let mut named = Named {
        name: name.clone(),
        address: args.address.clone(),
        token_file: None,
        fingerprint,
        ca,
    };
    let mut answer = client_of(&named, Some(token.clone()), true, global)?.status().await;
    if let Err(ClientError::Untrusted { reason, .. }) = &answer
        && named.fingerprint.is_none()
        && named.ca.is_none()
        && let Some(seen) = fingerprint_in(reason)
    {
        named.fingerprint = Some(agreed(&args.address, seen).await?);
        answer = client_of(&named, Some(token.clone()), true, global)?.status().await;
    }
    let status = match answer {
        // The token is valid, but does not permit its holder to see the state of the whole node.
        Err(ClientError::Problem(problem)) if problem.code == "M1408" => None,
        answer => Some(answer?),
    };
    keep(&named, &token)?;
    let Some(status) = status else {
        let shown = harmless(&name);
        output.say(&format!("{shown} is kept with a token for one namespace; use --node {shown}"));
        return Ok(());
    };
    output.result(&status, &[&name], || {
        let shown = harmless(&name);
        format!(
            "{shown} is {}, mote {}; use it with --node {shown}, or set MOTE_NODE={shown}\n",
            harmless(&args.address),
            harmless(&status.version)
        )
    })
}

/// `mote logout`: removes nodes from `nodes.toml`, and the tokens that `mote login` has kept.
pub(super) fn logout(args: &Logout, output: &Output) -> Result<(), Failure> {
    for name in &args.names {
        let file = NodesFile::open_alone()?;
        let Some(node) = file.names.nodes().find(|node| node.name == *name) else {
            let text = format!("no node is called {}", harmless(name));
            let hint = format!("mote nodes lists those in {}", file.path.display());
            return Err(Failure::new("M0101", text).with_hint(hint));
        };
        let own = file.token_path(name);
        let is_own = node.token_file.as_deref() == Some(own.as_path());
        let text = edit::without(&file.text, name).map_err(|error| file.unreadable(&error.0))?;
        file.write(&text)?;
        if is_own {
            match std::fs::remove_file(&own) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Failure::of_file("M0102", &own.display().to_string(), &error));
                }
                _ => {}
            }
        }
        output.say(&format!(
            "{} is forgotten; its token stays valid until an operator revokes it",
            harmless(name)
        ));
    }
    Ok(())
}

/// The file `nodes.toml`, as it is before a change.
struct NodesFile {
    path: PathBuf,
    text: String,
    names: Names,
    /// The folder of the file. It is locked while the file is changed, and the lock ends when this
    /// value is dropped.
    _lock: Option<File>,
}

impl NodesFile {
    /// Returns the path of the file. If it is a link, returns the path of its target, so that the link
    /// is kept.
    fn path() -> PathBuf {
        let (path, _) = nodes_file(&Given::from_process(Vec::new(), None));
        std::fs::canonicalize(&path).unwrap_or(path)
    }

    fn open() -> Result<Self, Failure> {
        let path = Self::path();
        let text = match read_text(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(Failure::of_file("M0102", &path.display().to_string(), &error));
            }
        };
        let names = Names::parse(&path, &text)?;
        Ok(Self { path, text, names, _lock: None })
    }

    /// Opens the file for a change, and waits until no other `mote login` or `mote logout` changes it.
    /// Makes the folder of the file if necessary.
    fn open_alone() -> Result<Self, Failure> {
        let path = Self::path();
        let folder = folder_of(&path);
        let locked = std::fs::create_dir_all(folder).and_then(|()| {
            let lock = File::open(folder)?;
            flock(&lock, FlockOperation::LockExclusive)?;
            Ok(lock)
        });
        let lock = locked
            .map_err(|error| Failure::of_file("M0102", &folder.display().to_string(), &error))?;
        Ok(Self { _lock: Some(lock), ..Self::open()? })
    }

    /// Returns the path at which `mote login` keeps the token of a node.
    fn token_path(&self, name: &str) -> PathBuf {
        self.path.with_file_name(token_name(name))
    }

    /// Fails if the name already belongs to a group or to a node at another address.
    fn check_name(&self, name: &str, address: &str) -> Result<(), Failure> {
        if self.names.is_group(name) {
            let text = format!("{name} is a group in {}", self.path.display());
            return Err(Failure::new("M0101", text).with_hint("choose another one with --name"));
        }
        match self.names.nodes().find(|node| node.name == name) {
            Some(node) if node.address != address => {
                let text = format!("{name} is the name of {}", harmless(&node.address));
                let hint = format!("choose another one with --name, or first: mote logout {name}");
                Err(Failure::new("M0101", text).with_hint(hint))
            }
            _ => Ok(()),
        }
    }

    fn write(&self, text: &str) -> Result<(), Failure> {
        let mode = std::fs::metadata(&self.path).map_or(0o644, |there| there.permissions().mode());
        replace(&self.path, text.as_bytes(), mode & 0o777)
            .map_err(|error| Failure::of_file("M0102", &self.path.display().to_string(), &error))
    }

    fn unreadable(&self, reason: &str) -> Failure {
        Failure::new("M0303", format!("{}: {reason}", self.path.display()))
    }
}

/// Writes the token, then the entry that refers to it. Entries that others have written since the
/// command began are kept.
fn keep(node: &Named, token: &str) -> Result<(), Failure> {
    let file = NodesFile::open_alone()?;
    file.check_name(&node.name, &node.address)?;
    let ca = node.ca.as_ref().map(|path| path.to_string_lossy());
    let token_file = token_name(&node.name);
    let entry = Entry {
        name: &node.name,
        address: &node.address,
        token_file: &token_file,
        fingerprint: node.fingerprint.as_deref(),
        ca: ca.as_deref(),
    };
    let text = edit::with(&file.text, &entry).map_err(|error| file.unreadable(&error.0))?;
    // Before writing, checks that the new text can be read again.
    Names::parse(&file.path, &text)?;
    let failed = |path: &Path, error: &std::io::Error| {
        Failure::of_file("M0102", &path.display().to_string(), error)
    };
    let path = file.token_path(&node.name);
    replace(&path, format!("{token}\n").as_bytes(), 0o600)
        .map_err(|error| failed(&path, &error))?;
    file.write(&text)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

fn token_name(name: &str) -> String {
    format!("{name}.token")
}

/// Derives a name for a node that was given none. The name is the node's host, with `-` in place of
/// characters that a name cannot have.
fn name_of(authority: &str) -> String {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    host.trim_matches(['[', ']'])
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect()
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::fs::canonicalize(path)
        .map_err(|error| Failure::of_file("M0102", &path.display().to_string(), &error))
}

/// Reads the token from a file, from standard input, or from the user at the terminal, which does not
/// show the token.
async fn token(args: &Login, name: &str) -> Result<String, Failure> {
    let missing = || {
        Failure::new("M0101", format!("no token for {}", harmless(name)))
            .with_hint("an operator makes one on the node: mote token create NAME --role ROLE")
    };
    let text = if args.token_file.is_none() && std::io::stdin().is_terminal() {
        let question = format!("Token for {}: ", harmless(&args.address));
        // The token is read on another thread, so that Ctrl-C works while the command waits for it.
        let asked = tokio::task::spawn_blocking(move || rpassword::prompt_password(question));
        asked.await.map_err(std::io::Error::other).and_then(|read| read)?
    } else {
        input::read(args.token_file.as_deref(), missing).await?
    };
    let token = text.trim();
    let is_header = token.bytes().all(|byte| byte.is_ascii_graphic());
    match token.is_empty() || !is_header {
        false => Ok(token.to_owned()),
        true => Err(missing()),
    }
}

/// Asks whether a certificate that no authority has signed belongs to the node. Returns its fingerprint
/// if the user agrees.
async fn agreed(address: &str, seen: &str) -> Result<String, Failure> {
    let refused = || {
        let text =
            format!("{}: the certificate is not trusted (SHA-256 {seen})", harmless(address));
        Failure::new("M0208", text).with_hint(format!(
            "compare it with the one that the node printed when it started; if they are equal, add \
             --fingerprint {seen}"
        ))
    };
    if !std::io::stdin().is_terminal() {
        return Err(refused());
    }
    let question = format!(
        "No authority that this machine trusts has signed the certificate of {}.\nIts SHA-256 is \
         {seen}\nIs that the one that the node printed when it started?",
        harmless(address)
    );
    match input::says_yes(&question).await? {
        true => Ok(seen.to_owned()),
        false => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_becomes_a_name() {
        for (authority, name) in [
            ("kitchen:6680", "kitchen"),
            ("pi.lan:6680", "pi-lan"),
            ("10.0.0.7:6680", "10-0-0-7"),
            ("[fe80::1]:6680", "fe80--1"),
        ] {
            assert_eq!(name_of(authority), name);
            assert!(is_name(name));
        }
    }
}
