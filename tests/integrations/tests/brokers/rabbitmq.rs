use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use idem_brokers::RabbitMq;
use idem_rabbitmq::{RabbitMqConfig, RabbitMqPublisher, RabbitMqSource, RabbitMqSubscription};
use idem_runtime::{PublishError, Publisher, Settlement, Source, relay::Topics};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use serde_json::json;
use uuid::Uuid;

use crate::environment::{assert_parked, assert_waited_for};
use crate::rejected::{assert_forwarded, assert_rejected_and_requeued};
use crate::traffic::Traffic;
use crate::{DEADLINE, assert_silent, assert_whole, collect, next, plain, publish, text, whole};

static SHARED: Mutex<Option<RabbitMq>> = Mutex::new(None);

/// Returns the URL of the server that these tests share. The server stops with the process.
pub fn shared() -> String {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*shared {
        Some(server) => server.url(),
        None => shared.insert(RabbitMq::start().unwrap()).url(),
    }
}

/// Opens a connection and a channel for the test itself.
async fn admin(url: &str) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

async fn declare(url: &str, queue: &str, arguments: &[(&str, &str)]) {
    let texts = arguments
        .iter()
        .map(|(name, value)| (*name, AMQPValue::LongString((*value).into())));
    declare_with(url, queue, &texts.collect::<Vec<_>>()).await;
}

/// Declares a durable queue with arguments of any type.
pub async fn declare_with(url: &str, queue: &str, arguments: &[(&str, AMQPValue)]) {
    let (_connection, channel) = admin(url).await;
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    let durable = QueueDeclareOptions::durable();
    channel
        .queue_declare(queue.into(), durable, table)
        .await
        .unwrap();
}

pub fn publisher(url: &str) -> RabbitMqPublisher {
    RabbitMqPublisher::new(RabbitMqConfig::new(url))
}

fn source(url: &str, queue: &str) -> RabbitMqSource {
    RabbitMqSource::new(
        RabbitMqConfig::new(url),
        RabbitMqSubscription {
            prefetch: 10,
            ..RabbitMqSubscription::new(queue)
        },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn published_message_arrives_with_every_property() {
    let url = shared();
    declare(&url, "whole", &[]).await;
    let effect = whole("whole");
    publisher(&url).publish(&effect).await.unwrap();

    let mut source = source(&url, "whole");
    let delivery = next(&mut source).await;
    assert_whole(&delivery, &effect);
    delivery.settle(Settlement::Acknowledge).await.unwrap();
    drop(source);
    assert_silent(&mut self::source(&url, "whole")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retried_message_is_redelivered_and_counted() {
    let url = shared();
    // A quorum queue counts deliveries exactly. A classic queue only marks a message as
    // redelivered, so the count of a redelivery is unknown.
    let (exact, unknown) = ([Some(1), Some(2), Some(3)], [Some(1), None, None]);
    for (queue, kind, counts) in [("quorum", "quorum", exact), ("classic", "classic", unknown)] {
        declare(&url, queue, &[("x-queue-type", kind)]).await;
        publisher(&url)
            .publish(&plain(queue, "again"))
            .await
            .unwrap();
        let mut source = source(&url, queue);
        for deliveries in counts {
            let delivery = next(&mut source).await;
            assert_eq!(delivery.message().deliveries(), deliveries, "{queue}");
            delivery.settle(Settlement::RETRY).await.unwrap();
        }
        next(&mut source)
            .await
            .settle(Settlement::Acknowledge)
            .await
            .unwrap();
        assert_silent(&mut source).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_retry_does_not_delay_other_messages() {
    let url = shared();
    declare(&url, "delayed", &[]).await;
    let publisher = publisher(&url);
    publisher.publish(&plain("delayed", "held")).await.unwrap();
    let mut source = source(&url, "delayed");
    let started = Instant::now();
    let after = Duration::from_secs(2);
    next(&mut source)
        .await
        .settle(Settlement::Retry { after })
        .await
        .unwrap();
    publisher.publish(&plain("delayed", "other")).await.unwrap();

    let other = next(&mut source).await;
    assert_eq!(text(&other), "other");
    other.settle(Settlement::Acknowledge).await.unwrap();
    let held = next(&mut source).await;
    assert_eq!(
        (text(&held), held.message().deliveries()),
        ("held".into(), None)
    );
    assert!(started.elapsed() >= after);
    held.settle(Settlement::Acknowledge).await.unwrap();
}

/// A rejected message reaches the queue of dead letters through the dead-letter exchange. When the
/// message comes back to its first queue in the same way, the delivery is counted.
#[tokio::test(flavor = "multi_thread")]
async fn rejected_message_reaches_dead_letter_exchange() {
    let url = shared();
    declare(
        &url,
        "dead",
        &[
            ("x-dead-letter-exchange", ""),
            ("x-dead-letter-routing-key", "rejects"),
        ],
    )
    .await;
    declare(
        &url,
        "rejects",
        &[
            ("x-dead-letter-exchange", ""),
            ("x-dead-letter-routing-key", "dead"),
        ],
    )
    .await;
    publisher(&url)
        .publish(&plain("dead", "poison"))
        .await
        .unwrap();
    let source = |queue: &str| {
        let subscription = RabbitMqSubscription {
            dead_letter_exchange: true,
            ..RabbitMqSubscription::new(queue)
        };
        RabbitMqSource::new(RabbitMqConfig::new(&url), subscription)
    };
    let (mut source, mut letters) = (source("rejects"), source("dead"));
    let delivery = next(&mut letters).await;
    delivery
        .settle(Settlement::reject("no such order"))
        .await
        .unwrap();

    let letter = next(&mut source).await;
    assert_eq!(text(&letter), "poison");
    assert!(
        letter
            .message()
            .header("x-death")
            .unwrap()
            .contains(r#""reason":"rejected""#)
    );
    letter
        .settle(Settlement::reject("back to where it came from"))
        .await
        .unwrap();
    assert_eq!(next(&mut letters).await.message().deliveries(), Some(2));
}

/// I4: a program that settles deliveries without a `Consumer` cannot reject a message without a
/// dead-letter exchange. The message is redelivered.
#[tokio::test(flavor = "multi_thread")]
async fn i4_reject_without_dead_letter_exchange_fails() {
    let url = shared();
    declare(&url, "by-hand", &[]).await;
    publisher(&url)
        .publish(&plain("by-hand", "poison"))
        .await
        .unwrap();
    let mut source = source(&url, "by-hand");
    let error = next(&mut source)
        .await
        .settle(Settlement::reject("bad"))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("dead-letter exchange"),
        "{error}"
    );
    assert_eq!(text(&next(&mut source).await), "poison");
}

/// I4: a dead letter that an operator forwards is published to RabbitMQ and handled under its new
/// id.
#[tokio::test(flavor = "multi_thread")]
async fn i4_dead_letter_is_forwarded_to_rabbitmq_and_handled() {
    let url = shared();
    declare(&url, "forward", &[("x-queue-type", "quorum")]).await;
    let mut message = plain("forward", "{}");
    message.message_id = Uuid::from_u128(1);
    message.headers.insert("tenant".into(), "t-1".into());
    let publisher = publisher(&url);
    publisher.publish(&message).await.unwrap();
    let id = "00000000-0000-0000-0000-000000000001";
    assert_forwarded(id, source(&url, "forward"), publisher, "forward").await;
}

/// I4: without a dead-letter exchange, rejected messages become dead letters in the database and
/// can be requeued.
#[tokio::test(flavor = "multi_thread")]
async fn i4_rabbitmq_queue_without_dead_letters_loses_nothing() {
    let url = shared();
    for (queue, arguments) in [
        ("none-classic", &[][..]),
        ("none-quorum", &[("x-queue-type", "quorum")]),
    ] {
        declare(&url, queue, arguments).await;
        publish_without_id(&url, queue, "first").await;
        publish_without_id(&url, queue, "second").await;
        assert_rejected_and_requeued(source(&url, queue)).await;
        let (_connection, channel) = admin(&url).await;
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::durable()
        };
        let queue = channel
            .queue_declare(queue.into(), passive, FieldTable::default())
            .await
            .unwrap();
        assert_eq!(queue.message_count(), 0, "a message is not acknowledged");
    }
}

/// Publishes a message as a program that does not use idem does.
async fn publish_without_id(url: &str, queue: &str, text: &str) {
    let (_connection, channel) = admin(url).await;
    let options = BasicPublishOptions::default();
    let properties = BasicProperties::default().with_delivery_mode(2);
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .unwrap();
    let sent = channel.basic_publish(
        "".into(),
        queue.into(),
        options,
        text.as_bytes(),
        properties,
    );
    sent.await.unwrap().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unsettled_message_is_redelivered() {
    let url = shared();
    declare(&url, "unsettled", &[]).await;
    let publisher = publisher(&url);
    publisher
        .publish(&plain("unsettled", "kept"))
        .await
        .unwrap();
    publisher
        .publish(&plain("unsettled", "dropped"))
        .await
        .unwrap();
    let mut first = source(&url, "unsettled");
    let kept = next(&mut first).await;
    drop(next(&mut first).await);
    let again = next(&mut first).await;
    assert_eq!(
        (text(&again), again.message().deliveries()),
        ("dropped".into(), None)
    );

    drop((first, kept, again));
    let mut second = source(&url, "unsettled");
    let wanted = ["kept", "dropped"].map(str::to_owned);
    collect(&mut second, wanted.into()).await;
}

/// A delivery can be settled also after its source was dropped and has stopped consuming.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_source_leaves_time_to_settle() {
    let url = shared();
    declare(&url, "drained", &[]).await;
    publisher(&url)
        .publish(&plain("drained", "last"))
        .await
        .unwrap();
    let mut source = source(&url, "drained");
    let delivery = next(&mut source).await;
    drop(source);
    let (_connection, channel) = admin(&url).await;
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let consumers = async || {
        let queue = channel
            .queue_declare("drained".into(), passive, FieldTable::default())
            .await;
        queue.unwrap().consumer_count()
    };
    let started = Instant::now();
    while consumers().await > 0 {
        assert!(started.elapsed() < DEADLINE, "the source still consumes");
    }
    delivery.settle(Settlement::Acknowledge).await.unwrap();
    assert_silent(&mut self::source(&url, "drained")).await;
}

/// Effects of a topic without a queue fail, and effects of another topic on the same connection
/// succeed.
#[tokio::test(flavor = "multi_thread")]
async fn topic_without_a_queue_is_unavailable() {
    let url = shared();
    declare(&url, "there", &[]).await;
    let publisher = publisher(&url);
    // Publish all effects concurrently, so that the publisher must match each response of the
    // broker to its effect.
    let effects: Vec<_> = (0..400)
        .map(|n| plain(if n % 7 == 0 { "nowhere" } else { "there" }, &n.to_string()))
        .collect();
    let results = join_all(effects.iter().map(|effect| publisher.publish(effect))).await;
    for (effect, result) in effects.iter().zip(results) {
        match (effect.topic.as_str(), result) {
            ("there", Ok(())) => {}
            ("nowhere", Err(PublishError::TopicUnavailable(reason))) => {
                assert!(reason.to_string().contains("NO_ROUTE"), "{reason}")
            }
            (topic, result) => panic!("{topic}: {result:?}"),
        }
    }
    let wanted = effects.iter().filter(|effect| effect.topic == "there");
    let wanted = wanted.map(|effect| String::from_utf8(effect.payload.to_vec()).unwrap());
    collect(&mut source(&url, "there"), wanted.collect()).await;
}

/// A publisher to a missing exchange fails with `TopicUnavailable`, and succeeds after the exchange
/// is declared.
#[tokio::test(flavor = "multi_thread")]
async fn exchange_routes_by_topic_and_missing_one_is_unavailable() {
    let url = shared();
    declare(&url, "routed", &[]).await;
    let (_connection, channel) = admin(&url).await;
    channel
        .exchange_declare(
            "events".into(),
            ExchangeKind::Topic,
            ExchangeDeclareOptions::default(),
            FieldTable::default(),
        )
        .await
        .unwrap();
    channel
        .queue_bind(
            "routed".into(),
            "events".into(),
            "orders.#".into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        )
        .await
        .unwrap();
    let publisher = RabbitMqPublisher::new(RabbitMqConfig {
        exchange: "events".into(),
        ..RabbitMqConfig::new(&url)
    });
    publisher
        .publish(&plain("orders.placed", "x"))
        .await
        .unwrap();
    assert_eq!(text(&next(&mut source(&url, "routed")).await), "x");

    let missing = RabbitMqPublisher::new(RabbitMqConfig {
        exchange: "late exchange".into(),
        ..RabbitMqConfig::new(&url)
    });
    for _ in 0..2 {
        let error = missing
            .publish(&plain("orders.placed", "x"))
            .await
            .unwrap_err();
        assert!(
            matches!(error, PublishError::TopicUnavailable(_)),
            "{error}"
        );
        assert!(error.to_string().contains("late exchange"), "{error}");
    }
    let error = missing.check().await.unwrap_err();
    assert!(
        matches!(&error, PublishError::TopicUnavailable(_)),
        "{error}"
    );
    assert!(error.to_string().contains("late exchange"), "{error}");
    let options = ExchangeDeclareOptions::default();
    channel
        .exchange_declare(
            "late exchange".into(),
            ExchangeKind::Fanout,
            options,
            FieldTable::default(),
        )
        .await
        .unwrap();
    let options = QueueBindOptions::default();
    channel
        .queue_bind(
            "routed".into(),
            "late exchange".into(),
            "".into(),
            options,
            FieldTable::default(),
        )
        .await
        .unwrap();
    missing.publish(&plain("orders.placed", "y")).await.unwrap();
    missing.check().await.unwrap();
}

/// I4: effects wait until their queue is declared, and effects of other queues are published.
#[tokio::test]
async fn i4_effects_wait_for_a_missing_queue() {
    let url = shared();
    declare(&url, "declared-first", &[]).await;
    let mend = async { declare(&url, "declared-late", &[]).await };
    assert_waited_for(publisher(&url), "declared-late", "declared-first", mend).await;
}

/// I4: effects wait for a queue that sends no confirmations over a working connection, as a quorum
/// queue without a majority does.
#[tokio::test]
async fn i4_effects_wait_for_a_queue_without_confirmations() {
    let server = RabbitMq::start().unwrap();
    let url = server.url();
    declare(&url, "mute", &[]).await;
    declare(&url, "loud", &[]).await;
    let set_queue_process = |what: &str| {
        let queue = "rabbit_misc:r(<<\"/\">>, queue, <<\"mute\">>)";
        let script = format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup({queue}), sys:{what}(amqqueue:get_pid(Q))."
        );
        server.control(&["eval", &script]).unwrap();
    };
    set_queue_process("suspend");
    let publisher = RabbitMqPublisher::new(RabbitMqConfig {
        timeout_s: 1,
        ..RabbitMqConfig::new(&url)
    });
    let mend = async { set_queue_process("resume") };
    assert_waited_for(publisher, "mute", "loud", mend).await;
}

/// I4: effects wait until their exchange is declared, and effects that need no exchange are
/// published.
#[tokio::test]
async fn i4_effects_wait_for_a_missing_exchange() {
    let url = shared();
    declare(&url, "no-exchange-needed", &[]).await;
    let late = RabbitMqPublisher::new(RabbitMqConfig {
        exchange: "exchange-late".into(),
        ..RabbitMqConfig::new(&url)
    });
    let publisher = Topics::new()
        .topic("through-exchange", late)
        .otherwise(publisher(&url));
    let (_connection, channel) = admin(&url).await;
    let mend = declare_fanout(&channel, "exchange-late", "no-exchange-needed");
    assert_waited_for(publisher, "through-exchange", "no-exchange-needed", mend).await;
}

/// Declares a fanout exchange and binds this queue to it.
async fn declare_fanout(channel: &Channel, exchange: &str, queue: &str) {
    let (options, table) = (ExchangeDeclareOptions::default(), FieldTable::default());
    channel
        .exchange_declare(
            exchange.into(),
            ExchangeKind::Fanout,
            options,
            table.clone(),
        )
        .await
        .unwrap();
    let options = QueueBindOptions::default();
    let bound = channel.queue_bind(queue.into(), exchange.into(), "".into(), options, table);
    bound.await.unwrap();
}

/// I4: effects wait until the user has permission for their exchange.
#[tokio::test]
async fn i4_effects_wait_for_a_rabbitmq_permission() {
    let server = RabbitMq::start().unwrap();
    let url = server.url();
    let (_connection, channel) = admin(&url).await;
    declare(&url, "open", &[]).await;
    declare_fanout(&channel, "closed", "open").await;
    server.control(&["add_user", "limited", "limited"]).unwrap();
    let permit = |exchanges: &str| {
        server
            .control(&["set_permissions", "limited", "^$", exchanges, "^$"])
            .unwrap()
    };
    permit("^amq.default$");
    let config = || RabbitMqConfig::new(server.url_of("limited"));
    let closed = RabbitMqPublisher::new(RabbitMqConfig {
        exchange: "closed".into(),
        ..config()
    });
    let publisher = Topics::new()
        .topic("refused", closed)
        .otherwise(RabbitMqPublisher::new(config()));
    let mend = async {
        permit(".*");
    };
    assert_waited_for(publisher, "refused", "open", mend).await;
}

/// I4: effects wait while their queue is full.
#[tokio::test]
async fn i4_effects_wait_for_a_full_queue() {
    let url = shared();
    declare(&url, "roomy", &[]).await;
    let (_connection, channel) = admin(&url).await;
    let mut table = FieldTable::default();
    table.insert("x-max-length".into(), AMQPValue::LongInt(3));
    table.insert(
        "x-overflow".into(),
        AMQPValue::LongString("reject-publish".into()),
    );
    let durable = QueueDeclareOptions::durable();
    channel
        .queue_declare("full".into(), durable, table)
        .await
        .unwrap();
    for text in ["1", "2", "3"] {
        publisher(&url).publish(&plain("full", text)).await.unwrap();
    }
    let mend = async {
        let mut source = source(&url, "full");
        while let Some(delivery) = source.next().await.unwrap() {
            let number = text(&delivery);
            delivery.settle(Settlement::Acknowledge).await.unwrap();
            if number == "3" {
                break;
            }
        }
    };
    assert_waited_for(publisher(&url), "full", "roomy", mend).await;
}

/// I4: a server with a memory or disk alarm counts as unavailable, and the error names the alarm.
#[tokio::test(flavor = "multi_thread")]
async fn i4_server_with_an_alarm_is_unavailable() {
    let server = RabbitMq::start().unwrap();
    let url = server.url();
    declare(&url, "alarmed", &[]).await;
    let publisher = RabbitMqPublisher::new(RabbitMqConfig {
        timeout_s: 2,
        ..RabbitMqConfig::new(&url)
    });
    publisher
        .publish(&plain("alarmed", "before"))
        .await
        .unwrap();
    server
        .control(&["set_vm_memory_high_watermark", "absolute", "1"])
        .unwrap();
    for attempt in 0..2 {
        let error = publisher
            .publish(&plain("alarmed", "while"))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, PublishError::Unavailable(_)),
            "{attempt}: {error:?}"
        );
        assert!(
            error.to_string().contains("memory or disk alarm"),
            "{attempt}: {error}"
        );
    }
    let error = publisher.check().await.unwrap_err();
    assert!(
        error.to_string().contains("memory or disk alarm"),
        "{error}"
    );
    server
        .control(&["set_vm_memory_high_watermark", "absolute", "512MB"])
        .unwrap();
    let away = AtomicU32::new(0);
    publish(&publisher, &plain("alarmed", "after"), &away).await;
    let wanted = ["before", "while", "after"].map(str::to_owned);
    collect(&mut source(&url, "alarmed"), wanted.into()).await;
}

/// I4: if an effect is larger than the server allows, the relay parks it.
#[tokio::test]
async fn i4_too_large_effect_is_parked_by_a_rabbitmq_relay() {
    let server = RabbitMq::start_with("max_message_size = 4096\n").unwrap();
    let url = server.url();
    declare(&url, "small", &[]).await;
    assert_parked(publisher(&url), "small", "PRECONDITION_FAILED").await;
}

/// An effect whose topic, message type or header name has more than 255 bytes fails permanently,
/// because AMQP limits these texts to 255 bytes.
#[tokio::test(flavor = "multi_thread")]
async fn effect_that_amqp_cannot_encode_fails_permanently() {
    let url = shared();
    let too_long = "t".repeat(256);
    let mut header = plain("unsent", "x");
    header.headers.insert(too_long.clone(), json!(1));
    let mut message_type = plain("unsent", "x");
    message_type.message_type = Some(too_long.clone());
    for effect in [plain(&too_long, "x"), header, message_type] {
        let error = publisher(&url).publish(&effect).await.unwrap_err();
        assert!(matches!(error, PublishError::Permanent(_)), "{error}");
    }
}

/// I10: who may record an effect does not write into the queues of the server or of others' replies.
#[tokio::test(flavor = "multi_thread")]
async fn i10_queues_of_the_server_are_permanent_failures() {
    let url = shared();
    let effect = plain("amq.rabbitmq.reply-to.x", "x");
    let error = publisher(&url).publish(&effect).await.unwrap_err();
    assert!(matches!(error, PublishError::Permanent(_)), "{error}");
    // At another exchange it is only a routing key, which no queue takes.
    let elsewhere = RabbitMqPublisher::new(RabbitMqConfig {
        exchange: "amq.topic".into(),
        ..RabbitMqConfig::new(&url)
    });
    let error = elsewhere.publish(&effect).await.unwrap_err();
    assert!(
        matches!(error, PublishError::TopicUnavailable(_)),
        "{error}"
    );
}

/// RabbitMQ closes the whole connection when headers do not fit into a frame. The client must
/// detect this case itself. Otherwise, each attempt would fail as with an unavailable broker.
#[tokio::test(flavor = "multi_thread")]
async fn headers_larger_than_a_frame_fail_permanently() {
    let url = shared();
    declare(&url, "framed", &[]).await;
    let publisher = publisher(&url);
    publisher.publish(&plain("framed", "before")).await.unwrap();
    let mut effect = plain("framed", "x");
    for bytes in [120 * 1024, 130 * 1024, 8 * 1024 * 1024] {
        effect
            .headers
            .insert("note".into(), "n".repeat(bytes).into());
        match publisher.publish(&effect).await {
            Ok(()) => assert_eq!(bytes, 120 * 1024),
            Err(error) => assert!(
                bytes > 120 * 1024 && matches!(error, PublishError::Permanent(_)),
                "{bytes}: {error}"
            ),
        }
    }
    publisher.publish(&plain("framed", "after")).await.unwrap();
}

/// A stream keeps its messages and has no place for the next consumer, so a source of it would miss
/// the messages that were sent while no consumer ran.
#[tokio::test(flavor = "multi_thread")]
async fn i4_stream_queue_is_an_error_and_not_consumed() {
    let url = shared();
    declare(&url, "streamed", &[("x-queue-type", "stream")]).await;
    publisher(&url)
        .publish(&plain("streamed", "old"))
        .await
        .unwrap();
    let mut source = source(&url, "streamed");
    let started = tokio::time::timeout(DEADLINE, source.next()).await;
    let error = started.expect("the stream is consumed").unwrap_err();
    assert!(error.to_string().contains("x-queue-type"), "{error}");
}

/// Sends a message with these headers to a queue.
async fn send_with(url: &str, queue: &str, headers: FieldTable) {
    let (_connection, channel) = admin(url).await;
    let confirm = ConfirmSelectOptions::default();
    channel.confirm_select(confirm).await.unwrap();
    let properties = BasicProperties::default().with_headers(headers);
    let options = BasicPublishOptions::default();
    let sent = channel
        .basic_publish("".into(), queue.into(), options, b"{}", properties)
        .await
        .unwrap();
    sent.await.unwrap();
}

fn table(pairs: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in pairs {
        table.insert((*name).into(), value.clone());
    }
    table
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_exchange_routes_by_numbers_and_booleans() {
    let url = shared();
    declare(&url, "typed", &[]).await;
    let (_connection, channel) = admin(&url).await;
    let (kind, options) = (ExchangeKind::Headers, ExchangeDeclareOptions::default());
    channel
        .exchange_declare("by-header".into(), kind, options, FieldTable::default())
        .await
        .unwrap();
    let wanted = table(&[
        ("x-match", AMQPValue::LongString("all".into())),
        ("attempt", AMQPValue::LongInt(3)),
        ("rate", AMQPValue::Double(0.5)),
        ("urgent", AMQPValue::Boolean(true)),
        ("note", AMQPValue::LongString("text".into())),
    ]);
    let options = QueueBindOptions::default();
    channel
        .queue_bind(
            "typed".into(),
            "by-header".into(),
            "".into(),
            options,
            wanted,
        )
        .await
        .unwrap();

    let publisher = RabbitMqPublisher::new(RabbitMqConfig {
        exchange: "by-header".into(),
        ..RabbitMqConfig::new(&url)
    });
    let mut effect = plain("any", "{}");
    effect.headers = [
        ("attempt", json!(3)),
        ("rate", json!(0.5)),
        ("urgent", json!(true)),
        ("note", json!("text")),
        ("large", json!(u64::MAX)),
        ("list", json!([1, null])),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .collect();
    publisher.publish(&effect).await.unwrap();

    let delivery = next(&mut source(&url, "typed")).await;
    let headers = ["attempt", "rate", "urgent", "note", "large", "list"];
    assert_eq!(
        headers.map(|name| delivery.message().header(name)),
        [
            "3",
            "0.5",
            "true",
            "text",
            "18446744073709551615",
            "[1,null]"
        ]
        .map(Some)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn copied_delivery_count_does_not_count() {
    let url = shared();
    declare(&url, "copied", &[("x-queue-type", "quorum")]).await;
    let copied = table(&[
        ("x-delivery-count", AMQPValue::LongLongInt(50)),
        ("x-acquired-count", AMQPValue::LongLongInt(50)),
    ]);
    send_with(&url, "copied", copied).await;
    let mut source = source(&url, "copied");
    for deliveries in 1..=3 {
        let delivery = next(&mut source).await;
        assert_eq!(delivery.message().deliveries(), Some(deliveries));
        delivery.settle(Settlement::RETRY).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn header_that_is_not_utf_8_arrives_as_base64() {
    let url = shared();
    declare(&url, "bytes", &[]).await;
    let headers = table(&[
        ("text", AMQPValue::LongString("Kürzel".into())),
        ("bytes", AMQPValue::LongString(vec![0xff, 0].into())),
        ("array", AMQPValue::ByteArray(vec![0xfe, 0].into())),
    ]);
    send_with(&url, "bytes", headers).await;
    let delivery = next(&mut source(&url, "bytes")).await;
    assert_eq!(
        ["text", "bytes", "array"].map(|name| delivery.message().header(name)),
        ["Kürzel", "/wA=", "/gA="].map(Some)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_queue_is_an_error_until_it_is_declared() {
    let url = shared();
    let mut source = source(&url, "late");
    let error = source.next().await.unwrap_err();
    assert!(error.to_string().contains("late"), "{error}");
    declare(&url, "late", &[]).await;
    publisher(&url).publish(&plain("late", "x")).await.unwrap();
    assert_eq!(text(&next(&mut source).await), "x");
}

/// After a kill and a restart of the broker, publisher and source continue, and every confirmed
/// message is consumed.
#[tokio::test(flavor = "multi_thread")]
async fn killed_broker_loses_no_confirmed_message() {
    let mut server = RabbitMq::start().unwrap();
    let url = server.url();
    declare(&url, "killed", &[]).await;
    // RabbitMQ can confirm a declaration some seconds before the declaration is on disk. Stop the
    // server cleanly once, because a clean stop writes the declaration to disk.
    server.stop().unwrap();
    server.start_again().unwrap();
    let mut traffic = Traffic::start(publisher(&url), source(&url, "killed"), "killed");
    traffic.go_on(200).await;
    server.kill().unwrap();
    // Each effect in flight was confirmed before the kill, or fails now.
    let confirmed = traffic.confirmed();
    traffic.meet_absence().await;
    assert!(
        traffic.confirmed() <= confirmed + 20,
        "the killed broker confirmed effects"
    );
    server.start_again().unwrap();
    traffic.go_on(200).await;
    traffic.finish().await;
}
