//! The users of the broker: a file, and the commands that change it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use argon2::password_hash::{PasswordHash, PasswordHasher as _, PasswordVerifier as _, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use mote_spec::mqtt::check_filter;
use serde::Deserialize;

/// The name of the users' file in the folder of the broker.
pub(crate) const FILE_NAME: &str = "users.toml";
const USERS_MAX: usize = 10_000;
/// The most topic filters of a user, for reading and for writing each.
const FILTERS_MAX: usize = 100;
const NAME_BYTES_MAX: usize = 256;
pub(crate) const PASSWORD_BYTES_MAX: usize = 1_024;
/// The cost of checking one password. This is OWASP's smallest recommendation, because the broker
/// also runs on small machines.
const MEMORY_KIB: u32 = 19 << 10;
const PASSES: u32 = 2;

/// All users by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Users {
    /// `[users.NAME]`.
    #[serde(default)]
    pub(crate) users: BTreeMap<String, User>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct User {
    /// The hash of the password: `$argon2id$…`.
    pub(crate) password: String,
    /// Topic filters for what the user may receive.
    #[serde(default)]
    pub(crate) read: Vec<String>,
    /// Topic filters for what the user may publish.
    #[serde(default)]
    pub(crate) write: Vec<String>,
}

impl Users {
    /// Reads the file in `folder`. Without a file there are no users.
    pub(crate) fn load(folder: &Path) -> io::Result<Self> {
        let path = folder.join(FILE_NAME);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        Self::parse(&text).map_err(io::Error::other)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let all: Self = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        if all.users.len() > USERS_MAX {
            return Err(format!("more than {USERS_MAX} users"));
        }
        for (name, user) in &all.users {
            user.mistake(name).map_or(Ok(()), |text| Err(format!("user {name:?}: {text}")))?;
        }
        Ok(all)
    }

    fn render(&self) -> String {
        let mut text =
            String::from("# Users of the MQTT broker. `mote mqtt users` changes this file.\n");
        for (name, user) in &self.users {
            let quoted = |text: &str| serde_json::to_string(text).expect("it is text");
            let list = |filters: &[String]| {
                let quoted: Vec<_> = filters.iter().map(|filter| quoted(filter)).collect();
                format!("[{}]", quoted.join(", "))
            };
            let _ = write!(
                text,
                "\n[users.{}]\npassword = {}\nread = {}\nwrite = {}\n",
                quoted(name),
                quoted(&user.password),
                list(&user.read),
                list(&user.write),
            );
        }
        text
    }

    /// Replaces the file. The new file belongs to the owner of the folder, and the broker runs as
    /// that user.
    fn save(&self, folder: &Path) -> io::Result<()> {
        let owner = std::fs::metadata(folder)?;
        let new = folder.join("users.toml.new");
        // The broker may write to this folder, so a file that is already there under this name is
        // not followed.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new();
        let mut file = file.write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(self.render().as_bytes())?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
        }
        file.sync_all()?;
        std::fs::rename(new, folder.join(FILE_NAME))?;
        std::fs::File::open(folder)?.sync_all()
    }
}

impl User {
    fn mistake(&self, name: &str) -> Option<String> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
            return Some(format!("a name has 1 to {NAME_BYTES_MAX} bytes"));
        }
        if name == crate::limits::NODE_USER {
            return Some("this name belongs to the node".to_owned());
        }
        if PasswordHash::new(&self.password).is_err() {
            return Some("password is not the hash of one; use mote mqtt users add".to_owned());
        }
        if self.read.len() > FILTERS_MAX || self.write.len() > FILTERS_MAX {
            return Some(format!("at most {FILTERS_MAX} filters for read and for write"));
        }
        self.read.iter().chain(&self.write).find_map(|filter| match check_filter(filter) {
            Err(text) => Some(format!("{filter:?}: {text}")),
            Ok(()) if filter.starts_with('$') => {
                Some(format!("{filter:?}: topics that begin with $ belong to the broker"))
            }
            Ok(()) => None,
        })
    }
}

fn hasher() -> Argon2<'static> {
    let params = Params::new(MEMORY_KIB, PASSES, 1, None).expect("the numbers are in range");
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

pub(crate) fn hash(password: &[u8]) -> io::Result<String> {
    let mut salt = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut salt)?;
    let salt = SaltString::encode_b64(&salt).map_err(io::Error::other)?;
    Ok(hasher().hash_password(password, &salt).map_err(io::Error::other)?.to_string())
}

/// Whether a password belongs to a hash. Takes some hundredths of a second.
pub(crate) fn verify(password: &[u8], hash: &str) -> bool {
    PasswordHash::new(hash).is_ok_and(|hash| hasher().verify_password(password, &hash).is_ok())
}

/// Runs `users add|list|remove` and returns the exit status. 1: the file cannot be used. 2: a
/// mistake in the arguments. 3: there is no such user.
pub(crate) fn command(folder: &Path, arguments: &[String]) -> i32 {
    match run(folder, arguments) {
        Ok(text) => {
            print!("{text}");
            0
        }
        Err(Refusal::Unknown) => 3,
        Err(Refusal::Mistake(text)) => {
            eprintln!("error: {text}");
            2
        }
        Err(Refusal::File(text)) => {
            eprintln!("error: {text}");
            1
        }
    }
}

/// Why a command failed.
enum Refusal {
    /// There is no such user.
    Unknown,
    /// An argument or the password is wrong.
    Mistake(String),
    /// The file cannot be read or written.
    File(String),
}

const USAGE: &str =
    "usage: users --folder DIR list|add|remove; the node calls it for mote mqtt users";

/// Waits until no other command is changing the file. The lock is on the folder, because the file
/// itself is replaced. It is released when the returned handle is dropped.
fn alone(folder: &Path) -> io::Result<std::fs::File> {
    let folder = std::fs::File::open(folder)?;
    rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(folder)
}

fn run(folder: &Path, arguments: &[String]) -> Result<String, Refusal> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let failed =
        |error: io::Error| Refusal::File(format!("{}: {error}", folder.join(FILE_NAME).display()));
    match words[..] {
        ["list"] => {
            let all = Users::load(folder).map_err(failed)?;
            let user = |(name, user): (&String, &User)| serde_json::json!({ "name": name, "read": user.read, "write": user.write });
            let users: Vec<_> = all.users.iter().map(user).collect();
            Ok(serde_json::json!({ "users": users }).to_string())
        }
        ["remove", name] => {
            let _turn = alone(folder).map_err(failed)?;
            let mut all = Users::load(folder).map_err(failed)?;
            all.users.remove(name).ok_or(Refusal::Unknown)?;
            all.save(folder).map_err(failed)?;
            Ok(String::new())
        }
        ["add", name, ref rest @ ..] => {
            let mut user = User { password: String::new(), read: Vec::new(), write: Vec::new() };
            for pair in rest.chunks(2) {
                match *pair {
                    ["--read", filter] => user.read.push(filter.to_owned()),
                    ["--write", filter] => user.write.push(filter.to_owned()),
                    _ => return Err(Refusal::Mistake(USAGE.to_owned())),
                }
            }
            let mut password = Vec::new();
            let most = PASSWORD_BYTES_MAX as u64 + 3;
            let read = io::stdin().take(most).read_to_end(&mut password);
            read.map_err(|error| Refusal::Mistake(format!("the password: {error}")))?;
            if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
                let text = format!("a password has 1 to {PASSWORD_BYTES_MAX} bytes");
                return Err(Refusal::Mistake(text));
            }
            user.password = hash(&password).map_err(failed)?;
            if let Some(mistake) = user.mistake(name) {
                return Err(Refusal::Mistake(mistake));
            }
            let _turn = alone(folder).map_err(failed)?;
            let mut all = Users::load(folder).map_err(failed)?;
            all.users.insert(name.to_owned(), user);
            if all.users.len() > USERS_MAX {
                return Err(Refusal::Mistake(format!("a broker has at most {USERS_MAX} users")));
            }
            all.save(folder).map_err(failed)?;
            Ok(String::new())
        }
        _ => Err(Refusal::Mistake(USAGE.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let password = hash(b"s3cret").expect("hashed");
        assert!(verify(b"s3cret", &password) && !verify(b"s3cre", &password));
        assert!(!verify(b"s3cret", "plain"));
        let user = User { password, read: vec!["a/#".into()], write: vec!["ü \"x\"/+".into()] };
        let users = BTreeMap::from([("o'br ien\"".to_owned(), user)]);
        let all = Users { users };
        assert_eq!(Users::parse(&all.render()), Ok(all));
        assert_eq!(Users::parse(""), Ok(Users::default()));
    }

    #[test]
    fn mistakes_name_the_user() {
        let hash = hash(b"x").expect("hashed");
        for (text, expected) in [
            ("[users.a]\npassword = \"plain\"".to_owned(), "not the hash"),
            (format!("[users.a]\npassword = \"{hash}\"\nread = [\"a+\"]"), "level of its own"),
            (format!("[users.a]\npassword = \"{hash}\"\nwrite = [\"$SYS/#\"]"), "belong to"),
            (
                format!("[users.\"{}\"]\npassword = \"{hash}\"", crate::limits::NODE_USER),
                "the node",
            ),
            ("[users.a]\npasswort = \"x\"".to_owned(), "passwort"),
        ] {
            let error = Users::parse(&text).expect_err(&text);
            assert!(error.contains(expected), "{error}");
        }
    }
}
