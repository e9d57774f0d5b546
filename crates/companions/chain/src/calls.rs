//! The steps of a run that reach outside the run: calls of functions, and messages.

use crate::answers::{content, escape, fill, members, refused};
use crate::document::{Call, Http};
use crate::expression::{Template, Val, get, int_of, is_true, object, text_of, to_json};
use crate::host::{Error, Host, Outgoing, Publication, Stop};
use crate::interpreter::{Place, Run, Scope, Sight, at, placed, unusable};

impl<H: Host> Run<'_, H> {
    /// If this attempt may not begin further steps, waits until another attempt takes over.
    async fn may_begin(&self) {
        if self.host.is_journalled() && self.host.now_ms() >= self.host.begins_until_ms() {
            self.wants_again.set(true);
            std::future::pending::<()>().await;
        }
    }

    pub(crate) async fn call(
        &self,
        call: &Call,
        input: Val,
        sight: &Sight<'_>,
        scope: &Scope,
        place: &Place,
    ) -> Result<Val, Stop> {
        if let Some(known) = self.recorded(&place.key).and_then(|known| get(&known, "ok").cloned())
        {
            return Ok(known);
        }
        self.may_begin().await;
        let body = match (&call.body, &call.http) {
            (Some(template), _) => Some(self.template(template, &input, sight, place)?),
            (None, Some(_)) => None,
            (None, None) => Some(input.clone()),
        };
        let mut outgoing = Outgoing {
            step: place.key.clone(),
            function: call.function.clone(),
            method: "POST".to_owned(),
            path: "/".to_owned(),
            query: String::new(),
            headers: Vec::new(),
            body: Vec::new(),
            timeout_ms: scope
                .deadline_ms
                .map_or(0, |until| until.saturating_sub(self.host.now_ms()).max(1)),
        };
        if let Some(http) = &call.http {
            self.http(http, &mut outgoing, &input, sight, place)?;
        }
        if let Some(body) = body {
            let has_type = outgoing.headers.iter().any(|(name, _)| name == "content-type");
            if !has_type {
                outgoing.headers.push(("content-type".to_owned(), "application/json".to_owned()));
            }
            outgoing.body =
                to_json(&body).map_err(|text| unusable(text, place))?.to_string().into_bytes();
        }
        let began_ms = self.host.now_ms();
        let reply = {
            let _active = self.active();
            self.host.call(outgoing).await
        };
        let reply = reply.map_err(|stop| placed(stop, place))?;
        if !(200..300).contains(&reply.status) {
            return Err(at(refused(&call.function, &reply), place));
        }
        let whole = call.http.as_ref().is_some_and(|http| http.whole);
        let output = content(&reply).map_err(|text| {
            let text = format!("{}: {text}", call.function);
            at(Error::new("communication", 502, "Unusable answer", text), place)
        })?;
        let output = match whole {
            false => output,
            true => {
                let fields = reply.headers.iter();
                let fields = fields
                    .map(|(name, value)| (Val::from(name.clone()), Val::from(value.clone())))
                    .collect();
                object([
                    ("statusCode", Val::from(usize::from(reply.status))),
                    ("headers", Val::obj(fields)),
                    ("content", output),
                ])
            }
        };
        let took_ms = self.host.now_ms().saturating_sub(began_ms);
        let record = object([("ok", output.clone()), ("ms", Val::from(took_ms as isize))]);
        self.record(&place.key, record).await?;
        Ok(output)
    }

    fn http(
        &self,
        http: &Http,
        outgoing: &mut Outgoing,
        input: &Val,
        sight: &Sight<'_>,
        place: &Place,
    ) -> Result<(), Stop> {
        outgoing.method.clone_from(&http.method);
        outgoing.path = fill(&http.path, input);
        if let Some(template) = &http.headers {
            for (name, value) in members(&self.template(template, input, sight, place)?) {
                outgoing.headers.push((name.to_ascii_lowercase(), value));
            }
        }
        if let Some(template) = &http.query {
            let parts = members(&self.template(template, input, sight, place)?)
                .into_iter()
                .map(|(name, value)| format!("{}={}", escape(&name), escape(&value)));
            outgoing.query = parts.collect::<Vec<_>>().join("&");
        }
        Ok(())
    }

    pub(crate) async fn publish(
        &self,
        template: &Template,
        input: Val,
        sight: &Sight<'_>,
        place: &Place,
    ) -> Result<Val, Stop> {
        if self.recorded(&place.key).is_some() {
            return Ok(input);
        }
        self.may_begin().await;
        let message = self.template(template, &input, sight, place)?;
        let text = |key| get(&message, key).and_then(text_of).unwrap_or_default();
        let topic = text("topic");
        if topic.is_empty() {
            return Err(unusable("the topic is not a text".to_owned(), place));
        }
        let qos = get(&message, "qos").map_or(Some(1), int_of);
        let Some(qos @ 0..=2) = qos else {
            return Err(unusable("qos is 0, 1 or 2".to_owned(), place));
        };
        let payload = get(&message, "payload").unwrap_or(&input);
        let (payload, default_type) = match text_of(payload) {
            Some(text) => (text.into_bytes(), ""),
            None => {
                let json = to_json(payload).map_err(|text| unusable(text, place))?;
                (json.to_string().into_bytes(), "application/json")
            }
        };
        let content_type = match text("contentType") {
            given if given.is_empty() => default_type.to_owned(),
            given => given,
        };
        let publication = Publication {
            topic,
            payload,
            qos: qos as u8,
            retain: get(&message, "retain").is_some_and(is_true),
            content_type,
        };
        let began_ms = self.host.now_ms();
        let published = {
            let _active = self.active();
            self.host.publish(publication).await
        };
        published.map_err(|stop| placed(stop, place))?;
        let took_ms = self.host.now_ms().saturating_sub(began_ms);
        self.record(&place.key, object([("ms", Val::from(took_ms as isize))])).await?;
        Ok(input)
    }
}
