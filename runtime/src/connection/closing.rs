//! Closes a connection after the future that used it was dropped, and ends the statement that the
//! server still executes on this connection.
//!
//! Closing the socket alone ends nothing: a backend that executes a statement or waits for a lock
//! reads nothing from its client. So ROLLBACK is sent, or without a transaction an empty query. The
//! server executes it after the running statement. If the server does not reply soon, the running
//! statement is cancelled. The socket is closed after a second at the latest. Behind a pooler
//! nothing can be cancelled: there `client_connection_check_interval` lets the backend detect that
//! its client is gone.
//!
//! A commit is not cancelled: see [`Canceller::cancel`].

use std::{
    pin::pin,
    sync::LazyLock,
    time::{Duration, Instant},
};

use deadpool_postgres::{Object, Pool};
use tokio::{
    runtime::Handle,
    select,
    sync::{Mutex, watch},
    time::{sleep, timeout},
};

use super::{
    cancel::{Backend, CancelResult, Canceller},
    per_pool::PerPool,
};
use crate::Error;

/// How long to wait for the reply to the last query before the running statement is cancelled.
const PROMPT: Duration = Duration::from_millis(20);
/// The time between two attempts to cancel the statement. An attempt that reaches the backend
/// between two statements has no effect, so it is repeated.
const AGAIN: Duration = Duration::from_millis(250);
/// The time after which the socket is closed in any case. A pooler then frees its connection to the
/// server. Other statements may wait for that connection, also the statement with which the
/// canceller detects the pooler.
const OPEN: Duration = Duration::from_secs(1);
/// How long to repeat the attempt if the backend may be committing or was not found. A backend that
/// may be committing can begin to wait for a lock, and is then cancelled. A backend that was not
/// found can be on another host, to which the next connection may lead.
const LOOKS: Duration = Duration::from_secs(1);
/// The time after which no attempt is made to cancel the statement. It must be longer than 10 s,
/// the time to connect if the first host is not available.
const CANCEL_LIMIT: Duration = Duration::from_secs(15);

/// The canceller of each pool, which all connections that are being closed share. It is one
/// connection that does not count in the size of the pool. It is kept while there is a statement to
/// cancel.
static CANCELLERS: PerPool<Mutex<CancelConnection>> = PerPool::new();

/// The shared canceller, or the reason why there is none.
enum CancelConnection {
    Unknown,
    Open(Canceller),
    /// The connections lead to a pooler, so no statement can be cancelled.
    Pooler,
}

/// The number of connections in this process that are being closed, for all pools, consumers and
/// relays.
static CLOSING: LazyLock<watch::Sender<usize>> = LazyLock::new(watch::Sender::default);

/// Takes a connection out of its pool and closes it when the server has ended its transaction, or
/// after [`OPEN`]. `is_open` means that BEGIN was sent and no COMMIT. `cannot_commit` means that in
/// addition the server has replied to BEGIN.
pub(super) fn close(object: Object, is_open: bool, cannot_commit: bool) {
    let (pool, backend) = (Object::pool(&object), Backend::of(&object, cannot_commit));
    let client = Object::take(object);
    // Without a runtime of tokio no task can be spawned. Dropping `client` then closes the
    // connection.
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    let closing = Closing::begin();
    // Without a transaction, ROLLBACK would cause a warning in the log of the server.
    let last = if is_open { "ROLLBACK" } else { "" };
    runtime.spawn(async move {
        let ended = async {
            let mut cancelled = pin!(cancel_when_slow(pool.as_ref(), backend));
            select! {
                biased;
                _ = client.batch_execute(last) => return,
                () = &mut cancelled => return,
                () = sleep(OPEN) => {}
            }
            drop(client);
            cancelled.await;
        };
        ended.await;
        drop(closing);
    });
}

/// Waits until no connection is being closed: the server has ended each transaction, or the
/// attempts to cancel its statement have stopped, at the latest after [`CANCEL_LIMIT`].
pub(crate) async fn closed() {
    // More connections can be closed meanwhile, so callers set a limit.
    let _ = CLOSING.subscribe().wait_for(|closing| *closing == 0).await;
}

async fn cancel_when_slow(pool: Option<&Pool>, backend: Backend) {
    sleep(PROMPT).await;
    let Some(pool) = pool else {
        // Without the pool, no connection can be made to cancel the statement.
        return sleep(OPEN).await;
    };
    match timeout(CANCEL_LIMIT, cancel(pool, backend)).await {
        Ok(CancelResult::Statement) => {}
        Ok(CancelResult::Pooler) => {
            tracing::debug!(
                "closed a connection to a pooler, without a cancel request: \
                 the server may still execute its last statement"
            );
        }
        Ok(CancelResult::Commit) => {
            tracing::debug!(
                "a connection is closed: its last statement may be a commit and is not cancelled"
            );
        }
        Ok(CancelResult::Nothing) | Err(_) => {
            tracing::warn!(
                "a connection is closed, and the server may still execute its last statement"
            );
        }
    }
}

/// Repeats the attempt to cancel until the backend has ended, or until another attempt would be
/// useless. Returns the result of the attempts together: `Statement` if the backend was found and
/// has ended, and `Nothing` if it was never found. The caller drops this future when the last query
/// has ended.
async fn cancel(pool: &Pool, backend: Backend) -> CancelResult {
    let connection = CANCELLERS.of(pool, |_| Mutex::new(CancelConnection::Unknown));
    let mut first_look = None;
    let mut was_there = false;
    loop {
        let result = attempt(&connection, pool, backend).await;
        let looks = first_look.get_or_insert_with(Instant::now).elapsed();
        match result {
            Ok(CancelResult::Statement) => was_there = true,
            Ok(CancelResult::Commit) if looks > LOOKS => return CancelResult::Commit,
            Ok(CancelResult::Commit) => was_there = true,
            Ok(CancelResult::Pooler) => return CancelResult::Pooler,
            Ok(CancelResult::Nothing) if was_there => return CancelResult::Statement,
            Ok(CancelResult::Nothing) if looks > LOOKS => return CancelResult::Nothing,
            // The next connection may lead to another server.
            Ok(CancelResult::Nothing) => *connection.lock().await = CancelConnection::Unknown,
            Err(error) => {
                first_look = None;
                tracing::debug!(%error, "cannot cancel a statement");
            }
        }
        sleep(AGAIN).await;
    }
}

/// Makes one attempt to cancel the statement. If this future is dropped early, the canceller is
/// dropped too, because a statement may still run on it.
async fn attempt(
    connection: &Mutex<CancelConnection>,
    pool: &Pool,
    backend: Backend,
) -> Result<CancelResult, Error> {
    let mut connection = connection.lock().await;
    let canceller = match std::mem::replace(&mut *connection, CancelConnection::Unknown) {
        CancelConnection::Open(canceller) => canceller,
        CancelConnection::Unknown => Canceller::connect(pool).await?,
        CancelConnection::Pooler => {
            *connection = CancelConnection::Pooler;
            return Ok(CancelResult::Pooler);
        }
    };
    let result = canceller.cancel(backend).await?;
    *connection = match result {
        CancelResult::Pooler => CancelConnection::Pooler,
        _ => CancelConnection::Open(canceller),
    };
    Ok(result)
}

struct Closing;

impl Closing {
    fn begin() -> Self {
        CLOSING.send_modify(|closing| *closing += 1);
        Self
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        CLOSING.send_modify(|closing| *closing -= 1);
    }
}
