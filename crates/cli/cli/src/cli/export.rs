//! `mote export`: writes functions as files for another platform.

mod archive;
mod machine;

use std::fs;
use std::path::Path;

use crate::export::image::{self, ARCHIVE, Needs};
use crate::export::objects;
use mote_project::Options;

use super::args::{ExportKubernetes, ExportTo};
use super::deploy;
use super::failure::Failure;
use super::output::{Output, harmless};

pub(super) fn run(to: &ExportTo, output: &Output) -> Result<(), Failure> {
    match to {
        ExportTo::Kubernetes(args) => kubernetes(args, output),
        ExportTo::Image(args) => archive::run(args, output),
    }
}

fn kubernetes(args: &ExportKubernetes, output: &Output) -> Result<(), Failure> {
    if args.out.exists() {
        let text = format!("{}: already exists", args.out.display());
        return Err(Failure::new("M0103", text).with_hint("name another folder: --out DIR"));
    }
    let options = Options { name: args.name.as_deref(), check_machine: false, filter: None };
    let project = mote_project::read(&args.path, options)?;
    let objects = objects::Options {
        registry: args.registry.clone(),
        tag: args.tag.clone(),
        namespace: args.namespace.clone(),
    };
    let several = project.functions.len() > 1;
    let mut refused = None;
    let shims = [mote_build::shims::files(), mote_build::shims::standalone()];
    for planned in &project.functions {
        let spec = &planned.spec;
        let name = spec.name.as_str();
        if let Some(why) = crate::export::refusal(spec) {
            let failure = Failure::new("M0122", format!("{name}: {why}"));
            output.failure(&failure);
            refused.get_or_insert(failure.exit);
            continue;
        }
        let tar = deploy::pack_code(&args.path, planned, several, output)?;
        let code = planned.code.as_ref().map_or(args.path.as_path(), |code| code.path());
        let has = |file: &str| code.is_dir() && code.join(file).exists();
        let needs = Needs {
            requirements: has("requirements.txt"),
            package_json: has("package.json"),
            package_lock: has("package-lock.json"),
        };
        let mut lost = crate::export::lost(spec);
        let yaml = objects::yaml(spec, &objects, &mut lost)
            .map_err(|error| Failure::new("M0103", format!("{name}: {error}")))?;
        for line in &lost {
            output.warn(&harmless(&format!("{name}: not carried over: {line}")));
        }
        let folder = args.out.join(name);
        let description = format!("{:#}\n", image::description(spec, needs));
        write(&folder.join("objects.yaml"), yaml.as_bytes())?;
        write(&folder.join("Containerfile"), image::containerfile(spec, needs).as_bytes())?;
        write(&folder.join("function.json"), description.as_bytes())?;
        write(&folder.join(ARCHIVE), &tar)?;
        for (path, text) in shims.iter().flat_map(mote_build::shims::Files::iter) {
            if image::has_shim(spec, path) {
                write(&folder.join("server").join(path), text.as_bytes())?;
            }
        }
        output.say(&format!("wrote {}", folder.display()));
    }
    deploy::left_out(project.left_out, output)?;
    refused.map_or(Ok(()), |exit| Err(Failure::quiet(exit)))
}

fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, content));
    written.map_err(|error| Failure::of_file("M0103", &path.display().to_string(), &error))
}
