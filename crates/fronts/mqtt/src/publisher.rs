//! Publishes messages for the other parts of the node.
//!
//! Messages for the same broker with the same credentials share one connection and one task on the
//! data path. Both exist from the first message until a minute after the last one. A message
//! belongs to the task until the broker has acknowledged it or [`PATIENCE`] has passed. After a
//! reconnection, the task sends unacknowledged messages again. With MQTT 5, the broker keeps the
//! session meanwhile, so a message with QoS 2 is not published twice.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use base32ct::{Base32Unpadded, Encoding as _};
use bytes::{Bytes, BytesMut};
use mote_core::publish::{Message, Publish, PublishError, PublishFuture};
use mote_core::shares::{Exceeded, Share, Shares};
use mote_spec::mqtt::{Connection, LOCAL, MqttVersion};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::dial::{
    BACKOFF_MAX, BACKOFF_MIN, CONNECT_PATIENCE, KEEP_ALIVE_S, LOG_EVERY, Opened,
    PACKET_EXTRA_BYTES, PING_PATIENCE, STABLE, Stream, connack, open,
};
use crate::host::Host;
use crate::packet::{self, ConnAck, Connect, Packet, Read};
use crate::reasons::reason_text;
use crate::run::jitter;
use crate::state::Problem;

/// How long a message may take from its arrival at this publisher until the broker has acknowledged
/// it.
const PATIENCE: Duration = Duration::from_secs(20);
/// A connection without messages is closed after this time.
const IDLE: Duration = Duration::from_secs(60);
/// The most connections for publishing.
const LINKS_MAX: usize = 64;
/// The most messages that wait or are unacknowledged, for all brokers together. One owner may have
/// half of them.
const MESSAGES_MAX: usize = 4_096;
/// The most bytes of these messages. One owner may have half of them.
const BYTES_MAX: usize = 16 << 20;
/// The most unacknowledged messages of one connection, if the broker permits as many.
const WINDOW_MAX: usize = 64;
/// When this many bytes wait to be written, further messages wait.
const UNWRITTEN_BYTES_MAX: usize = 1 << 20;
/// How many seconds a broker keeps the session after a connection broke.
const SESSION_EXPIRY_S: u32 = 300;
/// Some brokers end the connection instead of refusing a message. If the connection has ended this
/// often after the same message, that message is not sent again, so that the other messages get
/// their turn.
const CUTS_MAX: u32 = 3;

/// The topic prefix with which the node asks `mote-broker` whether it would retain a message for
/// the rest of the topic. No client may publish or subscribe to such topics.
const ASK_TO_KEEP: &str = "$keep/";

/// Publishes messages at brokers. A clone is another handle to the same publisher.
#[derive(Clone)]
pub struct Publisher(Arc<Inner>);

struct Inner {
    host: Arc<dyn Host>,
    runtime: Handle,
    links: Mutex<HashMap<Connection, mpsc::UnboundedSender<Job>>>,
    messages: Shares<String>,
    bytes: Shares<String>,
    stopping: watch::Sender<bool>,
}

/// A message and the caller that waits for it.
struct Job {
    message: packet::Publish,
    deadline: Instant,
    cuts: u32,
    answer: oneshot::Sender<Result<(), PublishError>>,
    _held: (Share<String>, Share<String>),
}

impl Job {
    fn end(self, result: Result<(), PublishError>) {
        // The caller may have stopped waiting.
        let _ = self.answer.send(result);
    }
}

impl Publisher {
    /// A publisher without any connections. The tasks will run on `runtime`.
    pub fn new(host: Arc<dyn Host>, runtime: Handle) -> Self {
        Self(Arc::new(Inner {
            host,
            runtime,
            links: Mutex::default(),
            messages: Shares::new(MESSAGES_MAX, MESSAGES_MAX / 2),
            bytes: Shares::new(BYTES_MAX, BYTES_MAX / 2),
            stopping: watch::Sender::new(false),
        }))
    }

    /// Accepts no further messages, and ends the connections when their messages are acknowledged.
    /// Takes at most `grace`.
    pub async fn stop(&self, grace: Duration) {
        self.0.stopping.send_replace(true);
        let ended = self.0.stopping.closed();
        let _ = timeout(grace, ended).await;
    }

    /// Whether any message is waiting or unacknowledged whose owner `wanted` selects.
    pub fn has_messages_of(&self, wanted: impl Fn(&str) -> bool) -> bool {
        self.0.messages.is_taken_by(|owner| wanted(owner))
    }

    /// Publishes a message that has already been checked.
    fn begin(&self, mut message: Message, deadline: Instant) -> Begun {
        if *self.0.stopping.borrow() {
            return Err(PublishError::Stopping);
        }
        let bytes = message.bytes();
        let owner = std::mem::take(&mut message.owner);
        let full = |exceeded| {
            PublishError::Full(match exceeded {
                Exceeded::Share => format!("too many messages of {owner} wait for their broker"),
                Exceeded::Total => "too many messages wait for their brokers".to_owned(),
            })
        };
        let held = (
            self.0.messages.take(owner.clone(), 1).map_err(full)?,
            self.0.bytes.take(owner.clone(), bytes).map_err(full)?,
        );
        let (answer, answered) = oneshot::channel();
        let mut connection = message.connection.clone();
        connection.broker.get_or_insert_with(|| self.0.host.broker());
        let job = Job { message: to_packet(message), deadline, cuts: 0, answer, _held: held };
        let mut links = self.0.links.lock();
        if let Some(link) = links.get(&connection) {
            // A task removes its sender under this lock before it drops the receiver, so this send
            // succeeds.
            let _ = link.send(job);
            return Ok(answered);
        }
        if links.len() >= LINKS_MAX {
            let text = format!("the node publishes at {LINKS_MAX} brokers at once, not more");
            return Err(PublishError::Full(text));
        }
        let (sender, jobs) = mpsc::unbounded_channel();
        let _ = sender.send(job);
        links.insert(connection.clone(), sender);
        self.0.runtime.spawn(Link::new(self.0.clone(), connection, jobs).run());
        Ok(answered)
    }
}

/// The future answer to a message, or the reason why the message is not sent.
type Begun = Result<oneshot::Receiver<Result<(), PublishError>>, PublishError>;

async fn ended(begun: Begun) -> Result<(), PublishError> {
    begun?.await.unwrap_or(Err(PublishError::Stopping))
}

impl Publish for Publisher {
    fn publish(&self, message: Message) -> PublishFuture {
        if let Some(mistake) = message.mistake() {
            return Box::pin(std::future::ready(Err(PublishError::Invalid(mistake))));
        }
        let deadline = Instant::now() + PATIENCE;
        let Some(question) = self.question(&message) else {
            return Box::pin(ended(self.begin(message, deadline)));
        };
        let publisher = self.clone();
        let asked = self.begin(question, deadline);
        Box::pin(async move {
            match ended(asked).await {
                Ok(()) => ended(publisher.begin(message, deadline)).await,
                Err(PublishError::Refused(_)) => {
                    Err(PublishError::Full(has_its_share(&message.topic)))
                }
                Err(error) => Err(error),
            }
        })
    }
}

impl Publisher {
    /// If the node has namespaces: the question that precedes a message with retain to the node's
    /// own broker. The question is a message for the topic with the prefix [`ASK_TO_KEEP`]. The
    /// broker refuses it if the namespace has used up its share.
    fn question(&self, message: &Message) -> Option<Message> {
        if !message.retain || message.payload.is_empty() {
            return None;
        }
        let host = &self.0.host;
        let is_local = match &message.connection.broker {
            Some(broker) => broker == LOCAL,
            None => host.broker() == LOCAL,
        };
        if !is_local || !host.local()?.divides_kept {
            return None;
        }
        // MQTT 3.1.1 cannot refuse a message.
        let connection = Connection { version: MqttVersion::V5, ..message.connection.clone() };
        let topic = format!("{ASK_TO_KEEP}{}", message.topic);
        Some(Message::new(message.owner.clone(), connection, topic, Bytes::new()))
    }
}

/// Why a message with retain is not published.
fn has_its_share(topic: &str) -> String {
    format!(
        "{topic}: the broker keeps as many messages as the namespace of this topic may have; publish \
         an empty message with retain for a topic that is not needed any more"
    )
}

fn to_packet(message: Message) -> packet::Publish {
    packet::Publish {
        dup: false,
        qos: message.qos,
        retain: message.retain,
        topic: message.topic,
        id: 0,
        payload: message.payload,
        content_type: message.content_type,
        response_topic: message.response_topic,
        correlation: message.correlation,
        user: message.user,
    }
}

/// The task of one connection.
struct Link {
    inner: Arc<Inner>,
    connection: Connection,
    client_id: String,
    jobs: mpsc::UnboundedReceiver<Job>,
    stopping: watch::Receiver<bool>,
    /// Messages that have not been sent on this connection.
    waiting: VecDeque<Job>,
    /// Unacknowledged messages in the order in which they were sent.
    sent: VecDeque<Sent>,
    /// Whether the next connection must begin a new session, because the broker's session may not
    /// match `sent`.
    is_fresh: bool,
    last_id: u16,
    input: BytesMut,
    output: BytesMut,
    problem: Option<Problem>,
    logged: Option<(Instant, &'static str)>,
}

struct Sent {
    job: Job,
    /// Whether the broker has received the message and the task has sent PUBREL.
    is_released: bool,
}

/// Why a connection ended.
enum End {
    /// There is nothing to publish.
    Idle,
    Failed(Problem),
}

impl From<Problem> for End {
    fn from(problem: Problem) -> Self {
        End::Failed(problem)
    }
}

impl Link {
    fn new(inner: Arc<Inner>, connection: Connection, jobs: mpsc::UnboundedReceiver<Job>) -> Self {
        let mut hash = Sha256::new();
        let address = connection.broker.as_deref().unwrap_or_default();
        let username = connection.username.as_deref().unwrap_or_default();
        let certificate = connection.certificate.as_deref().unwrap_or_default();
        let version = if connection.version == MqttVersion::V5 { "5" } else { "4" };
        let password = connection.password.as_deref().unwrap_or_default();
        let ca = connection.ca.as_deref().unwrap_or_default();
        let id = inner.host.node_id();
        for part in [&id, "publish", address, username, password, certificate, ca, version] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let text = Base32Unpadded::encode_string(&hash.finalize());
        let stopping = inner.stopping.subscribe();
        Self {
            inner,
            connection,
            client_id: format!("mote{}", &text[..19]),
            jobs,
            stopping,
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            is_fresh: true,
            last_id: 0,
            input: BytesMut::new(),
            output: BytesMut::new(),
            problem: None,
            logged: None,
        }
    }

    async fn run(mut self) {
        let mut backoff = BACKOFF_MIN;
        loop {
            while let Ok(job) = self.jobs.try_recv() {
                self.waiting.push_back(job);
            }
            if self.is_idle() && self.leaves() {
                return;
            }
            let began = Instant::now();
            let End::Failed(problem) = self.connection().await else { continue };
            self.cut();
            self.report(problem);
            if began.elapsed() >= STABLE {
                backoff = BACKOFF_MIN;
            }
            let pause = Instant::now() + backoff + jitter(&*self.inner.host, backoff);
            backoff = (backoff * 2).min(BACKOFF_MAX);
            self.meanwhile(sleep_until(pause)).await;
            if *self.stopping.borrow() {
                // The broker is unreachable, and a stopping node has no time to wait for it.
                self.expire(Instant::now() + PATIENCE);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty()
    }

    /// Ends the task, unless another message has arrived. Returns whether it ends.
    fn leaves(&mut self) -> bool {
        let mut links = self.inner.links.lock();
        if !self.jobs.is_empty() {
            return false;
        }
        links.remove(&self.connection);
        true
    }

    /// Does `work` while messages arrive and expire. Ends early if all messages have expired or the
    /// node stops.
    async fn meanwhile(&mut self, work: impl Future<Output = ()>) {
        let mut work = std::pin::pin!(work);
        loop {
            self.expire(Instant::now());
            let Some(next) = self.next_deadline() else { return };
            tokio::select! {
                biased;
                () = &mut work => return,
                _ = self.stopping.changed() => return,
                Some(job) = self.jobs.recv() => self.waiting.push_back(job),
                () = sleep_until(next) => {}
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let sent = self.sent.iter().map(|sent| sent.job.deadline).min();
        let waiting = self.waiting.front().map(|job| job.deadline);
        sent.into_iter().chain(waiting).min()
    }

    /// Gives up messages whose time has passed.
    fn expire(&mut self, now: Instant) {
        let address = self.connection.broker.as_deref().unwrap_or_default();
        let text = match &self.problem {
            Some(problem) => format!("{address}: {problem}"),
            None => format!("{address}: the broker did not acknowledge the message in time"),
        };
        let error = || PublishError::Unavailable(text.clone());
        while let Some(job) = self.waiting.pop_front_if(|job| job.deadline <= now) {
            job.end(Err(error()));
        }
        for at in (0..self.sent.len()).rev() {
            if self.sent[at].job.deadline <= now
                && let Some(sent) = self.sent.remove(at)
            {
                // The broker's session may still know the packet id of this message.
                self.is_fresh = true;
                sent.job.end(Err(error()));
            }
        }
    }

    /// Called when the connection has ended. The message that was sent first may be the reason.
    fn cut(&mut self) {
        self.input.clear();
        self.output.clear();
        let Some(first) = self.sent.front_mut() else { return };
        first.job.cuts += 1;
        if first.job.cuts >= CUTS_MAX
            && let Some(sent) = self.sent.pop_front()
        {
            self.is_fresh = true;
            let text = "the broker ended the connection each time the message was sent".to_owned();
            sent.job.end(Err(PublishError::Unavailable(text)));
        }
    }

    fn report(&mut self, problem: Problem) {
        let code = problem.code();
        let is_old = self.logged.is_some_and(|(at, last)| last == code && at.elapsed() < LOG_EVERY);
        if !is_old {
            let broker = self.connection.broker.as_deref().unwrap_or_default();
            tracing::warn!("[{code}] publishing at {broker}: {problem}; the node tries again");
            self.logged = Some((Instant::now(), code));
        }
        self.problem = Some(problem);
    }

    /// Handles one connection, from its beginning to its end.
    async fn connection(&mut self) -> End {
        let host = self.inner.host.clone();
        let connection = self.connection.clone();
        let client_id = self.client_id.clone();
        let is_fresh = self.is_fresh;
        let mut result = None;
        let connecting = async {
            result = Some(connect(&*host, &connection, &client_id, is_fresh).await);
        };
        self.meanwhile(connecting).await;
        match result {
            Some(Ok(connected)) => match self.serve(connected).await {
                Ok(()) => End::Idle,
                Err(problem) => End::Failed(problem),
            },
            Some(Err(problem)) => End::Failed(problem),
            None => End::Failed(Problem::Unreachable("it did not answer in time".to_owned())),
        }
    }

    /// Publishes until there has been no message for a while.
    async fn serve(&mut self, connected: Connected) -> Result<(), Problem> {
        let Connected { stream, ack, input } = connected;
        self.input = input;
        let window = ack.receive_maximum.map_or(WINDOW_MAX, usize::from).min(WINDOW_MAX);
        self.resume(ack.session_present, window);
        let keep_alive =
            Duration::from_secs(ack.keep_alive_s.unwrap_or(KEEP_ALIVE_S).max(1).into());
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut wrote = Instant::now();
        let mut used = Instant::now();
        let mut pinged: Option<Instant> = None;
        self.problem = None;
        let mut is_stopping = *self.stopping.borrow();
        loop {
            self.take_packets(&mut pinged)?;
            self.send_waiting(window, &ack);
            let now = Instant::now();
            if !self.is_idle() {
                used = now;
            } else if self.output.is_empty() && (is_stopping || now >= used + IDLE) {
                let mut bye = BytesMut::new();
                packet::disconnect(&mut bye, self.connection.version, true);
                let _ = timeout(PING_PATIENCE, writer.write_all(&bye)).await;
                let _ = timeout(PING_PATIENCE, writer.shutdown()).await;
                self.is_fresh = true;
                return Ok(());
            }
            if self.next_deadline().is_some_and(|at| at <= now) {
                self.expire(now);
                if self.is_fresh {
                    let text = "it does not acknowledge messages".to_owned();
                    return Err(Problem::Unreachable(text));
                }
                continue;
            }
            if pinged.is_some_and(|at| now >= at + PING_PATIENCE) {
                return Err(Problem::Unreachable("it does not answer any more".to_owned()));
            }
            if now >= wrote + keep_alive + PING_PATIENCE {
                return Err(Problem::Unreachable("it does not read any more".to_owned()));
            }
            if now >= wrote + keep_alive && pinged.is_none() && self.output.is_empty() {
                packet::pingreq(&mut self.output);
                pinged = Some(now);
            }
            let look = [
                self.next_deadline(),
                Some(pinged.map_or(wrote + keep_alive, |at| at + PING_PATIENCE)),
                self.is_idle().then(|| used + IDLE),
            ];
            let look = look.into_iter().flatten().min().unwrap_or(now).max(now);
            tokio::select! {
                biased;
                written = writer.write_buf(&mut self.output), if !self.output.is_empty() => {
                    if written? == 0 {
                        return Err(std::io::Error::from(std::io::ErrorKind::WriteZero).into());
                    }
                    wrote = Instant::now();
                    if self.output.is_empty() {
                        writer.flush().await?;
                    }
                }
                read = reader.read_buf(&mut self.input) => if read? == 0 {
                    let text = "it closed the connection".to_owned();
                    return Err(Problem::Unreachable(text));
                },
                Some(job) = self.jobs.recv() => {
                    self.waiting.push_back(job);
                    // Other messages that have arrived meanwhile are written together with this
                    // one.
                    for _ in 1..mote_core::turn::TURN_ITEMS_MAX {
                        let Ok(job) = self.jobs.try_recv() else { break };
                        self.waiting.push_back(job);
                    }
                }
                _ = self.stopping.changed(), if !is_stopping => is_stopping = true,
                () = sleep(look - now) => {}
            }
        }
    }

    /// Sends unacknowledged messages again.
    fn resume(&mut self, has_session: bool, window: usize) {
        while self.sent.len() > window
            && let Some(sent) = self.sent.pop_back()
        {
            self.waiting.push_front(sent.job);
        }
        self.is_fresh = false;
        let version = self.connection.version;
        for sent in &mut self.sent {
            let message = &mut sent.job.message;
            if has_session && sent.is_released {
                packet::pubrel(&mut self.output, message.id);
                continue;
            }
            message.dup = has_session;
            sent.is_released = false;
            packet::publish(&mut self.output, version, message);
        }
    }

    fn send_waiting(&mut self, window: usize, ack: &ConnAck) {
        while self.output.len() < UNWRITTEN_BYTES_MAX
            && self.sent.len() < window
            && let Some(mut job) = self.waiting.pop_front()
        {
            if let Some(why) = refused(&job.message, ack) {
                job.end(Err(PublishError::Refused(why)));
                continue;
            }
            if job.message.qos > 0 {
                job.message.id = self.next_id();
            }
            packet::publish(&mut self.output, self.connection.version, &job.message);
            if job.message.qos == 0 {
                job.end(Ok(()));
            } else {
                self.sent.push_back(Sent { job, is_released: false });
            }
        }
    }

    fn next_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if !self.sent.iter().any(|sent| sent.job.message.id == self.last_id) {
                return self.last_id;
            }
        }
    }

    fn take_packets(&mut self, pinged: &mut Option<Instant>) -> Result<(), Problem> {
        // The loop handles at most as many packets as messages were sent, so it does not need
        // turns.
        while let Read::Packet(packet) =
            packet::read(&mut self.input, self.connection.version, PACKET_EXTRA_BYTES)?
        {
            match packet {
                Packet::PubAck(id, reason) => self.acknowledged(id, reason, 1),
                Packet::PubRec(id, reason) if reason >= 0x80 => self.acknowledged(id, reason, 2),
                Packet::PubRec(id, _) => {
                    let mut sent = self.sent.iter_mut();
                    if let Some(sent) = sent.find(|sent| sent.job.message.id == id) {
                        sent.is_released = true;
                    }
                    packet::pubrel(&mut self.output, id);
                }
                Packet::PubComp(id) => self.acknowledged(id, 0, 2),
                Packet::PingResp => *pinged = None,
                Packet::Disconnect(reason) => {
                    let text = format!("it ended the connection: {}", reason_text(reason));
                    return Err(Problem::Unreachable(text));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn acknowledged(&mut self, id: u16, reason: u8, qos: u8) {
        let matches = |sent: &Sent| sent.job.message.id == id && sent.job.message.qos == qos;
        let Some(at) = self.sent.iter().position(matches) else { return };
        let Some(sent) = self.sent.remove(at) else { return };
        sent.job.end(match reason {
            ..0x80 => Ok(()),
            // The broker may have room again later.
            0x93 | 0x97 => Err(PublishError::Full(format!("the broker: {}", reason_text(reason)))),
            _ => Err(PublishError::Refused(reason_text(reason))),
        });
    }
}

/// The reason if the broker would end the connection because of this message.
fn refused(message: &packet::Publish, ack: &ConnAck) -> Option<String> {
    if ack.qos_max.is_some_and(|most| message.qos > most) {
        return Some(format!("it does not offer QoS {}", message.qos));
    }
    if message.retain && ack.retain == Some(false) {
        return Some("it does not keep messages".to_owned());
    }
    let most = ack.packet_bytes_max.map_or(usize::MAX, |most| most as usize);
    // Topic and properties have at most about 20 KiB, so most messages need not be encoded to be
    // checked.
    (message.payload.len() + PACKET_EXTRA_BYTES / 2 > most && {
        let mut whole = BytesMut::new();
        packet::publish(&mut whole, MqttVersion::V5, message);
        whole.len() > most
    })
    .then(|| format!("it accepts packets of at most {most} bytes"))
}

/// A connection that the broker has accepted.
struct Connected {
    stream: Box<dyn Stream>,
    ack: ConnAck,
    input: BytesMut,
}

async fn connect(
    host: &dyn Host,
    connection: &Connection,
    client_id: &str,
    is_fresh: bool,
) -> Result<Connected, Problem> {
    let Opened { mut stream, username, password } = open(host, connection).await?;
    let version = connection.version;
    let mut hello = BytesMut::new();
    let connect = Connect {
        version,
        client_id,
        // A session of MQTT 3.1.1 never expires, so the node does not begin one.
        clean: is_fresh || version == MqttVersion::V311,
        expiry_s: SESSION_EXPIRY_S,
        keep_alive_s: KEEP_ALIVE_S,
        receive_maximum: 1,
        username: username.as_deref(),
        password: password.as_deref().map(str::as_bytes),
    };
    packet::connect(&mut hello, &connect);
    let mut input = BytesMut::with_capacity(1 << 10);
    let shaking = async {
        stream.write_all(&hello).await?;
        stream.flush().await?;
        let ack = connack(&mut stream, &mut input, version).await?;
        Ok(ack)
    };
    match timeout(CONNECT_PATIENCE, shaking).await {
        Ok(ack) => ack.map(|ack| Connected { stream, ack, input }),
        Err(_) => Err(Problem::Unreachable("it did not answer in time".to_owned())),
    }
}
