//! The callers of `mote_tests::restarting` as a program, for systems on which only packages are
//! installed. `scripts/test-dist.sh upgrade` runs it there.
//!
//! `mote-callers HTTP COAP` calls the functions `echo` and `slow` of the node at these addresses.
//! Each line on its standard input contains a number. The program answers with a line as soon as
//! that many further requests have been answered. At the end of the input, the program stops the
//! callers and prints the tally of each kind. It fails if a request was lost or an accepted
//! invocation has not run.

use std::io::BufRead as _;
use std::net::SocketAddr;
use std::process::ExitCode;

use mote_tests::restarting::Callers;
use mote_tests::{call_at, wait_for};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let mut address = || -> SocketAddr {
        let word = words.next().expect("usage: mote-callers HTTP COAP");
        word.parse().unwrap_or_else(|error| panic!("{word}: {error}"))
    };
    let http = address();
    let coap = address();
    let callers = Callers::of_every_kind(http, coap);
    for line in std::io::stdin().lock().lines() {
        let more: usize = line.expect("a line").trim().parse().expect("a number");
        let wanted = callers.answered() + more;
        wait_for("requests", || (callers.answered() >= wanted).then_some(()));
        println!("{}", callers.answered());
    }
    let (tallies, accepted) = callers.stop();
    let mut answered = 0;
    let mut repeated = 0;
    let mut lost = 0;
    for (kind, tally) in &tallies {
        tally.lost.iter().take(5).for_each(|why| println!("  {kind}: lost: {why}"));
        answered += tally.answered;
        repeated += tally.repeated;
        lost += tally.lost.len();
    }
    let mut failed = 0;
    for (location, body) in &accepted {
        let ended = wait_for("the invocation to end", || {
            let shown = call_at(http, "GET", location, &[], b"").json();
            (!matches!(shown["state"].as_str(), Some("waiting" | "running"))).then_some(shown)
        });
        let has_run = ended["state"] == "succeeded" && ended["body"] == body.as_str();
        failed += usize::from(!has_run);
        if !has_run {
            println!("  {location}: {ended}");
        }
    }
    println!(
        "{answered} answered, {repeated} sent again, {lost} lost; {} accepted, {failed} not run",
        accepted.len()
    );
    let is_measured = tallies.values().all(|tally| tally.answered > 0) && !accepted.is_empty();
    ExitCode::from(u8::from(lost > 0 || failed > 0 || !is_measured))
}
