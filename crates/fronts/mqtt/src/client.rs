//! The task of one trigger: it keeps a connection to the broker, runs the messages that arrive, and
//! acknowledges those that have run.
//!
//! The task is on the data path and polls the invocations of its messages itself, so that no other
//! thread or task is woken for a message. Running messages continue while the broker is
//! unreachable. A reply is written before the acknowledgement of its message, on the same
//! connection. So a broker that has received the acknowledgement has also received the reply, and
//! replies need no separate state.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use mote_core::turn::Turn;
use mote_core::{Invoker, Routed};
use mote_spec::mqtt::Acknowledge;
use mote_spec::mqtt::MqttOrder;
use mote_spec::mqtt::MqttSession;
use mote_spec::mqtt::is_topic;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::dial::{
    BACKOFF_MAX, BACKOFF_MIN, CONNECT_PATIENCE, KEEP_ALIVE_S, LOG_EVERY, Opened,
    PACKET_EXTRA_BYTES, PING_PATIENCE, STABLE, Stream, connack, open, unreachable,
};
use crate::host::{Host, Level};
use crate::message;
use crate::packet::{self, Connect, Malformed, Packet, Publish, Read};
use crate::reasons::reason_text;
use crate::run::{self, Ended, Outcome, jitter};
use crate::session::{Arrival, Session};
use crate::settings::Settings;
use crate::state::{Problem, Shared, State};

/// How many seconds a broker keeps a persistent session (MQTT 5) while the node is disconnected. If
/// the node is discarded, nobody ends its session, which must not occupy the broker forever.
const SESSION_EXPIRY_S: u32 = 7 * 24 * 3600;
/// The most bytes of messages that are held at once. Further messages wait in the broker.
const HELD_BYTES_MAX: usize = 8 << 20;
/// When this many bytes wait to be written, the client stops reading.
const UNWRITTEN_BYTES_MAX: usize = 1 << 20;
/// How long running messages may take to end when the trigger ends.
const DRAIN_PATIENCE: Duration = Duration::from_secs(25);
/// How long a client tries to end the session of a trigger that has been removed.
const END_PATIENCE: Duration = Duration::from_secs(600);

/// What a trigger has to do.
#[derive(Debug, Clone)]
pub(crate) enum Order {
    /// Receive messages with these settings.
    Run(Arc<Settings>),
    /// Finish the running messages, and keep the session for the next start of the node.
    Stop,
    /// Finish the running messages and end the session, because the trigger has been removed.
    End(Arc<Settings>),
}

/// Why a connection ended.
enum Lost {
    /// A new order has arrived.
    Ordered,
    Failed(Problem),
}

impl From<Malformed> for Lost {
    fn from(error: Malformed) -> Self {
        Lost::Failed(error.into())
    }
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        Lost::Failed(unreachable(&error))
    }
}

type Run = Pin<Box<dyn Future<Output = Ended> + Send>>;

pub(crate) struct Client<I: Invoker> {
    invoker: I,
    host: Arc<dyn Host>,
    orders: watch::Receiver<Order>,
    shared: Arc<Shared>,
    settings: Arc<Settings>,
    session: Session,
    runs: FuturesUnordered<Run>,
    /// For each topic with a running message, the messages that wait for that one to end.
    topics: HashMap<String, VecDeque<(Publish, u64)>>,
    /// The number of messages that run or wait, and their bytes.
    held: usize,
    held_bytes: usize,
    /// Whether waiting messages may begin to run.
    begins: bool,
    link: Link,
    logged: Option<(Instant, Problem)>,
    /// When the log last named a response topic to which no answer was published.
    refusal_logged: Option<Instant>,
}

/// The state of one connection.
#[derive(Default)]
struct Link {
    is_up: bool,
    input: BytesMut,
    output: BytesMut,
    /// How many bytes of a message that is too large still have to be skipped.
    skip: usize,
    packet_bytes_max: usize,
    keep_alive_s: u16,
    /// The packet ids of replies that the broker has not acknowledged, and how many of those it
    /// permits.
    replies: HashSet<u16>,
    replies_max: usize,
    reply_bytes_max: usize,
    last_id: u16,
    /// Messages whose replies wait until the broker has acknowledged earlier replies.
    waiting: VecDeque<(u16, u8, Publish)>,
    /// The packet id of a subscription that the broker has not acknowledged.
    subscribing: Option<u16>,
    pinged: Option<Instant>,
    wrote: Option<Instant>,
    /// The problem that ends the connection.
    problem: Option<Problem>,
}

impl<I: Invoker> Client<I> {
    pub(crate) fn new(
        invoker: I,
        host: Arc<dyn Host>,
        settings: Arc<Settings>,
        orders: watch::Receiver<Order>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            invoker,
            host,
            orders,
            shared,
            settings,
            session: Session::default(),
            runs: FuturesUnordered::new(),
            topics: HashMap::new(),
            held: 0,
            held_bytes: 0,
            begins: true,
            link: Link::default(),
            logged: None,
            refusal_logged: None,
        }
    }

    /// Runs until the trigger ends.
    pub(crate) async fn run(mut self) {
        let mut backoff = BACKOFF_MIN;
        loop {
            let order = self.orders.borrow_and_update().clone();
            match order {
                Order::Run(settings) => self.settings = settings,
                Order::Stop => return,
                Order::End(settings) => {
                    self.settings = settings;
                    if self.end_session().await {
                        return;
                    }
                    // Meanwhile, the function has been deployed again.
                    continue;
                }
            }
            let began = Instant::now();
            self.begins = true;
            match self.connection().await {
                Lost::Ordered => continue,
                Lost::Failed(problem) => self.report(problem),
            }
            if began.elapsed() >= STABLE {
                backoff = BACKOFF_MIN;
            }
            let pause = backoff + jitter(&*self.host, backoff);
            backoff = (backoff * 2).min(BACKOFF_MAX);
            let mut orders = self.orders.clone();
            self.meanwhile(async move {
                tokio::select! {
                    _ = sleep(pause) => {}
                    _ = orders.changed() => {}
                }
            })
            .await;
        }
    }

    /// Does `work` while messages that arrived earlier continue to run.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                Some(ended) = self.runs.next(), if !self.runs.is_empty() => self.ended(ended),
            }
        }
    }

    fn report(&mut self, problem: Problem) {
        let is_old = self
            .logged
            .as_ref()
            .is_some_and(|(at, last)| last.code() == problem.code() && at.elapsed() < LOG_EVERY);
        if !is_old {
            let text = format!(
                "[{}] mqtt trigger {} at {}: {problem}; the node tries again",
                problem.code(),
                self.settings.trigger.filter,
                self.settings.address,
            );
            self.host.log(&self.settings.function, Level::Warn, &text);
            self.logged = Some((Instant::now(), problem.clone()));
        }
        self.shared.set(State::Failing(problem));
    }

    /// Logs that no answer is published to the response topic of a message.
    fn report_refused_topic(&mut self, message: &Publish) {
        let settings = &self.settings;
        let allowed = |topic: &str| settings.may_answer(topic);
        let Some(topic) = message::refused_topic(&settings.trigger, message, allowed) else {
            return;
        };
        if self.refusal_logged.is_some_and(|at| at.elapsed() < LOG_EVERY) {
            return;
        }
        let why = match is_topic(topic) {
            true => "it is not allowed: [allow] mqtt of the function names no filter for it",
            false => "nothing can be published to it",
        };
        let text = format!(
            "mqtt trigger {} at {}: no answer is published to the response topic {} of a message, \
             because {why}",
            settings.trigger.filter,
            settings.address,
            topic.escape_debug(),
        );
        self.host.log(&settings.function, Level::Warn, &text);
        self.refusal_logged = Some(Instant::now());
    }

    /// Handles one connection, from its beginning to its end.
    async fn connection(&mut self) -> Lost {
        let mut orders = self.orders.clone();
        let settings = self.settings.clone();
        let host = self.host.clone();
        let connecting = async move {
            tokio::select! {
                biased;
                _ = orders.changed() => Err(Lost::Ordered),
                opened = open(&*host, &settings.connection) => opened.map_err(Lost::Failed),
            }
        };
        let opened = match self.meanwhile(connecting).await {
            Ok(opened) => opened,
            Err(lost) => return lost,
        };
        self.link = Link { is_up: true, ..Link::default() };
        let lost = match self.handshake(opened).await {
            Ok(stream) => self.serve(stream).await,
            Err(lost) => lost,
        };
        self.link = Link::default();
        lost
    }

    /// Exchanges CONNECT, CONNACK and SUBSCRIBE.
    async fn handshake(&mut self, opened: Opened) -> Result<Box<dyn Stream>, Lost> {
        let Opened { mut stream, username, password } = opened;
        let settings = self.settings.clone();
        let trigger = &settings.trigger;
        let version = trigger.version;
        let is_clean = trigger.session == MqttSession::Clean;
        let mut hello = BytesMut::new();
        let connect = Connect {
            version,
            client_id: &settings.client_id,
            clean: is_clean,
            expiry_s: if is_clean { 0 } else { SESSION_EXPIRY_S },
            keep_alive_s: KEEP_ALIVE_S,
            receive_maximum: trigger.inflight,
            username: username.as_deref(),
            password: password.as_deref().map(str::as_bytes),
        };
        packet::connect(&mut hello, &connect);
        let mut input = BytesMut::with_capacity(16 << 10);
        let shaking = timeout(CONNECT_PATIENCE, async {
            stream.write_all(&hello).await?;
            stream.flush().await?;
            let ack = connack(&mut stream, &mut input, version).await.map_err(Lost::Failed)?;
            Ok::<_, Lost>((stream, ack, input))
        });
        let mut orders = self.orders.clone();
        let shaking = async move {
            tokio::select! {
                biased;
                _ = orders.changed() => Err(Lost::Ordered),
                shaken = shaking => shaken.unwrap_or_else(|_| {
                    let text = "it did not answer in time".to_owned();
                    Err(Lost::Failed(Problem::Unreachable(text)))
                }),
            }
        };
        let (stream, ack, input) = self.meanwhile(shaking).await?;
        self.session.connected(ack.session_present && !is_clean);
        let route = self.invoker.route(settings.function.as_str(), || None);
        let body_bytes_max = route.map_or(0, |route| route.info().body_bytes_max);
        let body_bytes_max = usize::try_from(body_bytes_max).unwrap_or(usize::MAX);
        self.link.input = input;
        self.link.packet_bytes_max =
            body_bytes_max.saturating_add(PACKET_EXTRA_BYTES).min(packet::REMAINING_MAX);
        self.link.keep_alive_s = ack.keep_alive_s.unwrap_or(KEEP_ALIVE_S);
        self.link.replies_max = ack.receive_maximum.map_or(usize::MAX, usize::from);
        self.link.reply_bytes_max = ack.packet_bytes_max.map_or(usize::MAX, |max| max as usize);
        let id = self.link.next_id();
        // With a shared subscription, a client must not ask the broker to leave out the client's
        // own messages.
        let own = trigger.filter.starts_with("$share/");
        packet::subscribe(&mut self.link.output, version, id, &trigger.filter, trigger.qos, own);
        self.link.subscribing = Some(id);
        Ok(stream)
    }

    async fn serve(&mut self, stream: Box<dyn Stream>) -> Lost {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let keep_alive = Duration::from_secs(u64::from(self.link.keep_alive_s.max(1)));
        let mut timer = std::pin::pin!(sleep(keep_alive));
        let mut turn = Turn::new();
        let mut drained_by = None;
        loop {
            match self.take_packets(&mut turn) {
                Ok(()) => {}
                Err(lost) => return lost,
            }
            if let Some(problem) = self.link.problem.take() {
                return Lost::Failed(problem);
            }
            if turn.is_over() {
                turn = Turn::new();
                tokio::task::yield_now().await;
                // The input buffer may still contain complete packets.
                continue;
            }
            if drained_by.is_some() && self.runs.is_empty() && self.link.output.is_empty() {
                // Disconnecting keeps the session at the broker. `end_session` ends it.
                let mut bye = BytesMut::new();
                packet::disconnect(&mut bye, self.settings.trigger.version, false);
                let _ = timeout(PING_PATIENCE, writer.write_all(&bye)).await;
                let _ = timeout(PING_PATIENCE, writer.shutdown()).await;
                return Lost::Ordered;
            }
            let reads = drained_by.is_none() && self.has_room();
            tokio::select! {
                biased;
                changed = self.orders.changed(), if drained_by.is_none() => {
                    let _ = changed;
                    // Running messages are finished and acknowledged on this connection.
                    self.begins = false;
                    let by = Instant::now() + DRAIN_PATIENCE;
                    drained_by = Some(by);
                    timer.as_mut().reset(by);
                }
                Some(ended) = self.runs.next(), if !self.runs.is_empty() => {
                    self.ended(ended);
                    // The results of other messages that have ended meanwhile are written together
                    // with this one.
                    for _ in 1..mote_core::turn::TURN_ITEMS_MAX {
                        match self.runs.next().now_or_never() {
                            Some(Some(ended)) => self.ended(ended),
                            _ => break,
                        }
                    }
                }
                written = writer.write_buf(&mut self.link.output),
                    if !self.link.output.is_empty() =>
                {
                    match written {
                        Ok(0) => return Lost::from(io::Error::from(io::ErrorKind::WriteZero)),
                        Ok(_) => self.link.wrote = Some(Instant::now()),
                        Err(error) => return error.into(),
                    }
                    if self.link.output.is_empty() && let Err(error) = writer.flush().await {
                        return error.into();
                    }
                }
                read = reader.read_buf(&mut self.link.input), if reads => match read {
                    Ok(0) => {
                        let text = "it closed the connection".to_owned();
                        return Lost::Failed(Problem::Unreachable(text));
                    }
                    Ok(bytes) => turn.charge(0, bytes),
                    Err(error) => return error.into(),
                },
                () = &mut timer => {
                    if drained_by.is_some() {
                        return Lost::Ordered;
                    }
                    match self.keep_alive(keep_alive, reads) {
                        Ok(next) => timer.as_mut().reset(next),
                        Err(problem) => return Lost::Failed(problem),
                    }
                }
            }
        }
    }

    /// Pings the broker if nothing has been written for a while. Returns the time of the next
    /// check.
    fn keep_alive(&mut self, keep_alive: Duration, reads: bool) -> Result<Instant, Problem> {
        let now = Instant::now();
        // While the client does not read, a missing answer does not count, because the answer may
        // have arrived.
        if self.link.pinged.is_some_and(|at| reads && now >= at + PING_PATIENCE) {
            return Err(Problem::Unreachable("it does not answer any more".to_owned()));
        }
        let due = self.link.wrote.map_or(now, |wrote| wrote + keep_alive);
        if !self.link.output.is_empty() && now >= due + PING_PATIENCE {
            return Err(Problem::Unreachable("it does not read any more".to_owned()));
        }
        if now < due && self.link.pinged.is_none() {
            return Ok(due);
        }
        if now >= due && self.link.output.len() < UNWRITTEN_BYTES_MAX {
            packet::pingreq(&mut self.link.output);
            self.link.pinged.get_or_insert(now);
        }
        Ok(now + PING_PATIENCE)
    }

    /// Whether the client may read more messages. While replies wait for acknowledgements, it must
    /// read in any case.
    fn has_room(&self) -> bool {
        let most = usize::from(self.settings.trigger.inflight);
        let is_free = self.held < most && self.held_bytes < HELD_BYTES_MAX;
        self.link.output.len() < UNWRITTEN_BYTES_MAX && (is_free || !self.link.waiting.is_empty())
    }

    /// Handles the packets that have arrived, as long as there is room for messages.
    fn take_packets(&mut self, turn: &mut Turn) -> Result<(), Lost> {
        while !turn.is_over() && self.has_room() {
            let link = &mut self.link;
            if link.skip > 0 {
                let bytes = link.skip.min(link.input.len());
                link.input.advance(bytes);
                link.skip -= bytes;
                if link.skip > 0 {
                    break;
                }
            }
            let version = self.settings.trigger.version;
            match packet::read(&mut link.input, version, link.packet_bytes_max)? {
                Read::More => break,
                Read::Packet(packet) => self.arrived(packet)?,
                Read::TooLarge { skip, topic, qos, id } => {
                    link.skip = skip;
                    let text = format!(
                        "[M1205] a message of {topic} is given up: it is larger than the body \
                         limit; raise it: body in [limits] or body_max in [http]"
                    );
                    self.host.log(&self.settings.function, Level::Error, &text);
                    self.shared.count(|counts| {
                        counts.received += 1;
                        counts.given_up += 1;
                    });
                    self.acknowledge(id, qos);
                }
            }
            turn.charge(1, 0);
        }
        Ok(())
    }

    fn arrived(&mut self, packet: Packet) -> Result<(), Lost> {
        match packet {
            Packet::Publish(message) => self.message(message),
            Packet::PubRel(id) => {
                self.session.released(id);
                packet::pubcomp(&mut self.link.output, id);
            }
            Packet::PubAck(id, reason) => {
                self.link.replies.remove(&id);
                if reason >= 0x80 {
                    let text =
                        format!("[M1207] the broker refused a reply: {}", reason_text(reason));
                    self.host.log(&self.settings.function, Level::Warn, &text);
                }
                self.send_waiting();
            }
            Packet::SubAck(id, reason) if self.link.subscribing == Some(id) => {
                self.link.subscribing = None;
                if reason >= 0x80 {
                    let text = match reason {
                        // MQTT 3.1.1 has only this reason code, so there is no reason to name.
                        0x80 => "it gives no reason".to_owned(),
                        reason => reason_text(reason),
                    };
                    return Err(Lost::Failed(Problem::Subscription(text)));
                }
                let Settings { function, trigger, address, .. } = &*self.settings;
                let filter = &trigger.filter;
                if reason < trigger.qos {
                    let text =
                        format!("mqtt trigger {filter}: the broker grants only QoS {reason}");
                    self.host.log(function, Level::Warn, &text);
                }
                if self.logged.take().is_some() {
                    let text = format!("mqtt trigger {filter}: subscribed at {address}");
                    self.host.log(function, Level::Info, &text);
                }
                self.shared.set(State::Subscribed);
            }
            Packet::PingResp => self.link.pinged = None,
            Packet::Disconnect(reason) => {
                let text = format!("it ended the connection: {}", reason_text(reason));
                return Err(Lost::Failed(Problem::Unreachable(text)));
            }
            // Replies have at most QoS 1, so these packets have no meaning here.
            Packet::PubRec(..) | Packet::PubComp(_) => {}
            Packet::SubAck(..) | Packet::UnsubAck(_) => {}
            Packet::ConnAck(_) => return Err(Malformed("a second CONNACK").into()),
        }
        Ok(())
    }

    fn message(&mut self, message: Publish) {
        self.shared.count(|counts| counts.received += 1);
        let run = match self.session.arrived(&message) {
            Arrival::Run(run) => run,
            Arrival::Running => return,
            Arrival::Done(reply) => return self.answer(message.id, message.qos, reply),
        };
        self.held += 1;
        self.held_bytes += message.payload.len();
        self.shared.count(|counts| counts.running += 1);
        // The journal keeps the order itself, so only messages answered here wait for each other.
        let trigger = &self.settings.trigger;
        if trigger.order == MqttOrder::Topic && trigger.acknowledge == Acknowledge::Answered {
            if let Some(waiting) = self.topics.get_mut(&message.topic) {
                waiting.push_back((message, run));
                return;
            }
            self.topics.insert(message.topic.clone(), VecDeque::new());
        }
        self.begin(message, run);
    }

    fn begin(&mut self, message: Publish, run: u64) {
        let invoker = self.invoker.clone();
        let host = self.host.clone();
        let settings = self.settings.clone();
        self.runs.push(Box::pin(run::run(invoker, host, settings, message, run)));
    }

    fn ended(&mut self, ended: Ended) {
        let Ended { message, run, outcome } = ended;
        self.leave(&message);
        let id = message.id;
        let qos = message.qos;
        match outcome {
            Outcome::Done(reply) => {
                self.shared.count(|counts| counts.done += 1);
                self.report_refused_topic(&message);
                self.finished(id, qos, run, reply);
            }
            Outcome::GivenUp => {
                self.shared.count(|counts| counts.given_up += 1);
                self.finished(id, qos, run, None);
            }
            Outcome::Left => self.session.forget(id, run),
            Outcome::NotStored(why) => {
                self.session.forget(id, run);
                // The connection is ended. On the next one, the broker sends every unacknowledged
                // message again in its order.
                self.link.problem = Some(Problem::Journal(why));
            }
        }
        match self.topics.get_mut(&message.topic).map(VecDeque::pop_front) {
            Some(Some((next, next_run))) if self.begins => self.begin(next, next_run),
            Some(Some((next, next_run))) => {
                // The trigger begins no more messages. The broker sends these again.
                let waiting = self.topics.remove(&message.topic).unwrap_or_default();
                for (message, run) in std::iter::once((next, next_run)).chain(waiting) {
                    self.leave(&message);
                    self.session.forget(message.id, run);
                }
            }
            Some(None) => drop(self.topics.remove(&message.topic)),
            None => {}
        }
    }

    /// Counts a message as no longer held.
    fn leave(&mut self, message: &Publish) {
        self.held -= 1;
        self.held_bytes -= message.payload.len();
        self.shared.count(|counts| counts.running -= 1);
    }

    fn finished(&mut self, id: u16, qos: u8, run: u64, reply: Option<Publish>) {
        let is_due = qos == 0 || self.session.ended(id, run, reply.as_ref());
        if self.link.is_up && (is_due || reply.is_some()) {
            if is_due {
                self.answer(id, qos, reply);
            } else if let Some(reply) = reply {
                // The broker no longer expects an acknowledgement, but someone may still wait for
                // the reply.
                self.answer(0, 0, Some(reply));
            }
        }
    }

    /// Publishes the reply and acknowledges the message, in this order.
    fn answer(&mut self, id: u16, qos: u8, reply: Option<Publish>) {
        let Some(reply) = reply else { return self.acknowledge(id, qos) };
        if reply.payload.len() + PACKET_EXTRA_BYTES / 2 > self.link.reply_bytes_max {
            let text = "[M1207] a reply is larger than the broker permits; it is not published";
            self.host.log(&self.settings.function, Level::Warn, text);
            return self.acknowledge(id, qos);
        }
        self.link.waiting.push_back((id, qos, reply));
        self.send_waiting();
    }

    /// Publishes the waiting replies, as many as the broker permits.
    fn send_waiting(&mut self) {
        while self.link.replies.len() < self.link.replies_max
            && let Some((id, qos, mut reply)) = self.link.waiting.pop_front()
        {
            if reply.qos > 0 {
                reply.id = self.link.next_id();
                self.link.replies.insert(reply.id);
            }
            packet::publish(&mut self.link.output, self.settings.trigger.version, &reply);
            self.acknowledge(id, qos);
        }
    }

    fn acknowledge(&mut self, id: u16, qos: u8) {
        match qos {
            1 => packet::puback(&mut self.link.output, id),
            2 => packet::pubrec(&mut self.link.output, id),
            _ => return,
        }
        self.session.acknowledged(id);
    }

    /// Ends the session at the broker, which also unsubscribes. Returns `false` if the trigger is
    /// wanted again.
    async fn end_session(&mut self) -> bool {
        let settings = self.settings.clone();
        let until = Instant::now() + END_PATIENCE;
        let mut backoff = BACKOFF_MIN;
        while Instant::now() < until {
            let mut orders = self.orders.clone();
            let attempt = timeout(CONNECT_PATIENCE, forget_session(&*self.host, &settings));
            tokio::select! {
                biased;
                _ = orders.changed() => return false,
                ended = attempt => if matches!(ended, Ok(Ok(()))) {
                    // An order that arrives at this very moment must not be lost.
                    return !self.orders.has_changed().unwrap_or(false);
                },
            }
            tokio::select! {
                _ = orders.changed() => return false,
                () = sleep_until((Instant::now() + backoff).min(until)) => {}
            }
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
        let text = format!(
            "[M1201] mqtt trigger {}: its session could not be ended at {}; the broker may keep \
             messages for client {}",
            settings.trigger.filter, settings.address, settings.client_id
        );
        self.host.log(&settings.function, Level::Warn, &text);
        true
    }
}

impl Link {
    /// Returns a packet id that is not in use.
    fn next_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if !self.replies.contains(&self.last_id) {
                return self.last_id;
            }
        }
    }
}

/// Connects once as a client without a session. The broker then forgets the client's session.
async fn forget_session(host: &dyn Host, settings: &Settings) -> Result<(), Lost> {
    let trigger = &settings.trigger;
    let opened = open(host, &settings.connection).await.map_err(Lost::Failed)?;
    let Opened { mut stream, username, password } = opened;
    let mut bytes = BytesMut::new();
    let connect = Connect {
        version: trigger.version,
        client_id: &settings.client_id,
        clean: true,
        expiry_s: 0,
        keep_alive_s: KEEP_ALIVE_S,
        receive_maximum: 1,
        username: username.as_deref(),
        password: password.as_deref().map(str::as_bytes),
    };
    packet::connect(&mut bytes, &connect);
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    bytes.clear();
    connack(&mut stream, &mut bytes, trigger.version).await.map_err(Lost::Failed)?;
    bytes.clear();
    packet::disconnect(&mut bytes, trigger.version, true);
    stream.write_all(&bytes).await?;
    stream.shutdown().await?;
    Ok(())
}
