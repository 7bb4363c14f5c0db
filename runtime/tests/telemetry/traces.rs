//! Tests of the spans of messages and effects.
use std::sync::LazyLock;

use idem_client::Effect;
use idem_runtime::{Idem, Message, Processed, Relay, Tx};
use idem_testkit::{
    Database,
    proxy::{Cut, Proxy},
};
use opentelemetry::trace::{SpanId, SpanKind, Status, TraceId, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use serde_json::json;
use tokio::sync::oneshot;
use tracing::Subscriber;
use tracing_subscriber::{filter::LevelFilter, layer::SubscriberExt};

use crate::Broker;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SENDER: &str = "00f067aa0ba902b7";

/// All spans of this program. Each test finds its own spans by the names of its destinations.
struct Spans(InMemorySpanExporter);

impl Spans {
    fn collect() -> &'static Self {
        // Use one subscriber for all threads: tracing decides only once whether a span is recorded,
        // when the first thread reaches the span.
        static SPANS: LazyLock<(Spans, SdkTracerProvider)> = LazyLock::new(|| {
            let (spans, provider, subscriber) = Spans::all_down_to(LevelFilter::TRACE);
            tracing::subscriber::set_global_default(subscriber).unwrap();
            (spans, provider)
        });
        &SPANS.0
    }

    fn all_down_to(level: LevelFilter) -> (Self, SdkTracerProvider, impl Subscriber + Send + Sync) {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("telemetry"));
        (
            Spans(exporter),
            provider,
            tracing_subscriber::registry().with(layer).with(level),
        )
    }

    fn all(&self) -> Vec<SpanData> {
        self.0.get_finished_spans().unwrap()
    }

    /// Returns the span with this name. Panics unless there is exactly one.
    fn one(&self, name: &str) -> SpanData {
        let all = self.all();
        let mut found = all.iter().filter(|span| span.name == name);
        let span = found
            .next()
            .unwrap_or_else(|| panic!("no {name} in {all:#?}"));
        assert!(found.next().is_none(), "more than one {name} in {all:#?}");
        span.clone()
    }
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span
        .attributes
        .iter()
        .find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| attribute.value.to_string())
}

fn message(topic: &str, id: &str, trace: &str) -> Message {
    Message::new(topic, r#"{"order": 1}"#)
        .with_message_id(id)
        .with_header("traceparent", format!("00-{trace}-{SENDER}-01"))
        .with_header("tracestate", "vendor=1")
}

fn next() -> Effect {
    Effect::json("orders.ship", &json!({"order": 1})).unwrap()
}

fn id_of(span: &SpanData) -> SpanId {
    span.span_context.span_id()
}

/// Goal: the trace of an incoming message continues in its effects, in the relay that publishes
/// them, and in the next consumer.
#[tokio::test]
async fn one_trace_leads_through_the_relay_to_the_next_consumer() {
    let database = Database::create();
    let pool = database.pool(4);
    let spans = Spans::collect();
    let idem = Idem::new();

    let own = format!("00-{TRACE}-1111111111111111-01");
    let handler = |_: Tx, _| {
        let other = next().header("traceparent", own.as_str()).key("own");
        async { Ok(vec![next(), other]) }
    };
    let processed = idem
        .process(&pool, &message("orders.place", "m-1", TRACE), handler)
        .await
        .unwrap();
    let Processed::New { effects } = processed else {
        panic!("{processed:?}");
    };

    let (broker, mut published) = Broker::new();
    let (stop, stopped) = oneshot::channel::<()>();
    let relay = Relay::new(pool.clone(), broker).run(async {
        let _ = stopped.await;
    });
    let (summary, outgoing) = tokio::join!(relay, async {
        let outgoing = [
            published.recv().await.unwrap(),
            published.recv().await.unwrap(),
        ];
        stop.send(()).unwrap();
        outgoing
    });
    assert_eq!(summary.unwrap().published, 2);

    let outgoing = outgoing
        .into_iter()
        .find(|outgoing| outgoing.message_id == effects[0])
        .unwrap();
    let traceparent = outgoing.traceparent.unwrap();
    let incoming = Message::new(outgoing.topic, outgoing.payload)
        .with_message_id(outgoing.message_id.to_string())
        .with_header("traceparent", &traceparent)
        .with_header(
            "tracestate",
            outgoing.headers["tracestate"].as_str().unwrap(),
        );
    let handler = |_: Tx, _| async { Ok(vec![]) };
    let processed = idem.process(&pool, &incoming, handler).await.unwrap();
    assert_eq!(processed, Processed::New { effects: vec![] });

    let (first, second) = (
        spans.one("process orders.place"),
        spans.one("process orders.ship"),
    );
    assert_eq!(traceparent, format!("00-{TRACE}-{}-01", id_of(&first)));
    let sends: Vec<_> = spans
        .all()
        .into_iter()
        .filter(|span| span.name == "send orders.ship")
        .collect();
    let send = sends
        .iter()
        .find(|send| attribute(send, "messaging.message.id") == Some(effects[0].to_string()));
    let other = sends
        .iter()
        .find(|send| attribute(send, "messaging.message.id") == Some(effects[1].to_string()));
    for (span, parent, kind) in [
        (&first, SENDER.to_owned(), SpanKind::Consumer),
        (send.unwrap(), id_of(&first).to_string(), SpanKind::Producer),
        (
            other.unwrap(),
            "1111111111111111".to_owned(),
            SpanKind::Producer,
        ),
        (&second, id_of(&first).to_string(), SpanKind::Consumer),
    ] {
        assert_eq!(
            span.span_context.trace_id(),
            TraceId::from_hex(TRACE).unwrap(),
            "{}",
            span.name
        );
        assert_eq!(span.parent_span_id.to_string(), parent, "{}", span.name);
        assert!(span.parent_span_is_remote, "{}", span.name);
        assert_eq!(span.span_kind, kind, "{}", span.name);
        assert_eq!(attribute(span, "messaging.system").as_deref(), Some("idem"));
    }
    assert_eq!(first.span_context.trace_state().header(), "vendor=1");
    assert_eq!(second.span_context.trace_state().header(), "vendor=1");
    for (span, name, value) in [
        (&first, "messaging.operation.type", "process"),
        (&first, "messaging.destination.name", "orders.place"),
        (&first, "messaging.message.id", "m-1"),
        (&first, "idem.outcome", "new"),
        (send.unwrap(), "messaging.operation.type", "send"),
        (send.unwrap(), "messaging.destination.name", "orders.ship"),
        (send.unwrap(), "idem.outcome", "published"),
    ] {
        assert_eq!(
            attribute(span, name).as_deref(),
            Some(value),
            "{name} of {}",
            span.name
        );
    }

    // The statements in the database are in the same trace.
    for process in [&first, &second] {
        let all = spans.all();
        let claim = all
            .iter()
            .find(|span| span.name == "claim" && span.parent_span_id == id_of(process));
        assert_eq!(
            attribute(claim.expect("no span of the claim"), "idem.outcome").as_deref(),
            Some("claimed")
        );
    }
}

#[tokio::test]
async fn messages_of_one_transaction_stay_in_their_own_traces() {
    let database = Database::create();
    let pool = database.pool(2);
    let spans = Spans::collect();
    let traces = [TRACE, "0af7651916cd43dd8448eb211c80319c"];
    let messages = [
        message("many", "m-1", traces[0]),
        message("many", "m-2", traces[1]),
    ];
    let handler = |_: Tx, _| async { Ok(vec![next()]) };
    for processed in Idem::new().process_batch(&pool, &messages, handler).await {
        assert!(
            matches!(processed, Ok(Processed::New { .. })),
            "{processed:?}"
        );
    }
    let batch = spans.one("process_batch many");
    assert_eq!(
        attribute(&batch, "messaging.batch.message_count").as_deref(),
        Some("2")
    );

    let client = database.client().await;
    let rows = client.query(
        "SELECT (e).traceparent FROM (SELECT idem_effects('m-1', 'many') e
                             UNION ALL SELECT idem_effects('m-2', 'many')) e",
        &[],
    );
    let rows = rows.await.unwrap();
    let recorded: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    for (trace, recorded) in traces.iter().zip(recorded) {
        let all = spans.all();
        let mut own = all.iter().filter(|span| span.name == "process many");
        let own = own
            .find(|span| span.span_context.trace_id().to_string() == *trace)
            .unwrap();
        assert_eq!(own.parent_span_id.to_string(), SENDER);
        assert_eq!(recorded, format!("00-{trace}-{}-01", id_of(own)));
    }
}

#[tokio::test]
async fn failure_sets_the_span_status_and_a_duplicate_does_not() {
    let database = Database::create();
    let pool = database.pool(2);
    let spans = Spans::collect();
    let idem = Idem::new();
    let fails = |_: Tx, _| async { Err("failed".into()) };
    assert!(
        idem.process(
            &pool,
            &Message::new("fails", "").with_message_id("m-1"),
            fails
        )
        .await
        .is_err()
    );
    let failed = spans.one("process fails");
    assert_eq!(failed.status, Status::error(""));
    assert_eq!(attribute(&failed, "error.type").as_deref(), Some("handler"));
    assert_eq!(
        attribute(&failed, "idem.outcome").as_deref(),
        Some("failed")
    );

    let handler = |_: Tx, _| async { Ok(vec![]) };
    for outcome in ["new", "duplicate"] {
        let message = Message::new("works", "").with_message_id("m-1");
        assert!(idem.process(&pool, &message, handler).await.is_ok());
        let all = spans.all();
        let last = all
            .iter()
            .rfind(|span| span.name == "process works")
            .unwrap();
        assert_eq!(last.status, Status::Unset);
        assert_eq!(attribute(last, "error.type"), None);
        assert_eq!(attribute(last, "idem.outcome").as_deref(), Some(outcome));
        // The message has no trace, so a new trace begins here.
        assert_eq!(last.parent_span_id, SpanId::INVALID);
    }
}

/// Goal: the outcome of a function call is an attribute of its own span. If this span is not
/// recorded, the outcome does not appear in the span of the message.
#[tokio::test]
async fn outcome_is_only_in_its_own_span() {
    let database = Database::create();
    let pool = database.pool(2);
    // Now there are two subscribers, so tracing decides for each of them whether a span is
    // recorded.
    Spans::collect();
    let (spans, _provider, subscriber) = Spans::all_down_to(LevelFilter::INFO);
    let _guard = tracing::subscriber::set_default(subscriber);
    let handler = |_: Tx, _| async { Ok(vec![next()]) };
    let processed = Idem::new()
        .process(&pool, &message("at info", "m-1", TRACE), handler)
        .await;
    assert!(
        matches!(processed, Ok(Processed::New { .. })),
        "{processed:?}"
    );
    let process = spans.one("process at info");
    let outcomes = process
        .attributes
        .iter()
        .filter(|attribute| attribute.key.as_str() == "idem.outcome");
    let outcomes: Vec<_> = outcomes.map(|outcome| outcome.value.to_string()).collect();
    assert_eq!(outcomes, ["new"]);
    assert_eq!(spans.all().len(), 1);
}

/// Goal: if a checked message is handled twice at the same time, the second result is logged. If
/// the reply to the commit is lost, nothing is logged: the message was handled once, and its own
/// commit makes it a duplicate.
#[tokio::test]
async fn lost_reply_is_not_logged_as_a_second_handling() {
    let database = Database::create();
    let spans = Spans::collect();
    let idem = Idem::new();
    let handler = async |_: Message| Ok(vec![next()]);

    let lost = message("checked.lost", "m-1", TRACE);
    let proxy = Proxy::to(&database).await;
    let pool = proxy.pool(1);
    let processed = idem.process_checked(&pool, &lost, async |_: Message| {
        proxy.cut_once(Cut::AfterCommit);
        Ok(vec![next()])
    });
    let processed = processed.await.unwrap();
    assert!(proxy.was_cut());
    assert!(
        matches!(processed, Processed::Duplicate { .. }),
        "{processed:?}"
    );

    let pool = database.pool(2);
    let twice = message("checked.twice", "m-1", TRACE);
    let processed = idem.process_checked(&pool, &twice, async |message: Message| {
        let first = idem.process_checked(&pool, &message, handler).await?;
        assert!(matches!(first, Processed::New { .. }), "{first:?}");
        Ok(vec![next()])
    });
    let processed = processed.await.unwrap();
    assert!(
        matches!(processed, Processed::Duplicate { .. }),
        "{processed:?}"
    );

    let all = spans.all();
    let warnings = |name: &str| {
        let spans = all.iter().filter(|span| span.name == name);
        spans
            .flat_map(|span| span.events.iter())
            .filter(|event| {
                event
                    .name
                    .starts_with("another process handled this message")
            })
            .count()
    };
    assert_eq!(warnings("process checked.twice"), 1);
    assert_eq!(warnings("process checked.lost"), 0);
}
