//! The steps of an upgrade, in their order.

use std::fs::File;
use std::io::{BufRead as _, ErrorKind, IsTerminal as _, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use mote_api::harmless;

use crate::args::Args;
use crate::data::{self, Changed};
use crate::failure::{ARCHIVE, Failure, UNFIT, USAGE, WENT_BACK};
use crate::installation::Installation;
use crate::release::Release;
use crate::service::{self, NotReady, Service};
use crate::transaction::{CHECK, TREE, Transaction};
use crate::{machine, source, trust};

/// The exit status of a node whose settings are not valid.
const INVALID_SETTINGS: i32 = mote_api::exit::CONFIG as i32;

/// How long the new program may take to print its version, and to check the settings.
const TRY_PATIENCE: Duration = Duration::from_secs(60);
/// The most bytes that are read of the program's output.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

fn say(text: impl std::fmt::Display) {
    eprintln!("{}", harmless(&text.to_string()));
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let installation = Installation::find(args.prefix.as_deref())?;
    if let Some(archive) = args.archive.as_ref().filter(|archive| archive.starts_with("http://"))
        && args.unsigned
    {
        say(format_args!(
            "warning: {archive} comes without a signature over a connection that anybody on the way \
             can change; use https:// or a signed archive"
        ));
    }
    let checked = match &args.archive {
        Some(archive) => Some(check_archive(archive, &installation, args)?),
        None => None,
    };
    let pending = Transaction::pending(&installation)?;
    if args.check {
        return check_only(&installation, checked, pending, args);
    }
    installation.check_writable()?;
    let _lock = installation.lock()?;
    // An upgrade that was killed before it began has left these files.
    Transaction::discard(&installation)?;
    // Another upgrade may have ended just now, so the installation is read again.
    let mut installation = Installation::find(Some(&installation.prefix))?;
    if let Some(pending) = Transaction::pending(&installation)? {
        let service = service_of(&installation, args)?;
        if args.rollback {
            say(format_args!("the interrupted upgrade to mote {} is undone", pending.to));
            return undo(&pending, &installation, service.as_ref());
        }
        say(format_args!("the interrupted upgrade to mote {} is completed first", pending.to));
        complete(&pending, &installation, service.as_ref())?;
        installation = Installation::find(Some(&installation.prefix))?;
        let is_all = checked
            .as_ref()
            .is_none_or(|(release, _)| release.version.to_string() == installation.receipt.version);
        if is_all {
            return Ok(());
        }
    }
    match checked {
        Some((release, mut file)) => install(&release, &mut file, &installation, args),
        None if args.rollback => roll_back(&installation, args),
        None => {
            let hint = "name it: mote upgrade mote-VERSION-MACHINE-linux-musl.tar.gz";
            let text = "no archive is named, and no interrupted upgrade is there to be completed";
            Err(Failure::new(USAGE, text, hint))
        }
    }
}

/// Makes all checks that do not need the lock.
fn check_archive(
    archive: &str,
    installation: &Installation,
    args: &Args,
) -> Result<(Release, File), Failure> {
    let mut file = source::open(archive)?;
    let release = Release::read(&mut file)?;
    trust::check(&release, &installation.trusted_key(), args)?;
    machine::check(&release)?;
    Ok((release, file))
}

/// Refuses the version that is already installed. Refuses an older version, unless a downgrade is
/// allowed.
fn check_version(release: &Release, installed: &str, args: &Args) -> Result<(), Failure> {
    let version = &release.version;
    if version.to_string() == installed {
        let text = format!("mote {version} is installed already");
        let hint = "to repair its files, run install.sh of its archive with the same --prefix";
        return Err(Failure::new(UNFIT, text, hint));
    }
    let is_older = installed.parse().is_ok_and(|installed: semver::Version| *version < installed);
    if is_older && !args.allow_downgrade {
        let text = format!("mote {version} is older than the installed {installed}");
        let hint = "to go back to the former version, use --rollback; for another one, add --allow-downgrade";
        return Err(Failure::new(UNFIT, text, hint));
    }
    Ok(())
}

fn check_only(
    installation: &Installation,
    checked: Option<(Release, File)>,
    pending: Option<Transaction>,
    args: &Args,
) -> Result<(), Failure> {
    let installed = &installation.receipt.version;
    if let Some(pending) = pending {
        say(format_args!(
            "an upgrade from mote {} to {} was interrupted",
            pending.from, pending.to
        ));
    }
    let Some((release, mut file)) = checked else {
        println!("mote {installed} is installed in {}", installation.prefix.display());
        return Ok(());
    };
    check_version(&release, installed, args)?;
    installation.check_space(&release)?;
    // The folder is next to the installation, because programs may not be allowed to run in the
    // folder for temporary files.
    let at_home = tempfile::Builder::new().prefix(CHECK).tempdir_in(&installation.state);
    let tree = at_home
        .or_else(|_| tempfile::tempdir())
        .map_err(|error| Failure::file(std::env::temp_dir(), &error))?;
    release.unpack(&mut file, tree.path())?;
    let has_service = installation.receipt.has_service();
    try_programs(tree.path(), &release.version.to_string(), has_service)?;
    println!("mote {} can replace mote {installed}", release.version);
    Ok(())
}

/// The service that is to be restarted. `None` if there is no service.
fn service_of(installation: &Installation, args: &Args) -> Result<Option<Service>, Failure> {
    if !installation.receipt.has_service() || !service::has_systemd() {
        return Ok(None);
    }
    let ready_within = Duration::from_secs(args.ready_within);
    Service::new(&installation.program(), args.socket.as_deref(), ready_within).map(Some)
}

fn is_wanted(service: Option<&Service>) -> Result<bool, Failure> {
    service.map_or(Ok(false), Service::is_wanted)
}

fn install(
    release: &Release,
    file: &mut File,
    installation: &Installation,
    args: &Args,
) -> Result<(), Failure> {
    let from = &installation.receipt.version;
    let to = release.version.to_string();
    check_version(release, from, args)?;
    installation.check_space(release)?;
    let service = service_of(installation, args)?;
    let restarts = is_wanted(service.as_ref())?;
    confirm(&format!("mote {to} will replace mote {from}"), restarts, args)?;
    let key = trust::check(release, &installation.trusted_key(), args)?;
    let new = Transaction::prepare(installation)?;
    let prepared = release.unpack(file, &new.join(TREE)).and_then(|()| {
        try_programs(&new.join(TREE), &to, service.is_some())?;
        Transaction::begin(installation, &to, restarts, key.as_deref())
    });
    let begun = prepared.inspect_err(|_| {
        let _ = Transaction::discard(installation);
    })?;
    complete(&begun, installation, service.as_ref())
}

/// Runs the new programs before anything changes, because the kernel or the C library may refuse
/// them, and the settings may not be valid for them.
fn try_programs(tree: &Path, version: &str, has_settings: bool) -> Result<(), Failure> {
    let program = tree.join("bin/mote");
    let hangs = |verb: &str| {
        let text = format!("the new program does not end within {TRY_PATIENCE:?} as: mote {verb}");
        Failure::new(ARCHIVE, text, "use an archive that the project has released")
    };
    let output = output_within(Command::new(&program).arg("version"), TRY_PATIENCE);
    let output = output.map_err(|error| {
        if error.kind() == ErrorKind::TimedOut {
            return hangs("version");
        }
        if error.kind() == ErrorKind::PermissionDenied {
            let folder = tree.parent().unwrap_or(tree).display();
            let text =
                format!("no program may run in {folder}, where the new one is tried: {error}");
            return Failure::new(
                UNFIT,
                text,
                "set TMPDIR to a folder whose file system has no noexec",
            );
        }
        let text = format!("the new program does not run: {error}");
        Failure::new(ARCHIVE, text, "use the archive for this machine")
    })?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if said != format!("mote {version}") {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let why = if why.is_empty() { why } else { format!(": {why}") };
        let text = format!("the new program says {said:?} instead of its version {version}{why}");
        return Err(Failure::new(ARCHIVE, text, "use an archive that the project has released"));
    }
    if has_settings {
        let mut check = Command::new(&program);
        let output = output_within(check.args(["config", "check"]), TRY_PATIENCE);
        let output = output.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => hangs("config check"),
            _ => Failure::file(&program, &error),
        })?;
        if output.status.code() == Some(INVALID_SETTINGS) {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let text = format!("the settings are not valid for mote {version}: {why}");
            return Err(Failure::new(UNFIT, text, "correct them, and repeat the upgrade"));
        }
    }
    Ok(())
}

/// Runs a program. Blocks until the program ends, or kills it after `patience`
/// (`ErrorKind::TimedOut`).
fn output_within(command: &mut Command, patience: Duration) -> std::io::Result<Output> {
    // The output goes to files, because a pipe could be full before the program ends.
    let out = tempfile::tempfile()?;
    let err = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
    let mut child = command.spawn()?;
    let until = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > until {
            let _ = child.kill();
            child.wait()?;
            return Err(ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let text = |mut file: File| {
        let mut text = Vec::new();
        file.rewind()
            .and_then(|()| file.take(OUTPUT_BYTES_MAX).read_to_end(&mut text))
            .map(|_| text)
    };
    Ok(Output { status, stdout: text(out)?, stderr: text(err)? })
}

fn roll_back(installation: &Installation, args: &Args) -> Result<(), Failure> {
    let service = service_of(installation, args)?;
    let restarts = is_wanted(service.as_ref())?;
    let from = &installation.receipt.version;
    let to = Transaction::prepare_back(installation)?;
    if let Some(service) = &service {
        let changed = data::changed_since(&service.data, Transaction::kept_at(installation)?)?;
        if !changed.is_empty() {
            Transaction::discard(installation)?;
            let files = data::names(&changed);
            let text = format!(
                "mote {from} has changed the tables of {files}, which mote {to} cannot read"
            );
            let hint = "docs/guides/upgrades.md says how to go back without the work since then";
            return Err(Failure::new(UNFIT, text, hint));
        }
    }
    confirm(&format!("the former mote {to} will replace mote {from}"), restarts, args)?;
    let begun = Transaction::begin(installation, &to, restarts, None)?;
    complete(&begun, installation, service.as_ref())
}

fn confirm(what: &str, restarts: bool, args: &Args) -> Result<(), Failure> {
    let restart = if restarts { ", and the service will restart" } else { "" };
    say(format_args!("{what}{restart}"));
    if restarts && service::active_sockets().len() < service::SOCKETS.len() {
        say(
            "the node refuses connections while it restarts, because not all socket units are active; \
             to lose no request, enable them first: docs/guides/upgrades.md",
        );
    }
    if args.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        let text = "the upgrade must be confirmed, and there is no terminal to ask on";
        return Err(Failure::new(USAGE, text, "add --yes"));
    }
    eprint!("Continue? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        return Ok(());
    }
    Err(Failure::new(
        UNFIT,
        "the upgrade was not confirmed, and nothing was changed",
        "answer y, or add --yes",
    ))
}

/// Completes an upgrade that has begun, or undoes it.
fn complete(
    begun: &Transaction,
    installation: &Installation,
    service: Option<&Service>,
) -> Result<(), Failure> {
    if begun.is_going_back() {
        return undo(begun, installation, service);
    }
    if !begun.is_done() {
        let ready =
            begun.apply(installation).map_err(NotReady::from).and_then(|()| match service {
                Some(service) if begun.restarts => {
                    say(format_args!("mote {} is installed; the service restarts", begun.to));
                    service.restart(&begun.to, &begun.sockets)
                }
                _ => Ok(()),
            });
        if let Err(why) = ready {
            let changed = data_changed(begun, service)?;
            if why.has_served && !changed.is_empty() {
                if let Some(service) = service {
                    service.set_limits()?;
                }
                return Err(stay(begun, installation, &why, &changed)?);
            }
            let why = why.failure;
            say(why.text());
            say(format_args!("mote {} comes back", begun.from));
            undo(begun, installation, service)?;
            let text = format!("mote {} is installed again, because {}", begun.from, why.text());
            let hint = match service {
                Some(_) => "read the log of the new version with: journalctl -u mote -n 100",
                None => "use another release, and report this machine and the text above",
            };
            return Err(Failure::new(WENT_BACK, text, hint));
        }
        begun.set_done(installation)?;
    }
    if let Some(service) = service {
        service.set_limits()?;
    }
    begun.finish(installation)?;
    println!("mote {} has replaced mote {}", begun.to, begun.from);
    match (service, begun.restarts) {
        (Some(_), true) => say("the new version answers"),
        (Some(_), false) => say("the service was stopped, and was not started"),
        (None, _) => {
            say("if a node runs, it is still the former version: stop it and start it again")
        }
    }
    say("the former version is kept; go back with: mote upgrade --rollback");
    Ok(())
}

/// The files whose tables the new version has changed.
fn data_changed(begun: &Transaction, service: Option<&Service>) -> Result<Vec<Changed>, Failure> {
    match service {
        Some(service) if begun.restarts => data::changed_since(&service.data, begun.began()?),
        _ => Ok(Vec::new()),
    }
}

/// Keeps a version that has served and has changed the data. The former version could not read the
/// data, and going back would lose the work done since then.
fn stay(
    begun: &Transaction,
    installation: &Installation,
    why: &NotReady,
    changed: &[Changed],
) -> Result<Failure, Failure> {
    begun.set_done(installation)?;
    begun.finish(installation)?;
    let text = format!(
        "mote {} stays, because it has changed {} and may have accepted work; but {}",
        begun.to,
        data::names(changed),
        why.failure.text()
    );
    Ok(Failure::new(UNFIT, text, "read its log with: journalctl -u mote -n 100"))
}

/// Restores the replaced version, and restarts the service unless that version is still running.
fn undo(
    begun: &Transaction,
    installation: &Installation,
    service: Option<&Service>,
) -> Result<(), Failure> {
    begun.go_back(installation)?;
    if let Some(service) = service {
        service.reload()?;
        if begun.restarts && service.version().as_deref() != Some(&begun.from) {
            let changed = data_changed(begun, Some(service))?;
            if !changed.is_empty() {
                service.stop()?;
                say(format_args!("{} comes back as it was before", data::names(&changed)));
                data::bring_back(&changed)?;
            }
            service.open_sockets(&begun.sockets)?;
            let restarted = service.restart(&begun.from, &begun.sockets);
            restarted.map_err(|not_ready| not_ready.failure)?;
        }
        service.set_limits()?;
    }
    begun.end(installation)?;
    println!("mote {} is installed", begun.from);
    Ok(())
}
