//! The environment fails, and no message is to blame: none may end among the dead letters for it.

use std::time::Duration;

use anyhow::Result;
use futures_util::{FutureExt, future::BoxFuture};
use rand::rngs::StdRng;
use tokio_postgres::error::SqlState;

use super::{Fault, Kind, hold};
use crate::chaos::proxy::Cut;
use crate::chaos::site::Site;
use crate::range::live::{
    business::{CONSUMER_ROLE, RELAY_ROLE},
    place,
};

/// Consumers may not write a table.
pub struct RightsRevoked;
/// A table is gone.
pub struct TableAway;
/// What effects are published to is gone.
pub struct TopicsAway;
/// Statements wait for longer than they may.
pub struct StatementTimeout;
/// No process gets a new connection.
pub struct NoConnections;

impl Fault for RightsRevoked {
    fn kind(&self) -> Kind {
        Kind::RightsRevoked
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<()>> {
        async {
            site.insist(&format!("REVOKE INSERT ON shot FROM {CONSUMER_ROLE}")).await?;
            hold(dice, 2.0..5.0).await;
            site.insist(&format!("GRANT INSERT ON shot TO {CONSUMER_ROLE}")).await
        }
        .boxed()
    }
}

impl Fault for TableAway {
    fn kind(&self) -> Kind {
        Kind::TableAway
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<()>> {
        async {
            site.insist("ALTER TABLE moved RENAME TO moved_away").await?;
            hold(dice, 2.0..5.0).await;
            site.insist("ALTER TABLE moved_away RENAME TO moved").await
        }
        .boxed()
    }
}

impl Fault for TopicsAway {
    fn kind(&self) -> Kind {
        Kind::TopicsAway
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<()>> {
        async {
            place::set_topics(site.kind, &site.broker_url, false).await?;
            hold(dice, 2.0..5.0).await;
            place::set_topics(site.kind, &site.broker_url, true).await
        }
        .boxed()
    }
}

impl Fault for StatementTimeout {
    fn kind(&self) -> Kind {
        Kind::StatementTimeout
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<()>> {
        async {
            let role = format!("ALTER ROLE {CONSUMER_ROLE}");
            site.insist(&format!("{role} SET statement_timeout = '500ms'")).await?;
            // Sessions take it when they begin.
            site.database_proxy.cut(Cut::Reset);
            let client = site.connect().await?;
            // The server may choose this session to end a deadlock.
            while let Err(error) = client.batch_execute("BEGIN; LOCK TABLE shot").await {
                anyhow::ensure!(error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED), error);
                client.batch_execute("ROLLBACK").await?;
            }
            hold(dice, 1.5..2.5).await;
            client.batch_execute("COMMIT").await?;
            site.insist(&format!("{role} RESET statement_timeout")).await?;
            site.database_proxy.cut(Cut::Reset);
            Ok(())
        }
        .boxed()
    }
}

impl Fault for NoConnections {
    fn kind(&self) -> Kind {
        Kind::NoConnections
    }

    fn strike<'a>(&'a self, site: &'a Site, dice: &'a mut StdRng) -> BoxFuture<'a, Result<()>> {
        async {
            let mut taken = Vec::new();
            site.database_proxy.cut(Cut::Reset);
            // Whatever the processes manage to get, the rest is taken, and what they let go of, too.
            let ends = tokio::time::Instant::now() + Duration::from_secs(3);
            while tokio::time::Instant::now() < ends {
                match site.connect_as(RELAY_ROLE, "campaign").await {
                    Ok(client) => taken.push(client),
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
            anyhow::ensure!(!taken.is_empty(), "the processes have all connections already");
            site.database_proxy.cut(Cut::Reset);
            hold(dice, 1.0..3.0).await;
            drop(taken);
            Ok(())
        }
        .boxed()
    }
}
