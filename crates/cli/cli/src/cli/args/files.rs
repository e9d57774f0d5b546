//! Arguments of `mote files`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Files {
    #[command(subcommand)]
    pub(in crate::cli) verb: FilesVerb,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum FilesVerb {
    /// List a folder of a function, or all functions that have a data folder
    #[command(visible_alias = "ls")]
    List {
        /// The function [default: list the functions]
        function: Option<String>,
        /// The folder, e.g. maps/2026 for /data/maps/2026 [default: /data itself]
        #[arg(default_value = "", hide_default_value = true)]
        path: String,
    },
    /// Copy a file of a function to a file here, or print it
    Get {
        /// The function
        function: String,
        /// The file, e.g. maps/a.png for /data/maps/a.png
        path: String,
        /// Write to this file [default: standard output]
        #[arg(value_name = "FILE")]
        to: Option<PathBuf>,
    },
    /// Copy a file from here into the folder of a function
    Put {
        /// The function
        function: String,
        /// The file to write, e.g. maps/a.png for /data/maps/a.png
        path: String,
        /// The file to copy
        #[arg(value_name = "FILE")]
        from: PathBuf,
    },
    /// Remove a file of a function
    #[command(visible_alias = "rm")]
    Remove {
        /// The function
        function: String,
        /// The file or folder
        path: String,
        /// Remove a folder with everything in it
        #[arg(short, long)]
        recursive: bool,
    },
}
