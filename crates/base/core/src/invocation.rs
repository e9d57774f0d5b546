//! One invocation: a trigger's request to a function, and the answer.
//!
//! Heads (method, path, query, headers) are kept in the layout of the worker protocol, so a front
//! writes them once and the engine copies them once.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use mote_spec::fields::{without, without_sessions};
use mote_spec::mqtt::Connection;
use mote_spec::{
    Access, AsyncRules, CertificateRules, CoapResource, FunctionName, HttpRules, Platform, Rates,
    STREAM_IDLE_MS_DEFAULT, TokenRules, WebhookRules,
};

use crate::body::Body;
use crate::chain::Chain;
use crate::fault::Fault;
use crate::place::Place;

/// The source of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Trigger {
    /// HTTP/1.1 or HTTP/2.
    Http = 1,
    /// CoAP over UDP.
    Coap = 2,
    /// `mote invoke` over the management API.
    Admin = 3,
    /// A schedule of the function's manifest.
    Schedule = 4,
    /// A message of an MQTT broker.
    Mqtt = 5,
    /// Another function, or a chain.
    Function = 6,
}

impl Trigger {
    /// The metric label. Functions receive the same word as the name of the trigger.
    pub fn as_str(self) -> &'static str {
        match self {
            Trigger::Http => "http",
            Trigger::Coap => "coap",
            Trigger::Admin => "admin",
            Trigger::Schedule => "schedule",
            Trigger::Mqtt => "mqtt",
            Trigger::Function => "function",
        }
    }

    /// The trigger with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        (1..=u8::MAX).map_while(Self::from_wire).find(|trigger| trigger.as_str() == word)
    }

    /// The trigger with this wire number.
    pub fn from_wire(number: u8) -> Option<Self> {
        match number {
            1 => Some(Trigger::Http),
            2 => Some(Trigger::Coap),
            3 => Some(Trigger::Admin),
            4 => Some(Trigger::Schedule),
            5 => Some(Trigger::Mqtt),
            6 => Some(Trigger::Function),
            _ => None,
        }
    }
}

/// The digits of Crockford's base 32.
const LETTERS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// 128 bits: 48 bits of milliseconds since 1970, then 80 random bits. An id is shown as 26 letters
/// of Crockford's base 32, the form of a ULID, so ids sort by time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InvocationId(pub u128);

impl InvocationId {
    /// An id from wall-clock milliseconds and 80 random bits. Higher bits of `random` are ignored.
    pub fn new(unix_ms: u64, random: u128) -> Self {
        let time = (unix_ms as u128 & ((1 << 48) - 1)) << 80;
        Self(time | (random & ((1 << 80) - 1)))
    }

    /// Parses the 26 letters of an id, in either case.
    pub fn from_text(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != 26 || bytes[0] > b'7' {
            return None;
        }
        let mut id = 0;
        for letter in bytes {
            let letter = letter.to_ascii_uppercase();
            let digit = LETTERS.iter().position(|known| *known == letter)?;
            id = id << 5 | digit as u128;
        }
        Some(Self(id))
    }

    /// The 26 letters.
    pub fn text(self) -> [u8; 26] {
        let mut text = [0; 26];
        let mut rest = self.0;
        for letter in text.iter_mut().rev() {
            *letter = LETTERS[(rest & 31) as usize];
            rest >>= 5;
        }
        text
    }
}

impl fmt::Display for InvocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).expect("base 32 letters are ASCII"))
    }
}

impl fmt::Debug for InvocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Method, path, query and header fields in worker-protocol layout, in one allocation.
///
/// A header field is `name LF value LF`, with the name in lower case; name and value may not
/// contain LF or NUL. The path is the part after the function's own route, and begins with `/`. The
/// query has no `?`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    buffer: Vec<u8>,
    method_len: u8,
    path_len: u16,
    query_len: u16,
    has_preference: bool,
    wants_websocket: bool,
    is_admitted: bool,
    is_counted: bool,
    is_paid: bool,
    is_local: bool,
    place: Option<Place>,
    certificate: Option<Arc<Vec<String>>>,
    psk: Option<Arc<String>>,
}

impl Head {
    /// Marks the request as accepted by its function. Also sets the caller's name, if it is known.
    pub fn admit(&mut self, caller: Option<&[u8]>) {
        self.is_admitted = true;
        if let Some(caller) = caller {
            self.replace_header(CALLER_FIELD, caller);
        }
    }

    /// Like [`Head::admit`], for a caller whose key is in the field `sent`. That field is removed,
    /// so that the function does not receive the key.
    pub fn admit_with_key(&mut self, sent: &[u8], caller: &[u8]) {
        self.is_admitted = true;
        self.remove_headers([sent, CALLER_FIELD]);
        put_header(&mut self.buffer, CALLER_FIELD, caller);
    }

    /// Whether [`Head::admit`] was called.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// Marks the request as counted against the rates of its function.
    pub fn count(&mut self) {
        self.is_counted = true;
    }

    /// Whether [`Head::count`] was called.
    pub fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// Stores the place that the request holds among the calls that its function accepts at once.
    pub fn keep_place(&mut self, place: Option<Place>) {
        self.place = place;
    }

    /// Releases the request's place while its body arrives, however slowly. Once the body has
    /// arrived, the request must be counted again. It then gets another place, without using up a
    /// rate.
    pub fn give_place_back(&mut self) {
        if self.place.take().is_some() {
            (self.is_counted, self.is_paid) = (false, true);
        }
    }

    /// Whether the rates of the function have already counted the request, although it released its
    /// place.
    pub fn is_paid(&self) -> bool {
        self.is_paid
    }

    /// Takes the request's place, so that the caller can keep it until the answer has ended.
    pub fn take_place(&mut self) -> Option<Place> {
        self.place.take()
    }

    /// Marks the request as one from the node's own machine.
    pub fn set_local(&mut self) {
        self.is_local = true;
    }

    /// Whether [`Head::set_local`] was called. The access check calls it only if access depends on
    /// it.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Stores the names in the certificate by which the client has proved its identity.
    pub fn set_certificate(&mut self, names: Option<Arc<Vec<String>>>) {
        self.certificate = names;
    }

    /// The names stored by [`Head::set_certificate`]; `None` without a certificate.
    pub fn certificate(&self) -> Option<&[String]> {
        self.certificate.as_deref().map(Vec::as_slice)
    }

    /// Stores the identity of the pre-shared key by which the client has proved its identity.
    pub fn set_psk(&mut self, identity: Arc<String>) {
        self.psk = Some(identity);
    }

    /// The identity stored by [`Head::set_psk`].
    pub fn psk(&self) -> Option<&str> {
        self.psk.as_ref().map(|identity| identity.as_str())
    }

    /// The caller's name, as set by [`Head::admit`].
    pub fn caller(&self) -> Option<&[u8]> {
        let mut fields = headers(self.headers()).filter(|_| self.is_admitted);
        fields.find(|(name, _)| *name == CALLER_FIELD).map(|(_, value)| value)
    }

    /// Asks the function for a WebSocket. Once the answer has status 101, the bodies of request and
    /// answer carry the bytes of the two directions. A request for a WebSocket cannot be accepted
    /// for later.
    pub fn ask_for_websocket(&mut self) {
        put_header(&mut self.buffer, b"upgrade", b"websocket");
        self.wants_websocket = true;
        self.has_preference = false;
    }

    /// Whether [`Head::ask_for_websocket`] was called.
    pub fn wants_websocket(&self) -> bool {
        self.wants_websocket
    }

    /// Replaces all fields with this name by a single one. A field also matches if its name has
    /// other characters in place of the hyphens. The name is in lower case. Name and value may not
    /// contain LF or NUL.
    pub fn replace_header(&mut self, name: &[u8], value: &[u8]) {
        self.remove_header(name);
        put_header(&mut self.buffer, name, value);
    }

    /// Removes all fields with this name, which is matched as in [`Head::replace_header`].
    pub fn remove_header(&mut self, name: &[u8]) {
        self.remove_headers([name]);
    }

    fn remove_headers<const N: usize>(&mut self, names: [&[u8]; N]) {
        let is = |other: &[u8], name| without(other, name).is_some_and(<[u8]>::is_empty);
        self.retain_headers(|other| !names.iter().any(|name| is(other, name)));
    }

    /// Removes all fields for which `stays` returns false. `stays` receives the field's name.
    pub fn retain_headers(&mut self, stays: impl Fn(&[u8]) -> bool) {
        let mut next = self.buffer.len() - self.headers().len();
        let mut end = next;
        loop {
            let field = headers(&self.buffer[next..]).next();
            let field = field.map(|(other, value)| (other.len() + value.len() + 2, stays(other)));
            let Some((bytes, stays)) = field else { break };
            if stays && next != end {
                self.buffer.copy_within(next..next + bytes, end);
            }
            end += if stays { bytes } else { 0 };
            next += bytes;
        }
        self.buffer.truncate(end);
    }

    /// Whether the head has a `Prefer` field (RFC 7240).
    pub fn has_preference(&self) -> bool {
        self.has_preference
    }

    /// Bytes of memory that the head occupies.
    pub fn bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Begins a head. `method` may have at most 255 bytes, `path` and `query` at most 65,535 each.
    /// Longer input is cut, but only a bug can cause that, because fronts refuse far shorter input
    /// (8 KiB).
    pub fn builder(method: &[u8], path: &[u8], query: &[u8]) -> HeadBuilder {
        let method = &method[..method.len().min(u8::MAX as usize)];
        let path = &path[..path.len().min(u16::MAX as usize)];
        let query = &query[..query.len().min(u16::MAX as usize)];
        let mut buffer = Vec::with_capacity(method.len() + path.len() + query.len() + 256);
        buffer.extend_from_slice(method);
        buffer.extend_from_slice(path);
        buffer.extend_from_slice(query);
        HeadBuilder(Head {
            buffer,
            method_len: method.len() as u8,
            path_len: path.len() as u16,
            query_len: query.len() as u16,
            has_preference: false,
            wants_websocket: false,
            is_admitted: false,
            is_counted: false,
            is_paid: false,
            is_local: false,
            place: None,
            certificate: None,
            psk: None,
        })
    }

    /// The request method, upper case.
    pub fn method(&self) -> &[u8] {
        &self.buffer[..self.method_len as usize]
    }

    /// The path below the function's route, with its leading `/`.
    pub fn path(&self) -> &[u8] {
        &self.buffer[self.method_len as usize..][..self.path_len as usize]
    }

    /// Restores the whole path: puts back the function's name (`first`), which had been split off.
    /// Also adds the parameters of the matching route ([`PARAMETERS_FIELD`]).
    pub fn set_route(&mut self, first: &[u8], parameters: &[u8]) {
        let (start, end) =
            (self.method_len as usize, self.method_len as usize + self.path_len as usize);
        let mut path = Vec::with_capacity(first.len() + 1 + self.path().len());
        // The split-off part was `/` and the first segment, which may be empty (`//a`).
        path.push(b'/');
        path.extend_from_slice(first);
        if self.path() != b"/" {
            path.extend_from_slice(self.path());
        }
        path.truncate(u16::MAX as usize);
        self.path_len = path.len() as u16;
        self.buffer.splice(start..end, path);
        if !parameters.is_empty() {
            put_header(&mut self.buffer, PARAMETERS_FIELD, parameters);
        }
    }

    /// The query without `?`; empty if there is none.
    pub fn query(&self) -> &[u8] {
        let start = self.method_len as usize + self.path_len as usize;
        &self.buffer[start..][..self.query_len as usize]
    }

    /// The header block.
    pub fn headers(&self) -> &[u8] {
        &self.buffer[self.method_len as usize + self.path_len as usize + self.query_len as usize..]
    }

    /// All parts in wire order.
    pub fn wire(&self) -> &[u8] {
        &self.buffer
    }
}

/// Collects the header fields of a [`Head`].
pub struct HeadBuilder(Head);

impl HeadBuilder {
    /// Adds one field, without the cookies with which a browser manages the node. The caller must
    /// have checked that name and value do not contain LF or NUL.
    pub fn header(&mut self, name: &[u8], value: &[u8]) -> &mut Self {
        // The length rules out most fields quickly.
        if name.len() == 6 {
            self.0.has_preference |= name.eq_ignore_ascii_case(b"prefer");
            if name.eq_ignore_ascii_case(b"cookie") {
                return self.cookies(value);
            }
        }
        put_header(&mut self.0.buffer, name, value);
        self
    }

    fn cookies(&mut self, value: &[u8]) -> &mut Self {
        let kept = without_sessions(value);
        if !kept.is_empty() || value.is_empty() {
            put_header(&mut self.0.buffer, b"cookie", &kept);
        }
        self
    }

    /// The finished head.
    pub fn finish(self) -> Head {
        self.0
    }
}

/// Appends one field to a header block, and writes its name in lower case.
pub fn put_header(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    debug_assert!(!name.contains(&b'\n') && !value.contains(&b'\n'));
    block.reserve(name.len() + value.len() + 2);
    block.extend(name.iter().map(u8::to_ascii_lowercase));
    block.push(b'\n');
    block.extend_from_slice(value);
    block.push(b'\n');
}

/// The field with the caller's name: the name of its key, or the subject of its token.
pub const CALLER_FIELD: &[u8] = b"mote-caller";

/// The field with the parameters of the route, encoded like a query: `id=17&path=a/b`.
pub const PARAMETERS_FIELD: &[u8] = b"mote-params";

/// The fields of a header block, in order. Stops at the first incomplete field.
pub fn headers(block: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = block;
    std::iter::from_fn(move || {
        let name_end = rest.iter().position(|b| *b == b'\n')?;
        let name = &rest[..name_end];
        let after = &rest[name_end + 1..];
        let value_end = after.iter().position(|b| *b == b'\n')?;
        rest = &after[value_end + 1..];
        Some((name, &after[..value_end]))
    })
}

/// A trigger's request to a function.
#[derive(Debug)]
pub struct Invocation {
    /// The id, which the caller, the function and the log all see.
    pub id: InvocationId,
    /// The source of the invocation.
    pub trigger: Trigger,
    /// Method, path, query, headers.
    pub head: Head,
    /// Its body.
    pub body: Body,
    /// When the invocation arrived, in monotonic nanoseconds.
    pub received_ns: u64,
    /// When the answer must have begun, in monotonic nanoseconds. This one deadline covers all
    /// phases.
    pub deadline_ns: u64,
    /// The functions whose calls led to this invocation; `None` if it did not come from a function.
    pub chain: Option<Arc<Chain>>,
}

impl Invocation {
    /// Whether the invocation may run twice, because HTTP defines its method as idempotent (RFC
    /// 9110, 9.2.2) or because the caller sent an `Idempotency-Key`.
    pub fn is_idempotent(&self) -> bool {
        matches!(
            self.head.method(),
            b"GET" | b"HEAD" | b"PUT" | b"DELETE" | b"OPTIONS" | b"TRACE" | b"FETCH" | b"IPATCH"
        ) || headers(self.head.headers()).any(|(name, _)| name == b"idempotency-key")
    }
}

/// How the time of one invocation was spent, in monotonic nanoseconds of this machine. A value of 0
/// means unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    /// When the invocation arrived at the front.
    pub received_ns: u64,
    /// How long the invocation waited for an instance to start. This is part of the time before t1.
    pub init_ns: u64,
    /// t1: when the invocation's frame left the engine.
    pub sent_ns: u64,
    /// t2: when the worker entered the handler.
    pub entered_ns: u64,
    /// t3: when the handler returned, or, for streams, began to answer.
    pub returned_ns: u64,
    /// t4: when the answer reached the engine.
    pub answered_ns: u64,
}

impl Phases {
    /// Stores t2 and t3 as reported by a worker. Values before t1, after `now_ns` or in the wrong
    /// order are moved into range. An honest worker reads the same clock, so its values are not
    /// changed. A value of 0 stays 0.
    pub fn claim(&mut self, entered_ns: u64, returned_ns: u64, now_ns: u64) {
        let within = |claimed: u64, least: u64| match claimed {
            0 => 0,
            claimed => claimed.min(now_ns).max(least),
        };
        self.entered_ns = within(entered_ns, self.sent_ns);
        self.returned_ns = within(returned_ns, self.entered_ns);
    }

    /// Notes that the invocation failed at `now_ns`. A worker does not report times for a failed
    /// invocation, so all of the time since t1 counts as time in the handler.
    pub fn fail(&mut self, now_ns: u64) {
        self.answered_ns = now_ns;
        if self.sent_ns > 0 {
            self.entered_ns = self.sent_ns;
            self.returned_ns = now_ns.max(self.sent_ns);
        }
    }

    /// Waiting time before the frame left, without the time in which an instance started.
    pub fn queue_ns(&self) -> u64 {
        self.sent_ns.saturating_sub(self.received_ns).saturating_sub(self.init_ns)
    }

    /// Time in the handler.
    pub fn run_ns(&self) -> u64 {
        self.returned_ns.saturating_sub(self.entered_ns)
    }

    /// Time to hand over the request and the answer: t1 to t2 plus t3 to t4.
    pub fn handover_ns(&self) -> u64 {
        self.to_worker_ns() + self.from_worker_ns()
    }

    /// Time from t1 to t2.
    pub fn to_worker_ns(&self) -> u64 {
        self.entered_ns.saturating_sub(self.sent_ns)
    }

    /// Time from t3 to t4.
    pub fn from_worker_ns(&self) -> u64 {
        self.answered_ns.saturating_sub(self.returned_ns)
    }
}

/// The answer of a function.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status, 200 to 599.
    pub status: u16,
    /// Header block (see [`Head`]). Framing fields have already been removed.
    pub headers: Bytes,
    /// The body.
    pub body: Body,
    /// How the time was spent.
    pub phases: Phases,
}

/// The facts about a function that a front needs before it reads a body. They are borrowed from the
/// route, so a `RouteInfo` is made without allocating or copying.
#[derive(Clone, Copy)]
pub struct RouteInfo<'a> {
    /// The function's name.
    pub name: &'a FunctionName,
    /// Deadline of one invocation in milliseconds.
    pub timeout_ms: u64,
    /// Largest request body in bytes.
    pub body_bytes_max: u64,
    /// Whether the function's handlers begin only once the whole body has arrived; `false` until
    /// that is known.
    pub takes_whole_bodies: bool,
    /// Whether a connection to the function may become a WebSocket.
    pub takes_websockets: bool,
    /// Whether the function's worker receives the messages of a WebSocket instead of its bytes.
    pub takes_websocket_messages: bool,
    /// Whether the function itself speaks HTTP/2, which lets a call stream in both directions at
    /// once.
    pub takes_http2: bool,
    /// How long a WebSocket or a streamed answer may be silent, in milliseconds.
    pub stream_idle_ms: u64,
    /// Methods that the function answers; empty means all.
    pub methods: &'a [String],
    /// The function's CoAP description.
    pub coap: &'a CoapResource,
    /// Who may call the function; never [`Access::Unset`].
    pub access: Access,
    /// The rules for callers' tokens, if the function accepts tokens.
    pub tokens: Option<&'a Arc<TokenRules>>,
    /// The rules for client certificates, if the function asks for them.
    pub certificates: Option<&'a Arc<CertificateRules>>,
    /// The rules for signed requests, if the function accepts signed requests.
    pub webhook: Option<&'a Arc<WebhookRules>>,
    /// The limits on calls from outside.
    pub rates: &'a Rates,
    /// What the HTTP fronts require of requests to the function.
    pub http: Option<&'a HttpRules>,
    /// The folder with the function's code, if it is on this machine.
    pub code: Option<&'a Path>,
    /// The platform for which the function was written. Callers of that platform expect other codes
    /// for some faults.
    pub compat: Option<Platform>,
    /// How accepted invocations of the function are run; `None` for the defaults.
    pub background: Option<&'a AsyncRules>,
    /// The MQTT broker that receives the function's results; `None` for the node's broker.
    pub connection: Option<&'a Connection>,
    /// The tag by which the caller chose the revision, if it did.
    pub tag: Option<&'a str>,
    /// Whether the function is in a namespace. Calls of a namespace are counted.
    pub is_confined: bool,
    /// Whether runs of the function may pause and continue in another attempt (chains).
    pub may_pause: bool,
    /// Facts that change while the function is served; `None` if none of them changes.
    pub instances: Option<&'a dyn Instances>,
}

/// Facts that change while a function is served. Few callers ask for them, because an answer may
/// take a lock.
pub trait Instances: Sync {
    /// Whether another revision has replaced this one, so that its streams should end.
    fn is_replaced(&self) -> bool;
    /// The number of invocations that the function's instances can run at once when as many
    /// instances run as allowed.
    fn places(&self) -> u32;
}

/// Something that a request can be routed to.
pub trait Routed {
    /// The facts about the function. Called several times for each request, usually for a single
    /// fact. The implementation that most requests use should be inlined, so that the compiler
    /// drops the other facts.
    fn info(&self) -> RouteInfo<'_>;
}

impl<'a> RouteInfo<'a> {
    /// A function that everyone may call and that has no rules other than these.
    pub const fn new(name: &'a FunctionName, timeout_ms: u64, body_bytes_max: u64) -> Self {
        const NO_DESCRIPTION: &CoapResource =
            &CoapResource { title: None, resource_type: None, content_format: None };
        Self {
            name,
            timeout_ms,
            body_bytes_max,
            takes_whole_bodies: false,
            takes_websockets: false,
            takes_websocket_messages: false,
            takes_http2: false,
            stream_idle_ms: STREAM_IDLE_MS_DEFAULT,
            methods: &[],
            coap: NO_DESCRIPTION,
            access: Access::Public,
            tokens: None,
            certificates: None,
            webhook: None,
            rates: const { &Rates::NONE },
            http: None,
            code: None,
            compat: None,
            background: None,
            connection: None,
            tag: None,
            is_confined: false,
            may_pause: false,
            instances: None,
        }
    }

    /// See [`Instances::is_replaced`].
    pub fn is_replaced(&self) -> bool {
        self.instances.is_some_and(Instances::is_replaced)
    }

    /// See [`Instances::places`].
    pub fn places(&self) -> u32 {
        self.instances.map_or(1, Instances::places)
    }
}

/// The interface between fronts and engine.
pub trait Invoker: Clone + Send + Sync + 'static {
    /// A function as it was when it was looked up. Holding a route keeps the data of that revision,
    /// but not its instances.
    type Route: Routed + Clone + Send + Sync + 'static;

    /// The function with this name, or `NAME@TAG` for the revision with that tag. Called once per
    /// request; must not block or allocate much. If several revisions share the traffic, `key` is
    /// called, and equal keys lead to equal revisions. `None` from `key` means that any revision is
    /// suitable.
    fn route(&self, name: &str, key: impl FnOnce() -> Option<u64>) -> Option<Self::Route>;

    /// Whether any route applies only to certain hosts. If so, a front must call
    /// [`Invoker::routed`] before it looks up a name.
    fn has_routed_hosts(&self) -> bool {
        false
    }

    /// The function that a manifest-declared route puts at this host and path. Routes for certain
    /// hosts take precedence over function names. Other routes are tried after function names,
    /// except that a function's own routes are tried before its name.
    fn routed(&self, _asked: &mote_spec::routes::Asked<'_>) -> mote_spec::routes::Found {
        mote_spec::routes::Found::Nothing
    }

    /// Whether the node itself answers paths with this first segment. The segment begins with `_`.
    fn keeps(&self, _first: &str) -> bool {
        true
    }

    /// All functions, sorted by name. For discovery, not for the request path.
    fn routes(&self) -> Vec<Self::Route>;

    /// Whether the sender of a request may call the function. `from` is the sender's address, if it
    /// is known. A front calls this method before it reads a body or keeps anything. The call
    /// removes the caller's credentials from the head and adds the caller's name.
    fn admit(
        &self,
        _route: &Self::Route,
        _head: &mut Head,
        _from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        Ok(())
    }

    /// Like [`Invoker::admit`], for a front that reads the whole body of a request to a function
    /// with [`RouteInfo::webhook`] before it invokes the function. This call lets a request pass if
    /// its head has the fields that a signature needs; only [`Invoker::invoke`] verifies the
    /// signature. [`Invoker::admit`] refuses every such request, so fronts that call the function
    /// in another way refuse it as well.
    fn admit_before_body(
        &self,
        route: &Self::Route,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        self.admit(route, head, from)
    }

    /// Counts a request against the rates of the function, and gives it a place. Called once it is
    /// certain that the request leads to an invocation. `from` is the same as for
    /// [`Invoker::admit`]. A request that was already counted is not counted again.
    fn count(
        &self,
        _route: &Self::Route,
        _head: &mut Head,
        _from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        Ok(())
    }

    /// Runs one invocation, and resolves with the head of its answer. Resolves by the invocation's
    /// deadline at the latest. Dropping the future cancels the invocation.
    fn invoke(
        &self,
        route: &Self::Route,
        invocation: Invocation,
    ) -> impl Future<Output = Result<Reply, Fault>> + Send;
}
