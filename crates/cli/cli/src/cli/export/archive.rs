//! `mote export image`: a function as an image that Docker, Knative and OpenFaaS run.
//!
//! The image receives the interpreters of this machine, so no registry and no container tool is
//! needed, and the function runs with the versions with which it was tested.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mote_images::{Layer, LayerWriter, Settings, write_archive};
use mote_project::{Options, Planned};
use mote_spec::quantity::size_text;
use mote_spec::{FunctionSpec, Platform, Runtime};
use mote_store::ArchiveLimits;
use serde_json::json;

use super::machine;
use crate::cli::args::ExportImage;
use crate::cli::deploy;
use crate::cli::failure::Failure;
use crate::cli::output::{Output, harmless};
use crate::export::image::{self, HEALTH, Needs, PORT, USER};

pub(super) fn run(args: &ExportImage, output: &Output) -> Result<(), Failure> {
    let options = Options { name: args.name.as_deref(), check_machine: true, filter: None };
    let project = mote_project::read(&args.path, options)?;
    let several = project.functions.len() > 1;
    let mut refused = None;
    for planned in &project.functions {
        let name = planned.spec.name.as_str();
        if let Some(why) = crate::export::refusal(&planned.spec) {
            let failure = Failure::new("M0122", format!("{name}: {why}"));
            output.failure(&failure);
            refused.get_or_insert(failure.exit);
            continue;
        }
        let tar = deploy::pack_code(&args.path, planned, several, output)?;
        let file = args.out.join(format!("{name}.tar"));
        match write(planned, &tar, &args.out, &file, output) {
            Err(failure) if several && failure.is_of_one_function() => {
                output.failure(&failure);
                refused.get_or_insert(failure.exit);
            }
            other => other?,
        }
    }
    deploy::left_out(project.left_out, output)?;
    refused.map_or(Ok(()), |exit| Err(Failure::quiet(exit)))
}

fn write(
    planned: &Planned,
    tar: &[u8],
    out: &Path,
    file: &Path,
    output: &Output,
) -> Result<(), Failure> {
    let spec = &planned.spec;
    let name = spec.name.as_str();
    if file.exists() {
        let text = format!("{}: already exists", file.display());
        return Err(Failure::new("M0103", text).with_hint("remove it, or name a folder: --out DIR"));
    }
    let io = |error: std::io::Error| Failure::of_file("M0103", &file.display().to_string(), &error);
    fs::create_dir_all(out).map_err(io)?;
    // The output folder has room for large files, which the folder for temporary files may lack.
    let work = tempfile::Builder::new().prefix(".mote-export-").tempdir_in(out).map_err(io)?;
    let code = work.path().join("function");
    fs::create_dir(&code).map_err(io)?;
    mote_store::archive::unpack(tar, &code, &ArchiveLimits::default())
        .map_err(|error| Failure::new("M0103", format!("{name}: {error}")))?;
    let packages = work.path().join("packages");
    let needs = install(spec, &code, &packages, output)?;
    let folders = Folders { work: work.path(), code: &code, packages: &packages };
    let (layers, search) = layers(spec, needs, &folders, output)?;

    let partial = tempfile::NamedTempFile::new_in(out).map_err(io)?;
    let settings = Settings { name, config: config(spec, &search) };
    write_archive(std::io::BufWriter::new(partial.as_file()), layers, &settings).map_err(io)?;
    partial.as_file().set_permissions(readable()).map_err(io)?;
    let bytes = partial.as_file().metadata().map_err(io)?.len();
    partial.persist_noclobber(file).map_err(|error| io(error.error))?;

    for line in crate::export::lost_in_image(spec) {
        output.warn(&harmless(&format!("{name}: not in the image: {line}")));
    }
    let shown = file.display();
    output.say(&format!("wrote {shown} ({})", size_text(bytes)));
    output.say(&format!("  docker load -i {shown}"));
    output.say(&format!("  docker run -p {PORT}:{PORT} {name}"));
    Ok(())
}

/// The mode of an ordinary file. Temporary files are readable only for their owner.
fn readable() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o644)
}

struct Folders<'a> {
    work: &'a Path,
    code: &'a Path,
    packages: &'a Path,
}

/// Installs the packages that the code names, with the tools of this machine.
fn install(
    spec: &FunctionSpec,
    code: &Path,
    packages: &Path,
    output: &Output,
) -> Result<Needs, Failure> {
    let has = |file: &str| code.join(file).exists();
    let needs = Needs {
        requirements: !spec.runtime.is_javascript() && has("requirements.txt"),
        package_json: spec.runtime != Runtime::Python && has("package.json"),
        package_lock: has("package-lock.json"),
    };
    if needs.requirements {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--no-cache-dir", "--target"]).arg(packages);
        run_tool(pip.arg("-r").arg("requirements.txt"), "pip", code, output)?;
    }
    if needs.package_json {
        let verb = if needs.package_lock { "ci" } else { "install" };
        run_tool(Command::new("npm").args([verb, "--omit=dev"]), "npm", code, output)?;
    }
    Ok(needs)
}

fn run_tool(
    command: &mut Command,
    name: &str,
    folder: &Path,
    output: &Output,
) -> Result<(), Failure> {
    output.say(&format!("  installing packages: {name}"));
    let ended = command.current_dir(folder).stdin(Stdio::null()).stdout(std::io::stderr()).status();
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new("M0402", format!("packages: {name} failed ({status})"))),
        Err(error) => Err(Failure::new("M0402", format!("packages: {name}: {error}"))),
    }
}

/// Returns the layers, and the folders of libraries in which the loader does not look by itself. The
/// layers that change least come first, so that images share them.
fn layers(
    spec: &FunctionSpec,
    needs: Needs,
    folders: &Folders<'_>,
    output: &Output,
) -> Result<(Vec<Layer>, String), Failure> {
    let io = |error: std::io::Error| {
        Failure::of_file("M0103", &folders.work.display().to_string(), &error)
    };
    let begin = || LayerWriter::begin(folders.work).map_err(io);
    let mut base = begin()?;
    machine::add_basics(&mut base, USER).map_err(io)?;
    let mut programs = machine::add_python(&mut base)?;
    let is_program = matches!(spec.runtime, Runtime::Exec | Runtime::Server);
    let uses = if is_program { uses(spec, folders.code)? } else { Uses::Nothing };
    if spec.runtime == Runtime::Node || uses == Uses::Node {
        programs.push(machine::add_node(&mut base)?);
    }
    if matches!(spec.runtime, Runtime::Bun | Runtime::Deno) {
        programs.extend(machine::add_program(&mut base, spec.runtime.as_str())?);
    }
    if is_program {
        for name in machine::UTILITIES {
            programs.extend(machine::add_program(&mut base, name)?);
        }
        let name = spec.name.as_str();
        output.warn(&harmless(&format!(
            "{name}: the image has the usual programs of a shell; other programs that the function \
             starts are not in it"
        )));
    }
    let mut own = machine::loadable(folders.code);
    own.extend(machine::loadable(folders.packages));
    let mut search = machine::add_libraries(&mut base, &programs)?;
    let mut layers = vec![base.finish().map_err(io)?];

    let mut server = begin()?;
    let shims = [mote_build::shims::files(), mote_build::shims::standalone()];
    for (path, text) in shims.iter().flat_map(mote_build::shims::Files::iter) {
        if image::has_shim(spec, path) {
            server.text(&format!("server/{path}"), text).map_err(io)?;
        }
    }
    layers.push(server.finish().map_err(io)?);

    let mut function = begin()?;
    function.tree(folders.code, "function", &|_, _| true).map_err(io)?;
    if needs.requirements {
        function.tree(folders.packages, "packages", &|_, _| true).map_err(io)?;
    }
    let is_own = |folder: &PathBuf| !folder.starts_with(folders.work);
    search.extend(machine::add_libraries(&mut function, &own)?.into_iter().filter(is_own));
    let mut description = image::description(spec, needs);
    description["health"] = HEALTH.into();
    let text = format!("{description:#}\n");
    function.text("server/function.json", &text).map_err(io)?;
    if spec.compat == Some(Platform::OpenFaas) {
        function.link("var/openfaas/secrets", "/secrets").map_err(io)?;
    }
    if spec.compat == Some(Platform::Fission) {
        function.link("userfunc", "/function").map_err(io)?;
    }
    layers.push(function.finish().map_err(io)?);
    let search: Vec<_> = search.iter().map(|folder| folder.to_string_lossy()).collect();
    Ok((layers, search.join(":")))
}

/// What a program needs from this machine.
#[derive(Debug, PartialEq, Eq)]
enum Uses {
    Nothing,
    Node,
}

/// Finds what runs the program of a function. Refuses languages whose libraries cannot be copied.
fn uses(spec: &FunctionSpec, code: &Path) -> Result<Uses, Failure> {
    let Some(first) = spec.command.first() else { return Ok(Uses::Nothing) };
    let own = code.join(first.trim_start_matches('/'));
    let name = if !first.starts_with('/') && own.is_file() {
        match machine::interpreter(&own) {
            Some(name) => name,
            None => return Ok(Uses::Nothing),
        }
    } else {
        Path::new(first).file_name().unwrap_or_default().to_string_lossy().into_owned()
    };
    match name.as_str() {
        "node" => Ok(Uses::Node),
        "python" | "python3" => Ok(Uses::Nothing),
        name if machine::UTILITIES.contains(&name) => Ok(Uses::Nothing),
        name => {
            let function = spec.name.as_str();
            let text = format!("{function}: the program `{}` cannot be copied", harmless(name));
            Err(Failure::new("M0122", text).with_hint(
                "use mote export kubernetes, and install the program in the Containerfile",
            ))
        }
    }
}

fn config(spec: &FunctionSpec, search: &str) -> serde_json::Value {
    let mut env: Vec<String> = [
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "HOME=/tmp",
        "LANG=C.UTF-8",
        "PYTHONDONTWRITEBYTECODE=1",
        "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
    ]
    .map(str::to_owned)
    .into();
    if !search.is_empty() {
        env.push(format!("LD_LIBRARY_PATH={search}"));
    }
    env.retain(|line| line.split_once('=').is_none_or(|(name, _)| !spec.env.contains_key(name)));
    env.extend(spec.env.iter().map(|(name, value)| format!("{name}={value}")));
    json!({
        "User": format!("{USER}:{USER}"),
        "ExposedPorts": {format!("{PORT}/tcp"): {}},
        "Env": env,
        "Entrypoint":
            ["/usr/local/bin/python3", "-u", "/server/standalone/serve.py", "/server/function.json"],
        "WorkingDir": "/function",
        "StopSignal": "SIGTERM",
    })
}
