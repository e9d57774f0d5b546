//! The newest records, in memory.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use mote_api::Timestamp;
use mote_api::traces::{Span, TraceSummary};

use super::call::Call;

/// The maximum number of records of calls that did not fail.
const CALLS_MAX: usize = 3_072;
/// The same of calls that failed.
const FAILED_MAX: usize = 1_024;

/// Failed calls have their own ring, so that other calls do not displace them.
#[derive(Debug, Default)]
pub(super) struct Kept {
    calls: Ring,
    failed: Ring,
}

/// Records, oldest first. If there are too many, the namespace with the most records loses its
/// oldest one, so that no namespace displaces the records of others.
#[derive(Debug, Default)]
struct Ring {
    all: VecDeque<Arc<Call>>,
    /// The number of records of each namespace; the empty name is the default one.
    counts: HashMap<String, usize>,
}

impl Ring {
    fn push(&mut self, call: Arc<Call>, max: usize) {
        match self.counts.get_mut(namespace(&call)) {
            Some(count) => *count += 1,
            None => drop(self.counts.insert(namespace(&call).to_owned(), 1)),
        }
        self.all.push_back(call);
        if self.all.len() <= max {
            return;
        }
        let most = self.counts.iter().max_by_key(|(_, count)| **count);
        let Some(most) = most.map(|(name, _)| name.clone()) else { return };
        // Usually one of the first.
        let oldest = self.all.iter().position(|call| namespace(call) == most);
        oldest.and_then(|at| self.all.remove(at));
        // It has several records, or each namespace has only one.
        match self.counts.get_mut(&most) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.counts.remove(&most)),
        }
    }
}

fn namespace(call: &Call) -> &str {
    call.function.namespace().unwrap_or_default()
}

impl Kept {
    pub(super) fn push(&mut self, call: Arc<Call>) {
        match call.is_error() {
            true => self.failed.push(call, FAILED_MAX),
            false => self.calls.push(call, CALLS_MAX),
        }
    }

    /// All records, newest first.
    fn all(&self) -> impl Iterator<Item = &Arc<Call>> {
        let ended_ns = |call: &&Arc<Call>| call.began_unix_ns + call.duration_ns;
        let mut calls = self.calls.all.iter().rev().peekable();
        let mut failed = self.failed.all.iter().rev().peekable();
        std::iter::from_fn(move || {
            let is_failed = failed.peek().map(ended_ns) > calls.peek().map(ended_ns);
            if is_failed { failed.next() } else { calls.next() }
        })
    }

    pub(super) fn newest(&self, count: usize, wanted: impl Fn(&Call) -> bool) -> Vec<TraceSummary> {
        let wanted = self.all().filter(|call| wanted(call));
        wanted.take(count).map(|call| summary(call)).collect()
    }

    pub(super) fn spans(&self, trace: u128, wanted: impl Fn(&str) -> bool) -> Vec<Span> {
        let calls = self.all().filter(|call| call.trace == trace);
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
    // The call failed in its last part.
    let own_status = if call.is_error() { "error" } else { "ok" }.to_owned();
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
        status: own_status.clone(),
        attributes,
    };
    let last = call.parts.len().saturating_sub(1);
    let parts = call.parts.iter().enumerate().map(|(at, part)| Span {
        span: format!("{:016x}", call.part_span(part)),
        parent: Some(own.clone()),
        name: part.name.to_owned(),
        kind: "internal".to_owned(),
        function: None,
        revision: None,
        invocation: None,
        start_us: (call.began_unix_ns + part.begin_ns) / 1_000,
        duration_us: part.duration_ns / 1_000,
        status: if at == last { own_status.clone() } else { "ok".to_owned() },
        attributes: BTreeMap::new(),
    });
    std::iter::once(whole).chain(parts).collect()
}

#[cfg(test)]
mod tests {
    use mote_core::{InvocationId, Trigger};
    use mote_spec::FunctionName;

    use super::*;

    fn call(at: u64, status: u16) -> Arc<Call> {
        call_of("f", at, status)
    }

    fn call_of(function: &str, at: u64, status: u16) -> Arc<Call> {
        Arc::new(Call {
            trace: at.into(),
            span: at,
            parent: None,
            id: InvocationId(at.into()),
            function: FunctionName::new(function).unwrap(),
            revision: 1,
            trigger: Trigger::Http,
            method: String::new(),
            path: String::new(),
            began_unix_ns: at,
            duration_ns: 1,
            status,
            fault: None,
            parts: Vec::new(),
            is_cold: false,
        })
    }

    #[test]
    fn other_calls_do_not_displace_failed_ones() {
        let mut kept = Kept::default();
        for at in 1..=100 {
            kept.push(call(at, if at % 50 == 0 { 500 } else { 200 }));
        }
        let newest = |kept: &Kept, count| -> Vec<_> {
            let all = kept.newest(count, |_| true);
            all.into_iter().map(|call| (call.span, call.status)).collect()
        };
        let order: Vec<_> = newest(&kept, 100).into_iter().map(|(span, _)| span).collect();
        assert!(order.is_sorted_by(|one, next| one > next), "{order:?}");
        for at in 0..2 * CALLS_MAX as u64 {
            kept.push(call(1_000 + at, 200));
        }
        let all = newest(&kept, usize::MAX);
        assert_eq!(all.len(), CALLS_MAX + 2);
        assert_eq!(all.iter().filter(|(_, status)| *status == 500).count(), 2);
        assert_eq!(kept.spans(50, |_| true).len(), 1);
    }

    #[test]
    fn a_namespace_does_not_displace_the_calls_of_another() {
        let mut kept = Kept::default();
        for at in 1..=10 {
            kept.push(call(at, 200));
        }
        for at in 0..2 * CALLS_MAX as u64 {
            kept.push(call_of("f.busy", 1_000 + at, 200));
        }
        assert_eq!(kept.newest(usize::MAX, |call| call.function.namespace().is_none()).len(), 10);
        assert_eq!(kept.newest(usize::MAX, |_| true).len(), CALLS_MAX);
    }
}
