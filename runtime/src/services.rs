//! Runs the consumers and relays of one process.

use std::future::Future;

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{select, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{Consumer, Error, Publisher, Relay, Source, panics, relay::HandOver};

/// Runs consumers and relays in one process.
///
/// ```no_run
/// # async fn service<S: idem_runtime::Source, P: idem_runtime::Publisher>(
/// #     consumer: idem_runtime::Consumer<S>, relay: idem_runtime::Relay<P>,
/// # ) -> Result<(), idem_runtime::Error> {
/// use idem_runtime::{Services, terminated};
///
/// Services::new().consumer(consumer).relay(relay).run(terminated()).await?;
/// # Ok(()) }
/// ```
///
/// A relay waits until it is created in the database and has its grants, see [`Relay::run`].
/// Meanwhile the consumers process messages, and their effects wait in the outbox. At a shutdown
/// the consumers stop first, each within its grace period. The relays stop after the last commit of
/// the consumers. Effects that are not published by then stay in the outbox for the next start.
#[derive(Default)]
#[must_use = "nothing runs before `run`"]
pub struct Services {
    consumers: Vec<Service>,
    relays: Vec<Service>,
}

/// A service that runs until its token is cancelled.
type Service = Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, Result<(), Error>> + Send>;

impl Services {
    /// Creates an empty set of services.
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
            async move { relay.run(stop.cancelled()).await.map(drop) }.boxed()
        }));
        self
    }

    /// Adds a hand-over, which stops together with the relays.
    pub fn hand_over(mut self, hand_over: HandOver) -> Self {
        self.relays.push(Box::new(|stop| {
            async move { hand_over.run(stop.cancelled()).await.map(drop) }.boxed()
        }));
        self
    }

    /// Runs all services until `shutdown` completes.
    ///
    /// If a service ends with an error, the other services are also shut down, the consumers
    /// first and then the relays, and the first error is returned: see [`Consumer::run`] and
    /// [`Relay::run`]. Dropping the future stops all services at once.
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
        let tasks = services
            .into_iter()
            .map(|service| service(stop.clone()))
            .collect();
        Self { tasks, stop }
    }

    /// Waits for the first error, or forever if there is none. Cancel safe.
    async fn failed(&mut self) -> Error {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) =
                ended.unwrap_or_else(|ended| panics::of_task(ended).map_or(Ok(()), Err))
            {
                return error;
            }
        }
        std::future::pending().await
    }

    /// Stops all services, waits for each, and returns the first error.
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
