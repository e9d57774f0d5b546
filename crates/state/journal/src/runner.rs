//! Runs the records of the journal. One task starts an attempt for each record that may run, and
//! settles the record afterwards.

use std::borrow::Cow;
use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use mote_core::accept::Deferred;
use mote_core::body::Body;
use mote_core::invocation::{Head, headers, put_header};
use mote_core::publish::Message;
use mote_core::retry;
use mote_core::retry::{Attempt, Next, Tried};
use mote_core::{Fault, Invocation, InvocationId, Invoker, Routed, Trigger};
use mote_outgoing::{HeaderMap, HeaderName, HeaderValue, Method};
use mote_spec::mqtt::Connection;
use mote_spec::{AGE_MS_MAX_DEFAULT, AsyncRules, Recipient, Topic, name};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::journal::{DELAY_MS_MAX, Data, Journal, RUNNING_OF_ONE_MAX, new_id};
use crate::pending::Number;
use crate::record::{Destination, LastAttempt, NewRecord, Post, State, Work};
use crate::records::{Settled, unix_ms};

/// The longest answer that the journal stores.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// The most bytes to read of a receiver's answer to a sent result.
const POST_ANSWER_BYTES_MAX: usize = 64 << 10;
/// The most results of one function that may be on their way to one host at once.
const POSTS_OF_ONE_MAX: usize = 4;
/// The most attempts to send a result, and the pause before the second attempt.
const POST_ATTEMPTS: u32 = 8;
const POST_BACKOFF_MS: u64 = 500;
/// How many times a result may be passed on from function to function. A longer chain is treated as
/// a loop.
const DEPTH_MAX: u32 = 16;
/// The pause before the next try to note the end of a record when the disk fails.
const DISK_PAUSE: Duration = Duration::from_secs(5);
/// How often old records are removed, and after how many ended records at the latest.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
const SWEEP_AFTER: u32 = 20_000;
/// Old records are also removed after this many bytes of new answers.
const SWEEP_AFTER_BYTES: u64 = 64 << 20;
/// How often the journal checks whether functions that waiting invocations need have arrived.
const FUNCTIONS_EVERY_MS: u64 = 500;

/// The field that carries the number of the attempt, from the second attempt on.
pub(crate) const ATTEMPT_FIELD: &[u8] = b"mote-attempt";

/// The field in which a chain says when its run is to continue.
const RESUME_FIELD: &[u8] = b"mote-resume-at";

/// How an attempt ended.
struct Outcome {
    /// The function's status, or the fault.
    result: Result<u16, Fault>,
    fields: Bytes,
    body: Option<Bytes>,
    began_ms: u64,
    /// When a paused run continues, in milliseconds since 1970.
    resume_ms: Option<u64>,
    /// Whether the attempt was a run of a chain.
    is_run: bool,
}

/// Runs the journal until it stops. When the engine stops, it ends the attempts that still run.
/// Call this function once, on the runtime of the engine.
pub async fn run<I: Invoker>(journal: Journal, invoker: I) {
    let mut attempts = JoinSet::new();
    let mut sweep = tokio::time::interval(SWEEP_EVERY);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut ended = 0_u32;
    let mut grown_bytes = 0_u64;
    loop {
        let waits_for_function = Cell::new(false);
        while let Some((number, end)) = begin(&journal, &invoker, &waits_for_function) {
            attempts.spawn(attempt(journal.clone(), invoker.clone(), number, end));
        }
        if journal.is_stopping() && attempts.is_empty() {
            return;
        }
        let next_due_ms = {
            let mut memory = journal.0.state.lock();
            grown_bytes += std::mem::take(&mut memory.grown_bytes);
            memory.pending.next_due_ms()
        };
        let look_ms = waits_for_function.get().then_some(FUNCTIONS_EVERY_MS);
        let wait_ms = next_due_ms.map(|due_ms| due_ms.saturating_sub(journal.now_ms()).max(1));
        let wait_ms = wait_ms.into_iter().chain(look_ms).min();
        let sleep = Duration::from_millis(wait_ms.unwrap_or_default());
        tokio::select! {
            () = journal.0.changed.notified() => {}
            () = tokio::time::sleep(sleep), if wait_ms.is_some() && !journal.is_stopping() => {}
            Some(_) = attempts.join_next(), if !attempts.is_empty() => {
                ended += 1;
                while attempts.try_join_next().is_some() {
                    ended += 1;
                }
            }
            _ = sweep.tick(), if journal.opened().is_some() => (ended, grown_bytes) = (0, SWEEP_AFTER_BYTES),
        }

        if ended >= SWEEP_AFTER || grown_bytes >= SWEEP_AFTER_BYTES {
            let sweeper = journal.clone();
            let by_bytes = grown_bytes >= SWEEP_AFTER_BYTES;
            (ended, grown_bytes) = (0, 0);
            // Sweeping is a separate task, because invocations must be able to start meanwhile.
            attempts.spawn(async move { sweeper.sweep(by_bytes).await });
        }
    }
}

/// Takes the next record that may run. Notes in `waits_for_function` whether a record waits for a
/// missing function.
fn begin<I: Invoker>(
    journal: &Journal,
    invoker: &I,
    waits_for_function: &Cell<bool>,
) -> Option<(Number, oneshot::Receiver<()>)> {
    if journal.is_stopping() || !journal.may_run() {
        return None;
    }
    let now_ms = journal.now_ms();
    let mut memory = journal.0.state.lock();
    let share = |function: &str, data: &Data| {
        let share = share_of(journal, invoker, function, data.since_ms);
        waits_for_function.set(waits_for_function.get() || share == 0);
        share
    };
    let number = memory.pending.next(now_ms, share)?;
    let (end, ended) = oneshot::channel();
    memory.running.insert(number, Some(end));
    Some((number, ended))
}

/// Returns how many accepted invocations of a function run at once. 0 means that they wait until
/// the function is deployed. If an invocation has waited too long, it is tried even without the
/// function; the attempt fails, and the invocation becomes a dead letter.
fn share_of<I: Invoker>(journal: &Journal, invoker: &I, function: &str, since_ms: u64) -> usize {
    let Some(route) = invoker.route(function, || None) else {
        let is_old = unix_ms().saturating_sub(since_ms) >= AGE_MS_MAX_DEFAULT;
        let waits = !is_old || journal.waits_for_functions();
        let waits = waits && !Journal::is_share_of_results(function);
        return if waits { 0 } else { POSTS_OF_ONE_MAX };
    };
    let asked = route.info().background.and_then(|rules| rules.concurrency);
    (asked.unwrap_or(route.info().places() / 2).max(1) as usize).min(RUNNING_OF_ONE_MAX)
}

/// Runs a record once and settles it.
async fn attempt<I: Invoker>(
    journal: Journal,
    invoker: I,
    number: Number,
    end: oneshot::Receiver<()>,
) {
    let Some((work, depth)) = journal.work_of(number).await else {
        // The bytes stay on disk, so that people can examine them. Until it restarts, the node does
        // not try the record again.
        tracing::error!(number, "an accepted invocation cannot be read; it is kept");
        journal.ended_now(&mut journal.0.state.lock(), number, true);
        return;
    };
    let Some(at) = ({
        let mut memory = journal.0.state.lock();
        memory.pending.get_mut(number).map(|entry| At {
            number,
            id: entry.data.id,
            depth,
            since_ms: entry.data.since_ms,
            attempt: entry.data.attempts + 1,
            roomless: entry.data.roomless + 1,
        })
    }) else {
        return;
    };
    let began_ms = unix_ms();
    let running = AssertUnwindSafe(tried(&journal, &invoker, &at, &work, began_ms)).catch_unwind();
    let tried = tokio::select! {
        biased;
        tried = running => Some(tried.unwrap_or_else(|_| {
            // The next attempt would panic again, so the panic counts as a fault that ends the
            // invocation.
            let message = "the node failed while it ran this invocation".to_owned();
            (Next::Dead, failed(Fault::Internal { message }, began_ms))
        })),
        Ok(()) = end => None,
    };
    let Some((mut next, outcome)) = tried else {
        settle(&journal, &at, State::Cancelled, None, Vec::new()).await;
        return;
    };
    if next != Next::Succeeded && journal.is_cancelled(number) {
        settle(&journal, &at, State::Cancelled, None, Vec::new()).await;
        return;
    }
    // The stop may have ended the attempt. A run of a chain also fails when the journal is given
    // back, because the journal then refuses its steps.
    let is_broken = outcome.result.is_err() || outcome.is_run && next == Next::Dead;
    if is_broken && journal.is_stopping() {
        next = Next::Kept;
    }
    let last = last_attempt(&at, work.function(), &outcome);
    match next {
        Next::Kept => {
            let mut memory = journal.0.state.lock();
            memory.running.remove(&number);
            let due_ms = journal.now_ms() + 1_000;
            memory.pending.again(number, due_ms);
        }
        Next::Again { .. } if outcome.resume_ms.is_some() => {
            pause(&journal, &at, outcome.resume_ms.unwrap_or_default()).await;
        }
        Next::Again { after_ms, counts } => {
            let last = LastAttempt { attempts: at.attempt - u32::from(!counts), ..last };
            if let Some(records) = journal.opened() {
                let noted = records.postpone(number, unix_ms() + after_ms, last).await;
                if let Err(error) = noted {
                    tracing::warn!(number, %error, "cannot note an attempt in the journal");
                }
            }
            let due_ms = journal.now_ms() + after_ms;
            if again_unless_cancelled(&journal, &at, due_ms, counts) {
                return;
            }
            settle(&journal, &at, State::Cancelled, None, Vec::new()).await;
        }
        Next::Succeeded | Next::Dead => {
            let state = if next == Next::Dead { State::Dead } else { State::Succeeded };
            if next == Next::Dead {
                tracing::warn!(
                    function = work.function(),
                    id = %at.id,
                    attempts = at.attempt,
                    status = last.status,
                    reason = last.detail.as_deref().unwrap_or_default(),
                    "{}; it is kept as a dead letter",
                    match &work {
                        Work::Invoke(_) => "an accepted invocation has failed",
                        Work::Post(_) => "cannot send the result of an accepted invocation",
                    }
                );
            }
            let following = following(&invoker, &at, &work, &last, next == Next::Succeeded);
            settle(&journal, &at, state, Some(last), following).await;
        }
    }
}

/// Makes a run wait until the time at which it continues.
async fn pause(journal: &Journal, at: &At, resume_ms: u64) {
    let resume_ms = resume_ms.min(unix_ms() + DELAY_MS_MAX);
    if let Some(records) = journal.opened()
        && let Err(error) = records.pause(at.number, resume_ms).await
    {
        tracing::warn!(number = at.number, %error, "cannot note in the journal until when a run waits");
    }
    if !pause_unless_cancelled(journal, at, resume_ms) {
        settle(journal, at, State::Cancelled, None, Vec::new()).await;
    }
}

/// Returns false if the run was cancelled while the pause was being noted.
fn pause_unless_cancelled(journal: &Journal, at: &At, resume_ms: u64) -> bool {
    let due_ms = journal.now_ms() + resume_ms.saturating_sub(unix_ms());
    let mut memory = journal.0.state.lock();
    if memory.running.get(&at.number).is_some_and(Option::is_none) {
        return false;
    }
    memory.running.remove(&at.number);
    if let Some(entry) = memory.pending.get_mut(at.number) {
        (entry.data.attempts, entry.data.roomless) = (0, 0);
        entry.data.since_ms = resume_ms;
    }
    memory.pending.again(at.number, due_ms);
    true
}

/// Makes a record wait for another attempt. Returns false if the record was cancelled while the
/// attempt was being noted.
fn again_unless_cancelled(journal: &Journal, at: &At, due_ms: u64, counts: bool) -> bool {
    let mut memory = journal.0.state.lock();
    if memory.running.get(&at.number).is_some_and(Option::is_none) {
        return false;
    }
    memory.running.remove(&at.number);
    memory.past.repeated += 1;
    if let Some(entry) = memory.pending.get_mut(at.number) {
        entry.data.attempts = at.attempt - u32::from(!counts);
        entry.data.roomless = if counts { 0 } else { at.roomless };
    }
    memory.pending.again(at.number, due_ms);
    true
}

/// An attempt at a record.
struct At {
    number: Number,
    id: InvocationId,
    depth: u32,
    since_ms: u64,
    attempt: u32,
    roomless: u32,
}

/// Runs the work once, and decides what follows.
async fn tried<I: Invoker>(
    journal: &Journal,
    invoker: &I,
    at: &At,
    work: &Work,
    began_ms: u64,
) -> (Next, Outcome) {
    let (outcome, rules, attempts_default) = match work {
        Work::Invoke(deferred) => {
            let (outcome, rules) = invoke(invoker, at, deferred, began_ms).await;
            if outcome.resume_ms.is_some() {
                return (Next::Again { after_ms: 0, counts: false }, outcome);
            }
            // A chain that ended with such an error would end with the same error again, unless a
            // function had run out of time or room.
            let is_brief = matches!(outcome.result, Ok(408 | 425 | 429));
            if outcome.is_run && !is_brief && matches!(outcome.result, Ok(400..=499)) {
                return (Next::Dead, outcome);
            }
            (outcome, rules, deferred.attempts_default)
        }
        Work::Post(post) => {
            let (outcome, is_final) = send(journal, post, began_ms).await;
            if is_final {
                return (Next::Dead, outcome);
            }
            let rules = AsyncRules { backoff_ms: POST_BACKOFF_MS, ..AsyncRules::default() };
            (outcome, rules, POST_ATTEMPTS)
        }
    };
    let tried = Tried {
        attempt: at.attempt,
        roomless: at.roomless,
        age_ms: unix_ms().saturating_sub(at.since_ms),
        attempts_default,
        random: random(),
    };
    let ended = match &outcome.result {
        Ok(408 | 425 | 429) if outcome.is_run => Attempt::Answered(503),
        Ok(status) => Attempt::Answered(*status),
        Err(fault) => Attempt::Failed(fault),
    };
    (retry::next(&rules, tried, ended), outcome)
}

fn failed(fault: Fault, began_ms: u64) -> Outcome {
    Outcome {
        result: Err(fault),
        fields: Bytes::new(),
        body: None,
        began_ms,
        resume_ms: None,
        is_run: false,
    }
}

async fn invoke<I: Invoker>(
    invoker: &I,
    at: &At,
    deferred: &Deferred,
    began_ms: u64,
) -> (Outcome, AsyncRules) {
    let Some(route) = invoker.route(&deferred.function, || None) else {
        return (failed(Fault::NoSuchFunction, began_ms), AsyncRules::default());
    };
    let rules = route.info().background.cloned().unwrap_or_default();
    let received_ns = now_ns();
    let invocation = Invocation {
        id: at.id,
        trigger: deferred.trigger,
        head: with_attempt(&deferred.head, at.attempt),
        body: Body::whole(deferred.body.clone()),
        received_ns,
        deadline_ns: received_ns + route.info().timeout_ms * 1_000_000,
        chain: None,
    };
    let reply = match invoker.invoke(&route, invocation).await {
        Ok(reply) => reply,
        Err(fault) => return (failed(fault, began_ms), rules),
    };
    let status = reply.status;
    let fields = reply.headers;
    let outcome = match collect(reply.body).await {
        Ok(body) => {
            let resume_ms = headers(&fields)
                .find(|(name, _)| route.info().may_pause && *name == RESUME_FIELD)
                .and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse().ok());
            let is_run = route.info().may_pause;
            Outcome { result: Ok(status), fields, body, began_ms, resume_ms, is_run }
        }
        Err(()) => {
            let message = "the answer ended early".to_owned();
            failed(Fault::BadReply { message }, began_ms)
        }
    };
    (outcome, rules)
}

/// Returns the head with the number of the attempt, from the second attempt on.
fn with_attempt(head: &Head, attempt: u32) -> Head {
    if attempt < 2 {
        return head.clone();
    }
    let mut with = Head::builder(head.method(), head.path(), head.query());
    for (name, value) in headers(head.headers()) {
        if name != ATTEMPT_FIELD {
            with.header(name, value);
        }
    }
    with.header(ATTEMPT_FIELD, attempt.to_string().as_bytes());
    with.finish()
}

/// Returns the whole answer, or `None` if it is longer than the journal keeps. The answer is always
/// read to its end, because the function does not end before that.
async fn collect(mut body: Body) -> Result<Option<Bytes>, ()> {
    let mut kept = Vec::new();
    let mut fits = true;
    while let Some(chunk) = body.chunk().await {
        let chunk = chunk.map_err(|_| ())?;
        fits &= (kept.len() + chunk.len()) as u64 <= ANSWER_BYTES_MAX;
        if fits {
            kept.extend_from_slice(&chunk);
        } else {
            kept = Vec::new();
        }
    }
    Ok(fits.then(|| kept.into()))
}

/// Sends a result. Also returns whether another attempt would fail in the same way.
async fn send(journal: &Journal, post: &Post, began_ms: u64) -> (Outcome, bool) {
    let fault = |text: String| failed(Fault::Internal { message: text }, began_ms);
    let url = match &post.to {
        Destination::Url(url) => url,
        Destination::Topic { topic, connection } => {
            return publish(journal, post, topic, connection, began_ms).await;
        }
    };
    let uri = match mote_outgoing::check(url) {
        Ok(uri) => uri,
        Err(error) => return (fault(error.to_string()), true),
    };
    let mut fields = HeaderMap::new();
    for (name, value) in headers(&post.fields) {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            // If the result has more fields than a request can carry, it is sent with the fields
            // that fit.
            let _ = fields.try_append(name, value);
        }
    }
    let outgoing = &journal.0.outgoing.of(&post.function);
    let limit = POST_ANSWER_BYTES_MAX;
    let sent = mote_outgoing::send(Method::POST, &uri, fields, post.body.clone(), outgoing, limit);
    match sent.await {
        // The receiver has too many requests. This counts like a failure of the receiver.
        Ok((429, ..)) => (answered(503, began_ms), false),
        Ok((status, ..)) => (answered(status, began_ms), false),
        Err(error) => (fault(mote_core::fault::error_chain(&error)), error.is_final()),
    }
}

/// Publishes a result. The return value is that of `send`.
async fn publish(
    journal: &Journal,
    post: &Post,
    topic: &Topic,
    connection: &Connection,
    began_ms: u64,
) -> (Outcome, bool) {
    let fault = |text: String| failed(Fault::Internal { message: text }, began_ms);
    let Some(publisher) = journal.0.publish.get() else {
        return (fault("this node publishes nothing".to_owned()), true);
    };
    let mut message =
        Message::new(&post.function, connection.clone(), &topic.topic, post.body.clone());
    (message.qos, message.retain) = (topic.qos, topic.retain);
    for (name, value) in headers(&post.fields) {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        match name {
            b"content-type" => message.content_type = Some(text(value)),
            // The text is cut, because the text of a fault may be long.
            name => message.user.push((text(name), text(value).chars().take(1_024).collect())),
        }
    }
    match publisher.publish(message).await {
        Ok(()) => (answered(200, began_ms), false),
        Err(error) => (fault(error.to_string()), error.is_final()),
    }
}

fn answered(status: u16, began_ms: u64) -> Outcome {
    Outcome {
        result: Ok(status),
        fields: Bytes::new(),
        body: None,
        began_ms,
        resume_ms: None,
        is_run: false,
    }
}

/// Returns why a run has failed, from the problem document in its answer.
fn reason(outcome: &Outcome) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Problem {
        #[serde(default)]
        instance: String,
        #[serde(default)]
        title: String,
        #[serde(default)]
        detail: String,
    }
    let problem: Problem = serde_json::from_slice(outcome.body.as_deref()?).ok()?;
    let parts = [problem.instance, problem.title, problem.detail];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join(": "))
}

fn last_attempt(at: &At, function: &str, outcome: &Outcome) -> LastAttempt {
    let (status, fault, detail) = match &outcome.result {
        Ok(status) if outcome.is_run && *status >= 400 => (*status, None, reason(outcome)),
        Ok(status) => (*status, None, None),
        Err(fault) => {
            let answer = fault.answer();
            let name = function.split('@').next().unwrap_or(function);
            let text = match fault {
                Fault::HandlerError { .. } | Fault::Internal { .. } => fault.to_string(),
                other => other.public_text(name),
            };
            (answer.http, Some(answer.code.to_owned()), Some(text))
        }
    };
    LastAttempt {
        attempts: at.attempt,
        began_ms: outcome.began_ms,
        ended_ms: unix_ms(),
        status,
        fault,
        detail,
        fields: outcome.fields.clone(),
        body: outcome.body.clone(),
    }
}

/// Returns the records that deliver the result of an invocation.
fn following<I: Invoker>(
    invoker: &I,
    at: &At,
    work: &Work,
    last: &LastAttempt,
    succeeded: bool,
) -> Vec<NewRecord> {
    let Work::Invoke(deferred) = work else { return Vec::new() };
    let mut all = Vec::new();
    let mut record = |work| {
        let accepted_ms = unix_ms();
        let id = new_id(accepted_ms);
        all.push(NewRecord { id, work, accepted_ms, depth: at.depth + 1 });
    };
    let function = &deferred.function;
    if let Some(callback) = &deferred.callback {
        let mut fields = last.fields.to_vec();
        for (name, value) in &callback.fields {
            put_field(&mut fields, name.as_bytes(), value.as_bytes());
        }
        let seconds = (last.ended_ms - last.began_ms.min(last.ended_ms)) as f64 / 1e3;
        put_field(&mut fields, b"x-duration-seconds", format!("{seconds:.6}").as_bytes());
        put_field(&mut fields, b"x-function-status", last.status.to_string().as_bytes());
        let failure = || Bytes::from(last.detail.clone().unwrap_or_default());
        record(Work::Post(Post {
            function: function.clone(),
            to: Destination::Url(callback.url.clone()),
            fields: fields.into(),
            body: last.body.clone().unwrap_or_else(failure),
        }));
    }
    let route = invoker.route(function, || None);
    let rules = route.as_ref().and_then(|route| route.info().background.cloned());
    let recipient = rules.and_then(|rules| match succeeded {
        true => rules.on_success,
        false => rules.on_failure,
    });
    let Some(recipient) = recipient else { return all };
    if at.depth >= DEPTH_MAX {
        tracing::error!(
            function,
            id = %at.id,
            "a result is not sent on: {DEPTH_MAX} results led to each other, which looks like a loop"
        );
        return all;
    }
    // After a success the record carries the answer. After a failure it carries the request, so
    // that the request can be repeated.
    let (of, body) = match succeeded {
        true => (&last.fields[..], last.body.clone().unwrap_or_default()),
        false => (deferred.head.headers(), deferred.body.clone()),
    };
    let content = headers(of).find(|(name, _)| *name == b"content-type");
    let mut fields = Vec::new();
    if let Some((name, value)) = content {
        put_field(&mut fields, name, value);
    }
    put_field(&mut fields, b"mote-source", function.as_bytes());
    put_field(&mut fields, b"mote-source-invocation", &at.id.text());
    put_field(&mut fields, b"mote-source-status", last.status.to_string().as_bytes());
    put_field(&mut fields, b"mote-source-attempts", last.attempts.to_string().as_bytes());
    if succeeded && last.body.is_none() {
        put_field(&mut fields, b"mote-source-body", b"omitted");
    }
    if let Some(detail) = &last.detail {
        let line: String = detail.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        put_field(&mut fields, b"mote-source-fault", line.as_bytes());
    }
    match recipient {
        Recipient::Function(name) => {
            let Some(name) = name::beside(&name, function).map(Cow::into_owned) else { return all };
            let mut head = Head::builder(b"POST", b"/", b"");
            for (name, value) in headers(&fields) {
                head.header(name, value);
            }
            record(Work::Invoke(Deferred::new(name, Trigger::Function, head.finish(), body)));
        }
        Recipient::Url(url) => {
            let function = function.clone();
            let to = Destination::Url(url);
            record(Work::Post(Post { function, to, fields: fields.into(), body }));
        }
        Recipient::Topic(topic) => {
            let connection = route.and_then(|route| route.info().connection.cloned());
            let topic = Topic { topic: topic.of(function), ..topic };
            let to = Destination::Topic { topic, connection: connection.unwrap_or_default() };
            let function = function.clone();
            record(Work::Post(Post { function, to, fields: fields.into(), body }));
        }
    }
    all
}

/// Sets a field, and removes earlier fields with the same name.
fn put_field(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    if value.contains(&b'\n') {
        return;
    }
    if headers(block).any(|(known, _)| known == name) {
        let mut rest = Vec::with_capacity(block.len());
        for (known, value) in headers(block).filter(|(known, _)| *known != name) {
            put_header(&mut rest, known, value);
        }
        *block = rest;
    }
    put_header(block, name, value);
}

/// Notes the end of a record, and retries until the note is on disk. Then frees the record's place.
async fn settle(
    journal: &Journal,
    at: &At,
    state: State,
    last: Option<LastAttempt>,
    following: Vec<NewRecord>,
) {
    loop {
        let Some(records) = journal.opened() else { return };
        let (answer, answered) = oneshot::channel();
        let last = last.clone();
        let following = following.clone();
        let kept_bytes =
            last.as_ref().and_then(|last| last.body.as_ref()).map_or(0, Bytes::len) as u64;
        let settled = Settled { number: at.number, state, last, following: following.clone() };
        let shared = journal.clone();
        let number = at.number;
        records.settle(settled, move |done| {
            let done = done.map(|inserted| {
                let mut memory = shared.0.state.lock();
                match state {
                    State::Succeeded => memory.past.succeeded += 1,
                    State::Dead => memory.past.dead += 1,
                    State::Waiting | State::Cancelled => {}
                }
                memory.grown_bytes += kept_bytes;
                shared.ended_now(&mut memory, number, true);
                for (inserted, record) in inserted.into_iter().zip(following) {
                    if inserted.is_new {
                        memory.room.take(record.work.function(), record.work.bytes() as u64);
                        shared.add_new(&mut memory, inserted.number, record);
                    }
                }
            });
            shared.0.changed.notify_one();
            let _ = answer.send(done);
        });
        match answered.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::error!(
                id = %at.id,
                %error,
                "cannot note the end of an accepted invocation; trying again"
            ),
            Err(_) => return,
        }
        if journal.is_stopping() || journal.is_taken() {
            return;
        }
        tokio::time::sleep(DISK_PAUSE).await;
    }
}

/// Monotonic nanoseconds. All phases use this clock.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A number from 0 to 1.
fn random() -> f64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(now_ns()) as f64 / u64::MAX as f64
}
