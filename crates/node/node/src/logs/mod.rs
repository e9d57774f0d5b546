//! The lines of all functions on disk, so that they survive a restart and a crash.
//!
//! [`queue`] takes lines from the data path, which never waits. A thread ([`writer`]) writes them to
//! files of JSON lines every [`writer::PAUSE`]. [`read`] searches these files. [`otlp`] sends lines to
//! a collector.

pub(crate) mod otlp;
mod queue;
pub(crate) mod read;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use mote_engine::revision::logs::{LogLine, LogSink};
use mote_process::clock::unix_ms;
use mote_spec::FunctionName;
use mote_store::log_files::{LogLimits, LogWriter};

use queue::Queue;

/// The folder in the data folder.
const FOLDER: &str = "logs";

/// The files of lines, and the thread that writes them.
#[derive(Debug, Clone)]
pub(crate) struct Logs {
    pub(super) dir: PathBuf,
    pub(super) limits: LogLimits,
    /// The number of the first file that this process writes. Older files contain no lines of this
    /// process.
    pub(super) own_from: u64,
    queue: Arc<Queue>,
}

impl Logs {
    /// Starts the thread that writes.
    pub(crate) fn start(data: &std::path::Path, limits: LogLimits) -> Result<Self> {
        let dir = data.join(FOLDER);
        let wrong = || format!("cannot write the functions' logs to {}", dir.display());
        let writer = LogWriter::open(&dir, limits, unix_ms()).with_context(wrong)?;
        let own_from = writer.next_number();
        let queue = Arc::new(Queue::default());
        let of_thread = queue.clone();
        std::thread::Builder::new()
            .name("mote-logs".to_owned())
            .spawn(move || writer::run(&of_thread, writer, limits))
            .context("cannot start the thread that writes logs")?;
        Ok(Self { dir, limits, own_from, queue })
    }

    /// What the engine gives its lines to.
    pub(crate) fn sink(&self) -> Arc<dyn LogSink> {
        self.queue.clone()
    }

    /// Waits, but at most for `wait`, until all lines so far are in the files. Blocks.
    pub(crate) fn flush(&self, wait: Duration) {
        self.queue.flush(wait);
    }

    /// Writes the last lines, and ends the thread. Blocks for at most `wait`.
    pub(crate) fn close(&self, wait: Duration) {
        self.queue.close(wait);
    }
}

/// Gives each line to several sinks.
#[derive(Debug)]
struct Sinks(Vec<Arc<dyn LogSink>>);

impl LogSink for Sinks {
    fn take(&self, function: &FunctionName, line: &Arc<LogLine>) {
        self.0.iter().for_each(|sink| sink.take(function, line));
    }
}

/// One sink that stands for all of these; `None` if there are none.
pub(crate) fn sink_of(mut sinks: Vec<Arc<dyn LogSink>>) -> Option<Arc<dyn LogSink>> {
    if sinks.len() > 1 { Some(Arc::new(Sinks(sinks))) } else { sinks.pop() }
}
