//! Deliveries of a durable consumer.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::{
    Context,
    consumer::{
        AckPolicy,
        pull::{Config, Stream},
    },
};
use futures_util::StreamExt;

use super::{NatsConfig, NatsSubscription, message, receipt::NatsReceipt};
use crate::{Delivery, Source, TransportError};

/// The messages of one durable pull consumer of a stream.
///
/// An acknowledgement is itself confirmed by the server. [`Retry`](crate::Settlement::Retry) leaves the pause to the server.
/// [`Reject`](crate::Settlement::Reject) publishes the message to the dead-letter subject, if there is one, and terminates it.
/// What was fetched and not handed out when the source is dropped comes again after the consumer's time to acknowledge.
///
/// A message has its subject as topic, as its id the header `message-id` or else `Nats-Msg-Id`, as key the header `idem-key`;
/// its coordinates are the stream and its sequence there, and it was sent when the stream took it.
///
/// It connects at the first call of `next`; when the connection is lost it connects again by itself.
pub struct NatsSource {
    config: NatsConfig,
    subscription: Arc<NatsSubscription>,
    context: Option<Context>,
    messages: Option<Stream>,
}

impl NatsSource {
    /// Consumes from this server or cluster; does not connect yet.
    pub fn new(config: NatsConfig, subscription: NatsSubscription) -> Self {
        Self {
            config,
            subscription: Arc::new(subscription),
            context: None,
            messages: None,
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
        let context = match &mut self.context {
            Some(context) => context,
            none => none.insert(self.config.connect("source").await?),
        };
        let messages = match &mut self.messages {
            Some(messages) => messages,
            none => none.insert(consume(context, &self.subscription).await?),
        };
        let delivered = match messages.next().await {
            Some(Ok(delivered)) => delivered,
            Some(Err(error)) => {
                self.messages = None;
                return Err(error.into());
            }
            None => {
                self.messages = None;
                return Err("the server has ended the subscription".into());
            }
        };
        let message = message::incoming(&delivered)?;
        let Some(reply) = delivered.message.reply else {
            return Err("a message that cannot be acknowledged".into());
        };
        let receipt = NatsReceipt::new(context.clone(), reply, message.clone(), Arc::clone(&self.subscription));
        Ok(Some(Delivery::new(message, receipt)))
    }
}
