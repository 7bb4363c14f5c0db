//! The server that the tests of a program share, reached directly or through PgBouncer.

use std::sync::{Arc, Mutex, Weak};

use idem_brokers::PgBouncer;
use idem_cluster::{Cluster, Install};

/// With it, programs under test reach the server through PgBouncer in transaction mode.
const THROUGH_PGBOUNCER: &str = "IDEM_TEST_PGBOUNCER";

/// A cluster, and the proxy in front of it if there is to be one.
pub struct Server {
    // Before the cluster that it stands in front of.
    proxy: Option<PgBouncer>,
    cluster: Cluster,
}

impl Server {
    /// A new one.
    pub fn start(name: &str) -> Self {
        let install = Install::from_env().expect("cargo xtask setup makes the install");
        let is_proxied = std::env::var_os(THROUGH_PGBOUNCER).is_some();
        let mut cluster = Cluster::builder(&install).name(name);
        if is_proxied {
            // PgBouncer cancels nothing for a client that is gone. As the guide says.
            cluster = cluster.setting("client_connection_check_interval", "1s");
        }
        let cluster = cluster.start().unwrap();
        let proxy = is_proxied.then(|| PgBouncer::start(&cluster, "postgres").unwrap());
        Self { proxy, cluster }
    }

    /// The one that the tests which run at this moment share; the last of them takes it down.
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

    /// Whether the sessions of the server are those of PgBouncer.
    pub fn is_proxied(&self) -> bool {
        self.proxy.is_some()
    }

    /// A pooler with so many connections, in front of the server alone.
    pub fn small_pooler(&self, size: u32) -> PgBouncer {
        PgBouncer::start_with_pool(&self.cluster, "postgres", size).unwrap()
    }

    /// As the program under test connects.
    pub fn url(&self, database: &str) -> String {
        match &self.proxy {
            Some(proxy) => proxy.connection_string_to(database),
            None => self.direct_url(database),
        }
    }

    /// Past the proxy: for looking at sessions and locks, and for what belongs to a session.
    pub fn direct_url(&self, database: &str) -> String {
        self.cluster.connection_string(database)
    }

    pub fn psql(&self, database: &str, sql: &str) -> String {
        self.cluster.psql(database, sql).unwrap()
    }

    /// What the server has logged, over all its databases.
    pub fn log(&self) -> String {
        self.cluster.log().unwrap()
    }

    /// To kill it and to start it again.
    pub fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}
