//! Tests of the global propagator of OpenTelemetry. A process has only one, so this program has no
//! other tests.

use idem_client::Effect;
use idem_runtime::{Idem, Message, Processed, Tx};
use idem_testkit::Database;
use opentelemetry::{
    baggage::BaggageExt, global, propagation::TextMapCompositePropagator, trace::TracerProvider,
};
use opentelemetry_sdk::{
    propagation::{BaggagePropagator, TraceContextPropagator},
    trace::SdkTracerProvider,
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Goal: the headers of messages and effects are those of the propagator that the application has
/// set. A header that the handler has set is kept.
#[tokio::test]
async fn global_propagator_reads_and_writes_headers() {
    global::set_text_map_propagator(TextMapCompositePropagator::new(vec![
        Box::new(TraceContextPropagator::new()),
        Box::new(BaggagePropagator::new()),
    ]));
    let provider = SdkTracerProvider::builder().build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("propagator"));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();

    let message = Message::new("orders.place", "")
        .with_message_id("m-1")
        .with_header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"))
        .with_header("tracestate", "vendor=1")
        .with_header("baggage", "tenant=7");
    let handler = |_: Tx, _| async {
        let tenant = Span::current().context().baggage().get("tenant").cloned();
        assert_eq!(
            tenant.map(|tenant| tenant.to_string()).as_deref(),
            Some("7")
        );
        let effect = || Effect::bytes("orders.ship", [], "text/plain");
        Ok(vec![effect(), effect().header("baggage", "tenant=8")])
    };
    let database = Database::create();
    let pool = database.pool(2);
    let processed = Idem::new().process(&pool, &message, handler).await.unwrap();
    assert!(
        matches!(&processed, Processed::New { effects } if effects.len() == 2),
        "{processed:?}"
    );

    let client = database.client().await;
    let rows = client.query(
        "SELECT traceparent, headers ->> 'tracestate', headers ->> 'baggage'
           FROM idem_effects('m-1', 'orders.place') ORDER BY ordinal",
        &[],
    );
    let rows = rows.await.unwrap();
    for (row, baggage) in rows.iter().zip(["tenant=7", "tenant=8"]) {
        let traceparent: &str = row.get(0);
        assert!(
            traceparent.starts_with(&format!("00-{TRACE}-")),
            "{traceparent}"
        );
        assert!(!traceparent.contains("00f067aa0ba902b7"), "{traceparent}");
        assert_eq!(row.get::<_, &str>(1), "vendor=1");
        assert_eq!(row.get::<_, &str>(2), baggage);
    }
    assert_eq!(rows.len(), 2);

    // Baggage is carried without a trace, too.
    let untraced = Message::new("orders.place", "")
        .with_message_id("m-2")
        .with_header("baggage", "tenant=9");
    let handler = |_: Tx, _| async { Ok(vec![Effect::bytes("orders.ship", [], "text/plain")]) };
    let processed = Idem::new().process(&pool, &untraced, handler).await;
    assert!(
        matches!(processed, Ok(Processed::New { .. })),
        "{processed:?}"
    );
    let sql = "SELECT headers ->> 'baggage' FROM idem_effects('m-2', 'orders.place')";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!(row.get::<_, Option<&str>>(0), Some("tenant=9"));
}
