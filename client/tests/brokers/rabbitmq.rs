use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use idem_brokers::RabbitMq;
use idem_client::{
    PublishError, Publisher, RabbitMqConfig, RabbitMqPublisher, RabbitMqSource,
    RabbitMqSubscription, Settlement, Source, Topics,
};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use uuid::Uuid;

use crate::environment::{assert_parked, assert_waited_for};
use crate::rejected::{assert_forwarded, assert_rejected_and_requeued};
use crate::traffic::Traffic;
use crate::{DEADLINE, assert_silent, assert_whole, collect, next, plain, publish, text, whole};

static SHARED: Mutex<Option<RabbitMq>> = Mutex::new(None);

/// The server that these tests share; it ends with the process.
pub fn shared() -> String {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*shared {
        Some(server) => server.url(),
        None => shared.insert(RabbitMq::start().unwrap()).url(),
    }
}

/// A connection of the test's own.
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
        RabbitMqSubscription::new(queue).prefetch(10),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_published_arrives_with_every_property() {
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
async fn a_retried_message_comes_again_and_is_counted() {
    let url = shared();
    // A quorum queue counts exactly, a classic one knows no more than that it came before.
    let (exact, once) = ([Some(1), Some(2), Some(3)], [Some(1), None, None]);
    for (queue, kind, counts) in [("quorum", "quorum", exact), ("classic", "classic", once)] {
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
async fn a_delayed_retry_is_held_back_and_others_go_on() {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_message_goes_to_the_dead_letters_and_its_way_back_is_counted() {
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
        let subscription = RabbitMqSubscription::new(queue).dead_letter_exchange();
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

#[tokio::test(flavor = "multi_thread")]
async fn i4_rejection_by_hand_without_a_dead_letter_exchange_loses_nothing() {
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

#[tokio::test(flavor = "multi_thread")]
async fn i4_letter_is_forwarded_to_rabbitmq_and_handled() {
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
        assert_eq!(queue.message_count(), 0, "all are acknowledged");
    }
}

/// As a program publishes that knows nothing of idem.
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
async fn what_is_not_settled_comes_again() {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_gone_leaves_time_to_settle() {
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

#[tokio::test(flavor = "multi_thread")]
async fn topic_without_a_queue_is_unavailable_and_no_other() {
    let url = shared();
    declare(&url, "there", &[]).await;
    let publisher = publisher(&url);
    // All at once: the broker's answer has to find the right one.
    let effects: Vec<_> = (0..400)
        .map(|n| plain(if n % 7 == 0 { "nowhere" } else { "there" }, &n.to_string()))
        .collect();
    let answers = join_all(effects.iter().map(|effect| publisher.publish(effect))).await;
    for (effect, answer) in effects.iter().zip(answers) {
        match (effect.topic.as_str(), answer) {
            ("there", Ok(())) => {}
            ("nowhere", Err(PublishError::TopicUnavailable(reason))) => {
                assert!(reason.to_string().contains("NO_ROUTE"), "{reason}")
            }
            (topic, answer) => panic!("{topic}: {answer:?}"),
        }
    }
    let wanted = effects.iter().filter(|effect| effect.topic == "there");
    let wanted = wanted.map(|effect| String::from_utf8(effect.payload.to_vec()).unwrap());
    collect(&mut source(&url, "there"), wanted.collect()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_routes_by_topic_and_one_that_is_missing_is_waited_for() {
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
    let publisher = RabbitMqPublisher::new(RabbitMqConfig::new(&url).exchange("events"));
    publisher
        .publish(&plain("orders.placed", "x"))
        .await
        .unwrap();
    assert_eq!(text(&next(&mut source(&url, "routed")).await), "x");

    let missing = RabbitMqPublisher::new(RabbitMqConfig::new(&url).exchange("comes later"));
    for _ in 0..2 {
        let error = missing
            .publish(&plain("orders.placed", "x"))
            .await
            .unwrap_err();
        assert!(
            matches!(error, PublishError::TopicUnavailable(_)),
            "{error}"
        );
        assert!(error.to_string().contains("comes later"), "{error}");
    }
    let error = missing.check().await.unwrap_err();
    assert!(
        matches!(&error, PublishError::TopicUnavailable(_)),
        "{error}"
    );
    assert!(error.to_string().contains("comes later"), "{error}");
    let options = ExchangeDeclareOptions::default();
    channel
        .exchange_declare(
            "comes later".into(),
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
            "comes later".into(),
            "".into(),
            options,
            FieldTable::default(),
        )
        .await
        .unwrap();
    missing.publish(&plain("orders.placed", "y")).await.unwrap();
    missing.check().await.unwrap();
}

/// Goal: a deployment that publishes before its queue is declared. Invariant: I4.
#[tokio::test]
async fn i4_missing_queue_is_waited_for_and_others_go_on() {
    let url = shared();
    declare(&url, "declared-first", &[]).await;
    let mend = async { declare(&url, "declared-late", &[]).await };
    assert_waited_for(publisher(&url), "declared-late", "declared-first", mend).await;
}

/// Goal: a queue withholds its confirmations, as a quorum queue without a majority does, on a
/// connection that works. Invariant: I4.
#[tokio::test]
async fn i4_queue_that_confirms_nothing_is_waited_for() {
    let server = RabbitMq::start().unwrap();
    let url = server.url();
    declare(&url, "mute", &[]).await;
    declare(&url, "loud", &[]).await;
    let tell = |what: &str| {
        let queue = "rabbit_misc:r(<<\"/\">>, queue, <<\"mute\">>)";
        let tell = format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup({queue}), sys:{what}(amqqueue:get_pid(Q))."
        );
        server.control(&["eval", &tell]).unwrap();
    };
    tell("suspend");
    let publisher = RabbitMqPublisher::new(RabbitMqConfig::new(&url).timeout_s(1));
    let mend = async { tell("resume") };
    assert_waited_for(publisher, "mute", "loud", mend).await;
}

/// Goal: an exchange that is not declared yet, beside topics that need none. Invariant: I4.
#[tokio::test]
async fn i4_missing_exchange_is_waited_for_and_others_go_on() {
    let url = shared();
    declare(&url, "no-exchange-needed", &[]).await;
    let late = RabbitMqPublisher::new(RabbitMqConfig::new(&url).exchange("exchange-late"));
    let publisher = Topics::new()
        .topic("through-exchange", late)
        .otherwise(publisher(&url));
    let (_connection, channel) = admin(&url).await;
    let mend = declare_fanout(&channel, "exchange-late", "no-exchange-needed");
    assert_waited_for(publisher, "through-exchange", "no-exchange-needed", mend).await;
}

/// Declares an exchange and binds this queue to it.
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

/// Goal: a user whose permissions lack one exchange. Invariant: I4.
#[tokio::test]
async fn i4_permission_refused_by_rabbitmq_is_waited_for() {
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
    let closed = RabbitMqPublisher::new(config().exchange("closed"));
    let publisher = Topics::new()
        .topic("refused", closed)
        .otherwise(RabbitMqPublisher::new(config()));
    let mend = async {
        permit(".*");
    };
    assert_waited_for(publisher, "refused", "open", mend).await;
}

/// Goal: a queue that takes no more until it is emptied. Invariant: I4.
#[tokio::test]
async fn i4_full_queue_is_waited_for_and_others_go_on() {
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

/// Goal: a server that runs out of memory or disk. Invariant: I4.
#[tokio::test(flavor = "multi_thread")]
async fn i4_server_with_an_alarm_is_unavailable_and_says_why() {
    let server = RabbitMq::start().unwrap();
    let url = server.url();
    declare(&url, "alarmed", &[]).await;
    let publisher = RabbitMqPublisher::new(RabbitMqConfig::new(&url).timeout_s(2));
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

/// Goal: an effect that RabbitMQ refuses for what it is. Invariant: I4.
#[tokio::test]
async fn i4_effect_at_fault_is_parked_by_a_rabbitmq_relay() {
    let server = RabbitMq::start_with("max_message_size = 4096\n").unwrap();
    let url = server.url();
    declare(&url, "small", &[]).await;
    assert_parked(publisher(&url), "small", "PRECONDITION_FAILED").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_amqp_cannot_carry_is_parked_at_once() {
    let url = shared();
    let error = publisher(&url)
        .publish(&plain(&"t".repeat(256), "x"))
        .await
        .unwrap_err();
    assert!(matches!(error, PublishError::Permanent(_)), "{error}");
}

/// RabbitMQ closes the whole connection for them: it would look like a broker that is away, for
/// ever.
#[tokio::test(flavor = "multi_thread")]
async fn headers_that_do_not_fit_into_a_frame_are_parked_at_once_and_blame_no_broker() {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_not_there_yet_is_an_error_until_it_is() {
    let url = shared();
    let mut source = source(&url, "late");
    let error = source.next().await.unwrap_err();
    assert!(error.to_string().contains("late"), "{error}");
    declare(&url, "late", &[]).await;
    publisher(&url).publish(&plain("late", "x")).await.unwrap();
    assert_eq!(text(&next(&mut source).await), "x");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_loses_nothing_confirmed_and_both_sides_go_on() {
    let mut server = RabbitMq::start().unwrap();
    let url = server.url();
    declare(&url, "killed", &[]).await;
    // RabbitMQ can confirm a declaration some seconds before it is on disk. A clean stop writes it.
    server.stop().unwrap();
    server.start_again().unwrap();
    let mut traffic = Traffic::start(publisher(&url), source(&url, "killed"), "killed");
    traffic.go_on(200).await;
    server.kill().unwrap();
    // Whatever was under way has been answered before, or finds nobody now.
    let confirmed = traffic.confirmed();
    traffic.meet_absence().await;
    assert!(traffic.confirmed() <= confirmed + 20, "who confirms?");
    server.start_again().unwrap();
    traffic.go_on(200).await;
    traffic.finish().await;
}
