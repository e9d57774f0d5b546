//! The APIs of other platforms over a node that does whatever it is told: no requests make them
//! panic or answer that they failed, and what was deployed is shown again.
//!
//! The input is text: a platform's name, then requests between lines of `---`, each a line
//! `METHOD /path`, lines of fields, an empty line and the body.

#![no_main]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use libfuzzer_sys::fuzz_target;
use mote_api::Problem;
use mote_core::Fault;
use mote_core::body::Body;
use mote_core::invocation::{Head, Phases, Reply, headers};
use mote_platforms::compat::fuzzing::{self, Api};
use mote_platforms::compat::node::{
    Access, Act, Admission, Admitted, Call, Change, Code, Collection, Deploy, Deploys, Documents,
    Function, Functions, Invocations, KeptCalls, Log, Logs, Manifest, Namespaces, Role, Scope,
    Secrets, TokenKey,
};
use mote_spec::{FunctionName, FunctionSpec, Runtime};

const REQUESTS_MAX: usize = 10;
const BODY_BYTES_MAX: u64 = 64 << 10;

/// A node that keeps what it is told, and whose functions answer what they were sent.
#[derive(Default)]
struct Obeys {
    functions: Mutex<BTreeMap<String, Function>>,
    documents: Mutex<BTreeMap<(&'static str, String), Vec<u8>>>,
    secrets: Mutex<Vec<String>>,
    numbers: Mutex<u128>,
}

fn done<T: Send + 'static>(value: T) -> BoxFuture<'static, Result<T, Problem>> {
    ready(Ok(value)).boxed()
}

fn none<T: Send + 'static>() -> BoxFuture<'static, Result<T, Problem>> {
    ready(Err(Problem::new(404, "M0000", "there is none"))).boxed()
}

impl Access for Obeys {
    fn admits(&self, _: IpAddr, _: Option<&str>, _: Role) -> (Admission, Scope) {
        let key = TokenKey::of("fuzzer");
        let admitted = Admitted { name: "fuzzer".into(), is_operator: true, key };
        (Admission::Admitted(admitted), Scope::All)
    }

    fn is_valid(&self, _: TokenKey) -> bool {
        true
    }

    fn scope_of(&self, _: &str) -> Option<Scope> {
        Some(Scope::All)
    }

    fn namespaces(&self) -> Arc<Namespaces> {
        Arc::default()
    }

    fn record(&self, _: Act) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }
}

impl Functions for Obeys {
    fn functions(&self) -> Vec<Function> {
        self.functions.lock().unwrap().values().cloned().collect()
    }

    fn function(&self, name: &str) -> Option<Function> {
        self.functions.lock().unwrap().get(name).cloned()
    }
}

impl Deploys for Obeys {
    fn deploy(&self, deploy: Deploy) -> BoxFuture<'static, Result<(), Problem>> {
        match &deploy.code {
            Code::Files(files) => {
                assert!(files.iter().all(|(name, _)| !name.contains('/') && !name.contains("..")));
            }
            Code::InDocument => assert!(matches!(deploy.manifest, Manifest::Document(..))),
            Code::Zip { .. } | Code::Of(_) => {}
        }
        if let Manifest::Document(_, document) = &deploy.manifest {
            assert!(document.is_object(), "a document that is none: {document}");
        }
        let name = deploy.name.to_string();
        let mut functions = self.functions.lock().unwrap();
        assert!(deploy.replace || !functions.contains_key(&name), "replaced unasked");
        let mut spec = FunctionSpec::with_defaults(deploy.name, Runtime::Python, "handler:handle");
        spec.annotations = deploy.annotations;
        spec.secrets = deploy.secrets;
        let function = Function {
            spec,
            revision: 1,
            created_unix_ms: 1,
            instances: 1,
            ready: 1,
            instance_ids: vec!["i-1".to_owned()],
            http_url: Some("http://127.0.0.1:8080/f".to_owned()),
            calls: 0,
            memory_bytes: 0,
            failure: None,
        };
        functions.insert(name, function);
        done(())
    }

    fn remove(&self, name: &str) -> BoxFuture<'static, Result<(), Problem>> {
        match self.functions.lock().unwrap().remove(name) {
            Some(_) => done(()),
            None => none(),
        }
    }

    fn scale(&self, name: &str, _: u32) -> BoxFuture<'static, Result<(), Problem>> {
        self.function(name).map_or_else(none, |_| done(()))
    }
}

impl Invocations for Obeys {
    fn body_bytes_max(&self, name: &str) -> Option<u64> {
        self.function(name).map(|_| BODY_BYTES_MAX)
    }

    fn check_target(&self, target: &str) -> Result<(), Problem> {
        match mote_http::http::target::split(format!("/function{target}").as_bytes()) {
            Ok(_) => Ok(()),
            Err(refusal) => Err(Problem::new(refusal.status, refusal.code, refusal.detail)),
        }
    }

    fn admit(&self, _: &str, _: &mut Head, _: IpAddr) -> Result<(), Fault> {
        Ok(())
    }

    fn invoke(&self, call: Call) -> BoxFuture<'static, Result<Reply, Fault>> {
        self.invoke_as(1, call)
    }

    fn invoke_as(&self, _: u128, call: Call) -> BoxFuture<'static, Result<Reply, Fault>> {
        assert!(self.function(&call.function).is_some(), "{} is none", call.function);
        assert!(call.head.path().starts_with(b"/"), "{:?}", call.head);
        let block = call.head.headers();
        let bytes: usize = headers(block).map(|(name, value)| name.len() + value.len() + 2).sum();
        assert_eq!(bytes, block.len(), "a field was split");
        async move {
            let body = call.body.collect(BODY_BYTES_MAX).await;
            let body = body.map_err(|_| Fault::BodyTooLarge { limit_bytes: BODY_BYTES_MAX })?;
            let headers = Bytes::new();
            let phases = Phases::default();
            Ok(Reply { status: 200, headers, body: Body::Whole(body), phases })
        }
        .boxed()
    }

    fn random(&self) -> u128 {
        let mut number = self.numbers.lock().unwrap();
        *number += 1;
        *number
    }
}

impl Logs for Obeys {
    fn logs(&self, name: &str, _: bool) -> Option<Log> {
        self.function(name)?;
        Some(Log { held: Vec::new(), following: Box::pin(futures_util::stream::empty()) })
    }
}

impl KeptCalls for Obeys {
    fn keep_call(&self, record: Vec<u8>) -> BoxFuture<'static, Result<u64, Problem>> {
        assert_eq!(fuzzing::accepted_call(record.clone()), Some(record));
        done(1)
    }

    fn kept_call(&self, _: u64) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>> {
        done(None)
    }

    fn note_progress(&self, _: u64, _: Vec<u8>) -> BoxFuture<'static, Result<(), Problem>> {
        done(())
    }

    fn progress(&self, _: u64) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>> {
        done(None)
    }

    fn forget_call(&self, _: u64) -> BoxFuture<'static, Result<(), Problem>> {
        done(())
    }

    fn kept_calls(&self) -> BoxFuture<'static, Result<Vec<(u64, u64)>, Problem>> {
        done(Vec::new())
    }
}

impl Secrets for Obeys {
    fn secrets(&self) -> BoxFuture<'static, Result<Vec<String>, Problem>> {
        done(self.secrets.lock().unwrap().clone())
    }

    fn put_secret(
        &self,
        name: &str,
        _: String,
        _: bool,
    ) -> BoxFuture<'static, Result<(), Problem>> {
        self.secrets.lock().unwrap().push(name.to_owned());
        done(())
    }

    fn remove_secret(&self, name: &str) -> BoxFuture<'static, Result<(), Problem>> {
        self.secrets.lock().unwrap().retain(|known| known != name);
        done(())
    }
}

impl Documents for Obeys {
    fn put_documents(&self, changes: Vec<Change>) -> BoxFuture<'static, Result<(), Problem>> {
        let mut documents = self.documents.lock().unwrap();
        for Change { collection, key, value } in changes {
            match value {
                Some(value) => documents.insert((collection, key), value),
                None => documents.remove(&(collection, key)),
            };
        }
        done(())
    }

    fn documents(
        &self,
        collection: &'static str,
    ) -> BoxFuture<'static, Result<Collection, Problem>> {
        let documents = self.documents.lock().unwrap();
        let of = documents.iter().filter(|((known, _), _)| *known == collection);
        done(of.map(|((_, key), value)| (key.clone(), value.clone())).collect())
    }

    fn document(
        &self,
        collection: &'static str,
        key: &str,
    ) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>> {
        done(self.documents.lock().unwrap().get(&(collection, key.to_owned())).cloned())
    }
}

fuzz_target!(|text: &str| {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
    });
    let Some((platform, rest)) = text.split_once('\n') else { return };
    runtime.block_on(all(platform, rest));
});

/// The API of this platform over `node`; `None` for a name that is none of them.
async fn api_of(platform: &str, node: Arc<Obeys>) -> Option<Api> {
    let (queue, stop) = fuzzing::parts(node.clone());
    Some(match platform {
        "openfaas" => mote_platforms::openfaas::fuzzing::api(&mote_platforms::openfaas::Context {
            node,
            queue,
            stop,
        }),
        "nuclio" => mote_platforms::nuclio::fuzzing::api(&mote_platforms::nuclio::Context {
            node,
            queue,
            stop,
        }),
        "tinyfaas" => mote_platforms::tinyfaas::fuzzing::api(&mote_platforms::tinyfaas::Context {
            node,
            queue,
            stop,
        }),
        "openwhisk" => {
            mote_platforms::openwhisk::fuzzing::api(mote_platforms::openwhisk::Context {
                node,
                queue,
                stop,
            })
            .await
        }
        _ => return None,
    })
}

async fn all(platform: &str, text: &str) {
    let node = Arc::new(Obeys::default());
    for name in ["f", "echo"] {
        let spec = FunctionName::new(name).expect("a name");
        let _ = node
            .deploy(Deploy {
                name: spec,
                code: Code::Files(Vec::new()),
                manifest: Manifest::Keys(Box::default()),
                annotations: BTreeMap::new(),
                secrets: Vec::new(),
                may_name_secrets: true,
                replace: false,
            })
            .await;
    }
    let Some(mut api) = api_of(platform, node.clone()).await else { return };
    for request in text.split("\n---\n").take(REQUESTS_MAX) {
        let (head, body) = request.split_once("\n\n").unwrap_or((request, ""));
        let mut lines = head.split('\n');
        let Some((method, target)) = lines.next().and_then(|line| line.split_once(' ')) else {
            return;
        };
        if target.starts_with("/uploadURL") {
            return; // it would be fetched
        }
        let fields: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(": ")).collect();
        let body = Bytes::copy_from_slice(body.as_bytes());
        let answer = api.answer(method, target, &fields, body).await;
        let Some((status, said)) = answer else { continue };
        let path = target.split('?').next().unwrap_or(target);
        // A function's own answer may be any; tinyFaaS says 500 to whatever fails.
        let own = ["/web/", "/function/", "/actions/", "/triggers/", "/function_invocations"];
        if platform != "tinyfaas" && !own.iter().any(|part| path.contains(part)) {
            assert_ne!(status, 500, "{request}: {}", String::from_utf8_lossy(&said));
        }
        if status == 200 && method == "GET" && path.starts_with("/api/v1/namespaces") {
            let read: Result<serde_json::Value, _> = serde_json::from_slice(&said);
            assert!(read.is_ok(), "{request}: {}", String::from_utf8_lossy(&said));
        }
    }
    if platform == "openwhisk" {
        // What it was told is read again after a restart.
        drop(api);
        assert!(api_of(platform, node).await.is_some());
    }
}
