//! The names of the metrics. `docs/telemetry.md` has them all in one table.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub(super) const PROCESSED: &str = "idem_processed_total";
pub(super) const PROCESS_DURATION: &str = "idem_process_duration_seconds";
pub(super) const RETRIES: &str = "idem_retries_total";
pub(super) const IN_FLIGHT: &str = "idem_in_flight";

pub(super) const CONSUMER_SETTLED: &str = "idem_consumer_settled_total";
pub(super) const CONSUMER_SOURCE_ERRORS: &str = "idem_consumer_source_errors_total";
pub(super) const CONSUMER_DATABASE_AWAY: &str = "idem_consumer_database_away";
pub(super) const CONSUMER_PAUSED: &str = "idem_consumer_paused";

pub(super) const RELAY_PUBLISHED: &str = "idem_relay_published_total";
pub(super) const RELAY_PUBLISH_DURATION: &str = "idem_relay_publish_duration_seconds";
pub(super) const RELAY_LAG: &str = "idem_relay_lag_seconds";
pub(super) const RELAY_BATCH: &str = "idem_relay_batch_effects";
pub(super) const RELAY_PARKED: &str = "idem_relay_parked_total";
pub(super) const RELAY_IN_FLIGHT: &str = "idem_relay_in_flight";
pub(super) const RELAY_DATABASE_AWAY: &str = "idem_relay_database_away";
pub(super) const RELAY_BROKER_AWAY: &str = "idem_relay_broker_away";
pub(super) const RELAY_UNAVAILABLE_TOPICS: &str = "idem_relay_unavailable_topics";

/// Tells the recorder that is installed what each metric is, and its unit.
///
/// Consumers and relays do it when they begin to run. Whoever uses
/// [`Idem::process`](crate::Idem::process) alone calls it once, after installing a recorder. The
/// metrics come without it too.
pub fn describe_metrics() {
    describe_counter!(PROCESSED, Unit::Count, "Messages, by what became of them");
    describe_histogram!(
        PROCESS_DURATION,
        Unit::Seconds,
        "From taking up a message to knowing what became of it"
    );
    describe_counter!(RETRIES, Unit::Count, "Attempts that are made again, by why");
    describe_gauge!(IN_FLIGHT, Unit::Count, "Messages that are being processed");

    describe_counter!(
        CONSUMER_SETTLED,
        Unit::Count,
        "Deliveries, by what the broker was told about them"
    );
    describe_counter!(
        CONSUMER_SOURCE_ERRORS,
        Unit::Count,
        "Times that the source failed"
    );
    describe_gauge!(
        CONSUMER_DATABASE_AWAY,
        Unit::Count,
        "1 while nothing is fetched because the database does not serve"
    );
    describe_gauge!(
        CONSUMER_PAUSED,
        Unit::Count,
        "1 while the messages of a destination meet failures of the environment"
    );

    describe_counter!(
        RELAY_PUBLISHED,
        Unit::Count,
        "Attempts to publish an effect, by what the broker said"
    );
    describe_histogram!(
        RELAY_PUBLISH_DURATION,
        Unit::Seconds,
        "From giving an effect to the broker to its answer"
    );
    describe_gauge!(
        RELAY_LAG,
        Unit::Seconds,
        "Age of the oldest effect of the last batch when it was taken up; 0 when nothing waits"
    );
    describe_histogram!(RELAY_BATCH, Unit::Count, "Effects in a batch");
    describe_counter!(RELAY_PARKED, Unit::Count, "Effects that were parked");
    describe_gauge!(
        RELAY_IN_FLIGHT,
        Unit::Count,
        "Effects that the broker has not answered yet"
    );
    describe_gauge!(
        RELAY_DATABASE_AWAY,
        Unit::Count,
        "1 while a relay waits because the database does not serve it"
    );
    describe_gauge!(
        RELAY_BROKER_AWAY,
        Unit::Count,
        "1 while effects wait because the broker is not available"
    );
    describe_gauge!(
        RELAY_UNAVAILABLE_TOPICS,
        Unit::Count,
        "Topics whose effects wait because the broker has no place for them"
    );
}
