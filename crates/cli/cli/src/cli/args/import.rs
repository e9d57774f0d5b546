//! The flags of `mote import`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

#[derive(Debug, ClapArgs)]
pub(in crate::cli) struct Import {
    /// Folder or manifest: stack.yml, function.yaml, manifest.yaml, Kubernetes objects
    ///
    /// With --from-cluster: the folder to write to [default: the current one].
    #[arg(value_name = "PATH", required_unless_present = "from_cluster")]
    pub(in crate::cli) path: Option<PathBuf>,
    /// Read the functions of Knative, OpenFaaS, Kubeless, Nuclio and Fission from a cluster, with kubectl
    #[arg(long)]
    pub(in crate::cli) from_cluster: bool,
    /// Context of kubectl [default: the current one]
    #[arg(long, value_name = "NAME", requires = "from_cluster")]
    pub(in crate::cli) context: Option<String>,
    /// Namespace to read [default: that of the context]
    #[arg(long, value_name = "NAME", requires = "from_cluster")]
    pub(in crate::cli) namespace: Option<String>,
    /// Folder with the code of a function whose object is only an image: NAME=FOLDER
    #[arg(long, value_name = "NAME=FOLDER")]
    pub(in crate::cli) source: Vec<String>,
}
