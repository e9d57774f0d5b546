//! The flags for the cells of a cluster.

use clap::Args as ClapArgs;

#[derive(Debug, Clone, Default, ClapArgs)]
pub(in crate::cli) struct CellFlags {
    /// Address for other nodes of the cluster, which forward invocations to each other [default: off]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) cell: Option<String>,
    /// File with the key that all cells of the cluster share
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) cell_key: Option<String>,
    /// The other cells: ADDR:PORT, several with commas [default: none]
    #[arg(long, value_name = "ADDRS")]
    pub(in crate::cli) cells: Option<String>,
}
