//! `mote scale`.

use mote_api::client::Client;
use mote_api::types::{ScaleRequest, ScaleResult};

use super::args::Scale;
use super::failure::Failure;
use super::output::{Output, harmless};

pub(super) async fn run(client: &Client, args: &Scale, output: &Output) -> Result<(), Failure> {
    let wish =
        ScaleRequest { instances: args.instances, min: args.min, max: args.max, reset: args.reset };
    if wish == ScaleRequest::default() {
        let text = "give a number of instances, --min, --max or --reset";
        return Err(Failure::new("M0101", text).with_hint(format!(
            "for example, mote scale {} 0 stops its idle instances",
            args.name
        )));
    }
    let result = client.scale(&args.name, &wish).await?;
    output.result(&result, &[&result.function], || text(&result))
}

fn text(result: &ScaleResult) -> String {
    let ScaleResult { function, ready, starting, stopped, bounds, note } = result;
    let mut text = format!("{function}: {ready} ready, {starting} starting, {stopped} stopping\n");
    let of = |number: Option<u32>, word: &str| number.map(|number| format!("{word} {number}"));
    let set: Vec<_> =
        [of(bounds.min, "min"), of(bounds.max, "max")].into_iter().flatten().collect();
    if !set.is_empty() {
        text.push_str(&format!("  {} until the next deploy\n", set.join(", ")));
    }
    if let Some(note) = note {
        text.push_str(&format!("  {note}\n"));
    }
    text.lines().map(|line| harmless(line) + "\n").collect()
}
