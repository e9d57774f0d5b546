//! The worker of chains. A node starts it in a sandbox; `mote-chain --check FILE` reads a file and
//! names its first mistake.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => ExitCode::from(mote_chain::worker::serve() as u8),
        ["--check", file] => {
            let read = std::fs::read_to_string(file).map_err(|error| error.to_string());
            let checked = read.and_then(|text| {
                mote_chain::reader::read(&text).map_err(|mistake| mistake.to_string())
            });
            match checked {
                Ok(chain) => {
                    println!("{}: {} tasks", chain.name, chain.tasks.len());
                    ExitCode::SUCCESS
                }
                Err(text) => {
                    eprintln!("{file}, {text}");
                    ExitCode::FAILURE
                }
            }
        }
        _ => {
            eprintln!("usage: mote-chain --check FILE");
            ExitCode::from(64)
        }
    }
}
