//! The settings for certificates that the node orders from an authority.

use std::ffi::OsString;
use std::net::IpAddr;

use super::Check;

/// The other settings: each with its flag of `mote-acme`, and the text that `mote config show`
/// prints if it is not set. The first one, the authority, is passed even if it is not set.
const OTHERS: [(&str, &str, &str); 5] = [
    ("acme_directory", "--directory", "https://acme-v02.api.letsencrypt.org/directory"),
    ("acme_ca", "--ca", "the system's certificates"),
    ("acme_contact", "--contact", "none"),
    ("acme_external_account", "--external-account", "none"),
    ("acme_profile", "--profile", "that of the authority"),
];
/// The maximum number of names in one certificate, which is the limit of Let's Encrypt.
const NAMES_MAX: usize = 100;

impl Check<'_> {
    /// The arguments that tell `mote-acme` what to order.
    pub(super) fn acme(&mut self, has_https: bool) -> Option<Vec<OsString>> {
        let names = self.acme_names();
        let mut words = Vec::new();
        for (key, flag, default) in OTHERS {
            let Some(text) = self.given(key) else {
                self.settle(key, default.to_owned());
                continue;
            };
            let fits = match key {
                "acme_directory" => {
                    text.len() > "https://".len()
                        && text.starts_with("https://")
                        && !text.contains(' ')
                }
                "acme_contact" => text.contains('@') && !text.contains([' ', ',', ':']),
                _ => !text.is_empty(),
            };
            if !fits || text.contains(|c: char| c.is_control()) {
                let wanted = match key {
                    "acme_directory" => "a URL that begins with https://",
                    "acme_contact" => "one mail address",
                    "acme_profile" => "the name of a profile",
                    _ => "a path",
                };
                self.fault(key, wanted, None);
            } else if names.is_none() {
                self.fault(key, "only with acme", None);
            }
            words.extend([flag.into(), text.into()]);
        }
        let names = names?;
        if !has_https {
            self.fault("acme", "only with https", Some("turn on https".to_owned()));
        }
        if self.given(OTHERS[0].0).is_none() {
            words.extend([OTHERS[0].1, OTHERS[0].2].map(OsString::from));
        }
        words.extend(names.into_iter().map(OsString::from));
        Some(words)
    }

    /// The names for the certificate, each in one standard spelling.
    fn acme_names(&mut self) -> Option<Vec<String>> {
        let Some(given) = self.given("acme") else {
            self.settle("acme", "none".to_owned());
            return None;
        };
        let names: Vec<_> = given.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
        if let Some(wrong) = names.iter().find(|name| !is_name(name)) {
            let hint = if wrong.starts_with("*.") {
                "the node cannot order a certificate for *.NAME; name each host"
            } else {
                "names are like plant.example.com, with xn-- for other letters; addresses have no port and no brackets"
            };
            self.fault("acme", "names of hosts, with commas", Some(hint.to_owned()));
        } else if names.len() > NAMES_MAX {
            self.fault("acme", &format!("at most {NAMES_MAX} names"), None);
        } else {
            self.settle("acme", names.join(","));
        }
        let one_writing = |name: String| name.parse().map_or(name, |ip: IpAddr| ip.to_string());
        let mut names: Vec<_> = names.into_iter().map(one_writing).collect();
        names.sort_unstable();
        names.dedup();
        Some(names)
    }
}

/// Whether the text is an IP address or the name of a host (RFC 1123, 2.1).
fn is_name(text: &str) -> bool {
    if text.parse::<IpAddr>().is_ok() {
        return true;
    }
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253
        && text.split('.').all(is_label)
        && text.contains(|c: char| c.is_ascii_alphabetic())
}
