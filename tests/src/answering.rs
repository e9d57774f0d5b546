//! A helper program that answers a test's questions, with libraries of other languages that sign or
//! encode.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

/// The program. It reads one JSON question per line, and answers each with one line of JSON. It
/// ends when this is dropped.
pub struct Answering {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Answering {
    /// Starts the program. Panics if it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = piped.spawn().expect("the program starts");
        let input = process.stdin.take().expect("piped");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        Self { process, input, output }
    }

    /// Asks one question and blocks until the answer arrives. Panics if there is no answer.
    pub fn ask(&mut self, question: &Value) -> Value {
        writeln!(self.input, "{question}").expect("written");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).expect("JSON")
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
