//! `mote deploy`.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use bytes::Bytes;
use mote_api::client::{Client, ClientError, DeployOptions, Endpoint};
use mote_api::openwhisk::WhiskManifest;
use mote_api::types::{DeployResult, InvokeRequest, Urls};
use mote_project::foreign::LeftOut;
use mote_project::{Options, Planned};
use mote_spec::quantity::size_text;
use mote_spec::toml_reader::Mistakes;
use mote_spec::{FunctionSpec, manifest};

use super::args::Deploy;
use super::failure::Failure;
use super::image;
use super::invoke;
use super::output::{Output, harmless};
use super::syntax;

/// The error code that a node returns if its OpenWhisk API is off.
const OPENWHISK_OFF: &str = "M0416";
/// The signal that Ctrl-C sends to every process in the foreground.
pub(super) const SIGINT: i32 = 2;

/// The contents of the paths that a deploy names.
pub(super) struct Projects<'a> {
    pub(super) plans: Vec<(&'a Path, Planned)>,
    /// The entities of OpenWhisk manifests that are not functions.
    pub(super) manifests: Vec<WhiskManifest>,
    /// The functions that cannot be deployed, while others of the same manifest can.
    pub(super) left_out: Vec<LeftOut>,
}

/// Builds and reads all projects before the first one is deployed, so that a mistake changes nothing.
/// If the node is on another machine (not `is_local`), the node checks which programs it can run.
pub(super) fn read<'a>(
    args: &'a Deploy,
    is_local: bool,
    output: &Output,
) -> Result<Projects<'a>, Failure> {
    if args.name.is_some() && args.paths.len() > 1 {
        let failure = Failure::new("M0101", "--name can be used with one path only");
        return Err(failure.with_hint("write name = \"…\" in each mote.toml instead"));
    }
    let mut allowed = Vec::new();
    for text in &args.allow_net {
        let Some(to) = manifest::destination(text) else {
            let text = format!("--allow-net: `{}` is not a destination", text.escape_debug());
            return Err(Failure::new("M0101", text)
                .with_hint("write HOST:PORT, udp://HOST:PORT, *:PORT or *"));
        };
        allowed.push(mote_project::egress(&to));
    }
    let mut all = Projects { plans: Vec::new(), manifests: Vec::new(), left_out: Vec::new() };
    for path in &args.paths {
        build(path, args.paths.len() > 1, output)?;
        let options = Options {
            name: args.name.as_deref(),
            check_machine: is_local,
            filter: args.filter.as_deref(),
        };
        let mut project = mote_project::read(path, options)
            .map_err(|mistakes| syntax::named(mistakes.into(), path))?;
        for planned in &mut project.functions {
            mote_project::allow(planned, &allowed);
            if let Some(mode) = args.access {
                mote_project::access::set_mode(&mut planned.spec, mode);
            }
            if let (Some(image), Some(platform)) = (&mut planned.spec.image, &args.platform) {
                image.platform = Some(platform.clone());
            }
        }
        all.left_out.extend(project.left_out);
        all.plans.extend(project.functions.into_iter().map(|planned| (path.as_path(), planned)));
        all.manifests.extend(project.whisk);
    }
    Ok(all)
}

pub(super) fn options(args: &Deploy) -> DeployOptions {
    DeployOptions {
        dry_run: args.dry_run,
        no_traffic: args.no_traffic,
        tag: args.tag.clone(),
        if_changed: args.if_changed,
        registry_login: None,
    }
}

pub(super) async fn run(client: &Client, args: &Deploy, output: &Output) -> Result<(), Failure> {
    let is_local = matches!(client.endpoint(), Endpoint::Unix(_));
    let Projects { plans, manifests, left_out: omitted } = read(args, is_local, output)?;
    let mut failed = Vec::new();
    for (path, planned) in &plans {
        let options = DeployOptions { registry_login: image::login(planned)?, ..options(args) };
        let steps = Steps { of: (plans.len() > 1).then(|| planned.spec.name.as_str()), output };
        let deployed = deploy(client, path, planned, &options, steps).await;
        let result = match deployed {
            // If one function does not start, the others are deployed nevertheless.
            Err(failure) if plans.len() > 1 && failure.is_of_one_function() => {
                output.failure(&failure);
                failed.push((planned.spec.name.as_str(), failure.exit));
                continue;
            }
            deployed => deployed?,
        };
        output.result(&result, &[&result.function], || summary(&result, args.dry_run))?;
        if args.invoke {
            let request = InvokeRequest {
                method: "GET".to_owned(),
                path: "/".to_owned(),
                headers: Vec::new(),
                body: Vec::new(),
            };
            let name = match &args.tag {
                Some(tag) => format!("{}@{tag}", result.function),
                None => result.function.clone(),
            };
            let answer = client.invoke(&name, request).await?;
            invoke::show_answer(&answer, output)?;
        }
    }
    let mut made = Ok(());
    for manifest in &manifests {
        if made.is_ok() {
            made = entities(client, args, manifest, output).await;
        }
    }
    if let Some((_, exit)) = failed.first() {
        let names: Vec<&str> = failed.iter().map(|(name, _)| *name).collect();
        output.warn(&format!("not deployed: {}; see the reasons above", names.join(", ")));
        if omitted.is_empty() {
            return made.and_then(|()| Err(Failure::quiet(*exit)));
        }
    }
    match (left_out(omitted, output), made) {
        (Err(reasons), Err(made)) => {
            // The functions that were left out are reported first, because they usually explain why an
            // entity could not be created.
            output.failure(&reasons);
            Err(made)
        }
        (reasons, made) => made.and(reasons),
    }
}

/// Names the functions that were left out. The other functions are live. The exit code reports that
/// some functions were left out.
pub(super) fn left_out(all: Vec<LeftOut>, output: &Output) -> Result<(), Failure> {
    if all.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    output.warn(&format!(
        "left out: {}; --filter selects what is deployed",
        harmless(&names.join(", "))
    ));
    Err(Mistakes(all.into_iter().flat_map(|one| one.mistakes.0).collect()).into())
}

/// Applies the entities of an OpenWhisk manifest that are not functions. Their functions must already
/// exist. If the node's OpenWhisk API is off, nothing stores the entities, and the output names each of
/// them.
async fn entities(
    client: &Client,
    args: &Deploy,
    manifest: &WhiskManifest,
    output: &Output,
) -> Result<(), Failure> {
    let all = manifest.entities();
    let beside = |name: &&String| !name.starts_with("actions.") && !name.starts_with("packages.");
    let not_made = |why: &str| {
        for name in all.iter().filter(beside) {
            output.warn(&harmless(&format!("{name}: not created: {why}")));
        }
    };
    if args.dry_run || args.no_traffic || args.tag.is_some() {
        not_made("not possible with --dry-run, --no-traffic or --tag");
        return Ok(());
    }
    match client.apply_openwhisk(manifest).await {
        Ok(made) => {
            output.step("openwhisk", &harmless(&made.made.join(", ")), None);
            for note in &made.notes {
                output.warn(&harmless(note));
            }
            Ok(())
        }
        Err(ClientError::Problem(problem)) if problem.code == OPENWHISK_OFF => {
            not_made("the node's OpenWhisk API is off; start it with mote up --openwhisk on");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

async fn deploy(
    client: &Client,
    path: &Path,
    planned: &Planned,
    options: &DeployOptions,
    steps: Steps<'_>,
) -> Result<DeployResult, Failure> {
    let output = steps.output;
    let tar = steps.pack(path, planned, true)?;
    let result = match planned.spec.image {
        None => client.deploy(planned.spec.name.as_str(), tar, options).await?,
        Some(_) => image::deploy(client, planned.spec.name.as_str(), tar, options, output).await?,
    };
    for step in &result.steps {
        steps.done(&step.name, &step.detail, Some(step.ms));
    }
    for warning in &result.warnings {
        output.warn(&harmless(warning));
    }
    Ok(result)
}

/// Packs a function with its spec. If there are `several` functions, the output names this one.
pub(super) fn pack(
    path: &Path,
    planned: &Planned,
    several: bool,
    output: &Output,
) -> Result<Bytes, Failure> {
    Steps { of: several.then_some(planned.spec.name.as_str()), output }.pack(path, planned, true)
}

/// Packs only the code of a function, without its spec for a node.
pub(super) fn pack_code(
    path: &Path,
    planned: &Planned,
    several: bool,
    output: &Output,
) -> Result<Bytes, Failure> {
    Steps { of: several.then_some(planned.spec.name.as_str()), output }.pack(path, planned, false)
}

/// Prints the steps of one deploy.
#[derive(Clone, Copy)]
struct Steps<'a> {
    /// The name of the function, if the command deploys several.
    of: Option<&'a str>,
    output: &'a Output,
}

impl Steps<'_> {
    /// Prints what is deployed, and packs it. With `for_node`, the archive contains the function's
    /// spec.
    fn pack(self, path: &Path, planned: &Planned, for_node: bool) -> Result<Bytes, Failure> {
        let output = self.output;
        let spec = FunctionSpec { origin: origin(path, planned), ..planned.spec.clone() };
        let name = spec.name.as_str();
        let mut detail = match &planned.manifest {
            Some(file) => format!("{}, {}", harmless(file), spec.runtime.as_str()),
            None => spec.runtime.as_str().to_owned(),
        };
        if let (Some(compat), Some(_)) = (spec.compat, &planned.manifest) {
            let template =
                spec.template.as_ref().map(|template| format!(" {}", harmless(template)));
            detail.push_str(&format!(
                ", compat {}{}",
                compat.as_str(),
                template.unwrap_or_default()
            ));
        }
        if !planned.guesses.is_empty() {
            detail.push_str(&format!("; guessed {}", planned.guesses.join(", ")));
        }
        self.done("manifest", &detail, None);
        for warning in &planned.warnings {
            output.warn(&harmless(&format!("{name}: {warning}")));
        }
        let path = planned.code.as_ref().map_or(path, |code| code.path());
        for (key, file) in mote_project::named_files(path, &spec) {
            if let Some(rules) = mote_store::pack::left_out_by(path, &file)? {
                let text = format!("{name}: {rules} leaves out {file}, which {key} names");
                let hint = "write a .moteignore, which is then read instead of .gitignore, with what to \
                            leave out; an empty one leaves out nothing";
                return Err(Failure::new("M0113", harmless(&text).to_string()).with_hint(hint));
            }
        }

        let json = mote_spec::json::to_json(&spec).into_bytes();
        let first = for_node.then_some((mote_api::SPEC_ENTRY, json.as_slice()));
        let mut packed = mote_store::pack::pack(path, first)?;
        if let (Some(archive), true) = (&planned.image_archive, for_node) {
            image::add(&mut packed, archive)?;
        }
        let files = if packed.files == 1 { "file" } else { "files" };
        let detail = format!("{} {files}, {}", packed.files, size_text(packed.bytes));
        self.done("pack", &detail, None);
        if !packed.secret.is_empty() {
            let files = packed.secret.join(", ");
            output.warn(&harmless(&format!(
                "{name}: left out, because it may hold secrets: {files}; pass the values as [env] or \
                 with mote secret, or write `!.env` into .moteignore"
            )));
        }
        Ok(Bytes::from(packed.tar))
    }

    fn done(self, name: &str, detail: &str, ms: Option<u64>) {
        match self.of {
            Some(function) => self.output.step(name, &format!("{function}: {detail}"), ms),
            None => self.output.step(name, detail, ms),
        }
    }
}

/// Describes the origin of a function. With this description, the node can tell whether a deploy comes
/// from the same project or replaces a different function. It consists of the manifest's name or the
/// kind of path, and the last two folders of the path. These stay the same when a project is checked
/// out again.
fn origin(path: &Path, planned: &Planned) -> Option<String> {
    let path = std::fs::canonicalize(path).ok()?;
    let (kind, folder) = match (&planned.manifest, path.is_dir()) {
        // A `mote.toml` in the folder does not change the origin, so that a project may get one later.
        (Some(file), true) if Path::new(file).file_name() == Some("mote.toml".as_ref()) => {
            ("the folder ".to_owned(), path.as_path())
        }
        (Some(file), is_dir) => {
            let folder = if is_dir { path.as_path() } else { path.parent()? };
            let file = Path::new(file).file_name()?.to_string_lossy().into_owned();
            (format!("{file} in "), folder)
        }
        (None, true) => ("the folder ".to_owned(), path.as_path()),
        (None, false) => ("the file ".to_owned(), path.as_path()),
    };
    let parts: Vec<_> = folder.iter().map(|part| part.to_string_lossy()).collect();
    Some(kind + &parts[parts.len().saturating_sub(2)..].join("/"))
}

fn summary(result: &DeployResult, dry_run: bool) -> String {
    let function = harmless(&result.function);
    let mut text = if dry_run {
        let what = if result.held_back { "would receive no traffic" } else { "would be live" };
        format!("{function}@{} {what} (dry run: nothing was changed)\n", result.revision)
    } else if result.unchanged {
        format!("{function} has not changed; @{} stays live\n", result.revision)
    } else if result.held_back {
        let text = format!("{function}@{} is ready and receives no traffic\n", result.revision);
        if !result.traffic.iter().any(|share| share.revision == result.revision) {
            return text
                + &format!(
                    "  to send it traffic: mote traffic {function} {}=10 …\n",
                    result.revision
                );
        }
        text
    } else {
        let was =
            result.previous.map_or_else(String::new, |previous| format!(" (was @{previous})"));
        format!("{function}@{} is live{was}\n", result.revision)
    };
    let Urls { http, coap, coaps, .. } = &result.urls;
    for (front, url) in [("http", http), ("coap", coap), ("coaps", coaps)] {
        if let Some(url) = url {
            text.push_str(&format!("  {front}  {}\n", harmless(url)));
        }
    }
    if let Some(port) = &result.urls.port {
        text.push_str(&format!("  port  {}\n", harmless(&port.to_string())));
    }
    for route in &result.urls.routes {
        text.push_str(&format!("  route {}\n", harmless(route)));
    }
    text
}

/// The failure of a build. It says what to install if the compiler for WebAssembly is missing, which
/// the output of cargo shows only among other lines.
pub(super) fn build_failure(command: &str, folder: &Path, text: String) -> Failure {
    let failure = Failure::new("M0402", text);
    if command != mote_project::WASM_BUILD {
        return failure;
    }
    let libraries = std::process::Command::new("rustc")
        .args(["--print", "target-libdir", "--target", "wasm32-wasip2"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .output();
    match libraries {
        Err(_) => failure.with_hint(
            "install Rust from https://rustup.rs, then run: rustup target add wasm32-wasip2",
        ),
        Ok(output) if !Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir() => {
            failure.with_hint("install the target: rustup target add wasm32-wasip2")
        }
        Ok(_) => failure,
    }
}

/// Runs `[build] command` in the project's folder. The command's output goes to standard error. If
/// there are `several` projects, the message names the folder.
fn build(path: &Path, several: bool, output: &Output) -> Result<(), Failure> {
    let Some(manifest) = mote_project::load_manifest(path)? else {
        return Ok(());
    };
    let folder = path.display().to_string();
    for function in &manifest.functions {
        let Some(command) = mote_project::build_command(function, path) else {
            continue;
        };
        output.say(&format!("  building: {}", harmless(command)));
        let started = Instant::now();
        let ended = std::process::Command::new("sh")
            .args(["-c", command])
            .current_dir(path)
            .stdin(Stdio::null())
            .stdout(std::io::stderr())
            .status()
            .map_err(|error| Failure::new("M0402", format!("build: sh: {error}")))?;
        if ended.signal() == Some(SIGINT) {
            return Err(Failure::interrupted());
        }
        if !ended.success() {
            let text = format!("build: `{}` failed ({ended})", harmless(command));
            return Err(build_failure(command, path, text));
        }
        let took = started.elapsed().as_millis() as u64;
        let name = function.name.as_ref().map(|name| name.value.as_str());
        let several = several || manifest.functions.len() > 1;
        let of = several.then(|| name.unwrap_or(&folder));
        Steps { of, output }.done("build", "done", Some(took));
    }
    Ok(())
}
