//! Gets certificates for a node from an authority, over ACME (RFC 8555). This is a separate process
//! next to the node, so that it can run with few rights.
//!
//! The node runs the program when the node itself starts, and again after the delay that the last
//! run printed. The program looks at the certificate in its folder ([`folder`]) and decides whether
//! a new one is due ([`due`]). If it is, the program orders one ([`order`]) from the authority
//! ([`authority`]): it puts the answers to the authority's challenges into the folder, and the node
//! passes them on to the authority. It also puts the certificate into the folder. The program
//! prints the number of seconds after which the node should start it again, and exits. The library
//! `instant-acme` implements the protocol. This crate must not know listeners, functions or the
//! node's settings.

mod arguments;
mod authority;
mod due;
mod folder;
mod order;

use std::io;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mote_process::companion::confinement::{self, Files, Network, Rights};
use tracing::level_filters::LevelFilter;

use arguments::Arguments;
use authority::Authority;
use due::LOOK_MAX_S;
use folder::{Folder, Record};
use instant_acme::CertificateIdentifier;
use order::Failure;

/// How long one run may take. The node waits a little longer than this.
const RUN_MAX: Duration = Duration::from_secs(300);
/// The most orders that may fail in an hour. After five failures, an authority refuses a name for
/// an hour (Let's Encrypt, "Rate Limits").
const FAILURES_PER_HOUR: usize = 4;
/// The pause after the authority could not be reached: the first one, and the longest one.
const UNREACHABLE_PAUSES_S: (u64, u64) = (60, 3_600);
/// The pause after an order whose certificate is already due for renewal.
const DUE_AT_ONCE_PAUSE_S: u64 = 3_600;
/// The most characters of a reason in the log.
const TEXT_CHARS_MAX: usize = 600;
/// The pause after a failed order. After several failures, [`FAILURES_PER_HOUR`] makes the pause
/// longer.
const FAILED_PAUSE_S: u64 = 600;

/// Runs this process as the companion, with the command line that the node gave it.
pub fn main() -> ExitCode {
    let given = match Arguments::parse(std::env::args_os().skip(1)) {
        Ok(given) => given,
        Err(wrong) => {
            eprintln!("{wrong}; do not start mote-acme yourself: mote up --acme NAME starts it");
            return ExitCode::from(2);
        }
    };
    confinement::log_to_node("mote_acme", LevelFilter::OFF);
    match run(&given).map_err(|error| (given, error)) {
        Ok(seconds) => {
            println!("{seconds}");
            ExitCode::SUCCESS
        }
        Err((given, error)) => {
            tell(&given, &error.to_string(), FAILED_PAUSE_S);
            println!("{FAILED_PAUSE_S}");
            ExitCode::SUCCESS
        }
    }
}

/// Checks the certificate once, and orders a new one if it is due. Returns the seconds until the
/// next check.
fn run(given: &Arguments) -> io::Result<u64> {
    // Only root may be able to read these files, so they are read before the process gives up its
    // rights.
    let authority = Authority::read(given)?;
    let folder = Folder::open(&given.folder)?;
    confinement::confine(Rights {
        uid: given.uid,
        memory_bytes: 256 << 20,
        open_files: 64,
        files: Files::FolderAndSystem(&given.folder),
        network: Network::Connect,
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()?;
    let mut record = folder.record();
    let looked = runtime.block_on(async {
        let looking = look(given, &authority, &folder, &mut record);
        tokio::time::timeout(RUN_MAX, looking).await.unwrap_or_else(|_| {
            let text = format!("it did not finish within {} s", RUN_MAX.as_secs());
            Err(Failure::Unreachable(text))
        })
    });
    folder.clear_challenges();
    let (seconds, text) = match looked {
        Ok(seconds) => {
            record.unreachable = 0;
            folder.write_record(&record)?;
            return Ok(seconds);
        }
        Err(Failure::Unreachable(text)) => {
            let (first, longest) = UNREACHABLE_PAUSES_S;
            let seconds = (first << record.unreachable.min(16)).min(longest);
            record.unreachable += 1;
            (seconds, format!("the authority at {} cannot be used: {text}", given.directory))
        }
        Err(Failure::Limited(text)) => (LOOK_MAX_S, text),
        Err(Failure::Refused(text) | Failure::Unproven(text)) => {
            (FAILED_PAUSE_S.max(record.pause_s(now_s(), FAILURES_PER_HOUR)), text)
        }
        Err(Failure::NoAccount) => (
            FAILED_PAUSE_S,
            "the authority does not recognise the account that it created a moment ago".to_owned(),
        ),
    };
    tell(given, &text, seconds);
    folder.write_record(&record)?;
    Ok(seconds)
}

/// Logs why there is no certificate. Some of the text comes from the authority, so it is reduced to
/// one line of limited length.
fn tell(given: &Arguments, text: &str, next_s: u64) {
    let is_plain = |c: char| !c.is_control() && !('\u{2028}'..='\u{202e}').contains(&c);
    let plain: String =
        text.chars().map(|c| if is_plain(c) { c } else { ' ' }).take(TEXT_CHARS_MAX).collect();
    let names: String = given.names.join(", ").chars().take(TEXT_CHARS_MAX / 4).collect();
    tracing::error!(
        "[M1216] could not get a certificate for {names}: {plain}; the next try is in {next_s} s"
    );
}

/// Orders a certificate if one is due. Returns the seconds until the next check.
async fn look(
    given: &Arguments,
    authority: &Authority,
    folder: &Folder,
    record: &mut Record,
) -> Result<u64, Failure> {
    let present = folder.present(&given.directory);
    let present = present.filter(|present| present.is_for(&given.names));
    let pause = record.pause_s(now_s(), FAILURES_PER_HOUR);
    if present.is_none() && pause > 0 {
        let text = format!("{FAILURES_PER_HOUR} orders failed within an hour, so the node waits");
        return Err(Failure::Refused(text));
    }
    let mut known = None;
    let mut replaced = None;
    if let Some(present) = &present {
        // If the authority does not answer, the due time is computed from the certificate alone.
        known = authority.account(given, folder, record).await.ok();
        let window = match &known {
            Some(account) => order::window(account, present).await,
            None => None,
        };
        let (until_due, look_again) = due::until(present, window.as_ref(), now_s());
        if until_due > 0 {
            return Ok(until_due.min(look_again));
        }
        if pause > 0 {
            return Ok(pause);
        }
        replaced = window.and_then(|_| CertificateIdentifier::try_from(&present.der).ok());
        replaced = replaced.map(CertificateIdentifier::into_owned);
    }
    let cannot_write = |error: io::Error| {
        let folder = given.folder.display();
        let uid = given.uid;
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                format!("; its files must belong to user {uid}: chown -R {uid}:{uid} {folder}")
            }
            _ => String::new(),
        };
        Failure::Refused(format!("cannot write the certificate to {folder}: {error}{hint}"))
    };
    folder.probe().map_err(cannot_write)?;
    let account = match known {
        Some(account) => account,
        None => authority.account(given, folder, record).await?,
    };
    let issued = match order::order(&account, given, folder, record, replaced, now_s).await {
        Err(Failure::NoAccount) => {
            authority::forget_account(folder, &given.directory);
            let account = authority.account(given, folder, record).await?;
            order::order(&account, given, folder, record, None, now_s).await?
        }
        issued => issued?,
    };
    let certificate = issued.certificate;
    let left_s = certificate.not_after_s - now_s();
    if left_s <= 0 {
        record.failed(now_s());
        let text = "the certificate from the authority has already expired; check the clock of the machine";
        return Err(Failure::Refused(text.to_owned()));
    }
    folder.put(&given.directory, &issued.chain, &issued.key).map_err(|error| {
        record.failed(now_s());
        cannot_write(error)
    })?;
    record.failures.clear();
    let names = given.names.join(", ");
    let time = words(left_s);
    tracing::info!("received a new certificate for {names}; it expires in {time}");
    match due::until(&certificate, None, now_s()) {
        (0, _) => {
            tracing::warn!(
                "the new certificate for {names} is already due for renewal; check the clock"
            );
            Ok(DUE_AT_ONCE_PAUSE_S)
        }
        (until_due, look_again) => Ok(until_due.min(look_again)),
    }
}

/// A time in words: in days or hours, or in seconds if it is short.
fn words(seconds: i64) -> String {
    match seconds {
        172_800.. => format!("{} days", seconds / 86_400),
        7_200.. => format!("{} hours", seconds / 3_600),
        _ => format!("{seconds} s"),
    }
}

/// Seconds since the beginning of 1970.
fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
