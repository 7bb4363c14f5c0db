//! A proxy between a test and the server, which loses the connection before or after COMMIT.

mod forward;
mod protocol;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use deadpool_postgres::{Manager, Pool, PoolBuilder};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, NoTls};

use crate::Database;
use forward::accept;
use protocol::Message;

/// The point at which the connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The connection is lost when the client sends COMMIT. The server does not execute it, and
    /// rolls back.
    BeforeCommit,
    /// The server commits, and the connection is lost before the client gets the reply.
    AfterCommit,
}

/// A proxy in front of the server of a database. It forwards everything, until a test requests a
/// cut. It recognizes COMMIT at the end of a simple query. It does not understand encryption.
///
/// Dropping the proxy closes its connections.
pub struct Proxy {
    url: String,
    line: Arc<Line>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy on the runtime of the caller.
    pub async fn to(database: &Database) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = database.cluster().socket_dir().join(".s.PGSQL.5432");
        let line = Arc::new(Line::default());
        let accepting = tokio::spawn(accept(listener, socket, Arc::clone(&line)));
        let url = format!(
            "host={} port={port} user=postgres dbname={} sslmode=disable",
            Ipv4Addr::LOCALHOST,
            database.name(),
        );
        Self {
            url,
            line,
            accepting,
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

    /// Returns whether the server has cancelled a statement.
    pub fn has_cancelled(&self) -> bool {
        self.line.has_cancelled.load(SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

#[derive(Clone, Copy)]
struct Request {
    cut: Cut,
    /// Whether the proxy closes new connections after the cut.
    is_last: bool,
}

/// What the connections of a proxy share.
#[derive(Default)]
struct Line {
    requested: Mutex<Option<Request>>,
    is_down: AtomicBool,
    was_cut: AtomicBool,
    cancelled: Mutex<Option<String>>,
    has_cancelled: AtomicBool,
    turns: AtomicUsize,
}

impl Line {
    /// Returns whether the test has requested a cut at the point `at`. Removes the request, so that
    /// only one connection is cut.
    fn cuts_at(&self, at: Cut) -> bool {
        let request = lock(&self.requested).take_if(|request| request.cut == at);
        if let Some(Request { is_last, .. }) = request {
            if is_last {
                self.is_down.store(true, SeqCst);
            }
            self.was_cut.store(true, SeqCst);
        }
        request.is_some()
    }

    /// Returns whether the reply to a COMMIT that is sent now is to be lost.
    fn loses_the_reply(&self) -> bool {
        lock(&self.requested).is_some_and(|request| request.cut == Cut::AfterCommit)
    }

    /// Returns whether the test has requested that the server cancels this message. Removes the
    /// request.
    fn cancels(&self, message: Message<'_>) -> bool {
        let taken = lock(&self.cancelled).take_if(|sql| message.is_query(sql));
        if taken.is_some() {
            self.has_cancelled.store(true, SeqCst);
        }
        taken.is_some()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
