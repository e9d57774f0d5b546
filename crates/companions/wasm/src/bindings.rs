//! The node's services as interfaces: state, calls of other functions, configuration and log.
//! `shims/wasm/wit` describes them for authors of functions. Start reading at `ask`.

use bytes::{Buf, Bytes};
use mote_core::services::{CALL_BODY_BYTES_MAX, FUNCTIONS, STATE, Status};
use mote_core::state::{KEY_BYTES_MAX, LIST_MAX, VALUE_BYTES_MAX};
use wasmtime::StoreContextMut;
use wasmtime::component::{HasSelf, Linker, Resource};

use crate::host::{Caller, Host};

mod generated {
    wasmtime::component::bindgen!({
        path: "../../../shims/wasm/wit",
        world: "mote:function/services",
        imports: { default: async | trappable },
        with: { "wasi:keyvalue/store.bucket": crate::bindings::Bucket },
        require_store_data_send: true,
    });
}

use generated::mote::function::calls;
use generated::wasi::config::store as config;
use generated::wasi::keyvalue::{atomics, batch, store};
use generated::wasi::logging::logging;

/// The level of a line in LOG frames, and the source for messages of the language's logging.
const LOGGED: u8 = 3;
const CURSORS_MAX: usize = 100_000;

/// A namespace of the state that a guest has opened.
#[expect(unreachable_pub, reason = "generated code exports it")]
pub struct Bucket {
    /// The name of a shared namespace; empty for the function's own.
    namespace: String,
    /// For each page of keys that was read, its last key. A cursor is the number of a page.
    pages: Vec<String>,
}

/// Adds the interfaces to what components may import.
pub(crate) fn add_to_linker(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    calls::add_to_linker::<Host, HasSelf<Host>>(linker, |host| host)?;
    config::add_to_linker::<Host, HasSelf<Host>>(linker, |host| host)?;
    store::add_to_linker::<Host, HasSelf<Host>>(linker, |host| host)?;
    atomics::add_to_linker::<Host, HasSelf<Host>>(linker, |host| host)?;
    batch::add_to_linker::<Host, HasSelf<Host>>(linker, |host| host)?;
    logging::add_to_linker::<Host, HasSelf<Host>>(linker, |host| host)?;
    // Some tools leave out the version.
    linker.instance("wasi:logging/logging")?.func_wrap(
        "log",
        |host: StoreContextMut<'_, Host>,
         (level, context, message): (logging::Level, String, String)| {
            host.data().caller.write(level, &context, &message);
            Ok(())
        },
    )
}

/// Why a request to the node failed.
struct Refused {
    status: u8,
    text: String,
}

impl Refused {
    fn is(&self, status: Status) -> bool {
        self.status == status as u8
    }
}

impl From<Refused> for store::Error {
    fn from(refused: Refused) -> Self {
        match refused.is(Status::Denied) {
            true => Self::AccessDenied,
            false => Self::Other(refused.text),
        }
    }
}

/// The parts of a request for the state.
#[derive(Default)]
struct Asked<'a> {
    namespace: &'a str,
    key: &'a str,
    rest: &'a [u8],
    limit: u32,
    number: u64,
    flags: u16,
}

impl Caller {
    /// Sends a request to the node and returns the content of its answer.
    async fn ask(
        &self,
        (service, operation, flags): ((&str, u8), u8, u16),
        content: &[u8],
    ) -> Result<Bytes, Refused> {
        let unavailable = |text: String| Refused { status: Status::Unavailable as u8, text };
        if !self.services.iter().any(|word| word == service.0) {
            return Err(unavailable(format!("the node does not offer the service {}", service.0)));
        }
        let asked = (service.1, operation, flags);
        let answer = self.link.ask(self.stream, asked, content).await;
        match answer {
            Some((status, content)) if status == Status::Done as u8 => Ok(content),
            Some((status, content)) => {
                Err(Refused { status, text: String::from_utf8_lossy(&content).into_owned() })
            }
            None => Err(unavailable("the request is larger than 1 MiB".to_owned())),
        }
    }

    async fn state(&self, operation: u8, asked: Asked<'_>) -> Result<Bytes, Refused> {
        let invalid = |text: &str| Refused { status: Status::Invalid as u8, text: text.to_owned() };
        if asked.namespace.len() > usize::from(u8::MAX) || asked.key.len() > KEY_BYTES_MAX {
            return Err(invalid("a key has at most 512 bytes"));
        }
        if asked.rest.len() > VALUE_BYTES_MAX {
            return Err(invalid("a value has at most 256 KiB"));
        }
        let mut content = vec![asked.namespace.len() as u8, 0];
        content.extend_from_slice(&(asked.key.len() as u16).to_le_bytes());
        content.extend_from_slice(&asked.limit.to_le_bytes());
        content.extend_from_slice(&asked.number.to_le_bytes());
        content.extend_from_slice(&0_u64.to_le_bytes());
        content.extend_from_slice(asked.namespace.as_bytes());
        content.extend_from_slice(asked.key.as_bytes());
        content.extend_from_slice(asked.rest);
        self.ask((STATE, operation, asked.flags), &content).await
    }

    async fn read(&self, namespace: &str, key: &str) -> Result<Option<Vec<u8>>, store::Error> {
        match self.state(1, Asked { namespace, key, ..Asked::default() }).await {
            // Version and end come before the value.
            Ok(content) => Ok(Some(content.get(16..).unwrap_or_default().to_vec())),
            Err(refused) if refused.is(Status::NotFound) => Ok(None),
            Err(refused) => Err(refused.into()),
        }
    }

    async fn put(&self, namespace: &str, key: &str, value: &[u8]) -> Result<(), store::Error> {
        let asked = Asked { namespace, key, rest: value, ..Asked::default() };
        self.state(2, asked).await.map(|_| ()).map_err(store::Error::from)
    }

    async fn remove(&self, namespace: &str, key: &str) -> Result<(), store::Error> {
        match self.state(3, Asked { namespace, key, ..Asked::default() }).await {
            Err(refused) if !refused.is(Status::NotFound) => Err(refused.into()),
            _ => Ok(()),
        }
    }

    fn write(&self, level: logging::Level, context: &str, message: &str) {
        use logging::Level::{Critical, Debug, Error, Info, Trace, Warn};
        let level = match level {
            Trace | Debug => 1,
            Info => 2,
            Warn => 3,
            Error | Critical => 4,
        };
        let colon = if context.is_empty() { "" } else { ": " };
        for line in message.lines() {
            let line = format!("{context}{colon}{line}");
            self.link.line(self.stream, [LOGGED, level], line.as_bytes());
        }
    }
}

impl Host {
    fn namespace(&self, bucket: &Resource<Bucket>) -> wasmtime::Result<String> {
        Ok(self.table.get(bucket)?.namespace.clone())
    }
}

impl store::Host for Host {
    async fn open(
        &mut self,
        identifier: String,
    ) -> wasmtime::Result<Result<Resource<Bucket>, store::Error>> {
        let namespace = if identifier == "default" { String::new() } else { identifier };
        if namespace.len() > usize::from(u8::MAX) {
            return Ok(Err(store::Error::NoSuchStore));
        }
        Ok(Ok(self.table.push(Bucket { namespace, pages: Vec::new() })?))
    }
}

impl store::HostBucket for Host {
    async fn get(
        &mut self,
        bucket: Resource<Bucket>,
        key: String,
    ) -> wasmtime::Result<Result<Option<Vec<u8>>, store::Error>> {
        let namespace = self.namespace(&bucket)?;
        Ok(self.caller.read(&namespace, &key).await)
    }

    async fn set(
        &mut self,
        bucket: Resource<Bucket>,
        key: String,
        value: Vec<u8>,
    ) -> wasmtime::Result<Result<(), store::Error>> {
        let namespace = self.namespace(&bucket)?;
        Ok(self.caller.put(&namespace, &key, &value).await)
    }

    async fn delete(
        &mut self,
        bucket: Resource<Bucket>,
        key: String,
    ) -> wasmtime::Result<Result<(), store::Error>> {
        let namespace = self.namespace(&bucket)?;
        Ok(self.caller.remove(&namespace, &key).await)
    }

    async fn exists(
        &mut self,
        bucket: Resource<Bucket>,
        key: String,
    ) -> wasmtime::Result<Result<bool, store::Error>> {
        let namespace = self.namespace(&bucket)?;
        Ok(self.caller.read(&namespace, &key).await.map(|value| value.is_some()))
    }

    async fn list_keys(
        &mut self,
        bucket: Resource<Bucket>,
        cursor: Option<u64>,
    ) -> wasmtime::Result<Result<store::KeyResponse, store::Error>> {
        /// The flag of a listing without values.
        const KEYS_ONLY: u16 = 4;
        let opened = self.table.get(&bucket)?;
        let namespace = opened.namespace.clone();
        let after = match cursor {
            None => String::new(),
            Some(page) => {
                let page = usize::try_from(page).ok().and_then(|page| opened.pages.get(page));
                match page {
                    Some(after) => after.clone(),
                    None => return Ok(Err(store::Error::Other("unknown cursor".to_owned()))),
                }
            }
        };
        let asked = Asked {
            namespace: &namespace,
            rest: after.as_bytes(),
            limit: LIST_MAX,
            flags: KEYS_ONLY,
            ..Asked::default()
        };
        let content = match self.caller.state(4, asked).await {
            Ok(content) => content,
            Err(refused) => return Ok(Err(refused.into())),
        };
        let Some((more, keys)) = listing(content) else {
            return Ok(Err(store::Error::Other("the node sent an unusable listing".to_owned())));
        };
        let opened = self.table.get_mut(&bucket)?;
        let next = keys.last().filter(|_| more && opened.pages.len() < CURSORS_MAX).cloned();
        let cursor = next.map(|last| {
            opened.pages.push(last);
            opened.pages.len() as u64 - 1
        });
        Ok(Ok(store::KeyResponse { keys, cursor }))
    }

    async fn drop(&mut self, bucket: Resource<Bucket>) -> wasmtime::Result<()> {
        self.table.delete(bucket)?;
        Ok(())
    }
}

/// Reads `more u8 | zero [3] | count u32`, and for each entry `version u64 | value length u32 | key
/// length u32 | key, value`.
fn listing(mut content: Bytes) -> Option<(bool, Vec<String>)> {
    let number = |content: &mut Bytes| content.try_get_u32_le().ok().map(|n| n as usize);
    let more = number(&mut content)? & 0xff == 1;
    let count = number(&mut content)?;
    let mut keys = Vec::new();
    for _ in 0..count {
        content.try_get_u64_le().ok()?;
        let (value, key) = (number(&mut content)?, number(&mut content)?);
        if content.len() < key.checked_add(value)? {
            return None;
        }
        keys.push(String::from_utf8(content.split_to(key).to_vec()).ok()?);
        content.advance(value);
    }
    Some((more, keys))
}

impl atomics::Host for Host {
    async fn increment(
        &mut self,
        bucket: Resource<Bucket>,
        key: String,
        delta: u64,
    ) -> wasmtime::Result<Result<u64, store::Error>> {
        let other = |text: &str| Ok(Err(store::Error::Other(text.to_owned())));
        if i64::try_from(delta).is_err() {
            return other("the number is too large");
        }
        let namespace = self.namespace(&bucket)?;
        let asked = Asked { namespace: &namespace, key: &key, number: delta, ..Asked::default() };
        let content = match self.caller.state(5, asked).await {
            Ok(content) => content,
            Err(refused) => return Ok(Err(refused.into())),
        };
        let sum =
            content.get(8..16).and_then(|bytes| bytes.try_into().ok()).map(i64::from_le_bytes);
        match sum.map(u64::try_from) {
            Some(Ok(sum)) => Ok(Ok(sum)),
            Some(Err(_)) => other("the number is below zero"),
            None => other("the node sent an unusable number"),
        }
    }
}

impl batch::Host for Host {
    async fn get_many(
        &mut self,
        bucket: Resource<Bucket>,
        keys: Vec<String>,
    ) -> wasmtime::Result<Result<Vec<Option<(String, Vec<u8>)>>, store::Error>> {
        let namespace = self.namespace(&bucket)?;
        let mut all = Vec::new();
        let mut left = self.host_bytes_max();
        for key in keys {
            match self.caller.read(&namespace, &key).await {
                Ok(value) => {
                    // Otherwise a guest could make the worker collect more than fits into its
                    // memory.
                    let bytes = key.len() + value.as_ref().map_or(0, Vec::len);
                    let Some(rest) = left.checked_sub(bytes) else {
                        return Ok(Err(store::Error::Other("the values are too long".to_owned())));
                    };
                    left = rest;
                    all.push(value.map(|value| (key, value)));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(all))
    }

    async fn set_many(
        &mut self,
        bucket: Resource<Bucket>,
        key_values: Vec<(String, Vec<u8>)>,
    ) -> wasmtime::Result<Result<(), store::Error>> {
        let namespace = self.namespace(&bucket)?;
        for (key, value) in key_values {
            if let Err(error) = self.caller.put(&namespace, &key, &value).await {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    async fn delete_many(
        &mut self,
        bucket: Resource<Bucket>,
        keys: Vec<String>,
    ) -> wasmtime::Result<Result<(), store::Error>> {
        let namespace = self.namespace(&bucket)?;
        for key in keys {
            if let Err(error) = self.caller.remove(&namespace, &key).await {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }
}

impl config::Host for Host {
    async fn get(
        &mut self,
        key: String,
    ) -> wasmtime::Result<Result<Option<String>, config::Error>> {
        let found = self.caller.env.iter().find(|(name, _)| *name == key);
        Ok(Ok(found.map(|(_, value)| value.clone())))
    }

    async fn get_all(&mut self) -> wasmtime::Result<Result<Vec<(String, String)>, config::Error>> {
        Ok(Ok(self.caller.env.to_vec()))
    }
}

impl logging::Host for Host {
    async fn log(
        &mut self,
        level: logging::Level,
        context: String,
        message: String,
    ) -> wasmtime::Result<()> {
        self.caller.link.room().await;
        self.caller.write(level, &context, &message);
        Ok(())
    }
}

impl Caller {
    async fn call_function(
        &self,
        operation: u8,
        function: &str,
        request: calls::Request,
    ) -> Result<Bytes, calls::Error> {
        let invalid = |text: &str| calls::Error::Invalid(text.to_owned());
        let lengths = [&request.path, &request.query].map(|part| part.len());
        if function.len() > 255 || request.method.len() > 32 || lengths.iter().any(|n| *n > 8 << 10)
        {
            return Err(invalid("the name, the method, the path or the query is too long"));
        }
        if request.body.len() > CALL_BODY_BYTES_MAX {
            return Err(invalid("the body of a call has at most 960 KiB"));
        }
        let mut headers = Vec::new();
        for (name, value) in &request.headers {
            let name = name.to_ascii_lowercase();
            if name.contains('\n') || value.contains(&b'\n') {
                return Err(invalid("a header field has no line breaks"));
            }
            for part in [name.as_bytes(), b"\n", value, b"\n"] {
                headers.extend_from_slice(part);
            }
        }
        let mut content = Vec::with_capacity(512 + headers.len() + request.body.len());
        content.extend_from_slice(&0_u32.to_le_bytes());
        content.extend_from_slice(&[function.len() as u8, request.method.len() as u8]);
        for length in [lengths[0], lengths[1], 0] {
            content.extend_from_slice(&(length as u16).to_le_bytes());
        }
        content.extend_from_slice(&(headers.len() as u32).to_le_bytes());
        content.extend_from_slice(&0_u64.to_le_bytes());
        content.extend_from_slice(&[0; 8]);
        for part in [function, &request.method, &request.path, &request.query] {
            content.extend_from_slice(part.as_bytes());
        }
        content.extend_from_slice(&headers);
        content.extend_from_slice(&request.body);
        self.ask((FUNCTIONS, operation, 0), &content).await.map_err(|refused| {
            let text = refused.text.clone();
            if refused.is(Status::Denied) {
                calls::Error::Denied(text)
            } else if refused.is(Status::Invalid) {
                calls::Error::Invalid(text)
            } else if refused.is(Status::Failed) {
                let bytes = text.as_bytes();
                let status = bytes.first_chunk().map_or(502, |bytes| u16::from_le_bytes(*bytes));
                calls::Error::Failed((status, text.get(2..).unwrap_or_default().to_owned()))
            } else {
                calls::Error::Unavailable(text)
            }
        })
    }
}

impl calls::Host for Host {
    async fn call(
        &mut self,
        function: String,
        request: calls::Request,
    ) -> wasmtime::Result<Result<calls::Answer, calls::Error>> {
        let content = match self.caller.call_function(1, &function, request).await {
            Ok(content) => content,
            Err(error) => return Ok(Err(error)),
        };
        Ok(answer(&content).ok_or_else(|| {
            calls::Error::Unavailable("the node sent an unusable answer".to_owned())
        }))
    }

    async fn send(
        &mut self,
        function: String,
        request: calls::Request,
    ) -> wasmtime::Result<Result<String, calls::Error>> {
        let sent = self.caller.call_function(2, &function, request).await;
        Ok(sent.map(|id| String::from_utf8_lossy(&id).into_owned()))
    }
}

/// Reads `status u16 | zero u16 | headers length u32 | headers, body`.
fn answer(content: &Bytes) -> Option<calls::Answer> {
    let status = u16::from_le_bytes(*content.first_chunk()?);
    let length = u32::from_le_bytes(content.get(4..8)?.try_into().ok()?) as usize;
    let block = content.get(8..8 + length)?;
    let headers = mote_core::invocation::headers(block);
    let headers =
        headers.map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), value.to_vec()));
    Some(calls::Answer { status, headers: headers.collect(), body: content[8 + length..].to_vec() })
}
