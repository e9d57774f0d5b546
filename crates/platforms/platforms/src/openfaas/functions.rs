//! Lists, describes, deploys, removes and scales functions.

use std::collections::BTreeMap;

use crate::compat::node::{Code, Deploy, Manifest};
use crate::compat::part::Part;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use mote_api::types::RegistryLogin;
use mote_spec::{FunctionName, Platform};
use serde::Deserialize;
use serde_json::Value;

use super::types::{Deployment, Shown, Status};
use super::{Gateway, Refused, image, parse, unknown, within};

#[derive(Deserialize)]
pub(super) struct Asked {
    usage: Option<String>,
}

impl Asked {
    fn with_usage(&self) -> bool {
        matches!(self.usage.as_deref(), Some("1" | "true"))
    }
}

pub(super) async fn list(part: Part, Query(asked): Query<Asked>) -> Json<Vec<Status>> {
    let all = part.functions();
    Json(all.iter().map(|one| Status::of(one, asked.with_usage())).collect())
}

pub(super) async fn describe(
    part: Part,
    Path(name): Path<String>,
    Query(asked): Query<Asked>,
) -> Result<Json<Status>, Refused> {
    let function = part.function(&name).ok_or_else(|| unknown(&name))?;
    Ok(Json(Status::of(&function, asked.with_usage())))
}

pub(super) async fn create(
    State(gateway): State<Gateway>,
    part: Part,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    deploy(&gateway, &part, &body, false).await?;
    Ok(StatusCode::ACCEPTED)
}

pub(super) async fn update(
    State(gateway): State<Gateway>,
    part: Part,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    deploy(&gateway, &part, &body, true).await?;
    Ok(StatusCode::OK)
}

async fn deploy(gateway: &Gateway, part: &Part, body: &[u8], replace: bool) -> Result<(), Refused> {
    let (mut document, wish) = read(body)?;
    let registry_login = login(&mut document, &wish)?;
    let part = within(part, wish.namespace.as_deref())?;
    let full = part.full(&wish.service).ok_or_else(|| unknown(&wish.service))?;
    let is_there = part.function(&full).is_some();
    if replace && !is_there {
        return Err(unknown(&wish.service));
    }
    if !replace && is_there {
        return Err(Refused::bad(format!("{} already exists: update it", wish.service)));
    }
    let name =
        FunctionName::new(&full).map_err(|error| Refused::bad(format!("service: {error}")))?;
    let secrets = wish.secrets.clone().unwrap_or_default();
    let known = gateway.secrets.secrets().await?;
    let is_known = |name: &&String| part.kept(name).is_some_and(|kept| known.contains(&kept));
    if let Some(missing) = secrets.iter().find(|name| !is_known(name)) {
        let shown = crate::compat::shown(missing);
        return Err(Refused::bad(format!("no secret named {shown}: create it first")));
    }
    let has_process = wish.env_process.as_ref().is_some_and(|text| !text.trim().is_empty());
    let code = image::code(&wish.image, has_process, &part.functions()).map_err(Refused::bad)?;
    let manifest = match code {
        Code::Of(_) => Manifest::Document(Platform::OpenFaas, Box::new(document.clone())),
        Code::Image => with_lang(document.clone(), "image"),
        _ => with_lang(document.clone(), "dockerfile"),
    };
    let annotations = BTreeMap::from([(Shown::KEY.to_owned(), shown(&wish, &document))]);
    // Secrets may be named, because every management route of this API requires the token.
    let may_name_secrets = true;
    let deploy = Deploy {
        name,
        code,
        manifest,
        annotations,
        secrets,
        may_name_secrets,
        replace,
        registry_login,
    };
    part.deploy(deploy).await?;
    Ok(())
}

/// Returns the login at the registry, and removes it from the document, so that nothing keeps it.
fn login(document: &mut Value, wish: &Deployment) -> Result<Option<RegistryLogin>, Refused> {
    if let Some(members) = document.as_object_mut() {
        members.remove("registryAuth");
    }
    let text = wish.registry_auth.as_deref().unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    match RegistryLogin::from_docker_auth(text) {
        Some(login) => Ok(Some(login)),
        None => Err(Refused::bad("registryAuth: not USER:PASSWORD in base64")),
    }
}

/// Returns a deployment as it was sent, and in parsed form. An array is refused, because serde would
/// take its elements as the members of the deployment, in order.
fn read(body: &[u8]) -> Result<(Value, Deployment), Refused> {
    let document: Value = parse(body)?;
    if !document.is_object() {
        return Err(Refused::bad("body: a deployment is a JSON object"));
    }
    Ok((document, parse(body)?))
}

/// Says how the deployment runs: `dockerfile` for a program that runs once per call, `image` for an
/// image with a watchdog.
fn with_lang(mut document: Value, lang: &str) -> Manifest {
    document["lang"] = lang.into();
    Manifest::Document(Platform::OpenFaas, Box::new(document))
}

fn shown(wish: &Deployment, document: &Value) -> String {
    let table = |key: &str| serde_json::from_value(document[key].clone()).ok().flatten();
    let shown = Shown {
        image: Some(wish.image.clone()),
        env_process: wish.env_process.clone(),
        labels: table("labels"),
        annotations: table("annotations"),
        constraints: wish.constraints.clone(),
        limits: Some(document["limits"].clone()),
        requests: Some(document["requests"].clone()),
    };
    serde_json::to_string(&shown).unwrap_or_default()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Removal {
    function_name: String,
    namespace: Option<String>,
}

pub(super) async fn remove(part: Part, body: Bytes) -> Result<StatusCode, Refused> {
    let wish: Removal = parse(&body)?;
    within(&part, wish.namespace.as_deref())?.remove(&wish.function_name).await?;
    Ok(StatusCode::ACCEPTED)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Scaling {
    replicas: u32,
    namespace: Option<String>,
}

pub(super) async fn scale(
    part: Part,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    let wish: Scaling = parse(&body)?;
    within(&part, wish.namespace.as_deref())?.scale(&name, wish.replicas).await?;
    Ok(StatusCode::ACCEPTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_is_an_object() {
        let Ok((document, wish)) = read(br#"{"service":"f","image":"alpine"}"#) else {
            panic!("refused")
        };
        assert_eq!((wish.service.as_str(), wish.image.as_str()), ("f", "alpine"));
        let Manifest::Document(_, document) = with_lang(document, "image") else { panic!() };
        assert_eq!(document["lang"], "image");
        for body in [&br#"["f","alpine",null,"cat"]"#[..], b"null", b"\"f\"", b"{}", b"{"] {
            let Err(refused) = read(body) else { panic!("not refused") };
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
        }
    }
}
