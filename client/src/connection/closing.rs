//! Closes a connection whose user is gone, and ends what the server still executes for it.
//!
//! Closing the socket alone ends nothing: a backend that executes a statement or waits for a lock
//! reads nothing from its client. So ROLLBACK is sent behind what is under way, and when it does not
//! end at once, the statement is cancelled. Behind a pooler nothing can be cancelled: there the
//! connection is closed, and `client_connection_check_interval` lets the backend notice that.
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
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    cancel::{Backend, Canceller, Met},
    per_pool::PerPool,
};
use crate::Error;

/// How long ROLLBACK may take before the statement in front of it is cancelled.
const PROMPT: Duration = Duration::from_millis(20);
/// Between two attempts: one that comes between two statements has no effect.
const AGAIN: Duration = Duration::from_millis(250);
/// When the socket is closed, whatever the server does. Behind a pooler this frees the connection to
/// the server, which the next statement may need: also the one that finds the pooler.
const OPEN: Duration = Duration::from_secs(1);
/// When the statement is cancelled no more. It takes 10 s to connect where the first host is away.
const PATIENCE: Duration = Duration::from_secs(15);

/// How many connections a pool has at a time for nothing else, beside those that it counts.
const CANCELLERS: usize = 4;
/// Closed when a pooler was found: those who wait for a place then need none.
static PLACES: PerPool = PerPool::new();

/// How many connections of this process wait for the end of their transaction at the server: those
/// of all its pools, consumers and relays.
static CLOSING: LazyLock<watch::Sender<usize>> = LazyLock::new(watch::Sender::default);

/// Takes a connection out of its pool and closes it, when the server has ended its transaction.
/// `is_open` says that it has a transaction, and that no COMMIT was sent.
pub(super) fn close(object: Object, is_open: bool) {
    let (pool, backend) = (Object::pool(&object), Backend::of(&object, is_open));
    let client = Object::take(object);
    // Without a runtime the connection is closed here: its drop does that.
    let Ok(runtime) = Handle::try_current() else { return };
    let closing = Closing::begin();
    runtime.spawn(async move {
        let ended = async {
            let mut cancelled = pin!(cancel_when_slow(pool.as_ref(), backend));
            select! {
                biased;
                _ = client.batch_execute("ROLLBACK") => return,
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

/// Waits until the server has ended all transactions whose users are gone, or they were given up,
/// each after [`PATIENCE`] at most.
pub(crate) async fn closed() {
    // Others can begin meanwhile, so callers set a limit.
    let _ = CLOSING.subscribe().wait_for(|closing| *closing == 0).await;
}

async fn cancel_when_slow(pool: Option<&Pool>, backend: Backend) {
    sleep(PROMPT).await;
    let Some(pool) = pool else {
        // The pool is gone, and with it how to connect.
        return sleep(OPEN).await;
    };
    let places = PLACES.of(pool, |_| CANCELLERS);
    let end = timeout(PATIENCE, async {
        match places.acquire().await {
            Ok(_place) => cancel(pool, backend).await,
            Err(_) => End::Pooler,
        }
    });
    match end.await {
        Ok(End::Statement) => {}
        Ok(End::Pooler) => {
            places.close();
            tracing::debug!("a connection to a pooler is closed: the server may still execute its last statement");
        }
        Ok(End::Commit) => tracing::debug!("a connection is closed, and the commit that it waited for goes on"),
        Ok(End::Unknown) | Err(_) => {
            tracing::warn!("a connection is closed, and the server may still execute its last statement");
        }
    }
}

/// Why a statement is cancelled no more.
enum End {
    Statement,
    Commit,
    Pooler,
    Unknown,
}

/// Cancels until the backend has ended, or until this is of no use. Its future is dropped when
/// ROLLBACK has ended.
async fn cancel(pool: &Pool, backend: Backend) -> End {
    let began = Instant::now();
    let mut canceller = None;
    let mut was_there = false;
    loop {
        match attempt(&mut canceller, pool, backend).await {
            Ok(Met::Statement) => was_there = true,
            Ok(Met::Pooler) => return End::Pooler,
            Ok(Met::Nothing) if was_there => return End::Statement,
            Ok(Met::Commit) if began.elapsed() > OPEN => return End::Commit,
            Ok(Met::Nothing) if began.elapsed() > OPEN => return End::Unknown,
            Ok(Met::Commit) => {}
            // The next connection may lead to another server.
            Ok(Met::Nothing) => canceller = None,
            Err(error) => {
                tracing::debug!(%error, "a statement cannot be cancelled");
                canceller = None;
            }
        }
        sleep(AGAIN).await;
    }
}

async fn attempt<'p>(canceller: &mut Option<Canceller<'p>>, pool: &'p Pool, backend: Backend) -> Result<Met, Error> {
    let canceller = match canceller {
        Some(canceller) => canceller,
        none => none.insert(Canceller::connect(pool).await?),
    };
    canceller.cancel(backend).await
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
