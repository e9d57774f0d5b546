//! `mote explain CODE`, offline.

use mote_api::error::{CATALOGUE, explain};

use super::failure::Failure;
use super::output::Output;

pub(super) fn run(code: &str, output: &Output) -> Result<(), Failure> {
    let Some(row) = explain(code) else {
        let shown: String = code.chars().take(64).flat_map(char::escape_debug).collect();
        let near = mote_spec::nearest(&code.to_uppercase(), CATALOGUE.iter().map(|row| row.code));
        let failure = Failure::new("M0101", format!("no error code {shown}"));
        return Err(match near {
            Some(near) => failure.with_hint(format!("did you mean {near}?")),
            None => failure.with_hint("codes look like M0302"),
        });
    };
    let value = serde_json::json!({
        "code": row.code,
        "title": row.title,
        "exit": row.exit,
        "text": row.text(),
    });
    output.result(&value, &[row.code], || {
        let mut text = format!("{}: {}\n\n", row.code, row.title);
        let mut column = 0;
        for word in row.text().split(' ') {
            if column > 0 && column + 1 + word.chars().count() > 80 {
                text.push('\n');
                column = 0;
            } else if column > 0 {
                text.push(' ');
                column += 1;
            }
            text.push_str(word);
            column += word.chars().count();
        }
        text.push('\n');
        text
    })
}
