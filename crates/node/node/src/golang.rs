//! Builds Go functions during a deploy, together with a worker from `shims/go` that speaks the
//! worker protocol. The node stores each program in the same way as installed packages: once for
//! each combination of code, entry, worker and Go version.
//!
//! A build runs in the sandbox for installations. It runs none of the function's code, because cgo
//! is off and `go` runs no scripts of modules. So builds can safely share one cache of compiled
//! packages.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mote_api::Problem;
use mote_build::golang::GENERATED;
use mote_build::packages::client::Client;
use mote_build::packages::registries::Registries;
use mote_sandbox::BuildRequest;
use mote_spec::{FunctionSpec, Runtime};
use mote_store::{Lookup, PackagesStaging, StagedCode};

use super::Node;
use super::interpreters::Found;
use super::packages::{self, Installed};
use super::store_work::{blocking, store_problem};

/// The cache is emptied when it holds more than this. `go` cannot remove single modules from it.
const CACHE_BYTES_MAX: u64 = 2 << 30;
/// How long a build may wait for other builds of its namespace, because their compilers use the
/// same cache. For each other namespace whose turn comes first, it may wait this long again.
const TURN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(600);
/// The script that runs `go build`. If the module's own lists lack entries, the build adds them
/// instead of failing.
const SCRIPT: &str = "set -e; cp -R /function /tmp/build; chmod -R u+w /tmp/build; \
    cp -R /packages/.mote/. /tmp/build/; cd /tmp/build; \
    exec go build -trimpath -ldflags='-s -w' -o /packages/function \"$@\"";

/// The same script with the function's tests, which become a program of their own.
const SCRIPT_WITH_TESTS: &str = "set -e; cp -R /function /tmp/build; chmod -R u+w /tmp/build; \
    cp -R /packages/.mote/. /tmp/build/; cd /tmp/build; go test -c -o /packages/function.test .; \
    exec go build -trimpath -ldflags='-s -w' -o /packages/function \"$@\"";

/// Fails before anything is built if `spec` needs Go and the node has no Go.
pub(crate) fn check(interpreters: &Found, spec: &FunctionSpec) -> Result<(), Problem> {
    match (&interpreters.go, spec.runtime) {
        (Err(reason), Runtime::Go) => {
            let text = format!("{} cannot be built here: {reason}", spec.name);
            let hint = "install Go on the node (https://go.dev/dl), or build the program elsewhere: \
                        runtime = \"server\"";
            Err(Problem::new(422, "M0403", text).with_hint(hint))
        }
        _ => Ok(()),
    }
}

/// Builds the function of `staged`, unless the store already has the same program.
pub(crate) async fn build(
    node: &Arc<Node>,
    spec: &FunctionSpec,
    staged: &StagedCode,
) -> Result<Installed, Problem> {
    check(&node.opened.interpreters, spec)?;
    let go = node.opened.interpreters.go.as_ref().map_err(|reason| packages::failed(reason))?;
    let key = mote_build::golang::key(spec, &staged.hash, &go.version);
    let turn = node.deploys.go_builds.wait(&spec.name, TURN_TIMEOUT).await;
    let _turn = turn.map_err(|waited| {
        let minutes = waited.as_secs() / 60;
        let text =
            format!("{} waited {minutes} minutes for the builds of other Go functions", spec.name);
        packages::failed(&text).with_hint("deploy it again when they have ended")
    })?;
    let store = node.opened.store.clone();
    let wanted = key.clone();
    let lookup = blocking(move || store.packages_dir(&wanted))
        .await
        .map_err(|_| packages::failed("the node could not check for an existing build"))?
        .map_err(|error| store_problem(&error))?;
    let staging = match lookup {
        Lookup::Ready(stored) => return Ok(Installed::new(key, stored, "from cache".into())),
        Lookup::Build(staging) => staging,
    };
    let own = spec.clone();
    let code = staged.path.to_path_buf();
    let generated =
        blocking(move || Ok((mote_build::golang::generate(&own, &code, staging.path())?, staging)));
    let (target, staging) = generated
        .await
        .unwrap_or_else(|_| Err(packages::failed("the node could not read the code")))?;
    let kept = node.config.go_cache.clone();
    let cache = cache(kept.unwrap_or_else(|| node.config.data.join("go-cache"))).await?;
    // `go` fetches a module from the host that the module's name contains, unless the configuration
    // permits only a proxy.
    let registries = Arc::new(Registries::of(Client::Go, &spec.name, BTreeSet::new()));
    let request = request(node, spec, staged, &staging, (&target, cache, &registries)).await?;
    let serve = |listeners| registries.clone().serve(listeners);
    let outcome = node.opened.backend.run_build(request, serve).await.map_err(|error| {
        packages::failed(&format!("cannot build: {}", mote_core::fault::error_chain(&error)))
    })?;
    if !outcome.succeeded() {
        return Err(packages::explain(
            spec,
            "go build",
            &outcome,
            &registries,
            node.data_path.memory_bytes,
        ));
    }
    mote_store::remove_tree(&staging.path().join(GENERATED))
        .map_err(|error| packages::failed(&format!("cannot remove {GENERATED}: {error}")))?;
    let store = node.opened.store.clone();
    let stored = blocking(move || store.commit_packages(staging))
        .await
        .map_err(|_| packages::failed("the node could not store the program"))?
        .map_err(|error| store_problem(&error))?;
    Ok(Installed::new(key, stored, format!("go {}", go.version)))
}

/// Returns the cache folder of compiled packages and modules. Empties the folder first if it has
/// grown too large. The caller must hold the turn to build. The size is counted on a blocking
/// thread, because counting visits every file.
async fn cache(cache: PathBuf) -> Result<PathBuf, Problem> {
    let path = cache.clone();
    let made = blocking(move || prepare_cache(&path, CACHE_BYTES_MAX));
    made.await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
        .map_err(|error| packages::failed(&format!("cannot make {}: {error}", cache.display())))?;
    Ok(cache)
}

fn prepare_cache(path: &Path, bytes_max: u64) -> std::io::Result<()> {
    if mote_store::bytes_below(path, bytes_max) > bytes_max {
        mote_store::remove_tree(path)?;
    }
    std::fs::create_dir_all(path)?;
    // Compiled packages contain parts of their authors' code, so other users of the machine must
    // not read them.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}

async fn request(
    node: &Node,
    spec: &FunctionSpec,
    staged: &StagedCode,
    staging: &PackagesStaging,
    (target, cache, registries): (&str, PathBuf, &Registries),
) -> Result<BuildRequest, Problem> {
    let go = node.opened.interpreters.go.as_ref().map_err(|reason| packages::failed(reason))?;
    let mut request = packages::request(node, spec, &staged.path, staging, registries).await?;
    let bin = go.prefix.join("bin");
    for (name, value) in &mut request.env {
        if name == "PATH" {
            *value = format!("{}:{value}", bin.display());
        }
    }
    // If there is no vendor folder, `go` looks up missing checksums and requirements.
    let code = staged.path.to_path_buf();
    let vendored = blocking(move || mote_build::golang::is_vendored(&code)).await;
    let flags = if vendored.unwrap_or_default() {
        "-buildvcs=false -mod=vendor"
    } else {
        "-buildvcs=false -mod=mod"
    };
    let fixed = [
        ("CGO_ENABLED", "0"),
        ("GOCACHE", "/cache/build"),
        ("GOMODCACHE", "/cache/modules"),
        ("GOPATH", "/tmp/go"),
        ("GOTMPDIR", "/tmp"),
        ("GOENV", "off"),
        ("GOTELEMETRY", "off"),
        ("GOTOOLCHAIN", "local"),
        ("GOFLAGS", flags),
    ];
    request.env.extend(fixed.map(|(name, value)| (name.to_owned(), value.to_owned())));
    request.extra_read_only.push(go.prefix.clone());
    request.cache_dir = Some(cache);
    let script = if node.config.go_tests { SCRIPT_WITH_TESTS } else { SCRIPT };
    request.argv = ["sh", "-c", script, "build", target].map(str::to_owned).to_vec();
    Ok(request)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_cache_is_nobody_elses_and_begins_anew_when_it_is_full() {
        let data = tempfile::tempdir().unwrap();
        let cache = data.path().join("go-cache");
        let mode = || fs::metadata(&cache).unwrap().permissions().mode() & 0o7777;
        prepare_cache(&cache, 1_000).unwrap();
        assert_eq!(mode(), 0o700);
        // An earlier version left the cache readable for other users.
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(cache.join("build/00")).unwrap();
        fs::write(cache.join("build/00/a"), vec![0; 1_000]).unwrap();
        prepare_cache(&cache, 1_000).unwrap();
        assert_eq!(mode(), 0o700);
        assert!(cache.join("build/00/a").is_file(), "it is not too large");
        fs::write(cache.join("build/00/b"), "x").unwrap();
        prepare_cache(&cache, 1_000).unwrap();
        assert_eq!((mode(), fs::read_dir(&cache).unwrap().count()), (0o700, 0));
    }
}
