//! Creates the tables of a campaign: those of the live range, and those that only a campaign needs.

use anyhow::Result;
use tokio_postgres::Client;

use super::config::RETENTION;
use idem_demo::range::live::{
    Flaw,
    business::{self, CONSUMER_ROLE, SCHEMA},
    post::{RELAY, RELAY_PARTITIONS},
    work::claims,
};
use idem_stress::broken::{COMPLETE_UNFENCED, ROTATE_AT_ONCE};
use idem_testkit::ring::OPEN_SEGMENTS;

const TABLES: &str = "
    -- Poison messages that were repaired, and those that were handled after that.
    CREATE TABLE repaired (poison uuid PRIMARY KEY);
    CREATE TABLE mended (poison uuid NOT NULL);
    -- Claims of the clients without a broker, with the monotonic clock before and after each.
    CREATE TABLE claimed (
        attempt   bigint NOT NULL,
        identity  bigint NOT NULL,
        before_us bigint NOT NULL,
        after_us  bigint NOT NULL
    );
    -- Leases, with the monotonic clock after their commit, and completions, with the monotonic
    -- clock before them.
    CREATE TABLE leased (identity bigint NOT NULL, token bigint NOT NULL, told_us bigint NOT NULL);
    CREATE TABLE completed (
        identity bigint NOT NULL,
        token    bigint NOT NULL,
        asked_us bigint NOT NULL
    );
    -- The last step of each key.
    CREATE TABLE step (key int PRIMARY KEY, n bigint NOT NULL);
    INSERT INTO step SELECT key, 0 FROM generate_series(0, 3) key;
    -- The time of each row, to recognize a command that was handled again after the retention.
    CREATE FUNCTION monotonic_s() RETURNS float8 LANGUAGE sql SECURITY DEFINER
        RETURN extract(epoch FROM idem.monotonic());
    ALTER TABLE shot ADD at_s float8 NOT NULL DEFAULT monotonic_s();
    ALTER TABLE moved ADD at_s float8 NOT NULL DEFAULT monotonic_s();
    ALTER TABLE counted ADD at_s float8 NOT NULL DEFAULT monotonic_s();";

/// Creates tables, roles and the relay, sets the retention of the rings, and plants the bug, if
/// there is one.
pub async fn set_up(
    client: &Client,
    players: u32,
    positions: &[i32],
    flaw: Option<Flaw>,
) -> Result<()> {
    business::set_up(client, players, positions).await?;
    client.batch_execute(TABLES).await?;
    client.batch_execute(OPEN_SEGMENTS).await?;
    client
        .batch_execute(&format!(
            "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {SCHEMA} TO {CONSUMER_ROLE};
             SELECT idem_create_relay('{RELAY}', {RELAY_PARTITIONS}), idem_drop_relay('default');
             SELECT idem_set_retention('short', '{} milliseconds');
             SELECT idem_set_retention('standard', '{retention} seconds');
             SELECT idem_set_retention('long', '{retention} seconds');
             SELECT idem_configure('{}', '{} milliseconds')",
            claims::RETENTION.as_millis(),
            claims::DESTINATION,
            claims::RETENTION.as_millis(),
            retention = RETENTION.as_secs(),
        ))
        .await?;
    match flaw {
        Some(Flaw::SkippedFence) => {
            client
                .batch_execute(&ROTATE_AT_ONCE.replace("'standard'", "'short'"))
                .await?;
            // A long retention keeps the worker from rotating the ring, so all rotations are those
            // with the bug.
            client
                .batch_execute("SELECT idem_set_retention('short', '2 minutes')")
                .await?;
        }
        Some(Flaw::IgnoredToken) => {
            client.batch_execute(COMPLETE_UNFENCED).await?;
            client
                .batch_execute(
                    "ALTER FUNCTION complete_unfenced SECURITY DEFINER;
                     ALTER FUNCTION complete_unfenced SET search_path = public, pg_catalog;",
                )
                .await?;
        }
        Some(Flaw::AckBeforeCommit | Flaw::RejectDrops | Flaw::StuckObserver) | None => {}
    }
    Ok(())
}
