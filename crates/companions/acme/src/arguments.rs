//! The command line of this program. The node writes it.

use std::ffi::OsString;
use std::path::PathBuf;

/// The settings of one run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// The folder of the certificate. It must exist and be writable for the program.
    pub(crate) folder: PathBuf,
    /// The user id to which the program changes if it runs as root.
    pub(crate) uid: u32,
    /// The URL of the authority's directory (RFC 8555, 7.1.1).
    pub(crate) directory: String,
    /// A file with the certificates by which the authority's server is trusted, instead of the
    /// system's certificates.
    pub(crate) ca: Option<PathBuf>,
    /// The mail address at which the authority may contact the owner.
    pub(crate) contact: Option<String>,
    /// A file with the key that ties the account to an account elsewhere (RFC 8555, 7.3.4).
    pub(crate) external_account: Option<PathBuf>,
    /// The profile of the certificate, one of those that the authority offers.
    pub(crate) profile: Option<String>,
    /// The host names and addresses that the certificate must cover.
    pub(crate) names: Vec<String>,
}

impl Arguments {
    /// Reads `order --folder DIR --uid N --directory URL [--ca FILE] [--contact ADDRESS]
    /// [--external-account FILE] [--profile NAME] NAME…`.
    pub(crate) fn parse(mut given: impl Iterator<Item = OsString>) -> Result<Self, String> {
        if given.next().is_none_or(|verb| verb != "order") {
            return Err("the first word must be order".to_owned());
        }
        let mut all = Self::default();
        while let Some(word) = given.next() {
            let word = word.into_string().map_err(|_| "a word is not UTF-8".to_owned())?;
            let Some(flag) = word.strip_prefix("--") else {
                all.names.push(word);
                continue;
            };
            let value = given.next().ok_or_else(|| format!("--{flag} needs a value"))?;
            let text = |value: OsString| {
                value.into_string().map_err(|_| format!("the value of --{flag} is not UTF-8"))
            };
            match flag {
                "folder" => all.folder = value.into(),
                "uid" => {
                    all.uid =
                        text(value)?.parse().map_err(|_| "--uid needs a number".to_owned())?;
                }
                "directory" => all.directory = text(value)?,
                "ca" => all.ca = Some(value.into()),
                "contact" => all.contact = Some(text(value)?),
                "external-account" => all.external_account = Some(value.into()),
                "profile" => all.profile = Some(text(value)?),
                _ => return Err(format!("there is no flag --{flag}")),
            }
        }
        if all.folder.as_os_str().is_empty() || all.directory.is_empty() || all.names.is_empty() {
            return Err("--folder, --directory and a name are needed".to_owned());
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Arguments, String> {
        Arguments::parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn a_command_line_is_read_and_a_wrong_one_is_named() {
        let read =
            parse("order --folder /a --uid 7 --directory https://b --profile c d.example ::1");
        let expected = Arguments {
            folder: "/a".into(),
            uid: 7,
            directory: "https://b".to_owned(),
            profile: Some("c".to_owned()),
            names: vec!["d.example".to_owned(), "::1".to_owned()],
            ..Default::default()
        };
        assert_eq!(read, Ok(expected));
        for (text, wrong) in [
            ("", "order"),
            ("order", "are needed"),
            ("order --folder", "--folder needs a value"),
            ("order --uid x", "--uid needs a number"),
            ("order --what x", "no flag --what"),
            ("order --folder /a --directory https://b", "a name"),
        ] {
            let error = parse(text).expect_err("wrong");
            assert!(error.contains(wrong), "{error}");
        }
    }
}
