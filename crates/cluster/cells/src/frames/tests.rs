//! Written frames can be read again, and malformed frames are refused.

use super::*;

fn name(text: &str) -> FunctionName {
    FunctionName::new(text).unwrap()
}

fn key() -> RevisionKey {
    RevisionKey { function: name("thermo"), number: 7, content: 0x0123_4567_89ab_cdef }
}

fn frame(put: impl FnOnce(&mut Vec<u8>)) -> Frame {
    let mut out = Vec::new();
    put(&mut out);
    let mut buffer = BytesMut::from(&out[..]);
    let frame = split(&mut buffer).unwrap().unwrap();
    assert!(buffer.is_empty());
    frame
}

fn invocation(body: Body) -> Invocation {
    let mut head = Head::builder(b"POST", b"/a", b"x=1");
    head.header(b"content-type", b"text/plain").header(b"prefer", b"");
    let first = Chain::extend(&name("a"), None, &name("b")).unwrap();
    Invocation {
        id: InvocationId(77 << 64 | 5),
        trigger: Trigger::Coap,
        head: head.finish(),
        body,
        received_ns: 1_000,
        deadline_ns: 6_000,
        chain: Some(Chain::extend(&name("b"), Some(&first), &name("thermo")).unwrap()),
    }
}

#[tokio::test]
async fn an_invocation_arrives_as_it_was_sent() {
    for (body, whole) in [
        (Body::Empty, true),
        (Body::whole("abc"), true),
        (Body::Whole(vec![1; INLINE_BYTES_MAX].into()), true),
        (Body::Whole(vec![1; INLINE_BYTES_MAX + 1].into()), false),
    ] {
        let length = body.length();
        let sent = invocation(body);
        let mut is_whole = false;
        let frame = frame(|out| is_whole = put_invoke(out, 3, &key(), &sent, 2_000));
        assert_eq!((is_whole, frame.end, frame.stream), (whole, whole, 3));
        let Invoked { key: read, invocation, streams } = read_invoke(&frame, 9_000).unwrap();
        assert_eq!(read, key());
        assert_eq!((invocation.id, invocation.trigger), (sent.id, sent.trigger));
        assert_eq!(invocation.head, sent.head);
        assert_eq!((invocation.received_ns, invocation.deadline_ns), (9_000, 13_000), "its rest");
        assert_eq!(invocation.chain, sent.chain);
        if whole {
            assert_eq!(streams, None);
            let body = invocation.body.collect(1 << 20).await.unwrap();
            assert_eq!(Some(body.len() as u64), length);
        } else {
            assert_eq!(streams, Some(length));
        }
    }
}

#[test]
fn an_answer_arrives_as_it_was_sent() {
    let mut fields = Vec::new();
    mote_core::invocation::put_header(&mut fields, b"x-a", b"b");
    let phases = Phases {
        received_ns: 0,
        init_ns: 5,
        sent_ns: 10,
        entered_ns: 20,
        returned_ns: 50,
        answered_ns: 55,
    };
    let reply = Reply { status: 201, headers: fields.into(), body: Body::whole("ok"), phases };
    let answer = read_result(&frame(|out| assert!(put_result(out, 1, &reply)))).unwrap();
    assert_eq!((answer.status, &answer.body[..]), (201, &b"ok"[..]));
    assert_eq!(answer.headers, reply.headers);
    let here = answer.phases(1_000, 2_000);
    assert_eq!((here.run_ns(), here.handover_ns(), here.init_ns), (30, 15, 5));
    assert_eq!(here.queue_ns(), 1_000 - 30 - 15 - 5, "the way counts as waiting");
    // Times from another machine never lead to phases before the arrival of the request.
    let here = answer.phases(1_000, 1_010);
    assert!(here.received_ns <= here.sent_ns && here.sent_ns <= here.entered_ns);
    assert!(here.entered_ns <= here.returned_ns && here.returned_ns <= here.answered_ns);
}

#[test]
fn faults_arrive_as_they_were_sent() {
    let message = "ü".repeat(TEXT_BYTES_MAX);
    for fault in [
        Fault::NoSuchFunction,
        Fault::BodyTooLarge { limit_bytes: 5 },
        Fault::BodyIncomplete,
        Fault::CallerGone,
        Fault::QueueFull,
        Fault::NodeFull,
        Fault::Stopping,
        Fault::DeadlineQueued { timeout_ms: 1 },
        Fault::DeadlineStarting { timeout_ms: 2 },
        Fault::DeadlineRunning { timeout_ms: 3 },
        Fault::HandlerError { message: "no".into() },
        Fault::StartFailed { message: String::new() },
        Fault::WorkerKilled { signal: 9, attempt: 2 },
        Fault::OutOfMemory { limit_bytes: 1 << 40, platform: None },
        Fault::OutOfMemory { limit_bytes: 1, platform: Some(mote_spec::Platform::Nuclio) },
        Fault::WorkerExited { status: -1, attempt: 1 },
        Fault::BadReply { message: "x".into() },
        Fault::AnswerTooLarge { limit_bytes: 9 },
        Fault::Internal { message: "y".into() },
        Fault::NoKey,
        Fault::OtherKey,
        Fault::TooManyKeys,
        Fault::NotLocal,
        Fault::OtherSite,
        Fault::TooManyCalls { retry_after_s: 7, of: RateOf::Function },
        Fault::TooManyCalls { retry_after_s: 7, of: RateOf::Caller },
        Fault::TooManyCalls { retry_after_s: 7, of: RateOf::Namespace },
        Fault::TooManyAtOnce { of_caller: true },
    ] {
        let read = read_fault(frame(|out| put_fault(out, 1, &fault)).payload).unwrap();
        assert_eq!(read, fault);
    }
    let long = Fault::HandlerError { message };
    let read = read_fault(frame(|out| put_fault(out, 1, &long)).payload).unwrap();
    assert!(matches!(read, Fault::HandlerError { message } if message.len() == TEXT_BYTES_MAX));
}

#[test]
fn loads_and_greetings_arrive_as_they_were_sent() {
    let sent =
        Load { free_bytes: 1 << 33, revisions: vec![(key(), Places { ready: 3, more: u32::MAX })] };
    for draining in [false, true] {
        assert_eq!(read_load(load(&sent, draining).into()), Ok((sent.clone(), draining)));
    }
    let many = Load { free_bytes: 0, revisions: vec![(key(), Places::default()); 2_000] };
    let (read, _) = read_load(load(&many, false).into()).unwrap();
    assert_eq!(read.revisions.len(), REVISIONS_MAX);
    let longest = RevisionKey { function: name(&"x".repeat(63)), ..key() };
    let all = Load { free_bytes: 0, revisions: vec![(longest, Places::default()); REVISIONS_MAX] };
    assert!(load(&all, false).len() <= Kind::Load.payload_bytes_max());
    for cell in ["", "cell-a", "10.0.0.1"] {
        let hello = frame(|out| put_hello(out, cell));
        assert_eq!(read_hello(&hello), Ok((VERSION, cell.to_owned())));
    }
}

#[test]
fn malformed_frames_are_refused() {
    let mut all = Vec::new();
    put_invoke(&mut all, 3, &key(), &invocation(Body::whole("abc")), 0);
    let good = frame(|out| out.extend_from_slice(&all));
    // A shorter payload is refused, unless only the body became shorter.
    for length in 0..good.payload.len() {
        let cut = Frame { payload: good.payload.slice(..length), ..frame(|o| o.extend(&all)) };
        let read = read_invoke(&cut, 0);
        assert!(read.is_err() || length >= good.payload.len() - 3, "{length}");
    }
    // Changing any byte causes at most a refusal.
    for at in HEADER_BYTES..all.len() {
        for value in [0, 1, 0x7f, 0xff, b'\n'] {
            let mut wrong = all.clone();
            wrong[at] = value;
            if let Ok(Some(frame)) = split(&mut BytesMut::from(&wrong[..])) {
                let _ = read_invoke(&frame, 0);
                let _ = read_result(&frame);
                let _ = read_load(frame.payload.clone());
                let _ = read_hello(&frame);
                let _ = read_fault(frame.payload);
            }
        }
    }
    let header = |length: u32, kind: u8, flags: u8, zero: u8| {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(&[kind, flags, zero, 0, 1, 0, 0, 0]);
        split(&mut BytesMut::from(&bytes[..])).map(|frame| frame.is_some())
    };
    assert_eq!(header(0, Kind::Ping as u8, 0, 0), Ok(true));
    assert_eq!(header(1, Kind::Body as u8, 0, 0), Ok(false), "not complete");
    for (length, kind, flags, zero) in [
        (u32::MAX, Kind::Body as u8, 0, 0),
        (CHUNK_BYTES_MAX as u32 + 1, Kind::Body as u8, 0, 0),
        (1, Kind::Ping as u8, 0, 0),
        (5, Kind::Credit as u8, 0, 0),
        (0, 0, 0, 0),
        (0, 15, 0, 0),
        (0, Kind::Ping as u8, 2, 0),
        (0, Kind::Ping as u8, 0, 1),
    ] {
        assert!(header(length, kind, flags, zero).is_err(), "{length} {kind} {flags} {zero}");
    }
    assert!(read_credit(&[1, 2]).is_err() && read_refused(&[3]).is_err());
    let hello = frame(|out| put(out, Kind::Ping, false, 0, |_| {}));
    assert!(read_hello(&hello).is_err());
    let hello = frame(|out| put_hello(out, "no\nname"));
    assert!(read_hello(&hello).is_err());
}
