//! Fetches messages ahead: one request after the other, and each message that comes is held.
//!
//! Every request goes with an inbox of the connection that it is sent over. After a loss of the
//! connection, and when the server has been silent for too long, there is a new inbox and a new
//! request, and the server drops a request whose inbox has no subscriber.

use std::{future::pending, sync::Arc, time::Duration};

use async_nats::{
    StatusCode, Subject, Subscriber,
    connection::State as Connection,
    jetstream::{
        self,
        consumer::{PullConsumer, pull::BatchConfig},
    },
};
use futures_util::StreamExt;
use tokio::{
    select,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{message, receipt::NatsReceipt, session::Session, terms::Terms};
use crate::TransportError;

/// How long a request waits at the server, unless its durable consumer allows less.
const EXPIRES: Duration = Duration::from_secs(30);

/// So many times in that time the server says that the request waits.
const HEARTBEATS: u32 = 6;

/// The server has lost the request when it is silent for so many of them.
const SILENCE: u32 = 3;

/// How long a connection takes at most to end a subscription.
const LAST_MESSAGES: Duration = Duration::from_secs(1);

/// How long the last request waits at the server.
const SWEEP: Duration = Duration::from_millis(10);

pub(super) struct Pull {
    pub(super) consumer: PullConsumer,
    pub(super) terms: Terms,
    pub(super) session: Arc<Session>,
    pub(super) stop: CancellationToken,
}

/// Where messages come in.
struct Inbox {
    subject: Subject,
    subscriber: Subscriber,
    /// How often the connection had been lost before.
    losses: u64,
    /// How many messages are asked for and have not come.
    asked: usize,
}

/// Why an inbox is left.
enum Left {
    Stopped,
    /// Another one follows.
    Lost,
}

impl Pull {
    /// Fetches until it is stopped or fails.
    pub(super) async fn run(self) {
        loop {
            match self.fetch().await {
                Ok(Left::Lost) => {}
                Ok(Left::Stopped) => return self.sweep().await,
                Err(error) => return self.session.prefetched.end(error),
            }
        }
    }

    async fn fetch(&self) -> Result<Left, TransportError> {
        let mut inbox = self.inbox().await?;
        let left = self.receive(&mut inbox).await;
        self.leave(inbox).await;
        left
    }

    async fn inbox(&self) -> Result<Inbox, TransportError> {
        // Before the subscription: what comes over it came after so many losses.
        let losses = self.session.link.losses();
        let client = self.session.link.context.client();
        let subject = Subject::from(client.new_inbox());
        Ok(Inbox {
            subscriber: client.subscribe(subject.clone()).await?,
            subject,
            losses,
            asked: 0,
        })
    }

    /// Replaces the request that is still open at the server with a short one, and waits for its
    /// end. NATS 2.9 assigns a returned message to an open request, even if its inbox has no
    /// subscriber any more, and then delivers the message to no other request before `ack_wait` is
    /// over.
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
                let came = inbox
                    .subscriber
                    .next()
                    .await
                    .ok_or("the connection is closed")?;
                self.take(&mut inbox, came)?;
            }
            self.leave(inbox).await;
            Ok::<_, TransportError>(())
        };
        match timeout(LAST_MESSAGES, swept).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(error, "an open request for messages ends by itself"),
            Err(_) => tracing::debug!("an open request for messages ends by itself"),
        }
    }

    async fn receive(&self, inbox: &mut Inbox) -> Result<Left, TransportError> {
        let heartbeat = self.heartbeat();
        let mut silent = None;
        loop {
            if inbox.asked == 0 {
                inbox.asked = self.terms.batch(self.session.room());
                silent = match inbox.asked {
                    0 => None,
                    asked => {
                        self.ask(inbox.subject.clone(), asked).await?;
                        Some(Instant::now() + SILENCE * heartbeat)
                    }
                };
            }
            select! {
                biased;
                () = self.stop.cancelled() => return Ok(Left::Stopped),
                () = self.session.link.lost(inbox.losses) => return Ok(Left::Lost),
                came = inbox.subscriber.next() => {
                    self.take(inbox, came.ok_or("the connection is closed")?)?;
                    silent = silent.map(|_| Instant::now() + SILENCE * heartbeat);
                }
                () = self.session.prefetched.room(), if inbox.asked == 0 => {}
                () = at(silent) => {
                    // Without a connection the request is not lost but on its way.
                    if self.session.link.context.client().connection_state() == Connection::Connected {
                        return Ok(Left::Lost);
                    }
                    silent = Some(Instant::now() + SILENCE * heartbeat);
                }
            }
        }
    }

    fn heartbeat(&self) -> Duration {
        self.terms.expires(EXPIRES) / HEARTBEATS
    }

    async fn ask(&self, inbox: Subject, messages: usize) -> Result<(), TransportError> {
        let request = BatchConfig {
            batch: messages,
            expires: Some(self.terms.expires(EXPIRES)),
            idle_heartbeat: self.heartbeat(),
            ..BatchConfig::default()
        };
        Ok(self.consumer.request_batch(request, inbox).await?)
    }

    /// Holds a message, or reads what the server says of the request.
    fn take(&self, inbox: &mut Inbox, came: async_nats::Message) -> Result<(), TransportError> {
        match came.status {
            None | Some(StatusCode::OK) => {
                inbox.asked = inbox.asked.saturating_sub(1);
                self.hold(inbox.losses, came)
            }
            Some(StatusCode::IDLE_HEARTBEAT) => Ok(()),
            // It has expired.
            Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND) => {
                inbox.asked = 0;
                Ok(())
            }
            Some(status) => {
                let description = came.description.unwrap_or_default();
                Err(format!(
                    "the server has ended the request for messages: {status} {description}"
                )
                .into())
            }
        }
    }

    fn hold(&self, losses: u64, came: async_nats::Message) -> Result<(), TransportError> {
        let came = jetstream::Message {
            message: came,
            context: self.session.link.context.clone(),
        };
        let message = message::incoming(&came)?;
        let Some(reply) = came.message.reply else {
            return Err("a message that cannot be acknowledged".into());
        };
        let receipt = NatsReceipt::hold(
            Arc::clone(&self.session),
            losses,
            reply,
            &message,
            &self.terms,
        );
        self.session.prefetched.add(message, receipt);
        Ok(())
    }

    /// Ends the subscription, and then takes what the server had sent before.
    async fn leave(&self, mut inbox: Inbox) {
        let last_messages = async {
            inbox.subscriber.drain().await?;
            while let Some(came) = inbox.subscriber.next().await {
                if matches!(came.status, None | Some(StatusCode::OK)) {
                    self.hold(inbox.losses, came)?;
                }
            }
            Ok::<_, TransportError>(())
        };
        match timeout(LAST_MESSAGES, last_messages).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "messages of an ended subscription come again by themselves")
            }
            Err(_) => tracing::debug!(
                "a subscription does not end: messages that still come by it come again by themselves"
            ),
        }
    }
}

/// Sleeps until this moment; for ever when there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}
