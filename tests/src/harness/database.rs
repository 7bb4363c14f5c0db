//! A database for one test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use idem_cluster::Cluster;

use super::session::Session;
use super::shared::{keep_the_log, shared_cluster};
use super::until::until;

/// A database of its own in a cluster, dropped at the end; kept, with the server's log, when the
/// test panics.
pub struct Database {
    cluster: Arc<Cluster>,
    name: String,
}

impl Database {
    /// A new database of the shared cluster, with the extension.
    ///
    /// # Errors
    /// When the cluster does not start or the extension cannot be created.
    pub async fn with_idem(name: &str) -> Result<Self> {
        let db = Self::empty(name).await?;
        db.connect().await?.run("CREATE EXTENSION idem").await?;
        Ok(db)
    }

    /// A new database of the shared cluster, with nothing in it.
    ///
    /// # Errors
    /// When the cluster does not start.
    pub async fn empty(name: &str) -> Result<Self> {
        let cluster = tokio::task::spawn_blocking(shared_cluster).await??;
        Self::empty_in(cluster, name).await
    }

    /// A new database of this cluster, with the extension.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn with_idem_in(cluster: Arc<Cluster>, name: &str) -> Result<Self> {
        let db = Self::empty_in(cluster, name).await?;
        db.connect().await?.run("CREATE EXTENSION idem").await?;
        Ok(db)
    }

    /// A new database of this cluster, with nothing in it. `name` is what its name begins with.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn empty_in(cluster: Arc<Cluster>, name: &str) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let name = format!("{name}_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        Session::connect(&cluster, "postgres", "postgres")
            .await?
            // template0: nobody can be connected to it, so that this does not fail now and then.
            .run(&format!("CREATE DATABASE {name} TEMPLATE template0"))
            .await?;
        Ok(Self { cluster, name })
    }

    /// Its name: letters, digits and underscores.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The server that it is in.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// A session of the superuser.
    ///
    /// # Errors
    /// When the server lets nobody in.
    pub async fn connect(&self) -> Result<Session> {
        self.connect_as("postgres").await
    }

    /// A session of the superuser on default settings.
    ///
    /// # Errors
    /// When the server lets nobody in.
    pub async fn connect_on_defaults(&self) -> Result<Session> {
        Session::connect_with(&self.cluster, &self.name, "postgres", "").await
    }

    /// A session of a role that can log in.
    ///
    /// # Errors
    /// When the server does not let it in.
    pub async fn connect_as(&self, role: &str) -> Result<Session> {
        Session::connect(&self.cluster, &self.name, role).await
    }

    /// A new role that can log in and has no other right; a session of the superuser makes it. Its
    /// name begins with that of this database, because roles belong to the whole cluster.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn role(&self, name: &str) -> Result<String> {
        let role = format!("{}_{name}", self.name);
        self.connect()
            .await?
            .run(&format!("CREATE ROLE {role} LOGIN"))
            .await?;
        Ok(role)
    }

    /// Waits until that backend waits for a lock that others hold: the only proof that a session
    /// "is waiting".
    ///
    /// # Errors
    /// When it does not wait before the deadline.
    pub async fn until_blocked(&self, pid: i32) -> Result<()> {
        let observer = self.connect().await?;
        let blocked = until("the session waits for another", async || {
            let row = observer
                .query_one(
                    "SELECT pg_catalog.cardinality(pg_catalog.pg_blocking_pids($1)) > 0",
                    &[&pid],
                )
                .await?;
            Ok(row.get(0))
        });
        blocked.await.with_context(|| format!("backend {pid}"))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if std::thread::panicking() {
            keep_the_log(&self.cluster);
            return;
        }
        // A cluster that a test has stopped takes its databases with it.
        if self.cluster.pid().is_some() {
            // Its roles go with it: see `Database::role`.
            let name = &self.name;
            let sql = format!(
                "DROP DATABASE IF EXISTS {name} WITH (FORCE);
                 SELECT format('DROP ROLE %I', rolname) FROM pg_roles WHERE starts_with(rolname, '{name}_') \\gexec"
            );
            let dropped = self.cluster.psql("postgres", &sql);
            if let Err(error) = dropped {
                eprintln!("database {} stays: {error:#}", self.name);
            }
        }
    }
}
