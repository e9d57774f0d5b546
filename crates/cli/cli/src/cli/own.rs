//! The command lines that `mote` carries out itself: `mote up` and `mote version`.
//!
//! This module knows their flags and nothing about help or mistakes. The program `mote-tools` has
//! the whole parser (`super::args`), and `mote` leaves to it every command line that is not
//! understood here. A test compares the two.

use std::ffi::OsString;
use std::path::PathBuf;

use mote_node::settings::SETTINGS;

use super::args::{Format, Global, When};

/// The longest `--timeout` in seconds, as in `super::args`.
const TIMEOUT_SECONDS_MAX: u64 = 86_400;

/// A command line that needs no other program.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) global: Global,
    pub(super) verb: OwnVerb,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum OwnVerb {
    /// Start the node.
    Up {
        /// Settings by their keys.
        flags: Vec<(&'static str, String)>,
        /// The configuration file.
        config: Option<PathBuf>,
        /// Folders or files to deploy at start.
        deploy: Vec<PathBuf>,
    },
    /// Print the version as text.
    Version,
}

/// Reads a command line without the name of the program. Returns `None` if it asks for help, has
/// another verb, or could be a mistake.
pub(super) fn read(arguments: impl IntoIterator<Item = OsString>) -> Option<Own> {
    let mut line = Line::default();
    let mut arguments = arguments.into_iter();
    let mut only_words = false;
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--") if !only_words && line.verb.is_some() => only_words = true,
            Some(text) if !only_words && text.starts_with("--") => {
                let (name, value) = match text[2..].split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (&text[2..], None),
                };
                line.long(name, value, &mut arguments)?;
            }
            Some(text) if !only_words && text.starts_with('-') && text != "-" => {
                line.short(&text[1..], &mut arguments)?;
            }
            _ => line.word(argument)?,
        }
    }
    line.whole()
}

/// What was read so far.
#[derive(Default)]
struct Line {
    verb: Option<&'static str>,
    global: Global,
    /// The flags that were read, because a flag that is repeated is a mistake.
    seen: Vec<&'static str>,
    settings: Vec<(&'static str, String)>,
    config: Option<PathBuf>,
    deploy: Vec<PathBuf>,
}

impl Line {
    fn word(&mut self, word: OsString) -> Option<()> {
        match self.verb {
            None => {
                self.verb = Some(["up", "version"].into_iter().find(|verb| word == **verb)?);
            }
            Some("up") if !word.is_empty() => self.deploy.push(word.into()),
            Some(_) => return None,
        }
        Some(())
    }

    fn long(
        &mut self,
        name: &str,
        value: Option<String>,
        rest: &mut impl Iterator<Item = OsString>,
    ) -> Option<()> {
        if matches!(name, "quiet" | "verbose" | "lan") {
            return value.is_none().then(|| self.switch(name))?;
        }
        let value = match value {
            Some(value) => value,
            None => next_value(rest)?,
        };
        let key = name.replace('-', "_");
        match name {
            "output" => self.output(&value),
            "color" => {
                self.once("color")?;
                let all = [("auto", When::Auto), ("always", When::Always), ("never", When::Never)];
                self.global.color = named(&all, &value)?;
                Some(())
            }
            "node" => {
                self.once("node")?;
                self.global.node = Some(value);
                Some(())
            }
            "namespace" => {
                self.once("namespace")?;
                self.global.namespace = Some(value);
                Some(())
            }
            "timeout" => {
                self.once("timeout")?;
                let seconds = value.parse().ok();
                let in_range = |seconds: &u64| (1..=TIMEOUT_SECONDS_MAX).contains(seconds);
                self.global.timeout = Some(seconds.filter(in_range)?);
                Some(())
            }
            "config" if self.verb == Some("up") && !value.is_empty() => {
                self.once("config")?;
                self.config = Some(value.into());
                Some(())
            }
            _ if self.verb == Some("up") && !name.contains('_') => {
                let setting = SETTINGS.iter().find(|setting| setting.key == key)?;
                self.once(setting.key)?;
                self.settings.push((setting.key, value));
                Some(())
            }
            _ => None,
        }
    }

    /// Flags of one letter, of which several can share a hyphen.
    fn short(&mut self, letters: &str, rest: &mut impl Iterator<Item = OsString>) -> Option<()> {
        for (at, letter) in letters.char_indices() {
            match letter {
                'q' => self.switch("quiet")?,
                'v' => self.switch("verbose")?,
                'o' => {
                    let value = match &letters[at + 1..] {
                        "" => next_value(rest)?,
                        value => value.strip_prefix('=').unwrap_or(value).to_owned(),
                    };
                    return self.output(&value);
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// A flag without a value.
    fn switch(&mut self, name: &str) -> Option<()> {
        match name {
            "quiet" => {
                self.once("quiet")?;
                self.global.quiet = true;
            }
            "verbose" => {
                self.once("verbose")?;
                self.global.verbose = true;
            }
            _ if self.verb == Some("up") => {
                self.once("lan")?;
                self.settings.push(("lan", "true".to_owned()));
            }
            _ => return None,
        }
        Some(())
    }

    fn output(&mut self, value: &str) -> Option<()> {
        self.once("output")?;
        let all = [
            ("table", Format::Table),
            ("json", Format::Json),
            ("jsonl", Format::Jsonl),
            ("yaml", Format::Yaml),
            ("name", Format::Name),
        ];
        self.global.output = named(&all, value)?;
        Some(())
    }

    /// Notes a flag; `None` if it was there before.
    fn once(&mut self, flag: &'static str) -> Option<()> {
        (!self.seen.contains(&flag)).then(|| self.seen.push(flag))
    }

    fn whole(self) -> Option<Own> {
        let Self { verb, global, settings, config, deploy, .. } = self;
        let verb = match verb? {
            "up" => OwnVerb::Up { flags: settings, config, deploy },
            // The other formats need code that a node does not have.
            _ if global.output == Format::Table => OwnVerb::Version,
            _ => return None,
        };
        Some(Own { global, verb })
    }
}

/// The value of a flag that is an argument of its own. One that looks like a flag is a mistake.
fn next_value(rest: &mut impl Iterator<Item = OsString>) -> Option<String> {
    let value = rest.next()?.into_string().ok()?;
    (!value.starts_with('-') || value == "-").then_some(value)
}

fn named<T: Copy>(all: &[(&str, T)], name: &str) -> Option<T> {
    all.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::{Args, Verb};
    use crate::cli::config_verb;

    /// A verb as the whole parser reads it.
    fn whole(arguments: &[&str]) -> Option<OwnVerb> {
        let args = Args::try_parse_from([&["mote"][..], arguments].concat()).ok()?;
        match args.verb {
            Verb::Up(up) => {
                let mut flags = config_verb::given(&up.node);
                flags.sort_unstable();
                Some(OwnVerb::Up { flags, config: up.node.config, deploy: up.deploy })
            }
            Verb::Version if args.global.output == Format::Table => Some(OwnVerb::Version),
            _ => None,
        }
    }

    fn own(arguments: &[&str]) -> Option<OwnVerb> {
        let own = read(arguments.iter().map(OsString::from))?;
        match own.verb {
            OwnVerb::Up { mut flags, config, deploy } => {
                flags.sort_unstable();
                Some(OwnVerb::Up { flags, config, deploy })
            }
            OwnVerb::Version => Some(OwnVerb::Version),
        }
    }

    fn check(line: &str) {
        let arguments: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let arguments: Vec<&str> =
            arguments.iter().map(|word| if *word == "''" { "" } else { *word }).collect();
        assert_eq!(own(&arguments), whole(&arguments), "{line}");
    }

    #[test]
    fn every_flag_of_up_is_read_as_the_whole_parser_reads_it() {
        let command = crate::command();
        let up = command.find_subcommand("up").unwrap();
        let mut seen = 0;
        for flag in up.get_arguments().chain(command.get_arguments()) {
            let Some(name) = flag.get_long().filter(|name| !matches!(*name, "help" | "version"))
            else {
                continue;
            };
            seen += 1;
            let value = match name {
                "output" => "json",
                "color" => "never",
                _ => "7",
            };
            let short = flag.get_short().unwrap_or('q');
            for line in [
                format!("up --{name}"),
                format!("up --{name} {value}"),
                format!("up --{name}={value} path"),
                format!("--{name} {value} up"),
                format!("--{name} up"),
                format!("up -{short} {value}"),
                format!("up -v{short}{value}"),
                format!("up -{short}={value}"),
                format!("up --{name}="),
                format!("up --{name} ''"),
                format!("up --{name} -x"),
                format!("up --{name}=-x"),
                format!("up --{name} -"),
                format!("up --{name} {value} --{name} {value}"),
                format!("version --{name} {value}"),
            ] {
                check(&line);
            }
        }
        assert!(seen > SETTINGS.len(), "only {seen} flags were found");
    }

    #[test]
    fn everything_else_is_left_to_the_whole_parser() {
        for line in [
            "",
            "up",
            "up a b",
            "up -- --http",
            "up a -- b",
            "up -",
            "up ''",
            "up --http",
            "up -h",
            "up --help",
            "up --what",
            "up --what=1",
            "up --coap_tcp on",
            "up --timeout 0",
            "up --timeout 86401",
            "up --timeout x",
            "up --output what",
            "up --color Auto",
            "up -qv",
            "up -qq",
            "up -x",
            "up --lan",
            "up --lan=true",
            "up --lan --lan",
            "up --lan true",
            "-q up",
            "-ojson up",
            "version",
            "version a",
            "version -q",
            "version -o json",
            "version --http :1",
            "version --lan",
            "help",
            "help up",
            "list",
            "ls",
            "--version",
            "-V",
            "-- up",
            "--lan up",
            "Up",
            "upp",
        ] {
            check(line);
        }
    }
}
