//! Notices of functions to the observers of their resources, and invocations by which the node asks
//! a function for the state of a resource.
//!
//! A function publishes only states of its own resources. If a notice contains no state, the node
//! asks the function for the state with GET. At most one such invocation runs for each observed
//! resource.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use mote_coap::notices::{BODY_BYTES_MAX, Notices, Question, Resource, State};
use mote_core::body::Body;
use mote_core::invocation::{Head, put_header};
use mote_core::services::{Answer, Caller, Notice, Status};
use mote_core::shares::Exceeded;
use mote_core::{Fault, Invocation, InvocationId, Invoker as _, Routed as _, Trigger};
use mote_engine::Engine;
use mote_process::clock;
use mote_spec::FunctionName;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use mote_engine::link::fields::for_each_field;

/// The maximum number of simultaneous invocations that ask functions for states.
const ASKING_MAX: usize = 16;

/// Publishes the notices of functions.
pub(crate) struct Publisher(Arc<Inner>);

struct Inner {
    engine: Engine,
    notices: Notices,
    /// The invocations that ask for a state. Their own notices start no further ones, because
    /// otherwise, a function that notifies while it answers GET would run forever. The answers of
    /// these invocations are published in any case.
    asking: Mutex<HashSet<InvocationId>>,
    places: Semaphore,
    random: RandomState,
    counter: AtomicU64,
}

impl Publisher {
    pub(crate) fn new(engine: Engine, notices: Notices) -> Self {
        let (asking, random, counter) = Default::default();
        let places = Semaphore::new(ASKING_MAX);
        Self(Arc::new(Inner { engine, notices, asking, places, random, counter }))
    }

    /// Publishes a notice of `caller`. Returns the number of observers.
    pub(crate) fn notify(&self, caller: Caller<'_>, notice: Notice) -> Answer {
        if self.0.notices.is_idle() {
            return observers(0);
        }
        match self.begin(&caller.spec.name, caller.invocation, notice) {
            Ok(count) => observers(count),
            Err(answer) => answer,
        }
    }

    fn begin(
        &self,
        function: &FunctionName,
        invocation: InvocationId,
        notice: Notice,
    ) -> Result<usize, Answer> {
        let Notice { path, query, headers, body } = notice;
        let mut block = Vec::with_capacity(headers.len());
        for_each_field(&headers, |name, value| put_header(&mut block, name, value))
            .map_err(|text| Answer::text(Status::Invalid, text))?;
        let query = query.as_deref();
        // The paths of observed resources are stored in canonical form.
        let path = mote_core::path::canonical(&path);
        if let Some(body) = body {
            // The body is copied, because the state may be kept for a long time, and the original
            // bytes would keep a larger buffer in memory.
            let body = Bytes::copy_from_slice(&body);
            let state = State { status: 200, headers: block.into(), body };
            return self.0.notices.publish(function, &path, query, state).map_err(|why| {
                let text = match why {
                    Exceeded::Share => {
                        "the observed states of this function or of its namespace use their share \
                         of the node's memory for them; publish smaller states"
                    }
                    Exceeded::Total => "the node holds as many bytes of states as it may",
                };
                Answer::text(Status::Full, text)
            });
        }
        if self.0.asking.lock().contains(&invocation) {
            return Ok(0);
        }
        let (questions, count) = self.0.notices.begin_asking(function, &path, query);
        for (question, resource) in questions {
            tokio::spawn(ask(self.0.clone(), question, resource));
        }
        Ok(count)
    }
}

fn observers(count: usize) -> Answer {
    let head = u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    Answer::new(Status::Done, head, Bytes::new())
}

/// Asks the function for the state. If the resource has changed meanwhile, asks again.
async fn ask(publisher: Arc<Inner>, question: Question, resource: Arc<Resource>) {
    let mut next = Some(question);
    while let Some(question) = next {
        let Ok(place) = publisher.places.acquire().await else { return };
        let state = publisher.run(&resource).await;
        drop(place);
        next = publisher.notices.asked(question, state);
    }
}

impl Inner {
    async fn run(&self, resource: &Resource) -> State {
        let Some(route) = self.engine.route(&resource.route, || None) else {
            return failed(&Fault::NoSuchFunction, resource);
        };
        let mut head = Head::builder(b"GET", &resource.path, &resource.query);
        if !resource.accept.is_empty() {
            head.header(b"accept", &resource.accept);
        }
        let received_ns = clock::now_ns();
        let id = InvocationId::new(clock::unix_ms(), self.bits());
        let invocation = Invocation {
            id,
            trigger: Trigger::Coap,
            head: head.finish(),
            body: Body::Empty,
            received_ns,
            deadline_ns: received_ns + route.info().timeout_ms * 1_000_000,
            chain: None,
        };
        self.asking.lock().insert(id);
        let state = match self.engine.invoke(&route, invocation).await {
            Ok(reply) => match reply.body.collect(BODY_BYTES_MAX as u64).await {
                Ok(body) => State { status: reply.status, headers: reply.headers, body },
                Err(error) => failed(&Fault::BadReply { message: error.to_string() }, resource),
            },
            Err(fault) => failed(&fault, resource),
        };
        self.asking.lock().remove(&id);
        state
    }

    fn bits(&self) -> u128 {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let high = self.random.hash_one((count, 0));
        let low = self.random.hash_one((count, 1));
        u128::from(high) << 64 | u128::from(low)
    }
}

fn failed(fault: &Fault, resource: &Resource) -> State {
    let body = fault.public_text(resource.function.as_str()).into();
    State { status: fault.answer().http, headers: Bytes::new(), body }
}
