//! What `mote dev` prints.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use mote_api::types::LogLine;
use mote_core::Trigger;
use mote_node::develop::{Answer, Call};

use crate::cli::difference::{difference, lines_of};
use crate::cli::output::{Output, harmless};

/// Prints lines to standard output.
#[derive(Clone)]
pub(super) struct Show {
    output: Output,
    /// Whether lines name the function.
    several: bool,
    /// For each function, the folder that replaces `/function/` in paths.
    folders: HashMap<String, String>,
}

impl Show {
    pub(super) fn new(output: Output) -> Self {
        Self { output, several: false, folders: HashMap::new() }
    }

    /// Sets where the developer has the code of a function.
    pub(super) fn set_folder(&mut self, function: String, folder: &Path) {
        let folder = match folder.to_str() {
            Some("." | "") => String::new(),
            Some("/") => "/".to_owned(),
            Some(folder) => format!("{}/", folder.trim_start_matches("./").trim_end_matches('/')),
            None => return,
        };
        self.folders.insert(function, folder);
    }

    pub(super) fn set_several(&mut self, several: bool) {
        self.several = several;
    }

    pub(super) fn line(&self, text: &str) {
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "{text}");
        let _ = out.flush();
    }

    pub(super) fn clear(&self) {
        if io::stdout().is_terminal() {
            self.line("\x1b[2J\x1b[3J\x1b[H");
        }
    }

    fn of(&self, function: &str) -> String {
        if self.several { format!("{} ", harmless(function)) } else { String::new() }
    }

    pub(super) fn done(&self, text: &str) {
        self.line(&format!("{} {}", self.output.painted("32", "live"), harmless(text)));
    }

    pub(super) fn failed(&self, text: &str) {
        self.line(&format!("{} {}", self.output.painted("31", "failed"), harmless(text)));
    }

    pub(super) fn note(&self, text: &str) {
        self.line(&self.output.painted("2", &format!("     {}", harmless(text))));
    }

    /// A call: trigger, method, path, status, time.
    pub(super) fn call(&self, call: &Call) {
        let color = match call.status {
            200..400 => "32",
            400..500 => "33",
            _ => "31",
        };
        let mut text = format!("{}{} ", self.of(call.function.as_str()), harmless(&call.method));
        text.push_str(&harmless(&call.path));
        if call.trigger != Trigger::Http {
            text.push_str(&format!(" over {}", call.trigger.as_str()));
        }
        let status = self.output.painted(color, &call.status.to_string());
        let cold = if call.is_cold { ", cold" } else { "" };
        let mut line = format!("{status}  {text}  {}{cold}", time_text(call.took_ms));
        if let Some(fault) = &call.fault {
            let fault = self.placed(call.function.as_str(), fault);
            line.push_str(&format!("\n     {}", harmless(&fault)));
        }
        self.line(&line);
    }

    /// A line that a function wrote, or that the node wrote about the function.
    pub(super) fn log(&self, line: &LogLine) {
        let color = match line.level.as_str() {
            "error" => "31",
            "warn" => "33",
            _ => "0",
        };
        let of = self.of(&line.function);
        let text = harmless(&self.placed(&line.function, &line.message));
        self.line(&self.output.painted(color, &format!("   | {of}{text}")));
    }

    /// Replaces the code's path inside the sandbox with the project's path, so that a terminal or
    /// an editor can open the file.
    pub(super) fn placed(&self, function: &str, text: &str) -> String {
        match self.folders.get(function) {
            Some(folder) => {
                text.replace("file:///function/", "/function/").replace("/function/", folder)
            }
            None => text.to_owned(),
        }
    }

    /// The answer to a repeated call, and whether it differs from `before`.
    pub(super) fn repeated(&self, call: &Call, before: Option<&Answer>, answer: &Answer) {
        let head = format!(
            "{}  {}{} {}",
            answer.status,
            self.of(call.function.as_str()),
            harmless(&call.method),
            harmless(&call.path)
        );
        match before {
            Some(before) if before == answer => {
                self.line(&format!("{} {head}  the same answer", self.again()));
            }
            Some(before) => {
                self.line(&format!("{} {head}  the answer has changed", self.again()));
                if before.status != answer.status {
                    self.line(&format!("     status {} was {}", answer.status, before.status));
                }
                let lines = |answer| self.text_of(call.function.as_str(), answer);
                for line in difference(&lines(before), &lines(answer), &self.output) {
                    self.line(&line);
                }
            }
            None => {
                self.line(&format!("{} {head}", self.again()));
                for line in self.text_of(call.function.as_str(), answer) {
                    self.line(&format!("     {}", harmless(&line)));
                }
            }
        }
    }

    /// An answer as lines, or why the call failed.
    fn text_of(&self, function: &str, answer: &Answer) -> Vec<String> {
        match &answer.fault {
            Some(fault) => self.placed(function, fault).lines().map(str::to_owned).collect(),
            None => lines_of(&answer.body),
        }
    }

    fn again(&self) -> String {
        self.output.painted("36", "again")
    }
}

/// A short time with one decimal.
pub(super) fn time_text(ms: f64) -> String {
    if ms < 1_000.0 { format!("{ms:.1} ms") } else { format!("{:.1} s", ms / 1_000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Global;

    #[test]
    fn places_of_the_sandbox_become_those_of_the_project() {
        let mut show = Show::new(Output::new(&Global::default()));
        for (name, folder) in [("here", "."), ("attic", "./attic/"), ("far", "/srv/x")] {
            show.set_folder(name.to_owned(), folder.as_ref());
        }
        let line = "File \"/function/app.py\", line 3";
        assert_eq!(show.placed("here", line), "File \"app.py\", line 3");
        assert_eq!(show.placed("attic", line), "File \"attic/app.py\", line 3");
        let line = "at file:///function/index.mjs:3:9";
        assert_eq!(show.placed("far", line), "at /srv/x/index.mjs:3:9");
        assert_eq!(show.placed("unknown", line), line);
    }
}
