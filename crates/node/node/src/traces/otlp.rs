//! Records of calls as the messages of the OpenTelemetry protocol (open-telemetry/opentelemetry-proto,
//! `trace/v1/trace.proto`).

use std::collections::BTreeMap;
use std::sync::Arc;

use mote_core::Trigger;
use prost::Message;

use super::call::Call;
use crate::otlp::collector::Record;
use crate::otlp::{KeyValue, Resource, Scope, Value, text, value};

#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

const KIND_INTERNAL: i32 = 1;
const KIND_SERVER: i32 = 2;
const KIND_CONSUMER: i32 = 5;
const STATUS_ERROR: i32 = 2;

impl Record for Arc<Call> {
    const NAME: &'static str = "records of calls";
    const HTTP_PATH: &'static str = "/v1/traces";
    const GRPC_PATH: &'static str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    const IS_OPTIONAL: bool = false;

    fn bytes(&self) -> usize {
        size_of::<Call>() + self.method.len() + self.path.len()
    }

    fn message(batch: &[Self]) -> Vec<u8> {
        request(batch).encode_to_vec()
    }
}

/// The message for these records. Each function is a separate service.
fn request(calls: &[Arc<Call>]) -> ExportRequest {
    let mut services: BTreeMap<(&str, u64), Vec<Span>> = BTreeMap::new();
    for call in calls {
        let service = services.entry((call.function.as_str(), call.revision)).or_default();
        service.push(span(call));
        service.extend(parts(call));
    }
    let resource_spans = services.into_iter().map(|((function, revision), spans)| {
        let resource = Some(Resource::new(function, revision));
        let scope = Some(Scope::own());
        let scope_spans = vec![ScopeSpans { scope, spans }];
        ResourceSpans { resource, scope_spans }
    });
    ExportRequest { resource_spans: resource_spans.collect() }
}

fn span(call: &Call) -> Span {
    let mut attributes = vec![
        text("faas.invocation_id", call.id.to_string()),
        text("faas.trigger", trigger(call.trigger)),
        value("faas.coldstart", Value::Bool(call.is_cold)),
    ];
    match call.trigger {
        Trigger::Http | Trigger::Admin => {
            if !call.method.is_empty() {
                attributes.push(text("http.request.method", &*call.method));
                attributes.push(text("url.path", &*call.path));
            }
            if call.status > 0 {
                let status = Value::Number(call.status.into());
                attributes.push(value("http.response.status_code", status));
            }
        }
        Trigger::Coap => attributes.push(text("network.protocol.name", "coap")),
        Trigger::Mqtt => {
            attributes.push(text("messaging.system", "mqtt"));
            attributes.push(text("messaging.destination.name", call.path.trim_start_matches('/')));
        }
        Trigger::Schedule | Trigger::Function => {}
    }
    if let Some((outcome, code)) = call.fault {
        attributes.push(text("error.type", code));
        attributes.push(text("mote.outcome", outcome));
    }
    Span {
        trace_id: call.trace.to_be_bytes().to_vec(),
        span_id: call.span.to_be_bytes().to_vec(),
        parent_span_id: call.parent.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default(),
        name: call.function.to_string(),
        kind: if call.trigger == Trigger::Mqtt { KIND_CONSUMER } else { KIND_SERVER },
        start_time_unix_nano: call.began_unix_ns,
        end_time_unix_nano: call.began_unix_ns + call.duration_ns,
        attributes,
        status: call.is_error().then_some(Status { code: STATUS_ERROR }),
    }
}

/// The parts of a call. If the call failed, it failed in the last part.
fn parts(call: &Call) -> impl Iterator<Item = Span> {
    let last = call.parts.len().saturating_sub(1);
    call.parts.iter().enumerate().map(move |(at, part)| {
        let is_error = at == last && call.is_error();
        let begin = call.began_unix_ns + part.begin_ns;
        Span {
            trace_id: call.trace.to_be_bytes().to_vec(),
            span_id: call.part_span(part).to_be_bytes().to_vec(),
            parent_span_id: call.span.to_be_bytes().to_vec(),
            name: part.name.to_owned(),
            kind: KIND_INTERNAL,
            start_time_unix_nano: begin,
            end_time_unix_nano: begin + part.duration_ns,
            attributes: Vec::new(),
            status: is_error.then_some(Status { code: STATUS_ERROR }),
        }
    })
}

/// The word from OpenTelemetry's conventions for FaaS, which do not include CoAP.
fn trigger(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Http => "http",
        Trigger::Mqtt => "pubsub",
        Trigger::Schedule => "timer",
        Trigger::Coap | Trigger::Admin | Trigger::Function => "other",
    }
}
