//! `mote files`: reads and changes the files in the data folders of functions.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use mote_api::client::Client;
use mote_api::files::{DataFolders, FileListing};

use super::args::FilesVerb;
use super::failure::Failure;
use super::output::{Output, harmless, table};

pub(super) async fn run(client: &Client, verb: &FilesVerb, output: &Output) -> Result<(), Failure> {
    match verb {
        FilesVerb::List { function: None, .. } => folders(&client.data_folders().await?, output),
        FilesVerb::List { function: Some(function), path } => {
            list(&client.files(function, path).await?, output)
        }
        FilesVerb::Get { function, path, to } => {
            get(client, function, path, to.as_deref(), output).await
        }
        FilesVerb::Put { function, path, from } => {
            let failed =
                |error| Failure::of_file("M0102", &harmless(&from.to_string_lossy()), &error);
            let file = File::open(from).map_err(failed)?;
            if !file.metadata().map_err(failed)?.is_file() {
                let shown = harmless(&from.to_string_lossy());
                return Err(Failure::new("M0102", format!("{shown}: not a file")));
            }
            let written = client.file_put(function, path, file).await?;
            output.result(&written, &[&written.bytes.to_string()], || {
                format!("{} is written: {} bytes\n", harmless(path), written.bytes)
            })
        }
        FilesVerb::Remove { function, path, recursive } => {
            client.file_remove(function, path, *recursive).await?;
            output.say(&format!("{path} is removed"));
            Ok(())
        }
    }
}

fn folders(all: &DataFolders, output: &Output) -> Result<(), Failure> {
    if all.folders.is_empty() {
        output.say("no function has a data folder");
    }
    let names: Vec<&str> = all.folders.iter().map(|one| one.function.as_str()).collect();
    output.results(all, &all.folders, &names, || {
        if all.folders.is_empty() {
            return String::new();
        }
        let row =
            |one: &mote_api::files::DataFolder| vec![one.function.clone(), one.bytes.to_string()];
        let rows: Vec<_> = all.folders.iter().map(row).collect();
        table(&["FUNCTION", "BYTES"], &rows)
    })
}

fn list(found: &FileListing, output: &Output) -> Result<(), Failure> {
    if found.entries.is_empty() {
        output.say("no files");
    }
    let names: Vec<&str> = found.entries.iter().map(|entry| entry.name.as_str()).collect();
    output.results(found, &found.entries, &names, || {
        if found.entries.is_empty() {
            return String::new();
        }
        // The function chooses the names, which must not control the terminal.
        let row = |entry: &mote_api::files::FileEntry| {
            vec![harmless(&entry.name), entry.kind.as_str().to_owned(), entry.bytes.to_string()]
        };
        let rows: Vec<_> = found.entries.iter().map(row).collect();
        table(&["NAME", "KIND", "BYTES"], &rows)
    })?;
    if found.has_more {
        output.say("there are more names than the node lists");
    }
    Ok(())
}

async fn get(
    client: &Client,
    function: &str,
    path: &str,
    to: Option<&Path>,
    output: &Output,
) -> Result<(), Failure> {
    let mut content = client.file_get(function, path).await?;
    let Some(to) = to else {
        while let Some(piece) = content.next().await? {
            output.print(&piece)?;
        }
        return Ok(());
    };
    let failed = |error| Failure::of_file("M0102", &harmless(&to.to_string_lossy()), &error);
    let mut file = File::create(to).map_err(failed)?;
    let mut bytes = 0;
    while let Some(piece) = content.next().await? {
        file.write_all(&piece).map_err(failed)?;
        bytes += piece.len();
    }
    output.say(&format!("{} is written: {bytes} bytes", to.display()));
    Ok(())
}
