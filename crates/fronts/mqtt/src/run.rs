//! Handles one message, from its arrival to the decision about its acknowledgement.

use std::sync::Arc;
use std::time::Duration;

use mote_core::accept::{AcceptError, Deferred};
use mote_core::body::Body;
use mote_core::invocation::headers;
use mote_core::{Fault, Invocation, Invoker, Routed, Trigger};
use mote_spec::mqtt::{Acknowledge, MqttOrder};

use crate::host::{Host, Level};
use crate::message::{self, ATTEMPTS_MAX, Next};
use crate::packet::Publish;
use crate::settings::Settings;

/// The first pause before a message is tried again, and the longest one. Each pause is twice as
/// long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The longest answer that is published.
const ANSWER_BYTES_MAX: u64 = 6 << 20;

/// The result of handling a message.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The message is acknowledged after this reply has been published.
    Done(Option<Publish>),
    /// The message is acknowledged, although its function has failed.
    GivenUp,
    /// The message is not acknowledged, because the function was removed or the node is stopping.
    Left,
    /// The journal did not accept the message. The broker has to send it again, after the messages
    /// before it.
    NotStored(String),
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) message: Publish,
    pub(crate) run: u64,
    pub(crate) outcome: Outcome,
}

/// Runs the function for a message, or hands the message to the journal.
pub(crate) async fn run<I: Invoker>(
    invoker: I,
    host: Arc<dyn Host>,
    settings: Arc<Settings>,
    message: Publish,
    run: u64,
) -> Ended {
    let outcome = match settings.trigger.acknowledge {
        Acknowledge::Answered => answered(&invoker, &*host, &settings, &message).await,
        Acknowledge::Stored => stored(&*host, &settings, &message).await,
    };
    Ended { message, run, outcome }
}

async fn answered<I: Invoker>(
    invoker: &I,
    host: &dyn Host,
    settings: &Settings,
    message: &Publish,
) -> Outcome {
    let mut attempts = 0;
    let mut pause = PAUSE_MIN;
    loop {
        let (next, why, wait) = match once(invoker, host, settings, message).await {
            Ok(Answer::Done(reply)) => return Outcome::Done(reply),
            Ok(Answer::Status(status, wait)) => {
                (message::after_status(status), format!("it answered {status}"), wait)
            }
            Err(fault) => {
                let text = fault.public_text(settings.function.as_str());
                (message::after_fault(&fault), text, None)
            }
        };
        attempts += u32::from(next == Next::Retry);
        let give_up = |text: String| {
            host.log(&settings.function, Level::Error, &text);
            Outcome::GivenUp
        };
        match next {
            Next::Leave => return Outcome::Left,
            Next::GiveUp => {
                let text = format!("[M1205] a message of {} is given up: {why}", message.topic);
                return give_up(text);
            }
            Next::Retry if attempts >= ATTEMPTS_MAX => {
                let topic = &message.topic;
                let text = format!(
                    "[M1205] a message of {topic} is given up after {attempts} attempts: {why}"
                );
                return give_up(text);
            }
            Next::Acknowledge | Next::Pause | Next::Retry => {}
        }
        let wait = wait.unwrap_or(pause).min(PAUSE_MAX);
        tokio::time::sleep(wait + jitter(host, wait)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// A random time of up to a quarter of `time`, so that messages that failed together are not tried
/// again together.
pub(crate) fn jitter(host: &dyn Host, time: Duration) -> Duration {
    time.mul_f64((host.random() >> 11) as f64 / (1u64 << 53) as f64 / 4.0)
}

enum Answer {
    Done(Option<Publish>),
    /// A status that is not an answer to the message, and the pause that the function asks for.
    Status(u16, Option<Duration>),
}

async fn once<I: Invoker>(
    invoker: &I,
    host: &dyn Host,
    settings: &Settings,
    message: &Publish,
) -> Result<Answer, Fault> {
    let route = invoker.route(settings.function.as_str(), || None).ok_or(Fault::NoSuchFunction)?;
    let limit_bytes = route.info().body_bytes_max;
    if message.payload.len() as u64 > limit_bytes {
        return Err(Fault::BodyTooLarge { limit_bytes });
    }
    let received_ns = host.now_ns();
    let invocation = Invocation {
        id: host.invocation_id(),
        trigger: Trigger::Mqtt,
        head: message::head(message),
        body: Body::whole(message.payload.clone()),
        received_ns,
        deadline_ns: received_ns + route.info().timeout_ms * 1_000_000,
        chain: None,
    };
    let reply = invoker.invoke(&route, invocation).await?;
    let status = reply.status;
    let fields = reply.headers;
    let answer_limit = || Fault::AnswerTooLarge { limit_bytes: ANSWER_BYTES_MAX };
    let body = reply.body.collect(ANSWER_BYTES_MAX).await.map_err(|_| answer_limit())?;
    if message::after_status(status) != Next::Acknowledge {
        let wait = headers(&fields).find(|(name, _)| *name == b"retry-after");
        let seconds = wait.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse().ok());
        return Ok(Answer::Status(status, seconds.map(Duration::from_secs)));
    }
    let topic = message::reply_to(&settings.trigger, message, |topic| settings.may_answer(topic));
    Ok(Answer::Done(message::reply(topic, message, status, &fields, body)))
}

async fn stored(host: &dyn Host, settings: &Settings, message: &Publish) -> Outcome {
    let by_topic = settings.trigger.order == MqttOrder::Topic;
    let function = settings.function.as_str();
    let body = message.payload.clone();
    let deferred = Deferred {
        key: message::idempotency_key(message).map(str::to_owned),
        order: by_topic.then(|| message.topic.clone()),
        ..Deferred::new(function, Trigger::Mqtt, message::head(message), body)
    };
    match host.journal().accept(deferred).await {
        Ok(_) => Outcome::Done(None),
        Err(AcceptError::Stopping) => Outcome::Left,
        Err(
            error @ (AcceptError::Full(_)
            | AcceptError::DiskFull(_)
            | AcceptError::Disk(_)
            | AcceptError::Away(_)
            | AcceptError::TakenOver(_)),
        ) => Outcome::NotStored(error.to_string()),
        Err(AcceptError::Invalid(why)) => {
            let text = format!("[M1205] a message of {} is given up: {why}", message.topic);
            host.log(&settings.function, Level::Error, &text);
            Outcome::GivenUp
        }
    }
}
