//! The server that the tests of one test program share, reached directly or through PgBouncer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use idem_brokers::PgBouncer;
use idem_cluster::{Cluster, Install};

/// If this environment variable is set, the programs under test connect through PgBouncer in
/// transaction mode.
const THROUGH_PGBOUNCER: &str = "IDEM_TEST_PGBOUNCER";

static SHARED: Mutex<Option<Server>> = Mutex::new(None);
static FAILED: AtomicBool = AtomicBool::new(false);

/// A cluster, and the optional pooler in front of it.
#[derive(Clone)]
pub(crate) struct Server {
    // This field is declared before the cluster, so that the pooler is dropped first.
    pub(crate) pooler: Option<Arc<PgBouncer>>,
    pub(crate) cluster: Arc<Cluster>,
    /// The database with the extension that new databases are copies of. A copy takes a fifth of
    /// the time of CREATE EXTENSION.
    pub(crate) template: Option<&'static str>,
}

impl Server {
    pub(crate) fn of(cluster: Arc<Cluster>) -> Self {
        Self {
            pooler: None,
            cluster,
            template: None,
        }
    }

    /// Starts a server with the library preloaded. `cargo xtask build` makes the files that it
    /// needs.
    pub(crate) fn start(name: &str) -> Result<Self> {
        let is_pooled = std::env::var_os(THROUGH_PGBOUNCER).is_some();
        let install = Install::from_env()?;
        let mut cluster = Cluster::builder(&install).name(name);
        if is_pooled {
            // PgBouncer does not cancel the statement of a disconnected client. The guide
            // recommends this setting, with which the server ends the statement.
            cluster = cluster.setting("client_connection_check_interval", "1s");
        }
        let mut server = Self::of(Arc::new(cluster.start()?));
        if is_pooled {
            let pooler = PgBouncer::start(&server.cluster, "postgres")?;
            server.pooler = Some(Arc::new(pooler));
        }
        Ok(server)
    }

    /// Creates the template. Its worker must have ended before it can be copied.
    fn with_template(mut self) -> Result<Self> {
        const CREATE: &str = "CREATE DATABASE template_idem TEMPLATE template0;
            \\connect template_idem
            CREATE EXTENSION idem;
            \\connect postgres
            ALTER DATABASE template_idem ALLOW_CONNECTIONS false;
            SET statement_timeout = '60s';
            DO $$BEGIN
                WHILE EXISTS (SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                               WHERE datname = 'template_idem') LOOP
                    PERFORM pg_stat_clear_snapshot(), pg_sleep(0.01);
                END LOOP;
            END$$";
        self.cluster.psql("postgres", CREATE)?;
        self.template = Some("template_idem");
        Ok(self)
    }

    /// Returns the shared server. The first use starts it. It is stopped when the process ends.
    /// When a test has failed, the log of the server is kept until `target/clusters` is removed.
    pub(crate) fn shared() -> Result<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.as_ref() {
            return Ok(server.clone());
        }
        let server = Self::start("shared")?.with_template()?;
        let server = shared.insert(server).clone();
        // SAFETY: `stop` takes no argument, returns and does not unwind. An exit handler is needed
        // to remove the directories of the cluster, because a static is never dropped.
        let status = unsafe { libc::atexit(stop) };
        ensure!(status == 0, "atexit cannot register another function");
        Ok(server)
    }
}

/// Returns the cluster that the tests of this program share. The first use starts it.
///
/// # Errors
/// Fails when the cluster cannot be started. `cargo xtask build` makes the files that it needs.
pub fn shared_cluster() -> Result<Arc<Cluster>> {
    Ok(Server::shared()?.cluster)
}

/// Keeps the log of the server because a test failed.
pub(crate) fn keep_the_log(cluster: &Cluster) {
    FAILED.store(true, Ordering::SeqCst);
    eprintln!(
        "the server's log: {}",
        cluster.data_dir().with_file_name("log").display()
    );
}

extern "C" fn stop() {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut server) = shared.take() else {
        return;
    };
    if FAILED.load(Ordering::SeqCst)
        && let Some(cluster) = Arc::get_mut(&mut server.cluster)
    {
        cluster.keep();
    }
}
