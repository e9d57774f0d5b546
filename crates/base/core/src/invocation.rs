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
use mote_spec::fields::without;
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
    /// The metric label, which is also the word that functions see.
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

/// 128 bits: 48 of milliseconds since 1970, 80 random; shown as 26 letters of Crockford's base 32,
/// the form of a ULID, so ids sort by time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InvocationId(pub u128);

impl InvocationId {
    /// An id from wall-clock milliseconds and 80 random bits (higher ones are ignored).
    pub fn new(unix_ms: u64, random: u128) -> Self {
        let time = (unix_ms as u128 & ((1 << 48) - 1)) << 80;
        Self(time | (random & ((1 << 80) - 1)))
    }

    /// The id with these 26 letters, in either case.
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
/// Header fields are `name LF value LF`, names in lower case; neither may hold LF or NUL. The path
/// is the part below the function's own route and begins with `/`; the query has no `?`.
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
    /// Marks the request as one that its function accepts, from this caller if its key is known.
    pub fn admit(&mut self, caller: Option<&[u8]>) {
        self.is_admitted = true;
        if let Some(caller) = caller {
            self.replace_header(CALLER_FIELD, caller);
        }
    }

    /// The same for a caller with a key, which is in the field `sent`: the function does not receive it.
    pub fn admit_with_key(&mut self, sent: &[u8], caller: &[u8]) {
        self.is_admitted = true;
        self.remove_headers([sent, CALLER_FIELD]);
        put_header(&mut self.buffer, CALLER_FIELD, caller);
    }

    /// Whether [`Head::admit`] was called.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// Marks the request as one that the rates of its function have counted.
    pub fn count(&mut self) {
        self.is_counted = true;
    }

    /// Whether [`Head::count`] was called.
    pub fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// Gives the request a place among the calls of its function that may be at once.
    pub fn keep_place(&mut self, place: Option<Place>) {
        self.place = place;
    }

    /// Gives its place back while its body arrives, however slowly. It must be counted again, which
    /// gives it another place and uses up no rate.
    pub fn give_place_back(&mut self) {
        if self.place.take().is_some() {
            (self.is_counted, self.is_paid) = (false, true);
        }
    }

    /// Whether the rates of its function have counted it, although it has no place.
    pub fn is_paid(&self) -> bool {
        self.is_paid
    }

    /// Takes the place, to keep it until the answer has ended.
    pub fn take_place(&mut self) -> Option<Place> {
        self.place.take()
    }

    /// Marks the request as one from the node's own machine.
    pub fn set_local(&mut self) {
        self.is_local = true;
    }

    /// Whether [`Head::set_local`] was called, which is done only where somebody asks.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Notes the names in the certificate with which the client has proved who it is.
    pub fn set_certificate(&mut self, names: Option<Arc<Vec<String>>>) {
        self.certificate = names;
    }

    /// The names that [`Head::set_certificate`] has noted; `None` without a certificate.
    pub fn certificate(&self) -> Option<&[String]> {
        self.certificate.as_deref().map(Vec::as_slice)
    }

    /// Notes the identity of the pre-shared key with which the client has proved who it is.
    pub fn set_psk(&mut self, identity: Arc<String>) {
        self.psk = Some(identity);
    }

    /// The identity that [`Head::set_psk`] has noted.
    pub fn psk(&self) -> Option<&str> {
        self.psk.as_ref().map(|identity| identity.as_str())
    }

    /// The caller that [`Head::admit`] has named.
    pub fn caller(&self) -> Option<&[u8]> {
        let mut fields = headers(self.headers()).filter(|_| self.is_admitted);
        fields.find(|(name, _)| *name == CALLER_FIELD).map(|(_, value)| value)
    }

    /// Asks the function for a WebSocket: from an answer with status 101 on, the bodies of request
    /// and answer are the bytes in both directions. Such a request cannot be accepted for later.
    pub fn ask_for_websocket(&mut self) {
        put_header(&mut self.buffer, b"upgrade", b"websocket");
        self.wants_websocket = true;
        self.has_preference = false;
    }

    /// Whether [`Head::ask_for_websocket`] was called.
    pub fn wants_websocket(&self) -> bool {
        self.wants_websocket
    }

    /// Replaces all fields of this name, also with other signs in place of hyphens, by one. The name
    /// is in lower case. Neither part may hold LF or NUL.
    pub fn replace_header(&mut self, name: &[u8], value: &[u8]) {
        self.remove_header(name);
        put_header(&mut self.buffer, name, value);
    }

    /// Removes all fields of this name in the same way.
    pub fn remove_header(&mut self, name: &[u8]) {
        self.remove_headers([name]);
    }

    fn remove_headers<const N: usize>(&mut self, names: [&[u8]; N]) {
        let is = |other: &[u8], name| without(other, name).is_some_and(<[u8]>::is_empty);
        let is_other = |other: &[u8]| !names.iter().any(|name| is(other, name));
        let mut next = self.buffer.len() - self.headers().len();
        let mut end = next;
        loop {
            let field = headers(&self.buffer[next..]).next();
            let field =
                field.map(|(other, value)| (other.len() + value.len() + 2, is_other(other)));
            let Some((bytes, stays)) = field else { break };
            if stays && next != end {
                self.buffer.copy_within(next..next + bytes, end);
            }
            end += if stays { bytes } else { 0 };
            next += bytes;
        }
        self.buffer.truncate(end);
    }

    /// Whether it has a `Prefer` field (RFC 7240).
    pub fn has_preference(&self) -> bool {
        self.has_preference
    }

    /// Bytes of memory that it occupies.
    pub fn bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Begins a head. `method` is at most 255 bytes, `path` and `query` at most 65,535. Fronts
    /// refuse longer ones in advance (8 KiB), so longer input is a bug and is cut.
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

    /// Replaces the path by the whole one, of which the function's name was split off, and adds the
    /// parameters of the route that was found for it ([`PARAMETERS_FIELD`]).
    pub fn set_route(&mut self, first: &[u8], parameters: &[u8]) {
        let (start, end) =
            (self.method_len as usize, self.method_len as usize + self.path_len as usize);
        let mut path = Vec::with_capacity(first.len() + 1 + self.path().len());
        // What was split off is `/` and the first segment, also an empty one (`//a`).
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
    /// Adds one field. The caller has checked that neither part holds LF or NUL.
    pub fn header(&mut self, name: &[u8], value: &[u8]) -> &mut Self {
        self.0.has_preference |= name.eq_ignore_ascii_case(b"prefer");
        put_header(&mut self.0.buffer, name, value);
        self
    }

    /// The finished head.
    pub fn finish(self) -> Head {
        self.0
    }
}

/// Appends one field to a header block, its name in lower case.
pub fn put_header(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    debug_assert!(!name.contains(&b'\n') && !value.contains(&b'\n'));
    block.reserve(name.len() + value.len() + 2);
    block.extend(name.iter().map(u8::to_ascii_lowercase));
    block.push(b'\n');
    block.extend_from_slice(value);
    block.push(b'\n');
}

/// The field with the name of the caller: of its key, or the subject of its token.
pub const CALLER_FIELD: &[u8] = b"mote-caller";

/// The field with the parameters of a route, as a query: `id=17&path=a/b`.
pub const PARAMETERS_FIELD: &[u8] = b"mote-params";

/// The fields of a header block, in order. Ends at the first incomplete field.
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
    /// Its id, shown to caller, function and log.
    pub id: InvocationId,
    /// The source of the invocation.
    pub trigger: Trigger,
    /// Method, path, query, headers.
    pub head: Head,
    /// Its body.
    pub body: Body,
    /// When it arrived, in monotonic nanoseconds.
    pub received_ns: u64,
    /// When its answer must have begun, in monotonic nanoseconds. One deadline for everything.
    pub deadline_ns: u64,
    /// The functions that called each other until this invocation came about; `None` if it did not
    /// come from a function.
    pub chain: Option<Arc<Chain>>,
}

impl Invocation {
    /// Whether running it twice is allowed, because HTTP defines its method as idempotent
    /// (RFC 9110, 9.2.2) or because the caller sent an `Idempotency-Key`.
    pub fn is_idempotent(&self) -> bool {
        matches!(
            self.head.method(),
            b"GET" | b"HEAD" | b"PUT" | b"DELETE" | b"OPTIONS" | b"TRACE" | b"FETCH" | b"IPATCH"
        ) || headers(self.head.headers()).any(|(name, _)| name == b"idempotency-key")
    }
}

/// How the time of one invocation was spent, in monotonic nanoseconds of this machine; 0 if
/// unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    /// The invocation arrived at the front.
    pub received_ns: u64,
    /// Time spent waiting for an instance to start, a part of the waiting before `t1`.
    pub init_ns: u64,
    /// t1: its frame left the engine.
    pub sent_ns: u64,
    /// t2: the handler was entered.
    pub entered_ns: u64,
    /// t3: the handler returned (for streams: began to answer).
    pub returned_ns: u64,
    /// t4: the answer reached the engine.
    pub answered_ns: u64,
}

impl Phases {
    /// Takes over t2 and t3 as reported by a worker, limited so that they are not before t1, not
    /// after `now_ns`, and in their order. An honest worker reads the same clock, so its values do
    /// not change; 0 stays 0.
    pub fn claim(&mut self, entered_ns: u64, returned_ns: u64, now_ns: u64) {
        let within = |claimed: u64, least: u64| match claimed {
            0 => 0,
            claimed => claimed.min(now_ns).max(least),
        };
        self.entered_ns = within(entered_ns, self.sent_ns);
        self.returned_ns = within(returned_ns, self.entered_ns);
    }

    /// Waiting time before the frame left, without the start of an instance.
    pub fn queue_ns(&self) -> u64 {
        self.sent_ns.saturating_sub(self.received_ns).saturating_sub(self.init_ns)
    }

    /// Time in the handler.
    pub fn run_ns(&self) -> u64 {
        self.returned_ns.saturating_sub(self.entered_ns)
    }

    /// Time of handing over and back: t1 to t2 and t3 to t4.
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
    /// Header block (see [`Head`]); framing fields are already removed.
    pub headers: Bytes,
    /// The body.
    pub body: Body,
    /// How the time was spent.
    pub phases: Phases,
}

/// The facts about a function that a front needs before it reads a body.
pub trait RouteInfo {
    /// The function's name.
    fn name(&self) -> &FunctionName;
    /// Deadline of one invocation in milliseconds.
    fn timeout_ms(&self) -> u64;
    /// Largest request body in bytes.
    fn body_bytes_max(&self) -> u64;
    /// Whether its handlers begin only with their whole body; `false` until that is known.
    fn takes_whole_bodies(&self) -> bool {
        false
    }
    /// Whether a connection to it may become a WebSocket.
    fn takes_websockets(&self) -> bool {
        false
    }
    /// Whether its worker takes the messages of a WebSocket, and not its bytes.
    fn takes_websocket_messages(&self) -> bool {
        false
    }
    /// Whether another revision has replaced it, so that its streams should end.
    fn is_replaced(&self) -> bool {
        false
    }
    /// Whether it speaks HTTP/2 itself, so that a call can stream in both directions at once.
    fn takes_http2(&self) -> bool {
        false
    }
    /// How long a WebSocket or a streamed answer may be silent, in milliseconds.
    fn stream_idle_ms(&self) -> u64 {
        STREAM_IDLE_MS_DEFAULT
    }
    /// Methods it answers; empty means all.
    fn methods(&self) -> &[String];
    /// Its CoAP description.
    fn coap(&self) -> &CoapResource;
    /// Who may call it; never [`Access::Unset`].
    fn access(&self) -> Access {
        Access::Public
    }
    /// The tokens of its callers, if they send tokens.
    fn tokens(&self) -> Option<&Arc<TokenRules>> {
        None
    }
    /// The client certificates that it accepts, if it asks for them.
    fn certificates(&self) -> Option<&Arc<CertificateRules>> {
        None
    }
    /// The signed requests that it accepts, if it does.
    fn webhook(&self) -> Option<&Arc<WebhookRules>> {
        None
    }
    /// How many calls from outside it accepts.
    fn rates(&self) -> &Rates {
        const { &Rates::NONE }
    }
    /// What the HTTP fronts require of requests to it.
    fn http(&self) -> Option<&HttpRules> {
        None
    }
    /// The folder with its code, if it is on this machine.
    fn code(&self) -> Option<&Path> {
        None
    }
    /// The platform that it was written for. The callers of that platform expect other codes for
    /// some faults.
    fn compat(&self) -> Option<Platform> {
        None
    }
    /// How its accepted invocations are run; `None` for the defaults.
    fn background(&self) -> Option<&AsyncRules> {
        None
    }
    /// The MQTT broker that receives its results; `None` for the one of the node.
    fn connection(&self) -> Option<&Connection> {
        None
    }
    /// The tag by which the caller chose the revision, if it did.
    fn tag(&self) -> Option<&str> {
        None
    }
    /// Whether it is in a namespace, whose calls are counted. Asked for each call.
    fn is_confined(&self) -> bool {
        false
    }
    /// Whether its runs may pause, and go on in another attempt (chains).
    fn may_pause(&self) -> bool {
        false
    }
    /// Invocations that its instances can run at once when there are as many as there may be.
    fn places(&self) -> u32 {
        1
    }
}

/// The interface between fronts and engine.
pub trait Invoker: Clone + Send + Sync + 'static {
    /// A function at one moment. Holding it keeps that revision's data, but not its instances.
    type Route: RouteInfo + Clone + Send + Sync + 'static;

    /// The function with this name, or `NAME@TAG` for the revision with that tag. Called once per
    /// request; must not block or allocate much. If several revisions share the traffic, equal keys
    /// lead to equal revisions; `key` is called only then, and `None` means that any revision is
    /// suitable.
    fn route(&self, name: &str, key: impl FnOnce() -> Option<u64>) -> Option<Self::Route>;

    /// Whether routes for certain hosts exist, so that [`Invoker::routed`] must be asked before a name
    /// is looked up.
    fn has_routed_hosts(&self) -> bool {
        false
    }

    /// The function that a manifest has put at this host and path. Routes for certain hosts come
    /// before names of functions, the other ones after them, except that a function's own routes come
    /// before its name.
    fn routed(&self, _asked: &mote_spec::routes::Asked<'_>) -> mote_spec::routes::Found {
        mote_spec::routes::Found::Nothing
    }

    /// Whether the node itself answers paths whose first segment is this one, which begins with `_`.
    fn keeps(&self, _first: &str) -> bool {
        true
    }

    /// All functions, sorted by name. For discovery, not for the request path.
    fn routes(&self) -> Vec<Self::Route>;

    /// Whether the sender of a request may call the function; `from` is its address, if that is
    /// known. A front asks before it reads a body or keeps anything. Removes what proves the caller
    /// from the head, and adds the caller's name.
    fn admit(
        &self,
        _route: &Self::Route,
        _head: &mut Head,
        _from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        Ok(())
    }

    /// The same for a front that waits for the whole body of a function with [`RouteInfo::webhook`]
    /// before it invokes: it passes a request whose head has what a signature needs, which only
    /// [`Invoker::invoke`] verifies. [`Invoker::admit`] refuses each such request, so that a front that
    /// calls the function in another way refuses them.
    fn admit_before_body(
        &self,
        route: &Self::Route,
        head: &mut Head,
        from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        self.admit(route, head, from)
    }

    /// Counts a request against the rates of the function and gives it a place, once it is certain that
    /// it leads to an invocation; `from` as for [`Invoker::admit`]. A request that was counted before is not
    /// counted again.
    fn count(
        &self,
        _route: &Self::Route,
        _head: &mut Head,
        _from: Option<IpAddr>,
    ) -> Result<(), Fault> {
        Ok(())
    }

    /// Runs one invocation until the head of its answer. It ends by the invocation's deadline at
    /// the latest; dropping the future cancels the invocation.
    fn invoke(
        &self,
        route: &Self::Route,
        invocation: Invocation,
    ) -> impl Future<Output = Result<Reply, Fault>> + Send;
}
