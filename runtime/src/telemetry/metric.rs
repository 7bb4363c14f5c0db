//! The names of the metrics. `docs/telemetry.md` lists all of them in a table.

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

/// Describes all metrics and their units to the installed recorder.
///
/// Consumers and relays call this function when they start to run. A program that only uses
/// [`Idem::process`](crate::Idem::process) calls it once, after it has installed a recorder. The
/// metrics are also recorded without the descriptions.
pub fn describe_metrics() {
    describe_counter!(PROCESSED, Unit::Count, "Messages by result");
    describe_histogram!(
        PROCESS_DURATION,
        Unit::Seconds,
        "Time from the start of processing a message to its result"
    );
    describe_counter!(RETRIES, Unit::Count, "Retries by kind of error");
    describe_gauge!(IN_FLIGHT, Unit::Count, "Messages that are being processed");

    describe_counter!(CONSUMER_SETTLED, Unit::Count, "Deliveries by settlement");
    describe_counter!(CONSUMER_SOURCE_ERRORS, Unit::Count, "Errors of the source");
    describe_gauge!(
        CONSUMER_DATABASE_AWAY,
        Unit::Count,
        "1 while nothing is fetched because the database is not available"
    );
    describe_gauge!(
        CONSUMER_PAUSED,
        Unit::Count,
        "1 while a destination is paused after failures of its environment"
    );

    describe_counter!(
        RELAY_PUBLISHED,
        Unit::Count,
        "Attempts to publish an effect by result"
    );
    describe_histogram!(
        RELAY_PUBLISH_DURATION,
        Unit::Seconds,
        "Time from publishing an effect to the reply of the broker"
    );
    describe_gauge!(
        RELAY_LAG,
        Unit::Seconds,
        "Age of the oldest effect of the last batch when it was leased; 0 when no effect waits"
    );
    describe_histogram!(RELAY_BATCH, Unit::Count, "Effects in a batch");
    describe_counter!(RELAY_PARKED, Unit::Count, "Effects that were parked");
    describe_gauge!(
        RELAY_IN_FLIGHT,
        Unit::Count,
        "Effects that wait for the reply of the broker"
    );
    describe_gauge!(
        RELAY_DATABASE_AWAY,
        Unit::Count,
        "1 while a relay waits because the database is not available to it"
    );
    describe_gauge!(
        RELAY_BROKER_AWAY,
        Unit::Count,
        "1 while effects wait because the broker is not available"
    );
    describe_gauge!(
        RELAY_UNAVAILABLE_TOPICS,
        Unit::Count,
        "Topics with effects that wait because the broker has no place for them"
    );
}
