//! A database for one test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use idem_cluster::Cluster;

use super::session::Session;
use super::shared::{keep_the_log, shared_cluster};
use super::until::until;

/// A database of one test in a cluster. The database is dropped at the end of the test. When the
/// test panics, the database and the server's log are kept.
pub struct Database {
    cluster: Arc<Cluster>,
    name: String,
}

impl Database {
    /// Creates a database with the extension in the shared cluster.
    ///
    /// # Errors
    /// Fails when the cluster does not start or the extension cannot be created.
    pub async fn with_idem(name: &str) -> Result<Self> {
        let db = Self::empty(name).await?;
        db.connect().await?.run("CREATE EXTENSION idem").await?;
        Ok(db)
    }

    /// Creates an empty database in the shared cluster.
    ///
    /// # Errors
    /// Fails when the cluster does not start.
    pub async fn empty(name: &str) -> Result<Self> {
        let cluster = tokio::task::spawn_blocking(shared_cluster).await??;
        Self::empty_in(cluster, name).await
    }

    /// Creates a database with the extension in this cluster.
    ///
    /// # Errors
    /// Fails when the server returns an error.
    pub async fn with_idem_in(cluster: Arc<Cluster>, name: &str) -> Result<Self> {
        let db = Self::empty_in(cluster, name).await?;
        db.connect().await?.run("CREATE EXTENSION idem").await?;
        Ok(db)
    }

    /// Creates an empty database in this cluster. The name of the database begins with `name`.
    ///
    /// # Errors
    /// Fails when the server returns an error.
    pub async fn empty_in(cluster: Arc<Cluster>, name: &str) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let name = format!("{name}_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        Session::connect(&cluster, "postgres", "postgres")
            .await?
            // CREATE DATABASE fails while a session is connected to the template. No session can
            // connect to template0.
            .run(&format!("CREATE DATABASE {name} TEMPLATE template0"))
            .await?;
        Ok(Self { cluster, name })
    }

    /// Returns the name of the database: letters, digits and underscores.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the cluster of the database.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// Opens a session of the superuser.
    ///
    /// # Errors
    /// Fails when the server rejects the connection.
    pub async fn connect(&self) -> Result<Session> {
        self.connect_as("postgres").await
    }

    /// Opens a session of the superuser with default settings.
    ///
    /// # Errors
    /// Fails when the server rejects the connection.
    pub async fn connect_on_defaults(&self) -> Result<Session> {
        Session::connect_with(&self.cluster, &self.name, "postgres", "").await
    }

    /// Opens a session of a role that can log in.
    ///
    /// # Errors
    /// Fails when the server rejects the connection.
    pub async fn connect_as(&self, role: &str) -> Result<Session> {
        Session::connect(&self.cluster, &self.name, role).await
    }

    /// Creates a role that can log in and has no other privilege. A session of the superuser
    /// creates it. The name of the role begins with the name of this database, because roles belong
    /// to the whole cluster.
    ///
    /// # Errors
    /// Fails when the server returns an error.
    pub async fn role(&self, name: &str) -> Result<String> {
        let role = format!("{}_{name}", self.name);
        self.connect()
            .await?
            .run(&format!("CREATE ROLE {role} LOGIN"))
            .await?;
        Ok(role)
    }

    /// Waits until the backend waits for a lock that another session holds. A pause would not prove
    /// that the backend is waiting.
    ///
    /// # Errors
    /// Fails when the backend does not wait before the deadline.
    pub async fn until_blocked(&self, pid: i32) -> Result<()> {
        let observer = self.connect().await?;
        let blocked = until(
            "the session waits for a lock of another session",
            async || {
                let row = observer
                    .query_one(
                        "SELECT pg_catalog.cardinality(pg_catalog.pg_blocking_pids($1)) > 0",
                        &[&pid],
                    )
                    .await?;
                Ok(row.get(0))
            },
        );
        blocked.await.with_context(|| format!("backend {pid}"))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if std::thread::panicking() {
            keep_the_log(&self.cluster);
            return;
        }
        // If the test has stopped the cluster, the databases are removed together with its
        // directory.
        if self.cluster.pid().is_some() {
            // The roles of the database are dropped after it. Their names begin with its name: see
            // `Database::role`.
            let name = &self.name;
            let sql = format!(
                "DROP DATABASE IF EXISTS {name} WITH (FORCE);
                 SELECT format('DROP ROLE %I', rolname)
                   FROM pg_roles WHERE starts_with(rolname, '{name}_') \\gexec"
            );
            let dropped = self.cluster.psql("postgres", &sql);
            if let Err(error) = dropped {
                eprintln!("cannot drop database {}: {error:#}", self.name);
            }
        }
    }
}
