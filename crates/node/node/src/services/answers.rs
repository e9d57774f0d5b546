//! Answers the requests of functions to their node: to use state, call other functions, notify the
//! observers of resources, and publish messages at MQTT brokers.
//!
//! A call runs on the data path like an invocation from a front. The engine's own `Invoker` queues
//! and answers it, without a socket or another thread.

use std::borrow::Cow;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use mote_coap::notices::Notices;
use mote_core::accept::{Accept, AcceptError, Deferred};
use mote_core::body::{Body, BodyError};
use mote_core::chain::Chain;
use mote_core::invocation::{Head, headers};
use mote_core::publish::{Message, PROPERTIES_MAX, Publish, PublishError};
use mote_core::services::{
    Answer, Asked, Begun, CALL_BODY_BYTES_MAX, Call, Caller, FUNCTIONS, NOTIFY, PUBLISH, RUNS,
    STATE, Services, Status, state_answer,
};
use mote_core::state::{self, KEYS_MAX, Namespace, Operation, Quota, State};
use mote_core::trace::TRACEPARENT;
use mote_core::{Fault, Invocation, InvocationId, Invoker as _, Routed as _, Trigger};
use mote_engine::{Engine, Route};
use mote_process::clock;
use mote_spec::fields::is_set_by_node;
use mote_spec::{Runtime, name};
use mote_tenants::namespaces::Namespaces;

use crate::services::publisher::Publisher;
use crate::services::runs::Runs;
use mote_engine::link::fields::for_each_field;

pub struct NodeServices {
    engine: Engine,
    state: Arc<dyn State>,
    /// Accepts calls that run later.
    accept: Arc<dyn Accept>,
    runs: Runs,
    publisher: Publisher,
    messages: Arc<dyn Publish>,
    namespaces: Arc<Namespaces>,
    random: RandomState,
    counter: AtomicU64,
}

impl NodeServices {
    /// The services of a node with these parts.
    pub fn new(
        engine: Engine,
        state: Arc<dyn State>,
        accept: Arc<dyn Accept>,
        runs: Runs,
        notices: Notices,
        messages: Arc<dyn Publish>,
        namespaces: Arc<Namespaces>,
    ) -> Self {
        let (random, counter) = Default::default();
        let publisher = Publisher::new(engine.clone(), notices);
        Self { engine, state, accept, runs, publisher, messages, namespaces, random, counter }
    }

    fn publish(&self, caller: Caller<'_>, mut message: Message) -> Begun {
        let own = &caller.spec.name;
        if !caller.spec.publishing.allows(&message.topic) {
            let topic = &message.topic;
            let text = format!(
                "{own} may not publish to {topic:?}; list it in its manifest: [allow] mqtt"
            );
            return Begun::Done(Answer::text(Status::Denied, text));
        }
        message.owner = own.to_string();
        if let Some(place) = self.engine.trace_of(caller.invocation)
            && message.user.len() < PROPERTIES_MAX
            && !message.user.iter().any(|(name, _)| name == TRACEPARENT)
        {
            message.user.push((TRACEPARENT.to_owned(), place.to_string()));
        }
        message.connection.clone_from(&caller.spec.publishing.connection);
        // The payload is copied, because the message may wait for a long time, and the original
        // bytes would keep a larger buffer in memory.
        message.payload = Bytes::copy_from_slice(&message.payload);
        let published = self.messages.publish(message);
        Begun::Later(Box::pin(async move {
            let Err(error) = published.await else {
                return Answer::new(Status::Done, Vec::new(), Bytes::new());
            };
            let status = match &error {
                PublishError::Invalid(_) => Status::Invalid,
                PublishError::Refused(_) => Status::Denied,
                PublishError::Full(_) => Status::Full,
                PublishError::Unavailable(_) | PublishError::Stopping => Status::Unavailable,
            };
            Answer::text(status, error.to_string())
        }))
    }

    fn state(
        &self,
        caller: Caller<'_>,
        shared: Option<String>,
        operation: Operation,
        durable: bool,
    ) -> Begun {
        let rules = &caller.spec.state;
        let namespace = match shared {
            None => Namespace::Function(caller.spec.name.to_string()),
            Some(name) if rules.shared.contains(&name) => {
                Namespace::Shared(name::joined(&name, caller.spec.name.namespace()))
            }
            Some(name) => {
                let text = format!(
                    "{} may not use the shared state {name:?}; list it in its manifest: [kv] shared",
                    caller.spec.name
                );
                return Begun::Done(Answer::text(Status::Denied, text));
            }
        };
        let together_bytes = caller
            .spec
            .name
            .namespace()
            .and_then(|namespace| self.namespaces.get(namespace).ok()?.quotas.state_bytes);
        let quota = Quota { bytes: rules.quota_bytes, keys: KEYS_MAX, together_bytes };
        match self.state.begin(namespace, operation, quota, durable, clock::unix_ms()) {
            state::Begun::Done(result) => Begun::Done(state_answer(result)),
            state::Begun::Later(result) => {
                Begun::Later(Box::pin(async move { state_answer(result.await) }))
            }
        }
    }

    fn call(&self, caller: Caller<'_>, call: Call) -> Begun {
        match self.prepare(caller, call) {
            Ok(begun) => begun,
            Err(answer) => Begun::Done(answer),
        }
    }

    fn prepare(&self, caller: Caller<'_>, call: Call) -> Result<Begun, Answer> {
        let own = &caller.spec.name;
        let name = call.function.split('@').next().unwrap_or_default();
        let full = name::beside(&call.function, own.as_str());
        // The manifest lists names without a namespace.
        let listed = if full.is_some() { name::split(name).0 } else { name };
        if !caller.spec.may_call(listed) {
            let text =
                format!("{own} may not call {name:?}; list it in its manifest: [allow] functions");
            return Err(Answer::text(Status::Denied, text));
        }
        let invalid = |text: &str| Answer::text(Status::Invalid, text);
        let mut head = head(&call, caller.spec.runtime == Runtime::Chain).map_err(invalid)?;
        if let Some(place) = self.engine.trace_of(caller.invocation) {
            // A function that traces itself says where in its own work the call belongs.
            let has_own = headers(head.headers()).any(|(name, _)| name == TRACEPARENT.as_bytes());
            if !has_own {
                head.replace_header(TRACEPARENT.as_bytes(), place.to_string().as_bytes());
            }
        }
        let route = full.as_deref().and_then(|full| self.engine.route(full, || None));
        let Some(route) = route else {
            return Err(failed(&Fault::NoSuchFunction, &call.function));
        };
        let full = full.map(Cow::into_owned).filter(|full| *full != call.function);
        let method = std::str::from_utf8(&call.method).unwrap_or_default();
        if !route.info().methods.is_empty() && !route.info().methods.iter().any(|one| one == method)
        {
            let text = format!("{name} does not answer {method}");
            return Err(Answer::failed(405, &text));
        }
        let limit_bytes = route.info().body_bytes_max;
        if call.body.len() as u64 > limit_bytes {
            return Err(failed(&Fault::BodyTooLarge { limit_bytes }, name));
        }
        if !call.waits {
            let function = full.unwrap_or_else(|| call.function.clone());
            return self.accept(Call { function, ..call }, head);
        }
        let chain = Chain::extend(own, caller.chain, route.info().name)
            .map_err(|error| invalid(&error.to_string()))?;
        let received_ns = clock::now_ns();
        let timeout_ms = match call.timeout_ms {
            0 => route.info().timeout_ms,
            asked => route.info().timeout_ms.min(asked.into()),
        };
        let deadline_ns = caller.deadline_ns.min(received_ns + timeout_ms * 1_000_000);
        let invocation = Invocation {
            id: InvocationId::new(clock::unix_ms(), self.bits()),
            trigger: Trigger::Function,
            head,
            body: Body::whole(call.body),
            received_ns,
            deadline_ns,
            chain: Some(chain),
        };
        let step = self.runs.step(caller, &invocation.head);
        let called = run(self.engine.clone(), route, invocation);
        Ok(match step {
            None => Begun::Later(Box::pin(called)),
            Some(step) => Begun::Later(Box::pin(async move {
                let answer = called.await;
                drop(step);
                answer
            })),
        })
    }

    fn accept(&self, call: Call, head: Head) -> Result<Begun, Answer> {
        let some = |text: String| (!text.is_empty()).then_some(text);
        let due_unix_ms = match call.delay_ms {
            0 => 0,
            delay_ms => clock::unix_ms().saturating_add(delay_ms),
        };
        // The body is copied, because the call may be kept for a long time, and the original bytes
        // would keep a larger buffer in memory.
        let body = Bytes::copy_from_slice(&call.body);
        let accepted = self.accept.accept(Deferred {
            key: some(call.key),
            due_unix_ms,
            order: some(call.order),
            ..Deferred::new(call.function, Trigger::Function, head, body)
        });
        Ok(Begun::Later(Box::pin(async move {
            match accepted.await {
                Ok(accepted) => Answer::text(Status::Done, accepted.id.to_string()),
                Err(error) => {
                    let status = match &error {
                        AcceptError::Full(_) | AcceptError::DiskFull(_) => Status::Full,
                        AcceptError::Invalid(_) => Status::Invalid,
                        AcceptError::Disk(_)
                        | AcceptError::Away(_)
                        | AcceptError::TakenOver(_)
                        | AcceptError::Stopping => Status::Unavailable,
                    };
                    Answer::text(status, error.to_string())
                }
            }
        })))
    }

    fn bits(&self) -> u128 {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let high = self.random.hash_one((count, 0));
        let low = self.random.hash_one((count, 1));
        u128::from(high) << 64 | u128::from(low)
    }
}

impl Services for NodeServices {
    fn announced(&self) -> Vec<String> {
        [STATE, FUNCTIONS, NOTIFY, PUBLISH].map(|(word, _)| word.to_owned()).to_vec()
    }

    fn announced_to_chains(&self) -> Vec<String> {
        [FUNCTIONS, PUBLISH, RUNS].map(|(word, _)| word.to_owned()).to_vec()
    }

    fn begin(&self, caller: Caller<'_>, asked: Asked) -> Begun {
        match asked {
            Asked::State { shared, operation, durable } => {
                self.state(caller, shared, operation, durable)
            }
            Asked::Call(call) => self.call(caller, call),
            Asked::Records { after } => self.runs.records(caller, after),
            Asked::Record { key, value } => self.runs.record(caller, key, value),
            Asked::Notify(notice) => Begun::Done(self.publisher.notify(caller, notice)),
            Asked::Publish(message) => self.publish(caller, *message),
            Asked::Unusable(text) => Begun::Done(Answer::text(Status::Invalid, text)),
        }
    }
}

/// Runs a call and collects its whole answer.
async fn run(engine: Engine, route: Route, invocation: Invocation) -> Answer {
    let name = route.info().name.clone();
    let reply = match engine.invoke(&route, invocation).await {
        Ok(reply) => reply,
        Err(fault) => return failed(&fault, name.as_str()),
    };
    let mut head = reply.status.to_le_bytes().to_vec();
    head.extend_from_slice(&[0, 0]);
    head.extend_from_slice(&(reply.headers.len() as u32).to_le_bytes());
    head.extend_from_slice(&reply.headers);
    match reply.body.collect(CALL_BODY_BYTES_MAX as u64).await {
        Ok(body) => Answer::new(Status::Done, head, body),
        Err(BodyError::TooLarge(_)) => {
            let text = format!("{name} answered with more than 960 KiB; call it over HTTP");
            Answer::failed(502, &text)
        }
        Err(error) => Answer::failed(502, &format!("{name}: {error}")),
    }
}

fn failed(fault: &Fault, function: &str) -> Answer {
    // When the node stops, the caller is ended as well. It must not take this fault for the
    // function's answer.
    if matches!(fault, Fault::Stopping) {
        return Answer::text(Status::Unavailable, fault.public_text(function));
    }
    let text = match fault {
        Fault::HandlerError { message } | Fault::BadReply { message } => {
            format!("{function} failed: {message}")
        }
        Fault::StartFailed { message } => format!("{function} did not start: {message}"),
        other => other.public_text(function),
    };
    Answer::failed(fault.answer().http, &text)
}

/// Builds the head of a call. The fields come from a worker, so they are checked like the fields of
/// a front. Only the worker of chains may name a step, because this worker belongs to the node.
fn head(call: &Call, is_chain: bool) -> Result<Head, &'static str> {
    let mut head = Head::builder(&call.method, &call.path, &call.query);
    for_each_field(&call.headers, |name, value| {
        if !is_set_by_node(name) || (is_chain && name == b"mote-step") {
            head.header(name, value);
        }
    })?;
    Ok(head.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_of_a_call_are_checked() {
        let head = |block: &'static str| {
            let call = Call {
                function: "f".into(),
                waits: true,
                timeout_ms: 0,
                delay_ms: 0,
                key: String::new(),
                order: String::new(),
                method: Bytes::from_static(b"POST"),
                path: Bytes::from_static(b"/"),
                query: Bytes::new(),
                headers: Bytes::from_static(block.as_bytes()),
                body: Bytes::new(),
            };
            super::head(&call, false)
        };
        let kept = head("a\nb\nhost\nx\ntransfer-encoding\nchunked\n").unwrap();
        assert_eq!(kept.headers(), b"a\nb\nhost\nx\n");
        let kept = head("a\nb\nmote-source\nx\nmote_step\ny\nproxy\nz\n").unwrap();
        assert_eq!(kept.headers(), b"a\nb\n");
        for wrong in ["a\nb", "a\nb\nc\n", "\nb\n", "A\nb\n", "a b\nc\n", "a\nb\rc\n", "a\nb\0\n"] {
            assert!(head(wrong).is_err(), "{wrong:?}");
        }
    }
}
