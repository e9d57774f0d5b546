//! The newest records, in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mote_api::Timestamp;
use mote_api::traces::{Span, TraceSummary};

use super::call::Call;

/// The maximum number of records that are kept.
const CALLS_MAX: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct Kept(VecDeque<Arc<Call>>);

impl Kept {
    pub(super) fn push(&mut self, call: Arc<Call>) {
        self.0.push_back(call);
        if self.0.len() > CALLS_MAX {
            self.0.pop_front();
        }
    }

    pub(super) fn newest(&self, count: usize, wanted: impl Fn(&Call) -> bool) -> Vec<TraceSummary> {
        let wanted = self.0.iter().rev().filter(|call| wanted(call));
        wanted.take(count).map(|call| summary(call)).collect()
    }

    pub(super) fn spans(&self, trace: u128, wanted: impl Fn(&str) -> bool) -> Vec<Span> {
        let calls = self.0.iter().filter(|call| call.trace == trace);
        let mut spans: Vec<_> = calls
            .filter(|call| wanted(call.function.as_str()))
            .flat_map(|call| spans(call))
            .collect();
        spans.sort_by_key(|span| span.start_us);
        spans
    }
}

fn summary(call: &Call) -> TraceSummary {
    TraceSummary {
        trace: format!("{:032x}", call.trace),
        span: format!("{:016x}", call.span),
        function: call.function.to_string(),
        revision: call.revision,
        trigger: call.trigger.as_str().to_owned(),
        name: name(call),
        status: call.status,
        outcome: call.outcome().to_owned(),
        started_at: Timestamp::from_unix_us(call.began_unix_ns / 1_000),
        duration_us: call.duration_ns / 1_000,
        cold: call.is_cold,
        invocation: call.id.to_string(),
    }
}

fn name(call: &Call) -> String {
    format!("{} {}", call.method, call.path).trim().to_owned()
}

fn spans(call: &Call) -> Vec<Span> {
    let mut attributes = BTreeMap::new();
    let mut set = |key: &str, value: String| {
        if !value.is_empty() {
            attributes.insert(key.to_owned(), value);
        }
    };
    set("trigger", call.trigger.as_str().to_owned());
    set("method", call.method.clone());
    set("path", call.path.clone());
    set("status", if call.status > 0 { call.status.to_string() } else { String::new() });
    set("code", call.fault.map(|(_, code)| code.to_owned()).unwrap_or_default());
    set("cold", call.is_cold.to_string());
    let own = format!("{:016x}", call.span);
    let whole = Span {
        span: own.clone(),
        parent: call.parent.map(|parent| format!("{parent:016x}")),
        name: call.function.to_string(),
        kind: "server".to_owned(),
        function: Some(call.function.to_string()),
        revision: Some(call.revision),
        invocation: Some(call.id.to_string()),
        start_us: call.began_unix_ns / 1_000,
        duration_us: call.duration_ns / 1_000,
        status: if call.is_error() { "error" } else { "ok" }.to_owned(),
        attributes,
    };
    let parts = call.parts.iter().map(|part| Span {
        span: format!("{:016x}", call.part_span(part)),
        parent: Some(own.clone()),
        name: part.name.to_owned(),
        kind: "internal".to_owned(),
        function: None,
        revision: None,
        invocation: None,
        start_us: (call.began_unix_ns + part.begin_ns) / 1_000,
        duration_us: part.duration_ns / 1_000,
        status: "ok".to_owned(),
        attributes: BTreeMap::new(),
    });
    std::iter::once(whole).chain(parts).collect()
}
