use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::{self, consumer::pull, stream};
use futures_util::{FutureExt, future::join_all};
use idem_brokers::Nats;
use idem_client::{
    NatsConfig, NatsPublisher, NatsSource, NatsSubscription, PublishError, Publisher, Settlement,
    Source,
};

use tokio::{runtime::Runtime, sync::mpsc};

use crate::environment::{assert_parked, assert_waited_for};
use crate::rejected::{assert_forwarded, assert_rejected_and_requeued};
use crate::traffic::Traffic;
use crate::{DEADLINE, assert_silent, assert_whole, collect, next, plain, text, whole};

static SHARED: Mutex<Option<Nats>> = Mutex::new(None);

/// The server that these tests share; it ends with the process.
pub fn shared() -> String {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*shared {
        Some(server) => server.url(),
        None => shared.insert(Nats::start().unwrap()).url(),
    }
}

/// A stream with this name that takes all subjects below it.
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
        NatsSubscription::new(stream, "worker").prefetch(10),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_published_arrives_with_every_property() {
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

/// How many messages the consumer has been given and has not settled, or will be given.
pub async fn unsettled(url: &str, stream: &str) -> u64 {
    let context = jetstream::new(async_nats::connect(url).await.unwrap());
    let stream = context.get_stream(stream).await.unwrap();
    let info = stream.consumer_info("worker").await.unwrap();
    info.num_ack_pending as u64 + info.num_pending
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_drops_duplicates_by_message_id() {
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
async fn a_retried_message_comes_again_and_is_counted() {
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
        "the same at every delivery"
    );
    last.settle(Settlement::Acknowledge).await.unwrap();
    assert_silent(&mut source).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_retry_is_held_back_and_others_go_on() {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_message_goes_to_the_dead_letters_with_its_reason_and_its_headers() {
    let url = shared();
    // The hard case: one stream for both, which knows the message's id already.
    declare(&url, "rejected", |_| {}).await;
    let effect = whole("rejected.in");
    publisher(&url).publish(&effect).await.unwrap();
    let subscription = |name, subject| NatsSubscription::new("rejected", name).subject(subject);
    let mut source = NatsSource::new(
        NatsConfig::new(&url),
        subscription("worker", "rejected.in").dead_letter("rejected.dead"),
    );
    next(&mut source)
        .await
        .settle(Settlement::reject("no such order"))
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
}

/// Both have the same place in the stream, which is not the same letter.
#[tokio::test(flavor = "multi_thread")]
async fn i4_rejection_by_hand_without_a_dead_letter_subject_loses_nothing() {
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

#[tokio::test(flavor = "multi_thread")]
async fn i4_nats_consumer_without_dead_letters_loses_nothing() {
    let url = shared();
    declare(&url, "none", |_| {}).await;
    let context = jetstream::new(async_nats::connect(&url).await.unwrap());
    for text in ["first", "second"] {
        // As a program publishes that knows nothing of idem.
        context
            .publish("none.in", text.into())
            .await
            .unwrap()
            .await
            .unwrap();
    }
    assert_rejected_and_requeued(source(&url, "none")).await;
    assert_eq!(unsettled(&url, "none").await, 0, "all are acknowledged");
}

#[tokio::test(flavor = "multi_thread")]
async fn i4_letter_is_forwarded_to_nats_and_handled() {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_two_consumers_reject_is_two_dead_letters() {
    let url = shared();
    declare(&url, "twice", |_| {}).await;
    declare(&url, "letters", |_| {}).await;
    publisher(&url)
        .publish(&plain("twice.in", "poison"))
        .await
        .unwrap();
    for consumer in ["first", "second"] {
        let subscription = NatsSubscription::new("twice", consumer).dead_letter("letters.in");
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
async fn a_message_whose_dead_letter_nobody_takes_is_not_given_up() {
    let url = shared();
    declare(&url, "careful", |_| {}).await;
    publisher(&url)
        .publish(&plain("careful.x", "poison"))
        .await
        .unwrap();
    let subscription = NatsSubscription::new("careful", "worker").dead_letter("nobody.takes.this");
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
        "it goes round without a pause"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_settled_comes_again() {
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
        NatsSubscription::new("unsettled", "worker").ack_wait_s(2),
    );
    // A runtime of its own, which dies as a process does: nothing holds its messages any more.
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
async fn topic_without_a_stream_or_with_a_full_one_is_unavailable() {
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

/// Goal: a deployment that publishes before its stream is made. Invariant: I4.
#[tokio::test]
async fn i4_missing_stream_is_waited_for_and_others_go_on() {
    let url = shared();
    declare(&url, "made-first", |_| {}).await;
    let mend = async { drop(declare(&url, "made-late", |_| {}).await) };
    assert_waited_for(publisher(&url), "made-late.x", "made-first.x", mend).await;
}

/// Goal: a stream that takes no more until it is emptied. Invariant: I4.
#[tokio::test]
async fn i4_full_stream_is_waited_for_and_others_go_on() {
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

/// The default user may do everything, and the other one may not publish to these subjects.
fn denied(subject: &str) -> String {
    format!(
        "authorization {{ users: [\n\
           {{ user: admin, password: admin }}\n\
           {{ user: limited, password: limited, permissions: {{ publish: {{ deny: \"{subject}\" }} }} }}\n\
         ] }}\n\
         no_auth_user: admin"
    )
}

/// Goal: a user without the permission to publish to one subject. Invariant: I4.
#[tokio::test]
async fn i4_permission_refused_by_nats_is_waited_for() {
    let mut server = Nats::start_with(&denied("closed.>")).unwrap();
    let url = server.url();
    declare(&url, "closed", |_| {}).await;
    declare(&url, "open", |_| {}).await;
    let limited = url.replace("nats://", "nats://limited:limited@");
    let mend = async { server.reconfigure(&denied("elsewhere.>")).unwrap() };
    assert_waited_for(publisher(&limited), "closed.x", "open.x", mend).await;
}

/// Goal: a user that may publish and nothing else, so that the publisher cannot look for the
/// stream of a subject. Invariant: I4.
#[tokio::test]
async fn i4_missing_stream_is_waited_for_without_other_rights() {
    let least = "authorization { users: [\n\
           { user: admin, password: admin }\n\
           { user: least, password: least, permissions: { publish: [\"late.>\", \"there.>\"] } }\n\
         ] }\n\
         no_auth_user: admin";
    let server = Nats::start_with(least).unwrap();
    let url = server.url();
    declare(&url, "there", |_| {}).await;
    let limited = url.replace("nats://", "nats://least:least@");
    let mend = async { drop(declare(&url, "late", |_| {}).await) };
    let publisher = NatsPublisher::new(NatsConfig::new(&limited).timeout_s(2));
    assert_waited_for(publisher, "late.x", "there.x", mend).await;
}

/// Goal: an effect that its stream refuses for what it is. Invariant: I4.
#[tokio::test]
async fn i4_effect_at_fault_is_parked_by_a_nats_relay() {
    let url = shared();
    declare(&url, "small", |config| config.max_message_size = 1000).await;
    assert_parked(publisher(&url), "small.x", "message size exceeds maximum").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nats_cannot_carry_is_parked_at_once() {
    let url = shared();
    declare(&url, "limits", |_| {}).await;
    let publisher = publisher(&url);
    let mut header = plain("limits.x", "x");
    header.headers.insert("two\nlines".into(), "x".into());
    for effect in [
        plain("a b", "x"),
        plain("limits.x", &"x".repeat(1_100_000)),
        header,
    ] {
        let error = publisher.publish(&effect).await.unwrap_err();
        assert!(matches!(error, PublishError::Permanent(_)), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_not_there_yet_is_an_error_until_it_is() {
    let url = shared();
    let mut source = source(&url, "late");
    source.next().await.unwrap_err();
    declare(&url, "late", |_| {}).await;
    publisher(&url)
        .publish(&plain("late.x", "x"))
        .await
        .unwrap();
    assert_eq!(text(&next(&mut source).await), "x");
}

/// A server that was restarted may have forgotten a delivery, and never confirms that it is
/// settled.
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_of_a_lost_connection_is_settled_soon() {
    const PATIENCE_S: u16 = 60;
    const BATCH: u16 = 200;
    // Then the source asks for as many again.
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
    let config = NatsConfig::new(&url).timeout_s(PATIENCE_S);
    let subscription = NatsSubscription::new("lost", "worker").prefetch(BATCH);
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
            "the second batch was not delivered"
        );
    }
    server.kill().unwrap();
    let started = Instant::now();
    let first = deliveries.remove(0);
    first.settle(Settlement::Acknowledge).await.unwrap_err();
    // The client knows of the loss now, and has read what the server sent before.
    while let Some(Ok(Some(delivery))) = source.next().now_or_never() {
        deliveries.push(delivery);
        // Without this, tokio's budget of a task ends the loop early.
        tokio::task::yield_now().await;
    }
    assert!(deliveries.len() > IN_HAND, "nothing was fetched ahead");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_of_the_next_connection_is_confirmed() {
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
            // A busy server may be late.
            assert!(started.elapsed() >= Duration::from_secs(1), "{error}");
        }
    }
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_loses_nothing_confirmed_and_both_sides_go_on() {
    let mut server = Nats::start().unwrap();
    let url = server.url();
    declare(&url, "killed", |_| {}).await;
    let publisher = NatsPublisher::new(NatsConfig::new(&url).timeout_s(1));
    let mut traffic = Traffic::start(publisher, source(&url, "killed"), "killed.x");
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

/// Goal: a server whose users have passwords. Invariant: I9.
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
