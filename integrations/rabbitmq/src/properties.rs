//! Converts messages to AMQP properties and headers, and back.

use std::{collections::BTreeMap, ops::RangeInclusive};

use idem_runtime::{
    Message, OutgoingMessage,
    transport::{TransportError, headers},
};
use lapin::{
    BasicProperties,
    message::Delivery,
    types::{AMQPValue, FieldTable, ShortString},
};
use serde_json::Value;
use time::OffsetDateTime;

/// The delivery mode of a persistent message. A durable queue writes such a message to disk before
/// it confirms the message.
const PERSISTENT: u8 = 2;

/// The size, in bytes, of the other parts of the frame that contains the properties: the head and
/// the end of the frame, the class, the body size, the property flags, the delivery mode and the
/// timestamp.
const REST_OF_FRAME: usize = 7 + 1 + 14 + 1 + 8;

/// Returns the properties of an effect. Fails if a name or an id is longer than the 255 bytes that
/// AMQP allows.
pub(super) fn outgoing(message: &OutgoingMessage) -> Result<BasicProperties, TransportError> {
    let own = [(headers::KEY, message.key.as_deref())];
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short(message.message_id.to_string())?);
    if let Some(message_type) = &message.message_type {
        properties = properties.with_type(short(message_type)?);
    }
    if let Some(content_type) = &message.content_type {
        properties = properties.with_content_type(short(content_type)?);
    }
    if let Ok(now_s) = u64::try_from(OffsetDateTime::now_utc().unix_timestamp()) {
        properties = properties.with_timestamp(now_s);
    }
    let mut table = FieldTable::default();
    for (name, value) in headers::outgoing(message, &own) {
        if name == headers::CORRELATION_ID {
            properties = properties.with_correlation_id(short(headers::text(&value))?);
        } else {
            table.insert(short(name)?, amqp(&value));
        }
    }
    Ok(properties.with_headers(table))
}

/// Returns a header's value in AMQP. Numbers and booleans keep their types, because a headers
/// exchange compares types, too. Numbers that AMQP has no type for become text.
fn amqp(value: &Value) -> AMQPValue {
    match value {
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => AMQPValue::LongLongInt(integer),
            (None, Some(double)) if number.is_f64() => AMQPValue::Double(double),
            _ => AMQPValue::LongString(number.to_string().into()),
        },
        other => AMQPValue::LongString(headers::text(other).into()),
    }
}

/// Returns the size, in bytes, of the frame that contains properties made by [`outgoing`]. AMQP
/// puts all properties into one frame.
pub(super) fn frame_bytes(properties: &BasicProperties) -> usize {
    let names = [
        properties.message_id(),
        properties.correlation_id(),
        properties.kind(),
        properties.content_type(),
    ];
    let names = names
        .into_iter()
        .flatten()
        .map(|name| 1 + name.as_str().len());
    let headers = table(properties).map(|(name, value)| {
        let value = match value {
            AMQPValue::LongString(text) => 4 + text.as_bytes().len(),
            // A number, or a boolean, which needs less.
            _ => 8,
        };
        1 + name.as_str().len() + 1 + value
    });
    REST_OF_FRAME + names.sum::<usize>() + 4 + headers.sum::<usize>()
}

/// Converts a name or an id to a short string of AMQP. Fails if the text is too long.
pub(super) fn short(text: impl Into<String>) -> Result<ShortString, TransportError> {
    Ok(ShortString::try_new(text)?)
}

/// Returns the message of a delivery from `queue`, and takes the payload out of the delivery. An
/// AMQP property takes precedence over a header with the same meaning.
pub(super) fn incoming(queue: &str, delivery: &mut Delivery) -> Message {
    let deliveries = deliveries(queue, delivery);
    let properties = &delivery.properties;
    let headers: BTreeMap<_, _> = table(properties)
        .map(|(name, value)| (name.to_string(), headers::text(&json(value))))
        .collect();
    let mut message = headers::incoming(queue, std::mem::take(&mut delivery.data), headers);
    if let Some(deliveries) = deliveries {
        message = message.with_deliveries(deliveries);
    }
    let take: [(_, headers::With); 4] = [
        (properties.message_id(), Message::with_message_id),
        (properties.correlation_id(), Message::with_correlation_id),
        (properties.kind(), Message::with_type),
        (properties.content_type(), Message::with_content_type),
    ];
    for (property, with) in take {
        if let Some(value) = property {
            message = with(message, value.to_string());
        }
    }
    let sent_at = properties
        .timestamp()
        .and_then(|seconds| i64::try_from(seconds).ok());
    match sent_at.map(OffsetDateTime::from_unix_timestamp) {
        Some(Ok(sent_at)) => message.with_sent_at(sent_at),
        _ => message,
    }
}

fn table(properties: &BasicProperties) -> impl Iterator<Item = (&ShortString, &AMQPValue)> {
    properties.headers().iter().flat_map(|table| table.inner())
}

/// The header that a quorum queue adds to a message that was delivered before, since RabbitMQ 4.3.
/// No other queue sets it or removes it: in a first delivery it is a copy of the sender. The header
/// counts the earlier deliveries with and without a failure.
const ACQUIRED: &str = "x-acquired-count";

/// The header that a quorum queue adds to a message that was delivered before. Since RabbitMQ 4.3
/// the queue adds it only if the message failed. In a first delivery it is a copy of the sender.
const DELIVERED: &str = "x-delivery-count";

/// The counts at which a message is near the delivery limit of its quorum queue. The limit is 20
/// since RabbitMQ 4.0, unless the queue is declared with another limit.
const NEAR_LIMIT: RangeInclusive<u32> = 15..=20;

/// Returns whether the queue counts a return of a message that did not fail, as quorum queues
/// before RabbitMQ 4.3 do. Returns `None` for a first delivery, which does not show this.
pub(super) fn counts_returns(delivery: &Delivery) -> Option<bool> {
    delivery
        .redelivered
        .then(|| counted(delivery, DELIVERED).is_some() && counts_releases(delivery))
}

/// Returns the count in this header of the broker.
fn counted(delivery: &Delivery, header: &str) -> Option<u32> {
    let mut all = table(&delivery.properties).filter(|_| delivery.redelivered);
    count(all.find(|(name, _)| name.as_str() == header)?.1)
}

/// Returns whether the message's number of deliveries includes deliveries after which the message
/// was returned without a failure.
pub(super) fn counts_releases(delivery: &Delivery) -> bool {
    counted(delivery, ACQUIRED).is_none()
}

/// Returns the number of deliveries that the queue has counted, if RabbitMQ 4 may delete the
/// message soon.
pub(super) fn near_limit(delivery: &Delivery) -> Option<u32> {
    counted(delivery, DELIVERED).filter(|counted| NEAR_LIMIT.contains(counted))
}

/// Returns the number of deliveries of a message, including this delivery, or `None` if the number
/// is unknown.
///
/// Quorum queues count earlier deliveries in `x-delivery-count`. Since RabbitMQ 4.3 they count
/// failures only, and add no header before the first failure. A classic queue only marks a message
/// that was delivered before. This function then returns `None`, and the consumer counts the
/// failures itself. A constant number would never reach the limit of failures. The header `x-death`
/// counts how many times the message left this queue as a dead letter.
fn deliveries(queue: &str, delivery: &Delivery) -> Option<u32> {
    let before = match counted(delivery, DELIVERED) {
        Some(before) => before,
        None if !counts_releases(delivery) => 0,
        None if delivery.redelivered => return None,
        None => 0,
    };
    let deaths = table(&delivery.properties)
        .find(|(name, _)| name.as_str() == "x-death")
        .and_then(|(_, deaths)| deaths.as_array())
        .map_or(0, |deaths| {
            let here = deaths
                .as_slice()
                .iter()
                .filter_map(AMQPValue::as_field_table)
                .filter(|death| {
                    let died_in = death
                        .inner()
                        .get("queue")
                        .map(|queue| headers::text(&json(queue)));
                    died_in.as_deref() == Some(queue)
                });
            here.filter_map(|death| count(death.inner().get("count")?))
                .fold(0, u32::saturating_add)
        });
    Some(deaths.saturating_add(before).saturating_add(1))
}

fn count(value: &AMQPValue) -> Option<u32> {
    json(value)
        .as_u64()
        .and_then(|count| u32::try_from(count).ok())
}

/// Returns the value of a header as JSON, with bytes that are not UTF-8 in base64.
fn json(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(value) => (*value).into(),
        AMQPValue::ShortShortInt(value) => (*value).into(),
        AMQPValue::ShortShortUInt(value) => (*value).into(),
        AMQPValue::ShortInt(value) => (*value).into(),
        AMQPValue::ShortUInt(value) => (*value).into(),
        AMQPValue::LongInt(value) => (*value).into(),
        AMQPValue::LongUInt(value) => (*value).into(),
        AMQPValue::LongLongInt(value) => (*value).into(),
        AMQPValue::Float(value) => (*value).into(),
        AMQPValue::Double(value) => (*value).into(),
        AMQPValue::DecimalValue(value) => format!("{}e-{}", value.value, value.scale).into(),
        AMQPValue::ShortString(value) => value.as_str().into(),
        AMQPValue::LongString(value) => headers::bytes(value.as_bytes()).into(),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(json).collect(),
        AMQPValue::Timestamp(value) => (*value).into(),
        AMQPValue::FieldTable(table) => table
            .inner()
            .iter()
            .map(|(name, value)| (name.to_string(), json(value)))
            .collect(),
        AMQPValue::ByteArray(value) => headers::bytes(value.as_slice()).into(),
        AMQPValue::Void => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::FieldArray;

    use super::*;

    fn delivered(properties: BasicProperties, redelivered: bool) -> Message {
        let mut delivery = Delivery::mock(1, "".into(), "q".into(), redelivered, b"{}".to_vec());
        delivery.properties = properties;
        incoming("q", &mut delivery)
    }

    #[test]
    fn redelivery_shows_whether_the_queue_counts_returns() {
        let of = |headers: &[&str], redelivered| {
            let mut table = FieldTable::default();
            for name in headers {
                table.insert((*name).into(), AMQPValue::LongLongInt(1));
            }
            let mut delivery =
                Delivery::mock(1, "".into(), "q".into(), redelivered, b"{}".to_vec());
            delivery.properties = BasicProperties::default().with_headers(table);
            counts_returns(&delivery)
        };
        assert_eq!(of(&[], false), None);
        // In a first delivery this header comes from the sender, so it shows nothing.
        assert_eq!(of(&["x-delivery-count"], false), None);
        assert_eq!(of(&["x-delivery-count"], true), Some(true));
        assert_eq!(
            of(&["x-delivery-count", "x-acquired-count"], true),
            Some(false)
        );
        assert_eq!(of(&["x-acquired-count"], true), Some(false));
        assert_eq!(of(&[], true), Some(false));
    }

    #[test]
    fn deliveries_are_read_from_the_broker_headers() {
        let table = |pairs: Vec<(&str, AMQPValue)>| {
            let mut table = FieldTable::default();
            for (name, value) in pairs {
                table.insert(name.into(), value);
            }
            table
        };
        let with =
            |name, value| BasicProperties::default().with_headers(table(vec![(name, value)]));
        let death = |queue: &str, count| {
            AMQPValue::FieldTable(table(vec![
                ("queue", AMQPValue::LongString(queue.into())),
                ("count", AMQPValue::LongLongInt(count)),
            ]))
        };
        assert_eq!(
            delivered(BasicProperties::default(), false).deliveries(),
            Some(1)
        );
        assert_eq!(
            delivered(BasicProperties::default(), true).deliveries(),
            None
        );
        let quorum = with("x-delivery-count", AMQPValue::LongLongInt(3));
        assert_eq!(delivered(quorum.clone(), true).deliveries(), Some(4));
        // In a first delivery the sender has copied the header.
        assert_eq!(delivered(quorum, false).deliveries(), Some(1));
        let released = with("x-acquired-count", AMQPValue::LongLongInt(3));
        assert_eq!(delivered(released, true).deliveries(), Some(1));
        let deaths = FieldArray::from(vec![death("q", 2), death("elsewhere", 5)]);
        let dead = with("x-death", AMQPValue::FieldArray(deaths));
        assert_eq!(delivered(dead, false).deliveries(), Some(3));
    }
}
