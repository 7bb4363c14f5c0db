//! The consumers and relays of one process.

use std::{future::Future, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{select, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{Consumer, Error, ErrorKind, HandOver, Publisher, Relay, Source, panics, relay::Pauses};

/// The pauses while a relay lacks its grant, its row or the extension.
const MISSING: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Runs consumers and relays in one process.
///
/// ```no_run
/// # async fn service<S: idem_client::Source, P: idem_client::Publisher>(
/// #     consumer: idem_client::Consumer<S>, relay: idem_client::Relay<P>,
/// # ) -> Result<(), idem_client::Error> {
/// use idem_client::{Services, terminated};
///
/// Services::new().consumer(consumer).relay(relay).run(terminated()).await?;
/// # Ok(()) }
/// ```
///
/// A relay that lacks its grant, and one that was not created yet, is waited for: the consumers go on, and their effects wait in
/// the outbox. At a shutdown the consumers stop first, each within its grace, and the relays after the last commit of the
/// consumers. What is not published by then stays in the outbox, for the next start.
#[derive(Default)]
#[must_use = "nothing runs before `run`"]
pub struct Services {
    consumers: Vec<Service>,
    relays: Vec<Service>,
}

/// Runs until its token is cancelled.
type Service = Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, Result<(), Error>> + Send>;

impl Services {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a consumer.
    pub fn consumer<S: Source>(mut self, consumer: Consumer<S>) -> Self {
        self.consumers.push(Box::new(|stop| {
            async move { consumer.run(stop.cancelled()).await.map(drop) }.boxed()
        }));
        self
    }

    /// Adds a relay.
    pub fn relay<P: Publisher>(mut self, relay: Relay<P>) -> Self {
        self.relays.push(Box::new(|stop| {
            async move {
                let run = || relay.another().run(stop.cancelled());
                through_what_is_missing(&stop, run).await.map(drop)
            }
            .boxed()
        }));
        self
    }

    /// Adds a hand-over, which stops with the relays.
    pub fn hand_over(mut self, hand_over: HandOver) -> Self {
        self.relays.push(Box::new(|stop| {
            async move {
                let run = || hand_over.clone().run(stop.cancelled());
                through_what_is_missing(&stop, run).await.map(drop)
            }
            .boxed()
        }));
        self
    }

    /// Runs all of them until `shutdown` completes.
    ///
    /// When one of them ends with an error the others are shut down in the same order, and the first error is returned: see
    /// [`Consumer::run`] and [`Relay::run`]. Dropping the future stops all of them at once.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let (mut consumers, mut relays) = (Group::start(self.consumers), Group::start(self.relays));
        let mut failed = select! {
            () = shutdown => None,
            error = consumers.failed() => Some(error),
            error = relays.failed() => Some(error),
        };
        for group in [&mut consumers, &mut relays] {
            let error = group.stop().await;
            failed = failed.or(error);
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Services that stop together.
struct Group {
    tasks: JoinSet<Result<(), Error>>,
    stop: CancellationToken,
}

impl Group {
    fn start(services: Vec<Service>) -> Self {
        let stop = CancellationToken::new();
        let tasks = services.into_iter().map(|service| service(stop.clone())).collect();
        Self { tasks, stop }
    }

    /// Waits for the first error; for ever without one. Cancel safe.
    async fn failed(&mut self) -> Error {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended.unwrap_or_else(|ended| panics::of_task(ended).map_or(Ok(()), Err)) {
                return error;
            }
        }
        std::future::pending().await
    }

    /// Stops all of them, waits for each, and returns the first error.
    async fn stop(&mut self) -> Option<Error> {
        self.stop.cancel();
        let mut failed = None;
        while let Some(ended) = self.tasks.join_next().await {
            let error = ended.map_or_else(panics::of_task, Result::err);
            failed = failed.or(error);
        }
        failed
    }
}

/// Runs something again, later each time, as long as a grant, a relay or the extension is missing.
async fn through_what_is_missing<T, Fut>(stop: &CancellationToken, mut run: impl FnMut() -> Fut) -> Result<Option<T>, Error>
where
    Fut: Future<Output = Result<T, Error>>,
{
    let mut pauses = Pauses::new(MISSING.0, MISSING.1);
    while !stop.is_cancelled() {
        match run().await {
            Err(error) if is_missing(&error) => {
                let pause = pauses.next();
                tracing::warn!(%error, ?pause, "a relay cannot work yet, and is started again");
                select! {
                    () = stop.cancelled() => {}
                    () = sleep(pause) => {}
                }
            }
            ended => return ended.map(Some),
        }
    }
    Ok(None)
}

/// Whether an administrator can add what is missing, while the consumers go on.
fn is_missing(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotGranted | ErrorKind::NotFound | ErrorKind::NotInstalled
    )
}
