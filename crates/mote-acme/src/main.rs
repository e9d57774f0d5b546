//! Gets certificates for a node from an authority, over ACME (RFC 8555): a program of its own, so that
//! a node without it carries none of its code.
//!
//! The node starts it at its own start, and whenever it asked for that. The program looks at the
//! certificate in its folder ([`folder`]) and decides whether a new one is due ([`due`]). If it is,
//! the program orders one ([`order`]) from the authority ([`authority`]): it puts the answers to the
//! authority's challenges into the folder, from where the node gives them to the authority, and puts
//! the certificate there. It writes to its standard output after how many seconds the node should
//! start it again, and ends. The protocol is that of the library `instant-acme`. It must not know
//! listeners, functions or the node's settings.

mod arguments;
mod authority;
mod confine;
mod due;
mod folder;
mod order;

use std::io;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mote_companion::confinement;
use tracing::level_filters::LevelFilter;

use arguments::Arguments;
use authority::Authority;
use due::LOOK_MAX_S;
use folder::{Folder, Record};
use instant_acme::CertificateIdentifier;
use order::Failure;

/// How long one run may take. The node waits a little longer.
const RUN_MAX: Duration = Duration::from_secs(300);
/// Orders that fail in an hour, at most: an authority refuses a name for an hour after five
/// (Let's Encrypt, "Rate Limits").
const FAILURES_PER_HOUR: usize = 4;
/// The first pause after the authority could not be reached, and the longest one.
const UNREACHABLE_PAUSES_S: (u64, u64) = (60, 3_600);
/// The pause after a failed order. Together with others it becomes longer, by [`FAILURES_PER_HOUR`].
const FAILED_PAUSE_S: u64 = 600;

fn main() -> ExitCode {
    let given = match Arguments::parse(std::env::args_os().skip(1)) {
        Ok(given) => given,
        Err(wrong) => {
            eprintln!("{wrong}; mote-acme is started by a node of mote: mote up --acme HOST");
            return ExitCode::from(2);
        }
    };
    confinement::log_to_node("mote_acme", LevelFilter::OFF);
    match run(given) {
        Ok(seconds) => {
            println!("{seconds}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Looks once, and orders a certificate if one is due: the seconds until the next look.
fn run(given: Arguments) -> io::Result<u64> {
    // These files may be only for root, so they are read first.
    let authority = Authority::read(&given)?;
    let folder = Folder::open(&given.folder)?;
    confine::confine(given.uid, &given.folder)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()?;
    let mut record = folder.record();
    let looked = runtime.block_on(async {
        let looking = look(&given, &authority, &folder, &mut record);
        tokio::time::timeout(RUN_MAX, looking).await.unwrap_or_else(|_| {
            let text = format!("the authority took longer than {} s", RUN_MAX.as_secs());
            Err(Failure::Unreachable(text))
        })
    });
    folder.clear_challenges();
    let names = given.names.join(", ");
    let seconds = match looked {
        Ok(seconds) => {
            record.unreachable = 0;
            seconds
        }
        Err(Failure::Unreachable(text)) => {
            let (first, longest) = UNREACHABLE_PAUSES_S;
            let seconds = (first << record.unreachable.min(16)).min(longest);
            record.unreachable += 1;
            tracing::error!("[M1216] no certificate for {names}: {text}; next try in {seconds} s");
            seconds
        }
        Err(refused) => {
            let text = match refused {
                Failure::Refused(text) => text,
                _ => "the authority does not know the account, and made no other one".to_owned(),
            };
            record.unreachable = 0;
            let seconds = FAILED_PAUSE_S.max(record.pause_s(now_s(), FAILURES_PER_HOUR));
            tracing::error!("[M1216] no certificate for {names}: {text}; next try in {seconds} s");
            seconds
        }
    };
    folder.write_record(&record)?;
    Ok(seconds)
}

/// The seconds until the next look, after a certificate was ordered if one was due.
async fn look(
    given: &Arguments,
    authority: &Authority,
    folder: &Folder,
    record: &mut Record,
) -> Result<u64, Failure> {
    let present = folder.present(&given.directory);
    let present = present.filter(|present| present.is_for(&given.names));
    if present.is_none() {
        let pause = record.pause_s(now_s(), FAILURES_PER_HOUR);
        if pause > 0 {
            tracing::warn!("orders have failed {FAILURES_PER_HOUR} times; next try in {pause} s");
            return Ok(pause);
        }
    }
    let mut replaced = None;
    if let Some(present) = &present {
        // If the authority cannot be asked, the certificate itself tells when it is due.
        let window = match authority.account(given, folder, record).await {
            Ok(account) => order::window(&account, present).await,
            Err(_) => None,
        };
        let (until_due, look_again) = due::until(present, window.as_ref(), now_s());
        if until_due > 0 {
            return Ok(until_due.min(look_again));
        }
        let pause = record.pause_s(now_s(), FAILURES_PER_HOUR);
        if pause > 0 {
            return Ok(pause.min(LOOK_MAX_S));
        }
        replaced = window.and_then(|_| CertificateIdentifier::try_from(&present.der).ok());
        replaced = replaced.map(CertificateIdentifier::into_owned);
    }
    let account = authority.account(given, folder, record).await?;
    let issued = match order::order(&account, given, folder, record, replaced, now_s).await {
        Err(Failure::NoAccount) => {
            authority::forget_account(folder, &given.directory);
            let account = authority.account(given, folder, record).await?;
            order::order(&account, given, folder, record, None, now_s).await?
        }
        issued => issued?,
    };
    record.failures.clear();
    folder.put(&given.directory, &issued.chain, &issued.key).map_err(|error| {
        let text =
            format!("the certificate was not written to {}: {error}", given.folder.display());
        Failure::Refused(text)
    })?;
    let Some(present) = folder.present(&given.directory) else {
        let text = "the authority has sent something that is no certificate".to_owned();
        return Err(Failure::Refused(text));
    };
    let (names, time) = (given.names.join(", "), words(present.not_after_s - now_s()));
    tracing::info!("a new certificate for {names} was received; it is valid for {time}");
    let (until_due, look_again) = due::until(&present, None, now_s());
    Ok(until_due.clamp(1, look_again))
}

/// A time in days or hours, or in seconds if it is short.
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
