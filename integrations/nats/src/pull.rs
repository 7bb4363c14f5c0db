//! Fetches messages ahead: sends one request after the other, and holds each message that arrives.
//!
//! Every request names an inbox, which is a subscription on the same connection. After a loss of
//! the connection, and when the server has been silent for too long, the task creates a new inbox
//! and a new request. The server drops a request if its inbox has no subscriber.

use std::{sync::Arc, time::Duration};

use async_nats::{
    StatusCode, Subject, Subscriber,
    connection::State as Connection,
    jetstream::{
        self,
        consumer::{PullConsumer, pull::BatchConfig},
    },
};
use futures_util::StreamExt;
use idem_runtime::transport::{TransportError, wait_until};
use tokio::{
    select,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    message,
    receipt::NatsReceipt,
    session::Session,
    terms::{self, Terms},
};

/// The time that a request waits at the server, unless the durable consumer allows less.
const EXPIRES: Duration = Duration::from_secs(30);

/// The number of heartbeats that the server sends within the time of a request.
const HEARTBEATS: u32 = 6;

/// The number of missing heartbeats after which the request counts as lost.
const SILENCE: u32 = 3;

/// The longest time to wait for the end of a subscription.
const LAST_MESSAGES: Duration = Duration::from_secs(1);

/// The time that the last request waits at the server.
const SWEEP: Duration = Duration::from_millis(10);

/// The task that fetches messages ahead. Dropping this stops the task.
pub(super) struct Pulling {
    stop: DropGuard,
    task: JoinHandle<()>,
}

impl Pulling {
    pub(super) async fn start(session: &Arc<Session>) -> Result<Self, TransportError> {
        let subscription = &session.unsettled.subscription;
        let (consumer, terms) =
            terms::consumer(&session.unsettled.link.context, subscription).await?;
        if let Some(max_deliver) = terms.max_deliver {
            session.limit_warning.call_once(|| {
                tracing::warn!(
                    stream = subscription.stream,
                    consumer = subscription.consumer,
                    max_deliver,
                    "the durable consumer has a max_deliver: after this number of deliveries NATS \
                     does not redeliver a message, and keeps no dead letter; a process that dies \
                     uses up one delivery of each message that it holds"
                );
            });
        }
        let stop = CancellationToken::new();
        let pull = Pull {
            consumer,
            terms,
            session: Arc::clone(session),
            stop: stop.clone(),
        };
        Ok(Self {
            stop: stop.drop_guard(),
            task: tokio::spawn(pull.run()),
        })
    }

    /// Stops the task, if there is one, and waits for its end.
    pub(super) async fn stop(pulling: Option<Self>) {
        let Some(Self { stop, task }) = pulling else {
            return;
        };
        drop(stop);
        if let Err(error) = task.await {
            tracing::debug!(%error, "the task that fetches messages ahead did not end normally");
        }
    }
}

struct Pull {
    consumer: PullConsumer,
    terms: Terms,
    session: Arc<Session>,
    stop: CancellationToken,
}

/// A subscription that receives the messages of requests.
struct Inbox {
    subject: Subject,
    subscriber: Subscriber,
    /// The number of times that the connection was lost before the subscription.
    losses: u64,
    /// The number of messages that are requested and have not arrived.
    asked: usize,
}

impl Pull {
    /// Fetches messages until the task is stopped or fails.
    async fn run(self) {
        while !self.stop.is_cancelled() {
            if let Err(error) = self.fetch().await {
                return self.session.prefetched.end(error);
            }
        }
        self.sweep().await;
    }

    /// Fetches messages into a new inbox until the task is stopped or the request is lost.
    async fn fetch(&self) -> Result<(), TransportError> {
        let mut inbox = self.inbox().await?;
        let received = self.receive(&mut inbox).await;
        self.leave(inbox).await;
        received
    }

    async fn inbox(&self) -> Result<Inbox, TransportError> {
        // Read the number of lost connections before subscribing. If it is larger when a message is
        // settled, the connection was lost after the message arrived, or shortly before.
        let losses = self.session.unsettled.link.losses();
        let client = self.session.unsettled.link.context.client();
        let subject = Subject::from(client.new_inbox());
        Ok(Inbox {
            subscriber: client.subscribe(subject.clone()).await?,
            subject,
            losses,
            asked: 0,
        })
    }

    /// Replaces the request that is still open at the server with a short request, and waits until
    /// the short request ends. NATS 2.9 assigns a returned message to an open request even if the
    /// request's inbox has no subscriber any more. It then delivers the message to no other request
    /// before `ack_wait` is over.
    async fn sweep(&self) {
        let swept = async {
            let mut inbox = self.inbox().await?;
            inbox.asked = 1;
            let request = BatchConfig {
                batch: inbox.asked,
                expires: Some(SWEEP),
                ..BatchConfig::default()
            };
            self.consumer
                .request_batch(request, inbox.subject.clone())
                .await?;
            while inbox.asked > 0 {
                let arrived = inbox
                    .subscriber
                    .next()
                    .await
                    .ok_or("the connection is closed")?;
                self.take(&mut inbox, arrived)?;
            }
            self.leave(inbox).await;
            Ok::<_, TransportError>(())
        };
        briefly(swept, "cannot end an open request: it will expire").await;
    }

    async fn receive(&self, inbox: &mut Inbox) -> Result<(), TransportError> {
        let heartbeat = self.heartbeat();
        let mut silent = None;
        loop {
            if inbox.asked == 0 {
                inbox.asked = self.terms.batch(self.session.room());
                silent = match inbox.asked {
                    0 => None,
                    asked => {
                        self.request(inbox.subject.clone(), asked).await?;
                        Some(Instant::now() + SILENCE * heartbeat)
                    }
                };
            }
            select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                () = self.session.unsettled.link.lost(inbox.losses) => return Ok(()),
                arrived = inbox.subscriber.next() => {
                    self.take(inbox, arrived.ok_or("the connection is closed")?)?;
                    silent = silent.map(|_| Instant::now() + SILENCE * heartbeat);
                }
                () = self.session.prefetched.room(), if inbox.asked == 0 => {}
                () = wait_until(silent) => {
                    // Without a connection the request is not lost: the client library sends it
                    // later.
                    if self.session.unsettled.link.context.client().connection_state()
                        == Connection::Connected
                    {
                        return Ok(());
                    }
                    silent = Some(Instant::now() + SILENCE * heartbeat);
                }
            }
        }
    }

    fn heartbeat(&self) -> Duration {
        self.terms.expires(EXPIRES) / HEARTBEATS
    }

    async fn request(&self, inbox: Subject, messages: usize) -> Result<(), TransportError> {
        let request = BatchConfig {
            batch: messages,
            expires: Some(self.terms.expires(EXPIRES)),
            idle_heartbeat: self.heartbeat(),
            ..BatchConfig::default()
        };
        Ok(self.consumer.request_batch(request, inbox).await?)
    }

    /// Holds a message, or processes a status of the request.
    ///
    /// # Errors
    ///
    /// The server ended the request for another reason than its expiry.
    fn take(&self, inbox: &mut Inbox, arrived: async_nats::Message) -> Result<(), TransportError> {
        match arrived.status {
            None | Some(StatusCode::OK) => {
                inbox.asked = inbox.asked.saturating_sub(1);
                self.hold(inbox.losses, arrived)
            }
            Some(StatusCode::IDLE_HEARTBEAT) => Ok(()),
            // The request has expired.
            Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND) => {
                inbox.asked = 0;
                Ok(())
            }
            Some(status) => {
                let description = arrived.description.unwrap_or_default();
                Err(format!(
                    "the server has ended the request for messages: {status} {description}"
                )
                .into())
            }
        }
    }

    fn hold(&self, losses: u64, arrived: async_nats::Message) -> Result<(), TransportError> {
        let arrived = jetstream::Message {
            message: arrived,
            context: self.session.unsettled.link.context.clone(),
        };
        let message = message::incoming(&arrived)?;
        let Some(reply) = arrived.message.reply else {
            return Err("a message has no reply subject for its acknowledgement".into());
        };
        let receipt = NatsReceipt::hold(
            Arc::clone(&self.session.unsettled),
            losses,
            reply,
            &message,
            &self.terms,
        );
        self.session.prefetched.add(message, receipt);
        Ok(())
    }

    /// Ends the subscription, and holds the messages that the server sent before its end.
    async fn leave(&self, mut inbox: Inbox) {
        let last_messages = async {
            inbox.subscriber.drain().await?;
            while let Some(arrived) = inbox.subscriber.next().await {
                if matches!(arrived.status, None | Some(StatusCode::OK)) {
                    self.hold(inbox.losses, arrived)?;
                }
            }
            Ok::<_, TransportError>(())
        };
        let failure = "the server redelivers the last messages of a subscription";
        briefly(last_messages, failure).await;
    }
}

/// Does the last work of a subscription, and waits at most [`LAST_MESSAGES`] for it. `failure` is
/// logged if the work fails or takes longer.
async fn briefly(work: impl Future<Output = Result<(), TransportError>>, failure: &str) {
    let done = timeout(LAST_MESSAGES, work).await;
    if let Err(error) = done.unwrap_or_else(|elapsed| Err(elapsed.into())) {
        tracing::debug!(%error, "{failure}");
    }
}
