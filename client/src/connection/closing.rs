//! Closes a connection whose user is gone, and ends what the server still executes for it.
//!
//! Closing the socket alone ends nothing: a backend that executes a statement or waits for a lock
//! reads nothing from its client. So ROLLBACK is sent behind what is under way, and when it is not
//! answered at once, the statement is cancelled. Through a pooler nothing can be cancelled: there the
//! connection is closed, and `client_connection_check_interval` lets the backend notice that.

use std::{pin::pin, sync::LazyLock, time::Duration};

use deadpool_postgres::{ClientWrapper, Object, Pool};
use tokio::{
    runtime::Handle,
    select,
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::cancel::{Reached, cancel};

/// How long the answer to ROLLBACK may take before the statement in front of it is cancelled.
const PROMPT: Duration = Duration::from_millis(20);
/// Between two attempts: one that comes between two statements has no effect.
const AGAIN: Duration = Duration::from_millis(250);
/// How long an attempt may take, and how long a statement is cancelled again and again.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many connections of this process wait for the end of their transaction at the server: those
/// of all its pools, consumers and relays.
static CLOSING: LazyLock<watch::Sender<usize>> = LazyLock::new(watch::Sender::default);

/// Takes a connection out of its pool and closes it, when the server has ended its transaction.
pub(super) fn close(object: Object) {
    let pool = Object::pool(&object);
    let client = Object::take(object);
    // Without a runtime the connection is closed here: its drop does that.
    let Ok(runtime) = Handle::try_current() else { return };
    let closing = Closing::begin();
    runtime.spawn(async move {
        end(&client, pool).await;
        drop((client, closing));
    });
}

/// Waits until the server has ended all transactions whose users are gone, or they were given up.
pub(crate) async fn closed() {
    // Each ends after about twice `PATIENCE`. Others can begin meanwhile, so callers set a limit.
    let _ = CLOSING.subscribe().wait_for(|closing| *closing == 0).await;
}

async fn end(client: &ClientWrapper, pool: Option<Pool>) {
    let mut rollback = pin!(client.batch_execute("ROLLBACK"));
    let (mut pause, given_up_at) = (PROMPT, Instant::now() + PATIENCE);
    while Instant::now() < given_up_at {
        select! {
            biased;
            _ = &mut rollback => return,
            () = sleep(pause) => {}
        }
        pause = AGAIN;
        let Some(pool) = &pool else { continue };
        match timeout(PATIENCE, cancel(pool, &client.cancel_token())).await {
            Ok(Ok(Reached::Server)) => {}
            Ok(Ok(Reached::Pooler)) => {
                return tracing::debug!("a connection to a pooler is closed: the server may still execute its last statement");
            }
            Ok(Err(error)) => tracing::debug!(%error, "a statement cannot be cancelled"),
            Err(_) => tracing::debug!("the server does not respond to the request to cancel a statement"),
        }
    }
    tracing::warn!("a connection is closed, and the server may still execute its last statement");
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
