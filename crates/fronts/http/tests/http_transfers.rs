//! Tests the HTTP front with clients that follow the rules or disconnect: kept connections, bodies
//! that stream in both directions in bounded memory, time limits, and HTTP/2.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mote_http::http::Config;
use support::pattern_bytes;
use support::raw_http::Server;

fn quick() -> Config {
    Config {
        head_timeout: Duration::from_millis(300),
        body_idle_timeout: Duration::from_millis(300),
        keep_alive_timeout: Duration::from_millis(300),
        ..Config::default()
    }
}

#[test]
fn a_connection_is_kept_and_its_requests_are_answered_in_order() {
    let server = Server::start(Config::default());
    let mut client = server.client();
    for n in 0..50 {
        let answer = client.call(&format!("GET /echo/{n} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(answer.status, 200);
        assert!(answer.text().starts_with(&format!("GET /{n} \n")), "{}", answer.text());
        assert_eq!(answer.header("connection"), None);
        assert!(answer.header("server-timing").is_some() && answer.header("date").is_some());
    }
    // The requests are pipelined, and bodies of all kinds come between them.
    let mut all = String::new();
    for n in 0..50 {
        all.push_str(&match n % 3 {
            0 => format!("GET /echo/{n} HTTP/1.1\r\nHost: a\r\n\r\n"),
            1 => format!("POST /echo/{n} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"),
            _ => format!(
                "PUT /echo/{n} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                 3\r\nabc\r\n0\r\n\r\n"
            ),
        });
    }
    client.send(&all);
    for n in 0..50 {
        let text = client.answer(false).unwrap().text();
        assert!(text.lines().next().unwrap().ends_with(&format!(" /{n} ")), "{text}");
        assert!(text.ends_with(if n % 3 == 0 { "\n\n" } else { "\n\nabc" }), "{text}");
    }
    assert_eq!(server.fake.calls(), 100);
}

#[test]
fn answers_have_the_form_their_request_and_status_demand() {
    let server = Server::start(Config::default());
    let mut client = server.client();
    let call = |client: &mut support::raw_http::Client, line: &str| {
        let head = line.starts_with("HEAD");
        client.send(format!("{line}\r\nHost: a\r\n\r\n")).answer(head).unwrap()
    };
    let head = call(&mut client, "HEAD /big?n=1000 HTTP/1.1");
    assert_eq!((head.status, head.header("content-length")), (200, Some("1000")));
    let head = call(&mut client, "HEAD /big?n=0 HTTP/1.1");
    assert_eq!((head.status, head.header("content-length")), (200, None));
    let head = call(&mut client, "HEAD /stream?n=1000 HTTP/1.1");
    assert_eq!(head.header("transfer-encoding"), Some("chunked"));
    let head = call(&mut client, "HEAD /nobody HTTP/1.1");
    assert_eq!(head.status, 404);
    for status in [204, 304] {
        let answer = call(&mut client, &format!("GET /status/{status} HTTP/1.1"));
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("transfer-encoding"), None, "{status}");
        if status == 204 {
            assert_eq!(answer.header("content-length"), None);
        }
    }
    let answer = call(&mut client, "GET /stream?n=200000 HTTP/1.1");
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
    assert_eq!(answer.body, pattern_bytes(200_000));
    let answer = call(&mut client, "GET /bytes?n=200000 HTTP/1.1");
    assert_eq!(answer.header("content-length"), Some("200000"));
    assert_eq!(answer.body, pattern_bytes(200_000));
    let answer = call(&mut client, "GET /echo HTTP/1.0\r\nConnection: keep-alive");
    assert_eq!(answer.header("connection"), Some("keep-alive"));
    // HTTP/1.0 has no chunked coding, so the end of the connection marks the end of the stream.
    let answer = call(&mut client, "GET /stream?n=200000 HTTP/1.0\r\nConnection: keep-alive");
    assert_eq!(answer.header("transfer-encoding"), None);
    assert!(answer.closes());
    assert_eq!(answer.body, pattern_bytes(200_000));
    assert!(client.is_over());
    let mut client = server.client();
    let answer = client.call("PUT /get-only HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD")));
}

#[test]
fn a_client_that_waits_for_continue_gets_it_or_a_refusal() {
    let server = Server::start(Config::default());
    let mut client = server.client();
    let head = "Host: a\r\nExpect: 100-continue\r\nContent-Length";
    client.send(format!("POST /echo HTTP/1.1\r\n{head}: 3\r\n\r\n"));
    assert_eq!(client.answer(false).unwrap().status, 100);
    let answer = client.send("abc").answer(false).unwrap();
    assert!(answer.status == 200 && answer.text().ends_with("abc"));
    // A body that is not allowed is refused before the client sends it.
    let answer = client.call(&format!("POST /small HTTP/1.1\r\n{head}: 11\r\n\r\n"));
    assert_eq!(answer.status, 413);
    assert!(client.is_over());
    let answer = server.client().call(&format!("POST /nobody HTTP/1.1\r\n{head}: 11\r\n\r\n"));
    assert_eq!(answer.status, 404);
}

#[test]
fn an_answer_of_20_mib_passes_in_a_few_chunks_at_a_time() {
    let server = Server::start(Config::default());
    let mut client = server.client();
    let answer = client.call(&format!("GET /stream?n={} HTTP/1.1\r\nHost: a\r\n\r\n", 20 << 20));
    assert!(answer.body == pattern_bytes(20 << 20));
    let held_max = server.fake.state.held_max.load(Ordering::SeqCst);
    println!("chunks of an answer held at once: {held_max}");
    assert!(held_max <= 2, "{held_max} chunks of 64 KiB held at once");
}

#[test]
fn a_body_of_20_mib_waits_in_the_socket_until_it_is_read() {
    for chunked in [false, true] {
        let server = Server::start(Config::default());
        let total = 20 << 20;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (ahead, answer) = runtime.block_on(async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_send_buffer_size(64 << 10).unwrap();
            let mut stream = socket.connect(server.address).await.unwrap();
            let framing = if chunked {
                "Transfer-Encoding: chunked".to_owned()
            } else {
                format!("Content-Length: {total}")
            };
            let head = format!("POST /sink HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let piece = if chunked {
                [&b"8000\r\n"[..], &[b'x'; 32 << 10], b"\r\n"].concat()
            } else {
                vec![b'x'; 32 << 10]
            };
            let mut sent = 0;
            let mut at = 0;
            let mut ahead = None;
            while sent < total {
                let write = stream.write(&piece[at..]);
                match tokio::time::timeout(Duration::from_millis(500), write).await {
                    Ok(written) => at += written.unwrap(),
                    Err(_) => {
                        assert!(ahead.replace(sent).is_none(), "blocked twice");
                        server.fake.permits.add_permits(1);
                    }
                }
                if at == piece.len() {
                    (at, sent) = (0, sent + (32 << 10));
                }
            }
            if chunked {
                stream.write_all(b"0\r\n\r\n").await.unwrap();
            }
            let mut answer = vec![0; 4_096];
            let length = stream.read(&mut answer).await.unwrap();
            answer.truncate(length);
            (ahead, String::from_utf8(answer).unwrap())
        });
        let ahead = ahead.expect("the client was never held up");
        let largest = server.fake.state.largest_chunk.load(Ordering::SeqCst);
        println!("chunked {chunked}: {ahead} bytes sent ahead, largest chunk {largest}");
        assert!(answer.ends_with(&total.to_string()), "{answer}");
        // The front holds two chunks and one buffer. The kernel holds the rest.
        assert!(ahead <= 1 << 20, "{ahead} bytes ahead of the function");
        assert!(largest <= 128 << 10, "chunk of {largest} bytes");
    }
}

#[test]
fn a_function_that_takes_bodies_whole_is_called_when_the_last_byte_is_there() {
    let length = 200_000;
    let body = pattern_bytes(length);
    let chunk =
        |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let by_length = (format!("Content-Length: {length}"), body.clone());
    let chunks = [chunk(&body[..150_000]), chunk(&body[150_000..]), b"0\r\n\r\n".to_vec()].concat();
    let chunked = ("Transfer-Encoding: chunked".to_owned(), chunks);
    for (framing, bytes) in [by_length, chunked] {
        let server = Server::start(Config::default());
        let mut slow = server.client();
        let (first, rest) = bytes.split_at(150_000);
        slow.send(format!("POST /whole HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n")).send(first);
        let mut other = server.client();
        for n in 1..20 {
            let answer = other.call("GET /count HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(answer.text(), n.to_string(), "{framing}: the function was called");
        }
        slow.send(rest);
        let answer = slow.answer(false).unwrap();
        assert!(answer.status == 200 && answer.body.ends_with(&body), "{framing}");
        assert_eq!(server.fake.calls(), 20);
        // The connection stays open, and an incomplete body never reaches a function.
        slow.send(format!("POST /whole HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n")).send(first);
        drop(slow);
        assert_eq!(other.call("GET /count HTTP/1.1\r\nHost: a\r\n\r\n").text(), "21");
    }
}

#[test]
fn a_body_over_the_limit_is_refused_and_the_client_can_read_why() {
    let server = Server::start(Config::default());
    let text = "body limit 6 MiB; raise it: body in [limits] or body_max in [http]";
    let body = vec![b'x'; (6 << 20) + 1];
    // With a declared length, the request is refused at once, although the client sends the whole
    // body.
    let mut client = server.client();
    let head = format!("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
    client.send(head).send(&body);
    let answer = client.answer(false).unwrap();
    assert_eq!((answer.status, answer.detail()), (413, text.to_owned()));
    assert_eq!(server.fake.calls(), 0);
    // With chunked coding, the front learns the size only when it exceeds the limit.
    let mut client = server.client();
    client.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(format!("{:x}\r\n", body.len())).send(&body);
    let answer = client.answer(false).unwrap();
    assert_eq!((answer.status, answer.detail()), (413, text.to_owned()));
    assert!(answer.closes());
    server.fake.wait("the invocation ends", |state| {
        state.cancelled.load(Ordering::SeqCst) + state.saw.lock().len() as u64 == 1
    });
    assert!(server.fake.take_saw().iter().all(|saw| saw.body.is_err()));
}

#[test]
fn what_comes_too_slowly_is_refused_in_time() {
    let server = Server::start(quick());
    let late = (408, "request not received in time".to_owned());
    let long = "Content-Length: 100000\r\n\r\nabc";
    let mut tried = 0;
    for input in [
        "GET /echo HTTP/1.1\r\nHost",
        "G",
        "PRI * HTTP/2.0\r\n\r",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab",
        &format!("POST /echo HTTP/1.1\r\nHost: a\r\n{long}"),
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let begin = Instant::now();
        let mut client = server.client();
        let answer = client.send(input).answer(false).expect(input);
        let told = (answer.status, answer.detail());
        let took = begin.elapsed();
        assert_eq!(told, late, "{input:?}");
        assert!(client.is_over(), "{input:?}");
        assert!(took < Duration::from_secs(3), "{input:?}: {took:?}");
        tried += 1;
    }
    assert!(server.fake.take_saw().iter().all(|saw| saw.body.is_err()), "a cut body looked whole");
    // A client that sends single bytes does not get more time.
    let begin = Instant::now();
    let mut client = server.client();
    client.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut byte = [0];
    for letter in "GET /echo/".bytes().chain(std::iter::repeat(b'x')) {
        assert!(begin.elapsed() < Duration::from_secs(5), "a slow head is never refused");
        client.send([letter]);
        if client.stream.read(&mut byte).is_ok() {
            break;
        }
    }
    // An idle connection is closed without an answer, whether or not it was used.
    let mut client = server.client();
    client.call("GET /echo HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.is_over());
    assert!(server.client().is_over());
    println!("{} tried / {} as the table says", tried + 3, tried + 3);
}

#[test]
fn a_client_that_goes_away_cancels_its_invocation() {
    let server = Server::start(Config::default());
    let cancelled = |n| {
        server
            .fake
            .wait("a cancelled invocation", |state| state.cancelled.load(Ordering::SeqCst) == n);
    };
    let chunked = "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let whole = format!("Host: a\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(100_000));
    for (n, request) in [
        // The first four requests cover a body that is complete at once, one that was streamed, one
        // that is still arriving and one that is not read. For the last two requests, the answer is
        // still being sent.
        "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        format!("POST /slow HTTP/1.1\r\n{whole}"),
        format!("POST /slow HTTP/1.1\r\n{chunked}3\r\nabc\r\n"),
        format!("POST /echo HTTP/1.1\r\n{chunked}3\r\nabc\r\n"),
        "GET /stall HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        format!("POST /stall HTTP/1.1\r\n{whole}"),
    ]
    .iter()
    .enumerate()
    {
        let n = n as u64;
        let mut client = server.client();
        client.send(request);
        server.fake.wait("an invocation", |state| state.calls.load(Ordering::SeqCst) == n + 1);
        if request.contains("/stall") {
            assert_eq!(client.head().unwrap().status, 200);
        }
        drop(client);
        cancelled(n + 1);
    }
    println!("6 tried / 6 cancelled");
}

#[test]
fn a_client_that_ends_its_side_still_gets_its_answer() {
    let server = Server::start(Config::default());
    let body = "x".repeat(300_000);
    let chunked: String =
        body.as_bytes().chunks(1_000).map(|_| format!("3e8\r\n{}\r\n", &body[..1_000])).collect();
    let head = "Host: a\r\n";
    for (n, request) in [
        format!("GET /slow HTTP/1.1\r\n{head}\r\n"),
        format!("GET /slow HTTP/1.1\r\n{head}Connection: close\r\n\r\n"),
        "GET /slow HTTP/1.0\r\n\r\n".to_owned(),
        // A body that is complete at once, one that is read while it arrives, and one that waits to
        // be read.
        format!("POST /slow HTTP/1.1\r\n{head}Content-Length: 3\r\n\r\nabc"),
        format!("POST /sink HTTP/1.1\r\n{head}Content-Length: 300000\r\n\r\n{body}"),
        format!(
            "POST /sink HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n{chunked}0\r\n\r\n"
        ),
    ]
    .iter()
    .enumerate()
    {
        let n = n as u64 + 1;
        let mut client = server.client();
        client.send(request);
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        server.fake.wait("the invocation", |state| state.calls.load(Ordering::SeqCst) == n);
        server.fake.permits.add_permits(1);
        let mut answer = client.answer(false).expect("an answer");
        if answer.status == 100 {
            answer = client
                .answer(false)
                .unwrap_or_else(|| panic!("an answer after the interim one, {n}"));
        }
        let expected =
            if request.contains("/sink") { "300000".into() } else { format!("slow {n}") };
        assert_eq!((answer.status, answer.text()), (200, expected), "{n}");
        assert!(client.is_over(), "{n}");
    }
    assert_eq!(server.fake.state.cancelled.load(Ordering::SeqCst), 0);
    // Even if the client ends its side first, a long answer is sent to its end.
    let mut client = server.client();
    client.send("GET /stream?n=20000000 HTTP/1.1\r\nHost: a\r\n\r\n");
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = client.answer(false).expect("an answer");
    if answer.status == 100 {
        answer = client.answer(false).expect("an answer after the interim one");
    }
    assert_eq!(answer.body.len(), 20_000_000);
}

#[test]
fn an_answer_to_a_body_that_nobody_reads_arrives_whole() {
    let server = Server::start(Config::default());
    for framing in ["Content-Length: 3000000", "Transfer-Encoding: chunked"] {
        let mut client = server.client();
        let mut sender = client.stream.try_clone().unwrap();
        client.send(format!("POST /big?n=2000000 HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n"));
        let is_chunked = framing.contains("chunked");
        let sending = std::thread::spawn(move || {
            use std::io::Write;
            let piece = [&b"186a0\r\n"[..], &[b'x'; 100_000], b"\r\n"].concat();
            let piece = if is_chunked { &piece[..] } else { &piece[7..100_007] };
            (0..30).all(|_| sender.write_all(piece).is_ok())
        });
        let answer = client.answer(false).expect("an answer");
        assert_eq!((answer.status, answer.body.len()), (200, 2_000_000), "{framing}");
        assert!(sending.join().unwrap(), "the rest is read");
        assert!(client.is_over(), "{framing}");
    }
}

#[test]
fn two_thousand_idle_connections_are_closed_by_the_clock() {
    let config = Config { keep_alive_timeout: Duration::from_secs(2), ..quick() };
    let server = Server::start(config);
    let mut clients: Vec<_> = (0..2_000).map(|_| server.client()).collect();
    for client in clients.iter_mut().step_by(2) {
        // Every second connection has served a request before.
        assert_eq!(client.call("GET /echo HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    }
    let closed = clients.iter_mut().filter_map(|client| client.is_over().then_some(())).count();
    println!("{} tried / {closed} closed", clients.len());
    assert_eq!(closed, clients.len());
    assert_eq!(server.client().call("GET /echo HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
}

#[test]
fn a_connection_may_wait_for_its_first_request() {
    let config = Config { keep_alive_timeout: Duration::from_secs(60), ..quick() };
    let server = Server::start(config);
    let mut client = server.client();
    let mut slow = server.client();
    slow.send("G");
    // Measured: the wait exceeds a head's time limit, which begins with the head's first byte.
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(client.call("GET /echo HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    assert_eq!(slow.answer(false).unwrap().status, 408);
}

#[test]
fn stopping_ends_connections_after_their_current_or_next_answer() {
    let grace = Duration::from_secs(1);
    let mut server = Server::start(Config { last_request_grace: grace, ..Config::default() });
    const GET: &str = "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut fresh = server.client();
    let [mut idle, mut late, mut pipelining] = [(); 3].map(|()| {
        let mut kept = server.client();
        assert!(!kept.call(GET).closes());
        kept
    });
    let mut busy = server.client();
    busy.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    server.fake.wait("all", |state| state.calls.load(Ordering::SeqCst) == 4);
    let since = Instant::now();
    server.begin_stop();
    // Each client sends its request before it can know that the node stops.
    for client in [&mut late, &mut fresh] {
        let answer = client.call(GET);
        assert_eq!((answer.status, answer.closes()), (200, true));
        assert!(client.is_over());
    }
    pipelining.send(GET.repeat(3));
    let answer = pipelining.answer(false).unwrap();
    assert_eq!((answer.status, answer.closes()), (200, true));
    assert!(pipelining.is_over());
    assert!(idle.is_over());
    assert!(since.elapsed() >= grace, "it had no time: {:?}", since.elapsed());
    server.fake.permits.add_permits(1);
    let answer = busy.answer(false).unwrap();
    assert_eq!((answer.status, answer.closes()), (200, true));
    assert!(busy.is_over());
    server.stop();
}

#[test]
fn stopping_gives_up_requests_that_trickle_in_and_no_invocation() {
    let grace = Duration::from_millis(300);
    let mut server = Server::start(Config { arrival_grace: grace, ..Config::default() });
    let mut accepted = server.client();
    accepted.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    // The invocation of this request began with the first bytes of its body.
    let mut begun = server.client();
    begun.send("POST /sink HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nabc");
    server.fake.wait("both", |state| state.calls.load(Ordering::SeqCst) == 2);
    // An answer shows that the front has read the beginning: either the answer to the previous
    // request, or 100.
    let body = |path: &str, length: usize| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\
             Content-Length: {length}\r\n\r\n"
        )
    };
    let trickling = [
        "GET /echo HTTP/1.1\r\nHost: a\r\n\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nx: ".to_owned(),
        body("/echo", 1_000),
        body("/whole", 100_000),
    ]
    .map(|start| {
        let mut client = server.client();
        client.send(start).answer(false).unwrap();
        client.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        client
    });
    let since = Instant::now();
    server.begin_stop();
    std::thread::scope(|scope| {
        for mut client in trickling {
            scope.spawn(move || {
                // Sends one byte every 20 ms until there is an answer.
                let mut byte = [0];
                while client.send("x").stream.peek(&mut byte).is_err() {
                    assert!(since.elapsed() < Duration::from_secs(5), "it is still waited for");
                }
                client.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                let answer = client.answer(false).unwrap();
                assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
                assert!(since.elapsed() >= grace, "it had no time");
            });
        }
    });
    server.fake.permits.add_permits(2);
    assert_eq!(accepted.answer(false).unwrap().status, 200);
    begun.send(vec![b'x'; 100_000 - 3]);
    assert_eq!(begun.answer(false).unwrap().text(), "100000");
    server.stop();
}

#[test]
fn a_function_that_panics_costs_one_connection() {
    let server = Server::start(Config::default());
    let mut client = server.client();
    client.send("GET /boom HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer(false), None);
    assert_eq!(server.client().call("GET /echo HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
}

#[test]
fn a_slow_reader_is_given_up() {
    let config = Config { write_timeout: Duration::from_millis(300), ..Config::default() };
    let server = Server::start(config);
    let mut client = server.client();
    let request = format!("GET /stream?n={} HTTP/1.1\r\nHost: a\r\n\r\n", 64 << 20);
    client.stream.write_all(request.as_bytes()).unwrap();
    assert_eq!(client.head().unwrap().status, 200);
    server
        .fake
        .wait("the answer is dropped", |state| state.streams_over.load(Ordering::SeqCst) == 1);
    // The bytes that the kernel holds can still be read, but the end mark never arrives.
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    assert!(rest.len() < 64 << 20 && !rest.ends_with(b"0\r\n\r\n"));
}

/// The kernel drops connections that do not fit into the backlog, and their clients try again a
/// second later. Clients that connect at the same time while the node is busy must therefore all
/// fit.
#[tokio::test]
async fn a_burst_of_clients_connects_before_the_first_is_accepted() {
    let limit = |path: &str| {
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<usize>().ok())
    };
    let kernel_max = limit("/proc/sys/net/core/somaxconn").unwrap_or(128);
    // Both ends of a connection count, and some descriptors are already in use, so the test opens
    // at most half of the allowed number.
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let files_max = files.current.map_or(usize::MAX, |files| files as usize);
    let burst = kernel_max.min(1_500).min(files_max.saturating_sub(100));
    let listener = mote_http::http::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut clients = Vec::new();
    for n in 0..burst {
        // No task accepts connections, so a client that does not fit gets no answer.
        let connected = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(500));
        clients.push(connected.unwrap_or_else(|error| panic!("client {n} of {burst}: {error}")));
    }
}

/// The accepting runtime and its helpers take turns at serving connections. All of them serve and
/// stop.
#[test]
fn helpers_serve_connections_and_stop_with_the_front() {
    let (handles, helpers): (Vec<_>, Vec<_>) = (0..2)
        .map(|_| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let handle = runtime.handle().clone();
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let thread = std::thread::spawn(move || runtime.block_on(stopped).is_ok());
            (handle, (stop, thread))
        })
        .unzip();
    let mut server = Server::start(Config { helpers: handles, ..Config::default() });
    let mut clients: Vec<_> = (0..7).map(|_| server.client()).collect();
    for _ in 0..3 {
        for client in &mut clients {
            let answer = client.call("GET /echo HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(answer.status, 200);
        }
    }
    assert_eq!(server.fake.calls(), 21);
    server.stop();
    assert!(clients.iter_mut().all(|client| client.is_over()), "idle connections are ended");
    for (stop, thread) in helpers {
        stop.send(()).unwrap();
        assert!(thread.join().unwrap());
    }
}
