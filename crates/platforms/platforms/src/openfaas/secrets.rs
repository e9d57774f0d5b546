//! Secrets. The API returns their names, and never their values.

use crate::compat::part::Part;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Gateway, Refused, parse, within};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Secret {
    name: String,
    namespace: Option<String>,
    value: Option<String>,
    /// The value in base64, for values that JSON text cannot represent.
    raw_value: Option<String>,
}

impl Secret {
    /// The name under which the node keeps the secret.
    fn kept(&self, part: &Part) -> Result<String, Refused> {
        let kept = within(part, self.namespace.as_deref())?.kept(&self.name);
        kept.ok_or_else(|| Refused::bad("name: the name of a secret has no slash"))
    }

    /// The value as text, because a file of a sandbox can hold only text.
    fn text(self) -> Result<String, Refused> {
        let raw = self.raw_value.filter(|raw| !raw.is_empty());
        let Some(raw) = raw else { return Ok(self.value.unwrap_or_default()) };
        let bytes = mote_core::base64::decode(raw.as_bytes())
            .ok_or_else(|| Refused::bad("rawValue: not base64"))?;
        String::from_utf8(bytes).map_err(|_| Refused::bad("rawValue: not UTF-8, which is needed"))
    }
}

pub(super) async fn list(
    State(gateway): State<Gateway>,
    part: Part,
) -> Result<Json<Vec<Value>>, Refused> {
    let names = gateway.secrets.secrets().await?;
    let one = |name: &str| json!({ "name": name, "namespace": part.shown() });
    Ok(Json(names.iter().filter_map(|kept| part.secret(kept)).map(one).collect()))
}

pub(super) async fn create(
    State(gateway): State<Gateway>,
    part: Part,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    put(&gateway, &part, &body, false).await?;
    Ok(StatusCode::CREATED)
}

// The API's description specifies 204, but faas-cli does not accept 204.
pub(super) async fn update(
    State(gateway): State<Gateway>,
    part: Part,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    put(&gateway, &part, &body, true).await?;
    Ok(StatusCode::ACCEPTED)
}

async fn put(gateway: &Gateway, part: &Part, body: &[u8], replace: bool) -> Result<(), Refused> {
    let secret: Secret = parse(body)?;
    let name = secret.kept(part)?;
    let put = gateway.secrets.put_secret(&name, secret.text()?, replace).await;
    put.map_err(|problem| match problem.status {
        409 => Refused::new(StatusCode::CONFLICT, problem.detail),
        _ => problem.into(),
    })
}

pub(super) async fn remove(
    State(gateway): State<Gateway>,
    part: Part,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    let secret: Secret = parse(&body)?;
    gateway.secrets.remove_secret(&secret.kept(&part)?).await?;
    Ok(StatusCode::ACCEPTED)
}
