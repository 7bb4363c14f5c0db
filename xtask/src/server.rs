//! The throwaway cluster of the demo and the shell.

use anyhow::Result;
use idem_cluster::{Cluster, Install};

/// Starts a cluster with the extension in `database`.
pub fn start(install: &Install, name: &str, database: &str) -> Result<Cluster> {
    let cluster = Cluster::builder(install).name(name).start()?;
    if database != "postgres" {
        cluster.run("createdb", [database], &[])?;
    }
    cluster.psql(database, "CREATE EXTENSION idem")?;
    Ok(cluster)
}
