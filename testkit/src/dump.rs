//! Dumps and restores with the programs of PostgreSQL.

use std::path::PathBuf;

use anyhow::{Context, Result};
use idem_cluster::Cluster;

use crate::Session;

/// A dump of a database in the custom format.
pub struct Dump {
    file: PathBuf,
}

impl Dump {
    /// Dumps a database.
    pub fn of(cluster: &Cluster, database: &str) -> Result<Self> {
        let file = cluster
            .data_dir()
            .with_file_name(format!("{database}.dump"));
        let path = path(&file)?;
        cluster.run(
            "pg_dump",
            ["--format=custom", "--file", path, database],
            &[],
        )?;
        Ok(Self { file })
    }

    /// Returns the file, for callers that run `pg_restore` themselves.
    #[must_use]
    pub fn file(&self) -> &PathBuf {
        &self.file
    }

    /// Returns the entries of the dump, one a line.
    pub fn entries(&self, cluster: &Cluster) -> Result<Vec<String>> {
        let list = cluster.run("pg_restore", ["--list", path(&self.file)?], &[])?;
        let entries = list.lines().filter(|line| !line.starts_with(';'));
        Ok(entries.map(str::to_owned).collect())
    }

    /// Loads the dump into a database with `pg_restore`, with these options.
    pub fn load(&self, cluster: &Cluster, database: &str, options: &[&str]) -> Result<()> {
        let fixed = ["--exit-on-error", "--dbname", database, path(&self.file)?];
        let arguments = options.iter().chain(&fixed);
        cluster.run("pg_restore", arguments, &[]).map(drop)
    }

    /// Loads these entries into a database, in their order.
    pub fn load_entries(
        &self,
        cluster: &Cluster,
        database: &str,
        entries: &[String],
    ) -> Result<()> {
        let list = self.file.with_extension("list");
        std::fs::write(&list, entries.join("\n"))?;
        self.load(cluster, database, &["--use-list", path(&list)?])
    }

    /// Restores the dump into a new database and finishes the restore. Returns a session in the new
    /// database.
    pub async fn restore(&self, cluster: &Cluster, database: &str) -> Result<Session> {
        let session = Session::in_empty_database(cluster, database).await?;
        self.load(cluster, database, &[])?;
        session.run("SELECT idem_finish_restore()").await?;
        Ok(session)
    }
}

fn path(file: &std::path::Path) -> Result<&str> {
    file.to_str().context("the path is not UTF-8")
}
