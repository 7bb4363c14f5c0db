//! Closes a connection whose user is gone, and ends what the server still executes for it.
//!
//! Closing the socket alone ends nothing: a backend that executes a statement or waits for a lock
//! reads nothing from its client. So ROLLBACK is sent behind what is under way, and when it does not
//! end at once, the statement is cancelled. Behind a pooler nothing can be cancelled: there the
//! connection is closed, and `client_connection_check_interval` lets the backend notice that.

use std::{sync::LazyLock, time::Duration};

use deadpool_postgres::{ClientWrapper, Object, Pool};
use tokio::{
    runtime::Handle,
    select,
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    cancel::{Backend, Canceller, Reached},
    per_pool::PerPool,
};
use crate::Error;

/// How long ROLLBACK may take before the statement in front of it is cancelled.
const PROMPT: Duration = Duration::from_millis(20);
/// Between two attempts: one that comes between two statements has no effect.
const AGAIN: Duration = Duration::from_millis(250);
/// How long a statement is cancelled again and again. A first host that is away takes 10 s.
const PATIENCE: Duration = Duration::from_secs(15);

/// How many connections a pool has at a time for nothing else, beside those that it counts.
const CANCELLERS: usize = 4;
static PLACES: PerPool = PerPool::new();

/// How many connections of this process wait for the end of their transaction at the server: those
/// of all its pools, consumers and relays.
static CLOSING: LazyLock<watch::Sender<usize>> = LazyLock::new(watch::Sender::default);

/// Takes a connection out of its pool and closes it, when the server has ended its transaction.
pub(super) fn close(object: Object) {
    let (pool, backend) = (Object::pool(&object), Backend::of(&object));
    let client = Object::take(object);
    // Without a runtime the connection is closed here: its drop does that.
    let Ok(runtime) = Handle::try_current() else { return };
    let closing = Closing::begin();
    runtime.spawn(async move {
        end(&client, pool, backend).await;
        drop((client, closing));
    });
}

/// Waits until the server has ended all transactions whose users are gone, or they were given up.
pub(crate) async fn closed() {
    // Each is given up in the end. Others can begin meanwhile, so callers set a limit.
    let _ = CLOSING.subscribe().wait_for(|closing| *closing == 0).await;
}

async fn end(client: &ClientWrapper, pool: Option<Pool>, backend: Backend) {
    let cancelling = async {
        sleep(PROMPT).await;
        match pool {
            Some(pool) => cancel(&pool, backend).await,
            None => sleep(PATIENCE).await,
        }
    };
    select! {
        biased;
        _ = client.batch_execute("ROLLBACK") => {}
        () = cancelling => {}
    }
}

/// Cancels until this is dropped, until it is of no use, or until it is too late.
async fn cancel(pool: &Pool, backend: Backend) {
    let places = PLACES.of(pool, |_| CANCELLERS);
    let is_pooler = match places.acquire().await {
        Ok(_place) => timeout(PATIENCE, cancel_until_pooler(pool, backend)).await.is_ok(),
        // Another one has found a pooler.
        Err(_) => true,
    };
    if is_pooler {
        places.close();
        tracing::debug!("a connection to a pooler is closed: the server may still execute its last statement");
    } else {
        tracing::warn!("a connection is closed, and the server may still execute its last statement");
    }
}

/// Returns when a pooler stands in front of the server.
async fn cancel_until_pooler(pool: &Pool, backend: Backend) {
    let mut canceller = None;
    loop {
        match attempt(&mut canceller, pool, backend).await {
            Ok(Reached::Server) => {}
            Ok(Reached::Pooler) => return,
            Err(error) => {
                tracing::debug!(%error, "a statement cannot be cancelled");
                canceller = None;
            }
        }
        sleep(AGAIN).await;
    }
}

async fn attempt<'p>(canceller: &mut Option<Canceller<'p>>, pool: &'p Pool, backend: Backend) -> Result<Reached, Error> {
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
