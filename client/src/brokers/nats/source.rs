//! Deliveries of a durable consumer.

use std::sync::Arc;

use super::{
    NatsConfig, NatsSubscription,
    session::{Pulling, Session},
    terms::LimitWarning,
};
use crate::{Closed, Delivery, Source, TransportError};

/// The messages of one durable pull consumer of a stream.
///
/// A message is held from its arrival until it is settled: fetched ahead, waiting in the consumer
/// or being handled. Meanwhile the source tells the server that there is progress, three times in
/// the time that the durable consumer has for a settlement (`ack_wait`, or its `backoff`). So a
/// message is not delivered again for having waited, and a handler that hangs keeps its message
/// for as long as its process lives.
///
/// An acknowledgement is itself confirmed by the server. [`Retry`](crate::Settlement::Retry)
/// leaves the pause to the server, and so does [`Release`](crate::Settlement::Release), which NATS
/// counts as a delivery. Where the durable consumer has a `max_deliver`, NATS does not deliver a
/// message again after so many deliveries. There a released message stays with this source, which
/// delivers it again itself, and so does a message whose receipt is dropped at its last delivery.
/// The consumer rejects a message that fails at its last delivery or the one before.
///
/// [`Reject`](crate::Settlement::Reject) publishes the message to the dead-letter subject and
/// terminates it. Without such a subject a [`Consumer`](crate::Consumer) keeps the message in
/// `idem.dead_letter` and acknowledges it; settled by hand, it is an error, and the message comes
/// again.
///
/// [`close`](Source::close) returns to the server what was not delivered, and so does dropping the
/// source while its runtime goes on. The messages of a process that dies come again after the time
/// for a settlement.
///
/// A message has its subject as topic, as its id the header `message-id` or else `Nats-Msg-Id`, as
/// key the header `idem-key`; its coordinates are the stream and its sequence there, and it was
/// sent when the stream took it.
///
/// It connects at the first call of `next`; when the connection is lost it connects again by
/// itself. A server that was restarted may have forgotten a delivery that came before, and then
/// never confirms its settlement. So settling such a delivery waits at most 1 s for the
/// confirmation. Without one it returns an error, and the message may come again.
pub struct NatsSource {
    config: NatsConfig,
    subscription: Arc<NatsSubscription>,
    session: Option<Arc<Session>>,
    pulling: Option<Pulling>,
    limit_warning: LimitWarning,
}

impl NatsSource {
    /// Consumes from this server or cluster; does not connect yet.
    pub fn new(config: NatsConfig, subscription: NatsSubscription) -> Self {
        Self {
            config,
            subscription: Arc::new(subscription),
            session: None,
            pulling: None,
            limit_warning: LimitWarning::default(),
        }
    }

    /// The session, with a task that fetches ahead.
    async fn session(&mut self) -> Result<Arc<Session>, TransportError> {
        let session = match &self.session {
            Some(session) => session,
            None => self
                .session
                .insert(Session::connect(&self.config, &self.subscription).await?),
        };
        if self.pulling.is_none() {
            self.pulling = Some(Pulling::start(session, &mut self.limit_warning).await?);
        }
        Ok(Arc::clone(session))
    }
}

impl Drop for NatsSource {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        let runtime = session.runtime.clone();
        let ending = session.end(self.pulling.take());
        // Without effect when its runtime has ended: the messages come again after their time.
        runtime.spawn(async move { drop(ending.await) });
    }
}

impl Source for NatsSource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        let session = self.session().await?;
        let came = tokio::select! {
            withheld = session.withheld.next() => Ok(withheld),
            prefetched = session.prefetched.next() => prefetched,
        };
        session.prefetched.make_room();
        match came {
            Ok((message, receipt)) => Ok(Some(Delivery::new(message, receipt))),
            Err(error) => {
                // The next call begins anew.
                self.pulling = None;
                Err(error)
            }
        }
    }

    async fn close(&mut self) -> Closed {
        match self.session.take() {
            Some(session) => session.end(self.pulling.take()).await,
            None => Closed::default(),
        }
    }
}
