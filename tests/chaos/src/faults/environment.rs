//! Failures of the environment. They are not caused by a message, so no message may become a dead
//! letter because of them.

use std::time::Duration;

use anyhow::{Result, ensure};
use idem_demo::range::live::{
    business::{CONSUMER_ROLE, RELAY_ROLE},
    place,
};
use idem_testkit::proxy::network::Fault;
use rand::rngs::StdRng;
use tokio_postgres::error::SqlState;

use super::hold::{hold, hold_until_logged};
use crate::{server_log::with_state, site::Site};

/// Consumers have no INSERT privilege on a table.
pub(super) async fn revoke_rights(site: &Site, dice: &mut StdRng) -> Result<bool> {
    let revoke = format!("REVOKE INSERT ON shot FROM {CONSUMER_ROLE}");
    let grant = format!("GRANT INSERT ON shot TO {CONSUMER_ROLE}");
    change(site, dice, "42501", &revoke, &grant).await
}

/// A table is missing.
pub(super) async fn rename_table(site: &Site, dice: &mut StdRng) -> Result<bool> {
    let rename = "ALTER TABLE moved RENAME TO moved_away";
    let restore = "ALTER TABLE moved_away RENAME TO moved";
    change(site, dice, "42P01", rename, restore).await
}

/// Executes `sql`, after which statements of the processes fail with this SQLSTATE, and later
/// `undo`.
async fn change(
    site: &Site,
    dice: &mut StdRng,
    sqlstate: &str,
    sql: &str,
    undo: &str,
) -> Result<bool> {
    let refused = with_state(sqlstate);
    let before = site.count_in_log(&refused).await?;
    site.insist(sql).await?;
    let was_refused = hold_until_logged(site, dice, 2.0..5.0, &refused, before).await;
    site.insist(undo).await?;
    was_refused
}

/// The bindings or subjects of the effects are missing.
pub(super) async fn remove_topics(site: &Site, dice: &mut StdRng) -> Result<bool> {
    place::set_topics(site.kind, &site.broker_url, false).await?;
    hold(dice, 2.0..5.0).await;
    place::set_topics(site.kind, &site.broker_url, true).await?;
    Ok(true)
}

/// Statements exceed `statement_timeout`.
pub(super) async fn time_out(site: &Site, dice: &mut StdRng) -> Result<bool> {
    let timeout = "canceling statement due to statement timeout";
    let before = site.count_in_log(timeout).await?;
    let role = format!("ALTER ROLE {CONSUMER_ROLE}");
    site.insist(&format!("{role} SET statement_timeout = '500ms'"))
        .await?;
    // The setting applies to new sessions only, so the connections are reset.
    site.database_proxy.cut(Fault::Reset);
    let client = site.connect().await?;
    // The server may cancel this statement to resolve a deadlock. Then the lock is requested again.
    while let Err(error) = client.batch_execute("BEGIN; LOCK TABLE shot").await {
        ensure!(
            error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED),
            error
        );
        client.batch_execute("ROLLBACK").await?;
    }
    let has_timed_out = hold_until_logged(site, dice, 1.5..2.5, timeout, before).await;
    client.batch_execute("COMMIT").await?;
    site.insist(&format!("{role} RESET statement_timeout"))
        .await?;
    site.database_proxy.cut(Fault::Reset);
    has_timed_out
}

/// No process can open a new connection.
pub(super) async fn use_all_connections(site: &Site, dice: &mut StdRng) -> Result<bool> {
    let refused = with_state("53300");
    let mut taken = Vec::new();
    site.database_proxy.cut(Fault::Reset);
    // Opens all connections that are free, including those that the processes close meanwhile.
    let ends = tokio::time::Instant::now() + Duration::from_secs(3);
    while tokio::time::Instant::now() < ends {
        match site.connect_as(RELAY_ROLE, "campaign").await {
            Ok(client) => taken.push(client),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    ensure!(
        !taken.is_empty(),
        "the processes already use all connections"
    );
    // From here on only the processes try to open connections, so a new refusal in the log is one
    // of a process.
    let before = site.count_in_log(&refused).await?;
    site.database_proxy.cut(Fault::Reset);
    let was_refused = hold_until_logged(site, dice, 1.0..3.0, &refused, before).await;
    drop(taken);
    was_refused
}
