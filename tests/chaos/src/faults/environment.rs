//! Failures of the environment. They are not caused by a message, so no message may become a dead
//! letter because of them.

use std::time::Duration;

use anyhow::Result;
use futures_util::{FutureExt, future::BoxFuture};
use rand::rngs::StdRng;
use tokio_postgres::error::SqlState;

use super::{Fault, Kind, hold, hold_until_logged};
use crate::{proxy::Cut, server_log::with_state, site::Site};
use idem_demo::range::live::{
    business::{CONSUMER_ROLE, RELAY_ROLE},
    place,
};

/// Consumers have no INSERT privilege on a table.
pub struct RightsRevoked;
/// A table is missing.
pub struct TableAway;
/// The bindings or subjects of the effects are missing.
pub struct TopicsAway;
/// Statements exceed `statement_timeout`.
pub struct StatementTimeout;
/// No process can open a new connection.
pub struct NoConnections;

impl Fault for RightsRevoked {
    fn kind(&self) -> Kind {
        Kind::RightsRevoked
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        async {
            let refused = with_state("42501");
            let before = site.count_in_log(&refused).await?;
            site.insist(&format!("REVOKE INSERT ON shot FROM {CONSUMER_ROLE}"))
                .await?;
            let was_refused = hold_until_logged(site, dice, 2.0..5.0, &refused, before).await;
            site.insist(&format!("GRANT INSERT ON shot TO {CONSUMER_ROLE}"))
                .await?;
            was_refused
        }
        .boxed()
    }
}

impl Fault for TableAway {
    fn kind(&self) -> Kind {
        Kind::TableAway
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        async {
            let missing = with_state("42P01");
            let before = site.count_in_log(&missing).await?;
            site.insist("ALTER TABLE moved RENAME TO moved_away")
                .await?;
            let was_missing = hold_until_logged(site, dice, 2.0..5.0, &missing, before).await;
            site.insist("ALTER TABLE moved_away RENAME TO moved")
                .await?;
            was_missing
        }
        .boxed()
    }
}

impl Fault for TopicsAway {
    fn kind(&self) -> Kind {
        Kind::TopicsAway
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        async {
            place::set_topics(site.kind, &site.broker_url, false).await?;
            hold(dice, 2.0..5.0).await;
            place::set_topics(site.kind, &site.broker_url, true).await?;
            Ok(true)
        }
        .boxed()
    }
}

impl Fault for StatementTimeout {
    fn kind(&self) -> Kind {
        Kind::StatementTimeout
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        async {
            let timeout = "canceling statement due to statement timeout";
            let before = site.count_in_log(timeout).await?;
            let role = format!("ALTER ROLE {CONSUMER_ROLE}");
            site.insist(&format!("{role} SET statement_timeout = '500ms'"))
                .await?;
            // The setting applies to new sessions only, so the connections are reset.
            site.database_proxy.cut(Cut::Reset);
            let client = site.connect().await?;
            // The server may cancel this statement to resolve a deadlock. Then the lock is
            // requested again.
            while let Err(error) = client.batch_execute("BEGIN; LOCK TABLE shot").await {
                anyhow::ensure!(
                    error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED),
                    error
                );
                client.batch_execute("ROLLBACK").await?;
            }
            let has_timed_out = hold_until_logged(site, dice, 1.5..2.5, timeout, before).await;
            client.batch_execute("COMMIT").await?;
            site.insist(&format!("{role} RESET statement_timeout"))
                .await?;
            site.database_proxy.cut(Cut::Reset);
            has_timed_out
        }
        .boxed()
    }
}

impl Fault for NoConnections {
    fn kind(&self) -> Kind {
        Kind::NoConnections
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<bool>> {
        async {
            let refused = with_state("53300");
            let mut taken = Vec::new();
            site.database_proxy.cut(Cut::Reset);
            // Opens all connections that are free, including those that the processes close
            // meanwhile.
            let ends = tokio::time::Instant::now() + Duration::from_secs(3);
            while tokio::time::Instant::now() < ends {
                match site.connect_as(RELAY_ROLE, "campaign").await {
                    Ok(client) => taken.push(client),
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
            anyhow::ensure!(
                !taken.is_empty(),
                "the processes already use all connections"
            );
            // From here on only the processes try to open connections, so a new refusal in the log
            // is one of a process.
            let before = site.count_in_log(&refused).await?;
            site.database_proxy.cut(Cut::Reset);
            let was_refused = hold_until_logged(site, dice, 1.0..3.0, &refused, before).await;
            drop(taken);
            was_refused
        }
        .boxed()
    }
}
