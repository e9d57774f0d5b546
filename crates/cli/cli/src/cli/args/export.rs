//! The flags of `mote export`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Export {
    #[command(subcommand)]
    pub(in crate::cli) to: ExportTo,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum ExportTo {
    /// Plain Kubernetes objects, and images that need no mote
    Kubernetes(ExportKubernetes),
    /// A container image that needs no mote, as an archive for docker load
    Image(ExportImage),
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct ExportKubernetes {
    /// Folder or file of a function
    #[arg(value_name = "PATH")]
    pub(in crate::cli) path: PathBuf,
    /// Folder to write to, with a folder for each function; it must not exist yet
    #[arg(long, value_name = "DIR", default_value = "kubernetes")]
    pub(in crate::cli) out: PathBuf,
    /// Name of the function
    #[arg(long)]
    pub(in crate::cli) name: Option<String>,
    /// Prefix of image names, e.g. registry.local/shop
    #[arg(long, value_name = "PREFIX")]
    pub(in crate::cli) registry: Option<String>,
    /// Version of the images
    #[arg(long, value_name = "TAG", default_value = "1")]
    pub(in crate::cli) tag: String,
    /// Namespace of the objects [default: that of kubectl]
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) namespace: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct ExportImage {
    /// Folder or file of a function
    #[arg(value_name = "PATH")]
    pub(in crate::cli) path: PathBuf,
    /// Folder to write NAME.tar to
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(in crate::cli) out: PathBuf,
    /// Name of the function
    #[arg(long)]
    pub(in crate::cli) name: Option<String>,
}
