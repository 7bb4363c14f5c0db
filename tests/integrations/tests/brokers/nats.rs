use std::collections::HashSet;
use std::future::pending;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::{self, consumer::pull, stream};
use futures_util::{FutureExt, StreamExt, future::join_all};
use idem_brokers::Nats;

use idem_nats::{NatsConfig, NatsPublisher, NatsSource, NatsSubscription};
use idem_runtime::{PublishError, Publisher, Settlement, Source};
use idem_testkit::{log::Log, until};
use tokio::{io::AsyncWriteExt, net::TcpStream, runtime::Runtime, select, sync::mpsc};
use tracing::Level;

use crate::environment::{assert_parked, assert_waited_for};
use crate::rejected::{
    assert_forwarded, assert_kept_in_the_database, assert_rejected_and_requeued,
};
use crate::traffic::Traffic;
use crate::{DEADLINE, assert_silent, assert_whole, collect, next, plain, text, whole};

static SHARED: Mutex<Option<Nats>> = Mutex::new(None);

/// Returns the URL of the server that these tests share. The server stops with the process.
pub fn shared() -> String {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*shared {
        Some(server) => server.url(),
        None => shared.insert(Nats::start().unwrap()).url(),
    }
}

/// Creates a stream with this name, for all subjects that begin with the name and a dot.
pub async fn declare(
    url: &str,
    name: &str,
    change: impl FnOnce(&mut stream::Config),
) -> stream::Stream {
    let context = jetstream::new(async_nats::connect(url).await.unwrap());
    let mut config = stream::Config {
        name: name.into(),
        subjects: vec![format!("{name}.>")],
        ..Default::default()
    };
    change(&mut config);
    context.create_stream(config).await.unwrap()
}

pub fn publisher(url: &str) -> NatsPublisher {
    NatsPublisher::new(NatsConfig::new(url))
}

fn source(url: &str, stream: &str) -> NatsSource {
    NatsSource::new(
        NatsConfig::new(url),
        NatsSubscription {
            prefetch: 10,
            ..NatsSubscription::new(stream, "worker")
        },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn published_message_arrives_with_every_property() {
    let url = shared();
    declare(&url, "whole", |_| {}).await;
    let effect = whole("whole.placed");
    publisher(&url)
        .publish(&plain("whole.placed", "first"))
        .await
        .unwrap();
    publisher(&url).publish(&effect).await.unwrap();

    let mut source = source(&url, "whole");
    next(&mut source)
        .await
        .settle(Settlement::Acknowledge)
        .await
        .unwrap();
    let delivery = next(&mut source).await;
    assert_whole(&delivery, &effect);
    let at = delivery.message().coordinates().unwrap();
    assert_eq!(
        (at.topic.as_str(), at.partition, at.offset),
        ("whole", 0, 2)
    );
    delivery.settle(Settlement::Acknowledge).await.unwrap();
    assert_eq!(unsettled(&url, "whole").await, 0);
}

/// Returns the number of messages of the stream that the durable consumer has not settled. This
/// includes messages that are not delivered yet.
pub async fn unsettled(url: &str, stream: &str) -> u64 {
    let context = jetstream::new(async_nats::connect(url).await.unwrap());
    let stream = context.get_stream(stream).await.unwrap();
    let info = stream.consumer_info("worker").await.unwrap();
    info.num_ack_pending as u64 + info.num_pending
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_drops_duplicates_by_message_id() {
    let url = shared();
    let mut stream = declare(&url, "dedup", |_| {}).await;
    let (publisher, effect) = (publisher(&url), plain("dedup.x", "once"));
    for _ in 0..3 {
        publisher.publish(&effect).await.unwrap();
    }
    publisher
        .publish(&plain("dedup.x", "another"))
        .await
        .unwrap();
    assert_eq!(stream.info().await.unwrap().state.messages, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn retried_message_is_redelivered_and_counted() {
    let url = shared();
    declare(&url, "retried", |_| {}).await;
    publisher(&url)
        .publish(&plain("retried.x", "again"))
        .await
        .unwrap();
    let mut source = source(&url, "retried");
    for deliveries in [1, 2, 3] {
        let delivery = next(&mut source).await;
        assert_eq!(delivery.message().deliveries(), Some(deliveries));
        delivery.settle(Settlement::RETRY).await.unwrap();
    }
    let last = next(&mut source).await;
    assert_eq!(
        last.message().coordinates().unwrap().offset,
        1,
        "the offset differs between deliveries"
    );
    last.settle(Settlement::Acknowledge).await.unwrap();
    assert_silent(&mut source).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_retry_does_not_delay_other_messages() {
    let url = shared();
    declare(&url, "delayed", |_| {}).await;
    let publisher = publisher(&url);
    publisher
        .publish(&plain("delayed.x", "held"))
        .await
        .unwrap();
    let mut source = source(&url, "delayed");
    let started = Instant::now();
    let after = Duration::from_secs(2);
    next(&mut source)
        .await
        .settle(Settlement::Retry { after })
        .await
        .unwrap();
    publisher
        .publish(&plain("delayed.x", "other"))
        .await
        .unwrap();

    let other = next(&mut source).await;
    assert_eq!(text(&other), "other");
    other.settle(Settlement::Acknowledge).await.unwrap();
    let held = next(&mut source).await;
    assert_eq!(
        (text(&held), held.message().deliveries()),
        ("held".into(), Some(2))
    );
    assert!(started.elapsed() >= after);
    held.settle(Settlement::Acknowledge).await.unwrap();
}

/// The dead letter has the payload, the headers and the properties of the message, and the reason.
/// A line break in the reason, which no header can have, becomes a space.
#[tokio::test(flavor = "multi_thread")]
async fn rejected_message_is_published_to_dead_letter_subject() {
    let url = shared();
    // Both subjects are in one stream. This stream already contains the message id, so it could
    // drop the dead letter as a duplicate.
    declare(&url, "rejected", |_| {}).await;
    let effect = whole("rejected.in");
    publisher(&url).publish(&effect).await.unwrap();
    let subscription = |name, subject: &str| NatsSubscription {
        subject: subject.into(),
        ..NatsSubscription::new("rejected", name)
    };
    let mut source = NatsSource::new(
        NatsConfig::new(&url),
        NatsSubscription {
            dead_letter: Some("rejected.dead".into()),
            ..subscription("worker", "rejected.in")
        },
    );
    next(&mut source)
        .await
        .settle(Settlement::reject("no such\norder"))
        .await
        .unwrap();
    assert_eq!(unsettled(&url, "rejected").await, 0);

    let letter = next(&mut NatsSource::new(
        NatsConfig::new(&url),
        subscription("reader", "rejected.dead"),
    ))
    .await;
    let mut expected = effect;
    expected.topic = "rejected.dead".into();
    assert_whole(&letter, &expected);
    assert_eq!(
        letter.message().header("idem-dead-letter-reason"),
        Some("no such order")
    );
    // The id of the letter at NATS names the stream, the consumer and the place of the message.
    assert_eq!(
        letter.message().header("Nats-Msg-Id"),
        Some("dead.rejected.worker.1")
    );
}

/// I5: a service that replies to the subject of an effect has not stored it. The other topics of the
/// partition continue, because the broker is available.
#[tokio::test(flavor = "multi_thread")]
async fn i5_reply_of_a_service_is_no_confirmation() {
    let url = shared();
    let client = async_nats::connect(&url).await.unwrap();
    for (subject, reply) in [
        ("rpc.text", "pong"),
        ("rpc.empty", "{}"),
        ("rpc.similar", r#"{"stream": "", "seq": 0}"#),
    ] {
        let mut requests = client.subscribe(subject).await.unwrap();
        client.flush().await.unwrap();
        let answering = async {
            let request = requests.next().await.unwrap();
            client
                .publish(request.reply.unwrap(), reply.into())
                .await
                .unwrap();
            pending::<()>().await;
        };
        let effect = plain(subject, "{}");
        let publisher = publisher(&url);
        select! {
            published = publisher.publish(&effect) => {
                let error = published.unwrap_err();
                let is_of_topic = matches!(error, PublishError::TopicUnavailable(_));
                assert!(is_of_topic, "{subject}: {error}");
            }
            () = answering => unreachable!(),
        }
    }
}

/// I4: a dead letter that only a service has taken is not stored, so its message is redelivered.
#[tokio::test(flavor = "multi_thread")]
async fn i4_reply_of_a_service_is_no_dead_letter() {
    let url = shared();
    let stream = declare(&url, "unburied", |_| {}).await;
    let client = async_nats::connect(&url).await.unwrap();
    let mut requests = client.subscribe("service.dead").await.unwrap();
    client.flush().await.unwrap();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let reply = r#"{"stream": "", "seq": 0}"#;
            let _ = client.publish(request.reply.unwrap(), reply.into()).await;
        }
    });
    publisher(&url)
        .publish(&plain("unburied.x", "bad"))
        .await
        .unwrap();
    let mut source = NatsSource::new(
        NatsConfig::new(&url),
        NatsSubscription {
            dead_letter: Some("service.dead".into()),
            ..NatsSubscription::new(stream.cached_info().config.name.clone(), "worker")
        },
    );
    let rejected = next(&mut source)
        .await
        .settle(Settlement::reject("bad"))
        .await;
    assert!(
        rejected.is_err(),
        "the reply of the service counts as stored"
    );
    assert_eq!(text(&next(&mut source).await), "bad");
}

/// The client library ends the connection at a header that is not UTF-8, so the source cannot deliver
/// the message. The log shows this.
#[tokio::test]
async fn nats_header_that_is_not_utf_8_is_logged() {
    let (log, _guard) = Log::keep();
    let url = shared();
    declare(&url, "unreadable", |_| {}).await;
    let mut raw = TcpStream::connect(url.trim_start_matches("nats://"))
        .await
        .unwrap();
    let header = b"NATS/1.0\r\nnote: \xff\r\n\r\n";
    let publish = format!(
        "CONNECT {{\"headers\": true}}\r\nHPUB unreadable.x {0} {0}\r\n",
        header.len()
    );
    raw.write_all(&[publish.as_bytes(), header, b"\r\n"].concat())
        .await
        .unwrap();
    let mut source = source(&url, "unreadable");
    let logged = until("the lost connection is logged", async || {
        !log.lines(Level::WARN, "UTF-8").is_empty()
    });
    select! {
        delivered = source.next() => panic!("{delivered:?}"),
        () = logged => {}
    }
}

/// I10: who may record an effect does not command the server with the rights of the relay.
#[tokio::test(flavor = "multi_thread")]
async fn i10_subjects_of_the_server_are_permanent_failures() {
    let url = shared();
    let mut stream = declare(&url, "victim", |_| {}).await;
    for subject in [
        "$JS.API.STREAM.DELETE.victim",
        "$SYS.REQ.SERVER.PING",
        "_INBOX.someone",
        "victim.*",
        "victim.>",
    ] {
        let error = publisher(&url)
            .publish(&plain(subject, "{}"))
            .await
            .unwrap_err();
        assert!(
            matches!(error, PublishError::Permanent(_)),
            "{subject}: {error}"
        );
    }
    stream.info().await.unwrap();
    let allowed = NatsPublisher::new(NatsConfig {
        system_topics: true,
        ..NatsConfig::new(&url)
    });
    // The reply to the command is no confirmation of a stream.
    let command = plain("$JS.API.STREAM.DELETE.victim", "");
    let error = allowed.publish(&command).await.unwrap_err();
    assert!(
        matches!(error, PublishError::TopicUnavailable(_)),
        "{error}"
    );
    assert!(stream.info().await.is_err(), "the stream still exists");
}

/// I4: a condition of the publication of a message does not apply to its dead letter, which the
/// stream would refuse for ever.
#[tokio::test(flavor = "multi_thread")]
async fn i4_dead_letter_drops_the_conditions_of_its_message() {
    let url = shared();
    declare(&url, "conditional", |_| {}).await;
    let context = jetstream::new(async_nats::connect(&url).await.unwrap());
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Expected-Last-Sequence", "0");
    headers.insert("tenant", "t-1");
    let published = context.publish_with_headers("conditional.in", headers, "{}".into());
    published.await.unwrap().await.unwrap();
    let mut source = NatsSource::new(
        NatsConfig::new(&url),
        NatsSubscription {
            subject: "conditional.in".into(),
            dead_letter: Some("conditional.dead".into()),
            ..NatsSubscription::new("conditional", "worker")
        },
    );
    let delivery = next(&mut source).await;
    let condition = delivery.message().header("Nats-Expected-Last-Sequence");
    assert_eq!(condition, Some("0"));
    let rejected = Settlement::reject("no such order");
    delivery.settle(rejected).await.unwrap();
    let mut reader = NatsSource::new(
        NatsConfig::new(&url),
        NatsSubscription {
            subject: "conditional.dead".into(),
            ..NatsSubscription::new("conditional", "reader")
        },
    );
    let letter = next(&mut reader).await;
    assert_eq!(letter.message().header("tenant"), Some("t-1"));
    assert_eq!(unsettled(&url, "conditional").await, 0);
}

/// I4: the database keeps a rejected message whose dead letter the broker refuses.
#[tokio::test(flavor = "multi_thread")]
async fn i4_refused_dead_letter_is_kept_in_the_database() {
    let url = shared();
    declare(&url, "refused", |_| {}).await;
    publisher(&url)
        .publish(&plain("refused.in", "poison"))
        .await
        .unwrap();
    let source = NatsSource::new(
        NatsConfig::new(&url),
        NatsSubscription {
            dead_letter: Some("no-stream.x".into()),
            ..NatsSubscription::new("refused", "worker")
        },
    );
    assert_kept_in_the_database(source).await;
    assert_eq!(unsettled(&url, "refused").await, 0);
}

/// I4: a program that settles deliveries without a `Consumer` cannot reject a message without a
/// dead-letter subject. The message is redelivered.
#[tokio::test(flavor = "multi_thread")]
async fn i4_reject_without_dead_letter_subject_fails() {
    let url = shared();
    declare(&url, "by-hand", |_| {}).await;
    publisher(&url)
        .publish(&plain("by-hand.in", "poison"))
        .await
        .unwrap();
    let mut source = source(&url, "by-hand");
    let error = next(&mut source)
        .await
        .settle(Settlement::reject("bad"))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("dead-letter subject"), "{error}");
    assert_eq!(text(&next(&mut source).await), "poison");
}

/// I4: without a dead-letter subject, rejected messages become dead letters in the database and can
/// be requeued.
#[tokio::test(flavor = "multi_thread")]
async fn i4_nats_consumer_without_dead_letters_loses_nothing() {
    let url = shared();
    declare(&url, "none", |_| {}).await;
    let context = jetstream::new(async_nats::connect(&url).await.unwrap());
    for text in ["first", "second"] {
        // Publish as a program that does not use idem does.
        context
            .publish("none.in", text.into())
            .await
            .unwrap()
            .await
            .unwrap();
    }
    assert_rejected_and_requeued(source(&url, "none")).await;
    assert_eq!(
        unsettled(&url, "none").await,
        0,
        "a message is not acknowledged"
    );
}

/// I4: a dead letter that an operator forwards is published to NATS and handled under its new id.
#[tokio::test(flavor = "multi_thread")]
async fn i4_dead_letter_is_forwarded_to_nats_and_handled() {
    let url = shared();
    declare(&url, "forward", |_| {}).await;
    let context = jetstream::new(async_nats::connect(&url).await.unwrap());
    let mut headers = HeaderMap::new();
    headers.insert("message-id", "m-1");
    headers.insert("tenant", "t-1");
    let published = context.publish_with_headers("forward.in", headers, "{}".into());
    published.await.unwrap().await.unwrap();
    assert_forwarded(
        "m-1",
        source(&url, "forward"),
        publisher(&url),
        "forward.in",
    )
    .await;
}

/// Two durable consumers reject the same message of a stream. The message has the same sequence
/// number for both consumers, but the second dead letter must not be dropped as a duplicate.
#[tokio::test(flavor = "multi_thread")]
async fn two_rejections_of_a_message_make_two_dead_letters() {
    let url = shared();
    declare(&url, "twice", |_| {}).await;
    declare(&url, "letters", |_| {}).await;
    publisher(&url)
        .publish(&plain("twice.in", "poison"))
        .await
        .unwrap();
    for consumer in ["first", "second"] {
        let subscription = NatsSubscription {
            dead_letter: Some("letters.in".into()),
            ..NatsSubscription::new("twice", consumer)
        };
        let mut source = NatsSource::new(NatsConfig::new(&url), subscription);
        next(&mut source)
            .await
            .settle(Settlement::reject(consumer))
            .await
            .unwrap();
    }
    let mut letters = source(&url, "letters");
    for reason in ["first", "second"] {
        let letter = next(&mut letters).await;
        assert_eq!(
            letter.message().header("idem-dead-letter-reason"),
            Some(reason)
        );
        letter.settle(Settlement::Acknowledge).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn message_is_redelivered_when_its_dead_letter_fails() {
    let url = shared();
    declare(&url, "careful", |_| {}).await;
    publisher(&url)
        .publish(&plain("careful.x", "poison"))
        .await
        .unwrap();
    let subscription = NatsSubscription {
        dead_letter: Some("no.such.subject".into()),
        ..NatsSubscription::new("careful", "worker")
    };
    let mut source = NatsSource::new(NatsConfig::new(&url), subscription);
    let rejected = Instant::now();
    next(&mut source)
        .await
        .settle(Settlement::reject("bad"))
        .await
        .unwrap_err();
    assert_eq!(next(&mut source).await.message().deliveries(), Some(2));
    assert!(
        rejected.elapsed() >= Duration::from_millis(900),
        "the message was redelivered without a pause"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unsettled_message_is_redelivered() {
    let url = shared();
    declare(&url, "unsettled", |_| {}).await;
    let publisher = publisher(&url);
    publisher
        .publish(&plain("unsettled.x", "kept"))
        .await
        .unwrap();
    publisher
        .publish(&plain("unsettled.x", "dropped"))
        .await
        .unwrap();
    let mut first = NatsSource::new(
        NatsConfig::new(&url),
        NatsSubscription {
            ack_wait_s: 2,
            ..NatsSubscription::new("unsettled", "worker")
        },
    );
    // Use a separate runtime, which ends like a killed process. After that, no source holds its
    // messages.
    let process = Runtime::new().unwrap();
    let held = process.spawn(async move {
        let kept = next(&mut first).await;
        drop(next(&mut first).await);
        let again = next(&mut first).await;
        assert_eq!(
            (text(&again), again.message().deliveries()),
            ("dropped".into(), Some(2))
        );
        (first, kept, again)
    });
    let held = held.await.unwrap();
    process.shutdown_background();
    std::mem::forget(held);
    let mut second = source(&url, "unsettled");
    let wanted = ["kept", "dropped"].map(str::to_owned);
    collect(&mut second, wanted.into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topic_with_missing_or_full_stream_is_unavailable() {
    let url = shared();
    declare(&url, "full", |config| {
        config.max_messages = 1;
        config.discard = stream::DiscardPolicy::New;
    })
    .await;
    let publisher = publisher(&url);
    let error = publisher
        .publish(&plain("no.such.subject", "x"))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, PublishError::TopicUnavailable(_)),
        "{error:?}"
    );
    assert!(error.to_string().contains("no.such.subject"), "{error}");

    publisher.publish(&plain("full.x", "x")).await.unwrap();
    let error = publisher.publish(&plain("full.x", "x")).await.unwrap_err();
    assert!(
        matches!(&error, PublishError::TopicUnavailable(_)),
        "{error:?}"
    );
}

/// I4: effects wait until their stream is created, and effects of other streams are published.
#[tokio::test]
async fn i4_effects_wait_for_a_missing_stream() {
    let url = shared();
    declare(&url, "made-first", |_| {}).await;
    let mend = async { drop(declare(&url, "made-late", |_| {}).await) };
    assert_waited_for(publisher(&url), "made-late.x", "made-first.x", mend).await;
}

/// I4: effects wait while their stream is full.
#[tokio::test]
async fn i4_effects_wait_for_a_full_stream() {
    let url = shared();
    declare(&url, "spacious", |_| {}).await;
    let full = declare(&url, "cramped", |config| {
        config.max_messages = 3;
        config.discard = stream::DiscardPolicy::New;
    })
    .await;
    for text in ["1", "2", "3"] {
        publisher(&url)
            .publish(&plain("cramped.x", text))
            .await
            .unwrap();
    }
    let mend = async {
        full.purge().await.unwrap();
    };
    assert_waited_for(publisher(&url), "cramped.x", "spacious.x", mend).await;
}

/// Returns a configuration in which the default user has all permissions, and the user `limited`
/// may not publish to this subject.
fn denied(subject: &str) -> String {
    format!(
        "authorization {{ users: [\n\
           {{ user: admin, password: admin }}\n\
           {{ user: limited, password: limited, \
             permissions: {{ publish: {{ deny: \"{subject}\" }} }} }}\n\
         ] }}\n\
         no_auth_user: admin"
    )
}

/// I4: effects wait until the user has permission to publish to their subject.
#[tokio::test]
async fn i4_effects_wait_for_a_nats_permission() {
    let mut server = Nats::start_with(&denied("closed.>")).unwrap();
    let url = server.url();
    declare(&url, "closed", |_| {}).await;
    declare(&url, "open", |_| {}).await;
    let limited = url.replace("nats://", "nats://limited:limited@");
    let mend = async { server.reconfigure(&denied("elsewhere.>")).unwrap() };
    assert_waited_for(publisher(&limited), "closed.x", "open.x", mend).await;
}

/// I4: effects wait for a missing stream also when the user has only the permission to publish. The
/// publisher then cannot look up the stream of a subject.
#[tokio::test]
async fn i4_effects_wait_for_a_stream_without_lookup_rights() {
    let publish_only = "authorization { users: [\n\
           { user: admin, password: admin }\n\
           { user: least, password: least, permissions: { publish: [\"late.>\", \"there.>\"] } }\n\
         ] }\n\
         no_auth_user: admin";
    let server = Nats::start_with(publish_only).unwrap();
    let url = server.url();
    declare(&url, "there", |_| {}).await;
    let limited = url.replace("nats://", "nats://least:least@");
    let mend = async { drop(declare(&url, "late", |_| {}).await) };
    let publisher = NatsPublisher::new(NatsConfig {
        timeout_s: 2,
        ..NatsConfig::new(&limited)
    });
    assert_waited_for(publisher, "late.x", "there.x", mend).await;
}

/// I4: if an effect is larger than its stream allows, the relay parks it.
#[tokio::test]
async fn i4_too_large_effect_is_parked_by_a_nats_relay() {
    let url = shared();
    declare(&url, "small", |config| config.max_message_size = 1000).await;
    assert_parked(publisher(&url), "small.x", "message size exceeds maximum").await;
}

/// These effects cannot be sent: with a space in the subject, with a payload above the size limit,
/// and with a header whose name or value NATS does not allow.
#[tokio::test(flavor = "multi_thread")]
async fn effect_that_nats_cannot_encode_fails_permanently() {
    let url = shared();
    declare(&url, "limits", |_| {}).await;
    let publisher = publisher(&url);
    let mut effects = vec![plain("a b", "x"), plain("limits.x", &"x".repeat(1_100_000))];
    for (name, value) in [
        ("two\nlines", "x"),
        ("a:b", "x"),
        ("a b", "x"),
        ("a", "two\nlines"),
    ] {
        let mut effect = plain("limits.x", "x");
        effect.headers.insert(name.into(), value.into());
        effects.push(effect);
    }
    for effect in effects {
        let error = publisher.publish(&effect).await.unwrap_err();
        assert!(matches!(error, PublishError::Permanent(_)), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_stream_is_an_error_until_it_is_created() {
    let url = shared();
    let mut source = source(&url, "late");
    let error = source.next().await.unwrap_err().to_string();
    assert!(error.contains("the stream \"late\""), "{error}");
    declare(&url, "late", |_| {}).await;
    publisher(&url)
        .publish(&plain("late.x", "x"))
        .await
        .unwrap();
    assert_eq!(text(&next(&mut source).await), "x");
}

/// A restarted server may have lost a delivery, and then never confirms the settlement of that
/// delivery. So a settlement must fail soon after a lost connection, long before the time limit.
#[tokio::test(flavor = "multi_thread")]
async fn settlement_over_a_lost_connection_fails_soon() {
    const PATIENCE_S: u16 = 60;
    const BATCH: u16 = 200;
    // When this number of prefetched messages is left, the source requests the same number again.
    const IN_HAND: usize = BATCH as usize / 2;
    const ALL: usize = BATCH as usize + IN_HAND;
    let mut server = Nats::start().unwrap();
    let url = server.url();
    let stream = declare(&url, "lost", |_| {}).await;
    let before = publisher(&url);
    for number in 0..ALL {
        before
            .publish(&plain("lost.x", &number.to_string()))
            .await
            .unwrap();
    }
    let config = NatsConfig {
        timeout_s: PATIENCE_S,
        ..NatsConfig::new(&url)
    };
    let subscription = NatsSubscription {
        prefetch: BATCH,
        ..NatsSubscription::new("lost", "worker")
    };
    let mut source = NatsSource::new(config, subscription);
    let mut deliveries = Vec::new();
    for _ in 0..IN_HAND {
        deliveries.push(next(&mut source).await);
    }
    let mut consumer = stream.get_consumer::<pull::Config>("worker").await.unwrap();
    let started = Instant::now();
    while consumer.info().await.unwrap().num_ack_pending < ALL {
        assert!(
            started.elapsed() < DEADLINE,
            "the second batch was not delivered in time"
        );
    }
    server.kill().unwrap();
    let started = Instant::now();
    let first = deliveries.remove(0);
    first.settle(Settlement::Acknowledge).await.unwrap_err();
    // The client has now detected that the connection is lost, and has read everything that the
    // server had sent before.
    while let Some(Ok(Some(delivery))) = source.next().now_or_never() {
        deliveries.push(delivery);
        // Without the yield, the cooperative budget of tokio would end the loop early.
        tokio::task::yield_now().await;
    }
    assert!(deliveries.len() > IN_HAND, "no message was prefetched");
    let settled = deliveries
        .into_iter()
        .map(|delivery| delivery.settle(Settlement::Acknowledge));
    for result in join_all(settled).await {
        result.unwrap_err();
    }
    assert!(started.elapsed() < Duration::from_secs(PATIENCE_S.into()) / 2);

    server.start_again().unwrap();
    publisher(&url)
        .publish(&plain("lost.x", "new"))
        .await
        .unwrap();
    collect(&mut source, HashSet::from(["new".to_owned()])).await;
}

/// A source that waits for messages reconnects after a restart of the server. Settlements after the
/// reconnect are confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn settlement_after_a_reconnect_is_confirmed() {
    let mut server = Nats::start().unwrap();
    let url = server.url();
    declare(&url, "idle", |_| {}).await;
    publisher(&url)
        .publish(&plain("idle.x", "before"))
        .await
        .unwrap();
    let mut source = source(&url, "idle");
    next(&mut source)
        .await
        .settle(Settlement::Acknowledge)
        .await
        .unwrap();

    let (received, mut deliveries) = mpsc::channel(1);
    let waiting = tokio::spawn(async move {
        loop {
            received.send(next(&mut source).await).await.unwrap();
        }
    });
    server.kill().unwrap();
    server.start_again().unwrap();
    let mut wanted: HashSet<_> = (0..30).map(|number| number.to_string()).collect();
    for text in &wanted {
        publisher(&url)
            .publish(&plain("idle.x", text))
            .await
            .unwrap();
    }
    while !wanted.is_empty() {
        let delivery = deliveries.recv().await.unwrap();
        wanted.remove(&text(&delivery));
        let started = Instant::now();
        if let Err(error) = delivery.settle(Settlement::Acknowledge).await {
            // A busy server may confirm only after the time limit, so a late error is accepted.
            assert!(started.elapsed() >= Duration::from_secs(1), "{error}");
        }
    }
    waiting.abort();
}

/// After a kill and a restart of the broker, publisher and source continue, and every confirmed
/// message is consumed.
#[tokio::test(flavor = "multi_thread")]
async fn killed_broker_loses_no_confirmed_message() {
    let mut server = Nats::start().unwrap();
    let url = server.url();
    declare(&url, "killed", |_| {}).await;
    let publisher = NatsPublisher::new(NatsConfig {
        timeout_s: 1,
        ..NatsConfig::new(&url)
    });
    let mut traffic = Traffic::start(publisher, source(&url, "killed"), "killed.x");
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

/// I9: the user and the password of the URL are used, and a wrong or missing password fails.
#[tokio::test]
async fn user_and_password_of_the_url_are_used() {
    let server =
        Nats::start_with("authorization { user: relay, password: \"p@ss/word\" }").unwrap();
    let url = |password: &str| {
        server
            .url()
            .replace("nats://", &format!("nats://relay:{password}@"))
    };
    publisher(&url("p%40ss%2Fword")).check().await.unwrap();
    for url in [url("wrong"), server.url()] {
        let error = publisher(&url).check().await.unwrap_err();
        assert!(matches!(error, PublishError::Unavailable(_)), "{error:?}");
        assert!(
            error.to_string().contains("authorization violation"),
            "{error}"
        );
    }
}
