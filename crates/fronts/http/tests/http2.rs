//! Tests HTTP/2 with prior knowledge. The tests use clients of other projects (hyper, h2, curl) and
//! raw frames that no real client would send.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mote_http::http::{Config, REFUSALS_IN_A_ROW_MAX};
use support::pattern_bytes;
use support::raw_http::Server;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

async fn connect(server: &Server) -> Sender {
    let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    sender
}

async fn call(
    sender: &mut Sender,
    request: http::request::Builder,
    body: Vec<u8>,
) -> (http::response::Parts, Bytes) {
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let (parts, body) = answer.into_parts();
    (parts, body.collect().await.unwrap().to_bytes())
}

#[test]
fn requests_and_answers_as_over_http_1() {
    let server = Server::start(Config::default());
    runtime().block_on(async {
        let mut sender = connect(&server).await;
        let at = |method: &str, path: &str| {
            http::Request::builder().method(method).uri(format!("http://a{path}"))
        };
        let (parts, body) =
            call(&mut sender, at("POST", "/echo/x?y").header("x-k", "v"), b"body".to_vec()).await;
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert_eq!(parts.status, 200);
        assert!(text.starts_with("POST /x y\nhost: a\n"), "{text}");
        assert!(text.contains("x-k: v\n") && text.ends_with("\n\nbody"), "{text}");
        assert!(parts.headers.contains_key("mote-invocation"));
        for (method, path, status, detail) in [
            ("GET", "/nobody", 404, "no function named nobody"),
            ("GET", "/echo/../x", 400, "path is not in normal form"),
            ("GET", "/echo/%00", 400, "NUL is not allowed"),
            ("PUT", "/get-only", 405, "GET, HEAD only"),
            ("TRACE", "/echo", 405, "method not supported"),
            (
                "POST",
                "/small",
                413,
                "body limit 10 bytes; raise it: body in [limits] or body_max in [http]",
            ),
        ] {
            let (parts, body) = call(&mut sender, at(method, path), b"hello world".to_vec()).await;
            let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!((parts.status.as_u16(), &problem["detail"]), (status, &detail.into()));
        }
        for (host, detail) in
            [("u@a", "exactly one Host (name or name:port) is required"), ("a", "")]
        {
            let request = http::Request::builder().uri(format!("http://{host}/echo"));
            let (parts, body) = call(&mut sender, request, Vec::new()).await;
            let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            assert_eq!(parts.status == 200, detail.is_empty(), "{host}");
            assert!(detail.is_empty() || problem["detail"] == detail, "{host}: {problem}");
        }
        // As with HTTP/1.1, a field with `_` is dropped if another field has the same name with
        // `-`, and two names that both mix `_` and `-` are refused. The parts of a cookie are
        // joined.
        let twins = at("GET", "/echo").header("x_auth", "evil").header("x-auth", "good");
        let (_, body) = call(&mut sender, twins, Vec::new()).await;
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.contains("x-auth: good\n") && !text.contains("evil"), "{text}");
        let twins = at("GET", "/echo").header("x_a-b", "1").header("x-a_b", "2");
        assert_eq!(call(&mut sender, twins, Vec::new()).await.0.status, 400);
        let crumbs = at("GET", "/echo").header("cookie", "a=1").header("cookie", "b=2");
        let (_, body) = call(&mut sender, crumbs, Vec::new()).await;
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.contains("cookie: a=1; b=2\n"), "{text}");
        // The test sends a large body in both directions.
        let whole = pattern_bytes(6 << 20);
        let (_, body) = call(&mut sender, at("PUT", "/echo"), whole.clone()).await;
        assert!(body.ends_with(&whole));
        let (_, body) = call(&mut sender, at("GET", "/stream?n=20971520"), Vec::new()).await;
        assert!(body == pattern_bytes(20 << 20));
        let (parts, body) = call(&mut sender, at("HEAD", "/big?n=1000"), Vec::new()).await;
        assert_eq!((parts.headers["content-length"].to_str().unwrap(), body.len()), ("1000", 0));
        let (parts, body) = call(&mut sender, at("GET", "/status/204"), Vec::new()).await;
        assert_eq!((parts.status.as_u16(), body.len()), (204, 0));
        assert!(!parts.headers.contains_key("content-length"));
    });
}

#[test]
fn a_stream_that_is_reset_cancels_its_invocation() {
    let server = Server::start(Config::default());
    runtime().block_on(async {
        let mut sender = connect(&server).await;
        let request = http::Request::builder().uri("http://a/slow").body(Full::default()).unwrap();
        let answer = sender.send_request(request);
        let _ = tokio::time::timeout(Duration::from_millis(200), answer).await;
    });
    server.fake.wait("the invocation is cancelled", |state| {
        state.cancelled.load(std::sync::atomic::Ordering::SeqCst) == 1
    });
}

#[test]
fn curl_speaks_to_it() {
    let server = Server::start(Config::default());
    let Ok(version) = std::process::Command::new("curl").arg("--version").output() else {
        eprintln!("SKIPPED: curl is not installed");
        return;
    };
    if !String::from_utf8_lossy(&version.stdout).contains("HTTP2") {
        eprintln!("SKIPPED: this curl has no HTTP/2");
        return;
    }
    let curl = |more: &[&str]| {
        let output = std::process::Command::new("curl")
            .args(["-sS", "--max-time", "20", "-w", "|%{http_code} %{http_version}"])
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let uri = format!("http://{}/echo/x", server.address);
    let text = curl(&["--http2-prior-knowledge", "-d", "a=1", &uri]);
    assert!(text.starts_with("POST /x ") && text.ends_with("\n\na=1|200 2"), "{text}");
    // The front does not accept an upgrade: the answer is HTTP/1.1.
    let text = curl(&["--http2", &uri]);
    assert!(text.ends_with("|200 1.1"), "{text}");
    let text = curl(&["--http2-prior-knowledge", "-I", &format!("{uri}?{}", "x".repeat(100))]);
    assert!(text.starts_with("HTTP/2 200") && text.ends_with("|200 2"), "{text}");
}

/// A raw connection for sending and receiving frames.
struct Raw(std::net::TcpStream);

impl Raw {
    fn connect(server: &Server) -> Self {
        let stream = std::net::TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut raw = Self(stream);
        raw.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        raw.frame(4, 0, 0, &[]);
        raw
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = (payload.len() as u32).to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        let _ = self.0.write_all(&frame);
    }

    /// Sends HEADERS with END_HEADERS. Each field is a literal without index.
    fn headers(&mut self, stream: u32, end: bool, fields: &[(&str, &str)]) {
        let mut block = Vec::new();
        for (name, value) in fields {
            block.push(0);
            for part in [name, value] {
                assert!(part.len() < 127);
                block.push(part.len() as u8);
                block.extend(part.as_bytes());
            }
        }
        self.frame(1, 4 | u8::from(end), stream, &block);
    }

    /// Reads the next frame of one of these kinds. Returns its kind, stream and payload, or `None`
    /// at the end.
    fn next(&mut self, kinds: &[u8]) -> Option<(u8, u32, Vec<u8>)> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            self.0.read_exact(&mut payload).ok()?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            if head[3] == 4 && head[4] & 1 == 0 {
                self.frame(4, 1, 0, &[]);
            }
            if kinds.contains(&head[3]) {
                return Some((head[3], stream, payload));
            }
        }
    }
}

const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];
const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];
const ENHANCE_YOUR_CALM: [u8; 4] = [0, 0, 0, 11];

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/echo"), (":authority", "a")];

#[test]
fn row_37_malformed_heads_are_stream_errors() {
    let server = Server::start(Config::default());
    let connect = [(":method", "CONNECT"), (":protocol", "websocket")];
    let cases: [(&str, Vec<(&str, &str)>); 7] = [
        // The front does not announce WebSockets over HTTP/2 (RFC 8441) in its settings.
        ("extended CONNECT", [&connect[..], &GET[1..]].concat()),
        ("upper-case name", [&GET[..], &[("X-Upper", "1")]].concat()),
        ("connection field", [&GET[..], &[("connection", "close")]].concat()),
        ("transfer-encoding field", [&GET[..], &[("transfer-encoding", "chunked")]].concat()),
        ("two paths", [&GET[..], &[(":path", "/echo/two")]].concat()),
        ("late pseudo-field", [&[("x", "1")], &GET[..]].concat()),
        ("no path", [&GET[..2], &GET[3..]].concat()),
    ];
    for (name, fields) in &cases {
        let mut raw = Raw::connect(&server);
        raw.headers(1, true, fields);
        let (kind, _, payload) = raw.next(&[RST_STREAM, GOAWAY]).expect(name);
        let code = if kind == GOAWAY { &payload[4..8] } else { &payload[..4] };
        assert_eq!(code, PROTOCOL_ERROR, "{name}");
    }
    assert_eq!(server.fake.calls(), 0, "one reached a function");
    println!("{} tried / {} refused", cases.len(), cases.len());
}

#[test]
fn row_38_a_body_that_is_not_as_long_as_said_is_aborted() {
    let server = Server::start(Config::default());
    let post = |length| {
        let mut fields = GET.to_vec();
        fields[0] = (":method", "POST");
        fields.push(("content-length", length));
        fields
    };
    for (said, sent) in [("5", &b"abc"[..]), ("2", b"abc")] {
        let mut raw = Raw::connect(&server);
        raw.headers(1, false, &post(said));
        raw.frame(0, 1, 1, sent);
        let (kind, _, payload) = raw.next(&[RST_STREAM, GOAWAY]).unwrap();
        let code = if kind == GOAWAY { &payload[4..8] } else { &payload[..4] };
        assert_eq!(code, PROTOCOL_ERROR, "{said}");
    }
    assert!(server.fake.take_saw().iter().all(|saw| saw.body.is_err()), "a short body passed");
}

#[test]
fn row_39_more_than_100_streams_are_refused() {
    let server = Server::start(Config::default());
    let mut raw = Raw::connect(&server);
    let mut slow = GET;
    slow[2] = (":path", "/slow");
    for n in 0..101 {
        raw.headers(1 + 2 * n, true, &slow);
    }
    let (kind, stream, payload) = raw.next(&[RST_STREAM, GOAWAY]).unwrap();
    assert_eq!((kind, stream, &payload[..4]), (RST_STREAM, 201, &REFUSED_STREAM[..]));
    assert!(server.fake.calls() <= 100);
}

#[test]
fn row_40_floods_end_the_connection() {
    let server = Server::start(Config::default());
    let flood = |name: &str, send: &dyn Fn(&mut Raw, u32)| {
        let mut raw = Raw::connect(&server);
        for n in 0..20_000 {
            send(&mut raw, n);
        }
        let (_, _, payload) = raw.next(&[GOAWAY]).unwrap_or_else(|| panic!("{name}: no GOAWAY"));
        assert_eq!(&payload[4..8], ENHANCE_YOUR_CALM, "{name}");
    };
    flood("reset", &|raw, n| {
        raw.headers(1 + 2 * n, true, &GET);
        raw.frame(RST_STREAM, 0, 1 + 2 * n, &[0, 0, 0, 8]);
    });
    flood("continuation", &|raw, n| {
        if n == 0 {
            raw.frame(1, 0, 1, &[]);
        }
        raw.frame(9, 0, 1, &[0, 1, b'x', 1, b'y']);
    });
    // The library answers or ignores these frames without counting them.
    for (name, kind, stream, payload) in [
        ("ping", 6, 0, &[0; 8][..]),
        ("settings", 4, 0, &[]),
        ("priority", 2, 3, &[0, 0, 0, 0, 1]),
        ("window update", 8, 0, &[0, 0, 0, 1]),
        ("unknown kind", 0x2a, 0, b"x"),
    ] {
        flood(name, &|raw, _| raw.frame(kind, 0, stream, payload));
    }
    println!("7 tried / 7 ended");
}

#[test]
fn row_41_a_field_list_that_is_too_long_is_431() {
    let server = Server::start(Config::default());
    runtime().block_on(async {
        let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut sender = sender.ready().await.unwrap();
        for (fields, length) in [(10, 4_000), (101, 1)] {
            let mut request = http::Request::builder().uri("http://a/echo");
            for n in 0..fields {
                request = request.header(format!("x-{n}"), "v".repeat(length));
            }
            let (answer, _) = sender.send_request(request.body(()).unwrap(), true).unwrap();
            assert_eq!(answer.await.unwrap().status(), 431, "{fields} fields");
            sender = sender.ready().await.unwrap();
        }
    });
    assert_eq!(server.fake.calls(), 0);
}

#[test]
fn an_idle_connection_is_ended() {
    let config = Config { keep_alive_timeout: Duration::from_millis(200), ..Config::default() };
    let server = Server::start(config);
    let mut raw = Raw::connect(&server);
    raw.headers(1, true, &GET);
    assert!(raw.next(&[GOAWAY]).is_some());
    runtime().block_on(async {
        let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        let executor = TokioExecutor::new();
        let io = TokioIo::new(stream);
        let (_sender, connection) =
            hyper::client::conn::http2::handshake::<_, _, Empty<Bytes>>(executor, io)
                .await
                .unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(20), connection).await;
        assert!(ended.is_ok(), "still open after 20 s");
    });
}

/// An h2 client whose streams all begin with this window. The connection still answers pings.
async fn windowed(server: &Server, window: u32) -> h2::client::SendRequest<Bytes> {
    windowed_at(server.address, window).await
}

async fn windowed_at(address: SocketAddr, window: u32) -> h2::client::SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(window)
        .initial_connection_window_size(1 << 20)
        .handshake::<_, Bytes>(stream)
        .await
        .unwrap();
    tokio::spawn(connection);
    sender.ready().await.unwrap()
}

#[test]
fn a_function_that_takes_bodies_whole_is_called_when_the_last_byte_is_there() {
    let server = Server::start(Config::default());
    runtime().block_on(async {
        let mut sender = windowed(&server, 1 << 20).await;
        let (answer, mut body) = sender.send_request(to("/whole"), false).unwrap();
        body.send_data(Bytes::from_static(b"first "), false).unwrap();
        let mut other = connect(&server).await;
        for n in 1..20 {
            let request = http::Request::builder().uri("http://a/count");
            let (_, text) = call(&mut other, request, Vec::new()).await;
            assert_eq!(text, n.to_string(), "the function was called");
        }
        body.send_data(Bytes::from_static(b"last"), true).unwrap();
        let mut answer = answer.await.unwrap();
        assert_eq!(answer.status(), 200);
        let text = answer.body_mut().data().await.unwrap().unwrap();
        assert!(text.ends_with(b"first last"), "{text:?}");
    });
    assert_eq!(server.fake.calls(), 20);
}

fn to(path: &str) -> http::Request<()> {
    http::Request::builder().uri(format!("http://a{path}")).body(()).unwrap()
}

/// Some clients lose an answer if its stream is reset before they have sent their body.
#[test]
fn an_answer_ends_after_a_short_body_that_nobody_reads() {
    let server = Server::start(Config::default());
    runtime().block_on(async {
        for path in ["/nobody", "/echo/../x", "/get-only"] {
            let mut sender = windowed(&server, 65_535).await;
            let mut request = http::Request::post(format!("http://a{path}"));
            request = request.header("content-length", 5);
            let (answer, mut body) = sender.send_request(request.body(()).unwrap(), false).unwrap();
            let mut answer = answer.await.unwrap();
            assert!(answer.status().is_client_error(), "{path}");
            let problem = answer.body_mut().data().await.unwrap().unwrap();
            assert!(problem.ends_with(b"}\n"), "{path}: the refusal does not wait for the body");
            assert!(!answer.body().is_end_stream(), "{path}: its end does");
            body.send_data(Bytes::from_static(b"hello"), true).unwrap();
            let end = answer.body_mut().data().await.transpose();
            assert!(end.unwrap().unwrap_or_default().is_empty(), "{path}");
            let reset =
                std::future::poll_fn(|cx| std::task::Poll::Ready(body.poll_reset(cx).is_ready()));
            assert!(!reset.await, "{path}");
        }
        // For a client that sends nothing, the wait is short. For a body of unknown length, there
        // is no wait.
        for length in [Some(5), None] {
            let mut sender = windowed(&server, 65_535).await;
            let mut request = http::Request::post("http://a/nobody");
            if let Some(length) = length {
                request = request.header("content-length", length);
            }
            let (answer, _body) = sender.send_request(request.body(()).unwrap(), false).unwrap();
            let mut answer = answer.await.unwrap();
            let since = std::time::Instant::now();
            while answer.body_mut().data().await.is_some_and(|data| data.is_ok()) {}
            let waited = since.elapsed() > Duration::from_millis(500);
            assert_eq!(waited, length.is_some(), "{:?}", since.elapsed());
        }
    });
}

#[test]
fn a_client_that_takes_nothing_of_its_answer_is_given_up() {
    let config = Config { write_timeout: Duration::from_millis(200), ..Config::default() };
    let server = Server::start(config);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    // The client takes nothing at all on the whole connection. It answers pings but opens no
    // window.
    let ended = runtime.block_on(async {
        let mut sender = windowed(&server, 0).await;
        let (answer, _) = sender.send_request(to("/stream?n=1000000"), true).unwrap();
        let (_, mut body) = answer.await.unwrap().into_parts();
        let waited = tokio::time::timeout(Duration::from_secs(20), body.data());
        waited.await.expect("the connection ends").expect("with an error").is_err()
    });
    assert!(ended);
    let over = |streams| {
        server.fake.wait("the instance is free", |state| {
            state.streams_over.load(std::sync::atomic::Ordering::SeqCst) == streams
        });
    };
    over(1);
    // One stream takes nothing, while other streams of its connection continue.
    runtime.block_on(async {
        let mut sender = windowed(&server, 1).await;
        let (stalled, _) = sender.send_request(to("/stream?n=1000000"), true).unwrap();
        let (_, mut stalled) = stalled.await.unwrap().into_parts();
        let first = stalled.data().await.unwrap().unwrap();
        assert_eq!(first.len(), 1);
        let mut calls = 0;
        while server.fake.state.streams_over.load(std::sync::atomic::Ordering::SeqCst) < 2 {
            calls += 1;
            assert!(calls < 1_000_000, "the stalled answer holds its instance");
            let (answer, _) = sender.send_request(to("/count"), true).unwrap();
            let (parts, mut body) = answer.await.unwrap().into_parts();
            assert_eq!(parts.status, 200);
            while let Some(piece) = body.data().await {
                let _ = body.flow_control().release_capacity(piece.unwrap().len());
            }
            sender = sender.ready().await.unwrap();
        }
    });
    over(2);
}

#[test]
fn answers_that_nobody_takes_are_bounded() {
    let server = Server::start(Config::default());
    runtime().block_on(async {
        let mut sender = windowed(&server, 0).await;
        let mut statuses = Vec::new();
        let mut kept_open = Vec::new();
        for _ in 0..60 {
            let (answer, _) = sender.send_request(to("/big?n=262144"), true).unwrap();
            let answer = answer.await.unwrap();
            statuses.push(answer.status().as_u16());
            // Dropping the body would end its stream.
            kept_open.push(answer);
            sender = sender.ready().await.unwrap();
        }
        // At most 8 MiB of answers may wait. Further answers are not kept.
        let kept = statuses.iter().filter(|status| **status == 200).count();
        assert_eq!(kept, 32, "{statuses:?}");
        assert!(statuses[32..].iter().all(|status| *status == 503), "{statuses:?}");
    });
    assert_eq!(server.fake.calls(), 60);
}

#[test]
fn requests_without_an_invocation_end_the_connection() {
    let server = Server::start(Config::default());
    runtime().block_on(async {
        let mut sender = connect(&server).await;
        let mut answered = 0;
        loop {
            let request = http::Request::builder().uri("http://a/nobody").body(Full::default());
            let Ok(answer) = sender.send_request(request.unwrap()).await else { break };
            assert_eq!(answer.status(), 404);
            answered += 1;
            assert!(answered <= 2 * REFUSALS_IN_A_ROW_MAX, "the connection goes on");
        }
        assert!(answered >= REFUSALS_IN_A_ROW_MAX, "{answered}");
    });
}

#[test]
fn open_streams_of_all_connections_are_bounded() {
    // One address may use half of the streams.
    let config = Config { streams_max: 40, ..Config::default() };
    let server = Server::start_at((Ipv6Addr::UNSPECIFIED, 0).into(), config);
    let port = server.address.port();
    let own = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let other = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    runtime().block_on(async {
        // Answers of the node itself keep their streams open, too, while the client opens no
        // window.
        let mut held = Vec::new();
        for _ in 0..2 {
            let mut sender = windowed_at(own, 0).await;
            for _ in 0..10 {
                let (answer, _) = sender.send_request(to("/nobody"), true).unwrap();
                held.push((sender.clone(), answer.await.unwrap()));
                sender = sender.ready().await.unwrap();
            }
        }
        assert!(held.iter().all(|(_, answer)| answer.status() == 404));
        let mut sender = windowed_at(own, 0).await;
        let (answer, _) = sender.send_request(to("/count"), true).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["retry-after"]),
            (503, &http::HeaderValue::from(1))
        );
        // The answer ends even though its client opens no window.
        assert!(answer.into_body().data().await.is_none());
        assert_eq!(server.fake.calls(), 0);
        // Other addresses still have their share.
        let mut others = windowed_at(other, 1 << 16).await;
        let (answer, _) = others.send_request(to("/count"), true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 200);
        // When streams are dropped, their places become free again.
        drop(held);
        let mut tries = 0;
        loop {
            sender = sender.ready().await.unwrap();
            let (answer, _) = sender.send_request(to("/count"), true).unwrap();
            match answer.await.unwrap().status().as_u16() {
                200 => break,
                status => assert_eq!(status, 503),
            }
            tries += 1;
            assert!(tries < 100_000, "the streams are held for ever");
        }
    });
}

#[test]
fn a_stream_with_a_long_head_counts_as_several() {
    let server = Server::start(Config { streams_max: 16, ..Config::default() });
    let long = || {
        let mut request = to("/slow");
        for n in 0..3 {
            let name = http::HeaderName::from_bytes(format!("x-{n}").as_bytes()).unwrap();
            request.headers_mut().insert(name, "v".repeat(9_000).parse().unwrap());
        }
        request
    };
    runtime().block_on(async {
        let mut sender = windowed(&server, 1 << 16).await;
        // This request uses seven of the eight places that the address has.
        let (_first, _) = sender.send_request(long(), true).unwrap();
        sender = sender.ready().await.unwrap();
        let (second, _) = sender.send_request(long(), true).unwrap();
        assert_eq!(second.await.unwrap().status(), 503);
        sender = sender.ready().await.unwrap();
        let (short, _) = sender.send_request(to("/count"), true).unwrap();
        assert_eq!(short.await.unwrap().status(), 200);
    });
}

#[test]
fn a_thousand_streams_of_one_address_wait_and_are_answered() {
    let server = Server::start(Config::default());
    runtime().block_on(async {
        let mut waiting = Vec::new();
        for _ in 0..10 {
            let mut sender = windowed(&server, 1 << 16).await;
            for _ in 0..100 {
                let (answer, _) = sender.send_request(to("/slow"), true).unwrap();
                waiting.push((sender.clone(), answer));
                sender = sender.ready().await.unwrap();
            }
        }
        while server.fake.calls() < 1_000 {
            tokio::task::yield_now().await;
        }
        server.fake.permits.add_permits(1_000);
        for (_sender, answer) in waiting {
            assert_eq!(answer.await.unwrap().status(), 200);
        }
    });
}

#[test]
fn a_stop_answers_the_streams_that_cross_its_goaway() {
    let mut server = Server::start(Config::default());
    let mut raw = Raw::connect(&server);
    raw.frame(6, 0, 0, &[7; 8]);
    assert!(raw.next(&[6]).is_some());
    server.begin_stop();
    let (.., first) = raw.next(&[GOAWAY]).unwrap();
    assert_eq!(first[..4], [0x7f, 0xff, 0xff, 0xff], "it leaves out no stream yet");
    let (.., ping) = raw.next(&[6]).unwrap();
    // The first request comes from a client that has not yet read these frames. The request after
    // the ping comes from a client that ignores them.
    raw.headers(1, true, &GET);
    raw.frame(6, 1, 0, &ping);
    raw.headers(3, true, &GET);
    let mut answered = Vec::new();
    let mut last = Vec::new();
    while let Some((kind, stream, payload)) = raw.next(&[1, GOAWAY]) {
        match kind {
            GOAWAY => last = payload[..4].to_vec(),
            _ => answered.push(stream),
        }
    }
    assert_eq!((answered, last), (vec![1], vec![0, 0, 0, 1]));
    server.stop();
}

#[test]
fn a_stop_gives_up_streams_that_do_not_arrive() {
    let config = Config { arrival_grace: Duration::from_millis(300), ..Config::default() };
    let mut server = Server::start(config);
    // One client answers no ping and sends half of a head. The body of the other client's request
    // stops arriving.
    let mut silent = Raw::connect(&server);
    let is_read = |raw: &mut Raw| {
        raw.frame(6, 0, 0, &[7; 8]);
        assert!(raw.next(&[6]).is_some());
    };
    is_read(&mut silent);
    silent.frame(1, 0, 1, &[]);
    let mut post = GET;
    (post[0], post[2]) = ((":method", "POST"), (":path", "/whole"));
    let mut trickling = Raw::connect(&server);
    trickling.headers(1, false, &post);
    trickling.frame(0, 0, 1, b"x");
    is_read(&mut trickling);
    let accepted = std::thread::scope(|scope| {
        let call = scope.spawn(|| {
            runtime().block_on(async {
                let mut sender = windowed(&server, 1 << 16).await;
                let (answer, _) = sender.send_request(to("/slow"), true).unwrap();
                answer.await.map(|answer| answer.status().as_u16())
            })
        });
        server.fake.wait("the invocation", |_| server.fake.calls() == 1);
        let since = std::time::Instant::now();
        server.begin_stop();
        let answered = trickling.next(&[1]).expect("it is told");
        // `:status: 503`, with the value in Huffman coding (RFC 7541).
        let told = [0x48, 0x83, 0x6c, 0x0c, 0xff];
        assert!(answered.2.windows(5).any(|part| part == told), "{:x?}", answered.2);
        while trickling.next(&[]).is_some() {}
        while silent.next(&[]).is_some() {}
        assert!(since.elapsed() < Duration::from_secs(5), "they end after {:?}", since.elapsed());
        // Requests that were already accepted are not given up with the others.
        server.fake.permits.add_permits(1);
        call.join().unwrap()
    });
    assert_eq!(accepted.unwrap(), 200);
    assert_eq!(server.fake.calls(), 1);
    server.stop();
}
