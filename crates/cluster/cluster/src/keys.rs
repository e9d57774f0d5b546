//! The keys by which the parts of a cluster recognize each other. The controller creates them in
//! two Secrets. The agents may read only the Secret of the cells.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

/// The Secret with the token of the management API, and the name of its entry.
pub(crate) const TOKEN: (&str, &str) = ("mote-api", "token");
/// The Secret with the key that the cells and the controller share, and the name of its entry.
pub(crate) const CELL: (&str, &str) = ("mote-keys", "cell");
/// The Secret with the secrets of functions. Each secret is one entry.
pub(crate) const FUNCTIONS: &str = "mote-secrets";

pub(crate) fn text(secret: &Secret, key: &str) -> Option<String> {
    let bytes = &secret.data.as_ref()?.get(key)?.0;
    let text = std::str::from_utf8(bytes).ok()?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns a key, and creates its Secret if the Secret does not exist. Fails if an existing Secret
/// has no such entry.
pub(crate) async fn ensure(
    api: &Api<Secret>,
    (name, entry): (&str, &str),
) -> Result<String, Box<dyn std::error::Error>> {
    let secret = match api.get_opt(name).await? {
        Some(secret) => secret,
        None => {
            let data = BTreeMap::from([(entry.to_owned(), ByteString(random().into_bytes()))]);
            let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
            let secret = Secret { metadata, data: Some(data), ..Secret::default() };
            match api.create(&PostParams::default(), &secret).await {
                // Another controller created the Secret first.
                Err(kube::Error::Api(error)) if error.code == 409 => api.get(name).await?,
                made => made?,
            }
        }
    };
    let missing = || format!("the Secret {name} has no {entry}; delete it, and it is made again");
    Ok(text(&secret, entry).ok_or_else(missing)?)
}

/// Returns 256 random bits as text.
pub(crate) fn random() -> String {
    let mut bytes = [0; 32];
    // The kernel's random generator does not fail on any kernel that can run `mote`.
    let file = std::fs::File::open("/dev/urandom");
    let read = file.and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes));
    read.expect("/dev/urandom can be read");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether two keys are equal. The comparison takes a time that depends only on their lengths.
pub(crate) fn same(one: &str, other: &str) -> bool {
    let differ = one.bytes().zip(other.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
    one.len() == other.len() && differ == 0
}
