//! Turns a folder or a file into a function: reads the manifest if there is one, guesses the rest from
//! the files, and makes the checks that need the files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mote_spec::manifest::{
    self, AcknowledgeName, AsyncManifest, BalanceName, FunctionManifest, Manifest, MqttManifest,
    MqttVersionName, OrderName, PlatformName, PolicyName, ProtocolName, RateManifest,
    RecipientName, RetryName, ScaleManifest, SessionName, StartName,
};
use mote_spec::mqtt::{
    self, Acknowledge, Connection, MqttOrder, MqttSession, MqttTrigger, MqttVersion, Publishing,
};
use mote_spec::policy::{Balance, HpaSettings, KnativeSettings, OpenFaasSettings, Policy};
use mote_spec::toml_reader::{Lined, Mistake, Mistakes};
use mote_spec::{
    AsyncRules, CoapResource, FunctionImage, FunctionName, FunctionSpec, Platform, Protocol, Rate,
    Recipient, RetryOn, Runtime, StartPolicy, Topic,
};
use mote_store::{ArchiveLimits, source};

use super::chain;
use super::foreign::{self, Described, Foreign, LeftOut, Source};
use super::mistakes::{escaped, in_manifest, mistake, unreadable};
use super::probe::{self, Folder};
use super::program::{check_program, run_by_interpreter};
use super::{
    Code, Options, Planned, Project, UNPACKED_BYTES_MAX, contract, golang, guess, image, network,
    rust, schedules,
};

/// Reads the manifest of a folder. Returns `None` if there is none, or if `path` is a file.
pub fn load_manifest(path: &Path) -> Result<Option<Manifest>, Mistakes> {
    let file = path.join(manifest::FILE_NAME);
    if !path.is_dir() {
        return Ok(None);
    }
    match source::text(&file) {
        Ok(text) => Manifest::parse(manifest::FILE_NAME, &text).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            Err(mistake("M0301", format!("{}: not UTF-8", manifest::FILE_NAME), None))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&file, &error)),
    }
}

/// Reads the functions of a folder or file, including those that a manifest of another platform
/// describes. Such a manifest may name files outside the folder.
pub fn read(path: &Path, options: Options<'_>) -> Result<Project, Mistakes> {
    if let Some(function) = image::named_by(path) {
        return read_image(path, &function, options);
    }
    match foreign::read(path)? {
        Some(found) => read_foreign(path, found, options),
        None => {
            let mut project = read_own(path, options)?;
            project.functions.iter_mut().for_each(|planned| rust::take_program(path, planned));
            Ok(project)
        }
    }
}

/// Plans the one function that is an image without a `mote.toml`.
fn read_image(
    path: &Path,
    function: &FunctionManifest,
    options: Options<'_>,
) -> Result<Project, Mistakes> {
    let name = function.image.as_ref().map_or("", |image| &image.value);
    let code = image::about(&FunctionImage::named(name))?;
    let mut guesses = Vec::new();
    let folder = Folder::read(code.path())?;
    let spec = plan_described(&folder, function, options, None, &mut guesses)?;
    let image_archive = spec.image.as_ref().filter(|image| image.archive).map(|_| path.to_owned());
    let planned = Planned {
        spec,
        guesses,
        manifest: None,
        code: Some(code),
        image_archive,
        warnings: Vec::new(),
        uses_network: None,
    };
    Ok(Project { functions: vec![planned], ..Project::default() })
}

/// Reads the functions of a folder or file, but no manifest of another platform. Programs that read
/// uploads use this function, so that they contain no code for such manifests.
pub fn read_own(path: &Path, options: Options<'_>) -> Result<Project, Mistakes> {
    let folder = Folder::read(path)?;
    let manifest = load_manifest(path)?;
    let has_manifest = manifest.is_some();
    let shown = has_manifest.then(|| manifest::FILE_NAME.to_owned());
    let functions =
        manifest.map_or_else(|| vec![FunctionManifest::default()], |manifest| manifest.functions);
    if functions.len() > 1 && options.name.is_some() {
        let text = format!("--name: {} has several functions", manifest::FILE_NAME);
        return Err(mistake("M0101", text, Some("deploy it without --name".into())));
    }
    let mut planned = Vec::new();
    let mut mistakes = Vec::new();
    for function in &functions {
        match plan(&folder, function, has_manifest, options) {
            Ok((spec, _)) if !options.selects(spec.name.as_str()) => {}
            Ok((spec, guesses)) => {
                let image_archive = image::archive(path, &spec, function)?;
                let uses_network = network::likely_use(&folder, &spec);
                let misses_compat =
                    has_manifest.then(|| misses_compat(&folder, function)).flatten();
                let misses_api = network::misses_own_api(&folder, &spec);
                let warnings = misses_compat.into_iter().chain(misses_api).collect();
                let manifest = shown.clone();
                // The folder of an image's manifest is not part of the function.
                let code = spec.image.as_deref().map(image::about).transpose()?;
                planned.push(Planned {
                    spec,
                    guesses,
                    manifest,
                    code,
                    image_archive,
                    warnings,
                    uses_network,
                });
            }
            Err(Mistakes(found)) => mistakes.extend(found),
        }
    }
    if planned.is_empty() && mistakes.is_empty() {
        let text = format!("{}: no function matches the filter", path.display());
        return Err(mistake("M0101", text, None));
    }
    let project = Project { functions: planned, ..Project::default() };
    if mistakes.is_empty() { Ok(project) } else { Err(Mistakes(mistakes)) }
}

/// Reads the function that is in a folder and that `manifest` describes. Nodes call this reader,
/// because it never follows a path out of the folder. A chain is refused: no other platform has chains, and
/// a node contains no code that reads them.
pub fn planned(
    path: &Path,
    name: &FunctionName,
    manifest: &FunctionManifest,
) -> Result<FunctionSpec, Mistakes> {
    let options = Options { name: Some(name.as_str()), check_machine: true, ..Options::default() };
    let mut guesses = Vec::new();
    plan_described(&Folder::read(path)?, manifest, options, None, &mut guesses)
}

/// Renames `spec` to `name`, replaces its environment and secrets, and applies all other changes in
/// `manifest`.
pub fn changed(
    mut spec: FunctionSpec,
    name: &FunctionName,
    manifest: &FunctionManifest,
) -> Result<FunctionSpec, Mistakes> {
    spec.name = name.clone();
    super::access::apply(&mut spec, manifest, None)?;
    spec.env.clone_from(&manifest.env);
    spec.secrets.clone_from(&manifest.secrets);
    // Some clients cannot mark a variable as a secret, so existing secret variables are kept.
    spec.secret_env.extend(manifest.secret_env.clone());
    spec.secret_env.retain(|name, _| !manifest.env.contains_key(name));
    spec.schedules = schedules::of(manifest)?;
    apply_limits(&mut spec, manifest);
    let scale = &manifest.scale;
    spec.scale.min = scale.min.unwrap_or(spec.scale.min);
    spec.scale.max = scale.max.or(spec.scale.max);
    spec.scale.idle_timeout_ms = scale.idle_timeout_ms.unwrap_or(spec.scale.idle_timeout_ms);
    if scale.policy.is_some() {
        spec.scale.policy = policy(scale);
    }
    // In other runtimes, the command belongs to the template, which the shims replace.
    if let (Runtime::Exec, Some(command)) = (spec.runtime, &manifest.command) {
        spec.command.clone_from(&command.value);
    }
    Ok(spec)
}

/// The most names of functions that a message lists.
const NAMES_SHOWN_MAX: usize = 20;

/// Reads the functions of another platform's manifest. Each function has its own code.
fn read_foreign(path: &Path, found: Foreign, options: Options<'_>) -> Result<Project, Mistakes> {
    if found.functions.len() > 1 && options.name.is_some() {
        let text = format!("--name: {} has several functions", found.file);
        return Err(mistake("M0101", text, Some("deploy it without --name".into())));
    }
    let beside = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let mut planned: Vec<Planned> = Vec::new();
    let mut left_out = found.left_out;
    let described = found.functions.iter().map(Described::name);
    let names: Vec<String> =
        described.chain(left_out.iter().map(|one| &*one.name)).map(escaped).collect();
    left_out.retain(|one| options.selects(&one.name));
    for described in found.functions {
        if !options.selects(described.name()) {
            continue;
        }
        let plan = code_of(&described, path, beside).and_then(|code| {
            let mut folder = Folder::read(code.path())?;
            if !described.packages.is_empty()
                && matches!(described.source, Source::Beside | Source::At(_))
            {
                // A copy with more packages is in a folder with an arbitrary name, so the original
                // folder's name is used.
                let own = own_code_of(&described, path, beside)?;
                folder = folder.named_as(&Folder::read(own.path())?);
            }
            let (spec, guesses) = plan(&folder, &described.function, true, options)?;
            let uses_network = network::likely_use(&folder, &spec);
            let misses_api = network::misses_own_api(&folder, &spec);
            Ok((spec, guesses, code, uses_network, misses_api))
        });
        match plan {
            Ok((mut spec, guesses, code, uses_network, misses_api)) => {
                spec.annotations = described.annotations;
                // Warnings about the file as a whole are shown only once.
                let whole = if planned.is_empty() { found.warnings.clone() } else { Vec::new() };
                let warnings =
                    whole.into_iter().chain(described.warnings).chain(misses_api).collect();
                let manifest = Some(found.file.clone());
                let code = Some(code);
                let image_archive = None;
                planned.push(Planned {
                    spec,
                    guesses,
                    manifest,
                    code,
                    image_archive,
                    warnings,
                    uses_network,
                });
            }
            Err(Mistakes(all)) => {
                let of_file =
                    |one: Mistake| Mistake { text: format!("{}: {}", found.file, one.text), ..one };
                let mistakes = Mistakes(all.into_iter().map(of_file).collect());
                left_out.push(LeftOut { name: described.name().to_owned(), mistakes });
            }
        }
    }
    if planned.is_empty() && left_out.is_empty() {
        let text = format!("{}: no function matches the filter", found.file);
        let known = &names[..names.len().min(NAMES_SHOWN_MAX)];
        let hint = (!known.is_empty()).then(|| format!("its functions: {}", known.join(", ")));
        return Err(mistake("M0101", text, hint));
    }
    if planned.is_empty() {
        let all = left_out.into_iter().flat_map(|one| one.mistakes.0);
        return Err(Mistakes(all.collect()));
    }
    let mut whisk = found.whisk;
    if let Some(whisk) = &mut whisk {
        whisk
            .actions
            .retain(|action| planned.iter().any(|one| one.spec.name.as_str() == action.function));
    }
    Ok(Project { functions: planned, whisk, left_out })
}

fn code_of(function: &Described, path: &Path, beside: &Path) -> Result<Code, Mistakes> {
    let code = own_code_of(function, path, beside)?;
    if function.packages.is_empty() {
        return Ok(code);
    }
    // Packages are added to a copy, because the user's folder must stay unchanged.
    let io = |error: std::io::Error| unreadable(code.path(), &error);
    let folder = tempfile::Builder::new().prefix("mote-code").tempdir().map_err(io)?;
    probe::copy(code.path(), folder.path()).map_err(io)?;
    function.packages.add_to(folder.path()).map_err(io)?;
    Ok(Code::Taken(Arc::new(folder)))
}

fn own_code_of(function: &Described, path: &Path, beside: &Path) -> Result<Code, Mistakes> {
    if let Some(image) = &function.function.image {
        return image::about(&FunctionImage::named(&*image.value));
    }
    match &function.source {
        Source::Beside if path.is_dir() => Ok(Code::At(path.to_owned())),
        Source::Beside if beside.as_os_str().is_empty() => Ok(Code::At(PathBuf::from("."))),
        Source::Beside => Ok(Code::At(beside.to_owned())),
        Source::At(path) => Ok(Code::At(path.clone())),
        Source::Inside(_) | Source::Zip(..) | Source::Files(_) => {
            let io = |error: std::io::Error| unreadable(&std::env::temp_dir(), &error);
            let folder = tempfile::Builder::new().prefix("mote-code").tempdir().map_err(io)?;
            lay_out(function, folder.path())?;
            Ok(Code::Taken(Arc::new(folder)))
        }
    }
}

/// Writes the code that a manifest contains to a folder. Writes nothing if the code is elsewhere.
pub fn lay_out(function: &Described, folder: &Path) -> Result<(), Mistakes> {
    let files = match &function.source {
        Source::Beside | Source::At(_) => return Ok(()),
        Source::Inside(files) => files,
        Source::Files(paths) => {
            for path in paths {
                let to = match path.file_name() {
                    Some(name) if path.is_dir() => folder.join(name),
                    _ => folder.to_owned(),
                };
                probe::copy(path, &to).map_err(|error| unreadable(path, &error))?;
            }
            return Ok(());
        }
        Source::Zip(archive, files) => {
            let limits = ArchiveLimits { bytes: UNPACKED_BYTES_MAX, ..Default::default() };
            mote_store::unzip(archive, "", folder, &limits).map_err(|error| {
                let cause = mote_core::fault::error_chain(&error);
                let text =
                    format!("{}: cannot read the archive with its code: {cause}", function.name());
                mistake(error.code(), text, None)
            })?;
            files
        }
    };
    for (name, content) in files {
        let path = folder.join(name);
        remove_link(&path)
            .and_then(|()| fs::write(&path, content))
            .map_err(|error| unreadable(&path, &error))?;
    }
    Ok(())
}

/// Removes a link at a path to which a file will be written. Otherwise the file would be written to the
/// link's target, outside the folder.
fn remove_link(path: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_symlink() => fs::remove_file(path),
        _ => Ok(()),
    }
}

/// Returns a warning if the files of a folder follow another platform's contract, but the manifest
/// names neither the contract nor the way to call the code. Without a manifest, the contract would have
/// been inferred.
fn misses_compat(folder: &Folder, function: &FunctionManifest) -> Option<String> {
    let FunctionManifest { compat: named, template, runtime, entry, command, .. } = function;
    let says_how = named.is_some()
        || template.is_some()
        || runtime.is_some()
        || entry.is_some()
        || command.is_some();
    if says_how {
        return None;
    }
    let found = contract::infer(folder)?;
    let platform = compat(found.function.compat.as_ref()?.value).as_str();
    Some(format!(
        "the files look like a function of {platform} ({}), and {} does not say so; write compat = \
         \"{platform}\" in it, or entry for a function of mote",
        found.why,
        manifest::FILE_NAME
    ))
}

/// The functions that read a chain: one finds the chain's file, the other permits the calls that
/// the chain makes. A program that does not pass these functions contains no YAML code.
struct Chains {
    entry: fn(&Folder) -> Result<String, Mistakes>,
    allow: fn(&Folder, &mut FunctionSpec) -> Result<(), Mistakes>,
}

const CHAINS: Chains = Chains { entry: chain::entry, allow: chain::allow };

fn plan(
    folder: &Folder,
    function: &FunctionManifest,
    has_manifest: bool,
    options: Options<'_>,
) -> Result<(FunctionSpec, Vec<String>), Mistakes> {
    let mut guesses = Vec::new();
    let found = if has_manifest { None } else { contract::infer(folder) };
    let function = match &found {
        Some(found) => {
            let compat = found.function.compat.as_ref().map(|name| compat(name.value).as_str());
            guesses.push(format!("compat {} ({})", compat.unwrap_or(""), found.why));
            &found.function
        }
        None => function,
    };
    let spec = plan_described(folder, function, options, Some(CHAINS), &mut guesses)?;
    Ok((spec, guesses))
}

/// Plans the function that a manifest describes. If there is no manifest, the contract that the files
/// follow takes its place.
fn plan_described(
    folder: &Folder,
    function: &FunctionManifest,
    options: Options<'_>,
    chains: Option<Chains>,
    guesses: &mut Vec<String>,
) -> Result<FunctionSpec, Mistakes> {
    let name = name(folder, function, options.name)?;
    let runtime = match &function.runtime {
        Some(runtime) => guess::named(runtime.value),
        None if function.image.is_some() => Runtime::Server,
        None => {
            let (runtime, why) = guess::runtime(folder, function)?;
            guesses.push(format!("{} ({why})", runtime.as_str()));
            runtime
        }
    };
    let mut spec = FunctionSpec::with_defaults(name, runtime, "");
    spec.image = image::of(function, runtime)?;
    apply_contract(&mut spec, function)?;
    let chains = chains.filter(|_| runtime == Runtime::Chain);
    if runtime == Runtime::Chain && chains.is_none() {
        return Err(mistake("M0305", "a chain cannot be deployed here".to_owned(), None));
    }
    match runtime {
        Runtime::Python
        | Runtime::Node
        | Runtime::Bun
        | Runtime::Deno
        | Runtime::Go
        | Runtime::Chain
        | Runtime::Wasm => {
            if let Some(command) = &function.command {
                return Err(in_manifest(
                    "M0303",
                    command.line,
                    "command: only for runtime exec or server; use entry for this runtime",
                ));
            }
            spec.entry = match &function.entry {
                // Only the name of the export is known, as for a zip archive that a client sent. The
                // file is searched for.
                Some(entry) if entry.value.starts_with(':') && spec.compat.is_some() => {
                    let compat = spec.compat.unwrap_or(Platform::OpenWhisk);
                    let found = contract::entry(folder, compat, runtime)?;
                    let file = found.split(':').next().unwrap_or_default();
                    format!("{file}{}", entry.value)
                }
                Some(entry) => guess::checked_entry(folder, runtime, &entry.value, entry.line)?,
                None => {
                    let entry = match (&chains, spec.compat) {
                        (Some(chains), _) => (chains.entry)(folder)?,
                        (None, Some(compat)) => contract::entry(folder, compat, runtime)?,
                        (None, None) => guess::entry(folder, runtime, spec.name.as_str())?,
                    };
                    guesses.push(format!("entry {entry}"));
                    entry
                }
            };
        }
        Runtime::Rust => {
            if let Some(entry) = &function.entry {
                let text = "entry: a Rust function has none; command names its program";
                return Err(in_manifest("M0303", entry.line, text));
            }
            spec.command = match &function.command {
                Some(command) => command.value.clone(),
                None => vec![rust::program(folder)?],
            };
            guesses.push(format!("program {}", spec.command.join(" ")));
            rust::check_built(folder, &spec.command)?;
            check_program(folder, &mut spec.command, options.check_machine)?;
        }
        Runtime::Exec | Runtime::Server => {
            if let Some(entry) = &function.entry {
                return Err(in_manifest(
                    "M0303",
                    entry.line,
                    "entry: only for runtime python, node, go or wasm; use command for this runtime",
                ));
            }
            spec.command = match &function.command {
                Some(command) => command.value.clone(),
                None if spec.image.is_some() => Vec::new(),
                None => {
                    let command = guess::command(folder, runtime, spec.compat)?;
                    guesses.push(format!("command {}", command.join(" ")));
                    command
                }
            };
            // The programs of an image are not in the folder.
            if spec.image.is_none() {
                if spec.compat.is_some() {
                    run_by_interpreter(folder, &mut spec.command)?;
                }
                check_program(folder, &mut spec.command, options.check_machine)?;
            }
        }
    }
    if let Some(compat) = spec.compat {
        spec.limits.timeout_ms = compat.timeout_ms_default();
    }
    match (spec.compat, runtime) {
        (Some(Platform::OpenFaas), Runtime::Go) => golang::check_open_faas(folder, &spec)?,
        (Some(Platform::Nuclio), Runtime::Go) => golang::check_nuclio(folder, &spec)?,
        _ => {}
    }
    if function.limits.memory_bytes.is_none() && spec.image.is_none() {
        let (bytes, reason) = super::memory::default_bytes(folder, &spec);
        spec.limits.memory_bytes = bytes;
        guesses.extend(reason.map(|reason| format!("memory {} MiB, {reason}", bytes >> 20)));
    }
    apply(&mut spec, function)?;
    super::http::check_files(function, folder.root())?;
    super::access::apply(&mut spec, function, Some(folder.root()))?;
    if let Some(chains) = chains {
        (chains.allow)(folder, &mut spec)?;
    }
    if spec.image.is_none() {
        guesses.extend(network::allow_gateway(folder, &mut spec));
        guesses.extend(network::allow_own_front(folder, &mut spec));
    }
    let one_at_a_time = match spec.compat {
        Some(Platform::OpenWhisk) => runtime.is_javascript() || runtime == Runtime::Go,
        Some(Platform::Nuclio) => runtime == Runtime::Go,
        _ => false,
    };
    if one_at_a_time {
        // An activation sets values that other activations in the process would see. A Nuclio worker
        // handles one event at a time, and its platform starts one worker by default.
        spec.limits.concurrency = spec.limits.concurrency.or(Some(1));
    }
    Ok(spec)
}

pub(crate) fn compat(name: PlatformName) -> Platform {
    match name {
        PlatformName::TinyFaas => Platform::TinyFaas,
        PlatformName::OpenFaas => Platform::OpenFaas,
        PlatformName::Nuclio => Platform::Nuclio,
        PlatformName::Kubeless => Platform::Kubeless,
        PlatformName::OpenWhisk => Platform::OpenWhisk,
        PlatformName::Knative => Platform::Knative,
        PlatformName::Fission => Platform::Fission,
    }
}

/// Applies `compat`, `template` and `port`. Refuses each of them by name if this version has no adapter
/// for it.
fn apply_contract(spec: &mut FunctionSpec, function: &FunctionManifest) -> Result<(), Mistakes> {
    if let Some(name) = &function.compat {
        let compat = compat(name.value);
        if !compat.is_offered(spec.runtime) {
            let word = compat.as_str();
            let runtime = spec.runtime.as_str();
            let text = format!("compat \"{word}\" is not supported yet for runtime {runtime}");
            return Err(in_manifest("M0305", name.line, &text));
        }
        spec.compat = Some(compat);
    }
    if let Some(template) = &function.template {
        if spec.compat.is_none() {
            let text = "template: needs compat, the platform whose template it is";
            return Err(in_manifest("M0306", template.line, text));
        }
        spec.template = Some(template.value.clone());
    }
    if let Some(port) = &function.port {
        if spec.runtime != Runtime::Server {
            return Err(in_manifest("M0303", port.line, "port: only for runtime server"));
        }
        spec.port = Some(port.value);
    }
    if let Some(protocol) = &function.protocol {
        if spec.runtime != Runtime::Server {
            return Err(in_manifest("M0303", protocol.line, "protocol: only for runtime server"));
        }
        spec.protocol = match protocol.value {
            ProtocolName::Http1 => Protocol::Http1,
            ProtocolName::H2c => Protocol::H2c,
        };
    }
    Ok(())
}

fn name(
    folder: &Folder,
    function: &FunctionManifest,
    wanted: Option<&str>,
) -> Result<FunctionName, Mistakes> {
    let hint = Some("choose a name: --name NAME, or name = \"…\" in mote.toml".to_owned());
    if let Some(name) = wanted {
        return FunctionName::new(name)
            .map_err(|error| mistake("M0115", format!("`{}`: {error}", escaped(name)), None));
    }
    if let Some(name) = &function.name {
        return FunctionName::new(&name.value)
            .map_err(|error| in_manifest("M0115", name.line, &error.to_string()));
    }
    let from: String = folder
        .stem()
        .to_lowercase()
        .chars()
        .map(|c| if matches!(c, '_' | '.' | ' ') { '-' } else { c })
        .collect();
    FunctionName::new(from.trim_matches('-')).map_err(|error| {
        let text = format!("`{}`: {error}", escaped(folder.stem()));
        mistake("M0115", text, hint)
    })
}

fn apply(spec: &mut FunctionSpec, function: &FunctionManifest) -> Result<(), Mistakes> {
    apply_limits(spec, function);
    let scale = &function.scale;
    spec.scale.min = scale.min.unwrap_or(spec.scale.min);
    spec.scale.max = scale.max.or(spec.scale.max);
    spec.scale.idle_timeout_ms = scale.idle_timeout_ms.unwrap_or(spec.scale.idle_timeout_ms);
    spec.scale.queue = scale.queue.unwrap_or(spec.scale.queue);
    spec.scale.policy = policy(scale);
    spec.scale.start = match scale.start {
        Some(StartName::Warm) => StartPolicy::Warm,
        Some(StartName::Always) => StartPolicy::Always,
        Some(StartName::Cold) | None => StartPolicy::Cold,
    };
    spec.scale.balance = match scale.balance {
        Some(BalanceName::RoundRobin) => Balance::RoundRobin,
        Some(BalanceName::Random) => Balance::Random,
        Some(BalanceName::LeastConnections) => Balance::LeastConnections,
        Some(BalanceName::PerCaller) => Balance::PerCaller,
        Some(BalanceName::PerCall) => Balance::PerCall,
        Some(BalanceName::LateBinding) | None => Balance::LateBinding,
    };
    spec.scale.pause_ms = scale.pause_ms.or(spec.scale.pause_ms);
    spec.scale.spare = scale.spare.unwrap_or(spec.scale.spare);
    spec.env.clone_from(&function.env);
    spec.secrets.clone_from(&function.secrets);
    spec.secret_env.clone_from(&function.secret_env);
    spec.methods = function.methods.clone().unwrap_or_default();
    spec.http = crate::http::rules(function, spec.name.as_str())?;
    spec.egress = function.egress.iter().map(crate::network::egress).collect();
    apply_background(&mut spec.background, &function.background)?;
    apply_publishing(&mut spec.publishing, function)?;
    spec.schedules = schedules::of(function)?;
    spec.calls.clone_from(&function.calls);
    spec.state.shared.clone_from(&function.shared_state);
    spec.files.clone_from(&function.files);
    spec.state.quota_bytes = function.state_quota_bytes.unwrap_or(spec.state.quota_bytes);
    // On other platforms, functions may write next to their code.
    spec.writable = function.writable.unwrap_or(spec.compat.is_some() && spec.image.is_none());
    spec.services = function.services.as_ref().is_some_and(|services| services.value);
    let name = spec.name.as_str();
    if let Some(coap) = &function.coap {
        if coap.value.path != name {
            let path = escaped(&coap.value.path);
            let text = format!("coap = \"{path}\": only \"{name}\" is supported so far");
            return Err(in_manifest("M0305", coap.line, &text));
        }
        spec.coap = CoapResource {
            title: coap.value.title.clone(),
            resource_type: coap.value.resource_type.clone(),
            content_format: coap.value.content_format,
        };
    }
    for from in &function.mqtt {
        let trigger = mqtt_trigger(from)?;
        if trigger.is_among(&spec.mqtt) {
            let text = format!("mqtt: {}", mqtt::SAME_FILTER);
            return Err(in_manifest("M0303", from.filter.line, &text));
        }
        spec.mqtt.push(trigger);
    }
    Ok(())
}

/// Applies `[mqtt]` and `[allow] mqtt`.
fn apply_publishing(to: &mut Publishing, function: &FunctionManifest) -> Result<(), Mistakes> {
    let from = &function.connection;
    to.connection = Connection {
        broker: from.broker.clone(),
        version: from.version.map_or_else(Default::default, mqtt_version),
        username: from.username.clone(),
        password: from.password.clone(),
        ca: from.ca.clone(),
        certificate: from.certificate.clone(),
        key: from.key.clone(),
    };
    to.topics = function.topics.as_ref().map_or_else(Vec::new, |topics| topics.value.clone());
    match to.mistake() {
        None => Ok(()),
        Some((section, key, text)) => {
            let topics_line = function.topics.as_ref().map_or(0, |topics| topics.line);
            let line = if section == "mqtt" { from.line } else { topics_line };
            Err(in_manifest("M0303", line, &format!("{key}: {text}")))
        }
    }
}

fn mqtt_version(name: MqttVersionName) -> MqttVersion {
    match name {
        MqttVersionName::V311 => MqttVersion::V311,
        MqttVersionName::V5 => MqttVersion::V5,
    }
}

/// Returns a recipient of results after checking it. `key` is the recipient's key in `[async]`.
fn recipient(key: &str, name: &Lined<RecipientName>) -> Result<Recipient, Mistakes> {
    let recipient = match &name.value {
        RecipientName::Function(name) => Recipient::Function(name.clone()),
        RecipientName::Url(url) => Recipient::Url(url.clone()),
        RecipientName::Topic(topic) => Recipient::Topic(Topic {
            topic: topic.topic.clone(),
            qos: topic.qos.unwrap_or(1),
            retain: topic.retain.unwrap_or(false),
        }),
    };
    match recipient.mistake() {
        None => Ok(recipient),
        Some(text) => Err(in_manifest("M0303", name.line, &format!("{key}: {text}"))),
    }
}

fn apply_background(rules: &mut AsyncRules, manifest: &AsyncManifest) -> Result<(), Mistakes> {
    let recipient = |key, name: &Option<Lined<RecipientName>>| {
        name.as_ref().map(|name| recipient(key, name)).transpose()
    };
    let retry = |name: &RetryName| match name {
        RetryName::Error => RetryOn::Error,
        RetryName::Timeout => RetryOn::Timeout,
        RetryName::Status => RetryOn::Status,
    };
    let default = AsyncRules::default();
    *rules = AsyncRules {
        attempts: manifest.attempts,
        backoff_ms: manifest.backoff_ms.unwrap_or(default.backoff_ms),
        backoff_ms_max: manifest.backoff_ms_max.unwrap_or(default.backoff_ms_max),
        retry: match &manifest.retry {
            Some(names) => names.iter().map(retry).collect(),
            None => default.retry,
        },
        age_ms_max: manifest.age_ms_max.unwrap_or(default.age_ms_max),
        concurrency: manifest.concurrency,
        on_success: recipient("on_success", &manifest.on_success)?,
        on_failure: recipient("on_failure", &manifest.on_failure)?,
    };
    Ok(())
}

fn mqtt_trigger(from: &MqttManifest) -> Result<MqttTrigger, Mistakes> {
    let text = |lined: &Option<Lined<String>>| lined.as_ref().map(|lined| lined.value.clone());
    let default = MqttTrigger::new(from.filter.value.clone());
    let trigger = MqttTrigger {
        filter: default.filter,
        broker: text(&from.broker),
        qos: from.qos.unwrap_or(default.qos),
        version: from.version.map_or(default.version, mqtt_version),
        username: text(&from.username),
        password: text(&from.password),
        ca: text(&from.ca),
        certificate: text(&from.certificate),
        key: text(&from.key),
        session: match from.session {
            Some(SessionName::Persistent) => MqttSession::Persistent,
            Some(SessionName::Clean) => MqttSession::Clean,
            None => default.session,
        },
        inflight: from.inflight.unwrap_or(default.inflight),
        acknowledge: match from.acknowledge {
            Some(AcknowledgeName::Answered) => Acknowledge::Answered,
            Some(AcknowledgeName::Stored) => Acknowledge::Stored,
            None => default.acknowledge,
        },
        order: match from.order {
            Some(OrderName::Topic) => MqttOrder::Topic,
            Some(OrderName::None) => MqttOrder::None,
            None => default.order,
        },
        reply: text(&from.reply),
    };
    match trigger.mistake() {
        None => Ok(trigger),
        Some((key, text)) => {
            Err(in_manifest("M0303", from.line_of(key), &format!("{key}: {text}")))
        }
    }
}

fn apply_limits(spec: &mut FunctionSpec, function: &FunctionManifest) {
    let limits = &function.limits;
    let to = &mut spec.limits;
    to.memory_bytes = limits.memory_bytes.unwrap_or(to.memory_bytes);
    to.timeout_ms = limits.timeout_ms.unwrap_or(to.timeout_ms);
    to.init_timeout_ms = limits.init_timeout_ms.unwrap_or(to.init_timeout_ms);
    to.concurrency = limits.concurrency.or(to.concurrency);
    to.cpu_millis = limits.cpu_millis.or(to.cpu_millis);
    to.pids = limits.pids.unwrap_or(to.pids);
    to.body_bytes = limits.body_bytes.unwrap_or(to.body_bytes);
    to.disk_bytes = limits.disk_bytes.unwrap_or(to.disk_bytes);
    to.stream_idle_ms = limits.stream_idle_ms.unwrap_or(to.stream_idle_ms);
    let rate = |RateManifest { calls, period_ms, burst }| Rate { calls, period_ms, burst };
    spec.rates.all = limits.rate.map(rate).or(spec.rates.all);
    spec.rates.caller = limits.caller_rate.map(rate).or(spec.rates.caller);
    spec.rates.at_once = limits.calls_at_once.or(spec.rates.at_once);
    spec.rates.caller_at_once = limits.caller_calls_at_once.or(spec.rates.caller_at_once);
}

/// The target for CPU or memory use if the manifest names only the policy. About a third stays free for
/// the time until another instance has started.
const TARGET_PERCENT_DEFAULT: u32 = 70;

/// Returns the policy with its target. The reader of manifests guarantees that a policy without a
/// default has a target.
fn policy(scale: &ScaleManifest) -> Policy {
    let target = scale.target;
    let target_percent = target.unwrap_or(TARGET_PERCENT_DEFAULT);
    match scale.policy.unwrap_or(PolicyName::Auto) {
        PolicyName::Auto => Policy::Auto,
        PolicyName::Concurrency => Policy::Concurrency { target: target.unwrap_or(1) },
        PolicyName::Rps => Policy::Rps { target: target.unwrap_or(1) },
        PolicyName::Cpu => Policy::Cpu { target_percent },
        PolicyName::Memory => Policy::Memory { target_percent },
        PolicyName::Knative => {
            let known = KnativeSettings::default();
            Policy::Knative(KnativeSettings { target: target.unwrap_or(known.target), ..known })
        }
        PolicyName::Hpa => {
            let known = HpaSettings::default();
            let target_percent = target.unwrap_or(known.target_percent);
            Policy::Hpa(HpaSettings { target_percent, ..known })
        }
        PolicyName::OpenFaas => {
            let known = OpenFaasSettings::default();
            let threshold_rps = target.unwrap_or(known.threshold_rps);
            Policy::OpenFaas(OpenFaasSettings { threshold_rps, ..known })
        }
    }
}

#[cfg(test)]
mod tests;
