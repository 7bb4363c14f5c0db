//! Deliveries of a durable consumer.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use async_nats::jetstream::{
    Context, Message as Delivered,
    consumer::{
        AckPolicy,
        pull::{Config, Stream},
    },
};
use futures_util::{FutureExt, StreamExt};

use super::{NatsConfig, NatsSubscription, link::Link, message, receipt::NatsReceipt};
use crate::{Delivery, Source, TransportError};

/// The messages of one durable pull consumer of a stream.
///
/// An acknowledgement is itself confirmed by the server. [`Retry`](crate::Settlement::Retry) and
/// [`Release`](crate::Settlement::Release) leave the pause to the server, which counts both.
/// [`Reject`](crate::Settlement::Reject) publishes the message to the dead-letter subject, if there is one, and terminates it.
/// What was fetched and not handed out when the source is dropped comes again after the consumer's time to acknowledge.
///
/// A message has its subject as topic, as its id the header `message-id` or else `Nats-Msg-Id`, as key the header `idem-key`;
/// its coordinates are the stream and its sequence there, and it was sent when the stream took it.
///
/// It connects at the first call of `next`; when the connection is lost it connects again by
/// itself. Settling a delivery that came before the loss is an error, because a server that was
/// restarted may have forgotten it. The message may come again.
pub struct NatsSource {
    config: NatsConfig,
    subscription: Arc<NatsSubscription>,
    link: Option<Link>,
    messages: Option<Stream>,
    /// How often the connection had been lost before the deliveries in `messages` came.
    losses: u64,
    /// Deliveries that came before the last loss, each with its own number of losses.
    earlier: VecDeque<(u64, Delivered)>,
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
            earlier: VecDeque::new(),
        }
    }

    async fn link(&mut self) -> Result<Link, TransportError> {
        let link = match &mut self.link {
            Some(link) => link,
            none => none.insert(Link::connect(&self.config).await?),
        };
        Ok(link.clone())
    }

    /// The next delivery, and how often the connection had been lost before it came.
    async fn fetch(&mut self, link: &Link) -> Result<(u64, Delivered), TransportError> {
        let losses = link.losses();
        if losses > self.losses {
            // What is there by now came before the loss.
            self.set_aside();
            self.losses = losses;
        }
        if let Some(earlier) = self.earlier.pop_front() {
            return Ok(earlier);
        }
        let messages = match &mut self.messages {
            Some(messages) => messages,
            none => none.insert(consume(&link.context, &self.subscription).await?),
        };
        match messages.next().await {
            Some(Ok(delivered)) => Ok((self.losses, delivered)),
            ended => {
                self.messages = None;
                Err(match ended {
                    Some(Err(error)) => error.into(),
                    _ => "the server has ended the subscription".into(),
                })
            }
        }
    }

    /// Sets aside the deliveries that are there. They are at most as many as are prefetched: beyond
    /// that number the stream has asked the server for more, over the new connection.
    fn set_aside(&mut self) {
        for _ in 0..self.subscription.prefetch.max(1) {
            let Some(messages) = &mut self.messages else { return };
            match messages.next().now_or_never() {
                Some(Some(Ok(delivered))) => self.earlier.push_back((self.losses, delivered)),
                Some(_) => self.messages = None,
                None => return,
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
        let (losses, delivered) = self.fetch(&link).await?;
        let message = message::incoming(&delivered)?;
        let Some(reply) = delivered.message.reply else {
            return Err("a message that cannot be acknowledged".into());
        };
        let subscription = Arc::clone(&self.subscription);
        let receipt = NatsReceipt::new(link.arrival(losses), reply, message.clone(), subscription);
        Ok(Some(Delivery::new(message, receipt)))
    }
}
