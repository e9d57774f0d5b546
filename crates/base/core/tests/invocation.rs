//! Tests ids, heads and claimed times of invocations.

use mote_core::invocation::{Head, headers};
use mote_core::{InvocationId, Phases};

#[test]
fn ids_are_ulids() {
    // The largest ULID, and the smallest.
    assert_eq!(InvocationId(u128::MAX).to_string(), "7ZZZZZZZZZZZZZZZZZZZZZZZZZ");
    assert_eq!(InvocationId(0).to_string(), "00000000000000000000000000");
    for id in [0, 1, 0x0123_4567_89ab_cdef, u128::MAX] {
        assert_eq!(InvocationId::from_text(&InvocationId(id).to_string()), Some(InvocationId(id)));
    }
    let lower = InvocationId(77).to_string().to_lowercase();
    assert_eq!(InvocationId::from_text(&lower), Some(InvocationId(77)));
    for text in [
        "",
        "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
        "0000000000000000000000000U",
        "é0000000000000000000000000",
    ] {
        assert_eq!(InvocationId::from_text(text), None, "{text}");
    }
    let early = InvocationId::new(1, u128::MAX);
    let late = InvocationId::new(2, 0);
    assert!(early.to_string() < late.to_string());
}

#[test]
fn claimed_times_lie_between_the_frame_and_now() {
    let claim = |entered, returned| {
        let mut phases = Phases { sent_ns: 100, ..Phases::default() };
        phases.claim(entered, returned, 200);
        (phases.entered_ns, phases.returned_ns)
    };
    assert_eq!(claim(120, 150), (120, 150));
    assert_eq!(claim(0, 0), (0, 0));
    assert_eq!(claim(1, u64::MAX), (100, 200));
    assert_eq!(claim(u64::MAX, 1), (200, 200));
}

#[test]
fn heads_keep_their_parts() {
    let mut builder = Head::builder(b"POST", b"/a/b", b"x=1");
    builder.header(b"Content-Type", b"text/plain").header(b"X-Empty", b"");
    let head = builder.finish();
    assert_eq!(head.method(), b"POST");
    assert_eq!(head.path(), b"/a/b");
    assert_eq!(head.query(), b"x=1");
    let fields: Vec<_> = headers(head.headers()).collect();
    assert_eq!(fields, [(&b"content-type"[..], &b"text/plain"[..]), (&b"x-empty"[..], &b""[..])]);
}

#[test]
fn fields_are_removed_wherever_they_stand() {
    let head_with = |names: &[&str]| {
        let mut builder = Head::builder(b"GET", b"/a", b"q");
        for (place, name) in names.iter().enumerate() {
            builder.header(name.as_bytes(), format!("{place}").as_bytes());
        }
        builder.finish()
    };
    for (names, rest) in [
        (&["x", "a", "b"][..], &b"a\n1\nb\n2\n"[..]),
        (&["a", "X", "b", "x", "c"], b"a\n0\nb\n2\nc\n4\n"),
        (&["a", "x"], b"a\n0\n"),
        (&["xx", "ax"], b"xx\n0\nax\n1\n"),
        (&["x"], b""),
        (&[], b""),
    ] {
        let mut head = head_with(names);
        head.remove_header(b"x");
        assert_eq!(head.headers(), rest, "{names:?}");
        assert_eq!((head.path(), head.query()), (&b"/a"[..], &b"q"[..]));
        head.replace_header(b"x", b"new");
        assert_eq!(head.headers(), [rest, b"x\nnew\n"].concat(), "{names:?}");
    }
}

/// A browser sends a host's cookies to all its ports, even those of the node's dashboard.
#[test]
fn heads_have_no_cookie_of_a_session() {
    let fields = |cookies: &str| {
        let mut builder = Head::builder(b"GET", b"/", b"");
        builder.header(b"Cookie", cookies.as_bytes()).header(b"accept", b"*/*");
        String::from_utf8(builder.finish().headers().to_vec()).expect("text")
    };
    assert_eq!(fields("a=1; b=2"), "cookie\na=1; b=2\naccept\n*/*\n");
    assert_eq!(fields("a=1; mote-session-6684=x"), "cookie\na=1\naccept\n*/*\n");
    assert_eq!(fields("mote-session-6684=x"), "accept\n*/*\n");
    assert_eq!(fields(""), "cookie\n\naccept\n*/*\n");
}
