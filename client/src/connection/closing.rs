//! Closes a connection whose user is gone, and ends what the server still executes for it.
//!
//! Closing the socket alone ends nothing: a backend that executes a statement or waits for a lock
//! reads nothing from its client. So ROLLBACK is sent behind what is under way, and when it is not
//! answered at once, the statement is cancelled.

use std::{
    pin::pin,
    sync::{LazyLock, Mutex, PoisonError, Weak},
    time::Duration,
};

use deadpool_postgres::{ClientWrapper, Object, Pool};
use tokio::{
    runtime::Handle,
    select,
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_postgres::CancelToken;

use super::plain::PlainOnly;

/// How long the answer to ROLLBACK may take before the statement in front of it is cancelled.
const PROMPT: Duration = Duration::from_millis(20);
/// Between two requests: a request that comes between two statements has no effect.
const AGAIN: Duration = Duration::from_millis(250);
/// How long a request may take, and how long a statement is cancelled again and again.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many connections of this process wait for the end of their transaction at the server: those
/// of all its pools, consumers and relays.
static CLOSING: LazyLock<watch::Sender<usize>> = LazyLock::new(watch::Sender::default);

/// Takes a connection out of its pool and closes it, when the server has ended its transaction.
pub(super) fn close(object: Object) {
    let links = Object::pool(&object).and_then(|pool| links_of(&pool));
    let client = Object::take(object);
    // Without a runtime the connection is closed here: its drop does that.
    let Ok(runtime) = Handle::try_current() else { return };
    let closing = Closing::begin();
    runtime.spawn(async move {
        end(&client, links).await;
        drop((client, closing));
    });
}

/// Waits until the server has ended all transactions whose users are gone, or they were given up.
pub(crate) async fn closed() {
    // Each ends after about twice `PATIENCE`. Others can begin meanwhile, so callers set a limit.
    let _ = CLOSING.subscribe().wait_for(|closing| *closing == 0).await;
}

async fn end(client: &ClientWrapper, links: Option<Links>) {
    let mut rollback = pin!(client.batch_execute("ROLLBACK"));
    let (mut pause, given_up_at) = (PROMPT, Instant::now() + PATIENCE);
    while Instant::now() < given_up_at {
        select! {
            biased;
            _ = &mut rollback => return,
            () = sleep(pause) => {}
        }
        pause = AGAIN;
        match timeout(PATIENCE, cancel(client.cancel_token(), links.as_ref())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a statement cannot be cancelled"),
            Err(_) => tracing::debug!("the server does not take the request to cancel a statement"),
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

// How the requests travel.

#[cfg(feature = "tls")]
pub(crate) type Link = tokio_postgres_rustls::MakeRustlsConnect;
#[cfg(not(feature = "tls"))]
pub(crate) type Link = PlainOnly;

type Links = std::sync::Arc<Link>;

/// The TLS of the pools of this crate, by the address of their managers. A pool keeps its own alive.
static LINKS: Mutex<Vec<(usize, Weak<Link>)>> = Mutex::new(Vec::new());

/// Requests for connections of this pool go over the same TLS as the connections.
#[cfg(feature = "tls")]
pub(crate) fn cancel_over(pool: &Pool, link: Weak<Link>) {
    let mut links = LINKS.lock().unwrap_or_else(PoisonError::into_inner);
    links.retain(|(_, link)| link.strong_count() > 0);
    links.push((address_of(pool), link));
}

fn links_of(pool: &Pool) -> Option<Links> {
    let links = LINKS.lock().unwrap_or_else(PoisonError::into_inner);
    let address = address_of(pool);
    let mut found = links.iter().filter(|(of, _)| *of == address);
    found.find_map(|(_, link)| link.upgrade())
}

/// All clones of a pool share its manager.
pub(super) fn address_of(pool: &Pool) -> usize {
    std::ptr::from_ref(pool.manager()) as usize
}

/// The TLS of a pool that the user has built is not known: then the request never travels where the
/// connection may have been encrypted.
async fn cancel(token: CancelToken, links: Option<&Links>) -> Result<(), tokio_postgres::Error> {
    match links {
        Some(link) => token.cancel_query(Link::clone(link)).await,
        None => token.cancel_query(PlainOnly).await,
    }
}
