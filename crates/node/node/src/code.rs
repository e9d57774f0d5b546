//! Deploys that clients of other platforms request. The code becomes a folder, and its description
//! becomes a spec. Both then take the same path as in every other deploy.

use std::collections::BTreeSet;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mote_api::Problem;
use mote_platforms::compat::node::{Code, Deploy, Manifest};
use mote_project::foreign;
use mote_spec::manifest::FunctionManifest;
use mote_spec::toml_reader::Mistakes;
use mote_spec::{
    Access, CertificateRules, FunctionName, FunctionSpec, Platform, TokenRules, WebhookRules,
};
use mote_store::{ArchiveLimits, PackError};
use tempfile::TempDir;

use super::store_work::{blocking, internal};
use super::{Node, deploy as node_deploy};

/// Deploys a function. Resolves when the function is ready.
pub(super) async fn deploy(node: &Arc<Node>, mut deploy: Deploy) -> Result<(), Problem> {
    let registry_login = deploy.registry_login.take();
    let name = deploy.name.clone();
    if !deploy.replace && node.data_path.engine.get(name.as_str()).is_some() {
        let text = format!("a function named {name} already exists");
        return Err(Problem::new(409, "M1405", text));
    }
    let on_node = match &deploy.code {
        Code::Of(other) => {
            let revision = super::functions::find(&node.data_path.engine, other.as_str())?;
            Some((revision.spec.clone(), revision.code_dir.clone()))
        }
        _ => None,
    };
    // If a deploy does not say who may call the function, the callers of the previous revision
    // apply. Otherwise the deploy could open the function.
    let before = node.data_path.engine.get(name.as_str()).map(|it| Callers {
        access: it.spec.access,
        tokens: it.spec.tokens.clone(),
        certificates: it.spec.certificates.clone(),
        webhook: it.spec.webhook.clone(),
    });
    let packed = blocking(move || pack(deploy, on_node, before))
        .await
        .map_err(|error| internal(&error))??;
    let options = node_deploy::Options {
        dry_run: false,
        no_traffic: false,
        if_changed: false,
        tag: None,
        registry_login,
        place: None,
    };
    let done =
        node_deploy::deploy(node, name.as_str(), Box::new(Cursor::new(packed)), &options).await?;
    // Clients of other platforms cannot show warnings, so the node logs them.
    for warning in done.warnings {
        tracing::warn!(function = %name, "{warning}");
    }
    Ok(())
}

/// The access mode of a function, with the rules for it.
struct Callers {
    access: Access,
    tokens: Option<Arc<TokenRules>>,
    certificates: Option<Arc<CertificateRules>>,
    webhook: Option<Arc<WebhookRules>>,
}

/// Packs the code of a function behind its spec, in the form that `mote deploy` sends. Blocks.
fn pack(
    deploy: Deploy,
    on_node: Option<(FunctionSpec, PathBuf)>,
    before: Option<Callers>,
) -> Result<Vec<u8>, Problem> {
    let Deploy { name, code, manifest, annotations, secrets, may_name_secrets, .. } = deploy;
    let (manifest, files, packages) = understood(manifest)?;
    let says_access = manifest.access.is_some();
    let folder = Folder::of(code, files, on_node.as_ref().map(|(_, path)| path.as_path()))?;
    let is_there = matches!(folder, Folder::There(_));
    let folder = folder.with_packages(&packages)?;
    let mut named_before = BTreeSet::new();
    if let Some((spec, _)) = &on_node {
        named_before.extend(spec.secret_names().into_iter().map(str::to_owned));
    }
    let mut spec = match on_node {
        Some((spec, _)) => mote_project::changed(spec, &name, &manifest),
        None => mote_project::planned(folder.path(), &name, &manifest),
    }
    .map_err(|mistakes| refused(&mistakes))?;
    let named = spec.secret_names();
    if !may_name_secrets
        && let Some(secret) = named.iter().find(|one| !named_before.contains(**one))
    {
        let text = format!("{name}: a deploy without the node's token cannot name secret {secret}");
        let hint = "deploy it with mote deploy, or on an address where the API requires the token";
        return Err(Problem::new(403, "M0305", text).with_hint(hint));
    }
    if says_access
        && !may_name_secrets
        && spec.access != Access::Local
        && before.as_ref().is_none_or(|before| before.access != spec.access)
    {
        let text = format!("{name}: a deploy without the node's token cannot open the function");
        let hint = "deploy it with mote deploy --access, or on an address where the API requires the \
                    token";
        return Err(Problem::new(403, "M0305", text).with_hint(hint));
    }
    if !says_access {
        match before {
            Some(Callers { access, tokens, certificates, webhook }) => {
                (spec.access, spec.tokens) = (access, tokens);
                (spec.certificates, spec.webhook) = (certificates, webhook);
            }
            // A copy of a public function must not become public by itself.
            None if spec.access == Access::Public => spec.access = Access::Unset,
            None => {}
        }
    }
    spec.annotations = annotations;
    spec.origin = Some(match spec.compat {
        Some(compat) => format!("the API of {}", compat.as_str()),
        None => "the API of another platform".to_owned(),
    });
    for name in secrets {
        if !spec.secrets.contains(&name) {
            spec.secrets.push(name);
        }
    }
    let json = mote_spec::json::to_json(&spec).into_bytes();
    // OpenWhisk installs no packages, because an archive already contains its modules. Code that is
    // already on the node is packed unchanged.
    let whole = is_there || spec.compat == Some(Platform::OpenWhisk);
    let pack = if whole { mote_store::pack::pack_whole } else { mote_store::pack::pack };
    let packed = pack(folder.path(), Some((mote_api::SPEC_ENTRY, &json)));
    let packed = packed.map_err(|error| unpackable(&name, &error))?;
    if !packed.secret.is_empty() {
        let files = packed.secret.join(", ");
        tracing::warn!(function = %name, files, "not deployed, because it may hold secrets");
    }
    Ok(packed.tar)
}

/// The name and the contents of each file.
type Files = Vec<(String, Vec<u8>)>;

/// Translates the description of a function into a manifest. Also returns the files that came with
/// the description, and the packages that it asks for.
fn understood(
    manifest: Manifest,
) -> Result<(FunctionManifest, Option<Files>, foreign::Packages), Problem> {
    match manifest {
        Manifest::Keys(manifest) => Ok((*manifest, None, foreign::Packages::default())),
        Manifest::Document(platform, document) => {
            let described = match platform {
                Platform::Nuclio => foreign::nuclio_document(&document),
                Platform::OpenFaas => Ok(foreign::openfaas_deployment(&document)),
                other => {
                    let text = format!("cannot read a document of {}", other.as_str());
                    return Err(Problem::new(422, "M0305", text));
                }
            };
            let described = described.map_err(|mistakes| refused(&mistakes))?;
            for warning in &described.warnings {
                tracing::info!(function = described.name(), warning, "deploy");
            }
            let files = match described.source {
                foreign::Source::Inside(files) => Some(files),
                // An archive is sent next to a document, never inside it.
                foreign::Source::Beside
                | foreign::Source::At(_)
                | foreign::Source::Files(_)
                | foreign::Source::Zip(..) => None,
            };
            Ok((described.function, files, described.packages))
        }
    }
}

/// The folder that holds the code while the code is packed.
enum Folder {
    /// The code of a function that is already on the node.
    There(PathBuf),
    /// A folder made for this deploy. It is removed on drop.
    Made(TempDir),
}

impl Folder {
    fn of(code: Code, in_document: Option<Files>, on_node: Option<&Path>) -> Result<Self, Problem> {
        if let Some(path) = on_node {
            return Ok(Folder::There(path.to_owned()));
        }
        let made = tempfile::Builder::new().prefix("mote-code").tempdir().map_err(unwritable)?;
        match code {
            Code::Image => {
                write(made.path(), mote_project::image::about_files("pulled by the node"))?
            }
            Code::Zip { bytes, below } => {
                let limits =
                    ArchiveLimits { bytes: mote_project::UNPACKED_BYTES_MAX, ..Default::default() };
                mote_store::unzip(&bytes, &below, made.path(), &limits).map_err(|error| {
                    let text = mote_core::fault::error_chain(&error);
                    Problem::new(error.http_status(), error.code(), text)
                })?;
            }
            Code::Files(files) => write(made.path(), files)?,
            Code::InDocument | Code::Of(_) => {
                let files = in_document.ok_or_else(|| {
                    Problem::new(422, "M0303", "the request contains no code")
                        .with_hint("put it into build.functionSourceCode, as base64")
                })?;
                write(made.path(), files)?;
            }
        }
        Ok(Folder::Made(made))
    }

    /// Returns the same code with `packages` added to its package lists. If the code is on the
    /// node, a copy is changed.
    fn with_packages(self, packages: &foreign::Packages) -> Result<Self, Problem> {
        if packages.is_empty() {
            return Ok(self);
        }
        let made = match self {
            Folder::Made(made) => made,
            Folder::There(path) => {
                let made =
                    tempfile::Builder::new().prefix("mote-code").tempdir().map_err(unwritable)?;
                mote_project::copy_code(&path, made.path()).map_err(unwritable)?;
                made
            }
        };
        packages.add_to(made.path()).map_err(unwritable)?;
        Ok(Folder::Made(made))
    }

    fn path(&self) -> &Path {
        match self {
            Folder::There(path) => path,
            Folder::Made(folder) => folder.path(),
        }
    }
}

fn write(folder: &Path, files: Files) -> Result<(), Problem> {
    use std::os::unix::fs::PermissionsExt;
    for (name, content) in files {
        if !foreign::is_plain_name(&name) {
            let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
            return Err(Problem::new(422, "M0303", format!("`{shown}` is not a file name")));
        }
        let path = folder.join(name);
        let is_script = content.starts_with(b"#!");
        fs::write(&path, content).map_err(unwritable)?;
        if is_script {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(unwritable)?;
        }
    }
    Ok(())
}

fn unwritable(error: std::io::Error) -> Problem {
    let status = if error.kind() == std::io::ErrorKind::StorageFull { 507 } else { 500 };
    Problem::new(status, "M0704", format!("cannot write a folder for the code: {error}"))
}

fn unpackable(name: &FunctionName, error: &PackError) -> Problem {
    let text = format!("{name}: {}", mote_core::fault::error_chain(error));
    Problem::new(422, error.code(), text)
}

fn refused(mistakes: &Mistakes) -> Problem {
    node_deploy::refused(mistakes)
}
