//! The platforms whose functions run here without changes.

use serde::{Deserialize, Serialize};

use crate::limits::{TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX};
use crate::runtime::Runtime;

/// OpenFaaS' template in which Go functions take the bytes of the body and return a text.
pub const TEMPLATE_GO_CLASSIC: &str = "go";

/// The platform for whose contract a function was written. Adapters next to the shims implement
/// these contracts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// `fn(input, headers)`, `(req, res)`, `fn.sh`.
    TinyFaas,
    /// The templates of faas-cli, and programs under a watchdog.
    OpenFaas,
    /// `handler(context, event)`.
    Nuclio,
    /// `f(event, context)`.
    Kubeless,
    /// `main(args)`, as a web action.
    OpenWhisk,
    /// `new()` and `handle`.
    Knative,
    /// `main()` with Flask's request, `async (context)`.
    Fission,
}

impl Platform {
    /// All platforms.
    pub const ALL: [Platform; 7] = [
        Platform::TinyFaas,
        Platform::OpenFaas,
        Platform::Nuclio,
        Platform::Kubeless,
        Platform::OpenWhisk,
        Platform::Knative,
        Platform::Fission,
    ];

    /// The word for this platform in manifests, LOAD and outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Platform::TinyFaas => "tinyfaas",
            Platform::OpenFaas => "openfaas",
            Platform::Nuclio => "nuclio",
            Platform::Kubeless => "kubeless",
            Platform::OpenWhisk => "openwhisk",
            Platform::Knative => "knative",
            Platform::Fission => "fission",
        }
    }

    /// The deadline of an invocation in milliseconds if the function sets none. It is the
    /// platform's own default, so that a function that needs this time does not fail here. Nuclio
    /// has no deadline, so its functions get the longest possible one. The deadlines for OpenFaaS'
    /// templates and tinyFaaS' uploads are set elsewhere.
    pub fn timeout_ms_default(self) -> u64 {
        match self {
            Platform::TinyFaas | Platform::OpenFaas => TIMEOUT_MS_DEFAULT,
            Platform::OpenWhisk | Platform::Fission => 60_000,
            Platform::Kubeless => 180_000,
            Platform::Knative => 300_000,
            Platform::Nuclio => TIMEOUT_MS_MAX,
        }
    }

    /// The setting in the platform's own files that sets the memory of a function; `None` if there
    /// is none.
    pub fn memory_key(self) -> Option<&'static str> {
        match self {
            // tinyFaaS' uploads have no limits.
            Platform::TinyFaas => None,
            Platform::OpenFaas => Some("limits.memory of the function in stack.yml"),
            Platform::Nuclio => Some("spec.resources.limits.memory in function.yaml"),
            Platform::Kubeless => Some("resources.limits.memory of the function's container"),
            Platform::OpenWhisk => Some("limits.memorySize in manifest.yaml, or wsk's --memory"),
            Platform::Knative => {
                Some("resources.limits.memory of the service, below deploy.options in func.yaml")
            }
            Platform::Fission => Some("spec.resources.limits.memory of the Function"),
        }
    }

    /// Whether an adapter for this runtime exists. A server does not need an adapter, because it
    /// speaks HTTP.
    pub fn is_offered(self, runtime: Runtime) -> bool {
        match (self, runtime) {
            (_, Runtime::Server) => true,
            (_, Runtime::Python | Runtime::Node | Runtime::Bun | Runtime::Deno) => true,
            (_, Runtime::Go) => true,
            (Platform::TinyFaas | Platform::OpenFaas | Platform::Nuclio, Runtime::Exec) => true,
            (Platform::OpenWhisk | Platform::Fission, Runtime::Exec) => true,
            (_, Runtime::Exec | Runtime::Chain | Runtime::Wasm | Runtime::Rust) => false,
        }
    }
}
