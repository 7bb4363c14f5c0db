//! The server that the tests of one test program share, reached directly or through PgBouncer.

use std::sync::{Arc, Mutex, Weak};

use idem_brokers::PgBouncer;
use idem_cluster::{Cluster, Install};

/// If this environment variable is set, the programs under test connect through PgBouncer in
/// transaction mode.
const THROUGH_PGBOUNCER: &str = "IDEM_TEST_PGBOUNCER";

/// A cluster, and the optional proxy in front of it.
pub struct Server {
    // This field is declared before the cluster, so that the proxy is dropped first.
    proxy: Option<PgBouncer>,
    cluster: Cluster,
}

impl Server {
    /// Starts a new server.
    pub fn start(name: &str) -> Self {
        let install = Install::from_env().expect("no PostgreSQL install; run cargo xtask setup");
        let is_proxied = std::env::var_os(THROUGH_PGBOUNCER).is_some();
        let mut cluster = Cluster::builder(&install).name(name);
        if is_proxied {
            // PgBouncer does not cancel the statement of a disconnected client. The guide
            // recommends this setting, with which the server ends the statement.
            cluster = cluster.setting("client_connection_check_interval", "1s");
        }
        let cluster = cluster.start().unwrap();
        let proxy = is_proxied.then(|| PgBouncer::start(&cluster, "postgres").unwrap());
        Self { proxy, cluster }
    }

    /// Returns the server that all running tests share. The server stops when the last test drops
    /// its reference.
    pub fn shared(name: &str) -> Arc<Self> {
        static RUNNING: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut running = RUNNING
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(server) = running.upgrade() {
            return server;
        }
        let server = Arc::new(Self::start(name));
        *running = Arc::downgrade(&server);
        server
    }

    /// Returns true if the program under test connects through PgBouncer.
    pub fn is_proxied(&self) -> bool {
        self.proxy.is_some()
    }

    /// Returns the proxy through which the program under test connects, if there is one.
    pub fn proxy(&self) -> Option<&PgBouncer> {
        self.proxy.as_ref()
    }

    /// Starts a separate PgBouncer with a pool of `size` connections to this server.
    pub fn small_pooler(&self, size: u32) -> PgBouncer {
        PgBouncer::start_with_pool(&self.cluster, "postgres", size).unwrap()
    }

    /// Returns the URL through which the program under test connects: the URL of the proxy, if
    /// there is one.
    pub fn url(&self, database: &str) -> String {
        match &self.proxy {
            Some(proxy) => proxy.connection_string_to(database),
            None => self.direct_url(database),
        }
    }

    /// Returns a URL that bypasses the proxy, for queries on sessions and locks and for session
    /// state.
    pub fn direct_url(&self, database: &str) -> String {
        self.cluster.connection_string(database)
    }

    pub fn psql(&self, database: &str, sql: &str) -> String {
        self.cluster.psql(database, sql).unwrap()
    }

    /// Returns the log of the server for all its databases.
    pub fn log(&self) -> String {
        self.cluster.log().unwrap()
    }

    /// Returns the cluster, so that a test can kill and restart it.
    pub fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}
