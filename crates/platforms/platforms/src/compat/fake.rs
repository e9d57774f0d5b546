//! A small node for tests. One closure answers for all functions, and the state is in memory.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use mote_api::Problem;
use mote_core::accept::{Accept, AcceptError, AcceptFuture, Deferred};
use mote_core::invocation::{Head, Reply};
use mote_core::{Fault, InvocationId};

use crate::compat::node::{
    Access, Act, Admission, Call, Change, Collection, Credential, Deploy, Deploys, Documents,
    Function, Functions, Invocations, KeptCalls, Log, Logs, Namespaces, Role, Scope, Secrets,
};

/// A journal that accepts nothing.
pub struct Nothing;

impl Accept for Nothing {
    fn accept(&self, _: Deferred) -> AcceptFuture {
        Box::pin(ready(Err(AcceptError::Stopping)))
    }

    fn ended(&self, _: InvocationId) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }
}

type Run = dyn Fn(Call) -> BoxFuture<'static, Result<Reply, Fault>> + Send + Sync;

/// A token of the fake node. It permits no management.
pub const TOKEN: &str = "a-token-of-the-node";

/// See the module's documentation.
pub struct Fake {
    run: Box<Run>,
    /// The accepted calls that are kept, by number.
    pub kept: Mutex<BTreeMap<u64, Vec<u8>>>,
    next: AtomicU64,
}

impl Fake {
    /// Makes a node on which every function runs `run`.
    pub fn new(
        run: impl Fn(Call) -> BoxFuture<'static, Result<Reply, Fault>> + Send + Sync + 'static,
    ) -> Self {
        Self { run: Box::new(run), kept: Mutex::default(), next: AtomicU64::new(1) }
    }
}

fn no<T: Send + 'static>() -> BoxFuture<'static, Result<T, Problem>> {
    ready(Err(Problem::new(404, "M1404", "this test has none"))).boxed()
}

impl Access for Fake {
    fn admits(&self, _: IpAddr, _: Option<&str>, _: Role) -> (Admission, Scope) {
        (Admission::Refused, Scope::All)
    }

    fn is_valid(&self, _: Credential) -> bool {
        false
    }

    fn scope_of(&self, token: &str) -> Option<Scope> {
        (token == TOKEN).then_some(Scope::All)
    }

    fn namespaces(&self) -> Arc<Namespaces> {
        Arc::default()
    }

    fn record(&self, _: Act) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }
}

impl Functions for Fake {
    fn functions(&self) -> Vec<Function> {
        Vec::new()
    }

    fn function(&self, _: &str) -> Option<Function> {
        None
    }
}

impl Deploys for Fake {
    fn deploy(&self, _: Deploy) -> BoxFuture<'static, Result<(), Problem>> {
        no()
    }

    fn remove(&self, _: &str) -> BoxFuture<'static, Result<(), Problem>> {
        no()
    }

    fn scale(&self, _: &str, _: u32) -> BoxFuture<'static, Result<(), Problem>> {
        no()
    }
}

impl Invocations for Fake {
    fn body_bytes_max(&self, _: &str) -> Option<u64> {
        Some(6 << 20)
    }

    fn check_target(&self, _: &str) -> Result<(), Problem> {
        Ok(())
    }

    fn admit(&self, _: &str, _: &mut Head, _: IpAddr) -> Result<(), Fault> {
        Ok(())
    }

    fn invoke(&self, call: Call) -> BoxFuture<'static, Result<Reply, Fault>> {
        (self.run)(call)
    }

    fn invoke_as(&self, _: u128, call: Call) -> BoxFuture<'static, Result<Reply, Fault>> {
        (self.run)(call)
    }

    fn random(&self) -> u128 {
        u128::from(self.next.fetch_add(1, Ordering::SeqCst))
    }
}

impl Logs for Fake {
    fn logs(&self, _: &str, _: bool) -> Option<Log> {
        None
    }
}

impl KeptCalls for Fake {
    fn keep_call(&self, record: Vec<u8>) -> BoxFuture<'static, Result<u64, Problem>> {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        self.kept.lock().expect("not poisoned").insert(number, record);
        ready(Ok(number)).boxed()
    }

    fn kept_call(&self, number: u64) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>> {
        ready(Ok(self.kept.lock().expect("not poisoned").get(&number).cloned())).boxed()
    }

    fn note_progress(&self, _: u64, _: Vec<u8>) -> BoxFuture<'static, Result<(), Problem>> {
        ready(Ok(())).boxed()
    }

    fn progress(&self, _: u64) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>> {
        ready(Ok(None)).boxed()
    }

    fn forget_call(&self, number: u64) -> BoxFuture<'static, Result<(), Problem>> {
        self.kept.lock().expect("not poisoned").remove(&number);
        ready(Ok(())).boxed()
    }

    fn kept_calls(&self) -> BoxFuture<'static, Result<Vec<(u64, u64)>, Problem>> {
        let kept = self.kept.lock().expect("not poisoned");
        let all = kept.iter().map(|(number, record)| (*number, record.len() as u64)).collect();
        ready(Ok(all)).boxed()
    }
}

impl Secrets for Fake {
    fn secrets(&self) -> BoxFuture<'static, Result<Vec<String>, Problem>> {
        no()
    }

    fn put_secret(&self, _: &str, _: String, _: bool) -> BoxFuture<'static, Result<(), Problem>> {
        no()
    }

    fn remove_secret(&self, _: &str) -> BoxFuture<'static, Result<(), Problem>> {
        no()
    }
}

impl Documents for Fake {
    fn put_documents(&self, _: Vec<Change>) -> BoxFuture<'static, Result<(), Problem>> {
        no()
    }

    fn documents(&self, _: &'static str) -> BoxFuture<'static, Result<Collection, Problem>> {
        no()
    }

    fn document(
        &self,
        _: &'static str,
        _: &str,
    ) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>> {
        no()
    }
}
