//! The names of the metrics, with their units and descriptions. `docs/telemetry.md` lists all of
//! them in a table.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Declares a constant with the name of each metric, and the function that describes all of them.
macro_rules! declare_metrics {
    ($($constant:ident: $describe:ident($name:literal, $unit:ident, $text:literal);)+) => {
        $(pub(super) const $constant: &str = $name;)+

        /// Describes all metrics and their units to the installed recorder.
        ///
        /// Consumers and relays call this function when they start to run. A program that only uses
        /// [`Idem::process`](crate::Idem::process) calls it once, after it has installed a
        /// recorder. The metrics are also recorded without the descriptions.
        pub fn describe_metrics() {
            $($describe!($constant, Unit::$unit, $text);)+
        }
    };
}

declare_metrics! {
    PROCESSED: describe_counter("idem_processed_total", Count, "Messages by result");
    PROCESS_DURATION: describe_histogram("idem_process_duration_seconds", Seconds,
        "Time from the start of processing a message to its result");
    RETRIES: describe_counter("idem_retries_total", Count, "Retries by kind of error");
    IN_FLIGHT: describe_gauge("idem_in_flight", Count, "Messages that are being processed");

    CONSUMER_SETTLED: describe_counter("idem_consumer_settled_total", Count,
        "Deliveries by settlement");
    CONSUMER_SOURCE_ERRORS: describe_counter("idem_consumer_source_errors_total", Count,
        "Errors of the source");
    CONSUMER_DATABASE_AWAY: describe_gauge("idem_consumer_database_away", Count,
        "1 while nothing is fetched because the database is not available");
    CONSUMER_PAUSED: describe_gauge("idem_consumer_paused", Count,
        "1 while a destination is paused after failures of its environment");

    RELAY_PUBLISHED: describe_counter("idem_relay_published_total", Count,
        "Attempts to publish an effect by result");
    RELAY_PUBLISH_DURATION: describe_histogram("idem_relay_publish_duration_seconds", Seconds,
        "Time from publishing an effect to the reply of the broker");
    RELAY_LAG: describe_gauge("idem_relay_lag_seconds", Seconds,
        "Age of the oldest effect of the last batch when it was leased; 0 when no effect waits");
    RELAY_BATCH: describe_histogram("idem_relay_batch_effects", Count, "Effects in a batch");
    RELAY_PARKED: describe_counter("idem_relay_parked_total", Count, "Effects that were parked");
    RELAY_IN_FLIGHT: describe_gauge("idem_relay_in_flight", Count,
        "Effects that wait for the reply of the broker");
    RELAY_DATABASE_AWAY: describe_gauge("idem_relay_database_away", Count,
        "1 while a relay waits because the database is not available to it");
    RELAY_BROKER_AWAY: describe_gauge("idem_relay_broker_away", Count,
        "1 while effects wait because the broker is not available");
    RELAY_UNAVAILABLE_TOPICS: describe_gauge("idem_relay_unavailable_topics", Count,
        "Topics with effects that wait because the broker has no place for them");
}
