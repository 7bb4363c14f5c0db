//! Proxies between a test and a server.
//!
//! | proxy | what it does |
//! |---|---|
//! | [`Proxy`] | loses the connection before or after COMMIT, cancels a statement, removes the comment of COMMIT, counts round trips |
//! | [`network::Network`] | resets, stalls or half closes the connections |
//!
//! Both are a [`Listener`] in front of a [`Target`]. [`protocol`] reads the messages of PostgreSQL.

mod forward;
mod line;
mod listener;
pub mod network;
pub mod protocol;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use deadpool_postgres::{Manager, Pool, PoolBuilder};
use tokio_postgres::{Client, Config, NoTls};

use crate::Database;
pub use line::Cut;
use line::{Line, Request, lock};
pub use listener::{Listener, Stream, Target};

/// A proxy in front of the server of a database. It forwards everything, until a test requests a
/// cut. It recognizes COMMIT at the end of a simple query. It does not understand encryption.
///
/// Dropping the proxy closes its connections.
pub struct Proxy {
    url: String,
    line: Arc<Line>,
    _listener: Listener,
}

impl Proxy {
    /// Starts a proxy on the runtime of the caller.
    pub async fn to(database: &Database) -> Self {
        let target = database.socket();
        let line = Arc::new(Line::default());
        let shared = Arc::clone(&line);
        let listener = Listener::start(move |client| {
            let (target, line) = (target.clone(), Arc::clone(&shared));
            async move { forward::serve(client, &target, &line).await }
        })
        .await
        .unwrap();
        let url = format!(
            "host={} port={} user=postgres dbname={} sslmode=disable",
            Ipv4Addr::LOCALHOST,
            listener.address().port(),
            database.name(),
        );
        Self {
            url,
            line,
            _listener: listener,
        }
    }

    /// Returns the URL of a connection through the proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the settings of a connection through the proxy.
    pub fn config(&self) -> Config {
        self.url.parse().unwrap()
    }

    /// Opens a connection through the proxy.
    pub async fn client(&self) -> Client {
        let (client, connection) = self.config().connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    pub fn pool(&self, size: usize) -> Pool {
        self.pool_builder().max_size(size).build().unwrap()
    }

    pub fn pool_builder(&self) -> PoolBuilder {
        Pool::builder(Manager::new(self.config(), NoTls))
    }

    /// Returns the number of round trips of all connections. A round trip begins when a client
    /// sends data for the first time after the server has replied. The start of a connection counts
    /// too.
    pub fn turns(&self) -> usize {
        self.line.turns.load(SeqCst)
    }

    /// Requests one cut, at the next COMMIT of any connection. New connections work.
    ///
    /// For [`Cut::AfterCommit`], a COMMIT counts only if the server has committed. If it rolls back
    /// instead, the client gets the reply, and the request stays.
    pub fn cut_once(&self, cut: Cut) {
        *lock(&self.line.requested) = Some(Request {
            cut,
            is_last: false,
        });
    }

    /// Requests a cut as [`cut_once`](Self::cut_once), after which the proxy closes every new
    /// connection.
    pub fn cut_for_good(&self, cut: Cut) {
        *lock(&self.line.requested) = Some(Request { cut, is_last: true });
    }

    pub fn was_cut(&self) -> bool {
        self.line.was_cut.load(SeqCst)
    }

    /// Makes the server cancel the next BEGIN of a short transaction with several requests. The
    /// connection survives.
    pub fn cancel_begin_once(&self) {
        self.cancel_once("BEGIN ISOLATION LEVEL READ COMMITTED");
    }

    /// Makes the server cancel the next simple query with exactly this text (57014), as
    /// `pg_cancel_backend` and `statement_timeout` do. The connection survives.
    pub fn cancel_once(&self, sql: &str) {
        *lock(&self.line.cancelled) = Some(sql.to_owned());
    }

    /// Removes the comment of idem from each COMMIT, as a pooler can.
    pub fn remove_comments(&self) {
        self.line.removes_comments.store(true, SeqCst);
    }

    /// Returns whether the server has cancelled a statement.
    pub fn has_cancelled(&self) -> bool {
        self.line.has_cancelled.load(SeqCst)
    }
}
