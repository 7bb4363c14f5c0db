//! The throwaway cluster of the demo and the shell.

use anyhow::Result;
use idem_cluster::{Cluster, Install};

/// Starts a cluster with these settings, and with the extension in `database`.
pub fn start(
    install: &Install,
    name: &str,
    database: &str,
    settings: &[(&str, &str)],
) -> Result<Cluster> {
    let mut builder = Cluster::builder(install).name(name);
    for (setting, value) in settings {
        builder = builder.setting(setting, value);
    }
    let cluster = builder.start()?;
    if database != "postgres" {
        cluster.run("createdb", [database], &[])?;
    }
    cluster.psql(database, "CREATE EXTENSION idem")?;
    Ok(cluster)
}
