//! The source: the deliveries of a durable consumer.

use std::sync::Arc;

use idem_runtime::{Delivery, Source, consumer::Closed, transport::TransportError};

use super::{NatsConfig, NatsSubscription, pull::Pulling, session::Session};

/// A source of messages: one durable pull consumer of a NATS JetStream stream.
///
/// # Messages
///
/// The parts of a message are read from NATS as follows:
///
/// | [`Message`](idem_runtime::Message) | NATS |
/// |---|---|
/// | topic | the subject |
/// | message id | the header `message-id`, or `Nats-Msg-Id` if there is no such header |
/// | key | the header `idem-key` |
/// | coordinates | the stream, and the message's sequence number in it |
/// | time of sending | the time when the stream stored the message |
///
/// # Waiting messages
///
/// The source holds a message from its arrival until it is settled: while the message is fetched
/// ahead, waits in the consumer or is handled. During this time the source reports progress to the
/// server, three times within the time that the durable consumer allows for a settlement
/// (`ack_wait`, or its `backoff`). So waiting does not cause a redelivery, and a handler that hangs
/// keeps its message as long as its process lives.
///
/// # Settlements
///
/// Settling a message waits until the server confirms the settlement.
///
/// - [`Retry`](idem_runtime::Settlement::Retry): the server redelivers the message after the delay.
/// - [`Release`](idem_runtime::Settlement::Release): the server redelivers the message after the
///   delay, and counts this as a delivery.
/// - [`Reject`](idem_runtime::Settlement::Reject): the source publishes the message to the
///   dead-letter subject and then terminates it. Without such a subject a
///   [`Consumer`](idem_runtime::Consumer) keeps the message in `idem.dead_letter` and acknowledges
///   it, while a direct settlement returns an error and the message is redelivered.
///
/// If the durable consumer has a `max_deliver`, NATS does not redeliver a message after this number
/// of deliveries. Then a released message stays with this source, and the source redelivers it
/// itself. The same applies to a message if its receipt is dropped at its last delivery. The
/// consumer rejects a message that fails at its last delivery or at the delivery before it.
///
/// # Connections and the end
///
/// The source connects in the first [`next`](Source::next), and reconnects by itself when the
/// connection is lost. A server that was restarted can forget a delivery that it made before, and
/// then never confirms the settlement of that delivery. So settling such a delivery waits at most
/// 1 s for the confirmation. Without a confirmation it returns an error, and the message may be
/// redelivered.
///
/// [`close`](Source::close) returns the undelivered messages to the server. Dropping the source
/// does the same while its Tokio runtime runs. When a process dies, the server redelivers its
/// messages after the time for a settlement.
pub struct NatsSource {
    config: NatsConfig,
    subscription: Arc<NatsSubscription>,
    session: Option<Arc<Session>>,
    pulling: Option<Pulling>,
}

impl NatsSource {
    /// Returns a source for this subscription at this server or cluster. Does not connect.
    pub fn new(config: NatsConfig, subscription: NatsSubscription) -> Self {
        Self {
            config,
            subscription: Arc::new(subscription),
            session: None,
            pulling: None,
        }
    }

    /// Returns the session. Connects, and starts the task that fetches ahead, if necessary.
    async fn session(&mut self) -> Result<Arc<Session>, TransportError> {
        let session = match &self.session {
            Some(session) => session,
            None => self
                .session
                .insert(Session::connect(&self.config, &self.subscription).await?),
        };
        if self.pulling.is_none() {
            self.pulling = Some(Pulling::start(session).await?);
        }
        Ok(Arc::clone(session))
    }
}

impl Drop for NatsSource {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        let runtime = session.unsettled.runtime.clone();
        let ending = session.end(Pulling::stop(self.pulling.take()));
        // Does nothing if the runtime has ended: the server then redelivers the messages after
        // `ack_wait`.
        runtime.spawn(async move { drop(ending.await) });
    }
}

impl Source for NatsSource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        let session = self.session().await?;
        let came = tokio::select! {
            withheld = session.unsettled.withheld.next() => Ok(withheld),
            prefetched = session.prefetched.next() => prefetched,
        };
        session.prefetched.make_room();
        match came {
            Ok((message, receipt)) => Ok(Some(Delivery::new(message, receipt))),
            Err(error) => {
                // The next call of `next` starts a new task that fetches.
                self.pulling = None;
                Err(error)
            }
        }
    }

    async fn close(&mut self) -> Closed {
        match self.session.take() {
            Some(session) => session.end(Pulling::stop(self.pulling.take())).await,
            None => Closed::default(),
        }
    }
}
