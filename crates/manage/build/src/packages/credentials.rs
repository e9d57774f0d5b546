//! Decides which part of the node's registry configuration is visible to an installation for a
//! function in a namespace. The owner of such a function does not run the node, so the installation
//! must not see any credential. The installation sees only settings that never contain one, and
//! addresses without user names, passwords and queries.

use crate::packages::client::Client;

/// Settings that are let through, in the spelling of pip's and npm's files. For npm,
/// `@SCOPE:registry` is let through as well.
const PIP: &[&str] = &[
    "cert",
    "default-timeout",
    "disable-pip-version-check",
    "extra-index-url",
    "find-links",
    "index-url",
    "no-binary",
    "no-index",
    "only-binary",
    "pre",
    "prefer-binary",
    "retries",
    "timeout",
    "trusted-host",
];
const NPM: &[&str] = &[
    "ca",
    "ca[]",
    "cafile",
    "fetch-retries",
    "fetch-retry-factor",
    "fetch-retry-maxtimeout",
    "fetch-retry-mintimeout",
    "fetch-timeout",
    "legacy-peer-deps",
    "maxsockets",
    "registry",
    "strict-ssl",
];

/// A configuration file: its path inside the sandbox, the variable that names it, and its text.
type ConfigFile<'a> = (&'a str, Option<&'a str>, String);

/// Removes what may be a credential from variables and files. `prefixes` are those of the client's
/// variables. Other variables stay unchanged, because no client sees them.
pub(crate) fn leave_out(
    client: Client,
    prefixes: &[&str],
    vars: &mut Vec<(String, String)>,
    files: &mut [ConfigFile<'_>],
) {
    vars.retain_mut(|(name, value)| {
        let Some(setting) = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)) else {
            return true;
        };
        // If GOPROXY had no value, Go would fetch modules from any host.
        let kept = without_credentials(client, value)
            .or_else(|| (name == "GOPROXY").then(|| "off".to_owned()));
        let Some(kept) = kept else { return false };
        *value = kept;
        is_let_through(client, setting)
    });
    for (.., text) in files {
        let mut kept = String::new();
        let mut in_kept = false;
        for line in text.lines() {
            let trimmed = line.trim();
            if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
                continue;
            }
            // In pip's files, further values of a setting are in the indented lines below it.
            let is_further = client == Client::Pip
                && line.starts_with([' ', '\t'])
                && (!trimmed.contains(['=', ':'])
                    || ["http://", "https://"].iter().any(|start| trimmed.starts_with(start)));
            let is_section = client == Client::Pip && trimmed.starts_with('[');
            let end = if client == Client::Pip { &['=', ':'][..] } else { &['='] };
            let end = if is_further { 0 } else { line.find(end).unwrap_or(line.len()) };
            let (setting, value) = line.split_at(end);
            in_kept = match is_further {
                true => in_kept,
                false => is_section || is_let_through(client, setting.trim()),
            };
            if in_kept && let Some(value) = without_credentials(client, value) {
                kept.extend([setting, &value, "\n"]);
            }
        }
        *text = kept;
    }
}

fn is_let_through(client: Client, setting: &str) -> bool {
    let setting = setting.to_ascii_lowercase().replace('_', "-");
    let setting = setting.trim_start_matches('-');
    match client {
        Client::Pip => PIP.contains(&setting),
        Client::Npm => {
            let scope = setting.strip_prefix('@').and_then(|rest| rest.strip_suffix(":registry"));
            NPM.contains(&setting) || scope.is_some_and(|scope| !scope.contains([':', '/']))
        }
        // For Go, the prefixes are the complete names of its variables.
        Client::Go => true,
    }
}

/// Removes user names, passwords and queries from all addresses in a value. Returns `None` if an
/// `@` is left, because a password in a form that this function does not recognise may precede the
/// `@`.
fn without_credentials(client: Client, value: &str) -> Option<String> {
    // A password may contain any character that does not separate addresses.
    let is_end = |c: char| match client {
        Client::Pip => c.is_whitespace(),
        Client::Npm => false,
        Client::Go => matches!(c, ',' | '|'),
    };
    let mut rest = value;
    let mut kept = String::new();
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        let (address, further) = after.split_at(after.find(is_end).unwrap_or(after.len()));
        let (authority, path) =
            address.split_at(address.find(['/', '?', '#']).unwrap_or(address.len()));
        if before.contains('@') || path.contains('@') {
            return None;
        }
        kept.push_str(before);
        kept.push_str(authority.rsplit('@').next().unwrap_or_default());
        kept.push_str(path.split(['?', '#']).next().unwrap_or_default());
        rest = further;
    }
    (!rest.contains('@')).then(|| kept + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(client: Client, text: &str) -> String {
        let mut files = [("/etc/x", None, text.to_owned())];
        leave_out(client, &[], &mut Vec::new(), &mut files);
        let [(.., text)] = files;
        text
    }

    #[test]
    fn npm_sees_registries_and_no_credentials() {
        let text = "\
registry=https://me:word1@npm.example/all/?token=word2
@mine:registry = https://npm.example/mine/
//npm.example/:_authToken=word3
//npm.example/:_password=word4
//npm.example/:registry=word5
_auth=word6
_authToken = word7
username=word8
email=word9@example.com
//npm.example/:certfile=/word10
key=\"word11\"
cert=\"word12\"
; registry=word13
@a:registry=https://me:wo rd,16@npm.example/a
@b:registry=https:me:word17@npm.example/b
@c:registry=https://me:1/word18@npm.example/c
@d:registry=\"https://me:word19@npm.example\"
strict-ssl=false
https-proxy=http://me:word14@proxy.example
init-author-name=word15
[registry]
";
        let expected = "\
registry=https://npm.example/all/
@mine:registry = https://npm.example/mine/
@a:registry=https://npm.example/a
@d:registry=\"https://npm.example\"
strict-ssl=false
";
        assert_eq!(file(Client::Npm, text), expected);
    }

    #[test]
    fn pip_sees_indexes_and_no_credentials() {
        let text = "\
[global]
index-url = https://me:p@ss@index.example/simple
extra_index_url:
    https://me:word@one.example/simple
    https://two.example/simple
    password = word
client-cert = /home/me/word.pem
    https://word.example
proxy = http://me:word@proxy.example
  trusted-host =
    # word
    index.example
keyring-provider = word
    word
# index-url = word
[install]
find-links = /wheels
";
        let expected = "\
[global]
index-url = https://index.example/simple
extra_index_url:
    https://one.example/simple
    https://two.example/simple
  trusted-host =
    index.example
[install]
find-links = /wheels
";
        assert_eq!(file(Client::Pip, text), expected);
    }

    #[test]
    fn variables_have_no_credentials() {
        let seen = |client, prefixes: &[&str], name: &str, value: &str| {
            let mut vars = vec![(name.to_owned(), value.to_owned())];
            leave_out(client, prefixes, &mut vars, &mut []);
            vars.pop().map(|(_, value)| value)
        };
        let pip = &["PIP_"][..];
        let npm = &["npm_config_", "NPM_CONFIG_"][..];
        let go = &["GOPROXY"][..];
        let urls = "https://a:b@one.example/s http://two.example/s?c=d";
        let clean = "https://one.example/s http://two.example/s";
        for (client, prefixes, name, value, expected) in [
            (Client::Pip, pip, "PIP_EXTRA_INDEX_URL", urls, Some(clean)),
            (Client::Pip, pip, "PIP_CLIENT_CERT", "/a", None),
            (Client::Pip, pip, "PIP_CONFIG_FILE", "/a", None),
            (
                Client::Npm,
                npm,
                "NPM_CONFIG_REGISTRY",
                "https://a@b.example",
                Some("https://b.example"),
            ),
            (
                Client::Npm,
                npm,
                "npm_config_@a:registry",
                "https://b.example",
                Some("https://b.example"),
            ),
            (Client::Npm, npm, "npm_config__authtoken", "word", None),
            (Client::Npm, npm, "npm_config_//b.example/:_authToken", "word", None),
            (
                Client::Go,
                go,
                "GOPROXY",
                "https://a:b@c.example,direct",
                Some("https://c.example,direct"),
            ),
            (Client::Go, go, "GOPROXY", "https:a:b@c.example", Some("off")),
            (Client::Go, &["GOSUMDB"], "GOSUMDB", "https:a:b@c.example", None),
            // The password of the node's own proxy stays, because no client sees it.
            (Client::Pip, pip, "HTTPS_PROXY", "http://a:b@c.example", Some("http://a:b@c.example")),
        ] {
            assert_eq!(seen(client, prefixes, name, value).as_deref(), expected, "{name}");
        }
    }
}
