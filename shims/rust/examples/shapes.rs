//! The function to which the dialogues of `shims/conformance` talk. It is the twin of `shapes.py`.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use mote_function::{
    serve, Answer, CallOptions, Event, IntoAnswer, NotifyOptions, Publish, PutOptions,
};

static RELEASES: Mutex<u32> = Mutex::new(0);
static RELEASED: Condvar = Condvar::new();

fn handle(mut event: Event) -> Result<Answer, Box<dyn std::error::Error>> {
    let path = event.path().to_owned();
    let answer = match path.as_str() {
        "/hello" => "mote".into_answer()?,
        "/none" => Answer::none(),
        "/kv" => {
            let entry = event.kv().get("k")?;
            Answer::bytes(entry.map(|entry| entry.value).unwrap_or_default())
        }
        "/kv-put" => {
            let ttl = Some(Duration::from_secs(60));
            let options = PutOptions { ttl, version: Some(5), not_durable: true };
            event.kv().shared("site").put("key", "value", &options)?.to_string().into_answer()?
        }
        "/kv-increment" => event.kv().increment("n", -2)?.to_string().into_answer()?,
        "/notify" => {
            let max_age = Some(Duration::from_secs(60));
            let options = NotifyOptions { max_age, content_type: None };
            event.notify("/t", Some(b"21.5"), &options)?.to_string().into_answer()?
        }
        "/notify-ask" => match event.notify("/t?unit=k", None, &NotifyOptions::default()) {
            Ok(count) => count.to_string().into_answer()?,
            Err(error) => format!("{} {error}", error.code).into_answer()?,
        },
        "/call" => {
            let headers = [("content-type", "text/plain; charset=utf-8"), ("x-a", "1")];
            let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let options = CallOptions {
                path: "/x".to_owned(),
                query: "a=b".to_owned(),
                headers: headers.into(),
                timeout: Some(Duration::from_millis(250)),
                ..CallOptions::default()
            };
            let reply = event.call("other", "body", &options)?;
            let body = String::from_utf8_lossy(&reply.body).into_owned();
            let field = reply.header("x-b").unwrap_or_default();
            format!("{} {field} {body}", reply.status).into_answer()?
        }
        "/publish" => {
            let message = Publish {
                topic: "a/b",
                payload: b"body",
                qos: 2,
                retain: true,
                response_topic: "r",
                correlation: b"c",
                user: vec![("k".to_owned(), "v".to_owned())],
                ..Publish::default()
            };
            match event.publish(&message) {
                Ok(()) => "published".into_answer()?,
                Err(error) => format!("{} {error}", error.code).into_answer()?,
            }
        }
        "/wait" => {
            let mut releases = RELEASES.lock().unwrap();
            while *releases == 0 {
                releases = RELEASED.wait(releases).unwrap();
            }
            *releases -= 1;
            "waited".into_answer()?
        }
        "/release" => {
            *RELEASES.lock().unwrap() += 1;
            RELEASED.notify_all();
            "released".into_answer()?
        }
        "/big" => Answer::bytes(vec![b'x'; (64 + 320) << 10]),
        "/echo" => {
            let kind = event.header("content-type").unwrap_or("none").to_owned();
            let twice = event.headers().iter().filter(|(name, _)| name == "x-twice");
            let seen: Vec<_> = twice.map(|(_, value)| value.clone()).collect();
            let body = event.body()?;
            let answer = Answer::bytes(body).status(201).header("content-type", kind);
            answer.header("X-Seen", seen.join(", "))
        }
        "/size" => event.body()?.len().to_string().into_answer()?,
        "/fail" => panic!("boom"),
        "/bad-header" => Answer::text("x").header("x-bad", "a\nb"),
        "/bad-status" => Answer::text("x").status(199),
        "/hang" => {
            event.wait_cancelled();
            Answer::none()
        }
        "/stream" => {
            Answer::stream(["a", "b"].map(|part| Ok::<_, String>(part.as_bytes().to_vec())))
        }
        _ => Answer::text("no such path").status(404),
    };
    Ok(answer)
}

fn main() {
    // The dialogues include a handler that panics, so no message is printed.
    std::panic::set_hook(Box::new(|_| {}));
    serve(handle)
}
