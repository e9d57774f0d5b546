//! Compares the node's rules with rules from publications and with the oracle.
//!
//! `cargo run -p mote-lab --release --example study FOLDER SEED[,SEED…] [FAMILY…]`
//!
//! Writes `scaling.json`, `scaling.md` and `scaling.svg` into the folder. Without a seed, it draws the
//! `scaling.json` that is already there again.

use std::error::Error;
use std::path::PathBuf;

use mote_lab::families::FAMILIES;
use mote_lab::published::PUBLISHED;
use mote_lab::study::{Study, WAIT_PRICE, markdown, scenario, study, svg};

const START_MS: f64 = 50.0;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or("name a folder for the results")?);
    let Some(seeds) = args.next() else {
        let text = std::fs::read_to_string(folder.join("scaling.json"))?;
        let mut whole: serde_json::Value = serde_json::from_str(&text)?;
        let studies: Vec<Study> = serde_json::from_value(whole["studies"].take())?;
        std::fs::write(folder.join("scaling.md"), markdown(&studies))?;
        std::fs::write(folder.join("scaling.svg"), svg(&studies)?)?;
        return Ok(());
    };
    let seeds: Vec<u64> = seeds.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let mut names: Vec<String> = args.collect();
    if names.is_empty() {
        names = FAMILIES.iter().chain(&PUBLISHED).map(|name| (*name).to_owned()).collect();
    }
    let mut studies: Vec<Study> = Vec::new();
    for name in &names {
        scenario(name, Default::default(), 1, START_MS).ok_or(format!("no family named {name}"))?;
        let made = study(&seeds, |policy, seed| {
            scenario(name, policy, seed, START_MS).expect("the name was checked")
        });
        print!("{}", markdown(std::slice::from_ref(&made)));
        studies.push(made);
    }
    let whole = serde_json::json!({
        "start_ms": START_MS,
        "wait_price": WAIT_PRICE,
        "studies": studies,
    });
    std::fs::write(folder.join("scaling.json"), serde_json::to_string_pretty(&whole)?)?;
    std::fs::write(folder.join("scaling.md"), markdown(&studies))?;
    std::fs::write(folder.join("scaling.svg"), svg(&studies)?)?;
    Ok(())
}
