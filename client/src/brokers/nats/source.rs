//! Deliveries of a durable consumer.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::{
    Context, Message as Delivered,
    consumer::{
        AckPolicy,
        pull::{Config, Stream},
    },
};
use futures_util::{FutureExt, StreamExt};
use tokio::task::unconstrained;

use super::{NatsConfig, NatsSubscription, link::Link, message, receipt::NatsReceipt};
use crate::{Delivery, Source, TransportError};

/// The messages of one durable pull consumer of a stream.
///
/// An acknowledgement is itself confirmed by the server. [`Retry`](crate::Settlement::Retry) and
/// [`Release`](crate::Settlement::Release) leave the pause to the server, which counts both.
/// [`Reject`](crate::Settlement::Reject) publishes the message to the dead-letter subject and
/// terminates it. Without such a subject a [`Consumer`](crate::Consumer) keeps the message in
/// `idem.dead_letter` and acknowledges it; settled by hand, it is an error, and the message comes
/// again. What was fetched and not handed out when the source is dropped comes again after the
/// consumer's time to acknowledge.
///
/// A message has its subject as topic, as its id the header `message-id` or else `Nats-Msg-Id`, as key the header `idem-key`;
/// its coordinates are the stream and its sequence there, and it was sent when the stream took it.
///
/// It connects at the first call of `next`; when the connection is lost it connects again by
/// itself. A server that was restarted may have forgotten a delivery that came before, and then
/// never confirms its settlement. So settling such a delivery waits at most 1 s for the
/// confirmation. Without one it returns an error, and the message may come again.
pub struct NatsSource {
    config: NatsConfig,
    subscription: Arc<NatsSubscription>,
    link: Option<Link>,
    messages: Option<Stream>,
    /// How often the connection had been lost when nothing was fetched ahead last. Each delivery
    /// since then came later.
    losses: u64,
}

impl NatsSource {
    /// Consumes from this server or cluster; does not connect yet.
    pub fn new(config: NatsConfig, subscription: NatsSubscription) -> Self {
        Self {
            config,
            subscription: Arc::new(subscription),
            link: None,
            messages: None,
            losses: 0,
        }
    }

    async fn link(&mut self) -> Result<Link, TransportError> {
        let link = match &mut self.link {
            Some(link) => link,
            none => none.insert(Link::connect(&self.config).await?),
        };
        Ok(link.clone())
    }

    async fn fetch(&mut self, link: &Link) -> Result<Delivered, TransportError> {
        let messages = match &mut self.messages {
            Some(messages) => messages,
            none => {
                self.losses = link.losses();
                none.insert(consume(&link.context, &self.subscription).await?)
            }
        };
        // Read before the stream is polled: a loss in between may have left deliveries there.
        let losses = link.losses();
        // Tokio's budget of a task would hide deliveries that are there.
        let fetched = match unconstrained(messages.next()).now_or_never() {
            Some(fetched) => fetched,
            None => {
                self.losses = losses;
                messages.next().await
            }
        };
        match fetched {
            Some(Ok(delivered)) => Ok(delivered),
            ended => {
                self.messages = None;
                Err(match ended {
                    Some(Err(error)) => error.into(),
                    _ => "the server has ended the subscription".into(),
                })
            }
        }
    }
}

async fn consume(context: &Context, subscription: &NatsSubscription) -> Result<Stream, TransportError> {
    let config = Config {
        durable_name: Some(subscription.consumer.clone()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(subscription.ack_wait_s.into()),
        filter_subject: subscription.subject.clone(),
        ..Config::default()
    };
    let stream = context.get_stream_no_info(&subscription.stream).await?;
    let consumer = stream.get_or_create_consumer(&subscription.consumer, config).await?;
    let messages = consumer
        .stream()
        .max_messages_per_batch(subscription.prefetch.max(1).into())
        .messages()
        .await?;
    Ok(messages)
}

impl Source for NatsSource {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        let link = self.link().await?;
        let delivered = self.fetch(&link).await?;
        let arrival = link.arrival(self.losses);
        let message = message::incoming(&delivered)?;
        let Some(reply) = delivered.message.reply else {
            return Err("a message that cannot be acknowledged".into());
        };
        let subscription = Arc::clone(&self.subscription);
        let receipt = NatsReceipt::new(arrival, reply, message.clone(), subscription);
        Ok(Some(Delivery::new(message, receipt)))
    }
}
