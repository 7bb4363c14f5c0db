//! A database for one test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use deadpool_postgres::{Manager, Pool};
use idem_brokers::PgBouncer;
use idem_cluster::{Cluster, Install};
use tokio_postgres::{Client, NoTls};

use super::proxy::Target;
use super::server::{Server, keep_the_log};
use super::session::Session;
use super::until::until;

/// What a new database contains.
#[derive(Clone, Copy)]
enum Contents {
    Nothing,
    Extension,
}

/// A database of one test in a cluster. The database is dropped at the end of the test. When the
/// test panics, the database and the server's log are kept.
///
/// The functions that return a [`Result`] are for tests that return one. The others panic when they
/// fail.
pub struct Database {
    server: Server,
    name: String,
}

impl Database {
    /// Creates a database with the extension in the shared cluster. It is a copy of a template with
    /// a new installation id. The times in its state are those of the template.
    pub async fn with_idem(name: &str) -> Result<Self> {
        Self::prepare(None, name, Contents::Extension).await
    }

    /// Creates an empty database in the shared cluster.
    pub async fn empty(name: &str) -> Result<Self> {
        Self::prepare(None, name, Contents::Nothing).await
    }

    /// Creates a database with the extension in this cluster.
    pub async fn with_idem_in(cluster: Arc<Cluster>, name: &str) -> Result<Self> {
        Self::prepare(Some(cluster), name, Contents::Extension).await
    }

    /// Creates a database with the extension in a new cluster without a worker, autovacuum and
    /// checkpoints. So only the test writes, and only the test executes the steps of a rotation.
    pub async fn without_worker(name: &str) -> Result<Self> {
        let cluster = Cluster::builder(&Install::from_env()?)
            .name(&name.replace('_', "-"))
            .setting("shared_buffers", "32MB")
            .setting("autovacuum", "off")
            .setting("checkpoint_timeout", "1h")
            .setting("idem.databases", "none")
            .start()?;
        Self::with_idem_in(Arc::new(cluster), name).await
    }

    /// Creates a database with the extension in the shared cluster.
    pub fn create() -> Self {
        let server = Server::shared().unwrap();
        Self::on(server, "test", Contents::Extension).unwrap()
    }

    /// Creates a database with the extension in a new cluster, which no other test uses.
    pub fn create_alone(name: &str) -> Self {
        let server = Server::start(name).unwrap();
        Self::on(server, "test", Contents::Extension).unwrap()
    }

    async fn prepare(
        cluster: Option<Arc<Cluster>>,
        name: &str,
        contents: Contents,
    ) -> Result<Self> {
        let name = name.to_owned();
        let prepare = move || {
            let server = match cluster {
                Some(cluster) => Server::of(cluster),
                None => Server::shared()?,
            };
            Self::on(server, &name, contents)
        };
        tokio::task::spawn_blocking(prepare).await?
    }

    fn on(server: Server, name: &str, contents: Contents) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let name = format!("{name}_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        // CREATE DATABASE fails while a session is connected to the template. No session can
        // connect to template0 or to the template with the extension.
        let (template, fill) = match (contents, server.template) {
            (Contents::Nothing, _) => ("template0", ""),
            (Contents::Extension, None) => ("template0", "CREATE EXTENSION idem"),
            (Contents::Extension, Some(template)) => (template, "SELECT idem_new_installation()"),
        };
        let create =
            format!("CREATE DATABASE {name} TEMPLATE {template};\n\\connect {name}\n{fill}");
        server.cluster.psql("postgres", &create)?;
        Ok(Self { server, name })
    }

    /// Returns the name of the database: letters, digits and underscores.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the cluster of the database.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.server.cluster
    }

    /// Returns the socket of the server, for a proxy.
    #[must_use]
    pub fn socket(&self) -> Target {
        Target::Unix(self.server.cluster.socket_dir().join(".s.PGSQL.5432"))
    }

    /// Returns the URL through which the program under test connects. The URL may lead to
    /// PgBouncer.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(&self.name)
    }

    /// Returns the URL of another database of the server.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        match &self.server.pooler {
            Some(pooler) => pooler.connection_string_to(database),
            None => self.server.cluster.connection_string(database),
        }
    }

    /// Returns a URL that bypasses the pooler, for queries on sessions and locks and for session
    /// state.
    #[must_use]
    pub fn direct_url(&self) -> String {
        self.server.cluster.connection_string(&self.name)
    }

    /// Returns the pooler through which the program under test connects, if there is one.
    #[must_use]
    pub fn pooler(&self) -> Option<&PgBouncer> {
        self.server.pooler.as_deref()
    }

    /// Starts a separate PgBouncer with a pool of `size` connections to this server.
    #[must_use]
    pub fn small_pooler(&self, size: u32) -> PgBouncer {
        PgBouncer::start_with_pool(&self.server.cluster, "postgres", size).unwrap()
    }

    /// Returns a pool of `size` connections, as the program under test uses it.
    #[must_use]
    pub fn pool(&self, size: usize) -> Pool {
        let manager = Manager::new(self.url().parse().unwrap(), NoTls);
        Pool::builder(manager).max_size(size).build().unwrap()
    }

    /// Executes SQL directly at the server. Each statement is its own transaction. Returns the
    /// rows as psql prints them.
    pub fn psql(&self, sql: &str) -> String {
        self.server.cluster.psql(&self.name, sql).unwrap()
    }

    /// Opens a session of the superuser with the settings of the server, which bypasses the
    /// pooler.
    pub async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.direct_url(), NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        client
    }

    /// Opens a session of the superuser.
    pub async fn connect(&self) -> Result<Session> {
        self.connect_as("postgres").await
    }

    /// Opens a session of the superuser with default settings.
    pub async fn connect_on_defaults(&self) -> Result<Session> {
        Session::connect_with(&self.server.cluster, &self.name, "postgres", "").await
    }

    /// Opens a session of a role that can log in.
    pub async fn connect_as(&self, role: &str) -> Result<Session> {
        Session::connect(&self.server.cluster, &self.name, role).await
    }

    /// Creates a role that can log in and has no other privilege. A session of the superuser
    /// creates it. The name of the role begins with the name of this database, because roles belong
    /// to the whole cluster.
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
            keep_the_log(&self.server.cluster);
            return;
        }
        // If the test has stopped the cluster, the databases are removed together with its
        // directory.
        if self.server.cluster.pid().is_some() {
            // The roles of the database are dropped after it. Their names begin with its name: see
            // `Database::role`.
            let name = &self.name;
            let sql = format!(
                "DROP DATABASE IF EXISTS {name} WITH (FORCE);
                 SELECT format('DROP ROLE %I', rolname)
                   FROM pg_roles WHERE starts_with(rolname, '{name}_') \\gexec"
            );
            let dropped = self.server.cluster.psql("postgres", &sql);
            if let Err(error) = dropped {
                eprintln!("cannot drop database {}: {error:#}", self.name);
            }
        }
    }
}
