//! Lines as the messages of the OpenTelemetry protocol (open-telemetry/opentelemetry-proto,
//! `logs/v1/logs.proto`), and the sink that sends them to a collector.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mote_core::trace::TraceParent;
use mote_engine::Tracer;
use mote_engine::revision::logs::{LogLevel, LogLine, LogSink, LogSource};
use mote_spec::FunctionName;
use prost::Message;
use tokio::runtime::Handle;

use crate::otlp::collector::{Collector, Record};
use crate::otlp::{AnyValue, KeyValue, Resource, Scope, Value, text};

/// The flag of a line whose trace is recorded.
const SAMPLED: u32 = 1;

#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_logs: Vec<ResourceLogs>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_logs: Vec<ScopeLogs>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    log_records: Vec<LogRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct LogRecord {
    #[prost(fixed64, tag = "1")]
    time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    severity_number: i32,
    #[prost(string, tag = "3")]
    severity_text: String,
    #[prost(message, optional, tag = "5")]
    body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    attributes: Vec<KeyValue>,
    #[prost(fixed32, tag = "8")]
    flags: u32,
    #[prost(bytes = "vec", tag = "9")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "10")]
    span_id: Vec<u8>,
    #[prost(fixed64, tag = "11")]
    observed_time_unix_nano: u64,
}

/// A line that waits to be sent.
#[derive(Debug)]
struct Line {
    function: FunctionName,
    line: Arc<LogLine>,
    /// The place of the line's call in its trace, if the call is recorded.
    place: Option<TraceParent>,
}

/// Sends the lines of all functions to a collector.
#[derive(Debug)]
pub(crate) struct LineSender {
    collector: Collector<Line>,
    tracer: Option<Arc<dyn Tracer>>,
}

impl LineSender {
    pub(crate) fn start(url: String, tracer: Option<Arc<dyn Tracer>>, runtime: &Handle) -> Self {
        Self { collector: Collector::start(url, runtime), tracer }
    }

    /// Sends the waiting lines. Returns after `wait` at the latest.
    pub(crate) async fn flush(&self, wait: Duration) {
        let _ = tokio::time::timeout(wait, self.collector.flush()).await;
    }
}

impl LogSink for LineSender {
    fn take(&self, function: &FunctionName, line: &Arc<LogLine>) {
        let place = self.tracer.as_ref().zip(line.invocation);
        let place = place.and_then(|(tracer, invocation)| tracer.place(invocation));
        self.collector.send(Line { function: function.clone(), line: line.clone(), place });
    }
}

impl Record for Line {
    const NAME: &'static str = "lines of functions";
    const HTTP_PATH: &'static str = "/v1/logs";
    const GRPC_PATH: &'static str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
    /// Many services take only traces.
    const IS_OPTIONAL: bool = true;

    fn bytes(&self) -> usize {
        size_of::<LogLine>() + self.line.text.len()
    }

    fn message(batch: &[Self]) -> Vec<u8> {
        let mut services: BTreeMap<(&str, u64), Vec<LogRecord>> = BTreeMap::new();
        for line in batch {
            let service = (line.function.as_str(), line.line.revision);
            services.entry(service).or_default().push(record(line));
        }
        let resource_logs = services.into_iter().map(|((function, revision), log_records)| {
            let scope_logs = vec![ScopeLogs { scope: Some(Scope::own()), log_records }];
            ResourceLogs { resource: Some(Resource::new(function, revision)), scope_logs }
        });
        ExportRequest { resource_logs: resource_logs.collect() }.encode_to_vec()
    }
}

fn record(Line { line, place, .. }: &Line) -> LogRecord {
    let (severity_number, severity) = match line.level {
        LogLevel::Debug => (5, "DEBUG"),
        LogLevel::Info => (9, "INFO"),
        LogLevel::Warn => (13, "WARN"),
        LogLevel::Error => (17, "ERROR"),
    };
    let mut attributes = vec![match line.source {
        LogSource::Stdout => text("log.iostream", "stdout"),
        LogSource::Stderr => text("log.iostream", "stderr"),
        LogSource::Log => text("mote.stream", "log"),
        LogSource::Platform => text("mote.stream", "platform"),
    }];
    if line.instance > 0 {
        attributes.push(text("faas.instance", line.instance.to_string()));
    }
    attributes.extend(line.invocation.map(|id| text("faas.invocation_id", id.to_string())));
    // If a call is recorded only because it fails, the call's id is also the id of its trace.
    let own = line.invocation.map(|id| id.0.max(1));
    let trace = place.map(|place| place.trace).or(own);
    LogRecord {
        time_unix_nano: line.unix_us * 1_000,
        observed_time_unix_nano: line.unix_us * 1_000,
        severity_number,
        severity_text: severity.to_owned(),
        body: Some(AnyValue { value: Some(Value::Text(line.text.clone())) }),
        attributes,
        flags: if place.is_some() { SAMPLED } else { 0 },
        trace_id: trace.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default(),
        span_id: place.map(|place| place.span.to_be_bytes().to_vec()).unwrap_or_default(),
    }
}
